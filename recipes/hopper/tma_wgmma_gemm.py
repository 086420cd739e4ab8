# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: A GEMM with TMA and WGMMA
#     claim: >-
#       One warp loads tiles by TMA and two warpgroups multiply them from swizzled shared memory: that is nearly all
#       that a fast matrix product needs.
#     track: hopper
#     order: 30
#     builds_on: hopper/producer_warp_gemm
#     pays: {at: [8192, 8192, 512], over: hopper/producer_warp_gemm}
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> wgmma -> stmatrix -> 16-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, SYNCS, WARPGROUP.DEPBAR]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
#       - {title: "JAX Pallas, GPU kernels", url: "https://docs.jax.dev/en/latest/pallas/gpu/index.html"}
#       - {title: "Colfax Research, TMA, WGMMA and pipelining in CUTLASS C++", url: "https://research.colfax-intl.com/blog/"}
# ---

# %% [markdown]
# # A GEMM with TMA and WGMMA
#
# **Claim.** On Hopper a fast matrix product needs little code. *One warp* asks the Tensor Memory Accelerator (TMA) for
# tiles. *Two warpgroups* multiply them straight out of shared memory with `wgmma`. Neither side computes a
# shared-memory address.

# %% tags=["lab"]
from cookbook import draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/tma_wgmma_gemm", (4096, 4096, 4096), over=["ampere/tuned_gemm", "ceiling"])

# %% [markdown]
# The swizzle keeps 128 bytes of a row together, so TMA writes long lines, and `wgmma` still reads without conflicts.
# The TMA descriptor and the matrix descriptor each hold its *mode*. Here both come from one layout; where they
# disagree, the product is wrong and nothing reports it.
#
# Tile, stages and producer warp are those of [the page before](producer_warp_gemm.ipynb); `cutlass.pipeline` keeps
# count of the barriers now. New are an epilogue through shared memory, and the order of the tiles. All of it is here,
# from the first line to the last: if you want one GEMM explained, read this one. `matmul(a, b)` is for use: `a` is
# (M, K), `b` is (K, N), both K-major, as `x @ weight.T` is.

# %%
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# A tile of C is 128 x 256: each of the two consumer warpgroups holds 64 x 256 float32 accumulators, 128 registers a
# thread, and has room for the rest. A wider tile reads fewer bytes for each multiplication: a k-tile costs
# `tile_m + tile_n` rows of traffic and buys `tile_m * tile_n` products. 64 sixteen-bit elements along K are 128 bytes,
# the widest row that a swizzle mode covers.


# %% tags=["open"]
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


# %% [markdown]
# ## The layout
#
# The tensor core reads a K-major operand as *8 rows of 16-byte chunks*, placed in one of four ways. They are named by
# the bytes of a row that stay together: none (16), 32, 64, 128. CUTLASS's rule is one line: **the widest row that
# divides the tile's contiguous extent.** The 128-byte atom puts chunk *c* of row *r* at chunk slot *c XOR r*. In CuTe
# that is `make_swizzle(3, 4, 3)`: three bits, above the lowest 4 (16 bytes), XORed with those 3 higher (the row of 128
# bytes).
#
# **Mind the units.** The swizzle counts *bytes*: it acts on addresses, and is attached to the pointer. The layout
# under it, `(8, 64):(64, 1)`, counts *elements*. Evaluated as one function, the two send element (1, 0) to 64, where
# the hardware has 72.


# %% tags=["open"]
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, N); of later pages, which store it by TMA, (64, EPI_N, EPI_STAGE)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.tile_n), (c.tile_m, c.tile_n), order=(0, 1)),
    )


# %% [markdown] tags=["lab"]
# Each row of the picture is one 128-byte line of shared memory, each column one of its eight 16-byte slots. The number
# is the chunk of the tile that lies there. Left, the layout without its swizzle; right, what TMA writes and `wgmma`
# reads. Chunks of one colour are one *column* of the tile, which the tensor core wants at once. Unswizzled they share a
# slot, and its four banks; swizzled they have eight.

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, CONFIG).a)

# %% [markdown] tags=["lab"]
# The tile of A as TMA leaves it, by lines of 128 bytes: a cell says which (row, column) begins there. Below it, one
# column of chunks as `wgmma` reads it. Set B to 0 in both. In the first the chunks of one column come to lie below each
# other, in the same four banks. The second counts what that would cost.
#
# <swizzle-view layout="K_SW128" rows="128" columns="64" bits="16" swizzle="3,4,3" view="memory">
# `cookbook draw lines --tile 128x64 --bits 16 --swizzle 3,4,3 -o a.svg`
# </swizzle-view>
#
# <bank-view layout="K_SW128" rows="128" columns="64" bits="16" swizzle="3,4,3" access="ld128@8x8" reader="wgmma">
# `cookbook banks --tile 128x64 --bits 16 --swizzle 3,4,3 --access ld128@8x8`
# </bank-view>

# %% [markdown]
# ## Who multiplies, who copies
#
# A warpgroup of four warps issues a `wgmma`: a 64 x 16 part of A times a 16 x 256 part of B, both in shared memory.
# Two warpgroups, one above the other, make 128 rows. Software touches shared memory only in the epilogue: `stmatrix`
# writes C there, and 16-byte loads read it back row by row, so that a warp stores whole rows of C.


# %% tags=["open"]
def wgmma(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """wgmma m64nNk16: 64 rows of A times `columns` of B, both K-major in shared memory; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, k_major, k_major)


def tiled_mma(dtype, config) -> cute.TiledMma:
    """The wgmma, repeated down M by the warpgroups."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (config.consumer_threads // 128, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4: four 8x8 matrices a warp
    s2g_c: cute.TiledCopy  # ld.shared and st.global, `vec` elements a thread


def tiled_copies(dtype, config: Config, vec: int = 8) -> TiledCopies:
    """The two copies of the epilogue; `vec` elements (8, 4, 2 or 1) go to global memory at a time."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    per_row = gcd(config.tile_n // vec, config.consumer_threads)  # threads that share a row
    threads = cute.make_layout((config.consumer_threads // per_row, per_row), stride=(per_row, 1))
    return TiledCopies(
        r2s_c=cute.make_tiled_copy_C(stmatrix, tiled_mma(dtype, config)),
        s2g_c=cute.make_tiled_copy_tv(store, threads, cute.make_layout((1, vec))),
    )


# %% [markdown]
# ## The producer
#
# One warp runs ahead. A stage has two barriers in shared memory: *full* and *empty*. ([The first
# GEMM](first_gemm.ipynb#the-loop) explains what an `mbarrier` counts; here `cutlass.pipeline` keeps count.) For each
# k-tile the producer waits until a stage is empty and announces how many bytes will come; `producer_acquire` does both.
# Then it issues two TMA copies, which report to the full barrier when they land. TMA fills what lies outside the matrix
# with zeros, so a ragged K needs no code.
#
# `producer_tail` waits until all stages have been read. A CTA alone does not need it, as the page before shows; in a
# cluster another CTA may still arrive here.


# %% tags=["open"]
class Load(NamedTuple):
    """An operand as the producer sees it."""

    atom: cute.CopyAtom
    gX: cute.Tensor  # (TMA, k), TMA coordinates in global memory
    sX: cute.Tensor  # (TMA, STAGE), shared memory


@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, loads: tuple[Load, ...], config: cutlass.Constexpr):
    """Keep the stages full: load the k-tiles of all operands, a stage each."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for load in loads:
            cute.copy(load.atom, load.gX[None, k_tile], load.sX[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    pipe.producer_tail(state)  # until all stages have been read


# %% [markdown] tags=["lab"]
# How many stages? Enough that a load, asked for as soon as a stage is free, arrives before the consumers need it. The
# times in this picture are illustrative:

# %% tags=["lab"]
draw.pipeline(stages=CONFIG.stages, k_tiles=10, load_time=3)

# %% [markdown] tags=["lab"]
# Each stage has two barriers. The producer waits at *empty* before it asks for a load. TMA's bytes complete *full*, at
# which the consumers wait. When they have read the stage they arrive at *empty*. The same run, with its barriers:

# %% tags=["lab"]
draw.barriers(stages=CONFIG.stages, k_tiles=10, load_time=3)

# %% [markdown]
# ## The consumers
#
# `wgmma` is asynchronous: a commit group is issued, committed, and waited for later. The loop issues the next group
# while one is in flight, so the tensor core has work while the threads go on. A stage goes back to the producer only
# once the group that read it is *done*: hence a second pipeline state, `release`, one step behind `read`.


# %% tags=["open"]
@cute.jit
def issue_wgmmas(mma: cute.TiledMma, acc: cute.Tensor, tCrA: cute.Tensor, tCrB: cute.Tensor, stage: cutlass.Int32):
    """Issue one stage's wgmmas as one commit group. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements, 32 bytes, along K
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def consume(
    pipe: pipeline.PipelineTmaAsync,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    k_tiles: cutlass.Int32,
):
    """Multiply all k-tiles into `acc`, one wgmma commit group always in flight."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, pipe.num_stages)
    release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, pipe.num_stages)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    acc.fill(0.0)
    pipe.consumer_wait(read)
    issue_wgmmas(mma, acc, tCrA, tCrB, read.index)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        issue_wgmmas(mma, acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()
    warpgroup.wait_group(0)
    pipe.consumer_release(release)


# %% [markdown]
# ## The epilogue
#
# Each thread holds scattered pairs of C. `stmatrix` writes them to a swizzled tile in shared memory. It takes the place
# of A and B: every stage has been read by then. The threads read the tile back row by row. A store has 16 bytes where
# N, the row stride and the address permit, and one element for an odd N. So it lies inside the matrix or outside of it,
# and one comparison guards it.
#
# The barrier is a *named* one: `sync_threads` would wait for the producer warp, which never comes.


# %% tags=["open"]
@cute.jit
def store(
    acc: cute.Tensor,
    sC: cute.Tensor,
    gC: cute.Tensor,
    cC: cute.Tensor,
    limit: tuple[cutlass.Int32, cutlass.Int32],
    copies: TiledCopies,
    config: cutlass.Constexpr,
):
    """Registers -> swizzled shared memory -> global memory. gC, cC: (TILE_M, TILE_N) tile and its coordinates."""
    tidx, _, _ = cute.arch.thread_idx()
    barrier = pipeline.NamedBarrier(barrier_id=1, num_threads=config.consumer_threads)
    rC = cute.make_fragment_like(acc, gC.element_type)
    rC.store(acc.load().to(gC.element_type))
    thr = copies.r2s_c.get_slice(tidx)
    barrier.arrive_and_wait()  # both warpgroups have read their last stage
    cute.copy(copies.r2s_c, thr.retile(rC), thr.partition_D(sC))
    barrier.arrive_and_wait()
    thr = copies.s2g_c.get_slice(tidx)
    tCsC, tCgC, tCcC = thr.partition_S(sC), thr.partition_D(gC), thr.partition_D(cC)  # (VEC, REST_M, REST_N)
    for m in cutlass.range(cute.size(tCsC, mode=[1]), unroll=8):
        for n in cutlass.range_constexpr(cute.size(tCsC, mode=[2])):
            if cute.elem_less(tCcC[0, m, n], limit):
                cute.autovec_copy(tCsC[None, m, n], tCgC[None, m, n])


# %% [markdown]
# ## The kernel
#
# **Rasterization.** CTAs are numbered so that those that run together form a block of C, `swizzle_size` tiles high:
# they share rows of A and columns of B in L2 ([thread-block swizzle](../foundations/thread_block_swizzle.ipynb)).


# %% tags=["open"]
@cute.jit
def tile_of_cta(shape_mn: tuple, config: cutlass.Constexpr):
    """Rasterization: this CTA's tile, column by column inside groups of `swizzle_size` rows of tiles."""
    tiles_m = cute.ceil_div(shape_mn[0], config.tile_m)
    tiles_n = cute.ceil_div(shape_mn[1], config.tile_n)
    cta, _, _ = cute.arch.block_idx()
    group, inside = cta // (config.swizzle_size * tiles_n), cta % (config.swizzle_size * tiles_n)
    first = group * config.swizzle_size
    height = cutlass.min(tiles_m - first, config.swizzle_size)  # the last group may be lower
    return first + inside % height, inside // height


class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # (M, K) or (N, K), TMA coordinates


class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sC: cute.Tensor  # (TILE_M, TILE_N), where A and B were


# %% [markdown]
# Shared memory is laid out once: the barriers, then the stages of A and of B. C takes their place. A `CooperativeGroup`
# says how many arrive at a barrier: one thread of the producer, one of each consumer warp. `create` initializes the
# barriers, makes that visible to TMA, and all threads meet there.


# %% tags=["open"]
@cute.jit
def allocate(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory: the barriers, and the tiles sA, sB and sC."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = cute.make_tensor(cute.recast_ptr(sA.iterator, layouts.c.inner, dtype), layouts.c.outer)
    return barriers, sA, sB, sC


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages, and set up their barriers: each consumer warp arrives once at an empty one."""
    barriers, sA, sB, sC = allocate(layouts, dtype, config)
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, config.consumer_threads // 32),
        tx_count=config.stage_bytes,
    )
    return Cta(pipe, sA, sB, sC)


# %% [markdown]
# The producer's part, and the consumers'. TMA reads whole tiles, by coordinates; the MMA reads whole stages, by
# descriptors.


# %% tags=["open"]
@cute.jit
def partition_load(atom: cute.CopyAtom, gX: cute.Tensor, sX: cute.Tensor) -> Load:
    """Partition an operand for its TMA loads. gX (rows, TILE_K, k): a row of its tiles; sX (rows, TILE_K, STAGE)."""
    no_multicast = cute.make_layout(1)  # a cluster of one CTA
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(atom, 0, no_multicast, sX, gX)  # (TMA, STAGE), (TMA, k)
    return Load(atom, tXgX, tXsX)


@cute.jit
def multiply(cta: Cta, op: cutlass.Constexpr, k_tiles: cutlass.Int32, config: cutlass.Constexpr):
    """Multiply all k-tiles: the consumer warpgroups. Return the accumulators, (MMA, MMA_M, MMA_N)."""
    tidx, _, _ = cute.arch.thread_idx()
    mma = cute.make_tiled_mma(op, (config.consumer_threads // 128, 1, 1))
    thr = mma.get_slice(tidx)
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA = mma.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = mma.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    consume(cta.pipe, mma, acc, tCrA, tCrB, k_tiles)
    return acc


@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One CTA computes one tile of C.

    Who waits for whom, with the CONFIG of hopper/tma_wgmma_gemm:

    warps  do         wait for  signal
    0-7    wgmma      full[4]   empty[4]: 1 a warp
    8      TMA loads  empty[4]  full[4]: 1, expects 49152 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 8 arrivals a phase.
    bar 1, 256 threads: warps 0-7 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tile = tile_of_cta(mC.shape, config)
    cta = set_up(layouts, mC.element_type, config)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (tile[0], None))  # (TILE_M, TILE_K, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (tile[1], None))  # (TILE_N, TILE_K, k)
    if warp_idx == config.consumer_threads // 32:
        produce(cta.pipe, (partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB)), config)
    else:
        gC = cute.local_tile(mC, (config.tile_m, config.tile_n), tile)  # (TILE_M, TILE_N)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), tile)
        acc = multiply(cta, op, cute.size(gA, mode=[2]), config)
        store(acc, cta.sC, gC, cC, mC.shape, copies, config)


# %% [markdown]
# ## The launch
#
# TMA is told address, extents, row strides, the box to fetch, and, by the very same layout, the swizzle mode. Sizes and
# strides are run-time values: one compiled kernel serves all shapes.


# %% tags=["open"]
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = strides
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config, vec)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(a, b, mC, layouts, copies, wgmma(dtype, config.tile_n), config).launch(
        grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


def make_load(matrix: cute.Tensor, stages: cute.ComposedLayout, rows: int, config) -> TmaTensor:
    """The TMA load of `rows` x TILE_K elements of a matrix into one stage."""
    stage = cute.select(stages, mode=[0, 1])
    load = cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, (rows, config.tile_k)))


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (kernel, config or CONFIG, vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG, call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma")


def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out)


# %% [markdown] tags=["lab"]
# ## Check
#
# *Layout* looks at layouts and copies. *Model* simulates a ragged product by these layouts in numpy. *Product* follows
# the kernel from A and B to each element of C. *Pipeline* tries its barriers in every order. *Compiled* makes a real
# cubin. On a Hopper GPU the kernel also runs; elsewhere you see the recorded run.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/tma_wgmma_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/tma_wgmma_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# `cookbook bench` also times the [ceiling](../foundations/tensor_core_ceiling.ipynb), a loop of nothing but `wgmma`
# with as many products. How near to it should we come, by the clocks of an SM?
#
# * The tensor cores of an SM do 2048 multiply-adds a clock (NVIDIA H100 white paper): a tile's time at best.
# * The first load takes about 800 clocks, and C goes out at 16 elements a clock (both assumed). Nothing hides these
#   two, because a CTA computes one tile and ends.
# * The SMs take one tile each at a time, so their number is rounded up to whole *waves*.
#
# Ours and its peers were timed interleaved, in one run on one GPU. The last table has the products with tiles for most
# SMs.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import records, results_table, table

Markdown(results_table("hopper/tma_wgmma_gemm"))

# %% [markdown] tags=["lab"]
# The staged epilogue and the order of the tiles should gain most over [the page before](producer_warp_gemm.ipynb) where
# K is short, because then C is much of a tile's work:

# %% tags=["lab"]
lab.gain("hopper/tma_wgmma_gemm", (8192, 8192, 512), over=["hopper/producer_warp_gemm"])

# %% tags=["lab"]
SMS, TENSOR_RATE, LATENCY, OUT = 132, 2048, 800, 16  # of an H200; multiply-adds; clocks; elements


def predicted_share(m: int, n: int, k: int) -> float:
    """The part of the ceiling: clocks in which C's products are made, of all clocks of the waves."""
    tile, tiles = CONFIG.tile_m * CONFIG.tile_n, -(-m // CONFIG.tile_m) * -(-n // CONFIG.tile_n)
    each = tile * -(-k // CONFIG.tile_k) * CONFIG.tile_k / TENSOR_RATE + LATENCY + tile / OUT
    return m * n * k / TENSOR_RATE / SMS / (-(-tiles // SMS) * each)


def predicted_and_measured() -> str:
    """A line for every current record of a product that keeps most SMs busy, or that there is none."""
    rows = []
    for r in records.of_one_gpu("hopper/tma_wgmma_gemm", "timed"):
        tiles = -(-r["shape"][0] // CONFIG.tile_m) * -(-r["shape"][1] // CONFIG.tile_n)
        if "ceiling" in r["peers"] and tiles > 0.9 * SMS:
            share = r["peers"]["ceiling"]["median_ms"] / r["figures"]["median_ms"]
            of = [r["device"], " x ".join(map(str, r["shape"])), r["dtype"]]
            rows.append([*of, f"{predicted_share(*r['shape']):.0%}", f"{share:.0%}"])
    header = ["device", "M x N x K", "dtype", "of the ceiling, predicted", "measured"]
    return table(header, rows, right=3) if rows else "*Not measured yet.*"


Markdown(predicted_and_measured())

# %% [markdown] tags=["lab"]
# By the count little is missing at large sizes. Measured, more is. Power is one candidate, which this page does not
# measure: a GPU that works for long reaches its limit and lowers its clock. So there are two ways on: lose fewer
# clocks, and move fewer bytes for a product, which saves power.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "consume_in_one_loop": (
        "consume",
        """\
    pipe.consumer_wait(read)
    issue_wgmmas(mma, acc, tCrA, tCrB, read.index)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        issue_wgmmas(mma, acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()""",
        "    raise NotImplementedError",
        (
            "`consume` writes its first k-tile apart from the loop. Write one loop over all k-tiles. One commit "
            "group is still in flight, and a stage is given back as soon as it has been read."
        ),
        (
            "In the first iteration no stage has been read yet: there is none to give back.",
            "`wait_group(1)` may stand in every iteration. `consumer_release` may not: its barrier counts.",
        ),
        "The first iteration gives nothing back; the lines after the loop give the last stage back, as before.",
        """\
    for k_tile in cutlass.range(k_tiles, unroll=1):
        pipe.consumer_wait(read)
        issue_wgmmas(mma, acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)
        if k_tile > 0:
            pipe.consumer_release(release)
            release.advance()""",
    ),
    "consume_at_risk": (
        "consume",
        "warpgroup.wait_group(1)",
        "warpgroup.wait_group(2)",
        (
            '"Why wait for the commit group before this one? Leave two in flight, and the tensor cores never '
            'wait." The products are right in nearly every run.'
        ),
        (
            "When iteration i gives a stage back, which one is it? Which commit group reads it?",
            (
                "After `wait_group(2)` of iteration i the groups i and i - 1 may still run. The stage given back "
                "is that of i - 1."
            ),
        ),
        (
            "The stage that is given back is still being read by `wgmma`: TMA may overwrite it. With two groups "
            "in flight, the stage before it has to be given back, one iteration later."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("hopper/tma_wgmma_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A rule of one line chose the layout; the same object described it to TMA, to `wgmma` and to the checks. Three things
# can still be gained. The producer's threads hold registers that a larger tile could use. Neighbouring CTAs load the
# same rows of A and columns of B, each for itself. And while a CTA stores its tile its tensor cores wait.
#
# Next: [warp specialization and setmaxnreg](warp_specialized_gemm.ipynb). Or see the same layouts multiplied by
# `tcgen05` into tensor memory: [Blackwell](../blackwell/tma_tcgen05_gemm.ipynb).
