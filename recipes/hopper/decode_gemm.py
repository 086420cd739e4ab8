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
#     title: "Decode GEMM: prefetch into L2"
#     claim: >-
#       A prefetch into L2 may come before the kernel before has ended, with no promise by the caller. It pays where few
#       SMs read a weight, and costs where many do.
#     track: hopper
#     order: 76
#     builds_on: hopper/split_k_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     compared_with: hopper/split_k_gemm
#     dtypes: [bfloat16, float16]
#     path: tma prefetch into L2 -> tma -> swizzled shared memory -> wgmma -> registers -> DSMEM -> 2-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, ACQBULK, PREEXIT, STG.E.U16, SYNCS]
#     bench_shapes: [[1, 8192, 8192], [16, 8192, 8192], [16, 4096, 14336], [16, 1536, 7168], [16, 2560, 8192],
#       [16, 4608, 8192], [32, 8192, 8192], [32, 1536, 7168], [64, 8192, 8192], [64, 4096, 14336], [64, 1536, 7168]]
#     sources:
#       - {title: "PTX ISA, cp.async.bulk.prefetch.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor"}
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
#       - {title: "PTX ISA, cache eviction priority hints", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#cache-eviction-priority-hints"}
# ---

# %% [markdown]
# # Decode GEMM: prefetch into L2
#
# **Claim.** In LLM decode few rows meet a large weight, and the bytes of the weight take nearly all of the time. No
# kernel may *read* before the one before it has ended. But it may ask L2 to fetch, and stay ahead of its loads. Where
# few SMs read a weight, that pays. Where many do, it costs.

# %% tags=["lab"]
from cookbook import draw, lab

READ, END, GAP, HEAD = 8.0, 2.0, 2.5, 3.0  # a kernel reads; adds and stores; the next one begins; what L2 prefetches
after = READ + END
lanes = {
    "kernel before": [draw.Span(0, READ, "reads", "loads"), draw.Span(READ, after, "", "adds, stores")],
    "no prefetch": [draw.Span(after + GAP, after + GAP + READ, "reads", "loads")],
    "prefetch: L2": [draw.Span(READ + GAP, READ + GAP + HEAD, "fetches", "prefetch into L2")],
    "prefetch: SM": [draw.Span(after + GAP, after + GAP + READ - HEAD / 2, "reads", "loads")],
}
draw.lanes(lanes, "One product after another (a sketch)", unit="µs", note="Times are chosen, not measured.")

# %% [markdown]
# **Why no promise is needed.** The kernel before might still write the weight. So nothing may be read before
# `griddepcontrol.wait`. A prefetch reads nothing: it moves a line into L2. The writes of all SMs arrive in L2, too, so
# whoever reads the line later gets what was written last. [A Blackwell page](../blackwell/low_latency_gemm.ipynb) loads
# the weight itself before the wait, into shared memory: for that the caller must promise that no kernel writes it.
#
# An experiment on an H200 had both, in a chain of products of which each second one wrote the weight of the next. With
# the prefetch all twenty runs gave the same right bits. With loads before the wait they gave NaN, which had been there
# before.
#
# Two more things differ from [split-K](split_k_gemm.ipynb), and both make room for stages:
#
# * **The stages become the reduction buffer**, once they have been multiplied.
# * **A CTA's own share of the sums stays in its registers**: it sends to the other CTAs alone.
#
# The weight is the tensor core's A again (swap A/B). `matmul(a, b)` takes `a` (M, K) and `b` (K, N), both K-major, as
# `x @ weight.T` is. Any M is right; the tiles are made for M up to 64.
#
# `cookbook bench` has not timed this kernel yet. Where this page says what was faster, it speaks of that experiment, in
# which the kernel ran next to cuBLAS and `split_k_gemm` at thirty sizes.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.memory
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows.
#
# `ahead` is the number of k-tiles that a CTA prefetches. It asks L2 for that many before `griddepcontrol.wait`, and
# stays that far ahead of its loads. L2 becomes a second queue in front of the stages.
#
# | variant | K is split among | made for |
# |---|---|---|
# | `64x16`, `64x32`, `64x64` | one CTA, with all of an SM's shared memory | tiles for more than a third of the SMs |
# | `64x16 in 2`, ... | two CTAs; an SM has room for two | tiles for a quarter to a third |
# | `64x16 in 2, ahead`, `64x64 in 4, ahead`, ... | two or four | fewer |


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 64  # rows of the weight per cluster, 64 for each warpgroup
    tile_n: int = 16  # rows of the product per cluster
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    split_k: int = 1  # CTAs of a cluster, that divide K among them; a divisor of a thread's accumulators
    cluster_m: int = 1  # tiles of the weight, one below the other, whose CTAs share the rows by multicast
    per_sm: int = 1  # CTAs that an SM has shared memory for
    ahead: int = 0  # k-tiles of the weight that are prefetched into L2 before the first load; 0: no prefetch
    stays: bool = True  # ahead of the loads, later too
    rest: bool = False  # loads of the weight before the wait

    def __post_init__(self):
        if self.split_k > self.sums:
            raise ValueError(f"split_k: got {self.split_k}; needed at most {self.sums}, the accumulators of a thread")
        if self.tile_n % (8 * self.cluster_m):
            raise ValueError(
                f"cluster_m: got {self.cluster_m}; needed a divisor of {self.tile_n // 8}: parts of 8 rows"
            )

    @property
    def cluster(self) -> int:
        return self.split_k * self.cluster_m

    @property
    def warpgroups(self) -> int:
        return self.tile_m // 64  # that multiply

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups + 32  # and the warp that loads

    @property
    def sums(self) -> int:
        return 64 * self.tile_n // 128  # accumulators of a thread

    @property
    def share(self) -> int:
        # those of a thread's accumulators that one CTA of a cluster adds up and stores; the last one's may be fewer
        return -(-self.sums // (self.split_k * self.vec)) * self.vec

    @property
    def vec(self) -> int:
        return next(vec for vec in (4, 2, 1) if vec * self.split_k <= self.sums)  # of them that are sent at once

    @property
    def reduction_bytes(self) -> int:
        # a place for each CTA's part of a share
        return 2 * self.tile_m * self.share * self.split_k * 4 if self.split_k > 1 else 0

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def stages(self) -> int:
        room = SM_SMEM // self.per_sm - 1024  # of each CTA the hardware keeps 1 KiB for itself
        return (room - 1024) // self.stage_bytes  # of A and B in flight: all that fit

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes  # barriers, padded to the tiles' alignment


SM_SMEM = 228 * 1024  # bytes of shared memory that an SM has for its CTAs
VARIANTS = {
    "64x16": Config(),
    "64x16 in 2": Config(split_k=2, per_sm=2),
    "64x16 in 2, ahead": Config(split_k=2, per_sm=2, ahead=12),
    "64x32": Config(tile_n=32),
    "64x32 in 2": Config(tile_n=32, split_k=2, per_sm=2),
    "64x32 in 2, ahead": Config(tile_n=32, split_k=2, per_sm=2, ahead=12),
    "64x64": Config(tile_n=64),
    "64x64 in 2": Config(tile_n=64, split_k=2, per_sm=2),
    "64x64 in 4, ahead": Config(tile_n=64, split_k=4, per_sm=2, ahead=12),
}
DEFAULT = "auto"  # the one that `choose` names
TRANSPOSED = True
CONFIG = VARIANTS["64x16 in 2, ahead"]


def config_for(arch: str, variant: str = "64x16 in 2, ahead") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown] tags=["lab"]
# ## Two numbers first
#
# For an H200: the bytes of the weight over what memory gives when it is only read, and the multiplications over what
# the tensor cores do at the power limit. Both in microseconds; the larger is the least time that a product can take.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import table

READ_RATE, FLOPS = 4.65e6, 790e6  # of an H200: bytes and floating-point operations a microsecond
WEIGHTS = [(8192, 8192), (14336, 4096), (4096, 14336), (1536, 7168), (2560, 8192), (4608, 8192), (57344, 8192)]


def floors(m: int, n: int, k: int) -> tuple[float, float]:
    """Microseconds that the bytes take, and the multiplications."""
    return 2 * (n * k + m * (n + k)) / READ_RATE, 2 * m * n * k / FLOPS


rows = []
for n, k in WEIGHTS:
    multiplied = [f"{floors(m, n, k)[1]:.1f}" for m in (16, 64, 128, 256)]
    rows.append([f"{n} x {k}", f"{2 * n * k / 1e6:.0f}", f"{floors(16, n, k)[0]:.1f}", *multiplied])
Markdown(table(["weight, N x K", "MB", "bytes: us", *(f"M = {m}: us" for m in (16, 64, 128, 256))], rows))

# %% [markdown] tags=["lab"]
# Up to some 128 rows the bytes are the longer of the two. What stands between a kernel and its floor is what happens
# before its first load and after its last one.

# %% [markdown]
# ## The heuristic
#
# Three expectations, and what the experiment said of them:
#
# * *The prefetch gains everywhere.* It does not. With 48 CTAs it took a seventh off the time (16 x 1536 x 7168, in 2).
#   With 64 CTAs it cost 4% for 16 rows, and gained an eighth for 64 rows, which take half of each stage. With 128 or
#   256 CTAs it cost a tenth, and more the further ahead it was. Every line is asked for twice, which costs where L2 is
#   busy.
# * *A CTA should leave half of the SM to the next kernel*, so that both are there at once. With K whole, a CTA that
#   took all of the shared memory was as fast or faster at ten of twelve sizes.
# * *Split-K needs more CTAs than tiles.* From tiles for half of the SMs on, K whole was better or within 1%: an
#   exchange less, and longer rows of a weight in flight.
#
# So the rule counts tiles. `tile_n` holds the rows and is not larger: a TMA box that lies partly outside is slow.
# (The variants of 32 columns were not in the experiment; they follow the rule for 16.)


# %%
def choose(m: int, n: int, k: int, sms: int) -> str:
    """The narrowest tile that holds the rows, and K divided where the tiles are few."""
    width = next((width for width in (16, 32) if m <= width), 64)
    tiles = -(-n // 64) * -(-m // width)
    if 4 * tiles <= sms:
        return "64x64 in 4, ahead" if width == 64 else f"64x{width} in 2, ahead"
    return f"64x{width} in 2" if 3 * tiles <= sms else f"64x{width}"


# %% [markdown]
# ## Layouts and MMA
#
# As in [split-K](split_k_gemm.ipynb): K-major tiles in 128-byte rows, and no place in shared memory for C.


# %% tags=["folded"]
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
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
    )


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """wgmma m64nNk16 for each warpgroup, one below the other; A and B from shared memory, both K-major."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    op = warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, config.tile_n, 16), smem, k_major, k_major)
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory: there are none."""


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """No copy: TMA fills the stages, wgmma reads them, and C goes out of registers."""
    return TiledCopies()


# %% [markdown]
# **The reduction buffer** is laid out as before, a place for each sender. But it has no memory of its own: it lies
# where the stages were. So nothing may be sent before *every* CTA of the cluster has multiplied its last stage, which
# takes a barrier of the cluster. `split_k_gemm` has one too, but waits for it when it has long been complete. The wait
# costs little: no CTA can end before the slowest one has sent its sums anyway.


# %%
def reduction_buffer(config: Config) -> cute.Layout:
    """Where float32 sums lie in a reduction buffer: (THREAD, (VEC, VECTORS), SENDER)."""
    vec, threads = config.vec, 128 * config.warpgroups
    vectors = config.share // vec
    strides = (vec, (1, vec * threads), vec * threads * vectors)
    return cute.make_layout((threads, (vec, vectors), config.split_k), stride=strides)


# %% [markdown]
# ## Which part is whose


# %% tags=["folded"]
class Part(NamedTuple):
    """What a CTA does: `k_tiles` k-tiles from `first` on of the tile (m, n)."""

    m: cutlass.Int32
    n: cutlass.Int32
    rank: cutlass.Int32  # of the CTA among those that divide K
    row: cutlass.Int32  # of the CTA's tile among those of its cluster
    first: cutlass.Int32
    k_tiles: cutlass.Int32


def part_of(cta, shape_mn, k_tiles, config: Config) -> Part:
    """The part of a CTA: clusters are numbered down the weight first, in a cluster first the parts of K."""
    cluster, number = cta // config.cluster, cta % config.cluster
    row, rank = number // config.split_k, number % config.split_k
    height = config.tile_m * config.cluster_m
    down = (shape_mn[0] + height - 1) // height
    each = (k_tiles + config.split_k - 1) // config.split_k
    return Part(cluster % down * config.cluster_m + row, cluster // down, rank, row, rank * each, each)


# %% [markdown]
# ## The warp that loads
#
# The order of its steps is what this page is about:
#
# 1. prefetch the first `ahead` k-tiles of the weight into L2;
# 2. `griddepcontrol.wait`: from here on the kernel before has ended, and A and B may be read;
# 3. for each k-tile: load A and B into a stage, and prefetch the k-tile that is `ahead` of it;
# 4. `griddepcontrol.launch_dependents`: nothing is left to ask for, so the next kernel may begin to prefetch.
#
# A load says how L2 shall keep the line (*cache hints*): a line of the weight may be evicted first, for it is not read
# again; the rows of the product last. Where L2 was full of prefetched lines, this made a difference of a tenth.


# %%
def at_rest(config: Config) -> tuple[str, ...]:
    return ("tma_a",) if config.rest else ()


# Cache policies for all lines of a tensor alike; CUTLASS has the same numbers as `CacheHintSm90`.
EVICT_FIRST = 0x12F0000000000000  # the weight: each line is read once
EVICT_LAST = 0x14F0000000000000  # the rows of the product: every tile of the weight reads them again


@cute.jit
def load_rows(tma_b, source, target, barrier, part: Part, config: cutlass.Constexpr):
    """This CTA's share of the rows of a k-tile, to itself and to all that multiply them by other tiles."""
    again = cutlass.Int64(EVICT_LAST)
    if cutlass.const_expr(config.cluster_m > 1):
        column = sum(1 << row * config.split_k for row in range(config.cluster_m))  # of the CTA at rank 0
        mask = cutlass.Int16(column) << cutlass.Int16(part.rank)
        cute.copy(tma_b, source, target, tma_bar_ptr=barrier, mcast_mask=mask, cache_policy=again)
    else:
        cute.copy(tma_b, source, target, tma_bar_ptr=barrier, cache_policy=again)


@cute.jit
def produce(pipe, a, b, part: Part, config: cutlass.Constexpr):
    """The k-tiles of this CTA's part. a, b: a TMA atom, its source (ROWS, K, k), its target (ROWS, K, STAGE)."""
    (tma_a, gA, sA), (tma_b, gB, sB) = a, b
    alone, sharers = cute.make_layout(1), cute.make_layout(config.cluster_m)
    tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
    tBsB, tBgB = cpasync.tma_partition(tma_b, part.row, sharers, cute.group_modes(sB, 0, 2), cute.group_modes(gB, 0, 2))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    once = cutlass.Int64(EVICT_FIRST)
    for i in cutlass.range(cutlass.min(config.ahead, part.k_tiles), unroll=1):
        cute.prefetch(tma_a, tAgA[None, part.first + i])
    early = cutlass.Int32(0)
    if cutlass.const_expr(config.rest):
        early = cutlass.min(part.k_tiles, config.stages)
        for i in cutlass.range(early, unroll=1):
            pipe.producer_acquire(state)
            barrier = pipe.producer_get_barrier(state)
            cute.copy(
                tma_a, tAgA[None, part.first + i], tAsA[None, state.index], tma_bar_ptr=barrier, cache_policy=once
            )
            state.advance()
    cute.arch.griddepcontrol_wait()  # before any load: the kernel before may have written A or B
    if cutlass.const_expr(config.rest):
        again = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        for i in cutlass.range(early, unroll=1):
            barrier = pipe.producer_get_barrier(again)
            load_rows(tma_b, tBgB[None, part.first + i], tBsB[None, again.index], barrier, part, config)
            again.advance()
    for i in cutlass.range(early, part.k_tiles, unroll=1):
        k_tile = part.first + i
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier, cache_policy=once)
        load_rows(tma_b, tBgB[None, k_tile], tBsB[None, state.index], barrier, part, config)
        if cutlass.const_expr(config.ahead > 0 and config.stays):
            if i + config.ahead < part.k_tiles:
                cute.prefetch(tma_a, tAgA[None, k_tile + config.ahead])
        state.advance()
    cute.arch.griddepcontrol_launch_dependents()
    if cutlass.const_expr(config.split_k > 1):
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()  # whoever arrives at a barrier waits there too
    pipe.producer_tail(state)  # until all stages have been read


# %% [markdown]
# ## The warpgroups that multiply


# %% tags=["folded"]
@cute.jit
def multiply_stage(mma, acc, tCrA, tCrB, stage, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one commit group. mma: one that overwrites `acc`, for the very first k-block, and
    one that adds to it. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    overwrite, add = mma
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements, 32 bytes, along K
        each = overwrite if first and k == 0 else add
        cute.gemm(each, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def multiply(pipe, group, sA, sB, tCcC, k_tiles, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """All k-tiles of the part, at least one. tCcC (MMA, 1, 1): a thread's coordinates. Returns the accumulators."""
    overwrite, add = tiled_mma(dtype, config), tiled_mma(dtype, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    thr = add.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    acc = cute.make_rmem_tensor(tCcC.shape, cutlass.Float32)
    tCrA = add.make_fragment_A(thr.partition_A(sA))  # (MMA, MMA_M, MMA_K, STAGE)
    tCrB = add.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K, STAGE)
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    pipe.consumer_wait(read)
    multiply_stage((overwrite, add), acc, tCrA, tCrB, read.index, True)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        multiply_stage((overwrite, add), acc, tCrA, tCrB, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()
    warpgroup.wait_group(0)
    pipe.consumer_release(release)
    return acc


# %% [markdown]
# ## The exchange
#
# One barrier of the cluster says three things: all CTAs have begun, the barriers in their shared memory have been
# initialised, and no stage is read any more. Each thread then sends each other CTA that one's share. It adds the shares
# up in the order of the senders, its own among them, so that a call gives the same bits each time.


# %%
@cute.jit
def exchanged(acc, sReduce, arrived, part: Part, tidx, config: cutlass.Constexpr):
    """This CTA's share of all CTAs' accumulators: (VEC, VECTORS). sReduce (THREAD, (VEC, VECTORS), SENDER)."""
    (vec, vectors), senders = sReduce.shape[1], config.split_k
    sends = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), cutlass.Float32, num_bits_per_copy=32 * vec)
    rParts = cute.make_tensor(acc.iterator, cute.make_layout((vec, vectors, senders)))
    rSum = cute.make_rmem_tensor((vec, vectors), cutlass.Float32)
    rOwn, rSent = cute.make_fragment_like(rSum), cute.make_fragment_like(rSum)
    for each in (rSum, rOwn, rSent):
        each.fill(0.0)
    cute.arch.cluster_arrive()  # this CTA's stages have been read, ...
    cute.arch.cluster_wait()  # ... and those of all others: what a stage was may be a reduction buffer now
    for peer in cutlass.range_constexpr(senders):
        given = min(vectors, (config.sums - peer * config.share) // vec)  # the last CTA's share may be smaller
        if part.rank == peer:
            for i in cutlass.range_constexpr(given):
                rOwn[None, i].store(rParts[None, i, peer].load())  # its own share stays in registers
        else:
            for i in cutlass.range_constexpr(given):
                cta = part.row * senders + peer
                place = cute.arch.map_dsmem_ptr(sReduce[tidx, (None, i), part.rank].iterator, cta)
                barrier = cute.arch.map_dsmem_ptr(arrived, cta)
                target = cute.make_tensor(place, cute.make_layout(vec))
                cute.copy(sends, rParts[None, i, peer], target, mbar_ptr=barrier)
    cute.arch.mbarrier_wait(arrived, 0)
    for sender in cutlass.range_constexpr(senders):
        if part.rank == sender:
            rSent.store(rOwn.load())
        else:
            for i in cutlass.range_constexpr(vectors):
                if part.rank * config.share + i * vec < config.sums:  # of the last CTA's places some may be empty
                    cute.autovec_copy(sReduce[tidx, (None, i), sender], rSent[None, i])
        rSum.store(rSum.load() + rSent.load())
    return rSum


# %% [markdown]
# ## The store


# %% tags=["folded"]
@cute.jit
def store(rSum, tCcC, mC, part: Part, config: cutlass.Constexpr):
    """Round this CTA's share of a thread's accumulators and store what lies inside. mC (M, N): C transposed."""
    cute.arch.griddepcontrol_wait()  # whoever reads or writes C before this kernel has ended
    for i in cutlass.range(config.share, unroll_full=True):
        place = part.rank * config.share + i
        row, column = tCcC[place]
        if cute.elem_less((row, column, place), (*mC.shape, config.sums)):
            mC[row, column] = rSum[i].to(mC.element_type)


# %% [markdown]
# ## The kernel
#
# The stages of A and B lie one after the other, and the reduction buffer begins where they do.


# %%
@cute.jit
def begin(barriers, arrived, warp_idx, part: Part, config: cutlass.Constexpr):
    """The queue, and the buffer's barrier; then all barriers are there, for this CTA now, for the cluster at its."""
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        # a thread of each warp, of all CTAs that read what this one loads
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.warpgroups * config.cluster_m),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.split_k, 1), stride=(0, config.split_k, 1, 0)),
        mcast_mode_mn=(0, 1),
        defer_sync=True,
    )
    if cutlass.const_expr(config.split_k > 1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(arrived, 1)
    cute.arch.mbarrier_init_fence()
    if cutlass.const_expr(config.cluster_m > 1):
        cute.arch.cluster_arrive_relaxed()  # another CTA's load may come as soon as all barriers are there
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()
    if cutlass.const_expr(config.split_k > 1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                own = cutlass.max(cutlass.min(config.sums - part.rank * config.share, config.share), 0)
                sent = 4 * 128 * config.warpgroups * (config.split_k - 1) * own  # by the other CTAs
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, sent)
    return pipe


@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    mC: cute.Tensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its part of the accumulators of one tile, and stores its share of them."""
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)
    layouts = smem_layouts(dtype, config)
    if warp_idx == 4 * config.warpgroups:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sReduce = None
    if cutlass.const_expr(config.split_k > 1):
        sReduce = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=cutlass.Float32), reduction_buffer(config))
    cta, _, _ = cute.arch.block_idx()
    part = part_of(cta, mC.shape, cute.ceil_div(mA.shape[1], config.tile_k), config)
    pipe = begin(barriers, arrived, warp_idx, part, config)

    if warp_idx == 4 * config.warpgroups:
        gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (part.m, None))  # (M, K, k)
        gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (part.n, None))  # (N, K, k)
        produce(pipe, (tma_a, gA, sA), (tma_b, gB, sB), part, config)
    else:
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), (part.m, part.n))
        # where in C each of a thread's accumulators belongs
        tCcC = tiled_mma(dtype, config).get_slice(tidx).partition_C(cC)
        acc = multiply(pipe, group, sA, sB, tCcC, part.k_tiles, dtype, config)
        if cutlass.const_expr(config.split_k > 1):
            store(exchanged(acc, sReduce, arrived, part, tidx, config), tCcC, mC, part, config)
        else:
            store(acc, tCcC, mC, part, config)


# %% [markdown]
# ## The launch


# %% tags=["folded"]
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (n, m, k), (ldb, lda, ldc), dtype = mnk, strides, pA.dtype
    lda, ldb = (cute.assume(stride, divby=8) for stride in (lda, ldb))
    mA = cute.make_tensor(pB, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pA, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, ldc)))
    layouts = smem_layouts(dtype, config)
    tma_a, mA = make_tma(mA, layouts.a, (config.tile_m, config.tile_k), 1)
    tma_b, mB = make_tma(mB, layouts.b, (config.tile_n, config.tile_k), config.cluster_m)
    clusters = cute.ceil_div(m, config.tile_m * config.cluster_m) * cute.ceil_div(n, config.tile_n)
    launcher = kernel(tma_a, mA, tma_b, mB, mC, dtype, config)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * config.cluster, config.threads, config.cluster))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def make_tma(matrix: cute.Tensor, layout: cute.ComposedLayout, tile: tuple[int, int], sharers: int):
    """The TMA copy of a tile into one stage of `layout`, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    stage = cute.slice_(layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    variant = choose(*call.mnk, call.sms) if call.variant == DEFAULT else call.variant
    return (VARIANTS[variant],), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=(DEFAULT, *VARIANTS))


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. One call on one GPU gives the same bits each time. There is
    no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out, variant)


# %% [markdown] tags=["lab"]
# ## The stages as a reduction buffer, drawn
#
# Shared memory of a CTA of each variant, to scale: the stages, and how much of them the reduction buffer takes later.

# %% tags=["lab"]
spans = {}
for name, c in VARIANTS.items():
    share = c.reduction_bytes // 1024
    whole = c.stages * c.stage_bytes // 1024
    spans[name] = [
        *([draw.Span(0, share, "", "stages, then reduction buffer")] if share else []),
        draw.Span(share, whole, f"{c.stages} stages", "stages"),
    ]
draw.lanes(spans, "Shared memory of one CTA", unit="KiB", note=f"An SM has {SM_SMEM // 1024} KiB for all of its CTAs.")

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at every variant. Level *pipeline* follows the warps of a whole cluster in every order: that nobody
# is sent anything before its stages have been read, that no sum is read before it has come, and that nothing but the
# prefetch comes before `griddepcontrol.wait`. Level *product* follows each element of C back to A and B.

# %% tags=["lab"]
lab.check_cells("hopper/decode_gemm", shapes=[(13, 333, 640)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# In the machine code a prefetch is `UTMAPF`, next to the loads, `UTMALDG`:

# %% tags=["lab"]
from cookbook.check import compiled

try:
    for name, config in VARIANTS.items():
        made = compiled.compile_recipe("hopper/decode_gemm", "sm_90a", "bfloat16", config=config)
        counts = (f"{made.count(x):2} {x}" for x in ("UTMAPF", "UTMALDG", "STAS", "STG"))
        print(f"{name:14}{config.stages:2} stages, {made.registers:3} registers,", ", ".join(counts))
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("hopper/decode_gemm", matmul, (16, 8192, 8192))

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("hopper/decode_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A prefetch into L2 is the one access that needs no promise and no wait. In the experiment this kernel, by its
# heuristic, was ahead of cuBLAS by more than a fifth where a weight has tiles for few SMs (16 and 64 rows of
# 1536 x 7168), by a sixth for 16 rows of 2560 x 8192, and between 3% behind and 7% ahead at the nine other sizes.
#
# It was ahead of `split_k_gemm` by 4% on average: by a sixth for the smallest weight, behind by 1% and 3% for 16 rows
# of 8192 x 8192 and of 14336 x 4096. There little is left: a kernel that only reads the same bytes took 5 to 10% less.
#
# Not answered: how much of the gain comes before the wait, and how much from staying ahead. The experiment had no
# kernel that prefetches before the wait alone. From 96 rows on neither kernel keeps up with cuBLAS.
#
# Next: products with many tiles again. [An overlapped epilogue](overlapped_epilogue_gemm.ipynb) stores one tile while
# the next one is multiplied.
#
# To use it: `cookbook copy hopper/decode_gemm my_gemm.py`, then `from my_gemm import matmul`.
