"""Accesses said as instructions, and the byte addresses that their lanes supply.

`ldmatrix.x4@16x16` is an ldmatrix.x4 of 16 rows by 16 columns of a row-major tile; `ld128@32x8` is a load of 16
bytes a lane, each lane in a row of its own. The text before the @ is one of `NAMES`:

* `ld8` to `ld128` and `st8` to `st128`: ld.shared and st.shared of 8 to 128 bits a lane.
* `cp.async4`, `cp.async8`, `cp.async16`: the shared-memory side of cp.async, bytes a lane, counted as a store. What
  its source in global memory adds is for `cookbook.banks.wavefronts`.
* `ldmatrix.x1`, `.x2`, `.x4` and `stmatrix.x1`, `.x2`, `.x4`, with or without `.trans`: matrices of 8 rows of 16
  bytes. `.trans` changes who holds what, and no address.
* `ldmatrix.m16n16.x1.trans.b8` and `.x2`: matrices of 16 rows of 16 bytes, which it transposes byte by byte; of 8-bit
  elements alone, on sm_100a, sm_120a and their families. Its phases are taken to be those of the other ldmatrix, 8
  rows each: no such GPU has been counted on.

After the @ come the rows and columns of the tile that the instruction covers, in elements. Lanes run along a row
first, one vector each; `/down` has them run down the rows first. `/RSxCS` takes every RS-th row and, of each row,
every CS-th vector. The matrices of ldmatrix run down the rows first, as an MMA wants them.

An instruction goes in phases: all 32 lanes for up to 4 bytes a lane, 16 lanes for 8, lanes 8q to 8q+7 for 16, and
so one matrix a phase for ldmatrix and stmatrix (counted on an H200; `cookbook.banks`). It starts at multiples of
its own vector, so never in the middle of one. Where the tile is a multiple of what it covers, it starts at multiples
of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cookbook import access as lanes_of_a_warp
from cookbook.access import LANES, Access
from cookbook.arguments import boolean, integer, integers, shown, string, wrong_type
from cookbook.solve.patterns import (
    MAX_ELEMENTS,
    Banks,
    Block,
    Span,
    check_powers,
    checked_tile,
    is_power_of_two,
    log2,
    phase,
    starts,
)
from cookbook.swizzle import element_width

__all__ = ["NAMES", "Instruction", "Pattern", "as_pattern", "parse"]

MAX_ADDRESS = 1 << 40  # bytes
MATRIX_ROWS, MATRIX_BYTES = 8, 16
WIDE_ROWS, WIDE_BITS = 16, 8  # of a matrix of ldmatrix.m16n16
LINE = 128  # bytes that one phase asks for at most

_MATRICES = {
    f"{name}.x{num}{trans}": num for name in ("ldmatrix", "stmatrix") for num in (1, 2, 4) for trans in ("", ".trans")
} | {f"ldmatrix.m16n16.x{num}.trans.b8": num for num in (1, 2)}
_WIDTHS = {
    **{f"{name}{bits}": bits // 8 for name in ("ld", "st") for bits in (8, 16, 32, 64, 128)},
    **{f"cp.async{width}": width for width in (4, 8, 16)},
    **dict.fromkeys(_MATRICES, MATRIX_BYTES),
}
NAMES = tuple(_WIDTHS)
KNOWN = (
    "ld8, ld16, ld32, ld64, ld128, st8, st16, st32, st64, st128, cp.async4, cp.async8, cp.async16, "
    "ldmatrix.x1, .x2, .x4, stmatrix.x1, .x2, .x4 (these two with .trans or without), "
    "ldmatrix.m16n16.x1.trans.b8, .x2.trans.b8"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction of a warp: `name`, and the rows x columns elements of a row-major tile that it covers.

    `row_step` counts rows, `column_step` counts vectors of a lane; `down` has the lanes run down the rows first.
    Fewer than 32 lanes may take part. What depends on the width of an element is checked where that is known.

    Raises:
        TypeError, ValueError: no such name, or a side or step that is no integer of 1 or more.

    >>> Instruction("ldmatrix.x4", 16, 16)
    ldmatrix.x4@16x16
    """

    name: str
    rows: int
    columns: int
    row_step: int = 1
    column_step: int = 1
    down: bool = False

    def __post_init__(self) -> None:
        string("name", self.name)
        if self.name not in NAMES:
            raise ValueError(f"name: got {shown(self.name)}; needed one of {KNOWN}")
        for field in ("rows", "columns", "row_step", "column_step"):
            object.__setattr__(self, field, integer(field, getattr(self, field), at_least=1, at_most=1 << 16))
        object.__setattr__(self, "down", boolean("down", self.down))
        if self.down and self.matrices:
            raise ValueError(f"down: got True for {self.name}; needed False, for its matrices run down the rows anyway")

    def __str__(self) -> str:
        steps = f"/{self.row_step}x{self.column_step}" if (self.row_step, self.column_step) != (1, 1) else ""
        return f"{self.name}@{self.rows}x{self.columns}{steps}{'/down' if self.down else ''}"

    __repr__ = __str__

    @property
    def width(self) -> int:
        """Bytes of a lane's vector: 1 to 16; of ldmatrix and stmatrix a row of 16."""
        return _WIDTHS[self.name]

    @property
    def matrices(self) -> int:
        """Matrices that ldmatrix or stmatrix moves; 0 of another instruction."""
        return _MATRICES.get(self.name, 0)

    @property
    def matrix_rows(self) -> int:
        """Rows of one matrix: 16 of ldmatrix.m16n16, else 8."""
        return WIDE_ROWS if ".m16n16." in self.name else MATRIX_ROWS

    @property
    def regular(self) -> bool:
        """True if sides and steps are powers of two."""
        return all(map(is_power_of_two, (self.rows, self.columns, self.row_step, self.column_step)))

    @property
    def lanes_per_phase(self) -> int:
        """Lanes that are served together: 32 for up to 4 bytes a lane, 16 for 8, 8 for 16."""
        return min(LANES, LINE // self.width)

    def vector(self, element_bits: int) -> int:
        """Elements of a lane's vector.

        Raises:
            ValueError: an element is wider than that.
        """
        element_width(element_bits)
        if self.matrix_rows == WIDE_ROWS and element_bits != WIDE_BITS:
            raise ValueError(
                f"element_bits: got {element_bits} for {self}; needed {WIDE_BITS}, whose bytes it transposes, or "
                f"ldmatrix.x{2 * self.matrices}.trans"
            )
        if self.width * 8 < element_bits:
            raise ValueError(
                f"element_bits: got {element_bits} for {self}; needed {self.width * 8} at most, its vector"
            )
        return self.width * 8 // element_bits

    def check(self, tile: tuple[int, int], element_bits: int) -> None:
        """Raises ValueError when the instruction cannot be one, or does not fit in the tile of (rows, columns)."""
        tile = checked_tile(tile)
        self._check_lanes(element_bits)
        vector = self.vector(element_bits)
        reach = (self.rows - 1) * self.row_step + 1, ((self.columns // vector - 1) * self.column_step + 1) * vector
        if reach[0] > tile[0] or reach[1] > tile[1]:
            raise ValueError(f"tile: got {tile[0]}x{tile[1]}; needed {reach[0]}x{reach[1]} at least to hold {self}")
        if tile[0] > 1 and tile[1] % vector:
            raise ValueError(
                f"tile: got {tile[0]}x{tile[1]} for {self} of {element_bits}-bit elements; needed columns that are a "
                f"multiple of {vector}, for each lane's {self.width} bytes to be aligned"
            )

    def _check_lanes(self, element_bits: int) -> None:
        vector, got = self.vector(element_bits), f"got {self} of {element_bits}-bit elements"
        if self.columns % vector:
            needed = f"columns that are a multiple of {vector}, a lane's vector"
            raise ValueError(f"accesses: {got}; needed {needed}")
        lanes = self.rows * self.columns // vector
        each = self.matrix_rows
        if self.matrices and (self.rows % each or lanes != each * self.matrices):
            shape = f"{each * min(self.matrices, 2)}x{vector * max(1, self.matrices // 2)}"
            needed = f"{self.matrices} matrices of {each}x{vector}, such as {self.name}@{shape}"
            raise ValueError(f"accesses: {got}; needed {needed}")
        if lanes > LANES:
            shape = f"{min(self.rows, LANES)}x{max(1, LANES // self.rows) * vector}"
            needed = f"{LANES} at most, such as {self.name}@{shape}"
            raise ValueError(f"accesses: {got}, which is {lanes} lanes; needed {needed}")

    def lane_places(self, element_bits: int) -> tuple[np.ndarray, np.ndarray]:
        """(rows, columns) of the first element of each active lane, from the corner of what is covered, as int64."""
        self._check_lanes(element_bits)
        vector = self.vector(element_bits)
        across = self.columns // vector
        if self.matrices:  # the rows of a matrix, then the matrices below, then those to the right
            lane = np.arange(self.rows * across)
            row, chunk = lane % self.rows, lane // self.rows
        elif self.down:
            chunk, row = divmod(np.arange(self.rows * across), self.rows)
        else:
            row, chunk = divmod(np.arange(self.rows * across), across)
        return row * self.row_step, chunk * self.column_step * vector

    def offsets(self, tile: tuple[int, int], element_bits: int) -> np.ndarray:
        """(lanes, vector) int64 row-major element offsets that the active lanes move, at the corner of the tile.

        Raises:
            ValueError: as `check`.
        """
        self.check(tile, element_bits)
        row, column = self.lane_places(element_bits)
        return (row * tile[1] + column)[:, None] + np.arange(self.vector(element_bits))

    def basis(self, tile: tuple[int, int], element_bits: int) -> list[int]:
        """Element offsets whose sums are all that the instruction covers: vector bits, then those of the lane.

        Raises:
            ValueError: as `check`; or a side or step that is no power of two.
        """
        self.check(tile, element_bits)
        check_powers(self)
        vector = self.vector(element_bits)
        row, column = self.lane_places(element_bits)
        lanes = [1 << i for i in range(log2(len(row)))]
        return [1 << i for i in range(log2(vector))] + [int(row[lane] * tile[1] + column[lane]) for lane in lanes]

    def phase(self, tile: tuple[int, int], element_bits: int) -> tuple[list[int], int]:
        """A basis in the order of the lanes, as element offsets, and how many phases there are. Raises as `basis`."""
        basis = self.basis(tile, element_bits)
        most = log2(self.lanes_per_phase * self.vector(element_bits))
        return basis, 1 << max(0, len(basis) - most)

    def starts(self, tile: tuple[int, int], element_bits: int) -> tuple[list[int], list[int]]:
        """The rows, and the columns, that the corner of the instruction can lie at in a tile. Raises as `check`."""
        self.check(tile, element_bits)
        vector = self.vector(element_bits)
        columns = starts(tile[1] // vector, self.columns // vector, self.column_step)
        return starts(tile[0], self.rows, self.row_step), [vector * column for column in columns]

    def access(self, byte_offsets: np.ndarray, element_bits: int, row: int = 0, column: int = 0) -> Access:
        """The byte address of each lane on a layout, for `cookbook.banks.wavefronts` and `draw.access_view`.

        Args:
            byte_offsets: (rows, columns) byte address of each element of the tile, integers of 0 or more.
            row: of the tile, where the instruction starts.
            column: likewise, in elements: a multiple of a lane's vector.

        Raises:
            ValueError: as `check`; a start from which it leaves the tile; or a layout that does not keep a lane's
                vector in one aligned piece.
        """
        table = _checked_table(byte_offsets)
        self.check(table.shape, element_bits)
        rows, columns = self.lane_places(element_bits)
        vector = self.vector(element_bits)
        integer("row", row, at_least=0, at_most=table.shape[0] - 1 - int(rows.max()))
        most = table.shape[1] - vector - int(columns.max())
        integer("column", column, at_least=0, at_most=most, multiple_of=vector)
        first = _vectors(table, rows + row, columns + column, vector, element_bits, str(self))
        full = np.full(LANES, -1, np.int64)
        full[: len(first)] = first
        if self.matrices:
            make = lanes_of_a_warp.ldmatrix if self.name.startswith("ld") else lanes_of_a_warp.stmatrix
            return make(full[: len(first)], len(first) // MATRIX_ROWS)
        return (lanes_of_a_warp.cp_async if self.name.startswith("cp") else lanes_of_a_warp.ldst)(full, self.width)


Pattern: TypeAlias = Block | Span | Instruction


def parse(text: str, name: str = "text") -> Pattern:
    """The access that a text says.

    `4x2` and `4x2/2x1` (rows x columns, and steps) are a `Block`, `1,33,66` (a basis of element offsets) is a `Span`,
    and `ldmatrix.x4@16x16`, `ld128@32x8`, `st64@8x8/down` are an `Instruction`: see the text of this module.

    Args:
        name: of the argument, for messages.

    Raises:
        TypeError, ValueError: no such access.

    >>> parse("ld128@8x32/down")
    ld128@8x32/down
    """
    string("name", name)
    string(name, text, "an access, such as '32x1' or 'ldmatrix.x4@16x16'")
    try:
        if "@" in text:
            return _instruction(text)
        if "x" not in text.lower():
            return Span(_offsets(text))
        shape, _, steps = text.partition("/")
        return Block(*_sides(shape), *(_sides(steps) if steps else (1, 1)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: got {shown(text)}; needed {_needed(str(error))}") from None


def _needed(why: str) -> str:
    """Return what a text should have been, from what its parts were refused for."""
    part, _, rest = why.partition(": got ")
    if part == "name":
        return f"one of {KNOWN} before the @"
    if part in ("rows", "columns", "row_step", "column_step", "down", "offsets"):
        return f"{part}: {rest.partition('; needed ')[2]}"
    return "RxC, RxC/RSxCS, offsets such as 1,33,66, or an instruction such as ldmatrix.x4@16x16 or ld128@32x8"


def _offsets(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(_is_number(part) for part in parts):
        raise ValueError("no offsets")
    return tuple(map(int, parts))


def _is_number(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdigit() and len(text) < 12


def _instruction(text: str) -> Instruction:
    name, _, rest = text.partition("@")
    shape, *options = rest.split("/")
    steps, down = (1, 1), False
    for option in options:
        if option == "down":
            down = True
        else:
            steps = _sides(option)
    return Instruction(name, *_sides(shape), *steps, down)


def _sides(text: str) -> tuple[int, int]:
    """`"8x24"` -> (8, 24)."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(map(_is_number, parts)):
        raise ValueError("no two integers")
    return int(parts[0]), int(parts[1])


def as_pattern(value: Pattern | str | Sequence[int], name: str = "accesses") -> Pattern:
    """A Block from (rows, columns) or (rows, columns, row step, column step), what `parse` makes of a text, or itself.

    Raises:
        TypeError, ValueError: it is none of these.
    """
    string("name", name)
    if isinstance(value, (Block, Span, Instruction)):
        return value
    if isinstance(value, str):
        return parse(value, name)
    if isinstance(value, (tuple, list)) and len(value) in (2, 4):
        try:
            return Block(*value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: got {shown(value)}; needed a Block ({error})") from None
    return wrong_type(
        name,
        value,
        "(rows, columns), (rows, columns, row step, column step), Span(basis) or an instruction such as "
        "'ldmatrix.x4@16x16'",
    )


def phase_of(pattern: Pattern, tile: tuple[int, int], element_bits: int, banks: Banks) -> tuple[list[int], int]:
    """A basis of what is asked for, as element offsets in the order of the lanes, and the number of phases.

    The last log2(phases) vectors tell the phases apart; the others are one phase.

    Raises:
        ValueError: the access does not fit, or a side of it is no power of two.
    """
    if isinstance(pattern, Instruction):
        check_banks(pattern, banks)
        return pattern.phase(tile, element_bits)
    return phase(pattern.basis(tile), element_bits, banks)


def check_banks(instruction: Instruction, banks: Banks) -> None:
    """Raises ValueError when the memory is not the one that real instructions read: 32 banks of 4 bytes."""
    if banks != Banks():
        raise ValueError(f"banks: got {banks.count} of {banks.bytes} bytes with {instruction}; needed 32 of 4 bytes")


def _checked_table(byte_offsets: np.ndarray) -> np.ndarray:
    table = integers("byte_offsets", byte_offsets, ndim=2, at_least=0, at_most=MAX_ADDRESS)
    if not 0 < table.size <= MAX_ELEMENTS:
        raise ValueError(f"byte_offsets: got {table.size} elements; needed 1 to {MAX_ELEMENTS}")
    return table


def _vectors(
    table: np.ndarray, rows: np.ndarray, columns: np.ndarray, vector: int, element_bits: int, said: str
) -> np.ndarray:
    """The byte address of each lane's vector, whose first elements these are. One that is split is refused."""
    first = rows * table.shape[1] + columns
    size = element_bits // 8
    addresses = table.reshape(-1)[first[:, None] + np.arange(vector)]
    whole = (addresses == addresses[:, :1] + size * np.arange(vector)).all(axis=1) & (
        addresses[:, 0] % (vector * size) == 0
    )
    if not whole.all():
        lane = int(np.flatnonzero(~whole)[0])
        got = shown(addresses[lane].tolist())
        raise ValueError(
            f"byte_offsets: got the elements of one vector of {said} at bytes {got}; needed a layout that keeps "
            f"{vector * size} bytes together, at a multiple of {vector * size}"
        )
    return addresses[:, 0]
