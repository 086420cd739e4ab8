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
#     builds_on: hopper/fused_epilogue_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     compared_with: hopper/tuned_gemm
#     bench_shapes: [[4096, 14336, 4096], [8192, 4096, 4096], [2048, 5632, 2048]]
#     serves: {sm_90: 2048}
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
# memory. It has half as many columns as the accumulators have.
#
# The idea is where the two weights meet: in one tile of B. A stage gets a box of rows of Wg and a box of as many rows
# of Wu, each by a tensor map of its own. No weight is laid out anew. The main loop is any GEMM's.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.layouts import evaluate, tile_coords
from cookbook.measure import records
from cookbook.ops import predict
from cookbook.publish.pages import results_table, table

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
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, GatedGemm, check_epilogue, compile_host, require
from cookbook.recipe.moved import SmemAllocator

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
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 256  # rows of C of one tile
    tile_n: int = 160  # columns of accumulators: with a gate, half of them of each product
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 16
    stages: int = 4  # tiles of A and B in flight or being read
    epilogue: str = "product"  # one of EPILOGUES
    cluster: int = 2  # CTAs side by side in C: each tile of A comes to both by multicast
    pingpong: bool = False  # each warpgroup has work tiles of its own; False: cooperative, both share one
    overlapped: int = 9  # epilogue subtiles of a cooperative warpgroup stored during the next tile's main loop
    swizzle_size: int = 8  # cluster tiles down C that need the same tiles of B, before it goes on to the right
    epi_n: int = 16  # columns of an epilogue subtile; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)

    @property
    def gated(self) -> bool:
        return self.epilogue != "product"

    @property
    def out_n(self) -> int:
        return self.tile_n // 2 if self.gated else self.tile_n  # columns of C of one tile

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def warpgroups(self) -> int:
        return 1 if self.pingpong else 2  # that share a work tile

    @property
    def across(self) -> int:
        return self.out_n // self.epi_n  # subtiles of a tile, side by side

    @property
    def subtiles(self) -> int:
        return self.tile_m // 64 * self.across // self.warpgroups  # of a tile, one warpgroup's

    @property
    def min_k_tiles(self) -> int:
        return max(1, self.overlapped)  # each overlapped subtile needs one; TMA fills those past K with zeros

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        # The barriers, padded to the tiles' alignment, the stages, and the epilogue's buffers of two warpgroups.
        return 1024 + self.stages * self.stage_bytes + 2 * self.epi_stages * 64 * self.epi_n * 2


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
# **The choice**: work tiles come in waves, one for each SM at a time, and a wave takes as long as its tile is large, or
# as its gate, where the tensor cores wait for that. A larger tile loads less for each multiply-add, so it is preferred
# a little.


# %%
STOP = 1000  # clocks in which cooperative warpgroups gate a work tile, and nobody multiplies
LOAD_COST = 16  # multiply-adds that loading one operand element into an SM costs: the tuned GEMM's figure


def waves(config: Config, m: int, n: int, sms: int) -> tuple[int, int]:
    """Cluster tiles of C (m, n), and how many of them the busiest cluster computes."""
    tiles = -(-m // config.tile_m) * -(-n // (config.out_n * config.cluster))
    return tiles, -(-tiles // (sms // config.cluster))


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """The number of clusters to launch: no more than that number of waves needs."""
    tiles, each = waves(config, m, n, sms)
    return -(-tiles // each)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least for the product C (m, n); with a gate n counts the columns of both weights."""

    def cost(name: str) -> float:
        c = VARIANTS[name]
        each = c.tile_m * c.tile_n * k / 2048 + (0 if c.pingpong else STOP)
        return waves(c, m, n, sms)[1] * each * (1 + LOAD_COST / c.tile_m + LOAD_COST / c.tile_n)

    return min(VARIANTS, key=cost)


# %% [markdown]
# ## The layouts, the MMA and the tile scheduler
#
# As in [fused epilogues](fused_epilogue_gemm.ipynb). The rows of a tile of B are whole atoms of eight, and so is half
# of them: the second box begins where an atom does.


# %% tags=["folded"]
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (TILE_M, TILE_K, STAGE)
    b: cute.ComposedLayout  # (TILE_N, TILE_K, STAGE): with a gate, first the rows of the one weight, then the other's
    c: cute.ComposedLayout  # (EPI_M, EPI_N, EPI_STAGE): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
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
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
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

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """A subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    return TiledCopies(cute.make_tiled_copy_C(stmatrix, cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))))


# %% [markdown]
# **Why a thread can gate by itself.** A wgmma gives a thread two neighbours of every eight columns. Half a tile is
# whole eights. So the thread that holds an element of x Wg holds that of x Wu too, half a tile of registers further.

# %% tags=["lab"]
one = evaluate(tiled_mma, cutlass.BFloat16, replace(CONFIG, tile_n=16, epi_stages=1, pingpong=True))
held = {(r, c): thread for thread, values in enumerate(tile_coords(one.c, (64, 16)).tolist()) for r, c in values}
threads = [[held[r, c] for c in range(16)] for r in range(8)]
note = "one colour: x Wg, the other: x Wu; framed: what thread 5 holds of these rows"
mark = [(r, c) for r in range(8) for c in range(16) if threads[r][c] == 5]
draw.number_grid(threads, "The thread of each accumulator of 8 x 16", [[c // 8 for c in range(16)]] * 8, mark, note)


# %% tags=["folded"]
class Schedule(NamedTuple):
    """The work tiles of a CTA: cluster tiles `first`, `first + step`, ..., `count` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
    down: cutlass.Int32  # cluster tiles down C: the direction of consecutive numbers
    by_group: cute.FastDivmodDivisorV2  # divides by the cluster tiles of a group
    by_last: cute.FastDivmodDivisorV2  # divides by the height of the last group
    rank: cutlass.Int32  # of the CTA in its cluster


def rasterize(m, n, clusters, config: Config) -> tuple:
    """How the cluster tiles of C (m, n) are numbered, for `clusters` clusters: (how many, how many down C, divisors:
    `clusters`, the tiles of a group, the height of the last group). The host computes it."""
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.out_n * config.cluster)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers)


@cute.jit
def work_tile(schedule: Schedule, i, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    group, inside = divmod(schedule.first + i * schedule.step, schedule.by_group)
    start = group * config.swizzle_size
    n, m = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > schedule.down:  # the last group is lower
        n, m = divmod(inside, schedule.by_last)
    return start + m, n * config.cluster + schedule.rank


# %% [markdown]
# ## The producer: two boxes of B for a stage
#
# A stage takes one box of A and two of B. `place` says from which rows of their matrices these come. With a gate both
# have the same rows, of two weights: each has a tensor map of its own. Without one they are neighbours in one weight.


# %%
class Load(NamedTuple):
    """One box of a stage as the producer sees it."""

    atom: cute.CopyAtom
    gX: cute.Tensor  # (TMA, m or n, k), TMA coordinates
    sX: cute.Tensor  # (TMA, STAGE)
    multicast: dict  # what a TMA copy to several CTAs of the cluster is told


@cute.jit
def load_of(atom, gX, sX, part, sharers: cutlass.Constexpr):
    """The part that this CTA loads of tiles of an operand; `sharers` CTAs of the cluster get each tile."""
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(atom, part, cute.make_layout(sharers), sX, gX)
    return Load(atom, tXgX, tXsX, {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {})


@cute.jit
def loads_of(a, weights, smem, rank, config: cutlass.Constexpr):
    """The loads of a stage: the tile of A, and one half of the tile of B from each of the two `weights`."""
    (sA, sB, _), half = smem, (config.tile_n // 2, config.tile_k)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    found = [load_of(a.atom, gA, sA, rank, config.cluster)]
    for i, b in enumerate(weights):
        gB = cute.local_tile(b.coords, half, (None, None))  # (TILE_N / 2, TILE_K, n, k)
        sHalf = cute.local_tile(sB, (*half, config.stages), (i, 0, 0))  # (TILE_N / 2, TILE_K, STAGE)
        found.append(load_of(b.atom, gB, sHalf, cutlass.Int32(0), 1))
    return tuple(found)


def place(tile, config: Config) -> tuple:
    """Which box of A, and which two of B, a work tile (m, n) needs."""
    m, n = tile
    return (m, n, n) if config.gated else (m, 2 * n, 2 * n + 1)


@cute.jit
def produce(pipe, loads, schedule: Schedule, tile, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of all work tiles of this CTA, a stage each; `tile` is the first of these."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(schedule.count, unroll=1):
        state = load_tile(pipe, loads, state, place(tile, config), i & 1, k_tiles)
        tile = work_tile(schedule, cutlass.min(i + 1, schedule.count - 1), config)
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


@cute.jit
def load_tile(pipe, loads, state, boxes, backwards, k_tiles):
    """Load the k-tiles of a work tile, whose `boxes` are told; `backwards` is 1 or 0. Returns the pipeline state."""
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


# %% tags=["folded"]
class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates: (M, K), (N, K) or (M, N), or tiles of these


class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    c: TmaTensor  # the tiles of C, (TILE_M, TILE_N, m, n)
    sC: cute.Tensor  # its own epilogue buffers, (EPI_M, EPI_N, EPI_STAGE)
    r2s_c: cute.TiledCopy
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


# %% [markdown]
# ## The place of the function
#
# `finish` stands where other GEMMs round. Nothing else calls the function.


# %%
def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's values of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has them."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


@cute.jit
def finish(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's accumulators for subtile `i` of C, through the epilogue's function, rounded."""
    first = i // config.across * (config.tile_n // config.epi_n) + i % config.across
    at = (first, first + config.across) if config.gated else (first,)  # the second product: half a tile further
    given = [subtile_of(me.acc, j, config).load() for j in at]  # float32
    return EPILOGUES[config.epilogue](*given).to(me.sC.element_type)


@cute.jit
def store_subtile(me: Consumer, i: cutlass.Constexpr, rC, tile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile (m, n) of C. rC: a thread's values, (MMA, 1, 1)."""
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
        gC = cute.zipped_divide(me.c.coords[None, None, tile[0], tile[1]], (64, config.epi_n))  # (EPI_TILE, (m, n))
        bSsC, bSgC = cpasync.tma_partition(me.c.atom, 0, cute.make_layout(1), cute.group_modes(me.sC, 0, 2), gC)
        row = i // config.across * config.warpgroups + (0 if config.pingpong else me.warpgroup)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(me.c.atom, bSsC[None, buffer], bSgC[None, (row, i % config.across)])
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def compute(me: Consumer, schedule: Schedule, config: cutlass.Constexpr):
    """All work tiles of a warpgroup: its half of each, or in ping-pong every second one."""
    own, step = (me.warpgroup, 2) if config.pingpong else (0, 1)
    at_once = config.subtiles - config.overlapped
    rC = cute.make_rmem_tensor(max(1, config.overlapped) * config.epi_n // 2, me.sC.element_type)  # rounded
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(own, schedule.count, step, unroll=1):
        k_tile = i * me.k_tiles
        stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
        read, release = (pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))
        if cutlass.const_expr(config.pingpong):  # barriers 4 and 5: 0 is the CTA's, 1 and 2 are of the epilogues
            if i > 0:
                pipeline.NamedBarrier(barrier_id=4 + me.warpgroup, num_threads=256).arrive_and_wait()
        me.pipe.consumer_wait(read)
        issue_wgmmas(me, read.index, True)
        read.advance()
        tile = work_tile(schedule, i, config)  # computed while the first commit group runs
        for j in cutlass.range_constexpr(config.overlapped):
            if i > 0:
                store_subtile(me, at_once + j, subtile_of(rC, j, config), before, config)
            if cutlass.const_expr(j + 1 < config.overlapped):
                read, release = next_k_tile(me, read, release)
        for _ in cutlass.range(config.min_k_tiles, me.k_tiles, unroll=1):
            read, release = next_k_tile(me, read, release)
        if cutlass.const_expr(config.pingpong):
            if i + 1 < schedule.count:  # all is issued: the other warpgroup may begin
                pipeline.NamedBarrier(barrier_id=5 - me.warpgroup, num_threads=256).arrive()
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        for j in cutlass.range_constexpr(at_once):
            finished = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), me.sC.element_type)
            finished.store(finish(me, j, config))
            store_subtile(me, j, finished, tile, config)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(rC, j, config).store(finish(me, at_once + j, config))
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(me, at_once + j, subtile_of(rC, j, config), before, config)


# %% [markdown]
# ## The kernel and its launch
#
# One warp produces, two warpgroups consume. Each waits for the previous kernel (PDL) as late as it can.


# %% tags=["folded"]
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    weights: tuple,  # two TmaTensors (N, K); without a gate twice the same
    c: TmaTensor,  # (M, N)
    raster: tuple,  # see rasterize
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters."""
    block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    first, step = block // config.cluster, blocks // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, *(b.atom for b in weights), c.atom):
            cpasync.prefetch_descriptor(atom)
    pipe, smem, rank = set_up(dtype, config)

    k_tiles = cutlass.max(cute.ceil_div(cute.size(a.coords, mode=[1]), config.tile_k), config.min_k_tiles)
    first, (tiles, down, by_step, *divisors) = cute.arch.make_warp_uniform(first), raster
    schedule = Schedule(first, step, (tiles + step - 1 - first) // by_step, down, *divisors, rank)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        # The compiler would sink this below the wait for the previous kernel, where every clock counts. It must leave
        # an exchange between lanes, which changes nothing here, on this side of the branch.
        tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(schedule, 0, config))
        if warp_idx == 8:
            produce(pipe, loads_of(a, weights, smem, rank, config), schedule, tile, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        gC = cute.local_tile(c.coords, (config.tile_m, config.out_n), (None, None))  # (TILE_M, TILE_N, m, n)
        me = consumer((pipe, k_tiles), smem, TmaTensor(c.atom, gC), (group, tidx % 128), config)
        cute.arch.griddepcontrol_wait()  # PDL: the kernel before may still read or write what this warpgroup stores
        compute(me, schedule, config)
        if warp_idx % 4 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """What the warps of a CTA share: its pipeline, the tensors sA, sB, sC, and its rank in the cluster."""
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbour.
    arrivals = 4 * config.warpgroups * config.cluster  # warps
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, 1, config.cluster, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
    cute.arch.cluster_wait()
    return pipe, (sA, sB, sC), cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


@cute.jit
def consumer(loaded: tuple, smem, c: TmaTensor, who: tuple, config: cutlass.Constexpr):
    """What a consumer warpgroup works with. who: the warpgroup (0 or 1), and the thread in it."""
    (sA, sB, sC), (group, _) = smem, who
    dtype = sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(group % config.warpgroups * 128)  # of its first thread: the same for all
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    return Consumer(*loaded, overwrite, accumulate, tCrA, tCrB, acc, c, sC, tiled_copies(dtype, config).r2s_c, *who)


class Sizes(NamedTuple):
    """What a launch is told beside addresses: sizes, row strides in elements, and clusters to launch."""

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
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    half = (config.tile_n // 2, config.tile_k)
    b_stage = cute.tile_to_shape(smem_atom(dtype, config.tile_k), half, order=(0, 1))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster)
    weights = tuple(make_load(x, b_stage, half, 1) for x in (mB, mU))
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    launcher = kernel(a, weights, c, rasterize(m, n, clusters, config), dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    return compile_host(gemm, arch, ((dtype, 16),) * 4, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `GatedGemm`, which comes with every recipe's host side, checks the second weight as it does the first one.


# %%
def prepare(call: Call, epilogue: str = "product") -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the operands and the stream."""
    (m, n, k), (*strides, stride_up) = call.mnk, call.strides
    columns = n if epilogue == "product" else 2 * n  # of accumulators
    name = choose(m, columns, k, call.sms) if call.variant == DEFAULT else call.variant
    config = replace(VARIANTS[name], epilogue=epilogue)
    return (config,), (Sizes(call.mnk, tuple(strides), stride_up, clusters(config, m, n, call.sms)),)


GEMMS: dict[str, GatedGemm] = {}  # by epilogue


def host_side(epilogue: str) -> GatedGemm:
    """The host side of the kernels that have an epilogue."""
    if epilogue not in GEMMS:
        given, variants, gated = partial(prepare, epilogue=epilogue), (DEFAULT, *VARIANTS), epilogue != "product"
        made = GatedGemm(compile_for, given, ((9, 0),), "wgmma", variants, padded=True, gated=gated)
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
    return host_side(epilogue).matmul((a, b, up), out, variant)


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
        ours, peer, plain = (record["peers"][who]["median_ms"] for who in compared)
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
# it keeps its operands alone, for who is short of memory.
#
# ## Conclusion
#
# Two products of one A are one product with a B of two boxes. What is to be done with both is then an epilogue.
#
# To use it: `from cookbook import ops; ops.swiglu(x, w_gate, w_up)`, or `cookbook copy hopper/swiglu_gemm my_gemm.py`.
#
# Next: [back-to-back GEMMs](back_to_back_gemm.ipynb), where a product is an operand of the next one.
