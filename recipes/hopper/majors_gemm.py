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
#     title: A GEMM for operands of either major, by WGMMA
#     claim: >-
#       wgmma reads a tile along K or along M and N at the same rate, so an operand needs no transpose: its atom is
#       mirrored, its boxes lie the other way, and the instruction gets one bit.
#     track: hopper
#     order: 80
#     builds_on: hopper/pingpong_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     majors: [tn, nt, nn, tt]
#     path: tma, multicast -> swizzled shared memory -> wgmma of either major -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D.MULTICAST, HGMMA, STSM.16.M88.4, UTMASTG.2D, USETMAXREG, SYNCS]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
# ---

# %% [markdown]
# # A GEMM for operands of either major, by WGMMA
#
# **Claim.** `wgmma` reads a tile along K or along M and N at the same rate, so an operand needs no transpose: its atom
# is mirrored, its boxes lie the other way, and the instruction gets one bit.
#
# [The page before](pingpong_gemm.ipynb) takes A and B *K-major*: the elements that are multiplied and summed lie next
# to each other, as in `x @ weight.T`. Most products of a training step are not like that:
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
# On Ampere it is `ldmatrix.trans` that turns an operand on its way to the registers
# ([there](../ampere/majors_gemm.ipynb)). Here there is no way to the registers: the tensor cores read shared memory by
# themselves, and have to be told how a tile lies. What changes with the letter of an operand is its **layout**, and two
# facts that follow from it. The producer, the turns of the warpgroups, the multicast and the epilogue are those of the
# page before, line for line.

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
# ## The sizes, and the majors
#
# The majors are two more fields: the compiler makes one kernel for each pair that is used.
#
# There are two variants, the widest tiles of the page before: a pair of warpgroups that shares one of 128 x 256,
# and two that take turns at tiles of 128 x 192. `matmul` chooses by how evenly C's tiles go round among the SMs, and by
# nothing else: a simple rule, and at large products not always the right one.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, how it is scheduled, and how its operands lie."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 192  # its columns
    tile_k: int = 64  # 128 bytes of a K-major operand, eight atoms of an MN-major one; four wgmma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    epi_n: int = 64  # columns of a piece of C: 128 bytes
    epi_buffers: int = 2  # pieces of C on their way out, for each warpgroup
    cluster_m: int = 2  # CTAs of a cluster down C: they share tiles of B
    cluster_n: int = 1  # and across: they share tiles of A
    raster_group: int = 16  # CTAs that run together cover this many rows of tiles
    pingpong: bool = True  # a warpgroup has a tile of its own; False: both share one
    pdl: bool = True  # this kernel's launch may overlap the end of the one before, and the next one's the end of this
    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    def __post_init__(self):
        if self.a_major not in ("k", "m"):
            raise ValueError(f"a_major: got {self.a_major!r}; needed 'k' or 'm'")
        if self.b_major not in ("k", "n"):
            raise ValueError(f"b_major: got {self.b_major!r}; needed 'k' or 'n'")

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def warpgroups(self) -> int:
        return 2  # consumers

    @property
    def sharing(self) -> int:
        return 1 if self.pingpong else self.warpgroups  # consumers of one tile

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups + 128  # and a producer warpgroup, of which one warp works

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def buffer_bytes(self) -> int:
        return self.warpgroups * self.epi_buffers * 64 * self.epi_n * 2

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A and B; and C beside them
        return 1024 + self.stages * self.stage_bytes + self.buffer_bytes


VARIANTS = {
    "128x192 in turn": Config(),
    "128x256 shared": Config(tile_n=256, pingpong=False),
}
DEFAULT = "128x192 in turn"
CONFIG = VARIANTS[DEFAULT]
REGISTERS = (24, 240)  # of a producer's thread and of a consumer's: 128 * 24 + 256 * 240 of an SM's 65536


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The layout
#
# TMA copies boxes, and the rows of a box are what is contiguous in global memory. It does not turn them. So an M-major
# operand arrives in lines along M and stays like that, and its atom is the K-major one mirrored: not 8 rows of 64
# elements along K, but **64 x 8, eight lines of 64 elements along M**, one line for each k. The swizzle is the same
# `S<3,4,3>`, for it sees addresses: 16-byte chunk *c* of line *l* goes to slot *c XOR l*, whichever way the lines run.
#
# **In which order do the atoms fill the tile?** The tensor core would take either. A matrix descriptor has two strides,
# and for an MN-major operand one of them leads from eight k to the next eight, the other from 64 rows to the next 64.
# TMA is what decides. A box in the 128-byte mode is one swizzle wide, 64 elements, and any number of lines high, which
# then lie *one below the other*. So all atoms along K come first, and after them the next 64 rows: a box is 64 x 64.
# The other way round a box would be one atom, 64 x 8, and the producer would issue eight times as many copies.
#
# For a K-major operand that is the order along M that we had; its box is as high as the tile. So there are several
# boxes to an MN-major tile where there was one to a K-major tile, and `cute.copy` issues them all. Of a tile that two
# CTAs share, each fetches half of *every* box.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, BUFFER)


def smem_atom(dtype, contiguous: int, along: int = 1) -> cute.ComposedLayout:
    """Eight lines along mode `along` and the swizzle for them: SW128, SW64, SW32 or INTER (none), the widest whose
    line divides `contiguous` elements."""
    bits = next(bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0)
    width = (128 << bits) // dtype.width
    lines = cute.make_layout((8, width), stride=(width, 1))
    lines = lines if along == 1 else cute.select(lines, mode=[1, 0])  # (width, 8):(1, width)
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first across the lines, then along them, then over the stages."""

    def staged(rows: int, major: str) -> cute.ComposedLayout:
        along, order = (1, (0, 1, 2)) if major == "k" else (0, (1, 0, 2))
        tile = (rows, config.tile_k, config.stages)
        return cute.tile_to_shape(smem_atom(dtype, tile[along], along), tile, order=order)

    pieces = (64, config.epi_n, config.warpgroups * config.epi_buffers)
    return SmemLayouts(
        a=staged(config.tile_m, config.a_major),
        b=staged(config.tile_n, config.b_major),
        c=cute.tile_to_shape(smem_atom(dtype, config.epi_n), pieces, order=(0, 1, 2)),
    )


# %% [markdown]
# ## One bit
#
# `wgmma` has a bit for each operand, in PTX `imm-trans-a` and `imm-trans-b`: the lines that the descriptor describes
# run along K, or along M or N. With the bit the tensor core turns each piece while it reads it. **For 16-bit elements
# only**: with 8-bit or 32-bit ones both operands must be K-major.
#
# The bit is in the instruction, the strides are in the descriptor, the swizzle is in both the descriptor and the
# tensor map, and all of them must tell of the same tile. We say it once, in `Config`, and CuTe derives the descriptor
# from the layout and the bit. What becomes of a wrong bit, the lab shows.


# %%
def wgmma_op(dtype, columns: int, a_major: str = "k", b_major: str = "k") -> warpgroup.MmaF16BF16Op:
    """wgmma m64nNk16, A and B from shared memory, of these majors."""
    smem = warpgroup.OperandSource.SMEM
    majors = (OperandMajorMode.K if major == "k" else OperandMajorMode.MN for major in (a_major, b_major))
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, *majors)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the warpgroups that share a tile: of two, or of one that goes down all its rows itself."""
    op = wgmma_op(dtype, config.tile_n, config.a_major, config.b_major)
    return cute.make_tiled_mma(op, (config.sharing, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4: one warpgroup, one piece of 64 x EPI_N


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The one copy of the epilogue."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    piece = cute.make_tiled_mma(wgmma_op(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, piece))


# %% [markdown]
# ## Unchanged: tiles, producer, turns, epilogue
#
# None of the following asks for the majors. Partitioned tensors have the same modes whichever way a tile lies, (TMA, k)
# for the producer and descriptors (MMA, MMA_M, MMA_K, STAGE) for the consumers; only what is behind an index differs.
# [The page before](pingpong_gemm.ipynb) says why each line is as it is.


# %%
class Work(NamedTuple):
    """The numbers that a cluster is to do: `first`, `first + step`, ..., `turns` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    turns: cutlass.Int32
    grid: tuple[cutlass.Int32, cutlass.Int32]  # of clusters' tiles, down and across C


@cute.jit
def work_of_cluster(shape_mn, config: cutlass.Constexpr):
    """What this CTA's cluster has to do."""
    down = cute.ceil_div(shape_mn[0], config.tile_m * config.cluster_m)
    across = cute.ceil_div(shape_mn[1], config.tile_n * config.cluster_n)
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster, ctas // config.cluster
    return Work(first, step, (down * across - first + step - 1) // step, (down, across))


@cute.jit
def tile_of(work: Work, turn, place, config: cutlass.Constexpr):
    """The tile (m, n) of C that the CTA at `place` in its cluster computes in a turn."""
    down, across = work.grid
    number, wanted = work.first + turn * work.step, config.raster_group // config.cluster_m
    group, inside = number // (wanted * across), number % (wanted * across)
    first = group * wanted
    height = cutlass.min(down - first, wanted)  # the last group may be lower
    m, n = first + inside % height, inside // height
    return m * config.cluster_m + place[0], n * config.cluster_n + place[1]


@cute.jit
def place_in_cluster(config: cutlass.Constexpr):
    """(row, column) of this CTA in its cluster."""
    rank = cutlass.Int32(0)
    if cutlass.const_expr(config.cluster > 1):
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    return rank % config.cluster_m, rank // config.cluster_m


def slot_of(number, config: Config):
    """The pipeline's state at k-tile `number`, counted over all tiles of the CTA."""
    stage, phase = number % config.stages, number // config.stages & 1
    return pipeline.PipelineState(config.stages, number, stage, phase)


# %%
@cute.jit
def multicast_masks(place, config: cutlass.Constexpr):
    """Who is to get the part of A, and the part of B, that the CTA at `place` fetches: a bit for each rank."""
    whole_row = sum(1 << n * config.cluster_m for n in range(config.cluster_n))  # of the CTA at (0, 0)
    whole_column = (1 << config.cluster_m) - 1
    return cutlass.Int16(whole_row) << place[0], cutlass.Int16(whole_column) << place[1] * config.cluster_m


@cute.jit
def load(tma, source, target, barrier, mask, sharers: cutlass.Constexpr):
    """One TMA copy of this CTA's part of a tile, to itself and all others that share the tile."""
    if cutlass.const_expr(sharers > 1):
        cute.copy(tma, source, target, tma_bar_ptr=barrier, mcast_mask=mask)
    else:
        cute.copy(tma, source, target, tma_bar_ptr=barrier)


@cute.jit
def produce_tile(pipe, state, tma_a, tma_b, tAgA, tAsA, tBgB, tBsB, masks, config: cutlass.Constexpr):
    """All k-tiles of one tile: tAgA, tBgB (TMA, k) in global memory; tAsA, tBsB (TMA, STAGE) in shared memory."""
    for k_tile in cutlass.range(cute.size(tAgA, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        load(tma_a, tAgA[None, k_tile], tAsA[None, state.index], barrier, masks[0], config.cluster_n)
        load(tma_b, tBgB[None, k_tile], tBsB[None, state.index], barrier, masks[1], config.cluster_m)
        state.advance()
    return state


@cute.jit
def produce(pipe, tma_a, tma_b, gA, gB, sA, sB, work: Work, place, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile. gA (M, K, m, k), gB (N, K, n, k) in global memory."""
    row, column = place
    across, down = cute.make_layout(config.cluster_n), cute.make_layout(config.cluster_m)
    sA, sB = cute.group_modes(sA, 0, 2), cute.group_modes(sB, 0, 2)
    tAsA, tAgA = cpasync.tma_partition(tma_a, column, across, sA, cute.group_modes(gA, 0, 2))  # (TMA, m, k)
    tBsB, tBgB = cpasync.tma_partition(tma_b, row, down, sB, cute.group_modes(gB, 0, 2))  # (TMA, n, k)
    masks = multicast_masks(place, config)
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for turn in cutlass.range(work.turns, unroll=1):
        m, n = tile_of(work, turn, place, config)
        tA, tB = tAgA[None, m, None], tBgB[None, n, None]
        state = produce_tile(pipe, state, tma_a, tma_b, tA, tAsA, tB, tBsB, masks, config)
    if cutlass.const_expr(config.pdl):
        cute.arch.griddepcontrol_launch_dependents()  # nothing is left to ask for: the next kernel may come
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %%
TURN_BARRIER = 3  # the first of two named barriers, 3 and 4; 1 and 2 are those of the epilogues


class Mmas(NamedTuple):
    """The same tiled MMA twice."""

    overwrite: cute.TiledMma
    accumulate: cute.TiledMma


def both_mmas(dtype, config: Config) -> Mmas:
    mmas = Mmas(tiled_mma(dtype, config), tiled_mma(dtype, config))
    mmas.overwrite.set(warpgroup.Field.ACCUMULATE, False)
    mmas.accumulate.set(warpgroup.Field.ACCUMULATE, True)
    return mmas


@cute.jit
def multiply_stage(mmas, acc, tCrA, tCrB, stage, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one batch. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements along K
        mma = mmas.overwrite if first and k == 0 else mmas.accumulate
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def multiply_tile(pipe, turn, turns, mmas, acc, tCrA, tCrB, k_tiles, group, config: cutlass.Constexpr):
    """Multiply the k-tiles of this turn's tile into `acc`."""
    read, release = slot_of(turn * k_tiles, config), slot_of(turn * k_tiles, config)
    if cutlass.const_expr(config.pingpong):
        if turn > 0:
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + group, num_threads=256).arrive_and_wait()
    pipe.consumer_wait(read)
    multiply_stage(mmas, acc, tCrA, tCrB, read.index, first=True)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        multiply_stage(mmas, acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the batch before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()
    if cutlass.const_expr(config.pingpong):
        if turn + 1 < turns:  # all is issued: the other one's turn
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + 1 - group, num_threads=256).arrive()
    warpgroup.wait_group(0)
    pipe.consumer_release(release)


# %%
@cute.jit
def store(acc, sC, tma_c, gC, first, copy, group, config: cutlass.Constexpr):
    """The rows of C that a warpgroup has, out by TMA.

    sC (64, EPI_N, BUFFER): all buffers; gC (64, EPI_N, m, n): all pieces of C; first: (m, n) of the tile's first piece.
    """
    tidx = cute.arch.thread_idx()[0] % 128
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    sends = cute.arch.make_warp_uniform(tidx // 32) == 0  # the warp that talks to TMA
    thr = copy.get_slice(tidx)
    tCsC = thr.partition_D(sC)  # (CPY, CPY_M, CPY_N, BUFFER)
    whole = cute.make_layout(1)  # a piece is one box: nothing is divided among CTAs
    bsC, bgC = cpasync.tma_partition(tma_c, 0, whole, cute.group_modes(sC, 0, 2), cute.group_modes(gC, 0, 2))
    held = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))  # (MMA, MMA_M, MMA_N) of a thread in one piece
    across = config.tile_n // config.epi_n
    for piece in cutlass.range_constexpr(config.tile_m // 64 // config.sharing * across):
        buffer = group * config.epi_buffers + piece % config.epi_buffers
        down = piece // across if config.pingpong else group
        if sends:
            cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)
        barrier.arrive_and_wait()  # all know that the buffer is free
        rC = cute.make_rmem_tensor(held, sC.element_type)
        rC.store(cute.make_tensor(acc.iterator + piece * cute.size(held), held).load().to(sC.element_type))
        cute.copy(copy, thr.retile(rC), tCsC[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()  # all have written, and said so to TMA
        if sends:
            with cute.arch.elect_one():
                cute.copy(tma_c, bsC[None, buffer], bgC[None, first[0] + down, first[1] + piece % across])
                cute.arch.cp_async_bulk_commit_group()


@cute.jit
def consume(pipe, mmas, sA, sB, sC, tma_c, gC, copy, k_tiles, work: Work, place, config: cutlass.Constexpr):
    """Multiply and store: every tile, or every other one. gC (64, EPI_N, m, n): the pieces of the whole of C."""
    tidx, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(tidx // 128)
    thr = mmas.accumulate.get_slice(tidx % (128 * config.sharing))
    tCrA = thr.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = thr.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    down, across = config.tile_m // 64, config.tile_n // config.epi_n  # pieces of a tile
    mine, every = (group, 2) if config.pingpong else (0, 1)
    for turn in cutlass.range(mine, work.turns, every, unroll=1):
        m, n = tile_of(work, turn, place, config)
        multiply_tile(pipe, turn, work.turns, mmas, acc, tCrA, tCrB, k_tiles, group, config)
        store(acc, sC, tma_c, gC, (m * down, n * across), copy, group, config)
    if tidx % 128 // 32 == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %%
@cute.jit
def make_pipeline(barriers, config: cutlass.Constexpr):
    """The barriers of the stages, full and empty, of this CTA, in step with those of its cluster."""
    sharers = config.cluster_m + config.cluster_n - 1  # CTAs with which this one has A or B in common, and itself
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.sharing * sharers),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
    )


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
    """A CTA computes its share of the tiles of C, one after the other."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    place, work = place_in_cluster(config), work_of_cluster(mC.shape, config)
    layouts = smem_layouts(dtype, config)
    if warp_idx == 4 * config.warpgroups:
        for tma in (tma_a, tma_b, tma_c):
            cpasync.prefetch_descriptor(tma)

    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # Every CTA allocates the same, so that what a multicast writes lies at the same offset in each.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    pipe = make_pipeline(barriers, config)
    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (None, None))  # (M, K, m, k)
    gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (None, None))  # (N, K, n, k)
    gC = cute.local_tile(mC, (64, config.epi_n), (None, None))  # (64, EPI_N, m, n)

    if cutlass.const_expr(config.pdl):
        cute.arch.griddepcontrol_wait()  # the kernel before has ended: from here on global memory may be touched
    if warp_idx >= 4 * config.warpgroups:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == 4 * config.warpgroups:
            produce(pipe, tma_a, tma_b, gA, gB, sA, sB, work, place, config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        mmas, copy = both_mmas(dtype, config), tiled_copies(dtype, config).r2s_c
        consume(pipe, mmas, sA, sB, sC, tma_c, gC, copy, cute.size(gA, mode=[3]), work, place, config)


# %% [markdown]
# ## The launch
#
# Here the second of the two facts is told, to TMA. An operand has one stride that is 1 and one that is not; the majors
# say which is which. The kernel sees (rows, K) either way, and `make_tiled_tma_atom` finds out from the tensor's
# strides and the tile's layout what a box is.


# %%
def operand_layout(rows, k, stride, major: str) -> cute.Layout:
    """(rows, K) of an operand whose lines, along K or along the rows, are `stride` elements apart."""
    return cute.make_layout((rows, k), stride=(stride, 1) if major == "k" else (1, stride))


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
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are elements between the lines of A, B, C."""
    m, n, k = mnk
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    layouts = smem_layouts(dtype, config)
    mA = cute.make_tensor(pA, operand_layout(m, k, lda, config.a_major))
    mB = cute.make_tensor(pB, operand_layout(n, k, ldb, config.b_major))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    tma_a, mA = make_tma(mA, layouts.a, (config.tile_m, config.tile_k), config.cluster_n)
    tma_b, mB = make_tma(mB, layouts.b, (config.tile_n, config.tile_k), config.cluster_m)
    tma_c, mC = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), mC, cute.slice_(layouts.c, (None, None, 0)), (64, config.epi_n)
    )
    down = cute.ceil_div(m, config.tile_m * config.cluster_m)
    across = cute.ceil_div(n, config.tile_n * config.cluster_n)
    clusters = cutlass.min(down * across, sms // config.cluster)
    kernel(tma_a, mA, tma_b, mB, tma_c, mC, dtype, config).launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=config.pdl,
    )


def make_tma(matrix: cute.Tensor, layout: cute.ComposedLayout, tile: tuple[int, int], sharers: int):
    """The TMA load of a tile into one stage of `layout`, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    stage = cute.slice_(layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers)


# %%
def launch_arguments(dtype, pointers, mnk, strides, sms: int, stream: int) -> tuple:
    """Plain addresses and integers as the typed values that `gemm` takes."""
    gmem = cute.AddressSpace.gmem
    return (
        *(cute.runtime.make_ptr(dtype, pointers[i], gmem, assumed_align=16) for i in range(3)),
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
# What a user calls. There is no argument for the majors: the strides of a and b say them. Everything that the kernel
# relies on is looked at before anything is launched; what is wrong is said with the argument's name, what it got and
# what it needs.

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


class Major(NamedTuple):
    """How an operand can be read by TMA."""

    index: str  # along which it is contiguous: "k", or "m" or "n"
    stride: int  # elements from one line to the next


def objection(x: torch.Tensor, along: int, index: str, lines: str) -> tuple[str, str] | None:
    """What keeps TMA from reading `x` in lines along mode `along`: (what it has, what is needed).

    `index` and `lines` name that mode and what runs along it ("K", "rows") in the message.
    """
    extent, apart = x.shape[along], line_stride(x, along)
    if x.stride(along) != 1 and extent > 1:
        return f"stride {x.stride(along)} along {index}", "1: contiguous"
    if apart <= 0 or apart % 8:
        needed = f"{lines} a multiple of 16 bytes apart (a multiple of 8 elements, for TMA's 16-byte pieces)"
        return f"{index} = {extent}, {lines} {2 * apart} bytes apart", needed
    if x.data_ptr() % 16:
        return f"address {x.data_ptr():#x}", "a multiple of 16 bytes"
    return None


def line_stride(x: torch.Tensor, along: int) -> int:
    """Elements from one line along mode `along` to the next; where there is one line alone, any legal number."""
    return x.stride(1 - along) if x.shape[1 - along] > 1 else -(-x.shape[along] // 8) * 8


def major_of(name: str, x: torch.Tensor, k_mode: int) -> Major:
    """The major of the operand `name`, whose mode `k_mode` is K: K-major if it can be read so, else the other."""
    other = "m" if name == "a" else "n"
    lines = {1: "rows", 0: "columns"}
    found = {}
    for index, along in (("k", k_mode), (other, 1 - k_mode)):
        found[index] = objection(x, along, index.upper(), lines[along])
        if found[index] is None:
            return Major(index, line_stride(x, along))
    near = [objected for objected in found.values() if not objected[0].startswith("stride")]
    strided = f"strides {tuple(x.stride())}", f"one of them 1: contiguous along K or {other.upper()}"
    require(False, name, *(near[0] if near else strided))


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


def check_out(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, majors: tuple[Major, Major]) -> None:
    """`out` can take the product of `a` (M, K) and `b` (K, N)."""
    check_operand("out", out, a.dtype)
    (m, n), (row, column) = (a.shape[0], b.shape[1]), out.stride()
    require(out.shape == (m, n), "out", f"shape {tuple(out.shape)}", f"({m}, {n})")
    require(column == 1 or n == 1, "out", f"stride {column} along N", "1: rows of adjacent elements")
    require(row >= n or m == 1, "out", f"row stride {row}", f"at least N = {n}: rows that do not overlap")
    require(out.device == a.device, "out", f"device {out.device}", f"{a.device}, where a is")
    by_lines = (a if majors[0].index == "k" else a.T), (b.T if majors[1].index == "k" else b)
    for name, x in zip("ab", by_lines, strict=True):
        require(not overlap(out, x), "out", f"memory that overlaps {name}", "memory of its own")


def tma_can_write(out: torch.Tensor, ldc: int) -> bool:
    """Whether rows of `out`, `ldc` elements apart, begin at multiples of 16 bytes and end there too."""
    return (out.shape[1] | ldc) % 8 == 0 and out.data_ptr() % 16 == 0


def fewest_clocks(m: int, n: int, sms: int) -> str:
    """The variant whose busiest CTA has least to multiply."""

    def clocks(variant: str) -> int:
        c = VARIANTS[variant]
        tiles = -(-m // (c.tile_m * c.cluster_m)) * -(-n // (c.tile_n * c.cluster_n))
        turns = -(-tiles // (sms // c.cluster))  # tiles of the CTA that has the most
        return turns * c.tile_m * c.tile_n

    return min(VARIANTS, key=clocks)


@cache
def compiled(
    dtype: torch.dtype, variant: str, a_major: str, b_major: str, capability: tuple[int, int]
) -> Callable[..., None]:
    """The kernel for the present GPU: compiled at the first call that needs it, then kept.

    TVM-FFI (the package apache-tvm-ffi) makes it a function that takes plain integers and tuples of them, and costs
    little more to call than the launch itself. Without it each argument is a Python object made for the call.
    """
    config = replace(VARIANTS[variant], a_major=a_major, b_major=b_major)
    return compile_for("", DTYPES[dtype], config, "--enable-tvm-ffi")


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
    strides: tuple[int, int, int]  # from one line of A, B and what the kernel writes to the next, in elements
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


def make_plan(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, variant: str | None) -> Plan:
    """Check everything, compile what is needed. Raises what `matmul` raises."""
    names = ", ".join(map(repr, VARIANTS))
    require(variant in (None, *VARIANTS), "variant", repr(variant), f"one of {names}, or None")
    check_operand("a", a, None)
    check_operand("b", b, a.dtype)
    (m, k), n = a.shape, b.shape[1]
    require(b.shape[0] == k, "b", f"shape {tuple(b.shape)}", f"({k}, N), for a is {tuple(a.shape)}")
    majors = major_of("a", a, k_mode=1), major_of("b", b, k_mode=0)
    if out is not None:
        check_out(out, a, b, majors)
    require(a.is_cuda, "a", f"device {a.device}", "a CUDA device")
    require(b.device == a.device, "b", f"device {b.device}", f"{a.device}, where a is")
    capability = torch.cuda.get_device_capability(a.device)
    require(capability == (9, 0), "a", f"a GPU of compute capability {capability}", "(9, 0), for wgmma")

    c = a.new_empty(m, n) if out is None else out  # memory of torch's own is aligned alike each time
    ldc = c.stride(0) if m > 1 else -(-n // 8) * 8
    direct = tma_can_write(c, ldc)
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    with torch.cuda.device(a.device):
        which = variant or fewest_clocks(m, n, sms)
        launch = compiled(a.dtype, which, *(x.index for x in majors), capability)
    strides = (*(x.stride for x in majors), ldc if direct else -(-n // 8) * 8)
    spans = tuple(2 * (1 + (x.shape[0] - 1) * x.stride(0) + (x.shape[1] - 1) * x.stride(1)) for x in (a, b, c))
    return Plan(launch, a.get_device(), (m, n, k), strides, sms, direct, spans)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str | None = None
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS; None for the one whose tiles go round most evenly.

    The strides say the majors; an operand that can be read both ways counts as K-major. TMA reads lines that start at
    multiples of 16 bytes: the addresses of a and b and their other strides are such multiples. Any M, N, K >= 1 within
    that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that is no multiple of 8, the
    product is made in padded rows and copied. Needs a GPU of compute capability 9.0. There is no backward.

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
        make_plan(a, b, out, variant)  # from first to last byte they meet, but may be columns of one wider matrix
    made = out if plan.direct else a.new_empty(m, plan.strides[2])  # TMA finishes the last 16 bytes of a row
    stream = torch.cuda.current_stream(plan.device).cuda_stream
    plan.launch(pa, pb, made.data_ptr(), plan.mnk, plan.strides, plan.sms, stream)
    return out if plan.direct else out.copy_(made[:, :n])


# %% [markdown] tags=["lab"]
# ## In the lab: the M-major tile
#
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. Leave them
# out of your own code.
#
# Our own A for `nt`, as CuTe evaluates it. A row of the picture is one 128-byte line of shared memory: 64 elements
# along M, of one k. The chunks are numbered along M; the swizzle is the one that a K-major tile has.

# %% tags=["lab"]
from cookbook import draw
from cookbook.harness import majors
from cookbook.layouts import evaluate

BF16 = cutlass.BFloat16
layouts = {letters: evaluate(smem_layouts, BF16, majors.configured(CONFIG, letters)) for letters in majors.MAJORS}
draw.swizzle_view(layouts["nt"].a)

# %% [markdown] tags=["lab"]
# CuTe has selectors of its own for Hopper, one for the atom and one for the order. They agree with ours for all four
# majors and both variants:

# %% tags=["lab"]
import cutlass.utils.hopper_helpers as cute_helpers
from cutlass.tensor_utils import LayoutEnum


def layouts_by_cute(config: Config):
    tile = (config.tile_m, config.tile_n, config.tile_k)
    a, b = (LayoutEnum.ROW_MAJOR if x == "k" else LayoutEnum.COL_MAJOR for x in (config.a_major, config.b_major))
    return (
        cute_helpers.make_smem_layout_a(a, tile, BF16, config.stages),
        cute_helpers.make_smem_layout_b(b, tile, BF16, config.stages),
    )


for letters in majors.MAJORS:
    for config in VARIANTS.values():
        ours = evaluate(smem_layouts, BF16, majors.configured(config, letters))
        assert evaluate(layouts_by_cute, majors.configured(config, letters), element_bits=16) == (ours.a, ours.b)
    print(letters, "a:", layouts[letters].a.outer, " b:", layouts[letters].b.outer)

# %% [markdown] tags=["lab"]
# ## In the lab: the order of the atoms
#
# A smaller M-major tile, 128 x 16: two atoms along K, two along M. A row of the picture is one k, a column 16 bytes
# along M; the number is the byte offset, the colour the atom, in the order of memory. In our order the lines of one
# column of atoms follow one another, 128 bytes apart, down to the last k: one box of TMA. In the other order they stop
# after eight.

# %% tags=["lab"]


def tile_in_order(order: tuple[int, int, int], rows: int, k: int) -> cute.ComposedLayout:
    """An M-major tile of one stage with its atoms in this order."""
    return cute.tile_to_shape(smem_atom(BF16, rows, along=0), (rows, k, 1), order=order)


draw.atom_tiling(
    {"first along K": evaluate(tile_in_order, (1, 0, 2), 128, 16, element_bits=16)},
    (64, 8),
    "An M-major tile, its atoms first along K (ours)",
)

# %% tags=["lab"]
draw.atom_tiling(
    {"first along M": evaluate(tile_in_order, (0, 1, 2), 128, 16, element_bits=16)},
    (64, 8),
    "The same tile, its atoms first along M",
)

# %% [markdown] tags=["lab"]
# What that is worth to the producer: the copies it issues for a k-tile. Both CTAs of a cluster fetch half of each box
# of B, so the number is the same for a tile that is shared.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.harness.publishing import table
from cookbook.harness.walk_wgmma import boxes_of


def boxes(layout, major: str) -> str:
    """How many boxes a tile takes, and their size: lines x elements."""
    found = boxes_of(layout, along=1 if major == "k" else 0)
    return f"{len(found.origins)} of {found.shape[0]} x {found.shape[1]}"


rows = []
for letters, (a_major, b_major) in majors.MAJORS.items():
    rows.append([letters, boxes(layouts[letters].a, a_major), boxes(layouts[letters].b, b_major)])
other = evaluate(tile_in_order, (0, 1, 2), CONFIG.tile_m, CONFIG.tile_k, element_bits=16)
rows.append(["A first along M", boxes(other, "m"), ""])
Markdown(table(["majors", "boxes of A", "boxes of B"], rows))

# %% [markdown] tags=["lab"]
# ## In the lab: what the tensor core is told
#
# The descriptor of the first 16 k of each operand: its strides in bytes, and how far its start moves from one k-block
# to the next. K-major, a k-block is 32 bytes further *in the same lines*; MN-major it is 16 lines further. The machine
# code has the bits: `tnspA`, `tnspB`.

# %% tags=["lab"]
from cookbook.harness import compiling
from cookbook.model import operand_descriptors

rows = []
for letters, (a_major, b_major) in majors.MAJORS.items():
    row = [letters]
    for layout, lines, major in ((layouts[letters].a, 64, a_major), (layouts[letters].b, CONFIG.tile_n, b_major)):
        first, second = operand_descriptors(layout, lines, major="K" if major == "k" else "MN")[:2]
        row.append(f"lbo {first.lbo}, sbo {first.sbo}, + {second.start - first.start}")
    try:
        config = majors.configured(CONFIG, letters)
        sass = compiling.compile_recipe("hopper/majors_gemm", "sm_90a", "bfloat16", config=config).sass
        row += [f"{sass.count(bit)} of {sass.count('HGMMA')}" for bit in (".tnspA", ".tnspB")]
    except compiling.NoDisassembler:
        row += ["", ""]
    rows.append(row)
Markdown(table(["majors", "descriptor of A", "descriptor of B", "HGMMA with tnspA", "with tnspB"], rows, right=5))

# %% [markdown] tags=["lab"]
# **The trap: a wrong bit raises nothing.** The model's TMA puts an M-major tile of 64 x 64 into shared memory, and the
# model's `wgmma` multiplies it by a K-major B, once with the right bit and once with the other one, by the very same
# descriptor. The second product is not noise. It is that of the *transposed* tile: lines taken for rows.

# %% tags=["lab"]
import numpy as np

from cookbook.model import SharedMemory, from_float32, tma_load
from cookbook.model import wgmma as modelled_wgmma
from cookbook.model.wgmma import d_coords

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
# ## The prediction
#
# Clocks of the four majors side by side: the same multiplications; the same bytes through L2 and in shared memory, in
# pieces of 128 either way; the same epilogue. The producer issues a few more copies for a k-tile, by a warp that has
# hundreds of clocks to spare. So we predict that **no layout differs from `tn`**: a ratio of 1.
#
# What differs is the variant that suits a shape. By this count it is the one with fewer products: the tiles of the
# busiest CTA, and the products in them, relative to what 132 SMs would each have at an even share. It leaves out what
# a narrower tile costs in bytes.

# %% tags=["lab"]
SMS = 132  # of an H200

rows = []
for extent in (2048, 4096, 8192, 16384):
    row = [f"{extent} x {extent}"]
    for config in VARIANTS.values():
        tiles = -(-extent // (config.tile_m * config.cluster_m)) * -(-extent // (config.tile_n * config.cluster_n))
        turns = -(-tiles // (SMS // config.cluster))
        row.append(f"{turns} ({turns * config.tile_m * config.tile_n * SMS / extent**2:.3f})")
    rows.append([*row, fewest_clocks(extent, extent, SMS)])
Markdown(table(["C", *(f"{variant}: tiles (relative)" for variant in VARIANTS), "chosen"], rows, right=4))

# %% [markdown] tags=["lab"]
# ## Check
#
# *Layout*, *model* and *compiled* for each of the majors and both variants: the model walks the tiles through TMA
# boxes, swizzled shared memory, matrix descriptors and `wgmma` of either major. On a machine with a Hopper GPU the
# kernels also run here; elsewhere the recorded runs are shown.

# %% tags=["lab"]
from cookbook import tables
from cookbook.harness import checking

report = checking.check("hopper/majors_gemm", shapes=[(200, 328, 64)], dtypes=["bfloat16"])
for level in report.levels:
    of = " ".join(filter(None, (level.majors, level.target, level.variant)))
    print(f"{level.level:10}{of:28}{level.status:13}{tables.describe(level)}")

# %% [markdown] tags=["lab"]
# ## Time
#
# Ours and its peers, interleaved in one run on one GPU, all of them on operands of the same majors. "Ours" is `matmul`
# without an argument, so one of the two variants: where the other one is faster, the count of products was not enough.

# %% tags=["lab"]
from cookbook.harness.publishing import results_table

Markdown(results_table("hopper/majors_gemm"))

# %% [markdown] tags=["lab"]
# Each layout beside its own `tn`, predicted to be 1, and beside `torch.matmul` on operands of the same majors:

# %% tags=["lab"]
from cookbook.harness import records


def beside_tn() -> str:
    """The ratios of every current record, or that there is none."""
    timed = [r for r in records.select("hopper/majors_gemm", "timed") if not records.is_stale(r)]
    tn = {(r["device"], r["dtype"], *r["shape"]): r["figures"]["median_ms"] for r in timed if r["majors"] == "tn"}
    rows = []
    for r in timed:
        of = (r["device"], r["dtype"], *r["shape"])
        own = f"{tn[of] / r['figures']['median_ms']:.3f}" if of in tn else ""
        shape = " x ".join(map(str, r["shape"]))
        rows.append([r["device"], f"{shape}, {r['dtype']}", r["majors"], own, f"{r['figures']['ratio']:.3f}"])
    return table(["device", "shape", "majors", "of its tn", "of torch.matmul"], rows) if rows else "*Not measured yet.*"


Markdown(beside_tn())

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Nothing is transposed, neither in memory nor by a thread: TMA brings lines as they are, and the tensor core is told
# which way they run. To the code around it the major is no more than a layout, which is why the loop, the turns and the
# epilogue did not change by a line. And a layout is chosen for the one who writes it as much as for the one who reads:
# the tensor core takes the atoms in any order, TMA wants them in the one that makes its boxes tall.
#
# Next: [the GEMM to use](tuned_gemm.ipynb), which chooses among tiles and schedules for each shape, by more than the
# evenness of the waves.
#
# To use it: `cookbook copy hopper/majors_gemm my_gemm.py`, then `from my_gemm import matmul`.
