"""A box that TMA copies: where it lies in the matrix, and what each line of shared memory holds afterwards."""

from __future__ import annotations

from cookbook.arguments import checked, integer
from cookbook.draw import svg
from cookbook.draw.panels import beside
from cookbook.swizzle import Swizzle

__all__ = ["tma_box"]

_CHUNK, _W, _H, _MOST = 16, 30.0, 22.0, 32  # bytes; a cell; rows and chunks that can be read


@checked
def tma_box(
    shape: tuple[int, int] = (12, 96),
    origin: tuple[int, int] = (8, 64),
    box: tuple[int, int] = (8, 64),
    element_bits: int = 16,
    bits: int = 3,
    title: str | None = None,
) -> svg.Picture:
    """A load by TMA. Left the matrix in 16-byte chunks with the box framed, right the lines of shared memory.

    What of the box lies outside of the matrix is filled with zeros, and takes its place all the same.

    Args:
        shape: (rows, columns) of the row-major matrix, in elements; a row is a multiple of 16 bytes.
        origin: (row, column) of the box's corner, in elements; the column a multiple of 16 bytes.
        box: (rows, columns) in elements; a row of it is as wide as the mode, 16 to 128 bytes without a swizzle.
        element_bits: 8, 16 or 32.
        bits: of the swizzle S<bits,4,3>: 0, 1, 2, 3 for the modes none, 32, 64 and 128 bytes.
        title: a title of your own.
    """
    integer("element_bits", element_bits, one_of=(8, 16, 32))
    integer("bits", bits, at_least=0, at_most=3)
    per = _CHUNK * 8 // element_bits
    for name, (first, second) in (("shape", shape), ("origin", origin), ("box", box)):
        integer(name, first, at_least=0 if name == "origin" else 1, at_most=_MOST)
        integer(name, second, at_least=0 if name == "origin" else per, at_most=_MOST * per)
        if second % per:
            raise ValueError(f"{name}: got {second} columns; needed a multiple of {per}, 16 bytes")
    wide = box[1] // per
    if wide not in ((1 << bits,) if bits else (1, 2, 4, 8)):
        needed = f"{16 << bits}, the mode's width" if bits else "16, 32, 64 or 128"
        raise ValueError(f"box: got rows of {16 * wide} bytes; needed {needed}")
    chunks = {(r, c): wide * r + c for r in range(box[0]) for c in range(wide)}
    at = origin[0], origin[1] // per
    inside = {(r, c): at[0] + r < shape[0] and at[1] + c < shape[1] // per for r, c in chunks}
    left = _matrix((shape[0], shape[1] // per), at, (box[0], wide), chunks)
    right = _lines({16 * number: place for place, number in chunks.items()}, chunks, inside, bits)
    title = title or f"TMA loads a box of {box[0]} x {box[1]} at ({origin[0]}, {origin[1]})"
    return beside([left, right], title)


def _matrix(
    shape: tuple[int, int], at: tuple[int, int], box: tuple[int, int], chunks: dict[tuple[int, int], int]
) -> svg.Picture:
    """The matrix and the box, which may reach beyond it."""
    rows, cols = max(shape[0], at[0] + box[0]), max(shape[1], at[1] + box[1])
    parts = []
    for r in range(rows):
        parts.append(svg.text(36, 76 + (r + 0.5) * _H, r, 10, "soft", "end"))
        for c in range(cols):
            number = chunks.get((r - at[0], c - at[1]))
            if r >= shape[0] or c >= shape[1]:
                if number is None:
                    continue
                label, fill = "0", svg.GROUPS[6]
            else:
                label, fill = ("", "empty") if number is None else (number, svg.GROUPS[number % box[1]])
            place = (44 + c * _W, 76 + r * _H, _W, _H, label, fill)
            parts.append(
                svg.cell(*place, size=10, where="matrix", row=r, col=c, chunk="" if number is None else number)
            )
    parts.append(svg.frame(44 + at[1] * _W, 76 + at[0] * _H, box[1] * _W, box[0] * _H, "ink", box=f"{at[0]},{at[1]}"))
    parts.append(svg.frame(43, 75, shape[1] * _W + 2, shape[0] * _H + 2, "soft", matrix=f"{shape[0]},{shape[1]}"))
    notes = {44: "frames: the matrix, and the box", 60: "number: a chunk of the box; 0: outside, filled with zeros"}
    said = f"A box at row {at[0]}, chunk {at[1]} of a matrix of {shape[0]} rows."
    return svg.picture(60 + cols * _W, 92 + rows * _H, "Global memory, in 16-byte chunks", said, parts, notes)


def _lines(
    chunk_at: dict[int, tuple[int, int]],
    chunks: dict[tuple[int, int], int],
    inside: dict[tuple[int, int], bool],
    bits: int,
) -> svg.Picture:
    """Lines of 128 bytes: the slots of a line, each with its chunk."""
    swizzle, wide = Swizzle(bits, 4, 3), 1 + max(c for _, c in chunks)
    parts, lines = [], 0
    for plain, place in chunk_at.items():
        row, slot = divmod(swizzle(plain), 128)
        label, fill = (chunks[place], svg.GROUPS[chunks[place] % wide]) if inside[place] else ("0", svg.GROUPS[6])
        at = (44 + slot // 16 * _W, 76 + row * _H, _W, _H, label, fill)
        parts.append(svg.cell(*at, size=10, where="memory", line=row, slot=slot // 16, chunk=chunks[place]))
        lines = max(lines, row + 1)
    parts += [svg.text(36, 76 + (r + 0.5) * _H, r, 10, "soft", "end") for r in range(lines)]
    mode = f"the {16 << bits}-byte mode" if bits else "no swizzle"
    notes = {44: f"{mode}: {swizzle!r} on bytes", 60: "row: a line of 128 bytes"}
    said = f"Shared memory under {mode}."
    return svg.picture(60 + 8 * _W, 92 + lines * _H, "Shared memory", said, parts, notes)
