"""A check in several processes: the same reports in the same order, and no GPU shared with a worker."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from cookbook.check import levels, workers
from cookbook.recipe import catalog

STUDIES = ("foundations/xor_swizzle", "foundations/thread_block_swizzle")


def plan_of(name: str, dtypes: tuple[str, ...] = (), targets: tuple[str, ...] = ()) -> workers.Planned:
    recipe = catalog.find(name)
    return workers.planned(recipe, *levels.chosen(recipe, (), dtypes, targets), False)


def said(report: levels.Report) -> list[tuple]:
    return [(level.level, level.status, level.target, level.dtype, level.reason) for level in report.levels]


def test_two_workers_say_what_this_process_says():
    plans = [plan_of(name, targets=catalog.find(name).targets[:1]) for name in STUDIES]
    alone, together, steps = workers.check(plans, 1), [], []
    together = workers.check(plans, 2, steps.append)
    assert [report.recipe for report in together] == list(STUDIES)
    assert list(map(said, together)) == list(map(said, alone)) and all(report.ok for report in together)
    assert sorted(steps) == sorted(f"{plan.recipe.name}  {step.text}" for plan in plans for step in plan.steps)


def test_layouts_and_model_of_a_dtype_stay_together():
    plan = plan_of("ampere/ldmatrix_gemm", targets=("sm_80", "sm_90a"))
    pieces = [[plan.steps[number] for number in piece.numbers] for piece in workers.pieces(plan)]
    assert [[step.level for step in steps] for steps in pieces] == [
        *[["layout", "model", "model"]] * 2,
        *[["product"]] * 2,
        ["host"],
        ["pipeline"],
        *[["compiled"]] * 4,
    ]
    assert [{step.dtype for step in steps} for steps in pieces[:2]] == [{"float16"}, {"bfloat16"}]


def test_what_may_use_a_gpu_runs_here_after_the_workers(monkeypatch):
    """Threads stand in for worker processes, so that the order can be seen."""
    order = []

    def step(level: str) -> levels.Step:
        def run():
            order.append(level)
            return [levels.Level(level, "passed")]

        return levels.Step(level, None, run)

    steps = [step(level) for level in ("ran", "layout", "timed", "compiled", "counted")]
    monkeypatch.setattr(levels, "plan", lambda *arguments: steps)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda jobs, *rest: ThreadPoolExecutor(1))
    (report,) = workers.check([workers.planned(catalog.find(STUDIES[0]), (), (), (), False)], 2)
    assert order == ["layout", "compiled", "ran", "timed", "counted"]
    assert [level.level for level in report.levels] == ["ran", "layout", "timed", "compiled", "counted"]


def test_several_may_use_the_gpu_but_for_times(monkeypatch):
    """Threads stand in for worker processes: how many there are at each turn, and what they are given."""
    asked, by, kept = [], {}, []

    def step(level: str) -> levels.Step:
        def run():
            by[level] = threading.current_thread() is threading.main_thread()
            return [levels.Level(level, "passed")]

        return levels.Step(level, None, run)

    def pool(jobs, *rest):
        asked.append(jobs)
        return ThreadPoolExecutor(1)

    steps = [step(level) for level in ("layout", "ran", "timed", "counted", "sanitized")]
    monkeypatch.setattr(levels, "plan", lambda *arguments: steps)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", pool)
    plan = workers.planned(catalog.find("ampere/ldmatrix_gemm"), (), (), (), True)
    (report,) = workers.check([plan], 1, gpu_jobs=2, on_level=lambda level: kept.append(level.level))
    assert asked == [2]
    assert by == {"layout": True, "ran": False, "counted": False, "sanitized": False, "timed": True}
    assert [level.level for level in report.levels] == [step.level for step in steps]
    assert kept == ["ran", "counted", "sanitized", "layout", "timed"]  # each at once, what shares the GPU first
    assert not workers.shared_pieces(plan_of(STUDIES[0]))  # a study may measure speed at any level
    with pytest.raises(ValueError, match="gpu_jobs: got 0; needed 1 or more"):
        workers.check([], gpu_jobs=0)


def test_a_worker_that_dies_fails_its_levels_alone():
    dead: Future = Future()
    dead.set_exception(BrokenProcessPool("killed"))
    step = levels.Step("compiled", "float16", lambda: [], target="sm_80")
    ((level,),) = workers._levels(dead, [step])
    assert (level.status, level.target, level.dtype) == ("failed", "sm_80", "float16") and "--jobs 1" in level.reason


def test_workers_are_started_only_for_enough_work(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert [workers.default_jobs(n) for n in (0, workers.WORTH - 1, workers.WORTH, 100)] == [1, 1, 4, 4]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert workers.default_jobs(100) == 2
    with pytest.raises(ValueError, match="jobs: got 0; needed 1 or more"):
        workers.check([], 0)
