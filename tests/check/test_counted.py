"""What NVIDIA's tools report becomes figures: wavefronts of ncu against predicted ones, hazards of the sanitizers."""

from __future__ import annotations

import subprocess

import pytest

from cookbook.check import counted
from cookbook.check.counted import Line, compare
from cookbook.publish import words

# --- wavefronts: copies that move data, copies of zeros, lines that were not counted ---------------------------------

COPY = "LDGSTS.E.BYPASS.LTC128B.128"


def copies(executed, wavefronts, moving, predicted):
    figures, problems = compare([Line(COPY, executed, wavefronts, 4 * executed)], {"g2s": 4}, (moving, predicted))
    return figures[COPY], problems


def test_copies_that_all_move_data_are_compared_exactly():
    assert copies(100, 400, 100, 400)[1] == []
    assert copies(100, 1050, 100, 1050)[1] == []  # padded rows: not the same number each
    for wrong in (399, 401):
        assert copies(100, wrong, 100, 400)[1] == [f"cp.async: {wrong} wavefronts of 100; predicted 400 of 100"]


def test_copies_of_zeros_may_take_wavefronts_of_their_own():
    figures, problems = copies(110, 450, 100, 400)
    assert not problems
    assert (figures["zero_filled"], figures["of_zero_filled"], figures["predicted"]) == (10, 50, 400)
    assert copies(110, 400, 100, 400)[1] == []
    assert copies(110, 399, 100, 400)[1] and copies(110, 400 + 10 * 32 + 1, 100, 400)[1]


def test_of_lines_that_were_counted_each_takes_its_share():
    figures, problems = copies(90, 360, 100, 400)
    assert not problems and figures["not_counted"] == 10
    assert copies(90, 361, 100, 400)[1] == ["cp.async: 361 wavefronts of 90; predicted 400 of 100"]


def test_copies_of_something_else_than_a_tile_are_only_counted():
    figures, problems = compare([Line("LDGSTS.E", 8, 16, 8)], {"r2s": 4}, (0, 0))
    assert problems == ["no instruction was counted for r2s"]
    assert figures["LDGSTS.E"]["excess"] == 8 and "zero_filled" not in figures["LDGSTS.E"]


@pytest.mark.parametrize("opcode, kind", [("LDSM.16.M88.4", "s2r"), ("STS.128", "r2s"), ("LDS.128", "s2g")])
def test_other_instructions_are_compared_line_by_line(opcode, kind):
    right, wrong = Line(opcode, 8, 32, 32), Line(opcode, 8, 33, 32)
    assert compare([right], {kind: 4})[1] == []
    assert compare([right, wrong], {kind: 4})[1] == [f"{opcode}: 4.12 wavefronts each, predicted 4"]
    assert compare([], {kind: 4})[1] == [f"no instruction was counted for {kind}"]


def test_a_predicated_store_of_no_lane_has_no_wavefronts():
    guarded = Line("STS", 8, 6, 6, predicated=True)  # two of eight warps have nothing to store
    assert compare([guarded], {"r2s": 1})[1] == []
    assert compare([Line("STS", 8, 6, 6)], {"r2s": 1})[1] == ["STS: 0.75 wavefronts each, predicted 1"]
    for wavefronts in (7, 18):  # no whole number of times two, and more than two each
        assert compare([Line("STS", 8, wavefronts, 6, predicated=True)], {"r2s": 2})[1]


def test_where_stmatrix_stores_c_a_plain_store_is_not_of_c():
    lines = [Line("STSM.16.M88.4", 8, 32, 32), Line("STS.64", 8, 16, 16)]  # C, and scale factors
    figures, problems = compare(lines, {"r2s": 4})
    assert not problems and figures["STS.64"]["predicted_each"] is None
    assert compare(lines[1:], {"r2s": 4})[1] == ["STS.64: 2.00 wavefronts each, predicted 4"]


@pytest.mark.parametrize("narrow", ["LDS", "LDS.64", "LDS.U.64", "LDS.U16"])
def test_narrow_loads_are_not_of_c_and_have_no_conflict(narrow):
    of_c, factors = Line("LDS.128", 8, 32, 32), Line(narrow, 8, 16, 16)
    figures, problems = compare([of_c, factors], {"s2g": 4})
    assert not problems and figures[narrow]["predicted_each"] is None
    conflict = Line(narrow, 8, 17, 16)
    assert compare([of_c, conflict], {"s2g": 4})[1] == [f"{narrow}: 17 wavefronts, 16 without bank conflicts"]
    assert compare([factors], {"s2g": 4})[1] == [f"{narrow}: 2.00 wavefronts each, predicted 4"]


# --- compute-sanitizer: errors, hazards by severity, and its words for them -------------------------------------------

NAME = "foundations/matrix_transpose"
CLEAN = {
    "memcheck": "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}
WARNED = """\
========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at kernel_cutlass_kernel_tma_CopyAtom_f32_0+0x410
=========     and Write access at kernel_cutlass_kernel_tma_CopyAtom_f32_0+0x460 [6 hazards]
=========
========= Error: Race reported between Read access at kernel_cutlass_kernel_x+0x20
=========     and Write access at kernel_cutlass_kernel_x+0x30 [1 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
REPORTS = [
    "Warning: Race reported between Write access at kernel+0x410 and Write access at kernel+0x460 [6 hazards]",
    "Error: Race reported between Read access at kernel+0x20 and Write access at kernel+0x30 [1 hazards]",
]
HAZARD = """\
========= Warning: Potential WAW hazard detected at __shared__ 0x8000 in block (0,0,0) :
=========     Write Thread (0,0,0) at kernel_cutlass_kernel_tma_f32+0x410
=========     Current Value : 0, Incoming Value : 1
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""


def sanitized(monkeypatch, written: dict[str, str], returncode: int = 0) -> dict:
    def run(command):
        tool = command[command.index("--tool") + 1]
        return subprocess.CompletedProcess(command, returncode, written[tool], "")

    monkeypatch.setattr(counted, "run", run)
    monkeypatch.setattr(counted, "path_of", lambda name: name)
    return counted.sanitize(NAME, "float32", [(8, 512)])


def test_nothing_found_is_recorded_as_before(monkeypatch):
    figures = sanitized(monkeypatch, CLEAN)
    assert figures == {"shapes": [[8, 512]], "memcheck": 0, "racecheck": 0} and counted.hazards(figures) == ""


def test_hazards_are_told_by_severity_in_racechecks_words(monkeypatch):
    figures = sanitized(monkeypatch, CLEAN | {"racecheck": WARNED})
    assert figures["racecheck"] == 2 and figures["hazards"] == {"errors": 1, "warnings": 1, "reports": REPORTS}
    assert counted.hazards(figures) == "2 hazards (1 error, 1 warning)"
    assert words._sanitized(figures) == "memcheck 0, racecheck 2 hazards (1 error, 1 warning) over 1 shapes"


def test_a_report_of_single_hazards_is_understood_too():
    figures = counted.parse_sanitizer("racecheck", HAZARD)
    assert figures["racecheck"] == 1 and figures["hazards"]["warnings"] == 1 and figures["hazards"]["errors"] == 0
    (report,) = figures["hazards"]["reports"]
    assert report.startswith("Warning: Potential WAW hazard") and report.endswith(
        "Current Value : 0, Incoming Value : 1"
    )


def test_a_warning_alone_fails_the_level_and_says_what_it_is(monkeypatch):
    sanitized(monkeypatch, CLEAN | {"memcheck": "========= ERROR SUMMARY: 3 errors\n", "racecheck": HAZARD})
    figures, bad = counted.sanitized(NAME, "float32", [(8, 8, 8)])
    problems = bad.split("; racecheck")
    assert figures["memcheck"] == 3 and problems[0] == "memcheck: 3; needed 0"
    assert problems[1].startswith(": 1 hazard (0 errors, 1 warning); needed 0: Warning: Potential WAW")


@pytest.mark.parametrize(("text", "returncode"), [("no summary", 0), (CLEAN["racecheck"], 1)])
def test_no_summary_or_a_launcher_that_failed_is_no_result(monkeypatch, text, returncode):
    with pytest.raises(counted.ToolMissing, match="gave no summary"):
        sanitized(monkeypatch, CLEAN | {"racecheck": text}, returncode)
