"""Runs a launch: its clusters, their CTAs, the warps of each, taking turns where they wait.

As many clusters are there at once as the SMs of the problem hold. When one has ended the next one of the grid begins,
unless another has taken its work over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cookbook.check.product.barriers import Barriers, ClusterBarrier
from cookbook.check.product.follower import Follower
from cookbook.check.product.memory import SMEM_BYTES, Memory, Operand, Scratch, Stored, TensorMemory
from cookbook.check.product.sums import Sums
from cookbook.simulate import launch as launches
from cookbook.simulate.launch import HOST, NoLaunch, launched
from cookbook.simulate.trace import Region, Trace
from cookbook.simulate.values import LANES, Fault
from cookbook.simulate.warp import Place, Shared


@dataclass
class Cta:
    """Values that the warps of a CTA share."""

    cluster: Cluster
    rank: int
    memory: Memory = field(default_factory=lambda: Memory(SMEM_BYTES))
    tensor: TensorMemory = field(default_factory=TensorMemory)
    barriers: Barriers = field(default_factory=Barriers)


@dataclass
class Cluster:
    """Values that the CTAs of a cluster share."""

    number: int
    barrier: ClusterBarrier
    ctas: list[Cta] = field(default_factory=list)
    going: list[Warp] = field(default_factory=list)


@dataclass
class Warp:
    """A warp on its way."""

    follower: Follower
    steps: Any  # a generator
    ready: Callable[[], bool] = lambda: True


class Launch(Shared):
    """One launch of a kernel, and all that its warps share."""

    def __init__(self, operands: dict[str, Operand], sums: Sums, sms: int) -> None:
        super().__init__()
        self.operands = operands
        self.sms = sms
        self.sums = sums
        self.stored = Stored(operands["C"])
        self.scratch: list[Scratch] = []
        self.words: Any = None  # of a packed weight: `words.Words`
        self._known: dict[Any, Any] = {}
        self.waiting: list[int] = []  # clusters that have not begun

    def known(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, made once in a launch."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self, body: Region, shape: launches.Launch) -> None:
        """Until all clusters have ended.

        Raises:
            Fault: the kernel does what it must not, or no warp can go on.
            CannotFollow: it does something that the checker does not know.
        """
        self.shape = shape
        if any(extent % each for extent, each in zip(shape.grid, shape.cluster, strict=True)):
            raise Fault(f"grid: got {shape.grid}; needed whole clusters of {shape.cluster}")
        clusters = int(np.prod(shape.grid)) // shape.ctas
        self.waiting = list(range(clusters))
        at_once = max(1, self.sms // shape.ctas)
        there: list[Cluster] = []
        while self.waiting or there:
            while self.waiting and len(there) < at_once:
                there.append(self._begin(self.waiting.pop(0), body, shape))
            moved = [self._go(cluster) for cluster in there]
            if not any(moved):
                raise Fault(_stuck(there))
            there = [cluster for cluster in there if cluster.going]

    def _begin(self, number: int, body: Region, shape: launches.Launch) -> Cluster:
        warps = -(-int(np.prod(shape.block)) // LANES)
        cluster = Cluster(number, ClusterBarrier(warps * shape.ctas))
        for rank in range(shape.ctas):
            cta = Cta(cluster, rank)
            cluster.ctas.append(cta)
            at = shape.place(number, rank)
            for warp in range(warps):
                follower = Follower(Place(shape.grid, shape.cluster, shape.block, at, warp), cta, self)
                cluster.going.append(Warp(follower, follower.go(body, shape.arguments)))
        return cluster

    @staticmethod
    def _go(cluster: Cluster) -> bool:
        """Each warp until it waits; whether any went on."""
        moved = False
        for warp in list(cluster.going):
            if not warp.ready():
                continue
            moved = True
            try:
                warp.ready = next(warp.steps)
            except StopIteration:
                cluster.going.remove(warp)
        return moved


def _stuck(there: list[Cluster]) -> str:
    warp = there[0].going[0].follower
    return (
        f"line {warp.line}: warp {warp.place.warp} of CTA {warp.place.cta[0]} waits for ever, and no other warp can go "
        "on: see level pipeline"
    )


def launch(trace: Trace, arguments: list[Any], going: Launch) -> None:
    """Runs what the host function launches.

    Args:
        trace: what was traced.
        arguments: of the host function.
        going: what the launch is to use and to fill.
    """
    try:
        shape = launched(Follower(HOST, None, going), trace, arguments)
    except NoLaunch as error:
        raise Fault(str(error)) from None
    going.run(trace.kernel(shape.kernel), shape)


__all__ = ["Launch", "launch"]
