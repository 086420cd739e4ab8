"""Faults that only show where numbers differ, corners are reached, and host code is called: each stands for its kind.

A stride in place of another shows in a problem that gives both a value of their own. A raster's last group that is
full, or a group's end above M, shows in a problem that has one. What is to be done before a launch shows in a call.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from mutations import Mutation
from planted import Suite, check_caught

from cookbook.check import levels, subjects
from cookbook.recipe import catalog

FP8, FP8_DECODE, FP8_GROUPED, GROUPED = (
    f"hopper/{name}_gemm" for name in ("fp8", "fp8_decode", "fp8_grouped", "grouped")
)
WGRAD, FUSED, TUNED, STREAM_K = (
    f"hopper/{name}_gemm" for name in ("grouped_wgrad", "fused_epilogue", "tuned", "stream_k")
)
AMAX, CHAIN, CLC, AMPERE = (
    "hopper/amax_epilogue_gemm",
    "hopper/pdl_chain",
    "blackwell/persistent_clc_gemm",
    "ampere/fp8_gemm",
)
ENDS = "end = cutlass.max(start, cutlass.min(scheduler.offs[group], scheduler.tokens))"
ENDS_BUT_FOR_THE_FIRST = f"""end = cutlass.min(scheduler.offs[group], scheduler.tokens)
            if group > 0:
                {ENDS}"""
INSIDE = "cutlass.max(0, cutlass.min(scheduler.offs[group], scheduler.k))"
LONG = "k_tiles = cutlass.max((end - start + config.tile_k - 1) // config.tile_k,"
OTHERS = "cutlass.range(0, segment.sharers - 1, GROUP, unroll=1)"
C_STRIDES = "strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]"
ROOM = "2 * ctas * config.tile_m * config.tile_n, ctas * config.warpgroups"
ALTERNATE = "buffers[i % 2, : m * width]"

STRIDES = [
    Mutation(FP8, "A's scale factors have the stride of B's", "cutlass.Int64(stride_sa)", "cutlass.Int64(stride_sb)"),
    Mutation(FP8, "B's scale factors have the stride of A's", "cutlass.Int64(stride_sb)", "cutlass.Int64(stride_sa)"),
    Mutation(FP8_DECODE, "the strides of the scale factors change places", "stride_n, stride_m = launch",
             "stride_m, stride_n = launch"),
    Mutation(GROUPED, "the groups of B are taken for adjacent", "stride=(ldb, 1, group_stride)",
             "stride=(ldb, 1, n * ldb)"),
    Mutation(WGRAD, "the groups of C are taken for adjacent", "stride=(ldc, 1, group_stride)",
             "stride=(ldc, 1, m * ldc)"),
    Mutation(FP8_GROUPED, "the groups of B are taken for adjacent", "stride=(ldb, 1, group_stride)",
             "stride=(ldb, 1, n * ldb)"),
    Mutation(FP8_GROUPED, "the scale factors of the groups are taken for adjacent", "stride=(1, group_stride_sb)",
             "stride=(1, n)"),
    Mutation(FUSED, "the residual has the row stride of C", "cute.make_layout((m, n), stride=(ldr, 1))",
             "cute.make_layout((m, n), stride=(ldc, 1))", "a bias and a residual"),
]  # fmt: skip
CORNERS = [
    Mutation(TUNED, "a last group that is full is taken for a smaller one",
             "start + config.swizzle_size > raster.along", "start + config.swizzle_size >= raster.along"),
    Mutation(TUNED, "the same, with the groups across C", "start + config.swizzle_size > raster.along",
             "start + config.swizzle_size >= raster.along", "256x160"),
    Mutation(FP8_GROUPED, "an end above M is not cut off", ENDS, "end = cutlass.max(start, scheduler.offs[group])"),
    Mutation(FP8_GROUPED, "an end below 0 is not cut off", ENDS,
             ENDS_BUT_FOR_THE_FIRST),
    Mutation(WGRAD, "an end above K is not cut off", INSIDE, "cutlass.max(0, scheduler.offs[group])"),
    Mutation(WGRAD, "an end below 0 is not cut off", INSIDE, "cutlass.min(scheduler.offs[group], scheduler.k)"),
    Mutation(WGRAD, "the k-tiles of a long group are rounded down", LONG,
             "k_tiles = cutlass.max((end - start) // config.tile_k,"),
    Mutation(STREAM_K, "the last of six sharers is not added", OTHERS,
             "cutlass.range(0, segment.sharers - 2, GROUP, unroll=1)"),
    Mutation(FP8_DECODE, "the weights have the type of A", "types = pB.dtype, pA.dtype,",
             "types = pA.dtype, pA.dtype,"),
    Mutation(FP8_DECODE, "row strides of 32 bits", C_STRIDES, C_STRIDES.replace("64", "32")),
    Mutation(FP8, "the strides of scale factors stay at 32 bits", "stride=(cutlass.Int64(stride_sa),)",
             "stride=(stride_sa,)"),
]  # fmt: skip
WAITS = [
    Mutation(STREAM_K, "more sharers than a warp has lanes", "MOST = 16", "MOST = 64"),
    Mutation(CLC, "an answer is given back before all lanes have read it", "cute.arch.sync_warp()", "pass",
             "dynamic"),
    Mutation(CLC, "the grid is twice as large as fits", "cutlass.min(clusters, sms // config.cluster)",
             "cutlass.min(clusters, sms)", "static"),
]  # fmt: skip
HOST = [
    Mutation(AMAX, "amax is not set to 0", "amax.zero_()", "pass"),
    Mutation(STREAM_K, "half the room for partial sums", ROOM, ROOM.replace("2 * ", "", 1)),
    Mutation(STREAM_K, "half the flags", ROOM, f"{ROOM} // 2"),
    Mutation(CHAIN, "the first kernel loads its weight early", 'if i else "no PDL"', 'if i else "early weight"'),
    Mutation(CHAIN, "one buffer for two", ALTERNATE, ALTERNATE.replace("i % 2", "0")),
]
SUITES = [
    Suite(("product",), [*STRIDES, *CORNERS]),
    Suite(("pipeline",), WAITS),
    Suite(("host",), HOST),
]
PLAIN = "hopper/tma_wgmma_gemm"
CASES = [(suite, fault) for suite in SUITES for fault in suite.faults]


def copied(name: str, root: Path, old: str, new: str) -> subjects.Recipe:
    """A recipe's copied file, with one change."""
    source = catalog.standalone_source(name)
    assert old in source
    file = root / "my_gemm.py"
    file.write_text(source.replace(old, new), encoding="utf-8")
    return subjects.of_file(file, name)


def test_ptx_that_is_not_known_is_not_followed_and_no_fault(tmp_path: Path) -> None:
    """Neither accused nor passed in silence: the two levels that follow the kernel say what they cannot."""
    begin = "    tidx, _, _ = cute.arch.thread_idx()\n"
    recipe = copied(PLAIN, tmp_path, begin, begin + '    cute.arch.inline_ptx("nanosleep.u32 20;")\n')
    chosen = levels.chosen(recipe, (), recipe.dtypes[:1], recipe.targets[:1])
    steps = [step for step in levels.plan(recipe, *chosen) if step.level in ("product", "pipeline")]
    found = [level for step in steps for level in levels.run_step(step)]
    assert {level.level for level in found} == {"product", "pipeline"}
    for level in found:
        assert level.status == "not checked" and level.reason.startswith("not followed: line ")
        assert "nanosleep.u32 20;" in level.reason


@pytest.mark.parametrize(("suite", "fault"), CASES, ids=[str(fault) for _, fault in CASES])
def test_planted_fault_is_caught(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)
