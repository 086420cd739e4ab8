# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: A GEMM with TMA and tcgen05
#     claim: >-
#       On Blackwell one thread multiplies a 128 x 256 tile from swizzled shared memory, and the accumulators stay in
#       tensor memory until four warps load them.
#     track: blackwell
#     order: 10
#     builds_on: hopper/tma_wgmma_gemm
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> tcgen05.mma -> tensor memory -> tcgen05.ld -> 16-byte stores
#     instructions:
#       all: [UTMALDG.2D, UTCHMMA, UTCBAR, LDTM, UTCATOMSWS, STS.128, SYNCS]
#     sources:
#       - {title: "PTX ISA, tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"}
#       - {title: "PTX ISA, the shared-memory descriptor of tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-shared-memory-descriptor"}
#       - {title: "gau-nernst, tcgen05 for dummies", url: "https://gau-nernst.github.io/tcgen05"}
#       - {title: "Triton, Gluon tutorials", url: "https://triton-lang.org/main/getting-started/tutorials/gluon/index.html"}
#       - {title: "JAX Pallas, Blackwell matmul", url: "https://docs.jax.dev/en/latest/pallas/gpu/blackwell_matmul.html"}
#       - {title: "gau-nernst, tcgen05 for dummies", url: "https://gau-nernst.github.io/tcgen05/"}
# ---

# %% [markdown]
# # A GEMM with TMA and tcgen05
#
# **Claim.** Blackwell's tensor core takes its operands where Hopper's took them: in swizzled shared memory, by a matrix
# descriptor. Two things changed. *One thread* issues `tcgen05.mma` for the whole CTA. And the accumulators stay in
# *tensor memory*: no thread holds one while it multiplies.

# %% [markdown] tags=["lab"]
# The picture shows tensor memory with the accumulators of one tile. An address is a lane (upper 16 bits) and a column.
# Row *m* is in lane *m*, column *n* in column *n*: the tile takes 256 columns of 512. Warp *w* reaches lanes 32 *w* to
# 32 *w* + 31 and no others. A box is what one `tcgen05.ld` of one warp brings.

# %% tags=["lab"]
import cutlass

import cookbook
from cookbook import draw
from cookbook.layouts import evaluate

packaged = cookbook.load("blackwell/tma_tcgen05_gemm")


def in_tensor_memory(dtype):
    config = packaged.CONFIG
    mma = packaged.tiled_mma(dtype, config)
    return mma.make_fragment_C(mma.partition_shape_C((config.tile_m, config.tile_n))).layout


found = evaluate(in_tensor_memory, cutlass.BFloat16, arch="sm_100a")
draw.tensor_memory(found.table().reshape(packaged.CONFIG.tile_n, -1).T, packaged.CONFIG.epi_n)

# %% [markdown]
# This is the twin of [the Hopper GEMM](../hopper/tma_wgmma_gemm.ipynb): read the two next to each other. Layouts, the
# producer and the rasterization are the same, and imported from there. What stands below is what a port to Blackwell
# takes: another MMA, a consumer that waits for less, and an epilogue that begins in tensor memory.
#
# *This kernel has not run on hardware.* It is compiled for Blackwell, and its data path is checked against the PTX ISA
# document in numpy. [What is checked](../../docs/checking.md#blackwell-what-hardware-has-confirmed) says which part a
# Hopper GPU has confirmed. No speed is claimed.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator, TmemAllocator
from cookbook.recipes.ampere.first_gemm import row_major
from cookbook.recipes.hopper.tma_wgmma_gemm import Config as TmaWgmmaConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    SmemLayouts,
    TmaTensor,
    make_load,
    partition_load,
    produce,
    smem_layouts,
    tile_of_cta,
)

# %% [markdown]
# ## The sizes
#
# Tiles and stages are those of the Hopper page: 128 x 256, four stages of 64 along K. Here the 128 rows of a tile are
# the 128 lanes of tensor memory, and 256 columns are the widest `tcgen05.mma`. Four warps fetch C, because each of them
# reaches 32 lanes, and no others.


# %%
@dataclass(frozen=True)
class Config(TmaWgmmaConfig):
    """Sizes of the kernel, in elements or counts."""

    epi_n: int = 32  # columns of an epilogue subtile of C: as many registers a thread

    @property
    def consumer_threads(self) -> int:
        return 128  # four warps: each can reach 32 lanes of tensor memory, and no others

    @property
    def tmem_columns(self) -> int:
        return self.tile_n  # 32 bits each; allocated in powers of two, at least 32


CONFIG = Config()


def config_for(arch: str) -> Config:
    """The configuration for an architecture: the two chips with tcgen05 have the same sizes."""
    return CONFIG


# %% [markdown]
# ## The layouts and the MMA
#
# The layouts are Hopper's. The tensor core reads a K-major operand as *8 rows of 16-byte chunks*, in one of four modes:
# 16, 32, 64 or 128 bytes of a row stay together. The rule is **the widest row that divides the tile's contiguous
# extent**. In the 128-byte atom chunk *c* of row *r* lies in slot *c XOR r*: `make_swizzle(3, 4, 3)`.
#
# One `tcgen05.mma` multiplies 128 x 16 of A by 16 x 256 of B, and adds the product to 256 columns of tensor memory.


# %%
def tcgen05_mma(dtype, config) -> tcgen05.MmaF16BF16Op:
    """tcgen05.mma of 128 x N x 16 by one CTA, A and B from shared memory."""
    shape, smem, k_major = (config.tile_m, config.tile_n, 16), tcgen05.OperandSource.SMEM, OperandMajorMode.K
    return tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.ONE, smem, k_major, k_major)


def tiled_mma(dtype, config) -> cute.TiledMma:
    """The tcgen05.mma: one instruction computes the whole tile."""
    return cute.make_tiled_mma(tcgen05_mma(dtype, config))


# %% [markdown]
# ## The copies of the epilogue
#
# The only way out of tensor memory is `tcgen05.ld`. Its form `32x32b` gives thread *t* of a warp `epi_n` columns of the
# row in lane *t* of the warp's 32 lanes. Eight adjacent columns are 16 bytes, so `st.shared` writes the swizzled tile
# of C.


# %%
class TiledCopies(NamedTuple):
    """The copies by software on the way of C."""

    t2r_c: cute.TiledCopy  # tcgen05.ld: from tensor memory to registers, `epi_n` columns of a row a thread
    r2s_c: cute.TiledCopy  # st.shared of 16 bytes
    s2g_c: cute.TiledCopy  # ld.shared and st.global, `vec` elements a thread


def epilogue_subtiles(accumulators: cute.Tensor, config) -> cute.Tensor:
    """The accumulators (MMA, MMA_M, MMA_N) in tensor memory as (M, EPI_N, 1, N / EPI_N)."""
    accumulators = accumulators[(None, None), 0, 0]  # (M, N): one instruction computes all of them
    return cute.flat_divide(accumulators, (accumulators.shape[0], config.epi_n))


def tmem_load(mma: cute.TiledMma, config) -> cute.TiledCopy:
    """tcgen05.ld of an epilogue subtile: `epi_n` columns of a row a thread."""
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(config.epi_n)), cutlass.Float32)
    accumulators = mma.make_fragment_C(mma.partition_shape_C((config.tile_m, config.tile_n)))
    return tcgen05.make_tmem_copy(load, epilogue_subtiles(accumulators, config)[None, None, 0, 0])


def tiled_copies(dtype, config: Config, vec: int = 8) -> TiledCopies:
    """The three copies of the epilogue; `vec` elements (8, 4, 2 or 1) go to global memory at a time."""
    t2r_c = tmem_load(tiled_mma(dtype, config), config)
    write = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=128)
    store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    per_row = min(config.tile_n // vec, config.consumer_threads)  # threads that share a row
    threads = cute.make_layout((config.consumer_threads // per_row, per_row), stride=(per_row, 1))
    return TiledCopies(
        t2r_c=t2r_c,
        r2s_c=cute.make_tiled_copy_D(write, t2r_c),
        s2g_c=cute.make_tiled_copy_tv(store, threads, cute.make_layout((1, vec))),
    )


# %% [markdown] tags=["lab"]
# Each row of the picture is one 128-byte line of shared memory, each column one of its eight 16-byte slots; the number
# is the chunk of the tile that lies there. Left without the swizzle; right, what TMA writes and `tcgen05.mma` reads.
# Chunks of one colour are one *column* of the tile.

# %% tags=["lab"]
from cookbook.descriptors import describe, field_table

layouts = evaluate(smem_layouts, cutlass.BFloat16, CONFIG, arch="sm_100a")
draw.swizzle_view(layouts.a)

# %% [markdown] tags=["lab"]
# The descriptor of A, by the rules of the PTX ISA document, from the byte addresses alone. Eight rows of 128 bytes are
# an atom of 1024 bytes: the stride byte offset. The check below compares it with what the compiler wrote.

# %% tags=["lab"]
for name, bits, said, value in field_table(describe(layouts.a, "K", hopper=False, rows=CONFIG.tile_m)):
    print(f"{name:24}{bits:7}{said:12}{value}")

# %% [markdown]
# ## The producer and the consumer
#
# **The producer** is Hopper's `produce`. One warp waits until a stage is *empty*, announces how many bytes will come
# (`producer_acquire` does both), and issues two TMA copies that report to the stage's barrier. TMA fills what lies
# outside the matrix with zeros.
#
# **The consumer** counts no commit groups. `tcgen05.mma` runs in the order of issue. `tcgen05.commit` (inside
# `consumer_release`) makes the tensor core signal a barrier once all that was issued before is done. After each k-tile
# that is the stage's *empty* barrier, after the last one also the accumulators' *full* barrier. The issuing thread
# waits for data only. The first `tcgen05.mma` of a tile overwrites the accumulators, so nothing zeroes them.


# %%
@cute.jit
def consume(
    pipe: pipeline.PipelineTmaUmma,
    read: pipeline.PipelineState,
    mma: cute.TiledMma,
    tCtC: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    k_tiles: cutlass.Int32,
):
    """One warp: multiply all k-tiles into tCtC (MMA, MMA_M, MMA_N) in tensor memory. Return the pipeline state.

    tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE). CuTe elects the one thread that issues.
    """
    mma.set(tcgen05.Field.ACCUMULATE, False)
    for _ in cutlass.range(k_tiles, unroll=1):
        pipe.consumer_wait(read)
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements, 32 bytes, along K
            cute.gemm(mma, tCtC, tCrA[None, None, k, read.index], tCrB[None, None, k, read.index], tCtC)
            mma.set(tcgen05.Field.ACCUMULATE, True)
        pipe.consumer_release(read)  # once these are done, the stage may be overwritten
        read.advance()
    return read


# %% [markdown]
# ## The epilogue
#
# Four warps fetch the tile, `epi_n` columns at a time, round it, and write it where A and B were. `tcgen05.ld` is
# asynchronous: a fence waits for its registers.
#
# Between `tcgen05` instructions of two threads the PTX ISA asks for a barrier *and* a fence on either side. A thread
# executes `after_thread_sync` when it has waited, before its next `tcgen05` instruction; and `before_thread_sync` when
# it is done, before it arrives.
#
# The store to global memory takes 16 bytes where N, the row stride and the address permit, down to one element for an
# odd N: it is all inside the matrix or all outside.


# %%
@cute.jit
def stage_c(
    acc_pipe: pipeline.PipelineUmmaAsync,
    tCtC: cute.Tensor,
    sC: cute.Tensor,
    copies: TiledCopies,
    tidx: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Tensor memory -> registers -> swizzled shared memory, an epilogue subtile of (M, EPI_N) at a time."""
    t2r, r2s = copies.t2r_c.get_slice(tidx), copies.r2s_c.get_slice(tidx)
    acc_pipe.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
    tDtC = t2r.partition_S(epilogue_subtiles(tCtC, config))  # (LD, LD_M, LD_N, 1, SUBTILE)
    sC_subtiles = cute.flat_divide(sC, (config.tile_m, config.epi_n))
    tDsC = r2s.partition_D(sC_subtiles)  # (VEC, REST_M, REST_N, 1, SUBTILE)
    rAcc = cute.make_rmem_tensor(t2r.partition_D(sC_subtiles)[None, None, None, 0, 0].shape, cutlass.Float32)
    rC = cute.make_rmem_tensor(rAcc.shape, sC.element_type)
    for i in cutlass.range_constexpr(cute.size(tDtC, mode=[4])):
        cute.copy(copies.t2r_c, tDtC[None, None, None, 0, i], rAcc)
        cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
        rC.store(rAcc.load().to(sC.element_type))
        cute.copy(copies.r2s_c, r2s.retile(rC), tDsC[None, None, None, 0, i])
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")


@cute.jit
def store(
    sC: cute.Tensor,
    gC: cute.Tensor,
    cC: cute.Tensor,
    limit: tuple[cutlass.Int32, cutlass.Int32],
    copies: TiledCopies,
    tidx: cutlass.Int32,
):
    """Swizzled shared memory -> global memory. gC, cC: (M, N) tile and its coordinates."""
    thr = copies.s2g_c.get_slice(tidx)
    tCsC, tCgC, tCcC = thr.partition_S(sC), thr.partition_D(gC), thr.partition_D(cC)  # (VEC, REST_M, REST_N)
    for m in cutlass.range(cute.size(tCsC, mode=[1]), unroll=8):
        for n in cutlass.range_constexpr(cute.size(tCsC, mode=[2])):
            if cute.elem_less(tCcC[0, m, n], limit):
                cute.autovec_copy(tCsC[None, m, n], tCgC[None, m, n])


# %% [markdown]
# ## What the warps share
#
# Two pipelines: one of the stages of A and B, and one of a single stage, the accumulators. One thread issues every
# `tcgen05.mma`, so one arrival, by the tensor core, empties a stage, and one fills the accumulators. They begin empty
# and are filled once.
#
# **Tensor memory** is allocated at run time. The warp that allocates it learns the address in shared memory, and a
# barrier tells the others. It is freed after its last load.


# %%
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaUmma  # of the stages of A and B
    acc_pipe: pipeline.PipelineUmmaAsync  # of the accumulators
    tmem_address: cute.Pointer  # in shared memory: where tensor memory's address will be
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sC: cute.Tensor  # (TILE_M, TILE_N), where A and B were


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate shared memory, and set up the barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages + 2)
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = cute.make_tensor(cute.recast_ptr(sA.iterator, layouts.c.inner, dtype), layouts.c.outer)
    single = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    pipe = pipeline.PipelineTmaUmma.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=single,
        consumer_group=single,
        tx_count=config.stage_bytes,
        defer_sync=True,
    )
    acc_pipe = pipeline.PipelineUmmaAsync.create(
        barrier_storage=barriers + 2 * config.stages,
        num_stages=1,
        producer_group=single,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, config.consumer_threads),
    )
    return Cta(pipe, acc_pipe, tmem_address, sA, sB, sC)


@cute.jit
def accumulators_in(tmem: TmemAllocator, op: cutlass.Constexpr, config: cutlass.Constexpr):
    """Wait for tensor memory. Return its address, and the accumulators (MMA, MMA_M, MMA_N) in it."""
    mma = cute.make_tiled_mma(op)
    tmem.wait_for_alloc()
    address = tmem.retrieve_ptr(cutlass.Float32)
    shape = mma.partition_shape_C((config.tile_m, config.tile_n))
    return address, cute.make_tensor(address, mma.make_fragment_C(shape).layout)


# %% [markdown]
# ## The kernel
#
# One warp of the four also issues the multiplications; then all four wait for the tensor core.


# %%
@cute.jit
def multiply(cta: Cta, tCtC: cute.Tensor, op: cutlass.Constexpr, k_tiles: cutlass.Int32, config: cutlass.Constexpr):
    """One warp: multiply all k-tiles into tCtC (MMA, MMA_M, MMA_N), and have the tensor core say when it is done."""
    mma = cute.make_tiled_mma(op)
    thr = mma.get_slice(0)
    tCrA = mma.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = mma.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    consume(cta.pipe, read, mma, tCtC, tCrA, tCrB, k_tiles)
    cta.acc_pipe.producer_commit(pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1))


# %% [markdown]
# The kernel gives each warp its role, and each CTA its tile. Tensor memory is taken before the first multiplication and
# freed when C is in shared memory.


# %%
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

    Who waits for whom, with the CONFIG of blackwell/tma_tcgen05_gemm:

    warps  do           wait for             signal
    0      tcgen05.mma  full[4]              empty[4]: 1 when its MMAs are over
           tcgen05.ld   accumulator full[1]  accumulator full[1]: 1 when its MMAs are over
    1-3    tcgen05.ld   accumulator full[1]
    4      TMA loads    empty[4]             full[4]: 1, expects 49152 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 1 arrival a phase.
    accumulator full[1]: 1 arrival a phase.
    bar 1, 128 threads: warps 0-3 meet.
    """
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tile = tile_of_cta(mC.shape, config)
    cta = set_up(layouts, mC.element_type, config)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (tile[0], None))  # (TILE_M, TILE_K, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (tile[1], None))  # (TILE_N, TILE_K, k)
    if warp_idx == config.consumer_threads // 32:
        produce(cta.pipe, (partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB)), config)
    else:
        barrier = pipeline.NamedBarrier(barrier_id=1, num_threads=config.consumer_threads)
        tmem = TmemAllocator(cta.tmem_address, barrier_for_retrieve=barrier)
        tmem.allocate(config.tmem_columns)  # by warp 0
        tmem.relinquish_alloc_permit()  # another CTA of this SM may allocate now
        address, tCtC = accumulators_in(tmem, op, config)
        if warp_idx == 0:
            multiply(cta, tCtC, op, cute.size(gA, mode=[2]), config)
        stage_c(cta.acc_pipe, tCtC, cta.sC, copies, tidx, config)
        barrier.arrive_and_wait()  # all of C is in shared memory, and no longer needed in tensor memory
        tmem.free(address)
        gC = cute.local_tile(mC, (config.tile_m, config.tile_n), tile)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), tile)
        store(cta.sC, gC, cC, mC.shape, copies, tidx)


# %% [markdown]
# ## The launch
#
# TMA is told by the very same layouts what a box is, and its swizzle mode. One compiled kernel serves all shapes.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), (lda, ldb, ldc), dtype = mnk, strides, pA.dtype
    mA, mB, mC = row_major(pA, m, k, lda, 8), row_major(pB, n, k, ldb, 8), row_major(pC, m, n, ldc, vec)
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config, vec)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(a, b, mC, layouts, copies, tcgen05_mma(dtype, config), config).launch(
        grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `Gemm`, which all recipes share, checks the operands, and for each kind of call keeps the compiled kernel with its
# launch arguments: a *plan*. The recipe says which GPUs it needs, what is compiled, and what the launch takes.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG, call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((10, 0), (10, 3)), needs="tcgen05")


def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 10.0 or 10.3.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out)


# %% [markdown] tags=["lab"]
# ## Check
#
# Level *pipeline* runs the warps in every order. *Compiled* compares the compiler's descriptors with those of the
# layouts, bit by bit. What needs a Blackwell GPU says *not checked*. *Model* checks the layouts; *product* follows the
# kernel.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("blackwell/tma_tcgen05_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("blackwell/tma_tcgen05_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed. The table is here once a Blackwell GPU has run
# `cookbook bench blackwell/tma_tcgen05_gemm --record`.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table

Markdown(results_table("blackwell/tma_tcgen05_gemm"))

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "stage_c_backwards": (
        "stage_c",
        """\
    for i in cutlass.range_constexpr(cute.size(tDtC, mode=[4])):
        cute.copy(copies.t2r_c, tDtC[None, None, None, 0, i], rAcc)
        cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
        rC.store(rAcc.load().to(sC.element_type))
        cute.copy(copies.r2s_c, r2s.retile(rC), tDsC[None, None, None, 0, i])""",
        "    raise NotImplementedError",
        "Fetch and write the epilogue subtiles from the last one to the first one.",
        (
            "A subtile takes three steps: tensor memory to registers, rounding, registers to shared memory.",
            "`tcgen05.ld` is asynchronous: something must stand between the first step and the second one.",
        ),
        "The order of the subtiles does not matter; the wait for `tcgen05.ld` does.",
        """\
    for step in cutlass.range_constexpr(cute.size(tDtC, mode=[4])):
        i = cute.size(tDtC, mode=[4]) - 1 - step
        cute.copy(copies.t2r_c, tDtC[None, None, None, 0, i], rAcc)
        cute.arch.fence_view_async_tmem_load()
        rC.store(rAcc.load().to(sC.element_type))
        cute.copy(copies.r2s_c, r2s.retile(rC), tDsC[None, None, None, 0, i])""",
    ),
    "consume_at_risk": (
        "consume",
        """\
            mma.set(tcgen05.Field.ACCUMULATE, True)
        pipe.consumer_release(read)""",
        """\
        mma.set(tcgen05.Field.ACCUMULATE, True)
        pipe.consumer_release(read)""",
        '"The field changes once, after the first k-tile."',
        (
            "How many instructions multiply the first k-tile?",
            "The second instruction of the first k-tile: does it add, or does it overwrite?",
        ),
        (
            "Only the very first *instruction* overwrites. With the change after the k-tile, each k-block of the "
            "first k-tile overwrites the one before it."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("blackwell/tma_tcgen05_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# The layout rule, the swizzle, the descriptor and the producer came over from Hopper. New is where the accumulators
# live. They are no thread's registers, so one thread can issue and none waits for a product. They must be fetched, so
# the epilogue begins with a step that Hopper did not have. While four warps fetch a tile from its half of tensor
# memory, the other half and the tensor core are idle.
#
# Next: [a kernel that keeps both halves of tensor memory busy](pipelined_gemm.ipynb).
