"""Scaled 8-bit operands: A and B go as 16-bit ones do; the kernel multiplies the accumulators by scale factors."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from cookbook.check.evaluated import Evaluated, evaluated, vector_for
from cookbook.check.model.mma_sync import CpAsyncLdmatrix
from cookbook.check.model.product import global_bytes, simulate_tiles
from cookbook.check.model.split_k import DividedK
from cookbook.check.model.wgmma import TmaWgmma
from cookbook.check.scaled import Scaled
from cookbook.model import SharedMemory
from cookbook.recipe.formats import FORMATS

__all__ = ["Operand", "ScaledLdmatrix", "ScaledWgmma", "SplitKScaledWgmma", "simulate_fp8", "simulate_fp8_evaluated"]


class Operand(NamedTuple):
    """A or B in global memory."""

    stored: np.ndarray  # (rows, K) uint8
    scales: np.ndarray  # (blocks of rows, blocks along K) float32
    rows: int  # that share a scale factor

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape

    def scales_of(self, rows: np.ndarray, block: int) -> np.ndarray:
        """Return those of `rows` in a block of K; past the last row there is nothing, and the last one's do."""
        return self.scales[np.minimum(rows // self.rows, len(self.scales) - 1), block]


class ScaledWgmma(TmaWgmma):
    """`TmaWgmma` of 8-bit operands; the accumulators of a block of K times their row's factor and their column's, in
    float32, are added up."""

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        assert reader.scaled is not None  # of a recipe that names its operands
        super().__init__(writer, reader, dtype, along)
        self.block = reader.scaled.block

    def multiply(self, smem: SharedMemory, a: Operand, b: Operand, row: int, column: int) -> np.ndarray:
        m, n = self.c_coords[..., 0], self.c_coords[..., 1]
        k_tiles = self.k_tiles(a.stored)
        each = self.block // self.tile_k or k_tiles  # of one block
        total = np.zeros(m.shape, np.float32)
        for block, first in enumerate(range(0, k_tiles, each)):
            mine = range(first, min(first + each, k_tiles))
            sums = self.multiply_k_tiles(smem, (a.stored, b.stored), (row, column), mine)
            total += sums * a.scales_of(row + m, block) * b.scales_of(column + n, block)
        return total


class SplitKScaledWgmma(DividedK, ScaledWgmma):
    """Each CTA of a cluster multiplies its sums by scale factors before it sends them."""


class ScaledLdmatrix(CpAsyncLdmatrix):
    """`CpAsyncLdmatrix` of 8-bit operands; the accumulators times their row's factor and their column's, in float32."""

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str) -> None:
        form = reader.scaled
        assert form is not None  # of a recipe that names its operands
        if form.block:
            raise ValueError(f"operands: got {form.name}, factors of blocks; needed factors of whole rows")
        super().__init__(writer, reader, dtype)

    def multiply(self, smem: SharedMemory, a: Operand, b: Operand, row: int, column: int) -> np.ndarray:
        sums = super().multiply(smem, a.stored, b.stored, row, column)
        m, n = self.c_coords[..., 0], self.c_coords[..., 1]
        return sums * a.scales_of(row + m, 0) * b.scales_of(column + n, 0)


def simulate_fp8(module: ModuleType, a: Scaled, b: Scaled, dtype: Any, config: Any) -> np.ndarray:
    """The product of what `a` (M, K) and `b` (N, K) stand for, as the recipe computes it.

    Args:
        module: a recipe whose front matter names `operands` whose scale factors the kernel multiplies by.
        a: (rows, K) uint8 with float32 scale factors: (rows, 1), or one for each block.
        b: likewise; rows may share them.
        dtype: the cutlass numeric type of the output: Float16 or BFloat16.
        config: the recipe's Config.

    Returns:
        (M, N) float32, rounded to `dtype`. Exact wherever all partial sums are exact in float32.

    Raises:
        ValueError: operands of two formats or depths, or a layout that the recipe's instructions cannot take.
    """
    found = evaluated(module, dtype, config, vector_for(b.codes.shape[0]))
    name = {"Float16": "float16", "BFloat16": "bfloat16"}[dtype.__name__]
    if getattr(module, "TRANSPOSED", False):  # A is b, B is a, and C is transposed
        return simulate_fp8_evaluated(found, found, b, a, name, config).T
    return simulate_fp8_evaluated(found, found, a, b, name, config)


def simulate_fp8_evaluated(
    writer: Evaluated, reader: Evaluated, a: Scaled, b: Scaled, dtype: str, config: Any
) -> np.ndarray:
    """`simulate_fp8` with the layouts of those who write memory and of those who read it told apart."""
    if a.format != b.format or a.codes.shape[1] != b.codes.shape[1]:
        raise ValueError(
            f"a, b: got {a.format} of K = {a.codes.shape[1]}, {b.format} of {b.codes.shape[1]}; needed one"
        )
    left, right = (Operand(global_bytes(x.stored), x.scales, x.together) for x in (a, b))
    path = SplitKScaledWgmma if reader.reduction_buffer else ScaledWgmma
    path = path if reader.reads_by_descriptor else ScaledLdmatrix
    element = FORMATS[a.format].element
    return simulate_tiles(path(writer, reader, element), writer, reader, left, right, dtype, config)
