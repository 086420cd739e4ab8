"""Levels "banks" and "cost": what the kernel's own accesses take, which of them may, and what a cluster moves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from edits import In
from mutations import Mutation, mutant

from cookbook.check import compiled, levels, pipeline
from cookbook.check.banks import Count, Counter, counted
from cookbook.check.cost import Tally, total
from cookbook.check.traffic import Both, judged
from cookbook.publish.words import describe
from cookbook.recipe import catalog
from cookbook.simulate.lines import Line

CONFLICTING, STAGED, BY_TMA = "ampere/first_gemm", "hopper/persistent_gemm", "hopper/first_gemm"
BY_COMMENT = "hopper/fp8_grouped_gemm"
GEMMS = [recipe for recipe in catalog.recipes() if recipe.product.is_gemm]
FAULTS = [
    Mutation(
        STAGED,
        "no buffer has a swizzle",
        In("allocate_tiles").replace("_smem.allocate_tensor(..., swizzle=_x.inner)", "_smem.allocate_tensor(...)"),
    )
]


def of(name: str, **given) -> list[levels.Level]:
    recipe = catalog.find(name)
    return levels.traffic_levels(levels.Runs(recipe, recipe.dtypes[0], recipe.targets[:1], **given))


def lines_of(module, arch: str = "sm_90a"):
    config = compiled.config_for(module, arch)
    run = pipeline.Run(module, arch, compiled.cutlass_dtype("bfloat16"), config, counter=Counter)
    return judged(module, config, counted(run.first))


def test_what_a_recipe_says_of_its_copies_is_no_failure():
    banks, moved = of(CONFLICTING)
    (why,) = {words for _, words in catalog.load(CONFLICTING).EXPECTED_EXCESS.values()}
    assert (banks.level, banks.status) == (levels.BANKS, "passed") and describe(banks).count(why) == 2
    assert (moved.level, moved.status) == (levels.COST, "passed") and "mma.sync" in describe(moved)


def test_a_conflict_that_it_does_not_name_fails_with_the_line(monkeypatch):
    monkeypatch.setattr(catalog.load(CONFLICTING), "EXPECTED_EXCESS", {"s2r_a": (27, "too few")})
    banks, _ = of(CONFLICTING)
    assert banks.status == "failed" and banks.reason.count(" of mainloop: ") == 2
    assert "512 x ldmatrix of 16 bytes take 16384 wavefronts, at best 2048 (cute.copy(" in banks.reason


@pytest.mark.parametrize(
    ("comment", "ok", "why"),
    [
        ("", False, "wavefronts, at best"),
        ("# cookbook: allow bank-conflict, once a tile", True, "once a tile"),
        ("# cookbook: allow bank-conflict", False, "the comment that allows it has no reason"),
        ("# cookbook: allow race, of another rule", False, "wavefronts, at best"),
    ],
)
def test_a_comment_allows_a_line_if_it_gives_a_reason(comment: str, ok: bool, why: str, tmp_path: Path):
    file = Path(mutant(FAULTS[0], tmp_path).__file__)
    line = next(one.count.line for one in lines_of(levels.subjects.load_file(file)) if not one.ok)
    text = file.read_text().splitlines()
    text[line - 1] += f"  {comment}"
    file.with_name("allowed.py").write_text("\n".join(text))
    (found,) = lines_of(levels.subjects.load_file(file.with_name("allowed.py")))
    assert found.ok is ok and why in found.why


def test_a_recipe_s_own_comment_is_told():
    banks = [level for level in of(BY_COMMENT) if level.level == levels.BANKS]
    assert banks and all(
        level.status == "passed" and "lanes behind the last factor" in describe(level) for level in banks
    )


def test_a_kernel_that_touches_no_shared_memory_is_told():
    banks, _ = of(BY_TMA)
    assert banks.status == "passed" and describe(banks) == "shared memory is touched by TMA and the tensor cores alone"


def test_one_run_has_the_cost_that_a_run_for_it_alone_has():
    module = catalog.load(STAGED)
    run = pipeline.Run(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), module.CONFIG, counter=Both)
    found = total(run.warps(run.problems[0], kind=Tally))
    assert total(run.first) == found
    moved = of(STAGED)[1]
    assert moved.figures["bytes"]["global to shared"] > 0 and moved.figures["ctas"] == found.ctas


@pytest.mark.slow
@pytest.mark.parametrize("recipe", GEMMS, ids=lambda r: r.name)
def test_every_kernel_takes_what_its_recipe_says(recipe):
    for majors in recipe.majors:
        assert [level for level in of(recipe.name, majors=majors) if level.status != "passed"] == []


def test_a_conflict_of_plain_stores_says_its_lanes():
    lanes = tuple(128 * lane for lane in range(32))
    one = Count(
        Line(1), "st", 4, instructions=1, wavefronts=32, at_most=32, ideal=1, worst=31, avoidable=31, lanes=lanes
    )
    (line,) = judged(catalog.load(STAGED), None, [one])
    assert not line.ok and "lanes 0, 1, 2" in line.why and "ask bank 0 for 32 words" in line.why
