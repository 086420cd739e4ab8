"""Level "model" of a transpose: every element simulated from x through shared memory to y, in numpy.

Threads and places are the recipe's `moves`, layouts are its `smem_layouts` as CuTe evaluates them. A thread's vectors
go through its registers in the order of its steps: where a move stores blocks, what it stores is the block that the
same thread loaded, transposed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from cookbook.check.model.wgmma import Boxes, boxes_of
from cookbook.check.moves import addresses, coordinates, layouts
from cookbook.layouts import Layout, SmemLayout
from cookbook.model import SharedMemory, tma_load, tma_store

__all__ = ["simulate", "simulate_layouts"]


def simulate(module: ModuleType, x: np.ndarray, dtype: Any, config: Any) -> np.ndarray:
    """The transpose of `x` as the recipe makes it.

    Args:
        module: a recipe of kind "transpose".
        x: (M, N) raw bits, uint16 or uint32; rows a multiple of 16 bytes apart for TMA.
        dtype: the cutlass numeric type, as wide as x's.
        config: the recipe's Config.

    Returns:
        (N, M) raw bits; all ones where nothing was stored.
    """
    found = layouts(module, dtype, config)
    return simulate_layouts(found, found, module.moves(config), x, config)


def simulate_layouts(
    writer: dict[str, SmemLayout], reader: dict[str, SmemLayout], moves: dict[str, Any], x: np.ndarray, config: Any
) -> np.ndarray:
    """`simulate` with the layouts of those who write shared memory and of those who read it told apart.

    In a right kernel they are the same. Giving two different ones shows what a kernel with the swizzle on one side
    only would make.
    """
    first, second = moves
    way = {("r2s_x", "s2g_x"): _scalars, ("r2s_y", "s2g_y"): _vectors, ("s2r_x", "r2s_y"): _tma}[first, second]
    y = np.full(x.shape[::-1], np.iinfo(x.dtype).max, x.dtype)
    tile = SharedMemory(2 * max(layout.outer.size * x.itemsize * 2 for layout in writer.values()))
    for row in range(0, x.shape[0], config.tile_m):
        for column in range(0, x.shape[1], config.tile_n):
            tile.poison()
            way(tile, writer, reader, moves, (x, y), (row, column), config)
    return y


def _scalars(smem, writer, reader, moves, matrices, origin, config) -> None:
    (x, y), store, load = matrices, moves["r2s_x"], moves["s2g_x"]
    m, n, inside = _in_matrix(coordinates(store, config.threads), origin, x.shape)
    values = np.where(inside, x[np.where(inside, m, 0), np.where(inside, n, 0)], 0).astype(x.dtype)
    smem.write(addresses(writer["x"], store, config.threads), values[..., None])
    read = smem.read(addresses(reader["x"], load, config.threads), 1, x.dtype)[..., 0]
    m, n, inside = _in_matrix(coordinates(load, config.threads), origin, x.shape)
    y[n[inside], m[inside]] = read[inside]


def _vectors(smem, writer, reader, moves, matrices, origin, config) -> None:
    (x, y), store, load = matrices, moves["r2s_y"], moves["s2g_y"]
    v = store.width
    rows, columns = coordinates(store, config.threads)  # in y's tile: (n, m)
    n, m = rows.reshape(-1, v, config.threads)[:, 0], columns.reshape(-1, v, config.threads)[:, 0]  # (blocks, threads)
    m, n, inside = _in_matrix((m, n), origin, x.shape)
    blocks = np.zeros((*m.shape, v, v), x.dtype)
    blocks[inside] = x[m[inside][:, None, None] + np.arange(v)[:, None], n[inside][:, None, None] + np.arange(v)]
    _store_blocks(smem, writer["y"], store, blocks, config)
    read = smem.read(addresses(reader["y"], load, config.threads), v, x.dtype)
    n, m = coordinates(load, config.threads)
    m, n, inside = _in_matrix((m, n), origin, x.shape)
    y[n[inside][:, None], m[inside][:, None] + np.arange(v)] = read[inside]


def _tma(smem, writer, reader, moves, matrices, origin, config) -> None:
    (x, y), load, v = matrices, moves["s2r_x"], moves["s2r_x"].width
    boxes = _boxes(writer["x"])
    for (m, n), start in zip(boxes.origins, boxes.starts[0], strict=True):
        tma_load(smem, int(start), x, (origin[0] + m, origin[1] + n), boxes.shape, boxes.mode)
    read = smem.read(addresses(reader["x"], load, config.threads), v, x.dtype)  # (steps, threads, v)
    blocks = read.reshape(-1, v, config.threads, v).transpose(0, 2, 1, 3)
    smem.poison()  # the transpose has a place of its own: nothing may be left of x
    _store_blocks(smem, writer["y"], moves["r2s_y"], blocks, config)
    boxes = _boxes(reader["y"])
    for (n, m), start in zip(boxes.origins, boxes.starts[0], strict=True):
        tma_store(smem, int(start), y, (origin[1] + n, origin[0] + m), boxes.shape, boxes.mode)


def _store_blocks(smem: SharedMemory, layout: SmemLayout, store: Any, blocks: np.ndarray, config: Any) -> None:
    """Each thread stores its (blocks, threads, v, v) blocks, transposed, a row a step."""
    turned = blocks.swapaxes(2, 3).transpose(0, 2, 1, 3).reshape(store.steps, config.threads, -1)
    smem.write(addresses(layout, store, config.threads), turned)


def _in_matrix(
    places: tuple[np.ndarray, np.ndarray], origin: tuple[int, int], shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates (m, n) in x of those in its tile, and which of them lie inside."""
    m, n = places[0] + origin[0], places[1] + origin[1]
    return m, n, (m < shape[0]) & (n < shape[1])


def _boxes(layout: SmemLayout) -> Boxes:
    """The TMA boxes of a tile, as `boxes_of` cuts a staged one."""
    outer = Layout((*layout.outer.shape, 1), (*layout.outer.stride, 0))
    return boxes_of(SmemLayout(outer, layout.swizzle, layout.element_bits))
