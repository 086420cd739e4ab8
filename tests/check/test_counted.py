"""Counted wavefronts against predicted ones: copies that move data, copies of zeros, lines that were not counted."""

import pytest

from cookbook.check.counted import Line, compare

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


@pytest.mark.parametrize("opcode, kind", [("LDSM.16.M88.4", "s2r"), ("STS.128", "r2s"), ("LDS.128", "s2g")])
def test_other_instructions_are_compared_line_by_line(opcode, kind):
    right, wrong = Line(opcode, 8, 32, 32), Line(opcode, 8, 33, 32)
    assert compare([right], {kind: 4})[1] == []
    assert compare([right, wrong], {kind: 4})[1] == [f"{opcode}: 4.12 wavefronts each, predicted 4"]
    assert compare([], {kind: 4})[1] == [f"no instruction was counted for {kind}"]
