# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: XOR swizzle
#     claim: >-
#       Storing element (row, col), one word, at column col XOR row makes rows and columns conflict-free if the number
#       of columns is a multiple of 2^ceil(log2 rows).
#     kind: study
#     measures: wavefronts
#     track: foundations
#     order: 20
#     targets: [sm_80, sm_90a, sm_100a]
#     runs_on: sm_80+
#     path: global -> swizzled rows of shared memory -> columns of shared memory -> global
#     instructions: [STS, LDS, STG]
#     sources:
#       - title: "brod4910, Mythical CUDA: Data Swizzling, the toy GPU and the small tiles"
#         url: https://brod4910.github.io/blog/data-swizzling
#       - title: "brod4910, its repository, with a kernel for one tile: src/swizzle/swizzle.cu"
#         url: https://github.com/brod4910/mythical-cuda
#       - title: "wangyu.me, how a swizzle works (Chinese), to click on"
#         url: https://wangyu.me/posts/cuda/swizzle/
# ---

# %% [markdown]
# # XOR swizzle
#
# **Claim.** Store element (row, col) at column `col ^ row` of its row, and every row *and* every column of the tile is
# spread over the banks. It costs one XOR where you store and the same XOR where you load. It stays inside the tile
# under one condition, which many texts get wrong.

# %% tags=["lab"]
from cookbook import banks, draw

draw.beside([draw.truth_tables(("xor",), "XOR of two bits"), draw.xor_column(0, 8)], "Why a column becomes free")

# %% [markdown]
# XOR compares two bits: 1 where they differ, 0 where they are equal. XOR of two numbers does that bit by bit. **A
# column becomes free because all its elements have the same column and different rows, so `row ^ col` is different in
# each row.** On 8 banks that is 1 wavefront in place of 8; on a GPU's 32 banks, 1 in place of 32, as Nsight Compute
# counts [below](#counted-by-a-profiler).
#
# Two facts about XOR carry this page. It undoes itself: `(a ^ b) ^ b` is `a`, so the load finds what the store put
# away. And it has no carry: bits do not disturb each other.
#
# Everything here runs on a *toy GPU*: 8 threads and 8 banks, a bank one column wide. An access takes as many wavefronts
# as the busiest bank has different elements to give ([bank conflicts](bank_conflicts.ipynb)).

# %%
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## Two by two, and upwards
#
# The smallest tile that has anything to swizzle. Row 0 stays, row 1 changes places:


# %%
def swizzled_rows(rows: int, cols: int) -> list[list[int]]:
    """Return where each element goes: entry [row][col] is the column it is stored at."""
    return [[col ^ row for col in range(cols)] for row in range(rows)]


swizzled_rows(2, 2)

# %% [markdown]
# Two rows of *three*, and it breaks: element (1, 2) is to be stored in column 3, and there is none. Four rows of six
# break in rows 2 and 3:

# %%
swizzled_rows(4, 6)

# %% [markdown]
# Drawn: a number is the column that an element is stored at. Framed cells have left their row.

# %% tags=["lab"]
DRAWN = {(rows, cols): swizzled_rows(rows, cols) for rows, cols in ((2, 2), (2, 3), (4, 6))}
draw.beside(
    [
        draw.number_grid(
            table,
            f"{rows} x {cols}",
            mark=[(r, c) for r in range(rows) for c in range(cols) if table[r][c] >= cols],
        )
        for (rows, cols), table in DRAWN.items()
    ],
    "The column at which each element is stored",
    columns=3,
)

# %% [markdown]
# Column 6 of row 2 is the first element of row 3. Nothing crashes. Two elements share a place and one of them is lost,
# or an element lies behind the end of the tile, where something else begins:


# %%
def offsets(rows: int, cols: int) -> list[int]:
    """Return where all elements go, counted from the start of the tile."""
    return [row * cols + (col ^ row) for row in range(rows) for col in range(cols)]


def places_inside(rows: int, cols: int) -> int:
    """Return how many different places of the tile are used."""
    return len({offset for offset in offsets(rows, cols) if offset < rows * cols})


{f"{rows} x {cols}": (rows * cols, places_inside(rows, cols)) for rows, cols in ((2, 2), (2, 3), (4, 6), (4, 8))}

# %% [markdown]
# (elements, places used). That is the danger: the result is wrong, and nothing reports an error. In 4 x 6, which places
# are shared, which lie behind the end, and which stay empty:

# %% tags=["lab"]
went = offsets(4, 6)
print("shared:", sorted({o for o in went if went.count(o) > 1}), "behind:", sorted(o for o in went if o >= 24), end=" ")
print("empty:", sorted(set(range(24)) - set(went)))

# %% [markdown]
# ### Trap: "it is safe when the columns are divisible by four"
#
# It is for four rows. For eight, look at 8 x 12 and 8 x 20, both divisible by four, and at 8 x 24:


# %%
def stays_inside(rows: int, cols: int) -> bool:
    """Return whether col ^ row is a column of the tile, for every element."""
    return all(col ^ row < cols for row in range(rows) for col in range(cols))


{f"8 x {cols}": (stays_inside(8, cols), max(map(max, swizzled_rows(8, cols)))) for cols in (8, 12, 16, 20, 24)}

# %% [markdown]
# (inside?, largest column). XOR with the numbers 0 to 7 changes the three lowest bits, and so moves elements about
# inside blocks of eight columns. Whole blocks are safe; half a block at the end is not. **The law:** with R rows, the
# block is the next power of two from R up, 2^ceil(log2 R), and the number of columns must be a multiple of it.


# %%
def law(rows: int, cols: int) -> bool:
    """Return what the text says: cols is a multiple of the power of two that holds all row numbers."""
    return cols % (1 << (rows - 1).bit_length()) == 0


all(stays_inside(rows, cols) == law(rows, cols) for rows in range(1, 33) for cols in range(1, 130))

# %% [markdown]
# True: the law and the search agree on more than four thousand tiles. A tile of 24 columns needs no padding to 32: it
# is three blocks of eight columns, and each is a Sudoku of its own.

# %% tags=["lab"]
draw.layout_grid(
    [[row * 24 + (col ^ row) for col in range(24)] for row in range(8)],
    banks=8,
    label="bank",
    mark=[(row, 9) for row in range(8)],
    title="8 x 24 with col ^ row: column 9 on 8 banks",
)

# %% [markdown]
# ## The toy GPU transposes
#
# In: an 8 x 8 matrix. For each of its rows, thread t stores element (row, t) into shared memory. Then, after a
# *barrier*, for each row i of the output, thread t loads element (t, i) of the input from wherever it was put. Two
# small functions say where to store it and where to load it from.

# %%
N = 8  # threads, banks, rows and columns


def wavefronts(places: list[tuple[int, int]]) -> int:
    """Wavefronts that places (row, slot) take; the slot is the bank."""
    wanted = [set() for _ in range(N)]
    for row, slot in places:
        wanted[slot].add(row)
    return max(map(len, wanted))


def transpose(given: list[list], store, load) -> tuple[list[list], list[int]]:
    """(output, wavefronts of each of the 16 accesses); store(row, t) and load(i, t) say which cell thread t uses."""
    shared, output, took = [[None] * N for _ in range(N)], [], []
    for row in range(N):
        places = [store(row, t) for t in range(N)]
        took.append(wavefronts(places))
        for t, (r, slot) in enumerate(places):
            shared[r][slot] = given[row][t]
    # the barrier: no thread loads before all have stored
    for i in range(N):
        places = [load(i, t) for t in range(N)]
        took.append(wavefronts(places))
        output.append([shared[r][slot] for r, slot in places])
    return output, took


GIVEN = [[N * row + col for col in range(N)] for row in range(N)]
WANTED = [list(column) for column in zip(*GIVEN, strict=True)]


def plain_store(row: int, t: int) -> tuple[int, int]:
    return row, t


def plain_load(i: int, t: int) -> tuple[int, int]:
    return t, i


output, took = transpose(GIVEN, plain_store, plain_load)
output == WANTED, took, sum(took)

# %% [markdown]
# Right, but each load takes eight wavefronts: 8 stores in 8 wavefronts, 8 loads in 64. At the first load all eight
# threads stand at bank 0:

# %% tags=["lab"]
draw.toy_transpose(plain_store, plain_load, step=N, title="Without the swizzle: the first load")

# %% [markdown]
# Now the same with an XOR in both functions. Element (row, t) is stored in slot `t ^ row`. Who wants element (t, i)
# looks in row t, slot `i ^ t`.


# %%
def store(row: int, t: int) -> tuple[int, int]:
    return row, t ^ row


def load(i: int, t: int) -> tuple[int, int]:
    return t, t ^ i


output, took = transpose(GIVEN, store, load)
output == WANTED, took, sum(took)

# %% [markdown]
# Sixteen wavefronts in place of 72. The stores took one wavefront before and take one now: within a row the XOR only
# changes the order. All of the gain is in the loads. The picture moves (rest the pointer on it to stop it): eight
# stores, then eight loads. A colour is a column of the input; it ends as a row of the output.

# %% tags=["lab"]
draw.toy_transpose(store, load, title="With the swizzle: 8 x 8 transpose on the toy GPU")

# %% [markdown]
# Standing still, the last store and the first load:

# %% tags=["lab"]
draw.toy_transpose(store, load, step=N - 1, title="With the swizzle: the last store")

# %% tags=["lab"]
draw.toy_transpose(store, load, step=N, title="With the swizzle: the first load")

# %% [markdown]
# You can watch the conflict go. Swizzle only row 0, then rows 0 and 1, and so on, and read column 0 each time:


# %%
def column_wavefronts(swizzled_up_to: int, col: int) -> int:
    """Wavefronts of one column when only rows 0 to `swizzled_up_to` are swizzled."""
    return wavefronts([(row, col ^ row if row <= swizzled_up_to else col) for row in range(N)])


[column_wavefronts(row, 0) for row in range(N)]

# %% tags=["lab"]
draw.swizzle_progress(lambda row, col: (row, col ^ row))

# %% [markdown]
# ### Trap: swizzling the load by its own row
#
# The store said `shared[row][row ^ t]`, so the load of output row i is sometimes written `shared[i][i ^ t]`. It looks
# symmetrical and has no conflict, but it returns the *input*: row i was stored swizzled by i, and unswizzling it by i
# gives row i, not column i. The element that thread t wants for output row i is (t, i). Its *row is t*.


# %%
def wrong_load(i: int, t: int) -> tuple[int, int]:
    return i, i ^ t


output, took = transpose(GIVEN, store, wrong_load)
{"is the transpose": output == WANTED, "is the input": output == GIVEN, "wavefronts": sum(took)}

# %% tags=["lab"]
draw.toy_transpose(store, wrong_load, step=-1, title="The trap: shared[i][i ^ t] gives back the input")

# %% [markdown]
# ### Trap: no barrier
#
# Thread t loads what *other* threads stored. Let each thread run its stores and then its loads without waiting, one
# thread after the other, as a GPU is free to do with its warps:


# %%
def transpose_without_barrier(given: list[list]) -> list[list]:
    """Thread 0 runs from start to end, then thread 1, ..."""
    shared, output = [[None] * N for _ in range(N)], [[None] * N for _ in range(N)]
    for t in range(N):
        for row in range(N):
            r, slot = store(row, t)
            shared[r][slot] = given[row][t]
        for i in range(N):
            r, slot = load(i, t)
            output[i][t] = shared[r][slot]
    return output


sum(value is None for row in transpose_without_barrier(GIVEN) for value in row)

# %% [markdown]
# That many of the 64 results were read before they were written. On a GPU one finds old bytes there, sometimes the
# right ones.
#
# ## Larger matrices: tiles
#
# A 16 x 16 matrix is 2 x 2 tiles of 8 x 8. In memory its rows are 16 apart (the *pitch*). The next tile to the right
# begins 8 further, the next one below 8 x 16 further. A kernel on a grid of 2 x 2 blocks, one tile each, must say both:


# %%
def index_of(block: tuple[int, int], i: int, t: int) -> int:
    """Return where element (i, t) of a block's tile lies in a 16 x 16 matrix: pitch 16, tiles 8 rows and 8 columns
    apart."""
    return (i + 8 * block[0]) * 16 + (t + 8 * block[1])


def wrong_index(block: tuple[int, int], i: int, t: int) -> int:
    """A published version: the pitch of the tile, and blocks one row apart."""
    return (i + 1 * block[0]) * 8 + (t + 8 * block[1])


PLACES = [((r // 8, c // 8), r % 8, c % 8) for r in range(16) for c in range(16)]  # of every element, row by row
{
    f.__name__: (sum(f(*place) == n for n, place in enumerate(PLACES)), len({f(*place) for place in PLACES}))
    for f in (index_of, wrong_index)
}

# %% [markdown]
# (elements that are read from their own place, different places read), of 256. The wrong one is right for 16 elements
# only: it has the pitch of the tile, 8, and takes the next tile down one row further, because a block of the grid was
# one thread high. Drawn: the number that each block reads for each element; framed, those that are right.


# %% tags=["lab"]
def read_by(index):
    return [[index(*PLACES[16 * r + c]) for c in range(16)] for r in range(16)]


BLOCKS = [[2 * (r // 8) + c // 8 for c in range(16)] for r in range(16)]
RIGHT_ONES = [divmod(n, 16) for n, place in enumerate(PLACES) if wrong_index(*place) == n]
draw.beside(
    [
        draw.number_grid(read_by(index_of), "right: (i + 8 by) 16 + t + 8 bx", colours=BLOCKS),
        draw.number_grid(read_by(wrong_index), "wrong: (i + by) 8 + t + 8 bx", colours=BLOCKS, mark=RIGHT_ONES),
    ],
    "16 x 16 on a 2 x 2 grid of blocks: a colour is a block",
    columns=1,
)

# %% [markdown]
# Tile (I, J) of the input becomes tile (J, I) of the output: the tiles change places, and each is transposed inside.


# %%
def transpose_tiled(flat: list[int], size: int) -> tuple[list[int], int]:
    """(output, wavefronts) for a size x size matrix in one list, in tiles of 8 x 8."""
    out, spent = [None] * (size * size), 0
    for tile_row in range(0, size, N):
        for tile_col in range(0, size, N):
            source, target = tile_row * size + tile_col, tile_col * size + tile_row
            tile = [[flat[source + row * size + t] for t in range(N)] for row in range(N)]
            turned, took = transpose(tile, store, load)
            spent += sum(took)
            for i in range(N):
                for t in range(N):
                    out[target + i * size + t] = turned[i][t]
    return out, spent


flat = list(range(256))
out, spent = transpose_tiled(flat, 16)
out == [flat[col * 16 + row] for row in range(16) for col in range(16)], spent

# %% [markdown] tags=["lab"]
# ### A kernel for one tile, on a larger matrix
#
# The repository that belongs to the text of the toy GPU has a kernel for a real one (`src/swizzle/swizzle.cu`). For one
# tile of 32 x 32 it is right. For a larger matrix two of its indices want another look, and each is easy to miss:
#
# * the row in *shared memory* is the row of the matrix, and not of the tile: from row 32 on it lies behind the tile;
# * the tile at (by, bx) is written to (by, bx) and not to (bx, by): each tile is transposed, and stays where it is.
#
# A simulation of these two indices, with the memory behind the tile as if it were there. For each size: elements that
# end in the right place, of how many, and stores that leave the tile.


# %% tags=["lab"]
def one_tile_kernel(size: int, tile: int = 32) -> tuple[int, int, int]:
    """(right, all, outside) of a size x size transpose with the indices of a kernel that is made for one tile."""
    right = outside = 0
    for row in range(size):
        for col in range(size):
            (by, ty), (bx, tx) = divmod(row, tile), divmod(col, tile)
            outside += row >= tile  # its row in shared memory; the tile has rows 0 to 31
            right += (by * tile + tx, bx * tile + ty) == (col, row)
    return right, size * size, outside


{f"{size} x {size}": one_tile_kernel(size) for size in (32, 64)}

# %% [markdown] tags=["lab"]
# Half of 64 x 64 is right: the tiles on the diagonal, which stay where they are anyway. The cure is to name both
# numbers of a block where they are needed: the tile's own row inside, and (bx, by) outside. [The kernel on a
# grid](#the-kernel-on-a-2-x-2-grid) does so.

# %% [markdown]
# ## The kernel
#
# The real machine: 32 lanes, 32 banks, a 32 x 32 tile of floats, one warp. `col ^ row` is CuTe's `Swizzle<5,0,5>` in
# elements of 4 bytes, `Swizzle<5,2,5>` in bytes; it is attached to the pointer, so the code that stores and loads does
# not change by a letter. With 0 bits it is the kernel with conflicts.


# %% [markdown] tags=["lab"]
# The column that the kernel loads, on the 32 banks. Set B to 0, and its lanes are served one by one; with B = 4 two
# rows meet in each of 16 banks.
#
# <bank-view rows="32" columns="32" bits="32" swizzle="5,2,5" access="ld32@32x1" at="0,3">
# `cookbook banks --tile 32x32 --bits 32 --swizzle 5,2,5 --access ld32@32x1`
# </bank-view>


# %%
@dataclass(frozen=True)
class Config:
    """The configuration of a launch."""

    threads: int = 32
    smem_bytes: int = 4 * 32 * 32


CONFIG = Config()
DTYPE = cutlass.Float32
KERNELS = {"plain": 0, "swizzled": 5}  # bits


def smem_layout(bits: int) -> cute.ComposedLayout:
    """32 x 32 fp32 with column col of row r at col ^ r (bits = 5), or plain (bits = 0). Inside a jit function only."""
    rows = cute.make_layout((32, 32), stride=(32, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 2, 5), 0, rows)


@cute.kernel
def transpose_kernel(mX: cute.Tensor, mY: cute.Tensor, bits: cutlass.Constexpr):
    """Y = X transposed, both (32, 32) fp32 with adjacent columns; one warp."""
    lane, _, _ = cute.arch.thread_idx()
    layout = smem_layout(bits)
    # 1024 is the largest alignment there is. The period is 4096 bytes, but on any base that is a multiple of 128 the
    # XOR only exchanges columns inside a row, and the rows differ as they should.
    tile = SmemAllocator().allocate_tensor(DTYPE, layout.outer, 1024, layout.inner)
    for row in cutlass.range(32, unroll=1):
        tile[row, lane] = mX[row, lane]
    cute.arch.sync_threads()
    for row in cutlass.range(32, unroll=1):
        mY[row, lane] = tile[lane, row]


@cute.jit
def launch(pX: cute.Pointer, pY: cute.Pointer, variants: cutlass.Constexpr):
    """The kernel once for each number of bits in `variants`."""
    mX, mY = (cute.make_tensor(p, cute.make_layout((32, 32), stride=(32, 1))) for p in (pX, pY))
    for bits in cutlass.const_expr(variants):
        transpose_kernel(mX, mY, bits).launch(grid=(1, 1, 1), block=(CONFIG.threads, 1, 1))


def pointers(*addresses: int) -> list:
    """Typed pointers to 16-byte aligned fp32 in global memory."""
    gmem = cute.AddressSpace.gmem
    return [cute.runtime.make_ptr(DTYPE, a, gmem, assumed_align=16) for a in addresses]


def compile_for(arch: str, options: str = ""):
    """Compile for `arch` ("sm_90a"), plain and swizzled, with dummy pointers: no GPU is needed."""
    return cute.compile(
        launch, *pointers(16, 16), tuple(KERNELS.values()), options=f"--gpu-arch {arch} {options}".strip()
    )


def transpose_tile(x: torch.Tensor, bits: int = 5) -> torch.Tensor:
    """The transpose of a contiguous (32, 32) float32 tensor on a GPU, through a tile swizzled by `bits` (0 or 5).

    Raises:
        ValueError: names the argument, what it got and what it needs.
    """
    if x.shape != (32, 32) or x.dtype != torch.float32 or not x.is_contiguous() or not x.is_cuda:
        got = f"{tuple(x.shape)} {x.dtype} on {x.device}"
        raise ValueError(f"x: got {got}; needed a contiguous (32, 32) torch.float32 on a CUDA device")
    if bits not in KERNELS.values():
        raise ValueError(f"bits: got {bits}; needed 0 (conflicts) or 5 (none)")
    y = torch.empty_like(x)
    arguments = pointers(x.data_ptr(), y.data_ptr())
    torch.cuda.synchronize()  # the kernel runs on the default stream
    cute.compile(launch, *arguments, (bits,))(*arguments)
    torch.cuda.synchronize()
    return y


# %% [markdown] tags=["lab"]
# ### The kernel on a 2 x 2 grid
#
# The same for a matrix of 64 x 64: a grid of 2 x 2 blocks of one warp, a tile each. `local_tile` has the pitch and the
# starts of the tiles; the block reads tile (by, bx) and writes tile (bx, by). The loops are those of the kernel above.


# %% tags=["lab"]
@cute.kernel
def transpose_on_a_grid(mX: cute.Tensor, mY: cute.Tensor):
    """Y = X transposed, both of whole tiles of 32 x 32 fp32; one warp for each tile."""
    lane, _, _ = cute.arch.thread_idx()
    bx, by, _ = cute.arch.block_idx()
    layout = smem_layout(5)
    tile = SmemAllocator().allocate_tensor(DTYPE, layout.outer, 1024, layout.inner)
    gX, gY = cute.local_tile(mX, (32, 32), (by, bx)), cute.local_tile(mY, (32, 32), (bx, by))
    for row in cutlass.range(32, unroll=1):
        tile[row, lane] = gX[row, lane]
    cute.arch.sync_threads()
    for row in cutlass.range(32, unroll=1):
        gY[row, lane] = tile[lane, row]


@cute.jit
def launch_on_a_grid(pX: cute.Pointer, pY: cute.Pointer):
    """The 64 x 64 transpose."""
    mX, mY = (cute.make_tensor(p, cute.make_layout((64, 64), stride=(64, 1))) for p in (pX, pY))
    transpose_on_a_grid(mX, mY).launch(grid=(2, 2, 1), block=(CONFIG.threads, 1, 1))


compiled = cute.compile(launch_on_a_grid, *pointers(16, 16), options="--gpu-arch sm_90a")  # no GPU is needed

# %% [markdown] tags=["lab"]
# It compiles. `testing.check` follows the kernel warp by warp, in every order: no race, no conflict of banks, nothing
# outside the tile. `cookbook check my_kernel.py` does the same with a kernel of your own.

# %% tags=["lab"]
from cookbook import testing

report = testing.check(launch_on_a_grid, *pointers(16, 16))
{"followed to its end": report.ok, "found": report.found}

# %% [markdown] tags=["lab"]
# Does CuTe's `local_tile` begin each tile where the arithmetic says? Tile (I, J) of a matrix with a pitch of 64 begins
# at 32 x 64 I + 32 J. And what the four blocks write, with what they read, is the transpose:


# %% tags=["lab"]
def tiles_by_cute() -> list[list[int]]:
    """Offsets of the elements of each of the four tiles of a 64 x 64 matrix, tile by tile, row by row."""
    matrix = cute.make_layout((64, 64), stride=(64, 1))
    tiles = cute.zipped_divide(matrix, (32, 32))
    return [[tiles(((row, col), (i, j))) for row in range(32) for col in range(32)] for i in (0, 1) for j in (0, 1)]


from cookbook.layouts import evaluate

TILES = evaluate(tiles_by_cute)
starts = [tile[0] for tile in TILES] == [32 * 64 * i + 32 * j for i in (0, 1) for j in (0, 1)]
written = {}
for by in (0, 1):
    for bx in (0, 1):
        source, target = TILES[2 * by + bx], TILES[2 * bx + by]
        written |= {target[32 * row + lane]: source[32 * lane + row] for row in range(32) for lane in range(32)}
{"starts": starts, "transposed": written == {64 * row + col: 64 * col + row for row in range(64) for col in range(64)}}

# %% [markdown]
# ## Counted by a profiler
#
# Step *i* of the first loop stores row *i*, step *i* of the second loads column *i*, with the swizzle and without it:
# only `smem_layout` differs. These two lines predict the wavefronts of both instructions:


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


def try_out(bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch on a GPU, on normal numbers: what it gave, and what it should have."""
    x = torch.randn(32, 32, device="cuda")
    return transpose_tile(x, bits), x.T


# %% [markdown]
# Nsight Compute counts the wavefronts of every instruction of a kernel that runs. `cookbook check
# foundations/xor_swizzle --tools --record` has it look at both kernels, and holds each instruction against
# `cookbook.banks`:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import counted_table

Markdown(counted_table("foundations/xor_swizzle"))

# %% [markdown]
# ## Check
#
# `cookbook check foundations/xor_swizzle` computes each claim of this page, by these lines:


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    two, three, six = swizzled_rows(2, 2), swizzled_rows(2, 3), swizzled_rows(4, 6)
    agree = all(stays_inside(r, c) == law(r, c) for r in range(1, 33) for c in range(1, 130))
    eight = {cols: stays_inside(8, cols) for cols in (12, 20, 24)}
    (_, before), (right, after) = transpose(GIVEN, plain_store, plain_load), transpose(GIVEN, store, load)
    falling = [column_wavefronts(row, 0) for row in range(N)]
    wrong, _ = transpose(GIVEN, store, wrong_load)
    tiled, spent = transpose_tiled(list(range(256)), 16)
    indexed = [sum(f(*place) == n for n, place in enumerate(PLACES)) for f in (index_of, wrong_index)]
    early = sum(value is None for row in transpose_without_barrier(GIVEN) for value in row)
    return [
        (
            "small_tiles",
            two == [[0, 1], [1, 0]] and three[1][2] == 3 and six[2:] == [[2, 3, 0, 1, 6, 7], [3, 2, 1, 0, 7, 6]],
            f"2x2: {two}; 2x3: (1, 2) -> {three[1][2]}; 4x6: rows 2 and 3 -> {six[2:]}",
        ),
        (
            "the_law_of_staying_inside",
            agree and eight == {12: False, 20: False, 24: True},
            f"the law agrees with the search: {agree}; 8 rows of 12, 20, 24 stay inside: {list(eight.values())}",
        ),
        (
            "the_toy_gpu",
            right == WANTED
            and falling == [8, 7, 6, 5, 4, 3, 2, 1]
            and (before, after) == ([1] * N + [N] * N, [1] * N + [1] * N),
            f"column, row by row swizzled: {falling}; in all {sum(before)} wavefronts, then {sum(after)}",
        ),
        (
            "loads_and_tiles",
            wrong == GIVEN and early > 0 and tiled == [col * 16 + row for row in range(16) for col in range(16)],
            f"shared[i][i ^ t] gives the input: {wrong == GIVEN}; no barrier: {early} of 64 read too early; "
            f"16x16: {spent} wavefronts",
        ),
        ("the_index_of_16_x_16", indexed == [256, 16], f"read from their own place, right and wrong index: {indexed}"),
    ]


# %% [markdown]
# `col ^ row` on 8 x 8 is CuTe's `Swizzle<3,0,3>` over `(8,8):(8,1)`. CuTe itself evaluates the kernel's layout; we
# count the wavefronts of a row and of a column on 32 banks. The last cell checks the cells above: edit one, run it, and
# check again.

# %% tags=["lab"]
import numpy as np

from cookbook.layouts import evaluate
from cookbook.swizzle import Swizzle


def by_cute():
    tile = cute.make_composed_layout(cute.make_swizzle(3, 0, 3), 0, cute.make_layout((8, 8), stride=(8, 1)))
    return [[tile((row, col)) for col in range(8)] for row in range(8)]


ours = [[8 * row + (col ^ row) for col in range(8)] for row in range(8)]
print("8 x 8 as CuTe has it:", evaluate(by_cute) == ours, "; as cookbook.swizzle:", end=" ")
print(Swizzle(3, 0, 3)(np.arange(64).reshape(8, 8)).tolist() == ours)
for bits in (0, 5):
    layout = evaluate(smem_layout, bits, element_bits=32)
    down, across = (banks.wavefronts(x, 4).actual for x in (layout.byte_offsets()[:, 3], layout.byte_offsets()[3]))
    print(f"{layout.swizzle!r} on bytes: one-to-one {layout.is_bijective()}, row {across}, column {down} wavefronts")

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("foundations/xor_swizzle")

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/xor_swizzle my.py` and `cookbook
# exercise my.py`.
#
# **Finish it.** Make a tile wide enough for `col ^ row`.


# %%
def padded_columns(rows, cols):
    """Exercise 1, finish it: the least number of columns, `cols` or more, with which col ^ row stays inside."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# XOR with the numbers 0 to `rows - 1` moves elements about inside blocks of columns. How wide is a block with 5 rows?
# With 8? With 1?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The largest row number has `(rows - 1).bit_length()` bits. Round `cols` up to whole blocks.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# def padded_columns(rows, cols):
#     block = 1 << (rows - 1).bit_length()
#     return -(-cols // block) * block
# ```
#
# </details>
#
# **Find the bug.** Four blocks of eight threads are to transpose a 16 x 16 matrix, one tile each. Each block transposes
# its tile with no conflict. The matrix is not the transpose.


# %%
def transpose_16(flat):
    """Exercise 2, find the bug: (the transpose, its wavefronts) of a 16 x 16 matrix that lies in one list."""
    out, spent = [None] * 256, 0
    for block in ((0, 0), (0, 1), (1, 0), (1, 1)):
        tile = [[flat[index_of(block, i, t)] for t in range(N)] for i in range(N)]
        turned, took = transpose(tile, store, load)
        spent += sum(took)
        for i in range(N):
            for t in range(N):
                out[index_of(block, i, t)] = turned[i][t]
    return out, spent


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Run the check. Half of row 0 of the output is right. Which tile of the input does the other half come from?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Tile (I, J) of the input becomes tile (J, I) of the output. Which block writes which tile here?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Each block writes the tile that it has read. It has to write the one across the diagonal.
#
# ```python
# def transpose_16(flat):
#     out, spent = [None] * 256, 0
#     for block in ((0, 0), (0, 1), (1, 0), (1, 1)):
#         tile = [[flat[index_of(block, i, t)] for t in range(N)] for i in range(N)]
#         turned, took = transpose(tile, store, load)
#         spent += sum(took)
#         for i in range(N):
#             for t in range(N):
#                 out[index_of(block[::-1], i, t)] = turned[i][t]
#     return out, spent
# ```
#
# </details>


# %% tags=["folded"]
def check_16(answer):
    """Every row of the output, then the wavefronts."""
    given, wanted, _ = list(range(256)), *transpose_tiled(list(range(256)), 16)
    found, took = answer(given)
    for first in range(0, 256, 16):
        yield f"row {first // 16} of the output", list(found[first : first + 16]), wanted[first : first + 16]
    yield "wavefronts", took, 4 * 2 * N


EXERCISES = {
    "padded_columns": lambda f: (
        (f"{rows} rows, {cols} columns", f(rows, cols), next(c for c in range(cols, 2 * 64) if stays_inside(rows, c)))
        for rows in (1, 2, 5, 6, 8, 32)
        for cols in (1, 6, 8, 20, 24, 33)
    ),
    "transpose_16": check_16,
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/xor_swizzle")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# One XOR at the store and the same XOR at the load, and a transpose needs no conflicting access. The columns must come
# in whole blocks of the next power of two from the number of rows up; the load must use the row in which its element
# *was stored*; and a barrier stands between.
#
# Next: [foundations/swizzle_parameters](swizzle_parameters.ipynb) takes the XOR apart into `Swizzle<B,M,S>`, so that it
# works on vectors of several elements and on rows of any power of two.
