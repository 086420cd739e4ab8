# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: TMA multicast in a cluster
#     claim: >-
#       Each of two CTAs loads half of their common tile and TMA multicasts it to both: L2 gets a third fewer requests,
#       and a barrier counts both CTAs' consumers.
#     track: hopper
#     order: 50
#     builds_on: hopper/warp_specialized_gemm
#     pays: {at: [8192, 8192, 8192], over: alone}
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma -> stmatrix -> 16-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, USETMAXREG, SYNCS, WARPGROUP.DEPBAR]
#     baselines: [alone]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
#       - {title: "CUDA C++ Programming Guide, thread block clusters", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-block-clusters"}
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
# ---

# %% [markdown]
# # TMA multicast in a cluster
#
# **Claim.** Two CTAs that compute tiles of C one above the other need the same tile of B, k-tile for k-tile. As a
# *cluster* they share the load: each asks L2 for **half** of the tile, and TMA writes that half into the shared memory
# of **both**.

# %% [markdown] tags=["lab"]
# In the picture the numbers are CTA ranks. Each CTA has a colour: on its tile of C, and on the part of A and B that it
# loads for all CTAs that need it. In `2x1` each CTA needs the whole of B, loads half of it, and gets the other half
# from its neighbour.

# %% tags=["lab"]
import cookbook
from cookbook import draw, lab
from cookbook.layouts import evaluate

packaged = cookbook.load("hopper/multicast_gemm")
shapes = {name: (c.cluster_m, c.cluster_n) for name, c in packaged.VARIANTS.items() if c.cluster > 1}
draw.cluster_view(shapes, tile=(packaged.CONFIG.tile_m, packaged.CONFIG.tile_n))

# %% tags=["lab"]
lab.gain("hopper/multicast_gemm", (8192, 8192, 8192), over=["alone", "1x2", "2x2"])

# %% [markdown]
# L2 is asked for a third less, and every SM still takes in as many bytes as before. That saves time where L2 is the
# limit, and energy everywhere. On an H200, at these sizes, it gains no time.
#
# The new code is short: a mask in the loads, a divided box, and *one number*, how many arrivals empty a stage. That
# number is the difficult part: a CTA now writes into memory that another one reads. The page shows how to count it,
# what a wrong count does, and what a CTA owes its neighbours before it ends. The rest is [the page
# before](warp_specialized_gemm.ipynb).

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.hopper.tma_wgmma_gemm import Config as TmaWgmmaConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    Cta,
    SmemLayouts,
    TiledCopies,
    TmaTensor,
    allocate,
    multiply,
    smem_layouts,
    store,
    tiled_copies,
    tiled_mma,
    wgmma,
)

# %% [markdown]
# ## The sizes
#
# A cluster is a group of CTAs that the GPU starts together on SMs of one *GPC*. (A graphics processing cluster is one
# of the handful of groups that a chip's SMs are built in.) Its CTAs can write into each other's shared memory and
# arrive at each other's barriers. Ours is `cluster_m` tiles high and `cluster_n` wide:
#
# | variant | the CTAs of a cluster share | L2 is asked, for each CTA and k-tile, for |
# |---|---|---|
# | `alone` | nothing | A + B |
# | `2x1` | the tile of B | A + B/2 |
# | `1x2` | the tile of A | A/2 + B |
# | `2x2` | both: a row of CTAs its A, a column its B | A/2 + B/2 |
#
# A tile of B is twice as large as one of A here, so `2x1` saves more bytes than `1x2`. `2x2` saves most, and asks for
# four SMs of one GPC at once.


# %%
@dataclass(frozen=True)
class Config(TmaWgmmaConfig):
    """Sizes of the kernel, in elements or counts."""

    cluster_m: int = 1  # CTAs of a cluster down C: they share tiles of B
    cluster_n: int = 1  # and across: they share tiles of A

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def threads(self) -> int:
        return self.consumer_threads + 128  # and a producer warpgroup, of which one warp works


VARIANTS = {
    "alone": Config(),
    "2x1": Config(cluster_m=2),
    "1x2": Config(cluster_n=2),
    "2x2": Config(cluster_m=2, cluster_n=2),
}
DEFAULT = "2x1"
CONFIG = VARIANTS[DEFAULT]
REGISTERS = (24, 240)  # of a producer's thread and of a consumer's: 128 * 24 + 256 * 240 of an SM's 65536


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## Layouts, MMA and copies
#
# Nothing here knows of clusters. A tile lies in shared memory as it did before, whoever fetched its parts. TMA writes
# rows 0 to 127 of B's tile from one CTA and rows 128 to 255 from the other; `wgmma` reads one tile of 256 rows.
# That works because a half begins where the swizzle's pattern does, at a multiple of 1024 bytes. Eight rows are enough
# for that; we have 64 or more. So layouts, MMA and copies are imported.

# %% [markdown] tags=["lab"]
# A part begins where the pattern of the swizzle does: the first bytes of each half of each stage of B.

# %% tags=["lab"]
b = evaluate(smem_layouts, cutlass.BFloat16, CONFIG).b
halves = b.byte_offsets()[:: CONFIG.tile_n // CONFIG.cluster_m, 0]  # (halves, stages)
print("halves of the stages begin at bytes", halves.T.tolist())
assert not (halves % b.alignment).any()
draw.swizzle_view(b)

# %% [markdown]
# ## Who fetches what, and for whom
#
# A cluster numbers its CTAs, down first: number *i* has the **rank** (i mod `cluster_m`, i div `cluster_m`). CTAs of
# one *column* of the cluster compute tiles one above the other: they share B. CTAs of one *row* share A.
#
# The mask of a multicast has a bit for each CTA of the cluster, by number. TMA writes the box **at the same offset** of
# the shared memory of every CTA whose bit is set, and reports to the barrier at the same offset there. So each CTA's
# barrier counts the bytes of both halves, its own and its neighbour's, and `tx_count` stays a whole stage.


# %%
@cute.jit
def rank_in_cluster(config: cutlass.Constexpr):
    """(row, column) of this CTA in its cluster."""
    number = cutlass.Int32(0)
    if cutlass.const_expr(config.cluster > 1):
        number = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    return number % config.cluster_m, number // config.cluster_m


@cute.jit
def multicast_masks(rank: tuple, config: cutlass.Constexpr):
    """Return who is to get the part of A, and the part of B, that the CTA at `rank` fetches: a bit for each CTA."""
    whole_row = sum(1 << n * config.cluster_m for n in range(config.cluster_n))  # of the CTA at (0, 0)
    whole_column = (1 << config.cluster_m) - 1
    return cutlass.Int16(whole_row) << rank[0], cutlass.Int16(whole_column) << rank[1] * config.cluster_m


# %% [markdown]
# ## The producer
#
# The known producer, with a mask in its copies where CTAs share a tile. The change is inside `producer_acquire`: a
# stage is *empty* for this producer when the consumers of **every CTA it writes to** have read it.


# %%
class Load(NamedTuple):
    """An operand as the producer sees it."""

    atom: cute.CopyAtom
    gX: cute.Tensor  # (TMA, k), TMA coordinates in global memory
    sX: cute.Tensor  # (TMA, STAGE), shared memory
    multicast: dict  # {"mcast_mask": the CTAs that get it}; empty where no other CTA needs the tile


@cute.jit
def partition_load(
    atom: cute.CopyAtom,
    gX: cute.Tensor,
    sX: cute.Tensor,
    part: cutlass.Int32,
    sharers: cutlass.Constexpr,
    mask: cutlass.Int16,
) -> Load:
    """The part that this CTA loads of an operand's tiles, of as many equal parts as CTAs share them."""
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(atom, part, cute.make_layout(sharers), sX, gX)
    return Load(atom, tXgX, tXsX, {"mcast_mask": mask} if sharers > 1 else {})


@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, loads: tuple[Load, ...], config: cutlass.Constexpr):
    """Keep the stages full."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for load in loads:
            sX = load.sX[None, state.index]
            cute.copy(load.atom, load.gX[None, k_tile], sX, tma_bar_ptr=barrier, **load.multicast)
        state.advance()
    pipe.producer_tail(state)


# %% [markdown]
# **Before it ends.** `producer_tail` waits until the last k-tile has been read, by the consumers of *all* the CTAs that
# got a part of it from here. A kernel without clusters could do without this wait; here it is necessary. A consumer of
# the neighbour arrives at *our* barrier. If our CTA had ended, that barrier would lie in shared memory of another CTA,
# or of none.
#
# (A warp hands back its stages in order, so the last one is the end. The other direction is safe without a wait: no
# CTA can end before everything that others multicast to it has come, because its own consumers wait for that.)
#
# The beginning needs a wait, too: no CTA may multicast to a CTA whose barriers are not initialised. `create` gets the
# cluster's layout (`cta_layout_vmnk`), and therefore ends with a barrier of the whole *cluster*.
#
# And **a CTA outside C still works.** With 3 rows of tiles, a cluster two high has one row outside. Its CTA must not
# return at once, because its neighbour waits for the half of B that it loads. It does what the others do, on zeros that
# TMA gives it for rows outside A, and stores nothing.
#
# ## The pipeline
#
# How many arrivals make a stage empty? Each consumer warp arrives once, at every CTA that wrote into the stage it has
# read. The CTA at (i, j) got its A from row i of the cluster and its B from column j, so `cluster_m + cluster_n - 1`
# CTAs wrote to it, itself included. As many read what it writes. So the count is the consumer warps of that many CTAs.


# %%
@cute.jit
def make_pipeline(barriers: cute.Pointer, config: cutlass.Constexpr) -> pipeline.PipelineTmaAsync:
    """The barriers of the stages, full and empty, of this CTA, in step with those of its cluster."""
    sharers = config.cluster_m + config.cluster_n - 1  # CTAs with which this one has A or B in common, and itself
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, config.consumer_threads // 32 * sharers),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
    )


# %% [markdown]
# If the count is too large, the first stage is never empty: the kernel hangs. If it is too small, it is worse; a
# simulation below shows it.
#
# ## The consumers and the epilogue
#
# They are as they were. `consumer_release` arrives at the right CTAs by itself, because it was told the cluster's
# layout: of each warp, one thread for each of the sharers arrives at that CTA's barrier.
#
# ## The kernel
#
# **Rasterization.** Clusters are what is now numbered, in groups as CTAs were before: those that run together form a
# block of C, `swizzle_size` tiles high. The CTAs of a cluster find their tile by their place in it.


# %%
@cute.jit
def tile_of_cta(shape_mn: tuple, rank: tuple, config: cutlass.Constexpr):
    """Rasterization: the tile of the CTA at `rank` (row, column) of its cluster, column by column inside groups."""
    clusters_m = cute.ceil_div(shape_mn[0], config.tile_m * config.cluster_m)
    clusters_n = cute.ceil_div(shape_mn[1], config.tile_n * config.cluster_n)
    cta, _, _ = cute.arch.block_idx()
    cluster, wanted = cta // config.cluster, config.swizzle_size // config.cluster_m
    group, inside = cluster // (wanted * clusters_n), cluster % (wanted * clusters_n)
    first = group * wanted
    height = cutlass.min(clusters_m - first, wanted)  # the last group may be lower
    return (first + inside % height) * config.cluster_m + rank[0], inside // height * config.cluster_n + rank[1]


@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One CTA computes one tile of C, and fetches its share of what its cluster needs.

    Who waits for whom, with the CONFIG of hopper/multicast_gemm:

    warps  do         wait for  signal
    0-7    wgmma      full[4]   empty[4]: 1 a warp, in 2 CTAs
    8      TMA loads  empty[4]  full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    bar 1, 256 threads: warps 0-7 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = rank_in_cluster(config)
    tile = tile_of_cta(mC.shape, rank, config)
    # Every CTA allocates the same, so that what a multicast writes lies at the same offset in each.
    barriers, sA, sB, sC = allocate(layouts, mC.element_type, config)
    cta = Cta(make_pipeline(barriers, config), sA, sB, sC)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (tile[0], None))  # (TILE_M, TILE_K, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (tile[1], None))  # (TILE_N, TILE_K, k)
    if warp_idx >= config.consumer_threads // 32:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == config.consumer_threads // 32:
            # The CTAs of a row of the cluster divide A's tile among them, those of a column B's.
            masks = multicast_masks(rank, config)
            load_a = partition_load(a.atom, gA, sA, rank[1], config.cluster_n, masks[0])
            load_b = partition_load(b.atom, gB, sB, rank[0], config.cluster_m, masks[1])
            produce(cta.pipe, (load_a, load_b), config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        gC = cute.local_tile(mC, (config.tile_m, config.tile_n), tile)  # (TILE_M, TILE_N)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), tile)
        acc = multiply(cta, op, cute.size(gA, mode=[2]), config)
        store(acc, sC, gC, cC, mC.shape, copies, config)


# %% [markdown]
# **Why C may still lie where A and B were.** The epilogue writes over the stages. Could a neighbour's multicast land
# there meanwhile? No: this CTA's consumers have waited for every byte of the last k-tile, and no CTA fetches a k-tile
# beyond the last.
#
# ## The launch
#
# `make_tiled_tma_atom` is told among how many CTAs a tile is divided: its box is that much smaller. The grid is whole
# clusters, some of which may hang over the edge of C. `min_blocks_per_mp=1` says that one CTA has an SM to itself, so
# that the compiler need not save registers for a second.


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
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config, vec)
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in (layouts.a, layouts.b))
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    clusters_m = cute.ceil_div(m, config.tile_m * config.cluster_m)
    clusters_n = cute.ceil_div(n, config.tile_n * config.cluster_n)
    kernel(a, b, mC, layouts, copies, wgmma(dtype, config.tile_n), config).launch(
        grid=(clusters_m * clusters_n * config.cluster, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=1,
    )


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int) -> TmaTensor:
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers))


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (VARIANTS[call.variant], call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=VARIANTS)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: the shape of the clusters. All of them add along K in the same order.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# What L2 is asked for is a formula: tiles x k-tiles x (A's bytes / `cluster_n` + B's bytes / `cluster_m`). What each SM
# takes in stays the same: a multicast arrives everywhere in full. If the tensor cores of every SM were never kept
# waiting (2048 multiply-adds in a clock), L2 would have to give this many bytes a clock:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table

SMS, TENSOR_RATE = 132, 2048  # of an H200; multiply-adds of an SM in a clock (NVIDIA H100 white paper)


def asked_of_l2(config: Config, shape: tuple[int, int, int]) -> int:
    """Bytes that all CTAs ask L2 for; at the edges TMA asks for less."""
    m, n, k = shape
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    ctas = -(-m // rows) * -(-n // columns) * config.cluster
    part = config.tile_m // config.cluster_n + config.tile_n // config.cluster_m
    return ctas * -(-k // config.tile_k) * part * config.tile_k * 2


def bytes_a_clock(config: Config) -> float:
    """Bytes a clock that an SM asks L2 for while its tensor cores are never idle."""
    part = config.tile_m // config.cluster_n + config.tile_n // config.cluster_m
    return part * config.tile_k * 2 / (config.tile_m * config.tile_n * config.tile_k / TENSOR_RATE)


SHAPE = (8192, 8192, 8192)
alone = asked_of_l2(VARIANTS["alone"], SHAPE)
rows = [
    [
        name,
        f"{asked_of_l2(c, SHAPE) / 1e9:.2f} GB",
        f"{asked_of_l2(c, SHAPE) / alone:.2f}",
        f"{bytes_a_clock(c):.0f}",
        f"{SMS * bytes_a_clock(c):.0f}",
    ]
    for name, c in VARIANTS.items()
]
heads = ["variant", "asked of L2", "of alone", "bytes a clock: an SM", "all SMs"]
Markdown(f"{'x'.join(map(str, SHAPE))}:\n\n" + table(heads, rows))

# %% [markdown] tags=["lab"]
# [Another page](../foundations/memory_ceiling.ipynb) measures what L2 gives at most: it reads a buffer that L2 holds.
# But requests that come in bursts wait for each other before that limit. Loads that come sooner, from shorter queues,
# let the same four stages hide a longer wait. And a GPU at its power limit turns saved bytes into a higher clock. How
# much that is, only a measurement says.
#
# What the arithmetic says is the *order* of the variants: if bytes were all that counted, `2x2` would be best.
#
# ## How many clusters fit
#
# A CTA of this kernel fills an SM, so a cluster of four needs four SMs that are free in one GPC. Hopper's GPCs have at
# most 18 SMs, 9 pairs (NVIDIA H100 white paper). Not all pairs of a chip are used: the 132 SMs of an H200 are 66
# pairs in 8 GPCs. Which GPC has how many differs from chip to chip. Clusters of two fit anywhere. Clusters of four
# leave a pair idle in each GPC that has an odd number of them:

# %% tags=["lab"]
PAIRS, GPCS, LARGEST = 66, 8, 9


def odd_gpcs() -> list[int]:
    """Return how many of the GPCs can have an odd number of pairs, if none has more than the largest."""
    even_sums = {(0, 0)}  # (sum of pairs, GPCs with an odd number) of the GPCs so far
    for _ in range(GPCS):
        even_sums = {(total + p, odd + p % 2) for total, odd in even_sums for p in range(6, LARGEST + 1)}
    return sorted(odd for total, odd in even_sums if total == PAIRS)


for odd in odd_gpcs():
    fours = (PAIRS - odd) // 2
    print(f"{odd} GPCs with an odd number of pairs: {fours} clusters of 4 fit, on {4 * fours} of {2 * PAIRS} SMs")

# %% [markdown] tags=["lab"]
# On a machine with a GPU, the driver knows:

# %% tags=["lab"]
from cutlass.utils import HardwareInfo

if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0):
    hardware = HardwareInfo()
    for name, c in VARIANTS.items():
        fit = hardware.get_max_active_clusters(c.cluster)
        print(f"{name}: {fit} clusters of {c.cluster} at once, {fit * c.cluster} CTAs")
else:
    print("No Hopper GPU here to ask.")

# %% [markdown] tags=["lab"]
# There is a second price. The CTAs of a cluster are coupled: none can be more than `stages` k-tiles ahead of any that
# it shares with, and each of them waits for the slowest.
#
# ## Too few arrivals: a simulation
#
# `consumer_group` wants the number of arrivals. Suppose that it were given the warps of *one* CTA, as in the recipe
# before. The arrivals of both CTAs still come, so half of them are enough, whoever they are from, and the other half
# completes another phase.
#
# To see what that does, here is a part of it in a few lines: CTA 0's producer takes a stage for empty as soon as its
# *own* consumers have read it. CTA 1 is slow in one k-tile, by some units of time. (Times are chosen, not measured.)

# %% tags=["lab"]
LOAD, STAGES, K_TILES, SLOW = 3, 4, 12, 3  # units of time that a load takes; k-tile in which CTA 1 is slow


def run(late: int, waits_for: tuple[int, ...]) -> tuple[dict, dict]:
    """Return when each CTA asks for its half of a k-tile, and when its consumers read the tile: {(cta, k): time}.

    waits_for: the CTAs whose consumers must have read a stage before CTA 0 takes it for empty.
    """
    asked, read = {}, {}
    for k in range(K_TILES):
        for cta in (0, 1):
            ctas = waits_for if cta == 0 else (0, 1)
            free = max((read[w, k - STAGES][1] for w in ctas), default=0) if k >= STAGES else 0
            asked[cta, k] = max(free, asked.get((cta, k - 1), -1) + 1)
        for cta in (0, 1):
            come = max(asked[0, k], asked[1, k]) + LOAD  # both halves
            start = max(come, read.get((cta, k - 1), (0, 0))[1])
            read[cta, k] = (start, start + 2 + (late if cta == 1 and k == SLOW else 0))
    return asked, read


def overwritten(late: int, waits_for: tuple[int, ...]) -> list[int]:
    """k-tiles of CTA 1 into whose stage CTA 0 sends its half of a later one before they are read."""
    asked, read = run(late, waits_for)
    return [k for k in range(K_TILES - STAGES) if asked[0, k + STAGES] + LOAD < read[1, k][1]]


for late in (0, 1, 3, 4, 8):
    right, wrong = (overwritten(late, ctas) for ctas in ((0, 1), (0,)))
    print(f"CTA 1 late by {late}: overwritten in use: {wrong or 'none'}; {right or 'none'} if both are waited for")

# %% [markdown] tags=["lab"]
# As long as the CTAs are nearly in step, the wrong kernel gives right results: the time that a load takes hides the
# error. The picture has a CTA that is too late: what its stage 3 holds, and when its consumers read it.

# %% tags=["lab"]
asked, read = run(8, (0,))
stage = [k for k in range(K_TILES) if k % STAGES == SLOW]  # the k-tiles that go through stage 3
lanes = {}
for cta in (0, 1):
    landed = [asked[cta, k] + LOAD for k in stage]  # from then on the stage holds this CTA's half of k
    spans = zip(landed, [*landed[1:], read[1, stage[-1]][1]], stage, strict=True)
    lanes[f"half from CTA {cta}"] = [draw.Span(start, end, f"k-tile {k}", f"k-tile {k}") for start, end, k in spans]
lanes["read by CTA 1"] = [draw.Span(*read[1, k], f"k-tile {k}", f"k-tile {k}") for k in stage]
draw.lanes(
    lanes,
    f"Stage {SLOW} of CTA 1, taken for empty too early (chosen times)",
    unit="units",
    note="Where what is read has another colour than a half above it, a wrong tile is multiplied.",
)

# %% [markdown] tags=["lab"]
# The count of bytes is wrong, too: the barrier counts the early half into its *present* phase, and from then on full
# means something else. So the kernel returns wrong numbers now and then, or hangs, and more stages or a debugger make
# the error disappear. Tests with one cluster would pass. Hence the rule: **count the readers of what you write, not
# your own.**
#
# ## Check
#
# *Pipeline* is the level of this page: it tries the barriers of a whole cluster in every order.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/multicast_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# The multicasts are in the machine code of the clusters, and only there:

# %% tags=["lab"]
from cookbook.lab import compiled

try:
    for name, config in VARIANTS.items():
        made = compiled.compile_recipe("hopper/multicast_gemm", "sm_90a", "bfloat16", config=config)
        loads = {op: made.count(op) for op in ("UTMALDG.2D", "UTMALDG.2D.MULTICAST")}
        print(f"{name:8}TMA loads: {loads['UTMALDG.2D']}, of these multicast: {loads['UTMALDG.2D.MULTICAST']}")
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/multicast_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# All variants and their peers, interleaved in one run on one GPU; "ours" is `2x1`, called without an argument.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("hopper/multicast_gemm"))

# %% [markdown] tags=["lab"]
# The bytes that we predicted, and the times that were measured. ("Ours" and `2x1` above are *the
# same kernel*, timed twice in the same rounds: differences no larger than theirs, above each table, say nothing about
# variants.)

# %% tags=["lab"]
from cookbook.lab import records


def bytes_and_times() -> str:
    """For every current record: the share of the bytes, and of the time, that each variant takes of `alone`."""
    parts = []
    for r in records.of_one_gpu("hopper/multicast_gemm", "timed"):
        base, shape = r["peers"]["alone"]["median_ms"], tuple(r["shape"])
        rows = [
            [name, f"{asked_of_l2(c, shape) / asked_of_l2(VARIANTS['alone'], shape):.2f}", f"{took / base:.3f}"]
            for name, c in VARIANTS.items()
            for took in [r["peers"][name]["median_ms"]]
        ]
        twice = abs(r["figures"]["median_ms"] / r["peers"][DEFAULT]["median_ms"] - 1)
        where = f"{r['device']}, {r['dtype']}, {'x'.join(map(str, shape))}"
        parts.append(f"{where}, of `alone`; one kernel twice: {twice:.1%} apart:\n\n")
        parts[-1] += table(["variant", "bytes asked of L2 (predicted)", "time (measured)"], rows)
    return "\n\n".join(parts) or "*Not measured yet.*"


Markdown(bytes_and_times())

# %% [markdown] tags=["lab"]
# The times do not follow the bytes. `2x2`, which asks L2 for least, takes longest on an H200. Two prices of it are
# known, and were not measured apart: four CTAs must find room together, and they wait for each other. The pairs are no
# faster than `alone`, and `2x1` is rather the slower. If L2 keeps up with what `alone` asks of it, fewer bytes shorten
# no wait. That would explain the pairs; no counter here says so.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "masks_by_place": (
        "multicast_masks",
        """\
    whole_row = sum(1 << n * config.cluster_m for n in range(config.cluster_n))  # of the CTA at (0, 0)
    whole_column = (1 << config.cluster_m) - 1
    return cutlass.Int16(whole_row) << rank[0], cutlass.Int16(whole_column) << rank[1] * config.cluster_m""",
        "    raise NotImplementedError",
        (
            "CTA (m, n) of the cluster is number m + n * `cluster_m`. It fetches a part of A for all CTAs of its "
            "m, and a part of B for all of its n. Return both masks, of type `cutlass.Int16`, a bit for each CTA "
            "by its number."
        ),
        (
            ("The CTAs of one m are m, m + cluster_m, m + 2 cluster_m, ...: the mask of m = 0, moved by m places."),
            "The CTAs of one n are cluster_m bits next to each other, from bit n * cluster_m on.",
        ),
        (
            "A column is `cluster_m` ones. All ones over a column's is a one for each column: a row. The two "
            "shifts run in the kernel, because the rank is known there alone."
        ),
        """\
    column = (1 << config.cluster_m) - 1
    row = ((1 << config.cluster_m * config.cluster_n) - 1) // column
    return cutlass.Int16(row) << rank[0], cutlass.Int16(column) << rank[1] * config.cluster_m""",
    ),
    "pipeline_at_risk": (
        "make_pipeline",
        "config.consumer_threads // 32 * sharers",
        "config.consumer_threads // 32",
        (
            '"The consumer warps of a CTA are as many as before, so the empty barrier expects as many arrivals as '
            'before."'
        ),
        (
            "Who fills a stage of this CTA? Into whose shared memory does this CTA's part go?",
            "Before a CTA sends its part, every CTA that gets it must have read the stage.",
        ),
        (
            "A CTA sends its part to the others of its row or column too. So it may send only when *their* "
            "consumers have given the stage back as well: each warp arrives at the barriers of all sharers."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("hopper/multicast_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A cluster is a second level of sharing, below L2: what one CTA has loaded, others need not. It costs a mask, a box
# divided by the sharers, a barrier that counts all readers, and a wait for the neighbours at the end.
#
# Share between two: four have to find room in a GPC together, and all of them wait for the slowest. By bytes the side
# to share along is the one whose tiles are the larger.
#
# It gained no time here, on this GPU and at these sizes: measure before you take it over. The pages that follow, except
# split-K, keep a pair for its bytes. Without it their kernels become simpler by all that this page has added.
#
# What is still lost lies between the tiles: a CTA starts, fills its stages, multiplies, stores, and ends, and while it
# stores the tensor cores wait.
#
# Next: [persistent CTAs](persistent_gemm.ipynb), which go from tile to tile.
