"""A recipe's figure as a thumbnail: the shapes without the text, in a few hundred bytes to a few kilobytes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from functools import cache
from typing import NamedTuple

from cookbook.recipe import catalog
from tools.publish import notebooks

WIDE, HIGH = 240, 108  # units of a thumbnail
_HEAD = 50.0  # of a figure: its title and its note
_LARGEST = 1.0  # times its own size
_MOST_STROKES, _MOST_SHAPES = 60, 150
_NS = "{http://www.w3.org/2000/svg}"
_THEMED = {"ink": 0.9, "soft": 0.6, "line": 0.35, "empty": 0.1}  # how much of the page's colour of text


@cache
def _figures(name: str) -> tuple[str, ...]:
    """The figures among the outputs of a recipe's notebook."""
    cells = notebooks.read(name).cells
    found = (o.get("data", {}).get("image/svg+xml") for cell in cells for o in cell.get("outputs", ()))
    return tuple("".join(svg) for svg in found if svg)


def chosen(name: str) -> str:
    """The figure that stands for a recipe: its first one that no other recipe has; the first if there is none; "" if
    its notebook was not executed."""
    own, seen = _figures(name), _seen()
    return next((svg for svg in own if seen[_title(svg)] == 1), own[0] if own else "")


@cache
def _seen() -> Counter[str]:
    """Return how many figures there are of each title, over all recipes."""
    of = (dict.fromkeys(_figures(recipe.name)) for recipe in catalog.recipes())
    return Counter(_title(svg) for svgs in of for svg in svgs)


def _title(svg: str) -> str:
    return (re.search(r"<title[^>]*>(.*?)</title>", svg) or [svg, svg])[1]


def thumbnail(svg: str) -> str:
    """The shapes of a figure as an SVG of WIDE x HIGH: boxes of one colour in one path, whole numbers, no text.

    A screen reader is not told of it: the card that it stands on says what the page is about.
    """
    shapes = [shape for element in ET.fromstring(svg).iter() if (shape := _shape(element))]
    strokes = [shape for shape in shapes if shape.paint.startswith('fill="none"')]
    if len(strokes) > _MOST_STROKES:  # grey on a thumbnail
        shapes = [shape for shape in shapes if shape not in strokes]
    place = _placed([point for shape in shapes for point in shape.points])
    while len([shape for shape in shapes if _drawn(shape, place)]) > _MOST_SHAPES:
        place = place._replace(scale=place.scale * 1.25)  # its upper left part
    paths: dict[str, list[str]] = {}
    for shape in shapes:
        if drawn := _drawn(shape, place):
            paths.setdefault(shape.paint, []).append(drawn)
    made = "".join(f'<path {paint} d="{"".join(dict.fromkeys(drawn))}"/>' for paint, drawn in paths.items())
    return f'<svg class="thumb" viewBox="0 0 {WIDE} {HIGH}" aria-hidden="true" focusable="false">{made}</svg>'


class _Shape(NamedTuple):
    """A box, by two corners, or a line through points; `paint` is how a path is filled or drawn."""

    paint: str
    points: tuple[tuple[float, float], ...]


class _Place(NamedTuple):
    """Where a figure lies on the thumbnail."""

    left: float
    top: float
    scale: float

    def of(self, point: tuple[float, float]) -> tuple[int, int]:
        return round((point[0] - self.left) * self.scale), round((point[1] - self.top) * self.scale)


def _shape(element: ET.Element) -> _Shape | None:
    """A box or a line of a figure; None of the rest, and of what stands in its head."""
    kind = element.tag.removeprefix(_NS)
    if kind == "rect":
        x, y, width, height = (float(element.get(key) or 0) for key in ("x", "y", "width", "height"))
        points = ((x, y), (x + width, y + height))
    elif kind == "line":
        points = tuple((float(element.get(f"x{end}") or 0), float(element.get(f"y{end}") or 0)) for end in "12")
    elif kind == "polyline":
        points = tuple((float(x), float(y)) for x, y in (p.split(",") for p in (element.get("points") or "").split()))
    else:
        return None
    paint = _paint(element, "fill" if kind == "rect" else "stroke")
    return _Shape(paint, points) if paint and all(y >= _HEAD for _, y in points) else None


def _placed(points: list[tuple[float, float]]) -> _Place:
    """The figure as large as the thumbnail's width and height let it, or somewhat larger: it may be cut below."""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    top, bottom = min(y for _, y in points), max(y for _, y in points)
    wide, high = WIDE / max(right - left, 1), HIGH / max(bottom - top, 1)
    scale = min(wide, 2 * high, _LARGEST)
    across, down = (WIDE / scale - (right - left)) / 2, (HIGH / scale - (bottom - top)) / 2
    return _Place(left - across, top - max(0, down), scale)


def _paint(element: ET.Element, kind: str) -> str:
    """The attributes of a path for what this element is filled or drawn with; "" of what is left out."""
    theme = (element.get("class") or "").removeprefix(f"{kind[0]}-")
    colour = element.get(kind) or "none"
    if theme == "card" or colour == "none":
        return ""
    said = f'{kind}="currentColor" opacity="{_THEMED[theme]}"' if theme in _THEMED else f'{kind}="{colour}"'
    return said if kind == "fill" else f'fill="none" {said}'


def _drawn(shape: _Shape, place: _Place) -> str:
    """A part of a path's `d`; "" of what lies beside the thumbnail."""
    points = [place.of(point) for point in shape.points]
    if min(y for _, y in points) >= HIGH or min(x for x, _ in points) >= WIDE:
        return ""
    if shape.paint.startswith('fill="none"'):
        return "M" + "L".join(f"{x} {y}" for x, y in points)
    (left, top), (right, bottom) = points
    gap = 1 if min(right - left, bottom - top) > 3 else 0  # between neighbours, as in the figure
    right, bottom = min(right, WIDE + 1), min(bottom, HIGH + 1)
    return f"M{left} {top}h{max(1, right - left - gap)}v{max(1, bottom - top - gap)}H{left}"  # filling closes it
