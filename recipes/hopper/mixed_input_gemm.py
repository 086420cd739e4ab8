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
#     builds_on: hopper/decode_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
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

from cookbook import draw, lab
from cookbook.layouts import evaluate, tile_coords
from cookbook.publish.pages import results_table

N, K, SMS, GHZ, BANDWIDTH = 8192, 8192, 132, 1.98, 4.6e3  # an H200: its highest clock, memory's bytes in a nanosecond
sizes = {16: 2, 8: 1 + 2 / 128, 4: 1 / 2 + 2 / 128}  # bytes of a weight by its bits, with scales of groups of 128
reading = {bits: N * K * size / BANDWIDTH / 1e3 for bits, size in sizes.items()}  # in microseconds
bars = [draw.Bar(f"{bits} bits", "weight", time, note=f"{time:.1f}") for bits, time in reading.items()]
draw.bar_chart(bars, "µs", "8192 x 8192 weights: bytes over bandwidth, computed", None, False, "shorter is better")

# %% [markdown]
# **Two numbers first.** The chart is the first: bytes over bandwidth. The second is what the conversion takes: its
# instructions over the rate at which an SM does them. Eight weights of 4 bits lie in one word of 32 bits. The kernel
# shifts each word three times. Four `lop3` (an AND and an OR in one instruction) take two weights each out of it, and
# four subtractions, of two numbers each, remove an offset.

# %% tags=["lab"]
words = N * K / 8 / SMS  # of an SM
for what, each, rate in (("lop3 and shifts", 7, 64), ("subtractions", 4, 128)):  # rate: of an SM in a clock
    print(f"{what:16} {words * each / rate / GHZ / 1e3:.1f} us of {reading[4]:.1f} us of reading the weight")

# %% [markdown]
# TMA loads at the same time. But both kinds together take more than half of the time of the reading, and `wgmma` takes
# time of its own. So a thread must convert one part of the weight while `wgmma` multiplies the part before.
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
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, PackedGemm, check_quantized, compile_host
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows. A *group* is 128 elements along K: in it each row of the weight has one scale. A *block* of the packed
# weight is 64 rows, what one warpgroup multiplies. The arguments of `choose` and `gemm` keep the names of the caller.
#
# A variant is named by its tile, and by the CTAs that divide K: `128x16 in 2`. `matmul` sets `bits`, `zeros`, `floats`
# by the operands. Some tiles leave room in the SM for another CTA (`per_sm`): one of the next kernel can begin there.
# In trials, not recorded, more `ahead` was no faster; a cluster of four took `OF_FOUR` times as long for as much work.


# %%
GROUP = 128  # elements along K that share a scale and a zero point
ROWS = 64  # rows of a block of the packed weight: those of one wgmma
LINE = 256  # words of a line of a block: as many as one box of TMA may have along a mode
SM_SMEM = 228 * 1024  # bytes of shared memory that an SM has for its CTAs
ELEMENT, BLOCK = cutlass.Int4, GROUP  # what the checks read: elements of the weight, and how many share a scale


@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of the weight per cluster, 64 for each warpgroup
    tile_n: int = 16  # rows of the product, and of what the weight is multiplied by, per cluster
    tile_k: int = 256  # an even number of groups: A alternates between two sets of registers
    split_k: int = 2  # CTAs of a cluster, that divide K among them: two at least
    per_sm: int = 1  # CTAs that an SM has shared memory for
    ahead: int = 2  # k-tiles of the weight that are prefetched into L2 before `griddepcontrol.wait`
    bits: int = 4  # of an element of the weight
    zeros: bool = False  # whether each group has a zero point of its own; int4 without has 8, int8 has 0
    floats: bool = False  # whether elements of 8 bits are e4m3

    @property
    def warpgroups(self) -> int:
        return self.tile_m // ROWS  # that multiply

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups + 32  # and the warp that loads

    @property
    def groups(self) -> int:
        return self.tile_k // GROUP  # of a k-tile

    @property
    def lines(self) -> int:
        return ROWS * GROUP * self.bits // (32 * LINE)  # of a block

    @property
    def accumulators(self) -> int:
        return ROWS * self.tile_n // 128  # of a thread

    @property
    def vec(self) -> int:
        return next(vec for vec in (4, 2, 1) if vec * self.split_k <= self.accumulators)  # of them, sent at once

    @property
    def share(self) -> int:
        return -(-self.accumulators // (self.split_k * self.vec)) * self.vec  # for each CTA: whole vectors

    @property
    def reduction_bytes(self) -> int:
        return 2 * self.tile_m * self.share * self.split_k * 4  # float32, of 2 * tile_m threads: a place a sender

    @property
    def stage_bytes(self) -> int:
        factors = self.tile_m * self.groups * (3 if self.zeros else 2)  # scales of 2 bytes, zero points of 1
        return self.tile_m * self.tile_k * self.bits // 8 + factors + 2 * self.tile_n * self.tile_k

    @property
    def stages(self) -> int:
        room = SM_SMEM // self.per_sm - 1024  # of each CTA the hardware keeps 1 KiB for itself
        return (room - 1024) // self.stage_bytes  # of A and B in flight: all that fit

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes  # barriers, padded to the tiles' alignment


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
    """Of the variants with the narrowest tile that holds the rows, the first whose busiest SM has least."""
    width = min(c.tile_n for c in VARIANTS.values() if c.tile_n >= min(m, 64))
    fitting = [name for name, c in VARIANTS.items() if c.tile_n == width and (c.bits, c.zeros) == (4, False)]
    return min(fitting, key=lambda name: busiest(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## What a thread holds of A
#
# `wgmma` with A in registers takes 64 x 16 elements of A from 128 threads, 8 from each: `tiled_mma` says which.


# %%
def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """wgmma m64nNk16 for each warpgroup, one below the other; A from registers, B from shared memory, K-major."""
    registers, k_major = warpgroup.OperandSource.RMEM, OperandMajorMode.K
    op = warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, config.tile_n, 16), registers, k_major, k_major)
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1))


# %% tags=["lab"]
held = tile_coords(evaluate(tiled_mma, cutlass.BFloat16, Config(64)).a, (64, 16))  # (thread, value, (row, k))
thread = {(r, k): t for t, values in enumerate(held.tolist()) for r, k in values}
place = {(r, k): v for values in held.tolist() for v, (r, k) in enumerate(values)}
mark = [(r, k) for (r, k), t in thread.items() if t == 5]
numbers = [[place[r, k] for k in range(16)] for r in range(16)]
halves = [[k // 8 for k in range(16)]] * 16
draw.number_grid(numbers, "16 x 16 of A: which of its 8 values", halves, mark, "framed: thread 5's")

# %% [markdown]
# A cell is an element of a warp's 16 rows of A, its number the place among its thread's 8. Lane *l* has rows *l* // 4
# and 8 below, and in both the columns 2 (*l* mod 4), the next one, and both plus 8. Two neighbours along K share a
# register: elements 0 and 1 register 0. Registers 0 and 2 are of the upper row, the others of the lower one.
#
# ## `pack`: the weight in the order in which threads read it
#
# The weight is reordered once. For 16 along K the 8 elements of a thread, 4 bits each, are one word. Register *i* is
# `(word >> 4 * i) & 0x000F000F`: two integers, 16 bits apart. Four words are one load of 16 bytes, and the threads'
# loads follow one another. A quarter of a warp reads 128 bytes in a row: every bank once. Of 8-bit elements two words
# have a thread's eight. In `fields` *half* is the upper or the lower row, *part* the colour, *e* which neighbour.


# %%
def fields(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The weight (N, K), of whole numbers, as words (BLOCK, GROUP, WORD); the names are those above."""
    (n, k), w = x.shape, x.to(torch.int64) & (1 << bits) - 1
    w = w.reshape(n // ROWS, 4, 2, 8, k // GROUP, 8, 2, 4, 2)  # block, warp, half, row, group, step, part, column, e
    w = w.permute(0, 4, 5, 1, 3, 7, 6, 2, 8)  # block, group, step, warp, row, column, then part, half, e: 8 of a thread
    part, half, second = (torch.arange(2).reshape(shape).to(x.device) for shape in ((2, 1, 1), (2, 1), (2,)))
    shifts = bits * half + 16 * second + (2 * bits * part if bits == 4 else 0 * part)
    words = (w << shifts).sum((-2, -1))  # of each part one; of 4 bits both are halves of one word
    words = words.sum(-1, keepdim=True) if bits == 4 else words
    blocks = n // ROWS, k // GROUP
    words = words.reshape(*blocks, 2 * bits // 4, 16 // bits, 128, bits // 4)  # ... chunk, step, thread, word
    words = words.transpose(3, 4).reshape(*blocks, -1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def by_blocks(x: torch.Tensor) -> torch.Tensor:
    """Scales or zero points (N, GROUPS) as (BLOCK, GROUP, 64): of a thread's two rows side by side."""
    n, groups = x.shape
    return x.reshape(n // ROWS, 4, 2, 8, groups).permute(0, 4, 1, 3, 2).reshape(n // ROWS, groups, ROWS).contiguous()


class Packed(NamedTuple):
    """What `matmul` takes for a weight."""

    weight: torch.Tensor  # (BLOCK, GROUP, bytes): uint8 of 4-bit elements, int8, or float8_e4m3fn
    scales: torch.Tensor  # (BLOCK, GROUP, 64)
    zeros: torch.Tensor | None  # (BLOCK, GROUP, 64) uint8


def pack(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None) -> Packed:
    """Reorder a quantized weight, once. It stands for `scales * (weight - zeros)`, of a group's scale and zero point.

    weight: (N, K). uint8 with values 0 to 15 is int4; int8, or float8_e4m3fn, which has no NaN here. N a multiple of
        64, K of 128.
    scales: (N, K / 128), or (N, 1) of a weight with one for each row; float16 or bfloat16, as `a` will be.
    zeros: (N, K / 128), uint8 with values 0 to 15, of int4. Without it that of int4 is 8; other weights have none.

    Raises TypeError and ValueError as `matmul` does.
    """
    scales = check_quantized(weight, scales, zeros)
    words = fields(weight.view(torch.uint8), 4 if weight.dtype == torch.uint8 else 8).view(weight.dtype)
    return Packed(words, by_blocks(scales), None if zeros is None else by_blocks(zeros))


# %% [markdown]
# ## Layouts
#
# TMA copies a block as it lies, in lines of 256 words. `b` is the tile of `a`'s rows, swizzled in rows of 128 bytes.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory."""

    b: cute.ComposedLayout  # (N, K, STAGE), of elements: S<3,4,3> over bytes
    w: cute.Layout  # (WORD, LINE, BLOCK, STAGE), of words
    s: cute.Layout  # (ROW of all GROUPs, BLOCK, STAGE), of scales, and of zero points


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The SW128 atom, 64 elements wide, tiled to the size of B; the rest follows one another."""
    c = config
    atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
    return SmemLayouts(
        b=cute.tile_to_shape(atom, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        w=cute.make_layout((LINE, c.lines * c.groups, c.warpgroups, c.stages)),
        s=cute.make_layout((ROWS * c.groups, c.warpgroups, c.stages)),
    )


def words_of_threads(config: Config) -> cute.Layout:
    """What each thread loads, in words: ((WORD, THREAD), CHUNK, GROUP, WARPGROUP, STAGE), 16 bytes at a time."""
    c = config
    chunks = GROUP * c.bits // 256  # of a group: a thread has 64 elements of it
    block = LINE * c.lines
    strides = ((1, 4), 4 * 128, block, block * c.groups, block * c.groups * c.warpgroups)
    return cute.make_layout(((4, 128), chunks, c.groups, c.warpgroups, c.stages), stride=strides)


class TiledCopies(NamedTuple):
    """The tiled copies that touch shared memory: there are none."""


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """TMA fills the stages, threads load what lies in a row, and C goes out of registers."""
    return TiledCopies()


# %% [markdown]
# ## From integers to floats
#
# A bfloat16 has 7 bits of a fraction. In `0x4300`, which is 128, the lowest of them counts 1. So `0x4300 | n` is
# 128 + *n*, exactly, for any *n* below 128. One `lop3` computes `(word & 0x000F000F) | 0x43004300`: two of them at
# once. One instruction subtracts 128 plus the zero point from both, exactly too. In float16 `0x6400` is 1024. A
# word, each of whose elements is its own number in the picture above:

# %% tags=["lab"]
(word,) = fields(torch.tensor([[place[r, k % 16] for k in range(GROUP)] for r in range(ROWS)]), 4).unique().tolist()
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
# takes 32 instructions; to multiply its accumulators of the group takes *n* / 2, for a tile of *n* rows of the product.
# So up to 64 rows that is cheaper, or as cheap. It is more exact, too: bfloat16 holds the elements of A exactly, and
# the scale multiplies in float32. So a group has accumulators of its own (*partial*).


# %%
MAGIC = {cutlass.BFloat16: 0x43004300, cutlass.Float16: 0x64006400}  # twice 128, twice 1024: see above
MIDDLE = 8  # the zero point of elements of 4 bits that have no other
E4M3 = {cutlass.BFloat16: (4, 0x7B807B80), cutlass.Float16: (7, 0x5C005C00)}  # places to the left; twice 2^120, 2^8
AND_OR = 0xEA  # of lop3: (a & b) | c


@cute.jit
def zero_points(sZeros, rZero, dtype: cutlass.Constexpr, floats: cutlass.Constexpr):
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


@cute.jit
def spread(word, second: cutlass.Constexpr, places: cutlass.Constexpr):
    """Two e4m3 bytes of a word, the lower of each half or the `second`, as two floats of 16 bits."""
    sign, rest = word << 8, word << places
    if cutlass.const_expr(second):
        sign, rest = word, word >> (8 - places)
    return (sign & cutlass.Uint32(0x80008000)) | (rest & cutlass.Uint32(0x007F007F << places))


@cute.jit
def convert(sWords, rZero, rA, config: cutlass.Constexpr):
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
                rLow[i, step] = spread(rWords[2 * step + i // 2], i % 2, E4M3[dtype][0])
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


@cute.jit
def promote(total, partial, rScale):
    """Add a group's accumulators, times the scales of a thread's two rows. total, partial ((2, 2, N / 8), 1, 1)."""
    columns = cute.make_layout((2, 2, cute.size(total) // 4))  # neighbours, rows, 8 columns each
    rTotal, rPartial = (cute.make_tensor(x.iterator, columns) for x in (total, partial))
    for row in cutlass.range_constexpr(2):
        scale = rScale[row].to(cutlass.Float32)
        for j in cutlass.range_constexpr(columns.shape[2]):
            for i in cutlass.range_constexpr(2):
                rTotal[i, row, j] = rTotal[i, row, j] + rPartial[i, row, j] * scale


# %% [markdown]
# **Which part is whose, and where sums of a cluster meet**: as in [the decode GEMM](decode_gemm.ipynb). The stages
# become the reduction buffer.


# %% tags=["folded"]
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


def reduction_buffer(config: Config) -> cute.Layout:
    """Where float32 sums lie in a reduction buffer: (THREAD, (VEC, VECTORS), SENDER)."""
    vec, threads = config.vec, 128 * config.warpgroups
    vectors = config.share // vec
    strides = (vec, (1, vec * threads), vec * threads * vectors)
    return cute.make_layout((threads, (vec, vectors), config.split_k), stride=strides)


# %% [markdown]
# ## The warp that loads
#
# As a rule no kernel before this one writes the weight, its scales or its zero points. All the same they are only
# prefetched before `griddepcontrol.wait`, and loaded after it: [the decode GEMM](decode_gemm.ipynb) says why.


# %%
EVICT_FIRST = 0x12F0000000000000  # the weight: a tile of rows reads it once. CUTLASS has these as `CacheHintSm90`
EVICT_LAST = 0x14F0000000000000  # B: every tile of the weight reads it again


class Load(NamedTuple):
    """The boxes of one tensor as the producer sees them."""

    atom: cute.CopyAtom
    tXgX: cute.Tensor  # (TMA, k)
    tXsX: cute.Tensor  # (TMA, STAGE)


@cute.jit
def load_of(atom, gX, sX, modes: cutlass.Constexpr):
    """The loads of boxes gX (..., k) into stages sX (..., STAGE). modes: how many a box has."""
    sX, gX = cute.group_modes(sX, 0, modes), cute.group_modes(gX, 0, modes)
    tXsX, tXgX = cpasync.tma_partition(atom, 0, cute.make_layout(1), sX, gX)  # no multicast
    return Load(atom, tXgX, tXsX)


@cute.jit
def produce(pipe, weight, b: Load, part: Part, config: cutlass.Constexpr):
    """The k-tiles of this CTA's part. weight: loads of the packed weight, its scales and zero points."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    once, again = cutlass.Int64(EVICT_FIRST), cutlass.Int64(EVICT_LAST)
    for i in cutlass.range(cutlass.min(config.ahead, part.k_tiles), unroll=1):
        for load in weight:
            cute.prefetch(load.atom, load.tXgX[None, part.first + i])
    cute.arch.griddepcontrol_wait()  # before any load: the previous kernel may have written what is read here
    for i in cutlass.range(part.k_tiles, unroll=1):
        k_tile = part.first + i
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for load in weight:
            source, target = load.tXgX[None, k_tile], load.tXsX[None, state.index]
            cute.copy(load.atom, source, target, tma_bar_ptr=barrier, cache_policy=once)
        cute.copy(b.atom, b.tXgX[None, k_tile], b.tXsX[None, state.index], tma_bar_ptr=barrier, cache_policy=again)
        state.advance()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()  # whoever arrives at a barrier waits there too; it is the one of `exchanged`
    pipe.producer_tail(state)  # until all stages have been read


# %% [markdown]
# ## The warpgroups that convert and multiply
#
# `wgmma` reads registers while the thread goes on. So A has two sets of registers, and for each group a thread
#
# 1. converts it into one set, while the `wgmma`s of the group before read the other set;
# 2. waits until these have ended;
# 3. adds their partial accumulators, times the scales, to the total: then this warpgroup has no `wgmma` in flight;
# 4. releases the stage before, if the group is a stage's first: nothing reads that stage any more;
# 5. issues the group's eight `wgmma`s, of 16 along K each. The first one overwrites the partial accumulators.
#
# The picture has these steps by the rates above, `wgmma` by that of the decode GEMM, for the bytes of the weight alone.
# The two warpgroups of an SM do the same at the same time. Yellow and green are the two sets of registers: threads fill
# one, then `wgmma` reads it. Where their lane is empty the threads wait: at 16 rows for bytes, at 64 soon for `wgmma`.

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

    pipe: pipeline.PipelineAsync
    sWords: cute.Tensor  # (4, CHUNK, GROUP, STAGE), of this thread
    sScales: cute.Tensor  # (2, GROUP, STAGE), of its two rows
    sZeros: cute.Tensor  # the same; None: there are none
    tCrA: tuple  # two fragments (MMA, MMA_M, MMA_K), a group each
    tCrB: cute.Tensor  # descriptors (MMA, MMA_N, MMA_K, STAGE)
    rScales: tuple  # two of (2), of the groups in `tCrA`
    partial: cute.Tensor  # (MMA, MMA_M, MMA_N), of one group
    total: cute.Tensor  # (MMA, MMA_M, MMA_N), of all


@cute.jit
def multiply_group(me: Consumer, mma, stage, group: cutlass.Constexpr):
    """Issue one group's wgmmas as one commit group. mma: one that overwrites `partial`, and one that adds to it."""
    overwrite, add = mma
    tCrA, steps = me.tCrA[group % 2], GROUP // 16
    warpgroup.fence()
    for k in cutlass.range_constexpr(steps):
        each = overwrite if k == 0 else add
        cute.gemm(each, me.partial, tCrA[None, None, k], me.tCrB[None, None, steps * group + k, stage], me.partial)
    warpgroup.commit_group()


@cute.jit
def multiply_stage(me: Consumer, mma, read, release, first: cutlass.Constexpr, config: cutlass.Constexpr):
    """Convert and multiply the groups of one stage. first: of the first stage nothing is in flight before."""
    dtype = me.tCrA[0].element_type
    rZero = cute.make_rmem_tensor(8, dtype)
    for group in cutlass.range_constexpr(config.groups):
        now = group % 2
        sZeros = me.sZeros[None, group, read.index] if config.zeros else None
        zero_points(sZeros, rZero, dtype, config.floats)
        rA = cute.make_tensor(me.tCrA[now].iterator, cute.make_layout((8, GROUP // 16)))
        convert(me.sWords[None, None, group, read.index], rZero, rA, config)
        cute.autovec_copy(me.sScales[None, group, read.index], me.rScales[now])
        if cutlass.const_expr(group > 0 or not first):
            warpgroup.wait_group(0)  # the group before this one is done
            promote(me.total, me.partial, me.rScales[1 - now])
            if cutlass.const_expr(group == 0):
                me.pipe.consumer_release(release)
        multiply_group(me, mma, read.index, group)


@cute.jit
def multiply(me: Consumer, mma, k_tiles, config: cutlass.Constexpr):
    """All k-tiles of the part, at least one."""
    me.total.fill(0.0)
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    me.pipe.consumer_wait(read)
    multiply_stage(me, mma, read, release, True, config)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        me.pipe.consumer_wait(read)
        multiply_stage(me, mma, read, release, False, config)
        read.advance()
        release.advance()
    warpgroup.wait_group(0)
    promote(me.total, me.partial, me.rScales[1])  # a stage has an even number of groups
    me.pipe.consumer_release(release)


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
                if part.rank * config.share + i * vec < config.accumulators:  # some places may be empty
                    cute.autovec_copy(sReduce[tidx, (None, i), sender], rSent[None, i])
        rSum.store(rSum.load() + rSent.load())
    return rSum


@cute.jit
def store(rSum, tCcC, mC, part: Part, config: cutlass.Constexpr):
    """Round this CTA's share of a thread's accumulators and store what lies inside. mC (M, N): C transposed."""
    cute.arch.griddepcontrol_wait()  # the previous kernel has ended: it may read or write C
    for i in cutlass.range(config.share, unroll_full=True):
        place = part.rank * config.share + i
        row, column = tCcC[place]
        if cute.elem_less((row, column, place), (*mC.shape, config.accumulators)):
            mC[row, column] = rSum[i].to(mC.element_type)


# %% [markdown]
# ## The kernel


# %%
class Shared(NamedTuple):
    """The stages."""

    b: cute.Tensor  # (N, K, STAGE)
    w: cute.Tensor  # (WORD, LINE, BLOCK, STAGE)
    s: cute.Tensor  # (ROW of all GROUPs, BLOCK, STAGE)
    z: cute.Tensor  # the same; None: there are no zero points


@cute.jit
def begin(barriers, arrived, warp_idx, part: Part, config: cutlass.Constexpr):
    """Initialise the pipeline's barriers and `arrived`, which counts the bytes that other CTAs send to this one. After
    `sync_threads` this CTA may use them. Others may after the cluster's barrier in `exchanged`, then they send."""
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.warpgroups),  # a thread of each warp
        tx_count=config.stage_bytes,
        defer_sync=True,
    )
    if warp_idx == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(arrived, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp_idx == 0:
        with cute.arch.elect_one():
            own = cutlass.max(cutlass.min(config.accumulators - part.rank * config.share, config.share), 0)
            sent = 4 * 128 * config.warpgroups * (config.split_k - 1) * own  # by the other CTAs
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, sent)
    return pipe


@cute.jit
def loads_of(tmas, shared: Shared, part: Part, config: cutlass.Constexpr):
    """The loads of a CTA's boxes: a list of those of the weight, and that of B."""
    tma_w, tma_s, tma_z, tma_b = tmas
    c = config
    box = LINE, c.lines * c.groups, c.warpgroups
    gW = cute.local_tile(tma_w[1], box, (0, None, part.m))  # (WORD, LINE, BLOCK, k)
    weight = [load_of(tma_w[0], gW, shared.w, 3)]
    for tma, sX in ((tma_s, shared.s), (tma_z, shared.z)):
        if cutlass.const_expr(tma is not None):
            gX = cute.local_tile(tma[1], (ROWS * c.groups, c.warpgroups), (None, part.m))  # (ROW, BLOCK, k)
            weight.append(load_of(tma[0], gX, sX, 2))
    gB = cute.local_tile(tma_b[1], (c.tile_n, c.tile_k), (part.n, None))  # (N, K, k)
    return weight, load_of(tma_b[0], gB, shared.b, 2)


@cute.jit
def consumer_of(pipe, shared: Shared, mma, tidx, tCcC, config: cutlass.Constexpr):
    """What a thread of a warpgroup reads and writes. tCcC (MMA, MMA_M, MMA_N): its coordinates."""
    c, dtype = config, shared.b.element_type
    group = cute.arch.make_warp_uniform(tidx // 128)
    lane = tidx % 128
    words = cute.make_tensor(shared.w.iterator, words_of_threads(c))
    pair = cute.make_layout(((2, ROWS // 2), c.groups, c.warpgroups, c.stages))
    place = lane // 32 * 8 + lane % 32 // 4  # of a thread's two rows among the 32 pairs
    sZeros = cute.make_tensor(shared.z.iterator, pair)[(None, place), None, group, None] if c.zeros else None
    thr = mma.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    return Consumer(
        pipe,
        words[(None, lane), None, None, group, None],
        cute.make_tensor(shared.s.iterator, pair)[(None, place), None, group, None],
        sZeros,
        tuple(cute.make_rmem_tensor(((2, 2, 2), 1, GROUP // 16), dtype) for _ in range(2)),
        mma.make_fragment_B(thr.partition_B(shared.b)),
        tuple(cute.make_rmem_tensor(2, dtype) for _ in range(2)),
        cute.make_rmem_tensor(tCcC.shape, cutlass.Float32),
        cute.make_rmem_tensor(tCcC.shape, cutlass.Float32),
    )


@cute.kernel
def kernel(tmas, mC: cute.Tensor, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """A CTA computes its part of the accumulators of one tile, and stores its share of them. mC (M, N)."""
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    layouts = smem_layouts(dtype, config)
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sW = smem.allocate_tensor(cutlass.Uint32, layouts.w, 128)
    sS = smem.allocate_tensor(dtype, layouts.s, 128)
    sZ = smem.allocate_tensor(cutlass.Uint8, layouts.s, 128) if config.zeros else None
    sReduce = cute.make_tensor(cute.recast_ptr(sB.iterator, dtype=cutlass.Float32), reduction_buffer(config))
    cta, _, _ = cute.arch.block_idx()
    part = part_of(cta, mC.shape, cute.ceil_div(tmas[3][1].shape[1], config.tile_k), config)
    pipe = begin(barriers, arrived, warp_idx, part, config)
    shared = Shared(sB, sW, sS, sZ)

    if warp_idx == 4 * config.warpgroups:
        weight, b = loads_of(tmas, shared, part, config)
        produce(pipe, weight, b, part, config)
    else:
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), (part.m, part.n))
        overwrite, add = tiled_mma(dtype, config), tiled_mma(dtype, config)
        overwrite.set(warpgroup.Field.ACCUMULATE, False)
        add.set(warpgroup.Field.ACCUMULATE, True)
        tCcC = add.get_slice(tidx).partition_C(cC)  # where in C each of a thread's accumulators belongs
        me = consumer_of(pipe, shared, add, tidx, tCcC, config)
        multiply(me, (overwrite, add), part.k_tiles, config)
        store(exchanged(me.total, sReduce, arrived, part, tidx, config), tCcC, mC, part, config)


# %% [markdown]
# ## The launch
#
# Words are a tensor of three modes, scales and zero points of two. What a box has outside of them TMA fills with zeros.
# A word of zeros is eight times -8, but its scale is zero too, and beyond K so is B: it adds nothing.


# %% tags=["folded"]
class Factors(NamedTuple):
    """Scales and zero points, in global memory."""

    pSB: cute.Pointer  # scales
    pZB: cute.Pointer  # zero points


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
    blocks, groups = cute.ceil_div(m, ROWS), k // GROUP
    lines = groups * c.lines
    apart = cute.assume(cutlass.Int64(lines) * LINE, divby=LINE), cute.assume(cutlass.Int64(groups) * ROWS, divby=ROWS)
    of_w = cute.make_layout((LINE, lines, blocks), stride=(1, LINE, apart[0]))
    of_s = cute.make_layout((ROWS * groups, blocks), stride=(1, apart[1]))
    of_b = cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, ldc)))
    layouts, stage = smem_layouts(dtype, c), (None, None, None, 0)
    w_stage, s_stage = cute.slice_(layouts.w, stage), cute.slice_(layouts.s, (None, None, 0))
    w_box, s_box = (LINE, c.lines * c.groups, c.warpgroups), (ROWS * c.groups, c.warpgroups)
    fetch = cpasync.CopyBulkTensorTileG2SOp()
    tma_w = cpasync.make_tiled_tma_atom(fetch, cute.make_tensor(pB, of_w), w_stage, w_box)
    tma_s = cpasync.make_tiled_tma_atom(fetch, cute.make_tensor(factors.pSB, of_s), s_stage, s_box)
    of_z = cute.make_tensor(factors.pZB, of_s)
    tma_z = cpasync.make_tiled_tma_atom(fetch, of_z, s_stage, s_box) if c.zeros else None
    b_stage = cute.slice_(layouts.b, (None, None, 0))
    tma_b = cpasync.make_tiled_tma_atom(fetch, cute.make_tensor(pA, of_b), b_stage, (c.tile_n, c.tile_k))
    tiles = cute.ceil_div(m, c.tile_m) * cute.ceil_div(n, c.tile_n)
    launcher = kernel((tma_w, tma_s, tma_z, tma_b), mC, dtype, c)
    grid, block, cluster = ((x, 1, 1) for x in (tiles * c.split_k, c.threads, c.split_k))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (cutlass.Uint32, 16), (dtype, 2), (dtype, 16), (cutlass.Uint8, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    variant = choose(*call.mnk, call.sms) if call.variant == DEFAULT else call.variant
    kind, zeros = call.operands[1], call.spans[3] > 0
    of = {"bits": 4 if kind == torch.uint8 else 8, "zeros": zeros, "floats": kind == torch.float8_e4m3fn}
    return (replace(VARIANTS[variant], **of),), (call.mnk, call.strides)


GEMM = PackedGemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=(DEFAULT, *VARIANTS))


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
    return GEMM.matmul((a, weight, scales, zeros), out, variant)


# %% [markdown] tags=["lab"]
# ## Check
#
# Level *product* follows each word bit by bit, and tries all values that an element can have. *Model* is left out.

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
# Packed for its threads, a weight reaches `wgmma` through registers, with no shuffle. The times are longer than that of
# reading it. One reason: at 16 rows `64x16 in 2` loads as many bytes of `a` as of the weight.
#
# Next: [small products one after the other](pdl_chain.ipynb).
# To use it: `cookbook copy hopper/mixed_input_gemm my_gemm.py`, then `from my_gemm import matmul, pack`.
