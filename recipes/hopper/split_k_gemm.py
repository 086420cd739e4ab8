# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Split-K within a cluster
#     claim: >-
#       Where a product has fewer tiles than the GPU has SMs, the CTAs of a cluster each multiply a part of K and add
#       their accumulators through DSMEM.
#     track: hopper
#     order: 75
#     aside: Few rows, or few tiles
#     builds_on: hopper/tma_wgmma_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     serves: {sm_90: 1700}
#     compared_with: hopper/tuned_gemm
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> wgmma -> registers -> DSMEM reduction buffers -> 2-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, ACQBULK, PREEXIT, STG.E.U16, SYNCS]
#     bench_shapes: [[1, 4096, 4096], [16, 4096, 4096], [16, 8192, 8192], [32, 8192, 8192], [64, 8192, 8192],
#       [64, 1024, 8192], [128, 4096, 4096], [256, 2048, 8192], [256, 256, 8192], [512, 512, 512], [1024, 1024, 1024]]
#     sources:
#       - {title: "PTX ISA, st.async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async"}
#       - {title: "CUDA C++ Programming Guide, thread block clusters", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-block-clusters"}
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
# ---

# %% [markdown]
# # Split-K within a cluster
#
# **Claim.** If C has few tiles, most SMs are idle. *Split-K* cuts the third dimension: the CTAs of a cluster each take
# a part of K **for the same tile**, and add up their accumulators through distributed shared memory. Two or four times
# as many SMs work, on tiles as large as before.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/split_k_gemm", (16, 4096, 4096), over=["hopper/tuned_gemm", "128x128"])

# %% [markdown]
# Smaller tiles would occupy more SMs, too, but every halving of a tile's side makes its CTA load more for each
# multiplication. The price of split-K: the accumulators of a CTA are only a part of the sum. They need not go through
# global memory. Each CTA sends the others what they are to add up, and adds up its own share of the tile. No second
# kernel runs, and the order of the additions is fixed, so the same call gives the same bits.
#
# Two kinds of products have few tiles: small ones, and LLM decode, where few rows (M <= 64) meet a large weight. LLM
# decode is a stream of weights. Its time is that of their bytes, so it matters how many SMs ask for them, and how much
# each can take in.
#
# **The weight is the tensor core's A** (swap A/B). A `wgmma` always takes 64 rows of A, but as few as 8 of B. The
# kernel computes C transposed, and multiplies no more than 16 columns for 16 rows of `a`.
#
# [Blackwell has the same idea](../blackwell/low_latency_gemm.ipynb). Here the accumulators are in registers, and a
# heuristic chooses tile and split. The stages are those of [the GEMM with TMA and WGMMA](tma_wgmma_gemm.ipynb): one
# tile a CTA, no multicast, and C goes out without TMA. `matmul(a, b)` takes `a` (M, K) and `b` (K, N), both K-major, as
# `x @ weight.T` is.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.hopper.first_gemm import SmemLayouts, TiledCopies, tiled_copies
from cookbook.recipes.hopper.tma_wgmma_gemm import Load, TmaTensor, make_load, partition_load, smem_atom, wgmma

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows. `gemm` exchanges them, and the rest of the kernel knows only of A and B.
#
# Each consumer warpgroup has 64 rows of the tile. A thread has at most 64 accumulators, so no registers need to be
# moved; one warp more loads, and that is the CTA. The stages take the shared memory that the *reduction buffer* leaves,
# in which the other CTAs put their accumulators. The many short parts of K are in flight nearly at once.
#
# | variant | K is split among | made for |
# |---|---|---|
# | `128x128` | one CTA | comparison with the others; as many tiles as SMs, or more |
# | `128x128 in 2` | a cluster of two | products whose tiles are half as many as SMs |
# | `64x128 in 2` | two | about 128 rows of a weight |
# | `64x64` | one CTA | short K: small products of more tiles than one for each SM |
# | `64x64 in 2` | two | up to 64 rows; small products of fewer tiles |
# | `64x64 in 4` | four | a long K and very few tiles |
# | `64x32 in 2` | two | up to 32 rows |
# | `64x16 in 2` | two | up to 16 rows |
#
# The last five take **half of an SM's shared memory** (`per_sm`). Their stages still hold more than has to be in
# flight, and a second CTA finds room.
#
# It may be one of the next kernel, which can then get ready while this one stores. Or it is one of the same kernel,
# since clusters of four do not fill a GPU. The SMs of a cluster must lie in one GPC, and the profiler says that 30
# clusters of four, not 33, fit the 132 SMs of an H200.
#
# `tile_n` is made for the rows of the product, not larger: a TMA box that lies partly outside is not cheap, as the
# heuristic will say.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of the weight per cluster, 64 for each warpgroup
    tile_n: int = 128  # rows of the product per cluster
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four wgmma steps of 16
    split_k: int = 2  # CTAs of a cluster, that divide K among them; a divisor of a thread's accumulators
    per_sm: int = 1  # CTAs that an SM has shared memory for

    def __post_init__(self):
        if self.accumulators % self.split_k:
            needed = f"a divisor of {self.accumulators}, the accumulators of a thread"
            raise ValueError(f"split_k: got {self.split_k}; needed {needed}")

    @property
    def warpgroups(self) -> int:
        return self.tile_m // 64  # that multiply

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups + 32  # and the warp that loads

    @property
    def accumulators(self) -> int:
        return 64 * self.tile_n // 128  # of a thread

    @property
    def share(self) -> int:
        # those of a thread's accumulators that one CTA of a cluster adds up and stores
        return self.accumulators // self.split_k

    @property
    def vec(self) -> int:
        return min(self.share, 4)  # accumulators that are sent at once

    @property
    def reduction_bytes(self) -> int:
        return self.tile_m * self.tile_n * 4 if self.split_k > 1 else 0  # what the CTAs of a cluster send to one

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def stages(self) -> int:
        room = SM_SMEM // self.per_sm - 1024  # of each CTA the hardware keeps 1 KiB for itself
        return (room - 1024 - self.reduction_bytes) // self.stage_bytes  # of A and B in flight: all that fit

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.reduction_bytes + self.stages * self.stage_bytes  # barriers, padded to the tiles' alignment


SM_SMEM = 228 * 1024  # bytes of shared memory that an SM has for its CTAs

# %%
VARIANTS = {
    "128x128": Config(split_k=1),
    "128x128 in 2": Config(),
    "64x128 in 2": Config(tile_m=64),
    "64x64": Config(tile_m=64, tile_n=64, split_k=1, per_sm=2),
    "64x64 in 2": Config(tile_m=64, tile_n=64, per_sm=2),
    "64x64 in 4": Config(tile_m=64, tile_n=64, split_k=4, per_sm=2),
    "64x32 in 2": Config(tile_m=64, tile_n=32, per_sm=2),
    "64x16 in 2": Config(tile_m=64, tile_n=16, per_sm=2),
}
DEFAULT = "auto"  # the one that `choose` names
TRANSPOSED = True
CONFIG = VARIANTS["64x64 in 2"]


def config_for(arch: str, variant: str = "64x64 in 2") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The heuristic
#
# How long a product takes follows from five things that go on at the same time, and two that do not. `nanoseconds` says
# them for a configuration:
#
# * **multiply.** A `wgmma` of N columns takes N / 2 clocks, or as long as shared memory needs for its operands at 128
#   bytes a clock, if that is more: 16 clocks for A, N / 4 for B. The busiest SM counts.
# * **load**: A and B of that SM's CTAs, at what one SM can take in.
# * **wait**: a CTA has all its stages on their way at once, and each takes a while to come (`latency`). One CTA alone
#   gets that many k-tiles in that time, and not more.
# * **L2**: all loads together, at what L2 gives. Elements outside of the operands, where a tile is larger than what is
#   left, become zeros without being read. But they are *slower* than elements that are read. That is what the
#   measurements say, not why.
# * **memory**: A, B and C, once; a weight that L2 cannot hold, once for each round that needs it.
# * Before them: **start**, a CTA that begins, with its first load on the way. After them: **send**, what leaves the
#   registers of a CTA: its accumulators to the reduction buffers, if K is divided, and its part of C.
#
# If SMs have more CTAs than there is room for, they run in rounds, and each round starts and sends again. The five do
# not quite hide behind the longest: two that are equally long delay each other. The fourth root of the sum of their
# fourth powers is a little more than the longest one.
#
# Split-K changes the first three: more SMs share the work. It does not change L2 and memory: the same tiles load the
# same bytes. So it gains where few SMs are busy, or each gets too little. Where no SM is idle it costs what there is to
# send.
#
# The six figures below are fitted to times on an H200, at products of both kinds, by least squares of logarithms. A
# test does it again with the records. A time counts for less the further it is from the fastest variant's: the
# heuristic must tell the good variants apart. They are figures of one chip, and of kernels called one right after the
# other.


# %%
GHZ = 1.755  # of the SMs' clock: about what an H200 runs at, not fitted
SM_LOAD = 64 * GHZ  # bytes a nanosecond that one SM can take in: 64 a clock, not fitted
L2_HOLDS = 50e6  # bytes that are still in L2 when they are read again: the size of an H200's, not fitted


class Figures(NamedTuple):
    """The heuristic's figures of a GPU: nanoseconds, and bytes a nanosecond. Fitted to times on an H200."""

    start: float = 1250  # of a round: CTAs begin, and their first loads come
    latency: float = 950  # from asking for a stage to asking for the same stage again, while all others ask too
    l2: float = 13_000  # of A and B, from L2 into all SMs
    outside: float = 3_000  # of zeros, where a box lies outside of A or B
    memory: float = 4_200
    send: float = 27  # out of the registers of a CTA: accumulators and C


H200 = Figures()


# %%
def clusters_at_once(config: Config, sms: int) -> int:
    """Clusters that find an SM for each of their CTAs: those of four leave an eleventh of the SMs over."""
    return (sms if config.split_k <= 2 else sms * 10 // 11) // config.split_k


def multiplying(config: Config, k_tiles: int) -> float:
    """Clocks of the tensor cores for a number of k-tiles of one CTA."""
    wgmma = max(config.tile_n / 2, 16 + config.tile_n / 4)
    return k_tiles * config.warpgroups * config.tile_k / 16 * wgmma


def nanoseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> dict[str, float]:
    """Return what a product of m x n over k takes on `sms` SMs, by the rules above."""
    down, across = -(-n // config.tile_m), -(-m // config.tile_n)  # tiles
    k_tiles = -(-k // (config.tile_k * config.split_k))  # of each CTA
    ctas = -(-down * across // clusters_at_once(config, sms))  # of the busiest SM
    rounds = -(-ctas // config.per_sm)
    loaded = k_tiles * config.stage_bytes  # by each CTA
    inside = 2 * k * (across * n + down * m)  # of all that is loaded
    outside = down * across * config.split_k * loaded - inside
    weight = 2 * n * k * (min(across, rounds) if 2 * n * k > L2_HOLDS else 1)
    sent = config.reduction_bytes + 2 * config.tile_m * config.tile_n / config.split_k  # by each CTA
    return {
        "multiply": ctas * multiplying(config, k_tiles) / GHZ,
        "load": ctas * loaded / SM_LOAD,
        "wait": rounds * k_tiles / config.stages * gpu.latency,
        "L2": inside / gpu.l2 + outside / gpu.outside,
        "memory": (weight + 2 * m * (k + n)) / gpu.memory,
        "start": rounds * gpu.start,
        "send": rounds * sent / gpu.send,
    }


def added_up(terms: dict[str, float]) -> float:
    """The time of a product by its terms: all but the last two, start and send, overlap."""
    *together, start, send = terms.values()
    return start + sum(x**4 for x in together) ** 0.25 + send


def cost(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> float:
    """Nanoseconds of a product."""
    return added_up(nanoseconds(config, m, n, k, sms, gpu))


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown] tags=["lab"]
# **What the heuristic predicts**, with K whole and with split-K on the same tile: how many SMs are busy, how long the
# product takes, and which of the five is the longest. Next to it are the tiles of the kernel for all sizes,
# [tuned_gemm](tuned_gemm.ipynb).

# %% tags=["lab"]
from dataclasses import replace

from IPython.display import Markdown

from cookbook.lab import catalog, table

SMS = 132  # of an H200
tuned = catalog.load("hopper/tuned_gemm")
SHAPES = catalog.find("hopper/split_k_gemm").bench_shapes


def tuned_tiles(m: int, n: int, k: int) -> int:
    """Tiles of the variant that tuned_gemm chooses: as many CTAs, at most, have something to do."""
    c = tuned.VARIANTS[tuned.choose(m, n, k, SMS)]
    return -(-m // c.tile_m) * -(-n // c.tile_n)


def busy(config: Config, shape: tuple[int, int, int]) -> list[str]:
    """SMs that are busy; microseconds, and the longest of what goes on at the same time; those to send."""
    (m, n, _), terms = shape, nanoseconds(config, *shape, SMS)
    longest = max(list(terms)[:5], key=terms.get)
    ctas = -(-n // config.tile_m) * -(-m // config.tile_n) * config.split_k
    return [str(min(SMS, ctas)), f"{cost(config, *shape, SMS) / 1000:.1f} ({longest})", f"{terms['send'] / 1000:.1f}"]


rows = []
for shape in (*SHAPES, (1024, 4096, 4096)):
    chosen = choose(*shape, SMS)
    divided = VARIANTS[chosen] if VARIANTS[chosen].split_k > 1 else VARIANTS["128x128 in 2"]
    tile = f"{divided.tile_m}x{divided.tile_n} in {divided.split_k}"
    each = [tile, *busy(replace(divided, split_k=1), shape), *busy(divided, shape)]
    rows.append([" x ".join(map(str, shape)), str(tuned_tiles(*shape)), *each, chosen])
head = ["M x N x K", "tiles, tuned", "tile", "K whole: SMs", "µs", "to send", "divided: SMs", "µs", "to send", "chosen"]
Markdown(table(head, rows))

# %% [markdown] tags=["lab"]
# Three kinds of products:
#
# * **A long K and very few tiles.** With K whole most of the SMs are idle, and each of the others has all of K to load.
#   Four times as many take about a third of the time.
# * **A weight and some rows.** With K divided, memory is the longest term, or L2. A weight that is not large has tiles
#   for half of the SMs, and dividing K still helps. The largest have tiles for nearly all of them: by these figures K
#   whole would do.
# * **Tiles enough, or a short K.** What is sent takes most of what is saved, or more. The last row has more tiles than
#   SMs: no SM is idle, so there is nothing to gain.
#
# %% [markdown] tags=["lab"]
# One tile of 64 x 64, K = 8192, by a CTA, by two, by four. Dividing K shortens the loads and multiplications by more
# than sending adds:

# %% tags=["lab"]
lanes = {}
for split in (1, 2, 4):
    c = replace(VARIANTS["64x64 in 2"], split_k=split)
    terms = nanoseconds(c, 64, 64, 8192, SMS)
    work = cost(c, 64, 64, 8192, SMS) - terms["send"]
    for rank in range(split):
        spans = [draw.Span(0, work, f"K, part {rank}" if split > 1 else "K", "load and multiply")]
        if split > 1:
            spans.append(draw.Span(work, work + terms["send"], "", "send, add, store"))
        lanes[f"in {split}: SM {rank}" if split > 1 else "whole: SM 0"] = spans
draw.lanes(lanes, "One tile, by the figures of the rule", "nanoseconds", note="computed, not measured")

# %% [markdown]
# ## Layouts and MMA
#
# A and B lie as in every kernel of this track: K-major tiles in 128-byte rows. C has no place in shared memory, as in
# [the first GEMM](first_gemm.ipynb).


# %% tags=["folded"]
def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
    )


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The wgmma for each warpgroup, one below the other; A and B from shared memory, both K-major."""
    return cute.make_tiled_mma(wgmma(dtype, config.tile_n), (config.warpgroups, 1, 1))


# %% [markdown]
# **The DSMEM reduction buffer.** A thread has `tile_n / 2` accumulators of the tile, `share` for each CTA of the
# cluster: CTA 0 adds up the first `share` of every thread, and so on. A thread receives from the thread of the same
# number in each CTA. Each sender has a place of its own, so a tile is always added up in the same order.
#
# A store moves sixteen bytes, if a share has that many. Those of a warp lie next to each other, so neither writing nor
# reading has bank conflicts.
#
# The buffer is memory of its own, not the stages that have been multiplied already. When a CTA sends, its own stages
# have been read, but those of the receiver may not. To know it would take one more barrier of the whole cluster. No CTA
# could pass that before the slowest has multiplied its last k-tile. A separate buffer is empty from the beginning, so a
# CTA sends as soon as it is ready.


# %%
def reduction_buffer(config) -> cute.Layout:
    """Return where float32 accumulators lie in a reduction buffer: (THREAD, (VEC, VECTORS), SENDER)."""
    vec, threads = config.vec, 128 * config.warpgroups
    vectors = config.share // vec
    strides = (vec, (1, vec * threads), vec * threads * vectors)
    return cute.make_layout((threads, (vec, vectors), config.split_k), stride=strides)


# %% [markdown]
# ## Which part is whose
#
# A CTA does one part of K of one tile. All parts have equally many k-tiles. Those of the last CTAs may lie outside K,
# some or all: TMA brings zeros for these, without asking memory for anything, and a product with zeros does no harm. So
# every CTA has a part, no loop is ever empty, and no check is needed. (`part_of` is integer arithmetic: the kernel
# calls it, and so do the tests.)


# %%
class Part(NamedTuple):
    """The work of a CTA: `k_tiles` k-tiles from `first` on of the tile (m, n)."""

    m: cutlass.Int32
    n: cutlass.Int32
    rank: cutlass.Int32  # of the CTA in its cluster
    first: cutlass.Int32
    k_tiles: cutlass.Int32


def part_of(cta, shape_mn, k_tiles, config) -> Part:
    """The part of a CTA: tiles are numbered down the weight first, and the CTAs of a cluster follow one another."""
    tile, rank = cta // config.split_k, cta % config.split_k
    down = (shape_mn[0] + config.tile_m - 1) // config.tile_m
    each = (k_tiles + config.split_k - 1) // config.split_k
    return Part(tile % down, tile // down, rank, rank * each, each)


# %% [markdown]
# ## The warp that loads
#
# The producer of [the GEMM with TMA and WGMMA](tma_wgmma_gemm.ipynb), for the k-tiles of one part. With *programmatic
# dependent launch* (PDL) this kernel may get ready while the one before it ends: `griddepcontrol.wait` returns when
# that has ended and its writes can be seen. When nothing is left to ask for, the next kernel may come.


# %%
@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, loads: tuple[Load, ...], part: Part, config: cutlass.Constexpr):
    """Load the k-tiles of this CTA's part, of both operands, a stage each."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # before any load: the kernel before may have written A or B
    for i in cutlass.range(part.k_tiles, unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for load in loads:
            cute.copy(load.atom, load.gX[None, part.first + i], load.sX[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    cute.arch.griddepcontrol_launch_dependents()
    if cutlass.const_expr(config.split_k > 1):
        cute.arch.cluster_wait()  # every thread that arrives at a barrier waits there too, and all have arrived
    pipe.producer_tail(state)  # until all stages have been read


# %% [markdown]
# ## The warpgroups that multiply
#
# A warpgroup has two MMAs that differ in one field. The first `wgmma` of a part overwrites the accumulators, so no
# thread has to clear them. All others add to them.
#
# The loop issues a commit group of wgmmas for a stage, then waits for the group *before* it and releases that group's
# stage. `get_slice` gets the number of the warpgroup's first thread. So the compiler knows that descriptors are the
# same for all threads, and keeps them in *uniform* registers, which hold one value for a whole warp;
# [tuned_gemm](tuned_gemm.ipynb) says more.


# %%
class Multiplier(NamedTuple):
    """The MMAs of a warpgroup, its operands, and a thread's accumulators."""

    overwrite: cute.TiledMma  # acc = A B, for the very first k-block
    add: cute.TiledMma  # acc += A B
    acc: cute.Tensor  # (MMA, MMA_M, MMA_N)
    tCrA: cute.Tensor  # descriptors (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors (MMA, MMA_N, MMA_K, STAGE)


@cute.jit
def make_multiplier(
    sA: cute.Tensor, sB: cute.Tensor, group: cutlass.Int32, op: cutlass.Constexpr, config: cutlass.Constexpr
) -> Multiplier:
    """Partition the stages sA, sB (ROWS, TILE_K, STAGE) for the warpgroup number `group`."""
    overwrite, add = (cute.make_tiled_mma(op, (config.warpgroups, 1, 1)) for _ in range(2))
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    thr = add.get_slice(group * 128)  # of the warpgroup's first thread: the same for all
    acc = cute.make_rmem_tensor(thr.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    return Multiplier(
        overwrite, add, acc, add.make_fragment_A(thr.partition_A(sA)), add.make_fragment_B(thr.partition_B(sB))
    )


@cute.jit
def issue_wgmmas(multiplier: Multiplier, stage: cutlass.Int32, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one commit group; `first`: its first one overwrites the accumulators."""
    overwrite, add, acc, tCrA, tCrB = multiplier
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 32 bytes along K
        mma = overwrite if first and k == 0 else add
        cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def consume(pipe: pipeline.PipelineTmaAsync, multiplier: Multiplier, k_tiles: cutlass.Int32):
    """Multiply all k-tiles of the part, at least one, one commit group always in flight."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, pipe.num_stages)
    release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, pipe.num_stages)
    pipe.consumer_wait(read)
    issue_wgmmas(multiplier, read.index, True)
    read.advance()
    for _ in cutlass.range(k_tiles - 1, unroll=1):
        pipe.consumer_wait(read)
        issue_wgmmas(multiplier, read.index)
        read.advance()
        warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
        pipe.consumer_release(release)
        release.advance()
    warpgroup.wait_group(0)
    pipe.consumer_release(release)


# %% [markdown]
# ## The exchange
#
# `st.async` writes registers into the shared memory of another CTA of the cluster and reports the bytes to a barrier
# there, as TMA does. So no CTA requests accumulators: each CTA sends them as soon as it has them, and goes on when all
# that it expects has come. Two things must hold:
#
# * **No CTA writes to one that has not begun.** That one's shared memory might still be another kernel's, and its
#   barrier not initialised. All threads arrive at the cluster's own barrier at the beginning, once their reduction
#   buffer has its barrier. They wait for it only here, when it has long been complete. (The warp that loads waits for
#   it after its last load.)
# * **No CTA ends while others write to it.** A second barrier of the cluster at the end would do. It is not needed:
#   each CTA waits until all that it is to be sent has come, and nothing comes after. That a *sender* ends early does no
#   harm: what it sent has left its registers.


# %%
@cute.jit
def exchange(acc: cute.Tensor, sReduce: cute.Tensor, arrived: cute.Pointer, part: Part, config: cutlass.Constexpr):
    """Send each CTA of the cluster its share of the accumulators, and add up this CTA's: (VEC, VECTORS).

    sReduce: (THREAD, (VEC, VECTORS), SENDER). arrived: the barrier that counts the bytes which the others send.
    """
    tidx, _, _ = cute.arch.thread_idx()
    (vec, vectors), senders = sReduce.shape[1], config.split_k
    sends = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), cutlass.Float32, num_bits_per_copy=32 * vec)
    rParts = cute.make_tensor(acc.iterator, cute.make_layout((vec, vectors, senders)))
    cute.arch.cluster_wait()  # all CTAs of the cluster have begun
    for peer in cutlass.range_constexpr(senders):
        for i in cutlass.range_constexpr(vectors):
            place = cute.arch.map_dsmem_ptr(sReduce[tidx, (None, i), part.rank].iterator, peer)
            barrier = cute.arch.map_dsmem_ptr(arrived, peer)
            cute.copy(sends, rParts[None, i, peer], cute.make_tensor(place, cute.make_layout(vec)), mbar_ptr=barrier)
    cute.arch.mbarrier_wait(arrived, 0)
    rSum = cute.make_rmem_tensor((vec, vectors), cutlass.Float32)
    rSum.fill(0.0)
    rSent = cute.make_fragment_like(rSum)
    for sender in cutlass.range_constexpr(senders):
        cute.autovec_copy(sReduce[tidx, None, sender], cute.group_modes(rSent, 0, 2))
        rSum.store(rSum.load() + rSent.load())
    return rSum


# %% [markdown]
# ## The store
#
# A thread of `wgmma` has two neighbours along its N, in two rows of its M that are eight apart. The kernel sees C
# transposed, so adjacent elements of C run along M. There the accumulators of eight threads follow one another, 16
# bytes in a row. They are stored one by one, so that `out` may begin anywhere and have rows of any length. There are
# few: a tile's, divided among its CTAs.
#
# Each sum is rounded where it is stored. An earlier version rounded all of them first. That is the same work, but where
# K is whole the compiler then made the multiplying loop wait after every single `wgmma`, in silence. A cell below
# counts the waits of each variant.


# %%
@cute.jit
def coordinates(shape_mn: tuple, part: Part, op: cutlass.Constexpr, config: cutlass.Constexpr):
    """Return (row, column) in C of each of a thread's accumulators: (MMA, MMA_M, MMA_N)."""
    tidx, _, _ = cute.arch.thread_idx()
    cC = cute.local_tile(cute.make_identity_tensor(shape_mn), (config.tile_m, config.tile_n), (part.m, part.n))
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1)).get_slice(tidx).partition_C(cC)


@cute.jit
def store(rSum: cute.Tensor, tCcC: cute.Tensor, mC: cute.Tensor, part: Part, config: cutlass.Constexpr):
    """Round this CTA's share of a thread's accumulators and store what lies inside. mC (M, N): C transposed."""
    for i in cutlass.range(config.share, unroll_full=True):
        row, column = tCcC[part.rank * config.share + i]
        if cute.elem_less((row, column), mC.shape):
            mC[row, column] = rSum[i].to(mC.element_type)


# %% [markdown]
# ## The barriers
#
# A CTA's own reduction buffer expects the bytes of all senders from the beginning: no CTA can send before the cluster's
# barrier. (It is told what to expect after `sync_threads`: a barrier has to be made before a thread arrives at it.)


# %%
@cute.jit
def make_pipeline(
    barriers: cute.Pointer, arrived: cute.Pointer, warp_idx: cutlass.Int32, config: cutlass.Constexpr
) -> pipeline.PipelineTmaAsync:
    """Initialise the barriers of the stages, and `arrived`. After it this CTA may use them, others may not yet."""
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * config.warpgroups),  # a thread of each warp
        tx_count=config.stage_bytes,
        defer_sync=True,
    )
    if cutlass.const_expr(config.split_k > 1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(arrived, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    return pipe


@cute.jit
def expect_shares(arrived: cute.Pointer, warp_idx: cutlass.Int32, config: cutlass.Constexpr):
    """Tell `arrived` how many bytes the CTAs of the cluster send to this one."""
    if warp_idx == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, config.reduction_bytes)


# %% [markdown]
# ## The kernel
#
# Shared memory has the barriers, the stages, and behind them the reduction buffer.


# %%
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    pipe: pipeline.PipelineTmaAsync
    arrived: cute.Pointer  # barrier: the bytes that other CTAs send to this one
    sA: cute.Tensor  # (TILE_M, TILE_K, STAGE)
    sB: cute.Tensor  # (TILE_N, TILE_K, STAGE)
    sReduce: cute.Tensor | None  # (THREAD, (VEC, VECTORS), SENDER); None: one CTA has all of K


@cute.jit
def set_up(layouts: SmemLayouts, warp_idx: cutlass.Int32, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages and the reduction buffer, and set up their barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sReduce = None
    if cutlass.const_expr(config.split_k > 1):
        sReduce = smem.allocate_tensor(cutlass.Float32, reduction_buffer(config), 16)
    pipe = make_pipeline(barriers, arrived, warp_idx, config)
    if cutlass.const_expr(config.split_k > 1):
        expect_shares(arrived, warp_idx, config)
        cute.arch.cluster_arrive_relaxed()
    return Cta(pipe, arrived, sA, sB, sReduce)


# %% [markdown]
# The last warp loads, the warpgroups before it multiply, exchange and store.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its part of the accumulators of one tile, and stores its share of them.

    Who waits for whom, with the CONFIG of hopper/split_k_gemm:

    warps  do         wait for   signal
    0-3    wgmma      full[6]    empty[6]: 1 a warp
           st.async   full 2[1]  full 2[1]: 1 of warp 0, expects 16384 bytes
    4      TMA loads  empty[6]   full[6]: 1, expects 16384 bytes

    full[6]: 1 arrival and its bytes a phase.
    empty[6]: 4 arrivals a phase.
    full 2[1]: 1 arrival and its bytes a phase.
    """
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)
    if warp_idx == 4 * config.warpgroups:
        cpasync.prefetch_descriptor(a.atom)
        cpasync.prefetch_descriptor(b.atom)
    cta = set_up(layouts, warp_idx, mC.element_type, config)
    number, _, _ = cute.arch.block_idx()
    part = part_of(number, mC.shape, cute.ceil_div(a.coords.shape[1], config.tile_k), config)

    if warp_idx == 4 * config.warpgroups:
        gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (part.m, None))  # (TILE_M, TILE_K, k)
        gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (part.n, None))  # (TILE_N, TILE_K, k)
        produce(cta.pipe, (partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB)), part, config)
    else:
        tCcC = coordinates(mC.shape, part, op, config)
        multiplier = make_multiplier(cta.sA, cta.sB, group, op, config)
        consume(cta.pipe, multiplier, part.k_tiles)
        share = multiplier.acc
        if cutlass.const_expr(config.split_k > 1):
            share = exchange(multiplier.acc, cta.sReduce, cta.arrived, part, config)
        cute.arch.griddepcontrol_wait()  # the previous kernel has ended: it may read or write C
        store(share, tCcC, mC, part, config)


# %% [markdown]
# ## The launch
#
# Swap A/B: the tensor core's A is `b`, its B is `a`, and C is seen transposed, with adjacent elements along its first
# mode. `use_pdl` asks for the overlap with the kernel before.


# %%
def launch_options(m: cutlass.Int32, n: cutlass.Int32, config) -> dict:
    """For each tile of (m, n) a cluster of `split_k` CTAs; and the overlap with the kernel before."""
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    return {
        "grid": (tiles * config.split_k, 1, 1),
        "block": (config.threads, 1, 1),
        "cluster": (config.split_k, 1, 1),
        "min_blocks_per_mp": 1,
        "use_pdl": True,
    }


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
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    kernel(a, b, mC, layouts, wgmma(dtype, config.tile_n), config).launch(stream=stream, **launch_options(m, n, config))


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
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
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The reduction buffer, drawn
#
# What one warp writes at once into a reduction buffer: sixteen bytes a lane, 512 in a row. No bank is asked twice in a
# phase.

# %% tags=["lab"]
import cutlass

from cookbook import access, banks
from cookbook.layouts import evaluate

buffer = evaluate(reduction_buffer, CONFIG)
vec = buffer.modes[1].modes[0].size
places = buffer.table()  # (THREAD, ACCUMULATOR, SENDER), counted in float32
first_warp = access.ldst(4 * places[:32, 0, 0], 4 * vec)
counted = banks.wavefronts(first_warp.addresses, first_warp.width)
assert counted.excess == 0
size = f"{buffer.size * 4} bytes for {CONFIG.split_k} senders"
print(f"{buffer}: {size}; {counted.actual} wavefronts, ideal {counted.ideal}")
draw.access_view(first_warp)

# %% [markdown] tags=["lab"]
# ## Who adds what
#
# The model of a cluster of four, with integers, so that the sums are exact: each CTA's part of K alone is wrong, and
# what the owners put together is right. Boxes by TMA, descriptors, `wgmma`, and the reduction buffers are the kernel's
# own.

# %% tags=["lab"]
import numpy as np

from cookbook.lab import SplitKWgmma, evaluated
from cookbook.model import SharedMemory, from_float32

FOUR = VARIANTS["64x64 in 4"]
rng = np.random.default_rng(0)
K = 5 * FOUR.tile_k  # not a multiple of what four CTAs do
weight, x = (rng.integers(-3, 4, (rows, K)).astype(np.float32) for rows in (FOUR.tile_m, FOUR.tile_n))
found = evaluated(catalog.load("hopper/split_k_gemm"), cutlass.BFloat16, FOUR)
path = SplitKWgmma(found, found, dtype="bfloat16")
bits = [from_float32(matrix, "bfloat16") for matrix in (weight, x)]
accumulators = path.multiply(SharedMemory(path.smem_bytes), *bits, 0, 0)  # (threads, accumulators of a thread)
together = np.zeros((FOUR.tile_m, FOUR.tile_n), np.float32)
together[tuple(np.moveaxis(path.c_coords, -1, 0))] = accumulators
assert (together == weight @ x.T).all()
for rank in range(FOUR.split_k):
    part = part_of(rank, together.shape, K // FOUR.tile_k, FOUR)
    inside = slice(part.first * FOUR.tile_k, (part.first + part.k_tiles) * FOUR.tile_k)
    partial = weight[:, inside] @ x[:, inside].T
    owned = path.c_coords[:, rank * FOUR.share : (rank + 1) * FOUR.share, 1]
    mine = f"rows {owned.min()} to {owned.max()} of the product"
    print(f"CTA {rank}: K from {inside.start:3}, right alone in {(partial == together).mean():4.0%}; adds up {mine}")

# %% [markdown] tags=["lab"]
# The last CTA's part lies outside K. It multiplies the zeros that TMA gives it, sends zeros, and adds up its share like
# the others.
#
# ## Check
#
# The model computes the product as the kernel does, transposed, CTA by CTA of a cluster, and C is put together from
# what each of them stores. Level *pipeline* follows the warps of a whole cluster. No CTA may be sent anything before it
# has begun, no sum may be read before it has come, and none may come too late.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/split_k_gemm", shapes=[(13, 333, 640)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# The cell counts instructions of the machine code: the stores to the reduction buffers (`st.async` is `STAS`, of four
# accumulators), and those to memory, which are fewer where a CTA stores its share only. And it counts the places where
# a warp waits for its wgmmas (`WARPGROUP.DEPBAR`): in the loop and after it, nowhere else.

# %% tags=["lab"]
from cookbook.lab import compiled

try:
    for name, config in VARIANTS.items():
        made = compiled.compile_recipe("hopper/split_k_gemm", "sm_90a", "bfloat16", config=config)
        sent, stored, waits = (made.count(x) for x in ("STAS", "STG", "WARPGROUP.DEPBAR"))
        found = f"{made.registers} registers, {sent:2} STAS, {stored:2} STG, {waits} DEPBAR"
        print(f"{name:14}{config.stages:2} stages, {found}")
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/split_k_gemm", matmul, (16, 4096, 4096))

# %% [markdown] tags=["lab"]
# "Ours" is `matmul` without an argument: what the heuristic chose. Next to it are each variant, called by name, the
# kernel for all sizes, and the peers, all interleaved in one run on one GPU.
#
# Before the variants were chosen, many more were timed against cuBLAS, at more sizes than the table has. Dividing K was
# ahead where a few rows meet a weight: most where the weight is not large, or where K is long and tiles are very few.
# With the largest weights both take what memory gives, and little lies between them.
#
# The table also has the same tile with K whole and divided: `64x64` next to `64x64 in 2` and `in 4`, `128x128` next to
# `128x128 in 2`. Where tiles are few and K is 8192, dividing pays. At 16 rows and a weight of 4096 x 4096 a division in
# 2 does not pay on these tiles. There the narrower ones are ahead.
#
# It was behind where tiles are about as many as SMs, and K is not long. There each SM has something to do without
# dividing K, and loads what its neighbours load too: a kernel whose clusters share their loads
# ([multicast](multicast_gemm.ipynb)) is better, if it has a tile small enough. The kernel for all sizes does, and is
# ahead of this one at the largest cube of the table.
#
# Two expectations were wrong. A `tile_n` larger than the rows should have cost little: TMA does not read what lies
# outside. It cost so much that there are four widths now. And clusters of four were made for 16 rows of a small weight,
# too, to occupy twice as many SMs. They lost to clusters of two wherever rows were few, and are gone; `64x64 in 4` is
# for a long K.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("hopper/split_k_gemm"))

# %% [markdown] tags=["lab"]
# How good is the heuristic? For each record: the three variants with the lowest cost, relative to the best, predicted
# and measured; what `matmul` would have gained by knowing; and the spread of the chosen kernel.

# %% tags=["lab"]
from cookbook.lab import choices_table

Markdown(choices_table("hopper/split_k_gemm", SMS))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Where tiles are few, K is the dimension that is left to split. A cluster makes that short to write: accumulators go
# from registers into the reduction buffer of another CTA, and a barrier counts their bytes. Split-K gains SMs, each
# with loads of its own in flight. It saves no bytes: the same tiles load the same. So a product with too few tiles for
# the SMs gains; one with enough tiles gains by loading less.
#
# LLM decode calls such a kernel again and again, with weights that no kernel before it writes. The loads of the weight
# could begin before the kernel before has ended: [the Blackwell page](../blackwell/low_latency_gemm.ipynb) has that as
# a variant, with a promise that the caller must make.
#
# Next: a load that needs no promise. [The decode GEMM](decode_gemm.ipynb) prefetches the weight into L2.
