"""The launch of a host function: grid, cluster, block, and the arguments of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.simulate import (  # noqa: F401, their handlers
    assembly,
    copies,
    described,
    multiply,
    partitions,
    raw,
    takeover,
    waits,
)
from cookbook.simulate.trace import Operation, Trace
from cookbook.simulate.values import UNKNOWN, CannotFollow
from cookbook.simulate.warp import Place, Warp, handles


@dataclass(frozen=True)
class Launch:
    """The launch that the host function asked for."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]
    dependent: bool  # programmatic dependent launch
    kernel: str = ""

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return int(np.prod(self.block))

    @property
    def ctas(self) -> int:
        """CTAs of a cluster."""
        return int(np.prod(self.cluster))

    def place(self, number: int, rank: int) -> tuple[int, int, int]:
        """The index in the grid of a CTA of a cluster, the clusters counted along x first."""
        wide = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        first = (number % wide[0], number // wide[0] % wide[1], number // (wide[0] * wide[1]))
        x, y, _ = self.cluster
        inside = (rank % x, rank // x % y, rank // (x * y))
        a, b, c = (f * k + i for f, k, i in zip(first, self.cluster, inside, strict=True))
        return a, b, c


@handles("cuda.launch_cfg.create")
def _launch(f: Warp, op: Operation, args: list[Any]) -> Any:
    f.config = {"block": tuple(args[:3]), "grid": tuple(args[4:7]), "cluster": (1, 1, 1), "dependent": 0}
    return f.config


@handles("cuda.launch_cfg.cluster_dim")
def _launch_cluster(f: Warp, op: Operation, args: list[Any]) -> None:
    f.config["cluster"] = tuple(args[1:4])


@handles("cuda.launch_cfg.preferred_cluster_dim")
def _launch_preferred(f: Warp, op: Operation, args: list[Any]) -> None:
    """Where there is room for it; else clusters are of the other shape. Both are launches that may be."""
    f.config["preferred"] = tuple(args[1:4])


@handles("cuda.launch_cfg.programmatic_stream_serialization_allowed")
def _launch_dependent(f: Warp, op: Operation, args: list[Any]) -> None:
    f.config["dependent"] = args[1]


@handles("cuda.launch_cfg.cooperative", "cuda.return_if_error", "cuda.launch_cfg.priority")
def _launch_more(f: Warp, op: Operation, args: list[Any]) -> None:
    """Says nothing about what a kernel waits for."""


@handles("cuda.launch_ex")
def _launch_it(f: Warp, op: Operation, args: list[Any]) -> Any:
    f.config |= {"arguments": tuple(args[1:]), "kernel": op.attributes["callee"][-1]}
    f.launches.append(f.config)
    f.config = {}
    return UNKNOWN


@handles("cute.kernel_smem_size")
def _smem_size(f: Warp, op: Operation, args: list[Any]) -> int:
    """That it fits, the level *compiled* looks at."""
    return 0


class NoLaunch(CannotFollow):
    """The host function ended without a launch."""


CLUSTERS = ("cluster", "preferred")  # shapes of clusters that a launch may have
HOST = Place((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0), 0)  # where the host function is followed


def launched(warp: Warp, trace: Trace, arguments: list[Any]) -> Launch:
    """Return what the host function launches, the last if there are several.

    Args:
        warp: what follows it, at `HOST`.
        trace: what was traced.
        arguments: of the host function.
    """
    return all_launched(warp, trace, arguments)[-1]


def all_launched(warp: Warp, trace: Trace, arguments: list[Any]) -> list[Launch]:
    """All that the host function launches, in order; arguments as of `launched`."""
    host = trace.host
    if len(arguments) != len(host.arguments):
        raise CannotFollow(f"a host function of {len(host.arguments)} arguments; {len(arguments)} are known")
    warp.run(host, arguments)
    if not warp.launches:
        raise NoLaunch("the host function: got no launch; needed one")
    either = (found | {"cluster": found[key]} for found in warp.launches for key in CLUSTERS if key in found)
    return [_launch_of(warp, found) for found in either]


def _launch_of(warp: Warp, found: dict[str, Any]) -> Launch:
    grid, cluster, block = (_three(warp, found[key], f"the {key}") for key in ("grid", "cluster", "block"))
    return Launch(grid, cluster, block, found["arguments"], bool(found["dependent"]), found["kernel"])


def _three(warp: Warp, sizes: Any, what: str) -> tuple[int, int, int]:
    x, y, z = (warp.integer(size, what) for size in sizes)
    return x, y, z
