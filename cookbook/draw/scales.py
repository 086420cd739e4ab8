"""An atom of scale factors: its 512 bytes in shared memory, and where tcgen05.cp takes them in tensor memory."""

from __future__ import annotations

import numpy as np

from cookbook.arguments import Integers, checked, integer
from cookbook.draw import svg

__all__ = ["scale_atom"]

_MOST_BLOCK = 1024  # elements of K to a scale factor, far above the 32 of any format
_ROWS, _FACTORS, _LINES, _WORDS, _WORD = 128, 4, 32, 4, 4  # rows; factors of each; lines of 16 bytes; words in a line
_LANES, _WARPS = 128, 4
_W, _H = 40.0, 11.0  # of a word in shared memory
_CW, _LH = 62.0, 2.75  # of a column, of a lane
_TOP, _LEFT, _GAP = 112.0, 66.0, 124.0
_ZOOM = 26.0  # height of a byte of the cell drawn large


@checked
def scale_atom(
    offsets: Integers, source: Integers, target: Integers, block: int, per_step: int, title: str | None = None
) -> svg.Picture:
    """Both places of an atom's rows, 128 of them, and what the four bytes of a row are for.

    A colour is 32 rows. What stands where is worked out from the layouts: a wrong one makes another picture, or none.

    Args:
        offsets: (128, 4) bytes in shared memory of each row's scale factors.
        source: 1-D, bytes in shared memory that the copy reads.
        target: 1-D, as many places in tensor memory, in bytes, four to a column, lane << 18.
        block: elements along K to a scale factor.
        per_step: scale factors of a row that one tcgen05.mma reads.
        title: a title of your own.

    Raises:
        ValueError: factors of a row that do not fill a word, or a copy that does not take whole words to cells.
    """
    integer("block", block, at_least=1, at_most=_MOST_BLOCK)
    integer("per_step", per_step, at_least=1, at_most=_FACTORS)
    words = _words(offsets)
    cells = _cells(words, source, target)
    parts = _shared(words) + _tensor(cells)
    x, y = _LEFT, _TOP + _LINES * _H + 54
    parts += _bytes(x, y, block, per_step)
    right = _LEFT + _WORDS * _W + _GAP
    notes = {44: "left: shared memory, 32 lines of 16 bytes; a box is the 4 factors of one row"}
    notes |= {60: "right: tensor memory, 128 lanes; each warp's 32 lanes get all rows, 32 of them a column"}
    notes |= {
        y - 12: f"a box drawn large: 4 bytes, each the factor of {block} elements along K; which tcgen05.mma reads it"
    }
    described = (
        f"Row 0 is at byte {int(offsets[0, 0])}, row 32 at {int(offsets[32, 0])}, row 1 at {int(offsets[1, 0])}."
    )
    title = title or "An atom of scale factors: 128 rows, 4 factors of each"
    return svg.picture(right + _WORDS * _CW + 24, y + _ZOOM + 46, title, described, parts, notes)


def _words(offsets: np.ndarray) -> np.ndarray:
    """(128,): the row whose factors each word of the atom holds."""
    if offsets.shape != (_ROWS, _FACTORS):
        raise ValueError(f"offsets: got shape {offsets.shape}; needed (128, 4), four in each word of 512 bytes")
    first = offsets[:, :1]
    whole = offsets.shape == (_ROWS, _FACTORS) and (offsets - first == np.arange(_FACTORS)).all()
    if not whole or sorted(first[:, 0] // _WORD) != list(range(_ROWS)) or (first % _WORD).any():
        raise ValueError("offsets: got factors of a row apart; needed (128, 4), four in each word of 512 bytes")
    rows = np.empty(_ROWS, int)
    rows[first[:, 0] // _WORD] = np.arange(_ROWS)
    return rows


def _cells(words: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(128 lanes, 4 columns): the row whose factors each cell gets."""
    if source.shape != target.shape or source.ndim != 1 or (source % _WORD != target % _WORD).any():
        raise ValueError(f"target: got {target.shape} for {source.shape}; needed a place for each byte, words in cells")
    rows = np.full((_LANES, _WORDS), -1)
    lane, column = target // _WORD >> 16, target // _WORD & 0xFFFF
    if lane.max() >= _LANES or column.max() >= _WORDS or source.max() >= _ROWS * _WORD:
        raise ValueError(f"target: got lane {lane.max()}, column {column.max()}; needed 128 lanes, 4 columns, one atom")
    rows[lane, column] = words[source // _WORD]
    if (rows < 0).any():
        raise ValueError("target: got cells that nothing is copied to; needed all of 128 lanes by 4 columns")
    return rows


def _colour(row: int) -> str:
    return svg.GROUPS[row // _LINES]


def _shared(words: np.ndarray) -> list[str]:
    parts = [svg.text(_LEFT + _WORDS * _W / 2, _TOP - 26, "shared memory", 11, "ink", bold=True)]
    parts += [svg.text(_LEFT + (w + 0.5) * _W, _TOP - 9, f"byte {4 * w}", 8, "soft") for w in range(_WORDS)]
    for line, rows in enumerate(words.reshape(_LINES, _WORDS).tolist()):
        y = _TOP + line * _H
        if line % 4 == 0:
            parts.append(svg.text(_LEFT - 6, y + _H / 2, f"line {line}", 8, "soft", "end"))
        for word, row in enumerate(rows):
            place = (_LEFT + word * _W, y, _W, _H)
            parts.append(svg.cell(*place, f"row {row}", _colour(row), size=7.5, line=line, word=word, row=row))
    return parts


def _tensor(cells: np.ndarray) -> list[str]:
    left, warp_lanes = _LEFT + _WORDS * _W + _GAP, _LANES // _WARPS
    parts = [svg.text(left + _WORDS * _CW / 2, _TOP - 26, "tensor memory", 11, "ink", bold=True)]
    parts += [svg.text(left + (c + 0.5) * _CW, _TOP - 9, f"column {c}", 8, "soft") for c in range(_WORDS)]
    for warp in range(_WARPS):
        y, high = _TOP + warp * warp_lanes * _LH, warp_lanes * _LH
        parts.append(svg.text(left - 8, y + high / 2 - 7, f"warp {warp}", 10, "ink", "end", bold=True))
        span = f"lanes {warp * warp_lanes}-{(warp + 1) * warp_lanes - 1}"
        parts.append(svg.text(left - 8, y + high / 2 + 7, span, 8, "soft", "end"))
        for column in range(_WORDS):
            rows = cells[warp * warp_lanes : (warp + 1) * warp_lanes, column]
            first, in_order = int(rows[0]), (rows == rows[0] + np.arange(warp_lanes)).all()
            label = f"rows {first}-{int(rows[-1])}" if in_order else "mixed"
            colour = _colour(first) if in_order else svg.CONFLICT
            place = (left + column * _CW, y, _CW, high)
            parts.append(svg.cell(*place, label, colour, size=8.5, warp=warp, column=column, rows=label))
    return parts


def _bytes(x: float, y: float, block: int, per_step: int) -> list[str]:
    parts, wide = [], 92.0
    for byte in range(_FACTORS):
        span = f"k {byte * block}-{(byte + 1) * block - 1}"
        parts.append(svg.cell(x + byte * wide, y, wide, _ZOOM, span, "empty", "ink", 10, byte=byte))
    for step in range(_FACTORS // per_step):
        middle = x + (step + 0.5) * per_step * wide
        parts.append(
            svg.text(middle, y + _ZOOM + 14, f"tcgen05.mma {step}" if per_step < _FACTORS else "one tcgen05.mma", 9)
        )
    return parts
