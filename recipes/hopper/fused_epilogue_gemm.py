# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Fused epilogues: one function between the accumulators and C"
#     claim: >-
#       Bias, activation, residual, scale factors, alpha and beta are one small function of a thread's accumulators,
#       called where these are rounded. C goes to memory once.
#     track: hopper
#     order: 110
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
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
# **Claim.** A layer of a model is rarely a product alone: `gelu(x @ w + bias)`. *Fused*, the rest of it is one small
# function of a thread's accumulators, called in one place: where the kernel rounds these to the dtype of C. So C is
# written once and not read.
#
# It uses [ping-pong](pingpong_gemm.ipynb): each of two warpgroups has work tiles of its own, and while one runs the
# function, the tensor cores multiply for the other. The price is a smaller tile, which loads more. *Cooperative*
# warpgroups ([the tuned GEMM](tuned_gemm.ipynb)'s largest tile) run it at the same time: the tensor cores wait.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.ops import predict
from cookbook.publish.pages import results_table, table

K = 1024
WHOLE, TANH = 256 * 160 * K // 2048, 256 * 160 // 16  # clocks of an SM for a work tile: to multiply it, and of its tanh
HALF, HIDDEN = 128 * 192 * K // 2048, 128 * 192 // 16


def spans(kind: str, clocks: int, *starts: int) -> list[draw.Span]:
    return [draw.Span(at, at + clocks, "", kind) for at in starts]


lanes = {
    "cooperative: tensor cores": spans("multiply", WHOLE, 0, WHOLE + TANH),
    "both warpgroups": spans("GELU", TANH, WHOLE, 2 * WHOLE + TANH),
    "ping-pong: tensor cores": spans("multiply", HALF, *range(0, 4 * HALF, HALF)),
    "warpgroup 0": spans("GELU", HIDDEN, HALF, 3 * HALF),
    "warpgroup 1": spans("GELU", HIDDEN, 2 * HALF, 4 * HALF),
}
title = f"Work tiles of 256 x 160 and 128 x 192, K = {K}: computed, not measured"
rates = f"{256 * 160 / (WHOLE + TANH):.2f} and {128 * 192 / HALF:.2f} elements of C a clock"
draw.lanes(lanes, title, note=f"GELU: as long as its tanh take. In the long run {rates}")

# %% [markdown] tags=["lab"]
# **What GELU costs, computed.** One `tanh` for each element of C: an SM's special function units do 16 in a clock, and
# its tensor cores 2048 multiply-adds. So the part of `tanh` is 128 / K. A kernel of its own reads and writes C once
# more; torch's for a bias takes longer than these bytes, by a figure fitted to its records.

# %% tags=["lab"]
rows = []
for m, n, k in ((4096, 14336, 4096), (8192, 4096, 1024)):
    multiplied, tanh = m * n * k // 2048 // 132, m * n // 16 // 132
    clocks = [f"{multiplied:,}", f"{tanh:,}", f"{100 * tanh / multiplied:.1f}%"]
    times = 1e-3 * multiplied / predict.H200.ghz, 4e-3 * m * n / predict.H200.memory, predict.bias_us(m * n)
    rows.append([f"{m} x {n} x {k}", *clocks, *(f"{us:.0f} us" for us in times)])
head = ["M x N x K", "clocks to multiply", "clocks of tanh", "tanh / multiply", "the product, at full clock"]
head += ["C once more, as bytes", "a bias by torch's kernel"]
Markdown(table(head, rows))

# %%
import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, FusedGemm, check_epilogue, compile_host, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The epilogue: a function of accumulators
#
# **This is the part to replace.** `x` holds a thread's accumulators of one epilogue subtile, and arithmetic acts on all
# of them. The other parameters name what is to be fetched, of the six below. Each has one shape, and comes to the
# function in the shape of `x`, in float32. An element meets no other one: a sum over a row needs more.
#
# | parameter | in memory | an element of C gets |
# |---|---|---|
# | `bias` | (N), the dtype of C | that of its column |
# | `residual` | (M, N), the dtype of C | its own |
# | `row_scale` | (M, 1), float32 | that of its row |
# | `column_scale` | (N), float32 | that of its column |
# | `alpha`, `beta` | (1), float32, on the GPU: a new value needs no new kernel | the only one |
#
# GELU is torch's `approximate="tanh"`, which differs from that of `erf` by up to 5e-4. `tanh.approx`, one instruction,
# has a relative error of 2^-11: GELU and SiLU have absolute errors of up to |x| / 4096. Far below zero they are small
# differences of large numbers, and their *relative* error is larger than that of rounding.


# %%
def gelu(x):
    half = 0.5 * x  # below sqrt(2 / pi), and 0.044715 times that; `fastmath` makes tanh.approx of tanh
    return half + half * cute.math.tanh(x * (0.7978845608 + 0.0356774081 * (x * x)), fastmath=True)


def silu(x):
    half = 0.5 * x
    return half + half * cute.math.tanh(half, fastmath=True)


EPILOGUES = {
    "product": lambda x: x,
    "add_bias": lambda x, bias: x + bias,
    "bias_gelu": lambda x, bias: gelu(x + bias),
    "bias_silu": lambda x, bias: silu(x + bias),
    "bias_relu": lambda x, bias: cute.where(x + bias > 0.0, x + bias, cute.zeros_like(x)),
    "add_residual": lambda x, residual: x + residual,
    "add_both": lambda x, bias, residual: x + bias + residual,
    "scaled": lambda x, row_scale, column_scale: x * row_scale * column_scale,
    "alpha_beta": lambda x, residual, alpha, beta: alpha * x + beta * residual,
}


# %% [markdown]
# `REFERENCES` says the same in torch, for the checks. `PEERS` are torch's own calls, one or three, for the times.


# %% tags=["folded"]
REFERENCES = {  # of torch tensors, which broadcast
    "product": lambda x: x,
    "add_bias": lambda x, bias: x + bias,
    "bias_gelu": lambda x, bias: torch.nn.functional.gelu(x + bias, approximate="tanh"),
    "bias_silu": lambda x, bias: torch.nn.functional.silu(x + bias),
    "bias_relu": lambda x, bias: torch.relu(x + bias),
    "add_residual": lambda x, residual: x + residual,
    "add_both": lambda x, bias, residual: x + bias + residual,
    "scaled": lambda x, row_scale, column_scale: row_scale * x * column_scale,
    "alpha_beta": lambda x, residual, alpha, beta: torch.addcmul(x * alpha, residual, beta),
}


def then(step):
    """torch.matmul, and in place what follows."""
    return lambda a, b, out, **given: step(torch.matmul(a, b, out=out), **given)


PEERS = {
    "add_bias": ("torch.addmm", lambda a, b, out, bias: torch.addmm(bias, a, b, out=out)),
    "bias_gelu": (
        "torch._addmm_activation",
        lambda a, b, out, bias: torch._addmm_activation(bias, a, b, use_gelu=True, out=out),
    ),
    "add_residual": ("torch.addmm", lambda a, b, out, residual: torch.addmm(residual, a, b, out=out)),
    "scaled": ("torch in 3 steps", then(lambda c, row_scale, column_scale: c.mul_(row_scale).mul_(column_scale))),
    "alpha_beta": ("torch in 3 steps", then(lambda c, residual, alpha, beta: c.mul_(alpha).addcmul_(residual, beta))),
}


def operands_of(epilogue: str) -> tuple[str, ...]:
    """The operands of an epilogue: the parameters of its function, behind the first one."""
    return tuple(inspect.signature(REFERENCES[epilogue]).parameters)[1:]


# %% [markdown] tags=["lab"]
# **A function of your own** needs an entry in both dicts, here or in a copied file. CuTe evaluates it on the host, next
# to its reference; `matmul(a, b, epilogue="bias_gelu_residual", bias=bias, residual=residual)` puts it into a kernel:

# %% tags=["lab", "open"]
import sys

from cookbook.check.fused import function_findings

EPILOGUES["bias_gelu_residual"] = lambda x, bias, residual: gelu(x + bias) + residual
REFERENCES["bias_gelu_residual"] = lambda x, bias, residual: REFERENCES["bias_gelu"](x, bias) + residual
print({found.name: "agrees" if found.ok else found.detail for found in function_findings(sys.modules["__main__"])})

# %% [markdown]
# ## The variants
#
# There are three tiles of one schedule. Work tiles come in waves, one for each SM at a time. A wave takes as long as
# the tensor cores need for a tile, or as its operands need to arrive. A larger tile loads less for each multiply-add:
# it is preferred a little. The epilogue is left out, for it is the same in all three.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 192  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    epilogue: str = "product"  # one of EPILOGUES
    cluster: int = 2  # CTAs side by side in C: each tile of A comes to both by multicast
    swizzle_size: int = 8  # cluster tiles down C that need the same tiles of B, before it goes on to the right
    epi_n: int = 64  # columns of an epilogue subtile; it has 64 rows
    epi_stages: int = 3  # buffers of a warpgroup: half of a tile
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)
        half = "residual" not in self.operands or 2 * self.epi_stages == self.subtiles >= 4
        needed = f"half of {self.subtiles}, and 2 or more: two phases of an mbarrier, the second asked for ahead"
        require(half, "epi_stages", self.epi_stages, needed)

    @property
    def operands(self) -> tuple[str, ...]:
        return operands_of(self.epilogue)

    @property
    def vectors(self) -> dict[str, int]:  # those among the operands: elements that a work tile needs
        return {name: (self.tile_m, self.tile_n, 1)[ALONG[name]] for name in ALONG if name in self.operands}

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def across(self) -> int:
        return self.tile_n // self.epi_n  # subtiles of a tile, side by side

    @property
    def subtiles(self) -> int:
        return self.tile_m // 64 * self.across  # of a tile

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        vectors = (max(16, 2 * count * (2 if x == "bias" else 4)) for x, count in self.vectors.items())
        small = 16 * (self.stages + self.epi_stages) + sum(vectors)  # with barriers, padded to alignment
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + 2 * self.epi_stages * 64 * self.epi_n * 2


VARIANTS = {
    "128x192": Config(),
    "128x128": Config(tile_n=128, stages=6, epi_stages=2),
    "128x64": Config(tile_n=64, stages=8, epi_n=32, epi_stages=2),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x192"]


def config_for(arch: str, variant: str = "128x192") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


def fused(epilogue: str) -> Config:
    """The configuration of a kernel that has an epilogue."""
    return replace(CONFIG, epilogue=epilogue)


LOAD_COST = 16  # multiply-adds that loading one operand element into an SM costs: the tuned GEMM's figure
LOAD_RATE = 80  # bytes of A and B that come into an SM in a clock: the tuned GEMM's figure, multicast included


def waves(config: Config, m: int, n: int, sms: int) -> tuple[int, int]:
    """Cluster tiles of C (m, n), and how many of them the busiest cluster computes."""
    tiles = -(-m // config.tile_m) * -(-n // (config.tile_n * config.cluster))
    return tiles, -(-tiles // (sms // config.cluster))


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """The number of clusters to launch: no more than that number of waves needs."""
    tiles, each = waves(config, m, n, sms)
    return -(-tiles // each)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""

    def cost(name: str) -> float:
        c = VARIANTS[name]
        stage = max(c.tile_m * c.tile_n * c.tile_k / 2048, c.stage_bytes / LOAD_RATE)
        return waves(c, m, n, sms)[1] * stage * (1 + LOAD_COST / c.tile_m + LOAD_COST / c.tile_n)

    return min(VARIANTS, key=cost)


# %% [markdown]
# ## The layouts, the MMA, the tile scheduler, the producer and the main loop
#
# As in the tuned GEMM: K-major tiles in the 128-byte swizzle, epilogue subtiles in the widest swizzle that divides a
# row, persistent clusters of two CTAs that share each tile of A. Every second work tile goes along K backwards.


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
    """The wgmmas of a warpgroup, which goes down all rows of its work tile."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (1, 1, 1))


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
    down, across = cute.ceil_div(m, config.tile_m), cute.ceil_div(n, config.tile_n * config.cluster)
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
def produce(pipe, loads, schedule: Schedule, tile, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of all work tiles of this CTA, a stage each; `tile` is the first of these."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(schedule.count, unroll=1):
        state = load_tile(pipe, loads, state, tile, i & 1, k_tiles)
        tile = work_tile(schedule, cutlass.min(i + 1, schedule.count - 1), config)
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


class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    operands: object  # Operands: tensors, the residual a TmaTensor; None: the function has none
    sV: dict  # by name: its own copy of what a work tile needs of each vector
    c: object  # TmaTensor (M, N)
    arrived: cute.Pointer  # its own mbarriers, one for each epilogue buffer: a residual has come
    sC: cute.Tensor  # its own epilogue buffers, (EPI_M, EPI_N, EPI_STAGE)
    copies: TiledCopies
    warpgroup: cutlass.Int32  # 0 or 1
    thread: cutlass.Int32  # in the warpgroup


@cute.jit
def issue_wgmmas(me: Consumer, stage, first: cutlass.Constexpr = False):
    """Issue the wgmmas of one stage as one commit group; `first`: of a work tile, its first one overwrites `acc`."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(me.tCrA, mode=[2])):  # 16 elements, 32 bytes, along K
        mma = me.overwrite if first and k == 0 else me.accumulate
        cute.gemm(mma, me.acc, me.tCrA[None, None, k, stage], me.tCrB[None, None, k, stage], me.acc)
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
# ## The epilogue's operands
#
# **Vectors** come into shared memory while the last wgmmas of a work tile are in flight. After a barrier each thread
# reads its elements into registers. It holds accumulators of two neighbours of every 8 columns, in two rows: modes
# (column, row, eights), `(2, 2, epi_n / 8)`. A layout repeats the elements for them, with stride 0 where accumulators
# share one: (1, 0, 2) of columns, (0, 1, 0) of rows, (0, 0, 0) of `alpha`. `vector_values` serves all three.
#
# **A residual** comes by TMA, into the epilogue buffers that C leaves from; an mbarrier of each counts the bytes. A
# buffer holds a subtile of the residual, then C in its place, then the residual of the subtile `epi_stages` further,
# and its C. The first `epi_stages` subtiles, half of a work tile, are loaded while the last k-tile is multiplied:
# before, the buffers hold C of the tile before. So each mbarrier has two phases for a work tile, and its parity is
# known.


# %%
ALONG = {"bias": 1, "row_scale": 0, "column_scale": 1, "alpha": 2, "beta": 2}  # the mode of C; 2: neither


@cute.jit
def bring_vectors(me: Consumer, tile, config: cutlass.Constexpr):
    """What a work tile (m, n) needs, into shared memory. All have read what was there: they met in each store since."""
    for name, count in config.vectors.items():
        vector = getattr(me.operands, name)
        for i in cutlass.range_constexpr(-(-count // 128)):
            own = 128 * i + me.thread
            if own < count:
                at = (*tile, 0)[ALONG[name]] * count + own
                me.sV[name][own] = vector[cutlass.min(at, cute.size(vector) - 1)]
    pipeline.NamedBarrier(barrier_id=1 + me.warpgroup, num_threads=128).arrive_and_wait()


@cute.jit
def vector_values(me: Consumer, name: cutlass.Constexpr, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A vector's elements for a thread's accumulators of subtile `i`."""
    first, own, spread = 0, cute.make_layout(1), (0, 0, 0)
    if cutlass.const_expr(ALONG[name] == 0):
        first = i // config.across * 64 + me.thread // 32 * 16 + me.thread % 32 // 4
        own, spread = cute.make_layout(2, stride=8), (0, 1, 0)
    elif cutlass.const_expr(ALONG[name] == 1):
        first = cute.assume(i % config.across * config.epi_n + me.thread % 4 * 2, divby=2)
        own, spread = cute.make_layout((2, config.epi_n // 8), stride=(1, 8)), (1, 0, 2)
    sV = cute.make_tensor(me.sV[name].iterator + first, own)
    rV = cute.make_rmem_tensor(sV.shape, sV.element_type)
    cute.autovec_copy(sV, rV)
    repeated = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=(spread, 0, 0))
    return cute.make_tensor(rV.iterator, repeated).load().to(cutlass.Float32)


@cute.jit
def parts_of(me: Consumer, matrix, tile, config: cutlass.Constexpr):
    """(TMA, EPI_STAGE) and (TMA, (m, n)): the epilogue buffers, and subtiles of a work tile of C or the residual."""
    gX = cute.local_tile(matrix.coords, (config.tile_m, config.tile_n), (None, None))[None, None, tile[0], tile[1]]
    gX = cute.zipped_divide(gX, (64, config.epi_n))  # (EPI_TILE, (m, n))
    return cpasync.tma_partition(matrix.atom, 0, cute.make_layout(1), cute.group_modes(me.sC, 0, 2), gX)


@cute.jit
def load_residual(me: Consumer, i: cutlass.Constexpr, tile, config: cutlass.Constexpr):
    """Ask TMA for subtile `i` of the residual. Its buffer is free once C has left it; a newer store may still read."""
    buffer, arrived = i % config.epi_stages, me.arrived + i % config.epi_stages
    tRsR, tRgR = parts_of(me, me.operands.residual, tile, config)
    if cute.arch.make_warp_uniform(me.thread // 32) == 0:
        cute.arch.cp_async_bulk_wait_group(0 if i < config.epi_stages else 1, read=True)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, 64 * config.epi_n * 2)
        where = i // config.across, i % config.across
        cute.copy(me.operands.residual.atom, tRgR[None, where], tRsR[None, buffer], tma_bar_ptr=arrived)


@cute.jit
def residual_values(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """The residual for a thread's accumulators of subtile `i`."""
    buffer, thr = i % config.epi_stages, me.copies.s2r_c.get_slice(me.thread)
    cute.arch.mbarrier_wait(me.arrived + buffer, i // config.epi_stages)
    rR = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), me.sC.element_type)
    cute.copy(me.copies.s2r_c, thr.partition_S(me.sC)[None, None, None, buffer], thr.retile(rR))
    return rR.load().to(cutlass.Float32)


# %% [markdown]
# ## The place of the function
#
# `finish` stands where other GEMMs round. The main loop is that of ping-pong: a warpgroup begins when the other one has
# issued its last k-tile.


# %%
@cute.jit
def finish(me: Consumer, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's accumulators of subtile `i` of a work tile, through the epilogue's function, rounded."""
    given = {name: vector_values(me, name, i, config) for name in config.vectors}
    if cutlass.const_expr("residual" in config.operands):
        given["residual"] = residual_values(me, i, config)
    subtile = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))  # (MMA, 1, 1), as the MMA of one subtile has them
    x = cute.make_tensor(me.acc.iterator + i * cute.size(subtile), subtile).load()  # float32
    return EPILOGUES[config.epilogue](x, **given).to(me.sC.element_type)


@cute.jit
def finish_tile(me: Consumer, tile, config: cutlass.Constexpr):
    """The epilogue of a work tile (m, n), to C, subtile by subtile."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + me.warpgroup, num_threads=128)
    storing = cute.arch.make_warp_uniform(me.thread // 32) == 0
    thr, parts = me.copies.r2s_c.get_slice(me.thread), parts_of(me, me.c, tile, config)
    for i in cutlass.range_constexpr(config.subtiles):
        buffer = i % config.epi_stages
        rC = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), me.sC.element_type)
        rC.store(finish(me, i, config))
        if storing:
            cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
        barrier.arrive_and_wait()  # what was in this buffer has been read: C by TMA, or the residual by all threads
        cute.copy(me.copies.r2s_c, thr.retile(rC), thr.partition_D(me.sC)[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
        barrier.arrive_and_wait()
        if storing:
            with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
                cute.copy(me.c.atom, parts[0][None, buffer], parts[1][None, (i // config.across, i % config.across)])
                cute.arch.cp_async_bulk_commit_group()
        ahead = i + config.epi_stages - 1  # TMA has stored the subtile before this one from its buffer
        if cutlass.const_expr("residual" in config.operands and i > 0 and ahead < config.subtiles):
            load_residual(me, ahead, tile, config)


@cute.jit
def compute(me: Consumer, schedule: Schedule, config: cutlass.Constexpr):
    """Every second work tile of the CTA."""
    for i in cutlass.range(me.warpgroup, schedule.count, 2, unroll=1):
        k_tile = i * me.k_tiles
        stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
        read, release = (pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))
        if i > 0:  # barrier 4 or 5, where the other warpgroup arrives; 0 is the CTA's, 1 and 2 are of the epilogues
            pipeline.NamedBarrier(barrier_id=4 + me.warpgroup, num_threads=256).arrive_and_wait()
        me.pipe.consumer_wait(read)
        issue_wgmmas(me, read.index, True)
        read.advance()
        tile = work_tile(schedule, i, config)  # computed while the first commit group runs
        for _ in cutlass.range(me.k_tiles - 1, unroll=1):
            read, release = next_k_tile(me, read, release)
        if i + 1 < schedule.count:  # all is issued: the other warpgroup may begin
            pipeline.NamedBarrier(barrier_id=5 - me.warpgroup, num_threads=256).arrive()
        if cutlass.const_expr(config.vectors):
            bring_vectors(me, tile, config)
        if cutlass.const_expr("residual" in config.operands):
            for j in cutlass.range_constexpr(config.epi_stages):
                load_residual(me, j, tile, config)
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        finish_tile(me, tile, config)


# %% [markdown]
# ## The kernel and its launch: one warp produces, two warpgroups consume


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
    operands: tuple,  # Operands: vectors, the residual (M, N) as a TmaTensor; None: the function has none
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
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    pipe, arrived, smem, rank = set_up(dtype, config)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    k_tiles = cute.size(gA, mode=[3])
    first, (tiles, down, by_step, *divisors) = cute.arch.make_warp_uniform(first), raster
    schedule = Schedule(first, step, (tiles + step - 1 - first) // by_step, down, *divisors, rank)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        # An exchange between lanes, which changes nothing here, stays before the wait for the previous kernel.
        tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(schedule, 0, config))
        if warp_idx == 8:
            load_a = load_of(a.atom, gA, smem[0], rank, config.cluster)
            load_b = load_of(b.atom, gB, smem[1], cutlass.Int32(0), 1)
            produce(pipe, (load_a, load_b), schedule, tile, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        me = consumer((pipe, k_tiles), smem, (operands, c, arrived), (group, tidx), config)
        cute.arch.griddepcontrol_wait()  # PDL: the kernel before may still read or write what this warpgroup touches
        compute(me, schedule, config)
        if warp_idx % 4 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


@cute.jit
def set_up(dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """What the warps of a CTA share: its pipeline, the residual's mbarriers, sA, sB, sC, vectors, its cluster rank."""
    layouts, smem = smem_layouts(dtype, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages + 2 * config.epi_stages)
    arrived = barriers + 2 * config.stages
    sV = {}  # (PART, GROUP) by name: what each warpgroup's work tile needs of the vectors
    for name, count in config.vectors.items():
        sV[name] = smem.allocate_tensor(dtype if name == "bias" else cutlass.Float32, cute.make_layout((count, 2)), 16)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbour.
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.cluster),  # warps
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, 1, config.cluster, 1)),
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
def consumer(loaded: tuple, smem, epilogue: tuple, who: tuple, config: cutlass.Constexpr):
    """What a consumer warpgroup works with. who: the warpgroup (0 or 1), and the thread in the CTA."""
    (sA, sB, sC, vectors), (group, thread), (operands, c, arrived) = smem, who, epilogue
    sV, arrived = {name: sV[None, group] for name, sV in vectors.items()}, arrived + group * config.epi_stages
    dtype, thread = sC.element_type, thread % 128
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(0)  # of its first thread: the same for all
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    multiplied = *loaded, overwrite, accumulate, tCrA, tCrB, acc
    return Consumer(*multiplied, operands, sV, c, arrived, sC, tiled_copies(dtype, config), group, thread)


class Operands(NamedTuple):
    """The operands of the epilogue's function; None: it has none. A bias each kernel is told of."""

    bias: cute.Tensor  # (N)
    residual: TmaTensor | None  # (M, N)
    row_scale: cute.Tensor | None  # (M)
    column_scale: cute.Tensor | None  # (N)
    alpha: cute.Tensor | None  # (1)
    beta: cute.Tensor | None  # (1)


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
    further: list[(cute.Pointer,) * 6],  # a tuple of those that `FusedGemm.told` names
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
    further = dict(zip(FusedGemm.told(config.operands), further, strict=True))
    mR = cute.make_tensor(further["residual"], cute.make_layout((m, n), stride=(ldr, 1)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), 1)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    residual = make_load(mR, c_stage, (64, config.epi_n), 1) if "residual" in config.operands else None
    given = {x: cute.make_tensor(further[x], cute.make_layout((m, n, 1)[ALONG[x]])) for x in ("bias", *config.vectors)}
    operands = Operands(*map(given.get, Operands._fields))._replace(residual=residual)
    launcher = kernel(a, b, c, operands, rasterize(m, n, clusters, config), dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    config = config or config_for(arch)
    pointers = *((dtype, 16),) * 3, (dtype, 2), (dtype, 16), *[(cutlass.Float32, 4)] * len({*config.vectors} - {"bias"})
    return compile_host(gemm, arch, pointers, (config,), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call, epilogue: str = "product") -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the operands and the stream."""
    (m, n, k), (*strides, stride_residual) = call.mnk, call.strides
    name = choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant
    config = replace(VARIANTS[name], epilogue=epilogue)
    return (config,), (Sizes(call.mnk, tuple(strides), stride_residual, clusters(config, m, n, call.sms)),)


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
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
    **operands: torch.Tensor | None,
) -> torch.Tensor:
    """`f(a @ b, ...)` on the tensor cores, accumulated in float32, rounded once, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    epilogue: f, one of EPILOGUES. It takes those of the operands that its function names, and no other.
    bias: (N,), the same dtype, adjacent elements.
    residual: (M, N), the same dtype, stride 1 along N.
    row_scale: (M, 1), column_scale: (N,), alpha and beta: (1,). float32, adjacent elements.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of the operands. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names.

    The addresses of a, b and residual and their row strides are multiples of 16 bytes. Any M, N, K >= 1 within that, on
    a GPU of compute capability 9.0. There is no backward. An `out` whose rows TMA cannot write is copied from padded C.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the argument,
    what it got and what it needs, and nothing has been launched.
    """
    require(epilogue in tuple(REFERENCES), "epilogue", repr(epilogue), f"one of {', '.join(REFERENCES)}")
    side = host_side(epilogue)
    return side.matmul((a, b, *side.ordered(operands)), out, variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# Level *model* checks the functions apart from the kernel: CuTe evaluates each on the host, on random numbers, next to
# its reference in float64. Level *product* puts a function that takes every operand into the kernel, and follows each
# operand from memory to the element of C that it is for. What `tanh.approx` loses is seen on a GPU only.

# %% tags=["lab"]
lab.check_cells("hopper/fused_epilogue_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the product alone, by the `matmul` of the cells above, next to `torch.matmul`. Then in one run: the product by
# each variant and by the tuned GEMM, and epilogues next to torch's own calls.

# %% tags=["lab", "open"]
lab.compare("hopper/fused_epilogue_gemm", matmul, (4096, 14336, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/fused_epilogue_gemm"))

# %% [markdown] tags=["lab"]
# Fused is ahead of torch's calls with a residual, and where K is short. With a long K and a bias it is level or a
# little behind: the product alone is behind that of the tuned GEMM, whose tile is larger. Cooperative tiles with the
# function where they round were no faster, in a run that is not recorded. At K = 1024 GELU is not free, though hidden:
# at its power limit the GPU may lower its clock. That is a guess, clocks are not recorded.
#
# ## Conclusion
#
# An epilogue is a function of a thread's accumulators, called where these are rounded. Its parameters name what it
# needs besides. `cookbook.ops.linear` uses this kernel for its bias.
#
# Next: [a gate between two products](swiglu_gemm.ipynb), SwiGLU.
# To use it: `cookbook copy hopper/fused_epilogue_gemm my_gemm.py`, then `from my_gemm import matmul`.
