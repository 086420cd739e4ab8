"""hopper/decode_gemm: every tile, division of K and major, the heuristic, the machine code; faults to be found."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from edits import In  # noqa: E402
from marks import first_of_each  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite, check_caught  # noqa: E402
from rules import lost, recorded  # noqa: E402
from walked import failures, integers, rounded, with_changes  # noqa: E402

from cookbook.check import compiled  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.product import simulate  # noqa: E402
from cookbook.ops import choice, predict  # noqa: E402
from cookbook.recipe import catalog, majors  # noqa: E402

NAME = "hopper/decode_gemm"
BF16 = cutlass.BFloat16
SMS = 132
SM_SMEM = 228 * 1024
configured = partial(with_changes, NAME)


@pytest.mark.parametrize(("tile_n", "split_k"), [(8, 1), (8, 2), (16, 4), (16, 3), (64, 3), (96, 2), (256, 2)])
@pytest.mark.parametrize("tile_m", [64, 128])
def test_every_width_and_division_of_k(tile_m, tile_n, split_k):
    """Layouts; the product with fewer k-tiles than CTAs, as many, and more; and more rows than one tile."""
    module, config = configured(tile_m=tile_m, tile_n=tile_n, tile_k=64, split_k=split_k, per_sm=1)
    assert not failures(check_layouts(module, BF16, config))
    for m, n, k in ((5, 200, 64), (tile_n + 1, 40, 64 * split_k), (3, 130, 1000)):
        a, b = integers(m, n, k)
        assert np.array_equal(simulate(module, a, b, BF16, config), rounded(a @ b))


@pytest.mark.parametrize("which", majors.MAJORS)
@pytest.mark.parametrize("tile_n", [8, 16, 32, 96, 192, 256])
def test_every_width_of_every_major(which, tile_n):
    """Lines of an M-major activation are as long as the tile is wide: each swizzle has a width, and wgmma reads it."""
    module, config = configured(tile_n=tile_n, split_k=2, tile_k=128)
    config = majors.configured(config, which)
    assert not failures(check_layouts(module, BF16, config))
    m, n, k = majors.align((tile_n + 1, 136, 200), which)
    a, b = integers(m, n, k)
    assert np.array_equal(simulate(module, a, b, BF16, config), rounded(a @ b))


def test_a_major_that_there_is_not_is_refused():
    for name, needed in (("a_major", "m"), ("b_major", "n")):
        with pytest.raises(ValueError, match=f"{name}: got 'x'; needed 'k' or '{needed}'"):
            configured(**{name: "x"})


def test_a_thread_without_a_sum_for_every_cta_is_refused():
    with pytest.raises(ValueError, match="split_k: got 8; needed at most 4"):
        configured(tile_n=8, split_k=8)


@pytest.mark.parametrize("variant", list(catalog.load(NAME).VARIANTS))
def test_the_stages_hold_the_reduction_and_leave_the_sm_room(variant):
    """The reduction buffer lies in the stages; as many CTAs as the configuration says fit on an SM."""
    config = catalog.load(NAME).VARIANTS[variant]
    assert config.reduction_bytes <= config.stages * config.stage_bytes
    assert config.per_sm * (config.smem_bytes + 1024) <= SM_SMEM < (config.per_sm + 1) * (config.smem_bytes + 1024)
    assert config.smem_bytes <= 227 * 1024


def kind_of(variant: str) -> tuple[int, bool]:
    config = catalog.load(NAME).VARIANTS[variant]
    return config.split_k, bool(config.ahead)


@pytest.mark.parametrize("variant", first_of_each(catalog.load(NAME).VARIANTS, kind_of))
def test_what_is_prefetched_sent_and_stored(variant):
    """In the machine code: prefetches before the wait alone; no CTA sends its own share; no spill."""
    config = catalog.load(NAME).VARIANTS[variant]
    built = compiled.compile_recipe(NAME, "sm_90a", "float16", config=config)
    boxes = config.tile_k // 64  # TMA's 128-byte mode
    assert built.count("STAS") == (config.accumulators // config.vec if config.split_k > 1 else 0)
    assert built.count("UTMAPF") == (boxes if config.ahead else 0) and built.count("UTMALDG") == 2 * boxes
    assert built.count("STG.E.U16") == config.share
    assert built.count("WARPGROUP.DEPBAR") == 2  # in the loop and after it, not after every wgmma
    assert built.spills == 0 and built.registers * config.threads * config.per_sm <= 65536
    waits = built.ptx.index("griddepcontrol.wait")
    assert built.ptx.rfind("cp.async.bulk.prefetch.tensor") < waits < built.ptx.index("cp.async.bulk.tensor.2d.shared")


@pytest.mark.parametrize("which", majors.MAJORS)
def test_each_operand_keeps_its_major_up_to_the_tensor_cores(which):
    """The weight is A of wgmma. A k-tile of an N-major one is one box, whatever its depth."""
    config = majors.configured(catalog.load(NAME).VARIANTS["64x16 in 2"], which)
    built = compiled.compile_recipe(NAME, "sm_90a", "bfloat16", config=config)
    of_weight = 1 if config.b_major == "n" else config.tile_k // 64
    of_rows = 1 if config.a_major == "m" else config.tile_k // 64
    assert built.count("UTMAPF") == of_weight and built.count("UTMALDG") == of_weight + of_rows
    for bit, major in ((".tnspA", config.b_major), (".tnspB", config.a_major)):
        multiply = [line for line in built.sass.splitlines() if "HGMMA" in line]
        assert multiply and {bit in line for line in multiply} == {major != "k"}
    assert built.spills == 0


MADE_FOR = {
    "64x16": (16, 8192, 8192),
    "64x16 in 2": (16, 4096, 14336),
    "64x16 in 4": (1, 1536, 7168),
    "64x32": (17, 8192, 8192),
    "64x32 in 4": (32, 1536, 7168),
    "64x64": (64, 8192, 8192),
    "64x64 in 2": (64, 2048, 7168),
    "64x64 in 4": (64, 1536, 7168),
    "64x96": (96, 8192, 8192),
    "64x96 in 2": (65, 4096, 14336),
    "64x128": (128, 8192, 8192),
    "64x128 in 2": (128, 4096, 14336),
    "64x128 in 3": (128, 2048, 7168),
    "64x128 in 4": (128, 1536, 7168),
    "64x192": (192, 8192, 8192),
    "64x192 in 2": (192, 4096, 14336),
    "64x192 in 4": (192, 1536, 7168),
    "64x256": (256, 8192, 8192),
    "64x256 in 2": (256, 4096, 14336),
    "64x256 in 4": (256, 1536, 7168),
}


def test_each_variant_has_its_products():
    module = catalog.load(NAME)
    assert [*MADE_FOR, "64x16, no prefetch"] == sorted(module.VARIANTS, key=lambda name: name.endswith("prefetch"))
    assert {shape: module.choose(*shape, SMS) for shape in MADE_FOR.values()} == {v: k for k, v in MADE_FOR.items()}


def test_what_is_prefetched_has_room_in_l2():
    """What all CTAs that run at once ask for before the wait, next to what the previous kernel still reads."""
    module = catalog.load(NAME)
    for config in module.VARIANTS.values():
        ctas = config.per_sm * config.split_k * module.clusters_at_once(config, SMS)
        assert config.ahead * 2 * config.tile_m * config.tile_k * ctas < 0.6 * module.L2_HOLDS
        assert config.ahead * config.tile_k * config.split_k <= 8192  # no more than what such a product has


def test_the_heuristic_loses_little_of_what_was_recorded():
    module, measured = catalog.load(NAME), recorded(NAME)
    if not measured:
        pytest.skip("no times are recorded")
    losses = lost(measured, module.VARIANTS, lambda *shape: module.choose(*shape, SMS))
    assert max(losses) < 0.1 and np.mean(losses) < 0.02


def test_the_operator_takes_its_best_for_few_rows():
    """Of all tiles that the recipe can make, also those that no variant names."""
    module, rate = catalog.load(NAME), catalog.find(NAME).serves["sm_90"]
    for m, n, k in ((8, 1024, 8192), (16, 8192, 8192), (64, 1536, 7168), (32, 4096, 4096)):
        a, b = choice.Laid((m, k), (k, 1)), choice.Laid((k, n), (1, k))
        best = choice.options(a, b, "bfloat16", choice.H200)[0]
        predictions = {
            name: choice.predicted(module, config, predict.Work(m, n, k, SMS, rate))
            for name, _, config in choice.family(NAME)
        }
        assert best.recipe == NAME and best.variant == min(predictions, key=predictions.__getitem__)


@pytest.mark.parametrize("which", majors.MAJORS)
def test_the_operator_takes_it_for_few_rows_of_any_major(which):
    (m, n, k), (a_major, b_major) = (64, 4096, 4096), majors.MAJORS[which]
    a = choice.Laid((m, k), (k, 1) if a_major == "k" else (1, m))
    b = choice.Laid((k, n), (1, k) if b_major == "k" else (n, 1))
    best = choice.options(a, b, "float16", choice.H200)[0]
    assert (best.recipe, best.majors, best.copies) == (NAME, which, {})


ONE, THREE, FOUR = "64x16", "64x128 in 3", "64x64 in 4"
FAULTS = [
    (FOUR, "accumulators are sent where stages may still be read", In("exchange").drop("cute.arch.cluster_wait()")),
    (FOUR, "the cluster's barrier orders nothing",
     In("exchange").replace("cute.arch.cluster_arrive", "cute.arch.cluster_arrive_relaxed")),
    (FOUR, "the reduction has no barrier", In("make_pipeline").drop("cute.arch.mbarrier_init(_arrived, 1)")),
    (FOUR, "the reduction buffer is read before it is full",
     In("exchange").drop("cute.arch.mbarrier_wait(_arrived, 0)")),
    (FOUR, "a CTA expects its own accumulators too",
     In("expect_shares").replace("_config.split_k - 1", "_config.split_k")),
    (THREE, "the last CTA expects a whole share",
     In("expect_shares").replace("_config.accumulators - _part.rank * _config.share", "_config.share")),
    (THREE, "the last CTA reads places that are empty",
     In("exchange").replace("_part.rank * _config.share + _i * _vec < _config.accumulators", "_part.rank >= 0")),
    (FOUR, "the warp that loads leaves the cluster's barrier out",
     In("produce").drop("cute.arch.cluster_arrive_relaxed()\ncute.arch.cluster_wait()")),
    (ONE, "three warps of four give a stage back", In("make_pipeline").replace("4 * _config.warpgroups", "3")),
    (ONE, "a stage is given back while it is read",
     In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)")),
    (FOUR, "accumulators are sent before they are there", In("consume").drop("warpgroup.wait_group(0)")),
    (ONE, "A and B are loaded too early", In("produce").drop("cute.arch.griddepcontrol_wait()")),
    (ONE, "C is stored too early", In("kernel").drop("cute.arch.griddepcontrol_wait()")),
]  # fmt: skip
WRONG = [
    (FOUR, "a CTA keeps another's share",
     In("exchange").replace("_ = min(...)\nif _part.rank == _peer: ...",
      "_ = min(...)\nif _part.rank != _peer: ...")),
    (FOUR, "all senders write to one place",
     In("exchange").replace("_sReduce[_tidx, (None, _i), _part.rank]", "_sReduce[_tidx, (None, _i), 0]")),
    (FOUR, "own accumulators are left out",
     In("exchange").where("cute.autovec_copy(_, _rSent[None, _])").replace("_rSent.store(_)", "_rSent.fill(0.0)")),
    (THREE, "the last CTA stores a whole share",
     In("store").replace("cute.elem_less((_row, _column, _place), (*_mC.shape, _config.accumulators))",
      "cute.elem_less((_row, _column), _mC.shape)")),
]  # fmt: skip

MISREAD = [
    ("tt", "the stages have the major of the other operand",
     In("smem_layouts").replace(
      "SmemLayouts(a=staged(..., _config.b_major, _config), b=staged(..., _config.a_major, _config))",
      "SmemLayouts(a=staged(..., _config.a_major, _config), b=staged(..., _config.b_major, _config))")),
    ("tt", "wgmma takes the weight for K-major",
     In("wgmma_of_majors").replace("(_ for _ in (_config.b_major, _config.a_major))",
      "(_ for _ in (_config.a_major, _config.a_major))")),
    ("nn", "wgmma takes the rows for K-major",
     In("wgmma_of_majors").replace("(_ for _ in (_config.b_major, _config.a_major))",
      "(_ for _ in (_config.b_major, _config.b_major))")),
    ("nn", "lines of an M-major tile are turned around", In("mirrored_atom").replace("(1, _width)", "(8, 1)")),
]  # fmt: skip
MISLAID = [
    ("tt", "the weight is read as if it were K-major", In("gemm").replace("_config.b_major", "'k'")),
    ("nt", "the rows are read as if they were K-major", In("gemm").replace("_config.a_major", "'k'")),
    ("tt", "the lines of the weight are as far apart as those of the rows",
     In("gemm").replace("((_n, _m, _k), (_ldb, _lda, _ldc), _dtype)", "((_n, _m, _k), (_lda, _ldb, _ldc), _dtype)")),
]  # fmt: skip


SUITES = [
    Suite(("layout", "model"), [Mutation(NAME, *change, which) for which, *change in MISREAD]),
    Suite(("product",), [Mutation(NAME, *change, which) for which, *change in MISLAID]),
    Suite(("pipeline",), [Mutation(NAME, *change, variant) for variant, *change in FAULTS]),
    Suite(("product",), [Mutation(NAME, *change, variant) for variant, *change in WRONG]),
]


@pytest.mark.parametrize(
    ("suite", "fault"), [(s, f) for s in SUITES for f in s.faults], ids=lambda x: getattr(x, "what", "")
)
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)
