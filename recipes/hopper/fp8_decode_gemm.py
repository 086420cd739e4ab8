# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: FP8 operands and few rows
#     claim: >-
#       With few rows the bytes of the weight take the time, and FP8 halves them. Scale factors meet the sums before the
#       exchange. Sums promoted to full float32 cost little, for the tensor cores wait for bytes.
#     track: hopper
#     order: 101
#     aside: 8 bits and less
#     builds_on: hopper/decode_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     kind: scaled
#     operands: fp8
#     dtypes: [bfloat16, float16]
#     path: tma prefetch into L2 -> tma -> swizzled shared memory -> wgmma -> registers -> DSMEM -> 2-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, QGMMA, ACQBULK, PREEXIT, STG.E.U16, SYNCS]
#     bench_shapes: [[64, 8192, 8192], [128, 7168, 16384], [128, 14336, 4096], [16, 1536, 7168], [16, 8192, 8192],
#       [1, 8192, 8192], [32, 8192, 8192], [64, 6144, 4096], [64, 1536, 7168], [128, 8192, 8192], [128, 4096, 14336],
#       [256, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, cp.async.bulk.prefetch.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor"}
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
# ---

# %% [markdown]
# # FP8 operands and few rows
#
# **Claim.** `C = (A * scale_a) @ (B * scale_b)` with 8-bit floats, of few rows and a large weight. The bytes of the
# weight take the time, and FP8 halves them. The tensor cores wait for bytes: more exact, *promoted* sums cost little.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/fp8_decode_gemm", (64, 8192, 8192), over=["torch._scaled_mm, slow accumulation"])

# %% [markdown]
# The kernel is that of [the decode GEMM](decode_gemm.ipynb), and most of it is imported. The operands are those of [FP8
# operands with row-wise scales](fp8_gemm.ipynb): e4m3 or e5m2, with a float32 scale factor for each row of A and each
# column of B. C is bfloat16 or float16. Of the first page you need four ideas:
#
# * *Swap A/B*: the weight is A of `wgmma`, which always takes 64 rows. The few rows of the product are its columns.
# * *Split-K*: the CTAs of a [cluster](../../docs/glossary.md#cluster) each multiply a part of K, and exchange
#   accumulators through distributed shared memory (DSMEM).
# * *Programmatic dependent launch (PDL)*: after its last load a CTA allows the next kernel to begin. The next kernel
#   waits at `griddepcontrol.wait` until the previous one has ended.
# * *Prefetch into L2*: before that wait a CTA prefetches some k-tiles of its part of the weight.
#
# Three things are new here:
#
# * **The k-tile.** 128 bytes of a row are 128 elements, not 64. In bytes nothing changes: the swizzle, the boxes of
#   TMA, the stages. Some variants (`tile_k=256`) take two boxes at a time: half as many barriers for as many bytes.
# * **Scale factors.** They belong to the epilogue, where A and B have changed places.
# * **Promoted accumulation.** By [our model](fp8_gemm.ipynb#how-exact-is-the-sum-a-model-and-a-prediction) `wgmma` adds
#   8-bit products with 13 bits of a fraction. *Promoted*, each k-tile begins at zero, and its sums are added to totals
#   in float32: the error no longer grows with K.
#
# **What takes the time?** The lanes are for 64 x 8192 x 8192 on an H200, in microseconds. They count the weight's bytes
# at 4.7 TB/s from memory, and all that SMs load, weight and rows, at 11.6 TB/s from L2. The third counts the
# multiply-adds of 132 SMs at 1.98 GHz. FP8 halves all three, and memory stays the longest.

# %% tags=["lab"]
WEIGHT, TILE_M, ROWS = 8192 * 8192, 64, 64  # elements, and bytes in FP8; of a tile: rows of the weight, rows of C
lanes = {}
for name, size, rate in (("bfloat16", 2, 2048), ("FP8", 1, 4096)):  # rate: multiply-adds of an SM in a clock
    loaded = size * WEIGHT * (1 + ROWS / TILE_M)
    memory, l2, multiply = size * WEIGHT / 4.7e6, loaded / 11.6e6, WEIGHT * ROWS / (132 * rate * 1980)
    lanes[f"{name}: memory"] = [draw.Span(0, memory, f"{memory:.0f}", "weight, from memory")]
    lanes[f"{name}: L2"] = [draw.Span(0, l2, f"{l2:.0f}", "weight and rows, from L2")]
    lanes[f"{name}: MMA"] = [draw.Span(0, multiply, f"{multiply:.0f}", "multiply-adds")]
draw.lanes(lanes, "Each part alone (computed)", unit="µs", note="They overlap: no kernel is faster than the longest.")

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import DTYPES, MATRICES, Call, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm, along, one_for_all
from cookbook.recipes.hopper.decode_gemm import (
    GHZ,
    L2_HOLDS,
    clusters_at_once,
    exchange,
    expect_shares,
    produce,
    staged,
    store,
)
from cookbook.recipes.hopper.decode_gemm import Config as DecodeConfig
from cookbook.recipes.hopper.first_gemm import SmemLayouts, TiledCopies, tiled_copies
from cookbook.recipes.hopper.split_k_gemm import (
    Multiplier,
    Part,
    added_up,
    consume,
    coordinates,
    issue_wgmmas,
    launch_options,
    make_multiplier,
    make_pipeline,
    part_of,
    reduction_buffer,
)
from cookbook.recipes.hopper.tma_wgmma_gemm import TmaTensor, make_load, partition_load

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows.
#
# A variant is named by its tile and by the CTAs that divide K: `64x16 in 2`. `tile_n` is the most rows that it is made
# for. Each variant up to 128 rows has a promoted twin (`64x16, promoted`), with twice the registers for accumulators
# and totals.


# %%
@dataclass(frozen=True)
class Config(DecodeConfig):
    """Sizes of the kernel, in elements or counts. 8-bit operands are K-major."""

    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    promoted: bool = False  # whether the accumulators of each k-tile are added to totals in float32

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def small_bytes(self) -> int:
        # scale factors, and barriers of at most 32 stages and one more: padded to the tiles' alignment
        return -(-(16 * 32 + 16 + 4 * (self.tile_m + self.tile_n)) // 1024) * 1024


# %%
FAST = {
    "64x16": Config(tile_k=256, ahead=8),
    "64x16 in 2": Config(tile_k=256, split_k=2, ahead=8),
    "64x32": Config(tile_n=32, tile_k=256, ahead=8),
    "64x32 in 2": Config(tile_n=32, tile_k=256, split_k=2, ahead=8),
    "64x64": Config(tile_n=64, ahead=8),
    "64x64 in 2": Config(tile_n=64, split_k=2, per_sm=2, ahead=8),
    "64x64 in 4": Config(tile_n=64, split_k=4, per_sm=2, ahead=8),
    "128x64 in 2": Config(tile_m=128, tile_n=64, tile_k=256, split_k=2, ahead=4),
    "64x128": Config(tile_n=128, ahead=16),
    "64x128 in 2": Config(tile_n=128, split_k=2, ahead=8),
    "64x128 in 4": Config(tile_n=128, split_k=4, ahead=8),
    "128x128": Config(tile_m=128, tile_n=128, ahead=12),
    "128x128 in 2": Config(tile_m=128, tile_n=128, tile_k=256, split_k=2, ahead=4),
    "64x256": Config(tile_n=256, ahead=8),
    "64x256 in 2": Config(tile_n=256, split_k=2, ahead=8),
}
VARIANTS = FAST | {f"{name}, promoted": replace(c, promoted=True) for name, c in FAST.items() if c.tile_n <= 128}
DEFAULT, PROMOTED = "auto", "promoted"  # what `choose` names: a variant that is not promoted; one that is
TRANSPOSED = True
CONFIG = VARIANTS["64x64 in 2"]


def config_for(arch: str, variant: str = "64x64 in 2") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The heuristic
#
# `choose` predicts the time of each variant by the rule of [the decode GEMM](decode_gemm.ipynb#the-heuristic) with the
# bytes of FP8, without its terms *uneven* and *power*. Five terms overlap (multiplying, loads into an SM, waits for
# stages, L2, memory), and the longest counts most. A start and an end are added.
#
# The figures are fitted to times on an H100, which are not recorded: some three hundred pairs of a configuration and a
# product. Two are not: `load` is 64 bytes a clock, as on the page of split-K; `memory` is an H200's, from the decode
# GEMM (same SMs and L2, faster memory). Promotion has no term: [Time](#time) measures what it costs.
#
# **`outside` is fitted, too**: the rate of the zeros that TMA fills in, where a box lies outside of A or B. The fitted
# rate is too low: the rule predicts more time for one row than for 16, and measured they are alike. It decides where a
# tile is partly empty: at 33 to 56 rows and 6144 x 4096 `choose` takes `128x64 in 2` instead of `64x64`. No record has
# such rows.


# %%
class Figures(NamedTuple):
    """The heuristic's figures of a GPU: nanoseconds, and bytes a nanosecond."""

    start: float = 2_831  # CTAs begin, and their first loads come
    early: float = 1_892  # the same where a prefetch came before
    again: float = 652  # a further round of CTAs on the same SMs
    latency: float = 979  # from asking for a stage to asking for the same stage again, while all others ask too
    load: float = 64 * GHZ  # into one SM: what its port takes from L2
    l2: float = 11_615  # of A and B, from L2 into all SMs
    outside: float = 1_118  # of zeros, where a box lies outside of A or B
    memory: float = 4_694  # of an H200
    send: float = 22.9  # out of the registers of a CTA: accumulators and C


H200 = Figures()


def nanoseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> dict[str, float]:
    """Return what a product of m x n over k takes on `sms` SMs, by the rules above."""
    c = config
    down, across = -(-n // c.tile_m), -(-m // c.tile_n)  # tiles
    k_tiles = -(-k // (c.tile_k * c.split_k))  # of each CTA
    ctas = -(-down * across // clusters_at_once(c, sms))  # of the busiest SM
    rounds = ctas if c.split_k > 2 else -(-ctas // c.per_sm)
    inside = k * (across * n + down * m)  # bytes of all that is loaded
    outside = max(down * across * c.split_k * k_tiles * c.stage_bytes - inside, 0)
    weight = n * k * (min(across, rounds) if n * k > L2_HOLDS else 1)
    sent = (4 * c.tile_m * c.tile_n if c.split_k > 1 else 0) + 2 * c.tile_m * c.tile_n / c.split_k  # by each CTA
    wgmma = max(c.tile_n / 2, 16 + c.tile_n / 4)  # clocks of 32 elements along K
    return {
        "multiply": ctas * k_tiles * c.warpgroups * c.tile_k / 32 * wgmma / GHZ,
        "load": ctas * k_tiles * c.stage_bytes / gpu.load,
        "wait": rounds * k_tiles / c.stages * gpu.latency,
        "L2": inside / gpu.l2 + outside / gpu.outside,
        "memory": (weight + m * (k + 2 * n)) / gpu.memory,
        "start": (gpu.early if c.ahead else gpu.start) + (rounds - 1) * gpu.again,
        "send": rounds * sent / gpu.send,
    }


def microseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> float:
    """Return the predicted time: the terms that overlap, the start and the end."""
    return added_up(nanoseconds(config, m, n, k, sms, gpu)) / 1000


cost = microseconds  # one name for what is compared, of all recipes that choose


def choose(m: int, n: int, k: int, sms: int, promoted: bool = False) -> str:
    """Choose the fastest of the variants with the narrowest tile that holds the rows."""
    known = {name: c for name, c in VARIANTS.items() if c.promoted == promoted}
    widest = max(c.tile_n for c in known.values())
    width = min(c.tile_n for c in known.values() if c.tile_n >= min(m, widest))
    fitting = [name for name, c in known.items() if c.tile_n == width]
    return min(fitting, key=lambda name: microseconds(known[name], m, n, k, sms))


# %% [markdown] tags=["lab"]
# What the rule chooses on an H200, the time that it predicts, and the longest of the five terms:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import catalog, choices_table, records, results_table, table
from cookbook.model.fp8_sums import predicted_error

lines = []
for shape in catalog.find("hopper/fp8_decode_gemm").bench_shapes:
    best = VARIANTS[name := choose(*shape, 132)]
    terms = nanoseconds(best, *shape, 132)
    longest = max(list(terms)[:5], key=terms.get)
    times = [f"{terms[longest] / 1000:.1f} us ({longest})"]
    lines.append([" x ".join(map(str, shape)), name, f"{microseconds(best, *shape, 132):.1f} us", *times])
head = ["M x N x K", "variant", "predicted", "longest term"]
Markdown(table(head, lines))

# %% [markdown]
# ## Layouts and MMA
#
# Tiles of 128-byte rows with the 128-byte swizzle, as in [the decode GEMM](decode_gemm.ipynb): `S<3,4,3>` over bytes. A
# row holds 128 elements, and a `wgmma` step takes 32 of them: the same 32 bytes. 8-bit operands are K-major only.


# %% tags=["folded"]
E4M3, E5M2 = cutlass.Float8E4M3FN, cutlass.Float8E5M2
ELEMENT, SCALE, BLOCK = E4M3, cutlass.Float32, 0  # what the checks multiply; 0: a row has one scale factor


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The stages of the weight and of the rows: 8-bit elements, whatever the dtype of C."""
    return SmemLayouts(a=staged(E4M3, config.tile_m, "k", config), b=staged(E4M3, config.tile_n, "k", config))


def wgmma_fp8(a, b, columns: int) -> warpgroup.MmaF8Op:
    """wgmma m64nNk32 with A and B from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF8Op(a, b, cutlass.Float32, (64, columns, 32), smem, k_major, k_major)


def tiled_mma(dtype, config: Config, a=E4M3, b=E4M3) -> cute.TiledMma:
    """The wgmma for each warpgroup, one below the other."""
    return cute.make_tiled_mma(wgmma_fp8(a, b, config.tile_n), (config.warpgroups, 1, 1))


# %% [markdown]
# ## The warpgroups that multiply
#
# The warp that loads is that of [the decode GEMM](decode_gemm.ipynb), and so is the usual main loop, `consume`.
# `consume_promoted` begins at zero in each k-tile, waits until its accumulators are complete, and adds them to a total.
# While a warpgroup adds, it has no `wgmma` in flight. That is no loss while the loop waits for bytes: TMA fills the
# stages all the same.


# %%
@cute.jit
def consume_promoted(pipe: pipeline.PipelineTmaAsync, multiplier: Multiplier, k_tiles: cutlass.Int32):
    """Multiply all k-tiles of the part. Return their total in float32, to which each adds accumulators from zero on."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, pipe.num_stages)
    total = cute.make_fragment_like(multiplier.acc)
    total.fill(0.0)
    for _ in cutlass.range(k_tiles, unroll=1):
        pipe.consumer_wait(read)
        issue_wgmmas(multiplier, read.index, True)
        warpgroup.wait_group(0)
        pipe.consumer_release(read)
        read.advance()
        total.store(total.load() + multiplier.acc.load())
    return total


# %% [markdown]
# ## Scale factors
#
# A factor does not depend on k, so it may multiply the sum over K, or each CTA's part of it. With split-K each CTA
# scales its own accumulators before it sends them. The exchange stays as it was.
#
# A and B have changed places. The rows of a tile are columns of the product: their factors are `scale_b`, and the
# columns' factors are `scale_a`. A thread has two rows of a tile, `lane / 4` and 8 below, and of every 8 columns two.
#
# The threads fetch all factors of the tile while the first stages come, after `griddepcontrol.wait`: the kernel that
# quantized the rows wrote the factors, too. The factors stay in shared memory. In registers a thread would keep those
# of a quarter of the columns through the whole loop.


# %%
class Scales(NamedTuple):
    """Scale factors: stride 0 for one factor of all."""

    m: cute.Tensor  # (M): of the rows of the weight
    n: cute.Tensor  # (N)


@cute.jit
def fetch_scales(scales: Scales, sS: cute.Tensor, part: Part, tidx: cutlass.Int32, config: cutlass.Constexpr):
    """Copy the factors of a tile's rows and columns into shared memory. sS (TILE_M + TILE_N)."""
    scale_m, scale_n = scales
    if tidx < config.tile_m:
        sS[tidx] = scale_m[cutlass.min(part.m * config.tile_m + tidx, cute.size(scale_m) - 1)]
    threads = 128 * config.warpgroups
    for first in cutlass.range_constexpr(0, config.tile_n, threads):
        column = first + tidx
        if column < config.tile_n:
            sS[config.tile_m + column] = scale_n[cutlass.min(part.n * config.tile_n + column, cute.size(scale_n) - 1)]


@cute.jit
def scale(total: cute.Tensor, sS: cute.Tensor, tidx: cutlass.Int32, config: cutlass.Constexpr):
    """Multiply a thread's totals by the factors of their rows and columns, in place."""
    barrier = pipeline.NamedBarrier(barrier_id=1, num_threads=128 * config.warpgroups)
    barrier.arrive_and_wait()  # all factors are in shared memory
    lane = tidx % 32
    rM = cute.make_rmem_tensor(2, cutlass.Float32)
    for i in cutlass.range_constexpr(2):
        rM[i] = sS[tidx // 32 * 16 + lane // 4 + 8 * i]
    first = cute.assume(config.tile_m + lane % 4 * 2, divby=2)
    sN = cute.make_tensor(sS.iterator + first, cute.make_layout((2, config.tile_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, cutlass.Float32)
    cute.autovec_copy(sN, rN)
    values = (2, 2, config.tile_n // 8), 1, 1  # a pair of columns, of two rows 8 apart, every 8 columns
    across = cute.make_layout(values, stride=((0, 1, 0), 0, 0))
    down = cute.make_layout(values, stride=((1, 0, 2), 0, 0))
    rows, columns = cute.make_tensor(rM.iterator, across).load(), cute.make_tensor(rN.iterator, down).load()
    total.store(total.load() * rows * columns)


# %% [markdown]
# ## The kernel
#
# The stages of A and B lie one after the other, behind the barriers and the scale factors. The reduction buffer begins
# where the stages do. Barriers, exchange and store are those of [the decode GEMM](decode_gemm.ipynb); only the wait for
# the previous kernel comes earlier, before the scale factors are read.


# %%
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync
    arrived: cute.Pointer  # barrier: the bytes that other CTAs send to this one
    sS: cute.Tensor  # (TILE_M + TILE_N): scale factors of the tile's rows, then of its columns
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sReduce: cute.Tensor | None  # (THREAD, (VEC, VECTORS), SENDER), where the stages were


@cute.jit
def set_up(
    layouts: SmemLayouts, part: Part, warp_idx: cutlass.Int32, op: cutlass.Constexpr, config: cutlass.Constexpr
) -> Cta:
    """Allocate the factors and the stages, and set up their barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    sS = smem.allocate_tensor(cutlass.Float32, cute.make_layout(config.tile_m + config.tile_n), 16)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(op.a_dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(op.b_dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sReduce = None
    if cutlass.const_expr(config.split_k > 1):
        sReduce = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=cutlass.Float32), reduction_buffer(config))
    pipe = make_pipeline(barriers, arrived, warp_idx, config)
    expect_shares(arrived, part, warp_idx, config)
    return Cta(pipe, arrived, sS, sA, sB, sReduce)


# %% [markdown]
# New next to the decode GEMM: the warpgroups fetch the factors before they wait for the first stage, and apply them
# before the exchange.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    scales: Scales,
    layouts: SmemLayouts,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its part of the accumulators of one tile, and stores its share of them.

    Who waits for whom, with the CONFIG of hopper/fp8_decode_gemm:

    warps  do         wait for   signal
    0      wgmma      full[6]    empty[6]: 1
           st.async   full 2[1]  full 2[1]: 1, expects 8192 bytes
    1-3    wgmma      full[6]    empty[6]: 1 a warp
           st.async   full 2[1]
    4      TMA loads  empty[6]   full[6]: 1, expects 16384 bytes

    full[6]: 1 arrival and its bytes a phase.
    empty[6]: 4 arrivals a phase.
    full 2[1]: 1 arrival and its bytes a phase.
    bar 1, 128 threads: warps 0-3 meet.
    """
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)
    if warp_idx == 4 * config.warpgroups:
        cpasync.prefetch_descriptor(a.atom)
        cpasync.prefetch_descriptor(b.atom)
    number, _, _ = cute.arch.block_idx()
    part = part_of(number, mC.shape, cute.ceil_div(a.coords.shape[1], config.tile_k), config)
    cta = set_up(layouts, part, warp_idx, op, config)

    if warp_idx == 4 * config.warpgroups:
        gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (part.m, None))  # (TILE_M, TILE_K, k)
        gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (part.n, None))  # (TILE_N, TILE_K, k)
        weight = (partition_load(a.atom, gA, cta.sA),)
        produce(cta.pipe, weight, partition_load(b.atom, gB, cta.sB), part, config)
    else:
        tCcC = coordinates(mC.shape, part, op, config)
        multiplier = make_multiplier(cta.sA, cta.sB, group, op, config)
        cute.arch.griddepcontrol_wait()  # until it has ended, the previous kernel may write scales or use C
        fetch_scales(scales, cta.sS, part, tidx, config)
        total = multiplier.acc
        if cutlass.const_expr(config.promoted):
            total = consume_promoted(cta.pipe, multiplier, part.k_tiles)
        else:
            consume(cta.pipe, multiplier, part.k_tiles)
        scale(total, cta.sS, tidx, config)
        share = total
        if cutlass.const_expr(config.split_k > 1):
            share = exchange(total, cta.sReduce, cta.arrived, part, config)
        store(share, tCcC, mC, part, config)


# %% [markdown]
# ## The launch


# %% tags=["folded"]
class Launch(NamedTuple):
    """Extents and strides of a launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    stride_sa: cutlass.Int32  # from one scale factor to the next
    stride_sb: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    pSA: cute.Pointer,
    pSB: cute.Pointer,
    launch: Launch,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = scale_a (M, 1) * A (M, K) times B (N, K) transposed * scale_b (1, N). Here A and B change places."""
    (n, m, k), (ldb, lda, ldc), stride_n, stride_m = launch
    lda, ldb = (cute.assume(stride, divby=16) for stride in (lda, ldb))
    mA = cute.make_tensor(pB, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pA, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, ldc)))
    scale_m = cute.make_tensor(pSB, cute.make_layout((m,), stride=(cutlass.Int64(stride_m),)))
    scale_n = cute.make_tensor(pSA, cute.make_layout((n,), stride=(cutlass.Int64(stride_n),)))
    layouts, op = smem_layouts(pC.dtype, config), wgmma_fp8(pB.dtype, pA.dtype, config.tile_n)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    kernel(a, b, mC, Scales(scale_m, scale_n), layouts, op, config).launch(
        stream=stream, **launch_options(m, n, config)
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, a=E4M3, b=E4M3, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. a, b: their element types."""
    factors = cutlass.Float32, 4
    pointers = (a, 16), (b, 16), (dtype, 2), factors, factors
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# The operands are those of [every product of this kind](fp8_gemm.ipynb#matmul). Single elements are
# stored, so rows of C may begin anywhere, and nothing is padded.


# %%
ELEMENTS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    automatic = call.variant in (DEFAULT, PROMOTED)
    variant = choose(*call.mnk, call.sms, call.variant == PROMOTED) if automatic else call.variant
    which = VARIANTS[variant], *(ELEMENTS[each] for each in call.operands)
    return which, (Launch(call.mnk, call.strides, *call.known["scale_a"], *call.known["scale_b"]),)


SCALES = (  # one for each row of A, each column of B; or one for all of them
    Argument("scale_a", "M 1", (torch.float32,), along(0), one_for_all),
    Argument("scale_b", "1 N", (torch.float32,), along(1), one_for_all),
)


def gemm_into(dtype: torch.dtype) -> FurtherGemm:
    """The host side for C of one dtype."""
    takes = dict.fromkeys(ELEMENTS, dtype)
    table = {"takes": takes, "operands": MATRICES + SCALES}
    return FurtherGemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, PROMOTED, *VARIANTS), **table)


GEMMS = {dtype: gemm_into(dtype) for dtype in DTYPES}
GEMM = GEMMS[torch.bfloat16]


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """`(a * scale_a) @ (b * scale_b)` on the tensor cores, on the current stream of `a`'s device.

    a: (M, K), float8_e4m3fn or float8_e5m2, K-major (stride 1 along K).
    b: (K, N), either of the two, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    scale_a, scale_b: float32 on the same device: (M, 1) and (1, N) of any stride, or one element for all.
    out: (M, N), bfloat16 or float16, stride 1 along N, any row stride >= N, no memory of the others. Made of
        `out_dtype` if not given.
    variant: one of VARIANTS, or "auto" or "promoted": the one that `choose` names for M, N and K, with the sums of
        wgmma or with totals in full float32.

    The addresses of a and b and their row strides are multiples of 16 bytes, as TMA needs them. Any M, N, K >= 1 within
    that: ragged tiles are handled. One call on one GPU gives the same bits each time. Needs compute capability 9.0.
    There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    name, dtype = ("out_dtype", out_dtype) if out is None else ("out", getattr(out, "dtype", type(out).__name__))
    require(dtype in tuple(GEMMS), name, dtype, " or ".join(map(str, GEMMS)), TypeError)
    return GEMMS[dtype].matmul(a, b, scale_a, scale_b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## How exact is the sum?
#
# By the model of [the page before](fp8_gemm.ipynb#how-exact-is-the-sum-a-model-and-a-prediction) a sum loses, in each
# step of 32 products, what lies below the 13th bit of its fraction. With split-K each CTA has a shorter sum. The model
# predicts these relative errors, by K:

# %% tags=["lab"]
depths = (4096, 8192, 16384)
divisions = {"one CTA": 1, "in 2": 2, "in 4": 4}
rows = [[name, *(f"{predicted_error(k, k // parts):.1e}" for k in depths)] for name, parts in divisions.items()]
rows += [[f"promoted, k-tile of {each}", *(f"{predicted_error(k, each):.1e}" for k in depths)] for each in (128, 256)]
Markdown(table(["K", *map(str, depths)], rows))

# %% [markdown] tags=["lab"]
# Rounding C to bfloat16 has an error of 1.7e-3, and the squares of the two add up. On a GPU a test takes the error of
# every variant's float16 results: `tests/gpu/test_fp8_decode_gemm.py` demands that it is within a tenth of the model's.
#
# ## Check
#
# Level *model* sends numbers through the layouts with A and B exchanged: integers, and scale factors that are powers of
# two. Level *product* follows each element of C back to A, B and its two factors. Level *pipeline* runs the warps of a
# cluster in every order: nothing but the prefetch comes before `griddepcontrol.wait`.

# %% tags=["lab"]
lab.check_cells("hopper/fp8_decode_gemm", shapes=[(13, 333, 640)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# All variants in one run.

# %% tags=["lab", "open"]
lab.compare("hopper/fp8_decode_gemm", matmul, (64, 8192, 8192))

# %% tags=["lab"]
Markdown(results_table("hopper/fp8_decode_gemm"))

# %% [markdown] tags=["lab"]
# What FP8 gains: the times of [the decode GEMM](decode_gemm.ipynb) in bfloat16 and of this kernel, from separate runs.
# The last two columns compare the times, and the bytes of A, B and C together.

# %% tags=["lab"]
current, us, gpu = {}, [], None
for name, majors in (("hopper/decode_gemm", "tn"), ("hopper/fp8_decode_gemm", None)):
    current[name] = records.of_one_gpu(name, "timed", "bfloat16", majors=majors, device=gpu)
    us.append({(gpu := r["device"], *r["shape"]): 1000 * r["figures"]["median_ms"] for r in current[name]})
lines = []
for device, m, n, k in sorted(us[0].keys() & us[1].keys()):
    (wide, narrow), size = (each[device, m, n, k] for each in us), (m + n) * k
    ratios = wide / narrow, (2 * size + 2 * m * n) / (size + 2 * m * n)
    lines.append([device, f"{m} x {n} x {k}", *(f"{x:.2f}" for x in (wide, narrow, *ratios))])
head = ["device", "M x N x K", "decode_gemm, µs", "fp8_decode_gemm, µs", "ratio", "ratio of bytes"]
Markdown(table(head, lines, right=2) if lines else "*Nothing is recorded.*")

# %% [markdown] tags=["lab"]
# A large product is nearly twice as fast for half the bytes, and runs differ by some percent. A small one gains less:
# by the rule it takes as long as before to start, and to exchange accumulators.
#
# What a promoted sum costs: the time of the fastest promoted variant divided by that of the fastest other one. The last
# column is the same of torch's two, with slow and with fast accumulation.

# %% tags=["lab"]
lines = []
for record in [r for r in current["hopper/fp8_decode_gemm"] if VARIANTS.keys() <= r["peers"].keys()]:
    times = {name: figures["median_ms"] for name, figures in record["peers"].items()}
    best = {kind: min(t for n, t in times.items() if n in VARIANTS and VARIANTS[n].promoted == kind) for kind in (0, 1)}
    slow = times["torch._scaled_mm, slow accumulation"] / times["torch._scaled_mm"]
    of = [record["device"], " x ".join(map(str, record["shape"]))]
    lines.append([*of, f"{best[1] / best[0]:.2f}", f"{slow:.2f}"])
Markdown(table(["device", "M x N x K", "ours", "torch's"], lines, right=2) if lines else "*Nothing is recorded.*")

# %% [markdown] tags=["lab"]
# Promotion is not cheap for every tile. At 128 rows the promoted `64x128` takes clearly longer than its twin: compare
# their columns above. The fastest tiles of 128 x 128 take hardly longer. A likely reason, not measured: they have two
# warpgroups, so one can multiply while the other adds.
#
# Which variant the heuristic takes, and what that loses against the fastest one:

# %% tags=["lab"]
Markdown(choices_table("hopper/fp8_decode_gemm", 132))

# %% [markdown] tags=["lab"]
# **What limits it.** By the rule memory does at most sizes. L2 does at 256 rows and at 128 x 4096 x 14336, where each
# tile of 64 rows of the weight reads all rows again. It also does at one row, where the rule overrates the zeros
# (`outside`).
#
# Tiles of 128 rows of the weight read the rows half as often, but are few: 112 for 132 SMs at 128 x 14336 x 4096, where
# torch's kernel is ahead on the H200.
#
# C is stored in single elements of 2 bytes; with `stmatrix`, transposed, and 16-byte stores it would take an eighth of
# the store instructions. That is not tried.
#
# ## Conclusion
#
# Memory takes the time, and in bytes a weight of FP8 is half of one in bfloat16. The scale factors are fetched while
# the first stages come. Promoted sums cost little in the tile that is fastest with them.
#
# Next: a sum for each k-tile can have its own scale factors: [block-wise scales](fp8_blockwise_gemm.ipynb).
