"""A `@cute.jit` function that is no recipe's is traced and followed: its barriers, its branches, its bytes."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import pytest
from cutlass.cute.runtime import make_fake_compact_tensor

from cookbook.check.pipeline.machine import Machine
from cookbook.check.pipeline.programs import of_cluster
from cookbook.recipe.moved import SmemAllocator
from cookbook.simulate.trace import trace

THREADS, ROUNDS = 64, 3


@cute.kernel
def kernel(mX: cute.Tensor, waits: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    sX = smem.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 16)
    for _ in cutlass.range(ROUNDS, unroll=1):
        sX[tidx] = mX[tidx]
        if cutlass.const_expr(waits):
            cute.arch.sync_threads()
        mX[tidx] = sX[THREADS - 1 - tidx]
        cute.arch.sync_threads()


@cute.jit
def turn(mX: cute.Tensor, waits: cutlass.Constexpr):
    kernel(mX, waits).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


def followed(waits: bool, extent=THREADS):
    given = make_fake_compact_tensor(cutlass.Float32, (extent,))
    made = trace(turn, given, waits, arch="sm_90a")
    return of_cluster(made, [None if isinstance(extent, int) else ((THREADS,), (1,))])


@pytest.mark.parametrize("extent", [THREADS, cute.sym_int32()])
def test_each_warp_s_bytes_are_its_lanes(extent):
    programs = followed(True, extent)
    assert list(programs.warps) == [(0, 0), (0, 1)]
    for warp, events in enumerate(programs.warps.values()):
        assert sum(event.what == "meet" for event in events) == 2 * ROUNDS
        half, bits = [(1 << 32) - 1, (1 << 32) - 1 << 32], {"write": set(), "read": set()}
        for event in events:
            if event.what in bits:
                bits[event.what] |= {covers for _, covers in event.targets}
        assert bits == {"write": {half[warp]}, "read": {half[1 - warp]}}
        assert {event.name for event in events if event.what == "global"} == {"argument 0"}


def test_a_barrier_that_is_left_out_is_a_race():
    assert Machine(followed(True)).run() == []
    (fault, *_) = Machine(followed(False)).run()
    assert fault.rule == "race" and "which touches the same bytes" in fault.text
