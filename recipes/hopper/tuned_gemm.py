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
#     title: The GEMM to use
#     claim: >-
#       Two schedules, eleven tiles, and one rule of two terms, clocks and bytes, that chooses among them for the sizes
#       it is given.
#     track: hopper
#     order: 90
#     builds_on: hopper/pingpong_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix, while the next tile is multiplied -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D.MULTICAST, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
# ---

# %% [markdown]
# # The GEMM to use
#
# **Claim.** What the pages before this one have found, in one `matmul`: TMA with multicast, clusters of two, persistent
# CTAs, warpgroups that take turns, and PDL (programmatic dependent launch: a kernel gets ready while the one before it
# ends). Operands are K-major, as in [pingpong](pingpong_gemm.ipynb), whose kernel this one is nearest to. Six things
# are new. The first two are in the consumers, the third is in the producer, the fourth is a question of layouts, the
# fifth of where on the chip a cluster runs, and the sixth is no part of the kernel.
#
# * **The cooperative schedule stores late.** Two warpgroups that share a tile of 128 x 256 or 256 x 160 need few bytes
#   for each multiplication, but they both stop multiplying to store. Here they do not: they round the tile, keep it in
#   registers, and store it *while the next tile is multiplied*.
# * **The tensor cores' operands cost no thread anything.** `wgmma` is told where its operands lie by two descriptors,
#   and they are the same for all threads of a warpgroup. If the compiler can prove that, the warp has them in uniform
#   registers (a second, small register file, one value for a warp) and computes them once; if not, 32 lanes do, and
#   each is moved over. Here it can, and the registers that this sets free are what makes room for storing late.
# * **K goes back and forth.** Every other tile of a CTA walks K from its end: what was read last should still be in L2.
#   That is the *serpentine* of [the persistent GEMM](persistent_gemm.ipynb), which shows where it was worth something
#   and where not. It costs two integer operations a k-tile, so that here every variant has it.
# * **Some tiles are computed transposed.** C transposed is the product of the same operands in each other's places. It
#   lets a tile have 208 rows, a number that suits the registers, or 144, one that suits the number of SMs. Neither
#   suits the boxes that C is stored in, and transposed it need not.
# * **Clusters have seats.** The SMs of a GPU are wired up in groups. What several SMs of a group ask for at once, L2 is
#   asked once. So which tile a cluster computes goes by where it is expected to run: those of a group need the same
#   *panel*, the rows of A or of B that a tile needs, over all of K.
# * **A rule chooses.** Which tile and which schedule is best depends on M, N and K. `cost` is the rule: how many clocks
#   the tensor cores need, and how many bytes they must be fed. `matmul` takes the cheapest of `VARIANTS`.

# %%
from collections.abc import Callable
from dataclasses import dataclass, replace
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
# | variant | a warpgroup holds | elements that come into an SM for 1000 products |
# |---|---|---|
# | `128x256` | half of 128 x 256, and all of the half before it, rounded | 1000 (1 / 256 + 1 / 128) = 11.7 |
# | `256x160` | half of 256 x 160, and nine tenths of the half before it | 10.2 |
# | `208x256` | half of 208 x 256 | 8.7 |
# | `128x192 in turn` | 128 x 192 | 13.0 |
# | `176x128 in turn` | 176 x 128 | 13.5 |
# | `160x128 in turn` | 160 x 128 | 14.1 |
# | `144x128 in turn` | 144 x 128 | 14.8 |
# | `128x128 in turn` | 128 x 128 | 15.6 |
# | `112x128 in turn` | 112 x 128 | 16.7 |
# | `96x128 in turn` | 96 x 128 | 18.2 |
# | `128x64 in turn` | 128 x 64 | 23.4 |
#
# Clusters do not change that column: of two CTAs side by side each asks for half of the tile of A that both use, and
# both get all of it. They change what L2 is asked for.
#
# **128 x 256 and not 256 x 128.** Both take in as much, and a thread holds as many sums. But a warpgroup's half of the
# first is 64 x 256, which one `wgmma` computes; its half of the second takes two, and each of them reads B anew. For 16
# elements of K the tensor cores read 2 (64 + 256) = 640 rows of shared memory, not 4 (64 + 128) = 768, and there are
# half as many instructions to issue. And the panel that a cluster does not share is the larger one, 256 rows of B.
# Multicast alone would rather share that. But what comes by multicast each cluster asks L2 for anew, and what it does
# not share a whole row of clusters asks for once, where they have [seats](#seats).
#
# What a warpgroup of 128 threads holds is limited by their registers, 240 each: 256 x 160 takes 160 for the sums, and
# two rounded numbers to a register leave room for nine boxes of 64 x 32 out of ten. The other one goes out at once.
#
# **The widest tile** needs the fewest loads, and 208 sums a thread leave no registers to store late. It has another
# difficulty: a box whose rows are 128 bytes has 64 columns, and 64 does not divide 208. Narrower boxes write less than
# a line of L2 at a time. So this variant is **transposed**: the tensor cores compute C transposed from A and B in each
# other's places, 256 rows of what they see as A are 256 *columns* of C, in four boxes of 64, and 208 is a number of
# rows, which nothing has to divide.
#
# **The tiles that take turns** load more. They are for products of which a tile is over soon, and for products of few
# tiles. Take 1536 x 1536. It is 144 tiles of 128 x 128, and an H200 has 132 SMs: there are two *waves*, and in the
# second one 120 SMs have nothing to do. But it is 132 tiles of 144 x 128, one wave, and a full one. So there should be
# tiles of many sizes, and transposed that costs nothing: a number of rows may be any multiple of 16, two of the 8 x 8
# matrices that `stmatrix` writes. Five such numbers are here. With the others they come near enough to most products;
# the lab shows how near.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_m: int = 1  # CTAs one above the other: they share the tiles of B
    cluster_n: int = 2  # or side by side: they share the tiles of A
    pingpong: bool = False  # a warpgroup has a tile of its own; False: both share one
    swap_ab: bool = False  # A is b, B is a, C lies by columns: `tile_m` are columns of the product, `tile_n` rows
    overlapped: int = 4  # boxes that warpgroups which share a tile store late, while the next one is multiplied
    swizzle_size: int = 8  # cluster tiles in a row, which all need the panel that each cluster does not share
    gpc_aware: bool = True  # a cluster goes by its seat, not by its number: those of a GPC sit in a row
    epi_n: int = 64  # columns of C, as the tensor cores see it, that go out together: a box is 64 rows by that
    epi_stages: int = 2  # for each warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # a thread; with twice the consumers' that is three times the launch's 168: all
    consumer_registers: int = 240

    def __post_init__(self):
        if self.cluster_m > 1 and self.cluster_n > 1:
            got = f"{self.cluster_m} x {self.cluster_n}"
            raise ValueError(f"cluster_m x cluster_n: got {got}; needed 1 in one of them: a cluster shares one operand")

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def warpgroups(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.pingpong else 2

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def subtiles(self) -> int:
        """Boxes of C that one warpgroup stores of a tile."""
        return self.tile_m // 64 * (self.tile_n // self.epi_n) // self.warpgroups

    @property
    def epi_tile(self) -> tuple[int, int]:
        """Rows and columns of an epilogue subtile."""
        return 64, self.epi_n

    @property
    def min_k_tiles(self) -> int:
        """Stages of a tile at least: one for each box that goes out late. TMA fills those past K with zeros."""
        return 1 if self.pingpong else max(1, self.overlapped)

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        c = 2 * self.epi_stages * 64 * self.epi_n * 2
        return 1024 + self.stages * self.stage_bytes + c  # 1024: the barriers, padded to the tiles' alignment


def in_turn(rows: int, stages: int, **cluster: int) -> Config:
    """Tiles of `rows` x 128 in turn, transposed: `rows` is any multiple of 16 that a thread has registers for."""
    boxes = {"epi_n": rows, "epi_stages": 1, "swap_ab": True}
    return Config(tile_n=rows, stages=stages, pingpong=True, **boxes, **cluster)


VARIANTS = {
    "128x256": Config(),
    "256x160": Config(tile_m=256, tile_n=160, epi_n=32, overlapped=9),
    "208x256": Config(tile_m=256, tile_n=208, stages=3, overlapped=0, epi_n=208, epi_stages=1, swap_ab=True),
    "128x192 in turn": Config(tile_n=192, cluster_m=2, cluster_n=1, pingpong=True),
    "176x128 in turn": in_turn(176, 4, cluster_m=2, cluster_n=1),
    "160x128 in turn": in_turn(160, 5),
    "144x128 in turn": in_turn(144, 5, cluster_m=2, cluster_n=1),
    "128x128 in turn": Config(tile_n=128, cluster_m=2, cluster_n=1, stages=6, pingpong=True),
    "112x128 in turn": in_turn(112, 6),
    "96x128 in turn": in_turn(96, 7),
    "128x64 in turn": Config(tile_n=64, stages=8, pingpong=True),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The rule
#
# A product takes as long as its busiest CTA. Tiles are whole, so count **waves**: 132 SMs hold 66 clusters of two,
# which compute 66 *cluster tiles* (pairs of tiles) at a time; 1056 of them are 16 waves, one more is 17. A wave takes
# `tile_m * tile_n * K / 2048` clocks, for 2048 multiply-adds are what the tensor cores of an SM do in one. Warpgroups
# that cooperate need some clocks more between two tiles, to round (`ROUND`: from counted clocks at short K) and to
# store each box that goes out at once (`STORE`). When the last tile is over there is a store that hides behind nothing.
# And the smallest tile waits for its operands: they come into an SM at `ARRIVE` bytes a clock at most, by a fit to the
# times of products of one wave. (That counts the whole stage, with what the neighbour's multicast brings. The 64 of the
# pages before are what an SM gets by itself.)
#
# For a product that is over in some ten microseconds, that is all: much of them goes to its launch, its first loads and
# its last store, in which little energy is used. A longer one, again and again, takes the GPU to its **power** limit.
# It lowers its clock until it stays within, so that energy is time, and two things change.
#
# * *Clocks count for less.* [A page before](warp_specialized_gemm.ipynb) saw a tile lose less by its waves than its
#   clocks said. An SM that has nothing to do in the last wave takes little power, and the others run faster. A tile of
#   which the waves are less full loses some of it, not all. `CLOCKS` is the exponent with which clocks count.
# * *Bytes count.* To bring operands to the tensor cores takes energy: from memory, through L2, across the chip, into
#   shared memory. `LOAD` puts a figure on it: an element that comes into an SM costs as much as so many multiply-adds.
#
# Both are such that over some forty products, timed in all variants that come near, the choices lose the least. There
# are more such pairs, for a greater exponent asks for a greater `LOAD`; the lab below fits the two to the times
# themselves, by the records. They are figures of *one chip*, an H200 at its power limit, multiplying normal numbers:
# another card, another limit or a warmer room has others. `SHORT`, where the one law ends and the other begins, is
# less sharp: between 10 000 and 25 000 clocks both choose nearly the same. It has to be measured at a clock that has
# settled. One product of 30 microseconds, or a hundred, are over before the GPU lowers it, and prefer few clocks; the
# products of a step of training, one after the other for hours, do not.


# %%
SHORT = 15_000  # clocks of multiplying on each SM, below which a product is over before power matters
CLOCKS = 0.5  # the power of the clocks that time is proportional to, at the power limit
LOAD = 16  # multiply-adds that bringing one element into an SM costs there
ROUND = 800  # clocks from the last wgmma of a tile to the first of the next, where both warpgroups round it
STORE = 350  # clocks for 64 x 64 of C that go out at once
ARRIVE = 80  # bytes of A and B that come into an SM in a clock


def cluster_tiles(config: Config, m: int, n: int) -> tuple[int, int]:
    """Tiles of whole clusters that cover C (m, n): down, across."""
    m, n = (n, m) if config.swap_ab else (m, n)
    return -(-m // (config.tile_m * config.cluster_m)), -(-n // (config.tile_n * config.cluster_n))


def waves(config: Config, m: int, n: int, sms: int) -> int:
    """How many of them a cluster computes, if `sms` SMs are full of clusters."""
    down, across = cluster_tiles(config, m, n)
    return -(-down * across // (sms // config.cluster))


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """How many clusters are launched: no more than that number of waves needs."""
    down, across = cluster_tiles(config, m, n)
    return -(-down * across // waves(config, m, n, sms))


def clocks(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """What the busiest of `sms` SMs needs for C (m, n) over k."""
    tile = config.tile_m * config.tile_n
    stage = max(tile * config.tile_k / 2048, config.stage_bytes / ARRIVE)
    stop = 0 if config.pingpong else ROUND + STORE * (config.subtiles - config.overlapped) * config.epi_n / 64
    return waves(config, m, n, sms) * (-(-k // config.tile_k) * stage + stop) + tile / 16


def loaded(config: Config) -> float:
    """Elements of A and B that come into an SM for one product of two of them."""
    return (config.tile_m + config.tile_n) / (config.tile_m * config.tile_n)


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """What C (m, n) over k costs on `sms` SMs, to be compared with that of another configuration."""
    needed = clocks(config, m, n, k, sms)
    return needed if m * n * k / 2048 / sms < SHORT else needed**CLOCKS * (1 + LOAD * loaded(config))


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## The layouts and the MMA
#
# As in the pages before: K-major tiles in 128-byte rows, and C in boxes of 64 x 64 or 64 x 32, two for each warpgroup,
# beside A and B instead of over them, for the next tile is loaded while this one is stored.
#
# A transposed variant has the same A and B, for both are K-major and change places as they are. Its boxes lie by
# columns: 64 of what the tensor cores see as rows follow one another in memory, 128 bytes of one row of C. A box has
# all rows that the tile has of C, and each warpgroup one buffer, not two. The atom is the same with its modes
# exchanged. And `stmatrix` has a form for it, `.trans`, which transposes each 8 x 8 matrix on its way: a thread that
# holds two neighbours along what is N here writes them to two lines.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, BUFFER): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int, transposed: bool = False) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle). Its rows run
    along the second mode, or `transposed`, along the first."""
    bits = next(bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0)
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    if transposed:
        rows = cute.make_layout((width, 8), stride=(1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    box = smem_atom(dtype, 64, True) if c.swap_ab else smem_atom(dtype, c.epi_n)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(box, (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
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
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=config.swap_ab, num_matrices=4), dtype)
    box = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, box))


# %% [markdown]
# ## The tile scheduler
#
# A persistent CTA computes several **work tiles**. Its cluster starts at the cluster tile of its own number, or at the
# one that the [GPC-aware remapping](#gpc-aware-remapping) gives it. Each next tile is `step` further, and `step` is the
# number of clusters.
#
# **Rasterization.** Cluster tiles are numbered in groups of `swizzle_size`. Inside a group, consecutive numbers need
# the same tiles of the operand that is *not* multicast. Where a cluster shares A, as most do here, consecutive numbers
# go *down* C and need the same columns of B. The last group may be smaller.
#
# **Divisions.** The row and the column of a tile take two divisions, the number of work tiles takes a third. The
# divisors are not known at compile time. An SM has no instruction for division: each one is some thirty dependent
# instructions, and the first load must wait for them. So the *host* finds a multiplier and shifts for each divisor
# (`FastDivmodDivisorV2`), and the kernel multiplies.
#
# **No pipeline state to carry.** K-tiles are counted through over all work tiles: work tile `i` begins at k-tile
# `i * k_tiles`. Stage and phase of the pipeline follow from that count.


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


@cute.jit
def consumer_states(k_tile, config: cutlass.Constexpr):
    """The pipeline states (next stage to read, next to release) at a k-tile, counted over all work tiles."""
    stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
    return tuple(pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))


# %% [markdown]
# ## The producer
#
# One warp issues all loads. In every second work tile it goes through K **backwards**. The CTAs of a wave read the same
# rows of A and columns of B at the same time. Where these are more than L2 can hold, the beginning of K has left L2 at
# the end of a wave, and the end of K should still be there. The next wave needs many of the same rows of A, so it
# starts at the end; [the persistent GEMM](persistent_gemm.ipynb) models it. The order of summation differs from tile to
# tile; for one shape on one GPU it is always the same.
#
# **Dummy tiles.** Where a cluster reaches over the edge of C, one of its CTAs has a tile that does not exist. TMA clips
# what it stores. Its loads still matter: a neighbour's stage is free only when its own is, and TMA takes longer to fill
# a box with zeros than to load it. So such a CTA loads the last tile that exists once more.


# %%
class Loads(NamedTuple):
    """What the producer copies: for A and for B, a TMA atom, its source and its destination."""

    tma_a: cute.CopyAtom
    tAgA: cute.Tensor  # (TMA, m, k), TMA coordinates
    tAsA: cute.Tensor  # (TMA, STAGE)
    tma_b: cute.CopyAtom
    tBgB: cute.Tensor  # (TMA, n, k), TMA coordinates
    tBsB: cute.Tensor  # (TMA, STAGE)


def multicast(sharers: int) -> dict:
    """Arguments of a TMA copy to all CTAs of a cluster of `sharers`: a bit for each."""
    return {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {}


@cute.jit
def load_tile(pipe, loads: Loads, state, tile, backwards, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of work tile (m, n), a stage each; `backwards` is 1 or 0. Returns the pipeline state."""
    tAgA = loads.tAgA[None, tile[0], None]  # (TMA, k)
    tBgB = loads.tBgB[None, tile[1], None]  # (TMA, k)
    tAsA, tBsB = loads.tAsA, loads.tBsB  # (TMA, STAGE)
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i + backwards * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        a_to, b_to = multicast(config.cluster_n), multicast(config.cluster_m)
        cute.copy(loads.tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier, **a_to)
        cute.copy(loads.tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, **b_to)
        state.advance()
    return state


@cute.jit
def produce(pipe, loads: Loads, scheduler: Scheduler, tile, k_tiles, config: cutlass.Constexpr):
    """Load all work tiles of this CTA; `tile` is the first of them."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    last = cute.size(loads.tAgA, mode=[1]) - 1, cute.size(loads.tBgB, mode=[1]) - 1
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        m, n = cutlass.min(tile[0], last[0]), cutlass.min(tile[1], last[1])  # a dummy tile loads the last one
        state = load_tile(pipe, loads, state, (m, n), i & 1, k_tiles, config)
        tile = work_tile(scheduler, cutlass.min(i + 1, scheduler.count - 1), config)
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers' main loop
#
# The wgmmas of a k-tile are one **commit group**. A warpgroup issues it, waits for the group *before* it, and releases
# that group's stage.


# %%
class Mainloop(NamedTuple):
    """What a consumer warpgroup multiplies: the pipeline, the operands and the accumulators."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)


@cute.jit
def issue_wgmmas(main: Mainloop, stage, first: cutlass.Constexpr = False):
    """Issue the wgmmas of one stage as one commit group; `first`: of a work tile, its first one overwrites `acc`."""
    acc, tCrA, tCrB = main.acc, main.tCrA, main.tCrB
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # 16 elements, 32 bytes, along K
        mma = main.overwrite if first and k == 0 else main.accumulate
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def first_k_tile(main: Mainloop, read):
    """Issue the first k-tile of a work tile, which is at `read`."""
    main.pipe.consumer_wait(read)
    issue_wgmmas(main, read.index, True)
    read.advance()
    return read


@cute.jit
def next_k_tile(main: Mainloop, read, release):
    """Issue the k-tile at `read`, and release the stage at `release`."""
    main.pipe.consumer_wait(read)
    issue_wgmmas(main, read.index)
    read.advance()
    warpgroup.wait_group(1)  # the group before this one is complete: its stage may be overwritten
    main.pipe.consumer_release(release)
    release.advance()
    return read, release


@cute.jit
def last_k_tile(main: Mainloop, release):
    """Wait for the last group, and release its stage."""
    warpgroup.wait_group(0)
    main.pipe.consumer_release(release)


# %% [markdown]
# ## The epilogue: one subtile of C
#
# A warpgroup stores its part of a tile in **epilogue subtiles** of 64 x `epi_n`: it rounds the accumulators, writes
# them with `stmatrix` into a swizzled buffer, and TMA stores the buffer. Before it writes a buffer again, TMA must have
# *read* it. The barrier is among the 128 threads of one warpgroup. TMA clips a subtile at the edge of C.


# %%
class Epilogue(NamedTuple):
    """Where one consumer warpgroup stores its part of a tile, and by which copies."""

    sC: cute.Tensor  # its own buffers, (EPI_M, EPI_N, EPI_STAGE)
    gC: cute.Tensor  # all tiles of C as TMA coordinates, (TILE_M, TILE_N, m, n)
    r2s_c: cute.TiledCopy
    tma_c: cute.CopyAtom
    warpgroup: cutlass.Int32  # 0 or 1
    thread: cutlass.Int32  # in the warpgroup


def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's values of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has them."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


@cute.jit
def round_and_store(epi: Epilogue, acc, last: cutlass.Constexpr, tile, config: cutlass.Constexpr):
    """Round and store subtiles 0 to `last` - 1 of a tile, one after the other."""
    for i in cutlass.range_constexpr(last):
        tCrC = subtile_of(acc, i, config)  # (MMA, 1, 1), float32
        rounded = cute.make_rmem_tensor(tCrC.shape, epi.sC.element_type)
        rounded.store(tCrC.load().to(rounded.element_type))
        store_subtile(epi, i, rounded, tile, config)


@cute.jit
def store_subtile(epi: Epilogue, i: cutlass.Constexpr, rC, tile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile (m, n). rC: a thread's rounded values, (MMA, 1, 1)."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128)
    storing = cute.arch.make_warp_uniform(epi.thread // 32) == 0
    thr, buffer = epi.r2s_c.get_slice(epi.thread), i % config.epi_stages
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in this buffer
    cute.copy(epi.r2s_c, thr.retile(rC), thr.partition_D(epi.sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()
    if storing:
        gC = cute.zipped_divide(epi.gC[None, None, tile[0], tile[1]], config.epi_tile)  # (EPI_TILE, subtiles)
        sC = cute.group_modes(epi.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
        bSsC, bSgC = cpasync.tma_partition(epi.tma_c, 0, cute.make_layout(1), sC, gC)
        across = config.tile_n // config.epi_n
        row = i // across * config.warpgroups + (0 if config.pingpong else epi.warpgroup)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(epi.tma_c, bSsC[None, buffer], bSgC[None, (row, i % across)])
            cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## Cooperative, with an overlapped epilogue
#
# Two warpgroups that share a tile finish it together. If both then store, the tensor cores wait. Here both only
# *round*: 64 registers a thread now hold what 128 held, and the next tile can begin. Its first commit group is issued,
# and while the tensor cores work the threads store the first subtile of the tile before. Then come the second group and
# the second subtile, and so on. A group takes the tensor cores longer than a subtile takes the threads.
#
# What is left of the epilogue is the rounding, and the stores of the very last tile. Of a wider tile the registers
# cannot hold all subtiles: it stores some of them at once, and `overlapped` of them later.
#
# A tile therefore needs as many k-tiles as it has overlapped subtiles. Where K is shorter, the producer asks for
# k-tiles past the end, which TMA fills with zeros.


# %%
@cute.jit
def overlapped_mainloop(main: Mainloop, epi: Epilogue, scheduler: Scheduler, i, rC, before, config: cutlass.Constexpr):
    """Multiply work tile `i`, and meanwhile store `rC`, the rounded subtiles of the tile `before` it (m, n).

    Returns the work tile (m, n): it is computed while the first commit group runs.
    """
    read, release = consumer_states(i * main.k_tiles, config)
    read = first_k_tile(main, read)
    tile = work_tile(scheduler, i, config)
    for j in cutlass.range_constexpr(config.overlapped):
        if i > 0:
            store_subtile(epi, config.subtiles - config.overlapped + j, subtile_of(rC, j, config), before, config)
        if cutlass.const_expr(j + 1 < config.overlapped):
            read, release = next_k_tile(main, read, release)
    for _ in cutlass.range(config.min_k_tiles, main.k_tiles, unroll=1):
        read, release = next_k_tile(main, read, release)
    last_k_tile(main, release)
    return tile


@cute.jit
def cooperative(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """All work tiles of a warpgroup that computes half of each."""
    at_once = config.subtiles - config.overlapped
    rC = cute.make_rmem_tensor(max(1, config.overlapped) * config.epi_n // 2, epi.sC.element_type)  # rounded
    tile = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(scheduler.count, unroll=1):
        tile = overlapped_mainloop(main, epi, scheduler, i, rC, tile, config)
        round_and_store(epi, main.acc, at_once, tile, config)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(rC, j, config).store(subtile_of(main.acc, at_once + j, config).load().to(rC.element_type))
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(epi, at_once + j, subtile_of(rC, j, config), tile, config)


# %% [markdown]
# ## Ping-pong
#
# The other schedule is that of [pingpong](pingpong_gemm.ipynb): each warpgroup has work tiles of its own, and stores
# one while the other warpgroup multiplies. It may begin only when the other has issued all its k-tiles: an mbarrier's
# phase is one bit, and cannot tell the phase it waits for from the one two before it.


# %%
PINGPONG_BARRIER = 4  # the first of two named barriers; 1 and 2 belong to the epilogues, 0 to the CTA


@cute.jit
def pingpong(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """Every second work tile, all of it."""
    for i in cutlass.range(epi.warpgroup, scheduler.count, 2, unroll=1):
        read, release = consumer_states(i * main.k_tiles, config)
        if i > 0:
            pipeline.NamedBarrier(barrier_id=PINGPONG_BARRIER + epi.warpgroup, num_threads=256).arrive_and_wait()
        read = first_k_tile(main, read)
        tile = work_tile(scheduler, i, config)  # computed while the first commit group runs
        for _ in cutlass.range(main.k_tiles - 1, unroll=1):
            read, release = next_k_tile(main, read, release)
        if i + 1 < scheduler.count:  # all is issued: the other warpgroup may begin
            pipeline.NamedBarrier(barrier_id=PINGPONG_BARRIER + 1 - epi.warpgroup, num_threads=256).arrive()
        last_k_tile(main, release)
        round_and_store(epi, main.acc, config.subtiles, tile, config)


# %% [markdown]
# ## The kernel
#
# The kernel sets up, then parts: one warp produces, two warpgroups consume by one schedule or the other. Each waits for
# the previous kernel (PDL) as late as it can: after its registers, its descriptors and its addresses.


# %%
class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates: (M, K), (N, K) or (M, N), or tiles of these


class Cta(NamedTuple):
    """What the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sC: cute.Tensor  # (EPI_M, EPI_N, EPI_STAGE): first the buffers of warpgroup 0, then those of 1
    rank: tuple  # its (row, column) in the cluster


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
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    first, step = block // config.cluster, blocks // config.cluster
    if cutlass.const_expr(config.gpc_aware):  # this load takes longer than all that is set up meanwhile
        first = cute.make_tensor(remap, cute.make_layout(step))[first]
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(smem_layouts(dtype, config), dtype, config)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cutlass.max(cute.size(gA, mode=[3]), config.min_k_tiles)
    first = cute.arch.make_warp_uniform(first)
    count = (raster.tiles + step - 1 - first) // raster.by_step
    scheduler = Scheduler(raster, first, step, count, cta.rank)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        # The compiler would sink this below the wait for the previous kernel, where every clock counts. It must leave
        # an exchange between lanes, which changes nothing here, on this side of the branch.
        tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(scheduler, 0, config))
        if warp_idx == 8:
            across, down = cute.make_layout(config.cluster_n), cute.make_layout(config.cluster_m)
            grouped = [cute.group_modes(x, 0, 2) for x in (cta.sA, gA, cta.sB, gB)]
            tAsA, tAgA = cpasync.tma_partition(a.atom, cta.rank[1], across, grouped[0], grouped[1])
            tBsB, tBgB = cpasync.tma_partition(b.atom, cta.rank[0], down, grouped[2], grouped[3])
            loads = Loads(a.atom, tAgA, tAsA, b.atom, tBgB, tBsB)
            produce(cta.pipe, loads, scheduler, tile, k_tiles, config)
    else:
        consume(cta, TmaTensor(c.atom, gC), scheduler, k_tiles, group, tidx % 128, config)


@cute.jit
def set_up(layouts, dtype, config: cutlass.Constexpr):
    """Allocate the shared memory of a CTA, and make its pipeline. Returns a `Cta`."""
    smem = cutlass.memory.SmemAllocator()
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
    rank = cutlass.Int32(0)
    if cutlass.const_expr(config.cluster > 1):
        cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
        cute.arch.cluster_wait()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    else:
        cute.arch.sync_threads()
    return Cta(pipe, sA, sB, sC, (rank % config.cluster_m, rank // config.cluster_m))


# %% [markdown]
# ## Uniform descriptors
#
# A matrix descriptor holds an address, and each of the four k-blocks of a stage needs a new pair of them. All threads
# of a warp need the same one, so it belongs in the warp's *uniform* registers, where an addition is one operation and
# not 32. The compiler puts it there if it can prove two things:
#
# * **The address does not depend on the thread.** `get_slice(thread)`, as in [pingpong](pingpong_gemm.ipynb), does not
#   say so. The slice of the warpgroup's first thread gives the same descriptors, and the warpgroup is known to be
#   uniform.
# * **The stage does not either.** It comes out of `consumer_state(i * k_tiles)` and a loop. It stays uniform as long as
#   all threads are known to take the same branch: an `if` about K around a commit group was enough to lose it.
#
# The appendix counts the instructions that are left.


# %%
@cute.jit
def consume(cta: Cta, out: TmaTensor, scheduler: Scheduler, k_tiles, group, thread, config: cutlass.Constexpr):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. out: tiles of C; thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    dtype = cta.sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(group % config.warpgroups * 128)  # of its first thread: the same for all
    tCgC = thr.partition_C(out.coords[None, None, 0, 0])  # (MMA, MMA_M, MMA_N)
    acc = cute.make_rmem_tensor(tCgC.shape, cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    main = Mainloop(cta.pipe, k_tiles, overwrite, accumulate, tCrA, tCrB, acc)
    sC = cute.flat_divide(cta.sC, (*config.epi_tile, config.epi_stages))[None, None, None, 0, 0, group]
    epi = Epilogue(sC, out.coords, tiled_copies(dtype, config).r2s_c, out.atom, group, thread)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still read or write what this warpgroup stores
    schedule = pingpong if config.pingpong else cooperative
    schedule(main, epi, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The launch
#
# As few clusters as keep the number of waves (`clusters`, in the heuristics): 16 waves of 64 clusters take as long as
# 16 waves of 66 of which the last is not full, and all CTAs end together. `use_pdl` lets this kernel overlap the
# *previous* one.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    remap: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    clusters: cutlass.Int32,
    stream: cuda.CUstream,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements. With
    `swap_ab`, what is called C from here on is (N, M), and A and B are swapped."""
    m, n, k = mnk
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    stride_c = (ldc, 1)
    if cutlass.const_expr(config.swap_ab):
        m, n, pA, pB, lda, ldb, stride_c = n, m, pB, pA, ldb, lda, (1, ldc)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=stride_c))
    layouts, ctas = smem_layouts(dtype, config), config.cluster
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, config.epi_tile))
    raster = rasterize(m, n, clusters, config)
    kernel(a, b, c, remap, raster, dtype, config).launch(
        grid=(clusters * ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(ctas, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=True,
    )


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


# %%
def launch_arguments(dtype, pointers, mnk, strides, clusters: int, stream: int) -> tuple:
    """Plain addresses and integers as the typed values that `gemm` takes."""
    gmem = cute.AddressSpace.gmem
    types = (dtype, dtype, dtype, cutlass.Int32)  # of A, B, C and the table of the remapping
    return (
        *(
            cute.runtime.make_ptr(of, pointer, gmem, assumed_align=16)
            for of, pointer in zip(types, pointers, strict=True)
        ),
        tuple(cutlass.Int32(x) for x in mnk),
        tuple(cutlass.Int64(x) for x in strides),
        cutlass.Int32(clusters),
        cuda.CUstream(stream),
    )


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a") with dummy pointers and sizes: no GPU is needed. "": the GPU that is here."""
    dummies = launch_arguments(dtype, (16, 16, 16, 16), (1, 1, 8), (8, 8, 8), 66, 0)
    target = f"--gpu-arch {arch} " if arch else ""
    config = config or config_for(arch)
    return cute.compile(gemm, *dummies, dtype, config, options=(target + options).strip() or None)


# %% [markdown]
# ## Seats
#
# The SMs of a GPU are grouped in **GPCs** (graphics processing clusters; an H200 has eight, most of them of 16 or 18
# SMs). What they ask of L2 passes a unit that ncu calls LRC, the *L2 request coalescer*: where several SMs of a GPC ask
# for the same line at about the same time, L2 is asked once. Counted by ncu with this kernel, that is so for what a CTA
# loads for itself, and not for what it asks for in the name of its cluster, by multicast. So the clusters of a GPC
# should be those that need the same panel of the operand that they do *not* share. Eight of them, in a row of cluster
# tiles: L2 reads that panel once for all eight. (In later turns, too, if the clusters are a multiple of eight; if not,
# the eight of a GPC move on by some places at each turn, and lie across two rows.) It is energy that this saves, the
# way across the chip, and where power is the limit energy is time.
#
# The hardware does the opposite. It deals clusters out to the GPCs one at a time, like cards, so that neighbours by
# number are never in one GPC. So a cluster goes by its **seat**: a table, read at the very beginning, has one for each
# number. No tile depends on where a cluster really runs: the table is a permutation, and whatever is wrong with it
# costs time, nothing else.
#
# Which cluster runs where, nobody says. But a CTA can ask for the number of its SM (`%smid`), the CTAs of a cluster are
# in one GPC, and to an *idle* GPU clusters are dealt in the same order each time. So the first call on a device whose
# clusters are to have seats **calls the roll**: clusters of seven and of five CTAs tell which SMs belong together, and
# clusters of two the order.
#
# The GPU must be idle for that order, and with PDL it mostly is not: a kernel that is let in early gets its SMs in the
# order in which the one before leaves them. So this one does **not let the next one in** (`launch_dependents`): that
# starts when the last CTA has ended. Even then not all that was written may be visible, and for this the next one waits
# where it must. Where clusters are few (`FULL`) most GPCs have less than a row of them; and a product that is over
# before power matters (`SHORT`) gains more by an early start. Those have no seats, and let the next one in.


# %%
@cute.kernel
def roll_call(smids: cute.Pointer, seed: cutlass.Int32, size: cutlass.Constexpr):
    """Each CTA writes the number of its SM, and stays there for a while: some clusters long, some not."""
    cutlass.memory.SmemAllocator().allocate_array(cutlass.Int64, 16 * 1024)  # more than half: one CTA an SM
    start = cute.arch.clock64()
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    if tidx == 0:
        cute.make_tensor(smids, cute.make_layout(ctas))[cta] = cute.arch.smid()
    stay = 10_000 * (1 + (cta // size * 7 + seed * 3) % 5)
    while cute.arch.clock64() - start < stay:
        pass


@cute.jit
def call_roll(
    smids: cute.Pointer, seed: cutlass.Int32, count: cutlass.Int32, stream: cuda.CUstream, size: cutlass.Constexpr
):
    """`count` clusters of `size` CTAs."""
    roll_call(smids, seed, size).launch(
        grid=(count * size, 1, 1), block=(32, 1, 1), cluster=(size, 1, 1), stream=stream
    )


def sms_of_clusters(size: int, count: int, calls: int) -> list[list[int]]:
    """The SMs of each of `count` clusters of `size` CTAs, of the present device; and again, `calls` times in all."""
    smids = torch.empty(count, size, dtype=torch.int32, device="cuda")
    pointer = cute.runtime.make_ptr(cutlass.Int32, smids.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    call = cute.compile(call_roll, pointer, cutlass.Int32(0), cutlass.Int32(count), stream, size)
    seen = []
    for seed in range(calls):
        torch.cuda.synchronize()  # nothing else runs
        call(pointer, cutlass.Int32(seed), cutlass.Int32(count), stream)
        seen += smids.tolist()
    return seen


def together(seen: list[list[int]]) -> dict[int, int]:
    """The GPC of each SM, by the least of its SMs: which SMs were seen in one cluster, or are linked by such."""
    gpc = {sm: sm for cluster in seen for sm in cluster}
    for cluster in seen:
        met = {gpc[sm] for sm in cluster}
        if len(met) > 1:
            gpc = {sm: min(met) if one in met else one for sm, one in gpc.items()}
    return gpc


@cache
def dealt(device: int) -> tuple[int, ...]:
    """The GPC of each cluster of two, in the order in which an idle GPU deals them out."""
    with torch.cuda.device(device):
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        pairs = sms_of_clusters(2, sms // 2, 2)
        seen = [cluster for size in (7, 5) for cluster in sms_of_clusters(size, 4 * sms // size, 10)]
    gpc = together(seen + pairs)
    return tuple(gpc[sm] for sm, _ in pairs[-(sms // 2) :])


def seating(gpcs: tuple[int, ...], row: int) -> list[int]:
    """The seat of each cluster, given its GPC: rows of `row` clusters of one GPC; those that fill none come last."""
    members: dict[int, list[int]] = {}
    for cluster, gpc in enumerate(gpcs):
        members.setdefault(gpc, []).append(cluster)
    full = {gpc: len(each) // row * row for gpc, each in members.items()}
    sitting = [cluster for gpc, each in members.items() for cluster in each[: full[gpc]]]
    sitting += [cluster for gpc, each in members.items() for cluster in each[full[gpc] :]]
    seats = [0] * len(gpcs)
    for seat, cluster in enumerate(sitting):
        seats[cluster] = seat
    return seats


FULL = 0.9  # of the clusters that fit: where there are fewer, most GPCs have less than a row
SEATS: dict[tuple[int, int, int], torch.Tensor] = {}  # by device, number of clusters and length of a row


def seats_of(device: int, config: Config, count: int, m: int, n: int, k: int, sms: int) -> int:
    """The address of the seats of the `count` clusters that compute C (m, n) over k, Int32 on the device, or 0: they
    have none.

    They have none where they are few, where the product is over before power matters, and where their table is not made
    yet but a graph is captured, which must not be disturbed.
    """
    down, across = cluster_tiles(config, m, n)
    row = min(config.swizzle_size, across if config.cluster_m > 1 else down)
    if config.cluster != 2 or count < FULL * (sms // 2) or m * n * k / 2048 / sms < SHORT:
        return 0
    if (device, count, row) not in SEATS:
        if torch.cuda.is_current_stream_capturing():
            return 0
        seats = torch.tensor(
            seating(dealt(device)[:count], row), dtype=torch.int32, device=torch.device("cuda", device)
        )
        torch.cuda.synchronize(device)  # kernels read it without waiting for anything
        SEATS[device, count, row] = seats
    return SEATS[device, count, row].data_ptr()


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


def tma_can_write(out: torch.Tensor, ldc: int) -> bool:
    """Whether rows of `out`, `ldc` elements apart, begin at multiples of 16 bytes and end there too."""
    return (out.shape[1] | ldc) % 8 == 0 and out.data_ptr() % 16 == 0


@cache
def compiled(dtype: torch.dtype, capability: tuple[int, int], variant: str, gpc_aware: bool) -> Callable[..., None]:
    """The kernel for the present GPU: compiled at the first call that needs it, then kept.

    TVM-FFI (the package apache-tvm-ffi) makes it a function that takes plain integers and tuples of them, and costs
    little more to call than the launch itself. Without it each argument is a Python object made for the call.
    """
    return compile_for("", DTYPES[dtype], replace(VARIANTS[variant], gpc_aware=gpc_aware), "--enable-tvm-ffi")


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
    mnk: tuple[int, int, int]
    strides: tuple[int, int, int]  # between the rows of A, B and what the kernel writes, in elements
    clusters: int  # that compute it
    seats: int  # address of theirs
    direct: bool  # the kernel writes C itself, not padded rows that are copied
    spans: tuple[int, int, int]  # of A, B and C: from the first byte to the last one, in bytes


PLANS: dict[tuple, Plan] = {}
MAX_PLANS = 4096  # more kinds of calls than a program has, unless its shapes never repeat


def kind(x: object) -> object:
    """What the checks look at in an argument, but for where exactly it lies."""
    if x is None:
        return None
    try:
        return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16, x.requires_grad
    except (AttributeError, RuntimeError):  # not a dense tensor: no call of its kind has a plan
        return type(x)


def make_plan(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, variant: str) -> Plan:
    """Check everything, choose a variant, compile what is needed. Raises what `matmul` raises."""
    known = (DEFAULT, *VARIANTS)
    require(variant in known, "variant", repr(variant), f"one of {', '.join(known)}")
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
    ldc = c.stride(0) if m > 1 else -(-n // 8) * 8
    direct = tma_can_write(c, ldc)
    spans = tuple(2 * elements for elements in ((m - 1) * lda + k, (n - 1) * ldb + k, (m - 1) * ldc + n))
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    variant = choose(m, n, k, sms) if variant == DEFAULT else variant
    config = VARIANTS[variant]
    count = clusters(config, m, n, sms)
    with torch.cuda.device(a.device):
        seats = seats_of(a.get_device(), config, count, m, n, k, sms)
        launch = compiled(a.dtype, capability, variant, seats != 0)
    strides = (lda, ldb, ldc if direct else -(-n // 8) * 8)
    return Plan(launch, a.get_device(), (m, n, k), strides, count, seats, direct, spans)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    key = (kind(a), kind(b), kind(out), torch.is_grad_enabled(), variant)
    plan = PLANS.get(key)
    if plan is None:
        plan = make_plan(a, b, out, variant)
        if len(PLANS) >= MAX_PLANS:
            PLANS.clear()
        PLANS[key] = plan
    if torch.cuda.current_device() != plan.device:
        with torch.cuda.device(plan.device):
            return matmul(a, b, out=out, variant=variant)

    (m, n, _), (a_span, b_span, c_span) = plan.mnk, plan.spans
    out = a.new_empty(m, n) if out is None else out
    pa, pb, pc = a.data_ptr(), b.data_ptr(), out.data_ptr()
    if (pa < pc + c_span and pc < pa + a_span) or (pb < pc + c_span and pc < pb + b_span):
        check_out(out, a, b.T)  # from first to last byte they meet, but may be columns of one wider matrix
    made = out if plan.direct else a.new_empty(m, plan.strides[2])  # TMA finishes the last 16 bytes of a row
    stream = torch._C._cuda_getCurrentRawStream(plan.device)  # its number, for which torch makes no Stream object
    plan.launch(pa, pb, made.data_ptr(), plan.seats, plan.mnk, plan.strides, plan.clusters, stream)
    return out if plan.direct else out.copy_(made[:, :n])


# %% [markdown] tags=["lab"]
# ## In the lab: storing late
#
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. Leave them
# out of your own code.
#
# One warpgroup of a pair, K = 512, by the figures of the rule: a tile takes the clocks of its multiply-adds, a box
# `STORE`, rounding `ROUND`. Storing at once, the tensor cores stand still for as long as the boxes take. Storing late,
# a box goes out under each of the next tile's first batches, and only the rounding is left.

# %% tags=["lab"]
from cookbook import draw


def pair(late: bool, k: int = 512, turns: int = 3) -> dict[str, list[draw.Span]]:
    """The lanes of the threads of a warpgroup and of the tensor cores; K-tiles of 128 x 256 x 64."""
    c = CONFIG
    tile, stage = c.tile_m * c.tile_n * k / 2048, c.tile_m * c.tile_n * c.tile_k / 2048
    threads, tensor, now = [], [], 0.0
    for turn in range(turns):
        tensor.append(draw.Span(now, now + tile, f"tile {turn}", "multiply"))
        if late and turn > 0:
            threads += [draw.Span(now + i * stage, now + i * stage + STORE, "", "store") for i in range(c.subtiles)]
        now += tile
        threads.append(draw.Span(now, now + ROUND, "", "round"))
        now += ROUND
        if not late:
            threads.append(draw.Span(now, now + c.subtiles * STORE, f"tile {turn}", "store"))
            now += c.subtiles * STORE
    return {"threads": threads, "tensor cores": tensor}


lanes = {f"at once: {lane}": spans for lane, spans in pair(late=False).items()} | {"": []}
lanes |= {f"late: {lane}": spans for lane, spans in pair(late=True).items()}
draw.lanes(lanes, "Three tiles of 128 x 256, K = 512: computed, not measured", note="gaps: the lane has nothing to do")

# %% [markdown] tags=["lab"]
# A box goes through one of its warpgroup's two buffers, in the 128-byte mode. One `stmatrix` of it:

# %% tags=["lab"]
from cookbook import access, banks
from cookbook.layouts import evaluate

layouts, copies = evaluate(smem_layouts, cutlass.BFloat16), evaluate(tiled_copies, cutlass.BFloat16)
stmatrix_of_warp_0 = access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)
counted = [banks.wavefronts(one.addresses, one.width) for one in stmatrix_of_warp_0]
print(f"{len(counted)} stmatrix a warp and box; wavefronts each: {[one.actual for one in counted]}, excess 0 is ideal")
draw.access_view(stmatrix_of_warp_0[0])

# %% [markdown] tags=["lab"]
# A and B lie as in every kernel of this track:

# %% tags=["lab"]
draw.swizzle_view(layouts.a)

# %% [markdown] tags=["lab"]
# And the box of the transposed tile: the first eight lines of both kinds. Small in each cell is the first of its eight
# elements, (row, column) of what the tensor cores compute. They go on along the row in the one, down the column in the
# other; either way a line is 128 bytes of a row of the product.

# %% tags=["lab"]


def first_lines(dtype) -> dict[str, cute.ComposedLayout]:
    """Eight lines of a box of C, by variant."""
    return {"128x256": smem_atom(dtype, 64), "208x256": smem_atom(dtype, 64, True)}


draw.atom_orders(evaluate(first_lines, cutlass.BFloat16), title="Eight lines of a box of C, bfloat16")

# %% [markdown] tags=["lab"]
# An `stmatrix.trans` writes 16 bytes of eight of these columns for each of its matrices:

# %% tags=["lab"]
turned = evaluate(smem_layouts, cutlass.BFloat16, VARIANTS["208x256"])
copies = evaluate(tiled_copies, cutlass.BFloat16, VARIANTS["208x256"])
stmatrix_of_warp_0 = access.of_copy(turned.c, copies.r2s_c, "dst", "stmatrix", warp=0)
counted = {banks.wavefronts(one.addresses, one.width).actual for one in stmatrix_of_warp_0}
print(f"{len(stmatrix_of_warp_0)} stmatrix.trans a warp and box; wavefronts each: {sorted(counted)}")
draw.access_view(stmatrix_of_warp_0[0])

# %% [markdown] tags=["lab"]
# ## In the lab: the loop of a consumer
#
# The instructions of its innermost loop, one stage, by who computes: every lane, or the warp once. `R2UR` moves a
# number from the lanes' registers to the uniform ones. Beside ours, the loops of two pages where `get_slice` was asked
# for each thread's slice:

# %% tags=["lab"]
from IPython.display import Markdown

import cookbook
from cookbook.harness import compiling
from cookbook.harness.publishing import table


def counts(module, config) -> list[str]:
    """Of the loop of a kernel's consumers: wgmmas, other instructions of every lane, of the warp, and moves."""
    sass = compiling.compile_module(module, "loop", "sm_90a", "bfloat16", config).sass
    names = [each.split()[0] for each in compiling.innermost_loop(sass, "HGMMA")]
    multiply, moves = (sum(name.startswith(which) for name in names) for which in ("HGMMA", "R2UR"))
    uniform = sum(name.startswith("U") for name in names)
    return [str(n) for n in (multiply, len(names) - multiply - uniform - moves, uniform, moves)]


here, pages = cookbook.load("hopper/tuned_gemm"), ("hopper/persistent_gemm", "hopper/tma_wgmma_gemm")
rows = [[name, *counts(here, config)] for name, config in here.VARIANTS.items()]
rows += [[page, *counts(cookbook.load(page), cookbook.load(page).CONFIG)] for page in pages]
Markdown(table(["kernel", "wgmma", "every lane", "the warp once", "R2UR"], rows))

# %% [markdown] tags=["lab"]
# ## In the lab: tiles that fill the waves
#
# In how many of the clocks that a product takes do its SMs multiply? By the rule, for cubes on an H200 (132 SMs): with
# one tile the waves are now full and now nearly empty. With all of them there is mostly one that fills them.

# %% tags=["lab"]
CUBES = range(512, 2561, 256)


def filled(*names: str) -> list[draw.Point]:
    """Percent of the clocks that are multiplied in, by the best of these variants, for each size."""
    needed = {n: min(clocks(VARIANTS[name], n, n, n, 132) for name in names) for n in CUBES}
    return [draw.Point(n, 100 * n**3 / 2048 / 132 / most) for n, most in needed.items()]


lines = {"all": filled(*VARIANTS)} | {name: filled(name) for name in ("128x128 in turn", "128x256")}
draw.line_chart(lines, "% of the clocks of 132 SMs", "M = N = K: computed, not measured", "M = N = K")

# %% [markdown] tags=["lab"]
# ## In the lab: seats
#
# What is there to save? C of 2048 x 2048 in tiles of 128 x 256 is 64 clusters in one wave, sixteen of them down and
# four across: a panel of B is two rows of seats long. For each k-tile, each cluster asks for 128 rows of A by
# multicast, which is merged with nothing, and its two CTAs for 256 rows of B each. Deal the clusters out as an H200 was
# seen to: four to pairs of SMs that no larger cluster ever gets, then to its GPCs in turn, as long as they have room.
# L2 is asked for those rows of B once by each GPC that needs them:

# %% tags=["lab"]
import random
from statistics import mean

ALONE, ROOM = 4, (4, 8, 8, 8, 8, 8, 9, 9)  # clusters of two: in no GPC of which anything is known, and in each GPC


def deal(count: int) -> tuple[int, ...]:
    """The GPC of each of `count` clusters; those that are alone have negative numbers."""
    turns = [gpc for turn in range(max(ROOM)) for gpc, room in enumerate(ROOM) if turn < room]
    return (*range(-ALONE, 0), *turns)[:count]


down, across = cluster_tiles(CONFIG, 2048, 2048)
count, row, wide = down * across, CONFIG.swizzle_size, CONFIG.tile_n * CONFIG.cluster_n


def rows_asked(seats: list[int], gpcs: tuple[int, ...]) -> int:
    """Rows of B that L2 is asked for in one k-tile: `wide` for each panel that a GPC has a cluster for."""
    return wide * len({(gpc, seat // row % across) for gpc, seat in zip(gpcs, seats, strict=True)})


gpcs, numbers, shuffle = deal(count), list(range(count)), random.Random(0)
shuffled = mean(rows_asked(shuffle.sample(numbers, count), gpcs) for _ in range(1000))
ways = {"its number": rows_asked(numbers, gpcs), "chance": shuffled, "its seat": rows_asked(seating(gpcs, row), gpcs)}
of_b, by_multicast = count * wide, count * CONFIG.tile_m
rows = [
    [f"a cluster goes by {way}", f"{asked:.0f}", f"{(by_multicast + asked) / (by_multicast + of_b):.0%}"]
    for way, asked in ways.items()
]
Markdown(table(["", f"rows of B, of {of_b}", "of A and B together, of what clusters ask for"], rows))

# %% [markdown] tags=["lab"]
# *Chance* is what becomes of numbers where the next kernel is let in early. And what ncu counts at L2, by variant, as a
# part of all that its clusters ask for. What one half of L2 fetches from the other, it counts twice:

# %% tags=["lab"]
from cookbook.harness import records


def counted_at_l2() -> str:
    """Bytes read through L2 by each variant, by the current record, as a part of all that its clusters ask for."""
    found = [r for r in records.select("hopper/tuned_gemm", records.LIMITS) if not records.is_stale(r)]
    rows = []
    for record in found:
        m, n, k = record["shape"]
        for name, figures in record["figures"]["variants"].items():
            if "l2_read_bytes" not in figures:
                continue
            config = VARIANTS[name]
            down, across = cluster_tiles(config, m, n)
            tile = config.tile_m / config.cluster_n + config.tile_n / config.cluster_m
            wanted = down * across * config.cluster * tile * k * 2
            rows.append([f"`{name}`", sizes((m, n, k)), f"{figures['l2_read_bytes'] / wanted:.0%}"])
    return (
        table(["variant", "M x N x K", "read through L2, of what clusters ask for"], rows)
        if rows
        else "*Not measured yet.*"
    )


def sizes(shape: tuple[int, int, int]) -> str:
    """M, N and K in words."""
    return " x ".join(map(str, shape))


Markdown(counted_at_l2())

# %% [markdown] tags=["lab"]
# ## In the lab: the rule
#
# The three cheapest variants on an H200, and their costs relative to the cheapest, which is the one that is chosen:

# %% tags=["lab"]
from cookbook.harness.benching import DEFAULT_SHAPES


def foretold(shape: tuple[int, int, int]) -> dict[str, float]:
    """The cost of each variant, the cheapest first: 1."""
    costs = {name: cost(config, *shape, sms=132) for name, config in VARIANTS.items()}
    return {name: costs[name] / min(costs.values()) for name in sorted(costs, key=costs.get)}


shapes = (*DEFAULT_SHAPES, (8192, 8192, 512), (1024, 1024, 1024), (1536, 1536, 1536), (2304, 2304, 2304))
rows = [[sizes(s), *(f"`{name}` {value:.3f}" for name, value in list(foretold(s).items())[:3])] for s in shapes]
Markdown(table(["M x N x K", "chosen", "second", "third"], rows))

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at every variant.

# %% tags=["lab"]
from cookbook import tables
from cookbook.harness import checking

report = checking.check("hopper/tuned_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])
for level in report.levels:
    of = " ".join(filter(None, (level.target, level.variant)))
    print(f"{level.level:10}{of:24}{level.status:13}{tables.describe(level)}")

# %% [markdown] tags=["lab"]
# ## Time
#
# "ours" is `matmul` without an argument, so whatever the rule chose; beside it the peers, and in the second table each
# variant, called by name, all interleaved in one run on one GPU. So where the variants were timed the chosen kernel was
# timed twice, as "ours" and by name: what lies between the two is the spread.

# %% tags=["lab"]
from cookbook.harness.publishing import results_table

Markdown(results_table("hopper/tuned_gemm"))

# %% [markdown] tags=["lab"]
# How good is the rule? For each record: the three variants that it finds the cheapest, each with its time relative to
# the fastest of all, foretold (the first one 1) and measured; what `matmul` would have gained by knowing; and beside it
# the spread, of the kernel that was chosen.

# %% tags=["lab"]


def rule_beside_times() -> str:
    """Every current record of all variants, or that there is none."""
    timed = [r for r in records.select("hopper/tuned_gemm", "timed") if not records.is_stale(r)]
    rows = []
    for r in timed:
        if not VARIANTS.keys() <= r["peers"].keys():
            continue
        shape = tuple(r["shape"])
        found = {name: r["peers"][name]["median_ms"] for name in VARIANTS}
        fastest, chosen = min(found, key=found.get), choose(*shape, sms=132)
        best = found[fastest]
        each = [f"`{name}` {x:.3f} / {found[name] / best:.3f}" for name, x in list(foretold(shape).items())[:3]]
        lost, twice = found[chosen] / best - 1, abs(r["figures"]["median_ms"] / found[chosen] - 1)
        rows.append([f"{sizes(shape)}, {r['dtype']}", *each, f"`{fastest}`", f"{lost:.1%}", f"{twice:.1%}"])
    header = ["M x N x K", "chosen: foretold / measured", "second", "third", "fastest", "lost"]
    header.append("one kernel twice, apart")
    return table(header, rows) if rows else "*Not measured yet.*"


Markdown(rule_beside_times())

# %% [markdown] tags=["lab"]
# Above `SHORT` two numbers stand for all that a variant is, below it one. Where the tiles are as many as SMs, or a few
# times as many, it is the waves that decide, and the rule is seldom far off. With a few rows it can be: no variant is
# made for them. The column *lost* says where, of what was timed with the kernels of now.
#
# By the clocks of the tensor cores alone `208x256`, which stores nothing late, would be behind `128x256` at the largest
# sizes. It is ahead because each element that it takes in is used more often, where energy is time.
#
# And the figures of the rule, fitted: the `CLOCKS` and the `LOAD` with which the logarithms of those times, at sizes
# that are not short, differ least from what the rule says. Only the variants near the fastest count: the
# smallest tiles ask more of L2 at such sizes than it gives. That is not in the rule, which would not take them anyway.

# %% tags=["lab"]
import math
import statistics
from itertools import product

NEAR = 1.1  # times the fastest


def near_fastest(record: dict) -> tuple[list[int], list[tuple[Config, float]]]:
    """The shape of a record, and those variants near the fastest, with their milliseconds."""
    found = {name: record["peers"][name]["median_ms"] for name in VARIANTS}
    most = NEAR * min(found.values())
    return record["shape"], [(VARIANTS[name], ms) for name, ms in found.items() if ms < most]


def misfit(power: float, load: float, timed: list) -> float:
    """Root mean square of what is left of log(time), after each size's own mean is taken out."""
    left = []
    for shape, of in timed:
        said = [power * math.log(clocks(v, *shape, 132)) + math.log(1 + load * loaded(v)) for v, _ in of]
        logs = [math.log(ms) - x for (_, ms), x in zip(of, said, strict=True)]
        left += [x - statistics.mean(logs) for x in logs]
    return math.sqrt(statistics.mean(x * x for x in left))


def fitted() -> str:
    """The best figures by the current records, and how well they and the rule's own fit."""
    timed = [r for r in records.select("hopper/tuned_gemm", "timed") if not records.is_stale(r)]
    timed = [r for r in timed if math.prod(r["shape"]) / 2048 / 132 >= SHORT and r["dtype"] == "bfloat16"]
    timed = [near_fastest(r) for r in timed if VARIANTS.keys() <= r["peers"].keys()]
    if not timed:
        return "*Not measured yet.*"
    best = min(product([x / 20 for x in range(4, 21)], range(0, 41)), key=lambda at: misfit(*at, timed))
    rows = [
        [name, f"{power:.2f}", str(load), f"{misfit(power, load, timed):.2%}"]
        for name, (power, load) in {"the rule": (CLOCKS, LOAD), "fitted": best, "clocks alone": (1.0, 0)}.items()
    ]
    return table(["", "CLOCKS", "LOAD", f"misfit over {len(timed)} sizes"], rows)


Markdown(fitted())

# %% [markdown] tags=["lab"]
# ## What limits it
#
# Why clocks alone do not say it: each variant and peer by itself, again and again, while the GPU reports its clock and
# its power. Where the clock is lowered for power, a rate is power divided by *J for each TFLOP*, and of two kernels the
# one that needs fewer joules is faster, even if it takes more clocks. The second table is ncu's, of one launch of each
# variant; the warps that load, which mostly wait, are part of its means.

# %% tags=["lab"]
from cookbook.harness.publishing import limits_table

Markdown(limits_table("hopper/tuned_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# What a kernel for all sizes needs is not one more trick, but a way to say which of its shapes suits a problem. Clocks
# alone do not say it, for the chip lowers its clock as it works. Clocks and loads together come nearer; how near, the
# table of the fit says, for one chip.
#
# What is left: a product whose tiles fill one wave only, or less. There the launch, the first loads and the last store
# stand beside the multiplication, and little of this page makes them shorter. A tile that fits leaves no SM without
# work, but a small one must load more. Where tiles are few and K is long, [the page before](split_k_gemm.ipynb) is the
# better one: it cuts K and shares a tile among CTAs.
#
# And operands must be K-major, which those of a training step mostly are not. A transpose of its own is not needed for
# them: to TMA and to `wgmma` the major is one more question of layout.
#
# Next: [this kernel for operands of either major](majors_gemm.ipynb), the last page of the track.
#
# To use it: `cookbook copy hopper/tuned_gemm my_gemm.py`, then `from my_gemm import matmul`.
