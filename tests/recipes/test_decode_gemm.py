"""hopper/decode_gemm: every tile and division of K, the heuristic, the machine code; and faults that must be found."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from mutations import Mutation  # noqa: E402
from planted import Suite, check_caught  # noqa: E402
from walked import failures, integers, rounded, with_changes  # noqa: E402

from cookbook.check import compiled  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.product import simulate  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402

NAME = "hopper/decode_gemm"
BF16 = cutlass.BFloat16
SMS = 132
SM_SMEM = 228 * 1024
configured = partial(with_changes, NAME)


@pytest.mark.parametrize(("tile_n", "split_k"), [(8, 1), (8, 2), (16, 4), (16, 3), (64, 3), (96, 2), (256, 2)])
@pytest.mark.parametrize("tile_m", [64, 128])
def test_every_width_and_division_of_k(tile_m, tile_n, split_k):
    """Layouts; the product with fewer k-tiles than CTAs, as many, and more; and more rows than one tile."""
    module, config = configured(tile_m=tile_m, tile_n=tile_n, split_k=split_k, per_sm=1)
    assert not failures(check_layouts(module, BF16, config))
    for m, n, k in ((5, 200, 64), (tile_n + 1, 40, 64 * split_k), (3, 130, 1000)):
        a, b = integers(m, n, k)
        assert np.array_equal(simulate(module, a, b, BF16, config), rounded(a @ b))


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


@pytest.mark.parametrize("variant", list(catalog.load(NAME).VARIANTS))
def test_what_is_prefetched_sent_and_stored(variant):
    """In the machine code: a prefetch before the wait and one in the loop; no CTA sends its own share; no spill."""
    config = catalog.load(NAME).VARIANTS[variant]
    built = compiled.compile_recipe(NAME, "sm_90a", "float16", config=config)
    vectors = config.sums // min(config.share, 4) if config.split_k > 1 else 0
    assert built.count("STAS") == vectors  # each peer's are there once, and jumped over by the peer itself
    assert built.count("UTMAPF") == (2 if config.ahead else 0) and built.count("UTMALDG") == 2
    assert built.count("STG.E.U16") == config.share
    assert built.count("WARPGROUP.DEPBAR") == 2  # in the loop and after it, not after every wgmma
    assert built.spills == 0 and built.registers * config.threads * config.per_sm <= 65536
    waits = built.ptx.index("griddepcontrol.wait")
    assert not config.ahead or built.ptx.index("cp.async.bulk.prefetch.tensor") < waits
    assert waits < built.ptx.index("cp.async.bulk.tensor.2d.shared")


MADE_FOR = {
    "64x16": (16, 8192, 8192),
    "64x16 in 2": (16, 2560, 8192),
    "64x16 in 2, ahead": (1, 1536, 7168),
    "64x32": (17, 4096, 14336),
    "64x32 in 2": (32, 2560, 8192),
    "64x32 in 2, ahead": (32, 1536, 7168),
    "64x64": (256, 1536, 7168),
    "64x64 in 2": (64, 2560, 8192),
    "64x64 in 4, ahead": (33, 1536, 7168),
}


def test_each_variant_has_its_products():
    module = catalog.load(NAME)
    assert list(MADE_FOR) == list(module.VARIANTS)
    assert {shape: module.choose(*shape, SMS) for shape in MADE_FOR.values()} == {v: k for k, v in MADE_FOR.items()}


def test_only_few_ctas_prefetch():
    """Where many do, L2 is asked for every line twice, and that costs: the CTAs of a grid are fewer than the SMs."""
    module = catalog.load(NAME)
    for m, n in product(range(1, 300, 7), range(64, 20000, 320)):
        config = module.VARIANTS[module.choose(m, n, 4096, SMS)]
        ctas = -(-n // config.tile_m) * -(-m // config.tile_n) * config.split_k
        assert not config.ahead or ctas <= SMS
        assert m > 64 or -(-m // config.tile_n) == 1  # the weight is read once


TWO, FOUR = "64x16 in 2, ahead", "64x64 in 4, ahead"
FAULTS = [
    (TWO, "sums are sent where stages may still be read", "cute.arch.cluster_wait()  # ... and", "pass  # ... and"),
    (TWO, "the cluster's barrier orders nothing", "cute.arch.cluster_arrive()  # this",
     "cute.arch.cluster_arrive_relaxed()  # this"),
    (TWO, "the reduction has no barrier", "                cute.arch.mbarrier_init(arrived, 1)\n",
     "                pass\n"),
    (TWO, "the reduction buffer is read before it is full", "cute.arch.mbarrier_wait(arrived, 0)", "pass"),
    (FOUR, "a CTA expects its own sums too", "expect_tx(arrived, config.sent_bytes)",
     "expect_tx(arrived, config.reduction_bytes)"),
    (TWO, "the warp that loads leaves the cluster's barrier out",
     "cute.arch.cluster_arrive_relaxed()\n        cute.arch.cluster_wait()  # whoever", "pass  # whoever"),
    (TWO, "three warps of four give a stage back", "Agent.Thread, 4 * config.warpgroups)", "Agent.Thread, 3)"),
    (TWO, "a stage is given back while it is read", "warpgroup.wait_group(1)", "warpgroup.wait_group(2)"),
    (TWO, "sums are sent before they are there", "warpgroup.wait_group(0)", "pass"),
    (TWO, "A and B are loaded too early", "cute.arch.griddepcontrol_wait()  # before", "pass  # before"),
    (TWO, "C is stored too early", "cute.arch.griddepcontrol_wait()  # whoever", "pass  # whoever"),
]  # fmt: skip
WRONG = [
    (TWO, "a CTA keeps the other's share", "if part.rank == peer:", "if part.rank != peer:"),
    (FOUR, "all senders write to one place", "(None, i), part.rank]", "(None, i), 0]"),
    (TWO, "own sums are left out", "rSent.store(rOwn.load())", "rSent.fill(0.0)"),
]  # fmt: skip


SUITES = [
    Suite(("pipeline",), [Mutation(NAME, *change, variant) for variant, *change in FAULTS]),
    Suite(("product",), [Mutation(NAME, *change, variant) for variant, *change in WRONG]),
]


@pytest.mark.parametrize(
    ("suite", "fault"), [(s, f) for s in SUITES for f in s.faults], ids=lambda x: getattr(x, "what", "")
)
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)
