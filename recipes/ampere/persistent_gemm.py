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
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [bfloat16, float16]
#     path: cp.async, across tiles -> swizzled shared memory -> ldmatrix -> mma.sync -> pieces of C -> 16-byte stores
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
# [The pipeline](pipelined_gemm.ipynb) fills its stages anew for each tile; here a CTA fills them once. [On
# Hopper](../hopper/persistent_gemm.ipynb) a warp of its own does that: it only asks TMA for tiles, and need not know
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
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator

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
class Config:
    """Sizes of the kernel, in elements or counts, and how tiles are given out."""

    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 256  # columns of C per CTA
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four k-blocks of 16; 32 or more
    stages: int = 4  # pairs of A and B tiles: one being read, the others arriving
    warps_m: int = 2  # the warps stand in a warps_m x warps_n grid over the tile of C
    warps_n: int = 4
    epi_buffers: int = 2  # epilogue subtiles of C, 1 or 2: with 2, one is filled while the other is still read
    persistent: bool = True  # a CTA computes tile after tile
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def k_blocks(self) -> int:
        return self.tile_k // 16

    @property
    def epi_m(self) -> int:
        """Rows of an epilogue subtile of C: one mma's of each row of warps."""
        return 16 * self.warps_m

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * (ab + self.epi_buffers * self.epi_m * self.tile_n)


VARIANTS = {"one tile a CTA": Config(persistent=False), "persistent": Config()}
DEFAULT = "persistent"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant in the stages that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    chip, config = arch.rstrip("af"), VARIANTS[variant]
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):  # 99 KiB: 24 KiB a stage of half the depth, 16 of C
        return replace(config, tile_k=32, stages=3, epi_buffers=1)
    return replace(config, stages=3, epi_buffers=1) if chip in ("sm_80", "sm_87") else config  # 163 KiB: 144 and 16


# %% [markdown]
# ## The layout and the copies
#
# As they were: rows of 128 bytes (64 where stages are shallower), swizzled, so that neither `cp.async` nor `ldmatrix`
# has a conflict. The tiled copies of C go over an epilogue subtile instead of a whole tile.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (EPI_M, N, BUFFER)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """Rows of 128, 64, 32 or 16 bytes, the widest that divides `contiguous` elements, and the swizzle for it."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K or N, then over what is staged."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.tile_n), (c.epi_m, c.tile_n, c.epi_buffers), order=(0, 1, 2)),
    )


# %%
def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """mma.sync m16n8k16, repeated over the warps; 16 columns a warp and step."""
    op = warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16))
    warps = cute.make_layout((config.warps_m, config.warps_n, 1))
    return cute.make_tiled_mma(op, warps, permutation_mnk=(16 * config.warps_m, 16 * config.warps_n, 16))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    g2s_a: cute.TiledCopy  # cp.async, 16 bytes a thread
    g2s_b: cute.TiledCopy
    s2r_a: cute.TiledCopy  # ldmatrix.x4: four 8x8 matrices a warp
    s2r_b: cute.TiledCopy
    r2s_c: cute.TiledCopy  # st.shared, two elements a thread
    s2g_c: cute.TiledCopy  # ld.shared and st.global, `vec` elements a thread


def rowwise_copy(atom, threads: int, row: int, vec: int) -> cute.TiledCopy:
    """Consecutive threads along a row of `row` elements, `vec` elements each."""
    per_row = row // vec
    layout = cute.make_layout((threads // per_row, per_row), stride=(per_row, 1))
    return cute.make_tiled_copy_tv(atom, layout, cute.make_layout((1, vec)))


def tiled_copies(dtype, config: Config = CONFIG, vec: int = 8) -> TiledCopies:
    """All copies; `vec` elements (8, 4, 2 or 1) of C go to global memory at a time."""
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    cp_async = cute.make_copy_atom(past_l1, dtype, num_bits_per_copy=128)
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    pair = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=32)
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    mma = tiled_mma(dtype, config)
    return TiledCopies(
        g2s_a=rowwise_copy(cp_async, config.threads, config.tile_k, 8),
        g2s_b=rowwise_copy(cp_async, config.threads, config.tile_k, 8),
        s2r_a=cute.make_tiled_copy_A(ldmatrix, mma),
        s2r_b=cute.make_tiled_copy_B(ldmatrix, mma),
        r2s_c=cute.make_tiled_copy_C(pair, mma),
        s2g_c=rowwise_copy(wide, config.threads, config.tile_n, vec),
    )


# %% [markdown]
# ## Loading: a cursor
#
# Of a k-tile a thread loads one 16-byte chunk in every 32nd row (or 64th), of A and of B. Where the chunks go in shared
# memory is the same for every tile; where they come from changes. CuTe's tensors describe one tile, and two sets of
# them would take more registers than there are. So a thread keeps the *addresses* of its first chunks and steps: its
# next row lies `rows_apart` strides further, the next k-tile 128 bytes.
#
# Three kinds of chunks do not exist: rows outside the matrix, k-tiles before it (the k-tiles end where K ends, so the
# first may begin before), and the k-tiles of a tile that does not exist, for which the CTA asks at its end. One number
# covers all three: how many rows there are, counted from the thread's own first. It is zero before K and behind the
# last tile.
#
# A tile has at least as many k-tiles as are in flight, so a CTA loads for only *one* tile while it multiplies another.
# With a shorter K the first of them are all zeros.


# %%
class Way(NamedTuple):
    """One thread's part in loading an operand: what is the same for all tiles."""

    source: cutlass.Int64  # address of the matrix's first row, at this thread's place along K in k-tile 0
    row_bytes: cutlass.Int64  # from one row of the matrix to the next
    rows: cutlass.Int32  # of the matrix
    first: cutlass.Int32  # this thread's first row in a tile
    rows_apart: int  # from one of its pieces to the next
    pieces: int  # of a k-tile
    target: cutlass.Int32  # where its first piece goes in stage 0, swizzled
    stage_bytes: int


@cute.jit
def make_way(copy, mX, sX, before, tidx, config: cutlass.Constexpr):
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
        pieces=target.shape[1],
        target=first ^ ((first >> 3) & chunks),
        stage_bytes=stage_bytes,
    )


class Cursor(NamedTuple):
    """The k-tile that is to be asked for next."""

    a: cutlass.Int64  # address of this thread's first piece of A
    b: cutlass.Int64  # and of B
    rows_a: cutlass.Int32  # rows from that piece's to the end of A: 0 or less if it is outside
    rows_b: cutlass.Int32
    k: cutlass.Int32  # this thread's place along K: negative before the matrix begins
    left: cutlass.Int32  # k-tiles of the tile from here on
    tile: cutlass.Int32  # its number


class Problem(NamedTuple):
    """What all tiles have in common."""

    shape_mn: tuple[cutlass.Int32, cutlass.Int32]
    before: cutlass.Int32  # where k-tiles begin along K: 0 or less
    k_tiles: cutlass.Int32  # of a tile
    tiles: cutlass.Int32  # of C


@cute.jit
def tile_of(number, problem: Problem, config: cutlass.Constexpr):
    """The tile scheduler: row and column of a tile, column by column inside groups of `swizzle_size` rows."""
    tiles_m = cute.ceil_div(problem.shape_mn[0], config.tile_m)
    tiles_n = cute.ceil_div(problem.shape_mn[1], config.tile_n)
    group, inside = number // (config.swizzle_size * tiles_n), number % (config.swizzle_size * tiles_n)
    first = group * config.swizzle_size
    height = cutlass.min(tiles_m - first, config.swizzle_size)  # the last group may be lower
    return first + inside % height, inside // height


@cute.jit
def cursor_at(number, way_a, way_b, problem: Problem, tidx, config: cutlass.Constexpr):
    """The first k-tile of a tile; behind the last tile, one that has no rows."""
    m, n = tile_of(cutlass.min(number, problem.tiles - 1), problem, config)
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


@cute.jit
def following(c: Cursor, ctas, way_a, way_b, problem: Problem, tidx, config: cutlass.Constexpr):
    """The k-tile after `c`: of the same tile, or the first of this CTA's next one."""
    a, b = c.a + 2 * config.tile_k, c.b + 2 * config.tile_k
    rows_a, rows_b, k, left, tile = c.rows_a, c.rows_b, c.k + config.tile_k, c.left - 1, c.tile
    if left == 0:
        n = cursor_at(tile + ctas, way_a, way_b, problem, tidx, config)
        a, b, rows_a, rows_b, k, left, tile = n.a, n.b, n.rows_a, n.rows_b, n.k, n.left, n.tile
    return Cursor(a, b, rows_a, rows_b, k, left, tile)


def sixteen_bytes(dtype, address, space) -> cute.Tensor:
    """One piece, as `cp.async` takes it."""
    pointer = cute.make_ptr(dtype, address, space, assumed_align=16)
    return cute.make_tensor(pointer, cute.make_layout(((8, 1),), stride=((1, 0),)))


@cute.jit
def load(dtype, atom, way, source, rows, k, stage):
    """This thread's pieces of a k-tile into `stage`: zeros for what is not in the matrix."""
    rows = rows if k >= 0 else 0
    for i in cutlass.range_constexpr(way.pieces):
        inside = cute.make_rmem_tensor(cute.make_layout((1,)), cutlass.Boolean)
        inside[0] = i * way.rows_apart < rows
        target = way.target + stage * way.stage_bytes + i * (way.stage_bytes // way.pieces)
        piece = sixteen_bytes(dtype, source + i * way.rows_apart * way.row_bytes, cute.AddressSpace.gmem)
        cute.copy(atom, piece, sixteen_bytes(dtype, target, cute.AddressSpace.smem), pred=inside)


# %% [markdown] tags=["lab"]
# The order in which CTA 1 of four asks for k-tiles, of a product of 300 x 600 over K = 200: nine tiles of four k-tiles.
# It asks for three k-tiles before its first multiplication, and then for one with each. While it multiplies the last
# three of a tile, it asks for those of the next. The cursor is integer arithmetic, which CuTe-DSL compiles for a CPU
# too: `tests/cursor.py` runs it there for every thread, and holds it against this order.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import table

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
class Operand(NamedTuple):
    """A warp's way from shared memory to the tensor cores, for A or B."""

    copy: cute.TiledCopy  # ldmatrix
    smem: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE)
    into: cute.Tensor  # (CPY, CPY_M, 2): registers as ldmatrix fills them, of two k-blocks
    regs: cute.Tensor  # (MMA, MMA_M, 2): the same registers as mma takes them


def make_operand(copy, sX, regs, tidx) -> Operand:
    """This thread's part of an operand. sX: (rows, K, STAGE); regs: as `mma` takes them."""
    thr = copy.get_slice(tidx)
    return Operand(copy, thr.partition_S(sX), thr.retile(regs), regs)


@cute.jit
def fetch(x, stage, k: cutlass.Constexpr, config: cutlass.Constexpr):
    """The fragments of a k-block, the first one of the next k-tile among them, into one of two buffers."""
    cute.copy(x.copy, x.smem[None, None, k % config.k_blocks, stage], x.into[None, None, k % 2])


@cute.jit
def next_stage(read, config: cutlass.Constexpr):
    """Wait until the next k-tile has arrived, everybody's part of it, and the oldest stage is free."""
    cute.arch.cp_async_wait_group(config.stages - 2)
    cute.arch.sync_threads()
    return read + 1 if read + 1 < config.stages else cutlass.Int32(0)


class Mainloop(NamedTuple):
    """What a thread works with in every k-tile."""

    mma: cute.TiledMma
    a: Operand
    b: Operand
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)
    cp_async: cute.CopyAtom  # of one piece
    ways: tuple[Way, Way]  # of A and of B


@cute.jit
def multiply_k_tile(main: Mainloop, c: Cursor, read, write, config: cutlass.Constexpr):
    """One k-tile from stage `read`, while the one at the cursor is asked for into `write`. Returns the next to read."""
    a, b, acc, ways, dtype = main.a, main.b, main.acc, main.ways, main.a.smem.element_type
    of_b = min(1, config.k_blocks - 2)  # the k-block in which B is asked for: not the last, which waits
    for k in cutlass.range_constexpr(config.k_blocks):
        if cutlass.const_expr(k == config.k_blocks - 1):
            read = next_stage(read, config)
        fetch(a, read, k + 1, config)
        fetch(b, read, k + 1, config)
        if cutlass.const_expr(k == 0):
            load(dtype, main.cp_async, ways[0], c.a, c.rows_a, c.k, write)
        if cutlass.const_expr(k == of_b):
            load(dtype, main.cp_async, ways[1], c.b, c.rows_b, c.k, write)
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
def store(acc, sC, mC, tile, copies, tidx, config: cutlass.Constexpr):
    """Registers -> swizzled shared memory -> global memory, EPI_M rows at a time. sC: (EPI_M, N, BUFFER)."""
    write, read = copies.r2s_c.get_slice(tidx), copies.s2g_c.get_slice(tidx)
    pieces = config.tile_m // config.epi_m
    rC = cute.make_rmem_tensor((acc.shape[0], 1, acc.shape[2]), mC.element_type)  # what a thread has of a piece
    for piece in cutlass.range_constexpr(pieces):
        extent, where = (config.epi_m, config.tile_n), (tile[0] * pieces + piece, tile[1])
        gC = cute.local_tile(mC, extent, where)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), extent, where)
        staged = sC[None, None, piece % config.epi_buffers]
        for n in cutlass.range_constexpr(acc.shape[2]):
            rC[None, 0, n].store(acc[None, piece, n].load().to(mC.element_type))
        if cutlass.const_expr(config.epi_buffers == 1 and piece > 0):
            cute.arch.sync_threads()  # the piece before has been read
        cute.copy(copies.r2s_c, write.retile(rC), write.partition_D(staged))
        cute.arch.sync_threads()
        tCsC, tCgC, tCcC = read.partition_S(staged), read.partition_D(gC), read.partition_D(cC)  # (VEC, REST_M, REST_N)
        for m in cutlass.range_constexpr(tCsC.shape[1]):
            for n in cutlass.range_constexpr(tCsC.shape[2]):
                if cute.elem_less(tCcC[0, m, n], mC.shape):
                    cute.autovec_copy(tCsC[None, m, n], tCgC[None, m, n])


# %% [markdown] tags=["lab"]
# One of the two buffers: 32 rows of 256 columns, as the threads of one warp write their pairs, and as they read rows.

# %% tags=["lab"]
layouts, copies = (evaluate(fn, cutlass.BFloat16, CONFIG) for fn in (smem_layouts, tiled_copies))
draw.access_view(access.of_copy(layouts.c, copies.r2s_c, "dst", "ldst", warp=0)[0])

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts.c, copies.s2g_c, "src", "ldst", warp=0)[0])

# %% [markdown]
# ## The kernel


# %%
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

    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    smem = SmemAllocator().allocate(config.smem_bytes, 1024)
    smem_b = smem + cute.size_in_bytes(dtype, layouts.a)
    smem_c = smem_b + cute.size_in_bytes(dtype, layouts.b)
    sA = cute.make_tensor(cute.recast_ptr(smem, layouts.a.inner, dtype), layouts.a.outer)
    sB = cute.make_tensor(cute.recast_ptr(smem_b, layouts.b.inner, dtype), layouts.b.outer)
    sC = cute.make_tensor(cute.recast_ptr(smem_c, layouts.c.inner, dtype), layouts.c.outer)

    (m, n), depth, ahead = mC.shape, mA.shape[1], config.stages - 1
    k_tiles = cutlass.max(cute.ceil_div(depth, config.tile_k), ahead)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    problem = Problem((m, n), depth - k_tiles * config.tile_k, k_tiles, tiles)
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    cp_async = cute.make_copy_atom(past_l1, dtype, num_bits_per_copy=128)
    ways = (
        make_way(copies.g2s_a, mA, sA, problem.before, tidx, config),
        make_way(copies.g2s_b, mB, sB, problem.before, tidx, config),
    )
    c = cursor_at(cta, *ways, problem, tidx, config)
    for stage in cutlass.range_constexpr(ahead):
        load(dtype, cp_async, ways[0], c.a, c.rows_a, c.k, stage)
        load(dtype, cp_async, ways[1], c.b, c.rows_b, c.k, stage)
        cute.arch.cp_async_commit_group()
        c = following(c, ctas, *ways, problem, tidx, config)

    rA = cute.make_rmem_tensor(mma.partition_shape_A((config.tile_m, 32)), dtype)  # (MMA, MMA_M, 2): two k-blocks
    rB = cute.make_rmem_tensor(mma.partition_shape_B((config.tile_n, 32)), dtype)
    a, b = make_operand(copies.s2r_a, sA, rA, tidx), make_operand(copies.s2r_b, sB, rB, tidx)
    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    main = Mainloop(mma, a, b, acc, cp_async, ways)
    read, write = cutlass.Int32(0), cutlass.Int32(ahead)
    cute.arch.cp_async_wait_group(config.stages - 2)
    cute.arch.sync_threads()
    fetch(a, 0, 0, config)
    fetch(b, 0, 0, config)
    for number in cutlass.range(cta, tiles, ctas, unroll=1):
        acc.fill(0.0)
        for _ in cutlass.range(k_tiles, unroll=1):
            read = multiply_k_tile(main, c, read, write, config)
            write = write + 1 if write + 1 < config.stages else cutlass.Int32(0)
            c = following(c, ctas, *ways, problem, tidx, config)
        store(acc, sC, mC, tile_of(number, problem, config), copies, tidx, config)
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
    (m, n, k), (lda, ldb, ldc), dtype = sizes.mnk, sizes.strides, pA.dtype
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    ctas = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    if cutlass.const_expr(config.persistent):
        ctas = cutlass.min(ctas, sizes.sms)
    # No more than one CTA has room on an SM: the compiler need not save registers for others.
    one = {"block": (config.threads, 1, 1), "min_blocks_per_mp": 1}
    kernel(mA, mB, mC, dtype, config, vec).launch(grid=(ctas, 1, 1), **one, stream=stream)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `Gemm`, which all recipes share, checks a call, compiles the kernel, and keeps a *plan* for each kind of call. This is
# the part that is this kernel's own.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
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
    return GEMM.matmul(a, b, out, variant)


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
from cookbook.measure import records

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
    """Of the one that has the most."""
    return -(-(-(-m // CONFIG.tile_m) * -(-n // CONFIG.tile_n)) // SMS)


def gain(m: int, n: int, k: int) -> float:
    """How many times as fast persistent CTAs are."""
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
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/persistent_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("ampere/persistent_gemm", matmul, (8192, 8192, 512))

# %% [markdown] tags=["lab"]
# "Ours" is `persistent`; both variants and the peers are interleaved in one run on one GPU.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("ampere/persistent_gemm"))

# %% [markdown] tags=["lab"]
# Predicted and measured. "Ours" and `persistent` above are *the same kernel*, timed twice in the same rounds; the last
# column has the difference of the two, the spread.
#
# The prediction assumes that `mma.sync` runs at its ceiling. In this kernel it does not ([the tuned
# GEMM](tuned_gemm.ipynb) says why). So a tile takes longer, and the same waits are a smaller part of it. The fourth
# column corrects that: it takes the same waits out of the time that was *measured* for `one tile a CTA`, at the clock
# that was recorded of the same tile on that page, at its largest product.

# %% tags=["lab"]


def clock(device: str) -> float | None:
    """MHz of a device at work on the same tile, of the records of `ampere/tuned_gemm`; None if there is none."""
    found = records.of_one_gpu("ampere/tuned_gemm", "limits", device=device)
    return next((r["figures"]["variants"]["128x256"]["clock_mhz"] for r in found), None)


def gain_of_measured(record: dict) -> str:
    """How many times as fast persistent CTAs are, if the waits that they are spared come out of a measured time."""
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
# predicted, because the prediction assumes too fast a tile. The fourth column, of the measured time, comes nearer.
#
# At the two cubes about a percent was predicted, and none was found. The spread is as large, so little follows. Power
# may be the reason: at the largest cube this tile has the GPU at its power limit, as [the tuned GEMM](tuned_gemm.ipynb)
# shows. There the GPU lowers its clock when fewer clocks are lost.
#
# ## Conclusion
#
# On Hopper one warp does nothing but load. Here the same takes two addresses and five numbers a thread, updated once
# for each k-tile. It pays where K is short, and costs nothing where K is long. One gap remains: *while C is stored* no
# warp asks for anything, because all of them are storing. A producer that does nothing else has no such gap.
#
# Next: [the tuned GEMM before Hopper](tuned_gemm.ipynb), which needs less from shared memory for each product.
#
# To use it: `cookbook copy ampere/persistent_gemm my_gemm.py`, then `from my_gemm import matmul`.
