"""Bars for measured figures: ours beside its peers, with the spread of the rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cookbook.draw import svg

_H, _GAP, _SCALE = 20.0, 14.0, 380.0


class Bar(NamedTuple):
    """One bar. `group` is what is compared (a shape and dtype), `name` who ran it; `low` and `high` the spread."""

    group: str
    name: str
    value: float
    low: float | None = None
    high: float | None = None


def _check(bars: Iterable[Bar]) -> list[Bar]:
    checked = []
    for bar in bars:
        if not isinstance(bar, Bar):
            raise TypeError(f"bars: got {type(bar).__name__}, need cookbook.draw.Bar")
        spread = [x for x in (bar.value, bar.low, bar.high) if x is not None]
        if not all(math.isfinite(x) and x >= 0 for x in spread):
            raise ValueError(f"bars: got {bar}, need finite figures that are not negative")
        checked.append(bar)
    if not checked:
        raise ValueError("bars: got none, need at least one")
    return checked


def _colours(bars: list[Bar], highlight: str) -> Mapping[str, str]:
    """The highlighted name gets the strong colour, the others the rest in order of appearance."""
    others = dict.fromkeys(bar.name for bar in bars if bar.name != highlight)
    return {highlight: svg.GROUPS[1], **dict(zip(others, svg.GROUPS[:1] + svg.GROUPS[2:], strict=False))}


def _bar(bar: Bar, x: float, y: float, per_unit: float, colour: str, note: str) -> str:
    width = bar.value * per_unit
    parts = [
        svg.text(x - 10, y + _H / 2, bar.name, 12, "ink", "end"),
        svg.rect(x, y + 1, max(width, 1), _H - 2, colour),
    ]
    reach = width
    if bar.low is not None and bar.high is not None:
        reach = max(width, bar.high * per_unit)
        parts.append(svg.line(x + bar.low * per_unit, y + _H / 2, x + bar.high * per_unit, y + _H / 2, "ink", 1.5))
    parts.append(svg.text(x + reach + 8, y + _H / 2, note, 12, "ink", "start"))
    return svg.group(parts, group=bar.group, name=bar.name, value=f"{bar.value:g}")


def bar_chart(
    bars: Iterable[Bar],
    unit: str = "TFLOP/s",
    title: str = "Measured",
    highlight: str = "ours",
    baseline: str | None = "torch.matmul",
) -> svg.Picture:
    """Horizontal bars, grouped, all on one scale that starts at zero.

    Args:
        bars: `Bar`s in the order to draw them; bars of a group must follow one another to share a heading.
        unit: what the figures are in.
        title: the picture's title; say the device here.
        highlight: the name whose bars get the strong colour.
        baseline: a name; other bars of its group also say their ratio to it. None for no ratios.
    """
    bars = _check(bars)
    colours = _colours(bars, highlight)
    base = {bar.group: bar.value for bar in bars if bar.name == baseline}
    top = max(max(bar.value, bar.high or 0) for bar in bars) or 1.0
    left = max(svg.text_width(bar.name) for bar in bars) + 34
    y, group, parts = 62.0, None, []
    for bar in bars:
        if bar.group != group:
            y += _GAP if group is not None else 0
            parts.append(svg.text(16, y + 9, bar.group, 12, "soft", "start", bold=True))
            group, y = bar.group, y + _H
        note = f"{bar.value:.4g}"
        if bar.name != baseline and base.get(bar.group):
            note += f" ({bar.value / base[bar.group]:.2f}x)"
        parts.append(_bar(bar, left, y, _SCALE / top, colours.get(bar.name, svg.GROUPS[-1]), note))
        y += _H
    described = "; ".join(f"{bar.group}, {bar.name}: {bar.value:.4g} {unit}" for bar in bars)
    return svg.picture(
        left + _SCALE + 150, y + 18, title, described, parts, {44: f"{unit}, longer is faster; line: min to max"}
    )
