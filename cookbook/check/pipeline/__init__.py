"""Do a kernel's warps wait for one another as they should, in whatever order the hardware runs them?

`explore` follows a GEMM's kernel, as CuTe traced it, for small problems, and checks every barrier, every stage of
shared memory and every exit for *all* interleavings of its warps: see docs/pipelines.md.

* `recorder`: the events of one warp; `regions`: the bytes that they touch
* `programs`: the events of all warps of a cluster, for one problem
* `run`: a kernel, traced and followed once for all levels
* `swizzles`: the tensors in shared memory against `smem_layouts`
* `overlap`: waits and barriers that are right and cost time for nothing
* `repair`: a single step that makes every rule hold
* `machine`: the rules, checked with vector clocks; `counterexample`: a fault in words
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from cookbook.check.findings import Finding
from cookbook.check.pipeline.counterexample import explain
from cookbook.check.pipeline.machine import Fault, Machine
from cookbook.check.pipeline.overlap import large_grids, slow_steps
from cookbook.check.pipeline.programs import Problem, Programs
from cookbook.check.pipeline.repair import Repair, repaired, said
from cookbook.check.pipeline.run import Run, problems
from cookbook.check.pipeline.swizzles import forgotten_swizzles
from cookbook.recipe.catalog import Recipe
from cookbook.simulate import flags, values
from cookbook.simulate.trace import Trace
from cookbook.simulate.values import LANES, CannotFollow, UnknownCode

Clusters = list[tuple[int, Programs]]  # a cluster's number in the grid, and its programs
SHARERS = LANES + 4  # clusters that may share a tile
MANY = 8  # times the tiles of a small problem, along M and along N: those of any grid of persistent CTAs

__all__ = [
    "CannotFollow",
    "Explored",
    "Problem",
    "Run",
    "UnknownCode",
    "explore",
    "explored",
    "findings",
    "is_pipelined",
    "problems",
]


@dataclass(frozen=True)
class Explored:
    """Findings of the interleavings of one cluster's warps."""

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


def has_pipeline(trace: Trace) -> bool:
    """Return whether anything in the kernel waits: for a barrier, or for cp.async. If not, there is nothing to
    explore."""
    return any(trace.find(name) for name in ("nvvm.mbarrier.init", "nvvm.barrier", "nvvm.cp.async.wait.group"))


def _crowded(run: Run) -> tuple[Problem, ...]:
    """A problem of one tile, for more clusters than a warp has lanes, if as many share it; none of another kernel."""
    if not flags.used(run.trace):
        return ()
    config = run.config
    problem = Problem(config.tile_m, config.tile_n, SHARERS * config.tile_k, SHARERS * problems(config)[0].sms)
    launch = run.launched(problem)
    return (problem,) if int(np.prod(launch.grid)) > LANES * launch.ctas else ()


def explore(
    run: Run, problem: Problem, made: dict[Problem, Clusters] | None = None, repairs: bool = False
) -> list[Explored]:
    """All interleavings of the warps of the first cluster of a launch, and of the last if that is another.

    Those of all clusters together where they wait for flags of one another.

    Args:
        run: the kernel.
        problem: the sizes.
        made: the programs of problems that were followed already; what is followed here is added.
        repairs: look for a step that mends what is found.

    Raises:
        CannotFollow: the kernel does something that the explorer does not know; the message names it and its line.
    """
    made = {} if made is None else made

    def clusters(of: Problem) -> Clusters:
        if of not in made:
            made[of] = list(run.clusters(of))
        return made[of]

    numbers, programs = zip(*clusters(problem), strict=True)
    machines = [Machine(each) for each in programs]
    faults = [machine.run() for machine in machines]
    first, *others = run.problems
    if problem == first and not any(faults):
        later = (each for other in others for _, each in clusters(other))
        many = replace(problem, m=MANY * problem.m, n=MANY * problem.n)
        grids = large_grids(lambda sms: run.launched(replace(many, sms=sms)), run.config, problem.sms)
        faults[0] = slow_steps(machines, later) + grids
    found = [_explored(problem, *each) for each in zip(numbers, machines, faults, strict=True)]
    bad = next((n for n, machine in enumerate(machines) if machine.faults), None) if repairs else None
    if bad is not None:
        rest = (each for other in (first, *others) if other != problem for _, each in clusters(other))
        found[bad] = replace(found[bad], repair=repaired(machines, rest))
    return found


def _explored(problem: Problem, cluster: int, machine: Machine, faults: list[Fault]) -> Explored:
    return Explored(
        problem,
        cluster,
        warps=len(machine.warps),
        barriers=len(machine.barriers),
        steps=len(machine.trace),
        faults=tuple(explain(machine, fault) for fault in faults),
    )


def explored(run: Run, repairs: bool = False) -> list[Explored]:
    """A kernel's interleavings for each of its problems, up to the first that has a fault; none without a pipeline.

    Args:
        run: the kernel.
        repairs: look for a step that mends what is found.

    Raises:
        CannotFollow: as `explore`.
    """
    if faults := forgotten_swizzles(run.module, run.trace, run.dtype, run.config):
        return [Explored(problems(run.config)[0], 0, warps=0, barriers=0, steps=0, faults=tuple(faults))]
    found: list[Explored] = []
    made: dict[Problem, Clusters] = {}
    for problem in (*run.problems, *_crowded(run)) if has_pipeline(run.trace) else ():
        try:
            found += explore(run, problem, made, repairs)
        except values.Fault as fault:
            found.append(Explored(problem, 0, warps=0, barriers=0, steps=0, faults=(str(fault),)))
        if not all(one.ok for one in found):
            break
    return found


def findings(found: list[Explored]) -> list[Finding]:
    """Return what was explored, as lines of a level: a fault is told once, with an order of steps that leads there."""
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
    """Return whether a recipe's source speaks of barriers or of cp.async, so that there should be something to
    explore."""
    waits = re.search(r"pipeline\.Pipeline\w+|mbarrier_|cp_async_|sync_threads", recipe.source)
    return "pipeline" in recipe.product.levels and waits is not None
