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
#     aside: 8 bits and less
#     targets: [sm_90a]
#     runs_on: sm_90
#     kind: scaled
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
from cookbook.lab import limits_table, records, results_table, table

lab.gain("hopper/fp8_blockwise_gemm", (8192, 8192, 8192))

# %% [markdown]
# DeepSeek-V3 made this scheme common. A (M, K) is e4m3 with a float32 scale factor for each 1 x 128 elements, B (K, N)
# with one for each 128 x 128. [The GEMM with row-wise scales](fp8_gemm.ipynb) multiplies once, in the epilogue. Here
# every 128 elements along K have factors of their own:
#
# `C[m, n] = sum over blocks k of scale_a[m, k] * scale_b[k, n / 128] * (sum of 128 products)`
#
# So the inner sum begins at zero for every block, and the outer sum is kept in other registers, in full float32. To add
# the one to the other is to *promote* it, as on that page. An addition in an 8-bit `wgmma` cuts fractions off; here
# that loss adds up over 128 products only.
#
# A work tile has four bands of 64 rows. Warpgroup 0 has the first and the third, rows 0 to 63 and 128 to 191, warpgroup
# 1 the others. A band is a *half* of a warpgroup's rows, and a warpgroup multiplies one half at a time. In the upper
# lanes of the picture one promotes its partial sums while the wgmmas of the other run. In the lower lanes the tensor
# cores are idle meanwhile.

# %% tags=["lab"]
WGMMA, PROMOTION = 64 * 128 * 128 // 4096, 64 * 128 // 128  # clocks of a half and a k-tile; see the two budgets


def schedule(hidden: bool) -> dict[str, list[draw.Span]]:
    """The lanes of both warpgroups and of the tensor cores, where promotions are hidden and where they are not."""
    spans, clock = {"warpgroup 0": [], "warpgroup 1": [], "tensor cores": []}, 0
    for step in range(6):
        group, done = f"warpgroup {step % 2}", clock + WGMMA
        for lane in (group, "tensor cores"):
            spans[lane].append(draw.Span(clock, done, f"half {step // 2 % 2}", "wgmma"))
        spans[group].append(draw.Span(done, done + PROMOTION, "", "promotion"))
        clock = done if hidden else done + PROMOTION
    return spans


lanes = {f"hidden: {lane}": spans for lane, spans in schedule(True).items()} | {"": []}
lanes |= {f"not hidden: {lane}": spans for lane, spans in schedule(False).items()}
draw.lanes(lanes, "Two warpgroups and the tensor cores: counted, not measured")

# %%
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, warpgroup

from cookbook.recipe.entry import DTYPES, LARGEST, MATRICES, Call, compile_host, in_memory, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm
from cookbook.recipes.hopper.fp8_gemm import (
    E4M3,
    Calibration,
    matrices,
    smem_layouts,
    tiled_mma,
    wgmma_fp8,
)
from cookbook.recipes.hopper.fp8_gemm import Config as Fp8Config
from cookbook.recipes.hopper.multicast_gemm import Load, make_load, partition_load, rank_in_cluster
from cookbook.recipes.hopper.overlapped_epilogue_gemm import (
    Epilogue,
    make_epilogue,
    make_pipeline,
    meet_cluster,
    subtile_of,
)
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    allocate_tiles,
    load_tile,
    make_mainloop,
    state_at,
    tiled_copies,
    tma_tensors,
)
from cookbook.recipes.hopper.tile_heuristics import calibrated, clusters, waves
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor
from cookbook.recipes.hopper.tuned_gemm import Raster, Scheduler, rasterize, remap_of, work_tile

# %% [markdown]
# ## The sizes, and two budgets
#
# **Registers.** A thread's totals are 128 x 128 elements over 128 threads: 128 registers. 128 accumulators more would
# be too many. So a warpgroup multiplies one half at a time, and both halves use the same 64. The rounded C of the work
# tile before takes 64 too, but only while the totals are empty. So at most 128 + 64 are held at once.
#
# **Clocks.** A half of a k-tile takes 64 x 128 x 128 / 4096 = 256 clocks of the tensor cores. To promote it takes one
# fused multiply-add for each element: 64 instructions a warp. A scheduler has one warp of each warpgroup and issues one
# instruction a clock, so that is 64 clocks, against 256 of the other warpgroup's wgmmas. By count all of it can be
# hidden. A count knows no waiting, though: see [what limits it](#what-limits-it).
#
# **Factors of B.** A tile of 128 columns, or of a divisor of it, lies in one block of B: all of its elements have the
# same factor. A tile of 192 lies in two or three. It may begin at any multiple of its width, but each
# `gcd(tile_n, 128)` columns of it lie in one block. Such a *span* has a factor of its own: 192 columns are three spans.

# %%
ELEMENT, SCALE = E4M3, cutlass.Float32  # what the checks multiply
BLOCK = 128  # elements along K to a scale factor of A; rows and columns of a block of B
BOXES = 16, 32, 64  # rows of A that TMA may load, instead of all of a tile


@dataclass(frozen=True)
class Config(Fp8Config):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 256  # rows of C of a work tile
    tile_n: int = 128  # its columns
    promote_every: int = 1  # a k-tile is one block of A and of B along K
    box_m: int = 0  # rows of a tile of A that TMA loads, where M has no more; 0: all of them
    scale_stages: int = 2  # k-tiles whose scale factors are on their way or in use
    producer_registers: int = 40  # of the producer's warpgroup two warps work
    consumer_registers: int = 232

    heights = (128, 256)  # of a work tile: one or two halves, 64 rows each, of a warpgroup

    def __post_init__(self):
        require(self.tile_n % 8 == 0, "tile_n", self.tile_n, "a multiple of 8: columns that share a scale factor of B")
        boxes = (0, *BOXES)
        shared = self.box_m in boxes and self.box_m % (8 * self.cluster_n) == 0
        require(shared, "box_m", self.box_m, f"one of {boxes}, eight rows or more for each CTA that shares A")
        super().__post_init__()

    @property
    def halves(self) -> int:
        """Parts of a warpgroup's rows, 64 each: one wgmma high."""
        return self.tile_m // 128

    @property
    def span(self) -> int:
        """Columns of a tile that lie in one block of B, wherever the tile begins."""
        return gcd(self.tile_n, BLOCK)

    @property
    def spans(self) -> int:
        return self.tile_n // self.span

    @property
    def factors(self) -> int:
        """Scale factors of a k-tile."""
        return self.tile_m + self.spans

    @property
    def loaded_m(self) -> int:
        """Rows of a tile of A that TMA loads."""
        return self.box_m or self.tile_m

    @property
    def stage_bytes(self) -> int:
        """Bytes that TMA brings to a stage, which has room for a whole tile."""
        return (self.loaded_m + self.tile_n) * self.tile_k

    @property
    def smem_bytes(self) -> int:
        tiles = (self.tile_m + self.tile_n) * self.tile_k * self.stages
        small = 16 * self.stages + (16 + 4 * self.factors) * self.scale_stages  # barriers and scale factors
        return -(-small // 1024) * 1024 + tiles + self.epi_bytes


# %% [markdown]
# A tile of 128 x 192 is for products whose last wave of large tiles would be nearly empty. A warpgroup has one half of
# it, so as many accumulators as totals: 96. It loads a tenth more for each multiply-add than 256 x 128. Two CTAs share
# B, the larger operand.
#
# With few rows A is the larger part of what a CTA loads. So three variants are 128 high: four CTAs share A, two do, or
# each has 32 columns and A for itself, where that fills more SMs.


# %%
def few_rows(tile_n: int, cluster_n: int) -> Config:
    """A tile of 128 rows, whose A a cluster shares."""
    sizes = {"stages": 8, "epi_n": min(tile_n, 64), "epi_stages": 1, "scale_stages": 8}
    return Config(tile_m=128, tile_n=tile_n, cluster_n=cluster_n, **sizes)


def one_half(tile_n: int, epi_n: int) -> Config:
    """A tile of 128 rows whose B a cluster shares; each subtile of a warpgroup has a buffer."""
    return Config(tile_m=128, tile_n=tile_n, cluster_m=2, cluster_n=1, epi_n=epi_n, epi_stages=tile_n // epi_n)


VARIANTS = {
    "256 x 128": Config(),
    "128 x 192": one_half(192, 64),
    "128 x 64 in 4": few_rows(64, 4),
    "128 x 64": few_rows(64, 2),
    "128 x 32": few_rows(32, 1),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["256 x 128"]


def config_for(arch: str, variant: str = "256 x 128") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# Most of a tile of A may lie outside: TMA would fill those rows with zeros, which takes longer than to read them. For
# 64 rows or fewer the host gives TMA a box of 64, 32 or 16 rows: the first swizzle atoms of a stage, and as many bytes
# to expect. The rest of the stage holds what was there before, NaN perhaps. `wgmma` multiplies it and `promote` adds
# it, each row into its own row of C, and TMA stores no row past the last one. CTAs that share A load eight rows each,
# an atom, or more.
#
# Which variant? The one whose waves of work tiles take the fewest clocks. Of those within 3% it is the largest, which
# loads least: at the power limit that decides.


# %%
WAITS = 55  # clocks that a warpgroup waits for a stage, and for each half: what times on an H100 left over
STOP = 2000  # clocks between two work tiles: left over too
NEAR = 1.03  # clocks up to this multiple of the fewest count as equal
LOAD_BYTES = 48  # of A and B that come into an SM in a clock, what a neighbour multicasts included


def boxed(config: Config, m: int) -> Config:
    """The configuration with the smallest box that has all of `m` rows and an atom for each CTA that shares A."""
    fitting = [rows for rows in BOXES if rows >= max(m, 8 * config.cluster_n)]
    return replace(config, box_m=fitting[0]) if fitting else config


def clocks(config: Config) -> tuple[float, float, float]:
    """Return what a k-tile takes, by count: the wgmmas, both warpgroups' additions, and the loads, which run beside
    both."""
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    return m * n * k / 4096, config.halves * n, (config.loaded_m + n) * k / LOAD_BYTES


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """Clocks of C (m, n) over k: waves of work tiles, all of them equally long."""
    config = boxed(config, m)
    multiply, add, loads = clocks(config)
    work = multiply + add + WAITS * (1 + config.halves)
    loads += max(config.loaded_m - m, 0) / config.cluster_n * config.tile_k / LOAD_BYTES  # zeros take twice as long
    return waves(config, m, n, sms) * (-(-k // config.tile_k) * max(work, loads) + STOP)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The largest variant whose clocks are near the fewest."""
    costs = {name: cost(config, m, n, k, sms) for name, config in VARIANTS.items()}  # the largest first
    return next(name for name, each in costs.items() if each <= NEAR * min(costs.values()))


# %% [markdown] tags=["lab"]
# The variants by these counts: registers of a thread, then clocks of a k-tile, where all promotions are hidden under
# wgmmas or none. `choose` adds waits to that. With few rows the large tile would be partly empty and leave SMs idle.

# %% tags=["lab"]
rows = []
for name, c in VARIANTS.items():
    registers, (multiplied, added, loaded) = (
        (c.halves * c.tile_n // 2, c.tile_n // 2, c.halves * c.tile_n // 4),
        clocks(c),
    )
    each = *registers, multiplied, added, loaded, max(multiplied, loaded), max(multiplied + added, loaded)
    rows.append([f"`{name}`", *(f"{x:.0f}" for x in each)])
head = ["tile", "totals", "accumulators", "C rounded", "wgmma", "additions", "loads", "all hidden", "none hidden"]
Markdown(table(head, rows))

# %% [markdown]
# ## The layouts and the MMA
#
# Those of [the row-wise page](fp8_gemm.ipynb#the-layouts-what-stays-3-and-what-changes), imported. A k-tile is 128
# bytes of a row, and 128 elements: one block. So each stage has a factor for each of its rows of A, and one for each
# span of its tile of B.
#
# ## The tile scheduler
#
# The rasterization is [the tuned GEMM](tuned_gemm.ipynb#the-tile-scheduler)'s, with one change. A cluster looks up its
# first tile again for each work tile: in the main loop no register is left to keep it in.


# %%
class LookupScheduler(NamedTuple):
    """The work tiles of one CTA; the first one is looked up whenever one is asked for."""

    raster: Raster
    remap: cute.Pointer  # Int32, by cluster: the number of its first cluster tile
    cluster: cutlass.Int32  # number of the cluster
    step: cutlass.Int32  # from one cluster tile to the next: the clusters of the grid
    count: cutlass.Int32  # of work tiles
    rank: tuple  # (row, column) of the CTA in its cluster


@cute.jit
def first_tile(remap: cute.Pointer, cluster: cutlass.Int32, step: cutlass.Int32, config: cutlass.Constexpr):
    """The number of a cluster's first cluster tile."""
    if cutlass.const_expr(config.gpc_aware):
        cluster = cute.make_tensor(remap, cute.make_layout(step))[cluster]
    return cute.arch.make_warp_uniform(cluster)


@cute.jit
def looked_up(scheduler: LookupScheduler, i: cutlass.Int32, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    s = scheduler
    first = first_tile(s.remap, s.cluster, s.step, config)
    return work_tile(Scheduler(s.raster, first, s.step, s.count, s.rank), i, config)


# %% [markdown]
# ## The producer
#
# The third warpgroup loads. `setmaxnreg` takes registers from whole warpgroups only, so it has four warps; two work.
# One, below, asks TMA for tiles and goes on. The other [copies scale factors](#scale-factors) word by word, into
# separate stages. In one warp these copies would delay the tiles, so a second warp makes them, with separate barriers.
# Every other work tile takes its k-tiles from the last to the first (a serpentine order): what was read last may still
# be in L2.


# %%
@cute.jit
def produce(
    pipe: pipeline.PipelineTmaAsync,
    loads: tuple[Load, Load],
    scheduler: LookupScheduler,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of all work tiles of this CTA, a stage each."""
    tile = tuple(cute.arch.make_warp_uniform(x) for x in looked_up(scheduler, 0, config))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: operands may be touched now (`remap`, of the host, might before)
    for i in cutlass.range(scheduler.count, unroll=1):
        m, n = (cutlass.min(at, cute.size(x.gX, mode=[1]) - 1) for at, x in zip(tile, loads, strict=True))
        state = load_tile(pipe, loads, state, (m, n), k_tiles, i, config)  # a dummy tile loads the last one
        tile = looked_up(scheduler, cutlass.min(i + 1, scheduler.count - 1), config)
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers: one half after the other
#
# `issue_half` starts the four wgmmas of one half over one stage, the first of which overwrites the accumulators. When
# they are done `promote` adds them to the totals. That takes one fused multiply-add for each, and one multiplication
# for each of a thread's two rows and each span, which joins the factors of A and B. A span's accumulators are adjacent
# registers. There is one set of accumulators, so a warpgroup cannot issue its next wgmmas before it has promoted the
# last ones. Meanwhile the wgmmas of the other warpgroup can run.


# %%
@cute.jit
def issue_half(main: Mainloop, stage: cutlass.Int32, half: cutlass.Constexpr):
    """Issue one half's wgmmas over one stage as a commit group of its own: from zero."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(main.tCrA, mode=[2])):  # each step is 32 elements, 32 bytes, along K
        mma = main.overwrite if k == 0 else main.accumulate
        tCrA = cute.append_ones(main.tCrA[None, half, k, stage], up_to_rank=2)  # (MMA, 1)
        cute.gemm(mma, main.acc, tCrA, main.tCrB[None, None, k, stage], main.acc)
    warpgroup.commit_group()


@cute.jit
def promote(
    acc: cute.Tensor,
    total: cute.Tensor,
    half: cutlass.Constexpr,
    rS: cute.Tensor,
    first: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Add one half's partial sums, times their scale factors, to the totals in float32."""
    rF = cute.make_rmem_tensor(2, cutlass.Float32)
    columns = cute.make_layout((2, 2, config.span // 8))  # of a span: (2 columns, 2 rows, columns / 8)
    by_row = cute.make_layout(columns.shape, stride=(0, 1, 0))
    for span in cutlass.range_constexpr(config.spans):
        for r in cutlass.range_constexpr(2):
            rF[r] = rS[2 * half + r] * rS[2 * config.halves + span]
        at = span * cute.size(columns)
        values = cute.make_tensor(acc.iterator + at, columns).load()
        values = values * cute.make_tensor(rF.iterator, by_row).load()  # and the addition below: one FFMA each
        part = cute.make_tensor(total.iterator + half * cute.size(acc) + at, columns)
        part.store(values if first else part.load() + values)


# %% [markdown]
# ## Scale factors
#
# A k-tile of the large variant needs 257 factors: of 256 rows of A, and of its block of B. TMA cannot load them: it
# needs lines aligned to 16 bytes. So a warp copies them into stages of shared memory with `cp.async`, a word a lane.
#
# Each lane arrives at a stage's full barrier when its copies are there, and each consumer thread at the empty one when
# it has read. A thread's accumulators of a half lie in two rows, `lane / 4` and 8 below: it reads four factors, and one
# of B for each span.
#
# **Why `.noinc`?** `producer_commit` is the instruction `cp.async.mbarrier.arrive.noinc`: the hardware arrives for a
# lane once all copies before it are there, and the lane goes on. Without `.noinc` it would first raise the barrier's
# pending count by one. Then this arrival would not count among the 32 that the barrier waits for.
#
# **Why every thread?** One lane could arrive for its warp, after `sync_warp`: that is right too. But [racecheck follows
# no such order](../../docs/checking.md), and reports these reads as races.
#
# **Why not straight into registers?** The first version of this kernel did that: each consumer thread loaded its five
# factors from global memory, one k-tile ahead. Results were right, and on an H200, in a run that is not recorded, a
# k-tile took nearly twice as long. A likely reason: `wgmma.fence` orders accesses to registers, so it waits for loads
# that are on their way to *any* register, needed now or not. Loads from shared memory are short, and `read_scales`
# comes after the wgmmas are issued, whose time hides it.


# %%
class ScaleStages(NamedTuple):
    """Scale factors on their way from the warp that copies them to the consumers."""

    pipe: pipeline.PipelineCpAsync
    sS: cute.Tensor  # (TILE_M + SPANS, STAGE): of a k-tile's rows of A, then of the spans of its tile of B


def element_of(x: cute.Tensor, row, column) -> cute.Tensor:
    """The element (row, column) as a tensor."""
    return cute.local_tile(x, (1, 1), (row, column))


@cute.jit
def fetch_scales(
    scales: ScaleStages,
    scale_a: cute.Tensor,
    scale_b: cute.Tensor,
    scheduler: LookupScheduler,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """One warp: copy the factors of k-tile after k-tile into stages, and tell the consumers when they are there."""
    lane, pipe, sS = cute.arch.lane_idx(), scales.pipe, scales.sS
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    write = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.scale_stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        m, n = looked_up(scheduler, i, config)
        column = (n * config.tile_n + lane * config.span) // BLOCK  # of this lane's span of the tile
        column = cutlass.min(column, cute.size(scale_b, mode=[1]) - 1)
        for j in cutlass.range(k_tiles, unroll=1):
            block = j + (i & 1) * (k_tiles - 1 - 2 * j)  # in the order in which the producer loads
            pipe.producer_acquire(write)
            for first in cutlass.range_constexpr(0, config.tile_m, 32):  # past the last row, that one's
                row = cutlass.min(m * config.tile_m + first + lane, cute.size(scale_a, mode=[0]) - 1)
                cute.copy(copy, element_of(scale_a, row, block), element_of(sS, first + lane, write.index))
            if lane < config.spans:
                cute.copy(copy, element_of(scale_b, block, column), element_of(sS, config.tile_m + lane, write.index))
            pipe.producer_commit(write)  # this lane arrives once its copies are there
            write.advance()


@cute.jit
def read_scales(scales: ScaleStages, epi: Epilogue, k_index: cutlass.Int32, config: cutlass.Constexpr):
    """Read this thread's factors of a k-tile, counted over all work tiles: two for each half, then those of B."""
    stage, phase = k_index % config.scale_stages, k_index // config.scale_stages & 1
    state = pipeline.PipelineState(config.scale_stages, k_index, stage, phase)
    scales.pipe.consumer_wait(state)
    rS = cute.make_rmem_tensor(2 * config.halves + config.spans, cutlass.Float32)
    row = epi.warpgroup * 64 + epi.thread // 32 * 16 + epi.thread % 32 // 4
    for i in cutlass.range_constexpr(2 * config.halves):
        rS[i] = scales.sS[row + i // 2 * 128 + i % 2 * 8, state.index]
    for span in cutlass.range_constexpr(config.spans):
        rS[2 * config.halves + span] = scales.sS[config.tile_m + span, state.index]
    scales.pipe.consumer_release(state)
    return rS


# %% [markdown]
# ## The overlapped epilogue
#
# At the end of a work tile a thread rounds its totals into `rC`, half as many registers, and begins the next tile. It
# stores `rC` while the wgmmas of the first k-tile run: half of the subtiles under those of each half. The promotion of
# a half's first k-tile overwrites that half's totals, after its subtiles have been stored. So totals and `rC` of a half
# are never held at once, and can share registers.
#
# One subtile is stored as in [the overlapped epilogue](overlapped_epilogue_gemm.ipynb). Only its named barrier is made
# where it is used, so that one register less lives across the wait.


# %%
@cute.jit
def store_subtile(epi: Epilogue, i: cutlass.Constexpr, rC: cute.Tensor, tile: tuple, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile (m, n). rC: a thread's rounded values, (MMA, 1, 1)."""
    storing = cute.arch.make_warp_uniform(epi.thread // 32) == 0
    thr, buffer = epi.r2s_c.get_slice(epi.thread), i % config.epi_stages
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128).arrive_and_wait()  # TMA has read the buffer
    cute.copy(epi.r2s_c, thr.retile(rC), thr.partition_D(epi.sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128).arrive_and_wait()  # all have written
    if storing:
        gC = cute.zipped_divide(epi.gC[None, None, tile[0], tile[1]], (64, config.epi_n))  # (EPI_TILE, subtiles)
        sC = cute.group_modes(epi.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
        bSsC, bSgC = cpasync.tma_partition(epi.tma_c, 0, cute.make_layout(1), sC, gC)
        across = config.tile_n // config.epi_n
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(epi.tma_c, bSsC[None, buffer], bSgC[None, (i // across * 2 + epi.warpgroup, i % across)])
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def store_half(epi: Epilogue, half: cutlass.Constexpr, rC: cute.Tensor, tile: tuple, config: cutlass.Constexpr):
    """Store the subtiles of one half of this warpgroup's rows. rC: all that a thread has of the tile, rounded."""
    across = config.tile_n // config.epi_n
    for i in cutlass.range_constexpr(half * across, (half + 1) * across):
        store_subtile(epi, i, subtile_of(rC, i, config), tile, config)


# %% [markdown]
# A k-tile is multiplied half by half. Under the wgmmas of a work tile's first one, `rC` goes out.


# %%
@cute.jit
def multiply_k_tile(
    main: Mainloop,
    total: cute.Tensor,
    epi: Epilogue,
    scales: ScaleStages,
    read: pipeline.PipelineState,
    rC: cute.Tensor,
    before: cutlass.Int32,
    scheduler: LookupScheduler,
    first: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Multiply one k-tile. `first`: of a work tile; under its wgmmas `rC` is stored, the work tile number `before`."""
    main.pipe.consumer_wait(read)
    for half in cutlass.range_constexpr(config.halves):
        issue_half(main, read.index, half)
        if cutlass.const_expr(half == 0):
            rS = read_scales(scales, epi, read.count, config)
        if cutlass.const_expr(first):
            if before >= 0:
                store_half(epi, half, rC, looked_up(scheduler, before, config), config)
        warpgroup.wait_group(0)
        if cutlass.const_expr(half == config.halves - 1):
            main.pipe.consumer_release(read)
        promote(main.acc, total, half, rS, first, config)
    read.advance()
    return read


@cute.jit
def compute(
    main: Mainloop,
    total: cute.Tensor,
    epi: Epilogue,
    scales: ScaleStages,
    scheduler: LookupScheduler,
    config: cutlass.Constexpr,
):
    """Compute a warpgroup's share of all work tiles."""
    rC = cute.make_rmem_tensor(cute.size(total), epi.sC.element_type)  # the work tile before, rounded
    for i in cutlass.range(scheduler.count, unroll=1):
        read = state_at(i * main.k_tiles, config)
        read = multiply_k_tile(main, total, epi, scales, read, rC, i - 1, scheduler, True, config)
        for _ in cutlass.range(1, main.k_tiles, unroll=1):
            read = multiply_k_tile(main, total, epi, scales, read, rC, i - 1, scheduler, False, config)
        rC.store(total.load().to(rC.element_type))
    for half in cutlass.range_constexpr(config.halves):
        store_half(epi, half, rC, looked_up(scheduler, scheduler.count - 1, config), config)


# %% [markdown]
# `make_mainloop` makes accumulators for a warpgroup's part of the whole tile: here these are the totals. What `wgmma`
# adds to is one half.


# %%
@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    scales: ScaleStages,
    scheduler: LookupScheduler,
    k_tiles: cutlass.Int32,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. c: tiles of C; thread: in the warpgroup."""
    main = make_mainloop(cta, op, group * 128, k_tiles, config)  # the slice of its first thread: the same for all
    total, half = main.acc, main.accumulate.get_slice(0).partition_shape_C((128, config.tile_n))
    main = main._replace(acc=cute.make_rmem_tensor(half, cutlass.Float32))
    epi = make_epilogue(cta.sC, c, r2s_c, group, thread, config)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still write what this warpgroup reads and stores
    compute(main, total, epi, scales, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The kernel
#
# Two warps load, two warpgroups multiply, in the frame of [the row-wise GEMM](fp8_gemm.ipynb#the-kernel). New is a
# second pipeline, of the stages of scale factors.


# %%
@cute.jit
def set_up(layouts: SmemLayouts, dtypes: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory, and set up the barriers of both pipelines. Returns `Cta` and `ScaleStages`."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    scale_barriers = smem.allocate_array(cutlass.Int64, 2 * config.scale_stages)
    sS = smem.allocate_tensor(cutlass.Float32, cute.make_layout((config.factors, config.scale_stages)), 16)
    sA, sB, sC = allocate_tiles(smem, layouts, dtypes)
    pipe = make_pipeline(barriers, config)
    scale_pipe = pipeline.PipelineCpAsync.create(
        barrier_storage=scale_barriers,
        num_stages=config.scale_stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32),  # each lane, when its copies are there
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * 128),  # each thread, when it has read
        defer_sync=True,
    )
    meet_cluster()
    return Cta(pipe, sA, sB, sC), ScaleStages(scale_pipe, sS)


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    scale_a: cute.Tensor,  # (M, K / 128)
    scale_b: cute.Tensor,  # (K / 128, N / 128)
    remap: cute.Pointer,  # Int32, by cluster: the number of its first cluster tile
    raster: Raster,
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtypes: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/fp8_blockwise_gemm:

    warps  do          wait for    signal
    0-7    wgmma       full[4]     empty[4]: 1 a warp, in 2 CTAs
           TMA stores  full 2[2]   empty 2[2]: 32 a warp
    8      TMA loads   empty[4]    full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs
    9      cp.async    empty 2[2]  full 2[2]: 32 when its copies are there

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    full 2[2]: 32 arrivals a phase.
    empty 2[2]: 256 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    cluster = cute.arch.block_idx()[0] // config.cluster
    step = cute.arch.grid_dim()[0] // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta, scales = set_up(layouts, dtypes, config)
    rank = rank_in_cluster(config)
    first = first_tile(remap, cluster, step, config)
    count = (raster.tiles + step - 1 - first) // raster.by_step
    scheduler = LookupScheduler(raster, remap, cluster, step, count, rank)

    gA = cute.local_tile(a.coords, (config.loaded_m, config.tile_k), (None, None))  # (LOADED_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cute.size(gA, mode=[3])
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            everyone = cutlass.Int16((1 << config.cluster) - 1)
            sA = cute.local_tile(cta.sA, (config.loaded_m, config.tile_k), (0, 0, None))  # (LOADED_M, TILE_K, STAGE)
            load_a = partition_load(a.atom, gA, sA, rank[1], config.cluster_n, everyone)
            load_b = partition_load(b.atom, gB, cta.sB, rank[0], config.cluster_m, everyone)
            produce(cta.pipe, (load_a, load_b), scheduler, k_tiles, config)
        if warp_idx == 9:
            fetch_scales(scales, scale_a, scale_b, scheduler, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        consume(cta, op, TmaTensor(c.atom, gC), scales, scheduler, k_tiles, r2s_c, group, tidx % 128, config)


# %% [markdown]
# ## The launch
#
# As of [the row-wise GEMM](fp8_gemm.ipynb#the-launch), with scale factors that have two strides each, and a load of A
# with the rows of its box.


# %%
class BlockwiseSizes(NamedTuple):
    """The arguments of a launch besides the addresses of its tensors."""

    remap: cute.Pointer  # Int32, by cluster: the number of its first cluster tile
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    clusters: cutlass.Int32
    strides_sa: tuple[cutlass.Int32, cutlass.Int32]  # of scale factors: from row to row, from block to block along K
    strides_sb: tuple[cutlass.Int32, cutlass.Int32]  # from block to block along K, and along N


def scale_tensors(pSA: cute.Pointer, pSB: cute.Pointer, sizes: BlockwiseSizes):
    """The scale factors of all blocks of A, and of B."""
    m, n, k = sizes.mnk
    blocks_n, blocks_k = cute.ceil_div(n, BLOCK), cute.ceil_div(k, BLOCK)
    scale_a = cute.make_tensor(pSA, cute.make_layout((m, blocks_k), stride=sizes.strides_sa))
    scale_b = cute.make_tensor(pSB, cute.make_layout((blocks_k, blocks_n), stride=sizes.strides_sb))
    return scale_a, scale_b


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    pSA: cute.Pointer,
    pSB: cute.Pointer,
    sizes: BlockwiseSizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed, each times the scale factors of its blocks."""
    (m, n, _), ctas, dtypes = sizes.mnk, config.cluster, (E4M3, E4M3, pC.dtype)
    mA, mB, mC = matrices(pA, pB, pC, sizes.mnk, sizes.strides)
    layouts, r2s_c = smem_layouts(pC.dtype, config), tiled_copies(pC.dtype, config).r2s_c
    a, b, c = tma_tensors(mA, mB, mC, layouts, config)
    if cutlass.const_expr(config.box_m):
        box = cute.composition(cute.slice_(layouts.a, (None, None, 0)), (config.box_m, config.tile_k))
        a = make_load(mA, box, (config.box_m, config.tile_k), config.cluster_n)
    scale_a, scale_b = scale_tensors(pSA, pSB, sizes)
    raster, op = rasterize(m, n, sizes.clusters, config), wgmma_fp8(config.tile_n)
    launcher = kernel(a, b, c, scale_a, scale_b, sizes.remap, raster, layouts, r2s_c, op, dtypes, config)
    grid, block, cluster = ((x, 1, 1) for x in (sizes.clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    scale, table = (cutlass.Float32, 4), (cutlass.Int32, 4)
    pointers = (E4M3, 16), (E4M3, 16), (dtype, 16), scale, scale, table
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## GPC-aware remapping
#
# As in [the tuned GEMM](tuned_gemm.ipynb#gpc-aware-remapping), for clusters of two, by [the page
# before](fp8_gemm.ipynb#gpc-aware-remapping)'s figures of one H200.


# %% tags=["folded"]
CALIBRATION = Calibration()


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(gpcs=launch_order())`, say."""
    global CALIBRATION
    CALIBRATION = calibrated(CALIBRATION, **figures)
    for each in GEMMS.values():
        each.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


# %% [markdown]
# ## `matmul`
#
# The operands and their scale factors are those of `torch.nn.functional.scaled_mm` with `BlockWise1x128` for A and
# `BlockWise128x128` for B.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    m, n, k = call.mnk
    config = VARIANTS[choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant]
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count, CALIBRATION)
    sizes = BlockwiseSizes(remap, call.mnk, call.strides, count, call.known["scale_a"], call.known["scale_b"])
    return (replace(boxed(config, m), gpc_aware=remap != 0),), (sizes,)


# %% [markdown]
# The scale factors are further operands. Each lies in lines of adjacent elements; torch rounds their number up, so that
# each line begins at a multiple of 16 bytes.


# %%
def in_lines(name: str, scale: torch.Tensor, known: dict[str, int]) -> tuple[int, int]:
    """Scale factors in lines of adjacent elements; their strides."""
    lines = any(stride == 1 or extent == 1 for stride, extent in zip(scale.stride(), scale.shape, strict=True))
    require(lines, name, f"strides {scale.stride()}", "one of them 1: lines of adjacent elements")
    start, _, _, end = in_memory(scale)
    span, needed = (end - start) // 4, f"at most {LARGEST}: kernels count in 32 bits"
    require(span <= LARGEST, name, f"{span} elements from first to last", needed)
    return scale.stride(0), scale.stride(1)


def whole_lines(shape: tuple[int, int]) -> tuple[int, int]:
    """The shape as torch.nn.functional.scaled_mm rounds it up: each line begins at 16 bytes."""
    return -(-shape[0] // 4) * 4, shape[1]


SCALES = (  # one for each 1 x 128 elements of A, each 128 x 128 of B
    Argument("scale_a", "M K/128", (torch.float32,), in_lines),
    Argument("scale_b", "K/128 N/128", (torch.float32,), in_lines, whole_lines),
)


# %% [markdown]
# C has another dtype than A and B, so there is a host side for each dtype of C.


# %%
def gemm_into(dtype: torch.dtype) -> FurtherGemm:
    """The host side for C of one dtype."""
    table = {"takes": {torch.float8_e4m3fn: dtype}, "operands": MATRICES + SCALES}
    return FurtherGemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), padded=True, **table)


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
    return GEMMS[dtype].matmul(a, b, scale_a, scale_b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# All variants. Level *product* follows each product to its element of C, with the factors of its block and no other.

# %% tags=["lab"]
lab.check_cells("hopper/fp8_blockwise_gemm", shapes=[(200, 333, 288)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

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
# * **Power** is the limit in a long run: ours takes a little more energy for each TFLOP than torch's. ncu's single
#   launches are not limited by power.
# * **An addition takes more than two clocks**, not one. Perhaps both warpgroups add at once, and share the one
#   instruction a clock of their scheduler; perhaps ports of the register file are busy (*dispatch stall*).
# * **No wgmma runs under a warpgroup's own additions**: they read the accumulators that its next wgmma overwrites. A
#   second set has no room next to the totals. So only the other warpgroup can keep the tensor cores busy then.
# * **The rest** is not all lost: the other warpgroup's wgmmas take as long as its own. No count says what is hidden.
#   `NANOSLEEP.SYNCS` waits at barriers; the two warps that load do so too. By the count above loads take as many clocks
#   as the wgmmas.
#
# Tried, and not recorded: **a ping-pong order** of the halves, by two named barriers as in
# [ping-pong](pingpong_gemm.ipynb): no faster; **a skew**: warpgroup 1 began each work tile when warpgroup 0 had
# multiplied its first half, so that each would add under the other's wgmmas: as many clocks; **named barriers** in
# place of the arrivals at the mbarrier of the scale factors: more clocks; **tiles of 128 x 128**, a half for each:
# slower; **of 128 x 160**, with five spans: slower.
#
# ## Conclusion
#
# Scale factors that change along K take a second set of registers, and a multiply-add of each accumulator for each 128
# of K. By count there are registers and clocks enough. Measured, additions take more than twice the clocks.
#
# Next: [fused epilogues](fused_epilogue_gemm.ipynb), for work that can wait for the end of K.
