"""A roofline: points stand where their figures say, and the ridge where the two bounds meet."""

from __future__ import annotations

import pytest
from pictures import described, found, texts

from cookbook import draw


def test_ridge_and_points():
    picture = draw.roofline(800.0, 4000.0, {"large": (1000.0, 700.0), "small": (50.0, 150.0)})
    assert any("ridge at 200 FLOP a byte" in str(text) for text in texts(picture))
    places = {g.get("data-point"): g[0] for g in found(picture) if g.get("data-point")}
    x, y = ({name: float(r.get(axis)) for name, r in places.items()} for axis in ("x", "y"))
    assert x["small"] < x["large"] and y["small"] > y["large"]  # SVG's y grows downwards
    assert "small: 150 TFLOP/s at 50 FLOP a byte" in described(picture)


def test_points_on_the_roof_lie_on_its_line():
    picture = draw.roofline(512.0, 4000.0, {"ridge": (128.0, 512.0), "slope": (32.0, 128.0)})
    (line,) = found(picture, "polyline")
    start, ridge, _ = ([float(v) for v in pair.split(",")] for pair in line.get("points").split())
    marks = {g.get("data-point"): g[0] for g in found(picture) if g.get("data-point")}
    at = {name: (float(mark.get("x")) + 4, float(mark.get("y")) + 4) for name, mark in marks.items()}
    assert at["ridge"] == pytest.approx(ridge, abs=0.02)
    slope = (ridge[1] - start[1]) / (ridge[0] - start[0])
    assert at["slope"][1] == pytest.approx(start[1] + slope * (at["slope"][0] - start[0]), abs=0.05)


@pytest.mark.parametrize(
    "given", [(0.0, 1.0, {}), (1.0, float("inf"), {"a": (1.0, 1.0)}), (1.0, 1.0, {}), (1.0, 1.0, {"a": (1.0, -1.0)})]
)
def test_figures_that_have_no_place_are_refused(given):
    with pytest.raises((ValueError, TypeError), match=r": got .*; needed"):
        draw.roofline(*given)
