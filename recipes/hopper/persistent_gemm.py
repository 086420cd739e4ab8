# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Persistent CTAs
#     claim: >-
#       One persistent CTA on each SM loads its next work tile while it stores this one, and TMA stores C while the
#       tensor cores multiply again.
#     track: hopper
#     order: 60
#     builds_on: hopper/multicast_gemm
#     pays: {at: [4096, 4096, 4096], over: one tile a CTA}
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix -> swizzled boxes -> tma
#     instructions: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     baselines: [one tile a CTA]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, stmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix"}
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
#       - {title: "QuACK, kernels in CuTe-DSL", url: "https://github.com/Dao-AILab/quack"}
# ---

# %% [markdown]
# # Persistent CTAs
#
# **Claim.** A CTA that computes one tile begins with empty stages, and at its end C goes out while no loads run.
# *Persistent CTAs*, **as many as there are SMs**, go from one work tile to the next: the producer fills the stages with
# the *next* tile while the consumers store this one.

# %% tags=["lab"]
import cookbook
from cookbook import access, banks, draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/persistent_gemm", (4096, 4096, 4096), over=["one tile a CTA", "+ serpentine K"])

# %% [markdown]
# Serpentine K is as fast as ours within the spread.
#
# C gets small buffers of its own, and TMA carries it to global memory while the tensor cores already multiply again.
# Three things are new: the tile scheduler; an epilogue by TMA, with a proxy fence, two buffers and the right kind of
# wait; and an order of k-tiles that should find more of A and B in L2.
#
# Four terms. A **work tile** is a tile of C that a CTA computes. A **cluster tile** is the work tiles of one cluster,
# side by side. A **tile iteration** is a work tile's place in the sequence of its CTA, 0 for the first. A **k-tile
# index** counts the k-tiles of all the CTA's work tiles. The atoms and the MMA are imported from [the GEMM with TMA and
# WGMMA](tma_wgmma_gemm.ipynb), all that concerns clusters and multicast from [the page before](multicast_gemm.ipynb).

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.hopper.multicast_gemm import (
    Load,
    make_load,
    make_pipeline,
    multicast_masks,
    partition_load,
    rank_in_cluster,
)
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor, smem_atom, tiled_mma, wgmma

# %% [markdown]
# ## The sizes
#
# Four stages of A and B take 192 KiB, and a tile of C 64 KiB: more than the 227 KiB of a CTA. But C need not be
# in shared memory all at once. Each of the two warpgroups sends its half, 64 x 256, in four *epilogue subtiles* of 64 x
# 64 (a row is 128 bytes, the widest swizzle), alternating between **two buffers**: 8 KiB each, 32 KiB in all.
#
# | variant | |
# |---|---|
# | `one tile a CTA` | this very kernel, on a grid of as many CTAs as tiles: what the new epilogue alone is worth |
# | `persistent` | as many CTAs as SMs |
# | `+ serpentine K` | and every other tile goes along K backwards |


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how tiles are given out."""

    tile_m: int = 128  # rows of C per CTA: 64 for each consumer warpgroup
    tile_n: int = 256  # columns of C per CTA: the widest wgmma
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    epi_n: int = 64  # columns of an epilogue subtile of C, 128 bytes; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    cluster_m: int = 2  # CTAs of a cluster down C: they share tiles of B
    cluster_n: int = 1  # and across: they share tiles of A
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles
    persistent: bool = True  # a CTA computes tile after tile
    serpentine: bool = False  # every other of them backwards along K

    pdl = False  # the launch waits for the kernel before; the next page changes that

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def warpgroups(self) -> int:
        return 2  # that share a work tile

    @property
    def consumer_threads(self) -> int:
        return 128 * self.warpgroups  # that share a work tile

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def subtiles(self) -> int:
        return self.tile_m // 64 * (self.tile_n // self.epi_n) // self.warpgroups  # of a tile, one warpgroup's

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def epi_bytes(self) -> int:
        return 2 * self.epi_stages * 64 * self.epi_n * 2  # the buffers of two warpgroups

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A and B; and C after them
        return 1024 + self.stages * self.stage_bytes + self.epi_bytes


# %% [markdown]
# The registers are those of [warp specialization](warp_specialized_gemm.ipynb): a producer's threads give theirs away.


# %%
VARIANTS = {
    "one tile a CTA": Config(persistent=False),
    "persistent": Config(),
    "+ serpentine K": Config(serpentine=True),
}
DEFAULT = "persistent"
CONFIG = VARIANTS[DEFAULT]
REGISTERS = (24, 240)  # of a producer's thread and of a consumer's: 128 * 24 + 256 * 240 of an SM's 65536


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## Layouts, MMA and copies
#
# The buffers of C have a layout of their own: atoms as for A and B, one above the other to 64 rows, and then buffer
# after buffer, first those of warpgroup 0. `stmatrix` writes them and TMA reads them, so the swizzle must please both:
# the banks when a warp stores four 8x8 matrices, and TMA's 128-byte mode. The atom that serves `wgmma` does.


# %%
def smem_layouts(dtype, config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K or N, then over the stages.

    c has the epilogue's buffers, (64, EPI_N, EPI_STAGE): first those of warpgroup 0, then those of 1.
    """
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
    )


# %% [markdown]
# Of software copies one is left: `stmatrix`, by one warpgroup, over one subtile. It is made from the layout that a 64 x
# 64 `wgmma` *would* give its accumulators. Those of a 64 x 256 `wgmma` are four of these side by side.


# %%
class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile


def tiled_copies(dtype, config) -> TiledCopies:
    """The copy of the epilogue: a subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, subtile))


# %% [markdown] tags=["lab"]
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. One buffer,
# 64 rows of 128 bytes, and what one `stmatrix` writes into it: four 8x8 matrices, one wavefront each. Without the
# swizzle the eight rows of a matrix would lie in the same four banks.

# %% tags=["lab"]
layouts, copies = (evaluate(made, cutlass.BFloat16, CONFIG) for made in (smem_layouts, tiled_copies))
of_warp_0 = access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)
counted = [banks.wavefronts(each.addresses, each.width) for each in of_warp_0]
print(f"{len(counted)} stmatrix a warp and subtile; wavefronts each: {[each.actual for each in counted]}")
draw.access_view(of_warp_0[0])

# %% [markdown]
# ## The tile scheduler: which tile is next
#
# The rasterization is [the page before](multicast_gemm.ipynb)'s: cluster tiles are numbered in groups of `swizzle_size`
# rows of tiles. Cluster *i* of *s* computes the cluster tiles i, i + s, i + 2s and so on. The schedule is *static*:
# producer and consumers of a CTA each work it out for themselves. With `persistent=False` there are as many clusters as
# tiles, and the loop runs once.


# %%
class Scheduler(NamedTuple):
    """The work tiles of one CTA."""

    down: cutlass.Int32  # cluster tiles from the top of C to the bottom
    across: cutlass.Int32  # and from left to right
    first: cutlass.Int32  # number of its cluster, and of the cluster's first tile
    step: cutlass.Int32  # from one to the next: the clusters of the grid
    count: cutlass.Int32  # of work tiles
    rank: tuple  # (row, column) of the CTA in its cluster


@cute.jit
def make_scheduler(shape_mn: tuple, config: cutlass.Constexpr) -> Scheduler:
    """The `Scheduler` of this CTA."""
    rank = rank_in_cluster(config)
    down = cute.ceil_div(shape_mn[0], config.tile_m * config.cluster_m)
    across = cute.ceil_div(shape_mn[1], config.tile_n * config.cluster_n)
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster, ctas // config.cluster
    return Scheduler(down, across, first, step, (down * across - first + step - 1) // step, rank)


@cute.jit
def place_of(number: cutlass.Int32, down: cutlass.Int32, across: cutlass.Int32, rank: tuple, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of what the CTA at `rank` has of a cluster tile, of `down` x `across`."""
    wanted = config.swizzle_size // config.cluster_m
    group, inside = number // (wanted * across), number % (wanted * across)
    first = group * wanted
    height = cutlass.min(down - first, wanted)  # the last group may be lower
    m, n = first + inside % height, inside // height
    return m * config.cluster_m + rank[0], n * config.cluster_n + rank[1]


@cute.jit
def work_tile(scheduler: Scheduler, i: cutlass.Int32, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    s = scheduler
    return place_of(s.first + i * s.step, s.down, s.across, s.rank, config)


# %% [markdown]
# ## The producer
#
# One loop more than before. It knows nothing of the epilogue: when the last k-tiles of a tile have been read, those of
# the next one come in, up to `stages` of them. `Load` is [the page before](multicast_gemm.ipynb)'s; its source now has
# the tiles of the whole matrix.
#
# **Serpentine.** All CTAs go along K together, so L2 holds the end of each panel of A and B when their tiles end. The
# next tile iteration often needs the same panels of A. If it begins at that end, L2 still has it. So every other tile
# iteration goes backwards. [A page of its own](../foundations/serpentine.ipynb) models what L2 finds again, and holds
# that against what ncu counts. The sum's order changes with it, and the last bits of the result.


# %%
@cute.jit
def load_tile(
    pipe: pipeline.PipelineTmaAsync,
    loads: tuple[Load, Load],  # of A and of B; sources (TMA, m or n, k)
    state: pipeline.PipelineState,
    tile: tuple,
    k_tiles: cutlass.Int32,
    iteration: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of work tile (m, n), a stage each. Returns the pipeline state."""
    a, b = loads
    tAgA, tBgB = a.gX[None, tile[0], None], b.gX[None, tile[1], None]  # (TMA, k)
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i
        if cutlass.const_expr(config.serpentine):
            k_tile = i + (iteration & 1) * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(a.atom, tAgA[None, k_tile], a.sX[None, state.index], tma_bar_ptr=barrier, **a.multicast)
        cute.copy(b.atom, tBgB[None, k_tile], b.sX[None, state.index], tma_bar_ptr=barrier, **b.multicast)
        state.advance()
    return state


@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, loads: tuple[Load, Load], scheduler: Scheduler, config: cutlass.Constexpr):
    """Load all work tiles of this CTA: the stages are kept full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    k_tiles = cute.size(loads[0].gX, mode=[2])
    for iteration in cutlass.range(scheduler.count, unroll=1):
        tile = work_tile(scheduler, iteration, config)
        state = load_tile(pipe, loads, state, tile, k_tiles, iteration, config)
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers
#
# A consumer must know, for each k-tile, its stage and the *phase* of its barrier: whether the barrier has been
# completed an even or an odd number of times. Both follow from the k-tile index: the stage is the index mod `stages`,
# the phase is the lowest bit of the index div `stages`. A tile's first index is tile iteration x k-tiles. No state
# needs to be carried from tile to tile.


# %%
def state_at(k_index: cutlass.Int32, config) -> pipeline.PipelineState:
    """The pipeline's state at a k-tile index, which counts the k-tiles of all work tiles of the CTA."""
    stage, phase = k_index % config.stages, k_index // config.stages & 1
    return pipeline.PipelineState(config.stages, k_index, stage, phase)


# %% [markdown]
# The accumulators must begin at zero with every tile. `wgmma` can do that: told not to accumulate, it overwrites. That
# is a field of the MMA object. CuTe compiles the loop, and what changes inside it must be passed from iteration to
# iteration. So there are two objects, made before the loop and never changed: one overwrites, one accumulates.


# %%
class Mainloop(NamedTuple):
    """A consumer warpgroup's values: the pipeline, the operands and the accumulators."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)


@cute.jit
def issue_wgmmas(main: Mainloop, stage: cutlass.Int32, first: cutlass.Constexpr = False):
    """Issue the wgmmas of one stage as one commit group; `first`: of a work tile, its first one overwrites `acc`."""
    acc, tCrA, tCrB = main.acc, main.tCrA, main.tCrB
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # 16 elements, 32 bytes, along K
        mma = main.overwrite if first and k == 0 else main.accumulate
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


# %% [markdown]
# A tile's k-tiles: the first one overwrites, each one after it releases the stage of the one before, and the last
# commit group is waited for.


# %%
@cute.jit
def first_k_tile(main: Mainloop, read: pipeline.PipelineState):
    """Issue the first k-tile of a work tile, which is at `read`. Returns the state behind it."""
    main.pipe.consumer_wait(read)
    issue_wgmmas(main, read.index, first=True)
    read.advance()
    return read


@cute.jit
def next_k_tile(main: Mainloop, read: pipeline.PipelineState, release: pipeline.PipelineState):
    """Issue the k-tile at `read`, and release the stage at `release`. Returns the states behind these."""
    main.pipe.consumer_wait(read)
    issue_wgmmas(main, read.index)
    read.advance()
    warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
    main.pipe.consumer_release(release)
    release.advance()
    return read, release


@cute.jit
def last_k_tile(main: Mainloop, release: pipeline.PipelineState):
    """Wait for the last commit group, and release its stage."""
    warpgroup.wait_group(0)
    main.pipe.consumer_release(release)


@cute.jit
def multiply_tile(main: Mainloop, k_index: cutlass.Int32, config: cutlass.Constexpr):
    """Multiply the k-tiles of one tile, the first of which has this k-tile index, into `main.acc`."""
    read, release = state_at(k_index, config), state_at(k_index, config)
    read = first_k_tile(main, read)
    for _ in cutlass.range(main.k_tiles - 1, unroll=1):
        read, release = next_k_tile(main, read, release)
    last_k_tile(main, release)


# %% [markdown]
# ## The epilogue
#
# A warpgroup sends its 64 rows in epilogue subtiles of 64 columns. For each: wait for a buffer, round, `stmatrix`, and
# one thread asks TMA to carry the buffer away. Then the next subtile, at once, into the other buffer. Four things
# deserve a look:
#
# * **The fence.** A *proxy* is a way to shared memory. `stmatrix` writes through the *generic* one, as all threads do,
#   and TMA reads through the *async* one. Nothing orders the two, not even a barrier. `fence_proxy` does: each thread
#   says that what it has written is to be seen by TMA. Then the barrier says that all have done so. Without the fence
#   TMA may send what was in the buffer before, and it may be right a thousand times.
# * **One thread.** For TMA loads `cute.copy` elects a thread by itself; a store is carried out by *every* thread that
#   gets there: without `elect_one`, 32 times. That would be right, and slow.
# * **Whose groups?** A store belongs to a *group* of the thread that committed it. If another thread waits, it has no
#   groups and does not wait, and the buffer is overwritten while TMA reads it. So the warp that elects the thread waits
#   as a whole: the same thread is elected every time.
# * **What to wait for.** A buffer may be used again when TMA has *read* it: `wait_group` with `.read`. Without `.read`
#   the thread would wait until C has arrived in memory. And it waits for all groups *but the latest*: the other buffer
#   may still be in flight. That is what two buffers are for.
#
# No thread compares a coordinate with M or N any more: TMA leaves out what lies outside C.


# %%
@cute.jit
def store(
    acc: cute.Tensor,
    sC: cute.Tensor,
    c: TmaTensor,
    first: tuple,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Store what warpgroup `group` has of a tile of C, subtile after subtile, by TMA.

    sC (64, EPI_N, EPI_STAGE): all buffers; c (64, EPI_N, m, n): all subtiles of C; first: (m, n) of the tile's first.
    """
    tidx = cute.arch.thread_idx()[0] % 128
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    storing = cute.arch.make_warp_uniform(tidx // 32) == 0  # the warp that talks to TMA
    thr = r2s_c.get_slice(tidx)
    tCsC = thr.partition_D(sC)  # (CPY, CPY_M, CPY_N, EPI_STAGE)
    no_multicast = cute.make_layout(1)  # a subtile is one box: nothing is divided among CTAs
    sC, gC = cute.group_modes(sC, 0, 2), cute.group_modes(c.coords, 0, 2)
    bSsC, bSgC = cpasync.tma_partition(c.atom, 0, no_multicast, sC, gC)  # (TMA, EPI_STAGE), (TMA, m, n)
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))  # (MMA, MMA_M, MMA_N) of a thread in one subtile
    across = config.tile_n // config.epi_n
    for i in cutlass.range_constexpr(config.subtiles):
        buffer = group * config.epi_stages + i % config.epi_stages
        row = i // across * config.warpgroups + (group if config.warpgroups > 1 else 0)
        if storing:
            cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
        barrier.arrive_and_wait()  # all know that the buffer is free
        rC = cute.make_rmem_tensor(layout, sC.element_type)
        rC.store(cute.make_tensor(acc.iterator + i * cute.size(layout), layout).load().to(sC.element_type))
        cute.copy(r2s_c, thr.retile(rC), tCsC[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()  # all have written, and said so to TMA
        if storing:
            with cute.arch.elect_one():
                cute.copy(c.atom, bSsC[None, buffer], bSgC[None, first[0] + row, first[1] + i % across])
                cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## The kernel
#
# The barriers and the stages are [the page before](multicast_gemm.ipynb)'s; C lies behind A and B, no longer over them.
# Every CTA allocates the same, so that what a multicast writes lies at the same offset in each.


# %%
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sC: cute.Tensor  # (64, EPI_N, EPI_STAGE): first the buffers of warpgroup 0, then those of 1


def allocate_tiles(smem: SmemAllocator, layouts: tuple, dtypes: tuple) -> list[cute.Tensor]:
    """Allocate tensors of these layouts and types, one after the other."""
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    both = zip(layouts, dtypes, strict=True)
    return [smem.allocate_tensor(dtype, x.outer, 1024, swizzle=x.inner) for x, dtype in both]


@cute.jit
def allocate(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory: the barriers, and the tensors sA, sB and sC."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    return barriers, *allocate_tiles(smem, layouts, (dtype, dtype, dtype))


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages and the epilogue's buffers, and set up the barriers."""
    barriers, sA, sB, sC = allocate(layouts, dtype, config)
    return Cta(make_pipeline(barriers, config), sA, sB, sC)


# %% [markdown]
# The consumers go from work tile to work tile: multiply, then store. They do stop multiplying while they round and
# write their subtiles. But they wait only until TMA has read shared memory, not until C has arrived. When they return
# to their stages, these are full.


# %%
@cute.jit
def make_mainloop(
    cta: Cta, op: cutlass.Constexpr, thread: cutlass.Int32, k_tiles: cutlass.Int32, config: cutlass.Constexpr
) -> Mainloop:
    """The `Mainloop` of a consumer; `thread`: whose slice of the MMA."""
    overwrite = cute.make_tiled_mma(op, (config.warpgroups, 1, 1))
    accumulate = cute.make_tiled_mma(op, (config.warpgroups, 1, 1))
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(thread)
    tCrA = accumulate.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    return Mainloop(cta.pipe, k_tiles, overwrite, accumulate, tCrA, tCrB, acc)


@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    r2s_c: cute.TiledCopy,
    config: cutlass.Constexpr,
):
    """Multiply and store, tile after tile. c: the subtiles of the whole of C, (64, EPI_N, m, n)."""
    tidx, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(tidx // 128)
    main = make_mainloop(cta, op, tidx, k_tiles, config)
    down, across = config.tile_m // 64, config.tile_n // config.epi_n  # subtiles of a tile
    for iteration in cutlass.range(scheduler.count, unroll=1):
        m, n = work_tile(scheduler, iteration, config)
        multiply_tile(main, iteration * k_tiles, config)
        store(main.acc, cta.sC, c, (m * down, n * across), r2s_c, group, config)
    if tidx % 128 // 32 == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# The kernel sets up, and parts: one warp produces, two warpgroups consume.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its share of the tiles of C, one after the other.

    Who waits for whom, with the CONFIG of hopper/persistent_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    producer = config.threads // 32 - 4  # the first warp of the last warpgroup
    scheduler = make_scheduler(c.coords.shape, config)
    cta = set_up(layouts, dtype, config)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (64, config.epi_n), (None, None))  # (64, EPI_N, m, n)
    if warp_idx >= producer:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == producer:
            masks = multicast_masks(scheduler.rank, config)
            load_a = partition_load(a.atom, gA, cta.sA, scheduler.rank[1], config.cluster_n, masks[0])
            load_b = partition_load(b.atom, gB, cta.sB, scheduler.rank[0], config.cluster_m, masks[1])
            produce(cta.pipe, (load_a, load_b), scheduler, config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        consume(cta, op, TmaTensor(c.atom, gC), scheduler, cute.size(gA, mode=[3]), r2s_c, config)


# %% [markdown]
# ## The launch
#
# How many CTAs? **As many as fit at once, and never more than there is work.** One of ours fills an SM, so that is the
# number of SMs, in whole clusters. More would be a trap: a CTA that finds no place waits until another has done *all*
# its tiles, and then begins its own full share. One cluster too many takes twice the time.
#
# (Clusters of two fit on the pairs of SMs that a GPC is made of. For clusters of four `SMs // 4` would be too many, for
# the pairs of a GPC do not always come out even: ask the driver, as [the page before](multicast_gemm.ipynb) does.)
#
# The number is a run-time argument, for the same code runs on GPUs of different sizes.


# %%
def tma_tensors(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, layouts: SmemLayouts, config):
    """A and B as TMA loads them, a tile at a time, and C as it stores it, a subtile at a time."""
    a_stage, b_stage, c_stage = (cute.select(x, mode=[0, 1]) for x in layouts)
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    return a, b, c


@cute.jit
def launch(
    mA: cute.Tensor,
    mB: cute.Tensor,
    mC: cute.Tensor,
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Launch as many CTAs as fit at once, and no more than C (M, N) has tiles. mA: (M, K), mB: (N, K)."""
    (m, n), dtype = mC.shape, mC.element_type
    a, b, c = tma_tensors(mA, mB, mC, layouts, config)
    down = cute.ceil_div(m, config.tile_m * config.cluster_m)
    across = cute.ceil_div(n, config.tile_n * config.cluster_n)
    clusters = cutlass.min(down * across, sms // config.cluster) if config.persistent else down * across
    kernel(a, b, c, layouts, r2s_c, wgmma(dtype, config.tile_n), dtype, config).launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=config.pdl,
    )


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    layouts, r2s_c = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c
    launch(mA, mB, mC, layouts, r2s_c, sms, stream, kernel, config)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (VARIANTS[call.variant],), (call.mnk, call.strides, call.sms)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=VARIANTS, padded=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: how tiles are given to CTAs. Serpentine sums along K in another order.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N is no
    multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Waves
#
# With as many CTAs as SMs, tiles are done in waves as before: as many tile iterations as the CTA with the most work
# has. What counts is how full the last wave is. Sometimes fewer CTAs would need no more tile iterations:

# %% tags=["lab"]
import numpy as np
from IPython.display import Markdown

from cookbook.lab import copy_wavefronts, records, results_table, table
from cookbook.model import SharedMemory, tma_store

SMS = 132  # of an H200


def waves(m: int, n: int, ctas: int, config: Config = CONFIG) -> tuple[int, int]:
    """Tiles of C, counted in whole clusters, and the tile iterations that `ctas` CTAs need for them."""
    down, across = -(-m // (config.tile_m * config.cluster_m)), -(-n // (config.tile_n * config.cluster_n))
    return down * across * config.cluster, -(-down * across // (ctas // config.cluster))


rows = []
for size in (1024, 2048, 4096, 6144, 8192, 16384):
    tiles, rounds = waves(size, size, SMS)
    enough = [ctas for ctas in range(CONFIG.cluster, SMS + 1, CONFIG.cluster) if waves(size, size, ctas)[1] == rounds]
    rows.append([f"{size} x {size}", str(tiles), str(rounds), f"{tiles / (rounds * SMS):.1%}", str(enough[0])])
Markdown(table(["C", "tiles", f"tile iterations with {SMS} CTAs", "SMs busy", "CTAs that need no more"], rows))

# %% [markdown] tags=["lab"]
# No kernel with tiles of this size can do better than *SMs busy* says, persistent or not. What being persistent changes
# is what happens *between* the waves.
#
# ## The prediction
#
# We count clocks of one SM. The tensor cores take t for a k-tile (2048 multiply-adds a clock). A load takes L from the
# moment that its stage is free; global memory answers after *some hundreds* of clocks (CUDA C++ Programming Guide), and
# 800 are assumed. The epilogue takes the clocks that shared memory needs for the wavefronts of `stmatrix`, which come
# from this recipe's own layouts. A new CTA finds its stages empty; a persistent one finds them full.

# %% tags=["lab"]
TENSOR_RATE, LATENCY = 2048, 800  # multiply-adds of an SM in a clock (NVIDIA H100 white paper); clocks
K_TILE = CONFIG.tile_m * CONFIG.tile_n * CONFIG.tile_k // TENSOR_RATE
PIECES = (CONFIG.tile_m // 64) * (CONFIG.tile_n // CONFIG.epi_n)
EPILOGUE = PIECES * sum(each * n for (each, _), n in copy_wavefronts("r2s_c", copies.r2s_c, layouts.c).items())


def schedule(rounds: int, k_tiles: int, persistent: bool) -> dict[str, list[tuple[float, float]]]:
    """(start, end) of the loads, the multiplications and the epilogue of each tile of one SM, in clocks."""
    spans = {"loads": [], "multiply": [], "store": []}
    done: list[float] = []  # when each k-tile has been read: then its stage is free
    begin = 0.0  # of the CTA
    for iteration in range(rounds):
        asked = []
        for k in range(k_tiles):
            before = len(done) - CONFIG.stages  # the k-tile that had the stage
            of_this_cta = before >= (0 if persistent else iteration * k_tiles)
            asked.append(max(begin, done[before] if of_this_cta else 0.0))
            ready = spans["store"][-1][1] if k == 0 and iteration else done[-1] if done else 0.0
            start = max(asked[-1] + LATENCY, ready)
            done.append(start + K_TILE)
        first = done[-k_tiles] - K_TILE
        spans["loads"].append((asked[0], asked[-1] + LATENCY))
        spans["multiply"].append((first, done[-1]))
        spans["store"].append((done[-1], done[-1] + EPILOGUE))
        begin = 0.0 if persistent else spans["store"][-1][1]
    return spans


lanes = {}
for name, persistent in (("one tile a CTA", False), ("persistent", True)):
    found, lanes = schedule(3, 6, persistent), lanes | ({"": []} if lanes else {})
    for row, what in (("loads", "loads"), ("tensor cores", "multiply"), ("stmatrix", "store")):
        lanes[f"{name}: {row}"] = [draw.Span(*span, f"tile {i}", f"tile {i}") for i, span in enumerate(found[what])]
draw.lanes(lanes, "Three tiles of one SM, K = 384 (predicted)", note="Short, so that there is something to see.")

# %% [markdown] tags=["lab"]
# The loads of the next tile begin while this one is being multiplied, as soon as its last k-tiles leave stages free.
# For the tensor cores the gap shrinks to the epilogue. What that is worth depends on K, for the gap has always the same
# length, and a little on the number of tile iterations, for before a CTA's first tile nothing is spared:


# %% tags=["lab"]
def predicted_gain(m: int, n: int, k: int) -> float:
    """Return how many times as fast a persistent kernel should be as one with a CTA for each tile."""
    rounds, k_tiles = waves(m, n, SMS)[1], -(-k // CONFIG.tile_k)
    times = [schedule(rounds, k_tiles, persistent)["store"][-1][1] for persistent in (False, True)]
    return times[0] / times[1]


ks = (512, 1024, 2048, 4096, 8192)
rows = [["8192 x 8192 x K", *(f"{predicted_gain(8192, 8192, k):.3f}x" for k in ks)]]
Markdown(table(["predicted", *(f"K = {k}" for k in ks)], rows))

# %% tags=["lab", "gains"]
{"hopper/persistent_gemm": round(predicted_gain(8192, 8192, 8192), 3)}  # as the ladder of this track shows it

# %% [markdown] tags=["lab"]
# This leaves out what it takes to start a CTA: to set up barriers, meet the cluster, fetch the descriptors. So the
# prediction is on the low side.
#
# ## The wrong warp waits
#
# What if the warp that waits is not the warp that stores? Its `wait_group` returns at once. The cell runs the epilogue
# of one warpgroup on the modelled instructions. TMA reads a buffer only some subtiles *later*, as it may: four times
# without the wait, and then with it.


# %% tags=["lab"]
def epilogue_of(late: int, waits: bool) -> np.ndarray:
    """64 x 256 of C, of which subtile i is full of i, and TMA reads it `late` subtiles after it was asked to."""
    smem, out = SharedMemory(layouts.c.size_bytes), np.zeros((64, CONFIG.tile_n), np.uint16)
    places, pending = layouts.c.byte_offsets(), []
    for i in range(CONFIG.tile_n // CONFIG.epi_n):
        while len(pending) > (min(late, CONFIG.epi_stages - 1) if waits else late):
            tma_store(smem, *pending.pop(0))  # TMA reads the buffer now
        buffer = places[..., i % CONFIG.epi_stages]
        smem.write(buffer, np.full((*buffer.shape, 1), i, np.uint16))
        pending.append((int(buffer.min()), out, (0, i * CONFIG.epi_n), (64, CONFIG.epi_n), 128))
    for box in pending:
        tma_store(smem, *box)
    return out


for late, waits in ((0, False), (1, False), (2, False), (3, False), (3, True)):
    columns = epilogue_of(late, waits)[0, :: CONFIG.epi_n].tolist()
    print(f"TMA reads {late} subtiles later, {'waiting' if waits else 'no wait'}: the subtiles of C hold {columns}")

# %% [markdown] tags=["lab"]
# As long as TMA is quick the error does not show. Then the first subtiles of C are copies of later ones: right numbers,
# in the wrong columns.
#
# ## Check

# %% tags=["lab"]
lab.check_cells("hopper/persistent_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# All variants and their peers, interleaved in one run; "ours" is the default, `persistent`.

# %% tags=["lab", "open"]
lab.compare("hopper/persistent_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/persistent_gemm"))

# %% [markdown] tags=["lab"]
# The gain over one tile a CTA, predicted and measured. "Ours" and `persistent` above are *the same kernel*, timed twice
# in the same rounds: what lies between them is the spread, in the last column. A gain that is not larger is none.


# %% tags=["lab"]
def gains() -> str:
    """For every current record: how many times as fast as `one tile a CTA` each variant was, and what serpentine K
    saves."""
    rows, read_of = [], cookbook.load("foundations/serpentine").read_of
    for r in records.of_one_gpu("hopper/persistent_gemm", "timed"):
        took = {name: r["peers"][name]["median_ms"] for name in VARIANTS}
        measured = {name: f"{took['one tile a CTA'] / took[name]:.3f}x" for name in ("persistent", "+ serpentine K")}
        where = f"{r['device']}, {r['dtype']}, {'x'.join(map(str, r['shape']))}"
        twice = abs(r["figures"]["median_ms"] / took[DEFAULT] - 1)
        saved = 1 - read_of(r["shape"][0], 37e6, True) / read_of(r["shape"][0], 37e6, False)
        rows.append([where, f"{predicted_gain(*r['shape']):.3f}x", *measured.values(), f"{saved:.0%}", f"{twice:.1%}"])
    heads = ["against one tile a CTA", "persistent, predicted", "persistent, measured", "+ serpentine K, measured"]
    heads += ["bytes that it saves, predicted", "one kernel twice, apart"]
    return table(heads, rows) if rows else "*Not measured yet.*"


Markdown(gains())

# %% [markdown] tags=["lab"]
# On an H200 persistent CTAs gain at both sizes, and several times what we predicted; the prediction left out what it
# takes to start a CTA; whether that is all of the difference was not measured. Serpentine K saves bytes at both sizes,
# by [its model](../foundations/serpentine.ipynb) and a cache of 37 MB. It gains time at the larger one alone, a little
# more than the spread.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "state_by_laps": (
        "state_at",
        "    stage, phase = k_index % config.stages, k_index // config.stages & 1",
        "    raise NotImplementedError",
        "Write `stage` and `phase` of a k-tile index with one modulo and a comparison: no division.",
        (
            "The stages go round twice before both, stage and phase, come again.",
            (
                "Take the index modulo `2 * config.stages`. What does its upper half mean? `cutlass.Int32` makes "
                "0 or 1 of a comparison."
            ),
        ),
        "In two laps the phase is 0 and then 1.",
        """\
    lap = k_index % (2 * config.stages)
    phase = cutlass.Int32(lap >= config.stages)
    stage = lap - phase * config.stages""",
    ),
    "store_at_risk": (
        "store",
        "config.epi_stages - 1, read=True",
        "config.epi_stages, read=True",
        '"There are `epi_stages` buffers for C, so as many stores may be on the way."',
        (
            "When a warp waits, has it committed the store of this subtile already?",
            (
                "The buffer of subtile i was last sent by the store of subtile i - epi_stages. How many stores "
                "came after it?"
            ),
        ),
        (
            "The wait comes before the buffer is written. `epi_stages` stores on the way include the one that "
            "still reads this very buffer, so only `epi_stages - 1` may be left."
        ),
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("hopper/persistent_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A persistent CTA gains three things: loads run into the next tile, stores run out of the last one, and it starts once.
# That takes a loop, a k-tile index that gives stage and phase, buffers for C, and two rules about who has read what:
# the fence between the proxies, and a wait by the thread that stored.
#
# The epilogue itself remains. While the consumers round and write their subtiles, the tensor cores are idle, and a
# shorter K makes that a larger part.
#
# Next: [ping-pong](pingpong_gemm.ipynb): one warpgroup multiplies while the other stores.
