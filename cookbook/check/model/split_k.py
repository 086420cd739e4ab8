"""Split-K in a cluster, and C straight from registers: what a GEMM for few rows adds to the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cookbook.check.evaluated import Evaluated
from cookbook.check.model.tcgen05 import TmaTcgen05
from cookbook.check.model.wgmma import TmaWgmma
from cookbook.model import SharedMemory, TensorMemory, from_float32

__all__ = ["DividedK", "RegisterStores", "SplitK", "SplitKWgmma"]

FLOAT_BYTES = 4
if TYPE_CHECKING:
    _Mixed = TmaWgmma  # or TmaTcgen05: for the type checker, what both have
else:
    _Mixed = object


class DividedK(_Mixed):
    """Each CTA of a cluster multiplies its part of K; they send each other sums, and each adds its share of them.

    What one CTA multiplies with is the class that this one is mixed into.
    """

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        """Tables, made once per configuration.

        Raises:
            ValueError: the reduction buffer is not for this tile.
        """
        super().__init__(writer, reader, along=along, dtype=dtype)
        assert reader.reduction_buffer is not None, "only kernels with a reduction buffer are simulated like this"
        self.vec = reader.reduction_buffer.modes[1].modes[0].size
        self.at = FLOAT_BYTES * reader.reduction_buffer.table()  # (threads, values, senders) byte addresses
        threads, share, self.ctas = self.at.shape
        owners, sums = self.c_coords.shape[:2]
        if threads != owners or not sums <= share * self.ctas < sums + self.vec * self.ctas:
            have = f"{threads} threads of {share} sums for each of {self.ctas} CTAs"
            raise ValueError(f"reduction_buffer: got {have}; needed {self.c_coords.shape[:2]} (threads, sums) in all")
        self.first, self.each = 0, 0  # k-tiles: where a CTA's part begins, and how long all parts are

    def k_tiles(self, a: np.ndarray) -> int:
        return self.each

    def begin(self) -> None:
        """Another CTA: memories of its own besides shared memory are new."""

    def load(self, smem: SharedMemory, k_tile: int, a: np.ndarray, b: np.ndarray, row: int, column: int) -> int:
        """The k-tile of this CTA's part; beyond K, TMA gives zeros."""
        return super().load(smem, self.first + k_tile, a, b, row, column)

    def multiply(self, smem: SharedMemory, a: np.ndarray, b: np.ndarray, row: int, column: int) -> np.ndarray:
        """(threads, values) float32 sums of the tile at (row, column) of a @ b.T, the shares of all CTAs together."""
        self.each = -(-super().k_tiles(a) // self.ctas)
        parts = []
        for rank in range(self.ctas):
            smem.poison()  # every CTA has memories of its own
            self.begin()
            self.first = rank * self.each
            parts.append(super().multiply(smem, a, b, row, column))
        return np.concatenate([self._added(owner, parts) for owner in range(self.ctas)], axis=1)

    def _added(self, owner: int, parts: list[np.ndarray]) -> np.ndarray:
        """(threads, share): what a CTA adds up from its reduction buffer, sender by sender."""
        buffer = SharedMemory(-(-(int(self.at.max()) + FLOAT_BYTES) // 16) * 16)
        threads, share, _ = self.at.shape
        mine = [sums[:, owner * share : (owner + 1) * share] for sums in parts]  # the last shares may be smaller
        each = mine[0].shape[1]
        firsts = self.at[:, : each : self.vec]  # one address for each vector of `vec` sums
        for sender, sums in enumerate(mine):
            buffer.write(firsts[..., sender], sums.reshape(threads, each // self.vec, self.vec))
        total = np.zeros((threads, each), np.float32)
        for sender in range(self.ctas):
            total += buffer.read(firsts[..., sender], self.vec, np.float32).reshape(threads, each)
        return total


class SplitK(DividedK, TmaTcgen05):
    """With the accumulators of each CTA in its tensor memory."""

    def begin(self) -> None:
        self.tmem = [TensorMemory()]
        self.tmem[0].alloc(self.columns)


class SplitKWgmma(DividedK, TmaWgmma):
    """With the accumulators of each CTA in registers."""


class RegisterStores:
    """No shared memory: each thread rounds its accumulators and stores them one by one."""

    smem_bytes = 0
    along = 1  # as in VectorStores; single elements can go to lines along either mode

    def __init__(
        self, writer: Evaluated, reader: Evaluated, c_coords: np.ndarray, dtype: str, operand_bytes: int
    ) -> None:
        """c_coords: (threads, values, 2), the coordinate in the tile of each sum."""
        self.coords, self.dtype = c_coords, dtype

    def store(self, smem: SharedMemory, accumulators: np.ndarray, out: np.ndarray, row: int, column: int) -> None:
        """Round and store one tile whose first element is out[row, column], where it lies inside `out`."""
        rows, columns = self.coords[..., 0] + row, self.coords[..., 1] + column
        inside = (rows < out.shape[0]) & (columns < out.shape[1])
        bits = accumulators if self.dtype == "int32" else from_float32(accumulators, self.dtype)
        out[rows[inside], columns[inside]] = bits[inside]
