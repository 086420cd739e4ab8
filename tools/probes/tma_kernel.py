"""One TMA box between global and shared memory, with shared memory seen as raw words.

A load: shared memory is filled with ones, one box is loaded, and all of it is written out. A store: shared memory is
filled with given words, and one box is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.moved import SmemAllocator

__all__ = ["TYPES", "BoxShape", "arguments", "compiled"]

TYPES = {"uint8": cutlass.Uint8, "uint16": cutlass.Uint16, "float32": cutlass.Float32}
THREADS = 32


@dataclass(frozen=True)
class BoxShape:
    """The box that a compiled kernel is made for; where in the tensor it begins is an argument."""

    dtype: str
    major: str  # "K": k is contiguous in global memory; "MN": mn is
    mode: int  # swizzle: 0, 32, 64 or 128 bytes
    row_bytes: int  # of the box, along the contiguous extent
    rows: int  # of the box
    tensor: tuple[int, int]  # (rows, columns): columns are contiguous
    base: int  # where the box lies in shared memory, bytes above a multiple of 1024
    smem_bytes: int  # of shared memory that is looked at
    store: bool


@cute.jit
def box_layout(shape: cutlass.Constexpr, dtype: cutlass.Constexpr):
    """The shared-memory layout of the box, modes (MN, K): rows of `row_bytes`, and the swizzle of the mode."""
    columns = shape.row_bytes * 8 // dtype.width
    extents, strides = (shape.rows, columns), (columns, 1)
    if cutlass.const_expr(shape.major == "MN"):
        extents, strides = extents[::-1], strides[::-1]
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[shape.mode]
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, cute.make_layout(extents, stride=strides))


@cute.kernel
def box_kernel(
    tma: cute.CopyAtom,
    mX: cute.Tensor,  # (MN, K), as TMA coordinates
    words: cute.Tensor,  # raw shared memory, Uint32: written after a load, read before a store
    origin: cute.Coord,
    shape: cutlass.Constexpr,
):
    """One warp: fill shared memory, move one box, write out what there is."""
    lane, _, _ = cute.arch.thread_idx()
    dtype = TYPES[shape.dtype]
    layout = box_layout(shape, dtype)
    allocator = SmemAllocator()
    memory = allocator.allocate(shape.smem_bytes, 1024)
    barrier = allocator.allocate_array(Int64, 1)
    raw = cute.make_tensor(cute.recast_ptr(memory, dtype=Uint32), cute.make_layout(shape.smem_bytes // 4))
    for i in cutlass.range(shape.smem_bytes // 4 // THREADS, unroll=1):
        word = i * THREADS + lane
        raw[word] = words[word] if cutlass.const_expr(shape.store) else Uint32(0xFFFFFFFF)
    sX = cute.make_tensor(cute.recast_ptr(memory + shape.base, layout.inner, dtype), layout.outer)
    gX = cute.local_tile(cute.domain_offset(origin, mX), layout.outer.shape, (0, 0))
    alone = cute.make_layout(1)
    tXsX, tXgX = cpasync.tma_partition(tma, 0, alone, cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2))
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(barrier, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.fence_proxy("async.shared", space="cta")  # what the threads wrote, before the copy engine touches it
    cute.arch.sync_threads()
    if cutlass.const_expr(shape.store):
        with cute.arch.elect_one():  # of the copies only a load elects its thread itself
            cute.copy(tma, tXsX, tXgX)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=False)
    else:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, shape.rows * shape.row_bytes)
        cute.copy(tma, tXgX, tXsX, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        for i in cutlass.range(shape.smem_bytes // 4 // THREADS, unroll=1):
            words[i * THREADS + lane] = raw[i * THREADS + lane]


@cute.jit
def box_host(
    p_tensor: cute.Pointer,
    p_words: cute.Pointer,
    origin: tuple[Int32, Int32],
    stream: cuda.CUstream,
    shape: cutlass.Constexpr,
):
    """origin: the (MN, K) of the box's first element."""
    rows, columns = shape.tensor
    extents, strides = (rows, columns), (columns, 1)
    if cutlass.const_expr(shape.major == "MN"):
        extents, strides = extents[::-1], strides[::-1]
    mX = cute.make_tensor(p_tensor, cute.make_layout(extents, stride=strides))
    layout = box_layout(shape, TYPES[shape.dtype])
    op = cpasync.CopyBulkTensorTileS2GOp() if shape.store else cpasync.CopyBulkTensorTileG2SOp()
    tma, mX = cpasync.make_tiled_tma_atom(op, mX, layout, layout.outer.shape)
    words = cute.make_tensor(p_words, cute.make_layout(shape.smem_bytes // 4))
    box_kernel(tma, mX, words, origin, shape).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


def arguments(shape: BoxShape, tensor: int, words: int, origin: tuple[int, int], stream: int) -> tuple:
    """Plain addresses and the box's (row, column) as the typed values that the compiled kernel takes."""
    gmem = cute.AddressSpace.gmem
    first = origin if shape.major == "K" else origin[::-1]
    return (
        cute.runtime.make_ptr(TYPES[shape.dtype], tensor, gmem, assumed_align=16),
        cute.runtime.make_ptr(Uint32, words, gmem, assumed_align=16),
        tuple(Int32(x) for x in first),
        cuda.CUstream(stream),
    )


@cache
def compiled(shape: BoxShape, options: str = "") -> Any:
    """The kernel for a box; `options` such as "--gpu-arch sm_90a" where there is no GPU."""
    return cute.compile(box_host, *arguments(shape, 16, 16, (0, 0), 0), shape, options=options or None)
