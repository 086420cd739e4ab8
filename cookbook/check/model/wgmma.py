"""The way of A and B on Hopper: TMA boxes into the stages, matrix descriptors, wgmma."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cookbook.check.evaluated import Evaluated
from cookbook.check.model.fragments import fragment_coords
from cookbook.layouts import SmemLayout
from cookbook.model import MatrixDescriptor, SharedMemory, operand_descriptors, tma_load, wgmma
from cookbook.model.tma import swizzle_mode
from cookbook.model.wgmma import INTEGER, K_BYTES

__all__ = ["Boxes", "TmaOperands", "TmaWgmma", "boxes_of", "lines_along"]

BOX_LIMIT = 256  # elements along each side of a TMA box
WARPGROUP = 128  # threads


class Boxes(NamedTuple):
    """The TMA boxes that fill a tile; a box's rows are lines of what is contiguous in global memory."""

    shape: tuple[int, int]  # (rows, columns) in elements
    mode: int  # swizzle: 0, 32, 64 or 128 bytes
    origins: list[tuple[int, int]]  # (row, column) of each box in the tile
    starts: np.ndarray  # (stages, boxes) byte offsets of each box
    along: int = 1  # the tile's mode that the rows of a box run along: with 0 all above is said of its transpose


def lines_along(layout: SmemLayout) -> int:
    """The mode along which elements of a tile (rows, columns, STAGE) are adjacent: 1, or 0 if it lies by columns."""
    table = layout.outer.table()
    return 1 if table[0, 1, 0] - table[0, 0, 0] == 1 else 0


def boxes_of(layout: SmemLayout, along: int = 1) -> Boxes:
    """Cut a tile (rows, K, STAGE) into boxes: a swizzle's width (or 16 bytes) wide, as high as lines follow.

    Args:
        along: the mode along which the operand is contiguous: 1, K, or 0.

    Raises:
        ValueError: TMA cannot write this layout.
    """
    table = layout.outer.table() * layout.element_bytes
    table = table if along == 1 else table.swapaxes(0, 1)
    mode = swizzle_mode(layout.swizzle)
    pitch = mode or 16
    width = pitch // layout.element_bytes
    rows, columns, stages = table.shape
    high = next(h for h in range(min(rows, BOX_LIMIT), 0, -1) if rows % h == 0 and _packed(table, h, pitch))
    block = np.arange(high)[:, None] * pitch + np.arange(width) * layout.element_bytes
    if columns % width:
        raise ValueError(f"layout: got rows of {columns} elements; needed a multiple of {width}, a box's width")
    origins = [(m, k) for k in range(0, columns, width) for m in range(0, rows, high)]
    for m, k in origins:
        if (table[m : m + high, k : k + width, 0] - table[m, k, 0] != block).any():
            raise ValueError(f"layout: got {layout.outer!r}; needed rows packed {pitch} bytes apart, as TMA writes")
    starts = np.array([[table[m, k, s] for m, k in origins] for s in range(stages)])
    return Boxes((high, width), mode, origins, starts, along)


def _packed(table: np.ndarray, high: int, pitch: int) -> bool:
    """Return whether every `high` rows from the top follow one another `pitch` bytes apart."""
    firsts = table[:, 0, 0].reshape(-1, high)
    return bool((firsts - firsts[:, :1] == np.arange(high) * pitch).all())


class TmaOperands:
    """Where the stages of A and B lie, and the TMA boxes that fill them."""

    def __init__(self, writer: Evaluated, reader: Evaluated, along: tuple[int, int] = (1, 1)) -> None:
        """along: the mode along which A (M, K) and B (N, K) are contiguous in global memory. How they lie in shared
        memory the layouts say, and how the MMA takes them to lie there, the reader's."""
        layouts = [writer.smem[name] for name in ("a", "b")]
        (self.tile_m, self.tile_k, self.stages), (self.tile_n, *_) = (layout.outer.sizes for layout in layouts)
        align = max(1024, layouts[1].alignment)
        base_b = -(-max(layouts[0].size_bytes, reader.smem["a"].size_bytes) // align) * align
        size_b = max(layouts[1].size_bytes, reader.smem["b"].size_bytes)
        self.bases = (0, base_b)
        self.smem_bytes = -(-(base_b + size_b) // 16) * 16
        self.boxes = [boxes_of(layout, mode) for layout, mode in zip(layouts, along, strict=True)]

    def load(self, smem: SharedMemory, k_tile: int, a: np.ndarray, b: np.ndarray, row: int, column: int) -> int:
        """The k-th tiles of a at `row` and of b at `column`, each (rows, K), by TMA; returns the stage they go to."""
        stage = k_tile % self.stages
        for x, first, base, boxes in zip((a, b), (row, column), self.bases, self.boxes, strict=True):
            _load(smem, base, boxes, stage, x, first, k_tile * self.tile_k)
        return stage


class TmaWgmma(TmaOperands):
    """The mainloop's tables, made once per configuration, and its simulation of one output tile."""

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        super().__init__(writer, reader, along)
        self.dtype, self.majors = dtype, reader.majors
        mma = reader.mma
        self.n = mma.shape_mnk[1]
        (m, n, k), tile = mma.tiler_mnk, (self.tile_m, self.tile_n, self.tile_k)
        # All threads of a warpgroup share the operands: one of them is enough.
        a = fragment_coords(mma.a, (m, k), (tile[0], tile[2]), WARPGROUP)
        b = fragment_coords(mma.b, (n, k), (tile[1], tile[2]), WARPGROUP)
        self.a = _blocks(reader.smem["a"], 0, mma.shape_mnk[0], a, self.majors[0])
        self.b = _blocks(reader.smem["b"], self.bases[1], self.n, b, self.majors[1])
        coords = fragment_coords(mma.c, (m, n), tile[:2])  # (threads, values, M, N, 2)
        self.c_shape = coords.shape[:-1]
        self.c_coords = coords.reshape(len(coords), -1, 2)

    def multiply(self, smem: SharedMemory, a: np.ndarray, b: np.ndarray, row: int, column: int) -> np.ndarray:
        """(threads, values) accumulators, float32 or int32, of the tile at (row, column) of a @ b.T; a and b are
        uint16, or uint8 where `dtype` is of 8 bits."""
        return self.multiply_k_tiles(smem, (a, b), (row, column), range(self.k_tiles(a)))

    def multiply_k_tiles(
        self, smem: SharedMemory, operands: tuple[np.ndarray, np.ndarray], at: tuple[int, int], k_tiles: range
    ) -> np.ndarray:
        """`multiply` over some of the k-tiles alone."""
        threads, values, m_blocks, n_blocks = self.c_shape
        major_a, major_b = self.majors
        kind = np.int32 if self.dtype == INTEGER else np.float32
        acc = np.zeros((threads // WARPGROUP, m_blocks, n_blocks, WARPGROUP, values), kind)
        for k_tile in k_tiles:
            stage = self.load(smem, k_tile, *operands, *at)
            for group, m, n in np.ndindex(*acc.shape[:3]):
                steps = zip(self.a[stage][group][m], self.b[stage][group][n], strict=True)
                for left, right in steps:
                    acc[group, m, n] = wgmma(
                        smem, left, right, acc[group, m, n], self.dtype, major_a=major_a, major_b=major_b
                    )
        return acc.transpose(0, 3, 4, 1, 2).reshape(threads, -1)

    def k_tiles(self, a: np.ndarray) -> int:
        """Return how many k-tiles a tile takes."""
        return -(-a.shape[1] // self.tile_k)


def _load(smem: SharedMemory, base: int, boxes: Boxes, stage: int, x: np.ndarray, row: int, k: int) -> None:
    """The tile of x (rows, K) at (row, k) into a stage."""
    if boxes.along == 0:
        x, row, k = x.T, k, row
    for (line, at), start in zip(boxes.origins, boxes.starts[stage], strict=True):
        tma_load(smem, base + int(start), x, (row + line, k + at), boxes.shape, boxes.mode)


def _blocks(
    layout: SmemLayout, base: int, rows: int, coords: np.ndarray, major: str
) -> list[list[list[list[MatrixDescriptor]]]]:
    """Descriptors by [stage][warpgroup][block of rows][block of K], where the tiled MMA says each one's block is.

    coords: (warpgroups, values, M, K, 2).
    """
    found = operand_descriptors(layout, rows, base, major)
    k = K_BYTES // layout.element_bytes
    down, across, stages = layout.outer.sizes[0] // rows, layout.outer.sizes[1] // k, layout.outer.sizes[2]
    firsts = coords.min(axis=1)  # (warpgroups, M, K, 2)
    inside = np.moveaxis(coords - firsts[:, None], 1, -2)  # (warpgroups, M, K, values, 2)
    if (np.sort(inside[..., 0] * k + inside[..., 1]) != np.arange(rows * k)).any():
        raise ValueError(f"tiled_mma: got operand blocks that are not {rows} x {k}; needed whole ones")
    index = firsts[..., 0] // rows * across + firsts[..., 1] // k
    return [
        [[[found[s * down * across + i] for i in line] for line in group] for group in index.tolist()]
        for s in range(stages)
    ]
