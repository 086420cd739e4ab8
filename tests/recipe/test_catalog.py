"""The catalog: front matter, cells, loading without the lab, hashes that any Python agrees on."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

import cookbook
from cookbook.measure import bench
from cookbook.recipe import catalog

HEADER = """\
# ---
# jupyter:
#   cookbook:
#     title: A recipe
#     claim: It shows that two is two.
#     track: ampere
#     order: {order}
#     targets: [sm_80, sm_90a]
#     runs_on: {runs_on}
#     dtypes: [bfloat16]
#     instructions: {instructions}
# ---

"""
BODY = '''\
# %% [markdown]
# # A recipe

# %%
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Docs."""

    two: int = 2  # a comment


# %% tags=["lab"]
raise SystemExit("the lab ran")

# %%
def matmul(a, b):
    """Docs."""
    return a @ b


# %% [markdown] tags=["lab"]
# Nothing to see.

# %% tags=["lab"]
import cookbook
'''


def write(root: Path, name: str, body: str = BODY, **header: object) -> Path:
    values = {"order": 1, "runs_on": "sm_80+", "instructions": "[HMMA]"} | header
    file = root / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(HEADER.format(**values) + body)
    return file


def test_every_recipe_of_the_cookbook_is_described():
    found = catalog.recipes()
    assert {"ampere/ldmatrix_gemm", "hopper/tma_wgmma_gemm"} <= {r.name for r in found}
    for recipe in found:
        assert recipe.claim.endswith("."), recipe.name
        assert recipe.kind == "study" or (recipe.targets and recipe.dtypes), recipe.name
        for target in recipe.targets:
            assert recipe.instructions_for(target), f"{recipe.name} names no instruction for {target}"
        if recipe.builds_on:
            assert catalog.find(recipe.builds_on)


def test_find_takes_full_and_short_names_and_suggests():
    assert catalog.find("tma_wgmma_gemm").name == catalog.find("hopper/tma_wgmma_gemm").name
    with pytest.raises(catalog.UnknownRecipe, match="did you mean hopper/tma_wgmma_gemm"):
        catalog.find("hopper/tma_wgmma_gem")
    with pytest.raises(catalog.UnknownRecipe, match="`cookbook list` prints them"):
        catalog.find("qqq")


def test_front_matter_becomes_a_recipe(tmp_path):
    write(tmp_path, "ampere/b", order=2, instructions="{all: [HMMA], sm_90a: [LDSM, LDGSTS]}")
    write(tmp_path, "ampere/a", order=1)
    first, second = catalog.recipes(tmp_path)
    assert (first.name, second.name) == ("ampere/a", "ampere/b")
    assert first.instructions == {"all": ("HMMA",)}
    assert second.instructions_for("sm_90a") == ("HMMA", "LDSM", "LDGSTS")
    assert second.instructions_for("sm_80") == ("HMMA",)


def test_sources_are_titles_with_links(tmp_path):
    file = write(tmp_path, "ampere/a")
    source = "{title: PTX ISA, url: 'https://a.b/c#d'}"
    file.write_text(file.read_text().replace("#     title:", f"#     sources: [{source}]\n#     title:"))
    write(tmp_path, "ampere/b")
    first, second = catalog.recipes(tmp_path)
    assert first.sources == (catalog.Source("PTX ISA", "https://a.b/c#d"),) and second.sources == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("#     title: A recipe\n", ""), "got no title"),
        (lambda text: text.replace("#     title:", "#     flavour: x\n#     title:"), "got unknown keys flavour"),
        (lambda text: text.replace("track: ampere", "track: hopper"), "track: got 'hopper'"),
        (lambda text: text.replace("sm_80+", "A100"), "runs_on: got 'A100'"),
        (lambda text: text.replace("#     title:", "#     kind: poem\n#     title:"), "kind: got 'poem'"),
        (lambda text: text.replace("#     dtypes: [bfloat16]\n", ""), "got no dtypes"),
        (lambda text: text.replace("#     runs_on: sm_80+\n", "#     kind: study\n"), "got no runs_on"),
        (lambda text: text.replace("[HMMA]", "{sm_75: [HMMA]}"), "got sm_75; needed targets of this recipe"),
        (lambda text: text.replace("[HMMA]", "{nt: [HMMA]}"), "instructions: got nt; needed targets of this recipe"),
        (lambda text: text.replace("#     title:", "#     majors: [tn, mk]\n#     title:"), "majors: got ['tn', 'mk']"),
        (lambda text: text.replace("#     title:", "#     tensor_cores: 1\n#     title:"), "tensor_cores: got 1"),
        (lambda text: text.replace("#     title:", "#     majors: []\n#     title:"), "majors: got []"),
        (lambda text: text.replace("#     title:", "#     majors: [nt, nt]\n#     title:"), "each once"),
        (
            lambda text: text.replace("#     title:", "#     kind: study\n#     majors: [tn]\n#     title:"),
            "a study has no operands",
        ),
        (
            lambda text: text.replace("#     title:", "#     bench_shapes: [[8, 8]]\n#     title:"),
            "shapes of 3 positive",
        ),
        (lambda text: text.replace("#     title:", "#     bench_shapes: [[8, 8, 0]]\n#     title:"), "got [[8, 8, 0]]"),
        (
            lambda text: text.replace("#     title:", "#     kind: study\n#     bench_shapes: [[8, 8]]\n#     title:"),
            "a study has no shapes",
        ),
        (
            lambda text: text.replace("#     title:", "#     compared_with: ampere/none\n#     title:"),
            "compared_with: got 'ampere/none'",
        ),
        (
            lambda text: text.replace("#     title:", "#     compared_with: ampere/a\n#     title:"),
            "needed the name of another",
        ),
        (
            lambda text: text.replace("#     title:", "#     kind: study\n#     compared_with: ampere/b\n#     title:"),
            "a study is not compared with a GEMM",
        ),
        (
            lambda text: text.replace("#     title:", "#     sources: [{title: PTX, url: ptx.html}]\n#     title:"),
            "sources: got {'title': 'PTX', 'url': 'ptx.html'}; needed a list of {title: ..., url: https://...}",
        ),
        (
            lambda text: text.replace("#     title:", "#     sources: [{url: https://a.b/c}]\n#     title:"),
            "sources: got {'url': 'https://a.b/c'}",
        ),
        (lambda text: text.replace("#     title:", "#     sources: PTX ISA\n#     title:"), "sources: got 'PTX ISA'"),
        (lambda text: text.removeprefix("# ---\n"), "needed the key jupyter.cookbook"),
    ],
)
def test_wrong_front_matter_is_named_with_its_file(tmp_path, change, says):
    file = write(tmp_path, "ampere/a")
    file.write_text(change(file.read_text()))
    with pytest.raises(catalog.CatalogError) as raised:
        catalog.recipes(tmp_path)
    assert says in str(raised.value) and str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("runs_on", "yes", "no"),
    [
        ("sm_90", [(9, 0)], [(8, 0), (10, 0), (12, 0)]),
        ("sm_80+", [(8, 0), (8, 9), (12, 0)], [(7, 5)]),
        ("sm_100, sm_103", [(10, 0), (10, 3)], [(9, 0), (11, 0), (12, 0)]),
    ],
)
def test_runs_on(tmp_path, runs_on, yes, no):
    write(tmp_path, "ampere/a", runs_on=runs_on)
    (recipe,) = catalog.recipes(tmp_path)
    assert all(recipe.runs_on_capability(*c) for c in yes)
    assert not any(recipe.runs_on_capability(*c) for c in no)
    assert (recipe.target_of(9, 0), recipe.target_of(12, 0)) == ("sm_90a", None)


def test_majors_are_tn_unless_said(tmp_path):
    write(tmp_path, "ampere/a", instructions="{all: [HMMA], nt: [LDSM.MT88]}\n#     majors: [tn, nt]")
    write(tmp_path, "ampere/b", order=2)
    several, one = catalog.recipes(tmp_path)
    assert (several.majors, one.majors) == (("tn", "nt"), ("tn",))
    assert several.instructions_for("sm_80", "nt") == ("HMMA", "LDSM.MT88")
    assert several.instructions_for("sm_80") == several.instructions_for("sm_80", "tn") == ("HMMA",)
    assert several.told_apart("nt") == "nt" and one.told_apart("tn") is None


def test_shapes_to_time_are_those_of_its_kind_unless_said(tmp_path):
    write(tmp_path, "ampere/a", instructions="[HMMA]\n#     bench_shapes: [[64, 128, 256], [8192, 8192, 512]]")
    write(tmp_path, "ampere/b", order=2)
    own, usual = catalog.recipes(tmp_path)
    assert bench.default_shapes(own) == own.bench_shapes == ((64, 128, 256), (8192, 8192, 512))
    assert usual.bench_shapes == () and bench.default_shapes(usual) == bench.DEFAULT_SHAPES


def test_load_leaves_the_lab_out_and_keeps_line_numbers(tmp_path):
    file = write(tmp_path, "ampere/a")
    module = catalog.load("ampere/a", tmp_path)
    assert not hasattr(module, "cookbook")
    assert module.Config().two == 2 and module.matmul(3, type("B", (), {"__rmatmul__": lambda s, a: a})()) == 3
    lines = file.read_text().splitlines()
    assert lines[inspect.getsourcelines(module.matmul)[1] - 1] == "def matmul(a, b):"
    assert inspect.getsource(module.matmul).startswith("def matmul(a, b):\n")
    assert catalog.load("a", tmp_path) is module


def test_a_recipe_that_fails_to_load_leaves_no_half_module(tmp_path):
    write(tmp_path, "ampere/broken", body="# %%\n1 / 0\n")
    with pytest.raises(catalog.NotLoaded, match="line 15 raises ZeroDivisionError: division by zero"):
        catalog.load("ampere/broken", tmp_path)
    assert "cookbook_recipe_ampere_broken" not in sys.modules


def test_load_is_in_the_package():
    assert cookbook.load("ampere/ldmatrix_gemm") is catalog.load("ampere/ldmatrix_gemm")


# --- text without comments ----------------------------------------------------------------------------------


def test_normal_form_joins_what_versions_split():
    joined = catalog.normal_form("f'ab{x:>{w}}'")
    assert catalog.normal_form("f'a' 'b' f'{x:>{w}}'") == catalog.normal_form('f"a" f"b{x:>{w}}" f""') == joined
    assert len({catalog.normal_form(text) for text in ("1", "1.0", "True", "'1'", "b'1'")}) == 5
