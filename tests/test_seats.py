"""Which tile a cluster of hopper/tuned_gemm computes, where it runs, and that nothing but time depends on the guess."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import plain

pytest.importorskip("cutlass")
pytest.importorskip("torch")

from cookbook.harness import catalog, compiling, interleavings
from cookbook.harness.interleavings.programs import of_cluster

NAMES = ["hopper/tuned_gemm", "hopper/majors_gemm"]
TUNED = NAMES[0]
# The GPC of each cluster of two as an H200 deals them out: four pairs of SMs that no larger cluster gets, then to eight
# GPCs in turn, then to the seven that have SMs left, then to the two that still have.
DEALT = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")


# --- who sits where ---------------------------------------------------------------------------------------------------


@given(st.lists(st.sets(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=30))
def test_sms_are_of_one_gpc_if_a_chain_of_clusters_links_them(seen):
    module = catalog.load(TUNED)
    gpc = module.together([sorted(cluster) for cluster in seen])
    assert gpc.keys() == set().union(*seen)

    def reached(sm):
        found, more = set(), {sm}
        while more - found:
            found |= more
            more = {other for cluster in seen if cluster & found for other in cluster}
        return found

    for sm in gpc:
        assert {other for other in gpc if gpc[other] == gpc[sm]} == reached(sm) and gpc[sm] == min(reached(sm))


@given(st.lists(st.integers(0, 8), min_size=1, max_size=70), st.integers(1, 10))
def test_every_cluster_has_a_seat_of_its_own_and_full_rows_are_of_one_gpc(gpcs, row):
    seats = catalog.load(TUNED).seating(tuple(gpcs), row)
    assert sorted(seats) == list(range(len(gpcs)))
    sitting = [gpcs[seats.index(seat)] for seat in range(len(gpcs))]
    full = sum(gpcs.count(gpc) // row for gpc in set(gpcs))
    for first in range(0, full * row, row):
        assert len(set(sitting[first : first + row])) == 1


def panels(gpcs: tuple[str, ...], seats: list[int], row: int) -> int:
    """How often L2 is asked for a panel in the first wave: once by each GPC for each row that it has a cluster in.

    That is where a row is as long as a panel.
    """
    return len({(gpc, seat // row) for gpc, seat in zip(gpcs, seats, strict=True)})


def test_seats_halve_the_panels_that_the_gpcs_of_an_h200_ask_for():
    for count in (60, 64, 66):
        gpcs = DEALT[:count]
        numbers, seats = list(range(count)), catalog.load(TUNED).seating(gpcs, 8)
        rest = sum(gpcs.count(gpc) % 8 for gpc in set(gpcs))
        assert panels(gpcs, seats, 8) <= count // 8 + rest  # a panel for each full row; at worst one for each other
        assert panels(gpcs, seats, 8) < 0.4 * panels(gpcs, numbers, 8)


# --- which tile a seat is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(2048, 2048), (3000, 3000), (1, 1), (16384, 33), (33, 16384), (8191, 8191)])
def test_every_tile_is_computed_once_whoever_sits_where(size):
    work_tile, rasterize, module = plain(TUNED, "work_tile"), plain(TUNED, "rasterize"), catalog.load(TUNED)
    for config in module.VARIANTS.values():
        down, across = module.cluster_tiles(config, *size)
        count = module.clusters(config, *size, 132)
        assert count <= 66 and -(-down * across // count) == module.waves(config, *size, 132) == -(-down * across // 66)
        raster = rasterize(*(size[::-1] if config.swap_ab else size), count, config)
        assert (raster.tiles, raster.by_step) == (down * across, count)
        places = [(m, n) for m in range(config.cluster_m) for n in range(config.cluster_n)]
        found = [
            work_tile(module.Scheduler(raster, first, count, None, place), i, config)
            for first in range(count)
            for i in range(-(-(down * across - first) // count))
            for place in places
        ]
        whole = {(m, n) for m in range(down * config.cluster_m) for n in range(across * config.cluster_n)}
        assert len(found) == len(set(found)) and set(found) == whole


def test_a_row_of_seats_needs_one_panel_of_what_a_cluster_does_not_share():
    work_tile, rasterize, module = plain(TUNED, "work_tile"), plain(TUNED, "rasterize"), catalog.load(TUNED)
    for config in module.VARIANTS.values():
        size = (16 * config.tile_m * config.cluster_m, 32 * config.tile_n * config.cluster_n)
        raster = rasterize(*size, 66, config)
        for row in range(6):
            schedulers = [module.Scheduler(raster, 8 * row + i, 66, None, (0, 0)) for i in range(8)]
            tiles = [work_tile(scheduler, 0, config) for scheduler in schedulers]
            own, shared = ({tile[mode] for tile in tiles} for mode in ((1, 0) if config.cluster_n == 2 else (0, 1)))
            assert len(own) == 1 and len(shared) == 8


# --- who has seats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_few_clusters_and_short_products_have_no_seats_and_a_capture_calls_no_roll(monkeypatch, name):
    module = catalog.load(name)

    def no_roll(device):
        raise AssertionError("the roll is called")

    monkeypatch.setattr(module, "dealt", no_roll)
    config = module.VARIANTS["128x256"]
    assert module.seats_of(0, config, 4, 512, 512, 8192, 132) == 0  # four clusters
    assert module.seats_of(0, config, 64, 2048, 2048, 512, 132) == 0  # soon over
    assert module.seats_of(0, dataclasses.replace(config, cluster_n=1), 66, 8192, 8192, 8192, 132) == 0
    with pytest.raises(AssertionError, match="roll"):
        monkeypatch.setattr(module.torch.cuda, "is_current_stream_capturing", lambda: False)
        module.seats_of(0, config, 66, 8192, 8192, 8192, 132)
    monkeypatch.setattr(module.torch.cuda, "is_current_stream_capturing", lambda: True)
    assert module.seats_of(0, config, 66, 8192, 8192, 8192, 132) == 0


@pytest.mark.parametrize("name", NAMES)
def test_only_kernels_without_seats_let_the_next_one_in(name):
    """And nothing but the table of seats, which nobody writes, is read before the kernel before has ended."""
    module, access = catalog.load(name), re.compile(r"\b(cp\.async\.bulk\.tensor|ld\.global|st\.global)")
    configs = [dataclasses.replace(module.CONFIG, gpc_aware=gpc_aware) for gpc_aware in (True, False)]
    for config, each in zip(configs, compiling.compile_recipes(name, "sm_90a", "bfloat16", configs), strict=True):
        waits = [found.start() for found in re.finditer(r"griddepcontrol\.wait", each.ptx)]
        early = [found[1] for found in access.finditer(each.ptx) if found.start() < min(waits)]
        assert early == ["ld.global"] * config.gpc_aware
        assert each.ptx.count("griddepcontrol.launch_dependents") == (not config.gpc_aware)


@pytest.mark.parametrize("variant", ["128x256", "128x64 in turn"])
def test_no_order_of_the_warps_is_wrong_without_seats_either(variant):
    module = catalog.load(TUNED)
    config = dataclasses.replace(module.VARIANTS[variant], gpc_aware=False)
    trace = interleavings.trace_of(module, "sm_90a", compiling.cutlass_dtype("bfloat16"), config)
    problem = interleavings.problems(config)[0]
    explored = interleavings.explore(module, trace, config, problem)
    assert explored and not [fault for one in explored for fault in one.faults]


def test_the_explorer_follows_a_cluster_to_its_seat():
    """Of five cluster tiles two clusters compute three and two; which of them, their seats say."""
    module = catalog.load(TUNED)
    config = module.VARIANTS["128x256"]
    trace = interleavings.trace_of(module, "sm_90a", compiling.cutlass_dtype("bfloat16"), config)
    problem = interleavings.Problem(5 * 128, 512, 6 * 64, 4)
    arguments = interleavings.host_arguments(module, config, problem)
    numbers = (0, 1, 2, 3)
    assert arguments.count(numbers) == 1

    def steps(seats, cluster):
        given = [seats if x == numbers else x for x in arguments]
        return {warp: len(events) for warp, events in of_cluster(trace, given, cluster).warps.items()}

    first, second = steps(numbers, 0), steps(numbers, 1)
    assert all(first[0, warp] > second[0, warp] for warp in range(9))  # those who multiply, and who loads
    assert steps((1, 0, 2, 3), 0) == second and steps((1, 0, 2, 3), 1) == first
