"""The primer's page on composed layouts: its traps as they are in memory, and its exercises."""

from __future__ import annotations

from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

from cookbook.check import exercises
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

NAME = "primer/composed_layouts"


def test_every_claim_holds():
    assert [name for name, holds, _ in catalog.load(NAME).facts() if not holds] == []


def test_the_pages_swizzle_is_the_packages():
    page = catalog.load(NAME)
    for numbers in ((3, 4, 3), (2, 4, 3), (3, 3, 3), (2, 0, 5)):
        assert [page.swizzled(n, *numbers) for n in range(4096)] == [Swizzle(*numbers)(n) for n in range(4096)]


def rows():
    return cute.make_layout((8, 64), stride=(64, 1))


@cute.jit
def shifted_by_layout(mX: cute.Tensor):
    tile = cute.make_tensor(mX.iterator, cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, rows()))
    cute.domain_offset((1, 0), tile)[0, 8] = cutlass.Int16(1)


@cute.jit
def shifted_by_pointer(mX: cute.Tensor):
    tile = cute.make_tensor(cute.recast_ptr(mX.iterator, cute.make_swizzle(3, 4, 3)), rows())
    cute.domain_offset((1, 0), tile)[0, 8] = cutlass.Int16(1)


@cute.jit
def views(mX: cute.Tensor, found: cutlass.Constexpr):
    swizzle = cute.make_swizzle(3, 4, 3)
    pointer = cute.recast_ptr(mX.iterator, swizzle)
    found["lost"] = str(cute.recast_ptr(pointer, dtype=cutlass.Int32))
    found["kept"] = str(cute.recast_ptr(pointer, swizzle, dtype=cutlass.Int32))


def aligned():
    memory = torch.zeros(2048, dtype=torch.int16)
    start = -memory.data_ptr() % 1024 // 2
    return memory[start : start + 600]


def test_domain_offset_is_right_with_the_pointers_swizzle():
    """Element (1, 8) lies at 64: its slot is 0."""
    for store, place in ((shifted_by_pointer, 64), (shifted_by_layout, 80)):
        memory = aligned()
        store(from_dlpack(memory))
        assert memory.nonzero().flatten().tolist() == [place]


def test_a_view_of_another_dtype_needs_the_swizzle_again():
    found = {}
    views(from_dlpack(aligned()), found)
    assert "S<3,4,3>" in found["kept"] and "S<" not in found["lost"]


# --- the exercises ----------------------------------------------------------------------------------------------------


def in_elements(element_bytes):
    return 3, 4 - (element_bytes.bit_length() - 1), 3


def place(base, row, col):
    return Swizzle(3, 4, 3)(base + 128 * row + 2 * col)


@pytest.mark.parametrize("numbers", [(2, 4, 3), (3, 4, 3)])
def test_right_answers_are_right(numbers):
    answers = SimpleNamespace(in_elements=in_elements, for_short_rows=lambda: numbers, place=place)
    assert [one.line for one in exercises.tried(NAME, answers) if one.status != exercises.RIGHT] == []


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("in_elements", lambda size: (3, 3, 3), "1 bytes: got (3, 3, 3); needed (3, 4, 3)"),
        (
            "for_short_rows",
            lambda: (2, 3, 3),
            "last element of a chunk: got [14, -2, 14, -2, 14, -2, 14, -2]; needed [14, 14",
        ),
        ("for_short_rows", lambda: (2, 4, 2), "groups of banks of each column: got [4, 4, 4, 4]; needed [8, 8, 8, 8]"),
        ("for_short_rows", lambda: (0, 4, 3), "groups of banks of each column: got [2, 2, 2, 2]; needed [8, 8, 8, 8]"),
        ("for_short_rows", lambda: (4, 4, 3), "bits of (4, 4, 3) that the shift leaves apart: got 3; needed 4"),
        ("for_short_rows", lambda: (3, 4, 2), "bits of (3, 4, 2) that the shift leaves apart: got 2; needed 3"),
        ("in_elements", lambda size: (3, 4, 3), "2 bytes: got (3, 4, 3); needed (3, 3, 3)"),
        ("in_elements", lambda size: (3, max(2, 5 - size.bit_length()), 3), "8 bytes: got (3, 2, 3)"),
        ("place", lambda base, row, col: Swizzle(3, 4, 3)(base + 128 * row + col), "base 0, (2, 9): got"),
        ("place", lambda base, row, col: base + 128 * row + 2 * col, "base 0, (1, 0): got 128; needed 144"),
        ("place", lambda base, row, col: base + Swizzle(3, 4, 3)(128 * row + 2 * col), "base 128, (1, 0): got 272"),
    ],
)
def test_wrong_answers_are_told_what_they_gave_and_must_give(name, answer, said):
    found = {one.name: one for one in exercises.tried(NAME, SimpleNamespace(**{name: answer}))}
    assert found[name].status == exercises.WRONG and said in found[name].detail
