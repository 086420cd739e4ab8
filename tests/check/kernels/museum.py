"""Mistakes that real kernels shipped with, in a few lines of our own: `docs/museum.md` shows them.

Each kernel takes `fixed`: whether the mistake is mended.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Constexpr, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, tcgen05

from cookbook.recipe.moved import SmemAllocator

LANES, THREADS, COLUMNS = 32, 64, 32
SHAPES = {"left_early": (64, 2), "idle_warp": (384, 1), "two_way": (32, 1)}  # threads, CTAs
SHAPES |= dict.fromkeys(("given_back", "just_asked"), (160, 1))


def asked(name: str, fixed: bool) -> tuple:
    """What to call for a kernel, and with which arguments: of `cookbook.testing.check`."""
    return (launch_stored, "f32[1,64]", fixed) if name == "stored" else (launch, name, "f32[256]", fixed)


def arch(name: str) -> str:
    """The compile target of a kernel."""
    return "sm_100a" if name in ("given_back", "just_asked") else "sm_90a"


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


@cute.jit
def allocated(holder: cute.Pointer):
    """(lane, column) of tensor memory that the first warp allocates."""
    if cute.arch.warp_idx() == 0:
        cute.arch.alloc_tmem(COLUMNS, holder)
    cute.arch.sync_threads()
    pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
    return cute.make_tensor(pointer, cute.make_layout((128, COLUMNS), stride=(1 << 16, 1)))


def registers(partition):
    """Registers for what a thread copies of `allocated`'s tensor."""
    return cute.make_rmem_tensor(partition(cute.make_identity_tensor((128, COLUMNS))).shape, Float32)


def tmem_load():
    return cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32)


def tmem_store():
    return cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x32), Float32)


@cute.kernel
def given_back(mX: cute.Tensor, fixed: Constexpr):
    lane, warp, smem = cute.arch.lane_idx(), cute.arch.warp_idx(), SmemAllocator()
    free, holder = smem.allocate_array(Int64, 1), smem.allocate_array(Int32, 1)
    start(free, (LANES,))
    columns = allocated(holder)
    if warp == 0:
        load = tcgen05.make_tmem_copy(tmem_load(), columns).get_slice(lane)
        rX = registers(load.partition_D)
        cute.copy(load, load.partition_S(columns), rX)
        if cutlass.const_expr(fixed):
            cute.arch.fence_view_async_tmem_load()
        cute.arch.mbarrier_arrive(free)  # the columns may be written
        mX[lane] = rX[0]
    elif warp == 4:
        cute.arch.mbarrier_wait(free, 0)
        store = tcgen05.make_tmem_copy(tmem_store(), columns).get_slice(lane)
        rY = registers(store.partition_S)
        rY.fill(0.0)
        cute.copy(store, rY, store.partition_D(columns))
        cute.arch.fence_view_async_tmem_store()
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.dealloc_tmem(columns.iterator, COLUMNS)


@cute.kernel
def just_asked(mX: cute.Tensor, fixed: Constexpr):
    lane, warp, smem = cute.arch.lane_idx(), cute.arch.warp_idx(), SmemAllocator()
    full, holder = smem.allocate_array(Int64, 1), smem.allocate_array(Int32, 1)
    start(full, (LANES,))
    columns = allocated(holder)
    if warp == 0:
        store = tcgen05.make_tmem_copy(tmem_store(), columns).get_slice(lane)
        rX = registers(store.partition_S)
        rX.fill(0.0)
        cute.copy(store, rX, store.partition_D(columns))
        if cutlass.const_expr(fixed):
            cute.arch.fence_view_async_tmem_store()
        cute.arch.mbarrier_arrive(full)  # the columns may be read
    elif warp == 4:
        cute.arch.mbarrier_wait(full, 0)
        load = tcgen05.make_tmem_copy(tmem_load(), columns).get_slice(lane)
        rY = registers(load.partition_D)
        cute.copy(load, load.partition_S(columns), rY)
        cute.arch.fence_view_async_tmem_load()
        mX[lane] = rY[0]
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.dealloc_tmem(columns.iterator, COLUMNS)


@cute.kernel
def two_way(mX: cute.Tensor, fixed: Constexpr):
    lane = cute.arch.lane_idx()
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout(2 * LANES), 16)
    for number in cutlass.range_constexpr(2):
        at = lane // 16 ^ number if cutlass.const_expr(fixed) else number
        sX[2 * lane + at] = mX[lane]


@cute.jit
def launch(kernel: Constexpr, mX: cute.Tensor, fixed: Constexpr):
    threads, cluster = SHAPES.get(kernel, (THREADS, 1))
    made = globals()[kernel](mX, fixed)
    made.launch(grid=(cluster, 1, 1), block=(threads, 1, 1), cluster=(cluster, 1, 1))


@cute.jit
def launch_stored(mX: cute.Tensor, fixed: Constexpr):
    layout = cute.make_layout((1, THREADS), stride=(THREADS, 1))
    atom, mY = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mX, layout, (1, THREADS))
    stored(atom, mY, mX, fixed).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))
