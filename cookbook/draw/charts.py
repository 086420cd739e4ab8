"""Measured figures: bars of ours against its peers, and lines over sizes, both with the spread of the rounds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cookbook.arguments import checked
from cookbook.draw import svg

__all__ = ["Bar", "Point", "bar_chart", "line_chart"]

_H, _GAP, _SCALE = 20.0, 14.0, 380.0


# Lines stand on the card itself: colours in the middle, at least 3 : 1 against the light card and the dark one.
LINES = ("#d9700c", "#2f7fd1", "#2a9360", "#b455c8", "#c9504a")
_WIDE, _HIGH = 560.0, 300.0


class Bar(NamedTuple):
    """One bar. `group` is what is compared (a shape and dtype), `name` who ran it; `low` and `high` the spread."""

    group: str
    name: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str | None = None  # what stands before the bar; the value, and ours as a multiple of it, if left out


class Point(NamedTuple):
    """One measured figure of a line: `y` at the size `x`; `low` and `high` the spread."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


def _check(bars: Iterable[Bar]) -> list[Bar]:
    checked = []
    for bar in bars:
        if not isinstance(bar, Bar):
            raise TypeError(f"bars: got {type(bar).__name__}; needed cookbook.draw.Bar")
        spread = [x for x in (bar.value, bar.low, bar.high) if x is not None]
        if not all(math.isfinite(x) and x >= 0 for x in spread):
            raise ValueError(f"bars: got {bar}; needed finite figures that are not negative")
        checked.append(bar)
    if not checked:
        raise ValueError("bars: got none; needed at least one")
    return checked


def _given(colours: Mapping[str, str] | None) -> dict[str, str]:
    """`colours`, each of them a colour: they are written into the document as they are."""
    for name, colour in (colours or {}).items():
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", colour):
            raise ValueError(f"colours: got {colour!r} for {name!r}; needed #rrggbb, six hexadecimal digits")
    return dict(colours or {})


def _colours(bars: list[Bar], highlight: str | None, given: dict[str, str]) -> Mapping[str | None, str]:
    """The highlighted name gets the strong colour, the others the rest in order of appearance; `given` goes first."""
    others = dict.fromkeys(bar.name for bar in bars if bar.name not in (highlight, *given))
    return {highlight: svg.GROUPS[1], **dict(zip(others, svg.GROUPS[:1] + svg.GROUPS[2:], strict=False)), **given}


def _note(bar: Bar, ours: float | None) -> str:
    """What stands between a bar's name and the bar: a phone shows it, and of a long bar only the beginning."""
    if bar.note is not None:
        return bar.note
    return f"{bar.value:.4g}" + (f" ({ours / bar.value:.2f})" if ours is not None and bar.value else "")


def _bar(bar: Bar, left: float, x: float, y: float, per_unit: float, colour: str, note: str) -> str:
    width = bar.value * per_unit
    parts = [
        svg.text(left - 10, y + _H / 2, bar.name, 12, "ink", "end"),
        svg.rect(x, y + 1, max(width, 1), _H - 2, colour),
    ]
    if bar.low is not None and bar.high is not None:
        reach, middle = max(width, bar.high * per_unit), y + _H / 2
        parts.append(svg.line(x + bar.low * per_unit, middle, x + width, middle, svg.ON_COLOUR, 1.5))
        parts.append(svg.line(x + width, middle, x + reach, middle, "ink", 1.5))  # beyond the bar: on the card
    parts.append(svg.text(left, y + _H / 2, note, 12, "ink", "start"))
    return svg.group(parts, group=bar.group, name=bar.name, value=f"{bar.value:g}")


@checked
def bar_chart(
    bars: Iterable[Bar],
    unit: str = "TFLOP/s",
    title: str = "Measured",
    highlight: str | None = "ours",
    ratios: bool = True,
    meaning: str = "longer is faster; line: min to max",
    colours: Mapping[str, str] | None = None,
) -> svg.Picture:
    """Horizontal bars, grouped, all on one scale that starts at zero.

    Args:
        bars: `Bar`s in the order to draw them; bars of a group must follow one another to share a heading.
        unit: what the figures are in.
        title: the picture's title; say the device here.
        highlight: the name whose bars get the strong colour; None for no such name.
        ratios: whether the other bars of a group also say, in brackets, the highlighted one's value over theirs: above
            1 ours is faster.
        meaning: what the lengths mean.
        colours: by name, "#rrggbb", for bars that have the same colour in every chart; the others take what is left.
    """
    bars = _check(bars)
    filled = _colours(bars, highlight, _given(colours))
    ours = {bar.group: bar.value for bar in bars if bar.name == highlight and ratios}
    top = max(max(bar.value, bar.high or 0) for bar in bars) or 1.0
    notes = [_note(bar, ours.get(bar.group) if bar.name != highlight else None) for bar in bars]
    left = max(svg.text_width(bar.name) for bar in bars) + 34
    start = left + max(map(svg.text_width, notes)) + 10
    y, group, parts = 62.0, None, []
    for bar, note in zip(bars, notes, strict=True):
        if bar.group != group:
            y += _GAP if group is not None else 0
            parts.append(svg.text(16, y + 9, bar.group, 12, "soft", "start", bold=True))
            group, y = bar.group, y + _H
        parts.append(_bar(bar, left, start, y, _SCALE / top, filled.get(bar.name, svg.GROUPS[-1]), note))
        y += _H
    described = "; ".join(f"{bar.group}, {bar.name}: {bar.value:.4g} {unit}" for bar in bars)
    compared = any(bar.note is None and note.endswith(")") for bar, note in zip(bars, notes, strict=True))
    brackets = f"; in brackets: {highlight} / it" if compared else ""
    return svg.picture(start + _SCALE + 24, y + 18, title, described, parts, {44: f"{unit}, {meaning}{brackets}"})


def _points(lines: Mapping[str, Iterable[Point]]) -> dict[str, list[Point]]:
    found = {name: sorted(points) for name, points in lines.items()}
    if not 1 <= len(found) <= len(LINES) + 1 or not all(found.values()):
        counts = list(map(len, found.values()))
        raise ValueError(f"lines: got {len(found)} of {counts} points; needed 1 to 6, none empty")
    for name, points in found.items():
        for point in points:
            figures = [x for x in point if x is not None]
            if not all(math.isfinite(x) and x >= 0 for x in figures) or point.x <= 0:
                raise ValueError(f"lines: got {point} in {name}; needed finite figures, x positive, none negative")
    return found


def _ticks(top: float) -> list[float]:
    """Round figures from 0 to at least `top`, four to eight of them."""
    step = 10 ** math.floor(math.log10(top))
    step = next(step * part for part in (0.2, 0.25, 0.5, 1.0, 2.0) if top / (step * part) <= 8)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def _apart(heights: list[float], least: float = 16.0) -> list[float]:
    """The heights moved as little as need be so that no two labels are nearer than `least`; in the order given."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    for before, here in itertools.pairwise(order):
        placed[here] = max(placed[here], placed[before] + least)
    shift = (sum(placed) - sum(heights)) / len(heights)
    return [y - shift for y in placed]


def _runs(points: list[Point], sizes: list[float]) -> list[list[Point]]:
    """The points in runs of neighbours: where a size between two of them has none of this line, it is broken."""
    runs: list[list[Point]] = []
    for point in points:
        place = sizes.index(point.x)
        if runs and sizes.index(runs[-1][-1].x) == place - 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _labelled(sizes: list[float], places: list[float]) -> list[tuple[float, float]]:
    """(size, place) of those whose labels have room: the ends first, then powers of two, then the rest."""

    def rank(i: int) -> tuple[bool, bool, float]:
        return i not in (0, len(sizes) - 1), not math.log2(sizes[i]).is_integer(), sizes[i]

    kept: list[int] = []
    for i in sorted(range(len(sizes)), key=rank):
        widths = ((svg.text_width(f"{sizes[i]:g}") + svg.text_width(f"{sizes[j]:g}")) / 2 + 6 for j in kept)
        if all(abs(places[i] - places[j]) >= width for j, width in zip(kept, widths, strict=True)):
            kept.append(i)
    return [(sizes[i], places[i]) for i in sorted(kept)]


def _line(
    points: list[Point], sizes: list[float], at: Callable[[float, float], tuple[float, float]], colour: str
) -> list[str]:
    """A line through neighbouring points: a square at each, and the spread as a stroke down through it."""
    parts = [svg.path([at(p.x, p.y) for p in run], colour, 2) for run in _runs(points, sizes) if len(run) > 1]
    for point in points:
        x, y = at(point.x, point.y)
        mark = [svg.rect(x - 3, y - 3, 6, 6, colour)]
        if point.low is not None and point.high is not None:
            mark.append(svg.line(x, at(point.x, point.low)[1], x, at(point.x, point.high)[1], colour, 1.5))
        parts.append(svg.group(mark, x=f"{point.x:g}", y=f"{point.y:g}"))
    return parts


@checked
def line_chart(
    lines: Mapping[str, Iterable[Point]],
    unit: str = "TFLOP/s",
    title: str = "Measured",
    x_title: str = "size",
    limit: str | None = "ceiling",
    colours: Mapping[str, str] | None = None,
) -> svg.Picture:
    """Lines over sizes. x is logarithmic, to the base of 2; y begins at zero.

    A line joins neighbouring sizes only: where it has no point at a size that another line has, it is broken.

    Args:
        lines: by name, the points of each, in any order; at most six lines. The first one is ours.
        unit: what y is in.
        title: the picture's title; say the device here.
        x_title: what x is.
        limit: the name of the line that bounds the others; it is grey.
        colours: by name, "#rrggbb", for lines that have the same colour in every chart; the others take what is left.
    """
    found, given = _points(lines), _given(colours)
    others = (colour for colour in LINES if colour not in given.values())
    drawn = {name: given.get(name) or ("soft" if name == limit else next(others, "soft")) for name in found}
    everything = [p for points in found.values() for p in points]
    ticks, sizes = _ticks(max(max(p.y, p.high or 0) for p in everything) or 1.0), sorted({p.x for p in everything})
    left, top, first = 64.0, 66.0, math.log2(sizes[0])
    across = max(math.log2(sizes[-1]) - first, 1e-9)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + 24 + (math.log2(x) - first) / across * (_WIDE - 48), top + _HIGH * (1 - y / ticks[-1])

    parts = [svg.line(left, at(sizes[0], y)[1], left + _WIDE, at(sizes[0], y)[1]) for y in ticks]
    parts += [svg.text(left - 10, at(sizes[0], y)[1], f"{y:g}", 12, "soft", "end") for y in ticks]
    places = [at(x, 0)[0] for x in sizes]
    parts += [svg.line(x, top + _HIGH, x, top + _HIGH + 5) for x in places]
    parts += [svg.text(x, top + _HIGH + 16, f"{size:g}", 12, "soft") for size, x in _labelled(sizes, places)]
    parts.append(svg.text(left + _WIDE / 2, top + _HIGH + 38, x_title, 12, "soft"))
    for name, points in reversed(found.items()):  # ours on top
        parts.append(svg.group(_line(points, sizes, at, drawn[name]), line=name))
    ends = {name: at(points[-1].x, points[-1].y)[1] for name, points in found.items()}
    for name, y in zip(found, _apart(list(ends.values())), strict=True):
        parts.append(svg.rect(left + _WIDE + 14, y - 5, 10, 10, drawn[name]))
        parts.append(svg.text(left + _WIDE + 30, y, name, 12, "ink", "start", bold=name == next(iter(found))))
    width = left + _WIDE + 30 + max(svg.text_width(name) for name in found) + 24
    said = "; ".join(f"{name}: " + ", ".join(f"{p.y:.4g} at {p.x:g}" for p in pts) for name, pts in found.items())
    spread = "; strokes: min to max" if any(p.low is not None for p in everything) else ""
    broken = any(len(_runs(points, sizes)) > 1 for points in found.values())
    note = {44: f"{unit}, higher is faster{spread}{'; gap: not timed there' if broken else ''}"}
    return svg.picture(width, top + _HIGH + 58, title, f"{unit}. {said}", parts, note)
