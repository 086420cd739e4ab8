"""Trace one kernel of a recipe once for all levels that follow it, and follow its warps once for all judges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cookbook.check.pipeline.programs import (
    Followed,
    Launch,
    Problem,
    Programs,
    at_rest,
    host_arguments,
    launched,
    of_grid,
    programs,
    warps_of,
)
from cookbook.check.pipeline.recorder import Names, Recorder
from cookbook.simulate import flags
from cookbook.simulate.trace import Trace, traced_by

__all__ = ["Run", "problems"]


def problems(config: Any, trace: Trace | None = None) -> tuple[Problem, ...]:
    """Choose small problems that go round stages and work tiles in different ways, for one cluster's worth of SMs.

    Work tiles of a persistent CTA and k-tiles: more k-tiles than stages, and not a multiple; one; fewer.
    One number of k-tiles is even and one is odd.
    The fourth is full nowhere: its tiles end outside of C, its last cluster has tiles for one row of CTAs alone, its
    k-tiles are no whole number of splits, and the last one ends behind K. Where K is split, the fifth has fewer k-tiles
    than splits. Where clusters wait for one another, there are seven: more than work tiles, and no divisor of k-tiles.
    """
    down, across = (getattr(config, f"cluster_{x}", getattr(config, f"pairs_{x}", 1)) for x in "mn")
    m, n, sms = config.tile_m * down, config.tile_n * across, getattr(config, "cluster", down * across)
    few, many, splits = max(config.stages - 1, 1), max(config.stages + 2, 4), getattr(config, "split_k", 1)
    ragged = (m + config.tile_m // 2, n + 64, 2 * config.stages * splits + 1)
    chosen = [(3 * m, n, many * splits), (4 * m, n, splits), (5 * m, n, few * splits), ragged]
    if splits > 1:
        chosen.append((m, n, 1))
    sizes = [(m, n, k_tiles * config.tile_k) for m, n, k_tiles in chosen]
    sizes[3] = (*sizes[3][:2], sizes[3][2] - config.tile_k // 2)
    sms *= 7 if trace is not None and flags.used(trace) else 1
    return tuple(Problem(*size, sms) for size in sizes)


@dataclass
class Run:
    """A kernel with its traces, each made once.

    Args:
        module: a GEMM recipe's module.
        arch: a compile target, `"sm_90a"`.
        dtype: a `cutlass` numeric type.
        config: the recipe's `Config`.
        product: what it computes, a `cookbook.products.base.Product`; a product of two matrices if left out.
        counter: follows the first cluster of the first problem: a `Recorder` that counts besides.
    """

    module: Any
    arch: str
    dtype: Any
    config: Any
    product: Any = None
    counter: type[Recorder] = Recorder
    _traces: dict[Any, Trace] = field(default_factory=dict, repr=False)
    _first: list[Any] = field(default_factory=list, repr=False)

    @property
    def trace(self) -> Trace:
        """Return the trace of the kernel of `config`."""
        return self.traced(self.config)

    def traced(self, config: Any, options: tuple[tuple[str, Any], ...] = ()) -> Trace:
        """Return the trace for a configuration, and for further arguments of `compile_for`."""
        if (config, options) not in self._traces:
            given = self.arch, self.dtype, config
            self._traces[config, options] = traced_by(lambda: self.module.compile_for(*given, **dict(options)))
        return self._traces[config, options]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the problems whose warps are followed."""
        return problems(self.config, self.trace)

    def launched(self, problem: Problem) -> Launch:
        """Return what the host function launches for a problem."""
        return self._launched(problem)[0]

    def warps(self, problem: Problem, number: int = 0, kind: type[Followed] = Recorder) -> list[Followed]:  # type: ignore[assignment]
        """Follow the warps of one cluster of a launch, each to its end.

        Raises:
            CannotFollow: the kernel does something that is not followed; the message names it and its line.
        """
        return [each for _, each in warps_of(self.trace, *self._launched(problem), number, kind=kind)]

    def clusters(self, problem: Problem) -> Iterator[tuple[int, Programs]]:
        """Follow the first cluster of a launch, and the last: the number in the grid, and the programs.

        All in one where clusters wait for flags of one another. Errors as of `warps`.
        """
        made, shared = self._launched(problem)
        resting, together = at_rest(self.module, self.config), flags.used(self.trace)
        last = made.grid[0] // made.cluster[0] - 1
        each = []
        for number in range(last + 1) if together else sorted({0, last}):
            counts = not number and problem == self.problems[0]
            found = list(warps_of(self.trace, made, shared, number, resting, self.counter if counts else Recorder))
            if counts:
                self._first = [warp for _, warp in found]
                for warp in self._first:
                    warp.values.clear()  # its events and counts are enough
            one = programs(made, found)
            if together:
                each.append(one)
            else:
                yield number, one
        if together:
            yield 0, of_grid(each)

    @property
    def first(self) -> list[Any]:
        """Return the counters that followed the first cluster of the first problem."""
        if not self._first:
            next(self.clusters(self.problems[0]))
        return self._first

    def _launched(self, problem: Problem) -> tuple[Launch, Names]:
        return launched(self.trace, host_arguments(self.module, self.config, problem))
