"""The tensor cores' shared-memory atoms: what each line of memory holds, and how atoms tile a tile.

Like `cookbook.draw.layouts`, these read `SmemLayout.byte_offsets()` and compute no address of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cookbook.arguments import checked, integer
from cookbook.draw import svg
from cookbook.draw.layouts import CHUNK, PER_LINE, _chunk_starts, _contiguous_mode, _offsets, chunk_by_slot
from cookbook.layouts import SmemLayout

__all__ = ["atom_orders", "atom_tiling"]

_W, _H = 46.0, 32.0
_MAX_LINES = 16
_BESIDE = 8 * 30.0 + 56.0  # what a tile takes on the left of its lines


class _Chunks(NamedTuple):
    """The 16-byte chunks of a layout."""

    starts: np.ndarray  # byte offset by (coordinate of the other mode, chunk along the contiguous one)
    mode: int  # the contiguous mode
    elements: int  # of a chunk


def _chunks(name: str, layout: SmemLayout) -> _Chunks:
    offsets, element_bytes = _offsets(layout)
    mode = _contiguous_mode(offsets, element_bytes)
    if mode is None:
        raise ValueError(f"{name}: got one that keeps no 16 bytes together; needed a layout of 16-byte chunks")
    return _Chunks(_chunk_starts(offsets, element_bytes, mode), mode, CHUNK // element_bytes)


def _first_element(chunks: _Chunks, chunk: int) -> tuple[int, int]:
    """(mode 0, mode 1) of the first element of a chunk, numbered along the contiguous mode first."""
    other, along = divmod(chunk, chunks.starts.shape[1])
    return (along * chunks.elements, other) if chunks.mode == 0 else (other, along * chunks.elements)


_TILE_W, _TILE_H = 30.0, 24.0  # of a chunk of the tile as it lies in global memory


def _global_tile(chunks: _Chunks, left: float, top: float) -> list[str]:
    """The tile as it lies in a matrix: a row of cells for each contiguous row, its chunks numbered and coloured."""
    rows, cols = chunks.starts.shape
    parts = [svg.text(left, top - 26, "in the matrix", 12, "ink", "start", bold=True)]
    for r in range(rows):
        parts.append(svg.text(left - 8, top + (r + 0.5) * _TILE_H, r, 10, "soft", "end"))
        for c in range(cols):
            place = (left + c * _TILE_W, top + r * _TILE_H, _TILE_W, _TILE_H, r * cols + c)
            parts.append(svg.cell(*place, svg.GROUPS[c % len(svg.GROUPS)], size=11, tile_row=r, tile_col=c))
    return parts


def _panel(name: str, layout: SmemLayout, left: float, top: float, tile: bool) -> tuple[list[str], float]:
    """One layout's lines of memory, with the tile on their left if asked for; returns the height too."""
    chunks = _chunks(name, layout)
    if tile and max(chunks.starts.shape[1], len(chunks.starts) // 2) > 8:
        raise ValueError(f"tiles: got {name} of {chunks.starts.shape} chunks; needed at most 16 rows of 8")
    before = _global_tile(chunks, left, top) if tile else []
    left += _BESIDE if tile else 0
    lines = chunk_by_slot(chunks.starts)
    if len(lines) > _MAX_LINES:
        raise ValueError(f"layouts: got {len(lines)} lines of 128 bytes for {name}; needed at most {_MAX_LINES}")
    parts = [svg.text(left, top - 26, f"{name}: {layout.swizzle!r}", 12, "ink", "start", bold=True)]
    parts += [svg.text(left + (slot + 0.5) * _W, top - 9, slot, 9, "soft") for slot in range(PER_LINE)]
    for r, line in enumerate(lines.tolist()):
        y = top + r * _H
        parts.append(svg.text(left - 8, y + _H / 2, r, 10, "soft", "end"))
        for slot, chunk in enumerate(line):
            parts.append(_chunk_cell(chunks, name, chunk, (r, slot), left + slot * _W, y))
    return [*before, *parts], max(len(lines) * _H, len(chunks.starts) * _TILE_H if tile else 0)


def _chunk_cell(chunks: _Chunks, name: str, chunk: int, place: tuple[int, int], x: float, y: float) -> str:
    """A chunk's number over the coordinate of its first element; chunks of one colour are side by side in the tile."""
    data = {"atom": name, "line": place[0], "slot": place[1], "chunk": chunk}
    if chunk < 0:
        return svg.cell(x, y, _W, _H, "", "empty", "soft", **data)
    along = chunk % chunks.starts.shape[1]
    box = svg.rect(x + 0.75, y + 0.75, _W - 1.5, _H - 1.5, svg.GROUPS[along % len(svg.GROUPS)])
    number = svg.text(x + _W / 2, y + 11, chunk, 12, svg.ON_COLOUR)
    first = ",".join(map(str, _first_element(chunks, chunk)))
    return svg.group([box, number, svg.text(x + _W / 2, y + 24, first, 9, svg.ON_COLOUR)], first=first, **data)


@checked
def atom_orders(
    layouts: Mapping[str, SmemLayout], columns: int = 2, title: str | None = None, tiles: bool = False
) -> svg.Picture:
    """Return what each 128-byte line of shared memory holds, for several small layouts side by side.

    A row is a 128-byte line, a column one of its eight 16-byte slots. A cell says which chunk of the tile lies there
    (numbered along the contiguous mode first) and, smaller, the coordinate of its first element. Chunks of one colour
    form one column of chunks: those that a tensor core reads at once, and that should be in different slots.

    Args:
        layouts: by name, each of at most 16 lines that keeps 16 bytes together; for the atoms, `(M, K)`.
        columns: how many panels stand side by side.
        title: a title of your own.
        tiles: whether to draw each tile too, as it lies in a matrix, on the left of its lines; 8 chunks to a row at
            most.
    """
    if not layouts:
        raise ValueError("layouts: got none; needed at least one")
    integer("columns", columns, at_least=1, at_most=64)
    names, parts, top, tallest = list(layouts), [], 112.0, 0.0
    across = PER_LINE * _W + 56 + (_BESIDE if tiles else 0)
    for i, name in enumerate(names):
        column = i % columns
        if i and not column:
            top, tallest = top + tallest + 58, 0.0
        drawn, height = _panel(name, layouts[name], 40.0 + column * across, top, tiles)
        parts, tallest = parts + drawn, max(tallest, height)
    width = min(columns, len(names)) * across
    notes = {44: "rows: 128-byte lines; columns: 16-byte slots", 60: "cell: chunk number, then its first element"}
    description = f"What the lines of shared memory hold under {', '.join(names)}."
    return svg.picture(width, top + tallest + 18, title or "Chunk orders", description, parts, notes)


def _atom_places(layout: SmemLayout, atom: tuple[int, int]) -> np.ndarray:
    """Return which place in memory, counted in atoms, each atom of the grid takes: (atom rows, atom columns)."""
    rows, cols = layout.outer.sizes[:2]
    if rows % atom[0] or cols % atom[1]:
        raise ValueError(f"atom: got {atom}; needed a shape that divides the tile's {(rows, cols)}")
    table = layout.outer.table().reshape(rows, cols, -1)[:, :, 0]
    places, rest = np.divmod(table[:: atom[0], :: atom[1]], atom[0] * atom[1])
    if rest.any() or len(np.unique(places)) != places.size:
        raise ValueError(f"atom: got {atom}; needed the shape of the blocks that lie together in {layout.outer!r}")
    return places


def _tile_panel(name: str, layout: SmemLayout, atom: tuple[int, int], left: float, top: float) -> list[str]:
    chunks, places = _chunks(name, layout), _atom_places(layout, atom)
    parts = [svg.text(left, top - 26, name, 12, "ink", "start", bold=True)]
    for r, row in enumerate(chunks.starts.tolist()):
        parts.append(svg.text(left - 8, top + (r + 0.5) * 24, r, 10, "soft", "end"))
        for c, byte in enumerate(row):
            m, k = _first_element(chunks, r * len(row) + c)
            place = int(places[m // atom[0], k // atom[1]])
            fill = svg.GROUPS[place % len(svg.GROUPS)]
            x, y = left + c * _W, top + r * 24
            parts.append(svg.cell(x, y, _W, 24, byte, fill, size=11, tiling=name, row=r, col=c, byte=byte, atom=place))
    per_row = [chunks.elements * c for c in range(chunks.starts.shape[1])]
    parts += [svg.text(left + (c + 0.5) * _W, top - 9, first, 9, "soft") for c, first in enumerate(per_row)]
    return parts


@checked
def atom_tiling(tilings: Mapping[str, SmemLayout], atom: tuple[int, int], title: str | None = None) -> svg.Picture:
    """Tiles made of atoms, side by side: each cell is a 16-byte chunk with its byte offset, a colour is an atom.

    The colours follow the order of the atoms in memory, so the same picture in two orders shows what differs.

    Args:
        tilings: the tiles by name: one shape and one major-ness.
        atom: rows and columns of the atom, in elements.
        title: a title of your own.
    """
    if not tilings:
        raise ValueError("tilings: got none; needed at least one")
    left, top, parts, heights = 46.0, 110.0, [], []
    for name, layout in tilings.items():
        starts = _chunks(name, layout).starts
        if starts.size > 1024:
            raise ValueError(f"tilings: got {starts.size} chunks in {name}; needed at most 1024")
        parts += _tile_panel(name, layout, atom, left, top)
        left += max(starts.shape[1] * _W, svg.text_width(name, 12)) + 56
        heights.append(starts.shape[0] * 24)
    notes = {44: "cell: byte offset of a 16-byte chunk", 60: "colour: the atom, in the order of memory"}
    description = f"Tiles of {atom[0]} by {atom[1]} atoms: {', '.join(tilings)}."
    return svg.picture(left - 36, top + max(heights) + 18, title or "Atoms in a tile", description, parts, notes)
