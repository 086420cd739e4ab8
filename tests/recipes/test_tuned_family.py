"""Members of the tuned GEMM's family that no page speaks of: multiples of 8 rows, clusters both ways, long queues."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import planted
import pytest
from edits import In
from mutations import Mutation, mutant

from cookbook.check import compiled, layout, pipeline
from cookbook.check import product as followed
from cookbook.recipe import catalog

cutlass = pytest.importorskip("cutlass")

NAME = "hopper/tuned_gemm"
# tile_m, tile_n, pingpong, swap_ab, cluster_m, cluster_n
QUICK = [(64, 72, True, True, 2, 2), (256, 72, False, True, 1, 2), (64, 64, True, False, 2, 1)]
SLOW = [
    (64, 72, True, True, 4, 2),
    (64, 80, True, True, 1, 2),
    (64, 96, True, False, 2, 2),
    (64, 112, True, False, 1, 1),
    (128, 88, True, True, 2, 2),
    (128, 104, False, True, 2, 1),
    (128, 128, True, False, 2, 2),
    (256, 136, False, True, 2, 2),
]
MEMBERS = [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)]
BOTH_WAYS = QUICK[0]


def config_of(member: tuple) -> Any:
    return catalog.load(NAME).sized(*member)


def run_of(module: Any, config: Any) -> pipeline.Run:
    return planted.run_of(module, catalog.find(NAME), "sm_90a", config)


@cache
def compiled_of(member: tuple) -> compiled.Compiled:
    try:
        return compiled.compile_recipe(NAME, "sm_90a", "bfloat16", config=config_of(member))
    except compiled.NoDisassembler as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_a_member_passes_layout_product_and_pipeline(member):
    config, module = config_of(member), catalog.load(NAME)
    assert [finding for finding in layout.check_layouts(module, cutlass.BFloat16, config) if not finding.ok] == []
    run = run_of(module, config)
    for found in (followed.computed(run), pipeline.explored(run)):
        assert len(found) >= 3 and [fault for each in found for fault in each.faults] == []


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_a_member_compiles_without_spills(member):
    """stmatrix of four matrices, or of two where columns are no multiple of 16; multicast of what CTAs share."""
    config, made = config_of(member), compiled_of(member)
    assert [finding for finding in compiled.findings(made) if not finding.ok] == []
    matrices = {"2" if config.epi_n % 16 else "4"}
    assert set(re.findall(r"STSM\.16\.\w+\.(\d)", made.sass)) == matrices
    shared = (config.cluster_m > 1) + (config.cluster_n > 1)
    assert made.count("UTMALDG.2D.MULTICAST") == shared * made.count("UTMALDG.2D") // 2


FAULTS = [  # of a cluster of 2 x 2: what is wrong, the edit, the level that is asked, and its rule
    (
        "both operands go to every CTA",
        In("kernel").replace("multicast_masks(_rank, _config)", "2 * (cutlass.Int16((1 << _config.cluster) - 1),)"),
        "pipeline",
        "race",
    ),
    (
        "A goes along the column, B along the row",
        In("kernel").replace("multicast_masks(_rank, _config)", "multicast_masks(_rank, _config)[::-1]"),
        "product",
        "got a sum with what nothing has written in it",
    ),
    (
        "the mask of a column begins one CTA further",
        In("multicast_masks").replace("_rank[1] * _config.cluster_m", "_rank[1]"),
        "pipeline",
        "race",
    ),
    (
        "every CTA of the cluster is waited for",
        In("make_pipeline").replace("_config.cluster_m + _config.cluster_n - 1", "_config.cluster"),
        "pipeline",
        "deadlock",
    ),
    (
        "those of the row alone are waited for",
        In("make_pipeline").replace("_config.cluster_m + _config.cluster_n - 1", "_config.cluster_n"),
        "pipeline",
        "race",
    ),
]


@pytest.mark.parametrize(("what", "edit", "level", "rule"), FAULTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_fault_of_clusters_both_ways_is_caught(tmp_path, what, edit, level, rule):
    module = mutant(Mutation(NAME, what, edit), tmp_path)
    run = run_of(module, module.sized(*BOTH_WAYS))
    found = (pipeline.explored if level == "pipeline" else followed.computed)(run)
    faults = [fault for each in found for fault in each.faults]
    assert faults and rule in faults[0].splitlines()[0], faults


def test_long_queues_are_of_tiles_64_rows_high():
    """As many as fit, up to 12; the others have 8 at most, and the epilogue is the one of 8 stages."""
    stages = {member: config_of(member).stages for member in (*QUICK, *SLOW)}
    assert [stages[member] for member in SLOW[:4]] == [12, 11, 10, 10] and stages[QUICK[0]] == stages[QUICK[2]] == 12
    assert max(stages[member] for member in stages if member[0] > 64) <= 8
    for member in stages:
        config = config_of(member)
        if 8 < config.stages < 12:
            assert config.smem_bytes <= 227 * 1024 < config.smem_bytes + config.stage_bytes


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tile_n": 72, "epi_n": 72}, "epi_n: got 72; needed a width of stmatrix and of a box"),
        ({"tile_n": 136, "epi_n": 8}, "epi_n: got 8; needed a width of stmatrix and of a box"),
        ({"tile_n": 72}, "tile_n: got 72; needed a multiple of epi_n, 64, up to 256"),
        ({"tile_n": 76, "epi_n": 76, "swap_ab": True, "overlapped": 0}, "epi_n: got 76; needed a width of stmatrix"),
        ({"cluster_m": 4, "cluster_n": 4}, "cluster_m x cluster_n: got 4 x 4; needed at most 8 CTAs"),
    ],
)
def test_what_is_no_member(fields, said):
    """Multiples of 8 are of swapped tiles alone: an unswapped subtile is a box of 32, 64 or 128 bytes."""
    with pytest.raises(ValueError, match=re.escape(said)):
        replace(catalog.load(NAME).VARIANTS["128x192 pingpong"], **{"epi_stages": 1, **fields})


@pytest.mark.parametrize("name", ["hopper/fp8_gemm", "hopper/fused_epilogue_gemm", "hopper/swiglu_gemm"])
def test_clusters_both_ways_are_the_tuned_gemms_alone(name):
    with pytest.raises(ValueError, match="cluster_m x cluster_n: got 2 x 2; needed 1 in one of them"):
        replace(catalog.load(name).CONFIG, cluster_m=2, cluster_n=2)
