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
# * A stage is empty as soon as its tile has been fetched; the tile is stored afterwards. (The kernel fetches and stores
#   subtile by subtile. Its stage is empty when the last subtile is in registers.)

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
from cutlass.cute.nvgpu import cpasync, tcgen05

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host
from cookbook.recipe.moved import SmemAllocator, TmemAllocator
from cookbook.recipes.ampere.first_gemm import row_major
from cookbook.recipes.blackwell.tma_tcgen05_gemm import Config as TmaTcgen05Config
from cookbook.recipes.blackwell.tma_tcgen05_gemm import consume, epilogue_subtiles, tcgen05_mma, tiled_mma, tmem_load
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    Load,
    SmemLayouts,
    TmaTensor,
    make_load,
    partition_load,
    smem_atom,
)

# %% [markdown]
# ## The sizes
#
# As before a tile of C is 128 x 256, and takes 256 of tensor memory's 512 columns; `acc_stages` is two, and that is all
# there is.
#
# C can no longer lie over A and B in shared memory: these are in use all the time. It leaves in epilogue subtiles of 64
# columns (128 bytes, a row of the widest swizzle), through two buffers of 16 KiB each. TMA carries them to global
# memory. Four stages of A and B and the two buffers are 224 KiB, of 227 that a CTA may use.
#
# | variant | |
# |---|---|
# | `one accumulator stage` | this very kernel with half of tensor memory: the epilogue holds the next tile up |
# | `two accumulator stages` | both halves, alternating |


# %%
@dataclass(frozen=True)
class Config(TmaTcgen05Config):
    """Sizes of the kernel, in elements or counts."""

    acc_stages: int = 2  # accumulator tiles in tensor memory
    epi_n: int = 64  # columns of an epilogue subtile of C: 128 bytes, and as many registers a thread
    epi_stages: int = 2  # epilogue subtiles of C on their way out

    def __post_init__(self) -> None:
        check_epilogue("epi_stages", self.epi_stages, self.tile_n // self.epi_n)

    @property
    def cta_m(self) -> int:
        return self.tile_m  # rows of A, and of C, that a CTA has: all of the tile's

    @property
    def cta_n(self) -> int:
        return self.tile_n  # rows of B that a CTA has

    @property
    def threads(self) -> int:
        return 32 * 6  # a warp that loads, one that multiplies, four that store

    @property
    def tmem_columns(self) -> int:
        return self.acc_stages * self.tile_n  # 32 bits each; allocated in powers of two, at least 32

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A and B; and C beside them
        return 1024 + self.stages * self.stage_bytes + self.epi_stages * self.cta_m * self.epi_n * 2


EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5  # warps 0 to 3 store: warp w reaches lanes 32 w to 32 w + 31
VARIANTS = {"one accumulator stage": Config(acc_stages=1), "two accumulator stages": Config()}
DEFAULT = "two accumulator stages"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown]
# ## Layouts, MMA and copies
#
# A and B lie as before, and the MMA is imported from [the kernel before](tma_tcgen05_gemm.ipynb). A buffer of C holds
# all 128 rows of an epilogue subtile, atoms one above the other. The thread that fetched row *m* from lane *m* writes
# it, 16 bytes at a time, and TMA reads the buffer as one box. So there is no third copy.


# %%
def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The tiles of A and B; of C the epilogue subtiles, (M, EPI_N, EPI_STAGE)."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.cta_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.cta_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (c.cta_m, c.epi_n, c.epi_stages), order=(0, 1, 2)),
    )


class TiledCopies(NamedTuple):
    """The copies by software on the way of C, over one subtile of it."""

    t2r_c: cute.TiledCopy  # tcgen05.ld: from tensor memory to registers, `epi_n` columns of a row a thread
    r2s_c: cute.TiledCopy  # st.shared of 16 bytes


def subtile_copies(mma: cute.TiledMma, dtype, config: Config) -> TiledCopies:
    """The two copies of the epilogue, for the accumulators of an MMA."""
    t2r_c = tmem_load(mma, config)
    write = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=128)
    return TiledCopies(t2r_c=t2r_c, r2s_c=cute.make_tiled_copy_D(write, t2r_c))


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """The two copies of the epilogue."""
    return subtile_copies(tiled_mma(dtype, config), dtype, config)


# %% [markdown] tags=["lab"]
# Where CuTe says the accumulators of two tiles lie. Row *m* is in lane *m*, which warp *m* / 32 alone can reach; the
# second tile has the columns that the first one leaves. A box is what one `tcgen05.ld` of one warp brings.

# %% tags=["lab"]
from cookbook import access, banks
from cookbook.layouts import evaluate


def accumulators(dtype, config):
    mma = tiled_mma(dtype, config)
    return mma.make_fragment_C(cute.append(mma.partition_shape_C((config.tile_m, config.tile_n)), config.acc_stages))


found = evaluate(lambda: accumulators(cutlass.BFloat16, CONFIG).layout, arch="sm_100a").table()
addresses = found.reshape(CONFIG.tile_n, CONFIG.tile_m, CONFIG.acc_stages).transpose(2, 1, 0)
draw.tensor_memory(addresses, CONFIG.epi_n)

# %% [markdown] tags=["lab"]
# One buffer holds 128 rows of 128 bytes. A store of one warp writes 16 bytes of each of 32 rows, in four phases of
# eight lanes. Eight rows that follow one another put the same chunk into eight different slots: one wavefront a phase,
# which is the ideal. TMA undoes the swizzle as it reads.

# %% tags=["lab"]
layouts, copies = (evaluate(made, cutlass.BFloat16, CONFIG, arch="sm_100a") for made in (smem_layouts, tiled_copies))
stores_of_warp_0 = access.of_copy(layouts.c, copies.r2s_c, "dst", "ldst", warp=0)
counted = [banks.wavefronts(each.addresses, each.width) for each in stores_of_warp_0]
assert all(each.excess == 0 for each in counted)
print(f"{len(counted)} stores a warp and subtile; wavefronts each: {sorted({each.actual for each in counted})}")
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
    tiles: cutlass.Int32  # of C, those of all CTAs
    grid: tuple[cutlass.Int32, cutlass.Int32]  # of tiles, down and across C


@cute.jit
def work_of_cta(shape_mn: tuple, config: cutlass.Constexpr):
    """The tiles of this CTA."""
    down, across = cute.ceil_div(shape_mn[0], config.tile_m), cute.ceil_div(shape_mn[1], config.tile_n)
    first, _, _ = cute.arch.block_idx()
    step, _, _ = cute.arch.grid_dim()
    tiles = down * across
    return Work(first, step, (tiles - first + step - 1) // step, tiles, (down, across))


@cute.jit
def work_tile(number: cutlass.Int32, grid: tuple, swizzle_size: cutlass.Constexpr):
    """Rasterization: row and column of tile `number`, column by column inside groups of `swizzle_size` rows."""
    down, across = grid
    group, inside = number // (swizzle_size * across), number % (swizzle_size * across)
    first = group * swizzle_size
    height = cutlass.min(down - first, swizzle_size)  # the last group may be lower
    return first + inside % height, inside // height


# %% [markdown]
# ## What the warps share
#
# Shared memory has the barriers, a word for the address of tensor memory, and the stages of A, of B and of C. There are
# two pipelines. The warp that loads fills the stages of A and B, and the tensor core empties them. The tensor core
# fills the accumulator stages, and the four warps that store empty them: one thread of each arrives.


# %%
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaUmma  # of the stages of A and B
    acc_pipe: pipeline.PipelineUmmaAsync  # of the accumulator stages
    tmem: TmemAllocator
    sA: cute.Tensor  # (M, TILE_K, STAGE)
    sB: cute.Tensor  # (N, TILE_K, STAGE)
    sC: cute.Tensor  # (M, EPI_N, EPI_STAGE)


@cute.jit
def allocate_tiles(
    smem: SmemAllocator, layouts: SmemLayouts, element: cutlass.Constexpr, dtype: cutlass.Constexpr
) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
    """Allocate the tiles: sA and sB of `element`, sC of `dtype`."""
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(element, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(element, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    return sA, sB, sC


@cute.jit
def make_pipelines(barriers: cute.Pointer, config: cutlass.Constexpr):
    """Set up the barriers of the stages of A and B, and those of the accumulator stages."""
    single, warps = (pipeline.CooperativeGroup(pipeline.Agent.Thread, n) for n in (1, EPILOGUE_WARPS))
    pipe = pipeline.PipelineTmaUmma.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=single,
        consumer_group=single,
        tx_count=config.stage_bytes,
        defer_sync=True,
    )
    acc_pipe = pipeline.PipelineUmmaAsync.create(
        barrier_storage=barriers + 2 * config.stages,
        num_stages=config.acc_stages,
        producer_group=single,
        consumer_group=warps,  # one thread of each signals
    )
    return pipe, acc_pipe


def tmem_barrier() -> pipeline.NamedBarrier:
    """The barrier at which the warps that use tensor memory learn where it is: those that store, and the MMA's."""
    return pipeline.NamedBarrier(barrier_id=1, num_threads=32 * (EPILOGUE_WARPS + 1))


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate shared memory, and set up the barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.acc_stages))
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    sA, sB, sC = allocate_tiles(smem, layouts, dtype, dtype)
    pipe, acc_pipe = make_pipelines(barriers, config)
    return Cta(pipe, acc_pipe, TmemAllocator(tmem_address, barrier_for_retrieve=tmem_barrier()), sA, sB, sC)


# %% [markdown]
# ## The warp that loads
#
# There is one loop more than before. When the last k-tiles of a tile have been read, up to `stages` of the next tile's
# come in, whatever the other warps do. `partition_load` now gets all tiles of A and B at once: each load of `loads` is
# (TMA, m, k) or (TMA, n, k) in global memory.


# %%
@cute.jit
def load_tile(pipe: pipeline.PipelineTmaUmma, state: pipeline.PipelineState, loads: tuple[Load, ...], tile: tuple):
    """Load all k-tiles of one tile of C, a stage each. Return the pipeline state.

    tile: for each load the row of tiles, of its own matrix, that is wanted: (m, n).
    """
    sources = [load.gX[None, i, None] for load, i in zip(loads, tile, strict=True)]  # (TMA, k)
    for k_tile in cutlass.range(cute.size(sources[0], mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for load, source in zip(loads, sources, strict=True):
            cute.copy(load.atom, source[None, k_tile], load.sX[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    return state


@cute.jit
def produce(pipe: pipeline.PipelineTmaUmma, loads: tuple[Load, ...], work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile. loads: of A and of B."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(work.count, unroll=1):
        tile = work_tile(work.first + iteration * work.step, work.grid, config.swizzle_size)
        state = load_tile(pipe, state, loads, tile)
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The warp that multiplies
#
# It consumes stages of A and B and produces accumulator stages. Before a tile it waits until the half of tensor memory
# that is due is *empty*: the epilogue has fetched what was there two tiles ago. After the tile's last `tcgen05.mma` it
# asks the tensor core to say when that half is *full*, and goes on with the next tile at once.
#
# The order between a `tcgen05.ld` of one thread and a `tcgen05.mma` of another needs more than a barrier. The PTX ISA
# asks for a fence on either side: `before_thread_sync` by the thread that has loaded, before it signals, and
# `after_thread_sync` by the one that waited, before it multiplies. The loop over k-tiles is the imported `consume`.


# %%
class Mainloop(NamedTuple):
    """The multiplying warp's values: the instruction, the operands and the accumulators."""

    op: tcgen05.MmaF16BF16Op
    k_tiles: cutlass.Int32  # of each tile of C
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    tCtC: cute.Tensor  # float32 in tensor memory, (MMA, MMA_M, MMA_N, ACC_STAGE)


@cute.jit
def accumulator_stages(tmem: TmemAllocator, op: cutlass.Constexpr, config: cutlass.Constexpr):
    """Wait for tensor memory. Return its address, and the accumulators (MMA, MMA_M, MMA_N, ACC_STAGE) in it."""
    mma = cute.make_tiled_mma(op)
    tmem.wait_for_alloc()
    address = tmem.retrieve_ptr(cutlass.Float32)
    shape = cute.append(mma.partition_shape_C((config.tile_m, config.tile_n)), config.acc_stages)
    return address, cute.make_tensor(address, mma.make_fragment_C(shape).layout)


@cute.jit
def multiply_tile(cta: Cta, main: Mainloop, read: pipeline.PipelineState, fill: pipeline.PipelineState):
    """Multiply all k-tiles of a tile into the accumulator stage `fill`. Return the pipeline state of A and B."""
    cta.acc_pipe.producer_acquire(fill)
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
    acc = main.tCtC[None, None, None, fill.index]
    mma = cute.make_tiled_mma(main.op)  # made for each tile: a field that changes is this tile's alone
    read = consume(cta.pipe, read, mma, acc, main.tCrA, main.tCrB, main.k_tiles)
    cta.acc_pipe.producer_commit(fill)  # full, once all these are done
    return read


@cute.jit
def multiply_tiles(cta: Cta, main: Mainloop, count: cutlass.Int32, config: cutlass.Constexpr):
    """Multiply `count` tiles into the accumulator stages, alternating."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.acc_stages)
    for _ in cutlass.range(count, unroll=1):
        read = multiply_tile(cta, main, read, fill)
        fill.advance()


@cute.jit
def multiply(cta: Cta, op: cutlass.Constexpr, k_tiles: cutlass.Int32, count: cutlass.Int32, config: cutlass.Constexpr):
    """One warp: multiply `count` tiles of `k_tiles` k-tiles each."""
    _, tCtC = accumulator_stages(cta.tmem, op, config)
    mma = cute.make_tiled_mma(op)
    thr = mma.get_slice(0)
    tCrA = mma.make_fragment_A(thr.partition_A(cta.sA))
    tCrB = mma.make_fragment_B(thr.partition_B(cta.sB))
    multiply_tiles(cta, Mainloop(op, k_tiles, tCrA, tCrB, tCtC), count, config)


# %% [markdown]
# ## The warps that store
#
# Four warps fetch an epilogue subtile of 64 columns, round it, write it into a buffer, and one thread of them asks TMA
# to carry the buffer away. [Hopper's page](../hopper/persistent_gemm.ipynb) explains which warp must wait there, and
# for what.
#
# The first of these warps allocates tensor memory, and frees it at the end. By then every tile has been multiplied:
# these warps have waited for each.


# %%
class Epilogue(NamedTuple):
    """Where the storing warps find the accumulators and put C, and by which copies."""

    copies: TiledCopies
    thread: cutlass.Int32  # of the four warps
    storing: cutlass.Boolean  # does this one's warp ask TMA?
    address: cute.Pointer  # of tensor memory
    tCtC: cute.Tensor  # the accumulators in it, (MMA, MMA_M, MMA_N, ACC_STAGE)
    sC: cute.Tensor  # the buffers, (M, EPI_N, EPI_STAGE)
    tDsC: cute.Tensor  # this thread's part of them, (VEC, REST_M, REST_N, EPI_STAGE)
    tma_c: cute.CopyAtom
    bSsC: cute.Tensor  # the buffers as TMA reads them, (TMA, EPI_STAGE)
    bSgC: cute.Tensor  # the subtiles of C, (TMA, m, n), TMA coordinates
    barrier: pipeline.NamedBarrier  # of the four warps


@cute.jit
def begin_epilogue(
    cta: Cta, c: TmaTensor, copies: TiledCopies, op: cutlass.Constexpr, config: cutlass.Constexpr
) -> Epilogue:
    """Allocate tensor memory; partition the buffers and all subtiles of C."""
    cta.tmem.allocate(config.tmem_columns)  # by warp 0
    cta.tmem.relinquish_alloc_permit()  # another kernel's CTA on this SM may allocate what is free
    address, tCtC = accumulator_stages(cta.tmem, op, config)
    tidx, _, _ = cute.arch.thread_idx()
    storing = cute.arch.make_warp_uniform(tidx // 32) == 0
    tDsC = copies.r2s_c.get_slice(tidx).partition_D(cta.sC)
    gC = cute.local_tile(c.coords, (config.cta_m, config.epi_n), (None, None))  # (M, EPI_N, m, n)
    no_multicast = cute.make_layout(1)  # a subtile is one box: nothing is divided among CTAs
    sC, gC = cute.group_modes(cta.sC, 0, 2), cute.group_modes(gC, 0, 2)
    bSsC, bSgC = cpasync.tma_partition(c.atom, 0, no_multicast, sC, gC)
    barrier = pipeline.NamedBarrier(barrier_id=2, num_threads=32 * EPILOGUE_WARPS)
    return Epilogue(copies, tidx, storing, address, tCtC, cta.sC, tDsC, c.atom, bSsC, bSgC, barrier)


@cute.jit
def end_epilogue(cta: Cta, epi: Epilogue):
    """Wait for the last stores, and free tensor memory."""
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read
    epi.barrier.arrive_and_wait()  # all four have fetched their last accumulators
    cta.tmem.free(epi.address)


# %% [markdown]
# A subtile's way out of registers: through the buffer that was written longest ago, and by TMA to C.


# %%
@cute.jit
def store_subtile(
    epi: Epilogue, rC: cute.Tensor, stage: cutlass.Constexpr, target: cute.Tensor, config: cutlass.Constexpr
):
    """Store a subtile of C: from registers rC through a buffer, and by TMA to `target` (TMA,)."""
    rC = epi.copies.r2s_c.get_slice(epi.thread).retile(rC)
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    epi.barrier.arrive_and_wait()  # all know that the buffer is free
    cute.copy(epi.copies.r2s_c, rC, epi.tDsC[None, None, None, stage])
    cute.arch.fence_proxy("async.shared", space="cta")
    epi.barrier.arrive_and_wait()  # all have written, and said so to TMA
    if epi.storing:
        with cute.arch.elect_one():
            cute.copy(epi.tma_c, epi.bSsC[None, stage], target)
            cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# New is *when the half of tensor memory is given back*: not when C is stored, but as soon as the last subtile is in
# registers. From there on the tensor core may overwrite it, while the last subtiles are still on their way.


# %%
@cute.jit
def store_tile(
    acc_pipe: pipeline.PipelineUmmaAsync,
    fetch: pipeline.PipelineState,
    epi: Epilogue,
    tile: tuple,
    config: cutlass.Constexpr,
):
    """Fetch the accumulator stage `fetch` and store it as tile (m, n) of C."""
    m, n = tile
    t2r = epi.copies.t2r_c.get_slice(epi.thread)
    rAcc = cute.make_rmem_tensor(t2r.partition_D(epi.sC)[None, None, None, 0].shape, cutlass.Float32)
    subtiles = config.tile_n // config.epi_n
    acc_pipe.consumer_wait(fetch)
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
    acc = epi.tCtC[None, None, None, fetch.index]
    tDtC = t2r.partition_S(epilogue_subtiles(acc, config))  # (LD, LD_M, LD_N, 1, SUBTILE)
    for i in cutlass.range_constexpr(subtiles):
        cute.copy(epi.copies.t2r_c, tDtC[None, None, None, 0, i], rAcc)
        cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
        if cutlass.const_expr(i == subtiles - 1):
            cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
            with cute.arch.elect_one():
                acc_pipe.consumer_release(fetch)  # this half of tensor memory may be overwritten
        rC = cute.make_rmem_tensor(rAcc.shape, epi.sC.element_type)
        rC.store(rAcc.load().to(rC.element_type))
        store_subtile(epi, rC, i % config.epi_stages, epi.bSgC[None, m, n * subtiles + i], config)


@cute.jit
def store(
    cta: Cta,
    c: TmaTensor,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    work: Work,
    config: cutlass.Constexpr,
):
    """Four warps: fetch and store tile after tile."""
    epi = begin_epilogue(cta, c, copies, op, config)
    fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)
    for iteration in cutlass.range(work.count, unroll=1):
        tile = work_tile(work.first + iteration * work.step, work.grid, config.swizzle_size)
        store_tile(cta.acc_pipe, fetch, epi, tile, config)
        fetch.advance()
    end_epilogue(cta, epi)


# %% [markdown]
# ## The kernel
#
# The three roles, each in its own branch.


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
    """A CTA computes its share of the tiles of C, one after the other.

    Who waits for whom, with the CONFIG of blackwell/pipelined_gemm:

    warps  do           wait for              signal
    0-3    tcgen05.ld   accumulator full[2]   accumulator empty[2]: 1 a warp
           TMA stores
    4      tcgen05.mma  full[4]               empty[4]: 1 when its MMAs are over
                        accumulator empty[2]  accumulator full[2]: 1 when its MMAs are over
    5      TMA loads    empty[4]              full[4]: 1, expects 49152 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 1 arrival a phase.
    accumulator full[2]: 1 arrival a phase.
    accumulator empty[2]: 4 arrivals a phase.
    bar 1, 160 threads: warps 0-4 meet.
    bar 2, 128 threads: warps 0-3 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work = work_of_cta(c.coords.shape, config)
    cta = set_up(layouts, dtype, config)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (N, TILE_K, n, k)
    if warp_idx == TMA_WARP:
        loads = partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB)
        produce(cta.pipe, loads, work, config)
    elif warp_idx == MMA_WARP:
        multiply(cta, op, cute.size(gA, mode=[3]), work.count, config)
    else:
        store(cta, c, copies, op, work, config)


# %% [markdown]
# ## The launch
#
# As many CTAs as there are SMs, since one fills an SM, and never more than there are tiles. The number of SMs is a
# run-time argument.


# %%
def make_store(matrix: cute.Tensor, buffers: cute.ComposedLayout, config: Config) -> TmaTensor:
    """The TMA store of an epilogue subtile out of one buffer."""
    write, buffer = cpasync.CopyBulkTensorTileS2GOp(), cute.slice_(buffers, (None, None, 0))
    return TmaTensor(*cpasync.make_tiled_tma_atom(write, matrix, buffer, (config.cta_m, config.epi_n)))


@cute.jit
def launch(
    mA: cute.Tensor,
    mB: cute.Tensor,
    mC: cute.Tensor,
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed, by such tiles and such an MMA."""
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    c, (m, n) = make_store(mC, layouts.c, config), mC.shape
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(a, b, c, mC.element_type, layouts, copies, op, config).launch(
        grid=(cutlass.min(tiles, sms), 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1
    )


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
    (m, n, k), (lda, ldb, ldc), dtype = mnk, strides, pA.dtype
    mA, mB, mC = row_major(pA, m, k, lda, 8), row_major(pB, n, k, ldb, 8), row_major(pC, m, n, ldc, 8)
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config)
    launch(mA, mB, mC, layouts, copies, tcgen05_mma(dtype, config), sms, stream, config)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


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
    variant: one of VARIANTS: how many accumulator tiles tensor memory holds.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 10.0 or
    10.3. Any M, N, K >= 1 within that: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## How busy is the tensor core
#
# The part of its time in which the tensor core multiplies, by the rules of the first picture, for K of a number of
# k-tiles:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table

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

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("blackwell/pipelined_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("blackwell/pipelined_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed: that takes a Blackwell GPU. The table is here once one has run
# `cookbook bench blackwell/pipelined_gemm --record`.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("blackwell/pipelined_gemm"))

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "store_tile_backwards": (
        "store_tile",
        """\
    for i in cutlass.range_constexpr(subtiles):
        cute.copy(epi.copies.t2r_c, tDtC[None, None, None, 0, i], rAcc)
        cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
        if cutlass.const_expr(i == subtiles - 1):""",
        """\
    raise NotImplementedError
    for i in cutlass.range_constexpr(subtiles):
        cute.copy(epi.copies.t2r_c, tDtC[None, None, None, 0, i], rAcc)
        cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
        if cutlass.const_expr(i == subtiles - 1):""",
        (
            "Let the subtiles go from the last one to the first one. The accumulator stage is given back as early "
            "as before."
        ),
        (
            "Two lines know which subtile is the last to be fetched.",
            "`range_constexpr` takes a start, a stop and a step.",
        ),
        "Subtile 0 is the last to be fetched now: after it the stage is given back.",
        """\
    for i in cutlass.range_constexpr(subtiles - 1, -1, -1):
        cute.copy(epi.copies.t2r_c, tDtC[None, None, None, 0, i], rAcc)
        cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
        if cutlass.const_expr(i == 0):""",
    ),
    "multiply_tile_at_risk": (
        "multiply_tile",
        """\
    cta.acc_pipe.producer_acquire(fill)
""",
        "",
        '"Two accumulator stages, and the epilogue is fast: a stage is always free when its turn comes."',
        (
            "Which tile was in this accumulator stage before?",
            "Who says that its accumulators have been fetched, and who listens now?",
        ),
        (
            "The third tile overwrites the first one's accumulators. That they have been fetched must be known, "
            "and not hoped for."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("blackwell/pipelined_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# With tensor memory the accumulators are one more thing that a pipeline can have stages of. The MMA warp fills them as
# TMA fills the stages of A and B, and the epilogue empties them. On Hopper the tensor core stays busy during an
# epilogue by a schedule of its own; here two barriers do it.
#
# Next: [two SMs, one tile](two_cta_gemm.ipynb).
