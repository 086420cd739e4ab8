# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Fragments and ldmatrix
#     claim: >-
#       One small layout says which thread holds which element of an operand, its inverse answers the reverse question,
#       and ldmatrix delivers exactly that layout.
#     track: foundations
#     order: 60
#     kind: study
#     path: shared memory -> ldmatrix -> registers -> mma.sync
#     sources:
#       - title: "PTX ISA, warp level matrix load: ldmatrix"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"
#       - title: "PTX ISA, matrix fragments for mma.m16n8k8"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-1688"
#       - title: "CUTLASS, CuTe's MMA atoms"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0t_mma_atom.html
# ---

# %% [markdown]
# # Fragments and ldmatrix
#
# **Claim.** `mma.sync` multiplies matrices that lie scattered over the registers of 32 threads. Who holds what is *one
# small layout*: from (thread, value) to the place in the matrix. Its inverse answers "who holds element (m, k)?". And
# `ldmatrix`, which reads eight rows of 16 bytes, hands out exactly what that layout asks for; with `.trans` it also
# transposes the matrix on the way.
#
# A of `mma.m16n8k8`, 16 rows (M) by 8 columns (K). Each cell is an element, with its thread and value; four threads in
# a row share a colour.

# %%
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warp

# %% tags=["lab"]
from cookbook import access, banks, draw
from cookbook.layouts import evaluate


def layouts_of(shape_mnk):
    mma = cute.make_mma_atom(warp.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, shape_mnk))
    return mma.tv_layout_A, mma.tv_layout_B, mma.tv_layout_C


a, b, c = evaluate(layouts_of, (16, 8, 8))
draw.tv_view(a, (16, 8), title="A of mma.m16n8k8, bfloat16")

# %% [markdown]
# One `ldmatrix` fills all of it, in 2 wavefronts where the tile is swizzled and in 8 where rows are 64 bytes apart and
# plain: [below](#what-the-banks-see), bank by bank.
#
# Needed before: [layouts](../primer/layouts.ipynb) as shape and stride, and [bank conflicts](bank_conflicts.ipynb).
# Nothing here needs a GPU.

# %% [markdown]
# ## One thread, by hand
#
# `mma.m16n8k8` on bf16 takes a matrix A of 16 rows (M) and 8 columns (K): 128 elements, 4 for each of 32 threads. CuTe
# says who holds what:
#
#     ((4,8),(2,2)):((32,1),(16,8))
#
# Read it as a recipe for one number. The thread chooses by the first half, `(4,8):(32,1)`, the value by the second,
# `(2,2):(16,8)`. Take thread 22, value 0. Split 22 by the shape (4, 8), first part fastest: 22 = 2 + 4 x 5. So the
# thread adds 2 x 32 + 5 x 1 = 69; value 0 adds nothing.
#
# The number 69 is a place in the matrix, *counted down the columns*: 16 rows in each, so 69 = 5 + 16 x 4. Row 5, column
# 4: **thread 22 holds M5K4 first.** Its value 1 adds 16, the next column: M5K5. Value 2 adds 8, eight rows down: M13K4.
# Value 3: M13K5.
#
# CUTLASS calls this instruction `SM80_16x8x8_F32BF16BF16F32_TN`: the first architecture that has it, M x N x K, the
# types of D, A, B and C, and TN, both operands along K. The one that GEMMs use is twice as deep,
# `SM80_16x8x16_F32BF16BF16F32_TN`, `mma.m16n8k16`. `print_svg` of CUTLASS draws such an atom, as the figure above does.
#
# The same in six lines:


# %%
def offset(shape, stride, coordinate: int) -> int:
    """The offset of a linear coordinate: split by the shape, first part fastest, and weighed by the strides."""
    total = 0
    for extent, step in zip(shape, stride, strict=True):
        coordinate, part = divmod(coordinate, extent)
        total += part * step
    return total


def held_by(thread: int, value: int) -> tuple[int, int]:
    """The (m, k) in A of m16n8k8 that a thread holds as one of its four values."""
    place = offset((4, 8), (32, 1), thread) + offset((2, 2), (16, 8), value)
    return place % 16, place // 16


[held_by(22, value) for value in range(4)]

# %% [markdown]
# ## And the other way round
#
# Who holds M5K4? Take the inverse of the layout. Element (m, k) goes to the number `thread + 32 * value`. CuTe's
# `right_inverse` finds the layout that does it, with one mode for m and one for k. (Other texts call it the *inverse TV
# layout*.)
#
#     ((8,2),(2,4)):((4,64),(32,1))
#
# Row 5 = 5 + 8 x 0 adds 5 x 4 = 20. Column 4 = 0 + 2 x 2 adds 2 x 1. Together 22: thread 22, value 0. You can read the
# whole fragment off it. Eight rows are 4 threads apart, the other eight belong to values 2 and 3 (64 = 2 x 32). Two
# neighbouring columns are the two values of one thread (32), and four such pairs are four threads in a row (1).
#
# The inverse is nothing more than the same steps sorted: the layout goes up by 1 for threads 4 apart, by 8 for values 2
# apart, by 16 for values 1 apart, by 32 for threads 1 apart.


# %%
def ask_cute(question, *args):
    """Return what question(*args) returns inside CuTe, where layouts can be made. No kernel is built, no GPU is
    used."""
    answers = []

    @cute.jit
    def host():
        answers.append(question(*args))

    cute.compile(host, options="--gpu-arch sm_90a")
    return answers[0]


def operands() -> dict[str, str]:
    """The (thread, value) layouts of mma.m16n8k8 on bf16, and the inverse of the first."""
    op = warp.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (16, 8, 8))
    mma = cute.make_mma_atom(op)
    back = cute.right_inverse(mma.tv_layout_A)
    return {
        "A, (thread, value) -> m + 16 k": str(mma.tv_layout_A),
        "A, (m, k) -> thread + 32 value": str(cute.composition(back, cute.make_layout((16, 8)))),
        "B, (thread, value) -> n + 8 k": str(mma.tv_layout_B),
        "C, (thread, value) -> m + 16 n": str(mma.tv_layout_C),
    }


ask_cute(operands)


# %%
def holder_of(m: int, k: int) -> tuple[int, int]:
    """The (thread, value) that holds element (m, k) of A: the inverse layout, by hand."""
    number = offset((8, 2), (4, 64), m) + offset((2, 4), (32, 1), k)
    return number % 32, number // 32


def both_ways_agree() -> bool:
    """Return whether the two layouts undo each other, for every thread and value."""
    return all(holder_of(*held_by(t, v)) == (t, v) for t in range(32) for v in range(4))


holder_of(5, 4), both_ways_agree()

# %% [markdown]
# B is 8 columns of C (N) by 8 (K), and half as large: `((4,8),2):((16,1),8)`, counted by n + 8 k. Thread 22 = 2 + 4 x 5
# adds 2 x 16 + 5 = 37 = 5 + 8 x 4: N5K4, and its value 1 adds 8: N5K5.

# %% tags=["lab"]
draw.tv_view(b, (8, 8), axes=("N", "K"), title="B of mma.m16n8k8, bfloat16")

# %% [markdown]
# C is 16 rows by 8 columns of float32: `((4,8),(2,2)):((32,1),(16,8))`, counted by m + 16 n. It is A's layout, with N
# in the place of K: thread 22 accumulates M5N4, M5N5, M13N4 and M13N5.

# %% tags=["lab"]
draw.tv_view(c, (16, 8), axes=("M", "N"), title="C of mma.m16n8k8, float32")

# %% [markdown]
# All three are made of one piece: an *8 x 8 matrix, two neighbours in each of 32 threads*. B is one of them. A of
# m16n8k8 is two, one below the other; A of m16n8k16 is four. A of m16n8k8 once more, by piece: values 0 and 1 of all
# threads are one, values 2 and 3 the other. Two `ldmatrix.x1` fill it, one colour each, or one `.x2` both.

# %% tags=["lab"]
holders = [[holder_of(m, k) for k in range(8)] for m in range(16)]
draw.number_grid(
    [[thread for thread, _ in row] for row in holders],
    "A of mma.m16n8k8: which ldmatrix brings an element",
    colours=[[value // 2 for _, value in row] for row in holders],
    note="number: the thread that holds it; colour: the first or the second ldmatrix.x1",
)

# %% [markdown]
# ## ldmatrix: eight rows in, 32 pairs out
#
# To gather such a piece with ordinary loads, thread 22 would read 4 bytes at row 5. `ldmatrix` does it for the whole
# warp. **You give it rows, it gives you pairs:** lanes 0 to 7 supply the *addresses* of the eight rows, 16 bytes each.
# Afterwards lane l holds the pair number l of the 32 pairs, row by row, four to a row: elements 2 (l mod 4) and 2 (l
# mod 4) + 1 of row l // 4.
#
# `.x2` and `.x4` do two and four matrices; lanes 8q to 8q + 7 supply the rows of matrix q. In the picture the eight
# rows in memory are on the left, what each lane receives on the right. A colour is one row of four lanes.

# %% tags=["lab"]
draw.ldmatrix_view()


# %%
def ldmatrix_x1(rows: list[list], trans: bool = False) -> list[tuple]:
    """Return what each of the 32 lanes receives, two elements each, of 8 rows of 8 elements."""
    if trans:
        rows = [list(column) for column in zip(*rows, strict=True)]
    return [(rows[lane // 4][2 * (lane % 4)], rows[lane // 4][2 * (lane % 4) + 1]) for lane in range(32)]


along_k = [[f"M{m}K{k}" for k in range(8)] for m in range(8)]  # K-major: a row of memory runs along K
lanes = ldmatrix_x1(along_k)
lanes[0], lanes[22]

# %% [markdown]
# Thread 22 has M5K4 and M5K5, just what the layout of A said. (A lane gets *two* 16-bit elements, one 32-bit register,
# for each matrix; the figures that show one element a lane are of something else.)
#
# **The trap: the operand is stored the other way.** Suppose the tile runs along M, as a column-major A does. The rows
# of memory are now columns of the matrix, and the same instruction hands out pairs along M:

# %%
along_m = [[f"M{m}K{k}" for m in range(8)] for k in range(8)]  # MN-major: a row of memory runs along M
lanes = ldmatrix_x1(along_m)
lanes[0], lanes[22]

# %% tags=["lab"]
draw.ldmatrix_view(mn_major=True)

# %% [markdown]
# Thread 22 has M4K5 and M5K5. `mma` would take them for M5K4 and M5K5: no fault, no warning, a wrong product. `.trans`
# is the cure. The instruction transposes each 8 x 8 matrix between memory and the registers:

# %%
lanes = ldmatrix_x1(along_m, trans=True)
lanes[0], lanes[22]

# %% tags=["lab"]
draw.ldmatrix_view(mn_major=True, trans=True)

# %% [markdown]
# As K-major. **The transpose is ldmatrix's, not the swizzle's.** In the last picture the columns of memory have one
# colour each: the instruction takes the rows apart. A swizzle moves whole 16-byte chunks and never takes one apart, so
# no swizzle can make pairs along M into pairs along K. (`.trans` of 8 x 8 matrices moves 16-bit elements; operands of
# another width are best stored along K.)
#
# ## What the banks see
#
# A warp that loads A of m16n8k8 with one `ldmatrix.x2`, from rows of 64 bytes. Without a swizzle each matrix takes 4
# wavefronts, with that of the 64-byte atom one. A bank that has to give several words is red.

# %% tags=["lab"]
import numpy as np

from cookbook.swizzle import Swizzle

rows_of_a = 64 * np.arange(16)  # 16 rows, first chunk of each
draw.access_view(access.ldmatrix(rows_of_a, 2), title="ldmatrix.x2 of linear rows of 64 bytes")

# %% tags=["lab"]
draw.access_view(access.ldmatrix(Swizzle(2, 4, 3)(rows_of_a), 2), title="ldmatrix.x2 of the 64-byte atom")

# %% [markdown]
# A warp's 32 lanes do not always go to the banks together. It depends on how much each lane wants:
#
# | access | phases | lanes of a phase |
# |---|---|---|
# | 4 bytes a lane, or less | 1 | all 32 |
# | 8 bytes a lane | 2 | 0 to 15, 16 to 31 |
# | 16 bytes a lane | 4 | 8q to 8q + 7 |
# | ldmatrix, stmatrix | one for each matrix: 1, 2 or 4 | 8q to 8q + 7, which give the rows of matrix q |
#
# A phase moves at most 128 bytes, one line, and takes one wavefront if no two of its lanes want different words of one
# bank. The phases are fixed by lane number. Lanes of two phases are *not* recombined, and that is the **trap**: below,
# each phase of a 16-byte load uses two slots only, four times each. All four phases together use each slot four times,
# so a clever memory could serve them in 4 wavefronts. The hardware takes 16.
#
# (There is one exception, counted on an H200 and documented nowhere. A *load* of 8 or 16 bytes serves two neighbouring
# phases in one wavefront if lanes t and t ^ 1, or t and t ^ 2, share their address throughout both, and both together
# ask no bank for two words. [Checking](../../docs/checking.md#the-models-themselves) has the counts.)


# %%
def wavefronts_of_phases(addresses: list[int], width: int) -> list[int]:
    """Wavefronts of each phase of a load of `width` bytes (4, 8 or 16) a lane."""
    size = 32 * 4 // width  # lanes of a phase
    phases = []
    for first in range(0, len(addresses), size):
        asked = [set() for _ in range(32)]
        for address in addresses[first : first + size]:
            for word in range(address // 4, (address + width) // 4):
                asked[word % 32].add(word)
        phases.append(max(len(words) for words in asked))
    return phases


two_slots_each = [128 * lane + 16 * (2 * (lane // 8) + lane % 2) for lane in range(32)]
{
    "4 bytes a lane, in order": wavefronts_of_phases([4 * lane for lane in range(32)], 4),
    "8 bytes a lane, in order": wavefronts_of_phases([8 * lane for lane in range(32)], 8),
    "16 bytes a lane, in order": wavefronts_of_phases([16 * lane for lane in range(32)], 16),
    "16 bytes a lane, two slots a phase": wavefronts_of_phases(two_slots_each, 16),
}

# %% [markdown]
# ## Two block shapes at once
#
# So what should the swizzle of the tile do, if not transpose? It makes *two block shapes* free at once: the one that
# writes and the one that reads.
#
# * The classic transpose of 32 x 32 floats: a warp writes a row, 1 x 128 bytes, and reads a column, 32 x 4 bytes.
#   Pieces of *4 bytes* move: `S<5,2,5>` on bytes.
# * `ldmatrix` on rows of 64 bytes: a phase of the 16-byte writes fills 2 x 64 bytes, and a phase of `ldmatrix` reads
#   8 x 16 bytes. Pieces of *16 bytes* move: `S<2,4,3>`, the 64-byte atom.
#
# One idea, two granularities. In both, the writer sees one whole line, and the reader sees pieces from many lines, each
# in another slot.


# %%
def swizzle(address: int, bits: int, base: int, shift: int) -> int:
    """S<bits,base,shift> on a byte address."""
    return address ^ (address >> shift & ((1 << bits) - 1) << base)


def wavefronts_of_block(rows: int, row_bytes: int, pitch: int, width: int, parameters: tuple[int, int, int]) -> int:
    """Wavefronts of one phase that touches `rows` x `row_bytes` of a tile with rows of `pitch` bytes."""
    plain = [pitch * row + byte for row in range(rows) for byte in range(0, row_bytes, width)]
    return wavefronts_of_phases([swizzle(address, *parameters) for address in plain], width)[0]


def two_shapes(four: tuple[int, int, int], sixteen: tuple[int, int, int]) -> dict[str, int]:
    """Wavefronts of the four block shapes, under a swizzle for 4-byte pieces and one for 16-byte pieces."""
    return {
        "1 x 128 B, by 4 bytes": wavefronts_of_block(1, 128, 128, 4, four),
        "32 x 4 B, by 4 bytes": wavefronts_of_block(32, 4, 128, 4, four),
        "2 x 64 B, by 16 bytes": wavefronts_of_block(2, 64, 64, 16, sixteen),
        "8 x 16 B, by 16 bytes": wavefronts_of_block(8, 16, 64, 16, sixteen),
    }


two_shapes((5, 2, 5), (2, 4, 3))

# %% [markdown]
# And without any swizzle:

# %%
two_shapes((0, 2, 5), (0, 4, 3))

# %% [markdown]
# ## Check
#
# `cookbook check foundations/fragments_and_ldmatrix` computes each claim of this page, by these lines:


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    a, back, b, of_c = ask_cute(operands).values()
    k, m, turned = ldmatrix_x1(along_k), ldmatrix_x1(along_m), ldmatrix_x1(along_m, trans=True)
    phases = [wavefronts_of_phases([width * lane for lane in range(32)], width) for width in (4, 8, 16)]
    apart = wavefronts_of_phases(two_slots_each, 16)
    swizzled, linear = (list(two_shapes(*p).values()) for p in (((5, 2, 5), (2, 4, 3)), ((0, 2, 5), (0, 4, 3))))
    return [
        ("layout_of_a", a == "((4,8),(2,2)):((32,1),(16,8))", f"A of m16n8k8: {a}"),
        ("inverse_of_a_layout", back == "((8,2),(2,4)):((4,64),(32,1))" and both_ways_agree(), f"its inverse: {back}"),
        ("layout_of_c", of_c == a, f"C of m16n8k8: {of_c}"),
        ("layout_of_b", b == "((4,8),2):((16,1),8)", f"B of m16n8k8: {b}"),
        (
            "ldmatrix_along_k",
            (k[0], k[22]) == (("M0K0", "M0K1"), ("M5K4", "M5K5")) and k[22] == tuple(
                "M{}K{}".format(*held_by(22, value)) for value in range(2)),
            f"T0, T22: {k[0]}, {k[22]}",
        ),
        ("ldmatrix_along_m", (m[0], m[22]) == (("M0K0", "M1K0"), ("M4K5", "M5K5")), f"T0, T22: {m[0]}, {m[22]}"),
        ("ldmatrix_trans", turned == k, f"with .trans as along K: {turned[22]}"),
        ("two_block_shapes", swizzled == [1] * 4 and linear == [1, 32, 1, 4], f"{swizzled}; linear {linear}"),
        ("phases", phases == [[1], [1, 1], [1, 1, 1, 1]], f"wavefronts of 4, 8, 16 bytes a lane: {phases}"),
        ("phases_are_not_recombined", apart == [4, 4, 4, 4], f"two slots a phase: {sum(apart)} wavefronts"),
    ]  # fmt: skip


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# Our few lines against the model of the instruction, written from the PTX manual, and against CuTe's own layouts of the
# copy atoms. For CuTe, `ldmatrix` is a copy whose destination layout says which lane gets which element.

# %% tags=["lab"]
from cookbook.layouts import tile_coords
from cookbook.model import SharedMemory, ldmatrix


def copy_layout(trans, num):
    """Return what lane and value of the destination hold, as an index into the rows of memory."""
    op = warp.LdMatrix8x8x16bOp(transpose=trans, num_matrices=num)
    return cute.make_copy_atom(op, cutlass.BFloat16).layout_dst_tv


matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
smem = SharedMemory(128)
smem.write(16 * np.arange(8), matrix)
rows = 16 * (np.arange(32) % 8)
for trans in (False, True):
    ours = ldmatrix_x1(matrix.tolist(), trans)
    model = ldmatrix(smem, rows, 1, trans)[:, 0]
    print("trans" if trans else "plain", "ours equals the model:", np.array_equal(ours, model))
print("CuTe's layout of ldmatrix.x1, lane and value to element:", evaluate(copy_layout, False, 1))

# %% [markdown]
# And after the `ldmatrix.x2` from above, thread by thread, the fragment is the one that the layout of A asks for:

# %% tags=["lab"]
tile = np.arange(16 * 8, dtype=np.uint16).reshape(16, 8)
smem = SharedMemory(1024)
smem.write(Swizzle(2, 4, 3)(rows_of_a), tile)
lanes_16 = np.resize(Swizzle(2, 4, 3)(rows_of_a), 32)
fragment = ldmatrix(smem, lanes_16, 2).reshape(32, 4)
wanted = tile_coords(a, (16, 8))
print("every thread has its elements of A:", np.array_equal(fragment, tile[wanted[..., 0], wanted[..., 1]]))
print("phases of the bank model agree:", [
    [phase.wavefronts for phase in banks.wavefronts(np.array(two_slots_each), 16).phases],
    wavefronts_of_phases(two_slots_each, 16),
])  # fmt: skip

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/fragments_and_ldmatrix my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** One `ldmatrix.x4` fills A of `mma.m16n8k16`, four matrices of 8 x 8. Its values are in the layout
# `((4,8),(2,2,2)):((32,1),(16,8,128))`, and place 128 is column 8. A thread's values 0 and 1 come from matrix 0, values
# 2 and 3 from matrix 1, and so on.


# %%
def row_of(lane):
    """Exercise 1, finish it: (m, k), the first element of the row whose address a lane gives to that ldmatrix.x4, for
    A of 16 x 16 stored along K."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Lanes 8q to 8q + 7 give the rows of matrix q. So a lane has two numbers: that of its matrix, and its row in there.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Where is matrix q in A? Read the strides of the value: value 2 lies 8 places on, value 4 lies 128 places on. Places
# count down the columns, 16 to a column.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Matrix 1 is 8 rows below matrix 0, matrix 2 is 8 columns to the right of it.
#
# ```python
# def row_of(lane):
#     matrix, row = divmod(lane, 8)
#     return row + 8 * (matrix % 2), 8 * (matrix // 2)
# ```
#
# </details>
#
# **Find the bug.** A thread stores its four accumulators of m16n8k8 in C, whose rows are `pitch` elements apart. Thread
# 0 stores its first one right, and no other.


# %%
def stored_at(thread, value, pitch):
    """Exercise 2, find the bug: where in C, row-major, a thread stores one of its four accumulators, in elements."""
    place = offset((4, 8), (32, 1), thread) + offset((2, 2), (16, 8), value)
    m, n = place // 8, place % 8
    return m * pitch + n


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Value 1 of thread 0 is at place 16. Which row and column of C is it, by the picture of C? Which does the function say?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# C has 16 rows and 8 columns. Does a place count along the rows, or down the columns?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# A place counts down the columns: m + 16 n.
#
# ```python
# def stored_at(thread, value, pitch):
#     place = offset((4, 8), (32, 1), thread) + offset((2, 2), (16, 8), value)
#     m, n = place % 16, place // 16
#     return m * pitch + n
# ```
#
# </details>


# %% tags=["folded"]
def check_rows(answer):
    """Every thread's eight values: what `ldmatrix` hands out of these rows, and what the MMA's layout asks for."""
    rows = [[(m, k + i) for i in range(8)] for m, k in map(answer, range(32))]
    pairs = [ldmatrix_x1(rows[first : first + 8]) for first in range(0, 32, 8)]
    for thread in range(32):
        places = [offset((4, 8), (32, 1), thread) + offset((2, 2, 2), (16, 8, 128), value) for value in range(8)]
        got = [element for matrix in pairs for element in matrix[thread]]
        yield f"(m, k) of the values of thread {thread}", got, [(place % 16, place // 16) for place in places]


EXERCISES = {
    "row_of": check_rows,
    "stored_at": lambda f: (
        (
            f"thread {thread}, value {value}, pitch {pitch}",
            f(thread, value, pitch),
            (thread // 4 + 8 * (value // 2)) * pitch + 2 * (thread % 4) + value % 2,
        )
        for pitch in (8, 100)
        for thread in range(32)
        for value in range(4)
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/fragments_and_ldmatrix")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A fragment is a layout, and its inverse tells who holds an element. `ldmatrix` takes eight rows of 16 bytes and hands
# out 32 pairs; `.trans` transposes each matrix, which no swizzle can do. The swizzle's part is that both the writes and
# these reads are free of conflicts.
#
# Next: on Hopper and later the tensor core reads shared memory itself, and has to be told where things are:
# [matrix descriptors](matrix_descriptors.ipynb). A kernel that uses all of this page:
# [`ampere/ldmatrix_gemm`](../ampere/ldmatrix_gemm.ipynb).
