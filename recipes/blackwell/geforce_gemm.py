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
#     title: The tuned GEMM for GeForce Blackwell
#     claim: >-
#       One warp loads by TMA and the other warps only run ldmatrix and mma.sync: this is faster than an Ampere kernel,
#       on a Hopper too.
#     track: blackwell
#     order: 90
#     builds_on: ampere/tuned_gemm
#     targets: [sm_90a, sm_120a, sm_121a]
#     runs_on: sm_90, sm_120, sm_121
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> ldmatrix -> mma.sync -> stmatrix -> swizzled boxes -> tma
#     instructions:
#       all: [UTMALDG.2D, LDSM.16.M88.4, HMMA.16816.F32, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     beside: ampere/tuned_gemm
# ---

# %% [markdown]
# # The tuned GEMM for GeForce Blackwell
#
# **Claim.** A GeForce Blackwell (sm_120, sm_121) shares its name with the data centre's Blackwell (sm_100), but not
# what a GEMM is made of. It has none of `tcgen05` and tensor memory, nor Hopper's `wgmma`: its tensor cores multiply by
# **`mma.sync`**, from registers, as Ampere's do. What it does have of Hopper is **TMA**, mbarriers, `stmatrix` and
# `setmaxnreg`.
#
# Let one warp load by TMA and let all others do nothing but `ldmatrix` and `mma.sync`, and the kernel is faster than
# the best one here for Ampere.
#
# A Hopper has these instructions too, so the claim is measured there, against
# [ampere/tuned_gemm](../ampere/tuned_gemm.ipynb) in the same run. **For sm_120a this kernel is compiled, and not run on
# hardware.**
#
# | | loads | multiplies | accumulators |
# |---|---|---|---|
# | Ampere | `cp.async`, every thread | `mma.sync`, from registers | registers |
# | Hopper | TMA, one thread | `wgmma`, from shared memory | registers |
# | **GeForce Blackwell** | **TMA, one thread** | **`mma.sync`, from registers** | **registers** |
# | data-centre Blackwell | TMA, one thread | `tcgen05.mma`, from shared memory | tensor memory |
#
# **What changes from ampere/tuned_gemm.** Its inner loop stays, fragment by fragment. Gone are `cp.async` with its
# addresses and its predicates at the edges of A and B, for TMA knows the matrices' extents; the barrier of the whole
# CTA, for every stage has mbarriers of its own; and the stores of C that come between two tiles, for a CTA goes
# on to its next tile while TMA carries the last one away.
#
# **What changes from the Hopper pages.** The producer, the stages and the buffers of C are those of
# [hopper/persistent_gemm](../hopper/persistent_gemm.ipynb). The consumers differ. `wgmma` is asynchronous and reads
# shared memory by itself, so that a stage is busy until a *later* wait says it is not. `ldmatrix` copies: **when the
# last fragment of a stage is in registers the stage is free**, with half a k-block still to be multiplied.
#
# Three ideas are left to try, one at a time, and `VARIANTS` has them in this order: a cluster that shares loads, the
# larger warp tile, and a few narrower tiles at the end.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.memory
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host, require

# %% [markdown]
# ## The sizes
#
# | variant | tile | a warp's | new |
# |---|---|---|---|
# | `square` | 128 x 256 | 64 x 64 | that of `ampere/tuned_gemm`, with fragments of two k-blocks: 64 registers |
# | `square, shared B` | | | two CTAs, one above the other, load half of B's tile each, by multicast |
# | `wide, shared B` | 256 x 192 | 64 x 96 | fragments replaced in place: 24 registers beside 192 accumulators |
# | `wide, then narrow, shared B` | and 256 x 128 | | the last tiles are narrower, where that evens out the work |
#
# **On a GeForce** a CTA may have 99 KiB of shared memory instead of 227. Tiles keep their size, for they are what saves
# traffic. Stages become half as deep, 32 elements of K, which are rows of 64 bytes and the 64-byte swizzle; the buffers
# of C shrink.
#
# Nothing is shared: sm_120 has clusters, and the PTX ISA lets it multicast (`cp.async.bulk.tensor` asks for sm_90 or
# higher), but it adds that `.multicast::cluster` is optimized for sm_90a and the sm_100 and sm_110 families and "may
# have substantially reduced performance on other targets".
#
# CUTLASS allows clusters of one CTA only there. We have no such GPU to measure it on, and leave it out.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how a warp holds its fragments."""

    tile_m: int = 256  # rows of C of one tile: half of them for each consumer warpgroup
    tile_n: int = 192  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four k-blocks of 16; or 32, of the SW64 atom
    stages: int = 3  # pairs of A and B tiles in flight or being read
    warps_m: int = 4  # the eight consumer warps stand in a warps_m x warps_n grid over the tile
    warps_n: int = 2
    b_slots: int = 2  # pieces of B, 16 columns each, that a warp holds and replaces in place; 0: all of two k-blocks
    cluster: int = 1  # CTAs one above the other: each loads its part of the tile of B that all use
    tail_n: int = 0  # columns of the narrower tiles that are computed last, if they make the waves fuller; 0: none
    raster_group: int = 8  # swizzle size: tiles computed together cover this many rows of tiles
    epi_n: int = 64  # columns of an epilogue subtile of C that goes out by TMA
    epi_buffers: int = 2  # epilogue subtiles of C on their way out, for each warpgroup

    @property
    def threads(self) -> int:
        return 3 * 128  # two warpgroups of consumers and the producer's, of which one warp works

    @property
    def k_blocks(self) -> int:
        return self.tile_k // 16

    @property
    def step_m(self) -> int:
        """Rows from one piece of a warp, 16 rows, to its next: those of its warpgroup's other warps lie between."""
        return 16 * (self.warps_m // 2)

    @property
    def step_n(self) -> int:
        """Columns from one piece of a warp, 16 columns, to its next."""
        return 16 * self.warps_n

    @property
    def pieces_m(self) -> int:
        """Pieces of A in the tile of a warp."""
        return self.tile_m // (16 * self.warps_m)

    @property
    def pieces_n(self) -> int:
        """Pieces of B in the tile of a warp."""
        return self.tile_n // self.step_n

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of the tiles that there are."""
        return (self.tile_n, self.tail_n) if self.tail_n else (self.tile_n,)

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        c = 2 * self.epi_buffers * 64 * self.epi_n * 2
        return 1024 + self.stages * self.stage_bytes + c  # 1024: the barriers, padded to the tiles' alignment


SQUARE = Config(tile_m=128, tile_n=256, stages=4, warps_m=2, warps_n=4, b_slots=0, raster_group=16, epi_buffers=1)
VARIANTS = {
    "square": SQUARE,
    "square, shared B": replace(SQUARE, cluster=2),
    "wide, shared B": Config(cluster=2),
    "wide, then narrow, shared B": Config(cluster=2, tail_n=128),
}
DEFAULT = "wide, then narrow, shared B"
CONFIG = VARIANTS[DEFAULT]
REGISTERS = (24, 240)  # of a producer's thread and of a consumer's: 128 * 24 + 256 * 240 of an SM's 65536


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant in the sizes that fit an architecture such as "sm_120a"; "" means the largest."""
    config = VARIANTS[variant]
    if arch.rstrip("af") not in ("sm_120", "sm_121"):
        return config  # 227 KiB of shared memory
    fits = {"tile_k": 32, "stages": 3, "epi_buffers": 1, "epi_n": 64 if config.tile_m == 128 else 32}  # 99 KiB
    # No multicast: what a cluster would share is to be found in L2, so twice as many rows of tiles run together.
    return replace(
        config, **fits, tail_n=config.tail_n // 2, cluster=1, raster_group=config.raster_group * config.cluster
    )


# %% [markdown]
# ## The layouts and the copies
#
# A and B lie in rows of 128 (or 64) bytes in the swizzle mode of that width. TMA writes them so, and it is the same
# swizzle that makes `ldmatrix` free of conflicts: eight rows, eight different chunks. C goes out in epilogue subtiles
# of 64 x `epi_n`, swizzled likewise for `stmatrix` and TMA.
#
# TMA sends a subtile for one warpgroup, so the warpgroup must have it all. Hence the permutation in `tiled_mma`: CuTe
# would give 16 rows at a time to each of the four rows of warps; here each warpgroup's rows of warps stay in one half
# of the tile.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, BUFFER): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K or N, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_buffers), order=(0, 1, 2)),
    )


# %%
def mma_op(dtype) -> warp.MmaF16BF16Op:
    """mma.sync m16n8k16, float32 accumulators."""
    return warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16))


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """mma.sync repeated over the eight warps, 16 columns a warp and step; each warpgroup has one half of the rows."""
    c = config
    warps = cute.make_layout((c.warps_m, c.warps_n, 1), stride=(c.warps_n, 1, 0))
    # 16 rows of one warp, 16 of the next of its warpgroup, and as many in the other half; and again, step_m further
    rows = cute.make_layout((16, c.warps_m // 2, 2, c.pieces_m), stride=(1, 16, c.tile_m // 2, c.step_m))
    return cute.make_tiled_mma(mma_op(dtype), warps, permutation_mnk=(rows, c.step_n, 16))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    s2r_a: cute.TiledCopy  # ldmatrix.x4: four 8x8 matrices a warp
    s2r_b: cute.TiledCopy
    r2s_c: cute.TiledCopy  # stmatrix.x4: one warpgroup, one subtile of 64 x EPI_N


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """ldmatrix for the whole tile, stmatrix for an epilogue subtile of C."""
    c = config
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    mma = tiled_mma(dtype, config)
    warps = cute.make_layout((c.warps_m // 2, c.warps_n, 1), stride=(c.warps_n, 1, 0))  # of one warpgroup
    piece = cute.make_tiled_mma(mma_op(dtype), warps, permutation_mnk=(c.step_m, c.step_n, 16))
    return TiledCopies(
        s2r_a=cute.make_tiled_copy_A(ldmatrix, mma),
        s2r_b=cute.make_tiled_copy_B(ldmatrix, mma),
        r2s_c=cute.make_tiled_copy_C(stmatrix, piece),
    )


# %% [markdown]
# ## The tile scheduler: which tile is next
#
# A tile of 256 x 192 is coarse: in C of 4096 x 4096 there are 352, not three for each of 132 SMs, so that many SMs have
# nothing to do in the third wave. Smaller tiles would fit better and read more through shared memory.
#
# So take both: **wide tiles as long as they fill whole waves, narrow ones for the rest**. A narrow tile is the same
# code with fewer columns. `wide_columns` is the heuristic: it tries every number of columns of wide tiles and keeps the
# one with which the busiest cluster has least to do.
#
# All of this is in units of a *cluster's* tile, which is one tile for each of its CTAs, one above the other. Numbers go
# down the rows of a group of tiles, then across, so that CTAs that run together share rows of A and B in L2.


# %%
def wide_columns(config: Config, m: int, n: int, sms: int) -> int:
    """Of C (m, n), how many columns of tiles are to be TILE_N wide; further ones are TAIL_N wide, if there are any."""
    c, clusters = config, sms // config.cluster
    most = -(-n // c.tile_n)
    if not c.tail_n:
        return most
    down = -(-m // (c.tile_m * c.cluster))

    def busiest(wide: int) -> tuple[int, int]:
        """Columns that the busiest cluster computes, tile after tile; among equals, rather wide tiles."""
        narrow = -(-max(0, n - wide * c.tile_n) // c.tail_n)
        waves = -(-wide * down // clusters)
        left = max(0, (wide + narrow) * down - waves * clusters)  # the last of these waves may take narrow ones too
        return waves * c.tile_n + -(-left // clusters) * c.tail_n, -wide

    return min(range(most + 1), key=busiest)


class Work(NamedTuple):
    """What there is to do, in tiles of a cluster: one for each of its CTAs, one above the other."""

    down: cutlass.Int32  # tiles from the top of C to the bottom
    wide: cutlass.Int32  # and from left to right: the number of wide ones,
    narrow: cutlass.Int32  # then the number of narrow ones
    k_tiles: cutlass.Int32  # of each


@cute.jit
def tile_of(number, work: Work, config: cutlass.Constexpr):
    """Where tile `number` of a cluster is: its row of tiles; its first column and its width in pieces of EPI_N."""
    rows = config.raster_group // config.cluster
    start, across, width = cutlass.Int32(0), work.wide, cutlass.Int32(config.tile_n // config.epi_n)
    if cutlass.const_expr(config.tail_n > 0):
        before = work.down * work.wide
        if number >= before:  # wide ones first: the last wave ends sooner if its tiles are narrow
            number, across = number - before, work.narrow
            start, width = work.wide * width, cutlass.Int32(config.tail_n // config.epi_n)
    group, inside = number // (rows * across), number % (rows * across)
    height = cutlass.min(work.down - group * rows, rows)  # the last group may be lower
    return group * rows + inside % height, start + inside // height * width, width


@cute.jit
def tiles_of_cluster(work: Work, config: cutlass.Constexpr):
    """The numbers of the tiles that this CTA's cluster computes, for `range`: first, end, step."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    return cta // config.cluster, work.down * (work.wide + work.narrow), ctas // config.cluster


# %% [markdown]
# ## The producer
#
# One warp. It asks for a stage's A and B as soon as the stage is free, tile after tile; what is outside of the matrices
# TMA fills with zeros. With `shared B` each CTA of a cluster asks for its part of B *for all of them*, so a stage is
# free when the consumers of all of them are done with it, and full when all parts have arrived.


# %%
@cute.jit
def rank_in_cluster(config: cutlass.Constexpr):
    """Which CTA of its cluster this is, from the top."""
    rank = cutlass.Int32(0)
    if cutlass.const_expr(config.cluster > 1):
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    return rank


def to_all(config: Config) -> dict:
    """What a multicast copy is told: to write to all CTAs of the cluster, a bit for each."""
    return {"mcast_mask": cutlass.Int16((1 << config.cluster) - 1)} if config.cluster > 1 else {}


@cute.jit
def produce_tile(pipe, state, tma_a, tma_b, tAgA, tAsA, tBgB, tBsB, k_tiles, config: cutlass.Constexpr):
    """All k-tiles of one tile: tAgA, tBgB (TMA, k) in global memory; tAsA, tBsB (TMA, STAGE) in shared memory."""
    for k_tile in cutlass.range(k_tiles, unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier)
        cute.copy(tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, **to_all(config))
        state.advance()
    return state


@cute.jit
def produce(pipe, tma_a, tma_b, gA, mB, sA, sB, work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile. gA (M, K, m, k), mB (N, K) in global memory.

    Of B always TILE_N rows: for a narrow tile, more than it needs.
    """
    rank, alone, sharers = rank_in_cluster(config), cute.make_layout(1), cute.make_layout(config.cluster)
    sA, sB = cute.group_modes(sA, 0, 2), cute.group_modes(sB, 0, 2)
    tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, sA, cute.group_modes(gA, 0, 2))  # (TMA, m, k)
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    first, end, step = tiles_of_cluster(work, config)
    for number in cutlass.range(first, end, step, unroll=1):
        row, column, _ = tile_of(number, work, config)
        mine = tAgA[None, row * config.cluster + rank, None]
        own = cute.domain_offset((column * config.epi_n, 0), mB)  # narrow tiles begin anywhere
        gB = cute.local_tile(own, (config.tile_n, config.tile_k), (0, None))  # (N, K, k)
        tBsB, tBgB = cpasync.tma_partition(tma_b, rank, sharers, sB, cute.group_modes(gB, 0, 2))  # (TMA, k)
        state = produce_tile(pipe, state, tma_a, tma_b, mine, tAsA, tBgB, tBsB, work.k_tiles, config)
    cute.arch.griddepcontrol_launch_dependents()  # nothing is left to ask for: the next kernel may come
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## A warp's fragments
#
# A warp fetches pieces of 16 x 16 elements, each by one `ldmatrix.x4`. Where they lie could be left to CuTe, which adds
# up an address for each and swizzles it. But a thread reads rows that are all the same modulo 8, so that the swizzle
# XORs the same bits into all its addresses, and [ampere/tuned_gemm](../ampere/tuned_gemm.ipynb) shows what follows:
# keep *one* address for A and one for B, XOR 32 k for k-block k, add whole periods for other pieces and stages.
#
# We compiled both: left to CuTe, the loop of the wide tile makes more integer instructions than it fetches fragments,
# and on sm_120a it spills.


# %%
class Operand(NamedTuple):
    """A warp's way from shared memory to the tensor cores, for A or B."""

    ldmatrix: cute.TiledCopy
    regs: cute.Tensor  # (MMA, MMA_M or MMA_N, buffer): as mma takes them
    into: cute.Tensor  # (8, slot): the same registers as ldmatrix fills them
    address: cutlass.Int32  # of the thread's first row in stage 0, swizzled
    stage_bytes: int
    piece_bytes: int  # from one piece to the next


@cute.jit
def make_operand(copy, sX, regs, step: cutlass.Constexpr, config: cutlass.Constexpr):
    """This thread's part of an operand. sX: (rows, K, STAGE); regs: as mma takes them; step: rows between pieces."""
    tidx, _, _ = cute.arch.thread_idx()
    thr = copy.get_slice(tidx)
    first, chunks = thr.partition_S(sX).iterator.toint(), 0x70 if config.tile_k % 64 == 0 else 0x30  # 8 or 4 in a row
    into = cute.logical_divide(cute.coalesce(thr.retile(regs)), 8)
    row_bytes = 2 * config.tile_k
    stage_bytes = cute.size(sX, mode=[0]) * row_bytes
    return Operand(copy, regs, into, first ^ ((first >> 3) & chunks), stage_bytes, step * row_bytes)


@cute.jit
def fetch_piece(x, stage, k: cutlass.Constexpr, piece: cutlass.Constexpr, slot: cutlass.Constexpr):
    """One ldmatrix: a piece of k-block `k` into the registers of a slot."""
    address = ((x.address + stage * x.stage_bytes) ^ (32 * k)) + piece * x.piece_bytes
    row = cute.make_ptr(x.regs.element_type, address, cute.AddressSpace.smem, assumed_align=16)
    cute.copy(x.ldmatrix, cute.make_tensor(row, cute.make_layout(8)), x.into[None, slot])


# %% [markdown]
# ## The main loop
#
# Two ways to have fragments ready when `mma` wants them, both from `ampere/tuned_gemm`.
#
# * `multiply_ahead` (`square`): two buffers of registers; all pieces of the next k-block are asked for before this one
#   is multiplied.
# * `multiply_in_place` (`wide`): one buffer, of all of A's pieces and two of B's; a piece is replaced by a later one as
#   soon as its last `mma` has been issued. Down with one piece of B, up with the next: neighbours share a fragment.
#
# Either way the first fragments of the next stage are fetched while this one is still being multiplied. `next_stage`
# stands where the last fragment of a stage has been asked for: it gives the stage back *there*, and waits for the next.
#
# Which stage, and which phase of its barrier? k-tiles are numbered through all tiles of a CTA, and this number, the
# **slot**, says both.


# %%
def state_at(slot, config: Config):
    """The consumer's place in the queue of stages at a k-tile index."""
    return pipeline.PipelineState(config.stages, slot, slot % config.stages, slot // config.stages & 1)


def single(fragment, rank: int):
    """One mma's fragment, (MMA,), with the modes that `cute.gemm` goes over: (MMA, 1) or (MMA, 1, 1)."""
    return cute.make_tensor(fragment.iterator, cute.append_ones(fragment.layout, up_to_rank=rank))


@cute.jit
def next_stage(pipe, read, last: cutlass.Constexpr):
    """All that is in this stage has been asked for: give it back, and wait for the next one, if there is one."""
    pipe.consumer_release(read)
    read.advance()
    if cutlass.const_expr(not last):
        pipe.consumer_wait(read)
    return read


@cute.jit
def multiply_in_place(pipe, read, mma, acc, a, b, k: cutlass.Constexpr, last: cutlass.Constexpr, width, config):
    """One k-block, each fragment replaced by a later one after its last mma."""
    pieces_m, pieces_n, slots, k_blocks = config.pieces_m, width // config.step_n, config.b_slots, config.k_blocks
    last_block = k == k_blocks - 1
    for j in cutlass.range_constexpr(pieces_n):
        slot, (further, later) = (k * pieces_n + j) % slots, divmod(j + slots, pieces_n)
        for i in cutlass.range_constexpr(pieces_m):
            m = i if j % 2 == 0 else pieces_m - 1 - i
            for h in cutlass.range_constexpr(2):  # the halves of a piece, 8 columns each
                half = h if i % 2 == 0 else 1 - h
                c = single(acc[None, m, 2 * j + half], 3)
                cute.gemm(mma, c, single(a.regs[None, m, 0], 2), single(b.regs[None, 2 * slot + half, 0], 2), c)
            if cutlass.const_expr(j == pieces_n - 1 and not (last and last_block)):
                fetch_piece(a, read.index, (k + 1) % k_blocks, m, m)
        if cutlass.const_expr(last_block and j == pieces_n - slots):
            read = next_stage(pipe, read, last)
        if cutlass.const_expr(not (last and last_block and further)):
            fetch_piece(b, read.index, (k + further) % k_blocks, later, slot)
    return read


@cute.jit
def fetch_block(x, stage, k: cutlass.Constexpr):
    """All pieces of k-block `k` into one of two buffers."""
    pieces = cute.size(x.into, mode=[1]) // 2
    for piece in cutlass.range_constexpr(pieces):
        fetch_piece(x, stage, k, piece, piece + k % 2 * pieces)


@cute.jit
def multiply_ahead(pipe, read, mma, acc, a, b, k: cutlass.Constexpr, last: cutlass.Constexpr, width, config):
    """One k-block, while the next one's fragments arrive in the other buffer."""
    last_block = k == config.k_blocks - 1
    if cutlass.const_expr(last_block):
        read = next_stage(pipe, read, last)
    if cutlass.const_expr(not (last and last_block)):
        fetch_block(a, read.index, (k + 1) % config.k_blocks)
        fetch_block(b, read.index, (k + 1) % config.k_blocks)
    cute.gemm(mma, acc, a.regs[None, None, k % 2], b.regs[None, None, k % 2], acc)
    return read


@cute.jit
def multiply_stage(pipe, read, mma, acc, a, b, last: cutlass.Constexpr, width: cutlass.Constexpr, config):
    """All k-blocks of a stage; in the last of them, the first fragments of the next stage."""
    how = multiply_in_place if config.b_slots else multiply_ahead
    for k in cutlass.range_constexpr(config.k_blocks):
        read = how(pipe, read, mma, acc, a, b, k, last, width, config)
    return read


@cute.jit
def multiply_tile(pipe, slot, mma, acc, a, b, k_tiles, width: cutlass.Constexpr, config: cutlass.Constexpr):
    """Multiply the k-tiles of one tile, `width` columns wide, into `acc`; `slot` is the first one's."""
    read = state_at(slot, config)
    acc.fill(0.0)
    pipe.consumer_wait(read)
    if cutlass.const_expr(config.b_slots > 0):
        for i in cutlass.range_constexpr(config.pieces_m):
            fetch_piece(a, read.index, 0, i, i)
        for j in cutlass.range_constexpr(config.b_slots):
            fetch_piece(b, read.index, 0, j, j)
    else:
        fetch_block(a, read.index, 0)
        fetch_block(b, read.index, 0)
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        read = multiply_stage(pipe, read, mma, acc, a, b, False, width, config)
    multiply_stage(pipe, read, mma, acc, a, b, True, width, config)


# %% [markdown]
# ## The epilogue
#
# A warpgroup sends its half of the tile subtile by subtile, as on Hopper: wait until TMA has read what was in the
# buffer, `stmatrix`, a fence that makes the writes visible to TMA, and one thread asks for the copy. The producer is
# not involved: it is already loading the next tile.


# %%
@cute.jit
def store(acc, sC, tma_c, gC, corner, copy, width: cutlass.Constexpr, config: cutlass.Constexpr):
    """The rows of C that a warpgroup has, `width` columns, out by TMA, in subtiles of 64 x EPI_N.

    sC (64, EPI_N, BUFFER): all buffers; gC (64, EPI_N, m, n): all subtiles of C; corner: (m, n) of the first one.
    """
    tidx, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(tidx // 128)
    sends = cute.arch.make_warp_uniform(tidx % 128 // 32) == 0  # the warp that talks to TMA
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    thr = copy.get_slice(tidx % 128)
    tCsC = thr.partition_D(sC)  # (CPY, CPY_M, CPY_N, BUFFER)
    whole = cute.make_layout(1)  # a subtile is one box: nothing is divided among CTAs
    bsC, bgC = cpasync.tma_partition(tma_c, 0, whole, cute.group_modes(sC, 0, 2), cute.group_modes(gC, 0, 2))
    down, across = config.tile_m // 128, width // config.epi_n  # subtiles of a warpgroup
    held_m, held_n = 64 // config.step_m, 2 * config.epi_n // config.step_n  # accumulator fragments of a subtile
    for piece in cutlass.range_constexpr(down * across):
        row, column = divmod(piece, across)
        buffer = group * config.epi_buffers + piece % config.epi_buffers
        rC = cute.make_rmem_tensor(((2, 2), held_m, held_n), sC.element_type)
        for m in cutlass.range_constexpr(held_m):
            for n in cutlass.range_constexpr(held_n):
                fragment = acc[None, row * held_m + m, column * held_n + n]
                rC[None, m, n].store(fragment.load().to(sC.element_type))
        if sends:
            cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)
        barrier.arrive_and_wait()  # all know that the buffer is free
        cute.copy(copy, thr.retile(rC), tCsC[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()  # all have written, and said so to TMA
        if sends:
            with cute.arch.elect_one():
                cute.copy(tma_c, bsC[None, buffer], bgC[None, corner[0] + group * down + row, corner[1] + column])
                cute.arch.cp_async_bulk_commit_group()


@cute.jit
def consume(pipe, dtype, sA, sB, sC, tma_c, gC, work: Work, config: cutlass.Constexpr):
    """Multiply and store, tile after tile. gC (64, EPI_N, m, n): the subtiles of the whole of C."""
    mma, copies = tiled_mma(dtype, config), tiled_copies(dtype, config)
    columns, buffers = config.step_n * (config.b_slots or config.pieces_n), 1 if config.b_slots else 2
    rA = cute.make_rmem_tensor(mma.partition_shape_A((config.tile_m, 16 * buffers)), dtype)  # (MMA, MMA_M, buffer)
    rB = cute.make_rmem_tensor(mma.partition_shape_B((columns, 16 * buffers)), dtype)  # (MMA, MMA_N, buffer)
    a = make_operand(copies.s2r_a, sA, rA, config.step_m, config)
    b = make_operand(copies.s2r_b, sB, rB, config.step_n, config)
    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    slot = cutlass.Int32(0)
    first, end, step = tiles_of_cluster(work, config)
    for number in cutlass.range(first, end, step, unroll=1):
        row, column, pieces = tile_of(number, work, config)
        corner = ((row * config.cluster + rank_in_cluster(config)) * (config.tile_m // 64), column)
        for width in config.widths:  # each has code of its own
            if cutlass.const_expr(config.tail_n == 0) or pieces == width // config.epi_n:
                multiply_tile(pipe, slot, mma, acc, a, b, work.k_tiles, width, config)
                store(acc, sC, tma_c, gC, corner, copies.r2s_c, width, config)
        slot = slot + work.k_tiles
    cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# ## The kernel
#
# Three warpgroups of 128 threads. A kernel starts with as many registers for each thread: of 65536 for 384 threads,
# 168. `setmaxnreg` gives most of the producer's to the consumers, and 192 accumulators a thread fit with room to spare.


# %%
@cute.jit
def make_pipeline(barriers, config: cutlass.Constexpr):
    """The barriers of the stages, full and empty, of this CTA, in step with those of its cluster."""
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8 * config.cluster),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster, 1, 1)),
    )


@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    tma_c: cute.CopyAtom,
    mC: cute.Tensor,  # (M, N), as TMA coordinates
    work: Work,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its share of the tiles of C, one after the other."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    layouts = smem_layouts(dtype, config)
    if warp_idx == 8:
        for tma in (tma_a, tma_b, tma_c):
            cpasync.prefetch_descriptor(tma)

    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # Every CTA allocates the same, so that what a multicast writes lies at the same offset in each.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    pipe = make_pipeline(barriers, config)
    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (None, None))  # (M, K, m, k)
    gC = cute.local_tile(mC, (64, config.epi_n), (None, None))  # (64, EPI_N, m, n)

    cute.arch.griddepcontrol_wait()  # the kernel before has ended: from here on global memory may be touched
    if warp_idx >= 8:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == 8:
            produce(pipe, tma_a, tma_b, gA, mB, sA, sB, work, config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        consume(pipe, dtype, sA, sB, sC, tma_c, gC, work, config)


# %% [markdown]
# ## The launch
#
# As many clusters as there is room for, or work. What does not change from tile to tile is counted here, once, and
# reaches the kernel as constants: a number computed in the kernel would be one more register for each consumer.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    wide_columns: cutlass.Int32,
    stream: cuda.CUstream,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    m, n, k = mnk
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    layouts = smem_layouts(dtype, config)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    tma_a, mA = make_load(mA, layouts.a, (config.tile_m, config.tile_k), 1)
    tma_b, mB = make_load(mB, layouts.b, (config.tile_n, config.tile_k), config.cluster)
    tma_c, mC = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), mC, cute.slice_(layouts.c, (None, None, 0)), (64, config.epi_n)
    )
    work = work_of(m, n, k, wide_columns, config)
    clusters = cutlass.min(work.down * (work.wide + work.narrow), sms // config.cluster)
    kernel(tma_a, mA, tma_b, mB, tma_c, mC, work, dtype, config).launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=True,
    )


@cute.jit
def work_of(m, n, k, wide_columns, config: cutlass.Constexpr):
    """Tiles of clusters in C (m, n), the first `wide_columns` columns of them wide ones."""
    narrow = cutlass.Int32(0)
    if cutlass.const_expr(config.tail_n > 0):
        narrow = cute.ceil_div(cutlass.max(n - wide_columns * config.tile_n, 0), config.tail_n)
    down = cute.ceil_div(m, config.tile_m * config.cluster)
    return Work(down, wide_columns, narrow, cute.ceil_div(k, config.tile_k))


def make_load(matrix: cute.Tensor, layout: cute.ComposedLayout, tile: tuple[int, int], sharers: int):
    """The TMA load of a tile into one stage of `layout`, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    stage = cute.slice_(layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (dtype, config or config_for(arch)), (132, 1), options=options)


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
    (m, n, _), config = call.mnk, config_for(call.arch, call.variant)
    return (config,), (call.mnk, call.strides, call.sms, wide_columns(config, m, n, call.sms))


GEMM = Gemm(
    compile_for,
    prepare,
    gpus=((9, 0), (12, 0), (12, 1)),
    needs="TMA and mma.sync",
    variants=VARIANTS,
    padded=True,
)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: sizes, and who shares loads. The bits are the same.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0, 12.0 or 12.1.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N is no
    multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## In the lab: the layouts
#
# From here on the cells use the `cookbook` package: it draws, checks and times what the cells above made. Leave them
# out of your own code.
#
# The tile of A as TMA writes it, on a Hopper and (64 bytes a row) on a GeForce:

# %% tags=["lab"]
from cookbook import access, banks, draw
from cookbook.layouts import evaluate

DTYPE = cutlass.BFloat16
hopper, geforce = (config_for(arch) for arch in ("sm_90a", "sm_120a"))
layouts, copies = (evaluate(made, DTYPE, hopper) for made in (smem_layouts, tiled_copies))
draw.swizzle_view(layouts.a)

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, DTYPE, geforce).a)

# %% [markdown] tags=["lab"]
# One `ldmatrix` of A, and one `stmatrix` of an epilogue subtile of C: four 8x8 matrices, four wavefronts, which is
# ideal.

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts.a, copies.s2r_a, "src", "ldmatrix", warp=0)[0])

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)[0])

# %% [markdown] tags=["lab"]
# The addresses by hand, against the layout, for all elements: XOR 32 k for a k-block, whole periods for pieces and
# stages.

# %% tags=["lab"]
for arch, config in (("sm_90a", hopper), ("sm_120a", geforce)):
    made = evaluate(smem_layouts, DTYPE, config)
    for name, layout, step in (("A", made.a, config.step_m), ("B", made.b, config.step_n)):
        at = layout.byte_offsets()  # (rows, K, STAGE)
        for k in range(config.k_blocks):
            assert (at[:, 16 * k : 16 * k + 16] == at[:, :16] ^ (32 * k)).all()
        assert (at[step:] - at[:-step] == 2 * step * config.tile_k).all()
        assert (at[:, :, 1:] - at[:, :, :-1] == 2 * at.shape[0] * config.tile_k).all()
        print(
            f"{arch}, {name}: {config.k_blocks} k-blocks, pieces {step} rows apart, {config.stages} stages: all right"
        )

# %% [markdown] tags=["lab"]
# ## In the lab: clocks of a k-tile
#
# What must happen for each k-tile, in clocks of one SM: the tensor cores multiply at the rate that
# `foundations/tensor_core_ceiling` has measured for `mma.sync` on an H200; shared memory serves `ldmatrix`, one
# wavefront a clock, and takes what TMA writes, 128 bytes a clock. The wavefronts are those of this recipe's own layouts
# and copies. Shared memory that is busy all the time would leave nothing for a stage that comes late.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.measure import records
from cookbook.publish.pages import table

RATE = 1357  # multiply-adds of an SM in a clock by mma.sync: foundations/tensor_core_ceiling, on an H200
STUDY, LOOP = "foundations/tensor_core_ceiling", "mma.sync m16n8k16, bf16"
for r in records.read():
    if r["recipe"] == STUDY and LOOP in r["figures"].get("instructions", {}):
        per_clock = r["figures"]["instructions"][LOOP]["flops_per_clock"] / 2
        print(f"{r['device']}: {per_clock:.0f} multiply-adds a clock and SM; used here: {RATE}")


def wavefronts_of_k_tile(config: Config) -> int:
    """Of all ldmatrix of the eight warps, for one k-tile of A and of B."""
    lies, moves = (evaluate(made, DTYPE, config) for made in (smem_layouts, tiled_copies))
    pairs = ((lies.a, moves.s2r_a), (lies.b, moves.s2r_b))
    asked = [one for at, by in pairs for w in range(8) for one in access.of_copy(at, by, "src", "ldmatrix", warp=w)]
    return sum(banks.wavefronts(one.addresses, one.width).actual for one in asked)


rows = []
for arch in ("sm_90a", "sm_120a"):
    for name in VARIANTS:
        c = config_for(arch, name)
        multiply = c.tile_m * c.tile_n * c.tile_k / RATE
        read, written = wavefronts_of_k_tile(c), c.stage_bytes // 128
        sizes = f"{c.tile_m} x {c.tile_n} x {c.tile_k}, {c.stages} stages"
        figures = [f"{multiply:.0f}", str(read), str(written), f"{(read + written) / multiply:.0%}"]
        rows.append([f"{arch}: {name}", sizes, f"{c.smem_bytes / 1024:.0f} KiB", *figures])
header = ["", "k-tile", "shared memory", "mma.sync", "ldmatrix", "TMA writes", "shared memory busy"]
Markdown(table(header, rows))

# %% [markdown] tags=["lab"]
# The figures for sm_120a are in clocks of the *H200's* rate, for that is the one we have measured. A GeForce with a
# lower rate a clock and SM leaves shared memory less to do.
#
# ## In the lab: waves
#
# Which part of the SMs' time goes into elements of C: all of them, over what the busiest CTA computes times the number
# of CTAs. Multiplying can be no better than this.

# %% tags=["lab"]
SMS = 132  # of an H200


def widths_in_order(config: Config, m: int, n: int, sms: int = SMS) -> list[int]:
    """The width of each cluster's tile, by number."""
    down, wide = -(-m // (config.tile_m * config.cluster)), wide_columns(config, m, n, sms)
    narrow = -(-max(0, n - wide * config.tile_n) // config.tail_n) if config.tail_n else 0
    return [config.tile_n] * (down * wide) + [config.tail_n] * (down * narrow)


def busy(config: Config, m: int, n: int, sms: int = SMS) -> float:
    """The part of the SMs' time that goes into elements of C (m, n)."""
    clusters, widths = sms // config.cluster, widths_in_order(config, m, n, sms)
    return m * n / (sms * config.tile_m * max(sum(widths[first::clusters]) for first in range(clusters)))


rows = []
for size in (1024, 2048, 4096, 6144, 8192, 16384):
    order = widths_in_order(CONFIG, size, size)
    mix = f"{order.count(CONFIG.tile_n)} wide, {order.count(CONFIG.tail_n)} narrow"
    rows.append([f"{size} x {size}", *(f"{busy(c, size, size):.0%}" for c in VARIANTS.values()), mix])
Markdown(table(["C", *VARIANTS, f"clusters' tiles of `{DEFAULT}`"], rows))

# %% [markdown] tags=["lab"]
# The tiles of three clusters for 4096 x 4096, by the number of columns computed so far, first all wide, then with
# narrow ones:

# %% tags=["lab"]
lanes = {}
for name in ("wide, shared B", DEFAULT):
    config = VARIANTS[name]
    clusters, order = SMS // config.cluster, widths_in_order(config, 4096, 4096)
    for first in (0, clusters // 2, clusters - 1):
        own, spans, now = order[first::clusters], [], 0
        for width in own:
            spans.append(draw.Span(now, now + width, str(width), "wide" if width == config.tile_n else "narrow"))
            now += width
        lanes[f"{'with narrow' if config.tail_n else 'all wide'}: cluster {first}"] = spans
    lanes |= {"": []} if not config.tail_n else {}
draw.lanes(lanes, "Tiles of three clusters, 4096 x 4096: computed", unit="columns", note="gaps: nothing left to do")

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at every variant, for a Hopper and for both GeForce targets. The data path of these layouts is
# simulated: boxes by TMA, `ldmatrix`, `mma.sync`, `stmatrix`, boxes by TMA. **Nothing here has run on sm_120 or
# sm_121.**
#
# The check is of the cells above: edit one, run it, and check again. Without a GPU, no level reads the kernel's own
# coordinates, guards and accumulators.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("blackwell/geforce_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# On a Hopper. "ours" is `matmul` without an argument, so the last variant; beside it each variant by name, the peers,
# and `ampere/tuned_gemm`, which the claim is about, all interleaved in one run. `torch.matmul` and QuACK use `wgmma`
# there, which a GeForce does not have; the ceiling is that of `mma.sync`.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("blackwell/geforce_gemm"))

# %% [markdown] tags=["lab"]
# The claim, by itself: how many times as fast as `ampere/tuned_gemm` each variant was, and what part of the ceiling of
# `mma.sync` it reached.

# %% tags=["lab"]
OTHER = "ampere/tuned_gemm"


def beside_ampere() -> str:
    """Every current record that has both, or that there is none."""
    rows = []
    for r in records.select("blackwell/geforce_gemm", "timed"):
        if not records.is_stale(r) and OTHER in r["peers"]:
            took = {name: figures["median_ms"] for name, figures in r["peers"].items()}
            each = [f"{took[OTHER] / took[name]:.3f} x" for name in VARIANTS]
            of_ceiling = f"{took['ceiling'] / min(took[name] for name in VARIANTS):.1%}" if "ceiling" in took else ""
            rows.append([f"{' x '.join(map(str, r['shape']))}, {r['dtype']}, {r['device']}", *each, of_ceiling])
    header = ["M x N x K", *VARIANTS, "the fastest, of the ceiling"]
    return table(header, rows) if rows else "*There is no current record of both.*"


Markdown(beside_ampere())

# %% [markdown] tags=["lab"]
# ## What limits it
#
# Each variant and peer by itself, again and again, while the GPU reports its clock and its power. Where the clock is
# lowered for power, a rate is power divided by *J for each TFLOP*, and fewer joules are worth more than fewer clocks:
# compare the variants with `ampere/tuned_gemm` and with the ceiling in both columns. The second table is ncu's, of one
# launch of each variant; the warp that loads, which mostly waits, is part of its means.

# %% tags=["lab"]
from cookbook.publish.pages import limits_table

Markdown(limits_table("blackwell/geforce_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# The instruction that multiplies is the same as on an Ampere, and so is the loop around it. What the newer chip adds is
# all in what no longer stands in that loop's way: loading costs the consumers nothing, a stage comes back the moment it
# has been copied, C leaves in the background, and registers go to those who need them.
#
# Of the three steps after `square` only the last pays at both of the sizes measured. Sharing B pays at the larger one.
# The wide tile alone, whatever it saves in shared memory, loses at 4096 x 4096, as its waves predict. With narrow tiles
# after it, it is the one to take for large products, and close to the square one for smaller ones.
#
# What is left is `mma.sync` itself, three operands in registers each time, and between tiles an epilogue in which its
# warps do not multiply. Two ping-pong warpgroups, as in [hopper/pingpong_gemm](../hopper/pingpong_gemm.ipynb), would
# hide that, with smaller tiles; we have not tried it here.
#
# What a GeForce makes of it all remains to be measured: its rate of `mma.sync`, its L2, and whether multicast is as
# slow there as the PTX ISA warns.
#
# To use it: `cookbook copy blackwell/geforce_gemm my_gemm.py`, then `from my_gemm import matmul`.
