# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: FP8 operands with block-wise scales
#     claim: >-
#       A scale factor for every 128 elements along K cannot wait for the epilogue. Each 128 of K is summed and promoted
#       in float32: by count under another warpgroup's wgmmas; measured, an addition takes more than two clocks.
#     track: hopper
#     order: 102
#     targets: [sm_90a]
#     runs_on: sm_90
#     operands: fp8_blockwise
#     measured_by: foundations/gpc_remapping
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma e4m3 -> scaled and promoted -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, QGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     bench_shapes: [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 2048], [2816, 3072, 16384],
#       [128, 7168, 16384]]
#     sources:
#       - {title: "DeepSeek-V3 technical report, section 3.3.2", url: "https://arxiv.org/abs/2412.19437"}
#       - {title: "DeepGEMM: FP8 kernels with fine-grained scaling", url: "https://github.com/deepseek-ai/DeepGEMM"}
#       - {title: "PTX ISA, cp.async.mbarrier.arrive", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive"}
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#     builds_on: hopper/fp8_gemm
# ---

# %% [markdown]
# # FP8 operands with block-wise scales
#
# **Claim.** Block-wise scale factors keep 8-bit operands accurate where a row has values of very different sizes. They
# ask for work *inside* the main loop, for every element of C and every 128 of K. Two warpgroups share the tensor cores,
# so that one could do this work while the wgmmas of the other run. The page counts it, and says what comes of it.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.measure import records
from cookbook.publish.pages import limits_table, results_table, table

lab.gain("hopper/fp8_blockwise_gemm", (8192, 8192, 8192))

# %% [markdown]
# DeepSeek-V3 made this scheme common. A (M, K) is e4m3 with a float32 scale factor for each 1 x 128 elements, B (K, N)
# with one for each 128 x 128. [The GEMM with row-wise scales](fp8_gemm.ipynb) multiplies once, in the epilogue. Here
# every 128 elements along K have factors of their own:
#
# `C[m, n] = sum over blocks k of scale_a[m, k] * scale_b[k, n / 128] * (sum of 128 products)`
#
# So the inner sum begins at zero for every block, and the outer sum is kept in other registers, in full float32. To add
# the one to the other is to *promote* it, as on that page. What wgmma cuts off is lost over 128 products only.
#
# Each warpgroup has two bands of 64 rows of a work tile: warpgroup 0 rows 0 to 63 and 128 to 191. It multiplies one
# band, its *half*, at a time. In the upper rows of the picture one promotes its partial sums while the wgmmas of the
# other run. In the lower rows the tensor cores stand still.

# %% tags=["lab"]
WGMMA, PROMOTION = 64 * 128 * 128 // 4096, 64 * 128 // 128  # clocks of a half and a k-tile; see the two budgets


def schedule(hidden: bool) -> dict[str, list[draw.Span]]:
    """The lanes of both warpgroups and of the tensor cores, where promotions are hidden and where they are not."""
    spans, clock = {"warpgroup 0": [], "warpgroup 1": [], "tensor cores": []}, 0
    for step in range(6):
        who, done = f"warpgroup {step % 2}", clock + WGMMA
        for lane in (who, "tensor cores"):
            spans[lane].append(draw.Span(clock, done, f"half {step // 2 % 2}", "wgmma"))
        spans[who].append(draw.Span(done, done + PROMOTION, "", "promotion"))
        clock = done if hidden else done + PROMOTION
    return spans


lanes = {f"hidden: {lane}": spans for lane, spans in schedule(True).items()} | {"": []}
lanes |= {f"not hidden: {lane}": spans for lane, spans in schedule(False).items()}
draw.lanes(lanes, "Two warpgroups and the tensor cores: counted, not measured")

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import DTYPES, BlockwiseGemm, Call, check_epilogue, compile_host, remap_table, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes, and two budgets
#
# **Registers.** A thread's totals, of 128 x 128 elements over 128 threads, are 128 registers. As many accumulators
# would be too many. So a warpgroup multiplies one half at a time, and both halves use the same 64. C rounded, of the
# work tile before, is 64 more, but only while the totals are empty. So 128 + 64 are held at once.
#
# **Clocks.** A half of a k-tile takes 64 x 128 x 128 / 4096 = 256 clocks of the tensor cores. To promote it takes one
# fused multiply-add for each element: 64 instructions a warp. A scheduler has one warp of each warpgroup and issues one
# instruction a clock, so that is 64 clocks, beside 256 of the other warpgroup's wgmmas. By count all of it can be
# hidden. A count knows no waiting, though: see [what limits it](#what-limits-it).
#
# A tile is 128 columns wide at most, because a block of B is: then all of its elements have the same factor of B.

# %%
BLOCK = 128  # elements along K to a scale factor of A; rows and columns of a block of B


@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 256  # rows of C of a work tile
    tile_n: int = 128  # its columns, inside one block of B
    tile_k: int = 128  # one block of A and of B along K; 128 bytes: one row of the SW128 atom
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_n: int = 2  # CTAs side by side: all get each tile of A by multicast
    swizzle_size: int = 8  # cluster tiles down C that share tiles of B before the rasterization moves across
    gpc_aware: bool = True  # a cluster's first cluster tile goes by its GPC, not by its number
    epi_n: int = 64  # columns of an epilogue subtile: 64 rows of 128 bytes
    epi_stages: int = 2  # for each warpgroup: one is written while TMA reads the other
    scale_stages: int = 2  # k-tiles whose scale factors are on their way or in use
    registers: tuple[int, int] = (40, 232)  # of a producer's thread and of a consumer's

    def __post_init__(self):
        require(BLOCK % self.tile_n == 0, "tile_n", self.tile_n, f"a divisor of {BLOCK}: one scale factor of B")
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups, and the producer's, of which two warps work

    @property
    def halves(self) -> int:
        """Parts of a warpgroup's rows, 64 each: one wgmma high."""
        return self.tile_m // 128

    @property
    def subtiles(self) -> int:
        """Epilogue subtiles of one warpgroup."""
        return self.halves * self.tile_n // self.epi_n

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def smem_bytes(self) -> int:
        small = 16 * self.stages + (16 + 4 * (self.tile_m + 1)) * self.scale_stages  # barriers and scale factors
        c = 2 * self.epi_stages * 64 * self.epi_n * 2
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + c


VARIANTS = {
    "256 x 128": Config(),
    "128 x 64": Config(tile_m=128, tile_n=64, stages=8, epi_stages=1, scale_stages=8),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["256 x 128"]


def config_for(arch: str, variant: str = "256 x 128") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


WAITS = 60  # clocks that a promotion waits: no count, but what times on one H200 left over
L2_BYTES = 32  # a clock, into an SM, when all of them load


def clocks(config: Config) -> tuple[float, float, float]:
    """What a k-tile takes, by count: the wgmmas, both warpgroups' additions, and the loads, which run beside both."""
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    return m * n * k / 4096, config.halves * n, (m / config.cluster_n + n) * k / L2_BYTES


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that takes the fewest clocks: waves of work tiles, all of them equally long."""

    def cost(variant: str) -> float:
        config = VARIANTS[variant]
        multiply, add, loads = clocks(config)
        work = multiply + add + 2 * config.halves * WAITS
        tiles = -(-m // config.tile_m) * -(-n // (config.tile_n * config.cluster_n))
        return -(-tiles // (sms // config.cluster_n)) * max(work, loads)

    return min(VARIANTS, key=cost)


# %% [markdown] tags=["lab"]
# Both variants by these counts: registers of a thread, then clocks of a k-tile, where all promotions are hidden under
# wgmmas or none. `choose` adds waits to that. With few rows the large tile would be partly empty and leave SMs idle.

# %% tags=["lab"]
rows = []
for name, c in VARIANTS.items():
    held, (multiplied, added, loaded) = (c.halves * c.tile_n // 2, c.tile_n // 2, c.halves * c.tile_n // 4), clocks(c)
    each = *held, multiplied, added, loaded, max(multiplied, loaded), max(multiplied + added, loaded)
    rows.append([f"`{name}`", *(f"{x:.0f}" for x in each)])
head = ["tile", "totals", "accumulators", "C rounded", "wgmma", "additions", "loads", "all hidden", "none hidden"]
Markdown(table(head, rows))

# %% [markdown]
# ## The layouts
#
# Those of [the row-wise page](fp8_gemm.ipynb#the-layouts-what-stays-3-and-what-changes). A k-tile is 128 bytes of a
# row, and 128 elements: one block. So each stage has a factor for each of its rows of A, and one for its tile of B.

# %% tags=["folded"]
E4M3 = cutlass.Float8E4M3FN
ELEMENT, SCALE = E4M3, cutlass.Float32  # what the checks multiply


class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, STAGE): first the stages of warpgroup 0, then those of 1


def smem_atom(dtype) -> cute.ComposedLayout:
    """SW128: eight rows of 128 bytes."""
    width = 1024 // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(E4M3)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype), (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
    )


def wgmma(columns: int) -> warpgroup.MmaF8Op:
    """64 rows of A times 32 x `columns` of B, both from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF8Op(E4M3, E4M3, cutlass.Float32, (64, columns, 32), smem, k_major, k_major)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the two warpgroups: 64 rows each, then the 128 rows below."""
    return cute.make_tiled_mma(wgmma(config.tile_n), (2, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix of one warpgroup: a subtile of C, 64 x EPI_N


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """A subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, cute.make_tiled_mma(wgmma(config.epi_n), (1, 1, 1))))


# %% [markdown]
# ## The tile scheduler
#
# As on that page, with one change: a cluster looks up its first tile again for each work tile, for in the main loop no
# register is left to keep it in.


# %% tags=["folded"]
class Schedule(NamedTuple):
    """Which work tiles a cluster computes: numbers `first`, `first + step`, ..., `count` of them."""

    remap: cute.Pointer  # where `first` is looked up again for each work tile: no register has room for it
    cluster: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
    down: cutlass.Int32  # cluster tiles down C
    of_group: object  # divisor: the cluster tiles of a group
    of_last: object  # divisor: the height of the last group
    rank: cutlass.Int32  # of the CTA in its cluster


@cute.jit
def first_of(remap, cluster, step, config: cutlass.Constexpr):
    """The number of a cluster's first cluster tile."""
    if cutlass.const_expr(config.gpc_aware):
        cluster = cute.make_tensor(remap, cute.make_layout(step))[cluster]
    return cute.arch.make_warp_uniform(cluster)


@cute.jit
def tile_of(i, schedule: Schedule, config: cutlass.Constexpr):
    """This CTA's i-th work tile: (m, n)."""
    first = first_of(schedule.remap, schedule.cluster, schedule.step, config)
    group, inside = divmod(first + i * schedule.step, schedule.of_group)
    start = group * config.swizzle_size
    n, m = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > schedule.down:  # the last group is lower
        n, m = divmod(inside, schedule.of_last)
    return start + m, n * config.cluster_n + schedule.rank


@cute.jit
def state_at(k_tile, stages: cutlass.Constexpr):
    """The consumer's pipeline state at a k-tile, counted over all work tiles of the CTA."""
    return pipeline.PipelineState(stages, k_tile, k_tile % stages, k_tile // stages & 1)


# %% [markdown]
# ## The producer
#
# The third warpgroup loads. `setmaxnreg` takes registers from whole warpgroups only, so it has four warps; two work.
# One, below, asks TMA for tiles and goes on. The other [copies scale factors](#scale-factors) word by word, into stages
# of their own. This would hold up the tiles: so it is a warp of its own, with its own barriers. Every other work tile
# takes its k-tiles from the last to the first (a serpentine order), for what was read last is still in L2.


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
    cute.arch.griddepcontrol_wait()  # the kernel before has ended: operands may be touched (`remap` is the host's)
    for i in cutlass.range(schedule.count, unroll=1):
        state = produce_tile(pipe, state, i, k_tiles, a, b, tile)
        tile = tile_of(cutlass.min(i + 1, schedule.count - 1), schedule, config)
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers: one half after the other
#
# `issue` starts the four wgmmas of one half over one stage, the first of which overwrites the accumulators. When they
# are done `promote` adds them to the totals. That takes one fused multiply-add for each, and one multiplication for
# each of a thread's two rows, which joins the factors of A and B. There is one set of accumulators, so a warpgroup
# cannot issue its next wgmmas before it has promoted the last ones. Meanwhile there are those of the other warpgroup.


# %%
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    overwrite: cute.TiledMma  # the accumulators
    add: cute.TiledMma  # to the accumulators
    acc: cute.Tensor  # (MMA, 1, 1): what wgmma accumulates in, of one half
    total: cute.Tensor  # (MMA, MMA_M, MMA_N): what partial sums are promoted to
    tCrA: cute.Tensor  # (MMA, MMA_M, MMA_K, STAGE): descriptors
    tCrB: cute.Tensor  # (MMA, MMA_N, MMA_K, STAGE)
    scales: pipeline.PipelineCpAsync
    sS: cute.Tensor  # (TILE_M + 1, STAGE): scale factors of a k-tile: of the rows, then that of B
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
def issue(me: Consumer, stage, half: cutlass.Constexpr):
    """Issue one half's wgmmas over one stage as a commit group of its own: from zero."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(me.tCrA, mode=[2])):  # each step is 32 elements, 32 bytes, along K
        mma = me.overwrite if k == 0 else me.add
        tCrA = cute.append_ones(me.tCrA[None, half, k, stage], up_to_rank=2)  # (MMA, 1)
        cute.gemm(mma, me.acc, tCrA, me.tCrB[None, None, k, stage], me.acc)
    warpgroup.commit_group()


@cute.jit
def promote(me: Consumer, half: cutlass.Constexpr, rS, first: cutlass.Constexpr):
    """One half's partial sums times their scale factors, added to the totals in float32."""
    rF = cute.make_rmem_tensor(2, cutlass.Float32)
    for r in cutlass.range_constexpr(2):
        rF[r] = rS[2 * half + r] * rS[cute.size(rS) - 1]
    by_row = cute.make_layout(me.acc.shape, stride=((0, 1, 0), 0, 0))  # MMA is (2 columns, 2 rows, columns / 8)
    values = me.acc.load() * cute.make_tensor(rF.iterator, by_row).load()  # and the addition below: one FFMA each
    part = cute.make_tensor(me.total.iterator + half * cute.size(me.acc), me.acc.layout)
    part.store(values if first else part.load() + values)


# %% [markdown]
# ## Scale factors
#
# A k-tile of the large variant needs 257 factors: of 256 rows of A, and of its block of B. A warp copies them into
# stages of shared memory with `cp.async`, a word each lane: TMA wants 16-byte aligned lines. Each lane arrives at a
# stage's full barrier when its copies are there, and each consumer thread at the empty one when it has read. A thread's
# accumulators of a half lie in two rows, `lane / 4` and 8 below: it reads four factors and that of B.
#
# **Why `.noinc`?** `producer_commit` is the instruction `cp.async.mbarrier.arrive.noinc`: the hardware arrives for a
# lane once all copies before it are there, and the lane goes on. Without `.noinc` it would raise the barrier's pending
# count by one first, so that this arrival were none of the 32 that the barrier waits for.
#
# **Why every thread?** One lane could arrive for its warp, after `sync_warp`: that is right too. But [racecheck follows
# no such order](../../docs/checking.md), and reports these reads as races.
#
# **Why not straight into registers?** The first version of this kernel did that: each consumer thread loaded its five
# factors from global memory, one k-tile ahead. Results were right, and on an H200 a k-tile took nearly twice as long.
# `wgmma.fence` orders accesses to registers: it waits for loads that are on their way to *any* register, needed now or
# not. From shared memory they come quickly, and `read_scales` stands behind the wgmmas, whose time hides it.


# %%
@cute.jit
def fetch_scales(pipe, sS, op, schedule: Schedule, k_tiles, config: cutlass.Constexpr):
    """One warp: copy the factors of k-tile after k-tile into stages, and tell the consumers when they are there."""
    lane, scale_a, scale_b = cute.arch.lane_idx(), op.scale_a, op.scale_b
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    write = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.scale_stages)
    cute.arch.griddepcontrol_wait()  # the kernel before has ended: global memory may be touched
    for i in cutlass.range(schedule.count, unroll=1):
        m, n = tile_of(i, schedule, config)
        column = cutlass.min(n * config.tile_n // BLOCK, cute.size(scale_b, mode=[1]) - 1)
        for j in cutlass.range(k_tiles, unroll=1):
            block = j + (i & 1) * (k_tiles - 1 - 2 * j)  # in the order in which the producer loads
            pipe.producer_acquire(write)
            for first in cutlass.range_constexpr(0, config.tile_m, 32):  # past the last row, that one's
                row = cutlass.min(m * config.tile_m + first + lane, cute.size(scale_a, mode=[0]) - 1)
                cute.copy(copy, one_of(scale_a, row, block), one_of(sS, first + lane, write.index))
            if lane == 0:
                cute.copy(copy, one_of(scale_b, block, column), one_of(sS, config.tile_m, write.index))
            pipe.producer_commit(write)  # this lane arrives once its copies are there
            write.advance()


def one_of(x: cute.Tensor, row, column) -> cute.Tensor:
    """The element (row, column) as a tensor."""
    return cute.local_tile(x, (1, 1), (row, column))


@cute.jit
def read_scales(me: Consumer, k_tile, config: cutlass.Constexpr):
    """This thread's factors of a k-tile, counted over all work tiles: two for each half, then that of B."""
    state = state_at(k_tile, config.scale_stages)
    me.scales.consumer_wait(state)
    rS = cute.make_rmem_tensor(2 * config.halves + 1, cutlass.Float32)
    row = me.group * 64 + me.tidx // 32 * 16 + me.tidx % 32 // 4
    for i in cutlass.range_constexpr(2 * config.halves):
        rS[i] = me.sS[row + i // 2 * 128 + i % 2 * 8, state.index]
    rS[2 * config.halves] = me.sS[config.tile_m, state.index]
    me.scales.consumer_release(state)
    return rS


def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's part of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has it."""
    held = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(held), held)


# %% [markdown]
# ## The overlapped epilogue
#
# At the end of a work tile a thread rounds its totals into `rC`, half as many registers, and begins the next tile. It
# stores `rC` while the wgmmas of the first k-tile run: half of the subtiles under those of each half. The promotion of
# a half's first k-tile overwrites the totals. So these hold nothing while `rC` does, and both need not have registers.


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
            across = config.tile_n // config.epi_n
            cute.copy(me.tma_c, bSsC[None, stage], bSgC[None, (i // across * 2 + me.group, i % across)])
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def store_half(half: cutlass.Constexpr, rC, me: Consumer, tile, config: cutlass.Constexpr):
    """The subtiles of one half of this warpgroup's rows."""
    across = config.tile_n // config.epi_n
    for i in cutlass.range_constexpr(half * across, (half + 1) * across):
        store_subtile(i, subtile_of(rC, i, config), me, tile, config)


@cute.jit
def multiply_k_tile(me: Consumer, read, rC, before, schedule: Schedule, config: cutlass.Constexpr):
    """Multiply one k-tile. rC: None; of the first k-tile of a work tile, what is stored under its wgmmas, the work tile
    of number `before`."""
    me.pipe.consumer_wait(read)
    for half in cutlass.range_constexpr(config.halves):
        issue(me, read.index, half)
        if cutlass.const_expr(half == 0):
            rS = read_scales(me, read.count, config)
        if cutlass.const_expr(rC is not None):
            if before >= 0:
                store_half(half, rC, me, tile_of(before, schedule, config), config)
        warpgroup.wait_group(0)
        if cutlass.const_expr(half == config.halves - 1):
            me.pipe.consumer_release(read)
        promote(me, half, rS, rC is not None)
    read.advance()
    return read


@cute.jit
def multiply_and_store(me: Consumer, schedule: Schedule, k_tiles, config: cutlass.Constexpr):
    """A warpgroup's share of all work tiles."""
    rC = cute.make_rmem_tensor(cute.size(me.total), me.sC.element_type)  # the work tile before, rounded
    for i in cutlass.range(schedule.count, unroll=1):
        read = multiply_k_tile(me, state_at(i * k_tiles, config.stages), rC, i - 1, schedule, config)
        for _ in cutlass.range(1, k_tiles, unroll=1):
            read = multiply_k_tile(me, read, None, 0, schedule, config)
        rC.store(me.total.load().to(rC.element_type))
    for half in cutlass.range_constexpr(config.halves):
        store_half(half, rC, me, tile_of(schedule.count - 1, schedule, config), config)


# %% [markdown]
# ## The kernel
#
# Two warps load, two warpgroups multiply, in the frame of [the row-wise GEMM](fp8_gemm.ipynb#the-kernel).


# %%
class Operands(NamedTuple):
    """What a kernel takes: tensors as TMA coordinates, with their copies, and scale factors."""

    tma_a: cute.CopyAtom
    mA: cute.Tensor  # (M, K)
    tma_b: cute.CopyAtom
    mB: cute.Tensor  # (N, K)
    tma_c: cute.CopyAtom
    mC: cute.Tensor  # (M, N)
    scale_a: cute.Tensor  # (M, K / 128)
    scale_b: cute.Tensor  # (K / 128, N / 128)


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """The pipelines of a CTA, of tiles and of scale factors, and its shared memory: sA, sB, sC, sS."""
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    scale_barriers = smem.allocate_array(cutlass.Int64, 2 * config.scale_stages)
    sS = smem.allocate_tensor(cutlass.Float32, cute.make_layout((config.tile_m + 1, config.scale_stages)), 16)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(E4M3, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(E4M3, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    # A stage is free when every warp that reads it has said so, to all CTAs that write it: its own and its neighbours.
    arrivals = 4 * 2 * config.cluster_n
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, 1, config.cluster_n, 1)),
        defer_sync=True,
    )
    scales = pipeline.PipelineCpAsync.create(
        barrier_storage=scale_barriers,
        num_stages=config.scale_stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32),  # each lane, when its copies are there
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * 128),  # each thread, when it has read
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # no CTA signals its neighbour's barrier before that is set up
    cute.arch.cluster_wait()
    return (pipe, scales), (sA, sB, sC, sS)


@cute.kernel
def kernel(op: Operands, remap: cute.Pointer, raster: tuple, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """A cluster computes the cluster tiles `first`, `first + step`, ... of C."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    number, step = cta // config.cluster_n, ctas // config.cluster_n
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for tma in (op.tma_a, op.tma_b, op.tma_c):
            cpasync.prefetch_descriptor(tma)
    pipes, smem = set_up(dtype, config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    tiles, down, by_step, of_group, of_last = raster
    first = first_of(remap, number, step, config)
    count = (tiles + step - 1 - first) // by_step
    schedule = Schedule(remap, number, step, count, down, of_group, of_last, rank)
    k_tiles = cute.ceil_div(cute.size(op.mA, mode=[1]), config.tile_k)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.registers[0])
        if warp_idx == 8:
            tile_a, tile_b = (config.tile_m, config.tile_k), (config.tile_n, config.tile_k)
            a = load_of(op.tma_a, op.mA, smem[0], tile_a, rank, config.cluster_n)
            b = load_of(op.tma_b, op.mB, smem[1], tile_b, cutlass.Int32(0), 1)
            produce(pipes[0], schedule, k_tiles, a, b, config)
        if warp_idx == 9:
            fetch_scales(pipes[1], smem[3], op, schedule, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.registers[1])
        consume((group, tidx % 128), op, pipes, smem, schedule, k_tiles, dtype, config)


@cute.jit
def consume(who, op: Operands, pipes, smem, schedule: Schedule, k_tiles, dtype, config):
    """A warpgroup's share of all work tiles. who: the warpgroup (0 or 1), and the thread in it."""
    (group, tidx), (sA, sB, sC, sS) = who, smem
    overwrite, add = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    gC = cute.local_tile(op.mC, (config.tile_m, config.tile_n), (None, None))  # (M, N, m, n)
    thr = add.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    acc = cute.make_rmem_tensor(thr.partition_shape_C((128, config.tile_n)), cutlass.Float32)
    total = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA, tCrB = add.make_fragment_A(thr.partition_A(sA)), add.make_fragment_B(thr.partition_B(sB))
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    multiplies = (pipes[0], overwrite, add, acc, total, tCrA, tCrB)
    me = Consumer(*multiplies, pipes[1], sS, sC, op.tma_c, gC, tiled_copies(dtype, config).r2s_c, group, tidx)
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
    strides_sa: tuple[cutlass.Int32, cutlass.Int32]  # of scale factors: from row to row, from block to block along K
    strides_sb: tuple[cutlass.Int32, cutlass.Int32]  # from block to block along K, and along N


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
    """C (M, N) = A (M, K) times B (N, K) transposed, each times the scale factors of its blocks."""
    remap, (m, n, k), strides, clusters, strides_sa, strides_sb = launch
    dtype, ctas = pC.dtype, config.cluster_n
    lda, ldb, ldc = (cute.assume(stride, divby=by) for stride, by in zip(strides, (16, 16, 8), strict=True))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    tma_a, mA = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    tma_b, mB = make_load(mB, b_stage, (config.tile_n, config.tile_k), 1)
    tma_c, mC = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n))
    blocks_n, blocks_k = cute.ceil_div(n, BLOCK), cute.ceil_div(k, BLOCK)
    sa = cute.make_tensor(pSA, cute.make_layout((m, blocks_k), stride=strides_sa))
    sb = cute.make_tensor(pSB, cute.make_layout((blocks_k, blocks_n), stride=strides_sb))
    op = Operands(tma_a, mA, tma_b, mB, tma_c, mC, sa, sb)
    launcher = kernel(op, remap, raster_of(m, n, clusters, config), dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """How many clusters are launched: no more than the number of waves needs."""
    tiles = -(-m // config.tile_m) * -(-n // (config.tile_n * config.cluster_n))
    return -(-tiles // -(-tiles // (sms // config.cluster_n)))


def raster_of(m, n, clusters, config: Config) -> tuple:
    """How the cluster tiles of C are numbered: how many, how many down C, and three divisors, for `tile_of`."""
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.tile_n * config.cluster_n)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int):
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    scale, table = (cutlass.Float32, 4), (cutlass.Int32, 4)
    pointers = (E4M3, 16), (E4M3, 16), (dtype, 16), scale, scale, table
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## GPC-aware remapping
#
# As in [the tuned GEMM](tuned_gemm.ipynb#gpc-aware-remapping), for clusters of two. The order below is of one H200.


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
    """The address of the table for `count` clusters; 0: none, where it is not worth it or the GPCs are not known."""
    (m, n, k), most, known = call.mnk, call.sms // config.cluster_n, tuple(CALIBRATION.gpcs)
    if count < FULL * most or m * n * k / 4096 / call.sms < LONG or len(known) != most:
        return 0
    return remap_table(call.device, known[:count], min(config.swizzle_size, -(-m // config.tile_m)))


# %% [markdown]
# ## `matmul`
#
# The operands and their scale factors are those of `torch.nn.functional.scaled_mm` with `BlockWise1x128` for A and
# `BlockWise128x128` for B.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (m, n, k), strides = call.mnk, call.strides
    config = VARIANTS[choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant]
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count)
    launch = Launch(remap, call.mnk, strides[:3], count, strides[3:5], strides[5:])
    return (replace(config, gpc_aware=remap != 0),), (launch,)


def gemm_into(dtype: torch.dtype) -> BlockwiseGemm:
    """The host side for C of one dtype."""
    takes = {torch.float8_e4m3fn: dtype}
    return BlockwiseGemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), padded=True, takes=takes)


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
    """The product of `a` and `b`, each times the scale factors of its blocks, on the current stream of `a`'s device.

    a: (M, K), float8_e4m3fn, K-major (stride 1 along K).
    b: (K, N), the same, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    scale_a: (M, ceil(K / 128)), float32: one for each 1 x 128 elements of a.
    scale_b: (ceil(K / 128), ceil(N / 128)), float32: one for each 128 x 128 elements of b. It may have rows more, up to
        a multiple of 4, as torch has them.
    out: (M, N), bfloat16 or float16, stride 1 along N, any row stride >= N, no memory of the others. Made of
        `out_dtype` if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    The addresses of a and b and their row strides are multiples of 16 bytes, as TMA needs them. Scale factors have
    stride 1 along one of their dimensions. Any M, N, K >= 1 within that. For an `out` whose rows TMA cannot write, the
    product is made in padded rows and copied. Needs compute capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    name, dtype = ("out_dtype", out_dtype) if out is None else ("out", getattr(out, "dtype", type(out).__name__))
    require(dtype in tuple(GEMMS), name, dtype, " or ".join(map(str, GEMMS)), TypeError)
    return GEMMS[dtype].matmul((a, b, scale_a, scale_b), out, variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# Both variants. Level *product* follows each product to its element of C, with the factors of its block and no other.

# %% tags=["lab"]
lab.check_cells("hopper/fp8_blockwise_gemm", shapes=[(200, 333, 288)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to torch's: run and timed where there is a GPU for it, else as recorded.

# %% tags=["lab", "open"]
lab.compare("hopper/fp8_blockwise_gemm", matmul, (8192, 8192, 8192))

# %% tags=["lab"]
Markdown(results_table("hopper/fp8_blockwise_gemm"))

# %% [markdown] tags=["lab"]
# ## What limits it

# %% tags=["lab"]
Markdown(limits_table("hopper/fp8_blockwise_gemm"))

# %% [markdown] tags=["lab"]
# Each variant ran alone; then ncu looked at two launches. The last columns say where it found warps, and for how many
# clocks one stood there each time. Below are clocks of a k-tile for one warpgroup of the large variant; its additions
# by ncu are the count times what a warp takes for an `FFMA`.

# %% tags=["lab"]
rows, (multiplied, added, _) = [], clocks(CONFIG)
for r in records.of_one_gpu("hopper/fp8_blockwise_gemm", "limits"):
    if "FFMA" in (found := r["figures"]["variants"]["256 x 128"]).get("where", {}):  # else ncu was not there
        taken, adds = multiplied / found["tensor_pipe_pct"] * 100, added / 2 * found["where"]["FFMA"][1]
        each = multiplied / 2, added / 2, adds, taken, taken - multiplied / 2 - adds
        rows.append([r["device"], *(f"{x:.0f}" for x in each)])
head = ["device", "its wgmmas", "its additions, by count", "by ncu", "the k-tile, by ncu", "the rest"]
Markdown(table(head, rows, right=1) if rows else "*Not measured.*")

# %% [markdown] tags=["lab"]
# * **Power** is the limit in a long run: ours takes a little more energy than torch's. ncu's launch is without it.
# * **An addition takes more than two clocks**, not one. Perhaps both warpgroups add at once, and share the one
#   instruction a clock of their scheduler; perhaps ports of the register file are busy (*dispatch stall*).
# * **No wgmma runs under a warpgroup's own additions**: they read the accumulators that its next wgmma overwrites. A
#   second set has no room beside the totals. So only the other warpgroup can keep the tensor cores busy then.
# * **The rest** is not all lost: the other warpgroup's wgmmas take as long as its own. No count says what is hidden.
#   `NANOSLEEP.SYNCS` waits at barriers; the two warps that load do so too. Loads take as many clocks as the wgmmas.
#
# Tried on an H200, not recorded: **a ping-pong order** of the halves, by two named barriers as in
# [ping-pong](pingpong_gemm.ipynb): no faster; **tiles of 128 x 128**, a half for each: slower, for they load more.
#
# ## Conclusion
#
# Scale factors that change along K take a second set of registers, and a multiply-add of each accumulator for each 128
# of K. By count there are registers and clocks enough. Measured, additions take more than twice the clocks.
#
# Next: [fused epilogues](fused_epilogue_gemm.ipynb), for work that can wait for the end of K. To use this one:
# `cookbook copy hopper/fp8_blockwise_gemm my_gemm.py`, then `from my_gemm import matmul`.
