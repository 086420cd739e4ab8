# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "A pipelined GEMM: stages and register double buffering"
#     claim: >-
#       Each step of a GEMM's pipeline is one parameter, so its gain can be predicted from clocks and then measured.
#     track: ampere
#     order: 30
#     builds_on: ampere/ldmatrix_gemm
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async, 2 to 5 stages -> swizzled shared memory -> ldmatrix, 1 or 2 buffers -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
#     sources:
#       - {title: "PTX ISA, cp.async.wait_group", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-group"}
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "CuTe, a GEMM tutorial", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0x_gemm_tutorial.html"}
# ---

# %% [markdown]
# # A pipelined GEMM: stages and register double buffering
#
# **Claim.** [The GEMM of the page before](ldmatrix_gemm.ipynb) does several things at the same time. Here each of them
# is a parameter. You can take them away one by one and see what each brings:
#
# | step | parameter | what it hides |
# |---|---|---|
# | 2, 3, 4 stages | `stages` | the time a tile takes from global memory |
# | fragments ahead | `register_buffers` | the time a fragment takes from shared memory, above all after a barrier |
# | loads apart | `loads` | the wait of `ldmatrix` behind a burst of `cp.async` in the same memory pipe |
# | no branch | `branch_free` | nothing: it spares every k-tile the question whether anything is left to load |

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("ampere/pipelined_gemm", (4096, 4096, 4096), over=["2 stages", "3 stages", "4 stages", "fragments ahead"])

# %% [markdown]
# One more variant, `loads spread`, cuts the burst of loads smaller still. `3 stages` is much like the simple loop of
# [the first page](smem_gemm.ipynb); `no branch` does what the page before does. Layouts, copies and epilogue are
# unchanged. Every variant gives the same bits. The cells below predict each step before they show what was measured.

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
# ## The parameters
#
# The tile is that of the page before: 128 x 256, eight warps of 64 x 64. Four stages of it are 192 KiB. Chips with less
# shared memory get a narrower tile, so that every variant fits on every one of them.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and the order of what it does."""

    stages: int = 4  # pairs of A and B tiles, 2 to 5: one being read, the others arriving
    register_buffers: int = 2  # k-blocks of fragments, 1 or 2: with 2, one is multiplied while the next arrives
    loads: str = "apart"  # cp.async of a tile: "together" in one k-block, A and B "apart" in two, or "spread" over all
    branch_free: bool = False  # the k-tiles with nothing left to load have a loop of their own
    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 256  # columns of C per CTA
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four k-blocks of 16; 32 or more
    warps_m: int = 2  # the warps stand in a warps_m x warps_n grid over the tile of C
    warps_n: int = 4
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def k_blocks(self) -> int:
        return self.tile_k // 16

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


SIMPLE = Config(stages=2, register_buffers=1, loads="together")
VARIANTS = {
    "2 stages": SIMPLE,
    "3 stages": replace(SIMPLE, stages=3),
    "4 stages": replace(SIMPLE, stages=4),
    "fragments ahead": replace(SIMPLE, stages=4, register_buffers=2),
    "loads apart": Config(),
    "no branch": Config(branch_free=True),
    "loads spread": Config(loads="spread", branch_free=True),
}
DEFAULT = "loads apart"  # the fastest of them; the two after it are steps that were tried
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant in the sizes that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    chip, config = arch.rstrip("af"), VARIANTS[variant]
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):
        return replace(config, tile_n=64, warps_m=4, warps_n=2)  # 24 KiB a stage
    return replace(config, tile_n=128, warps_n=2) if chip in ("sm_80", "sm_87") else config  # 32 KiB a stage


# %% [markdown] tags=["lab"]
# **The stages.** In these pictures a tile takes as long to arrive as two tiles take to multiply. A load begins the
# moment its stage is free. Two stages keep the tensor cores waiting; four do not. (Our threads load and multiply
# alternately, so they ask for a tile only after they have waited for the one before. With two stages they wait even
# longer.) The times are chosen to show the mechanism, not measured.

# %% tags=["lab"]
draw.pipeline(stages=2, k_tiles=8, load_time=2, title="2 stages: the tensor cores wait (chosen time units)")

# %% tags=["lab"]
draw.pipeline(stages=4, k_tiles=8, load_time=2, title="4 stages: they wait for the first tile only (chosen time units)")

# %% [markdown] tags=["lab"]
# More stages than hide the load bring nothing, and each costs shared memory. The same times, for one stage to six:

# %% tags=["lab"]
draw.stages_chart(k_tiles=8, load_time=2, math_time=1)

# %% [markdown]
# ## The layout and the copies
#
# As they were: rows of 128 bytes, swizzled, so that neither `cp.async` nor `ldmatrix` has a conflict.


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
# Unchanged, too: no thread reads rows outside the matrix, and the k-tiles *end* where K ends. So only the first k-tile
# can begin outside. It is loaded once, in the prologue before the loop.
#
# New is the *order*. A thread's part of a tile is a few chunks of 16 bytes, one `cp.async` each. `order_of_loads` says
# which of them the thread issues in which k-block. None belongs to the last k-block: with fragments ahead the loop
# waits there for the next k-tile. It counts groups, so the group of this k-tile must be closed before.


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
def load_pieces(load, pieces: cutlass.Constexpr, k_tile, stage):
    """These pieces of k-tile `k_tile`, wholly inside K, into `stage`."""
    src, dst = load.src[None, None, None, k_tile], load.dst[None, None, None, stage]
    for m in cutlass.range_constexpr(pieces[0], pieces[1]):
        cute.copy(load.copy, src[None, m, None], dst[None, m, None], pred=load.inside[None, m, None])


def order_of_loads(pieces_a: int, pieces_b: int, config: Config) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """For each k-block but the last, the pieces of A and of B, (first, end), that a thread asks for in it."""
    blocks, both = config.k_blocks - 1, pieces_a + pieces_b
    ends = {  # after each k-block, counted through A and then through B
        "together": [both] * blocks,
        "apart": [pieces_a if k == 0 and blocks > 1 else both for k in range(blocks)],
        "spread": [both * (k + 1) // blocks for k in range(blocks)],
    }[config.loads]
    order = []
    for first, end in zip([0, *ends], ends, strict=False):
        of_a = (min(first, pieces_a), min(end, pieces_a))
        order.append((of_a, (max(first, pieces_a) - pieces_a, max(end, pieces_a) - pieces_a)))
    return order


# %% [markdown] tags=["lab"]
# A thread has four `cp.async` of A and eight of B for each k-tile. Which of them it issues in which k-block:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.layouts import evaluate
from cookbook.publish.pages import table


def pieces(config: Config) -> tuple[int, int]:
    """How many cp.async of A and of B a thread has for a k-tile."""
    copies = evaluate(tiled_copies, cutlass.Float16, config)
    return config.tile_m // copies.g2s_a.tiler_mn[0], config.tile_n // copies.g2s_b.tiler_mn[0]


rows = []
for loads in ("together", "apart", "spread"):
    order = order_of_loads(*pieces(CONFIG), replace(CONFIG, loads=loads))
    counts = [(a[1] - a[0], b[1] - b[0]) for a, b in order] + [(0, 0)]
    rows.append([loads, *(" + ".join(f"{n} of {x}" for n, x in zip(c, "AB", strict=True) if n) or "-" for c in counts)])
Markdown(table(["loads", *(f"k-block {k}" for k in range(CONFIG.k_blocks))], rows, right=9))

# %% [markdown]
# ## The main loop
#
# All variants are this one function. `register_buffers` says how far `ldmatrix` runs ahead of `mma`. With two buffers
# it runs one k-block ahead. A warp that leaves the barrier between two k-tiles then still has a k-block to multiply,
# while the first fragments of the next k-tile arrive. With one buffer the tensor cores wait for these fragments.
#
# *Inside* a tile the compiler sees all four k-blocks, and moves loads ahead even if we do not ask for it. Past a
# barrier it may not.
#
# `switch` is the k-block in which the loop goes on to the next tile, before the fetch that first needs it.


# %%
class Operand(NamedTuple):
    """A warp's way from shared memory to the tensor cores, for A or B."""

    copy: cute.TiledCopy  # ldmatrix
    smem: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE)
    into: cute.Tensor  # (CPY, CPY_M, buffers): registers as ldmatrix fills them
    regs: cute.Tensor  # (MMA, MMA_M, buffers): the same registers as mma takes them


def make_operand(copy, sX, regs, tidx) -> Operand:
    """This thread's part of an operand. sX: (rows, K, STAGE); regs: as `mma` takes them."""
    thr = copy.get_slice(tidx)
    return Operand(copy, thr.partition_S(sX), thr.retile(regs), regs)


@cute.jit
def fetch_block(x, stage, k: cutlass.Constexpr, buffer: cutlass.Constexpr):
    """The fragments of k-block `k`."""
    cute.copy(x.copy, x.smem[None, None, k, stage], x.into[None, None, buffer])


@cute.jit
def mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config: cutlass.Constexpr):
    """Multiply all k-tiles into `acc`; the first `stages - 1` have been asked for."""
    stages, buffers, k_blocks = config.stages, config.register_buffers, config.k_blocks
    order = order_of_loads(cute.size(load_a.dst, mode=[1]), cute.size(load_b.dst, mode=[1]), config)
    ahead = buffers - 1
    switch = (k_blocks - ahead) % k_blocks
    read, write = cutlass.Int32(0 if ahead else stages - 1), cutlass.Int32(stages - 1)
    if cutlass.const_expr(ahead):  # the first k-block of all
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()
        fetch_block(a, read, 0, 0)
        fetch_block(b, read, 0, 0)
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    if cutlass.const_expr(config.branch_free):
        loops = ((0, still_loading, True), (still_loading, k_tiles, False))
    else:
        loops = ((0, k_tiles, True),)
    for first, last, loading in loops:
        for k_tile in cutlass.range(first, last, unroll=1):
            for k in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(k == switch):
                    read = read + 1 if read + 1 < stages else cutlass.Int32(0)
                    cute.arch.cp_async_wait_group(stages - 2)  # the next tile has arrived,
                    cute.arch.sync_threads()  # everybody's part of it, and the oldest stage is free
                fetch_block(a, read, (k + ahead) % k_blocks, (k + ahead) % buffers)
                fetch_block(b, read, (k + ahead) % k_blocks, (k + ahead) % buffers)
                if cutlass.const_expr(loading and k < len(order)):
                    if cutlass.const_expr(config.branch_free) or k_tile < still_loading:
                        load_pieces(load_a, order[k][0], k_tile + stages - 1, write)
                        load_pieces(load_b, order[k][1], k_tile + stages - 1, write)
                if cutlass.const_expr(k == len(order) - 1):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one
                    write = write + 1 if write + 1 < stages else cutlass.Int32(0)
                cute.gemm(mma, acc, a.regs[None, None, k % buffers], b.regs[None, None, k % buffers], acc)


# %% [markdown] tags=["lab"]
# **Fragments ahead.** Inside a stage there is a second, small pipeline. A warp fetches the fragments of a k-block with
# `ldmatrix`, and multiplies them. With one set of registers it can fetch the next fragments only after it has
# multiplied these. With two sets it fetches while it multiplies. Times are chosen here, too.

# %% tags=["lab"]


def warp_lanes(ahead: bool, k_blocks: int = 4, fetch: int = 2, multiply: int = 3) -> dict[str, list[draw.Span]]:
    """The lanes of one warp: its fetches, and its multiplications."""
    fetched, multiplied = [], []
    fetch_done = busy_until = 0
    for block in range(k_blocks):
        start = fetch_done if ahead else busy_until  # the registers of two k-blocks, or of one
        if ahead and block >= 2:
            start = max(start, multiplied[block - 2].end)
        fetch_done = start + fetch
        fetched.append(draw.Span(start, fetch_done, f"{block}", "ldmatrix"))
        begin = max(fetch_done, busy_until)
        busy_until = begin + multiply
        multiplied.append(draw.Span(begin, busy_until, f"{block}", "mma"))
    return {"ldmatrix": fetched, "mma": multiplied}


lanes = {f"one set: {lane}": spans for lane, spans in warp_lanes(ahead=False).items()} | {"": []}
lanes |= {f"two sets: {lane}": spans for lane, spans in warp_lanes(ahead=True).items()}
draw.lanes(
    lanes, "Four k-blocks of one warp (chosen time units)", unit="units", note="gaps: the lane has nothing to do"
)

# %% [markdown]
# ## The epilogue
#
# As [on the page before](ldmatrix_gemm.ipynb): C goes through a swizzled tile where A and B were, and out in rows.


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

    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile_m, tidx)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile_n, tidx)
    k_tiles = cute.size(load_a.src, mode=[3])
    load_first_tile(load_a)
    load_first_tile(load_b)
    cute.arch.cp_async_commit_group()
    for stage in cutlass.range_constexpr(1, config.stages - 1):
        if stage < k_tiles:
            load_pieces(load_a, (0, cute.size(load_a.dst, mode=[1])), stage, stage)
            load_pieces(load_b, (0, cute.size(load_b.dst, mode=[1])), stage, stage)
        cute.arch.cp_async_commit_group()

    tile = (config.tile_m, config.tile_n)
    gC = cute.local_tile(mC, tile, (tile_m, tile_n))
    cC = cute.local_tile(cute.make_identity_tensor(mC.shape), tile, (tile_m, tile_n))
    thr = mma.get_slice(tidx)
    acc = cute.make_rmem_tensor(thr.partition_C(gC).shape, cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    deep = 16 * config.register_buffers  # along K: k-blocks that a thread holds
    tCrA = cute.make_rmem_tensor(mma.partition_shape_A((config.tile_m, deep)), dtype)  # (MMA, MMA_M, buffers)
    tCrB = cute.make_rmem_tensor(mma.partition_shape_B((config.tile_n, deep)), dtype)  # (MMA, MMA_N, buffers)
    a, b = make_operand(copies.s2r_a, sA, tCrA, tidx), make_operand(copies.s2r_b, sB, tCrB, tidx)
    mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config)
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
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = strides
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    # Mostly no more than one CTA has room on an SM: the compiler need not save registers for others.
    one = {"block": (config.threads, 1, 1), "min_blocks_per_mp": 1}
    kernel(mA, mB, mC, dtype, config, vec).launch(grid=(tiles, 1, 1), **one, stream=stream)


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
    return (config_for(call.arch, call.variant), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", variants=VARIANTS, whole=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: which steps of the pipeline are there. The product is the same, bit for bit.

    cp.async moves 16 bytes at a time: K is a multiple of 8, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Needs a GPU of compute capability 8.0 or later.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## What the compiler makes of it
#
# This is the main loop in the machine code for Hopper, from one barrier to the next. A line is one k-block: each dot is
# one of its 32 `mma`, L is an `ldmatrix`, C a `cp.async`.
#
# Look at the start. In `4 stages` many L follow the barrier before the first `mma`, and all eight warps wait there at
# once. In `fragments ahead` dots follow the barrier: the last k-block of a tile. Further on the two are alike, because
# the compiler moves loads ahead wherever no barrier forbids it. The C come in the groups that we asked for, a little
# later than we wrote them.

# %% tags=["lab"]
import re

from cookbook.check import compiled

SIGNS = {"HMMA": ".", "LDSM": "L", "LDGSTS": "C", "BAR": "|"}
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]+)")


def loops(sass: str) -> list[str]:
    """The signs of the instructions between each label and the branch back to it, turned to begin at the barrier."""
    lines, at, found = sass.splitlines(), {}, []
    for number, line in enumerate(lines):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            at[label[1]] = number
        back = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if back and back[1] in at:
            opcodes = (OPCODE.match(inside) for inside in lines[at[back[1]] : number])
            signs = "".join(SIGNS.get(opcode[1], "") for opcode in opcodes if opcode)
            found.append(signs[signs.find("|") :] + signs[: max(signs.find("|"), 0)])
    return found


def by_k_block(signs: str) -> str:
    """A line for every 32 mma."""
    return "\n".join(line.group() for line in re.finditer(r"(?:[^.]*\.){1,32}[^.]*$|(?:[^.]*\.){32}", signs))


try:
    for variant in ("4 stages", "fragments ahead", "loads apart", "loads spread"):
        sass = compiled.compile_recipe("ampere/pipelined_gemm", "sm_90a", "float16", config=VARIANTS[variant]).sass
        (loop,) = (signs for signs in loops(sass) if "C" in signs and "." in signs)
        print(f"{variant}\n{by_k_block(loop)}\n")
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## The prediction
#
# One CTA has an SM to itself. For one k-tile we count clocks of the SM. All but two figures come from this recipe's own
# layouts, copies and orders:
#
# * *Shared memory* serves a wavefront a clock: in k-block *k* those of `ldmatrix` and those of the `cp.async` that are
#   issued in it, s(k) together.
# * *The tensor cores* are busy for t clocks with a k-block. Their rate for `mma.sync` is what [the tensor-core
#   ceilings](../foundations/tensor_core_ceiling.ipynb) has recorded on a Hopper GPU; where it has recorded nothing,
#   NVIDIA's figure for the chip, which `mma.sync` does not reach.
# * Within a k-block the two overlap, and the longer one counts: **T = sum over k of max(s(k), t)**.
# * Without fragments ahead, nothing is multiplied after the barrier until the first k-block's `ldmatrix` are served:
#   **T + l**, with l their wavefronts.
# * The loop asks for a tile `stages - 1` tiles before it needs it. If a tile takes L clocks to arrive, then the tiles
#   cannot follow each other faster than **L / (stages - 1)**. The larger of this and T counts.
#
# L is the figure that we know least. Global memory answers after *some hundreds* of clocks (CUDA C++ Programming
# Guide); 800 are assumed. The bytes of a tile then come at the rate of L2: 5120 bytes a clock for the whole chip
# (NVIDIA A100 white paper; Hopper's has no figure). An SM gets its share of that.

# %% tags=["lab"]
from collections.abc import Iterator

from cookbook.check.layout import copy_wavefronts
from cookbook.measure import records

SMS, NVIDIA_RATE = 132, 2048  # of an H200; multiply-adds of an SM in a clock (NVIDIA H100 white paper)
LATENCY, L2_RATE = 800, 5120  # clocks; bytes a clock of the chip
CEILING = ("foundations/tensor_core_ceiling", "mma.sync m16n8k16, bf16")


def rates(figures: object, name: str) -> Iterator[float]:
    """The operations a clock of every entry called `name`, however deep it lies."""
    if isinstance(figures, dict):
        if "flops_per_clock" in figures.get(name, {}):
            yield figures[name]["flops_per_clock"]
        for each in figures.values():
            yield from rates(each, name)


def mma_rate() -> tuple[float, str]:
    """Multiply-adds of a Hopper SM in a clock by mma.sync, and who says so."""
    measured = [r for r in records.read() if r["recipe"] == CEILING[0] and "H200" in r["device"]]
    found = [rate / 2 for r in measured for rate in rates(r["figures"], CEILING[1])]
    return (max(found), CEILING[0]) if found else (NVIDIA_RATE, "NVIDIA's figure for the chip")


def wavefronts(config: Config, field: str) -> float:
    """Of all instructions of all warps that a copy needs for one tile."""
    layouts, copies = (evaluate(fn, cutlass.Float16, config) for fn in (smem_layouts, tiled_copies))
    counted = copy_wavefronts(field, getattr(copies, field), getattr(layouts, field[-1]))
    return sum(each * n for (each, _), n in counted.items())


def clocks(config: Config, rate: float, latency: int = LATENCY) -> float:
    """Clocks of an SM for one k-tile, by the rules above."""
    fragments = (wavefronts(config, "s2r_a") + wavefronts(config, "s2r_b")) / config.k_blocks
    of_piece = [wavefronts(config, f"g2s_{x}") / n for x, n in zip("ab", pieces(config), strict=True)]
    order = [*order_of_loads(*pieces(config), config), ((0, 0), (0, 0))]
    shared = [fragments + sum(w * (end - first) for w, (first, end) in zip(of_piece, o, strict=True)) for o in order]
    tensor = config.tile_m * config.tile_n * 16 / rate
    busy = sum(max(each, tensor) for each in shared) + (fragments if config.register_buffers == 1 else 0)
    arrival = latency + 2 * (config.tile_m + config.tile_n) * config.tile_k / (L2_RATE / SMS)
    return max(busy, arrival / (config.stages - 1))


def steps(times: dict[str, float]) -> dict[str, tuple[float, float]]:
    """How many times as fast each variant is as the one before it, and as the first."""
    names = list(times)
    return {
        name: (times[before] / times[name], times[names[0]] / times[name])
        for before, name in zip([names[0], *names], names, strict=False)
    }


rate, source = mma_rate()
predicted = {variant: clocks(config, rate) for variant, config in VARIANTS.items()}
rows = [[v, f"{predicted[v]:.0f}", *(f"{x:.2f}x" for x in gains)] for v, gains in steps(predicted).items()]
Markdown(
    f"Predicted for an H200, `mma.sync` at {rate:.0f} multiply-adds a clock and SM ({source}):\n\n"
    + table(["variant", "clocks of a k-tile", "this step", "all so far"], rows)
)

# %% [markdown] tags=["lab"]
# The order of the loads helps only where a burst of `cp.async`, and the `ldmatrix` behind it, would take longer than
# the tensor cores. A branch costs no clocks in this arithmetic, so it predicts nothing for that step.
#
# How much depends on L? The clocks of a k-tile for other latencies:

# %% tags=["lab"]
rows = [
    [str(latency), *(f"{clocks(VARIANTS[f'{stages} stages'], rate, latency):.0f}" for stages in (2, 3, 4))]
    for latency in (400, 800, 1600, 3200)
]
Markdown(table(["latency", "2 stages", "3 stages", "4 stages"], rows))

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at every variant. *Pipeline* tries the waits of the kernel in every order.
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/pipelined_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("ampere/pipelined_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# All variants and their peers, interleaved in one run on one GPU; "ours" is `loads apart`, called without an argument.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("ampere/pipelined_gemm"))

# %% [markdown] tags=["lab"]
# What each step brought, predicted and measured. "Ours" and `loads apart` are *the same kernel*, timed twice in the
# same rounds. The line above each table has the difference of the two: a step that is not larger says nothing.

# %% tags=["lab"]


def measured_steps() -> str:
    """The steps of every current record and the prediction, or that there is none."""
    parts = []
    for r in records.of_one_gpu("ampere/pipelined_gemm", "timed"):
        of_record = steps({v: r["peers"][v]["median_ms"] for v in VARIANTS})
        rows = [
            [v, *(f"{p:.2f}x / {m:.2f}x" for p, m in zip(steps(predicted)[v], of_record[v], strict=True))]
            for v in VARIANTS
        ]
        twice = abs(r["figures"]["median_ms"] / r["peers"][DEFAULT]["median_ms"] - 1)
        title = f"{r['device']}, {r['dtype']}, {'x'.join(map(str, r['shape']))}; one kernel twice: {twice:.1%} apart:"
        parts.append(
            title + "\n\n" + table(["variant", *(f"{x}: predicted / measured" for x in ("step", "all"))], rows)
        )
    return "\n\n".join(parts) or "*Not measured yet.*"


Markdown(measured_steps())

# %% [markdown] tags=["lab"]
# On an H200 more stages bring next to nothing, as predicted: two are enough here. Fragments ahead gain at both sizes.
# Loads apart gain at the smaller size; at the larger size they gain no more than the spread. Both gains are smaller
# than the clocks say.
#
# Without the branch the kernel is a little *slower* at the smaller size, which the clocks do not explain. At the larger
# size it is as fast. `loads spread` gains nothing on `no branch` at either size, though the clocks predict as much for
# it as for `loads apart`. So `loads apart` is the default of `matmul`.
#
# Two things may reduce the gains. Shared memory does not serve a k-block as evenly as a sum of maxima assumes. And a
# GPU at its power limit lowers its clock when fewer clocks are lost.
#
# ## Conclusion
#
# Each part of the pipeline hides one wait. The clocks say which waits there are before you write the part. Stages hide
# the way from global to shared memory; once a tile is in time, one more stage hides nothing. Fragments ahead hide the
# way from shared memory to the registers, across a barrier that the compiler cannot move loads over.
#
# Then the two pipes themselves remain. With `mma.sync` every fragment goes through shared memory once for each warp
# that needs it, and shared memory is busy nearly as long as the tensor cores. No order of instructions changes that. A
# larger tile for each warp does: [the tuned GEMM](tuned_gemm.ipynb). So does `wgmma`, which reads shared
# memory itself: [a GEMM with TMA and WGMMA](../hopper/tma_wgmma_gemm.ipynb).
#
# Next: [a GEMM for operands of either major](majors_gemm.ipynb), which need not lie along K. It takes the kernel of
# [ldmatrix_gemm](ldmatrix_gemm.ipynb), `no branch` here, and changes nothing in its loop.
#
# To use it: `cookbook copy ampere/pipelined_gemm my_gemm.py`, then `from my_gemm import matmul`.
