"""What holds of every picture: names, box, colours of dark pages, saved files."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from pictures import (
    BARS,
    COLUMN,
    INDEX,
    NS,
    POINTS,
    SW128,
    SWIZZLED,
    ask,
    atom,
    parse,
    swizzled_transpose,
)

from cookbook import draw
from cookbook.draw import svg
from cookbook.swizzle import Swizzle

PICTURES = {
    "bank_grid": lambda: draw.bank_grid(SW128),
    "swizzle_view": lambda: draw.swizzle_view(SW128),
    "access_view": lambda: draw.access_view(ask(4 * np.arange(32), 4)),
    "pipeline": lambda: draw.pipeline(3, 5),
    "bar_chart": lambda: draw.bar_chart(BARS, title="A < B & C"),
    "line_chart": lambda: draw.line_chart(POINTS, title="A < B & C"),
    "roofline": lambda: draw.roofline(800, 4000, {"512³": (100.0, 90.0), "8192³": (2700.0, 720.0)}, note="a GPU"),
    "crossbar": lambda: draw.crossbar([0, 8, 3, 3]),
    "crossbar of 32": lambda: draw.crossbar(range(0, 1024, 32), banks=32),
    "crossbar animated": lambda: draw.crossbar([0, 8, 3, 3], animated=True),
    "layout_grid": lambda: draw.layout_grid(np.arange(32 * 33).reshape(32, 33)),
    "before_after": lambda: draw.before_after(INDEX, SWIZZLED, banks=8, mark=COLUMN),
    "swizzle_bits": lambda: draw.swizzle_bits(Swizzle(3, 4, 3), fields={"byte": 1, "column": 6, "row": 3}),
    "toy_transpose": swizzled_transpose,
    "toy_transpose step": lambda: swizzled_transpose(step=0, n=4),
    "swizzle_progress": lambda: draw.swizzle_progress(lambda r, c: (r, r ^ c)),
    "atom_orders": lambda: draw.atom_orders({"a": atom(2)}),
}

IN_TIME = ("crossbar animated", "toy_transpose")  # one text after the other in one place


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES)
def test_every_picture_is_named_inside_its_box_and_repeatable(make):
    root = parse(make())
    ids = [root.find(f"{NS}title").get("id"), root.find(f"{NS}desc").get("id")]
    assert root.get("role") == "img" and root.get("aria-labelledby").split() == ids
    assert root.find(f"{NS}title").text and root.find(f"{NS}desc").text
    assert make().svg == make().svg == make()._repr_svg_() == str(make())
    _, _, width, height = map(float, root.get("viewBox").split())
    for r in root.iter(f"{NS}rect"):
        assert float(r.get("x", 0)) >= 0 and float(r.get("x", 0)) + float(r.get("width")) <= width
        assert float(r.get("y", 0)) >= 0 and float(r.get("y", 0)) + float(r.get("height")) <= height
    for t in root.iter(f"{NS}text"):
        reach = svg.text_width(t.text or "", float(t.get("font-size")))
        left = float(t.get("x")) - {"start": 0, "middle": reach / 2, "end": reach}[t.get("text-anchor")]
        assert left >= 0 and left + reach <= width, t.text
        assert float(t.get("y")) < height


def _place(t: ET.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a line of text, without the room around its letters."""
    size = float(t.get("font-size"))
    reach, y = svg.text_width(t.text or "", size), float(t.get("y"))
    left = float(t.get("x")) - {"start": 0, "middle": reach / 2, "end": reach}[t.get("text-anchor")]
    return left + 1, y - 0.4 * size, left + reach - 1, y + 0.4 * size


@pytest.mark.parametrize("make", [PICTURES[name] for name in PICTURES if name not in IN_TIME])
def test_no_text_of_a_picture_lies_on_another(make):
    placed = [(_place(t), t.text) for t in parse(make()).iter(f"{NS}text")]
    met = [
        (one, other)
        for (a, one), (b, other) in itertools.combinations(placed, 2)
        if max(a[0], b[0]) < min(a[2], b[2]) and max(a[1], b[1]) < min(a[3], b[3])
    ]
    assert met == []


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES)
def test_every_picture_recolours_itself_for_dark_pages(make):
    style = parse(make()).find(f"{NS}style").text
    assert "prefers-color-scheme:dark" in style and "[data-md-color-scheme=slate] .ckd .f-card{fill:#1e2127}" in style
    card = parse(make()).find(f"{NS}rect")
    assert (card.get("class"), card.get("fill")) == ("f-card", "#ffffff")


def test_save_writes_the_document(tmp_path):
    path = draw.bank_grid(SW128).save(tmp_path / "x.svg")
    assert ET.parse(path).getroot().tag == f"{NS}svg"
    with pytest.raises(ValueError, match=r"path: got .*x\.png.*\.svg"):
        draw.bank_grid(SW128).save(tmp_path / "x.png")
