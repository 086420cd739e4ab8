# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: INT8 operands with exact int32 sums
#     claim: >-
#       An INT8 GEMM is the FP8 GEMM with another instruction. Its sums are exact, its accumulators are stored as they
#       are, and C has twice the bytes: half of them go out under the next main loop.
#     track: hopper
#     order: 105
#     builds_on: hopper/fp8_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     operands: int8
#     baselines: [at once]
#     dtypes: [int32]
#     path: tma, multicast -> swizzled shared memory -> wgmma s8 -> registers -> global, under the next main loop
#     instructions:
#       sm_90a: [UTMALDG.2D, IGMMA.S8.S8.SAT, STG.64, USETMAXREG, SYNCS]
#     bench_shapes: [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 2048]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, register fragments of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-register-fragment"}
#       - {title: "SmoothQuant: W8A8 for large language models", url: "https://arxiv.org/abs/2211.10438"}
# ---

# %% [markdown]
# # INT8 operands with exact int32 sums
#
# **Claim.** `C = A B` of 8-bit integers, exact to the last bit, with an instruction as fast as that of FP8.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/int8_gemm", (8192, 8192, 8192), dtype="int32")

# %% [markdown] tags=["lab"]
# What int32 costs: the time in which an H200 writes C, as a part of the time in which its tensor cores multiply. M and
# N are in both and cancel; only K counts.

# %% tags=["lab"]
SMS, RATE, CLOCK, BANDWIDTH = 132, 4096, 1.5e9, 4.26e12  # of an H200: multiply-adds, Hz, bytes a second


def share(k: int, element_bytes: int) -> float:
    """Percent of the time of multiplying that it takes to write C, in elements of `element_bytes`."""
    return 100 * element_bytes / BANDWIDTH / (k / (SMS * RATE * CLOCK))


bars = [
    draw.Bar(f"K = {k}", f"C is {name}", share(k, size), note=f"{share(k, size):.0f}%")
    for k in (2048, 4096, 8192)
    for name, size in (("int32", 4), ("bfloat16", 2))
]
title = "Writing C, on an H200: computed, not measured"
draw.bar_chart(bars, "% of the time of multiplying", title, "C is int32", False, "shorter is better")

# %% [markdown]
# What changes from [the FP8 GEMM](fp8_gemm.ipynb), and what does not:
#
# | | FP8 | INT8 |
# |---|---|---|
# | instruction (PTX) | `wgmma....f32.e4m3.e4m3` | `wgmma....satfinite.s32.s8.s8` |
# | multiply-adds of an SM in a clock | 4096 | 4096 |
# | operands | K-major only | K-major only |
# | 128-byte swizzle, in bytes and in elements of 8 bits | `S<3,4,3>` | `S<3,4,3>` |
# | a sum | float32 with 13 bits of a fraction | int32, exact |
# | scale factors | in the epilogue | none: the caller's |
# | C | bfloat16, 2 bytes an element | int32, 4 bytes an element |
#
# K-major only, because the PTX ISA gives `wgmma.mma_async` its transpose bits (`imm-trans-a`, `imm-trans-b`) for 16-bit
# types alone. The swizzle permutes chunks of 16 bytes and does not ask what is in them.
#
# **Two numbers first**, for 8192 x 8192 x 8192. Operations: as in FP8, 0.7 ms at 1.5 GHz, near the power limit. Bytes:
# A, B and C once are 403 MB, of which C is two thirds, 0.09 ms. At K = 4096 C alone would add a fifth to the time of
# multiplying, if nothing else went on. So it should go out while the tensor cores multiply.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, IntegerGemm, compile_host
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# A work tile of 128 x 256 gives each of two consumer warpgroups 64 x 256 int32 accumulators: 128 registers a thread.
# FP8 rounds all of them to 64 registers, and stores those later. int32 does not shrink, and 128 more registers are more
# than a thread has (240). So *half* of a tile is kept: 4 of 8 parts of 32 columns.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of a work tile: 64 for each consumer warpgroup
    tile_n: int = 256  # its columns
    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_n: int = 2  # CTAs side by side: both get each tile of A by multicast
    part_n: int = 32  # columns of C that a warpgroup stores under one k-tile
    overlapped: int = 4  # parts of a work tile that are stored during the next one's main loop
    swizzle_size: int = 8  # cluster tiles down C that share tiles of B before the rasterization moves across
    registers: tuple[int, int] = (24, 240)  # of a producer's thread and of a consumer's

    @property
    def cluster(self) -> int:
        return self.cluster_n

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def at_once(self) -> int:
        return self.tile_n // self.part_n - self.overlapped  # parts that are stored before the next main loop

    @property
    def first_k_tiles(self) -> int:
        return max(1, self.overlapped)  # each overlapped part needs one; TMA fills those past K with zeros

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes  # the barriers, padded to the tiles' alignment


VARIANTS = {"overlapped": Config(), "at once": Config(overlapped=0)}
DEFAULT = "overlapped"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The layouts and the MMA
#
# Tiles of A and B are those of the FP8 GEMM, byte for byte. C has no layout in shared memory, for no instruction would
# write it there well: `stmatrix` moves 16-bit elements. Stores of 8 bytes, a thread's two neighbours of a row, would
# meet in banks two by two under a 128-byte swizzle. So the accumulators go from registers to global memory: a warp's
# store covers 8 rows of 32 bytes, which are whole sectors.


# %% tags=["folded"]
ELEMENT = cutlass.Int8  # of A and B


class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The K-major SW128 atom, 8 rows of 128 bytes, tiled: first down the rows, then along K, then over the stages."""
    c, atom = config, cute.make_layout((8, 128), stride=(128, 1))
    atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, atom)
    return SmemLayouts(
        a=cute.tile_to_shape(atom, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(atom, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
    )


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory: there are none."""


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """No copy: TMA fills the stages, wgmma reads them, and C goes out of registers."""
    return TiledCopies()


# %%
def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """wgmma m64nNk32 of two warpgroups: s8 times s8, both K-major in shared memory, added in s32."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    op = warpgroup.MmaI8Op(ELEMENT, ELEMENT, cutlass.Int32, (64, config.tile_n, 32), smem, k_major, k_major)
    return cute.make_tiled_mma(op, (2, 1, 1))


# %% [markdown]
# ## The tile scheduler and the producer
#
# As in [the FP8 GEMM](fp8_gemm.ipynb#the-tile-scheduler): persistent clusters of two CTAs, each tile of A multicast to
# both, and every second work tile loaded from the end of K.


# %% tags=["folded"]
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


class Load(NamedTuple):
    """One operand as the producer sees it."""

    tma: cute.CopyAtom
    source: cute.Tensor  # (TMA, m or n, k): global memory
    target: cute.Tensor  # (TMA, STAGE): shared memory
    multicast: dict  # what a copy to several CTAs of the cluster is told: a bit for each


@cute.jit
def load_of(tma, mX, sX, tile, part, sharers: cutlass.Constexpr):
    """The parts of all tiles of an operand that this CTA fetches; `sharers` CTAs of the cluster get each tile."""
    gX = cute.group_modes(cute.local_tile(mX, tile, (None, None)), 0, 2)  # ((rows, K), m or n, k)
    target, source = cpasync.tma_partition(tma, part, cute.make_layout(sharers), cute.group_modes(sX, 0, 2), gX)
    return Load(tma, source, target, {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {})


@cute.jit
def produce_tile(pipe, state, i, k_tiles, a: Load, b: Load, tile):
    """Fill a stage for each k-tile of the i-th work tile; every other one from the last to the first."""
    # Where there is no such tile, load the last one: TMA is slow to find nothing.
    m, n = (cutlass.min(t, cute.size(x.source, mode=[1]) - 1) for t, x in zip(tile, (a, b), strict=True))
    tAgA, tBgB = a.source[None, m, None], b.source[None, n, None]  # (TMA, k)
    for j in cutlass.range(k_tiles, unroll=1):
        k_tile = j + (i & 1) * (k_tiles - 1 - 2 * j)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        tAsA, tBsB = a.target[None, state.index], b.target[None, state.index]
        cute.copy(a.tma, tAgA[None, k_tile], tAsA, tma_bar_ptr=barrier, **a.multicast)
        cute.copy(b.tma, tBgB[None, k_tile], tBsB, tma_bar_ptr=barrier, **b.multicast)
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
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers, and an epilogue of plain stores
#
# A thread holds, of every 8 columns, two neighbours in each of two rows (PTX ISA, fragment D). It stores such a pair as
# 8 bytes where N and the rows of `out` allow, else one by one. `values` are accumulators, or `kept`: a copy of the last
# `overlapped` parts, so that the next work tile may overwrite the accumulators at once. One part goes out under each of
# its first k-tiles: a store is issued and forgotten, while `wgmma` runs on.


# %%
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    overwrite: cute.TiledMma  # the accumulators
    add: cute.TiledMma  # to the accumulators
    acc: cute.Tensor  # (MMA, 1, 1), int32
    tCrA: cute.Tensor  # (MMA, MMA_M, MMA_K, STAGE): descriptors
    tCrB: cute.Tensor  # (MMA, MMA_N, MMA_K, STAGE)
    gC: cute.Tensor  # (MMA, 1, 1, m, n): this thread's elements of every tile of C
    cC: cute.Tensor  # likewise: their coordinates
    limit: tuple  # (M, N)


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


def part_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's values of the `i`th part in `values`: (pair, row, 8 columns)."""
    layout = cute.make_layout((2, 2, config.part_n // 8))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


@cute.jit
def store_part(me: Consumer, i: cutlass.Constexpr, values, tile, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """Store part `i` of a thread's share of a work tile (m, n), where it lies in C. values: see `part_of`."""
    for j in cutlass.range_constexpr(config.part_n // 8):
        for row in cutlass.range_constexpr(2):
            pair = ((None, row, i * (config.part_n // 8) + j), 0, 0, tile[0], tile[1])
            gPair, cPair, rPair = me.gC[pair], me.cC[pair], values[None, row, j]
            if cutlass.const_expr(vec == 2):
                if cute.elem_less(cPair[0], me.limit):  # N is even: both lie in C, or none
                    cute.autovec_copy(rPair, gPair)
            else:
                for v in cutlass.range_constexpr(2):
                    if cute.elem_less(cPair[v], me.limit):
                        gPair[v] = rPair[v]


@cute.jit
def multiply_and_store(me: Consumer, schedule: Schedule, k_tiles, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """A warpgroup's half of all work tiles."""
    kept = cute.make_rmem_tensor(config.first_k_tiles * config.part_n // 2, cutlass.Int32)  # of the work tile before
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(schedule.count, unroll=1):
        read, release = state_at(i * k_tiles, config), state_at(i * k_tiles, config)
        me.pipe.consumer_wait(read)
        multiply_stage(me, read.index, True)
        read.advance()
        tile = tile_of(i, schedule, config)  # computed while the first commit group runs
        for j in cutlass.range_constexpr(config.first_k_tiles):
            if cutlass.const_expr(config.overlapped):
                if i > 0:
                    store_part(me, config.at_once + j, part_of(kept, j, config), before, config, vec)
            if cutlass.const_expr(j + 1 < config.first_k_tiles):
                read, release = next_stage(me, read, release)
        for _ in cutlass.range(config.first_k_tiles, k_tiles, unroll=1):
            read, release = next_stage(me, read, release)
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        for j in cutlass.range_constexpr(config.at_once):
            store_part(me, j, part_of(me.acc, j, config), tile, config, vec)
        for j in cutlass.range_constexpr(config.overlapped):
            part_of(kept, j, config).store(part_of(me.acc, config.at_once + j, config).load())
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_part(me, config.at_once + j, part_of(kept, j, config), before, config, vec)


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume. C needs no TMA descriptor, and the epilogue no barrier.


# %% tags=["folded"]
class Operands(NamedTuple):
    """What a kernel takes: A and B as TMA coordinates, with their copies, and C."""

    tma_a: cute.CopyAtom
    mA: cute.Tensor  # (M, K)
    tma_b: cute.CopyAtom
    mB: cute.Tensor  # (N, K)
    mC: cute.Tensor  # (M, N)


@cute.jit
def set_up(config: cutlass.Constexpr):
    """The pipeline of a CTA, and its shared memory: sA, sB."""
    layouts, smem = smem_layouts(cutlass.Int32, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(ELEMENT, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(ELEMENT, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    # A stage is free when every warp that reads it has said so, to all CTAs that write it: its own and its neighbour.
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * 2 * config.cluster),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, 1, config.cluster_n, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # no CTA signals its neighbour's barrier before that is set up
    cute.arch.cluster_wait()
    return pipe, (sA, sB)


@cute.kernel
def kernel(op: Operands, raster: tuple, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """A cluster computes the cluster tiles `first`, `first + step`, ... of C."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster, ctas // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for tma in (op.tma_a, op.tma_b):
            cpasync.prefetch_descriptor(tma)
    pipe, smem = set_up(config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    tiles, down, by_step, of_group, of_last = raster
    schedule = Schedule(first, step, (tiles + step - 1 - first) // by_step, down, of_group, of_last, rank)
    k_tiles = cutlass.max(cute.ceil_div(cute.size(op.mA, mode=[1]), config.tile_k), config.first_k_tiles)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.registers[0])
        if warp_idx == 8:
            a = load_of(op.tma_a, op.mA, smem[0], (config.tile_m, config.tile_k), rank, config.cluster_n)
            b = load_of(op.tma_b, op.mB, smem[1], (config.tile_n, config.tile_k), cutlass.Int32(0), 1)
            produce(pipe, schedule, k_tiles, a, b, config)
    else:
        cute.arch.setmaxregister_increase(config.registers[1])
        consume((group, tidx % 128), op, pipe, smem, schedule, k_tiles, config, vec)


@cute.jit
def consume(who, op: Operands, pipe, smem, schedule: Schedule, k_tiles, config, vec):
    """A warpgroup's share of all work tiles. who: the warpgroup (0 or 1), and the thread in it."""
    (group, tidx), (sA, sB), tile = who, smem, (config.tile_m, config.tile_n)
    overwrite, add = tiled_mma(cutlass.Int32, config), tiled_mma(cutlass.Int32, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    thr, mine = add.get_slice(group * 128), add.get_slice(group * 128 + tidx)  # descriptors are a warpgroup's
    tCrA, tCrB = add.make_fragment_A(thr.partition_A(sA)), add.make_fragment_B(thr.partition_B(sB))
    acc = cute.make_rmem_tensor(mine.partition_shape_C(tile), cutlass.Int32)
    gC = mine.partition_C(cute.local_tile(op.mC, tile, (None, None)))
    cC = mine.partition_C(cute.local_tile(cute.make_identity_tensor(op.mC.shape), tile, (None, None)))
    cute.arch.griddepcontrol_wait()  # what this warpgroup stores, the kernel before may still read or write
    me = Consumer(pipe, overwrite, add, acc, tCrA, tCrB, gC, cC, op.mC.shape)
    multiply_and_store(me, schedule, k_tiles, config, vec)


class Launch(NamedTuple):
    """What a launch is told beside the addresses of its tensors."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    clusters: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    launch: Launch,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed."""
    (m, n, k), strides, clusters = launch
    lda, ldb, ldc = (cute.assume(stride, divby=by) for stride, by in zip(strides, (16, 16, vec), strict=True))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(cutlass.Int32, config))
    multicast, load = cpasync.CopyBulkTensorTileG2SMulticastOp(), cpasync.CopyBulkTensorTileG2SOp()
    tile_a, tile_b = (config.tile_m, config.tile_k), (config.tile_n, config.tile_k)
    a = cpasync.make_tiled_tma_atom(multicast, mA, a_stage, tile_a, num_multicast=config.cluster_n)
    b = cpasync.make_tiled_tma_atom(load, mB, b_stage, tile_b)
    launcher = kernel(Operands(*a, *b, mC), raster_of(m, n, clusters, config), config, vec)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * config.cluster, config.threads, config.cluster))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """How many clusters are launched: no more than the number of waves needs."""
    tiles = -(-m // config.tile_m) * -(-n // (config.tile_n * config.cluster_n))
    return -(-tiles // -(-tiles // (sms // config.cluster)))


def raster_of(m, n, clusters, config: Config) -> tuple:
    """How the cluster tiles of C (m, n) are numbered: (how many, how many down C, and divisors: `clusters`, the tiles
    of a group, the height of the last group). See `tile_of`.
    """
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.tile_n * config.cluster_n)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers)


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 2, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. vec: elements of C per store."""
    pointers = (ELEMENT, 16), (ELEMENT, 16), (dtype, 4 * vec)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`
#
# `IntegerGemm`, which comes with every recipe's host side, checks a call once for each kind and keeps a *plan*. It
# refuses a K for which [a sum might not fit](#every-sum-is-exact).


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    config, (m, n, _) = VARIANTS[call.variant], call.mnk
    vec = 2 if call.vec >= 4 else 1  # `call.vec` counts 2 bytes of an address, and elements of N and of a row
    return (config, vec), (Launch(call.mnk, call.strides, clusters(config, m, n, call.sms)),)


GEMM = IntegerGemm(compile_for, prepare, ((9, 0),), "wgmma", VARIANTS, takes={torch.int8: torch.int32})


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` of 8-bit integers on the tensor cores, exact in int32, on the current stream of `a`'s device.

    a: (M, K), int8, K-major (stride 1 along K).
    b: (K, N), int8, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), int32, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS.

    The addresses of a and b and their row strides are multiples of 16 bytes, as TMA needs them. Any M, N >= 1 and K
    from 1 to 131071 within that, on a GPU of compute capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul((a, b), out, variant)


# %% [markdown] tags=["lab"]
# ## Every sum is exact
#
# The products of two int8 lie between the two ends below. If K of the largest fit int32, then no partial sum leaves it,
# in whatever order the tensor cores add. So nothing is rounded, and the result is the same to the bit each time.

# %% tags=["lab"]
import numpy as np

from cookbook.recipe.entry import EXACT_K

every = np.arange(-128, 128)
products = np.multiply.outer(every, every)
low, high, limits = int(products.min()), int(products.max()), np.iinfo(np.int32)
assert EXACT_K * low >= limits.min and EXACT_K * high <= limits.max < (EXACT_K + 1) * high
f"products: {low} to {high}; sums at K = {EXACT_K}: {EXACT_K * low} to {EXACT_K * high}; int32: to {limits.max}"

# %% [markdown] tags=["lab"]
# Beyond that K, `.satfinite` would decide: CuTe DSL asks for it (PTX: a sum that int32 cannot hold becomes its nearest
# limit; without it, it wraps; `torch._int_mm` saturates, too). What saturated depends on the order of the sums, so
# `matmul` refuses such a K instead.
#
# Float32 would not do: it holds every integer up to 2**24 only, and 1024 products can reach that.
#
# ## How W8A8 calls it
#
# A model with 8-bit weights and activations (W8A8) has a scale factor for each row of `x`, found at run time, and for
# each output of the weight. Both come out of the sum over K, so they meet the finished int32:


# %% tags=["lab", "open"]
def w8a8_linear(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """`x @ (weight * weight_scale).T` with x quantized to int8 by rows. x: (M, K) bfloat16; weight: (N, K) int8;
    weight_scale: (N,) float32. K is a multiple of 16."""
    scale = x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / 127
    quantized = (x / scale).round().clamp(-127, 127).to(torch.int8)
    return (matmul(quantized, weight.T) * (scale * weight_scale)).to(x.dtype)


# %% [markdown] tags=["lab"]
# The last line reads C and writes half as many bytes; under `torch.compile` it is one kernel. [The FP8
# GEMM](fp8_gemm.ipynb#scale-factors) does that in its epilogue, and saves the pass; then C is no longer exact.
#
# ## Check

# %% tags=["lab"]
lab.check_cells("hopper/int8_gemm", shapes=[(200, 333, 64)])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch._int_mm`: run and timed where there is a GPU for it, else as
# recorded. Then both variants, all in one run. A multiply-add counts as two operations, as in TFLOP/s.

# %% tags=["lab", "open"]
lab.compare("hopper/int8_gemm", matmul, (8192, 8192, 8192), dtype="int32")

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import results_table

Markdown(results_table("hopper/int8_gemm"))

# %% [markdown] tags=["lab"]
# "Ours" and `overlapped` are one kernel, timed twice: their difference is the spread. `at once` is hardly slower, for a
# store is only *issued* there. The memory writes C while the next work tile is multiplied, in both variants. What
# overlapping saves is the time in which both warpgroups issue stores and no `wgmma` runs. That is the same for each
# tile, so it counts for less where K is long.
#
# Ping-pong hides this time too, and was tried with work tiles of 128 x 128 and 128 x 192. Smaller tiles load more
# operand bytes, and were no faster at any of these sizes.
#
# ## Conclusion
#
# Exact sums cost nothing in the tensor cores. They cost bytes: int32 cannot be rounded, so it takes twice the registers
# to keep a tile and twice the traffic to store it. Plain stores of whole sectors are enough to hide that traffic.
#
# Next: [an epilogue that you write yourself](fused_epilogue_gemm.ipynb).
#
# To use it: `cookbook copy hopper/int8_gemm my_gemm.py`, then `from my_gemm import matmul`.
