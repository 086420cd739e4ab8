"""Kernels of our own whose operands of tcgen05 are described by numbers that the kernel makes."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import Constexpr, Float16, Int32, Int64
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu, llvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.experimental import primitives as prims

from cookbook.model.tcgen05 import InstructionDescriptor
from cookbook.recipe.moved import SmemAllocator

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


ROWS, DEPTH, WRITERS, MULTIPLIES = 64, 64, 4, 4  # of B; warps that write A; the warp that multiplies
UPPER = 128 // 16 * 8 | 1 << 14 | 2 << 29  # of a descriptor: 8 rows of 128 bytes, the version, the swizzle
SHAPES = InstructionDescriptor("f16", 128, ROWS, "float16").encode()
IN_COLUMN = 32  # where A begins in tensor memory; the sums lie behind
POLLED = """
    AGAIN:
    mbarrier.try_wait.parity.shared::cta.b64 over, [$2], $3, 1000;
    @over bra NEXT;
    bra AGAIN;
    NEXT:
"""


def ptx(text: str, *operands: int | Int32) -> None:
    """A text of PTX that takes integers, and gives nothing back."""
    given = [Int32(one).ir_value() for one in operands]
    llvm.inline_asm(None, given, text, ",".join("r" * len(given)), has_side_effects=True)


@cute.kernel
def multiplied_by_ptx(mX: cute.Tensor, stores: Constexpr, polls: Constexpr):
    """Four warps write A to tensor memory, and a fifth multiplies it by PTX of its own.

    stores: the four wait until their stores are done, before they arrive. polls: the PTX waits for their arrivals.
    """
    warp = cute.arch.warp_idx()
    smem = SmemAllocator()
    written = smem.allocate_array(Int64, 2)
    done = written + 1
    place = cutlass.Array(cutlass.Int32, 1, space=cutlass.AddressSpace.smem, alignment=4)
    data = smem.allocate_tensor(Float16, cute.make_layout(ROWS * DEPTH), 1024).iterator  # B, of whatever lies there
    if warp == MULTIPLIES:
        if prims.elect_sync():
            cute.arch.mbarrier_init(written, 128)
            cute.arch.mbarrier_init(done, 1)
        prims.tcgen05_alloc(place, 128)
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    start = place.load()
    if warp < WRITERS:
        for column in cutlass.range_constexpr(IN_COLUMN, IN_COLUMN + 16):
            mine = cutlass.inttoptr(start + column + (warp << 21), 6, cutlass.Int32)
            prims.tcgen05_st(prims.Tcgen05LdStShape.SHAPE_32X32B, mine, Int32(0))
        if cutlass.const_expr(stores):
            prims.tcgen05_wait(kind=prims.Tcgen05Wait.STORE)
        cute.arch.mbarrier_arrive(written)
    else:
        ptx(
            f"""
            .reg .b32 test_lower;
            .reg .b64 test_b_<2>;
            add.u32 test_lower, $0, 0x10000;
            mov.b64 test_b_0, {{test_lower, {UPPER}}};
            add.s32 test_lower, test_lower, 2;
            mov.b64 test_b_1, {{test_lower, {UPPER:#x}}};
            """,
            data.toint() >> 4,
        )
        ptx(
            f"""{{
            .reg .pred over, leads, adds;
            .reg .b32 idesc;
            elect.sync _|leads, -1;
            mov.b32 idesc, {SHAPES};
            setp.ne.b32 adds, $3, 0;
            {POLLED if polls else ""}
            @leads tcgen05.mma.cta_group::1.kind::f16 [$0], [$1], test_b_0, idesc, adds;
            @leads tcgen05.mma.cta_group::1.kind::f16 [$0], [$1 + 0x8], test_b_1, idesc, 1;
            }}""",
            start + 2 * IN_COLUMN,
            start + IN_COLUMN,
            written.toint(),
            0,
        )
        if prims.elect_sync():
            tcgen05.commit(done)
        cute.arch.mbarrier_wait(done, 0)
        prims.tcgen05_relinquish_alloc_permit()
        prims.tcgen05_dealloc(cutlass.inttoptr(start, 6, cutlass.Int32), 128)


@cute.jit
def by_ptx(mX: cute.Tensor, stores: Constexpr, polls: Constexpr):
    multiplied_by_ptx(mX, stores, polls).launch(grid=(1, 1, 1), block=(32 * (WRITERS + 1), 1, 1))


@cute.kernel
def scaled_if_asked(mX: cute.Tensor, waits: Constexpr, before: Constexpr):
    """A warp scales its lanes of tensor memory where data say so, and waits in that branch for its stores.

    waits: it does wait there. before: it has asked for another store, for which it waits there too.
    """
    lane = cute.arch.lane_idx()
    place = cutlass.Array(cutlass.Int32, 1, space=cutlass.AddressSpace.smem, alignment=4)
    prims.tcgen05_alloc(place, COLUMNS)
    start = cutlass.inttoptr(place.load(), 6, cutlass.Int32)
    shape = prims.Tcgen05LdStShape.SHAPE_32X32B
    if cutlass.const_expr(before):
        prims.tcgen05_st(shape, start, Int32(0))
    if cute.arch.vote_any_sync(mX[lane] > 0.0):
        value = prims.tcgen05_ld(shape, start, num=1)
        prims.tcgen05_wait(kind=prims.Tcgen05Wait.LOAD)
        prims.tcgen05_st(shape, start, value)
        if cutlass.const_expr(waits):
            prims.tcgen05_wait(kind=prims.Tcgen05Wait.STORE)
    prims.tcgen05_relinquish_alloc_permit()
    prims.tcgen05_dealloc(start, COLUMNS)


@cute.jit
def scaled(mX: cute.Tensor, waits: Constexpr, before: Constexpr):
    scaled_if_asked(mX, waits, before).launch(grid=(1, 1, 1), block=(32, 1, 1))


GATHERS, WIDE = 8, 64  # lanes that ask for four rows each; elements of a row


@cute.kernel
def gathered_by_ptx(load: cute.CopyAtom, mX: cute.Tensor, mI: cute.Tensor, short: Constexpr, waits: Constexpr):
    """Eight lanes ask TMA for four rows each, which data name. short: bytes too few that the barrier expects."""
    lane, warp, smem = cute.arch.lane_idx(), cute.arch.warp_idx(), SmemAllocator()
    sX = smem.allocate_tensor(Float16, cute.make_layout((4 * GATHERS, WIDE), stride=(WIDE, 1)), 1024)
    loaded = smem.allocate_array(Int64, 1)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(loaded, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(loaded, 4 * GATHERS * WIDE * 2 - short)
        cute.arch.sync_warp()
        if lane < GATHERS:
            place = cute_ir.PtrType.get(cute_nvgpu.TmaDescriptorTiledType.get(), cute.AddressSpace.generic, 64)
            tensor_map = cute_nvgpu.get_tma_desc_addr(place, cute_nvgpu.atom_make_exec_tma(load._trait.value))
            target = (sX.iterator + lane * 4 * WIDE).toint()
            rows = [mI[lane * 4 + number] for number in range(4)]
            llvm.inline_asm(
                None,
                [
                    target.ir_value(),
                    tensor_map.toint().ir_value(),
                    *(Int32(one).ir_value() for one in (0, *rows)),
                    loaded.toint().ir_value(),
                ],
                "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
                "[$0], [$1, {$2, $3, $4, $5, $6}], [$7];",
                "r,l,r,r,r,r,r,r",
                has_side_effects=True,
            )
    else:
        if cutlass.const_expr(waits):
            cute.arch.mbarrier_wait(loaded, 0)
        mX[lane, 0] = sX[lane, lane]


@cute.jit
def gathered(mX: cute.Tensor, mI: cute.Tensor, short: Constexpr, waits: Constexpr):
    layout = cute.make_layout((4 * GATHERS, WIDE), stride=(WIDE, 1))
    names = cute.make_tensor(mI.iterator, cute.make_layout((cute.size(mX.shape[0]), WIDE), stride=(1, 0)))
    op = cpasync.CopyBulkTensor2DGather4G2SOp()
    load, _ = cpasync.make_tiled_tma_atom(op, mX, layout, (4 * GATHERS, WIDE), gmem_coord_tensor=names)
    gathered_by_ptx(load, mX, mI, short, waits).launch(grid=(1, 1, 1), block=(64, 1, 1))
