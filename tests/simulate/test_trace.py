"""A trace of any `@cute.jit` function: its operations, their values, attributes and lines."""

from __future__ import annotations

from pathlib import Path

import cutlass
import cutlass.cute as cute
import pytest
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cute.runtime import make_fake_compact_tensor

from cookbook.simulate.trace import trace, traced_by, walk

STEPS = 3


@cute.kernel
def kernel(mX: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    for _ in cutlass.range(STEPS, unroll=1):
        cute.arch.sync_threads()
    if tidx < 8:
        mX[tidx] = mX[tidx] + 1.5


@cute.jit
def add(mX: cute.Tensor):
    kernel(mX).launch(grid=(2, 1, 1), block=(64, 1, 1))


@cute.kernel
def brings_ptx(mX: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < 8:
        place = tidx * 2
        llvm.inline_asm(None, [Int32(place).ir_value()], "{ .reg .b32 a; mov.b32 a, $0; }", "r", has_side_effects=True)
        mX[place] = 1.5


@cute.jit
def bring(mX: cute.Tensor):
    brings_ptx(mX).launch(grid=(1, 1, 1), block=(64, 1, 1))


def traced():
    return trace(add, make_fake_compact_tensor(cutlass.Float32, (64,)), arch="sm_90a")


def one(found, name):
    """The one operation of this name in the kernel."""
    (operation,) = (op for op in walk(found.find("cuda.kernel")[0].regions[0]) if op.name == name)
    return operation


def test_loops_and_branches_are_in_place():
    found = traced()
    loop, branch, barrier = (one(found, name) for name in ("scf.for", "scf.if", "nvvm.barrier"))
    assert loop.regions[0].operations[0] is barrier and barrier in list(found)
    assert len(loop.operands) == 3 and len(loop.regions[0].arguments) == 1
    stores = [op for op in found if op.name == "cute.memref.store"]
    assert stores and stores[0] in branch.regions[0].operations


def test_an_operation_names_what_it_is_made_from():
    found = traced()
    compare, tid = one(found, "arith.cmpi"), one(found, "nvvm.read.ptx.sreg.tid.x")
    assert compare.operands[0] == tid.results[0] and compare.operand_types == ("i32", "i32")
    constants = {op.results[0]: op.get("value") for op in found.find("arith.constant")}
    assert constants[compare.operands[1]] == 8 and compare.result_types == ("i1",)
    assert 1.5 in constants.values() and [constants[x] for x in one(found, "scf.for").operands] == [0, STEPS, 1]


def test_an_operation_knows_its_line():
    barrier = one(traced(), "nvvm.barrier")
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "sync_threads" in lines[barrier.line - 1] and barrier.line.file == __file__
    assert str(barrier.line) == f"{int(barrier.line)} of kernel"


def test_ptx_that_names_no_line_has_that_of_the_step_before():
    (op,) = trace(bring, make_fake_compact_tensor(cutlass.Float32, (64,)), arch="sm_90a").find("llvm.inline_asm")
    assert op.line.source == "place = tidx * 2" and op.line.function == "brings_ptx"


def test_the_host_names_the_kernel_that_it_launches():
    found = traced()
    (launch,) = found.find("cuda.launch_ex")
    assert found.kernel(launch.attributes["callee"][-1]) is found.find("cuda.kernel")[0].regions[0]
    assert len(found.host.arguments) == 1 and found.host.argument_types[0].startswith("!cute.memref<f32, gmem")


def test_equal_functions_have_equal_traces():
    assert str(traced()) == str(traced())
    global STEPS
    before = str(traced())
    STEPS = 4
    try:
        assert str(traced()) != before
    finally:
        STEPS = 3


def test_what_is_not_traced_is_said():
    with pytest.raises(RuntimeError, match=r"got 0 traces of one compile; needed 1, of a @cute\.jit"):
        traced_by(lambda: None)
