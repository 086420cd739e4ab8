"""A subspace that meets none of the given ones, or the tree that proves there is none.

This is the heart of the solver. A bank map is free of conflicts on a span W iff its kernel meets W in 0
alone, so one wants a kernel of dimension n - rank that avoids every span. For two spans a greedy choice
never sticks; for three or more the search goes back, and what it went through is the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cookbook.gf2 import echelon, kernel, span

__all__ = ["BankMap", "Frame", "Tree", "avoid"]


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


@dataclass(frozen=True)
class BankMap:
    """`images[j]`: the bank bits of unit vector j."""

    images: tuple[int, ...]
    nodes: int  # steps of the search, dead ends included


def avoid(spans: Sequence[Sequence[int]], n: int, rank: int) -> BankMap | tuple[Frame, Tree]:
    """A linear map from n bits to `rank` bits that is injective on every span; or why there is none.

    The spans of blocks take a handful of steps, as do a few arbitrary ones. Hard are some twenty arbitrary spans
    of n = 12 bits: tens of thousands of steps, about 0.1 ms each.

    Args:
        spans: a basis each, of dimension `rank` at most.

    Returns:
        The map, or the frame and the tree of a proof; `cookbook.proofs` checks it.
    """
    bases = [echelon(basis) for basis in spans] or [[]]
    if max(map(len, bases)) > rank:
        raise ValueError(f"spans: got one of dimension {max(map(len, bases))}; needed {rank} at most")
    frame = _frame(bases, n, rank)
    blocked = _forbidden(frame, bases)
    steps = [0]
    assigned = np.zeros(len(blocked), bool)
    assigned[0] = True
    found = _search(blocked, assigned, [], steps)
    return (frame, found) if isinstance(found, Tree) else BankMap(_extended(frame, found, n), steps[0])


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


def _search(blocked: np.ndarray, assigned: np.ndarray, chosen: list[tuple[int, int]], steps: list[int]):
    """The chosen (coset, position) pairs, or the Tree of dead ends; the coset with the fewest ways out comes first."""
    steps[0] += 1
    if assigned.all():
        return chosen
    free = np.where(assigned, blocked.shape[1] + 1, (~blocked).sum(axis=1))
    coset = int(free.argmin())
    branches: dict[int, Tree] = {}
    for position in sorted(np.flatnonzero(~blocked[coset]).tolist(), key=lambda p: (p.bit_count(), p)):
        moved = blocked[np.arange(len(blocked)) ^ coset][:, np.arange(blocked.shape[1]) ^ position]
        wider = assigned | assigned[np.arange(len(assigned)) ^ coset]
        found = _search(blocked | moved, wider, [*chosen, (coset, position)], steps)
        if not isinstance(found, Tree):
            return found
        branches[position] = found
    return Tree(coset, branches)


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
    """Those of the candidates that, one after the other, are new to the span."""
    known, taken = echelon(basis), []
    for vector in candidates:
        if not _inside(vector, known):
            taken.append(vector)
            known = echelon([*known, vector])
    return taken


def _inside(vector: int, basis: Sequence[int]) -> bool:
    """Whether a vector is in the span of a basis from `echelon`."""
    for element in reversed(basis):
        vector = min(vector, vector ^ element)
    return vector == 0


def _xor(values) -> int:
    total = 0
    for value in values:
        total ^= value
    return total
