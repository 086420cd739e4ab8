# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Bank conflicts
#     claim: >-
#       Shared memory serves a warp in one wavefront unless two lanes want different words of one bank, and eight lines
#       of Python count the wavefronts.
#     kind: study
#     measures: wavefronts
#     track: foundations
#     order: 10
#     targets: [sm_80, sm_90a, sm_100a]
#     runs_on: sm_80+
#     path: global -> rows of shared memory -> columns of shared memory -> global
#     instructions: [STS, LDS, STG]
#     sources:
#       - title: "CUDA C++ Programming Guide, compute capabilities: shared memory and its banks"
#         url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities"
#       - title: "Nsight Compute, metrics: what a wavefront is"
#         url: "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#metrics-decoder"
#       - title: "CUTLASS issue 1882, why conflicts in this simple layout?"
#         url: https://github.com/NVIDIA/cutlass/issues/1882
#       - title: "Jonah, Swizzling: the crossbar, the cabinets and the Sudoku; it links the Hot Chips slides"
#         url: https://jonahsamost.bearblog.dev/swizzling/
# ---

# %% [markdown] tags=["lab"]
# # Bank conflicts
#
# **Claim.** Shared memory serves a whole warp in one [wavefront](../../docs/glossary.md#wavefront), a pass over its
# banks, unless two lanes want *different words of one bank*. You can count an access's wavefronts on paper, and so
# choose a layout.
#
# Below: the same column of the same 8 x 8 tile, read on a toy GPU of 8 banks. A cell says in which bank its element
# lies.

# %% tags=["lab"]
from cookbook import access, banks, draw

plain = [[8 * row + col for col in range(8)] for row in range(8)]  # word addresses
mixed = [[8 * row + (col ^ row) for col in range(8)] for row in range(8)]
DOWN = [(row, 0) for row in range(8)]
draw.before_after(plain, mixed, banks=8, mark=DOWN, title="Reading column 0: eight wavefronts, or one")

# %% [markdown]
# On the left the column lies in one bank, and the read takes 8 wavefronts. On the right the elements of each row have
# changed places, and it takes one. On a real GPU, with 32 banks and a tile of 32 x 32 floats, it is 32 against 1:
# Nsight Compute's own count is [below](#counted-by-a-profiler).
#
# Think of 32 filing cabinets. Each can be opened once at a time, and one folder taken out of it; copies of that folder
# go to everybody who wants it. Thirty-two clerks who want folders from 32 cabinets are served at once. If all of them
# want different folders from the *same* cabinet, it takes 32 rounds.
#
# ### Who needs to care?
#
# | you write | does the layout of shared memory matter to you? |
# |---|---|
# | `torch` code, or kernels without shared memory | no |
# | kernels whose lanes write and read neighbouring words | no: that order has no conflict |
# | a transpose, a reduction over columns, a stencil | yes: padding or a swizzle, your choice |
# | a GEMM with `ldmatrix` (Ampere, GeForce) | yes: a swizzle, your choice |
# | a GEMM with TMA, `wgmma` or `tcgen05` | yes: one of the modes that the hardware knows |
#
# You need Python and no GPU. The last part has a small kernel, for those who have one.

# %%
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## Thirty-two banks
#
# A *word* is 4 bytes. Words are distributed over the 32 banks like cards: the word at byte 0 goes to bank 0, the one at
# byte 4 to bank 1, the one at byte 124 to bank 31, and the one at byte 128 to bank 0 again.

# %%
BANKS = 32  # of every GPU in this book; the toy GPU further down has 8
WORD = 4  # bytes


def bank_of(byte: int, banks: int = BANKS) -> int:
    """The bank that holds the word at this byte address."""
    return byte // WORD % banks


{byte: bank_of(byte) for byte in (0, 4, 8, 124, 128, 132)}

# %% [markdown]
# A bank gives one word a wavefront, to every lane that asks for that word. So an access takes as many wavefronts as the
# busiest bank has *different* words to give. NVIDIA's profiler calls this unit of service a *wavefront*.


# %%
def wavefronts(addresses: list[int], banks: int = BANKS) -> int:
    """Return how many wavefronts the lanes' byte addresses take (4 bytes or less a lane)."""
    wanted = [set() for _ in range(banks)]
    for byte in addresses:
        wanted[bank_of(byte, banks)].add(byte // WORD)
    return max(len(words) for words in wanted)


LANES = range(32)
{
    "each lane the next word": wavefronts([4 * lane for lane in LANES]),
    "all lanes the same word": wavefronts([0 for lane in LANES]),
    "each lane the next row of 128 bytes": wavefronts([128 * lane for lane in LANES]),
}

# %% [markdown]
# The last one is the column of a matrix of 32 x 32 floats: its rows are 128 bytes long, and 128 bytes is exactly one
# round through the banks. The whole column lies in one bank.
#
# ## The crossbar
#
# Between lanes and banks stands a *crossbar*: a wire for each lane, a wire for each bank, and a switch wherever they
# cross. Here is the toy GPU, one wavefront after another. All lanes need the vertical wire of bank 0. (The picture
# moves; rest the pointer on it to stop it.)

# %% tags=["lab"]
draw.crossbar([8 * row for row in range(8)], banks=8, animated=True)

# %% [markdown] tags=["lab"]
# Two lanes that want the *same* word share a wire: lanes 2 and 3 here. Lanes 0 and 1 want different words of bank 0.

# %% tags=["lab"]
draw.crossbar([0, 8, 3, 3, 4, 5, 6, 7], banks=8)

# %% [markdown]
# ### Why not a memory that can do everything at once?
#
# 32 x 32 is 1024 crosspoints, and it stays 1024 whether 16 KiB lie behind the banks or 228. A memory with 32 ports
# needs 32 word lines and 32 bit lines through *every cell*: their crossings grow with the square of the ports, and are
# paid once for each bit stored. So wires grow with the ports, and banks keep the ports out of the memory. The price: a
# bank answers one question at a time.
#
# Crossbars have a *swizzle switch* too ([a Michigan project](https://blaauw.engin.umich.edu/research/swift-swizzle-interconnect-fabric-topology/);
# Jonah's article links its Hot Chips slides). Its crosspoints also decide who comes first. That swizzle is a way to lay
# wires. It moves no data, and is not the XOR of this book.


# %%
def crosspoints(lanes: int, banks: int) -> int:
    """Switches of a crossbar, whatever the capacity behind it."""
    return lanes * banks


def crossings(bits: int, ports: int) -> int:
    """Word lines crossing bit lines in a memory of `bits` cells with `ports` ports."""
    return bits * ports**2


[f"{kib} KiB: crossbar {crosspoints(32, 32)}, 32-port memory {crossings(8192 * kib, 32):,}" for kib in (16, 228)]

# %% [markdown]
# DRAM has the same trouble one floor below. A DRAM bank keeps one *row* open. Words of that row come quickly; a word of
# another row waits until one row is closed and the other opened.
#
# ## A smaller matrix, in bytes
#
# Take 8 x 8 floats. A row is 32 bytes, so rows start at bytes 0, 32, ... 224. On 32 banks four rows make a round, and a
# column costs 2 wavefronts. On the toy GPU, with 8 threads and 8 banks, one row is a round, and a column costs 8. An
# article that says "8-way" of such a tile means the toy GPU.


# %%
def tile_byte(row: int, col: int) -> int:
    """Byte address of an element of an 8 x 8 tile of 4-byte elements, rows one after the other."""
    return 32 * row + 4 * col


column = [tile_byte(row, 0) for row in range(8)]
{"wavefronts on 32 banks": wavefronts(column), "wavefronts on 8 banks": wavefronts(column, banks=8)}

# %% [markdown] tags=["lab"]
# The tile by byte address, in base 16: a row further down is 20 more, a column further right 4. The colour is the bank
# of the toy GPU, and the framed cells are column 0.

# %% tags=["lab"]
draw.layout_grid(plain, banks=8, label="hex", mark=DOWN)

# %%
[f"row {row} starts at {byte:3} = {byte:#04x} = {byte:08b}" for row, byte in enumerate(column)]

# %% [markdown]
# Read the binary from the right. Bits 0 and 1 are the byte inside a word: here they never change. Bits 2 to 4 are the
# column, bits 5 to 7 the row. On 8 banks *the column bits are the bank*. Down a column they stand still, and that is
# the whole problem.
#
# ## Mixing the row into the bank
#
# If the row's bits also had a say in the bank, a column would spread. Which operation can mix them? Within a row, no
# two columns may land in the same place: it has to be a *bijection*. Four candidates, on 8 columns:

# %%
MIX = {
    "xor": lambda col, row: col ^ row,
    "add": lambda col, row: (col + row) % 8,
    "and": lambda col, row: col & row,
    "or": lambda col, row: col | row,
}
UNMIX = {"xor": MIX["xor"], "add": lambda col, row: (col - row) % 8}  # the inverse of each, where there is one


def is_bijection(mix) -> bool:
    """Return whether every row keeps its eight columns apart."""
    return all(len({mix(col, row) for col in range(8)}) == 8 for row in range(8))


def column_wavefronts(mix) -> list[int]:
    """Wavefronts of each column on the toy GPU, element (row, col) being stored at (row, mix(col, row))."""
    return [wavefronts([tile_byte(row, mix(col, row)) for row in range(8)], banks=8) for col in range(8)]


[
    f"{name}: bijection {is_bijection(mix)}, wavefronts of the columns {column_wavefronts(mix)}"
    for name, mix in MIX.items()
]

# %%
[
    f"01 & 10 = {0b01 & 0b10:02b}, 01 & 00 = {0b01 & 0b00:02b}",
    f"01 | 10 = {0b01 | 0b10:02b}, 01 | 11 = {0b01 | 0b11:02b}",
]

# %% [markdown]
# AND and OR lose information. In row 01, AND puts columns 00 and 10 in one place; OR puts columns 10 and 11 in one
# place. (So some of their columns look cheap: elements that met in one place are one word.) ADD modulo 8 works and is
# undone by SUB. XOR works and undoes itself. It needs no carry, one gate a bit, and it flips some bits of the address
# by others. That is why everybody uses XOR.
#
# ## The swizzle of this tile
#
# On *byte* addresses: take bits 5 to 7 (the row), shift them down by 3, and XOR them onto bits 2 to 4 (the column).
# Libraries write this `Swizzle<3,2,3>`: 3 bits, onto bit 2 and up, from 3 higher.

# %% tags=["lab"]
from cookbook.swizzle import Swizzle

draw.swizzle_bits(Swizzle(3, 2, 3), fields={"byte": 2, "column": 3, "row": 3})


# %%
def swizzled(byte: int) -> int:
    """S<3,2,3> on byte addresses: bits 2-4 are XORed with bits 5-7."""
    return byte ^ ((byte & 0b11100000) >> 3)


def bank_rows(place) -> list[str]:
    """The bank of each element on the toy GPU, one string of digits a row."""
    return ["".join(str(bank_of(place(tile_byte(row, col)), 8)) for col in range(8)) for row in range(8)]


list(zip(bank_rows(lambda byte: byte), bank_rows(swizzled), strict=True))

# %% [markdown]
# On the right stands a small Sudoku: every bank once in each row *and* once in each column. Storing a row takes one
# wavefront, as before. Reading a column takes one, down from eight: no two lanes share a vertical wire.
#
# The picture of the Sudoku is [Jonah's](https://jonahsamost.bearblog.dev/swizzling/). Fill a 9 x 9 board so that its
# first column holds nothing but 1s, its second nothing but 2s. Someone who collects the 1s goes to the first column
# nine times. In a solved Sudoku each 1 stands in another column: one trip to all columns at once. But now you must know
# where each 1 is. XOR is a solved board whose rule is one operation. Counted, for all nine digits:

# %% tags=["lab"]
unsolved = [list(range(9)) for row in range(9)]
solved = [[(3 * row + row // 3 + col) % 9 for col in range(9)] for row in range(9)]


def trips(board: list[list[int]]) -> list[int]:
    """For each digit: how often it stands in the column that has it most often."""
    return [max(sum(row[col] == digit for row in board) for col in range(9)) for digit in range(9)]


{"a digit in each column": trips(unsolved), "a solved Sudoku": trips(solved)}

# %% [markdown] tags=["lab"]
# The eight lanes of the column; no two share a vertical wire:

# %% tags=["lab"]
draw.crossbar([swizzled(byte) // WORD for byte in column], banks=8)

# %% [markdown]
# ## The other way out: padding
#
# Or let each row start one word later. A 32 x 32 tile stored with a *pitch* of 33 words: column 0 lies at words 0, 33,
# 66, 99, ... 1023, in banks 0, 1, 2, 3, ... 31.


# %%
def pitched_column(col: int, pitch: int, size: int, rows: int = 32) -> list[int]:
    """Byte addresses of a column: `pitch` elements from row to row, elements of `size` bytes."""
    return [(row * pitch + col) * size for row in range(rows)]


padded = pitched_column(0, 33, 4)
{
    "words": " ".join(str(byte // WORD) for byte in padded),
    "banks": " ".join(str(bank_of(byte)) for byte in padded),
    "wavefronts": wavefronts(padded),
}

# %% [markdown] tags=["lab"]
# Drawn on the 32 banks: with a pitch of 32 words one bank does all the work (each row of the picture is a wavefront);
# with 33 every bank gives one word.

# %% tags=["lab"]
draw.access_view(access.ldst(pitched_column(0, 32, 4), 4), title="A column of 32 x 32 fp32, pitch 32")

# %% tags=["lab"]
draw.access_view(access.ldst(padded, 4), title="A column of 32 x 32 fp32, pitch 33")

# %% [markdown] tags=["lab"]
# Try a tile of your own. This one is 32 x 32 fp32 with a padding of one word, and 32 lanes load one column (`ld32`, 32
# rows by 1). Set the padding to 0, and say first how many wavefronts you will see. Then take 16 bits, a padding of 1
# and `ld16@32x1`: column 0 is free of conflicts, and column 1 (first row,column `0,1`) is not. The trap below says why.
# (No script here? The command counts the same.)
#
# <bank-view rows="32" columns="32" bits="32" padding="1" access="ld32@32x1">
# `cookbook banks --tile 32x32 --bits 32 --pitch 33 --access ld32@32x1`
# </bank-view>

# %% [markdown]
# ### Trap: "any pitch that has no factor in common with 32"
#
# True for 4-byte elements read one by one, and only for them. Take bfloat16, 2 bytes, 32 columns. A pitch of 33
# elements is 66 bytes: sixteen and a half words.

# %%
{
    f"pitch {pitch}, wavefronts of columns 0 to 31": " ".join(
        str(wavefronts(pitched_column(c, pitch, 2))) for c in range(32)
    )
    for pitch in (32, 33, 34, 36)
}

# %% [markdown] tags=["lab"]
# Column 1 of bfloat16 with a pitch of 33 elements, drawn. Rows start half a word apart, and banks meet.

# %% tags=["lab"]
draw.access_view(access.ldst(pitched_column(1, 33, 2), 2), title="Column 1 of bfloat16, pitch 33: every second column")

# %% [markdown]
# With 33 every second column still takes two wavefronts. And every second row starts in the middle of a word: its
# elements cannot be written in pairs from the first on. What has to be odd is the pitch in *words*: 34 elements are 17.
#
# And wider accesses want more. `ldmatrix` reads rows of 16 bytes, eight at a time, and each must be aligned to 16
# bytes: the pitch has to be an *odd multiple of 16 bytes*. For rows of 64 bfloat16:


# %%
def matrix_wavefronts(pitch_bytes: int) -> int | None:
    """Wavefronts for eight rows of 16 bytes, `pitch_bytes` apart; None where rows are not 16-byte aligned."""
    if pitch_bytes % 16:
        return None
    return wavefronts([row * pitch_bytes + byte for row in range(8) for byte in range(0, 16, WORD)])


{
    f"pitch {pitch} = {2 * pitch / 16:g} x 16 bytes": matrix_wavefronts(2 * pitch) or "not aligned"
    for pitch in (64, 65, 66, 72, 80)
}

# %% [markdown]
# ### What each way costs
#
# | | padding | swizzle |
# |---|---|---|
# | bytes | a word a row and more | none |
# | per address | nothing: the pitch is a constant | an AND, a shift and an XOR, often folded into constants |
# | alignment | rows start off the 128-byte lines | the base must be aligned to the swizzle's period |
# | TMA | cannot write it: its boxes are dense | writes the ones it knows itself |
# | shapes | any number of columns | columns in multiples of a power of two |
#
# How many bytes, for the three tiles above:


# %%
def padding_cost(rows: int, cols: int, pitch: int, size: int) -> tuple[int, float]:
    """Extra bytes, and that as a part of the unpadded tile."""
    extra = rows * (pitch - cols) * size
    return extra, extra / (rows * cols * size)


{
    f"{rows} x {cols} elements of {size} bytes, pitch {pitch}": "{} bytes more, {:.1%}".format(
        *padding_cost(rows, cols, pitch, size)
    )
    for rows, cols, pitch, size in ((32, 32, 33, 4), (32, 32, 34, 2), (64, 64, 72, 2))
}

# %% [markdown]
# ## The kernel
#
# One warp transposes one 32 x 32 tile: it stores rows, waits, and loads columns. The pitch is a constant of the kernel:
# 32 is the trap, 33 the way out. The loops are not unrolled. With pitch 32 the compiler would join four loads of a lane
# into one wide one, which is a different access. So the machine code has one store and one load to count.
#
# `allocate_tensor` takes shared memory for a tensor, as `__shared__` does in CUDA: its dtype, its layout, and the bytes
# that it is aligned to. (`cookbook.recipe.moved` finds `SmemAllocator` in every version of CuTe DSL.)


# %%
@dataclass(frozen=True)
class Config:
    """The configuration of a launch."""

    threads: int = 32
    smem_bytes: int = 4 * 32 * 33  # of the larger of the two tiles


CONFIG = Config()
DTYPE = cutlass.Float32
KERNELS = {"pitch 32": 32, "pitch 33": 33}


def smem_layout(pitch: int) -> cute.Layout:
    """32 x 32 elements, `pitch` from row to row. Inside a jit function only."""
    return cute.make_layout((32, 32), stride=(pitch, 1))


@cute.kernel
def transpose_kernel(mX: cute.Tensor, mY: cute.Tensor, pitch: cutlass.Constexpr):
    """Y = X transposed, both (32, 32) fp32 with adjacent columns; one warp."""
    lane, _, _ = cute.arch.thread_idx()
    tile = SmemAllocator().allocate_tensor(DTYPE, smem_layout(pitch), 128)
    for row in cutlass.range(32, unroll=1):
        tile[row, lane] = mX[row, lane]
    cute.arch.sync_threads()
    for row in cutlass.range(32, unroll=1):
        mY[row, lane] = tile[lane, row]


@cute.jit
def launch(pX: cute.Pointer, pY: cute.Pointer, pitches: cutlass.Constexpr):
    """The kernel once for each pitch."""
    mX, mY = (cute.make_tensor(p, cute.make_layout((32, 32), stride=(32, 1))) for p in (pX, pY))
    for pitch in cutlass.const_expr(pitches):
        transpose_kernel(mX, mY, pitch).launch(grid=(1, 1, 1), block=(CONFIG.threads, 1, 1))


def pointers(*addresses: int) -> list:
    """Typed pointers to 16-byte aligned fp32 in global memory."""
    gmem = cute.AddressSpace.gmem
    return [cute.runtime.make_ptr(DTYPE, a, gmem, assumed_align=16) for a in addresses]


def compile_for(arch: str, options: str = ""):
    """Compile for `arch` ("sm_90a"), both pitches, with dummy pointers: no GPU is needed."""
    return cute.compile(
        launch, *pointers(16, 16), tuple(KERNELS.values()), options=f"--gpu-arch {arch} {options}".strip()
    )


def transpose(x: torch.Tensor, pitch: int = 33) -> torch.Tensor:
    """The transpose of a contiguous (32, 32) float32 tensor on a GPU; `pitch`, 32 or more, is that of shared memory.

    Raises:
        ValueError: names the argument, what it got and what it needs.
    """
    if x.shape != (32, 32) or x.dtype != torch.float32 or not x.is_contiguous() or not x.is_cuda:
        got = f"{tuple(x.shape)} {x.dtype} on {x.device}"
        raise ValueError(f"x: got {got}; needed a contiguous (32, 32) torch.float32 on a CUDA device")
    if pitch not in KERNELS.values():
        raise ValueError(f"pitch: got {pitch}; needed 32 (conflicts) or 33 (none)")
    y = torch.empty_like(x)
    arguments = pointers(x.data_ptr(), y.data_ptr())
    torch.cuda.synchronize()  # the kernel runs on the default stream
    cute.compile(launch, *arguments, (pitch,))(*arguments)
    torch.cuda.synchronize()
    return y


# %% [markdown]
# ## Counted by a profiler
#
# At step *i* of the first loop the lanes store row *i*; at step *i* of the second they load column *i*. `smem_layout`
# says where an element lies. No more is needed to predict how many wavefronts each instruction of each kernel takes:


# %%
class Move(NamedTuple):
    """The warp's accesses to the tile in shared memory, one a step."""

    width: int  # elements a lane, side by side
    steps: int
    place: Callable[[Any, Any], tuple[Any, Any]]  # (lane, step) -> (row, column) of the lane's first element


MOVES = {
    "r2s": Move(1, 32, lambda lane, step: (step, lane)),  # STS: from registers to shared memory, by rows
    "s2g": Move(1, 32, lambda lane, step: (lane, step)),  # LDS: from there towards global memory, by columns
}


def try_out(pitch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch on a GPU, on normal numbers: what it gave, and what it should have."""
    x = torch.randn(32, 32, device="cuda")
    return transpose(x, pitch), x.T


# %% [markdown] tags=["lab"]
# Nsight Compute counts the wavefronts of every instruction of a kernel that runs. `cookbook check
# foundations/bank_conflicts --tools --record` has it look at both kernels, and holds each instruction against
# `cookbook.banks`:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import counted_table

Markdown(counted_table("foundations/bank_conflicts"))

# %% [markdown]
# ## Check
#
# `cookbook check foundations/bank_conflicts` computes each claim of this page, by these lines:


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    row, same, down = ([step * lane for lane in LANES] for step in (4, 0, 128))
    two_in_one = wavefronts([0, 128] + [4 * lane for lane in range(2, 32)])
    found = [wavefronts(row), wavefronts(same), wavefronts(down), two_in_one, crosspoints(32, 32)]
    wide, small = wavefronts(down), (wavefronts(column), wavefronts(column, banks=8))
    starts = [tile_byte(r, 0) for r in range(8)]
    bits = {(tile_byte(r, c) >> 2 & 7, tile_byte(r, c) >> 5, tile_byte(r, c) & 3) for r in range(8) for c in range(8)}
    mixed = {name: (is_bijection(mix), set(column_wavefronts(mix)) == {1}) for name, mix in MIX.items()}
    undone = all(UNMIX[n](MIX[n](c, r), r) == c for n in UNMIX for r in range(8) for c in range(8))
    sudoku = bank_rows(swizzled)
    words, banks = [byte // WORD for byte in padded], [bank_of(byte) for byte in padded]
    bf16 = [max(wavefronts(pitched_column(col, pitch, 2)) for col in range(32)) for pitch in (32, 33, 34)]
    matrix = [matrix_wavefronts(2 * pitch) for pitch in (64, 66, 72, 80)]
    return [
        ("one_word_a_bank_each", found == [1, 1, 32, 2, 1024], f"row, same word, column, two in one: {found}"),
        ("columns", (wide, *small) == (32, 2, 8), f"32x32: {wide}; 8x8: {small[0]}, and {small[1]} on 8 banks"),
        (
            "bits_of_an_address",
            starts == list(range(0, 256, 32)) and bits == {(c, r, 0) for c in range(8) for r in range(8)},
            f"rows start at {[f'{byte:#04x}' for byte in starts]}; bits 2-4 column, 5-7 row, 0-1 still",
        ),
        (
            "bijections",
            undone and mixed == {n: (n in UNMIX,) * 2 for n in MIX} and 1 & 2 == 1 & 0 and 1 | 2 == 1 | 3,
            f"bijection, every column free: {mixed}",
        ),
        (
            "swizzle_3_2_3_on_bytes",
            " ".join(sudoku) == "01234567 10325476 23016745 32107654 45670123 54761032 67452301 76543210",
            " / ".join(sudoku),
        ),
        (
            "padding",
            words == list(range(0, 1024, 33)) and banks == list(range(32)) and bf16 == [16, 2, 1]
            and matrix == [8, None, 1, 2],
            f"words {words[:4]}..{words[-1]}; bf16 pitch 32, 33, 34: {bf16}; 16-byte rows 64, 66, 72, 80: {matrix}",
        ),
    ]  # fmt: skip


# %% [markdown] tags=["lab"]
# Then `wavefronts` against `cookbook.banks`, the tile's addresses against CuTe's own layouts, and the cells above: edit
# one, run it, and check again.

# %% tags=["lab"]
import numpy as np

from cookbook.layouts import evaluate


def cute_columns(pitches=(32, 33)):
    return [[smem_layout(pitch)((row, 0)) for row in range(32)] for pitch in pitches]


for pitch, words in zip((32, 33), evaluate(cute_columns), strict=True):
    ours = pitched_column(0, pitch, 4)
    assert [4 * word for word in words] == ours
    print(f"pitch {pitch}: wavefronts {wavefronts(ours)}, cookbook.banks {banks.wavefronts(np.array(ours), 4).actual}")

generator = np.random.default_rng(0)
asked = 4 * generator.integers(0, 256, (1000, 32))
same = sum(wavefronts(lanes.tolist()) == banks.wavefronts(lanes, 4).actual for lanes in asked)
print(f"1000 random accesses: {same} counted alike")

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("foundations/bank_conflicts")

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/bank_conflicts my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** Choose the pitch of a tile that is read by columns.


# %%
def smallest_pitch(row_bytes, piece):
    """Exercise 1, finish it: the smallest pitch in bytes for rows of `row_bytes` bytes, read in columns of pieces.
    Rows start at multiples of `piece` bytes, and a column takes one wavefront: 32 pieces of 4 bytes, or 8 of 16."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Every row starts at a multiple of `piece` bytes. So count the pitch in pieces, not in bytes.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# One round of the banks is 128 bytes: 32 pieces of 4 bytes, or 8 of 16. With a pitch of n pieces, row r starts at place
# r n of the round, modulo 32 or 8. For which n are these places all different?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Where n is odd: 32 and 8 are powers of two. So take the pieces of a row, rounded up, and one more if they are even.
#
# ```python
# def smallest_pitch(row_bytes, piece):
#     pieces = -(-row_bytes // piece)
#     return piece * (pieces | 1)
# ```
#
# </details>
#
# **Find the bug.** This function counts every access to floats right. Of a row of bfloat16 it says that it takes two
# wavefronts.


# %%
def count_wavefronts(addresses, banks=BANKS):
    """Exercise 2, find the bug: the wavefronts of the lanes' byte addresses, 4 bytes or less a lane."""
    wanted = [set() for _ in range(banks)]
    for byte in addresses:
        wanted[byte // WORD % banks].add(byte)
    return max(len(asked) for asked in wanted)


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Lanes 0 and 1 of that row ask for bytes 0 and 2. How many banks do they ask, and for how many words?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A bank gives one *word* a wavefront, to every lane that asks for a part of it. What does each set hold?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# The sets hold bytes. Two halves of one word count as two.
#
# ```python
# def count_wavefronts(addresses, banks=BANKS):
#     wanted = [set() for _ in range(banks)]
#     for byte in addresses:
#         wanted[byte // WORD % banks].add(byte // WORD)
#     return max(len(asked) for asked in wanted)
# ```
#
# </details>


# %% tags=["folded"]
def check_pitch(answer):
    """The smallest pitch, found by trying them all."""
    for row_bytes, piece in ((128, 4), (132, 4), (70, 4), (8, 4), (128, 16), (144, 16), (20, 16), (200, 16)):

        def free(pitch, piece=piece):
            column = [row * pitch + byte for row in range(128 // piece) for byte in range(0, piece, WORD)]
            return pitch % piece == 0 and wavefronts(column) == 1

        needed = next(filter(free, range(row_bytes, 2 * row_bytes + 2 * piece)))
        yield f"rows of {row_bytes} bytes, pieces of {piece}", answer(row_bytes, piece), needed


EXERCISES = {
    "smallest_pitch": check_pitch,
    "count_wavefronts": lambda f: (
        (what, f(addresses), wavefronts(addresses))
        for what, addresses in {
            "a row of float": [4 * lane for lane in LANES],
            "a row of bfloat16": [2 * lane for lane in LANES],
            "a row of int8": [*LANES],
            "one word for all lanes": [0 for _ in LANES],
            "a column of float, pitch 32": pitched_column(0, 32, 4),
            "a column of float, pitch 33": pitched_column(0, 33, 4),
            "column 1 of bfloat16, pitch 33": pitched_column(1, 33, 2),
            "words 0 and 32, each by half of the lanes": [128 * (lane % 2) for lane in LANES],
        }.items()
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/bank_conflicts")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An access costs as many wavefronts as its busiest bank has different words to give. A column of a tile whose rows are
# a whole round of the banks is the worst case. Padding and XOR both fix it. XOR costs no bytes, keeps rows aligned, and
# is what TMA and the tensor cores speak.
#
# Next: [foundations/xor_swizzle](xor_swizzle.ipynb) builds that XOR from a 2 x 2 tile up, says when it stays inside the
# tile, and transposes a matrix with it.
