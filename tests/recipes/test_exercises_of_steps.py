"""The exercises of the ladders' first steps: plausible wrong answers, each refused by the level that sees it.

A wrong answer is the page's solution with an edit.
"""

from __future__ import annotations

import pytest
import solutions

from cookbook.check import exercises

AMPERE, SMEM, HOPPER = "ampere/first_gemm", "ampere/smem_gemm", "hopper/first_gemm"
STAGES = "hopper/multistage_gemm"
ROWS, LINES = "ampere/swizzled_gemm", "hopper/swizzled_gemm"  # swizzled: rows for ldmatrix, lines for TMA
SYNC = "        cute.arch.sync_threads()\n"
WAIT = "        warpgroup.wait_group(0)\n"
CLOSE = "        cute.arch.cp_async_commit_group()\n"
LOADS = """\
        if k_tile + stages - 1 < k_tiles:
            load_tile(load_a, k_tile + stages - 1, write)
            load_tile(load_b, k_tile + stages - 1, write)
"""
PIPELINE, PRODUCT = "pipeline: ", "product: "
WRONG = {
    "A is not awaited": (AMPERE, 0, f"        cute.arch.cp_async_wait_group(1)  # A is there\n{SYNC}", "", PIPELINE),
    "B is not awaited": (AMPERE, 0, "wait_group(0)  # B too", "wait_group(1)", PIPELINE),
    "B by this thread alone": (AMPERE, 0, f"  # B too\n{SYNC}", "\n", PIPELINE),
    "B twice, A never": (AMPERE, 0, "load_tile(load_a, k_tile)\n", "load_tile(load_b, k_tile)\n", PIPELINE),
    "no barrier at the end": (AMPERE, 0, f"k], acc)\n{SYNC.rstrip()}", "k], acc)", PIPELINE),
    "a guard of K alone": (
        AMPERE,
        1,
        "cute.elem_less(coords[i], load.shape)",
        "coords[i][1] < load.shape[1]",
        PRODUCT,
    ),
    "the guard of another k-tile": (
        AMPERE,
        1,
        "load.coords[0, None, None, k_tile]",
        "load.coords[0, None, None, 0]",
        "",
    ),
    "the last row is cut off": (
        AMPERE,
        1,
        "cute.elem_less(coords[i], load.shape)",
        "cute.elem_less(coords[i], (load.shape[0] - 1, load.shape[1]))",
        PRODUCT,
    ),
    "the parity of the k-tile": (HOPPER, 0, "i % 2)", "(start + i) % k_tiles % 2)", PRODUCT),
    "it does not turn round": (HOPPER, 0, "(start + i) % k_tiles]", "start + i]", ""),
    "one k-tile twice": (HOPPER, 0, "(start + i) % k_tiles]", "(start + i // 2) % k_tiles]", PRODUCT),
    "no wait for wgmma": (HOPPER, 0, WAIT, "", ""),
    "a group may be left": (HOPPER, 1, "warpgroup.wait_group(0)", "warpgroup.wait_group(1)", ""),
    "no barrier": (HOPPER, 1, f"{WAIT}{SYNC}".rstrip(), WAIT, PIPELINE),
    "the barrier first": (HOPPER, 1, f"{WAIT}{SYNC}".rstrip(), f"{SYNC}{WAIT}", PIPELINE),
    "the stage of the k-tile": (
        STAGES,
        0,
        "stage = k_tile % config.stages",
        "stage = (k_tiles - 1 - k_tile) % config.stages",
        "",
    ),
    "one k-tile too early": (STAGES, 0, "k_tiles - 1 - k_tile]", "k_tiles - k_tile]", ""),
    "each k-tile twice": (STAGES, 0, "k_tiles - 1 - k_tile]", "k_tiles - 1 - k_tile // 2]", PRODUCT),
    "a load too far ahead": (STAGES, 1, "k_tile + config.stages - 1, full", "k_tile + config.stages, full", ""),
    "two groups may be left": (STAGES, 1, "warpgroup.wait_group(1)", "warpgroup.wait_group(2)", PIPELINE),
    "no barrier before the load": (STAGES, 1, f"{SYNC}        load_k_tile", "        load_k_tile", PIPELINE),
    "no question about columns": (ROWS, 0, "if tCcC[(j, half), m, n][1] < mC.shape[1]", "if True", PRODUCT),
    "the row of the first half": (ROWS, 0, "tCcC[(0, half), m, 0]", "tCcC[(0, 0), m, 0]", PRODUCT),
    "coordinates of the first tile": (ROWS, 1, "(mC.shape), tile, where)", "(mC.shape), tile, (0, 0))", PRODUCT),
    "a guard of the rows alone": (ROWS, 1, "cute.elem_less(tCcC[i], mC.shape)", "tCcC[i][0] < mC.shape[0]", PRODUCT),
    "a last group of 8": (LINES, 0, "cutlass.min(tiles_m - first, 8)", "8", ""),
    "down the groups' columns": (
        LINES,
        0,
        "first + inside % height, inside // height",
        "first + inside // tiles_n, inside % height",
        "",
    ),
    "they do not begin at zero": (LINES, 1, "acc.fill(0.0)", "acc.fill(1.0)", PRODUCT),
    "they hold nothing at first": (LINES, 1, "    acc.fill(0.0)\n", "", PRODUCT),
    "from the full height": (SMEM, 0, "height - 1 - down", "rows - 1 - down", PRODUCT),
    "one row too high": (SMEM, 0, "height - 1 - down", "height - down", PRODUCT),
    "it waits for one group less": (SMEM, 1, "wait_group(stages - 2)", "wait_group(stages - 1)", PIPELINE),
    "the group is closed before the loads": (SMEM, 1, f"{LOADS}{CLOSE}", f"{CLOSE}{LOADS}", PIPELINE),
}


def case(said: str):
    name, *_ = WRONG[said]
    return pytest.param(said, marks=pytest.mark.slow if name == SMEM else (), id=said)


@pytest.mark.parametrize("said", map(case, WRONG))
def test_wrong_answers_are_refused_by_the_levels(said, tmp_path):
    name, number, old, new, level = WRONG[said]
    right = solutions.solutions(name)[number]
    assert right.count(old) == 1
    file = tmp_path / "mine.py"
    file.write_text(solutions.copy_with(name, right.replace(old, new)))
    with exercises.opened(file) as (recipe, answers):
        tried = exercises.tried(recipe, answers)
    assert tried[number].status == exercises.WRONG and tried[number].detail.startswith(level), tried[number].line
    assert tried[1 - number].status == exercises.OPEN


def test_two_wrong_answers_of_each_exercise_fail():
    asked = [(name, number) for name, number, *_ in WRONG.values()]
    assert all(
        asked.count((name, number)) >= 2 for name in (AMPERE, ROWS, SMEM, HOPPER, LINES, STAGES) for number in (0, 1)
    )


def test_a_name_that_the_packaged_recipe_lacks_is_told(tmp_path):
    right = solutions.solutions(AMPERE)[1]
    file = tmp_path / "mine.py"
    file.write_text(solutions.copy_with(AMPERE, "MINE = 1", right.replace("k_tile]", "k_tile * MINE]", 1)))
    with exercises.opened(file) as (recipe, answers):
        _, found = exercises.tried(recipe, answers)
    assert found.status == exercises.WRONG and "MINE" in found.detail
