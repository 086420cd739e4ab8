"""A flow: every stop and arrow once, in order, a colour for each kind of place."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from cookbook import draw
from cookbook.draw import Stop

SVG = "{http://www.w3.org/2000/svg}"
STOPS = [Stop("mA", "matrix", "global"), Stop("gA", "tile", "global"), Stop("sA", "stages", "shared")]


def boxes(picture):
    """(stop, y, fill) of every box."""
    groups = [group for group in ET.fromstring(picture.svg).iter(f"{SVG}g") if group.get("data-stop")]
    return [(g.get("data-stop"), float(g[0].get("y")), g[0].get("fill")) for g in groups]


def test_stops_stand_in_order_with_a_colour_for_each_kind():
    (first, y0, one), (second, y1, two), (third, y2, three) = boxes(draw.flow(STOPS, ["tile it", "copy"], "t"))
    assert (first, second, third) == ("mA", "gA", "sA") and y0 < y1 < y2 and y1 - y0 == y2 - y1
    assert one == two != three


def test_every_text_is_there_and_inside():
    picture = draw.flow(STOPS, ["tile it", "a copy with a text that is longer than all of the stops are wide"], "t")
    root = ET.fromstring(picture.svg)
    width = float(root.get("width"))
    texts = {element.text: float(element.get("x")) for element in root.iter(f"{SVG}text")}
    assert {"mA", "gA", "sA", "matrix", "tile", "stages", "global", "shared", "tile it"} <= set(texts)
    assert all(0 <= x <= width for x in texts.values())
    long = next(text for text in texts if text.startswith("a copy with"))
    assert texts[long] + 0.62 * 11 * len(long) <= width


@pytest.mark.parametrize(
    ("stops", "arrows", "said"),
    [
        ([], [], "stops: got 0; needed 1 to 40"),
        (STOPS, ["one"], "arrows: got 1; needed 2, one between two stops"),
        ([Stop(str(n), "", str(n)) for n in range(9)], [""] * 8, "stops: got 9 kinds; needed at most 8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(stops, arrows, said):
    with pytest.raises(ValueError, match=said):
        draw.flow(stops, arrows, "t")
