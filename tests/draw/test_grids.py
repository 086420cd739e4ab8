"""Grids of a layout: labels, marks and what a column costs before and after."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import (
    COLUMN,
    INDEX,
    NS,
    SWIZZLED,
    described,
    found,
    labels,
)

from cookbook import draw
from cookbook.draw import svg
from cookbook.layouts import Layout, SmemLayout
from cookbook.swizzle import Swizzle


@pytest.mark.parametrize(("label", "expected"), [("offset", "9"), ("byte", "36"), ("hex", "24"), ("bank", "1")])
def test_layout_grid_labels(label, expected):
    (cell,) = found(draw.layout_grid(SWIZZLED, banks=8, label=label), row=1, col=0)
    assert labels([cell]) == [expected]
    assert cell.find(f"{NS}rect").get("fill") == svg.GROUPS[1]


def test_layout_grid_takes_layouts_arrays_and_memory_alike():
    smem = SmemLayout(Layout((8, 8), (8, 1)), Swizzle(3, 2, 3), 32)
    assert draw.layout_grid(smem, banks=8).svg == draw.layout_grid(SWIZZLED, banks=8).svg
    assert draw.layout_grid(Layout((8, 8), (8, 1))).svg == draw.layout_grid(INDEX).svg


def test_layout_grid_marks_an_access_and_its_conflicts():
    picture = draw.layout_grid(INDEX, banks=32, mark=COLUMN)
    assert "8 marked: 2 wavefronts" in described(picture)
    assert len(found(picture, "rect", state="conflict")) == 8
    rows = draw.layout_grid(INDEX, banks=32, mark=[(0, c) for c in range(8)])
    assert len(found(rows, "rect", state="free")) == 8


def test_before_after_says_what_the_column_costs_in_each():
    picture = draw.before_after(INDEX, SWIZZLED, banks=8, mark=COLUMN)
    assert described(picture) == "before: 8 marked: 8 wavefronts; after: 8 marked: 1 wavefront."
    after = [labels(found(picture, side="after", row=r)) for r in range(8)]
    assert ["".join(row) for row in after][:4] == ["01234567", "10325476", "23016745", "32107654"]
    assert {state.get("data-state") for state in found(picture, "rect", side="before") if state.get("data-state")} == {
        "conflict"
    }


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.layout_grid(INDEX, label="x"), ValueError, "label: got 'x'"),
        (lambda: draw.layout_grid(INDEX, mark=[(8, 0)]), ValueError, r"mark: got \(8, 0\)"),
        (lambda: draw.layout_grid(INDEX[0]), ValueError, r"shape \(8,\)"),
        (lambda: draw.layout_grid(-INDEX), ValueError, "offsets >= 0"),
        (lambda: draw.layout_grid(INDEX, element_bits=4), ValueError, "element_bits: got 4"),
        (lambda: draw.layout_grid(np.zeros((100, 100), int)), ValueError, "10000 cells"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
