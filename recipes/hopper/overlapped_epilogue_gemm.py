# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: An overlapped epilogue
#     claim: >-
#       Two cooperative warpgroups keep a rounded tile in registers and store it during the main loop of the next tile:
#       the tensor cores wait for the rounding only.
#     track: hopper
#     order: 80
#     builds_on: hopper/pingpong_gemm
#     pays: {at: [8192, 8192, 512], over: 128x256 after the tile}
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix, overlapped with the next main loop -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     baselines: [128x256 after the tile, 256x160 after the tile]
#     bench_shapes: [[8192, 8192, 512], [8192, 8192, 1024], [8192, 8192, 2048], [4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, stmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix"}
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, setmaxnreg", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg"}
# ---

# %% [markdown]
# # An overlapped epilogue
#
# **Claim.** Two cooperative warpgroups keep a rounded tile in registers and store it during the main loop of the next
# tile. The tensor cores wait for the rounding only.

# %% tags=["lab"]
from cookbook import access, banks, draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/overlapped_epilogue_gemm", (8192, 8192, 512), over=["128x256 after the tile"])

# %% [markdown]
# [Ping-pong](pingpong_gemm.ipynb) hides the epilogue, too, at a price: each warpgroup has a whole tile of its own, so
# the tile is narrower and loads more operand elements per multiply-add. Cooperative warpgroups share a tile of 128 x
# 256 or 256 x 160 with as many accumulators a thread. But in a persistent kernel both warpgroups stop multiplying to
# store.
#
# Rounding halves what a thread holds: 64 registers for what took 128. So there is room for *both*, the next tile's
# accumulators and this tile's rounded elements. Two things are new:
#
# * **The overlapped epilogue**: the stores of one tile are spread over the first k-tiles of the next one.
# * **Uniform descriptors**, which free the registers that it needs.
#
# Multicast and the persistent loop are imported from the pages before, and so are the k-tiles of the main loop.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, Gemm, compile_host, require
from cookbook.recipes.hopper.multicast_gemm import Load, partition_load, rank_in_cluster
from cookbook.recipes.hopper.persistent_gemm import Config as PersistentConfig
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    Scheduler,
    allocate,
    first_k_tile,
    gemm,
    last_k_tile,
    load_tile,
    make_mainloop,
    next_k_tile,
    smem_layouts,
    state_at,
    tiled_copies,
    work_tile,
)
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor, tiled_mma

# %% [markdown]
# ## The variants
#
# A consumer thread has 240 registers. For 128 x 256 it holds 128 accumulators and 64 registers of rounded numbers: all
# four **epilogue subtiles** of 64 x 64 that its warpgroup stores of a tile. For 256 x 160 it holds 160 accumulators,
# and has room for nine subtiles of 64 x 32 out of ten. The tenth is stored at once.
#
# Each tile is here twice: with the overlapped epilogue, and with the epilogue after the tile. `overlapped`, the number
# of subtiles that are stored later, is the one field in which they differ.


# %%
def check_cluster(cluster_m: int, cluster_n: int) -> None:
    """Refuse a cluster of several rows and several columns."""
    needed = "1 in one of them: a cluster shares one operand"
    require(1 in (cluster_m, cluster_n), "cluster_m x cluster_n", f"{cluster_m} x {cluster_n}", needed)


@dataclass(frozen=True)
class Config(PersistentConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    cluster_m: int = 1  # CTAs one above the other: they share the tiles of B
    cluster_n: int = 2  # or side by side: they share the tiles of A
    swizzle_size: int = 8  # rasterization: CTAs that run together cover this many rows of tiles
    overlapped: int = 4  # epilogue subtiles of a warpgroup stored during the next tile's main loop
    pdl: bool = True  # this kernel's launch may overlap the end of the one before
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240

    def __post_init__(self):
        super().__post_init__()
        check_cluster(self.cluster_m, self.cluster_n)

    @property
    def min_k_tiles(self) -> int:
        """K-tiles at least: one for each overlapped subtile. TMA fills those past K with zeros."""
        return max(1, self.overlapped)


VARIANTS = {
    "128x256 overlapped": Config(),
    "128x256 after the tile": Config(overlapped=0),
    "256x160 overlapped": Config(tile_m=256, tile_n=160, epi_n=32, overlapped=9),
    "256x160 after the tile": Config(tile_m=256, tile_n=160, epi_n=32, overlapped=0),
}
DEFAULT = "128x256 overlapped"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown] tags=["lab"]
# One warpgroup of a pair, K = 512, computed with 350 clocks for the store of a subtile and 800 for the rounding, as
# fitted to measured times for [the choice of a tile](tile_heuristics.ipynb). With the epilogue after each tile, the
# tensor cores stand still for as long as the stores take. With the overlapped one, only the rounding is left.

# %% tags=["lab"]


def pair(overlap: bool, k: int = 512, tiles: int = 3) -> dict[str, list[draw.Span]]:
    """The lanes of the threads of a warpgroup and of the tensor cores; K-tiles of 128 x 256 x 64."""
    c, store, rounding = CONFIG, 350, 800
    tile, stage = c.tile_m * c.tile_n * k / 2048, c.tile_m * c.tile_n * c.tile_k / 2048
    threads, tensor, now = [], [], 0.0
    for i in range(tiles):
        tensor.append(draw.Span(now, now + tile, f"tile {i}", "multiply"))
        if overlap and i > 0:
            threads += [draw.Span(now + j * stage, now + j * stage + store, "", "store") for j in range(c.subtiles)]
        now += tile
        threads.append(draw.Span(now, now + rounding, "", "round"))
        now += rounding
        if not overlap:
            threads.append(draw.Span(now, now + c.subtiles * store, f"tile {i}", "store"))
            now += c.subtiles * store
    return {"threads": threads, "tensor cores": tensor}


lanes = {f"after the tile: {lane}": spans for lane, spans in pair(overlap=False).items()} | {"": []}
lanes |= {f"overlapped: {lane}": spans for lane, spans in pair(overlap=True).items()}
draw.lanes(lanes, "Three tiles of 128 x 256, K = 512: computed, not measured", note="gaps: the lane has nothing to do")

# %% [markdown]
# ## The layouts and the MMA
#
# Those of [the persistent GEMM](persistent_gemm.ipynb), imported: K-major tiles of A and B in 128-byte rows, and
# subtiles of C of 64 x 64 or 64 x 32, two buffers for each warpgroup, after A and B and not over them. The next tile is
# loaded while this one is stored.

# %% [markdown] tags=["lab"]
# A subtile goes through one of its warpgroup's two buffers, in the 128-byte mode. One `stmatrix` of it:

# %% tags=["lab"]


def stmatrix_of(variant: str) -> list[access.Access]:
    """Every stmatrix of a warp, into one subtile."""
    layouts = evaluate(smem_layouts, cutlass.BFloat16, VARIANTS[variant])
    copies = evaluate(tiled_copies, cutlass.BFloat16, VARIANTS[variant])
    found = access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)
    counted = {banks.wavefronts(each.addresses, each.width).actual for each in found}
    print(f"{variant}: {len(found)} stmatrix a warp and subtile; wavefronts each: {sorted(counted)}; 4 is ideal")
    return found


draw.access_view(stmatrix_of(DEFAULT)[0])

# %% [markdown] tags=["lab"]
# And the first lines of that buffer, without and with the swizzle:

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, VARIANTS[DEFAULT]).c)

# %% [markdown]
# ## The producer
#
# Work tiles and their order are those of [the persistent GEMM](persistent_gemm.ipynb), and so is `load_tile`: of a tile
# that two CTAs share, each loads half, for both.
#
# What is new is at the edge of C. Where a cluster reaches over it, one of its CTAs has a **dummy tile**: it does not
# exist, and TMA clips what is stored. Its loads still matter, for a neighbour's stage is free only when its own is. TMA
# takes longer to fill a box with zeros than to load it, so such a CTA loads the last tile that exists once more.


# %%
@cute.jit
def produce(
    pipe: pipeline.PipelineTmaAsync,
    loads: tuple[Load, Load],
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Load all work tiles of this CTA."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    last = cute.size(loads[0].gX, mode=[1]) - 1, cute.size(loads[1].gX, mode=[1]) - 1
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        m, n = work_tile(scheduler, i, config)
        m, n = cutlass.min(m, last[0]), cutlass.min(n, last[1])  # a dummy tile loads the last one
        state = load_tile(pipe, loads, state, (m, n), k_tiles, i, config)
    cute.arch.griddepcontrol_launch_dependents()  # PDL: the next kernel may get ready
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The epilogue: one subtile of C
#
# [The persistent GEMM](persistent_gemm.ipynb) stores a warpgroup's part of a tile in one go. Here its subtiles go out
# at different times, so storing one is a function: a warpgroup writes rounded numbers with `stmatrix` into a swizzled
# buffer, and TMA stores the buffer. Before it writes a buffer again, TMA must have *read* it. The barrier is among the
# 128 threads of one warpgroup. TMA clips a subtile at the edge of C.


# %%
class Epilogue(NamedTuple):
    """Where one consumer warpgroup stores its part of a tile, and by which copies."""

    sC: cute.Tensor  # its own buffers, (64, EPI_N, EPI_STAGE)
    gC: cute.Tensor  # all tiles of C as TMA coordinates, (TILE_M, TILE_N, m, n)
    r2s_c: cute.TiledCopy
    tma_c: cute.CopyAtom
    warpgroup: cutlass.Int32  # 0 or 1
    thread: cutlass.Int32  # in the warpgroup


@cute.jit
def make_epilogue(
    sC: cute.Tensor,
    c: TmaTensor,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
) -> Epilogue:
    """The `Epilogue` of warpgroup `group`. sC: the buffers of both; c: the tiles of C."""
    sC = cute.flat_divide(sC, (64, config.epi_n, config.epi_stages))[None, None, None, 0, 0, group]
    return Epilogue(sC, c.coords, r2s_c, c.atom, group, thread)


# %% [markdown]
# A thread's values of a subtile, rounded or not, follow one another in its registers. So a subtile is a view of them.


# %%
def subtile_of(values: cute.Tensor, i: int, config) -> cute.Tensor:
    """A thread's values of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has them."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


@cute.jit
def write_subtile(epi: Epilogue, i: cutlass.Constexpr, rC: cute.Tensor, config: cutlass.Constexpr):
    """Write subtile `i` into a buffer as soon as it is free. rC: a thread's rounded values, (MMA, 1, 1).

    Returns whether this warp is the one that stores, and the buffer.
    """
    barrier = pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128)
    storing = cute.arch.make_warp_uniform(epi.thread // 32) == 0
    thr, buffer = epi.r2s_c.get_slice(epi.thread), i % config.epi_stages
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in this buffer
    cute.copy(epi.r2s_c, thr.retile(rC), thr.partition_D(epi.sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()
    return storing, buffer


@cute.jit
def store_subtile(epi: Epilogue, i: cutlass.Constexpr, rC: cute.Tensor, tile: tuple, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile (m, n). rC: a thread's rounded values, (MMA, 1, 1)."""
    storing, buffer = write_subtile(epi, i, rC, config)
    if storing:
        gC = cute.zipped_divide(epi.gC[None, None, tile[0], tile[1]], (64, config.epi_n))  # (EPI_TILE, subtiles)
        sC = cute.group_modes(epi.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
        bSsC, bSgC = cpasync.tma_partition(epi.tma_c, 0, cute.make_layout(1), sC, gC)
        across = config.tile_n // config.epi_n
        row = i // across * config.warpgroups + (epi.warpgroup if config.warpgroups > 1 else 0)
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(epi.tma_c, bSsC[None, buffer], bSgC[None, (row, i % across)])
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def round_and_store(epi: Epilogue, acc: cute.Tensor, last: cutlass.Constexpr, tile: tuple, config: cutlass.Constexpr):
    """Round and store subtiles 0 to `last` - 1 of a tile, one after the other."""
    for i in cutlass.range_constexpr(last):
        tCrC = subtile_of(acc, i, config)  # (MMA, 1, 1), float32
        rounded = cute.make_rmem_tensor(tCrC.shape, epi.sC.element_type)
        rounded.store(tCrC.load().to(rounded.element_type))
        store_subtile(epi, i, rounded, tile, config)


# %% [markdown]
# ## The overlapped epilogue
#
# Two warpgroups that share a tile finish it together. If both then store, the tensor cores wait. Here both only
# *round*: 64 registers a thread now hold what 128 held, and the next tile can begin. Its first commit group is issued,
# and while the tensor cores work the threads store the first subtile of the tile before. Then come the second group and
# the second subtile, and so on. A group takes the tensor cores longer than a subtile takes the threads.
#
# What is left of the epilogue is the rounding, and the stores of the very last tile. Of a wider tile the registers
# cannot hold all subtiles: it stores some of them at once, and `overlapped` of them later.
#
# A tile therefore needs as many k-tiles as it has overlapped subtiles. Where K is shorter, the producer asks for
# k-tiles past the end, which TMA fills with zeros.


# %%
@cute.jit
def overlapped_mainloop(
    main: Mainloop,
    epi: Epilogue,
    scheduler: Scheduler,
    i: cutlass.Int32,
    rC: cute.Tensor,
    before: tuple,
    config: cutlass.Constexpr,
):
    """Multiply work tile `i`, and meanwhile store `rC`, the rounded subtiles of the tile `before` it (m, n).

    Returns the work tile (m, n): it is computed while the first commit group runs.
    """
    read, release = state_at(i * main.k_tiles, config), state_at(i * main.k_tiles, config)
    read = first_k_tile(main, read)
    tile = work_tile(scheduler, i, config)
    for j in cutlass.range_constexpr(config.overlapped):
        if i > 0:
            store_subtile(epi, config.subtiles - config.overlapped + j, subtile_of(rC, j, config), before, config)
        if cutlass.const_expr(j + 1 < config.overlapped):
            read, release = next_k_tile(main, read, release)
    for _ in cutlass.range(config.min_k_tiles, main.k_tiles, unroll=1):
        read, release = next_k_tile(main, read, release)
    last_k_tile(main, release)
    return tile


@cute.jit
def cooperative(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr):
    """All work tiles of a warpgroup that computes half of each."""
    at_once = config.subtiles - config.overlapped
    rC = cute.make_rmem_tensor(max(1, config.overlapped) * config.epi_n // 2, epi.sC.element_type)  # rounded
    tile = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(scheduler.count, unroll=1):
        tile = overlapped_mainloop(main, epi, scheduler, i, rC, tile, config)
        round_and_store(epi, main.acc, at_once, tile, config)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(rC, j, config).store(subtile_of(main.acc, at_once + j, config).load().to(rC.element_type))
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(epi, at_once + j, subtile_of(rC, j, config), tile, config)


# %% [markdown]
# ## The kernel
#
# The kernel sets up, then parts: one warp produces, two warpgroups consume. Each waits for the previous kernel (PDL) as
# late as it can: after its registers, its descriptors and its addresses. So the pipeline is made without its barrier of
# the cluster (`defer_sync`), and the kernel arrives and waits itself.
#
# **Arrivals.** A CTA's loads go to the CTAs in its row of the cluster and to those in its column. Before it loads into
# a stage again, the warps of all of these must have read it: of `cluster_m + cluster_n - 1` CTAs, since it stands in
# both itself. Clusters of this page are one row or one column, so that is all of their CTAs; [the tuned
# GEMM](tuned_gemm.ipynb) has clusters of both, where it is fewer.


# %%
@cute.jit
def make_pipeline(barriers: cute.Pointer, config: cutlass.Constexpr) -> pipeline.PipelineTmaAsync:
    """The barriers of the stages. One is free when every warp that reads it has signalled all CTAs that write it."""
    sharers = config.cluster_m + config.cluster_n - 1  # the CTAs in its row of the cluster, and in its column
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.warpgroups * sharers),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
        defer_sync=True,
    )


@cute.jit
def meet_cluster():
    """Wait until the barriers of all CTAs of the cluster are set up: none signals its neighbour's before that."""
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages and the epilogue's buffers, and set up the barriers."""
    barriers, sA, sB, sC = allocate(layouts, dtype, config)
    pipe = make_pipeline(barriers, config)
    if cutlass.const_expr(config.cluster > 1):
        meet_cluster()
    else:
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
    return Cta(pipe, sA, sB, sC)


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    layouts: SmemLayouts,
    r2s_c: cute.TiledCopy,
    op: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/overlapped_epilogue_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    """
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    first, step = block // config.cluster, blocks // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, dtype, config)
    rank = rank_in_cluster(config)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cutlass.max(cute.size(gA, mode=[3]), config.min_k_tiles)
    down = cute.ceil_div(cute.size(gC, mode=[2]), config.cluster_m)
    across = cute.ceil_div(cute.size(gC, mode=[3]), config.cluster_n)
    scheduler = Scheduler(down, across, first, step, (down * across + step - 1 - first) // step, rank)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            everyone = cutlass.Int16((1 << config.cluster) - 1)  # a cluster shares one operand
            load_a = partition_load(a.atom, gA, cta.sA, rank[1], config.cluster_n, everyone)
            load_b = partition_load(b.atom, gB, cta.sB, rank[0], config.cluster_m, everyone)
            produce(cta.pipe, (load_a, load_b), scheduler, k_tiles, config)
    else:
        consume(cta, op, TmaTensor(c.atom, gC), scheduler, k_tiles, r2s_c, group, tidx % 128, config)


# %% [markdown]
# ## Uniform descriptors
#
# A matrix descriptor holds an address, and each of the four k-blocks of a stage needs a new pair of them. All threads
# of a warp need the same one, so it belongs in the warp's *uniform* registers, where an addition is one operation and
# not 32. The compiler puts it there if it can prove two things:
#
# * **The address does not depend on the thread.** With `get_slice(thread)`, as in [pingpong](pingpong_gemm.ipynb), the
#   compiler cannot prove that. The slice of the warpgroup's first thread gives the same descriptors, and the warpgroup
#   is known to be uniform.
# * **The stage does not either.** It comes from `state_at(i * k_tiles)` and a loop. It stays uniform as long as
#   the compiler knows that all threads take the same branch. An `if` about K around a commit group was enough to lose
#   that.
#
# The table below counts the instructions that are left.


# %%
@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    r2s_c: cute.TiledCopy,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. c: tiles of C; thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    main = make_mainloop(cta, op, group * 128, k_tiles, config)  # the slice of its first thread: the same for all
    epi = make_epilogue(cta.sC, c, r2s_c, group, thread, config)
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still read or write what this warpgroup stores
    cooperative(main, epi, scheduler, config)
    if thread < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive TMA's reading of it


# %% [markdown] tags=["lab"]
# The instructions of the innermost loop, one stage, by who executes them: every lane, or the warp once. `R2UR` moves a
# number from the lanes' registers to the uniform ones. The last two rows are pages that ask `get_slice` for each
# thread's slice:

# %% tags=["lab"]
from IPython.display import Markdown

import cookbook
from cookbook.lab import compiled, results_table, table


def counts(module, config) -> list[str]:
    """Count the instructions of a consumer's loop: wgmmas, others of every lane, of the warp, and moves."""
    sass = compiled.compile_module(module, "loop", "sm_90a", "bfloat16", config).sass
    names = [each.split()[0] for each in compiled.innermost_loop(sass, "HGMMA")]
    multiply, moves = (sum(name.startswith(which) for name in names) for which in ("HGMMA", "R2UR"))
    uniform = sum(name.startswith("U") for name in names)
    return [str(n) for n in (multiply, len(names) - multiply - uniform - moves, uniform, moves)]


here, pages = cookbook.load("hopper/overlapped_epilogue_gemm"), ("hopper/persistent_gemm", "hopper/tma_wgmma_gemm")
rows = [[name, *counts(here, config)] for name, config in here.VARIANTS.items()]
rows += [[page, *counts(cookbook.load(page), cookbook.load(page).CONFIG)] for page in pages]
Markdown(table(["kernel", "wgmma", "every lane", "the warp once", "R2UR"], rows))

# %% [markdown]
# ## The launch
#
# `gemm` is imported from [the persistent GEMM](persistent_gemm.ipynb): as many clusters as the GPU holds, and no more
# than there are cluster tiles. With `config.pdl` this kernel overlaps the *previous* one.


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
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
    variant: one of VARIANTS: the tile, and when it is stored.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# Clocks of 8192 x 8192 x K on an H200, by the tensor cores' 2048 multiply-adds a clock and the figures above. The gain
# of the overlapped epilogue is a number of clocks for each tile, so it is larger where K is short.

# %% tags=["lab"]
from cookbook.lab import records

SMS, ROUND, STORE = 132, 800, 350  # of an H200; clocks, of 64 x 64 for the store
PAIRS = {name: name.replace("overlapped", "after the tile") for name in VARIANTS if name.endswith("overlapped")}


def predicted(config: Config, m: int, n: int, k: int) -> float:
    """Clocks of the busiest CTA."""
    tiles = -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n))
    at_once = (config.subtiles - config.overlapped) * config.epi_n / 64
    stop = ROUND + STORE * at_once
    return -(-tiles // (SMS // config.cluster)) * (config.tile_m * config.tile_n * k / 2048 + stop)


def gain(name: str, shape: tuple[int, int, int]) -> float:
    """Return how many times as fast the overlapped variant should be as the one with the epilogue after the tile."""
    return predicted(VARIANTS[PAIRS[name]], *shape) / predicted(VARIANTS[name], *shape)


KS = (512, 1024, 2048, 8192)
rows = [[name, *(f"{gain(name, (8192, 8192, k)):.2f}x" for k in KS)] for name in PAIRS]
Markdown(table(["variant, against its epilogue after the tile", *(f"K = {k}" for k in KS)], rows))

# %% [markdown] tags=["lab"]
# Two things are not in this prediction. The stores take shared-memory bandwidth while `wgmma` reads its operands. And a
# GPU at its power limit lowers its clock: an idle tensor core saves energy, so at long K less is gained than the clocks
# say.
#
# ## Check

# %% tags=["lab"]
lab.check_cells("hopper/overlapped_epilogue_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/overlapped_epilogue_gemm", matmul, (8192, 8192, 1024))

# %% [markdown] tags=["lab"]
# All variants and their peers, interleaved in one run on one GPU; "ours" is the default, called without an argument.

# %% tags=["lab"]
Markdown(results_table("hopper/overlapped_epilogue_gemm"))

# %% [markdown] tags=["lab"]
# The gain of the overlapped epilogue, predicted and measured:

# %% tags=["lab"]
timed = records.of_one_gpu("hopper/overlapped_epilogue_gemm", "timed")
timed = [r for r in timed if VARIANTS.keys() <= r["peers"].keys()]


def measured(record, name: str) -> float:
    """Return how many times as fast the overlapped variant was as the one with the epilogue after the tile, in one
    run."""
    return record["peers"][PAIRS[name]]["median_ms"] / record["peers"][name]["median_ms"]


rows = []
for r in timed:
    each = (f"{gain(name, tuple(r['shape'])):.3f}x / {measured(r, name):.3f}x" for name in PAIRS)
    rows.append([r["device"], " x ".join(map(str, r["shape"])) + f", {r['dtype']}", *each])
header = ["device", "M x N x K", *(f"{name}: predicted / measured" for name in PAIRS)]
Markdown(table(header, rows, right=2) if rows else "*Not measured yet.*")

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "write_subtile_late": (
        "write_subtile",
        """\
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in this buffer
    cute.copy(epi.r2s_c, thr.retile(rC), thr.partition_D(epi.sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()""",
        "    raise NotImplementedError",
        (
            "The waits and the fence around a buffer that threads write and TMA reads. Write them, and the copy, "
            "from these words: one warp knows what TMA has read; all threads write; TMA must see all of it."
        ),
        (
            "Two barriers: one before the copy, one after it.",
            "The fence belongs to the threads that wrote, so it stands before the second barrier.",
        ),
        (
            "The storing warp waits for TMA, the first barrier tells the others; each writer fences, the second "
            "barrier tells the storing warp."
        ),
    ),
    "overlapped_mainloop_at_risk": (
        "overlapped_mainloop",
        """\
        if i > 0:
""",
        """\
        if i >= 0:
""",
        '"The tile before work tile `i` is stored while `i` is multiplied": a loop body with no exception.',
        (
            "Which tile lies before work tile 0 of a CTA?",
            "What does `rC` hold then, and where does `before` say that it goes?",
        ),
        (
            "Before the first work tile there is nothing to store: `rC` has not been written, and `before` is (0, "
            "0), the tile of another CTA."
        ),
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("hopper/overlapped_epilogue_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Cooperative warpgroups need no partner to hide their epilogue: the next tile hides it. What it takes is registers, and
# a main loop that is at least as long as the epilogue has subtiles. The tile stays wide, so the loads stay few. What it
# gained, over all that is recorded:

# %% tags=["lab"]
said = []
for name in PAIRS:
    if found := {measured(r, name): r for r in timed}:
        ends = (f"{x:.3f}x at {' x '.join(map(str, found[x]['shape']))}" for x in (min(found), max(found)))
        said.append(f"* `{name}` against `{PAIRS[name]}`, {timed[0]['device']}: from {' to '.join(ends)}")
Markdown("\n".join(said) or "*Not measured yet.*")

# %% [markdown] tags=["lab"]
# Next: [swap A/B](swap_ab_gemm.ipynb), for tiles whose number of rows is no multiple of 64.
