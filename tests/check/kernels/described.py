"""Kernels of our own whose operands of tcgen05 are described by numbers that the kernel makes."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import Constexpr
from cutlass.experimental import primitives as prims

BYTES, COLUMNS, LEADER, PAIR = 512, 32, 0, 3
LOADS, RELAYS, COPIES, WARPS = 0, 1, 2, 3  # warps by their work


@cute.kernel
def copied_for_both(tma: cutlass.GridConstant[cuda.TensorMap], waits: Constexpr, scope: Constexpr, lanes: Constexpr):
    """Each CTA of a pair loads 32 rows of 16 bytes; the leader then copies both CTAs' to tensor memory.

    waits: it waits for the other CTA's load, too: the other CTA arrives at a barrier of the leader's, with a scope.
    lanes: each barrier is initialised by a lane of its own.
    """
    warp, rank = cute.arch.warp_idx(), cute.arch.block_idx_in_cluster()
    lane = cute.arch.lane_idx()
    made = cutlass.Array(cutlass.Int64, 3, space=cutlass.AddressSpace.smem, alignment=8)
    loaded, told, done = made, made.subview(1), made.subview(2)
    place = cutlass.Array(cutlass.Int32, 1, space=cutlass.AddressSpace.smem, alignment=4)
    data = cutlass.Array(cutlass.Int8, BYTES, space=cutlass.AddressSpace.smem, alignment=BYTES)
    if warp == LOADS:
        if cutlass.const_expr(lanes):
            if lane < 3:
                prims.mbarrier_init(made.subview(lane), 1)
        elif prims.elect_sync():
            for number in range(3):
                prims.mbarrier_init(made.subview(number), 1)
    if warp == COPIES:
        prims.tcgen05_alloc(place, COLUMNS, group=prims.CTAGroup.CTA_2)
    prims.fence_mbarrier_init()
    prims.barrier_cluster_arrive_relaxed()
    prims.barrier_cluster_wait()
    if warp == LOADS and prims.elect_sync():
        prims.mbarrier_arrive_expect_tx(loaded, BYTES)
        prims.cp_async_bulk_tensor_shared_cluster_global(data, tma.get_ptr(), (0, rank), loaded, [])
    if warp == RELAYS and rank != LEADER and cutlass.const_expr(waits):
        while not prims.mbarrier_try_wait_parity(loaded, 0, time_limit=1000):
            pass
        if prims.elect_sync():
            prims.mbarrier_arrive(prims.mapa(told, LEADER), count=1, scope=scope)
    if warp == COPIES:
        if rank == LEADER:
            while not prims.mbarrier_try_wait_parity(loaded, 0, time_limit=1000):
                pass
            if cutlass.const_expr(waits):
                while not prims.mbarrier_try_wait_parity(told, 0, time_limit=1000):
                    pass
            target = cutlass.inttoptr(place.load(), 6, cutlass.Int32)
            source = prims.Tcgen05SmemDesc.build(
                data, leading_byte_offset=16, stride_byte_offset=128, base_offset=0, layout=0
            )
            shape, multicast = prims.S2TCopyMode.S2T_32x128b_WARPX4
            if prims.elect_sync():
                prims.tcgen05_cp(shape, target, source, group=prims.CTAGroup.CTA_2, multicast=multicast)
                prims.tcgen05_commit(done, multicast_mask=PAIR, group=prims.CTAGroup.CTA_2)
        while not prims.mbarrier_try_wait_parity(done, 0, time_limit=1000):
            pass
        prims.tcgen05_relinquish_alloc_permit(group=prims.CTAGroup.CTA_2)
        prims.tcgen05_dealloc(cutlass.inttoptr(place.load(), 6, cutlass.Int32), COLUMNS, group=prims.CTAGroup.CTA_2)
    prims.barrier_cluster_arrive()
    prims.barrier_cluster_wait()


@cute.jit
def copied(mX: cute.Tensor, waits: Constexpr, scope: Constexpr, lanes: Constexpr):
    """mX: a row of 512 bytes for each CTA."""
    tma = cuda.create_tensor_map_tiled_from_view(
        mX, box_dims=(BYTES // 2, 1), stride_order=(0, 1), swizzle=cuda.TensorMapSwizzle.none
    )
    copied_for_both(tma, waits, scope, lanes).launch(grid=(2, 1, 1), block=(32 * WARPS, 1, 1), cluster=(2, 1, 1))


@cute.kernel
def brought_by_threads(mX: cute.Tensor, later: Constexpr):
    """32 lanes fill shared memory, `later` by cp.async, and tcgen05 reads it; no fence of proxies is between."""
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    made = cutlass.Array(cutlass.Int64, 2, space=cutlass.AddressSpace.smem, alignment=8)
    loaded, done = made, made.subview(1)
    place = cutlass.Array(cutlass.Int32, 1, space=cutlass.AddressSpace.smem, alignment=4)
    data = cutlass.Array(cutlass.Int8, BYTES, space=cutlass.AddressSpace.smem, alignment=BYTES)
    if warp == LOADS and prims.elect_sync():
        prims.mbarrier_init(loaded, 32)
        prims.mbarrier_init(done, 1)
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    if warp == LOADS:
        source = mX.iterator.raw_ptr() + 16 * lane
        if cutlass.const_expr(later):
            prims.cp_async_shared_global(data.subview(16 * lane), source, size=16, modifier="ca")
            prims.cp_async_mbarrier_arrive(loaded, noinc=True)
        else:
            for number in cutlass.range_constexpr(16):
                data.subview(16 * lane + number).store(cutlass.Int8(0))
            prims.mbarrier_arrive(loaded)
    if warp == COPIES:
        prims.tcgen05_alloc(place, COLUMNS)
        while not prims.mbarrier_try_wait_parity(loaded, 0, time_limit=1000):
            pass
        target = cutlass.inttoptr(place.load(), 6, cutlass.Int32)
        source = prims.Tcgen05SmemDesc.build(
            data, leading_byte_offset=16, stride_byte_offset=128, base_offset=0, layout=0
        )
        shape, multicast = prims.S2TCopyMode.S2T_32x128b_WARPX4
        if prims.elect_sync():
            prims.tcgen05_cp(shape, target, source, multicast=multicast)
            prims.tcgen05_commit(done)
        while not prims.mbarrier_try_wait_parity(done, 0, time_limit=1000):
            pass
        prims.tcgen05_relinquish_alloc_permit()
        prims.tcgen05_dealloc(target, COLUMNS)


@cute.jit
def brought(mX: cute.Tensor, later: Constexpr):
    """mX: 512 bytes."""
    brought_by_threads(mX, later).launch(grid=(1, 1, 1), block=(32 * WARPS, 1, 1))
