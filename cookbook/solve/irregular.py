"""Tiles with a side that is no power of two: swizzles and orders of the rows, each counted by brute force.

There offsets are not linear over GF(2), so nothing is solved for: the candidates are every legal
Swizzle<B,M,S> that stays inside the tile, over the row-major layout and over layouts whose rows are spread out
like cards (all rows 0 mod p first, or the other way round). Every place where an access can lie is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cookbook.arguments import checked, integer
from cookbook.layouts import Layout
from cookbook.solve.instructions import Instruction, Pattern
from cookbook.solve.patterns import MAX_VECTOR, Banks, Block, Span, checked_vector, log2, starts
from cookbook.swizzle import Swizzle

__all__ = ["Candidate", "ExhaustionProof"]

MAX_PLACES = 1 << 22  # elements that all places of the accesses ask for: seconds
COUNTED = 1 << 14  # phases that are counted at once
SAMPLE = 8  # phases or so of each access that are counted first


@checked
@dataclass(frozen=True)
class Candidate:
    """offset = swizzle(layout(row, column)), all in elements."""

    layout: Layout
    swizzle: Swizzle

    def offsets(self) -> np.ndarray:
        """(rows, columns) element offsets."""
        return self.swizzle(self.layout.table())


@checked
@dataclass(frozen=True)
class ExhaustionProof:
    """No candidate serves all accesses: each has a phase in which it puts two words into one bank.

    What is proved is this much only: no legal swizzle that keeps `vector_elements` neighbours together, composed with
    any of these row orders, stays inside the tile and is free of conflicts. A map of another kind is not excluded.
    """

    tile: tuple[int, int]
    element_bits: int
    accesses: tuple[Block | Instruction, ...]
    banks: Banks
    vector_elements: int
    witnesses: tuple[tuple[int, int], ...] = field(repr=False)  # of each candidate: (access, phase) that conflicts

    @property
    def tried(self) -> int:
        """Number of candidates."""
        return len(self.witnesses)

    @property
    def steps(self) -> int:
        """Count the steps of `check`: one for each candidate."""
        return self.tried

    @property
    def conflicting(self) -> tuple[int, ...]:
        """All accesses of the request."""
        return tuple(range(len(self.accesses)))

    @checked
    def check(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Go through every candidate and count the one phase that it is said to fail in, element by element.

        Args:
            progress: called with (steps done, steps in all) as the check goes on.
        """
        phases = [phases_of(self.tile, self.element_bits, a, self.banks)[0] for a in self.accesses]
        seen = 0
        for candidate in candidates(self.tile, self.vector_elements):
            if seen == self.tried:
                return False
            access, phase = self.witnesses[seen]
            asked = phases[access][phase]
            addresses = candidate.swizzle(candidate.layout.table().reshape(-1)[asked])
            if _slow_count(addresses.tolist(), self.element_bits // 8, self.banks) < 2:
                return False
            seen += 1
            if progress is not None and not seen % 256:
                progress(seen, self.tried)
        return seen == self.tried

    def __str__(self) -> str:
        return (
            f"all {self.tried} candidates conflict somewhere: every legal swizzle that stays inside {self.tile[0]}x"
            f"{self.tile[1]} and keeps {self.vector_elements} neighbours together, over the rows in order and spread "
            "out in every way that divides them. A map of another kind is not excluded."
        )


def solve_irregular(
    tile: tuple[int, int],
    element_bits: int,
    accesses: Sequence[Pattern],
    banks: Banks,
    vector_elements: int | None = None,
) -> tuple[Candidate, int] | ExhaustionProof:
    """The first candidate that is free everywhere and how many were tried, or the proof that none is.

    Raises:
        ValueError: an access that does not fit, a Span, or accesses that can lie at too many places to count them.
    """
    placed = _placed(tile, accesses)
    kept = _kept(tile, element_bits, placed, vector_elements)
    phases = [phases_of(tile, element_bits, access, banks)[0] for access in placed]
    if sum(p.size for p in phases) > MAX_PLACES:
        names = ", ".join(map(str, accesses))
        raise ValueError(
            f"accesses: got {names}, which ask for {sum(p.size for p in phases)} elements at all places of a "
            f"{tile[0]}x{tile[1]} tile; needed {MAX_PLACES} at most. Take fewer accesses or fewer rows"
        )
    witnesses: list[tuple[int, int]] = []
    tables: dict[Layout, np.ndarray] = {}
    for candidate in candidates(tile, kept):
        if candidate.layout not in tables:
            tables[candidate.layout] = candidate.layout.table().reshape(-1)
        found = _conflict(tables[candidate.layout], candidate.swizzle, phases, element_bits, banks)
        if found is None:
            return candidate, len(witnesses) + 1
        witnesses.append(found)
    return ExhaustionProof(tile, element_bits, placed, banks, kept, tuple(witnesses))


def pitches(proof: ExhaustionProof) -> range:
    """Distances of rows, in elements, that stand for all: the banks repeat after a line of all banks."""
    line = max(1, proof.banks.line * 8 // proof.element_bits)
    first = -(-proof.tile[1] // proof.vector_elements) * proof.vector_elements + proof.vector_elements
    return range(first, first + max(line, proof.vector_elements), proof.vector_elements)


def padded(proof: ExhaustionProof) -> int | None:
    """The least of `pitches` under which rows, with no swizzle, serve what the proof says no swizzle does."""
    rows, columns = np.indices(proof.tile)
    phases = [phases_of(proof.tile, proof.element_bits, access, proof.banks)[0] for access in proof.accesses]
    none = Swizzle(0, 0, 0)
    for pitch in pitches(proof):
        flat = (rows * pitch + columns).reshape(-1)
        if _conflict(flat, none, phases, proof.element_bits, proof.banks) is None:
            return pitch
    return None


def _conflict(
    flat: np.ndarray, swizzle: Swizzle, phases: Sequence[np.ndarray], element_bits: int, banks: Banks
) -> tuple[int, int] | None:
    """The (access, phase) of a conflict under a swizzle of the offset of each element; None if it has none."""

    def among(access: int, numbers: np.ndarray) -> tuple[int, int] | None:
        clash = _clashes(swizzle(flat[phases[access][numbers]]), element_bits, banks)
        return (access, int(numbers[clash.argmax()])) if clash.any() else None

    for access, whole in enumerate(phases):  # some from everywhere: most candidates fail in one of them
        if found := among(access, np.arange(0, len(whole), max(1, len(whole) // SAMPLE))):
            return found
    for access, whole in enumerate(phases):
        for numbers in np.split(np.arange(len(whole)), range(COUNTED, len(whole), COUNTED)):
            if found := among(access, numbers):
                return found
    return None


def _clashes(offsets: np.ndarray, element_bits: int, banks: Banks) -> np.ndarray:
    """(phases,) bool: which phases, of (phases, elements) offsets, ask one bank for two words."""
    words = _words(offsets * (element_bits // 8), element_bits // 8, banks)
    keyed = np.sort(words % banks.count << 32 | words, axis=1)
    return ((keyed[:, 1:] >> 32 == keyed[:, :-1] >> 32) & (keyed[:, 1:] != keyed[:, :-1])).any(axis=1)


def candidates(tile: tuple[int, int], vector_elements: int) -> Iterator[Candidate]:
    """Rows in order, then these under every legal swizzle, then other row orders alone, then with every swizzle.

    Args:
        vector_elements: how many neighbours a swizzle must keep together, a power of two.
    """
    integer("vector_elements", vector_elements, at_least=1, power_of_two=True)
    plain, *others = _row_orders(*tile)
    none, *swizzles = _swizzles(tile, log2(vector_elements))
    yield from (Candidate(plain, swizzle) for swizzle in (none, *swizzles))
    yield from (Candidate(order, none) for order in others)
    yield from (Candidate(order, swizzle) for order in others for swizzle in swizzles)


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


def _placed(tile: tuple[int, int], accesses: Sequence[Pattern]) -> tuple[Block | Instruction, ...]:
    """The accesses, if none of them is a Span.

    Raises:
        ValueError: what a Span says of a tile that is no power of two.
    """
    placed = []
    for access in accesses:
        if isinstance(access, Span):
            access.basis(tile)
        else:
            placed.append(access)
    return tuple(placed)


def _kept(
    tile: tuple[int, int],
    element_bits: int,
    accesses: Sequence[Block | Instruction],
    vector_elements: int | None,
) -> int:
    """The elements that a swizzle must keep together: each instruction's vector, or what all blocks take whole."""
    lanes = [a.vector(element_bits) for a in accesses if isinstance(a, Instruction)]
    blocks = [a.vector(tile, element_bits) for a in accesses if isinstance(a, Block)]
    shared = max(lanes) if lanes else min(blocks)
    most = max(1, MAX_VECTOR * 8 // element_bits)
    return max(shared, checked_vector(vector_elements, tile, most))


def phases_of(
    tile: tuple[int, int], element_bits: int, access: Block | Instruction, banks: Banks
) -> tuple[np.ndarray, int]:
    """Everything that is asked for together, at every place of the access, and how many phases it has.

    It starts at multiples of a lane's vector. A side that divides the tile's is aligned to itself; one that does not
    starts anywhere else too.

    Returns:
        (places * phases, elements) int64 row-major offsets, and the number of phases.

    Raises:
        ValueError: an access that does not fit, or can lie at too many places to count them all.
    """
    if isinstance(access, Instruction):
        own = access.vector(element_bits)
        inside = access.offsets(tile, element_bits).reshape(-1)
        rows, columns = access.starts(tile, element_bits)
        most = access.lanes_per_phase * own
    else:
        access.check(tile)
        own = access.vector(tile, element_bits)
        lanes = np.arange(access.rows * access.columns)
        inside = lanes // access.columns * access.row_step * tile[1] + lanes % access.columns * access.column_step
        rows = starts(tile[0], access.rows, access.row_step)
        columns = [column for column in starts(tile[1], access.columns, access.column_step) if column % own == 0]
        most = min(banks.line * 8 // element_bits, banks.count * own)
    places, most = len(rows) * len(columns), min(most, len(inside))
    whole = -len(inside) % most
    if places * (len(inside) + whole) > MAX_PLACES:
        raise ValueError(
            f"accesses: got {access}, which can lie at {places} places of a {tile[0]}x{tile[1]} tile; needed "
            f"{MAX_PLACES // len(inside)} at most. Take fewer rows: the pattern of banks repeats"
        )
    corners = np.add.outer(np.array(rows) * tile[1], columns)
    padded = np.concatenate([inside, np.repeat(inside[-1:], whole)])  # the last phase may be short
    return (corners.reshape(-1, 1, 1) + padded.reshape(1, -1, most)).reshape(-1, most), len(padded) // most


def worst(flat: np.ndarray, phases: np.ndarray, element_bits: int, banks: Banks, count: int = 1) -> int:
    """The most wavefronts that any `count` phases take one after the other, distinct words in one bank in each."""
    together = max(1, COUNTED // count) * count
    return max(
        int(_counts(flat[phases[i : i + together]], element_bits, banks).reshape(-1, count).sum(axis=1).max())
        for i in range(0, len(phases), together)
    )


def _counts(offsets: np.ndarray, element_bits: int, banks: Banks) -> np.ndarray:
    """(phases,) the most distinct words that one bank gives, of (phases, elements) offsets."""
    words = np.sort(_words(offsets * (element_bits // 8), element_bits // 8, banks), axis=1)
    new = np.ones(words.shape, bool)
    new[:, 1:] = words[:, 1:] != words[:, :-1]
    row = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    found = np.bincount((row * banks.count + words % banks.count)[new], minlength=len(words) * banks.count)
    return found.reshape(len(words), -1).max(axis=1)


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
