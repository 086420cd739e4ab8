"""Pictures of work over time: lanes side by side on one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cookbook.arguments import checked
from cookbook.draw import svg

__all__ = ["Span", "lanes"]

_H, _WIDTH, _MAX = 26.0, 760.0, 400  # a lane's height, the axis' length, spans that can still be told apart


class Span(NamedTuple):
    """From `start` to `end` a lane does what `kind` says; `label` is written into it where there is room."""

    start: float
    end: float
    label: str
    kind: str


@checked
def lanes(rows: Mapping[str, Sequence[Span]], title: str, unit: str = "clocks", note: str = "") -> svg.Picture:
    """One lane for each row, time to the right, a colour for each kind of span; a gap is waiting.

    Args:
        rows: the spans of each lane, in order of time and without overlap; an empty name with no spans leaves a gap
            between groups of lanes.
        title: the picture's title.
        unit: of the times; say so in `title` or `note` if they are not measured.
        note: a line below.

    Raises:
        ValueError: no span, too many, a span that ends before it starts, or two of a lane that overlap.
    """
    spans = [span for row in rows.values() for span in row]
    if not 1 <= len(spans) <= _MAX:
        raise ValueError(f"rows: got {len(spans)} spans; needed 1 to {_MAX}")
    for name, row in rows.items():
        for before, after in zip([Span(0, 0, "", ""), *row], row, strict=False):
            if not before.end <= after.start <= after.end < math.inf:
                raise ValueError(f"rows: got {after} after {before} in {name!r}; needed spans in order without overlap")
    kinds = dict(zip(dict.fromkeys(span.kind for span in spans), svg.GROUPS, strict=False))
    if missing := {span.kind for span in spans} - set(kinds):
        raise ValueError(f"rows: got {len(kinds) + len(missing)} kinds of spans; needed at most {len(kinds)}")
    end = max(span.end for span in spans) or 1.0
    left, y = max(svg.text_width(name, 11) for name in rows) + 26, 62.0
    parts, x = svg.legend(kinds), _WIDTH / end
    for name, row in rows.items():
        if not name and not row:
            y += _H / 2
            continue
        parts.append(svg.text(left - 10, y + _H / 2, name, 11, "ink", "end"))
        parts.append(svg.rect(left, y + 1, _WIDTH, _H - 2, "empty"))
        for span in row:
            width = max((span.end - span.start) * x, 2.5)  # the shortest is seen, too
            label = span.label if svg.text_width(span.label, 11) + 4 <= width else ""
            place = (left + span.start * x, y, width, _H, label, kinds[span.kind])
            parts.append(
                svg.cell(*place, size=11, lane=name, kind=span.kind, start=f"{span.start:g}", end=f"{span.end:g}")
            )
        y += _H
    parts += _axis(left, y + 4, end, unit)
    described = "; ".join(f"{name}: {len(row)} spans" for name, row in rows.items() if row)
    notes = {y + 46: note} if note else {}
    return svg.picture(left + _WIDTH + 40, y + (60 if note else 40), title, described, parts, notes)


def _axis(left: float, y: float, end: float, unit: str) -> list[str]:
    """Round figures below the lanes, five to ten of them."""
    step = 10.0 ** math.floor(math.log10(end / 5))
    step = next(step * n for n in (1, 2, 5, 10) if end / (step * n) <= 10)
    parts = []
    for number in range(int(end / step) + 1):
        x = left + number * step * _WIDTH / end
        parts.append(svg.line(x, y, x, y + 5))
        words = f"{number * step:g}" + (f" {unit}" if number == 0 else "")
        parts.append(svg.text(x, y + 14, words, 11, "soft"))
    return parts
