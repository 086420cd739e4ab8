"""Mistakes in CuTe-DSL, one function each: what `docs/when-it-goes-wrong.md` shows is what these run into.

Each function compiles for a named GPU, so none is needed. A name ends where the page's `<!-- case: name -->` does.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import torch
from cutlass import BFloat16, Float16, Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warp, warpgroup
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor

from cookbook.recipe.moved import SmemAllocator

K = OperandMajorMode.K
SMEM = warpgroup.OperandSource.SMEM
SW128 = warpgroup.SmemLayoutAtomKind.K_SW128


def matrix(dtype=Float16, shape=(128, 64), align=16):
    """A tensor without memory, row-major."""
    return make_fake_compact_tensor(dtype, shape, stride_order=(1, 0), assumed_align=align)


def compiled(host, *arguments, arch="sm_90a", options=""):
    return cute.compile(host, *arguments, options=f"--gpu-arch {arch} {options}")


def swizzled(rows, columns):
    """A K-major tile of 128-byte rows."""
    return cute.tile_to_shape(warpgroup.make_smem_layout_atom(SW128, Float16), (rows, columns), (0, 1))


# --- Python that becomes a kernel ----------------------------------------------------------------------------


@cute.kernel
def writes_one(x: cute.Tensor):
    x[0, 0] = Float16(1.0)


@cute.jit
def launches(x: cute.Tensor):
    writes_one(x).launch(grid=(1, 1, 1), block=(32, 1, 1))


def compile_kernel():
    compiled(writes_one, matrix())


def outside():
    cute.make_layout((4, 8))


def no_source():
    names = {"cute": cute}
    exec("@cute.jit\ndef f(x: cute.Tensor):\n    pass\n", names)
    compiled(names["f"], matrix())


@cute.jit
def _no_launch(x: cute.Tensor):
    writes_one(x)


def no_launch():
    compiled(_no_launch, matrix())


def wrong_count():
    compiled(launches, matrix(), matrix())


@cute.jit
def _range_constexpr(n: Int32):
    for i in cutlass.range_constexpr(n):
        cute.printf("{}", i)


def range_constexpr():
    compiled(_range_constexpr, Int32(3))


@cute.jit
def _defined_in_branch(n: Int32):
    if n > 0:
        y = n + 1
    cute.printf("{}", y)


def defined_in_branch():
    compiled(_defined_in_branch, Int32(3))


@cute.jit
def _two_types(n: Int32):
    total = 0
    for _ in cutlass.range(n):
        total = total + 0.5
    cute.printf("{}", total)


def two_types():
    compiled(_two_types, Int32(3))


@cute.jit
def _early_return(n: Int32):
    if n > 0:
        return
    cute.printf("{}", n)


def early_return():
    compiled(_early_return, Int32(3))


@cute.jit
def _leaves_loop(n: Int32):
    for i in cutlass.range(n):
        if i > 2:
            break


def leaves_loop():
    compiled(_leaves_loop, Int32(3))


@cute.jit
def _list_index(n: Int32):
    cute.printf("{}", [1, 2, 3][n])


def list_index():
    compiled(_list_index, Int32(1))


@cute.jit
def _asserts(n: Int32):
    assert n > 0


def asserts():
    compiled(_asserts, Int32(1))


@cute.jit
def _tensor_as_bool(x: cute.Tensor):
    if x:
        cute.printf("there")


def tensor_as_bool():
    compiled(_tensor_as_bool, matrix())


class Sizes:
    tile = 4


@cute.jit
def _plain_object(sizes):
    cute.printf("{}", sizes.tile)


def plain_object():
    compiled(_plain_object, Sizes())


@cute.jit
def _chained(n: Int32):
    if 1 < n < 3:
        cute.printf("two, or so one thinks")


def chained():
    compiled(_chained, Int32(5))


@cute.jit
def _prints(n: Int32):
    print("n is", n)


def prints():
    compiled(_prints, Int32(5))


# --- layouts and tensors --------------------------------------------------------------------------------------


@cute.jit
def _identity_swizzle():
    print(cute.make_swizzle(3, 4, 1))


def identity_swizzle():
    compiled(_identity_swizzle)


@cute.jit
def _units():
    layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
    print("element (1, 0) at", layout((1, 0)))


def units():
    compiled(_units)


@cute.jit
def _composed_stride():
    layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
    print(layout.stride)


def composed_stride():
    compiled(_composed_stride)


@cute.jit
def _tile_rank(x: cute.Tensor):
    cute.local_tile(x, (32, 32), (0,))


def tile_rank():
    compiled(_tile_rank, matrix())


@cute.jit
def _slice_rank(x: cute.Tensor):
    print(x[None, 0, 0])


def slice_rank():
    compiled(_slice_rank, matrix())


@cute.kernel
def _stores_float32(x: cute.Tensor):
    x[0, 0] = Float32(1.0)


@cute.jit
def _other_dtype(x: cute.Tensor):
    _stores_float32(x).launch(grid=(1, 1, 1), block=(32, 1, 1))


def other_dtype():
    compiled(_other_dtype, matrix())


@cute.kernel
def _allocates_rows(x: cute.Tensor):
    SmemAllocator().allocate_tensor(Float16, cute.make_layout((x.shape[0], 64)), 16)


@cute.jit
def _dynamic_smem(x: cute.Tensor):
    _allocates_rows(x).launch(grid=(1, 1, 1), block=(32, 1, 1))


def dynamic_smem():
    compiled(_dynamic_smem, matrix(shape=(cute.sym_int32(), 64)))


# --- copies ---------------------------------------------------------------------------------------------------


@cute.kernel
def _copies(x: cute.Tensor, case: cutlass.Constexpr):
    row = cute.make_tensor(x.iterator, cute.make_layout(8, stride=64 if case == "stride" else 1))
    mine = cute.make_rmem_tensor((4,) if case == "sizes" else (8,), Float32 if case == "dtype" else Float16)
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float16, num_bits_per_copy=128)
    async_copy = cute.make_copy_atom(cpasync.CopyG2SOp(), Float16, num_bits_per_copy=16 if case == "narrow" else 128)
    if cutlass.const_expr(case == "dtype"):
        cute.autovec_copy(row, mine)
    elif cutlass.const_expr(case == "registers"):
        cute.copy(async_copy, row, mine)
    elif cutlass.const_expr(case == "narrow"):
        cute.copy(async_copy, row, SmemAllocator().allocate_tensor(Float16, cute.make_layout(8), 16))
    else:
        cute.copy(wide, row, mine)


@cute.jit
def _copying(x: cute.Tensor, case: cutlass.Constexpr):
    _copies(x, case).launch(grid=(1, 1, 1), block=(32, 1, 1))


def copy_sizes():
    compiled(_copying, matrix(), "sizes")


def copy_alignment():
    compiled(_copying, matrix(align=2), "alignment")


def copy_stride():
    compiled(_copying, matrix(), "stride")


def copy_dtype():
    compiled(_copying, matrix(), "dtype")


def cp_async_registers():
    compiled(_copying, matrix(), "registers")


def cp_async_narrow():
    compiled(_copying, matrix(), "narrow")


@cute.kernel
def _loads_matrices(x: cute.Tensor, case: cutlass.Constexpr):
    element = Float32 if case == "float32" else Float16
    layout = cute.make_layout((16, 16), stride=(1, 16) if case == "m-major" else (16, 1))
    sA = SmemAllocator().allocate_tensor(element, layout, 16)
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)))
    load = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), Float16), mma)
    thr = load.get_slice(cute.arch.thread_idx()[0])
    tCrA = mma.make_fragment_A(mma.get_slice(0).partition_A(sA))
    cute.copy(load, thr.partition_S(sA), tCrA if case == "no retile" else thr.retile(tCrA))


@cute.jit
def _loading(x: cute.Tensor, case: cutlass.Constexpr):
    _loads_matrices(x, case).launch(grid=(1, 1, 1), block=(32, 1, 1))


def ldmatrix_float32():
    compiled(_loading, matrix(), "float32")


def ldmatrix_m_major():
    compiled(_loading, matrix(), "m-major")


def no_retile():
    compiled(_loading, matrix(), "no retile")


# --- TMA and barriers -----------------------------------------------------------------------------------------


@cute.kernel
def _tma(tma: cute.CopyAtom, mA: cute.Tensor, layout: cutlass.Constexpr, case: cutlass.Constexpr):
    sA = SmemAllocator().allocate_tensor(Float16, layout.outer, 1024, swizzle=layout.inner)
    gA = cute.local_tile(mA, (64, 64), (None, None))
    one = cute.make_layout(1)
    if cutlass.const_expr(case == "modes"):
        cpasync.tma_partition(tma, 0, one, sA, gA)
    else:
        tAsA, tAgA = cpasync.tma_partition(tma, 0, one, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
        cute.copy(tma, tAgA[None, 0, 0], tAsA)


@cute.jit
def _tma_host(x: cute.Tensor, case: cutlass.Constexpr):
    layout = swizzled(64, 64)
    tma, mA = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, (64, 64))
    _tma(tma, mA, layout, case).launch(grid=(1, 1, 1), block=(32, 1, 1))


def tma_modes():
    compiled(_tma_host, matrix(), "modes")


def tma_no_barrier():
    compiled(_tma_host, matrix(), "no barrier")


@cute.kernel
def _barriers(x: cute.Tensor, case: cutlass.Constexpr):
    if cutlass.const_expr(case == "bytes"):
        storage = SmemAllocator().allocate_array(Int64, 4)
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        pipeline.PipelineTmaAsync.create(
            barrier_storage=storage, num_stages=2, producer_group=one, consumer_group=one, tx_count=-1
        )
    elif cutlass.const_expr(case == "registers"):
        cute.arch.setmaxregister_increase(241)
    elif cutlass.const_expr(case == "id"):
        pipeline.NamedBarrier(barrier_id=16, num_threads=128).arrive_and_wait()
    else:
        pipeline.NamedBarrier(barrier_id=1, num_threads=100).arrive_and_wait()


@cute.jit
def _with_barriers(x: cute.Tensor, case: cutlass.Constexpr):
    _barriers(x, case).launch(grid=(1, 1, 1), block=(128, 1, 1))


def tma_bytes():
    compiled(_with_barriers, matrix(), "bytes")


def named_barrier_id():
    compiled(_with_barriers, matrix(), "id")


def named_barrier_threads():
    compiled(_with_barriers, matrix(), "threads")


def setmaxnreg():
    compiled(_with_barriers, matrix(), "registers")


# --- MMA instructions and targets -----------------------------------------------------------------------------


@cute.jit
def _mma(case: cutlass.Constexpr):
    if cutlass.const_expr(case == "wgmma n"):
        warpgroup.MmaF16BF16Op(Float16, Float32, (64, 100, 16), SMEM, K, K)
    elif cutlass.const_expr(case == "wgmma m"):
        warpgroup.MmaF16BF16Op(Float16, Float32, (128, 128, 16), SMEM, K, K)
    elif cutlass.const_expr(case == "mma k"):
        warp.MmaF16BF16Op(Float16, Float32, (16, 8, 32))
    elif cutlass.const_expr(case == "mma float32"):
        warp.MmaF16BF16Op(Float32, Float32, (16, 8, 16))
    elif cutlass.const_expr(case == "tcgen05"):
        tcgen05.MmaF16BF16Op(BFloat16, Float32, (128, 256, 16), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM, K, K)
    else:
        warpgroup.MmaF16BF16Op(Float16, Float32, (64, 128, 16), SMEM, K, K)


def wgmma_n():
    compiled(_mma, "wgmma n")


def wgmma_m():
    compiled(_mma, "wgmma m")


def mma_k():
    compiled(_mma, "mma k")


def mma_float32():
    compiled(_mma, "mma float32")


def wgmma_target():
    compiled(_mma, "wgmma", arch="sm_90")


def tcgen05_target():
    compiled(_mma, "tcgen05", arch="sm_120a")


def old_target():
    compiled(_mma, "wgmma", arch="sm_75")


# --- the call -------------------------------------------------------------------------------------------------


def call_without_gpu():
    compiled(launches, matrix())(torch.zeros(128, 64, dtype=torch.float16))


def call_ffi_without_gpu():
    compiled(launches, matrix(), options="--enable-tvm-ffi")(torch.zeros(128, 64, dtype=torch.float16))


def gradient():
    from_dlpack(torch.zeros(128, 64, requires_grad=True))
