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
#       Two schedules, three tiles, and one rule of two terms, clocks and bytes, that chooses among them for the sizes
#       it is given.
#     track: hopper
#     order: 90
#     builds_on: hopper/pingpong_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix, while the next tile is multiplied -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D.MULTICAST, HGMMA, STSM.16.M88.4, UTMASTG.2D, USETMAXREG, SYNCS]
# ---

# %% [markdown]
# # The GEMM to use
#
# **Claim.** What the pages before this one have found, in one `matmul`: TMA with multicast, clusters of two, persistent
# CTAs, warpgroups that take turns, and PDL (programmatic dependent launch: a kernel gets ready while the one before it
# ends). Operands are K-major, as in [pingpong](pingpong_gemm.ipynb), whose kernel this one is nearest to. Three things
# are new.
#
# * **The cooperative schedule stores late.** Two warpgroups that share a tile of 128 x 256 need the fewest bytes for
#   each multiplication, but they both stop multiplying to store. Here they do not: they round the tile, keep it in
#   registers, and store it *while the next tile is multiplied*.
# * **K goes back and forth.** Every other tile of a CTA walks K from its end: what was read last should still be in L2.
#   That is the *serpentine* of [the persistent GEMM](persistent_gemm.ipynb), now in every variant.
# * **A rule chooses.** Which tile and which schedule is best depends on M, N and K. `cost` is the rule: how many clocks
#   the tensor cores need, and how many bytes they must be fed. `matmul` takes the cheapest of `VARIANTS`.

# %%
from collections.abc import Callable
from dataclasses import dataclass
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
# | variant | a warpgroup holds | elements a CTA loads for 1000 products |
# |---|---|---|
# | `128x256` | half of 128 x 256, and the half before it, rounded | 1000 (1 / 256 + 1 / 2 / 128) = 7.8 |
# | `128x192 in turn` | 128 x 192 | 9.1 |
# | `128x128 in turn` | 128 x 128 | 11.7 |
#
# The half under 2 is the cluster's: of two CTAs one above the other each loads half of the tile of B that both use.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_m: int = 2  # CTAs one above the other that share the tiles of B
    pingpong: bool = False  # a warpgroup has a tile of its own; False: both share one, and store it late
    raster_group: int = 8  # clusters that run together cover this many rows of cluster tiles
    epi_n: int = 64  # columns of C that go out together: 128 bytes
    epi_buffers: int = 2  # for each warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # a thread; the three warpgroups together may have 65536
    consumer_registers: int = 240

    @property
    def warpgroups(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.pingpong else 2

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def boxes(self) -> int:
        """Boxes of C that one warpgroup stores of a tile."""
        return self.tile_m // 64 * (self.tile_n // self.epi_n) // self.warpgroups

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        c = 2 * self.epi_buffers * 64 * self.epi_n * 2
        return 1024 + self.stages * self.stage_bytes + c  # 1024: the barriers, padded to the tiles' alignment


VARIANTS = {
    "128x256": Config(),
    "128x192 in turn": Config(tile_n=192, pingpong=True),
    "128x128 in turn": Config(tile_n=128, stages=6, pingpong=True),
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
# that cooperate need some clocks more between two tiles, to round (`ROUND`: from counted clocks at short K). When the
# last tile is over there is a store that hides behind nothing.
#
# That would be all, were it not for **power**. A Hopper at work on a large product is at its power limit and lowers
# its clock, so that energy is time, and bringing operands to the tensor cores takes energy: from memory, through L2,
# across the chip, into shared memory. `LOAD` puts a figure on it: an element that is loaded costs as much as so many
# multiply-adds. Without it the rule would hardly ever choose the widest tile: smaller ones fit the waves better and
# need not round, and that they load more for each product would count for nothing.
#
# **Where `LOAD` comes from.** It is fitted, and two times are enough to fit it. Take one product so large that power
# decides, 8192 x 8192 x 8192, and two variants *p* and *q* timed in turns in one process. Call their times *T*, their
# clocks by the paragraph on waves *C*, and what they load for one product *l* (`loaded` in the code below). The rule
# says that T is proportional to C (1 + LOAD l). So with r = (T_p / C_p) / (T_q / C_q), the part of the ratio that the
# waves do not explain,
#
#     LOAD  =  (r - 1) / (l_p - r l_q).
#
# The l of two variants differ by little, so a percent of error in one of the times moves LOAD by several: take the
# variants that differ the most, `128x256` and `128x128 in turn`, and the medians of many rounds. And it is a figure of
# *one chip*, an H200 at its power limit, multiplying normal numbers: another card, another limit or a warmer room has
# another. The lab below shows how well the rule does with it.


# %%
LOAD = 14  # multiply-adds that loading one element costs
ROUND = 800  # clocks from the last wgmma of a tile to the first of the next, where both warpgroups round it


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """What C (m, n) over k costs on `sms` SMs: clocks, each made dearer by what must be loaded meanwhile."""
    tiles = -(-m // (config.tile_m * config.cluster_m)) * -(-n // config.tile_n)
    waves = -(-tiles // (sms // config.cluster_m))
    tile = config.tile_m * config.tile_n
    multiply = tile * -(-k // config.tile_k) * config.tile_k / 2048
    clocks = waves * (multiply + (0 if config.pingpong else ROUND)) + tile / 16
    loaded = (config.tile_m + config.tile_n / config.cluster_m) / tile  # elements for one product
    return clocks * (1 + LOAD * loaded)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## The layouts and the MMA
#
# As in the pages before: K-major tiles in 128-byte rows, and C in boxes of 64 x 64, two for each warpgroup, beside A
# and B instead of over them, for the next tile is loaded while this one is stored.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, BUFFER): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next(bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0)
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_buffers), order=(0, 1, 2)),
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
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    box = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, box))


# %% [markdown]
# ## Turns and slots
#
# The tiles of a CTA come one after the other: its first is number `first`, the next is `step` further. The position in
# this sequence is the **turn**. K-tiles are numbered through, so turn `t` begins at **slot** `t * k_tiles` of the queue
# of stages, and a slot says where it lies and which phase to wait for: nobody carries state from turn to turn.


# %%
@cute.jit
def tile_of(turn, order, config: cutlass.Constexpr):
    """This CTA's tile (m, n) of a turn. Cluster tiles are numbered column by column in groups of `raster_group` rows.

    order: (first, step, cluster tiles down, across, the CTA's row in its cluster).
    """
    first_work, step, tiles_m, tiles_n, row_in_cluster = order
    work = first_work + turn * step
    group, inside = work // (config.raster_group * tiles_n), work % (config.raster_group * tiles_n)
    first = group * config.raster_group
    height = cutlass.min(tiles_m - first, config.raster_group)  # the last group may be lower
    return (first + inside % height) * config.cluster_m + row_in_cluster, inside // height


@cute.jit
def state_at(slot, config: cutlass.Constexpr):
    """The consumer's place in the queue at a slot: (stage, phase), with no history."""
    return pipeline.PipelineState(config.stages, slot, slot % config.stages, (slot // config.stages) & 1)


# %% [markdown]
# ## The producer
#
# One warp, as before, and in every other turn it walks K **backwards**. The CTAs of a wave read the same panels of A
# and B at the same time, and where that is more than L2 can hold, the beginning of K is gone from L2 when a wave is
# through, but the end should be there. The next wave needs many of the same rows of A. Starting at the end, it should
# find them; [the persistent GEMM](persistent_gemm.ipynb) models it. The order of summation differs from tile to tile,
# but on one GPU each tile's is always the same.


# %%
@cute.jit
def produce(pipe, state, turn, tma_a, tma_b, tAgA, tAsA, tBgB, tBsB, mask_b, config: cutlass.Constexpr):
    """Fill a stage for each k-tile of one turn: tAgA, tBgB (TMA, k) in global memory; tAsA, tBsB (TMA, STAGE)."""
    shared = {"mcast_mask": mask_b} if config.cluster_m > 1 else {}
    k_tiles = cute.size(tAgA, mode=[1])
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i + (turn & 1) * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier)
        cute.copy(tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, **shared)
        state.advance()
    return state


# %% [markdown]
# ## The consumers: one stage
#
# A batch of wgmmas for a stage, then a wait for the batch *before* it, whose stage can be given back.


# %%
@cute.jit
def multiply_stage(mma, acc, tCrA, tCrB, stage, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one batch. mma: one that overwrites `acc`, for the very first k-block, and one that
    adds to it. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    overwrite, add = mma
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements, 32 bytes, along K
        each = overwrite if first and k == 0 else add
        cute.gemm(each, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def next_stage(pipe, read, release, mma, acc, tCrA, tCrB):
    """Multiply the stage at `read`, and give back the one at `release`."""
    pipe.consumer_wait(read)
    multiply_stage(mma, acc, tCrA, tCrB, read.index)
    read.advance()
    warpgroup.wait_group(1)  # the batch before this one is done: its stage may be overwritten
    pipe.consumer_release(release)
    release.advance()
    return read, release


# %% [markdown]
# ## The consumers: one box of C
#
# A warpgroup stores its rows of a tile in boxes of 64 x 64, already rounded: `stmatrix` into a swizzled buffer, TMA
# from there. Before a buffer is written again, TMA must have *read* it. Nothing here concerns the other warpgroup: the
# barrier is of these 128 threads. TMA clips a box at the edge of the matrix.


# %%
@cute.jit
def store_box(i: cutlass.Constexpr, rC, out, tile, group, tidx, config: cutlass.Constexpr):
    """Box `i` of this warpgroup's part of a tile. rC: its rounded accumulators; out: (sC, tma_c, gC, copies) with
    sC (64, EPI_N, BUFFER) of this warpgroup, gC (M, N, m, n) as TMA coordinates; tidx: in the warpgroup."""
    sC, tma_c, gC, copies = out
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    storing = cute.arch.make_warp_uniform(tidx // 32) == 0
    thr, buffer = copies.r2s_c.get_slice(tidx), i % config.epi_buffers
    of_box = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))  # a thread's part of a box, as the MMA has it
    rBox = cute.make_tensor(rC.iterator + i * cute.size(of_box), of_box)
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in this buffer
    cute.copy(copies.r2s_c, thr.retile(rBox), thr.partition_D(sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()
    if storing:
        boxes = cute.zipped_divide(gC[None, None, tile[0], tile[1]], (64, config.epi_n))
        bSsC, bSgC = cpasync.tma_partition(tma_c, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), boxes)
        across = config.tile_n // config.epi_n
        row = i // across * config.warpgroups + (0 if config.pingpong else group)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(tma_c, bSsC[None, buffer], bSgC[None, (row, i % across)])
            cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## Cooperating, and storing late
#
# A pair that shares a tile finishes it together. If both then store, nobody multiplies; if they only *round*, 64
# registers a thread take what 128 held, and the next tile can begin at once: its first batch is issued, and while the
# tensor cores work on it the threads, which have nothing else to do, store the first box of the tile before. Then the
# second batch and the second box, and so on: a batch takes the tensor cores longer than a box takes the threads. What
# is left of the epilogue is the rounding, and the store of the very last tile.
#
# It takes 128 + 64 registers a thread and some more, and `setmaxnreg` is what makes room for them.


# %%
@cute.jit
def multiply_and_store(pipe, turn, mma, acc, rC, tCrA, tCrB, k_tiles, out, before, group, tidx, config):
    """Multiply this turn's tile into `acc`, and meanwhile store `rC`, the tile `before` it, if there was one."""
    read, release = state_at(turn * k_tiles, config), state_at(turn * k_tiles, config)
    pipe.consumer_wait(read)
    multiply_stage(mma, acc, tCrA, tCrB, read.index, True)
    read.advance()
    for i in cutlass.range_constexpr(config.boxes):
        if turn > 0:
            store_box(i, rC, out, before, group, tidx, config)
        if i + 1 < config.boxes and i + 1 < k_tiles:
            read, release = next_stage(pipe, read, release, mma, acc, tCrA, tCrB)
    for _ in cutlass.range(cutlass.min(config.boxes, k_tiles), k_tiles, unroll=1):
        read, release = next_stage(pipe, read, release, mma, acc, tCrA, tCrB)
    warpgroup.wait_group(0)
    pipe.consumer_release(release)


@cute.jit
def cooperate(pipe, turns, order, mma, acc, rC, tCrA, tCrB, k_tiles, out, group, tidx, config: cutlass.Constexpr):
    """All turns of a warpgroup that has half of every tile."""
    for turn in cutlass.range(turns, unroll=1):
        before = tile_of(cutlass.max(turn - 1, 0), order, config)
        multiply_and_store(pipe, turn, mma, acc, rC, tCrA, tCrB, k_tiles, out, before, group, tidx, config)
        rC.store(acc.load().to(rC.element_type))
    for i in cutlass.range_constexpr(config.boxes):
        store_box(i, rC, out, tile_of(turns - 1, order, config), group, tidx, config)


# %% [markdown]
# ## Taking turns
#
# The other schedule, that of [pingpong](pingpong_gemm.ipynb): a warpgroup has a tile of its own and stores it
# while the other one multiplies. It may begin only when the other has waited for all its slots: a barrier's phase is
# one bit, and cannot tell the phase it wants from the one two before it.


# %%
TURN_BARRIER = 4  # the first of two named barriers; 1 and 2 are those of the boxes, 0 is the CTA's


@cute.jit
def take_turns(pipe, turns, order, mma, acc, rC, tCrA, tCrB, k_tiles, out, group, tidx, config: cutlass.Constexpr):
    """Every other turn, all of its tile."""
    for turn in cutlass.range(group, turns, 2, unroll=1):
        read, release = state_at(turn * k_tiles, config), state_at(turn * k_tiles, config)
        if turn > 0:
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + group, num_threads=256).arrive_and_wait()
        pipe.consumer_wait(read)
        multiply_stage(mma, acc, tCrA, tCrB, read.index, True)
        read.advance()
        for _ in cutlass.range(k_tiles - 1, unroll=1):
            read, release = next_stage(pipe, read, release, mma, acc, tCrA, tCrB)
        if turn + 1 < turns:  # all is issued: the other one's turn
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + 1 - group, num_threads=256).arrive()
        warpgroup.wait_group(0)
        pipe.consumer_release(release)
        rC.store(acc.load().to(rC.element_type))
        for i in cutlass.range_constexpr(config.boxes):
            store_box(i, rC, out, tile_of(turn, order, config), group, tidx, config)


# %% [markdown]
# ## The kernel
#
# Set up, wait for the kernel before (PDL), and part: one warp produces, two warpgroups consume by one schedule or the
# other.


# %%
@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    tma_c: cute.CopyAtom,
    mC: cute.Tensor,  # (M, N), as TMA coordinates
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A cluster computes cluster tiles `first`, `first + step`, ... of C."""
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for tma in (tma_a, tma_b, tma_c):
            cpasync.prefetch_descriptor(tma)
    pipe, sA, sB, sC, row_in_cluster = set_up(smem_layouts(dtype, config), dtype, config)

    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (None, None))  # (M, K, m, k)
    gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (None, None))  # (N, K, n, k)
    gC = cute.local_tile(mC, (config.tile_m, config.tile_n), (None, None))  # (M, N, m, n)
    k_tiles = cute.size(gA, mode=[3])
    tiles_m, tiles_n = cute.ceil_div(cute.size(gA, mode=[2]), config.cluster_m), cute.size(gB, mode=[2])
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster_m, ctas // config.cluster_m
    turns = cute.ceil_div(tiles_m * tiles_n - first, step)
    order = (first, step, tiles_m, tiles_n, row_in_cluster)

    cute.arch.griddepcontrol_wait()  # the kernel before has ended: from here on global memory may be touched
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            sharing = cute.make_layout(config.cluster_m)
            alone, grouped = cute.make_layout(1), [cute.group_modes(x, 0, 2) for x in (sA, gA, sB, gB)]
            tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, grouped[0], grouped[1])
            tBsB, tBgB = cpasync.tma_partition(tma_b, row_in_cluster, sharing, grouped[2], grouped[3])
            everybody = cutlass.Int16((1 << config.cluster_m) - 1)  # a bit for each CTA of the cluster
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
            for turn in cutlass.range(turns, unroll=1):
                m, n = tile_of(turn, order, config)
                a, b = tAgA[None, m, None], tBgB[None, n, None]  # (TMA, k)
                state = produce(pipe, state, turn, tma_a, tma_b, a, tAsA, b, tBsB, everybody, config)
            cute.arch.griddepcontrol_launch_dependents()
            pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        overwrite, add = tiled_mma(dtype, config), tiled_mma(dtype, config)
        overwrite.set(warpgroup.Field.ACCUMULATE, False)
        add.set(warpgroup.Field.ACCUMULATE, True)
        thr = add.get_slice(tidx % (128 * config.warpgroups))
        acc = cute.make_rmem_tensor(thr.partition_C(gC[None, None, 0, 0]).shape, cutlass.Float32)
        rC = cute.make_rmem_tensor(acc.shape, dtype)  # a tile, rounded, until it is stored
        tCrA = add.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
        tCrB = add.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
        sC_own = cute.flat_divide(sC, (64, config.epi_n, config.epi_buffers))[None, None, None, 0, 0, group]
        out = (sC_own, tma_c, gC, tiled_copies(dtype, config))
        both = (overwrite, add)
        schedule = take_turns if config.pingpong else cooperate
        schedule(pipe, turns, order, both, acc, rC, tCrA, tCrB, k_tiles, out, group, tidx % 128, config)
        if tidx % 128 < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


@cute.jit
def set_up(layouts, dtype, config: cutlass.Constexpr):
    """Shared memory and the pipeline of a CTA: (pipe, sA, sB, sC, its row in the cluster)."""
    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    # A stage is free when every warp that reads it has said so, to all CTAs that write it: its own and its neighbours.
    arrivals = 4 * config.warpgroups * config.cluster_m
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, 1, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    row_in_cluster = 0
    if cutlass.const_expr(config.cluster_m > 1):
        cute.arch.cluster_arrive_relaxed()  # nobody signals a neighbour's barrier before it is set up
        cute.arch.cluster_wait()
        row_in_cluster = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    else:
        cute.arch.sync_threads()
    return pipe, sA, sB, sC, row_in_cluster


# %% [markdown]
# ## The launch
#
# As many clusters as keep the number of waves: 16 waves of 64 clusters take as long as 16 of 66 of which the last is
# not full, and all CTAs of them end together. `use_pdl` asks for the overlap with the kernel *before*.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    m, n, k = mnk
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    layouts, ctas = smem_layouts(dtype, config), config.cluster_m
    a_stage, b_stage, c_box = (cute.slice_(x, (None, None, 0)) for x in layouts)
    load, save = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    load_b = cpasync.CopyBulkTensorTileG2SMulticastOp() if ctas > 1 else load
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(load_b, mB, b_stage, (config.tile_n, config.tile_k), num_multicast=ctas)
    tma_c, mC = cpasync.make_tiled_tma_atom(save, mC, c_box, (64, config.epi_n))
    tiles = cute.ceil_div(cute.ceil_div(m, config.tile_m), ctas) * cute.ceil_div(n, config.tile_n)
    waves = cute.ceil_div(tiles, sms // ctas)
    kernel(tma_a, mA, tma_b, mB, tma_c, mC, dtype, config).launch(
        grid=(cute.ceil_div(tiles, waves) * ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(ctas, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=True,
    )


# %%
def launch_arguments(dtype, pointers, mnk, strides, sms: int, stream: int) -> tuple:
    """Plain addresses and integers as the typed values that `gemm` takes."""
    gmem = cute.AddressSpace.gmem
    return (
        *(cute.runtime.make_ptr(dtype, pointer, gmem, assumed_align=16) for pointer in pointers),
        tuple(cutlass.Int32(x) for x in mnk),
        tuple(cutlass.Int64(x) for x in strides),
        cutlass.Int32(sms),
        cuda.CUstream(stream),
    )


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a") with made-up pointers and sizes: no GPU is needed. "": the GPU that is here."""
    made_up = launch_arguments(dtype, (16, 16, 16), (1, 1, 8), (8, 8, 8), 132, 0)
    target = f"--gpu-arch {arch} " if arch else ""
    config = config or config_for(arch)
    return cute.compile(gemm, *made_up, dtype, config, options=(target + options).strip() or None)


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
def compiled(dtype: torch.dtype, capability: tuple[int, int], variant: str) -> Callable[..., None]:
    """The kernel for the present GPU: compiled at the first call that needs it, then kept.

    TVM-FFI (the package apache-tvm-ffi) makes it a function that takes plain integers and tuples of them, and costs
    little more to call than the launch itself. Without it each argument is a Python object made for the call.
    """
    return compile_for("", DTYPES[dtype], VARIANTS[variant], "--enable-tvm-ffi")


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
    sms: int  # of the GPU
    direct: bool  # the kernel writes C itself, not padded rows that are copied
    spans: tuple[int, int, int]  # of A, B and C: from the first byte to the last one, in bytes


PLANS: dict[tuple, Plan] = {}
MAX_PLANS = 4096  # more kinds of calls than a program has, unless its shapes never repeat


def kind(x: object) -> object:
    """What the checks look at in an argument, but for where exactly it lies."""
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return type(x)
    return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16, x.requires_grad


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
    with torch.cuda.device(a.device):
        launch = compiled(a.dtype, capability, variant)
    strides = (lda, ldb, ldc if direct else -(-n // 8) * 8)
    return Plan(launch, a.get_device(), (m, n, k), strides, sms, direct, spans)


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
    stream = torch.cuda.current_stream(plan.device).cuda_stream
    plan.launch(pa, pb, made.data_ptr(), plan.mnk, plan.strides, plan.sms, stream)
    return out if plan.direct else out.copy_(made[:, :n])


# %% [markdown] tags=["lab"]
# ## In the lab: storing late
#
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. Leave them
# out of your own code.
#
# One warpgroup of a pair, K = 512, by figures we put: a tile takes the clocks of its multiply-adds, a box 350, rounding
# 800. Storing at once, the tensor cores stand still for as long as the boxes take. Storing late, a box goes out under
# each of the next tile's first batches, and only the rounding is left.

# %% tags=["lab"]
from cookbook import draw

BOX = 350  # clocks for a box of C: put, to see what follows


def pair(late: bool, k: int = 512, turns: int = 3) -> dict[str, list[draw.Span]]:
    """The lanes of the threads of a warpgroup and of the tensor cores; K-tiles of 128 x 256 x 64."""
    c = CONFIG
    tile, stage = c.tile_m * c.tile_n * k / 2048, c.tile_m * c.tile_n * c.tile_k / 2048
    threads, tensor, now = [], [], 0.0
    for turn in range(turns):
        tensor.append(draw.Span(now, now + tile, f"tile {turn}", "multiply"))
        if late and turn > 0:
            threads += [draw.Span(now + i * stage, now + i * stage + BOX, "", "store") for i in range(c.boxes)]
        now += tile
        threads.append(draw.Span(now, now + ROUND, "", "round"))
        now += ROUND
        if not late:
            threads.append(draw.Span(now, now + c.boxes * BOX, f"tile {turn}", "store"))
            now += c.boxes * BOX
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
# ## In the lab: the rule
#
# Waves and costs for an H200 (132 SMs), relative to the cheapest:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.harness import records
from cookbook.harness.benching import DEFAULT_SHAPES
from cookbook.harness.publishing import table


def foretold(shape: tuple[int, int, int]) -> dict[str, float]:
    """The cost of each variant, the cheapest one 1."""
    costs = {name: cost(config, *shape, sms=132) for name, config in VARIANTS.items()}
    return {name: value / min(costs.values()) for name, value in costs.items()}


shapes = (*DEFAULT_SHAPES, (8192, 8192, 512), (1024, 1024, 8192))
rows = [
    [" x ".join(map(str, s)), *(f"{value:.3f}" for value in foretold(s).values()), choose(*s, sms=132)] for s in shapes
]
Markdown(table(["M x N x K", *VARIANTS, "chosen"], rows))

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
# "ours" is `matmul` without an argument, so whatever the rule chose; beside it each variant, called by name, and the
# peers, all interleaved in one run on one GPU. So the chosen kernel is in each row twice: what lies between its two
# figures is the spread.

# %% tags=["lab"]
from cookbook.harness.publishing import results_table

Markdown(results_table("hopper/tuned_gemm"))

# %% [markdown] tags=["lab"]
# How good is the rule? For each record: the variants' times relative to the fastest one, foretold and measured, and
# what `matmul` would have gained by knowing.

# %% tags=["lab"]


def rule_beside_times() -> str:
    """Every current record, or that there is none."""
    timed = [r for r in records.select("hopper/tuned_gemm", "timed") if not records.is_stale(r)]
    rows = []
    for r in timed:
        shape = tuple(r["shape"])
        found = {name: r["peers"][name]["median_ms"] for name in VARIANTS}
        best, said, chosen = min(found.values()), foretold(shape), choose(*shape, sms=132)
        each = [f"{said[name]:.3f} / {found[name] / best:.3f}" for name in VARIANTS]
        lost = f"{found[chosen] / best - 1:.1%}"
        rows.append([" x ".join(map(str, shape)) + f", {r['dtype']}", *each, chosen, lost])
    header = ["M x N x K", *(f"{name}: foretold / measured" for name in VARIANTS), "chosen", "lost"]
    return table(header, rows) if rows else "*Not measured yet.*"


Markdown(rule_beside_times())

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# What a kernel for all sizes needs is not one more trick, but a way to say which of its shapes suits a problem. Clocks
# alone do not say it, for the chip lowers its clock as it works. Clocks and loads together come nearer; how near, the
# table above says, for one chip.
#
# What is left: a product whose tiles fill one wave only. There the launch, the first loads and the last store stand
# beside the multiplication, and nothing of this page makes them shorter; to cut K and share a tile among CTAs would.
#
# Next: what all of these kernels are held against,
# [how fast the tensor cores can go](../foundations/tensor_core_ceiling.ipynb).
#
# To use it: `cookbook copy hopper/tuned_gemm my_gemm.py`, then `from my_gemm import matmul`.
