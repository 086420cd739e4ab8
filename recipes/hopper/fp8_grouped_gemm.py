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
#     grouped: m
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
# found, and how it is copied. GPC-aware remapping is left out: that is not tried yet in a recorded run.
#
# Rows of A and of C are tokens, and each group of rows has a B of its own, its expert's weight. Below are four groups
# of 7, 2, 0 and 5 rows. An element of C is multiplied by the factor of its row and by the factor of its column. The
# factor of a column depends on the group too: each expert has its own.

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
# is the limit up to nearly as many rows of an expert as before, the tensor cores from there on, and either says *twice
# as fast*. Three things take from that:
#
# * **C keeps 16 bits**, and its part of the bytes grows with the rows.
# * **Scaling.** Where a work tile ends, the tensor cores wait until its accumulators are scaled and rounded:
#   [counted for dense FP8](fp8_gemm.ipynb#what-limits-it). The main loop of a tile takes half of the clocks that it
#   takes with 16 bits, so what stands between two of them counts twice as much.
# * **Power.** With many rows the GPU is at its power limit. That a multiply-add of 8 bits takes more than half of the
#   energy of one of 16 bits is concluded from dense products; energy was not measured.
#
# So this is predicted: few rows gain what the bytes say, those of C included. Many rows gain what FP8 gained in a
# *dense* product of 8192 x 8192 x 8192, by the records of the tuned GEMM and of the FP8 GEMM. For 8 experts with N = K
# = 4096; bold is the larger of the two times. The bandwidth is one that products reach, which a single run may exceed:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.measure import records
from cookbook.ops import predict
from cookbook.publish.pages import results_table, table

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
    """How many times as fast as with 16 bits."""
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
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import DTYPES, Call, GroupedScaledGemm, check_epilogue, compile_host, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The variants
#
# Those of [the grouped GEMM](grouped_gemm.ipynb#the-variants), with k-tiles of 128 elements: a stage has as many bytes.
# Shared memory also holds scale factors: of each warpgroup 64 for the rows of its accumulators, and `tile_n` for their
# columns.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 32
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_n: int = 2  # CTAs side by side: they share the tiles of A
    swap_ab: bool = False  # A is b, B is a, C lies by columns: `tile_m` are columns of the product, `tile_n` rows
    swizzle_size: int = 16  # tiles down a group that need the same weights, before the rasterization moves across
    epi_n: int = 64  # columns of an epilogue subtile, as the tensor cores see C; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)

    @property
    def cluster(self) -> int:
        return self.cluster_n

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def tokens(self) -> int:
        """Rows of the product of one tile."""
        return self.tile_n if self.swap_ab else self.tile_m

    @property
    def weights(self) -> int:
        """Its columns."""
        return self.tile_m if self.swap_ab else self.tile_n

    @property
    def epi_tokens(self) -> int:
        """Rows of the product of one epilogue subtile."""
        return self.epi_n if self.swap_ab else 64

    @property
    def subtiles(self) -> int:
        """Epilogue subtiles of a tile that one warpgroup stores, each under a k-tile of the next tile. That tile has no
        fewer k-tiles than this: TMA fills those past K with zeros."""
        return self.tile_m // 128 * (self.tile_n // self.epi_n)

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def smem_bytes(self) -> int:
        small = 16 * self.stages + 8 * (64 + self.tile_n)  # barriers and scale factors, padded to the tiles' alignment
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + 2 * self.epi_stages * 64 * self.epi_n * 2


# %%
def few_rows(rows: int, stages: int) -> Config:
    """Weights are the operand of 64-row steps, so a tile has as few rows of the product as wanted, in steps of 16."""
    return Config(tile_n=rows, stages=stages, cluster_n=1, swap_ab=True, epi_n=rows, epi_stages=1)


VARIANTS = {"128x256": Config(), "64x128": few_rows(64, 8), "32x128": few_rows(32, 10)}
DEFAULT = "auto"  # the one that `variant_for` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


def variant_for(rows: float) -> str:
    """The variant for groups of `rows` rows on average."""
    return "128x256" if rows > 64 else "64x128" if rows > 32 else "32x128"


# %% [markdown]
# ## The layouts and the MMA
#
# The operands have 8 bits, C has 16. `wgmma` takes 32 elements of 8 bits along K, which are 32 bytes as before.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (TILE_M, TILE_K, STAGE)
    b: cute.ComposedLayout  # (TILE_N, TILE_K, STAGE)
    c: cute.ComposedLayout  # (EPI_M, EPI_N, EPI_STAGE): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int, by_columns: bool = False) -> cute.ComposedLayout:
    """The widest atom whose lines divide `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle). Its lines run
    along the second mode, or `by_columns`, along the first."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    lines = cute.make_layout((8, width), stride=(width, 1))
    if by_columns:
        lines = cute.make_layout((width, 8), stride=(1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile


# %%
E4M3 = cutlass.Float8E4M3FN
ELEMENT, SCALE, BLOCK = E4M3, cutlass.Float32, 0  # what the checks multiply; 0: a row has one scale factor


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(E4M3, c.tile_k)
    subtile = smem_atom(dtype, 64, True) if c.swap_ab else smem_atom(dtype, c.epi_n)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(subtile, (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
    )


def wgmma(columns: int) -> warpgroup.MmaF8Op:
    """64 rows of A times 32 x `columns` of B, both from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF8Op(E4M3, E4M3, cutlass.Float32, (64, columns, 32), smem, k_major, k_major)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the two warpgroups that share a tile, one above the other."""
    return cute.make_tiled_mma(wgmma(config.tile_n), (2, 1, 1))


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The copy of the epilogue: a subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=config.swap_ab, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma(config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, subtile))


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


# %%
NO_TILES = 1 << 30  # more than any product has: where the search for a work tile ends


class Scheduler(NamedTuple):
    """What all work tiles have in common."""

    offs: cute.Tensor  # Int32, by group: the end of its rows
    tokens: cutlass.Int32  # rows of A
    across: cutlass.Int32  # cluster tiles from left to right
    first: cutlass.Int32  # number of its cluster's first cluster tile, over all groups
    step: cutlass.Int32  # from one to the next: the clusters of the grid
    rank: cutlass.Int32  # of the CTA in its cluster


class Place(NamedTuple):
    """How far the search for work tiles has come: in a group."""

    group: cutlass.Int32  # the number of groups: there are no more tiles
    start: cutlass.Int32  # its first row
    end: cutlass.Int32  # the row behind its last one
    number: cutlass.Int32  # of the work tile, counted from the group's first


class WorkTile(NamedTuple):
    """Where a CTA's tile lies."""

    group: cutlass.Int32
    row: cutlass.Int32  # its first, of A and of the product
    end: cutlass.Int32  # the row behind the last one of its group
    column: cutlass.Int32  # in tiles


@cute.jit
def tiles_of(start, end, scheduler: Scheduler, config: cutlass.Constexpr):
    """Cluster tiles of a group."""
    return (end - start + config.tokens - 1) // config.tokens * scheduler.across


@cute.jit
def search(place: Place, by, scheduler: Scheduler, config: cutlass.Constexpr):
    """The place of the work tile that is `by` numbers after that of `place`."""
    group, start, end, number = place
    groups = cute.size(scheduler.offs)
    number += by
    tiles = tiles_of(start, end, scheduler, config)
    while number >= tiles:
        number -= tiles
        group += 1
        start = end
        tiles = cutlass.Int32(NO_TILES)
        if group < groups:
            end = cutlass.max(start, cutlass.min(scheduler.offs[group], scheduler.tokens))
            tiles = tiles_of(start, end, scheduler, config)
    return Place(group, start, end, number)


@cute.jit
def first_place(scheduler: Scheduler, config: cutlass.Constexpr):
    """The place of a cluster's first work tile."""
    zero = cutlass.Int32(0)
    return search(Place(cutlass.Int32(-1), zero, zero, zero), scheduler.first, scheduler, config)


@cute.jit
def work_tile(place: Place, scheduler: Scheduler, config: cutlass.Constexpr):
    """This CTA's tile at a place: down a band of `swizzle_size` tiles first, then across."""
    group, start, end, number = place
    size = config.swizzle_size
    band, inside = number // (size * scheduler.across), number % (size * scheduler.across)
    high = (end - start + config.tokens - 1) // config.tokens  # tiles
    height = cutlass.max(1, cutlass.min(high - band * size, size))  # the last band may be lower; 1: behind all groups
    down, across = band * size + inside % height, inside // height
    return WorkTile(group, start + down * config.tokens, end, across * config.cluster + scheduler.rank)


class Load(NamedTuple):
    """One operand as the producer sees it."""

    atom: cute.CopyAtom
    mX: cute.Tensor  # TMA coordinates: tokens (T, K), or weights (N, K, GROUP)
    sX: cute.Tensor  # (TILE, TILE_K, STAGE)


@cute.jit
def sources(load: Load, tile, part, sharers: cutlass.Constexpr):
    """The parts that this CTA loads of an operand's k-tiles (TMA, k), and of its stages. tile: (TILE, TILE_K, k)."""
    sX, gX = cute.group_modes(load.sX, 0, 2), cute.group_modes(tile, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(load.atom, part, cute.make_layout(sharers), sX, gX)
    return tXgX, tXsX


@cute.jit
def load_tile(pipe, loads, state, tile: WorkTile, k_order, config: cutlass.Constexpr):
    """Load the k-tiles of a work tile. k_order: how many, and whether (1 or 0) backwards. Returns the state."""
    tokens, weights = loads
    (k_tiles, backwards), rank = k_order, tile.column % config.cluster
    rows = cute.domain_offset((tile.row, 0), tokens.mX)  # (T, K): it begins at the tile
    gT = cute.local_tile(rows, (config.tokens, config.tile_k), (0, None))  # (TILE, TILE_K, k)
    gW = cute.local_tile(weights.mX, (config.weights, config.tile_k), (tile.column, None, tile.group))
    tTgT, tTsT = sources(tokens, gT, rank, config.cluster)
    tWgW, tWsW = sources(weights, gW, cutlass.Int32(0), 1)
    everyone = {"mcast_mask": cutlass.Int16((1 << config.cluster) - 1)} if config.cluster > 1 else {}
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i + backwards * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tokens.atom, tTgT[None, k_tile], tTsT[None, state.index], tma_bar_ptr=barrier, **everyone)
        cute.copy(weights.atom, tWgW[None, k_tile], tWsW[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    return state


class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates


# %%
@cute.jit
def produce(pipe, tokens: Load, weights: Load, scheduler: Scheduler, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of all work tiles of this CTA, a stage each."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    place, backwards = first_place(scheduler, config), cutlass.Int32(0)
    while place.group < cute.size(scheduler.offs):
        tile = work_tile(place, scheduler, config)
        state = load_tile(pipe, (tokens, weights), state, tile, (k_tiles, backwards), config)
        place, backwards = search(place, scheduler.step, scheduler, config), 1 - backwards
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    scales: tuple  # of tokens (T), of weights (N, GROUP): global memory
    sS: cute.Tensor  # (64 + TILE_N): this warpgroup's scale factors of a work tile
    sC: cute.Tensor  # its own epilogue buffers, (EPI_M, EPI_N, EPI_STAGE)
    mC: cute.Tensor  # TMA coordinates, see `clipped`
    r2s_c: cute.TiledCopy
    tma_c: cute.CopyAtom
    warpgroup: cutlass.Int32  # 0 or 1
    thread: cutlass.Int32  # in the warpgroup


# %%
@cute.jit
def issue_wgmmas(me: Consumer, stage, first: cutlass.Constexpr = False):
    """Issue the wgmmas of one stage as one commit group; `first`: of a work tile, its first one overwrites `acc`."""
    acc, tCrA, tCrB = me.acc, me.tCrA, me.tCrB
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # 32 elements, 32 bytes, along K
        mma = me.overwrite if first and k == 0 else me.accumulate
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def next_k_tile(me: Consumer, read, release):
    """Issue the k-tile at `read`, and release the stage at `release`."""
    me.pipe.consumer_wait(read)
    issue_wgmmas(me, read.index)
    read.advance()
    warpgroup.wait_group(1)  # the group before this one is complete: its stage may be overwritten
    me.pipe.consumer_release(release)
    release.advance()
    return read, release


def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's values of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has them."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


@cute.jit
def clipped(pC, shape_mn, ldc, config: cutlass.Constexpr):
    """C as a tensor of three modes, (ROW, N, END): row r of a window that ends before row `end` of C."""
    (m, n), height = shape_mn, config.epi_tokens
    before = pC - height * ldc  # of the window that ends before row 0
    if cutlass.const_expr(config.swap_ab):
        return cute.make_tensor(before, cute.make_layout((n, height, m + 1), stride=(1, ldc, ldc)))
    return cute.make_tensor(before, cute.make_layout((height, n, m + 1), stride=(ldc, 1, ldc)))


@cute.jit
def store_subtile(me: Consumer, i: cutlass.Constexpr, rC, tile: WorkTile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile. rC: a thread's rounded values, (MMA, 1, 1)."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + me.warpgroup, num_threads=128)
    storing = cute.arch.make_warp_uniform(me.thread // 32) == 0
    thr, buffer = me.r2s_c.get_slice(me.thread), i % config.epi_stages
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in this buffer
    cute.copy(me.r2s_c, thr.retile(rC), thr.partition_D(me.sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()
    if storing:
        across = config.tile_n // config.epi_n
        down, right = (i // across * 2 + me.warpgroup) * 64, i % across * config.epi_n  # in the tile
        token, weight = (right, down) if config.swap_ab else (down, right)
        row, column = tile.row + token, tile.column * config.weights + weight
        left = cutlass.max(0, cutlass.min(tile.end - row, config.epi_tokens))  # rows of the group, in this subtile
        at = (config.epi_tokens - left, column, row + left)  # what lies behind the first mode's end is not stored
        if cutlass.const_expr(config.swap_ab):
            at = (at[1], at[0], at[2])
        gC = cute.local_tile(cute.domain_offset(at, me.mC), (64, config.epi_n), (0, 0, 0))
        bSsC, bSgC = cpasync.tma_partition(
            me.tma_c, 0, cute.make_layout(1), cute.group_modes(me.sC, 0, 2), cute.group_modes(gC, 0, 2)
        )
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(me.tma_c, bSsC[None, buffer], bSgC)
            cute.arch.cp_async_bulk_commit_group()


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
# An index past the end of a vector is cut to its last element. Past the last row of a group a factor may be that of a
# later row; past the last column it is the group's last one. Neither of these elements is stored.
#
# The copies are `cp.async`. They begin while the first k-tile of a work tile is multiplied, and the warpgroup waits for
# them where the work tile ends. A load into a register would be waited for by the next `wgmma.fence`. In a trial that
# is not recorded both ways took the same time.


# %%
@cute.jit
def meet(me: Consumer):
    """Wait for the other threads of this warpgroup."""
    pipeline.NamedBarrier(barrier_id=1 + me.warpgroup, num_threads=128).arrive_and_wait()


@cute.jit
def fetch_scales(me: Consumer, tile: WorkTile, config: cutlass.Constexpr):
    """Begin to copy the scale factors of this warpgroup's part of a work tile: 64 of rows, then those of columns."""
    scale_a, scale_b = me.scales
    tokens, weights = (scale_a, tile.row), (scale_b[None, tile.group], tile.column * config.weights)
    (down, m), (right, n) = (weights, tokens) if config.swap_ab else (tokens, weights)
    meet(me)  # all threads are through with those of the work tile before
    if me.thread < 64:
        copy_one(down, m + me.warpgroup * 64 + me.thread, me.sS, me.thread)
    for first in cutlass.range_constexpr(0, config.tile_n, 128):
        if first + me.thread < config.tile_n:
            copy_one(right, n + first + me.thread, me.sS, 64 + first + me.thread)
    cute.arch.cp_async_commit_group()


@cute.jit
def copy_one(scale, i, sS, j):
    """Copy a scale factor by cp.async; behind the last one, that one."""
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    source = cute.local_tile(scale, (1,), (cutlass.min(i, cute.size(scale) - 1),))
    cute.copy(copy, source, cute.local_tile(sS, (1,), (j,)))


@cute.jit
def scaled(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's part of subtile `i`, times its rows' and columns' scale factors, rounded."""
    lane = me.thread % 32
    rR = cute.make_rmem_tensor(2, cutlass.Float32)
    for j in cutlass.range_constexpr(2):
        rR[j] = me.sS[me.thread // 32 * 16 + lane // 4 + 8 * j]
    first = cute.assume(64 + i * config.epi_n + lane % 4 * 2, divby=2)
    sN = cute.make_tensor(me.sS.iterator + first, cute.make_layout((2, config.epi_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, cutlass.Float32)
    cute.autovec_copy(sN, rN)
    # Modes (column, row, eights): two neighbours of every 8 columns, in two rows. Stride 0 repeats a factor.
    by_row = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((0, 1, 0), 0, 0))
    by_column = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((1, 0, 2), 0, 0))
    values = subtile_of(me.acc, i, config).load()
    values = values * cute.make_tensor(rR.iterator, by_row).load() * cute.make_tensor(rN.iterator, by_column).load()
    return values.to(me.sC.element_type)


@cute.jit
def compute(me: Consumer, scheduler: Scheduler, config: cutlass.Constexpr):
    """This warpgroup's half of all work tiles."""
    rC = cute.make_rmem_tensor(config.subtiles * config.epi_n // 2, me.sC.element_type)  # rounded
    place, zero = first_place(scheduler, config), cutlass.Int32(0)
    tile, before, k_tile = work_tile(place, scheduler, config), WorkTile(zero, zero, zero, zero), zero
    while place.group < cute.size(scheduler.offs):
        stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
        read, release = (pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))
        me.pipe.consumer_wait(read)
        issue_wgmmas(me, read.index, True)
        read.advance()
        fetch_scales(me, tile, config)
        place = search(place, scheduler.step, scheduler, config)  # the next tile, while the first commit group runs
        following = work_tile(place, scheduler, config)
        for j in cutlass.range_constexpr(config.subtiles):
            if k_tile > 0:
                store_subtile(me, j, subtile_of(rC, j, config), before, config)
            if cutlass.const_expr(j + 1 < config.subtiles):
                read, release = next_k_tile(me, read, release)
        for _ in cutlass.range(config.subtiles, me.k_tiles, unroll=1):
            read, release = next_k_tile(me, read, release)
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        cute.arch.cp_async_wait_group(0)
        meet(me)  # the scale factors are in shared memory
        for j in cutlass.range_constexpr(config.subtiles):
            subtile_of(rC, j, config).store(scaled(me, j, config))
        before, tile, k_tile = tile, following, k_tile + me.k_tiles
    if k_tile > 0:
        for j in cutlass.range_constexpr(config.subtiles):
            store_subtile(me, j, subtile_of(rC, j, config), before, config)


# %% [markdown]
# ## The kernel and the launch
#
# As in the grouped GEMM, with two more pointers. `griddepcontrol.wait` stands before the first factor is read, for a
# kernel that quantizes A may have written it just before.


# %% tags=["folded"]
@cute.kernel
def kernel(
    tokens: TmaTensor,  # (T, K)
    weights: TmaTensor,  # (N, K, GROUP)
    c: TmaTensor,  # see `clipped`
    scales: tuple,  # float32: of tokens (T), of weights (N, GROUP)
    offs: cute.Tensor,  # Int32, by group
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile, `step` being the number of clusters."""
    first, step = cute.arch.block_idx()[0] // config.cluster, cute.arch.grid_dim()[0] // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (tokens.atom, weights.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    pipe, smem, rank = set_up(dtype, config)
    count, k = cute.size(tokens.coords, mode=[0]), cute.size(tokens.coords, mode=[1])
    k_tiles = cutlass.max(cute.ceil_div(k, config.tile_k), config.subtiles)
    across = cute.ceil_div(cute.size(weights.coords, mode=[0]), config.weights * config.cluster)
    scheduler = Scheduler(offs, count, across, first, step, rank)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            sT, sW = (smem[1], smem[0]) if config.swap_ab else (smem[0], smem[1])
            load_t, load_w = Load(tokens.atom, tokens.coords, sT), Load(weights.atom, weights.coords, sW)
            produce(pipe, load_t, load_w, scheduler, k_tiles, config)
    else:
        consume(pipe, smem, (c, scales), scheduler, k_tiles, (group, tidx % 128), config)


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """What the warps of a CTA share: its pipeline, the tensors sA, sB, sC and sS, and its rank in the cluster."""
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    sS = smem.allocate_tensor(
        cutlass.Float32, cute.make_layout((64 + config.tile_n, 2)), 16
    )  # (64 + TILE_N, WARPGROUP)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(E4M3, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(E4M3, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbours.
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8 * config.cluster),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, 1, config.cluster, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
    cute.arch.cluster_wait()
    return pipe, (sA, sB, sC, sS), cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


@cute.jit
def consume(pipe, smem, read_and_written, scheduler, k_tiles, who, config: cutlass.Constexpr):
    """A consumer warpgroup's part of all work tiles. who: the warpgroup (0 or 1), and the thread in it."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    (sA, sB, sC, sS), (group, thread), (out, scales) = smem, who, read_and_written
    dtype = sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(group * 128)  # of its first thread: the same for all
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    multiplied = pipe, k_tiles, overwrite, accumulate, tCrA, tCrB, acc, scales, sS[None, group]
    me = Consumer(*multiplied, sC, out.coords, tiled_copies(dtype, config).r2s_c, out.atom, group, thread)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still write offs, or use what is stored here
    compute(me, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% tags=["folded"]
class Sizes(NamedTuple):
    """What a launch is told beside the addresses of its tensors."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    groups: cutlass.Int32
    group_stride: cutlass.Int64  # elements from one group's weights to the next's
    group_stride_sb: cutlass.Int64  # likewise of their scale factors
    clusters: cutlass.Int32


class Read(NamedTuple):
    """What is read beside A and B."""

    pSA: cute.Pointer  # float32, by row of A
    pSB: cute.Pointer  # likewise, by group and column
    offs: cute.Pointer  # Int32, by group: the end of its rows


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    read: Read,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N): the rows of each group are those of A (M, K) times the group's B (N, K) transposed."""
    (m, n, k), strides, groups, group_stride, group_stride_sb, clusters = sizes
    dtype, ctas = pC.dtype, config.cluster
    lda, ldb, group_stride = (cute.assume(stride, divby=16) for stride in (*strides[:2], group_stride))
    ldc = cute.assume(strides[2], divby=8)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k, groups), stride=(ldb, 1, group_stride)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    t_stage, w_stage = (b_stage, a_stage) if config.swap_ab else (a_stage, b_stage)
    tokens = make_load(mA, t_stage, (config.tokens, config.tile_k), config.cluster)
    weights = make_load(mB, w_stage, (config.weights, config.tile_k), 1)
    mC = clipped(pC, (m, n), ldc, config)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    scales = (
        cute.make_tensor(read.pSA, cute.make_layout((m,))),
        cute.make_tensor(read.pSB, cute.make_layout((n, groups), stride=(1, group_stride_sb))),
    )
    ends = cute.make_tensor(read.offs, cute.make_layout(groups))
    launcher = kernel(tokens, weights, c, scales, ends, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


# %%
def clusters(config: Config, sms: int) -> int:
    """How many clusters are launched: the host does not know how many tiles there are."""
    return sms // config.cluster


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


# %% tags=["folded"]
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    scale, offs = (cutlass.Float32, 4), (cutlass.Int32, 4)
    pointers = (E4M3, 16), (E4M3, 16), (dtype, 16), scale, scale, offs
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`
#
# `GroupedScaledGemm`, which comes with every recipe's host side, checks what that of the grouped GEMM checks, and the
# scale factors. C of each dtype has a host side of its own.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (*strides, group_stride, groups, group_stride_sb), rows = call.strides, call.mnk[0]
    config = VARIANTS[variant_for(rows / groups) if call.variant == DEFAULT else call.variant]
    count = clusters(config, call.sms)
    return (config,), (Sizes(call.mnk, tuple(strides), groups, group_stride, group_stride_sb, count),)


def gemm_into(dtype: torch.dtype) -> GroupedScaledGemm:
    takes, variants = {torch.float8_e4m3fn: dtype}, (DEFAULT, *VARIANTS)
    return GroupedScaledGemm(compile_for, prepare, ((9, 0),), "wgmma", variants, padded=True, takes=takes)


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
    return GEMMS[dtype].matmul((a, b, scale_a, scale_b, offs), out, variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# The checks quantize a product's operands, and give the kernel four groups of its rows: one is empty, by an end out of
# order. Weights of the groups differ by their sign, and factors by powers of two. *Product* also has rows of no group.

# %% tags=["lab"]
lab.check_cells("hopper/fp8_grouped_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch._scaled_grouped_mm`: run and timed where there is a GPU for it,
# else as recorded. Then all peers in one run, with the groups of the 16-bit page. All accumulate fast. Group by group,
# `torch._scaled_mm` must be told the sizes on the host. Where cuBLAS refuses a group's addresses, it is not timed.

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
# **What is not halved** is in the last column: twice the one time less the other. What that time is was not measured; a
# launch, the first loads and the last stores are part of it. With many rows the gain is a little above that of the
# dense product. The 16-bit kernel is of another run, and has GPC-aware remapping. A kernel that leaves the scaling out
# was faster by less than the spread, in a trial that is not recorded.
#
# ## Conclusion
#
# Groups decide *where* a tile lies, and 8 bits *what* is multiplied. They meet only where a scale factor is looked up.
#
# Next, what all kernels are held against: [how fast memory can be read](../foundations/memory_ceiling.ipynb).
# To use it: `cookbook copy hopper/fp8_grouped_gemm my_gemm.py`, then `from my_gemm import matmul`.
