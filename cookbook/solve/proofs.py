"""Proofs that no address map serves a request, each with a check that shares nothing with the search.

What is proved is said by each: a `CountingProof` excludes every map that keeps vectors in one piece; a `TreeProof`
excludes the linear ones (over GF(2): each address bit an XOR of offset bits) that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cookbook.arguments import checked, integer, integers
from cookbook.solve.avoiding import Frame, Tree

if TYPE_CHECKING:
    from cookbook.solve.irregular import ExhaustionProof

__all__ = ["CountingProof", "TreeProof", "Unsolvable", "Vectors"]


class Unsolvable(ValueError):
    """No address map serves the request. `proof.check()` verifies why; `str(proof)` says it in words.

    `advice` is what else was tried, and whether it helps; "" where nothing was.
    """

    def __init__(self, message: str, proof: CountingProof | TreeProof | ExhaustionProof, advice: str = "") -> None:
        super().__init__("\n".join(filter(None, (message, str(proof), advice))))
        self.proof = proof
        self.advice = advice


@checked
@dataclass(frozen=True)
class Vectors:
    """The vector that stays in one piece, in elements, and how much of it the banks hold.

    A map puts a vector of `elements` neighbours, aligned to its size, at a multiple of that size, in its own order.
    """

    elements: int
    word: int  # elements of a bank's word; 1 if an element is as wide or wider
    line: int  # elements that all banks give in one wavefront

    def __post_init__(self) -> None:
        for name in ("elements", "word", "line"):
            integer(name, getattr(self, name), at_least=1, at_most=1 << 16, power_of_two=True)

    @property
    def places(self) -> int:
        """Vectors that all banks together hold once, side by side."""
        return self.line // self.elements

    def at_one_word(self, offsets: Sequence[int]) -> dict[int, set[int]]:
        """The vectors that element offsets of 0 or more ask for, by the word of their vector that they lie in."""
        found: dict[int, set[int]] = {}
        listed = integers("offsets", offsets, ndim=1, at_least=0, at_most=1 << 16).tolist()
        if not listed:
            raise ValueError("offsets: got none; needed one at least")
        for offset in listed:
            found.setdefault(offset % self.elements // self.word, set()).add(offset // self.elements)
        return found


@checked
@dataclass(frozen=True)
class CountingProof:
    """One phase asks for the same word of more vectors than there are places for vectors across the banks."""

    access: int  # which of the request's accesses
    offsets: tuple[int, ...]  # element offsets that one phase asks for
    kept: Vectors

    @property
    def vectors(self) -> int:
        """Different vectors asked for at the word that the most of them are asked for at."""
        return max(map(len, self.kept.at_one_word(self.offsets).values()))

    @property
    def places(self) -> int:
        """Vectors that all banks together hold once."""
        return self.kept.places

    @property
    def conflicting(self) -> tuple[int, ...]:
        """The accesses that cannot be served together: one, alone."""
        return (self.access,)

    @property
    def steps(self) -> int:
        """Count the steps of `check`: one."""
        return 1

    @checked
    def check(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Return whether the count holds: by the pigeonhole principle two of those words then share a bank."""
        return self.vectors > self.places

    def __str__(self) -> str:
        vectors = f"{self.kept.elements} elements" if self.kept.elements > 1 else "1 element"
        least = -(-self.vectors // self.places)
        return (
            f"access {self.access} asks for one word each of {self.vectors} vectors of {vectors} at once, and the "
            f"banks hold {self.places} such vectors side by side: at least {least} wavefronts, "
            "whatever the order of the vectors"
        )


@checked
@dataclass(frozen=True)
class TreeProof:
    """An exhausted search over the kernel of the bank map, for accesses that do not agree.

    A linear map is free of conflicts on an access iff its kernel meets the access' span in 0 alone. A kernel that does
    so for all of them has exactly one vector in every coset of the largest span (taken modulo what all spans
    share). The tree goes through those vectors, coset by coset; each one differs from an earlier vector of the
    kernel (or from 0) by a vector of some span, or ends in a coset with no way out.
    """

    conflicting: tuple[int, ...]  # which of the request's accesses
    offsets: tuple[tuple[int, ...], ...]  # of each of them: the element offsets that one phase asks for
    kept: Vectors
    spans: tuple[tuple[int, ...], ...]  # a basis for each of them: the vectors asked for at the first word
    bank_bits: int  # of an offset of vectors, how many choose the banks
    frame: Frame
    tree: Tree
    smallest: bool = True  # leave any one out and a map exists; else that was not gone through to the end

    @property
    def steps(self) -> int:
        """Count the steps of `check`: one for each node of the tree."""
        return self.tree.nodes

    @checked
    def check(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Go through the tree with sets of integers alone; True if every branch ends blocked and no vector is left out.

        Args:
            progress: called with (steps done, steps in all) as the check goes on.
        """
        spans = [_span(basis) for basis in self.spans]
        return self._spans_hold(spans) and self._frame_holds(spans) and _Exhausted(self, spans, progress).holds()

    def _spans_hold(self, spans: list[set[int]]) -> bool:
        """That the spans are what the accesses ask for."""
        asked = [self.kept.at_one_word(offsets).get(0) for offsets in self.offsets]
        return asked == spans and self.kept.places == 1 << self.bank_bits

    def _frame_holds(self, spans: list[set[int]]) -> bool:
        """That `common` is in every span, that the rest are bases, and that the dimensions add up."""
        frame = self.frame
        largest, total = spans[frame.largest], _span(v for basis in self.spans for v in basis)
        whole = _span([*frame.common, *frame.within])
        dimension = len(frame.common) + len(frame.within)
        return (
            all(v in span for v in frame.common for span in spans)
            and whole == largest
            and len(whole) == 1 << dimension
            and dimension + frame.fresh == self.bank_bits
            and len(total) == len(largest) << len(frame.across)
            and _span([*frame.common, *frame.within, *frame.across]) == total
        )

    def __str__(self) -> str:
        names = ", ".join(map(str, self.conflicting))
        fewer = (
            f"any {len(self.conflicting) - 1} of them can" if self.smallest else "perhaps fewer of them cannot either"
        )
        kept = f" and that keep {self.kept.elements} neighbours together" if self.kept.elements > 1 else ""
        lines = [
            f"accesses {names} cannot be served together by maps that are linear{kept}; {fewer}. Linear: each bit of "
            "the address is an XOR of bits of the offset, as in swizzles of layouts whose strides are powers of two.",
            f"A free bank map has a kernel that meets each of their {len(self.spans)} spans in 0 alone, and has one "
            f"vector in every coset of span {self.conflicting[self.frame.largest]}.",
        ]
        if not self.tree.branches:
            coset = _sum(v for k, v in enumerate(self.frame.across) if self.tree.coset >> k & 1)
            lines.append(
                f"All {1 << self.frame.width} vectors of the coset of {coset:#b} lie in one of the spans: none is left."
            )
        else:
            lines.append(
                f"The {self.tree.nodes} steps of the search leave none in some coset; proof.check() goes through them."
            )
        return "\n".join(lines)


class _Exhausted:
    """Through the tree of a proof, with the set of vectors that the kernel so far excludes: bit v of an integer each.

    Directions that no offset has are added to the largest span, one bit each above all others (`fresh`). A map that is
    free for the spans can send them to the bank bits that it leaves unused on the largest, and is then free for the
    wider span too: so to refute that is to refute this.
    """

    def __init__(self, proof: TreeProof, spans: list[set[int]], progress: Callable[[int, int], None] | None) -> None:
        frame = proof.frame
        above = max((v.bit_length() for basis in proof.spans for v in basis), default=0)
        fresh = [1 << above + i for i in range(frame.fresh)]
        widened = _span([*proof.spans[frame.largest], *fresh])
        self._tree, self._across = proof.tree, frame.across
        self._excluded = sum(1 << v for v in widened.union(*spans))
        self._below = [_without(i, above + frame.fresh) for i in range(above + frame.fresh)]
        self._inside = [0]  # by position in a coset
        for vector in [*frame.within, *fresh]:
            self._inside += [known ^ vector for known in self._inside]
        self._progress, self._done, self._steps = progress, 0, proof.steps if progress else 0

    def holds(self) -> bool:
        return self._exhausted(self._tree, {0}, self._excluded)

    def _exhausted(self, tree: Tree, done: set[int], excluded: int) -> bool:
        """Return whether every vector of a coset is excluded, or leads to another coset of which that is so."""
        self._done += 1
        if self._progress is not None and not self._done % 256:
            self._progress(self._done, self._steps)
        if tree.coset in done or not 0 < tree.coset < 1 << len(self._across):
            return False  # the kernel's vector in this coset is settled already
        if not all(0 <= position < len(self._inside) for position in tree.branches):
            return False
        start = _sum(v for k, v in enumerate(self._across) if tree.coset >> k & 1)
        for position, inside in enumerate(self._inside):
            vector = start ^ inside
            if position not in tree.branches:
                if not excluded >> vector & 1:
                    return False
                continue
            settled = done | {d ^ tree.coset for d in done}
            if not self._exhausted(tree.branches[position], settled, excluded | self._moved(excluded, vector)):
                return False
        return True

    def _moved(self, members: int, by: int) -> int:
        """The set of v ^ by for all v of a set: at each bit of `by`, members with that bit and those without swap."""
        for i, below in enumerate(self._below):
            if by >> i & 1:
                members = (members & below) << (1 << i) | members >> (1 << i) & below
        return members


def _without(bit: int, bits: int) -> int:
    """The integers of `bits` bits that have this one clear, as a set."""
    found = (1 << (1 << bit)) - 1
    for i in range(bit + 1, bits):
        found |= found << (1 << i)
    return found


def _span(vectors: Iterable[int]) -> set[int]:
    found = {0}
    for vector in vectors:
        if vector not in found:
            found |= {v ^ vector for v in found}
    return found


def _sum(vectors: Iterable[int]) -> int:
    total = 0
    for vector in vectors:
        total ^= vector
    return total
