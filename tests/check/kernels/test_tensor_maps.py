"""Tensor maps that a kernel makes, and numbers in global memory that a case says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cookbook.check.kernels import tensors
from cookbook.testing import check

sys.path.insert(0, str(Path(__file__).parent))
import tensor_maps

TENSORS = "f16[32,64]", "i64[16]", "i32[2] = 0 2"


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("reader", [0, 1])
def test_a_map_that_a_kernel_makes_is_followed(reader, staged):
    report = check(tensor_maps.loaded, *TENSORS, "", reader, staged)
    assert report.ok and not report.not_followed, str(report)


@pytest.mark.parametrize("without, reader", [("release", 1), ("acquire", 1), ("acquire", 0)])
def test_a_missing_fence_of_a_map_is_suggested(without, reader):
    report = check(tensor_maps.loaded, *TENSORS, without, reader, False)
    (one,) = report.found
    assert one.rule == "proxy fence" and one.at.source.startswith("cute.copy(atom, tAgA"), str(report)
    assert one.other.source == "cpasync.update_tma_descriptor(atom, mReal, place)"
    (repair,) = report.repairs
    assert repair.code.startswith(f"cute.nvgpu.cpasync.fence_tma_desc_{without}(")


def test_a_map_that_another_warp_may_change_meanwhile_is_a_race():
    report = check(tensor_maps.loaded, *TENSORS, "order", 1, False)
    assert [one.rule for one in report.found] == ["race"] and "map write" in report.found[0].text


def test_a_map_that_changes_while_tma_uses_it_is_a_race():
    """DeepGEMM 343: results were wrong on an H200, and right with a bulk group that is waited for."""
    assert all(check(tensor_maps.loaded, *TENSORS, waits, 0, False).ok for waits in ("nothing", "barriers"))
    report = check(tensor_maps.loaded, *TENSORS, "wait", 0, False)
    (one,) = report.found
    assert [repair.code.split("(")[0] for repair in report.repairs] == ["cute.arch.cp_async_bulk_commit_group"]
    assert one.rule == "race" and "(load) need not be over before" in one.text and "the same tensor map" in one.text
    assert one.at.source == "cpasync.update_tma_descriptor(atom, mReal, ours)"


def test_numbers_that_no_case_says_are_not_followed():
    report = check(tensor_maps.loaded, *TENSORS[:2], "i32[2]", "", 1, False)
    (one,) = report.not_followed
    assert "the bound of a loop depends on data" in one.text and one.at.source.startswith("for number in")


@pytest.mark.parametrize("first, found", [(5, set()), (4, {"deadlock"}), (10, {"deadlock"})])
def test_numbers_of_a_case_pass_shuffles_and_votes(first, found):
    counts = "i32[32] = " + "1 " * 32
    assert {one.rule for one in check(tensor_maps.searched, counts, first).found} == found


def test_numbers_that_the_kernel_writes_are_not_followed():
    assert not check(tensor_maps.changed, "i32[2]").not_followed
    (one,) = check(tensor_maps.changed, "i32[2] = 4 5").not_followed
    assert "a store to counts, whose numbers are given" in one.text


@pytest.mark.parametrize("words", ["f32[2] = 1 2", "i32[2] = 1", "i32[m] = 1 2", "i32[2] = 1.5 2", "i32[2] = "])
def test_numbers_that_do_not_fit_are_refused(words):
    with pytest.raises(ValueError, match="argument: got"):
        tensors.argument(words, {})
