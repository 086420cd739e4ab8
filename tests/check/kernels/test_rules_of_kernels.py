"""What other people's kernels rely on is no fault, and what they must not do is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cookbook.testing import check

sys.path.insert(0, str(Path(__file__).parent))
import rules_of_kernels as rules


@pytest.mark.parametrize(
    "function, arguments, found",
    [
        (rules.registers, ("f32[32]", 40, 232), set()),  # a CTA of 256 threads has what it increases to, not 255
        (rules.registers, ("f32[32]", 240, 232), {"setmaxnreg"}),
        (rules.divided, ("f32[32]", 0, False), set()),  # the quotient is not used
        (rules.divided, ("f32[32]", 0, True), {"fault"}),
        (rules.divided, ("f32[32]", 8, True), set()),
        (rules.spun, ("f32[32]", True), set()),  # a loop that looks until the phase is over waits for it
        (rules.spun, ("f32[32]", False), {"race"}),
        (rules.acquired, ("f32[32]", False), set()),  # nobody waits for what it expects
        (rules.acquired, ("f32[32]", True), {"deadlock"}),
        (rules.merged, ("f32[32]",), set()),  # the compiler may make one store of four neighbours
        (rules.chain, ("f32[32]", "f32[32]", "f32[32]", True), set()),
        (rules.chain, ("f32[32]", "f32[32]", "f32[32]", False), {"dependent launch"}),
        *((rules.by_matrices, ("f16[64,64]", linear, 0), {"bank conflict"}) for linear in (False, True)),
        *((rules.by_matrices, ("f16[64,64]", linear, 1), {"bank conflict", "race"}) for linear in (False, True)),
        (rules.stored_by_parts, ("f16[64,64]", True), {"bank conflict"}),
        (rules.stored_by_parts, ("f16[64,64]", False), {"bank conflict", "race"}),
        (rules.apart, ("f32[32]", "f32[32]", "f32[32]"), set()),  # the second launch touches nothing of the first
    ],
)
def test_a_kernel_has_the_faults_that_it_has(function, arguments, found):
    report = check(function, *arguments)
    assert {one.rule for one in report.found} == found and not report.not_followed, str(report)


def test_a_division_by_0_that_is_used_is_said_with_its_line():
    (one,) = check(rules.divided, "f32[32]", 0, True).found
    assert "got a division by 0; needed another divisor" in one.text and one.at.source == "sX[place] = mX[tidx]"


def test_modes_of_a_layout_that_is_known_at_launch_are_followed():
    report = check(rules.modes, "f32[m,n]", sizes={"m": 3, "n": 32})
    assert report.ok and report.launches[0].kernel == "chosen_modes", str(report)
    assert report.given.endswith("chosen: m=3, n=32")


def test_two_races_of_the_same_stores_are_told_apart():
    report = check(rules.raced_twice, "f32[128]")
    told = {frozenset((one.at.source, one.other.source)) for one in report.found}
    store, loads = "sX[tidx] = before", ("before = sX[127 - tidx]", "mX[tidx] = sX[127 - tidx]")
    assert told == {frozenset((store, load)) for load in loads}


def test_faults_behind_the_third_are_told():
    found = check(rules.raced_often, "f32[128]").found
    pairs = {frozenset((one.at.line, one.other.line)) for one in found}
    assert {one.rule for one in found} == {"race"} and len(pairs) == 4
