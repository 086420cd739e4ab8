"""The mutation score: which edits there are, what becomes of a mutant, and what the page says of the record."""

from __future__ import annotations

import ast
import os
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("cutlass")
ROOT = Path(__file__).parents[2]
if not (ROOT / "tools").is_dir():
    pytest.skip("tools/ is not here: this is not a checkout", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from edits import In  # noqa: E402

from cookbook.recipe import catalog  # noqa: E402
from tools import faults, mutate  # noqa: E402
from tools.mutants import mutants  # noqa: E402

HOPPER = "hopper/tma_wgmma_gemm"
SMALL = '''
import cutlass.cute as cute

class Config:
    def threads(self):
        return 32

    def words(self):
        return 64

def host():
    return 7

def part(sA, sB, k):
    """Not 5 of these."""
    require(k > 4, "k", f"{k + 6}", "more")
    cute.wait(sA)
    x = sA[None, k]
    x = sB[k, 0]
    return x

@cute.kernel
def kernel(sA, sB, config: tuple[8] = 9):
    if config.threads() < 1 and sA:
        part(sA,
             sB, True)
    cute.copy(0.0, pred=sA)
'''


def test_every_operator_edits_the_parts_of_kernels_alone():
    found = {(one.operator, one.new) for one in mutants(SMALL)}
    assert found == {
        ("off by one", "return 33"),
        ("off by one", "return 31"),
        ("drop", "pass"),
        ("sibling", "cute.wait(sB)"),
        ("sibling", "x = sB[None, k]"),
        ("swap", "x = sA[k, None]"),
        ("index", "x = sA[None, 0]"),
        ("sibling", "x = sA[k, 0]"),
        ("swap", "x = sB[0, k]"),
        ("index", "x = sB[0, 0]"),
        ("off by one", "x = sB[k, 1]"),
        ("off by one", "x = sB[k, -1]"),
        ("guard", "if True:"),
        ("guard", "if True and sA:"),
        ("guard", "if config.threads() < 1 and True:"),
        ("comparison", "if config.threads() <= 1 and sA:"),
        ("off by one", "if config.threads() < 2 and sA:"),
        ("off by one", "if config.threads() < 0 and sA:"),
        ("sibling", "if config.threads() < 1 and sB:"),
        ("swap", "part(sB, sA"),
        ("swap", "True, sB)"),
        ("sibling", "part(sB,"),
        ("sibling", "sA, True)"),
        ("constant", "sB, False)"),
        ("constant", "cute.copy(1.0, pred=sA)"),
        ("guard", "cute.copy(0.0, )"),
        ("sibling", "cute.copy(0.0, pred=sB)"),
    }
    assert len([one for one in mutants(SMALL) if one.operator == "drop"]) == 5  # both of `x`, and three calls


def test_every_mutant_is_another_text_that_parses():
    source = catalog.without_lab(catalog.find(HOPPER).file.read_text(encoding="utf-8"))
    found = mutants(source)
    texts = {one.of(source) for one in found}
    assert len(texts) == len(found) > 300
    assert {text.count("\n") for text in texts} == {source.count("\n")}
    for one in found[::7]:
        ast.parse(one.of(source))
        assert one.of(source).splitlines()[one.line - 1].strip() == one.new


def test_a_sample_repeats_has_every_operator_and_can_grow():
    source = catalog.find(HOPPER).file.read_text(encoding="utf-8")
    assert mutate.drawn(source, 24, 1) == mutate.drawn(source, 40, 1)[:24] != mutate.drawn(source, 24, 2)
    assert {one.operator for one in mutate.drawn(source, 8, 1)} == {one.operator for one in mutants(source)}


@pytest.mark.parametrize("name", [HOPPER])
@pytest.mark.parametrize(
    ("edit", "outcome", "said"),
    [
        (In("store").replace("_.s2g_c.get_slice(_tidx)", "_.s2g_c.get_slice(0 + _tidx)"), "equivalent", "trace"),
        (In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(one)"), "compiler", "NameError"),
        (In("smem_atom").replace("cute.make_swizzle(_, 4, 3)", "cute.make_swizzle(_, 4, 4)"), "layout", "wavefronts"),
        (In("store").replace("cute.elem_less(_[0, _, _], _)", "True"), "product", "a store to row"),
    ],
)
def test_what_becomes_of_a_mutant(tmp_path, name, edit, outcome, said):
    recipe = catalog.find(name)
    source = catalog.without_lab(recipe.file.read_text(encoding="utf-8"))
    whole = mutate._written(source, tmp_path / "original.py")
    subject = mutate.Subject(recipe, whole)
    file = mutate._written(edit.of(source), tmp_path / "mutant.py")
    compared = mutate.Original(whole, tuple(map(subject.trace, subject.configs)))
    *_, (found, by) = mutate.judged(recipe, file, compared)
    assert found == outcome
    assert said in by


def _told(seconds: float, status: int):
    """Yields twice, and then waits and crashes."""
    yield "first"
    yield "second"
    time.sleep(seconds)
    if status:
        os._exit(status)


def test_an_endless_process_has_no_result_a_crashed_one_its_own():
    assert mutate.apart(_told, 0.3, 60, 0) is None
    assert mutate.apart(_told, 20, 0, 1) == "second"
    assert mutate.apart(_told, 20, 0, 0) == "second"


def _row(outcome, *argued):
    row = {"operator": "drop", "function": "f", "line": 3, "old": "a | b", "new": "pass", "text": "pass", "by": ""}
    return row | {"outcome": outcome} | ({"argued": list(argued)} if argued else {})


def test_the_score_leaves_out_what_is_the_same_kernel_or_none():
    rows = [_row("compiler"), _row("equivalent"), _row("survived", "same", "x")]
    assert mutate.score(rows) == ""
    assert mutate.score([*rows, *[_row("product")] * 3, _row("survived", "hole", "y")]) == "75%"
    assert mutate.score([*rows, *[_row("layout")] * 3, _row("out of time"), _row("survived")]) == "60%"


def test_page_says_what_became_of_all_and_shows_every_survivor():
    rows = [_row("compiler"), _row("product"), _row("survived", "slow", "one barrier more")]
    shown = faults.mutation_score({HOPPER: {"device": "of another text", "possible": 9, "mutants": rows}})
    assert f"| [{HOPPER}](recipes/{HOPPER}.md) † | 3 of 9 | 50% | 1 | 1 | 1 |" in shown
    assert "\n† Mutants of the code as it was before it changed.\n" in shown
    assert "| not compiled | by product | right but slow |" in shown  # no column says nothing
    assert f"| {HOPPER}, line 3 | `a \\| b` | `pass` | right but slow | one barrier more |" in shown


def test_the_page_sums_up_the_recipes_of_a_track():
    of = {"device": "x", "possible": 9}
    names = ("hopper/split_k_gemm", HOPPER, "ampere/smem_gemm")
    held = ([_row("product")] * 3, [_row("survived", "hole", "y"), _row("compiler")], [_row("product")])
    records = {name: of | {"mutants": rows} for name, rows in zip(names, held, strict=True)}
    lines = [
        line.split(" | ")[:3]
        for line in faults.mutation_score(records).splitlines()
        if " of 9 " in line or "all" in line
    ]
    assert [line[0].partition("]")[0] for line in lines] == [
        "| [ampere/smem_gemm",
        f"| [{HOPPER}",
        "| [hopper/split_k_gemm",
        "| all of hopper",
    ]
    assert lines[-1][1:] == ["5 of 18", "75%"]


def test_every_survivor_on_record_is_argued():
    records = mutate.recorded()
    assert len({name.partition("/")[0] for name in records}) == 3
    for name, record in records.items():
        left = [row for row in record["mutants"] if row["outcome"] in (mutate.SURVIVED, mutate.LATE)]
        assert [mutate.shown(name, row) for row in left if row.get("argued", [""])[0] not in faults.SIGNS] == []
