"""The way of A and B on Blackwell: TMA boxes into the stages, descriptors, tcgen05.mma, tensor memory, tcgen05.ld."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cookbook.check.evaluated import Evaluated
from cookbook.check.model.wgmma import TmaOperands
from cookbook.descriptors import describe
from cookbook.layouts import Layout, SmemLayout, TiledCopyTV
from cookbook.model import BlackwellDescriptor, InstructionDescriptor, SharedMemory, TensorMemory, TmemAddress
from cookbook.model.tcgen05 import d_places, mma
from cookbook.model.tmem import ld, ld_coords

__all__ = ["Loads", "TmaTcgen05", "descriptors_of", "instruction_of", "loads_of", "sums_of_a_cta", "tmem_columns"]

WARP = 32
UNIT = 16  # bytes: addresses in descriptors count them
COLUMN = 0xFFFF  # the bits of an address in tensor memory that are its column


def instruction_of(found: Evaluated, dtype: str) -> InstructionDescriptor:
    """The instruction descriptor of the recipe's MMA: float32 accumulators; its first scale factors, if it has any.

    Args:
        dtype: of A and B; of block-scaled ones `found` says it.
    """
    m, n, _ = found.mma.shape_mnk
    a_major, b_major = found.majors
    if found.scaled:
        return InstructionDescriptor(found.scaled.kind, m, n, found.scaled.element, scale_type=found.scaled.scale)
    return InstructionDescriptor("f16", m, n, dtype, a_major=a_major, b_major=b_major)


def describe_blackwell(
    layout: SmemLayout, major: str, rows: int, origin: tuple[int, int] = (0, 0), base: int = 0
) -> BlackwellDescriptor:
    """`cookbook.descriptors.describe` for tcgen05."""
    found = describe(layout, major, False, rows, origin, base)
    assert isinstance(found, BlackwellDescriptor)
    return found


def descriptors_of(found: Evaluated, name: str, base: int = 0) -> list[list[list[BlackwellDescriptor]]]:
    """Descriptors of operand "a" or "b" by [stage][block of rows][block of K], as CuTe makes them.

    The first is read off the layout, the others are as far from it as CuTe's own fragment says.

    Raises:
        ValueError: no descriptor says the layout.
    """
    index = "ab".index(name)
    rows = found.mma.shape_mnk[index] // found.ctas
    first = describe_blackwell(found.smem[name], found.majors[index], rows, base=base)
    steps = found.fragments[name].table()[0]  # (blocks of rows, blocks of K, stages)
    return [
        [[replace(first, start=first.start + UNIT * step) for step in blocks] for blocks in stage]
        for stage in steps.transpose(2, 0, 1).tolist()
    ]


def sums_of_a_cta(found: Evaluated) -> tuple[int, int]:
    """(rows, columns) of a tile's accumulators in one CTA's tensor memory: its rows of A, but all CTAs' rows of B."""
    (rows, *_), (columns, *_) = (found.smem[name].outer.sizes for name in "ab")
    return rows, columns * found.ctas


class Loads(NamedTuple):
    """Loads of accumulators from tensor memory: one `tcgen05.ld` of each warp for each piece of a tile's columns."""

    shape: str
    num: int  # the N of .xN
    starts: np.ndarray  # (stages, pieces, warps): addresses, from the first one's
    coords: np.ndarray  # (threads, pieces * registers, 2): the (m, n) of each value


def loads_of(copy: TiledCopyTV, sums: Layout, tile: tuple[int, int]) -> Loads:
    """The loads that a tiled copy of tensor memory stands for.

    Args:
        copy: `t2r_c`.
        sums: (MMA, MMA_M, MMA_N, STAGE) of addresses in tensor memory, as CuTe lays D out.
        tile: (rows, columns) of the accumulators, as `sums_of_a_cta` says.

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
    """Columns of tensor memory to allocate for the accumulators of all stages: the next power of two, at least 32.

    Scale factors come after them: an atom of those takes four.
    """
    wanted = int((found.fragments["c"].table() & COLUMN).max()) + 1
    for name, first in zip("ab" if found.scaled else "", found.scale_columns, strict=False):
        last = int((found.fragments[f"sf{name}.copied"].table() // 4 & COLUMN).max())
        wanted = max(wanted, first + last + 1)
    return max(WARP, 1 << (wanted - 1).bit_length())


class TmaTcgen05(TmaOperands):
    """The mainloop's tables, made once per configuration, and its simulation of one output tile.

    Tiles take one accumulator stage after the other, as in a persistent kernel; what a tile before left there stays.
    Where two CTAs share the MMA each has its own shared and tensor memory, and loads its half of A's rows and of B's.
    """

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        super().__init__(writer, reader, along)
        self.instruction = instruction_of(reader, dtype)
        self.a, self.b = (descriptors_of(reader, name, base) for name, base in zip("ab", self.bases, strict=True))
        sums = reader.fragments["c"]
        self.loads = loads_of(reader.copies["t2r_c"], sums, sums_of_a_cta(reader))
        firsts = [np.array([cta * self.tile_m, 0]) for cta in range(reader.ctas)]
        self.c_coords = np.concatenate([self.loads.coords + first for first in firsts])
        self.d = sums.table()[0]  # (MMA_M, MMA_N, stages): where each instruction's D begins
        self.tmem = [TensorMemory() for _ in firsts]
        self.columns = tmem_columns(reader)
        (self.address,) = {tmem.alloc(self.columns) for tmem in self.tmem}  # the same in both
        self.others = [SharedMemory(self.smem_bytes) for _ in firsts[1:]]
        self.tiles = 0
        _check_places(sums, self.instruction, reader.ctas)

    def multiply(self, smem: SharedMemory, a: np.ndarray, b: np.ndarray, row: int, column: int) -> np.ndarray:
        """(threads, values) float32 accumulators of the tile at (row, column) of a @ b.T; a and b are uint16.

        The threads of all CTAs, one CTA after the other.
        """
        turn = self.tiles % self.d.shape[2]
        self.tiles += 1
        for other in self.others:
            other.poison()
        smems = [smem, *self.others]
        for k_tile in range(self.k_tiles(a)):
            for cta, own in enumerate(smems):
                stage = self.load(own, k_tile, a, b, row + cta * self.tile_m, column + cta * self.tile_n)
            for m, n in np.ndindex(self.d.shape[:2]):
                d = self._at(self.d[m, n, turn])
                for k, operands in enumerate(zip(self.a[stage][m], self.b[stage][n], strict=True)):
                    self.product(smems, d, operands, stage, k, accumulate=k_tile > 0 or k > 0)
        return np.concatenate([self._fetch(tmem, turn) for tmem in self.tmem])

    def k_tiles(self, a: np.ndarray) -> int:
        """Return how many k-tiles a tile takes."""
        return -(-a.shape[1] // self.tile_k)

    def product(
        self,
        smems: list[SharedMemory],
        d: TmemAddress,
        operands: tuple[BlackwellDescriptor, BlackwellDescriptor],
        stage: int,
        k: int,
        accumulate: bool,
    ) -> None:
        """One tcgen05.mma: the `k`-th of a stage."""
        mma(smems, self.tmem, d, *operands, self.instruction, accumulate=accumulate)

    def _fetch(self, tmem: TensorMemory, turn: int) -> np.ndarray:
        """The loads of every warp of a CTA, piece by piece: (threads, values) float32."""
        loads = self.loads
        found = [
            np.concatenate([ld(tmem, self._at(at), w, loads.shape, loads.num) for w, at in enumerate(warps)])
            for warps in loads.starts[turn]
        ]
        return np.concatenate(found, axis=1).view(np.float32)

    def _at(self, offset: int) -> TmemAddress:
        return TmemAddress.of(self.address.encode() + int(offset))


def _check_places(sums: Layout, instruction: InstructionDescriptor, ctas: int) -> None:
    """CuTe and the PTX ISA must agree where D lies, in each CTA."""
    cta, lane, column = d_places(instruction.m, instruction.n, ctas)
    by_cute = sums.table()[:, 0, 0, 0].reshape(instruction.n, -1).T
    by_cute = np.concatenate([by_cute] * ctas)
    rows = np.arange(instruction.m)[:, None] * ctas // instruction.m
    if (by_cute != (lane << 16) + column).any() or (cta != rows).any():
        raise ValueError(f"fragment: got {sums!r}; needed D of {instruction.m} x {instruction.n} as the PTX ISA has it")
