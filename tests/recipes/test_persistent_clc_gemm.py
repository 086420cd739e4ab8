"""Clusters that take over others' work: who reads an answer, who waits for whom, and faults that must be found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

cutlass = pytest.importorskip("cutlass")

from edits import In  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite, check_caught  # noqa: E402

from cookbook.check import compiled, pipeline  # noqa: E402
from cookbook.check.pipeline.programs import host_arguments, of_cluster  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402
from cookbook.simulate.takeover import ANSWER_BYTES  # noqa: E402

NAME = "blackwell/persistent_clc_gemm"
BF16 = cutlass.BFloat16


def explored(module, config):
    """What is wrong with the kernel, for the first of the problems."""
    run = pipeline.Run(module, "sm_100a", BF16, config)
    found = pipeline.explore(run, run.problems[0])
    return [fault for one in found for fault in one.faults]


@pytest.mark.parametrize("arch", ["sm_100a", pytest.param("sm_103a", marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", list(catalog.load(NAME).VARIANTS))
def test_only_the_variants_that_ask_hold_the_instruction(variant, arch):
    config = catalog.load(NAME).VARIANTS[variant]
    built = compiled.compile_recipe(NAME, arch, "float16", config=config)
    assert built.count("UGETNEXTWORKID.BROADCAST") == (1 if config.answers else 0)
    assert built.ptx.count("clusterlaunchcontrol.try_cancel") == (1 if config.answers else 0)
    assert built.spills == 0 and built.threads == 32 * (7 if config.answers else 6)


@pytest.mark.parametrize("cluster", [0, 3])
def test_a_cluster_goes_round_as_often_as_it_is_given_work(cluster):
    """Of five clusters: the first is given four more and then told no, the last but one is given one."""
    module = catalog.load(NAME)
    config = module.CONFIG
    problem = pipeline.Problem(5 * config.tile_m, config.tile_n, config.tile_k, config.cluster)
    trace = pipeline.Run(module, "sm_100a", BF16, config).trace
    programs = of_cluster(trace, host_arguments(module, config, problem), cluster)
    asked = [e for e in programs.warps[0, module.ASKING_WARP] if e.what == "load" and e.bytes == ANSWER_BYTES]
    assert len(asked) == 5 - cluster
    assert all(len(e.barriers) == config.cluster for e in asked)  # each CTA gets every answer
    stored = [sum(e.what == "store" for e in programs.warps[cta, 0]) for cta in range(config.cluster)]
    assert stored == [(5 - cluster) * config.tile_n // config.epi_n] * config.cluster
    assert not any(e.what == "load" for e in programs.warps[1, module.ASKING_WARP])


def test_more_pairs_than_one():
    module = catalog.load(NAME)
    for changes in ({"pairs_m": 2}, {"pairs_n": 2, "answers": 2}):
        assert not explored(module, dataclasses.replace(module.CONFIG, **changes))


FAULTS = [
    (
        "the second CTA's readers are forgotten",
        In("make_answers").replace(
            "_config.cluster * _every_cta + _config.cluster // PAIR * _every_pair", "_every_cta + _every_pair"
        ),
    ),
    (
        "the asking warp is forgotten",
        In("make_answers").replace(
            "_config.cluster * _every_cta + _config.cluster // PAIR * _every_pair + 1",
            "_config.cluster * _every_cta + _config.cluster // PAIR * _every_pair",
        ),
    ),
    (
        "warps of the CTAs that do not multiply are counted",
        In("make_answers").replace(
            "_config.cluster * _every_cta + _config.cluster // PAIR * _every_pair",
            "_config.cluster * (_every_cta + _every_pair)",
        ),
    ),
    ("an answer is given back before it is there", In("next_block").drop("_asked.consumer_wait(_read)")),
    ("an answer is not given back", In("next_block").drop("_asked.consumer_release(_read)")),
    ("an answer is asked for over one that is read", In("ask").drop("_asked.producer_acquire(_write)")),
    ("half of an answer is expected", In().replace("ANSWER_BYTES = 16", "ANSWER_BYTES = 8")),
    ("the asking warp leaves at once", In("ask").drop("_asked.producer_tail(_write)")),
    (
        "every CTA asks",
        In("kernel")
        .where("_work, _ = work_of_cta(...)")
        .replace("cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) == 0", "_work.tiles > 0"),
    ),
]


SUITES = [Suite(("pipeline",), [Mutation(NAME, *fault) for fault in FAULTS])]


@pytest.mark.parametrize("fault", SUITES[0].faults, ids=str)
def test_planted_pipeline_fault_is_found(fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, SUITES[0], tmp_path)
