"""FP8 operands and few rows, where there is no GPU: tiles, divisions of K, scale factors, faults, heuristic, host."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from edits import In  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import caught  # noqa: E402
from pretend import pretended  # noqa: E402
from rules import lost, recorded  # noqa: E402
from walked import failures, rounded, with_changes  # noqa: E402

from cookbook.check import compiled, scaled  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.fp8 import simulate_fp8  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402

NAME = "hopper/fp8_decode_gemm"
BF16 = cutlass.BFloat16
E4M3 = torch.float8_e4m3fn
SMS = 132
SM_SMEM = 228 * 1024  # bytes
configured = partial(with_changes, NAME)


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


def pair(m, n, k):
    """What the checks multiply: integers, and scale factors that are powers of two."""
    return scaled.integers(m, k, "fp8", 1), scaled.integers(n, k, "fp8", 2)


def simulated(module, config, a, b):
    return simulate_fp8(module, a, b, BF16, config)


# --- tiles, divisions of K, scale factors ---------------------------------------------------------------------


@pytest.mark.parametrize(("tile_n", "split_k"), [(8, 1), (8, 2), (16, 4), (16, 3), (64, 3), (128, 2)])
@pytest.mark.parametrize("tile_m", [64, 128])
def test_every_width_and_division_of_k(tile_m, tile_n, split_k):
    """Layouts; the product with fewer k-tiles than CTAs, as many, and more; and more rows than one tile."""
    module, config = configured(tile_m=tile_m, tile_n=tile_n, tile_k=128, split_k=split_k, per_sm=1)
    assert not failures(check_layouts(module, BF16, config))
    for m, n, k in ((5, 200, 128), (tile_n + 1, 40, 128 * split_k), (3, 130, 1008)):
        a, b = pair(m, n, k)
        exact = a.values().astype(np.float64) @ b.values().astype(np.float64).T
        assert np.array_equal(simulated(module, config, a, b), rounded(exact.astype(np.float32)))


def test_factor_belongs_to_its_row_though_a_and_b_change_places():
    module, config = configured(tile_n=64, tile_k=128, split_k=2)
    a, b = pair(70, 270, 256)
    before = simulated(module, config, a, b)
    a.scales[67], b.scales[258] = 4.0, 8.0
    changed = simulated(module, config, a, b) != before
    assert changed[67].any() and changed[:, 258].any()
    changed[67], changed[:, 258] = False, False
    assert not changed.any()


def test_barriers_and_scale_factors_have_room_before_the_stages(module):
    for config in module.VARIANTS.values():
        needed = 16 * config.stages + 8 + 4 * (config.tile_m + config.tile_n)
        assert config.stages >= 3 and needed <= config.small_bytes
        assert config.per_sm * (config.smem_bytes + 1024) <= SM_SMEM
        assert config.reduction_bytes <= config.stages * config.stage_bytes


TIGHTEST = ("64x256 in 2", "64x64 in 4, promoted", "128x128 in 2, promoted")  # by thread, of CTAs that share, by CTA


@pytest.mark.parametrize(
    "name", [n if n in TIGHTEST else pytest.param(n, marks=pytest.mark.slow) for n in catalog.load(NAME).VARIANTS]
)
def test_no_variant_spills_and_its_ctas_find_registers(module, name):
    config = module.VARIANTS[name]
    built = compiled.compile_recipe(NAME, "sm_90a", "bfloat16", config=config)
    warps = -(-config.threads // 128) * 4  # an SM gives registers to four warps at a time
    assert built.spills == 0 and built.registers * 32 * warps * config.per_sm <= 65536


# --- planted faults --------------------------------------------------------------------------------------------

ONE, PROMOTED, FOUR = "64x64", "64x64, promoted", "64x64 in 4"
FAULTS = [
    ("layout", ONE, "the swizzle is dropped",
     In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)")),
    ("layout", ONE, "the byte swizzle is that of 16-bit elements",
     In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(_bits, 3, 3)")),
    ("pipeline", ONE, "a stage counts two bytes an element",
     In("make_pipeline").replace("_config.stage_bytes", "_config.stage_bytes * 2")),
    ("pipeline", ONE, "factors are read before all are there", In("scale").drop("_barrier.arrive_and_wait()")),
    ("pipeline", ONE, "factors are fetched too early", In("kernel").drop("cute.arch.griddepcontrol_wait()")),
    ("pipeline", ONE, "A and B are loaded too early", In("produce").drop("cute.arch.griddepcontrol_wait()")),
    ("pipeline", ONE, "a stage is given back while it is read",
     In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)")),
    ("pipeline", PROMOTED, "a promoted stage is given back early",
     In("consume_promoted").drop("warpgroup.wait_group(0)")),
    ("pipeline", FOUR, "sums are sent where stages may still be read",
     In("exchange").drop("cute.arch.cluster_wait()")),
    ("pipeline", FOUR, "the reduction buffer is read before it is full",
     In("exchange").drop("cute.arch.mbarrier_wait(_arrived, 0)")),
    ("product", ONE, "the factors of the two rows of a thread change places",
     In("scale").replace("_tidx // 32 * 16 + _lane // 4 + 8 * _i", "_tidx // 32 * 16 + _lane // 4 + 8 - 8 * _i")),
    ("product", ONE, "rows and columns have each other's factors",
     In("scale").replace("_config.tile_m + _lane % 4 * 2", "_lane % 4 * 2")),
    ("product", ONE, "every tile has the factors of the first one",
     In("fetch_scales").replace("_part.m * _config.tile_m + _tidx", "_tidx")),
    ("product", ONE, "A and B have each other's factors",
     In("gemm").where("Scales(_scale_m, _scale_n)").where("_scale_n = cute.make_tensor(_pSA, _)")
      .replace("_scale_m = cute.make_tensor(_, _)", "_scale_m = cute.make_tensor(_pSA, _)")),
    ("product", PROMOTED, "the sums of a k-tile begin where the one before ended",
     In("consume_promoted").replace("issue_wgmmas(_, _read.index, True)", "issue_wgmmas(_, _read.index)")),
    ("product", PROMOTED, "totals keep the last k-tile alone",
     In("consume_promoted").replace("_total.load() + _.acc.load()", "_.acc.load()")),
    ("product", FOUR, "own sums are left out",
     In("exchange").where("cute.autovec_copy(_, _rSent[None, _])").replace("_rSent.store(_)", "_rSent.fill(0.0)")),
    ("compiled", ONE, "elements are taken for e5m2",
     In("wgmma_fp8").replace("warpgroup.MmaF8Op(_a, _b, ...)", "warpgroup.MmaF8Op(E5M2, E5M2, ...)")),
]  # fmt: skip


@pytest.mark.parametrize(("level", "variant", "what", "edit"), FAULTS, ids=[fault[2] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, variant, what, edit, tmp_path):
    assert caught(Mutation(NAME, what, edit, variant), (level,), tmp_path).level == level


# --- the host side ---------------------------------------------------------------------------------------------


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
    out = torch.empty(32, 45, dtype=torch.bfloat16)
    given["b"] = given["b"][:, :45]
    assert ours.matmul(**given, out=out, variant="64x64") is out
    (((arch, _, config, a, b), arguments),) = ours.launched
    assert (arch, config, a, b) == ("", ours.VARIANTS["64x64"], ours.E4M3, ours.E4M3)
    addresses = tuple(x.data_ptr() for x in (given["a"], given["b"], out, given["scale_a"], given["scale_b"]))
    assert arguments == (*addresses, ((32, 45, 64), (64, 64, 45), 5, 0), 7)  # rows of any length, and no copy


def test_mixed_types_have_kernels_of_their_own(ours):
    given = operands()
    ours.matmul(**given)
    ours.matmul(**given | {"a": given["a"].to(torch.float8_e5m2)})
    assert [which[3:] for which, _ in ours.launched] == [(ours.E4M3, ours.E4M3), (ours.E5M2, ours.E4M3)]


def test_out_must_not_overlap_what_is_read(ours):
    memory = torch.zeros(4 * 32 * 48)
    out = memory.view(torch.bfloat16)[: 32 * 48].view(32, 48)
    for name, x in (("scale_a", memory[::24][:32, None]), ("scale_b", memory[None, 700:748])):
        with pytest.raises(ValueError, match=f"out: got memory that overlaps {name}; needed memory of its own"):
            ours.matmul(**operands() | {name: x}, out=out)
    assert not ours.launched


WRONG = [
    ({"a": 3}, TypeError, "a: got int; needed a torch.Tensor"),
    ({"a": torch.zeros(32, 64)}, TypeError, "a: got torch.float32; needed torch.float8_e4m3fn or"),
    ({"b": torch.zeros(64, 48).to(E4M3)}, ValueError, "b: got stride 48 along K; needed 1: K-major"),
    ({"a": torch.zeros(32, 72).to(E4M3)[:, :64]}, ValueError, "a: got K = 64, rows 72 bytes apart; needed rows a mult"),
    ({"variant": "slow"}, ValueError, "variant: got 'slow'; needed one of auto, promoted, 64x16"),
    ({"out_dtype": torch.float32}, TypeError, "out_dtype: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ({"out": torch.zeros(48, 32).bfloat16()}, ValueError, r"out: got shape \(48, 32\); needed \(32, 48\)"),
    ({"scale_a": torch.ones(31, 1)}, ValueError, r"scale_a: got shape \(31, 1\); needed \(32, 1\), or one element"),
    ({"scale_b": None}, TypeError, "scale_b: got NoneType; needed a torch.Tensor"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


def test_it_needs_a_gpu(module):
    with pytest.raises(ValueError, match="a: got device cpu; needed a CUDA device"):
        module.matmul(**operands())


# --- the heuristic ---------------------------------------------------------------------------------------------

MADE_FOR = {
    "64x16": (16, 8192, 8192),
    "64x16 in 2": (1, 1536, 7168),
    "64x32": (32, 8192, 8192),
    "64x32 in 2": (32, 1536, 7168),
    "64x64": (64, 8192, 8192),
    "64x64 in 2": (64, 4096, 14336),
    "64x64 in 4": (64, 1536, 7168),
    "128x64 in 2": (64, 7168, 16384),
    "64x128": (128, 5120, 4096),
    "64x128 in 2": (128, 4096, 14336),
    "64x128 in 4": (128, 1536, 7168),
    "128x128": (128, 14336, 4096),
    "128x128 in 2": (128, 7168, 16384),
    "64x256": (256, 8192, 8192),
    "64x256 in 2": (256, 4096, 14336),
}


def test_each_variant_has_its_products(module):
    assert {shape: module.choose(*shape, SMS) for shape in MADE_FOR.values()} == {v: k for k, v in MADE_FOR.items()}


def test_whoever_asks_for_promoted_sums_gets_them(module, ours):
    for m, n, k in ((1, 1536, 7168), (64, 8192, 8192), (200, 4096, 4096)):
        assert module.VARIANTS[module.choose(m, n, k, SMS, promoted=True)].promoted
        assert not module.VARIANTS[module.choose(m, n, k, SMS)].promoted
    ours.matmul(**operands(), variant="promoted")
    (((_, _, config, *_), _),) = ours.launched
    assert config.promoted


def test_a_promoted_twin_differs_by_its_sums_alone(module):
    twins = {name: c for name, c in module.VARIANTS.items() if c.promoted}
    assert len(twins) == sum(c.tile_n <= 128 for c in module.FAST.values())
    for name, config in twins.items():
        assert config == dataclasses.replace(module.FAST[name.removesuffix(", promoted")], promoted=True)


def test_what_is_prefetched_has_room_in_l2(module):
    """What all CTAs that run at once ask for before the wait, next to what the previous kernel still reads."""
    for config in module.VARIANTS.values():
        ctas = config.per_sm * config.split_k * module.clusters_at_once(config, SMS)
        assert config.ahead * config.tile_m * config.tile_k * ctas < 0.8 * module.L2_HOLDS


def test_the_heuristic_loses_little_of_what_was_recorded(module):
    measured = recorded(NAME)
    if not measured:
        pytest.skip("no times are recorded")
    losses = lost(measured, module.FAST, lambda *shape: module.choose(*shape, SMS))
    assert max(losses) < 0.1 and np.mean(losses) < 0.03
