"""The methods of a judge: a handler calls one for each step of a warp."""

from __future__ import annotations

from typing import Any

from cookbook.simulate.trace import Operation
from cookbook.simulate.values import Box, Boxes, Pointer, View
from cookbook.simulate.warp import Barrier, Waits, Warp

Ranks = list[int]


class Judge(Warp):
    """A warp of somebody who has an opinion. Where nothing is said of it, a step returns nothing."""

    # --- memory --------------------------------------------------------------------------------------------------

    def registers(self, count: int, kind: str) -> Any:
        """(32, count): what holds new registers of elements of a type; None if they are not followed."""
        raise NotImplementedError

    def predicates(self, view: View) -> Any:
        """(32, elements) bools of registers; UNKNOWN if data decide."""
        raise NotImplementedError

    def load(self, op: Operation, view: View) -> Any:
        """All elements of a view, of each active lane's own: the value."""
        raise NotImplementedError

    def store(self, op: Operation, view: View, value: Any) -> None:
        raise NotImplementedError

    def copy(self, op: Operation, source: View, target: View, bits: int, mask: Any, later: bool) -> None:
        """By loads and stores of `bits`, where `mask`, if any, says so; `later`: by cp.async."""
        raise NotImplementedError

    def matrices(
        self, op: Operation, source: View, target: View, stores: bool, matrices: int, transposed: bool
    ) -> None:
        """ldmatrix, or stmatrix: it `stores`."""
        raise NotImplementedError

    def tma_load(
        self, op: Operation, box: Box, boxes: Boxes, target: View, ranks: Ranks, barriers: list[Barrier], rests: bool
    ) -> None:
        """To CTAs of the cluster, each of which has a barrier told. rests: no kernel before may write what is read."""
        raise NotImplementedError

    def tma_store(self, op: Operation, box: Box, boxes: Boxes, source: View) -> None:
        raise NotImplementedError

    def tensor_map(self, op: Operation, what: str, pointer: Pointer, number: int) -> None:
        """One in memory, by its number: what is "write", "read" of shared memory, "release" of all, or "acquire"."""
        raise NotImplementedError

    def store_to_cluster(self, op: Operation, source: View, target: View, cta: int, barrier: Barrier) -> None:
        """st.async."""
        raise NotImplementedError

    # --- MMAs and tensor memory ----------------------------------------------------------------------------------

    def mma_sync(self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View]) -> None:
        """text: the MMA's type; shape: (M, N, K) of one instruction."""
        raise NotImplementedError

    def multiply_add(self, op: Operation, target: View) -> None:
        """Multiply-adds of single threads, in registers."""
        raise NotImplementedError

    def wgmma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool
    ) -> None:
        raise NotImplementedError

    def tcgen05_mma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool, atom: Any
    ) -> None:
        raise NotImplementedError

    def tensor_copy(self, op: Operation, source: View, target: View, found: Any) -> None:
        """tcgen05.ld or tcgen05.st; found: a match of `partitions.TENSOR`."""
        raise NotImplementedError

    def copy_scales(self, op: Operation, text: str, source: View, target: View) -> None:
        """tcgen05.cp."""
        raise NotImplementedError

    def tensor_core(self, op: Operation, reads: list[View], taken: list[View], writes: View, pair: bool) -> None:
        """tcgen05.mma or tcgen05.cp by descriptors: it reads shared memory and cells of tensor memory, and writes some.

        pair: in both CTAs of a pair, at the same addresses.
        """
        raise NotImplementedError

    def tensor_alloc(self, op: Operation, columns: int, pointer: Pointer, pair: bool) -> None:
        """Its address goes to `pointer`; pair: both CTAs of a pair take part."""
        raise NotImplementedError

    def tensor_free(self, op: Operation, columns: int, pair: bool) -> None:
        raise NotImplementedError

    def tensor_pointer(self, op: Operation, pointer: Pointer) -> None:
        """The address that the allocation left is read."""
        raise NotImplementedError

    def tensor_commit(self, op: Operation, barriers: list[Barrier], lanes: int) -> None:
        raise NotImplementedError

    # --- barriers and order --------------------------------------------------------------------------------------

    def init(self, op: Operation, barrier: Barrier, count: int) -> None:
        raise NotImplementedError

    def look(self, op: Operation, barrier: Barrier, parity: int) -> int:
        """True if the phase is over."""
        raise NotImplementedError

    def wait(self, op: Operation, barrier: Barrier, parity: int) -> Waits:
        raise NotImplementedError

    def arrive(self, op: Operation, what: str, barrier: Barrier, count: int, bytes: int, narrow: bool = False) -> None:
        """what: "arrive"; "expect", bytes alone; "async arrive", when the warp's cp.async are there.

        narrow: of scope .cta, at a barrier of another CTA.
        """
        raise NotImplementedError

    def meet(self, op: Operation, number: int, threads: int, waits: bool) -> Waits:
        """A named barrier."""
        raise NotImplementedError

    def cluster(self, op: Operation, what: str, relaxed: bool) -> Waits:
        """what: "cluster arrive" or "cluster wait"."""
        raise NotImplementedError

    def order(self, op: Operation, what: str, count: int = 0, flag: bool = False) -> None:
        """Fences, groups and registers, by the name of their event."""
        raise NotImplementedError

    def flag(self, op: Operation, what: str, place: View, value: Any) -> Waits:
        """what: "release" or "acquire" of words in global memory."""
        raise NotImplementedError

    # --- work of other clusters ----------------------------------------------------------------------------------

    def ask(self, op: Operation, place: View, barriers: list[Barrier]) -> None:
        """The answer goes to `place` in the CTA of each barrier."""
        raise NotImplementedError

    def granted(self, answer: Any) -> bool:
        raise NotImplementedError

    def taken_over(self, answer: Any) -> tuple[int, int, int]:
        """The first CTA of the cluster that is taken over."""
        raise NotImplementedError
