"""A `@cute.jit` function that is no recipe's is traced and followed: its barriers, its branches, its bytes."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass.cute.runtime import make_fake_compact_tensor

from cookbook.check.banks import Counter
from cookbook.check.pipeline.machine import Machine
from cookbook.check.pipeline.programs import launched, of_cluster, warps_of
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


@cute.kernel
def multiply_kernel(mC: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    sA = smem.allocate_tensor(cutlass.Float32, cute.make_layout((16, 2)), 128)
    sB = smem.allocate_tensor(cutlass.Float32, cute.make_layout((32, 2)), 128)
    atoms = cute.make_layout((4, 8, 1), stride=(8, 1, 0))
    permutation = (cute.make_layout((4, 4), stride=(4, 1)), cute.make_layout((8, 4), stride=(4, 1)), None)
    mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms, permutation_mnk=permutation)
    share = mma.get_slice(tidx)
    tCsA, tCsB, tCgC = share.partition_A(sA), share.partition_B(sB), share.partition_C(mC)
    rA, rB, acc = mma.make_fragment_A(tCsA), mma.make_fragment_B(tCsB), mma.make_fragment_C(tCgC)
    acc.fill(0.0)
    cute.autovec_copy(tCsA, rA)
    cute.autovec_copy(tCsB, rB)
    cute.gemm(mma, acc, rA, rB, acc)
    cute.autovec_copy(acc, tCgC)


@cute.jit
def multiply(mC: cute.Tensor):
    multiply_kernel(mC).launch(grid=(1, 1, 1), block=(32, 1, 1))


def test_a_thread_multiplies_its_elements_in_permuted_order():
    made = trace(multiply, make_fake_compact_tensor(cutlass.Float32, (16, 32)), arch="sm_90a")
    launch, shared = launched(made, [None])
    (warp,) = [each for _, each in warps_of(made, launch, shared, kind=Counter)]
    lanes = np.arange(32)
    first, second = sorted(warp.asked, key=lambda key: key[0])
    for (line, what, width), thread in ((first, lanes // 8), (second, lanes % 8)):
        assert (what, width) == ("ld", 16)
        begins = [np.array(asked) for asked in warp.asked[line, what, width]]
        assert any((each - each[0] == 16 * thread).all() for each in begins)
