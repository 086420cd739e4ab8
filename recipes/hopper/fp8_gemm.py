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
#     title: "FP8 operands: row-wise scales, fast and promoted accumulation"
#     claim: >-
#       Half of the bytes and twice the rate of bfloat16, with the same kernel: the 128-byte swizzle does not change,
#       scale factors meet the accumulators in the epilogue, and promotion to float32 is one field of the configuration.
#     track: hopper
#     order: 110
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     operands: fp8
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma e4m3 -> scales -> stmatrix, deferred -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D.MULTICAST, QGMMA, STSM.16.M88.4, UTMASTG.2D, USETMAXREG, SYNCS]
# ---

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


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of a work tile
    tile_n: int = 256  # its columns
    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    stages: int = 4  # pairs of A and B tiles in flight or being read
    promote_every: int = 0  # k-tiles after which partial sums go to a second set of registers; 0: never (fast)
    swizzle_size: int = 8  # cluster tiles down C that share tiles of B before the rasterization moves across
    remapped: bool = True  # a cluster's first work tile goes by its GPC, not by its number
    epi_n: int = 64  # columns of an epilogue subtile: 64 rows of 128 bytes
    epi_stages: int = 2  # for each warpgroup: one is written while TMA reads the other
    registers: tuple[int, int] = (24, 240)  # of a producer's thread and of a consumer's

    def __post_init__(self):
        if self.subtiles % self.epi_stages:
            needed = f"a divisor of the {self.subtiles} subtiles: a work tile begins with the stage written longest ago"
            raise ValueError(f"epi_stages: got {self.epi_stages}; needed {needed}")

    @property
    def cluster_m(self) -> int:
        return 1

    @property
    def cluster_n(self) -> int:
        return 2  # side by side: both CTAs get each tile of A by multicast

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups, 64 rows each, and the producer's, of which one warp works

    @property
    def subtiles(self) -> int:
        """Epilogue subtiles of one warpgroup."""
        return self.tile_n // self.epi_n

    @property
    def first_k_tiles(self) -> int:
        """K-tiles under which the work tile before is stored. TMA fills those past K with zeros."""
        return 1 if self.promote_every else self.subtiles

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def scales(self) -> int:
        """Scale factors that one warpgroup needs for its half of a work tile."""
        return 64 + self.tile_n

    @property
    def smem_bytes(self) -> int:
        small = 16 * self.stages + 2 * self.scales * 4  # barriers and scale factors, padded to the tiles' alignment
        c = 2 * self.epi_stages * 64 * self.epi_n * 2
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + c


VARIANTS = {
    "fast": Config(),
    "promoted": Config(tile_n=192, epi_stages=3, promote_every=1),
    "promoted, every 2": Config(tile_n=192, epi_stages=3, promote_every=2),
}
DEFAULT = "fast"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %%
E4M3, E5M2 = cutlass.Float8E4M3FN, cutlass.Float8E5M2
ELEMENT, SCALE, BLOCK = E4M3, cutlass.Float32, 0


class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, STAGE): first the stages of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next(bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0)
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(E4M3, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
    )


def wgmma(columns: int, a=E4M3, b=E4M3) -> warpgroup.MmaF8Op:
    """64 rows of A times 32 x `columns` of B, both from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF8Op(a, b, cutlass.Float32, (64, columns, 32), smem, k_major, k_major)


def tiled_mma(dtype, config: Config = CONFIG, a=E4M3, b=E4M3) -> cute.TiledMma:
    """The wgmmas of the warpgroups that share a work tile."""
    return cute.make_tiled_mma(wgmma(config.tile_n, a, b), (2, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix of one warpgroup: a subtile of C, 64 x EPI_N


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """A subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, cute.make_tiled_mma(wgmma(config.epi_n), (1, 1, 1))))


# %%
class Schedule(NamedTuple):
    """Which work tiles a cluster computes: numbers `first`, `first + step`, ..., `count` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
    down: cutlass.Int32  # cluster tiles down C
    of_group: object  # divisor: the cluster tiles of a group
    of_last: object  # divisor: the height of the last group
    rank: cutlass.Int32  # of the CTA in its cluster


@cute.jit
def tile_of(i, schedule: Schedule, config: cutlass.Constexpr):
    """This CTA's i-th work tile: (m, n)."""
    group, inside = divmod(schedule.first + i * schedule.step, schedule.of_group)
    start = group * config.swizzle_size
    n, m = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > schedule.down:  # the last group is lower
        n, m = divmod(inside, schedule.of_last)
    return start + m, n * config.cluster_n + schedule.rank


@cute.jit
def state_at(k_tile, config: cutlass.Constexpr):
    """The consumer's pipeline state at a k-tile, counted over all work tiles of the CTA."""
    stage, phase = k_tile % config.stages, k_tile // config.stages & 1
    return pipeline.PipelineState(config.stages, k_tile, stage, phase)


# %%
def cluster_tiles(config: Config, m: int, n: int) -> int:
    """How many tiles of whole clusters cover C (m, n)."""
    return -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n))


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """How many clusters are launched: no more than the number of waves needs."""
    tiles = cluster_tiles(config, m, n)
    return -(-tiles // -(-tiles // (sms // config.cluster)))


def to_all(sharers: int) -> dict:
    """What a multicast copy is told: to write to all CTAs of a cluster of `sharers`, a bit for each."""
    return {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {}


class Load(NamedTuple):
    """One operand as the producer sees it."""

    tma: cute.CopyAtom
    source: cute.Tensor  # (TMA, m or n, k): global memory
    target: cute.Tensor  # (TMA, STAGE): shared memory
    sharers: int  # CTAs that get each tile by multicast


@cute.jit
def load_of(tma, mX, sX, tile, part, sharers: cutlass.Constexpr):
    """The parts of all tiles of an operand that this CTA fetches."""
    gX = cute.group_modes(cute.local_tile(mX, tile, (None, None)), 0, 2)  # ((rows, K), m or n, k)
    target, source = cpasync.tma_partition(tma, part, cute.make_layout(sharers), cute.group_modes(sX, 0, 2), gX)
    return Load(tma, source, target, sharers)


@cute.jit
def produce_tile(pipe, state, i, k_tiles, a: Load, b: Load, tile):
    """Fill a stage for each k-tile of the i-th work tile; every other one walks K from its end."""
    # Where there is no such tile, load the last one: TMA is slow to find nothing.
    m, n = (cutlass.min(t, cute.size(x.source, mode=[1]) - 1) for t, x in zip(tile, (a, b), strict=True))
    tAgA, tBgB = a.source[None, m, None], b.source[None, n, None]  # (TMA, k)
    for j in cutlass.range(k_tiles, unroll=1):
        k_tile = j + (i & 1) * (k_tiles - 1 - 2 * j)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        tAsA, tBsB = a.target[None, state.index], b.target[None, state.index]
        cute.copy(a.tma, tAgA[None, k_tile], tAsA, tma_bar_ptr=barrier, **to_all(a.sharers))
        cute.copy(b.tma, tBgB[None, k_tile], tBsB, tma_bar_ptr=barrier, **to_all(b.sharers))
        state.advance()
    return state


@cute.jit
def produce(pipe, schedule: Schedule, k_tiles, a: Load, b: Load, config: cutlass.Constexpr):
    """Keep the stages full, work tile after work tile."""
    tile = tuple(cute.arch.make_warp_uniform(x) for x in tile_of(0, schedule, config))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # the kernel before has ended: global memory may be touched
    for i in cutlass.range(schedule.count, unroll=1):
        state = produce_tile(pipe, state, i, k_tiles, a, b, tile)
        tile = tile_of(cutlass.min(i + 1, schedule.count - 1), schedule, config)
    if cutlass.const_expr(not config.remapped):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %%
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    overwrite: cute.TiledMma  # the accumulators
    add: cute.TiledMma  # to the accumulators
    acc: cute.Tensor  # (MMA, MMA_M, MMA_N): what wgmma accumulates in
    total: cute.Tensor  # likewise: what partial sums are promoted to; else `acc` itself
    tCrA: cute.Tensor  # (MMA, MMA_M, MMA_K, STAGE): descriptors
    tCrB: cute.Tensor  # (MMA, MMA_N, MMA_K, STAGE)
    scales: tuple  # of A (M), of B (N): global memory
    sS: cute.Tensor  # (ROWS + TILE_N): this warpgroup's scale factors of a work tile
    sC: cute.Tensor  # (64, EPI_N, STAGE) of this warpgroup
    tma_c: cute.CopyAtom
    gC: cute.Tensor  # (M, N, m, n): C as TMA coordinates
    r2s: cute.TiledCopy
    group: cutlass.Int32  # 0 or 1
    tidx: cutlass.Int32  # in the warpgroup

    @property
    def barrier(self) -> pipeline.NamedBarrier:
        return pipeline.NamedBarrier(barrier_id=1 + self.group, num_threads=128)


@cute.jit
def multiply_stage(me: Consumer, stage, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one commit group."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(me.tCrA, mode=[2])):  # each step is 32 elements, 32 bytes, along K
        mma = me.overwrite if first and k == 0 else me.add
        cute.gemm(mma, me.acc, me.tCrA[None, None, k, stage], me.tCrB[None, None, k, stage], me.acc)
    warpgroup.commit_group()


@cute.jit
def next_stage(me: Consumer, read, release):
    """Multiply the stage at `read`, and give back the one at `release`."""
    me.pipe.consumer_wait(read)
    multiply_stage(me, read.index)
    read.advance()
    warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
    me.pipe.consumer_release(release)
    release.advance()
    return read, release


# %%
@cute.jit
def fetch_scales(me: Consumer, tile, config: cutlass.Constexpr):
    """The scale factors of this warpgroup's part of a work tile, spread over its threads."""
    rS = cute.make_rmem_tensor(1 + -(-config.tile_n // 128), cutlass.Float32)
    (scale_a, scale_b), (m, n) = me.scales, tile
    first = m * config.tile_m + me.group * 64
    rS[0] = scale_a[cutlass.min(first + me.tidx % 64, cute.size(scale_a) - 1)]
    for i in cutlass.range_constexpr(1, cute.size(rS)):
        column = n * config.tile_n + 128 * (i - 1) + me.tidx
        rS[i] = scale_b[cutlass.min(column, cute.size(scale_b) - 1)]
    return rS


@cute.jit
def keep_scales(me: Consumer, rS, config: cutlass.Constexpr):
    """Into shared memory, when all threads are through with those of the work tile before."""
    me.barrier.arrive_and_wait()
    if me.tidx < 64:
        me.sS[me.tidx] = rS[0]
    for i in cutlass.range_constexpr(1, cute.size(rS)):
        column = 128 * (i - 1) + me.tidx
        if column < config.tile_n:
            me.sS[64 + column] = rS[i]


def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's part of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has it."""
    held = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(held), held)


@cute.jit
def scaled(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's part of subtile `i`, times its rows' and columns' scale factors, rounded."""
    lane = me.tidx % 32
    rR = cute.make_rmem_tensor(2, cutlass.Float32)
    for j in cutlass.range_constexpr(2):
        rR[j] = me.sS[me.tidx // 32 * 16 + lane // 4 + 8 * j]
    first = cute.assume(64 + i * config.epi_n + lane % 4 * 2, divby=2)
    sN = cute.make_tensor(me.sS.iterator + first, cute.make_layout((2, config.epi_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, cutlass.Float32)
    cute.autovec_copy(sN, rN)
    wide = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((0, 1, 0), 0, 0))
    deep = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((1, 0, 2), 0, 0))
    values = subtile_of(me.total, i, config).load()
    values = values * cute.make_tensor(rR.iterator, wide).load() * cute.make_tensor(rN.iterator, deep).load()
    return values.to(me.sC.element_type)


@cute.jit
def store_subtile(i: cutlass.Constexpr, rC, me: Consumer, tile, config: cutlass.Constexpr):
    """Subtile `i` of this warpgroup's part of a work tile. rC: a thread's part of it, rounded."""
    storing = cute.arch.make_warp_uniform(me.tidx // 32) == 0
    thr, stage = me.r2s.get_slice(me.tidx), i % config.epi_stages
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    me.barrier.arrive_and_wait()  # TMA has read what was in this stage
    cute.copy(me.r2s, thr.retile(rC), thr.partition_D(me.sC)[None, None, None, stage])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    me.barrier.arrive_and_wait()
    if storing:
        subtiles = cute.zipped_divide(me.gC[None, None, tile[0], tile[1]], (64, config.epi_n))
        whole, sC = cute.make_layout(1), cute.group_modes(me.sC, 0, 2)
        bSsC, bSgC = cpasync.tma_partition(me.tma_c, 0, whole, sC, subtiles)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(me.tma_c, bSsC[None, stage], bSgC[None, (me.group, i)])
            cute.arch.cp_async_bulk_commit_group()


# %%
@cute.jit
def begin_tile(me: Consumer, i, rC, schedule: Schedule, k_tiles, before, config: cutlass.Constexpr):
    """Multiply the first k-tiles of the i-th work tile, and meanwhile store the one before and fetch scale factors."""
    read, release = state_at(i * k_tiles, config), state_at(i * k_tiles, config)
    me.pipe.consumer_wait(read)
    multiply_stage(me, read.index, True)
    read.advance()
    tile = tile_of(i, schedule, config)
    rS = fetch_scales(me, tile, config)
    for j in cutlass.range_constexpr(config.subtiles):
        if i > 0:
            store_subtile(j, subtile_of(rC, j, config), me, before, config)
        if cutlass.const_expr(j + 1 < config.first_k_tiles):
            read, release = next_stage(me, read, release)
    keep_scales(me, rS, config)
    return read, release, tile


@cute.jit
def accumulate(me: Consumer, read, release, k_tiles, config: cutlass.Constexpr):
    """The rest of a work tile, all in the accumulators of wgmma."""
    for _ in cutlass.range(config.first_k_tiles, k_tiles, unroll=1):
        read, release = next_stage(me, read, release)
    warpgroup.wait_group(0)
    me.pipe.consumer_release(release)


@cute.jit
def accumulate_promoted(me: Consumer, read, release, k_tiles, config: cutlass.Constexpr):
    """The rest of a work tile; every so many k-tiles partial sums are added to the totals in float32."""
    warpgroup.wait_group(0)
    me.pipe.consumer_release(release)
    me.total.store(me.acc.load())
    every, left = config.promote_every, k_tiles - 1
    for _ in cutlass.range(left // every, unroll=1):
        read = promote(me, read, every)
    if cutlass.const_expr(every > 1):
        for _ in cutlass.range(left % every, unroll=1):
            read = promote(me, read, 1)


@cute.jit
def promote(me: Consumer, read, k_tiles: cutlass.Constexpr):
    """Multiply `k_tiles` k-tiles from zero, and add the partial sums to the totals."""
    release = read.clone()
    for j in cutlass.range_constexpr(k_tiles):
        me.pipe.consumer_wait(read)
        multiply_stage(me, read.index, j == 0)
        read.advance()
        if cutlass.const_expr(j > 0):
            warpgroup.wait_group(1)
            me.pipe.consumer_release(release)
            release.advance()
    warpgroup.wait_group(0)
    me.pipe.consumer_release(release)
    me.total.store(me.total.load() + me.acc.load())
    return read


@cute.jit
def multiply_and_store(me: Consumer, schedule: Schedule, k_tiles, config: cutlass.Constexpr):
    """A warpgroup's half of all work tiles."""
    rC = cute.make_rmem_tensor(config.tile_n // 2, me.sC.element_type)  # the work tile before, rounded
    tile = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(schedule.count, unroll=1):
        read, release, tile = begin_tile(me, i, rC, schedule, k_tiles, tile, config)
        if cutlass.const_expr(config.promote_every):
            accumulate_promoted(me, read, release, k_tiles, config)
        else:
            accumulate(me, read, release, k_tiles, config)
        me.barrier.arrive_and_wait()  # the scale factors are in shared memory
        for j in cutlass.range_constexpr(config.subtiles):
            subtile_of(rC, j, config).store(scaled(me, j, config))
    for j in cutlass.range_constexpr(config.subtiles):
        store_subtile(j, subtile_of(rC, j, config), me, tile, config)


# %%
class Shared(NamedTuple):
    """A CTA's shared memory."""

    pipe: pipeline.PipelineTmaAsync
    sA: cute.Tensor  # (M, K, STAGE)
    sB: cute.Tensor  # (N, K, STAGE)
    sC: cute.Tensor  # (64, EPI_N, STAGE): of both warpgroups
    sS: cute.Tensor  # (ROWS + TILE_N, GROUP): scale factors


class Operands(NamedTuple):
    """What a kernel takes: tensors as TMA coordinates, with their copies, and scale factors."""

    tma_a: cute.CopyAtom
    mA: cute.Tensor  # (M, K)
    tma_b: cute.CopyAtom
    mB: cute.Tensor  # (N, K)
    tma_c: cute.CopyAtom
    mC: cute.Tensor  # (M, N)
    scale_a: cute.Tensor  # (M): stride 0 for one factor of all
    scale_b: cute.Tensor  # (N)


@cute.jit
def set_up(dtypes: cutlass.Constexpr, config: cutlass.Constexpr):
    """Shared memory and the pipeline of a CTA."""
    a, b, dtype = dtypes
    layouts, smem = smem_layouts(dtype, config), cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    sS = smem.allocate_tensor(cutlass.Float32, cute.make_layout((config.scales, 2)), 16)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(a, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(b, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    # A stage is free when every warp that reads it has said so, to all CTAs that write it: its own and its neighbours.
    arrivals = 4 * 2 * config.cluster
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # nobody signals a neighbour's barrier before it is set up
    cute.arch.cluster_wait()
    return Shared(pipe, sA, sB, sC, sS)


@cute.kernel
def kernel(
    op: Operands, remap: cute.Pointer, raster: tuple, dtypes: cutlass.Constexpr, config: cutlass.Constexpr
):
    """A cluster computes the cluster tiles `first`, `first + step`, ... of C."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster, ctas // config.cluster
    if cutlass.const_expr(config.remapped):  # the answer takes longer than all that is set up meanwhile
        first = cute.make_tensor(remap, cute.make_layout(step))[first]
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for tma in (op.tma_a, op.tma_b, op.tma_c):
            cpasync.prefetch_descriptor(tma)
    shared = set_up(dtypes, config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    tiles, down, by_step, of_group, of_last = raster
    first = cute.arch.make_warp_uniform(first)
    schedule = Schedule(first, step, (tiles + step - 1 - first) // by_step, down, of_group, of_last, rank)
    k_tiles = cutlass.max(cute.ceil_div(cute.size(op.mA, mode=[1]), config.tile_k), config.first_k_tiles)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.registers[0])
        if warp_idx == 8:
            tile_a, tile_b = (config.tile_m, config.tile_k), (config.tile_n, config.tile_k)
            a = load_of(op.tma_a, op.mA, shared.sA, tile_a, rank, config.cluster_n)
            b = load_of(op.tma_b, op.mB, shared.sB, tile_b, cutlass.Int32(0), config.cluster_m)
            produce(shared.pipe, schedule, k_tiles, a, b, config)
    else:
        cute.arch.setmaxregister_increase(config.registers[1])
        consume(group, tidx % 128, op, shared, schedule, k_tiles, dtypes, config)


@cute.jit
def consume(group, tidx, op: Operands, shared: Shared, schedule: Schedule, k_tiles, dtypes, config):
    """A warpgroup's share of all work tiles."""
    a, b, dtype = dtypes
    overwrite, add = tiled_mma(dtype, config, a, b), tiled_mma(dtype, config, a, b)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    gC = cute.local_tile(op.mC, (config.tile_m, config.tile_n), (None, None))  # (M, N, m, n)
    thr = add.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    shape = thr.partition_shape_C((config.tile_m, config.tile_n))
    acc = cute.make_rmem_tensor(shape, cutlass.Float32)
    me = Consumer(
        pipe=shared.pipe,
        overwrite=overwrite,
        add=add,
        acc=acc,
        total=cute.make_rmem_tensor(shape, cutlass.Float32) if config.promote_every else acc,
        tCrA=add.make_fragment_A(thr.partition_A(shared.sA)),
        tCrB=add.make_fragment_B(thr.partition_B(shared.sB)),
        scales=(op.scale_a, op.scale_b),
        sS=shared.sS[None, group],
        sC=cute.flat_divide(shared.sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group],
        tma_c=op.tma_c,
        gC=gC,
        r2s=tiled_copies(dtype, config).r2s_c,
        group=group,
        tidx=tidx,
    )
    cute.arch.griddepcontrol_wait()  # what this warpgroup reads and stores, the kernel before may still write
    multiply_and_store(me, schedule, k_tiles, config)
    if tidx < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %%
@cute.jit
def gemm(
    pointers: tuple[cute.Pointer, cute.Pointer, cute.Pointer, cute.Pointer, cute.Pointer],
    remap: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64, cutlass.Int64, cutlass.Int64],
    clusters: cutlass.Int32,
    stream: cuda.CUstream,
    dtypes: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = scale_a (M, 1) * A (M, K) times B (N, K) transposed * scale_b (1, N).

    pointers: A, B, C, scale_a, scale_b; strides: row strides of A, B, C, and those of the scale factors.
    """
    pA, pB, pC, pSA, pSB = pointers
    m, n, k = mnk
    lda, ldb, ldc = (cute.assume(stride, divby=by) for stride, by in zip(strides[:3], (16, 16, 8), strict=True))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    layouts, ctas = smem_layouts(dtypes[2], config), config.cluster
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    tma_a, mA = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    tma_b, mB = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    tma_c, mC = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n))
    sa = cute.make_tensor(pSA, cute.make_layout((m,), stride=(strides[3],)))
    sb = cute.make_tensor(pSB, cute.make_layout((n,), stride=(strides[4],)))
    op = Operands(tma_a, mA, tma_b, mB, tma_c, mC, sa, sb)
    kernel(op, remap, raster_of(m, n, clusters, config), dtypes, config).launch(
        grid=(clusters * ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(ctas, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=True,
    )


def raster_of(m, n, clusters, config: Config) -> tuple:
    """How the cluster tiles of C (m, n) are numbered: (how many, how many down C, and divisors: `clusters`, the tiles
    of a group, the height of the last group). See `tile_of`.
    """
    down, across = cute.ceil_div(m, config.tile_m * config.cluster_m), cute.ceil_div(n, config.tile_n * config.cluster_n)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int):
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers)


# %%
def launch_arguments(dtypes, pointers, remap: int, mnk, strides, clusters: int, stream: int) -> tuple:
    """Plain addresses and integers as the typed values that `gemm` takes."""
    gmem, f32 = cute.AddressSpace.gmem, cutlass.Float32
    types = zip((*dtypes, f32, f32), pointers, (16, 16, 16, 4, 4), strict=True)
    return (
        tuple(cute.runtime.make_ptr(of, pointer, gmem, assumed_align=align) for of, pointer, align in types),
        cute.runtime.make_ptr(cutlass.Int32, remap, gmem, assumed_align=4),
        tuple(cutlass.Int32(x) for x in mnk),
        tuple(cutlass.Int64(x) for x in strides),
        cutlass.Int32(clusters),
        cuda.CUstream(stream),
    )


def compile_for(arch: str, dtype, config: Config | None = None, options: str = "", a=E4M3, b=E4M3):
    """Compile for `arch` ("sm_90a") with dummy pointers and sizes: no GPU is needed. "": the GPU that is here."""
    dtypes = (a, b, dtype)
    dummy = launch_arguments(dtypes, (16,) * 5, 16, (1, 1, 16), (16, 16, 8, 1, 1), 66, 0)
    target = f"--gpu-arch {arch} " if arch else ""
    config = config or config_for(arch)
    return cute.compile(gemm, *dummy, dtypes, config, options=(target + options).strip() or None)
