"""Tiles with a side that is no power of two: swizzles and orders of the rows, each counted by brute force.

There offsets are not linear over GF(2), so nothing is solved for: the candidates are every legal
Swizzle<B,M,S> that stays inside the tile, over the plain layout and over layouts whose rows are dealt out
like cards (all rows 0 mod p first, or the other way round). Every place where an access can lie is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cookbook.layouts import Layout
from cookbook.patterns import MAX_VECTOR, Banks, Block, Pattern, log2
from cookbook.swizzle import Swizzle

__all__ = ["Candidate", "ExhaustionProof", "candidates", "phases_of", "solve_irregular", "worst"]

SAMPLE = 4  # phases or so of each access that a candidate must pass before all are counted


@dataclass(frozen=True)
class Candidate:
    """offset = swizzle(layout(row, column)), all in elements."""

    layout: Layout
    swizzle: Swizzle

    def offsets(self) -> np.ndarray:
        """(rows, columns) element offsets."""
        return self.swizzle(self.layout.table())


@dataclass(frozen=True)
class ExhaustionProof:
    """No candidate serves all accesses: the search is small enough to be its own proof.

    What is proved is this much only: no legal swizzle, composed with any of these row orders, stays inside the
    tile and is free of conflicts. A map of another kind is not excluded.
    """

    tile: tuple[int, int]
    element_bits: int
    accesses: tuple[Block, ...]
    banks: Banks
    tried: int

    @property
    def conflicting(self) -> tuple[int, ...]:
        """All accesses of the request."""
        return tuple(range(len(self.accesses)))

    def check(self) -> bool:
        """Count every candidate again, one phase and one bank at a time."""
        phases = [p for a in self.accesses for p in phases_of(self.tile, self.element_bits, a, self.banks)]
        seen = 0
        for candidate in candidates(self.tile, self.element_bits, self.accesses, self.banks):
            seen += 1
            flat = candidate.offsets().reshape(-1)
            if all(_slow_count(flat[p].tolist(), self.element_bits // 8, self.banks) == 1 for p in phases):
                return False
        return seen == self.tried

    def __str__(self) -> str:
        return (
            f"all {self.tried} candidates conflict somewhere: every legal swizzle that stays inside {self.tile[0]}x"
            f"{self.tile[1]}, over the rows in order and dealt out in every way that divides them. "
            "The nearest thing that helps is a power-of-two row, or a padded one"
        )


def solve_irregular(
    tile: tuple[int, int], element_bits: int, accesses: Sequence[Pattern], banks: Banks
) -> tuple[Candidate, int] | ExhaustionProof:
    """The first candidate that is free everywhere and how many were tried, or the proof that none is."""
    for access in accesses:
        if not isinstance(access, Block):
            raise ValueError(
                f"accesses: got {access} on a {tile[0]}x{tile[1]} tile; needed blocks, for its offsets are not linear"
            )
        access.check(tile)
    phases = [phases_of(tile, element_bits, access, banks) for access in accesses]
    samples = [p[:: max(1, len(p) // SAMPLE)] for p in phases]
    tried = 0
    for layout, swizzles in _groups(tile, element_bits, accesses, banks):
        flat = layout.table().reshape(-1)
        for index in _screened(flat, swizzles, samples, element_bits, banks):
            moved = swizzles[index](flat)
            if all(worst(moved, p, element_bits, banks) == 1 for p in phases):
                return Candidate(layout, swizzles[index]), tried + index + 1
        tried += len(swizzles)
    return ExhaustionProof(tile, element_bits, tuple(accesses), banks, tried)


def _screened(
    flat: np.ndarray, swizzles: Sequence[Swizzle], samples: Sequence[np.ndarray], element_bits: int, banks: Banks
) -> list[int]:
    """Which swizzles pass a few phases of each access: all at once, for most fail there."""
    alive = np.arange(len(swizzles))
    yyy, right, left = (
        np.array(column)[:, None, None]
        for column in zip(*((s.yyy, max(s.shift, 0), max(-s.shift, 0)) for s in swizzles), strict=True)
    )
    for sample in samples:
        if not len(alive):
            break
        x = flat[sample]
        moved = x ^ ((x & yyy[alive]) >> right[alive] << left[alive])
        words = _words(moved.reshape(-1, sample.shape[1]) * (element_bits // 8), element_bits // 8, banks)
        keyed = np.sort(words % banks.count << 32 | words, axis=1)
        clash = (keyed[:, 1:] >> 32 == keyed[:, :-1] >> 32) & (keyed[:, 1:] != keyed[:, :-1])
        alive = alive[~clash.any(axis=1).reshape(len(alive), -1).any(axis=1)]
    return alive.tolist()


def candidates(
    tile: tuple[int, int], element_bits: int, accesses: Sequence[Block], banks: Banks
) -> Iterator[Candidate]:
    """Plain, then plain rows under every legal swizzle, then other row orders alone, then with every swizzle."""
    for layout, swizzles in _groups(tile, element_bits, accesses, banks):
        yield from (Candidate(layout, swizzle) for swizzle in swizzles)


def _groups(
    tile: tuple[int, int], element_bits: int, accesses: Sequence[Block], banks: Banks
) -> Iterator[tuple[Layout, list[Swizzle]]]:
    """The candidates, those of one layout together."""
    plain, *others = _row_orders(*tile)
    swizzles = list(_swizzles(tile, _vector(tile, element_bits, accesses, banks)))
    yield plain, swizzles
    yield from ((order, swizzles[:1]) for order in others)
    if swizzles[1:]:
        yield from ((order, swizzles[1:]) for order in others)


def _row_orders(rows: int, columns: int) -> Iterator[Layout]:
    yield Layout((rows, columns), (columns, 1))
    for part in range(2, rows):
        if rows % part == 0:  # row i + part * j lies at row (rows // part) * i + j
            yield Layout(((part, rows // part), columns), ((columns * (rows // part), columns), 1))


def _swizzles(tile: tuple[int, int], vector: int) -> Iterator[Swizzle]:
    """Legal swizzles that keep 2**vector elements together and map 0 .. size - 1 onto itself."""
    size = tile[0] * tile[1]
    bits = (size - 1).bit_length()
    everything = np.arange(size, dtype=np.int32)
    yield Swizzle(0, vector, 0)
    for count in range(1, (bits - vector) // 2 + 1):
        for shift in range(count, bits - vector - count + 1):
            for base in range(bits - count - shift, vector - 1, -1):
                for signed in (shift, -shift):
                    swizzle = Swizzle(count, base, signed)
                    if swizzle(everything).max() < size:
                        yield swizzle


def _vector(tile: tuple[int, int], element_bits: int, accesses: Sequence[Block], banks: Banks) -> int:
    """log2 of the elements kept together: what rows and all accesses are made of, or at least a word."""
    own = [_own_vector(tile, element_bits, access) for access in accesses]
    return max(min(own, default=0), log2(max(1, banks.bytes * 8 // element_bits)))


def _own_vector(tile: tuple[int, int], element_bits: int, access: Block) -> int:
    """log2 of the elements that a lane moves at once: aligned, contiguous, up to 16 bytes."""
    if access.column_step > 1:
        return 0
    return log2(math.gcd(tile[1], access.columns, max(1, MAX_VECTOR * 8 // element_bits)))


def phases_of(tile: tuple[int, int], element_bits: int, access: Block, banks: Banks) -> np.ndarray:
    """(phases, elements) row-major offsets of everything that is asked for together, at every place of the access.

    A side that divides the tile's is aligned to itself; one that does not starts anywhere.
    """
    lanes = np.arange(access.rows * access.columns)
    inside = lanes // access.columns * access.row_step * tile[1] + lanes % access.columns * access.column_step
    starts = np.add.outer(
        np.array(_starts(tile[0], access.rows, access.row_step)) * tile[1],
        _starts(tile[1], access.columns, access.column_step),
    )
    most = min(banks.line * 8 // element_bits, banks.count << _own_vector(tile, element_bits, access)) or 1
    whole = -len(inside) % most
    padded = np.concatenate([inside, np.repeat(inside[-1:], whole)])  # the last phase may be short
    return (starts.reshape(-1, 1, 1) + padded.reshape(1, -1, most)).reshape(-1, most)


def _starts(size: int, count: int, step: int) -> list[int]:
    if size % (count * step) == 0:
        return [block * count * step + i for block in range(size // (count * step)) for i in range(step)]
    return list(range(size - (count - 1) * step))


def worst(flat: np.ndarray, phases: np.ndarray, element_bits: int, banks: Banks) -> int:
    """The most wavefronts of any phase: distinct words in one bank."""
    words = _words(flat[phases] * (element_bits // 8), element_bits // 8, banks)
    words = np.sort(words, axis=1)
    new = np.ones(words.shape, bool)
    new[:, 1:] = words[:, 1:] != words[:, :-1]
    row = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    return int(np.bincount((row * banks.count + words % banks.count)[new]).max())


def _words(addresses: np.ndarray, element_bytes: int, banks: Banks) -> np.ndarray:
    """(phases, words): the bank words of elements at byte addresses; an element may take several."""
    inside = np.arange(max(1, element_bytes // banks.bytes))
    return (addresses[..., None] // banks.bytes + inside).reshape(len(addresses), -1)


def _slow_count(offsets: Sequence[int], element_bytes: int, banks: Banks) -> int:
    asked: dict[int, set[int]] = {}
    for offset in offsets:
        for byte in range(offset * element_bytes, (offset + 1) * element_bytes):
            asked.setdefault(byte // banks.bytes % banks.count, set()).add(byte // banks.bytes)
    return max(map(len, asked.values()))
