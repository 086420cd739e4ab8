# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Grouped FP8 GEMM: experts with row-wise scales"
#     claim: >-
#       Groups of rows and FP8 operands meet in one kernel, and change little in each other: a k-tile keeps its 128
#       bytes, scale factors of B get a group, and those of A follow the rows.
#     track: hopper
#     order: 122
#     kind: grouped_scaled
#     aside: Groups
#     operands: fp8
#     builds_on: hopper/grouped_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma e4m3 -> scale factors -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, UTMALDG.3D, QGMMA, STSM.16, UTMASTG.3D, USETMAXREG, SYNCS]
#     bench_shapes: [[16383, 4096, 4096], [16384, 4096, 4096], [64, 4096, 4096]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, tensors", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensors"}
#       - {title: "PyTorch, torch.nn.functional.scaled_grouped_mm", url: "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_grouped_mm.html"}
# ---

# %% [markdown]
# # Grouped FP8 GEMM: experts with row-wise scales
#
# **Claim.** A mixture of experts in FP8 needs two changes to a dense 16-bit GEMM: [groups of rows](grouped_gemm.ipynb)
# and [8-bit operands with scale factors](fp8_gemm.ipynb). This page puts the two together. New is how a scale factor is
# found, and how it is copied. GPC-aware remapping is left out: no recorded run has tried it here.
#
# Rows of A and of C are tokens, and each group of rows has a separate B, its expert's weight. Below are four groups of
# 7, 2, 0 and 5 rows. An element of C is multiplied by the factor of its row and by the factor of its column. The factor
# of a column depends on the group too: each expert has its own.

# %% tags=["lab"]
import numpy as np

from cookbook import draw, lab

groups = np.repeat(range(4), [7, 2, 0, 5])[:, None]
draw.number_grid(
    np.hstack([np.arange(len(groups))[:, None], groups.repeat(6, axis=1)]),
    "The scale factors that C meets, groups of 7, 2, 0 and 5 rows",
    groups.repeat(7, axis=1),
    note="a line is a row of C: first its index in scale_a, then its tiles with their row of scale_b; colour: group",
)

# %% tags=["lab"]
lab.gain("hopper/fp8_grouped_gemm", (16384, 4096, 4096))

# %% [markdown]
# A is (M, K) and each group's B is (K, N), both e4m3. A row of A has a float32 scale factor, and so has each column of
# each group's B: `scale_a` (M,), `scale_b` (GROUPS, N). `offs` says on the device where groups end. C is bfloat16 or
# float16. In the table an empty cell is as in a dense GEMM of 16 bits.
#
# | | groups of rows | 8-bit operands | together |
# |---|---|---|---|
# | k-tile | 64 elements, 128 bytes | 128 elements, 128 bytes | as with 8 bits |
# | swizzle, stages, boxes of TMA | `S<3,4,3>` | the same in bytes | the same |
# | tile scheduler, ends in `offs` | searched on the GPU | | as with groups |
# | C | one tensor map for all ends | | as with groups |
# | `scale_a` | | from the tile's first row on | from *any* row on: a tile begins where its group does |
# | `scale_b` | | (N,) | (GROUPS, N): a coordinate more, as b has |
# | few rows | A and B swapped | | rows of the accumulators meet `scale_b`, columns `scale_a` |
#
# Only the last three rows are new. [`fetch_scales`](#scale-factors) does all three.
#
# ## Two limits, and a prediction
#
# FP8 halves the bytes of the weights, and doubles the rate of the tensor cores. So both limits are about halved. Memory
# is the limit up to nearly as many rows of an expert as before, and the tensor cores from there on. Either limit says
# *twice as fast*. Three things take from that:
#
# * **C keeps 16 bits**, and its part of the bytes grows with the rows.
# * **Scaling.** Where a work tile ends, the tensor cores wait until its accumulators are scaled and rounded: [counted
#   for dense FP8](fp8_gemm.ipynb#what-limits-it). The main loop of a tile takes half of the clocks that it takes with
#   16 bits. So the time between two main loops counts twice as much.
# * **Power.** With many rows the GPU is at its power limit. A dense FP8 product is less than twice as fast as one of 16
#   bits. So, at the same limit, a multiply-add of 8 bits takes more than half of the energy. The energy that [the FP8
#   page](fp8_gemm.ipynb#what-limits-it) and [the tuned GEMM](tuned_gemm.ipynb#what-limits-it) record is of different
#   GPUs, so it does not compare the two.
#
# So this is predicted: few rows gain what the bytes say, those of C included. Many rows gain what FP8 gained in a
# *dense* product of 8192 x 8192 x 8192, by the records of the tuned GEMM and of the FP8 GEMM. For 8 experts with N = K
# = 4096; bold is the larger of the two times. The bandwidth is one that products reach, which a single run may exceed:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import predict, records, results_table, table

GPU, H200, SMS, GROUPS, N, K = "NVIDIA H200", predict.H200, 132, 8, 4096, 4096
BITS = {"16 bits": (2, 2048), "8 bits": (1, 4096)}  # bytes of an element; multiply-adds of an SM in a clock


def recorded(name: str, *shape: int) -> float:
    """The recorded time of a GEMM on an H200 in microseconds; NaN if there is none."""
    found = [r for r in records.of_one_gpu(name, "timed", "bfloat16", device=GPU) if tuple(r["shape"]) == shape]
    return 1000 * found[0]["figures"]["median_ms"] if found else float("nan")


def limits(rows: int, element: int, rate: int) -> tuple[float, float]:
    """Microseconds to move all bytes once, and to multiply on all SMs."""
    moved = element * (rows * K + GROUPS * K * N) + 2 * rows * N
    return moved / H200.memory / 1000, rows * K * N / rate / SMS / H200.ghz / 1000


def predicted(rows: int) -> float:
    """Return how many times as fast as with 16 bits."""
    (moving, multiplying), (with_8, _) = limits(rows, *BITS["16 bits"]), limits(rows, *BITS["8 bits"])
    dense = recorded("hopper/tuned_gemm", 8192, 8192, 8192) / recorded("hopper/fp8_gemm", 8192, 8192, 8192)
    return moving / with_8 if moving > multiplying else dense


def row_of(rows: int) -> list[str]:
    pairs = [limits(rows, *BITS[bits]) for bits in BITS]
    said = [", ".join(f"**{us:,.0f}**" if us == max(pair) else f"{us:,.0f}" for us in pair) for pair in pairs]
    return [f"{rows:,}", f"{rows // GROUPS:,}", *said, f"{predicted(rows):.2f}"]


header = ["rows", "for each expert", *(f"{bits}: us to move bytes, to multiply" for bits in BITS), "predicted gain"]
Markdown(table(header, [row_of(rows) for rows in (64, 1024, 4096, 16384)]))

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import DTYPES, Call, Gemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, GroupedGemm, adjacent
from cookbook.recipes.hopper.grouped_gemm import (
    BY_ROWS,
    GROUPED,
    GroupedConfig,
    Scheduler,
    WorkTile,
    clusters,
    first_place,
    further_k_tiles,
    make_scheduler,
    produce,
    search,
    sources_of,
    store_tile,
    tma_tensors,
    variant_for,
    work_tile,
)
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
    first_k_tile,
    make_mainloop,
    state_at,
)
from cookbook.recipes.hopper.swap_ab_gemm import smem_layouts as layouts_of_type
from cookbook.recipes.hopper.swap_ab_gemm import tiled_copies
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor

# %% [markdown]
# ## The variants
#
# Those of [the grouped GEMM](grouped_gemm.ipynb#the-variants), with k-tiles of 128 elements: a stage has as many bytes.
# Shared memory also holds scale factors: of each warpgroup 64 for the rows of its accumulators, and `tile_n` for their
# columns.


# %%
@dataclass(frozen=True)
class Config(GroupedConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 32

    gpc_aware = False  # a cluster's first work tile goes by its number

    def __post_init__(self):
        require(self.tile_m == 128, "tile_m", self.tile_m, "128: a warpgroup has scale factors of A for 64 rows")
        super().__post_init__()

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def smem_bytes(self) -> int:
        small = 16 * self.stages + 8 * (64 + self.tile_n)  # barriers and scale factors, padded to the tiles' alignment
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + self.epi_bytes


def few_rows(rows: int, stages: int) -> Config:
    """Weights are the operand of 64-row steps, so a tile has as few rows of the product as wanted, in steps of 16."""
    epilogue = {"epi_n": rows, "epi_stages": 1, "overlapped": 1}
    return Config(tile_n=rows, stages=stages, cluster_n=1, swap_ab=True, **epilogue)


VARIANTS = {"128x256": Config(), "64x128": few_rows(64, 8), "32x128": few_rows(32, 10)}
DEFAULT = "auto"  # the one that `variant_for` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The layouts and the MMA
#
# The operands have 8 bits, C has 16. `wgmma` takes 32 elements of 8 bits along K, which are 32 bytes as before.


# %%
E4M3 = cutlass.Float8E4M3FN
ELEMENT, SCALE, BLOCK = E4M3, cutlass.Float32, 0  # what the checks multiply; 0: a row has one scale factor


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """Tiles of A and B, of 8-bit elements, and the epilogue's buffers of C, which is of `dtype`."""
    return layouts_of_type(E4M3, config)._replace(c=layouts_of_type(dtype, config).c)


def wgmma_e4m3(columns: int) -> warpgroup.MmaF8Op:
    """64 rows of A times 32 x `columns` of B, both from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF8Op(E4M3, E4M3, cutlass.Float32, (64, columns, 32), smem, k_major, k_major)


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The wgmmas of the two warpgroups that share a tile, one above the other."""
    return cute.make_tiled_mma(wgmma_e4m3(config.tile_n), (config.warpgroups, 1, 1))


# %% [markdown]
# ## What is unchanged
#
# * **The tile scheduler and the loads.** A warp [searches `offs`](grouped_gemm.ipynb#the-tile-scheduler) for its next
#   work tile. A tile of A begins at any row, and the weights have a coordinate more.
# * **The main loop.** Sums stay in the accumulators of `wgmma`, which keep 13 bits of a fraction: *fast* accumulation.
#   [The FP8 page](fp8_gemm.ipynb#how-exact-is-the-sum-a-model-and-a-prediction) predicts what that loses. A promoted
#   variant would need a narrower tile, as it does there; there is none here.
# * **The stores.** C has [one tensor map for all ends](grouped_gemm.ipynb#the-epilogue-one-tensor-map-for-all-ends):
#   rows past a group's end are not stored. So their scale factors may have any value.


# %% [markdown]
# ## Scale factors
#
# A warpgroup needs 64 factors along the rows of its accumulators, `down`, and `tile_n` along their columns. `down` are
# those of A, or with A and B swapped those of B. Two things follow from groups:
#
# * **`scale_a` by row.** The first factor is that of the tile's first row, which is any row: a tile begins where its
#   group does. So factors are copied one by one. Copies of 16 bytes, or TMA, need a multiple of 16 bytes.
# * **`scale_b` by group.** The row of `scale_b` is the group that the search has found.
#
# An index past the end of a vector becomes that of its last element. Past the last row of a group a factor may be that
# of a later row; past the last column it is the group's last one. Neither of these elements is stored.
#
# The copies are `cp.async`. They begin while the first k-tile of a work tile is multiplied, and the warpgroup waits for
# them where the work tile ends. The next `wgmma.fence` would wait for a load into a register. In a trial that is not
# recorded, both ways took the same time.


# %%
class Scales(NamedTuple):
    """The scale factors of a consumer warpgroup."""

    a: cute.Tensor  # of tokens (T), global memory
    b: cute.Tensor  # of weights (N, GROUP)
    sS: cute.Tensor  # (64 + TILE_N), shared memory: of a work tile


@cute.jit
def meet(epi: Epilogue):
    """Wait for the other threads of this warpgroup."""
    pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128).arrive_and_wait()


@cute.jit
def fetch_scales(scales: Scales, epi: Epilogue, tile: WorkTile, config: cutlass.Constexpr):
    """Begin to copy the scale factors of this warpgroup's part of a work tile: 64 of rows, then those of columns."""
    tokens, weights = (scales.a, tile.row), (scales.b[None, tile.group], tile.column * config.weights)
    (down, m), (right, n) = (weights, tokens) if config.swap_ab else (tokens, weights)
    meet(epi)  # all threads are through with those of the work tile before
    if epi.thread < 64:
        copy_one(down, m + epi.warpgroup * 64 + epi.thread, scales.sS, epi.thread)
    for first in cutlass.range_constexpr(0, config.tile_n, 128):
        if first + epi.thread < config.tile_n:
            copy_one(right, n + first + epi.thread, scales.sS, 64 + first + epi.thread)
    cute.arch.cp_async_commit_group()


@cute.jit
def copy_one(scale: cute.Tensor, i: cutlass.Int32, sS: cute.Tensor, j: cutlass.Int32):
    """Copy a scale factor by cp.async; behind the last one, that one."""
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    source = cute.local_tile(scale, (1,), (cutlass.min(i, cute.size(scale) - 1),))
    # cookbook: allow bank-conflict, lanes behind the last factor copy one word, which cp.async serves lane by lane
    cute.copy(copy, source, cute.local_tile(sS, (1,), (j,)))


@cute.jit
def scaled(scales: Scales, epi: Epilogue, acc: cute.Tensor, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's part of subtile `i`, times its rows' and columns' scale factors, rounded."""
    lane = epi.thread % 32
    rR = cute.make_rmem_tensor(2, cutlass.Float32)
    for j in cutlass.range_constexpr(2):
        rR[j] = scales.sS[epi.thread // 32 * 16 + lane // 4 + 8 * j]
    first = cute.assume(64 + i * config.epi_n + lane % 4 * 2, divby=2)
    sN = cute.make_tensor(scales.sS.iterator + first, cute.make_layout((2, config.epi_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, cutlass.Float32)
    cute.autovec_copy(sN, rN)
    # Modes (column, row, eights): two neighbours of every 8 columns, in two rows. Stride 0 repeats a factor.
    by_row = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((0, 1, 0), 0, 0))
    by_column = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((1, 0, 2), 0, 0))
    values = subtile_of(acc, i, config).load()
    values = values * cute.make_tensor(rR.iterator, by_row).load() * cute.make_tensor(rN.iterator, by_column).load()
    return values.to(epi.sC.element_type)


# %%
@cute.jit
def compute(main: Mainloop, epi: Epilogue, scales: Scales, scheduler: Scheduler, config: cutlass.Constexpr):
    """Compute this warpgroup's half of all work tiles."""
    rC = cute.make_rmem_tensor(config.subtiles * config.epi_n // 2, epi.sC.element_type)  # rounded
    place, zero = first_place(scheduler, config), cutlass.Int32(0)
    tile, before, k_index = work_tile(place, scheduler, config), WorkTile(zero, zero, zero, zero), zero
    while place.group < cute.size(scheduler.offs):
        read = first_k_tile(main, state_at(k_index, config))
        fetch_scales(scales, epi, tile, config)
        place = search(place, scheduler.step, scheduler, config)
        following = work_tile(place, scheduler, config)
        further_k_tiles(main, epi, read, k_index, rC, before, config)
        cute.arch.cp_async_wait_group(0)
        meet(epi)  # the scale factors are in shared memory
        for j in cutlass.range_constexpr(config.subtiles):
            subtile_of(rC, j, config).store(scaled(scales, epi, main.acc, j, config))
        before, tile, k_index = tile, following, k_index + main.k_tiles
    if k_index > 0:
        store_tile(epi, rC, before, config)


# %% [markdown]
# ## The kernel and the launch
#
# As in the grouped GEMM, with two more pointers. The consumers call `griddepcontrol.wait` before they read the first
# factor: a kernel that quantizes A may have written it just before.


# %% tags=["folded"]
@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory and set up the barriers. Returns the `Cta`, and scale factors (64 + TILE_N, WARPGROUP)."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    sS = smem.allocate_tensor(cutlass.Float32, cute.make_layout((64 + config.tile_n, 2)), 16)
    sA, sB, sC = allocate_tiles(smem, layouts, (E4M3, E4M3, dtype))
    pipe = make_pipeline(barriers, config)
    meet_cluster()
    return Cta(pipe, sA, sB, sC), sS


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
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. c: see `clipped`; thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    main = make_mainloop(cta, op, group * 128, k_tiles, config)  # the slice of its first thread: the same for all
    epi = make_epilogue(cta.sC, c, r2s_c, group, thread, config)
    scales = scales._replace(sS=scales.sS[None, group])
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still write offs or factors, or use C
    compute(main, epi, scales, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %%
@cute.kernel
def kernel(
    tokens: TmaTensor,  # (T, K)
    weights: TmaTensor,  # (N, K, GROUP)
    c: TmaTensor,  # see `clipped`
    scale_a: cute.Tensor,  # float32, of tokens (T)
    scale_b: cute.Tensor,  # of weights (N, GROUP)
    offs: cute.Tensor,  # Int32, by group
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/fp8_grouped_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           cp.async
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    first, step = cute.arch.block_idx()[0] // config.cluster, cute.arch.grid_dim()[0] // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (tokens.atom, weights.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta, sS = set_up(layouts, dtype, config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    k_tiles = cutlass.max(cute.ceil_div(cute.size(tokens.coords, mode=[1]), config.tile_k), config.min_k_tiles)
    scheduler = make_scheduler(offs, tokens, weights, first, step, rank, config)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            produce(cta.pipe, sources_of(tokens, weights, cta, config), scheduler, k_tiles, config)
    else:
        scales = Scales(scale_a, scale_b, sS)
        consume(cta, op, c, scales, scheduler, k_tiles, r2s_c, group, tidx % 128, config)


# %% tags=["folded"]
class GroupedSizes(NamedTuple):
    """The arguments of a launch besides the addresses of its tensors."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    groups: cutlass.Int32
    group_stride: cutlass.Int64  # elements from one group's weights to the next's
    group_stride_sb: cutlass.Int64  # likewise of their scale factors
    clusters: cutlass.Int32


class Read(NamedTuple):
    """The operands besides A and B."""

    pSA: cute.Pointer  # float32, by row of A
    pSB: cute.Pointer  # likewise, by group and column
    offs: cute.Pointer  # Int32, by group: the end of its rows


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    read: Read,
    sizes: GroupedSizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N): the rows of each group are those of A (M, K) times the group's B (N, K) transposed."""
    (m, n, k), strides, groups, group_stride, group_stride_sb, clusters = sizes
    dtype, ctas = pC.dtype, config.cluster
    lda, ldb, group_stride = (cute.assume(stride, divby=16) for stride in (*strides[:2], group_stride))
    ldc = cute.assume(strides[2], divby=8)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k, groups), stride=(ldb, 1, group_stride)))
    layouts, r2s_c, op = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c, wgmma_e4m3(config.tile_n)
    tokens, weights, c = tma_tensors(mA, mB, pC, (m, n), ldc, layouts, config)
    scale_a = cute.make_tensor(read.pSA, cute.make_layout((m,)))
    scale_b = cute.make_tensor(read.pSB, cute.make_layout((n, groups), stride=(1, group_stride_sb)))
    ends = cute.make_tensor(read.offs, cute.make_layout(groups))
    launcher = kernel(tokens, weights, c, scale_a, scale_b, ends, layouts, r2s_c, op, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


# %% tags=["folded"]
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    scale, offs = (cutlass.Float32, 4), (cutlass.Int32, 4)
    pointers = (E4M3, 16), (E4M3, 16), (dtype, 16), scale, scale, offs
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`
#
# The table of operands is that of the grouped GEMM, and the scale factors. Each dtype of C has a separate host side.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    apart, groups = (call.known["b"][2], *call.known["scale_b"]), call.known["GROUPS"]
    config = VARIANTS[variant_for(call.mnk[0] / groups) if call.variant == DEFAULT else call.variant]
    count = clusters(config, call.sms)
    return (config,), (GroupedSizes(call.mnk, call.strides, groups, *apart, count),)


SCALES = (
    Argument("scale_a", "M", (torch.float32,), adjacent),
    Argument("scale_b", "GROUPS N", (torch.float32,), adjacent),
)


def gemm_into(dtype: torch.dtype) -> Gemm:
    """The host side for C of one dtype. The launch takes all addresses behind C's as one tuple: `together`."""
    *matrices, offs = GROUPED
    table = {"takes": {torch.float8_e4m3fn: dtype}, "operands": (*matrices, *SCALES, offs), "together": True}
    return GroupedGemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), **BY_ROWS | table)


GEMMS = {dtype: gemm_into(dtype) for dtype in DTYPES}
GEMM = GEMMS[torch.bfloat16]


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offs: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """Each group of rows of `a * scale_a` times its own `b * scale_b`, on the current stream of `a`'s device.

    a: (M, K), float8_e4m3fn, K-major (stride 1 along K). Without rows (M = 0) nothing is launched.
    b: (GROUPS, K, N), the same dtype, K-major too: usually `weights.transpose(1, 2)` of contiguous (GROUPS, N, K).
    scale_a, scale_b: (M,) and (GROUPS, N), float32 on the same device, stride 1 along M and N.
    offs: (GROUPS,), int32, on the same device: the row behind each group's last one. A group begins at the largest end
        before it; ends below 0 count as 0, ends above M as M. Nothing may write them before the kernel has ended.
    out: (M, N), bfloat16 or float16, stride 1 along N, no memory of the others. Made of `out_dtype` if not given. Rows
        behind the last end are not written.
    variant: one of VARIANTS, or "auto": the one that `variant_for` names.

    Arguments are those of `torch._scaled_grouped_mm`. Addresses of a, b and out, and strides other than 1, are
    multiples of 16 bytes, as TMA needs them, and N is a multiple of 8. Nothing waits for the GPU, and a CUDA graph may
    be replayed with other ends. Needs compute capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    name, dtype = ("out_dtype", out_dtype) if out is None else ("out", getattr(out, "dtype", type(out).__name__))
    require(dtype in tuple(GEMMS), name, dtype, " or ".join(map(str, GEMMS)), TypeError)
    return GEMMS[dtype].matmul(a, b, scale_a, scale_b, offs, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# The checks quantize a product's operands, and give the kernel four groups of its rows: one is empty (its end is out of
# order). Weights of the groups differ by their sign, and factors by powers of two. *Product* also has rows of no group.

# %% tags=["lab"]
lab.check_cells("hopper/fp8_grouped_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# All peers in one run, with the groups of the 16-bit page. All accumulate fast. Group by group, `torch._scaled_mm` must
# be told the sizes on the host. Where cuBLAS refuses a group's addresses, it is not timed.

# %% tags=["lab", "open"]
lab.compare("hopper/fp8_grouped_gemm", matmul, (16384, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/fp8_grouped_gemm"))

# %% tags=["lab"]
lines = []
for rows in (64, 16384, 16383):
    before, now = (recorded(f"hopper/{name}", rows, N, K) for name in ("grouped_gemm", "fp8_grouped_gemm"))
    gains = f"{predicted(rows):.2f}", f"{before / now:.2f}", f"{2 * now - before:.1f} us"
    lines.append([f"{rows:,}", f"{before:.1f} us", f"{now:.1f} us", *gains])
Markdown(table(["rows", "16 bits", "8 bits", "times as fast, predicted", "measured", "not halved"], lines))

# %% [markdown] tags=["lab"]
# **What is not halved** is in the last column: twice the time with 8 bits, less the time with 16. What takes this time
# was not measured; a launch, the first loads and the last stores are part of it. With many rows the gain is a little
# above that of the dense product. The 16-bit kernel is of another run, and has GPC-aware remapping. A kernel that
# leaves the scaling out was faster by less than the spread, in a trial that is not recorded.
#
# ## Conclusion
#
# Groups decide *where* a tile lies, and 8 bits *what* is multiplied. They meet only where a scale factor is looked up.
#
# Next, what all kernels are held against: [how fast memory can be read](../foundations/memory_ceiling.ipynb).
