# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Grouped GEMM along K: weight gradients of experts"
#     claim: >-
#       The groups divide K, at ends that only the GPU knows. One tensor map of each operand fills a k-tile with zeros
#       up to the start of its group, so no element of another group is loaded.
#     track: hopper
#     order: 121
#     kind: grouped_k
#     aside: Groups
#     builds_on: hopper/grouped_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     majors: [nt]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix, overlapped with the next main loop -> tma
#     instructions:
#       sm_90a: [UTMALDG.3D, HGMMA, STSM.16, UTMASTG.3D, USETMAXREG, SYNCS]
#     bench_shapes: [[4096, 4096, 16383], [4096, 4096, 16384]]
#     sources:
#       - {title: "PTX ISA, tensors", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensors"}
#       - {title: "PyTorch, torch.nn.functional.grouped_mm", url: "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.grouped_mm.html"}
#       - {title: "Triton, ragged TMA descriptors", url: "https://github.com/triton-lang/triton/blob/main/python/triton/tools/ragged_tma.py"}
#       - {title: "QuACK, ragged tensors for TMA", url: "https://github.com/Dao-AILab/quack/blob/main/quack/copy_utils.py"}
# ---

# %% [markdown]
# # Grouped GEMM along K: weight gradients of experts
#
# **Claim.** The gradient of an expert's weight is a product over that expert's tokens alone. All experts' gradients are
# one launch, and the host never learns how many tokens each expert has.

# %% [markdown] tags=["lab"]
# Below are four groups of 7, 2, 0 and 5 tokens, in k-tiles of 4 tokens: each column is one k-tile. The last k-tile of a
# group ends with the group. Framed places lie before its start and must be zero. (The kernel gives each group at least
# four k-tiles. Those of zeros alone are left out here.)

# %% tags=["lab"]
import numpy as np

from cookbook import draw, lab


def k_tiles_of(ends: list[int], length: int) -> list[tuple[int, int, int]]:
    """(group, first place, start of the group) of each k-tile of `length` tokens: the last one ends with the group."""
    groups = enumerate(zip([0, *ends[:-1]], ends, strict=True))
    return [(g, at, s) for g, (s, e) in groups for at in range(e - -(-(e - s) // length) * length, e, length)]


found = k_tiles_of([7, 9, 9, 14], 4)
rows = np.array([[row + i for _, row, _ in found] for i in range(4)])
zeros = [(i, j) for j, (_, row, start) in enumerate(found) for i in range(4) if row + i < start]
draw.number_grid(
    rows,
    "K-tiles of 4 tokens, groups of 7, 2, 0 and 5 tokens",
    np.array([[group for group, _, _ in found]] * 4),
    mark=zeros,
    note="a column: one k-tile; number: the token, a column of A and a row of B; colour: the group; frame: zeros",
)

# %% tags=["lab"]
lab.gain("hopper/grouped_wgrad_gemm", (4096, 4096, 16384))

# %% [markdown]
# In the forward pass of a layer with *experts*, [the page before](grouped_gemm.ipynb), tokens are rows of A and of C: y
# = x W<sup>T</sup>, each group of rows with its own W. In the backward pass the gradient of W is dy<sup>T</sup> x, a
# sum *over tokens*; dy is the gradient of y. With T tokens in all, A is dy<sup>T</sup> (M, T) and B is x (T, N): the K
# of this GEMM is T. C (GROUP, M, N) has a product for each group:
#
# | | forward | gradient of the weights |
# |---|---|---|
# | groups divide | M | K |
# | A | x (T, K), K-major | dy<sup>T</sup> (M, T), M-major |
# | B | one weight for each group, K-major | x (T, N), N-major |
# | C | (T, N) | (GROUP, M, N) |
# | work tiles of a group | as many as it has rows | always the same number |
# | k-tiles of a work tile | always the same number | as many as the group has rows |
#
# In both operands the elements of a token are contiguous: a row of dy or of x. So A is M-major and B is N-major, and
# `wgmma` reads such tiles as they are: [operand majors](majors_gemm.ipynb). A group may begin at any token.
#
# Two things are new:
#
# * **A k-tile must not reach beyond its group.** In the framed places lie tokens of the group before. They would be
#   added to the wrong gradient. To zero them in A alone is not enough. 0 times infinity is not a number, so an overflow
#   in one expert would spread to another.
# * **Work tiles differ in length.** How many k-tiles a work tile has, only the GPU knows.
#
# What stays is imported: the k-tiles of the main loop from [the persistent GEMM](persistent_gemm.ipynb), the writing of
# an epilogue subtile from [the overlapped epilogue](overlapped_epilogue_gemm.ipynb), set-up and store from the page
# before. There is one tile size, no GPC-aware remapping, and every work tile goes forwards through K.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, Matrix, check_epilogue, compile_host, mn_major, require
from cookbook.recipe.operands import Argument, GroupedGemm, adjacent
from cookbook.recipes.hopper.grouped_gemm import Source, set_up, store_window
from cookbook.recipes.hopper.multicast_gemm import make_load, partition_load
from cookbook.recipes.hopper.overlapped_epilogue_gemm import Config as OverlappedConfig
from cookbook.recipes.hopper.overlapped_epilogue_gemm import (
    Epilogue,
    make_epilogue,
    subtile_of,
    write_subtile,
)
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    first_k_tile,
    last_k_tile,
    make_mainloop,
    next_k_tile,
    state_at,
    tiled_copies,
)
from cookbook.recipes.hopper.persistent_gemm import smem_layouts as k_major_layouts
from cookbook.recipes.hopper.swap_ab_gemm import mirrored_atom
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor

# %% [markdown]
# ## The sizes
#
# Those of the overlapped epilogue: a tile of 128 x 256, all of whose subtiles are stored during the next tile's main
# loop. So a work tile has at least `min_k_tiles` k-tiles, of which some may be zeros.


# %%
@dataclass(frozen=True)
class Config(OverlappedConfig):
    """Sizes of the kernel, in elements or counts, how it is scheduled, and how its operands lie."""

    swizzle_size: int = 16  # tiles down C that need the same columns of B, before the rasterization moves across
    a_major: str = "m"  # the index along which A is contiguous: for the checks, the kernel has these majors alone
    b_major: str = "n"


CONFIG = Config()


def config_for(arch: str) -> Config:
    """The configuration for an architecture: there is one Hopper."""
    return CONFIG


# %% [markdown]
# ## The layouts and the MMA
#
# M-major tiles of A, N-major tiles of B: each 128-byte line of shared memory holds 64 elements of one token. The atoms
# are stacked along K first, so one box of TMA is 64 elements wide and 64 tokens high.


# %%
def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B in atoms whose lines run along M and N, first one below the other along K; C as with K-major operands."""
    c = config
    a, b = (
        cute.tile_to_shape(mirrored_atom(dtype, rows), (rows, c.tile_k, c.stages), order=(1, 0, 2))
        for rows in (c.tile_m, c.tile_n)
    )
    return k_major_layouts(dtype, config)._replace(a=a, b=b)


def mn_major_wgmma(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """64 rows of A times 16 x `columns` of B, both from shared memory, M- and N-major; float32 accumulators."""
    smem, mn = warpgroup.OperandSource.SMEM, OperandMajorMode.MN
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, mn, mn)


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The wgmmas of the two warpgroups that share a tile, one above the other."""
    return cute.make_tiled_mma(mn_major_wgmma(dtype, config.tile_n), (config.warpgroups, 1, 1))


# %% [markdown]
# ## The tile scheduler
#
# Every group has the same tiles of C, so the number of a work tile says its group by a division: there is nothing to
# search. `offs` then says which tokens are multiplied. An **empty group** has its work tiles too, with k-tiles of
# zeros: its gradient is zero, and must be written.
#
# **Bad ends do no harm.** A group begins where the one before it ends. Both ends are clamped to 0 ... K, and a group is
# empty if its end is not greater than its start. (On the page before, a group begins at the largest end so far. Here,
# where ends decrease, two groups may share tokens.) Whatever `offs` holds, no memory outside of A and B is read, and
# all of C is written.
#
# **Long and short work tiles.** Cluster *c* computes cluster tiles *c*, *c* + `step`, *c* + 2 `step` and so on. So each
# cluster gets about as many of a group's tiles as the others. The host knows the number of tiles and not their lengths:
# it launches the fewest clusters that need no more rounds than a full GPU. Whether that is best for groups of very
# different sizes is not measured.


# %%
class Scheduler(NamedTuple):
    """Values common to all work tiles."""

    offs: cute.Tensor  # Int32, by group: the end of its tokens
    k: cutlass.Int32  # tokens
    down: cutlass.Int32  # tiles of C from top to bottom
    across: cutlass.Int32  # cluster tiles from left to right
    tiles: cutlass.Int32  # cluster tiles of all groups
    first: cutlass.Int32  # number of its cluster's first cluster tile
    step: cutlass.Int32  # from one to the next: the clusters of the grid
    rank: cutlass.Int32  # of the CTA in its cluster


class WorkTile(NamedTuple):
    """Where a CTA's tile lies, and which tokens it multiplies."""

    group: cutlass.Int32
    row: cutlass.Int32  # in tiles, of C
    column: cutlass.Int32
    start: cutlass.Int32  # the first token of its group
    end: cutlass.Int32  # one past its last token
    k_tiles: cutlass.Int32


# %% [markdown]
# A work tile is found from its number, and its tokens from two ends.


# %%
@cute.jit
def end_of(group: cutlass.Int32, scheduler: Scheduler):
    """The end of a group's tokens, in 0 to K; 0 before the first group."""
    end = cutlass.Int32(0)
    if group >= 0:
        end = cutlass.max(0, cutlass.min(scheduler.offs[group], scheduler.k))
    return end


@cute.jit
def work_tile(number: cutlass.Int32, scheduler: Scheduler, config: cutlass.Constexpr):
    """This CTA's tile of a cluster tile: down a band of `swizzle_size` tiles of its group first, then across."""
    size, down, across = config.swizzle_size, scheduler.down, scheduler.across
    number = cutlass.min(number, scheduler.tiles - 1)  # past the last one: not used
    group, number = number // (down * across), number % (down * across)
    band, inside = number // (size * across), number % (size * across)
    height = cutlass.min(down - band * size, size)  # the last band may be lower
    row, column = band * size + inside % height, inside // height * config.cluster + scheduler.rank
    start = end_of(group - 1, scheduler)
    end = cutlass.max(start, end_of(group, scheduler))
    k_tiles = cutlass.max((end - start + config.tile_k - 1) // config.tile_k, config.min_k_tiles)
    return WorkTile(group, row, column, start, end, k_tiles)


# %% [markdown]
# ## The producer: a window that begins with the group
#
# TMA fills with zeros what lies outside of a tensor, in any of its modes, and coordinates may be negative. The page
# before gives C one mode more, so that a store can end at any row. Here **both operands** have it, so that a load can
# begin at any token: (M, TOKEN, START) and (N, TOKEN, START). Modes TOKEN and START have the same stride, one token.
# Coordinates (m, r, s) mean token `s + r`, and the tensor begins at `r = 0`.
#
# So the k-tiles of a group end where the group does, and what is missing to whole k-tiles lies *before* its first
# token. A sum takes zeros first as well as last. `at` is the first place of a k-tile, counted from the group's `start`:
# it is negative where a k-tile begins with zeros.
#
# * A k-tile whose tokens are all of its group: `r = 0`, `s = start + at`.
# * A k-tile that begins before the group: `r = at`, `s = start`. Its places before `r = 0` are zeros.
# * A k-tile wholly before the group (a short group is filled up to `min_k_tiles`): `r = -tile_k`, zeros alone.
#
# An example with `tile_k` = 4: a group of 7 tokens begins at token 0 and has two k-tiles. The first one is at -1. Its
# coordinates are r = -1, s = 0: place 0 of the stage is zero, places 1 to 3 get tokens 0 to 2. The second one is at 3:
# r = 0, s = 3, tokens 3 to 6.
#
# So before a group both A and B are zero, and what other groups hold is never loaded. No thread looks at the tile, and
# no tensor map is edited. TMA counts the bytes of zeros as it counts others, so the barriers need not know.
#
# TMA's strides are multiples of 16 bytes. So this needs operands that are contiguous along M and N: with K-major ones a
# token would be 2 bytes from the next. And a window that *ends* with its group, zeros last, needs a tensor that begins
# before the matrix. A kernel with such windows failed on an H100 with illegal accesses, though no coordinate meant what
# lies there. Where the operands lay inside of larger allocations, it was right.


# %%
@cute.jit
def windows(
    pX: cute.Pointer,
    rows: cutlass.Int32,
    k: cutlass.Int32,
    token_stride: cutlass.Int64,
    config: cutlass.Constexpr,
):
    """An operand (rows, K), contiguous along its rows, as a tensor (ROW, TOKEN, START): see above."""
    return cute.make_tensor(pX, cute.make_layout((rows, config.tile_k, k), stride=(1, token_stride, token_stride)))


@cute.jit
def copy_window(
    operand: Source,
    at: tuple,
    stage: cutlass.Int32,
    barrier: cute.Pointer,
    part: cutlass.Int32,
    sharers: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Load the `part` of a k-tile that this CTA loads for `sharers` CTAs, from coordinates `at` on."""
    tile = cute.size(operand.sX, mode=[0]), config.tile_k
    # START is a coordinate, and no mode of the tile: (TILE, TILE_K) of the window that `at` names
    gX = cute.local_tile(cute.domain_offset(at, operand.mX), tile, (0, 0, 0))
    everyone = cutlass.Int16((1 << sharers) - 1)
    load = partition_load(operand.atom, gX, operand.sX, part, sharers, everyone)  # (TMA), (TMA, STAGE)
    cute.copy(load.atom, load.gX, load.sX[None, stage], tma_bar_ptr=barrier, **load.multicast)


# %% [markdown]
# A stage gets the same window of both operands. CTAs side by side share A's.


# %%
@cute.jit
def load_tile(
    pipe: pipeline.PipelineTmaAsync,
    operands: tuple[Source, Source],  # A and B
    state: pipeline.PipelineState,
    tile: WorkTile,
    rank: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of a work tile, a stage each. Returns the pipeline state."""
    (a, b), row, column = operands, tile.row * config.tile_m, tile.column * config.tile_n
    first = tile.end - tile.start - tile.k_tiles * config.tile_k  # the k-tiles begin before the group, or with it
    for i in cutlass.range(tile.k_tiles, unroll=1):
        at = first + i * config.tile_k  # if negative, the first -at places of the k-tile are zeros
        zeros, start = cutlass.max(cutlass.min(at, 0), -config.tile_k), tile.start + cutlass.max(at, 0)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        copy_window(a, (row, zeros, start), state.index, barrier, rank, config.cluster, config)
        copy_window(b, (column, zeros, start), state.index, barrier, cutlass.Int32(0), 1, config)
        state.advance()
    return state


@cute.jit
def produce(
    pipe: pipeline.PipelineTmaAsync,
    operands: tuple[Source, Source],
    scheduler: Scheduler,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of all work tiles of this CTA."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for number in cutlass.range(scheduler.first, scheduler.tiles, scheduler.step, unroll=1):
        tile = work_tile(number, scheduler, config)
        state = load_tile(pipe, operands, state, tile, scheduler.rank, config)
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown] tags=["lab"]
# For each k-tile of the picture above: the coordinates from which it is loaded, and what TMA writes into its four
# places.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table, table

LENGTH, lines = 4, []
for group, at, start in found:
    zeros_first, begin = min(at - start, 0), max(at, start)
    loaded = [f"{begin + zeros_first + i}" if zeros_first + i >= 0 else "zeros" for i in range(LENGTH)]
    lines.append([f"{group}", f"{start}", f"{at - start}", f"r = {zeros_first}, s = {begin}", ", ".join(loaded)])
Markdown(table(["group", "start", "at", "coordinates", "tokens in the stage"], lines))

# %% [markdown]
# ## The main loop
#
# As on the page before: one commit group of wgmmas for each k-tile, and all subtiles of a tile are stored during the
# k-tiles of the next one. Each group has whole tiles of C, so a subtile is stored where it lies: TMA clips it at the
# edge of C alone. Only the number of k-tiles is now the work tile's own.


# %%
@cute.jit
def store_subtile(epi: Epilogue, i: cutlass.Constexpr, rC: cute.Tensor, tile: WorkTile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile. rC: a thread's rounded values, (MMA, 1, 1)."""
    storing, buffer = write_subtile(epi, i, rC, config)
    if storing:
        across = config.tile_n // config.epi_n
        row = tile.row * config.tile_m + (i // across * 2 + epi.warpgroup) * 64
        column = tile.column * config.tile_n + i % across * config.epi_n
        store_window(epi, (row, column, tile.group), buffer, config)


# %% [markdown]
# A consumer counts k-tiles through all of its work tiles: `k_index`, from which stage and phase follow. It finds the
# next work tile while the first commit group of this one runs.


# %%
@cute.jit
def compute(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """Compute this warpgroup's half of all work tiles."""
    rC = cute.make_rmem_tensor(config.subtiles * config.epi_n // 2, epi.sC.element_type)  # rounded
    zero = cutlass.Int32(0)
    # before: the tile whose results are in rC, a dummy at first. k_index: k-tiles multiplied so far, of all tiles.
    tile, before, k_index = work_tile(scheduler.first, scheduler, config), WorkTile(*(zero,) * 6), zero
    for number in cutlass.range(scheduler.first, scheduler.tiles, scheduler.step, unroll=1):
        # read: the next stage to multiply. release: the oldest one that is not yet given back.
        read, release = state_at(k_index, config), state_at(k_index, config)
        read = first_k_tile(main, read)
        following = work_tile(number + scheduler.step, scheduler, config)  # while the first commit group runs
        for j in cutlass.range_constexpr(config.subtiles):
            if k_index > 0:  # the first tile has none before it
                store_subtile(epi, j, subtile_of(rC, j, config), before, config)
            if cutlass.const_expr(j + 1 < config.subtiles):
                read, release = next_k_tile(main, read, release)
        for _ in cutlass.range(config.min_k_tiles, tile.k_tiles, unroll=1):  # the loop above has done min_k_tiles
            read, release = next_k_tile(main, read, release)
        last_k_tile(main, release)
        for j in cutlass.range_constexpr(config.subtiles):  # round, which frees the accumulators for the next tile
            subtile_of(rC, j, config).store(subtile_of(main.acc, j, config).load().to(rC.element_type))
        before, tile, k_index = tile, following, k_index + tile.k_tiles
    if k_index > 0:  # the last tile has no main loop after it
        for j in cutlass.range_constexpr(config.subtiles):
            store_subtile(epi, j, subtile_of(rC, j, config), before, config)


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume. All of them read `offs`, which the previous kernel may have written. So
# each waits for that kernel (PDL, `griddepcontrol.wait`) before its first work tile.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, TOKEN, START), see `windows`
    b: TmaTensor,  # (N, TOKEN, START)
    c: TmaTensor,  # (M, N, GROUP)
    offs: cute.Tensor,  # Int32, by group
    k: cutlass.Int32,  # tokens
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/grouped_wgrad_gemm:

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
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, dtype, config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    m, n, groups = (cute.size(c.coords, mode=[mode]) for mode in range(3))
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.tile_n * config.cluster)
    scheduler = Scheduler(offs, k, down, across, groups * down * across, first, step, rank)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            operands = Source(a.atom, a.coords, cta.sA), Source(b.atom, b.coords, cta.sB)
            produce(cta.pipe, operands, scheduler, config)
    else:
        consume(cta, op, c, scheduler, r2s_c, group, tidx % 128, config)


# %% [markdown]
# A consumer warpgroup takes its part of each work tile, in the group that the scheduler names:


# %%
@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    scheduler: Scheduler,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. c: (M, N, GROUP); thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    fewest = cutlass.Int32(config.min_k_tiles)  # k-tiles: how many more a work tile has, it says itself
    main = make_mainloop(cta, op, group * 128, fewest, config)  # the slice of its first thread: the same for all
    epi = make_epilogue(cta.sC, c, r2s_c, group, thread, config)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still write offs, or use what is stored here
    compute(main, epi, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The launch
#
# Both operands become windows. The tensor maps know the matrices alone: what a group is, the kernel reads from `offs`.


# %%
class Sizes(NamedTuple):
    """The arguments of a launch beside the addresses of its tensors."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of a token in A and B, of a row of C
    group_stride: cutlass.Int64  # elements from one group's C to the next's
    groups: cutlass.Int32
    clusters: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    offs_k: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (GROUP, M, N): for each group A (M, K) times B (N, K) transposed, summed over its own tokens."""
    (m, n, k), strides, group_stride, groups, clusters = sizes
    dtype, ctas = pA.dtype, config.cluster
    lda, ldb, ldc, group_stride = (cute.assume(stride, divby=8) for stride in (*strides, group_stride))
    mA, mB = windows(pA, m, k, lda, config), windows(pB, n, k, ldb, config)
    mC = cute.make_tensor(pC, cute.make_layout((m, n, groups), stride=(ldc, 1, group_stride)))
    layouts, r2s_c = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), 1)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    offs, op = cute.make_tensor(offs_k, cute.make_layout(groups)), mn_major_wgmma(dtype, config.tile_n)
    launcher = kernel(a, b, c, offs, k, layouts, r2s_c, op, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def clusters(config: Config, m: int, n: int, groups: int, sms: int) -> int:
    """Return how many clusters are launched: the fewest that take no more rounds than a full GPU."""
    tiles = groups * -(-m // config.tile_m) * -(-n // (config.tile_n * config.cluster))
    rounds = -(-tiles // (sms // config.cluster))
    return -(-tiles // rounds)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (cutlass.Int32, 4)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`
#
# `GroupedGemm`, which recipes share, checks types, shapes, strides and devices, once for each kind of call, and keeps
# what it compiled. It never reads `offs`. `operands` has all of them; `for_each`: each group has a C. `major_of` says
# which index of an operand is contiguous. `whole`: rows of A and B are whole 16-byte chunks. `padded`: rows of C begin
# and end at multiples of 16 bytes, as a TMA store needs.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (group_stride,), groups, (m, n, _) = call.known["out"], call.known["GROUPS"], call.mnk
    count = clusters(CONFIG, m, n, groups, call.sms)
    return (CONFIG,), (Sizes(call.mnk, call.strides, group_stride, groups, count),)


OFFS = Argument("offs", "GROUPS", (torch.int32,), adjacent)
ALONG_K = {"operands": (Matrix("a", "M K", empty=True), Matrix("b", "K N", empty=True), OFFS), "for_each": True}
GEMM = GroupedGemm(compile_for, prepare, ((9, 0),), "wgmma", major_of=mn_major, whole=True, padded=True, **ALONG_K)


def matmul(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """A product for each group of columns of `a` and rows of `b`, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, M-major (stride 1 along M): usually `grad.T` of a contiguous (K, M).
    b: (K, N), the same dtype, N-major (stride 1 along N): usually the contiguous activations. With K = 0 nothing is
        launched: `out` is set to 0.
    offs: (GROUPS,), int32, on the same device: where each group ends in K. A group begins where the one before it ends,
        and is empty if its own end is not greater; ends below 0 count as 0, ends above K as K. Warps read them
        while the kernel runs, so nothing may write them before it has ended.
    out: (GROUPS, M, N), the same dtype, stride 1 along N, no memory of the others. Made if not given. All of it is
        written: zeros for an empty group.

    Arguments are those of `torch.nn.functional.grouped_mm` with two matrices. Addresses, and strides other than 1, are
    multiples of 16 bytes (offs: 4), as TMA needs them; M and N are multiples of 8, and K is any. What lies outside of a
    group changes nothing in its product, infinities and NaN included. Nothing waits for the GPU, and a CUDA graph may
    be replayed with other ends. Needs compute capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, offs, out=out)


# %% [markdown] tags=["lab"]
# ## Check
#
# The checks give the kernel four groups of each problem's K: one of them is empty, by an end out of order, and the last
# tokens are of no group. On a GPU the tokens around a group are NaN, and its product must be as exact as ever. Edit a
# cell, run it, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/grouped_wgrad_gemm", shapes=[(200, 328, 77)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# All peers in one run: 8 groups, equal ones where 8 divides K, else skewed, each about 3/4 as large as the one before.
# `torch.matmul` group by group must be told the sizes on the host.

# %% tags=["lab", "open"]
lab.compare("hopper/grouped_wgrad_gemm", matmul, (4096, 4096, 16384))

# %% tags=["lab"]
Markdown(results_table("hopper/grouped_wgrad_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Groups along K need less than groups of rows: no search, and no window for the stores: each group has whole tiles of
# C. What they need is loads that begin with the group, in both operands. A tensor map with one more mode has a start at
# every token.
#
# Next: groups of rows again, [with 8-bit operands](fp8_grouped_gemm.ipynb).
