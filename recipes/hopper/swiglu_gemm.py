# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "SwiGLU: two products and a gate in one pass"
#     claim: >-
#       silu(x Wg) * (x Wu) in one kernel: a tile of B has rows of both weights, so that a thread holds both products of
#       an element, and neither goes to memory.
#     track: hopper
#     order: 115
#     aside: Epilogues
#     builds_on: hopper/fused_epilogue_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     compared_with: hopper/tuned_gemm
#     bench_shapes: [[4096, 14336, 4096], [8192, 4096, 4096], [2048, 5632, 2048]]
#     serves: {sm_90: 2048}
#     kind: fused
#     fuses: swiglu
#     dtypes: [bfloat16, float16]
#     path: tma, two weights -> swizzled shared memory -> wgmma -> gate in registers -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     sources:
#       - {title: "Shazeer, GLU variants improve transformer", url: "https://arxiv.org/abs/2002.05202"}
#       - {title: "PTX ISA, tanh", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-tanh"}
# ---

# %% [markdown]
# # SwiGLU: two products and a gate in one pass
#
# **Claim.** The first layer of a transformer's MLP is often `silu(x Wg) * (x Wu)`: two products, of which the one gates
# the other. Apart, both go to memory and a third kernel reads them. Here one kernel computes both, and C alone goes to
# memory. C has half as many columns as the accumulators.
#
# The idea is where the two weights meet: in one tile of B. A stage gets a box of rows of Wg and a box of as many rows
# of Wu, each by a tensor map of its own. No weight is copied or reordered. The main loop is any GEMM's.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.lab import predict, records, results_table, table
from cookbook.layouts import evaluate, tile_coords

memory, shared, registers = "global memory", "shared memory", "registers"
stops = [
    draw.Stop("x, Wg, Wu", "the matrices as they are", memory),
    draw.Stop("sA, sB", "a stage: rows of x; rows of Wg, under them as many of Wu", shared),
    draw.Stop("tCrC", "float32: x Wg in the first half of the columns, x Wu in the second", registers),
    draw.Stop("rC", "half as many elements, rounded once", registers),
    draw.Stop("C", "the matrix", memory),
]
arrows = ["TMA: three boxes for a stage", "wgmma, as of one matrix B", "silu(gate) * up", "stmatrix, then TMA"]
draw.flow(stops, arrows, "The way of the data: two products, one gate")

# %% [markdown] tags=["lab"]
# **The two numbers**, computed: what the tensor cores need at full clock for both products, and the bytes to move, by
# one kernel and by three. The gate takes one `tanh` for each element of C, of which an SM does 16 in a clock. In
# [ping-pong](pingpong_gemm.ipynb) the tensor cores multiply for the other warpgroup meanwhile; cooperative warpgroups
# gate at the same time.

# %% tags=["lab"]
SHAPES, CHIP = ((4096, 14336, 4096), (8192, 4096, 4096), (2048, 5632, 2048)), predict.H200
rows = []
for m, n, k in SHAPES:
    multiply, once = 2 * m * n * k / 2048 / 132 / CHIP.ghz, 2 * (m * k + 2 * n * k + m * n)
    apart = once + 2 * 4 * m * n  # both products written, and read again
    tanh = f"{100 * (m * n / 16) / (2 * m * n * k / 2048):.1f}%"
    moved = (f"{x / CHIP.memory / 1000:.0f} us" for x in (once, apart))
    rows.append([f"{m} x {n} x {k}", f"{multiply / 1000:.0f} us", *moved, tanh])
Markdown(table(["M x N x K", "to multiply", "bytes, one kernel", "bytes, three kernels", "tanh, of the clocks"], rows))

# %%
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import MATRICES, Call, check_epilogue, compile_host, require
from cookbook.recipe.operands import Argument, FurtherGemm, by_lines
from cookbook.recipes.hopper.multicast_gemm import Load, make_load, partition_load, rank_in_cluster
from cookbook.recipes.hopper.overlapped_epilogue_gemm import (
    Epilogue,
    make_epilogue,
    set_up,
    store_subtile,
    subtile_of,
)
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    first_k_tile,
    last_k_tile,
    make_mainloop,
    next_k_tile,
    smem_layouts,
    state_at,
    tiled_copies,
)
from cookbook.recipes.hopper.tile_heuristics import clusters, waves
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor, smem_atom, tiled_mma, wgmma
from cookbook.recipes.hopper.tuned_gemm import Config as TunedConfig
from cookbook.recipes.hopper.tuned_gemm import Raster, Scheduler, rasterize, work_tile

# %% [markdown]
# ## The gate: a function of two accumulators
#
# **This is the part to replace.** `x` and `up` hold a thread's accumulators of one epilogue subtile, in float32: of the
# product with the first weight and with the second one. An element of the one stands where the other has its own.
#
# SiLU by `tanh` and not by `exp`: `tanh.approx` is one instruction, with a relative error of 2^-11. `exp` and a
# division are two, of the same unit.


# %%
def product(x):
    return x


def swiglu(x, up):
    half = 0.5 * x
    return (half + half * cute.math.tanh(half, fastmath=True)) * up


def geglu(x, up):
    half = 0.5 * x
    return (half + half * cute.math.tanh(x * (0.7978845608 + 0.0356774081 * (x * x)), fastmath=True)) * up


EPILOGUES = {each.__name__: each for each in (product, swiglu, geglu)}

# %% [markdown]
# `product` is the same kernel without a gate: one weight, all of its columns. It is there to compare with.
#
# `REFERENCES` says the same in torch, of the two products: the checks compare the two. `PEERS` is what the times are
# compared with: the same layer by `torch.compile`, which has cuBLAS multiply twice and makes one kernel of the rest.


# %% tags=["folded"]
REFERENCES = {  # of torch tensors: x and up are (M, N)
    "product": lambda x: x,
    "swiglu": lambda x, up: torch.nn.functional.silu(x) * up,
    "geglu": lambda x, up: torch.nn.functional.gelu(x, approximate="tanh") * up,
}


@cache
def compiled_layer():
    """The layer by torch.compile, which is not imported before it is asked for."""
    return torch.compile(lambda a, b, out, up: out.copy_(REFERENCES["swiglu"](a @ b, a @ up)), dynamic=False)


PEERS = {"swiglu": ("torch.compile", lambda a, b, out, up: compiled_layer()(a, b, out, up))}


# %% [markdown]
# ## The variants
#
# One cooperative tile, which loads least for each multiply-add, and two for ping-pong, where the tensor cores multiply
# for one warpgroup while the other one gates. With a gate a work tile has half as many columns of C as of accumulators.


# %%
@dataclass(frozen=True)
class Config(TunedConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 256  # rows of C of one tile
    tile_n: int = 160  # columns of accumulators: with a gate, half of them of each product
    overlapped: int = 9  # epilogue subtiles of a cooperative warpgroup stored during the next tile's main loop
    gpc_aware: bool = False  # cluster tiles go to clusters by their number
    epi_n: int = 16  # columns of an epilogue subtile; it has 64 rows
    epilogue: str = "product"  # one of EPILOGUES

    both_ways = False  # a cluster shares one operand

    @property
    def gated(self) -> bool:
        return self.epilogue != "product"

    @property
    def out_n(self) -> int:
        return self.tile_n // 2 if self.gated else self.tile_n  # columns of C of one tile

    @property
    def stored(self) -> "Config":
        return replace(self, tile_n=self.out_n, epilogue="product")  # a GEMM with the same tile of C

    @property
    def across(self) -> int:
        return self.out_n // self.epi_n  # subtiles of a tile, side by side

    @property
    def subtiles(self) -> int:
        return self.tile_m // 64 * self.across // self.warpgroups  # of a tile, one warpgroup's


PINGPONG = {"tile_m": 128, "pingpong": True, "overlapped": 0}
VARIANTS = {
    "256x160": Config(),
    "128x192 pingpong": Config(tile_n=192, stages=5, epi_n=32, epi_stages=3, **PINGPONG),
    "128x128 pingpong": Config(tile_n=128, stages=6, epi_n=64, **PINGPONG),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["256x160"]


def config_for(arch: str, variant: str = "256x160") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


def fused(epilogue: str) -> Config:
    """The configuration of a kernel that has an epilogue."""
    return replace(CONFIG, epilogue=epilogue)


# %% [markdown]
# **The choice**: work tiles come in waves, one for each SM at a time. A wave takes as long as the multiplications of a
# tile. With cooperative warpgroups the time of the gate comes on top: the tensor cores wait for it. (`STOP` is a round
# figure without a record: by the rate above, the `tanh` of 256 x 80 elements alone take 1280 clocks.) A larger tile
# loads less for each multiply-add, so it is preferred a little.


# %%
LOAD_COST = 16  # multiply-adds that loading one operand element into an SM costs: the tuned GEMM's figure
STOP = 1000  # clocks in which cooperative warpgroups gate a work tile, and nobody multiplies


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """The cost of C (m, n) over k on `sms` SMs, relative to that of another variant."""
    each = config.tile_m * config.tile_n * k / 2048 + (0 if config.pingpong else STOP)
    return waves(config, m, n, sms) * each * (1 + LOAD_COST / config.tile_m + LOAD_COST / config.tile_n)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least for the product C (m, n); with a gate n counts the columns of both weights."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## The layouts and the MMA
#
# Layouts, copies and set-up of the pages before serve as they are. The rows of a tile of B are whole atoms of eight,
# and so is half of them: the second box begins where an atom does.

# %% [markdown] tags=["lab"]
# **Why a thread can gate by itself.** A wgmma gives a thread two neighbours of every eight columns. Half a tile is
# whole eights. So the thread that holds an element of x Wg holds that of x Wu too, half a tile of registers further.

# %% tags=["lab"]
wgmma_16 = evaluate(tiled_mma, cutlass.BFloat16, replace(CONFIG, tile_n=16, epi_stages=1, pingpong=True))
coords = tile_coords(wgmma_16.c, (64, 16)).tolist()
thread_of = {(r, c): thread for thread, values in enumerate(coords) for r, c in values}
threads = [[thread_of[r, c] for c in range(16)] for r in range(8)]
note = "one colour: x Wg, the other: x Wu; framed: those of thread 5"
mark = [(r, c) for r in range(8) for c in range(16) if threads[r][c] == 5]
draw.number_grid(threads, "The thread of each accumulator of 8 x 16", [[c // 8 for c in range(16)]] * 8, mark, note)


# %% [markdown]
# ## The producer: two boxes of B for a stage
#
# A stage takes one box of A and two of B. `place` says from which rows of their matrices these come. With a gate both
# have the same rows, of two weights: each has a tensor map of its own. Without one they are neighbours in one weight.
# The scheduler and the order of tiles are [the tuned GEMM](tuned_gemm.ipynb)'s.


# %%
@cute.jit
def partition_loads(
    a: TmaTensor, weights: tuple[TmaTensor, TmaTensor], cta: Cta, rank: tuple, config: cutlass.Constexpr
):
    """The loads of a stage: the tile of A, and one half of the tile of B from each of the two `weights`."""
    half, everyone = (config.tile_n // 2, config.tile_k), cutlass.Int16((1 << config.cluster) - 1)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    loads = [partition_load(a.atom, gA, cta.sA, rank[1], config.cluster_n, everyone)]
    for i, b in enumerate(weights):
        gB = cute.local_tile(b.coords, half, (None, None))  # (TILE_N / 2, TILE_K, n, k)
        sHalf = cute.local_tile(cta.sB, (*half, config.stages), (i, 0, 0))  # (TILE_N / 2, TILE_K, STAGE)
        loads.append(partition_load(b.atom, gB, sHalf, rank[0], config.cluster_m, everyone))
    return tuple(loads)


def place(tile: tuple, config: Config) -> tuple:
    """Return which box of A, and which two of B, a work tile (m, n) needs."""
    m, n = tile
    return (m, n, n) if config.gated else (m, 2 * n, 2 * n + 1)


# %% [markdown]
# A k-tile is three copies into one stage. `load_tile` is told the boxes; the rest is the tuned GEMM's producer.


# %%
@cute.jit
def load_tile(
    pipe: pipeline.PipelineTmaAsync,
    loads: tuple[Load, ...],
    state: pipeline.PipelineState,
    boxes: tuple,
    k_tiles: cutlass.Int32,
    backwards: cutlass.Int32,
):
    """Load the k-tiles of a work tile, which has these `boxes`; `backwards` is 1 or 0. Returns the pipeline state."""
    tXgX = [  # (TMA, k) each; a dummy tile loads the last one
        load.gX[None, cutlass.min(box, cute.size(load.gX, mode=[1]) - 1), None]
        for box, load in zip(boxes, loads, strict=True)
    ]
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i + backwards * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for gX, load in zip(tXgX, loads, strict=True):
            cute.copy(load.atom, gX[None, k_tile], load.sX[None, state.index], tma_bar_ptr=barrier, **load.multicast)
        state.advance()
    return state


@cute.jit
def produce(
    pipe: pipeline.PipelineTmaAsync,
    loads: tuple[Load, ...],
    scheduler: Scheduler,
    tile: tuple,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of all work tiles of this CTA, a stage each; `tile` is the first of these."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        state = load_tile(pipe, loads, state, place(tile, config), k_tiles, i & 1)  # every other tile backwards
        tile = work_tile(scheduler, cutlass.min(i + 1, scheduler.count - 1), config)
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The place of the function
#
# `finish` stands where other GEMMs round. Nothing else calls the function.


# %%
@cute.jit
def finish(acc: cute.Tensor, dtype: cutlass.Constexpr, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's accumulators for subtile `i` of C, through the epilogue's function, rounded."""
    first = i // config.across * (config.tile_n // config.epi_n) + i % config.across
    at = (first, first + config.across) if config.gated else (first,)  # the second product: half a tile further
    given = [subtile_of(acc, j, config).load() for j in at]  # float32
    return EPILOGUES[config.epilogue](*given).to(dtype)


# %% [markdown]
# ## The consumers, in both schedules
#
# As in [the tuned GEMM](tuned_gemm.ipynb), cooperative warpgroups store `overlapped` of their subtiles during the main
# loop of the next tile. `store_subtile` is told of a GEMM whose tile has as many columns as C has: `config.stored`.


# %%
@cute.jit
def compute(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """All work tiles of a warpgroup: its half of each, or in ping-pong every second one."""
    own, step = (epi.warpgroup, 2) if config.pingpong else (0, 1)
    at_once, dtype = config.subtiles - config.overlapped, epi.sC.element_type
    rC = cute.make_rmem_tensor(max(1, config.overlapped) * config.epi_n // 2, dtype)  # rounded
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(own, scheduler.count, step, unroll=1):
        read, release = state_at(i * main.k_tiles, config), state_at(i * main.k_tiles, config)
        if cutlass.const_expr(config.pingpong):  # barriers 4 and 5: 0 is the CTA's, 1 and 2 are of the epilogues
            if i > 0:
                pipeline.NamedBarrier(barrier_id=4 + epi.warpgroup, num_threads=256).arrive_and_wait()
        read = first_k_tile(main, read)
        tile = work_tile(scheduler, i, config)  # computed while the first commit group runs
        for j in cutlass.range_constexpr(config.overlapped):
            if i > 0:
                store_subtile(epi, at_once + j, subtile_of(rC, j, config), before, config.stored)
            if cutlass.const_expr(j + 1 < config.overlapped):
                read, release = next_k_tile(main, read, release)
        for _ in cutlass.range(config.min_k_tiles, main.k_tiles, unroll=1):
            read, release = next_k_tile(main, read, release)
        if cutlass.const_expr(config.pingpong):
            if i + 1 < scheduler.count:  # all is issued: the other warpgroup may begin
                pipeline.NamedBarrier(barrier_id=5 - epi.warpgroup, num_threads=256).arrive()
        last_k_tile(main, release)
        for j in cutlass.range_constexpr(at_once):
            finished = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), dtype)
            finished.store(finish(main.acc, dtype, j, config))
            store_subtile(epi, j, finished, tile, config.stored)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(rC, j, config).store(finish(main.acc, dtype, at_once + j, config))
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(epi, at_once + j, subtile_of(rC, j, config), before, config.stored)


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume. Each waits for the previous kernel (PDL) as late as it can.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    weights: tuple[TmaTensor, TmaTensor],  # (N, K); without a gate twice the same
    c: TmaTensor,  # (M, N)
    raster: Raster,
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/swiglu_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 53248 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    first, step = block // config.cluster, blocks // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, *(b.atom for b in weights), c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, dtype, config)
    rank = rank_in_cluster(config)

    k_tiles = cutlass.max(cute.ceil_div(cute.size(a.coords, mode=[1]), config.tile_k), config.min_k_tiles)
    first = cute.arch.make_warp_uniform(first)
    scheduler = Scheduler(raster, first, step, (raster.tiles + step - 1 - first) // raster.by_step, rank)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        # The compiler would sink this below the wait for the previous kernel, where every clock counts. It must leave
        # an exchange between lanes, which changes nothing here, on this side of the branch.
        tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(scheduler, 0, config))
        if warp_idx == 8:
            produce(cta.pipe, partition_loads(a, weights, cta, rank, config), scheduler, tile, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        gC = cute.local_tile(c.coords, (config.tile_m, config.out_n), (None, None))  # (TILE_M, TILE_N, m, n)
        main = make_mainloop(cta, op, group % config.warpgroups * 128, k_tiles, config)  # its first thread's slice
        epi = make_epilogue(cta.sC, TmaTensor(c.atom, gC), r2s_c, group, tidx % 128, config)
        cute.arch.griddepcontrol_wait()  # PDL: the kernel before may still read or write what this warpgroup stores
        compute(main, epi, scheduler, config)
        if warp_idx % 4 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The launch
#
# Both weights have half a tile's rows in a box: the same box, of one matrix or of two.


# %%
class Sizes(NamedTuple):
    """The arguments of a launch beside addresses: sizes, row strides in elements, and clusters to launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of A, B, C
    stride_up: cutlass.Int64
    clusters: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    up: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = f(A (M, K) times B (N, K) transposed, A times `up` (N, K) transposed), f being the function."""
    (m, n, k), strides, stride_up, clusters = sizes
    dtype, ctas = pA.dtype, config.cluster
    lda, ldb, ldc, ldu = (cute.assume(stride, divby=8) for stride in (*strides, stride_up))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    mU = cute.make_tensor(up, cute.make_layout((n, k), stride=(ldu, 1))) if config.gated else mB
    layouts, r2s_c, op = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c, wgmma(dtype, config.tile_n)
    half = (config.tile_n // 2, config.tile_k)
    a_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in (layouts.a, layouts.c))
    b_stage = cute.tile_to_shape(smem_atom(dtype, config.tile_k), half, order=(0, 1))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    weights = tuple(make_load(x, b_stage, half, 1) for x in (mB, mU))
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    raster = rasterize(m, n, clusters, config.stored)
    launcher = kernel(a, weights, c, raster, layouts, r2s_c, op, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    return compile_host(gemm, arch, ((dtype, 16),) * 4, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `FurtherGemm`, a `Gemm` of further operands, checks the second weight as its table of operands says.


# %%
def prepare(call: Call, epilogue: str = "product") -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the operands and the stream."""
    (m, n, k), (stride_up,) = call.mnk, call.known["up"] or (0,)
    columns = n if epilogue == "product" else 2 * n  # of accumulators
    name = choose(m, columns, k, call.sms) if call.variant == DEFAULT else call.variant
    config = replace(VARIANTS[name], epilogue=epilogue)
    return (config,), (Sizes(call.mnk, call.strides, stride_up, clusters(config.stored, m, n, call.sms)),)


GEMMS: dict[str, FurtherGemm] = {}  # by epilogue


def host_side(epilogue: str) -> FurtherGemm:
    """The host side of the kernels that have an epilogue."""
    if epilogue not in GEMMS:
        given, variants, gated = partial(prepare, epilogue=epilogue), (DEFAULT, *VARIANTS), epilogue != "product"
        table = (*MATRICES, Argument("up", "K N", (), by_lines(0, "K"), wanted=gated))
        made = FurtherGemm(compile_for, given, ((9, 0),), "wgmma", variants, padded=True, operands=table)
        GEMMS.setdefault(epilogue, made)  # two threads at once: the first one's
    return GEMMS[epilogue]


GEMM = host_side("product")


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    epilogue: str = "product",
    up: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """`f(a @ b, a @ up)` on the tensor cores, accumulated in float32 and rounded once, on the current stream of `a`'s
    device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    epilogue: f, one of EPILOGUES. "product" is `a @ b`, and takes no `up`.
    up: (K, N), the same dtype, K-major: the second weight, any row stride.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of the operands. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names.

    The addresses of a, b and up and their row strides are multiples of 16 bytes. Any M, N, K >= 1 within that, on
    a GPU of compute capability 9.0. For an `out` whose rows TMA cannot write, C is made in padded rows and copied.
    There is no backward: `cookbook.ops.swiglu` has one.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the argument,
    what it got and what it needs, and nothing has been launched.
    """
    require(epilogue in tuple(REFERENCES), "epilogue", repr(epilogue), f"one of {', '.join(REFERENCES)}")
    return host_side(epilogue).matmul(a, b, up, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# What a gate makes of two sums cannot be followed, so the checks put two others in its place: one whose C has to be the
# first product, one whose C has to be the second. A weight in the wrong half, or a column of another element, is a
# fault. The gates themselves are compared with their references in float64.

# %% tags=["lab"]
lab.check_cells("hopper/swiglu_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# Next to `torch.compile`, and next to two products by the tuned GEMM without any gate, all in one run:

# %% tags=["lab"]
rows = []
compared = ("swiglu", "torch.compile (swiglu)", "hopper/tuned_gemm")
for record in records.of_one_gpu("hopper/swiglu_gemm", "timed", "bfloat16"):
    if record["peers"].keys() >= {*compared}:
        ours, peer, plain = (record["peers"][name]["median_ms"] for name in compared)
        of = [record["device"], " x ".join(map(str, record["shape"]))]
        rows.append([*of, f"{2000 * ours:.0f}", f"{peer / ours:.3f}", f"{ours / plain:.3f}"])
head = ["device", "M x N x K", "ours, us", "torch.compile's time over ours", "ours over two plain products"]
Markdown(table(head, rows, right=2) if rows else "*No times are recorded yet.*")

# %% [markdown] tags=["lab"]
# The `matmul` of the cells above, without a gate, next to `torch.matmul`: run and timed where there is a GPU for it,
# else as recorded.

# %% tags=["lab", "open"]
lab.compare("hopper/swiglu_gemm", matmul, (4096, 14336, 4096))

# %% [markdown] tags=["lab"]
# The product alone, by each variant; `swiglu` is counted as the two products that it computes.

# %% tags=["lab"]
Markdown(results_table("hopper/swiglu_gemm"))

# %% [markdown] tags=["lab"]
# ## The backward
#
# With `s = sigmoid(gate)`, the gradients of the two products are `dC up s (1 + gate (1 - s))` and `dC gate s`. Each
# then takes two products: with its weight for x, with x for its weight. **Keep or compute again?** The backward needs
# `gate` and `up`. Kept, they are written once and read once. Computed again, they are two products:

# %% tags=["lab"]
rows = []
for m, n, k in SHAPES:
    kept, again = 2 * 4 * m * n / CHIP.memory / 1000, 2 * m * n * k / 2048 / 132 / CHIP.ghz / 1000
    rows.append([f"{m} x {n} x {k}", f"{kept:.0f} us, {4 * m * n / 2**20:.0f} MiB", f"{again:.0f} us"])
Markdown(table(["M x N x K", "to keep both", "to compute both again"], rows))

# %% [markdown] tags=["lab"]
# So `cookbook.ops.swiglu` keeps them where gradients are wanted. `torch.ops.cute_cookbook.swiglu` computes them again:
# it keeps its operands alone, for callers that are short of memory.
#
# ## Conclusion
#
# Two products of one A are one product with a B of two boxes. What is to be done with both is then an epilogue.
#
# To use it: `from cookbook import ops; ops.swiglu(x, w_gate, w_up)`, or `cookbook copy hopper/swiglu_gemm my_gemm.py`.
#
# Next: [back-to-back GEMMs](back_to_back_gemm.ipynb), where a product is an operand of the next one.
