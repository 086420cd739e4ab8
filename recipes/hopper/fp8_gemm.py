# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: FP8 operands with row-wise scales
#     claim: >-
#       An 8-bit GEMM has the same tiles in bytes and the same swizzle as a 16-bit one. What is new are scale factors in
#       the epilogue, and accumulators of wgmma that keep 13 bits of a fraction unless they are promoted.
#     track: hopper
#     order: 100
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     operands: fp8
#     measured_by: foundations/gpc_remapping
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma e4m3 -> scale factors -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, QGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     bench_shapes: [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 2048]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
# ---

# %% [markdown]
# # FP8 operands with row-wise scales
#
# **Claim.** `C = (A * scale_a) @ (B * scale_b)` with 8-bit floats: half the bytes of bfloat16 operands, and twice the
# rate of the tensor cores.

# %% tags=["lab"]
from cookbook import draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/fp8_gemm", (8192, 8192, 8192), over=["promoted", "torch._scaled_mm, slow accumulation"])

# %% [markdown]
# A and B are e4m3 or e5m2. Each row of A and each column of B has a float32 scale factor. C is bfloat16 or float16. An
# SM does 4096 multiply-adds a clock. Three questions are new:
#
# * **What becomes of the swizzle?** In bytes, nothing. In elements it has another name.
# * **Where do scale factors go?** Into the epilogue: they come out of the sum over K.
# * **How exact is the sum?** The accumulators of an 8-bit `wgmma` are float32 registers, but an addition keeps 13 bits
#   of a fraction. *Promoted* accumulation adds the partial sums of some k-tiles to a second set of registers, in full
#   float32. Fast or promoted is one field of the configuration.
#
# The rest is that of [the tuned GEMM](tuned_gemm.ipynb).
#
# **Two numbers first**, for 8192 x 8192 x 8192 on an H200. Operations: 8192 cubed multiply-adds over 132 SMs x 4096 are
# 1.02 million clocks, 0.7 ms at the 1.4 to 1.5 GHz to which the GPU lowers its clock at its power limit. Bytes: A, B
# and C once are 268 MB, 0.06 ms at 4.26 TB/s. So the tensor cores, and the power that they take, are the limit.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import DTYPES, Call, RowScaledGemm, check_epilogue, compile_host, remap_table, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# | variant | work tile | registers of a thread: accumulators, totals, C rounded | stages |
# |---|---|---|---|
# | `fast` | 128 x 256 | 128 + 0 + 64 | 4 |
# | `promoted` | 128 x 192 | 96 + 96 + 48, of which two at a time | 4 |
# | `promoted, every 2` | the same | the same | 4 |
#
# A k-tile is 128 *bytes* of a row in every recipe of this track: 64 elements of 16 bits, 128 of 8. So stages, boxes of
# TMA and shared memory are as large as before, and a k-tile of `fast` takes as many clocks (128 x 256 x 128 / 4096 =
# 1024). Promotion doubles the accumulators; two consumer warpgroups have room for that if the tile is narrower.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of a work tile
    tile_n: int = 256  # its columns
    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    stages: int = 4  # pairs of A and B tiles in flight or being read
    promote_every: int = 0  # k-tiles after which partial sums go to a second set of registers; 0: never (fast)
    cluster_m: int = 1
    cluster_n: int = 2  # CTAs side by side: both get each tile of A by multicast
    swizzle_size: int = 8  # cluster tiles down C that share tiles of B before the rasterization moves across
    gpc_aware: bool = True  # a cluster's first cluster tile goes by its GPC, not by its number
    epi_n: int = 64  # columns of an epilogue subtile: 64 rows of 128 bytes
    epi_stages: int = 2  # for each warpgroup: one is written while TMA reads the other
    registers: tuple[int, int] = (24, 240)  # of a producer's thread and of a consumer's

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)

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


# %% [markdown]
# ## The layouts: what stays 3, and what changes
#
# The 128-byte swizzle XORs bits 7 to 9 of a byte's address (which of eight rows) into bits 4 to 6 (which 16-byte chunk
# of the row). TMA writes so and `wgmma` reads so, whatever the bytes mean: `S<3,4,3>`, always. What changes is how many
# elements are in a chunk, so what the same permutation is called when one counts *elements*:
#
# | elements | a row of the atom | a 16-byte chunk | the swizzle in bytes | in elements | one wgmma step along K |
# |---|---|---|---|---|---|
# | 8 bits | 128 | 16 | `S<3,4,3>` | `S<3,4,3>` | 32 elements, 32 bytes |
# | 16 bits | 64 | 8 | `S<3,4,3>` | `S<3,3,3>` | 16 elements, 32 bytes |
# | 32 bits | 32 | 4 | `S<3,4,3>` | `S<3,2,3>` | 8 elements, 32 bytes |
#
# Both 3s (how many bits, how far apart) stay in every row: eight rows, eight chunks. The one in the middle counts the
# bits of an address *inside* a chunk, and there are fewer elements than bytes. One thing is lost: `wgmma` takes 8-bit
# operands K-major only.


# %% tags=["folded"]
E4M3, E5M2 = cutlass.Float8E4M3FN, cutlass.Float8E5M2
ELEMENT, SCALE, BLOCK = E4M3, cutlass.Float32, 0  # what the checks multiply; 0: a row has one scale factor


class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, STAGE): first the stages of warpgroup 0, then those of 1


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


# %% [markdown] tags=["lab"]
# The eight rows of an atom of A. A cell is a chunk of 16 bytes, here 16 elements. Chunk `c` of row `r` lies at `c ^ r`.

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, element_bits=8).a)

# %% [markdown]
# ## The tile scheduler
#
# Cluster tiles (two work tiles side by side) are numbered in groups of `swizzle_size` down C, and a cluster computes
# the numbers `first`, `first + step`, ...; `first` comes from a table, as [below](#gpc-aware-remapping).


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


# %% [markdown]
# ## The producer
#
# One warp. Every other work tile takes its k-tiles from the last to the first, for what was read last is still in L2
# (a serpentine order).


# %%
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
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers: fast and promoted
#
# `accumulate` is the usual main loop: all k-tiles are added up in the accumulators. `promote` begins at zero every
# `promote_every` k-tiles, waits until the accumulators are complete, and adds them to `total`. While one warpgroup
# adds, the other one's wgmmas keep the tensor cores busy.


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


@cute.jit
def accumulate(me: Consumer, read, release, k_tiles, config: cutlass.Constexpr):
    """The rest of a work tile, all in the accumulators of wgmma."""
    for _ in cutlass.range(config.first_k_tiles, k_tiles, unroll=1):
        read, release = next_stage(me, read, release)
    warpgroup.wait_group(0)
    me.pipe.consumer_release(release)


@cute.jit
def accumulate_promoted(me: Consumer, read, release, k_tiles, config: cutlass.Constexpr):
    """The rest of a work tile; after `promote_every` k-tiles partial sums are added to the totals in float32."""
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


# %% [markdown]
# ## Scale factors
#
# A factor of a row of A or of a column of B comes out of the sum over K, so it meets a finished accumulator: one
# multiplication by the row's factor, one by the column's, then the rounding. A scale of the whole matrix has stride 0.
# A thread holds two rows of an accumulator tile, `lane / 4` and 8 below, and of every 8 columns two. A warpgroup's
# threads fetch the 64 + 256 factors of a work tile while the first k-tile is multiplied.


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


# %% [markdown]
# ## The overlapped epilogue
#
# At the end of a work tile a warpgroup scales and rounds its accumulators into `rC`, half as many registers. It stores
# `rC` under the first k-tiles of the next work tile, in subtiles of 64 x 64. A subtile goes to stage `j % epi_stages`,
# after a `wait_group` for the one stored the longest ago. Across work tiles that is right only if `epi_stages` divides
# the number of subtiles: with 3 subtiles and 2 stages results were right on a GPU, but level *pipeline* found a race.


# %%
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


@cute.jit
def begin_tile(me: Consumer, i, rC, schedule: Schedule, k_tiles, before, config: cutlass.Constexpr):
    """Multiply the first k-tiles of the i-th work tile, and under them store the one before and fetch scale factors."""
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


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume. As many clusters are launched as the number of waves needs. With a table of
# the remapping no CTA lets the next kernel in early (`use_pdl`), for that would mix up where clusters run.


# %%
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
    """The pipeline of a CTA, and its shared memory: sA, sB, sC, and scale factors (ROWS + TILE_N, GROUP)."""
    a, b, dtype = dtypes
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
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
    cute.arch.cluster_arrive_relaxed()  # no CTA signals its neighbour's barrier before that is set up
    cute.arch.cluster_wait()
    return pipe, (sA, sB, sC, sS)


@cute.kernel
def kernel(op: Operands, remap: cute.Pointer, raster: tuple, dtypes: cutlass.Constexpr, config: cutlass.Constexpr):
    """A cluster computes the cluster tiles `first`, `first + step`, ... of C."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster, ctas // config.cluster
    if cutlass.const_expr(config.gpc_aware):  # the load takes longer than all that is set up after it
        first = cute.make_tensor(remap, cute.make_layout(step))[first]
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for tma in (op.tma_a, op.tma_b, op.tma_c):
            cpasync.prefetch_descriptor(tma)
    pipe, smem = set_up(dtypes, config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    tiles, down, by_step, of_group, of_last = raster
    first = cute.arch.make_warp_uniform(first)
    schedule = Schedule(first, step, (tiles + step - 1 - first) // by_step, down, of_group, of_last, rank)
    k_tiles = cutlass.max(cute.ceil_div(cute.size(op.mA, mode=[1]), config.tile_k), config.first_k_tiles)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.registers[0])
        if warp_idx == 8:
            tile_a, tile_b = (config.tile_m, config.tile_k), (config.tile_n, config.tile_k)
            a = load_of(op.tma_a, op.mA, smem[0], tile_a, rank, config.cluster_n)
            b = load_of(op.tma_b, op.mB, smem[1], tile_b, cutlass.Int32(0), config.cluster_m)
            produce(pipe, schedule, k_tiles, a, b, config)
    else:
        cute.arch.setmaxregister_increase(config.registers[1])
        consume((group, tidx % 128), op, pipe, smem, schedule, k_tiles, dtypes, config)


@cute.jit
def consume(who, op: Operands, pipe, smem, schedule: Schedule, k_tiles, dtypes, config):
    """A warpgroup's share of all work tiles. who: the warpgroup (0 or 1), and the thread in it."""
    (group, tidx), (sA, sB, sC, sS) = who, smem
    a, b, dtype = dtypes
    overwrite, add = tiled_mma(dtype, config, a, b), tiled_mma(dtype, config, a, b)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    gC = cute.local_tile(op.mC, (config.tile_m, config.tile_n), (None, None))  # (M, N, m, n)
    thr = add.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    shape = thr.partition_shape_C((config.tile_m, config.tile_n))
    acc = cute.make_rmem_tensor(shape, cutlass.Float32)
    total = cute.make_rmem_tensor(shape, cutlass.Float32) if config.promote_every else acc
    tCrA, tCrB = add.make_fragment_A(thr.partition_A(sA)), add.make_fragment_B(thr.partition_B(sB))
    multiplies, scales = (pipe, overwrite, add, acc, total, tCrA, tCrB), ((op.scale_a, op.scale_b), sS[None, group])
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    me = Consumer(*multiplies, *scales, sC, op.tma_c, gC, tiled_copies(dtype, config).r2s_c, group, tidx)
    cute.arch.griddepcontrol_wait()  # what this warpgroup reads and stores, the kernel before may still write
    multiply_and_store(me, schedule, k_tiles, config)
    if tidx < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


class Launch(NamedTuple):
    """What a launch is told beside the addresses of its tensors."""

    remap: cute.Pointer  # Int32, by cluster: the number of its first cluster tile
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    clusters: cutlass.Int32
    stride_sa: cutlass.Int32  # from one scale factor to the next
    stride_sb: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    pSA: cute.Pointer,
    pSB: cute.Pointer,
    launch: Launch,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = scale_a (M, 1) * A (M, K) times B (N, K) transposed * scale_b (1, N)."""
    remap, (m, n, k), strides, clusters, stride_sa, stride_sb = launch
    dtypes, ctas = (pA.dtype, pB.dtype, pC.dtype), config.cluster
    lda, ldb, ldc = (cute.assume(stride, divby=by) for stride, by in zip(strides, (16, 16, 8), strict=True))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtypes[2], config))
    tma_a, mA = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    tma_b, mB = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    tma_c, mC = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n))
    sa = cute.make_tensor(pSA, cute.make_layout((m,), stride=(cutlass.Int64(stride_sa),)))
    sb = cute.make_tensor(pSB, cute.make_layout((n,), stride=(cutlass.Int64(stride_sb),)))
    op = Operands(tma_a, mA, tma_b, mB, tma_c, mC, sa, sb)
    launcher = kernel(op, remap, raster_of(m, n, clusters, config), dtypes, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """How many clusters are launched: no more than the number of waves needs."""
    tiles = -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n))
    return -(-tiles // -(-tiles // (sms // config.cluster)))


def raster_of(m, n, clusters, config: Config) -> tuple:
    """How the cluster tiles of C (m, n) are numbered: (how many, how many down C, and divisors: `clusters`, the tiles
    of a group, the height of the last group). See `tile_of`.
    """
    high, wide = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    down, across = cute.ceil_div(m, high), cute.ceil_div(n, wide)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int):
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers)


def compile_for(arch: str, dtype, config: Config | None = None, a=E4M3, b=E4M3, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. a, b: their element types."""
    scale = cutlass.Float32, 4
    pointers = (a, 16), (b, 16), (dtype, 16), scale, scale, (cutlass.Int32, 4)  # the last one to the remapping's table
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## GPC-aware remapping
#
# As in [the tuned GEMM](tuned_gemm.ipynb#gpc-aware-remapping). `Calibration.gpcs` says which GPC each cluster starts
# in, of an H200. On another one, `launch_order()` of [the page about GPCs](../foundations/gpc_remapping.ipynb) finds
# that out: `calibrate(gpcs=launch_order())`. A checkout keeps it after `cookbook calibrate hopper/fp8_gemm`.


# %% tags=["folded"]
@dataclass(frozen=True)
class Calibration:
    """What the remapping knows of one chip: the default is of an H200."""

    # The GPC of each cluster of two, in the order in which an idle GPU starts them. Any letters; () is "not known".
    gpcs: tuple[object, ...] = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")


CALIBRATION = Calibration()
FULL, LONG = 0.9, 15_000  # of the clusters that fit; clocks of multiplying: below either, a table is not worth it


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(gpcs=launch_order())`, say."""
    global CALIBRATION
    CALIBRATION = replace(CALIBRATION, **figures)
    for each in GEMMS.values():
        each.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


def remap_of(call: Call, config: Config, count: int) -> int:
    """The address of the table for `count` clusters; 0: none, where clusters are few, the product is short, or the
    GPCs are not known."""
    (m, n, k), most, known = call.mnk, call.sms // config.cluster, tuple(CALIBRATION.gpcs)
    if count < FULL * most or m * n * k / 4096 / call.sms < LONG or len(known) != most:
        return 0
    return remap_table(call.device, known[:count], min(config.swizzle_size, -(-m // config.tile_m)))


# %% [markdown]
# ## `matmul`
#
# `RowScaledGemm`, which comes with every recipe's host side, checks a call once for each kind and keeps a *plan*. Scale
# factors are operands too.

# %%
ELEMENTS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}


def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    config, (m, n, _), (*strides, stride_sa, stride_sb) = VARIANTS[call.variant], call.mnk, call.strides
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count)
    which = replace(config, gpc_aware=remap != 0), *(ELEMENTS[each] for each in call.operands)
    return which, (Launch(remap, call.mnk, tuple(strides), count, stride_sa, stride_sb),)


def gemm_into(dtype: torch.dtype) -> RowScaledGemm:
    """The host side for C of one dtype."""
    takes = dict.fromkeys(ELEMENTS, dtype)
    return RowScaledGemm(compile_for, prepare, ((9, 0),), "wgmma", VARIANTS, padded=True, takes=takes)


GEMMS = {dtype: gemm_into(dtype) for dtype in DTYPES}
GEMM = GEMMS[torch.bfloat16]


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """`(a * scale_a) @ (b * scale_b)` on the tensor cores, on the current stream of `a`'s device.

    a: (M, K), float8_e4m3fn or float8_e5m2, K-major (stride 1 along K).
    b: (K, N), either of the two, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    scale_a, scale_b: float32 on the same device: (M, 1) and (1, N) of any stride, or one element for all.
    out: (M, N), bfloat16 or float16, stride 1 along N, any row stride >= N, no memory of the others. Made of
        `out_dtype` if not given.
    variant: one of VARIANTS: "fast", or a promoted one.

    The addresses of a and b and their row strides are multiples of 16 bytes, as TMA needs them. Any M, N, K >= 1 within
    that. For an `out` whose rows TMA cannot write, the product is made in padded rows and copied. Needs compute
    capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    name, dtype = ("out_dtype", out_dtype) if out is None else ("out", getattr(out, "dtype", type(out).__name__))
    require(dtype in tuple(GEMMS), name, dtype, " or ".join(map(str, GEMMS)), TypeError)
    return GEMMS[dtype].matmul((a, b, scale_a, scale_b), out, variant)


# %% [markdown] tags=["lab"]
# ## How exact is the sum? A model, and a prediction
#
# What the tensor cores do inside an addition is not documented. The model in `cookbook.model.fp8_sums`: in each step of
# 32 products, the sum so far and the products are *cut off* (not rounded) below the 13th bit of a fraction, counted
# from the largest of them, and then added. The relative error of many sums that follows, and the whole error of C in
# bfloat16 (rounding alone: 1.7e-3; squares add up):

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.model.fp8_sums import predicted_error
from cookbook.publish.pages import limits_table, results_table, table

ROUNDING = 1.66e-3  # of C to bfloat16


def in_words(error: float) -> str:
    """The error of the sum, and of C."""
    return f"{error:.1e} ({(error**2 + ROUNDING**2) ** 0.5:.1e})"


modes = {"fast": None, "promoted": 128, "promoted, every 2": 256}
rows = [[f"{k}", *(in_words(predicted_error(k, after)) for after in modes.values())] for k in (512, 2048, 8192)]
Markdown(table(["K", *modes], rows))

# %% [markdown] tags=["lab"]
# The fast error grows with K, a little faster than its square root; the promoted one does not grow. In bfloat16 the
# rounding of C hides the fast error at K = 512 and no longer at 8192.
#
# A test measures it, too: `tests/gpu/test_fp8_gemm.py` takes the error of float16 results on a GPU, and demands that it
# is within a tenth of what the model says.
#
# ## Check

# %% tags=["lab"]
lab.check_cells("hopper/fp8_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch._scaled_mm`: run and timed where there is a GPU for it, else as
# recorded. Then all peers in one run: `torch._scaled_mm` with row-wise scales, with `use_fast_accum` and without.

# %% tags=["lab", "open"]
lab.compare("hopper/fp8_gemm", matmul, (8192, 8192, 8192))

# %% tags=["lab"]
Markdown(results_table("hopper/fp8_gemm"))

# %% [markdown] tags=["lab"]
# "Ours" and `fast` are one kernel, timed twice: the difference of the two is the spread. Promotion costs the narrower
# tile and the additions; with every second k-tile, half of them, at an error that bfloat16 hides.
#
# ## What limits it

# %% tags=["lab"]
Markdown(limits_table("hopper/fp8_gemm"))

# %% [markdown] tags=["lab"]
# Power is the limit at 8192 cubed. With a short K it is also what stands between two work tiles: both warpgroups scale
# and round at the same time. A scheduler has two of their warps, each with 256 multiplications and 64 conversions. A
# work tile has 16 k-tiles of 1024 clocks where K is 2048, and 64 of them where K is 8192.
#
# Three ways around it were tried, and gained nothing:
#
# * **Warpgroups that work one or two k-tiles apart**, so that one multiplies while the other rounds. Four stages do not
#   last for that: those in which the two are apart cannot be loaded again.
# * **Rounding a quarter of the tile at a time**, with narrower `wgmma`s for the quarters that are free already. The
#   compiler gives narrow and wide accumulators different registers, and waits after every `wgmma`.
# * **Smaller work tiles in ping-pong.** Nothing stands still, but loading more operand bytes takes more power.
#
# ## Conclusion
#
# In bytes, an 8-bit GEMM is a 16-bit one: the same k-tile of 128 bytes, swizzle, stages and boxes. It adds two
# multiplications for each element of C, and a decision about the sum. Fast accumulation loses bits with every step;
# promotion ends that, for a narrower tile and one addition for each 128 multiply-adds.
#
# Next: [few rows](fp8_decode_gemm.ipynb), which leave such a tile mostly empty. To use this one:
# `cookbook copy hopper/fp8_gemm my_gemm.py`, then `from my_gemm import matmul`.
