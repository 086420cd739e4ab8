"""A check in several processes: the levels that run anywhere side by side, then those of the GPU.

Most of a check is compiling, which is one core's work for a second or so and knows nothing of the next; so worker
processes take the steps between them. What a GPU runs stays here, in the process that began, after the workers are
done, unless several processes are to share the GPU: running shapes, ncu and the sanitizers are mostly a CPU's work, and
what they find does not depend on who else uses the GPU. Times do. Whatever is timed runs last, here and alone.

A level may end its process: a compiler aborts, or memory runs out. Then that level has failed, and a new process takes
the rest. Ctrl-C reaches this process alone, which ends the workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from cookbook.check import levels as checking
from cookbook.check import subjects
from cookbook.check.levels import Level, Progress, Report, Step
from cookbook.check.subjects import Local
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe

ANYWHERE = ("layout", "model", "product", "host", "pipeline", "banks", "compiled")  # the levels that workers take
SHARED = ("ran", "counted", "sanitized")  # those for which several may use the GPU at once
MOST = 4  # workers unless told otherwise: each holds torch and CuTe, about half a GiB
WORTH = 8  # pieces of work below which a second worker, seconds of importing, costs more than it saves


class Planned(NamedTuple):
    """A check that is to be made: `checking.plan`'s arguments, which a worker can be sent, and the steps."""

    recipe: Recipe
    arguments: tuple[Any, ...]  # shapes, dtypes, targets, tools
    steps: list[Step]


class Piece(NamedTuple):
    """A worker's piece of work: some steps of a recipe, by their number in its plan."""

    recipe: str
    arguments: tuple[Any, ...]
    numbers: tuple[int, ...]
    file: Path | None = None  # with the code of a `Local` recipe
    plan: int = 0  # which of the plans


class Died(NamedTuple):
    """The remains of work that ended its process."""

    how: str  # "was killed by SIGABRT"


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
        jobs: how many processes work at the levels that need no GPU. If left out, as many as there are CPUs that this
            process may use, up to MOST, where there is enough to do for them; else one.
        on_progress: told "RECIPE  STEP" of each step when it begins.
        gpu_jobs: how many processes share the GPU at the levels in SHARED; 1 is this one alone.
        on_level: told each level as soon as it is there, in this process.

    Raises:
        ValueError: `jobs` or `gpu_jobs` is less than 1.
    """
    for name, count in (("jobs", jobs), ("gpu_jobs", gpu_jobs)):
        if count is not None and count < 1:
            raise ValueError(f"{name}: got {count}; needed 1 or more")
    work = [piece._replace(plan=n) for n, plan in enumerate(plans) for piece in pieces(plan)]
    shared = [piece._replace(plan=n) for n, plan in enumerate(plans) for piece in shared_pieces(plan)]
    found: dict[tuple[int, int], list[Level]] = {}
    for some, processes in ((work, jobs or default_jobs(len(work))), (shared if gpu_jobs > 1 else [], gpu_jobs)):
        _by_workers(plans, some, processes, on_progress, on_level, found)
    for n, plan in enumerate(plans):
        for number, step in enumerate(plan.steps):
            if (n, number) not in found:
                on_progress(f"{plan.recipe.name}  {step.text}")
                found[n, number] = levels = checking.run_step(step)
                for level in levels:
                    on_level(level)
    each = ([level for number in range(len(p.steps)) for level in found[n, number]] for n, p in enumerate(plans))
    return [Report(p.recipe.name, tuple(levels), p.recipe.said) for p, levels in zip(plans, each, strict=True)]


def default_jobs(pieces_of_work: int) -> int:
    """Return how many processes are worth starting for this many pieces of work on this machine."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cpus, MOST) if pieces_of_work >= WORTH else 1


def pieces(plan: Planned) -> list[Piece]:
    """The steps of a plan that run anywhere, divided: what is evaluated, traced or followed once stays together."""

    def key(number: int) -> Any:
        step = plan.steps[number]
        return (step.dtype,) if step.level in ("layout", "model") else id(step.runs) if step.runs else number

    file = plan.recipe.loaded_from if isinstance(plan.recipe, Local) else None
    if isinstance(plan.recipe, Local) and file is None:  # the cells of a notebook are not sent to another process
        return []
    together: dict[Any, list[int]] = {}
    for number, step in enumerate(plan.steps):
        if step.level in ANYWHERE:
            together.setdefault(key(number), []).append(number)
    return [Piece(plan.recipe.name, plan.arguments, tuple(numbers), file) for numbers in together.values()]


def shared_pieces(plan: Planned) -> list[Piece]:
    """The steps of a plan that may share the GPU, one at a time. A study's may not: some of them measure speed."""
    if plan.recipe.product.times_itself or isinstance(plan.recipe, Local):
        return []
    numbers = [number for number, step in enumerate(plan.steps) if step.level in SHARED]
    return [Piece(plan.recipe.name, plan.arguments, (number,)) for number in numbers]


def _by_workers(
    plans: Sequence[Planned],
    work: list[Piece],
    processes: int,
    on_progress: Progress,
    on_level: Callable[[Level], None],
    found: dict[tuple[int, int], list[Level]],
) -> None:
    """Put the levels of every step in `work` into `found`, by plan and number."""

    def begun(piece: Piece) -> None:
        for number in piece.numbers:
            on_progress(f"{piece.recipe}  {plans[piece.plan].steps[number].text}")

    def tell(piece: Piece, answers: list[list[Level]]) -> None:
        for number, levels in zip(piece.numbers, answers, strict=True):
            found[piece.plan, number] = levels
            for level in levels:
                on_level(level)

    todo = work
    while todo:
        again: list[Piece] = []
        for piece, answer in spread(run, todo, processes, (_begin,), begun):
            if isinstance(answer, Died) and len(piece.numbers) > 1:  # which of its steps was it?
                again += [piece._replace(numbers=(number,)) for number in piece.numbers]
            elif isinstance(answer, Died):
                tell(piece, [[_failed(plans[piece.plan].steps[piece.numbers[0]], answer)]])
            else:
                tell(piece, answer)
        todo = again


def _failed(step: Step, died: Died) -> Level:
    memory = ", perhaps for want of memory: try --jobs 1" if died.how.endswith("SIGKILL") else ""
    reason = f"its process {died.how}{memory}"
    return Level(step.level, checking.FAILED, step.dtype, step.target, step.shape, majors=step.majors, reason=reason)


def run(piece: Piece) -> list[list[Level]]:
    """In a worker: the levels of each step of a piece."""
    steps = _planned(piece.recipe, piece.file, piece.arguments).steps
    return [checking.run_step(steps[number]) for number in piece.numbers]


@cache
def _planned(name: str, file: Path | None, arguments: tuple[Any, ...]) -> Planned:
    """In a worker, once a recipe: what the process that began has planned."""
    return planned(catalog.find(name) if file is None else subjects.of_file(file, name), *arguments)


def _begin() -> None:
    """In a worker, before its first piece: its neighbours have the other cores."""
    import torch

    torch.set_num_threads(1)


# --- processes ------------------------------------------------------------------------------------------------------


def spread(
    function: Callable[[Any], Any],
    work: Iterable[Any],
    processes: int,
    begin: tuple[Any, ...] = (),
    on_begin: Callable[[Any], None] = lambda one: None,
) -> Iterator[tuple[Any, Any]]:
    """Each piece of `work` with what `function` makes of it, in processes that were spawned, as soon as it is there.

    A piece that ends its process has a `Died` instead, and a new process takes the next one.

    Args:
        function: of a module, as all that is sent to a process.
        processes: how many; no more are started than there are pieces.
        begin: a function and its arguments, called in each process before its first piece.
        on_begin: told each piece when a process takes it.

    Raises:
        Exception: what `function` raised.
    """
    waiting = deque(work)
    busy: dict[Any, tuple[Worker, Any]] = {}  # by pipe
    idle: list[Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                worker, one = idle.pop() if idle else Worker(function, begin), waiting.popleft()
                busy[worker.pipe] = worker, one
                on_begin(one)
                worker.send(one)
            for pipe in wait(list(busy)):
                worker, one = busy[pipe]
                answer = worker.answer()
                del busy[pipe]
                if isinstance(answer, Exception):
                    raise answer
                if not isinstance(answer, Died):
                    idle.append(worker)
                yield one, answer
    finally:
        for worker, _ in busy.values():
            worker.process.terminate()
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.pipe.close()
            worker.process.join()


class Worker:
    """A process that does one piece of work after the other."""

    def __init__(self, function: Callable[[Any], Any], begin: tuple[Any, ...]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process
        self.process = process(target=_serve, args=(theirs, function, begin), daemon=True)
        with _without_interrupts():
            self.process.start()
        theirs.close()

    def send(self, one: Any) -> None:
        """Give it a piece; if its process has ended, `answer` says so."""
        try:
            self.pipe.send(one)
        except OSError:
            return

    def answer(self) -> Any:
        """Return what the function made of the piece, the Exception that it raised, or a `Died`."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            self.pipe.close()
            code = self.process.exitcode or 0
            return Died(f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with status {code}")


def _serve(pipe: Connection, function: Callable[[Any], Any], begin: tuple[Any, ...]) -> None:
    """In a worker: pieces, until the pipe is closed at the other end."""
    if begin:
        begin[0](*begin[1:])
    while True:
        try:
            one = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = function(one)
        except Exception as error:
            answer = error
        try:
            pipe.send(answer)
        except OSError:  # the process that asked has ended
            return


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started in here never gets Ctrl-C: it is for the one that began."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
