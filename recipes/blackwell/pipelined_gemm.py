# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Warp-specialized tcgen05: two accumulator stages"
#     claim: >-
#       With two accumulator stages in tensor memory the tensor core multiplies the next tile while four warps store
#       this one, and does not wait for the epilogue.
#     track: blackwell
#     order: 20
#     builds_on: blackwell/tma_tcgen05_gemm
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> tcgen05.mma -> tensor memory -> tcgen05.ld -> swizzled boxes -> tma
#     instructions:
#       all: [UTMALDG.2D, UTCHMMA, UTCBAR, LDTM, UTCATOMSWS, STS.128, UTMASTG.2D, SYNCS]
#     sources:
#       - {title: "PTX ISA, tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"}
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
#       - {title: "gau-nernst, tcgen05 for dummies", url: "https://gau-nernst.github.io/tcgen05"}
# ---

# %% [markdown]
# # Warp-specialized tcgen05: two accumulator stages
#
# **Claim.** The accumulators of a tile fill only half of tensor memory. So the tiles of a persistent CTA alternate
# between the two halves: **while four warps empty one half, the tensor core fills the other**.

# %% [markdown] tags=["lab"]
# A sketch of four tiles: the times are chosen, and nothing here is measured. With one stage the tensor core is idle
# while the warps fetch a tile. With two it is never idle, as long as a tile takes longer to multiply than to fetch and
# store. Three rules make the schedule:
#
# * The tensor core multiplies a tile when it has multiplied the one before, *and* the accumulator stage is empty.
# * The warps fetch a tile when it has been multiplied, and the tile before is stored.
# * A stage is empty as soon as its tile has been fetched; the tile is stored afterwards.

# %% tags=["lab"]
import cookbook
from cookbook import draw

packaged = cookbook.load("blackwell/pipelined_gemm")
FETCH, STORE = 3.0, 2.0  # of a tile, in times of one k-tile on the tensor core


def schedule(tiles: int, k_tiles: int, acc_stages: int) -> dict[str, list[tuple[float, float]]]:
    """(start, end) of multiplying, fetching and storing each tile, counted in k-tiles."""
    spans = {"multiply": [], "fetch": [], "store": []}
    for tile in range(tiles):
        emptied = spans["fetch"][tile - acc_stages][1] if tile >= acc_stages else 0.0
        start = max(emptied, spans["multiply"][-1][1] if tile else 0.0)
        spans["multiply"].append((start, start + k_tiles))
        start = max(start + k_tiles, spans["store"][-1][1] if tile else 0.0)
        spans["fetch"].append((start, start + FETCH))
        spans["store"].append((start + FETCH, start + FETCH + STORE))
    return spans


lanes = {}
for name, config in packaged.VARIANTS.items():
    found = schedule(4, 8, config.acc_stages)
    lanes |= {"": []} if lanes else {}
    for row, what in (("tensor core", "multiply"), ("tcgen05.ld", "fetch"), ("stores", "store")):
        lanes[f"{name}: {row}"] = [draw.Span(*span, f"tile {i}", f"tile {i}") for i, span in enumerate(found[what])]
title, note = "Four tiles of one SM, eight k-tiles each (a sketch)", "Times are chosen, not measured."
draw.lanes(lanes, title, unit="k-tiles", note=note)

# %% [markdown]
# In [the kernel before](tma_tcgen05_gemm.ipynb) the tensor core and the epilogue alternate. Here every warp has one
# thing to do. One asks TMA for A and B, one issues `tcgen05.mma`, four store C. They share only barriers: *full* and
# *empty* for each stage of A and B, *full* and *empty* for each accumulator stage. On Hopper, where accumulators are
# registers, this takes [two warpgroups that swap roles](../hopper/pingpong_gemm.ipynb). On Blackwell it takes a second
# stage of a pipeline.
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
# As before a tile of C is 128 x 256, and takes 256 of tensor memory's 512 columns; `acc_stages` is two, and that is all
# there is.
#
# C can no longer lie over A and B in shared memory, for these are in use all the time: it leaves in epilogue subtiles
# of 64 columns (128 bytes, a row of the widest swizzle) through two buffers of its own, 16 KiB each, and TMA carries
# them to global memory. Four stages of A and B and the two buffers are 224 KiB, of 227 that a CTA may use.
#
# | variant | |
# |---|---|
# | `one accumulator stage` | this very kernel with half of tensor memory: the epilogue holds the next tile up |
# | `two accumulator stages` | both halves, alternating |


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per tile: one row in each lane of tensor memory
    tile_n: int = 256  # columns of C per tile: the widest tcgen05.mma
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four tcgen05.mma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    acc_stages: int = 2  # accumulator tiles in tensor memory
    epi_n: int = 64  # columns of an epilogue subtile of C: 128 bytes, and as many registers a thread
    epi_buffers: int = 2  # epilogue subtiles of C on their way out
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles

    def __post_init__(self):
        check_epilogue("epi_buffers", self.epi_buffers, self.tile_n // self.epi_n)

    @property
    def threads(self) -> int:
        return 32 * WARPS

    @property
    def tmem_columns(self) -> int:
        return self.acc_stages * self.tile_n  # 32 bits each; allocated in powers of two, at least 32

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A and B; and C beside them
        return 1024 + self.stages * self.stage_bytes + self.epi_buffers * self.tile_m * self.epi_n * 2


EPILOGUE_WARPS, MMA_WARP, TMA_WARP, WARPS = 4, 4, 5, 6  # warps 0 to 3: warp w reaches lanes 32 w to 32 w + 31
VARIANTS = {"one accumulator stage": Config(acc_stages=1), "two accumulator stages": Config()}
DEFAULT = "two accumulator stages"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown]
# ## Layouts, MMA and copies
#
# A and B lie as before, and the MMA is the same. A buffer of C holds all 128 rows of an epilogue subtile, atoms one
# above the other: row *m* is written by the thread that fetched it from lane *m*, 16 bytes at a time, and TMA reads the
# buffer as one box.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, EPI_N, BUFFER)


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
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (c.tile_m, c.epi_n, c.epi_buffers), order=(0, 1, 2)),
    )


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """tcgen05.mma of 128 x N x 16 by one CTA, A and B from shared memory."""
    shape, smem, k_major = (config.tile_m, config.tile_n, 16), tcgen05.OperandSource.SMEM, OperandMajorMode.K
    op = tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.ONE, smem, k_major, k_major)
    return cute.make_tiled_mma(op)


class TiledCopies(NamedTuple):
    """The copies by software on the way of C, over one subtile of it."""

    t2r_c: cute.TiledCopy  # tcgen05.ld: from tensor memory to registers, `epi_n` columns of a row a thread
    r2s_c: cute.TiledCopy  # st.shared of 16 bytes


def pieces(sums: cute.Tensor, config: Config = CONFIG) -> cute.Tensor:
    """The accumulators of one stage (MMA, MMA_M, MMA_N) as (M, EPI_N, 1, N / EPI_N)."""
    return cute.flat_divide(sums[(None, None), 0, 0], (config.tile_m, config.epi_n))


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The two copies of the epilogue."""
    mma = tiled_mma(dtype, config)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(config.epi_n)), cutlass.Float32)
    piece = pieces(mma.make_fragment_C(mma.partition_shape_C((config.tile_m, config.tile_n))), config)
    t2r_c = tcgen05.make_tmem_copy(load, piece[None, None, 0, 0])
    write = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=128)
    return TiledCopies(t2r_c=t2r_c, r2s_c=cute.make_tiled_copy_D(write, t2r_c))


# %% [markdown] tags=["lab"]
# Where CuTe says the accumulators of two tiles lie. Row *m* is in lane *m*, which warp *m* / 32 alone can reach; the
# second tile has the columns that the first one leaves. A box is what one `tcgen05.ld` of one warp brings.

# %% tags=["lab"]
from cookbook import access, banks
from cookbook.layouts import evaluate


def sums(dtype, config=CONFIG):
    mma = tiled_mma(dtype, config)
    return mma.make_fragment_C(cute.append(mma.partition_shape_C((config.tile_m, config.tile_n)), config.acc_stages))


table_of_sums = evaluate(lambda dtype: sums(dtype).layout, cutlass.BFloat16, arch="sm_100a").table()
addresses = table_of_sums.reshape(CONFIG.tile_n, CONFIG.tile_m, CONFIG.acc_stages).transpose(2, 1, 0)
draw.tensor_memory(addresses, CONFIG.epi_n)

# %% [markdown] tags=["lab"]
# One buffer holds 128 rows of 128 bytes. A store of one warp writes 16 bytes of each of 32 rows, in four phases of
# eight lanes. Eight rows that follow one another put the same chunk into eight different slots: one wavefront a phase,
# which is the ideal. TMA undoes the swizzle as it reads.

# %% tags=["lab"]
layouts, copies = (evaluate(made, cutlass.BFloat16, arch="sm_100a") for made in (smem_layouts, tiled_copies))
stores_of_warp_0 = access.of_copy(layouts.c, copies.r2s_c, "dst", "ldst", warp=0)
counted = [banks.wavefronts(one.addresses, one.width) for one in stores_of_warp_0]
assert all(one.excess == 0 for one in counted)
print(f"{len(counted)} stores a warp and piece; wavefronts each: {sorted({one.actual for one in counted})}")
print(layouts.c)
draw.access_view(stores_of_warp_0[0])

# %% [markdown]
# ## The tile scheduler: which tile is next
#
# Tiles are numbered, in groups of `swizzle_size` rows of tiles. CTA *i* of *s* that were started does the numbers
# i, i + s, i + 2s and so on. The *tile scheduler* is static: the three roles each work it out for themselves, and
# need not talk about it. A tile's place in the sequence of its CTA is its **tile iteration**; tile and half of tensor
# memory go together, iteration by iteration.


# %%
class Work(NamedTuple):
    """The tiles that a CTA is to do: `first`, `first + step`, ..., `count` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
    grid: tuple[cutlass.Int32, cutlass.Int32]  # of tiles, down and across C


@cute.jit
def work_of_cta(shape_mn, config: cutlass.Constexpr):
    """What this CTA has to do."""
    down, across = cute.ceil_div(shape_mn[0], config.tile_m), cute.ceil_div(shape_mn[1], config.tile_n)
    first, _, _ = cute.arch.block_idx()
    step, _, _ = cute.arch.grid_dim()
    return Work(first, step, (down * across - first + step - 1) // step, (down, across))


@cute.jit
def tile_of(work: Work, iteration, config: cutlass.Constexpr):
    """The tile (m, n) of C that this CTA computes in an iteration: column by column inside groups of rows of tiles."""
    down, across = work.grid
    number = work.first + iteration * work.step
    group, inside = number // (config.swizzle_size * across), number % (config.swizzle_size * across)
    first = group * config.swizzle_size
    height = cutlass.min(down - first, config.swizzle_size)  # the last group may be lower
    return first + inside % height, inside // height


# %% [markdown]
# ## The warp that loads
#
# One loop more than before: when the last k-tiles of a tile have been read, those of the next one come in, up to
# `stages` of them, whatever the other warps are at.


# %%
class Loads(NamedTuple):
    """What the loading warp copies: for A and for B, a TMA atom, its source and its destination."""

    tma_a: cute.CopyAtom
    tAgA: cute.Tensor  # (TMA, m, k), TMA coordinates
    tAsA: cute.Tensor  # (TMA, STAGE)
    tma_b: cute.CopyAtom
    tBgB: cute.Tensor  # (TMA, n, k), TMA coordinates
    tBsB: cute.Tensor  # (TMA, STAGE)


@cute.jit
def make_loads(tma_a, gA, sA, tma_b, gB, sB) -> Loads:
    """gA (M, K, m, k), gB (N, K, n, k) in global memory; sA (M, K, STAGE), sB (N, K, STAGE) in shared memory."""
    alone = cute.make_layout(1)  # no multicast: a cluster of one
    sA, sB = cute.group_modes(sA, 0, 2), cute.group_modes(sB, 0, 2)
    tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, sA, cute.group_modes(gA, 0, 2))
    tBsB, tBgB = cpasync.tma_partition(tma_b, 0, alone, sB, cute.group_modes(gB, 0, 2))
    return Loads(tma_a, tAgA, tAsA, tma_b, tBgB, tBsB)


@cute.jit
def load_tile(pipe, loads: Loads, state, tile):
    """Load the k-tiles of the tile (m, n) of C, a stage each. Returns the pipeline state."""
    tAgA, tBgB = loads.tAgA[None, tile[0], None], loads.tBgB[None, tile[1], None]  # (TMA, k)
    tAsA, tBsB = loads.tAsA, loads.tBsB  # (TMA, STAGE)
    for k_tile in cutlass.range(cute.size(tAgA, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(loads.tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier)
        cute.copy(loads.tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    return state


@cute.jit
def produce(pipe, loads: Loads, work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(work.count, unroll=1):
        state = load_tile(pipe, loads, state, tile_of(work, iteration, config))
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The warp that multiplies
#
# It consumes stages of A and B and produces accumulator stages. Before a tile it waits until the half of tensor memory
# that is due is *empty*: the epilogue has fetched what was there two tiles ago. After the tile's last `tcgen05.mma` it
# asks the tensor core to say when that half is *full*, and goes on with the next tile at once.
#
# The order between a `tcgen05.ld` of one thread and a `tcgen05.mma` of another needs more than a barrier. The PTX ISA
# asks for a fence on either side: `before_thread_sync` by who has loaded, before it signals, and `after_thread_sync` by
# who waited, before it multiplies.


# %%
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
    thr = mma.get_slice(0)
    tCrA = mma.make_fragment_A(thr.partition_A(sA))
    tCrB = mma.make_fragment_B(thr.partition_B(sB))
    return Mainloop(k_tiles, tCrA, tCrB, tCtC)


@cute.jit
def multiply(pipe, acc_pipe, main: Mainloop, work: Work, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Tile after tile into the accumulator stages, alternating."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.acc_stages)
    for _ in cutlass.range(work.count, unroll=1):
        acc_pipe.producer_acquire(fill)
        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
        acc = main.tCtC[None, None, None, fill.index]
        read = multiply_tile(pipe, read, main, acc, dtype, config)
        acc_pipe.producer_commit(fill)  # full, once all these are done
        fill.advance()


# %% [markdown]
# ## The warps that store
#
# Four warps fetch an epilogue subtile of 64 columns, round it, write it into a buffer, and one thread of them asks TMA
# to carry the buffer away. [Hopper's page](../hopper/persistent_gemm.ipynb) explains which warp must wait there, and
# for what.
#
# New is *when the half of tensor memory is given back*: not when C is stored, but as soon as the last subtile is in
# registers. From there on the tensor core may overwrite it, while the last subtiles are still on their way.


# %%
class Epilogue(NamedTuple):
    """Where the storing warps put C, and by which copies."""

    copies: TiledCopies
    thread: cutlass.Int32  # of the four warps
    storing: cutlass.Boolean  # is this one's warp the one that talks to TMA?
    sC: cute.Tensor  # the buffers, (M, EPI_N, BUFFER)
    tDsC: cute.Tensor  # this thread's part of them, (VEC, REST_M, REST_N, BUFFER)
    tma_c: cute.CopyAtom
    bSsC: cute.Tensor  # the buffers as TMA reads them, (TMA, BUFFER)
    bSgC: cute.Tensor  # the subtiles of C, (TMA, m, n), TMA coordinates
    barrier: pipeline.NamedBarrier  # of the four warps


@cute.jit
def make_epilogue(copies, sC, tma_c, gC) -> Epilogue:
    """sC (M, EPI_N, BUFFER): the buffers; gC (M, EPI_N, m, n): all subtiles of C."""
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
def store(acc_pipe, tCtC, epi: Epilogue, work: Work, config: cutlass.Constexpr):
    """Fetch and store tile after tile. tCtC: (MMA, MMA_M, MMA_N, ACC_STAGE)."""
    t2r = epi.copies.t2r_c.get_slice(epi.thread)
    rAcc = cute.make_rmem_tensor(t2r.partition_D(epi.sC)[None, None, None, 0].shape, cutlass.Float32)
    across = config.tile_n // config.epi_n
    fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)
    for iteration in cutlass.range(work.count, unroll=1):
        m, n = tile_of(work, iteration, config)
        acc_pipe.consumer_wait(fetch)
        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
        tDtC = t2r.partition_S(pieces(tCtC[None, None, None, fetch.index], config))  # (LD, LD_M, LD_N, 1, PIECE)
        for piece in cutlass.range_constexpr(across):
            cute.copy(epi.copies.t2r_c, tDtC[None, None, None, 0, piece], rAcc)
            cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
            if cutlass.const_expr(piece == across - 1):
                cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
                with cute.arch.elect_one():
                    acc_pipe.consumer_release(fetch)  # this half of tensor memory may be overwritten
            rC = cute.make_rmem_tensor(rAcc.shape, epi.sC.element_type)
            rC.store(rAcc.load().to(rC.element_type))
            target = epi.bSgC[None, m, n * across + piece]
            store_subtile(epi, rC, piece % config.epi_buffers, target, config)
        fetch.advance()
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# ## The kernel
#
# The three roles, each in its own branch. The first of the storing warps allocates tensor memory, all 512 columns of
# it, and frees it at the end: by then every tile has been multiplied, for these warps have waited for it.


# %%
@cute.jit
def make_pipelines(barriers, config: cutlass.Constexpr):
    """The barriers of the stages of A and B, and those of the accumulator stages."""
    one, warps = (pipeline.CooperativeGroup(pipeline.Agent.Thread, n) for n in (1, EPILOGUE_WARPS))
    pipe = pipeline.PipelineTmaUmma.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=one,
        consumer_group=one,
        tx_count=config.stage_bytes,
        defer_sync=True,
    )
    acc_pipe = pipeline.PipelineUmmaAsync.create(
        barrier_storage=barriers + 2 * config.stages,
        num_stages=config.acc_stages,
        producer_group=one,
        consumer_group=warps,  # one thread of each signals
    )
    return pipe, acc_pipe


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
    """A CTA computes its share of the tiles of C, one after the other."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work, layouts = work_of_cta(mC.shape, config), smem_layouts(dtype, config)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.acc_stages))
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    pipe, acc_pipe = make_pipelines(barriers, config)
    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (None, None))  # (M, K, m, k)
    gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (None, None))  # (N, K, n, k)
    gC = cute.local_tile(mC, (config.tile_m, config.epi_n), (None, None))  # (M, EPI_N, m, n)
    told = pipeline.NamedBarrier(barrier_id=1, num_threads=32 * (EPILOGUE_WARPS + 1))  # where tensor memory is
    tmem = TmemAllocator(tmem_address, barrier_for_retrieve=told)

    if warp_idx == TMA_WARP:
        produce(pipe, make_loads(tma_a, gA, sA, tma_b, gB, sB), work, config)
    elif warp_idx == MMA_WARP:
        _, tCtC = sums_in(tmem, dtype, config)
        main = make_mainloop(tCtC, sA, sB, cute.size(gA, mode=[3]), config)
        multiply(pipe, acc_pipe, main, work, dtype, config)
    else:
        tmem.allocate(config.tmem_columns)  # by warp 0
        tmem.relinquish_alloc_permit()  # another kernel's CTA on this SM may allocate what is free
        address, tCtC = sums_in(tmem, dtype, config)
        epi = make_epilogue(tiled_copies(dtype, config), sC, tma_c, gC)
        store(acc_pipe, tCtC, epi, work, config)
        epi.barrier.arrive_and_wait()  # all four have fetched their last accumulators
        tmem.free(address)


# %% [markdown]
# ## The launch
#
# As many CTAs as there are SMs, for one fills an SM, and never more than there are tiles. The number of SMs is a
# run-time argument.


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
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    load, write = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    a_stage, b_stage, buffer = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mB, b_stage, (config.tile_n, config.tile_k))
    tma_c, mC = cpasync.make_tiled_tma_atom(write, mC, buffer, (config.tile_m, config.epi_n))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(tma_a, mA, tma_b, mB, tma_c, mC, dtype, config).launch(
        grid=(cutlass.min(tiles, sms), 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1
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
    variant: one of VARIANTS: how many accumulator tiles tensor memory holds.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 10.0 or
    10.3. Any M, N, K >= 1 within that: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## How busy is the tensor core
#
# The part of its time in which the tensor core multiplies, by the rules of the first picture, for K of a number of
# k-tiles:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import table

TILES, K_TILES = 64, (2, 4, 8, 16, 32, 64)
rows = []
for name, config in VARIANTS.items():
    ends = {k: schedule(TILES, k, config.acc_stages)["multiply"][-1][1] for k in K_TILES}
    rows.append([name, *(f"{TILES * k / end:.0%}" for k, end in ends.items())])
Markdown(table(["tensor core busy, by the rules", *(f"{k} k-tiles" for k in K_TILES)], rows))

# %% [markdown] tags=["lab"]
# Where K is short the epilogue limits both variants, and a second stage cannot fix that. Neither could a third: a stage
# that waits for the epilogue gains nothing.
#
# ## Check
#
# Every level looks at both variants. The model takes the stages of tensor memory alternately, never clears them, and
# sends C as the kernel does: out of 32 lanes a warp, into a swizzled buffer, and from there box by box, clipped at the
# edges.
#
# Level *pipeline* tries every order in which the six warps may run, for small products. Remove one of the waits or
# fences explained above, and it says what may then happen. What needs a Blackwell GPU says *not checked*: **this kernel
# has not run on hardware**.
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("blackwell/pipelined_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("blackwell/pipelined_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed: that takes a Blackwell GPU. The table is here once one has run
# `cookbook bench blackwell/pipelined_gemm --record`.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("blackwell/pipelined_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# With tensor memory the accumulators are one more thing that a pipeline can have stages of. The MMA warp fills them as
# TMA fills the stages of A and B, and the epilogue empties them. On Hopper the tensor core stays busy during an
# epilogue by a schedule of its own; here two barriers do it.
#
# Next: [two SMs, one tile](two_cta_gemm.ipynb).
#
# To use it: `cookbook copy blackwell/pipelined_gemm my_gemm.py`, then `from my_gemm import matmul`.
