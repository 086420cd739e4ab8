"""Accumulators: which products each of them is the sum of, and whether that is what an element of C needs.

An MMA makes a new tile from the one that it adds to: the tile's accumulators (i, j) are the earlier ones plus the
products of the i-th row of A's elements and the j-th row of B's, position by position. Nothing is multiplied. A tile is
looked at as a whole: which row of A each of its rows comes from, which row of B each column, and which k there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.memory import Operand, Stored
from cookbook.check.product.products import PRODUCT, Products, of_counts, products
from cookbook.simulate.values import CannotFollow, Fault

NO_ROW, BAD = -1, -2
FACTORS = 1, 2, origins.PRODUCT_IN_THE_MIDDLE, origins.OPERANDS["B2"]  # kinds of what MMAs multiply


@dataclass
class Tile:
    """One MMA: the tile that it added to, and what it multiplied."""

    parent: int  # -1: none
    a: np.ndarray  # (rows, k): origins
    b: np.ndarray  # (columns, k)
    line: int
    scales: tuple[np.ndarray, np.ndarray] | None = None  # (rows, factors) and (columns, factors): of equal blocks of k


@dataclass
class Node:
    """Elements that were added or multiplied one by one."""

    what: str  # add; mul: a sum by a scale factor; product: an element of A by one of B
    a: np.ndarray  # flat: origins; of an addition, as many for each of b as are added to it
    b: np.ndarray
    line: int


@dataclass
class Summary:
    """Properties that all accumulators of a tile have in common."""

    operands: tuple[int, int]  # kinds: whose rows the tile's rows and columns are
    rows: np.ndarray  # for each row of the tile: which row of that operand; NO_ROW: zeros alone
    columns: np.ndarray
    counts: np.ndarray  # for each k < K: how often; -1 of an irregular tile
    alone: bool  # somewhere elements of one operand meet zeros, which of infinities makes NaN
    trouble: str = ""  # in words, if products have scale factors that are not theirs


class Sums:
    """All accumulators of a launch."""

    def __init__(self, k: int, block: int = 0, middle: int = 0) -> None:
        """k: of A and B. middle: of a chained GEMM, columns of A B; 0 of another."""
        self.inner, self.k = k, middle or k  # how many products are in a sum: of A B, of C
        middle_kinds = origins.PRODUCT_IN_THE_MIDDLE, origins.OPERANDS["B2"]
        self.factors = middle_kinds if middle else (1, 2)  # kinds of the elements whose products C is the sum of
        self.block = block  # how many k share a scale factor that MMAs multiply by; 0: there are none
        self.tiles: list[Tile] = []
        self.nodes: list[Node] = []
        self._summaries: dict[int, Summary] = {}

    def tile(self, parent: int, a: np.ndarray, b: np.ndarray, line: int, scales: Any = None) -> int:
        """The number of a new tile: an earlier one, or -1 for none, plus products."""
        self.tiles.append(Tile(parent, a, b, line, scales))
        return len(self.tiles) - 1

    def node(self, what: str, a: np.ndarray, b: np.ndarray, line: int) -> np.ndarray:
        """The origins of sums or products of elements, one by one; the shape is that of `b`.

        `a` has that shape too. Of an addition it may have r times as many columns: r elements are added to each of `b`.
        """
        self.nodes.append(Node(what, np.ascontiguousarray(a).ravel(), np.ascontiguousarray(b).ravel(), line))
        places = np.arange(b.size, dtype=np.int64).reshape(b.shape)
        found = origins.numbered(origins.NODE, len(self.nodes) - 1, places)
        return products(a, b, found) if what == PRODUCT else found

    # --- what a tile holds -------------------------------------------------------------------------------------------

    def blocks(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(rows, k) and (columns, k): all that was multiplied for a tile, in order."""
        a, b = [], []
        while number >= 0:
            tile = self.tiles[number]
            a.append(tile.a)
            b.append(tile.b)
            number = tile.parent
        return np.concatenate(a[::-1], axis=1), np.concatenate(b[::-1], axis=1)

    def summary(self, number: int) -> Summary:
        """Return what the accumulators of a tile have in common, found once."""
        if number not in self._summaries:
            self._summaries[number] = self._summarize(number)
        return self._summaries[number]

    def _summarize(self, number: int) -> Summary:
        a, b = self.blocks(number)
        kind_a, rows, k_a = _side(a)
        kind_b, columns, k_b = _side(b)
        size = self.inner if kind_a in (1, 2) else self.k
        counts = np.zeros(size, np.int64)
        both = (k_a >= 0) & (k_b >= 0)
        if (k_a[both] != k_b[both]).any():
            counts -= 1  # irregular: to be looked at one by one
        elif both.any():
            counts = np.bincount(k_a[both], minlength=size)[:size]
        alone = bool(((k_a >= 0) != (k_b >= 0)).any())
        return Summary((kind_a, kind_b), rows, columns, counts, alone, self._factors(number))

    def in_the_middle(self, ids: np.ndarray, dtype: str) -> np.ndarray:
        """Accumulators that are to be A of a second product: which element of A B each of them is.

        Raises:
            Fault: one of them is no element of A B, rounded to `dtype`.
            CannotFollow: what was done to them is not known.
        """
        what, found = "A of an MMA, in registers", np.empty_like(ids)
        if not (origins.kind_of(ids) == origins.TILE).all():
            odd = int(ids[origins.kind_of(ids) != origins.TILE][0])
            if origins.is_sum(np.int64(odd)):
                raise CannotFollow("a function of the accumulators that an MMA multiplies")
            raise Fault(f"{what}: got {origins.describe(odd)}; needed accumulators")
        if (origins.rounding_of(ids) != origins.ROUNDINGS[dtype]).any():
            raise Fault(f"{what}: got accumulators of another type; needed those rounded to {dtype}")
        for number in np.unique(origins.number_of(ids)):
            mine, tile = origins.number_of(ids) == number, self.summary(int(number))
            i, j = np.divmod(origins.place_of(ids[mine]), origins.WIDTH)
            rows, columns = tile.rows[i], tile.columns[j]
            fine = (rows != BAD).all() and (columns != BAD).all() and not tile.trouble
            zero = (rows == NO_ROW) | (columns == NO_ROW)
            if not fine or not (zero.all() or (tile.operands == (1, 2) and (tile.counts == 1).all())):
                got = of_counts(tile.counts, int(rows[0]), int(columns[0]))[0] if fine else "other products"
                raise Fault(f"{what}: got {got}; needed the sums of A[m, k] B[n, k], each k once")
            there = origins.operand(origins.PRODUCT_IN_THE_MIDDLE, np.maximum(rows, 0), np.maximum(columns, 0))
            found[mine] = np.where(zero, origins.ZERO, there)
        return found

    def _factors(self, number: int) -> str:
        """Return what is wrong with the scale factors that MMAs multiplied by, in words."""
        while number >= 0:
            tile = self.tiles[number]
            if (tile.scales is None) != (self.block == 0):
                return "products without their scale factors" if self.block else "products times scale factors"
            for ids, factors in zip((tile.a, tile.b), tile.scales or (), strict=False):
                each = ids.shape[1] // factors.shape[1]
                mine = np.repeat(factors, each, axis=1)
                wanted = origins.operand(0, origins.row_of(ids), origins.column_of(ids) // self.block)
                wanted |= (origins.kind_of(ids) + 2) << origins.KIND
                wrong = np.argwhere((mine != wanted) & (origins.kind_of(ids) > 0))
                if len(wrong):
                    i, p = wrong[0]
                    return f"{origins.describe(int(ids[i, p]))} times {origins.describe(int(mine[i, p]))}"
            number = tile.parent
        return ""


def _side(ids: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """(kind, row of each line, k of each position or -1) of what one operand gave a tile."""
    zero = origins.is_zero(ids)
    bare = np.full(ids.shape[0], NO_ROW, np.int64)
    nothing = np.full(ids.shape[1], -1, np.int64)
    if zero.all():
        return 0, bare, nothing
    kinds = origins.kind_of(ids)
    # A line that is read from what nothing wrote, or that is no line of an operand, is bad; the others may be good.
    rows = np.where(zero, -1, origins.row_of(ids))
    lines = rows.max(axis=1)
    good = ((rows == lines[:, None]) | zero) & (np.isin(kinds, FACTORS) | zero)
    bad = ~good.all(axis=1)
    live = ~bad & (lines >= 0)
    lines = np.where(bad, BAD, lines)
    if not live.any():
        return 0, lines, nothing
    kind = int(kinds[live].max())
    columns = np.where(zero, -1, origins.column_of(ids))[live]
    k = columns.max(axis=0)
    wrong = (columns != k[None, :]) | ((kinds[live] != kind) & ~zero[live])
    if wrong.any():
        lines[np.flatnonzero(live)[wrong.any(axis=1)]] = BAD
    return kind, lines, k


# --- what C needs ------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """The products that each row of C is the sum of."""

    group: np.ndarray  # of each row, its group; -1 if it is of none
    row: np.ndarray  # the row of A
    first: np.ndarray  # the row of B, over all groups, whose products are those of column 0
    counts: np.ndarray  # (groups, k): how often each k; one row for all groups
    parts: bool  # whether the groups divide K

    @classmethod
    def of(cls, shape: tuple[int, int], k: int, owners: tuple[int, ...], parts: tuple[range, ...]) -> Wanted:
        """Find what C of this shape has to be; `owners` and `parts` as `verify` has them."""
        rows = np.arange(shape[0])
        if parts:
            high = shape[0] // len(parts)
            counts = np.array([[each in part for each in range(k)] for part in parts]).astype(np.int64)
            return cls(rows // high, rows % high, 0 * rows, counts, True)
        group = np.array(owners) if owners else 0 * rows
        return cls(group, rows, group * shape[1], np.ones((1, k), np.int64), False)

    def of_row(self, m: Any) -> Any:
        """Return which line of `counts` is of each of these rows of C."""
        return self.group[m] if self.parts else 0 * m


def verify(
    sums: Sums,
    stored: Stored,
    further: dict[int, Operand],
    owners: tuple[int, ...] = (),
    parts: tuple[range, ...] = (),
    most: int = 3,
) -> list[str]:
    """Return what is wrong with C, in words; nothing if each element is the sum that it needs to be.

    Args:
        sums: all accumulators.
        stored: what was stored to C.
        further: by kind, the scale factors that each product is to be multiplied by, once each, and what is to be
            added to it, once each.
        owners: of each row of C, its group; -1 if it is of none; () where there are no groups of rows.
        parts: of each group along K, its k; the groups' C follow one another. () where there are none.
        most: faults to tell.
    """
    ids = stored.ids.ravel()
    needs = Wanted.of(stored.operand.shape, sums.k, owners, parts)
    wanted = np.repeat(needs.group >= 0, stored.operand.shape[1])
    missing = np.flatnonzero((ids == origins.UNWRITTEN) & wanted)
    stray = np.flatnonzero((ids != origins.UNWRITTEN) & ~wanted)
    faults = [f"{_name(int(stray[0]), stored)}: got a store; needed none: its row is of no group"] if len(stray) else []
    if len(missing):
        where = _name(int(missing[0]), stored)
        faults.append(f"{where}: got no store; needed one ({len(missing)} elements of C in all)")
    at = np.flatnonzero((ids != origins.UNWRITTEN) & wanted)
    if len(at):
        faults += Checked(sums, stored, further, needs).faults(at, most - len(faults))
    return faults[:most]


def _rows(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different rows, in order, and of each row which of them it is: `np.unique` along an axis, column by column,
    which takes a tenth of its time."""
    group = np.zeros(len(numbers), np.int64)
    for column in numbers.T:
        found, ranks = np.unique(column, return_inverse=True)
        _, first, group = np.unique(group * len(found) + ranks, return_index=True, return_inverse=True)
    return numbers[first], group


def _name(place: int, stored: Stored) -> str:
    columns = stored.operand.shape[1]
    return f"C[{place // columns}, {place % columns}]"


class Checked:
    """The sums of C, looked at together."""

    def __init__(self, sums: Sums, stored: Stored, further: dict[int, Operand], needs: Wanted) -> None:
        self.sums, self.stored, self.needs = sums, stored, needs
        self.scales = {kind: operand for kind, operand in further.items() if kind not in origins.ADDED}
        self.added = {kind: operand for kind, operand in further.items() if kind in origins.ADDED}
        self._blocks: dict[tuple[int, int], int] = {}
        self.dtype = origins.ROUNDINGS.get(stored.operand.dtype, 0)  # int32 is stored as it is accumulated

    def faults(self, at: np.ndarray, most: int) -> list[str]:
        ids = self.stored.ids.ravel()[at]
        bad = ~origins.is_sum(ids)
        found = [self._said(at[p], self._no_sum(int(ids[p])), "a sum of products") for p in np.flatnonzero(bad)[:1]]
        at, ids = at[~bad], ids[~bad]
        rounding = origins.rounding_of(ids)
        wrong = np.flatnonzero(rounding != self.dtype)
        if len(wrong):
            name = {v: k for k, v in origins.ROUNDINGS.items()}[int(rounding[wrong[0]])]
            found.append(self._said(at[wrong[0]], f"a sum rounded to {name}", f"one of {self.stored.operand.dtype}"))
        if any(node.what == PRODUCT for node in self.sums.nodes):
            return (found + self._of_products(at, ids))[:most]
        terms, factors = self._terms(ids)
        found += self._of_terms(at, terms, most)
        wrong = (self._of_factors(at, terms[:, q], factors[q]) for q in range(terms.shape[1]))
        return (found + next(filter(None, wrong), []))[:most]

    def _of_products(self, at: np.ndarray, ids: np.ndarray) -> list[str]:
        """Each element's products, where threads multiply by themselves."""
        columns = self.stored.operand.shape[1]
        wrong = self._nodes.wrong(ids, at // columns, at % columns)
        return [self._said(at[wrong[0]], *wrong[1:])] if wrong else []

    def _no_sum(self, one: int) -> str:
        return origins.describe(one)

    def _said(self, place: Any, got: str, needed: str) -> str:
        number = int(self.stored.lines.ravel()[place])
        line = self.stored.places.get(number, number)
        return f"{_name(int(place), self.stored)}: got {got}; needed {needed} (stored at line {line})"

    def _terms(self, ids: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """(elements, terms) accumulators, and of each term the (elements, factors) that it is multiplied by."""
        waiting: list[tuple[np.ndarray, list[np.ndarray]]] = [(ids, [])]
        done: list[tuple[np.ndarray, list[np.ndarray]]] = []
        while waiting:
            column, factors = waiting.pop()
            if not (origins.kind_of(column) == origins.NODE).any():
                done.append((column, factors))
                continue
            a, b, is_product = self._parts(column)
            swap = is_product & self._has_no_sum(a)  # the accumulator first
            a, b = np.where(swap, b, a), np.where(swap, a, b)
            times = np.where(is_product, b, 0)
            waiting.append((a, [*factors, times] if is_product.any() else factors))
            others = np.where(is_product, 0, b)
            if others.any():
                waiting.append((others, factors))
        terms = np.stack([term for term, _ in done], axis=1)
        return terms, [self._single(factors, len(ids)) for _, factors in done]

    def _parts(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The two elements of each node, and whether it is their product; another element is itself plus 0."""
        nodes = origins.kind_of(column) == origins.NODE
        a, b, is_product = np.where(nodes, 0, column), np.zeros_like(column), np.zeros(len(column), bool)
        if nodes.any():
            number, place, of = origins.number_of(column[nodes]), origins.place_of(column[nodes]), self._nodes
            if (of.added[number] != 1).any():
                raise CannotFollow("a sum over a vector of accumulators")
            a[nodes], b[nodes] = of.a[of.first_a[number] + place], of.b[of.first[number] + place]
            is_product[nodes] = (of.whats == "mul")[number]
        return a, b, is_product

    @cached_property
    def _nodes(self) -> Products:
        """All nodes, one after the other."""
        return Products(self.sums.nodes, self.sums.k)

    def _has_no_sum(self, column: np.ndarray) -> np.ndarray:
        """Return whether elements are scale factors, or products of them: nothing that is to be scaled is in them."""
        nodes = origins.kind_of(column) == origins.NODE
        if not nodes.any():
            return self._bare(column)
        a, b, _ = self._parts(column)
        return np.where(nodes, self._has_no_sum(a) & self._has_no_sum(b), self._bare(column))

    def _bare(self, column: np.ndarray) -> np.ndarray:
        return ~origins.is_sum(column) & ~np.isin(origins.kind_of(column), origins.ADDED)

    def _single(self, factors: list[np.ndarray], elements: int) -> np.ndarray:
        """(elements, factors): products of factors as factors."""
        waiting, done = list(factors), []
        while waiting:
            column = waiting.pop()
            if (origins.kind_of(column) == origins.NODE).any():
                a, b, is_product = self._parts(column)
                if (~is_product & (b != 0)).any():
                    raise CannotFollow("a sum of scale factors")
                waiting += [a, b]
            else:
                done.append(column)
        return np.stack(done, axis=1) if done else np.zeros((elements, 0), np.int64)

    def _of_terms(self, at: np.ndarray, terms: np.ndarray, most: int) -> list[str]:
        """Each element's terms, by the tiles that they are of: those of the same tiles at once."""
        found = [text for kind, operand in self.added.items() for text in self._of_added(at, terms, kind, operand)]
        terms = np.where(np.isin(origins.kind_of(terms), list(self.added)), origins.ZERO, terms)
        numbers = np.where(origins.kind_of(terms) == origins.TILE, origins.number_of(terms), -1)
        odd = (numbers < 0) & ~origins.is_zero(terms)
        if odd.any():
            p, q = (int(x[0]) for x in np.nonzero(odd))
            found.append(self._said(at[p], f"a sum with {origins.describe(int(terms[p, q]))} in it", "accumulators"))
        columns = self.stored.operand.shape[1]
        keys, group = _rows(numbers)
        order = np.argsort(group, kind="stable")
        bounds = np.searchsorted(group[order], np.arange(len(keys) + 1))
        for n, key in enumerate(keys):
            mine = order[bounds[n] : bounds[n + 1]]
            if len(found) >= most:
                break
            m, c = at[mine] // columns, at[mine] % columns
            found += self._of_group(at[mine], m, c, key, terms[mine])
        return found

    def _of_added(self, at: np.ndarray, terms: np.ndarray, kind: int, operand: Operand) -> list[str]:
        """Each element's bias, or residual, once: that of its column, or its own."""
        row, column = np.divmod(at, self.stored.operand.shape[1])
        row = row if operand.shape[0] > 1 else np.zeros_like(row)
        mine = origins.kind_of(terms) == kind
        here = (origins.row_of(terms) == row[:, None]) & (origins.column_of(terms) == column[:, None])
        bad = np.flatnonzero((mine.sum(axis=1) != 1) | (mine & ~here).any(axis=1))
        if not len(bad):
            return []
        p, name = int(bad[0]), origins.NAMES[kind]
        got = " + ".join(origins.describe(int(x)) for x in terms[p][mine[p]]) or f"no {name}"
        return [self._said(at[p], got, f"{name}[{row[p]}, {column[p]}]")]

    def _of_group(self, at: np.ndarray, m: np.ndarray, n: np.ndarray, key: np.ndarray, terms: np.ndarray) -> list[str]:
        """Elements whose sums are of the same tiles: looked at together, and one by one where tiles are irregular."""
        counts, regular = np.zeros(self.sums.k, np.int64), np.ones(len(at), bool)
        for q, number in enumerate(key):
            if number < 0:
                continue
            tile = self.sums.summary(int(number))
            if tile.trouble:
                needed = "products, each element times the scale factor of its block"
                return [
                    self._said(at[0], f"a sum with {tile.trouble} in it", needed if self.sums.block else "products")
                ]
            i, j = np.divmod(origins.place_of(terms[:, q]), origins.WIDTH)
            rows, columns = tile.rows[i], tile.columns[j]
            if self.needs.parts and tile.alone:
                needed = "products of its group alone: 0 times infinity is NaN"
                return [self._said(at[0], "a sum with zeros times elements of no or another group in it", needed)]
            if 0 in tile.operands and (rows != BAD).all() and (columns != BAD).all():
                continue  # zeros alone on one side: a part of K that has none of it
            a, b = self.sums.factors
            if not {0, a, b}.issuperset(tile.operands):  # 0: irregular, to be looked at one by one
                got = " and ".join(origins.NAMES.get(kind, "others") for kind in tile.operands)
                return [self._said(at[0], f"products of {got}", f"those of {origins.NAMES[a]} and {origins.NAMES[b]}")]
            of_a, of_b = (columns, rows) if tile.operands[0] == b or tile.operands[1] == a else (rows, columns)
            regular &= (of_a == self.needs.row[m]) & (of_b == n + self.needs.first[m])
            counts += tile.counts
        regular &= (counts == self.needs.counts).all(axis=1)[self.needs.of_row(m)]
        suspects = np.flatnonzero(~regular)
        for one in suspects:
            if found := self._exactly(int(m[one]), int(n[one]), key, terms[one]):
                return [self._said(at[one], *found)]
        return []

    def _exactly(self, m: int, n: int, key: np.ndarray, terms: np.ndarray) -> tuple[str, str] | None:
        """(got, needed) of one element of C, product by product; None if it is the sum that it needs to be."""
        counts = np.zeros(self.sums.k, np.int64)
        for number, term in zip(key, terms, strict=True):
            if number < 0:
                continue
            i, j = divmod(int(origins.place_of(term)), origins.WIDTH)
            a, b = self.sums.blocks(int(number))
            a, b = a[i], b[j]
            of_a, of_b = self.sums.factors
            if (origins.kind_of(a) == of_b).any() or (origins.kind_of(b) == of_a).any():
                a, b = b, a  # the operands have changed places
            for mine, kind, row in ((a, of_a, int(self.needs.row[m])), (b, of_b, n + int(self.needs.first[m]))):
                fine = (origins.kind_of(mine) == kind) & (origins.row_of(mine) == row) | origins.is_zero(mine)
                if not fine.all():
                    got = origins.describe(int(mine[np.flatnonzero(~fine)[0]]))
                    return f"a sum with {got} in it", f"{origins.NAMES[kind]}[{row}, k]"
            both = ~origins.is_zero(a) & ~origins.is_zero(b)
            a, b = a[both], b[both]
            apart = np.flatnonzero(origins.column_of(a) != origins.column_of(b))
            if len(apart):
                one, other = (origins.describe(int(x[apart[0]])) for x in (a, b))
                return f"a sum with {one} times {other} in it", "products of equal k"
            counts += np.bincount(origins.column_of(a), minlength=self.sums.k)[: self.sums.k]
        names = tuple(origins.NAMES[kind] for kind in self.sums.factors)
        mine = self.needs.counts[self.needs.of_row(m)]
        return None if (counts == mine).all() else of_counts(counts, int(self.needs.row[m]), n, names, mine)

    def _of_factors(self, at: np.ndarray, terms: np.ndarray, factors: np.ndarray) -> list[str]:
        """Each of a term's scale factors once: those of rows by the row of C, those of columns by its column, of its
        k. Beta is the residual's; all others are of products."""
        columns = self.stored.operand.shape[1]
        kinds, of = origins.kind_of(factors), int(origins.kind_of(terms).max())
        own = {origins.BIAS: set[int](), origins.RESIDUAL: {origins.BETA}}.get(of, {*self.scales} - {origins.BETA})
        for kind, operand in ((kind, self.scales[kind]) for kind in self.scales if kind in own):
            rows, block = operand.shared
            mine = kinds == kind
            row = at // columns if kind % 2 else at % columns + self.needs.first[at // columns]
            wanted = origins.operand(kind, row // rows if rows else 0 * row, self._block(terms, block))
            bad = np.flatnonzero((mine.sum(axis=1) != 1) | (np.where(mine, factors, 0).sum(axis=1) != wanted))
            bad = bad[terms[bad] != 0]  # what was added in the other elements alone
            if len(bad):
                p = int(bad[0])
                got = [origins.describe(int(x)) for x in factors[p][mine[p]]] or ["none"]
                return [self._said(at[p], " times ".join(got), origins.describe(int(wanted[p])))]
        other = (factors != 0) & ~np.isin(kinds, list(own))
        if other.any():
            p, q = (int(x[0]) for x in np.nonzero(other))
            return [self._said(at[p], f"a sum times {origins.describe(int(factors[p, q]))}", "a sum")]
        return []

    def _block(self, terms: np.ndarray, block: int) -> np.ndarray:
        """In which block of K the products of each term are; -1: in several."""
        found = np.zeros(len(terms), np.int64)
        tiles = origins.kind_of(terms) == origins.TILE
        numbers = origins.number_of(terms)
        if block:
            of_tile = np.zeros(len(self.sums.tiles), np.int64)
            for number in np.flatnonzero(np.bincount(numbers[tiles])):
                of_tile[number] = self._block_of(int(number), block)
            found[tiles] = of_tile[numbers[tiles]]
        return found

    def _block_of(self, number: int, block: int) -> int:
        """The block of a tile's products; -1: several; 0 if there are none."""
        if (number, block) not in self._blocks:
            a, _ = self.sums.blocks(number)
            blocks = np.unique(origins.column_of(a[~origins.is_zero(a)]) // block)
            self._blocks[number, block] = int(blocks[0]) if len(blocks) == 1 else -min(len(blocks), 1)
        return self._blocks[number, block]


__all__: list[Any] = ["Sums", "verify"]
