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
#     pays: {at: [8192, 8192, 8192], over: ampere/pipelined_gemm}
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
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import Operand, make_operand, tiled_mma
from cookbook.recipes.ampere.ldmatrix_gemm import Config as LdmatrixConfig
from cookbook.recipes.ampere.ldmatrix_gemm import smem_layouts
from cookbook.recipes.ampere.pipelined_gemm import (
    fetch_block,
    following,
    gemm,
    load_chunks,
    loops_over,
    wait_for_k_tile,
)
from cookbook.recipes.ampere.smem_gemm import Load, load_first_tile, partition_k_tiles, tile_of_cta
from cookbook.recipes.ampere.staged_epilogue_gemm import rounded, smem_tensors, store, tiled_copies

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
def check_slots(slots: int, k_blocks: int, fragments: int) -> None:
    """Each k-tile begins with slot 0 of B's, so a k-tile must end with the last one."""
    needed = f"a divisor of {k_blocks * fragments}, the fragments of a k-tile, and at most {fragments}"
    require(not slots or (k_blocks * fragments % slots == 0 and slots <= fragments), "b_slots", slots, needed)


@dataclass(frozen=True)
class Config(LdmatrixConfig):
    """Sizes of the kernel, in elements or counts, and how a warp holds its fragments."""

    b_slots: int = 0  # fragments of B, 16 columns each, that a warp holds and replaces in place; 0: all of two k-blocks
    loads_apart: bool = True  # cp.async of A in the first k-block and of B in the next; False: both in the first
    branch_free: bool = False  # the k-tiles with nothing left to load have a loop of their own

    def __post_init__(self):
        check_slots(self.b_slots, self.k_blocks, self.fragments_n)

    @property
    def fragments_n(self) -> int:
        """Fragments of 16 columns in the tile of a warp."""
        return self.tile_n // (16 * self.warps_n)


LARGE = Config(256, 192, warps_m=4, warps_n=2, swizzle_size=8, b_slots=3, loads_apart=False, branch_free=True)
VARIANTS = {"128x256": Config(), "256x192": LARGE}
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
    if wide and chip and not chip.startswith("sm_9"):  # Blackwell: 227 KiB, but a deep stage takes too many registers
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
START = 800  # clocks until the first k-tile is there: assumed, as in ampere/pipelined_gemm
THROUGH = 10  # multiply-adds that an element costs on its way through shared memory, in or out


def through_smem(config: Config) -> float:
    """Elements that go into or out of shared memory for one multiply-add."""
    c = config
    read = c.warps_m / c.tile_m + c.warps_n / c.tile_n  # by ldmatrix: 1 over the sides of a warp's tile
    return read + 1 / c.tile_m + 1 / c.tile_n  # and written by cp.async


def waves(config: Config, m: int, n: int, sms: int) -> int:
    """Return how many tiles the busiest SM has to compute."""
    return -(-(-(-m // config.tile_m) * -(-n // config.tile_n)) // sms)


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """Return what C (m, n) over k costs on `sms` SMs: clocks, made dearer by what goes through shared memory
    meanwhile."""
    tile = config.tile_m * config.tile_n
    multiply = tile * -(-k // config.tile_k) * config.tile_k / RATE
    each = multiply * (1 + THROUGH * through_smem(config)) + START + tile / 16
    return waves(config, m, n, sms) * each


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## Loading
#
# Layouts and copies are [those of the pages before](ldmatrix_gemm.ipynb): rows of 128 bytes (64 where stages are
# shallower), swizzled, so that neither `cp.async` nor `ldmatrix` has a conflict. A row of 192 columns of C is 24
# chunks: 8 threads go over it three times.
#
# New is what a thread keeps of its rows. The pages before keep a predicate for each; here that would be too many
# registers. So a thread keeps its first row, and asks again in each k-tile.


# %%
class RowLoad(NamedTuple):
    """One thread's part in loading an operand, with numbers in place of predicates."""

    copy: cute.TiledCopy
    src: cute.Tensor  # (CPY, CPY_M, CPY_K, k) global memory
    dst: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE) shared memory
    coords: cute.Tensor  # (CPY, CPY_M, CPY_K, k) coordinates (row, k) in the matrix
    rows: cutlass.Int32  # of the matrix, from the tile's first one on
    first: cutlass.Int32  # this thread's first row in the tile
    rows_apart: int  # from one of its chunks to the next


@cute.jit
def make_load(
    copy: cute.TiledCopy,
    mX: cute.Tensor,
    sX: cute.Tensor,
    tile: cutlass.Constexpr,
    index: cutlass.Int32,
    tidx: cutlass.Int32,
):
    """This thread's part of `tile` number `index` of the rows of mX (rows, K), for all k-tiles."""
    src, dst, coords = partition_k_tiles(copy, mX, sX, tile, index, tidx, 8)
    start = index * tile[0]
    first = coords[0, 0, 0, 0][0] - start
    return RowLoad(copy, src, dst, coords, mX.shape[0] - start, first, tile[0] // dst.shape[1])


@cute.jit
def guarded(load: RowLoad):
    """The load with its predicates: which chunks are rows of the matrix. They come from one number for A and B, and
    from limits that all threads share."""
    same_for_all_k = cute.make_layout((1, *load.dst.shape[1:3]), stride=(0, 1, 0))
    inside = cute.make_rmem_tensor(same_for_all_k, cutlass.Boolean)
    for m in cutlass.range_constexpr(load.dst.shape[1]):
        inside[0, m, 0] = load.first < load.rows - m * load.rows_apart
    return Load(load.copy, load.src, load.dst, load.coords, inside)


# %%
@cute.jit
def load_tile(load: RowLoad, k_tile: cutlass.Int32, stage: cutlass.Int32):
    """k-tile `k_tile`, wholly inside K, into `stage`."""
    load_chunks(guarded(load), (0, load.dst.shape[1]), k_tile, stage)


@cute.jit
def load_first_stages(load_a: RowLoad, load_b: RowLoad, k_tiles: cutlass.Int32, config: cutlass.Constexpr):
    """Ask for the first `stages - 1` k-tiles, a group each; an empty group too counts as one."""
    load_first_tile(guarded(load_a))
    load_first_tile(guarded(load_b))
    cute.arch.cp_async_commit_group()
    for stage in cutlass.range_constexpr(1, config.stages - 1):
        if stage < k_tiles:
            load_tile(load_a, stage, stage)
            load_tile(load_b, stage, stage)
        cute.arch.cp_async_commit_group()


@cute.jit
def ask_for_tile(
    k: cutlass.Constexpr,
    load_a: RowLoad,
    load_b: RowLoad,
    k_tile: cutlass.Int32,
    write: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Loads of a k-tile in k-block `k`. The last k-block has none: in it the loop waits for the next tile."""
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
class AddressedOperand(NamedTuple):
    """A warp's way from shared memory to the tensor cores, for A or B, with addresses computed by hand."""

    operand: Operand  # its registers have one or two k-blocks
    slots: cute.Tensor  # (8, slot): the same registers as an ldmatrix fills them, fragment by fragment
    address: cutlass.Int32  # of the thread's first row in stage 0, swizzled
    stage_bytes: int
    fragment_bytes: int  # from one fragment to the next


@cute.jit
def addressed(operand: Operand, rows: cutlass.Constexpr, step: cutlass.Constexpr, tile_k: cutlass.Constexpr):
    """An operand with a stage of `rows` x `tile_k` elements, whose fragments begin `step` rows apart."""
    first, chunks = operand.smem.iterator.toint(), 0x70 if tile_k % 64 == 0 else 0x30  # 8 or 4 chunks in a row
    slots = cute.logical_divide(cute.coalesce(operand.into), 8)
    return AddressedOperand(operand, slots, first ^ ((first >> 3) & chunks), 2 * rows * tile_k, 2 * step * tile_k)


@cute.jit
def fetch_fragment(
    x: AddressedOperand,
    stage: cutlass.Int32,
    k: cutlass.Constexpr,
    fragment: cutlass.Constexpr,
    slot: cutlass.Constexpr,
):
    """One ldmatrix: a fragment of k-block `k` into the registers of a slot."""
    address = ((x.address + stage * x.stage_bytes) ^ (32 * k)) + fragment * x.fragment_bytes
    row = cute.make_ptr(x.operand.smem.element_type, address, cute.AddressSpace.smem, assumed_align=16)
    cute.copy(x.operand.copy, cute.make_tensor(row, cute.make_layout(8)), x.slots[None, slot])


# %% [markdown] tags=["lab"]
# The tile of A of the large variant, and one `ldmatrix` of a warp: the eight lanes of each phase find eight slots.

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
        f"{name}: {WIDE.k_blocks} k-blocks, {at.shape[0] // step} fragments, {WIDE.stages} stages: as computed by hand"
    )

# %% [markdown]
# ## The main loop
#
# `wait_for_k_tile` is the only place where warps wait for each other. `128x256` goes there before the last k-block, in
# which it fetches the first fragments of the next k-tile. `256x192` goes there after four of the six fragments of the
# last k-block, when the first fragment of the next k-tile is due. It then still has two fragments to multiply.


# %%
def single(fragment: cute.Tensor, rank: int) -> cute.Tensor:
    """One mma's fragment, (MMA,), with the modes that `cute.gemm` goes over: (MMA, 1) or (MMA, 1, 1)."""
    return cute.make_tensor(fragment.iterator, cute.append_ones(fragment.layout, up_to_rank=rank))


@cute.jit
def multiply_fragment(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    fragments: tuple[cutlass.Constexpr, cutlass.Constexpr],
    slot: cutlass.Constexpr,
    backwards: cutlass.Constexpr,
):
    """Fragment m of A times fragment n of B, which is in `slot`: an mma for each half of B's, 8 columns."""
    m, n = fragments
    for h in cutlass.range_constexpr(2):
        half = 1 - h if backwards else h
        c = single(acc[None, m, 2 * n + half], 3)
        cute.gemm(mma, c, single(a[None, m, 0], 2), single(b[None, 2 * slot + half, 0], 2), c)


@cute.jit
def multiply_in_place(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: AddressedOperand,
    b: AddressedOperand,
    read: cutlass.Int32,
    k: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One k-block, each fragment replaced by a later one after its last mma. Returns the stage now being read."""
    fragments_m, fragments_n, slots = cute.size(a.slots, mode=[1]), config.fragments_n, config.b_slots
    last_block = k == config.k_blocks - 1
    for j in cutlass.range_constexpr(fragments_n):
        slot, (further, later) = (k * fragments_n + j) % slots, divmod(j + slots, fragments_n)
        for i in cutlass.range_constexpr(fragments_m):
            m = i if j % 2 == 0 else fragments_m - 1 - i  # down A, then up
            multiply_fragment(mma, acc, a.operand.regs, b.operand.regs, (m, j), slot, i % 2 == 1)
            if cutlass.const_expr(j == fragments_n - 1):
                fetch_fragment(a, read, (k + 1) % config.k_blocks, m, m)
        if cutlass.const_expr(last_block and j == fragments_n - slots):
            wait_for_k_tile(config)
            read = following(read, config)
        fetch_fragment(b, read, (k + further) % config.k_blocks, later, slot)
    return read


# %%
@cute.jit
def fetch_first(a: AddressedOperand, b: AddressedOperand, config: cutlass.Constexpr):
    """The fragments of the first k-block of all: those of A, and of B as many as a warp holds."""
    fetch_block(a.operand, 0, 0, 0)
    if cutlass.const_expr(config.b_slots > 0):
        for j in cutlass.range_constexpr(config.b_slots):
            fetch_fragment(b, 0, 0, j, j)
    else:
        fetch_block(b.operand, 0, 0, 0)


@cute.jit
def mainloop(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: AddressedOperand,
    b: AddressedOperand,
    load_a: RowLoad,
    load_b: RowLoad,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Multiply all k-tiles into `acc`; the first `stages - 1` have been asked for."""
    stages, k_blocks, in_place = config.stages, config.k_blocks, config.b_slots > 0
    read, write = cutlass.Int32(0), cutlass.Int32(stages - 1)
    rA, rB = a.operand.regs, b.operand.regs
    wait_for_k_tile(config)
    fetch_first(a, b, config)
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    for first, last, loading in loops_over(k_tiles, still_loading, config):
        for k_tile in cutlass.range(first, last, unroll=1):
            for k in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(not in_place):
                    if cutlass.const_expr(k == k_blocks - 1):
                        wait_for_k_tile(config)
                        read = following(read, config)
                    fetch_block(a.operand, read, (k + 1) % k_blocks, (k + 1) % 2)
                    fetch_block(b.operand, read, (k + 1) % k_blocks, (k + 1) % 2)
                if cutlass.const_expr(loading):
                    if cutlass.const_expr(config.branch_free) or k_tile < still_loading:
                        ask_for_tile(k, load_a, load_b, k_tile + stages - 1, write, config)
                if cutlass.const_expr(k == min(1, k_blocks - 2)):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one
                    write = following(write, config)
                if cutlass.const_expr(in_place):
                    read = multiply_in_place(mma, acc, a, b, read, k, config)
                else:
                    cute.gemm(mma, acc, rA[None, None, k % 2], rB[None, None, k % 2], acc)


# %% [markdown]
# ## The kernel
#
# Epilogue and rasterization are [imported](smem_gemm.ipynb). The tile of the CTA is computed twice, before the main
# loop and after it, rather than kept in registers all the while.


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
    """One CTA computes one tile of C."""
    tidx, _, _ = cute.arch.thread_idx()
    tile = tile_of_cta(mC.shape, config)
    layouts, copies, mma = smem_layouts(dtype, config), tiled_copies(dtype, config, vec), tiled_mma(dtype, config)
    sA, sB, sC = smem_tensors(SmemAllocator().allocate(config.smem_bytes, 1024), layouts, dtype, dtype)

    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile[0], tidx)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile[1], tidx)
    k_tiles = cute.size(load_a.src, mode=[3])
    load_first_stages(load_a, load_b, k_tiles, config)

    columns, buffers = 16 * config.warps_n * (config.b_slots or config.fragments_n), 1 if config.b_slots else 2
    rA = cute.make_rmem_tensor(mma.partition_shape_A((config.tile_m, 16 * buffers)), dtype)  # (MMA, MMA_M, buffers)
    rB = cute.make_rmem_tensor(mma.partition_shape_B((columns, 16 * buffers)), dtype)  # (MMA, MMA_N, buffers)
    a = addressed(make_operand(copies.s2r_a, sA, rA, tidx), config.tile_m, 16 * config.warps_m, config.tile_k)
    b = addressed(make_operand(copies.s2r_b, sB, rB, tidx), config.tile_n, 16 * config.warps_n, config.tile_k)
    shape = (config.tile_m, config.tile_n)
    acc = cute.make_rmem_tensor(mma.partition_shape_C(shape), cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config)
    tile = tile_of_cta(mC.shape, config)
    gC, cC = (cute.local_tile(x, shape, tile) for x in (mC, cute.make_identity_tensor(mC.shape)))  # (M, N)
    store(rounded(acc, dtype), sC, gC, cC, mC.shape, copies, tidx)


# %% [markdown]
# ## The launch
#
# Sizes and strides are run-time values: one compiled kernel serves all shapes.


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
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
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# First: how busy is shared memory while `mma.sync` runs as fast as it can? It serves 128 bytes a clock and SM. The rest
# is room for everything that does not go as planned.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import records, table

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
# Two things helped besides the warp tile. One is half of B's fragments instead of all of them: the large tile is short
# of registers. The other is groups of half as many rows of tiles: its tiles are twice as high.

# %% [markdown] tags=["lab"]
# ## Check

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/tuned_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("ampere/tuned_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# "Ours" is `matmul` without an argument: what the heuristic chose. Then each variant, called by name, and the peers,
# all interleaved in one run on one GPU.

# %% tags=["lab"]
from cookbook.lab import results_table

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
from cookbook.lab import limits_table

Markdown(limits_table("ampere/tuned_gemm"))

# %% [markdown] tags=["lab"]
# ## Exercises
#
# Both are of the host. Your answer is compared with the page's on a list of products.

# %% tags=["lab", "tasks"]
TASKS = {
    "waves_of": (
        "waves",
        "    return -(-(-(-m // config.tile_m) * -(-n // config.tile_n)) // sms)",
        "    raise NotImplementedError",
        "How many tiles of C does the busiest SM compute, one after the other? `m`, `n` and `sms` are any numbers.",
        (
            "A tile at the edge of C takes as long as a whole one. So does a wave that is not full.",
            "`-(-a // b)` is a / b, rounded up. Here it is needed three times.",
        ),
        "Rows of tiles, columns of tiles, and waves: each is rounded up by itself.",
        "",
        (
            ("128x256", 4096, 4096, 132),
            ("256x192", 4096, 4096, 132),
            ("256x192", 8192, 8192, 132),
            ("128x256", 129, 257, 2),
            ("128x256", 1000, 33000, 108),
        ),
    ),
    "choose_by_traffic": (
        "choose",
        "    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))",
        "    return min(VARIANTS, key=lambda name: through_smem(VARIANTS[name]))",
        (
            '"Shared memory is the limit, so take the tile that sends least through it." It takes the same tile for '
            "every product."
        ),
        (
            "Which arguments does it not use?",
            "For 512 x 4096 one wave is enough with either tile. Which wave is shorter?",
        ),
        "Traffic makes a wave dearer, but the waves come first: `cost` multiplies both.",
        "",
        (
            (8192, 8192, 8192, 132),
            (4096, 4096, 4096, 132),
            (512, 4096, 4096, 132),
            (3000, 2000, 8192, 114),
            (1024, 1024, 1024, 108),
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("ampere/tuned_gemm")

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
