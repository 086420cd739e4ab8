# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Persistent CTAs without TMA
#     claim: >-
#       A persistent CTA loads its next work tile with cp.async while it multiplies the current one, so its pipeline is
#       filled once and not once for each tile.
#     track: ampere
#     order: 45
#     builds_on: ampere/pipelined_gemm
#     pays: {at: [8192, 8192, 512], over: one tile a CTA}
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [bfloat16, float16]
#     path: cp.async, across tiles -> swizzled shared memory -> ldmatrix -> mma.sync -> subtiles of C -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
#     bench_shapes: [[8192, 8192, 512], [8192, 8192, 1024], [4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, cp.async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async"}
#       - {title: "PTX ISA, cp.async.wait_group", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-group"}
#       - {title: "Triton, matrix multiplication: L2 cache optimizations", url: "https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html#l2-cache-optimizations"}
# ---

# %% [markdown]
# # Persistent CTAs without TMA
#
# **Claim.** A CTA that computes one tile begins with empty stages, and the tensor cores wait for the first loads.
# *Persistent CTAs*, as many as there are SMs, go from one work tile to the next and load the next tile's first k-tiles
# while they still multiply this one's last.

# %% tags=["lab"]
from cookbook import access, draw, lab
from cookbook.layouts import evaluate

lab.gain("ampere/persistent_gemm", (8192, 8192, 512), over=["one tile a CTA"])

# %% [markdown]
# [The pipeline](pipelined_gemm.ipynb) fills its stages again for each tile; here a CTA fills them once. [On
# Hopper](../hopper/persistent_gemm.ipynb) a producer warp does that: it only asks TMA for tiles, and need not know
# what the others do. With `cp.async` every thread loads and multiplies. Three things follow.
#
# * **Two places in the work.** A thread must know the tile that it multiplies and, a few k-tiles ahead, the one that it
#   loads. The second is a *cursor*: two addresses and a few numbers.
# * **C next to A and B.** The stages are never empty, so C has its own two small buffers. Each has a quarter of the
#   tile.
# * **No end of the loop.** The pipeline had to ask in each k-tile whether anything was left to load. Now there always
#   is, up to the CTA's last tile. K-tiles behind that one are like rows outside the matrix: `cp.async` copies nothing,
#   and fills in zeros.
#
# Tile, warps, fragments and the order of work in a k-tile are those of `loads apart` in the pipeline.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import Operand, tiled_mma
from cookbook.recipes.ampere.ldmatrix_gemm import Config as LdmatrixConfig
from cookbook.recipes.ampere.ldmatrix_gemm import smem_atom
from cookbook.recipes.ampere.pipelined_gemm import fetch_block, following, make_buffers, wait_for_k_tile
from cookbook.recipes.ampere.smem_gemm import rasterize
from cookbook.recipes.ampere.staged_epilogue_gemm import SmemLayouts, TiledCopies, matrices, smem_tensor, tiled_copies

# %% [markdown]
# ## The sizes
#
# Four stages of A and B are 192 KiB; a tile of C is 64 KiB. Together they would be too much. But C need not be there at
# once: *epilogue subtiles* of 32 rows, 16 KiB each, alternate between two buffers. A subtile has 16 rows of each of the
# two rows of warps, so every warp has something to write into it.
#
# | variant | |
# |---|---|
# | `one tile a CTA` | this very kernel on a grid of as many CTAs as tiles |
# | `persistent` | as many CTAs as SMs |
#
# Chips with less shared memory get stages of half the depth, or fewer of them, and one buffer of C.


# %%
@dataclass(frozen=True)
class Config(LdmatrixConfig):
    """Sizes of the kernel, in elements or counts, and how tiles are given out."""

    epi_stages: int = 2  # epilogue subtiles of C, 1 or 2: with 2, one is filled while the other is still read
    persistent: bool = True  # a CTA computes tile after tile

    @property
    def epi_m(self) -> int:
        """Rows of an epilogue subtile of C: one mma's of each row of warps."""
        return 16 * self.warps_m

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * (ab + self.epi_stages * self.epi_m * self.tile_n)


VARIANTS = {"one tile a CTA": Config(persistent=False), "persistent": Config()}
DEFAULT = "persistent"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant in the stages that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    chip, config = arch.rstrip("af"), VARIANTS[variant]
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):  # 99 KiB: 24 KiB a stage of half the depth, 16 of C
        return replace(config, tile_k=32, stages=3, epi_stages=1)
    return replace(config, stages=3, epi_stages=1) if chip in ("sm_80", "sm_87") else config  # 163 KiB: 144 and 16


# %% [markdown]
# ## The layout of C
#
# A and B lie as they did: rows of 128 bytes (64 where stages are shallower), swizzled, so that neither `cp.async` nor
# `ldmatrix` has a conflict. C has `epi_stages` buffers of an epilogue subtile. MMA and copies are [those of the pages
# before](smem_gemm.ipynb); the copies of C go over a subtile instead of a whole tile.


# %%
def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: A and B (rows, K, STAGE), C (EPI_M, N, EPI_STAGE)."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.tile_n), (c.epi_m, c.tile_n, c.epi_stages), order=(0, 1, 2)),
    )


# %% [markdown]
# ## Loading: a cursor
#
# Of a k-tile a thread loads one 16-byte chunk in every 32nd row (or 64th), of A and of B. Where the chunks go in shared
# memory is the same for every tile; where they come from changes. CuTe's tensors describe one tile, and two sets of
# them would take more registers than there are. So a thread keeps the *addresses* of its first chunks and steps: its
# next row lies `rows_apart` strides further, the next k-tile 128 bytes.
#
# Three kinds of chunks do not exist: rows outside the matrix, k-tiles before it, and k-tiles behind the CTA's last
# tile. (The k-tiles end where K ends, so the first may begin before. And at its end the CTA asks for more.) One number
# covers all three: how many rows there are, counted from the thread's own first. It is zero before K and behind the
# last tile.
#
# A tile has at least as many k-tiles as are in flight, so a CTA loads for only *one* tile while it multiplies another.
# With a shorter K the first of them are all zeros.
#
# First what is the same for all tiles: where a thread's chunks come from and go to.


# %%
class Way(NamedTuple):
    """One thread's part in loading an operand: what is the same for all tiles."""

    source: cutlass.Int64  # address of the matrix's first row, at this thread's place along K in k-tile 0
    row_bytes: cutlass.Int64  # from one row of the matrix to the next
    rows: cutlass.Int32  # of the matrix
    first: cutlass.Int32  # this thread's first row in a tile
    rows_apart: int  # from one of its chunks to the next
    chunks: int  # of a k-tile
    target: cutlass.Int32  # where its first chunk goes in stage 0, swizzled
    stage_bytes: int


@cute.jit
def make_way(
    copy: cute.TiledCopy,
    mX: cute.Tensor,
    sX: cute.Tensor,
    before: cutlass.Int32,
    tidx: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """This thread's part of mX (rows, K), whose k-tiles begin at `before`, into sX (rows, K, STAGE)."""
    target = copy.get_slice(tidx).partition_D(sX)  # (CPY, CPY_M, CPY_K, STAGE)
    first, chunks = target.iterator.toint(), 0x70 if config.tile_k % 64 == 0 else 0x30  # 8 or 4 chunks in a row
    across = config.tile_k // 8  # threads along a row
    source = mX.iterator.toint() + 2 * (before + 8 * (tidx % across))
    stage_bytes = 2 * cute.size(sX, mode=[0]) * config.tile_k
    return Way(
        source=source,
        row_bytes=2 * mX.stride[0],
        rows=mX.shape[0],
        first=tidx // across,
        rows_apart=config.threads // across,
        chunks=target.shape[1],
        target=first ^ ((first >> 3) & chunks),
        stage_bytes=stage_bytes,
    )


# %% [markdown]
# Then the cursor: the k-tile that is asked for next. `cursor_at` puts it at the beginning of a tile, `cursor_after`
# moves it by one k-tile. The tile scheduler numbers tiles by [`rasterize`](smem_gemm.ipynb#the-kernel); a CTA's next
# tile is as many further as there are CTAs.


# %%
class Cursor(NamedTuple):
    """The k-tile that is to be asked for next."""

    a: cutlass.Int64  # address of this thread's first chunk of A
    b: cutlass.Int64  # and of B
    rows_a: cutlass.Int32  # rows from that chunk's to the end of A: 0 or less if it is outside
    rows_b: cutlass.Int32
    k: cutlass.Int32  # this thread's place along K: negative before the matrix begins
    left: cutlass.Int32  # k-tiles of the tile from here on
    tile: cutlass.Int32  # its number


class Problem(NamedTuple):
    """Values common to all tiles."""

    shape_mn: tuple[cutlass.Int32, cutlass.Int32]
    before: cutlass.Int32  # where k-tiles begin along K: 0 or less
    k_tiles: cutlass.Int32  # of a tile
    tiles: cutlass.Int32  # of C


@cute.jit
def work_tile(number: cutlass.Int32, problem: Problem, config: cutlass.Constexpr):
    """The tile scheduler: row and column of tile `number`."""
    tiles_m = cute.ceil_div(problem.shape_mn[0], config.tile_m)
    tiles_n = cute.ceil_div(problem.shape_mn[1], config.tile_n)
    return rasterize(number, (tiles_m, tiles_n), config.swizzle_size)


@cute.jit
def cursor_at(
    number: cutlass.Int32,
    way_a: Way,
    way_b: Way,
    problem: Problem,
    tidx: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The first k-tile of a tile; behind the last tile, one that has no rows."""
    m, n = work_tile(cutlass.min(number, problem.tiles - 1), problem, config)
    row_a, row_b = m * config.tile_m + way_a.first, n * config.tile_n + way_b.first
    rows_a, rows_b = way_a.rows - row_a, way_b.rows - row_b
    if number >= problem.tiles:
        rows_a, rows_b = cutlass.Int32(0), cutlass.Int32(0)
    return Cursor(
        a=way_a.source + way_a.row_bytes * row_a,
        b=way_b.source + way_b.row_bytes * row_b,
        rows_a=rows_a,
        rows_b=rows_b,
        k=problem.before + 8 * (tidx % (config.tile_k // 8)),
        left=problem.k_tiles,
        tile=number,
    )


# %%
@cute.jit
def cursor_after(
    c: Cursor,
    ctas: cutlass.Int32,
    way_a: Way,
    way_b: Way,
    problem: Problem,
    tidx: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The k-tile after `c`: of the same tile, or the first of this CTA's next one."""
    a, b = c.a + 2 * config.tile_k, c.b + 2 * config.tile_k
    rows_a, rows_b, k, left, tile = c.rows_a, c.rows_b, c.k + config.tile_k, c.left - 1, c.tile
    if left == 0:
        n = cursor_at(tile + ctas, way_a, way_b, problem, tidx, config)
        a, b, rows_a, rows_b, k, left, tile = n.a, n.b, n.rows_a, n.rows_b, n.k, n.left, n.tile
    return Cursor(a, b, rows_a, rows_b, k, left, tile)


# %% [markdown]
# A load is a `cp.async` for each chunk, from an address to an address.


# %%
def sixteen_bytes(dtype, address, space: cute.AddressSpace) -> cute.Tensor:
    """One chunk, as `cp.async` takes it."""
    pointer = cute.make_ptr(dtype, address, space, assumed_align=16)
    return cute.make_tensor(pointer, cute.make_layout(((8, 1),), stride=((1, 0),)))


@cute.jit
def load_tile(
    dtype: cutlass.Constexpr,
    atom: cute.CopyAtom,
    way: Way,
    source: cutlass.Int64,
    rows: cutlass.Int32,
    k: cutlass.Int32,
    stage: cutlass.Int32,
):
    """This thread's chunks of a k-tile into `stage`: zeros for what is not in the matrix."""
    rows = rows if k >= 0 else 0
    for i in cutlass.range_constexpr(way.chunks):
        inside = cute.make_rmem_tensor(cute.make_layout((1,)), cutlass.Boolean)
        inside[0] = i * way.rows_apart < rows
        target = way.target + stage * way.stage_bytes + i * (way.stage_bytes // way.chunks)
        chunk = sixteen_bytes(dtype, source + i * way.rows_apart * way.row_bytes, cute.AddressSpace.gmem)
        cute.copy(atom, chunk, sixteen_bytes(dtype, target, cute.AddressSpace.smem), pred=inside)


# %% [markdown] tags=["lab"]
# The order in which CTA 1 of four asks for k-tiles, of a product of 300 x 600 over K = 200: nine tiles of four k-tiles.
# It asks for three k-tiles before its first multiplication, and then for one with each. While it multiplies the last
# three of a tile, it asks for those of the next. The cursor is integer arithmetic, which CuTe-DSL compiles for a CPU
# too: `tests/cursor.py` runs it there for every thread, and holds it against this order.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table

DEPTH, AHEAD = 200, CONFIG.stages - 1
k_tiles = -(-DEPTH // CONFIG.tile_k)
tiles = -(-300 // CONFIG.tile_m) * -(-600 // CONFIG.tile_n)
multiplied = [(tile, k) for tile in range(1, tiles, 4) for k in range(k_tiles)]
order = [(f"tile {tile}, k-tile {k}", f"from K = {DEPTH + CONFIG.tile_k * (k - k_tiles)}") for tile, k in multiplied]
asked = [*order, *[("a tile that there is not", "nothing is copied")] * AHEAD]
meanwhile = [*[""] * AHEAD, *(now for now, _ in order)]
rows = [[now, *of] for now, of in zip(meanwhile, asked, strict=True)]
Markdown(table(["multiplied", "asked for meanwhile", "begins"], rows, right=3))

# %% [markdown] tags=["lab"]
# K = 200 is no multiple of 64, so the first k-tile of each tile begins before the matrix, and its chunks there are
# zeros. And of a tile that does not exist nothing is copied.

# %% [markdown]
# ## The main loop
#
# One k-tile, in four k-blocks, as in the pipeline: fragments a k-block ahead, A asked for in the first k-block, B in
# the next, and one barrier before the last. New is that neither loads nor fragments care where a tile ends. After a
# tile's last k-tile the first fragments of the next tile are in registers, and its first k-tiles are in shared memory
# or in flight.


# %%
class Mainloop(NamedTuple):
    """A thread's values in every k-tile."""

    mma: cute.TiledMma
    a: Operand
    b: Operand
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    cp_async: cute.CopyAtom  # of one chunk
    ways: tuple[Way, Way]  # of A and of B


@cute.jit
def multiply_k_tile(main: Mainloop, c: Cursor, read: cutlass.Int32, write: cutlass.Int32, config: cutlass.Constexpr):
    """One k-tile from stage `read`, while the one at the cursor is asked for into `write`. Returns the next to read."""
    a, b, acc, ways, dtype = main.a, main.b, main.acc, main.ways, main.a.smem.element_type
    of_b = min(1, config.k_blocks - 2)  # the k-block in which B is asked for: not the last, which waits
    for k in cutlass.range_constexpr(config.k_blocks):
        if cutlass.const_expr(k == config.k_blocks - 1):
            wait_for_k_tile(config)
            read = following(read, config)
        fetch_block(a, read, (k + 1) % config.k_blocks, (k + 1) % 2)
        fetch_block(b, read, (k + 1) % config.k_blocks, (k + 1) % 2)
        if cutlass.const_expr(k == 0):
            load_tile(dtype, main.cp_async, ways[0], c.a, c.rows_a, c.k, write)
        if cutlass.const_expr(k == of_b):
            load_tile(dtype, main.cp_async, ways[1], c.b, c.rows_b, c.k, write)
            cute.arch.cp_async_commit_group()
        cute.gemm(main.mma, acc, a.regs[None, None, k % 2], b.regs[None, None, k % 2], acc)
    return read


# %% [markdown]
# ## The epilogue
#
# Subtile by subtile: each thread rounds and writes its pairs, all wait, and then the threads read rows and store them.
# With two buffers one barrier a subtile is enough. A thread that writes a subtile has passed the barrier of the subtile
# before, so all threads have read the one before *that*, from the same buffer. The `cp.async` of the next tile go on
# meanwhile.


# %%
@cute.jit
def store(
    acc: cute.Tensor,
    sC: cute.Tensor,
    mC: cute.Tensor,
    tile: tuple[cutlass.Int32, cutlass.Int32],
    copies: TiledCopies,
    tidx: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Registers -> swizzled shared memory -> global memory, EPI_M rows at a time. sC: (EPI_M, N, EPI_STAGE)."""
    write, read = copies.r2s_c.get_slice(tidx), copies.s2g_c.get_slice(tidx)
    subtiles = config.tile_m // config.epi_m
    rC = cute.make_rmem_tensor((acc.shape[0], 1, acc.shape[2]), mC.element_type)  # a thread's part of a subtile
    for subtile in cutlass.range_constexpr(subtiles):
        extent, where = (config.epi_m, config.tile_n), (tile[0] * subtiles + subtile, tile[1])
        gC = cute.local_tile(mC, extent, where)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), extent, where)
        staged = sC[None, None, subtile % config.epi_stages]
        for n in cutlass.range_constexpr(acc.shape[2]):
            rC[None, 0, n].store(acc[None, subtile, n].load().to(mC.element_type))
        if cutlass.const_expr(config.epi_stages == 1 and subtile > 0):
            cute.arch.sync_threads()  # the subtile before has been read
        cute.copy(copies.r2s_c, write.retile(rC), write.partition_D(staged))
        cute.arch.sync_threads()
        tCsC, tCgC, tCcC = read.partition_S(staged), read.partition_D(gC), read.partition_D(cC)  # (VEC, REST_M, REST_N)
        for m in cutlass.range_constexpr(tCsC.shape[1]):
            for n in cutlass.range_constexpr(tCsC.shape[2]):
                if cute.elem_less(tCcC[0, m, n], mC.shape):
                    cute.autovec_copy(tCsC[None, m, n], tCgC[None, m, n])


# %% [markdown] tags=["lab"]
# One of the two buffers: 32 rows of 256 columns, as the threads of one warp write their pairs, and as they read rows.
# In neither picture does a bank give two words in one phase.

# %% tags=["lab"]
layouts, copies = (evaluate(fn, cutlass.BFloat16, CONFIG) for fn in (smem_layouts, tiled_copies))
draw.access_view(access.of_copy(layouts.c, copies.r2s_c, "dst", "ldst", warp=0)[0])

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts.c, copies.s2g_c, "src", "ldst", warp=0)[0])

# %% [markdown]
# ## The kernel
#
# The prologue asks for the first k-tiles, wherever they are, and leaves the cursor behind them. Then tile after tile,
# and k-tile after k-tile, the cursor moves with the loop.


# %%
@cute.jit
def problem_of(shape_mn: cute.Shape, depth: cutlass.Int32, config: cutlass.Constexpr):
    """Tiles and k-tiles of C (M, N) over `depth`: at least as many k-tiles as are in flight."""
    k_tiles = cutlass.max(cute.ceil_div(depth, config.tile_k), config.stages - 1)
    tiles = cute.ceil_div(shape_mn[0], config.tile_m) * cute.ceil_div(shape_mn[1], config.tile_n)
    return Problem(shape_mn, depth - k_tiles * config.tile_k, k_tiles, tiles)


@cute.kernel
def kernel(
    mA: cute.Tensor,  # (M, K)
    mB: cute.Tensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """A CTA computes its share of the tiles of C, one after the other."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    layouts, copies, mma = smem_layouts(dtype, config), tiled_copies(dtype, config, vec), tiled_mma(dtype, config)
    smem = SmemAllocator().allocate(config.smem_bytes, 1024)
    smem_b = smem + cute.size_in_bytes(dtype, layouts.a)
    smem_c = smem_b + cute.size_in_bytes(dtype, layouts.b)  # C next to A and B
    sA, sB = smem_tensor(smem, layouts.a, dtype), smem_tensor(smem_b, layouts.b, dtype)
    sC = smem_tensor(smem_c, layouts.c, dtype)

    problem = problem_of(mC.shape, mA.shape[1], config)
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    cp_async = cute.make_copy_atom(past_l1, dtype, num_bits_per_copy=128)
    way_a = make_way(copies.g2s_a, mA, sA, problem.before, tidx, config)
    way_b = make_way(copies.g2s_b, mB, sB, problem.before, tidx, config)
    c = cursor_at(cta, way_a, way_b, problem, tidx, config)
    for stage in cutlass.range_constexpr(config.stages - 1):
        load_tile(dtype, cp_async, way_a, c.a, c.rows_a, c.k, stage)
        load_tile(dtype, cp_async, way_b, c.b, c.rows_b, c.k, stage)
        cute.arch.cp_async_commit_group()
        c = cursor_after(c, ctas, way_a, way_b, problem, tidx, config)

    a, b = make_buffers(mma, copies, sA, sB, 32, tidx)  # two k-blocks
    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    main = Mainloop(mma, a, b, acc, cp_async, (way_a, way_b))
    read, write = cutlass.Int32(0), cutlass.Int32(config.stages - 1)
    wait_for_k_tile(config)
    fetch_block(a, 0, 0, 0)
    fetch_block(b, 0, 0, 0)
    for number in cutlass.range(cta, problem.tiles, ctas, unroll=1):
        acc.fill(0.0)
        for _ in cutlass.range(problem.k_tiles, unroll=1):
            read = multiply_k_tile(main, c, read, write, config)
            write = following(write, config)
            c = cursor_after(c, ctas, way_a, way_b, problem, tidx, config)
        store(acc, sC, mC, work_tile(number, problem, config), copies, tidx, config)
    cute.arch.cp_async_wait_group(0)  # zeros may still be on their way into this CTA's shared memory


# %% [markdown]
# ## The launch
#
# Sizes, strides and the number of SMs are run-time values: one compiled kernel serves all shapes.


# %%
class Sizes(NamedTuple):
    """The numbers of a launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of the rows of A, B, C, in elements
    sms: cutlass.Int32  # of the GPU


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed."""
    mA, mB, mC = matrices(pA, pB, pC, sizes.mnk, sizes.strides, vec)
    ctas = cute.ceil_div(sizes.mnk[0], config.tile_m) * cute.ceil_div(sizes.mnk[1], config.tile_n)
    if cutlass.const_expr(config.persistent):
        ctas = cutlass.min(ctas, sizes.sms)
    # No more than one CTA has room on an SM: the compiler need not save registers for others.
    kernel(mA, mB, mC, pA.dtype, config, vec).launch(
        grid=(ctas, 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch, call.variant), call.vec), (Sizes(call.mnk, call.strides, call.sms),)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", variants=VARIANTS, whole=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS. The bits are the same.

    cp.async moves 16 bytes at a time: K is a multiple of 8, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Needs a GPU of compute capability 8.0 or later.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# A CTA that ends lets the next one begin with empty stages, and the tensor cores wait for its first k-tile. The wait is
# assumed as in [the pipeline](pipelined_gemm.ipynb): 800 clocks until global memory answers, and then the bytes of a
# k-tile at an SM's share of L2. A persistent CTA waits once.
#
# Storing C takes the same time either way, 16 elements a clock, because the same threads multiply and store. The time
# to launch a CTA is left out.

# %% tags=["lab"]
from cookbook.lab import records

SMS, LATENCY, L2_RATE, STORED = 132, 800, 5120, 16  # of an H200: SMs; clocks; bytes a clock of the chip; elements
STUDY, LOOP, NVIDIA_RATE = "foundations/tensor_core_ceiling", "mma.sync m16n8k16, bf16", 2048
BENCHED = [(8192, 8192, 512), (8192, 8192, 1024), (4096, 4096, 4096), (8192, 8192, 8192)]


def rate() -> float:
    """Multiply-adds of an SM in a clock by mma.sync: as recorded, or NVIDIA's figure for the chip."""
    of_study = [r["figures"]["instructions"] for r in records.select(STUDY, "ceiling") if "H200" in r["device"]]
    return max([each[LOOP]["flops_per_clock"] / 2 for each in of_study if LOOP in each], default=NVIDIA_RATE)


ARRIVE = LATENCY + 2 * (CONFIG.tile_m + CONFIG.tile_n) * CONFIG.tile_k / (L2_RATE / SMS)  # of the first k-tile
STORE = CONFIG.tile_m * CONFIG.tile_n / STORED


def multiply(k: int) -> float:
    """Clocks of a tile's multiply-adds."""
    return CONFIG.tile_m * CONFIG.tile_n * k / rate()


def tiles_of_an_sm(m: int, n: int) -> int:
    """Count the tiles of the SM that has the most."""
    return -(-(-(-m // CONFIG.tile_m) * -(-n // CONFIG.tile_n)) // SMS)


def gain(m: int, n: int, k: int) -> float:
    """Return how many times as fast persistent CTAs are."""
    tiles, busy = tiles_of_an_sm(m, n), multiply(k) + STORE
    return tiles * (ARRIVE + busy) / (ARRIVE + tiles * busy)


rows = [[" x ".join(map(str, shape)), f"{gain(*shape):.3f}x"] for shape in BENCHED]
Markdown(table(["M x N x K", "predicted: persistent over one tile a CTA"], rows))

# %% [markdown] tags=["lab"]
# The largest cube is the product that the ladder at the beginning of this track shows:

# %% tags=["lab", "gains"]
{"ampere/persistent_gemm": round(gain(8192, 8192, 8192), 3)}

# %% [markdown] tags=["lab"]
# It gains most where K is short: a short tile has less work to hide the wait in. Three tiles of one SM, with K = 512:

# %% tags=["lab"]
lanes = {}
for name, config in VARIANTS.items():
    at, spans = 0.0, []
    for number in range(3):
        wait = 0 if config.persistent and number else ARRIVE
        for clocks, what in ((wait, "wait for the first k-tile"), (multiply(512), "multiply"), (STORE, "store")):
            spans += [draw.Span(at, at + clocks, f"tile {number}" * (what == "multiply"), what)] if clocks else []
            at += clocks
    lanes[name] = spans
draw.lanes(lanes, "One SM, three tiles", note="computed, not measured")

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at both variants. Tests run the cursor on the host, for many shapes and threads.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/persistent_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("ampere/persistent_gemm", matmul, (8192, 8192, 512))

# %% [markdown] tags=["lab"]
# "Ours" is `persistent`; both variants and the peers are interleaved in one run on one GPU.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("ampere/persistent_gemm"))

# %% [markdown] tags=["lab"]
# Predicted and measured. "Ours" and `persistent` above are *the same kernel*, timed twice in the same rounds; the last
# column has the difference of the two, the spread.
#
# The prediction assumes that `mma.sync` runs at its ceiling. In this kernel it does not ([the tuned
# GEMM](tuned_gemm.ipynb) says why). So a tile takes longer, and the same waits are a smaller part of it. The fourth
# column corrects that: it takes the same waits out of the time that was *measured* for `one tile a CTA`. The clock is
# the one that was recorded of the same tile on that page, at its largest product.

# %% tags=["lab"]


def clock(device: str) -> float | None:
    """MHz of a device at work on the same tile, of the records of `ampere/tuned_gemm`; None if there is none."""
    found = records.of_one_gpu("ampere/tuned_gemm", "limits", device=device)
    return next((r["figures"]["variants"]["128x256"]["clock_mhz"] for r in found), None)


def gain_of_measured(record: dict) -> str:
    """Return how many times as fast persistent CTAs are, if the waits that they are spared come out of a measured
    time."""
    mhz, took = clock(record["device"]), record["peers"]["one tile a CTA"]["median_ms"]
    if mhz is None:
        return "no clock recorded"
    waits = (tiles_of_an_sm(*record["shape"][:2]) - 1) * ARRIVE / (1000 * mhz)  # ms
    return f"{took / (took - waits):.3f}x"


def predicted_beside_measured() -> str:
    """Every current record of both variants, or that there is none."""
    rows = []
    for r in sorted(records.of_one_gpu("ampere/persistent_gemm", "timed"), key=lambda r: r["shape"][2]):
        if not VARIANTS.keys() <= r["peers"].keys():
            continue
        first, stays = (r["peers"][variant]["median_ms"] for variant in VARIANTS)
        shape, twice = " x ".join(map(str, r["shape"])), abs(r["figures"]["median_ms"] / stays - 1)
        gains = (f"{gain(*r['shape']):.3f}x", gain_of_measured(r), f"{first / stays:.3f}x")
        rows.append([r["device"], f"{shape}, {r['dtype']}", *gains, f"{twice:.1%}"])
    header = ["device", "shape", "predicted", "predicted, of the time measured", "measured", "one kernel twice, apart"]
    return table(header, rows, right=2) if rows else "*No time of both variants yet.*"


Markdown(predicted_beside_measured())

# %% [markdown] tags=["lab"]
# On an H200 persistent CTAs gain nearly a tenth at the shortest K, and a few percent at the next. Both are less than
# predicted. One reason is that the prediction assumes too fast a tile: the fourth column, of the measured time, comes
# nearer, and not all the way.
#
# At the two cubes about a percent was predicted, and none was found. The spread is as large, so little follows. Power
# may be the reason: at the largest cube this tile has the GPU at its power limit, as [the tuned GEMM](tuned_gemm.ipynb)
# shows. There the GPU lowers its clock when fewer clocks are lost.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "work_tile_backwards": (
        "work_tile",
        "    return rasterize(number, (tiles_m, tiles_n), config.swizzle_size)",
        "    raise NotImplementedError",
        "Let the CTAs take the tiles from the last one to the first one.",
        (
            "There are tiles_m * tiles_n tiles, numbered from 0.",
            "The order within `rasterize` stays; only the number that it is asked about changes.",
        ),
        "Number n becomes the n-th from the end. Loads and stores both ask `work_tile`, so they agree.",
        "    return rasterize(tiles_m * tiles_n - 1 - number, (tiles_m, tiles_n), config.swizzle_size)",
    ),
    "cursor_at_risk": (
        "cursor_after",
        "cursor_at(tile + ctas, way_a",
        "cursor_at(tile + 1, way_a",
        'The loads run ahead into "the next tile".',
        (
            "Which tile does the CTA multiply after tile t? Look at the loop of `kernel`.",
            "`cutlass.range(cta, problem.tiles, ctas)`: the step is the number of CTAs.",
        ),
        (
            "The CTA's next tile is `ctas` further on. `tile + 1` is another CTA's: its operands would be "
            "multiplied, and stored as this CTA's tile."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("ampere/persistent_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# On Hopper one warp does nothing but load. Here the same takes two addresses and five numbers a thread, updated once
# for each k-tile. It pays where K is short; where K is long, no difference shows above the spread. One gap remains:
# *while C is stored* no warp asks for anything, because all of them are storing. A producer that does nothing else has
# no such gap.
#
# Next: [the tuned GEMM before Hopper](tuned_gemm.ipynb), which needs less from shared memory for each product.
