"""The order in which the tiles of C are visited, and what a wave of CTAs reads because of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from cookbook.arguments import checked, integer, pair
from cookbook.draw import svg

__all__ = ["tile_order"]

Order: TypeAlias = Sequence[tuple[int, int]]
_MAX_TILES = 8192


class _Wave(NamedTuple):
    """One wave of an order."""

    rows: int  # of the grid
    cols: int
    at: dict[tuple[int, int], int]  # tile -> its place in the wave
    used: tuple[set[int], set[int]]  # rows and columns of tiles that the wave touches


def _wave(name: str, order: Order, wave: int, show: int) -> _Wave:
    tiles = [(int(m), int(n)) for m, n in order]
    if not 1 <= len(tiles) <= _MAX_TILES:
        raise ValueError(f"orders: got {len(tiles)} tiles in {name}; needed 1 to {_MAX_TILES}")
    rows, cols = (max(mn[i] for mn in tiles) + 1 for i in (0, 1))
    if len(set(tiles)) != len(tiles) or len(tiles) != rows * cols or min(map(min, tiles)) < 0:
        raise ValueError(f"orders: got {len(tiles)} tiles in {name}; needed each of {rows} x {cols} exactly once")
    if wave < 1 or not 0 <= show * wave < len(tiles):
        raise ValueError(f"wave, show: got {wave}, {show}; needed a wave among {len(tiles)} tiles")
    at = {mn: i for i, mn in enumerate(tiles[show * wave : (show + 1) * wave])}
    return _Wave(rows, cols, at, ({m for m, _ in at}, {n for _, n in at}))


def _margins(name: str, one: _Wave, left: float, top: float, size: float) -> list[str]:
    """The panels of A on the left and of B on top, filled where the wave reads them."""
    parts = [svg.text(left - 15, top - 14, "A", 11), svg.text(left + one.cols * size + 9, top - 15, "B", 11)]
    for m in range(one.rows):
        fill = svg.GROUPS[0] if m in one.used[0] else "empty"
        box = svg.rect(left - 21, top + m * size + 0.4, 12, size - 0.8, fill)
        parts.append(svg.group([box], order=name, panel="A", index=m, read=m in one.used[0]))
    for n in range(one.cols):
        fill = svg.GROUPS[2] if n in one.used[1] else "empty"
        box = svg.rect(left + n * size + 0.4, top - 21, size - 0.8, 12, fill)
        parts.append(svg.group([box], order=name, panel="B", index=n, read=n in one.used[1]))
    return parts


def _panel(name: str, one: _Wave, place: tuple[float, float], size: float, tile: tuple[int, int]) -> list[str]:
    left, top = place
    parts = [svg.text(left - 21, top - 54, name, 12, anchor="start", bold=True), *_margins(name, one, left, top, size)]
    rows, columns = len(one.used[0]) * tile[0], len(one.used[1]) * tile[1]
    parts.append(svg.text(left - 21, top - 38, f"{rows} + {columns} = {rows + columns}", 11, "soft", "start"))
    parts += _empty_grid(one, left, top, size)
    centres = [(left + (n + 0.5) * size, top + (m + 0.5) * size) for m, n in one.at]
    parts.append(svg.path(centres, "soft", 1.8))  # under the tiles: the dark line on them is lost beside them
    for (m, n), at in one.at.items():
        fill = svg.GROUPS[at * len(svg.GROUPS) // len(one.at)]
        box = svg.rect(left + n * size + 0.3, top + m * size + 0.3, size - 0.6, size - 0.6, fill)
        parts.append(svg.group([box], order=name, m=m, n=n, at=at))
    return [*parts, svg.path(centres, svg.ON_COLOUR, 0.7)]


def _empty_grid(one: _Wave, left: float, top: float, size: float) -> list[str]:
    """The whole grid as one box and the lines between tiles: thousands of cells would make a heavy page."""
    width, height = one.cols * size, one.rows * size
    parts = [svg.rect(left, top, width, height, "empty")]
    parts += [svg.line(left, top + m * size, left + width, top + m * size, "card", 0.6) for m in range(1, one.rows)]
    parts += [svg.line(left + n * size, top, left + n * size, top + height, "card", 0.6) for n in range(1, one.cols)]
    return parts


@checked
def tile_order(
    orders: Mapping[str, Order],
    wave: int = 132,
    tile: tuple[int, int] = (128, 256),
    show: int = 0,
    columns: int = 3,
    title: str | None = None,
) -> svg.Picture:
    """The grid of tiles of C with one wave coloured, in several orders, and what of A and B that wave reads.

    A cell is a tile of C, coloured by when it starts within the wave; a line joins the tiles in that order. On the
    left of a grid lie the row panels of A, above it the column panels of B, filled where the wave reads them. Under
    its name: the rows of A plus the columns of B that are read, in elements.

    Args:
        orders: by name, the (m, n) of each tile in the order in which CTAs start; every tile of the grid once.
        wave: CTAs that run at once: one for each SM.
        tile: rows and columns of a tile, in elements.
        show: which wave to colour, from 0.
        columns: how many grids stand side by side.
        title: a title of your own.
    """
    if not orders:
        raise ValueError("orders: got none; needed at least one")
    integer("columns", columns, at_least=1, at_most=64)
    pair("tile", tile, of="rows, columns", at_least=1, at_most=1 << 16)
    found = {name: _wave(name, order, wave, show) for name, order in orders.items()}
    rows, cols = max(one.rows for one in found.values()), max(one.cols for one in found.values())
    size = max(4.0, min(18.0, 280 / cols, 520 / rows))
    step_x, step_y = max(cols * size, 190) + 60, rows * size + 86
    parts = []
    for i, (name, one) in enumerate(found.items()):
        place = (44 + i % columns * step_x, 118 + i // columns * step_y)
        parts += _panel(name, one, place, size, tile)
    notes = {44: f"colour and line: wave {show}, {wave} tiles in the order they start"}
    description = "; ".join(
        f"{name}: {len(one.used[0])} panels of A, {len(one.used[1])} of B" for name, one in found.items()
    )
    width = 44 + min(columns, len(found)) * step_x - 30
    height = 118 + -(-len(found) // columns) * step_y - 64
    return svg.picture(width, height, title or "Which tiles run together", description + ".", parts, notes)
