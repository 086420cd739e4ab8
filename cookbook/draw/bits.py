"""Bits: a word's fields as a bar, and a linear map over GF(2) as a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from cookbook.arguments import checked
from cookbook.draw import svg

__all__ = ["Field", "bit_fields", "gf2_matrix"]


class Field(NamedTuple):
    """Bits `low` to `low + width - 1` of a word, and what they hold."""

    name: str
    low: int
    width: int
    value: int


def _placed(fields: Iterable[Field], width: int) -> list[Field]:
    """The fields from bit 0 up, the bits between them as fields without a name."""
    placed, at = [], 0
    for f in sorted(fields, key=lambda f: f.low):
        if f.low < at or f.width < 1 or f.low + f.width > width:
            raise ValueError(f"fields: got {f.name!r} at bits {f.low} to {f.low + f.width - 1}; needed room for it")
        if not 0 <= f.value < 1 << f.width:
            raise ValueError(f"fields: got {f.name!r} = {f.value}; needed a value of {f.width} bits")
        if f.low > at:
            placed.append(Field("", at, f.low - at, 0))
        placed.append(f)
        at = f.low + f.width
    return [*placed, Field("", at, width - at, 0)] if at < width else placed


@checked
def bit_fields(fields: Iterable[Field], width: int = 64, title: str | None = None) -> svg.Picture:
    """A word of `width` bits as a bar: each bit, with its fields below in colour, and a line for each value.

    The lowest bit is on the right. A field's value is given in the list below the bar, in decimal and binary.

    Args:
        fields: `Field`s that do not overlap; the bits between them are shown as unused zeros.
        width: bits of the word, at most 64.
        title: a title of your own.
    """
    if not 1 <= width <= 64:
        raise ValueError(f"width: got {width}; needed 1 to 64 bits")
    placed = _placed(fields, width)
    w, h, left, top, parts = 15.0, 24.0, 20.0, 70.0, []
    word = sum(f.value << f.low for f in placed)
    y = top + h + 22
    named = [f for f in placed if f.name]
    for f in placed:
        fill = svg.GROUPS[named.index(f) % len(svg.GROUPS)] if f.name else "empty"
        for bit in range(f.low, f.low + f.width):
            x, ink = left + (width - 1 - bit) * w, svg.ON_COLOUR if f.name else "soft"
            parts.append(svg.cell(x, top, w, h, word >> bit & 1, fill, ink, 10, bit=bit, field=f.name))
            if bit in (f.low, f.low + f.width - 1):
                parts.append(svg.text(x + w / 2, top - 9, bit, 8, "soft"))
    for i, f in enumerate(named):
        parts.append(svg.rect(left, y + i * 22, 14, 14, svg.GROUPS[i % len(svg.GROUPS)]))
        bits = f"bit {f.low}" if f.width == 1 else f"bits {f.low} to {f.low + f.width - 1}"
        said = f"{f.name} = {f.value} ({f.value:#0{f.width + 2}b}), {bits}"
        parts.append(svg.group([svg.text(left + 22, y + 7 + i * 22, said, 12, anchor="start")], says=f.name))
    notes = {44: f"the word is {word:#0{2 + (width + 3) // 4}x}"}
    description = "; ".join(f"{f.name} is {f.value}" for f in named) + "."
    bottom = y + len(named) * 22 + 8
    return svg.picture(left + width * w + 16, bottom, title or f"{width} bits", description, parts, notes)


@checked
def gf2_matrix(
    matrix: np.ndarray,
    marked: Mapping[int, str] | None = None,
    inputs: Iterable[str] | None = None,
    asked: Iterable[int] = (),
    title: str | None = None,
) -> svg.Picture:
    """A matrix over GF(2): row i says which bits of the offset are XORed into bit i of the address.

    Row and column 0 are the lowest bit. Marked rows, such as those of the bank bits, are in colour. Of the columns
    `asked` (the bits that vary within one access) the marked part should have full rank: then no two lanes meet.

    Args:
        matrix: (bits out, bits in) of 0 and 1, at most 32 each, as `Swizzle.matrix` gives.
        marked: what each marked row is, by its number: `{2: "bank 0", 3: "bank 1"}`.
        inputs: names of the columns; `x0, x1, ...` if left out.
        asked: columns to mark.
        title: a title of your own.
    """
    bits = np.asarray(matrix)
    if bits.ndim != 2 or not bits.size or max(bits.shape) > 32 or not np.isin(bits, (0, 1)).all():
        raise ValueError(f"matrix: got an array of shape {bits.shape}; needed 0 and 1, at most 32 x 32")
    marked, asked = dict(marked or {}), set(asked)
    names = list(inputs) if inputs is not None else [f"x{j}" for j in range(bits.shape[1])]
    if len(names) != bits.shape[1]:
        raise ValueError(f"inputs: got {len(names)} names; needed {bits.shape[1]}, one a column")
    stray = [i for i in marked if not 0 <= i < bits.shape[0]] + [j for j in asked if not 0 <= j < bits.shape[1]]
    if stray:
        raise ValueError(f"marked, asked: got {stray[0]}; needed a row or column of {bits.shape}")
    w, left, top, parts = 34.0, 60.0, 96.0, []
    for j, name in enumerate(names):
        parts.append(
            svg.text(left + (j + 0.5) * w, top - 10, name, 10, "ink" if j in asked else "soft", bold=j in asked)
        )
    for i, row in enumerate(bits.tolist()):
        y = top + i * w
        parts.append(svg.text(left - 8, y + w / 2, f"y{i}", 10, "soft", "end"))
        for j, bit in enumerate(row):
            fill = "empty" if i not in marked else svg.GROUPS[1] if j in asked else svg.GROUPS[0]
            ink = svg.ON_COLOUR if i in marked else "ink" if bit else "soft"
            parts.append(svg.cell(left + j * w, y, w, w, bit, fill, ink, 13, row=i, col=j, marked=marked.get(i, "")))
        if i in marked:
            parts.append(svg.text(left + bits.shape[1] * w + 10, y + w / 2, marked[i], 11, "ink", "start"))
    label = max((svg.text_width(name, 11) for name in marked.values()), default=0)
    notes = {44: "row: a bit of the address; column: a bit of the offset"}
    notes[60] = "blue rows: bank bits; orange: where the access varies them" if asked else "blue rows: bank bits"
    description = f"A {bits.shape[0]} by {bits.shape[1]} matrix over GF(2); marked rows {sorted(marked)}."
    width, height = left + bits.shape[1] * w + label + 26, top + bits.shape[0] * w + 16
    return svg.picture(
        width, height, title or "The map over GF(2)", description, parts, notes if marked else {44: notes[44]}
    )
