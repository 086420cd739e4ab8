"""A transpose's moves over shared memory: which bytes each thread touches in each step, and in how many wavefronts.

A move is what the recipe's `moves(config)` returns: `place(thread, step)` gives the (row, column) in the tile.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from cookbook import access, banks
from cookbook.layouts import SmemLayout, evaluate


@lru_cache(maxsize=32)
def layouts(module: ModuleType, dtype: Any, config: Any) -> dict[str, SmemLayout]:
    """The tiles in shared memory by name, as CuTe evaluates them; `dtype` is a cutlass numeric type."""
    return evaluate(module.smem_layouts, dtype, config, element_bits=dtype.width)


def coordinates(move: Any, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """(steps, threads) rows and columns of the first element that each thread touches in each step of a move."""
    thread = np.arange(threads)
    places = [np.broadcast_arrays(*move.place(thread, step), thread)[:2] for step in range(move.steps)]
    rows, columns = (np.stack([place[side] for place in places]) for side in (0, 1))
    return rows, columns


def addresses(layout: SmemLayout, move: Any, threads: int) -> np.ndarray:
    """(steps, threads) byte addresses of a move.

    Raises:
        ValueError: an access whose elements are not adjacent in shared memory: no instruction makes it at once.
    """
    rows, columns = coordinates(move, threads)
    places = layout.byte_offsets()[rows[..., None], columns[..., None] + np.arange(move.width)]
    steps = places - places[..., :1]
    if (steps != np.arange(move.width) * layout.element_bytes).any():
        raise ValueError(f"place: an access of {move.width} elements is not adjacent under {layout.swizzle!r}")
    return places[..., 0]


def accesses(layout: SmemLayout, move: Any, threads: int) -> list[access.Access]:
    """Every access of a warp in a move: the steps of warp 0, then those of warp 1, and so on."""
    by_warp = addresses(layout, move, threads).reshape(move.steps, -1, access.LANES).transpose(1, 0, 2)
    width = move.width * layout.element_bytes
    return [access.ldst(lanes, width) for lanes in by_warp.reshape(-1, access.LANES)]


def move_wavefronts(layout: SmemLayout, move: Any, threads: int) -> Counter[tuple[int, int]]:
    """Return how many instructions of all warps take (actual, ideal) wavefronts in a move."""
    counted = (banks.wavefronts(one.addresses, one.width) for one in accesses(layout, move, threads))
    return Counter((one.actual, one.ideal) for one in counted)


def predicted_wavefronts(module: ModuleType, dtype: Any, config: Any) -> dict[str, int]:
    """Wavefronts of one instruction by move (`{"r2s_x": 1, "s2g_x": 32}`), where all of a move agree."""
    found = layouts(module, dtype, config)
    counts = {n: move_wavefronts(found[m.tile], m, config.threads) for n, m in module.moves(config).items()}
    actual = {name: {each for each, _ in counted} for name, counted in counts.items()}
    return {name: each.pop() for name, each in actual.items() if len(each) == 1}
