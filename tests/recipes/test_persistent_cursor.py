"""ampere/persistent_gemm: its cursor, run on the host as it is, asks for every k-tile of every tile, once."""

from __future__ import annotations

import random

import cutlass
import numpy as np
import pytest
from cursor import asked_for

from cookbook import access
from cookbook.layouts import evaluate
from cookbook.recipe import catalog

NAME = "ampere/persistent_gemm"
MODULE = catalog.load(NAME)
CONFIGS = {arch: MODULE.config_for(arch) for arch in ("sm_80", "sm_89", "sm_90a")}
# One tile and many; K of less than a k-tile, of fewer k-tiles than stages, ragged, and long.
SHAPES = [
    (1, 1, 8),
    (128, 256, 64),
    (300, 600, 200),
    (1000, 777, 72),
    (129, 2600, 8),
    (2500, 100, 520),
    (128, 256, 4096),
]


def tiles_in_order(config, m: int, n: int) -> list[tuple[int, int]]:
    """The tiles as they are numbered, made by going through them: column by column in groups of rows of tiles."""
    down, across = -(-m // config.tile_m), -(-n // config.tile_n)
    groups = range(0, down, config.swizzle_size)
    return [
        (row, column)
        for g in groups
        for column in range(across)
        for row in range(g, min(g + config.swizzle_size, down))
    ]


def expected(config, shape, cta: int, ctas: int, thread: int, steps: int):
    """What a thread should ask for: (tile, row of A, row of B, place along K, pieces of A, of B that exist)."""
    m, n, depth = shape
    across, ahead = config.tile_k // 8, config.stages - 1
    apart, first = config.threads // across, thread // across
    k_tiles = max(-(-depth // config.tile_k), ahead)
    tiles = tiles_in_order(config, m, n)
    number = cta
    while steps > 0:
        row, column = tiles[min(number, len(tiles) - 1)]
        for k_tile in range(min(k_tiles, steps)):
            k = depth - (k_tiles - k_tile) * config.tile_k + 8 * (thread % across)
            r_a, r_b = row * config.tile_m + first, column * config.tile_n + first
            exists = number < len(tiles) and k >= 0
            yield (
                number,
                (r_a, k),
                (r_b, k),
                tuple(exists and r_a + i * apart < m for i in range(config.tile_m // apart)),
                tuple(exists and r_b + i * apart < n for i in range(config.tile_n // apart)),
            )
        steps, number = steps - k_tiles, number + ctas


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("arch", CONFIGS)
def test_every_thread_asks_for_its_ctas_tiles_then_for_nothing(arch, shape):
    config, draw = CONFIGS[arch], random.Random(str((arch, shape)))
    for ctas, cta in ((1, 0), (3, 2), (5, 0)):
        threads = [0, config.threads - 1, draw.randrange(config.threads)]
        steps = 3 * max(-(-shape[2] // config.tile_k), config.stages) + 2
        found = asked_for(MODULE, cutlass.BFloat16, config, shape, cta, ctas, threads, steps)
        for thread, (asked, _) in zip(threads, found, strict=True):
            assert [tuple(one) for one in asked] == list(expected(config, shape, cta, ctas, thread, steps))


@pytest.mark.parametrize("arch", CONFIGS)
def test_all_threads_together_copy_each_element_of_a_and_b_once(arch):
    config, shape, ctas = CONFIGS[arch], (300, 300, 104), 2
    down, across = -(-shape[0] // config.tile_m), -(-shape[1] // config.tile_n)
    k_tiles = max(-(-shape[2] // config.tile_k), config.stages - 1)
    a, b = np.zeros((shape[0], shape[2]), int), np.zeros((shape[1], shape[2]), int)
    for cta in range(ctas):
        steps = k_tiles * -(-(down * across - cta) // ctas) + config.stages - 1  # a CTA asks so far beyond its end
        everyone = range(config.threads)
        for asked, _ in asked_for(MODULE, cutlass.BFloat16, config, shape, cta, ctas, everyone, steps):
            for one in asked:
                apart = config.threads // (config.tile_k // 8)
                for matrix, (row, k), inside in ((a, one.a, one.inside_a), (b, one.b, one.inside_b)):
                    for i in np.flatnonzero(inside):
                        matrix[row + i * apart, k : k + 8] += 1
    assert (a == across).all() and (b == down).all()  # each tile of C takes its rows and columns once


@pytest.mark.parametrize("arch", CONFIGS)
def test_a_piece_goes_where_the_tiled_copy_would_put_it(arch):
    """`load` steps from a thread's first piece by whole periods of the swizzle: these are the layout's addresses."""
    config = CONFIGS[arch]
    layouts, copies = (evaluate(make, cutlass.BFloat16, config) for make in (MODULE.smem_layouts, MODULE.tiled_copies))
    found = asked_for(MODULE, cutlass.BFloat16, config, (128, 256, 64), 0, 1, range(config.threads), 1)
    for thread, (_, targets) in enumerate(found):
        for target, layout, copy in ((targets[0], layouts.a, copies.g2s_a), (targets[1], layouts.b, copies.g2s_b)):
            rows = layout.outer.sizes[0]
            stage_bytes, pieces = 2 * rows * config.tile_k, rows // (config.threads // (config.tile_k // 8))
            for stage in range(config.stages):
                places = access.copy_addresses(layout, copy, "dst", stage)[:, thread]
                stepped = [target + stage * stage_bytes + i * (stage_bytes // pieces) for i in range(pieces)]
                assert places.tolist() == stepped
