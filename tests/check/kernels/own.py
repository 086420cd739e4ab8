"""Small kernels of our own, and the table of what to check of them."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

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
