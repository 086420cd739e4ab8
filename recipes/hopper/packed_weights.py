# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Packed weights: the order in which threads read them"
#     claim: >-
#       A weight of 4 or 8 bits is reordered once, so that each thread reads its own elements of a wgmma operand, 16
#       bytes at a time, without a shuffle and without bank conflicts.
#     track: hopper
#     order: 76
#     kind: study
#     path: weight (N, K) -> words in the order of wgmma's registers
#     builds_on: hopper/decode_gemm
#     sources:
#       - {title: "PTX ISA, register fragments of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-register-fragment"}
# ---

# %% [markdown]
# # Packed weights: the order in which threads read them
#
# **Claim.** `wgmma` can take A from registers, and says which element each register holds. So a weight of 4 or 8 bits
# can be reordered once, before any launch. Each thread then reads its own elements, 16 bytes at a time, with no shuffle
# and no bank conflict.

# %% tags=["lab"]
import cutlass

import cookbook
from cookbook import draw
from cookbook.layouts import evaluate, tile_coords

packaged = cookbook.load("hopper/packed_weights")


def one_wgmma(dtype):
    return packaged.cute.make_tiled_mma(packaged.wgmma_of_registers(dtype, 8), (1, 1, 1))


coords = tile_coords(evaluate(one_wgmma, cutlass.BFloat16).a, (64, 16))  # (thread, value, (row, k))
thread = {(r, k): t for t, values in enumerate(coords.tolist()) for r, k in values}
place = {(r, k): v for values in coords.tolist() for v, (r, k) in enumerate(values)}
mark = [(r, k) for (r, k), t in thread.items() if t == 5]
numbers = [[place[r, k] for k in range(16)] for r in range(16)]
halves = [[k // 8 for k in range(16)]] * 16
draw.number_grid(numbers, "16 x 16 of A: which of its 8 values", halves, mark, "framed: thread 5's")

# %% [markdown]
# The figure is CuTe's answer for one warp. A cell is an element of the warp's 16 rows of A. Its number is its place
# among the 8 elements of its thread. Lane *l* has rows *l* // 4 and *l* // 4 + 8. In both it has column 2 (*l* mod 4)
# and the next one, and the same two plus 8, in the other colour.
#
# Two neighbours along K share a register: elements 0 and 1 are register 0. Registers 0 and 2 hold the upper row, 1 and
# 3 the lower one.
#
# **Why registers?** `wgmma` takes no operand of 4 bits, and none of 8 bits next to one of 16. So threads must first
# convert such a weight to bfloat16 or float16. They do that in registers, and A is the only operand that `wgmma` takes
# from registers. So the weight is A, as in [the decode GEMM](decode_gemm.ipynb) (swap A/B).
#
# The kernel is on [the next page](mixed_input_gemm.ipynb): its `matmul` takes what `pack` returns. Nothing here needs a
# GPU: a weight is packed with plain PyTorch, on whatever device it lies.

# %%
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from cookbook.recipe.entry import check_tensor, require

# %% [markdown]
# ## What a thread holds of A
#
# `wgmma` with A in registers takes 64 x 16 elements of A from 128 threads, 8 from each. `held` is the picture as a
# formula.


# %%
def wgmma_of_registers(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """wgmma m64nNk16 with A from registers and B from shared memory, K-major; float32 accumulators."""
    registers, k_major = warpgroup.OperandSource.RMEM, OperandMajorMode.K
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), registers, k_major, k_major)


def held(lane: int) -> list[tuple[int, int]]:
    """(row, k) of a lane's 8 elements of its warp's 16 x 16 of A, in the order of its registers, two in each."""
    row, k = lane // 4, 2 * (lane % 4)
    return [(row + 8 * half, k + 8 * part + e) for part in range(2) for half in range(2) for e in range(2)]


{f"lane {lane}": held(lane) for lane in (0, 5)}

# %% [markdown]
# ## The order
#
# A quantized weight stands for `scale * (element - zero point)`. A *group* is 128 elements along K: in it each row of
# the weight has one scale and one zero point. A *block* of the packed weight is 64 rows, what one warpgroup multiplies.
#
# A *step* is 16 elements along K: one `wgmma`. In a step a thread has 8 elements, and at 4 bits each they are one word.
# Register *i* is `(word >> 4 * i) & 0x000F000F`: two integers, 16 bits apart. Four words are one load of 16 bytes, and
# the threads' loads follow one another. At 8 bits a thread's 8 elements are two words.
#
# In `fields` *half* is the upper or the lower row, *part* the colour, and *e* (or `second`) which of two neighbours
# along K.


# %%
GROUP = 128  # elements along K that share a scale and a zero point
ROWS = 64  # rows of a block of the packed weight: those of one wgmma


def fields(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The weight (N, K), of whole numbers, as words (BLOCK, GROUP, WORD); the names are those above."""
    (n, k), w = x.shape, x.to(torch.int64) & (1 << bits) - 1
    w = w.reshape(n // ROWS, 4, 2, 8, k // GROUP, 8, 2, 4, 2)  # block, warp, half, row, group, step, part, column, e
    w = w.permute(0, 4, 5, 1, 3, 7, 6, 2, 8)  # block, group, step, warp, row, column, then part, half, e: 8 of a thread
    part, half, second = (torch.arange(2).reshape(shape).to(x.device) for shape in ((2, 1, 1), (2, 1), (2,)))
    shifts = bits * half + 16 * second + (2 * bits * part if bits == 4 else 0 * part)
    words = (w << shifts).sum((-2, -1))  # a word per part; at 4 bits both parts share one word
    words = words.sum(-1, keepdim=True) if bits == 4 else words
    blocks = n // ROWS, k // GROUP
    words = words.reshape(*blocks, 2 * bits // 4, 16 // bits, 128, bits // 4)  # ... chunk, step, thread, word
    words = words.transpose(3, 4).reshape(*blocks, -1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def by_blocks(x: torch.Tensor) -> torch.Tensor:
    """Scales or zero points (N, GROUPS) as (BLOCK, GROUP, 64): of a thread's two rows side by side."""
    n, groups = x.shape
    return x.reshape(n // ROWS, 4, 2, 8, groups).permute(0, 4, 1, 3, 2).reshape(n // ROWS, groups, ROWS).contiguous()


# %%
class Packed(NamedTuple):
    """A weight as `matmul` takes it."""

    weight: torch.Tensor  # (BLOCK, GROUP, bytes): uint8 of 4-bit elements, int8, or float8_e4m3fn
    scales: torch.Tensor  # (BLOCK, GROUP, 64)
    zeros: torch.Tensor | None  # (BLOCK, GROUP, 64) uint8


# %% [markdown]
# ## The same order as layouts
#
# A kernel meets the packed weight twice. In global memory TMA copies blocks as they lie, in lines of 256 words. In
# shared memory a thread reads a *chunk* of four words at a time; the cell below counts the wavefronts of a warp.
# `config` is that of the next page's kernel. There the weight is A, so `m` is the number of its rows.


# %%
LINE = 256  # words of a line of a block: as many as one box of TMA may have along a mode


def packed_layouts(m: cutlass.Int32, k: cutlass.Int32, config) -> tuple[cute.Layout, cute.Layout]:
    """The packed weight (WORD, LINE, BLOCK), and its scales or zero points (ROW of all GROUPs, BLOCK)."""
    blocks, groups = cute.ceil_div(m, ROWS), k // GROUP
    lines = groups * config.lines
    words = cute.assume(cutlass.Int64(lines) * LINE, divby=LINE)  # from one block to the next
    factors = cute.assume(cutlass.Int64(groups) * ROWS, divby=ROWS)
    of_words = cute.make_layout((LINE, lines, blocks), stride=(1, LINE, words))
    return of_words, cute.make_layout((ROWS * groups, blocks), stride=(1, factors))


def words_of_threads(config) -> cute.Layout:
    """Return what each thread loads, in words: ((WORD, THREAD), CHUNK, GROUP, WARPGROUP, STAGE), 16 bytes at a time."""
    c = config
    chunks = GROUP * c.bits // 256  # per group, of which a thread has 64 elements
    block = LINE * c.lines
    strides = ((1, 4), 4 * 128, block, block * c.groups, block * c.groups * c.warpgroups)
    return cute.make_layout(((4, 128), chunks, c.groups, c.warpgroups, c.stages), stride=strides)


# %% tags=["lab"]
from types import SimpleNamespace

import numpy as np

from cookbook import banks

one_block = SimpleNamespace(bits=4, lines=ROWS * GROUP * 4 // (32 * LINE), groups=1, warpgroups=1, stages=1)
placed = evaluate(words_of_threads, one_block)
for chunk in range(2):
    addresses = np.array([4 * placed((0, lane), chunk, 0, 0, 0) for lane in range(32)])
    found = banks.wavefronts(addresses, 16)
    print(f"chunk {chunk}: {found.actual} wavefronts, {found.ideal} at best")

# %% [markdown]
# ## `pack`: what a user calls, once
#
# A weight that cannot be packed is refused: sides that fill no blocks, values that need more bits, NaN.


# %% tags=["folded"]
def check_groups(name: str, x: torch.Tensor, weight: torch.Tensor, dtypes: tuple, one: bool) -> torch.Tensor:
    """Scales or zero points of a weight (N, K) as (N, K / 128); one: of a row there may be one for all of K."""
    n, groups = weight.shape[0], weight.shape[1] // 128
    check_tensor(name, x, dtypes)
    needed = f"({n}, {groups}): one for each row and each 128 along K" + (f", or ({n}, 1)" if one else "")
    require(x.shape == (n, groups) or (one and x.shape == (n, 1)), name, f"shape {tuple(x.shape)}", needed)
    require(x.device == weight.device, name, f"device {x.device}", f"{weight.device}, where the weight is")
    return x.expand(n, groups)


NARROW = (torch.uint8, torch.int8, torch.float8_e4m3fn)  # dtypes of packed weights; uint8 holds elements of 4 bits


def check_quantized(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
    """A weight (N, K) of 4-bit elements in uint8, of int8 or of e4m3, its scales and its zero points; the scales of all
    groups."""
    check_tensor("weight", weight, NARROW)
    n, k = weight.shape
    require(n % 64 == 0, "weight", f"N = {n}", "a multiple of 64: whole blocks")
    require(k % 128 == 0, "weight", f"K = {k}", "a multiple of 128: whole groups")
    four = weight.dtype == torch.uint8
    largest = int(weight.max()) if four else 0
    require(largest < 16, "weight", f"a value of {largest}", "0 to 15: elements of 4 bits")
    if weight.dtype == torch.float8_e4m3fn:
        require(int(weight.view(torch.uint8).bitwise_and(127).max()) < 127, "weight", "NaN", "numbers")
    if zeros is not None:
        require(four, "zeros", type(zeros).__name__, f"None: {weight.dtype} has no zero points")
        check_groups("zeros", zeros, weight, (torch.uint8,), False)
        require(int(zeros.max()) < 16, "zeros", f"a value of {int(zeros.max())}", "0 to 15")
    return check_groups("scales", scales, weight, (torch.bfloat16, torch.float16), True)


# %%
def pack(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None) -> Packed:
    """Reorder a quantized weight, once. It stands for `scales * (weight - zeros)`, of a group's scale and zero point.

    weight: (N, K). uint8 with values 0 to 15 is int4; int8, or float8_e4m3fn, which has no NaN here. N a multiple of
        64, K of 128.
    scales: (N, K / 128), or (N, 1) of a weight with one for each row; float16 or bfloat16, as `a` will be.
    zeros: (N, K / 128), uint8 with values 0 to 15, of int4. Without it
        the zero point of int4 is 8; other weights have none.

    Raises TypeError and ValueError as `matmul` does.
    """
    scales = check_quantized(weight, scales, zeros)
    words = fields(weight.view(torch.uint8), 4 if weight.dtype == torch.uint8 else 8).view(weight.dtype)
    return Packed(words, by_blocks(scales), None if zeros is None else by_blocks(zeros))


# %% [markdown]
# ## All of it, as facts
#
# `misplaced` unpacks a thread's words as the kernel does, and compares them with the elements that `held` names. The 16
# bytes of threads that read together lie side by side: a quarter of a warp reads 128 bytes, every bank once.


# %% tags=["folded"]
def misplaced(dtype: torch.dtype) -> int:
    """Elements of a block that a thread does not find in its register, by the words of `pack`."""
    bits = 4 if dtype == torch.uint8 else 8
    x = torch.arange(ROWS * GROUP).mul(37).remainder(1 << bits if dtype != torch.float8_e4m3fn else 127)
    x = x.reshape(ROWS, GROUP).to(torch.uint8)
    words = pack(x.view(dtype), torch.ones(ROWS, 1, dtype=torch.bfloat16)).weight.view(torch.int32)
    words, wrong = words.reshape(-1, 128, 4).tolist(), 0  # chunk, thread, word
    for thread in range(128):
        for step in range(GROUP // 16):
            for number, (row, k) in enumerate(held(thread % 32)):
                register, second = divmod(number, 2)
                word, shift = (step, 4 * register) if bits == 4 else (2 * step + register // 2, 8 * (register % 2))
                got = words[word // 4][thread][word % 4] >> (shift + 16 * second) & (1 << bits) - 1
                wrong += got != int(x[16 * (thread // 32) + row, 16 * step + k]) & (1 << bits) - 1
    return wrong


def misplaced_scales() -> int:
    """Pairs of scales that do not lie where the thread with these two rows looks."""
    rows = by_blocks(torch.arange(2 * ROWS).reshape(-1, 1)).reshape(2, ROWS // 2, 2).tolist()
    wrong = 0
    for block in range(2):
        for thread in range(128):
            upper, lower = (
                ROWS * block + 16 * (thread // 32) + row for row, _ in (held(thread % 32)[i] for i in (0, 2))
            )
            wrong += rows[block][thread // 32 * 8 + thread % 32 // 4] != [upper, lower]
    return wrong


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    wrong = {str(dtype).removeprefix("torch."): misplaced(dtype) for dtype in NARROW}
    everything = sorted(at for lane in range(32) for at in held(lane)) == [(r, k) for r in range(16) for k in range(16)]
    return [
        ("each_element_once", everything, "32 lanes hold the 16 x 16 of a warp, each element once"),
        ("words", not any(wrong.values()), f"elements of a block in another place: {wrong}"),
        ("scales", misplaced_scales() == 0, f"pairs of scales in another place: {misplaced_scales()}"),
    ]


# %% [markdown] tags=["lab"]
# ## Check
#
# The formula against CuTe's own layout, the picture above; then the facts.

# %% tags=["lab"]
from cookbook import lab

assert [[(16 * (t // 32) + r, k) for r, k in held(t % 32)] for t in range(128)] == [
    [tuple(at) for at in values] for values in coords.tolist()
]
lab.check_cells("hopper/packed_weights")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An operand that comes from registers may lie in memory in any order. The best one is that of its readers, and a weight
# is packed once and read often. Next: [the mixed-input GEMM](mixed_input_gemm.ipynb) makes floats of it.
