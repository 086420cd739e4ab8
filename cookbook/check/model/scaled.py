"""The way of block-scaled operands: as on Blackwell's other pages, and with it that of their scale factors.

Atoms of scale factors by TMA into the stages, by tcgen05.cp into tensor memory, and from there into tcgen05.mma.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from cookbook.check.evaluated import Evaluated, evaluated
from cookbook.check.model.product import global_bytes, simulate_tiles
from cookbook.check.model.tcgen05 import UNIT, TmaTcgen05, describe_blackwell
from cookbook.check.model.wgmma import BOX_LIMIT
from cookbook.check.scaled import Scaled, atoms_as_words, tensors
from cookbook.layouts import Layout, SmemLayout
from cookbook.model import BlackwellDescriptor, SharedMemory, TmemAddress, tma_load
from cookbook.model.scale_factors import ATOM_BYTES
from cookbook.model.tcgen05 import mma
from cookbook.model.tmem import cp
from cookbook.swizzle import Swizzle

__all__ = ["ScalePath", "TmaScaled", "atom_descriptor", "scale_path", "simulate_scaled", "simulate_scaled_evaluated"]

ATOM_ROWS = 128
CELL = 4  # bytes of a cell of tensor memory: places there are counted in bytes, as CuTe does
WORD = 8  # bytes: what the boxes of TMA count


def atom_descriptor() -> BlackwellDescriptor:
    """Return what tcgen05.cp.32x128b is told of an atom at byte 0: 32 lines of 16 bytes, which need no swizzle.

    Such a line is one chunk of 16 bytes, so no second one is `lbo` away; CuTe writes 16.
    """
    lines = SmemLayout(Layout((32, 16), (16, 1)), Swizzle(0, 4, 3), 8)
    return replace(describe_blackwell(lines, "K", 32), lbo=UNIT)


class ScalePath(NamedTuple):
    """The way of one operand's scale factors: places in bytes of shared memory, or of tensor memory, from the first."""

    box: tuple[int, int]  # of TMA: (atoms down, words)
    boxes: np.ndarray  # (stages,) where in shared memory each stage's box begins
    atoms: np.ndarray  # (HIGH, WIDE, STAGE): where in shared memory tcgen05.cp finds each atom
    copied: np.ndarray  # (HIGH, WIDE, STAGE): the cell of tensor memory it takes it to, lane << 16 | column
    steps: np.ndarray  # (MMA_K, STAGE): the byte of tensor memory that each tcgen05.mma begins with


def scale_path(writer: Evaluated, reader: Evaluated, name: str) -> ScalePath:
    """The way of the scale factors of operand "a" or "b".

    Raises:
        ValueError: a box that TMA does not write like that, or an atom that begins inside a cell of tensor memory.
    """
    boxes = writer.fragments[f"sf{name}.boxes"]
    high, words, _ = boxes.sizes
    table = boxes.table() * WORD
    packed = np.arange(high)[:, None] * words * WORD + np.arange(words) * WORD
    if (table - table[:1, :1] != packed[..., None]).any() or max(high, words) > BOX_LIMIT:
        needed = f"rows that follow one another, as TMA writes them, and at most {BOX_LIMIT} words and rows"
        raise ValueError(f"sf{name}.boxes: got {boxes!r}; needed {needed}")
    atoms, copied, steps = (reader.fragments[f"sf{name}.{x}"].table() for x in ("atoms", "copied", "steps"))
    cells = copied[0, 0]
    if (cells % CELL).any():
        raise ValueError(f"sf{name}.copied: got bytes {cells.reshape(-1).tolist()}; needed whole cells of {CELL}")
    return ScalePath((high, words), table[0, 0], atoms[0, 0] * UNIT, cells // CELL, steps)


class Operand(NamedTuple):
    """A or B in global memory."""

    stored: np.ndarray  # (rows, bytes) uint8
    words: np.ndarray  # (blocks of 128 rows, words) uint64: atoms of scale factors

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape


class TmaScaled(TmaTcgen05):
    """The mainloop's tables, those of the scale factors among them, and its simulation of one output tile."""

    def __init__(self, writer: Evaluated, reader: Evaluated, dtype: str, along: tuple[int, int] = (1, 1)) -> None:
        super().__init__(writer, reader, dtype, along)
        self.paths = [scale_path(writer, reader, name) for name in "ab"]
        self.columns = reader.scale_columns
        sizes = [max(found.smem[f"sf{name}"].size_bytes for found in (writer, reader)) for name in "ab"]
        first = -(-self.smem_bytes // ATOM_BYTES) * ATOM_BYTES
        self.scale_bases = (first, first + sizes[0])
        self.smem_bytes = first + sum(sizes)

    def load(self, smem: SharedMemory, k_tile: int, a: Any, b: Any, row: int, column: int) -> int:
        """`TmaOperands.load` of two `Operand`s; then their scale factors, by TMA and tcgen05.cp."""
        stage = super().load(smem, k_tile, a.stored, b.stored, row, column)
        for x, first, base, path in zip((a, b), (row, column), self.scale_bases, self.paths, strict=True):
            origin = (first // ATOM_ROWS, k_tile * path.box[1])
            tma_load(smem, base + int(path.boxes[stage]), x.words, origin, path.box)
        for base, path, column_0 in zip(self.scale_bases, self.paths, self.columns, strict=True):
            for at in np.ndindex(path.atoms.shape[:2]):
                descriptor = replace(atom_descriptor(), start=base + int(path.atoms[(*at, stage)]))
                address = self._at(column_0 + path.copied[(*at, stage)])
                cp(smem, self.tmem[0], address, descriptor, "32x128b", "warpx4")
        return stage

    def product(
        self,
        smems: list[SharedMemory],
        d: TmemAddress,
        operands: tuple[BlackwellDescriptor, BlackwellDescriptor],
        stage: int,
        k: int,
        accumulate: bool,
    ) -> None:
        """One tcgen05.mma, told where its scale factors begin: a cell, and a byte of it."""
        firsts = [int(path.steps[k, stage]) for path in self.paths]
        cells = [self._at(column + first // CELL) for column, first in zip(self.columns, firsts, strict=True)]
        word = replace(self.instruction, a_sf_id=firsts[0] % CELL, b_sf_id=firsts[1] % CELL)
        mma(smems, self.tmem, d, *operands, word, accumulate=accumulate, scale_a=cells[0], scale_b=cells[1])


def simulate_scaled(module: ModuleType, a: Scaled, b: Scaled, dtype: Any, config: Any) -> np.ndarray:
    """The product of what `a` (M, K) and `b` (N, K) stand for, as the recipe computes it.

    Args:
        module: a recipe whose front matter names `operands`: see docs/contract.md.
        a: scale factors as a matrix; the recipe's own `to_atoms` brings them into the order of atoms.
        b: likewise.
        dtype: the cutlass numeric type of the output.
        config: the recipe's Config.

    Returns:
        (M, N) float32, rounded to `dtype`. Exact wherever all partial sums are exact in float32.

    Raises:
        ValueError: operands of two formats or depths, or a layout that the recipe's instructions cannot take.
    """
    found = evaluated(module, dtype, config)
    return simulate_scaled_evaluated(found, found, module, a, b, config)


def simulate_scaled_evaluated(
    writer: Evaluated, reader: Evaluated, module: ModuleType, a: Scaled, b: Scaled, config: Any
) -> np.ndarray:
    """`simulate_scaled` to bfloat16, with the layouts of those who write memory and of those who read it told apart."""
    if a.format != b.format or a.codes.shape[1] != b.codes.shape[1]:
        raise ValueError(
            f"a, b: got {a.format} of K = {a.codes.shape[1]}, {b.format} of {b.codes.shape[1]}; needed one"
        )
    left, right = (Operand(global_bytes(x.stored), _words(module, x)) for x in (a, b))
    return simulate_tiles(TmaScaled(writer, reader, "bfloat16"), writer, reader, left, right, "bfloat16", config)


def _words(module: ModuleType, operand: Scaled) -> np.ndarray:
    _, scales = tensors(operand)
    return atoms_as_words(module.to_atoms(scales).numpy(), len(operand.codes))
