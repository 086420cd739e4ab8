"""The order of tiles: what a wave touches, and that the GEMMs number their tiles so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cookbook.layouts import evaluate
from cookbook.recipe import catalog

PAGE = catalog.load("foundations/thread_block_swizzle")
GEMMS = ("hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm")


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("row by row", 8816),
        ("groups of 8", 5696),
        ("groups of 16", 4672),
        ("groups of 32", 5600),
        ("Hilbert", 5248),
    ],
)
def test_rows_and_columns_touched_per_wave(name: str, mean: int) -> None:
    tiles = np.array(PAGE.orders[name])
    assert len(np.unique(tiles, axis=0)) == 64 * 32
    touched = [
        128 * len(np.unique(tiles[i : i + 132, 0])) + 256 * len(np.unique(tiles[i : i + 132, 1]))
        for i in range(0, 2048, 132)
    ]
    assert len(touched) == 16 and np.mean(touched) == mean


def test_a_hilbert_curve_steps_to_a_neighbour() -> None:
    hilbert = PAGE.hilbert
    curve = np.array([hilbert(step, 64) for step in range(64 * 64)])
    assert len(np.unique(curve, axis=0)) == 64 * 64
    assert (np.abs(np.diff(curve, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("gemm", GEMMS)
@pytest.mark.parametrize(("grid", "group"), [((64, 32), 16), ((10, 6), 8), ((7, 3), 16), ((1, 5), 4)])
def test_the_gemms_number_their_tiles_so(gemm: str, grid, group, monkeypatch) -> None:
    from cutlass import cute

    module = catalog.load(gemm)
    config = dataclasses.replace(module.CONFIG, swizzle_size=group)
    shape = (grid[0] * config.tile_m, grid[1] * config.tile_n)
    ctas = range(0, grid[0] * grid[1], max(1, grid[0] * grid[1] // 40))

    def tiles():
        found = []
        for cta in ctas:
            monkeypatch.setattr(cute.arch, "block_idx", lambda cta=cta: (cta, 0, 0))
            found.append(module.tile_of_cta(shape, config))
        return found

    assert evaluate(tiles) == [PAGE.in_groups(cta, group, grid) for cta in ctas]


def test_a_last_group_that_is_lower() -> None:
    assert PAGE.missed(lambda cta: PAGE.in_groups(cta, 8, (10, 6)), (10, 6)) == 0
    assert PAGE.missed(lambda cta: PAGE.without_min(cta, 8, (10, 6)), (10, 6)) == 8
    with pytest.raises(ValueError, match="group: got 8"):
        PAGE.ask_cute(PAGE.raster, 8, (10, 6))
