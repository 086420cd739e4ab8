"""Kernels that make their tensor maps, and that read out of global memory what they have to do."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Constexpr, Float16, Int64, utils
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.moved import SmemAllocator

ROWS, COLUMNS, STAGES = 16, 64, 2
BYTES = ROWS * COLUMNS * 2
SHUFFLES = 5
MAPS = getattr(cutlass, "tensor_utils", utils)  # earlier versions of CuTe DSL have it in `utils`


@cute.kernel
def rows_by_map(
    atom: cute.CopyAtom,
    mA: cute.Tensor,
    mReal: cute.Tensor,
    maps: cute.Tensor,
    counts: cute.Tensor,
    without: Constexpr,
    reader: Constexpr,
    staged: Constexpr,
):
    """Warp 0 makes a tensor map; warp `reader` loads by it, as often as `counts` says.

    staged: the map is made in shared memory, and copied.
    """
    warp, smem = cute.arch.make_warp_uniform(cute.arch.warp_idx()), SmemAllocator()
    layout = cute.make_layout((ROWS, COLUMNS, STAGES), stride=(COLUMNS, 1, ROWS * COLUMNS))
    sA = smem.allocate_tensor(Float16, layout, 128)
    full = smem.allocate_array(Int64, STAGES)
    place = smem.allocate_tensor(Int64, cute.make_layout(16), 128).iterator
    ours = MAPS.TensorMapManager(MAPS.TensorMapUpdateMode.GMEM, 128).get_tensormap_ptr(maps.iterator)
    if cutlass.const_expr(not staged):
        place = ours
    if warp == 0:
        with cute.arch.elect_one():
            for stage in range(STAGES):
                cute.arch.mbarrier_init(full + stage, 1)
            cpasync.copy_tensormap(atom, place)
        cute.arch.sync_warp()
        cpasync.update_tma_descriptor(atom, mReal, place)
        cute.arch.sync_warp()
        if cutlass.const_expr(staged):
            cpasync.cp_fence_tma_desc_release(ours, place)
        elif cutlass.const_expr(without != "release"):
            cpasync.fence_tma_desc_release()
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == reader:
        if cutlass.const_expr(without != "acquire"):
            cpasync.fence_tma_desc_acquire(ours)
        gA = cute.local_tile(mA, (ROWS, COLUMNS), (None, 0))
        whole = cute.make_layout(1)
        tAsA, tAgA = cpasync.tma_partition(atom, 0, whole, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
        for number in cutlass.range(counts[1], unroll=1):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + number, BYTES)
            cute.copy(atom, tAgA[None, number], tAsA[None, number], tma_bar_ptr=full + number, tma_desc_ptr=ours)
            if cutlass.const_expr(without not in ("wait", "barriers")):
                cute.arch.mbarrier_wait(full + number, 0)
        if cutlass.const_expr(without == "barriers"):
            with cute.arch.elect_one():
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(0, read=True)
        if cutlass.const_expr(without in ("wait", "barriers", "nothing")):
            cpasync.update_tma_descriptor(atom, mReal, ours)
        for number in cutlass.range(counts[1], unroll=1):
            cute.arch.mbarrier_wait(full + number, 0)
    elif cutlass.const_expr(without == "order"):
        cpasync.update_tma_descriptor(atom, mReal, ours)


@cute.jit
def loaded(
    mA: cute.Tensor,
    maps: cute.Tensor,
    counts: cute.Tensor,
    without: Constexpr,
    reader: Constexpr,
    staged: Constexpr,
):
    layout = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    atom, tensor = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), mA, layout, (ROWS, COLUMNS))
    told = without, reader, staged
    rows_by_map(atom, tensor, mA, maps, counts, *told).launch(grid=(1, 1, 1), block=(64, 1, 1))


@cute.kernel
def searches(counts: cute.Tensor, first: Constexpr):
    """Each lane sums the counts up to its own; as many lanes as have a sum up to `first` arrive at a barrier."""
    lane = cute.arch.lane_idx()
    total = counts[lane]
    for power in cutlass.range_constexpr(SHUFFLES):
        below = cute.arch.shuffle_sync_up(total, 1 << power, mask_and_clamp=0)
        if lane >= 1 << power:
            total += below
    group = cute.arch.popc(cute.arch.vote_ballot_sync(total <= first))
    done = SmemAllocator().allocate_array(Int64, 1)
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(done, 5)
        for _ in cutlass.range(group, unroll=1):
            cute.arch.mbarrier_arrive(done)
    cute.arch.sync_warp()
    cute.arch.mbarrier_wait(done, 0)


@cute.jit
def searched(counts: cute.Tensor, first: Constexpr):
    searches(counts, first).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def changes(counts: cute.Tensor):
    counts[0] = counts[1]


@cute.jit
def changed(counts: cute.Tensor):
    changes(counts).launch(grid=(1, 1, 1), block=(32, 1, 1))
