"""TMA tile loads: cp.async.bulk.tensor from a 2-D tensor in global memory."""

from __future__ import annotations

import numpy as np

from cookbook.model.smem import SharedMemory
from cookbook.swizzle import Swizzle

__all__ = ["SWIZZLES", "swizzle_mode", "tma_load"]

# Swizzle modes by the bytes of a row; the swizzle acts on absolute shared-memory addresses.
SWIZZLES = {0: Swizzle(0, 4, 3), 32: Swizzle(1, 4, 3), 64: Swizzle(2, 4, 3), 128: Swizzle(3, 4, 3)}


def swizzle_mode(swizzle: Swizzle) -> int:
    """The mode (0, 32, 64 or 128 bytes) that lays memory out as this swizzle of byte addresses.

    Raises:
        ValueError: TMA and wgmma have no such mode.
    """
    for mode, known in SWIZZLES.items():
        if swizzle == known or not (swizzle.bits or mode):
            return mode
    raise ValueError(f"swizzle: got {swizzle!r}; needed one of {list(SWIZZLES.values())}, which TMA writes")


def tma_load(
    smem: SharedMemory,
    base: int,
    tensor: np.ndarray,
    origin: tuple[int, int],
    box: tuple[int, int],
    mode: int = 0,
) -> None:
    """One cp.async.bulk.tensor.2d.shared::cta.global.tile.

    PTX ISA, "Tensors": "Tiled Mode", "Out of Boundary Access", "Swizzling Modes".

    Args:
        base: byte address of the box in shared memory, a multiple of 128.
        tensor: (rows, columns) in global memory; columns adjacent, rows a multiple of 16 bytes apart.
        origin: (row, column) of the box's first element; negative or past the end is allowed.
        box: (rows, columns), each 1 to 256; a row is a multiple of 16 bytes, and exactly `mode` bytes under a
            swizzle (hardware takes shorter rows too, which are not modelled).
        mode: 0, 32, 64 or 128.

    Elements outside the tensor become zero. Rows are packed in shared memory, then moved by the swizzle of the
    absolute address.

    Raises:
        ValueError: one of these rules is broken; nothing has been written.
    """
    _check_tensor(tensor)
    _check_box(base, box, mode, tensor.itemsize)
    rows, columns = origin[0] + np.arange(box[0]), origin[1] + np.arange(box[1])
    row_in, column_in = (rows >= 0) & (rows < tensor.shape[0]), (columns >= 0) & (columns < tensor.shape[1])
    data = np.zeros(box, tensor.dtype)
    data[np.ix_(row_in, column_in)] = tensor[np.ix_(rows[row_in], columns[column_in])]
    chunks = data.reshape(-1, 16 // tensor.itemsize)
    smem.write(SWIZZLES[mode](base + 16 * np.arange(len(chunks))), chunks)


def _check_tensor(tensor: np.ndarray) -> None:
    if tensor.ndim != 2 or not tensor.size:
        raise ValueError(f"tensor: got shape {tensor.shape}; needed two dimensions that are not empty")
    if tensor.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"tensor: got {tensor.dtype}; needed elements of 1, 2, 4 or 8 bytes")
    row, column = tensor.strides
    if column != tensor.itemsize and tensor.shape[1] > 1:
        raise ValueError(f"tensor: got columns {column} bytes apart; needed adjacent ones, {tensor.itemsize}")
    if tensor.shape[0] > 1 and (row % 16 or row <= 0):
        raise ValueError(f"tensor: got rows {row} bytes apart; needed a positive multiple of 16")


def _check_box(base: int, box: tuple[int, int], mode: int, itemsize: int) -> None:
    if mode not in SWIZZLES:
        raise ValueError(f"mode: got {mode}; needed one of {list(SWIZZLES)}")
    if base < 0 or base % 128:
        raise ValueError(f"base: got {base}; needed a multiple of 128")
    if not all(1 <= extent <= 256 for extent in box):
        raise ValueError(f"box: got {box}; needed extents of 1 to 256 elements")
    width = box[1] * itemsize
    if width % 16:
        raise ValueError(f"box: got rows of {width} bytes; needed a multiple of 16")
    if mode and width > mode:
        raise ValueError(f"box: got rows of {width} bytes; needed at most {mode} under this swizzle")
    if mode and width < mode:
        raise ValueError(f"box: got rows of {width} bytes; needed {mode}: shorter rows are not modelled")
