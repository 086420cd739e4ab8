"""Requests as patterns: shapes of accesses, as sets of offsets in a tile.

Offsets count elements in row-major order: element (row, column) of an R x C tile is row * C + column. Of a
tile whose sides are powers of two the offset's bits are column bits below row bits, and a block at an aligned
place is a coset of a linear span over GF(2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cookbook.arguments import integer, is_integer, pair, shown, wrong_type
from cookbook.gf2 import rank_of_ints
from cookbook.swizzle import element_width

__all__ = ["Banks", "Block", "Span"]

MAX_VECTOR = 16  # bytes: the widest access of one lane
MAX_ELEMENTS = 1 << 16  # of a tile: far more than repeats
MAX_BANKS, MAX_BANK_BYTES = 256, 16  # what the search can hold in memory


@dataclass(frozen=True)
class Banks:
    """The memory: `count` banks (one lane each) of `bytes` bytes. 32 of 4 on every GPU so far; toys have fewer."""

    count: int = 32
    bytes: int = 4

    def __post_init__(self) -> None:
        for name, most in (("count", MAX_BANKS), ("bytes", MAX_BANK_BYTES)):
            value = integer(name, getattr(self, name), at_least=1, at_most=most, power_of_two=True)
            object.__setattr__(self, name, value)

    @property
    def line(self) -> int:
        """Bytes that all banks give in one wavefront."""
        return self.count * self.bytes


@dataclass(frozen=True)
class Block:
    """rows x columns elements, `row_step` rows and `column_step` columns apart; aligned to its own size.

    Lanes run along a row first, each with a vector of up to 16 contiguous bytes. What is more than the banks
    give at once is served in phases. An ldmatrix is something else, for its lanes run down the rows: say it as an
    instruction, "ldmatrix.x4@16x16" (`cookbook.solve.instructions`).
    """

    rows: int
    columns: int
    row_step: int = 1
    column_step: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "row_step", "column_step"):
            value = integer(name, getattr(self, name), at_least=1, at_most=MAX_ELEMENTS)
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        steps = f"/{self.row_step}x{self.column_step}" if (self.row_step, self.column_step) != (1, 1) else ""
        return f"{self.rows}x{self.columns}{steps}"

    @property
    def regular(self) -> bool:
        """True if sides and steps are powers of two."""
        return all(map(is_power_of_two, (self.rows, self.columns, self.row_step, self.column_step)))

    def vector(self, tile: tuple[int, int], element_bits: int) -> int:
        """Elements that a lane moves at once: neighbours in a row, a power of two, aligned, up to 16 bytes."""
        tile, element_bits = checked_tile(tile), element_width(element_bits)
        if self.column_step > 1:
            return 1
        most = max(1, MAX_VECTOR * 8 // element_bits)
        return math.gcd(tile[1] if tile[0] > 1 else self.columns, self.columns, most)

    def check(self, tile: tuple[int, int]) -> None:
        """Raises ValueError when the block does not fit in the tile of (rows, columns)."""
        tile = checked_tile(tile)
        reach = (self.rows - 1) * self.row_step + 1, (self.columns - 1) * self.column_step + 1
        if reach[0] > tile[0] or reach[1] > tile[1]:
            raise ValueError(
                f"tile: got {tile[0]}x{tile[1]}; needed {reach[0]}x{reach[1]} at least to hold access {self}"
            )

    def basis(self, tile: tuple[int, int]) -> list[int]:
        """Offsets whose sums are the block, in lane order: columns first.

        Raises:
            ValueError: a side or step that is no power of two, or a block that does not fit.
        """
        self.check(tile)
        check_powers(self)
        columns = [self.column_step << i for i in range(log2(self.columns))]
        return columns + [int(tile[1]) * self.row_step << i for i in range(log2(self.rows))]


def check_powers(access: Any) -> None:
    """Raises ValueError when a side or step of an access is no power of two."""
    for name in ("rows", "columns", "row_step", "column_step"):
        if not is_power_of_two(value := getattr(access, name)):
            raise ValueError(
                f"accesses: got {access}, with {name} = {value}; needed a power of two, {1 << log2(value)}, on "
                "a tile whose sides are powers of two"
            )


@dataclass(frozen=True)
class Span:
    """All sums (XOR) of the given offsets, in lane order: vector bits, then lane bits from the lowest up."""

    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.offsets, (tuple, list)):
            wrong_type("offsets", self.offsets, "a tuple of integers of 1 or more")
        if not self.offsets:
            raise ValueError("offsets: got none; needed one at least")
        most = MAX_ELEMENTS - 1
        found = tuple(integer("offsets", v, at_least=1, at_most=most) for v in self.offsets)
        if rank_of_ints(found) < len(found):
            raise ValueError(f"offsets: got {shown(found)}; needed independent offsets, none an XOR of others")
        object.__setattr__(self, "offsets", found)

    def __str__(self) -> str:
        return "span(" + ",".join(map(str, self.offsets)) + ")"

    def basis(self, tile: tuple[int, int]) -> list[int]:
        """The offsets, once they are seen to lie in a tile whose sides are powers of two."""
        tile = checked_tile(tile)
        if not all(map(is_power_of_two, tile)):
            raise ValueError(
                f"tile: got {tile[0]}x{tile[1]} for {self}; needed powers of two, or a block or an instruction "
                "instead, for an XOR of offsets stays in no other tile"
            )
        if self.offsets and max(self.offsets) >= tile[0] * tile[1]:
            raise ValueError(f"accesses: got {self}; needed offsets below {tile[0] * tile[1]}")
        return list(self.offsets)


def checked_tile(tile: tuple[int, int], at_most: int = MAX_ELEMENTS) -> tuple[int, int]:
    """The (rows, columns) of a tile, two integers whose product is `at_most` or less."""
    if isinstance(tile, (tuple, list)) and len(tile) > 2 and all(map(is_integer, tile)):
        flat = f"({shown(math.prod(map(int, tile[:-1])))}, {shown(tile[-1])})"
        raise ValueError(f"tile: got {shown(tile)}; needed (rows, columns): flatten it to {flat}, contiguous mode last")
    rows, columns = pair("tile", tile, of="rows, columns", at_least=1, at_most=at_most)
    if rows * columns > at_most:
        raise ValueError(
            f"tile: got ({rows}, {columns}); needed {at_most} elements at most. Take fewer rows: a pattern repeats"
        )
    return rows, columns


def contiguous(basis: Sequence[int]) -> int:
    """log2 of the neighbouring elements that a span takes whole: the most low unit vectors in it."""
    count = 0
    while rank_of_ints([*basis, 1 << count]) == len(basis):
        count += 1
    return count


def phase(basis: Sequence[int], element_bits: int, banks: Banks) -> tuple[list[int], int]:
    """A basis in the order of the lanes, and the number of phases in which the banks serve it.

    A lane moves its contiguous elements, up to 16 bytes, at once; a phase is `banks.line` bytes, and one lane
    for each bank at the most.
    """
    own = min(contiguous(basis), max(0, log2(MAX_VECTOR * 8 // element_bits)))
    most = min(max(0, log2(banks.line * 8 // element_bits)), own + log2(banks.count))
    return in_lane_order(basis, own), 1 << max(0, len(basis) - most)


def in_lane_order(basis: Sequence[int], own: int) -> list[int]:
    """A basis of the same span: the `own` bits of a lane's vector first, then what is left of the lanes' bits."""
    ordered = [1 << i for i in range(own)]
    for vector in basis:
        if rank_of_ints([*ordered, vector]) > len(ordered):
            ordered.append(vector >> own << own)  # where a vector begins
    return ordered


def checked_vector(vector_elements: int | None, tile: tuple[int, int], most: int) -> int:
    """The elements of a row that must stay together; 1 of None.

    Raises:
        TypeError, ValueError: no power of two, more than `most`, or the rows are no multiple of it.
    """
    if vector_elements is None:
        return 1
    value = integer("vector_elements", vector_elements, at_least=1, at_most=most, power_of_two=True)
    if tile[1] % value:
        fitting = math.gcd(tile[1], most)
        raise ValueError(
            f"vector_elements: got {value} for rows of {tile[1]} elements; needed a divisor of that, {fitting} at most"
        )
    return value


def starts(size: int, count: int, step: int) -> list[int]:
    """Return where `count` places, `step` apart, can begin among `size`: at multiples of all of them where these divide
    it."""
    if size % (count * step) == 0:
        return [block * count * step + i for block in range(size // (count * step)) for i in range(step)]
    return list(range(size - (count - 1) * step))


def is_power_of_two(value: int) -> bool:
    return value >= 1 and not value & (value - 1)


def log2(value: int) -> int:
    """The exponent of the largest power of two that is not above `value` (1 or more)."""
    return int(value).bit_length() - 1
