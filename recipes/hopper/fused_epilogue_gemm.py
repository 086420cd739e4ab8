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
#     title: "Fused epilogues: one function between the accumulators and C"
#     claim: >-
#       Bias, GELU, SiLU, scale factors or a residual are one small function of a thread's accumulators. Half of a work
#       tile goes through it while the tensor cores multiply the other half.
#     track: hopper
#     order: 110
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     measured_by: foundations/gpc_remapping
#     compared_with: hopper/tuned_gemm
#     bench_shapes: [[4096, 14336, 4096], [8192, 8192, 8192], [4096, 4096, 4096]]
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> your function -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     sources:
#       - {title: "PTX ISA, tanh", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-tanh"}
#       - {title: "CUDA C++ Programming Guide, throughput of arithmetic instructions", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions"}
#       - {title: "Hendrycks and Gimpel, Gaussian error linear units", url: "https://arxiv.org/abs/1606.08415"}
# ---

# %% [markdown]
# # Fused epilogues: one function between the accumulators and C
#
# **Claim.** A layer of a model is rarely a product alone: `gelu(x @ w + bias)`. *Fused*, the rest of the layer is one
# small function of a thread's accumulators, and nothing but C goes to memory. Half of a work tile goes through that
# function while the tensor cores multiply the other half.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.publish.pages import table

K_TILE, BAND = 256 * 160 * 64 // 2048, 128 * 160 // 16  # clocks of an SM: to multiply a k-tile; of tanh, for a band
TILE = {"band 1": (0, 1), "band 2": (1, 2), "both": (2, 4), "band 1 ": (4, 5), "band 2 ": (5, 6)}  # in k-tiles

tensor, function = [], []
for start in (0, 6 * K_TILE):
    tensor += [draw.Span(start + K_TILE * a, start + K_TILE * b, "", part.strip()) for part, (a, b) in TILE.items()]
    function += [draw.Span(start + K_TILE * n, start + K_TILE * n + BAND, "", f"band {n - 4}") for n in (5, 6)]
draw.lanes(
    {"tensor cores": tensor, "the function": function},
    "Two work tiles of 256 x 160, K = 384: computed, not measured",
    note="the function: as long as its tanh take",
)

# %% [markdown]
# A warpgroup has two **bands** of 64 rows of a work tile. At both ends of the tile the bands are multiplied one after
# the other, two k-tiles each. So one band is complete while the other still has wgmmas in flight.
#
# **Two numbers first**, for `gelu(x @ w + bias)` of 4096 x 14336 x 4096 on an H200:
#
# * Multiply-adds: a work tile of 256 x 160 has 256 x 160 x 4096 of them, 82,000 clocks of an SM.
# * GELU: one `tanh` for each of its 40,960 elements. An SM's special function units do 16 in a clock, so that is 2,560
#   clocks, 3.1% of the multiplication, if nothing hides it. Beside it stand some seven more instructions for an
#   element: fewer clocks, but energy, and at the power limit energy is time.
#
# Without fusing, the function reads and writes C once more: 235 MB, 0.06 ms at 4.26 TB/s, for a product of 0.7 ms.
# The rest of this kernel is that of [the tuned GEMM](tuned_gemm.ipynb).

# %%
import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.memory
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import DTYPES, Call, FusedGemm, compile_host, remap_table, require

# %% [markdown]
# ## The epilogue: a function of accumulators
#
# **This is the part to replace.** `x` holds a thread's accumulators of one epilogue subtile, in float32. The names of
# the other parameters say what is to be fetched. They come in the same shape as `x`:
#
# | parameter | in memory | an element of C gets |
# |---|---|---|
# | `row` | (M), the dtype of C or float32 | that of its row |
# | `column` | (N), the dtype of C or float32 | that of its column: a bias |
# | `residual` | (M, N), the dtype of C | its own |
# | `alpha`, `beta` | numbers | both |
#
# GELU by `tanh` and not by `erf`, and SiLU by `tanh` and not by `exp`: `tanh.approx` is one instruction. Its relative
# error is 2^-11; C is rounded at 2^-9.


# %%
def product(x):
    return x


def bias(x, column):
    return x + column


def gelu(x):
    half = 0.5 * x
    return half + half * cute.math.tanh(x * (0.7978845608 + 0.0356774081 * (x * x)), fastmath=True)


def silu(x):
    half = 0.5 * x
    return half + half * cute.math.tanh(half, fastmath=True)


def bias_gelu(x, column):
    return gelu(x + column)


def bias_silu(x, column):
    return silu(x + column)


def scaled(x, row, column):
    return x * row * column


def add(x, residual):
    return x + residual


def addmm(x, residual, alpha, beta):
    return alpha * x + beta * residual


EPILOGUES = {each.__name__: each for each in (product, bias, bias_gelu, bias_silu, scaled, add, addmm)}


def operands_of(epilogue: str) -> tuple[str, ...]:
    """The operands of an epilogue: the parameters of its function, behind the first one."""
    return tuple(inspect.signature(EPILOGUES[epilogue]).parameters)[1:]


# %% [markdown]
# `REFERENCES` says the same in torch, for the checks; `PEERS` are torch's own fused calls, for the times. For a
# function of your own add a line to the first and run the cells below: the check then covers it.


# %% tags=["folded"]
REFERENCES = {  # of torch tensors: x is (M, N), row (M, 1), column (N), residual (M, N)
    "product": lambda x: x,
    "bias": lambda x, column: x + column,
    "bias_gelu": lambda x, column: torch.nn.functional.gelu(x + column, approximate="tanh"),
    "bias_silu": lambda x, column: torch.nn.functional.silu(x + column),
    "scaled": lambda x, row, column: x * row * column,
    "add": lambda x, residual: x + residual,
    "addmm": lambda x, residual, alpha, beta: alpha * x + beta * residual,
}


def torch_gelu(a, b, out, column):
    return torch._addmm_activation(column, a, b, use_gelu=True, out=out)


def torch_add(a, b, out, residual):
    return torch.addmm(residual, a, b, out=out)


PEERS = {"bias_gelu": ("torch._addmm_activation", torch_gelu), "add": ("torch.addmm", torch_add)}

# %% [markdown]
# ## The sizes
#
# | variant | work tile | a thread holds | epilogue subtiles of a band |
# |---|---|---|---|
# | `256x160` | 256 x 160 | 2 x 80 accumulators | 5 of 64 x 32 |
# | `256x128` | 256 x 128 | 2 x 64 accumulators | 2 of 64 x 64 |
#
# Both have the epilogue `product` here. `fused(name)` gives the configuration of a kernel with another one. A residual
# is loaded into the buffers that C leaves from, a band at a time, and only `256x128` has buffers for a whole band.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 256  # rows of C of a work tile: two bands of 64 for each warpgroup
    tile_n: int = 128  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    together: int = 2  # k-tiles at both ends of a work tile that are multiplied band by band
    epilogue: str = "product"  # one of EPILOGUES
    cluster_n: int = 2  # CTAs side by side: both get each tile of A by multicast
    swizzle_size: int = 8  # cluster tiles down C that share tiles of B before the rasterization moves across
    gpc_aware: bool = True  # a cluster's first cluster tile goes by its GPC, not by its number
    epi_n: int = 64  # columns of an epilogue subtile; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    registers: tuple[int, int] = (24, 240)  # of a producer's thread and of a consumer's

    def __post_init__(self):
        if "residual" in self.operands and self.epi_stages < self.across:
            needed = f"a buffer for each of the {self.across} subtiles of a band: the residual waits there"
            raise ValueError(f"epi_stages: got {self.epi_stages}; needed {needed}")

    @property
    def operands(self) -> tuple[str, ...]:
        return operands_of(self.epilogue)

    @property
    def cluster(self) -> int:
        return self.cluster_n

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def across(self) -> int:
        return self.tile_n // self.epi_n  # epilogue subtiles of a band

    @property
    def subtiles(self) -> int:
        return 2 * self.across  # of a work tile, one warpgroup's

    @property
    def min_k_tiles(self) -> int:
        """Both ends, and one between them. TMA fills those past K with zeros."""
        return 2 * self.together + 1

    @property
    def vector_elements(self) -> int:
        """Elements of `row` and of `column` that one warpgroup needs for its half of a work tile."""
        return self.tile_m // 2 + self.tile_n

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        small = 16 * self.stages + 16 + 2 * self.vector_elements * 4  # barriers and vectors, padded to tiles' alignment
        c = 2 * self.epi_stages * 64 * self.epi_n * 2
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + c


VARIANTS = {
    "256x160": Config(tile_n=160, epi_n=32),
    "256x128": Config(),
}
DEFAULT = "auto"
CONFIG = VARIANTS["256x160"]


def config_for(arch: str, variant: str = "256x160") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


def fused(epilogue: str) -> Config:
    """The configuration of the kernel that has an epilogue; with a residual, one whose buffers hold a band of it."""
    tile = VARIANTS["256x128" if "residual" in operands_of(epilogue) else "256x160"]
    return replace(tile, epilogue=epilogue)


# %% [markdown]
# ## The layouts and the MMA
#
# Those of the pages before: K-major tiles in the 128-byte swizzle, subtiles of C in the widest swizzle that divides a
# row. New is one copy, `s2r_c`: `ldmatrix` fetches a subtile of the residual so that each thread gets the elements of
# its accumulators. `stmatrix` then writes C to the same place.


# %% tags=["folded"]
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (TILE_M, TILE_K, STAGE)
    b: cute.ComposedLayout  # (TILE_N, TILE_K, STAGE)
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
    """The wgmmas of the two warpgroups that share a work tile."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (2, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile
    s2r_c: cute.TiledCopy  # ldmatrix.x4 likewise: a subtile of the residual


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """A subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(cute.make_tiled_copy_C(stmatrix, subtile), cute.make_tiled_copy_C(ldmatrix, subtile))


# %% [markdown]
# ## The tile scheduler and the producer
#
# As in [the tuned GEMM](tuned_gemm.ipynb#the-tile-scheduler): persistent CTAs, clusters of two that share each tile of
# A, groups of cluster tiles that share tiles of B, and every other work tile's K from the last to the first.


# %% tags=["folded"]
class Schedule(NamedTuple):
    """Which work tiles a cluster computes: numbers `first`, `first + step`, ..., `count` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
    down: cutlass.Int32  # cluster tiles down C
    of_group: object  # divisor: the cluster tiles of a group
    of_last: object  # divisor: the height of the last group
    rank: cutlass.Int32  # of the CTA in its cluster


@cute.jit
def tile_of(i, schedule: Schedule, config: cutlass.Constexpr):
    """This CTA's i-th work tile: (m, n)."""
    group, inside = divmod(schedule.first + i * schedule.step, schedule.of_group)
    start = group * config.swizzle_size
    n, m = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > schedule.down:  # the last group is lower
        n, m = divmod(inside, schedule.of_last)
    return start + m, n * config.cluster_n + schedule.rank


# %% tags=["folded"]
class Load(NamedTuple):
    """One operand as the producer sees it."""

    atom: cute.CopyAtom
    gX: cute.Tensor  # (TMA, m or n, k), TMA coordinates
    sX: cute.Tensor  # (TMA, STAGE)
    multicast: dict  # what a TMA copy to several CTAs of the cluster is told


@cute.jit
def load_of(x, sX, tile, part, sharers: cutlass.Constexpr):
    """The part that this CTA loads of tiles of an operand; `sharers` CTAs of the cluster get each tile."""
    gX = cute.local_tile(x.coords, tile, (None, None))
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(x.atom, part, cute.make_layout(sharers), sX, gX)
    return Load(x.atom, tXgX, tXsX, {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {})


@cute.jit
def load_tile(pipe, loads, state, tile, backwards, k_tiles):
    """Load the k-tiles of work tile (m, n); `backwards` is 1 or 0. Returns the pipeline state."""
    a, b = loads
    m, n = (cutlass.min(at, cute.size(x.gX, mode=[1]) - 1) for at, x in zip(tile, loads, strict=True))
    tAgA, tBgB = a.gX[None, m, None], b.gX[None, n, None]  # (TMA, k); a dummy tile loads the last one
    for i in cutlass.range(k_tiles, unroll=1):
        k_tile = i + backwards * (k_tiles - 1 - 2 * i)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(a.atom, tAgA[None, k_tile], a.sX[None, state.index], tma_bar_ptr=barrier, **a.multicast)
        cute.copy(b.atom, tBgB[None, k_tile], b.sX[None, state.index], tma_bar_ptr=barrier, **b.multicast)
        state.advance()
    return state


@cute.jit
def produce(pipe, loads, schedule: Schedule, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of all work tiles of this CTA, a stage each."""
    tile = tuple(cute.arch.make_warp_uniform(x) for x in tile_of(0, schedule, config))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(schedule.count, unroll=1):
        state = load_tile(pipe, loads, state, tile, i & 1, k_tiles)
        tile = tile_of(cutlass.min(i + 1, schedule.count - 1), schedule, config)
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers: a commit group for a band
#
# The accumulators are two tensors, one for each band, and so are the descriptors of A. `issue` takes the bands that are
# to be multiplied: both in the middle of a work tile, one at its ends.


# %%
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    mma: tuple  # acc = A B, for the first k-block of a work tile, and acc += A B
    acc: tuple  # of each band: float32 in registers, (MMA, 1, 1)
    tCrA: tuple  # of each band: descriptors of A, (MMA, 1, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    op: object  # the operands in global memory: see Operands
    arrived: cute.Pointer  # the residual's mbarrier
    sV: cute.Tensor  # float32, (ROWS + TILE_N): what is needed of `row`, then of `column`
    sC: cute.Tensor  # its own epilogue buffers, (EPI_M, EPI_N, EPI_STAGE)
    copies: TiledCopies
    warpgroup: cutlass.Int32  # 0 or 1
    thread: cutlass.Int32  # in the warpgroup

    @property
    def barrier(self) -> pipeline.NamedBarrier:
        return pipeline.NamedBarrier(barrier_id=1 + self.warpgroup, num_threads=128)


@cute.jit
def issue(me: Consumer, stages: tuple, bands: cutlass.Constexpr, first: cutlass.Constexpr = False):
    """Issue the wgmmas of some stages, for some bands of rows, as one commit group; `first`: they begin a work tile."""
    warpgroup.fence()
    for n in cutlass.range_constexpr(len(stages)):
        for k in cutlass.range_constexpr(cute.size(me.tCrB, mode=[2])):  # 16 elements, 32 bytes, along K
            mma = me.mma[0 if first and n == 0 and k == 0 else 1]
            for band in bands:
                acc, tA = me.acc[band], me.tCrA[band]
                cute.gemm(mma, acc, tA[None, None, k, stages[n]], me.tCrB[None, None, k, stages[n]], acc)
    warpgroup.commit_group()


@cute.jit
def arrived_stages(me: Consumer, read, count: cutlass.Constexpr):
    """Wait for `count` stages; returns their indices, and the state behind them."""
    stages = ()
    for _ in cutlass.range_constexpr(count):
        me.pipe.consumer_wait(read)
        stages = (*stages, read.index)
        read.advance()
    return stages, read


@cute.jit
def give_back(me: Consumer, release, count: cutlass.Constexpr):
    """Release `count` stages; returns the state behind them."""
    for _ in cutlass.range_constexpr(count):
        me.pipe.consumer_release(release)
        release.advance()
    return release


@cute.jit
def next_k_tile(me: Consumer, read, release, count: cutlass.Constexpr = 1):
    """Issue the k-tile at `read` for both bands, and release the `count` stages before it."""
    stages, read = arrived_stages(me, read, 1)
    issue(me, stages, BOTH)
    warpgroup.wait_group(1)  # the groups before this one are complete: their stages may be overwritten
    return read, give_back(me, release, count)


BOTH = (0, 1)


# %% [markdown]
# ## Operands of the function
#
# **Vectors by plain loads.** A warpgroup's threads fetch the 128 elements of `row` and the 160 of `column` that a work
# tile needs, and keep them in shared memory as float32. They do it early in the tile, under wgmmas in flight.
#
# **A matrix by TMA.** A band of the residual comes into the epilogue buffers, which are idle for most of a work tile.
# An mbarrier counts its bytes. The first band is asked for at the beginning of the tile; the second one when the first
# has left as C.


# %%
@cute.jit
def fetch_vectors(me: Consumer, tile, config: cutlass.Constexpr):
    """This warpgroup's part of `row` and `column` for a work tile (m, n), spread over its threads' registers."""
    rV = cute.make_rmem_tensor(1 + -(-config.tile_n // 128), cutlass.Float32)
    if cutlass.const_expr("row" in config.operands):
        rows = config.tile_m // 2
        row = tile[0] * config.tile_m + row_of(me.thread % rows, me.warpgroup, config)
        rV[0] = me.op.row[cutlass.min(row, cute.size(me.op.row) - 1)].to(cutlass.Float32)
    if cutlass.const_expr("column" in config.operands):
        for i in cutlass.range_constexpr(1, cute.size(rV)):
            column = tile[1] * config.tile_n + 128 * (i - 1) + me.thread
            rV[i] = me.op.column[cutlass.min(column, cute.size(me.op.column) - 1)].to(cutlass.Float32)
    return rV


def row_of(own, group, config: Config):
    """The row of a work tile that is a warpgroup's `own`-th: the two have 64 rows in turn."""
    return own // 64 * 128 + group * 64 + own % 64


@cute.jit
def keep_vectors(me: Consumer, rV, config: cutlass.Constexpr):
    """Into shared memory, when all threads have read those of the work tile before."""
    rows = config.tile_m // 2
    me.barrier.arrive_and_wait()
    if cutlass.const_expr("row" in config.operands):
        if me.thread < rows:
            me.sV[me.thread] = rV[0]
    if cutlass.const_expr("column" in config.operands):
        for i in cutlass.range_constexpr(1, cute.size(rV)):
            column = 128 * (i - 1) + me.thread
            if column < config.tile_n:
                me.sV[rows + column] = rV[i]


@cute.jit
def load_residual(me: Consumer, tile, band: cutlass.Constexpr, config: cutlass.Constexpr):
    """Ask TMA for a band of the residual, into the buffers that C leaves from."""
    gC = cute.local_tile(me.op.residual.coords, (config.tile_m, config.tile_n), tile)  # (TILE_M, TILE_N)
    gC = cute.zipped_divide(gC, (64, config.epi_n))  # (EPI_TILE, subtiles)
    sC = cute.group_modes(me.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
    tDsD, tDgD = cpasync.tma_partition(me.op.residual.atom, 0, cute.make_layout(1), sC, gC)
    if cute.arch.make_warp_uniform(me.thread // 32) == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # TMA has read all of the work tile before
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(me.arrived, config.across * 64 * config.epi_n * 2)
        for j in cutlass.range_constexpr(config.across):
            where = subtile_at(me, band * config.across + j, config)
            cute.copy(me.op.residual.atom, tDgD[None, where], tDsD[None, j], tma_bar_ptr=me.arrived)


def subtile_at(me: Consumer, i: int, config: Config):
    """The place of this warpgroup's subtile `i` in a work tile: (row, column), in subtiles."""
    across = config.tile_n // config.epi_n
    return i // across * 2 + me.warpgroup, i % across


# %% [markdown]
# **The shape of `x`.** Of an accumulator tile a thread has two rows, `lane / 4` and 8 below, and of every 8 columns
# two neighbours. So 2 values of `row` and 16 of `column` are enough for a subtile of 64 x 64: a layout with stride 0
# repeats them.


# %%
def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's values of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has them."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


def repeated(values: cute.Tensor, stride: tuple, config: Config):
    """`values` for each accumulator of a subtile: ((column of 2, row of 2, 8 columns), 1, 1)."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=(stride, 0, 0))
    return cute.make_tensor(values.iterator, layout).load()


@cute.jit
def row_values(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """`row` for a thread's accumulators of subtile `i`."""
    first = i // (config.tile_n // config.epi_n) * 64 + me.thread // 32 * 16 + me.thread % 32 // 4
    rR = cute.make_rmem_tensor(2, cutlass.Float32)
    for j in cutlass.range_constexpr(2):
        rR[j] = me.sV[first + 8 * j]
    return repeated(rR, (0, 1, 0), config)


@cute.jit
def column_values(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """`column` for a thread's accumulators of subtile `i`."""
    start = config.tile_m // 2 + i % (config.tile_n // config.epi_n) * config.epi_n
    first = cute.assume(start + me.thread % 4 * 2, divby=2)
    sN = cute.make_tensor(me.sV.iterator + first, cute.make_layout((2, config.epi_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, cutlass.Float32)
    cute.autovec_copy(sN, rN)
    return repeated(rN, (1, 0, 2), config)


@cute.jit
def residual_values(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """The residual for a thread's accumulators of subtile `i`."""
    rD = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), me.sC.element_type)
    thr = me.copies.s2r_c.get_slice(me.thread)
    cute.copy(me.copies.s2r_c, thr.partition_S(me.sC)[None, None, None, i % config.across], thr.retile(rD))
    return rD.load().to(cutlass.Float32)


@cute.jit
def finish(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's accumulators of subtile `i`, through the epilogue's function, rounded."""
    given = {"alpha": me.op.alpha, "beta": me.op.beta}
    if cutlass.const_expr("row" in config.operands):
        given["row"] = row_values(me, i, config)
    if cutlass.const_expr("column" in config.operands):
        given["column"] = column_values(me, i, config)
    if cutlass.const_expr("residual" in config.operands):
        given["residual"] = residual_values(me, i, config)
    x = subtile_of(me.acc[i // config.across], i % config.across, config).load()  # (MMA, 1, 1), float32
    x = EPILOGUES[config.epilogue](x, **{name: given[name] for name in config.operands})
    return x.to(me.sC.element_type)


# %% [markdown]
# ## A band leaves, and the other one is multiplied
#
# The function's result goes to shared memory at once. It could stay in registers until there is time for the store, as
# in [the overlapped epilogue](overlapped_epilogue_gemm.ipynb). But then nothing keeps the function in its place: the
# compiler moves its instructions behind the wgmmas that they were to overlap, keeps both sets of accumulators alive,
# and spills. A store to shared memory stays where it is, between its barriers, and so does what it stores.
#
# The end of a work tile and the beginning of the next one are one piece of code. In a loop over whole work tiles the
# compiler no longer knows, at the beginning, that the second band's wgmmas are over, and waits for all of them.


# %%
@cute.jit
def finish_band(me: Consumer, band: cutlass.Constexpr, tile, config: cutlass.Constexpr):
    """The epilogue of one band of this warpgroup's part of a work tile (m, n): to C, subtile by subtile."""
    storing = cute.arch.make_warp_uniform(me.thread // 32) == 0
    thr = me.copies.r2s_c.get_slice(me.thread)
    gC = cute.local_tile(me.op.c.coords, (config.tile_m, config.tile_n), tile)  # (TILE_M, TILE_N)
    gC = cute.zipped_divide(gC, (64, config.epi_n))  # (EPI_TILE, subtiles)
    sC = cute.group_modes(me.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
    bSsC, bSgC = cpasync.tma_partition(me.op.c.atom, 0, cute.make_layout(1), sC, gC)
    if cutlass.const_expr("residual" in config.operands):
        cute.arch.mbarrier_wait(me.arrived, band)  # two loads for each work tile: the phases alternate
    for j in cutlass.range_constexpr(config.across):
        i = band * config.across + j
        buffer = i % config.epi_stages
        if cutlass.const_expr("residual" not in config.operands):  # that has come only after TMA had read the buffer
            if storing:
                cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
        me.barrier.arrive_and_wait()  # TMA has read what was in this buffer; `row` and `column` are in shared memory
        rC = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), me.sC.element_type)  # (MMA, 1, 1)
        rC.store(finish(me, i, config))
        cute.copy(me.copies.r2s_c, thr.retile(rC), thr.partition_D(me.sC)[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
        me.barrier.arrive_and_wait()
        if storing:
            with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
                cute.copy(me.op.c.atom, bSsC[None, buffer], bSgC[None, subtile_at(me, i, config)])
                cute.arch.cp_async_bulk_commit_group()


@cute.jit
def begin_tile(me: Consumer, i, schedule: Schedule, before, config: cutlass.Constexpr):
    """The first k-tiles of the i-th work tile. While its first band is multiplied, the second one of the work tile
    `before` is finished, if there is one."""
    k_tile = i * me.k_tiles
    stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
    read, release = (pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))
    stages, read = arrived_stages(me, read, config.together)
    issue(me, stages, (0,), True)
    tile = tile_of(i, schedule, config)  # computed while the first commit group runs
    if cutlass.const_expr(before is not None):
        finish_band(me, 1, before, config)
    issue(me, stages, (1,), True)
    read, release = next_k_tile(me, read, release, config.together)
    if cutlass.const_expr("residual" in config.operands):
        load_residual(me, tile, 0, config)
    if cutlass.const_expr("row" in config.operands or "column" in config.operands):
        keep_vectors(me, fetch_vectors(me, tile, config), config)
    return read, release, tile


@cute.jit
def end_tile(me: Consumer, read, release, tile, config: cutlass.Constexpr):
    """The other k-tiles of a work tile. While its second band is multiplied to the end, its first one is finished."""
    for _ in cutlass.range(config.min_k_tiles, me.k_tiles, unroll=1):
        read, release = next_k_tile(me, read, release)
    stages, read = arrived_stages(me, read, config.together)
    issue(me, stages, (0,))
    warpgroup.wait_group(1)
    release = give_back(me, release, 1)
    issue(me, stages, (1,))
    warpgroup.wait_group(1)  # the first band is complete
    finish_band(me, 0, tile, config)
    if cutlass.const_expr("residual" in config.operands):
        load_residual(me, tile, 1, config)
    warpgroup.wait_group(0)
    give_back(me, release, config.together)


@cute.jit
def compute(me: Consumer, schedule: Schedule, config: cutlass.Constexpr):
    """A warpgroup's half of all work tiles. The end of each is in one piece with the beginning of the next."""
    read, release, tile = begin_tile(me, cutlass.Int32(0), schedule, None, config)
    for i in cutlass.range(1, schedule.count, unroll=1):
        end_tile(me, read, release, tile, config)
        read, release, tile = begin_tile(me, i, schedule, tile, config)
    end_tile(me, read, release, tile, config)
    finish_band(me, 1, tile, config)


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume.


# %%
class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates


class Operands(NamedTuple):
    """What a kernel reads and writes."""

    a: TmaTensor  # (M, K)
    b: TmaTensor  # (N, K)
    c: TmaTensor  # (M, N)
    residual: object  # TmaTensor (M, N), if the epilogue takes one
    row: cute.Tensor  # (M)
    column: cute.Tensor  # (N)
    alpha: cutlass.Float32
    beta: cutlass.Float32


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """The pipeline of a CTA, the residual's mbarriers, one for a warpgroup, and shared memory: sA, sB, sC, sV."""
    layouts, smem = smem_layouts(dtype, config), cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages + 2)
    sV = smem.allocate_tensor(cutlass.Float32, cute.make_layout((config.vector_elements, 2)), 16)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbours.
    arrivals = 4 * 2 * config.cluster
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, 1, config.cluster_n, 1)),
        defer_sync=True,
    )
    arrived = barriers + 2 * config.stages
    if cutlass.const_expr("residual" in config.operands):
        if cute.arch.thread_idx()[0] == 0:
            for group in range(2):
                cute.arch.mbarrier_init(arrived + group, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
    cute.arch.cluster_wait()
    return pipe, arrived, (sA, sB, sC, sV)


@cute.kernel
def kernel(op: Operands, remap: cute.Pointer, raster: tuple, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """A cluster computes the cluster tiles `first`, `first + step`, ... of C."""
    cta, ctas = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    first, step = cta // config.cluster, ctas // config.cluster
    if cutlass.const_expr(config.gpc_aware):  # the load takes longer than all that is set up after it
        first = cute.make_tensor(remap, cute.make_layout(step))[first]
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for x in (op.a, op.b, op.c):
            cpasync.prefetch_descriptor(x.atom)
    pipe, arrived, smem = set_up(dtype, config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    tiles, down, by_step, of_group, of_last = raster
    first = cute.arch.make_warp_uniform(first)
    schedule = Schedule(first, step, (tiles + step - 1 - first) // by_step, down, of_group, of_last, rank)
    k_tiles = cutlass.max(cute.ceil_div(cute.size(op.a.coords, mode=[1]), config.tile_k), config.min_k_tiles)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.registers[0])
        if warp_idx == 8:
            a = load_of(op.a, smem[0], (config.tile_m, config.tile_k), rank, config.cluster_n)
            b = load_of(op.b, smem[1], (config.tile_n, config.tile_k), cutlass.Int32(0), 1)
            produce(pipe, (a, b), schedule, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.registers[1])
        consume((group, tidx % 128), op, (pipe, arrived), smem, schedule, k_tiles, dtype, config)


@cute.jit
def consume(who, op: Operands, waits, smem, schedule: Schedule, k_tiles, dtype, config: cutlass.Constexpr):
    """A warpgroup's share of all work tiles. who: the warpgroup (0 or 1), and the thread in it."""
    (group, thread), (pipe, arrived), (sA, sB, sC, sV) = who, waits, smem
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    shape = thr.partition_shape_C((config.tile_m // 2, config.tile_n))  # (MMA, 1, 1): of one band
    acc = tuple(cute.make_rmem_tensor(shape, cutlass.Float32) for _ in BOTH)
    bands = cute.flat_divide(sA, (config.tile_m // 2,))  # (BAND, 2, TILE_K, STAGE)
    tCrA = tuple(accumulate.make_fragment_A(thr.partition_A(bands[None, band, None, None])) for band in BOTH)
    tCrB = accumulate.make_fragment_B(thr.partition_B(sB))  # (MMA, 1, MMA_K, STAGE)
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    multiplied = pipe, k_tiles, (overwrite, accumulate), acc, tCrA, tCrB
    me = Consumer(*multiplied, op, arrived + group, sV[None, group], sC, tiled_copies(dtype, config), group, thread)
    cute.arch.griddepcontrol_wait()  # what this warpgroup reads and stores, the kernel before may still write
    compute(me, schedule, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The launch
#
# Addresses of operands that the function does not have are 0, and nothing looks at them: there is no code for them.


# %%
class Further(NamedTuple):
    """What the epilogue's function takes; 0 for what it does not."""

    row: cute.Pointer  # (M)
    column: cute.Pointer  # (N)
    residual: cute.Pointer  # (M, N)
    alpha: cutlass.Float32
    beta: cutlass.Float32


class Launch(NamedTuple):
    """What a launch is told beside the addresses of its tensors."""

    remap: cute.Pointer  # Int32, by cluster: the number of its first cluster tile
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    stride_residual: cutlass.Int64  # from row to row, in elements
    clusters: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    further: Further,
    launch: Launch,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = f(A (M, K) times B (N, K) transposed, ...), f being the epilogue's function."""
    remap, (m, n, k), strides, stride_residual, clusters = launch
    dtype = pA.dtype
    lda, ldb, ldc, ldr = (cute.assume(stride, divby=8) for stride in (*strides, stride_residual))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    mR = cute.make_tensor(further.residual, cute.make_layout((m, n), stride=(ldr, 1)))
    row, column = (cute.make_tensor(p, cute.make_layout(x)) for p, x in ((further.row, m), (further.column, n)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), 1)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    residual = make_load(mR, c_stage, (64, config.epi_n), 1) if "residual" in config.operands else None
    op = Operands(a, b, c, residual, row, column, further.alpha, further.beta)
    launcher = kernel(op, remap, raster_of(m, n, clusters, config), dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * config.cluster, config.threads, config.cluster))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def raster_of(m, n, clusters, config: Config) -> tuple:
    """How the cluster tiles of C (m, n) are numbered: (how many, how many down C, and divisors: `clusters`, the tiles
    of a group, the height of the last group). See `tile_of`.
    """
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.tile_n * config.cluster_n)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


def compile_for(arch: str, dtype, config: Config | None = None, row=None, column=None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. row, column: their element
    types, `dtype` if left out."""
    vectors = ((of, of.width // 8) for of in (row or dtype, column or dtype))
    pointers = *((dtype, 16),) * 3, *vectors, (dtype, 16), (cutlass.Int32, 4)  # the last one to the remapping's table
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## GPC-aware remapping
#
# As in [the tuned GEMM](tuned_gemm.ipynb#gpc-aware-remapping). On another H200 `launch_order()` of [the page about
# GPCs](../foundations/gpc_remapping.ipynb) finds the GPCs: `calibrate(gpcs=launch_order())`.


# %% tags=["folded"]
@dataclass(frozen=True)
class Calibration:
    """What the remapping knows of one chip: the default is of an H200."""

    # The GPC of each cluster of two, in the order in which an idle GPU starts them. Any letters; () is "not known".
    gpcs: tuple[object, ...] = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")


CALIBRATION = Calibration()
FULL, LONG = 0.9, 15_000  # of the clusters that fit; clocks of multiplying: below either, a table is not worth it


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(gpcs=launch_order())`, say."""
    global CALIBRATION
    CALIBRATION = replace(CALIBRATION, **figures)
    for each in GEMMS.values():
        each.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


def remap_of(call: Call, config: Config, count: int) -> int:
    """The address of the table for `count` clusters; 0: none, where clusters are few, the product is short, or the
    GPCs are not known."""
    (m, n, k), most, known = call.mnk, call.sms // config.cluster, tuple(CALIBRATION.gpcs)
    if count < FULL * most or m * n * k / 2048 / call.sms < LONG or len(known) != most:
        return 0
    return remap_table(call.device, known[:count], min(config.swizzle_size, -(-m // config.tile_m)))


# %% [markdown]
# ## `matmul`: what a user calls
#
# `FusedGemm`, which comes with every recipe's host side, checks the function's operands too: each one that its
# parameters name, and no other.


# %%
def cluster_tiles(config: Config, m: int, n: int) -> int:
    """Tiles of whole clusters that cover C (m, n)."""
    return -(-m // config.tile_m) * -(-n // (config.tile_n * config.cluster_n))


def waves(config: Config, m: int, n: int, sms: int) -> int:
    """Cluster tiles that the busiest cluster computes, if `sms` SMs are full of clusters."""
    return -(-cluster_tiles(config, m, n) // (sms // config.cluster))


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """The number of clusters to launch: no more than that number of waves needs."""
    return -(-cluster_tiles(config, m, n) // waves(config, m, n, sms))


def variant_for(m: int, n: int, sms: int) -> str:
    """The variant that multiplies for the fewest clocks."""
    return min(VARIANTS, key=lambda name: waves(VARIANTS[name], m, n, sms) * VARIANTS[name].tile_n)


VECTORS = DTYPES | {torch.float32: cutlass.Float32}


def prepare(call: Call, epilogue: str = "product") -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the operands and the stream."""
    (m, n, _), (*strides, stride_residual) = call.mnk, call.strides
    config = fused(epilogue)
    if "residual" not in config.operands:
        name = variant_for(m, n, call.sms) if call.variant == DEFAULT else call.variant
        config = replace(VARIANTS[name], epilogue=epilogue)
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count)
    which = replace(config, gpc_aware=remap != 0), *(VECTORS[each] for each in call.operands[2:])
    return which, (Launch(remap, call.mnk, tuple(strides), stride_residual, count),)


def host_side(epilogue: str) -> FusedGemm:
    """The host side of the kernels that have an epilogue."""
    given, variants = partial(prepare, epilogue=epilogue), (DEFAULT, *VARIANTS)
    needed = operands_of(epilogue)
    return FusedGemm(compile_for, given, ((9, 0),), "wgmma", variants, padded=True, needed=needed)


GEMM = host_side("product")
GEMMS = {"product": GEMM}  # more of them as they are called


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    epilogue: str = "product",
    row: torch.Tensor | None = None,
    column: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """`f(a @ b)` on the tensor cores, accumulated in float32 and rounded once, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    epilogue: f, one of EPILOGUES. It takes those of the following operands that its function names, and no others.
    row, column: (M,) and (N,), float32 or the dtype of a, adjacent elements.
    residual: (M, N), the dtype of a, stride 1 along N, rows a multiple of 16 bytes apart.
    alpha, beta: numbers.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of the operands. Made if not given.
    variant: one of VARIANTS, or "auto". An epilogue with a residual has one kernel, whatever the variant.

    The addresses of a, b and residual and their row strides are multiples of 16 bytes, as TMA needs them. Any M, N, K
    >= 1 within that, on a GPU of compute capability 9.0. For an `out` whose rows TMA cannot write, C is made in padded
    rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    require(epilogue in tuple(EPILOGUES), "epilogue", repr(epilogue), f"one of {', '.join(EPILOGUES)}")
    side = GEMMS.get(epilogue) or GEMMS.setdefault(epilogue, host_side(epilogue))
    return side.matmul((a, b, row, column, residual, alpha, beta), out, variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# The functions are looked at apart from the kernel. CuTe evaluates each of them on the host, on random numbers, and the
# reference is evaluated in float64 (level *model*). In the kernel the checks put functions of their own in their place,
# `x * row * column` and `x + residual`, and follow each operand from memory to the element of C that it is for (level
# *product*). What `tanh.approx` loses is seen on a GPU only.

# %% tags=["lab"]
lab.check_cells("hopper/fused_epilogue_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, the product alone, next to `torch.matmul`: run and timed where there is a GPU
# for it, else as recorded.

# %% tags=["lab", "open"]
lab.compare("hopper/fused_epilogue_gemm", matmul, (4096, 14336, 4096))

# %% [markdown] tags=["lab"]
# Peers, in one run: the product alone, by each variant and by the tuned GEMM; `bias_gelu` and `add` next to torch's
# fused calls.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("hopper/fused_epilogue_gemm"))

# %% [markdown] tags=["lab"]
# **What is to be expected.** Clocks of an SM for a work tile of 256 x 160, by K: to multiply it, and for the `tanh` of
# GELU. The last column is what GELU would add if nothing hid it.

# %% tags=["lab"]
rows = []
for k in (1024, 4096, 8192):
    multiplied = 256 * 160 * k // 2048
    rows.append([str(k), f"{multiplied:,}", f"{2 * BAND:,}", f"{200 * BAND / multiplied:.1f}%"])
Markdown(table(["K", "multiplication", "tanh", "not hidden"], rows))

# %% [markdown] tags=["lab"]
# Hiding saves clocks and no energy. Where the GPU runs at its power limit, the instructions of the function cost time
# wherever they stand: some ten for each element of C, against 2 K flops on the tensor cores.
#
# ## Conclusion
#
# An epilogue is a function of a thread's accumulators, and what it needs besides is named by its parameters: vectors by
# plain loads, a matrix by TMA into buffers that are idle anyway. Two bands of rows let the tensor cores work while the
# function does.
#
# To use it: `cookbook copy hopper/fused_epilogue_gemm my_gemm.py`, then `from my_gemm import matmul`.
