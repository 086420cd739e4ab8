# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Matrix transpose: padding, swizzle, vectors and TMA"
#     claim: >-
#       A transpose reads rows and writes columns; padding, a swizzle or a suited access pattern serves both without
#       bank conflicts.
#     kind: transpose
#     track: foundations
#     order: 90
#     aside: What a GPU can do
#     builds_on: null
#     targets: [sm_80, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float32, bfloat16]
#     path: rows of x -> shared memory -> columns of x, the rows of y
#     instructions: [LDS, STS]
#     sources:
#       - title: "NVIDIA, An Efficient Matrix Transpose in CUDA C/C++: padding"
#         url: https://developer.nvidia.com/blog/efficient-matrix-transpose-cuda-cc/
#       - title: "Colfax, Tutorial: Matrix Transpose in CUTLASS"
#         url: https://research.colfax-intl.com/tutorial-matrix-transpose-in-cutlass/
#       - title: "PTX ISA, tensors: swizzling modes"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"
# ---

# %% [markdown]
# # Matrix transpose: padding, swizzle, vectors and TMA
#
# **Claim.** A transpose computes nothing. It reads rows and writes rows, and what was a row going in is a column coming
# out; shared memory is where the two meet. A tile there is written one way and read the other, and *both* ways must be
# free of bank conflicts.
#
# A warp reads a column of a tile of 32 x 32 floats: rows after rows, and swizzled. A column of the picture is a bank, a
# row a wavefront.

# %% tags=["lab"]
import numpy as np

from cookbook import access, banks, draw
from cookbook.swizzle import Swizzle

column_of_tile = 128 * np.arange(32)  # bytes
draw.access_view(access.ldst(column_of_tile, 4), title="Rows after rows: all lanes meet in one bank")

# %% tags=["lab"]
draw.access_view(access.ldst(Swizzle(5, 2, 5)(column_of_tile), 4), title="S<5,2,5> on bytes: a bank for each lane")

# %% [markdown]
# On an H200 the first takes about twice the time of the second, for 16384 x 16384 floats: [below](#time).
#
# There are three answers: leave a gap after each row (padding), find the swizzle that serves the two accesses, or,
# where the layout is given, find the accesses that it serves. Each is a variant below, after the one that has no
# answer:
#
# | variant | shared memory | a thread moves | what it shows |
# |---|---|---|---|
# | `naive` | rows after rows | one element | a column lies in one bank |
# | `padded` | rows one word apart | one element | the classic fix, and what it costs |
# | `swizzled` | `S<B,M,S>` by a closed form | one element | the same, with nothing added |
# | `vectorised` | a swizzle for blocks | 16 bytes at both ends | blocks are transposed in registers |
# | `tma` | TMA's own 128-byte swizzle | 16 bytes; TMA at both ends | the layout is given, the threads are chosen |
#
# All of them move bits, so float32 stands for every 32-bit type and bfloat16 for every 16-bit one. The ceiling is a
# copy of the same bytes from device memory to device memory.

# %%
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import check_apart, check_gpu, check_tensor, compile_host, once, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# A variant of one element at a time takes the classic tile of 32 x 32: a warp has a row of it, or a column. The others
# want rows of x *and* of y of 256 bytes and more, because a row of a tile is all that device memory sees of it in one
# piece. So they take 64 x 64 elements of 32 bits, or 128 x 128 of 16.
#
# Several CTAs of such a size fit an SM, and while one waits for its tile the others work. That keeps enough bytes on
# the way, not a pipeline inside a CTA.

# %%
SCALAR = ("naive", "padded", "swizzled")  # one element at a time; they differ in the layout alone
VARIANTS = (*SCALAR, "vectorised", "tma")


@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    variant: str = "vectorised"  # one of VARIANTS
    bits: int = 32  # of an element: 32 or 16
    tile_m: int = 64  # rows of x per CTA
    tile_n: int = 64  # columns of x per CTA
    threads: int = 256
    by_rows: bool = False  # number the CTAs along the rows of x's tiles rather than down their columns

    @property
    def vector(self) -> int:
        """Elements in 16 bytes: 4 or 8."""
        return 128 // self.bits

    @property
    def padding(self) -> int:
        """Elements between two rows of the tile: one word of 4 bytes."""
        return 32 // self.bits if self.variant == "padded" else 0

    @property
    def blocks(self) -> int:
        """Blocks of vector x vector elements that a thread moves."""
        return self.tile_m * self.tile_n // self.vector**2 // self.threads

    @property
    def tile_bytes(self) -> int:
        return self.tile_m * self.tile_n * self.bits // 8

    @property
    def smem_bytes(self) -> int:
        if self.variant == "tma":
            return 2 * self.tile_bytes + 8  # the tile, its transpose, and a barrier
        return self.tile_m * (self.tile_n + self.padding) * self.bits // 8


def configs_for(arch: str, dtype) -> dict[str, Config]:
    """The variants that an architecture such as "sm_90a" has, by name; `dtype` is a cutlass numeric type."""
    side = 64 if dtype.width == 32 else 128
    configs = {name: Config(name, dtype.width, 32, 32) for name in SCALAR}
    configs["vectorised"] = Config("vectorised", dtype.width, side, side)
    if int(arch[3:].rstrip("af")) >= 90:
        configs["tma"] = Config("tma", dtype.width, side, side)
    return configs


def beside(arch: str, dtype) -> dict[str, Config]:
    """Return what is timed with the variants and is none itself, by name: `vectorised` with its tiles in the other
    order."""
    return {"vectorised by rows": replace(configs_for(arch, dtype)["vectorised"], by_rows=True)}


# %% [markdown]
# ## The layouts
#
# **One element at a time.** A row of 32 floats is 128 bytes, all the banks; a column is 32 words in *one* bank. The
# naive layout takes 32 wavefronts for each read of a column; for 16-bit elements 16, because two rows fit into one
# round of the banks.
#
# Padding sets the rows apart by one 4-byte word more, so the column wanders over the banks. Mind
# "one word": with 16-bit elements a gap of *one element* would start every second row inside a word, and the odd
# columns would be 2-way.
#
# The swizzle does it without a gap. `column_swizzle` is the closed form: keep together what shares a word, and XOR the
# row's number into the bits that choose the bank. 32 x 32 floats: `S<5,2,5>` on bytes, `S<5,0,5>` on elements. A row of
# 64 16-bit elements: `S<5,2,5>` on bytes too, `S<5,1,5>` on elements.
#
# **Sixteen bytes at a time.** A thread of `vectorised` holds a block of 4 x 4 floats (8 x 8 for 16 bits), read as rows
# of x, and stores it as rows of y. Eight neighbours store to every 4th (8th) row of y, at the same column. So the row's
# number *divided by 4 (8)* must go into the three bits that choose the 16-byte slot.
#
# That swizzle, `S<3,4,S>` with a large S, is none that TMA or `wgmma` know. Nothing obliges us to theirs, because only
# threads touch this tile.
#
# **TMA.** Here something does. TMA writes the 128-byte rows of a box under `S<3,4,3>` or unswizzled: the atom is given,
# and what is left to choose is which thread takes which block.


# %%
def log2(x: int) -> int:
    return x.bit_length() - 1


def column_swizzle(row: int, bits: int) -> tuple[int, int, int]:
    """S<B,M,S> on *bytes* for rows of `row` elements: one element of every row, and a row, each without conflict."""
    size = bits // 8
    base = log2(max(1, 4 // size))  # what shares a word of 4 bytes stays together
    banks, columns = log2(128 // size) - base, log2(row) - base
    return min(banks, columns), base + log2(size), max(banks, columns)


def block_swizzle(pitch: int, vector: int) -> tuple[int, int, int]:
    """S<3,4,S> on bytes for rows `pitch` bytes apart: every `vector`-th row, eight of them, in eight 16-byte slots."""
    return 3, 4, log2(pitch) + log2(vector) - 4


def composed(swizzle: tuple[int, int, int], rows) -> cute.ComposedLayout:
    return cute.make_composed_layout(cute.make_swizzle(*swizzle), 0, rows)


def smem_layouts(dtype, config: Config) -> dict[str, cute.ComposedLayout]:
    """Return where the tile lies in shared memory: "x" (M, N) as it is read, "y" (N, M) as it is written."""
    c, plain = config, (0, 4, 3)
    if c.variant in SCALAR:
        swizzle = column_swizzle(c.tile_n, dtype.width) if c.variant == "swizzled" else plain
        rows = cute.make_layout((c.tile_m, c.tile_n), stride=(c.tile_n + c.padding, 1))
        return {"x": composed(swizzle, rows)}
    if c.variant == "vectorised":
        swizzle = block_swizzle(c.tile_m * dtype.width // 8, c.vector)
        return {"y": composed(swizzle, cute.make_layout((c.tile_n, c.tile_m), stride=(c.tile_m, 1)))}
    width = 8 * c.vector  # 128 bytes
    atom = composed((3, 4, 3), cute.make_layout((8, width), stride=(width, 1)))
    return {
        "x": cute.tile_to_shape(atom, (c.tile_m, c.tile_n), order=(0, 1)),
        "y": cute.tile_to_shape(atom, (c.tile_n, c.tile_m), order=(0, 1)),
    }


# %% [markdown]
# ## Who moves what
#
# Each access to shared memory is written down once, as a function from a thread and a step to a place in the tile. The
# kernels call these functions with run-time numbers, the checks call them with numpy arrays: what is checked is what
# runs.
#
# For `tma` the choice is in `block_of`. A square of 8 x 8 blocks is 128 bytes wide in x, and 128 bytes wide in y. The
# eight lanes of a phase (16 bytes a lane: lanes 8q to 8q+7) must find eight different slots when they load a row of
# their blocks from x, and again when they store a row of the transposed blocks to y.
#
# Lanes side by side along a row would load well and store 4- or 8-way; lanes down a column the other way round.
#
# So lane p takes column p *and* row p XOR k: a *diagonal* of the square, on which all rows and all columns differ.
# Eight values of k make the square.
#
# (The diagonal would be free without the swizzle too: eight columns are eight slots, wherever their rows begin. The
# swizzle alone would not: it serves a row or a column of chunks, and here both tiles are asked for blocks.)


# %%
class Move(NamedTuple):
    """The accesses of all threads to a tile in shared memory."""

    tile: str  # which: "x" or "y"
    width: int  # elements of one access
    steps: int  # accesses of one thread
    place: Callable  # (thread, step) -> (row, column) in that tile of the first element


def along_rows(index, columns: int):
    """Row and column of number `index`, counted row by row."""
    return index // columns, index % columns


def block_of(thread, block: int, config: Config):
    """Return which block a thread takes, in blocks from the tile's corner: (down M, along N)."""
    index = thread + block * config.threads
    if config.variant == "vectorised":
        return along_rows(index, config.tile_n // config.vector)
    square, inside = index // 64, index % 64  # squares of 8 x 8 blocks, 128 bytes wide and 128 bytes high
    k, p = along_rows(inside, 8)
    down, across = along_rows(square, config.tile_n // (8 * config.vector))
    return 8 * down + (p ^ k), 8 * across + p


def moves(config: Config) -> dict[str, Move]:
    """Every access to shared memory by a thread, by name: r2s stores, s2r and s2g load."""
    c, v = config, config.vector
    if c.variant in SCALAR:
        steps = c.tile_m * c.tile_n // c.threads

        def across(thread, step):
            return along_rows(thread + step * c.threads, c.tile_n)

        def down(thread, step):
            return along_rows(thread + step * c.threads, c.tile_m)[::-1]

        return {"r2s_x": Move("x", 1, steps, across), "s2g_x": Move("x", 1, steps, down)}

    def rows_of_x(thread, step):
        i, j = block_of(thread, step // v, c)
        return v * i + step % v, v * j

    def rows_of_y(thread, step):
        i, j = block_of(thread, step // v, c)
        return v * j + step % v, v * i

    def whole_rows_of_y(thread, step):
        n, i = along_rows(thread + step * c.threads, c.tile_m // v)
        return n, v * i

    steps = v * c.blocks
    store = Move("y", v, steps, rows_of_y)
    if c.variant == "vectorised":
        return {"r2s_y": store, "s2g_y": Move("y", v, steps, whole_rows_of_y)}
    return {"s2r_x": Move("x", v, steps, rows_of_x), "r2s_y": store}


# %% [markdown]
# ### The wavefronts of each variant
#
# The first read of a column by a warp, in each of the three layouts that are read an element at a time:

# %% tags=["lab"]
from cookbook.lab import moves as touched
from cookbook.layouts import evaluate


def first_access(variant, move, dtype=cutlass.Float32, arch="sm_90a"):
    config = configs_for(arch, dtype)[variant]
    layouts, step = evaluate(smem_layouts, dtype, config), moves(config)[move]
    return touched.accesses(layouts[step.tile], step, config.threads)[0]


for variant in SCALAR:
    for dtype in (cutlass.Float32, cutlass.BFloat16):
        one = first_access(variant, "s2g_x", dtype)
        words = f"{banks.wavefronts(one.addresses, one.width).actual:2} wavefronts for a column of 32"
        print(f"{variant:10}{dtype.__name__:10}{words}")

# %% [markdown] tags=["lab"]
# The 16-byte accesses go in four phases of eight lanes, and each phase should take one wavefront. Here are the loads
# and the stores of `tma`: a diagonal of blocks, in eight different slots of x's tile and in eight of y's.

# %% tags=["lab"]
draw.access_view(first_access("tma", "s2r_x"))

# %% tags=["lab"]
draw.access_view(first_access("tma", "r2s_y"))

# %% [markdown] tags=["lab"]
# And the trap: lanes side by side along a row of x, in the same layouts. They load without a conflict, and store into
# too few slots.

# %% tags=["lab"]
lane = np.arange(32)
for dtype in (cutlass.Float32, cutlass.BFloat16):
    config = configs_for("sm_90a", dtype)["tma"]
    layout, v = evaluate(smem_layouts, dtype, config)["y"], config.vector
    for way, down in (("side by side", lane // 8), ("on a diagonal", lane % 8 ^ lane // 8)):
        places = layout.byte_offsets()[v * (lane % 8), v * down]  # the first row of each transposed block
        print(f"{dtype.__name__:10}{way:14}{banks.wavefronts(places, 16).actual:2} wavefronts a store, 4 is ideal")

# %% [markdown]
# ## What is expected
#
# The one variant that has conflicts says so, and why; the check holds it to that number.


# %%
def expected_excess(config: Config) -> dict[str, tuple[int, str]]:
    """Wavefronts above the ideal that each instruction of a move takes: {move: (how many, why)}."""
    if config.variant != "naive":
        return {}
    ways = min(
        32, config.tile_n * config.bits // 32
    )  # words from one row to the next: this number of rows shares a bank
    return {"s2g_x": (ways - 1, "rows of a column's words lie in the same banks")}


# What the machine code of a variant must hold, beside what all of them do.
INSTRUCTIONS = {
    "vectorised": ("LDG.E.128", "STS.128", "LDS.128", "STG.E.128"),
    "tma": ("UTMALDG.2D", "LDS.128", "STS.128", "UTMASTG.2D"),
}

# %% [markdown]
# ## In registers
#
# A block of 32-bit elements is transposed by giving its registers other names: no instruction at all. Of 16-bit
# elements, two share a register, and one byte permutation (`PRMT`) makes each register of the transpose.


# %%
@cute.jit
def vector_at(tensor: cute.Tensor, row: cutlass.Int32, column: cutlass.Int32, width: cutlass.Constexpr):
    """`width` adjacent elements of a row: (1, width)."""
    return cute.local_tile(tensor, (1, width), (row, column // width))


@cute.jit
def transposed(block: cute.Tensor):
    """The transpose of a block in registers: (V, V)."""
    out = cute.make_rmem_tensor(block.layout, block.element_type)
    for r in cutlass.range_constexpr(block.shape[0]):
        for c in cutlass.range_constexpr(block.shape[1]):
            out[c, r] = block[r, c]
    return out


@cute.jit
def registers(dtype: cutlass.Constexpr, rows: cutlass.Constexpr, columns: cutlass.Constexpr):
    return cute.make_rmem_tensor(cute.make_layout((rows, columns), stride=(columns, 1)), dtype)


# %% [markdown]
# ## Variants whose threads do it all
#
# First every load of a thread, then the stores to shared memory: all of a thread's bytes are on their way at once. The
# barrier between writing and reading the tile is what the swizzle does *not* replace. With it in its place, the two
# sides need only agree on the layout; which thread wrote an element is forgotten.
#
# (That is the trap of the transpose that loads `shared[i][i ^ t]`: a thread reads back what it wrote itself, and the
# result is the input. `foundations/xor_swizzle` goes through it frame by frame.)
#
# At the edges an element, or a block, is in the matrix or not. `vectorised` is only called for matrices whose sides are
# multiples of a vector, so a block is never cut.


# %%
@cute.jit
def scalars(
    gX: cute.Tensor,
    gY: cute.Tensor,
    sX: cute.Tensor,
    limit: tuple,
    config: cutlass.Constexpr,
    tidx: cutlass.Int32,
):
    store, load = moves(config)["r2s_x"], moves(config)["s2g_x"]
    values = cute.make_rmem_tensor(store.steps, gX.element_type)
    for step in cutlass.range_constexpr(store.steps):
        m, n = store.place(tidx, step)
        if cute.elem_less((m, n), limit):
            values[step] = gX[m, n]
    for step in cutlass.range_constexpr(store.steps):
        m, n = store.place(tidx, step)
        sX[m, n] = values[step]
    cute.arch.sync_threads()
    for step in cutlass.range_constexpr(load.steps):
        m, n = load.place(tidx, step)
        if cute.elem_less((m, n), limit):
            gY[n, m] = sX[m, n]


@cute.jit
def vectors(
    gX: cute.Tensor,
    gY: cute.Tensor,
    sY: cute.Tensor,
    limit: tuple,
    config: cutlass.Constexpr,
    tidx: cutlass.Int32,
):
    store, load = moves(config)["r2s_y"], moves(config)["s2g_y"]
    v = config.vector
    blocks = [registers(gX.element_type, v, v) for _ in range(config.blocks)]
    for b in cutlass.range_constexpr(config.blocks):
        i, j = block_of(tidx, b, config)
        if cute.elem_less((v * i, v * j), limit):
            for r in cutlass.range_constexpr(v):
                source = vector_at(gX, v * i + r, v * j, v)
                cute.autovec_copy(source, vector_at(blocks[b], r, 0, v))
    for b in cutlass.range_constexpr(config.blocks):
        block = transposed(blocks[b])
        for c in cutlass.range_constexpr(v):
            n, m = store.place(tidx, b * v + c)
            cute.autovec_copy(vector_at(block, c, 0, v), vector_at(sY, n, m, v))
    cute.arch.sync_threads()
    for step in cutlass.range_constexpr(load.steps):
        n, m = load.place(tidx, step)
        if cute.elem_less((m, n), limit):
            row = registers(gX.element_type, 1, v)
            cute.autovec_copy(vector_at(sY, n, m, v), row)
            cute.autovec_copy(row, vector_at(gY, n, m, v))


# %% [markdown]
# ## The kernel
#
# CTAs are numbered down the columns of x's tiles. Those that run together then write one stretch of y, whole rows next
# to each other, and read from many rows of x. Either the reads or the writes must be scattered over many rows. The
# field `by_rows` numbers CTAs along the rows of x instead, and `beside` puts that order into the table of timings.


# %%
@cute.jit
def tile_of_cta(shape_mn: tuple, config: cutlass.Constexpr):
    """Return which tile this CTA transposes: column after column of x's tiles, which is row after row of y's; or by
    rows."""
    cta, _, _ = cute.arch.block_idx()
    if cutlass.const_expr(config.by_rows):
        return along_rows(cta, cute.ceil_div(shape_mn[1], config.tile_n))
    return along_rows(cta, cute.ceil_div(shape_mn[0], config.tile_m))[::-1]


@cute.kernel
def kernel(mX: cute.Tensor, mY: cute.Tensor, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """One CTA transposes one tile of mX (M, N) into mY (N, M)."""
    tidx, _, _ = cute.arch.thread_idx()
    tile_m, tile_n = tile_of_cta(mX.shape, config)
    gX = cute.local_tile(mX, (config.tile_m, config.tile_n), (tile_m, tile_n))
    gY = cute.local_tile(mY, (config.tile_n, config.tile_m), (tile_n, tile_m))
    limit = (mX.shape[0] - tile_m * config.tile_m, mX.shape[1] - tile_n * config.tile_n)
    ((_, layout),) = smem_layouts(dtype, config).items()
    smem = SmemAllocator().allocate_tensor(dtype, layout.outer, 1024, swizzle=layout.inner)
    if cutlass.const_expr(config.variant == "vectorised"):
        vectors(gX, gY, smem, limit, config, tidx)
    else:
        scalars(gX, gY, smem, limit, config, tidx)


# %% [markdown]
# ## The TMA variant
#
# One thread makes the barrier in shared memory, and `sync_threads` lets everybody know. Then one thread says how many
# bytes that barrier shall wait for and asks for the tile; all wait; each thread takes its blocks from x's tile to y's.
# TMA is another agent than the threads, so between their stores and its reading there stands a proxy fence, and then
# the threads' barrier. What lies outside the matrix arrives as zeros, and is not stored.
#
# Why not ask for the tile at once, in the branch that makes the barrier? The thread that `elect_one` elects is the same
# each time, so its own order would do. But in the machine code making the barrier is one instruction of the whole warp
# (`SYNCS.EXCH`), arriving at it is one of a single lane (`SYNCS.ARRIVE`), and nothing stands between them. A barrier
# that is used only after `sync_threads`, as CuTe's pipelines do it, needs no second one and no such argument.


# %%
@cute.jit
def turn(sX: cute.Tensor, sY: cute.Tensor, config: cutlass.Constexpr, tidx: cutlass.Int32):
    load, store = moves(config)["s2r_x"], moves(config)["r2s_y"]
    v = config.vector
    for b in cutlass.range_constexpr(config.blocks):
        block = registers(sX.element_type, v, v)
        for r in cutlass.range_constexpr(v):
            m, n = load.place(tidx, b * v + r)
            cute.autovec_copy(vector_at(sX, m, n, v), vector_at(block, r, 0, v))
        block = transposed(block)
        for c in cutlass.range_constexpr(v):
            n, m = store.place(tidx, b * v + c)
            cute.autovec_copy(vector_at(block, c, 0, v), vector_at(sY, n, m, v))


@cute.kernel
def kernel_tma(
    load: cute.CopyAtom,
    mX: cute.Tensor,  # (M, N), as TMA coordinates
    store: cute.CopyAtom,
    mY: cute.Tensor,  # (N, M), as TMA coordinates
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One CTA transposes one tile of mX into mY; both ends are copies by TMA."""
    tidx, _, _ = cute.arch.thread_idx()
    tile_m, tile_n = tile_of_cta(mX.shape, config)
    gX = cute.local_tile(mX, (config.tile_m, config.tile_n), (tile_m, tile_n))
    gY = cute.local_tile(mY, (config.tile_n, config.tile_m), (tile_n, tile_m))
    layouts = smem_layouts(dtype, config)
    smem = SmemAllocator()
    sX = smem.allocate_tensor(dtype, layouts["x"].outer, 1024, swizzle=layouts["x"].inner)
    sY = smem.allocate_tensor(dtype, layouts["y"].outer, 1024, swizzle=layouts["y"].inner)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    alone = cute.make_layout(1)  # no multicast: a cluster of one
    tXsX, tXgX = cpasync.tma_partition(load, 0, alone, cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2))
    tYsY, tYgY = cpasync.tma_partition(store, 0, alone, cute.group_modes(sY, 0, 2), cute.group_modes(gY, 0, 2))
    first_warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0

    if first_warp:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(arrived, 1)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()  # no thread uses a barrier that is not there yet
    if first_warp:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, config.tile_bytes)
        cute.copy(load, tXgX, tXsX, tma_bar_ptr=arrived)
    cute.arch.mbarrier_wait(arrived, 0)
    turn(sX, sY, config, tidx)
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote, TMA shall see
    cute.arch.sync_threads()
    if first_warp:
        with cute.arch.elect_one():  # a store by TMA, unlike a load, does not choose one of the warp's threads itself
            cute.copy(store, tYsY, tYgY)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)


# %% [markdown]
# ## The launch
#
# Sizes and strides are run-time values: one compiled kernel serves all shapes. Strides have 64 bits, because a matrix
# can have more than 2**31 elements.


# %%
@cute.jit
def launch(
    pX: cute.Pointer,
    pY: cute.Pointer,
    mn: tuple[cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Y (N, M) = X (M, N) transposed; `strides` are the row strides of X and Y in elements."""
    (m, n), (ldx, ldy) = mn, strides
    together = 1 if config.variant in SCALAR else config.vector
    mX = cute.make_tensor(pX, cute.make_layout((m, n), stride=(cute.assume(ldx, divby=together), 1)))
    mY = cute.make_tensor(pY, cute.make_layout((n, m), stride=(cute.assume(ldy, divby=together), 1)))
    grid = (cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n), 1, 1)
    if cutlass.const_expr(config.variant == "tma"):
        layouts = smem_layouts(dtype, config)
        to_smem, from_smem = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        load, mX = cpasync.make_tiled_tma_atom(to_smem, mX, layouts["x"], (config.tile_m, config.tile_n))
        store, mY = cpasync.make_tiled_tma_atom(from_smem, mY, layouts["y"], (config.tile_n, config.tile_m))
        kernel_tma(load, mX, store, mY, dtype, config).launch(grid=grid, block=(config.threads, 1, 1), stream=stream)
    else:
        kernel(mX, mY, dtype, config).launch(grid=grid, block=(config.threads, 1, 1), stream=stream)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here.

    config: of one variant; the last of `configs_for(arch, dtype)` if left out.
    """
    config = config or list(configs_for(arch, dtype).values())[-1]
    pointers = ((dtype, dtype.width // 8 if config.variant in SCALAR else 16),) * 2
    return compile_host(launch, arch, pointers, (dtype, config), options=options)


# %% [markdown]
# ## `transpose`
#
# What a user calls. It checks everything that the kernels rely on before anything is launched, and says which
# argument is at fault, what it got and what it needs. Left to itself it takes the fastest variant that the matrices
# allow: 16 bytes at a time need rows that start at multiples of 16 bytes.

# %% tags=["folded"]
DTYPES = {torch.float32: cutlass.Float32, torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}
LONGEST = 2**31 - 2**10  # rows or columns: rounded up to whole tiles, they still are 32-bit numbers
FASTEST_FIRST = ("vectorised", "tma", "padded", "swizzled", "naive")  # as measured: see "Time"


def check_matrix(name: str, x: torch.Tensor) -> None:
    """A non-empty matrix of a dtype and a size that the kernels take, with adjacent columns."""
    check_tensor(name, x, DTYPES)
    require(max(x.shape) <= LONGEST, name, f"shape {tuple(x.shape)}", f"sides of at most {LONGEST}")
    rows, columns = x.stride()
    require(columns == 1 or x.shape[1] == 1, name, f"stride {columns} along its rows", "1: rows of adjacent elements")
    apart = f"rows {rows} elements apart"
    require(rows >= x.shape[1] or x.shape[0] == 1, name, apart, f"at least {x.shape[1]}: rows that do not overlap")


def row_stride(x: torch.Tensor) -> int:
    """In elements. A single row has no next one: any stride will do, and this one suits every variant."""
    return x.stride(0) if x.shape[0] > 1 else -(-x.shape[1] // 8) * 8


def usable(x: torch.Tensor, out: torch.Tensor, capability: tuple[int, int]) -> dict[str, str]:
    """Every variant, fastest first, with what forbids it for these matrices on such a GPU: "" where nothing does."""
    vector = 16 // x.element_size()
    strides = [row_stride(t) % vector == 0 for t in (x, out)]
    aligned = all(strides) and (x.data_ptr() | out.data_ptr()) % 16 == 0
    reasons = dict.fromkeys(FASTEST_FIRST, "")
    if (x.shape[0] | x.shape[1]) % vector:
        reasons["vectorised"] = f"sides that are multiples of {vector}"
    if capability < (9, 0):
        reasons["tma"] = f"a GPU of compute capability (9, 0) or later; this is {capability}"
    if x.shape[0] % vector:  # TMA stores 16 bytes at a time: seen to write past the end of a shorter row's last piece
        reasons["tma"] = f"an M that is a multiple of {vector}"
    if not aligned:
        reasons["vectorised"] = reasons["tma"] = "x and out with rows that start at multiples of 16 bytes"
    return reasons


def check_out(out: torch.Tensor, x: torch.Tensor) -> None:
    """`out` can take the transpose of `x`."""
    check_matrix("out", out)
    (m, n) = x.shape
    require(out.dtype == x.dtype, "out", out.dtype, f"{x.dtype}, the dtype of x", TypeError)
    require(out.shape == (n, m), "out", f"shape {tuple(out.shape)}", f"({n}, {m})")
    require(out.device == x.device, "out", f"device {out.device}", f"{x.device}, where x is")
    check_apart(out, x=x)


KERNELS: dict[tuple, Callable[..., None]] = {}  # by dtype, configuration and compute capability


@cache
def configs(dtype: torch.dtype, capability: tuple[int, int]) -> dict[str, Config]:
    """`configs_for` a GPU of this compute capability."""
    return configs_for("sm_{}{}".format(*capability), DTYPES[dtype])


def run(x: torch.Tensor, out: torch.Tensor, config: Config) -> None:
    """Transpose `x` into `out` as `config` says; they are known to suit it."""
    make = partial(compile_for, "", DTYPES[x.dtype], config, "--enable-tvm-ffi")
    with torch.cuda.device(x.device):
        kernel_of_config = once(KERNELS, (x.dtype, config, torch.cuda.get_device_capability()), make)
        stream = torch.cuda.current_stream().cuda_stream
        kernel_of_config(x.data_ptr(), out.data_ptr(), tuple(x.shape), (row_stride(x), row_stride(out)), stream)


# %%
def transpose(x: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = "auto") -> torch.Tensor:
    """The transpose of `x` in memory of its own, on the current stream of `x`'s device.

    x: (M, N), float32, float16 or bfloat16, stride 1 along N, any row stride >= N, any M, N from 1 to LONGEST.
    out: (N, M), the same dtype, stride 1 along M, any row stride >= M, no memory of x. Made if not given.
    variant: one of VARIANTS, or "auto": the fastest that the matrices allow. "tma" needs a GPU of compute
        capability 9.0 or later, and x and out whose addresses and row strides are multiples of 16 bytes;
        "vectorised" needs such x and out, and M and N that are multiples of 16 bytes; the others take anything.

    Every bit comes out as it went in. Needs a GPU of compute capability 8.0 or later. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    check_matrix("x", x)
    require(variant in ("auto", *VARIANTS), "variant", repr(variant), f"auto or one of {', '.join(VARIANTS)}")
    (m, n) = x.shape
    if out is not None:
        check_out(out, x)
    check_gpu("x", x, ((8, 0), ...), "its shared memory")
    capability = torch.cuda.get_device_capability(x.device)

    out = torch.empty((n, m), dtype=x.dtype, device=x.device) if out is None else out
    reasons = usable(x, out, capability)
    if variant == "auto":
        variant = next(name for name in FASTEST_FIRST if not reasons[name])
    require(not reasons[variant], "variant", repr(variant), reasons[variant])
    run(x, out, configs(x.dtype, capability)[variant])
    torch.autograd.graph.increment_version(out)  # tell autograd that it was overwritten
    return out


# %% [markdown] tags=["lab"]
# ## Time
#
# The fastest variant, the others, `vectorised` with its tiles in the other order, torch's own transpose, and the
# ceiling: a copy of the same bytes. All of them interleaved in one run on one GPU. `FASTEST_FIRST` has the variants in
# the order of these times, in which `transpose` tries them. Padding and the swizzle both take the conflicts away, and
# padding is a little faster.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table

Markdown(results_table("foundations/matrix_transpose"))

# %% [markdown]
# Wavefronts against time, predicted and measured. An SM's shared memory serves one wavefront a clock, so the wavefronts
# of a tile, times the tiles, say how long shared memory alone needs: here at 1.98 GHz, the highest clock of an H200.
# The other bound is the copy.

# %% tags=["lab"]
from cookbook.lab import records


def wavefronts_of_tile(config, dtype):
    """Wavefronts of all accesses of a CTA to its tile, by the kernel's moves on its layouts."""
    layouts = evaluate(smem_layouts, dtype, config)
    every = [touched.accesses(layouts[m.tile], m, config.threads) for m in moves(config).values()]
    return sum(banks.wavefronts(one.addresses, one.width).actual for found in every for one in found)


def against_time(record, sms=132, clocks_a_ms=1.98e6):
    """For each variant whose threads do it all: what shared memory needs, what a copy needs, what was measured."""
    dtype = {"float32": cutlass.Float32, "bfloat16": cutlass.BFloat16}[record["dtype"]]
    m, n = record["shape"]
    for name, config in configs_for("sm_90a", dtype).items():
        if name == "tma":
            continue
        tiles = m * n / (config.tile_m * config.tile_n)
        group = f"{name}, {record['dtype']}"
        needed = tiles * wavefronts_of_tile(config, dtype) / sms / clocks_a_ms
        yield draw.Bar(group, "shared memory, predicted", round(needed, 3))
        yield draw.Bar(group, "device copy, measured", round(record["peers"]["device copy"]["median_ms"], 3))
        yield draw.Bar(group, "measured", round(record["peers"][name]["median_ms"], 3))


of_floats = records.of_one_gpu("foundations/matrix_transpose", "timed", "float32")
title = f"16384 x 16384, {of_floats[-1]['device']}" if of_floats else ""
shown = (against_time(of_floats[-1]), "ms", title, "measured", False, "shorter is faster") if of_floats else ()
draw.bar_chart(*shown) if shown else "not measured"

# %% [markdown]
# With conflicts shared memory is the bound, and the time counted is most of the time measured. Without them the copy
# is the bound, and `vectorised` comes near it. Neither bound shows what the variants of one element a thread lose
# against the copy. (A bound is the least time: at a lower clock, or while shared memory waits for a tile, a kernel
# takes longer.)

# %% [markdown] tags=["lab"]
# ## Check
#
# *Layout*: every element has a place of its own, each move touches every element once, in the wavefronts expected of
# it. *Model*: every element followed from x, by these layouts, through the modelled shared memory (and TMA) to y, on
# ragged shapes. *Compiled*: a real cubin of every variant. On a machine with a GPU the kernels also run here; elsewhere
# the recorded run is shown.
#
# Without a GPU, no level reads the kernel's own coordinates, guards and accumulators.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("foundations/matrix_transpose", dtypes=["float32"], targets=["sm_90a"])

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/matrix_transpose my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** Walk a square on its diagonals, also where its side is no power of two.


# %%
def diagonal(thread, side):
    """Exercise 1, finish it: the place (down, across) of a thread in a square of `side` x `side` blocks. Each block
    goes to one thread; `side` threads in a row, from a multiple of `side`, differ in down, and differ in across."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# `block_of` does it for a side of 8: `p ^ k` down, `p` across. Try it with a side of 6. Where does 5 ^ 2 lie?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# XOR needs a power of two. Which other operation gives a different result for each k, and stays below any side?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# def diagonal(thread, side):
#     k, p = thread // side, thread % side
#     return (p + k) % side, p
# ```
#
# </details>
#
# **Find the bug.** Eight threads store to every `vector`-th row of y, at the same column. Under this swizzle some of
# them meet in a slot.


# %%
def slots_swizzle(pitch, vector):
    """Exercise 2, find the bug: S<B,M,S> on bytes, for rows `pitch` bytes apart: every `vector`-th row, eight of them,
    in eight 16-byte slots."""
    return 3, 4, log2(pitch) - 4


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# The rows start at multiples of `pitch * vector` bytes. Which bits of the address differ among eight of them?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# S is the distance from the bits that change, which begin at bit 4, to the bits that are read.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# It reads the row's number. What differs is the row's number divided by `vector`, which begins log2(vector) bits
# higher.
#
# ```python
# def slots_swizzle(pitch, vector):
#     return 3, 4, log2(pitch) + log2(vector) - 4
# ```
#
# </details>


# %% tags=["folded"]
def check_diagonal(answer):
    """Any walk with the property is right."""
    for side in (8, 6, 5, 1):
        walk = [tuple(answer(thread, side)) for thread in range(side * side)]
        yield f"blocks of a square of {side}", sorted(walk), [(d, a) for d in range(side) for a in range(side)]
        for first in range(0, side * side, side):
            apart = [len(set(places)) for places in zip(*walk[first : first + side], strict=True)]
            yield f"places down and across of threads {first} to {first + side - 1}, side {side}", apart, [side] * 2


def check_slots(answer):
    """Any swizzle on bytes that keeps 16 bytes together and is legal is right."""
    for pitch, vector in ((256, 4), (256, 8), (128, 8), (512, 4)):
        bits, base, shift = answer(pitch, vector)
        said = f"pitch {pitch}, every {vector}th row"
        yield f"{said}: (whether |S| >= B, whether M >= 4)", (abs(shift) >= bits, base >= 4), (True, True)
        starts = [pitch * vector * row for row in range(8)]
        found = [(start ^ (start >> shift & ((1 << bits) - 1) << base)) // 16 % 8 for start in starts]
        yield f"{said}: slots of eight rows", sorted(found), list(range(8))


EXERCISES = {"diagonal": check_diagonal, "slots_swizzle": check_slots}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/matrix_transpose")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Conflicts in shared memory are what a transpose is known for, and any of three answers removes them. What is left is
# device memory, which wants long rows at both ends and many of them on the way. Where the swizzle is free to choose,
# derive it from the accesses; where it is given, as TMA gives it, derive the accesses from the swizzle. The tensor
# cores' operands are the second case, and the transpose of 16-bit 8x8 blocks is there an instruction's: `ldmatrix` has
# a `.trans`.
#
# To use it: `cookbook copy foundations/matrix_transpose my_transpose.py`, then `from my_transpose import transpose`.
#
# Next: [how fast the tensor cores can go](tensor_core_ceiling.ipynb), and [how fast memory](memory_ceiling.ipynb).
