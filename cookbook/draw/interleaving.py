"""One order of the steps of several warps: warps down, time across, and arrows where one waits for another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cookbook.arguments import checked, integer
from cookbook.draw import svg

__all__ = ["Moment", "interleaving"]

_W, _H, _GAP, _MOST = 92.0, 44.0, 12.0, 64  # of a box; between rows; moments


class Moment(NamedTuple):
    """A step of a warp: what it does, in which line, and how it is drawn."""

    row: str
    label: str
    where: str = ""
    kind: str = "other"  # a name of KINDS
    marked: bool = False
    done: bool = True  # if not: it has not happened yet


KINDS = {"memory": svg.GROUPS[0], "barrier": svg.GROUPS[1], "other": svg.GROUPS[6]}


@checked
def interleaving(
    moments: Sequence[Moment], title: str, arrows: Sequence[tuple[int, int]] = (), note: str = ""
) -> svg.Picture:
    """Steps in the order of time, a row for each warp; marked ones have a red frame.

    Args:
        moments: the steps, the first one first; 1 to 64.
        title: the picture's title.
        arrows: (from, to) numbers of moments: the second one waits for the first.
        note: more for the line below: what the marked ones are.

    Raises:
        ValueError: no moment or too many, a kind that there is not, or an arrow from or to none.
    """
    if not 1 <= len(moments) <= _MOST:
        raise ValueError(f"moments: got {len(moments)}; needed 1 to {_MOST}")
    if unknown := [each.kind for each in moments if each.kind not in KINDS]:
        raise ValueError(f"moments: got kind {unknown[0]!r}; needed one of {', '.join(KINDS)}")
    for ends in arrows:
        for end in ends:
            integer("arrows", end, at_least=0, at_most=len(moments) - 1)
    rows = list(dict.fromkeys(each.row for each in moments))
    left = max(svg.text_width(row, 11) for row in rows) + 26
    top = {row: 62.0 + n * (_H + _GAP) for n, row in enumerate(rows)}
    parts = [svg.text(left - 10, top[row] + _H / 2, row, 11, "ink", "end") for row in rows]
    parts += [svg.line(left, top[row] + _H / 2, left + len(moments) * _W, top[row] + _H / 2) for row in rows]
    for n, each in enumerate(moments):
        parts.append(_box(left + n * _W + 4, top[each.row], n, each))
    for first, second in arrows:
        parts.append(_arrow(left, top, moments, first, second))
    y = 62.0 + len(rows) * (_H + _GAP)
    known = dict.fromkeys(each.kind for each in moments)
    parts += svg.legend({kind: KINDS[kind] for kind in known})
    notes = {y + 8: "time to the right" + (f"; {note}" if note else "")}
    described = "; ".join(f"{each.row}: {each.label} {each.where}".strip() for each in moments)
    return svg.picture(left + len(moments) * _W + 16, y + 26, title, described, parts, notes)


def _box(x: float, y: float, number: int, each: Moment) -> str:
    width = _W - 8
    parts = [svg.rect(x, y, width, _H, KINDS[each.kind] if each.done else "empty")]
    ink = svg.ON_COLOUR if each.done else "ink"
    size = min(11.0, 11.0 * (width - 6) / svg.text_width(each.label, 11)) if each.label else 11.0
    parts.append(svg.text(x + width / 2, y + _H * 0.34, each.label, size, ink))
    parts.append(svg.text(x + width / 2, y + _H * 0.72, each.where, 9, ink))
    if each.marked:
        parts.append(svg.frame(x, y, width, _H, svg.CONFLICT))
    return svg.group(parts, moment=number, row=each.row, kind=each.kind, marked=each.marked, done=each.done)


def _arrow(left: float, top: dict[str, float], moments: Sequence[Moment], first: int, second: int) -> str:
    """From the right edge of a box to the left edge of a later one; from below or above where they overlap."""
    start = (left + (first + 1) * _W - 4, top[moments[first].row] + _H / 2)
    end = (left + second * _W + 4, top[moments[second].row] + _H / 2)
    along = max(((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5, 1e-6)
    back, side = ((end[0] - start[0]) / along, (end[1] - start[1]) / along), 4.0
    wings = [
        (end[0] - 7 * back[0] + turn * side * back[1], end[1] - 7 * back[1] - turn * side * back[0]) for turn in (1, -1)
    ]
    lines = [svg.path([start, end], "soft", 1.6), svg.path([wings[0], end, wings[1]], "soft", 1.6)]
    return svg.group(lines, arrow=f"{first} {second}")
