# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Low-latency GEMM: swap A/B, split-K and PDL"
#     claim: >-
#       With few rows a product is a stream of weights: make the weights the tensor core's A, load them early, and
#       divide K among the CTAs of a cluster.
#     track: blackwell
#     order: 80
#     aside: Few rows, or few tiles
#     builds_on: blackwell/pipelined_gemm
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     serves: {sm_100: 4096}
#     compared_with: blackwell/pipelined_gemm
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> tcgen05.mma -> tensor memory -> tcgen05.ld -> DSMEM -> 2-byte stores
#     instructions:
#       all: [UTMALDG.2D, UTCHMMA, UTCBAR, LDTM, UTCATOMSWS, ACQBULK, PREEXIT, STG.E.U16, SYNCS]
#     bench_shapes: [[8, 4096, 4096], [16, 14336, 4096], [64, 4096, 14336]]
#     sources:
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
#       - {title: "PTX ISA, st.async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async"}
#       - {title: "PTX ISA, tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"}
#       - {title: "FlashInfer's low-latency GEMM for Blackwell", url: "https://github.com/flashinfer-ai/flashinfer/pull/3281"}
# ---

# %% [markdown]
# # Low-latency GEMM: swap A/B, split-K and PDL
#
# **Claim.** In LLM decode a layer multiplies a few rows by a large weight. The tensor core has little to do: every byte
# of the weight must come from memory once, and that takes the time. So ask *early* for the bytes, and from *many SMs*.

# %% [markdown] tags=["lab"]
# A sketch of three launches after another kernel; the times are chosen, in times of one k-tile's load. Without
# programmatic dependent launch (PDL) the kernel begins some time after the other has ended. With PDL it is ready by
# then. `early weight` uses the time before as well, as far as the stages reach: they cannot be emptied before `a` is
# there.

# %% tags=["lab"]
import cookbook
from cookbook import draw

packaged = cookbook.load("blackwell/low_latency_gemm")
K_TILES, BEFORE, GAP, LATENCY, READY = 16, 14.0, 4.0, 3.0, 1.0


def launched(pdl: bool, early: bool) -> dict[str, tuple[float, float]]:
    """(start, end) of what this kernel does, after one that ends at BEFORE."""
    may_read = BEFORE if pdl else BEFORE + GAP
    ahead = min(packaged.CONFIG.stages, K_TILES) if early else 0
    first = READY if early else may_read
    filled = first + LATENCY + ahead  # the stages that are filled before `a` is there
    rest = max(filled, may_read + LATENCY) + K_TILES - ahead
    return {"weight": (first, rest), "a": (may_read, rest), "multiply": (may_read + LATENCY, rest + 1)}


cases = {"one by one": (False, False), "PDL": (True, False), "PDL, early weight": (True, True)}
lanes = {"kernel before": [draw.Span(0.0, BEFORE, "kernel before", "kernel before")], "": []}
for name, case in cases.items():
    for what, span in launched(*case).items():
        lanes[f"{name}: {what}"] = [draw.Span(*span, what, what)]
draw.lanes(lanes, "One kernel after another (a sketch)", unit="k-tiles", note="Times are chosen, not measured.")

# %% [markdown]
# Four things help:
#
# 1. **The weight is the tensor core's A** (swap A/B). This `tcgen05.mma` always takes 128 rows of A, but as few as 8 of
#    B. So the kernel computes the transpose of C: 128 columns of the weight by 8 to 64 rows of `a`.
#
# 2. **Many stages.** A stage is little more than 16 KiB, and a dozen of them are in flight before any warp waits.
#
# 3. **The weight is asked for early.** It does not depend on the kernel before. With PDL the loads of the weight can go
#    out while that kernel still runs; those of `a` must wait for it.
#
# 4. **Split-K.** Four CTAs of a cluster each do a quarter of K for the same tile, so four times as many SMs ask. At the
#    end each adds up a quarter of the tile, from accumulators that the others send.
#
# `matmul(a, b)` takes `a` (M, K) and `b` (K, N), both K-major, as `x @ weight.T` is. Any M works; it is made for M up
# to 64.
#
# *This kernel has not run on hardware.* It is compiled for Blackwell, and its layouts, descriptors and data path are
# checked against the PTX ISA document in numpy. No speed is claimed.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator, TmemAllocator
from cookbook.recipes.blackwell.pipelined_gemm import EPILOGUE_WARPS, MMA_WARP, tmem_barrier
from cookbook.recipes.blackwell.tma_tcgen05_gemm import accumulators_in, consume, tcgen05_mma, tiled_mma, tmem_load
from cookbook.recipes.hopper.tma_wgmma_gemm import Load, partition_load, smem_atom

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows. `gemm` exchanges them, and the rest of the kernel knows only of A and B.
#
# `tile_n` is the smallest of 8, 16, 32 and 64 that holds the rows of the product. Stages are as many as shared memory
# has room for.
#
# | variant | |
# |---|---|
# | `whole K` | one CTA does a tile |
# | `split K` | four do, each a quarter of K |
# | `early weight` | and they ask for the weight before the kernel before has ended |


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of the weight per cluster: one in each lane of tensor memory
    tile_n: int = 16  # rows of the product per cluster: 8, 16, 32 or 64
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four tcgen05.mma steps of 16
    split_k: int = 1  # CTAs of a cluster, that divide K among them; a divisor of tile_n
    early: bool = False  # ask for the weight before the kernel before has ended

    @property
    def threads(self) -> int:
        return 32 * 7  # four warps that add and store, one that multiplies, two that load

    @property
    def epi_n(self) -> int:
        return self.tile_n  # columns of accumulators that leave tensor memory at once: all

    @property
    def share(self) -> int:
        return self.tile_n // self.split_k  # columns of accumulators that one CTA of a cluster adds up and stores

    @property
    def tmem_columns(self) -> int:
        return max(32, self.tile_n)  # the fewest that can be allocated

    @property
    def reduction_bytes(self) -> int:
        return self.tile_m * self.tile_n * 4 if self.split_k > 1 else 0  # what the CTAs of a cluster send to one

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def stages(self) -> int:
        return (SMEM_LIMIT - 1024 - self.reduction_bytes) // self.stage_bytes  # of A and B in flight: all that fit

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.reduction_bytes + self.stages * self.stage_bytes  # barriers, padded to the tiles' alignment


# %% [markdown]
# The heuristics: the rows of the product choose `tile_n`, and the SMs that are left choose how K is divided.


# %%
SMEM_LIMIT = 227 * 1024  # bytes of shared memory that a CTA may use
A_WARP, B_WARP = 5, 6  # the warps that load, behind those that store and the one that multiplies
VARIANTS = {"whole K": Config(), "split K": Config(split_k=4), "early weight": Config(split_k=4, early=True)}
DEFAULT = "split K"
TRANSPOSED = True
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


def config_of(variant: str, m: int, n: int, sms: int) -> Config:
    """The variant for a product of m x n on a GPU with `sms` SMs: K is split as far as there are SMs for it."""
    config = VARIANTS[variant]
    tile_n = next((size for size in (8, 16, 32) if m <= size), 64)
    tiles = -(-n // config.tile_m) * -(-m // tile_n)
    split_k = next((s for s in (4, 2) if s <= config.split_k and tiles * s <= sms), 1)
    return replace(config, tile_n=tile_n, split_k=split_k)


# %% [markdown]
# ## Layouts, MMA and copies
#
# A and B lie as before. C has no place in shared memory. A thread has one column of the product in its registers, and
# its neighbours have the columns next to it. So a warp stores 64 bytes of one row of C at a time. Through shared memory
# and TMA the way would be longer. The MMA is imported from [the first of these kernels](tma_tcgen05_gemm.ipynb).


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
    )


class TiledCopies(NamedTuple):
    """The copies by software on the way of C."""

    t2r_c: cute.TiledCopy  # tcgen05.ld: from tensor memory to registers, all `tile_n` columns of a row a thread


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """The copy of the epilogue. The registers go to global memory one by one."""
    return TiledCopies(t2r_c=tmem_load(tiled_mma(dtype, config), config))


# %% [markdown]
# The CTAs of a cluster send each other partial accumulators. A thread has `tile_n` of them, `share` for each of the
# CTAs. It finds what it is sent in its **reduction buffer**. Each sender, itself among them, has a place there, so a
# tile is always added up in the same order. A store moves sixteen bytes, if a share has that many. Those of the 128
# threads lie side by side, so neither writing nor reading has bank conflicts.


# %%
def reduction_buffer(config: Config) -> cute.Layout:
    """Return where float32 accumulators lie in a reduction buffer: (THREAD, (VEC, VECTORS), SENDER)."""
    vec = min(config.share, 4)
    threads, vectors = config.tile_m, config.share // vec
    strides = (vec, (1, vec * threads), vec * threads * vectors)
    return cute.make_layout((threads, (vec, vectors), config.split_k), stride=strides)


# %% [markdown] tags=["lab"]
# What one warp writes at once into a reduction buffer: sixteen bytes a lane, 512 in a row. No bank is asked twice in a
# phase.

# %% tags=["lab"]
from cookbook import access, banks
from cookbook.layouts import evaluate

buffer = evaluate(reduction_buffer, CONFIG)
vec = buffer.modes[1].modes[0].size
places = buffer.table()  # (THREAD, ACCUMULATOR, SENDER), counted in float32
first_warp = access.ldst(4 * places[:32, 0, 0], 4 * vec)
counted = banks.wavefronts(first_warp.addresses, first_warp.width)
assert counted.excess == 0
size = f"{buffer.size * 4} bytes for {CONFIG.split_k} senders"
print(f"{buffer}: {size}; {counted.actual} wavefronts, ideal {counted.ideal}")
draw.access_view(first_warp)

# %% [markdown] tags=["lab"]
# The weight and the rows of `a` lie in the same atoms as on all pages. Below is the weight's tile, without its swizzle
# and with it:

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, CONFIG, arch="sm_100a").a)

# %% [markdown]
# ## Which part is whose
#
# A CTA does one tile, or one part of K of a tile. All parts have equally many k-tiles. Those of the last CTAs may lie
# outside K: TMA brings zeros for these, and a product with zeros does no harm, so that no check is needed.


# %%
class Part(NamedTuple):
    """A CTA's work: `k_tiles` k-tiles from `first` on of the tile (m, n)."""

    m: cutlass.Int32
    n: cutlass.Int32
    rank: cutlass.Int32  # of the CTA in its cluster
    first: cutlass.Int32
    k_tiles: cutlass.Int32


@cute.jit
def part_of_cta(shape_mn: tuple, k_tiles: cutlass.Int32, config: cutlass.Constexpr) -> Part:
    """The part of this CTA: tiles are numbered down the weight first."""
    cta, _, _ = cute.arch.block_idx()
    tile, rank = cta // config.split_k, cta % config.split_k
    down, each = cute.ceil_div(shape_mn[0], config.tile_m), cute.ceil_div(k_tiles, config.split_k)
    return Part(tile % down, tile // down, rank, rank * each, each)


# %% [markdown]
# ## The warps that load
#
# There are two: one for the weight, one for what is multiplied by it. A stage has one barrier for both, which is *full*
# after two arrivals, each of which says how many bytes will come.
#
# With [programmatic dependent launch](../hopper/pingpong_gemm.ipynb) a kernel may begin before the one before it has
# ended. `griddepcontrol.wait` returns when that has ended and its writes can be seen. A warp must wait there if it
# reads or writes what that kernel may have touched. In `early weight` all warps wait but the one that loads the weight:
# **the caller promises that nothing before this kernel writes the weight**.


# %%
def at_rest(config: Config) -> tuple[str, ...]:
    """The loads, by the kernel's names of them, of what nothing before the kernel writes: so the caller promises."""
    return ("tma_a",) if config.early else ()


@cute.jit
def produce(
    pipe: pipeline.PipelineTmaUmma,
    load: Load,
    part: Part,
    k_tile_bytes: cutlass.Constexpr,
    waits: cutlass.Constexpr,
):
    """Load one operand's k-tiles of this CTA's part. waits: for the kernel before."""
    if cutlass.const_expr(waits):
        cute.arch.griddepcontrol_wait()  # the kernel before has ended
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, pipe.num_stages)
    for k_tile in cutlass.range(part.k_tiles, unroll=1):
        pipe.producer_acquire(state, expected_tx=k_tile_bytes)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(load.atom, load.gX[None, part.first + k_tile], load.sX[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## What the warps share
#
# Two warps load, so a stage of A and B is full after two arrivals. There is one tile, so tensor memory has one
# accumulator stage, and it is filled once.


# %%
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaUmma  # of the stages of A and B
    acc_pipe: pipeline.PipelineUmmaAsync  # of the accumulators
    tmem: TmemAllocator
    arrived: cute.Pointer  # the barrier of the reduction buffer
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sReduce: cute.Tensor | None  # the reduction buffer; None where K is not divided


@cute.jit
def make_pipelines(barriers: cute.Pointer, config: cutlass.Constexpr):
    """Set up the barriers of the stages of A and B, and the one of the accumulators."""
    single, pair, warps = (pipeline.CooperativeGroup(pipeline.Agent.Thread, n) for n in (1, 2, EPILOGUE_WARPS))
    pipe = pipeline.PipelineTmaUmma.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pair,  # a thread of each of the warps that load
        consumer_group=single,
        tx_count=config.stage_bytes,  # each of them says its own part
        defer_sync=True,
    )
    acc_pipe = pipeline.PipelineUmmaAsync.create(
        barrier_storage=barriers + 2 * config.stages,
        num_stages=1,
        producer_group=single,
        consumer_group=warps,
        defer_sync=True,
    )
    return pipe, acc_pipe


# %% [markdown]
# A CTA's own reduction buffer expects the bytes of all senders from the beginning: no CTA can send before the cluster's
# barrier, at which all arrive here.


# %%
@cute.jit
def begin(arrived: cute.Pointer, warp_idx: cutlass.Int32, config: cutlass.Constexpr):
    """The reduction buffer's barrier; then all barriers are there, for this CTA now, for the cluster at its barrier."""
    if cutlass.const_expr(config.split_k > 1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(arrived, 1)
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, config.tile_m * config.tile_n * 4)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if cutlass.const_expr(config.split_k > 1):
        cute.arch.cluster_arrive_relaxed()


@cute.jit
def set_up(layouts: SmemLayouts, warp_idx: cutlass.Int32, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate shared memory, and set up the barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages + 2)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sReduce = None
    if cutlass.const_expr(config.split_k > 1):
        sReduce = smem.allocate_tensor(cutlass.Float32, reduction_buffer(config), 16)
    pipe, acc_pipe = make_pipelines(barriers, config)
    begin(arrived, warp_idx, config)
    tmem = TmemAllocator(tmem_address, barrier_for_retrieve=tmem_barrier())
    return Cta(pipe, acc_pipe, tmem, arrived, sA, sB, sReduce)


# %% [markdown]
# ## The warp that multiplies
#
# Nothing is new here: `consume` is imported.


# %%
@cute.jit
def multiply(cta: Cta, op: cutlass.Constexpr, k_tiles: cutlass.Int32, config: cutlass.Constexpr):
    """One warp: multiply all k-tiles of the part into the accumulators."""
    _, tCtC = accumulators_in(cta.tmem, op, config)
    mma = cute.make_tiled_mma(op)
    thr = mma.get_slice(0)
    tCrA = mma.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = mma.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    consume(cta.pipe, read, mma, tCtC, tCrA, tCrB, k_tiles)
    cta.acc_pipe.producer_commit(pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1))


# %% [markdown]
# ## The warps that add and store
#
# `st.async` writes registers into the shared memory of another CTA of the cluster and reports the bytes to a barrier
# there, as TMA does. So no CTA requests accumulators: each CTA sends them as soon as it has them, and goes on when all
# that it expects has come. For that every CTA must have begun, and made its barrier: the cluster's own barrier says so.
# All threads arrive there at the beginning. They wait for it only here, when it has long been complete.


# %%
@cute.jit
def exchanged(
    rAcc: cute.Tensor,
    sReduce: cute.Tensor,
    arrived: cute.Pointer,
    part: Part,
    tidx: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """This CTA's share of all CTAs' accumulators: (VEC, VECTORS). sReduce (THREAD, (VEC, VECTORS), SENDER)."""
    (vec, vectors), senders = sReduce.shape[1], config.split_k
    sends = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), cutlass.Float32, num_bits_per_copy=32 * vec)
    rParts = cute.make_tensor(rAcc.iterator, cute.make_layout((vec, vectors, senders)))
    cute.arch.cluster_wait()  # all CTAs of the cluster have begun
    for peer in cutlass.range_constexpr(senders):
        for i in cutlass.range_constexpr(vectors):
            place = cute.arch.map_dsmem_ptr(sReduce[tidx, (None, i), part.rank].iterator, peer)
            barrier = cute.arch.map_dsmem_ptr(arrived, peer)
            cute.copy(sends, rParts[None, i, peer], cute.make_tensor(place, cute.make_layout(vec)), mbar_ptr=barrier)
    cute.arch.mbarrier_wait(arrived, 0)
    rSum = cute.make_rmem_tensor((vec, vectors), cutlass.Float32)
    rSum.fill(0.0)
    rSent = cute.make_fragment_like(rSum)
    for sender in cutlass.range_constexpr(senders):
        cute.autovec_copy(sReduce[tidx, None, sender], cute.group_modes(rSent, 0, 2))
        rSum.store(rSum.load() + rSent.load())
    return rSum


# %% [markdown]
# A thread has one row of the weight, so one column of C: it stores element by element, and its warp 64 bytes of a row.


# %%
@cute.jit
def store_share(
    cta: Cta, tCtC: cute.Tensor, mC: cute.Tensor, copies: TiledCopies, part: Part, config: cutlass.Constexpr
):
    """Fetch the accumulators, add those of the cluster, and store this CTA's share. mC (M, N): C transposed."""
    tidx, _, _ = cute.arch.thread_idx()
    t2r = copies.t2r_c.get_slice(tidx)
    cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), (part.m, part.n))
    tDcC = t2r.partition_D(cC)  # (LD, 1, 1): where in C each of the thread's accumulators belongs
    rAcc = cute.make_rmem_tensor(tDcC.shape, cutlass.Float32)
    cta.acc_pipe.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
    cute.copy(copies.t2r_c, t2r.partition_S(tCtC[(None, None), 0, 0]), rAcc)
    cute.arch.fence_view_async_tmem_load()  # tcgen05.ld is asynchronous too: wait until the registers are there
    if cutlass.const_expr(config.split_k > 1):
        rSum = exchanged(rAcc, cta.sReduce, cta.arrived, part, tidx, config)
    else:
        rSum = rAcc
    rC = cute.make_rmem_tensor(rSum.shape, mC.element_type)
    rC.store(rSum.load().to(mC.element_type))
    cute.arch.griddepcontrol_wait()  # another kernel that reads or writes C has ended
    for i in cutlass.range(config.share, unroll_full=True):
        row, column = tDcC[part.rank * config.share + i]
        if cute.elem_less((row, column), mC.shape):
            mC[row, column] = rC[i]


@cute.jit
def store(
    cta: Cta,
    mC: cute.Tensor,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    part: Part,
    config: cutlass.Constexpr,
):
    """Four warps: allocate tensor memory, store this CTA's share of C, and free tensor memory."""
    cta.tmem.allocate(config.tmem_columns)  # by warp 0
    cta.tmem.relinquish_alloc_permit()  # another kernel's CTA on this SM may allocate what is free
    address, tCtC = accumulators_in(cta.tmem, op, config)
    store_share(cta, tCtC, mC, copies, part, config)
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
    barrier = pipeline.NamedBarrier(barrier_id=2, num_threads=32 * EPILOGUE_WARPS)
    barrier.arrive_and_wait()  # all four have fetched their accumulators
    cta.tmem.free(address)


# %% [markdown]
# ## The kernel
#
# Four roles. The warp that loads the weight first lets the next kernel get ready.


# %%
@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its part of the accumulators of one tile, and stores its share of them.

    Who waits for whom, with the CONFIG of blackwell/low_latency_gemm:

    warps  do           wait for             signal
    0-3    tcgen05.ld   accumulator full[1]  full 2[1]: 1 of warp 0, expects 8192 bytes
           st.async     full 2[1]
    4      tcgen05.mma  full[12]             empty[12]: 1 when its MMAs are over
                                             accumulator full[1]: 1 when its MMAs are over
    5-6    TMA loads    empty[12]            full[12]: 1 of warp 6, expects 2048 bytes; 1 of warp 5, expects 16384 bytes

    full[12]: 2 arrivals and its bytes a phase.
    empty[12]: 1 arrival a phase.
    accumulator full[1]: 1 arrival a phase.
    full 2[1]: 1 arrival and its bytes a phase.
    bar 1, 160 threads: warps 0-4 meet.
    bar 2, 128 threads: warps 0-3 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    cta = set_up(layouts, warp_idx, dtype, config)
    part = part_of_cta(mC.shape, cute.ceil_div(mA.shape[1], config.tile_k), config)
    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (part.m, None))  # (M, TILE_K, k)
    gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (part.n, None))  # (N, TILE_K, k)
    row_bytes = config.tile_k * 2  # of a row of a stage
    if warp_idx == A_WARP:
        cute.arch.griddepcontrol_launch_dependents()  # the next kernel may get ready
        load = partition_load(tma_a, gA, cta.sA)
        produce(cta.pipe, load, part, config.tile_m * row_bytes, "tma_a" not in at_rest(config))
    elif warp_idx == B_WARP:
        load = partition_load(tma_b, gB, cta.sB)
        produce(cta.pipe, load, part, config.tile_n * row_bytes, "tma_b" not in at_rest(config))
    elif warp_idx == MMA_WARP:
        multiply(cta, op, part.k_tiles, config)
    else:
        store(cta, mC, copies, op, part, config)


# %% [markdown]
# ## The launch
#
# Swap A/B: the tensor core's A is `b`, its B is `a`, and C is seen transposed, with adjacent elements along its first
# mode. `use_pdl` asks for the overlap with the kernel before.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (n, m, k), (ldb, lda, ldc) = mnk, strides
    lda, ldb = (cute.assume(stride, divby=8) for stride in (lda, ldb))
    mA = cute.make_tensor(pB, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pA, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, ldc)))
    layouts, copies, fetch = smem_layouts(dtype, config), tiled_copies(dtype, config), cpasync.CopyBulkTensorTileG2SOp()
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    tma_a, mA = cpasync.make_tiled_tma_atom(fetch, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(fetch, mB, b_stage, (config.tile_n, config.tile_k))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(tma_a, mA, tma_b, mB, mC, layouts, copies, tcgen05_mma(dtype, config), dtype, config).launch(
        grid=(tiles * config.split_k, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.split_k, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=True,
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (dtype, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    m, n, _ = call.mnk
    return (config_of(call.variant, m, n, call.sms),), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((10, 0), (10, 3)), needs="tcgen05", variants=VARIANTS)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS. "early weight" is for a `b` that nothing queued on the stream before this call writes: it
        is read before that has ended.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 10.0 or
    10.3. Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## How many ask, and for how much
#
# Weights of four sizes, for one row and for sixteen, on a GPU with 148 SMs: how many CTAs ask for them, and how many
# bytes all of them can have on their way before the first product. To the right what must be on its way if memory gives
# 8 TB/s and answers after one microsecond (figures to think with: nothing is measured).

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table

SMS, NEEDED = 148, 8e12 * 1e-6  # bytes on their way: bandwidth times latency
rows = []
for n, k in ((1024, 4096), (4096, 4096), (4096, 14336), (28672, 4096)):
    for m in (1, 16):
        cells = []
        for variant in ("whole K", "split K"):
            c = config_of(variant, m, n, SMS)
            ctas = -(-n // c.tile_m) * c.split_k
            k_tiles = -(-k // (c.tile_k * c.split_k))
            on_the_way = min(ctas, SMS) * min(c.stages, k_tiles) * c.stage_bytes
            cells += [str(ctas), f"{on_the_way / 1e6:.1f} MB"]
        rows.append([f"{m} x {n} x {k}", f"{n * k * 2 / 1e6:.0f} MB", *cells, f"{NEEDED / 1e6:.0f} MB"])
heads = ["M x N x K", "weight", "CTAs, whole K", "on its way", "CTAs, split K", "on its way", "needed"]
Markdown(table(heads, rows))

# %% [markdown] tags=["lab"]
# Where the weight has few columns, one CTA a tile leaves most SMs idle, and too little is asked for. Divided along K,
# four times as many ask for four times as much. Where there are more tiles than SMs nothing is divided.

# %% [markdown] tags=["lab"]
# ## Who adds what
#
# The model of the cluster, with integers, so that the sums are exact: each CTA's part of K alone is wrong, and what the
# owners put together is right. The data path is the kernel's own: boxes by TMA, descriptors, `tcgen05.mma`,
# `tcgen05.ld`, and the reduction buffers as the layout above has them.

# %% tags=["lab"]
import numpy as np

from cookbook.lab import SplitK, catalog, evaluated
from cookbook.model import SharedMemory, from_float32

rng = np.random.default_rng(0)
K = 5 * CONFIG.tile_k  # not a multiple of what four CTAs do
weight, x = (rng.integers(-3, 4, (rows, K)).astype(np.float32) for rows in (CONFIG.tile_m, CONFIG.tile_n))
found = evaluated(catalog.load("blackwell/low_latency_gemm"), cutlass.BFloat16, CONFIG)
path = SplitK(found, found, "bfloat16")
bits = [from_float32(matrix, "bfloat16") for matrix in (weight, x)]
together = path.multiply(SharedMemory(path.smem_bytes), *bits, 0, 0)
assert (together == weight @ x.T).all()
for rank in range(CONFIG.split_k):
    inside = slice(rank * path.each * CONFIG.tile_k, (rank + 1) * path.each * CONFIG.tile_k)
    partial = weight[:, inside] @ x[:, inside].T
    mine = f"columns {rank * CONFIG.share} to {(rank + 1) * CONFIG.share - 1}"
    print(f"CTA {rank}: K from {inside.start:4}, right alone in {(partial == together).mean():4.0%}; adds up {mine}")

# %% [markdown] tags=["lab"]
# The last CTA's part lies outside K. It multiplies the zeros that TMA gives it, sends zeros, and adds up its share like
# the others.

# %% [markdown] tags=["lab"]
# **What is promised, and what is checked.** Level *pipeline* knows which loads `at_rest` names, and accuses every other
# access to global memory that may come before `griddepcontrol.wait`. Take the promise away, and it accuses these too:

# %% tags=["lab"]
from cookbook.lab import pipeline as interleavings

module = catalog.load("blackwell/low_latency_gemm")
promised, config = module.at_rest, VARIANTS["early weight"]
kernel_run = interleavings.Run(module, "sm_100a", cutlass.BFloat16, config)
for said, promise in {"with the promise": promised, "without": lambda config: ()}.items():
    module.at_rest = promise
    explored = interleavings.explore(kernel_run, kernel_run.problems[0])
    faults = [fault.splitlines()[0] for each in explored for fault in each.faults]
    print(f"{said}: {faults[0] if faults else 'nothing to accuse'}")
module.at_rest = promised

# %% [markdown] tags=["lab"]
# ## Check
#
# The model computes the product as the kernel does, transposed, CTA by CTA of a cluster, and C is put together from
# what each of them stores. What needs a Blackwell GPU says *not checked*: **this kernel has not run on hardware**.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("blackwell/low_latency_gemm", shapes=[(13, 333, 640)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# The stores to the reduction buffers are in the machine code where K is divided, and one wait for the kernel before is
# missing where the weight comes early:

# %% tags=["lab"]
from cookbook.lab import compiled

try:
    for name, config in VARIANTS.items():
        made = compiled.compile_recipe("blackwell/low_latency_gemm", "sm_100a", "bfloat16", config=config)
        waits, sent = made.count("ACQBULK"), made.count("STAS")
        print(f"{name:14}STAS (st.async): {sent}, ACQBULK (griddepcontrol.wait): {waits}")
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("blackwell/low_latency_gemm", matmul, (16, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed: that takes a Blackwell GPU. The table is here once one has run
# `cookbook bench blackwell/low_latency_gemm --record`.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("blackwell/low_latency_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A product of few rows is a race for bytes. The tensor core's large side goes to the weight, its small side to the
# rows; more SMs ask if K is split; and what does not depend on the kernel before need not wait for it. What is left to
# do is small: a few kilobytes of accumulators go from CTA to CTA, and no CTA has to request them.
#
# Next: [the Blackwell that has no tensor memory](geforce_gemm.ipynb).
