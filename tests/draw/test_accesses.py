"""An access by lane and bank: free, or how many ways in conflict."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import (
    NS,
    Tile,
    ask,
    fill,
    found,
    label,
    parse,
)

from cookbook import draw
from cookbook.draw import svg
from cookbook.draw.accesses import lanes_by_bank


def test_access_view_of_a_row_is_free():
    picture = draw.access_view(ask(4 * np.arange(32), 4))
    assert not found(picture, state="conflict")
    assert [label(g) for g in found(picture, state="free")] == [str(i) for i in range(32)]


def test_access_view_of_a_column_is_32_way_in_one_bank():
    picture = draw.access_view(ask(128 * np.arange(32), 4))
    red = found(picture, state="conflict")
    assert len(red) == 32
    assert {g.get("data-bank") for g in red} == {"0"}
    assert {fill(g) for g in red} == {svg.CONFLICT}
    assert parse(picture).find(f"{NS}desc").text == "wavefronts: 32, ideal 1, excess 31."


def test_access_view_of_a_broadcast_is_free():
    picture = draw.access_view(ask(np.zeros(32), 4))
    (served,) = found(picture, state="free")
    assert (label(served), served.get("data-lanes")) == ("0+", " ".join(map(str, range(32))))


@pytest.mark.parametrize(("bits", "red", "actual"), [(3, 0, 4), (0, 4 * 32, 32)])
def test_access_view_of_ldmatrix_rows(bits, red, actual):
    """Lane l gives row l mod 8 of matrix l // 8: the four matrices lie side by side in an 8 x 64 bf16 tile."""
    lane = np.arange(32)
    rows = Tile(8, 64, bits).byte_offsets()[lane % 8, lane // 8 * 8]
    picture = draw.access_view(ask(rows, 16, "ldmatrix"))
    assert len(found(picture, state="conflict")) == red
    assert f"wavefronts: {actual}, ideal 4" in parse(picture).find(f"{NS}desc").text
    assert {g.get("data-phase") for g in found(picture) if g.get("data-phase")} == {"0", "1", "2", "3"}


def test_lanes_by_bank_omits_inactive_and_splits_wide_lanes():
    (phase,) = lanes_by_bank(np.array([-1, 4] + [-1] * 30), 4)
    assert phase == {1: {1: [1]}}
    halves = lanes_by_bank(8 * np.arange(32), 8)
    assert [len(p) for p in halves] == [32, 32] and halves[1][0] == {32: [16]}


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.access_view([0] * 32), TypeError, "access: got list of 32 items"),
        (lambda: draw.access_view(ask(np.zeros(8, int), 4)), ValueError, r"access.addresses: got shape \(8,\)"),
        (lambda: draw.access_view(ask(np.zeros(32, int), 3)), ValueError, "access.width: got 3"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_a_phase_is_named_where_there_are_several():
    """The word comes three pages after the first such picture."""
    for width, named in ((4, False), (16, True)):
        assert (">phase 0<" in draw.access_view(ask(width * np.arange(32), width)).svg) == named
