"""What a request asks for: shapes of accesses, as sets of offsets in a tile.

Offsets count elements in row-major order: element (row, column) of an R x C tile is row * C + column. Of a
tile whose sides are powers of two the offset's bits are column bits below row bits, and a block at an aligned
place is a coset of a linear span over GF(2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cookbook.gf2 import rank_of_ints

__all__ = ["Banks", "Block", "Pattern", "Span", "as_pattern", "is_power_of_two", "log2"]

MAX_VECTOR = 16  # bytes: the widest access of one lane


@dataclass(frozen=True)
class Banks:
    """The memory: `count` banks (one lane each) of `bytes` bytes. 32 of 4 on every GPU so far; toys have fewer."""

    count: int = 32
    bytes: int = 4

    def __post_init__(self) -> None:
        for name in ("count", "bytes"):
            if not is_power_of_two(getattr(self, name)):
                raise ValueError(
                    f"bank{'s' if name == 'count' else '_bytes'}: got {getattr(self, name)}; needed a power of two"
                )

    @property
    def line(self) -> int:
        """Bytes that all banks give in one wavefront."""
        return self.count * self.bytes


@dataclass(frozen=True)
class Block:
    """rows x columns elements, `row_step` rows and `column_step` columns apart; aligned to its own size.

    Lanes run along a row first, each with a vector of up to 16 contiguous bytes. What is more than the banks
    give at once is served in phases, so name the 8 x 16 bytes of one phase where the instruction (ldmatrix)
    orders its lanes down the rows.
    """

    rows: int
    columns: int
    row_step: int = 1
    column_step: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "row_step", "column_step"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name}: got {value!r}; needed an int of 1 or more")

    def __str__(self) -> str:
        steps = f"/{self.row_step}x{self.column_step}" if (self.row_step, self.column_step) != (1, 1) else ""
        return f"{self.rows}x{self.columns}{steps}"

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns from the first to the last, both counted, rounded up to whole steps."""
        return self.rows * self.row_step, self.columns * self.column_step

    def check(self, tile: tuple[int, int]) -> None:
        """Raises ValueError when the block does not fit in the tile."""
        reach = (self.rows - 1) * self.row_step + 1, (self.columns - 1) * self.column_step + 1
        if reach[0] > tile[0] or reach[1] > tile[1]:
            raise ValueError(
                f"accesses: got {self}, which spans {reach[0]}x{reach[1]}; needed one inside {tile[0]}x{tile[1]}"
            )

    def basis(self, tile: tuple[int, int]) -> list[int]:
        """Offsets whose sums are the block, in lane order: columns first.

        Raises:
            ValueError: a side or step that is no power of two, or a block that does not fit.
        """
        self.check(tile)
        for name in ("rows", "columns", "row_step", "column_step"):
            if not is_power_of_two(getattr(self, name)):
                value = getattr(self, name)
                raise ValueError(
                    f"accesses: got {self} with {name} = {value}; needed a power of two, {1 << log2(value)}"
                )
        columns = [self.column_step << i for i in range(log2(self.columns))]
        return columns + [tile[1] * self.row_step << i for i in range(log2(self.rows))]


@dataclass(frozen=True)
class Span:
    """All sums (XOR) of the given offsets, in lane order: vector bits, then lane bits from the lowest up."""

    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", tuple(int(v) for v in self.offsets))
        if any(v < 1 for v in self.offsets) or rank_of_ints(self.offsets) < len(self.offsets):
            raise ValueError(f"accesses: got the basis {self.offsets}; needed independent offsets of 1 or more")

    def __str__(self) -> str:
        return "span(" + ",".join(map(str, self.offsets)) + ")"

    def basis(self, tile: tuple[int, int]) -> list[int]:
        """The offsets, once they are seen to lie in the tile."""
        if self.offsets and max(self.offsets) >= tile[0] * tile[1]:
            raise ValueError(f"accesses: got {self}; needed offsets below {tile[0] * tile[1]}")
        return list(self.offsets)


Pattern: TypeAlias = "Block | Span"


def as_pattern(value: Pattern | Sequence[int]) -> Pattern:
    """A Block from (rows, columns) or (rows, columns, row step, column step); a Block or Span as it is."""
    if isinstance(value, (Block, Span)):
        return value
    if isinstance(value, (tuple, list)) and len(value) in (2, 4):
        return Block(*value)
    raise TypeError(
        f"accesses: got {value!r}; needed (rows, columns), (rows, columns, row step, column step) or Span(basis)"
    )


def contiguous(basis: Sequence[int]) -> int:
    """log2 of the neighbouring elements that a span takes whole: the most low unit vectors in it."""
    count = 0
    while rank_of_ints([*basis, 1 << count]) == len(basis):
        count += 1
    return count


def phase(basis: Sequence[int], element_bits: int, banks: Banks) -> tuple[list[int], int]:
    """The part of a span that the banks serve together, and the number of such phases.

    A lane moves its contiguous elements, up to 16 bytes, at once; a phase is `banks.line` bytes, and one lane
    for each bank at the most.
    """
    own = min(contiguous(basis), max(0, log2(MAX_VECTOR * 8 // element_bits)))
    vector = [1 << i for i in range(own)]
    ordered = vector + [
        v for i, v in enumerate(basis) if rank_of_ints([*vector, *basis[: i + 1]]) > rank_of_ints([*vector, *basis[:i]])
    ]
    most = min(max(0, log2(banks.line * 8 // element_bits)), own + log2(banks.count))
    return ordered[:most], 1 << max(0, len(basis) - most)


def is_power_of_two(value: int) -> bool:
    return value >= 1 and not value & (value - 1)


def log2(value: int) -> int:
    """The exponent of the largest power of two that is not above `value` (1 or more)."""
    return int(value).bit_length() - 1
