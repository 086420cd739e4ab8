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
    """Of chunk `column` of each row: (its slot in a line of 128 bytes, the wavefront that brings it), from 0.

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
    halves = "".join(f'<figure class="picture">{panel(*each).svg}</figure>' for each in layouts().items())
    pause = '<label class="motion-pause"><input type="checkbox"> Pause</label>'
    return f'<div class="motion">{halves}{pause}</div>'


def _x(slot: float) -> float:
    return _LEFT + slot * _W


def _header() -> list[str]:
    parts = [svg.text(_LEFT - 8, _TILE - 12, "banks", 11, "soft", "end")]
    parts += [svg.text(_x(s + 0.5), _TILE - 12, f"{4 * s}-{4 * s + 3}", 11, "soft") for s in range(SLOTS)]
    parts += [svg.text(_LEFT - 8, _TILE + (r + 0.5) * _H, f"row {r}", 11, "soft", "end") for r in range(ROWS)]
    return parts


def _tile(layout: SmemLayout, column: int) -> list[str]:
    """The chunks where they lie; each slides there from where it would lie without a swizzle."""
    lies = layout.byte_offsets()[:, :: CHUNK * 8 // layout.element_bits] // CHUNK % SLOTS
    parts = []
    for row, slots in enumerate(lies.tolist()):
        for chunk, slot in enumerate(slots):
            box = (_x(slot), _TILE + row * _H, _W, _H)
            drawn = svg.cell(*box, chunk, svg.GROUPS[chunk], row=row, chunk=chunk, slot=slot)
            if chunk == column:
                drawn += svg.frame(*box, svg.ON_COLOUR)
            parts.append(f'<g class="mv-slide" style="--x:{svg.num((chunk - slot) * _W)}px">{drawn}</g>')
    return parts


def _taken(read: list[tuple[int, int]], column: int, count: int) -> list[str]:
    """A line for each wavefront; a chunk falls from its place in the tile into the line of the one that brings it."""
    parts = []
    for at in range(ROWS):
        y = _BELOW + at * _SERVED_H
        if at < count:
            parts.append(svg.text(_LEFT - 8, y + _SERVED_H / 2, at + 1, 11, "soft", "end"))
            parts += [svg.rect(_x(s) + 1, y + 1, _W - 2, _SERVED_H - 2, "empty") for s in range(SLOTS)]
    for row, (slot, at) in enumerate(read):
        y = _BELOW + at * _SERVED_H
        chip = svg.rect(_x(slot) + 1, y + 1, _W - 2, _SERVED_H - 2, svg.GROUPS[column])
        chip += svg.text(_x(slot + 0.5), y + _SERVED_H / 2, f"row {row}", 10, svg.ON_COLOUR)
        fallen = svg.num(_TILE + row * _H - y)
        parts.append(
            f'<g class="mv-fall mv-{at}" data-row="{row}" data-wavefront="{at}" style="--y:{fallen}px">{chip}</g>'
        )
    return parts


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
