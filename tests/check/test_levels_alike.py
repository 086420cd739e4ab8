"""Faults that only show where numbers differ, corners are reached, and host code is called: each stands for its kind.

A stride in place of another shows in a problem that gives both a value of their own. A raster's last group that is
full, or a group's end above M, shows in a problem that has one. What is to be done before a launch shows in a call.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from edits import In
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
STRIDES = [
    Mutation(
        FP8,
        "A's scale factors have the stride of B's",
        In("scale_tensors").replace("cutlass.Int64(_sizes.stride_sa)", "cutlass.Int64(_sizes.stride_sb)"),
    ),
    Mutation(
        FP8,
        "B's scale factors have the stride of A's",
        In("scale_tensors").replace("cutlass.Int64(_sizes.stride_sb)", "cutlass.Int64(_sizes.stride_sa)"),
    ),
    Mutation(
        FP8_DECODE,
        "the strides of the scale factors change places",
        In("gemm").replace("_, _, _stride_n, _stride_m = _launch", "_, _, _stride_m, _stride_n = _launch"),
    ),
    Mutation(
        GROUPED,
        "the groups of B are taken for adjacent",
        In("gemm")
        .where("_, (_, _n, _), _, _, _, _ = _")
        .replace("cute.make_layout(_, stride=(_ldb, 1, _apart))", "cute.make_layout(_, stride=(_ldb, 1, _n * _ldb))"),
    ),
    Mutation(
        WGRAD,
        "the groups of C are taken for adjacent",
        In("gemm")
        .where("(_m, _, _), _, _, _, _ = _")
        .replace("cute.make_layout(_, stride=(_ldc, 1, _apart))", "cute.make_layout(_, stride=(_ldc, 1, _m * _ldc))"),
    ),
    Mutation(
        FP8_GROUPED,
        "the groups of B are taken for adjacent",
        In("gemm")
        .where("(_, _n, _), _, _, _, _, _ = _")
        .replace("cute.make_layout(_, stride=(_ldb, 1, _apart))", "cute.make_layout(_, stride=(_ldb, 1, _n * _ldb))"),
    ),
    Mutation(
        FP8_GROUPED,
        "the scale factors of the groups are taken for adjacent",
        In("gemm")
        .where("(_, _n, _), _, _, _, _, _ = _")
        .replace("cute.make_layout(_, stride=(1, _))", "cute.make_layout(_, stride=(1, _n))"),
    ),
    Mutation(
        FUSED,
        "the residual has the row stride of C",
        In("make_operands").replace(
            "cute.assume(_sizes.stride_residual, divby=8)", "cute.assume(_sizes.strides[2], divby=8)"
        ),
        "a bias and a residual",
    ),
]
FULL = In("work_tile").replace("_ + _.swizzle_size > _.along", "_ + _.swizzle_size >= _.along")
CORNERS = [
    Mutation(TUNED, "a last group that is full is taken for a smaller one", FULL),
    Mutation(TUNED, "the same, with the groups across C", FULL, "256x160"),
    Mutation(
        FP8_GROUPED,
        "an end above M is not cut off",
        In("search").replace("cutlass.min(_s.offs[_group], _s.tokens)", "_s.offs[_group]"),
    ),
    Mutation(
        FP8_GROUPED,
        "an end below 0 is not cut off",
        In("search").replace(
            "_end = cutlass.max(_start, cutlass.min(_s.offs[_group], _s.tokens))",
            """
            _end = cutlass.min(_s.offs[_group], _s.tokens)
            if _group > 0:
                _end = cutlass.max(_start, cutlass.min(_s.offs[_group], _s.tokens))
            """,
        ),
    ),
    Mutation(
        WGRAD,
        "an end above K is not cut off",
        In("end_of").replace("cutlass.min(_s.offs[_group], _s.k)", "_s.offs[_group]"),
    ),
    Mutation(
        WGRAD,
        "an end below 0 is not cut off",
        In("end_of").replace(
            "cutlass.max(0, cutlass.min(_s.offs[_group], _s.k))", "cutlass.min(_s.offs[_group], _s.k)"
        ),
    ),
    Mutation(
        WGRAD,
        "the k-tiles of a long group are rounded down",
        In("work_tile").replace("_end - _start + _.tile_k - 1", "_end - _start"),
    ),
    Mutation(
        STREAM_K,
        "the last of six sharers is not added",
        In("add_others").replace(
            "cutlass.range(0, _.sharers - 1, GROUP, ...)", "cutlass.range(0, _.sharers - 2, GROUP, ...)"
        ),
    ),
    Mutation(
        FP8_DECODE,
        "the weights have the type of A",
        In("gemm").replace("wgmma_fp8(_pB.dtype, _pA.dtype, _)", "wgmma_fp8(_pA.dtype, _pA.dtype, _)"),
    ),
    Mutation(
        FP8_DECODE,
        "row strides of 32 bits",
        In("Launch").replace(
            "tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]", "tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]"
        ),
    ),
    Mutation(
        FP8,
        "the strides of scale factors stay at 32 bits",
        In("scale_tensors").replace("cutlass.Int64(_sizes.stride_sa)", "_sizes.stride_sa"),
    ),
]
WAITS = [
    Mutation(STREAM_K, "more sharers than a warp has lanes", In().replace("MOST = 16", "MOST = 64")),
    Mutation(
        CLC,
        "an answer is given back before all lanes have read it",
        In("next_block").drop("cute.arch.sync_warp()"),
        "dynamic",
    ),
    Mutation(
        CLC,
        "the grid is twice as large as fits",
        In("gemm").replace("_sms // _.cluster", "_sms"),
        "static",
    ),
]
HOST = [
    Mutation(
        AMAX,
        "amax is not set to 0",
        In().replace("Argument('amax', _a, _b, _c, zeroed=True)", "Argument('amax', _a, _b, _c, zeroed=False)"),
    ),
    Mutation(STREAM_K, "half the room for partial sums", In("prepare").replace("2 * _ctas", "_ctas")),
    Mutation(STREAM_K, "half the flags", In("prepare").replace("_ctas * _c.warpgroups", "_ctas * _c.warpgroups // 2")),
    Mutation(
        CHAIN,
        "the first kernel loads its weight early",
        In("chain").replace("_ if _ else 'no PDL'", "_ if _ else 'early weight'"),
    ),
    Mutation(CHAIN, "one buffer for two", In("between").replace("_ % 2", "0")),
]
SUITES = [
    Suite(("product",), [*STRIDES, *CORNERS]),
    Suite(("pipeline",), WAITS),
    Suite(("host",), HOST),
]
PLAIN = "hopper/tma_wgmma_gemm"
CASES = [(suite, fault) for suite in SUITES for fault in suite.faults]


def copied(name: str, root: Path, edit: In) -> subjects.Recipe:
    """A recipe's copied file, edited."""
    file = root / "my_gemm.py"
    file.write_text(edit.of(catalog.standalone_source(name)), encoding="utf-8")
    return subjects.of_file(file, name)


def test_ptx_that_is_not_known_is_not_followed_and_no_fault(tmp_path: Path) -> None:
    """Neither accused nor passed in silence: the two levels that follow the kernel say what they cannot."""
    unknown = In("store").insert_after("_ = cute.arch.thread_idx()", "cute.arch.inline_ptx('nanosleep.u32 20;')")
    recipe = copied(PLAIN, tmp_path, unknown)
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
