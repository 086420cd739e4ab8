"""Two CTAs that share one MMA: what the page claims of masks and bytes, and faults that the levels must find."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")

from edits import In  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite, check_caught  # noqa: E402
from walked import failures, integers  # noqa: E402

from cookbook.check import compiled, tensor_memory  # noqa: E402
from cookbook.check.evaluated import evaluated  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.product import simulate, simulate_evaluated  # noqa: E402
from cookbook.check.model.tcgen05 import TmaTcgen05, descriptors_of, instruction_of, sums_of_a_cta  # noqa: E402
from cookbook.layouts import tile_coords  # noqa: E402
from cookbook.model import BlackwellDescriptor, InstructionDescriptor  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402

NAME = "blackwell/two_cta_gemm"
BF16 = cutlass.BFloat16


@pytest.mark.parametrize("variant", list(catalog.load(NAME).VARIANTS))
def test_masks_bring_every_stage_all_of_it(variant):
    """What the CTAs send, by the kernel's masks, is each half of A and of B of every CTA exactly once."""
    module = catalog.load(NAME)
    config = module.VARIANTS[variant]
    pairs = [(m, n) for n in range(config.pairs_n) for m in range(config.pairs_m)]
    places = [module.Place(half, m, n) for m, n in pairs for half in range(module.PAIR)]
    got = {(rank, what): [] for rank in range(config.cluster) for what in "ab"}
    for sender, place in enumerate(places):
        for what, mask in zip("ab", module.multicast_masks(place, config), strict=True):
            assert mask >> sender & 1, "a CTA gets what it asks for"
            for rank in range(config.cluster):
                if mask >> rank & 1:
                    got[rank, what].append(place)
    for rank, place in enumerate(places):
        for what, sharers in (("a", config.pairs_n), ("b", config.pairs_m)):
            senders = got[rank, what]
            assert {p.half for p in senders} == {place.half}, "the same half of another pair"
            index = [p.n if what == "a" else p.m for p in senders]  # which part of the half each brings
            assert sorted(index) == list(range(sharers))
            assert {p.m if what == "a" else p.n for p in senders} == {place.m if what == "a" else place.n}


def test_each_cta_holds_half_of_a_and_b_and_of_the_sums():
    module = catalog.load(NAME)
    found = evaluated(module, BF16, module.CONFIG)
    assert found.ctas == 2
    assert found.smem["a"].outer.sizes[0] == found.smem["b"].outer.sizes[0] == 128
    assert sums_of_a_cta(found) == (128, 256)
    assert instruction_of(found, "bfloat16") == InstructionDescriptor("f16", 256, 256, "bfloat16")
    assert descriptors_of(found, "b")[0][0][0] == BlackwellDescriptor(0, 16, 1024, 128)


def test_the_halves_are_those_of_cutes_mma():
    """To CuTe the CTAs of a pair are the MMA's threads: which rows of A, B and C it gives to each."""
    module = catalog.load(NAME)
    mma = evaluated(module, BF16, module.CONFIG).mma
    m, n, k = mma.tiler_mnk
    for tv, tiler, rows in ((mma.a, (m, k), 128), (mma.b, (n, k), 128), (mma.c, (m, n), 128)):
        coords = tile_coords(tv, tiler)
        assert len(coords) == module.PAIR
        for half, of_cta in enumerate(coords):
            assert set(of_cta[:, 0].tolist()) == set(range(half * rows, (half + 1) * rows))
            assert set(of_cta[:, 1].tolist()) == set(range(tiler[1]))


@pytest.mark.parametrize("changes", [{"tile_n": 128}, {"tile_k": 32}, {"tile_n": 64, "epi_n": 32, "stages": 3}])
def test_other_sizes(changes):
    module = catalog.load(NAME)
    config = dataclasses.replace(module.CONFIG, **changes)
    assert not failures(check_layouts(module, BF16, config))
    a, b = integers(300, 150, 136)
    assert np.array_equal(simulate(module, a, b, BF16, config), a @ b)
    found, built = evaluated(module, BF16, config), compiled.compile_recipe(NAME, "sm_100a", "bfloat16", config=config)
    assert not failures(tensor_memory.compiled_findings(found, built, "bfloat16"))
    assert built.spills == 0


@pytest.mark.parametrize("operand", [0, 1], ids=["A", "B"])
def test_exchanged_halves_are_caught(operand, monkeypatch):
    """Each CTA brings the half that the other one should: the simulation finds it in both CTAs' rows or all columns."""
    module = catalog.load(NAME)
    config, found = module.CONFIG, evaluated(module, BF16, module.CONFIG)
    right = TmaTcgen05.load

    def exchanged(self, smem, k_tile, a, b, row, column):
        firsts = [row, column]
        firsts[operand] ^= config.cta_m  # tiles begin at multiples of 256
        return right(self, smem, k_tile, a, b, *firsts)

    a, b = integers(256, 256, 64)
    assert np.array_equal(simulate_evaluated(found, found, a, b, "bfloat16", config), a @ b)
    monkeypatch.setattr(TmaTcgen05, "load", exchanged)
    wrong = simulate_evaluated(found, found, a, b, "bfloat16", config) != a @ b
    assert all(half.mean() > 0.5 for half in (wrong[:128], wrong[128:], wrong[:, :128], wrong[:, 128:]))


LAYOUT_FAULTS = [
    Mutation(NAME, "a CTA holds all of B", In("smem_layouts").replace("_c.cta_n", "_c.tile_n")),
    Mutation(
        NAME,
        "a CTA holds all of A",
        In("smem_layouts").replace("(_c.cta_m, _c.tile_k, _c.stages)", "(_c.tile_m, _c.tile_k, _c.stages)"),
    ),
    Mutation(
        NAME,
        "the swizzle is dropped",
        In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
    ),
    Mutation(
        NAME,
        "half of the sums' columns are allocated",
        In("PipelinedConfig.tmem_columns").replace("self.acc_stages * self.tile_n", "self.tile_n"),
    ),
]


FAULTS = [
    (
        "pair",
        "the leader expects its own bytes alone",
        In("make_pipelines").replace("PAIR * _config.stage_bytes", "_config.stage_bytes"),
    ),
    (
        "pair",
        "the epilogue of one CTA is enough",
        In("make_pipelines").replace("PAIR * EPILOGUE_WARPS", "EPILOGUE_WARPS"),
    ),
    ("pair", "both CTAs multiply", In("multiply").replace("_place.half == 0", "_place.half >= 0")),
    (
        "pair",
        "no barrier of the cluster at the start",
        In("set_up").replace("make_pipelines(_, False, _)", "make_pipelines(_, True, _)"),
    ),
    ("pair", "tensor memory is not freed", In("end_epilogue").drop("_cta.tmem.free(_)")),
    ("2 pairs down", "the loading warp leaves at once", In("produce").drop("_pipe.producer_tail(_state)")),
    (
        "2 pairs across",
        "one pair's word empties a stage",
        In("make_pipelines").replace("_config.pairs_m + _config.pairs_n - 1", "_config.pairs_m"),
    ),
    (
        "2 pairs down",
        "one pair's word empties a stage",
        In("make_pipelines").replace("_config.pairs_m + _config.pairs_n - 1", "_config.pairs_n"),
    ),
    (
        "2 pairs down",
        "a word too many is waited for",
        In("make_pipelines").replace("_config.pairs_m + _config.pairs_n - 1", "_config.pairs_m + _config.pairs_n"),
    ),
    (
        "2 pairs across",
        "A goes to the leaders",
        In("multicast_masks").replace("_place.half + PAIR * _place.m", "0 * _place.half + PAIR * _place.m"),
    ),
    (
        "2 pairs down",
        "B goes to the leaders",
        In("multicast_masks").replace(
            "_place.half + PAIR * _config.pairs_m * _place.n", "0 * _place.half + PAIR * _config.pairs_m * _place.n"
        ),
    ),
]


SUITES = [
    Suite(("layout",), LAYOUT_FAULTS),
    Suite(("pipeline",), [Mutation(NAME, *change, variant) for variant, *change in FAULTS]),
]
PLANTED = [(suite, fault) for suite in SUITES for fault in suite.faults]


@pytest.mark.parametrize(("suite", "fault"), PLANTED, ids=[str(fault) for _, fault in PLANTED])
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)
