"""The FP8 GEMM with block-wise scales where there is no GPU: planted faults, the choice, the host side, the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from edits import In
from mutations import Mutation
from planted import caught, run_of
from pretend import pretended

from cookbook.check import pipeline, scaled
from cookbook.check import product as followed
from cookbook.check.model.fp8 import simulate_fp8
from cookbook.check.product.problems import case_of
from cookbook.recipe import catalog

NAME = "hopper/fp8_blockwise_gemm"
BIG, SMALL, WIDE = "256 x 128", "128 x 64", "128 x 192"
E4M3 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


# --- planted faults ------------------------------------------------------------------------------------------

NOTHING = "what nothing has written"
# The producers of PipelineAsync arrive by an ordinary mbarrier.arrive.
AT_ONCE = In("set_up").replace("pipeline.PipelineCpAsync", "pipeline.PipelineAsync")
BEFORE_LAST = In("fetch_scales").replace(
    "if _lane < _config.spans: ...\n_pipe.producer_commit(_write)",
    "_pipe.producer_commit(_write)\nif _lane < _config.spans: ...",
)
FAULTS = [
    (
        "product",
        "every tile takes its factors from the first k-tile on",
        In("fetch_scales").replace("_j + (_i & 1) * (_k_tiles - 1 - 2 * _j)", "_j"),
        "scale factors of A",
        BIG,
    ),
    (
        "product",
        "the factor of B is of another column",
        In("fetch_scales").replace("(_n * _config.tile_n + _lane * _config.span) // BLOCK", "_n"),
        "scale factors of B[1, 9]",
        SMALL,
    ),
    (
        "product",
        "all columns of a wide tile have one factor of B",
        In("promote").replace("_rS[2 * _config.halves + _span]", "_rS[2 * _config.halves]"),
        "scale factors of B[",
        WIDE,
    ),
    (
        "product",
        "the spans of a wide tile have the factor of its first column",
        In("fetch_scales").replace("_n * _config.tile_n + _lane * _config.span", "_n * _config.tile_n"),
        "scale factors of B[",
        WIDE,
    ),
    (
        "product",
        "the factor of the last span is not copied",
        In("fetch_scales").replace("_lane < _config.spans", "_lane < _config.spans - 1"),
        "none",
        WIDE,
    ),
    (
        "product",
        "a block is added to the one before",
        In("issue_half").replace("_main.overwrite if _k == 0 else _main.accumulate", "_main.accumulate"),
        NOTHING,
        SMALL,
    ),
    (
        "pipeline",
        "a stage is given back after its first half",
        In("multiply_k_tile").replace("_config.halves - 1", "0"),
        "",
        BIG,
    ),
    (
        "pipeline",
        "factors are read before they are there",
        In("read_scales").drop("_scales.pipe.consumer_wait(_state)"),
        "race",
        SMALL,
    ),
    ("pipeline", "a lane arrives before its copies are there", AT_ONCE, "race", BIG),
    ("pipeline", "a lane arrives when all copies but the last are there", BEFORE_LAST, "race", BIG),
    ("pipeline", "no lane arrives", In("fetch_scales").drop("_pipe.producer_commit(_write)"), "deadlock", BIG),
    (
        "pipeline",
        "factors are copied into a stage that is read",
        In("fetch_scales").drop("_pipe.producer_acquire(_write)"),
        "race",
        BIG,
    ),
    (
        "pipeline",
        "a stage of factors is not given back",
        In("read_scales").drop("_scales.pipe.consumer_release(_state)"),
        "deadlock",
        BIG,
    ),
    (
        "pipeline",
        "a factor is read when its stage is given back",
        In("read_scales")
        .where("_rS[2 * _config.halves + _span] = _scales.sS[_config.tile_m + _span, _state.index]")
        .insert_after(
            "_scales.pipe.consumer_release(_state)",
            "_rS[2 * _config.halves] = _scales.sS[_config.tile_m, _state.index]",
        ),
        "race",
        BIG,
    ),
    (
        "pipeline",
        "an arrival more than lanes is needed",
        In("set_up").replace(
            "pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)",
            "pipeline.CooperativeGroup(pipeline.Agent.Thread, 33)",
        ),
        "deadlock",
        BIG,
    ),
    (
        "pipeline",
        "an arrival fewer than lanes is needed",
        In("set_up").replace(
            "pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)",
            "pipeline.CooperativeGroup(pipeline.Agent.Thread, 31)",
        ),
        "arrivals",
        BIG,
    ),
    ("pipeline", "a release more than threads is needed", In("set_up").replace("2 * 128", "257"), "deadlock", BIG),
    ("pipeline", "a release fewer than threads is needed", In("set_up").replace("2 * 128", "255"), "arrivals", BIG),
    (
        "product",
        "no lane of a small tile arrives",
        In("fetch_scales").drop("_pipe.producer_commit(_write)"),
        "warp 0 of CTA 0 waits for ever",
        SMALL,
    ),
]


@pytest.mark.parametrize(("level", "what", "edit", "by", "variant"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, edit, by, variant, tmp_path):
    found = caught(Mutation(NAME, what, edit, variant), (level,), tmp_path)
    assert found.level == level and found.by.startswith(by)


# --- the choice ----------------------------------------------------------------------------------------------


def test_a_few_rows_get_small_tiles_and_many_get_large_ones(module):
    assert module.choose(200, 4096, 7168, 132) == SMALL
    assert {module.choose(m, 7168, 16384, 132) for m in (16, 64, 128)} == {"128 x 64 in 4"}  # 112 tiles
    assert module.choose(128, 4096, 7168, 132) == "128 x 32"  # 128 tiles where 64 columns make 64
    assert {module.choose(m, 4096, 7168, 132) for m in (16, 64)} == {"128 x 32"}  # no row outside of A is loaded
    assert {module.choose(m, n, k, 132) for m, n, k in ((4096, 7168, 2048), (4096, 4096, 4096))} == {BIG}


@pytest.mark.parametrize(
    ("variant", "rows"),
    [
        ("128 x 64 in 4", {1: 32, 32: 32, 33: 64, 64: 64, 65: 0}),  # eight rows for each CTA that shares A
        ("128 x 64", {1: 16, 16: 16, 17: 32, 64: 64, 128: 0}),
        ("128 x 32", {1: 16, 17: 32, 33: 64, 65: 0}),
    ],
)
def test_as_few_rows_of_a_are_loaded_as_exist(module, variant, rows):
    found = {m: module.boxed(module.VARIANTS[variant], m) for m in rows}
    assert {m: config.box_m for m, config in found.items()} == rows
    for config in found.values():
        assert config.stage_bytes == ((config.box_m or 128) + config.tile_n) * 128
        assert config.smem_bytes == module.VARIANTS[variant].smem_bytes


def test_a_box_has_an_atom_for_each_cta_that_shares_it(module):
    for box in (16, 48, 128):
        with pytest.raises(ValueError, match=rf"box_m: got {box}; needed one of \(0, 16, 32, 64\), eight rows or more"):
            replace(module.VARIANTS["128 x 64 in 4"], box_m=box)


def computed(module, config, m):
    """What the kernel of a configuration computes of `m` rows: in words, empty if it is right."""
    run = run_of(module, catalog.find(NAME), "sm_90a", config)
    shape = m, 2 * config.tile_n * config.cluster_n + 24, (config.stages + 2) * 128 + 24
    return " ".join(followed.compute(run, case_of(module, config, shape, config.cluster)).faults)


@pytest.mark.parametrize(("variant", "box"), [("128 x 64 in 4", 32), ("128 x 64", 16), ("128 x 32", 64), (WIDE, 16)])
def test_a_kernel_with_a_box_is_right(module, variant, box):
    """What lies in the rest of a stage reaches no row of C, and nothing waits for bytes that do not come."""
    config = replace(module.VARIANTS[variant], box_m=box)
    assert [computed(module, config, m) for m in (1, box)] == ["", ""]
    run = run_of(module, catalog.find(NAME), "sm_90a", config)
    assert not [fault for one in pipeline.explored(run) for fault in one.faults]


def test_a_row_past_the_box_is_missed(module):
    assert "needed" in computed(module, replace(module.VARIANTS["128 x 32"], box_m=16), 17)


def test_wide_tiles_are_chosen_where_they_take_fewer_clocks(module):
    """Timed on an H100: the tile is the fastest of the two, or within a percent of it."""
    assert module.choose(4096, 2112, 7168, 132) == WIDE  # 3 waves for 3
    large = [
        (8192, 8192, 8192),
        (4096, 7168, 16384),
        (4096, 24576, 1536),
        (4096, 32768, 512),
        (4096, 4096, 7168),
        (4096, 7168, 2048),
    ]
    assert {module.choose(*shape, 132) for shape in large} == {BIG}


def test_a_span_lies_in_one_block_of_b(module):
    spans = {n: (module.Config(tile_m=128, tile_n=n, epi_n=32, epi_stages=1).span) for n in (32, 96, 128, 160, 192)}
    assert spans == {32: 32, 96: 32, 128: 128, 160: 32, 192: 64}
    for tile_n, span in spans.items():
        firsts = range(0, 128 * tile_n, span)  # of each span of as many tiles
        assert all(first // 128 == (first + span - 1) // 128 for first in firsts)
    assert [module.VARIANTS[name].spans for name in (BIG, WIDE, SMALL)] == [1, 3, 1]
    with pytest.raises(ValueError, match="tile_n: got 100; needed a multiple of 8: columns that share a scale factor"):
        module.Config(tile_n=100)


# --- the model: which accumulators a factor multiplies -------------------------------------------------------


def test_a_factor_belongs_to_its_block(module):
    """Another factor of one block of a row of A changes that row; of one block of B, the columns of that block."""
    import cutlass

    a, b = scaled.integers(140, 288, "fp8_blockwise", 1), scaled.integers(270, 288, "fp8_blockwise", 2, 128)
    before = simulate_fp8(module, a, b, cutlass.Float16, module.CONFIG)
    exact = a.values().astype(np.float64) @ b.values().astype(np.float64).T
    assert np.array_equal(before, exact.astype(np.float16).astype(np.float32))
    a.scales[137, 2], b.scales[1, 0] = 4.0, 8.0
    after = simulate_fp8(module, a, b, cutlass.Float16, module.CONFIG)
    exact = a.values().astype(np.float64) @ b.values().astype(np.float64).T
    assert np.array_equal(after, exact.astype(np.float16).astype(np.float32))
    changed = after != before
    changed[137], changed[:, 128:256] = False, False
    assert not changed.any()


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=32, n=200, k=272):
    """Scale factors as torch wants them: those of a block of K in a row, columns of those of B a multiple of 4 long."""
    a, b = torch.zeros(m, k).to(E4M3), torch.zeros(n, k).to(E4M3).T
    return {"a": a, "b": b, "scale_a": torch.ones(-(-k // 128), m).T, "scale_b": torch.ones(-(-n // 128), 4).T}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_what_is_launched(ours):
    given, out = operands(), torch.empty(32, 200, dtype=torch.bfloat16)
    assert ours.matmul(**given, out=out, variant=BIG) is out
    ours.matmul(**given | {"scale_a": torch.ones(32, 3), "scale_b": torch.ones(2, 3).T}, out=out, variant=SMALL)
    (((arch, _, config), first), ((_, _, small), second)) = ours.launched
    assert (arch, config.tile_m, config.gpc_aware, small.tile_m) == ("", 256, False, 128)
    assert (config.box_m, small.box_m) == (32, 32)
    assert first[:5] == tuple(x.data_ptr() for x in (given["a"], given["b"], out, given["scale_a"], given["scale_b"]))
    assert first[5:] == ((0, (32, 200, 272), (272, 272, 200), 1, (1, 32), (1, 4)), 7)
    assert second[5] == (0, (32, 200, 272), (272, 272, 200), 2, (3, 1), (1, 3))


def test_out_must_not_overlap_what_is_read(ours):
    memory = torch.zeros(2 * 32 * 200)
    out = memory.view(torch.bfloat16)[: 32 * 200].view(32, 200)
    for name, x in (("scale_a", memory[:96].view(3, 32).T), ("scale_b", memory[3000:3008].view(2, 4).T)):
        with pytest.raises(ValueError, match=f"out: got memory that overlaps {name}; needed memory of its own"):
            ours.matmul(**operands() | {name: x}, out=out)
    assert not ours.launched


WRONG = [
    (
        {"a": torch.zeros(32, 272).to(torch.float8_e5m2)},
        TypeError,
        "a: got torch.float8_e5m2; needed torch.float8_e4m3fn",
    ),
    ({"scale_a": 1.0}, TypeError, "scale_a: got float; needed a torch.Tensor"),
    ({"scale_a": torch.ones(32, 2)}, ValueError, r"scale_a: got shape \(32, 2\); needed \(32, 3\)"),
    ({"scale_a": torch.ones(32, 3).bfloat16()}, TypeError, "scale_a: got torch.bfloat16; needed torch.float32"),
    (
        {"scale_a": torch.ones(64, 6)[::2, ::2]},
        ValueError,
        r"scale_a: got strides \(12, 2\); needed one of them 1: lines",
    ),
    ({"scale_b": torch.ones(2, 3)}, ValueError, r"scale_b: got shape \(2, 3\); needed \(3, 2\), or \(4, 2\)"),
    ({"scale_b": torch.ones(3, 200)}, ValueError, r"scale_b: got shape \(3, 200\); needed \(3, 2\), or \(4, 2\)"),
    (
        {"variant": "fast"},
        ValueError,
        "variant: got 'fast'; needed one of auto, 256 x 128, 128 x 192, 128 x 64 in",
    ),
    ({"out_dtype": torch.float32}, TypeError, "out_dtype: got torch.float32; needed torch.float16 or torch.bfloat16"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


def test_factors_that_lie_too_far_apart_are_refused():
    far = torch.empty_strided((32, 3), (2**27, 1), device="meta")
    with pytest.raises(ValueError, match="scale_a: got 4160749571 elements from first to last; needed at most"):
        catalog.load(NAME).in_lines("scale_a", far, {})


@pytest.mark.parametrize("variant", [BIG, WIDE, "128 x 64 in 4", SMALL, "128 x 32"])
def test_a_gpu_of_few_sms_has_room_for_a_cluster(variant):
    """The levels follow launches on one SM and on two."""
    module = catalog.load("hopper/fp8_blockwise_gemm")
    assert all(module.cost(module.VARIANTS[variant], 200, 333, 288, sms) > 0 for sms in (1, 2, 3, 132))
