"""The address map that serves given accesses without a bank conflict, for tiles whose sides are powers of two.

What is contiguous for all accesses stays contiguous ("vectors"), and one works in the offsets of vectors,
n bits, of which the banks see `bank_bits`. First a kernel for the bank map is looked for (`cookbook.solve.avoiding`):
that decides. Then the few hundred Swizzle<B,M,S> are tried on the row-major layout, and then on layouts whose
offset bits are permuted; only the rank of the bank bits on each access counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cookbook import gf2
from cookbook.solve import patterns
from cookbook.solve.avoiding import BankMap, Frame, Tree, Undecided, avoid, avoidable
from cookbook.solve.instructions import Instruction, Pattern, phase_of
from cookbook.solve.patterns import Banks, log2
from cookbook.solve.proofs import CountingProof, TreeProof, Unsolvable, Vectors
from cookbook.swizzle import Swizzle

__all__: list[str] = []  # `cookbook.solve.design.solve` is the door

PERMUTED_NODES = 2_000  # of the search for a permuted layout; beyond it (many random spans) the general map stands

WORK = 1 << 25  # steps of the search times cosets that a step looks at: seconds

SMALLEST_NODES = 2_000  # of the searches for a smallest set of accesses that do not agree


@dataclass(frozen=True)
class Problem:
    """A request in linear algebra: offsets of `bits` bits, vectors of 2**`vector` elements."""

    bits: int
    vector: int
    bank_bits: int  # of the offsets of vectors, how many choose the banks
    kept: Vectors
    together: tuple[tuple[int, ...], ...]  # of each access, a basis of the element offsets of one phase
    spans: tuple[tuple[int, ...], ...]  # of each access, over offsets of vectors

    @property
    def vector_bits(self) -> int:
        """Bits of the offset of a vector."""
        return self.bits - self.vector

    @property
    def cosets(self) -> int:
        """Count the cosets of the largest span in the sum of all."""
        total = gf2.rank_of_ints(v for span in self.spans for v in span)
        return 1 << total - max(map(len, self.spans))


@dataclass(frozen=True)
class LinearMap:
    """A solution: `swizzle` (of elements, or None) after `order`, then `terms`.

    Bit order[i] of the row-major offset becomes bit i of the address, in elements. Each (mask, shift) of
    `terms` XORs into the bits of `mask` those that lie `shift` higher; no term reads what another wrote.
    """

    order: tuple[int, ...]
    swizzle: Swizzle | None
    terms: tuple[tuple[int, int], ...]
    nodes: int

    def __call__(self, offsets: np.ndarray) -> np.ndarray:
        """The address, in elements, of each row-major offset."""
        address = np.zeros_like(offsets)
        for place, bit in enumerate(self.order):
            address |= (offsets >> bit & 1) << place
        if self.swizzle is not None:
            return self.swizzle(address)
        moved = address.copy()
        for mask, shift in self.terms:
            moved ^= address >> shift & mask
        return moved


def linear_problem(
    tile: tuple[int, int],
    element_bits: int,
    accesses: Sequence[Pattern],
    vector_elements: int | None,
    banks: Banks,
) -> Problem:
    """The request in linear algebra.

    Raises:
        ValueError: a block that does not fit, or vectors that are no power of two, or longer than the tile.
        Unsolvable: one access asks for more vectors at once than the banks hold.
    """
    bits = log2(tile[0] * tile[1])
    vector = min(bits, _vector(accesses, tile, element_bits, vector_elements, banks))
    within_word = min(vector, max(0, log2(banks.bytes * 8) - log2(element_bits)))
    bank_bits = log2(banks.line * 8) - log2(element_bits) - vector if vector > within_word else log2(banks.count)
    if vector == within_word:  # an element wider than a word takes several banks
        bank_bits -= max(0, log2(element_bits) - log2(banks.bytes * 8))
    line = max(1, banks.line * 8 // element_bits)
    kept = Vectors(1 << vector, 1 << within_word, line)
    phases, spans = [], []
    for index, access in enumerate(accesses):
        basis, count = phase_of(access, tile, element_bits, banks)
        together = basis[: len(basis) - log2(count)]
        span = _vectors_of(together, within_word, vector)
        if len(span) > bank_bits:
            whole = f" that keeps {kept.elements} neighbours together" if vector else ""
            proof = CountingProof(index, tuple(gf2.span(together).tolist()), kept)
            raise Unsolvable(f"accesses: {access} alone conflicts under every address map{whole}", proof)
        phases.append(tuple(together))
        spans.append(tuple(span))
    return Problem(bits, vector, bank_bits, kept, tuple(phases), tuple(spans))


def _vector(
    accesses: Sequence[Pattern], tile: tuple[int, int], element_bits: int, vector_elements: int | None, banks: Banks
) -> int:
    """log2 of the elements to keep together: a word at least, each instruction's vector, what all blocks take whole."""
    most = max(0, log2(min(patterns.MAX_VECTOR, banks.line)) + 3 - log2(element_bits))
    word = max(0, log2(banks.bytes) + 3 - log2(element_bits))
    lanes = [log2(a.vector(element_bits)) for a in accesses if isinstance(a, Instruction)]
    blocks = [patterns.contiguous(a.basis(tile)) for a in accesses if not isinstance(a, Instruction)]
    shared = max(lanes) if lanes else min(most, *blocks)
    return max(word, shared, log2(patterns.checked_vector(vector_elements, tile, 1 << most)))


def _vectors_of(basis: Sequence[int], within_word: int, vector: int) -> list[int]:
    """A basis of the vectors whose first words a span asks for together, as offsets of vectors.

    Elements of one word are served as one. Words at different places in their vectors never share a bank
    unless the maps of the vectors do, and then some pair at the same place does.
    """
    words = gf2.echelon(v >> within_word for v in basis)
    place = (1 << vector - within_word) - 1
    first = gf2.kernel([w & place for w in words])
    sums = [_sum(w for i, w in enumerate(words) if parts >> i & 1) for parts in first]
    return gf2.echelon(s >> vector - within_word for s in sums)


def solve_linear(problem: Problem, accesses: Sequence[Pattern]) -> LinearMap:
    """A map that is free for all spans.

    Raises:
        Unsolvable: with an exhausted search as its proof, over a smallest set of accesses where that is found quickly.
        Undecided: (a ValueError) the search takes too many steps.
    """
    bank_bits = min(problem.bank_bits, problem.vector_bits)
    found = _search(problem)
    if not isinstance(found, BankMap):
        raise _unsolvable(problem, accesses, *found)
    if (plain := _plain(problem, bank_bits)) is not None:
        return LinearMap(tuple(range(problem.bits)), plain, (), found.nodes)
    labels, nodes = permuted_labels(problem.spans, problem.vector_bits, bank_bits)
    if labels is not None:
        return _permuted(problem, labels, bank_bits, found.nodes + nodes)
    return _general(problem, found, bank_bits, found.nodes + nodes)


def _search(problem: Problem) -> BankMap | tuple[Frame, Tree]:
    """A kernel for the bank map, or why there is none.

    Raises:
        Undecided: the search takes more steps than it is given: seconds.
    """
    steps = WORK // max(problem.cosets << max(0, problem.bank_bits - 5), 1 << 9)
    try:
        return avoid(problem.spans, problem.vector_bits, problem.bank_bits, steps)
    except Undecided:
        raise Undecided(
            f"accesses: got {len(problem.spans)} on a tile of {1 << problem.bits} elements, too much for a search of "
            f"{steps} steps; needed fewer accesses, rows or banks"
        ) from None


def _unsolvable(problem: Problem, accesses: Sequence[Pattern], frame: Frame, tree: Tree) -> Unsolvable:
    """Leave out what can be left out; what remains is a smallest set, in that each of its accesses is needed.

    Where that takes long (dozens of arbitrary spans that are just too many) the rest stays in, and the proof says so.
    """
    n, rank = problem.vector_bits, problem.bank_bits
    kept, left, smallest = list(range(len(problem.spans))), SMALLEST_NODES, True
    for index in list(kept):
        trial = [i for i in kept if i != index]
        try:
            possible, nodes = avoidable([problem.spans[i] for i in trial], n, rank, left)
        except Undecided:
            smallest = False
            break
        left -= nodes
        if not possible:
            kept = trial
    spans = tuple(problem.spans[i] for i in kept)
    if len(kept) < len(problem.spans):
        refuted = avoid(spans, n, rank)
        assert isinstance(refuted, tuple)  # what `kept` refutes was refuted above
        frame, tree = refuted
    asked = tuple(tuple(gf2.span(problem.together[i]).tolist()) for i in kept)
    proof = TreeProof(tuple(kept), asked, problem.kept, spans, rank, frame, tree, smallest)
    names = ", ".join(str(accesses[i]) for i in kept)
    return Unsolvable(f"accesses: no linear address map serves {names} together", proof)


# --- Swizzle<B,M,S> of the row-major layout -------------------------------------------------------------------------


def _plain(problem: Problem, bank_bits: int) -> Swizzle | None:
    """The first legal swizzle that is free: fewest bits, then the smallest shift, then the highest base.

    A negative shift never helps: it reads bank bits and writes above, or adds one bank bit to another, which
    leaves the rank as it is.
    """
    n = problem.vector_bits
    for bits in range(min(bank_bits, n // 2) + 1):
        for shift in range(bits, n - bits + 1) if bits else (0,):
            for base in range(min(bank_bits - bits, n - bits - shift), -1, -1) if bits else (0,):
                if _is_free(problem.spans, Swizzle(bits, base, shift), bank_bits):
                    return Swizzle(bits, base + problem.vector, shift)
    return None


def _is_free(spans: Sequence[Sequence[int]], swizzle: Swizzle, bank_bits: int) -> bool:
    mask, yyy, shift = (1 << bank_bits) - 1, swizzle.yyy, swizzle.shift
    return all(_independent([(v ^ (v & yyy) >> shift) & mask for v in span]) for span in spans)


def _independent(vectors: Sequence[int]) -> bool:
    basis: list[int] = []
    for vector in vectors:
        for element in basis:
            if vector ^ element < vector:
                vector ^= element
        if not vector:
            return False
        basis.append(vector)
    return True


# --- Swizzle<B,M,S> of a permuted layout ------------------------------------------------------------------------


def permuted_labels(spans: Sequence[Sequence[int]], n: int, bank_bits: int) -> tuple[list[int] | None, int]:
    """Return which bank bit each offset bit feeds (-1: none), at most two to a bank bit; None if it cannot be done.

    A swizzle of a layout with permuted bits makes each bank bit of one offset bit, or the sum of two, and no
    offset bit goes into two. Also returns the steps taken. Exact for blocks; among many arbitrary spans the search
    stops after `PERMUTED_NODES` steps.
    """
    if all(v & v - 1 == 0 for span in spans for v in span):
        return _paired(spans, n, bank_bits)
    return _labelled(spans, n, bank_bits)


def _paired(spans: Sequence[Sequence[int]], n: int, bank_bits: int) -> tuple[list[int] | None, int]:
    """The labels for spans of unit vectors: two bits may share a bank bit iff no access has both of them.

    So one needs a matching among such pairs, large enough that what remains fits the bank bits.
    """
    masks = [sum(span) for span in spans]
    used = 0
    for mask in masks:
        used |= mask
    friends = [used & ~_together_with(masks, i) & -(2 << i) for i in range(n)]  # of each bit, those above it

    @cache
    def most(rest: int) -> int:
        """Pairs that can be made of these bits."""
        if not rest:
            return 0
        low = (rest & -rest).bit_length() - 1
        rest ^= 1 << low
        return max([most(rest), *(1 + most(rest ^ 1 << j) for j in _bits(rest & friends[low]))])

    needed, rest, labels, label = used.bit_count() - bank_bits, used, [-1] * n, 0
    if most(used) < needed:
        return None, most.cache_info().currsize
    while rest:
        low = (rest & -rest).bit_length() - 1
        rest ^= 1 << low
        labels[low] = label
        if most(rest) < needed:  # it must have a partner: the lowest that leaves enough pairs
            partner = next(j for j in _bits(rest & friends[low]) if 1 + most(rest ^ 1 << j) >= needed)
            rest, needed, labels[partner] = rest ^ 1 << partner, needed - 1, label
        label += 1
    return labels, most.cache_info().currsize


def _together_with(masks: Sequence[int], bit: int) -> int:
    """The union of the masks that have this bit."""
    found = 0
    for mask in masks:
        if mask >> bit & 1:
            found |= mask
    return found


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _labelled(spans: Sequence[Sequence[int]], n: int, bank_bits: int) -> tuple[list[int] | None, int]:
    """The labels for any spans, from the lowest bit up.

    A choice is dropped as soon as an access has two vectors, or one and zero, in the same banks.
    """
    ending: list[list[tuple[int, list[int]]]] = [[] for _ in range(n)]  # at each bit: (span, bits of a vector it ends)
    for index, span in enumerate(spans):
        for vector in gf2.echelon(span):
            ending[vector.bit_length() - 1].append((index, _bits(vector)))
    labels, steps = [-1] * n, [0]

    def fits(bit: int, images: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...] | None:
        known = list(images)
        for index, vector in ending[bit]:
            image = 0
            for j in vector:
                if labels[j] >= 0:
                    image ^= 1 << labels[j]
            for element in known[index]:
                if image ^ element < image:
                    image ^= element
            if not image:
                return None
            known[index] = (*known[index], image)
        return tuple(known)

    def label(bit: int, images: tuple[tuple[int, ...], ...]) -> bool:
        if bit == n:
            return True
        used = max(labels[:bit], default=-1) + 1
        fresh = [used] if used < bank_bits else []
        for choice in [*fresh, *(k for k in range(used) if labels[:bit].count(k) < 2), -1]:
            steps[0] += 1
            if steps[0] > PERMUTED_NODES:
                return False
            labels[bit] = choice
            known = fits(bit, images)
            if known is not None and label(bit + 1, known):
                return True
        labels[bit] = -1
        return False

    return (labels, steps[0]) if label(0, tuple(() for _ in spans)) else (None, steps[0])


def _permuted(problem: Problem, labels: list[int], bank_bits: int, nodes: int) -> LinearMap:
    """The order of bits and the swizzle that give each bank bit the offset bits labelled with it."""
    classes = _classes(labels, bank_bits)
    pairs = [c for c in classes if len(c) == 2]
    first = pairs[0][0] if pairs else 0
    below = [c[0] for c in classes if len(c) == 1 and c[0] < first]
    above = [c[0] for c in classes if len(c) == 1 and c[0] > first]
    sources = [c[1] for c in pairs]
    banked = [*below, *(c[0] for c in pairs), *above]
    lines = [i for i in range(problem.vector_bits) if i not in banked and i not in sources]
    before = [i for i in lines if not sources or i < min(sources)]
    order = [*banked, *before, *sources, *(i for i in lines if i not in before)]
    v = problem.vector
    swizzle = Swizzle(len(pairs), v + len(below), len(banked) + len(before) - len(below) if pairs else 0)
    return LinearMap((*range(v), *(v + i for i in order)), swizzle, (), nodes)


def _classes(labels: list[int], bank_bits: int) -> list[list[int]]:
    """The offset bits of each of the bank bits, all of which are used; sorted by their lowest bit."""
    classes = [[i for i, label in enumerate(labels) if label == k] for k in range(max(labels) + 1)]
    spare = [i for i, label in enumerate(labels) if label < 0]
    while len(classes) < bank_bits:  # to tell more offset bits apart never hurts
        if not spare:
            spare.append(max(c[1] for c in classes if len(c) == 2))
            classes = [[i for i in c if i != spare[0]] for c in classes]
        classes.append([spare.pop(0)])
    return sorted(classes)


# --- any linear map ---------------------------------------------------------------------------------------------


def _general(problem: Problem, found: BankMap, bank_bits: int, nodes: int) -> LinearMap:
    """Bank bits from the kernel's annihilator, each of one low bit of its own and of bits that stay as they are."""
    n, v = problem.vector_bits, problem.vector
    kernel = gf2.kernel(found.images)[: n - bank_bits]
    rows = _low_pivots(gf2.annihilator(kernel, n), n)
    pivots = [(row & -row).bit_length() - 1 for row in rows]
    lines = [i for i in range(n) if i not in pivots]
    masks: dict[int, int] = {}
    for place, row in enumerate(rows):
        for line, bit in enumerate(lines):
            if row >> bit & 1:
                shift = len(pivots) + line - place
                masks[shift] = masks.get(shift, 0) | 1 << v + place
    order = (*range(v), *(v + i for i in [*pivots, *lines]))
    return LinearMap(order, None, tuple((mask, shift) for shift, mask in sorted(masks.items())), nodes)


def _low_pivots(rows: Sequence[int], n: int) -> list[int]:
    """The same row space with lowest bits all different, each in one row alone; lowest first."""
    flip = [_reversed(row, n) for row in rows]
    return sorted((_reversed(row, n) for row in gf2.echelon(flip)), key=lambda row: row & -row)


def _reversed(value: int, n: int) -> int:
    return int(format(value, f"0{n}b")[::-1], 2)


def _sum(vectors) -> int:
    total = 0
    for vector in vectors:
        total ^= vector
    return total
