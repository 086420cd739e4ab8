"""PTX that a kernel brings itself, statement by statement."""

from __future__ import annotations

import numpy as np
import pytest

from cookbook.check.pipeline.recorder import Recorder
from cookbook.simulate import assembly, integers
from cookbook.simulate.lines import Line
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import LANES, UNKNOWN, UnknownCode
from cookbook.simulate.warp import Place


def warp() -> Recorder:
    return Recorder(Place((1, 1, 1), (1, 1, 1), (LANES, 1, 1), (0, 0, 0), 0))


def operation(name: str, attributes: dict[str, str]) -> Operation:
    return Operation(name, (), (1,), (), ("i32",), attributes, Line(1))


def run(f: Recorder, text: str, *args, outputs: int = 1):
    """The result of a text with these operands."""
    op = operation("llvm.inline_asm", {"asm_string": text, "constraints": "=r" * outputs})
    with pytest.raises(StopIteration) as end:
        next(assembly._assembly(f, op, list(args)))
    return end.value.value


@pytest.mark.parametrize(
    "text, value",
    [
        ("add.s32 $0, $1, -3", 4),
        ("add.s32 $0, $1, 0x7fffffff", -(1 << 31) + 6),
        ("sub.u32 $0, $1, 8", (1 << 32) - 1),
        ("shl.b32 $0, $1, 30", 3 << 30),
        ("and.b32 $0, $1, 6", 6),
        ("or.b32 $0, $1, 8", 15),
        ("xor.b32 $0, $1, 5", 2),
        ("mov.b64 $0, {$1, 2}", 7 | 2 << 32),
        ("mov.b64 x, {-1, $1}; mov.b64 {low, high}, x; mov.b32 $0, high", 7),
        ("mov.b64 x, {-1, $1}; mov.b64 {low, high}, x; mov.b32 $0, low", (1 << 32) - 1),
        ("mov.b32 x, $1; add.u32 x, x, x; mov.b32 $0, x", 14),  # a register gets a value a second time
    ],
)
def test_registers_hold_what_is_computed(text, value):
    assert run(warp(), f"{{ .reg .b32 low, high; .reg .b64 x; {text}; }}", 7) == value


def test_lanes_that_a_predicate_leaves_out_keep_their_value():
    lane = np.arange(LANES)
    found = run(warp(), "{ .reg .pred p; setp.lt.s32 p, $1, 4; mov.b32 $0, 1; @p mov.b32 $0, 2; }", lane)
    assert found.tolist() == [2] * 4 + [1] * 28
    assert run(warp(), "{ .reg .pred p; setp.lt.s32 p, $1, 4; mov.b32 $0, 1; @p mov.b32 $0, 2; }", UNKNOWN) is UNKNOWN
    assert run(warp(), "{ .reg .pred p; elect.sync _|p, -1; mov.b32 $0, 1; @p mov.b32 $0, 2; }").sum() == 33


def test_registers_outside_of_braces_last():
    f = warp()
    run(f, ".reg .b32 x_<2>, y; mov.b32 x_0, $0; add.s32 x_1, x_0, 1;", 5, outputs=0)
    assert run(f, "{ add.s32 $0, x_0, x_1; add.s32 x_1, x_1, 10; }") == 11
    assert run(f, "{ .reg .b32 x_0; mov.b32 x_0, 100; add.s32 $0, x_0, x_1; }") == 116
    assert run(f, "{ mov.b32 $0, x_0; }") == 5


def test_data_have_no_value():
    assert run(warp(), "{ .reg .s32 a; mov.b32 a, $1; shl.b32 a, a, 23; mov.b32 $0, a; }", UNKNOWN) is UNKNOWN
    for text in ("add.s32 $0, $1, y", "frob.b32 $0, $1", "mul.wide.u32 $0, $1, $1"):
        with pytest.raises(UnknownCode, match="inline assembly"):
            run(warp(), f"{{ {text}; }}", 7)


def test_a_loop_that_looks_at_a_barrier_waits_for_it():
    f = warp()
    text = "{ .reg .pred P; A: mbarrier.try_wait.parity.shared::cta.b64 P, [$0], $1, 100; @P bra B; bra A; B: }"
    run(f, text, 24, 3, outputs=0)
    (event,) = f.events
    assert (event.what, event.barrier, event.count) == ("wait", (0, 24), 1)
    with pytest.raises(UnknownCode):
        run(f, text.replace("bra A", "bra B"), 24, 3, outputs=0)


@pytest.mark.parametrize(
    "text, what, flag",
    [
        ("griddepcontrol.wait;", "grid wait", False),
        ("tcgen05.wait::ld.sync.aligned;", "tensor wait", True),
        ("tcgen05.wait::st.sync.aligned;", "tensor wait", False),
        ("tcgen05.fence::after_thread_sync;", "tensor fence", True),
    ],
)
def test_a_wait_is_for_what_it_says(text, what, flag):
    f = warp()
    run(f, text, outputs=0)
    (event,) = f.events
    assert (event.what, event.flag) == (what, flag)
    with pytest.raises(UnknownCode):
        run(f, "barrier.cluster.wait.aligned;", outputs=0)


@pytest.mark.parametrize("kind, value", [("ballot", 0b11100), ("any", 1), ("all", 0), ("uni", UNKNOWN)])
def test_a_vote_is_of_the_active_lanes(kind, value):
    f = warp()
    f.active = np.arange(LANES) >= 2
    op = operation("nvvm.vote.sync", {"kind": kind})
    assert integers._vote(f, op, [-1, np.arange(LANES) < 5]) == value
    assert integers._vote(f, op, [-1, UNKNOWN]) is UNKNOWN
