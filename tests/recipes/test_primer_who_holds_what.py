"""The primer's page on partitioning: the figures that its text quotes, the ragged copy, and its exercises."""

from __future__ import annotations

from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.nvgpu import warp
from cutlass.cute.runtime import from_dlpack

from cookbook.check import exercises
from cookbook.layouts import Layout, evaluate
from cookbook.recipe import catalog

NAME = "primer/who_holds_what"


@pytest.fixture(scope="module")
def page():
    return catalog.load(NAME)


def test_the_picture_is_of_the_pages_own_copy(page):
    copy = evaluate(page.tiled_copy)
    assert (copy.src_tv.table() == Layout(((2, 4), 4), ((16, 1), 4)).table()).all() and copy.tiler_mn == (4, 8)


def test_every_element_of_a_tile_has_one_holder(page):
    found = page.parts(lambda t, cX: page.tiled_copy().get_slice(t).partition_S(cX), 8, (8, 16))
    assert sorted(place for places in found for place in places) == [(r, c) for r in range(8) for c in range(16)]
    assert all(holds for _, holds, _ in page.facts())


def test_registers_look_to_mma_and_ldmatrix_as_the_text_says(page):
    def shapes():
        mma = page.tiled_mma()
        tile = cute.make_layout((16, 16), stride=(16, 1))
        sA = cute.make_tensor(cute.make_ptr(cutlass.Float16, 0, cute.AddressSpace.smem), tile)
        tCrA = mma.make_fragment_A(mma.get_slice(0).partition_A(sA))
        ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), cutlass.Float16)
        return tCrA.shape, cute.make_tiled_copy_A(ldmatrix, mma).get_slice(0).retile(tCrA).shape

    assert evaluate(shapes) == (((2, 2, 2), 1, 1), ((8, 1), 1, 1))
    text = catalog.find(NAME).file.read_text(encoding="utf-8")
    assert '("to the MMA", str(rA.layout))' in text and ".retile(rA).layout" in text  # the page prints both


@pytest.mark.parametrize(("rows", "cols"), [(10, 20), (8, 16), (1, 4), (17, 36)])
def test_a_ragged_copy_copies_all_and_nothing_else(page, rows, cols):
    x, y = torch.randn(rows, cols), torch.full((rows + 8, cols), -1.0)
    page.each_part(page.copy_part, *(from_dlpack(z, assumed_align=16) for z in (x, y[:rows])))
    assert torch.equal(x, y[:rows]) and (y[rows:] == -1).all()


# --- the exercises ----------------------------------------------------------------------------------------------------


def four_to_a_row():
    return cute.make_layout((8, 4), stride=(4, 1)), cute.make_layout((1, 4))


def holder(row, col):
    return row % 8 * 4 + col // 2, row // 8 * 2 + col % 2


@cute.jit
def add_one_part(mX, mY, tile, thread):
    page = catalog.load(NAME)
    thr = page.tiled_copy().get_slice(thread)
    gX, gY = cute.local_tile(mX, page.TILE, tile), cute.local_tile(mY, page.TILE, tile)
    cX = cute.local_tile(cute.make_identity_tensor(mX.shape), page.TILE, tile)
    tXgX, tXgY, tXcX = thr.partition_S(gX), thr.partition_D(gY), thr.partition_S(cX)
    for i in cutlass.range_constexpr(cute.size(tXcX)):
        if cute.elem_less(tXcX[i], mX.shape):
            tXgY[i] = tXgX[i] + 1.0


@cute.jit
def guards_rows_alone(mX, mY, tile, thread):
    page = catalog.load(NAME)
    thr = page.tiled_copy().get_slice(thread)
    gX, gY = cute.local_tile(mX, page.TILE, tile), cute.local_tile(mY, page.TILE, tile)
    cX = cute.local_tile(cute.make_identity_tensor(mX.shape), page.TILE, tile)
    tXgX, tXgY, tXcX = thr.partition_S(gX), thr.partition_D(gY), thr.partition_S(cX)
    for i in cutlass.range_constexpr(cute.size(tXcX)):
        if tXcX[i][0] < mX.shape[0] and tXcX[i][1] < mX.shape[1] + 2:  # two columns too many
            tXgY[i] = tXgX[i] + 1.0


@cute.jit
def guards_the_first_of_four(mX, mY, tile, thread):
    page = catalog.load(NAME)
    thr = page.tiled_copy().get_slice(thread)
    gX, gY = cute.local_tile(mX, page.TILE, tile), cute.local_tile(mY, page.TILE, tile)
    cX = cute.local_tile(cute.make_identity_tensor(mX.shape), page.TILE, tile)
    tXgX, tXgY, tXcX = thr.partition_S(gX), thr.partition_D(gY), thr.partition_S(cX)
    for i in cutlass.range_constexpr(cute.size(tXcX)):
        if cute.elem_less(tXcX[i // 4 * 4], mX.shape):
            tXgY[i] = tXgX[i] + 1.0


@cute.jit
def guards_columns_alone(mX, mY, tile, thread):
    page = catalog.load(NAME)
    thr = page.tiled_copy().get_slice(thread)
    gX, gY = cute.local_tile(mX, page.TILE, tile), cute.local_tile(mY, page.TILE, tile)
    cX = cute.local_tile(cute.make_identity_tensor(mX.shape), page.TILE, tile)
    tXgX, tXgY, tXcX = thr.partition_S(gX), thr.partition_D(gY), thr.partition_S(cX)
    for i in cutlass.range_constexpr(cute.size(tXcX)):
        if tXcX[i][1] < mX.shape[1]:
            tXgY[i] = tXgX[i] + 1.0


@cute.jit
def all_by_each(mX, mY, tile, thread):
    for i in cutlass.range(mX.shape[0]):
        for j in cutlass.range(mX.shape[1]):
            mY[i, j] = mX[i, j] + 1.0


@cute.jit
def the_first_tile_alone(mX, mY, tile, thread):
    add_one_part(mX, mY, (0, 0), thread)


def test_right_answers_are_right():
    answers = SimpleNamespace(four_to_a_row=four_to_a_row, holder=holder, add_one_part=add_one_part)
    assert [one.line for one in exercises.tried(NAME, answers) if one.status != exercises.RIGHT] == []


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        (
            "four_to_a_row",
            lambda: (cute.make_layout((8, 4)), cute.make_layout((1, 4))),
            "thread 1: got [(1, 0), (1, 1), (1, 2), (1, 3)]; needed [(0, 4), (0, 5), (0, 6), (0, 7)]",
        ),
        (
            "four_to_a_row",
            lambda: (cute.make_layout((8, 4), stride=(1, 8)), cute.make_layout((1, 4))),
            "thread 1: got [(1, 0), ",
        ),
        (
            "four_to_a_row",
            lambda: (cute.make_layout((8, 4), stride=(4, 1)), cute.make_layout((1, 2))),
            "thread 0: got [(0, 0), (0, 1), (0, 2), (0, 3), (0, 8),",
        ),
        ("four_to_a_row", lambda: (cute.make_layout((4, 8), stride=(8, 1)), cute.make_layout((2, 2))), "thread 0: got"),
        ("holder", lambda row, col: (col % 8 * 4 + row // 4, 0), "C[0, 1]: got (4, 0); needed (0, 1)"),
        ("holder", lambda row, col: (row % 8 * 4 + col // 2, col % 2), "C[8, 0]: got (0, 0); needed (0, 2)"),
        ("add_one_part", guards_the_first_of_four, "3 x 5: got [[2.0, 3.0, 4.0, 5.0, 6.0]"),
        ("add_one_part", guards_columns_alone, "3 x 5: got [[2.0, 3.0, 4.0, 5.0, 6.0]"),
        ("add_one_part", all_by_each, "elements that one thread writes: got 512; needed 16"),
        ("add_one_part", the_first_tile_alone, "9 x 17: got [["),
        ("holder", lambda row, col: (row * 4 + col // 2, col % 2), "C[8, 0]: got (32, 0); needed (0, 2)"),
        ("add_one_part", guards_rows_alone, "3 x 5: got [[2.0, 3.0, 4.0, 5.0, 6.0]"),
    ],
)
def test_wrong_answers_are_told_what_they_gave_and_must_give(name, answer, said):
    found = {one.name: one for one in exercises.tried(NAME, SimpleNamespace(**{name: answer}))}
    assert found[name].status == exercises.WRONG and said in found[name].detail
