"""A repair is put in wherever a warp comes to a line, holds in all problems, and is bounded by a number of tries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cookbook.check.kernels.cases import Case, traced
from cookbook.check.pipeline import repair
from cookbook.check.pipeline.machine import Machine
from cookbook.check.pipeline.programs import Event, Programs, all_launched, programs, warps_of
from cookbook.check.pipeline.repair import Point, Repair, repaired, said
from cookbook.simulate.arguments import value_of
from cookbook.simulate.lines import Line

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
import museum

FILE = "kernel.py"


def event(line, operation, what="write"):
    return Event(what, Line(line, FILE), operation=operation)


def machine(name, fixed=False):
    function, *given = museum.asked(name, fixed)
    trace = traced(Case(name, function, given, museum.arch(name)))
    ((launch,), shared) = all_launched(trace, [value_of(one, {}) for one in trace.arguments])
    made = Machine(programs(launch, warps_of(trace, launch, shared)), documented=False, before=(set(), set()))
    made.run()
    return made


@pytest.mark.parametrize(
    "after, operations, expected",
    [
        (False, [1, 2, 1, 2], "x 5 5 x 5 5 exit"),  # a round of a loop begins where an operation comes again
        (True, [1, 2, 1, 2], "5 5 x 5 5 x exit"),
        (False, [1, 2, 3, 4], "x 5 5 5 5 exit"),  # a loop that was unrolled is one place
    ],
)
def test_a_step_is_put_in_once_a_round(after, operations, expected):
    events = (*(event(5, operation) for operation in operations), Event("exit", Line()))
    made = repair._inserted(
        Point(Line(5, FILE), after),
        lambda here: [event(9, 0)],
        Programs(None, {(0, 0): events}),  # type: ignore[arg-type]
    )
    words = {5: "5", 9: "x", 0: "exit"}
    assert " ".join(words[int(each.line)] for each in made.warps[0, 0]) == expected


def test_a_line_of_another_file_is_another_place():
    other = Event("write", Line(5, "other.py"), operation=1)
    assert Point(Line(5, FILE)).holds(event(5, 1)) and not Point(Line(5, FILE)).holds(other)


def test_a_step_must_hold_in_all_problems():
    bad = machine("aliased")
    found = repaired([bad], [bad.programs])
    assert found is not None and found.code == "cute.arch.sync_threads()"
    assert repaired([bad], [machine("block_index").programs]) is None
    assert repaired([bad, machine("aliased", True)]) is not None


def test_no_more_steps_are_tried_than_is_said():
    bad = machine("never_waited")
    found = repaired([bad])
    assert found is not None and repaired([bad], most=found.tries) is not None
    assert repaired([bad], most=found.tries - 1) is None


def test_problems_that_are_not_needed_are_not_made():
    def never():
        raise AssertionError("no step mends the first problem")
        yield

    assert repaired([machine("block_index")], never()) is None


def test_a_barrier_is_not_put_where_one_lane_comes(tmp_path):
    text = "def kernel():\n    with elect_one():\n        copy()\n    for i in range(3):\n        store()\n"
    file = tmp_path / "kernel.py"
    file.write_text(text)
    lines = {(str(file), 3), (str(file), 5)}

    def told(line, after, lanes, alone, rounds=False):
        return repair._spoken(Point(Line(line, str(file)), after), lanes, alone, lines, rounds)

    assert told(3, False, True, True) == repair.Told(Line(2, str(file)), 4)  # before the `with`
    assert told(3, False, False, True) == repair.Told(Line(3, str(file)), 8)
    block = told(3, True, True, True)
    assert block.indent == 4 and block.words.startswith("the block of line 2")
    assert told(5, False, True, True) is None  # one lane, and not for elect_one: it is not known where all come
    assert told(5, False, True, False).line == 4  # rounds that the events do not tell apart
    assert told(5, False, True, False, rounds=True).line == 5


def test_a_repair_is_said_with_the_steps_that_were_tried():
    assert said(Repair("put x before line 3", Line(3), tries=1)).endswith("(the first step tried)")
    assert "(the 3rd of the steps tried)" in said(Repair("put x before line 3", Line(3), tries=3))
