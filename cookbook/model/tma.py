"""TMA tiles: cp.async.bulk.tensor between a 2-D tensor in global memory and shared memory."""

from __future__ import annotations

import numpy as np

from cookbook.arguments import checked, integer, renamed
from cookbook.model.smem import SharedMemory
from cookbook.swizzle import Swizzle

__all__ = ["COORDINATE_BYTES", "SWIZZLES", "swizzle_mode", "tma_load", "tma_store"]

CHUNK = 16  # bytes that every swizzle keeps together
# A box begins a multiple of 16 bytes into the rows of the tensor, and a stored one not before it. The PTX ISA does not
# say so; an H200 stops the kernel with an illegal instruction otherwise (`python -m tools.probes --tma`). There a store
# was also seen to write past the end of a row whose length is no multiple of 16 bytes.
COORDINATE_BYTES = 16
# Swizzle modes by the bytes of a row; the swizzle acts on absolute shared-memory addresses.
SWIZZLES = {0: Swizzle(0, 4, 3), 32: Swizzle(1, 4, 3), 64: Swizzle(2, 4, 3), 128: Swizzle(3, 4, 3)}


@checked
def swizzle_mode(swizzle: Swizzle) -> int:
    """The mode (0, 32, 64 or 128 bytes) that lays memory out as this swizzle of byte addresses.

    Raises:
        ValueError: TMA and wgmma have no such mode.
    """
    for mode, known in SWIZZLES.items():
        if swizzle == known or not (swizzle.bits or mode):
            return mode
    raise ValueError(f"swizzle: got {swizzle!r}; needed one of {list(SWIZZLES.values())}, which TMA writes")


@checked
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
        origin: (row, column) of the box's first element, the column a multiple of 16 bytes; negative (of a load) or
            past the end is allowed.
        box: (rows, columns), each 1 to 256; a row is a multiple of 16 bytes, and exactly `mode` bytes under a
            swizzle (hardware takes shorter rows too, which are not modelled).
        mode: 0, 32, 64 or 128.

    Elements outside the tensor become zero. Rows are packed in shared memory, then moved by the swizzle of the
    absolute address.

    Raises:
        ValueError: one of these rules is broken; nothing has been written.
    """
    _check_tensor(tensor)
    check_box(base, box, mode, tensor.itemsize)
    check_origin(origin, tensor.itemsize, store=False)
    there, inside = _inside(tensor, origin, box)
    data = np.zeros(box, tensor.dtype)
    data[inside] = tensor[there]
    chunks = data.reshape(-1, CHUNK // tensor.itemsize)
    with renamed(addresses="base"):
        smem.write(_chunk_addresses(base, len(chunks), mode), chunks)


@checked
def tma_store(
    smem: SharedMemory,
    base: int,
    tensor: np.ndarray,
    origin: tuple[int, int],
    box: tuple[int, int],
    mode: int = 0,
) -> None:
    """One cp.async.bulk.tensor.2d.global.shared::cta.tile: the box in shared memory into `tensor`, in place.

    PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor"; "Tensors": "Out of Boundary Access",
    "Swizzling Modes".

    Arguments and rules are those of `tma_load`. Elements of the box outside the tensor are not written.

    Raises:
        ValueError: as `tma_load`; nothing has been written.
    """
    _check_tensor(tensor)
    check_box(base, box, mode, tensor.itemsize)
    check_origin(origin, tensor.itemsize, store=True)
    there, inside = _inside(tensor, origin, box)
    addresses = _chunk_addresses(base, box[0] * box[1] * tensor.itemsize // CHUNK, mode)
    with renamed(addresses="base"):
        found = smem.read(addresses, CHUNK // tensor.itemsize, tensor.dtype)
    tensor[there] = found.reshape(box)[inside]


def _inside(tensor: np.ndarray, origin: tuple[int, int], box: tuple[int, int]) -> tuple[tuple, tuple]:
    """The part of the box that lies in the tensor: indices into the tensor, and into the box."""
    at = [first + np.arange(extent) for first, extent in zip(origin, box, strict=True)]
    valid = [(x >= 0) & (x < extent) for x, extent in zip(at, tensor.shape, strict=True)]
    return np.ix_(*(x[ok] for x, ok in zip(at, valid, strict=True))), np.ix_(*(np.flatnonzero(ok) for ok in valid))


def _chunk_addresses(base: int, chunks: int, mode: int) -> np.ndarray:
    """Return where the 16-byte chunks of a box lie: one after the other, moved by the swizzle of the absolute
    address."""
    return SWIZZLES[mode](base + CHUNK * np.arange(chunks))


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


def check_box(base: int, box: tuple[int, int], mode: int, itemsize: int) -> None:
    if mode not in SWIZZLES:
        raise ValueError(f"mode: got {mode}; needed one of {list(SWIZZLES)}")
    if not 0 <= base < 1 << 32 or base % 128:
        raise ValueError(f"base: got {base}; needed a multiple of 128 below 2**32")
    if not all(1 <= extent <= 256 for extent in box):
        raise ValueError(f"box: got {box}; needed extents of 1 to 256 elements")
    width = box[1] * itemsize
    if width % 16:
        raise ValueError(f"box: got rows of {width} bytes; needed a multiple of 16")
    if mode and width > mode:
        raise ValueError(f"box: got rows of {width} bytes; needed at most {mode} under this swizzle")
    if mode and width < mode:
        raise ValueError(f"box: got rows of {width} bytes; needed {mode}: shorter rows are not modelled")


def check_origin(origin: tuple[int, int], itemsize: int, *, store: bool) -> None:
    for coordinate in origin:
        integer("origin", coordinate, at_least=-(2**31), at_most=2**31 - 1, needed="coordinates of 32 bits")
    if origin[1] * itemsize % COORDINATE_BYTES:
        raise ValueError(f"origin: got column {origin[1]}, byte {origin[1] * itemsize}; needed a multiple of 16 bytes")
    if store and min(origin) < 0:
        raise ValueError(f"origin: got {origin}; needed no negative coordinate in a store")
