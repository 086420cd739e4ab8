# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   cookbook:
#     title: A GEMM whose warpgroups take turns
#     claim: >-
#       Give each consumer warpgroup a tile of its own and let them alternate: while one stores, the other multiplies,
#       and the tensor cores see no epilogue. It pays most where K is short.
#     track: hopper
#     order: 70
#     builds_on: hopper/persistent_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma, two tiles in turn -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D.MULTICAST, HGMMA, STSM.16.M88.4, UTMASTG.2D, USETMAXREG, SYNCS]
#     bench_shapes: [[8192, 8192, 512], [8192, 8192, 1024], [8192, 8192, 2048], [4096, 4096, 4096], [8192, 8192, 8192]]
# ---

# %% [markdown]
# # A GEMM whose warpgroups take turns
#
# **Claim.** In `hopper/persistent_gemm` two warpgroups *cooperate*: they share a tile, multiply it together, and then
# both store it. TMA carries the stores away in the background, but somebody must first round the accumulators and put
# them into shared memory, and all that time the tensor cores stand still. Here each warpgroup has a **tile of its
# own**, and they alternate: while one rounds and stores, the other multiplies. NVIDIA calls the schedule *pingpong*.
#
# What it hides is a cost *per tile*. A tile's multiplication takes time in proportion to K, its epilogue does not:
# the shorter K is, the more there is to gain. Where K is short something else is felt too, the time between one kernel
# and the next, and *programmatic dependent launch* hides part of that.
#
# Three things are new, and this page is about them: who has which tile, the barriers that make the turns, and two
# instructions for the launch. The layouts, the multicast, the persistent loop and the stores are those of
# `hopper/persistent_gemm`.

# %%
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.memory
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

# %% [markdown]
# ## The sizes
#
# A cooperating pair holds a tile of 128 x 256 between them, 128 accumulators a thread. A warpgroup that has its tile
# alone must hold *all* of it: 128 x 128 are 128 accumulators a thread, 128 x 192 are 192. With `setmaxnreg` a consumer
# thread has 240 registers, so 128 x 192 is as far as it goes. So the price of pingpong is a narrower tile, and a
# narrower tile needs more bytes for each multiplication. There is a trade to be made, and `VARIANTS` has its sides:
#
# | variant | a warpgroup holds | elements loaded for 1000 products | stages |
# |---|---|---|---|
# | `cooperative` | half of 128 x 256 | 1000 (1 / 128 + 1 / 256) = 11.7 | 4 |
# | `128x192 + PDL` | 128 x 192 | 13.0 | 4 |
# | `128x128`, `128x128 + PDL` | 128 x 128 | 15.6 | 6 |
#
# The stages are one queue. Both warpgroups eat from it, a whole tile each, in turn.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 128  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    stages: int = 6  # pairs of A and B tiles in flight or being read
    cluster_m: int = 2  # CTAs one above the other that share the tiles of B
    pingpong: bool = True  # a warpgroup has a tile of its own; False: both share one
    pdl: bool = True  # the launch of the next kernel may overlap the end of this one
    raster_group: int = 8  # clusters that run together cover this many rows of cluster tiles
    epi_n: int = 64  # columns of C that go out together: 128 bytes
    epi_buffers: int = 2  # for each warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # a thread; the three warpgroups together may have 65536
    consumer_registers: int = 240

    @property
    def warpgroups(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.pingpong else 2

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        c = 2 * self.epi_buffers * 64 * self.epi_n * 2
        return 1024 + self.stages * self.stage_bytes + c  # 1024: the barriers, padded to the tiles' alignment


VARIANTS = {
    "cooperative": Config(tile_n=256, stages=4, pingpong=False, pdl=False),
    "128x128": Config(pdl=False),
    "128x128 + PDL": Config(),
    "128x192 + PDL": Config(tile_n=192, stages=4),
}
DEFAULT = "128x128 + PDL"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The layouts and the MMA
#
# As before: K-major tiles in 128-byte rows, and C in boxes of 64 x 64, two for each warpgroup, beside A and B instead
# of over them, for the next tile is loaded while this one is stored.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, BUFFER): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next(bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0)
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
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_buffers), order=(0, 1, 2)),
    )


def wgmma(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """64 rows of A times 16 x `columns` of B, both from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, k_major, k_major)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the warpgroups that share a tile: of one, which then goes down all its rows itself, or of two."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (config.warpgroups, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: a box of C, 64 x EPI_N


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The copy of the epilogue: a box has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    box = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, box))


# %% [markdown]
# ## Whose tile is it?
#
# The tiles of a CTA come one after the other, as in any persistent kernel: its first is number `first`, the next is
# `step` further. We call the position in this sequence the **turn**. Turn 0 is warpgroup 0's, turn 1 is warpgroup 1's,
# turn 2 is 0's again. The producer does not care: it loads turn after turn.
#
# The queue of stages needs no more than that either. Number the k-tiles of a CTA from its first turn on: turn `t`
# begins at **slot** `t * k_tiles`. A slot tells everything about its place: it lies in stage `slot % stages`, and that
# stage has been filled `slot // stages` times before, the lowest bit of which is the *phase* to wait for. So a
# warpgroup that skips every other turn carries no state over; it computes where it is.


# %%
@cute.jit
def tile_of(work, tiles_m, tiles_n, config: cutlass.Constexpr):
    """Which cluster tile is number `work`: column by column inside groups of `raster_group` rows."""
    group, inside = work // (config.raster_group * tiles_n), work % (config.raster_group * tiles_n)
    first = group * config.raster_group
    height = cutlass.min(tiles_m - first, config.raster_group)  # the last group may be lower
    return first + inside % height, inside // height


@cute.jit
def state_at(slot, config: cutlass.Constexpr):
    """The consumer's place in the queue at a slot: (stage, phase), with no history."""
    return pipeline.PipelineState(config.stages, slot, slot % config.stages, (slot // config.stages) & 1)


# %% [markdown]
# ## The producer
#
# One warp, as before. The CTAs of a cluster lie one above the other: they need different rows of A and the same columns
# of B, so each of them loads half of B's tile and TMA writes it into the shared memory of both.


# %%
@cute.jit
def produce(pipe, state, tma_a, tma_b, tAgA, tAsA, tBgB, tBsB, mask_b, config: cutlass.Constexpr):
    """Fill a stage for each k-tile of one turn: tAgA, tBgB (TMA, k) in global memory; tAsA, tBsB (TMA, STAGE)."""
    shared = {"mcast_mask": mask_b} if config.cluster_m > 1 else {}
    for k_tile in cutlass.range(cute.size(tAgA, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier)
        cute.copy(tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, **shared)
        state.advance()
    return state


# %% [markdown]
# ## The turns
#
# Two warpgroups that both have a tile to multiply would get in each other's way: wgmmas of both would mix, both tiles
# would be done late and at the same time, and both epilogues would again find nobody multiplying. So a warpgroup waits
# until the other has *issued* its whole tile, and says so when it has issued its own. Issued is enough. The tensor
# cores take batches in order, and the next tile's first batch lies ready while the last one of this tile still runs.
#
# Two named barriers do it, one for each direction: 128 threads wait at it, 128 arrive at it and walk on. No turn waits
# before the first, and nobody is told after the last.
#
# **The trap: a wait by parity sees only one phase far.** The order is not a matter of speed alone. A barrier in shared
# memory has *one bit* for its phase, and `wait(phase)` asks: is the phase of that parity over? The queue is longer than
# that bit. Warpgroup 1 begins `k_tiles` slots ahead of warpgroup 0; left to itself it would ask a stage's barrier for
# phase 1 while not even phase 0 is complete. The barrier says yes, for *the phase of that parity before* is over:
# that is how the producer finds empty stages at the start. Warpgroup 1 multiplies what happens to lie there, and then
# gives away a stage that it never had. The result is wrong, or the kernel fails, and only sometimes. Once the other
# warpgroup has waited for all its slots the bit is enough: the slot that follows in each stage is the next phase, and
# the one after that cannot come before we have released ours. The lab below has a model of this to play with.


# %%
TURN_BARRIER = 4  # the first of two named barriers; 1 and 2 are those of the epilogues, 0 is the CTA's


@cute.jit
def multiply_stage(mma, acc, tCrA, tCrB, stage, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one batch. mma: one that overwrites `acc`, for the very first k-block, and one that
    adds to it. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    overwrite, add = mma
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements, 32 bytes, along K
        each = overwrite if first and k == 0 else add
        cute.gemm(each, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def consume(pipe, turn, turns, mma, acc, tCrA, tCrB, k_tiles, group, config: cutlass.Constexpr):
    """Multiply all k-tiles of this turn into `acc`, one batch of wgmma always in flight."""
    read, release = state_at(turn * k_tiles, config), state_at(turn * k_tiles, config)
    if cutlass.const_expr(config.pingpong):
        if turn > 0:
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + group, num_threads=256).arrive_and_wait()
    pipe.consumer_wait(read)
    multiply_stage(mma, acc, tCrA, tCrB, read.index, True)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        multiply_stage(mma, acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the batch before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()
    if cutlass.const_expr(config.pingpong):
        if turn + 1 < turns:  # all is issued: the other one's turn
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + 1 - group, num_threads=256).arrive()
    warpgroup.wait_group(0)
    pipe.consumer_release(release)


# %% [markdown]
# ## The epilogue
#
# A warpgroup stores its rows in boxes of 64 x 64: round, `stmatrix` into a buffer, TMA from there. Before a buffer is
# written again, TMA must have *read* it. Two buffers, so that it may take a box's time to do so. Nothing here concerns
# the other warpgroup, which is multiplying all the while: the barrier is of these 128 threads.
#
# TMA clips a box at the edge of the matrix, so ragged M and N need no comparison.


# %%
@cute.jit
def store(acc, sC, tma_c, gC, copies, group, tidx, config: cutlass.Constexpr):
    """Registers -> swizzled boxes -> global memory. sC: (64, EPI_N, BUFFER) of this warpgroup; gC: (M, N) tile, as TMA
    coordinates; tidx: in the warpgroup."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    thr = copies.r2s_c.get_slice(tidx)
    tCsC = thr.partition_D(sC)  # (CPY, CPY_M, CPY_N, BUFFER)
    boxes = cute.zipped_divide(gC, (64, config.epi_n))
    bSsC, bSgC = cpasync.tma_partition(tma_c, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), boxes)
    storing = cute.arch.make_warp_uniform(tidx // 32) == 0
    of_box = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))  # a thread's accumulators, as the MMA has them
    across = config.tile_n // config.epi_n
    for i in cutlass.range_constexpr(config.tile_m // 64 // config.warpgroups * across):
        down, buffer = i // across, i % config.epi_buffers
        rC = cute.make_rmem_tensor(of_box, sC.element_type)
        rC.store(cute.make_tensor(acc.iterator + i * cute.size(of_box), of_box).load().to(sC.element_type))
        if storing:
            cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)
        barrier.arrive_and_wait()  # TMA has read what was in this buffer
        cute.copy(copies.r2s_c, thr.retile(rC), tCsC[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
        barrier.arrive_and_wait()
        if storing:
            row = down if config.pingpong else 2 * down + group
            with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
                cute.copy(tma_c, bSsC[None, buffer], bSgC[None, (row, i % across)])
                cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## One kernel after the other
#
# A product is seldom alone: it follows a kernel, and another follows it. By default the next kernel is launched when
# the last CTA of this one has ended and its writes are visible. Then its CTAs start up, set their barriers, fetch
# their tensor maps, ask for their first tiles, and a microsecond or two have passed.
#
# **Programmatic dependent launch** (PDL) takes two instructions, and a launch that asks for it:
#
# * `griddepcontrol.wait` stands before the *first access to global memory*, read or write, in every thread. It returns
#   when the kernel before has ended and its writes can be seen. All that stands above it runs before that: barriers,
#   tensor maps (they are kernel arguments, not memory that another kernel writes).
# * `griddepcontrol.launch_dependents` says: the next kernel may begin to start. The producer says it once its last load
#   is issued. Our CTA takes nearly all of the SM's shared memory, so that the next kernel's CTA gets in only when ours
#   leaves; but then at once, SM by SM, instead of after the slowest SM of all.
#
# It is safe whatever runs before and after: a kernel that never says `launch_dependents` says it by ending, and one
# that is launched without PDL waits for the end of ours as ever.

# %% [markdown]
# ## The kernel
#
# The persistent kernel, in three places different: which `tidx` the MMA is sliced for (a warpgroup's own, if the tile
# is its own), the loop over *every other* turn, and PDL.


# %%
@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    tma_c: cute.CopyAtom,
    mC: cute.Tensor,  # (M, N), as TMA coordinates
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A cluster computes cluster tiles `first`, `first + step`, ... of C."""
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    layouts = smem_layouts(dtype, config)
    if warp_idx == 8:
        for tma in (tma_a, tma_b, tma_c):
            cpasync.prefetch_descriptor(tma)
    pipe, sA, sB, sC, row_in_cluster = set_up(layouts, dtype, config)

    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (None, None))  # (M, K, m, k)
    gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (None, None))  # (N, K, n, k)
    gC = cute.local_tile(mC, (config.tile_m, config.tile_n), (None, None))  # (M, N, m, n)
    k_tiles = cute.size(gA, mode=[3])
    tiles_m, tiles_n = cute.ceil_div(cute.size(gA, mode=[2]), config.cluster_m), cute.size(gB, mode=[2])
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step, total = cta // config.cluster_m, ctas // config.cluster_m, tiles_m * tiles_n

    if cutlass.const_expr(config.pdl):
        cute.arch.griddepcontrol_wait()  # the kernel before has ended: from here on global memory may be touched
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            sharing = cute.make_layout(config.cluster_m)
            alone, grouped = cute.make_layout(1), [cute.group_modes(x, 0, 2) for x in (sA, gA, sB, gB)]
            tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, grouped[0], grouped[1])
            tBsB, tBgB = cpasync.tma_partition(tma_b, row_in_cluster, sharing, grouped[2], grouped[3])
            everybody = cutlass.Int16((1 << config.cluster_m) - 1)  # a bit for each CTA of the cluster
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
            for work in cutlass.range(first, total, step, unroll=1):
                m, n = tile_of(work, tiles_m, tiles_n, config)
                m = m * config.cluster_m + row_in_cluster
                a, b = tAgA[None, m, None], tBgB[None, n, None]  # (TMA, k)
                state = produce(pipe, state, tma_a, tma_b, a, tAsA, b, tBsB, everybody, config)
            if cutlass.const_expr(config.pdl):
                cute.arch.griddepcontrol_launch_dependents()
            pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        overwrite, add, copies = tiled_mma(dtype, config), tiled_mma(dtype, config), tiled_copies(dtype, config)
        overwrite.set(warpgroup.Field.ACCUMULATE, False)
        add.set(warpgroup.Field.ACCUMULATE, True)
        thr = add.get_slice(tidx % (128 * config.warpgroups))
        acc = cute.make_rmem_tensor(thr.partition_C(gC[None, None, 0, 0]).shape, cutlass.Float32)
        tCrA = add.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
        tCrB = add.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
        sC_own = cute.flat_divide(sC, (64, config.epi_n, config.epi_buffers))[None, None, None, 0, 0, group]
        turns = cute.ceil_div(total - first, step)
        mine, every = (group, 2) if config.pingpong else (0, 1)
        for turn in cutlass.range(mine, turns, every, unroll=1):
            m, n = tile_of(first + turn * step, tiles_m, tiles_n, config)
            m = m * config.cluster_m + row_in_cluster
            consume(pipe, turn, turns, (overwrite, add), acc, tCrA, tCrB, k_tiles, group, config)
            store(acc, sC_own, tma_c, gC[None, None, m, n], copies, group, tidx % 128, config)
        if tidx % 128 < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


@cute.jit
def set_up(layouts, dtype, config: cutlass.Constexpr):
    """Shared memory and the pipeline of a CTA: (pipe, sA, sB, sC, its row in the cluster)."""
    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    # A stage is free when every warp that reads it has said so, to all CTAs that write it: its own and its neighbours.
    arrivals = 4 * config.warpgroups * config.cluster_m
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, 1, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    row_in_cluster = 0
    if cutlass.const_expr(config.cluster_m > 1):
        cute.arch.cluster_arrive_relaxed()  # nobody signals a neighbour's barrier before it is set up
        cute.arch.cluster_wait()
        row_in_cluster = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    else:
        cute.arch.sync_threads()
    return pipe, sA, sB, sC, row_in_cluster


# %% [markdown]
# ## The launch
#
# As many clusters as there is room for, or tiles to compute. `use_pdl` asks for the overlap with the kernel *before*.


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
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    m, n, k = mnk
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    layouts, ctas = smem_layouts(dtype, config), config.cluster_m
    a_stage, b_stage, c_box = (cute.slice_(x, (None, None, 0)) for x in layouts)
    load, save = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    load_b = cpasync.CopyBulkTensorTileG2SMulticastOp() if ctas > 1 else load
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(load_b, mB, b_stage, (config.tile_n, config.tile_k), num_multicast=ctas)
    tma_c, mC = cpasync.make_tiled_tma_atom(save, mC, c_box, (64, config.epi_n))
    tiles = cute.ceil_div(cute.ceil_div(m, config.tile_m), ctas) * cute.ceil_div(n, config.tile_n)
    kernel(tma_a, mA, tma_b, mB, tma_c, mC, dtype, config).launch(
        grid=(cutlass.min(tiles, sms // ctas) * ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(ctas, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=config.pdl,
    )


# %%
def launch_arguments(dtype, pointers, mnk, strides, sms: int, stream: int) -> tuple:
    """Plain addresses and integers as the typed values that `gemm` takes."""
    gmem = cute.AddressSpace.gmem
    return (
        *(cute.runtime.make_ptr(dtype, pointer, gmem, assumed_align=16) for pointer in pointers),
        tuple(cutlass.Int32(x) for x in mnk),
        tuple(cutlass.Int64(x) for x in strides),
        cutlass.Int32(sms),
        cuda.CUstream(stream),
    )


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a") with made-up pointers and sizes: no GPU is needed. "": the GPU that is here."""
    made_up = launch_arguments(dtype, (16, 16, 16), (1, 1, 8), (8, 8, 8), 132, 0)
    target = f"--gpu-arch {arch} " if arch else ""
    config = config or config_for(arch)
    return cute.compile(gemm, *made_up, dtype, config, options=(target + options).strip() or None)


# %% [markdown]
# ## `matmul`
#
# What a user calls. It looks at everything that the kernel relies on before anything is launched, and says which
# argument is at fault, what it got and what it needs.

# %%
DTYPES = {torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}


def require(ok: bool, name: str, got: object, needed: str, error: type[Exception] = ValueError) -> None:
    """Raise `error` about the argument `name` unless `ok`."""
    if not ok:
        raise error(f"{name}: got {got}; needed {needed}")


def check_operand(name: str, x: torch.Tensor, dtype: torch.dtype | None) -> None:
    """A non-empty matrix of a dtype the tensor cores take, and of `dtype` if that is given."""
    require(isinstance(x, torch.Tensor), name, type(x).__name__, "a torch.Tensor", TypeError)
    require(x.layout == torch.strided, name, f"layout {x.layout}", "torch.strided: a dense matrix", TypeError)
    require(x.ndim == 2, name, f"{x.ndim} dimension(s)", "2")
    require(x.dtype in DTYPES, name, x.dtype, "torch.float16 or torch.bfloat16", TypeError)
    require(dtype in (None, x.dtype), name, x.dtype, f"{dtype}, the dtype of a", TypeError)
    require(min(x.shape) > 0, name, f"shape {tuple(x.shape)}", "no empty dimension")
    tracked = x.requires_grad and torch.is_grad_enabled()
    require(not tracked, name, "requires_grad=True", "torch.no_grad(): there is no backward")


def k_major_stride(name: str, x: torch.Tensor) -> int:
    """The row stride, in elements, of `x` (rows, K), which 16-byte pieces must be able to read."""
    (rows, k), (row, column) = x.shape, x.stride()
    require(column == 1 or k == 1, name, f"stride {column} along K", "1: K-major")
    row = row if rows > 1 else -(-k // 8) * 8  # a single row has no next one: any legal stride will do
    apart = f"K = {k}, rows {2 * row} bytes apart"
    require(row > 0 and row % 8 == 0, name, apart, "rows a multiple of 16 bytes apart")
    require(x.data_ptr() % 16 == 0, name, f"address {x.data_ptr():#x}", "a multiple of 16 bytes")
    return row


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two matrices with adjacent columns may share a byte."""
    size = x.element_size()
    (x0, y0), (x_row, y_row) = (x.data_ptr(), y.data_ptr()), (x.stride(0) * size, y.stride(0) * size)
    x_width, y_width = x.shape[1] * size, y.shape[1] * size
    if x0 + (x.shape[0] - 1) * x_row + x_width <= y0 or y0 + (y.shape[0] - 1) * y_row + y_width <= x0:
        return False
    if x_row != y_row or x_row < max(x_width, y_width):
        return True  # interleaved with different steps: not told apart
    gap = (y0 - x0) % x_row  # the same step: columns of one wider matrix, perhaps
    return gap < x_width or gap + y_width > x_row


def check_out(out: torch.Tensor, a: torch.Tensor, bt: torch.Tensor) -> None:
    """`out` can take the product of `a` (M, K) and `bt` (N, K)."""
    check_operand("out", out, a.dtype)
    (m, n), (row, column) = (a.shape[0], bt.shape[0]), out.stride()
    require(out.shape == (m, n), "out", f"shape {tuple(out.shape)}", f"({m}, {n})")
    require(column == 1 or n == 1, "out", f"stride {column} along N", "1: rows of adjacent elements")
    require(row >= n or m == 1, "out", f"row stride {row}", f"at least N = {n}: rows that do not overlap")
    require(out.device == a.device, "out", f"device {out.device}", f"{a.device}, where a is")
    for name, x in (("a", a), ("b", bt)):
        require(not overlap(out, x), "out", f"memory that overlaps {name}", "memory of its own")


def can_store(out: torch.Tensor) -> bool:
    """Whether TMA can write `out`: at an address and in rows that are multiples of 16 bytes."""
    return out.data_ptr() % 16 == 0 and (out.shape[0] == 1 or out.stride(0) % 8 == 0)


@cache
def compiled(dtype: torch.dtype, variant: str, capability: tuple[int, int]) -> Callable[..., None]:
    """The kernel for the present GPU: compiled at the first call that needs it, then kept.

    TVM-FFI (the package apache-tvm-ffi) makes it a function that takes plain integers and tuples of them, and costs
    little more to call than the launch itself. Without it each argument is a Python object made for the call.
    """
    return compile_for("", DTYPES[dtype], VARIANTS[variant], "--enable-tvm-ffi")


# %% [markdown]
# ### Checked once
#
# Those checks take longer than the GPU takes for a small product. But a program calls `matmul` with the same few kinds
# of operands again and again, and their kind (shapes, strides, dtypes, devices, alignment, whether a gradient is
# wanted) decides whether a call is legal. So the first call of a kind makes a *plan*, and later ones look it up. One
# thing must be looked at each time, for it depends on addresses: whether `out` shares memory with an operand.


# %%
class Plan(NamedTuple):
    """What the checks found out about calls of one kind: nothing is left but to launch."""

    launch: Callable[..., None]  # compiled for this dtype, variant, and GPU
    device: int  # of CUDA's
    sms: int  # that it has
    mnk: tuple[int, int, int]
    strides: tuple[int, int, int]  # between the rows of A, B and C, in elements
    spans: tuple[int, int, int]  # of a, b and out: from the first byte to the last one, in bytes
    direct: bool  # TMA can write to `out` itself; if not, it writes to padded rows, and they are copied


PLANS: dict[tuple, Plan] = {}
MAX_PLANS = 4096  # more kinds of calls than a program has, unless its shapes never repeat


def kind(x: object) -> object:
    """What the checks look at in an argument, but for where exactly it lies."""
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return type(x)
    return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16, x.requires_grad


def make_plan(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, variant: str) -> Plan:
    """Check everything, compile what is needed. Raises what `matmul` raises."""
    require(variant in VARIANTS, "variant", repr(variant), f"one of {', '.join(VARIANTS)}")
    check_operand("a", a, None)
    check_operand("b", b, a.dtype)
    (m, k), n, bt = a.shape, b.shape[1], b.T
    require(b.shape[0] == k, "b", f"shape {tuple(b.shape)}", f"({k}, N), for a is {tuple(a.shape)}")
    lda, ldb = k_major_stride("a", a), k_major_stride("b", bt)
    if out is not None:
        check_out(out, a, bt)
    require(a.is_cuda, "a", f"device {a.device}", "a CUDA device")
    require(b.device == a.device, "b", f"device {b.device}", f"{a.device}, where a is")
    capability = torch.cuda.get_device_capability(a.device)
    require(capability == (9, 0), "a", f"a GPU of compute capability {capability}", "(9, 0), for wgmma")

    c = a.new_empty(m, n) if out is None else out  # memory of torch's own is aligned alike each time
    row, direct = c.stride(0), can_store(c)
    ldc = row if direct and m > 1 else -(-n // 8) * 8
    with torch.cuda.device(a.device):
        launch = compiled(a.dtype, variant, capability)
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    spans = tuple(2 * elements for elements in ((m - 1) * lda + k, (n - 1) * ldb + k, (m - 1) * row + n))
    return Plan(launch, a.get_device(), sms, (m, n, k), (lda, ldb, ldc), spans, direct)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: the tile, who shares it, and how the launch overlaps the one before.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). It writes such rows too; to an `out` of another kind, or
    of an N that is no multiple of 8, the product is copied. Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    key = (variant, kind(a), kind(b), kind(out), torch.is_grad_enabled())
    plan = PLANS.get(key)
    if plan is None:
        plan = make_plan(a, b, out, variant)
        if len(PLANS) >= MAX_PLANS:
            PLANS.clear()
        PLANS[key] = plan
    if torch.cuda.current_device() != plan.device:
        with torch.cuda.device(plan.device):
            return matmul(a, b, out=out, variant=variant)

    (m, n, _), (a_span, b_span, out_span) = plan.mnk, plan.spans
    out = a.new_empty(m, n) if out is None else out
    pa, pb, po = a.data_ptr(), b.data_ptr(), out.data_ptr()
    if (pa < po + out_span and po < pa + a_span) or (pb < po + out_span and po < pb + b_span):
        check_out(out, a, b.T)  # from first to last byte they meet, but may be columns of one wider matrix
    c = out if plan.direct else a.new_empty(m, plan.strides[2])
    stream = torch.cuda.current_stream(plan.device).cuda_stream
    plan.launch(pa, pb, c.data_ptr(), plan.mnk, plan.strides, plan.sms, stream)
    return out if plan.direct else out.copy_(c[:, :n])


# %% [markdown] tags=["lab"]
# ## In the lab: the turns
#
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. Leave them
# out of your own code.
#
# First the arithmetic, in clocks of an SM. Nothing of it is measured; two figures are NVIDIA's, and four we put, from
# experience, to see what follows:
#
# * The tensor cores of an SM do 2048 multiply-adds a clock, so a tile takes **t** = tile_m x tile_n x K / 2048.
# * An epilogue takes **e**: shared memory moves 128 bytes a clock, and every byte of C goes in once (`stmatrix`) and
#   out once (TMA); and each box of a warpgroup is a chain of its own, wait, round, barrier, write, fence, barrier: we
#   put 200 clocks.
# * Cooperating, a tile takes **t + e**. In turns, the tensor cores need t for every tile, and a warpgroup is through
#   with its tile after t + e, while two of them work: the larger of **t** and **(t + e) / 2** counts. Only the last
#   epilogue of all is seen.
# * From the end of one kernel to the first wgmma of the next we put 2500 clocks, and with PDL 1000: the first tile must
#   still come from memory.
# * A CTA computes whole tiles: the largest share counts, rounded up.

# %% tags=["lab"]
from cookbook import draw

SMS, MACS, SMEM_BYTES = 132, 2048, 128  # of an H200; an SM's multiply-adds and bytes of shared memory in a clock
BOX, BETWEEN, BETWEEN_PDL = 200, 2500, 1000  # clocks, put


def multiplying(config: Config, k: int) -> float:
    """Clocks of the tensor cores for one tile."""
    return config.tile_m * config.tile_n * -(-k // config.tile_k) * config.tile_k / MACS


def epilogue(config: Config) -> float:
    """Clocks from a tile's last wgmma until its accumulators are free again."""
    boxes = config.tile_m // 64 * (config.tile_n // config.epi_n) // config.warpgroups  # of a warpgroup
    return 2 * config.tile_m * config.tile_n * 2 / SMEM_BYTES + boxes * BOX


def turns_of(config: Config, m: int, n: int) -> int:
    """Tiles of the CTA that has the most."""
    tiles = -(-m // (config.tile_m * config.cluster_m)) * -(-n // config.tile_n)
    return -(-tiles // min(tiles, SMS // config.cluster_m))


def clocks(config: Config, m: int, n: int, k: int) -> float:
    """Clocks of one product in a sequence of products, by the rules above."""
    t, e, turns = multiplying(config, k), epilogue(config), turns_of(config, m, n)
    work = turns * max(t, (t + e) / 2) + e if config.pingpong else turns * (t + e)
    return work + (BETWEEN_PDL if config.pdl else BETWEEN)


# %% [markdown] tags=["lab"]
# As many columns of C by both schedules, K = 512: two tiles of 128 x 256 by the pair, four of 128 x 128 in turn. In
# the upper lanes every epilogue is a hole in the lane of the tensor cores. In the lower ones there is none.

# %% tags=["lab"]


def schedule(config: Config, k: int, turns: int) -> dict[str, list[draw.Span]]:
    """The lanes of both warpgroups and of the tensor cores, computed from the rules above."""
    t, e, free, tensor = multiplying(config, k), epilogue(config), [0.0, 0.0], 0.0
    spans: dict[str, list[draw.Span]] = {"warpgroup 0": [], "warpgroup 1": [], "tensor cores": []}
    for turn in range(turns):
        groups = (turn % 2,) if config.pingpong else (0, 1)
        start = max(tensor, *(free[group] for group in groups))
        tensor = start + t
        spans["tensor cores"].append(draw.Span(start, tensor, f"tile {turn}", "multiply"))
        for group in groups:
            part = f"tile {turn}" if config.pingpong else f"half of {turn}"
            spans[f"warpgroup {group}"].append(draw.Span(start, tensor, part, "multiply"))
            spans[f"warpgroup {group}"].append(draw.Span(tensor, tensor + e, "", "round and store"))
            free[group] = tensor + e
    return spans


cooperating, alternating = schedule(VARIANTS["cooperative"], 512, 2), schedule(VARIANTS["128x128"], 512, 4)
lanes = {f"cooperative: {lane}": spans for lane, spans in cooperating.items()} | {"": []}
lanes |= {f"in turn: {lane}": spans for lane, spans in alternating.items()}
draw.lanes(lanes, "Both halves of a row, K = 512: computed, not measured", note="gaps: the lane has nothing to do")

# %% [markdown] tags=["lab"]
# ## In the lab: one queue, two eaters
#
# The stages do not know whose turn it is. Two turns of eight k-tiles each through six stages: the loads of turn 1 begin
# while turn 0 is being multiplied, and the tensor cores go from k-tile 7 to k-tile 8, which is another tile of C, as
# they go from 6 to 7.

# %% tags=["lab"]
draw.pipeline(6, 16, load_time=4, title="turn 0: k-tiles 0 to 7, turn 1: 8 to 15; six stages (chosen time units)")

# %% [markdown] tags=["lab"]
# ## In the lab: the trap of one bit
#
# An mbarrier, as far as its phases go: a bit. The producer fills slot after slot when the stage is empty; a consumer
# takes a slot when the stage is full, looks at what lies there, and gives the stage back. Who acts next is drawn at
# random. With the turns kept, a warpgroup begins only when the other one has waited for all its slots.

# %% tags=["lab"]
import random


class Mbarrier:
    """One bit: the parity of the phase that is under way."""

    def __init__(self) -> None:
        self.phase = 0

    def complete(self) -> None:
        """All that were expected have arrived: the next phase begins."""
        self.phase ^= 1

    def passes(self, parity: int) -> bool:
        """What `mbarrier.try_wait.parity` says: the phase of this parity is over, for another one is under way."""
        return self.phase != parity


class Rehearsal:
    """One CTA's queue without its arithmetic: a stage holds the number of the slot that was loaded into it."""

    def __init__(self, stages: int, k_tiles: int, turns: int, ordered: bool) -> None:
        self.stages, self.k_tiles, self.turns, self.ordered = stages, k_tiles, turns, ordered
        self.full, self.empty = ([Mbarrier() for _ in range(stages)] for _ in "fe")
        self.holds: list[int | None] = [None] * stages
        self.loaded = 0  # slots that the producer has filled
        self.place = [0, k_tiles]  # the next slot of each warpgroup
        self.wrong: list[tuple[int, int | None]] = []  # (slot, what lay there instead)

    def produce(self) -> bool:
        stage, phase = self.loaded % self.stages, self.loaded // self.stages & 1
        if self.loaded == self.turns * self.k_tiles or not self.empty[stage].passes(phase ^ 1):
            return False
        self.holds[stage] = self.loaded
        self.full[stage].complete()
        self.loaded += 1
        return True

    def consume(self, group: int) -> bool:
        slot = self.place[group]
        stage, phase, turn = slot % self.stages, slot // self.stages & 1, slot // self.k_tiles
        others_turn_over = self.place[1 - group] >= turn * self.k_tiles
        if turn >= self.turns or (self.ordered and not others_turn_over) or not self.full[stage].passes(phase):
            return False
        if self.holds[stage] != slot:
            self.wrong.append((slot, self.holds[stage]))
        self.empty[stage].complete()
        self.place[group] += 1 if (slot + 1) % self.k_tiles else 1 + self.k_tiles  # the next turn is the other's
        return True

    def run(self, seed: int) -> str:
        """Until nobody can act: how it went."""
        actors = [self.produce, lambda: self.consume(0), lambda: self.consume(1)]
        draw_lots = random.Random(seed)
        while any(actor() for actor in draw_lots.sample(actors, len(actors))):
            if self.wrong:
                return "wrong data"
        return "right" if min(self.place) >= self.turns * self.k_tiles else "stuck"


def rehearse(k_tiles: int, ordered: bool, runs: int = 300) -> dict[str, int]:
    """How `runs` rehearsals of eight turns through six stages end."""
    ends = [Rehearsal(6, k_tiles, 8, ordered).run(seed) for seed in range(runs)]
    return {end: ends.count(end) for end in ("right", "wrong data", "stuck")}


alone = Rehearsal(6, 8, 8, ordered=False)
alone.consume(1)
slot, found = alone.wrong[0]
print(f"warpgroup 1 goes first: it takes slot {slot} (stage {slot % 6}, phase {slot // 6}); there lies: {found}\n")
for k_tiles in (4, 8, 16):
    for ordered in (False, True):
        print(f"{k_tiles:2} k-tiles, {'in turn' if ordered else 'no order'}: {rehearse(k_tiles, ordered)}")
assert all(rehearse(k_tiles, ordered=True)["right"] == 300 for k_tiles in (1, 4, 8, 16))

# %% [markdown] tags=["lab"]
# Where a tile has fewer k-tiles than there are stages it never goes wrong: the first slot of turn 1 lies in the first
# round of the queue, and the bit can say so. A test with a small K would have passed.
#
# ## In the lab: a box of C
#
# The epilogue's `stmatrix` writes into a box of 64 x 64 in the 128-byte mode that TMA reads. One of a warp's:

# %% tags=["lab"]
from cookbook import access, banks
from cookbook.layouts import evaluate

layouts, copies = evaluate(smem_layouts, cutlass.BFloat16), evaluate(tiled_copies, cutlass.BFloat16)
stmatrix_of_warp_0 = access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)
counted = [banks.wavefronts(one.addresses, one.width) for one in stmatrix_of_warp_0]
print(f"{len(counted)} stmatrix a warp and box; wavefronts each: {[one.actual for one in counted]}, excess 0 is ideal")
draw.access_view(stmatrix_of_warp_0[0])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# The formulas above for K from 512 to 8192, and what they say each variant gains on `cooperative`:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.harness import records
from cookbook.harness.publishing import table

KS = (512, 1024, 2048, 8192)


def gains(times: dict[str, float]) -> dict[str, float]:
    """How many times as fast as `cooperative` each variant is."""
    return {variant: times["cooperative"] / time for variant, time in times.items()}


def predicted(m: int, n: int, k: int) -> dict[str, float]:
    """Clocks of each variant."""
    return {variant: clocks(config, m, n, k) for variant, config in VARIANTS.items()}


rows = []
for variant, config in VARIANTS.items():
    each = [(predicted(8192, 8192, k)[variant], gains(predicted(8192, 8192, k))[variant]) for k in KS]
    rows.append(
        [
            variant,
            str(turns_of(config, 8192, 8192)),
            f"{epilogue(config):.0f}",
            *(f"{c:.0f} ({g:.2f}x)" for c, g in each),
        ]
    )
Markdown(
    "Clocks of 8192 x 8192 x K, predicted for an H200:\n\n"
    + table(["variant", "tiles a CTA", "epilogue", *(f"K = {k}" for k in KS)], rows)
)

# %% [markdown] tags=["lab"]
# Three things that these formulas leave out. The tensor cores do not keep their full rate on a narrow tile, for shared
# memory has to deliver more operands for each multiplication. Memory has to take C in, and where K is short that is
# most of its traffic. And a GPU at its power limit lowers its clock, so that what saves energy gains time: the longer K
# is, the more that counts, and the wider tile needs less energy.
#
# ## Check
#
# Every level looks at every variant. (The numpy walk does not know in which order a kernel does things: that the turns
# are kept, the levels on a GPU show.)

# %% tags=["lab"]
from cookbook import tables
from cookbook.harness import checking

report = checking.check("hopper/pingpong_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])
for level in report.levels:
    of = " ".join(filter(None, (level.target, level.variant)))
    print(f"{level.level:10}{of:24}{level.status:13}{tables.describe(level)}")

# %% [markdown] tags=["lab"]
# ## Time
#
# All variants and their peers, interleaved in one run on one GPU; "ours" is the default, called without an argument.
# Launches follow one another without a gap, as in a model's forward pass: that is where PDL has something to hide.

# %% tags=["lab"]
from cookbook.harness.publishing import results_table

Markdown(results_table("hopper/pingpong_gemm"))

# %% [markdown] tags=["lab"]
# What each variant gains on `cooperative`, predicted beside measured:

# %% tags=["lab"]


def measured_gains() -> str:
    """Every current record's gains beside the predicted ones, or that there is no record."""
    timed = [r for r in records.select("hopper/pingpong_gemm", "timed") if not records.is_stale(r)]
    rows = []
    for r in timed:
        foretold = gains(predicted(*r["shape"]))
        found = gains({variant: r["peers"][variant]["median_ms"] for variant in VARIANTS})
        shape = " x ".join(map(str, r["shape"]))
        rows.append(
            [r["device"], f"{shape}, {r['dtype']}", *(f"{foretold[v]:.2f}x / {found[v]:.2f}x" for v in VARIANTS)]
        )
    return table(["device", "shape", *VARIANTS], rows) if rows else "*Not measured yet.*"


Markdown(measured_gains())

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An epilogue costs nothing if somebody else multiplies meanwhile. Two warpgroups with a tile each do that with two
# named barriers, and no other line of the kernel has become harder. The price is the tile: what one warpgroup can hold
# is half of what two can, and every multiplication needs more bytes. So the shorter K is, the more clearly the turns
# win, and a kernel for all shapes must choose.
#
# And the order of the turns is what makes the queue *correct*: a wait by parity is a promise about the next phase, not
# about any later one.
#
# Next: `hopper/majors_gemm`, for operands that do not lie along K.
#
# To use it: `cookbook copy hopper/pingpong_gemm my_gemm.py`, then `from my_gemm import matmul`.
