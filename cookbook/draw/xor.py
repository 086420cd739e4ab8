"""XOR from the ground up: truth tables of bits, and what becomes of a column in binary."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from cookbook.arguments import checked, choice, integer
from cookbook.draw import svg

__all__ = ["truth_tables", "xor_column"]

OPERATIONS: dict[str, Callable[[int, int], int]] = {"xor": operator.xor, "and": operator.and_, "or": operator.or_}
_W, _H, _TOP = 34.0, 26.0, 92.0


@checked
def truth_tables(operations: Sequence[str] = ("xor", "and", "or"), title: str | None = None) -> svg.Picture:
    """Return what an operation makes of two bits, a table for each: orange is 1, and each row of results has its inputs
    left.

    Args:
        operations: one to three of "xor", "and" and "or".
        title: a title of your own.
    """
    if not 1 <= len(operations) <= len(OPERATIONS):
        raise ValueError(f"operations: got {len(operations)}; needed 1 to {len(OPERATIONS)}")
    parts, left = [], 24.0
    for name in operations:
        choice("operations", name, OPERATIONS)
        for column, head in enumerate(("a", "b", f"a {name} b")):
            parts.append(svg.text(left + (column + 0.5 + (column == 2) * 0.9) * _W, _TOP - 12, head, 12, bold=True))
        for row, (a, b) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            for column, bit in enumerate((a, b, OPERATIONS[name](a, b))):
                x = left + column * _W + (column == 2) * 0.9 * _W
                fill = svg.GROUPS[1] if bit else svg.GROUPS[6]
                at = (x, _TOP + row * _H, _W, _H, bit, fill)
                parts.append(svg.cell(*at, operation=name, a=a, b=b, column=column))
        left += 5.4 * _W
    said = {"xor": "1 where the two differ", "and": "1 where both are 1", "or": "1 where one is 1, or both"}
    notes = {44: "; ".join(f"{name}: {said[name]}" for name in operations)}
    described = f"Truth tables of {', '.join(operations)}."
    return svg.picture(left, _TOP + 4 * _H + 16, title or "Two bits", described, parts, notes)


@checked
def xor_column(col: int = 0, rows: int = 8, title: str | None = None) -> svg.Picture:
    """One column of a tile, row by row in binary: row, column, and their XOR, which is the column it is stored at.

    The column's bits are the same in all rows and the row's bits differ, so the results differ. Each result has the
    colour of its bank, of as many banks as the bits can name.

    Args:
        col: the column, 0 to `rows` - 1.
        rows: a power of two, 2 to 32.
        title: a title of your own.
    """
    bits = integer("rows", rows, one_of=(2, 4, 8, 16, 32)).bit_length() - 1
    integer("col", col, at_least=0, at_most=rows - 1)
    w, heads, parts = 22.0, (("row", 0), ("column", 1), ("row XOR column", 2)), []
    across = bits * w + 96.0
    for head, place in heads:
        x = 24.0 + place * across
        parts.append(svg.text(x, 64, head, 12, "ink", "start", bold=True))
        for row in range(rows):
            number, y = (row, col, row ^ col)[place], 78 + row * 24.0
            for bit in range(bits):
                value = number >> (bits - 1 - bit) & 1
                fill = svg.GROUPS[1] if value else svg.GROUPS[6]
                parts.append(svg.cell(x + bit * w, y, w, 22, value, fill, of=head, row=row, bit=bits - 1 - bit))
            shown = (x + bits * w + 8, y, 28, 22, number)
            if place == 2:
                fill = svg.GROUPS[number * 8 // rows % 8]
                parts.append(svg.cell(*shown, fill, bank=number, row=row))
            else:
                parts.append(svg.text(shown[0] + 14, y + 11, number, 12, "soft"))
            if place < 2:
                parts.append(svg.text(x + across - 30, y + 11, ("XOR", "=")[place], 12, "soft"))
    notes = {44: "same column, different rows, so different results: the column is spread over all banks"}
    described = f"Column {col} of rows 0 to {rows - 1} is stored at {' '.join(str(r ^ col) for r in range(rows))}."
    title = title or f"Column {col} of {rows} rows, in binary"
    return svg.picture(24 + 2 * across + bits * w + 60, 78 + rows * 24 + 12, title, described, parts, notes)
