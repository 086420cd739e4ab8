# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "The largest magnitude of C (amax) in the epilogue"
#     claim: >-
#       FP8 training needs the largest magnitude of each product: a kernel that looks for it reads C again, and an
#       epilogue that has C in registers finds it with a few instructions for an element.
#     track: hopper
#     order: 112
#     builds_on: hopper/tma_wgmma_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     reduces: true
#     compared_with: hopper/tma_wgmma_gemm
#     path: tma -> swizzled shared memory -> wgmma -> stmatrix -> 16-byte stores, and one atomic maximum for a warp
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, SYNCS, WARPGROUP.DEPBAR, REDUX]
#     sources:
#       - {title: "PTX ISA, redux.sync", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync"}
#       - {title: "PTX ISA, atom", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom"}
#       - {title: "Micikevicius et al., FP8 formats for deep learning", url: "https://arxiv.org/abs/2209.05433"}
# ---

# %% [markdown]
# # The largest magnitude of C (amax) in the epilogue
#
# **Claim.** A training step in FP8 scales each tensor so that its largest magnitude, its *amax*, just fits the format.
# With *delayed scaling* the amax of this step chooses the scale factor of the next. A kernel of its own reads all of C
# again to find one number. An epilogue has each element of C in a register anyway. There it costs about three
# instructions for an element, and C is not read again.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.measure import records
from cookbook.ops import predict
from cookbook.publish.pages import results_table, table

memory, shared, registers = "global memory", "shared memory", "registers"
stops = [
    draw.Stop("sC", "the tile, rounded", shared),
    draw.Stop("piece", "8 elements of a row, on their way to C", registers),
    draw.Stop("a lane's", "the bits of its largest |x|", registers),
    draw.Stop("a warp's", "the largest of 32 lanes", registers),
    draw.Stop("amax", "all warps: one word", memory),
]
arrows = ["16-byte loads", "clear the sign, maximum of integers", "redux.sync", "atomic maximum"]
draw.flow(stops, arrows, "From the elements of C to one number")

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, FurtherGemm, check_tensor, compile_host, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The GEMM around it
#
# The GEMM is [that of TMA and WGMMA](tma_wgmma_gemm.ipynb): its tiles, layouts, copies, producer and consumers are the
# same. Any other kernel here would do: the largest |C| asks nothing of the main loop.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per CTA: 64 for each consumer warpgroup
    tile_n: int = 256  # columns of C per CTA: the widest wgmma
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles

    @property
    def consumer_threads(self) -> int:
        return 128 * (self.tile_m // 64)

    @property
    def threads(self) -> int:
        return self.consumer_threads + 32  # and one producer warp

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes  # the barriers, padded to the tiles' alignment


CONFIG = Config()


# %% [markdown] tags=["lab"]
# ## What it saves, predicted
#
# `out.abs().amax()` of torch is two kernels: one reads C and writes |C|, the other reads |C|. That is three times the
# bytes of C. `torch.linalg.vector_norm(out, inf)` reads C once. The table divides these bytes by the bandwidth of an
# H200. Where C fits L2, a second read may be faster than that.
#
# In the epilogue an element takes three instructions: to float32, the sign cleared, a maximum. We assume that an SM
# does 64 lanes of them a clock, and that nothing hides them. To set `amax` to 0 is one more launch, as each of torch's
# kernels is.

# %% tags=["lab"]
CHIP, SMS, LANES, PER_ELEMENT = predict.H200, 132, 64, 3  # the last two are assumed


def predicted(m: int, n: int) -> list[str]:
    """Microseconds for the amax of C (m, n): torch's two kernels, one kernel that reads C, the epilogue."""
    once = 2 * m * n / CHIP.memory  # nanoseconds
    waves = -(-(-(-m // CONFIG.tile_m) * -(-n // CONFIG.tile_n)) // SMS)
    clocks = waves * CONFIG.tile_m * CONFIG.tile_n * PER_ELEMENT / LANES
    takes = 3 * once + 2 * CHIP.launch, once + CHIP.launch, clocks / CHIP.ghz + CHIP.launch
    return [f"{m} x {n}", *(f"{each / 1000:.1f} us" for each in takes)]


header = ["M x N", "abs().amax()", "vector_norm", "in the epilogue"]
Markdown(table(header, [predicted(*shape) for shape in ((4096, 4096), (8192, 8192), (16384, 14336))], right=1))


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, N)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.tile_n), (c.tile_m, c.tile_n), order=(0, 1)),
    )


# %%
def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """wgmma m64nNk16, A and B from shared memory, repeated down M by the warpgroups."""
    shape, smem, k_major = (64, config.tile_n, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K
    op = warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, shape, smem, k_major, k_major)
    return cute.make_tiled_mma(op, (config.tile_m // 64, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4: four 8x8 matrices a warp
    s2g_c: cute.TiledCopy  # ld.shared and st.global, `vec` elements a thread


def tiled_copies(dtype, config: Config = CONFIG, vec: int = 8) -> TiledCopies:
    """The two copies of the epilogue; `vec` elements (8, 4, 2 or 1) go to global memory at a time."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    per_row = min(config.tile_n // vec, config.consumer_threads)  # threads that share a row
    threads = cute.make_layout((config.consumer_threads // per_row, per_row), stride=(per_row, 1))
    return TiledCopies(
        r2s_c=cute.make_tiled_copy_C(stmatrix, tiled_mma(dtype, config)),
        s2g_c=cute.make_tiled_copy_tv(store, threads, cute.make_layout((1, vec))),
    )


# %%
@cute.jit
def produce(pipe, state, tma_a, tma_b, tAgA, tAsA, tBgB, tBsB):
    """Keep the stages full: tAgA, tBgB (TMA, k) in global memory; tAsA, tBsB (TMA, STAGE) in shared memory."""
    for k_tile in cutlass.range(cute.size(tAgA, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier)
        cute.copy(tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    pipe.producer_tail(state)  # until all stages have been read


# %%
@cute.jit
def multiply_stage(mma, acc, tCrA, tCrB, stage):
    """Issue one stage's wgmmas as one commit group. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements, 32 bytes, along K
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def consume(pipe, read, release, mma, acc, tCrA, tCrB, k_tiles):
    """Multiply all k-tiles into `acc`, one wgmma commit group always in flight."""
    mma.set(warpgroup.Field.ACCUMULATE, True)
    acc.fill(0.0)
    pipe.consumer_wait(read)
    multiply_stage(mma, acc, tCrA, tCrB, read.index)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        multiply_stage(mma, acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()
    warpgroup.wait_group(0)
    pipe.consumer_release(release)


# %% [markdown]
# ## A lane
#
# **Magnitudes compare as integers do.** In a float32 the exponent stands above the mantissa, and the sign above both.
# So of two floats that are not negative the larger one has the larger bits. The kernel clears the sign and takes the
# maximum of integers.
#
# * **NaN**: its bits, without the sign, are larger than those of infinity. One NaN in C makes amax NaN, as in torch.
# * **-0** becomes 0.
# * **Order**: a maximum does not depend on it. The same call gives the same bits.
#
# **Of the rounded output.** The pieces that a thread stores are already of C's type. So amax is `out.abs().amax()`, to
# the bit, which a test can demand. Rounding is monotone: the largest |accumulator|, once rounded, is the same number.
# It is what a cast of C to FP8 needs.
#
# **Rows and columns outside of C stay out.** TMA fills them with zeros, but zero times an infinity is NaN. The
# comparison that guards the store guards the maximum too. It looks at the first element of a piece. That is enough:
# the elements of a piece divide N, so a piece is all inside or all outside. With N = 333 a piece is one element.


# %% tags=["open"]
@cute.jit
def magnitude(values):
    """The bits of |x| of each x, as float32: as integers they compare as the numbers do, NaN above all."""
    return values.to(cutlass.Float32).bitcast(cutlass.Int32) & 0x7FFFFFFF


@cute.jit
def store(acc, sC, gC, cC, limit, copies, barrier, tidx):
    """Registers -> shared memory -> global memory. Returns the thread's largest |C|, as bits. gC, cC: (M, N)."""
    rC = cute.make_fragment_like(acc, gC.element_type)
    rC.store(acc.load().to(gC.element_type))
    thr = copies.r2s_c.get_slice(tidx)
    barrier.arrive_and_wait()  # both warpgroups have read their last stage
    cute.copy(copies.r2s_c, thr.retile(rC), thr.partition_D(sC))
    barrier.arrive_and_wait()
    thr = copies.s2g_c.get_slice(tidx)
    tCsC, tCgC, tCcC = thr.partition_S(sC), thr.partition_D(gC), thr.partition_D(cC)  # (VEC, REST_M, REST_N)
    largest = cutlass.Int32(0)
    for m in cutlass.range(cute.size(tCsC, mode=[1]), unroll=8):
        for n in cutlass.range_constexpr(cute.size(tCsC, mode=[2])):
            if cute.elem_less(tCcC[0, m, n], limit):  # what lies outside of C may be 0 * inf: it does not take part
                piece = cute.make_fragment_like(tCsC[None, m, n])
                cute.autovec_copy(tCsC[None, m, n], piece)
                bits = magnitude(piece.load())
                for v in cutlass.range_constexpr(cute.size(piece)):
                    largest = cutlass.max(largest, bits[v])
                cute.autovec_copy(piece, tCgC[None, m, n])
    return largest


# %% [markdown]
# ## A warp, and memory
#
# `redux.sync` takes the maximum of 32 integers in one instruction, and all lanes get it. One lane then asks for an
# atomic maximum. The thread does not wait for it: nobody uses what comes back. A tile has eight warps, so a C of many
# tiles makes eight atomics for a tile, which L2 serves.
#
# The word has to be 0 before: the bits of 0.0, the least of all. The host sets it before the kernel,
# on the same stream.


# %% tags=["open"]
@cute.jit
def report(largest, mAmax):
    """The largest of a warp's 32 lanes, then of all warps that report: one atomic maximum for each warp."""
    largest = cute.arch.warp_redux_sync(largest, "max")
    if cute.arch.lane_idx() == 0:
        cute.arch.atomic_max(mAmax.iterator, largest, sem="relaxed", scope="gpu")


# %% [markdown]
# ## The kernel
#
# Next to the GEMM that this one builds on, `store` returns something, and `report` is new.


# %%
@cute.jit
def tile_of_cta(shape_mn, config: cutlass.Constexpr):
    """Rasterization: this CTA's tile, column by column inside groups of `swizzle_size` rows of tiles."""
    tiles_m = cute.ceil_div(shape_mn[0], config.tile_m)
    tiles_n = cute.ceil_div(shape_mn[1], config.tile_n)
    cta, _, _ = cute.arch.block_idx()
    group, inside = cta // (config.swizzle_size * tiles_n), cta % (config.swizzle_size * tiles_n)
    first = group * config.swizzle_size
    height = cutlass.min(tiles_m - first, config.swizzle_size)  # the last group may be lower
    return first + inside % height, inside // height


# %% tags=["open"]
class Written(NamedTuple):
    """What the kernel writes."""

    c: cute.Tensor  # (M, N)
    amax: cute.Tensor  # (1): the bits of a float32


@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    written: Written,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """One CTA computes one tile of C."""
    mC, mAmax = written
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tile_m, tile_n = tile_of_cta(mC.shape, config)
    layouts, copies, mma = smem_layouts(dtype, config), tiled_copies(dtype, config, vec), tiled_mma(dtype, config)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = cute.make_tensor(cute.recast_ptr(sA.iterator, layouts.c.inner, dtype), layouts.c.outer)

    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, config.consumer_threads // 32),
        tx_count=config.stage_bytes,
    )
    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (tile_m, None))  # (M, K, k)
    gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (tile_n, None))  # (N, K, k)

    if warp_idx == config.consumer_threads // 32:
        alone = cute.make_layout(1)  # no multicast: a cluster of one
        tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
        tBsB, tBgB = cpasync.tma_partition(tma_b, 0, alone, cute.group_modes(sB, 0, 2), cute.group_modes(gB, 0, 2))
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        produce(pipe, state, tma_a, tma_b, tAgA, tAsA, tBgB, tBsB)
    else:
        thr = mma.get_slice(tidx)
        tile = (config.tile_m, config.tile_n)
        gC = cute.local_tile(mC, tile, (tile_m, tile_n))
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), tile, (tile_m, tile_n))
        acc = cute.make_rmem_tensor(thr.partition_C(gC).shape, cutlass.Float32)  # (MMA, MMA_M, MMA_N)
        tCrA = mma.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
        tCrB = mma.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
        consume(pipe, read, release, mma, acc, tCrA, tCrB, cute.size(gA, mode=[2]))
        barrier = pipeline.NamedBarrier(barrier_id=1, num_threads=config.consumer_threads)
        largest = store(acc, sC, gC, cC, mC.shape, copies, barrier, tidx)
        report(largest, mAmax)


# %% [markdown]
# ## The launch
#
# To the kernel `amax` is one int32: the bits of the float32 that the caller sees.


# %%
class Sizes(NamedTuple):
    """Extents, and the row strides of A, B and C in elements."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    amax: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; amax: the largest |C|, if it was 0 before."""
    (m, n, k), (lda, ldb, ldc), dtype = *sizes, pA.dtype
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    mAmax = cute.make_tensor(amax, cute.make_layout(1))
    layouts = smem_layouts(dtype, config)
    load = cpasync.CopyBulkTensorTileG2SOp()
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in (layouts.a, layouts.b))
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mB, b_stage, (config.tile_n, config.tile_k))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(tma_a, mA, tma_b, mB, Written(mC, mAmax), dtype, config, vec).launch(
        grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8), (cutlass.Int32, 4)
    return compile_host(gemm, arch, pointers, (config or CONFIG, vec), options=options)


# %% [markdown]
# ## `matmul_amax`: what a user calls
#
# `AmaxGemm` adds to the shared host side an operand that is written. It looks at everything first, and sets the word to
# 0 last. That is a launch of a small kernel in the same stream, so a CUDA graph captures it too, and each replay
# begins with 0. It costs a launch for each call, some microseconds on the host.
#
# With delayed scaling, 448 being the largest e4m3:
#
# ```python
# c, amax = matmul_amax(a, b)  # step t
# scale = amax / 448  # of step t + 1: c / scale fits e4m3, if c has not grown since
# ```


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG, call.vec), (Sizes(call.mnk, call.strides),)


@dataclass
class AmaxGemm(FurtherGemm):
    """A `Gemm` whose kernel raises one float32 to the largest |C|: it is set to 0 before each launch."""

    names: tuple[str, ...] = ("amax",)

    def check(self, a, b, amax, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call."""
        call = super().check(a, b, out, variant)
        check_tensor("amax", amax, (torch.float32,), (1,))
        require(amax.shape == (1,), "amax", f"shape {tuple(amax.shape)}", "(1,)")
        require(amax.device == a.device, "amax", f"device {amax.device}", f"{a.device}, where a is")
        a_span, b_span, out_span = call.spans
        return call._replace(spans=(a_span, b_span, 4, out_span))

    def before_launch(self, call: Call, given: tuple) -> None:
        """`amax` shares no memory with what the kernel reads; then it is set to 0."""
        a, b, amax = given
        for name, x, span in zip(("a", "b"), (a, b), call.spans, strict=False):
            apart = amax.data_ptr() + 4 <= x.data_ptr() or x.data_ptr() + span <= amax.data_ptr()
            require(apart, "amax", f"memory that overlaps {name}", "memory of its own")
        amax.zero_()


GEMM = AmaxGemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma")


def matmul_amax(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, amax: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`a @ b` on the tensor cores, accumulated in float32, and the largest |x| of it, on the current stream.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a, b or amax. Made if not given.
    amax: (1,), float32, no memory of a or b: what it held is lost. Made if not given.

    The second result is that of `out.abs().amax()`, to the bit, as float32: NaN if an element of C is NaN.
    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    require(isinstance(a, torch.Tensor), "a", type(a).__name__, "a torch.Tensor", TypeError)
    amax = torch.empty(1, dtype=torch.float32, device=a.device) if amax is None else amax
    return GEMM.matmul((a, b, amax), out, ""), amax


def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product alone, of `matmul_amax`: what all GEMMs are called by."""
    return matmul_amax(a, b, out=out)[0]


# %% [markdown]
# `PEERS` is what the times are compared with: torch's product, then one more kernel, which reads C again. Torch
# finds the largest |x| with no fewer.


# %% tags=["folded"]
def by_torch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """C and its largest |x| by torch."""
    return torch.matmul(a, b, out=out), torch.linalg.vector_norm(out, float("inf"))


PEERS = {"torch.matmul, then vector_norm": by_torch}


# %% [markdown] tags=["lab"]
# ## Check
#
# First the trick alone, in torch: the bits without the sign, their largest, and these bits as a float again.

# %% tags=["lab"]
INF, NAN = float("inf"), float("nan")


def by_bits(numbers: list[float]) -> float:
    """The largest magnitude, as the kernel finds it."""
    return (torch.tensor(numbers).view(torch.int32) & 0x7FFFFFFF).amax().view(torch.float32).item()


examples = [[-3.0, 2.0], [-0.0, 0.0], [1.0, -INF], [NAN, INF]]
of_torch = [torch.tensor(numbers).abs().amax().item() for numbers in examples]
Markdown(
    table(
        ["numbers", "by bits", "torch"],
        [[str(x), str(by_bits(x)), str(y)] for x, y in zip(examples, of_torch, strict=True)],
    )
)

# %% [markdown] tags=["lab"]
# Then the kernel. Level *product* follows each element of C from the operands to its store, and on to `amax`. Each
# C[m, n] has to take part, as it is stored, and nothing else. An element outside of C, a sign that is kept or a warp
# that does not report fails there.

# %% tags=["lab"]
lab.check_cells("hopper/amax_epilogue_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# The `matmul` of the cells above next to `torch.matmul`, run here where there is a GPU for it. The table below has two
# more peers: torch's product with the kernel that reads C, and the GEMM that this one is built on, without a maximum.

# %% tags=["lab", "open"]
lab.compare("hopper/amax_epilogue_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/amax_epilogue_gemm"))

# %% [markdown] tags=["lab"]
# What the amax takes, predicted above and measured: of torch the two kernels less its product, of ours this kernel and
# the setting of `amax` less the GEMM without a maximum. Behind each difference stands half the distance between the
# fastest and the slowest round: where that is larger, the difference says nothing. So it is with long products, which
# the power limit slows by turns.

# %% tags=["lab"]
ALONE, (KERNEL,) = "hopper/tma_wgmma_gemm", PEERS
PAIRS = (KERNEL, "torch.matmul"), ("ours", ALONE)
timed = records.of_one_gpu("hopper/amax_epilogue_gemm", "timed")


def measured(record) -> list[str]:
    """The microseconds of the amax of C in one run: a kernel that reads C, the epilogue; each as predicted, too."""
    timed, said = record["peers"] | {"ours": record["figures"]}, []
    for first, (more, less) in zip(predicted(*record["shape"][:2])[2:], PAIRS, strict=True):
        us = 1000 * (timed[more]["median_ms"] - timed[less]["median_ms"])
        spread = 500 * max(timed[who]["max_ms"] - timed[who]["min_ms"] for who in (more, less))
        said.append(f"{first} / {us:.1f} us ± {spread:.1f}")
    return [record["device"], f"{' x '.join(map(str, record['shape']))}, {record['dtype']}", *said]


rows = [measured(r) for r in timed if {ALONE, KERNEL} <= r["peers"].keys()]
header = ["device", "M x N x K", "vector_norm: predicted / measured", "in the epilogue: predicted / measured"]
Markdown(table(header, rows, right=2) if rows else "*Not timed next to these two yet.*")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A reduction over C belongs where C is in registers: a maximum in the lane, one instruction for the warp, one atomic
# for memory. What the reduction must not see, the guard of the store already knows.
#
# What it saves depends on K. A kernel that reads C takes the same time for each K, and the product more with a larger
# one. So it pays where K is small next to M and N. ([What each fusion
# saves](../../docs/benchmarks.md#what-a-fusion-saves) has two values of K.)
#
# The amax becomes a scale factor of [FP8 operands](fp8_gemm.ipynb).
#
# Next: [two products and a gate in one kernel](swiglu_gemm.ipynb).
# To use it: `cookbook copy hopper/amax_epilogue_gemm my_gemm.py`, then `from my_gemm import matmul_amax`.
