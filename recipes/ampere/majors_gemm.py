# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Operand majors with ldmatrix.trans
#     claim: >-
#       An operand that is stored along M or N instead of K needs no transpose: ldmatrix.trans makes the same fragments
#       from the mirrored tile.
#     track: ampere
#     order: 40
#     builds_on: ampere/ldmatrix_gemm
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     serves: {sm_80: 1024, sm_86: 512, sm_90: 1180, sm_120: 475}
#     dtypes: [float16, bfloat16]
#     majors: [tn, nt, nn, tt]
#     path: cp.async -> swizzled shared memory -> ldmatrix or ldmatrix.trans -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, HMMA.16816.F32, STG.E.128, LDS.128]
#       tn: [LDSM.16.M88.4]
#       nt: [LDSM.16.MT88.4]
#       nn: [LDSM.16.M88.4, LDSM.16.MT88.4]
#       tt: [LDSM.16.M88.4, LDSM.16.MT88.4]
#     sources:
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "PTX ISA, fragments of mma.m16n8k16", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"}
#       - {title: "CuTe, MMA atoms", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0t_mma_atom.html"}
# ---

# %% [markdown]
# # Operand majors with ldmatrix.trans
#
# **Claim.** An operand that lies along M or N instead of K needs no transpose of its own: `ldmatrix.trans` makes the
# same fragments out of a tile whose lines run the other way.

# %% tags=["lab"]
from cookbook import access, banks, draw, lab
from cookbook.layouts import evaluate

lab.gain("ampere/majors_gemm", (8192, 8192, 8192), majors="nn")

# %% [markdown] tags=["lab"]
# How it works, in two pictures. One 8x8 matrix is stored along M: a row of the left half is 16 bytes of shared memory.
# Without `.trans` each lane gets two neighbours along M; with it, two neighbours along K, which is what `mma.sync`
# wants. Compare lane 0.

# %% tags=["lab"]
draw.ldmatrix_view(mn_major=True)

# %% tags=["lab"]
draw.ldmatrix_view(mn_major=True, trans=True)

# %% [markdown]
# [ldmatrix_gemm](ldmatrix_gemm.ipynb) takes A and B *K-major*: the elements that are multiplied and summed lie next to
# each other, as in `x @ weight.T`. The other two products of a layer in a training step are not like that. The gradient
# of the weight is `dy.T @ x`: A lies along M and B along N. The gradient of the input is `dy @ weight`: B lies along N.
#
# BLAS and CuTe name the four cases by two letters, the first for A, the second for B. A letter asks whether a matrix,
# stored by columns, must be *transposed* or *not*:
#
# | letters | A (M, K) lies along | B (K, N) lies along | for example       |
# |---------|---------------------|---------------------|-------------------|
# | `tn`    | K: row-major        | K: column-major     | `x @ weight.T`    |
# | `tt`    | K: row-major        | N: row-major        | `dy @ weight`     |
# | `nn`    | M: column-major     | K: column-major     | `x.T @ weight.T`  |
# | `nt`    | M: column-major     | N: row-major        | `dy.T @ x`        |
#
# Three things change with the letter of an operand: which way its lines run in shared memory, which way `cp.async` goes
# through them, and one bit of `ldmatrix`. The main loop, the MMA and the epilogue stay as they were.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host, either_major, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes, and the majors
#
# The tiles are those of [ldmatrix_gemm](ldmatrix_gemm.ipynb). The majors are two more fields: the compiler makes one
# kernel for each pair that is used.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how its operands lie."""

    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 256  # columns of C per CTA
    tile_k: int = 64  # 128 bytes of a K-major operand, eight atoms of an MN-major one; four mma steps of 16
    stages: int = 4  # pairs of A and B tiles: one being read, the others arriving
    warps_m: int = 2  # the warps stand in a warps_m x warps_n grid over the tile of C
    warps_n: int = 4
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles
    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    def __post_init__(self):
        if self.a_major not in ("k", "m"):
            raise ValueError(f"a_major: got {self.a_major!r}; needed 'k' or 'm'")
        if self.b_major not in ("k", "n"):
            raise ValueError(f"b_major: got {self.b_major!r}; needed 'k' or 'n'")

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


CONFIG = Config()  # 192 KiB of shared memory: data-centre Hopper and Blackwell
CONFIG_163K = Config(stages=3)  # A100
CONFIG_99K = Config(tile_n=128, stages=3)  # GeForce, Ada


def config_for(arch: str) -> Config:
    """The configuration that fits the shared memory of an architecture such as "sm_89"; "" means CONFIG."""
    chip = arch.rstrip("af")
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):
        return CONFIG_99K
    return CONFIG_163K if chip in ("sm_80", "sm_87") else CONFIG


# %% [markdown]
# ## The layout
#
# The threads read global memory 16 bytes at a time: eight elements along the index that the operand is contiguous in.
# Nothing on the way can split such a chunk. `cp.async` drops it whole into shared memory, the swizzle moves it whole,
# `ldmatrix` picks it up whole.
#
# So an M-major tile *stays* M-major in shared memory. Its atom is the K-major one mirrored: not 8 rows of 64 elements
# along K, but **64 x 8, eight lines of 64 elements along M**, one line for each k.
#
# Why that shape? A line of 64 elements is 128 bytes, all 32 banks. Eight lines, because `ldmatrix` reads 16 bytes of
# each of eight lines in one phase, and the swizzle has eight slots to put them in. It is the same `S<3,4,3>`: chunk *c*
# of line *l* goes to slot *c XOR l*. It sees addresses, and never learns which way the matrix runs.
#
# The rule that chooses the width is the same as well: the widest line that divides the tile's *contiguous* extent.
# For a K-major operand that is `tile_k`, for an M-major one `tile_m`.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, N)


def smem_atom(dtype, contiguous: int, along: int = 1) -> cute.ComposedLayout:
    """Eight lines along mode `along` and the swizzle for them: 128, 64, 32 or 16 bytes, the widest that divides
    `contiguous` elements."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    lines = cute.make_layout((8, width), stride=(width, 1))
    lines = lines if along == 1 else cute.select(lines, mode=[1, 0])  # (width, 8):(1, width)
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first along M or N, then along K, then over the stages."""

    def staged(rows: int, major: str) -> cute.ComposedLayout:
        along = 1 if major == "k" else 0
        tile = (rows, config.tile_k, config.stages)
        return cute.tile_to_shape(smem_atom(dtype, tile[along], along), tile, order=(0, 1, 2))

    c = (config.tile_m, config.tile_n)
    return SmemLayouts(
        a=staged(config.tile_m, config.a_major),
        b=staged(config.tile_n, config.b_major),
        c=cute.tile_to_shape(smem_atom(dtype, config.tile_n), c, order=(0, 1)),
    )


# %% [markdown]
# ## What .trans does
#
# `mma.sync.m16n8k16` wants its operands in registers in one way only. In each 8x8 matrix of A, lane *l* holds two
# neighbours **along K**: elements 2(*l* mod 4) and 2(*l* mod 4) + 1 of row *l* / 4, as one 32-bit register.
#
# `ldmatrix` gives lane *l* two neighbours of *line* *l* / 4 of the matrix that it reads. Lines along K are what the MMA
# wants. Lines along M are not: lane 0 would get M0K0 and M1K0, and no later instruction could pair M0K0 with M0K1
# but by a shuffle for every register.
#
# With `.trans` the 8x8 matrix is transposed between shared memory and the registers: lane *l* gets elements 2(*l* mod
# 4) and 2(*l* mod 4) + 1 of *column* *l* / 4, one out of each of two lines.
#
# Column 0 of the lines along M is row M0, so lane 0 gets M0K0 and M0K1. **The same elements are in the same lanes**,
# and what follows need not know. The lanes supply the addresses of the lines, 16 bytes each, so the number of
# wavefronts does not change either.
#
# This form transposes matrices of 16-bit elements, and those alone: with 8-bit or 32-bit elements an MN-major operand
# has to be transposed in some other way. (Blackwell has one for 8 bits.)
#
# CuTe knows all this. `transpose=True` makes the atom, and `make_tiled_copy_A` finds out which line each lane must
# point at so that the fragments come out as the MMA wants them.


# %%
def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """mma.sync m16n8k16, repeated over the warps; 16 columns a warp and step. It does not depend on the majors."""
    op = warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16))
    warps = cute.make_layout((config.warps_m, config.warps_n, 1))
    return cute.make_tiled_mma(op, warps, permutation_mnk=(16 * config.warps_m, 16 * config.warps_n, 16))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    g2s_a: cute.TiledCopy  # cp.async, 16 bytes a thread
    g2s_b: cute.TiledCopy
    s2r_a: cute.TiledCopy  # ldmatrix.x4, with .trans for an M-major A: four 8x8 matrices a warp
    s2r_b: cute.TiledCopy
    r2s_c: cute.TiledCopy  # st.shared, two elements a thread
    s2g_c: cute.TiledCopy  # ld.shared and st.global, `vec` elements a thread


def linewise_copy(atom, threads: int, line: int, vec: int, along: int = 1) -> cute.TiledCopy:
    """Consecutive threads along a line of `line` elements, `vec` elements each; lines run along mode `along`."""
    per_line = min(line // vec, threads)
    layout, values = cute.make_layout((threads // per_line, per_line), stride=(per_line, 1)), (1, vec)
    if along == 0:
        layout, values = cute.select(layout, mode=[1, 0]), (vec, 1)
    return cute.make_tiled_copy_tv(atom, layout, cute.make_layout(values))


def tiled_copies(dtype, config: Config = CONFIG, vec: int = 8) -> TiledCopies:
    """All copies; `vec` elements (8, 4, 2 or 1) of C go to global memory at a time."""
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    cp_async = cute.make_copy_atom(past_l1, dtype, num_bits_per_copy=128)
    pair = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=32)
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    mma = tiled_mma(dtype, config)

    def g2s(rows: int, major: str) -> cute.TiledCopy:
        line, along = (config.tile_k, 1) if major == "k" else (rows, 0)
        return linewise_copy(cp_async, config.threads, line, 8, along)

    def ldmatrix(major: str) -> cute.CopyAtom:
        return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=major != "k", num_matrices=4), dtype)

    return TiledCopies(
        g2s_a=g2s(config.tile_m, config.a_major),
        g2s_b=g2s(config.tile_n, config.b_major),
        s2r_a=cute.make_tiled_copy_A(ldmatrix(config.a_major), mma),
        s2r_b=cute.make_tiled_copy_B(ldmatrix(config.b_major), mma),
        r2s_c=cute.make_tiled_copy_C(pair, mma),
        s2g_c=linewise_copy(wide, config.threads, config.tile_n, vec),
    )


# %% [markdown] tags=["lab"]
# Our own A for `nt`, as CuTe evaluates it. A row of the picture is one 128-byte line of shared memory: 64 elements
# along M, of one k. The chunks are numbered along M; the swizzle is the one that a K-major tile has.

# %% tags=["lab"]
NT = replace(CONFIG, a_major="m", b_major="n")
layouts, copies = evaluate(smem_layouts, cutlass.Float16, NT), evaluate(tiled_copies, cutlass.Float16, NT)
draw.swizzle_view(layouts.a)

# %% [markdown] tags=["lab"]
# One `ldmatrix.x4.trans` of warp 0: each lane gives the address of 16 bytes along M. The eight lines of a phase are
# eight k, and their chunks lie in eight different slots.

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts.a, copies.s2r_a, "src", "ldmatrix")[0], title="ldmatrix.x4.trans, M-major A")

# %% [markdown]
# ## Loading
#
# The edges are those of [ldmatrix_gemm](ldmatrix_gemm.ipynb): no thread reads rows beyond M or N. The k-tiles *end*
# where K ends; the one that begins before the matrix gets zeros, chunk by chunk.
#
# The major decides **which extent must be a multiple of eight**, for a chunk of 16 bytes must lie inside the matrix or
# outside of it. K-major, a chunk is eight k of one row: K must be a multiple of 8, and the rows may end anywhere.
# M-major, a chunk is eight rows of one k: M must be a multiple of 8, and K may be anything. Lines begin at multiples of
# 16 bytes either way.
#
# The code is the same in both cases. The row of a thread's chunk depends on its place in the mode `CPY_M` alone, and
# its k on `CPY_K` alone. The first decides whether it is inside M, the second whether it is inside K.


# %%
class Load(NamedTuple):
    """One thread's part in loading an operand."""

    copy: cute.TiledCopy
    src: cute.Tensor  # (CPY, CPY_M, CPY_K, k) global memory
    dst: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE) shared memory
    coords: cute.Tensor  # (CPY, CPY_M, CPY_K, k) coordinates (row, k) in the matrix
    inside: cute.Tensor  # (1, CPY_M, CPY_K) is the row one of the matrix?


@cute.jit
def make_load(copy, mX, sX, tile: cutlass.Constexpr, index, tidx, major: cutlass.Constexpr):
    """This thread's part of `tile` number `index` of the rows of mX (rows, K), for all k-tiles."""
    before = mX.shape[1] - cute.round_up(mX.shape[1], tile[1])  # <= 0
    if cutlass.const_expr(major == "k"):
        before = cute.assume(before, divby=8)  # whole 16-byte pieces, as K is
    shift = (0, before, 0)
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
# Line for line that of [ldmatrix_gemm](ldmatrix_gemm.ipynb): `cp.async` runs `stages - 1` k-tiles ahead through shared
# memory, `ldmatrix` one k-block ahead through registers. The fragments have the same shapes, and a load is one
# `cute.copy` whatever its shape. So no line of the loop asks for the majors.


# %%
class Operand(NamedTuple):
    """A warp's way from shared memory to the tensor cores, for A or B."""

    copy: cute.TiledCopy  # ldmatrix
    smem: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE)
    into: cute.Tensor  # (CPY, CPY_M, CPY_K): registers as ldmatrix fills them
    regs: cute.Tensor  # (MMA, MMA_M, MMA_K): the same registers as mma takes them


def make_operand(copy, sX, regs, tidx) -> Operand:
    """This thread's part of an operand. sX: (rows, K, STAGE); regs: as `mma` takes them."""
    thr = copy.get_slice(tidx)
    return Operand(copy, thr.partition_S(sX), thr.retile(regs), regs)


@cute.jit
def fetch_block(x, stage, k: cutlass.Constexpr):
    """The fragments of k-block `k`."""
    cute.copy(x.copy, x.smem[None, None, k, stage], x.into[None, None, k])


@cute.jit
def mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config: cutlass.Constexpr):
    """Multiply all k-tiles into `acc`; the first `stages - 1` have been asked for."""
    stages, k_blocks = config.stages, config.tile_k // 16
    read, write = cutlass.Int32(0), cutlass.Int32(stages - 1)
    cute.arch.cp_async_wait_group(stages - 2)
    cute.arch.sync_threads()
    fetch_block(a, read, 0)
    fetch_block(b, read, 0)
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    for first, last, loading in ((0, still_loading, True), (still_loading, k_tiles, False)):
        for k_tile in cutlass.range(first, last, unroll=1):
            for k in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(k == k_blocks - 1):
                    read = read + 1 if read + 1 < stages else cutlass.Int32(0)
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                fetch_block(a, read, (k + 1) % k_blocks)
                fetch_block(b, read, (k + 1) % k_blocks)
                if cutlass.const_expr(loading and k == 0):
                    load_tile(load_a, k_tile + stages - 1, write)
                if cutlass.const_expr(loading and k == min(1, k_blocks - 2)):
                    load_tile(load_b, k_tile + stages - 1, write)
                    write = write + 1 if write + 1 < stages else cutlass.Int32(0)
                if cutlass.const_expr(k == min(1, k_blocks - 2)):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one
                cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)


# %% [markdown]
# ## The epilogue
#
# Unchanged too: C is written by rows whatever A and B were. Scattered pairs go to a swizzled tile where A and B were,
# and come back as rows; the stores are as wide as N, the row stride and the address allow.


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
# **Rasterization.** CTAs are numbered so that those that run together form a block of C, `swizzle_size` tiles high,
# rather than a long row: they share rows of A and columns of B in L2.


# %%
@cute.jit
def tile_of_cta(shape_mn, config: cutlass.Constexpr):
    """Rasterization: this CTA's tile, column by column inside groups of `swizzle_size` rows of tiles."""
    tiles_m = cute.ceil_div(shape_mn[0], config.tile_m)
    tiles_n = cute.ceil_div(shape_mn[1], config.tile_n)
    cta, _, _ = cute.arch.block_idx()
    group, inside = cta // (config.swizzle_size * tiles_n), cta % (config.swizzle_size * tiles_n)
    first = group * config.swizzle_size
    height = cutlass.min(tiles_m - first, config.swizzle_size)  # the last group may be lower
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
    smem = SmemAllocator().allocate(config.smem_bytes, 1024)
    smem_b = smem + cute.size_in_bytes(dtype, layouts.a)
    sA = cute.make_tensor(cute.recast_ptr(smem, layouts.a.inner, dtype), layouts.a.outer)
    sB = cute.make_tensor(cute.recast_ptr(smem_b, layouts.b.inner, dtype), layouts.b.outer)
    sC = cute.make_tensor(cute.recast_ptr(smem, layouts.c.inner, dtype), layouts.c.outer)

    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile_m, tidx, config.a_major)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile_n, tidx, config.b_major)
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
    thr = mma.get_slice(tidx)
    acc = cute.make_rmem_tensor(thr.partition_C(gC).shape, cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    tCrA = mma.make_fragment_A(thr.partition_A(sA)[None, None, None, 0])  # (MMA, MMA_M, MMA_K)
    tCrB = mma.make_fragment_B(thr.partition_B(sB)[None, None, None, 0])  # (MMA, MMA_N, MMA_K)
    a, b = make_operand(copies.s2r_a, sA, tCrA, tidx), make_operand(copies.s2r_b, sB, tCrB, tidx)
    mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config)
    store(acc, sC, gC, cC, mC.shape, copies, tidx)


# %% [markdown]
# ## The launch
#
# Sizes and strides are run-time values: one compiled kernel serves all shapes of its majors. An operand has one stride
# that is 1 and one that is not; the majors say which is which, and the kernel sees (rows, K) either way.


# %%
def operand_layout(rows, k, stride, major: str) -> cute.Layout:
    """(rows, K) of an operand whose lines, along K or along the rows, are `stride` elements apart."""
    apart = cute.assume(stride, divby=8)
    return cute.make_layout((rows, k), stride=(apart, 1) if major == "k" else (1, apart))


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are elements between the lines of A, B, C."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = strides
    mA = cute.make_tensor(pA, operand_layout(m, k, lda, config.a_major))
    mB = cute.make_tensor(pB, operand_layout(n, k, ldb, config.b_major))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(mA, mB, mC, dtype, config, vec).launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


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
#
# There is no argument for the majors: the strides of a and b say them.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    a_major, b_major = call.majors
    config = replace(config_for(call.arch), a_major=a_major, b_major=b_major)
    return (config, call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", major_of=either_major, whole=True)


# %%
def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    The strides say the majors; an operand that can be read both ways counts as K-major. cp.async moves 16 bytes at a
    time: of an operand the extent along which it is contiguous is a multiple of 8 (K, or M of a and N of b), and its
    address and its other stride are multiples of 16 bytes. Every other extent may be anything from 1 on.
    Needs a GPU of compute capability 8.0 or later. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# Wavefronts of every copy that touches shared memory, for all four majors: of one instruction, and the ideal.

# %% tags=["lab"]
SIDES = {"g2s": ("dst", "cp_async"), "s2r": ("src", "ldmatrix"), "r2s": ("dst", "ldst"), "s2g": ("src", "ldst")}


def wavefronts(config: Config) -> dict[str, set[tuple[int, int]]]:
    """(actual, ideal) of all instructions of each copy, over all warps."""
    layouts, copies = evaluate(smem_layouts, cutlass.Float16, config), evaluate(tiled_copies, cutlass.Float16, config)
    found = {}
    for name, copy in copies._asdict().items():
        layout, (side, kind) = getattr(layouts, name[-1]), SIDES[name[:3]]
        asked = [one for warp in range(copy.threads // 32) for one in access.of_copy(layout, copy, side, kind, warp)]
        answers = [banks.wavefronts(one.addresses, one.width) for one in asked]
        found[name] = {(answer.actual, answer.ideal) for answer in answers}
    return found


MAJORS = {"tn": ("k", "k"), "tt": ("k", "n"), "nn": ("m", "k"), "nt": ("m", "n")}
print("    " + "  ".join(f"{name:9}" for name in copies._fields))
for letters, (a_major, b_major) in MAJORS.items():
    found = wavefronts(replace(CONFIG, a_major=a_major, b_major=b_major))
    print(letters, "  ".join(f"{sorted(found[name])!s:9}" for name in copies._fields))

# %% [markdown] tags=["lab"]
# So we predict *no difference*: for all four majors there are as many instructions, of as many wavefronts, and as many
# bytes from global memory. One thing may differ that this does not count: a line of an MN-major tile is a part of
# another row of memory, and L2 and DRAM may prefer one order of them.
#
# ## Check
#
# All levels for each of the majors. *Model* sends numbers through modelled `cp.async`, swizzled shared memory,
# `ldmatrix` with and without `.trans`, and `mma.sync`. *Compiled* demands `LDSM` with `MT88` for an MN-major operand,
# and with `M88` for a K-major one.
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/majors_gemm", shapes=[(200, 328, 64)], dtypes=["float16"], targets=["sm_80", "sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("ampere/majors_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Ours and its peers, interleaved in one run on one GPU, all of them on operands of the same majors. The prediction is
# that the rows of one size are alike. The second table compares them: each layout against its own `tn`.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import beside_tn, results_table

Markdown(results_table("ampere/majors_gemm"))

# %% tags=["lab"]
Markdown(beside_tn("ampere/majors_gemm"))

# %% [markdown] tags=["lab"]
# Where one operand is MN-major the prediction holds to within the spread of two runs of one kernel. Where both are, the
# kernel is a little slower, and no wavefront says why: `ldmatrix` takes as many as for `tn`, and no copy takes more
# than predicted. The cause must be something that the prediction does not count, such as the order in which the kernel
# asks for rows of memory. It is not known.

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An operand keeps its major from global memory to shared memory. `ldmatrix`, which has to touch every 8x8 matrix
# anyway, transposes it at the last moment. There are as many copies and wavefronts as before, and the swizzle is the
# same. The major only decides *which extent* must come in whole 16-byte chunks.
#
# Hopper's `wgmma` reads shared memory itself, so there is no `ldmatrix` to transpose anything. There [one bit of the
# instruction](../hopper/majors_gemm.ipynb) for each operand says that its lines run along M or N.
#
# Next: [persistent CTAs](persistent_gemm.ipynb). It is K-major again, and hides what the pipeline could not: the
# beginning and the end of each tile.
#
# To use it: `cookbook copy ampere/majors_gemm my_gemm.py`, then `from my_gemm import matmul`.
