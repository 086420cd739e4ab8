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
#     title: "Shared-memory layouts: plain, padded, swizzled"
#     claim: >-
#       Counted wavefronts predict what each of three shared-memory layouts gains: padding frees ldmatrix of conflicts
#       and hands some to cp.async, a swizzle frees both.
#     track: ampere
#     order: 10
#     builds_on: null
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async -> shared memory, plain, padded or swizzled -> ldmatrix -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
# ---

# %% [markdown]
# # Shared-memory layouts: plain, padded, swizzled
#
# **Claim.** Take a GEMM as plain as it can be and still be one for the tensor cores: `cp.async` brings tiles of A and B
# into shared memory, `ldmatrix` takes fragments of them into registers, `mma.sync` multiplies. One parameter says how a
# tile's rows lie in shared memory:
#
# * `plain`: one row after the other, 128 bytes each;
# * `padded`: 16 unused bytes after each row, so that the next one begins four banks further on;
# * `swizzled`: as plain, but the 16-byte chunks of row *r* change places: chunk *c* goes to slot *c XOR (r mod 8)*.
#
# Nothing else differs between the three: not the copies, not the loop, not the number of stages. What the layout is
# worth can be worked out before anything runs, by counting *wavefronts*, and then measured. A wavefront is one access
# of shared memory, all that its 32 banks can give or take in one clock; lanes that want different words of one bank
# need a wavefront each ([bank conflicts](../foundations/bank_conflicts.ipynb)). What a *fragment* is, and how
# `ldmatrix` hands it out, is on [a page of its own](../foundations/fragments_and_ldmatrix.ipynb).
#
# This is the first rung of a ladder. [The second](ldmatrix_gemm.ipynb) keeps the swizzle and loads fragments ahead;
# [the third](pipelined_gemm.ipynb) asks what each part of that pipeline brings.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.memory
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host

# %% [markdown]
# ## The sizes
#
# Eight warps in a 2 x 4 grid over a 128 x 256 tile of C, 64 x 64 each. K goes by *k-tiles* of 64, four *k-blocks* of
# 16; 16 is the depth of one `mma.sync`. A *stage* is room for one k-tile of A and of B in shared memory.
#
# There are three: one is being read while two are on their way. Padded, they take an eighth more, which is still within
# 163 KiB. Chips that give a block 99 KiB get half the tile, four warps and two stages: there too all three layouts fit
# and stay comparable.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    layout: str = "swizzled"  # how the rows of A and B lie in shared memory: plain, padded or swizzled
    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 256  # columns of C per CTA
    tile_k: int = 64  # 128 bytes: all 32 banks
    stages: int = 3  # pairs of A and B tiles: one being read, the others arriving
    warps_m: int = 2  # the warps stand in a warps_m x warps_n grid over the tile of C
    warps_n: int = 4
    raster_group: int = 16  # swizzle size: CTAs that run together cover this many rows of tiles

    @property
    def padding(self) -> int:
        """Unused elements after each row: 16 bytes, for rows must start where cp.async and ldmatrix can."""
        return 8 if self.layout == "padded" else 0

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * (self.tile_k + self.padding)
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


VARIANTS = {layout: Config(layout=layout) for layout in ("plain", "padded", "swizzled")}
CONFIG = VARIANTS["swizzled"]


def config_for(arch: str, variant: str = "swizzled") -> Config:
    """A variant in the sizes that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    small = arch.rstrip("af") in ("sm_86", "sm_89", "sm_120", "sm_121")
    return replace(VARIANTS[variant], tile_n=128, warps_n=2, stages=2) if small else VARIANTS[variant]


# %% [markdown]
# ## The layouts
#
# A CuTe layout is a shape and strides, and a swizzle on top. The three differ in two numbers: how far apart the rows
# are, and how many bits the swizzle has.
#
# * `cp.async` writes *rows*: eight lanes, eight chunks of 16 bytes, 128 bytes of one row. Wherever the row begins,
#   these are all 32 banks once, and by the banks no layout does badly here.
#
#   But ours go past L1, and such a copy does not go by the banks: it moves 32-byte sectors from a *line* of global
#   memory, 128 bytes, to a *line* of shared memory, in one wavefront those that move alike (`cookbook.banks` has the
#   rule). A swizzled row is one line, and its XOR moves all sectors alike. A padded row begins in the middle of a line
#   and ends in the next.
#
# * `ldmatrix` reads *columns of chunks*: eight rows, the same 16 bytes of each. Plain rows are 128 bytes apart, so all
#   eight chunks lie in the same four banks and are served one after the other: eight wavefronts where one would do.
#   Padded rows are 144 bytes apart: the eight chunks begin 4 banks apart, and together they cover all 32. So do the
#   swizzled ones, for *c XOR r* takes eight different values over eight rows.
#
# **Mind the units.** The swizzle counts *bytes*: it acts on addresses, and is attached to the pointer. The layout
# under it counts *elements*.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, N)


def rows_of_k(rows: int, config: Config) -> cute.ComposedLayout:
    """All stages of a tile of `rows` x tile_k, as `config.layout` says."""
    bits = 3 if config.layout == "swizzled" else 0  # a swizzle of no bits changes nothing
    apart = config.tile_k + config.padding
    outer = cute.make_layout((rows, config.tile_k, config.stages), stride=(apart, 1, rows * apart))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, outer)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """A and B in the layout that is looked at; C, once per tile, swizzled in all three."""
    row = cute.make_layout((8, 64), stride=(64, 1))  # 128 bytes, whatever tile_n
    c = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, row)
    return SmemLayouts(
        a=rows_of_k(config.tile_m, config),
        b=rows_of_k(config.tile_n, config),
        c=cute.tile_to_shape(c, (config.tile_m, config.tile_n), order=(0, 1)),
    )


def expected_excess(config: Config) -> dict[str, tuple[int, str]]:
    """Wavefronts above the ideal that each instruction of a copy takes, and why."""
    if config.layout != "plain":
        return {}
    why = "4 matrices, and the 8 rows of each begin in the same bank: 8 wavefronts instead of 1"
    return {"s2r_a": (28, why), "s2r_b": (28, why)}


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
# As simple as a loop over stages can be: wait for the oldest tile, ask for a new one, multiply. A warp loads the
# fragments of a k-block and then multiplies them. Within a k-tile the compiler moves loads ahead by itself; past the
# barrier between two k-tiles it may not, and there every warp waits for its first fragments. So what `ldmatrix` costs
# is easy to see here. While one warp waits for its fragments another may multiply, no more.
#
# How does a thread know that its `cp.async` have arrived? It closes them into *groups*, here one for each k-tile, with
# `commit_group`, and `wait_group(n)` waits until all but the latest n groups are there. That says nothing of other
# threads' copies: hence the barrier of the whole CTA behind it.


# %%
@cute.jit
def mainloop(mma, acc, copies, load_a, load_b, sA, sB, tidx, k_tiles, config: cutlass.Constexpr):
    """Multiply all k-tiles into `acc`; the first `stages - 1` have been asked for."""
    thr, thr_a, thr_b = (x.get_slice(tidx) for x in (mma, copies.s2r_a, copies.s2r_b))
    tCrA = mma.make_fragment_A(thr.partition_A(sA)[None, None, None, 0])  # (MMA, MMA_M, MMA_K)
    tCrB = mma.make_fragment_B(thr.partition_B(sB)[None, None, None, 0])  # (MMA, MMA_N, MMA_K)
    tXsA, tXrA = thr_a.partition_S(sA), thr_a.retile(tCrA)  # (CPY, CPY_M, CPY_K, STAGE), (CPY, CPY_M, CPY_K)
    tXsB, tXrB = thr_b.partition_S(sB), thr_b.retile(tCrB)
    stages = config.stages
    read, write = cutlass.Int32(0), cutlass.Int32(stages - 1)

    for k_tile in cutlass.range(k_tiles, unroll=1):
        cute.arch.cp_async_wait_group(stages - 2)  # the oldest tile has arrived,
        cute.arch.sync_threads()  # everybody's part of it, and everybody is done with the one before
        if k_tile + stages - 1 < k_tiles:
            load_tile(load_a, k_tile + stages - 1, write)
            load_tile(load_b, k_tile + stages - 1, write)
        cute.arch.cp_async_commit_group()  # an empty group too counts as one
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.copy(copies.s2r_a, tXsA[None, None, k, read], tXrA[None, None, k])
            cute.copy(copies.s2r_b, tXsB[None, None, k, read], tXrB[None, None, k])
            cute.gemm(mma, acc, tCrA[None, None, k], tCrB[None, None, k], acc)
        read = read + 1 if read + 1 < stages else cutlass.Int32(0)
        write = write + 1 if write + 1 < stages else cutlass.Int32(0)


# %% [markdown]
# ## The epilogue
#
# What is left after the loop is to bring C out. Each thread holds scattered pairs of it. It writes them to a swizzled
# tile where A and B were, and the threads read that back as rows. The store to global memory is as wide as the output
# allows: 16 bytes if N, the row stride and the address permit, down to one element for an odd N. A vector is then
# either all inside the matrix or all outside, so one comparison guards it.


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
    return (config_for(call.arch, call.variant), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", variants=VARIANTS, whole=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = "swizzled"
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: how A and B lie in shared memory on their way. The product is the same, bit for bit.

    cp.async moves 16 bytes at a time: K is a multiple of 8, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Needs a GPU of compute capability 8.0 or later.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## In the lab: the three layouts
#
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. Leave them
# out of your own code.
#
# The layouts are evaluated by CuTe itself and read back as byte addresses. Eight rows of A, sixteen bytes a cell; a
# cell says in which bank it begins, and has a colour of its own for each. `ldmatrix` reads down the columns: a column
# of one colour is eight wavefronts at the same four banks, a column of eight colours is one.

# %% tags=["lab"]
from cookbook import access, draw
from cookbook.check.layout import copy_wavefronts
from cookbook.layouts import evaluate

layouts = {name: evaluate(smem_layouts, cutlass.Float16, config) for name, config in VARIANTS.items()}
copies = evaluate(tiled_copies, cutlass.Float16)
draw.bank_grid(layouts["plain"].a, label="bank", title="plain: rows 128 bytes apart (bank of each chunk)")

# %% tags=["lab"]
draw.bank_grid(layouts["padded"].a, label="bank", title="padded: rows 144 bytes apart (bank of each chunk)")

# %% tags=["lab"]
draw.bank_grid(layouts["swizzled"].a, label="bank", title="swizzled: chunk c of row r at slot c XOR (r mod 8)")

# %% [markdown] tags=["lab"]
# ## In the lab: one ldmatrix
#
# The 32 lanes of warp 0 give the addresses of 32 rows of 16 bytes, eight for each of the four matrices. Shared memory
# serves one matrix after the other: each is a *phase* of the instruction. Padded and swizzled take one wavefront a
# phase and look alike but for which lane has which bank; here is the padded one beside the plain.

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts["plain"].a, copies.s2r_a, "src", "ldmatrix")[0], title="ldmatrix.x4, plain")

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts["padded"].a, copies.s2r_a, "src", "ldmatrix")[0], title="ldmatrix.x4, padded")

# %% [markdown] tags=["lab"]
# ## The prediction
#
# One CTA has an SM to itself, so we count what the SM does for one *k-block*, 16 along K, in clocks.
#
# * **Shared memory** serves one wavefront a clock. The wavefronts of every `ldmatrix` and `cp.async` of all eight
#   warps are added up, on the addresses that this recipe's own layouts and copies give.
# * **The tensor cores**, four of them, need 16 x 8 x 16 multiply-adds for each `mma.sync`. What they do in a clock is
#   NVIDIA's figure for the chip: 512 multiply-adds each on Hopper, 256 on an A100. (On Hopper `mma.sync` falls short of
#   that figure; the prediction knows nothing of it.)
#
# Two times follow. In the worst case a k-block's loads and its multiplications come one after the other, and the clocks
# *add up*. In the best case they overlap without a gap, and the *larger* of the two is all that counts. This kernel
# asks for nothing ahead: the sum is our prediction, and the maximum says what it could become.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import table

TENSOR_CORES, FMA_A_CLOCK = 4, {"sm_90a": 512, "sm_80": 256}  # of an SM; of each of them


def clocks(variant: str, arch: str = "sm_90a") -> dict[str, float]:
    """Clocks of an SM for one k-block of one CTA: what each part of it is busy for."""
    config = config_for(arch, variant)
    smem = evaluate(smem_layouts, cutlass.Float16, config)
    moves = evaluate(tiled_copies, cutlass.Float16, config)._asdict()
    k_blocks = config.tile_k // 16

    def wavefronts(kind: str) -> float:
        counted = [copy_wavefronts(name, moves[name], getattr(smem, name[-1])) for name in (f"{kind}_a", f"{kind}_b")]
        return sum(each * n for count in counted for (each, _), n in count.items()) / k_blocks

    tensor = config.tile_m * config.tile_n * 16 / (TENSOR_CORES * FMA_A_CLOCK[arch])
    return {"ldmatrix": wavefronts("s2r"), "cp.async": wavefronts("g2s"), "mma.sync": tensor}


def predicted(arch: str = "sm_90a") -> dict[str, tuple[float, float]]:
    """Clocks of a k-block by variant: one after the other, and all at once."""
    busy = {variant: clocks(variant, arch) for variant in VARIANTS}
    return {v: (sum(b.values()), max(b["ldmatrix"] + b["cp.async"], b["mma.sync"])) for v, b in busy.items()}


def gains(times: dict[str, float]) -> dict[str, float]:
    """How many times as fast as the plain one each variant is."""
    return {variant: times["plain"] / time for variant, time in times.items()}


serial, overlapped = ({v: times[i] for v, times in predicted().items()} for i in range(2))
rows = []
for v in VARIANTS:
    times = (of for each in (serial, overlapped) for of in (f"{each[v]:.0f}", f"{gains(each)[v]:.2f}x"))
    rows.append([v, *(f"{c:.0f}" for c in clocks(v).values()), *times])
header = ["layout", "ldmatrix", "cp.async", "mma.sync", "added up", "predicted gain", "all at once", "gain"]
Markdown("Clocks of one SM for one k-block, Hopper:\n\n" + table(header, rows))

# %% [markdown] tags=["lab"]
# Read the columns. For `ldmatrix` padding and swizzle are two answers to one question: both are eight times as good as
# plain rows. With plain rows shared memory is busy several times as long as the tensor cores, and no pipeline helps
# before those conflicts are gone.
#
# For `cp.async` they differ. Plain and swizzled rows are lines of shared memory, and a warp's copy fills four of them
# in four wavefronts. Padded rows lie across two lines each, but for every eighth, and every row at another place in
# them, and a copy takes more than twice as many.
#
# And padding takes memory: 16 bytes in every 144. These are the stages that fit a block,
# in the tile that each chip gets:

# %% tags=["lab"]
from cookbook.check.compiled import SMEM_LIMITS


def stages_that_fit(variant: str, arch: str, limit: int) -> int:
    config = config_for(arch, variant)
    return max(s for s in range(1, 16) if replace(config, stages=s).smem_bytes <= limit)


chips = {"sm_80": SMEM_LIMITS[80], "sm_89": SMEM_LIMITS[89], "sm_90a": SMEM_LIMITS[90]}
rows = [[v, *(str(stages_that_fit(v, arch, limit)) for arch, limit in chips.items())] for v in VARIANTS]
Markdown(table(["layout", *(f"{arch}, {limit // 1024} KiB" for arch, limit in chips.items())], rows))

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at all three. *Layout*: each element has a place of its own, with no holes but the declared padding,
# and each copy takes the wavefronts that are expected of it: of `plain`, `ldmatrix` too many. What `cp.async` takes for
# padded rows is told, and not judged.
#
# *Model*: the product by these layouts, simulated tile by tile through modelled `cp.async`, shared memory, `ldmatrix`
# and `mma.sync`, on a ragged shape. *Compiled*: a real cubin for every target. On a machine with a GPU the kernels also
# run here; elsewhere the recorded run is shown.
#
# The check is of the cells above: edit one, run it, and check again. Without a GPU, no level reads the kernel's own
# coordinates, guards and accumulators.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/smem_gemm", shapes=[(200, 333, 64)], dtypes=["float16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time
#
# All three and their peers, interleaved in one run on one GPU; "ours" is the swizzled one, called without an argument.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("ampere/smem_gemm"))

# %% [markdown] tags=["lab"]
# And the prediction beside the measurement: how many times as fast as `plain` each layout is, by the sum of the clocks
# and by the medians of the recorded run.

# %% tags=["lab"]
from cookbook.measure import records


def measured_gains() -> str:
    """A table of the gains in every current record, or that there is none."""
    timed = [r for r in records.select("ampere/smem_gemm", "timed") if not records.is_stale(r)]
    rows = []
    for r in timed:
        gain = gains({v: r["peers"][v]["median_ms"] for v in VARIANTS})
        each = (f"{gains(serial)[v]:.2f}x / {gain[v]:.2f}x" for v in ("padded", "swizzled"))
        last = f"{serial['padded'] / serial['swizzled']:.3f}x / {gain['swizzled'] / gain['padded']:.3f}x"
        rows.append([r["device"], r["dtype"], "x".join(map(str, r["shape"])), *each, last])
    over = ("padded over plain", "swizzled over plain", "swizzled over padded")
    header = ["device", "dtype", "M x N x K", *(f"{what}: predicted / measured" for what in over)]
    return table(header, rows, right=3) if rows else "*Not measured yet.*"


Markdown(measured_gains())

# %% [markdown] tags=["lab"]
# On an H200 the sum of the clocks comes close to all three gains. So the counting holds, also for the copies of padded
# rows, of which the banks alone would have said nothing. (It is the sum with NVIDIA's rate. With the rate that
# `mma.sync` was measured to reach, which [the next page](ldmatrix_gemm.ipynb) takes, it would be too small: part of the
# loads is hidden after all.)
#
# ## Conclusion
#
# Count the wavefronts, add the tensor cores' clocks, and you know before you write the kernel whether a layout is
# worth your time: with plain rows shared memory sets the pace, and the tensor cores mostly wait. Padding removes the
# conflicts of `ldmatrix`, takes memory, and makes the copies slower, which the banks alone would not have told. The
# swizzle costs nothing; and it is the very layout that TMA writes and `wgmma` reads, while padding is for `ldmatrix`
# alone.
#
# What is left is not conflicts but waiting: after each barrier a warp loads first and multiplies then.
#
# Next: [a GEMM that loads the next fragments while it multiplies](ldmatrix_gemm.ipynb).
#
# To use it: `cookbook copy ampere/smem_gemm my_gemm.py`, then `from my_gemm import matmul`.
