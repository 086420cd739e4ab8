# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Matrix descriptors of wgmma and tcgen05
#     claim: >-
#       A 64-bit matrix descriptor holds a start, two distances and a swizzle mode, and all four can be computed from
#       the layout.
#     track: foundations
#     order: 70
#     kind: study
#     path: layout -> matrix descriptor -> tensor core
#     sources:
#       - title: "PTX ISA, wgmma: matrix descriptor format"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout-matrix-descriptor"
#       - title: "PTX ISA, tcgen05: shared memory descriptor"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-shared-memory-descriptor"
#       - title: "CUTLASS issue 1396, atoms and the figures of the PTX ISA"
#         url: https://github.com/NVIDIA/cutlass/issues/1396
# ---

# %% [markdown]
# # Matrix descriptors of wgmma and tcgen05
#
# **Claim.** Hopper's `wgmma` and Blackwell's `tcgen05.mma` take their operands straight from shared memory. No thread
# computes an address; the instruction gets *64 bits* that describe a whole matrix: a start, two distances and a swizzle
# mode. You can read all four off the layout by asking it for the places of a few elements, and once you have done that
# by hand you know what may go wrong.
#
# One descriptor, of a block that is 16 wide in K, in a tile of 128 x 64 bfloat16:

# %% tags=["lab"]
from cookbook import draw

FIELDS = [
    draw.Field("start / 16", 0, 14, 130),
    draw.Field("leading / 16", 16, 14, 1),
    draw.Field("stride / 16", 32, 14, 64),
    draw.Field("base offset", 49, 3, 0),
]
draw.bit_fields([*FIELDS, draw.Field("mode: 128 bytes", 62, 2, 1)], title="Hopper: the matrix descriptor of wgmma")

# %% [markdown]
# (*Base offset* is for a tile whose pattern does not start at a multiple of its size. Keep the tile aligned, 1024 bytes
# for the 128-byte mode, and it is 0.) Exchange two of the fields, and nothing complains: up to 960 of 1024 chunks are
# read from a wrong place, as counted [below](#reading-it-off-the-layout).
#
# Needed before: [the eight atoms](mma_smem_atoms.ipynb). Nothing here needs a GPU.

# %%
from functools import cache
from typing import NamedTuple

import cutlass.cute as cute

# %% [markdown]
# ## One descriptor, by hand
#
# Tile A is 128 rows (M) by 64 bf16 (K): rows of 128 bytes, so its atom is SW128, eight rows of 128 bytes. Sixteen atoms
# stand one below the other, and say the tile starts at byte 2048.
#
# One instruction multiplies a block that is 16 wide in K. What must it be told to find the block at k = 16?
#
# * **Start.** Row 0, k = 16 is 32 bytes into the first row: 2048 + 32 = 2080. Not swizzled! The tensor core computes
#   plain addresses and swizzles each one itself.
# * **Stride.** Rows 0 to 7 are in one atom, and the mode says how. Row 8 is in the next atom, 8 x 128 = 1024 bytes on.
# * **Leading.** The block has two chunks of 8 elements in each row. Within a swizzled row the second follows the first,
#   so there is nothing to say. (The field is then not read; by convention it is 1.)
# * **Swizzle.** The 128-byte mode.
#
# Addresses and distances are multiples of 16 bytes below 2^18, so each is stored divided by 16, in 14 bits: 130, 64
# and 1. That is the whole descriptor.


# %%
class Descriptor(NamedTuple):
    """Where an operand lies: all in bytes."""

    start: int
    leading: int  # "leading dimension byte offset"
    stride: int  # "stride dimension byte offset"
    bits: int  # of the swizzle S<bits,4,3>: 0, 1, 2, 3 for rows of 16, 32, 64, 128 bytes


HOPPER_MODE = {0: 0, 3: 1, 2: 2, 1: 3}  # in bits 62 and 63


def hopper(d: Descriptor) -> int:
    """The 64 bits for wgmma."""
    return d.start // 16 | d.leading // 16 << 16 | d.stride // 16 << 32 | HOPPER_MODE[d.bits] << 62


by_hand = Descriptor(start=2080, leading=16, stride=1024, bits=3)
hex(hopper(by_hand))

# %% [markdown]
# Blackwell moved little. The mode has three bits, 61 to 63, but Hopper's two are the upper two of them: the new lowest
# bit, set alone, means the 128-byte mode that keeps 32 bytes together. Bits 46 to 48 hold the constant 1.
#
# **The trap:** hand Hopper's word to `tcgen05` and the fields agree, but that constant is 0.

# %%
BLACKWELL_MODE = {0: 0, 3: 2, 2: 4, 1: 6}  # in bits 61 to 63


def blackwell(d: Descriptor) -> int:
    """The 64 bits for tcgen05.mma, with distances relative to the start."""
    fields = d.start // 16 | d.leading // 16 << 16 | d.stride // 16 << 32
    return fields | 0b001 << 46 | BLACKWELL_MODE[d.bits] << 61


hex(blackwell(by_hand)), [bit for bit in range(64) if (hopper(by_hand) ^ blackwell(by_hand)) >> bit & 1]

# %% tags=["lab"]
BLACKWELL_FIELDS = [
    draw.Field("constant", 46, 3, 1),
    draw.Field("leading is absolute", 52, 1, 0),
    draw.Field("mode: 128 bytes", 61, 3, 2),
]
draw.bit_fields([*FIELDS, *BLACKWELL_FIELDS], title="Blackwell: the matrix descriptor of tcgen05")

# %% [markdown]
# ## What the tensor core does with it
#
# A block is read in chunks of 16 bytes. For an operand stored along K, chunk c (8 elements of K) of row r is at
#
#     start + (r mod 8) * row + (r / 8) * stride + c * (16, or leading if there is no swizzle)
#
# where a *row* is 16, 32, 64 or 128 bytes, by the mode; then the swizzle of that address. For one stored along M or N
# the chunk holds 8 elements of M instead, and the distances change their meaning:
#
# | stored along | mode | stride: from ... to the next | leading: from ... to the next |
# |---|---|---|---|
# | K | none | 8 rows of M | 8 elements of K |
# | K | 32, 64, 128 B | 8 rows of M | not read |
# | M or N | none | 8 elements of M | 8 rows of K |
# | M or N | 32, 64, 128 B | 8 rows of K | row of the mode (16, 32, 64 elements of M) |
#
# In the last two lines stride and leading have changed places, and that is the trap of this page.


# %%
def swizzle(address: int, bits: int) -> int:
    """S<bits,4,3> on a byte address."""
    return address ^ (address >> 3 & ((1 << bits) - 1) << 4)


def chunk_along_k(d: Descriptor, row: int, chunk: int) -> int:
    """The byte address that the tensor core reads for 8 elements of K, from 8 `chunk` on, of a row of M."""
    plain = d.start + row % 8 * (16 << d.bits) + row // 8 * d.stride
    return swizzle(plain + chunk * (16 if d.bits else d.leading), d.bits)


def chunk_along_m(d: Descriptor, k: int, chunk: int) -> int:
    """The byte address that the tensor core reads for 8 elements of M, from 8 `chunk` on, of a row of K."""
    block, inside = divmod(chunk, 1 << d.bits)
    per_block, per_8_k = (d.leading, d.stride) if d.bits else (d.stride, d.leading)
    return swizzle(d.start + k % 8 * (16 << d.bits) + k // 8 * per_8_k + block * per_block + 16 * inside, d.bits)


[chunk_along_k(by_hand, row, 0) for row in (0, 1, 7, 8)]

# %% [markdown]
# ## Reading it off the layout
#
# The layout knows all this. The mode is its swizzle. Each distance is the offset of one element: (8, 0) for the next
# eight rows, (0, 8) for the next eight of K, (w, 0) for the next row of the mode along M. Nothing else is needed, and
# it is what CuTe does when it makes descriptors from a layout.


# %%
def atom(major: str, bits: int) -> cute.ComposedLayout:
    """(M, K) of bf16: eight rows of 16 << bits bytes, stored along K ("K") or along M ("MN")."""
    width = 8 << bits
    shape, stride = ((8, width), (width, 1)) if major == "K" else ((width, 8), (1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, cute.make_layout(shape, stride=stride))


def tile(major: str, bits: int, order: tuple[int, int]) -> cute.Layout:
    """(128, 64) of bf16 made of such atoms, without the swizzle: order (0, 1) down M first, (1, 0) along K first."""
    return cute.tile_to_shape(atom(major, bits), (128, 64), order=order).outer


@cache
def shape_and_stride(major: str, bits: int, order: tuple[int, int]) -> tuple:
    """The tile's layout as CuTe makes it, in plain integers. No kernel is built, no GPU is used."""
    answers = []

    @cute.jit
    def host():
        layout = tile(major, bits, order)
        answers.append((layout.shape, layout.stride))

    cute.compile(host, options="--gpu-arch sm_90a")
    return answers[0]


def offset(layout: tuple, coordinate: tuple[int, int]) -> int:
    """The place of (m, k) in elements: each coordinate split by its shape, first part fastest, times the strides."""
    total = 0
    for rest, extents, steps in zip(coordinate, *layout, strict=True):
        for extent, step in zip(extents, steps, strict=True):
            rest, part = divmod(rest, extent)
            total += part * step
    return total


def derive(layout: tuple, major: str, bits: int, k: int, base: int) -> Descriptor:
    """The descriptor of the 128 x 16 block at `k` of a tile at byte `base`: three or four offsets, in bytes."""
    along_m, along_k = 2 * offset(layout, (8, 0)), 2 * offset(layout, (0, 8))
    start = base + 2 * offset(layout, (0, k))
    if major == "K":
        return Descriptor(start, along_k if bits == 0 else 16, along_m, bits)
    if bits == 0:
        return Descriptor(start, along_k, along_m, bits)
    return Descriptor(start, 2 * offset(layout, (8 << bits, 0)), along_k, bits)


def blocks(major: str, bits: int, order: tuple[int, int], base: int = 2048) -> list[Descriptor]:
    """The descriptors of the four blocks of K that a 128 x 64 tile is multiplied in."""
    layout = shape_and_stride(major, bits, order)
    return [derive(layout, major, bits, k, base) for k in range(0, 64, 16)]


shape_and_stride("K", 3, (0, 1))

# %%
blocks("K", 3, (0, 1))

# %% [markdown]
# The second is ours. From one block to the next only the start moves: by 32 bytes inside a row of 128 bytes.
#
# With narrower atoms it moves to another atom, and here the *order* of the atoms shows. SW32, down M first (as TMA
# boxes come) and along K first:

# %%
blocks("K", 1, (0, 1))

# %%
blocks("K", 1, (1, 0))

# %% [markdown]
# Any order will do, if the descriptor says so. Without a swizzle both distances count, and along M:

# %%
{"K, none": blocks("K", 0, (0, 1))[0], "M, none": blocks("MN", 0, (0, 1))[0],
 "M, 128 B": blocks("MN", 3, (0, 1))[0]}  # fmt: skip

# %% [markdown]
# Is it right? For every chunk of every block, the address that the tensor core computes must be the one that the layout
# has, swizzled:


# %%
def misread(major: str, bits: int, order: tuple[int, int], exchanged: bool = False) -> int:
    """Return how many chunks of a tile the tensor core would fetch from a wrong place, out of 1024."""
    layout, wrong = shape_and_stride(major, bits, order), 0
    for number, d in enumerate(blocks(major, bits, order)):
        d = d._replace(leading=d.stride, stride=d.leading) if exchanged else d
        if major == "K":
            places = [(chunk_along_k(d, m, c), (m, 16 * number + 8 * c)) for m in range(128) for c in range(2)]
        else:
            places = [(chunk_along_m(d, k, c), (8 * c, 16 * number + k)) for k in range(16) for c in range(16)]
        wrong += sum(read != swizzle(2048 + 2 * offset(layout, place), bits) for read, place in places)
    return wrong


[misread(major, bits, order) for major in ("K", "MN") for bits in range(4) for order in ((0, 1), (1, 0))]

# %% [markdown]
# **The trap: stride and leading exchanged.** It happens easily, because their roles change with the major. The first
# chunks are even read right:

# %%
{f"{major}, {16 << bits} B": misread(major, bits, (0, 1), True) for major in ("K", "MN") for bits in (0, 3)}

# %% [markdown]
# Chunks read from a wrong place, of 1024. No fault is raised: those addresses are in shared memory too.
#
# **The trap: a tile that is no atom.** A plain row-major tile of 128 x 64 bf16, as `ld.shared` code has it, has rows
# 128 bytes apart and no swizzle. The mode "none" expects rows *16* bytes apart. There is no field for that distance,
# and so no descriptor: row 1 of the block would be read from the second chunk of row 0.

# %%
plain = Descriptor(start=0, leading=16, stride=1024, bits=0)
{"row 1 is at": 128, "the tensor core reads": chunk_along_k(plain, 1, 0)}

# %% [markdown]
# The model of `wgmma`, written from the PTX manual, derives descriptors from layouts as well, by its own code, and
# refuses a layout that none describes. For all sixteen tiles the words agree:

# %% tags=["lab"]
from cookbook.layouts import Layout, SmemLayout
from cookbook.model import operand_descriptors
from cookbook.swizzle import Swizzle

for major in ("K", "MN"):
    for bits in range(4):
        same = []
        for order in ((0, 1), (1, 0)):
            layout = SmemLayout(Layout(*shape_and_stride(major, bits, order)), Swizzle(bits, 4, 3), 16)
            model = operand_descriptors(layout, rows=128, base=2048, major=major)
            same.append([hopper(d) for d in blocks(major, bits, order)] == [d.encode() for d in model])
        print(f"along {major:2}, rows of {16 << bits:3} bytes, both orders the same: {all(same)}")

# %% [markdown] tags=["lab"]
# And the plain row-major tile is refused, with what it would need:

# %% tags=["lab"]
try:
    operand_descriptors(SmemLayout(Layout((128, 64), (64, 1)), Swizzle(0, 4, 3), 16), rows=128)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## Check
#
# `cookbook check foundations/matrix_descriptors` computes each claim of this page, by these lines:


# %% tags=["folded"]
def fields(word: int, version: str) -> dict[str, int]:
    """Return what the 64 bits say, field by field, as stored."""
    cut = {"start": (0, 14), "leading": (16, 14), "stride": (32, 14)}
    cut |= {"mode": (62, 2)} if version == "hopper" else {"constant": (46, 3), "mode": (61, 3)}
    return {name: word >> low & (1 << width) - 1 for name, (low, width) in cut.items()}


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    derived = blocks("K", 3, (0, 1))
    on_hopper, on_blackwell = fields(hopper(by_hand), "hopper"), fields(blackwell(by_hand), "blackwell")
    cases = [(m, bits, order) for m in ("K", "MN") for bits in range(4) for order in ((0, 1), (1, 0))]
    wrong = [misread(*case) for case in cases]
    swapped = [misread(*case, True) for case in cases]
    modes = [(HOPPER_MODE[bits] << 1, BLACKWELL_MODE[bits]) for bits in range(4)]
    return [
        ("blocks_by_hand", derived[1] == by_hand, f"the block at k = 16: {derived[1]}"),
        (
            "word_of_hopper",
            on_hopper == {"start": 130, "leading": 1, "stride": 64, "mode": 1},
            f"{hopper(by_hand):#x}: {on_hopper}",
        ),
        (
            "word_of_blackwell",
            on_blackwell == {"start": 130, "leading": 1, "stride": 64, "constant": 1, "mode": 2},
            f"{blackwell(by_hand):#x}: {on_blackwell}",
        ),
        ("modes_alike", all(h == b for h, b in modes), "Hopper's two mode bits are Blackwell's upper two"),
        ("derived", wrong == [0] * 16, f"chunks misread, {len(cases)} layouts: {sum(wrong)}"),
        ("exchanged", all(swapped), f"stride and leading exchanged: {min(swapped)} to {max(swapped)} of 1024"),
    ]


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/matrix_descriptors my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** A kernel makes one descriptor for a tile, and steps along K by adding to the 64 bits.


# %%
def word_at(first, k, bits):
    """Exercise 1, finish it: the word for wgmma of the block at `k`, given that of the block at k = 0. The tile is
    128 x 64 bfloat16 along K, of atoms with rows of 16 << bits bytes, down M first."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Of the four numbers only the start changes. In which bits of the word is it, and in which unit?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A row of an atom holds `8 << bits` elements. Inside it, the start moves by 2 bytes for each element.
#
# </details>
#
# <details markdown="1"><summary>Tip 3</summary>
#
# Beyond it begins the next column of atoms. One column of them is 128 rows of 16 << bits bytes long.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# def word_at(first, k, bits):
#     column, inside = divmod(k, 8 << bits)
#     return first + (column * 128 * (16 << bits) + 2 * inside) // 16
# ```
#
# </details>
#
# **Find the bug.** This function reads the descriptor of a tile stored along M off its layout. For three of the four
# modes it is right.


# %%
def derived_along_m(layout, bits, k, base):
    """Exercise 2, find the bug: the descriptor of the 128 x 16 block at `k` of a tile along M that begins at `base`."""
    start = base + 2 * offset(layout, (0, k))
    next_row = 2 * offset(layout, (8 << bits, 0))  # the next row of the mode along M
    next_8_k = 2 * offset(layout, (0, 8))
    return Descriptor(start, leading=next_row, stride=next_8_k, bits=bits)


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Run the check: which mode is wrong? Look it up in the table of [what the tensor core does with
# it](#what-the-tensor-core-does-with-it).
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Along M, three modes have their 8 rows of K under *stride*. Where does the fourth have them?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Without a swizzle the two distances change places.
#
# ```python
# def derived_along_m(layout, bits, k, base):
#     start = base + 2 * offset(layout, (0, k))
#     next_row = 2 * offset(layout, (8 << bits, 0))
#     next_8_k = 2 * offset(layout, (0, 8))
#     if bits == 0:
#         return Descriptor(start, leading=next_8_k, stride=next_row, bits=bits)
#     return Descriptor(start, leading=next_row, stride=next_8_k, bits=bits)
# ```
#
# </details>


# %% tags=["folded"]
def misread_along_m(derived, bits: int, order: tuple[int, int]) -> int:
    """As `misread`, of a tile stored along M, by the descriptors that `derived` gives."""
    layout, wrong = shape_and_stride("MN", bits, order), 0
    for first in range(0, 64, 16):
        d = derived(layout, bits, first, 2048)
        places = [(chunk_along_m(d, k, chunk), (8 * chunk, first + k)) for k in range(16) for chunk in range(16)]
        wrong += sum(read != swizzle(2048 + 2 * offset(layout, place), bits) for read, place in places)
    return wrong


def check_words(answer):
    """The words of all four blocks, in each mode, in base 16."""
    for bits in (3, 2, 1, 0):
        first, *others = map(hopper, blocks("K", bits, (0, 1)))
        for k, needed in zip((16, 32, 48), others, strict=True):
            yield f"rows of {16 << bits} bytes, k = {k}", f"{answer(first, k, bits):#x}", f"{needed:#x}"


EXERCISES = {
    "word_at": check_words,
    "derived_along_m": lambda f: (
        (f"rows of {16 << bits} bytes, chunks read from a wrong place, of 1024", misread_along_m(f, bits, order), 0)
        for bits in (3, 2, 1, 0)
        for order in ((0, 1), (1, 0))
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/matrix_descriptors")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Four numbers, read off the layout at a few places. CuTe makes them for you from the layout you allocate; now you can
# check them. And you know four ways to be wrong without being told: bytes that are not divided by 16, a swizzled
# start, stride and leading exchanged, and a tile that is not made of atoms.
#
# Next: which *tile* a thread block takes, and why the order matters:
# [thread-block swizzle](thread_block_swizzle.ipynb). A kernel whose operands go this way:
# [`hopper/tma_wgmma_gemm`](../hopper/tma_wgmma_gemm.ipynb).
