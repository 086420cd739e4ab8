"""Sums of products that threads multiply by themselves, with no MMA: which products each element of C is the sum of."""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.simulate.values import CannotFollow

PRODUCT = "product"  # what a node is that multiplies an element of an operand by one of another
AT_ONCE = 2**21  # products that are looked at together

Wrong = tuple[int, str, str]  # which of the elements; got, needed


def products(a: np.ndarray, b: np.ndarray, numbered: np.ndarray) -> np.ndarray:
    """The origins of products, one by one: `numbered`, but 0 where 0 is multiplied by an element that is there."""
    there = [(x >= 0) & (origins.kind_of(x) <= max(origins.NAMES)) & (x != origins.CONSTANT) for x in (a, b)]
    zero = there[0] & there[1] & (origins.is_zero(a) | origins.is_zero(b))
    return np.where(zero, origins.ZERO, numbered)


class Products:
    """All products of a launch, and their sums."""

    def __init__(self, nodes: list[Any], k: int) -> None:
        """nodes: of `sums.Sums`, in order."""
        self.k = k
        self.a, self.b = (np.concatenate([getattr(node, x) for node in nodes]) for x in "ab")
        self.first = np.cumsum([0, *(len(node.b) for node in nodes)])  # of each node, in b
        self.first_a = np.cumsum([0, *(len(node.a) for node in nodes)])
        self.added = np.array([len(node.a) // len(node.b) for node in nodes])  # of a, for each of b
        self.whats = np.array([node.what for node in nodes])

    def wrong(self, ids: np.ndarray, m: np.ndarray, n: np.ndarray) -> Wrong | None:
        """Return what is wrong with the first of the sums `ids` that is not the one of C[m, n]; None if all of them
        are.

        Raises:
            CannotFollow: a sum is multiplied, or has an MMA's accumulators in it.
        """
        each = max(AT_ONCE // self.k, 1)
        for first in range(0, len(ids), each):
            part = slice(first, first + each)
            if found := self._wrong(ids[part], m[part], n[part]):
                return first + found[0], found[1], found[2]
        return None

    def _wrong(self, ids: np.ndarray, m: np.ndarray, n: np.ndarray) -> Wrong | None:
        owner, a, b = self._multiplied(ids)
        swap = (origins.kind_of(a) == 2) | (origins.kind_of(b) == 1)
        a, b = np.where(swap, b, a), np.where(swap, a, b)
        for mine, kind, rows in ((a, 1, m), (b, 2, n)):
            bad = np.flatnonzero((origins.kind_of(mine) != kind) | (origins.row_of(mine) != rows[owner]))
            if len(bad):
                p = int(owner[bad[0]])
                got = f"a sum with {origins.describe(int(mine[bad[0]]))} in it"
                return p, got, f"{origins.NAMES[kind]}[{int(rows[p])}, k]"
        apart = np.flatnonzero(origins.column_of(a) != origins.column_of(b))
        if len(apart):
            one, other = (origins.describe(int(x[apart[0]])) for x in (a, b))
            return int(owner[apart[0]]), f"a sum with {one} times {other} in it", "products of equal k"
        counts = np.bincount(owner * self.k + origins.column_of(a), minlength=len(ids) * self.k).reshape(-1, self.k)
        bad = np.flatnonzero((counts != 1).any(axis=1))
        if not len(bad):
            return None
        p = int(bad[0])
        return p, *of_counts(counts[p], int(m[p]), int(n[p]))

    def _multiplied(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each product in the sums `ids`: which of them it is in, and the two elements."""
        owner, going = np.arange(len(ids)), ids
        found = [(owner[:0], going[:0], going[:0])]
        while len(going):
            zero, node = origins.is_zero(going), origins.kind_of(going) == origins.NODE
            if not (zero | node).all():
                odd = origins.describe(int(going[~(zero | node)][0]))
                raise CannotFollow(f"a sum of products that threads multiply by themselves, with {odd} in it")
            owner, going = owner[node], going[node]
            number, place = origins.number_of(going), origins.place_of(going)
            if (self.whats == "mul")[number].any():
                raise CannotFollow("a product of a sum of products that threads multiply by themselves")
            added, at = self.added[number], self.first[number] + place
            at_a, done = self.first_a[number] + added * place, (self.whats == PRODUCT)[number]
            found.append((owner[done], self.a[at_a[done]], self.b[at[done]]))
            owner, at, at_a, added = (x[~done] for x in (owner, at, at_a, added))
            ends = np.cumsum(added)
            all_a = np.repeat(at_a - (ends - added), added) + np.arange(added.sum())  # each with those after it
            owner, going = (
                np.concatenate([np.repeat(owner, added), owner]),
                np.concatenate([self.a[all_a], self.b[at]]),
            )
        return tuple(np.concatenate(each) for each in zip(*found, strict=True))  # type: ignore[return-value]


def of_counts(
    counts: np.ndarray, m: int, n: int, names: tuple[str, ...] = ("A", "B"), mine: np.ndarray | None = None
) -> tuple[str, str]:
    """(got, needed) of a sum in which not each k is once. mine: how often each is needed, once in its group alone."""
    bad = counts != (1 if mine is None else mine)
    k, others = int(np.flatnonzero(bad)[0]), int(bad.sum())
    times = int(counts[k])
    one = f"{names[0]}[{m}, {k}] {names[1]}[{n}, {k}]"
    how = f"{one} not at all" if times == 0 else f"{one} {times} times"
    if mine is None or mine.all():
        return f"a sum with {how} ({others} of {len(counts)} k are not there once)", "each k once"
    return f"a sum with {how} ({others} of {len(counts)} k are wrong)", "each k of its group once, and no other"
