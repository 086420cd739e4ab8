"""A table of numbers as a grid: offsets, tiles, threads; colours tell what belongs together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cookbook.arguments import checked, integers
from cookbook.draw import svg
from cookbook.layouts import Layout

__all__ = ["number_grid"]

_MAX_CELLS, _H, _LEFT, _SIZE = 2048, 24.0, 44.0, 11.0


@checked
def number_grid(
    table: Any, title: str, colours: Any = None, mark: Iterable[tuple[int, int]] = (), note: str = ""
) -> svg.Picture:
    """A grid of numbers, with those of its rows and columns at the edge.

    Args:
        table: (rows, columns) of integers, or a layout of two modes for its offsets, in elements.
        title: the picture's title.
        colours: (rows, columns) of integers; cells of equal ones have one colour, of eight. The table if left out.
        mark: the (row, column) of cells to frame.
        note: a line under the title that says what the numbers, colours and frames are.

    Raises:
        TypeError: table or colours are no integers.
        ValueError: no cell or more than 2048, a mark outside, or colours of another shape.
    """
    numbers = integers("table", table.table() if isinstance(table, Layout) else table, ndim=2)
    if not 1 <= numbers.size <= _MAX_CELLS:
        raise ValueError(f"table: got {numbers.size} cells; needed 1 to {_MAX_CELLS}")
    shape, rows = numbers.shape, numbers.tolist()
    groups = numbers if colours is None else integers("colours", colours, shape=shape)
    framed = set(mark)
    if stray := [cell for cell in framed if not (0 <= cell[0] < shape[0] and 0 <= cell[1] < shape[1])]:
        raise ValueError(f"mark: got {stray[0]}; needed a cell of the {shape[0]} x {shape[1]} grid")
    w = max(24.0, *(svg.text_width(label, _SIZE) + 8 for row in rows for label in row))
    top = 84.0 if note else 60.0
    parts = [svg.text(_LEFT + (c + 0.5) * w, top - 10, c, 10, "soft") for c in range(shape[1])]
    for r, row in enumerate(rows):
        parts.append(svg.text(_LEFT - 8, top + (r + 0.5) * _H, r, 10, "soft", "end"))
        for c, label in enumerate(row):
            x, y, fill = _LEFT + c * w, top + r * _H, svg.GROUPS[int(groups[r, c]) % len(svg.GROUPS)]
            parts.append(svg.cell(x, y, w, _H, label, fill, size=_SIZE, row=r, col=c))
            if (r, c) in framed:
                parts.append(svg.frame(x, y, w, _H, "ink", marked=f"{r},{c}"))
    described = f"{shape[0]} x {shape[1]} cells; the first row is {', '.join(map(str, rows[0][:8]))}."
    notes = {44: note} if note else {}
    return svg.picture(_LEFT + shape[1] * w + 16, top + shape[0] * _H + 16, title, described, parts, notes)
