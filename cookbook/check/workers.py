"""A check in several processes: the levels that run anywhere side by side, then those of the GPU.

Most of a check is compiling, which is one core's work for a second or so and knows nothing of the next; so worker
processes take the steps between them. What a GPU runs stays here, in the process that began, after the workers are
done, unless several processes are to share the GPU: running shapes, ncu and the sanitizers are mostly a CPU's work, and
what they find does not depend on who else uses the GPU. Times do. Whatever is timed runs last, here and alone.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import groupby
from typing import Any, NamedTuple

from cookbook.check import levels as checking
from cookbook.check import subjects
from cookbook.check.levels import Level, Progress, Report, Step
from cookbook.check.subjects import Local
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe

ANYWHERE = ("layout", "model", "product", "host", "pipeline", "compiled")  # the levels that workers take
SHARED = ("ran", "counted", "sanitized")  # those for which several may use the GPU at once
MOST = 4  # workers unless told otherwise: each holds torch and CuTe, about half a GiB
WORTH = 8  # pieces of work below which starting workers, seconds of importing, costs more than it saves


class Planned(NamedTuple):
    """A check that is to be made: `checking.plan`'s arguments, which a worker can be sent, and the steps."""

    recipe: Recipe
    arguments: tuple[Any, ...]  # shapes, dtypes, targets, tools
    steps: list[Step]


class Piece(NamedTuple):
    """What a worker does at once: some steps of a recipe, by their number in its plan."""

    recipe: str
    arguments: tuple[Any, ...]
    numbers: tuple[int, ...]


def planned(recipe: Recipe, *arguments: Any) -> Planned:
    """The plan of a recipe's check; arguments as `checking.plan` takes them."""
    return Planned(recipe, arguments, checking.plan(recipe, *arguments))


def check(
    plans: Sequence[Planned],
    jobs: int | None = None,
    on_progress: Progress = lambda text: None,
    gpu_jobs: int = 1,
    on_level: Callable[[Level], None] = lambda level: None,
) -> list[Report]:
    """Make the checks of `plans`; the reports and their levels are in the order of the plans, whoever made them.

    Args:
        jobs: how many processes work at the levels that need no GPU; 1 is this one alone. If left out, as many as
            there are CPUs that this process may use, up to MOST, where there is enough to do for them.
        on_progress: told "RECIPE  STEP" of each step: before it is done, or when its result is waited for.
        gpu_jobs: how many processes share the GPU at the levels in SHARED; 1 is this one alone.
        on_level: told each level as soon as it is there, in this process.

    Raises:
        ValueError: `jobs` or `gpu_jobs` is less than 1.
    """
    for name, count in (("jobs", jobs), ("gpu_jobs", gpu_jobs)):
        if count is not None and count < 1:
            raise ValueError(f"{name}: got {count}; needed 1 or more")
    work = [piece for plan in plans for piece in pieces(plan)]
    shared = [piece for plan in plans for piece in shared_pieces(plan)] if gpu_jobs > 1 else []
    found: dict[tuple[str, int], list[Level]] = {}
    for some, processes in ((work, jobs or default_jobs(len(work))), (shared, gpu_jobs)):
        if min(processes, len(some)) > 1:
            with ProcessPoolExecutor(min(processes, len(some)), multiprocessing.get_context("spawn"), _begin) as pool:
                _by_workers(pool, some, {plan.recipe.name: plan.steps for plan in plans}, on_progress, on_level, found)
    for plan in plans:
        for number, step in enumerate(plan.steps):
            if (plan.recipe.name, number) not in found:
                on_progress(f"{plan.recipe.name}  {step.text}")
                found[plan.recipe.name, number] = levels = checking.run_step(step)
                for level in levels:
                    on_level(level)
    return [
        Report(
            p.recipe.name,
            tuple(level for n in range(len(p.steps)) for level in found[p.recipe.name, n]),
            subjects.said(p.recipe),
        )
        for p in plans
    ]


def default_jobs(pieces_of_work: int) -> int:
    """How many processes are worth starting for this many pieces of work on this machine."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, MOST) if pieces_of_work >= WORTH else 1


def pieces(plan: Planned) -> list[Piece]:
    """The steps of a plan that run anywhere, divided: layouts and model of a dtype are evaluated once for both."""

    def key(number: int) -> tuple[Any, ...]:
        step = plan.steps[number]
        return (step.dtype,) if step.level in ("layout", "model") else (step.dtype, step.target, number)

    if isinstance(plan.recipe, Local):  # a module is not sent to another process
        return []
    numbers = [number for number, step in enumerate(plan.steps) if step.level in ANYWHERE]
    return [Piece(plan.recipe.name, plan.arguments, tuple(together)) for _, together in groupby(numbers, key)]


def shared_pieces(plan: Planned) -> list[Piece]:
    """The steps of a plan that may share the GPU, one at a time. A study's may not: some of them measure speed."""
    if plan.recipe.kind == "study" or isinstance(plan.recipe, Local):
        return []
    numbers = [number for number, step in enumerate(plan.steps) if step.level in SHARED]
    return [Piece(plan.recipe.name, plan.arguments, (number,)) for number in numbers]


def _by_workers(
    pool: Executor,
    work: list[Piece],
    steps: dict[str, list[Step]],
    on_progress: Progress,
    on_level: Callable[[Level], None],
    found: dict[tuple[str, int], list[Level]],
) -> None:
    """Put the levels of every step in `work` into `found`, by recipe and number."""
    for piece, future in [(piece, pool.submit(run, piece)) for piece in work]:
        mine = [steps[piece.recipe][number] for number in piece.numbers]
        for step in mine:
            on_progress(f"{piece.recipe}  {step.text}")
        for number, levels in zip(piece.numbers, _levels(future, mine), strict=True):
            found[piece.recipe, number] = levels
            for level in levels:
                on_level(level)


def _levels(future: Future[list[list[Level]]], steps: list[Step]) -> list[list[Level]]:
    """What a worker found, step by step; one that died leaves failed levels, and the check goes on."""
    try:
        return future.result()
    except BrokenProcessPool:
        reason = "a worker process died, perhaps for want of memory: try --jobs 1"
        return [[Level(s.level, checking.FAILED, s.dtype, s.target, s.shape, reason=reason)] for s in steps]


def run(piece: Piece) -> list[list[Level]]:
    """In a worker: the levels of each step of a piece."""
    steps = checking.plan(catalog.find(piece.recipe), *piece.arguments)
    return [checking.run_step(steps[number]) for number in piece.numbers]


def _begin() -> None:
    """In a worker, before its first piece: its neighbours have the other cores."""
    import torch

    torch.set_num_threads(1)
