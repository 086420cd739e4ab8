"""Any layout as a grid of offsets coloured by bank, alone or before and after a swizzle, with one access marked.

`cookbook.draw.layouts` draws shared-memory layouts in chunks of 16 bytes on the 32 banks. Here a cell is one element,
and there may be as few banks as a drawing has room for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cookbook.arguments import checked, integer, integers
from cookbook.draw import svg
from cookbook.draw.crossbar import wavefronts
from cookbook.layouts import Layout

__all__ = ["before_after", "layout_grid"]

_MAX_CELLS = 2048
_LABELS = ("offset", "byte", "hex", "bank")


def offsets_of(layout: Any, element_bits: int, name: str = "layout") -> np.ndarray:
    """Byte offsets, (rows, columns), of what the pictures here accept: see `layout_grid`."""
    integer("element_bits", element_bits, one_of=(8, 16, 32, 64, 128))
    needed = "a 2-D table of offsets >= 0, or a layout"
    if hasattr(layout, "byte_offsets") and not isinstance(layout, type):
        table = integers(name, layout.byte_offsets(), ndim=2, at_least=0, needed=needed)
    else:
        given = layout.table() if isinstance(layout, Layout) else layout
        table = integers(name, given, ndim=2, at_least=0, at_most=1 << 40, needed=needed) * (element_bits // 8)
    if not 1 <= table.size <= _MAX_CELLS:
        raise ValueError(f"{name}: got {table.size} cells; needed 1 to {_MAX_CELLS}: draw a part of it")
    return table


def _marked(mark: Iterable[tuple[int, int]], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    cells = [(int(row), int(col)) for row, col in mark]
    for row, col in cells:
        if not (0 <= row < shape[0] and 0 <= col < shape[1]):
            raise ValueError(f"mark: got ({row}, {col}); needed a cell of the {shape[0]} x {shape[1]} grid")
    return cells


def _label(label: str, byte: int, element_bytes: int, banks: int) -> str:
    if label == "hex":
        return f"{byte:02x}"
    return str({"offset": byte // element_bytes, "byte": byte, "bank": byte // 4 % banks}[label])


def _cell_width(label: str, table: np.ndarray, element_bytes: int, banks: int) -> float:
    longest = max(len(_label(label, int(byte), element_bytes, banks)) for byte in table.ravel())
    return max(24.0, svg.text_width("0" * longest, 11) + 8)


def _grid(
    table: np.ndarray, element_bytes: int, banks: int, label: str, mark: list[tuple[int, int]], left: float, side: str
) -> tuple[list[str], float, int]:
    """(elements, right edge, wavefronts of the marked access) of a grid whose rows start at x = `left`, y = 84."""
    w, h, top = _cell_width(label, table, element_bytes, banks), 24.0, 84.0
    parts = [svg.text(left + (c + 0.5) * w, top - 10, c, 10, "soft") for c in range(table.shape[1])]
    for r, row in enumerate(table.tolist()):
        parts.append(svg.text(left - 8, top + (r + 0.5) * h, r, 10, "soft", "end"))
        for c, byte in enumerate(row):
            bank = byte // 4 % banks
            said = _label(label, byte, element_bytes, banks)
            place = (left + c * w, top + r * h, w, h, said, svg.GROUPS[bank * 8 // banks % 8])
            parts.append(svg.cell(*place, size=11, side=side, row=r, col=c, byte=byte, bank=bank))
    words = [[int(table[cell]) // 4 + i for i in range(max(1, element_bytes // 4))] for cell in mark]
    asked = [word for cell in words for word in cell]
    served = wavefronts(asked, banks)
    crowded = {word % banks for word, wavefront in zip(asked, served, strict=True) if wavefront}
    for (r, c), cell in zip(mark, words, strict=True):
        state = "conflict" if any(word % banks in crowded for word in cell) else "free"
        colour = svg.CONFLICT if state == "conflict" else "ink"
        parts.append(svg.frame(left + c * w, top + r * h, w, h, colour, side=side, marked=f"{r},{c}", state=state))
    return parts, left + table.shape[1] * w, max(served, default=-1) + 1


def _counted(count: int, cells: int) -> str:
    return f"{cells} marked: {count} wavefront{'s' if count != 1 else ''}" if cells else ""


@checked
def layout_grid(
    layout: Any,
    element_bits: int = 32,
    banks: int = 32,
    label: str = "offset",
    mark: Iterable[tuple[int, int]] = (),
    title: str | None = None,
) -> svg.Picture:
    """A table of offsets: each cell says where its element lies and is coloured by its bank.

    Args:
        layout: (rows, columns): a `cookbook.layouts.Layout` or a 2-D array of offsets, both in elements, or a
            `cookbook.layouts.SmemLayout`.
        element_bits: bits of an element.
        banks: 4 bytes wide each; cells of bank b get colour 8 b / `banks`.
        label: what a cell says: "offset" (in elements), "byte", "hex" (that, in base 16) or "bank".
        mark: the (row, column) of the elements that one access asks for; red where two of them want different words
            of a bank. One phase of an access.
        title: a title of your own.
    """
    table, cells = _prepared(layout, element_bits, banks, label, mark)
    parts, right, count = _grid(table, element_bits // 8, banks, label, cells, 44.0, "only")
    said = _counted(count, len(cells))
    title = title or f"{table.shape[0]} x {table.shape[1]} elements of {element_bits} bits on {banks} banks"
    notes = {44: f"cell: {label}; colour: bank" + (f"; {said}" if said else "")}
    described = f"Row 1 starts at byte {table[min(1, len(table) - 1), 0]}. {said}".strip()
    return svg.picture(right + 16, 84 + 24 * len(table) + 16, title, described, parts, notes)


def _prepared(
    layout: Any, element_bits: int, banks: int, label: str, mark: Any, name: str = "layout"
) -> tuple[np.ndarray, list]:
    if label not in _LABELS:
        raise ValueError(f"label: got {label!r}; needed one of {_LABELS}")
    if not 1 <= banks <= 32:
        raise ValueError(f"banks: got {banks}; needed 1 to 32")
    table = offsets_of(layout, element_bits, name)
    return table, _marked(mark, table.shape)


@checked
def before_after(
    before: Any,
    after: Any,
    element_bits: int = 32,
    banks: int = 32,
    label: str = "bank",
    mark: Iterable[tuple[int, int]] = (),
    titles: tuple[str, str] = ("before", "after"),
    title: str | None = None,
) -> svg.Picture:
    """The same tile in two layouts, side by side, and what the marked access costs in each.

    Takes what `layout_grid` takes; `titles` stand over the two halves.
    """
    mark = list(mark)
    parts, left, costs = [], 44.0, []
    for side, layout, name in (("before", before, titles[0]), ("after", after, titles[1])):
        table, cells = _prepared(layout, element_bits, banks, label, mark, side)
        drawn, right, count = _grid(table, element_bits // 8, banks, label, cells, left, side)
        said = f"{name}: {_counted(count, len(cells))}" if cells else name
        parts += [*drawn, svg.text(left, 56, said, 12, "ink", "start", bold=True)]
        left, costs = max(right, left + svg.text_width(said)) + 48, [*costs, said]
        bottom = 84 + 24 * len(table)
    title = title or f"{element_bits}-bit elements on {banks} banks"
    return svg.picture(left - 32, bottom + 16, title, "; ".join(costs) + ".", parts, {})
