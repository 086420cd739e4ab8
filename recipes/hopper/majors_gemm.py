# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Operand majors with WGMMA
#     claim: >-
#       wgmma reads a tile along K or along M and N at the same rate, so an operand needs no transpose: its layout is
#       mirrored and one bit changes.
#     track: hopper
#     order: 95
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     serves: {sm_90: 2048}
#     dtypes: [bfloat16, float16]
#     majors: [tn, nt, nn, tt]
#     fitted: [clock_exponent, load_cost]
#     measured_by: foundations/gpc_remapping
#     path: >-
#       tma, multicast -> swizzled shared memory -> wgmma of either major -> stmatrix, overlapped with the next main
#       loop -> tma
#     instructions: {sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]}
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
# ---

# %% [markdown]
# # Operand majors with WGMMA
#
# **Claim.** `wgmma` reads a tile along K or along M and N at the same rate, so an operand needs no transpose: its atom
# is mirrored, its boxes lie the other way, and the instruction gets one bit.

# %% tags=["lab"]
from cookbook import draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/majors_gemm", (8192, 8192, 8192), majors="nn")

# %% [markdown]
# [The page before](tuned_gemm.ipynb) takes A and B *K-major*: the elements that are multiplied and summed lie next to
# each other, as in `x @ weight.T`. Most products of a training step are not like that:
#
# | letters | A (M, K) lies along | B (K, N) lies along | for example       |
# |---------|---------------------|---------------------|-------------------|
# | `tn`    | K: row-major        | K: column-major     | `x @ weight.T`    |
# | `tt`    | K: row-major        | N: row-major        | `dy @ weight`     |
# | `nn`    | M: column-major     | K: column-major     | `x.T @ weight.T`  |
# | `nt`    | M: column-major     | N: row-major        | `dy.T @ x`        |
#
# The letters are BLAS's and CuTe's, the first for A, the second for B: is the matrix, stored by columns, to be
# *transposed* or *not*?
#
# On Ampere `ldmatrix.trans` transposes an operand on its way to the registers ([there](../ampere/majors_gemm.ipynb)).
# Here the tensor cores read shared memory directly, and the kernel tells them how a tile lies. The letter of an operand
# changes its **layout** and **one bit**. The rest is the page before, line for line.

# %%
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host, either_major, remap_table, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes, and the majors
#
# The majors are two more fields: the compiler makes one kernel for each pair that is used. Of the variants of the page
# before, those are here that do not swap A and B. The others would need nothing new; but an M-major A of 208 rows has
# lines of 208 elements, and the widest swizzle that divides them is that of 32 bytes: many small boxes.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, how it is scheduled, and how its operands lie."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 64  # a K-major operand's line of 128 bytes, eight atoms of another's; four wgmma k-blocks of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_m: int = 1  # CTAs one above the other: they share the tiles of B
    cluster_n: int = 2  # or side by side: they share the tiles of A
    pingpong: bool = False  # each warpgroup has work tiles of its own; False: cooperative, both share one
    overlapped: int = 4  # epilogue subtiles of a cooperative warpgroup stored during the next tile's main loop
    swizzle_size: int = 8  # consecutive cluster tiles that need the same tiles of the operand that is not multicast
    gpc_aware: bool = True  # cluster tiles go to clusters by a table, so that consecutive ones run in one GPC
    epi_n: int = 64  # columns of an epilogue subtile, 128 bytes; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240
    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)
        if self.cluster_m > 1 and self.cluster_n > 1:
            got = f"{self.cluster_m} x {self.cluster_n}"
            raise ValueError(f"cluster_m x cluster_n: got {got}; needed 1 in one of them: a cluster shares one operand")
        for name, other in (("a_major", "m"), ("b_major", "n")):
            if getattr(self, name) not in ("k", other):
                raise ValueError(f"{name}: got {getattr(self, name)!r}; needed 'k' or {other!r}")

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def warpgroups(self) -> int:
        return 1 if self.pingpong else 2  # that share a work tile

    @property
    def subtiles(self) -> int:
        return self.tile_m // 64 * (self.tile_n // self.epi_n) // self.warpgroups  # of a tile, one warpgroup's

    @property
    def min_k_tiles(self) -> int:
        return max(1, self.overlapped)  # each overlapped subtile needs one; TMA fills those past K with zeros

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        # The barriers, padded to the tiles' alignment, the stages, and the epilogue's buffers of two warpgroups.
        return 1024 + self.stages * self.stage_bytes + 2 * self.epi_stages * 64 * self.epi_n * 2


VARIANTS = {
    "128x256": Config(),
    "256x160": Config(tile_m=256, tile_n=160, epi_n=32, overlapped=9),
    "128x192 pingpong": Config(tile_n=192, cluster_m=2, cluster_n=1, pingpong=True, overlapped=0),
    "128x128 pingpong": Config(tile_n=128, cluster_m=2, cluster_n=1, stages=6, pingpong=True, overlapped=0),
    "128x64 pingpong": Config(tile_n=64, stages=8, pingpong=True, overlapped=0),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## Unchanged: the heuristics
#
# The majors are not in them. They change neither the multiplications nor the loads.


# %%
@dataclass(frozen=True)
class Calibration:
    """What the heuristics and the remapping know of one chip: the defaults are of an H200."""

    short: float = 15_000  # clocks of multiplying on each SM, below which a product is over before power matters
    clock_exponent: float = 0.5  # at the power limit, time is proportional to this power of the clocks
    load_cost: float = 16  # multiply-adds that loading one operand element into an SM costs there
    round_clocks: float = 800  # from the last wgmma of a tile to the first of the next, where both warpgroups round it
    store_clocks: float = 350  # for 64 x 64 of C that is not overlapped
    load_rate: float = 80  # bytes of A and B that come into an SM in a clock, what a neighbour multicasts included
    # The GPC of each cluster of two, in the order in which an idle GPU starts them. Any letters; () is "not known".
    gpcs: tuple[object, ...] = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")


CALIBRATION = Calibration()


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(load_cost=12)`, say."""
    global CALIBRATION
    for name, value in figures.items():
        require(name == "gpcs" or 0 < value < float("inf"), name, value, "a finite number above 0")
    CALIBRATION = replace(CALIBRATION, **figures)
    GEMM.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


def cluster_tiles(config: Config, m: int, n: int) -> tuple[int, int]:
    """Tiles of whole clusters that cover C (m, n): down, across."""
    return -(-m // (config.tile_m * config.cluster_m)), -(-n // (config.tile_n * config.cluster_n))


def waves(config: Config, m: int, n: int, sms: int) -> int:
    """Cluster tiles that the busiest cluster computes, if `sms` SMs are full of clusters."""
    return -(-prod(cluster_tiles(config, m, n)) // (sms // config.cluster))


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """The number of clusters to launch: no more than that number of waves needs."""
    return -(-prod(cluster_tiles(config, m, n)) // waves(config, m, n, sms))


def clocks(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """What the busiest of `sms` SMs needs for C (m, n) over k."""
    tile, chip = config.tile_m * config.tile_n, CALIBRATION
    stage = max(tile * config.tile_k / 2048, config.stage_bytes / chip.load_rate)
    at_once = (config.subtiles - config.overlapped) * config.epi_n / 64
    stop = 0 if config.pingpong else chip.round_clocks + chip.store_clocks * at_once
    return waves(config, m, n, sms) * (-(-k // config.tile_k) * stage + stop) + tile / 16


def is_short(m: int, n: int, k: int, sms: int) -> bool:
    """Whether the product is over before power matters."""
    return m * n * k / 2048 / sms < CALIBRATION.short


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """What C (m, n) over k costs on `sms` SMs, to be compared with the cost of another configuration."""
    needed, chip = clocks(config, m, n, k, sms), CALIBRATION
    loads = 1 / config.tile_m + 1 / config.tile_n  # operand elements loaded into an SM per multiply-add
    return needed if is_short(m, n, k, sms) else needed**chip.clock_exponent * (1 + chip.load_cost * loads)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## The layout
#
# TMA copies boxes. The rows of a box are what is contiguous in global memory, and TMA does not transpose them. So an
# M-major operand arrives in lines along M, and its atom is the K-major one mirrored: not 8 rows of 64 elements along K,
# but **64 x 8, eight lines of 64 elements along M**, one line for each k. The swizzle is the same `S<3,4,3>`, for it
# acts on addresses: chunk *c* (16 bytes) of line *l* goes to slot *c XOR l*.
#
# **In which order do the atoms fill the tile?** The tensor core takes either, for a matrix descriptor has two strides:
# one from eight k to the next eight, the other from 64 rows to the next 64. TMA decides. A box in the 128-byte mode is
# one swizzle wide, 64 elements, and any number of lines high, *one below the other*.
#
# So all atoms along K come first: a box is 64 x 64, and a tile of 128 rows has two. In the other order a box would be
# one atom, 64 x 8, and the producer would issue eight times as many copies.
#
# **160 columns are not whole lines of 64.** For a K-major B that does not matter: its lines run along K. But lines of
# an N-major B run along its 160 columns. The widest atom whose line divides 160 elements is SW64, lines of 32 elements,
# 64 bytes, with `S<2,4,3>`. So the major alone decides the mode of B in `256x160`, and no line of the kernel says so.
# In the 64-byte mode B has twice as many lines; [they cost nothing](swizzle_modes_gemm.ipynb) while the multiplications
# take longer.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (TILE_M, TILE_K, STAGE)
    b: cute.ComposedLayout  # (TILE_N, TILE_K, STAGE)
    c: cute.ComposedLayout  # (EPI_M, EPI_N, EPI_STAGE): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int, along: int = 1) -> cute.ComposedLayout:
    """The widest atom whose line, along mode `along`, divides `contiguous` elements: SW128, SW64, SW32, or INTER."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    lines = cute.make_layout((8, width), stride=(width, 1))
    lines = lines if along == 1 else cute.select(lines, mode=[1, 0])  # (width, 8):(1, width)
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first across the lines, then along them, then over the stages."""
    c = config

    def staged(rows: int, major: str) -> cute.ComposedLayout:
        along, order = (1, (0, 1, 2)) if major == "k" else (0, (1, 0, 2))
        tile = (rows, c.tile_k, c.stages)
        return cute.tile_to_shape(smem_atom(dtype, tile[along], along), tile, order=order)

    return SmemLayouts(
        a=staged(c.tile_m, c.a_major),
        b=staged(c.tile_n, c.b_major),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
    )


# %% [markdown] tags=["lab"]
# ## The M-major tile
#
# Our own A for `nt`, as CuTe evaluates it. A row of the picture is one 128-byte line of shared memory: 64 elements
# along M, of one k. The chunks are numbered along M; the swizzle is the one that a K-major tile has.

# %% tags=["lab"]
from cookbook.recipe import majors

BF16 = cutlass.BFloat16


def layouts_of(variant: str, letters: str):
    """The recipe's own layouts for operands of these majors."""
    return evaluate(smem_layouts, BF16, majors.configured(VARIANTS[variant], letters))


draw.swizzle_view(layouts_of("128x256", "nt").a)

# %% [markdown] tags=["lab"]
# ## The order of the atoms
#
# A smaller M-major tile, 128 x 16: two atoms along K, two along M. A row of the picture is one k, a column 16 bytes
# along M; the number is the byte offset, the colour the atom, in the order of memory. In our order the lines of one
# column of atoms follow one another, 128 bytes apart, down to the last k: one box of TMA. In the other order they stop
# after eight.

# %% tags=["lab"]


def tile_in_order(order: tuple[int, int, int], rows: int, k: int) -> cute.ComposedLayout:
    """An M-major tile of one stage with its atoms in this order."""
    return cute.tile_to_shape(smem_atom(BF16, rows, along=0), (rows, k, 1), order=order)


ours, other = (evaluate(tile_in_order, order, 128, 16, element_bits=16) for order in ((1, 0, 2), (0, 1, 2)))
tilings = {"first along K (ours)": ours, "first along M": other}
draw.atom_tiling(tilings, (64, 8), "An M-major tile, its atoms in two orders")

# %% [markdown]
# ## One bit
#
# `wgmma` has a bit for each operand, in PTX `imm-trans-a` and `imm-trans-b`: the lines that the descriptor describes
# run along K, or along M or N. With the bit the tensor core transposes each core matrix while it reads it. **For 16-bit
# elements only**: with 8-bit or 32-bit ones both operands must be K-major.
#
# The bit is in the instruction, the strides are in the descriptor, the swizzle is in both the descriptor and the
# tensor map, and all of them must tell of the same tile. We say it once, in `Config`, and CuTe derives the descriptor
# from the layout and the bit.


# %%
def wgmma(dtype, columns: int, a_major: str = "k", b_major: str = "k") -> warpgroup.MmaF16BF16Op:
    """64 rows of A times 16 x `columns` of B, both from shared memory, of these majors; float32 accumulators."""
    smem = warpgroup.OperandSource.SMEM
    majors = (OperandMajorMode.K if major == "k" else OperandMajorMode.MN for major in (a_major, b_major))
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, *majors)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the warpgroups that share a tile: of one, which then goes down all its rows itself, or of two."""
    op = wgmma(dtype, config.tile_n, config.a_major, config.b_major)
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The copy of the epilogue: a subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, subtile))


# %% [markdown]
# ## Unchanged: tile scheduler, producer, consumers, epilogue
#
# Partitioned tensors have the same modes whichever way a tile lies: (TMA, k) for the producer, descriptors
# (MMA, MMA_M, MMA_K, STAGE) for the consumers. Only what is behind an index differs. What a box holds past the end of
# K, TMA fills with zeros: the ends of its lines if they run along K, whole lines if they do not.


# %%
class Raster(NamedTuple):
    """The rasterization of C: how its cluster tiles are numbered."""

    tiles: cutlass.Int32  # cluster tiles of C
    along: cutlass.Int32  # of these, in the direction of consecutive numbers
    by_step: cute.FastDivmodDivisorV2  # divides by the number of clusters
    by_group: cute.FastDivmodDivisorV2  # divides by the cluster tiles of a group
    by_last: cute.FastDivmodDivisorV2  # divides by the swizzle size of the last group


class Scheduler(NamedTuple):
    """The work tiles of one CTA."""

    raster: Raster
    first: cutlass.Int32  # number of its cluster's first cluster tile
    step: cutlass.Int32  # from one to the next: the clusters of the grid
    count: cutlass.Int32  # of work tiles
    rank: tuple  # (row, column) of the CTA in its cluster


def rasterize(m, n, clusters, config: Config) -> Raster:
    """The rasterization of C (m, n) for `clusters` clusters; the host computes it."""
    high, wide = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    down, across = cute.ceil_div(m, high), cute.ceil_div(n, wide)
    along, other = (across, down) if config.cluster_m > 1 else (down, across)
    numbers = (clusters, config.swizzle_size * other, cutlass.max(1, along % config.swizzle_size))
    return Raster(along * other, along, *(cute.FastDivmodDivisorV2(number) for number in numbers))


@cute.jit
def work_tile(scheduler: Scheduler, i, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    raster = scheduler.raster
    group, inside = divmod(scheduler.first + i * scheduler.step, raster.by_group)
    start = group * config.swizzle_size
    other, one = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > raster.along:  # the last group is smaller
        other, one = divmod(inside, raster.by_last)
    m, n = start + one, other
    if cutlass.const_expr(config.cluster_m > 1):
        m, n = n, m
    return m * config.cluster_m + scheduler.rank[0], n * config.cluster_n + scheduler.rank[1]


class Load(NamedTuple):
    """One operand as the producer sees it."""

    atom: cute.CopyAtom
    gX: cute.Tensor  # (TMA, m or n, k), TMA coordinates
    sX: cute.Tensor  # (TMA, STAGE)
    multicast: dict  # what a TMA copy to several CTAs of the cluster is told


@cute.jit
def load_of(atom, gX, sX, part, sharers: cutlass.Constexpr):
    """The part that this CTA loads of tiles of an operand; `sharers` CTAs of the cluster get each tile."""
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(atom, part, cute.make_layout(sharers), sX, gX)
    return Load(atom, tXgX, tXsX, {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {})


@cute.jit
def produce(pipe, loads, scheduler: Scheduler, tile, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of all work tiles of this CTA, a stage each; `tile` is the first of these."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        state = load_tile(pipe, loads, state, tile, i & 1, k_tiles)
        tile = work_tile(scheduler, cutlass.min(i + 1, scheduler.count - 1), config)
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


@cute.jit
def load_tile(pipe, loads, state, tile, backwards, k_tiles):
    """Load the k-tiles of work tile (m, n); `backwards` is 1 or 0. Returns the pipeline state."""
    a, b = loads
    m, n = (cutlass.min(at, cute.size(x.gX, mode=[1]) - 1) for at, x in zip(tile, loads, strict=True))
    tAgA, tBgB = a.gX[None, m, None], b.gX[None, n, None]  # (TMA, k); a dummy tile loads the last one
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i + backwards * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(a.atom, tAgA[None, k_tile], a.sX[None, state.index], tma_bar_ptr=barrier, **a.multicast)
        cute.copy(b.atom, tBgB[None, k_tile], b.sX[None, state.index], tma_bar_ptr=barrier, **b.multicast)
        state.advance()
    return state


# %%
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    sC: cute.Tensor  # its own epilogue buffers, (EPI_M, EPI_N, EPI_STAGE)
    gC: cute.Tensor  # all tiles of C as TMA coordinates, (TILE_M, TILE_N, m, n)
    r2s_c: cute.TiledCopy
    tma_c: cute.CopyAtom
    warpgroup: cutlass.Int32  # 0 or 1
    thread: cutlass.Int32  # in the warpgroup


@cute.jit
def issue_wgmmas(me: Consumer, stage, first: cutlass.Constexpr = False):
    """Issue the wgmmas of one stage as one commit group; `first`: of a work tile, its first one overwrites `acc`."""
    acc, tCrA, tCrB = me.acc, me.tCrA, me.tCrB
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # 16 elements, 32 bytes, along K
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
def round_and_store(me: Consumer, last: cutlass.Constexpr, tile, config: cutlass.Constexpr):
    """Round and store subtiles 0 to `last` - 1 of a tile, one after the other."""
    for i in cutlass.range_constexpr(last):
        tCrC = subtile_of(me.acc, i, config)  # (MMA, 1, 1), float32
        rounded = cute.make_rmem_tensor(tCrC.shape, me.sC.element_type)
        rounded.store(tCrC.load().to(rounded.element_type))
        store_subtile(me, i, rounded, tile, config)


@cute.jit
def store_subtile(me: Consumer, i: cutlass.Constexpr, rC, tile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile (m, n). rC: a thread's rounded values, (MMA, 1, 1)."""
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
        gC = cute.zipped_divide(me.gC[None, None, tile[0], tile[1]], (64, config.epi_n))  # (EPI_TILE, subtiles)
        sC = cute.group_modes(me.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
        bSsC, bSgC = cpasync.tma_partition(me.tma_c, 0, cute.make_layout(1), sC, gC)
        across = config.tile_n // config.epi_n
        row = i // across * config.warpgroups + (0 if config.pingpong else me.warpgroup)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(me.tma_c, bSsC[None, buffer], bSgC[None, (row, i % across)])
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def compute(me: Consumer, scheduler: Scheduler, config: cutlass.Constexpr):
    """All work tiles of a warpgroup: its half of each, or in ping-pong every second one."""
    own, step = (me.warpgroup, 2) if config.pingpong else (0, 1)
    at_once = config.subtiles - config.overlapped
    rC = cute.make_rmem_tensor(max(1, config.overlapped) * config.epi_n // 2, me.sC.element_type)  # rounded
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(own, scheduler.count, step, unroll=1):
        k_tile = i * me.k_tiles
        stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
        read, release = (pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))
        if cutlass.const_expr(config.pingpong):  # barriers 4 and 5: 0 is the CTA's, 1 and 2 are of the epilogues
            if i > 0:
                pipeline.NamedBarrier(barrier_id=4 + me.warpgroup, num_threads=256).arrive_and_wait()
        me.pipe.consumer_wait(read)
        issue_wgmmas(me, read.index, True)
        read.advance()
        tile = work_tile(scheduler, i, config)  # computed while the first commit group runs
        for j in cutlass.range_constexpr(config.overlapped):
            if i > 0:
                store_subtile(me, at_once + j, subtile_of(rC, j, config), before, config)
            if cutlass.const_expr(j + 1 < config.overlapped):
                read, release = next_k_tile(me, read, release)
        # As many k-tiles either way. They compile to different code, and each schedule has the one that was measured.
        first, end = (0, me.k_tiles - 1) if config.pingpong else (config.min_k_tiles, me.k_tiles)
        for _ in cutlass.range(first, end, unroll=1):
            read, release = next_k_tile(me, read, release)
        if cutlass.const_expr(config.pingpong):
            if i + 1 < scheduler.count:  # all is issued: the other warpgroup may begin
                pipeline.NamedBarrier(barrier_id=5 - me.warpgroup, num_threads=256).arrive()
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        round_and_store(me, at_once, tile, config)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(rC, j, config).store(subtile_of(me.acc, at_once + j, config).load().to(rC.element_type))
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(me, at_once + j, subtile_of(rC, j, config), before, config)


class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates: (M, K), (N, K) or (M, N), or tiles of these


@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    remap: cute.Pointer,  # Int32, by cluster: the number of its first cluster tile
    raster: Raster,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters."""
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
    pipe, (sA, sB, sC), rank = set_up(dtype, config)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cutlass.max(cute.size(gA, mode=[3]), config.min_k_tiles)
    first = cute.arch.make_warp_uniform(first)
    count = (raster.tiles + step - 1 - first) // raster.by_step
    scheduler = Scheduler(raster, first, step, count, rank)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        # The compiler would sink this below the wait for the previous kernel, where every clock counts. It must leave
        # an exchange between lanes, which changes nothing here, on this side of the branch.
        tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(scheduler, 0, config))
        if warp_idx == 8:
            load_a = load_of(a.atom, gA, sA, rank[1], config.cluster_n)
            load_b = load_of(b.atom, gB, sB, rank[0], config.cluster_m)
            produce(pipe, (load_a, load_b), scheduler, tile, k_tiles, config)
    else:
        consume(pipe, (sA, sB, sC), TmaTensor(c.atom, gC), scheduler, k_tiles, group, tidx % 128, config)


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """What the warps of a CTA share: its pipeline, the tensors sA, sB, sC, and its (row, column) in the cluster."""
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbours.
    arrivals = 4 * config.warpgroups * config.cluster
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
    cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
    cute.arch.cluster_wait()
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    return pipe, (sA, sB, sC), (rank % config.cluster_m, rank // config.cluster_m)


@cute.jit
def consume(pipe, smem, out: TmaTensor, scheduler, k_tiles, group, thread, config: cutlass.Constexpr):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. out: tiles of C; thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    sA, sB, sC = smem
    dtype = sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(group % config.warpgroups * 128)  # of its first thread: the same for all
    tCgC = thr.partition_C(out.coords[None, None, 0, 0])  # (MMA, MMA_M, MMA_N)
    acc = cute.make_rmem_tensor(tCgC.shape, cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    multiplied = pipe, k_tiles, overwrite, accumulate, tCrA, tCrB, acc
    me = Consumer(*multiplied, sC, out.coords, tiled_copies(dtype, config).r2s_c, out.atom, group, thread)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still read or write what this warpgroup stores
    compute(me, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The launch
#
# Of the two strides of an operand one is 1; the majors say which. The kernel sees (rows, K) either way, and
# `make_tiled_tma_atom` finds out from the tensor's strides and the tile's layout what a box is.


# %%
def operand_layout(rows, k, stride, major: str) -> cute.Layout:
    """(rows, K) of an operand whose lines, along K or along the rows, are `stride` elements apart."""
    return cute.make_layout((rows, k), stride=(stride, 1) if major == "k" else (1, stride))


class Sizes(NamedTuple):
    """What a launch is told beside addresses: sizes, row strides of A, B, C in elements, and clusters to launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]
    clusters: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    remap: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; a stride leads from line to line."""
    (m, n, k), strides, clusters = sizes
    dtype, ctas = pA.dtype, config.cluster
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, operand_layout(m, k, lda, config.a_major))
    mB = cute.make_tensor(pB, operand_layout(n, k, ldb, config.b_major))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    launcher = kernel(a, b, c, remap, rasterize(m, n, clusters, config), dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (cutlass.Int32, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


FULL = 0.9  # of the clusters that fit: where there are fewer, most GPCs have less than one group


def remap_of(call: Call, config: Config, count: int) -> int:
    """The address of the table for `count` clusters; 0: none, where clusters are few, the product is short, or the
    GPCs are not known."""
    (m, n, _), most, known = call.mnk, call.sms // 2, tuple(CALIBRATION.gpcs)
    if config.cluster != 2 or count < FULL * most or len(known) != most or is_short(*call.mnk, call.sms):
        return 0
    down, across = cluster_tiles(config, m, n)
    return remap_table(call.device, known[:count], min(config.swizzle_size, across if config.cluster_m > 1 else down))


# %% [markdown]
# ## `matmul`: what a user calls
#
# As on the page before. There is no argument for the majors: the strides of a and b say them.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (m, n, k), (a_major, b_major) = call.mnk, call.majors
    config = VARIANTS[choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant]
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count)
    config = replace(config, gpc_aware=remap != 0, a_major=a_major, b_major=b_major)
    return (config,), (remap, Sizes(call.mnk, call.strides, count))


GEMM = Gemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), major_of=either_major, padded=True)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    The strides say the majors; an operand that can be read both ways counts as K-major. The addresses of a and b and
    their other strides are multiples of 16 bytes, as TMA needs them. Any M, N, K >= 1 within that, on a GPU of compute
    capability 9.0. If rows of `out` are no such multiples, or N is no multiple of 8, the product is made in padded rows
    and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## The descriptors
#
# The descriptor of the first 16 k of each operand: the bytes that its mode keeps together, its strides in bytes, and
# how far its start moves from one k-block to the next. K-major, a k-block is 32 bytes further *in the same lines*;
# MN-major it is 16 lines further.

# %% tags=["lab"]
import numpy as np
from IPython.display import Markdown

from cookbook.model import SharedMemory, from_float32, operand_descriptors, tma_load
from cookbook.model import wgmma as modelled_wgmma
from cookbook.model.wgmma import d_coords
from cookbook.publish.choices import choices_table
from cookbook.publish.pages import beside_tn, results_table, table

rows = []
for variant, letters in [("128x256", letters) for letters in majors.MAJORS] + [("256x160", "nt")]:
    config, of = majors.configured(VARIANTS[variant], letters), layouts_of(variant, letters)
    row = [f"{variant}, {letters}"]
    for layout, lines, major in ((of.a, 64, config.a_major), (of.b, config.tile_n, config.b_major)):
        first, second = operand_descriptors(layout, lines, major="K" if major == "k" else "MN")[:2]
        row.append(f"mode {first.mode}, lbo {first.lbo}, sbo {first.sbo}, + {second.start - first.start}")
    rows.append(row)
Markdown(table(["kernel", "descriptor of A", "descriptor of B"], rows, right=3))

# %% [markdown] tags=["lab"]
# **The trap: a wrong bit raises nothing.** The model multiplies an M-major tile of 64 x 64 by a K-major B, with the
# right bit and with the other. The second product is that of the *transposed* tile: lines taken for rows.

# %% tags=["lab"]
rng = np.random.default_rng(0)
a, b = rng.integers(-8, 9, (64, 64)).astype(np.float32), rng.integers(-8, 9, (64, 16)).astype(np.float32)
smem = SharedMemory(16384)
tma_load(smem, 0, from_float32(np.ascontiguousarray(a.T), "bfloat16"), (0, 0), (64, 64), 128)  # lines along M
tma_load(smem, 8192, from_float32(np.ascontiguousarray(b.T), "bfloat16"), (0, 0), (16, 64), 128)  # lines along K
m_major = evaluate(tile_in_order, (1, 0, 2), 64, 64, element_bits=16)
k_major = evaluate(lambda: cute.tile_to_shape(smem_atom(BF16, 64), (16, 64, 1), order=(0, 1, 2)), element_bits=16)
left, right = operand_descriptors(m_major, 64, 0, "MN")[0], operand_descriptors(k_major, 16, 8192, "K")[0]
coords = d_coords(16)
for bit in ("MN", "K"):
    found = np.zeros((64, 16), np.float32)
    zeros = np.zeros((128, 8), np.float32)
    found[coords[..., 0], coords[..., 1]] = modelled_wgmma(smem, left, right, zeros, "bfloat16", major_a=bit)
    products = {"a @ b": a[:, :16] @ b[:16], "a.T @ b": a.T[:, :16] @ b[:16]}
    print(f"major_a = {bit:3}", {name: bool((found == product).all()) for name, product in products.items()})

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level for each of the majors and every variant. The check is of the cells above: edit one, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/majors_gemm", shapes=[(200, 328, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("hopper/majors_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Ours and its peers, interleaved in one run on one GPU, all of them on operands of the same majors. "Ours" is `matmul`
# without an argument: whatever the heuristics chose.

# %% tags=["lab"]
Markdown(results_table("hopper/majors_gemm"))

# %% [markdown] tags=["lab"]
# The four majors have the same multiplications, the same bytes and the same epilogue; the producer issues a few more
# copies. So each should be as fast as its own `tn`; here against that, and against `torch.matmul` on such operands:

# %% tags=["lab"]
Markdown(beside_tn("hopper/majors_gemm"))

# %% [markdown] tags=["lab"]
# The heuristics know nothing of majors. The three cheapest variants, relative to the best, predicted and measured:

# %% tags=["lab"]
Markdown(choices_table("hopper/majors_gemm", sms=132))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Nothing is transposed: TMA brings lines as they are, and one bit says which way they run. To the code around it the
# major is no more than a layout. Choose a layout for its writer as much as for its reader: the tensor core takes the
# atoms in any order, TMA wants the order that makes its boxes tall.
#
# Next: [8-bit operands](fp8_gemm.ipynb). What all of these kernels are held against:
# [how fast the tensor cores can go](../foundations/tensor_core_ceiling.ipynb).
#
# To use it: `cookbook copy hopper/majors_gemm my_gemm.py`, then `from my_gemm import matmul`.
