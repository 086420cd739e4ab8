"""The moving figure of the home page: one access of eight rows, wavefront by wavefront, without a swizzle and with it.

Where a chunk lies is what `SmemLayout.byte_offsets` says. When a bank gives it is what `cookbook.banks` counts and
`cookbook.draw.crossbar` puts in order. Nothing here is placed by hand.
"""

from __future__ import annotations

import numpy as np

from cookbook import banks
from cookbook.access import LANES
from cookbook.draw import svg
from cookbook.draw.crossbar import wavefronts
from cookbook.layouts import Layout, SmemLayout
from cookbook.publish.markdown import figure as figure_of
from cookbook.swizzle import Swizzle

ROWS, CHUNK, SLOTS = 8, 16, 8  # 16-byte chunks; a line of 128 bytes has eight
SECONDS, SLIDE, FIRST, STEP, END = 10.0, (6, 18), 26, 7, 96  # the rest are percentages of a loop
_W, _H, _SERVED_H = 40.0, 23.0, 17.0
_LEFT, _TILE, _GAP = 66.0, 74.0, 46.0
_BELOW = _TILE + ROWS * _H + _GAP


def layouts() -> dict[str, SmemLayout]:
    """The tile of the figure, 8 rows of 128 bytes, by what is said of it."""
    outer = Layout((ROWS, 64), (64, 1))
    return {
        "No swizzle": SmemLayout(outer, Swizzle(0, 4, 3), element_bits=16),
        "Swizzle<3,4,3>": SmemLayout(outer, Swizzle(3, 4, 3), element_bits=16),
    }


def served(layout: SmemLayout, column: int) -> list[tuple[int, int]]:
    """Find chunk `column` of each row: (its slot in a line of 128 bytes, the wavefront that brings it), from 0.

    Eight lanes read them, as one phase of ldmatrix does.
    """
    starts = layout.byte_offsets()[:, column * CHUNK * 8 // layout.element_bits]
    order = wavefronts([int(byte) // CHUNK for byte in starts], banks=SLOTS)
    lanes = np.full(LANES, -1)
    lanes[:ROWS] = starts
    counted = banks.wavefronts(lanes, CHUNK).actual
    if counted != max(order) + 1:
        raise AssertionError(f"{counted} wavefronts are counted, {max(order) + 1} are drawn")
    return [(int(byte) // CHUNK % SLOTS, at) for byte, at in zip(starts, order, strict=True)]


def panel(name: str, layout: SmemLayout, column: int = 2) -> svg.Picture:
    """One half of the figure: the tile above, the wavefronts that bring its chunks of one column below."""
    read = served(layout, column)
    count = max(at for _, at in read) + 1
    said = f"{count} wavefront{'s' if count > 1 else ''}"
    parts = [f"<style>{_motion()}</style>", *_header(), *_tile(layout, column), *_taken(read, column, count)]
    parts.append(svg.text(_LEFT, _BELOW - 14, f"read column {column}: {said}", 13, "ink", "start", bold=True))
    described = (
        f"Eight rows of eight 16-byte chunks. Chunk {column} of each row lies in slots "
        f"{', '.join(str(slot) for slot, _ in read)}: the banks give them in {said}."
    )
    height = _BELOW + ROWS * _SERVED_H + 14
    return svg.picture(_LEFT + SLOTS * _W + 16, height, name, described, parts, {})


def figure() -> str:
    """Both halves, and a box to tick that stops them, as one block of HTML."""
    halves = "".join(figure_of(panel(*each).svg) for each in layouts().items())
    pause = '<label class="motion-pause"><input type="checkbox"> Pause</label>'
    return f'<div class="motion">{halves}{pause}</div>'


def _x(slot: float) -> float:
    return _LEFT + slot * _W


# There are many boxes and labels: what they share stands once, on the group that they are in.


def _group(elements: list[str], size: float, anchor: str, fill: str) -> str:
    named = f'fill="{fill}"' if fill.startswith("#") else f'class="f-{fill}"'
    return f'<g font-size="{svg.num(size)}" text-anchor="{anchor}" {named}>{"".join(elements)}</g>'


def _label(x: float, y: float, text: object) -> str:
    """Text whose middle height is about `y`, in letters of 11 units."""
    return f'<text x="{svg.num(x)}" y="{svg.num(y + 4)}">{text}</text>'


def _outline(slot: int, y: float, height: float) -> str:
    """A box in one slot as part of a path."""
    return f"M{svg.num(_x(slot) + 1)} {svg.num(y + 1)}h{svg.num(_W - 2)}v{svg.num(height - 2)}h{svg.num(2 - _W)}z"


def _box(slot: int, y: float, height: float, fill: str) -> str:
    return f'<path fill="{fill}" d="{_outline(slot, y, height)}"/>'


def _header() -> list[str]:
    rows = [_label(_LEFT - 8, _TILE + (row + 0.5) * _H, f"row {row}") for row in range(ROWS)]
    columns = [_label(_x(s + 0.5), _TILE - 12, f"{4 * s}-{4 * s + 3}") for s in range(SLOTS)]
    aside = [_label(_LEFT - 8, _TILE - 12, "banks"), *rows]
    return [_group(aside, 11, "end", "soft"), _group(columns, 11, "middle", "soft")]


def _tile(layout: SmemLayout, column: int) -> list[str]:
    """The chunks where they lie; each slides there from where it would lie without a swizzle."""
    lies = layout.byte_offsets()[:, :: CHUNK * 8 // layout.element_bits] // CHUNK % SLOTS
    parts = []
    for row, slots in enumerate(lies.tolist()):
        y = _TILE + row * _H
        for chunk, slot in enumerate(slots):
            drawn = _box(slot, y, _H, svg.GROUPS[chunk])
            if chunk == column:
                drawn += svg.frame(_x(slot), y, _W, _H, "ink")
            drawn += _label(_x(slot + 0.5), y + _H / 2, chunk)
            slides = f'<g class="mv-slide" style="--x:{svg.num((chunk - slot) * _W)}px">'
            parts.append(f"{slides}{drawn}</g>" if chunk != slot else drawn)
    return [_group(parts, 12, "middle", svg.ON_COLOUR)]


def _taken(read: list[tuple[int, int]], column: int, count: int) -> list[str]:
    """A line for each wavefront; a chunk falls from its place in the tile into the line of the one that brings it."""
    tops = [_BELOW + at * _SERVED_H for at in range(count)]
    numbers = [_label(_LEFT - 8, y + _SERVED_H / 2, at + 1) for at, y in enumerate(tops)]
    empty = "".join(_outline(slot, y, _SERVED_H) for y in tops for slot in range(SLOTS))
    parts = []
    for row, (slot, at) in enumerate(read):
        chip = _box(slot, tops[at], _SERVED_H, svg.GROUPS[column])
        chip += _label(_x(slot + 0.5), tops[at] + _SERVED_H / 2, f"row {row}")
        fall = f'class="mv-{at}" style="--y:{svg.num(_TILE + row * _H - tops[at])}px"'
        parts.append(f'<g {fall} data-row="{row}" data-wavefront="{at}">{chip}</g>')
    return [
        _group(numbers, 11, "end", "soft"),
        f'<path class="f-empty" d="{empty}"/>',
        _group(parts, 11, "middle", svg.ON_COLOUR),
    ]


def _motion() -> str:
    """Style sheet of the movement; there is none where the reader's system asks for less of it."""
    begin, stop = SLIDE
    frames = f"@keyframes mv-slide{{0%,{begin}%{{transform:translateX(var(--x))}}{stop}%,100%{{transform:none}}}}"
    rules = f".mv-slide{{animation:mv-slide {SECONDS:g}s ease-in-out infinite}}"
    for at in range(ROWS):
        start = FIRST + at * STEP
        away, here = "transform:translateY(var(--y))", "opacity:1;transform:none"
        frames += (
            f"@keyframes mv-{at}{{0%,{start}%{{opacity:0;{away}}}{start + 1}%{{opacity:1;{away}}}"
            f"{start + STEP}%,{END}%{{{here}}}100%{{opacity:0;transform:none}}}}"
        )
        rules += f".mv-{at}{{animation:mv-{at} {SECONDS:g}s ease-in infinite}}"
    return f"{frames}@media (prefers-reduced-motion:no-preference){{{rules}}}"
