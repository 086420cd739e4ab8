# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Ping-pong
#     claim: >-
#       Each consumer warpgroup has its own tile and the two alternate: while one stores, the other multiplies, which
#       pays most where K is short.
#     track: hopper
#     order: 70
#     builds_on: hopper/persistent_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma, ping-pong -> stmatrix -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     baselines: [cooperative]
#     bench_shapes: [[8192, 8192, 512], [8192, 8192, 1024], [8192, 8192, 2048], [4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
# ---

# %% [markdown]
# # Ping-pong
#
# **Claim.** Two *cooperative* warpgroups share a tile, multiply it together, and then both store it; meanwhile the
# tensor cores are idle. In the *ping-pong* schedule each warpgroup has a **tile of its own**: while one rounds and
# stores, the other multiplies.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/pingpong_gemm", (8192, 8192, 512), over=["cooperative", "128x128", "128x128 + PDL"])

# %% [markdown]
# It hides a cost *per tile*. The multiplication of a tile takes time in proportion to K, its epilogue does not: the
# shorter K is, the more ping-pong can gain. Where K is short, the time between one kernel and the next counts, too.
# *Programmatic dependent launch* (PDL) lets the next kernel get ready while this one ends, and hides part of that time.
#
# Three things are new: who has which tile, the barriers that make the ping-pong order, and two instructions for the
# launch. Layouts, multicast, the persistent loop and the stores are those of [the page before](persistent_gemm.ipynb).

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# A cooperative pair holds a tile of 128 x 256 together: 128 accumulators a thread. In ping-pong a warpgroup holds *all*
# of its tile: 128 x 128 are 128 accumulators a thread, 128 x 192 are 192. With `setmaxnreg` a consumer thread has 240
# registers, so 128 x 192 is the limit. The price of ping-pong is a narrower tile, and a narrower tile loads more for
# each multiplication. `VARIANTS` has both sides:
#
# | variant | a warpgroup holds | elements that come into an SM for 1000 products | stages |
# |---|---|---|---|
# | `cooperative` | half of 128 x 256 | 1000 (1 / 128 + 1 / 256) = 11.7 | 4 |
# | `128x192 + PDL` | 128 x 192 | 13.0 | 4 |
# | `128x128`, `128x128 + PDL` | 128 x 128 | 15.6 | 6 |
#
# (Half of the tile of B comes by the neighbour's multicast, so that a CTA asks L2 for fewer.) The stages are one queue.
# Both warpgroups read from it: ping-pong, a whole tile each.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 192  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    epi_n: int = 64  # columns of an epilogue subtile of C: 128 bytes
    epi_buffers: int = 2  # epilogue subtiles of C on their way out, for each warpgroup
    cluster_m: int = 2  # CTAs of a cluster down C: they share tiles of B
    cluster_n: int = 1  # and across: they share tiles of A
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles
    pingpong: bool = True  # a warpgroup has a tile of its own; False: both share one
    pdl: bool = True  # this kernel's launch may overlap the end of the one before, and the next one's the end of this

    def __post_init__(self):
        check_epilogue("epi_buffers", self.epi_buffers, self.tile_m // 64 // self.sharing * (self.tile_n // self.epi_n))

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def warpgroups(self) -> int:
        return 2  # consumers

    @property
    def sharing(self) -> int:
        return 1 if self.pingpong else self.warpgroups  # consumers of one tile

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups + 128  # and a producer warpgroup, of which one warp works

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def buffer_bytes(self) -> int:
        return self.warpgroups * self.epi_buffers * 64 * self.epi_n * 2

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A and B; and C after them
        return 1024 + self.stages * self.stage_bytes + self.buffer_bytes


VARIANTS = {
    "cooperative": Config(tile_n=256, pingpong=False, pdl=False),
    "128x128": Config(tile_n=128, stages=6, pdl=False),
    "128x128 + PDL": Config(tile_n=128, stages=6),
    "128x192 + PDL": Config(),
}
DEFAULT = "128x192 + PDL"  # the fastest where K is short and its tiles fill the waves
CONFIG = VARIANTS[DEFAULT]
REGISTERS = (24, 240)  # of a producer's thread and of a consumer's: 128 * 24 + 256 * 240 of an SM's 65536


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown] tags=["lab"]
# ## The schedule, drawn
#
# First the arithmetic, in clocks of an SM. Two figures are NVIDIA's, and three are assumed:
#
# * The tensor cores of an SM do 2048 multiply-adds a clock, so a tile takes **t** = tile_m x tile_n x K / 2048.
# * An epilogue takes **e**: shared memory moves 128 bytes a clock, and every byte of C goes in once (`stmatrix`) and
#   out once (TMA); and each subtile of a warpgroup is a chain of its own, wait, barrier, round, write, fence, barrier:
#   200 clocks, assumed.
# * Cooperative, a tile takes **t + e**. In ping-pong, the tensor cores need t for every tile, and a warpgroup is
#   through with its tile after t + e, while two of them work: the larger of **t** and **(t + e) / 2** counts. Only the
#   last epilogue of all is seen.
# * From the end of one kernel to the first wgmma of the next 2500 clocks are assumed, and with PDL 1000: the first tile
#   must still come from memory.
# * A CTA computes whole tiles: the largest share counts, rounded up.

# %% tags=["lab"]
SMS, MACS, SMEM_BYTES = 132, 2048, 128  # of an H200; an SM's multiply-adds and bytes of shared memory in a clock
SUBTILE, BETWEEN, BETWEEN_PDL = 200, 2500, 1000  # clocks, assumed


def multiplying(config: Config, k: int) -> float:
    """Clocks of the tensor cores for one tile."""
    return config.tile_m * config.tile_n * -(-k // config.tile_k) * config.tile_k / MACS


def epilogue(config: Config) -> float:
    """Clocks from a tile's last wgmma until its accumulators are free again."""
    subtiles = config.tile_m // 64 * (config.tile_n // config.epi_n) // config.sharing  # of a warpgroup
    return 2 * config.tile_m * config.tile_n * 2 / SMEM_BYTES + subtiles * SUBTILE


def cluster_tiles(config: Config, m: int, n: int) -> int:
    """Tiles of all CTAs of a cluster together, that C is made of."""
    return -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n))


def rounds_of(config: Config, m: int, n: int) -> int:
    """Tiles of the CTA that has the most."""
    tiles = cluster_tiles(config, m, n)
    return -(-tiles // min(tiles, SMS // config.cluster))


def clocks(config: Config, m: int, n: int, k: int) -> float:
    """Clocks of one product in a sequence of products, by the rules above."""
    t, e, rounds = multiplying(config, k), epilogue(config), rounds_of(config, m, n)
    work = rounds * max(t, (t + e) / 2) + e if config.pingpong else rounds * (t + e)
    return work + (BETWEEN_PDL if config.pdl else BETWEEN)


# %% [markdown] tags=["lab"]
# As many columns of C by both schedules, K = 512: two tiles of 128 x 256 by the pair, four of 128 x 128 by ping-pong.
# In the upper lanes every epilogue is a hole in the lane of the tensor cores. In the lower ones there is none.

# %% tags=["lab"]


def schedule(config: Config, k: int, rounds: int) -> dict[str, list[draw.Span]]:
    """The lanes of both warpgroups and of the tensor cores, computed from the rules above."""
    t, e, free, tensor = multiplying(config, k), epilogue(config), [0.0, 0.0], 0.0
    spans: dict[str, list[draw.Span]] = {"warpgroup 0": [], "warpgroup 1": [], "tensor cores": []}
    for iteration in range(rounds):
        groups = (iteration % 2,) if config.pingpong else (0, 1)
        start = max(tensor, *(free[group] for group in groups))
        tensor = start + t
        spans["tensor cores"].append(draw.Span(start, tensor, f"tile {iteration}", "multiply"))
        for group in groups:
            part = f"tile {iteration}" if config.pingpong else f"half of {iteration}"
            spans[f"warpgroup {group}"].append(draw.Span(start, tensor, part, "multiply"))
            spans[f"warpgroup {group}"].append(draw.Span(tensor, tensor + e, "", "round and store"))
            free[group] = tensor + e
    return spans


cooperating, alternating = schedule(VARIANTS["cooperative"], 512, 2), schedule(VARIANTS["128x128"], 512, 4)
lanes = {f"cooperative: {lane}": spans for lane, spans in cooperating.items()} | {"": []}
lanes |= {f"ping-pong: {lane}": spans for lane, spans in alternating.items()}
draw.lanes(lanes, "Both halves of a row, K = 512: computed, not measured", note="gaps: the lane has nothing to do")

# %% [markdown]
# ## The layouts and the MMA
#
# As before: K-major tiles in 128-byte rows, and C in epilogue subtiles of 64 x 64, two buffers for each warpgroup. One
# word is new: `sharing`, how many warpgroups a tile has. It is the number of times that the MMA is repeated down M, and
# if it is one, a warpgroup goes down all the rows of its tile itself, 64 at a time.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (64, EPI_N, BUFFER)


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
    buffers = c.warpgroups * c.epi_buffers
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (64, c.epi_n, buffers), order=(0, 1, 2)),
    )


def wgmma_op(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """wgmma m64nNk16, A and B from shared memory, both K-major."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, k_major, k_major)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the warpgroups that share a tile: of two, or of one that goes down all its rows itself."""
    return cute.make_tiled_mma(wgmma_op(dtype, config.tile_n), (config.sharing, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4: one warpgroup, one subtile of 64 x EPI_N


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The one copy of the epilogue."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma_op(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, subtile))


# %% [markdown]
# ## The tile scheduler: whose tile is it?
#
# The tiles of a CTA come one after the other, as in any persistent kernel, and their place in this sequence is the
# **tile iteration**. Iteration 0 is warpgroup 0's, iteration 1 is warpgroup 1's, iteration 2 is 0's again. The producer
# does not care: it loads tile after tile.
#
# The queue of stages needs no more than that either. Number the k-tiles of a CTA from its first tile iteration on:
# iteration `t` begins at **k-tile index** `t * k_tiles`. The index tells everything about its place: it lies in stage
# `k_index % stages`, and that stage has been filled `k_index // stages` times before, the lowest bit of which is the
# *phase* to wait for. So a warpgroup that skips every other tile iteration carries no state over; it computes where it
# is.


# %%
class Scheduler(NamedTuple):
    """The work tiles of one CTA."""

    down: cutlass.Int32  # cluster tiles from the top of C to the bottom
    across: cutlass.Int32  # and from left to right
    first: cutlass.Int32  # number of its cluster, and of the cluster's first tile
    step: cutlass.Int32  # from one to the next: the clusters of the grid
    count: cutlass.Int32  # of work tiles
    rank: tuple  # (row, column) of the CTA in its cluster


@cute.jit
def make_scheduler(shape_mn, config: cutlass.Constexpr):
    """The `Scheduler` of this CTA."""
    rank = rank_in_cluster(config)
    down = cute.ceil_div(shape_mn[0], config.tile_m * config.cluster_m)
    across = cute.ceil_div(shape_mn[1], config.tile_n * config.cluster_n)
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster, ctas // config.cluster
    return Scheduler(down, across, first, step, (down * across - first + step - 1) // step, rank)


@cute.jit
def work_tile(scheduler: Scheduler, i, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    number, wanted = scheduler.first + i * scheduler.step, config.swizzle_size // config.cluster_m
    group, inside = number // (wanted * scheduler.across), number % (wanted * scheduler.across)
    first = group * wanted
    height = cutlass.min(scheduler.down - first, wanted)  # the last group may be lower
    m, n = first + inside % height, inside // height
    return m * config.cluster_m + scheduler.rank[0], n * config.cluster_n + scheduler.rank[1]


@cute.jit
def rank_in_cluster(config: cutlass.Constexpr):
    """(row, column) of this CTA in its cluster."""
    number = cutlass.Int32(0)
    if cutlass.const_expr(config.cluster > 1):
        number = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    return number % config.cluster_m, number // config.cluster_m


def slot_of(number, config: Config):
    """The pipeline's state at k-tile `number`, counted over all tiles of the CTA."""
    stage, phase = number % config.stages, number // config.stages & 1
    return pipeline.PipelineState(config.stages, number, stage, phase)


# %% [markdown]
# ## The producer
#
# One warp and one queue, as before. Its last line but one is new, and comes up again below.


# %%
@cute.jit
def multicast_masks(rank, config: cutlass.Constexpr):
    """Who is to get the part of A, and the part of B, that the CTA at `rank` fetches: a bit for each CTA."""
    whole_row = sum(1 << n * config.cluster_m for n in range(config.cluster_n))  # of the CTA at (0, 0)
    whole_column = (1 << config.cluster_m) - 1
    return cutlass.Int16(whole_row) << rank[0], cutlass.Int16(whole_column) << rank[1] * config.cluster_m


@cute.jit
def load(tma, source, target, barrier, mask, sharers: cutlass.Constexpr):
    """One TMA copy of this CTA's part of a tile, to itself and all others that share the tile."""
    if cutlass.const_expr(sharers > 1):
        cute.copy(tma, source, target, tma_bar_ptr=barrier, mcast_mask=mask)
    else:
        cute.copy(tma, source, target, tma_bar_ptr=barrier)


class Loads(NamedTuple):
    """What the producer copies: for A and for B, a TMA atom, its source and its destination."""

    tma_a: cute.CopyAtom
    tAgA: cute.Tensor  # (TMA, m, k), TMA coordinates
    tAsA: cute.Tensor  # (TMA, STAGE)
    tma_b: cute.CopyAtom
    tBgB: cute.Tensor  # (TMA, n, k), TMA coordinates
    tBsB: cute.Tensor  # (TMA, STAGE)


@cute.jit
def load_tile(pipe, loads: Loads, state, tile, masks, config: cutlass.Constexpr):
    """Load the k-tiles of work tile (m, n), a stage each. Returns the pipeline state."""
    tAgA, tBgB = loads.tAgA[None, tile[0], None], loads.tBgB[None, tile[1], None]  # (TMA, k)
    tAsA, tBsB = loads.tAsA, loads.tBsB  # (TMA, STAGE)
    for k_tile in cutlass.range(cute.size(tAgA, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        load(loads.tma_a, tAgA[None, k_tile], tAsA[None, state.index], barrier, masks[0], config.cluster_n)
        load(loads.tma_b, tBgB[None, k_tile], tBsB[None, state.index], barrier, masks[1], config.cluster_m)
        state.advance()
    return state


@cute.jit
def produce(pipe, loads: Loads, scheduler: Scheduler, config: cutlass.Constexpr):
    """Load all work tiles of this CTA: the stages are kept full, tile after tile."""
    masks = multicast_masks(scheduler.rank, config)
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(scheduler.count, unroll=1):
        tile = work_tile(scheduler, iteration, config)
        state = load_tile(pipe, loads, state, tile, masks, config)
    if cutlass.const_expr(config.pdl):
        cute.arch.griddepcontrol_launch_dependents()  # nothing is left to ask for: the next kernel may come
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The ping-pong order
#
# Without an order the wgmmas of both warpgroups would mix. Both tiles would be done late and at the same time, and both
# epilogues would again find idle tensor cores. So a warpgroup waits until the other has *issued* its whole tile, and
# signals when it has issued its own. Issued is enough: the tensor cores take commit groups in order, and the next
# tile's first group is ready while the last one of this tile still runs.
#
# Two named barriers do it, one for each direction: 128 threads wait there, and 128 arrive and go on. The first tile
# iteration does not wait, and the last one does not arrive.
#
# **The trap: a wait by parity sees only one phase far.** The order is not a matter of speed alone. A barrier in shared
# memory has *one bit* for its phase, and `wait(phase)` asks: is the phase of that parity over?
#
# The queue of stages is longer than one bit can count. Warpgroup 1 begins `k_tiles` k-tiles ahead of warpgroup 0.
# Without the order it would ask a stage's barrier for phase 1 while not even phase 0 is complete. The barrier says yes,
# because *the phase of that parity before* is over: that is how the producer finds empty stages at the start. Warpgroup
# 1 then multiplies what happens to lie there, and releases a stage that it never had.
#
# Once the other warpgroup has waited for all its k-tiles the bit is enough: the k-tile that follows in each stage is
# the next phase, and the one after that cannot come before we have released ours.


# %%
TURN_BARRIER = 3  # the first of two named barriers, 3 and 4; 1 and 2 are those of the epilogues


class Mainloop(NamedTuple):
    """What a consumer warpgroup multiplies: the pipeline, the operands and the accumulators."""

    pipe: pipeline.PipelineTmaAsync
    k_tiles: cutlass.Int32  # of each work tile
    overwrite: cute.TiledMma  # acc = A B, for the first k-block of a work tile
    accumulate: cute.TiledMma  # acc += A B
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    acc: cute.Tensor  # float32 in registers, (MMA, MMA_M, MMA_N)


@cute.jit
def issue_wgmmas(main: Mainloop, stage, first: cutlass.Constexpr = False):
    """Issue the wgmmas of one stage as one commit group; `first`: of a work tile, its first one overwrites `acc`."""
    acc, tCrA, tCrB = main.acc, main.tCrA, main.tCrB
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # 16 elements, 32 bytes, along K
        mma = main.overwrite if first and k == 0 else main.accumulate
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def multiply_tile(main: Mainloop, iteration, count, group, config: cutlass.Constexpr):
    """Multiply the k-tiles of this tile iteration into `main.acc`."""
    read, release = slot_of(iteration * main.k_tiles, config), slot_of(iteration * main.k_tiles, config)
    if cutlass.const_expr(config.pingpong):
        if iteration > 0:
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + group, num_threads=256).arrive_and_wait()
    main.pipe.consumer_wait(read)
    issue_wgmmas(main, read.index, first=True)
    read.advance()
    for _ in cutlass.range(main.k_tiles - 1, unroll=1):
        main.pipe.consumer_wait(read)
        issue_wgmmas(main, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        main.pipe.consumer_release(release)
        release.advance()
    if cutlass.const_expr(config.pingpong):
        if iteration + 1 < count:  # all is issued: the other one is next
            pipeline.NamedBarrier(barrier_id=TURN_BARRIER + 1 - group, num_threads=256).arrive()
    warpgroup.wait_group(0)
    main.pipe.consumer_release(release)


# %% [markdown]
# ## The epilogue
#
# Epilogue subtile after epilogue subtile through two buffers, as before. A warpgroup that has all rows of a tile sends
# the subtiles of its first 64 rows, then those of the next (`down`). Nothing in them concerns the other warpgroup,
# which multiplies all the while: the barrier is of these 128 threads.


# %%
class TmaTensor(NamedTuple):
    """A matrix as TMA sees it."""

    atom: cute.CopyAtom
    coords: cute.Tensor  # TMA coordinates: (M, K), (N, K) or (M, N), or tiles of these


class Cta(NamedTuple):
    """What the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sC: cute.Tensor  # (64, EPI_N, BUFFER): first the buffers of warpgroup 0, then those of 1


@cute.jit
def store(acc, sC, out: TmaTensor, first, copy, group, config: cutlass.Constexpr):
    """The rows of C that a warpgroup has, out by TMA.

    sC (64, EPI_N, BUFFER): all buffers; out (64, EPI_N, m, n): all subtiles of C; first: (m, n) of the tile's first.
    """
    tidx = cute.arch.thread_idx()[0] % 128
    barrier = pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
    sends = cute.arch.make_warp_uniform(tidx // 32) == 0  # the warp that talks to TMA
    thr = copy.get_slice(tidx)
    tCsC = thr.partition_D(sC)  # (CPY, CPY_M, CPY_N, BUFFER)
    whole = cute.make_layout(1)  # a subtile is one box: nothing is divided among CTAs
    bsC, bgC = cpasync.tma_partition(out.atom, 0, whole, cute.group_modes(sC, 0, 2), cute.group_modes(out.coords, 0, 2))
    held = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))  # (MMA, MMA_M, MMA_N) of a thread in one subtile
    across = config.tile_n // config.epi_n
    for i in cutlass.range_constexpr(config.tile_m // 64 // config.sharing * across):
        buffer = group * config.epi_buffers + i % config.epi_buffers
        down = i // across if config.pingpong else group
        if sends:
            cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)
        barrier.arrive_and_wait()  # all know that the buffer is free
        rC = cute.make_rmem_tensor(held, sC.element_type)
        rC.store(cute.make_tensor(acc.iterator + i * cute.size(held), held).load().to(sC.element_type))
        cute.copy(copy, thr.retile(rC), tCsC[None, None, None, buffer])
        cute.arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()  # all have written, and said so to TMA
        if sends:
            with cute.arch.elect_one():
                cute.copy(out.atom, bsC[None, buffer], bgC[None, first[0] + down, first[1] + i % across])
                cute.arch.cp_async_bulk_commit_group()


@cute.jit
def consume(cta: Cta, out: TmaTensor, scheduler: Scheduler, k_tiles, config: cutlass.Constexpr):
    """Multiply and store, every tile, or every other one. out: the subtiles of the whole of C, (64, EPI_N, m, n)."""
    dtype = cta.sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    copy = tiled_copies(dtype, config).r2s_c
    tidx, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(tidx // 128)
    thr = accumulate.get_slice(tidx % (128 * config.sharing))
    tCrA = thr.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = thr.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    main = Mainloop(cta.pipe, k_tiles, overwrite, accumulate, tCrA, tCrB, acc)
    down, across = config.tile_m // 64, config.tile_n // config.epi_n  # subtiles of a tile
    mine, every = (group, 2) if config.pingpong else (0, 1)
    for iteration in cutlass.range(mine, scheduler.count, every, unroll=1):
        m, n = work_tile(scheduler, iteration, config)
        multiply_tile(main, iteration, scheduler.count, group, config)
        store(acc, cta.sC, out, (m * down, n * across), copy, group, config)
    if tidx % 128 // 32 == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# ## One kernel after the other
#
# A product is seldom alone: it follows a kernel, and another follows it. By default the next kernel starts when the
# last CTA of this one has ended and its writes are visible. Then its CTAs set their barriers, fetch their tensor maps
# and ask for their first tiles. A microsecond or two have passed.
#
# **Programmatic dependent launch** (PDL) takes two instructions, and a launch that asks for it:
#
# * `griddepcontrol.wait` stands before the *first access to global memory*, read or write, in every thread. It returns
#   when the kernel before has ended and its writes can be seen. All that stands above it runs before that: barriers,
#   tensor maps (they are kernel arguments, not memory that another kernel writes).
# * `griddepcontrol.launch_dependents` says: the next kernel may begin to start. The producer says it once its last load
#   is issued. Our CTA takes nearly all of the SM's shared memory, so that the next kernel's CTA gets in only when ours
#   leaves; but then at once, SM by SM, instead of after the slowest SM of all.
#
# It is safe whatever runs before and after. A kernel without `launch_dependents` signals at its end, and a kernel that
# is launched without PDL waits for the end of ours, as usual.

# %% [markdown]
# ## The kernel
#
# The persistent kernel, and PDL. A stage is now empty when the warps of *one* warpgroup have read it, in each CTA that
# shares it: `sharing` again.


# %%
@cute.jit
def make_pipeline(barriers, config: cutlass.Constexpr):
    """The barriers of the stages, full and empty, of this CTA, in step with those of its cluster."""
    sharers = config.cluster_m + config.cluster_n - 1  # CTAs with which this one has A or B in common, and itself
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.sharing * sharers),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
    )


@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its share of the tiles of C, one after the other."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    scheduler, layouts = make_scheduler(c.coords.shape, config), smem_layouts(dtype, config)
    if warp_idx == 4 * config.warpgroups:
        for tma in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(tma)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # Every CTA allocates the same, so that what a multicast writes lies at the same offset in each.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    cta = Cta(make_pipeline(barriers, config), sA, sB, sC)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (64, config.epi_n), (None, None))  # (64, EPI_N, m, n)

    if cutlass.const_expr(config.pdl):
        cute.arch.griddepcontrol_wait()  # the kernel before has ended: from here on global memory may be touched
    if warp_idx >= 4 * config.warpgroups:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == 4 * config.warpgroups:
            in_row, in_column = cute.make_layout(config.cluster_n), cute.make_layout(config.cluster_m)
            grouped = [cute.group_modes(x, 0, 2) for x in (sA, gA, sB, gB)]
            tAsA, tAgA = cpasync.tma_partition(a.atom, scheduler.rank[1], in_row, grouped[0], grouped[1])
            tBsB, tBgB = cpasync.tma_partition(b.atom, scheduler.rank[0], in_column, grouped[2], grouped[3])
            produce(cta.pipe, Loads(a.atom, tAgA, tAsA, b.atom, tBgB, tBsB), scheduler, config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        consume(cta, TmaTensor(c.atom, gC), scheduler, cute.size(gA, mode=[3]), config)


# %% [markdown]
# ## The launch
#
# As many clusters as there is room for, or work. `use_pdl` asks for the overlap with the kernel *before*.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, (64, config.epi_n)))
    down = cute.ceil_div(m, config.tile_m * config.cluster_m)
    across = cute.ceil_div(n, config.tile_n * config.cluster_n)
    clusters = cutlass.min(down * across, sms // config.cluster)
    kernel(a, b, c, dtype, config).launch(
        grid=(clusters * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=config.pdl,
    )


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `Gemm`, which all recipes share, checks a call, compiles the kernel, and keeps a *plan* for each kind of call. This is
# the part that is this kernel's own.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (VARIANTS[call.variant],), (call.mnk, call.strides, call.sms)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=VARIANTS, padded=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: the tile, who shares it, and how the launch overlaps the one before.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## The trap of one bit
#
# What does warpgroup 1 take if it begins first, with six stages? Its wait is over once the barrier's bit differs from
# the phase it waits for: at once for phase 1, after one load into the stage for phase 0.

# %% tags=["lab"]
STAGES = VARIANTS["128x128"].stages
for k_tiles in (4, 8, 16):
    stage, phase = k_tiles % STAGES, k_tiles // STAGES & 1
    found = "what lies there" if phase else f"k-tile {stage}"
    print(f"{k_tiles:2} k-tiles: it waits at stage {stage} for phase {phase}, takes {found}; needed k-tile {k_tiles}")

# %% [markdown] tags=["lab"]
# Where a tile has fewer k-tiles than there are stages it never goes wrong: a test with a small K would have passed.
# Level *pipeline* of the check below tries every interleaving of the warps.
#
# ## The prediction
#
# The formulas above for K from 512 to 8192, and what they say each variant gains on `cooperative`:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.measure import records
from cookbook.publish.pages import results_table, table

KS = (512, 1024, 2048, 8192)


def gains(times: dict[str, float]) -> dict[str, float]:
    """How many times as fast as `cooperative` each variant is."""
    return {variant: times["cooperative"] / time for variant, time in times.items()}


def predicted(m: int, n: int, k: int) -> dict[str, float]:
    """Clocks of each variant."""
    return {variant: clocks(config, m, n, k) for variant, config in VARIANTS.items()}


rows = []
for variant, config in VARIANTS.items():
    each = [(predicted(8192, 8192, k)[variant], gains(predicted(8192, 8192, k))[variant]) for k in KS]
    rows.append(
        [
            variant,
            str(rounds_of(config, 8192, 8192)),
            f"{epilogue(config):.0f}",
            *(f"{c:.0f} ({g:.2f}x)" for c, g in each),
        ]
    )
Markdown(
    "Clocks of 8192 x 8192 x K, predicted for an H200:\n\n"
    + table(["variant", "tiles a CTA", "epilogue", *(f"K = {k}" for k in KS)], rows)
)

# %% [markdown] tags=["lab"]
# The formulas leave out three things. Shared memory has to deliver more operands for each multiplication of a narrow
# tile. Memory has to take C in, and where K is short that is most of its traffic. And a GPU at its power limit lowers
# its clock: the longer K is, the more that counts, and the wider tile needs less energy.
#
# ## Check
#
# Every level looks at every variant.
#
# The check is of the cells above: edit one, run it, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/pingpong_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("hopper/pingpong_gemm", matmul, (8192, 8192, 1024))

# %% [markdown] tags=["lab"]
# All variants and their peers, interleaved in one run on one GPU; "ours" is the default, called without an argument.
# Launches follow one another without a gap, as in a model's forward pass: that is where PDL has something to hide.

# %% tags=["lab"]
Markdown(results_table("hopper/pingpong_gemm"))

# %% [markdown] tags=["lab"]
# What each variant gains on `cooperative`, predicted and measured. "Ours" and `128x192 + PDL` above are *the same
# kernel*, timed twice in the same rounds: what lies between them is the spread, in the last column.

# %% tags=["lab"]


def measured_gains() -> str:
    """Every current record's gains and the predicted ones, or that there is no record."""
    rows = []
    for r in records.of_one_gpu("hopper/pingpong_gemm", "timed"):
        said = gains(predicted(*r["shape"]))
        found = gains({variant: r["peers"][variant]["median_ms"] for variant in VARIANTS})
        shape = " x ".join(map(str, r["shape"]))
        twice = abs(r["figures"]["median_ms"] / r["peers"][DEFAULT]["median_ms"] - 1)
        each = (f"{said[v]:.2f}x / {found[v]:.2f}x" for v in VARIANTS)
        rows.append([r["device"], f"{shape}, {r['dtype']}", *each, f"{twice:.1%}"])
    header = ["device", "shape", *VARIANTS, "one kernel twice, apart"]
    return table(header, rows, right=2) if rows else "*Not measured yet.*"


Markdown(measured_gains())

# %% [markdown] tags=["lab"]
# Take 8192 x 8192 first. On an H200 ping-pong gains at the shortest K, and less than the clocks predict. With the
# narrow tile next to nothing of the gain is left at the second K, and from the third on it is slower than
# `cooperative`. The wide tile is ahead of all others but at the longest K, where it is level with `cooperative`; so it
# is the default of `matmul`.
#
# What the formulas left out counts: bytes, and the power to move them, of which the wide tile needs fewer than the
# narrow one. The part of PDL is small and not always a gain; at the shortest K, where the clocks predicted the most of
# it, it is none.
#
# At the smaller cube the wide tile is the slowest of all, behind `torch.matmul` too. That was predicted, and it is
# arithmetic: the tiles of the clusters, and how many each cluster has.

# %% tags=["lab"]
rows = []
for m, n in ((8192, 8192), (4096, 4096)):
    for (tile_m, tile_n), config in {(c.tile_m, c.tile_n): c for c in VARIANTS.values()}.items():
        count, rounds = cluster_tiles(config, m, n), rounds_of(config, m, n)
        useful = m * n / (rounds * SMS * tile_m * tile_n)
        each = (f"{count}", f"{count * config.cluster / SMS:.2f}", f"{rounds}", f"{useful:.0%}")
        rows.append([f"{m} x {n}", f"{tile_m} x {tile_n}", *each])
header = ["M x N", "tile", "tiles of a cluster", "for each cluster", "rounded up", "useful time of the SMs"]
Markdown(table(header, rows, right=2))

# %% [markdown] tags=["lab"]
# At 4096 x 4096 the wide tile leaves a last tile iteration in which two thirds of the clusters have nothing to do; the
# other tiles nearly fill all of theirs. `matmul` takes the wide tile for all sizes, unless it is told another variant.
# [The tuned GEMM](tuned_gemm.ipynb) counts before it chooses.
#
# ## Conclusion
#
# An epilogue costs next to nothing if the other warpgroup multiplies meanwhile. Two named barriers do that for two
# warpgroups with a tile each. The price is the tile: one warpgroup holds half of what two hold, and every
# multiplication loads more. So ping-pong wins where K is short. A tile should be as wide as the registers allow, unless
# that leaves the last tile iteration nearly empty. A kernel for all shapes must choose.
#
# And the ping-pong order is what makes the queue *correct*: a wait by parity is a promise about the next phase, not
# about any later one.
#
# Next: [split-K](split_k_gemm.ipynb), for products of few tiles. After it,
# [an overlapped epilogue](overlapped_epilogue_gemm.ipynb) hides the stores of a shared tile, and
# [the tuned GEMM](tuned_gemm.ipynb) chooses between the schedules.
#
# To use it: `cookbook copy hopper/pingpong_gemm my_gemm.py`, then `from my_gemm import matmul`.
