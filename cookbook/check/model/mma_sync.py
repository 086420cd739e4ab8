"""The way of A and B with mma.sync: cp.async or TMA into the stages, ldmatrix into registers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cookbook import access
from cookbook.check.evaluated import Evaluated
from cookbook.check.model.fragments import fragment_coords, places_in, transposes
from cookbook.check.model.wgmma import TmaOperands
from cookbook.layouts import Layout, SmemLayout, TiledCopyTV
from cookbook.model import SharedMemory, cp_async, ldmatrix, mma_m16n8k16, mma_m16n8k32

__all__ = ["CpAsyncLdmatrix", "TmaLdmatrix"]

VECTOR_BYTES = 16  # of a cp.async
INDICES = {"a": "MK", "b": "NK"}  # of each operand's modes


class Fetch(NamedTuple):
    """Tables of one operand's way from shared memory to registers."""

    rows_at: np.ndarray  # (stages, instructions, warps, 32) row addresses for ldmatrix
    matrices: int  # of an ldmatrix: 1, 2 or 4
    trans: bool  # ldmatrix.trans
    registers: np.ndarray  # (threads, values) index of each MMA register among those that ldmatrix filled
    shape: tuple[int, int, int]  # values of an instruction, instructions along M or N, along K


class Load(NamedTuple):
    """Tables of one operand's way from global to shared memory by cp.async."""

    goes_to: np.ndarray  # (stages, instructions, threads) byte addresses that cp.async writes
    comes_from: np.ndarray  # (instructions, threads, 2) first coordinate of each vector in the tile
    along: int  # the mode along which a vector's elements follow one another: 1, K, or 0
    vector: int  # elements of a 16-byte cp.async


class Multiplying:
    """From the stages to the accumulators: ldmatrix and mma.sync, the same however the stages are filled."""

    def __init__(self, reader: Evaluated, dtype: str, tile_mn: tuple[int, int], bases: tuple[int, int]) -> None:
        """bases: where the stages of A and of B begin, in bytes."""
        mma = reader.mma
        self.bits = reader.smem["a"].element_bits
        if mma.shape_mnk != (needed := (16, 8, 256 // self.bits)):
            raise ValueError(f"tiled_mma: got an instruction of {mma.shape_mnk}; needed {needed}")
        m, n, k = mma.tiler_mnk
        self.dtype = dtype
        self.a = _fetch("a", reader, mma.a, (m, k), bases[0])
        self.b = _fetch("b", reader, mma.b, (n, k), bases[1])
        coords = fragment_coords(mma.c, (m, n), tile_mn)
        self.c_shape = coords.shape[:-1]
        self.c_coords = coords.reshape(len(coords), -1, 2)

    def zeros(self) -> np.ndarray:
        """(warps, instructions along M, along N, 32, values) float32."""
        threads, values, m_blocks, n_blocks = self.c_shape
        return np.zeros((threads // 32, m_blocks, n_blocks, 32, values), np.float32)

    def add(self, acc: np.ndarray, smem: SharedMemory, stage: int) -> np.ndarray:
        """`acc` with the products of one stage added."""
        left, right = (_fragments(smem, operand, stage, self.bits) for operand in (self.a, self.b))
        multiply = mma_m16n8k32 if self.bits == 8 else mma_m16n8k16
        for i in range(left.shape[2]):
            acc = multiply(left[:, :, None, i], right[:, None, :, i], acc, self.dtype)
        return acc

    def by_thread(self, acc: np.ndarray) -> np.ndarray:
        """(threads, values)."""
        return acc.transpose(0, 3, 4, 1, 2).reshape(self.c_shape[0], -1)


class TmaLdmatrix(TmaOperands):
    """TMA boxes into the stages, then ldmatrix and mma.sync."""

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        """along: the mode along which A (M, K) and B (N, K) are contiguous in global memory."""
        super().__init__(writer, reader, along)
        self.multiplying = Multiplying(reader, dtype, (self.tile_m, self.tile_n), self.bases)
        self.c_coords = self.multiplying.c_coords

    def multiply(self, smem: SharedMemory, a: np.ndarray, b: np.ndarray, row: int, column: int) -> np.ndarray:
        """(threads, values) float32 accumulators of the tile at (row, column) of a @ b.T; a and b are uint16."""
        acc = self.multiplying.zeros()
        for k_tile in range(-(-a.shape[1] // self.tile_k)):
            acc = self.multiplying.add(acc, smem, self.load(smem, k_tile, a, b, row, column))
        return self.multiplying.by_thread(acc)


class CpAsyncLdmatrix:
    """The mainloop's tables, made once per configuration, and its simulation of one output tile."""

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        """along: the mode along which A (M, K) and B (N, K) are contiguous in global memory."""
        (self.tile_m, self.tile_k, self.stages), (self.tile_n, *_) = (writer.smem[x].outer.sizes for x in "ab")
        align = writer.smem["b"].alignment
        base_b = -(-max(x.smem["a"].size_bytes for x in (writer, reader)) // align) * align
        self.smem_bytes = -(-(base_b + max(x.smem["b"].size_bytes for x in (writer, reader))) // 16) * 16
        self.multiplying = Multiplying(reader, dtype, (self.tile_m, self.tile_n), (0, base_b))
        self.c_coords = self.multiplying.c_coords
        self.a = _load_tables("a", writer, 0, along[0])
        self.b = _load_tables("b", writer, base_b, along[1])

    def multiply(self, smem: SharedMemory, a: np.ndarray, b: np.ndarray, row: int, column: int) -> np.ndarray:
        """(threads, values) float32 accumulators of the tile at (row, column) of a @ b.T; a and b are uint16, or
        uint8 of 8-bit elements.

        The k tiles end where K ends, so the first may begin before it; what lies there is written as zeros.

        Raises:
            ValueError: the extent along which an operand is contiguous is no multiple of 16 bytes: cp.async would need
                part of a vector.
        """
        depth = a.shape[1]
        for name, x, operand in (("a", a, self.a), ("b", b, self.b)):
            if (extent := x.shape[operand.along]) % operand.vector:
                got = f"{INDICES[name][operand.along]} = {extent}"
                raise ValueError(f"{name}: got {got}; needed a multiple of {operand.vector}, whole 16-byte vectors")
        acc = self.multiplying.zeros()
        tiles = -(-depth // self.tile_k)
        for k_tile in range(tiles):
            stage, k = k_tile % self.stages, depth - (tiles - k_tile) * self.tile_k
            _load(smem, self.a, stage, a, row, k)
            _load(smem, self.b, stage, b, column, k)
            acc = self.multiplying.add(acc, smem, stage)
        return self.multiplying.by_thread(acc)


def _load_tables(name: str, writer: Evaluated, base: int, along: int) -> Load:
    written, load = writer.smem[name], writer.copies[f"g2s_{name}"]
    shape, stages = written.outer.sizes[:2], written.outer.sizes[2]
    comes_from = np.stack(access.repeated(load.src_coords(), load.tiler_mn, shape), axis=-1)
    vector = VECTOR_BYTES // written.element_bytes
    _check_vectors(name, load, along, vector)
    goes_to = _addresses(written, load, "dst", stages) + base
    return Load(goes_to, comes_from[:, :: load.src_vector].transpose(1, 0, 2), along, vector)


def _fetch(name: str, reader: Evaluated, tv: Layout, tiler: tuple[int, int], base: int) -> Fetch:
    read, fetch = reader.smem[name], reader.copies[f"s2r_{name}"]
    rows, columns, stages = read.outer.sizes
    shape = rows, columns
    held = np.stack(access.repeated(fetch.dst_coords(), fetch.tiler_mn, shape), axis=-1)
    wanted = fragment_coords(tv, tiler, shape)
    rows_at = _addresses(read, fetch, "src", stages) + base
    return Fetch(
        rows_at=rows_at.reshape(*rows_at.shape[:2], -1, 32),
        matrices=fetch.dst_vector * read.element_bytes // 4,
        trans=transposes(f"s2r_{name}", fetch.src_coords(), fetch.dst_coords()),
        registers=places_in(held, wanted.reshape(len(wanted), -1, 2), f"s2r_{name}"),
        shape=wanted.shape[1:4],
    )


def _check_vectors(name: str, load: TiledCopyTV, along: int, vector: int) -> None:
    """A thread's vector must be one of adjacent elements in global memory."""
    first = load.src_coords()[:, : load.src_vector]
    steps = first - first[:, :1]
    if load.src_vector != vector or (steps[..., along] != np.arange(vector)).any() or steps[..., 1 - along].any():
        index = INDICES[name][along]
        raise ValueError(f"g2s_{name}: got vectors that do not run along {index}; needed {vector} elements there")


def _addresses(layout: SmemLayout, copy: TiledCopyTV, side: str, stages: int) -> np.ndarray:
    return np.stack([access.copy_addresses(layout, copy, side, stage) for stage in range(stages)])


def _load(smem: SharedMemory, operand: Load, stage: int, x: np.ndarray, row: int, k: int) -> None:
    """cp.async of one tile: rows outside are not copied; vectors before K are zeroed by plain stores.

    x: (rows, K), contiguous along the operand's mode `along`.
    """
    rows, columns = operand.comes_from[..., 0] + row, operand.comes_from[..., 1] + k
    goes_to = operand.goes_to[stage]
    before = columns < 0
    smem.write(goes_to[before], np.zeros((int(before.sum()), VECTOR_BYTES), np.uint8))
    inside = (rows < x.shape[0]) & ~before
    memory = x if operand.along == 1 else x.T
    source = rows * x.strides[0] + columns * x.strides[1]
    cp_async(smem, goes_to, memory, np.where(inside, source, 0), predicate=inside)


def _fragments(smem: SharedMemory, operand: Fetch, stage: int, bits: int) -> np.ndarray:
    """(warps, instructions along M or N, along K, 32, values) uint16 or uint8: the MMA's registers of one stage."""
    # (instructions, warps, 32, matrices, 2)
    filled = ldmatrix(smem, operand.rows_at[stage], operand.matrices, operand.trans)
    by_thread = filled.transpose(1, 2, 0, 3, 4).reshape(len(operand.registers), -1)
    by_thread = by_thread.view(np.uint8) if bits == 8 else by_thread  # a register's low byte first
    values = np.take_along_axis(by_thread, operand.registers, axis=1)
    return values.reshape(-1, 32, *operand.shape).transpose(0, 3, 4, 1, 2)
