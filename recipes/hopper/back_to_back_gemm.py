# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Back-to-back GEMMs: accumulators become an operand"
#     claim: >-
#       (A B) B2 in one kernel: a thread's accumulators of the first product are, once rounded, its part of A of the
#       second one, so the product in the middle never leaves the registers.
#     track: hopper
#     order: 117
#     aside: Epilogues
#     builds_on: hopper/swiglu_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     kind: chained
#     bench_shapes: [[8192, 128, 4096], [16384, 128, 2048], [32768, 128, 512]]
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> wgmma -> registers -> wgmma from registers -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, SYNCS]
#     sources:
#       - {title: "PTX ISA, register fragments of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#wgmma-64n16-a"}
#       - {title: "Shah et al., FlashAttention-3", url: "https://arxiv.org/abs/2407.08608"}
# ---

# %% [markdown]
# # Back-to-back GEMMs: accumulators become an operand
#
# **Claim.** Two products often follow one another, `(A B) B2`, and the one in the middle is narrow: a weight of low
# rank is such a pair. Two kernels write that product to memory and read it again. Here one kernel computes both. A
# thread's accumulators of the first product are, once rounded, *its part of A* of the second one. No value moves to
# another thread.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.lab import catalog, chained, predict, records, results_table, table
from cookbook.layouts import evaluate, tile_coords

memory, shared, registers = "global memory", "shared memory", "registers"
stops = [
    draw.Stop("A, B", "the matrices: 64 rows of A, all rows of B", memory),
    draw.Stop("sA, sB", "k-tiles, in stages", shared),
    draw.Stop("acc", "float32: 64 rows of A B, all of its columns", registers),
    draw.Stop("tCrP", "the same registers, rounded: A of the second product", registers),
    draw.Stop("acc2", "float32: 64 rows of C; B2 comes from shared memory", registers),
    draw.Stop("C", "the matrix", memory),
]
arrows = ["TMA", "wgmma", "a conversion, no shuffle", "wgmma, A in registers", "stmatrix, then TMA"]
draw.flow(stops, arrows, "The way of the data: what is multiplied twice")

# %% [markdown] tags=["lab"]
# ## When it wins, predicted
#
# The second product alone is small, and its kernel still has to start, to read and to write. The first product reads
# A, with one kernel as with two. So fusing gains most where A has few columns, and least where it has many. Predicted
# here: the [tuned GEMM](tuned_gemm.ipynb) called twice; and its first product, with the multiply-adds of the second
# one added.

# %% tags=["lab"]
SHAPES, CHIP, N1 = [(8192, 128, 4096), (16384, 128, 2048), (32768, 128, 512)], predict.H200, chained.TIMED
TUNED = catalog.load("hopper/tuned_gemm")


def alone(m: int, n: int, k: int) -> float:
    """Predicted microseconds of one product by the tuned GEMM."""
    config = TUNED.VARIANTS[TUNED.choose(m, n, k, 132)]
    return predict.microseconds(config, predict.Work(m, n, k, 132, 2048), getattr(config, "swap_ab", False))


rows, gains = [], {}
for m, n, k in SHAPES:
    first, second, added = alone(m, N1, k), alone(m, n, N1), m * n * N1 / 2048 / 132 / CHIP.ghz / 1000
    gains[m, n, k] = (first + second) / (first + added)
    figures = f"{first:.1f} + {second:.1f} us", f"{first:.1f} + {added:.1f} us", f"{gains[m, n, k]:.2f}"
    rows.append([f"{m} x ({k} -> {N1} -> {n})", *figures])
Markdown(table(["rows x (K -> N1 -> N)", "two calls", "one kernel", "times as fast"], rows))

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, Matrix, compile_host, k_major, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm, by_lines
from cookbook.recipes.hopper.persistent_gemm import tiled_copies
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    Load,
    TmaTensor,
    issue_wgmmas,
    make_load,
    partition_load,
    smem_atom,
    wgmma,
)

# %% [markdown]
# ## The sizes
#
# A tile has *all* N1 columns of the first product: every column of C needs each of them. One `wgmma` has at most 256,
# and that is the limit of N1. The second weight comes in k-tiles too, which the code calls slabs: one for each 64
# columns in the middle.
#
# 8192 rows are 128 tiles of 64: one for nearly every SM of an H200. Each loads all of B, out of L2. With more rows, a
# tile of 128 loads half as much of B for each row. [Multicast](multicast_gemm.ipynb) would save loads of B too. In a
# trial run on an H200 the kernel took longer with it, so a CTA here is alone.


# %% tags=["open"]
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 64  # rows of A, and of C, of a CTA: 64 for each consumer warpgroup
    middle: int = 128  # columns of the first product, all of them: 64, 128 or 256
    tile_n: int = 128  # columns of C that are multiplied at once
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 16
    stages: int = 6  # tiles of A and B in flight or being read
    epi_n: int = 64  # columns of an epilogue subtile; it has 64 rows

    def __post_init__(self):
        widths = self.middle in (64, 128, 256)
        require(widths, "middle", self.middle, "64, 128 or 256: the columns of one wgmma, in whole k-tiles")

    @property
    def slabs(self) -> int:
        return self.middle // self.tile_k  # k-tiles of the second product

    @property
    def warpgroups(self) -> int:
        return self.tile_m // 64  # that multiply

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups + 64  # and two producer warps

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.middle) * self.tile_k * 2

    @property
    def slab_bytes(self) -> int:
        return self.tile_n * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        # The barriers, padded to the tiles' alignment; stages; the second weight's tile; rows of C on their way out.
        return 1024 + self.stages * self.stage_bytes + self.slabs * self.slab_bytes + self.tile_m * self.tile_n * 2


# %% [markdown]
# **The variants**, and the choice between them. Where N1 is another, `fitted` makes the tile as wide as it has to be.

# %% tags=["open"]
SMEM = 227 * 1024  # bytes that a CTA may have


def sized(config: Config) -> Config:
    """The configuration with as many stages as there is room for."""
    least = replace(config, stages=1)
    return replace(config, stages=1 + (SMEM - least.smem_bytes) // least.stage_bytes)


def fitted(config: Config, columns: int) -> Config:
    """The configuration for a first product of `columns` columns."""
    middle = next(width for width in (64, 128, 256) if columns <= width)
    if middle == config.middle:
        return config
    if middle < 256:
        return sized(replace(config, middle=middle))
    # Accumulators of 256 columns, and then of C, are all that a thread of few warps holds; slabs are twice as many.
    return sized(replace(config, middle=middle, tile_m=64, tile_n=64))


VARIANTS = {
    "64 rows": sized(Config()),
    "128 rows": sized(Config(tile_m=128)),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["64 rows"]


def config_for(arch: str, variant: str = "64 rows") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


def ctas(config: Config, m: int, sms: int) -> int:
    """The number of CTAs to launch: one for each SM, or for each tile of rows where these are fewer."""
    return min(-(-m // config.tile_m), sms)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant for C (m, n): the taller tile, which loads less, where tiles of 64 rows need more than one wave."""
    return "128 rows" if 64 * sms < m else "64 rows"


# %% [markdown]
# ## The layouts and the MMAs
#
# As before: SW128 for all that a `wgmma` reads. Imported are the atoms, the first MMA's `wgmma` and the TMA loads
# of [the GEMM with TMA and WGMMA](tma_wgmma_gemm.ipynb), and the `stmatrix` of one subtile of [persistent
# CTAs](persistent_gemm.ipynb).


# %% tags=["folded"]
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (TILE_M, TILE_K, STAGE)
    b: cute.ComposedLayout  # (MIDDLE, TILE_K, STAGE)
    b2: cute.ComposedLayout  # (TILE_N, TILE_K, SLAB): k-tiles of the second product
    c: cute.ComposedLayout  # (EPI_M, EPI_N, BUFFER): first the buffers of warpgroup 0


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c, atom = config, smem_atom(dtype, config.tile_k)
    buffers = c.warpgroups * c.tile_n // c.epi_n
    return SmemLayouts(
        a=cute.tile_to_shape(atom, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(atom, (c.middle, c.tile_k, c.stages), order=(0, 1, 2)),
        b2=cute.tile_to_shape(atom, (c.tile_n, c.tile_k, c.slabs), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, buffers), order=(0, 1, 2)),
    )


# %% [markdown]
# New is the second MMA, whose A is in registers.


# %% tags=["open"]
def wgmma_of_registers(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """wgmma m64nNk16: A comes from the registers of the threads, `columns` of B, K-major, from shared memory."""
    registers, k_major = warpgroup.OperandSource.RMEM, OperandMajorMode.K
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), registers, k_major, k_major)


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The first product's wgmma, repeated down M by the warpgroups: A and B from shared memory."""
    return cute.make_tiled_mma(wgmma(dtype, config.middle), (config.warpgroups, 1, 1))


def second_mma(dtype, config: Config) -> cute.TiledMma:
    """The second product's: its A is in the registers of the threads."""
    return cute.make_tiled_mma(wgmma_of_registers(dtype, config.tile_n), (config.warpgroups, 1, 1))


# %% [markdown] tags=["lab"]
# **Why nothing has to be shuffled.** Ask CuTe who holds what: of the accumulators of the first MMA (`c`), and of the A
# that the second one takes from registers (`a`). Both map (thread, value) to an element of the tile, column by column.

# %% tags=["lab"]
first, second = (evaluate(each, cutlass.BFloat16, CONFIG) for each in (tiled_mma, second_mma))
print("c of the first: ", first.c)
print("a of the second:", second.a)

# %% [markdown] tags=["lab"]
# The modes of threads are the same. So are the strides of the first values: (2, 2, 2) of both lie at (64, 8, 512). A
# `wgmma` takes 16 columns of A, 8 values of a thread; the next 8 accumulators are the next 16 columns. In full:

# %% tags=["lab"]
acc, operand = tile_coords(first.c, (64, CONFIG.middle)), tile_coords(second.a, (64, 16))
blocks = [(acc[:, 8 * k : 8 * k + 8] - [0, 16 * k] == operand).all() for k in range(CONFIG.middle // 16)]
print(f"{sum(blocks)} of {len(blocks)} blocks of 16 columns: each thread's 8 accumulators are its 8 elements of A")
assert all(blocks)

thread = {(r, c): t for t, values in enumerate(acc.tolist()) for r, c in values}
place = {(r, c): v for values in acc.tolist() for v, (r, c) in enumerate(values)}
grid = [[thread[r, c] for c in range(32)] for r in range(16)]
mark = [(r, c) for r in range(16) for c in range(32) if grid[r][c] == 5]
note = "a number: the thread; a colour: its 8 values for one wgmma; framed: the elements of thread 5 in these 16 rows"
draw.number_grid(grid, "16 x 32 accumulators: A of two wgmmas", [[c // 16 for c in range(32)]] * 16, mark, note)

# %% [markdown] tags=["lab"]
# The order is the same too. Each frame below has the number of thread 5's register: 0 to 7 for the first `wgmma`.

# %% tags=["lab"]
numbers = [[place[r, c] for c in range(32)] for r in range(16)]
draw.number_grid(numbers, "The same: which register of its thread", [[c // 16 for c in range(32)]] * 16, mark)

# %% [markdown]
# ## The producers
#
# One warp loads A and B, as in other kernels. Another one loads B2 into a ring of its own. So the first slabs are there
# before they are needed, and neither waits for the other. CTAs are persistent: while a tile of rows is multiplied by B2
# and stored, the k-tiles of the next one come in.


# %% tags=["folded"]
class Tiles(NamedTuple):
    """The tiles of rows of a CTA: `first`, `first + step`, ..., below `count`."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32


@cute.jit
def load_stage(
    pipe: pipeline.PipelineTmaAsync, state: pipeline.PipelineState, loads: tuple[Load, ...], k_tile: cutlass.Int32
):
    """Load one k-tile of each of `loads` into the stage at `state`. Returns the pipeline state."""
    pipe.producer_acquire(state)
    barrier = pipe.producer_get_barrier(state)
    for load in loads:
        cute.copy(load.atom, load.gX[None, k_tile], load.sX[None, state.index], tma_bar_ptr=barrier)
    state.advance()
    return state


# %% tags=["open"]
@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, a: Load, b: Load, tiles: Tiles, config: cutlass.Constexpr):
    """Load all k-tiles of the first product, for each of this CTA's tiles of rows. a: (TMA, m, k); b: (TMA, k)."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(tiles.first, tiles.count, tiles.step, unroll=1):
        row = a._replace(gX=a.gX[None, i, None])
        for k_tile in cutlass.range(cute.size(b.gX, mode=[1]), unroll=1):
            state = load_stage(pipe, state, (row, b), k_tile)
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


@cute.jit
def produce_slabs(pipe: pipeline.PipelineTmaAsync, b2: Load, tiles: Tiles, config: cutlass.Constexpr):
    """Load, for each tile of rows, all of the second weight, one tile of columns after another. b2: (TMA, n, k)."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.slabs)
    cute.arch.griddepcontrol_wait()
    for _ in cutlass.range(tiles.first, tiles.count, tiles.step, unroll=1):
        for n in cutlass.range(cute.size(b2.gX, mode=[1]), unroll=1):
            for k_tile in cutlass.range_constexpr(config.slabs):
                state = load_stage(pipe, state, (b2._replace(gX=b2.gX[None, n, None]),), k_tile)
    pipe.producer_tail(state)


# %% [markdown]
# ## The consumers: the place where accumulators become an operand
#
# `first_product` is any GEMM's main loop. Then `as_operand` rounds, and gives the registers another layout. That is
# **all** that stands between the two products. `wgmma` reads registers while the thread goes on: they must not be
# written before it is done. `wait_group(0)` says so, and that C's accumulators may be read.


# %% tags=["folded"]
@cute.jit
def first_product(
    pipe: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    k_tiles: cutlass.Int32,
):
    """Multiply all k-tiles into `acc`, one wgmma commit group always in flight. Returns the pipeline state."""
    release = read.clone()
    mma.set(warpgroup.Field.ACCUMULATE, True)
    acc.fill(0.0)
    pipe.consumer_wait(read)
    issue_wgmmas(mma, acc, tCrA, tCrB, read.index)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        issue_wgmmas(mma, acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()
    warpgroup.wait_group(0)
    pipe.consumer_release(release)
    return read


# %% tags=["open"]
def as_operand(acc: cute.Tensor, dtype) -> cute.Tensor:
    """A thread's accumulators of the first product, rounded, as its part of A of the second one: (MMA, MMA_M, MMA_K).

    The order of the registers stays: of 16 columns the accumulators are two neighbours, of two rows, of two halves,
    and so are the elements of A of one wgmma.
    """
    rounded = cute.make_rmem_tensor(acc.layout, dtype)
    rounded.store(acc.load().to(dtype))
    blocks = cute.size(acc) // 8  # of 16 columns
    return cute.make_tensor(rounded.iterator, cute.make_layout(((2, 2, 2), 1, blocks), stride=((1, 2, 4), 0, 8)))


@cute.jit
def second_product(
    pipe: pipeline.PipelineTmaAsync,
    state: pipeline.PipelineState,
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrP: cute.Tensor,
    tCrB: cute.Tensor,
    config: cutlass.Constexpr,
):
    """acc = tCrP B for one tile of columns of C; tCrP (MMA, MMA_M, MMA_K) is in registers. Returns the state."""
    warpgroup.fence()  # the registers are written before wgmma reads them
    release, blocks = state.clone(), cute.size(tCrB, mode=[2])
    for slab in cutlass.range_constexpr(config.slabs):
        pipe.consumer_wait(state)
        for k in cutlass.range_constexpr(blocks):
            mma.set(warpgroup.Field.ACCUMULATE, slab + k > 0)
            cute.gemm(mma, acc, tCrP[None, None, slab * blocks + k], tCrB[None, None, k, state.index], acc)
        state.advance()
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    for _ in cutlass.range_constexpr(config.slabs):
        pipe.consumer_release(release)
        release.advance()
    return state


# %% [markdown]
# The epilogue rounds once more. A warpgroup has a buffer for each subtile of its 64 rows: it writes all of them, and
# one thread hands them to TMA together.


# %% tags=["folded"]
@cute.jit
def store(
    acc: cute.Tensor,
    sC: cute.Tensor,
    atom: cute.CopyAtom,
    gC: cute.Tensor,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Store the 64 rows of warpgroup `group` of a tile of C. gC: (64, TILE_N) TMA coordinates."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    storing, thr = cute.arch.make_warp_uniform(thread // 32) == 0, r2s_c.get_slice(thread)
    rC = cute.make_rmem_tensor(acc.layout, sC.element_type)
    rC.store(acc.load().to(sC.element_type))
    if storing:
        cute.arch.cp_async_bulk_wait_group(0, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in these buffers
    subtile = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    for i in cutlass.range_constexpr(config.tile_n // config.epi_n):
        part = cute.make_tensor(rC.iterator + i * cute.size(subtile), subtile)
        cute.copy(r2s_c, thr.retile(part), thr.partition_D(sC)[None, None, None, i])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()
    if storing:
        tiles = cute.zipped_divide(gC, (64, config.epi_n))  # (EPI_TILE, (1, n))
        bSsC, bSgC = cpasync.tma_partition(atom, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), tiles)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            for i in cutlass.range_constexpr(config.tile_n // config.epi_n):
                cute.copy(atom, bSsC[None, i], bSgC[None, (0, i)])
            cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## The kernel
#
# A CTA has two pipelines: of the stages of A and B, and of the slabs of B2. Both are set up before `sync_threads`, so
# one barrier of the CTA serves both.


# %% tags=["folded"]
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync  # of A and B
    slab_pipe: pipeline.PipelineTmaAsync  # of B2
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (MIDDLE, TILE_K, STAGE)
    sB2: cute.Tensor  # (TILE_N, TILE_K, SLAB)
    sC: cute.Tensor  # (64, EPI_N, BUFFER): first the buffers of warpgroup 0


@cute.jit
def make_pipeline(
    barriers: cute.Pointer, stages: cutlass.Constexpr, tx_count: cutlass.Constexpr, config: cutlass.Constexpr
) -> pipeline.PipelineTmaAsync:
    """The barriers of some stages. One is free when every warp that reads it has said so."""
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.warpgroups),
        tx_count=tx_count,
        defer_sync=True,
    )


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate stages, slabs and the epilogue's buffers, and set up the barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.slabs))
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    tensors = tuple(smem.allocate_tensor(dtype, x.outer, 1024, swizzle=x.inner) for x in layouts)
    pipe = make_pipeline(barriers, config.stages, config.stage_bytes, config)
    slab_pipe = make_pipeline(barriers + 2 * config.stages, config.slabs, config.slab_bytes, config)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    return Cta(pipe, slab_pipe, *tensors)


# %% [markdown]
# A consumer warpgroup takes one tile of rows after another: the first product once, then the second product and a store
# for each tile of columns.


# %% tags=["open"]
@cute.jit
def consume(
    cta: Cta,
    ops: cutlass.Constexpr,
    c: TmaTensor,
    tiles: Tiles,
    k_tiles: cutlass.Int32,
    r2s_c: cute.TiledCopy,
    tidx: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The part of a consumer warpgroup. ops: the wgmmas of both products; tidx: the thread in the CTA."""
    dtype, group = cta.sC.element_type, cute.arch.make_warp_uniform(tidx // 128)
    mma, mma2 = (cute.make_tiled_mma(op, (config.warpgroups, 1, 1)) for op in ops)
    thr, thr2 = mma.get_slice(128 * group), mma2.get_slice(128 * group)
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.middle)), cutlass.Float32)
    acc2 = cute.make_rmem_tensor(thr2.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA = mma.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = mma.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    tCrB2 = mma2.make_fragment_B(thr2.partition_B(cta.sB2))  # (MMA, MMA_N, MMA_K, SLAB)
    sC = cute.flat_divide(cta.sC, (64, config.epi_n, config.tile_n // config.epi_n))[None, None, None, 0, 0, group]
    user = pipeline.PipelineUserType.Consumer
    read, state = (pipeline.make_pipeline_state(user, stages) for stages in (config.stages, config.slabs))
    cute.arch.griddepcontrol_wait()  # PDL: the kernel before may still read or write what this warpgroup stores
    for i in cutlass.range(tiles.first, tiles.count, tiles.step, unroll=1):
        read = first_product(cta.pipe, read, mma, acc, tCrA, tCrB, k_tiles)
        tCrP = as_operand(acc, dtype)
        row = i * config.warpgroups + group  # in tiles of 64
        for n in cutlass.range(cute.ceil_div(cute.size(c.coords, mode=[1]), config.tile_n), unroll=1):
            state = second_product(cta.slab_pipe, state, mma2, acc2, tCrP, tCrB2, config)
            gC = cute.local_tile(c.coords, (64, config.tile_n), (row, n))
            store(acc2, sC, c.atom, gC, r2s_c, group, tidx % 128, config)
    if cute.arch.make_warp_uniform(tidx // 32) % 4 == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# The kernel parts into three: the warps that multiply, one that loads A and B, one that loads B2.


# %% tags=["folded"]
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N1, K)
    b2: TmaTensor,  # (N, N1)
    c: TmaTensor,  # (M, N)
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    ops: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each CTA computes `tile_m` rows of C at a time, with all of their columns.

    Who waits for whom, with the CONFIG of hopper/back_to_back_gemm:

    warps  do          wait for    signal
    0-3    wgmma       full[7]     empty[7]: 1 a warp
           TMA stores  full 2[2]   empty 2[2]: 1 a warp
    4      TMA loads   empty[7]    full[7]: 1, expects 24576 bytes
    5      TMA loads   empty 2[2]  full 2[2]: 1, expects 16384 bytes

    full[7]: 1 arrival and its bytes a phase.
    empty[7]: 4 arrivals a phase.
    full 2[2]: 1 arrival and its bytes a phase.
    empty 2[2]: 4 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    """
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    producer = 4 * config.warpgroups  # the first warp behind those that multiply
    if warp_idx == producer:
        for atom in (a.atom, b.atom, b2.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, dtype, config)
    count = cute.ceil_div(cute.size(a.coords, mode=[0]), config.tile_m)
    tiles = Tiles(cute.arch.block_idx()[0], cute.arch.grid_dim()[0], count)

    if warp_idx == producer:
        gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
        gB = cute.local_tile(b.coords, (config.middle, config.tile_k), (0, None))  # (MIDDLE, TILE_K, k)
        load_a, load_b = partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB)
        produce(cta.pipe, load_a, load_b, tiles, config)
    elif warp_idx == producer + 1:
        gB2 = cute.local_tile(b2.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
        produce_slabs(cta.slab_pipe, partition_load(b2.atom, gB2, cta.sB2), tiles, config)
    elif warp_idx < producer:
        k_tiles = cute.ceil_div(cute.size(a.coords, mode=[1]), config.tile_k)
        consume(cta, ops, c, tiles, k_tiles, r2s_c, tidx, config)


# %% [markdown]
# ## The launch
#
# As many CTAs as SMs, or as tiles of rows where these are fewer: `ctas` said so.


# %% tags=["folded"]
class Sizes(NamedTuple):
    """The arguments of a launch beside addresses: sizes, and row strides in elements."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    middle: cutlass.Int32  # columns of the first product
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of A, B, C
    stride_b2: cutlass.Int64
    ctas: cutlass.Int32  # to launch


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    pB2: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = (A (M, K) times B (N1, K) transposed, rounded) times B2 (N, N1) transposed."""
    (m, n, k), n1, strides, stride_b2, ctas = sizes
    dtype = pA.dtype
    lda, ldb, ldc, ldb2 = (cute.assume(stride, divby=8) for stride in (*strides, stride_b2))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n1, k), stride=(ldb, 1)))
    mB2 = cute.make_tensor(pB2, cute.make_layout((n, n1), stride=(ldb2, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    layouts, r2s_c = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c
    ops = wgmma(dtype, config.middle), wgmma_of_registers(dtype, config.tile_n)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.middle, config)
    b2 = make_load(mB2, layouts.b2, config.tile_n, config)
    c_buffer, store_op = cute.slice_(layouts.c, (None, None, 0)), cpasync.CopyBulkTensorTileS2GOp()
    c = TmaTensor(*cpasync.make_tiled_tma_atom(store_op, mC, c_buffer, (64, config.epi_n)))
    launcher = kernel(a, b, b2, c, layouts, r2s_c, ops, dtype, config)
    launcher.launch(grid=(ctas, 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1, use_pdl=True)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    return compile_host(gemm, arch, ((dtype, 16),) * 4, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (stride_b2,), middle = call.known["b2"], call.known["N1"]
    config = VARIANTS[choose(*call.mnk, call.sms) if call.variant == DEFAULT else call.variant]
    config = fitted(config, middle)
    return (config,), (Sizes(call.mnk, middle, call.strides, stride_b2, ctas(config, call.mnk[0], call.sms)),)


CHAIN = Matrix("a", "M K"), Matrix("b", "K N1"), Argument("b2", "N1 N", (), by_lines(0, "N1"))


def in_one_tile(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """As `k_major`; a tile has all columns of the first product."""
    needed = "at most 256: a tile has all columns of the first product, those of one wgmma"
    require(name != "b" or x.shape[1] <= 256, name, f"N1 = {x.shape[1]}", needed)
    return k_major(name, x, k_mode, whole)


TABLE = {"operands": CHAIN, "major_of": in_one_tile}
GEMM = FurtherGemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), padded=True, **TABLE)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    b2: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """`(a @ b) @ b2` on the tensor cores in one kernel, on the current stream of `a`'s device.

    Both products are accumulated in float32; the first one is rounded to the dtype, as two calls of torch would.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N1), the same dtype, K-major too: usually `weight.T` of a contiguous (N1, K) weight. N1 is at most 256.
    b2: (N1, N), the same dtype, N1-major (stride 1 along N1): the second weight, transposed, likewise.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of the operands. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names.

    The addresses of a, b and b2 and their row strides are multiples of 16 bytes. Any M, N, K, N1 >= 1 within that, on
    a GPU of compute capability 9.0. For an `out` whose rows TMA cannot write, C is made in padded rows and copied.
    An infinite element of `a` makes its row of C NaN where N1 is none of 64, 128, 256. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the argument,
    what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, b2, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# *Product* follows the kernel through both products: what the second `wgmma` multiplies has to be the sums of
# `A[m, k] B[n, k]`, each k once, rounded once. *Model*, which simulates layouts in numpy, knows no A in registers, and
# is left out. The product in the middle is rounded, as torch rounds what a first call returns. So the error is that of
# two roundings, and is compared with torch's own.

# %% tags=["lab"]
lab.check_cells("hopper/back_to_back_gemm", dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above next to two calls of `torch.matmul`: run and timed where there is a GPU for it,
# else as recorded. The peers have memory for the product in the middle, and allocate none. It has 128 columns.

# %% tags=["lab", "open"]
lab.compare("hopper/back_to_back_gemm", matmul, (8192, 128, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/back_to_back_gemm"))

# %% [markdown] tags=["lab"]
# On the H200 `64 rows` is the faster variant at all three sizes, also where `choose` takes `128 rows` for its fewer
# loads. So the loads of B do not decide here.
#
# Predicted and measured: how many times as fast one kernel is as two calls.

# %% tags=["lab"]
timed = records.of_one_gpu("hopper/back_to_back_gemm", "timed", "bfloat16")
ratios = {tuple(r["shape"]): r["figures"]["ratio"] for r in timed}
rows = [
    [f"{m} x ({k} -> {N1} -> {n})", f"{gain:.2f}", f"{ratios[m, n, k]:.2f}" if (m, n, k) in ratios else "not yet"]
    for (m, n, k), gain in gains.items()
]
measured = f"measured, {timed[0]['device']}" if timed else "measured"
Markdown(table(["rows x (K -> N1 -> N)", "predicted", measured], rows))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# The layouts of accumulators and of A in registers agree, 16 columns at a time. So a chain of products needs no memory
# between its links. Attention is such a chain, with a softmax in the middle. What it gains is a launch and the traffic
# of a narrow matrix; what it asks for is that a tile holds all of that matrix's columns.
#
# Next: [grouped GEMMs](grouped_gemm.ipynb), the MLPs of a mixture of experts.
