"""Kernels that are right, though a stricter reading of what they do would say otherwise."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Constexpr, Float16, Float32, Int32, Int64
from cutlass.cute.nvgpu import warp

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
def acquires(mX: cute.Tensor, waits: Constexpr):
    """A producer's end: it waits for a stage to be free, and expects bytes that it does not load."""
    full = SmemAllocator().allocate_array(Int64, 2)
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init(full + 1, 2)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, 1024)
        cute.arch.mbarrier_arrive(full + 1)  # one of two
    if cutlass.const_expr(waits):
        cute.arch.mbarrier_wait(full, 0)


@cute.jit
def acquired(mX: cute.Tensor, waits: Constexpr):
    acquires(mX, waits).launch(grid=(1, 1, 1), block=(32, 1, 1))


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


ROWS, COLUMNS = 16, 64  # of a warp's tile, of 128 bytes a row


def in_layout(tile: cute.Tensor, swizzle: cute.Swizzle) -> cute.Tensor:
    """The same tile, with its swizzle in the layout, which counts elements of 16 bits, and none in the pointer."""
    of_bytes = cute.make_composed_layout(swizzle, 0, cute.recast_layout(8, 16, tile.layout))
    return cute.make_tensor(cute.recast_ptr(tile.iterator, dtype=Float16), cute.recast_layout(16, 8, of_bytes))


@cute.kernel
def read_by_matrices(mX: cute.Tensor, tiled_mma: cute.TiledMma, linear: Constexpr, further: Constexpr):
    """Each warp writes 16 rows, and reads them; `further`: rows of the other warp.

    linear: the pointer is swizzled by hand, and strides of a layout with the swizzle in it are added to it.
    """
    tidx, swizzle = cute.arch.thread_idx()[0], cute.make_swizzle(3, 4, 3)
    layout = cute.make_layout((2 * ROWS, COLUMNS), stride=(COLUMNS, 1))
    sX = SmemAllocator().allocate_tensor(Float16, layout, 1024, swizzle=swizzle)
    for column in cutlass.range_constexpr(COLUMNS):
        sX[tidx // 32 * ROWS + tidx % ROWS, column] = mX[tidx, column]
    cute.arch.sync_warp()
    load = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(num_matrices=4), Float16), tiled_mma)
    mine = load.get_slice((tidx + 32 * further) % 64)
    folded = mine.partition_S(in_layout(sX, swizzle))
    if cutlass.const_expr(linear):
        at = mine.partition_S(sX).iterator.toint()
        at = cute.make_ptr(Float16, at ^ ((at & 0x380) >> 3), cute.AddressSpace.smem, assumed_align=16)
        folded = cute.make_tensor(at, folded.layout)
    rX = cute.make_rmem_tensor(folded.shape, Float16)
    for k in cutlass.range_constexpr(cute.size(folded, mode=[2])):
        cute.copy(load, folded[None, None, k], rX[None, None, k])


@cute.jit
def by_matrices(mX: cute.Tensor, linear: Constexpr, further: Constexpr):
    one = warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16))
    tiled_mma = cute.make_tiled_mma(one, cute.make_layout((2, 1, 1)))
    read_by_matrices(mX, tiled_mma, linear, further).launch(grid=(1, 1, 1), block=(64, 1, 1))


@cute.kernel
def stores_by_parts(mX: cute.Tensor, waits: Constexpr):
    """Each thread writes a row in four parts, whose places the swizzle decides; the pointer is swizzled by hand."""
    tidx, swizzle = cute.arch.thread_idx()[0], cute.make_swizzle(3, 4, 3)
    sX = SmemAllocator().allocate_tensor(
        Float16, cute.make_layout((THREADS, COLUMNS), stride=(COLUMNS, 1)), 1024, swizzle=swizzle
    )
    parts = cute.make_tensor(sX.iterator, cute.make_layout((THREADS, 16, 4), stride=(COLUMNS, 1, 16)))
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float16, num_bits_per_copy=128)
    copy = cute.make_tiled_copy_tv(atom, cute.make_layout((THREADS, 1)), cute.make_layout((1, 8))).get_slice(tidx)
    at = copy.partition_D(parts).iterator.toint()
    at = cute.make_ptr(Float16, at ^ ((at & 0x380) >> 3), cute.AddressSpace.smem, assumed_align=16)
    target = cute.make_tensor(at, copy.partition_D(in_layout(parts, swizzle)).layout)
    rX = cute.make_rmem_tensor(target.shape, Float16)
    rX.fill(0.0)
    for part in cutlass.range_constexpr(4):
        cute.copy(atom, rX[None, None, None, part], target[None, None, None, part])
    if cutlass.const_expr(waits):
        cute.arch.sync_threads()
    mX[tidx, 0] = sX[THREADS - 1 - tidx, 63]


@cute.jit
def stored_by_parts(mX: cute.Tensor, waits: Constexpr):
    stores_by_parts(mX, waits).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def races_twice(mX: cute.Tensor):
    """Stores that come before loads of other warps must be over, and after others: no barrier says so."""
    tidx, _, _ = cute.arch.thread_idx()
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout(128), 16)
    before = sX[127 - tidx]
    sX[tidx] = before
    mX[tidx] = sX[127 - tidx]


@cute.jit
def raced_twice(mX: cute.Tensor):
    races_twice(mX).launch(grid=(1, 1, 1), block=(128, 1, 1))


@cute.kernel
def races_often(mX: cute.Tensor):
    """Four tiles, each loaded from where another warp stores; no barrier says when."""
    tidx, _, _ = cute.arch.thread_idx()
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout((128, 4)), 16)
    sX[tidx, 0] = mX[tidx]
    sX[tidx, 1] = sX[127 - tidx, 0]
    sX[tidx, 2] = sX[127 - tidx, 1]
    sX[tidx, 3] = sX[127 - tidx, 2]
    mX[tidx] = sX[127 - tidx, 3]


@cute.jit
def raced_often(mX: cute.Tensor):
    races_often(mX).launch(grid=(1, 1, 1), block=(128, 1, 1))
