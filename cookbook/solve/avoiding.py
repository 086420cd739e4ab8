"""A subspace that meets none of the given ones, or the tree that proves there is none.

This is the heart of the solver. A bank map is free of conflicts on a span W iff its kernel meets W in 0
alone, so one wants a kernel of dimension n - rank that avoids every span. For two spans a greedy choice
never sticks; for three or more the search goes back, and what it went through is the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cookbook.arguments import checked
from cookbook.gf2 import echelon, kernel, span

__all__ = ["BankMap", "Frame", "Tree", "Undecided"]

GREEDY = 16  # steps for which the search follows its first choice; then it takes many branches at once
BATCH = 128
BATCH_BYTES = 1 << 26  # of the states that may follow a batch
LARGEST = 21  # log2 of the vectors that a search can look at
_ONES = np.array([i.bit_count() for i in range(1 << 16)], np.uint8)
# The bits of a word whose number has bit i clear.
_EVEN = [sum(1 << k for k in range(64) if not k >> i & 1) for i in range(6)]


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
    n = 12 bits, when they are just enough: up to 30,000 nodes, a few microseconds each.

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
    found = search.run(most)
    frame = search.frame
    return (frame, search.tree()) if found is None else BankMap(_extended(frame, found, n), search.steps)


def avoidable(spans: Sequence[Sequence[int]], n: int, rank: int, most: int) -> tuple[bool, int]:
    """Whether `avoid` finds a map, and how many nodes of the tree it looked at.

    Raises:
        Undecided: `most` nodes were not enough.
    """
    search = _Search(spans, n, rank)
    return search.run(most) is not None, search.nodes


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
    """The search for the kernel, many branches at once.

    A state is one word for each coset, a bit for each position that is still free (of wider positions the high bits
    are a second index), and which cosets have their vector. A choice v = (coset, position) leaves free what is free
    now and is free when moved by v; a coset without a vector whose word is 0 is a dead end.
    """

    def __init__(self, spans: Sequence[Sequence[int]], n: int, rank: int) -> None:
        bases = [echelon(basis) for basis in spans] or [[]]
        if max(map(len, bases)) > rank:
            raise ValueError(f"spans: got one of dimension {max(map(len, bases))}; needed {rank} at most")
        self.frame = frame = _frame(bases, n, rank)
        if len(frame.across) + frame.width > LARGEST:
            raise Undecided(f"rank: got {rank}; the search would look at 2**{len(frame.across) + frame.width} vectors")
        blocked = _forbidden(frame, bases)
        self._cosets = len(blocked)
        self._low = min(frame.width, 6)  # bits of a position inside a word
        self._high = frame.width - self._low
        self._depth = len(frame.across)
        bits = (~blocked).reshape(-1, 1 << self._low).astype(np.uint64)
        words = (bits << np.arange(1 << self._low, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        self._batch = max(1, min(BATCH, BATCH_BYTES >> len(frame.across) + 2 * frame.width - 3))
        self._dtype = np.uint16 if self._low <= 4 else np.uint32 if self._low == 5 else np.uint64
        self._free = words.astype(self._dtype)[None]
        self._assigned = np.zeros((1, self._cosets), bool)
        self._assigned[0, 0] = True
        self.steps = 0
        self._log: list[tuple[np.ndarray, np.ndarray, np.ndarray, int]] = []  # parent, position, coset; nodes so far

    def run(self, most: int | None = None) -> list[tuple[int, int]] | None:
        """The chosen (coset, position) pairs, or None: exhausted.

        Args:
            most: nodes after which to give up.

        Raises:
            Undecided: `most` nodes were not enough.
        """
        start = np.full(1, -1)
        stack: list[tuple[Any, ...]] = [(0, self._free, self._assigned, start, start)]
        while stack:
            if most is not None and self.nodes > most:
                raise Undecided(f"most: got {most}; more nodes are needed")
            depth, *state = stack.pop()
            many = 1 if self.steps < GREEDY else self._batch
            if len(state[0]) > many:
                stack.append((depth, *(rows[many:] for rows in state)))
            free, assigned, parent, position = (rows[:many] for rows in state)
            self.steps += len(free)
            if depth == self._depth:
                return self._path(int(parent[0]), int(position[0]))
            coset = self._narrowest(free, assigned)
            nodes = self._remember(parent, position, coset)
            children = self._children(free, assigned, coset, nodes)
            if len(children[0]):
                stack.append((depth + 1, *children))
        return None

    def _narrowest(self, free: np.ndarray, assigned: np.ndarray) -> np.ndarray:
        """Of each state, the coset without a vector that has the fewest positions left."""
        parts = _ONES[free.view(np.uint16)].reshape(len(free), self._cosets, -1)
        ones = parts[:, :, 0].astype(np.uint16)
        for i in range(1, parts.shape[2]):  # far quicker than a sum over a short axis
            ones += parts[:, :, i]
        ones[assigned] = 0xFFFF
        return ones.argmin(axis=1)

    def _children(self, free: np.ndarray, assigned: np.ndarray, coset: np.ndarray, nodes: np.ndarray) -> tuple:
        """The states after every choice in these cosets that are no dead ends, simple positions first."""
        words = free.reshape(len(free), self._cosets, 1 << self._high)[np.arange(len(free)), coset]
        row, high, low = np.nonzero(words[:, :, None] >> np.arange(1 << self._low, dtype=self._dtype) & self._dtype(1))
        position = high << self._low | low
        order = np.lexsort((position, _ONES[position & 0xFFFF] + _ONES[position >> 16], row))
        row, position = row[order], position[order]
        by = coset[row]
        to = _shuffle(self._cosets, by)
        free = free[row] & self._moved(free, row, to, position)
        assigned = assigned[row] | _taken(assigned, row, to)
        open_ = assigned | (free != 0 if not self._high else free.reshape(len(row), self._cosets, -1).any(axis=2))
        alive = open_.all(axis=1)
        dead = ~alive
        self._remember(nodes[row[dead]], position[dead], open_[dead].argmin(axis=1))
        return free[alive], assigned[alive], nodes[row[alive]], position[alive]

    def _moved(self, free: np.ndarray, row: np.ndarray, to: np.ndarray, position: np.ndarray) -> np.ndarray:
        """What is free, in these rows, where each vector comes to lie: in the cosets `to`, moved by `position`."""
        if self._high:
            high = _shuffle(1 << self._high, position >> self._low)
            to = ((to << self._high)[:, :, None] | high[:, None, :]).reshape(len(row), -1)
        moved = _taken(free, row, to)
        for bit in range(self._low):
            rows = np.flatnonzero(position >> bit & 1)
            step, even = self._dtype(1 << bit), self._dtype(_EVEN[bit] & (1 << (1 << self._low)) - 1)
            word = moved[rows]
            moved[rows] = (word & even) << step | word >> step & even
        return moved

    def _remember(self, parent: np.ndarray, position: np.ndarray, coset: np.ndarray) -> np.ndarray:
        """Writes nodes down; returns their numbers."""
        first = self.nodes
        self._log.append((parent, position, coset, first + len(parent)))
        return np.arange(first, first + len(parent))

    @property
    def nodes(self) -> int:
        """How many dead ends and states with a choice were looked at."""
        return self._log[-1][3] if self._log else 0

    def _nodes(self) -> list[tuple[int, int, int]]:
        """(parent, position, coset) of every node."""
        return [node for p, q, c, _ in self._log for node in zip(p.tolist(), q.tolist(), c.tolist(), strict=True)]

    def _path(self, node: int, position: int) -> list[tuple[int, int]]:
        nodes, chosen = self._nodes(), []
        while node >= 0:
            parent, above, coset = nodes[node]
            chosen.append((coset, position))
            node, position = parent, above
        return chosen[::-1]

    def tree(self) -> Tree:
        """What was gone through in vain."""
        nodes = self._nodes()
        ends = [Tree(coset) for coset in range(self._cosets)]  # dead ends are many: those of one coset are one
        inner = {parent: Tree(nodes[parent][2]) for parent in {parent for parent, _, _ in nodes} if parent >= 0}
        for node, (parent, position, coset) in enumerate(nodes):
            if parent >= 0:
                inner[parent].branches[position] = inner.get(node) or ends[coset]
        return inner.get(0) or ends[nodes[0][2]]


def _shuffle(count: int, by: np.ndarray) -> np.ndarray:
    """(len(by), count): i ^ by."""
    return np.arange(count) ^ by[:, None]


def _taken(table: np.ndarray, row: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Of each of these rows of a table, these columns."""
    return table.reshape(-1).take(columns + (row * table.shape[1])[:, None])


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
