# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: The swizzle parameters B, M and S
#     claim: >-
#       The swizzle (B, M, S) keeps 2^M elements together and XORs B bits from S places higher; three logarithms of the
#       tile give the values.
#     kind: study
#     measures: wavefronts
#     track: foundations
#     order: 30
#     targets: [sm_80, sm_90a, sm_100a]
#     runs_on: sm_80+
#     path: global -> 16-byte pieces in swizzled rows -> 16-byte pieces of columns -> global
#     instructions: [LDG.E.128, STS.128, LDS.128, STG.E.128]
#     sources:
#       - title: "reed, CuTe's Swizzle (Chinese): B, M and S on one picture"
#         url: https://zhuanlan.zhihu.com/p/671419093
#       - title: "CUTLASS-Cute (4): Swizzle (Chinese): the same tiles, drawn with cute_viz"
#         url: "https://github.com/hxf0223/hxf0223.github.io/blob/main/_posts/2025-02-26-Cute%E5%88%9D%E6%AD%A54-swizzle.md"
#       - title: "Lei Mao, CuTe Swizzle: vectors"
#         url: https://leimao.github.io/blog/CuTe-Swizzle/
#       - title: "CUTLASS, swizzle.hpp: the definition"
#         url: https://github.com/NVIDIA/cutlass/blob/main/include/cute/swizzle.hpp
#       - title: "CUTLASS issue 1038, two layouts: which swizzle?"
#         url: https://github.com/NVIDIA/cutlass/issues/1038
#       - {title: "Vijay Krishnamoorthy, Decoding Swizzle<B,M,S>, an interactive tile", url: "https://vjkrish.com/2026/02/22/Swizzling.html"}
# ---

# %% [markdown]
# # The swizzle parameters B, M and S
#
# **Claim.** `Swizzle<B,M,S>` is `col ^ row` with three knobs: **M** says how many elements stay together, **B** how
# many bits are mixed, **S** how far above them the other bits are read. For a row-major tile whose sizes are powers of
# two, all three follow from the row length, the element size and the vector that a thread moves.
#
# `Swizzle<3,2,3>` on a tile of 8 rows of 32, in elements. ([Bank
# conflicts](bank_conflicts.ipynb#the-swizzle-of-this-tile) has the same three numbers, in bytes.) Columns are bits 0 to
# 4, rows bits 5 to 7: the swizzle reads the row and changes the upper part of the column.

# %% tags=["lab"]
from cookbook import draw
from cookbook.swizzle import Swizzle

draw.swizzle_bits(Swizzle(3, 2, 3), fields={"column": 5, "row": 3})

# %% [markdown]
# With the right three numbers a column read of 32 rows of 64 halves takes 4 wavefronts, the least for 16 bytes a lane;
# without a swizzle it takes 32. Nsight Compute's count is [below](#counted-by-a-profiler). The rule that most
# articles give for the three fails for short rows and for small vectors. The one below does not.
#
# [The XOR swizzle](xor_swizzle.ipynb) built `col ^ row`; this page says it in the three numbers that CuTe takes.

# %%
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## An example first
#
# `Swizzle<3,2,3>` on the offset 36, which is 0b100100. M = 2: the two lowest bits, `00`, are left alone. The next
# three, `001`, will change: they are called **zzz**. S = 3 bits above them stand the ones that are read, **yyy**:
# `001`. XOR: `001 ^ 001 = 000`. So 36 becomes 0b100000 = 32. In code it is one line and two masks:


# %%
def masks(B: int, M: int, S: int) -> tuple[int, int]:
    """(yyy, zzz): the bits that are read, and those that change. A negative S reads below."""
    ones = (1 << B) - 1
    return ones << (M + max(S, 0)), ones << (M - min(S, 0))


def swizzle(offset: int, B: int, M: int, S: int) -> int:
    """Swizzle<B,M,S>: the zzz bits are XORed with the yyy bits."""
    if abs(S) < B:
        raise ValueError(f"S: got {S} for B = {B}; needed |S| >= B, or yyy and zzz overlap")
    read = offset & masks(B, M, S)[0]
    return offset ^ (read >> S if S >= 0 else read << -S)


yyy, zzz = masks(3, 2, 3)
swizzle(36, 3, 2, 3), f"yyy {yyy:08b}", f"zzz {zzz:08b}"

# %% [markdown]
# The function reads **yyy** alone. The bits arrive at zzz, which follows from yyy and S. CuTe's `Swizzle` defines a
# mask for zzz too, but does not compute with it.
#
# The meaning of each parameter, as a statement that you can test:
#
# * **M**: 2^M neighbours stay neighbours. It is the size of a vector.
# * **Period**: no bit from B + M + |S| up matters, so the pattern repeats every 2^(B+M+|S|) elements.
# * **Legal** when |S| >= B. Then what is read never changes, and applying the swizzle twice gives everything back. If
#   the two overlapped it would still lose nothing, but it would no longer undo itself, and CuTe does not take it.
# * **Negative S**: the bits that are read lie *below* the ones that change.


# %%
def together(B: int, M: int, S: int) -> int:
    """Return how many neighbours stay neighbours: the largest power of two."""
    size = 1
    while all(swizzle(o + 1, B, M, S) == swizzle(o, B, M, S) + 1 for o in range(4096) if (o + 1) % (2 * size)):
        size *= 2
        if size == 4096:
            break
    return size


def period(B: int, M: int, S: int) -> int:
    """After how many offsets the pattern repeats: o + period goes where o went, plus the period."""
    moved = [swizzle(o, B, M, S) for o in range(4096)]
    sizes = (1 << i for i in range(12))
    return next(p for p in sizes if all(moved[o + p] == moved[o] + p for o in range(4096 - p)))


def undoes_itself(B: int, M: int, S: int) -> bool:
    """Return whether twice is the identity, without asking whether it is legal."""
    moved = [o ^ ((o & masks(B, M, S)[0]) >> S) for o in range(4096)]
    return all(moved[moved[o]] == o for o in range(4096))


CASES = [(3, 2, 3), (2, 1, 2), (1, 4, 3), (2, 0, 5), (2, 3, -3)]
[(f"<{B},{M},{S}>", together(B, M, S), period(B, M, S)) for B, M, S in CASES]

# %% [markdown]
# (kept together, period). And the test of legality: `<3,0,3>` undoes itself, `<3,0,2>` does not. A negative shift:
# under `<2,3,-3>` bits 3 and 4 are read and bits 6 and 7 change, so 8 becomes 8 + 64.

# %%
undoes_itself(3, 0, 3), undoes_itself(3, 0, 2), swizzle(8, 2, 3, -3)

# %% tags=["lab"]
draw.swizzle_bits(Swizzle(2, 3, -3), n=9)

# %% [markdown]
# ## On a tile: 8 rows of 32
#
# Offsets count elements: element (row, col) of 8 x 32 is offset 32 row + col. Column 0 under `<3,2,3>`:


# %%
def column(rows: int, cols: int, col: int, B: int, M: int, S: int) -> list[int]:
    """Swizzled offsets of one column of a row-major tile."""
    return [swizzle(row * cols + col, B, M, S) for row in range(rows)]


column(8, 32, 0, 3, 2, 3)

# %% [markdown]
# The whole tile, by offset. Each row starts 4 elements later than the one above; four neighbours stay together (one
# colour: 16 bytes of float). (The Python package `cute_viz` draws this grid from CuTe objects, with
# `render_swizzle_layout_svg`; it counts elements too.)

# %% tags=["lab"]
draw.layout_grid(
    [[swizzle(32 * row + col, 3, 2, 3) for col in range(32)] for row in range(8)],
    title="Swizzle<3,2,3> on 8 x 32 floats, all columns",
    mark=[(row, 0) for row in range(8)],
)

# %% [markdown]
# For floats that is right: 4 elements are 16 bytes, the widest piece that a thread moves, and eight rows start in eight
# different groups of four banks. For *half* precision 4 elements are 8 bytes, and a 16-byte piece of 8 elements is torn
# in two:

# %%
{row: [swizzle(32 * row + i, 3, 2, 3) for i in range(8)] for row in (0, 1)}

# %% [markdown]
# Row 1 has the second half of its piece before the first. No 16-byte load can fetch that; M must be 3 for such
# elements.
#
# ### Trap: "the period of `<3,3,3>` is eight rows"
#
# With rows of 64 halves it is. Take rows of 32: S + M = 6, so the bits that are read begin at offset 2^6 = 64, which is
# *two* rows. Rows 0 and 1 are read as 0, and so are rows 16 and 17: the period is 2^(3+3+3) = 512 elements, 16 rows.

# %% [markdown]
# `<3,3,3>` on rows of 32 begins to read at bit 6, and so misses the lowest row bit:

# %% tags=["lab"]
draw.swizzle_bits(Swizzle(3, 3, 3), fields={"column": 5, "row": 4})


# %%
def unchanged_rows(rows: int, cols: int, B: int, M: int, S: int) -> list[int]:
    """Rows in which nothing moves."""
    return [r for r in range(rows) if all(swizzle(o, B, M, S) == o for o in range(r * cols, (r + 1) * cols))]


unchanged_rows(32, 32, 3, 3, 3), period(3, 3, 3) // 32

# %% [markdown]
# Is that a fault? Count. Shared memory takes an access of 16 bytes a lane in
# [phases](../../docs/glossary.md#phase-access) of 8 lanes, 128 bytes; let 8 lanes read one piece of each of the 8 rows.


# %%
def wavefronts(addresses: list[int], width: int = 4, banks: int = 32) -> int:
    """Wavefronts for the lanes' byte addresses, `width` bytes each: wide accesses go in phases of banks * 4 bytes."""
    phase, total = max(1, banks * 4 // max(width, 4)), 0
    for first in range(0, len(addresses), phase):
        wanted = [set() for _ in range(banks)]
        for address in addresses[first : first + phase]:
            for word in range(address // 4, (address + width - 1) // 4 + 1):
                wanted[word % banks].add(word)
        total += max(map(len, wanted))
    return total


HALF = {spec: wavefronts([2 * o for o in column(8, 32, 0, *spec)], 16) for spec in ((0, 3, 3), (2, 3, 3), (3, 3, 3))}
HALF

# %% [markdown]
# Four wavefronts plain, one under `<2,3,3>` and under `<3,3,3>`. Two rows of 64 bytes fill one round of the banks side
# by side; only the next pair needs a shift. With 8 rows there are four pairs, so two bits are enough, and the third bit
# of `<3,3,3>` reads a row bit that is always 0.
#
# ## Four swizzles of one tile: 32 rows of 16
#
# Now 4-byte elements, one at a time (M = 0), and rows of 16: half a round of the banks. Which rows does each swizzle
# leave unchanged?

# %%
[(f"<{B},{M},{S}>", unchanged_rows(32, 16, B, M, S)) for B, M, S in ((4, 0, 4), (3, 0, 4), (3, 0, 3), (4, 0, 5))]

# %% [markdown]
# `<4,0,4>` reads all four bits just above the column: the pattern repeats after 16 rows. `<3,0,4>` reads three of them
# and repeats after 8. `<4,0,5>` skips the lowest row bit, so rows go in pairs.
#
# `<3,0,3>` reads from *inside* the column: bits 3, 4 and 5, that is the top bit of the column and two of the row. In
# one formula: `col ^ (2 * (row mod 4) + col / 8)`. So there is a law in both halves of a row: the right half is the
# left half, XOR 1.


# %%
def by_hand(row: int, col: int) -> int:
    """Return what <3,0,3> does to a column of a row of 16."""
    return col ^ (2 * (row % 4) + col // 8)


def pairs_up(rows: int, cols: int, B: int, M: int, S: int) -> bool:
    """Return whether rows 2i and 2i + 1 are changed in the same way."""
    moved = [[swizzle(r * cols + c, B, M, S) % cols for c in range(cols)] for r in range(rows)]
    return moved[0::2] == moved[1::2]


def right_is_left_xor_1() -> bool:
    """Return whether, under <3,0,3>, places in the right half of every row are those of the left half, XOR 1."""
    moved = [[swizzle(16 * r + c, 3, 0, 3) % 16 for c in range(16)] for r in range(32)]
    return all(row[8 + c] - 8 == row[c] ^ 1 for row in moved for c in range(8))


by_hand_is_right = all(swizzle(16 * r + c, 3, 0, 3) == 16 * r + by_hand(r, c) for r in range(32) for c in range(16))
by_hand_is_right, right_is_left_xor_1(), pairs_up(32, 16, 4, 0, 5), pairs_up(32, 16, 4, 0, 4)

# %% tags=["lab"]
HALVES = [[swizzle(16 * r + c, 3, 0, 3) % 16 for c in range(16)] for r in range(8)]
draw.beside(
    [
        draw.number_grid([row[:8] for row in HALVES], "left: columns 0 to 7"),
        draw.number_grid(
            [row[8:] for row in HALVES], "right: columns 8 to 15", colours=[[x - 8 for x in row[8:]] for row in HALVES]
        ),
    ],
    "<3,0,3> on rows of 16: the column at which each element is stored",
)

# %% [markdown] tags=["lab"]
# Any other swizzle of such a tile; a cell says its bank, and a colour is four banks. Here M counts bytes: M = 2 keeps
# an element whole, so this is `<3,0,3>` of the text. Set S to 4 and B to 4, then S to 5, and read column 0 downwards:
# which of the two puts its 32 elements into 32 different banks?
#
# <swizzle-view rows="32" columns="16" bits="32" swizzle="3,2,3">
# `cookbook banks --tile 32x16 --bits 32 --swizzle 3,2,3 --access ld32@32x1`
# </swizzle-view>

# %% [markdown]
# ### Trap: "`<4,0,5>` is worse, because two rows share a pattern"
#
# Count before you judge. 32 lanes read column 0 of the 32 rows:

# %%
ON_32 = {(B, M, S): wavefronts([4 * o for o in column(32, 16, 0, B, M, S)]) for B, M, S in ((4, 0, 4), (4, 0, 5))}
ON_16 = {
    (B, M, S): wavefronts([4 * o for o in column(16, 16, 0, B, M, S)], banks=16) for B, M, S in ((4, 0, 4), (4, 0, 5))
}
{"32 rows on 32 banks": ON_32, "16 rows on 16 banks": ON_16}

# %% [markdown]
# The bank of each element, 32 rows of 16 floats on 32 banks. Column 0 is framed; red cells meet in a bank.

# %% tags=["lab"]
GRIDS = {spec: [[swizzle(16 * r + c, *spec) for c in range(16)] for r in range(32)] for spec in ON_32}
draw.before_after(
    *GRIDS.values(), mark=[(r, 0) for r in range(32)], titles=("<4,0,4>", "<4,0,5>"), title="32 rows of 16 on 32 banks"
)

# %% [markdown]
# On 32 banks `<4,0,5>` is the free one. A row of 16 words is half a round, so rows 0 and 1 lie in different halves of
# the banks anyway, and *need* no different pattern. `<4,0,4>` spends a bit on telling them apart and has none left for
# rows 0 and 16, which meet. On a toy with 16 banks a row is a whole round, and it is the other way round:

# %% tags=["lab"]
draw.before_after(
    *(grid[:16] for grid in GRIDS.values()),
    banks=16,
    mark=[(r, 0) for r in range(16)],
    titles=("<4,0,4>", "<4,0,5>"),
    title="16 rows of 16 on a toy with 16 banks",
)

# %% [markdown]
# A swizzle is not good or bad; it fits a row length and a number of banks.
#
# ## Choosing B, M and S
#
# The common rule, for rows of X elements of s bytes, read in vectors of N elements: M = log2 N, S = log2 X - M, B =
# log2(128 / s) - M. It says: keep a vector together; read the bits of the row, which begin where a row
# ends; mix as many as there are vectors in 128 bytes, one round of the banks.


# %%
def log2(power: int) -> int:
    return power.bit_length() - 1


def common_rule(X: int, s: int, N: int) -> tuple[int, int, int]:
    """(B, M, S) as many articles have it."""
    M = log2(N)
    return log2(128 // s) - M, M, log2(X) - M


{"half, rows of 64, 8 at a time": common_rule(64, 2, 8), "half, rows of 32, 8 at a time": common_rule(32, 2, 8)}

# %% [markdown]
# ### Trap: where the common rule fails
#
# *Rows shorter than 128 bytes.* Rows of 32 half are 64 bytes: the rule says `<3,3,2>`, and |S| < B is illegal. Cutting
# B down to S gives `<2,3,2>`, which is legal and *2-way*: it reads the lowest row bit, which the banks tell apart
# already.
#
# *Vectors under 4 bytes.* Half, one element at a time, rows of 64: the rule has M = 0, and swaps the two halves of a
# word. That spends a bit on a place inside a bank, where nothing is to be won.


# %%
def cut(rule: tuple[int, int, int]) -> tuple[int, int, int]:
    """B cut down to S."""
    B, M, S = rule
    return min(B, S), M, S


def column_wavefronts(X: int, s: int, N: int, spec: tuple[int, int, int], lanes: int = 32) -> set[int]:
    """Wavefronts beyond one a phase, over all columns of vectors, for `lanes` rows."""
    width, phases = N * s, max(1, lanes * N * s // 128)
    found = {wavefronts([s * swizzle(r * X + v, *spec) for r in range(lanes)], width) for v in range(0, X, N)}
    return {count - phases for count in found}


short, narrow = cut(common_rule(32, 2, 8)), common_rule(64, 2, 1)
{
    f"half 8 x 32, 16 bytes, {short}": wavefronts([2 * o for o in column(8, 32, 0, *short)], 16),
    f"half 32 x 64, 2 bytes, {narrow}": wavefronts([2 * o for o in column(32, 64, 0, *cut(narrow))], 2),
}

# %% [markdown]
# Half, 8 rows of 32, in 16-byte pieces (a colour is four banks). Left `<2,3,2>`, the common rule cut down; right
# `<2,3,3>`. Read a column of pieces downwards: each colour twice, and each once.

# %% tags=["lab"]
from cookbook.layouts import Layout, SmemLayout, evaluate

TWO = {spec: SmemLayout(Layout((8, 32), (32, 1)), Swizzle(*spec).in_bytes(16), 16) for spec in ((2, 3, 2), (2, 3, 3))}
draw.beside([draw.bank_grid(tile, title=f"<{','.join(map(str, spec))}>") for spec, tile in TWO.items()], "8 x 32 half")

# %% [markdown]
# The rule that holds counts in *units*. A unit is a vector, or a word if that is larger, because a bank is a word wide.
# A round of the banks has 2^t units, a row 2^x:
#
# > M = log2 max(N, 4/s),   t = log2(128/s) - M,   x = log2 X - M
# >
# > B = min(t, x),   S = max(t, x)
#
# Rows longer than a round (x > t): t bits, read from where rows begin. Rows shorter (x < t): the rows of one round lie
# in different banks already. So read from where *rounds* begin, S = t, and mix only the x bits that a row has.


# %%
def rule(X: int, s: int, N: int) -> tuple[int, int, int]:
    """(B, M, S) for rows of X elements of s bytes, read and written in vectors of N: all powers of two."""
    M = max(log2(N), 2 - log2(s))
    t, x = log2(128 // s) - M, log2(X) - M
    return min(t, x), M, max(t, x)


{
    "half, rows of 64, 16 bytes": rule(64, 2, 8),
    "half, rows of 32, 16 bytes": rule(32, 2, 8),
    "float, rows of 32, 4 bytes": rule(32, 4, 1),
    "float, rows of 16, 4 bytes": rule(16, 4, 1),
    "half, rows of 64, 2 bytes": rule(64, 2, 1),
}

# %% [markdown]
# All power-of-two cases: elements of 1 to 16 bytes, vectors of up to 16 bytes, rows of any length. Is the column
# read free, and the row store too, and does each vector stay in one piece?


# %%
def row_wavefronts(X: int, s: int, N: int, spec: tuple[int, int, int]) -> set[int]:
    """Wavefronts beyond one a phase when 32 lanes store neighbouring vectors, over many starts."""
    phases = max(1, 32 * N * s // 128)
    starts = range(0, 32 * X, 32 * N)
    return {wavefronts([s * swizzle(first + N * k, *spec) for k in range(32)], N * s) - phases for first in starts}


def in_one_piece(X: int, N: int, spec: tuple[int, int, int]) -> bool:
    return all(swizzle(o, *spec) + i == swizzle(o + i, *spec) for o in range(0, 8 * X, N) for i in range(N))


def sweep(choose, longest: int) -> dict[str, int]:
    """Return how many (element, vector, row) cases are served, conflict somewhere, or get an illegal swizzle."""
    found = {"free": 0, "conflicts": 0, "illegal": 0}
    powers = [1 << i for i in range(longest.bit_length())]
    for s in (1, 2, 4, 8, 16):
        for N in (n for n in powers if n * s <= 16):
            for X in (x for x in powers if max(N, 4 // s) <= x <= longest):
                found[_verdict(X, s, N, choose(X, s, N))] += 1
    return found


def _verdict(X: int, s: int, N: int, spec: tuple[int, int, int]) -> str:
    B, _, S = spec
    if B < 0 or abs(S) < B:
        return "illegal"
    free = column_wavefronts(X, s, N, spec) == row_wavefronts(X, s, N, spec) == {0} and in_one_piece(X, N, spec)
    return "free" if free else "conflicts"


sweep(rule, 32), sweep(common_rule, 32)

# %% [markdown]
# This page's rule first, then the common one, for rows of up to 32 elements. And further, up to 256, with the common
# rule cut down too:

# %% tags=["lab"]
RULES = {"common": common_rule, "common, B cut to S": lambda *case: cut(common_rule(*case)), "this page's": rule}
for name, choose in RULES.items():
    print(f"{name:20}", sweep(choose, 256))

# %% [markdown]
# ## The kernel
#
# Half, 32 rows of 64, 16 bytes a lane: the rule gives `<3,3,3>` in elements, `<3,4,3>` in bytes, which is the swizzle
# that TMA and the tensor cores call SW128. One warp stores rows of 16-byte pieces (8 lanes a row) and loads columns of
# pieces (lane = row). `autovec_copy` copies in the widest accesses that layout and alignment allow. With 0 bits the
# load is 8-way.


# %%
@dataclass(frozen=True)
class Config:
    """The configuration of a launch."""

    threads: int = 32
    smem_bytes: int = 2 * 32 * 64


CONFIG = Config()
DTYPE = cutlass.Float16
KERNELS = {"plain": 0, "swizzled": 3}  # bits


def smem_layout(bits: int) -> cute.ComposedLayout:
    """32 rows of 64 half, 16-byte pieces swizzled by `bits` (3 by the rule, 0 plain). Inside a jit function only."""
    rows = cute.make_layout((32, 64), stride=(64, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


@cute.kernel
def columns_kernel(mX: cute.Tensor, mY: cute.Tensor, bits: cutlass.Constexpr):
    """Y (8, 32, 8) = the pieces of X (32, 64) column by column; one warp."""
    lane, _, _ = cute.arch.thread_idx()
    layout = smem_layout(bits)
    tile = SmemAllocator().allocate_tensor(DTYPE, layout.outer, 1024, layout.inner)
    gX, sX = (cute.logical_divide(x, (None, 8)) for x in (mX, tile))  # (row, (element, piece))
    for i in cutlass.range(8, unroll=1):
        row, piece = 4 * i + lane // 8, lane % 8
        cute.autovec_copy(gX[row, (None, piece)], sX[row, (None, piece)])
    cute.arch.sync_threads()
    for piece in cutlass.range(8, unroll=1):
        cute.autovec_copy(sX[lane, (None, piece)], mY[piece, lane, None])


@cute.jit
def launch(pX: cute.Pointer, pY: cute.Pointer, variants: cutlass.Constexpr):
    """The kernel once for each number of bits in `variants`."""
    mX = cute.make_tensor(pX, cute.make_layout((32, 64), stride=(64, 1)))
    mY = cute.make_tensor(pY, cute.make_layout((8, 32, 8), stride=(256, 8, 1)))
    for bits in cutlass.const_expr(variants):
        columns_kernel(mX, mY, bits).launch(grid=(1, 1, 1), block=(CONFIG.threads, 1, 1))


def pointers(*addresses: int) -> list:
    """Typed pointers to 16-byte aligned half in global memory."""
    gmem = cute.AddressSpace.gmem
    return [cute.runtime.make_ptr(DTYPE, a, gmem, assumed_align=16) for a in addresses]


def compile_for(arch: str, options: str = ""):
    """Compile for `arch` ("sm_90a"), plain and swizzled, with dummy pointers: no GPU is needed."""
    return cute.compile(
        launch, *pointers(16, 16), tuple(KERNELS.values()), options=f"--gpu-arch {arch} {options}".strip()
    )


def columns(x: torch.Tensor, bits: int = 3) -> torch.Tensor:
    """(8, 32, 8): piece p of every row of a contiguous (32, 64) float16 tensor on a GPU, swizzled by `bits` (0 or 3).

    Raises:
        ValueError: names the argument, what it got and what it needs.
    """
    if x.shape != (32, 64) or x.dtype != torch.float16 or not x.is_contiguous() or not x.is_cuda:
        got = f"{tuple(x.shape)} {x.dtype} on {x.device}"
        raise ValueError(f"x: got {got}; needed a contiguous (32, 64) torch.float16 on a CUDA device")
    if bits not in KERNELS.values():
        raise ValueError(f"bits: got {bits}; needed 0 (conflicts) or 3 (none)")
    y = torch.empty((8, 32, 8), dtype=x.dtype, device=x.device)
    arguments = pointers(x.data_ptr(), y.data_ptr())
    torch.cuda.synchronize()  # the kernel runs on the default stream
    cute.compile(launch, *arguments, (bits,))(*arguments)
    torch.cuda.synchronize()
    return y


# %% [markdown]
# ## Counted by a profiler
#
# Which element each lane begins with, at every step of the two loops. With `smem_layout` that predicts the wavefronts
# of both instructions of both kernels:


# %%
class Move(NamedTuple):
    """The warp's accesses to the tile in shared memory, one a step."""

    width: int  # elements a lane, side by side
    steps: int
    place: Callable[[Any, Any], tuple[Any, Any]]  # (lane, step) -> (row, column) of the lane's first element


MOVES = {
    "r2s": Move(8, 8, lambda lane, step: (4 * step + lane // 8, 8 * (lane % 8))),  # STS.128: four rows a step
    "s2g": Move(8, 8, lambda lane, step: (lane, 8 * step)),  # LDS.128: a column of pieces a step
}


def try_out(bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch on a GPU, on normal numbers: what it gave, and what it should have."""
    x = torch.randn(32, 64, device="cuda", dtype=torch.float16)
    return columns(x, bits), x.view(32, 8, 8).transpose(0, 1)


# %% [markdown]
# Nsight Compute counts the wavefronts of every instruction of a kernel that runs. `cookbook check
# foundations/swizzle_parameters --tools --record` has it look at both kernels, and holds each instruction against
# `cookbook.banks`:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import counted_table

Markdown(counted_table("foundations/swizzle_parameters"))

# %% [markdown]
# ## Check
#
# `cookbook check foundations/swizzle_parameters` computes each claim of this page, by these lines:


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    knobs = all((together(B, M, S), period(B, M, S)) == (1 << M, 1 << (B + M + abs(S))) for B, M, S in CASES)
    below = (masks(2, 3, -3), swizzle(8, 2, 3, -3)) == ((0b11000, 0b11000000), 72)
    legal = (undoes_itself(3, 0, 3), undoes_itself(3, 0, 2)) == (True, False)
    zero, torn = column(8, 32, 0, 3, 2, 3), [swizzle(32 + i, 3, 2, 3) for i in range(8)]
    still = unchanged_rows(32, 32, 3, 3, 3)
    still_4, still_3 = unchanged_rows(32, 16, 4, 0, 4), unchanged_rows(32, 16, 3, 0, 4)
    checked, fixed = sweep(rule, 64), wavefronts([2 * o for o in column(8, 32, 0, *short)], 16)
    usual = sweep(common_rule, 64)
    return [
        (
            "what_the_parameters_mean",
            knobs and below and legal and masks(3, 2, 3) == (0xE0, 0x1C),
            f"2^M together, period 2^(B+M+S): {knobs}; <3,0,3>, <3,0,2> undo themselves: {legal}; below: {below}",
        ),
        (
            "eight_rows_of_32",
            zero == [0, 36, 72, 108, 144, 180, 216, 252] and torn[:4] == [36, 37, 38, 39] and torn[4] == 32
            and still == [0, 1, 16, 17] and HALF == {(0, 3, 3): 4, (2, 3, 3): 1, (3, 3, 3): 1},
            f"<3,2,3>, column 0: {zero}; <3,3,3> leaves rows {still}; half, wavefronts: {HALF}",
        ),
        (
            "32_rows_of_16",
            still_4 == [0, 16] and still_3 == [0, 8, 16, 24] and by_hand_is_right
            and right_is_left_xor_1() and pairs_up(32, 16, 4, 0, 5)
            and list(ON_32.values()) == [2, 1] and list(ON_16.values()) == [1, 2],
            f"unchanged: {still_4}, {still_3}; on 32 banks {ON_32}, on 16 {ON_16}",
        ),
        (
            "choosing_a_swizzle",
            rule(64, 2, 8) == (3, 3, 3) and short == (2, 3, 2) and fixed == 2
            and checked["free"] == sum(checked.values()) and usual["illegal"] > 0 and usual["conflicts"] > 0,
            f"half 8x64: {rule(64, 2, 8)}; half 8x32 {short}: {fixed}-way; this rule {checked}, the common {usual}",
        ),
    ]  # fmt: skip


# %% [markdown]
# Compared with CuTe: `cute.make_swizzle` on the tiles above, element by element; and what it does with an illegal one:
# nothing is raised, and the identity comes back. `cookbook.swizzle` refuses.

# %% tags=["lab"]
TILES = [
    ((8, 32), (3, 2, 3)),
    ((32, 32), (3, 3, 3)),
    ((32, 16), (4, 0, 4)),
    ((32, 16), (3, 0, 3)),
    ((32, 16), (4, 0, 5)),
]


def by_cute(shape, spec):
    rows = cute.make_layout(shape, stride=(shape[1], 1))
    layout = cute.make_composed_layout(cute.make_swizzle(*spec), 0, rows)
    return [layout((row, col)) for row in range(shape[0]) for col in range(shape[1])]


for shape, spec in TILES:
    ours = [swizzle(offset, *spec) for offset in range(shape[0] * shape[1])]
    same = evaluate(by_cute, shape, spec) == ours == [Swizzle(*spec)(offset) for offset in range(len(ours))]
    print(f"{shape} {Swizzle(*spec)!r}: the same as CuTe and cookbook.swizzle: {same}")


def illegal():
    return cute.make_composed_layout(cute.make_swizzle(3, 0, 2), 0, cute.make_layout((8, 4), stride=(4, 1)))


print("CuTe makes of <3,0,2>:", evaluate(illegal, element_bits=32).swizzle)
try:
    Swizzle(3, 0, 2)
except ValueError as error:
    print("cookbook:", error)

# %% [markdown] tags=["lab"]
# The kernel's layout, asked from CuTe: wavefronts of its 16-byte store of rows and of its read of a column of pieces.
# Four phases, so 4 is the ideal.

# %% tags=["lab"]
from cookbook import banks

for bits in (0, 3):
    layout = evaluate(smem_layout, bits, element_bits=16)
    places = layout.byte_offsets()[:, ::8]
    stored = banks.wavefronts(places[:4].reshape(-1), 16)
    loaded = banks.wavefronts(places[:, 5], 16)
    print(f"{layout.swizzle!r} on bytes: store {stored.actual}, load {loaded.actual}, ideal {loaded.ideal}")

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("foundations/swizzle_parameters")

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/swizzle_parameters my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** `rule` serves a tile of any number of rows. A tile of few rows needs fewer bits.


# %%
def bits_for(rows, X, s, N):
    """Exercise 1, finish it: the least B, with M and S of `rule(X, s, N)`, for which a column of vectors of a tile of
    only `rows` rows is read without a conflict. All four are powers of two."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Take t and x of the rule: 2^t vectors make a round of the banks, 2^x a row. Where a row is a round or longer, all rows
# start in one bank. How many bits tell `rows` rows apart?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Where a row is shorter than a round, 2^(t - x) rows lie side by side in one round and differ already. These bits need
# not be mixed in.
#
# </details>
#
# <details markdown="1"><summary>Tip 3</summary>
#
# B is never below 0, and never above that of the rule: more rows are read in several phases.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# def bits_for(rows, X, s, N):
#     most, M, _ = rule(X, s, N)
#     t, x = log2(128 // s) - M, log2(X) - M
#     return min(most, max(0, log2(rows) - max(0, t - x)))
# ```
#
# </details>
#
# **Find the bug.** This function gives the byte at which an element lies. Some elements are right. Others lie in the
# middle of another piece of 16 bytes.


# %%
def byte_of(row, col, X, s, N):
    """Exercise 2, find the bug: the byte of element (row, col) of rows of X elements of s bytes, swizzled by `rule`."""
    return swizzle(s * (row * X + col), *rule(X, s, N))


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Print `rule(64, 2, 8)`. M = 3: how many elements stay together? How many bytes?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The three numbers of the rule count elements. What does this function swizzle?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# It gives a byte address to a swizzle that counts elements. Swizzle the offset in elements, then make bytes of it. Or
# say the swizzle in bytes, `swizzle(offset_in_bytes, B, M + log2(s), S)`.
#
# ```python
# def byte_of(row, col, X, s, N):
#     return s * swizzle(row * X + col, *rule(X, s, N))
# ```
#
# </details>


# %% tags=["folded"]
def check_bits(answer):
    """The least B, found by trying them all."""
    for rows, X, s, N in (
        *((8, 32, 2, 8), (8, 64, 2, 8), (4, 64, 2, 8), (2, 32, 2, 8), (32, 64, 2, 8)),
        *((32, 16, 4, 1), (16, 16, 4, 1), (2, 16, 4, 1), (8, 32, 4, 1), (16, 64, 2, 1), (8, 16, 4, 4)),
    ):
        most, M, S = rule(X, s, N)
        free = (B for B in range(most + 1) if column_wavefronts(X, s, N, (B, M, S), rows) == {0})
        yield f"{rows} rows of {X} elements of {s} bytes, vectors of {N}", answer(rows, X, s, N), next(free)


EXERCISES = {
    "bits_for": check_bits,
    "byte_of": lambda f: (
        (f"({row}, {col}) of rows of {X} x {s} bytes", f(row, col, X, s, N), s * swizzle(row * X + col, *rule(X, s, N)))
        for X, s, N in ((64, 2, 8), (32, 4, 1), (128, 1, 16))
        for row, col in ((0, 0), (1, 0), (4, 0), (0, X // 2), (3, X // 4 + 1), (7, X - 1))
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/swizzle_parameters")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# M keeps a vector whole, and never less than a word. B and S follow from two numbers: the vectors in a round of the
# banks and the vectors in a row. The smaller is what can be mixed, the larger says where to read. Judge a swizzle by
# counting wavefronts, not by its looks.
#
# That serves one vector by rows and by columns. Blocks of other shapes, several columns at once, rows that are no power
# of two: [foundations/solving_for_a_swizzle](solving_for_a_swizzle.ipynb) finds the swizzle for those, or proves that
# there is none. To see what a swizzle gains a whole kernel, go on to [the first GEMM](../ampere/first_gemm.ipynb).
