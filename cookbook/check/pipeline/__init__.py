"""Do a kernel's warps wait for one another as they should, in whatever order the hardware runs them?

`explore` follows a GEMM's kernel, as CuTe traced it, for small problems, and checks every barrier, every stage of
shared memory and every exit for *all* interleavings of its warps: see docs/pipelines.md.

* `recorder`: the events of one warp; `regions`: the bytes that they touch
* `programs`: the events of all warps of a cluster, for one problem
* `swizzles`: the tensors in shared memory against `smem_layouts`
* `overlap`: waits and barriers that are right and cost time for nothing
* `repair`: a single step that makes every rule hold
* `roles`: who waits for whom, for a reader
* `machine`: the rules, checked with vector clocks; `counterexample`: a fault in words
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cookbook.check.findings import Finding
from cookbook.check.pipeline.counterexample import explain
from cookbook.check.pipeline.machine import Fault, Machine
from cookbook.check.pipeline.overlap import large_grids, slow_steps
from cookbook.check.pipeline.programs import (
    Launch,
    Problem,
    Programs,
    at_rest,
    host_arguments,
    launched,
    of_cluster,
    of_grid,
)
from cookbook.check.pipeline.repair import Repair, repaired, said
from cookbook.check.pipeline.swizzles import forgotten_swizzles
from cookbook.recipe.catalog import Recipe
from cookbook.simulate import flags, values
from cookbook.simulate.trace import Trace, traced_by
from cookbook.simulate.values import LANES, CannotFollow, UnknownCode

Clusters = list[tuple[int, Programs]]  # a cluster's number in the grid, and its programs
SHARERS = LANES + 4  # clusters that may share a tile
MANY = 8  # times the tiles of a small problem, along M and along N: those of any grid of persistent CTAs

__all__ = [
    "CannotFollow",
    "Explored",
    "Problem",
    "UnknownCode",
    "explore",
    "explored",
    "findings",
    "is_pipelined",
    "problems",
    "programs_of",
    "trace_of",
]


@dataclass(frozen=True)
class Explored:
    """What the interleavings of one cluster's warps showed."""

    problem: Problem
    cluster: int  # its number in the grid
    warps: int
    barriers: int  # in shared memory, of all CTAs of the cluster
    steps: int
    faults: tuple[str, ...]  # in words, each with an order of steps that leads there
    repair: Repair | None = None  # a step that makes every rule hold, if it was asked for and there is one

    @property
    def ok(self) -> bool:
        return not self.faults


def trace_of(module: Any, arch: str, dtype: Any, config: Any, **options: Any) -> Trace:
    """What CuTe traces of a GEMM recipe.

    Args:
        module: a recipe's module.
        arch: a compile target, `"sm_90a"`.
        dtype: a `cutlass` numeric type.
        config: the recipe's `Config`.
        **options: what more its `compile_for` takes: `vec=1`.
    """
    return traced_by(lambda: module.compile_for(arch, dtype, config, **options))


def has_pipeline(trace: Trace) -> bool:
    """Whether anything in the kernel waits: for a barrier, or for cp.async. If not, there is nothing to explore."""
    return any(trace.find(name) for name in ("nvvm.mbarrier.init", "nvvm.barrier", "nvvm.cp.async.wait.group"))


def problems(config: Any, trace: Trace | None = None) -> tuple[Problem, ...]:
    """Small problems that go round the stages and the work tiles in different ways, for one cluster's worth of SMs.

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


def _crowded(module: Any, trace: Trace, config: Any) -> tuple[Problem, ...]:
    """A problem of one tile, for more clusters than a warp has lanes, if as many share it; none of another kernel."""
    if not flags.used(trace):
        return ()
    sms = SHARERS * problems(config)[0].sms
    problem = Problem(config.tile_m, config.tile_n, SHARERS * config.tile_k, sms)
    launch = _launched(module, trace, config, problem)
    return (problem,) if int(np.prod(launch.grid)) > LANES * launch.ctas else ()


def explore(
    module: Any,
    trace: Trace,
    config: Any,
    problem: Problem,
    made: dict[Problem, Clusters] | None = None,
    repairs: bool = False,
) -> list[Explored]:
    """All interleavings of the warps of the first cluster of a launch, and of the last if that is another.

    Those of all clusters together where they wait for flags of one another.

    Args:
        module: the recipe's.
        trace: what `trace_of` returned for it.
        config: the recipe's `Config`, the same.
        problem: the sizes.
        made: the programs of problems that were followed already, of this trace; what is followed here is added.
        repairs: look for a step that mends what is found.

    Raises:
        CannotFollow: the kernel does something that the explorer does not know; the message names it and its line.
    """
    made = {} if made is None else made

    def clusters(of: Problem) -> Clusters:
        if of not in made:
            made[of] = list(_clusters(module, trace, config, of))
        return made[of]

    numbers, programs = zip(*clusters(problem), strict=True)
    machines = [Machine(each) for each in programs]
    faults = [machine.run() for machine in machines]
    first, *others = problems(config, trace)
    if problem == first and not any(faults):
        later = (each for other in others for _, each in clusters(other))
        many = replace(problem, m=MANY * problem.m, n=MANY * problem.n)
        grids = large_grids(lambda sms: _launched(module, trace, config, replace(many, sms=sms)), config, problem.sms)
        faults[0] = slow_steps(machines, later) + grids
    found = [_explored(problem, *each) for each in zip(numbers, machines, faults, strict=True)]
    bad = next((n for n, machine in enumerate(machines) if machine.faults), None) if repairs else None
    if bad is not None:
        rest = (each for other in (first, *others) if other != problem for _, each in clusters(other))
        found[bad] = replace(found[bad], repair=repaired(machines, rest))
    return found


def _launched(module: Any, trace: Trace, config: Any, problem: Problem) -> Launch:
    return launched(trace, host_arguments(module, config, problem))


def _clusters(module: Any, trace: Trace, config: Any, problem: Problem) -> Iterator[tuple[int, Programs]]:
    """Of the first cluster of a launch, and of the last: its number in the grid, and its programs; or of all in one."""
    arguments = host_arguments(module, config, problem)
    resting = at_rest(module, config)
    if flags.used(trace):
        yield 0, of_grid(trace, arguments, resting)
        return
    launch = launched(trace, arguments)
    for number in sorted({0, launch.grid[0] // launch.cluster[0] - 1}):
        yield number, of_cluster(trace, arguments, number, resting)


def programs_of(module: Any, trace: Trace, config: Any, problem: Problem) -> Programs:
    """What each warp of a launch's first cluster waits for and does; of all where clusters wait for one another."""
    _, first = next(_clusters(module, trace, config, problem))
    return first


def _explored(problem: Problem, cluster: int, machine: Machine, faults: list[Fault]) -> Explored:
    return Explored(
        problem,
        cluster,
        warps=len(machine.warps),
        barriers=len(machine.barriers),
        steps=len(machine.trace),
        faults=tuple(explain(machine, fault) for fault in faults),
    )


def explored(module: Any, arch: str, dtype: Any, config: Any, repairs: bool = False) -> list[Explored]:
    """A kernel's interleavings for each of `problems`, up to the first that has a fault; none without a pipeline.

    Args:
        module: a GEMM recipe's module.
        arch: a compile target, `"sm_90a"`.
        dtype: a `cutlass` numeric type.
        config: the recipe's `Config`.
        repairs: look for a step that mends what is found.

    Raises:
        CannotFollow: as `explore`.
    """
    trace = trace_of(module, arch, dtype, config)
    if faults := forgotten_swizzles(module, trace, dtype, config):
        return [Explored(problems(config)[0], 0, warps=0, barriers=0, steps=0, faults=tuple(faults))]
    found: list[Explored] = []
    made: dict[Problem, Clusters] = {}
    for problem in (*problems(config, trace), *_crowded(module, trace, config)) if has_pipeline(trace) else ():
        try:
            found += explore(module, trace, config, problem, made, repairs)
        except values.Fault as fault:
            found.append(Explored(problem, 0, warps=0, barriers=0, steps=0, faults=(str(fault),)))
        if not all(one.ok for one in found):
            break
    return found


def findings(found: list[Explored]) -> list[Finding]:
    """What was explored, as lines of a level: a fault is told once, with an order of steps that leads there."""
    told: dict[str, str] = {}  # faults, by where each was told
    lines = []
    for one in found:
        name = f"{one.problem}, cluster {one.cluster}"
        text = "".join(one.faults[:1]) + (f"\n  {said(one.repair)}" if one.repair else "")
        detail = f"as in {told[text]}" if text in told else text
        told.setdefault(text, name)
        detail = detail if text else f"{one.warps} warps, {one.barriers} mbarriers, {one.steps} steps"
        lines.append(Finding(name, one.ok, detail))
    return lines


def is_pipelined(recipe: Recipe) -> bool:
    """Whether a recipe's source speaks of barriers or of cp.async, so that there should be something to explore."""
    waits = re.search(r"pipeline\.Pipeline\w+|mbarrier_|cp_async_|sync_threads", recipe.source)
    return "pipeline" in recipe.product.levels and waits is not None
