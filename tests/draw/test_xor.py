"""Truth tables and columns in binary: what the cells say is what Python computes."""

from __future__ import annotations

import pytest
from pictures import described, found, label

from cookbook import draw

PYTHON = {"xor": lambda a, b: a ^ b, "and": lambda a, b: a & b, "or": lambda a, b: a | b}


def test_truth_tables_are_pythons():
    picture = draw.truth_tables()
    for name, operation in PYTHON.items():
        results = {(g.get("data-a"), g.get("data-b")): label(g) for g in found(picture, operation=name, column=2)}
        assert results == {(str(a), str(b)): str(operation(a, b)) for a in (0, 1) for b in (0, 1)}
    assert not found(draw.truth_tables(("xor",)), operation="and")


@pytest.mark.parametrize(("col", "rows"), [(0, 8), (5, 8), (3, 4), (31, 32)])
def test_a_column_in_binary_goes_to_every_bank_once(col, rows):
    picture = draw.xor_column(col, rows)
    banks = [int(g.get("data-bank")) for g in found(picture) if g.get("data-bank")]
    assert banks == [row ^ col for row in range(rows)] and sorted(banks) == list(range(rows))
    for row in range(rows):
        bits = {
            of: sum(int(label(g)) << int(g.get("data-bit")) for g in found(picture, of=of, row=row))
            for of in ("row", "column", "row XOR column")
        }
        assert bits == {"row": row, "column": col, "row XOR column": row ^ col}
    assert f"Column {col} of rows 0 to {rows - 1}" in described(picture)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: draw.xor_column(8, 8), "col: got 8; needed"),
        (lambda: draw.xor_column(0, 6), "rows: got 6; needed"),
        (lambda: draw.truth_tables(("nand",)), "operations: got 'nand'; needed"),
        (lambda: draw.truth_tables(()), "operations: got 0; needed 1 to 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
