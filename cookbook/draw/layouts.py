"""Shared-memory layouts as grids: which bytes each piece of a tile gets, and what each line of memory holds.

Both pictures read `SmemLayout.byte_offsets()`, the byte addresses the hardware uses. None of them computes an
address of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.arguments import checked, integer, integers
from cookbook.draw import svg

__all__ = ["bank_grid", "chunk_by_slot", "swizzle_view"]

CHUNK = 16  # bytes: the unit the swizzles of TMA and of the tensor cores move
LINE = 128  # bytes: one row of 32 banks
PER_LINE = LINE // CHUNK
_CELL = (46.0, 26.0)
_MAX_CELLS = 4096


def _offsets(smem_layout: Any, table: Any = None) -> tuple[np.ndarray, int]:
    """Byte offsets of the first stage as a 2-D array, and bytes per element."""
    if not hasattr(smem_layout, "byte_offsets"):
        raise TypeError(f"smem_layout: got {type(smem_layout).__name__}; needed a cookbook.layouts.SmemLayout")
    bits = smem_layout.element_bits
    if bits % 8 or not 8 <= bits <= 8 * CHUNK:
        raise ValueError(f"smem_layout: got elements of {bits} bits; needed whole bytes, at most {CHUNK}")
    offsets = np.asarray(smem_layout.byte_offsets() if table is None else table)
    if offsets.ndim < 2:
        raise ValueError(f"smem_layout: got {offsets.ndim} mode(s); needed at least two, such as (M, K)")
    return offsets.reshape(*offsets.shape[:2], -1)[:, :, 0], bits // 8


def _contiguous_mode(offsets: np.ndarray, element_bytes: int) -> int | None:
    """The mode along which 16 bytes stay together (and aligned), or None."""
    per_chunk = CHUNK // element_bytes
    steps = np.arange(per_chunk) * element_bytes
    for mode in (1, 0):
        lines = np.moveaxis(offsets, mode, 1)
        if lines.shape[1] % per_chunk:
            continue
        chunks = lines.reshape(lines.shape[0], -1, per_chunk)
        if (chunks == chunks[..., :1] + steps).all() and not (chunks[..., 0] % CHUNK).any():
            return mode
    return None


def _chunk_starts(offsets: np.ndarray, element_bytes: int, mode: int) -> np.ndarray:
    """Byte offset of each 16-byte chunk, (other mode, chunk along `mode`)."""
    return np.moveaxis(offsets, mode, 1)[:, :: CHUNK // element_bytes]


def _check_count(name: str, value: int | None, limit: int) -> int:
    if value is None:
        return limit
    return min(integer(name, value, at_least=1, at_most=1 << 24), limit)


def _legend(x: float, y: float) -> str:
    swatches = [
        svg.cell(x + 62 * g, y, 62, 20, f"{4 * g}-{4 * g + 3}", svg.GROUPS[g], size=11, bank_group=g) for g in range(8)
    ]
    return svg.group([svg.text(x - 8, y + 10, "banks", 11, "soft", "end"), *swatches])


def _axis_names(axes: Any, mode: int) -> tuple[str, str]:
    if len(axes) != 2:
        raise ValueError(f"axes: got {axes!r}; needed the names of two modes, such as ('M', 'K')")
    return (str(axes[1 - mode]), str(axes[mode]))


def _grid_values(offsets: np.ndarray, element_bytes: int, unit: str) -> tuple[np.ndarray, int, int]:
    """(byte offsets to draw, mode drawn left to right, elements per cell)."""
    if unit not in ("chunk", "element"):
        raise ValueError(f"unit: got {unit!r}; needed 'chunk' (16 bytes a cell) or 'element'")
    mode = _contiguous_mode(offsets, element_bytes)
    if unit == "element":
        return (np.moveaxis(offsets, 1 if mode is None else mode, 1), 1 if mode is None else mode, 1)
    if mode is None:
        raise ValueError("unit: got 'chunk'; needed 'element': this layout keeps no 16 bytes together")
    return _chunk_starts(offsets, element_bytes, mode), mode, CHUNK // element_bytes


@checked
def bank_grid(
    smem_layout: Any,
    rows: int | None = 8,
    cols: int | None = None,
    unit: str = "chunk",
    label: str = "byte",
    axes: tuple[str, str] = ("row", "col"),
    title: str | None = None,
) -> svg.Picture:
    """A tile as a grid: each cell says where its bytes lie and is coloured by the banks they use.

    The contiguous mode runs left to right, whichever of the two it is. Reading down a column of one colour is a
    bank conflict; a column of eight colours is free for eight lanes of 16 bytes.

    Args:
        smem_layout: a `cookbook.layouts.SmemLayout` with at least two modes; of further modes (stages) the first
            entry is drawn.
        rows: how many of the other mode's coordinates to draw; None for all.
        cols: how many cells to draw left to right (16-byte chunks or elements, by `unit`); None for all.
        unit: "chunk" (16 bytes a cell) or "element".
        label: what a cell says: "byte" (its byte offset), "chunk" (that offset / 16) or "bank" (its first bank).
        axes: names of modes 0 and 1.
        title: a title of your own.

    Raises:
        TypeError, ValueError: name the argument, what it got and what it needs.
    """
    offsets, element_bytes = _offsets(smem_layout)
    values, mode, per_cell = _grid_values(offsets, element_bytes, unit)
    say = {"byte": lambda b: b, "chunk": lambda b: b // CHUNK, "bank": lambda b: b // 4 % 32}
    if label not in say:
        raise ValueError(f"label: got {label!r}; needed 'byte', 'chunk' or 'bank'")
    values = values[: _check_count("rows", rows, values.shape[0]), : _check_count("cols", cols, values.shape[1])]
    if values.size > _MAX_CELLS:
        raise ValueError(f"rows, cols: got {values.size} cells; needed at most {_MAX_CELLS}: ask for fewer")
    down, across = _axis_names(axes, mode)
    (w, h), left, top = _CELL, 82.0, 72.0
    parts = []
    for c in range(values.shape[1]):
        parts.append(svg.text(left + (c + 0.5) * w, top - 10, f"{c * per_cell}", 10, "soft"))
    parts.append(svg.text(left - 10, top - 10, f"{down} \\ {across}", 10, "soft", "end"))
    for r, row in enumerate(values.tolist()):
        parts.append(svg.text(left - 10, top + (r + 0.5) * h, r, 10, "soft", "end"))
        for c, byte in enumerate(row):
            place, group = (left + c * w, top + r * h, w, h), byte // CHUNK % 8
            of = {"row": r, "col": c * per_cell, "byte": byte, "bank_group": group}
            parts.append(svg.cell(*place, say[label](byte), svg.GROUPS[group], **of))
    bottom = top + values.shape[0] * h
    parts.append(_legend(left, bottom + 12))
    title = title or f"{_name(smem_layout)}: where each {unit} lies"
    description = (
        f"{values.shape[0]} by {values.shape[1]} cells. Row 1 starts at byte {values[min(1, len(values) - 1), 0]}. "
        "Cells of one colour use the same four banks."
    )
    notes = {44: f"each cell: {label} of {CHUNK if unit == 'chunk' else element_bytes} bytes"}
    return svg.picture(left + max(values.shape[1] * w, 8 * 62) + 16, bottom + 48, title, description, parts, notes)


def _name(smem_layout: Any) -> str:
    swizzle = getattr(smem_layout, "swizzle", None)
    if swizzle is None:
        return "layout"
    return f"S<{swizzle.bits},{swizzle.base},{swizzle.shift}> on bytes, {smem_layout.element_bits}-bit elements"


@checked
def chunk_by_slot(starts: np.ndarray) -> np.ndarray:
    """Turns "where does chunk c lie" into "which chunk lies in slot p of line r".

    Args:
        starts: byte offset of each 16-byte chunk of the tile, any shape; chunks are numbered in row-major order.

    Returns:
        (lines, 8) integers, line r being bytes 128r to 128r + 127; -1 where no chunk lies.
    """
    starts = integers("starts", starts, at_least=0, at_most=(1 << 24) - CHUNK)
    if not starts.size:
        raise ValueError("starts: got none; needed the byte offset of one chunk at least")
    slots = starts.reshape(-1) // CHUNK
    held = np.full(-(-(int(slots.max()) + 1) // PER_LINE) * PER_LINE, -1, dtype=np.int64)
    held[slots] = np.arange(slots.size)
    return held.reshape(-1, PER_LINE)


def _lines(lines: np.ndarray, home: dict[int, int], left: float, top: float, caption: str, side: str) -> list[str]:
    """One half of the swizzle view. A chunk keeps the colour of its slot in the unswizzled layout."""
    w, h = 40.0, 24.0
    parts = [svg.text(left, top - 30, caption, 12, "ink", "start", bold=True)]
    parts += [svg.text(left + (p + 0.5) * w, top - 10, p, 10, "soft") for p in range(PER_LINE)]
    for r, row in enumerate(lines.tolist()):
        parts.append(svg.text(left - 8, top + (r + 0.5) * h, r, 10, "soft", "end"))
        for p, chunk in enumerate(row):
            held = ("", "empty", "soft") if chunk < 0 else (chunk, svg.GROUPS[home[chunk]], svg.ON_COLOUR)
            place = (left + p * w, top + r * h, w, h)
            parts.append(svg.cell(*place, *held, side=side, line=r, slot=p, chunk=chunk))
    return parts


@checked
def swizzle_view(smem_layout: Any, lines: int | None = 8, title: str | None = None) -> svg.Picture:
    """Return what each 128-byte line of shared memory holds, without the swizzle (left) and with it (right).

    Rows are 128-byte lines, columns the eight 16-byte slots of a line, and a cell says which 16-byte chunk of the
    tile lies there; chunks are numbered along the contiguous mode first. A chunk has one colour on both sides: its
    slot on the left.

    For the 128-byte swizzle, slot p of line r holds chunk 8r + (p ^ (r mod 8)).

    Args:
        smem_layout: a `cookbook.layouts.SmemLayout` that keeps 16 bytes together.
        lines: how many 128-byte lines to draw; None for all.
        title: a title of your own.
    """
    offsets, element_bytes = _offsets(smem_layout)
    mode = _contiguous_mode(offsets, element_bytes)
    if mode is None:
        raise ValueError(
            "smem_layout: got one that keeps no 16 bytes together; needed one that does, or bank_grid(unit='element')"
        )
    table = np.asarray(smem_layout.outer.table()) * element_bytes
    plain, _ = _offsets(smem_layout, table)
    before = chunk_by_slot(_chunk_starts(plain, element_bytes, mode))
    after = chunk_by_slot(_chunk_starts(offsets, element_bytes, mode))
    home = {chunk: slot for row in before.tolist() for slot, chunk in enumerate(row)}
    count = _check_count("lines", lines, len(before))
    if count * PER_LINE > _MAX_CELLS:
        raise ValueError(f"lines: got {count}; needed at most {_MAX_CELLS // PER_LINE}")
    left, top = 44.0, 96.0
    right = left + PER_LINE * 40 + 60
    notes = {44: "rows: 128-byte lines; columns: 16-byte slots; cell: chunk of the tile"}
    parts: list[str] = []
    parts += _lines(before[:count], home, left, top, "without the swizzle", "plain")
    parts += _lines(after[:count], home, right, top, "with the swizzle", "swizzled")
    description = "Line 1 holds chunks " + " ".join(map(str, after[min(1, len(after) - 1)])) + " in slots 0 to 7."
    title = title or f"{_name(smem_layout)}: what each line holds"
    return svg.picture(right + PER_LINE * 40 + 16, top + count * 24 + 16, title, description, parts, notes)
