# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Mixed-input GEMM: int4, int8 and FP8 weights"
#     claim: >-
#       With few rows the bytes of a bfloat16 weight take nearly all of the time; a weight of 4 bits has a quarter of
#       them. Each thread makes bfloat16 of its own part in registers, and wgmma takes its A from there.
#     track: hopper
#     order: 77
#     aside: Few rows, or few tiles
#     builds_on: hopper/packed_weights
#     targets: [sm_90a]
#     runs_on: sm_90
#     kind: packed
#     operands: int4
#     dtypes: [bfloat16, float16]
#     path: tma -> shared memory -> lop3, subtract -> wgmma with A in registers -> DSMEM -> 2-byte stores
#     instructions:
#       sm_90a: [UTMALDG.3D, UTMALDG.2D, LDS.128, LOP3, HGMMA, ACQBULK, PREEXIT, STG.E.U16, SYNCS]
#     bench_shapes: [[1, 8192, 8192], [16, 8192, 8192], [64, 8192, 8192], [16, 14336, 4096], [16, 4096, 14336]]
#     sources:
#       - {title: "PTX ISA, register fragments of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-register-fragment"}
#       - {title: "PTX ISA, lop3", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-lop3"}
#       - {title: "Who says elephants can't run (conversion by magic numbers)", url: "https://arxiv.org/abs/2211.10017"}
# ---

# %% [markdown]
# # Mixed-input GEMM: int4, int8 and FP8 weights
#
# **Claim.** In LLM decode few rows meet a large weight. In bfloat16 its bytes take nearly all of the time; a weight of
# 4 bits has a quarter of them. Each thread makes bfloat16 of its own part of the weight, in registers, and `wgmma`
# takes A from there.

# %% tags=["lab"]
from IPython.display import Markdown

import cookbook
from cookbook import draw, lab
from cookbook.lab import results_table

N, K, SMS, GHZ, BANDWIDTH = 8192, 8192, 132, 1.98, 4.6e3  # an H200: its highest clock, memory's bytes in a nanosecond
sizes = {16: 2, 8: 1 + 2 / 128, 4: 1 / 2 + 2 / 128}  # bytes of a weight by its bits, with scales of groups of 128
reading = {bits: N * K * size / BANDWIDTH / 1e3 for bits, size in sizes.items()}  # in microseconds
bars = [draw.Bar(f"{bits} bits", "weight", time, note=f"{time:.1f}") for bits, time in reading.items()]
draw.bar_chart(bars, "µs", "8192 x 8192 weights: bytes over bandwidth, computed", None, False, "shorter is better")

# %% [markdown]
# **Two numbers first.** The chart is the first: bytes over bandwidth. The second is what the conversion takes: its
# instructions over the rate at which an SM does them. Eight elements of 4 bits lie in one word of 32 bits. The kernel
# shifts each word three times. Four `lop3` (an AND and an OR in one instruction) extract two weights each, and four
# subtractions, of two numbers each, remove an offset.

# %% tags=["lab"]
words = N * K / 8 / SMS  # of an SM
for what, each, rate in (("lop3 and shifts", 7, 64), ("subtractions", 4, 128)):  # rate: of an SM in a clock
    print(f"{what:16} {words * each / rate / GHZ / 1e3:.1f} us of {reading[4]:.1f} us of reading the weight")

# %% [markdown]
# TMA loads at the same time. But both kinds together take more than half of the time of the reading, and `wgmma` takes
# time too. So a thread must convert one part of the weight while `wgmma` multiplies the part before.
#
# Three ideas are those of [the decode GEMM](decode_gemm.ipynb). *Swap A/B*: the weight is operand A, in 64 rows a
# `wgmma`. *Split-K*: the CTAs of a cluster divide K, and exchange accumulators. *PDL*: a kernel begins early,
# prefetches some of its weight into L2, and waits at `griddepcontrol.wait` until the previous kernel has ended.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, warpgroup

from cookbook.recipe.entry import Call, Matrix, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm
from cookbook.recipes.hopper.decode_gemm import Config as DecodeConfig
from cookbook.recipes.hopper.decode_gemm import exchange, expect_shares, produce, store
from cookbook.recipes.hopper.first_gemm import TiledCopies, tiled_copies
from cookbook.recipes.hopper.packed_weights import (
    GROUP,
    LINE,
    NARROW,
    ROWS,
    pack,
    packed_layouts,
    wgmma_of_registers,
    words_of_threads,
)
from cookbook.recipes.hopper.split_k_gemm import (
    Part,
    coordinates,
    launch_options,
    make_pipeline,
    part_of,
    reduction_buffer,
)
from cookbook.recipes.hopper.tma_wgmma_gemm import TmaTensor, make_load, partition_load, smem_atom

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows. *Groups* of 128 along K, and *blocks* of 64 rows, are those of [the packed weight](packed_weights.ipynb).
# The arguments of `choose` and `gemm` keep the names of the caller.
#
# A variant is named by its tile, and by the CTAs that divide K: `128x16 in 2`. `matmul` sets `bits`, `zeros`, `floats`
# by the operands. Some tiles leave room in the SM for another CTA (`per_sm`): one of the next kernel can begin there.
# In trials, not recorded, more `ahead` was no faster; a cluster of four took `OF_FOUR` times as long for as much work.


# %%
ELEMENT, BLOCK = cutlass.Int4, GROUP  # what the checks read: elements of the weight, and how many share a scale


@dataclass(frozen=True)
class Config(DecodeConfig):
    """Sizes of the kernel, in elements or counts. B is K-major, and the weight is packed."""

    tile_m: int = 128  # rows of the weight per cluster, 64 for each warpgroup
    tile_k: int = 256  # an even number of groups: A alternates between two sets of registers
    split_k: int = 2  # CTAs of a cluster, that divide K among them: two at least
    ahead: int = 2  # k-tiles of the weight that are prefetched into L2 before `griddepcontrol.wait`
    bits: int = 4  # of an element of the weight
    zeros: bool = False  # whether each group has a zero point of its own; int4 without has 8, int8 has 0
    floats: bool = False  # whether elements of 8 bits are e4m3

    def __post_init__(self):
        needed = f"a multiple of {2 * GROUP}: an even number of groups"
        require(self.tile_k % (2 * GROUP) == 0, "tile_k", self.tile_k, needed)
        require(self.split_k > 1, "split_k", self.split_k, "2 or more")

    @property
    def groups(self) -> int:
        return self.tile_k // GROUP  # of a k-tile

    @property
    def lines(self) -> int:
        return ROWS * GROUP * self.bits // (32 * LINE)  # of a block

    @property
    def stage_bytes(self) -> int:
        factors = self.tile_m * self.groups * (3 if self.zeros else 2)  # scales of 2 bytes, zero points of 1
        return self.tile_m * self.tile_k * self.bits // 8 + factors + 2 * self.tile_n * self.tile_k


# %%
VARIANTS = {
    "128x8 in 2": Config(tile_n=8, per_sm=2),
    "64x8 in 2": Config(64, 8, per_sm=2, ahead=4),
    "64x16 in 2": Config(64, 16, per_sm=2, ahead=4),
    "128x16 in 2": Config(),
    "64x16 in 4": Config(64, 16, split_k=4, per_sm=2, ahead=4),
    "128x32 in 2": Config(tile_n=32),
    "64x32 in 2": Config(64, 32, per_sm=2, ahead=4),
    "128x64 in 2": Config(tile_n=64, ahead=1),
    "128x16 in 2, zero points": Config(zeros=True),
    "128x16 in 2, int8": Config(bits=8),
    "128x16 in 2, e4m3": Config(bits=8, floats=True),
}
DEFAULT = "auto"  # the one that `choose` names
TRANSPOSED = True
CONFIG = VARIANTS["128x16 in 2"]


def config_for(arch: str, variant: str = "128x16 in 2") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


OF_FOUR = 1.4  # see above


def busiest(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """Elements of the weight that the SM with the most of them multiplies, for a product (m, n) over k."""
    ctas = -(-n // config.tile_m) * -(-m // config.tile_n) * config.split_k
    k_tiles = -(-k // (config.tile_k * config.split_k))  # of each CTA
    share = -(-ctas // sms) * config.tile_m * config.tile_k * k_tiles
    return share * (OF_FOUR if config.split_k > 2 else 1.0)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """Choose the first variant whose busiest SM has least, among those with the narrowest tile that holds the rows."""
    width = min(c.tile_n for c in VARIANTS.values() if c.tile_n >= min(m, 64))
    fitting = [name for name, c in VARIANTS.items() if c.tile_n == width and (c.bits, c.zeros) == (4, False)]
    return min(fitting, key=lambda name: busiest(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## What a thread holds of A
#
# `wgmma` with A in registers takes 64 x 16 elements of A from 128 threads, 8 from each. [The page
# before](packed_weights.ipynb) says which, and packs a thread's elements into words that no other thread reads. At 4
# bits one word has a thread's 8 elements for 16 along K. Register *i* is `(word >> 4 * i) & 0x000F000F`, two integers,
# 16 bits apart.


# %%
def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The wgmma for each warpgroup, one below the other."""
    return cute.make_tiled_mma(wgmma_of_registers(dtype, config.tile_n), (config.warpgroups, 1, 1))


# %% [markdown]
# ## Layouts
#
# TMA copies a block as it lies, in lines of 256 words. `b` is the tile of B, rows of the caller's `a`, swizzled in rows
# of 128 bytes.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory."""

    b: cute.ComposedLayout  # (N, K, STAGE), of elements: S<3,4,3> over bytes
    w: cute.Layout  # (WORD, LINE, BLOCK, STAGE), of words
    s: cute.Layout  # (ROW of all GROUPs, BLOCK, STAGE), of scales, and of zero points


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The SW128 atom, 64 elements wide, tiled to the size of B; the rest follows one another."""
    c = config
    return SmemLayouts(
        b=cute.tile_to_shape(smem_atom(dtype, c.tile_k), (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        w=cute.make_layout((LINE, c.lines * c.groups, c.warpgroups, c.stages)),
        s=cute.make_layout((ROWS * c.groups, c.warpgroups, c.stages)),
    )


# %% [markdown]
# ## From integers to floats
#
# A bfloat16 has 7 bits of a fraction. In `0x4300`, which is 128, the lowest of them counts 1. So `0x4300 | n` is
# exactly 128 + *n* for any *n* below 128. One `lop3` computes `(word & 0x000F000F) | 0x43004300`: two of them at once.
# One instruction subtracts 128 plus the zero point from both, exactly too. In float16 `0x6400` is 1024. The cell takes
# a word apart whose eight elements are their own numbers, 0 to 7:

# %% tags=["lab"]
before = cookbook.load("hopper/packed_weights")
place = {at: number for lane in range(32) for number, at in enumerate(before.held(lane))}
numbers = torch.tensor([[place[r % 16, k % 16] for k in range(GROUP)] for r in range(ROWS)])
(word,) = before.fields(numbers, 4).unique().tolist()
for i in range(4):
    low = word >> 4 * i & 0x000F000F | 0x43004300
    pair = torch.tensor([low], dtype=torch.int32).view(torch.bfloat16).int().tolist()
    print(f"register {i}: lop3({word:#x} >> {4 * i:2}) = {low:#x}: {pair}, by 4 bits from {4 * i} and {4 * i + 16}")

# %% [markdown]
# **A signed byte** is its 7 low bits, less 128 if its highest bit is set. The low bits give 128 + *low*, as above. The
# highest bit alone gives 128, or 256 if it is set; in float16 1024 or 1152. The first less the second is the byte.
#
# **An e4m3 byte** has a sign, 4 bits of exponent and 3 of fraction. The sign moves to bit 15, the other seven bits 4
# places to the left: to where a bfloat16 ends its exponent and begins its fraction. Its bias is 127 and not 7, so this
# is the number times 2^-120, exactly, subnormals too. One multiplication by 2^120 makes it the number. In float16 it is
# 7 places, and 2^8. Only NaN would become a number: `pack` refuses it.
#
# **Where the scales go.** A thread has 64 elements of A of a group. To multiply these by their scales, two at a time,
# takes 32 instructions. To multiply the group's accumulators instead takes *n* / 2, for a tile of *n* rows of the
# product. So up to 64 rows that is cheaper, or as cheap. It is more exact, too: bfloat16 holds the elements of A
# exactly, and the scale multiplies in float32. So each group begins with fresh accumulators (`partial`), and adds them
# to `total`.


# %%
MAGIC = {cutlass.BFloat16: 0x43004300, cutlass.Float16: 0x64006400}  # twice 128, twice 1024: see above
MIDDLE = 8  # the zero point of elements of 4 bits that have no other
E4M3 = {cutlass.BFloat16: (4, 0x7B807B80), cutlass.Float16: (7, 0x5C005C00)}  # places to the left; twice 2^120, 2^8
AND_OR = 0xEA  # of lop3: (a & b) | c


@cute.jit
def zero_points(sZeros: cute.Tensor | None, rZero: cute.Tensor, dtype: cutlass.Constexpr, floats: cutlass.Constexpr):
    """Second operands of a thread's 8 elements for 16 along K: 128 plus the zero point, to subtract; of e4m3 2^120, to
    multiply by; of int8 nothing reads them. sZeros (2): zero points of its two rows; or None."""
    rBits = cute.make_rmem_tensor(4, cutlass.Uint32)
    rPair = cute.make_rmem_tensor(2, cutlass.Uint8)
    if cutlass.const_expr(sZeros is not None):
        cute.autovec_copy(sZeros, rPair)
    for i in cutlass.range_constexpr(4):  # registers 0 and 2 are of the first row, 1 and 3 of the second one
        zero = cutlass.Uint32(MIDDLE)
        if cutlass.const_expr(sZeros is not None):
            zero = rPair[i % 2].to(cutlass.Uint32)
        rBits[i] = zero | (zero << 16) | cutlass.Uint32(MAGIC[dtype])
        if cutlass.const_expr(floats):
            rBits[i] = cutlass.Uint32(E4M3[dtype][1])
    rZero.store(cute.recast_tensor(rBits, dtype).load())


# %%
@cute.jit
def e4m3_to_floats(word: cutlass.Uint32, second: cutlass.Constexpr, places: cutlass.Constexpr):
    """Two e4m3 bytes of a word, the lower of each half or the `second`, as two floats of 16 bits."""
    sign, rest = word << 8, word << places
    if cutlass.const_expr(second):
        sign, rest = word, word >> (8 - places)
    return (sign & cutlass.Uint32(0x80008000)) | (rest & cutlass.Uint32(0x007F007F << places))


@cute.jit
def convert(sWords: cute.Tensor, rZero: cute.Tensor, rA: cute.Tensor, config: cutlass.Constexpr):
    """A thread's elements of a group of A. sWords (4, CHUNK); rZero (8); rA (8, STEP), 16 along K each."""
    dtype, steps, chunks, bits = rA.element_type, rA.shape[1], sWords.shape[1], config.bits
    rWords = cute.make_rmem_tensor((4, chunks), cutlass.Uint32)
    for chunk in cutlass.range_constexpr(chunks):
        cute.autovec_copy(sWords[None, chunk], rWords[None, chunk])
    rLow, rHigh = (cute.make_rmem_tensor((4, steps), cutlass.Uint32) for _ in range(2))
    magic = cutlass.Uint32(MAGIC[dtype])
    for step in cutlass.range_constexpr(steps):
        for i in cutlass.range_constexpr(4):
            if cutlass.const_expr(bits == 4):
                rLow[i, step] = cute.arch.lop3(rWords[step] >> (4 * i), cutlass.Uint32(0x000F000F), magic, AND_OR)
            elif cutlass.const_expr(config.floats):
                rLow[i, step] = e4m3_to_floats(rWords[2 * step + i // 2], i % 2, E4M3[dtype][0])
            else:
                word = rWords[2 * step + i // 2] >> (8 * (i % 2))
                rLow[i, step] = cute.arch.lop3(word, cutlass.Uint32(0x007F007F), magic, AND_OR)
                rHigh[i, step] = cute.arch.lop3(word, cutlass.Uint32(0x00800080), magic, AND_OR)
    low, high = (cute.recast_tensor(x, dtype) for x in (rLow, rHigh))
    for step in cutlass.range_constexpr(steps):
        if cutlass.const_expr(bits == 4):
            rA[None, step].store(low[None, step].load() - rZero.load())
        elif cutlass.const_expr(config.floats):
            rA[None, step].store(low[None, step].load() * rZero.load())
        else:
            rA[None, step].store(low[None, step].load() - high[None, step].load())


# %%
@cute.jit
def promote(total: cute.Tensor, partial: cute.Tensor, rScale: cute.Tensor):
    """Add a group's accumulators, times the scales of a thread's two rows. total, partial ((2, 2, N / 8), 1, 1)."""
    columns = cute.make_layout((2, 2, cute.size(total) // 4))  # neighbours, rows, 8 columns each
    rTotal, rPartial = (cute.make_tensor(x.iterator, columns) for x in (total, partial))
    for row in cutlass.range_constexpr(2):
        scale = rScale[row].to(cutlass.Float32)
        for j in cutlass.range_constexpr(columns.shape[2]):
            for i in cutlass.range_constexpr(2):
                rTotal[i, row, j] = rTotal[i, row, j] + rPartial[i, row, j] * scale


# %% [markdown]
# ## The warp that loads
#
# It is that of [the decode GEMM](decode_gemm.ipynb). Before `griddepcontrol.wait` it only prefetches the weight, its
# scales and its zero points; it loads them after the wait. So the caller need not promise that no earlier kernel writes
# them.

# %% [markdown]
# ## The warpgroups that convert and multiply
#
# `wgmma` reads registers while the thread goes on. So A has two sets of registers, and for each group a thread
#
# 1. converts it into one set, while the `wgmma`s of the group before read the other set;
# 2. waits until these have ended;
# 3. adds their partial accumulators, times the scales, to the total: meanwhile this warpgroup has no `wgmma` in flight;
# 4. releases the stage before, if the group is a stage's first: nothing reads that stage any more;
# 5. issues the group's eight `wgmma`s, of 16 along K each. The first one overwrites the partial accumulators.
#
# The picture draws these steps at the rates above; its TMA lane counts the bytes of the weight alone. `wgmma` takes the
# clocks of [split-K's rule](split_k_gemm.ipynb#the-heuristic), which is for an A in shared memory: from registers it
# may take fewer. The two warpgroups of an SM do the same at the same time. Yellow and green are the two sets of
# registers: threads fill one, then `wgmma` reads it. Where the lane of the threads is empty, they wait: at 16 rows for
# bytes, at 64 rows soon for `wgmma`.

# %% tags=["lab"]
lanes, converts = {}, CONFIG.tile_m * GROUP / 8 * (7 / 64 + 4 / 128)  # clocks of a group, of both warpgroups
load = CONFIG.tile_m * CONFIG.tile_k * reading[4] * 1e3 * GHZ * SMS / (N * K)  # clocks of a k-tile of the weight
for rows in (16, 64):
    wgmma, add = CONFIG.warpgroups * GROUP / 16 * max(rows / 2, 16 + rows / 4), CONFIG.tile_m * rows / 128
    tma = [draw.Span(load * i, load * (i + 1), f"k-tile {i}", "TMA loads") for i in range(3)]
    threads, cores, now = [], [], 0.0
    for group in range(6):
        now = max(now, tma[group // CONFIG.groups].end)  # consumer_wait
        threads.append(draw.Span(now, now := now + converts, f"{group}", f"A: set {group % 2}"))
        if group:
            now = max(now, cores[-1].end)  # wait_group
            threads.append(draw.Span(now, now := now + add, "", "add to the total"))
        cores.append(draw.Span(now, now + wgmma, f"{group}", f"A: set {group % 2}"))
    lanes |= {f"{rows} rows, TMA": tma, f"{rows} rows, threads": threads, f"{rows} rows, wgmma": cores, "": []}
draw.lanes(lanes, "The first six groups of a CTA: computed, not measured", note="a number: the group")


# %%
class Consumer(NamedTuple):
    """A warpgroup's thread, and what it reads and writes."""

    pipe: pipeline.PipelineTmaAsync
    sWords: cute.Tensor  # (4, CHUNK, GROUP, STAGE), of this thread
    sScales: cute.Tensor  # (2, GROUP, STAGE), of its two rows
    sZeros: cute.Tensor | None  # the same; None: there are none
    overwrite: cute.TiledMma  # the partial accumulators, for the first 16 along K of a group
    add: cute.TiledMma  # to the partial accumulators
    tCrA: tuple  # two fragments (MMA, MMA_M, MMA_K), a group each
    tCrB: cute.Tensor  # descriptors (MMA, MMA_N, MMA_K, STAGE)
    rScales: tuple  # two of (2), of the groups in `tCrA`
    partial: cute.Tensor  # (MMA, MMA_M, MMA_N), of one group
    total: cute.Tensor  # (MMA, MMA_M, MMA_N), of all


# %%
@cute.jit
def issue_wgmmas(consumer: Consumer, stage: cutlass.Int32, group: cutlass.Constexpr):
    """Issue one group's wgmmas as one commit group; the first one overwrites `partial`."""
    tCrA, steps, partial = consumer.tCrA[group % 2], GROUP // 16, consumer.partial
    warpgroup.fence()
    for k in cutlass.range_constexpr(steps):
        mma = consumer.overwrite if k == 0 else consumer.add
        cute.gemm(mma, partial, tCrA[None, None, k], consumer.tCrB[None, None, steps * group + k, stage], partial)
    warpgroup.commit_group()


@cute.jit
def consume_stage(
    consumer: Consumer,
    read: pipeline.PipelineState,
    release: pipeline.PipelineState,
    first: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Convert and multiply the groups of one stage. first: of the first stage nothing is in flight before."""
    dtype = consumer.tCrA[0].element_type
    rZero = cute.make_rmem_tensor(8, dtype)
    for group in cutlass.range_constexpr(config.groups):
        now = group % 2
        sZeros = consumer.sZeros[None, group, read.index] if config.zeros else None
        zero_points(sZeros, rZero, dtype, config.floats)
        rA = cute.make_tensor(consumer.tCrA[now].iterator, cute.make_layout((8, GROUP // 16)))
        convert(consumer.sWords[None, None, group, read.index], rZero, rA, config)
        cute.autovec_copy(consumer.sScales[None, group, read.index], consumer.rScales[now])
        if cutlass.const_expr(group > 0 or not first):
            warpgroup.wait_group(0)  # the group before this one is done
            promote(consumer.total, consumer.partial, consumer.rScales[1 - now])
            if cutlass.const_expr(group == 0):
                consumer.pipe.consumer_release(release)
        issue_wgmmas(consumer, read.index, group)


@cute.jit
def consume(consumer: Consumer, k_tiles: cutlass.Int32, config: cutlass.Constexpr):
    """Convert and multiply all k-tiles of the part, at least one."""
    consumer.total.fill(0.0)
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    consumer.pipe.consumer_wait(read)
    consume_stage(consumer, read, release, True, config)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        consumer.pipe.consumer_wait(read)
        consume_stage(consumer, read, release, False, config)
        read.advance()
        release.advance()
    warpgroup.wait_group(0)
    promote(consumer.total, consumer.partial, consumer.rScales[1])  # a stage has an even number of groups
    consumer.pipe.consumer_release(release)


# %% [markdown]
# ## The kernel
#
# Parts of K, barriers, exchange and store are those of [the decode GEMM](decode_gemm.ipynb): the stages become the
# reduction buffer. First what TMA loads, and where it lies in shared memory.


# %%
class Operands(NamedTuple):
    """The operands as TMA sees them."""

    words: TmaTensor  # (WORD, LINE, BLOCK): the packed weight
    scales: TmaTensor  # (ROW of all GROUPs, BLOCK)
    zeros: TmaTensor | None  # the same; None: there are no zero points
    b: TmaTensor  # (N, K)


class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync
    arrived: cute.Pointer  # barrier: the bytes that other CTAs send to this one
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sWords: cute.Tensor  # (WORD, LINE, BLOCK, STAGE)
    sScales: cute.Tensor  # (ROW of all GROUPs, BLOCK, STAGE)
    sZeros: cute.Tensor | None  # the same; None: there are no zero points
    sReduce: cute.Tensor  # (THREAD, (VEC, VECTORS), SENDER), where the stages were


@cute.jit
def set_up(
    layouts: SmemLayouts, part: Part, warp_idx: cutlass.Int32, dtype: cutlass.Constexpr, config: cutlass.Constexpr
) -> Cta:
    """Allocate the stages, and set up their barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sWords = smem.allocate_tensor(cutlass.Uint32, layouts.w, 128)
    sScales = smem.allocate_tensor(dtype, layouts.s, 128)
    sZeros = smem.allocate_tensor(cutlass.Uint8, layouts.s, 128) if config.zeros else None
    sReduce = cute.make_tensor(cute.recast_ptr(sB.iterator, dtype=cutlass.Float32), reduction_buffer(config))
    pipe = make_pipeline(barriers, arrived, warp_idx, config)
    expect_shares(arrived, part, warp_idx, config)
    return Cta(pipe, arrived, sB, sWords, sScales, sZeros, sReduce)


# %% [markdown]
# The boxes of a CTA's tile, for the warp that loads.


# %%
@cute.jit
def partition_loads(operands: Operands, cta: Cta, part: Part, config: cutlass.Constexpr):
    """Return the loads of the weight, of its words and factors, and the load of B."""
    c = config
    gW = cute.local_tile(operands.words.coords, (LINE, c.lines * c.groups, c.warpgroups), (0, None, part.m))
    # (WORD, LINE, BLOCK, k) -> ((WORD, LINE), BLOCK, k): partition_load takes tiles of two modes
    words = partition_load(operands.words.atom, cute.group_modes(gW, 0, 2), cute.group_modes(cta.sWords, 0, 2))
    weight = [words]
    for factors, sX in ((operands.scales, cta.sScales), (operands.zeros, cta.sZeros)):
        if cutlass.const_expr(factors is not None):
            gX = cute.local_tile(factors.coords, (ROWS * c.groups, c.warpgroups), (None, part.m))  # (ROW, BLOCK, k)
            weight.append(partition_load(factors.atom, gX, sX))
    gB = cute.local_tile(operands.b.coords, (c.tile_n, c.tile_k), (part.n, None))  # (TILE_N, TILE_K, k)
    return weight, partition_load(operands.b.atom, gB, cta.sB)


# %% [markdown]
# A thread's part of the stages, and its registers. Four words of a chunk are one load; the scales of its two rows lie
# side by side.


# %%
@cute.jit
def make_consumer(cta: Cta, op: cutlass.Constexpr, config: cutlass.Constexpr) -> Consumer:
    """Partition the stages for this thread, and make its registers."""
    c, dtype = config, cta.sB.element_type
    tidx, _, _ = cute.arch.thread_idx()
    overwrite, add = (cute.make_tiled_mma(op, (c.warpgroups, 1, 1)) for _ in range(2))
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    group, lane = cute.arch.make_warp_uniform(tidx // 128), tidx % 128
    words = cute.make_tensor(cta.sWords.iterator, words_of_threads(c))
    pairs = cute.make_layout(((2, ROWS // 2), c.groups, c.warpgroups, c.stages))
    pair = lane // 32 * 8 + lane % 32 // 4  # of a thread's two rows among the 32 pairs
    sZeros = cute.make_tensor(cta.sZeros.iterator, pairs)[(None, pair), None, group, None] if c.zeros else None
    thr = add.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    shape = thr.partition_shape_C((c.tile_m, c.tile_n))
    return Consumer(
        pipe=cta.pipe,
        sWords=words[(None, lane), None, None, group, None],
        sScales=cute.make_tensor(cta.sScales.iterator, pairs)[(None, pair), None, group, None],
        sZeros=sZeros,
        overwrite=overwrite,
        add=add,
        tCrA=tuple(cute.make_rmem_tensor(((2, 2, 2), 1, GROUP // 16), dtype) for _ in range(2)),
        tCrB=add.make_fragment_B(thr.partition_B(cta.sB)),
        rScales=tuple(cute.make_rmem_tensor(2, dtype) for _ in range(2)),
        partial=cute.make_rmem_tensor(shape, cutlass.Float32),
        total=cute.make_rmem_tensor(shape, cutlass.Float32),
    )


# %%
@cute.kernel
def kernel(
    operands: Operands,
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its part of the accumulators of one tile, and stores its share of them.

    Who waits for whom, with the CONFIG of hopper/mixed_input_gemm:

    warps  do         wait for   signal
    0      wgmma      full[9]    empty[9]: 1
           st.async   full 2[1]  full 2[1]: 1, expects 4096 bytes
    1-7    wgmma      full[9]    empty[9]: 1 a warp
           st.async   full 2[1]
    8      TMA loads  empty[9]   full[9]: 1, expects 25088 bytes

    full[9]: 1 arrival and its bytes a phase.
    empty[9]: 8 arrivals a phase.
    full 2[1]: 1 arrival and its bytes a phase.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    number, _, _ = cute.arch.block_idx()
    part = part_of(number, mC.shape, cute.ceil_div(operands.b.coords.shape[1], config.tile_k), config)
    cta = set_up(layouts, part, warp_idx, mC.element_type, config)

    if warp_idx == 4 * config.warpgroups:
        weight, b = partition_loads(operands, cta, part, config)
        produce(cta.pipe, weight, b, part, config)
    else:
        tCcC = coordinates(mC.shape, part, op, config)
        consumer = make_consumer(cta, op, config)
        consume(consumer, part.k_tiles, config)
        share = exchange(consumer.total, cta.sReduce, cta.arrived, part, config)
        cute.arch.griddepcontrol_wait()  # until it has ended, the previous kernel may read or write C
        store(share, tCcC, mC, part, config)


# %% [markdown]
# ## The launch
#
# Words are a tensor of three modes, scales and zero points of two. TMA fills the part of a box outside of them with
# zeros. A word of zeros is eight times -8, but its scale is zero too, and beyond K so is B: it adds nothing.


# %% tags=["folded"]
class Factors(NamedTuple):
    """Scales and zero points, in global memory."""

    pSB: cute.Pointer  # scales
    pZB: cute.Pointer  # zero points


# %% tags=["folded"]
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    factors: Factors,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times the packed weight at pB, by the caller's names. `strides`: of rows of A, none, C."""
    (n, m, k), (ldb, _, ldc), dtype, c = mnk, strides, pA.dtype, config
    of_words, of_factors = packed_layouts(m, k, c)
    mB = cute.make_tensor(pA, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, ldc)))
    layouts, fetch = smem_layouts(dtype, c), cpasync.CopyBulkTensorTileG2SOp()
    w_stage, s_stage = cute.slice_(layouts.w, (None, None, None, 0)), cute.slice_(layouts.s, (None, None, 0))
    w_box, s_box = (LINE, c.lines * c.groups, c.warpgroups), (ROWS * c.groups, c.warpgroups)
    words, scales = cute.make_tensor(pB, of_words), cute.make_tensor(factors.pSB, of_factors)
    zeros = cute.make_tensor(factors.pZB, of_factors)
    operands = Operands(
        TmaTensor(*cpasync.make_tiled_tma_atom(fetch, words, w_stage, w_box)),
        TmaTensor(*cpasync.make_tiled_tma_atom(fetch, scales, s_stage, s_box)),
        TmaTensor(*cpasync.make_tiled_tma_atom(fetch, zeros, s_stage, s_box)) if c.zeros else None,
        make_load(mB, layouts.b, c.tile_n, c),
    )
    kernel(operands, mC, layouts, wgmma_of_registers(dtype, c.tile_n), c).launch(
        stream=stream, **launch_options(m, n, c)
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (cutlass.Uint32, 16), (dtype, 2), (dtype, 16), (cutlass.Uint8, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    variant = choose(*call.mnk, call.sms) if call.variant == DEFAULT else call.variant
    kind, zeros, (lda, ldc) = call.operands[1], call.spans[3] > 0, call.strides
    of = {"bits": 4 if kind == torch.uint8 else 8, "zeros": zeros, "floats": kind == torch.float8_e4m3fn}
    return (replace(VARIANTS[variant], **of),), (call.mnk, (lda, 0, ldc))


def as_packed(name: str, x: torch.Tensor, known: dict[str, int]) -> tuple[int, ...]:
    """As `pack` returns it: contiguous, and a weight in blocks of 64 rows by groups of 128 along K."""
    require(x.is_contiguous(), name, f"strides {x.stride()}", "contiguous, as `pack` returns it")
    require(x.data_ptr() % 16 == 0, name, f"address {x.data_ptr():#x}", "a multiple of 16 bytes")
    if name == "weight":
        size, k = 4096 if x.dtype == torch.uint8 else 8192, 128 * x.shape[1]
        require(x.shape[2] == size, name, f"{x.shape[2]} bytes of a block", "what `pack` returns")
        require(known["K"] == k, "a", f"K = {known['K']}", f"{k}, the K of the packed weight")
    return ()


PACKED = (
    Matrix("a", "M K"),
    Argument("weight", "N/64 GROUPS BYTES", NARROW, as_packed),
    Argument("scales", "N/64 GROUPS 64", (), as_packed),
    Argument("zeros", "N/64 GROUPS 64", (torch.uint8,), as_packed, wanted=None),
)
TABLE = {"operands": PACKED, "together": True}  # the launch takes scales and zero points as one tuple
GEMM = FurtherGemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=(DEFAULT, *VARIANTS), **TABLE)


def matmul(
    a: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """`a @ w.T` on the tensor cores, accumulated in float32, of a weight w (N, K) that `pack` has reordered.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    weight, scales, zeros: what `pack` returns: `matmul(a, *pack(weight, scales))`. scales are of the dtype of a.
    out: (M, N), the dtype of a, stride 1 along N, any row stride >= N, no memory of the others. Made if not given.
    variant: the sizes of one of VARIANTS, or "auto": those that `choose` names for M, N and K.

    TMA reads rows of a that start at multiples of 16 bytes. Needs a GPU of compute capability 9.0. Any M >= 1 is right;
    the tiles are made for M up to 64. One call on one GPU gives the same bits each time. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    kind = getattr(weight, "dtype", None)
    require(zeros is None or kind == torch.uint8, "zeros", type(zeros).__name__, f"None: {kind} has no zero points")
    return GEMM.matmul(a, weight, scales, zeros, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# Level *product* follows each word bit by bit, and tries all values that an element can have. *Model* is left out: it
# has no data path in which `wgmma` takes A from registers.

# %% tags=["lab"]
lab.check_cells("hopper/mixed_input_gemm", shapes=[(13, 320, 640)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# Against `torch.matmul` of the weight in bfloat16, and `_weight_int4pack_mm`, torch's own product of int4 weights.

# %% tags=["lab", "open"]
lab.compare("hopper/mixed_input_gemm", matmul, (16, 8192, 8192))

# %% tags=["lab"]
Markdown(results_table("hopper/mixed_input_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Packed for its threads, a weight reaches `wgmma` through registers, with no shuffle. The times are longer than reading
# it would take. A possible reason, not measured: at 16 rows `64x16 in 2` loads as many bytes of `a` into an SM as of
# the weight.
#
# Next: [small products one after the other](pdl_chain.ipynb).
# To use it: `cookbook copy hopper/mixed_input_gemm my_gemm.py`, then `from my_gemm import matmul, pack`.
