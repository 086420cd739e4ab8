# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   cookbook:
#     title: A GEMM with cp.async, ldmatrix and mma.sync
#     claim: >-
#       A hand-made swizzle keeps every access to shared memory at its ideal; with copies that any thread can issue, it
#       keeps mma.sync busy.
#     track: ampere
#     order: 20
#     builds_on: ampere/smem_gemm
#     targets: [sm_80, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async -> swizzled shared memory -> ldmatrix -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
# ---

# %% [markdown]
# # A GEMM with cp.async, ldmatrix and mma.sync
#
# **Claim.** Before there was a copy engine, threads moved the tiles themselves: `cp.async` from global to shared
# memory, 16 bytes a thread; `ldmatrix` from shared memory into the registers, four 8x8 matrices a warp; then
# `mma.sync`. Both copies touch shared memory by *addresses that the threads compute*, so both can collide in the
# banks: `cp.async` writes rows, `ldmatrix` reads columns of 16-byte pieces. One swizzle, made by hand, serves both.
#
# [The page before](smem_gemm.ipynb) has shown what that swizzle is worth, in a loop that after each barrier loads
# fragments first and multiplies them then. New in this one is the loop: **fragments are loaded a k-block ahead**, so
# that `ldmatrix` and `mma.sync` work at the same time. A fourth stage, loads of A and B apart from each other, and a
# loop without a question serve the same end. You can also begin here if you want one Ampere GEMM explained.
#
# This is still the way on every GPU since Ampere that has no `wgmma` or `tcgen05`: A100, Ada, GeForce Blackwell. The
# kernel below compiles for all of them.
#
# You will see: the swizzle, the copies that go through it, a pipeline two deep (tiles through shared memory, fragments
# through registers), the epilogue, and then the checks that show that it is right and how fast it is. Names and order
# are those of [Hopper's first GEMM](../hopper/tma_wgmma_gemm.ipynb), so that the two can be read side by side.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.memory
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host, require

# %% [markdown]
# ## The sizes
#
# Eight warps stand in a 2 x 4 grid over a 128 x 256 tile of C, 64 x 64 each: 128 accumulators a thread. That warp
# tile is what matters most. For one k-block of 16, a warp reads 64 rows of A and 64 of B through `ldmatrix`, 4 KiB,
# and multiplies 64 x 64 x 16. Shared memory delivers 128 bytes a clock to the whole SM; with a smaller warp tile the
# tensor cores would wait for it.
#
# K goes by *k-tiles* of 64, four *k-blocks* of 16 each. What is left of the shared memory goes into *stages*, each of
# them room for one k-tile of A and of B: four of such tiles are 192 KiB. An A100 has room for three, and chips with 99
# KiB a block (Ada, GeForce) get the same kernel with half the tile.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 256  # columns of C per CTA
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four mma steps of 16
    stages: int = 4  # pairs of A and B tiles: one being read, the others arriving
    warps_m: int = 2  # the warps stand in a warps_m x warps_n grid over the tile of C
    warps_n: int = 4
    raster_group: int = 16  # swizzle size: CTAs that run together cover this many rows of tiles

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


CONFIG = Config()  # 192 KiB of shared memory: data-centre Hopper and Blackwell
CONFIG_163K = Config(stages=3)  # A100
CONFIG_99K = Config(tile_n=128, stages=3)  # Ada, GeForce


def config_for(arch: str) -> Config:
    """The configuration that fits the shared memory of an architecture such as "sm_89"; "" means CONFIG."""
    chip = arch.rstrip("af")
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):
        return CONFIG_99K
    return CONFIG_163K if chip in ("sm_80", "sm_87") else CONFIG


# %% [markdown]
# ## The layout
#
# A tile row is 64 elements, 128 bytes: all 32 banks. Without a swizzle, the eight rows that one phase of `ldmatrix`
# reads (16 bytes of each) lie in the *same* four banks, and are served one after the other: 8 wavefronts where 1 would
# do. The swizzle `make_swizzle(3, 4, 3)` moves chunk *c* of row *r* to slot *c XOR r*: the eight chunks of a column
# now lie in eight different slots, and the eight chunks of a row still do, so the writes stay free as well.
#
# This is the same atom that Hopper's TMA and `wgmma` use, chosen by the same rule: the widest row that divides the
# tile's contiguous extent. Here nothing obliges us; it is simply the right layout.
#
# **Mind the units.** The swizzle counts *bytes*: it acts on addresses, and is attached to the pointer. The layout
# under it, `(8, 64):(64, 1)`, counts *elements*.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, N)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """Rows of 128, 64, 32 or 16 bytes, the widest that divides `contiguous` elements, and the swizzle for it."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.tile_n), (c.tile_m, c.tile_n), order=(0, 1)),
    )


# %% [markdown]
# ## Who multiplies, who copies
#
# `mma.sync.m16n8k16` is a warp's instruction. Its A operand is four 8x8 matrices, exactly one `ldmatrix.x4`; its B
# operand is two, so the warp tile is permuted to take 16 columns at a time, and one `ldmatrix.x4` feeds two `mma`.
#
# `cp.async` takes eight threads for a 128-byte row. CuTe derives from the MMA which row address each lane must give
# to `ldmatrix` (`make_tiled_copy_A`, `_B`), and which lane holds which element of C (`_C`).


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
    per_row = min(row // vec, threads)
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
# ## Loading
#
# There is no engine to fill the outside of a ragged matrix with zeros, so the threads take care of the edges:
#
# * *Rows* beyond M or N are not read. What shared memory holds there only reaches rows and columns of C that are
#   never stored.
# * *K* matters: garbage there would be summed into every element. The k-tiles are laid so that they *end* where K ends,
#   and only the first one can stick out, before the beginning. It is loaded once, in the prologue before the loop,
#   piece by piece: copied where the matrix is, zeroed where it is not. The loop itself never looks at K.


# %%
class Load(NamedTuple):
    """One thread's part in loading an operand."""

    copy: cute.TiledCopy
    src: cute.Tensor  # (CPY, CPY_M, CPY_K, k) global memory
    dst: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE) shared memory
    coords: cute.Tensor  # (CPY, CPY_M, CPY_K, k) coordinates (row, k) in the matrix
    inside: cute.Tensor  # (1, CPY_M, CPY_K) is the row one of the matrix?


@cute.jit
def make_load(copy, mX, sX, tile: cutlass.Constexpr, index, tidx):
    """This thread's part of `tile` number `index` of the rows of mX (rows, K), for all k-tiles."""
    before = mX.shape[1] - cute.round_up(mX.shape[1], tile[1])  # <= 0
    shift = (0, cute.assume(before, divby=8), 0)  # whole 16-byte pieces, as K is
    gX = cute.domain_offset(shift, cute.local_tile(mX, tile, (index, None)))  # (rows, K, k)
    gX = cute.make_tensor(gX.iterator.align(16), gX.layout)
    cX = cute.domain_offset(shift, cute.local_tile(cute.make_identity_tensor(mX.shape), tile, (index, None)))
    thr = copy.get_slice(tidx)
    src, dst, coords = thr.partition_S(gX), thr.partition_D(sX), thr.partition_S(cX)
    same_for_all_k = cute.make_layout((1, *coords.shape[1:3]), stride=(0, 1, 0))
    inside = cute.make_rmem_tensor(same_for_all_k, cutlass.Boolean)
    for m in cutlass.range_constexpr(coords.shape[1]):
        inside[0, m, 0] = coords[0, m, 0, 0][0] < mX.shape[0]
    return Load(copy, src, dst, coords, inside)


@cute.jit
def load_first_tile(load):
    """k-tile 0 into stage 0: what lies before the matrix becomes zero."""
    src, dst = load.src[None, None, None, 0], load.dst[None, None, None, 0]
    for k in cutlass.range_constexpr(dst.shape[2]):
        if load.coords[0, 0, k, 0][1] >= 0:
            cute.copy(load.copy, src[None, None, k], dst[None, None, k], pred=load.inside[None, None, k])
        else:
            dst[None, None, k].fill(0)


@cute.jit
def load_tile(load, k_tile, stage):
    """k-tile `k_tile`, wholly inside K, into `stage`."""
    src, dst = load.src[None, None, None, k_tile], load.dst[None, None, None, stage]
    cute.copy(load.copy, src, dst, pred=load.inside)


# %% [markdown]
# ## The main loop
#
# Two pipelines, one inside the other. Through shared memory, `cp.async` runs `stages - 1` k-tiles ahead. Through
# registers, `ldmatrix` runs one k-block ahead of `mma`: while the tensor cores multiply block *k*, block *k + 1*
# arrives. At the last block of a tile the next block lies in the next stage, and that is the one place where the loop
# waits and synchronises.
#
# The loads of A and of B are issued in *different* k-blocks. Issued together they fill the memory pipe that `ldmatrix`
# needs as well, and the tensor cores wait. And the loop stands twice: once for the k-tiles during which there is still
# something to load, and once for the last ones. With a question in the loop instead, the compiler could not move
# instructions across it. ([The next page](pipelined_gemm.ipynb) takes each of these away again, to see what it brings.)
#
# A thread closes its `cp.async` into *groups* with `commit_group`, one for each k-tile; `wait_group(n)` waits until all
# but its latest n groups have arrived, and the barrier behind it, until everybody's have.


# %%
@cute.jit
def mainloop(mma, acc, copies, load_a, load_b, sA, sB, tidx, k_tiles, config: cutlass.Constexpr):
    """Multiply all k-tiles into `acc`; the first `stages - 1` have been asked for."""
    thr, thr_a, thr_b = (x.get_slice(tidx) for x in (mma, copies.s2r_a, copies.s2r_b))
    tCrA = mma.make_fragment_A(thr.partition_A(sA)[None, None, None, 0])  # (MMA, MMA_M, MMA_K)
    tCrB = mma.make_fragment_B(thr.partition_B(sB)[None, None, None, 0])  # (MMA, MMA_N, MMA_K)
    tXsA, tXrA = thr_a.partition_S(sA), thr_a.retile(tCrA)  # (CPY, CPY_M, CPY_K, STAGE), (CPY, CPY_M, CPY_K)
    tXsB, tXrB = thr_b.partition_S(sB), thr_b.retile(tCrB)
    k_blocks, stages = cute.size(tCrA, mode=[2]), config.stages
    read, write = cutlass.Int32(0), cutlass.Int32(stages - 1)

    cute.arch.cp_async_wait_group(stages - 2)
    cute.arch.sync_threads()
    cute.copy(copies.s2r_a, tXsA[None, None, 0, read], tXrA[None, None, 0])
    cute.copy(copies.s2r_b, tXsB[None, None, 0, read], tXrB[None, None, 0])
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    for first, last, loading in ((0, still_loading, True), (still_loading, k_tiles, False)):
        for k_tile in cutlass.range(first, last, unroll=1):
            for k in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(k == k_blocks - 1):
                    read = read + 1 if read + 1 < stages else cutlass.Int32(0)
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                ahead = (k + 1) % k_blocks
                cute.copy(copies.s2r_a, tXsA[None, None, ahead, read], tXrA[None, None, ahead])
                cute.copy(copies.s2r_b, tXsB[None, None, ahead, read], tXrB[None, None, ahead])
                if cutlass.const_expr(loading and k == 0):
                    load_tile(load_a, k_tile + stages - 1, write)
                if cutlass.const_expr(loading and k == min(1, k_blocks - 2)):
                    load_tile(load_b, k_tile + stages - 1, write)
                    write = write + 1 if write + 1 < stages else cutlass.Int32(0)
                if cutlass.const_expr(k == min(1, k_blocks - 2)):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one
                cute.gemm(mma, acc, tCrA[None, None, k], tCrB[None, None, k], acc)


# %% [markdown]
# ## The epilogue
#
# Each thread holds scattered pairs of C. It writes them to a swizzled tile where A and B were, and the threads read
# that back as rows. The store to global memory is as wide as the output allows: 16 bytes if N, the row stride and the
# address permit, down to one element for an odd N. A vector is then either all inside the matrix or all outside, so
# one comparison guards it.


# %%
@cute.jit
def store(acc, sC, gC, cC, limit, copies, tidx):
    """Registers -> swizzled shared memory -> global memory. gC, cC: (M, N) tile and its coordinates."""
    rC = cute.make_fragment_like(acc, gC.element_type)
    rC.store(acc.load().to(gC.element_type))
    thr = copies.r2s_c.get_slice(tidx)
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()  # every warp has read its last stage
    cute.copy(copies.r2s_c, thr.retile(rC), thr.partition_D(sC))
    cute.arch.sync_threads()
    thr = copies.s2g_c.get_slice(tidx)
    tCsC, tCgC, tCcC = thr.partition_S(sC), thr.partition_D(gC), thr.partition_D(cC)  # (VEC, REST_M, REST_N)
    for m in cutlass.range(cute.size(tCsC, mode=[1]), unroll=8):
        for n in cutlass.range_constexpr(cute.size(tCsC, mode=[2])):
            if cute.elem_less(tCcC[0, m, n], limit):
                cute.autovec_copy(tCsC[None, m, n], tCgC[None, m, n])


# %% [markdown]
# ## The kernel
#
# **Rasterization.** CTAs are numbered so that those that run together form a block of C, `raster_group` tiles high,
# rather than a long row: they share rows of A and columns of B in L2. [Thread-block
# swizzle](../foundations/thread_block_swizzle.ipynb) says how much that saves.


# %%
@cute.jit
def tile_of_cta(shape_mn, config: cutlass.Constexpr):
    """Rasterization: this CTA's tile, column by column inside groups of `raster_group` rows of tiles."""
    tiles_m = cute.ceil_div(shape_mn[0], config.tile_m)
    tiles_n = cute.ceil_div(shape_mn[1], config.tile_n)
    cta, _, _ = cute.arch.block_idx()
    group, inside = cta // (config.raster_group * tiles_n), cta % (config.raster_group * tiles_n)
    first = group * config.raster_group
    height = cutlass.min(tiles_m - first, config.raster_group)  # the last group may be lower
    return first + inside % height, inside // height


@cute.kernel
def kernel(
    mA: cute.Tensor,  # (M, K)
    mB: cute.Tensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """One CTA computes one tile of C."""
    tidx, _, _ = cute.arch.thread_idx()
    tile_m, tile_n = tile_of_cta(mC.shape, config)
    layouts, copies, mma = smem_layouts(dtype, config), tiled_copies(dtype, config, vec), tiled_mma(dtype, config)

    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    smem = cutlass.memory.SmemAllocator().allocate(config.smem_bytes, 1024)
    smem_b = smem + cute.size_in_bytes(dtype, layouts.a)
    sA = cute.make_tensor(cute.recast_ptr(smem, layouts.a.inner, dtype), layouts.a.outer)
    sB = cute.make_tensor(cute.recast_ptr(smem_b, layouts.b.inner, dtype), layouts.b.outer)
    sC = cute.make_tensor(cute.recast_ptr(smem, layouts.c.inner, dtype), layouts.c.outer)

    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile_m, tidx)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile_n, tidx)
    k_tiles = cute.size(load_a.src, mode=[3])
    load_first_tile(load_a)
    load_first_tile(load_b)
    cute.arch.cp_async_commit_group()
    for stage in cutlass.range_constexpr(1, config.stages - 1):
        if stage < k_tiles:
            load_tile(load_a, stage, stage)
            load_tile(load_b, stage, stage)
        cute.arch.cp_async_commit_group()

    tile = (config.tile_m, config.tile_n)
    gC = cute.local_tile(mC, tile, (tile_m, tile_n))
    cC = cute.local_tile(cute.make_identity_tensor(mC.shape), tile, (tile_m, tile_n))
    acc = cute.make_rmem_tensor(mma.get_slice(tidx).partition_C(gC).shape, cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    mainloop(mma, acc, copies, load_a, load_b, sA, sB, tidx, k_tiles, config)
    store(acc, sC, gC, cC, mC.shape, copies, tidx)


# %% [markdown]
# ## The launch
#
# Sizes and strides are run-time values: one compiled kernel serves all shapes.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    m, n, k = mnk
    lda, ldb, ldc = strides
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(mA, mB, mC, dtype, config, vec).launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (dtype, config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `Gemm`, which all recipes share, is the host side. It checks everything that the kernel relies on before anything is
# launched, and says which argument is at fault, what it got and what it needs. The first call of a kind (shapes,
# strides, dtypes, devices, alignment) makes a *plan* and compiles the kernel; later ones only look the plan up. What
# is this kernel's own stands here: the GPUs it needs, what it is compiled for, and what it takes at the launch.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", whole=True)


# %%
def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    cp.async moves 16 bytes at a time: K is a multiple of 8, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Needs a GPU of compute capability 8.0 or later.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out)


# %% [markdown] tags=["lab"]
# ## In the lab: the layout
#
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. Leave them
# out of your own code.
#
# The layouts are evaluated by CuTe itself and read back as byte addresses. Each row of the picture is one 128-byte
# line of shared memory, each column one of its eight 16-byte slots; the number is the chunk of the tile that lies
# there. Chunks of one colour are one *column* of the tile.

# %% tags=["lab"]
from cookbook import access, banks, draw
from cookbook.layouts import evaluate

layouts = evaluate(smem_layouts, cutlass.Float16)
copies = evaluate(tiled_copies, cutlass.Float16)
draw.swizzle_view(layouts.a)

# %% [markdown] tags=["lab"]
# ## In the lab: one ldmatrix
#
# The 32 lanes of warp 0 give the addresses of 32 rows of 16 bytes, eight for each of the four matrices; a matrix is one
# *phase*, served for itself. First what happens *without* the swizzle, then with it.

# %% tags=["lab"]
from dataclasses import replace

from cookbook.swizzle import Swizzle

plain = replace(layouts.a, swizzle=Swizzle(0, 4, 3))
draw.access_view(access.of_copy(plain, copies.s2r_a, "src", "ldmatrix")[0], title="ldmatrix.x4 without the swizzle")

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts.a, copies.s2r_a, "src", "ldmatrix")[0], title="ldmatrix.x4 with the swizzle")

# %% [markdown] tags=["lab"]
# Every instruction of every copy that touches shared memory, counted: wavefronts of one instruction, and the ideal.

# %% tags=["lab"]
SIDES = {"g2s": ("dst", "cp_async"), "s2r": ("src", "ldmatrix"), "r2s": ("dst", "ldst"), "s2g": ("src", "ldst")}


def wavefronts(swizzled: bool) -> dict[str, set[tuple[int, int]]]:
    found = {}
    for name, copy in copies._asdict().items():
        layout = getattr(layouts, name[-1])
        layout = layout if swizzled else replace(layout, swizzle=Swizzle(0, 4, 3))
        side, kind = SIDES[name[:3]]
        asked = [one for warp in range(copy.threads // 32) for one in access.of_copy(layout, copy, side, kind, warp)]
        answers = [banks.wavefronts(one.addresses, one.width) for one in asked]
        found[name] = {(answer.actual, answer.ideal) for answer in answers}
    return found


print("copy     without      with swizzle   (wavefronts, ideal) of one instruction")
without, swizzled = wavefronts(False), wavefronts(True)
for name in copies._fields:
    print(f"{name:8} {sorted(without[name])!s:12} {sorted(swizzled[name])!s}")

# %% [markdown] tags=["lab"]
# ## In the lab: the pipeline
#
# How many stages? Enough that a load, asked for as soon as a stage is free, is there when it is needed. The times in
# the picture are chosen to show the mechanism, not measured.

# %% tags=["lab"]
draw.pipeline(stages=CONFIG.stages, k_tiles=10, load_time=2)

# %% [markdown] tags=["lab"]
# ## The prediction
#
# One CTA has an SM to itself. For a k-block we count what the SM's shared memory and its tensor cores are busy for, in
# clocks:
#
# * *Shared memory* serves a wavefront a clock: those of all `ldmatrix` and `cp.async` of all warps.
# * *The tensor cores* take the clocks of their multiply-adds, at the rate that
#   [a loop of nothing but `mma.sync`](../foundations/tensor_core_ceiling.ipynb) was measured to reach. `cookbook bench`
#   runs that loop beside every GEMM: the *ceiling*.
#
# Best case: both work beside each other, and the larger number counts. Worst case: one after the other, and they add
# up. To a whole tile come the clocks until its first load is there (we put 800) and those in which C goes out (we put
# 16 elements a clock); and the SMs take one tile each at a time, so that their number is rounded up to whole *waves*.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.check.layout import copy_wavefronts
from cookbook.measure import records
from cookbook.publish.pages import table

SMS, NVIDIA_RATE = 132, 2048  # of an H200; multiply-adds of an SM in a clock (NVIDIA H100 white paper)
STUDY, LOOP = "foundations/tensor_core_ceiling", "mma.sync m16n8k16, bf16"
START, OUT = 800, 16  # clocks; elements of C a clock: put

studied = [
    r["figures"].get("instructions", {}) for r in records.read() if r["recipe"] == STUDY and "H200" in r["device"]
]
found = [each[LOOP]["flops_per_clock"] / 2 for each in studied if LOOP in each]
RATE = max(found, default=NVIDIA_RATE)  # multiply-adds of an SM in a clock, by mma.sync


def busy() -> tuple[float, float]:
    """Clocks of an SM for one k-block: of its shared memory, and of its tensor cores."""
    fields = ("s2r_a", "s2r_b", "g2s_a", "g2s_b")
    counted = [copy_wavefronts(field, getattr(copies, field), getattr(layouts, field[-1])) for field in fields]
    wavefronts = sum(each * n for of_copy in counted for (each, _), n in of_copy.items())
    return wavefronts / (CONFIG.tile_k // 16), CONFIG.tile_m * CONFIG.tile_n * 16 / RATE


def predicted_shares(m: int, n: int, k: int) -> tuple[float, float]:
    """The part of the ceiling that is reached: at worst, and at best."""
    shared, tensor = busy()
    tile, tiles = CONFIG.tile_m * CONFIG.tile_n, -(-m // CONFIG.tile_m) * -(-n // CONFIG.tile_n)
    blocks, waves = -(-k // CONFIG.tile_k) * CONFIG.tile_k // 16, -(-tiles // SMS)
    times = [waves * (blocks * block + START + tile / OUT) for block in (shared + tensor, max(shared, tensor))]
    worst, best = (m * n * k / RATE / SMS / time for time in times)
    return worst, best


shared, tensor = busy()
sizes = (2048, 4096, 8192, 16384)
row = ["{:.0%} to {:.0%}".format(*predicted_shares(n, n, n)) for n in sizes]
Markdown(
    f"A k-block: shared memory {shared:.0f} clocks, tensor cores {tensor:.0f}. Predicted, of the ceiling:\n\n"
    + table([f"{n} x {n} x {n}" for n in sizes], [row], right=0)
)

# %% [markdown] tags=["lab"]
# Both are busy for nearly the same time. So the overlap is worth almost a factor of two if it is perfect, and there is
# little slack on either side to make it so.
# %% [markdown] tags=["lab"]
# ## Check
#
# *Layout*: the recipe's own layouts and copies. *Model*: the product by these layouts, simulated tile by tile through
# modelled `cp.async`, swizzled shared memory, `ldmatrix` and `mma.sync`, on a ragged shape. *Compiled*: a real cubin
# for every target, with the instructions it must contain. On a machine with a GPU the kernel also runs here; elsewhere
# the recorded run is shown.
#
# The check is of the cells above: edit one, run it, and check again. Without a GPU, no level reads the kernel's own
# coordinates, guards and accumulators.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/ldmatrix_gemm", shapes=[(200, 333, 64)], dtypes=["float16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# Ours and its peers, interleaved in one run on one GPU. On a Hopper GPU `torch.matmul` uses `wgmma`, which this kernel
# does without.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("ampere/ldmatrix_gemm"))

# %% [markdown] tags=["lab"]
# And the share of the ceiling, predicted beside measured, where there are tiles for most SMs:


# %% tags=["lab"]
def beside_measured() -> str:
    """A line for every current record of a product that keeps most SMs busy, or that there is none."""
    rows = []
    for r in records.select("ampere/ldmatrix_gemm", "timed"):
        tiles = -(-r["shape"][0] // CONFIG.tile_m) * -(-r["shape"][1] // CONFIG.tile_n)
        if not records.is_stale(r) and "ceiling" in r["peers"] and tiles > 0.9 * SMS:
            share = r["peers"]["ceiling"]["median_ms"] / r["figures"]["median_ms"]
            said = "{:.0%} to {:.0%}".format(*predicted_shares(*r["shape"]))
            rows.append([" x ".join(map(str, r["shape"])), r["dtype"], said, f"{share:.0%}"])
    header = ["M x N x K", "dtype", "of the ceiling, predicted", "measured"]
    return table(header, rows, right=2) if rows else "*Not measured yet.*"


Markdown(beside_measured())

# %% [markdown] tags=["lab"]
# On an H200 every product lies between: a good part of the loads is hidden, and not all of it.
#
# ## Conclusion
#
# One swizzle served the writer and the reader of each tile, and every access is at its ideal. What is left is not
# conflicts but the traffic itself: every fragment of A and B goes through shared memory and registers, and each warp
# reads it for itself. That is what Hopper's `wgmma`, which reads shared memory directly and once for four warps, does
# away with: [Hopper's first GEMM](../hopper/tma_wgmma_gemm.ipynb) has the same tile, the same layout, and an epilogue
# that differs only in how C gets into shared memory.
#
# Next: [a pipeline, step by step](pipelined_gemm.ipynb): this kernel once more, with a parameter for each thing that it
# does at the same time as another.
#
# To use it: `cookbook copy ampere/ldmatrix_gemm my_gemm.py`, then `from my_gemm import matmul`.
