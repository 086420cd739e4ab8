"""Bytes and multiply-adds of a traced kernel are those of its tiles."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass")

from cookbook.check import compiled, pipeline
from cookbook.check.cost import Tally, total
from cookbook.recipe import catalog

FIRST, MULTICAST, AMPERE = "hopper/tma_wgmma_gemm", "hopper/multicast_gemm", "ampere/ldmatrix_gemm"
TCGEN05, PAIR = "blackwell/tma_tcgen05_gemm", "blackwell/two_cta_gemm"
BYTES = 2  # of an element


def of(name: str, k_tiles: int = 3):
    """The cost of a cluster with one tile a CTA, its configuration, and K."""
    module, arch = catalog.load(name), catalog.find(name).targets[0]
    config = compiled.config_for(module, arch)
    down, across = (getattr(config, f"cluster_{x}", getattr(config, f"pairs_{x}", 1)) for x in "mn")
    problem = pipeline.Problem(config.tile_m * down, config.tile_n * across, k_tiles * config.tile_k, 132)
    run = pipeline.Run(module, arch, compiled.cutlass_dtype("bfloat16"), config)
    return total(run.warps(problem, kind=Tally)), config, problem


@pytest.mark.parametrize("name", [FIRST, MULTICAST, AMPERE, TCGEN05, PAIR])
def test_each_multiply_add_is_done_once(name):
    found, _, problem = of(name)
    assert found.multiply_adds == problem.m * problem.n * problem.k


@pytest.mark.parametrize(("name", "what"), [(FIRST, "TMA load"), (TCGEN05, "TMA load"), (AMPERE, "cp.async")])
def test_a_cta_loads_its_panels_once(name, what):
    found, config, problem = of(name)
    assert found.bytes["global", "shared"] == (config.tile_m + config.tile_n) * problem.k * BYTES
    assert found.instructions[what] > 0


def test_a_multicast_is_loaded_once_and_delivered_to_each_cta():
    found, config, problem = of(MULTICAST)
    assert found.ctas == config.cluster_m * config.cluster_n > 1
    assert found.bytes["global", "shared"] == (problem.m + problem.n) * problem.k * BYTES
    assert found.delivered == found.ctas * (config.tile_m + config.tile_n) * problem.k * BYTES


def test_instructions_are_those_of_the_tile():
    found, config, problem = of(FIRST)
    assert found.instructions["wgmma"] == config.tile_m // 64 * problem.k // 16
    assert found.bytes["registers", "shared"] == found.bytes["shared", "global"] == problem.m * problem.n * BYTES
    ampere, config, problem = of(AMPERE)
    assert ampere.instructions["mma.sync"] == problem.m * problem.n * problem.k // (16 * 8 * 16)
