"""A grid of labels: each cell says its own, equal colours are equal, frames stand where they are asked for."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from cookbook import draw
from cookbook.layouts import Layout

SVG = "{http://www.w3.org/2000/svg}"


def cells(picture):
    """(row, column) -> label and fill."""
    groups = [group for group in ET.fromstring(picture.svg).iter(f"{SVG}g") if group.get("data-row")]
    return {(int(g.get("data-row")), int(g.get("data-col"))): (g[1].text, g[0].get("fill")) for g in groups}


def test_a_layout_is_its_offsets():
    found = cells(draw.number_grid(Layout((2, 3), (1, 2)), "t"))
    assert {at: label for at, (label, _) in found.items()} == {
        (r, c): str(r + 2 * c) for r in range(2) for c in range(3)
    }


def test_colours_go_by_what_is_asked():
    found = cells(draw.number_grid([[9, 8], [7, 6]], "t", colours=[[0, 1], [1, 0]]))
    assert [label for label, _ in found.values()] == ["9", "8", "7", "6"]
    assert found[0, 0][1] == found[1, 1][1] != found[0, 1][1] == found[1, 0][1]


def test_marked_cells_are_framed():
    svg = draw.number_grid([[0, 1], [2, 3]], "t", mark=[(1, 0)], note="framed: one").svg
    assert 'data-marked="1,0"' in svg and svg.count("data-marked") == 1 and "framed: one" in svg


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": []}, "table: got"),
        ({"table": [[1], [1, 2]]}, "table: got"),
        ({"table": [[0] * 3000]}, "table: got 3000 cells; needed 1 to 2048"),
        ({"table": [[0, 1]], "mark": [(1, 0)]}, r"mark: got \(1, 0\); needed a cell of the 1 x 2 grid"),
        ({"table": [[0, 1]], "colours": [[0]]}, "colours: got"),
        ({"table": [["a", "b"]]}, "table: got"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        draw.number_grid(title="t", **given)
