"""Tensor memory: 128 lanes by 512 columns of 32 bits, and who reads which of them (tcgen05.alloc, ld, st, cp)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cookbook.arguments import Integers, broadcast, checked, integer, renamed
from cookbook.model.smem import SharedMemory
from cookbook.model.smem_descriptor import BlackwellDescriptor, operand_bytes

__all__ = ["TensorMemory", "TmemAddress", "cp", "ld", "ld_coords", "st"]

LANES, COLUMNS, WARP_LANES = 128, 512, 32
POISON = 0xFFFFFFFF  # a NaN as float32, and each half one as float16 and as bfloat16
MIN_COLUMNS = 32
MAX_REGISTERS = 128
# shape -> (lanes that a warp reaches, registers of a thread under .x1)
SHAPES = {"32x32b": (32, 1), "16x64b": (16, 1), "16x128b": (16, 2), "16x256b": (16, 4), "16x32bx2": (16, 1)}
# (shape, multicast) of tcgen05.cp -> (rows in shared memory, bytes of each, first lanes that row 0 goes to)
COPIES = {
    ("128x256b", ""): (128, 32, (0,)),
    ("128x128b", ""): (128, 16, (0,)),
    ("4x256b", ""): (4, 32, (0,)),
    ("64x128b", "warpx2::02_13"): (64, 16, (0, 64)),
    ("64x128b", "warpx2::01_23"): (64, 16, (0, 32)),
    ("32x128b", "warpx4"): (32, 16, (0, 32, 64, 96)),
}


class TmemAddress(NamedTuple):
    """A place in tensor memory. PTX ISA, "Tensor Memory Addressing": lane in bits 16-31, column in bits 0-15."""

    lane: int
    column: int

    def encode(self) -> int:
        return self.lane << 16 | self.column

    @classmethod
    @checked
    def of(cls, address: TmemAddress | int) -> TmemAddress:
        """The address itself, or the one that 32 bits say.

        Raises:
            ValueError: not 32 bits, or a lane above 127.
        """
        if isinstance(address, TmemAddress):
            return address
        if not 0 <= address < LANES << 16:
            raise ValueError(f"address: got {address:#x}; needed a lane below {LANES} in bits 16-31, a column below")
        return cls(int(address) >> 16, int(address) & 0xFFFF)

    @checked
    def right(self, columns: int) -> TmemAddress:
        """`columns` further, in the same lane."""
        integer("columns", columns, at_least=-self.column, at_most=COLUMNS)
        return self._replace(column=self.column + columns)


class TensorMemory:
    """A CTA's tensor memory. Every cell starts as a NaN, and only allocated columns may be touched.

    PTX ISA, "Tensor Memory", "Tensor Memory Allocation".
    """

    def __init__(self) -> None:
        self._cells = np.full((LANES, COLUMNS), POISON, np.uint32)
        self._taken: dict[int, int] = {}  # first column -> columns

    @checked
    def alloc(self, columns: int) -> TmemAddress:
        """tcgen05.alloc: the first column with that many free ones after it.

        Raises:
            ValueError: not a power of two in 32 to 512, or no room: the instruction would wait for ever.
        """
        if columns not in (32, 64, 128, 256, 512):
            raise ValueError(f"columns: got {columns}; needed a power of two in {MIN_COLUMNS} to {COLUMNS}")
        free = ~self._allocated()
        for first in range(0, COLUMNS - columns + 1, MIN_COLUMNS):
            if free[first : first + columns].all():
                self._taken[first] = columns
                return TmemAddress(0, first)
        raise ValueError(f"columns: got {columns}; needed a free place, with {self._taken} taken: it would block")

    @checked
    def dealloc(self, address: TmemAddress | int, columns: int) -> None:
        """tcgen05.dealloc of one allocation, as it was made; its cells are poisoned.

        Raises:
            ValueError: there is no such allocation.
        """
        lane, first = TmemAddress.of(address)
        if lane or self._taken.get(first) != columns:
            raise ValueError(f"address: got lane {lane}, {columns} columns at {first}; needed one of {self._taken}")
        del self._taken[first]
        self._cells[:, first : first + columns] = POISON

    @checked
    def read(self, lanes: Integers | int, columns: Integers | int) -> np.ndarray:
        """uint32 cells of lanes and columns broadcast together.

        Raises:
            ValueError: a lane outside 0 to 127, or a column that is not allocated.
        """
        return self._cells[self._checked(lanes, columns)]

    @checked
    def write(self, lanes: Integers | int, columns: Integers | int, values: np.ndarray) -> None:
        """Write uint32 or float32 values; rules as of `read`."""
        values = np.asarray(values, order="C")
        if values.dtype not in (np.uint32, np.float32):
            raise ValueError(f"values: got {values.dtype}; needed uint32 or float32, the 32 bits of a cell")
        cells = self._checked(lanes, columns)
        broadcast(values=values, cells=cells[0])
        self._cells[cells] = values.view(np.uint32)

    def _allocated(self) -> np.ndarray:
        mask = np.zeros(COLUMNS, bool)
        for first, columns in self._taken.items():
            mask[first : first + columns] = True
        return mask

    def _checked(self, lanes: Integers | int, columns: Integers | int) -> tuple[np.ndarray, np.ndarray]:
        lanes, columns = broadcast(lanes=lanes, columns=columns)
        if lanes.size and (lanes.min() < 0 or lanes.max() >= LANES):
            raise ValueError(f"lanes: got {lanes.min()} to {lanes.max()}; needed 0 to {LANES - 1}")
        outside = columns.size and (columns.min() < 0 or columns.max() >= COLUMNS)
        if outside or not self._allocated()[columns].all():
            raise ValueError(
                f"columns: got {columns.min()} to {columns.max()}; needed allocated ones, {self._taken or 'of none'}"
            )
        return lanes, columns


@checked
@lru_cache(maxsize=128)
def ld_coords(shape: str, num: int = 1, split: int = 0) -> np.ndarray:
    """(32, registers, 2), read-only: the (lane, column) of each of a thread's registers, from the address.

    PTX ISA, tcgen05 "Data Movement Shape": "Matrix fragments for shape ...".

    Args:
        shape: "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2"
        num: the N of .xN: 1, 2, 4, ... 128, so that a thread has 128 registers at most.
        split: of 16x32bx2 alone, columns from the first half's to the second's (immHalfSplitoff).

    Raises:
        ValueError: no such shape or repeat.
    """
    if shape not in SHAPES:
        raise ValueError(f"shape: got {shape!r}; needed one of {list(SHAPES)}")
    each = SHAPES[shape][1]
    if num not in (1, 2, 4, 8, 16, 32, 64, 128) or num * each > MAX_REGISTERS:
        raise ValueError(f"num: got {num}; needed a power of two, {MAX_REGISTERS // each} at most for {shape}")
    integer("split", split, at_least=0, at_most=COLUMNS - 1)
    t, r = np.arange(32)[:, None], np.arange(num * each)[None, :]
    lane, column = {
        "32x32b": (t, r),
        "16x64b": (t // 4 + 8 * (t % 2), 2 * r + t // 2 % 2),
        "16x128b": (t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4),
        "16x256b": (t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2),
        "16x32bx2": (t % 16, r + split * (t // 16)),
    }[shape]
    coords = np.stack(np.broadcast_arrays(lane, column), axis=-1)
    coords.flags.writeable = False
    return coords


@checked
def ld(
    tmem: TensorMemory, address: TmemAddress | int, warp: int, shape: str = "32x32b", num: int = 1, split: int = 0
) -> np.ndarray:
    """tcgen05.ld.sync.aligned.shape.xN.b32 of one warp: (32, registers) uint32 by thread and register.

    PTX ISA, "tcgen05.ld", "Access restrictions". `.view(np.float32)` of it are accumulators.

    Args:
        address: the same for all threads of the warp.
        warp: of the CTA; it reaches lanes 32 * (warp % 4) to 32 * (warp % 4) + 31 alone.
        shape: as of `ld_coords`
        num: likewise.
        split: likewise.

    Raises:
        ValueError: the address is another warp's, or not where the shape may start; no such shape; not allocated.
    """
    lanes, columns = _warp_cells(address, warp, shape, num, split)
    return tmem.read(lanes, columns)


@checked
def st(
    tmem: TensorMemory,
    address: TmemAddress | int,
    warp: int,
    values: np.ndarray,
    shape: str = "32x32b",
    num: int = 1,
    split: int = 0,
) -> None:
    """tcgen05.st.sync.aligned.shape.xN.b32 of one warp: the way back of `ld`, rules as there.

    Args:
        values: (32, registers) uint32 or float32
    """
    lanes, columns = _warp_cells(address, warp, shape, num, split)
    if values.shape != lanes.shape:
        raise ValueError(f"values: got shape {values.shape}; needed {lanes.shape} for {shape}.x{num}")
    tmem.write(lanes, columns, values)


def _warp_cells(
    address: TmemAddress | int, warp: int, shape: str, num: int, split: int
) -> tuple[np.ndarray, np.ndarray]:
    coords = ld_coords(shape, num, split)
    lane, column = TmemAddress.of(address)
    integer("warp", warp, at_least=0, at_most=31)
    first = WARP_LANES * (warp % 4)
    allowed = range(first, first + WARP_LANES, SHAPES[shape][0])
    if lane not in allowed:
        raise ValueError(
            f"address: got lane {lane} for warp {warp}; needed {' or '.join(map(str, allowed))} under {shape}: "
            f"a warp reaches lanes {first} to {first + WARP_LANES - 1}"
        )
    return lane + coords[..., 0], column + coords[..., 1]


@checked
def cp(
    smem: SharedMemory,
    tmem: TensorMemory,
    address: TmemAddress | int,
    descriptor: BlackwellDescriptor | int,
    shape: str,
    multicast: str = "",
) -> None:
    """tcgen05.cp: rows of shared memory, named by a K-major descriptor, into lanes of tensor memory.

    PTX ISA, "tcgen05.cp". Row i goes to lane i, 4 bytes a column; of "4x256b" to lane 32 * i. With
    .cta_group::2 each CTA does this on its own memories. Decompression while copying is not modelled.

    Args:
        address: lane 0; of "4x256b", any lane below 32.
        shape: "128x256b", "128x128b", "4x256b", "64x128b" or "32x128b".
        multicast: of "64x128b" "warpx2::02_13" (rows 0-31 to warps 0 and 2, the others to 1 and 3) or "warpx2::01_23";
            of "32x128b" "warpx4", to all four; else "".

    Raises:
        ValueError: no such shape with this multicast, a lane where it may not start, or an address outside.
    """
    if (shape, multicast) not in COPIES:
        raise ValueError(f"shape, multicast: got {shape, multicast}; needed one of {list(COPIES)}")
    rows, width, copies = COPIES[shape, multicast]
    lane, column = TmemAddress.of(address)
    if not 0 <= lane < (WARP_LANES if rows == 4 else 1):
        raise ValueError(f"address: got lane {lane}; needed {'0 to 31' if rows == 4 else '0'} for {shape}")
    with renamed(word="descriptor"):
        cells = operand_bytes(smem, descriptor, rows, width=width).view(np.uint32)
    step = WARP_LANES if rows == 4 else 1
    row = np.arange(rows)[:, None]
    if multicast == "warpx2::01_23":
        row = row % WARP_LANES + 64 * (row // WARP_LANES)  # the second half is for warps 2 and 3
    for first in copies:
        tmem.write(lane + first + step * row, column + np.arange(width // 4)[None, :], cells)
