"""The toy GPU: n threads, n banks, an n x n tile. A transpose through its shared memory, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cookbook.arguments import checked, pair
from cookbook.draw import frames, svg
from cookbook.draw.crossbar import wavefronts

__all__ = ["Step", "swizzle_progress", "toy_transpose", "transpose_steps"]

Place = Callable[[int, int], tuple[int, int]]  # (row of the matrix, thread) -> (row, slot) of shared memory
_C = 28.0  # a cell
_TOP = 110.0


class Step(NamedTuple):
    """One access of all threads, and what the memories hold after it (None: nothing yet)."""

    kind: str  # "store" or "load"
    row: int  # of the input that is stored, or of the output that is loaded
    cells: tuple[tuple[int, int], ...]  # (row, slot) of shared memory by thread
    wavefronts: int
    shared: tuple[tuple[int | None, ...], ...]
    output: tuple[tuple[int | None, ...], ...]


@checked
def transpose_steps(store: Place, load: Place, n: int = 8) -> list[Step]:
    """n stores of input rows, then n loads of output rows. Element (r, c) of the input is the number r * n + c.

    Args:
        store: where thread t puts element (r, t): called as store(r, t).
        load: where thread t takes element (i, t) of the output from: called as load(i, t).
        n: threads, banks, and rows and columns of the tile: 2 to 8.
    """
    if not 2 <= n <= 8:
        raise ValueError(f"n: got {n}; needed 2 to 8")
    shared: list[list[int | None]] = [[None] * n for _ in range(n)]
    output: list[list[int | None]] = [[None] * n for _ in range(n)]
    steps = []
    for kind, place in (("store", store), ("load", load)):
        for row in range(n):
            cells = tuple(_inside(kind, place(row, thread), n) for thread in range(n))
            for thread, (r, slot) in enumerate(cells):
                if kind == "store":
                    shared[r][slot] = row * n + thread
                else:
                    output[row][thread] = shared[r][slot]
            count = max(wavefronts([r * n + slot for r, slot in cells], n)) + 1
            steps.append(Step(kind, row, cells, count, tuple(map(tuple, shared)), tuple(map(tuple, output))))
    return steps


def _inside(kind: str, cell: tuple[int, int], n: int) -> tuple[int, int]:
    row, slot = pair(kind, cell, of=f"row, slot of the {n} x {n} shared memory")
    if not (0 <= row < n and 0 <= slot < n):
        raise ValueError(f"{kind}: got {cell}; needed a cell of the {n} x {n} shared memory")
    return row, slot


def _cells(held: dict[tuple[int, int], int | None], left: float, name: str, n: int) -> list[str]:
    """Cells of one memory by (row, column); one that holds something has the colour of its column in the input."""
    parts = []
    for (r, c), value in held.items():
        fill, ink = ("empty", "soft") if value is None else (svg.GROUPS[value % n], svg.ON_COLOUR)
        place = (left + c * _C, _TOP + r * _C, _C, _C, "" if value is None else value, fill, ink, 10)
        parts.append(svg.cell(*place, memory=name, row=r, col=c))
    return parts


def _background(n: int, lefts: tuple[float, ...]) -> list[str]:
    """The three memories before the first step: the input full, the others empty."""
    parts = []
    for left, name, bank in zip(lefts, ("input", "shared memory", "output"), ("", "b", ""), strict=True):
        parts.append(svg.text(left, _TOP - 32, name, 12, "ink", "start", bold=True))
        parts += [svg.text(left + (c + 0.5) * _C, _TOP - 10, f"{bank}{c}", 10, "soft") for c in range(n)]
        held = {(r, c): r * n + c if name == "input" else None for r in range(n) for c in range(n)}
        parts += _cells(held, left, name, n)
    return parts


def _new(step: Step, lefts: tuple[float, ...]) -> str:
    """Return what a step writes."""
    n = len(step.cells)
    if step.kind == "store":
        return "".join(_cells({(r, slot): step.shared[r][slot] for r, slot in step.cells}, lefts[1], "s", n))
    return "".join(_cells({(step.row, c): step.output[step.row][c] for c in range(n)}, lefts[2], "o", n))


def _around(step: Step, lefts: tuple[float, ...]) -> list[str]:
    """Frames around what a step reads and writes; red in a bank that is asked for more than one word."""
    n, asked = len(step.cells), [slot for _, slot in step.cells]
    parts = []
    for row, slot in step.cells:
        conflict = len({r for r, s in step.cells if s == slot}) > 1
        colour, state = (svg.CONFLICT, "conflict") if conflict else ("ink", "free")
        x, y = lefts[1] + slot * _C, _TOP + row * _C
        parts.append(svg.frame(x, y, _C, _C, colour, cell=f"{row},{slot}", state=state))
    side = lefts[0] if step.kind == "store" else lefts[2]
    parts.append(svg.frame(side, _TOP + step.row * _C, n * _C, _C, "ink", asked=len(set(asked))))
    return parts


def _frame(steps: list[Step], number: int, lefts: tuple[float, ...]) -> str:
    """Return what is seen during one step alone: its frames and its line of text."""
    step = steps[number]
    spent = sum(s.wavefronts for s in steps[: number + 1])
    what = "store row" if step.kind == "store" else "load output row"
    plural = "s" if step.wavefronts > 1 else ""
    said = f"step {number + 1} of {len(steps)}: {what} {step.row}, {step.wavefronts} wavefront{plural}; {spent} so far"
    return "".join([*_around(step, lefts), svg.text(24, 50, said, 12, "ink", "start")])


@checked
def toy_transpose(
    store: Place, load: Place, n: int = 8, step: int | None = None, title: str | None = None
) -> svg.Picture:
    """The transpose as an animation, one access of all threads a frame, or one of its frames.

    Shared memory has a column a bank (b0, b1, ...). A cell keeps the colour of its column in the input, so a right
    output has rows of one colour each.

    Args:
        store: as for `transpose_steps`; so are `load` and `n`.
        load: where thread t takes element (i, t) of the output from.
        n: threads, banks, rows and columns.
        step: the frame to draw, from 0 (negative: from the end); None for all of them, moving. The last one is what
            a reader sees who asked for reduced motion.
        title: a title of your own.
    """
    steps = transpose_steps(store, load, n)
    if step is not None and not -len(steps) <= step < len(steps):
        raise ValueError(f"step: got {step}; needed {-len(steps)} <= step < {len(steps)}, or None for all")
    total = sum(s.wavefronts for s in steps)
    right = all(v == c * n + r for r, row in enumerate(steps[-1].output) for c, v in enumerate(row))
    said = f"{total} wavefronts; the output is {'the transpose' if right else 'wrong'}"
    lefts = tuple(24 + i * (n * _C + 44) for i in range(3))
    news, seen = [_new(s, lefts) for s in steps], [_frame(steps, number, lefts) for number in range(len(steps))]
    parts = _background(n, lefts)
    if step is None:
        parts += [*frames.build_up(news), *frames.animate(seen)]
    else:
        parts += [*news[: step % len(steps) + 1], seen[step]]
    bottom = _TOP + n * _C
    parts.append(svg.text(24, bottom + 20, f"in all: {said}", 12, "ink", "start", bold=True))
    title = title or f"{n} x {n} transpose on the toy GPU: {n} threads, {n} banks"
    costs = " ".join(str(s.wavefronts) for s in steps)
    described = f"Turns of the {n} stores and {n} loads: {costs}. In all {said}."
    return svg.picture(24 + 3 * (n * _C + 44) - 20, bottom + 40, title, described, parts, {})


@checked
def swizzle_progress(place: Place, n: int = 8, column: int = 0, title: str | None = None) -> svg.Picture:
    """Return what a read of one column costs as row after row of the tile is swizzled: one small picture a row.

    Args:
        place: where element (r, c) lies once row r is swizzled; before, it lies at (r, c).
        n: rows, columns and banks: 2 to 8.
        column: the one that is read.
    """
    if not 2 <= n <= 8 or not 0 <= column < n:
        raise ValueError(f"n, column: got {n}, {column}; needed 2 to 8, and a column less than n")
    size, across = 20.0, min(n, 4)
    pitch_x, pitch_y = n * size + 28, n * size + 44
    parts, costs = [], []
    for done in range(n):
        left, top = 20 + done % across * pitch_x, 88 + done // across * pitch_y
        drawn, count = _panel(lambda r, c, done=done: place(r, c) if r <= done else (r, c), n, column, left, top, size)
        said = f"row{f's 0-{done}' if done else ' 0'}: {count} wavefront{'s' if count > 1 else ''}"
        heading = svg.text(left, top - 12, said, 12, "ink", "start", bold=True)
        parts.append(svg.group([heading, *drawn], panel=done, wavefronts=count))
        costs.append(count)
    rows = -(-n // across)
    title = title or f"Reading column {column} while the rows are swizzled one by one"
    described = "Wavefronts of the column read after each row: " + " ".join(map(str, costs)) + "."
    notes = {44: "column of the memory: bank; cell: column of the tile; framed: what the read asks for"}
    return svg.picture(20 + across * pitch_x - 8, 88 + rows * pitch_y - 26, title, described, parts, notes)


def _panel(place: Place, n: int, column: int, left: float, top: float, size: float) -> tuple[list[str], int]:
    """(elements, wavefronts): the n x n memory with element (r, c) at place(r, c), the cells of one column framed."""
    parts, asked = [], [place(r, column) for r in range(n)]
    for r in range(n):
        for c in range(n):
            row, slot = place(r, c)
            at = (left + slot * size, top + row * size, size, size, c, svg.GROUPS[c], svg.ON_COLOUR, 10)
            parts.append(svg.cell(*at, row=row, slot=slot, col=c))
    for row, slot in asked:
        colour = svg.CONFLICT if sum(s == slot for _, s in asked) > 1 else "ink"
        parts.append(svg.frame(left + slot * size, top + row * size, size, size, colour))
    return parts, max(wavefronts([row * n + slot for row, slot in asked], n)) + 1
