# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: The tuned GEMM for GeForce Blackwell
#     claim: >-
#       One warp loads by TMA and the other warps only run ldmatrix and mma.sync: this is faster than an Ampere kernel,
#       on a Hopper too.
#     track: blackwell
#     order: 90
#     aside: GeForce
#     builds_on: ampere/tuned_gemm
#     targets: [sm_90a, sm_120a, sm_121a]
#     runs_on: sm_90, sm_120, sm_121
#     serves: {sm_120: 512}
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> ldmatrix -> mma.sync -> stmatrix -> swizzled boxes -> tma
#     instructions: [UTMALDG.2D, LDSM.16.M88.4, HMMA.16816.F32, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     compared_with: ampere/tuned_gemm
#     sources:
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "PTX ISA, fragments of mma.m16n8k16", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"}
#       - {title: "PTX ISA, setmaxnreg", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg"}
# ---

# %% [markdown]
# # The tuned GEMM for GeForce Blackwell
#
# **Claim.** A GeForce Blackwell (sm_120, sm_121) multiplies by **`mma.sync`**, from registers, as Ampere does; of
# Hopper it has **TMA**, mbarriers, `stmatrix` and `setmaxnreg`. With one warp that loads by TMA, and all others doing
# nothing but `ldmatrix` and `mma.sync`, the kernel is faster than the best one here for Ampere.

# %% tags=["lab"]
from cookbook import draw, lab
from cookbook.layouts import evaluate

lab.gain("blackwell/geforce_gemm", (4096, 4096, 4096), over=["ampere/tuned_gemm", "square", "ceiling"])

# %% [markdown]
# A Hopper has these instructions, too, so the claim is measured there, against
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
# The inner loop is that of ampere/tuned_gemm; the producer, the stages and the buffers of C are those of
# [hopper/persistent_gemm](../hopper/persistent_gemm.ipynb). One thing differs from Hopper: `wgmma` reads shared memory
# itself, so a stage is busy until a *later* wait. `ldmatrix` copies: **when the last fragment of a stage is in
# registers the stage is free**, while its last products are still to be multiplied: a whole k-block in `square`, the
# last 16 columns of each warp in the wide tiles.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import make_operand, row_major
from cookbook.recipes.ampere.ldmatrix_gemm import Config as LdmatrixConfig
from cookbook.recipes.ampere.ldmatrix_gemm import smem_atom
from cookbook.recipes.ampere.smem_gemm import rasterize
from cookbook.recipes.ampere.staged_epilogue_gemm import SmemLayouts
from cookbook.recipes.ampere.tuned_gemm import (
    AddressedOperand,
    addressed,
    check_slots,
    fetch_fragment,
    multiply_fragment,
)

# %% [markdown]
# ## The sizes
#
# | variant | tile | a warp's | new |
# |---|---|---|---|
# | `square` | 128 x 256 | 64 x 64 | that of `ampere/tuned_gemm`, with fragments of two k-blocks: 64 registers |
# | `square, shared B` | | | two CTAs, one above the other, load half of B's tile each, by multicast |
# | `wide, shared B` | 256 x 192 | 64 x 96 | fragments replaced in place: 24 registers next to 192 accumulators |
# | `wide, then narrow, shared B` | and 256 x 128 | | the last tiles are narrower, where that evens out the work |
#
# **On a GeForce** a CTA may have 99 KiB of shared memory instead of 227. Tiles keep their size, which saves traffic.
# Stages become half as deep, 32 elements of K in rows of 64 bytes; the buffers of C shrink. Nothing is shared: the PTX
# ISA lets sm_120 multicast, but says that it "may have substantially reduced performance" there, and CUTLASS allows
# clusters of one CTA only.


# %%
@dataclass(frozen=True)
class Config(LdmatrixConfig):
    """Sizes of the kernel, in elements or counts, and how a warp holds its fragments."""

    tile_m: int = 256  # rows of C of one tile: half of them for each consumer warpgroup
    tile_n: int = 192  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four k-blocks of 16; or 32, of the SW64 atom
    stages: int = 3  # pairs of A and B tiles in flight or being read
    warps_m: int = 4  # the eight consumer warps stand in a warps_m x warps_n grid over the tile
    warps_n: int = 2
    swizzle_size: int = 8  # rasterization: tiles computed together cover this many rows of tiles
    b_slots: int = 2  # fragments of B, 16 columns each, that a warp holds and replaces in place; 0: all of two k-blocks
    cluster: int = 1  # CTAs one above the other: each loads its part of the tile of B that all use
    tail_n: int = 0  # columns of the narrower tiles that are computed last, if they make the waves fuller; 0: none
    epi_n: int = 64  # columns of an epilogue subtile of C that goes out by TMA
    epi_stages: int = 2  # epilogue subtiles of C on their way out, for each warpgroup

    def __post_init__(self):
        for width in self.widths:
            check_epilogue("epi_stages", self.epi_stages, self.tile_m // 128 * (width // self.epi_n))
            check_slots(self.b_slots, self.k_blocks, width // self.step_n)

    @property
    def threads(self) -> int:
        return 3 * 128  # two warpgroups of consumers and the producer's, of which one warp works

    @property
    def step_m(self) -> int:
        """Rows from one fragment of a warp, 16 rows, to its next: those of its warpgroup's other warps lie between."""
        return 16 * (self.warps_m // 2)

    @property
    def step_n(self) -> int:
        """Columns from one fragment of a warp, 16 columns, to its next."""
        return 16 * self.warps_n

    @property
    def fragments_m(self) -> int:
        """Fragments of A in the tile of a warp."""
        return self.tile_m // (16 * self.warps_m)

    @property
    def fragments_n(self) -> int:
        """Fragments of B in the tile of a warp."""
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
        c = 2 * self.epi_stages * 64 * self.epi_n * 2
        return 1024 + self.stages * self.stage_bytes + c  # 1024: the barriers, padded to the tiles' alignment


# %% [markdown]
# The variants, and the sizes of each on a chip with less shared memory:


# %%
SQUARE = Config(tile_m=128, tile_n=256, stages=4, warps_m=2, warps_n=4, b_slots=0, swizzle_size=16, epi_stages=1)
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
    fits = {"tile_k": 32, "stages": 3, "epi_stages": 1, "epi_n": 64 if config.tile_m == 128 else 32}  # 99 KiB
    # No multicast: what a cluster would share is to be found in L2, so twice as many rows of tiles run together.
    return replace(
        config, **fits, tail_n=config.tail_n // 2, cluster=1, swizzle_size=config.swizzle_size * config.cluster
    )


# %% [markdown]
# ## The layouts and the copies
#
# A and B lie in rows of 128 (or 64) bytes in the swizzle mode of that width. TMA writes them so, and `ldmatrix` reads
# eight rows from eight different chunks. C goes out in epilogue subtiles of 64 x `epi_n`, swizzled for `stmatrix` and
# TMA. A subtile belongs to one warpgroup: the permutation in `tiled_mma` keeps each warpgroup's rows of warps in one
# half of the tile.


# %% tags=["folded"]
def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: A and B (rows, K, STAGE), C (64, EPI_N, EPI_STAGE)."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        # First the buffers of warpgroup 0, then those of 1.
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, 2 * c.epi_stages), order=(0, 1, 2)),
    )


# %% tags=["folded"]
def mma_op(dtype) -> warp.MmaF16BF16Op:
    """mma.sync m16n8k16, float32 accumulators."""
    return warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16))


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """mma.sync repeated over the eight warps, 16 columns a warp and step; each warpgroup has one half of the rows."""
    c = config
    warps = cute.make_layout((c.warps_m, c.warps_n, 1), stride=(c.warps_n, 1, 0))
    # 16 rows of one warp, 16 of the next of its warpgroup, and as many in the other half; and again, step_m further
    rows = cute.make_layout((16, c.warps_m // 2, 2, c.fragments_m), stride=(1, 16, c.tile_m // 2, c.step_m))
    return cute.make_tiled_mma(mma_op(dtype), warps, permutation_mnk=(rows, c.step_n, 16))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    s2r_a: cute.TiledCopy  # ldmatrix.x4: four 8x8 matrices a warp
    s2r_b: cute.TiledCopy
    r2s_c: cute.TiledCopy  # stmatrix.x4: one warpgroup, one subtile of 64 x EPI_N


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """ldmatrix for the whole tile, stmatrix for an epilogue subtile of C."""
    c = config
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    mma = tiled_mma(dtype, config)
    warps = cute.make_layout((c.warps_m // 2, c.warps_n, 1), stride=(c.warps_n, 1, 0))  # of one warpgroup
    subtile = cute.make_tiled_mma(mma_op(dtype), warps, permutation_mnk=(c.step_m, c.step_n, 16))
    return TiledCopies(
        s2r_a=cute.make_tiled_copy_A(ldmatrix, mma),
        s2r_b=cute.make_tiled_copy_B(ldmatrix, mma),
        r2s_c=cute.make_tiled_copy_C(stmatrix, subtile),
    )


# %% [markdown] tags=["lab"]
# The tile of A as TMA writes it for a GeForce, 64 bytes a row, without and with the swizzle:

# %% tags=["lab"]
DTYPE = cutlass.BFloat16
draw.swizzle_view(evaluate(smem_layouts, DTYPE, config_for("sm_120a")).a)

# %% [markdown]
# ## The tile scheduler: which tile is next
#
# A tile of 256 x 192 is coarse: C of 4096 x 4096 has 352, not three for each of 132 SMs. Smaller tiles would fit
# better and read more through shared memory. So take **wide tiles as long as they fill whole waves, narrow ones for the
# rest**. `wide_columns` is the heuristic: the busiest cluster is to have least to do. All of this is in units of a
# *cluster's* tile: one for each of its CTAs, one above the other.


# %%
def wide_columns(config: Config, m: int, n: int, sms: int) -> int:
    """Count the columns of C's tiles that are to be TILE_N wide; further ones are TAIL_N wide, if there are any."""
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
    """The work in tiles of a cluster: one tile for each of its CTAs, one above the other."""

    down: cutlass.Int32  # tiles from the top of C to the bottom
    wide: cutlass.Int32  # and from left to right: the number of wide ones,
    narrow: cutlass.Int32  # then the number of narrow ones
    k_tiles: cutlass.Int32  # of each


@cute.jit
def work_tile(number: cutlass.Int32, work: Work, config: cutlass.Constexpr):
    """Return where tile `number` of a cluster is: its row of tiles; its first column and its width in units of
    EPI_N."""
    start, across, width = cutlass.Int32(0), work.wide, cutlass.Int32(config.tile_n // config.epi_n)
    if cutlass.const_expr(config.tail_n > 0):
        before = work.down * work.wide
        if number >= before:  # wide ones first: the last wave ends sooner if its tiles are narrow
            number, across = number - before, work.narrow
            start, width = work.wide * width, cutlass.Int32(config.tail_n // config.epi_n)
    row, column = rasterize(number, (work.down, across), config.swizzle_size // config.cluster)
    return row, start + column * width, width


@cute.jit
def tiles_of_cluster(work: Work, config: cutlass.Constexpr):
    """The numbers of the tiles that this CTA's cluster computes, for `range`: first, end, step."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    return cta // config.cluster, work.down * (work.wide + work.narrow), ctas // config.cluster


# %% [markdown]
# ## The producer
#
# One warp. It asks for a stage's A and B as soon as the stage is free, tile after tile; TMA fills what is outside of
# the matrices with zeros. With `shared B` each CTA of a cluster asks for its part of B *for all of them*. So a stage is
# free when the consumers of all of them are done with it, and full when all parts have arrived.


# %% tags=["folded"]
class TmaTensor(NamedTuple):
    """A matrix that TMA loads or stores."""

    atom: cute.CopyAtom
    tensor: cute.Tensor  # as TMA coordinates


@cute.jit
def rank_in_cluster(config: cutlass.Constexpr):
    """Return which CTA of its cluster this is, from the top."""
    rank = cutlass.Int32(0)
    if cutlass.const_expr(config.cluster > 1):
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    return rank


def to_all(config: Config) -> dict:
    """The mask of a multicast copy: all CTAs of the cluster, a bit for each."""
    return {"mcast_mask": cutlass.Int16((1 << config.cluster) - 1)} if config.cluster > 1 else {}


class Loads(NamedTuple):
    """The producer's copies: for A and for B, a TMA atom, its source and its destination."""

    tma_a: cute.CopyAtom
    tAgA: cute.Tensor  # (TMA, m, k), TMA coordinates
    tAsA: cute.Tensor  # (TMA, STAGE)
    tma_b: cute.CopyAtom
    mB: cute.Tensor  # (N, K), TMA coordinates: narrow tiles begin anywhere
    sB: cute.Tensor  # ((N, K), STAGE)


@cute.jit
def make_loads(a: TmaTensor, sA: cute.Tensor, b: TmaTensor, sB: cute.Tensor, config: cutlass.Constexpr) -> Loads:
    """sA, sB: all stages, (rows, K, STAGE)."""
    gA = cute.local_tile(a.tensor, (config.tile_m, config.tile_k), (None, None))  # (M, K, m, k)
    sA, sB = cute.group_modes(sA, 0, 2), cute.group_modes(sB, 0, 2)
    tAsA, tAgA = cpasync.tma_partition(a.atom, 0, cute.make_layout(1), sA, cute.group_modes(gA, 0, 2))
    return Loads(a.atom, tAgA, tAsA, b.atom, b.tensor, sB)


# %%
@cute.jit
def load_tile(
    pipe: pipeline.PipelineTmaAsync,
    loads: Loads,
    state: pipeline.PipelineState,
    tile: tuple[cutlass.Int32, cutlass.Int32],
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load the k-tiles of a cluster's tile (m, first column), a stage each. Returns the pipeline state.

    Of B always TILE_N rows: for a narrow tile, more than it needs.
    """
    rank, tma_a, tma_b = rank_in_cluster(config), loads.tma_a, loads.tma_b
    tAgA, tAsA = loads.tAgA[None, tile[0] * config.cluster + rank, None], loads.tAsA  # (TMA, k), (TMA, STAGE)
    own = cute.domain_offset((tile[1] * config.epi_n, 0), loads.mB)
    gB = cute.local_tile(own, (config.tile_n, config.tile_k), (0, None))  # (N, K, k)
    sharers = cute.make_layout(config.cluster)
    tBsB, tBgB = cpasync.tma_partition(tma_b, rank, sharers, loads.sB, cute.group_modes(gB, 0, 2))  # (TMA, k)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier)
        cute.copy(tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, **to_all(config))
        state.advance()
    return state


@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, loads: Loads, work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    first, end, step = tiles_of_cluster(work, config)
    for number in cutlass.range(first, end, step, unroll=1):
        row, column, _ = work_tile(number, work, config)
        state = load_tile(pipe, loads, state, (row, column), work.k_tiles, config)
    cute.arch.griddepcontrol_launch_dependents()  # nothing is left to ask for: the next kernel may come
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## A warp's fragments
#
# A warp fetches fragments of 16 x 16 elements, each by one `ldmatrix.x4`, from addresses computed by hand: the code is
# that of [ampere/tuned_gemm](../ampere/tuned_gemm.ipynb). A thread keeps *one* address for A and one for B, XORs 32 k
# for k-block k, and adds whole periods for other fragments and stages. Left to CuTe, the loop of the wide tile has more
# integer instructions than fetches, and on sm_120a it spills.


# %% [markdown]
# ## The main loop
#
# Two ways to have fragments ready when `mma` wants them, both from `ampere/tuned_gemm`.
#
# * `multiply_ahead` (`square`): two buffers of registers; the warp asks for all fragments of the next k-block before it
#   multiplies this one.
# * `multiply_in_place` (`wide`): one buffer, of all of A's fragments and two of B's; a later fragment replaces each one
#   as soon as its last `mma` has been issued. Down A with one fragment of B, up with the next: neighbours share a
#   fragment.
#
# Either way the first fragments of the next stage are fetched while this one is still being multiplied. `next_stage`
# stands behind the last fetch from a stage: it gives the stage back *there*, and waits for the next. The *k-tile
# index*, a number that counts through all tiles of a CTA, says which stage and which phase.


# %%
def state_at(k_tile, config: Config):
    """The consumer's place in the queue of stages at a k-tile index."""
    return pipeline.PipelineState(config.stages, k_tile, k_tile % config.stages, k_tile // config.stages & 1)


class Mainloop(NamedTuple):
    """A consumer warp's values."""

    pipe: pipeline.PipelineTmaAsync
    mma: cute.TiledMma
    a: AddressedOperand
    b: AddressedOperand
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)


@cute.jit
def next_stage(pipe: pipeline.PipelineTmaAsync, read: pipeline.PipelineState, last: cutlass.Constexpr):
    """All that is in this stage has been asked for: give it back, and wait for the next one, if there is one."""
    pipe.consumer_release(read)
    read.advance()
    if cutlass.const_expr(not last):
        pipe.consumer_wait(read)
    return read


@cute.jit
def multiply_in_place(
    main: Mainloop,
    read: pipeline.PipelineState,
    k: cutlass.Constexpr,
    last: cutlass.Constexpr,
    width: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One k-block, each fragment replaced by a later one after its last mma."""
    a, b, fragments_m, fragments_n = main.a, main.b, config.fragments_m, width // config.step_n
    slots, k_blocks = config.b_slots, config.k_blocks
    last_block = k == k_blocks - 1
    for j in cutlass.range_constexpr(fragments_n):
        slot, (further, later) = (k * fragments_n + j) % slots, divmod(j + slots, fragments_n)
        for i in cutlass.range_constexpr(fragments_m):
            m = i if j % 2 == 0 else fragments_m - 1 - i  # down A, then up
            multiply_fragment(main.mma, main.acc, a.operand.regs, b.operand.regs, (m, j), slot, i % 2 == 1)
            if cutlass.const_expr(j == fragments_n - 1 and not (last and last_block)):
                fetch_fragment(a, read.index, (k + 1) % k_blocks, m, m)
        if cutlass.const_expr(last_block and j == fragments_n - slots):
            read = next_stage(main.pipe, read, last)
        if cutlass.const_expr(not (last and last_block and further)):
            fetch_fragment(b, read.index, (k + further) % k_blocks, later, slot)
    return read


@cute.jit
def fetch_block(x: AddressedOperand, stage: cutlass.Int32, k: cutlass.Constexpr):
    """All fragments of k-block `k` into one of two buffers."""
    fragments = cute.size(x.slots, mode=[1]) // 2
    for fragment in cutlass.range_constexpr(fragments):
        fetch_fragment(x, stage, k, fragment, fragment + k % 2 * fragments)


# %%
@cute.jit
def multiply_ahead(
    main: Mainloop,
    read: pipeline.PipelineState,
    k: cutlass.Constexpr,
    last: cutlass.Constexpr,
    width: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One k-block, while the next one's fragments arrive in the other buffer."""
    a, b, last_block = main.a, main.b, k == config.k_blocks - 1
    if cutlass.const_expr(last_block):
        read = next_stage(main.pipe, read, last)
    if cutlass.const_expr(not (last and last_block)):
        fetch_block(a, read.index, (k + 1) % config.k_blocks)
        fetch_block(b, read.index, (k + 1) % config.k_blocks)
    rA, rB = a.operand.regs[None, None, k % 2], b.operand.regs[None, None, k % 2]
    cute.gemm(main.mma, main.acc, rA, rB, main.acc)
    return read


@cute.jit
def multiply_k_tile(
    main: Mainloop,
    read: pipeline.PipelineState,
    last: cutlass.Constexpr,
    width: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """All k-blocks of a stage; in the last of them, the first fragments of the next stage."""
    multiply = multiply_in_place if config.b_slots else multiply_ahead
    for k in cutlass.range_constexpr(config.k_blocks):
        read = multiply(main, read, k, last, width, config)
    return read


# %%
@cute.jit
def multiply_tile(
    main: Mainloop,
    k_tile: cutlass.Int32,
    k_tiles: cutlass.Int32,
    width: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Multiply the k-tiles of one tile, `width` columns wide, into `acc`; `k_tile` is the first one's."""
    pipe, a, b, read = main.pipe, main.a, main.b, state_at(k_tile, config)
    main.acc.fill(0.0)
    pipe.consumer_wait(read)
    if cutlass.const_expr(config.b_slots > 0):
        for i in cutlass.range_constexpr(config.fragments_m):
            fetch_fragment(a, read.index, 0, i, i)
        for j in cutlass.range_constexpr(config.b_slots):
            fetch_fragment(b, read.index, 0, j, j)
    else:
        fetch_block(a, read.index, 0)
        fetch_block(b, read.index, 0)
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        read = multiply_k_tile(main, read, False, width, config)
    multiply_k_tile(main, read, True, width, config)


# %% [markdown]
# ## The epilogue
#
# A warpgroup sends its half of the tile subtile by subtile, as on Hopper. It waits until TMA has read what was in the
# buffer, writes by `stmatrix`, and makes the writes visible to TMA by a fence. Then one thread asks for the copy. The
# producer is already loading the next tile.


# %%
@cute.jit
def store(
    acc: cute.Tensor,
    sC: cute.Tensor,
    tma_c: cute.CopyAtom,
    gC: cute.Tensor,
    corner: tuple[cutlass.Int32, cutlass.Int32],
    copy: cute.TiledCopy,
    width: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """The rows of C that a warpgroup has, `width` columns, out by TMA, in subtiles of 64 x EPI_N.

    sC (64, EPI_N, EPI_STAGE): all buffers; gC (64, EPI_N, m, n): all subtiles of C; corner: (m, n) of the first one.
    """
    tidx, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(tidx // 128)
    is_store_warp = cute.arch.make_warp_uniform(tidx % 128 // 32) == 0  # the warp that issues TMA stores
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    thr = copy.get_slice(tidx % 128)
    tCsC = thr.partition_D(sC)  # (CPY, CPY_M, CPY_N, EPI_STAGE)
    no_multicast = cute.make_layout(1)
    bsC, bgC = cpasync.tma_partition(tma_c, 0, no_multicast, cute.group_modes(sC, 0, 2), cute.group_modes(gC, 0, 2))
    down, across = config.tile_m // 128, width // config.epi_n  # subtiles of a warpgroup
    acc_m, acc_n = 64 // config.step_m, 2 * config.epi_n // config.step_n  # accumulator fragments of a subtile
    for subtile in cutlass.range_constexpr(down * across):
        row, column = divmod(subtile, across)
        buffer = group * config.epi_stages + subtile % config.epi_stages
        rC = cute.make_rmem_tensor(((2, 2), acc_m, acc_n), sC.element_type)
        for m in cutlass.range_constexpr(acc_m):
            for n in cutlass.range_constexpr(acc_n):
                fragment = acc[None, row * acc_m + m, column * acc_n + n]
                rC[None, m, n].store(fragment.load().to(sC.element_type))
        if is_store_warp:
            cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
        barrier.arrive_and_wait()  # all know that the buffer is free
        cute.copy(copy, thr.retile(rC), tCsC[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()  # all have written, and said so to TMA
        if is_store_warp:
            with cute.arch.elect_one():
                cute.copy(tma_c, bsC[None, buffer], bgC[None, corner[0] + group * down + row, corner[1] + column])
                cute.arch.cp_async_bulk_commit_group()


# %% [markdown]
# ## A consumer
#
# A consumer warp goes from tile to tile: multiply, store. Wide and narrow tiles have code of their own.


# %%
@cute.jit
def consume(
    pipe: pipeline.PipelineTmaAsync,
    sA: cute.Tensor,
    sB: cute.Tensor,
    sC: cute.Tensor,
    c: TmaTensor,
    work: Work,
    config: cutlass.Constexpr,
):
    """Multiply and store, tile after tile."""
    dtype = sA.element_type
    tidx, _, _ = cute.arch.thread_idx()
    mma, copies = tiled_mma(dtype, config), tiled_copies(dtype, config)
    gC = cute.local_tile(c.tensor, (64, config.epi_n), (None, None))  # (64, EPI_N, m, n): the subtiles of all of C
    columns, buffers = config.step_n * (config.b_slots or config.fragments_n), 1 if config.b_slots else 2
    rA = cute.make_rmem_tensor(mma.partition_shape_A((config.tile_m, 16 * buffers)), dtype)  # (MMA, MMA_M, buffers)
    rB = cute.make_rmem_tensor(mma.partition_shape_B((columns, 16 * buffers)), dtype)  # (MMA, MMA_N, buffers)
    a = addressed(make_operand(copies.s2r_a, sA, rA, tidx), config.tile_m, config.step_m, config.tile_k)
    b = addressed(make_operand(copies.s2r_b, sB, rB, tidx), config.tile_n, config.step_n, config.tile_k)
    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    main, k_tile = Mainloop(pipe, mma, a, b, acc), cutlass.Int32(0)
    first, end, step = tiles_of_cluster(work, config)
    for number in cutlass.range(first, end, step, unroll=1):
        row, column, units = work_tile(number, work, config)
        corner = ((row * config.cluster + rank_in_cluster(config)) * (config.tile_m // 64), column)
        for width in config.widths:
            if cutlass.const_expr(config.tail_n == 0) or units == width // config.epi_n:
                multiply_tile(main, k_tile, work.k_tiles, width, config)
                store(acc, sC, c.atom, gC, corner, copies.r2s_c, width, config)
        k_tile = k_tile + work.k_tiles
    cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# ## The kernel
#
# A kernel of 384 threads starts with 168 registers each, of 65536. `setmaxnreg` gives most of the producer's to the
# consumers, and 192 accumulators a thread fit.


# %%
@cute.jit
def make_pipeline(barriers: cute.Pointer, config: cutlass.Constexpr):
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
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    work: Work,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its share of the tiles of C, one after the other.

    Who waits for whom, with the CONFIG of blackwell/geforce_gemm:

    warps  do          wait for  signal
    0-7    TMA stores  full[3]   empty[3]: 1 a warp, in 2 CTAs
    8      TMA loads   empty[3]  full[3]: 1, expects 57344 bytes; bytes, in 2 CTAs

    full[3]: 1 arrival and its bytes a phase.
    empty[3]: 16 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    layouts = smem_layouts(dtype, config)
    if warp_idx == 8:
        for matrix in (a, b, c):
            cpasync.prefetch_descriptor(matrix.atom)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # Every CTA allocates the same, so that what a multicast writes lies at the same offset in each.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    pipe = make_pipeline(barriers, config)

    cute.arch.griddepcontrol_wait()  # the kernel before has ended: from here on global memory may be touched
    if warp_idx >= 8:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == 8:
            produce(pipe, make_loads(a, sA, b, sB, config), work, config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        consume(pipe, sA, sB, sC, c, work, config)


# %% [markdown]
# ## The launch and `matmul`
#
# As many clusters as there is room for, or work. What does not change from tile to tile is counted once and reaches the
# kernel as a constant, which takes no register. `Gemm`, which all recipes share, checks the operands, and for each kind
# of call keeps the compiled kernel with its launch arguments: a *plan*.


# %%
class Sizes(NamedTuple):
    """The numbers of a launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of the rows of A, B, C, in elements
    sms: cutlass.Int32  # of the GPU
    wide_columns: cutlass.Int32  # columns of tiles that are TILE_N wide


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed."""
    (m, n, k), dtype = sizes.mnk, pA.dtype
    lda, ldb, ldc = sizes.strides
    layouts = smem_layouts(dtype, config)
    mA, mB, mC = row_major(pA, m, k, lda, 8), row_major(pB, n, k, ldb, 8), row_major(pC, m, n, ldc, 8)
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), 1)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    work = work_of(m, n, k, sizes.wide_columns, config)
    clusters = cutlass.min(work.down * (work.wide + work.narrow), sizes.sms // config.cluster)
    kernel(a, b, c, work, dtype, config).launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=True,
    )


@cute.jit
def work_of(
    m: cutlass.Int32, n: cutlass.Int32, k: cutlass.Int32, wide_columns: cutlass.Int32, config: cutlass.Constexpr
):
    """Tiles of clusters in C (m, n), the first `wide_columns` columns of them wide ones."""
    narrow = cutlass.Int32(0)
    if cutlass.const_expr(config.tail_n > 0):
        narrow = cute.ceil_div(cutlass.max(n - wide_columns * config.tile_n, 0), config.tail_n)
    down = cute.ceil_div(m, config.tile_m * config.cluster)
    return Work(down, wide_columns, narrow, cute.ceil_div(k, config.tile_k))


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (m, n, _), config = call.mnk, config_for(call.arch, call.variant)
    return (config,), (Sizes(call.mnk, call.strides, call.sms, wide_columns(config, m, n, call.sms)),)


GPUS = ((9, 0), (12, 0), (12, 1))
GEMM = Gemm(compile_for, prepare, gpus=GPUS, needs="TMA and mma.sync", variants=VARIANTS, padded=True)


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
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Clocks of a k-tile
#
# The table has clocks of one SM for each k-tile. The tensor cores multiply at the rate that [a loop of
# `mma.sync`](../foundations/tensor_core_ceiling.ipynb) reached on an H200. Shared memory serves one wavefront of
# `ldmatrix` a clock, and takes 128 bytes a clock from TMA. sm_120a is counted at the H200's rate too.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import access, banks
from cookbook.lab import limits_table, results_table, table

RATE = 1357  # multiply-adds of an SM in a clock by mma.sync: foundations/tensor_core_ceiling, on an H200


def wavefronts_of_k_tile(config: Config) -> int:
    """Count the wavefronts of the eight warps' ldmatrix, for one k-tile of A and of B."""
    lies, moves = (evaluate(made, DTYPE, config) for made in (smem_layouts, tiled_copies))
    pairs = ((lies.a, moves.s2r_a), (lies.b, moves.s2r_b))
    asked = [each for at, by in pairs for w in range(8) for each in access.of_copy(at, by, "src", "ldmatrix", warp=w)]
    return sum(banks.wavefronts(each.addresses, each.width).actual for each in asked)


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
# ## Waves
#
# The part of the SMs' time that goes into elements of C: all of them, over what the busiest CTA computes times the
# number of CTAs.

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
# ## Check
#
# Every level looks at every variant, for a Hopper and for both GeForce targets. **Nothing here has run on sm_120 or
# sm_121.**

# %% tags=["lab"]
lab.check_cells("blackwell/geforce_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("blackwell/geforce_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# On a Hopper, in one run: "ours" is the last variant. `torch.matmul` and QuACK use `wgmma` there, which a GeForce does
# not have; the ceiling is that of `mma.sync`.

# %% tags=["lab"]
Markdown(results_table("blackwell/geforce_gemm"))

# %% [markdown] tags=["lab"]
# ## What limits it
#
# Each variant and peer alone, while the GPU reports its clock and its power. Where the clock is lowered for power,
# fewer *J for each TFLOP* are worth more than fewer clocks. The second table is ncu's, of one launch of each variant.

# %% tags=["lab"]
Markdown(limits_table("blackwell/geforce_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# The instruction that multiplies is Ampere's, and so is the loop around it. The newer chip frees that loop: loads cost
# the consumers nothing, a stage is free the moment it has been copied, C leaves in the background, and the consumers
# get the producer's registers.
#
# Of the three steps after `square` only the last pays at both of the sizes measured. Sharing B pays at the larger one.
# The wide tile alone loses at 4096 x 4096, as its waves predict. With narrow tiles after it, it is the one to take for
# large products, and close to the square one for smaller ones.
#
# What is left is `mma.sync` itself, and between tiles an epilogue in which its warps do not multiply. [Ping-pong
# warpgroups](../hopper/pingpong_gemm.ipynb) would hide that, with smaller tiles; we have not tried it here.
