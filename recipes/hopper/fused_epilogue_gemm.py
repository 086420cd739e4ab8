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
#     aside: Epilogues
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     compared_with: hopper/tuned_gemm
#     bench_shapes: [[4096, 14336, 4096], [8192, 4096, 4096], [8192, 4096, 1024]]
#     serves: {sm_90: 2048}
#     kind: fused
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
# The kernel uses [ping-pong](pingpong_gemm.ipynb): each of two warpgroups has work tiles of its own, and while one runs
# the function, the tensor cores multiply for the other. The price is a smaller tile, which loads more. *Cooperative*
# warpgroups ([the tuned GEMM](tuned_gemm.ipynb)'s largest tile) run it at the same time: the tensor cores wait.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.lab import predict, results_table, table

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
# its tensor cores 2048 multiply-adds. So the part of `tanh` is 128 / K. A separate kernel reads and writes C once more.
# Torch's for a bias takes longer than these bytes, by a figure fitted to its records.

# %% tags=["lab"]
rows = []
for m, n, k in ((4096, 14336, 4096), (8192, 4096, 1024)):
    multiplied, tanh = m * n * k // 2048 // 132, m * n // 16 // 132
    counted = [f"{multiplied:,}", f"{tanh:,}", f"{100 * tanh / multiplied:.1f}%"]
    times = 1e-3 * multiplied / predict.H200.ghz, 4e-3 * m * n / predict.H200.memory, predict.bias_us(m * n)
    rows.append([f"{m} x {n} x {k}", *counted, *(f"{us:.0f} us" for us in times)])
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
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

from cookbook.recipe.entry import MATRICES, Call, Gemm, check_epilogue, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm, adjacent, by_lines
from cookbook.recipes.hopper.multicast_gemm import make_load, partition_load, rank_in_cluster
from cookbook.recipes.hopper.overlapped_epilogue_gemm import (
    Epilogue,
    make_epilogue,
    make_pipeline,
    meet_cluster,
    subtile_of,
)
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    allocate_tiles,
    first_k_tile,
    make_mainloop,
    next_k_tile,
    smem_layouts,
    state_at,
    tma_tensors,
)
from cookbook.recipes.hopper.swap_ab_gemm import matrices
from cookbook.recipes.hopper.tile_heuristics import clusters, waves
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor, tiled_mma, wgmma
from cookbook.recipes.hopper.tuned_gemm import Config as TunedConfig
from cookbook.recipes.hopper.tuned_gemm import Raster, Scheduler, produce, rasterize, work_tile

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


def in_steps(step):
    """torch.matmul, and in place what follows."""

    def layer(a, b, out, **given):
        return step(torch.matmul(a, b, out=out), **given)

    return layer


PEERS = {
    "add_bias": ("torch.addmm", lambda a, b, out, bias: torch.addmm(bias, a, b, out=out)),
    "bias_gelu": (
        "torch._addmm_activation",
        lambda a, b, out, bias: torch._addmm_activation(bias, a, b, use_gelu=True, out=out),
    ),
    "add_residual": ("torch.addmm", lambda a, b, out, residual: torch.addmm(residual, a, b, out=out)),
    "scaled": ("torch in 3 steps", in_steps(lambda c, row_scale, column_scale: c.mul_(row_scale).mul_(column_scale))),
    "alpha_beta": (
        "torch in 3 steps",
        in_steps(lambda c, residual, alpha, beta: c.mul_(alpha).addcmul_(residual, beta)),
    ),
}


def operands_of(epilogue: str) -> tuple[str, ...]:
    """The operands of an epilogue: the parameters of its function, behind the first one."""
    return tuple(inspect.signature(REFERENCES[epilogue]).parameters)[1:]


NAMES = ("bias", "residual", "row_scale", "column_scale", "alpha", "beta")


def told(needed: tuple[str, ...]) -> tuple[str, ...]:
    """The operands whose addresses a launch is told, in order: 0 of a bias or residual that is not needed."""
    return tuple(name for name in NAMES if name in ("bias", "residual", *needed))


# %% [markdown] tags=["lab"]
# **A function of your own** needs an entry in both dicts, here or in a copied file. CuTe evaluates it on the host, next
# to its reference; `matmul(a, b, epilogue="bias_gelu_residual", bias=bias, residual=residual)` puts it into a kernel:

# %% tags=["lab", "open"]
import sys

from cookbook.lab import function_findings

EPILOGUES["bias_gelu_residual"] = lambda x, bias, residual: gelu(x + bias) + residual
REFERENCES["bias_gelu_residual"] = lambda x, bias, residual: REFERENCES["bias_gelu"](x, bias) + residual
print({found.name: "agrees" if found.ok else found.detail for found in function_findings(sys.modules["__main__"])})

# %% [markdown]
# ## The variants
#
# There are five tiles of one schedule.
#
# **Groups of 16 rows.** Tiles of one wave share rows of A and columns of B. In groups of 8 rows of 128, a wave of 132
# tiles of 128 x 192 needs 1024 rows and some 3200 columns. In groups of 16 it needs 2048 rows and 1600 columns: by
# count 13% fewer elements. For a GPC the difference is larger: its clusters ask L2 for shared lines
# [once](../foundations/gpc_remapping.ipynb). An idle GPU deals clusters to eight GPCs round robin: one has clusters 0,
# 8, 16 and so on. In groups of 8 these are in one row of tiles, and share no columns of B. In groups of 16 they are in
# two rows, and two share each column: half as many columns.
#
# The three large tiles are in groups of 16. `128x192` is in groups of 8, for comparison.


# %%
ALONG = {"bias": 1, "row_scale": 0, "column_scale": 1, "alpha": 2, "beta": 2}  # the mode of C; 2: neither


@dataclass(frozen=True)
class Config(TunedConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled: always ping-pong."""

    tile_n: int = 192  # columns of C of one tile
    pingpong: bool = True  # each warpgroup has work tiles of its own
    overlapped: int = 0
    gpc_aware: bool = False  # cluster tiles go to clusters by their number
    epi_stages: int = 3  # buffers of a warpgroup: half of a tile
    epilogue: str = "product"  # one of EPILOGUES

    both_ways = False  # a cluster shares one operand

    def __post_init__(self):
        super().__post_init__()
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
    def across(self) -> int:
        return self.tile_n // self.epi_n  # subtiles of a tile, side by side

    @property
    def smem_bytes(self) -> int:
        vectors = (max(16, 2 * count * (2 if x == "bias" else 4)) for x, count in self.vectors.items())
        small = 16 * (self.stages + self.epi_stages) + sum(vectors)  # with barriers, padded to alignment
        return -(-small // 1024) * 1024 + self.stages * self.stage_bytes + self.epi_bytes


# %% [markdown]
# The tiles, and the choice between them.


# %%
VARIANTS = {
    "128x192, 16 rows": Config(swizzle_size=16),
    "128x192": Config(),
    "128x160": Config(tile_n=160, stages=5, epi_n=32, epi_stages=5, swizzle_size=16),
    "128x128": Config(tile_n=128, stages=6, epi_stages=2, swizzle_size=16),
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


# %% [markdown]
# **The choice** counts clocks. Work tiles come in waves, one for each SM at a time. A stage takes as long as the tensor
# cores multiply it, or as it needs to come into an SM. To the k-tiles of a tile come two parts:
#
# * between two tiles the tensor cores change from one warpgroup to the other. The function itself is hidden;
# * the last tile of all hides under no other. Its subtiles are stored one after the other.
#
# A larger tile loads less for each multiply-add, and [the tuned GEMM](tile_heuristics.ipynb)'s rule prefers it at the
# power limit. Here times followed the clocks, and the rule has no such term.


# %%
LOAD_RATE = 63  # bytes that come into an SM in a clock, multicast included; fitted: its port takes 64
CHANGE_CLOCKS = 800  # from the last wgmma of one warpgroup's tile to the first of the other's; fitted to an H100
STORE_CLOCKS = 300  # for a subtile of the last tile; fitted to the same times, with bias and GELU


def clocks(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """Clocks that the busiest of `sms` SMs needs for C (m, n) over k."""
    stage = max(config.tile_m * config.tile_n * config.tile_k / 2048, config.stage_bytes / LOAD_RATE)
    tile = -(-k // config.tile_k) * stage + CHANGE_CLOCKS
    return waves(config, m, n, sms) * tile + STORE_CLOCKS * config.subtiles


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that needs the fewest clocks."""
    return min(VARIANTS, key=lambda name: clocks(VARIANTS[name], m, n, k, sms))


# %% [markdown] tags=["lab"]
# Waves and thousands of clocks of each variant on 132 SMs, by this count, and the tile that `choose` names:

# %% tags=["lab"]
rows = []
for m, n, k in ((2048, 4096, 4096), (4096, 4096, 4096), (8192, 4096, 4096), (4096, 16384, 4096), (2048, 11008, 4096)):
    counts = [f"{waves(c, m, n, 132)}: {clocks(c, m, n, k, 132) / 1000:.0f}" for c in VARIANTS.values()]
    rows.append([f"{m} x {n} x {k}", *counts, f"`{choose(m, n, k, 132)}`"])
Markdown(table(["M x N x K", *VARIANTS, "chosen"], rows))

# %% [markdown]
# ## The layouts and the copies
#
# [The persistent GEMM](persistent_gemm.ipynb)'s layouts serve: K-major tiles in the 128-byte swizzle, epilogue subtiles
# in the widest swizzle that divides a row. Of copies there are two. `stmatrix` writes a subtile of C, and `ldmatrix`
# reads one of the residual: either gives a thread the elements of its accumulators.


# %%
class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile
    s2r_c: cute.TiledCopy  # ldmatrix.x4 likewise: a subtile of the residual


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """A subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(cute.make_tiled_copy_C(stmatrix, subtile), cute.make_tiled_copy_C(ldmatrix, subtile))


# %% [markdown]
# ## The producer
#
# It is that of [the tuned GEMM](tuned_gemm.ipynb), and so are the scheduler and the order of tiles. Persistent clusters
# of two CTAs share each tile of A, and every second work tile goes along K backwards. There is no remapping
# (`gpc_aware` is False): the next kernel is always let in early.

# %% [markdown]
# ## The epilogue's operands
#
# A launch is told the operands that the function names. Each warpgroup fetches what a work tile needs of them.


# %%
class Operands(NamedTuple):
    """The operands of the epilogue's function; None: it does not have this one. Every kernel gets a bias's address."""

    bias: cute.Tensor  # (N)
    residual: TmaTensor | None  # (M, N)
    row_scale: cute.Tensor | None  # (M)
    column_scale: cute.Tensor | None  # (N)
    alpha: cute.Tensor | None  # (1)
    beta: cute.Tensor | None  # (1)


class Fetch(NamedTuple):
    """Where one consumer warpgroup puts what a work tile needs of the operands."""

    operands: Operands
    sV: dict  # by name, its own copy of each vector's part
    arrived: cute.Pointer  # its own mbarriers, one for each epilogue buffer: a residual has come
    s2r_c: cute.TiledCopy


# %% [markdown]
# **Vectors** come into shared memory while the last wgmmas of a work tile are in flight. After a barrier each thread
# reads its elements into registers. It holds accumulators of two neighbours of every 8 columns, in two rows: modes
# (column, row, eights), `(2, 2, epi_n / 8)`. A layout repeats the elements for them, with stride 0 where accumulators
# share one: (1, 0, 2) of columns, (0, 1, 0) of rows, (0, 0, 0) of `alpha`. `vector_values` serves all three.


# %%
@cute.jit
def bring_vectors(fetch: Fetch, epi: Epilogue, tile: tuple, config: cutlass.Constexpr):
    """Bring what a work tile (m, n) needs. All threads have read what was there: they met in each store since."""
    for name, count in config.vectors.items():
        vector = getattr(fetch.operands, name)
        for i in cutlass.range_constexpr(-(-count // 128)):
            own = 128 * i + epi.thread
            if own < count:
                at = (*tile, 0)[ALONG[name]] * count + own
                fetch.sV[name][own] = vector[cutlass.min(at, cute.size(vector) - 1)]
    pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128).arrive_and_wait()


@cute.jit
def vector_values(
    fetch: Fetch, epi: Epilogue, name: cutlass.Constexpr, i: cutlass.Constexpr, config: cutlass.Constexpr
):
    """A vector's elements for a thread's accumulators of subtile `i`."""
    first, own, strides = 0, cute.make_layout(1), (0, 0, 0)
    if cutlass.const_expr(ALONG[name] == 0):
        first = i // config.across * 64 + epi.thread // 32 * 16 + epi.thread % 32 // 4
        own, strides = cute.make_layout(2, stride=8), (0, 1, 0)
    elif cutlass.const_expr(ALONG[name] == 1):
        first = cute.assume(i % config.across * config.epi_n + epi.thread % 4 * 2, divby=2)
        own, strides = cute.make_layout((2, config.epi_n // 8), stride=(1, 8)), (1, 0, 2)
    sV = cute.make_tensor(fetch.sV[name].iterator + first, own)
    rV = cute.make_rmem_tensor(sV.shape, sV.element_type)
    cute.autovec_copy(sV, rV)
    repeated = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1), stride=(strides, 0, 0))
    return cute.make_tensor(rV.iterator, repeated).load().to(cutlass.Float32)


# %% [markdown]
# **A residual** comes by TMA, into the epilogue buffers that C leaves from; an mbarrier of each counts the bytes. A
# buffer holds a subtile of the residual, then C in its place, then the residual of the subtile `epi_stages` further,
# and its C. The first `epi_stages` subtiles, half of a work tile, are loaded while the last k-tile is multiplied. Until
# then the buffers hold C of the tile before. So each mbarrier has two phases for a work tile, and its parity is known.


# %%
@cute.jit
def partition_subtiles(epi: Epilogue, atom: cute.CopyAtom, gX: cute.Tensor, config: cutlass.Constexpr):
    """Partition the epilogue buffers, (TMA, EPI_STAGE), and a work tile of C or the residual, (TMA, (m, n))."""
    no_multicast, gX = cute.make_layout(1), cute.zipped_divide(gX, (64, config.epi_n))  # (EPI_TILE, (m, n))
    return cpasync.tma_partition(atom, 0, no_multicast, cute.group_modes(epi.sC, 0, 2), gX)


@cute.jit
def load_residual(fetch: Fetch, epi: Epilogue, i: cutlass.Constexpr, tile: tuple, config: cutlass.Constexpr):
    """Ask TMA for subtile `i` of the residual. Its buffer is free once C has left it; a newer store may still read."""
    buffer, residual = i % config.epi_stages, fetch.operands.residual
    arrived = fetch.arrived + buffer
    gR = cute.local_tile(residual.coords, (config.tile_m, config.tile_n), (None, None))[None, None, tile[0], tile[1]]
    tRsR, tRgR = partition_subtiles(epi, residual.atom, gR, config)
    if cute.arch.make_warp_uniform(epi.thread // 32) == 0:
        cute.arch.cp_async_bulk_wait_group(0 if i < config.epi_stages else 1, read=True)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, 64 * config.epi_n * 2)
        subtile = i // config.across, i % config.across
        cute.copy(residual.atom, tRgR[None, subtile], tRsR[None, buffer], tma_bar_ptr=arrived)


@cute.jit
def residual_values(fetch: Fetch, epi: Epilogue, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """The residual for a thread's accumulators of subtile `i`."""
    buffer, thr = i % config.epi_stages, fetch.s2r_c.get_slice(epi.thread)
    cute.arch.mbarrier_wait(fetch.arrived + buffer, i // config.epi_stages)
    rR = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), epi.sC.element_type)
    cute.copy(fetch.s2r_c, thr.partition_S(epi.sC)[None, None, None, buffer], thr.retile(rR))
    return rR.load().to(cutlass.Float32)


# %% [markdown]
# ## The place of the function
#
# `finish` stands where other GEMMs round. What follows is the epilogue of [ping-pong](pingpong_gemm.ipynb), with the
# next subtiles of a residual to ask for. Its first barrier also says that all threads have read one from the buffer.


# %%
@cute.jit
def finish(acc: cute.Tensor, fetch: Fetch, epi: Epilogue, i: cutlass.Constexpr, config: cutlass.Constexpr):
    """A thread's accumulators of subtile `i` of a work tile, through the epilogue's function, rounded."""
    given = {name: vector_values(fetch, epi, name, i, config) for name in config.vectors}
    if cutlass.const_expr("residual" in config.operands):
        given["residual"] = residual_values(fetch, epi, i, config)
    x = subtile_of(acc, i, config).load()  # float32
    return EPILOGUES[config.epilogue](x, **given).to(epi.sC.element_type)


@cute.jit
def finish_tile(acc: cute.Tensor, fetch: Fetch, epi: Epilogue, tile: tuple, config: cutlass.Constexpr):
    """The epilogue of a work tile (m, n), to C, subtile by subtile."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128)
    storing = cute.arch.make_warp_uniform(epi.thread // 32) == 0
    thr = epi.r2s_c.get_slice(epi.thread)
    gC = epi.gC[None, None, tile[0], tile[1]]
    bSsC, bSgC = partition_subtiles(epi, epi.tma_c, gC, config)
    for i in cutlass.range_constexpr(config.subtiles):
        rC = cute.make_rmem_tensor(((2, 2, config.epi_n // 8), 1, 1), epi.sC.element_type)
        rC.store(finish(acc, fetch, epi, i, config))
        buffer, subtile = i % config.epi_stages, (i // config.across, i % config.across)
        if storing:
            cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
        barrier.arrive_and_wait()  # what was in this buffer has been read: C by TMA, or the residual by all threads
        cute.copy(epi.r2s_c, thr.retile(rC), thr.partition_D(epi.sC)[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
        barrier.arrive_and_wait()
        if storing:
            with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
                cute.copy(epi.tma_c, bSsC[None, buffer], bSgC[None, subtile])
                cute.arch.cp_async_bulk_commit_group()
        ahead = i + config.epi_stages - 1  # its buffer is that of the subtile before this one
        if cutlass.const_expr("residual" in config.operands and i > 0 and ahead < config.subtiles):
            load_residual(fetch, epi, ahead, tile, config)


# %% [markdown]
# ## The consumers
#
# The main loop is that of ping-pong: a warpgroup begins when the other one has issued its last k-tile. Behind that, and
# before it waits for its last wgmmas, it fetches.


# %%
@cute.jit
def compute(main: Mainloop, fetch: Fetch, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """Every second work tile of the CTA."""
    for i in cutlass.range(epi.warpgroup, scheduler.count, 2, unroll=1):
        read, release = state_at(i * main.k_tiles, config), state_at(i * main.k_tiles, config)
        if i > 0:  # barrier 4 or 5, where the other warpgroup arrives; 0 is the CTA's, 1 and 2 are of the epilogues
            pipeline.NamedBarrier(barrier_id=4 + epi.warpgroup, num_threads=256).arrive_and_wait()
        read = first_k_tile(main, read)
        tile = work_tile(scheduler, i, config)  # computed while the first commit group runs
        for _ in cutlass.range(main.k_tiles - 1, unroll=1):
            read, release = next_k_tile(main, read, release)
        if i + 1 < scheduler.count:  # all is issued: the other warpgroup may begin
            pipeline.NamedBarrier(barrier_id=5 - epi.warpgroup, num_threads=256).arrive()
        if cutlass.const_expr(config.vectors):
            bring_vectors(fetch, epi, tile, config)
        if cutlass.const_expr("residual" in config.operands):
            for j in cutlass.range_constexpr(config.epi_stages):
                load_residual(fetch, epi, j, tile, config)
        warpgroup.wait_group(0)
        main.pipe.consumer_release(release)
        finish_tile(main.acc, fetch, epi, tile, config)


# %% [markdown]
# ## The kernel
#
# Shared memory has room for what each warpgroup fetches: its part of each vector, and an mbarrier for each epilogue
# buffer. The pipeline is set up as with [the overlapped epilogue](overlapped_epilogue_gemm.ipynb).


# %%
@cute.jit
def allocate(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory: the barriers, those of the residual last, the tensors sA, sB, sC, and sV by name."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages + 2 * config.epi_stages)
    sV = {}  # (PART, GROUP) by name: what each warpgroup's work tile needs of the vectors
    for name, count in config.vectors.items():
        sV[name] = smem.allocate_tensor(dtype if name == "bias" else cutlass.Float32, cute.make_layout((count, 2)), 16)
    sA, sB, sC = allocate_tiles(smem, layouts, (dtype, dtype, dtype))
    return barriers, sA, sB, sC, sV


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate, and set up the barriers. Return the `Cta`, sV and the residual's mbarriers."""
    barriers, sA, sB, sC, sV = allocate(layouts, dtype, config)
    arrived = barriers + 2 * config.stages
    pipe = make_pipeline(barriers, config)
    if cutlass.const_expr("residual" in config.operands):
        if cute.arch.thread_idx()[0] == 0:
            for i in range(2 * config.epi_stages):
                cute.arch.mbarrier_init(arrived + i, 1)
    meet_cluster()
    return Cta(pipe, sA, sB, sC), sV, arrived


# %% [markdown]
# One warp produces, two warpgroups consume. Each waits for the previous kernel (PDL) as late as it can.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    operands: Operands,
    raster: Raster,
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/fused_epilogue_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 40960 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 8 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    bar 4, 256 threads: warps 0-3 meet; warps 4-7 only arrive.
    bar 5, 256 threads: warps 4-7 meet; warps 0-3 only arrive.
    """
    block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    first, step = block // config.cluster, blocks // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta, sV, arrived = set_up(layouts, dtype, config)
    rank = rank_in_cluster(config)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cute.size(gA, mode=[3])
    first = cute.arch.make_warp_uniform(first)
    scheduler = Scheduler(raster, first, step, (raster.tiles + step - 1 - first) // raster.by_step, rank)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        # An exchange between lanes, which changes nothing here, stays before the wait for the previous kernel.
        tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(scheduler, 0, config))
        if warp_idx == 8:
            everyone = cutlass.Int16((1 << config.cluster) - 1)  # a cluster shares one operand
            load_a = partition_load(a.atom, gA, cta.sA, rank[1], config.cluster_n, everyone)
            load_b = partition_load(b.atom, gB, cta.sB, rank[0], config.cluster_m, everyone)
            produce(cta.pipe, (load_a, load_b), scheduler, tile, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        thread = tidx % 128
        own = {name: both[None, group] for name, both in sV.items()}
        fetch = Fetch(operands, own, arrived + group * config.epi_stages, copies.s2r_c)
        main = make_mainloop(cta, op, 0, k_tiles, config)  # the slice of a first thread: the same for all
        epi = make_epilogue(cta.sC, TmaTensor(c.atom, gC), copies.r2s_c, group, thread, config)
        cute.arch.griddepcontrol_wait()  # PDL: the kernel before may still read or write what this warpgroup touches
        compute(main, fetch, epi, scheduler, config)
        if warp_idx % 4 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown]
# ## The launch
#
# The operands come as addresses, and become tensors here. A residual that the function has is loaded by TMA, a subtile
# at a time.


# %%
class Sizes(NamedTuple):
    """The arguments of a launch beside addresses: sizes, row strides in elements, and clusters to launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of A, B, C
    stride_residual: cutlass.Int64
    clusters: cutlass.Int32


def make_operands(addresses: dict, sizes: Sizes, layouts: SmemLayouts, config: Config) -> Operands:
    """The operands by their addresses, which have names; one stage of C is the box of a residual."""
    m, n, _ = sizes.mnk
    ldr = cute.assume(sizes.stride_residual, divby=8)
    mR = cute.make_tensor(addresses["residual"], cute.make_layout((m, n), stride=(ldr, 1)))
    residual = None
    if "residual" in config.operands:
        residual = make_load(mR, cute.slice_(layouts.c, (None, None, 0)), (64, config.epi_n), 1)
    names = ("bias", *config.vectors)
    given = {x: cute.make_tensor(addresses[x], cute.make_layout((m, n, 1)[ALONG[x]])) for x in names}
    return Operands(*map(given.get, Operands._fields))._replace(residual=residual)


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    further: list[(cute.Pointer,) * 6],  # a tuple of those that `told` names
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = f(A (M, K) times B (N, K) transposed, ...), f being the epilogue's function."""
    (m, n, _), dtype, ctas = sizes.mnk, pA.dtype, config.cluster
    layouts, copies, op = smem_layouts(dtype, config), tiled_copies(dtype, config), wgmma(dtype, config.tile_n)
    mA, mB, mC = matrices(pA, pB, pC, sizes.mnk, sizes.strides, config)
    a, b, c = tma_tensors(mA, mB, mC, layouts, config)
    addresses = dict(zip(told(config.operands), further, strict=True))
    operands = make_operands(addresses, sizes, layouts, config)
    raster = rasterize(m, n, sizes.clusters, config)
    launcher = kernel(a, b, c, operands, raster, layouts, copies, op, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (sizes.clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    config = config or config_for(arch)
    pointers = *((dtype, 16),) * 3, (dtype, 2), (dtype, 16), *[(cutlass.Float32, 4)] * len({*config.vectors} - {"bias"})
    return compile_host(gemm, arch, pointers, (config,), options=options)


# %% [markdown]
# ## The host side
#
# What a call compiles and launches, and the operands that an epilogue may take: of each its shape, its dtypes, and the
# check of where its elements lie.


# %%
def prepare(call: Call, epilogue: str = "product") -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the operands and the stream."""
    (m, n, k), (stride_residual,) = call.mnk, call.known.get("residual") or (0,)
    name = choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant
    config = replace(VARIANTS[name], epilogue=epilogue)
    return (config,), (Sizes(call.mnk, call.strides, stride_residual, clusters(config, m, n, call.sms)),)


def by_columns(name: str, x: torch.Tensor, known: dict[str, int]) -> tuple[int, ...]:
    """A column of adjacent elements."""
    require(x.stride(0) == 1 or len(x) == 1, name, f"stride {x.stride(0)}", "1: adjacent elements")
    return ()


FLOAT = (torch.float32,)
FUSED = (  # behind a and b: what an epilogue may combine the product with
    Argument("bias", "N", (), adjacent),
    Argument("residual", "M N", (), by_lines(1, "N")),
    Argument("row_scale", "M 1", FLOAT, by_columns),
    Argument("column_scale", "N", FLOAT, adjacent),
    Argument("alpha", "1", FLOAT, adjacent),
    Argument("beta", "1", FLOAT, adjacent),
)


# %% [markdown]
# A launch is told of the operands that its function names, in one order. One that the function does not name is
# refused: it would be left out in silence.


# %%
def ordered(epilogue: str, given: dict[str, torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The operands that a launch is told of, in order; None of one that is not given."""
    unknown, needed = ", ".join(given.keys() - set(NAMES)), operands_of(epilogue)
    require(not unknown, "operands", unknown, f"some of {', '.join(NAMES)}", TypeError)
    for name, x in given.items():
        taken = f"None: the epilogue takes {' and '.join(needed) or 'none'}"
        require(x is None or name in needed, name, type(x).__name__, taken)
    return [given.get(name) for name in told(needed)]


GEMMS: dict[str, Gemm] = {}  # by epilogue


def host_side(epilogue: str) -> Gemm:
    """The host side of the kernels that have an epilogue."""
    if epilogue not in GEMMS:
        given, variants, needed = partial(prepare, epilogue=epilogue), (DEFAULT, *VARIANTS), operands_of(epilogue)
        table = [each._replace(wanted=each.name in needed) for each in FUSED if each.name in told(needed)]
        table = {"operands": (*MATRICES, *table), "together": True}
        made = FurtherGemm(compile_for, given, ((9, 0),), "wgmma", variants, padded=True, **table)
        GEMMS.setdefault(epilogue, made)  # two threads at once: the first one's
    return GEMMS[epilogue]


GEMM = host_side("product")

# %% [markdown]
# ## `matmul`: what a user calls


# %%
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
    given = ordered(epilogue, operands)
    return host_side(epilogue).matmul(a, b, *given, out=out, variant=variant)


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
# Fused is far ahead where torch takes three steps. At K = 1024 it is ahead with GELU and with a residual. At K = 4096 a
# bias, GELU or a residual is about level at 4096 x 14336. At 8192 x 4096 it is behind, most on the H100. At both of
# these sizes the product alone is behind that of the tuned GEMM, whose tile is larger. Cooperative tiles with the
# function where they round were no faster, in a run that is not recorded.
#
# At K = 1024 GELU is not free, though hidden. The GPU was at its power limit, where more work may lower its clock. That
# is a guess: the clock of each epilogue is not recorded.
#
# ## Conclusion
#
# An epilogue is a function of a thread's accumulators, called where these are rounded. Its parameters name what it
# needs besides. `cookbook.ops.linear` has this kernel among its choices where there is a bias.
#
# Next: [a gate between two products](swiglu_gemm.ipynb), SwiGLU.
