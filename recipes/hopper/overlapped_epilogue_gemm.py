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
# Multicast, the persistent loop, the producer and PDL are those of the page before.

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
# ## The variants
#
# A consumer thread has 240 registers. For 128 x 256 it holds 128 accumulators and 64 registers of rounded numbers: all
# four **epilogue subtiles** of 64 x 64 that its warpgroup stores of a tile. For 256 x 160 it holds 160 accumulators,
# and has room for nine subtiles of 64 x 32 out of ten. The tenth is stored at once.
#
# Each tile is here twice: with the overlapped epilogue, and with the epilogue after the tile. `overlapped`, the number
# of subtiles that are stored later, is the one field in which they differ.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of one tile
    tile_n: int = 256  # its columns
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma k-blocks of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_m: int = 1  # CTAs one above the other: they share the tiles of B
    cluster_n: int = 2  # or side by side: they share the tiles of A
    overlapped: int = 4  # epilogue subtiles of a warpgroup stored during the next tile's main loop
    swizzle_size: int = 8  # consecutive cluster tiles that need the same tiles of the operand that is not multicast
    epi_n: int = 64  # columns of an epilogue subtile; it has 64 rows
    epi_stages: int = 2  # buffers of a warpgroup: one is written while TMA reads the other
    producer_registers: int = 24  # of a thread: 24 + 2 * 240 are 3 * 168, what a launch gives three warpgroups
    consumer_registers: int = 240

    def __post_init__(self):
        check_epilogue("epi_stages", self.epi_stages, self.subtiles)
        if self.cluster_m > 1 and self.cluster_n > 1:
            got = f"{self.cluster_m} x {self.cluster_n}"
            raise ValueError(f"cluster_m x cluster_n: got {got}; needed 1 in one of them: a cluster shares one operand")

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 2

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups and the producer's, of which one warp works

    @property
    def epi_tile(self) -> tuple[int, int]:
        """Rows and columns of an epilogue subtile."""
        return 64, self.epi_n

    @property
    def subtiles(self) -> int:
        """Epilogue subtiles of a tile that one warpgroup stores."""
        return self.tile_m // 64 * (self.tile_n // self.epi_n) // self.warpgroups

    @property
    def min_k_tiles(self) -> int:
        """K-tiles at least: one for each overlapped subtile. TMA fills those past K with zeros."""
        return max(1, self.overlapped)

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        c = 2 * self.epi_stages * 64 * self.epi_n * 2
        return 1024 + self.stages * self.stage_bytes + c  # 1024: the barriers, padded to the tiles' alignment


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
# fitted to measured times in [the tuned GEMM](tuned_gemm.ipynb). With the epilogue after each tile, the tensor cores
# stand still for as long as the stores take. With the overlapped one, only the rounding is left.

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
# A and B are K-major tiles of 128-byte rows. C has subtiles of 64 x 64 or 64 x 32, two buffers for each warpgroup,
# after A and B and not over them: the next tile is loaded while this one is stored.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (TILE_M, TILE_K, STAGE)
    b: cute.ComposedLayout  # (TILE_N, TILE_K, STAGE)
    c: cute.ComposedLayout  # (EPI_M, EPI_N, EPI_STAGE): first the buffers of warpgroup 0, then those of 1


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose lines divide `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    lines = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (*c.epi_tile, 2 * c.epi_stages), order=(0, 1, 2)),
    )


def wgmma(dtype, columns: int) -> warpgroup.MmaF16BF16Op:
    """64 rows of A times 16 x `columns` of B, both from shared memory, both K-major; float32 accumulators."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, k_major, k_major)


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """The wgmmas of the two warpgroups that share a tile, one above the other."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (config.warpgroups, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    r2s_c: cute.TiledCopy  # stmatrix.x4 of one warpgroup: an epilogue subtile


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The copy of the epilogue: a subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    subtile = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, subtile))


# %% [markdown] tags=["lab"]
# A subtile goes through one of its warpgroup's two buffers, in the 128-byte mode. One `stmatrix` of it:

# %% tags=["lab"]


def stmatrix_of(variant: str) -> list[access.Access]:
    """Every stmatrix of a warp, into one subtile."""
    layouts = evaluate(smem_layouts, cutlass.BFloat16, VARIANTS[variant])
    copies = evaluate(tiled_copies, cutlass.BFloat16, VARIANTS[variant])
    found = access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)
    counted = {banks.wavefronts(one.addresses, one.width).actual for one in found}
    print(f"{variant}: {len(found)} stmatrix a warp and subtile; wavefronts each: {sorted(counted)}; 4 is ideal")
    return found


draw.access_view(stmatrix_of(DEFAULT)[0])

# %% [markdown] tags=["lab"]
# And the first lines of that buffer, without and with the swizzle:

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, VARIANTS[DEFAULT]).c)

# %% [markdown]
# ## The tile scheduler
#
# As in [the persistent GEMM](persistent_gemm.ipynb): cluster *i* of *s* computes the cluster tiles i, i + s, i + 2s and
# so on. They are numbered in groups of `swizzle_size` rows.
#
# K-tiles are counted through over all work tiles: work tile `i` begins at k-tile `i * k_tiles`. Stage and phase of the
# pipeline follow from that count, and a consumer has no pipeline state to carry from tile to tile.


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
def work_tile(scheduler: Scheduler, i, config: cutlass.Constexpr):
    """(m, n): the row and column, in tiles, of this CTA's work tile `i`."""
    number, size = scheduler.first + i * scheduler.step, config.swizzle_size
    group, inside = number // (size * scheduler.across), number % (size * scheduler.across)
    height = cutlass.min(scheduler.down - group * size, size)  # the last group may be lower
    m, n = group * size + inside % height, inside // height
    return m * config.cluster_m + scheduler.rank[0], n * config.cluster_n + scheduler.rank[1]


@cute.jit
def consumer_states(k_tile, config: cutlass.Constexpr):
    """The pipeline states (next stage to read, next to release) at a k-tile, counted over all work tiles."""
    stage, phase = k_tile % config.stages, (k_tile // config.stages) & 1
    return tuple(pipeline.PipelineState(config.stages, k_tile, stage, phase) for _ in range(2))


# %% [markdown]
# ## The producer
#
# One warp issues all loads: of a tile that two CTAs share, each loads half, for both. Where a cluster reaches over the
# edge of C, one of its CTAs has a **dummy tile**: it does not exist, and TMA clips what is stored. Its loads still
# matter, for a neighbour's stage is free only when its own is. TMA takes longer to fill a box with zeros than to load
# it, so such a CTA loads the last tile that exists once more.


# %%
class Loads(NamedTuple):
    """What the producer copies: for A and for B, a TMA atom, its source and its destination."""

    tma_a: cute.CopyAtom
    tAgA: cute.Tensor  # (TMA, m, k), TMA coordinates
    tAsA: cute.Tensor  # (TMA, STAGE)
    tma_b: cute.CopyAtom
    tBgB: cute.Tensor  # (TMA, n, k), TMA coordinates
    tBsB: cute.Tensor  # (TMA, STAGE)


def multicast(sharers: int) -> dict:
    """Arguments of a TMA copy to all CTAs of a cluster of `sharers`: a bit for each."""
    return {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {}


@cute.jit
def load_tile(pipe, loads: Loads, state, tile, k_tiles, config: cutlass.Constexpr):
    """Load the k-tiles of work tile (m, n), a stage each. Returns the pipeline state."""
    tAgA = loads.tAgA[None, tile[0], None]  # (TMA, k)
    tBgB = loads.tBgB[None, tile[1], None]  # (TMA, k)
    tAsA, tBsB = loads.tAsA, loads.tBsB  # (TMA, STAGE)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        a_to, b_to = multicast(config.cluster_n), multicast(config.cluster_m)
        cute.copy(loads.tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier, **a_to)
        cute.copy(loads.tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier, **b_to)
        state.advance()
    return state


@cute.jit
def produce(pipe, loads: Loads, scheduler: Scheduler, k_tiles, config: cutlass.Constexpr):
    """Load all work tiles of this CTA."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    last = cute.size(loads.tAgA, mode=[1]) - 1, cute.size(loads.tBgB, mode=[1]) - 1
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel has ended, global memory may be touched
    for i in cutlass.range(scheduler.count, unroll=1):
        m, n = work_tile(scheduler, i, config)
        m, n = cutlass.min(m, last[0]), cutlass.min(n, last[1])  # a dummy tile loads the last one
        state = load_tile(pipe, loads, state, (m, n), k_tiles, config)
    cute.arch.griddepcontrol_launch_dependents()  # PDL: the next kernel may get ready
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The consumers' main loop
#
# The wgmmas of a k-tile are one **commit group**. A warpgroup issues it, waits for the group *before* it, and releases
# that group's stage.


# %%
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
def first_k_tile(main: Mainloop, read):
    """Issue the first k-tile of a work tile, which is at `read`."""
    main.pipe.consumer_wait(read)
    issue_wgmmas(main, read.index, True)
    read.advance()
    return read


@cute.jit
def next_k_tile(main: Mainloop, read, release):
    """Issue the k-tile at `read`, and release the stage at `release`."""
    main.pipe.consumer_wait(read)
    issue_wgmmas(main, read.index)
    read.advance()
    warpgroup.wait_group(1)  # the group before this one is complete: its stage may be overwritten
    main.pipe.consumer_release(release)
    release.advance()
    return read, release


@cute.jit
def last_k_tile(main: Mainloop, release):
    """Wait for the last group, and release its stage."""
    warpgroup.wait_group(0)
    main.pipe.consumer_release(release)


# %% [markdown]
# ## The epilogue: one subtile of C
#
# A warpgroup stores its part of a tile in **epilogue subtiles** of 64 x `epi_n`: it rounds the accumulators, writes
# them with `stmatrix` into a swizzled buffer, and TMA stores the buffer. Before it writes a buffer again, TMA must have
# *read* it. The barrier is among the 128 threads of one warpgroup. TMA clips a subtile at the edge of C.


# %%
class Epilogue(NamedTuple):
    """Where one consumer warpgroup stores its part of a tile, and by which copies."""

    sC: cute.Tensor  # its own buffers, (EPI_M, EPI_N, EPI_STAGE)
    gC: cute.Tensor  # all tiles of C as TMA coordinates, (TILE_M, TILE_N, m, n)
    r2s_c: cute.TiledCopy
    tma_c: cute.CopyAtom
    warpgroup: cutlass.Int32  # 0 or 1
    thread: cutlass.Int32  # in the warpgroup


def subtile_of(values: cute.Tensor, i: int, config: Config) -> cute.Tensor:
    """A thread's values of the `i`th subtile in `values`: (MMA, 1, 1), as the MMA of one subtile has them."""
    layout = cute.make_layout(((2, 2, config.epi_n // 8), 1, 1))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


@cute.jit
def round_and_store(epi: Epilogue, acc, last: cutlass.Constexpr, tile, config: cutlass.Constexpr):
    """Round and store subtiles 0 to `last` - 1 of a tile, one after the other."""
    for i in cutlass.range_constexpr(last):
        tCrC = subtile_of(acc, i, config)  # (MMA, 1, 1), float32
        rounded = cute.make_rmem_tensor(tCrC.shape, epi.sC.element_type)
        rounded.store(tCrC.load().to(rounded.element_type))
        store_subtile(epi, i, rounded, tile, config)


@cute.jit
def store_subtile(epi: Epilogue, i: cutlass.Constexpr, rC, tile, config: cutlass.Constexpr):
    """Store subtile `i` of this warpgroup's part of a tile (m, n). rC: a thread's rounded values, (MMA, 1, 1)."""
    barrier = pipeline.NamedBarrier(barrier_id=1 + epi.warpgroup, num_threads=128)
    storing = cute.arch.make_warp_uniform(epi.thread // 32) == 0
    thr, buffer = epi.r2s_c.get_slice(epi.thread), i % config.epi_stages
    if storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_stages - 1, read=True)
    barrier.arrive_and_wait()  # TMA has read what was in this buffer
    cute.copy(epi.r2s_c, thr.retile(rC), thr.partition_D(epi.sC)[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")  # what threads wrote becomes visible to TMA
    barrier.arrive_and_wait()
    if storing:
        gC = cute.zipped_divide(epi.gC[None, None, tile[0], tile[1]], config.epi_tile)  # (EPI_TILE, subtiles)
        sC = cute.group_modes(epi.sC, 0, 2)  # (EPI_TILE, EPI_STAGE)
        bSsC, bSgC = cpasync.tma_partition(epi.tma_c, 0, cute.make_layout(1), sC, gC)
        across = config.tile_n // config.epi_n
        row = i // across * config.warpgroups + epi.warpgroup
        with cute.arch.elect_one():  # a TMA store, unlike a load, is issued by every thread that gets here
            cute.copy(epi.tma_c, bSsC[None, buffer], bSgC[None, (row, i % across)])
            cute.arch.cp_async_bulk_commit_group()


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
def overlapped_mainloop(main: Mainloop, epi: Epilogue, scheduler: Scheduler, i, rC, before, config: cutlass.Constexpr):
    """Multiply work tile `i`, and meanwhile store `rC`, the rounded subtiles of the tile `before` it (m, n).

    Returns the work tile (m, n): it is computed while the first commit group runs.
    """
    read, release = consumer_states(i * main.k_tiles, config)
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
# late as it can: after its registers, its descriptors and its addresses.


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
    sC: cute.Tensor  # (EPI_M, EPI_N, EPI_STAGE): first the buffers of warpgroup 0, then those of 1
    rank: tuple  # its (row, column) in the cluster


@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters."""
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    first, step = block // config.cluster, blocks // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(smem_layouts(dtype, config), dtype, config)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (config.tile_m, config.tile_n), (None, None))  # (TILE_M, TILE_N, m, n)
    k_tiles = cutlass.max(cute.size(gA, mode=[3]), config.min_k_tiles)
    down, across = (
        cute.ceil_div(cute.size(gC, mode=[2]), config.cluster_m),
        cute.ceil_div(cute.size(gC, mode=[3]), config.cluster_n),
    )
    count = (down * across + step - 1 - first) // step
    scheduler = Scheduler(down, across, first, step, count, cta.rank)

    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            in_row, in_column = cute.make_layout(config.cluster_n), cute.make_layout(config.cluster_m)
            grouped = [cute.group_modes(x, 0, 2) for x in (cta.sA, gA, cta.sB, gB)]
            tAsA, tAgA = cpasync.tma_partition(a.atom, cta.rank[1], in_row, grouped[0], grouped[1])
            tBsB, tBgB = cpasync.tma_partition(b.atom, cta.rank[0], in_column, grouped[2], grouped[3])
            loads = Loads(a.atom, tAgA, tAsA, b.atom, tBgB, tBsB)
            produce(cta.pipe, loads, scheduler, k_tiles, config)
    else:
        consume(cta, TmaTensor(c.atom, gC), scheduler, k_tiles, group, tidx % 128, config)


@cute.jit
def set_up(layouts, dtype, config: cutlass.Constexpr):
    """Allocate the shared memory of a CTA, and make its pipeline. Returns a `Cta`."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (TILE_M, TILE_K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (TILE_N, TILE_K, STAGE)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)  # (EPI_M, EPI_N, EPI_STAGE)
    # A stage is free when every warp that reads it has signalled all CTAs that write it: its own and its neighbours.
    arrivals = 4 * config.warpgroups * config.cluster
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    rank = cutlass.Int32(0)
    if cutlass.const_expr(config.cluster > 1):
        cute.arch.cluster_arrive_relaxed()  # a neighbour's barrier must be set up before it is signalled
        cute.arch.cluster_wait()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    else:
        cute.arch.sync_threads()
    return Cta(pipe, sA, sB, sC, (rank % config.cluster_m, rank // config.cluster_m))


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
# * **The stage does not either.** It comes from `consumer_state(i * k_tiles)` and a loop. It stays uniform as long as
#   the compiler knows that all threads take the same branch. An `if` about K around a commit group was enough to lose
#   that.
#
# The table below counts the instructions that are left.


# %%
@cute.jit
def consume(cta: Cta, out: TmaTensor, scheduler: Scheduler, k_tiles, group, thread, config: cutlass.Constexpr):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. out: tiles of C; thread: in the warpgroup."""
    cute.arch.setmaxregister_increase(config.consumer_registers)
    dtype = cta.sC.element_type
    overwrite, accumulate = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    accumulate.set(warpgroup.Field.ACCUMULATE, True)
    thr = accumulate.get_slice(group * 128)  # of its first thread: the same for all
    tCgC = thr.partition_C(out.coords[None, None, 0, 0])  # (MMA, MMA_M, MMA_N)
    acc = cute.make_rmem_tensor(tCgC.shape, cutlass.Float32)
    tCrA = accumulate.make_fragment_A(thr.partition_A(cta.sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = accumulate.make_fragment_B(thr.partition_B(cta.sB))  # (MMA, MMA_N, MMA_K, STAGE)
    main = Mainloop(cta.pipe, k_tiles, overwrite, accumulate, tCrA, tCrB, acc)
    sC = cute.flat_divide(cta.sC, (*config.epi_tile, config.epi_stages))[None, None, None, 0, 0, group]
    epi = Epilogue(sC, out.coords, tiled_copies(dtype, config).r2s_c, out.atom, group, thread)
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
from cookbook.check import compiled
from cookbook.publish.pages import results_table, table


def counts(module, config) -> list[str]:
    """Of the loop of a kernel's consumers: wgmmas, other instructions of every lane, of the warp, and moves."""
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
# As many clusters as the GPU holds, and no more than there are cluster tiles. `use_pdl` lets this kernel overlap the
# *previous* one.


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
    layouts, ctas = smem_layouts(dtype, config), config.cluster
    a_stage, b_stage, c_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    c = TmaTensor(*cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, c_stage, config.epi_tile))
    tiles = cute.ceil_div(m, config.tile_m * config.cluster_m) * cute.ceil_div(n, config.tile_n * config.cluster_n)
    clusters = cutlass.min(tiles, sms // ctas)
    kernel(a, b, c, dtype, config).launch(
        grid=(clusters * ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(ctas, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
        use_pdl=True,
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
    variant: one of VARIANTS: the tile, and when it is stored.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# Clocks of 8192 x 8192 x K on an H200, by the tensor cores' 2048 multiply-adds a clock and the figures above. The gain
# of the overlapped epilogue is a number of clocks for each tile, so it is larger where K is short.

# %% tags=["lab"]
from cookbook.measure import records

SMS, ROUND, STORE = 132, 800, 350  # of an H200; clocks, of 64 x 64 for the store
PAIRS = {name: name.replace("overlapped", "after the tile") for name in VARIANTS if name.endswith("overlapped")}


def predicted(config: Config, m: int, n: int, k: int) -> float:
    """Clocks of the busiest CTA."""
    tiles = -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n))
    at_once = (config.subtiles - config.overlapped) * config.epi_n / 64
    stop = ROUND + STORE * at_once
    return -(-tiles // (SMS // config.cluster)) * (config.tile_m * config.tile_n * k / 2048 + stop)


def gain(name: str, shape: tuple[int, int, int]) -> float:
    """How many times as fast the overlapped variant should be as the one with the epilogue after the tile."""
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
#
# Every level looks at every variant.
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
lab.check_cells("hopper/overlapped_epilogue_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

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
    """How many times as fast the overlapped variant was as the one with the epilogue after the tile, in one run."""
    return record["peers"][PAIRS[name]]["median_ms"] / record["peers"][name]["median_ms"]


rows = []
for r in timed:
    each = (f"{gain(name, tuple(r['shape'])):.3f}x / {measured(r, name):.3f}x" for name in PAIRS)
    rows.append([r["device"], " x ".join(map(str, r["shape"])) + f", {r['dtype']}", *each])
header = ["device", "M x N x K", *(f"{name}: predicted / measured" for name in PAIRS)]
Markdown(table(header, rows, right=2) if rows else "*Not measured yet.*")

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
#
# To use it: `cookbook copy hopper/overlapped_epilogue_gemm my_gemm.py`, then `from my_gemm import matmul`.
