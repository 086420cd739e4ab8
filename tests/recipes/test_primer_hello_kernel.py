"""The primer's first page: what its table says of CuTe's refusals, and its exercises with right and wrong answers."""

from __future__ import annotations

from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

from cookbook.check import exercises
from cookbook.recipe import catalog

NAME = "primer/hello_kernel"
PAGE = catalog.find(NAME).file.read_text(encoding="utf-8")


@cute.jit
def returns_early(mX, n: cutlass.Int32):
    if n > 3:
        return
    mX[0] = 1.0


@cute.jit
def breaks(mX, n: cutlass.Int32):
    for i in cutlass.range(n):
        if i == 2:
            break
        mX[i] = 1.0


@cute.jit
def born_in_a_branch(mX, n: cutlass.Int32):
    if n > 3:
        v = 1.0
    mX[0] = v


@cute.jit
def changes_its_type(mX, n: cutlass.Int32):
    v = 0
    for i in cutlass.range(n):
        v = v + mX[i]
    mX[0] = v


@cute.jit
def keeps_its_type(mX, n: cutlass.Int32):
    v = cutlass.Float32(0)
    for i in cutlass.range(n):
        v = v + mX[i]
    mX[0] = v


@cute.jit
def unrolls(mX, n: cutlass.Int32):
    for i in cutlass.range_constexpr(n):
        mX[i] = 1.0


@cute.jit
def indexes_a_tuple(mX, n: cutlass.Int32):
    mX[0] = (1.0, 2.0)[n]


@cute.jit
def indexes_registers(mX, n: cutlass.Int32):
    values = cute.make_rmem_tensor((2,), cutlass.Float32)
    values[0], values[1] = 1.0, 2.0
    mX[0] = values[n]


def undecorated(mX, n):
    if n > 3:
        mX[0] = 1.0


@cute.jit
def calls_an_undecorated_one(mX, n: cutlass.Int32):
    undecorated(mX, n)


REFUSED = {
    "UNSUP_EARLY_EXIT": (returns_early, breaks),
    "name 'v' is not defined": (born_in_a_branch,),
    "TYPE_UNSTABLE_JOIN": (changes_its_type,),
    "ARG_NON_CONSTANT": (unrolls,),
    "PHASE_DYNAMIC_INDEX": (indexes_a_tuple,),
    "PHASE_DYNAMIC_TO_STATIC_BOOL": (calls_an_undecorated_one,),
}


@pytest.mark.parametrize(("said", "functions"), REFUSED.items())
def test_cute_says_what_the_table_says(said, functions):
    assert said in PAGE
    for function in functions:
        with pytest.raises(Exception, match=said):
            cute.compile(function, from_dlpack(torch.ones(4)), cutlass.Int32(2))


@pytest.mark.parametrize(("function", "first"), [(keeps_its_type, 2.0), (indexes_registers, 2.0)])
def test_what_the_table_says_to_write_instead_runs(function, first):
    x = torch.ones(4)
    function(from_dlpack(x), 2 if function is keeps_its_type else 1)
    assert x[0] == first


SEEN: list[str] = []


def note(what):
    SEEN.append(what)


@cute.jit
def traces_both_branches(mX, n: cutlass.Int32):
    if n > 3:
        note("if")
    else:
        note("else")
    for _ in range(2):  # a plain range of known numbers
        note("round")
    for _ in cutlass.range_constexpr(2):
        note("unrolled")


def test_what_is_traced_how_often():
    SEEN.clear()
    cute.compile(traces_both_branches, from_dlpack(torch.ones(4)), cutlass.Int32(2))
    assert SEEN == ["if", "else", "round", "unrolled", "unrolled"]


# --- the exercises ----------------------------------------------------------------------------------------------------


@cute.jit
def scale_one(mX, mY, i):
    if i < cute.size(mY):
        mY[i] = 2.0 * mX[i]


@cute.jit
def square_strided(mX, mY, threads, thread):
    for i in cutlass.range(thread, cute.size(mY), threads):
        mY[i] = mX[i] * mX[i]


@cute.jit
def find_largest(mX, mY, i):
    best = mX[0]
    for j in cutlass.range(1, cute.size(mX)):
        if mX[j] > best:
            best = mX[j]
    mY[0] = best


@cute.jit
def unguarded(mX, mY, i):
    mY[i] = 2.0 * mX[i % cute.size(mX)]


@cute.jit
def one_each(mX, mY, threads, thread):
    mY[thread] = mX[thread] * mX[thread]


@cute.jit
def from_zero(mX, mY, i):
    best = cutlass.Float32(0)
    for j in cutlass.range(cute.size(mX)):
        if mX[j] > best:
            best = mX[j]
    mY[0] = best


@cute.jit
def guarded_by_x(mX, mY, i):
    if i < cute.size(mX):
        mY[i] = 2.0 * mX[i]


@cute.jit
def all_by_each(mX, mY, i):
    for j in cutlass.range(cute.size(mY)):
        mY[j] = 2.0 * mX[j]


@cute.jit
def one_too_few(mX, mY, i):
    if i < cute.size(mY) - 1:
        mY[i] = 2.0 * mX[i]


@cute.jit
def step_of_one(mX, mY, threads, thread):
    for i in cutlass.range(thread, cute.size(mY), 1):
        mY[i] = mX[i] * mX[i]


@cute.jit
def step_of_four(mX, mY, threads, thread):
    for i in cutlass.range(thread, cute.size(mY), 4):
        mY[i] = mX[i] * mX[i]


@cute.jit
def from_zero_in_steps(mX, mY, threads, thread):
    for i in cutlass.range(0, cute.size(mY), threads):
        mY[i] = mX[i] * mX[i]


@cute.jit
def in_blocks(mX, mY, threads, thread):
    each = cute.ceil_div(cute.size(mY), threads)
    for i in cutlass.range(thread * each, cutlass.min(cute.size(mY), (thread + 1) * each)):
        mY[i] = mX[i] * mX[i]


@cute.jit
def larger_than_the_one_before(mX, mY, i):
    best = mX[0]
    for j in cutlass.range(1, cute.size(mX)):
        if mX[j] > mX[j - 1]:
            best = mX[j]
    mY[0] = best


@cute.jit
def without_the_first(mX, mY, i):
    best = mX[cute.size(mX) - 1]
    for j in cutlass.range(1, cute.size(mX)):
        if mX[j] > best:
            best = mX[j]
    mY[0] = best


@cute.jit
def from_a_small_number(mX, mY, i):
    best = cutlass.Float32(-1e30)
    for j in cutlass.range(cute.size(mX)):
        if mX[j] > best:
            best = mX[j]
    mY[0] = best


@cute.jit
def the_last(mX, mY, i):
    mY[0] = mX[cute.size(mX) - 1]


@cute.jit
def begins_with_an_integer(mX, mY, i):
    best = 0
    for j in cutlass.range(cute.size(mX)):
        if mX[j] > best:
            best = mX[j]
    mY[0] = best


def test_right_answers_are_right():
    answers = SimpleNamespace(scale_one=scale_one, square_strided=square_strided, find_largest=find_largest)
    assert [one.status for one in exercises.tried(NAME, answers)] == [exercises.RIGHT] * 3


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("scale_one", unguarded, "needed [6.0, -10.0, 8.0, 2.0, 4.0, 12.0, -1.0, -1.0, -1.0]"),
        ("scale_one", guarded_by_x, "y of 4 and 3 elements behind it, 8 threads: got [6.0, -10.0, 8.0, 2.0, 4.0, 12.0"),
        ("scale_one", all_by_each, "y of 6 and 3 elements behind it, 2 threads: got [6.0, -10.0, 8.0, 2.0, 4.0, 12.0"),
        ("scale_one", one_too_few, "got [6.0, -10.0, 8.0, 2.0, 4.0, -1.0"),
        ("square_strided", step_of_one, "y by threads 0 to 0 of 4: got [9.0, 25.0, 16.0, 1.0, 4.0, 36.0"),
        ("square_strided", step_of_four, "y by threads 0 to 1 of 3: got [9.0, 25.0, -1.0, -1.0, 4.0, 36.0"),
        ("square_strided", from_zero_in_steps, "y by threads 0 to 3 of 4: got [9.0, -1.0, -1.0, -1.0, 4.0, -1.0"),
        ("square_strided", in_blocks, "y by threads 0 to 0 of 4: got [9.0, 25.0, -1.0"),
        ("find_largest", larger_than_the_one_before, "y of [9.0, 1.0, 2.0]: got [2.0"),
        ("find_largest", without_the_first, "y of [9.0, 1.0, 2.0]: got [2.0"),
        ("find_largest", from_a_small_number, "got [-1.0000000150474662e+30"),
        ("find_largest", the_last, "y of [9.0, 1.0, 2.0]: got [2.0"),
        ("square_strided", one_each, "got [9.0, 25.0, 16.0, 1.0, -1.0, -1.0"),
        ("find_largest", from_zero, "y of [-2.0, -1.0]: got [0.0, -1.0, -1.0, -1.0]; needed [-1.0, -1.0, -1.0, -1.0]"),
        ("find_largest", begins_with_an_integer, "it raised DSLUserCodeError: error[TYPE_UNSTABLE_JOIN]"),
    ],
)
def test_wrong_answers_are_told_what_they_gave_and_must_give(name, answer, said):
    found = {one.name: one for one in exercises.tried(NAME, SimpleNamespace(**{name: answer}))}
    assert found[name].status == exercises.WRONG and said in found[name].detail
    assert {one.status for key, one in found.items() if key != name} == {exercises.OPEN}
