"""The way of A and B on Blackwell: TMA boxes into the stages, descriptors, tcgen05.mma, tensor memory, tcgen05.ld."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cookbook.descriptors import describe
from cookbook.harness.evaluated import Evaluated
from cookbook.harness.walk_wgmma import TmaOperands
from cookbook.layouts import Layout, TiledCopyTV
from cookbook.model import BlackwellDescriptor, InstructionDescriptor, SharedMemory, TensorMemory, TmemAddress
from cookbook.model.tcgen05 import d_places, mma
from cookbook.model.tmem import ld, ld_coords

__all__ = ["Loads", "TmaTcgen05", "descriptors_of", "instruction_of", "loads_of", "tmem_columns"]

WARP = 32
LANES = 128  # of tensor memory
UNIT = 16  # bytes: addresses in descriptors count them
COLUMN = 0xFFFF  # the bits of an address in tensor memory that are its column


def instruction_of(found: Evaluated, dtype: str) -> InstructionDescriptor:
    """The instruction descriptor of the recipe's MMA: sums in float32."""
    m, n, _ = found.mma.shape_mnk
    a_major, b_major = found.mma.majors
    return InstructionDescriptor("f16", m, n, dtype, a_major=a_major, b_major=b_major)


def descriptors_of(found: Evaluated, name: str, base: int = 0) -> list[list[list[BlackwellDescriptor]]]:
    """Descriptors of operand "a" or "b" by [stage][block of rows][block of K], as CuTe makes them.

    The first is read off the layout, the others are as far from it as CuTe's own fragment says.

    Raises:
        ValueError: no descriptor says the layout.
    """
    index = "ab".index(name)
    first = describe(found.smem[name], found.mma.majors[index], False, found.mma.shape_mnk[index], base=base)
    steps = found.fragments[name].table()[0]  # (blocks of rows, blocks of K, stages)
    return [
        [[replace(first, start=first.start + UNIT * step) for step in blocks] for blocks in stage]
        for stage in steps.transpose(2, 0, 1).tolist()
    ]


class Loads(NamedTuple):
    """How the sums leave tensor memory: one `tcgen05.ld` of each warp for each piece of a tile's columns."""

    shape: str
    num: int  # the N of .xN
    starts: np.ndarray  # (stages, pieces, warps): addresses, from the first one's
    coords: np.ndarray  # (threads, pieces * registers, 2): the (m, n) of each value


def loads_of(copy: TiledCopyTV, sums: Layout, tile: tuple[int, int]) -> Loads:
    """The loads that a tiled copy of tensor memory stands for.

    Args:
        copy: `t2r_c`.
        sums: (MMA, MMA_M, MMA_N, STAGE) of addresses in tensor memory, as CuTe lays D out.
        tile: (tile_m, tile_n).

    Raises:
        ValueError: no `tcgen05.ld` gives each thread what the copy says; or a piece does not divide the tile.
    """
    coords = copy.dst_coords()
    high, wide = copy.tiler_mn
    num = coords.shape[1]
    if high != tile[0] or tile[1] % wide or sums.sizes[1:3] != (1, 1):
        raise ValueError(f"t2r_c: got pieces of {high} x {wide}; needed whole rows of lanes, {tile} in all, by one MMA")
    address = sums.table()[:, 0, 0].reshape(tile[1], tile[0], -1).transpose(2, 1, 0)  # (stages, m, n)
    columns = range(0, tile[1], wide)
    pieces = [address[:, coords[..., 0], coords[..., 1] + column] for column in columns]  # (stages, threads, registers)
    cells = np.stack(pieces, axis=1).reshape(len(address), len(columns), -1, WARP, num)
    form = ld_coords("32x32b", num)
    starts = cells[..., 0, 0]
    if (cells - starts[..., None, None] != (form[..., 0] << 16) + form[..., 1]).any():
        raise ValueError("t2r_c: got threads that do not have a lane each and its columns in order, as 32x32b gives")
    return Loads("32x32b", num, starts, np.concatenate([coords + np.array([0, column]) for column in columns], 1))


def tmem_columns(found: Evaluated) -> int:
    """Columns of tensor memory to allocate for the sums of all stages: the next power of two, at least 32."""
    wanted = int((found.fragments["c"].table() & COLUMN).max()) + 1
    return max(WARP, 1 << (wanted - 1).bit_length())


class TmaTcgen05(TmaOperands):
    """The mainloop's tables, made once per configuration, and its walk over one output tile.

    Tiles take the stages of accumulators in turn, as a persistent kernel's do; what a tile before left there stays.
    """

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        super().__init__(writer, reader, along)
        self.instruction = instruction_of(reader, dtype)
        self.a, self.b = (descriptors_of(reader, name, base) for name, base in zip("ab", self.bases, strict=True))
        sums = reader.fragments["c"]
        self.loads = loads_of(reader.copies["t2r_c"], sums, (self.tile_m, self.tile_n))
        self.c_coords = self.loads.coords
        self.d = sums.table()[0]  # (MMA_M, MMA_N, stages): where each instruction's D begins
        self.tmem = TensorMemory()
        self.address = self.tmem.alloc(tmem_columns(reader))
        self.tiles = 0
        _check_places(sums, self.instruction)

    def multiply(self, smem: SharedMemory, a: np.ndarray, b: np.ndarray, row: int, column: int) -> np.ndarray:
        """(threads, values) float32 accumulators of the tile at (row, column) of a @ b.T; a and b are uint16."""
        turn = self.tiles % self.d.shape[2]
        self.tiles += 1
        for k_tile in range(-(-a.shape[1] // self.tile_k)):
            stage = self.load(smem, k_tile, a, b, row, column)
            for m, n in np.ndindex(self.d.shape[:2]):
                d = self._at(self.d[m, n, turn])
                for k, operands in enumerate(zip(self.a[stage][m], self.b[stage][n], strict=True)):
                    mma(smem, self.tmem, d, *operands, self.instruction, accumulate=k_tile > 0 or k > 0)
        return self._fetch(turn)

    def _fetch(self, turn: int) -> np.ndarray:
        """Every warp's loads, piece by piece: (threads, values) float32."""
        loads = self.loads
        found = [
            np.concatenate([ld(self.tmem, self._at(at), w, loads.shape, loads.num) for w, at in enumerate(warps)])
            for warps in loads.starts[turn]
        ]
        return np.concatenate(found, axis=1).view(np.float32)

    def _at(self, offset: int) -> TmemAddress:
        return TmemAddress.of(self.address.encode() + int(offset))


def _check_places(sums: Layout, instruction: InstructionDescriptor) -> None:
    """CuTe and the PTX ISA must agree where D lies."""
    _, lane, column = d_places(instruction.m, instruction.n)
    by_cute = sums.table()[:, 0, 0, 0].reshape(instruction.n, instruction.m).T
    if (by_cute != (lane << 16) + column).any():
        raise ValueError(f"fragment: got {sums!r}; needed D of {instruction.m} x {instruction.n} as the PTX ISA has it")
