# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Stream-K
#     claim: >-
#       Stream-K divides k-tiles, not tiles, among SMs; those that share a tile add up partial sums through global
#       memory, in a fixed order.
#     track: hopper
#     order: 97
#     aside: Few rows, or few tiles
#     builds_on: hopper/stream_k_schedule
#     targets: [sm_90a]
#     runs_on: sm_90
#     compared_with: hopper/tuned_gemm
#     serves: {sm_90: 2048}
#     dtypes: [bfloat16, float16]
#     majors: [tn, nt, nn, tt]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> partial sums in global memory -> stmatrix -> tma
#     instructions: {sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]}
#     bench_shapes: [[512, 512, 16384], [256, 4096, 4096], [896, 2176, 4096], [2304, 2304, 2304], [1024, 1024, 4096],
#       [128, 8192, 8192], [1024, 1024, 8192], [1024, 4096, 8192]]
#     sources:
#       - {title: "Osama et al., Stream-K: work-centric parallel decomposition", url: "https://arxiv.org/abs/2301.03598"}
#       - {title: "PTX ISA, memory consistency model", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model"}
# ---

# %% [markdown]
# # Stream-K
#
# **Claim.** Stream-K divides k-tiles, not tiles, among SMs. Those that share a tile exchange partial sums through
# global memory, and add them in a fixed order: the same call gives the same bits.

# %% tags=["lab"]
from cookbook import lab
from cookbook.lab import catalog

SMS = 132  # of an H200
lab.gain("hopper/stream_k_gemm", (512, 512, 16384), over=["hopper/tuned_gemm"])

# %% [markdown]
# Two kinds of products waste SMs. One has **few tiles and a long K**: 512 x 512 over 16384 is 16 tiles of 128 x 128,
# and 116 of 132 SMs have nothing to do. Gradients of weights look like this. The other has **a tail**: 162 tiles
# of 128 x 256 (C is 2304 x 2304) take two waves on 132 SMs, and the second one leaves most SMs idle.
#
# [The page before](stream_k_schedule.ipynb) has the **schedule**: which k-tiles a cluster multiplies (what it has of
# one tile is a *segment*), who shares a tile and who adds it up. This page has the kernel that follows it. A cluster is
# one CTA or two, and "tile" below means the tiles of a cluster.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, compile_host, either_major
from cookbook.recipe.shared_sums import SharedSums
from cookbook.recipes.hopper.majors_gemm import check_majors, operand_layout, smem_layouts, tiled_mma, wgmma_of_majors
from cookbook.recipes.hopper.multicast_gemm import Load, partition_load
from cookbook.recipes.hopper.overlapped_epilogue_gemm import Epilogue, check_cluster, subtile_of
from cookbook.recipes.hopper.persistent_gemm import Config as PersistentConfig
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    make_mainloop,
    multiply_tile,
    place_of,
    set_up,
    tiled_copies,
    tma_tensors,
)
from cookbook.recipes.hopper.stream_k_schedule import (
    Schedule,
    Segment,
    clusters,
    parts,
    schedule_of,
    segment_of,
    segments_of,
)
from cookbook.recipes.hopper.tile_heuristics import cluster_tiles
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor

# %% [markdown]
# ## The sizes
#
# The page is about products of few tiles, so tiles are small. The epilogue has more buffers than elsewhere: a sharer
# stores several subtiles at a time.


# %%
@dataclass(frozen=True)
class Config(PersistentConfig):
    """Sizes of the kernel, in elements or counts, and how its operands lie."""

    tile_n: int = 128  # columns of C of one tile; it has 128 rows, 64 for each warpgroup
    stages: int = 6  # pairs of A and B tiles in flight or being read
    cluster_m: int = 1  # CTAs one above the other: they share the tiles of B
    even: bool = False  # parts of the line for all clusters; False: an equal number for each tile, some may have none
    swizzle_size: int = 8  # rows of tiles of a group of the rasterization
    epi_n: int = 32  # columns of an epilogue subtile; it has 64 rows
    epi_stages: int = 4  # buffers of a warpgroup
    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    swap_ab = False  # A is a, B is b

    def __post_init__(self):
        super().__post_init__()
        check_cluster(self.cluster_m, self.cluster_n)
        check_majors(self.a_major, self.b_major)


VARIANTS = {
    "128x128": Config(),
    "128x128, 2x1": Config(cluster_m=2, swizzle_size=16),
    "128x128, 1x2": Config(cluster_n=2),
    "128x128, even": Config(cluster_m=2, swizzle_size=16, even=True),
    "128x192": Config(tile_n=192, stages=5, epi_stages=3),
    "128x256": Config(tile_n=256, stages=4),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x128"]
REGISTERS = (24, 240)  # of a producer's thread and of a consumer's: 128 * 24 + 256 * 240 of an SM's 65536


def config_for(arch: str, variant: str = "128x128") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The producer
#
# Layouts and MMA are those of [the page on majors](majors_gemm.ipynb), the order of the tiles, stages and multicast
# those of [the persistent GEMM](persistent_gemm.ipynb). The producer loads segment after segment, and the stages stay
# full from one to the next. It knows nothing of partial sums.


# %%
@cute.jit
def produce(
    pipe: pipeline.PipelineTmaAsync,
    loads: tuple[Load, Load],
    s: Schedule,
    cluster: cutlass.Int32,
    rank: tuple,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of all segments of this CTA, a stage each. rank: (row, column) in its cluster."""
    a, b = loads
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(segments_of(cluster, s), unroll=1):
        segment = segment_of(cluster, i, s)
        tile = place_of(segment.tile, s.down, s.across, rank, config)
        m, n = (cutlass.min(at, cute.size(x.gX, mode=[1]) - 1) for at, x in zip(tile, loads, strict=True))
        for k_tile in cutlass.range(segment.first_k, segment.first_k + segment.k_tiles, unroll=1):
            pipe.producer_acquire(state)
            barrier = pipe.producer_get_barrier(state)
            cute.copy(a.atom, a.gX[None, m, k_tile], a.sX[None, state.index], tma_bar_ptr=barrier, **a.multicast)
            cute.copy(b.atom, b.gX[None, n, k_tile], b.sX[None, state.index], tma_bar_ptr=barrier, **b.multicast)
            state.advance()
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## Partial sums and flags
#
# A thread holds the same places of a tile in every CTA. So partial sums need no order of rows and columns. A thread
# writes its accumulators as they are, 16 bytes at a time, and the same thread of another CTA reads them.
#
# **How does a CTA know that another has written?** Global memory has no mbarriers. Each warpgroup of a CTA has a
# *flag*, a word that counts up:
#
# 1. All threads of the warpgroup write, and meet at a named barrier.
# 2. One thread stores the flag with `st.release.gpu`. Who sees it also sees all that was written before the barrier.
# 3. A lane of a waiting warp reads the flag with `ld.acquire.gpu` until it has the value: a lane for each other sharer.
# 4. The waiting warpgroup meets at its barrier too, and reads.
#
# **The same bits.** A cluster starts with its own sums and adds those of the others in the order of K. **Again and
# again.** A flag is never reset. A CTA first reads its own (`base`). `base` + 1 says that a cluster's sums of the tile
# in which its part begins are written, `base` + 2 those of the tile in which it ends. So each launch that shares raises
# all flags by two, and a graph can be replayed.
#
# **No deadlock?** A CTA waits only after all of its own sums are written. So of CTAs that run at once none waits for
# ever. They must run at once: the grid has no more CTAs than the GPU has SMs, and nothing else may hold SMs for good.
# Two such kernels on streams of different priority could do that to each other: each holds some SMs, and waits for CTAs
# that find none.


# %%
VEC = 4  # float32 of one access to partial sums: 16 bytes
GROUP = 4  # subtiles of partial sums on their way to a thread at once


def partial_sums(config: Config, clusters) -> cute.Layout:
    """Return where partial sums lie, in elements: (VEC, VECTORS, THREAD, SUBTILE, WARPGROUP, END, CTA, CLUSTER).

    END: 0 for the tile in which a cluster's part of the line begins, 1 for the one in which it ends.
    """
    vectors = 64 * config.epi_n // (128 * VEC)
    shape = (VEC, vectors, 128, config.subtiles, config.warpgroups, 2, config.cluster, clusters)
    inner = VEC * 128 * vectors
    each = config.tile_m * config.tile_n
    stride = (1, VEC * 128, VEC, inner, inner * config.subtiles, each, 2 * each, 2 * each * config.cluster)
    return cute.make_layout(shape, stride=stride)


@cute.jit
def release(flag: cute.Pointer, value: cutlass.Int32):
    """Say that all of this warpgroup's partial sums up to here are written. One thread, after a barrier of all."""
    cute.arch.inline_ptx("st.release.gpu.global.b32 [{$r0}], {$r1};", read_only_args=[flag.toint(), value])


@cute.jit
def acquire(flag: cute.Pointer, value: cutlass.Int32):
    """Wait until a flag has come to `value`."""
    cute.arch.inline_ptx(
        "{ .reg .pred early; .reg .s32 seen; again: ld.acquire.gpu.global.s32 seen, [{$r0}]; "
        "sub.s32 seen, seen, {$r1}; setp.lt.s32 early, seen, 0; @early bra again; }",
        read_only_args=[flag.toint(), value],
    )


# %% [markdown]
# ## The end of a segment
#
# A consumer warpgroup has the accumulators of a segment. What others add up it writes, and raises its flag. What it
# adds up itself it stores when those of all sharers are in.


# %%
class Exchange(NamedTuple):
    """Where a consumer warpgroup finds partial sums, its own and those of others."""

    partials: cute.Tensor  # in global memory: see `partial_sums`
    flags: cute.Tensor  # Int32 in global memory: (WARPGROUP, CTA in the cluster, CLUSTER)
    cluster: cutlass.Int32  # its number
    cta: cutlass.Int32  # the number of this CTA in it


def vectors_of(acc: cute.Tensor, i: int, vec: cute.Layout) -> cute.Tensor:
    """A thread's accumulators of its warpgroup's `i`th subtile, as it writes and reads them: (VEC, VECTORS)."""
    return cute.make_tensor(acc.iterator + i * cute.size(vec), vec)


@cute.jit
def finish(
    acc: cute.Tensor,
    exchange: Exchange,
    epi: Epilogue,
    segment: Segment,
    tile: tuple,
    base: cutlass.Int32,
    is_last: cutlass.Boolean,
    config: cutlass.Constexpr,
):
    """Pass a segment's accumulators on, or add up and store tile (m, n). base: of all flags when the launch began."""
    group, thread, cta, cluster = epi.warpgroup, epi.thread, exchange.cta, exchange.cluster
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    vec = cute.make_layout((VEC, 64 * config.epi_n // (128 * VEC)))
    copy = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cutlass.Float32, num_bits_per_copy=32 * VEC)
    end = cutlass.Int32(1)
    if segment.rank >= segment.adders:
        end = cutlass.Int32(0)
    gP = exchange.partials[None, None, thread, None, group, end, cta, cluster]  # (VEC, VECTORS, SUBTILE)
    for i in cutlass.range_constexpr(config.subtiles):
        if (group * config.subtiles + i) % segment.adders != segment.rank:
            cute.copy(copy, vectors_of(acc, i, vec), gP[None, None, i])
    if is_last or end == 0:  # each cluster raises its flag at its end, so that all flags stay equal
        barrier.arrive_and_wait()  # all have written
        if thread == 0:
            release(exchange.flags[None, cta, cluster].iterator + group, base + 1 + end)
    if segment.rank < segment.adders:
        if segment.sharers > 1:
            wait_for_others(exchange, epi, segment, base)
            barrier.arrive_and_wait()
            add_others(acc, exchange, epi, segment, copy, vec, config)
        store(acc, epi, segment, tile, config)


# %% [markdown]
# The others that share a tile are numbered without this cluster. A lane of the first warp waits for each of them.


# %%
@cute.jit
def sharer_of(segment: Segment, j: cutlass.Int32):
    """The `j`th of the others that share a tile: its cluster, and its `end` there: see `partial_sums`."""
    sharer = j
    if j >= segment.rank:
        sharer = j + 1
    end = cutlass.Int32(1)
    if sharer >= segment.adders:
        end = cutlass.Int32(0)
    return segment.first + sharer, end


@cute.jit
def wait_for_others(exchange: Exchange, epi: Epilogue, segment: Segment, base: cutlass.Int32):
    """Lane j of the first warp waits for the jth of the others that share the tile."""
    if epi.thread < 32:
        if epi.thread < segment.sharers - 1:
            sharer, end = sharer_of(segment, epi.thread)
            acquire(exchange.flags[None, exchange.cta, sharer].iterator + epi.warpgroup, base + 1 + end)


# %% [markdown]
# The others' sums are added in the order of K. Several loads are in flight at once: with two sharers, several subtiles
# of the other one; with more sharers, one subtile of several others.


# %%
@cute.jit
def add_others(
    acc: cute.Tensor,
    exchange: Exchange,
    epi: Epilogue,
    segment: Segment,
    copy: cute.CopyAtom,
    vec: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Add the others' sums to this cluster's part of the tile, in the order of K."""
    group, thread, cta = epi.warpgroup, epi.thread, exchange.cta
    several = cute.make_rmem_tensor((VEC, cute.size(vec) // VEC, GROUP), cutlass.Float32)
    if segment.sharers == 2:
        sharer, end = sharer_of(segment, 0)
        gP = exchange.partials[None, None, thread, None, group, end, cta, sharer]  # (VEC, VECTORS, SUBTILE)
        for start in cutlass.range_constexpr(0, config.subtiles, GROUP):
            for i in cutlass.range_constexpr(start, min(start + GROUP, config.subtiles)):
                if (group * config.subtiles + i) % segment.adders == segment.rank:
                    cute.copy(copy, gP[None, None, i], several[None, None, i - start])
            for i in cutlass.range_constexpr(start, min(start + GROUP, config.subtiles)):
                if (group * config.subtiles + i) % segment.adders == segment.rank:
                    tCrC = vectors_of(acc, i, vec)
                    tCrC.store(tCrC.load() + several[None, None, i - start].load())
    else:
        for i in cutlass.range_constexpr(config.subtiles):
            if (group * config.subtiles + i) % segment.adders == segment.rank:
                tCrC = vectors_of(acc, i, vec)
                for start in cutlass.range(0, segment.sharers - 1, GROUP, unroll=1):
                    for j in cutlass.range_constexpr(GROUP):
                        sharer, end = sharer_of(segment, cutlass.min(start + j, segment.sharers - 2))
                        gP = exchange.partials[None, None, thread, i, group, end, cta, sharer]  # (VEC, VECTORS)
                        cute.copy(copy, gP, several[None, None, j])
                    for j in cutlass.range_constexpr(GROUP):
                        if start + j < segment.sharers - 1:
                            tCrC.store(tCrC.load() + several[None, None, j].load())


# %% [markdown]
# ## The epilogue
#
# The store is that of [the persistent GEMM](persistent_gemm.ipynb). It takes only the subtiles that this cluster adds
# up, and as many at a time as there are buffers.


# %%
@cute.jit
def store(acc: cute.Tensor, epi: Epilogue, segment: Segment, tile: tuple, config: cutlass.Constexpr):
    """Round and store this cluster's part of a tile (m, n), through shared memory. epi: of all subtiles of C."""
    group = epi.warpgroup
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    storing = cute.arch.make_warp_uniform(epi.thread // 32) == 0
    thr = epi.r2s_c.get_slice(epi.thread)
    tCsC = thr.partition_D(epi.sC)  # (CPY, CPY_M, CPY_N, EPI_STAGE)
    grouped = cute.group_modes(epi.sC, 0, 2), cute.group_modes(epi.gC, 0, 2)
    bSsC, bSgC = cpasync.tma_partition(epi.tma_c, 0, cute.make_layout(1), *grouped)
    for start in cutlass.range_constexpr(0, config.subtiles, config.epi_stages):
        if storing:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        barrier.arrive_and_wait()  # TMA has read what was in the buffers
        for i in cutlass.range_constexpr(start, start + config.epi_stages):
            if (group * config.subtiles + i) % segment.adders == segment.rank:
                rC = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), epi.sC.element_type)
                rC.store(subtile_of(acc, i, config).load().to(rC.element_type))
                cute.copy(epi.r2s_c, thr.retile(rC), tCsC[None, None, None, i - start])
        cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
        barrier.arrive_and_wait()
        if storing:
            with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
                for i in cutlass.range_constexpr(start, start + config.epi_stages):
                    if (group * config.subtiles + i) % segment.adders == segment.rank:
                        row, column = tile[0] * config.warpgroups + group, tile[1] * config.subtiles + i
                        cute.copy(epi.tma_c, bSsC[None, i - start], bSgC[None, row, column])
                cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## The consumers
#
# Segment after segment: multiply, as a persistent kernel multiplies its work tiles, then finish.


# %%
@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    r2s_c: cute.TiledCopy,
    partials: cute.Tensor,
    flags: cute.Tensor,
    s: Schedule,
    cluster: cutlass.Int32,
    rank: tuple,
    config: cutlass.Constexpr,
):
    """The part of a consumer warpgroup of all segments. rank: (row, column) of the CTA in its cluster."""
    tidx, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(tidx // 128)
    number = rank[0] + rank[1] * config.cluster_m  # of the CTA
    main = make_mainloop(cta, op, group * 128, cutlass.Int32(0), config)  # the slice of its first thread
    sC = cute.flat_divide(cta.sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    gC = cute.local_tile(c.coords, (64, config.epi_n), (None, None))  # (64, EPI_N, m, n)
    epi = Epilogue(sC, gC, r2s_c, c.atom, group, tidx % 128)
    exchange = Exchange(partials, flags, cluster, number)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still use what this warpgroup writes
    base = flags[group, number, cluster]  # what all flags of this launch begin with
    sharing = s.streamed > 0 and s.parts > s.streamed
    count, k_index = segments_of(cluster, s), cutlass.Int32(0)
    for i in cutlass.range(count, unroll=1):
        segment = segment_of(cluster, i, s)
        multiply_tile(main._replace(k_tiles=segment.k_tiles), k_index, config)
        k_index = k_index + segment.k_tiles
        tile = place_of(segment.tile, s.down, s.across, rank, config)
        finish(main.acc, exchange, epi, segment, tile, base, sharing and i + 1 == count, config)
    if epi.thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The kernel and its launch


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    partials: cute.Tensor,  # float32: see `partial_sums`
    flags: cute.Tensor,  # Int32: (WARPGROUP, CTA, CLUSTER)
    s: Schedule,
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster multiplies its segments.

    Who waits for whom, with the CONFIG of hopper/stream_k_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[6]   empty[6]: 1 a warp
           TMA stores
    8      TMA loads   empty[6]  full[6]: 1, expects 32768 bytes

    full[6]: 1 arrival and its bytes a phase.
    empty[6]: 8 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, dtype, config)
    number = cutlass.Int32(0)  # of this CTA in its cluster
    if cutlass.const_expr(config.cluster > 1):
        number = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    cluster = cute.arch.block_idx()[0] // config.cluster
    rank = (number % config.cluster_m, number // config.cluster_m)
    if warp_idx >= 8:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == 8:
            gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
            gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
            everyone = cutlass.Int16((1 << config.cluster) - 1)  # a cluster shares one operand
            load_a = partition_load(a.atom, gA, cta.sA, rank[1], config.cluster_n, everyone)
            load_b = partition_load(b.atom, gB, cta.sB, rank[0], config.cluster_m, everyone)
            produce(cta.pipe, (load_a, load_b), s, cluster, rank, config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        consume(cta, op, c, r2s_c, partials, flags, s, cluster, rank, config)


# %%
class Sizes(NamedTuple):
    """Sizes, strides of A, B, C in elements, clusters to launch, and parts of the line."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]
    clusters: cutlass.Int32
    parts: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    sums: cute.Pointer,
    flags: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; a stride leads from line to line."""
    (m, n, k), strides, clusters, parts = sizes
    dtype, ctas = pA.dtype, config.cluster
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, operand_layout(m, k, lda, config.a_major))
    mB = cute.make_tensor(pB, operand_layout(n, k, ldb, config.b_major))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    layouts = smem_layouts(dtype, config)
    a, b, c = tma_tensors(mA, mB, mC, layouts, config)
    mP = cute.make_tensor(sums, partial_sums(config, clusters))
    mFlags = cute.make_tensor(flags, cute.make_layout((config.warpgroups, ctas, clusters)))
    s = schedule_of(m, n, k, clusters, parts, config)
    op = wgmma_of_majors(dtype, config.tile_n, config.a_major, config.b_major)
    launcher = kernel(a, b, c, mP, mFlags, s, layouts, tiled_copies(dtype, config).r2s_c, op, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (cutlass.Float32, 16), (cutlass.Int32, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## The heuristic: what a variant costs
#
# As on the [page on split-K](split_k_gemm.ipynb), what goes on at once hides behind the longest, but not quite. Its
# time is the fourth root of the sum of fourth powers. A sharer that adds up writes the sums of the others' subtiles and
# reads theirs for its own; a sharer that goes on to another tile only writes. The rule is simpler, and counts every
# segment as both.


# %%
class Figures(NamedTuple):
    """The heuristic's figures of a GPU: nanoseconds, and bytes a nanosecond. Fitted to times on an H200."""

    start: float = 470  # a CTA begins, and C goes out
    ghz: float = 1.32  # of the tensor cores; fitted, so below the real clock: what the rule leaves out
    latency: float = 650  # from asking for a stage to asking for the same stage again, while all others ask too
    l2: float = 16_000  # of A and B, from L2 into all SMs
    memory: float = 3_750
    tile: float = 680  # between two tiles
    meet: float = 1_520  # CTAs that share a tile wait for one another
    sums: float = 37  # of partial sums, out of an SM and into it


H200 = Figures()


def nanoseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> dict[str, float]:
    """Return what a product of m x n over k takes on `sms` SMs: four parts at once, then what each of the others
    adds."""
    (down, across), most, k_tiles = cluster_tiles(config, m, n), sms // config.cluster, -(-k // config.tile_k)
    waves, rest = divmod(down * across, most)
    sharing = parts(config, m, n, k, sms) if rest else 1
    own = waves * k_tiles + -(-rest * k_tiles // sharing)  # k-tiles of the busiest cluster
    shared = 1 - rest / sharing if rest else 0.0  # of a tile: what each of its sharers writes, and reads
    shared_tiles = 2 if shared and sharing % rest else 1  # of a cluster
    tile = config.tile_m * config.tile_n
    return {
        "multiply": own * tile * config.tile_k / 2048 / gpu.ghz,
        "wait": own / config.stages * gpu.latency,
        "L2": 2 * k * (across * m + down * n) / gpu.l2,
        "memory": 2 * (m * k + k * n + m * n) / gpu.memory,
        "start": gpu.start,
        "tiles": (waves + (rest > 0) * shared_tiles - 1) * gpu.tile,
        "meet": shared_tiles * (shared > 0) * gpu.meet,
        "sums": shared_tiles * 8 * shared * tile / gpu.sums,
    }


def cost(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> float:
    """Nanoseconds of it all."""
    *together, start, tiles, meet, sums = nanoseconds(config, m, n, k, sms, gpu).values()
    return start + sum(x**4 for x in together) ** 0.25 + tiles + meet + sums


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## `matmul`: what a user calls
#
# `SharedSums` makes memory for the partial sums of each call. Flags belong to the stream, whose launches run one after
# the other. A captured graph has flags of its own, since two graphs may run at once.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (m, n, k), (a_major, b_major) = call.mnk, call.majors
    config = VARIANTS[choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant]
    count, sharing = clusters(config, m, n, k, call.sms), parts(config, m, n, k, call.sms)
    ctas = count * config.cluster
    floats, flags = 2 * ctas * config.tile_m * config.tile_n, ctas * config.warpgroups
    config = replace(config, a_major=a_major, b_major=b_major)
    return (config,), (floats, flags, Sizes(call.mnk, call.strides, count, sharing))


GEMM = SharedSums(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), major_of=either_major, padded=True)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    The strides say the majors; an operand that can be read both ways counts as K-major. The addresses of a and b and
    their other strides are multiples of 16 bytes, as TMA needs them. Any M, N, K >= 1 within that, on a GPU of compute
    capability 9.0. If rows of `out` are no such multiples, or N is no multiple of 8, the product is made in padded rows
    and copied. One call on one GPU gives the same bits each time. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## What limits it, predicted
#
# Microseconds of the chosen variant, and what they are made of. *At once* is the longest of multiplying, waiting for
# stages, L2 and memory. What whole tiles do not pay: sharers **wait** for the slowest, and **sums** go out to L2 and
# come back, 8 bytes for each accumulator. Where whole tiles fill waves both are 0.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import choices_table, results_table, table

rows = []
for shape in catalog.find("hopper/stream_k_gemm").bench_shapes:
    config = VARIANTS[name := choose(*shape, SMS)]
    *together, start, tiles, meet, sums = nanoseconds(config, *shape, SMS).values()
    us = (f"{ns / 1000:.1f}" for ns in (cost(config, *shape, SMS), max(together), start + tiles, meet, sums))
    rows.append([" x ".join(map(str, shape)), name, *us])
Markdown(table(["M x N x K", "variant", "predicted", "at once", "CTAs, tiles", "wait", "sums"], rows, right=2))

# %% [markdown] tags=["lab"]
# Two ways to divide the line were measured on an H200: equal parts for all SMs (`even`), and the same number of sharers
# for each tile. The second one was faster at 512 x 512 x 16384 though some SMs then do nothing: a cluster shares one
# tile, not two. Tiles of 128 x 256, with twice the sums, were slower there than 128 x 128. Both agree with sums that
# wait for L2; no counter was read.
#
# This kernel comes near cuBLAS, and is at best level with it. At the tail above, 2304 x 2304, the tuned GEMM is faster:
# it takes tiles of another size, which nearly fill two waves.
#
# ## Check
#
# *Product* and *pipeline* follow all clusters together: each k is in each sum once, and no partial sums are read early.

# %% tags=["lab"]
lab.check_cells("hopper/stream_k_gemm", shapes=[(200, 328, 1000)], dtypes=["bfloat16"], majors=["tn"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` above; then ours and its peers in one run; and the three variants with the lowest predicted cost.

# %% tags=["lab", "open"]
lab.compare("hopper/stream_k_gemm", matmul, (512, 512, 16384))

# %% tags=["lab"]
Markdown(results_table("hopper/stream_k_gemm"))

# %% tags=["lab"]
Markdown(choices_table("hopper/stream_k_gemm", SMS))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Stream-K divides what whole tiles leave over. It pays where K is long and tiles are few. The price is traffic: every
# sharer writes float32 sums through L2, reads as many, and waits for the slowest of the others. So it is best to share
# little. Smaller tiles, which need not be shared, are the other way: [the tuned GEMM](tuned_gemm.ipynb).
