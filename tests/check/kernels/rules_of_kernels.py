"""Kernels that are right, though a stricter reading of what they do would say otherwise."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Constexpr, Float32, Int32, Int64

from cookbook.recipe.moved import SmemAllocator

THREADS = 64


@cute.kernel
def few_threads(mX: cute.Tensor, given: Constexpr, taken: Constexpr):
    if cute.arch.warp_idx() < 4:
        cute.arch.setmaxregister_decrease(given)
    else:
        cute.arch.setmaxregister_increase(taken)


@cute.jit
def registers(mX: cute.Tensor, given: Constexpr, taken: Constexpr):
    few_threads(mX, given, taken).launch(grid=(1, 1, 1), block=(256, 1, 1))


@cute.kernel
def divides(mX: cute.Tensor, by: Int32, uses: Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS), 16)
    place = tidx % by
    if by == 0 and cutlass.const_expr(not uses):
        place = tidx
    sX[place] = mX[tidx]


@cute.jit
def divided(mX: cute.Tensor, by: Int32, uses: Constexpr):
    divides(mX, by, uses).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def spins(mX: cute.Tensor, waits: Constexpr):
    lane, warp, smem = cute.arch.lane_idx(), cute.arch.warp_idx(), SmemAllocator()
    sX = smem.allocate_tensor(Float32, cute.make_layout(32), 16)
    full = smem.allocate_array(Int64, 1)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(full, 32)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 0:
        sX[lane] = mX[lane]
        cute.arch.mbarrier_arrive(full)
    else:
        if cutlass.const_expr(waits):
            done = cute.arch.mbarrier_try_wait(full, 0)
            while not done:
                done = cute.arch.mbarrier_try_wait(full, 0)
        else:
            cute.arch.mbarrier_try_wait(full, 0)
        mX[lane] = sX[lane]


@cute.jit
def spun(mX: cute.Tensor, waits: Constexpr):
    spins(mX, waits).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def neighbours(mX: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout((32, 4), stride=(4, 1)), 16)
    rX = cute.make_rmem_tensor(cute.make_layout(4), Float32)
    rX.fill(0.0)
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32)
    cute.copy(atom, rX, sX[tidx, None])


@cute.jit
def merged(mX: cute.Tensor):
    neighbours(mX).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def moves(mX: cute.Tensor, mY: cute.Tensor, waits: Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    if cutlass.const_expr(waits):
        cute.arch.griddepcontrol_wait()
    mY[tidx] = mX[tidx]


@cute.jit
def chain(mX: cute.Tensor, mY: cute.Tensor, mZ: cute.Tensor, waits: Constexpr):
    moves(mX, mY, False).launch(grid=(1, 1, 1), block=(32, 1, 1), use_pdl=True)
    moves(mY, mZ, waits).launch(grid=(1, 1, 1), block=(32, 1, 1), use_pdl=True)


@cute.jit
def apart(mX: cute.Tensor, mY: cute.Tensor, mZ: cute.Tensor):
    moves(mX, mY, False).launch(grid=(1, 1, 1), block=(32, 1, 1), use_pdl=True)
    moves(mX, mZ, False).launch(grid=(1, 1, 1), block=(32, 1, 1), use_pdl=True)


@cute.kernel
def chosen_modes(mX: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    turned = cute.make_tensor(mX.iterator, cute.select(mX.layout, mode=[1, 0]))
    lines = cute.get(turned.layout, mode=[1])
    for line in cutlass.range(cute.size(lines), unroll=1):
        turned[tidx, line] = turned[tidx, line] + 1.0


@cute.jit
def modes(mX: cute.Tensor):
    chosen_modes(mX).launch(grid=(1, 1, 1), block=(32, 1, 1))
