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

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator, TmemAllocator
from cookbook.recipes.ampere.first_gemm import row_major
from cookbook.recipes.blackwell.pipelined_gemm import (
    EPILOGUE_WARPS,
    MMA_WARP,
    TMA_WARP,
    Cta,
    Mainloop,
    TiledCopies,
    Work,
    accumulator_stages,
    allocate_tiles,
    begin_epilogue,
    end_epilogue,
    make_store,
    multiply_tiles,
    smem_layouts,
    store_tile,
    subtile_copies,
    tmem_barrier,
)
from cookbook.recipes.blackwell.pipelined_gemm import Config as PipelinedConfig
from cookbook.recipes.blackwell.pipelined_gemm import work_tile as work_block
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor

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
PAIR = 2  # CTAs that share a tcgen05.mma: its cta_group


@dataclass(frozen=True)
class Config(PipelinedConfig):
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 256  # rows of C per pair of CTAs
    stages: int = 6  # pairs of A and B tiles in flight or being read
    pairs_m: int = 1  # pairs of a cluster down C: they share B
    pairs_n: int = 1  # and across: they share A
    swizzle_size: int = 8  # rasterization: pairs that run together cover this many rows of tiles

    persistent = True  # as many clusters as there are SMs for; a later page changes that

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
    def stage_bytes(self) -> int:
        return (self.cta_m + self.cta_n) * self.tile_k * 2  # of one CTA


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

from cookbook.lab import results_table, table

LIMIT = 227 * 1024  # bytes of shared memory that a CTA may use
ALONE = (CONFIG.cta_m + CONFIG.tile_n) * CONFIG.tile_k * 2  # of A and B for the same part of C, by one CTA


def fits(stage_bytes: int) -> int:
    """Return how many stages fit with the barriers and the buffers of C."""
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
def pair_mma(dtype, config: Config) -> tcgen05.MmaF16BF16Op:
    """tcgen05.mma of 256 x N x 16 by a pair of CTAs, A and B from the shared memory of both."""
    shape, smem, k_major = (config.tile_m, config.tile_n, 16), tcgen05.OperandSource.SMEM, OperandMajorMode.K
    return tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.TWO, smem, k_major, k_major)


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The tcgen05.mma of a pair: one instruction computes the whole tile."""
    return cute.make_tiled_mma(pair_mma(dtype, config))


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """The two copies of the epilogue of one CTA."""
    return subtile_copies(tiled_mma(dtype, config), dtype, config)


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


@cute.jit
def place_of_cta(config: cutlass.Constexpr) -> Place:
    """The place of this CTA, by its rank."""
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    pair = rank // PAIR
    return Place(rank % PAIR, pair % config.pairs_m, pair // config.pairs_m)


@cute.jit
def work_of_cta(shape_mn: tuple, config: cutlass.Constexpr):
    """The blocks of this CTA's cluster, and its place there."""
    down = cute.ceil_div(shape_mn[0], config.tile_m * config.pairs_m)
    across = cute.ceil_div(shape_mn[1], config.tile_n * config.pairs_n)
    place = place_of_cta(config)
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step, blocks = cta // config.cluster, ctas // config.cluster, down * across
    return Work(first, step, (blocks - first + step - 1) // step, blocks, (down, across)), place


@cute.jit
def work_tile(number: cutlass.Int32, work: Work, place: Place, config: cutlass.Constexpr):
    """The tile (m, n) of C that the pair at `place` has in block `number`."""
    m, n = work_block(number, work.grid, config.swizzle_size // config.pairs_m)
    return m * config.pairs_m + place.m, n * config.pairs_n + place.n


# %% [markdown]
# A tile of a pair may lie outside C: in `2 pairs across`, for example, if C has an odd number of tiles across. Its CTAs
# still do all that the others do: their neighbours wait for the halves that they load. TMA gives them zeros and stores
# nothing.
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
    """Return which CTAs are to get the part of A, and the part of B, that a CTA fetches: a bit for each rank."""
    across = sum(1 << PAIR * config.pairs_m * n for n in range(config.pairs_n))  # of the CTA at (0, 0, 0)
    down = sum(1 << PAIR * m for m in range(config.pairs_m))
    return across << place.half + PAIR * place.m, down << place.half + PAIR * config.pairs_m * place.n


class Load(NamedTuple):
    """An operand as the producer sees it."""

    atom: cute.CopyAtom
    gX: cute.Tensor  # (TMA, m or n, k), TMA coordinates in global memory
    sX: cute.Tensor  # (TMA, STAGE), shared memory
    multicast: dict  # {"mcast_mask": the CTAs that get it}; empty where no other CTA needs it


@cute.jit
def partition_load(
    atom: cute.CopyAtom,
    gX: cute.Tensor,
    sX: cute.Tensor,
    part: cutlass.Int32,
    sharers: cutlass.Constexpr,
    mask: cutlass.Int32,
) -> Load:
    """The part that this CTA loads of its half of an operand's tiles, of as many equal parts as CTAs share them."""
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(atom, part, cute.make_layout(sharers), sX, gX)
    return Load(atom, tXgX, tXsX, {"mcast_mask": cutlass.Int16(mask)} if sharers > 1 else {})


# %% [markdown]
# A CTA loads its half of a tile, and goes on to its pair's next tile.


# %%
@cute.jit
def load_tile(
    pipe: pipeline.PipelineTmaUmma,
    state: pipeline.PipelineState,
    loads: tuple[Load, ...],
    tile: tuple,
    half: cutlass.Int32,
):
    """Load a CTA's `half` of the k-tiles of the tile (m, n) of C, a stage each. Return the pipeline state."""
    sources = [load.gX[None, i * PAIR + half, None] for load, i in zip(loads, tile, strict=True)]  # (TMA, k)
    for k_tile in cutlass.range(cute.size(sources[0], mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for load, source in zip(loads, sources, strict=True):
            sX = load.sX[None, state.index]
            cute.copy(load.atom, source[None, k_tile], sX, tma_bar_ptr=barrier, **load.multicast)
        state.advance()
    return state


@cute.jit
def produce(
    pipe: pipeline.PipelineTmaUmma, loads: tuple[Load, ...], work: Work, place: Place, config: cutlass.Constexpr
):
    """Keep the stages full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(work.count, unroll=1):
        tile = work_tile(work.first + iteration * work.step, work, place, config)
        state = load_tile(pipe, state, loads, tile, place.half)
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
# barriers of the accumulators in both CTAs of the pair: each has an epilogue that waits.
#
# What the fences before a tile and in the epilogue are for [the page before](pipelined_gemm.ipynb) says.


# %%
def blocks(tile: cute.Tensor, rows: int) -> cute.Tensor:
    """One CTA's tile (rows, K, STAGE) as (MMA, MMA_M or MMA_N, MMA_K, STAGE), MMA being what one instruction reads."""
    return cute.group_modes(cute.flat_divide(tile, (rows, 16)), 0, 2)


@cute.jit
def make_mainloop(
    cta: Cta, tCtC: cute.Tensor, op: cutlass.Constexpr, k_tiles: cutlass.Int32, config: cutlass.Constexpr
) -> Mainloop:
    """The operands as the tensor cores read them, and where they add up their products."""
    mma = cute.make_tiled_mma(op)
    tCrA = mma.make_fragment_A(blocks(cta.sA, config.cta_m))
    tCrB = mma.make_fragment_B(blocks(cta.sB, config.cta_n))
    return Mainloop(op, k_tiles, tCrA, tCrB, tCtC)


@cute.jit
def multiply(
    cta: Cta,
    op: cutlass.Constexpr,
    k_tiles: cutlass.Int32,
    work: Work,
    place: Place,
    config: cutlass.Constexpr,
):
    """One warp of each CTA waits for tensor memory; the leader's multiplies tile after tile for both CTAs."""
    _, tCtC = accumulator_stages(cta.tmem, op, config)
    if place.half == 0:
        main = make_mainloop(cta, tCtC, op, k_tiles, config)
        multiply_tiles(cta, main, work.count, config)


# %% [markdown]
# ## The warps that store
#
# Each CTA stores its own 128 rows of C, as before. But it gives its half of tensor memory back to the *leader*, which
# may then overwrite it. The leader's barrier waits for the four warps of both CTAs.


# %%
@cute.jit
def store(
    cta: Cta,
    c: TmaTensor,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    work: Work,
    place: Place,
    config: cutlass.Constexpr,
):
    """Four warps of each CTA: fetch and store its rows of tile after tile."""
    epi = begin_epilogue(cta, c, copies, op, config)
    fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)
    for iteration in cutlass.range(work.count, unroll=1):
        m, n = work_tile(work.first + iteration * work.step, work, place, config)
        store_tile(cta.acc_pipe, fetch, epi, (m * PAIR + place.half, n), config)
        fetch.advance()
    end_epilogue(cta, epi)


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
def make_pipelines(barriers: cute.Pointer, defer_sync: cutlass.Constexpr, config: cutlass.Constexpr):
    """Set up the barriers of the stages of A and B, and those of the accumulator stages, in step with the cluster's.

    defer_sync: another pipeline follows, whose `create` ends with the barrier of the cluster.
    """
    ranks = cute.make_layout((PAIR, config.pairs_m, config.pairs_n, 1))  # (half, m, n, k) -> rank
    single = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    pairs = pipeline.CooperativeGroup(pipeline.Agent.Thread, config.pairs_m + config.pairs_n - 1)
    warps = pipeline.CooperativeGroup(pipeline.Agent.Thread, PAIR * EPILOGUE_WARPS)
    pipe = pipeline.PipelineTmaUmma.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=single,
        consumer_group=pairs,  # the leader of each signals
        tx_count=PAIR * config.stage_bytes,
        cta_layout_vmnk=ranks,
        defer_sync=True,
    )
    acc_pipe = pipeline.PipelineUmmaAsync.create(
        barrier_storage=barriers + 2 * config.stages,
        num_stages=config.acc_stages,
        producer_group=single,
        consumer_group=warps,  # one thread of each signals
        cta_layout_vmnk=ranks,
        defer_sync=defer_sync,
    )
    return pipe, acc_pipe


def shared_tmem(tmem_address: cute.Pointer, freed: cute.Pointer) -> TmemAllocator:
    """The allocator of the tensor memory of a pair; `freed` is the barrier at which it ends."""
    return TmemAllocator(
        tmem_address, barrier_for_retrieve=tmem_barrier(), is_two_cta=True, two_cta_tmem_dealloc_mbar_ptr=freed
    )


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate shared memory, and set up the barriers: when it returns the cluster has all of them."""
    # Every CTA allocates the same, so that the pair's operands and what a multicast writes lie at the same offsets.
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.acc_stages))
    freed = smem.allocate_array(cutlass.Int64, 1)
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    sA, sB, sC = allocate_tiles(smem, layouts, dtype, dtype)
    tmem = shared_tmem(tmem_address, freed)
    pipe, acc_pipe = make_pipelines(barriers, False, config)
    return Cta(pipe, acc_pipe, tmem, sA, sB, sC)


# %% [markdown]
# The roles are the known ones. In `multiply` and `store` both CTAs of a pair take part; `end_epilogue` frees tensor
# memory once the other CTA says so too.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    dtype: cutlass.Constexpr,
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A pair of CTAs computes its share of the tiles of C, one after the other.

    Who waits for whom, with the CONFIG of blackwell/two_cta_gemm:

    warps  do           wait for              signal
    0      tcgen05.ld   accumulator full[2]   accumulator empty[2]: 1
           TMA stores   mbarrier[1]
    1-3    tcgen05.ld   accumulator full[2]   accumulator empty[2]: 1 a warp
    4      tcgen05.mma  full[6]               empty[6]: 1 when its MMAs are over, in 2 CTAs
                        accumulator empty[2]  accumulator full[2]: 1 when its MMAs are over, in 2 CTAs
    5      TMA loads    empty[6]              full[6]: 1, expects 65536 bytes

    full[6]: 1 arrival and its bytes a phase.
    empty[6]: 1 arrival a phase.
    accumulator full[2]: 1 arrival a phase.
    accumulator empty[2]: 8 arrivals a phase.
    mbarrier[1]: 32 arrivals a phase.
    bar 1, 160 threads: warps 0-4 meet.
    bar 2, 128 threads: warps 0-3 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work, place = work_of_cta(c.coords.shape, config)
    cta = set_up(layouts, dtype, config)
    gA = cute.local_tile(a.coords, (config.cta_m, config.tile_k), (None, None))  # (M / 2, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.cta_n, config.tile_k), (None, None))  # (N / 2, TILE_K, n, k)
    if warp_idx == TMA_WARP:
        # The pairs of a row of the cluster divide each half of A's tile among them, those of a column B's.
        masks = multicast_masks(place, config)
        load_a = partition_load(a.atom, gA, cta.sA, place.n, config.pairs_n, masks[0])
        load_b = partition_load(b.atom, gB, cta.sB, place.m, config.pairs_m, masks[1])
        produce(cta.pipe, (load_a, load_b), work, place, config)
    elif warp_idx == MMA_WARP:
        multiply(cta, op, cute.size(gA, mode=[3]), work, place, config)
    else:
        store(cta, c, copies, op, work, place, config)


# %% [markdown]
# ## The launch
#
# As many clusters as there are SMs for, and never more than there are blocks. The number of SMs is a run-time argument.
# The loads are made for a box of one CTA: 128 rows of a tile, or the part of them that is left to it by its sharers.


# %%
def make_load(matrix: cute.Tensor, stages: cute.ComposedLayout, box: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of one CTA's part of a stage, `box` rows and columns, divided among `sharers` that multicast it."""
    kinds = (cpasync.CopyBulkTensorTileG2SOp, cpasync.CopyBulkTensorTileG2SMulticastOp)
    load, stage = kinds[sharers > 1](tcgen05.CtaGroup.TWO), cute.slice_(stages, (None, None, 0))
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, box, sharers))


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), (lda, ldb, ldc), dtype = mnk, strides, pA.dtype
    mA, mB, mC = row_major(pA, m, k, lda, 8), row_major(pB, n, k, ldb, 8), row_major(pC, m, n, ldc, 8)
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config)
    a = make_load(mA, layouts.a, (config.cta_m, config.tile_k), config.pairs_n)
    b = make_load(mB, layouts.b, (config.cta_n, config.tile_k), config.pairs_m)
    c = make_store(mC, layouts.c, config)
    down = cute.ceil_div(m, config.tile_m * config.pairs_m)
    across = cute.ceil_div(n, config.tile_n * config.pairs_n)
    clusters = cutlass.min(down * across, sms // config.cluster) if config.persistent else down * across
    kernel(a, b, c, dtype, layouts, copies, pair_mma(dtype, config), config).launch(
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
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
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
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## One instruction, two memories
#
# The instruction descriptor says M = 256 and N = 256: the whole of it. How many CTAs it is for is in the instruction,
# `.cta_group::2`. The matrix descriptors are of one CTA and have the strides they had: an operand of 128 rows.

# %% tags=["lab"]
from cookbook.lab import catalog, descriptors_of, evaluated, instruction_of

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
accumulators = found.fragments["c"].table().reshape(CONFIG.tile_n, CONFIG.cta_m, CONFIG.acc_stages).transpose(2, 1, 0)
for half in range(PAIR):
    mine = cta == half
    assert (accumulators[0].ravel() == ((lane << 16) + column)[mine]).all()
draw.tensor_memory(accumulators, CONFIG.epi_n, "Tensor memory of either CTA of a pair")

# %% [markdown] tags=["lab"]
# ## The trap
#
# **A pair that disagrees raises nothing.** The model multiplies one k-block as a pair, three times: as the kernel does
# it, with the halves of B exchanged, and with B of the second CTA one kilobyte off. The third is what happens if that
# CTA allocates something more before B. Which columns of the product are wrong?

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
# The model gives each CTA of a pair shared and tensor memory of its own, has each load its halves, and multiplies them
# as one instruction. It cannot tell the variants apart: where the bytes end up is the same, whoever sends them.
#
# Level *pipeline* follows every warp of every CTA of a cluster, over the barriers of both CTAs, in every order. Remove
# the arrivals of the other CTA's epilogue, or count one reader too few, and it shows how something is overwritten too
# soon. What needs a Blackwell GPU says *not checked*: **this kernel has not run on hardware**.

# %% tags=["lab"]
lab.check_cells("blackwell/two_cta_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("blackwell/two_cta_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed: that takes a Blackwell GPU. Once one has run
# `cookbook bench blackwell/two_cta_gemm --record`, the table is here.

# %% tags=["lab"]
Markdown(results_table("blackwell/two_cta_gemm"))

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "produce_by_number": (
        "produce",
        """\
    for iteration in cutlass.range(work.count, unroll=1):
        tile = work_tile(work.first + iteration * work.step, work, place, config)
        state = load_tile(pipe, state, loads, tile, place.half)""",
        "    raise NotImplementedError",
        "Load tile after tile with a number that runs along, in place of a product in each iteration.",
        (
            "The first tile is `work.first`; there are `work.count` of them, `work.step` apart.",
            "What a loop of the program changes has to have its type before the loop: `work.first` has it.",
        ),
        "The number is a value of the loop, as the pipeline state is.",
        """\
    number = work.first
    for _ in cutlass.range(work.count, unroll=1):
        tile = work_tile(number, work, place, config)
        state = load_tile(pipe, state, loads, tile, place.half)
        number += work.step""",
    ),
    "multiply_at_risk": (
        "multiply",
        "if place.half == 0:",
        "if place.half >= 0:",
        "Each CTA of the pair has a warp for `tcgen05.mma`, and this lets both of them work.",
        (
            "An instruction of a pair multiplies for both CTAs. How often is each product added now?",
            "Which of the two waits for the pair's full barriers?",
        ),
        (
            "One instruction, issued by the leader, multiplies for both CTAs. If both issue it, everything is "
            "multiplied twice, and stages are given back twice."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("blackwell/two_cta_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A pair is two SMs that agree: on where operands and accumulators lie, and on who issues. In return each of them loads
# and holds a third less. The price is that they go in step: neither may be more than `stages` k-tiles ahead of the
# other.
#
# Next: [a dynamic tile scheduler](persistent_clc_gemm.ipynb).
