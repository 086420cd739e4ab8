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
#       Nothing may be read before the previous kernel has ended, but a prefetch into L2 may come, with no promise by
#       the caller: the weight is on its way from one kernel's last load to the next one's first.
#     track: hopper
#     order: 76
#     aside: Few rows, or few tiles
#     builds_on: hopper/split_k_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     compared_with: hopper/split_k_gemm
#     serves: {sm_90: 2048}
#     dtypes: [bfloat16, float16]
#     majors: [tn, nt, nn, tt]
#     path: tma prefetch into L2 -> tma -> swizzled shared memory -> wgmma -> registers -> DSMEM -> 2-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, ACQBULK, PREEXIT, STG.E.U16, SYNCS]
#     baselines: ["64x16, no prefetch"]
#     bench_shapes: [[1, 8192, 8192], [16, 8192, 8192], [16, 14336, 4096], [16, 4096, 14336], [16, 1536, 7168],
#       [16, 2560, 8192], [16, 6144, 4096], [32, 8192, 8192], [64, 8192, 8192], [64, 6144, 4096], [64, 1536, 7168],
#       [96, 8192, 8192], [128, 8192, 8192], [128, 14336, 4096], [128, 1536, 7168], [192, 4096, 14336],
#       [256, 8192, 8192], [256, 4096, 14336]]
#     sources:
#       - {title: "PTX ISA, cp.async.bulk.prefetch.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor"}
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
#       - {title: "PTX ISA, cache eviction priority hints", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#cache-eviction-priority-hints"}
# ---

# %% [markdown]
# # Decode GEMM: prefetch into L2
#
# **Claim.** In LLM decode few rows meet a large weight, and the bytes of the weight take nearly all of the time. Before
# the previous kernel has ended nothing may be *read*. But a kernel may ask L2 to fetch its weight. So the weight is on
# its way from one kernel's last load to the next one's first.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/decode_gemm", (16, 8192, 8192), over=["64x16, no prefetch", "hopper/split_k_gemm"])

# %% [markdown]
# With *programmatic dependent launch* (PDL) each CTA says when the next kernel may begin
# (`griddepcontrol.launch_dependents`), here after it has issued its last load. When all CTAs have said so, a CTA of the
# next kernel begins as soon as an SM has room for it. It waits at `griddepcontrol.wait` until all CTAs of the previous
# kernel have ended and their writes can be seen.
#
# Without a prefetch memory is idle from the last load of the slowest CTA until the next kernel's first loads have come.
# With it L2 fetches the weight in that gap, and the reading after the wait is shorter:

# %% tags=["lab"]
READ, END, GAP, HEAD = 8.0, 2.0, 1.0, 3.0  # a kernel reads; adds and stores; a CTA begins; what L2 prefetches
after = READ + END
lanes = {
    "previous kernel": [draw.Span(0, READ, "reads", "loads"), draw.Span(READ, after, "", "adds, stores")],
    "no prefetch": [
        draw.Span(after, after + GAP, "", "first loads"),
        draw.Span(after + GAP, after + GAP + READ, "reads", "loads"),
    ],
    "prefetch: L2": [draw.Span(READ, READ + HEAD, "fetches", "prefetch into L2")],
    "prefetch: SM": [draw.Span(after, after + GAP + READ - HEAD, "reads", "loads")],
}
draw.lanes(lanes, "One product after another (a sketch)", unit="µs", note="Times are chosen, not measured.")

# %% [markdown]
# **Why no promise is needed.** The previous kernel might still write the weight. A prefetch reads nothing: it moves a
# line into L2. The writes of all SMs go to L2 too, so a later load of the line gets what was written last.
#
# [A Blackwell page](../blackwell/low_latency_gemm.ipynb) loads the weight itself before the wait, into shared memory:
# for that the caller must promise that no kernel writes it. An experiment on an H200, which is not recorded, had both,
# in a chain of products that write each other's weights. With the prefetch all runs gave the same right bits; with
# early loads they gave NaN.
#
# The rest of the kernel is imported from [split-K](split_k_gemm.ipynb). Of that page you need two ideas:
#
# * *Swap A/B*: `wgmma` always takes 64 rows of its A. Few rows of the product would leave most of them empty. So the
#   weight is A, and the rows of the product are columns, in steps of 8.
# * *Split-K*: the CTAs of a [cluster](../../docs/glossary.md#cluster) compute one tile together. Each multiplies a part
#   of K. Then they exchange accumulators through each other's shared memory (DSMEM): each CTA gets one *share* of the
#   accumulators from all others, adds it up and stores it.
#
# Four things differ from that page:
#
# * **K stays whole** where tiles are nearly as many as SMs. A CTA then has all of an SM's shared memory for stages.
# * **K may be split in three or more** where tiles are few, whatever the number of accumulators.
# * **k-tiles of 128 or 256 elements** for few rows: fewer barriers for the same bytes.
# * **The stages become the reduction buffer** once they have been multiplied. A CTA's own share of the accumulators
#   stays in its registers.
#
# `matmul(a, b)` takes `a` (M, K) and `b` (K, N), of either [major](majors_gemm.ipynb). Both are K-major in
# `x @ weight.T`. In `x @ w` with a contiguous `w` the weight is N-major. Any M is right; the tiles are made for M up to
# 256.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host, either_major, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.hopper.first_gemm import SmemLayouts, TiledCopies, tiled_copies
from cookbook.recipes.hopper.split_k_gemm import (
    SM_SMEM,
    Cta,
    Part,
    added_up,
    consume,
    coordinates,
    launch_options,
    make_multiplier,
    make_pipeline,
    part_of,
    reduction_buffer,
)
from cookbook.recipes.hopper.split_k_gemm import Config as SplitKConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import Load, TmaTensor, make_load, partition_load, smem_atom

# %% [markdown]
# ## The sizes
#
# **From here on A is the weight and B is what is multiplied by it**: `tile_m` counts columns of the product, `tile_n`
# its rows.
#
# `ahead` is the number of k-tiles that a CTA prefetches before `griddepcontrol.wait`. After the wait it prefetches
# nothing. A kernel that went on prefetching in the loop was slower, in an experiment that is not recorded. A likely
# reason: it asked for every line twice, while memory was busy anyway.
#
# A variant is named by its tile, and by the CTAs that divide K: `64x16 in 4`. `tile_n` is the largest number of rows
# that it is made for: any multiple of 8 up to 256, all of which are in `FAMILY`. `choose` takes the narrowest variant
# that holds all rows: the zeros that TMA fills in outside of A and B are slow (`outside`, fitted below).
#
# `accumulators` counts those of a thread. Each CTA of a cluster gets a `share` of them, in vectors of `vec`. Say a
# thread has 32, and four CTAs divide K: CTA 0 adds up and stores the first 8 of each thread, CTA 1 the next 8, and so
# on.


# %%
@dataclass(frozen=True)
class Config(SplitKConfig):
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 64  # rows of the weight per cluster, 64 for each warpgroup
    tile_n: int = 16  # rows of the product, and of what the weight is multiplied by, per cluster
    split_k: int = 1  # CTAs of a cluster, that divide K among them
    ahead: int = 0  # k-tiles of the weight that are prefetched into L2 before `griddepcontrol.wait`
    a_major: str = "k"  # of `matmul`'s a, the kernel's B: "k" or "m", the index along which it is contiguous
    b_major: str = "k"  # of `matmul`'s b, the weight: "k" or "n"

    def __post_init__(self):
        if self.split_k > self.accumulators:
            raise ValueError(
                f"split_k: got {self.split_k}; needed at most {self.accumulators}, the accumulators of a thread"
            )
        require(self.tile_m in (64, 128), "tile_m", self.tile_m, "64 or 128: a warpgroup for each 64 rows")
        widths = range(8, 257, 8)
        require(self.tile_n in widths, "tile_n", self.tile_n, "a multiple of 8 up to 256")
        require(1 <= self.split_k <= 8, "split_k", self.split_k, "1 to 8: the CTAs of a cluster")
        require(self.stages > 1, "stages", f"room for {self.stages}", "room for 2 or more")
        for name, mn in (("a_major", "m"), ("b_major", "n")):
            if getattr(self, name) not in ("k", mn):
                raise ValueError(f"{name}: got {getattr(self, name)!r}; needed 'k' or {mn!r}")

    @property
    def share(self) -> int:
        # accumulators of a thread for each CTA of the cluster, in whole vectors; the last CTA may get fewer
        return -(-self.accumulators // (self.split_k * self.vec)) * self.vec

    @property
    def vec(self) -> int:
        # accumulators that one st.async sends
        return next(vec for vec in (4, 2, 1) if vec * self.split_k <= self.accumulators)

    @property
    def reduction_bytes(self) -> int:
        # a place for the share that each CTA sends, of 2 * tile_m threads (128 for 64 rows), in float32
        return 2 * self.tile_m * self.share * self.split_k * 4 if self.split_k > 1 else 0

    @property
    def small_bytes(self) -> int:
        return 1024  # the barriers, padded to the tiles' alignment

    @property
    def stages(self) -> int:
        room = SM_SMEM // self.per_sm - 1024  # of each CTA the hardware keeps 1 KiB for itself
        return (room - self.small_bytes) // self.stage_bytes  # of A and B in flight: all that fit

    @property
    def smem_bytes(self) -> int:
        return self.small_bytes + self.stages * self.stage_bytes


# %%
VARIANTS = {
    "64x16": Config(tile_k=128, ahead=8),
    "64x16, no prefetch": Config(tile_k=128),
    "64x16 in 2": Config(tile_k=256, split_k=2, ahead=4),
    "64x16 in 4": Config(split_k=4, per_sm=2, ahead=12),
    "64x32": Config(tile_n=32, tile_k=128, ahead=8),
    "64x32 in 4": Config(tile_n=32, split_k=4, per_sm=2, ahead=12),
    "64x64": Config(tile_n=64, tile_k=128, ahead=6),
    "64x64 in 2": Config(tile_n=64, tile_k=128, split_k=2, ahead=4),
    "64x64 in 4": Config(tile_n=64, split_k=4, per_sm=2, ahead=8),
    "64x96": Config(tile_n=96, ahead=8),
    "64x96 in 2": Config(tile_n=96, split_k=2, ahead=8),
    "64x128": Config(tile_n=128, ahead=8),
    "64x128 in 2": Config(tile_n=128, split_k=2, ahead=8),
    "64x128 in 3": Config(tile_n=128, split_k=3, ahead=8),
    "64x128 in 4": Config(tile_n=128, split_k=4, ahead=8),
    "64x192": Config(tile_n=192, ahead=8),
    "64x192 in 2": Config(tile_n=192, split_k=2, ahead=6),
    "64x192 in 4": Config(tile_n=192, split_k=4, ahead=6),
    "64x256": Config(tile_n=256, ahead=6),
    "64x256 in 2": Config(tile_n=256, split_k=2, ahead=6),
    "64x256 in 4": Config(tile_n=256, split_k=4, ahead=6),
}
FAMILY = {  # fields of `sized`; every combination that Config accepts is a kernel
    "tile_m": (64, 128),
    "tile_n": tuple(range(8, 257, 8)),
    "split_k": tuple(range(1, 9)),
}


def sized(tile_m: int, tile_n: int, split_k: int) -> Config:
    """The member of FAMILY with these fields: k-tiles of 128 for few rows, and room for two CTAs where K is divided."""
    narrow = tile_m == 64 and tile_n <= 64
    per_sm, tile_k = (2 if narrow and split_k > 2 else 1), (128 if narrow and split_k <= 2 else 64)
    sizes = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k, "split_k": split_k, "per_sm": per_sm}
    return Config(**sizes, ahead=768 // tile_k if narrow else 8)


DEFAULT = "auto"  # the one that `choose` names
TRANSPOSED = True
CONFIG = VARIANTS["64x16 in 2"]


def config_for(arch: str, variant: str = "64x16 in 2") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The heuristic
#
# It is the rule of [split-K](split_k_gemm.ipynb), which that page explains. Five terms overlap: multiplying, loads into
# an SM, waits for stages, L2 and memory. The fourth root of the sum of their fourth powers is a little more than the
# longest. Before them a CTA starts; after them it sends its accumulators and stores.
#
# Five things are new:
#
# * **early**: a CTA that prefetches starts in less time.
# * **uneven**: products took longer than all others where their CTAs take more than half, but not nearly all, of the
#   places that a GPU has for them. The limits 0.55 and 0.9 are where that began and ended in the times; they follow
#   from no model. A guess: some of the next kernel's CTAs find an idle SM and begin early, and the others late.
#   Clusters of three or more do not have this term: the next one describes them.
# * **Clusters of three or more** fit on fewer SMs than there are: a cluster lies within one GPC, a group of SMs. In the
#   times a cluster that found none waited for a whole round, even where an SM had room for two of its CTAs (`per_sm`).
#   So their rounds are counted by CTAs of an SM, whatever `per_sm` is.
# * **again**: a further round of CTAs starts faster than the first.
# * **power**: a long product takes the GPU to its power limit, and its clock falls. Idle SMs leave clock to the others,
#   and every element that is loaded costs clock.
#
# The figures are fitted to times on an H200, which are not recorded: these variants at a hundred products of 1 to 256
# rows. Two came later: `outside`, and `load_cost` of the power limit. They are fitted to the records of [the operator's
# choice](../../docs/pytorch.md#the-choice), which compares this kernel with other recipes'. The rule compares the
# variants of one width alone, the narrowest that holds the rows.
#
# **`load` is no rate of the hardware.** The page of split-K sets it to 64 bytes a clock, the most that an SM can take
# from L2. Here `load` is fitted like the other figures, and comes out as about twice that. The fit allows it because
# `load` is hardly ever the longest term: where all SMs load, L2 gives each of them less than 64 bytes a clock. So the
# figure says how little loading into one SM delays the longer terms, and nothing about its port.


# %%
GHZ = 1.98  # of the SMs: the highest clock of an H200, not fitted
L2_HOLDS = 50e6  # bytes that are still in L2 when they are read again: the size of an H200's, not fitted


class Figures(NamedTuple):
    """The heuristic's figures of a GPU: nanoseconds, and bytes a nanosecond. Fitted to times on an H200."""

    start: float = 2_529  # CTAs begin, and their first loads come
    early: float = 1_467  # the same where a prefetch came before
    uneven: float = 2_301  # more, where a part of the next kernel's CTAs finds an idle SM and begins early
    again: float = 1_190  # a further round of CTAs on the same SMs
    latency: float = 739  # from asking for a stage to asking for the same stage again, while all others ask too
    load: float = 248  # into one SM: see above
    l2: float = 13_520  # of A and B, from L2 into all SMs
    outside: float = 3_500  # of zeros, where a box lies outside of A or B
    memory: float = 4_694
    send: float = 23.4  # out of the registers of a CTA: accumulators and C
    short: float = 18_500  # clocks of multiplying on each SM, below which a product is over before power matters
    load_cost: float = 28  # multiply-adds that loading one operand element into an SM costs at the power limit


H200 = Figures()


# %%
def clusters_at_once(config: Config, sms: int) -> int:
    """Clusters that find an SM for each of their CTAs: of three or more a ninth of the SMs is left over."""
    return (sms if config.split_k <= 2 else sms * 8 // 9) // config.split_k


def multiplying(config: Config, ctas: int, of_all: float, k_tiles: int, gpu: Figures) -> float:
    """Clocks of the tensor cores of the busiest SM, which has `ctas` CTAs; all SMs have `of_all` in the mean."""
    wgmma = max(config.tile_n / 2, 16 + config.tile_n / 4)
    each = k_tiles * config.warpgroups * config.tile_k / 16 * wgmma  # of a CTA
    if of_all * each <= gpu.short:
        return ctas * each
    return (ctas * of_all) ** 0.5 * each * (1 + gpu.load_cost * (1 / config.tile_m + 1 / config.tile_n))


def beginning(config: Config, tiles: int, rounds: int, sms: int, gpu: Figures) -> float:
    """Nanoseconds in which nothing is loaded, before the first k-tiles and between rounds."""
    part = tiles * config.split_k / (sms * config.per_sm)  # of the places that a GPU has for such CTAs
    uneven = gpu.uneven if config.split_k <= 2 and 0.55 < part < 0.9 else 0.0
    return (gpu.early if config.ahead else gpu.start) + uneven + (rounds - 1) * gpu.again


def nanoseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> dict[str, float]:
    """Return what a product of m x n over k takes on `sms` SMs, by the rules above."""
    c = config
    down, across = -(-n // c.tile_m), -(-m // c.tile_n)  # tiles
    k_tiles = -(-k // (c.tile_k * c.split_k))  # of each CTA
    ctas = -(-down * across // clusters_at_once(c, sms))  # of the busiest SM
    rounds = ctas if c.split_k > 2 else -(-ctas // c.per_sm)
    loaded = k_tiles * c.stage_bytes  # by each CTA
    inside = 2 * k * (across * n + down * m)  # of all that is loaded
    outside = max(down * across * c.split_k * loaded - inside, 0)
    weight = 2 * n * k * (min(across, rounds) if 2 * n * k > L2_HOLDS else 1)
    sent = (4 * c.tile_m * c.tile_n if c.split_k > 1 else 0) + 2 * c.tile_m * c.tile_n / c.split_k  # by each CTA
    return {
        "multiply": multiplying(c, ctas, down * across * c.split_k / sms, k_tiles, gpu) / GHZ,
        "load": ctas * loaded / gpu.load,
        "wait": rounds * k_tiles / c.stages * gpu.latency,
        "L2": inside / gpu.l2 + outside / gpu.outside,
        "memory": (weight + 2 * m * (k + n)) / gpu.memory,
        "start": beginning(c, down * across, rounds, sms, gpu),
        "send": rounds * sent / gpu.send,
    }


def microseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> float:
    """Return the predicted time: the terms that overlap, the start and the end."""
    return added_up(nanoseconds(config, m, n, k, sms, gpu)) / 1000


cost = microseconds  # one name for what is compared, of all recipes that choose


def choose(m: int, n: int, k: int, sms: int) -> str:
    """Choose the fastest of the variants with the narrowest tile that holds the rows."""
    width = min(c.tile_n for c in VARIANTS.values() if c.tile_n >= min(m, 256))
    fitting = [name for name, c in VARIANTS.items() if c.tile_n == width]
    return min(fitting, key=lambda name: microseconds(VARIANTS[name], m, n, k, sms))


# %% [markdown] tags=["lab"]
# What the rule chooses on an H200, the time that it predicts, the longest of the five terms, and `load`:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import catalog, results_table, table

lines = []
for shape in catalog.find("hopper/decode_gemm").bench_shapes:
    best = VARIANTS[name := choose(*shape, 132)]
    terms = nanoseconds(best, *shape, 132)
    longest = max(list(terms)[:5], key=terms.get)
    times = [f"{terms[longest] / 1000:.1f} us ({longest})", f"{terms['load'] / 1000:.1f} us"]
    lines.append([" x ".join(map(str, shape)), name, f"{microseconds(best, *shape, 132):.1f} us", *times])
head = ["M x N x K", "variant", "predicted", "longest term", "load"]
Markdown(table(head, lines))

# %% [markdown]
# ## Layouts and MMA
#
# As in [split-K](split_k_gemm.ipynb): K-major tiles in 128-byte rows, and no place in shared memory for C. An operand
# of the other major keeps that major in shared memory, and `wgmma` reads either one. A line then has up to 64 elements
# along the rows of the tile. A k-tile of an N-major weight is one TMA box of 64 elements by `tile_k` lines.


# %%
def mirrored_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The atom of lines along M or N: (64, 8):(1, 64) for (8, 64):(64, 1), and the same swizzle."""
    width = smem_atom(dtype, contiguous).outer.shape[1]
    bits = (width * dtype.width // 128).bit_length() - 1  # of 1, 2, 4 or 8 chunks in a line
    lines = cute.make_layout((width, 8), stride=(1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def staged(dtype, rows: int, major: str, config) -> cute.ComposedLayout:
    """The stages of an operand (ROWS, TILE_K, STAGE): atoms across the lines, then along them, then over the stages."""
    tile = (rows, config.tile_k, config.stages)
    if major == "k":
        return cute.tile_to_shape(smem_atom(dtype, config.tile_k), tile, order=(0, 1, 2))
    return cute.tile_to_shape(mirrored_atom(dtype, rows), tile, order=(1, 0, 2))


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The stages of the weight and of the rows, each of its major."""
    return SmemLayouts(
        a=staged(dtype, config.tile_m, config.b_major, config), b=staged(dtype, config.tile_n, config.a_major, config)
    )


def wgmma_of_majors(dtype, config: Config) -> warpgroup.MmaF16BF16Op:
    """wgmma m64nNk16 with A and B from shared memory, each of its major; float32 accumulators."""
    majors = (OperandMajorMode.K if x == "k" else OperandMajorMode.MN for x in (config.b_major, config.a_major))
    return warpgroup.MmaF16BF16Op(
        dtype, cutlass.Float32, (64, config.tile_n, 16), warpgroup.OperandSource.SMEM, *majors
    )


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The wgmma for each warpgroup, one below the other."""
    return cute.make_tiled_mma(wgmma_of_majors(dtype, config), (config.warpgroups, 1, 1))


# %% [markdown]
# **The reduction buffer** is laid out as before, a place for each sender. But it has no separate memory: it lies where
# the stages were. So nothing may be sent before *every* CTA of the cluster has multiplied its last stage, which takes a
# barrier of the cluster. `split_k_gemm` has one too, but waits for it when it has long been complete. The wait costs
# little: no CTA can end before the slowest one has sent its accumulators anyway.
#
# A thread sends vectors, so a share is a whole number of vectors. Three CTAs cannot share 64 accumulators evenly: the
# last one's share is smaller. It adds and stores less, and is sent less.


# %% [markdown]
# ## The warp that loads
#
# The order of its steps is what this page is about:
#
# 1. prefetch the first `ahead` k-tiles of the weight into L2;
# 2. `griddepcontrol.wait`: from here on the previous kernel has ended, and A and B may be read;
# 3. load A and B of each k-tile into a stage;
# 4. `griddepcontrol.launch_dependents`: nothing is left to ask for, so the next kernel's CTAs may come and prefetch;
# 5. with split-K, arrive at the cluster's barrier: it counts every warp, and [the exchange](#the-exchange) needs it.
#
# *Cache hints* of the loads tell L2 what to evict first. A tile of rows reads each line of the weight once, so L2 may
# evict it first. Every tile of the weight reads the rows that it is multiplied by, so L2 keeps them longest.


# %%
# Cache policies for all lines of a tensor alike; CUTLASS has the same numbers as `CacheHintSm90`.
EVICT_FIRST = 0x12F0000000000000  # the weight: a tile of rows reads each line once
EVICT_LAST = 0x14F0000000000000  # B: every tile of the weight reads it again


@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, weight: tuple[Load, ...], b: Load, part: Part, config: cutlass.Constexpr):
    """Load the k-tiles of this CTA's part. weight: all that is loaded of it, here one operand, A."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    once, again = cutlass.Int64(EVICT_FIRST), cutlass.Int64(EVICT_LAST)
    if cutlass.const_expr(config.ahead > 0):
        for i in cutlass.range(cutlass.min(config.ahead, part.k_tiles), unroll=1):
            for load in weight:
                cute.prefetch(load.atom, load.gX[None, part.first + i])
    cute.arch.griddepcontrol_wait()  # before any load: the previous kernel may have written A or B
    for i in cutlass.range(part.k_tiles, unroll=1):
        k_tile = part.first + i
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for load in weight:
            gX, sX = load.gX[None, k_tile], load.sX[None, state.index]
            cute.copy(load.atom, gX, sX, tma_bar_ptr=barrier, cache_policy=once)
        cute.copy(b.atom, b.gX[None, k_tile], b.sX[None, state.index], tma_bar_ptr=barrier, cache_policy=again)
        state.advance()
    cute.arch.griddepcontrol_launch_dependents()
    if cutlass.const_expr(config.split_k > 1):
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()  # arrive and wait: the barrier of `exchange` counts every thread
    pipe.producer_tail(state)  # until all stages have been read


# %% [markdown]
# ## The exchange
#
# One barrier of the cluster says three things. All CTAs have begun, the barriers in their shared memory have been
# initialised, and no stage is read any more. Each thread then sends every other CTA that CTA's share. It adds up the
# shares in the order of the senders, its own among them. So a call gives the same bits each time.


# %%
@cute.jit
def exchange(acc: cute.Tensor, sReduce: cute.Tensor, arrived: cute.Pointer, part: Part, config: cutlass.Constexpr):
    """Send each other CTA of the cluster its share of the accumulators, and add up this CTA's: (VEC, VECTORS).

    sReduce: (THREAD, (VEC, VECTORS), SENDER). arrived: the barrier that counts the bytes which the others send.
    """
    tidx, _, _ = cute.arch.thread_idx()
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
        given = min(vectors, (config.accumulators - peer * config.share) // vec)  # the last CTA's share may be smaller
        if part.rank == peer:
            for i in cutlass.range_constexpr(given):
                rOwn[None, i].store(rParts[None, i, peer].load())  # its own share stays in registers
        else:
            for i in cutlass.range_constexpr(given):
                place = cute.arch.map_dsmem_ptr(sReduce[tidx, (None, i), part.rank].iterator, peer)
                barrier = cute.arch.map_dsmem_ptr(arrived, peer)
                target = cute.make_tensor(place, cute.make_layout(vec))
                cute.copy(sends, rParts[None, i, peer], target, mbar_ptr=barrier)
    cute.arch.mbarrier_wait(arrived, 0)
    for sender in cutlass.range_constexpr(senders):
        if part.rank == sender:
            rSent.store(rOwn.load())
        else:
            for i in cutlass.range_constexpr(vectors):
                # the last CTA's share may have fewer vectors
                if part.rank * config.share + i * vec < config.accumulators:
                    cute.autovec_copy(sReduce[tidx, (None, i), sender], rSent[None, i])
        rSum.store(rSum.load() + rSent.load())
    return rSum


# %% [markdown]
# ## The store


# %% tags=["folded"]
@cute.jit
def store(rSum: cute.Tensor, tCcC: cute.Tensor, mC: cute.Tensor, part: Part, config: cutlass.Constexpr):
    """Round this CTA's share of a thread's accumulators and store what lies inside. mC (M, N): C transposed."""
    for i in cutlass.range(config.share, unroll_full=True):
        place = part.rank * config.share + i
        row, column = tCcC[place]
        if cute.elem_less((row, column, place), (*mC.shape, config.accumulators)):
            mC[row, column] = rSum[i].to(mC.element_type)


# %% [markdown]
# ## The kernel
#
# The stages of A and B lie one after the other, and the reduction buffer begins where they do. The barriers are those
# of [split-K](split_k_gemm.ipynb). Only the bytes that `arrived` expects differ: they depend on the CTA's share.


# %%
@cute.jit
def expect_shares(arrived: cute.Pointer, part: Part, warp_idx: cutlass.Int32, config: cutlass.Constexpr):
    """Tell `arrived` how many bytes the other CTAs of the cluster send to this one."""
    if cutlass.const_expr(config.split_k > 1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                own = cutlass.max(cutlass.min(config.accumulators - part.rank * config.share, config.share), 0)
                sent = 4 * 128 * config.warpgroups * (config.split_k - 1) * own
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, sent)


@cute.jit
def set_up(
    layouts: SmemLayouts, part: Part, warp_idx: cutlass.Int32, dtype: cutlass.Constexpr, config: cutlass.Constexpr
) -> Cta:
    """Allocate the stages, and set up their barriers. Others may use `arrived` after the cluster's barrier."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    arrived = smem.allocate_array(cutlass.Int64, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sReduce = None
    if cutlass.const_expr(config.split_k > 1):
        sReduce = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=cutlass.Float32), reduction_buffer(config))
    pipe = make_pipeline(barriers, arrived, warp_idx, config)
    expect_shares(arrived, part, warp_idx, config)
    return Cta(pipe, arrived, sA, sB, sReduce)


# %% [markdown]
# The kernel has the steps of [split-K](split_k_gemm.ipynb) in the same order, and multiplies by its `consume`.


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

    Who waits for whom, with the CONFIG of hopper/decode_gemm:

    warps  do         wait for   signal
    0      wgmma      full[5]    empty[5]: 1
           st.async   full 2[1]  full 2[1]: 1, expects 2048 bytes
    1-3    wgmma      full[5]    empty[5]: 1 a warp
           st.async   full 2[1]
    4      TMA loads  empty[5]   full[5]: 1, expects 40960 bytes

    full[5]: 1 arrival and its bytes a phase.
    empty[5]: 4 arrivals a phase.
    full 2[1]: 1 arrival and its bytes a phase.
    """
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)
    if warp_idx == 4 * config.warpgroups:
        cpasync.prefetch_descriptor(a.atom)
        cpasync.prefetch_descriptor(b.atom)
    number, _, _ = cute.arch.block_idx()
    part = part_of(number, mC.shape, cute.ceil_div(a.coords.shape[1], config.tile_k), config)
    cta = set_up(layouts, part, warp_idx, mC.element_type, config)

    if warp_idx == 4 * config.warpgroups:
        gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (part.m, None))  # (TILE_M, TILE_K, k)
        gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (part.n, None))  # (TILE_N, TILE_K, k)
        weight = (partition_load(a.atom, gA, cta.sA),)
        produce(cta.pipe, weight, partition_load(b.atom, gB, cta.sB), part, config)
    else:
        tCcC = coordinates(mC.shape, part, op, config)
        multiplier = make_multiplier(cta.sA, cta.sB, group, op, config)
        consume(cta.pipe, multiplier, part.k_tiles)
        share = multiplier.acc
        if cutlass.const_expr(config.split_k > 1):
            share = exchange(multiplier.acc, cta.sReduce, cta.arrived, part, config)
        cute.arch.griddepcontrol_wait()  # until it has ended, the previous kernel may read or write C
        store(share, tCcC, mC, part, config)


# %% [markdown]
# ## The launch


# %% tags=["folded"]
def operand_layout(rows, k, stride, major: str) -> cute.Layout:
    """(rows, K) of an operand whose lines, along K or along the rows, are `stride` elements apart."""
    return cute.make_layout((rows, k), stride=(stride, 1) if major == "k" else (1, stride))


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
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` lead from line to line of A, B, C, in elements."""
    (n, m, k), (ldb, lda, ldc), dtype = mnk, strides, pA.dtype
    lda, ldb = (cute.assume(stride, divby=8) for stride in (lda, ldb))
    mA = cute.make_tensor(pB, operand_layout(m, k, lda, config.b_major))
    mB = cute.make_tensor(pA, operand_layout(n, k, ldb, config.a_major))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, ldc)))
    layouts = smem_layouts(dtype, config)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    kernel(a, b, mC, layouts, wgmma_of_majors(dtype, config), config).launch(
        stream=stream, **launch_options(m, n, config)
    )


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
    chosen = choose(*call.mnk, call.sms) if call.variant == DEFAULT else call.variant
    config = replace(VARIANTS.get(chosen, chosen), a_major=call.majors[0], b_major=call.majors[1])
    return (config,), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), major_of=either_major, family=Config)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    The strides say the majors; an operand that can be read both ways counts as K-major. TMA reads lines that start at
    multiples of 16 bytes: the addresses of a and b and their other strides are such multiples (the extents along
    which they are contiguous are multiples of 8, or the lines are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. One call on one GPU gives the same bits each time. There is
    no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The stages as a reduction buffer, drawn
#
# Shared memory of a CTA of each variant, to scale: the stages, and how much of them the reduction buffer takes later.

# %% tags=["lab"]
spans = {}
for name, c in VARIANTS.items():
    share = c.reduction_bytes // 1024
    stages = c.stages * c.stage_bytes // 1024
    spans[name] = [
        *([draw.Span(0, share, "", "stages, then reduction buffer")] if share else []),
        draw.Span(share, stages, f"{c.stages} stages", "stages"),
    ]
draw.lanes(spans, "Shared memory of one CTA", unit="KiB", note=f"An SM has {SM_SMEM // 1024} KiB for all of its CTAs.")

# %% [markdown] tags=["lab"]
# ## Check
#
# Level *pipeline* runs the warps of a whole cluster in every order. No CTA may be sent anything before its stages have
# been read, and no accumulator may be read before it has come. Nothing but the prefetch may come before
# `griddepcontrol.wait`. Level *product* follows each element of C back to A and B. Here the operands are K-major;
# `cookbook check hopper/decode_gemm` looks at all four majors.

# %% tags=["lab"]
lab.check_cells("hopper/decode_gemm", shapes=[(13, 333, 640)], dtypes=["bfloat16"], majors=["tn"])

# %% [markdown] tags=["lab"]
# In the machine code a prefetch is `UTMAPF`, next to the loads, `UTMALDG`:

# %% tags=["lab"]
from cookbook.lab import compiled

try:
    for name, config in VARIANTS.items():
        made = compiled.compile_recipe("hopper/decode_gemm", "sm_90a", "bfloat16", config=config)
        counts = (f"{made.count(x):2} {x}" for x in ("UTMAPF", "UTMALDG", "STAS", "STG"))
        print(f"{name:14}{config.stages:2} stages, {made.registers:3} registers,", ", ".join(counts))
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/decode_gemm", matmul, (16, 8192, 8192))

# %% [markdown] tags=["lab"]
# By size and [majors](../../docs/glossary.md#major): `tn` has both operands K-major, `tt` an N-major weight. Its
# k-tiles have the same bytes, in fewer boxes.

# %% tags=["lab"]
Markdown(results_table("hopper/decode_gemm"))

# %% [markdown] tags=["lab"]
# Which variant the heuristic takes, and what that loses against the fastest one:

# %% tags=["lab"]
from cookbook.lab import choices_table

Markdown(choices_table("hopper/decode_gemm", 132))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A prefetch into L2 is the one access that needs no promise and no wait. It uses the time between two products of a
# chain. By the rule above it saves the same time for every size, `start` less `early`: so it counts most where the
# weight is small. The column `64x16, no prefetch` measures that. Where the table lacks it, only the rule says what the
# prefetch alone gains: split-K differs in more.
#
# Where it ends: what an SM prefetches must still be in L2 when it is loaded, next to what the previous kernel reads.
# And the prefetch does not help a CTA that begins when others of the same grid have ended. With more tiles than SMs
# only the first CTAs gain.
#
# By the rule above L2 takes as long as memory from 128 rows on, and from 192 rows on the tensor cores take about as
# long, too.
#
# Next: weights of fewer bits, and first [the order in which threads read them](packed_weights.ipynb); or [a chain of
# small products](pdl_chain.ipynb), whose kernels load weights before the previous kernel has ended.
