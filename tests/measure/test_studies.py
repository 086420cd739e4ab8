"""Recipes of kind "study": facts that hold or not, kernels that compile, and no other level."""

from __future__ import annotations

from pathlib import Path

import pytest

from cookbook.check import compiled as compiling
from cookbook.check import levels
from cookbook.publish.words import describe
from cookbook.recipe import catalog

HEADER = """\
# ---
# jupyter:
#   cookbook:
#     title: A study
#     claim: Two is two.
#     kind: study
#     track: foundations
#     order: 1
{more}# ---

# %%
import cutlass
import cutlass.cute as cute


def facts():
    return [("two_is_two", 1 + 1 == 2, "2; needed 2"), ("three", {three}, "3 is {three}")]
"""
KERNEL = """

@cute.kernel
def fill(x: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    x[tidx] = 1.0


@cute.kernel
def double(x: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    x[tidx] = 2 * x[tidx]


@cute.jit
def launch(pointer: cute.Pointer):
    x = cute.make_tensor(pointer, cute.make_layout(64))
    fill(x).launch(grid=(1, 1, 1), block=(64, 1, 1))
    double(x).launch(grid=(1, 1, 1), block=(64, 1, 1))


def compile_for(arch, options=""):
    pointer = cute.runtime.make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)
    return cute.compile(launch, pointer, options=f"--gpu-arch {arch} {options}")
"""
TARGETS = "#     targets: [sm_80, sm_90a]\n#     runs_on: sm_80+\n#     instructions: [STG, LDG]\n"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a study and makes it the only recipe; returns it."""

    def write(three: bool = True, more: str = "", body: str = "") -> catalog.Recipe:
        file = tmp_path / "foundations" / "two.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(HEADER.format(three=three, more=more) + body, encoding="utf-8")
        monkeypatch.setattr(catalog, "recipes_root", lambda: tmp_path)
        return catalog.find("foundations/two")

    return write


def test_a_study_needs_no_target_and_no_dtype(study):
    recipe = study()
    assert (recipe.kind, recipe.targets, recipe.dtypes, recipe.runs_on) == ("study", (), (), "anywhere")
    assert recipe.runs_on_capability(8, 0)


def test_its_facts_are_its_only_level(study):
    study()
    report = levels.check("foundations/two")
    (level,) = report.levels
    assert report.ok and (level.level, level.status, level.dtype) == ("layout", "passed", None)
    assert level.figures["facts"] == {"two_is_two": "2; needed 2", "three": "3 is True"}
    assert describe(level) == "2 facts: two_is_two, three"


def test_a_fact_that_does_not_hold_fails(study):
    study(three=False)
    report = levels.check("foundations/two")
    assert not report.ok and report.levels[0].reason == "three: 3 is False"


def test_its_kernels_are_compiled_together(study):
    study(more=TARGETS, body=KERNEL)
    report = levels.check("foundations/two")
    assert [(level.level, level.target, level.status) for level in report.levels] == [
        ("layout", None, "passed"),
        ("compiled", "sm_80", "passed"),
        ("compiled", "sm_90a", "passed"),
    ]
    assert report.levels[1].figures["instructions"]["STG"] == 2
    compiled = compiling.compile_recipe("foundations/two", "sm_80")
    assert compiled.threads == 64 and compiled.count("LDG") == 1 and compiled.spills == 0


@pytest.mark.parametrize(
    ("what", "value", "says"),
    [
        ("shapes", (8, 8, 8), "shape: got (8, 8, 8); needed none for foundations/two"),
        ("dtypes", "float16", "dtype: got 'float16'; needed none for foundations/two"),
        ("targets", "sm_80", "target: got 'sm_80'; needed none for foundations/two"),
    ],
)
def test_what_a_study_does_not_take_is_named(study, what, value, says):
    study()
    with pytest.raises(ValueError) as raised:
        levels.check("foundations/two", **{what: [value]})
    assert str(raised.value) == says


def test_a_copied_study_says_what_it_needs(study):
    study()
    text = catalog.standalone_source("foundations/two")
    assert "Needs torch and nvidia-cutlass-dsl>=4.6.2 (NVIDIA's own licence).\n" in text and "import matmul" not in text
