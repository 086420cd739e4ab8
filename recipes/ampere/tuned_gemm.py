# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "The tuned GEMM before Hopper: warp tiles and a heuristic"
#     claim: >-
#       A larger warp tile reads fewer bytes from shared memory for the same work; a written heuristic chooses smaller
#       tiles where large ones fill the SMs badly.
#     track: ampere
#     order: 50
#     tuned: true
#     builds_on: ampere/pipelined_gemm
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     serves: {sm_80: 1024, sm_86: 512, sm_90: 1180, sm_120: 475}
#     dtypes: [bfloat16, float16]
#     path: cp.async -> swizzled shared memory -> ldmatrix, k-blocks ahead or in place -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, fragments of mma.m16n8k16", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"}
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "CUTLASS issue 1017, thread-block swizzling", url: "https://github.com/NVIDIA/cutlass/issues/1017"}
# ---

# %% [markdown]
# # The tuned GEMM before Hopper: warp tiles and a heuristic
#
# **Claim.** With `mma.sync` a fragment goes through shared memory once for each warp that needs it. **A larger tile for
# each warp** needs less of it, and a heuristic chooses between two tiles.

# %% tags=["lab"]
from cookbook import access, draw, lab
from cookbook.layouts import evaluate

lab.gain("ampere/tuned_gemm", (8192, 8192, 8192), over=["128x256", "256x192", "ceiling", "ampere/pipelined_gemm"])

# %% [markdown]
# [pipelined_gemm](pipelined_gemm.ipynb), on which this page builds, ends with two pipes that are both nearly full: the
# tensor cores, and the shared memory that feeds them. Three things are new here.
#
# * **A warp tile of 64 x 96** instead of 64 x 64, in a CTA tile of 256 x 192. It fills the registers: 192 accumulators
#   a thread leave no room for fragments of two k-blocks.
# * **Fragments in place.** So there is one buffer for A, and half of one for B. The next fragment overwrites each one
#   as soon as its last `mma` has been issued.
# * **A heuristic.** Larger tiles are fewer, and the last wave of tiles may leave more SMs idle than the saving gains.
#   `cost` is the heuristic, and `matmul` takes the cheapest of `VARIANTS`: this tile or that of the pages before.
#
# Each CTA computes one tile, as in the pipeline: [persistent CTAs](persistent_gemm.ipynb) gained nothing at the large
# cubes.

# %%
from dataclasses import dataclass, replace
from math import gcd
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
# The table says what one multiply-add asks of shared memory, in thousandths of an element. `ldmatrix` reads 1 / 64 + 1
# / 64 (or 1 / 96): each element of A serves a warp for as many products as its tile has columns, each of B for as many
# as it has rows. `cp.async` writes 1 / `tile_n` + 1 / `tile_m`.
#
# | variant | eight warps of | read | written | together | fragments a thread holds |
# |---|---|---|---|---|---|
# | `128x256` | 64 x 64 | 31.3 | 11.7 | 43.0 | two k-blocks: 64 registers |
# | `256x192` | 64 x 96 | 26.0 | 9.1 | 35.2 | A of one, half of B: 28 registers |
#
# The first is `loads apart` of [pipelined_gemm](pipelined_gemm.ipynb), the fastest variant there. In each k-tile it
# asks whether anything is left to load. The second has a loop of its own for the last k-tiles (`branch_free`), and asks
# for A and B in one k-block (`loads_apart=False`), for which the compiler needs a few registers less.
#
# Chips with less shared memory keep both tiles, and get fewer or shallower stages.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how a warp holds its fragments."""

    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 256  # columns of C per CTA
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four k-blocks of 16; 32 or more
    stages: int = 4  # pairs of A and B tiles: one being read, the others arriving
    warps_m: int = 2  # the warps stand in a warps_m x warps_n grid over the tile of C
    warps_n: int = 4
    b_slots: int = 0  # pieces of B, 16 columns each, that a warp holds and replaces in place; 0: all of two k-blocks
    loads_apart: bool = True  # cp.async of A in the first k-block and of B in the next; False: both in the first
    branch_free: bool = False  # the k-tiles with nothing left to load have a loop of their own
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def k_blocks(self) -> int:
        return self.tile_k // 16

    @property
    def pieces_n(self) -> int:
        """Pieces of 16 columns in the tile of a warp."""
        return self.tile_n // (16 * self.warps_n)

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


IN_PLACE = Config(b_slots=3, loads_apart=False, branch_free=True)
VARIANTS = {
    "128x256": Config(),
    "256x192": replace(IN_PLACE, tile_m=256, tile_n=192, warps_m=4, warps_n=2, swizzle_size=8),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant in the stages that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    chip, config = arch.rstrip("af"), VARIANTS[variant]
    wide = config.b_slots > 0
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):  # 99 KiB: 24 or 28 KiB a stage of half the depth
        return replace(config, tile_k=32, stages=3 if wide else 4)
    if chip in ("sm_80", "sm_87"):  # 163 KiB: 28 KiB a stage of half the depth, 48 a whole one
        return replace(config, tile_k=32, stages=5) if wide else replace(config, stages=3)
    if (
        wide and not chip.startswith("sm_9") and chip
    ):  # 227 KiB, but for Blackwell a deep stage takes too many registers
        return replace(config, tile_k=32, stages=8)
    return config  # 227 KiB: 48 or 56 KiB a stage


# %% [markdown]
# ## The heuristic
#
# A CTA has an SM to itself, so tiles are computed in **waves**, and the number of waves counts: 512 tiles on 132 SMs
# are four waves, as 528 would be. A wave takes the clocks of its tile's multiply-adds. Two more times come on top, and
# nothing hides them: until the first tiles have arrived (`START`), and until C has gone through shared memory and out,
# 16 elements a clock.
#
# By these clocks alone the heuristic would mostly choose the smaller tile. But an `mma` seldom starts in the first
# possible clock: a warp waits for its fragments, and for pipes that other warps use. And at its power limit a chip
# lowers its clock for every byte that it moves.
#
# Both grow with what goes through shared memory, and `THROUGH` covers them together: an element through shared memory
# costs as much as 10 multiply-adds. It is the only fitted figure here, fitted to times of these two tiles on an H200.
# The cells at the end show how good it is.


# %%
RATE = 1357  # multiply-adds of an SM in a clock by mma.sync: foundations/tensor_core_ceiling, on an H200
START = 800  # clocks until the first k-tile is there: put, as in ampere/ldmatrix_gemm
THROUGH = 10  # multiply-adds that an element costs on its way through shared memory, in or out


def through_smem(config: Config) -> float:
    """Elements that go into or out of shared memory for one multiply-add."""
    c = config
    read = c.warps_m / c.tile_m + c.warps_n / c.tile_n  # by ldmatrix: 1 over the sides of a warp's tile
    return read + 1 / c.tile_m + 1 / c.tile_n  # and written by cp.async


def waves(config: Config, m: int, n: int, sms: int) -> int:
    """How many tiles the busiest SM has to compute."""
    return -(-(-(-m // config.tile_m) * -(-n // config.tile_n)) // sms)


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """What C (m, n) over k costs on `sms` SMs: clocks, made dearer by what goes through shared memory meanwhile."""
    tile = config.tile_m * config.tile_n
    multiply = tile * -(-k // config.tile_k) * config.tile_k / RATE
    each = multiply * (1 + THROUGH * through_smem(config)) + START + tile / 16
    return waves(config, m, n, sms) * each


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## The layout and the copies
#
# As in the pages before: rows of 128 bytes (64 where stages are shallower), swizzled, so that neither `cp.async` nor
# `ldmatrix` has a conflict.
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
    per_row = gcd(row // vec, threads)  # 192 columns are 24 pieces: 8 threads go over them three times
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
# As in [pipelined_gemm](pipelined_gemm.ipynb), with a whole operand in one k-block.


# %% tags=["folded"]
class Load(NamedTuple):
    """One thread's part in loading an operand."""

    copy: cute.TiledCopy
    src: cute.Tensor  # (CPY, CPY_M, CPY_K, k) global memory
    dst: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE) shared memory
    coords: cute.Tensor  # (CPY, CPY_M, CPY_K, k) coordinates (row, k) in the matrix
    rows: cutlass.Int32  # of the matrix, from the tile's first one on
    first: cutlass.Int32  # this thread's first row in the tile
    rows_apart: int  # from one of its pieces to the next


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
    start = index * tile[0]
    return Load(copy, src, dst, coords, mX.shape[0] - start, coords[0, 0, 0, 0][0] - start, tile[0] // dst.shape[1])


@cute.jit
def rows_inside(load):
    """Which pieces are rows of the matrix: (1, CPY_M, CPY_K). Asked each time, of one number for A and B and of
    limits that all threads share: a register for each row would be too many."""
    same_for_all_k = cute.make_layout((1, *load.dst.shape[1:3]), stride=(0, 1, 0))
    inside = cute.make_rmem_tensor(same_for_all_k, cutlass.Boolean)
    for m in cutlass.range_constexpr(load.dst.shape[1]):
        inside[0, m, 0] = load.first < load.rows - m * load.rows_apart
    return inside


@cute.jit
def load_first_tile(load):
    """k-tile 0 into stage 0: what lies before the matrix becomes zero."""
    src, dst = load.src[None, None, None, 0], load.dst[None, None, None, 0]
    inside = rows_inside(load)
    for k in cutlass.range_constexpr(dst.shape[2]):
        if load.coords[0, 0, k, 0][1] >= 0:
            cute.copy(load.copy, src[None, None, k], dst[None, None, k], pred=inside[None, None, k])
        else:
            dst[None, None, k].fill(0)


@cute.jit
def load_tile(load, k_tile, stage):
    """k-tile `k_tile`, wholly inside K, into `stage`."""
    src, dst, inside = load.src[None, None, None, k_tile], load.dst[None, None, None, stage], rows_inside(load)
    for m in cutlass.range_constexpr(dst.shape[1]):
        cute.copy(load.copy, src[None, m, None], dst[None, m, None], pred=inside[None, m, None])


@cute.jit
def ask_for_tile(k: cutlass.Constexpr, load_a, load_b, k_tile, write, config: cutlass.Constexpr):
    """What k-block `k` loads of a k-tile. None belongs to the last one, in which the loop waits for the next tile."""
    of_b = min(1, config.k_blocks - 2) if config.loads_apart else 0
    if cutlass.const_expr(k == 0):
        load_tile(load_a, k_tile, write)
    if cutlass.const_expr(k == of_b):
        load_tile(load_b, k_tile, write)


# %% [markdown]
# ## A warp's fragments
#
# A warp's tile of B is a row of *fragments*, 16 columns by one k-block each; one `ldmatrix.x4` fetches one. A's tile is
# a column of them. `128x256` fetches all fragments of a k-block into one buffer while it multiplies those in the other.
#
# `256x192` works through B fragment by fragment. Fragment *j* has four pairs of `mma`; then fragment *j + 3* comes into
# the same registers. With three such places an `ldmatrix` has the time of two fragments, 16 `mma`, to arrive. All
# fragments of A are needed until the last fragment of B; then each is replaced as soon as it has been used.
#
# The order is a serpentine: down A with one fragment of B, up with the next. So two `mma` in a row share a fragment of
# A or of B, and the register file need not read it again.
#
# ### Addresses by hand
#
# No register is left for addresses either. CuTe computes the address of each `ldmatrix` from the coordinates: it adds,
# then XORs bits 7 to 9 into bits 4 to 6. But a thread's rows are all the same modulo 8, so those three bits are the
# same for everything that the thread reads. *One* address for A and one for B are enough: that of the thread's first
# row in stage 0, with the swizzle already applied.
#
# A k-block is 32 bytes further along K, which flips bits 5 and 6 only: **XOR with 32 k**. Further fragments and stages
# lie whole periods of the swizzle away, so plain addition finds them. The offset of a fragment is a constant, which
# `ldmatrix` adds itself.


# %%
class Operand(NamedTuple):
    """A warp's way from shared memory to the tensor cores, for A or B."""

    copy: cute.TiledCopy  # ldmatrix
    smem: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE)
    into: cute.Tensor  # (CPY, CPY_M, buffers): registers as ldmatrix fills them
    regs: cute.Tensor  # (MMA, MMA_M, buffers): the same registers as mma takes them
    address: cutlass.Int32  # of the thread's first row in stage 0, swizzled
    stage_bytes: int
    piece_bytes: int  # from one piece to the next


@cute.jit
def make_operand(copy, sX, regs, tidx, config: cutlass.Constexpr):
    """This thread's part of an operand. sX: (rows, K, STAGE); regs: as `mma` takes them."""
    thr = copy.get_slice(tidx)
    smem, into = thr.partition_S(sX), thr.retile(regs)
    first, chunks = smem.iterator.toint(), 0x70 if config.tile_k % 64 == 0 else 0x30  # 8 or 4 chunks in a row
    address = first ^ ((first >> 3) & chunks)
    stage_bytes = 2 * cute.size(sX, mode=[0]) * config.tile_k
    piece_bytes = stage_bytes // cute.size(smem, mode=[1])
    return Operand(copy, smem, into, regs, address, stage_bytes, piece_bytes)


@cute.jit
def fetch_block(x, stage, k: cutlass.Constexpr, buffer: cutlass.Constexpr):
    """All pieces of a k-block."""
    cute.copy(x.copy, x.smem[None, None, k, stage], x.into[None, None, buffer])


@cute.jit
def fetch_piece(x, stage, k: cutlass.Constexpr, piece: cutlass.Constexpr, slot: cutlass.Constexpr):
    """One ldmatrix: a piece of k-block `k` into slot `slot` of the only buffer."""
    address = ((x.address + stage * x.stage_bytes) ^ (32 * k)) + piece * x.piece_bytes
    row = cute.make_ptr(x.smem.element_type, address, cute.AddressSpace.smem, assumed_align=16)
    row = cute.make_tensor(row, cute.make_layout(((8, 1),), stride=((1, 0),)))  # 16 bytes, as ldmatrix takes them
    cute.copy(x.copy, row, x.into[None, slot, 0])


# %% [markdown] tags=["lab"]
# The tile of A of the large variant, and one `ldmatrix` of a warp:

# %% tags=["lab"]
WIDE = VARIANTS["256x192"]
layouts, copies = (evaluate(fn, cutlass.BFloat16, WIDE) for fn in (smem_layouts, tiled_copies))
draw.swizzle_view(layouts.a)

# %% tags=["lab"]
every_ldmatrix = access.of_copy(layouts.a, copies.s2r_a, "src", "ldmatrix", warp=0)
draw.access_view(every_ldmatrix[0])

# %% [markdown] tags=["lab"]
# Does this hold for every thread? The address of k-block *k* must be that of k-block 0 with 32 *k* XORed into it, and
# fragments must lie whole periods of the swizzle apart. The cell compares every element of a tile:

# %% tags=["lab"]
for name, layout, warps in (("A", layouts.a, WIDE.warps_m), ("B", layouts.b, WIDE.warps_n)):
    at = layout.byte_offsets()  # (rows, K, STAGE)
    for k in range(WIDE.k_blocks):
        assert (at[:, 16 * k : 16 * k + 16] == at[:, :16] ^ (32 * k)).all()
    step, stage_bytes = 16 * warps, 2 * at.shape[0] * WIDE.tile_k
    assert (at[step:] - at[:-step] == 2 * step * WIDE.tile_k).all()
    assert (at[:, :, 1:] - at[:, :, :-1] == stage_bytes).all()
    print(
        f"{name}: {WIDE.k_blocks} k-blocks, {at.shape[0] // step} pieces, {WIDE.stages} stages: all as computed by hand"
    )

# %% [markdown]
# ## The main loop
#
# `next_stage` is the only place where warps wait for each other. `128x256` goes there before the last k-block, in which
# it fetches the first fragments of the next k-tile. `256x192` goes there after four of the six fragments of the last
# k-block, when the first fragment of the next k-tile is due. It then still has two fragments to multiply.


# %%
@cute.jit
def next_stage(read, config: cutlass.Constexpr):
    """Wait until the next k-tile has arrived, everybody's part of it, and the oldest stage is free."""
    cute.arch.cp_async_wait_group(config.stages - 2)
    cute.arch.sync_threads()
    return read + 1 if read + 1 < config.stages else cutlass.Int32(0)


def single(fragment, rank: int):
    """One mma's fragment, (MMA,), with the modes that `cute.gemm` goes over: (MMA, 1) or (MMA, 1, 1)."""
    return cute.make_tensor(fragment.iterator, cute.append_ones(fragment.layout, up_to_rank=rank))


@cute.jit
def multiply_in_place(mma, acc, a, b, read, k: cutlass.Constexpr, config: cutlass.Constexpr):
    """One k-block, each fragment replaced by a later one after its last mma. Returns the stage now being read."""
    pieces_m, pieces_n, slots = cute.size(a.into, mode=[1]), config.pieces_n, config.b_slots
    last_block = k == config.k_blocks - 1
    for j in cutlass.range_constexpr(pieces_n):
        slot, (further, later) = (k * pieces_n + j) % slots, divmod(j + slots, pieces_n)
        for i in cutlass.range_constexpr(pieces_m):
            m = i if j % 2 == 0 else pieces_m - 1 - i
            for h in cutlass.range_constexpr(2):  # the halves of a piece, 8 columns each
                half = h if i % 2 == 0 else 1 - h
                c = single(acc[None, m, 2 * j + half], 3)
                cute.gemm(mma, c, single(a.regs[None, m, 0], 2), single(b.regs[None, 2 * slot + half, 0], 2), c)
            if cutlass.const_expr(j == pieces_n - 1):
                fetch_piece(a, read, (k + 1) % config.k_blocks, m, m)
        if cutlass.const_expr(last_block and j == pieces_n - slots):
            read = next_stage(read, config)
        fetch_piece(b, read, (k + further) % config.k_blocks, later, slot)
    return read


@cute.jit
def mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config: cutlass.Constexpr):
    """Multiply all k-tiles into `acc`; the first `stages - 1` have been asked for."""
    stages, k_blocks, in_place = config.stages, config.k_blocks, config.b_slots > 0
    read, write = cutlass.Int32(0), cutlass.Int32(stages - 1)
    cute.arch.cp_async_wait_group(stages - 2)
    cute.arch.sync_threads()
    fetch_block(a, 0, 0, 0)
    if cutlass.const_expr(in_place):
        for j in cutlass.range_constexpr(config.b_slots):
            fetch_piece(b, 0, 0, j, j)
    else:
        fetch_block(b, 0, 0, 0)
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    if cutlass.const_expr(config.branch_free):
        loops = ((0, still_loading, True), (still_loading, k_tiles, False))
    else:
        loops = ((0, k_tiles, True),)
    for first, last, loading in loops:
        for k_tile in cutlass.range(first, last, unroll=1):
            for k in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(not in_place):
                    if cutlass.const_expr(k == k_blocks - 1):
                        read = next_stage(read, config)
                    fetch_block(a, read, (k + 1) % k_blocks, (k + 1) % 2)
                    fetch_block(b, read, (k + 1) % k_blocks, (k + 1) % 2)
                if cutlass.const_expr(loading):
                    if cutlass.const_expr(config.branch_free) or k_tile < still_loading:
                        ask_for_tile(k, load_a, load_b, k_tile + stages - 1, write, config)
                if cutlass.const_expr(k == min(1, k_blocks - 2)):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one
                    write = write + 1 if write + 1 < stages else cutlass.Int32(0)
                if cutlass.const_expr(in_place):
                    read = multiply_in_place(mma, acc, a, b, read, k, config)
                else:
                    cute.gemm(mma, acc, a.regs[None, None, k % 2], b.regs[None, None, k % 2], acc)


# %% [markdown]
# ## The epilogue
#
# As [before](ldmatrix_gemm.ipynb): C goes through a swizzled tile where A and B were, and out in rows.


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
            load_tile(load_a, stage, stage)
            load_tile(load_b, stage, stage)
        cute.arch.cp_async_commit_group()

    columns, buffers = 16 * config.warps_n * (config.b_slots or config.pieces_n), 1 if config.b_slots else 2
    rA = cute.make_rmem_tensor(mma.partition_shape_A((config.tile_m, 16 * buffers)), dtype)  # (MMA, MMA_M, buffers)
    rB = cute.make_rmem_tensor(mma.partition_shape_B((columns, 16 * buffers)), dtype)  # (MMA, MMA_N, buffers)
    a = make_operand(copies.s2r_a, sA, rA, tidx, config)
    b = make_operand(copies.s2r_b, sB, rB, tidx, config)
    tile = (config.tile_m, config.tile_n)
    gC = cute.local_tile(mC, tile, (tile_m, tile_n))
    acc = cute.make_rmem_tensor(mma.get_slice(tidx).partition_C(gC).shape, cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config)
    tile_m, tile_n = tile_of_cta(mC.shape, config)  # once more, rather than in registers all the while
    gC = cute.local_tile(mC, tile, (tile_m, tile_n))
    cC = cute.local_tile(cute.make_identity_tensor(mC.shape), tile, (tile_m, tile_n))
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
    variant = choose(*call.mnk, call.sms) if call.variant == DEFAULT else call.variant
    return (config_for(call.arch, variant), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", variants=(DEFAULT, *VARIANTS), whole=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K. The bits are the same.

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
# First: how busy is shared memory while `mma.sync` runs as fast as it can? It serves 128 bytes a clock and SM. The rest
# is room for everything that does not go as planned.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.measure import records
from cookbook.publish.pages import table

SMS = 132  # of an H200


def bytes_a_clock(config: Config) -> float:
    """Through shared memory, at RATE."""
    return 2 * through_smem(config) * RATE


bars = [
    draw.Bar("at the ceiling of mma.sync", name, bytes_a_clock(config), note=f"{bytes_a_clock(config) / 128:.0%} busy")
    for name, config in VARIANTS.items()
]
draw.bar_chart(bars, "bytes a clock", "Shared memory, computed", None, meaning="it can serve 128")

# %% [markdown] tags=["lab"]
# Second: how much of the work of the SMs is useful? That is the products of C over those of all tiles of all waves.
# Here the larger tile loses at some sizes and not at others.

# %% tags=["lab"]
SHAPES = [(n, n, n) for n in (1024, 2048, 4096, 6144, 8192, 16384)] + [(4096, 14336, 4096), (16384, 4096, 4096)]


def efficiency(config: Config, m: int, n: int, sms: int = SMS) -> float:
    """The part of the SMs' time that goes into elements of C."""
    return m * n / (waves(config, m, n, sms) * sms * config.tile_m * config.tile_n)


def predicted(shape: tuple[int, int, int]) -> dict[str, float]:
    """The cost of each variant, the cheapest one 1."""
    costs = {name: cost(config, *shape, sms=SMS) for name, config in VARIANTS.items()}
    return {name: value / min(costs.values()) for name, value in costs.items()}


rows = []
for shape in SHAPES:
    each = [f"{waves(c, *shape[:2], SMS)}, {efficiency(c, *shape[:2]):.0%}" for c in VARIANTS.values()]
    rows.append([" x ".join(map(str, shape)), *each, *(f"{x:.3f}" for x in predicted(shape).values())])
    rows[-1].append(choose(*shape, sms=SMS))
header = ["M x N x K", *(f"{v}: waves" for v in VARIANTS), *(f"{v}: cost" for v in VARIANTS), "chosen"]
Markdown(table(header, rows))

# %% [markdown] tags=["lab"]
# The rate in the heuristic is a measured one. What [the tensor-core ceilings](../foundations/tensor_core_ceiling.ipynb)
# has recorded:

# %% tags=["lab"]
STUDY, LOOP = "foundations/tensor_core_ceiling", "mma.sync m16n8k16, bf16"
for r in records.read():
    if r["recipe"] == STUDY and LOOP in r["figures"].get("instructions", {}):
        per_clock = r["figures"]["instructions"][LOOP]["flops_per_clock"] / 2
        print(f"{r['device']}: {per_clock:.0f} multiply-adds a clock and SM; in the rule: {RATE}")

# %% [markdown] tags=["lab"]
# ## What we tried, and what lost
#
# Each of these was built, found correct, and timed against the others, once, on an H200; none of them is in the kernel.
# That they lost was measured. The reasons are our reading, and were not measured.
#
# * *Fragments in place for 64 x 64.* There a warp has room for two whole k-blocks, and using it is faster: replacing
#   fragments one by one ties each `ldmatrix` to its place among the `mma`, and the compiler can move it less.
# * *One barrier for each stage instead of one for the CTA* (`mbarrier`, as on Hopper). Warps may then drift apart, but
#   every thread has more to do for each stage, and that costs more than the barrier did.
# * *Warps that only load.* The others are rid of addresses and `cp.async`. But `setmaxnreg`, which takes registers from
#   those who only load, is Hopper's, and works on whole warpgroups; and a warp that loads takes issue slots like any
#   other.
# * *Two CTAs an SM, of half the size.* One computes while the other stores. The tile of a CTA is what saves traffic
#   with L2, and halving it costs more than the overlap brings.
#
# What helped besides the warp tile: half of B's fragments instead of all of them (registers are what the large tile is
# short of), and a raster of half as many tiles, for its tiles are twice as high.

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at every variant.
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/tuned_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("ampere/tuned_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# "Ours" is `matmul` without an argument: what the heuristic chose. Then each variant, called by name, and the peers,
# all interleaved in one run on one GPU.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("ampere/tuned_gemm"))

# %% [markdown] tags=["lab"]
# On an H200 ours reaches about two thirds of the speed of `torch.matmul` at the large sizes. (Not at the size with odd
# rows and columns, where `torch.matmul` is much slower.) No kernel with `mma.sync` would catch up: `torch.matmul` is
# faster than the ceiling of `mma.sync`, so it multiplies by `wgmma`. Compare ours with the ceiling. At the small cubes
# and with few rows most SMs have no tile, and ours is at about a third of `torch.matmul`.
#
# How good is the heuristic? For each record the table has the variants' times relative to the faster one, predicted and
# measured; how much the choice lost; and the difference between two times of the kernel that was chosen.

# %% tags=["lab"]


def rule_beside_times() -> str:
    """Every current record of all variants, or that there is none."""
    rows = []
    for r in records.of_one_gpu("ampere/tuned_gemm", "timed"):
        if not VARIANTS.keys() <= r["peers"].keys():
            continue
        shape = tuple(r["shape"])
        found = {name: r["peers"][name]["median_ms"] for name in VARIANTS}
        best, said, chosen = min(found.values()), predicted(shape), choose(*shape, sms=SMS)
        each = [f"{said[name]:.3f} / {found[name] / best:.3f}" for name in VARIANTS]
        lost, twice = found[chosen] / best - 1, abs(r["figures"]["median_ms"] / found[chosen] - 1)
        of = [r["device"], " x ".join(map(str, shape)) + f", {r['dtype']}"]
        rows.append([*of, *each, chosen, f"{lost:.1%}", f"{twice:.1%}"])
    header = ["device", "M x N x K", *(f"{name}: predicted / measured" for name in VARIANTS), "chosen", "lost"]
    header.append("one kernel twice, apart")
    return table(header, rows, right=2) if rows else "*Not measured yet.*"


Markdown(rule_beside_times())

# %% [markdown] tags=["lab"]
# The choice loses no more than the spread of one kernel. How much faster one tile is than the other, the heuristic
# predicts to some percent only, now too much and now too little.
#
# ## What limits it
#
# Each variant and peer runs alone, again and again, while the GPU reports its clock and its power. A rate is *FLOP a
# clock and SM* times the clock. So these two columns say which of the two is missing to the ceiling.
#
# A rate is also power divided by *J for each TFLOP*. Where the GPU lowers its clock to keep its power limit, the kernel
# that needs fewer joules is faster, even if it takes more clocks. The second table is ncu's, of one launch of each
# variant.

# %% tags=["lab"]
from cookbook.publish.pages import limits_table

Markdown(limits_table("ampere/tuned_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# In the second table the tensor pipe is busy most of the time. Warps wait mostly for a fixed time after an instruction
# (*wait*) and for the tensor pipe (*math pipe throttle*), then for the barrier. Shared memory is among the four largest
# waits of neither tile. We read the first as the price of operands in registers: three of them for every `mma`. The
# large tile does no more in a clock than the small one. It needs fewer joules, so its clock stays higher.
#
# So power is the limit, as the first table shows: joules for each product, and a clock that falls until the power limit
# is kept. There a removed wait gains little: with more to do in each clock, the clock falls further. Removed work is
# all gain. The ceiling is the same `mma.sync` with nothing around it. The additional joules of this kernel go into the
# rest of the kernel, and into a chip that draws power while its tensor cores wait.
#
# `cp.async` takes most of them. We timed copies of this kernel with one part removed, so that the product is wrong.
# Without its loads the kernel came much nearer to the ceiling than without `ldmatrix`; without the barrier it hardly
# gained. The tile decides how much there is to load, and the registers decide the tile.
#
# So what gains more is another instruction. TMA brings the same bytes more cheaply: [the GEMM for GeForce
# Blackwell](../blackwell/geforce_gemm.ipynb), which also runs on a Hopper. And `wgmma` takes its operands from shared
# memory, one issue for 64 rows: [the tuned GEMM of Hopper](../hopper/tuned_gemm.ipynb).
#
# Not solved here: products whose tiles do not fill a wave. They need split-K. The first rows of the table of times are
# such products.
#
# Next: [8-bit floats](fp8_gemm.ipynb) in these tiles, or [tiles by TMA](../hopper/tma_copy.ipynb) on Hopper, where
# no thread computes an address any more.
#
# To use it: `cookbook copy ampere/tuned_gemm my_gemm.py`, then `from my_gemm import matmul`.
