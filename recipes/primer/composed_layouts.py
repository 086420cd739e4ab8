# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Composed layouts
#     claim: A composed layout is a layout and then a swizzle; the layout counts elements, the hardware swizzles bytes.
#     kind: study
#     track: primer
#     order: 40
#     sources:
#       - title: "CUTLASS issue 2634, a swizzle's unit: bytes or elements"
#         url: https://github.com/NVIDIA/cutlass/issues/2634
#       - title: "CUTLASS issue 2015, why 3, 4, 3?"
#         url: https://github.com/NVIDIA/cutlass/issues/2015
#       - title: "PTX ISA, asynchronous warpgroup level: shared-memory matrix layout"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"
# ---

# %% [markdown]
# # Composed layouts
#
# **Claim.** Shape and stride cannot say "exchange the columns differently in every row". A
# [composed layout](../../docs/glossary.md#composed-layout) can: it is a layout and then a
# [swizzle](../../docs/glossary.md#swizzle), an XOR of bits of the offset. The layout counts elements. The hardware
# swizzles *byte addresses*. Whoever mixes the two up gets a tile that is quietly wrong.
#
# The tile of this page has 8 rows of 64 float16, 128 bytes each. Its unit is a *chunk* of 8 elements, 16 bytes:

# %% tags=["lab"]
from cookbook import draw
from cookbook.swizzle import Swizzle

slots = [[chunk ^ row for chunk in range(8)] for row in range(8)]
draw.number_grid(slots, "Where each chunk of a row lies: slot = chunk XOR row", note="row: of the tile; column: chunk")

# %% [markdown]
# A line of shared memory has 8 *slots* of 16 bytes. In every row and in every column each slot stands once. So both a
# row and a column of chunks meet all 32 [banks](../../docs/glossary.md#bank); [bank
# conflicts](../foundations/bank_conflicts.ipynb) says why one wants that.
#
# ## make_swizzle(bits, base, shift)
#
# Two fields of a number, each `bits` wide: the low one begins at bit `base`, the high one at bit `base + shift`. The
# low field becomes low XOR high; the high one stays:


# %%
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


def swizzled(number: int, bits: int, base: int, shift: int) -> int:
    """Return what the swizzle (bits, base, shift) makes of a number."""
    high = number >> (base + shift) & (2**bits - 1)
    return number ^ high << base


# %% tags=["lab"]
fields = {"byte": 4, "chunk": 3, "row": 3}
draw.swizzle_bits(Swizzle(3, 4, 3), fields=fields, title="S<3,4,3> on a byte address: bits 7 to 9 go into bits 4 to 6")

# %% [markdown]
# In bytes the first picture is `make_swizzle(3, 4, 3)`, or S<3,4,3>. A chunk is 2^4 bytes. The 3 bits above say which
# of 8 chunks it is, and the 3 bits that lie 3 higher are the row.
# [The swizzle parameters](../foundations/swizzle_parameters.ipynb) derives the three for any tile.
#
# ## The middle 0
#
# `make_composed_layout(swizzle, 0, layout)` prints as `S<3,4,3> o 0 o (8,64):(64,1)`. Read it from the right: the
# layout gives an offset, *the middle number is added*, and the swizzle comes last. So it is not an offset of the
# result. It moves the tile inside of the swizzle's pattern:


# %%
def composed(bits: int, base: int, shift: int, middle: int = 0):
    """8 rows of 64 elements, swizzled; the swizzle acts on whatever the layout counts."""
    rows = cute.make_layout((8, 64), stride=(64, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, base, shift), middle, rows)


def values(places, *numbers) -> list[int]:
    """The offsets of `places` in `composed(*numbers)`."""
    found = []

    @cute.jit
    def host():
        layout = composed(*numbers)
        found.extend(layout(place) for place in places)

    host()
    return found


# %% tags=["lab", "open"]
print("middle 0: ", values([(0, 0), (0, 8), (1, 0)], 3, 3, 3))
print("middle 64:", values([(0, 0), (0, 8), (1, 0)], 3, 3, 3, 64))

# %% [markdown]
# With 64, one row, in the middle, coordinate (0, 0) gives 72. That is what (1, 0) gives with 0. In the recipes the
# middle is always 0: the tile begins where the pattern does.
#
# ## Bytes against elements
#
# Where does element (1, 0) lie? Element 64 is byte 128. In bytes, S<3,4,3> makes 144 of 128, which is element 72. But a
# composed layout that is *called* with S<3,4,3> swizzles the element offset, 64. Its bits 7 to 9 are 0: nothing moves.

# %% tags=["lab", "open"]
print("S<3,4,3> on elements:", values([(1, 0)], 3, 4, 3))
print("S<3,3,3> on elements:", values([(1, 0)], 3, 3, 3))

# %% [markdown]
# Two ways are right. Either the swizzle counts elements: with 2 bytes each, the base is one less, S<3,3,3>. Or it stays
# in bytes and goes to the *pointer*: `recast_ptr(pointer, swizzle)` gives a pointer that swizzles the address of every
# access, in the same unit for every dtype. Here are both, in real memory. Each element stores its own number; then we
# look where 64, which is (1, 0), has come to lie, and the rows below it.


# %%
@cute.jit
def store_by_layout(mX: cute.Tensor):
    """Element (i, j) = 64 i + j, the swizzle in the layout, in elements."""
    tile = cute.make_tensor(mX.iterator, composed(3, 3, 3))
    for i in cutlass.range(512):
        tile[i // 64, i % 64] = cutlass.Int16(i)


@cute.jit
def store_by_pointer(mX: cute.Tensor):
    """The same, the swizzle at the pointer, in bytes."""
    pointer = cute.recast_ptr(mX.iterator, cute.make_swizzle(3, 4, 3))
    tile = cute.make_tensor(pointer, cute.make_layout((8, 64), stride=(64, 1)))
    for i in cutlass.range(512):
        tile[i // 64, i % 64] = cutlass.Int16(i)


def stored(store, skew: int = 0) -> list[int]:
    """Return where (1, 0), (2, 0), ... lie after `store`, from a base `skew` bytes past a multiple of 1024."""
    memory = torch.zeros(2048, dtype=torch.int16)
    start = (-memory.data_ptr() % 1024 + skew) // 2
    store(from_dlpack(memory[start : start + 512]))
    return [int((memory == 64 * row).nonzero()) - start for row in range(1, 8)]


# %% tags=["lab", "open"]
print(stored(store_by_layout))
print(stored(store_by_pointer))

# %% [markdown]
# Rows 1 to 7 begin at 72, 144, 216, ... both ways: (row, 0) lies in slot *row*. The recipes do the second. They make
# `make_composed_layout(make_swizzle(B, 4, 3), 0, layout)` with the layout in elements, and never call it. They hand its
# halves to `SmemAllocator().allocate_tensor(dtype, layout.outer, 1024, swizzle=layout.inner)`: `outer` is the plain
# layout, `inner` the swizzle (CuTe's names), which goes onto the pointer.
#
# Two traps lie here. A view of another dtype, `recast_ptr(pointer, dtype=cutlass.Int32)`, has *lost* the swizzle: pass
# it again, `recast_ptr(pointer, swizzle, dtype=cutlass.Int32)`.
#
# And `domain_offset`, a view that begins elsewhere, is wrong where the swizzle is in the layout. It moves the pointer
# to where (1, 8) lies, and then swizzles as if the tile began there. (2, 8) lies at slot 3 of row 2, 152. In a view
# that begins at (1, 8) the same element is (1, 0). Store there, the swizzle once in the layout and once at the pointer:


# %% tags=["lab", "open"]
@cute.jit
def below_by_layout(mX: cute.Tensor):
    """Store at (2, 8), through a view that begins at (1, 8); the swizzle in the layout."""
    tile = cute.make_tensor(mX.iterator, composed(3, 3, 3))
    cute.domain_offset((1, 8), tile)[1, 0] = cutlass.Int16(1)


@cute.jit
def below_by_pointer(mX: cute.Tensor):
    """The same, the swizzle at the pointer."""
    pointer = cute.recast_ptr(mX.iterator, cute.make_swizzle(3, 4, 3))
    tile = cute.make_tensor(pointer, cute.make_layout((8, 64), stride=(64, 1)))
    cute.domain_offset((1, 8), tile)[1, 0] = cutlass.Int16(1)


for below in (below_by_layout, below_by_pointer):
    memory = torch.zeros(2048, dtype=torch.int16)
    start = -memory.data_ptr() % 1024 // 2
    below(from_dlpack(memory[start : start + 512]))
    print(f"{below.__name__:18}{int(memory.nonzero()) - start}")

# %% [markdown]
# Through the layout the store lands elsewhere, through the pointer at 152, where it belongs.
#
# ## Alignment 1024
#
# The pointer's swizzle acts on the whole address, not on the distance from the tile's base. S<3,4,3> reads bits 7 to 9.
# If the base is a multiple of 2^(3+4+3) = 1024, these bits are the row. If it is not, the pattern begins in the middle:

# %% tags=["lab", "open"]
print("128 bytes past:", stored(store_by_pointer, skew=128))

# %% [markdown]
# Now (1, 0) lies in slot 2. A kernel that only reads back what it wrote would not notice.
# [TMA](../../docs/glossary.md#tma) and the tensor cores of Hopper and Blackwell are told a swizzle mode and compute
# from addresses too; layouts, pictures and predictions count from the base. All agree where the base is a multiple of
# the period: 1024 bytes for the 128-byte mode, 512 for 64, 256 for 32.
#
# ## Exercises
#
# Write, and run the last cell; or `cookbook copy primer/composed_layouts my.py` and `cookbook exercise my.py`.


# %%
def in_elements(element_bytes):
    """Exercise 1: S<3,4,3> counts bytes. What is it in elements of 1, 2, 4, 8 or 16 bytes? Three numbers."""
    raise NotImplementedError


def for_short_rows():
    """Exercise 2: (bits, base, shift) in bytes for 8 rows of 64 bytes. In each column of 16-byte chunks,
    the 8 rows are to lie in 8 different groups of 4 banks. A chunk stays whole."""
    raise NotImplementedError


def place(base, row, col):
    """Exercise 3: the byte address of (row, col) of the tile at byte `base`, S<3,4,3> on the pointer."""
    raise NotImplementedError


# %% tags=["folded"]
def check_short_rows(answer):
    """Any swizzle with the property is right."""
    numbers = answer()
    chunks = [[swizzled(64 * row + 16 * chunk, *numbers) for row in range(8)] for chunk in range(4)]
    apart = [swizzled(64 * i + 14, *numbers) - swizzled(64 * i, *numbers) for i in range(8)]
    yield "bytes from the first to the last element of a chunk", apart, [14] * 8
    yield "chunks of the tile, in order", sorted(at for column in chunks for at in column), list(range(0, 512, 16))
    yield f"bits of {numbers} that the shift leaves apart", min(numbers[0], abs(numbers[2])), numbers[0]
    yield "groups of banks of each column", [len({at // 16 % 8 for at in column}) for column in chunks], [8] * 4


EXERCISES = {
    "in_elements": lambda f: [(f"{1 << n} bytes", f(1 << n), (3, 4 - n, 3)) for n in range(5)],
    "for_short_rows": check_short_rows,
    "place": lambda f: [
        (f"base {base}, ({row}, {col})", f(base, row, col), swizzled(base + 128 * row + 2 * col, 3, 4, 3))
        for base in (0, 1024, 128)
        for row, col in ((1, 0), (2, 9), (7, 63))
    ],
}


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    offsets, right = values([(1, 0)], 3, 4, 3) + values([(1, 0)], 3, 3, 3), [72 * row for row in range(1, 8)]
    by_layout, by_pointer, skewed = stored(store_by_layout), stored(store_by_pointer), stored(store_by_pointer, 128)
    inside = values([(0, 0)], 3, 3, 3, 64) == values([(1, 0)], 3, 3, 3)
    return [
        ("bytes_are_not_elements", offsets == [64, 72], f"(1, 0) in S<3,4,3>, S<3,3,3> on elements: {offsets}"),
        ("pointer_and_layout_agree", by_layout == by_pointer == right, f"rows 1 to 7 in memory: {by_pointer}"),
        ("the_middle_is_added_before_the_xor", inside, "(0, 0) with 64 in the middle lies where (1, 0) lies with 0"),
        ("the_base_matters", skewed[:2] == [80, 152], f"a base 128 bytes past a multiple of 1024: {skewed}"),
    ]


# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("primer/composed_layouts")

# %% [markdown]
# Next: [copies and MMAs](copies_and_mmas.ipynb).
