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
#   added to the wrong gradient. To zero them in A alone is not enough: 0 times infinity is not a number, so an overflow
#   in one expert would spread to another.
# * **Work tiles differ in length.** How many k-tiles a work tile has, only the GPU knows.
#
# The wgmmas, the epilogue and PDL are those of the page before. There is one tile size, no GPC-aware remapping, and
# every work tile goes forwards through K.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import (
    MATRICES,
    Argument,
    Call,
    Gemm,
    adjacent,
    check_epilogue,
    compile_host,
    mn_major,
    require,
)
from cookbook.recipe.moved import SmemAllocator


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, how it is scheduled, and how its operands lie."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 64  # tokens of a k-tile; four wgmma k-blocks of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_m: int = 1
    cluster_n: int = 2  # CTAs side by side: they share the tiles of A
    swizzle_size: int = 16  # tiles down C that need the same columns of B, before the rasterization moves across
    epi_n: int = 64  # columns of an epilogue subtile, 128 bytes; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240
    a_major: str = "m"  # the index along which A is contiguous: for the checks, the kernel has these majors alone
    b_major: str = "n"

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def subtiles(self) -> int:
        """Epilogue subtiles of a tile that one warpgroup stores, all during the next tile's main loop."""
        return self.tile_m // 128 * (self.tile_n // self.epi_n)

    @property
    def min_k_tiles(self) -> int:
        """K-tiles at least: one for each subtile of the tile before, stored meanwhile. Some may be zeros."""
        return self.subtiles

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        # The barriers, padded to the tiles' alignment, the stages, and the epilogue's buffers of two warpgroups.
        return 1024 + self.stages * self.stage_bytes + 2 * self.epi_stages * 64 * self.epi_n * 2


CONFIG = Config()


def config_for(arch: str) -> Config:
    """The configuration for an architecture: there is one Hopper."""
    return CONFIG


# %% [markdown]
# ## The layouts and the MMA
#
# M-major tiles of A, N-major tiles of B: each 128-byte line of shared memory holds 64 elements of one token. The atoms
# are stacked along K first, so one box of TMA is 64 elements wide and 64 tokens high.


# %% tags=["folded"]
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
    """The atoms, tiled to the size of the tiles: A and B first along K, then along M and N, then over the stages."""
    c = config
    a, b = (smem_atom(dtype, rows, along=0) for rows in (c.tile_m, c.tile_n))
    return SmemLayouts(
        a=cute.tile_to_shape(a, (c.tile_m, c.tile_k, c.stages), order=(1, 0, 2)),
        b=cute.tile_to_shape(b, (c.tile_n, c.tile_k, c.stages), order=(1, 0, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
    )


def wgmma(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """64 rows of A times 16 x `columns` of B, both from shared memory, M- and N-major; float32 accumulators."""
    smem, mn_major = warpgroup.OperandSource.SMEM, OperandMajorMode.MN
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, mn_major, mn_major)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the two warpgroups that share a tile, one above the other."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (2, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The copy of the epilogue: a subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, subtile))


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
    """What all work tiles have in common."""

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


@cute.jit
def end_of(group, scheduler: Scheduler):
    """The end of a group's tokens, in 0 to K; 0 before the first group."""
    end = cutlass.Int32(0)
    if group >= 0:
        end = cutlass.max(0, cutlass.min(scheduler.offs[group], scheduler.k))
    return end


@cute.jit
def work_tile(number, scheduler: Scheduler, config: cutlass.Constexpr):
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
# token. A sum does not ask for order: zeros first, then tokens. Say the first token of a k-tile were `at` places after
# the group's `start`; it is negative where a k-tile begins with zeros.
#
# * A k-tile whose tokens are all of its group: `r = 0`, `s = start + at`.
# * A k-tile that begins before the group: `r = at`, `s = start`. Its places before `r = 0` are zeros.
# * A k-tile wholly before the group, for short groups have `min_k_tiles`: `r = -tile_k`, zeros alone.
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
# before the matrix. A kernel with such windows failed on an H100 with illegal accesses, though no coordinate meant
# what lies there, and though it was right wherever the operands lay inside of larger allocations.


# %%
class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates


@cute.jit
def windows(pX, rows, k, token_stride, config: cutlass.Constexpr):
    """An operand (rows, K), contiguous along its rows, as a tensor (ROW, TOKEN, START): see above."""
    return cute.make_tensor(pX, cute.make_layout((rows, config.tile_k, k), stride=(1, token_stride, token_stride)))


class Load(NamedTuple):
    """One operand as the producer sees it."""

    atom: cute.CopyAtom
    mX: cute.Tensor  # TMA coordinates (ROW, TOKEN, START), see `windows`
    sX: cute.Tensor  # (TILE, TILE_K, STAGE)


@cute.jit
def copy_window(load: Load, at, stage, barrier, shared: tuple, config: cutlass.Constexpr):
    """Load a k-tile from coordinates `at` on. shared: which part this CTA loads, and how many CTAs get the tile."""
    part, sharers = shared
    tile = cute.size(load.sX, mode=[0]), config.tile_k
    # START is a coordinate, and no mode of the tile: (TILE, TILE_K) of the window that `at` names
    gX = cute.local_tile(cute.domain_offset(at, load.mX), tile, (0, 0, 0))
    sX, gX = cute.group_modes(load.sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(load.atom, part, cute.make_layout(sharers), sX, gX)  # (TMA, STAGE), (TMA)
    everyone = {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {}
    cute.copy(load.atom, tXgX, tXsX[None, stage], tma_bar_ptr=barrier, **everyone)


@cute.jit
def produce(pipe, a: Load, b: Load, scheduler: Scheduler, config: cutlass.Constexpr):
    """Load the k-tiles of all work tiles of this CTA, a stage each."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for number in cutlass.range(scheduler.first, scheduler.tiles, scheduler.step, unroll=1):
        tile = work_tile(number, scheduler, config)
        row, column = tile.row * config.tile_m, tile.column * config.tile_n
        first = (
            tile.end - tile.start - tile.k_tiles * config.tile_k
        )  # where k-tiles begin: before the group, or with it
        for i in cutlass.range(tile.k_tiles, unroll=1):
            at = first + i * config.tile_k  # if negative, the first -at places of the k-tile are zeros
            zeros, start = cutlass.max(cutlass.min(at, 0), -config.tile_k), tile.start + cutlass.max(at, 0)
            pipe.producer_acquire(state)
            barrier = pipe.producer_get_barrier(state)
            copy_window(a, (row, zeros, start), state.index, barrier, (scheduler.rank, config.cluster), config)
            copy_window(b, (column, zeros, start), state.index, barrier, (0, 1), config)
            state.advance()
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown] tags=["lab"]
# The k-tiles of the picture above: the coordinates that it is loaded from, and what TMA writes into
# its four places.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import results_table, table

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
# k-tiles of the next one. Only the number of k-tiles is now the work tile's own.


# %%
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    sC: cute.Tensor  # its own epilogue buffers, (EPI_M, EPI_N, EPI_STAGE)
    mC: cute.Tensor  # TMA coordinates, (M, N, GROUP)
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
        row = tile.row * config.tile_m + (i // across * 2 + me.warpgroup) * 64
        column = tile.column * config.tile_n + i % across * config.epi_n
        gC = cute.local_tile(cute.domain_offset((row, column, tile.group), me.mC), (64, config.epi_n), (0, 0, 0))
        bSsC, bSgC = cpasync.tma_partition(
            me.tma_c, 0, cute.make_layout(1), cute.group_modes(me.sC, 0, 2), cute.group_modes(gC, 0, 2)
        )
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(me.tma_c, bSsC[None, buffer], bSgC)
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def compute(me: Consumer, scheduler: Scheduler, config: cutlass.Constexpr):
    """This warpgroup's half of all work tiles."""
    rC = cute.make_rmem_tensor(config.subtiles * config.epi_n // 2, me.sC.element_type)  # rounded
    zero = cutlass.Int32(0)
    # before: the tile whose results are in rC, a dummy at first. k_tile: k-tiles multiplied so far, of all tiles.
    tile, before, k_tile = work_tile(scheduler.first, scheduler, config), WorkTile(*(zero,) * 6), zero
    for number in cutlass.range(scheduler.first, scheduler.tiles, scheduler.step, unroll=1):
        stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
        # read: the next stage to multiply. release: the oldest one that is not yet given back.
        read, release = (pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))
        me.pipe.consumer_wait(read)
        issue_wgmmas(me, read.index, True)  # overwrites the accumulators of the tile before
        read.advance()
        following = work_tile(number + scheduler.step, scheduler, config)  # while the first commit group runs
        for j in cutlass.range_constexpr(config.subtiles):
            if k_tile > 0:  # the first tile has none before it
                store_subtile(me, j, subtile_of(rC, j, config), before, config)
            if cutlass.const_expr(j + 1 < config.subtiles):
                read, release = next_k_tile(me, read, release)
        for _ in cutlass.range(config.min_k_tiles, tile.k_tiles, unroll=1):  # the loop above has done min_k_tiles
            read, release = next_k_tile(me, read, release)
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        for j in cutlass.range_constexpr(config.subtiles):  # round, which frees the accumulators for the next tile
            subtile_of(rC, j, config).store(subtile_of(me.acc, j, config).load().to(rC.element_type))
        before, tile, k_tile = tile, following, k_tile + tile.k_tiles
    if k_tile > 0:  # the last tile has no main loop after it
        for j in cutlass.range_constexpr(config.subtiles):
            store_subtile(me, j, subtile_of(rC, j, config), before, config)


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
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile, `step` being the number of clusters."""
    first, step = cute.arch.block_idx()[0] // config.cluster, cute.arch.grid_dim()[0] // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    role = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    pipe, (sA, sB, sC), rank = set_up(dtype, config)
    m, n, groups = (cute.size(c.coords, mode=[mode]) for mode in range(3))
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.tile_n * config.cluster)
    scheduler = Scheduler(offs, k, down, across, groups * down * across, first, step, rank)
    if role == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            produce(pipe, Load(a.atom, a.coords, sA), Load(b.atom, b.coords, sB), scheduler, config)
    else:
        consume(pipe, (sA, sB, sC), c, scheduler, (role, tidx % 128), config)


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """What the warps of a CTA share: its pipeline, the tensors sA, sB, sC, and its rank in the cluster."""
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6. It matches the layout if a tile begins at a multiple of 1024.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbours.
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8 * config.cluster),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
    cute.arch.cluster_wait()
    return pipe, (sA, sB, sC), cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


@cute.jit
def consume(pipe, smem, out: TmaTensor, scheduler, who, config: cutlass.Constexpr):
    """A consumer warpgroup's part of all work tiles. who: the warpgroup (0 or 1), and the thread in it."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    (sA, sB, sC), (number, thread) = smem, who
    dtype = sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(number * 128)  # of its first thread: the same for all
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    # the buffers of this warpgroup, (EPI_M, EPI_N, EPI_STAGE)
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, number]
    multiplied = pipe, overwrite, accumulate, tCrA, tCrB, acc
    me = Consumer(*multiplied, sC, out.coords, tiled_copies(dtype, config).r2s_c, out.atom, number, thread)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still write offs, or use what is stored here
    compute(me, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The launch


# %%
class Sizes(NamedTuple):
    """What a launch is told beside the addresses of its tensors."""

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
    config: cutlass.Constexpr,
):
    """C (GROUP, M, N): for each group A (M, K) times B (N, K) transposed, summed over its own tokens."""
    (m, n, k), strides, group_stride, groups, clusters = sizes
    dtype, ctas = pA.dtype, config.cluster
    lda, ldb, ldc, group_stride = (cute.assume(stride, divby=8) for stride in (*strides, group_stride))
    mA, mB = windows(pA, m, k, lda, config), windows(pB, n, k, ldb, config)
    mC = cute.make_tensor(pC, cute.make_layout((m, n, groups), stride=(ldc, 1, group_stride)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), 1)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    launcher = kernel(a, b, c, cute.make_tensor(offs_k, cute.make_layout(groups)), k, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def clusters(config: Config, m: int, n: int, groups: int, sms: int) -> int:
    """How many clusters are launched: the fewest that take no more rounds than a full GPU."""
    tiles = groups * -(-m // config.tile_m) * -(-n // (config.tile_n * config.cluster))
    rounds = -(-tiles // (sms // config.cluster))
    return -(-tiles // rounds)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (cutlass.Int32, 4)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`
#
# `Gemm`, which all recipes share, checks types, shapes, strides and devices, once for each kind of call, and keeps what
# it compiled. It never reads `offs`. `operands` has those behind a and b too, `c` is the shape of C. `major_of` says
# which index of an operand is contiguous. `whole`: rows of A and B are whole 16-byte chunks. `padded`: rows of C begin
# and end at multiples of 16 bytes, as a TMA store needs.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (group_stride,), groups, (m, n, _) = call.numbers("out"), dict(call.extents)["GROUPS"], call.mnk
    count = clusters(CONFIG, m, n, groups, call.sms)
    return (CONFIG,), (Sizes(call.mnk, call.strides, group_stride, groups, count),)


OFFS = Argument("offs", "GROUPS", (torch.int32,), adjacent)
ALONG_K = {"operands": (*MATRICES, OFFS), "c": "GROUPS M N", "no_padding": True, "empty": True}
GEMM = Gemm(compile_for, prepare, ((9, 0),), "wgmma", major_of=mn_major, whole=True, padded=True, **ALONG_K)


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
# First the `matmul` of the cells above, next to `torch._grouped_mm`: run and timed where there is a GPU for it, else as
# recorded. Then all peers in one run: 8 groups, equal ones where 8 divides K, else skewed, each about 3/4 as large as
# the one before. `torch.matmul` group by group must be told the sizes on the host.

# %% tags=["lab", "open"]
lab.compare("hopper/grouped_wgrad_gemm", matmul, (4096, 4096, 16384))

# %% tags=["lab"]
Markdown(results_table("hopper/grouped_wgrad_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Groups along K need less than groups of rows: no search, and stores that need no window, for each group has whole
# tiles of C. What they need is loads that begin with the group, in both operands. A tensor map with one more mode has a
# start at every token.
#
# Next: groups of rows again, [with 8-bit operands](fp8_grouped_gemm.ipynb).
#
# To use it: `cookbook copy hopper/grouped_wgrad_gemm my_gemm.py`, then `from my_gemm import matmul`.
