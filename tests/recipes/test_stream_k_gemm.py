"""Stream-K: who has which k-tiles, who adds up what, and faults in what CTAs tell one another."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

cutlass = pytest.importorskip("cutlass")
pytest.importorskip("torch")

from edits import In  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite, check_caught  # noqa: E402

from cookbook.check import pipeline, product  # noqa: E402
from cookbook.layouts import evaluate  # noqa: E402
from cookbook.recipe import catalog, majors  # noqa: E402

NAME = "hopper/stream_k_gemm"
RECIPE = catalog.load(NAME)
SMALL = RECIPE.VARIANTS["128x128"]
SHAPES = [(512, 512, 16384), (256, 4096, 4096), (2304, 2304, 2304), (128, 128, 1 << 16), (1, 1, 1), (5000, 3000, 520)]


def segments(m: int, n: int, k: int, sms: int, config=SMALL):
    """The schedule, and (cluster, number, segment) of all clusters."""
    count = RECIPE.clusters(config, m, n, k, sms)
    schedule = RECIPE.schedule_of(m, n, k, count, RECIPE.parts(config, m, n, k, sms), config)
    return schedule, [
        (cluster, i, RECIPE.segment_of(cluster, i, schedule))
        for cluster in range(count)
        for i in range(RECIPE.segments_of(cluster, schedule))
    ]


@pytest.mark.parametrize("variant", RECIPE.VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sms", [2, 7, 132])
def test_every_k_tile_is_multiplied_once_by_even_clusters(shape, sms, variant):
    schedule, found = segments(*shape, sms, RECIPE.VARIANTS[variant])
    k_tiles, of = [(s.tile, k) for _, _, s in found for k in range(s.first_k, s.first_k + s.k_tiles)], defaultdict(int)
    assert len(set(k_tiles)) == len(k_tiles) == schedule.down * schedule.across * schedule.k_tiles
    for cluster, _, segment in found:
        assert segment.k_tiles > 0
        of[cluster] += segment.k_tiles
    assert len(of) == schedule.clusters  # none is launched for nothing
    least = schedule.waves * schedule.k_tiles + schedule.each
    assert set(of.values()) <= {least, least + 1, schedule.waves * schedule.k_tiles}
    if RECIPE.VARIANTS[variant].even and schedule.parts == schedule.clusters:
        assert max(of.values()) - min(of.values()) <= 1


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sms", [2, 7, 132])
def test_sharers_agree_and_only_a_last_segment_waits_for_others(shape, sms, even):
    _, found = segments(*shape, sms, replace(SMALL, even=even))
    last = {cluster: i for cluster, i, _ in found}
    tiles, ends = defaultdict(list), set()
    for cluster, i, segment in found:
        tiles[segment.tile].append(segment)
        assert cluster == segment.first + segment.rank
        adds = segment.rank < segment.adders
        if segment.sharers > 1:  # it writes partial sums, or waits for those of others
            assert (i == last[cluster]) == adds
            assert (cluster, adds) not in ends  # one place for each end of a part of the line
            ends.add((cluster, adds))
    for sharers in tiles.values():
        assert sorted(s.rank for s in sharers) == list(range(sharers[0].sharers))
        assert len({(s.first, s.sharers, s.adders) for s in sharers}) == 1
        assert 1 <= sharers[0].adders <= sharers[0].sharers <= 32  # a lane of one warp waits for each


def test_the_schedules_page_finds_a_wrong_schedule(monkeypatch):
    page = catalog.load("hopper/stream_k_schedule")
    begin_of, segment_of = page.begin_of, page.segment_of
    shape = (page.Tiling(even=True), 512, 512, 16384, 7)
    assert page.problems(*shape) == []
    monkeypatch.setattr(page, "begin_of", lambda cluster, s: cutlass.min(cluster, s.parts) * s.each)
    assert "a k-tile is not multiplied once" in page.problems(*shape)
    monkeypatch.setattr(page, "begin_of", begin_of)
    monkeypatch.setattr(page, "segment_of", lambda *given: (s := segment_of(*given))._replace(adders=s.sharers))
    assert page.problems(*shape) == ["a cluster adds up before its last segment"]


@pytest.mark.parametrize("adders", range(1, 18))
def test_every_subtile_has_one_adder(adders):
    for config in RECIPE.VARIANTS.values():
        own = [i % adders for i in range(config.warpgroups * config.subtiles)]
        assert adders > len(own) or set(own) == set(range(adders))


def test_partial_sums_fill_the_memory_that_a_launch_asks_for():
    for config in RECIPE.VARIANTS.values():
        layout = evaluate(RECIPE.partial_sums, config, 3)
        assert layout.size == len(set(layout.table().ravel())) == 2 * 3 * config.cluster * config.tile_m * config.tile_n
        assert layout.table().max() == layout.size - 1


def test_many_share_a_tile_and_the_product_is_right():
    config = majors.configured(replace(SMALL, even=True), "nt")
    run = pipeline.Run(RECIPE, "sm_90a", cutlass.BFloat16, config)
    for problem in (product.Problem(128, 128, 20 * 64, 7), product.Problem(200, 136, 11 * 64, 5)):
        found = product.compute(run, product.Case(problem, config))
        assert found.ok and found.stores == problem.m * problem.n, found.faults


# What is planted: in what CTAs tell one another, and when.
EVEN = "128x128, even"
FAULTS = [
    ("a flag is released before all have written", In("finish").drop("_barrier.arrive_and_wait()", before="if _: ...")),
    ("a flag is waited for too low", In("wait_for_others").replace("_base + 1", "_base"), EVEN),
    ("the other threads do not wait", In("finish").drop("_barrier.arrive_and_wait()", before="add_others(...)")),
    ("nothing waits for the others", In("finish").drop("wait_for_others(...)")),
    ("the last segment is not released", In("finish").replace("_is_last or _end == 0", "_end == 0")),
    ("the kernel before may still write", In("consume").drop("cute.arch.griddepcontrol_wait()")),
    ("all clusters use one place for partial sums",
     In("finish").replace("_.partials[None, None, _thread, None, _group, _end, _cta, _cluster]",
      "_.partials[None, None, _thread, None, _group, _end, _cta, 0]")),
    ("one flag for both warpgroups",
     In("finish").replace("_x.iterator + _group", "_x.iterator")
     + In("wait_for_others").replace("_x.iterator + _.warpgroup", "_x.iterator")),
    ("one of the others is left out",
     In("add_others").replace("_start + _j < _segment.sharers - 1", "_start + _j < _segment.sharers - 2")),
    ("the wrong end of a cluster is read",
     In("sharer_of").replace("_sharer >= _segment.adders", "_sharer > _segment.adders"), EVEN),
    ("a subtile is stored that another adds",
     In("store").replace("if _ % _.adders == _.rank: ...", "if True: ...", times=2, nth=1)),
    ("longer parts are not counted",
     In("begin_of").replace("cutlass.min(_cluster, _s.parts) * _s.each + cutlass.min(_cluster, _s.longer)",
      "cutlass.min(_cluster, _s.parts) * _s.each")),
]  # fmt: skip
SUITES = [Suite(("pipeline", "product"), [Mutation(NAME, *fault) for fault in FAULTS])]


@pytest.mark.parametrize("fault", SUITES[0].faults, ids=str)
def test_planted_fault_is_found(fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, SUITES[0], tmp_path)
