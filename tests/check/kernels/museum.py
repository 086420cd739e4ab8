"""Mistakes that real kernels shipped with, in a few lines of our own: `docs/museum.md` shows them.

Each kernel takes `fixed`: whether the mistake is mended.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Constexpr, Float32, Int64
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.moved import SmemAllocator

LANES, THREADS = 32, 64


def asked(name: str, fixed: bool) -> tuple:
    """What to call for a kernel, and with which arguments: of `cookbook.testing.check`."""
    return (launch_stored, "f32[1,64]", fixed) if name == "stored" else (launch, name, "f32[256]", fixed)


@cute.jit
def start(made: cute.Pointer, counts: Constexpr):
    """Initialise an mbarrier for each count of arrivals, by one thread."""
    if cute.arch.warp_idx() == 0:
        with cute.arch.elect_one():
            for number, count in enumerate(counts):
                cute.arch.mbarrier_init(made + number, count)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()


@cute.kernel
def aliased(mX: cute.Tensor, fixed: Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    sA = SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS), 16)
    sC = cute.make_tensor(sA.iterator, cute.make_layout(THREADS))  # in the same place
    sA[tidx] = mX[tidx]
    cute.arch.sync_threads()
    total = sA[tidx] + sA[THREADS - 1 - tidx]
    if cutlass.const_expr(fixed):
        cute.arch.sync_threads()  # all have read A
    sC[tidx] = total
    mX[tidx] = sC[tidx]


@cute.kernel
def pingpong(mX: cute.Tensor, fixed: Constexpr):
    lane, group = cute.arch.lane_idx(), cute.arch.warp_idx()
    if group == 1:
        cute.arch.barrier_arrive(barrier_id=1, number_of_threads=THREADS)  # the other one is first
    for _ in cutlass.range(4, unroll=1):
        cute.arch.barrier(barrier_id=1 + group, number_of_threads=THREADS)
        mX[lane] = mX[lane] + 1.0
        following = 1 - group if cutlass.const_expr(fixed) else group
        cute.arch.barrier_arrive(barrier_id=1 + following, number_of_threads=THREADS)
    if group == 0:
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)


@cute.kernel
def stored(atom: cute.CopyAtom, mY: cute.Tensor, mX: cute.Tensor, fixed: Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    sY = SmemAllocator().allocate_tensor(Float32, cute.make_layout((1, THREADS), stride=(THREADS, 1)), 128)
    sY[0, tidx] = mX[0, tidx]
    if cutlass.const_expr(fixed):
        cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    if cute.arch.warp_idx() == 0:
        source, target = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(sY, 0, 2), cute.group_modes(mY, 0, 2)
        )
        with cute.arch.elect_one():
            cute.copy(atom, source, target)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.kernel
def one_arrives(mX: cute.Tensor, fixed: Constexpr):
    lane, warp, smem = cute.arch.lane_idx(), cute.arch.warp_idx(), SmemAllocator()
    sX = smem.allocate_tensor(Float32, cute.make_layout(LANES), 16)
    full = smem.allocate_array(Int64, 1)
    start(full, (LANES if fixed else 1,))
    if warp == 0:
        sX[lane] = mX[lane]  # 32 lanes store
        if cutlass.const_expr(fixed):
            cute.arch.mbarrier_arrive(full)
        else:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(full)
    else:
        cute.arch.mbarrier_wait(full, 0)
        mX[lane] = sX[LANES - 1 - lane]


@cute.kernel
def never_waited(mX: cute.Tensor, fixed: Constexpr):
    lane, warp, smem = cute.arch.lane_idx(), cute.arch.warp_idx(), SmemAllocator()
    sX = smem.allocate_tensor(Float32, cute.make_layout((LANES, 2)), 16)
    full = smem.allocate_array(Int64, 2)
    start(full, (LANES, LANES))
    if warp == 0:
        for part in cutlass.range_constexpr(2):
            sX[lane, part] = mX[lane]
            cute.arch.mbarrier_arrive(full + part)
    else:
        cute.arch.mbarrier_wait(full, 0)
        if cutlass.const_expr(fixed):
            cute.arch.mbarrier_wait(full + 1, 0)
        mX[lane] = sX[lane, 0] + sX[lane, 1]


@cute.kernel
def left_early(mX: cute.Tensor, fixed: Constexpr):
    rank = cute.arch.block_idx_in_cluster()
    done = SmemAllocator().allocate_array(Int64, 1)
    start(done, (1,))
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()
    if rank == 1 and cute.arch.warp_idx() == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(done, 0)  # that of CTA 0, which may have ended
    if cutlass.const_expr(fixed):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


@cute.kernel
def empty_tile(mX: cute.Tensor, fixed: Constexpr):
    lane, warp, smem = cute.arch.lane_idx(), cute.arch.warp_idx(), SmemAllocator()
    done = smem.allocate_array(Int64, 1)
    start(done, (LANES,))
    for tile in cutlass.range(2, unroll=1):
        if warp == 0:
            if tile == 1:  # it has no blocks, and says at once that it is done
                cute.arch.mbarrier_arrive(done)
            if tile == 0 or cutlass.const_expr(not fixed):
                mX[lane] = mX[lane] + 1.0
                cute.arch.mbarrier_arrive(done)
        else:
            cute.arch.mbarrier_wait(done, tile % 2)
        cute.arch.sync_threads()


@cute.kernel
def idle_warp(mX: cute.Tensor, fixed: Constexpr):
    warp = cute.arch.warp_idx()
    if warp < 4:
        if warp != 3 or cutlass.const_expr(fixed):  # warp 3 is idle
            cute.arch.setmaxregister_decrease(24)
    else:
        cute.arch.setmaxregister_increase(240)


@cute.kernel
def block_index(mX: cute.Tensor, fixed: Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    block, stages = 1, 1
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout(2 * THREADS), 16)
    first = block * stages if cutlass.const_expr(fixed) else block * 2
    sX[first * THREADS + tidx] = mX[tidx]


@cute.kernel
def two_way(mX: cute.Tensor, fixed: Constexpr):
    lane = cute.arch.lane_idx()
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout(2 * LANES), 16)
    for number in cutlass.range_constexpr(2):
        at = lane // 16 ^ number if cutlass.const_expr(fixed) else number
        sX[2 * lane + at] = mX[lane]


@cute.jit
def launch(kernel: Constexpr, mX: cute.Tensor, fixed: Constexpr):
    threads, cluster = {"left_early": (64, 2), "idle_warp": (384, 1), "two_way": (32, 1)}.get(kernel, (THREADS, 1))
    made = globals()[kernel](mX, fixed)
    made.launch(grid=(cluster, 1, 1), block=(threads, 1, 1), cluster=(cluster, 1, 1))


@cute.jit
def launch_stored(mX: cute.Tensor, fixed: Constexpr):
    layout = cute.make_layout((1, THREADS), stride=(THREADS, 1))
    atom, mY = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mX, layout, (1, THREADS))
    stored(atom, mY, mX, fixed).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))
