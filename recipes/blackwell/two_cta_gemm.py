# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Two-CTA MMA: tcgen05 with cta_group::2"
#     claim: >-
#       A tcgen05.mma of two CTAs reads half of its operands from each SM, so an SM holds a third less and six stages
#       fit where four did.
#     track: blackwell
#     order: 30
#     builds_on: blackwell/pipelined_gemm
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     serves: {sm_100: 4096}
#     compared_with: blackwell/pipelined_gemm
#     dtypes: [bfloat16, float16]
#     path: tma -> shared memory of two SMs -> tcgen05.mma of both -> tensor memory -> tcgen05.ld -> boxes -> tma
#     instructions:
#       all:
#         - UTMALDG.2D.2CTA
#         - UTCHMMA.2CTA
#         - UTCBAR.2CTA.MULTICAST
#         - LDTM
#         - UTCATOMSWS.2CTA.FIND_AND_SET
#         - UCGABAR_WAIT
#         - STS.128
#         - UTMASTG.2D
#         - SYNCS
#     sources:
#       - {title: "PTX ISA, tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"}
#       - {title: "CUDA C++ Programming Guide, thread block clusters", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-block-clusters"}
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
# ---

# %% [markdown]
# # Two-CTA MMA: tcgen05 with cta_group::2
#
# **Claim.** **One `tcgen05.mma` may belong to two SMs.** Each holds its own 128 rows of A and *half* of B. Both tensor
# cores take part, and each SM has the accumulators of its own rows in its own tensor memory. So an SM loads and holds a
# third less for the same part of C.

# %% [markdown] tags=["lab"]
# In the picture a number is a CTA's rank. Each CTA has a colour: on its rows of C, and on what it loads. A frame is a
# pair. In `pair` each CTA keeps what it loads, and the MMA brings rows and columns together. With more pairs in a
# cluster several CTAs need the same half, and share it by multicast.

# %% tags=["lab"]
import cookbook
from cookbook import draw, lab

packaged = cookbook.load("blackwell/two_cta_gemm")
pairs = {name: (c.pairs_m, c.pairs_n) for name, c in packaged.VARIANTS.items()}
draw.pair_view(pairs, (packaged.CONFIG.cta_m, packaged.CONFIG.cta_n))

# %% [markdown]
# [So far](pipelined_gemm.ipynb) each SM multiplies 128 rows of A by 256 columns of B, and loads all of both. Two SMs
# that work one above the other load the *same* 256 columns. On Hopper [a multicast](../hopper/multicast_gemm.ipynb)
# made them ask L2 only once for these, but each SM still took in and kept all of B.
#
# Two CTAs of one cluster make a **pair**. A tile of C is now 256 x 256, and six stages of A and B fit where four did.
# New is which CTA signals for which. One CTA of the pair, the *leader*, issues every `tcgen05.mma`. Its barriers count
# the bytes that arrive in both CTAs, and after a multiplication it signals both.
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
# `tile_m` and `tile_n` are those of the pair. A CTA has `cta_m` = 128 rows of A and of C, one in each lane of its
# tensor memory; of B it brings `cta_n` = 128 columns (rows of the K-major operand). Its accumulators are 128 x 256 as
# before, and two tiles of them fill tensor memory as before. Six stages of A and B and the two buffers of C are 224
# KiB, of 227 that a CTA may use.
#
# A cluster may have more pairs than one: `pairs_m` of them down C, `pairs_n` across. Pairs side by side share A, pairs
# one above the other share B, and there [multicast](../hopper/multicast_gemm.ipynb) comes in after all:
#
# | variant | a cluster computes | each half tile is fetched for |
# |---|---|---|
# | `pair` | 256 x 256 | the CTA that asks for it |
# | `2 pairs across` | 256 x 512 | A: the same half of two pairs, each asks for half of it |
# | `2 pairs down` | 512 x 256 | B: the same half of two pairs, each asks for half of it |


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
        return 32 * WARPS

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
EPILOGUE_WARPS, MMA_WARP, TMA_WARP, WARPS = 4, 4, 5, 6  # warps 0 to 3: warp w reaches lanes 32 w to 32 w + 31
VARIANTS = {"pair": Config(), "2 pairs across": Config(pairs_n=2), "2 pairs down": Config(pairs_m=2)}
DEFAULT = "pair"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown] tags=["lab"]
# A CTA on its own computes 128 x 256 of C from a stage of `(128 + 256) * tile_k` elements; a CTA of a pair computes as
# much from `(128 + 128) * tile_k`. In `2x1` of the Hopper page a CTA asks for as little, but takes in and holds as much
# as alone. So much of A and B can be on its way, with the same two buffers of C:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import results_table, table

LIMIT = 227 * 1024  # bytes of shared memory that a CTA may use
ALONE = (CONFIG.cta_m + CONFIG.tile_n) * CONFIG.tile_k * 2  # of A and B for the same part of C, by one CTA


def fits(stage_bytes: int) -> int:
    """How many stages fit with the barriers and the buffers of C."""
    return (LIMIT - (CONFIG.smem_bytes - CONFIG.stages * CONFIG.stage_bytes)) // stage_bytes


columns = {
    "alone": (ALONE, ALONE),
    "2x1 with multicast (Hopper's way)": (CONFIG.stage_bytes, ALONE),
    "half of a pair": (CONFIG.stage_bytes, CONFIG.stage_bytes),
}
rows = [
    [name, f"{asks // 1024} KiB", f"{holds // 1024} KiB", str(fits(holds)), f"{fits(holds) * CONFIG.tile_k}"]
    for name, (asks, holds) in columns.items()
]
assert fits(CONFIG.stage_bytes) == CONFIG.stages
heads = ["a CTA", "asks for", "takes in and holds", "stages that fit", "of K in flight"]
Markdown("A k-tile for 128 x 256 of C:\n\n" + table(heads, rows))

# %% [markdown]
# ## Layouts, MMA and copies
#
# Every layout is that of *one* CTA, and there is nothing new in it but that B's tile is half as high: 128 rows. The MMA
# is 256 x 256 x 16 and says that it is of two CTAs. To CuTe that makes the two CTAs its "threads": a slice of it is one
# CTA's part.


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
# ## The tile scheduler: which tile is next, and whose part of it
#
# The rasterization now numbers *clusters*, and blocks of C as large as a cluster computes. Nothing else has changed:
# cluster *i* of *s* does the blocks i, i + s, i + 2s and so on, and the CTAs of a cluster go from block to block
# together.
#
# A CTA's **rank** in its cluster says its place: ranks 0 and 1 are the first pair, 2 and 3 the second. The even one of
# a pair is the leader and has the upper 128 rows of C.


# %%
class Place(NamedTuple):
    """Where a CTA is in its cluster."""

    half: cutlass.Int32  # of its pair: 0, the leader and the upper rows, or 1
    m: cutlass.Int32  # its pair's row of pairs
    n: cutlass.Int32  # its pair's column of pairs


class Work(NamedTuple):
    """The blocks that a cluster is to do: `first`, `first + step`, ..., `count` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
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
    first, step = cta // config.cluster, ctas // config.cluster
    return Work(first, step, (down * across - first + step - 1) // step, (down, across), place)


@cute.jit
def tile_of(work: Work, iteration, config: cutlass.Constexpr):
    """The tile (m, n) of C that this CTA's pair computes in an iteration: columns of blocks inside groups of rows."""
    down, across = work.grid
    number, wanted = work.first + iteration * work.step, config.swizzle_size // config.pairs_m
    group, inside = number // (wanted * across), number % (wanted * across)
    first = group * wanted
    height = cutlass.min(down - first, wanted)  # the last group may be lower
    m, n = first + inside % height, inside // height
    return m * config.pairs_m + work.place.m, n * config.pairs_n + work.place.n


# %% [markdown]
# A tile of a pair may lie outside C: in `2 pairs across`, for example, if C has an odd number of tiles across. Its CTAs
# still do all that the others do, for their neighbours wait for the halves that they load. TMA gives them zeros and
# stores nothing.
#
# ## The warp that loads
#
# Every CTA fetches its own 128 rows of A and its own half of B, into its own shared memory. Where other pairs need the
# same half the CTAs at the same place in these pairs share it: each asks for a part of it and multicasts that to all.
# The mask has a bit for each rank that gets it.
#
# **The leader counts the bytes.** It multiplies when *both* halves are there. So the loads of both CTAs report to the
# *leader's* barrier, which expects the bytes of both. `.cta_group::2` on a TMA load is for that: its barrier may be the
# other CTA's. CuTe takes the barrier at the same offset in the leader, by clearing one bit of the address.
#
# So `producer_acquire` differs between the two. Both CTAs wait until the stage of their own shared memory is *empty*;
# then the leader alone tells its barrier how many bytes to expect. The other CTA's bytes may arrive earlier. That does
# no harm: the phase cannot end before the leader has arrived.


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
def produce(pipe, loads: Loads, work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(work.count, unroll=1):
        tile = tile_of(work, iteration, config)
        state = load_tile(pipe, loads, state, tile, work.place.half, config)
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown] tags=["lab"]
# Does this add up? The cell computes it with the kernel's own masks: every CTA sends its parts to the CTAs that its
# masks name. What arrives in a pair must be all of its stage, which is what the leader's barrier expects. The last
# column is how many pairs read what one CTA writes: the arrivals that empty a stage.


# %% tags=["lab"]
def places(config: Config) -> list[Place]:
    """The place of each rank."""
    pairs = range(config.cluster // PAIR)
    return [Place(half, p % config.pairs_m, p // config.pairs_m) for p in pairs for half in range(PAIR)]


def who_gets(config: Config) -> list[tuple[list[int], list[int]]]:
    """For each rank, the ranks that get its part of A, and those that get its part of B."""
    ranks = range(config.cluster)
    masks = (multicast_masks(place, config) for place in places(config))
    return [tuple([r for r in ranks if mask >> r & 1] for mask in both) for both in masks]


rows = []
for name, c in VARIANTS.items():
    parts = (c.cta_m // c.pairs_n * c.tile_k * 2, c.cta_n // c.pairs_m * c.tile_k * 2)  # bytes of A and of B
    arrived = [0] * (c.cluster // PAIR)  # in each pair
    for takers in who_gets(c):
        for part, ranks in zip(parts, takers, strict=True):
            for rank in ranks:
                arrived[rank // PAIR] += part
    readers = {len({rank // PAIR for rank in (*a, *b)}) for a, b in who_gets(c)}
    assert set(arrived) == {PAIR * c.stage_bytes} and readers == {c.pairs_m + c.pairs_n - 1}
    rows.append([name, *(f"{x} bytes" for x in (sum(parts), c.stage_bytes, arrived[0])), str(*readers)])
heads = ["variant", "a CTA asks L2 for", "a CTA holds", "the leader counts", "readers"]
Markdown("A stage of A and B:\n\n" + table(heads, rows))

# %% [markdown]
# ## The warp that multiplies
#
# It works in the leader alone; in the other CTA this warp has nothing to do. The descriptors that it gives to the
# tensor core say where the operands lie in its *own* shared memory. The other CTA's are taken from the same addresses
# of *its* shared memory, and its accumulators go to the same address of *its* tensor memory: both must be laid out
# alike.
#
# **After a multiplication it signals both.** `consumer_release` is a `tcgen05.commit` with a multicast: it arrives at
# the *empty* barriers of that stage in all CTAs that wrote into it. Likewise `producer_commit` arrives at the *full*
# barriers of the accumulators in both CTAs of the pair, for each has an epilogue that waits.
#
# What the fences before a tile and in the epilogue are for [the page before](pipelined_gemm.ipynb) says.


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
def multiply(pipe, acc_pipe, main: Mainloop, work: Work, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Tile after tile into the accumulator stages, alternating, for both CTAs of the pair."""
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
# Each CTA stores its own 128 rows of C, as before. Only that it gives its half of tensor memory back to the *leader*,
# the one who may overwrite it: the leader's barrier waits for the four warps of both CTAs.


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
def store(acc_pipe, tCtC, epi: Epilogue, work: Work, config: cutlass.Constexpr):
    """Fetch and store tile after tile. tCtC: (MMA, MMA_M, MMA_N, ACC_STAGE)."""
    t2r = epi.copies.t2r_c.get_slice(epi.thread)
    rAcc = cute.make_rmem_tensor(t2r.partition_D(epi.sC)[None, None, None, 0].shape, cutlass.Float32)
    across = config.tile_n // config.epi_n
    fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)
    for iteration in cutlass.range(work.count, unroll=1):
        m, n = tile_of(work, iteration, config)
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
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# ## The kernel
#
# Two counts of arrivals decide whether it works.
#
# * A stage of A and B is *empty* after one arrival from each pair that has read it. What a CTA writes is read by its
#   own pair and by those that it multicasts to: `pairs_m + pairs_n - 1` of them.
# * An accumulator stage is *empty* after one arrival of each epilogue warp of **both** CTAs.
#
# The barriers must exist before another CTA uses them: the second `create` ends with a barrier of the whole cluster.
# And **tensor memory is allocated for two.** A warp of each CTA asks for it, and both get the same address. Before a
# CTA frees it, it waits for the other: the leader must not free what its pair still reads, nor end while the other
# CTA's last arrivals are in flight. This takes a barrier of its own, `freed`.


# %%
@cute.jit
def make_pipelines(barriers, config: cutlass.Constexpr):
    """The barriers of the stages of A and B, and those of the accumulator stages, in step with the cluster's."""
    ranks = cute.make_layout((PAIR, config.pairs_m, config.pairs_n, 1))  # (half, m, n, k) -> rank
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    pairs = pipeline.CooperativeGroup(pipeline.Agent.Thread, config.pairs_m + config.pairs_n - 1)
    warps = pipeline.CooperativeGroup(pipeline.Agent.Thread, PAIR * EPILOGUE_WARPS)
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
    """A pair of CTAs computes its share of the tiles of C, one after the other."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work, layouts = work_of_cta(mC.shape, config), smem_layouts(dtype, config)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.acc_stages))
    freed = smem.allocate_array(cutlass.Int64, 1)
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    # Every CTA allocates the same, so that the pair's operands and what a multicast writes lie at the same offsets.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    told = pipeline.NamedBarrier(barrier_id=1, num_threads=32 * (EPILOGUE_WARPS + 1))  # where tensor memory is
    tmem = TmemAllocator(tmem_address, barrier_for_retrieve=told, is_two_cta=True, two_cta_tmem_dealloc_mbar_ptr=freed)
    pipe, acc_pipe = make_pipelines(barriers, config)  # the last barriers: from here on the cluster has all of them
    gA = cute.local_tile(mA, (config.cta_m, config.tile_k), (None, None))  # (M / 2, K, m, k)
    gB = cute.local_tile(mB, (config.cta_n, config.tile_k), (None, None))  # (N / 2, K, n, k)
    gC = cute.local_tile(mC, (config.cta_m, config.epi_n), (None, None))  # (M / 2, EPI_N, m, n)

    if warp_idx == TMA_WARP:
        produce(pipe, make_loads(tma_a, gA, sA, tma_b, gB, sB, work.place, config), work, config)
    elif warp_idx == MMA_WARP:
        _, tCtC = sums_in(tmem, dtype, config)
        if work.place.half == 0:
            main = make_mainloop(tCtC, sA, sB, cute.size(gA, mode=[3]), config)
            multiply(pipe, acc_pipe, main, work, dtype, config)
    else:
        tmem.allocate(config.tmem_columns)  # by warp 0 of both CTAs
        tmem.relinquish_alloc_permit()  # another kernel's CTA on this SM may allocate what is free
        address, tCtC = sums_in(tmem, dtype, config)
        epi = make_epilogue(tiled_copies(dtype, config), sC, tma_c, gC)
        store(acc_pipe, tCtC, epi, work, config)
        epi.barrier.arrive_and_wait()  # all four have fetched their last accumulators
        tmem.free(address)  # once the other CTA says so too


# %% [markdown]
# ## The launch
#
# As many clusters as there are SMs for, and never more than there are blocks. The number of SMs is a run-time argument.
# The loads are made for a box of one CTA: 128 rows of a tile, or the part of them that is left to it by its sharers.


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
    clusters = cutlass.min(down * across, sms // config.cluster)
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
    variant: one of VARIANTS: how many pairs a cluster has.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 10.0 or
    10.3. Any M, N, K >= 1 within that: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## One instruction, two memories
#
# The instruction descriptor says M = 256 and N = 256: the whole of it. How many CTAs it is for is in the instruction,
# `.cta_group::2`. The matrix descriptors are of one CTA and have the strides they had: an operand of 128 rows.

# %% tags=["lab"]
from cookbook.check.evaluated import evaluated
from cookbook.check.model.tcgen05 import descriptors_of, instruction_of
from cookbook.recipe import catalog

found = evaluated(catalog.load("blackwell/two_cta_gemm"), cutlass.BFloat16, CONFIG)
print(instruction_of(found, "bfloat16"))
for name in "ab":
    print(name, descriptors_of(found, name)[0][0][0])

# %% [markdown] tags=["lab"]
# Where the model puts the accumulators of one such instruction (PTX ISA, tcgen05 "Data Path Layout Organization",
# layout A): row *m* in CTA *m* / 128 and lane *m* mod 128, all 256 columns in both. CuTe's layout of a CTA's
# accumulators says the same.

# %% tags=["lab"]
from cookbook.model.tcgen05 import d_places

cta, lane, column = d_places(CONFIG.tile_m, CONFIG.tile_n, PAIR)
for m in (0, 127, 128, 255):
    print(f"row {m:3}: CTA {cta[m, 0]}, lane {lane[m, 0]:3}, columns {column[m].min()} to {column[m].max()}")
sums = found.fragments["c"].table().reshape(CONFIG.tile_n, CONFIG.cta_m, CONFIG.acc_stages).transpose(2, 1, 0)
for half in range(PAIR):
    mine = cta == half
    assert (sums[0].ravel() == ((lane << 16) + column)[mine]).all()
draw.tensor_memory(sums, CONFIG.epi_n, "Tensor memory of either CTA of a pair")

# %% [markdown] tags=["lab"]
# ## The trap
#
# **A pair that disagrees raises nothing.** The model multiplies one k-block as a pair, three times: as the kernel does
# it; with the halves of B exchanged; and with B of the second CTA one kilobyte off, as it would lie if that CTA had
# allocated something more before it. Which columns of the product are wrong?

# %% tags=["lab"]
import numpy as np

from cookbook.model import SharedMemory, TensorMemory, from_float32, tma_load
from cookbook.model.tcgen05 import mma as modelled_mma

rng = np.random.default_rng(0)
a, b = (rng.integers(-8, 9, (256, CONFIG.tile_k)).astype(np.float32) for _ in "ab")
bits_of_a, bits_of_b = (from_float32(x, "bfloat16") for x in (a, b))
OFFSET = CONFIG.cta_m * CONFIG.tile_k * 2  # where B lies: after A, a multiple of 1024 bytes


def multiplied(halves: tuple[int, int], shift: int) -> np.ndarray:
    """16 of K of a @ b.T by a pair: which half of b each CTA brings, and how far off the second one puts it."""
    smems, tmems = [SharedMemory(2 * OFFSET + 1024) for _ in range(PAIR)], [TensorMemory() for _ in range(PAIR)]
    for cta, (smem, half) in enumerate(zip(smems, halves, strict=True)):
        box = (CONFIG.cta_m, CONFIG.tile_k)
        tma_load(smem, 0, bits_of_a, (CONFIG.cta_m * cta, 0), box, 128)
        tma_load(smem, OFFSET + shift * cta, bits_of_b, (CONFIG.cta_n * half, 0), box, 128)
    addresses = {tmem.alloc(CONFIG.tile_n) for tmem in tmems}
    descriptors = [descriptors_of(found, name, base)[0][0][0] for name, base in (("a", 0), ("b", OFFSET))]
    modelled_mma(smems, tmems, *addresses, *descriptors, instruction_of(found, "bfloat16"), accumulate=False)
    rows, columns = np.arange(CONFIG.cta_m)[:, None], np.arange(CONFIG.tile_n)[None]
    return np.concatenate([tmem.read(rows, columns).view(np.float32) for tmem in tmems])


exact = a[:, :16] @ b[:, :16].T
cases = {"as the kernel does it": ((0, 1), 0), "halves exchanged": ((1, 0), 0), "1024 bytes off": ((0, 1), 1024)}
for name, case in cases.items():
    product = multiplied(*case)
    bad = (product != exact).mean(axis=0) > 0.5
    runs = [str(int(bad[half * CONFIG.cta_n :][: CONFIG.cta_n].sum())) for half in range(PAIR)]
    print(f"{name:22} wrong columns in the two halves: {' and '.join(runs)}")

# %% [markdown] tags=["lab"]
# Wrong halves are wrong columns, in the rows of *both* CTAs. So a test that looks at the first CTA's rows alone still
# sees it, but one that looks at the first 128 columns alone may not.
#
# ## Check
#
# Every level looks at every variant. The model gives each CTA of a pair shared and tensor memory of its own, has each
# load its halves, and multiplies them as one instruction. It cannot tell the variants apart: where the bytes end up is
# the same, whoever sends them.
#
# Level *pipeline* follows every warp of every CTA of a cluster, over the barriers of both CTAs, in every order. Remove
# the arrivals of the other CTA's epilogue, or count one reader too few, and it shows how something is overwritten too
# soon. What needs a Blackwell GPU says *not checked*: **this kernel has not run on hardware**.
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
lab.check_cells("blackwell/two_cta_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("blackwell/two_cta_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed: that takes a Blackwell GPU. Once one has run
# `cookbook bench blackwell/two_cta_gemm --record`, the table is here.

# %% tags=["lab"]
Markdown(results_table("blackwell/two_cta_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A pair is two SMs that agree: on where operands and accumulators lie, and on who issues. In return each of them loads
# and holds a third less. The price is that they go in step: neither may be more than `stages` k-tiles ahead of the
# other.
#
# Next: [a dynamic tile scheduler](persistent_clc_gemm.ipynb).
#
# To use it: `cookbook copy blackwell/two_cta_gemm my_gemm.py`, then `from my_gemm import matmul`.
