# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Dynamic tile scheduler with cluster launch control
#     claim: >-
#       Launch a cluster for every tile and let running clusters cancel waiting ones and take their work: the first free
#       cluster gets the next tile.
#     track: blackwell
#     order: 40
#     builds_on: blackwell/two_cta_gemm
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     compared_with: blackwell/two_cta_gemm
#     dtypes: [bfloat16, float16]
#     path: tma -> shared memory of two SMs -> tcgen05.mma of both -> tensor memory -> tcgen05.ld -> boxes -> tma
#     instructions:
#       all: [UTMALDG.2D.2CTA, UTCHMMA.2CTA, UTCBAR.2CTA.MULTICAST, LDTM, UCGABAR_WAIT, STS.128, UTMASTG.2D, SYNCS]
#     sources:
#       - {title: "PTX ISA, clusterlaunchcontrol.try_cancel", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-clusterlaunchcontrol-try-cancel"}
#       - {title: "CUDA C++ Programming Guide, thread block clusters", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-block-clusters"}
#       - {title: "Triton, Gluon tutorials", url: "https://triton-lang.org/main/getting-started/tutorials/gluon/index.html"}
# ---

# %% [markdown]
# # Dynamic tile scheduler with cluster launch control
#
# **Claim.** Persistent CTAs get their tiles *before* the kernel begins. If another kernel still holds some SMs, the
# last clusters to begin are the last to finish. Blackwell schedules while the kernel runs: **launch a cluster for every
# block of C, and let the running clusters take over those that have not begun.**

# %% [markdown] tags=["lab"]
# A sketch, with chosen times. *Places* are pairs of SMs: four of them share fourteen blocks, and another kernel holds
# the last place for a while. In the static schedule place *p* of *s* does the blocks p, p + s and so on, whenever it
# may begin. In the dynamic schedule a place takes the lowest number that is left.

# %% tags=["lab"]
import heapq
from collections import deque
from collections.abc import Callable

import cookbook
from cookbook import draw, lab

packaged = cookbook.load("blackwell/persistent_clc_gemm")


def schedule(blocks: int, begins: list[float], took: Callable[[int, int], float], answers: int) -> list[list[tuple]]:
    """For each place, (start, end, block) of what it does.

    begins: when each place is free; took(place, block): how long it works on a block; answers: as of Config.
    """
    done: list[list[tuple]] = [[] for _ in begins]
    if answers == 0:
        for place, now in enumerate(begins):
            for block in range(place, blocks, len(begins)):
                done[place].append((now, now + took(place, block), block))
                now = done[place][-1][1]
        return done
    left, mine = deque(range(blocks)), [deque() for _ in begins]
    free = [(now, place) for place, now in enumerate(begins)]
    heapq.heapify(free)
    while free:
        now, place = heapq.heappop(free)
        while left and len(mine[place]) <= answers:  # the block that it begins, and those it has asked for
            mine[place].append(left.popleft())
        if mine[place]:
            block = mine[place].popleft()
            done[place].append((now, now + took(place, block), block))
            heapq.heappush(free, (done[place][-1][1], place))
    return done


lanes = {}
for name, config in packaged.VARIANTS.items():
    if config.answers < 2:
        found = schedule(14, [0.0, 0.0, 0.0, 2.5], lambda place, block: 1.0, config.answers)
        lanes |= {"": []} if lanes else {}
        for place, spans in enumerate(found):
            row = [draw.Span(a, b, str(n), f"round {i}") for i, (a, b, n) in enumerate(spans)]
            lanes[f"{name}: place {place}"] = row
draw.lanes(lanes, "Fourteen blocks, four places, one of them late (a sketch)", unit="blocks", note="Chosen times.")

# %% [markdown]
# With `clusterlaunchcontrol.try_cancel` a running cluster asks the GPU to *cancel* one that still waits to start. The
# answer is the number of the cancelled cluster, whose work the asker now does, or "there is none left". [So
# far](two_cta_gemm.ipynb) every warp computed the next tile; now the next tile is a message in shared memory, with
# barriers of its own.
#
# *This kernel has not run on hardware.* It is compiled for Blackwell, and its layouts, descriptors and data path are
# checked against the PTX ISA document in numpy. No speed is claimed.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host, require
from cookbook.recipe.moved import SmemAllocator, TmemAllocator

# %% [markdown]
# ## The sizes
#
# A tile is 256 x 256 and belongs to a pair of CTAs, and all that [the page before](two_cta_gemm.ipynb) says of pairs
# holds here. One warp more works in the first CTA of a cluster: it asks for blocks.
#
# | variant | a cluster's next block |
# |---|---|
# | `static` | is as many further as there are clusters: the schedule so far |
# | `dynamic` | is asked for while the present one is multiplied |
# | `two ahead` | is asked for one block earlier |


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 256  # rows of C per pair of CTAs
    tile_n: int = 256  # columns of C per pair: the widest tcgen05.mma
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four tcgen05.mma steps of 16
    stages: int = 6  # pairs of A and B tiles in flight or being read
    acc_stages: int = 2  # accumulator tiles in tensor memory
    epi_n: int = 64  # columns of an epilogue subtile of C: 128 bytes, and as many registers a thread
    epi_buffers: int = 2  # epilogue subtiles of C on their way out
    pairs_m: int = 1  # pairs of a cluster down C: they share B
    pairs_n: int = 1  # and across: they share A
    swizzle_size: int = 8  # rasterization: pairs that run together cover this many rows of tiles
    answers: int = 1  # blocks that are asked for before they are needed; 0: none is, the schedule is static

    def __post_init__(self):
        check_epilogue("epi_buffers", self.epi_buffers, self.tile_n // self.epi_n)

    @property
    def cta_m(self) -> int:
        return self.tile_m // PAIR  # rows of A, and of C, that one CTA has

    @property
    def cta_n(self) -> int:
        return self.tile_n // PAIR  # rows of B that one CTA brings; it has accumulators of all tile_n columns

    @property
    def cluster(self) -> int:
        return PAIR * self.pairs_m * self.pairs_n

    @property
    def threads(self) -> int:
        return 32 * (WARPS if self.answers else ASKING_WARP)

    @property
    def tmem_columns(self) -> int:
        return self.acc_stages * self.tile_n  # 32 bits each; allocated in powers of two, at least 32

    @property
    def stage_bytes(self) -> int:
        return (self.cta_m + self.cta_n) * self.tile_k * 2  # of one CTA

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A and B; and C beside them
        return 1024 + self.stages * self.stage_bytes + self.epi_buffers * self.cta_m * self.epi_n * 2


PAIR = 2  # CTAs that share a tcgen05.mma: its cta_group
ANSWER_BYTES = 16  # of what the hardware says to a request for a block
EPILOGUE_WARPS, MMA_WARP, TMA_WARP, ASKING_WARP, WARPS = 4, 4, 5, 6, 7  # warps 0 to 3: w reaches lanes from 32 w on
VARIANTS = {"static": Config(answers=0), "dynamic": Config(), "two ahead": Config(answers=2)}
DEFAULT = "dynamic"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown]
# ## Layouts, MMA and copies
#
# All as before.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M / 2, K, STAGE): what one CTA of the pair holds
    b: cute.ComposedLayout  # (N / 2, K, STAGE)
    c: cute.ComposedLayout  # (M / 2, EPI_N, BUFFER)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K or N, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.cta_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.cta_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (c.cta_m, c.epi_n, c.epi_buffers), order=(0, 1, 2)),
    )


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """tcgen05.mma of 256 x N x 16 by a pair of CTAs, A and B from the shared memory of both."""
    shape, smem, k_major = (config.tile_m, config.tile_n, 16), tcgen05.OperandSource.SMEM, OperandMajorMode.K
    op = tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.TWO, smem, k_major, k_major)
    return cute.make_tiled_mma(op)


class TiledCopies(NamedTuple):
    """The copies by software on the way of C, over one subtile of it."""

    t2r_c: cute.TiledCopy  # tcgen05.ld: from tensor memory to registers, `epi_n` columns of a row a thread
    r2s_c: cute.TiledCopy  # st.shared of 16 bytes


def pieces(sums: cute.Tensor, config: Config = CONFIG) -> cute.Tensor:
    """One CTA's accumulators of one stage (MMA, MMA_M, MMA_N) as (M / 2, EPI_N, 1, N / EPI_N)."""
    return cute.flat_divide(sums[(None, None), 0, 0], (config.cta_m, config.epi_n))


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The two copies of the epilogue."""
    mma = tiled_mma(dtype, config)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(config.epi_n)), cutlass.Float32)
    piece = pieces(mma.make_fragment_C(mma.partition_shape_C((config.tile_m, config.tile_n))), config)
    t2r_c = tcgen05.make_tmem_copy(load, piece[None, None, 0, 0])
    write = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=128)
    return TiledCopies(t2r_c=t2r_c, r2s_c=cute.make_tiled_copy_D(write, t2r_c))


# %% [markdown]
# ## The tile scheduler: which tile is next
#
# The rasterization of the blocks of C is as before, and a cluster begins with the one of its own number. What comes
# after that is in an **answer**: 16 bytes in shared memory, which the hardware writes into *every* CTA of the cluster
# (`.multicast::cluster::all`), reporting to a barrier in each. Every role reads it after each tile: is
# it a yes, and if so which CTA was the first of the cancelled cluster? Only then may the answer be overwritten.
#
# The bytes come by the *async proxy*, as TMA's do, so a fence stands between reading an answer and giving its place
# back: the next answer must not overtake the reading of this one.
#
# The static schedule fits into the same function: the number that comes `step` later, or none.


# %%
class Place(NamedTuple):
    """Where a CTA is in its cluster."""

    half: cutlass.Int32  # of its pair: 0, the leader and the upper rows, or 1
    m: cutlass.Int32  # its pair's row of pairs
    n: cutlass.Int32  # its pair's column of pairs


class Work(NamedTuple):
    """What a cluster is to do: block `first`, and then whatever `next_block` says."""

    first: cutlass.Int32
    step: cutlass.Int32  # clusters that were launched
    blocks: cutlass.Int32  # of C
    grid: tuple[cutlass.Int32, cutlass.Int32]  # of blocks, down and across C
    place: Place


@cute.jit
def work_of_cta(shape_mn, config: cutlass.Constexpr):
    """What this CTA has to do."""
    down = cute.ceil_div(shape_mn[0], config.tile_m * config.pairs_m)
    across = cute.ceil_div(shape_mn[1], config.tile_n * config.pairs_n)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    pair = rank // PAIR
    place = Place(rank % PAIR, pair % config.pairs_m, pair // config.pairs_m)
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    return Work(cta // config.cluster, ctas // config.cluster, down * across, (down, across), place)


def first_answer(config: Config):
    """Where the first answer will be; the static schedule, which has none, goes through the same motions."""
    return pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, max(config.answers, 1))


class Answers(NamedTuple):
    """The answers of the hardware's tile scheduler."""

    asked: pipeline.PipelineClcFetchAsync  # whether an answer is there, and read by all
    answers: cute.Pointer  # to shared memory, 16 bytes each


@cute.jit
def next_block(clc: Answers, read, number, work: Work, config: cutlass.Constexpr):
    """The number of the block that comes after `number`, or -1 if that was the last; and where the next answer is."""
    asked, answers = clc
    if cutlass.const_expr(config.answers == 0):
        number += work.step
        if number >= work.blocks:
            number = cutlass.Int32(-1)
    else:
        asked.consumer_wait(read)
        cta, _, _, yes = cute.arch.clc_response(answers + read.index)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()  # all lanes have read it
        with cute.arch.elect_one():
            asked.consumer_release(read)
        read.advance()
        number = cutlass.Int32(-1)
        if yes != 0:
            number = cta // config.cluster
    return number, read


@cute.jit
def tile_of(work: Work, number, config: cutlass.Constexpr):
    """The tile (m, n) of C that this CTA's pair has in a block: blocks column by column inside groups of rows."""
    down, across = work.grid
    wanted = config.swizzle_size // config.pairs_m
    group, inside = number // (wanted * across), number % (wanted * across)
    first = group * wanted
    height = cutlass.min(down - first, wanted)  # the last group may be lower
    m, n = first + inside % height, inside // height
    return m * config.pairs_m + work.place.m, n * config.pairs_n + work.place.n


# %% [markdown]
# ## The warp that asks
#
# It works in the first CTA of a cluster alone. `producer_acquire` waits until everyone in the cluster has read the
# answer that was there, and tells each CTA's barrier to expect 16 bytes. It is a reader of its own answers too, for
# **after a no it must not ask again**: PTX leaves that undefined.
#
# It must be the last to end. The last answer is read by warps of other CTAs too, and each of them arrives at a
# barrier *here*: `producer_tail` waits for them.


# %%
@cute.jit
def ask(clc: Answers, work: Work, config: cutlass.Constexpr):
    """Ask for one block after the other, for the whole cluster, until the answer is no."""
    asked, answers = clc
    write = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.answers)
    read, number = first_answer(config), work.first
    while number >= 0:
        asked.producer_acquire(write)
        with cute.arch.elect_one():
            cute.arch.issue_clc_query(asked.producer_get_barrier(write), answers + write.index)
        write.advance()
        number, read = next_block(clc, read, number, work, config)
    asked.producer_tail(write)  # all have read the last answer


# %% [markdown]
# ## The warp that loads
#
# There are no loops over tile iterations any more: each role goes on while there is a block. What it does in a block is
# as before.


# %%
def multicast_masks(place: Place, config: Config) -> tuple[int | cutlass.Int32, int | cutlass.Int32]:
    """Who is to get the part of A, and the part of B, that a CTA fetches: a bit for each rank."""
    across = sum(1 << PAIR * config.pairs_m * n for n in range(config.pairs_n))  # of the CTA at (0, 0, 0)
    down = sum(1 << PAIR * m for m in range(config.pairs_m))
    return across << place.half + PAIR * place.m, down << place.half + PAIR * config.pairs_m * place.n


@cute.jit
def load(tma, source, target, barrier, mask, sharers: cutlass.Constexpr):
    """One TMA copy of this CTA's part of a half tile, to itself and all others that share it."""
    if cutlass.const_expr(sharers > 1):
        cute.copy(tma, source, target, tma_bar_ptr=barrier, mcast_mask=cutlass.Int16(mask))
    else:
        cute.copy(tma, source, target, tma_bar_ptr=barrier)


class Loads(NamedTuple):
    """What the loading warp copies: for A and for B, a TMA atom, its source, its destination and who gets it."""

    tma_a: cute.CopyAtom
    tAgA: cute.Tensor  # (TMA, m, k), TMA coordinates
    tAsA: cute.Tensor  # (TMA, STAGE)
    mask_a: cutlass.Int32  # the CTAs that get this one's part, a bit for each rank
    tma_b: cute.CopyAtom
    tBgB: cute.Tensor  # (TMA, n, k), TMA coordinates
    tBsB: cute.Tensor  # (TMA, STAGE)
    mask_b: cutlass.Int32


@cute.jit
def make_loads(tma_a, gA, sA, tma_b, gB, sB, place: Place, config: cutlass.Constexpr) -> Loads:
    """gA (M / 2, K, m, k), gB (N / 2, K, n, k) in global memory; sA, sB (rows, K, STAGE) in shared memory."""
    sA, sB = cute.group_modes(sA, 0, 2), cute.group_modes(sB, 0, 2)
    # The pairs of a row of the cluster divide each half of A's tile among them, those of a column B's.
    across, down = cute.make_layout(config.pairs_n), cute.make_layout(config.pairs_m)
    tAsA, tAgA = cpasync.tma_partition(tma_a, place.n, across, sA, cute.group_modes(gA, 0, 2))
    tBsB, tBgB = cpasync.tma_partition(tma_b, place.m, down, sB, cute.group_modes(gB, 0, 2))
    mask_a, mask_b = multicast_masks(place, config)
    return Loads(tma_a, tAgA, tAsA, mask_a, tma_b, tBgB, tBsB, mask_b)


@cute.jit
def load_tile(pipe, loads: Loads, state, tile, half, config: cutlass.Constexpr):
    """Load a CTA's `half` of the k-tiles of the tile (m, n) of C, a stage each. Returns the pipeline state."""
    tAgA = loads.tAgA[None, tile[0] * PAIR + half, None]  # (TMA, k)
    tBgB = loads.tBgB[None, tile[1] * PAIR + half, None]  # (TMA, k)
    tAsA, tBsB = loads.tAsA, loads.tBsB  # (TMA, STAGE)
    for k_tile in cutlass.range(cute.size(tAgA, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        load(loads.tma_a, tAgA[None, k_tile], tAsA[None, state.index], barrier, loads.mask_a, config.pairs_n)
        load(loads.tma_b, tBgB[None, k_tile], tBsB[None, state.index], barrier, loads.mask_b, config.pairs_m)
        state.advance()
    return state


@cute.jit
def produce(pipe, clc: Answers, loads: Loads, work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    read, number = first_answer(config), work.first
    while number >= 0:
        tile = tile_of(work, number, config)
        state = load_tile(pipe, loads, state, tile, work.place.half, config)
        number, read = next_block(clc, read, number, work, config)
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The warp that multiplies
#
# It works in the leader of a pair alone, so it alone reads the answers: the counts of arrivals, below, must say so.


# %%
def blocks(tile: cute.Tensor, rows: int) -> cute.Tensor:
    """One CTA's tile (rows, K, STAGE) as (MMA, MMA_M or MMA_N, MMA_K, STAGE), MMA being what one instruction reads."""
    return cute.group_modes(cute.flat_divide(tile, (rows, 16)), 0, 2)


class Mainloop(NamedTuple):
    """What the multiplying warp works with: the operands and the accumulators."""

    k_tiles: cutlass.Int32  # of each tile of C
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    tCtC: cute.Tensor  # float32 in tensor memory, (MMA, MMA_M, MMA_N, ACC_STAGE)


@cute.jit
def multiply_tile(pipe, read, main: Mainloop, acc, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Multiply all k-tiles of a tile into acc (MMA, MMA_M, MMA_N); returns where the next tile's begin.

    CuTe elects the one thread that issues.
    """
    mma = tiled_mma(dtype, config)  # made for each tile: a field that changes is this tile's alone
    mma.set(tcgen05.Field.ACCUMULATE, False)
    tCrA, tCrB = main.tCrA, main.tCrB
    for _ in cutlass.range(main.k_tiles, unroll=1):
        pipe.consumer_wait(read)
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements, 32 bytes, along K
            cute.gemm(mma, acc, tCrA[None, None, k, read.index], tCrB[None, None, k, read.index], acc)
            mma.set(tcgen05.Field.ACCUMULATE, True)
        pipe.consumer_release(read)  # once these are done, the stage may be overwritten
        read.advance()
    return read


@cute.jit
def make_mainloop(tCtC, sA, sB, k_tiles, config: cutlass.Constexpr) -> Mainloop:
    """The operands as the tensor core reads them, and where it adds up their products."""
    mma = tiled_mma(sA.element_type, config)
    tCrA = mma.make_fragment_A(blocks(sA, config.cta_m))
    tCrB = mma.make_fragment_B(blocks(sB, config.cta_n))
    return Mainloop(k_tiles, tCrA, tCrB, tCtC)


@cute.jit
def multiply(
    pipe, acc_pipe, clc: Answers, main: Mainloop, work: Work, dtype: cutlass.Constexpr, config: cutlass.Constexpr
):
    """Tile after tile into the accumulator stages, alternating, for both CTAs of the pair."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.acc_stages)
    read, number = first_answer(config), work.first
    while number >= 0:
        acc_pipe.producer_acquire(fill)
        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
        acc = main.tCtC[None, None, None, fill.index]
        state = multiply_tile(pipe, state, main, acc, dtype, config)
        acc_pipe.producer_commit(fill)  # full, once all these are done
        fill.advance()
        number, read = next_block(clc, read, number, work, config)


# %% [markdown]
# ## The warps that store
#
# They are the last to read an answer: when C of a block is on its way. That is when the next one is asked for, while
# the block after is being multiplied.


# %%
class Epilogue(NamedTuple):
    """Where the storing warps put C, and by which copies."""

    copies: TiledCopies
    thread: cutlass.Int32  # of the four warps
    storing: cutlass.Boolean  # is this one's warp the one that talks to TMA?
    sC: cute.Tensor  # the buffers, (M / 2, EPI_N, BUFFER)
    tDsC: cute.Tensor  # this thread's part of them, (VEC, REST_M, REST_N, BUFFER)
    tma_c: cute.CopyAtom
    bSsC: cute.Tensor  # the buffers as TMA reads them, (TMA, BUFFER)
    bSgC: cute.Tensor  # the subtiles of C, (TMA, m, n), TMA coordinates
    barrier: pipeline.NamedBarrier  # of the four warps


@cute.jit
def make_epilogue(copies, sC, tma_c, gC) -> Epilogue:
    """sC (M / 2, EPI_N, BUFFER): the buffers; gC (M / 2, EPI_N, m, n): all subtiles of C."""
    tidx, _, _ = cute.arch.thread_idx()
    storing = cute.arch.make_warp_uniform(tidx // 32) == 0
    tDsC = copies.r2s_c.get_slice(tidx).partition_D(sC)
    whole = cute.make_layout(1)  # a subtile is one box: nothing is divided among CTAs
    bSsC, bSgC = cpasync.tma_partition(tma_c, 0, whole, cute.group_modes(sC, 0, 2), cute.group_modes(gC, 0, 2))
    barrier = pipeline.NamedBarrier(barrier_id=2, num_threads=32 * EPILOGUE_WARPS)
    return Epilogue(copies, tidx, storing, sC, tDsC, tma_c, bSsC, bSgC, barrier)


@cute.jit
def store_subtile(epi: Epilogue, rC, buffer: cutlass.Constexpr, target, config: cutlass.Constexpr):
    """Store a subtile of C: from registers rC through a buffer, and by TMA to `target` (TMA,)."""
    rC = epi.copies.r2s_c.get_slice(epi.thread).retile(rC)
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)
    epi.barrier.arrive_and_wait()  # all know that the buffer is free
    cute.copy(epi.copies.r2s_c, rC, epi.tDsC[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")
    epi.barrier.arrive_and_wait()  # all have written, and said so to TMA
    if epi.storing:
        with cute.arch.elect_one():
            cute.copy(epi.tma_c, epi.bSsC[None, buffer], target)
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def store(acc_pipe, clc: Answers, tCtC, epi: Epilogue, work: Work, config: cutlass.Constexpr):
    """Fetch and store tile after tile. tCtC: (MMA, MMA_M, MMA_N, ACC_STAGE)."""
    t2r = epi.copies.t2r_c.get_slice(epi.thread)
    rAcc = cute.make_rmem_tensor(t2r.partition_D(epi.sC)[None, None, None, 0].shape, cutlass.Float32)
    across = config.tile_n // config.epi_n
    fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)
    read, number = first_answer(config), work.first
    while number >= 0:
        m, n = tile_of(work, number, config)
        row = m * PAIR + work.place.half
        acc_pipe.consumer_wait(fetch)
        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
        tDtC = t2r.partition_S(pieces(tCtC[None, None, None, fetch.index], config))  # (LD, LD_M, LD_N, 1, PIECE)
        for piece in cutlass.range_constexpr(across):
            cute.copy(epi.copies.t2r_c, tDtC[None, None, None, 0, piece], rAcc)
            cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
            if cutlass.const_expr(piece == across - 1):
                cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
                with cute.arch.elect_one():
                    acc_pipe.consumer_release(fetch)  # the leader may overwrite this half of tensor memory
            rC = cute.make_rmem_tensor(rAcc.shape, epi.sC.element_type)
            rC.store(rAcc.load().to(rC.element_type))
            target = epi.bSgC[None, row, n * across + piece]
            store_subtile(epi, rC, piece % config.epi_buffers, target, config)
        fetch.advance()
        number, read = next_block(clc, read, number, work, config)
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# ## The kernel
#
# A third count of arrivals joins those of [the page before](two_cta_gemm.ipynb). An answer is read when one thread of
# each warp that reads it has arrived at the *first* CTA's barrier: in every CTA the warp that loads and the four that
# store, in every leader the warp that multiplies, and once the warp that asks.


# %%
@cute.jit
def make_pipelines(barriers, config: cutlass.Constexpr):
    """The barriers of the stages of A and B, the accumulator stages and the answers, in step with the cluster's."""
    ranks = cute.make_layout((PAIR, config.pairs_m, config.pairs_n, 1))  # (half, m, n, k) -> rank
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    pairs = pipeline.CooperativeGroup(pipeline.Agent.Thread, config.pairs_m + config.pairs_n - 1)
    warps = pipeline.CooperativeGroup(pipeline.Agent.Thread, PAIR * EPILOGUE_WARPS)
    every_cta, every_pair = EPILOGUE_WARPS + 1, 1  # warps that read an answer
    read_by = config.cluster * every_cta + config.cluster // PAIR * every_pair + 1
    readers = pipeline.CooperativeGroup(pipeline.Agent.Thread, read_by)
    pipe = pipeline.PipelineTmaUmma.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=one,
        consumer_group=pairs,  # the leader of each signals
        tx_count=PAIR * config.stage_bytes,
        cta_layout_vmnk=ranks,
        defer_sync=True,
    )
    acc_pipe = pipeline.PipelineUmmaAsync.create(
        barrier_storage=barriers + 2 * config.stages,
        num_stages=config.acc_stages,
        producer_group=one,
        consumer_group=warps,  # one thread of each signals
        cta_layout_vmnk=ranks,
        defer_sync=True,
    )
    asked = pipeline.PipelineClcFetchAsync.create(
        barrier_storage=barriers + 2 * (config.stages + config.acc_stages),
        num_stages=max(config.answers, 1),
        producer_group=one,
        consumer_group=readers,
        tx_count=ANSWER_BYTES,
        cta_layout_vmnk=ranks,
    )
    return pipe, acc_pipe, asked


def sums_in(tmem, dtype, config: Config):
    """The address of tensor memory, once it is allocated, and the accumulators (MMA, MMA_M, MMA_N, STAGE) in it."""
    mma = tiled_mma(dtype, config)
    tmem.wait_for_alloc()
    address = tmem.retrieve_ptr(cutlass.Float32)
    shape = cute.append(mma.partition_shape_C((config.tile_m, config.tile_n)), config.acc_stages)
    return address, cute.make_tensor(address, mma.make_fragment_C(shape).layout)


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
    """A pair of CTAs computes its share of the tiles of C, one after the other."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work, layouts = work_of_cta(mC.shape, config), smem_layouts(dtype, config)

    smem = SmemAllocator()
    answers = smem.allocate_array(cutlass.Int128, max(config.answers, 1), byte_alignment=16)
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.acc_stages + max(config.answers, 1)))
    freed = smem.allocate_array(cutlass.Int64, 1)
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    # Every CTA allocates the same, so that the pair's operands and what a multicast writes lie at the same offsets.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    told = pipeline.NamedBarrier(barrier_id=1, num_threads=32 * (EPILOGUE_WARPS + 1))  # where tensor memory is
    tmem = TmemAllocator(tmem_address, barrier_for_retrieve=told, is_two_cta=True, two_cta_tmem_dealloc_mbar_ptr=freed)
    pipe, acc_pipe, asked = make_pipelines(barriers, config)  # the last: from here on the cluster has all barriers
    clc = Answers(asked, answers)
    gA = cute.local_tile(mA, (config.cta_m, config.tile_k), (None, None))  # (M / 2, K, m, k)
    gB = cute.local_tile(mB, (config.cta_n, config.tile_k), (None, None))  # (N / 2, K, n, k)
    gC = cute.local_tile(mC, (config.cta_m, config.epi_n), (None, None))  # (M / 2, EPI_N, m, n)

    if warp_idx == TMA_WARP:
        loads = make_loads(tma_a, gA, sA, tma_b, gB, sB, work.place, config)
        produce(pipe, clc, loads, work, config)
    elif warp_idx == MMA_WARP:
        _, tCtC = sums_in(tmem, dtype, config)
        if work.place.half == 0:
            main = make_mainloop(tCtC, sA, sB, cute.size(gA, mode=[3]), config)
            multiply(pipe, acc_pipe, clc, main, work, dtype, config)
    elif warp_idx == ASKING_WARP:  # is there if anything is asked for
        if cutlass.const_expr(config.answers > 0):
            if cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) == 0:
                ask(clc, work, config)
    else:
        tmem.allocate(config.tmem_columns)  # by warp 0 of both CTAs
        tmem.relinquish_alloc_permit()  # another kernel's CTA on this SM may allocate what is free
        address, tCtC = sums_in(tmem, dtype, config)
        epi = make_epilogue(tiled_copies(dtype, config), sC, tma_c, gC)
        store(acc_pipe, clc, tCtC, epi, work, config)
        epi.barrier.arrive_and_wait()  # all four have fetched their last accumulators
        tmem.free(address)  # once the other CTA says so too


# %% [markdown]
# ## The launch
#
# As many clusters as there are blocks, however many SMs there are. Those that find a place begin, and most of the
# others never will: they are cancelled, and their work is done by those that run. Only `static` counts SMs.


# %%
def make_load(matrix: cute.Tensor, stage, box: tuple[int, int], sharers: int):
    """The TMA load of one CTA's part of a stage, `box` rows and columns, divided among `sharers` that multicast it."""
    kinds = (cpasync.CopyBulkTensorTileG2SOp, cpasync.CopyBulkTensorTileG2SMulticastOp)
    return cpasync.make_tiled_tma_atom(kinds[sharers > 1](tcgen05.CtaGroup.TWO), matrix, stage, box, sharers)


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    write = cpasync.CopyBulkTensorTileS2GOp()
    a_stage, b_stage, buffer = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    tma_a, mA = make_load(mA, a_stage, (config.cta_m, config.tile_k), config.pairs_n)
    tma_b, mB = make_load(mB, b_stage, (config.cta_n, config.tile_k), config.pairs_m)
    tma_c, mC = cpasync.make_tiled_tma_atom(write, mC, buffer, (config.cta_m, config.epi_n))
    down = cute.ceil_div(m, config.tile_m * config.pairs_m)
    across = cute.ceil_div(n, config.tile_n * config.pairs_n)
    clusters = down * across
    if cutlass.const_expr(config.answers == 0):
        clusters = cutlass.min(clusters, sms // config.cluster)
    kernel(tma_a, mA, tma_b, mB, tma_c, mC, dtype, config).launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `Gemm`, which all recipes share, checks a call, compiles the kernel, and keeps a *plan* for each kind of call. This is
# the part that is this kernel's own.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (VARIANTS[call.variant],), (call.mnk, call.strides, call.sms)


GEMM = Gemm(compile_for, prepare, gpus=((10, 0), (10, 3)), needs="tcgen05", variants=VARIANTS, padded=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: how the next tile is found.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 10.0 or
    10.3. Any M, N, K >= 1 within that: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## Static against dynamic
#
# The first picture's rules for 1024 blocks, an 8192 x 8192 product, on 74 places, the pairs of a GPU with 148 SMs. How
# much longer does it take than the work divided by the places, from when they can begin?

# %% tags=["lab"]
import numpy as np
from IPython.display import Markdown

from cookbook.check import pipeline as interleavings
from cookbook.check.pipeline.programs import host_arguments, of_cluster
from cookbook.publish.pages import results_table, table

PLACES, BLOCKS = 74, (8192 // CONFIG.tile_m) * (8192 // CONFIG.tile_n)
rng = np.random.default_rng(0)
varied = 1 + 0.1 * rng.standard_normal(BLOCKS).clip(-2, 2)
slow = 1 + 0.1 * rng.random(PLACES)
together, late = [0.0] * PLACES, [0.0] * (PLACES - 18) + [4.0] * 18
CASES = {
    "all begin together, all blocks alike": (together, lambda place, block: 1.0),
    "blocks differ (10 % deviation)": (together, lambda place, block: varied[block]),
    "places differ (up to 10 % slower)": (together, lambda place, block: slow[place]),
    "18 places are free 4 blocks later": (late, lambda place, block: 1.0),
}
rows = []
for case, (begins, took) in CASES.items():
    ends = {}
    for name, config in VARIANTS.items():
        done = schedule(BLOCKS, begins, took, config.answers)
        work = sum(end - start for place in done for start, end, _ in place)
        ideal = (work + sum(begins)) / PLACES
        ends[name] = max(end for place in done for _, end, _ in place) / ideal
    rows.append([case, *(f"{end:.3f}" for end in ends.values())])
Markdown(table(["of the ideal, by these rules", *VARIANTS], rows))

# %% [markdown] tags=["lab"]
# Where all places are alike the dynamic schedule gains nothing: the last round is not full, and takes as long as a full
# one. Where they differ, the free places do the work of the late ones. `two ahead` keeps for a slow place what a fast
# one could have had. It is for short tiles: where the epilogue ends late in the next block, one answer comes too late.
#
# ## The messages
#
# The messages of one cluster that does three blocks, as level *pipeline* finds them in CuTe's trace of this kernel: for
# each warp how often it waits for an answer's barrier, and how often it tells the first CTA that it has read one.

# %% tags=["lab"]
trace = interleavings.trace_of(packaged, "sm_100a", cutlass.BFloat16, CONFIG)
problem = interleavings.Problem(3 * CONFIG.tile_m, CONFIG.tile_n, CONFIG.tile_k, CONFIG.cluster)
programs = of_cluster(trace, host_arguments(packaged, CONFIG, problem)).warps
asks = [e for e in programs[0, ASKING_WARP] if e.what == "load"]
full = {barrier for e in asks for barrier in e.barriers}  # one in each CTA
(empty,) = {e.barrier for e in programs[0, ASKING_WARP] if e.what == "wait" and e.barrier not in full}
names = {MMA_WARP: "multiplies", TMA_WARP: "loads", ASKING_WARP: "asks"}
rows = []
for (cta, warp), events in programs.items():
    waits = sum(e.what == "wait" and e.barrier in full for e in events)
    told = sum(e.what == "arrive" and e.barrier == empty for e in events)
    rows.append([f"CTA {cta}, warp {warp}", names.get(warp, "stores"), str(waits), str(told)])
readers = sum(told != "0" for *_, told in rows)
assert readers == CONFIG.cluster * (EPILOGUE_WARPS + 1) + CONFIG.cluster // PAIR + 1
heads = ["", "", "waits for answers", "gives back"]
Markdown(f"{len(asks)} requests, {readers} readers of each answer:\n\n" + table(heads, rows, right=2))

# %% [markdown] tags=["lab"]
# Three blocks take three requests: two are granted, the third says that there is no more. The warps of the second CTA
# that neither load nor store read nothing. If the count of readers included them, the second request would wait for
# ever. If it left out all of the second CTA, an answer could overwrite one that is still to be read.
#
# ## Check
#
# Every level looks at every variant; layouts, descriptors and data path are those of the page before. Level *pipeline*
# follows one outcome of the requests: the first cluster of the grid is granted all others, the last one none. What
# needs a Blackwell GPU says *not checked*: **this kernel has not run on hardware**.
#
# The check is of the cells above: edit one, run it, and check again.

# %% tags=["lab"]
lab.check_cells("blackwell/persistent_clc_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded. Nothing has been timed so far: that takes a Blackwell GPU.

# %% tags=["lab", "open"]
lab.compare("blackwell/persistent_clc_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("blackwell/persistent_clc_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A schedule that is made while the kernel runs costs one warp, 16 bytes of shared memory and two barriers. The kernel
# no longer needs to know how many SMs there are, nor that they are its own. It cannot fix a last round that is not
# full: for that the tiles must be smaller, or K must be split.
#
# Next: [operands in eight bits, with scale factors](mxfp8_gemm.ipynb).
# To use it: `cookbook copy blackwell/persistent_clc_gemm my_gemm.py`, then `from my_gemm import matmul`.
