"""A subspace that meets none of the given ones, or the tree that proves there is none.

This is the heart of the solver. A bank map is free of conflicts on a span W iff its kernel meets W in 0
alone, so one wants a kernel of dimension n - rank that avoids every span. For two spans a greedy choice
never sticks; for three or more the search goes back, and what it went through is the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cookbook.arguments import checked
from cookbook.gf2 import echelon, kernel, span

__all__ = ["BankMap", "Frame", "Tree", "Undecided"]

LARGEST = 21  # log2 of the vectors that a search can look at


@checked
@dataclass(frozen=True)
class Frame:
    """The coordinates that the search works in.

    A free kernel has exactly one vector in each coset x + W, W being the largest span (completed by `fresh`
    new directions to the dimension of the banks). So the search asks coset after coset which vector it is.
    `common`, the intersection of all spans, does not matter: it is divided out.
    """

    common: tuple[int, ...]
    within: tuple[int, ...]  # with `common`: a basis of the largest span
    fresh: int
    across: tuple[int, ...]  # with the above: a basis of the sum of all spans
    largest: int  # which span it is

    @property
    def width(self) -> int:
        """Bits of a position inside a coset."""
        return len(self.within) + self.fresh


@checked
@dataclass(frozen=True)
class Tree:
    """One step of an exhausted search: no vector of the coset can be chosen.

    `coset` has a bit for each vector of `Frame.across`. A position inside it that is not in `branches` is
    blocked already; one that is there leads to a further dead end.
    """

    coset: int
    branches: dict[int, Tree] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return 1 + sum(tree.nodes for tree in self.branches.values())


@checked
@dataclass(frozen=True)
class BankMap:
    """`images[j]`: the bank bits of unit vector j."""

    images: tuple[int, ...]
    nodes: int  # steps of the search, dead ends included


class Undecided(ValueError):
    """The search was given fewer steps than it needs."""


def avoid(spans: Sequence[Sequence[int]], n: int, rank: int, most: int | None = None) -> BankMap | tuple[Frame, Tree]:
    """A linear map from n bits to `rank` bits that is injective on every span; or why there is none.

    The spans of blocks take a handful of steps, as do up to eight arbitrary ones. Hard are thirty arbitrary spans of
    n = 12 bits, when they are just enough: up to 30,000 nodes, a tenth of a millisecond each.

    Args:
        spans: a basis each, of dimension `rank` at most.
        most: nodes after which to give up.

    Returns:
        The map, or the frame and the tree of a proof; `cookbook.solve.proofs` checks it.

    Raises:
        Undecided: (a ValueError) `most` nodes were not enough.
    """
    total = echelon(v for basis in spans for v in basis)
    if len(total) <= rank:  # room for all at once
        return BankMap(_injective(total, n), 0)
    search = _Search(spans, n, rank)
    tree = search.run(most)
    return (search.frame, tree) if tree else BankMap(_extended(search.frame, search.chosen, n), search.nodes)


def avoidable(spans: Sequence[Sequence[int]], n: int, rank: int, most: int) -> tuple[bool, int]:
    """Return whether `avoid` finds a map, and how many nodes of the tree it looked at.

    Raises:
        Undecided: `most` nodes were not enough.
    """
    search = _Search(spans, n, rank)
    return search.run(most) is None, search.nodes


def _frame(bases: list[list[int]], n: int, rank: int) -> Frame:
    largest = max(range(len(bases)), key=lambda i: len(bases[i]))
    common = bases[0]
    for basis in bases[1:]:
        common = _intersection(common, basis)
    units = [1 << i for i in range(n)]
    total = echelon([v for basis in bases for v in basis])
    candidates = [u for u in units if _inside(u, total)]  # coordinates that the spans reach read best
    within = _completed(common, bases[largest])
    across = _completed([*common, *within], [*candidates, *total])
    return Frame(tuple(common), tuple(within), rank - len(bases[largest]), tuple(across), largest)


def _forbidden(frame: Frame, bases: list[list[int]]) -> np.ndarray:
    """(cosets, positions) bool: the vectors that lie in one of the spans."""
    coordinates = _Coordinates([*frame.common, *frame.within, *frame.across])
    drop, inside = len(frame.common), len(frame.within)
    blocked = np.zeros((1 << len(frame.across), 1 << frame.width), bool)
    for basis in bases:
        places = [coordinates(v) >> drop for v in basis]
        moved = [p & ((1 << inside) - 1) | p >> inside << frame.width for p in places]
        blocked.reshape(-1)[span(echelon(moved))] = True
    blocked[0] = True
    return blocked


class _Search:
    """The search for the kernel, coset by coset.

    A state is which vectors are free, (cosets, positions), and which cosets have their vector. A choice
    v = (coset, position) leaves free what is free now and is free when moved by v.
    """

    def __init__(self, spans: Sequence[Sequence[int]], n: int, rank: int) -> None:
        bases = [echelon(basis) for basis in spans] or [[]]
        if max(map(len, bases)) > rank:
            raise ValueError(f"spans: got one of dimension {max(map(len, bases))}; needed {rank} at most")
        self.frame = frame = _frame(bases, n, rank)
        if len(frame.across) + frame.width > LARGEST:
            raise Undecided(f"rank: got {rank}; the search would look at 2**{len(frame.across) + frame.width} vectors")
        self._free = ~_forbidden(frame, bases)
        self._cosets, self._positions = map(np.arange, self._free.shape)
        self.chosen: list[tuple[int, int]] = []  # the kernel's vectors so far, (coset, position) each
        self.nodes = 0  # states and dead ends that were looked at
        self._ends: dict[int, Tree] = {}  # dead ends are many: those of one coset are one

    def run(self, most: int | None = None) -> Tree | None:
        """Return what was gone through in vain; None: `chosen` is a kernel.

        Args:
            most: nodes after which to give up.

        Raises:
            Undecided: `most` nodes were not enough.
        """
        return self._exhausted(self._free, self._cosets == 0, most)

    def _exhausted(self, free: np.ndarray, assigned: np.ndarray, most: int | None) -> Tree | None:
        """The dead end that a state leads to; None if it leads to a kernel."""
        if most is not None and self.nodes >= most:
            raise Undecided(f"most: got {most}; more nodes are needed")
        self.nodes += 1
        if len(self.chosen) == len(self.frame.across):
            return None
        left = np.where(assigned, len(self._positions) + 1, np.count_nonzero(free, axis=1))
        coset = int(left.argmin())  # of those without a vector, the one that has the fewest positions left
        if not left[coset]:
            return self._ends.setdefault(coset, Tree(coset))
        moved, branches = self._cosets ^ coset, {}
        for position in sorted(np.flatnonzero(free[coset]).tolist(), key=lambda p: (p.bit_count(), p)):
            self.chosen.append((coset, position))
            still = free & free[moved][:, self._positions ^ position]
            below = self._exhausted(still, assigned | assigned[moved], most)
            if below is None:
                return None
            branches[position] = below
            self.chosen.pop()
        return Tree(coset, branches)


def _injective(basis: Sequence[int], n: int) -> tuple[int, ...]:
    """The images of the unit vectors under a map that sends each vector of a basis to a bit of its own."""
    whole = _Coordinates([*basis, *_completed(basis, [1 << i for i in range(n)])])
    return tuple(whole(1 << j) & (1 << len(basis)) - 1 for j in range(n))


def _extended(frame: Frame, chosen: list[tuple[int, int]], n: int) -> tuple[int, ...]:
    """The bank bits of every unit vector, from the kernel's vector in each chosen coset."""
    drop = len(frame.common)
    solved = _Coordinates([coset for coset, _ in chosen])
    images = [1 << i for i in range(drop + len(frame.within))]
    for i in range(len(frame.across)):  # minus position = position: what the coset's own vector must map to
        parts = solved(1 << i)
        images.append(_xor(chosen[k][1] for k in range(len(chosen)) if parts >> k & 1) << drop)
    basis = [*frame.common, *frame.within, *frame.across]
    rest = _completed(basis, [1 << i for i in range(n)])
    images += [0] * len(rest)
    coordinates = _Coordinates([*basis, *rest])
    return tuple(_xor(image for k, image in enumerate(images) if coordinates(1 << j) >> k & 1) for j in range(n))


class _Coordinates:
    """Coordinates with respect to independent vectors: bit k of the result says whether vector k takes part."""

    def __init__(self, basis: Sequence[int]) -> None:
        self._rows: list[tuple[int, int]] = []
        for k, vector in enumerate(basis):
            reduced, parts = self._reduce(vector, 1 << k)
            if not reduced:
                raise ValueError(f"basis: got dependent vectors {list(basis)}; needed independent ones")
            self._rows.append((reduced, parts))

    def __call__(self, vector: int) -> int:
        rest, parts = self._reduce(vector, 0)
        if rest:
            raise ValueError(f"vector: got {vector}, which is not in the span")
        return parts

    def _reduce(self, vector: int, parts: int) -> tuple[int, int]:
        for known, known_parts in self._rows:
            if vector >> (known.bit_length() - 1) & 1:
                vector, parts = vector ^ known, parts ^ known_parts
        return vector, parts


def _intersection(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Zassenhaus by another name: a combination of a and b that is 0 has its part in a inside both."""
    both = [*a, *b]
    relations = kernel(both)
    return echelon(_xor(v for i, v in enumerate(a) if relation >> i & 1) for relation in relations)


def _completed(basis: Sequence[int], candidates: Sequence[int]) -> list[int]:
    """Return those of the candidates that, one after the other, are new to the span."""
    known, taken = echelon(basis), []
    for vector in candidates:
        if not _inside(vector, known):
            taken.append(vector)
            known = echelon([*known, vector])
    return taken


def _inside(vector: int, basis: Sequence[int]) -> bool:
    """Return whether a vector is in the span of a basis from `echelon`."""
    for element in reversed(basis):
        vector = min(vector, vector ^ element)
    return vector == 0


def _xor(values) -> int:
    total = 0
    for value in values:
        total ^= value
    return total
