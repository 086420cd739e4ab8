"""Serpentine K: the study's model of L2, its waves and its order of K next to the kernels' own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import plain

pytest.importorskip("cutlass")

from cookbook.measure import records
from cookbook.recipe import catalog

NAME, PERSISTENT, TUNED = "foundations/serpentine", "hopper/persistent_gemm", "hopper/tuned_gemm"
SMS = 132
PAGE = catalog.load(NAME)


def oldest_dropped(lines, room: int) -> list[bool]:
    """Whether each line of one byte is held: fewer than `room` others were used since it was used last."""
    found = []
    for i, line in enumerate(lines):
        before = [j for j in range(i) if lines[j] == line]
        found.append(bool(before) and len(set(lines[before[-1] + 1 : i])) < room)
    return found


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 9))
def test_a_line_is_found_if_few_others_were_used_since(numbers, room):
    lines = [("A", 0, number, 1) for number in numbers]
    assert PAGE.hits(lines, room) == oldest_dropped(lines, room)


@given(st.integers(1, 40), st.integers(1, 12))
def test_serpentine_never_finds_less_of_one_panel(k_tiles, room):
    found = [
        sum(PAGE.hits([("A", 0, k, 1) for i in range(4) for k in PAGE.k_order(i, k_tiles, order)], room))
        for order in (False, True)
    ]
    assert found[1] == 3 * min(k_tiles, room) and found[0] == (3 * k_tiles if k_tiles <= room else 0)


# --- the kernels' own -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serpentine", [False, True])
@pytest.mark.parametrize("k_tiles", [1, 2, 7])
def test_the_producer_loads_k_tiles_in_the_studys_order(k_tiles, serpentine):
    load_tile, taken = plain(PERSISTENT, "load_tile"), []
    load_tile.__globals__["cutlass"].range = lambda count, unroll: range(count)
    load_tile.__globals__["cute"].copy = lambda atom, source, *_, **__: taken.append(source)

    class Tiles:  # of an operand: indexed by a tile it is itself, by a k-tile that k-tile
        def __getitem__(self, at):
            return self if len(at) == 3 else at[1]

    state = SimpleNamespace(index=0, advance=lambda: None)
    pipe = SimpleNamespace(producer_acquire=lambda state: None, producer_get_barrier=lambda state: None)
    load = SimpleNamespace(gX=Tiles(), sX=Tiles(), atom=None, multicast={})
    for iteration in range(4):
        taken.clear()
        load_tile(pipe, (load, load), state, (0, 0), k_tiles, iteration, SimpleNamespace(serpentine=serpentine))
        assert taken[::2] == taken[1::2] == list(PAGE.k_order(iteration, k_tiles, serpentine))


@pytest.mark.parametrize("grid", [(64, 32), (10, 6), (34, 3)])
def test_waves_are_those_of_the_persistent_gemm(grid):
    place_of, config = plain(PERSISTENT, "place_of"), catalog.load(PERSISTENT).CONFIG
    cluster = (config.cluster_m, config.cluster_n)
    down, across = (-(-tiles // each) for tiles, each in zip(grid, cluster, strict=True))
    places = [
        place_of(number, down, across, (i, j), config)
        for number in range(down * across)
        for i in range(cluster[0])
        for j in range(cluster[1])
    ]
    waves = [places[i : i + SMS] for i in range(0, len(places), SMS)]
    assert PAGE.waves_of(grid, config.swizzle_size, SMS, cluster) == waves


# --- the claim --------------------------------------------------------------------------------------------------------


def waves_of_tuned(config, m: int, n: int) -> list[list[tuple[int, int]]]:
    """The tiles that a variant's clusters compute at once, by the functions of the kernel."""
    work_tile, rasterize, module = plain(TUNED, "work_tile"), plain(TUNED, "rasterize"), catalog.load(TUNED)
    count = module.clusters(config, m, n, SMS)
    raster = rasterize(*((n, m) if config.swap_ab else (m, n)), count, config)
    ranks = [(i, j) for i in range(config.cluster_m) for j in range(config.cluster_n)]
    schedulers = [module.Scheduler(raster, first, count, None, rank) for first in range(count) for rank in ranks]
    return [
        [work_tile(s, i, config) for s in schedulers if s.first + i * count < raster.tiles]
        for i in range(module.waves(config, m, n, SMS))
    ]


def test_the_model_predicts_within_5_percent_what_kernels_read():
    """The claim, of the eleven variants of the tuned GEMM, at the size of the cache that the page takes."""
    (record,) = records.of_one_gpu(TUNED, records.LIMITS)
    m, n, k = record["shape"]
    off = {}
    for name, config in catalog.load(TUNED).VARIANTS.items():
        assert config.serpentine
        counted = record["figures"]["variants"][name]["dram_read_bytes"]
        given_to = waves_of_tuned(config, m, n), (config.tile_m, config.tile_n), -(-k // PAGE.TILE_K)
        read = {order: PAGE.bytes_read(*given_to, 37e6, order) for order in (False, True)}
        off[name] = abs(read[True] / counted - 1)
        assert read[False] > 1.02 * counted or name == "128x64 pingpong"
    assert len(off) == 11 and sum(each < 0.05 for each in off.values()) == 10


def test_forwards_each_wave_reads_what_it_needs():
    """As counted of the kernel of the thread-block swizzle, whose tiles all go along K forwards."""
    (record,) = records.of_one_gpu("foundations/thread_block_swizzle", "counted")
    for group in (8, 16, 32):
        read = PAGE.bytes_read(PAGE.waves_of((64, 32), group), PAGE.TILE, 128, 37e6, False)
        assert read == pytest.approx(record["figures"][f"groups of {group}"]["read_bytes"], rel=0.01)
