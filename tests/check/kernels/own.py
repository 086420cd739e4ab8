"""Small kernels of our own, and the table of what to check of them."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warp

from cookbook.recipe.moved import SmemAllocator

THREADS = 64


@cute.kernel
def mirrored(mX: cute.Tensor, factor: cutlass.Int32, waits: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    sX = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 16)
    sX[tidx] = mX[tidx]
    if cutlass.const_expr(waits):
        cute.arch.sync_threads()
    mX[tidx] = sX[THREADS - 1 - tidx]


@cute.jit
def mirror(mX: cute.Tensor, factor: cutlass.Int32, waits: cutlass.Constexpr, stream):
    mirrored(mX, factor, waits).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.jit
def twice(mX: cute.Tensor, mY: cute.Tensor):
    mirrored(mX, 1, True).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))
    mirrored(mY, 1, False).launch(grid=(2, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def columns(mX: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    sX = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout((32, 32), stride=(32, 1)), 16)
    sX[tidx, 0] = mX[tidx]
    sX[tidx, 1] = mX[tidx]  # cookbook: allow bank-conflict, written once
    # cookbook: allow bank-conflict, the line below is read once
    mX[tidx] = sX[tidx, 0]
    mX[tidx] = sX[tidx, 1]  # cookbook: allow bank-conflict


@cute.jit
def transposed(mX: cute.Tensor):
    columns(mX).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def asked(mX: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    if mX[0] > 0.0:
        cute.arch.sync_threads()
    mX[tidx] = mX[tidx + 1]


@cute.jit
def depends(mX: cute.Tensor):
    asked(mX).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def multiplied(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, tiled_mma: cute.TiledMma, skips: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    thread = tiled_mma.get_slice(tidx)
    gA = cute.local_tile(a, (16, 8, 32), (0, 1, 0), proj=(1, None, 1))  # whichever columns of C it is for
    tCgA, tCgB, tCgC = thread.partition_A(gA), thread.partition_B(b), thread.partition_C(c)
    tCrA, tCrB = tiled_mma.make_fragment_A(tCgA), tiled_mma.make_fragment_B(tCgB)
    tCrC = tiled_mma.make_fragment_C(tCgC)
    cute.autovec_copy(tCgA, tCrA)
    cute.autovec_copy(tCgB, tCrB)
    tCrC.fill(0.0)
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2]) - skips):
        cute.gemm(tiled_mma, tCrC, tCrA[None, None, k], tCrB[None, None, k], tCrC)
    cute.autovec_copy(tCrC, tCgC)


@cute.jit
def multiply(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, skips: cutlass.Constexpr):
    tiled_mma = cute.make_tiled_mma(warp.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (16, 8, 16)))
    multiplied(a, b, c, tiled_mma, skips).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def waited(mX: cute.Tensor):
    warp_idx, full = cute.arch.warp_idx(), SmemAllocator().allocate_array(cutlass.Int64, 1)
    if warp_idx == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(full, 33)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp_idx == 0:
        cute.arch.mbarrier_arrive(full)
    else:
        cute.arch.mbarrier_wait(full, 0)
        mX[cute.arch.lane_idx()] = 0.0


@cute.jit
def lone(mX: cute.Tensor):
    waited(mX).launch(grid=(1, 1, 1), block=(64, 1, 1))


class Mirror:
    """An object that is called: its class has the decorated function."""

    def __init__(self, waits: bool):
        self.waits = waits

    @cute.jit
    def __call__(self, mX: cute.Tensor, stream):
        mirrored(mX, 1, self.waits).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


CHECKS = {
    "waits": {"function": mirror, "arguments": ["f32[m]", 3, True, "stream"], "arch": "sm_90a", "sizes": {"m": 64}},
    "races": {"build": lambda: Mirror(False), "arguments": ["f32[64]", "stream"], "arch": "sm_90a"},
}
