"""Follow barriers: in shared memory, named ones, the cluster's. One legal order is followed.

That orders do not matter, the level *pipeline* shows. So copies and MMAs end at once here, and a wait for them passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cookbook.check.product.access import read, write
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import LANES, Fault, View
from cookbook.simulate.warp import Barrier, Waits


@dataclass
class MBarrier:
    """PTX ISA, "mbarrier": a phase is over when as many have arrived as it is for, and all expected bytes."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def arrive(self, count: int = 1, bytes: int = 0) -> None:
        """Arrivals that expect bytes, or with a negative number bring them."""
        self.pending -= count
        self.bytes += bytes
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count


@dataclass
class Named:
    """PTX ISA, "barrier": one of a CTA's sixteen."""

    come: int = 0
    generation: int = 0


@dataclass
class ClusterBarrier:
    """barrier.cluster: all warps of all CTAs."""

    warps: int
    come: int = 0
    generation: int = 0


@dataclass
class Barriers:
    """The barriers of one CTA."""

    memory: dict[int, MBarrier] = field(default_factory=dict)
    named: dict[int, Named] = field(default_factory=dict)


def barrier_at(f: Any, barrier: Barrier) -> MBarrier:
    """The barrier of a CTA of the cluster.

    Raises:
        Fault: none was initialised there.
    """
    cta, address = barrier
    found = f.cta.cluster.ctas[cta].barriers.memory.get(address)
    if found is None:
        raise Fault(f"a barrier at byte {address} of shared memory that was not initialised")
    return found


class Waiting(Judge):
    """A warp that waits until others have come. What ends later ends at once here, so groups and fences are nothing."""

    cta: Any
    generation: int

    def init(self, op: Operation, barrier: Barrier, count: int) -> None:
        self.cta.barriers.memory[barrier[1]] = MBarrier(count, count)

    def look(self, op: Operation, barrier: Barrier, parity: int) -> int:
        return int(barrier_at(self, barrier).phase & 1 != parity)

    def wait(self, op: Operation, barrier: Barrier, parity: int) -> Waits:
        found = barrier_at(self, barrier)
        while found.phase & 1 == parity:
            yield lambda: found.phase & 1 != parity

    def arrive(self, op: Operation, what: str, barrier: Barrier, count: int, bytes: int, narrow: bool = False) -> None:
        barrier_at(self, barrier).arrive(0 if what == "expect" else count, bytes)

    def meet(self, op: Operation, number: int, threads: int, waits: bool) -> Waits:
        if not 0 <= number < 16:
            raise Fault(f"named barrier: got number {number}; needed 0 to 15")
        barrier = self.cta.barriers.named.setdefault(number, Named())
        barrier.come += LANES
        generation = barrier.generation
        if barrier.come >= threads:
            barrier.come -= threads
            barrier.generation += 1
        elif waits:
            yield lambda: barrier.generation > generation

    def cluster(self, op: Operation, what: str, relaxed: bool) -> Waits:
        barrier = self.cta.cluster.barrier
        if what == "cluster wait":
            generation = self.generation
            if barrier.generation <= generation:
                yield lambda: barrier.generation > generation
            return
        self.generation = barrier.generation
        barrier.come += 1
        if barrier.come == barrier.warps:
            barrier.come = 0
            barrier.generation += 1

    def order(self, op: Operation, what: str, count: int = 0, flag: bool = False) -> None:
        """Orders what ends at once here."""

    def flag(self, op: Operation, what: str, place: View, value: Any) -> Waits:
        """A release stores the value; an acquire waits until the flag of each active lane has come to its own."""
        if what == "release":
            write(self, place, np.broadcast_to(np.asarray(value, np.int64), (LANES,))[:, None])
        elif not (come := self._come(place, value))():
            yield come

    def _come(self, place: View, value: Any) -> Callable[[], bool]:
        active = self.active

        def come() -> bool:
            before, self.active = self.active, active
            found = read(self, place)[:, 0] - value
            self.active = before
            return bool((found[active] >= 0).all())

        return come
