"""Lanes: every span where its times say, one scale, and no picture of what cannot be."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from cookbook import draw
from cookbook.draw import Span

SVG = "{http://www.w3.org/2000/svg}"
ROWS = {
    "one": [Span(0, 10, "a", "multiply"), Span(10, 15, "b", "store")],
    "": [],
    "two": [Span(5, 20, "c", "multiply")],
}


def boxes(picture):
    """(lane, kind, x, width, fill) of every span."""
    found = []
    for group in ET.fromstring(picture.svg).iter(f"{SVG}g"):
        if group.get("data-lane"):
            box = group.find(f"{SVG}rect")
            shape = float(box.get("x")), float(box.get("width"))
            found.append((group.get("data-lane"), group.get("data-kind"), *shape, box.get("fill") or box.get("class")))
    return found


def test_spans_stand_where_their_times_say_on_one_scale():
    first, second, third = boxes(draw.lanes(ROWS, "t"))
    per_unit = (first[3] + 1.5) / 10  # a cell is drawn 0.75 inside its place on each side
    assert second[2] - first[2] == pytest.approx(10 * per_unit, abs=0.1)
    assert second[3] + 1.5 == pytest.approx(5 * per_unit, abs=0.1)
    assert third[2] - first[2] == pytest.approx(5 * per_unit, abs=0.1)
    assert third[3] + 1.5 == pytest.approx(15 * per_unit, abs=0.1)


def test_a_kind_has_one_colour_and_stands_in_the_legend():
    picture = draw.lanes(ROWS, "t", note="chosen times")
    first, second, third = boxes(picture)
    assert first[4] == third[4] != second[4]
    texts = [text.text for text in ET.fromstring(picture.svg).iter(f"{SVG}text")]
    assert {"multiply", "store", "chosen times", "0 clocks"} <= set(texts)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"one": []}, "0 spans"),
        ({"one": [Span(0, 5, "", "x"), Span(4, 6, "", "x")]}, "without overlap"),
        ({"one": [Span(3, 2, "", "x")]}, "without overlap"),
        ({"one": [Span(0, float("inf"), "", "x")]}, "rows.end: got inf; needed a finite number"),
        ({"one": [Span(i, i + 1, "", f"kind {i}") for i in range(20)]}, "kinds of spans"),
    ],
)
def test_what_cannot_be_drawn_is_refused(rows, says):
    with pytest.raises(ValueError, match=says):
        draw.lanes(rows, "t")


def test_the_shortest_span_is_seen():
    short, long = boxes(draw.lanes({"one": [Span(0, 1e-3, "", "store"), Span(1, 1000, "", "multiply")]}, "t"))
    assert 0 < short[3] < 2 < long[3]
