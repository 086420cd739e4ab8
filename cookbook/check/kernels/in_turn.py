"""Warps that take turns where they wait, so that an integer that one leaves in shared memory reaches the others.

One legal order is followed: copies and MMAs end at once, and a wait that nothing ends is passed. What the warps did is
recorded all the same, and the machine then looks at every order: if another one could bring another number, it finds
the race.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cookbook.check.banks import Counter
from cookbook.check.pipeline.recorder import NO_CTA, Names
from cookbook.check.pipeline.regions import GRANULE
from cookbook.check.product.barriers import Barriers, ClusterBarrier, Waiting, barrier_at
from cookbook.check.product.memory import SMEM_BYTES
from cookbook.simulate import types
from cookbook.simulate.launch import Launch
from cookbook.simulate.trace import Operation, Trace
from cookbook.simulate.values import LANES, UNKNOWN, CannotFollow, Fault, Lay, Pointer, View
from cookbook.simulate.warp import Barrier, Place, Waits

__all__ = ["InTurn", "warps_in_turn"]

WRITES = ("write", "load", "async copy", "tensor alloc")  # events after which shared memory holds something else


class NeverComes(Exception):
    """Let a warp go on that waits."""


@dataclass
class Cluster:
    """Values that the CTAs of a cluster share."""

    barrier: ClusterBarrier
    ctas: list[Cta] = field(default_factory=list)


@dataclass
class Cta:
    """Values that the warps of a CTA share: barriers, and the bytes of shared memory that are known."""

    cluster: Cluster
    barriers: Barriers = field(default_factory=Barriers)
    bytes: np.ndarray = field(default_factory=lambda: np.zeros(SMEM_BYTES, np.uint8))
    known: np.ndarray = field(default_factory=lambda: np.zeros(SMEM_BYTES, bool))
    holds: bool = False  # whether any is known


class InTurn(Counter, Waiting):
    """Records what a warp does, waits until others have come, and knows integers in shared memory."""

    def __init__(self, place: Place, shared: Names | None = None, cta: Cta | None = None) -> None:
        super().__init__(place, shared)
        self.cta: Any = cta
        self.generation = 0  # of the cluster's barrier, at the last arrival

    # --- barriers ------------------------------------------------------------------------------------------------

    def init(self, op: Operation, barrier: Barrier, count: int) -> None:
        super().init(op, barrier, count)
        Waiting.init(self, op, barrier, count)

    def look(self, op: Operation, barrier: Barrier, parity: int) -> int:
        return Counter.look(self, op, barrier, parity)

    def wait(self, op: Operation, barrier: Barrier, parity: int) -> Waits:
        yield from super().wait(op, barrier, parity)
        with suppress(NeverComes, Fault):
            yield from Waiting.wait(self, op, barrier, parity)

    def arrive(self, op: Operation, what: str, barrier: Barrier, count: int, bytes: int, narrow: bool = False) -> None:
        super().arrive(op, what, barrier, count, bytes, narrow)
        with suppress(Fault):
            Waiting.arrive(self, op, what, barrier, count, bytes)

    def meet(self, op: Operation, number: int, threads: int, waits: bool) -> Waits:
        yield from super().meet(op, number, threads, waits)
        with suppress(NeverComes, Fault):
            yield from Waiting.meet(self, op, number, threads, waits)

    def cluster(self, op: Operation, what: str, relaxed: bool) -> Waits:
        yield from super().cluster(op, what, relaxed)
        with suppress(NeverComes):
            yield from Waiting.cluster(self, op, what, relaxed)

    def tensor_commit(self, op: Operation, barriers: list[Barrier], lanes: int) -> None:
        super().tensor_commit(op, barriers, lanes)
        self._come(barriers, lanes, 0)

    def tensor_alloc(self, op: Operation, columns: int, pointer: Pointer, pair: bool) -> None:
        """Leave the address: a kernel that allocates once has all columns from 0 on."""
        super().tensor_alloc(op, columns, pointer, pair)
        self._keep(View(pointer, Lay(1, 0), 32, kind="i32"), 0, self.place.rank)

    def _come(self, barriers: list[Barrier], count: int, bytes: int) -> None:
        for barrier in barriers:
            with suppress(Fault):
                barrier_at(self, barrier).arrive(count, -bytes)

    # --- shared memory -------------------------------------------------------------------------------------------

    def add(self, what: str, op: Operation, **fields: Any) -> None:
        super().add(what, op, **fields)
        if what in WRITES:
            for rank, covers in fields.get("targets", ()):
                self._forget(rank, covers)
        if what == "load":
            self._come(list(fields["barriers"]), 0, fields["bytes"])

    def _forget(self, rank: int, covers: int) -> None:
        cta = None if rank == NO_CTA or self.cta is None else self.cta.cluster.ctas[rank]
        if cta is not None and cta.holds and covers:
            bits = np.frombuffer(covers.to_bytes(-(-covers.bit_length() // 8), "little"), np.uint8)
            gone = np.repeat(np.unpackbits(bits, bitorder="little").astype(bool), GRANULE)[:SMEM_BYTES]
            cta.known[: len(gone)] &= ~gone

    def _places(self, view: View) -> np.ndarray | None:
        """(32 or 1, elements, bytes of each): where integers lie; None of others, or where that is not known."""
        address, size = view.pointer.address, view.bits // 8
        is_integer = view.kind and not types.is_float(view.kind)
        if self.cta is None or not is_integer or not size or not isinstance(address, (int, np.integer, np.ndarray)):
            return None
        found = view.swizzle(view.addresses())[..., None] + np.arange(size)
        return found if found.min() >= 0 and found.max() < SMEM_BYTES else None

    def _keep(self, view: View, value: Any, rank: int) -> None:
        places = self._places(view)
        if places is None or not isinstance(value, (int, np.integer, np.ndarray)):
            return
        of = np.asarray(value, np.int64)
        of = of[:, None] if of.ndim == 1 else of
        count = places.shape[1], places.shape[2]
        kept = np.ascontiguousarray(np.broadcast_to(of, (LANES, count[0])).astype(f"<i{count[1]}"))
        cta = self.cta.cluster.ctas[rank]
        at = np.broadcast_to(places, (LANES, *count))[self.active]
        cta.bytes[at] = kept.view(np.uint8).reshape(LANES, *count)[self.active]
        cta.known[at] = cta.holds = True

    def _kept(self, view: View) -> Any:
        """An integer of all lanes, (32, elements) integers, or UNKNOWN."""
        places = self._places(view)
        if places is None or not self.cta.holds or not self.cta.known[places][self.active[: len(places)]].all():
            return UNKNOWN
        size = places.shape[2]
        found = np.ascontiguousarray(self.cta.bytes[places]).view(f"<i{size}")[..., 0].astype(np.int64)
        return int(found[0, 0]) if found.size == 1 else np.broadcast_to(found, (LANES, found.shape[1]))

    def load(self, op: Operation, view: View) -> Any:
        found = super().load(op, view)
        if found is not UNKNOWN or view.pointer.space != "smem" or view.pointer.cta is not None:
            return found
        found = self._kept(view)
        whole = not isinstance(found, np.ndarray) or op.result_types[0].startswith("vector<")
        return found if whole else found[:, 0]

    def store(self, op: Operation, view: View, value: Any) -> None:
        super().store(op, view, value)
        if view.pointer.space == "smem":
            self._keep(view, value, self.place.rank)

    def copy(self, op: Operation, source: View, target: View, bits: int, mask: Any, later: bool) -> None:
        super().copy(op, source, target, bits, mask, later)
        if later or mask is not None:
            return
        if target.pointer.space == "smem" and source.pointer.space == "rmem":
            self._keep(target, self._held(source), self.place.rank)
        elif target.pointer.space == "rmem" and source.pointer.space == "smem":
            self._put(target, self._kept(source))

    def store_to_cluster(self, op: Operation, source: View, target: View, cta: int, barrier: Barrier) -> None:
        super().store_to_cluster(op, source, target, cta, barrier)
        self._keep(target, self._held(source), cta)


@dataclass
class Going:
    """A warp on its way."""

    warp: InTurn
    steps: Waits
    ready: Callable[[], bool] = lambda: True


def warps_in_turn(
    trace: Trace, made: Launch, shared: Names, number: int, kind: type[InTurn]
) -> tuple[dict[tuple[int, int], InTurn], CannotFollow | None]:
    """The warps of one cluster by (rank of the CTA, number), followed to their ends; and what stopped them.

    A warp that is pushed past a wait may come to what is not followed, a number that never came. What was recorded
    until then is enough to see that the wait does not end.

    Args:
        trace: what was traced.
        made: the launch.
        shared: what its warps look up once for all.
        number: the cluster's in the grid, along x.
        kind: of an `InTurn`.

    Raises:
        CannotFollow: the kernel does something that is not followed; the message names it and its line.
    """
    body, warps = trace.kernel(made.kernel), -(-made.threads // LANES)
    cluster = Cluster(ClusterBarrier(warps * made.ctas))
    found = {}
    for rank in range(made.ctas):
        cluster.ctas.append(Cta(cluster))
        place = made.place(number, rank)
        for warp in range(warps):
            at = Place(made.grid, made.cluster, made.block, place, warp)
            found[rank, warp] = kind(at, shared, cluster.ctas[rank])
    going = [Going(each, each.go(body, made.arguments)) for each in found.values()]
    pushed = False
    while going:
        moved = [one for one in going if one.ready()]
        pushed |= not moved
        for one in moved or going[:1]:
            try:
                if not _goes_on(one, pushed=not moved):
                    going.remove(one)
            except CannotFollow as error:
                if not pushed:
                    raise
                return found, error
    return found, None


def _goes_on(one: Going, pushed: bool) -> bool:
    """A warp as far as its next wait; whether there is one. pushed: what it waits for never comes."""
    try:
        one.ready = one.steps.throw(NeverComes()) if pushed else next(one.steps)
    except StopIteration:
        return False
    return True
