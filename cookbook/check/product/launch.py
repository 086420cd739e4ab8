"""Runs a launch: its clusters, their CTAs, the warps of each, taking turns where they wait.

As many clusters are there at once as the SMs of the problem hold. When one has ended the next one of the grid begins,
unless another has taken its work over.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cookbook.check.pipeline.interpreter import LANES, Place
from cookbook.check.pipeline.programs import Problem
from cookbook.check.pipeline.reading import Module, Operation, Region
from cookbook.check.pipeline.shapes import UNKNOWN, CannotFollow
from cookbook.check.product.barriers import Barriers, ClusterBarrier
from cookbook.check.product.follower import HANDLERS, Fault, Follower, follows
from cookbook.check.product.memory import SMEM_BYTES, Memory, Operand, Scratch, Stored, TensorMemory
from cookbook.check.product.sums import Sums


@dataclass
class Cta:
    """What the warps of a CTA share."""

    cluster: Cluster
    rank: int
    memory: Memory = field(default_factory=lambda: Memory(SMEM_BYTES))
    tensor: TensorMemory = field(default_factory=TensorMemory)
    barriers: Barriers = field(default_factory=Barriers)


@dataclass
class Cluster:
    """What the CTAs of a cluster share."""

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


class Launch:
    """One launch of a kernel, and all that its warps share."""

    def __init__(self, operands: dict[str, Operand], sums: Sums, sms: int, tables: dict[str, tuple[int, ...]]) -> None:
        self.operands = operands
        self.tables = tables
        self.sms = sms
        self.sums = sums
        self.stored = Stored(operands["C"])
        self.scratch: list[Scratch] = []
        self.memo: dict[Any, Any] = {}
        self.constants: dict[int, Any] = {}
        self._known: dict[Any, Any] = {}
        self.waiting: list[int] = []  # clusters that have not begun

    def known(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once in a launch."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def constant(self, op: Operation, f: Follower) -> Any:
        """The result of an operation without operands."""
        key = id(op)
        if key not in self.constants:
            self.constants[key] = HANDLERS[op.name](f, op, [])
        return self.constants[key]

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self, body: Region, shape: Shape) -> None:
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

    def _begin(self, number: int, body: Region, shape: Shape) -> Cluster:
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


@dataclass(frozen=True)
class Shape:
    """What the host function asked for."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]
    kernel: str

    @property
    def ctas(self) -> int:
        """Of a cluster."""
        return int(np.prod(self.cluster))

    def place(self, number: int, rank: int) -> tuple[int, int, int]:
        """The index in the grid of a CTA of a cluster, the clusters counted along x first."""
        wide = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        first = (number % wide[0], number // wide[0] % wide[1], number // (wide[0] * wide[1]))
        x, y, _ = self.cluster
        inside = (rank % x, rank // x % y, rank // (x * y))
        a, b, c = (f * k + i for f, k, i in zip(first, self.cluster, inside, strict=True))
        return a, b, c


# --- the host function -------------------------------------------------------------------------------------------


@follows("cuda.launch_cfg.create")
def _create(f: Follower, op: Operation, args: list[Any]) -> Any:
    f.config |= {"block": tuple(args[:3]), "grid": tuple(args[4:7]), "cluster": (1, 1, 1)}
    return f.config


@follows("cuda.launch_cfg.cluster_dim")
def _cluster_dim(f: Follower, op: Operation, args: list[Any]) -> None:
    f.config["cluster"] = tuple(args[1:4])


@follows("cuda.launch_cfg.cooperative", "cuda.return_if_error", "cuda.launch_cfg.priority")
@follows("cuda.launch_cfg.programmatic_stream_serialization_allowed")
def _launch_more(f: Follower, op: Operation, args: list[Any]) -> None:
    """Says nothing about what a kernel computes."""


@follows("cute.kernel_smem_size")
def _smem_size(f: Follower, op: Operation, args: list[Any]) -> int:
    """That it fits, the level *compiled* looks at."""
    return 0


@follows("cuda.launch_ex")
def _launch_it(f: Follower, op: Operation, args: list[Any]) -> Any:
    f.config["arguments"] = tuple(args[1:])
    f.config["kernel"] = re.search(r"callee = @\w+::@(\w+)", op.properties)[1]  # type: ignore[index]
    return UNKNOWN


def launch(trace: Module, arguments: list[Any], going: Launch) -> None:
    """Runs what the host function launches.

    Args:
        trace: what was traced.
        arguments: of the host function.
        going: what the launch is to use and to fill.
    """
    host = trace.find("func.func")[0].regions[0]
    f = Follower(Place((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0), 0), None, going)
    if len(arguments) != len(host.arguments):
        raise CannotFollow(f"a host function of {len(host.arguments)} arguments; {len(arguments)} are known")
    f.run(host, arguments)
    found = f.config
    if "kernel" not in found:
        raise Fault("the host function: got no launch; needed one")
    sizes = []
    for key in ("grid", "cluster", "block"):
        x, y, z = (f.integer(size, f"the {key}") for size in found[key])
        sizes.append((x, y, z))
    shape = Shape(sizes[0], sizes[1], sizes[2], found["arguments"], found["kernel"])
    kernels = [k for k in trace.find("cuda.kernel") if f'sym_name = "{shape.kernel}"' in k.properties]
    going.run((kernels or trace.find("cuda.kernel"))[0].regions[0], shape)


__all__ = ["Launch", "Problem", "launch"]
