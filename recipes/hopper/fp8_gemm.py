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
#     aside: 8 bits and less
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     kind: scaled
#     operands: fp8
#     measured_by: foundations/gpc_remapping
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma e4m3 -> scale factors -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, QGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     bench_shapes: [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 2048], [2048, 7168, 4096],
#       [4096, 2112, 7168]]
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
# Fast tiles have four widths, of which [a count of waves](#which-fast-tile) chooses one for each M, N and K.
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
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import DTYPES, MATRICES, Call, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm, along, one_for_all
from cookbook.recipes.hopper.multicast_gemm import partition_load, rank_in_cluster
from cookbook.recipes.hopper.overlapped_epilogue_gemm import (
    Epilogue,
    make_epilogue,
    make_pipeline,
    meet_cluster,
    store_subtile,
    subtile_of,
)
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    allocate_tiles,
    first_k_tile,
    issue_wgmmas,
    last_k_tile,
    make_mainloop,
    next_k_tile,
    state_at,
    tiled_copies,
    tma_tensors,
)
from cookbook.recipes.hopper.persistent_gemm import smem_layouts as layouts_of_type
from cookbook.recipes.hopper.tile_heuristics import Calibration as TunedCalibration
from cookbook.recipes.hopper.tile_heuristics import calibrated, clusters, waves
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor
from cookbook.recipes.hopper.tuned_gemm import Config as TunedConfig
from cookbook.recipes.hopper.tuned_gemm import Raster, Scheduler, produce, rasterize, remap_of, work_tile

# %% [markdown]
# ## The sizes
#
# | variant | work tile | registers of a thread: accumulators, totals, C rounded | stages |
# |---|---|---|---|
# | `128x256` | 128 x 256 | 128 + 0 + 64 | 4 |
# | `128x224` | 128 x 224 | 112 + 0 + 56 | 4 |
# | `128x192` | 128 x 192 | 96 + 0 + 48 | 5 |
# | `128x128` | 128 x 128 | 64 + 0 + 32 | 6 |
# | `promoted` | 128 x 192 | 96 + 96 + 48, never all three at once | 4 |
# | `promoted, every 2` | the same | the same | 4 |
#
# A k-tile is 128 *bytes* of a row in every recipe of this track: 64 elements of 16 bits, 128 of 8. So stages, boxes of
# TMA and shared memory are as large as before. A k-tile of `128x256` takes as many clocks as one of 16 bits: 128 x 256
# x 128 / 4096 = 1024. Promotion doubles the accumulators; two consumer warpgroups have room for that if the tile is
# narrower.
#
# **Clusters of two rows.** Two fast tiles, one above the other, share the columns of B. A cluster of `128x256` covers
# 256 x 256 of C and reads 512 elements of A and B for each k; side by side the two would read 128 + 512. A wave has 66
# clusters on 132 SMs, in groups of 8: as rows they need 8 x 256 columns and 9 x 256 rows, 4352 elements for each k. As
# columns they would need 8 x 128 rows and 9 x 512 columns, 5632.
#
# **Epilogue subtiles of 32 columns.** With subtiles of 64 the wide tiles stop for longer between two work tiles; why is
# not known. Seven subtiles of 224 columns take one buffer or seven: one leaves room for four stages. `128x128`, where
# the width made no difference, has subtiles of 64.


# %%
@dataclass(frozen=True)
class Config(TunedConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    promote_every: int = 0  # k-tiles after which partial sums go to a second set of registers; 0: never (fast)

    both_ways = False  # a cluster shares one operand
    heights = (128,)  # of a work tile: a warpgroup has a scale factor of A for each of 64 rows

    def __post_init__(self):
        require(self.tile_m in self.heights, "tile_m", self.tile_m, f"one of {self.heights}")
        super().__post_init__()

    @property
    def min_k_tiles(self) -> int:
        """K-tiles at least, under which the work tile before is stored. TMA fills those past K with zeros."""
        return 1 if self.promote_every else max(1, self.overlapped)

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
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + self.epi_bytes


def promoted(every: int) -> Config:
    """A narrower tile, of which partial sums of `every` k-tiles are promoted."""
    return Config(tile_n=192, overlapped=3, epi_stages=3, promote_every=every)


def fast(tile_n: int, stages: int, epi_n: int = 64, epi_stages: int = 1) -> Config:
    """A tile of 128 x `tile_n`, not promoted; two of them, one above the other, share B. All of C is overlapped."""
    epilogue = {"overlapped": tile_n // epi_n, "epi_n": epi_n, "epi_stages": epi_stages}
    return Config(tile_n=tile_n, stages=stages, cluster_m=2, cluster_n=1, **epilogue)


FAST = {
    "128x256": fast(256, 4, epi_n=32, epi_stages=2),
    "128x224": fast(224, 4, epi_n=32),
    "128x192": fast(192, 5, epi_n=32),
    "128x128": fast(128, 6, epi_stages=2),
}
VARIANTS = FAST | {"promoted": promoted(1), "promoted, every 2": promoted(2)}
DEFAULT = "auto"  # the fast one that `choose` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
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
#
# So the layouts are [the persistent GEMM](persistent_gemm.ipynb)'s, of the operands' type and of C's. The copy of C is
# imported too: the accumulators of an 8-bit `wgmma` lie in the same registers as those of a 16-bit one.


# %%
E4M3, E5M2 = cutlass.Float8E4M3FN, cutlass.Float8E5M2
ELEMENT, SCALE = E4M3, cutlass.Float32  # what the checks multiply
BLOCK = 0  # elements along K of a scale factor; 0: a row has one


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """Tiles of A and B, of 8-bit elements, and the epilogue's buffers of C, which is of `dtype`."""
    return layouts_of_type(E4M3, config)._replace(c=layouts_of_type(dtype, config).c)


def wgmma_fp8(columns: int, a=E4M3, b=E4M3) -> warpgroup.MmaF8Op:
    """64 rows of A times 32 x `columns` of B, both from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF8Op(a, b, cutlass.Float32, (64, columns, 32), smem, k_major, k_major)


def tiled_mma(dtype, config: Config, a=E4M3, b=E4M3) -> cute.TiledMma:
    """The wgmmas of the warpgroups that share a work tile."""
    return cute.make_tiled_mma(wgmma_fp8(config.tile_n, a, b), (config.warpgroups, 1, 1))


# %% [markdown] tags=["lab"]
# The eight rows of an atom of A. A cell is a chunk of 16 bytes, here 16 elements. Chunk `c` of row `r` lies at `c ^ r`.

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, CONFIG, element_bits=8).a)

# %% [markdown]
# ## The tile scheduler and the producer
#
# They count in tiles, not in elements, and are imported from [the tuned GEMM](tuned_gemm.ipynb#the-tile-scheduler).
# Persistent clusters of two CTAs share the tiles of B, or of A where sums are promoted. The rasterization goes in
# groups of `swizzle_size`, and every other work tile is loaded from the end of K.
#
# ## The main loop: fast and promoted
#
# A stage holds 128 elements along K, four `wgmma` steps of 32 or 32 bytes each. The first k-tile, the next and the last
# are [the persistent GEMM](persistent_gemm.ipynb#the-consumers)'s: `Mainloop` has two MMAs, one that overwrites the
# accumulators and one that adds to them. `accumulate` is the usual main loop: all k-tiles are added up there.


# %%
@cute.jit
def accumulate(
    main: Mainloop, read: pipeline.PipelineState, release: pipeline.PipelineState, config: cutlass.Constexpr
):
    """Multiply the rest of a work tile, all in the accumulators of wgmma."""
    for _ in cutlass.range(config.min_k_tiles, main.k_tiles, unroll=1):
        read, release = next_k_tile(main, read, release)
    last_k_tile(main, release)


# %% [markdown]
# `accumulate_promoted` begins at zero every `promote_every` k-tiles, waits until the accumulators are complete, and
# adds them to `total`. While one warpgroup adds, the other one's wgmmas can keep the tensor cores busy.


# %%
@cute.jit
def promote(main: Mainloop, total: cute.Tensor, read: pipeline.PipelineState, k_tiles: cutlass.Constexpr):
    """Multiply `k_tiles` k-tiles from zero, and add the partial sums to the totals. Returns the state behind them."""
    release = read.clone()
    for j in cutlass.range_constexpr(k_tiles):
        main.pipe.consumer_wait(read)
        issue_wgmmas(main, read.index, j == 0)
        read.advance()
        if cutlass.const_expr(j > 0):
            warpgroup.wait_group(1)
            main.pipe.consumer_release(release)
            release.advance()
    last_k_tile(main, release)
    total.store(total.load() + main.acc.load())
    return read


@cute.jit
def accumulate_promoted(
    main: Mainloop,
    total: cute.Tensor,
    read: pipeline.PipelineState,
    release: pipeline.PipelineState,
    config: cutlass.Constexpr,
):
    """Multiply the rest of a work tile; after `promote_every` k-tiles add partial sums to the totals in float32."""
    last_k_tile(main, release)
    total.store(main.acc.load())
    every, left = config.promote_every, main.k_tiles - 1
    for _ in cutlass.range(left // every, unroll=1):
        read = promote(main, total, read, every)
    if cutlass.const_expr(every > 1):
        for _ in cutlass.range(left % every, unroll=1):
            read = promote(main, total, read, 1)


# %% [markdown]
# ## Scale factors
#
# A factor of a row of A or of a column of B does not depend on k, so it may multiply the finished accumulator. That
# takes one multiplication by the row's factor, one by the column's, then the rounding. A scale of the whole matrix has
# stride 0.
#
# A warpgroup's threads fetch the 64 + `tile_n` factors of a work tile while the first k-tile is multiplied: each loads
# its share into registers. It writes the share to shared memory when all threads have read the factors of the work tile
# before.


# %%
class Scales(NamedTuple):
    """The scale factors of a consumer warpgroup."""

    a: cute.Tensor  # (M), global memory: stride 0 for one factor of all
    b: cute.Tensor  # (N)
    sS: cute.Tensor  # (64 + TILE_N), shared memory: of this warpgroup's rows of a work tile, and of its columns


@cute.jit
def fetch_scales(scales: Scales, epi: Epilogue, tile: tuple, config: cutlass.Constexpr):
    """Load the scale factors of this warpgroup's part of a work tile (m, n), a few a thread. Past C: the last one."""
    rS = cute.make_rmem_tensor(1 + -(-config.tile_n // 128), cutlass.Float32)
    first = tile[0] * config.tile_m + epi.warpgroup * 64
    rS[0] = scales.a[cutlass.min(first + epi.thread % 64, cute.size(scales.a) - 1)]
    for i in cutlass.range_constexpr(1, cute.size(rS)):
        column = tile[1] * config.tile_n + 128 * (i - 1) + epi.thread
        rS[i] = scales.b[cutlass.min(column, cute.size(scales.b) - 1)]
    return rS


@cute.jit
def keep_scales(scales: Scales, epi: Epilogue, rS: cute.Tensor, config: cutlass.Constexpr):
    """Write them to shared memory, once all threads have read those of the work tile before."""
    pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128).arrive_and_wait()
    if epi.thread < 64:
        scales.sS[epi.thread] = rS[0]
    for i in cutlass.range_constexpr(1, cute.size(rS)):
        column = 128 * (i - 1) + epi.thread
        if column < config.tile_n:
            scales.sS[64 + column] = rS[i]


# %% [markdown]
# A thread holds two rows of an accumulator tile, `lane / 4` and 8 below, and of every 8 columns two. So it reads two
# factors of rows, and two neighbours for every 8 columns. Layouts of stride 0 spread them over a subtile's values.


# %%
@cute.jit
def scaled(scales: Scales, epi: Epilogue, total: cute.Tensor, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's part of subtile `i`, times its rows' and columns' scale factors, rounded."""
    sS, lane = scales.sS, epi.thread % 32
    rR = cute.make_rmem_tensor(2, cutlass.Float32)
    for j in cutlass.range_constexpr(2):
        rR[j] = sS[epi.thread // 32 * 16 + lane // 4 + 8 * j]
    first = cute.assume(64 + i * config.epi_n + lane % 4 * 2, divby=2)
    sN = cute.make_tensor(sS.iterator + first, cute.make_layout((2, config.epi_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, cutlass.Float32)
    cute.autovec_copy(sN, rN)
    by_row = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((0, 1, 0), 0, 0))  # of the MMA's values
    by_column = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((1, 0, 2), 0, 0))
    values = subtile_of(total, i, config).load()
    values = values * cute.make_tensor(rR.iterator, by_row).load() * cute.make_tensor(rN.iterator, by_column).load()
    return values.to(epi.sC.element_type)


# %% [markdown]
# ## The overlapped epilogue
#
# At the end of a work tile a warpgroup scales and rounds its accumulators into `rC`, half as many registers. It stores
# `rC` under the first k-tiles of the next work tile, in subtiles of 64 x 64 or 64 x 32, as [the page about this
# epilogue](overlapped_epilogue_gemm.ipynb) does: `store_subtile` is imported.
#
# A subtile goes to buffer `j % epi_stages`, after a `wait_group` for the one stored the longest ago. Across work tiles
# that is right only if `epi_stages` divides the number of subtiles. With 3 subtiles and 2 buffers results were right on
# a GPU, but level *pipeline* found a race: so `Config` refuses it.
#
# What is new is between two work tiles: the factors of the next one come while its first k-tile is multiplied.


# %%
@cute.jit
def begin_tile(
    main: Mainloop,
    epi: Epilogue,
    scales: Scales,
    scheduler: Scheduler,
    i: cutlass.Int32,
    rC: cute.Tensor,
    before: tuple,
    config: cutlass.Constexpr,
):
    """Multiply the first k-tiles of work tile `i`; meanwhile store `rC`, the tile `before`, and fetch scale factors.

    Returns the states to read and release at, and the work tile (m, n).
    """
    read, release = state_at(i * main.k_tiles, config), state_at(i * main.k_tiles, config)
    read = first_k_tile(main, read)
    tile = work_tile(scheduler, i, config)
    rS = fetch_scales(scales, epi, tile, config)
    for j in cutlass.range_constexpr(config.subtiles):
        if i > 0:
            store_subtile(epi, j, subtile_of(rC, j, config), before, config)
        if cutlass.const_expr(j + 1 < config.min_k_tiles):
            read, release = next_k_tile(main, read, release)
    keep_scales(scales, epi, rS, config)
    return read, release, tile


@cute.jit
def compute(
    main: Mainloop,
    total: cute.Tensor,
    epi: Epilogue,
    scales: Scales,
    scheduler: Scheduler,
    config: cutlass.Constexpr,
):
    """Compute a warpgroup's half of all work tiles. total: `main.acc`, or what partial sums are promoted to."""
    rC = cute.make_rmem_tensor(config.tile_n // 2, epi.sC.element_type)  # the work tile before, rounded
    tile = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(scheduler.count, unroll=1):
        read, release, tile = begin_tile(main, epi, scales, scheduler, i, rC, tile, config)
        if cutlass.const_expr(config.promote_every):
            accumulate_promoted(main, total, read, release, config)
        else:
            accumulate(main, read, release, config)
        # Past this barrier all scale factors of the work tile are in shared memory.
        pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128).arrive_and_wait()
        for j in cutlass.range_constexpr(config.subtiles):
            subtile_of(rC, j, config).store(scaled(scales, epi, total, j, config))
    for j in cutlass.range_constexpr(config.subtiles):
        store_subtile(epi, j, subtile_of(rC, j, config), tile, config)


# %%
@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    scales: Scales,
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. c: tiles of C; thread: in the warpgroup."""
    main = make_mainloop(cta, op, group * 128, k_tiles, config)  # the slice of its first thread: the same for all
    total = cute.make_rmem_tensor(main.acc.shape, cutlass.Float32) if config.promote_every else main.acc
    scales = scales._replace(sS=scales.sS[None, group])
    epi = make_epilogue(cta.sC, c, r2s_c, group, thread, config)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still write what this warpgroup reads and stores
    compute(main, total, epi, scales, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The kernel
#
# Shared memory has a place for scale factors, in front of the tiles. A and B may be of two types, e4m3 and e5m2, so
# `dtypes` has three: theirs and C's. The pipeline is as on [the page about this
# epilogue](overlapped_epilogue_gemm.ipynb#the-kernel).


# %%
@cute.jit
def set_up(layouts: SmemLayouts, dtypes: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory and set up the barriers. Returns the `Cta`, and scale factors (64 + TILE_N, WARPGROUP)."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    sS = smem.allocate_tensor(cutlass.Float32, cute.make_layout((config.scales, 2)), 16)
    sA, sB, sC = allocate_tiles(smem, layouts, dtypes)
    pipe = make_pipeline(barriers, config)
    meet_cluster()
    return Cta(pipe, sA, sB, sC), sS


# %% [markdown]
# One warp produces, two warpgroups consume. With a table of the remapping `produce` does not call `launch_dependents`:
# CTAs of the next kernel that begin early would change where its clusters run.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    scale_a: cute.Tensor,  # (M)
    scale_b: cute.Tensor,  # (N)
    remap: cute.Pointer,  # Int32, by cluster: the number of its first cluster tile
    raster: Raster,
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtypes: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/fp8_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    first, step = block // config.cluster, blocks // config.cluster
    if cutlass.const_expr(config.gpc_aware):  # this load takes longer than all that is set up meanwhile
        first = cute.make_tensor(remap, cute.make_layout(step))[first]
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta, sS = set_up(layouts, dtypes, config)
    rank = rank_in_cluster(config)
    first = cute.arch.make_warp_uniform(first)
    scheduler = Scheduler(raster, first, step, (raster.tiles + step - 1 - first) // raster.by_step, rank)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cutlass.max(cute.size(gA, mode=[3]), config.min_k_tiles)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            everyone = cutlass.Int16((1 << config.cluster) - 1)
            load_a = partition_load(a.atom, gA, cta.sA, rank[1], config.cluster_n, everyone)
            load_b = partition_load(b.atom, gB, cta.sB, rank[0], config.cluster_m, everyone)
            tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(scheduler, 0, config))
            produce(cta.pipe, (load_a, load_b), scheduler, tile, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        scales = Scales(scale_a, scale_b, sS)
        consume(cta, op, TmaTensor(c.atom, gC), scales, scheduler, k_tiles, r2s_c, group, tidx % 128, config)


# %% [markdown]
# ## The launch
#
# As many clusters as the number of waves needs, as in the tuned GEMM. Rows of A and B begin at multiples of 16 elements
# now: an element is one byte, and TMA needs 16.


# %%
def matrices(pA: cute.Pointer, pB: cute.Pointer, pC: cute.Pointer, mnk: tuple, strides: tuple, vec: int = 8):
    """A (M, K) and B (N, K), of 8-bit elements, and C (M, N), whose rows begin at multiples of `vec` elements."""
    (m, n, k), by = mnk, (16, 16, vec)
    lda, ldb, ldc = (cute.assume(stride, divby=divisor) for stride, divisor in zip(strides, by, strict=True))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    return mA, mB, mC


@cute.jit
def launch(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    pSA: cute.Pointer,
    pSB: cute.Pointer,
    sizes: tuple,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    scale_tensors: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Launch a kernel of scaled operands. `scale_tensors` makes the scale factors' tensors of pSA, pSB and `sizes`."""
    (m, n, _), ctas, dtypes = sizes.mnk, config.cluster, (pA.dtype, pB.dtype, pC.dtype)
    mA, mB, mC = matrices(pA, pB, pC, sizes.mnk, sizes.strides)
    layouts, r2s_c = smem_layouts(dtypes[2], config), tiled_copies(dtypes[2], config).r2s_c
    a, b, c = tma_tensors(mA, mB, mC, layouts, config)
    scale_a, scale_b = scale_tensors(pSA, pSB, sizes)
    raster, op = rasterize(m, n, sizes.clusters, config), wgmma_fp8(config.tile_n, *dtypes[:2])
    launcher = kernel(a, b, c, scale_a, scale_b, sizes.remap, raster, layouts, r2s_c, op, dtypes, config)
    grid, block, cluster = ((x, 1, 1) for x in (sizes.clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


# %%
class ScaledSizes(NamedTuple):
    """The arguments of a launch besides the addresses of its tensors."""

    remap: cute.Pointer  # Int32, by cluster: the number of its first cluster tile
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    clusters: cutlass.Int32
    stride_sa: cutlass.Int32  # from one scale factor to the next
    stride_sb: cutlass.Int32


def scale_tensors(pSA: cute.Pointer, pSB: cute.Pointer, sizes: ScaledSizes):
    """The scale factors of all rows of A, and of all columns of B."""
    m, n, _ = sizes.mnk
    scale_a = cute.make_tensor(pSA, cute.make_layout((m,), stride=(cutlass.Int64(sizes.stride_sa),)))
    scale_b = cute.make_tensor(pSB, cute.make_layout((n,), stride=(cutlass.Int64(sizes.stride_sb),)))
    return scale_a, scale_b


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    pSA: cute.Pointer,
    pSB: cute.Pointer,
    sizes: ScaledSizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = scale_a (M, 1) * A (M, K) times B (N, K) transposed * scale_b (1, N)."""
    launch(pA, pB, pC, pSA, pSB, sizes, stream, kernel, scale_tensors, config)


def compile_for(arch: str, dtype, config: Config | None = None, a=E4M3, b=E4M3, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. a, b: their element types."""
    scale = cutlass.Float32, 4
    pointers = (a, 16), (b, 16), (dtype, 16), scale, scale, (cutlass.Int32, 4)  # the last one to the remapping's table
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## GPC-aware remapping
#
# As in [the tuned GEMM](tuned_gemm.ipynb#gpc-aware-remapping). `Calibration.gpcs` says which GPC each cluster starts
# in, of an H200. On another one, `launch_order()` of [the page about GPCs](../foundations/gpc_remapping.ipynb) finds
# that out: `calibrate(gpcs=launch_order())`. A checkout keeps it after `cookbook calibrate hopper/fp8_gemm`.


# %% tags=["folded"]
@dataclass(frozen=True)
class Calibration(TunedCalibration):
    """The remapping's figures of one chip, `short` and `gpcs`: the defaults are of an H200."""

    short: float = 30_000  # the tuned GEMM's number of clocks, each of twice as many multiply-adds


CALIBRATION = Calibration()


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(gpcs=launch_order())`, say."""
    global CALIBRATION
    CALIBRATION = calibrated(CALIBRATION, **figures)
    for each in GEMMS.values():
        each.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


# %% [markdown]
# ## Which fast tile
#
# Tiles are whole, so a product takes whole [*waves*](tile_heuristics.ipynb#waves). A wave takes its k-tiles, at an SM's
# 4096 multiply-adds of 8 bits a clock, and the stop at its end. The stop has two parts:
#
# * **Both warpgroups scale and round**, which is counted. A thread has `tile_n / 2` accumulators. Each takes two
#   multiplications of one clock, and half of a conversion of two. A scheduler has two such warps: `3 * tile_n` clocks.
# * **A part that grows with the width of an epilogue subtile**, which is measured and not explained: `16 * epi_n`
#   clocks. The machine code between two tiles is the same but for the tile's width. What differs are the stores under
#   the next main loop.
#
# A product with fewer k-tiles than subtiles that are stored under them takes `min_k_tiles`.
#
# [The tuned GEMM](tile_heuristics.ipynb) also counts loads at the power limit, and clocks for less there. With operands
# of 8 bits times followed the clocks, on an H100, and loads decided between near ones. So the rule is: of the tiles
# within 3% of the fewest clocks the widest, which loads least. A promoted variant is never chosen: it is asked for by
# name.


# %%
ROUND_CLOCKS = 3  # to scale and round, for each column of a work tile: counted
STORE_CLOCKS = 16  # of the rest of a stop, for each column of an epilogue subtile: fitted to times of an H100
NEAR = 1.03  # clocks up to this multiple of the fewest count as equal


def clocks(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """Clocks that the busiest of `sms` SMs needs for C (m, n) over k, without the additions of a promotion."""
    k_tiles = max(-(-k // config.tile_k), config.min_k_tiles)
    stop = ROUND_CLOCKS * config.tile_n + STORE_CLOCKS * config.epi_n
    return waves(config, m, n, sms) * (k_tiles * config.tile_m * config.tile_n * config.tile_k / 4096 + stop)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The widest fast variant whose clocks are near the fewest."""
    counts = {name: clocks(config, m, n, k, sms) for name, config in FAST.items()}  # the widest first
    return next(name for name, count in counts.items() if count <= NEAR * min(counts.values()))


# %% [markdown] tags=["lab"]
# Waves and thousands of clocks of each fast tile on 132 SMs, by this count, and the tile that `choose` names:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import limits_table, results_table, table

SHAPES = [(1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 7168, 2048)]
SHAPES += [(2048, 7168, 4096), (1024, 7168, 4096), (4096, 2112, 7168), (4096, 24576, 1536)]
rows = []
for m, n, k in SHAPES:
    counts = [f"{waves(c, m, n, 132)}: {clocks(c, m, n, k, 132) / 1000:.0f}" for c in FAST.values()]
    rows.append([f"{m} x {n} x {k}", *counts, f"`{choose(m, n, k, 132)}`"])
Markdown(table(["M x N x K", *FAST, "chosen"], rows))

# %% [markdown]
# ## `matmul`
#
# `FurtherGemm`, a `Gemm` of further operands, checks a call once for each kind and keeps a *plan*: the compiled kernel
# with its launch arguments. `SCALES` are the operands after a and b: name, shape, dtype, and what must hold of where
# their elements lie. Scale factors are operands too.

# %%
ELEMENTS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (m, n, k), apart = call.mnk, call.known["scale_a"] + call.known["scale_b"]
    config = VARIANTS[choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant]
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count, CALIBRATION)
    which = replace(config, gpc_aware=remap != 0), *(ELEMENTS[each] for each in call.operands)
    return which, (ScaledSizes(remap, call.mnk, call.strides, count, *apart),)


SCALES = (  # one for each row of A, each column of B; or one for all of them
    Argument("scale_a", "M 1", (torch.float32,), along(0), one_for_all),
    Argument("scale_b", "1 N", (torch.float32,), along(1), one_for_all),
)


def gemm_into(dtype: torch.dtype) -> FurtherGemm:
    """The host side for C of one dtype."""
    takes = dict.fromkeys(ELEMENTS, dtype)
    table = {"takes": takes, "operands": MATRICES + SCALES}
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
    """`(a * scale_a) @ (b * scale_b)` on the tensor cores, on the current stream of `a`'s device.

    a: (M, K), float8_e4m3fn or float8_e5m2, K-major (stride 1 along K).
    b: (K, N), either of the two, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    scale_a, scale_b: float32 on the same device: (M, 1) and (1, N) of any stride, or one element for all.
    out: (M, N), bfloat16 or float16, stride 1 along N, any row stride >= N, no memory of the others. Made of
        `out_dtype` if not given.
    variant: one of VARIANTS, or "auto": the fast one that `choose` names for M, N and K.

    The addresses of a and b and their row strides are multiples of 16 bytes, as TMA needs them. Any M, N, K >= 1 within
    that. For an `out` whose rows TMA cannot write, the product is made in padded rows and copied. Needs compute
    capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    name, dtype = ("out_dtype", out_dtype) if out is None else ("out", getattr(out, "dtype", type(out).__name__))
    require(dtype in tuple(GEMMS), name, dtype, " or ".join(map(str, GEMMS)), TypeError)
    return GEMMS[dtype].matmul(a, b, scale_a, scale_b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## How exact is the sum? A model, and a prediction
#
# What the tensor cores do inside an addition is not documented. The model in `cookbook.model.fp8_sums` takes steps of
# 32 products. In each step the sum so far and the products are *cut off* (not rounded) below the 13th bit of a
# fraction, counted from the largest of them. Then they are added. The table has the relative error that this predicts
# for a sum. In brackets is the whole error of C in bfloat16 (rounding alone: 1.7e-3; squares add up):

# %% tags=["lab"]
from cookbook.model.fp8_sums import predicted_error

ROUNDING = 1.66e-3  # of C to bfloat16


def in_words(error: float) -> str:
    """The error of the sum, and of C."""
    return f"{error:.1e} ({(error**2 + ROUNDING**2) ** 0.5:.1e})"


modes = {"fast": None, "promoted": 128, "promoted, every 2": 256}
rows = [[f"{k}", *(in_words(predicted_error(k, after)) for after in modes.values())] for k in (512, 2048, 8192)]
Markdown(table(["K", *modes], rows))

# %% [markdown] tags=["lab"]
# The fast error grows with K, faster than its square root; the promoted one does not grow. In bfloat16 the rounding of
# C hides the fast error at K = 512 and no longer at 8192.
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
# All peers in one run: `torch._scaled_mm` with row-wise scales, with `use_fast_accum` and without.

# %% tags=["lab", "open"]
lab.compare("hopper/fp8_gemm", matmul, (8192, 8192, 8192))

# %% tags=["lab"]
Markdown(results_table("hopper/fp8_gemm"))

# %% [markdown] tags=["lab"]
# "Ours" is `matmul` without an argument, in one run with each variant, called by name: one of them is the same kernel,
# timed twice, and the difference of the two is the spread. Promotion costs the narrower tile and the additions; with
# every second k-tile, half of them, at an error that bfloat16 hides.
#
# ## What limits it

# %% tags=["lab"]
Markdown(limits_table("hopper/fp8_gemm"))

# %% [markdown] tags=["lab"]
# At 8192 cubed power is the limit. The first table's last column is the share of the time in which the GPU lowered its
# clock for power.
#
# With a short K the rate is lower: there are more [stops between two work tiles](#which-fast-tile) for the same
# multiplications. A tile of 128 x 256 has 16 k-tiles of 1024 clocks where K is 2048, and 64 where K is 8192.
#
# Three ways around it gained nothing, in experiments that are not recorded:
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
# multiplications for each element of C, and a decision about the sum. Fast accumulation loses bits with every step.
# Promotion limits the loss to the steps of one or two k-tiles. It takes a narrower tile, and one addition for each 128
# or 256 multiply-adds.
#
# Next: [few rows](fp8_decode_gemm.ipynb), which leave such a tile mostly empty.
