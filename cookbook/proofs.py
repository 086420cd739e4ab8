"""Proofs that no address map serves a request, each with a check that shares nothing with the search.

What is proved, always: no invertible linear (GF(2)) map from offsets to addresses that keeps the vectors in
one piece serves these accesses without a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cookbook.avoiding import Frame, Tree

__all__ = ["CountingProof", "TreeProof", "Unsolvable"]


class Unsolvable(ValueError):
    """No address map serves the request. `proof.check()` verifies why; `str(proof)` says it in words."""

    def __init__(self, message: str, proof: CountingProof | TreeProof) -> None:
        super().__init__(f"{message}\n{proof}")
        self.proof = proof


@dataclass(frozen=True)
class CountingProof:
    """One phase asks for the same word of more vectors than there are places for vectors across the banks."""

    access: int  # which of the request's accesses
    offsets: tuple[int, ...]  # element offsets that one phase asks for
    vector_elements: int
    places: int  # vectors that all banks together hold once

    @property
    def vectors(self) -> int:
        """Different vectors asked for at the position that the most of them are asked for at."""
        at: dict[int, set[int]] = {}
        for offset in self.offsets:
            at.setdefault(offset % self.vector_elements, set()).add(offset // self.vector_elements)
        return max(map(len, at.values()))

    @property
    def conflicting(self) -> tuple[int, ...]:
        """The accesses that cannot be served together: one, alone."""
        return (self.access,)

    def check(self) -> bool:
        """Whether the count holds: by the pigeonhole principle two of those words then share a bank."""
        return self.vectors > self.places

    def __str__(self) -> str:
        return (
            f"access {self.access} asks for one word each of {self.vectors} vectors of {self.vector_elements} elements "
            f"at once, and the banks hold {self.places} such vectors side by side: at least "
            f"{-(-self.vectors // self.places)} wavefronts, whatever the order of the vectors"
        )


@dataclass(frozen=True)
class TreeProof:
    """An exhausted search over the kernel of the bank map, for accesses that do not agree.

    A map is free of conflicts on an access iff its kernel meets the access' span in 0 alone. A kernel that does
    so for all of them has exactly one vector in every coset of the largest span (taken modulo what all spans
    share). The tree goes through those vectors, coset by coset; each one differs from an earlier vector of the
    kernel (or from 0) by a vector of some span, or ends in a coset with no way out.
    """

    conflicting: tuple[int, ...]  # which of the request's accesses
    spans: tuple[tuple[int, ...], ...]  # a basis for each of them: offsets of vectors
    bank_bits: int
    frame: Frame
    tree: Tree
    smallest: bool = True  # leave any one out and a map exists; else that was not gone through to the end

    def check(self) -> bool:
        """Walk the tree with sets of integers alone; True if every branch ends blocked and no vector is left out."""
        spans = [_span(basis) for basis in self.spans]
        return self._frame_holds(spans) and self._exhausted(self.tree, {0}, {0}, self._completed(spans))

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

    def _fresh(self) -> list[int]:
        """Directions that no offset has: one bit each, above all others."""
        above = max((v.bit_length() for basis in self.spans for v in basis), default=0)
        return [1 << above + i for i in range(self.frame.fresh)]

    def _completed(self, spans: list[set[int]]) -> list[set[int]]:
        """The spans, the largest one with the fresh directions.

        A map that is free for the spans can send the fresh directions to the bank bits that it leaves unused on
        the largest, and is then free for this one too: so to refute this is to refute that.
        """
        widened = list(spans)
        widened[self.frame.largest] = _span([*self.spans[self.frame.largest], *self._fresh()])
        return widened

    def _exhausted(self, tree: Tree, kernel: set[int], done: set[int], spans: list[set[int]]) -> bool:
        if tree.coset in done or not 0 < tree.coset < 1 << len(self.frame.across):
            return False  # the kernel's vector in this coset is settled already
        start = _sum(v for k, v in enumerate(self.frame.across) if tree.coset >> k & 1)
        inside = [*self.frame.within, *self._fresh()]
        for position in range(1 << len(inside)):
            vector = start ^ _sum(v for k, v in enumerate(inside) if position >> k & 1)
            if position in tree.branches:
                wider, settled = kernel | {k ^ vector for k in kernel}, done | {d ^ tree.coset for d in done}
                if not self._exhausted(tree.branches[position], wider, settled, spans):
                    return False
            elif not any(vector ^ k in span for k in kernel for span in spans):
                return False
        return True

    def __str__(self) -> str:
        names = ", ".join(map(str, self.conflicting))
        some = f"though any {len(self.conflicting) - 1} of them can"
        fewer = f", {some}" if self.smallest else "; perhaps fewer of them cannot either"
        lines = [
            f"accesses {names} cannot be served together{fewer}.",
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
                f"The {self.tree.nodes} steps of the search leave none in some coset; proof.check() walks them."
            )
        return "\n".join(lines)


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
