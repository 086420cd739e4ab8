# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Solving for a swizzle
#     claim: >-
#       A bank conflict is a bit vector that two lanes differ by, so linear algebra over bits finds a swizzle or proves
#       that none exists.
#     track: foundations
#     order: 40
#     kind: study
#     path: accesses -> bit vectors -> bank map -> swizzle, or a proof
#     sources:
#       - title: "melonedo, algebraic-layouts (Chinese): swizzles as linear maps, and the examples on 8 banks"
#         url: https://github.com/melonedo/algebraic-layouts
#       - title: "Triton, linear layouts"
#         url: https://arxiv.org/abs/2505.23819
#       - title: "One Bit Off: a swizzle that misses by one bit"
#         url: https://www.zzzdavid.tech/one-bit-off.html
# ---

# %% [markdown]
# # Solving for a swizzle
#
# **Claim.** Real kernels want several accesses at once, on tiles of any shape. There is no need to guess a swizzle.
# Write an access as a few *bit vectors*; two lanes collide when their difference is of a certain kind; and choosing a
# swizzle becomes choosing which differences may collide. When no choice is left, you have a proof that none exists.
#
# `S<3,0,3>` on an 8 x 8 tile, twice: where each element goes, and the same as a matrix over bits. Row y0 of the matrix
# says: bit 0 of the address is bit 0 of the offset XOR bit 3.

# %% tags=["lab"]
import numpy as np

from cookbook import draw

BANK_ROWS = {0: "bank bit 0", 1: "bank bit 1", 2: "bank bit 2"}


def grid_and_matrix(shape, parameters, mark, asked, title=None):
    """A tile under S<B,M,S>, legal or not, an access framed; the matrix, in orange the bits that the access varies."""
    bits, base, shift = parameters
    offsets = np.arange(shape[0] * shape[1]).reshape(shape)
    moved = offsets ^ (offsets >> shift & ((1 << bits) - 1) << base)
    n = moved.size.bit_length() - 1
    places = [1 << j ^ ((1 << j) >> shift & ((1 << bits) - 1) << base) for j in range(n)]
    matrix = np.array([[place >> i & 1 for place in places] for i in range(n)])
    name = f"S<{bits},{base},{shift}>"
    grid = draw.layout_grid(moved, banks=8, mark=mark, title=f"{name} on {shape[0]} x {shape[1]}")
    return draw.beside([grid, draw.gf2_matrix(matrix, BANK_ROWS, asked=asked, title=name)], title or name)


grid_and_matrix((8, 8), (3, 0, 3), [(r, 0) for r in range(8)], (3, 4, 5), "S<3,0,3> on 8 x 8, and the column read")

# %% [markdown]
# The three bank rows are in colour, and the orange part is what the column read varies. It has rank 3: its rows are
# *independent*, none is an XOR of the others. So eight lanes find eight banks. Without the swizzle that part is empty,
# and the read takes 8 wavefronts. (Different rows are not enough: a, b and `a ^ b` differ, and have rank 2.)
#
# Needed before: [the parameters B, M and S](swizzle_parameters.ipynb). Nothing here needs a GPU. Most pictures use a
# toy GPU of 8 banks, each one element wide, so that everything fits on a page. On a toy conflicts are counted out of 8;
# a real GPU has 32 banks.

# %%
import random

import cutlass.cute as cute

# %% [markdown]
# ## An access is a few bit vectors
#
# An 8 x 8 tile, row-major: element (row, col) is at offset 8 row + col, six bits. The low three are the column, the
# high three the row. Reading *column 0* touches the offsets 0, 8, 16, ..., 56: everything that XORs of 8, 16 and 32 can
# make. Those three numbers **are** the access: reading another column adds the same constant to all of them, and
# changes nothing. A row is 1, 2, 4. A block of 4 rows by 2 columns is 1, 8, 16.
#
# A swizzle is linear too: the image of an XOR is the XOR of the images. So follow the three vectors only. On 8 banks
# the bank is the low three bits of the image, and lanes meet in a bank when those bits of *different* offsets agree.
# The number of wavefronts is
#
#     2 ^ (rank of the images - rank of their bank bits)
#
# where the *rank* is how many vectors are left when each that is an XOR of those before it is dropped.


# %%
def rank(vectors) -> int:
    """Return how many of these bit vectors are left without each that is an XOR of those before it."""
    basis = []
    for vector in vectors:
        for known in basis:
            vector = min(vector, vector ^ known)
        if vector:
            basis.append(vector)
    return len(basis)


def swizzled(offset: int, bits: int, base: int, shift: int) -> int:
    """S<bits,base,shift> on an offset in elements."""
    return offset ^ (offset >> shift & ((1 << bits) - 1) << base)


def wavefronts(access: list[int], parameters: tuple[int, int, int], bank_bits: int = 3) -> int:
    """Return how many wavefronts an access takes, given its bit vectors, by ranks."""
    images = [swizzled(vector, *parameters) for vector in access]
    return 1 << rank(images) - rank(image & (1 << bank_bits) - 1 for image in images)


def block(rows: int, cols: int, pitch: int, row_step: int = 1) -> list[int]:
    """The bit vectors of a block of a tile with rows of `pitch` elements; all are powers of two."""
    across = [1 << bit for bit in range(cols.bit_length() - 1)]
    return across + [pitch * row_step << bit for bit in range(rows.bit_length() - 1)]


NONE = (0, 0, 3)
COLUMN, ROW = block(8, 1, 8), block(1, 8, 8)
{"column": (COLUMN, wavefronts(COLUMN, NONE)), "row": (ROW, wavefronts(ROW, NONE))}

# %% [markdown]
# Without a swizzle the column's bank bits are all zero: rank 3 against rank 0, 8 wavefronts. With `S<3,0,3>` the images
# of 8, 16, 32 are 9, 18, 36, whose bank bits are 1, 2, 4: rank 3, one wavefront. By ranks, and by counting:


# %%
def brute(access: list[int], parameters: tuple[int, int, int], bank_bits: int = 3) -> int:
    """The same by counting: every offset of the access, and how many of them the busiest bank holds."""
    banks = [swizzled(offset, *parameters) & (1 << bank_bits) - 1 for offset in span(access)]
    return max(banks.count(bank) for bank in banks)


def span(vectors: list[int]) -> set[int]:
    """Every XOR of some of the vectors."""
    reached = {0}
    for vector in vectors:
        reached |= {vector ^ other for other in reached}
    return reached


S303 = (3, 0, 3)
[swizzled(vector, *S303) for vector in COLUMN], wavefronts(COLUMN, S303), brute(COLUMN, S303), wavefronts(ROW, S303)

# %% [markdown]
# ## Trying them all
#
# There are few swizzles that a tile of a given size can use. For one access or two, just try them, fewest bits first:


# %%
def serving(accesses: list[list[int]], offset_bits: int, bank_bits: int = 3) -> list[tuple[int, int, int]]:
    """Every legal S<bits,base,shift> of this number of offset bits that serves each access in one wavefront."""
    legal = [
        (bits, base, shift)
        for bits in range(offset_bits)
        for base in range(offset_bits - bits + 1)
        for shift in range(max(bits, 1), offset_bits - bits - base + 1)
    ]
    return [p for p in legal if all(wavefronts(access, p, bank_bits) == 1 for access in accesses)]


questions = {
    "8x8: row, column": ([ROW, COLUMN], 6),
    "8x32: 1x8, 8x1": ([block(1, 8, 32), block(8, 1, 32)], 8),
    "8x8: 4x2": ([block(4, 2, 8)], 6),
    "8x8: 4x2 of every other row": ([block(4, 2, 8, row_step=2)], 6),
    "8x4: 8x1, 2x4": ([block(8, 1, 4), block(2, 4, 4)], 5),
    "8x4: 8x1, 2x4, 4x2": ([block(8, 1, 4), block(2, 4, 4), block(4, 2, 4)], 5),
}
{name: serving(*question)[:3] for name, question in questions.items()}

# %% [markdown]
# **Wider rows.** In a tile of 8 x 32 the row begins at bit 5, so the shift is 5: `S<3,0,5>`.

# %% tags=["lab"]
grid_and_matrix((8, 32), (3, 0, 5), [(r, 0) for r in range(8)], (5, 6, 7))

# %% [markdown]
# **Trap: keep the shift, move the mask.** `p ^ ((p & (7 << 5)) >> 3)`, which stands in a published article, reads the
# right bits and brings them to the wrong place: bits 2 to 4. Two bank bits see nothing of the row, and the column takes
# 4 wavefronts. `S<3,0,3>`, right for 8 x 8, takes one bit of the row and two of the column here, and 4 wavefronts too:


# %%
def published(offset: int) -> int:
    """The formula of the trap."""
    return offset ^ (offset & 7 << 5) >> 3


of_column = [
    [place & 7 for place in map(move, range(0, 256, 32))] for move in (published, lambda p: swizzled(p, *S303))
]
{"published": of_column[0], "S<3,0,3>": of_column[1]}, [max(map(banks.count, banks)) for banks in of_column]

# %% [markdown]
# (The bank of each element of column 0; then the wavefronts.)
#
# **Narrower rows.** 8 x 4 has rows of half a bank round. `S<2,0,3>` serves 8x1 and 2x4; nothing in the list serves 4x2
# as well. `S<3,0,2>` *would* serve all three: put it into the formula and see. Both, with the 8x1 access framed:

# %% tags=["lab"]
grid_and_matrix((8, 4), (2, 0, 3), [(r, 0) for r in range(8)], (2, 3, 4))

# %% tags=["lab"]
grid_and_matrix((8, 4), (3, 0, 2), [(r, 0) for r in range(8)], (2, 3, 4), "S<3,0,2>, which is illegal")

# %% [markdown]
# **The trap.** Source and target bits of `S<3,0,2>` overlap (|S| < B), which makes it illegal. `cute.make_swizzle(3, 0,
# 2)` raises nothing: it silently becomes the identity.

# %%
NARROW = {"8x1": block(8, 1, 4), "4x2": block(4, 2, 4), "2x4": block(2, 4, 4)}


def ask_cute(question, *args):
    """Return what question(*args) returns inside CuTe, where layouts can be made. No kernel is built, no GPU is
    used."""
    answers = []

    @cute.jit
    def host():
        answers.append(question(*args))

    cute.compile(host, options="--gpu-arch sm_90a")
    return answers[0]


def made_by_cute(*parameters: int) -> str:
    """The swizzle that make_swizzle really makes, printed."""
    return str(cute.make_composed_layout(cute.make_swizzle(*parameters), 0, cute.make_layout(1))).split(" ")[0]


{
    "S<3,0,2>": [wavefronts(access, (3, 0, 2)) for access in NARROW.values()],
    "S<2,0,3>": [wavefronts(access, (2, 0, 3)) for access in NARROW.values()],
    "make_swizzle(3, 0, 2) makes": ask_cute(made_by_cute, 3, 0, 2),
}

# %% [markdown]
# **Several columns at once.** A block of 4 x 2 keeps the lowest bit for itself: base 1, `S<2,1,2>`. It repeats after
# 2^(2+1+2) = 32 elements, four rows.

# %% tags=["lab"]
grid_and_matrix((8, 8), (2, 1, 2), [(r, c) for r in range(4) for c in range(2)], (0, 3, 4))

# %% [markdown]
# The same block of *every other row*: `S<2,1,3>`.

# %% tags=["lab"]
grid_and_matrix((8, 8), (2, 1, 3), [(r, c) for r in range(0, 8, 2) for c in range(2)], (0, 4, 5))

# %% [markdown]
# ## Solving
#
# Trying stops at the swizzles that CuTe has. Now ask the reverse question. A bank map sends offsets to banks, linearly.
# All that matters of it is which differences it forgets: **two elements share a bank if and only if their XOR is in a
# set K**, the *null space* of the map, closed under XOR. With n offset bits and d bank bits, K has n - d dimensions.
# (Linear algebra also calls it the map's kernel; it has nothing to do with a GPU's kernels.)
#
# An access with the span W is free if no two of its elements differ by a member of K: **K and W share only 0.**
# So the whole solver is: pick n - d vectors, one after the other, such that nothing they make lies in any W.


# %%
def null_space(accesses: list[list[int]], offset_bits: int, bank_bits: int, chosen: tuple[int, ...] = ()):
    """Vectors whose XORs are in no access: the differences that may share a bank. None if there are no such vectors."""
    if len(chosen) == offset_bits - bank_bits:
        return chosen
    taken = set().union(*map(span, accesses))
    for vector in range(1, 1 << offset_bits):
        if all(vector ^ other not in taken for other in span(list(chosen))):
            found = null_space(accesses, offset_bits, bank_bits, (*chosen, vector))
            if found:
                return found
    return None


null_space([ROW, COLUMN], 6, 3)

# %% [markdown]
# 9, 18, 36: the smallest vectors that are in neither the row nor the column. Read them: 9 is "one to the right *and*
# one down", and so on. Elements that share a bank lie diagonally.
#
# The bank bits are the sums of offset bits that do not notice K: as masks, those that overlap each member of K in an
# even number of bits.


# %%
def bank_rows(members: tuple[int, ...], offset_bits: int) -> list[int]:
    """Independent masks, smallest first: each bank bit is the parity of the offset under its mask."""
    rows = []
    for mask in range(1, 1 << offset_bits):
        if all((mask & member).bit_count() % 2 == 0 for member in members) and rank([*rows, mask]) > len(rows):
            rows.append(mask)
    return rows


[f"{mask:06b}" for mask in bank_rows(null_space([ROW, COLUMN], 6, 3), 6)]

# %% [markdown]
# Bank bit 0 is bit 0 XOR bit 3, the lowest bits of column and row, and so on. **The solver has found bank = col XOR
# row**: it was asked for a row and a column, and XOR is what comes out.
#
# ## Two always, three not always
#
# Two accesses (that want the same neighbours kept together) can *always* be served. While K has fewer than n - d
# dimensions, count the vectors that are forbidden: those in K + W1 or K + W2. Each W has at most 2^d members, K at most
# 2^(n-d-1), so together they are fewer than 2^n. One is left. Take it.
#
# With three, the count no longer suffices, and here is the smallest counterexample: 2 x 4 elements, 4 banks, three
# offset bits, so K is 0 and *one* vector. Three accesses of 4 lanes: the row {1, 2}, the 2 x 2 block {1, 4}, and the
# skewed pair {1, 6}.

# %%
PLANES = [[1, 2], [1, 4], [1, 6]]
{
    "in some access": sorted(set().union(*map(span, PLANES)) - {0}),
    "null space for all three": null_space(PLANES, 3, 2),
    "null spaces for two of them": [null_space([PLANES[i], PLANES[j]], 3, 2) for i, j in ((0, 1), (0, 2), (1, 2))],
}

# %% [markdown]
# All seven differences occur within some access. Whichever of them shares a bank, one access collides. That is a proof,
# and you have checked it by reading one list. The solver of this package says it too, with a proof that can be checked
# again:

# %% tags=["lab"]
from cookbook.solve import design

try:
    design.solve((2, 4), 32, [design.Span(tuple(plane)) for plane in PLANES], banks=4)
except design.Unsolvable as error:
    print(error)
    print("the proof holds:", error.proof.check())

# %% [markdown]
# ## One bank map for six shapes
#
# A tile of 32 x 32 floats, 32 banks, is written by rows and read in blocks of 32 elements. For blocks of 2^i rows by
# 2^(5-i) columns, `S<i,5-i,i>` is right:

# %%
SHAPES = {f"{1 << i}x{32 >> i}": block(1 << i, 32 >> i, 32) for i in range(6)}
{
    shape: (f"S<{i},{5 - i},{i}>", wavefronts(SHAPES["1x32"], (i, 5 - i, i), 5), wavefronts(access, (i, 5 - i, i), 5))
    for i, (shape, access) in enumerate(SHAPES.items())
}

# %% [markdown]
# A different swizzle for each shape. Is there one for all? Not among those of the plain layout:

# %%
serving(list(SHAPES.values()), 10, 5)

# %% [markdown]
# Yet there is a bank map: **bank = col XOR reversed(row)**, the five bits of the row read backwards. A block of 2^i
# rows uses the low i bits of the row, which land on the *high* bits of the bank, and its columns the low 5 - i: they
# never meet. CuTe says it as `S<5,0,5>` over a layout whose *rows* are stored in bit-reversed order, five modes of size
# 2 with falling strides:


# %%
def reversed_bits(row: int) -> int:
    """The five bits of a row, read backwards."""
    return int(f"{row:05b}"[::-1], 2)


def wavefronts_of_map(rows: int, cols: int) -> int:
    """The most wavefronts of any block of this shape, aligned, under bank = col XOR reversed(row)."""
    counts = []
    for top in range(0, 32, rows):
        for left in range(0, 32, cols):
            banks = [(left + c) ^ reversed_bits(top + r) for r in range(rows) for c in range(cols)]
            counts.append(max(banks.count(bank) for bank in set(banks)))
    return max(counts)


def bit_reversed() -> cute.ComposedLayout:
    """(32, 32) of 4-byte elements: S<5,0,5> on elements over rows in bit-reversed order."""
    rows, strides = (2, 2, 2, 2, 2), (512, 256, 128, 64, 32)
    return cute.make_composed_layout(cute.make_swizzle(5, 0, 5), 0, cute.make_layout((rows, 32), stride=(strides, 1)))


def cute_says_the_same() -> bool:
    """Return whether that layout has every element in bank col XOR reversed(row)."""
    layout = bit_reversed()
    return all(layout((r, c)) % 32 == c ^ reversed_bits(r) for r in range(32) for c in range(32))


{shape: wavefronts_of_map(*map(int, shape.split("x"))) for shape in SHAPES}, ask_cute(cute_says_the_same)

# %% [markdown]
# (Here the swizzle counts elements, so that it can be called as a function. In a kernel it belongs on the pointer, in
# bytes: 4 bytes an element make it `S<5,2,5>`.)
#
# `design.solve` does what `null_space` does, for tiles of up to 65536 elements and real banks. Then it says what the
# map *is*: a swizzle of the plain layout, one of a permuted layout, or neither. The six shapes at once:

# %% tags=["lab"]
six_shapes = [(1 << i, 32 >> i) for i in range(6)]
answer = design.solve((32, 32), 32, six_shapes)
print(answer.kind + ":", answer)
print("wavefronts:", answer.wavefronts, "on the plain layout:", answer.before)
print(answer.cute_code())

# %% [markdown]
# Its matrix: the bank rows are the five lowest, and the row bits come in from the right in reversed order. The five
# columns that a block uses have rank 5 in the coloured rows, whichever block it is.

# %% tags=["lab"]
banks_of_32 = {i: f"bank bit {i}" for i in range(5)}
logical = [f"c{i}" for i in range(5)] + [f"r{i}" for i in range(5)]
draw.gf2_matrix(answer.matrix, banks_of_32, inputs=logical, asked=(0, 1, 2, 5, 6), title="All six shapes; asked: 4 x 8")

# %% [markdown]
# ## Rows that are no power of two
#
# **8 x 24.** XOR needs the columns to come in whole groups of 8, and 24 are three. So row * 24 + (row ^ col) stays
# inside the tile and is free for columns. `S<3,0,3>` over `(8,24):(24,1)` does it as well, although bits 3 to 5 of the
# offset are not the row now: they are (3 row + col / 8) mod 8. The key is another one, but as 3 is odd, eight rows
# still give eight different keys.
#
# So "8 x 24 cannot be written with the offset alone", as one reads, is wrong.
#
# **8 x 9, read in blocks of 4 x 2.** With rows of 9 the row is nowhere in the bits. Four rows are 9 apart: banks 0, 1,
# 2, 3, and with the column beside them 1, 2, 3, 4. They collide, and no XOR of the column fixes it inside nine columns.
#
# Move *rows* instead. Store row 4 right behind row 0, row 5 behind row 1: the tile becomes 4 x 18. The rows of a block
# lie 18 apart, in banks 0, 2, 4, 6, and their neighbours fill 1, 3, 5, 7.


# %%
def wavefronts_on_8_banks(offsets: list[list[int]], rows: int, cols: int) -> int:
    """The most wavefronts of any block, rows aligned, of a table of offsets, on 8 banks."""
    counts = []
    for top in range(0, len(offsets), rows):
        for left in range(len(offsets[0]) - cols + 1):
            banks = [offsets[top + r][left + c] % 8 for r in range(rows) for c in range(cols)]
            counts.append(max(banks.count(bank) for bank in set(banks)))
    return max(counts)


by_row = [[24 * r + (c ^ r) for c in range(24)] for r in range(8)]
by_bits = [[swizzled(24 * r + c, *S303) for c in range(24)] for r in range(8)]
PLACES = [0, 2, 4, 6, 1, 3, 5, 7]  # where each row of 9 is stored
plain = [[9 * r + c for c in range(9)] for r in range(8)]
paired = [[9 * PLACES[r] + c for c in range(9)] for r in range(8)]
{
    "8x24, col XOR row: column": wavefronts_on_8_banks(by_row, 8, 1),
    "8x24, S<3,0,3>: column": wavefronts_on_8_banks(by_bits, 8, 1),
    "8x9, plain: 4x2": wavefronts_on_8_banks(plain, 4, 2),
    "8x9, rows paired: 4x2": wavefronts_on_8_banks(paired, 4, 2),
}

# %% tags=["lab"]
BLOCK = [(r, c) for r in range(4) for c in range(2)]
draw.before_after(
    plain, paired, banks=8, mark=BLOCK, titles=("8 x 9, rows in order", "rows paired: 4 x 18"), title="8 x 9 in 4 x 2"
)

# %% tags=["lab"]
draw.layout_grid(
    [[18 * r + c for c in range(18)] for r in range(4)], banks=8, label="bank", title="The same memory, as 4 x 18"
)

# %% [markdown]
# The solver finds that. Row and column alone need no permutation. 8 x 9 with blocks of 4 x 2, on the toy, needs nothing
# but one. And the narrow tile from above, for which no legal swizzle was enough, has one over a permuted layout:

# %% tags=["lab"]
print(design.solve((32, 32), 32, [(1, 32), (32, 1)]))
print(design.solve((8, 9), 32, [(4, 2)], banks=8))
print(design.solve((8, 4), 32, [(8, 1), (4, 2), (2, 4)], banks=8))

# %% [markdown]
# ## Check
#
# `cookbook check foundations/solving_for_a_swizzle` computes each claim of this page, by these lines:


# %% tags=["folded"]
def pairs_are_solved(count: int = 100, offset_bits: int = 6, bank_bits: int = 3) -> bool:
    """Return whether random pairs of accesses all have a null space, and one that meets neither."""
    rng = random.Random(0)
    for _ in range(count):
        pair = [[rng.randrange(1, 1 << offset_bits) for _ in range(bank_bits)] for _ in range(2)]
        members = null_space(pair, offset_bits, bank_bits)
        if members is None or any(span(list(members)) & span(access) != {0} for access in pair):
            return False
    return True


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    images = [swizzled(vector, *S303) & 7 for vector in COLUMN]
    columns = [max(map(banks.count, banks)) for banks in of_column]
    everything = [(bits, base, shift) for bits in range(4) for base in range(4) for shift in range(max(bits, 1), 4)]
    agree = all(wavefronts(a, p) == brute(a, p) for a in (ROW, COLUMN, block(4, 2, 8)) for p in everything)
    illegal, narrow = ([wavefronts(access, p) for access in NARROW.values()] for p in ((3, 0, 2), (2, 0, 3)))
    first = {name: serving(*question)[:1] for name, question in questions.items()}
    keys = [{offset % 8 for offset in column} for column in zip(*by_bits, strict=True)]
    moved = [wavefronts_on_8_banks(table, *shape) for table, shape in (
        (by_row, (8, 1)), (by_bits, (8, 1)), (plain, (4, 2)), (paired, (4, 2)))]  # fmt: skip
    inside = sorted(offset for row in by_row for offset in row) == list(range(192))
    xor_by_itself = bank_rows(null_space([ROW, COLUMN], 6, 3), 6)
    planes = [
        null_space(PLANES, 3, 2),
        *(null_space([PLANES[i], PLANES[j]], 3, 2) for i, j in ((0, 1), (0, 2), (1, 2))),
    ]
    blocks = [(wavefronts(SHAPES["1x32"], (i, 5 - i, i), 5), wavefronts(access, (i, 5 - i, i), 5))
              for i, access in enumerate(SHAPES.values())]  # fmt: skip
    six = [wavefronts_of_map(*map(int, shape.split("x"))) for shape in SHAPES]
    none = serving(list(SHAPES.values()), 10, 5)
    return [
        (
            "rank_counts",
            rank(images) == 3 and wavefronts(COLUMN, S303) == 1 and wavefronts(COLUMN, NONE) == 8,
            f"{images}",
        ),
        ("ranks_as_counted", agree, f"ranks equal counting for {len(everything)} swizzles"),
        ("a_wider_tile", first["8x32: 1x8, 8x1"] == [(3, 0, 5)], f"8x32: {first['8x32: 1x8, 8x1']}"),
        ("the_mask_alone_is_4_way", columns == [4, 4], f"8x32, (p & (7 << 5)) >> 3, and S<3,0,3>: {columns}"),
        (
            "a_narrower_tile",
            illegal == [1, 1, 1] and narrow == [1, 2, 1] and ask_cute(made_by_cute, 3, 0, 2) == "S<0,4,3>",
            f"8x1, 4x2, 2x4: S<3,0,2> {illegal}, illegal; S<2,0,3> {narrow}",
        ),
        (
            "several_columns",
            first["8x8: 4x2"] == [(2, 1, 2)] and first["8x8: 4x2 of every other row"] == [(2, 1, 3)],
            f"{first['8x8: 4x2']}, every other row {first['8x8: 4x2 of every other row']}",
        ),
        ("rows_of_24", moved[:2] == [1, 1] and inside and all(len(k) == 8 for k in keys), f"wavefronts {moved[:2]}"),
        ("rows_of_9", moved[2:] == [2, 1], f"4x2, plain and with rows at {PLACES}: wavefronts {moved[2:]}"),
        ("two_accesses_always", pairs_are_solved() and xor_by_itself == [9, 18, 36], f"bank rows {xor_by_itself}"),
        ("three_accesses_not_always", planes[0] is None and None not in planes[1:], f"three, then two: {planes}"),
        ("one_swizzle_each", blocks == [(1, 1)] * 6, f"row and block under S<i,5-i,i>: {blocks}"),
        ("all_six_at_once", six == [1] * 6 and none == [] and ask_cute(cute_says_the_same), f"wavefronts {six}"),
    ]


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/solving_for_a_swizzle my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** An access is free if K and W share only 0. If they share more, how many wavefronts does it take?


# %%
def wavefronts_under(members, access):
    """Exercise 1, finish it: the wavefronts of an access, given by its bit vectors, under the bank map that forgets the
    XORs of `members`."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Look at the lane with offset 0. Which offsets of the access share its bank? They are in two sets.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Every other lane has as many companions as that one: XOR with its offset moves both sets. And `span` makes a set of a
# few vectors.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# As many as K and W share, 0 included. So 1 means no conflict.
#
# ```python
# def wavefronts_under(members, access):
#     return len(span(list(members)) & span(access))
# ```
#
# </details>
#
# **Find the bug.** This function is right for a row, a column and a block of 8 x 8. Of four columns of rows 0 and 3 it
# says that they take one wavefront.


# %%
def wavefronts_by_images(access, parameters, bank_bits=3):
    """Exercise 2, find the bug: the wavefronts of an access, given by independent bit vectors, as `wavefronts`."""
    banks = {swizzled(vector, *parameters) & (1 << bank_bits) - 1 for vector in access}
    independent = len(banks - {0})
    return 1 << len(access) - independent


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Four columns of rows 0 and 3 are the vectors 1, 2 and 24. Print their bank bits under `S303`.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# 1, 2 and 3 are different. Are they independent?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# It counts different vectors. 3 is 1 XOR 2: three different vectors, and a rank of 2.
#
# ```python
# def wavefronts_by_images(access, parameters, bank_bits=3):
#     banks = [swizzled(vector, *parameters) & (1 << bank_bits) - 1 for vector in access]
#     return 1 << len(access) - rank(banks)
# ```
#
# </details>


# %% tags=["folded"]
def counted_under(members: tuple[int, ...], access: list[int], offset_bits: int = 6) -> int:
    """The wavefronts by counting: the bank of every offset, a bit for each mask."""
    masks = bank_rows(members, offset_bits)
    found = [tuple((offset & mask).bit_count() % 2 for mask in masks) for offset in span(access)]
    return max(map(found.count, found))


SOLVED = null_space([ROW, COLUMN], 6, 3)
EXERCISES = {
    "wavefronts_under": lambda f: (
        (f"members {members}, access {access}", f(members, access), counted_under(members, access))
        for members in (SOLVED, (8, 16, 32))
        for access in (ROW, COLUMN, [1, 8, 2], [9, 2, 4], block(4, 2, 8), [9, 18, 36], [1, 8, 2, 16])
    ),
    "wavefronts_by_images": lambda f: (
        (f"access {access}, S<{','.join(map(str, parameters))}>", f(access, parameters), brute(access, parameters))
        for parameters in (S303, NONE, (2, 0, 3))
        for access in (ROW, COLUMN, block(4, 2, 8), [1, 2, 24], [24, 4], [24, 48])
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/solving_for_a_swizzle")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An access is a span of bit vectors, a bank map is what it forgets, and a conflict is an overlap of the two. Two
# accesses can always be reconciled; with more, solve, and if the solver gives up, it can say why.
#
# Next: the accesses that you do not choose, and the layouts made for them:
# [the atoms of the tensor cores](mma_smem_atoms.ipynb).
