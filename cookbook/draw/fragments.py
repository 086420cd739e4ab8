"""Pictures of fragments: (thread, value) layouts of MMA operands, and the elements ldmatrix hands to each lane."""

from __future__ import annotations

import numpy as np

from cookbook.arguments import checked
from cookbook.draw import svg
from cookbook.layouts import Layout, tile_coords
from cookbook.model import SharedMemory, ldmatrix

__all__ = ["ldmatrix_view", "tv_view"]

_MAX_CELLS = 1024


@checked
def tv_view(
    tv: Layout, tile: tuple[int, int], axes: tuple[str, str] = ("M", "K"), title: str | None = None
) -> svg.Picture:
    """A tile as a grid: each cell names the thread that holds the element, and as which of its values.

    The four threads that share a row of an 8x8 matrix have one colour, so a matrix shows as eight bands.

    Args:
        tv: (thread, value) -> index in a column-major tile: `atom.tv_layout_A` and its like, by `evaluate`.
        tile: rows and columns of the tile.
        axes: names of the two modes.
        title: a title of your own.

    Raises:
        ValueError: tv leaves the tile, holds an element more than once or not at all, or the tile is too large.
    """
    if len(axes) != 2:
        raise ValueError(f"axes: got {axes!r}; needed the names of two modes, such as ('M', 'K')")
    if tile[0] * tile[1] > _MAX_CELLS:
        raise ValueError(f"tile: got {tile}; needed at most {_MAX_CELLS} elements")
    coords = tile_coords(tv, tile)
    held = np.full((*tile, 2), -1)
    held[coords[..., 0], coords[..., 1]] = np.moveaxis(np.indices(coords.shape[:2]), 0, -1)
    if (held < 0).any() or tv.size != tile[0] * tile[1]:
        raise ValueError(f"tv: got {tv!r}; needed each element of {tile} exactly once")
    w, h, left, top, parts = 64.0, 24.0, 60.0, 80.0, []
    parts += [svg.text(left + (c + 0.5) * w, top - 10, c, 10, "soft") for c in range(tile[1])]
    parts.append(svg.text(left - 10, top - 10, f"{axes[0]} \\ {axes[1]}", 10, "soft", "end"))
    for r in range(tile[0]):
        parts.append(svg.text(left - 10, top + (r + 0.5) * h, r, 10, "soft", "end"))
        for c in range(tile[1]):
            thread, value = held[r, c].tolist()
            fill = svg.GROUPS[thread // 4 % len(svg.GROUPS)]
            x, y, label = left + c * w, top + r * h, f"T{thread} V{value}"
            parts.append(svg.cell(x, y, w, h, label, fill, size=11, row=r, col=c, thread=thread, value=value))
    notes = {44: "cell: thread and value"}
    description = f"Thread 0 holds {', '.join(f'({m}, {k})' for m, k in coords[0].tolist())}."
    title = title or f"{tv!r} on {tile[0]} x {tile[1]}"
    return svg.picture(left + tile[1] * w + 16, top + tile[0] * h + 16, title, description, parts, notes)


def lane_holds(mn_major: bool, trans: bool) -> np.ndarray:
    """(32, 2, 2): the (m, k) of the two elements that each lane holds after ldmatrix.x1 of an 8x8 matrix.

    The matrix is stored in eight rows of 16 bytes, along K or, with `mn_major`, along M. `cookbook.model.ldmatrix`
    reads it.
    """
    smem = SharedMemory(128)
    m, k = np.indices((8, 8))
    stored = (8 * m + k).astype(np.uint16)  # an element says its own coordinate
    smem.write(16 * np.arange(8), stored.T.copy() if mn_major else stored)
    lanes = 16 * (np.arange(32) % 8)
    return np.stack(np.divmod(ldmatrix(smem, lanes, 1, trans)[:, 0].astype(np.int64), 8), axis=-1)


def _name(m: int, k: int) -> str:
    return f"M{m}K{k}"


@checked
def ldmatrix_view(mn_major: bool = False, trans: bool = False, title: str | None = None) -> svg.Picture:
    """One 8x8 matrix of 16-bit elements through ldmatrix.x1: shared memory on the left, registers on the right.

    On the left a row is 16 bytes, whose address the lane beside it gives; on the right a cell is one lane's 32-bit
    register, its two elements low half first. A colour is one row of four lanes, on both sides.

    Args:
        mn_major: whether a stored row runs along M instead of K.
        trans: ldmatrix.trans.
        title: a title of your own.
    """
    holds = lane_holds(mn_major, trans)
    owner = {tuple(mk): lane for lane in range(32) for mk in holds[lane].tolist()}
    w, h, left, top, wide = 42.0, 26.0, 64.0, 96.0, 106.0
    right = left + 8 * w + 28
    parts = [svg.text(left, top - 26, "shared memory", 12, "ink", "start", bold=True)]
    parts += [svg.text(right, top - 26, "registers of the 32 lanes", 12, "ink", "start", bold=True)]
    parts += [svg.text(left + (i + 0.5) * w, top - 10, f"+{2 * i} B", 9, "soft") for i in range(8)]
    for r in range(8):
        y = top + r * h
        parts.append(svg.text(left - 8, y + h / 2, f"lane {r}", 10, "soft", "end"))
        for i in range(8):
            m, k = (i, r) if mn_major else (r, i)
            fill = svg.GROUPS[owner[m, k] // 4]
            parts.append(svg.cell(left + i * w, y, w, h, _name(m, k), fill, size=11, side="memory", row=r, col=i))
        for j in range(4):
            lane = 4 * r + j
            label = f"T{lane}: " + " ".join(_name(*mk) for mk in holds[lane].tolist())
            x = right + j * wide
            parts.append(svg.cell(x, y, wide, h, label, svg.GROUPS[lane // 4], size=11, side="lane", lane=lane))
    major, suffix = ("M" if mn_major else "K"), (".trans" if trans else "")
    first = " and ".join(_name(*mk) for mk in holds[0].tolist())
    title = title or f"ldmatrix.x1{suffix} of a matrix stored along {major}"
    notes = {44: f"each row of memory runs along {major}; a colour is one row of four lanes"}
    return svg.picture(right + 4 * wide + 16, top + 8 * h + 16, title, f"Lane 0 receives {first}.", parts, notes)
