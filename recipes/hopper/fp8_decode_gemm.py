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
#     builds_on: hopper/decode_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
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
# The kernel is that of [the decode GEMM](decode_gemm.ipynb), and the operands are those of [FP8 operands with row-wise
# scales](fp8_gemm.ipynb): e4m3 or e5m2, a float32 scale factor for each row of A and each column of B, and C in
# bfloat16 or float16. Of the first page you need four ideas:
#
# * *Swap A/B*: the weight is A of `wgmma`, which always takes 64 rows. The few rows of the product are its columns.
# * *Split-K*: the CTAs of a [cluster](../../docs/glossary.md#cluster) each multiply a part of K, and exchange
#   accumulators through distributed shared memory (DSMEM).
# * *Programmatic dependent launch (PDL)*: after its last load a CTA lets the next kernel begin. That one waits at
#   `griddepcontrol.wait` until the previous kernel has ended.
# * *Prefetch into L2*: before that wait a CTA prefetches some k-tiles of its part of the weight.
#
# Three things are new here:
#
# * **The k-tile.** 128 bytes of a row are 128 elements, not 64. In bytes nothing changes: the swizzle, the boxes of
#   TMA, the stages. Some variants (`tile_k=256`) take two boxes at a time: half as many barriers for as many bytes.
# * **Scale factors.** They come into the epilogue, and there A and B have changed places.
# * **Promoted accumulation.** By [our model](fp8_gemm.ipynb#how-exact-is-the-sum-a-model-and-a-prediction) `wgmma` adds
#   8-bit products with 13 bits of a fraction. *Promoted*, each k-tile begins at zero, and its sums are added to totals
#   in float32: the error no longer grows with K.
#
# **What takes the time**, for 64 x 8192 x 8192 on an H200, in microseconds: the weight's bytes at 4.7 TB/s from memory;
# all that SMs load, weight and rows, at 11.6 TB/s from L2; and the multiply-adds of 132 SMs at 1.98 GHz.

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

from cookbook.recipe.entry import DTYPES, Call, RowScaledGemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows.
#
# A variant is named by its tile and by the CTAs that divide K: `64x16 in 2`. `tile_n` is the most rows that it is made
# for. Each variant up to 128 rows has a promoted twin, with twice the registers for sums: `64x16, promoted`.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 64  # rows of the weight per cluster, 64 for each warpgroup
    tile_n: int = 16  # rows of the product, and of what the weight is multiplied by, per cluster
    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    split_k: int = 1  # CTAs of a cluster, that divide K among them
    per_sm: int = 1  # CTAs that an SM has shared memory for
    ahead: int = 0  # k-tiles of the weight that are prefetched into L2 before `griddepcontrol.wait`
    promoted: bool = False  # whether the sums of each k-tile are added to totals in float32

    def __post_init__(self):
        if self.split_k > self.accumulators:
            raise ValueError(
                f"split_k: got {self.split_k}; needed at most {self.accumulators}, the accumulators of a thread"
            )

    @property
    def warpgroups(self) -> int:
        return self.tile_m // 64  # that multiply

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups + 32  # and the warp that loads

    @property
    def accumulators(self) -> int:
        return 64 * self.tile_n // 128  # of a thread

    @property
    def share(self) -> int:
        return -(-self.accumulators // (self.split_k * self.vec)) * self.vec  # accumulators that a CTA gets: at most

    @property
    def vec(self) -> int:
        return next(vec for vec in (4, 2, 1) if vec * self.split_k <= self.accumulators)  # sent at once

    @property
    def reduction_bytes(self) -> int:
        places = 128 * self.warpgroups * self.share  # of float32, for what one CTA sends
        return 4 * places * self.split_k if self.split_k > 1 else 0

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def small_bytes(self) -> int:
        # scale factors, and barriers of at most 32 stages and one more: padded to the tiles' alignment
        return -(-(16 * 32 + 16 + 4 * (self.tile_m + self.tile_n)) // 1024) * 1024

    @property
    def stages(self) -> int:
        room = SM_SMEM // self.per_sm - 1024  # of each CTA the hardware keeps 1 KiB for itself
        return (room - self.small_bytes) // self.stage_bytes  # of A and B in flight: all that fit

    @property
    def smem_bytes(self) -> int:
        return self.small_bytes + self.stages * self.stage_bytes


SM_SMEM = 228 * 1024  # bytes of shared memory that an SM has for its CTAs
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
# stages, L2, memory): the longest counts most. A start and an end are added.
#
# The figures are fitted to times of an experiment on an H100, which are not recorded: some three hundred pairs of a
# configuration and a product. Two are not: `load` is 64 bytes a clock, as on the page of split-K; `memory` is an
# H200's, from the decode GEMM (same SMs and L2, faster memory). A promoted sum has no term (9 ns a k-tile).
#
# **`outside` is fitted, too**: the rate of the zeros that TMA fills in, where a box lies outside of A or B. It is too
# low: the rule predicts more time for one row than for 16, and measured they are alike. It decides choices where a tile
# is partly empty: at 33 to 56 rows and 6144 x 4096 it makes `128x64 in 2` win over `64x64`. No record has such rows.


# %%
GHZ = 1.98  # of the SMs: the highest clock of an H200, not fitted
L2_HOLDS = 50e6  # bytes that are still in L2 when they are read again: the size of an H200's, not fitted


class Figures(NamedTuple):
    """What the heuristic knows of a GPU: nanoseconds, and bytes a nanosecond."""

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


def clusters_at_once(config: Config, sms: int) -> int:
    """Clusters that find an SM for each of their CTAs: of three or more a ninth of the SMs is left over."""
    return (sms if config.split_k <= 2 else sms * 8 // 9) // config.split_k


def nanoseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> dict[str, float]:
    """What a product of m x n over k takes on `sms` SMs, by the rules above."""
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
    """All of it."""
    *together, start, send = nanoseconds(config, m, n, k, sms, gpu).values()
    return (start + sum(x**4 for x in together) ** 0.25 + send) / 1000


cost = microseconds  # one name for what is compared, of all recipes that choose


def choose(m: int, n: int, k: int, sms: int, promoted: bool = False) -> str:
    """Of the variants with the narrowest tile that holds the rows, the one that takes least time."""
    known = {name: c for name, c in VARIANTS.items() if c.promoted == promoted}
    widest = max(c.tile_n for c in known.values())
    width = min(c.tile_n for c in known.values() if c.tile_n >= min(m, widest))
    fitting = [name for name, c in known.items() if c.tile_n == width]
    return min(fitting, key=lambda name: microseconds(known[name], m, n, k, sms))


# %% [markdown] tags=["lab"]
# What the rule chooses on an H200, the time that it predicts, and the longest of the five terms:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.measure import records
from cookbook.model.fp8_sums import predicted_error
from cookbook.publish.choices import choices_table
from cookbook.publish.pages import results_table, table
from cookbook.recipe import catalog

lines = []
for shape in catalog.find("hopper/fp8_decode_gemm").bench_shapes:
    best = VARIANTS[name := choose(*shape, 132)]
    terms = nanoseconds(best, *shape, 132)
    longest = max(list(terms)[:5], key=terms.get)
    told = [f"{terms[longest] / 1000:.1f} us ({longest})"]
    lines.append([" x ".join(map(str, shape)), name, f"{microseconds(best, *shape, 132):.1f} us", *told])
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


class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


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
    ab = smem_atom(E4M3, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
    )


def tiled_mma(dtype, config: Config = CONFIG, a=E4M3, b=E4M3) -> cute.TiledMma:
    """wgmma m64nNk32 for each warpgroup, one below the other; A and B from shared memory, both K-major."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    op = warpgroup.MmaF8Op(a, b, cutlass.Float32, (64, config.tile_n, 32), smem, k_major, k_major)
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1))


class TiledCopies(NamedTuple):
    """The tiled copies that touch shared memory: there are none."""


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """No tiled copy: TMA fills the stages, wgmma reads them, and C goes out of registers."""
    return TiledCopies()


def reduction_buffer(config: Config) -> cute.Layout:
    """Where float32 sums lie in a reduction buffer: (THREAD, (VEC, VECTORS), SENDER)."""
    vec, threads = config.vec, 128 * config.warpgroups
    vectors = config.share // vec
    strides = (vec, (1, vec * threads), vec * threads * vectors)
    return cute.make_layout((threads, (vec, vectors), config.split_k), stride=strides)


class Part(NamedTuple):
    """What a CTA does: `k_tiles` k-tiles from `first` on of the tile (m, n)."""

    m: cutlass.Int32
    n: cutlass.Int32
    rank: cutlass.Int32  # of the CTA among those that divide K
    first: cutlass.Int32
    k_tiles: cutlass.Int32


def part_of(cta, shape_mn, k_tiles, config: Config) -> Part:
    """The part of a CTA: tiles are numbered down the weight first, and the CTAs of a cluster follow one another."""
    tile, rank = cta // config.split_k, cta % config.split_k
    down = (shape_mn[0] + config.tile_m - 1) // config.tile_m
    each = (k_tiles + config.split_k - 1) // config.split_k
    return Part(tile % down, tile // down, rank, rank * each, each)


# %% [markdown]
# ## The warp that loads
#
# It is that of [the decode GEMM](decode_gemm.ipynb). *Cache hints* tell L2 that it may evict a line of the weight
# first, and shall keep the rows longest.


# %%
# Cache policies for all lines of a tensor alike; CUTLASS has the same numbers as `CacheHintSm90`.
EVICT_FIRST = 0x12F0000000000000  # the weight: a tile of rows reads each line once
EVICT_LAST = 0x14F0000000000000  # B: every tile of the weight reads it again


@cute.jit
def produce(pipe, a, b, part: Part, config: cutlass.Constexpr):
    """The k-tiles of this CTA's part. a, b: a TMA atom, its source (ROWS, K, k), its target (ROWS, K, STAGE)."""
    (tma_a, gA, sA), (tma_b, gB, sB) = a, b
    alone = cute.make_layout(1)  # no multicast
    tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
    tBsB, tBgB = cpasync.tma_partition(tma_b, 0, alone, cute.group_modes(sB, 0, 2), cute.group_modes(gB, 0, 2))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    once, again = cutlass.Int64(EVICT_FIRST), cutlass.Int64(EVICT_LAST)
    if cutlass.const_expr(config.ahead > 0):
        for i in cutlass.range(cutlass.min(config.ahead, part.k_tiles), unroll=1):
            cute.prefetch(tma_a, tAgA[None, part.first + i])
    cute.arch.griddepcontrol_wait()  # before any load: the previous kernel may have written A or B
    for i in cutlass.range(part.k_tiles, unroll=1):
        k_tile = part.first + i
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier, cache_policy=once)
        cute.copy(tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, cache_policy=again)
        state.advance()
    cute.arch.griddepcontrol_launch_dependents()
    if cutlass.const_expr(config.split_k > 1):
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()  # whoever arrives at a barrier waits there too; it is the one of `exchanged`
    pipe.producer_tail(state)  # until all stages have been read


# %% [markdown]
# ## The warpgroups that multiply
#
# `accumulate` is the usual main loop. `accumulate_promoted` begins at zero in each k-tile, waits until its sums are
# complete, and adds them to `total`. While a warpgroup adds, it has no `wgmma` in flight. That is no loss while the
# loop waits for bytes: TMA fills the stages all the same.


# %%
class Multiplier(NamedTuple):
    """What a warpgroup multiplies with."""

    pipe: pipeline.PipelineTmaAsync
    overwrite: cute.TiledMma  # the accumulators
    add: cute.TiledMma  # to the accumulators
    acc: cute.Tensor  # (MMA, 1, 1): what wgmma accumulates in
    total: cute.Tensor  # promoted: the float32 totals; else `acc` itself
    tCrA: cute.Tensor  # (MMA, MMA_M, MMA_K, STAGE): descriptors
    tCrB: cute.Tensor  # (MMA, MMA_N, MMA_K, STAGE)


@cute.jit
def multiplier(pipe, group, smem, tCcC, types: cutlass.Constexpr, config: cutlass.Constexpr) -> Multiplier:
    """Of one warpgroup. tCcC (MMA, 1, 1): a thread's coordinates."""
    (sA, sB), (a, b, dtype) = smem, types
    overwrite, add = tiled_mma(dtype, config, a, b), tiled_mma(dtype, config, a, b)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    thr = add.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    acc = cute.make_rmem_tensor(tCcC.shape, cutlass.Float32)
    total = cute.make_rmem_tensor(tCcC.shape, cutlass.Float32) if config.promoted else acc
    tCrA, tCrB = add.make_fragment_A(thr.partition_A(sA)), add.make_fragment_B(thr.partition_B(sB))
    return Multiplier(pipe, overwrite, add, acc, total, tCrA, tCrB)


@cute.jit
def multiply_stage(me: Multiplier, stage, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one commit group; `first`: the accumulators begin at zero."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(me.tCrA, mode=[2])):  # each step is 32 elements, 32 bytes, along K
        mma = me.overwrite if first and k == 0 else me.add
        cute.gemm(mma, me.acc, me.tCrA[None, None, k, stage], me.tCrB[None, None, k, stage], me.acc)
    warpgroup.commit_group()


@cute.jit
def accumulate(me: Multiplier, k_tiles, config: cutlass.Constexpr):
    """All k-tiles of the part, at least one, in the accumulators of wgmma."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    me.pipe.consumer_wait(read)
    multiply_stage(me, read.index, True)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        me.pipe.consumer_wait(read)
        multiply_stage(me, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        me.pipe.consumer_release(release)
        release.advance()
    warpgroup.wait_group(0)
    me.pipe.consumer_release(release)


@cute.jit
def accumulate_promoted(me: Multiplier, k_tiles, config: cutlass.Constexpr):
    """All k-tiles of the part; the sums of each begin at zero, and are added to the totals in float32."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    me.total.fill(0.0)
    for _ in cutlass.range(k_tiles, unroll=1):
        me.pipe.consumer_wait(read)
        multiply_stage(me, read.index, True)
        warpgroup.wait_group(0)
        me.pipe.consumer_release(read)
        read.advance()
        me.total.store(me.total.load() + me.acc.load())


# %% [markdown]
# ## Scale factors
#
# A factor does not depend on k, so it may multiply the sum over K, or each CTA's part of it: with split-K each CTA
# scales its own accumulators before it sends them. The exchange stays as it was.
#
# A and B have changed places. The rows of a tile are columns of the product: their factors are `scale_b`, and the
# columns' factors are `scale_a`. A thread has two rows of a tile, `lane / 4` and 8 below, and of every 8 columns two.
#
# The threads fetch all factors of the tile while the first stages come, after `griddepcontrol.wait`: whatever quantized
# the rows wrote the factors, too. They wait in shared memory, for in registers a thread would keep those of a quarter
# of the columns through the whole loop.


# %%
@cute.jit
def fetch_scales(scales, sS, part: Part, tidx, config: cutlass.Constexpr):
    """The factors of a tile's rows and columns, into shared memory. sS (TILE_M + TILE_N)."""
    scale_m, scale_n = scales
    if tidx < config.tile_m:
        sS[tidx] = scale_m[cutlass.min(part.m * config.tile_m + tidx, cute.size(scale_m) - 1)]
    threads = 128 * config.warpgroups
    for first in cutlass.range_constexpr(0, config.tile_n, threads):
        column = first + tidx
        if column < config.tile_n:
            sS[config.tile_m + column] = scale_n[cutlass.min(part.n * config.tile_n + column, cute.size(scale_n) - 1)]


@cute.jit
def scale(total, sS, tidx, config: cutlass.Constexpr):
    """A thread's sums times the factors of their rows and columns, in place."""
    together = pipeline.NamedBarrier(barrier_id=1, num_threads=128 * config.warpgroups)
    together.arrive_and_wait()  # all factors are in shared memory
    lane = tidx % 32
    rM = cute.make_rmem_tensor(2, cutlass.Float32)
    for i in cutlass.range_constexpr(2):
        rM[i] = sS[tidx // 32 * 16 + lane // 4 + 8 * i]
    first = cute.assume(config.tile_m + lane % 4 * 2, divby=2)
    sN = cute.make_tensor(sS.iterator + first, cute.make_layout((2, config.tile_n // 8), stride=(1, 8)))
    rN = cute.make_rmem_tensor(sN.shape, cutlass.Float32)
    cute.autovec_copy(sN, rN)
    held = (2, 2, config.tile_n // 8), 1, 1  # a pair of columns, of two rows 8 apart, every 8 columns
    across = cute.make_layout(held, stride=((0, 1, 0), 0, 0))
    down = cute.make_layout(held, stride=((1, 0, 2), 0, 0))
    rows, columns = cute.make_tensor(rM.iterator, across).load(), cute.make_tensor(rN.iterator, down).load()
    total.store(total.load() * rows * columns)


# %% [markdown]
# ## The exchange and the store
#
# As before, but the wait of `store` is in `kernel` now. A barrier of the cluster; then each thread sends each other CTA
# its share of the sums, and adds up what it gets in the order of the senders: a call gives the same bits each time.


# %% tags=["folded"]
@cute.jit
def exchanged(acc, sReduce, arrived, part: Part, tidx, config: cutlass.Constexpr):
    """This CTA's share of all CTAs' accumulators: (VEC, VECTORS). sReduce (THREAD, (VEC, VECTORS), SENDER)."""
    (vec, vectors), senders = sReduce.shape[1], config.split_k
    sends = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), cutlass.Float32, num_bits_per_copy=32 * vec)
    rParts = cute.make_tensor(acc.iterator, cute.make_layout((vec, vectors, senders)))
    rSum = cute.make_rmem_tensor((vec, vectors), cutlass.Float32)
    rOwn, rSent = cute.make_fragment_like(rSum), cute.make_fragment_like(rSum)
    for each in (rSum, rOwn, rSent):
        each.fill(0.0)
    cute.arch.cluster_arrive()  # this CTA's stages have been read, ...
    cute.arch.cluster_wait()  # ... and those of all others: what a stage was may be a reduction buffer now
    for peer in cutlass.range_constexpr(senders):
        given = min(vectors, (config.accumulators - peer * config.share) // vec)  # the last CTA's share may be smaller
        if part.rank == peer:
            for i in cutlass.range_constexpr(given):
                rOwn[None, i].store(rParts[None, i, peer].load())  # its own share stays in registers
        else:
            for i in cutlass.range_constexpr(given):
                place = cute.arch.map_dsmem_ptr(sReduce[tidx, (None, i), part.rank].iterator, peer)
                barrier = cute.arch.map_dsmem_ptr(arrived, peer)
                target = cute.make_tensor(place, cute.make_layout(vec))
                cute.copy(sends, rParts[None, i, peer], target, mbar_ptr=barrier)
    cute.arch.mbarrier_wait(arrived, 0)
    for sender in cutlass.range_constexpr(senders):
        if part.rank == sender:
            rSent.store(rOwn.load())
        else:
            for i in cutlass.range_constexpr(vectors):
                # of the last CTA's places some may be empty
                if part.rank * config.share + i * vec < config.accumulators:
                    cute.autovec_copy(sReduce[tidx, (None, i), sender], rSent[None, i])
        rSum.store(rSum.load() + rSent.load())
    return rSum


@cute.jit
def store(rSum, tCcC, mC, part: Part, config: cutlass.Constexpr):
    """Round this CTA's share of a thread's accumulators and store what lies inside. mC (M, N): C transposed."""
    for i in cutlass.range(config.share, unroll_full=True):
        place = part.rank * config.share + i
        row, column = tCcC[place]
        if cute.elem_less((row, column, place), (*mC.shape, config.accumulators)):
            mC[row, column] = rSum[i].to(mC.element_type)


# %% [markdown]
# ## The kernel
#
# The stages of A and B lie one after the other, behind the barriers and the scale factors. The reduction buffer begins
# where the stages do.


# %%
@cute.jit
def begin(barriers, arrived, warp_idx, part: Part, config: cutlass.Constexpr):
    """Initialise the pipeline's barriers and `arrived`, which counts the bytes that other CTAs send to this one.

    After `sync_threads` this CTA may use them. Others may after the cluster's barrier in `exchanged`, then they send.
    """
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.warpgroups),  # a thread of each warp
        tx_count=config.stage_bytes,
        defer_sync=True,
    )
    if cutlass.const_expr(config.split_k > 1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(arrived, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if cutlass.const_expr(config.split_k > 1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                own = cutlass.max(cutlass.min(config.accumulators - part.rank * config.share, config.share), 0)
                sent = 4 * 128 * config.warpgroups * (config.split_k - 1) * own  # by the other CTAs
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, sent)
    return pipe


class Operands(NamedTuple):
    """What a kernel takes: tensors, those that TMA reads as its coordinates, and scale factors."""

    tma_a: cute.CopyAtom
    mA: cute.Tensor  # (M, K)
    tma_b: cute.CopyAtom
    mB: cute.Tensor  # (N, K)
    mC: cute.Tensor  # (M, N)
    scale_m: cute.Tensor  # (M): stride 0 for one factor of all
    scale_n: cute.Tensor  # (N)


@cute.kernel
def kernel(op: Operands, types: cutlass.Constexpr, config: cutlass.Constexpr):
    """A CTA computes its part of the accumulators of one tile, and stores its share of them."""
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)
    layouts = smem_layouts(types[2], config)
    if warp_idx == 4 * config.warpgroups:
        cpasync.prefetch_descriptor(op.tma_a)
        cpasync.prefetch_descriptor(op.tma_b)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    sS = smem.allocate_tensor(cutlass.Float32, cute.make_layout(config.tile_m + config.tile_n), 16)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(types[0], layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(types[1], layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sReduce = None
    if cutlass.const_expr(config.split_k > 1):
        sReduce = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=cutlass.Float32), reduction_buffer(config))
    cta, _, _ = cute.arch.block_idx()
    part = part_of(cta, op.mC.shape, cute.ceil_div(op.mA.shape[1], config.tile_k), config)
    pipe = begin(barriers, arrived, warp_idx, part, config)

    if warp_idx == 4 * config.warpgroups:
        gA = cute.local_tile(op.mA, (config.tile_m, config.tile_k), (part.m, None))  # (M, K, k)
        gB = cute.local_tile(op.mB, (config.tile_n, config.tile_k), (part.n, None))  # (N, K, k)
        produce(pipe, (op.tma_a, gA, sA), (op.tma_b, gB, sB), part, config)
    else:
        cC = cute.local_tile(cute.make_identity_tensor(op.mC.shape), (config.tile_m, config.tile_n), (part.m, part.n))
        # where in C each of a thread's accumulators belongs
        tCcC = tiled_mma(types[2], config).get_slice(tidx).partition_C(cC)
        me = multiplier(pipe, group, (sA, sB), tCcC, types, config)
        cute.arch.griddepcontrol_wait()  # the previous kernel has ended: it may write scale factors, touch C
        fetch_scales((op.scale_m, op.scale_n), sS, part, tidx, config)
        if cutlass.const_expr(config.promoted):
            accumulate_promoted(me, part.k_tiles, config)
        else:
            accumulate(me, part.k_tiles, config)
        scale(me.total, sS, tidx, config)
        if cutlass.const_expr(config.split_k > 1):
            store(exchanged(me.total, sReduce, arrived, part, tidx, config), tCcC, op.mC, part, config)
        else:
            store(me.total, tCcC, op.mC, part, config)


# %% [markdown]
# ## The launch


# %% tags=["folded"]
class Launch(NamedTuple):
    """What a launch is told beside the addresses of its tensors."""

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
    types = pB.dtype, pA.dtype, pC.dtype
    lda, ldb = (cute.assume(stride, divby=16) for stride in (lda, ldb))
    mA = cute.make_tensor(pB, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pA, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, ldc)))
    scale_m = cute.make_tensor(pSB, cute.make_layout((m,), stride=(cutlass.Int64(stride_m),)))
    scale_n = cute.make_tensor(pSA, cute.make_layout((n,), stride=(cutlass.Int64(stride_n),)))
    fetch = cpasync.CopyBulkTensorTileG2SOp()
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(types[2], config))
    tma_a, mA = cpasync.make_tiled_tma_atom(fetch, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(fetch, mB, b_stage, (config.tile_n, config.tile_k))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    launcher = kernel(Operands(tma_a, mA, tma_b, mB, mC, scale_m, scale_n), types, config)
    grid, block, cluster = ((x, 1, 1) for x in (tiles * config.split_k, config.threads, config.split_k))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, a=E4M3, b=E4M3, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. a, b: their element types."""
    factors = cutlass.Float32, 4
    pointers = (a, 16), (b, 16), (dtype, 2), factors, factors
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# The host side is `RowScaledGemm`, as of [every product of this kind](fp8_gemm.ipynb#matmul). Single elements are
# stored, so rows of C may begin anywhere, and nothing is padded.


# %%
ELEMENTS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}


def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    automatic = call.variant in (DEFAULT, PROMOTED)
    variant = choose(*call.mnk, call.sms, call.variant == PROMOTED) if automatic else call.variant
    *strides, stride_sa, stride_sb = call.strides
    which = VARIANTS[variant], *(ELEMENTS[each] for each in call.operands)
    return which, (Launch(call.mnk, tuple(strides), stride_sa, stride_sb),)


def gemm_into(dtype: torch.dtype) -> RowScaledGemm:
    """The host side for C of one dtype."""
    takes = dict.fromkeys(ELEMENTS, dtype)
    return RowScaledGemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, PROMOTED, *VARIANTS), takes=takes)


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
    return GEMMS[dtype].matmul((a, b, scale_a, scale_b), out, variant)


# %% [markdown] tags=["lab"]
# ## How exact is the sum?
#
# By the model of [the page before](fp8_gemm.ipynb#how-exact-is-the-sum-a-model-and-a-prediction) a sum loses, in each
# step of 32 products, what lies below the 13th bit of its fraction. With split-K each CTA has a shorter sum. The model
# predicts these relative errors, by K:

# %% tags=["lab"]
depths = (4096, 8192, 16384)
sums = {"one CTA": 1, "in 2": 2, "in 4": 4}
rows = [[name, *(f"{predicted_error(k, k // parts):.1e}" for k in depths)] for name, parts in sums.items()]
rows += [[f"promoted, k-tile of {each}", *(f"{predicted_error(k, each):.1e}" for k in depths)] for each in (128, 256)]
Markdown(table(["K", *map(str, depths)], rows))

# %% [markdown] tags=["lab"]
# Rounding C to bfloat16 has an error of 1.7e-3, and the squares of the two add up. On a GPU a test takes the error of
# every variant's float16 results: `tests/gpu/test_fp8_decode_gemm.py` demands that it is within a tenth of the model's.
#
# ## Check
#
# Every level looks at every variant. Level *model* sends numbers through the layouts with A and B exchanged: integers,
# and scale factors that are powers of two. Level *product* follows each element of C back to A, B and its two factors.
# Level *pipeline* runs the warps of a cluster in every order: nothing but the prefetch comes before
# `griddepcontrol.wait`.

# %% tags=["lab"]
lab.check_cells("hopper/fp8_decode_gemm", shapes=[(13, 333, 640)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch._scaled_mm` with row-wise scales: run and timed where there is a
# GPU for it, else as recorded. Then all variants in one run.

# %% tags=["lab", "open"]
lab.compare("hopper/fp8_decode_gemm", matmul, (64, 8192, 8192))

# %% tags=["lab"]
Markdown(results_table("hopper/fp8_decode_gemm"))

# %% [markdown] tags=["lab"]
# What FP8 gains: the times of [the decode GEMM](decode_gemm.ipynb) in bfloat16 and of this one, from runs of their own,
# and by how much the bytes of A, B and C together are fewer.

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
# What a promoted sum costs: the time of the fastest promoted variant divided by that of the fastest other one, and the
# same of torch's two, with slow and with fast accumulation.

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
# Which variant the heuristic takes, and what that loses against the fastest one:

# %% tags=["lab"]
Markdown(choices_table("hopper/fp8_decode_gemm", 132))

# %% [markdown] tags=["lab"]
# **What limits it.** By the rule memory does at most sizes. L2 does at 256 rows and at 128 x 4096 x 14336, where each
# tile of 64 rows of the weight reads all rows again; and at one row, where the rule takes too long for zeros. Tiles of
# 128 rows of the weight read the rows half as often, but are few: at 128 x 14336 x 4096, where torch's kernel is ahead,
# 112 for 132 SMs. C is stored in single elements of 2 bytes; with `stmatrix`, transposed, and 16-byte stores it would
# take an eighth of the instructions. That is not tried.
#
# ## Conclusion
#
# Memory takes the time, and in bytes a weight of FP8 is half of one in bfloat16. The scale factors are fetched while
# the first stages come. Promoted sums cost little.
#
# Next: a sum for each k-tile can have its own scale factors: [block-wise scales](fp8_blockwise_gemm.ipynb).
# To use it: `cookbook copy hopper/fp8_decode_gemm my_gemm.py`, then `from my_gemm import matmul`.
