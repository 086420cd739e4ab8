# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Fused epilogues: one function between the accumulators and C"
#     claim: >-
#       Bias, GELU, SiLU, ReLU or a residual are one small function of a thread's accumulators, called where these are
#       rounded. C goes to memory once.
#     track: hopper
#     order: 110
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     measured_by: foundations/gpc_remapping
#     compared_with: hopper/tuned_gemm
#     bench_shapes: [[4096, 14336, 4096], [8192, 4096, 4096], [8192, 4096, 1024]]
#     serves: {sm_90: 2048}
#     fuses: add_bias
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
# small function of a thread's accumulators, and nothing but C goes to memory. The function is called in one place:
# where the kernel rounds accumulators to the dtype of C.

# %% tags=["lab"]
from cookbook import draw, lab

K = 1024
WHOLE, TANH = 256 * 160 * K // 2048, 256 * 160 // 16  # clocks of an SM for a work tile: to multiply it, and of its tanh
HALF, HIDDEN = 128 * 192 * K // 2048, 128 * 192 // 16


def spans(kind: str, clocks: int, *starts: int) -> list[draw.Span]:
    return [draw.Span(at, at + clocks, "", kind) for at in starts]


lanes = {
    "256x160: tensor cores": spans("multiply", WHOLE, 0, WHOLE + TANH),
    "both warpgroups": spans("GELU", TANH, WHOLE, 2 * WHOLE + TANH),
    "": [],
    "128x192 ping-pong: tensor cores": spans("multiply", HALF, *range(0, 4 * HALF, HALF)),
    "warpgroup 0": spans("GELU", HIDDEN, HALF, 3 * HALF),
    "warpgroup 1": spans("GELU", HIDDEN, 2 * HALF, 4 * HALF),
}
draw.lanes(lanes, f"Work tiles, K = {K}: computed, not measured", note="GELU: as long as its tanh take")

# %% [markdown]
# **Two numbers first**, for `gelu(x @ w + bias)` of 4096 x 14336 x 4096 on an H200:
#
# * Multiply-adds: a work tile of 256 x 160 has 256 x 160 x 4096 of them, 82,000 clocks of an SM.
# * GELU: one `tanh` for each of its 40,960 elements. An SM's special function units do 16 in a clock, so that is 2,560
#   clocks, 3.1% of the multiplication, if nothing hides it.
#
# Without fusing, a kernel of its own reads and writes C once more: 235 MB, 0.06 ms at 4.26 TB/s, for a product of 0.7
# ms. [Ping-pong](pingpong_gemm.ipynb) hides the function behind the other warpgroup's multiplication, but its tiles are
# smaller and load more. The rest of the kernel is [the tuned GEMM](tuned_gemm.ipynb).

# %%
import inspect
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, FusedGemm, check_epilogue, compile_host, remap_table, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The epilogue: a function of accumulators
#
# **This is the part to replace.** `x` holds a thread's accumulators of one epilogue subtile, in float32. Its other
# parameters say by their names what is to be fetched. Both come in the shape of `x`, in float32:
#
# | parameter | in memory | an element of C gets |
# |---|---|---|
# | `bias` | (N), the dtype of C | that of its column |
# | `residual` | (M, N), the dtype of C | its own |
#
# GELU by `tanh` and not by `erf`, and SiLU by `tanh` and not by `exp`: `tanh.approx` is one instruction. Its relative
# error is 2^-11; C is rounded at 2^-9.


# %%
def product(x):
    return x


def add_bias(x, bias):
    return x + bias


def gelu(x):
    half = 0.5 * x
    return half + half * cute.math.tanh(x * (0.7978845608 + 0.0356774081 * (x * x)), fastmath=True)


def bias_gelu(x, bias):
    return gelu(x + bias)


def bias_silu(x, bias):
    half = 0.5 * (x + bias)
    return half + half * cute.math.tanh(half, fastmath=True)


def bias_relu(x, bias):
    x = x + bias
    return cute.where(x > 0.0, x, cute.zeros_like(x))


def add_residual(x, residual):
    return x + residual


def add_both(x, bias, residual):
    return x + bias + residual


EPILOGUES = {each.__name__: each for each in (
    product, add_bias, bias_gelu, bias_silu, bias_relu, add_residual, add_both,
)}  # fmt: skip


def operands_of(epilogue: str) -> tuple[str, ...]:
    """The operands of an epilogue: the parameters of its function, behind the first one."""
    return tuple(inspect.signature(EPILOGUES[epilogue]).parameters)[1:]


# %% [markdown]
# `REFERENCES` says the same in torch, for the checks; `PEERS` are torch's own fused calls, for the times. For a
# function of your own add a line to the first and run the cells below: the check then covers it.


# %% tags=["folded"]
REFERENCES = {  # of torch tensors: x and residual are (M, N), bias (N)
    "product": lambda x: x,
    "add_bias": lambda x, bias: x + bias,
    "bias_gelu": lambda x, bias: torch.nn.functional.gelu(x + bias, approximate="tanh"),
    "bias_silu": lambda x, bias: torch.nn.functional.silu(x + bias),
    "bias_relu": lambda x, bias: torch.relu(x + bias),
    "add_residual": lambda x, residual: x + residual,
    "add_both": lambda x, bias, residual: x + bias + residual,
}


PEERS = {
    "add_bias": ("torch.addmm", lambda a, b, out, bias: torch.addmm(bias, a, b, out=out)),
    "bias_gelu": (
        "torch._addmm_activation",
        lambda a, b, out, bias: torch._addmm_activation(bias, a, b, use_gelu=True, out=out),
    ),
    "add_residual": ("torch.addmm", lambda a, b, out, residual: torch.addmm(residual, a, b, out=out)),
}

# %% [markdown]
# ## The variants
#
# Two cooperative tiles, of which the larger one loads less, and two for ping-pong. Those of the tuned GEMM that swap A
# and B are left out: there an epilogue would find its columns in rows.
#
# An epilogue with a residual has ping-pong: one warpgroup waits for global memory while the other one multiplies.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    epilogue: str = "product"  # one of EPILOGUES
    cluster_n: int = 2  # CTAs side by side: each tile of A comes to both by multicast
    pingpong: bool = False  # each warpgroup has work tiles of its own; False: cooperative, both share one
    overlapped: int = 4  # epilogue subtiles of a cooperative warpgroup stored during the next tile's main loop
    swizzle_size: int = 8  # cluster tiles down C that need the same tiles of B, before it goes on to the right
    gpc_aware: bool = True  # cluster tiles go to clusters by a table, so that consecutive ones run in one GPC
    epi_n: int = 64  # columns of an epilogue subtile; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # a thread; with twice the consumers' that is three times the launch's 168: all
    consumer_registers: int = 240

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)
        if "residual" in self.operands:
            fits = self.pingpong and self.subtiles == 2 * self.epi_stages
            require(fits, "epilogue", repr(self.epilogue), "no residual, or ping-pong with buffers for half of a tile")

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
    def warpgroups(self) -> int:
        return 1 if self.pingpong else 2  # that share a work tile

    @property
    def across(self) -> int:
        return self.tile_n // self.epi_n  # subtiles of a tile, side by side

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
        small = 16 * (self.stages + self.epi_stages) + 2 * self.tile_n * 2  # barriers and biases, padded to alignment
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + 2 * self.epi_stages * 64 * self.epi_n * 2


VARIANTS = {
    "128x256": Config(),
    "256x160": Config(tile_m=256, tile_n=160, epi_n=32, overlapped=8),
    "128x192 pingpong": Config(tile_n=192, epi_stages=3, pingpong=True, overlapped=0),
    "128x128 pingpong": Config(tile_n=128, stages=6, pingpong=True, overlapped=0),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


def variants_of(epilogue: str) -> dict[str, Config]:
    """The variants that an epilogue can have: with a residual, those for ping-pong."""
    waits = "residual" in operands_of(epilogue)
    return {name: replace(c, epilogue=epilogue) for name, c in VARIANTS.items() if c.pingpong or not waits}


def fused(epilogue: str) -> Config:
    """The configuration of one kernel that has an epilogue."""
    return next(iter(variants_of(epilogue).values()))


# %% [markdown]
# **The heuristics** are those of [the tuned GEMM](tuned_gemm.ipynb#the-heuristics): the clocks of the busiest SM, and at
# the power limit what it loads.


# %% tags=["folded"]
@dataclass(frozen=True)
class Calibration:
    """What the remapping knows of one chip: the default is of an H200."""

    # The GPC of each cluster of two, in the order in which an idle GPU starts them. Any letters; () is "not known".
    gpcs: tuple[object, ...] = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")


CALIBRATION = Calibration()


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(gpcs=launch_order())`, say."""
    global CALIBRATION
    CALIBRATION = replace(CALIBRATION, **figures)
    for each in GEMMS.values():
        each.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


def cluster_tiles(config: Config, m: int, n: int) -> tuple[int, int]:
    """Tiles of whole clusters that cover C (m, n): down, across."""
    return -(-m // config.tile_m), -(-n // (config.tile_n * config.cluster_n))


def waves(config: Config, m: int, n: int, sms: int) -> int:
    """Cluster tiles that the busiest cluster computes, if `sms` SMs are full of clusters."""
    return -(-prod(cluster_tiles(config, m, n)) // (sms // config.cluster))


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """The number of clusters to launch: no more than that number of waves needs."""
    return -(-prod(cluster_tiles(config, m, n)) // waves(config, m, n, sms))


def is_short(m: int, n: int, k: int, sms: int) -> bool:
    """Whether the product is over before power matters."""
    return m * n * k / 2048 / sms < 15_000


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """What C (m, n) over k costs on `sms` SMs, to be compared with the cost of another configuration."""
    tile = config.tile_m * config.tile_n
    stage = max(tile * config.tile_k / 2048, config.stage_bytes / 80)
    at_once = (config.subtiles - config.overlapped) * config.epi_n / 64
    stop = 0 if config.pingpong else 800 + 350 * at_once  # while both warpgroups round and store
    clocks = waves(config, m, n, sms) * (-(-k // config.tile_k) * stage + stop) + tile / 16
    return clocks if is_short(m, n, k, sms) else clocks**0.5 * (1 + 16 / config.tile_m + 16 / config.tile_n)


def choose(m: int, n: int, k: int, sms: int, epilogue: str = "product") -> str:
    """The variant that costs least, of those that the epilogue can have."""
    return min(variants_of(epilogue), key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## The layouts, the MMA, the tile scheduler and the producer
#
# As in the tuned GEMM: K-major tiles in the 128-byte swizzle, epilogue subtiles in the widest swizzle that divides a
# row; persistent clusters of two that share each tile of A; every second work tile's K backwards.


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
    """The wgmmas of the warpgroups that share a tile: of one, which then goes down all its rows itself, or of two."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (config.warpgroups, 1, 1))


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


# %% tags=["folded"]
class Raster(NamedTuple):
    """The rasterization of C: how its cluster tiles are numbered."""

    tiles: cutlass.Int32  # cluster tiles of C
    down: cutlass.Int32  # of these, down C: the direction of consecutive numbers
    by_step: cute.FastDivmodDivisorV2  # divides by the number of clusters
    by_group: cute.FastDivmodDivisorV2  # divides by the cluster tiles of a group
    by_last: cute.FastDivmodDivisorV2  # divides by the swizzle size of the last group


class Scheduler(NamedTuple):
    """The work tiles of one CTA."""

    raster: Raster
    first: cutlass.Int32  # number of its cluster's first cluster tile
    step: cutlass.Int32  # from one to the next: the clusters of the grid
    count: cutlass.Int32  # of work tiles
    rank: cutlass.Int32  # of the CTA in its cluster


def rasterize(m, n, clusters, config: Config) -> Raster:
    """The rasterization of C (m, n) for `clusters` clusters; the host computes it."""
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.tile_n * config.cluster_n)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return Raster(down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers))


@cute.jit
def work_tile(scheduler: Scheduler, i, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    raster = scheduler.raster
    group, inside = divmod(scheduler.first + i * scheduler.step, raster.by_group)
    start = group * config.swizzle_size
    n, m = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > raster.down:  # the last group is smaller
        n, m = divmod(inside, raster.by_last)
    return start + m, n * config.cluster_n + scheduler.rank


# %% tags=["folded"]
class Load(NamedTuple):
    """One operand as the producer sees it."""

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
def produce(pipe, loads, scheduler: Scheduler, tile, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of all work tiles of this CTA, a stage each; `tile` is the first of these."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        state = load_tile(pipe, loads, state, tile, i & 1, k_tiles)
        tile = work_tile(scheduler, cutlass.min(i + 1, scheduler.count - 1), config)
    if cutlass.const_expr(not config.gpc_aware):
        cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


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


# %% [markdown]
# ## The consumers, in both schedules
#
# One commit group of wgmmas for each k-tile. Cooperative warpgroups store `overlapped` of their subtiles during the main
# loop of the next tile; in ping-pong each has work tiles of its own, and begins when the other has issued its k-tiles.


# %% tags=["folded"]
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    bias: cute.Tensor  # (N)
    sV: cute.Tensor  # its own copy of the bias of a work tile, (TILE_N)
    residual: object  # TmaTensor: its tiles as TMA coordinates, (TILE_M, TILE_N, m, n); None: there is none
    arrived: cute.Pointer  # its own mbarriers, one for each epilogue buffer: a residual has come
    sC: cute.Tensor  # its own epilogue buffers, (EPI_M, EPI_N, EPI_STAGE)
    gC: cute.Tensor  # all tiles of C as TMA coordinates, (TILE_M, TILE_N, m, n)
    copies: TiledCopies
    tma_c: cute.CopyAtom
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


def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's values of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has them."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


# %% [markdown]
# ## The epilogue's operands
#
# **The bias.** Threads of a warpgroup fetch the bias of a work tile early, under wgmmas in flight, and keep it in shared
# memory: one barrier for each work tile. A thread needs two neighbours of every 8 columns, and both of its rows need
# the same: a layout with stride 0 repeats them.
#
# **A residual** comes by TMA, into the epilogue buffers that C leaves from; an mbarrier of each counts the bytes.
# Half of a work tile is asked for when the last k-tile is multiplied, the rest as buffers become free. Each mbarrier has
# two phases for a work tile, so the parity is known. `ldmatrix` gives a thread the elements of its accumulators, and
# `stmatrix` writes C to the same place.


# %%
@cute.jit
def fetch_bias(me: Consumer, tile, config: cutlass.Constexpr):
    """The bias of a work tile (m, n), spread over the warpgroup's threads."""
    rV = cute.make_rmem_tensor(-(-config.tile_n // 128), me.sV.element_type)
    if cutlass.const_expr("bias" in config.operands):
        for i in cutlass.range_constexpr(cute.size(rV)):
            column = tile[1] * config.tile_n + 128 * i + me.thread
            rV[i] = me.bias[cutlass.min(column, cute.size(me.bias) - 1)]
    return rV


@cute.jit
def keep_bias(me: Consumer, rV, config: cutlass.Constexpr):
    """Put it into shared memory. Since the work tile before was read there, barriers of its stores have been passed."""
    if cutlass.const_expr("bias" in config.operands):
        for i in cutlass.range_constexpr(cute.size(rV)):
            column = 128 * i + me.thread
            if column < config.tile_n:
                me.sV[column] = rV[i]
        pipeline.NamedBarrier(barrier_id=1 + me.warpgroup, num_threads=128).arrive_and_wait()


@cute.jit
def bias_values(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """The bias for a thread's accumulators of subtile `i`."""
    first = cute.assume(i % config.across * config.epi_n + me.thread % 4 * 2, divby=2)
    sN = cute.make_tensor(me.sV.iterator + first, cute.make_layout((2, config.epi_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, sN.element_type)
    cute.autovec_copy(sN, rN)
    repeated = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=((1, 0, 2), 0, 0))
    return cute.make_tensor(rN.iterator, repeated).load().to(cutlass.Float32)


@cute.jit
def load_residual(me: Consumer, i: cutlass.Constexpr, tile, config: cutlass.Constexpr):
    """Ask TMA for subtile `i` of the residual; all but the last store of C have been read from the buffers."""
    buffer = i % config.epi_stages
    gR = cute.zipped_divide(
        me.residual.coords[None, None, tile[0], tile[1]], (64, config.epi_n)
    )  # (EPI_TILE, subtiles)
    tRsR, tRgR = cpasync.tma_partition(me.residual.atom, 0, cute.make_layout(1), cute.group_modes(me.sC, 0, 2), gR)
    if cute.arch.make_warp_uniform(me.thread // 32) == 0:
        cute.arch.cp_async_bulk_wait_group(0 if i < config.epi_stages else 1, read=True)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(me.arrived + buffer, 64 * config.epi_n * 2)
        where = subtile_at(me, i, config)
        cute.copy(me.residual.atom, tRgR[None, where], tRsR[None, buffer], tma_bar_ptr=me.arrived + buffer)


@cute.jit
def residual_values(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """The residual for a thread's accumulators of subtile `i`."""
    buffer, thr = i % config.epi_stages, me.copies.s2r_c.get_slice(me.thread)
    cute.arch.mbarrier_wait(me.arrived + buffer, i // config.epi_stages)
    rR = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), me.sC.element_type)
    cute.copy(me.copies.s2r_c, thr.partition_S(me.sC)[None, None, None, buffer], thr.retile(rR))
    return rR.load().to(cutlass.Float32)


def subtile_at(me: Consumer, i: int, config: Config):
    """The place of this warpgroup's subtile `i` in a work tile: (row, column), in subtiles."""
    return i // config.across * config.warpgroups + (0 if config.pingpong else me.warpgroup), i % config.across


# %% [markdown]
# ## The place of the function
#
# `finish` stands where the tuned GEMM rounds. Nothing else in the kernel knows of the function.


# %%
@cute.jit
def finish(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's accumulators of subtile `i` of a work tile, through the epilogue's function, rounded."""
    given = {}
    if cutlass.const_expr("bias" in config.operands):
        given["bias"] = bias_values(me, i, config)
    if cutlass.const_expr("residual" in config.operands):
        given["residual"] = residual_values(me, i, config)
    x = subtile_of(me.acc, i, config).load()  # (MMA, 1, 1), float32
    return EPILOGUES[config.epilogue](x, **given).to(me.sC.element_type)


@cute.jit
def finish_and_store(me: Consumer, last: cutlass.Constexpr, tile, config: cutlass.Constexpr):
    """Finish and store subtiles 0 to `last` - 1 of a tile, one after the other."""
    for i in cutlass.range_constexpr(last):
        rC = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), me.sC.element_type)
        rC.store(finish(me, i, config))
        store_subtile(me, i, rC, tile, config)
        ahead = i + config.epi_stages - 1  # its buffer was written from one subtile ago
        if cutlass.const_expr("residual" in config.operands and i > 0 and ahead < last):
            load_residual(me, ahead, tile, config)


@cute.jit
def store_subtile(me: Consumer, i: cutlass.Constexpr, rC, tile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile (m, n). rC: a thread's rounded values, (MMA, 1, 1)."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + me.warpgroup, num_threads=128)
    storing = cute.arch.make_warp_uniform(me.thread // 32) == 0
    thr, buffer = me.copies.r2s_c.get_slice(me.thread), i % config.epi_stages
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in this buffer
    cute.copy(me.copies.r2s_c, thr.retile(rC), thr.partition_D(me.sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()
    if storing:
        gC = cute.zipped_divide(me.gC[None, None, tile[0], tile[1]], (64, config.epi_n))  # (EPI_TILE, subtiles)
        sC = cute.group_modes(me.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
        bSsC, bSgC = cpasync.tma_partition(me.tma_c, 0, cute.make_layout(1), sC, gC)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(me.tma_c, bSsC[None, buffer], bSgC[None, subtile_at(me, i, config)])
            cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## All work tiles of a warpgroup


# %% tags=["folded"]
@cute.jit
def compute(me: Consumer, scheduler: Scheduler, config: cutlass.Constexpr):
    """All work tiles of a warpgroup: its half of each, or in ping-pong every second one."""
    own, step = (me.warpgroup, 2) if config.pingpong else (0, 1)
    at_once = config.subtiles - config.overlapped
    rC = cute.make_rmem_tensor(max(1, config.overlapped) * config.epi_n // 2, me.sC.element_type)  # rounded
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(own, scheduler.count, step, unroll=1):
        k_tile = i * me.k_tiles
        stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
        read, release = (pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))
        if cutlass.const_expr(config.pingpong):  # barriers 4 and 5: 0 is the CTA's, 1 and 2 are of the epilogues
            if i > 0:
                pipeline.NamedBarrier(barrier_id=4 + me.warpgroup, num_threads=256).arrive_and_wait()
        me.pipe.consumer_wait(read)
        issue_wgmmas(me, read.index, True)
        read.advance()
        tile = work_tile(scheduler, i, config)  # computed while the first commit group runs
        rV = fetch_bias(me, tile, config)
        for j in cutlass.range_constexpr(config.overlapped):
            if i > 0:
                store_subtile(me, at_once + j, subtile_of(rC, j, config), before, config)
            if cutlass.const_expr(j + 1 < config.overlapped):
                read, release = next_k_tile(me, read, release)
        # As many k-tiles either way. They compile to different code, and each schedule has the one that was measured.
        first, end = (0, me.k_tiles - 1) if config.pingpong else (config.min_k_tiles, me.k_tiles)
        for _ in cutlass.range(first, end, unroll=1):
            read, release = next_k_tile(me, read, release)
        if cutlass.const_expr(config.pingpong):
            if i + 1 < scheduler.count:  # all is issued: the other warpgroup may begin
                pipeline.NamedBarrier(barrier_id=5 - me.warpgroup, num_threads=256).arrive()
        keep_bias(me, rV, config)
        if cutlass.const_expr("residual" in config.operands):
            for j in cutlass.range_constexpr(config.epi_stages):
                load_residual(me, j, tile, config)
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        finish_and_store(me, at_once, tile, config)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(rC, j, config).store(finish(me, at_once + j, config))
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(me, at_once + j, subtile_of(rC, j, config), before, config)


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume.


# %% tags=["folded"]
class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates: (M, K), (N, K) or (M, N), or tiles of these


@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    more: tuple,  # bias, a cute.Tensor (N), and residual, a TmaTensor (M, N) or None
    remap: cute.Pointer,  # Int32, by cluster: the number of its first cluster tile
    raster: Raster,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters."""
    block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    first, step = block // config.cluster, blocks // config.cluster
    if cutlass.const_expr(config.gpc_aware):  # this load takes longer than all that is set up meanwhile
        first = cute.make_tensor(remap, cute.make_layout(step))[first]
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    pipe, arrived, smem, rank = set_up(dtype, config)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cutlass.max(cute.size(gA, mode=[3]), config.min_k_tiles)
    first = cute.arch.make_warp_uniform(first)
    count = (raster.tiles + step - 1 - first) // raster.by_step
    scheduler = Scheduler(raster, first, step, count, rank)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        # The compiler would sink this below the wait for the previous kernel, where every clock counts. It must leave
        # an exchange between lanes, which changes nothing here, on this side of the branch.
        tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(scheduler, 0, config))
        if warp_idx == 8:
            load_a = load_of(a.atom, gA, smem[0], rank, config.cluster_n)
            load_b = load_of(b.atom, gB, smem[1], cutlass.Int32(0), 1)
            produce(pipe, (load_a, load_b), scheduler, tile, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        bias, residual = more
        if cutlass.const_expr(residual is not None):
            gR = cute.local_tile(
                residual.coords, (config.tile_m, config.tile_n), (None, None)
            )  # (TILE_M, TILE_N, m, n)
            residual = TmaTensor(residual.atom, gR)
        further = bias, smem[3][None, group], residual, arrived + group * config.epi_stages
        me = consumer((pipe, k_tiles), smem, TmaTensor(c.atom, gC), further, (group, tidx % 128), config)
        cute.arch.griddepcontrol_wait()  # PDL: the kernel before may still read or write what this warpgroup touches
        compute(me, scheduler, config)
        if warp_idx % 4 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """What the warps of a CTA share: its pipeline, the residual's mbarriers, the tensors sA, sB, sC, sV, and its rank
    in the cluster."""
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages + 2 * config.epi_stages)
    arrived = barriers + 2 * config.stages
    sV = smem.allocate_tensor(dtype, cute.make_layout((config.tile_n, 2)), 16)  # the bias, for each warpgroup
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbour.
    arrivals = 4 * config.warpgroups * config.cluster
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, 1, config.cluster_n, 1)),
        defer_sync=True,
    )
    if cutlass.const_expr("residual" in config.operands):
        if cute.arch.thread_idx()[0] == 0:
            for i in range(2 * config.epi_stages):
                cute.arch.mbarrier_init(arrived + i, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
    cute.arch.cluster_wait()
    return pipe, arrived, (sA, sB, sC, sV), cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


@cute.jit
def consumer(loaded: tuple, smem, out: TmaTensor, further: tuple, who: tuple, config: cutlass.Constexpr):
    """What a consumer warpgroup works with. out: tiles of C; who: the warpgroup (0 or 1), and the thread in it."""
    (sA, sB, sC, _), (group, thread) = smem, who
    dtype = sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(group % config.warpgroups * 128)  # of its first thread: the same for all
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    multiplied = *loaded, overwrite, accumulate, tCrA, tCrB, acc
    return Consumer(*multiplied, *further, sC, out.coords, tiled_copies(dtype, config), out.atom, group, thread)


# %% [markdown]
# ## The launch


# %% tags=["folded"]
class Further(NamedTuple):
    """The addresses of the epilogue's operands; 0: it has none."""

    bias: cute.Pointer  # (N)
    residual: cute.Pointer  # (M, N)


class Sizes(NamedTuple):
    """What a launch is told beside addresses: sizes, row strides in elements, and clusters to launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of A, B, C
    stride_residual: cutlass.Int64
    clusters: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    further: Further,
    remap: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = f(A (M, K) times B (N, K) transposed, ...), f being the epilogue's function."""
    (m, n, k), strides, stride_residual, clusters = sizes
    dtype, ctas = pA.dtype, config.cluster
    lda, ldb, ldc, ldr = (cute.assume(stride, divby=8) for stride in (*strides, stride_residual))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    mR = cute.make_tensor(further.residual, cute.make_layout((m, n), stride=(ldr, 1)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), 1)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    residual = make_load(mR, c_stage, (64, config.epi_n), 1) if "residual" in config.operands else None
    more = cute.make_tensor(further.bias, cute.make_layout(n)), residual
    launcher = kernel(a, b, c, more, remap, rasterize(m, n, clusters, config), dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (dtype, 2), (dtype, 16), (cutlass.Int32, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `FusedGemm`, which comes with every recipe's host side, checks the function's operands too: each one that its
# parameters name, and no other. [Clusters of a GPC](tuned_gemm.ipynb#gpc-aware-remapping) get neighbouring tiles.


# %%
def remap_of(call: Call, config: Config, count: int) -> int:
    """The address of the table for `count` clusters; 0: none, where clusters are few, the product is short, or the
    GPCs are not known."""
    (m, n, _), most, known = call.mnk, call.sms // 2, tuple(CALIBRATION.gpcs)
    if count < 0.9 * most or len(known) != most or is_short(*call.mnk, call.sms):
        return 0
    return remap_table(call.device, known[:count], min(config.swizzle_size, cluster_tiles(config, m, n)[0]))


def prepare(call: Call, epilogue: str = "product") -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the operands and the stream."""
    (m, n, k), (*strides, stride_residual) = call.mnk, call.strides
    name = choose(m, n, k, call.sms, epilogue) if call.variant == DEFAULT else call.variant
    config = replace(VARIANTS[name], epilogue=epilogue)
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count)
    return (replace(config, gpc_aware=remap != 0),), (remap, Sizes(call.mnk, tuple(strides), stride_residual, count))


GEMMS: dict[str, FusedGemm] = {}  # by epilogue


def host_side(epilogue: str) -> FusedGemm:
    """The host side of the kernels that have an epilogue."""
    if epilogue not in GEMMS:
        given, variants, needed = partial(prepare, epilogue=epilogue), (DEFAULT, *VARIANTS), operands_of(epilogue)
        made = FusedGemm(compile_for, given, ((9, 0),), "wgmma", variants, padded=True, needed=needed)
        GEMMS.setdefault(epilogue, made)  # two threads at once: the first one's
    return GEMMS[epilogue]


GEMM = host_side("product")


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    epilogue: str = "product",
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """`f(a @ b)` on the tensor cores, accumulated in float32 and rounded once, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    epilogue: f, one of EPILOGUES. It takes those of bias and residual that its function names, and no other.
    bias: (N,), the same dtype, adjacent elements.
    residual: (M, N), the same dtype, stride 1 along N.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of the operands. Made if not given.
    variant: one of VARIANTS (with a residual, one for ping-pong), or "auto": the one that `choose` names.

    The addresses of a, b and residual and their row strides are multiples of 16 bytes. Any M, N, K >= 1 within that, on
    a GPU of compute capability 9.0. For an `out` whose rows TMA cannot write, C is made in padded rows and copied.
    There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the argument,
    what it got and what it needs, and nothing has been launched.
    """
    require(epilogue in tuple(EPILOGUES), "epilogue", repr(epilogue), f"one of {', '.join(EPILOGUES)}")
    return host_side(epilogue).matmul((a, b, bias, residual), out, variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# The functions are looked at apart from the kernel. CuTe evaluates each on the host, on random numbers, and the
# reference is evaluated in float64 (level *model*). In the kernel the checks put `x + bias + residual` in their place,
# and follow each operand from memory to the element of C that it is for (level *product*). What `tanh.approx` loses is
# seen on a GPU only.

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
# Peers, in one run: the product alone, by each variant and by the tuned GEMM; epilogues next to torch's fused calls.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import results_table

Markdown(results_table("hopper/fused_epilogue_gemm"))

# %% [markdown] tags=["lab"]
# Hiding saves clocks and no energy. Where the GPU runs at its power limit, the instructions of the function cost time
# wherever they stand: some ten for each element of C, against 2 K flops on the tensor cores.
#
# ## Conclusion
#
# An epilogue is a function of a thread's accumulators, called where these are rounded. What it needs besides is named
# by its parameters. `cookbook.ops.linear` adds its bias so.
#
# To use it: `cookbook copy hopper/fused_epilogue_gemm my_gemm.py`, then `from my_gemm import matmul`.
