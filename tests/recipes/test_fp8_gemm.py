"""The FP8 GEMM where there is no GPU: swizzle, configuration, race, host side, and the model of its sums."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from edits import In
from mutations import Mutation
from planted import caught
from pretend import pretended

from cookbook.check import compiled, pipeline
from cookbook.layouts import evaluate
from cookbook.model.fp8_sums import predicted_error, share_lost, summed
from cookbook.model.small_floats import decode, encode
from cookbook.recipe import catalog
from cookbook.recipe.operands import along
from cookbook.swizzle import Swizzle

NAME = "hopper/fp8_gemm"
E4M3 = torch.float8_e4m3fn
FAST, SEVEN = "128x256", "128x224"  # seven epilogue subtiles, in one buffer


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


# --- the swizzle ---------------------------------------------------------------------------------------------


def test_swizzle_is_the_same_in_bytes_and_another_in_elements():
    """The page's table: S<3,4,3> of bytes is S<3,4,3>, S<3,3,3>, S<3,2,3> of 8-, 16- and 32-bit elements."""
    import cutlass

    def atom():
        return catalog.load("hopper/tma_wgmma_gemm").smem_atom(cutlass.Float8E4M3FN, 128)

    found = evaluate(atom, element_bits=8)
    assert found.swizzle == Swizzle(3, 4, 3)
    assert found.outer.sizes == (8, 128)
    in_elements = [found.swizzle.in_elements(bits) for bits in (8, 16, 32)]
    assert in_elements == [Swizzle(3, 4, 3), Swizzle(3, 3, 3), Swizzle(3, 2, 3)]
    chunks = found.byte_offsets()[:, ::16] // 16 % 8
    assert np.array_equal(chunks, np.arange(8)[:, None] ^ np.arange(8))


# --- the configuration, and the race that it excludes --------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, "hopper/fp8_blockwise_gemm", "hopper/fp8_grouped_gemm"])
def test_a_tile_of_a_height_without_scale_factors_is_refused(name):
    config = catalog.load(name).CONFIG
    with pytest.raises(ValueError, match="tile_m: got 192; needed "):
        dataclasses.replace(config, tile_m=192)


def test_epilogue_stages_must_divide_the_subtiles(module):
    with pytest.raises(ValueError, match=r"epi_stages: got 2; needed a divisor of 3, the subtiles of a tile"):
        module.Config(tile_n=192, epi_stages=2)


def test_the_pipeline_checker_finds_that_race(module):
    config = dataclasses.replace(module.VARIANTS["promoted"])
    object.__setattr__(config, "epi_stages", 2)  # past the check
    found = pipeline.explored(pipeline.Run(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), config))
    assert not found[-1].ok
    assert "race" in found[-1].faults[0] and "(store," in found[-1].faults[0]


# --- planted faults ------------------------------------------------------------------------------------------

FAULTS = [
    (
        "layout",
        "the swizzle is dropped",
        In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
        FAST,
    ),
    (
        "layout",
        "the byte swizzle is that of 16-bit elements",
        In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(_bits, 3, 3)"),
        FAST,
    ),
    (
        "pipeline",
        "factors are read before all are there",
        In("compute").drop("pipeline.NamedBarrier(...).arrive_and_wait()"),
        FAST,
    ),
    (
        "pipeline",
        "a stage is given back early",
        In("next_k_tile").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)"),
        FAST,
    ),
    (
        "pipeline",
        "a promoted stage is given back early",
        In("last_k_tile").replace("warpgroup.wait_group(0)", "warpgroup.wait_group(1)"),
        "promoted",
    ),
    (
        "pipeline",
        "a subtile is written while TMA reads it",
        In("write_subtile").replace("_config.epi_stages - 1", "_config.epi_stages"),
        "promoted",
    ),
    (
        "pipeline",
        "no fence between stmatrix and TMA",
        In("write_subtile").drop("cute.arch.fence_proxy('async.shared', space='cta')"),
        FAST,
    ),
    (
        "pipeline",
        "the only buffer is written while TMA reads it",
        In("write_subtile").replace("_config.epi_stages - 1", "_config.epi_stages"),
        SEVEN,
    ),
]


@pytest.mark.parametrize(("level", "what", "edit", "variant"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, edit, variant, tmp_path):
    assert caught(Mutation(NAME, what, edit, variant), (level,), tmp_path).level == level


# --- the choice among fast tiles -----------------------------------------------------------------------------

CHOICES = [  # M, N, K; the waves of 128 x 256, 224, 192 and 128 on 132 SMs; the tile
    # The first seven were timed on an H100: the tile is the fastest, or within a percent of it.
    ((8192, 8192, 8192), (16, 18, 21, 32), "128x256"),
    ((4096, 4096, 4096), (4, 5, 6, 8), "128x256"),
    ((4096, 7168, 2048), (7, 8, 10, 14), "128x256"),
    ((2048, 7168, 4096), (4, 4, 5, 7), "128x224"),
    ((4096, 2112, 7168), (3, 3, 3, 5), "128x192"),
    ((1024, 7168, 4096), (2, 2, 3, 4), "128x224"),
    ((4096, 24576, 1536), (24, 27, 32, 47), "128x256"),
    ((2048, 2048, 2048), (1, 2, 2, 2), "128x256"),
    ((1024, 1024, 1024), (1, 1, 1, 1), "128x128"),
    ((128, 7168, 16384), (1, 1, 1, 1), "128x128"),
]


@pytest.mark.parametrize(("shape", "waves", "variant"), CHOICES, ids=str)
def test_the_fast_tile_is_chosen_by_waves_and_stops(module, shape, waves, variant):
    m, n, _ = shape
    assert tuple(module.waves(config, m, n, 132) for config in module.FAST.values()) == waves
    assert module.choose(*shape, 132) == variant


@pytest.mark.parametrize("sms", [1, 2, 3, 114, 132])
def test_a_tile_pays_for_the_k_tiles_that_it_needs(module, sms):
    """Seven subtiles are stored under seven k-tiles, of which a K of 256 has two."""
    narrow, wide = (module.clocks(module.FAST[name], 4096, 4096, 256, sms) for name in ("128x128", SEVEN))
    assert wide > narrow and module.choose(4096, 4096, 256, sms) != SEVEN
    assert module.clocks(module.FAST[SEVEN], 4096, 4096, 896, sms) == wide


def test_the_stop_between_two_tiles_is_that_of_its_subtiles(module):
    """3 clocks for each column, to scale and round; 16 for each column of a subtile."""
    for config, stop in zip(module.FAST.values(), (1280, 1184, 1088, 1408), strict=True):
        one, two = (module.clocks(config, 256 * count, config.tile_n, 8192, 2) for count in (1, 2))
        assert two == 2 * one == 2 * (64 * config.tile_n * 4 + stop)


def test_all_of_c_is_stored_under_the_next_main_loop(module):
    for config in module.FAST.values():
        assert config.overlapped == config.subtiles and (config.cluster_m, config.cluster_n) == (2, 1)
        assert not config.promote_every
    assert {name for name in module.VARIANTS if name not in module.FAST} == {"promoted", "promoted, every 2"}


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=32, n=48, k=64):
    a, b = torch.zeros(m, k).to(E4M3), torch.zeros(n, k).to(E4M3).T
    return {"a": a, "b": b, "scale_a": torch.ones(m, 1), "scale_b": torch.ones(1, n)}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_what_is_launched(ours):
    given = operands()
    given |= {"scale_a": torch.ones(32, 5)[:, 2:3], "scale_b": torch.tensor(2.0)}
    out = torch.empty(32, 48, dtype=torch.bfloat16)
    assert ours.matmul(**given, out=out, variant="promoted") is out
    (((arch, _, config, a, b), arguments),) = ours.launched
    assert (arch, config.tile_n, config.gpc_aware, a, b) == ("", 192, False, ours.E4M3, ours.E4M3)
    addresses = tuple(x.data_ptr() for x in (given["a"], given["b"], out, given["scale_a"], given["scale_b"]))
    assert arguments == (*addresses, (0, (32, 48, 64), (64, 64, 48), 1, 5, 0), 7)


def test_the_chosen_tile_is_launched(ours):
    for variant in ("auto", *ours.FAST):
        ours.matmul(**operands(), variant=variant)
    found = [which[2] for which, _ in ours.launched]
    assert [config.tile_n for config in found] == [128, 256, 224, 192, 128]
    assert {(config.cluster_m, config.cluster_n) for config in found} == {(2, 1)}


def test_mixed_types_have_kernels_of_their_own(ours):
    given = operands()
    ours.matmul(**given)
    ours.matmul(**given | {"a": given["a"].to(torch.float8_e5m2)})
    assert [which[3:] for which, _ in ours.launched] == [(ours.E4M3, ours.E4M3), (ours.E5M2, ours.E4M3)]


def test_rows_that_tma_cannot_write_are_padded_and_copied(ours):
    out = torch.empty(32, 45, dtype=torch.bfloat16)
    assert ours.matmul(**operands(n=45), out=out) is out
    ((_, arguments),) = ours.launched
    assert arguments[2] != out.data_ptr() and arguments[5].strides == (64, 64, 48)


def test_out_must_not_overlap_what_is_read(ours):
    memory = torch.zeros(4 * 32 * 48)
    out = memory.view(torch.bfloat16)[: 32 * 48].view(32, 48)
    for name, x in (("scale_a", memory[::24][:32, None]), ("scale_b", memory[None, 700:748])):
        with pytest.raises(ValueError, match=f"out: got memory that overlaps {name}; needed memory of its own"):
            ours.matmul(**operands() | {name: x}, out=out)
    assert not ours.launched
    ours.matmul(**operands() | {"scale_a": memory[768:800, None]}, out=out)
    with pytest.raises(ValueError, match="out: got memory that overlaps scale_a"):  # by the plan of the call before
        ours.matmul(**operands() | {"scale_a": memory[:32, None]}, out=out)
    assert len(ours.launched) == 1 and len(ours.GEMMS[torch.bfloat16].plans) == 1


WRONG = [
    ({"a": 3}, TypeError, "a: got int; needed a torch.Tensor"),
    ({"a": torch.zeros(32, 64)}, TypeError, "a: got torch.float32; needed torch.float8_e4m3fn or"),
    ({"a": torch.zeros(64).to(E4M3)}, ValueError, r"a: got 1 dimension\(s\); needed 2"),
    ({"a": torch.zeros(0, 64).to(E4M3)}, ValueError, r"a: got shape \(0, 64\); needed no empty dimension"),
    ({"b": torch.zeros(63, 48).to(E4M3)}, ValueError, r"b: got shape \(63, 48\); needed \(64, N\)"),
    ({"b": torch.zeros(64, 48).to(E4M3)}, ValueError, "b: got stride 48 along K; needed 1: K-major"),
    ({"a": torch.zeros(32, 72).to(E4M3)[:, :64]}, ValueError, "a: got K = 64, rows 72 bytes apart; needed rows a mult"),
    ({"variant": "slow"}, ValueError, "variant: got 'slow'; needed one of auto, 128x256, 128x224, 128x192, 128x"),
    ({"out_dtype": torch.float32}, TypeError, "out_dtype: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ({"out": torch.zeros(32, 48)}, TypeError, "out: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ({"out": torch.zeros(48, 32).bfloat16()}, ValueError, r"out: got shape \(48, 32\); needed \(32, 48\)"),
    ({"out": torch.zeros(48, 32).bfloat16().T}, ValueError, "out: got stride 32 along N; needed 1"),
    ({"scale_a": 1.0}, TypeError, "scale_a: got float; needed a torch.Tensor"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


def test_it_needs_a_gpu(module):
    with pytest.raises(ValueError, match="a: got device cpu; needed a CUDA device"):
        module.matmul(**operands())


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (torch.ones(31, 1), ValueError, r"scale_a: got shape \(31, 1\); needed \(32, 1\), or one element"),
        (torch.ones(1, 32), ValueError, r"scale_a: got shape \(1, 32\); needed \(32, 1\), or one element"),
        (torch.ones(32, 1).bfloat16(), TypeError, "scale_a: got torch.bfloat16; needed torch.float32"),
        (None, TypeError, "scale_a: got NoneType; needed a torch.Tensor"),
    ],
    ids=str,
)
def test_a_wrong_scale_is_named(module, scale, error, message):
    scale_a, a = module.SCALES[0], torch.ones(32, 64).to(torch.float8_e4m3fn)
    with pytest.raises(error, match=message):
        scale_a.check(module.GEMM, scale, (a, a.T, scale, scale), {"M": 32, "N": 48, "K": 64})


def test_strides_of_scales():
    assert along(0)("scale_a", torch.ones(()), {}) == (0,)
    assert along(0)("scale_a", torch.ones(32, 5)[:, 2:3], {}) == (5,)
    assert along(1)("scale_b", torch.ones(32, 3).T[1:2], {}) == (3,)


# --- the model of its sums -----------------------------------------------------------------------------------


def test_a_sum_that_needs_no_more_bits_is_exact():
    products = np.random.default_rng(1).integers(-4, 5, (50, 512)).astype(float)
    assert np.array_equal(summed(products), products.sum(axis=1))


def test_what_lies_below_the_thirteenth_bit_is_cut_off():
    products = np.zeros((1, 64))
    products[0, 0], products[0, 33] = 1.0, 2.0**-13
    assert summed(products) == 1 + 2.0**-13
    products[0, 33] = 2.0**-13 - 2.0**-16
    assert summed(products) == 1.0
    assert summed(products, promoted_after=32) == products.sum()


def test_promotion_keeps_the_error_from_growing():
    fast, promoted = ([predicted_error(k, after, 300) for k in (512, 2048, 8192)] for after in (None, 128))
    assert fast[0] < fast[1] / 2 < fast[2] / 4
    assert max(promoted) < 1.2 * min(promoted) < fast[0]


@pytest.mark.parametrize(("k", "promoted_after"), [(32, None), (512, None), (4096, None), (4096, 128)])
def test_the_share_that_a_sum_may_lose_is_a_few_times_real(k, promoted_after):
    random = np.random.default_rng(5)
    products = np.prod([decode(encode(random.standard_normal((1000, k)), "e4m3"), "e4m3") for _ in range(2)], axis=0)
    products = products.astype(np.float64)
    losses = summed(products, promoted_after) - products.sum(axis=1)
    share = np.sqrt((losses**2).mean() / (products**2).sum(axis=1).mean())
    assert 3 * share < share_lost(promoted_after or k) < 20 * share


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.zeros(64),), r"products: got shape \(64,\); needed real numbers of 2 dimensions"),
        ((np.zeros((2, 40)),), r"products: got shape \(2, 40\); needed"),
        ((np.zeros((2, 64)), 48), "promoted_after: got 48; needed .*multiple of 32"),
    ],
    ids=str,
)
def test_hostile_sums(given, message):
    with pytest.raises(ValueError, match=message):
        summed(*given)
