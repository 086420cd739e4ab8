"""The exercises of the ladders' first steps: plausible wrong answers, each refused by the level that sees it.

A wrong answer is the page's solution with an edit.
"""

from __future__ import annotations

import pytest
import solutions

from cookbook.check import exercises
from cookbook.recipe import catalog, tasks

AMPERE, SMEM, HOPPER = "ampere/first_gemm", "ampere/smem_gemm", "hopper/first_gemm"
STAGES = "hopper/multistage_gemm"
ROWS, LINES = "ampere/swizzled_gemm", "hopper/swizzled_gemm"  # swizzled: rows for ldmatrix, lines for TMA
WIDE, FETCH, STEPS, STAY = (f"ampere/{name}_gemm" for name in ("wide_tile", "ldmatrix", "pipelined", "persistent"))
WGMMA, ROLES, SHARED = (f"hopper/{name}_gemm" for name in ("tma_wgmma", "warp_specialized", "multicast"))
TUNED, CHOSEN = "hopper/tuned_gemm", "ampere/tuned_gemm"
STAGED, EPILOGUE = "ampere/multistage_gemm", "ampere/staged_epilogue_gemm"
WIDER, PRODUCER = "hopper/wide_tile_gemm", "hopper/producer_warp_gemm"
TILES, TURNS, LATER = (f"hopper/{name}_gemm" for name in ("persistent", "pingpong", "overlapped_epilogue"))
TMEM, HALVES, PAIR, ASKED = (
    f"blackwell/{name}_gemm" for name in ("tma_tcgen05", "pipelined", "two_cta", "persistent_clc")
)
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
    "it reads the stage after": (STAGED, 0, "a.smem[None, None, k, stage]", "a.smem[None, None, k, 0]", ""),
    "two k-tiles behind": (STAGED, 0, "k_tile + ahead, config", "k_tile + ahead + 1, config", ""),
    "no group is waited for": (STAGED, 1, "cp_async_wait_group(ahead - 1)", "cp_async_wait_group(ahead + 1)", PIPELINE),
    "A lies in B": (EPILOGUE, 0, "smem + cute.size_in_bytes(element, layouts.b)", "smem", ""),
    "A begins where it would behind itself": (EPILOGUE, 0, "(element, layouts.b)", "(element, layouts.a)", ""),
    "no barrier before C is read": (
        EPILOGUE,
        1,
        f"thr.partition_D(sC))\n{SYNC[4:]}",
        "thr.partition_D(sC))\n",
        PIPELINE,
    ),
    "it is the ninth of eight": (WIDER, 0, "config.threads // 32 - 1", "config.threads // 32", PIPELINE),
    "a warp of each warpgroup": (WIDER, 0, "warp_idx == config.threads // 32 - 1", "warp_idx % 4 == 3", PIPELINE),
    "no commit group needs to be done": (WIDER, 1, "wait_group(1)", "wait_group(5)", PIPELINE),
    "given back while it is read": (
        PRODUCER,
        0,
        "wait_group(0)\n        with",
        "wait_group(1)\n        with",
        PIPELINE,
    ),
    "the stage of the next k-tile": (
        PRODUCER,
        0,
        "cta.empty + stage",
        "cta.empty + (k_tile + 1) % config.stages",
        PIPELINE,
    ),
    "no stage is waited for": (
        PRODUCER,
        1,
        "        cute.arch.mbarrier_wait(cta.empty + stage, (k_tile // config.stages + 1) % 2)\n",
        "",
        PIPELINE,
    ),
    "tiles across are tiles down": (WIDE, 0, "mC.shape[1], config.tile_n", "mC.shape[0], config.tile_m", PRODUCT),
    "it still goes down": (WIDE, 0, "cta // tiles_n, cta % tiles_n", "cta % tiles_n, cta // tiles_n", PRODUCT),
    "rows for columns": (WIDE, 1, "mC.shape[0], config.tile_m", "mC.shape[1], config.tile_m", PRODUCT),
    "no group where nothing is loaded": (FETCH, 0, "const_expr(k == 0)", "const_expr(loading and k == 0)", PIPELINE),
    "B goes to the stage after A's": (
        FETCH,
        0,
        "load_tile(load_b, k_tile + stages - 1, write)",
        "load_tile(load_b, k_tile + stages - 1, (write + 1) % stages)",
        "",
    ),
    "all groups may be left": (
        FETCH,
        1,
        "cutlass.Int32(0)\n                    cute.arch.cp_async_wait_group(stages - 2)",
        "cutlass.Int32(0)\n                    cute.arch.cp_async_wait_group(stages)",
        PIPELINE,
    ),
    "one stage is never used": (STEPS, 0, "% config.stages", "% max(1, config.stages - 1)", ""),
    "it stays where it is": (STEPS, 0, "(stage + 1) % config.stages", "stage % config.stages", ""),
    "a wait and no barrier": (STEPS, 1, f"\n{SYNC.rstrip()[4:]}", "", PIPELINE),
    "one number too high": (STAY, 0, "tiles_m * tiles_n - 1 - number", "tiles_m * tiles_n - number", PRODUCT),
    "from the first tile": (STAY, 0, "tiles_m * tiles_n - 1 - number", "number - 1", PRODUCT),
    "two strides": (STAY, 1, "tile + ctas", "tile + 2 * ctas", ""),
    "a release in each iteration": (WGMMA, 0, "if k_tile > 0", "if k_tile >= 0", PIPELINE),
    "no commit group is waited for": (WGMMA, 0, "        warpgroup.wait_group(1)\n", "", PIPELINE),
    "three groups may be left": (WGMMA, 1, "warpgroup.wait_group(1)", "warpgroup.wait_group(3)", PIPELINE),
    "a warp that there is not": (ROLES, 0, "config.producer_threads // 32 - 1:", "config.producer_threads // 32:", ""),
    "all but the first": (
        ROLES,
        0,
        "if warp_idx == producer + config.producer_threads // 32 - 1:",
        "if warp_idx > producer:",
        PIPELINE,
    ),
    "all of them help": (ROLES, 1, "if warp_idx == producer:", "if warp_idx >= producer:", PIPELINE),
    "a row moved by its column": (SHARED, 0, "(row) << rank[0]", "(row) << rank[1]", ""),
    "a column moved by single places": (SHARED, 0, "<< rank[1] * config.cluster_m", "<< rank[1]", ""),
    "the CTAs of one row": (SHARED, 1, "// 32 * sharers", "// 32 * config.cluster_n", PIPELINE),
    "a lap begins late": (TILES, 0, "lap >= config.stages", "lap > config.stages", ""),
    "the stage of two laps": (TILES, 0, "lap - phase * config.stages", "lap", ""),
    "no store is waited for": (TILES, 1, "config.epi_stages - 1, read", "config.epi_stages + 1, read", PIPELINE),
    "it waits for itself": (TURNS, 0, "ORDER_BARRIER + 1 - group", "ORDER_BARRIER + group", PIPELINE),
    "it is handed over after the last tile": (TURNS, 0, "iteration + 1 < count", "iteration < count", PIPELINE),
    "two tiles are left out": (TURNS, 1, "iteration + 1 < count", "iteration + 2 < count", PIPELINE),
    "TMA is told nothing": (
        LATER,
        0,
        '    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA\n',
        "",
        PIPELINE,
    ),
    "one warp alone knows": (
        LATER,
        0,
        "    barrier.arrive_and_wait()  # TMA has read what was in this buffer\n",
        "",
        PIPELINE,
    ),
    "the first tile is not stored": (LATER, 1, "if i > 0:", "if i > 1:", ""),
    "no wait for tcgen05.ld": (TMEM, 0, "        cute.arch.fence_view_async_tmem_load()\n", "", ""),
    "rows of another subtile": (TMEM, 0, "tDsC[None, None, None, 0, i]", "tDsC[None, None, None, 0, step]", PRODUCT),
    "nothing is added": (TMEM, 1, "Field.ACCUMULATE, True", "Field.ACCUMULATE, False", PRODUCT),
    "given back after the first": (HALVES, 0, "if cutlass.const_expr(i == 0)", "if cutlass.const_expr(i == 1)", ""),
    "the first subtile is left out": (HALVES, 0, "(subtiles - 1, -1, -1)", "(subtiles - 1, 0, -1)", ""),
    "it is full before it is free": (
        HALVES,
        1,
        "    cta.acc_pipe.producer_acquire(fill)\n",
        "    cta.acc_pipe.producer_commit(fill)\n",
        "",
    ),
    "the next number": (PAIR, 0, "number += work.step", "number += 1", ""),
    "the second tile first": (PAIR, 0, "number = work.first", "number = work.first + work.step", ""),
    "the other CTA of the pair": (PAIR, 1, "place.half == 0", "place.half == 1", ""),
    "no fence before it is given back": (
        ASKED,
        0,
        '        cute.arch.fence_proxy("async.shared", space="cta")\n',
        "",
        PIPELINE,
    ),
    "it is not given back": (
        ASKED,
        0,
        "        with cute.arch.elect_one():\n            asked.consumer_release(read)\n",
        "",
        PIPELINE,
    ),
    "an answer is read before it has come": (ASKED, 1, "        asked.consumer_wait(read)\n", "", PIPELINE),
    "as many stages as there is room for": (
        TUNED,
        0,
        ", most)",
        ", 99)",
        "sized(64, 64, True, False, 1, 2): got Config(",
    ),
    "buffers of one warpgroup": (TUNED, 0, "256 * epi_stages", "128 * epi_stages", ""),
    "waves of one CTA each": (
        TUNED,
        1,
        "cost(VARIANTS[name], m, n, k, sms)",
        "VARIANTS[name].tile_m * VARIANTS[name].tile_n",
        "choose(",
    ),
    "waves are not whole": (
        CHOSEN,
        0,
        "-(-(-(-m // config.tile_m) * -(-n // config.tile_n)) // sms)",
        "-(-m // config.tile_m) * -(-n // config.tile_n) // sms",
        "waves(",
    ),
    "tiles are not whole": (
        CHOSEN,
        0,
        "-(-(-(-m // config.tile_m) * -(-n // config.tile_n)) // sms)",
        "-(-m * n // (config.tile_m * config.tile_n * sms))",
        "waves(",
    ),
    "fewest waves, and no traffic": (
        CHOSEN,
        1,
        "cost(VARIANTS[name], m, n, k, sms)",
        "waves(VARIANTS[name], m, n, sms)",
        "choose(",
    ),
    "it waits for one group less": (SMEM, 1, "wait_group(stages - 2)", "wait_group(stages - 1)", PIPELINE),
    "the group is closed before the loads": (SMEM, 1, f"{LOADS}{CLOSE}", f"{CLOSE}{LOADS}", PIPELINE),
}


def cases():
    """Quick are the first of each page, and the first of each track that a level refuses; none of LONG."""
    seen = set()
    for said, (name, _, _, _, level) in WRONG.items():
        kinds = set() if name in solutions.LONG else {name, (name.partition("/")[0], level)}
        yield pytest.param(said, marks=() if kinds - seen else pytest.mark.slow, id=said)
        seen |= kinds


@pytest.mark.parametrize("said", list(cases()))
def test_wrong_answers_are_refused_by_the_levels(said, tmp_path):
    name, number, old, new, level = WRONG[said]
    right = solutions.solutions(name)[number]
    assert right.count(old) == 1
    file = tmp_path / "mine.py"
    file.write_text(solutions.copy_with(name, right.replace(old, new)))
    with exercises.opened(file) as (recipe, answers):
        tried = exercises.tried(recipe, answers)
    assert recipe == name and tried[number].status == exercises.WRONG and tried[number].detail.startswith(level), tried[
        number
    ].line
    assert tried[1 - number].status == exercises.OPEN


def test_two_wrong_answers_of_each_exercise_fail():
    """Of a bug to find that is one row, the fault itself is one: tests/check/test_exercises.py tries it."""
    asked = [(name, number) for name, number, *_ in WRONG.values()]
    assert all(
        asked.count((name, number)) >= 2 for name in (AMPERE, ROWS, SMEM, HOPPER, LINES, STAGES) for number in (0, 1)
    )
    rows = [r.name for r in catalog.recipes() if tasks.tasks(r.file.read_text(encoding="utf-8"))]
    assert all(asked.count((name, 0)) >= 2 and asked.count((name, 1)) >= 1 for name in rows)


def test_every_step_of_a_ladder_has_exercises():
    """A page without a kernel of its own, on the way to a later one, is no step: it may have some."""
    steps = [r for r in catalog.recipes() if r.track in ("ampere", "hopper", "blackwell") and not r.aside]
    asked = [r for r in steps if solutions.has_some(r.name) or hasattr(catalog.load(r.name), "EXERCISES")]
    assert [r.name for r in steps if (r.product.is_gemm or r.measures) and r not in asked] == []


def test_a_name_that_the_packaged_recipe_lacks_is_told(tmp_path):
    right = solutions.solutions(AMPERE)[1]
    file = tmp_path / "mine.py"
    file.write_text(solutions.copy_with(AMPERE, "MINE = 1", right.replace("k_tile]", "k_tile * MINE]", 1)))
    with exercises.opened(file) as (recipe, answers):
        _, found = exercises.tried(recipe, answers)
    assert found.status == exercises.WRONG and "MINE" in found.detail
