# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Grouped GEMM: a mixture of experts"
#     claim: >-
#       One persistent kernel multiplies groups of rows whose sizes only the GPU knows: its tile scheduler reads them,
#       and one tensor map of C ends wherever a group ends.
#     track: hopper
#     order: 120
#     kind: grouped
#     aside: Groups
#     measured_by: foundations/gpc_remapping
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix, overlapped with the next main loop -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, UTMALDG.3D, HGMMA, STSM.16, UTMASTG.3D, USETMAXREG, SYNCS]
#     bench_shapes: [[16383, 4096, 4096], [16384, 4096, 4096], [64, 4096, 4096]]
#     sources:
#       - {title: "PTX ISA, tensors", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensors"}
#       - {title: "PyTorch, torch.nn.functional.grouped_mm", url: "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.grouped_mm.html"}
#       - {title: "Triton, ragged TMA descriptors", url: "https://github.com/triton-lang/triton/blob/main/python/triton/tools/ragged_tma.py"}
#       - {title: "QuACK, ragged tensors for TMA", url: "https://github.com/Dao-AILab/quack/blob/main/quack/copy_utils.py"}
# ---

# %% [markdown]
# # Grouped GEMM: a mixture of experts
#
# **Claim.** A layer with *experts* sorts its tokens by expert; a token is one row of A. Each group of rows then meets a
# weight of its own. One launch multiplies all groups, and the host never learns how large they are.

# %% tags=["lab"]
import numpy as np

from cookbook import draw, lab


def tiles_of_rows(ends: list[int], height: int, across: int, band: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row of C and each column of tiles: the number of the work tile, and the group."""
    number, start = 0, 0
    tiles, groups = np.zeros((ends[-1], across), int), np.zeros((ends[-1], across), int)
    for group, end in enumerate(ends):
        high = -(-(end - start) // height)
        for first in range(0, high, band):
            for n in range(across):
                for m in range(first, min(first + band, high)):
                    rows = slice(start + m * height, min(start + (m + 1) * height, end))
                    tiles[rows, n], groups[rows, n], number = number, group, number + 1
        start = end
    return tiles, groups


tiles, groups = tiles_of_rows([7, 9, 9, 14], 4, 6, 2)
draw.number_grid(
    tiles,
    "Work tiles of 4 rows, groups of 7, 2, 0 and 5 rows",
    groups,
    note="downwards the rows of C, to the right columns of tiles; number: the work tile; colour: the group",
)

# %% tags=["lab"]
lab.gain("hopper/grouped_gemm", (16384, 4096, 4096))

# %% [markdown]
# Tiles begin at a group's first row. The last tile of a group may be lower, and a group may be empty. The numbers go on
# from group to group. The kernel is that of [the tuned GEMM](tuned_gemm.ipynb), which has on top of
# [TMA and WGMMA](tma_wgmma_gemm.ipynb):
#
# * [Persistent CTAs](persistent_gemm.ipynb): a CTA stays on its SM, and computes one work tile after the other.
# * [Clusters](multicast_gemm.ipynb): two CTAs side by side in C share the tiles of A by *multicast*. Their two tiles
#   are one *cluster tile*. A cluster takes every `step`th cluster tile, `step` being the number of clusters.
# * [Registers moved](warp_specialized_gemm.ipynb) from the warpgroup that loads to those that multiply (`setmaxnreg`).
# * [The overlapped epilogue](overlapped_epilogue_gemm.ipynb): a tile is stored by TMA, in *epilogue subtiles* of 64
#   rows, while the next tile is multiplied.
# * [PDL](../../docs/glossary.md#pdl): CTAs may start before the previous kernel has ended. `griddepcontrol.wait` waits
#   for its end.
#
# Three questions are new:
#
# * **Which tile is number 17?** The ends of the groups (`offs`) lie in the GPU's memory, where a kernel before wrote
#   them. A copy to the host would stop the stream. So each warp finds its tiles itself.
# * **How does TMA load from groups?** A is one matrix, and a tile may begin at any of its rows. The weights are one
#   tensor of three modes, (N, K, GROUP).
# * **How does TMA store a lower tile?** It must not write into the next group's rows. A tensor map clips at the end of
#   a tensor, and groups end inside of it. The usual way is a kernel that edits a tensor map for each group
#   (`tensormap.replace`), with a fence and a wait. Here [one tensor map](#the-epilogue-one-tensor-map-for-all-ends) has
#   an end at every row.
#
# **Two times first**, for 8 groups and N = K = 4096 on an H200: to read the weights, and to multiply on all SMs.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import predict, results_table, table

H200, WEIGHT = predict.H200, 4096 * 4096  # bytes a nanosecond, GHz; elements of the weight of one group
reading = f"{2 * 8 * WEIGHT / H200.memory / 1000:,.0f} us"  # 2048: multiply-adds of an SM in a clock
both = [[f"{t:,}", reading, f"{t * WEIGHT / 2048 / 132 / H200.ghz / 1000:,.1f} us"] for t in (64, 16384)]
Markdown(table(["rows of A", f"weights, at {H200.memory / 1000} TB/s", f"multiply, at {H200.ghz} GHz"], both))

# %% [markdown]
# With few rows memory is the limit, with many rows the tensor cores. At their power limit they take longer still.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, Matrix, compile_host
from cookbook.recipe.operands import Argument, Batch, GroupedGemm, adjacent
from cookbook.recipe.remapping import remap_table
from cookbook.recipes.hopper.multicast_gemm import make_load, partition_load
from cookbook.recipes.hopper.overlapped_epilogue_gemm import (
    Epilogue,
    make_epilogue,
    make_pipeline,
    meet_cluster,
    subtile_of,
    write_subtile,
)
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    allocate,
    first_k_tile,
    last_k_tile,
    make_mainloop,
    next_k_tile,
    state_at,
)
from cookbook.recipes.hopper.swap_ab_gemm import Config as SwapAbConfig
from cookbook.recipes.hopper.swap_ab_gemm import smem_layouts, tiled_copies
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor, tiled_mma, wgmma

# %% [markdown]
# ## The variants
#
# | variant | rows of a group in a tile | columns | operands swapped |
# |---|---|---|---|
# | `128x256` | 128 | 256 | no |
# | `64x128` | 64 | 128 | yes |
# | `32x128` | 32 | 128 | yes |
#
# With 8 rows in a group a tile of 128 rows would be mostly empty. `wgmma` has 64 rows at least, so the weights take
# their place, and rows of the product have steps of 16: [swap A/B](swap_ab_gemm.ipynb). So the code does not say M and
# N of a tile, but `tokens`, its rows of the product, and `weights`, its columns.
#
# The host knows how many rows and groups there are, so their mean. `variant_for` takes the lowest tile that holds the
# mean, or else the highest. A group with more rows than that has a second tile, which loads the weights once more.


# %%
@dataclass(frozen=True)
class GroupedConfig(SwapAbConfig):
    """Sizes of a grouped kernel, in elements or counts."""

    swizzle_size: int = 16  # tiles down a group that need the same weights, before the rasterization moves across

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


@dataclass(frozen=True)
class Config(GroupedConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    gpc_aware: bool = True  # a cluster's first work tile goes by its GPC, not by its number


def few_rows(rows: int, stages: int) -> Config:
    """Weights are the operand of 64-row steps, so a tile has as few rows of the product as wanted, in steps of 16."""
    epilogue = {"epi_n": rows, "epi_stages": 1, "overlapped": 1}
    return Config(tile_n=rows, stages=stages, cluster_n=1, swap_ab=True, gpc_aware=False, **epilogue)


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
# K-major tiles in 128-byte rows, and epilogue subtiles of C: 64 x 64, or with A and B swapped 64 x 32 or 64 x 64 by
# columns. Nothing here knows of groups: they are [swap A/B](swap_ab_gemm.ipynb)'s.

# %% [markdown]
# ## The tile scheduler
#
# A group has `ceil(rows / tile)` tiles down and `across` cluster tiles to the right. The number of a work tile counts
# through all groups. `search` goes from group to group and subtracts each one's tiles, until the rest lies inside one.
#
# `search` goes on where it stopped, so a warp reads an end once. The warp that loads and the eight that multiply search
# alike, with no messages. The `offs` of 32 groups are 128 bytes. If they fill one line of L1, one read waits for L2,
# and 31 do not.
#
# **Inside of a group**, numbers go down a band of `swizzle_size` tiles, and then to the right, as the picture above
# shows. With bands of 16 tiles, the CTAs that run together need about as many rows of A as of the weights, and all of a
# group's weights are read before the next band begins.
#
# **Bad ends do no harm.** A group begins at the largest end before it, and no end counts for more than the rows of A.
# So every row has at most one owner, whatever `offs` holds. Rows behind the last end have none, and are not written.
#
# **The grid** is as large as the GPU. How many tiles there are, the host does not know. A CTA without a tile ends.


# %%
NO_TILES = 1 << 30  # more than any product has: where the search for a work tile ends


class Scheduler(NamedTuple):
    """Values common to all work tiles."""

    offs: cute.Tensor  # Int32, by group: the end of its rows
    tokens: cutlass.Int32  # rows of A
    across: cutlass.Int32  # cluster tiles from left to right
    first: cutlass.Int32  # number of its cluster's first cluster tile, over all groups
    step: cutlass.Int32  # from one to the next: the clusters of the grid
    rank: cutlass.Int32  # of the CTA in its cluster


class Place(NamedTuple):
    """The state of the search for work tiles: in a group."""

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


# %%
@cute.jit
def tiles_of(start: cutlass.Int32, end: cutlass.Int32, scheduler: Scheduler, config: cutlass.Constexpr):
    """Cluster tiles of a group."""
    return (end - start + config.tokens - 1) // config.tokens * scheduler.across


@cute.jit
def search(place: Place, by: cutlass.Int32, scheduler: Scheduler, config: cutlass.Constexpr):
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


# %% [markdown]
# ## The producer
#
# A tile of A begins at any row: `domain_offset` adds the row to TMA's coordinate. Where a group ends inside of a tile,
# TMA loads rows of the next group behind it. They do no harm: a row of C needs its own row of A alone, and rows behind
# the end are not stored. So A needs no tensor map of its own for each group. The weights need a coordinate more.
#
# A cluster's two CTAs share rows of A by multicast, so both have the same group. Every second tile goes backwards
# through K, as in the tuned GEMM.
#
# With the table of [GPC-aware remapping](#gpc-aware-remapping) the next kernel is not let in early: its clusters would
# start in an order that no table fits ([the tuned GEMM](tuned_gemm.ipynb)).


# %%
class Source(NamedTuple):
    """An operand, whose tiles are found one by one."""

    atom: cute.CopyAtom
    mX: cute.Tensor  # TMA coordinates: tokens (T, K), or weights (N, K, GROUP)
    sX: cute.Tensor  # (TILE, TILE_K, STAGE)


@cute.jit
def load_tile(
    pipe: pipeline.PipelineTmaAsync,
    sources: tuple[Source, Source],  # of tokens, of weights
    state: pipeline.PipelineState,
    tile: WorkTile,
    k_tiles: cutlass.Int32,
    backwards: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of a work tile, forwards (0) or `backwards` (1). Returns the pipeline state."""
    tokens, weights = sources
    rank = tile.column % config.cluster
    rows = cute.domain_offset((tile.row, 0), tokens.mX)  # (T, K): it begins at the tile
    gT = cute.local_tile(rows, (config.tokens, config.tile_k), (0, None))  # (TILE, TILE_K, k)
    gW = cute.local_tile(weights.mX, (config.weights, config.tile_k), (tile.column, None, tile.group))
    everyone = cutlass.Int16((1 << config.cluster) - 1)
    t = partition_load(tokens.atom, gT, tokens.sX, rank, config.cluster, everyone)
    w = partition_load(weights.atom, gW, weights.sX, cutlass.Int32(0), 1, everyone)
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i + backwards * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(t.atom, t.gX[None, k_tile], t.sX[None, state.index], tma_bar_ptr=barrier, **t.multicast)
        cute.copy(w.atom, w.gX[None, k_tile], w.sX[None, state.index], tma_bar_ptr=barrier, **w.multicast)
        state.advance()
    return state


@cute.jit
def produce(
    pipe: pipeline.PipelineTmaAsync,
    sources: tuple[Source, Source],
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of all work tiles of this CTA, a stage each."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    place, backwards = first_place(scheduler, config), cutlass.Int32(0)
    while place.group < cute.size(scheduler.offs):
        tile = work_tile(place, scheduler, config)
        state = load_tile(pipe, sources, state, tile, k_tiles, backwards, config)
        place, backwards = search(place, scheduler.step, scheduler, config), 1 - backwards
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The main loop
#
# As in [the overlapped epilogue](overlapped_epilogue_gemm.ipynb), and imported: one commit group of wgmmas for each
# k-tile, and all subtiles of a tile are stored during the k-tiles of the next one.
#
# ## The epilogue: one tensor map for all ends
#
# TMA does not write what lies outside of a tensor, in any of its modes. So C is given one mode more:
# `(ROW, N, END)`. Think of a *window* on C, as high as a subtile (`height`), that ends before row `e`. Mode END chooses
# the window, mode ROW counts rows inside of it. Both have the *same stride*, one row of C: coordinates (r, n, e) mean
# row `e - height + r`. For TMA the tensor ends where the window does, at `r = height`.
#
# * A subtile that lies inside of its group is stored at `r = 0`, in the window that ends where the subtile does.
# * One of which 3 rows are `left` is stored at `r = height - 3`, in the window that ends where the group does. Its
#   other rows lie behind the window's end, and TMA leaves them out.
#
# Both take the same instructions, with other coordinates. There is no branch, no predicate and no second path through
# shared memory. The tensor begins `height` rows before C, but nothing there is read or written: `r + e` is never less
# than `height`. Triton and QuACK use windows of 2^30 rows in the same way.


# %%
@cute.jit
def clipped(pC: cute.Pointer, shape_mn: tuple, ldc: cutlass.Int64, config: cutlass.Constexpr):
    """C as a tensor of three modes, (ROW, N, END): row r of a window that ends before row `end` of C."""
    (m, n), height = shape_mn, config.epi_tokens
    before = pC - height * ldc  # of the window that ends before row 0
    if cutlass.const_expr(config.swap_ab):
        return cute.make_tensor(before, cute.make_layout((n, height, m + 1), stride=(1, ldc, ldc)))
    return cute.make_tensor(before, cute.make_layout((height, n, m + 1), stride=(ldc, 1, ldc)))


@cute.jit
def store_window(epi: Epilogue, at: tuple, buffer: cutlass.Constexpr, config: cutlass.Constexpr):
    """Store a buffer to C from coordinates `at` on, which need not be those of a whole subtile."""
    gC = cute.local_tile(cute.domain_offset(at, epi.gC), (64, config.epi_n), (0, 0, 0))
    sC, gC = cute.group_modes(epi.sC, 0, 2), cute.group_modes(gC, 0, 2)
    bSsC, bSgC = cpasync.tma_partition(epi.tma_c, 0, cute.make_layout(1), sC, gC)
    with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
        cute.copy(epi.tma_c, bSsC[None, buffer], bSgC)
        cute.arch.cp_async_bulk_commit_group()


@cute.jit
def store_subtile(epi: Epilogue, i: cutlass.Constexpr, rC: cute.Tensor, tile: WorkTile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile. rC: a thread's rounded values, (MMA, 1, 1)."""
    storing, buffer = write_subtile(epi, i, rC, config)
    if storing:
        across = config.tile_n // config.epi_n
        down, right = (i // across * 2 + epi.warpgroup) * 64, i % across * config.epi_n  # in the tile
        token, weight = (right, down) if config.swap_ab else (down, right)
        row, column = tile.row + token, tile.column * config.weights + weight
        left = cutlass.max(0, cutlass.min(tile.end - row, config.epi_tokens))  # rows of the group, in this subtile
        at = (config.epi_tokens - left, column, row + left)  # what lies behind the first mode's end is not stored
        if cutlass.const_expr(config.swap_ab):
            at = (at[1], at[0], at[2])
        store_window(epi, at, buffer, config)


# %% [markdown] tags=["lab"]
# For a group that ends before row 13, and subtiles of 8 rows: where each subtile is stored, and what of it.

# %% tags=["lab"]
HEIGHT, END = 8, 13
lines = []
for row in (0, 8, 16):
    left = max(0, min(END - row, HEIGHT))
    r, e = HEIGHT - left, row + left
    stored = [e - HEIGHT + r + i for i in range(HEIGHT) if r + i < HEIGHT]
    rows = f"{row} to {row + HEIGHT - 1}"
    lines.append([rows, f"{left}", f"r = {r}, e = {e}", f"{stored[0]} to {stored[-1]}" if stored else "none"])
Markdown(table(["rows of the subtile", "left", "coordinates", "rows of C that are stored"], lines))

# %% [markdown]
# ## All work tiles of a warpgroup
#
# The first k-tile of a work tile is issued; under its wgmmas and those of the k-tiles after it the tile before is
# stored.


# %%
@cute.jit
def store_tile(epi: Epilogue, rC: cute.Tensor, tile: WorkTile, config: cutlass.Constexpr):
    """Store this warpgroup's part of a tile, rounded in `rC`, with no main loop to hide it."""
    for j in cutlass.range_constexpr(config.subtiles):
        store_subtile(epi, j, subtile_of(rC, j, config), tile, config)


@cute.jit
def further_k_tiles(
    main: Mainloop,
    epi: Epilogue,
    read: pipeline.PipelineState,
    k_index: cutlass.Int32,
    rC: cute.Tensor,
    before: WorkTile,
    config: cutlass.Constexpr,
):
    """Multiply the k-tiles of a work tile behind its first, whose k-tile index is `k_index`. Meanwhile store `rC`, the
    rounded tile `before` it, if there is one."""
    release = state_at(k_index, config)
    for j in cutlass.range_constexpr(config.subtiles):
        if k_index > 0:
            store_subtile(epi, j, subtile_of(rC, j, config), before, config)
        if cutlass.const_expr(j + 1 < config.subtiles):
            read, release = next_k_tile(main, read, release)
    for _ in cutlass.range(config.min_k_tiles, main.k_tiles, unroll=1):
        read, release = next_k_tile(main, read, release)
    last_k_tile(main, release)


# %% [markdown]
# The search for the next work tile takes place while the first commit group of this one runs.


# %%
@cute.jit
def compute(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """Compute this warpgroup's half of all work tiles."""
    rC = cute.make_rmem_tensor(config.subtiles * config.epi_n // 2, epi.sC.element_type)  # rounded
    place, zero = first_place(scheduler, config), cutlass.Int32(0)
    tile, before, k_index = work_tile(place, scheduler, config), WorkTile(zero, zero, zero, zero), zero
    while place.group < cute.size(scheduler.offs):
        read = first_k_tile(main, state_at(k_index, config))
        place = search(place, scheduler.step, scheduler, config)
        following = work_tile(place, scheduler, config)
        further_k_tiles(main, epi, read, k_index, rC, before, config)
        for j in cutlass.range_constexpr(config.subtiles):
            subtile_of(rC, j, config).store(subtile_of(main.acc, j, config).load().to(rC.element_type))
        before, tile, k_index = tile, following, k_index + main.k_tiles
    if k_index > 0:
        store_tile(epi, rC, before, config)


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume. All of them read `offs`, which the kernel before may have written. So each
# waits for that kernel (PDL, `griddepcontrol.wait`) before its first search.


# %%
@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages and the epilogue's buffers, and set up the barriers."""
    barriers, sA, sB, sC = allocate(layouts, dtype, config)
    pipe = make_pipeline(barriers, config)
    meet_cluster()
    return Cta(pipe, sA, sB, sC)


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
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. c: see `clipped`; thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    main = make_mainloop(cta, op, group * 128, k_tiles, config)  # the slice of its first thread: the same for all
    epi = make_epilogue(cta.sC, c, r2s_c, group, thread, config)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still write offs, or use what is stored here
    compute(main, epi, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# The kernel finds its sizes in the tensors. What the MMA calls A and B are tokens and weights, or the other way round.


# %%
@cute.jit
def make_scheduler(
    offs: cute.Tensor,
    tokens: TmaTensor,
    weights: TmaTensor,
    first: cutlass.Int32,
    step: cutlass.Int32,
    rank: cutlass.Int32,
    config: cutlass.Constexpr,
) -> Scheduler:
    """The `Scheduler` of a cluster whose first work tile is number `first`, and each other one `step` further."""
    across = cute.ceil_div(cute.size(weights.coords, mode=[0]), config.weights * config.cluster)
    return Scheduler(offs, cute.size(tokens.coords, mode=[0]), across, first, step, rank)


def sources_of(tokens: TmaTensor, weights: TmaTensor, cta: Cta, config: GroupedConfig) -> tuple[Source, Source]:
    """The operands as the producer sees them, of tokens and of weights."""
    sT, sW = (cta.sB, cta.sA) if config.swap_ab else (cta.sA, cta.sB)
    return Source(tokens.atom, tokens.coords, sT), Source(weights.atom, weights.coords, sW)


# %%
@cute.kernel
def kernel(
    tokens: TmaTensor,  # (T, K)
    weights: TmaTensor,  # (N, K, GROUP)
    c: TmaTensor,  # see `clipped`
    offs: cute.Tensor,  # Int32, by group
    remap: cute.Pointer,  # Int32, by cluster: the number of its first cluster tile
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/grouped_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    first, step = cute.arch.block_idx()[0] // config.cluster, cute.arch.grid_dim()[0] // config.cluster
    if cutlass.const_expr(config.gpc_aware):  # this load takes longer than all that is set up meanwhile
        first = cute.make_tensor(remap, cute.make_layout(step))[first]
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (tokens.atom, weights.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, dtype, config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    k_tiles = cutlass.max(cute.ceil_div(cute.size(tokens.coords, mode=[1]), config.tile_k), config.min_k_tiles)
    scheduler = make_scheduler(offs, tokens, weights, first, step, rank, config)
    scheduler = scheduler._replace(first=cute.arch.make_warp_uniform(first))
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            produce(cta.pipe, sources_of(tokens, weights, cta, config), scheduler, k_tiles, config)
    else:
        consume(cta, op, c, scheduler, k_tiles, r2s_c, group, tidx % 128, config)


# %% [markdown]
# ## The launch
#
# All that is known of groups here is how many there are.


# %%
class Sizes(NamedTuple):
    """The arguments of a launch beside the addresses of its tensors."""

    remap: cute.Pointer  # Int32, by cluster: the number of its first cluster tile
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    groups: cutlass.Int32
    group_stride: cutlass.Int64  # elements from one group's weights to the next's
    clusters: cutlass.Int32


def tma_tensors(
    mA: cute.Tensor,
    mB: cute.Tensor,
    pC: cute.Pointer,
    shape_mn: tuple,
    ldc: cutlass.Int64,
    layouts: SmemLayouts,
    config: GroupedConfig,
):
    """Tokens and weights as TMA loads them, a tile at a time, and `clipped` C as it stores it, a subtile at a time."""
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    t_stage, w_stage = (b_stage, a_stage) if config.swap_ab else (a_stage, b_stage)
    tokens = make_load(mA, t_stage, (config.tokens, config.tile_k), config.cluster)
    weights = make_load(mB, w_stage, (config.weights, config.tile_k), 1)
    mC, store = clipped(pC, shape_mn, ldc, config), cpasync.CopyBulkTensorTileS2GOp()
    return tokens, weights, TmaTensor(*cpasync.make_tiled_tma_atom(store, mC, c_stage, (64, config.epi_n)))


# %% [markdown]
# The matrices are those of the caller: one A, one weight for each group.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    offs: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N): the rows of each group are those of A (M, K) times the group's B (N, K) transposed."""
    remap, (m, n, k), strides, groups, group_stride, clusters = sizes
    dtype, ctas = pA.dtype, config.cluster
    lda, ldb, ldc, group_stride = (cute.assume(stride, divby=8) for stride in (*strides, group_stride))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k, groups), stride=(ldb, 1, group_stride)))
    layouts, r2s_c, op = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c, wgmma(dtype, config.tile_n)
    tokens, weights, c = tma_tensors(mA, mB, pC, (m, n), ldc, layouts, config)
    offs = cute.make_tensor(offs, cute.make_layout(groups))
    launcher = kernel(tokens, weights, c, offs, remap, layouts, r2s_c, op, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def clusters(config: GroupedConfig, sms: int) -> int:
    """Return how many clusters are launched: the host does not know how many tiles there are."""
    return sms // config.cluster


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (cutlass.Int32, 4), (cutlass.Int32, 4)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## GPC-aware remapping
#
# An H200 has its SMs in 8 *GPCs*. Several SMs of one GPC that ask for a line at once ask L2 once. So clusters of one
# GPC begin at cluster tiles that need the same weights: `TOGETHER` consecutive numbers. A table has each cluster's
# first number; it needs no sizes of groups. `gpcs` has a letter for the GPC of each cluster, in the order in which they
# start. The first four, whose GPC is not known, have letters of their own. How they are found: [GPC-aware cluster
# remapping](../foundations/gpc_remapping.ipynb).


# %% tags=["folded"]
@dataclass(frozen=True)
class Calibration:
    """The remapping's figures of one chip: the default is of an H200."""

    # The GPC of each cluster of two, in the order in which an idle GPU starts them. Any letters; () is "not known".
    gpcs: tuple[object, ...] = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")


CALIBRATION = Calibration()
TOGETHER = 8  # consecutive cluster tiles for one GPC, which has 8 or 9 clusters
LONG = 15_000  # clocks of multiplying: a product of fewer gains more by an early start than by a table


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(gpcs=launch_order())`, say."""
    global CALIBRATION
    CALIBRATION = replace(CALIBRATION, **figures)
    GEMM.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


def remap_of(call: Call, config: Config, count: int) -> int:
    """The address of the table for `count` clusters; 0: none, where the product is short or the GPCs are not known."""
    (m, n, k), known = call.mnk, tuple(CALIBRATION.gpcs)
    if not config.gpc_aware or m * n * k / 2048 / call.sms < LONG or len(known) != count:
        return 0
    return remap_table(call.device, known, TOGETHER)


# %% [markdown]
# ## `matmul`
#
# `GroupedGemm`, which recipes share, checks a call once for each kind and keeps a *plan*. `GROUPED` is the table of
# operands: name, shape, dtype, and what must hold of where their elements lie. The host checks what it can see, and
# never reads `offs`.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (*_, group_stride), groups, rows = call.known["b"], call.known["GROUPS"], call.mnk[0]
    config = VARIANTS[variant_for(rows / groups) if call.variant == DEFAULT else call.variant]
    count = clusters(config, call.sms)
    remap = remap_of(call, config, count)
    sizes = Sizes(remap, call.mnk, call.strides, groups, group_stride, count)
    return (replace(config, gpc_aware=remap != 0),), (sizes,)


ENDS = Argument("offs", "GROUPS", (torch.int32,), adjacent)
GROUPED = Matrix("a", "M K", empty=True), Batch("b", "GROUPS K N"), ENDS
BY_ROWS = {"operands": GROUPED, "padded": True}  # TMA writes each row of C as it lies
GEMM = GroupedGemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), **BY_ROWS)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """The product of each group of rows of `a` with its own matrix of `b`, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K). Without rows (M = 0) nothing is launched.
    b: (GROUPS, K, N), the same dtype, K-major too: usually `weights.transpose(1, 2)` of contiguous (GROUPS, N, K).
    offs: (GROUPS,), int32, on the same device: the row behind each group's last one. A group begins where the largest
        end before it is; ends below 0 count as 0, ends above M as M. Warps read them while the kernel runs, so
        nothing may write them before it has ended.
    out: (M, N), the same dtype, stride 1 along N, no memory of the others. Made if not given. Rows behind the last end
        are not written.
    variant: one of VARIANTS, or "auto": the one that `variant_for` names.

    Arguments are those of `torch.nn.functional.grouped_mm`. Addresses, and strides other than 1, are multiples of 16
    bytes (offs: 4), as TMA needs them, and N is a multiple of 8. Nothing waits for the GPU, and a CUDA graph may be
    replayed with other ends. Needs compute capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, offs, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# The checks give the kernel four groups of each problem's rows: one of them is empty, by an end out of order, and the
# last rows are of no group. Edit a cell, run it, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/grouped_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# All peers in one run: 8 groups, equal ones where 8 divides M, else skewed, each about 3/4 as large as the one before.
# `torch.matmul` group by group must be told the sizes on the host.

# %% tags=["lab", "open"]
lab.compare("hopper/grouped_gemm", matmul, (16384, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/grouped_gemm"))

# %% [markdown] tags=["lab"]
# **What limits it.** With few rows the weights stream from memory. With many rows the GPU is at its power limit, and
# `torch.matmul` group by group, whose host knows the sizes, is not faster. Three things were tried with 16384 rows, in
# experiments that are not recorded:
#
# * **A warpgroup whose rows all lie behind a group's end only releases its stages.** It saved no time, and is left out.
# * **64 clusters instead of 66.** Equal groups then fill whole waves, and took a little less time; skewed ones took a
#   little more. The host cannot tell the two apart, so the grid has all SMs.
# * **Bands of 8 or 32 tiles instead of 16**: slower with equal groups.
#
# ## Conclusion
#
# A grouped GEMM is a persistent GEMM with another tile scheduler. Sizes that only the GPU knows cost a search of a few
# reads. Ends inside of a matrix cost one more mode of a tensor map, with the stride of the rows, and no tensor map is
# ever edited.
#
# Next: [the gradients of the weights](grouped_wgrad_gemm.ipynb), where groups divide K, and the same kind of tensor map
# is that of a load.
