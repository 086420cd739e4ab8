"""Pictures on one card: every cell of each is there, at its place, and one description says all."""

from __future__ import annotations

import pytest
from pictures import described, found, parse

from cookbook import draw


def test_all_cells_of_all_pictures_are_there():
    one, two = draw.number_grid([[1, 2], [3, 4]], "one"), draw.number_grid([[5]], "two")
    both = draw.beside([one, two, one], "both", columns=2)
    cells = [g for g in found(both) if g.get("data-row")]
    assert [g[1].text for g in cells] == ["1", "2", "3", "4", "5", "1", "2", "3", "4"]
    moved = [g.get("transform") for g in found(both) if g.get("transform")]
    x = [float(m[10:-1].split()[0]) for m in moved]
    y = [float(m[10:-1].split()[1]) for m in moved]
    assert len(moved) == 3 and x[0] == x[2] < x[1] and y[0] == y[1] < y[2]
    assert described(one) in described(both) and described(two) in described(both)
    wide, high = (float(v) for v in parse(both).get("viewBox").split()[2:])
    assert wide > x[1] and high > y[2]


def test_none_too_many_and_strangers_are_refused():
    with pytest.raises(ValueError, match="pictures: got 0; needed 1 to 16"):
        draw.beside([], "t")
    with pytest.raises(ValueError, match="columns: got 0"):
        draw.beside([draw.truth_tables()], "t", columns=0)
    with pytest.raises(ValueError, match="pictures: got other text"):
        draw.beside([draw.Picture("<svg/>")], "t")
