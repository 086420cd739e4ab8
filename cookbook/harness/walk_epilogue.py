"""The way of C: accumulators -> rounded -> shared memory -> predicated vectors to global memory."""

from __future__ import annotations

import numpy as np

from cookbook import access
from cookbook.harness.evaluated import Evaluated
from cookbook.harness.walk_fragments import places_in
from cookbook.model import SharedMemory, from_float32, stmatrix

__all__ = ["Epilogue"]


class Epilogue:
    """Tables for `r2s_c` and `s2g_c`, made once per configuration."""

    def __init__(self, writer: Evaluated, reader: Evaluated, c_coords: np.ndarray, dtype: str) -> None:
        """c_coords: (threads, values, 2), the coordinate in the tile of each accumulator."""
        layout = writer.smem["c"]
        shape = layout.outer.sizes
        to_smem, to_global = writer.copies["r2s_c"], reader.copies["s2g_c"]
        wanted = np.stack(access.repeated(to_smem.src_coords(), to_smem.tiler_mn, shape), axis=-1)
        self.dtype = dtype
        self.smem_bytes = -(-max(layout.size_bytes, reader.smem["c"].size_bytes) // 16) * 16
        self.values = places_in(c_coords, wanted, "r2s_c")
        self.vector = to_smem.src_vector
        self.exchanges = not np.array_equal(to_smem.src_tv.table(), to_smem.dst_tv.table())
        self.write_at = access.copy_addresses(layout, to_smem, "dst")  # (instructions, threads)
        self.read_at = access.copy_addresses(reader.smem["c"], to_global, "src")
        self.width = to_global.src_vector
        coords = np.stack(access.repeated(to_global.dst_coords(), to_global.tiler_mn, shape), axis=-1)
        self.goes_to = coords[:, :: self.width].transpose(1, 0, 2)  # (instructions, threads, 2): the first element

    def store(self, smem: SharedMemory, accumulators: np.ndarray, out: np.ndarray, row: int, column: int) -> None:
        """Round, stage and store one tile whose first element is out[row, column].

        Args:
            accumulators: (threads, values) float32.
            out: (M, N) uint16, written where the tile lies inside it.
        """
        bits = from_float32(np.take_along_axis(accumulators, self.values, axis=1), self.dtype)
        bits = bits.reshape(len(bits), -1, self.vector).transpose(1, 0, 2)  # (instructions, threads, vector)
        if self.exchanges:
            warps = (*self.write_at.shape[:1], -1, 32)
            stmatrix(smem, self.write_at.reshape(warps), bits.reshape(*warps, self.vector // 2, 2))
        else:
            smem.write(self.write_at, bits)
        data = smem.read(self.read_at, self.width)
        rows, columns = self.goes_to[..., 0] + row, self.goes_to[..., 1] + column
        inside = (rows < out.shape[0]) & (columns < out.shape[1])  # the first element speaks for its vector
        out[rows[inside][:, None], columns[inside][:, None] + np.arange(self.width)] = data[inside]
