# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "The tuned GEMM: heuristics over every schedule"
#     claim: >-
#       Two schedules and eleven tiles, and a cost of two terms, clocks and loaded elements, that chooses among them for
#       each M, N and K.
#     track: hopper
#     order: 90
#     tuned: true
#     fitted: [clock_exponent, load_cost]
#     measured_by: foundations/gpc_remapping
#     builds_on: hopper/tile_heuristics
#     pays: {at: [8192, 8192, 8192], over: hopper/overlapped_epilogue_gemm}
#     targets: [sm_90a]
#     runs_on: sm_90
#     serves: {sm_90: 2048}
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix, overlapped with the next main loop -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
#       - {title: "QuACK, kernels in CuTe-DSL", url: "https://github.com/Dao-AILab/quack"}
#       - {title: "CUTLASS issue 1017, thread-block swizzling", url: "https://github.com/NVIDIA/cutlass/issues/1017"}
# ---

# %% [markdown]
# # The tuned GEMM: heuristics over every schedule
#
# **Claim.** No tile and no schedule is best for all sizes. This `matmul` has eleven variants of one kernel, and
# *heuristics* that choose among them: a cost of two terms, the clocks of the tensor cores and the elements that they
# load.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/tuned_gemm", (8192, 8192, 8192), over=["hopper/tma_wgmma_gemm", "quack", "ceiling"])

# %% [markdown]
# The kernel joins the ideas of the pages before: cooperative warpgroups with [an overlapped
# epilogue](overlapped_epilogue_gemm.ipynb), [ping-pong](pingpong_gemm.ipynb), [swap A/B](swap_ab_gemm.ipynb), and a
# *serpentine* order of K, from [the persistent GEMM](persistent_gemm.ipynb). What it takes from there as it is, it
# imports. Operands are K-major. [The page before](tile_heuristics.ipynb) has the heuristics. New are divisions by the
# host, and a *GPC-aware remapping*: clusters that run in one GPC (a group of SMs) get tiles that need the same columns
# of B, or rows of A.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host, require
from cookbook.recipe.remapping import remap_table
from cookbook.recipes.hopper.multicast_gemm import Load, multicast_masks, partition_load, rank_in_cluster
from cookbook.recipes.hopper.overlapped_epilogue_gemm import (
    Epilogue,
    check_cluster,
    make_epilogue,
    round_and_store,
    set_up,
    store_subtile,
    subtile_of,
)
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    first_k_tile,
    last_k_tile,
    load_tile,
    make_mainloop,
    next_k_tile,
    state_at,
    tma_tensors,
)
from cookbook.recipes.hopper.swap_ab_gemm import matrices, smem_layouts, tiled_copies
from cookbook.recipes.hopper.tile_heuristics import (
    Calibration,
    calibrated,
    cluster_tiles,
    clusters,
    cost_on,
    is_short,
)
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor, tiled_mma, wgmma

# %% [markdown]
# ## The variants
#
# A variant is a tile, a schedule and a direction of its cluster. Larger tiles load fewer elements per multiply-add.
# Smaller ones fill the SMs where C is small, and their last wave wastes less. With A and B swapped, a tile can have any
# multiple of 8 rows; the five ping-pong tiles of that kind come near enough to most sizes.
#
# **128 x 256 and not 256 x 128.** Both load as much, and a thread holds as many accumulators. But a warpgroup's half of
# the first is 64 x 256: one `wgmma`. Its half of the second takes two, and each of them reads B again. For 16 elements
# of K the tensor cores read 2 (64 + 256) = 640 rows of shared memory instead of 4 (64 + 128) = 768, with half as many
# instructions.
#
# **Clusters both ways.** The CTAs of each variant's cluster share one operand. A cluster of several rows *and* columns
# shares both, and small tiles need that: they load most per multiply-add. The CTAs of a row get each part of A that
# one of them loads, those of a column each part of B. So each operand has a mask of its own, as with
# [multicast](multicast_gemm.ipynb), and a stage is free when the CTAs of that row and that column have read it. No
# variant here has such a cluster; `FAMILY` has them, of up to 8 CTAs.
#
# Not all sizes are a kernel. `check_tile` refuses the others:


# %%
def check_tile(config) -> None:
    """Refuse sizes of which no kernel can be made: what wgmma, stmatrix, TMA, registers and shared memory allow."""
    c = config
    high, widths = 64 * c.warpgroups, range(8, 257, 8) if c.swap_ab else (16, 32, 64)
    require(c.tile_m % high == 0, "tile_m", c.tile_m, f"a multiple of {high}: 64 rows a warpgroup")
    require(c.epi_n in widths, "epi_n", c.epi_n, "a width of stmatrix and of a box")
    require(c.cluster <= 8, "cluster_m x cluster_n", f"{c.cluster_m} x {c.cluster_n}", "at most 8 CTAs")
    fits = c.tile_n <= 256 and c.tile_n % c.epi_n == 0
    require(fits, "tile_n", c.tile_n, f"a multiple of epi_n, {c.epi_n}, up to 256")
    registers = c.accumulators + c.overlapped * c.epi_n // 4  # of a thread, with what it stores later
    got = f"{c.accumulators} accumulators, {registers} registers of C"
    require(c.accumulators <= 208 and registers <= 232, "tile_m x tile_n", got, "at most 208, 232")
    require(c.smem_bytes <= MAX_SMEM, "stages", f"{c.smem_bytes} bytes", f"at most {MAX_SMEM}")


# %% [markdown]
# These are chosen:


# %%
@dataclass(frozen=True)
class Fields:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_m: int = 1  # CTAs one above the other: they share the tiles of B
    cluster_n: int = 2  # or side by side: they share the tiles of A
    pingpong: bool = False  # each warpgroup has work tiles of its own; False: cooperative, both share one
    swap_ab: bool = False  # A is b, B is a, C lies by columns: `tile_m` are columns of the product, `tile_n` rows
    overlapped: int = 4  # epilogue subtiles of a cooperative warpgroup stored during the next tile's main loop
    serpentine: bool = True  # every other work tile goes along K backwards
    swizzle_size: int = 8  # consecutive cluster tiles that need the same tiles of the operand that is not multicast
    gpc_aware: bool = True  # cluster tiles go to clusters by a table, so that consecutive ones run in one GPC
    epi_n: int = 64  # columns of an epilogue subtile, as the tensor cores see C; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240


# %% [markdown]
# What follows from them: how many threads share a work tile, what a thread holds, and what shared memory holds.


# %%
@dataclass(frozen=True)
class Config(Fields):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    both_ways = True  # a cluster may have several rows and several columns

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)
        check_tile(self)
        if not self.both_ways:
            check_cluster(self.cluster_m, self.cluster_n)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def warpgroups(self) -> int:
        return 1 if self.pingpong else 2  # that share a work tile

    @property
    def consumer_threads(self) -> int:
        return 128 * self.warpgroups  # that share a work tile

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def accumulators(self) -> int:
        return self.tile_m * self.tile_n // 128 // self.warpgroups  # of a thread

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
    def epi_bytes(self) -> int:
        return 2 * self.epi_stages * 64 * self.epi_n * 2  # the buffers of two warpgroups

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes + self.epi_bytes  # 1024: the barriers, padded to an alignment


# %% [markdown]
# Eleven of them, each named by its rows and columns of the product. As the tensor cores see it a ping-pong tile is 128
# high: what differs is its width, and with it the number of stages. With A and B swapped its width is rows. `sized` and
# `FAMILY` describe all kernels that could be made.


# %%
def one_warpgroup(tile_n: int, stages: int, swap_ab: bool = False, cluster_m: int = 1) -> Config:
    """A tile of 128 x `tile_n` for ping-pong. With A and B swapped that is any multiple of 8 rows of the product."""
    epilogue = {"epi_n": tile_n, "epi_stages": 1} if swap_ab else {}
    cluster = {"cluster_m": cluster_m, "cluster_n": 2 // cluster_m}
    return Config(tile_n=tile_n, stages=stages, pingpong=True, swap_ab=swap_ab, overlapped=0, **cluster, **epilogue)


def sized(tile_m: int, tile_n: int, pingpong: bool, swap_ab: bool, cluster_m: int, cluster_n: int) -> Config:
    """The member of FAMILY with these fields: the epilogue that leaves room for most stages, up to 8, where one of 16
    columns has to leave two more. A cooperative warpgroup overlaps as many subtiles as its registers hold. A tile 64
    rows high takes further stages, up to 12."""
    found, groups = [], 1 if pingpong else 2
    widths = range(16, tile_n + 1, 16) if swap_ab and pingpong else (16, 32, 64)
    widths = (24, 40, 72, tile_n) if tile_n % 16 else widths
    most = 12 if tile_m == 64 else 8  # its stages are small, and bytes in flight are what hides the latency
    for epi_n in (each for each in widths if tile_n % each == 0):
        subtiles, room = tile_m // 64 * (tile_n // epi_n) // groups, 232 - tile_m * tile_n // 128 // groups
        for epi_stages in (each for each in (1, 2) if subtiles % each == 0):
            stages = min((MAX_SMEM - 1024 - 256 * epi_stages * epi_n) // (128 * (tile_m + tile_n)), most)
            overlapped = 0 if pingpong or epi_n > 64 else max(0, min(subtiles, room // (epi_n // 4), 9))
            epilogue = {"stages": stages, "overlapped": overlapped, "epi_n": epi_n, "epi_stages": epi_stages}
            found.append(((min(stages, 8) - 1.5 * (epi_n == 16), epi_stages, epi_n), epilogue))
    fields = {"cluster_m": cluster_m, "cluster_n": cluster_n, "pingpong": pingpong, "swap_ab": swap_ab}
    return Config(tile_m=tile_m, tile_n=tile_n, **fields, **max(found, key=lambda each: each[0])[1])


MAX_SMEM = 227 * 1024  # bytes of shared memory that a CTA may have
FAMILY = {  # fields of `sized`; every combination that Config accepts is a kernel
    "tile_m": (64, 128, 192, 256),
    "tile_n": tuple(range(64, 257, 8)),
    "pingpong": (False, True),
    "swap_ab": (False, True),
    "cluster_m": (1, 2, 4),
    "cluster_n": (1, 2, 4),
}
VARIANTS = {
    "128x256": Config(),
    "256x160": Config(tile_m=256, tile_n=160, epi_n=32, overlapped=9),
    "208x256": Config(tile_m=256, tile_n=208, stages=3, overlapped=0, epi_n=208, epi_stages=1, swap_ab=True),
    "128x192 pingpong": one_warpgroup(192, 4, cluster_m=2),
    "176x128 pingpong": one_warpgroup(176, 4, swap_ab=True, cluster_m=2),
    "160x128 pingpong": one_warpgroup(160, 5, swap_ab=True),
    "144x128 pingpong": one_warpgroup(144, 5, swap_ab=True, cluster_m=2),
    "128x128 pingpong": one_warpgroup(128, 6, cluster_m=2),
    "112x128 pingpong": one_warpgroup(112, 6, swap_ab=True),
    "96x128 pingpong": one_warpgroup(96, 7, swap_ab=True),
    "128x64 pingpong": one_warpgroup(64, 8),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The heuristics
#
# [The page before](tile_heuristics.ipynb) has them: whole waves, then the clocks of the busiest SM, and at the power
# limit what each multiply-add loads. There `choose` is held against the records: it names a variant within 1% of the
# best for each recorded product of more than 64 rows. Here is only which chip, and which tiles.
#
# `CALIBRATION` is of an H200. `cookbook calibrate hopper/tuned_gemm` measures two of its figures and the order of GPCs
# on the GPU that is here, and a checkout uses its record of them. In a copied file,
# `calibrate(load_cost=..., gpcs=...)` takes them.


# %%
CALIBRATION = Calibration()


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(load_cost=12)`, say."""
    global CALIBRATION
    CALIBRATION = calibrated(CALIBRATION, **figures)
    GEMM.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """The cost of C (m, n) over k on `sms` SMs of this chip, relative to that of another configuration."""
    return cost_on(CALIBRATION, config, m, n, k, sms)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown] tags=["lab"]
# The variants, and what they load (in elements per 1000 multiply-adds). Clusters do not change that: of two CTAs that
# share a tile each asks L2 for half of it, and both get all of it.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import limits_table, results_table, table

rows = []
for name, c in VARIANTS.items():
    schedule, swapped = "ping-pong" if c.pingpong else "cooperative", "yes" if c.swap_ab else ""
    overlapped = "" if c.pingpong else f"{c.overlapped} of {c.subtiles}"
    loads = f"{1000 / c.tile_m + 1000 / c.tile_n:.1f}"
    rows.append([f"`{name}`", schedule, swapped, str(c.tile_m * c.tile_n // 128 // c.warpgroups), overlapped, loads])
head = ["variant", "schedule", "swap A/B", "accumulators a thread", "subtiles overlapped", "loads"]
Markdown(table(head, rows))

# %% [markdown]
# ## The layouts and the MMA
#
# They are those of [swap A/B](swap_ab_gemm.ipynb). C has epilogue subtiles of 64 x 64 or 64 x 32, two buffers for each
# warpgroup; with A and B swapped they lie by columns, one buffer of 64 x `tile_n` each. In ping-pong a single warpgroup
# has a tile, and goes down all its rows.

# %% [markdown]
# ## The tile scheduler
#
# A persistent CTA computes several **work tiles**. Its cluster starts at the cluster tile of its own number, or at the
# one that the [GPC-aware remapping](#gpc-aware-remapping) gives it, and goes on by the number of clusters.
#
# **Rasterization.** Cluster tiles are numbered in groups of `swizzle_size`. Inside a group, consecutive numbers need
# the same tiles of the operand that is *not* multicast. Where a cluster shares A, as most do here, consecutive numbers
# go *down* C and need the same columns of B. The last group may be smaller.
#
# **Divisions.** The row and the column of a tile take two divisions, the number of work tiles takes a third, by numbers
# that are not known at compile time. A division is some thirty dependent instructions, and the first load must wait for
# them. So the *host* finds a multiplier and shifts for each divisor (`FastDivmodDivisorV2`), and the kernel multiplies.


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


def rasterize(m: cutlass.Int32, n: cutlass.Int32, clusters: cutlass.Int32, config) -> Raster:
    """The rasterization of C (m, n) for `clusters` clusters; the host computes it."""
    high, wide = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    down, across = cute.ceil_div(m, high), cute.ceil_div(n, wide)
    along, groups_along = (across, down) if config.cluster_m > 1 else (down, across)
    numbers = (clusters, config.swizzle_size * groups_along, cutlass.max(1, along % config.swizzle_size))
    return Raster(along * groups_along, along, *(cute.FastDivmodDivisorV2(number) for number in numbers))


@cute.jit
def work_tile(scheduler: Scheduler, i: cutlass.Int32, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    raster = scheduler.raster
    group, inside = divmod(scheduler.first + i * scheduler.step, raster.by_group)
    start = group * config.swizzle_size
    line, place = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > raster.along:  # the last group is smaller
        line, place = divmod(inside, raster.by_last)
    m, n = start + place, line
    if cutlass.const_expr(config.cluster_m > 1):
        m, n = n, m
    return m * config.cluster_m + scheduler.rank[0], n * config.cluster_n + scheduler.rank[1]


# %% [markdown]
# ## The producer
#
# In every second work tile the producer goes through K **backwards**: `load_tile` and this order are [the persistent
# GEMM](persistent_gemm.ipynb)'s. A CTA outside C loads the last tile, as with [the overlapped
# epilogue](overlapped_epilogue_gemm.ipynb).
#
# The first work tile comes as an argument, and each next one is computed before it is needed: behind the last load of
# the one before.


# %%
@cute.jit
def produce(
    pipe: pipeline.PipelineTmaAsync,
    loads: tuple[Load, Load],
    scheduler: Scheduler,
    tile: tuple,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of all work tiles of this CTA, a stage each; `tile` is the first of these."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        m, n = (cutlass.min(at, cute.size(x.gX, mode=[1]) - 1) for at, x in zip(tile, loads, strict=True))
        state = load_tile(pipe, loads, state, (m, n), k_tiles, i, config)  # a dummy tile loads the last one
        tile = work_tile(scheduler, cutlass.min(i + 1, scheduler.count - 1), config)
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers, in both schedules
#
# The k-tiles of the main loop and the epilogue's subtiles are those of the pages before. Cooperative warpgroups store
# `overlapped` of their subtiles during the main loop of the next tile. In ping-pong each warpgroup has work tiles of
# its own, and begins when the other has issued its k-tiles.


# %%
@cute.jit
def compute(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """All work tiles of a warpgroup: its half of each, or in ping-pong every second one."""
    own, step = (epi.warpgroup, 2) if config.pingpong else (0, 1)
    at_once = config.subtiles - config.overlapped
    rC = cute.make_rmem_tensor(max(1, config.overlapped) * config.epi_n // 2, epi.sC.element_type)  # rounded
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(own, scheduler.count, step, unroll=1):
        read, release = state_at(i * main.k_tiles, config), state_at(i * main.k_tiles, config)
        if cutlass.const_expr(config.pingpong):  # barriers 4 and 5: 0 is the CTA's, 1 and 2 are of the epilogues
            if i > 0:
                pipeline.NamedBarrier(barrier_id=4 + epi.warpgroup, num_threads=256).arrive_and_wait()
        read = first_k_tile(main, read)
        tile = work_tile(scheduler, i, config)  # computed while the first commit group runs
        for j in cutlass.range_constexpr(config.overlapped):
            if i > 0:
                store_subtile(epi, at_once + j, subtile_of(rC, j, config), before, config)
            if cutlass.const_expr(j + 1 < config.overlapped):
                read, release = next_k_tile(main, read, release)
        # As many k-tiles either way. They compile to different code, and each schedule has the one that was measured.
        first, end = (0, main.k_tiles - 1) if config.pingpong else (config.min_k_tiles, main.k_tiles)
        for _ in cutlass.range(first, end, unroll=1):
            read, release = next_k_tile(main, read, release)
        if cutlass.const_expr(config.pingpong):
            if i + 1 < scheduler.count:  # all is issued: the other warpgroup may begin
                pipeline.NamedBarrier(barrier_id=5 - epi.warpgroup, num_threads=256).arrive()
        last_k_tile(main, release)
        round_and_store(epi, main.acc, at_once, tile, config)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(rC, j, config).store(subtile_of(main.acc, at_once + j, config).load().to(rC.element_type))
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(epi, at_once + j, subtile_of(rC, j, config), before, config)


@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. c: tiles of C; thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    main = make_mainloop(cta, op, group % config.warpgroups * 128, k_tiles, config)  # its first thread's slice
    epi = make_epilogue(cta.sC, c, r2s_c, group, thread, config)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still read or write what this warpgroup stores
    compute(main, epi, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume. Each waits for the previous kernel as late as it can:
# *programmatic dependent launch* (PDL), from [ping-pong](pingpong_gemm.ipynb).


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    remap: cute.Pointer,  # Int32, by cluster: the number of its first cluster tile
    raster: Raster,
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/tuned_gemm:

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
    cta = set_up(layouts, dtype, config)
    rank = rank_in_cluster(config)

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
            masks = 2 * (cutlass.Int16((1 << config.cluster) - 1),)  # where a cluster shares one operand: everyone
            if cutlass.const_expr(1 not in (config.cluster_m, config.cluster_n)):  # both: its row A, its column B
                masks = multicast_masks(rank, config)
            load_a = partition_load(a.atom, gA, cta.sA, rank[1], config.cluster_n, masks[0])
            load_b = partition_load(b.atom, gB, cta.sB, rank[0], config.cluster_m, masks[1])
            produce(cta.pipe, (load_a, load_b), scheduler, tile, k_tiles, config)
    else:
        consume(cta, op, TmaTensor(c.atom, gC), scheduler, k_tiles, r2s_c, group, tidx % 128, config)


# %% [markdown]
# ## The launch
#
# The host says how many clusters, and prepares the divisions by numbers that it knows. `use_pdl` lets this kernel
# overlap the *previous* one.


# %%
class Sizes(NamedTuple):
    """Sizes, row strides of A, B, C in elements, and clusters to launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]
    clusters: cutlass.Int32


@cute.jit
def launch(
    mA: cute.Tensor,
    mB: cute.Tensor,
    mC: cute.Tensor,
    remap: cute.Pointer,
    clusters: cutlass.Int32,
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Launch `clusters` clusters for C (M, N) = A (M, K) times B (N, K) transposed."""
    (m, n), ctas = mC.shape, config.cluster
    a, b, c = tma_tensors(mA, mB, mC, layouts, config)
    raster = rasterize(m, n, clusters, config)
    launcher = kernel(a, b, c, remap, raster, layouts, r2s_c, op, mC.element_type, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    remap: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed."""
    dtype = pA.dtype
    mA, mB, mC = matrices(pA, pB, pC, sizes.mnk, sizes.strides, config)
    layouts, r2s_c, op = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c, wgmma(dtype, config.tile_n)
    launch(mA, mB, mC, remap, sizes.clusters, layouts, r2s_c, op, stream, kernel, config)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (cutlass.Int32, 16)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## GPC-aware remapping
#
# Simultaneous requests for one line by the SMs of a GPC reach L2 once. So the clusters of a GPC should need the same
# tiles of the operand that is *not* multicast. A table of Int32 gives each cluster the number of its first cluster
# tile. It is a permutation: a wrong table costs time, nothing else. [A page of its
# own](../foundations/gpc_remapping.ipynb) finds the GPC that each cluster starts in (`Calibration.gpcs`) and makes the
# table. With `()`, or on a GPU with another number of SMs, there is none.
#
# **With a table the next kernel is not let in early** (PDL's `launch_dependents`). Its clusters would start in the
# order in which SMs become free, and no table would fit. Where clusters are few, most GPCs have less than one group of
# them. And a short product gains more by an early start. Those have no table, and let the next kernel in.


# %% tags=["folded"]
FULL = 0.9  # of the clusters that fit: where there are fewer, most GPCs have less than one group


def remap_of(call: Call, config, count: int, chip: Calibration) -> int:
    """The address of the table for `count` clusters; 0: none, where clusters are few, the product is short, or the
    GPCs are not known."""
    (m, n, _), most, known = call.mnk, call.sms // 2, tuple(chip.gpcs)
    if config.cluster != 2 or count < FULL * most or len(known) != most or is_short(*call.mnk, call.sms, chip):
        return 0
    down, across = cluster_tiles(config, m, n)
    return remap_table(call.device, known[:count], min(config.swizzle_size, across if config.cluster_m > 1 else down))


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    m, n, k = call.mnk
    chosen = choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant
    config = VARIANTS.get(chosen, chosen)
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count, CALIBRATION)
    return (replace(config, gpc_aware=remap != 0),), (remap, Sizes(call.mnk, call.strides, count))


GEMM = Gemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), padded=True, family=Config)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    The addresses of a and b and their row strides are multiples of 16 bytes, as TMA needs them. Any M, N, K >= 1 within
    that, on a GPU of compute capability 9.0. If rows of `out` are no such multiples, or N is no multiple of 8, the
    product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# The check is of the cells above, in every variant: edit one, run it, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/tuned_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/tuned_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# "Ours" is `matmul` without an argument, in one run with each variant, called by name.

# %% tags=["lab"]
Markdown(results_table("hopper/tuned_gemm"))

# %% [markdown] tags=["lab"]
# ## What limits it
#
# Clocks alone do not say it. Each variant and peer runs alone, again and again, while the GPU reports its clock and its
# power. Where power limits the clock, a rate is power divided by *J for each TFLOP*: the kernel that needs fewer joules
# is faster, even if it takes more clocks. The second table is ncu's, of one launch of each variant; its means include
# the loading warps, which mostly wait.

# %% tags=["lab"]
Markdown(limits_table("hopper/tuned_gemm"))

# %% [markdown] tags=["lab"]
# ## Exercises
#
# Both are of the host. Your answer is compared with the page's on a list of products.

# %% tags=["lab", "tasks"]
TASKS = {
    "stages_that_fit": (
        "sized",
        "            stages = min((MAX_SMEM - 1024 - 256 * epi_stages * epi_n) // (128 * (tile_m + tile_n)), most)",
        "            raise NotImplementedError",
        (
            "How many stages fit into shared memory, behind this epilogue? A stage is a tile of A and a tile of B, 128 "
            "bytes a row. Set `stages`, to `most` at most."
        ),
        (
            "What else is in shared memory? `smem_bytes` of Config adds it up.",
            (
                "The barriers take 1024 bytes with their padding. Two warpgroups have `epi_stages` buffers each, of "
                "64 rows and `epi_n` columns of 2 bytes."
            ),
        ),
        "The barriers and the epilogue's buffers come first. The stages share what is left.",
        "",
        (
            (128, 256, False, False, 1, 2),
            (256, 160, False, False, 1, 2),
            (256, 208, False, True, 1, 2),
            (128, 192, True, False, 2, 1),
            (128, 112, True, True, 1, 2),
            (64, 64, True, False, 1, 2),
        ),
    ),
    "choose_by_clusters": (
        "choose",
        "    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))",
        "    return max(VARIANTS, key=lambda name: clusters(VARIANTS[name], m, n, sms))",
        '"An SM without work is wasted: take the variant that launches most clusters."',
        (
            "How many clusters does each variant launch for 4096 x 4096?",
            "Nearly all of them fill the GPU. In how many waves, and how long is a wave of each?",
        ),
        "All variants can fill the GPU. What counts is for how long: `cost` has the waves, and the clocks of one.",
        "",
        (
            (200, 336, 4096, 132),
            (1024, 1024, 1024, 108),
            (4096, 4096, 4096, 132),
            (8192, 8192, 8192, 132),
            (16384, 1024, 512, 132),
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("hopper/tuned_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A GEMM for all sizes needs several tiles, and [a way to choose](tile_heuristics.ipynb). Where a product's tiles fill
# one wave or less, the launch, the first loads and the last store take a large part of the time. Where tiles are few
# and K is long, [split-K](split_k_gemm.ipynb) is the better kernel.
#
# Next: [this kernel for operands of either major](majors_gemm.ipynb).
