"""Tensor memory: where the accumulators of a tile lie in its lanes and columns, and which warp can reach them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cookbook.arguments import Integers, checked
from cookbook.draw import svg

__all__ = ["tensor_memory"]

_LANES, _COLUMNS, _WARP_LANES = 128, 512, 32
_W, _H = 1.6, 1.5  # of a column, of a lane
_LEFT, _TOP = 76.0, 104.0


class _Block(NamedTuple):
    """A rectangle of the tile that one load of one warp fetches."""

    stage: int
    rows: tuple[int, int]  # first, last
    columns: tuple[int, int]
    lanes: tuple[int, int]
    cells: tuple[int, int]  # columns of tensor memory


@checked
def tensor_memory(addresses: Integers, piece: int, title: str | None = None) -> svg.Picture:
    """All of tensor memory, 128 lanes by 512 columns, with the accumulators of each stage where they lie.

    A rectangle is what one warp loads at once: 32 rows of the tile, `piece` columns. A colour is a piece.

    Args:
        addresses: (STAGE, M, N) or (M, N) addresses, lane << 16 | column, of the accumulators, from the first.
        piece: columns of a load, a divisor of N.
        title: a title of your own.

    Raises:
        ValueError: an address outside tensor memory, two accumulators at one, or a piece that does not lie in 32 lanes.
    """
    addresses = np.asarray(addresses)
    addresses = addresses[None] if addresses.ndim == 2 else addresses
    _check(addresses, piece)
    stages, rows, columns = addresses.shape
    blocks = [
        _block(addresses, stage, row, column, piece)
        for stage in range(stages)
        for row in range(0, rows, _WARP_LANES)
        for column in range(0, columns, piece)
    ]
    width, height = _COLUMNS * _W, _LANES * _H
    parts = [svg.rect(_LEFT, _TOP, width, height, "empty")]
    for warp in range(_LANES // _WARP_LANES):
        y = _TOP + warp * _WARP_LANES * _H
        parts.append(svg.text(_LEFT - 10, y + _WARP_LANES * _H / 2, f"warp {warp}", 11, "ink", "end", bold=True))
        parts.append(svg.line(_LEFT - 6, y, _LEFT + width, y))
        parts.append(svg.text(_LEFT - 10, y + 8, f"lane {warp * _WARP_LANES}", 9, "soft", "end"))
    parts += [svg.text(_LEFT + c * _W, _TOP - 9, c, 9, "soft") for c in range(0, _COLUMNS + 1, 64)]
    for block in blocks:
        parts += _drawn(block, piece)
    used = len(np.unique(addresses & 0xFFFF))
    said = f"rows 0 to {rows - 1} of a tile of {columns} columns" + (f", {stages} tiles" if stages > 1 else "")
    notes = {44: "across: columns of 32 bits; down: lanes", 60: f"a box: what one warp loads at once; {said}"}
    described = (
        f"{used} of {_COLUMNS} columns hold accumulators. Row {rows - 1} lies in lane {int(addresses[0, -1, 0]) >> 16}."
    )
    title = title or f"Tensor memory: {used} of {_COLUMNS} columns"
    return svg.picture(_LEFT + width + 24, _TOP + height + 20, title, described, parts, notes)


def _check(addresses: np.ndarray, piece: int) -> None:
    if addresses.ndim != 3 or piece < 1 or addresses.shape[2] % piece or addresses.shape[1] % _WARP_LANES:
        needed = f"(STAGE, M, N), M a multiple of {_WARP_LANES}, N of the piece, {piece}"
        raise ValueError(f"addresses: got shape {addresses.shape}; needed {needed}")
    if addresses.min() < 0 or (addresses >> 16).max() >= _LANES or (addresses & 0xFFFF).max() >= _COLUMNS:
        raise ValueError(f"addresses: got {addresses.min():#x} to {addresses.max():#x}; needed 128 lanes, 512 columns")
    if len(np.unique(addresses)) != addresses.size:
        raise ValueError("addresses: got one twice; needed a place for each sum")


def _block(addresses: np.ndarray, stage: int, row: int, column: int, piece: int) -> _Block:
    inside = addresses[stage, row : row + _WARP_LANES, column : column + piece]
    lanes, cells = inside >> 16, inside & 0xFFFF
    spans = [(int(x.min()), int(x.max())) for x in (lanes, cells)]
    if any(last - first + 1 != extent for (first, last), extent in zip(spans, inside.shape, strict=True)):
        raise ValueError(f"addresses: got rows from {row}, columns from {column} apart; needed them in one rectangle")
    return _Block(stage, (row, row + _WARP_LANES - 1), (column, column + piece - 1), *spans)


def _drawn(block: _Block, piece: int) -> list[str]:
    (lane, last_lane), (cell, last_cell) = block.lanes, block.cells
    x, y = _LEFT + cell * _W, _TOP + lane * _H
    w, h = (last_cell - cell + 1) * _W, (last_lane - lane + 1) * _H
    number = block.columns[0] // piece
    data = {"stage": block.stage, "rows": _span(block.rows), "columns": _span(block.columns), "lane": lane}
    box = svg.rect(x + 0.75, y + 0.75, w - 1.5, h - 1.5, svg.GROUPS[number % len(svg.GROUPS)])
    labels = [f"m {_span(block.rows)}", f"n {_span(block.columns)}"]
    size = min(9.0, (w - 4) / (max(map(len, labels)) * svg.CHAR_WIDTH))
    texts = [svg.text(x + w / 2, y + h / 2 - 6 + 12 * i, label, size, svg.ON_COLOUR) for i, label in enumerate(labels)]
    return [svg.group([box, *(texts if size >= 6 else [])], cell=cell, **data)]


def _span(ends: tuple[int, int]) -> str:
    return f"{ends[0]}-{ends[1]}"
