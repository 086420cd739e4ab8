"""The way of something from stop to stop: boxes below each other, and what leads from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cookbook.arguments import checked
from cookbook.draw import svg

__all__ = ["Stop", "flow"]

_H, _GAP, _TOP, _SIZE, _MAX = 42.0, 34.0, 46.0, 11.0, 40  # a box, an arrow, the first box, the text; stops


class Stop(NamedTuple):
    """A box: its name, what it is, and the kind of place, which gives its colour."""

    name: str
    text: str
    kind: str


@checked
def flow(stops: Sequence[Stop], arrows: Sequence[str], title: str, kinds: Sequence[str] | None = None) -> svg.Picture:
    """Stops from top to bottom; beside the arrow between two of them stands what leads there.

    Args:
        stops: in order; those of one kind have one colour, and the kind stands under the text.
        arrows: a text for each arrow, one fewer than stops.
        title: the picture's title.
        kinds: those that get the first colours, in this order, so that several pictures agree; the others follow.

    Raises:
        ValueError: no stop, more than 40, more than 8 kinds, or another number of arrows than stops have between them.
    """
    if not 1 <= len(stops) <= _MAX:
        raise ValueError(f"stops: got {len(stops)}; needed 1 to {_MAX}")
    if len(arrows) != len(stops) - 1:
        raise ValueError(f"arrows: got {len(arrows)}; needed {len(stops) - 1}, one between two stops")
    if kinds is not None and not kinds:
        raise ValueError("kinds: got none; needed kinds of places, or None")
    named = dict.fromkeys([*(kinds or ()), *(stop.kind for stop in stops)])
    if len(named) > len(svg.GROUPS):
        raise ValueError(f"stops: got {len(named)} kinds; needed at most {len(svg.GROUPS)}")
    colours = dict(zip(named, svg.GROUPS, strict=False))
    name_width = max(svg.text_width(stop.name, 13) for stop in stops) + 24
    text_width = max(svg.text_width(text, _SIZE) for stop in stops for text in (stop.text, stop.kind))
    left, parts = 16 + name_width + 12, []
    for number, stop in enumerate(stops):
        y = _TOP + number * (_H + _GAP)
        parts.append(svg.cell(16, y, name_width, _H, stop.name, colours[stop.kind], size=13, stop=stop.name))
        parts.append(svg.text(left, y + _H / 2 - 8, stop.text, _SIZE, "ink", "start"))
        parts.append(svg.text(left, y + _H / 2 + 8, stop.kind, _SIZE, "soft", "start"))
        if number < len(arrows):
            parts += _arrow(16 + name_width / 2, y + _H, arrows[number])
    height = _TOP + len(stops) * (_H + _GAP) - _GAP + 16
    described = " -> ".join(stop.name for stop in stops)
    wide = max((svg.text_width(text, _SIZE) for text in arrows), default=0) + name_width / 2 + 48
    return svg.picture(max(left + text_width + 16, wide), height, title, described, parts, {})


def _arrow(x: float, y: float, text: str) -> list[str]:
    """From the foot of a box to the head of the next, with the text at its right."""
    end = y + _GAP - 3
    head = svg.path([(x - 4, end - 6), (x, end), (x + 4, end - 6)], "soft", 1.5)
    return [
        svg.line(x, y + 3, x, end, "soft", 1.5),
        head,
        svg.text(x + 14, y + _GAP / 2, text, _SIZE, "soft", "start"),
    ]
