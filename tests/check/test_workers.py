"""A check in several processes: the same reports in the same order, and no GPU shared with a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from in_threads import Thread

from cookbook.check import levels, subjects, workers
from cookbook.recipe import catalog

STUDIES = ("foundations/xor_swizzle", "foundations/thread_block_swizzle")


def plan_of(name: str, dtypes: tuple[str, ...] = (), targets: tuple[str, ...] = ()) -> workers.Planned:
    recipe = catalog.find(name)
    return workers.planned(recipe, *levels.chosen(recipe, (), dtypes, targets), False)


def said(report: levels.Report) -> list[tuple]:
    return [(level.level, level.status, level.target, level.dtype, level.reason) for level in report.levels]


def test_two_workers_say_what_this_process_says():
    plans = [plan_of(name, targets=catalog.find(name).targets[:1]) for name in STUDIES]
    steps = []
    alone = [levels.check(plan.recipe.name, targets=plan.recipe.targets[:1]) for plan in plans]
    together = workers.check(plans, 2, steps.append)
    assert [report.recipe for report in together] == list(STUDIES)
    assert list(map(said, together)) == list(map(said, alone)) and all(report.ok for report in together)
    assert sorted(steps) == sorted(f"{plan.recipe.name}  {step.text}" for plan in plans for step in plan.steps)


def test_what_is_made_once_stays_together():
    plan = plan_of("ampere/ldmatrix_gemm", targets=("sm_80", "sm_90a"))
    pieces = [[plan.steps[number] for number in piece.numbers] for piece in workers.pieces(plan)]
    assert [[step.level for step in steps] for steps in pieces] == [
        *[["layout", "model", "model"]] * 2,
        ["product", "pipeline", "banks"],
        ["product"],
        ["host"],
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
    monkeypatch.setattr(workers, "Worker", Thread)
    (report,) = workers.check([workers.planned(catalog.find(STUDIES[0]), (), (), (), False)], 1)
    assert order == ["layout", "compiled", "ran", "timed", "counted"]
    assert [level.level for level in report.levels] == ["ran", "layout", "timed", "compiled", "counted"]


def test_several_may_use_the_gpu_but_for_times(monkeypatch):
    """Threads stand in for worker processes: how many there are at each turn, and what they are given."""
    by, kept = {}, []

    def step(level: str) -> levels.Step:
        def run():
            by[level] = threading.current_thread() is threading.main_thread()
            return [levels.Level(level, "passed")]

        return levels.Step(level, None, run)

    steps = [step(level) for level in ("layout", "ran", "timed", "counted", "sanitized")]
    monkeypatch.setattr(levels, "plan", lambda *arguments: steps)
    monkeypatch.setattr(workers, "Worker", Thread)
    monkeypatch.setattr(Thread, "started", 0)
    plan = workers.planned(catalog.find("ampere/ldmatrix_gemm"), (), (), (), True)
    (report,) = workers.check([plan], 1, gpu_jobs=2, on_level=lambda level: kept.append(level.level))
    assert Thread.started == 1 + 2  # one for what needs no GPU
    assert by == {"layout": False, "ran": False, "counted": False, "sanitized": False, "timed": True}
    assert [level.level for level in report.levels] == [step.level for step in steps]
    assert kept[0] == "layout" and kept[-1] == "timed" and sorted(kept[1:4]) == ["counted", "ran", "sanitized"]
    assert not workers.shared_pieces(plan_of(STUDIES[0]))  # a study may measure speed at any level
    with pytest.raises(ValueError, match="gpu_jobs: got 0; needed 1 or more"):
        workers.check([], gpu_jobs=0)


# At the end of a copied file: what ends the process of a level, as a compiler's assertion does.
FATAL = """
import os
_fine = smem_layouts
def smem_layouts(dtype, config=CONFIG):
    {} if dtype is cutlass.Float16 else None
    return _fine(dtype, config)
"""


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        pytest.param("os.abort()", "its process was killed by SIGABRT", marks=pytest.mark.slow),
        pytest.param("os._exit(0)", "its process left with status 0", marks=pytest.mark.slow),
        ("os.kill(os.getpid(), 9)", "its process was killed by SIGKILL, perhaps for want of memory: try --jobs 1"),
    ],
)
def test_a_level_that_ends_its_process_fails_alone(ending, says, tmp_path):
    file = tmp_path / "fatal.py"
    file.write_text(catalog.standalone_source("ampere/first_gemm") + FATAL.format(ending))
    recipe, kept = subjects.of_file(file), []
    arguments = levels.chosen(recipe, [(72, 40, 136)], ("bfloat16", "float16"), ("sm_80",))
    (report,) = workers.check([workers.planned(recipe, *arguments, False)], 1, on_level=kept.append)
    half = [level for level in report.levels if level.dtype == "float16" and level.level in workers.ANYWHERE]
    assert [(each.level, each.status) for each in half] == [
        (name, "failed") for name in ("layout", "model", "product", "compiled")
    ]
    assert {each.reason for each in half} == {says}
    whole = [each for each in report.levels if each.dtype == "bfloat16" and each.level in workers.ANYWHERE]
    assert len(whole) >= 4 and all(each.status == "passed" for each in whole)
    assert len(kept) == len(report.levels)


@pytest.mark.parametrize(
    ("function", "given", "how"),
    [(signal.raise_signal, signal.SIGABRT, "was killed by SIGABRT"), (os._exit, 0, "left with status 0")],
)
def test_how_a_process_ended_is_told(function, given, how):
    """A whole check whose process ends so is slow; quick is the one that is killed."""
    assert list(workers.spread(function, [given], 1)) == [(given, workers.Died(how))]


def test_a_step_that_leaves_has_failed():
    def leave():
        raise SystemExit(0)

    (level,) = levels.run_step(levels.Step("layout", None, leave))
    assert level.status == "failed" and "SystemExit: 0" in level.reason


def test_two_files_of_one_recipe_are_told_apart(tmp_path):
    for name, more in (("fine", ""), ("other", "\n\ndef config_for(arch):\n    raise ValueError('other')\n")):
        (tmp_path / f"{name}.py").write_text(catalog.standalone_source("ampere/first_gemm") + more)
    plans = []
    for name in ("fine", "other"):
        recipe = subjects.of_file(tmp_path / f"{name}.py")
        arguments = levels.chosen(recipe, [(72, 40, 136)], ("bfloat16",), ("sm_80",))
        plans.append(workers.planned(recipe, *arguments, False))
    fine, other = workers.check(plans, 2)
    assert fine.ok and not other.ok


INTERRUPTED = """
import os, sys, time
from cookbook.check import workers

if __name__ == "__main__":
    for _ in workers.spread(time.sleep, [60, 60], 2, (), lambda one: print("begun", flush=True)):
        pass
"""


def test_ctrl_c_ends_the_workers_without_a_word_of_theirs(tmp_path):
    file = tmp_path / "interrupted.py"
    file.write_text(INTERRUPTED)
    command = [sys.executable, str(file)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as begun:
        assert [begun.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
        time.sleep(0.5)  # while they start, or after
        os.killpg(begun.pid, signal.SIGINT)  # as a terminal does: every process gets it
        said = begun.communicate(timeout=30)[1]  # until every process has closed its stderr
    assert said.count("Traceback") == 1 and said.endswith("KeyboardInterrupt\n") and "Process " not in said


def test_workers_are_started_only_for_enough_work(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert [workers.default_jobs(n) for n in (0, workers.WORTH - 1, workers.WORTH, 100)] == [1, 1, 4, 4]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert workers.default_jobs(100) == 2
    with pytest.raises(ValueError, match="jobs: got 0; needed 1 or more"):
        workers.check([], 0)
