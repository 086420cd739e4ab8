"""Which tile a cluster of hopper/tuned_gemm computes, where it runs, and that nothing but time depends on the guess."""

from __future__ import annotations

import dataclasses
import re
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import plain

pytest.importorskip("cutlass")
pytest.importorskip("torch")

from cookbook.check import compiled, pipeline
from cookbook.check.pipeline.programs import host_arguments, of_cluster
from cookbook.recipe import catalog, remapping

STUDY = "foundations/gpc_remapping"
NAMES = ["hopper/tuned_gemm", "hopper/majors_gemm", "hopper/fp8_gemm"]
TUNED = NAMES[0]
LONG, SHORT = (8192, 8192, 8192), (2048, 2048, 512)


# --- which numbers the clusters get -----------------------------------------------------------------------------------


@given(st.lists(st.sets(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=30))
def test_sms_are_of_one_gpc_if_a_chain_of_clusters_links_them(seen):
    gpc = catalog.load(STUDY).gpcs_of_sms([sorted(cluster) for cluster in seen])
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
def test_the_remapping_permutes_and_full_groups_are_of_one_gpc(gpcs, together):
    numbers = catalog.load(STUDY).remapping(tuple(gpcs), together)
    assert sorted(numbers) == list(range(len(gpcs)))
    in_order = [gpcs[numbers.index(number)] for number in range(len(gpcs))]
    full = sum(gpcs.count(gpc) // together for gpc in set(gpcs))
    for first in range(0, full * together, together):
        assert len(set(in_order[first : first + together])) == 1


@pytest.mark.parametrize("name", NAMES)
def test_gemms_know_the_order_and_the_remapping_of_the_study(name):
    study, module = catalog.load(STUDY), catalog.load(name)
    assert type(module.CALIBRATION)().gpcs == study.H200
    for count, together in ((66, 8), (60, 8), (64, 3)):
        gpcs = study.H200[:count]
        assert remapping.remapping(gpcs, together) == study.remapping(gpcs, together)


def test_the_remapping_halves_what_the_gpcs_of_an_h200_ask_for():
    """Where each group of eight needs other columns of B: how often one GPC asks for those of one group."""
    study = catalog.load(STUDY)

    def asked(numbers, gpcs):
        return len({(gpc, number // 8) for gpc, number in zip(gpcs, numbers, strict=True)})

    for count in (60, 64, 66):
        gpcs = study.H200[:count]
        rest = sum(gpcs.count(gpc) % 8 for gpc in set(gpcs))
        mapped = asked(study.remapping(gpcs, 8), gpcs)
        assert mapped <= count // 8 + rest  # once for each full group; at worst once for each other cluster
        assert mapped < 0.4 * asked(range(count), gpcs)


def test_the_study_places_cluster_tiles_as_the_gemm_does():
    study, module = catalog.load(STUDY), catalog.load(TUNED)
    work_tile, rasterize, config = plain(TUNED, "work_tile"), plain(TUNED, "rasterize"), module.CONFIG
    wave = study.WAVE
    assert (wave.tile_m, wave.tile_n, wave.together) == (config.tile_m, 2 * config.tile_n, config.swizzle_size)
    raster = rasterize(wave.down * wave.tile_m, wave.across * wave.tile_n, wave.count, config)
    for number in range(wave.count):
        m, n = work_tile(module.Scheduler(raster, number, wave.count, None, (0, 0)), 0, config)
        assert wave.place(number) == (m, n // 2)


# --- which tile has which number --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(2048, 2048), (3000, 3000), (1, 1), (16384, 33), (33, 16384), (8191, 8191)])
def test_every_tile_is_computed_once(size):
    work_tile, rasterize, module = plain(TUNED, "work_tile"), plain(TUNED, "rasterize"), catalog.load(TUNED)
    waves = catalog.load("hopper/tile_heuristics").waves
    for config in module.VARIANTS.values():
        down, across = module.cluster_tiles(config, *size)
        count = module.clusters(config, *size, 132)
        assert count <= 66 and -(-down * across // count) == waves(config, *size, 132) == -(-down * across // 66)
        raster = rasterize(*(size[::-1] if config.swap_ab else size), count, config)
        assert (raster.tiles, raster.by_step) == (down * across, count)
        ranks = [(m, n) for m in range(config.cluster_m) for n in range(config.cluster_n)]
        found = [
            work_tile(module.Scheduler(raster, first, count, None, rank), i, config)
            for first in range(count)
            for i in range(-(-(down * across - first) // count))
            for rank in ranks
        ]
        whole = {(m, n) for m in range(down * config.cluster_m) for n in range(across * config.cluster_n)}
        assert len(found) == len(set(found)) and set(found) == whole


def test_groups_of_cluster_tiles_need_the_same_unshared_operand():
    work_tile, rasterize, module = plain(TUNED, "work_tile"), plain(TUNED, "rasterize"), catalog.load(TUNED)
    for config in module.VARIANTS.values():
        size = (16 * config.tile_m * config.cluster_m, 32 * config.tile_n * config.cluster_n)
        raster = rasterize(*size, 66, config)
        for group in range(6):
            schedulers = [module.Scheduler(raster, 8 * group + i, 66, None, (0, 0)) for i in range(8)]
            tiles = [work_tile(scheduler, 0, config) for scheduler in schedulers]
            own, shared = ({tile[mode] for tile in tiles} for mode in ((1, 0) if config.cluster_n == 2 else (0, 1)))
            assert len(own) == 1 and len(shared) == 8


# --- which kernels have a table ---------------------------------------------------------------------------------------


class Made(Exception):
    """A table is about to be made."""


@pytest.fixture(params=NAMES)
def recipe(request, monkeypatch):
    """A recipe that has no table yet, outside of a capture; making one raises Made."""
    module = catalog.load(request.param)

    def made(*_):
        raise Made

    monkeypatch.setattr(remapping, "REMAPS", {})
    monkeypatch.setattr(module, "CALIBRATION", type(module.CALIBRATION)())
    monkeypatch.setattr(module.torch.cuda, "Stream", made)
    monkeypatch.setattr(module.torch.cuda, "is_current_stream_capturing", lambda: False)
    return module


def table_of(recipe, count, mnk, sms=132, **changes):
    """What the recipe passes on as the address of the table."""
    config = dataclasses.replace(recipe.CONFIG, **changes)
    return recipe.remap_of(types.SimpleNamespace(mnk=mnk, sms=sms, device=0), config, count, recipe.CALIBRATION)


def test_many_clusters_and_a_long_product_have_a_table(recipe):
    with pytest.raises(Made):
        table_of(recipe, 66, LONG)


def test_few_and_short_products_and_other_clusters_have_none(recipe):
    assert table_of(recipe, 4, (512, 512, 8192)) == 0
    assert table_of(recipe, 64, SHORT) == 0
    assert table_of(recipe, 66, LONG, cluster_m=1, cluster_n=1) == 0


def test_an_unknown_chip_and_a_capture_have_none(recipe, monkeypatch):
    assert table_of(recipe, 57, LONG, sms=114) == 0  # as many SMs as no known order has
    with monkeypatch.context() as patch:
        patch.setattr(recipe.torch.cuda, "is_current_stream_capturing", lambda: True)
        assert table_of(recipe, 66, LONG) == 0
    recipe.calibrate(gpcs=())
    assert table_of(recipe, 66, LONG) == 0


def test_calibrate_replaces_figures_and_forgets_old_plans(recipe, monkeypatch):
    monkeypatch.setattr(recipe.GEMM, "plans", {"kind": "plan"})
    assert recipe.calibrate(gpcs=[3, 5, 3]).gpcs == [3, 5, 3] and recipe.GEMM.plans == {}
    if hasattr(recipe, "cost"):
        before = recipe.cost(recipe.CONFIG, *LONG, 132)
        assert recipe.calibrate(load_cost=1).load_cost == 1
        assert recipe.cost(recipe.CONFIG, *LONG, 132) < before


def test_a_figure_that_cannot_be_is_refused_and_changes_nothing(recipe):
    before = recipe.CALIBRATION
    with pytest.raises(TypeError, match="lode_cost"):
        recipe.calibrate(lode_cost=1)
    for wrong in (0, -1, float("nan"), float("inf")) if hasattr(recipe, "cost") else ():
        with pytest.raises(ValueError, match=f"^load_rate: got {wrong}; needed a finite number above 0$"):
            recipe.calibrate(load_rate=wrong)
    assert recipe.CALIBRATION is before


@pytest.mark.parametrize("name", NAMES)
def test_only_kernels_without_a_table_let_the_next_one_in(name):
    """And nothing but the table, which no kernel writes, is read before the previous kernel has ended."""
    module, access = catalog.load(name), re.compile(r"\b(cp\.async\.bulk\.tensor|ld\.global|st\.global)")
    configs = [dataclasses.replace(module.CONFIG, gpc_aware=gpc_aware) for gpc_aware in (True, False)]
    for config, each in zip(
        configs, compiled.compile_modules(catalog.load(name), name, "sm_90a", "bfloat16", configs), strict=True
    ):
        waits = [found.start() for found in re.finditer(r"griddepcontrol\.wait", each.ptx)]
        early = [found[1] for found in access.finditer(each.ptx) if found.start() < min(waits)]
        assert early == ["ld.global"] * config.gpc_aware
        assert each.ptx.count("griddepcontrol.launch_dependents") == (not config.gpc_aware)


@pytest.mark.parametrize("variant", ["128x256", "128x64 pingpong"])
def test_no_order_of_the_warps_is_wrong_without_a_table_either(variant):
    module = catalog.load(TUNED)
    config = dataclasses.replace(module.VARIANTS[variant], gpc_aware=False)
    run = pipeline.Run(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), config)
    explored = pipeline.explore(run, run.problems[0])
    assert explored and not [fault for one in explored for fault in one.faults]


def test_the_explorer_follows_the_table():
    """Of five cluster tiles two clusters compute three and two; which of them, the table says."""
    module = catalog.load(TUNED)
    config = module.VARIANTS["128x256"]
    trace = pipeline.Run(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), config).trace
    problem = pipeline.Problem(5 * 128, 512, 6 * 64, 4)
    arguments = host_arguments(module, config, problem)
    identity = (0, 1, 2, 3)
    assert arguments.count(identity) == 1

    def steps(table, cluster):
        given = [table if x == identity else x for x in arguments]
        return {warp: len(events) for warp, events in of_cluster(trace, given, cluster).warps.items()}

    first, second = steps(identity, 0), steps(identity, 1)
    assert all(first[0, warp] > second[0, warp] for warp in range(9))  # those who multiply, and who loads
    assert steps((1, 0, 2, 3), 0) == second and steps((1, 0, 2, 3), 1) == first
