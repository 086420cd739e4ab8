# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Layouts
#     claim: >-
#       A layout is a function from coordinates to offsets, written shape:stride; composition and division make others.
#     kind: study
#     track: primer
#     order: 20
#     sources:
#       - title: "CUTLASS, CuTe layouts"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/01_layout.html
#       - title: "CUTLASS, CuTe layout algebra"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/02_layout_algebra.html
#       - title: "C. Cecka, CuTe Layout Representation and Algebra"
#         url: https://arxiv.org/abs/2603.02298
# ---

# %% [markdown]
# # Layouts
#
# **Claim.** A [layout](../../docs/glossary.md#layout) is a function: it takes a coordinate and gives an offset, counted
# in elements. It is written *shape:stride*. `(4,6):(6,1)` takes (row, column) and gives 6 row + 1 column. Here is every
# value of it, and below it those of `(4,6):(1,4)`. The elements are the same and lie elsewhere.

# %% tags=["lab"]
from cookbook import draw
from cookbook.layouts import Layout

draw.number_grid(Layout((4, 6), (6, 1)), "(4,6):(6,1), row-major: a step right is 1, a step down is 6")

# %% tags=["lab"]
draw.number_grid(Layout((4, 6), (1, 4)), "(4,6):(1,4), column-major: a step right is 4, a step down is 1")

# %% [markdown]
# CuTe makes layouts inside of a [jit function](../../docs/glossary.md#jit) only. So two helpers: `show` prints what a
# function returns there, and `offsets` gives the values of a layout as a list.

# %%
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


def under_cute(make, *args):
    """Return what `make(*args)` returns in a jit function: plain Python, because layouts end with the function."""
    kept = []

    @cute.jit
    def host():
        kept.append(make(*args))

    host()
    return kept[0]


def show(make, *args) -> None:
    """Print what `make(*args)` returns."""
    print(under_cute(lambda: str(make(*args))))


def offsets(make, *args) -> list[int]:
    """The offsets of the layout that `make(*args)` returns, in the order of its coordinates."""

    def values():
        layout = make(*args)
        return [layout(i) for i in range(cute.size(layout))]

    return under_cute(values)


def rows():
    """4 rows of 6 adjacent elements."""
    return cute.make_layout((4, 6), stride=(6, 1))


# %% [markdown]
# ## The order of coordinates
#
# `offsets` called the layout with one number i, and not with (row, column). CuTe allows that of every layout. It counts
# coordinates with the *first* index fastest: (0,0), (1,0), (2,0), (3,0), (0,1), ... This is
# [colexicographic order](../../docs/glossary.md#colexicographic): numbers and coordinates are two names of the same
# place. C and `torch` count with the *last* index fastest. Keep the two orders apart.

# %% tags=["lab"]
number = [[row + 4 * col for col in range(6)] for row in range(4)]
draw.number_grid(number, "The number of each coordinate of shape (4,6), whatever the strides")

# %% tags=["lab", "open"]
show(lambda: (rows()((1, 2)), rows()(9), cute.idx2crd(9, (4, 6)), cute.size(rows())))
show(lambda: cute.make_layout((4, 6)))
print(offsets(rows))

# %% [markdown]
# Coordinate (1,2) is number 1 + 4 * 2 = 9; both are at offset 8. The size is 24. A layout made without strides takes
# those of its own order: `(4,6):(1,4)`.
#
# ## Nested modes
#
# An entry of a shape is a [mode](../../docs/glossary.md#mode), and a mode may be a tuple again. Then its stride is one
# too. `((2,2),(2,2)):((1,4),(2,8))` still takes a row and a column below 4. It splits the row into (low bit, high bit),
# each with a stride of its own. With this a layout can put 2 x 2 blocks one after another; one stride for the rows
# could not.

# %% tags=["lab"]
nested = Layout(((2, 2), (2, 2)), ((1, 4), (2, 8)))
draw.number_grid(nested, f"{nested}", colours=nested.table() // 4, note="colour: a block of four adjacent elements")

# %% tags=["lab", "open"]
show(lambda: cute.make_layout(((2, 2), (2, 2)), stride=((1, 4), (2, 8)))((3, 2)))
show(lambda: cute.make_layout(((2, 2), (2, 2)), stride=((1, 4), (2, 8)))(((1, 1), (0, 1))))

# %% [markdown]
# Row 3 is (1,1) and column 2 is (0,1): 1 + 4 + 8 = 13 either way.
#
# ## Composition
#
# [`composition(A, B)`](../../docs/glossary.md#composition) is the function that takes c to A(B(c)). B says *which*
# coordinates of A, by their numbers; A says where they lie. Rows 0 and 2 and all columns of 4 x 6 are the numbers
# 2 r + 4 c. So B is `(2,6):(2,4)`:

# %% tags=["lab", "open"]
show(lambda: cute.composition(rows(), cute.make_layout((2, 6), stride=(2, 4))))

# %% [markdown]
# A step down is 12 now, two rows. Some compositions have no shape:stride. `(4,3):(3,1)` at the numbers 0, 3 and 6 gives
# 0, 9 and 7: the steps are 9 and -2, and no stride is both. CuTe says "unable to compute the following composition".

# %% tags=["lab"]
draw.number_grid(
    Layout((4, 3), (3, 1)),
    "(4,3):(3,1), framed: numbers 0, 3 and 6 in the order of coordinates",
    mark=[(0, 0), (3, 0), (2, 1)],
    note="each third number: from 0 to 9, and back to 7",
)

# %% [markdown]
# ## Division
#
# Which tile is it, and where in the tile? [`zipped_divide`](../../docs/glossary.md#division) answers for the whole
# layout at once. It gives (inside the tile, which tile). `logical_divide` gives the same, mode by mode: (row in the
# tile, which tile down), (column in the tile, which tile across).


# %%
def matrix():
    """8 rows of 12 adjacent elements."""
    return cute.make_layout((8, 12), stride=(12, 1))


# %% tags=["lab", "open"]
show(lambda: cute.zipped_divide(matrix(), (4, 3)))
show(lambda: cute.logical_divide(matrix(), (4, 3)))

# %% [markdown]
# Read the first one so: inside of a tile, a step down is 12 and a step to the right is 1, as before. From tile to tile,
# down is 48, which is four rows, and right is 3. Tiles have numbers too, first index fastest:

# %% tags=["lab"]
tiles = [[row // 4 + 2 * (col // 3) for col in range(12)] for row in range(8)]
draw.number_grid(tiles, "8 x 12 in tiles of 4 x 3: the number of the tile")

# %% [markdown]
# ## local_tile
#
# [`local_tile(tensor, tiler, coord)`](../../docs/glossary.md#local-tile) divides, and takes the tile at `coord`. Most
# kernels here begin with it: `coord` is then the CTA's place in the grid. A
# [tensor](../../docs/glossary.md#tensor) is a pointer and a layout. So the tile is the same memory with another pointer
# and a smaller layout; nothing is copied. `None` in `coord` keeps all tiles of that mode.


# %%
@cute.jit
def take_tile(mX: cute.Tensor, mY: cute.Tensor, m: cutlass.Int32, n: cutlass.Int32):
    """mY (4, 3) = tile (m, n) of mX (8, 12)."""
    gX = cute.local_tile(mX, (4, 3), (m, n))
    print(f"mX: {mX}\ngX: {gX}\nall tiles of row m: {cute.local_tile(mX, (4, 3), (m, None))}")
    for i in cutlass.range(cute.size(gX)):
        mY[i] = gX[i]  # the same number for both: two layouts, one order of coordinates


# %% tags=["lab", "open"]
x, y = torch.arange(96).reshape(8, 12), torch.zeros(4, 3, dtype=torch.int64)
take_tile(from_dlpack(x), from_dlpack(y), 1, 2)
print(torch.equal(y, x[4:8, 6:9]))

# %% [markdown]
# ## Exercises
#
# Write the three bodies, run their cell, then the last cell. Or work in a file: `cookbook copy primer/layouts my.py`
# writes it, `cookbook exercise my.py` checks it.


# %%
def padded_columns(rows, cols):
    """Exercise 1: the column-major layout of (rows, cols) whose columns begin at multiples of 8."""
    raise NotImplementedError


def every_other_column(layout):
    """Exercise 2: of a layout of shape (4, 6), the layout of columns 0, 2 and 4, of shape (4, 3)."""
    raise NotImplementedError


def tile_by_tile():
    """Exercise 3: the layout of an 8 x 8 matrix in tiles of 4 x 4, each 16 adjacent elements, row after row.
    The tiles lie one after the other: the upper left, the upper right, the lower left, the lower right."""
    raise NotImplementedError


# %% tags=["folded"]
def compared(rows: int, cols: int, needed, make, *args) -> list[tuple]:
    """For each coordinate: its name, the offset in the layout that `make(*args)` returns, and `needed(row, col)`."""
    size, got = under_cute(lambda: cute.size(make(*args))), offsets(make, *args)
    modes = under_cute(lambda: [cute.size(mode) for mode in make(*args).shape])
    places = [(i % rows, i // rows) for i in range(rows * cols)]
    found = [(f"offset of {at}", value, needed(*at)) for at, value in zip(places, got, strict=False)]
    return [("size", size, rows * cols), ("size of each mode", modes, [rows, cols]), *found]


EXERCISES = {
    "padded_columns": lambda f: [
        *compared(6, 4, lambda i, j: i + 8 * j, f, 6, 4),
        *compared(9, 2, lambda i, j: i + 16 * j, f, 9, 2),
        *compared(8, 3, lambda i, j: i + 8 * j, f, 8, 3),
    ],
    "every_other_column": lambda f: [
        *compared(4, 3, lambda i, j: 6 * i + 2 * j, lambda: f(rows())),
        *compared(4, 3, lambda i, j: i + 8 * j, lambda: f(cute.make_layout((4, 6)))),
    ],
    "tile_by_tile": lambda f: compared(8, 8, lambda i, j: 32 * (i // 4) + 16 * (j // 4) + 4 * (i % 4) + j % 4, f),
}


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    numbered = offsets(rows) == [6 * (i % 4) + i // 4 for i in range(24)]
    divided = offsets(lambda: cute.zipped_divide(matrix(), (4, 3)))
    inside = [12 * (i % 4) + i // 4 for i in range(12)]
    tiled = [48 * (t % 2) + 3 * (t // 2) + offset for t in range(8) for offset in inside]
    return [
        ("the_first_index_is_fastest", numbered, f"(4,6):(6,1) at 0, 1, 2, ...: {offsets(rows)[:5]}"),
        ("division_is_tile_after_tile", divided == tiled, f"8 x 12 by 4 x 3, tile 1: {divided[12:24]}"),
    ]


# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("primer/layouts")

# %% [markdown]
# Next: [who holds what](who_holds_what.ipynb).
