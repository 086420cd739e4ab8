"""The way of C: accumulators -> rounded -> shared memory -> predicated vectors or TMA boxes to global memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cookbook import access
from cookbook.check.evaluated import Evaluated
from cookbook.check.model.fragments import places_in, transposes
from cookbook.check.model.wgmma import WARPGROUP, boxes_of, lines_along
from cookbook.layouts import SmemLayout, TiledCopyTV
from cookbook.model import SharedMemory, from_float32, stmatrix, tma_store

__all__ = ["BoxStores", "VectorStores"]


class VectorStores:
    """The tile through shared memory, then to global memory in vectors: `r2s_c` and `s2g_c`.

    The whole tile at once, (M, N), over A and B; or, where C has a mode of buffers, (rows, N, BUFFER), that many rows
    at a time next to them.
    """

    along = 1  # the mode that lines of C in global memory run along

    def __init__(
        self, writer: Evaluated, reader: Evaluated, c_coords: np.ndarray, dtype: str, operand_bytes: int
    ) -> None:
        """Tables, made once per configuration.

        Args:
            c_coords: (threads, values, 2), the coordinate in the tile of each accumulator.
            operand_bytes: of shared memory that A and B take; C lies over them, or its buffers come after them.
        """
        layout, copy, to_global = writer.smem["c"], writer.copies["r2s_c"], reader.copies["s2g_c"]
        rows, columns, *buffers = layout.outer.sizes
        self.buffers = buffers[0] if buffers else 1
        align = max(layout.alignment, reader.smem["c"].alignment)
        base = -(-operand_bytes // align) * align if buffers else 0
        self.dtype = dtype
        self.smem_bytes = base + -(-max(layout.size_bytes, reader.smem["c"].size_bytes) // 16) * 16
        self.writing = Writing(copy, layout)
        firsts = range(0, int(c_coords[..., 0].max()) + 1, rows)
        wanted = {first: self.writing.coords + np.array((first, 0)) for first in firsts}
        self.pieces = [(first, places_in(c_coords, coords, "r2s_c")) for first, coords in wanted.items()]
        each = range(self.buffers)
        self.write_at = [base + access.copy_addresses(layout, copy, "dst", b) for b in each]  # (instructions, threads)
        self.read_at = [base + access.copy_addresses(reader.smem["c"], to_global, "src", b) for b in each]
        self.width = to_global.src_vector
        coords = np.stack(access.repeated(to_global.dst_coords(), to_global.tiler_mn, (rows, columns)), axis=-1)
        vectors = coords.reshape(len(coords), -1, self.width, 2)  # down a column of a tile that is computed transposed
        self.goes_to = vectors.transpose(1, 0, 2, 3)  # (instructions, threads, elements, 2)

    def store(self, smem: SharedMemory, accumulators: np.ndarray, out: np.ndarray, row: int, column: int) -> None:
        """Round, stage and store one tile whose first element is out[row, column].

        Args:
            accumulators: (threads, values) float32.
            out: (M, N) uint16, written where the tile lies inside it.
        """
        for number, (first, values) in enumerate(self.pieces):
            buffer = number % self.buffers
            bits = from_float32(np.take_along_axis(accumulators, values, axis=1), self.dtype)
            self.writing.write(smem, self.write_at[buffer], bits)
            data = smem.read(self.read_at[buffer], self.width)
            rows, columns = self.goes_to[..., 0] + row + first, self.goes_to[..., 1] + column
            inside = (rows[..., 0] < out.shape[0]) & (columns[..., 0] < out.shape[1])  # the first one speaks for all
            out[rows[inside], columns[inside]] = data[inside]


class Piece(NamedTuple):
    """A part of the tile that one warpgroup has in its accumulators, and that one buffer holds."""

    warpgroup: int
    row: int
    column: int
    values: np.ndarray  # (WARPGROUP, values of the piece): which of a thread's accumulators `r2s_c` takes


class BoxStores:
    """The tile in pieces, each through a buffer and out by TMA: `r2s_c` is a warpgroup's copy of one piece.

    Where lines of the buffer run along mode 0, so do those of C in global memory.
    """

    def __init__(
        self, writer: Evaluated, reader: Evaluated, c_coords: np.ndarray, dtype: str, operand_bytes: int
    ) -> None:
        """Tables, made once per configuration.

        Args:
            c_coords: (threads, values, 2), the coordinate in the tile of each accumulator.
            operand_bytes: of shared memory that A and B take; the buffers come after them.

        Raises:
            ValueError: a copy of other than a warpgroup, accumulators of a piece that are not one warpgroup's, or
                buffers that TMA cannot read.
        """
        layout, copy = writer.smem["c"], writer.copies["r2s_c"]
        if copy.threads != WARPGROUP or len(layout.outer.sizes) != 3:
            needed = f"a copy of {WARPGROUP} threads into buffers (64, EPI_N, BUFFER)"
            raise ValueError(f"r2s_c: got {copy.threads} threads and a layout {layout.outer!r}; needed {needed}")
        align = max(1024, layout.alignment, reader.smem["c"].alignment)
        base = -(-operand_bytes // align) * align
        self.dtype = dtype
        self.smem_bytes = base + -(-max(layout.size_bytes, reader.smem["c"].size_bytes) // 16) * 16
        self.writing = Writing(copy, layout)
        self.buffers = layout.outer.sizes[2]
        self.write_at = [base + access.copy_addresses(layout, copy, "dst", stage) for stage in range(self.buffers)]
        self.along = lines_along(reader.smem["c"])
        self.boxes = boxes_of(reader.smem["c"], self.along)
        self.read_at = base + self.boxes.starts  # (buffers, boxes)
        self.pieces = _pieces(c_coords, self.writing.coords, layout.outer.sizes[:2])

    def store(self, smem: SharedMemory, accumulators: np.ndarray, out: np.ndarray, row: int, column: int) -> None:
        """Round, stage and store one tile, as `VectorStores.store` does; TMA leaves out what lies outside `out`."""
        tensor = out if self.along == 1 else out.T
        for number, piece in enumerate(self.pieces):
            buffer = number % self.buffers
            first = (row + piece.row, column + piece.column)
            of_group = accumulators[piece.warpgroup * WARPGROUP :][:WARPGROUP]
            bits = from_float32(np.take_along_axis(of_group, piece.values, axis=1), self.dtype)
            self.writing.write(smem, self.write_at[buffer], bits)
            for (line, at), start in zip(self.boxes.origins, self.read_at[buffer], strict=True):
                origin = (first[1 - self.along] + line, first[self.along] + at)
                tma_store(smem, int(start), tensor, origin, self.boxes.shape, self.boxes.mode)


class Writing:
    """A tiled copy from registers to shared memory: `stmatrix` where threads exchange values, else plain stores."""

    def __init__(self, copy: TiledCopyTV, layout: SmemLayout) -> None:
        repeats = access.repeated(copy.src_coords(), copy.tiler_mn, layout.outer.sizes[:2])
        self.coords = np.stack(repeats, axis=-1)  # (threads, values, 2): the element that each value is
        self.vector = copy.src_vector
        self.exchanges = not np.array_equal(copy.src_tv.table(), copy.dst_tv.table())
        self.trans = self.exchanges and transposes("r2s_c", copy.dst_coords(), copy.src_coords())

    def write(self, smem: SharedMemory, addresses: np.ndarray, bits: np.ndarray) -> None:
        """Write `bits` (threads, values) to `addresses` (instructions, threads)."""
        bits = bits.reshape(len(bits), -1, self.vector).transpose(1, 0, 2)  # (instructions, threads, vector)
        if self.exchanges:
            by_warp = addresses.reshape(len(addresses), -1, access.LANES)
            stmatrix(smem, by_warp, bits.reshape(*by_warp.shape, self.vector // 2, 2), self.trans)
        else:
            smem.write(addresses, bits)


def _pieces(held: np.ndarray, wanted: np.ndarray, shape: tuple[int, int]) -> list[Piece]:
    """The pieces of a tile, each with the warpgroup that has its rows, in the order of rows, then columns.

    Args:
        held: (threads, values, 2) coordinates of the tile's accumulators.
        wanted: (WARPGROUP, values, 2) coordinates inside a piece.
        shape: of a piece; where it does not divide the tile, a coordinate is asked for that no thread holds.
    """
    rows, columns = shape
    pieces = []
    for group, of_group in enumerate(held.reshape(-1, WARPGROUP, *held.shape[1:])):
        for row in np.unique(of_group[..., 0] // rows).tolist():
            for column in range(0, int(held[..., 1].max()) + 1, columns):
                first = (row * rows, column)
                pieces.append(Piece(group, *first, places_in(of_group, wanted + np.array(first), "r2s_c")))
    return pieces
