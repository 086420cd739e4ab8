"""Bytes that a warp touches, as bits of an integer: one for 4 bytes of shared memory, or a cell of tensor memory."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from cookbook.simulate.values import PLAIN, Box, Boxes, CannotFollow, Lay, View
from cookbook.swizzle import Swizzle

GRANULE = 4  # bytes that one bit of a region stands for
COLUMNS = 512  # of tensor memory, of 32 bits each, in each of 128 lanes


def region(view: View, active: np.ndarray, mask: np.ndarray | None = None) -> int:
    """Return what the active lanes cover of shared memory; of a view of matrix descriptors, the matrices.

    Args:
        active: (32,) lanes.
        mask: (32, elements): which of them are touched; None: all.

    Raises:
        CannotFollow: the view begins at an address that is not known.
    """
    begins = view.pointer.address
    if not isinstance(begins, (int, np.integer, np.ndarray)):
        raise CannotFollow("a view of shared memory that begins at an address that is not known")
    if view.tile is not None:
        starts = tuple(np.unique(view.addresses()[0]).tolist())
        return region_at(starts, view.tile.layout.modes[0], view.tile.bits, view.tile.swizzle)
    if mask is not None and not mask[active].all():
        places = np.broadcast_to(view.addresses(), mask.shape)[mask & active[:, None]]
        return _bits(np.unique(view.swizzle(places) // GRANULE), view.bits) if places.size else 0
    starts = np.unique(begins[active]).tolist() if isinstance(begins, np.ndarray) else (int(begins),)
    return region_at(tuple(starts), view.layout, view.bits, view.swizzle)


@lru_cache(maxsize=65536)
def region_at(begins: tuple[int, ...], layout: Lay, bits: int, swizzle: Swizzle = PLAIN) -> int:
    """Return what elements of a layout cover, from each of several bytes on."""
    places = (np.array(begins, np.int64)[:, None] + (layout.offsets() * bits // 8)[None, :]).ravel()
    return _bits(np.unique(swizzle(places) // GRANULE), bits)


def of_boxes(box: Box, boxes: Boxes) -> tuple[int, int]:
    """Return what TMA's copies cover of shared memory, and how many bytes they are."""
    size = prod(box.part) * box.tensor.bits // 8
    covers = region_at(tuple(base for _, base in boxes), Lay(size // GRANULE, 1), 8 * GRANULE, box.swizzle)
    return covers, size * len(boxes)


def tensor_region(view: View) -> int:
    """Return what a view covers of tensor memory: a bit for each 32 bits, 512 columns to a lane.

    An address there is that of a lane times 2**16 and a column, PTX ISA "Tensor Memory Addressing"; views count bytes.

    Raises:
        CannotFollow: the view begins at an address that is not known.
    """
    pointer = view.pointer
    if not isinstance(pointer.address, (int, np.integer)):
        raise CannotFollow(f"a view of tensor memory that begins at {pointer.address}")
    return _tensor_region(int(pointer.address), view.layout, view.bits)


@lru_cache(maxsize=4096)
def _tensor_region(address: int, layout: Lay, bits: int) -> int:
    words = (address + layout.offsets() * bits // 8) // 4
    lanes, columns = words >> 16, words & 0xFFFF
    if columns.max() >= COLUMNS or lanes.max() >= 128:
        raise CannotFollow(f"tensor memory up to lane {lanes.max()}, column {columns.max()}")
    return _bits(np.unique(lanes * COLUMNS + columns), 32)


def _bits(granules: np.ndarray, bits: int) -> int:
    if bits > 8 * GRANULE:
        granules = (granules[:, None] + np.arange(bits // (8 * GRANULE))[None, :]).ravel()
    flags = np.zeros(int(granules.max()) + 1, np.uint8)
    flags[granules] = 1
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")
