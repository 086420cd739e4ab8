# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: INT8 operands with exact int32 sums
#     claim: >-
#       An INT8 GEMM is the FP8 GEMM with another instruction. Its sums are exact, its accumulators are stored as they
#       are, and C has twice the bytes: half of them go out under the next main loop.
#     track: hopper
#     order: 105
#     aside: 8 bits and less
#     builds_on: hopper/fp8_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     kind: integer
#     operands: int8
#     baselines: [at once]
#     dtypes: [int32]
#     path: tma, multicast -> swizzled shared memory -> wgmma s8 -> registers -> global, under the next main loop
#     instructions:
#       sm_90a: [UTMALDG.2D, IGMMA.S8.S8.SAT, STG.64, USETMAXREG, SYNCS]
#     bench_shapes: [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 2048]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, register fragments of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-register-fragment"}
#       - {title: "SmoothQuant: W8A8 for large language models", url: "https://arxiv.org/abs/2211.10438"}
# ---

# %% [markdown]
# # INT8 operands with exact int32 sums
#
# **Claim.** `C = A B` of 8-bit integers, exact to the last bit, with an instruction as fast as that of FP8.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/int8_gemm", (8192, 8192, 8192), dtype="int32")

# %% [markdown] tags=["lab"]
# What int32 costs: the time in which an H200 writes C, as a part of the time in which its tensor cores multiply. M and
# N are in both and cancel; only K counts.

# %% tags=["lab"]
SMS, RATE, CLOCK, BANDWIDTH = 132, 4096, 1.5e9, 4.26e12  # of an H200: multiply-adds, Hz, bytes a second


def share(k: int, element_bytes: int) -> float:
    """Return the time to write C, of elements of `element_bytes`, in percent of the time to multiply."""
    return 100 * element_bytes / BANDWIDTH / (k / (SMS * RATE * CLOCK))


bars = [
    draw.Bar(f"K = {k}", f"C is {name}", share(k, size), note=f"{share(k, size):.0f}%")
    for k in (2048, 4096, 8192)
    for name, size in (("int32", 4), ("bfloat16", 2))
]
title = "Writing C, on an H200: computed, not measured"
draw.bar_chart(bars, "% of the time of multiplying", title, "C is int32", False, "shorter is better")

# %% [markdown]
# What changes from [the FP8 GEMM](fp8_gemm.ipynb), and what does not:
#
# | | FP8 | INT8 |
# |---|---|---|
# | instruction (PTX) | `wgmma....f32.e4m3.e4m3` | `wgmma....satfinite.s32.s8.s8` |
# | multiply-adds of an SM in a clock | 4096 | 4096 |
# | operands | K-major only | K-major only |
# | 128-byte swizzle, in bytes and in elements of 8 bits | `S<3,4,3>` | `S<3,4,3>` |
# | a sum | float32 with 13 bits of a fraction | int32, exact |
# | scale factors | in the epilogue | none: the caller's |
# | C | bfloat16, 2 bytes an element | int32, 4 bytes an element |
#
# Operands are K-major only: the PTX ISA gives `wgmma.mma_async` its transpose bits (`imm-trans-a`, `imm-trans-b`) for
# 16-bit types alone. The swizzle permutes chunks of 16 bytes and does not ask what is in them.
#
# **Two numbers first**, for 8192 x 8192 x 8192. Operations: as in FP8, 0.7 ms at 1.5 GHz, near the power limit. Bytes:
# A, B and C once are 403 MB, of which C is two thirds, 0.09 ms. At K = 4096 C alone would add a fifth to the time of
# multiplying, if nothing else went on. So it should go out while the tensor cores multiply.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host, k_major, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.hopper.fp8_gemm import matrices
from cookbook.recipes.hopper.multicast_gemm import make_load, partition_load, rank_in_cluster
from cookbook.recipes.hopper.overlapped_epilogue_gemm import make_pipeline, meet_cluster, subtile_of
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    allocate_tiles,
    first_k_tile,
    last_k_tile,
    make_mainloop,
    next_k_tile,
    state_at,
)
from cookbook.recipes.hopper.persistent_gemm import smem_layouts as layouts_of_type
from cookbook.recipes.hopper.swap_ab_gemm import Config as SwapAbConfig
from cookbook.recipes.hopper.tile_heuristics import clusters
from cookbook.recipes.hopper.tma_wgmma_gemm import TmaTensor
from cookbook.recipes.hopper.tuned_gemm import Raster, Scheduler, Sizes, produce, rasterize, work_tile

# %% [markdown]
# ## The sizes
#
# A work tile of 128 x 256 gives each of two consumer warpgroups 64 x 256 int32 accumulators: 128 registers a thread.
# FP8 rounds all of them to 64 registers, and stores those [under the next main loop](overlapped_epilogue_gemm.ipynb).
# But int32 does not shrink, and 128 more registers are more than a thread has (240). So *half* of a tile is kept: 4 of
# 8 epilogue subtiles of 32 columns.


# %%
@dataclass(frozen=True)
class Config(SwapAbConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    epi_n: int = 32  # columns of an epilogue subtile, which a warpgroup stores under one k-tile
    serpentine: bool = True  # every other work tile goes along K backwards

    gpc_aware = False  # cluster tiles go to clusters by their number

    @property
    def at_once(self) -> int:
        return self.subtiles - self.overlapped  # subtiles that are stored before the next main loop

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes  # the barriers, padded to the tiles' alignment


VARIANTS = {"overlapped": Config(), "at once": Config(overlapped=0)}
DEFAULT = "overlapped"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The layouts and the MMA
#
# Tiles of A and B are those of the FP8 GEMM, byte for byte. C has no layout in shared memory: no instruction would
# write it there well. `stmatrix` moves 16-bit elements. Stores of 8 bytes, a thread's two neighbours of a row, would
# have 2-way bank conflicts under a 128-byte swizzle. So the accumulators go from registers to global memory: a warp's
# store covers 8 rows of 32 bytes, which are whole sectors.


# %% tags=["folded"]
ELEMENT = cutlass.Int8  # of A and B


class OperandLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


def smem_layouts(dtype, config: Config) -> OperandLayouts:
    """The tiles of A and B in 128-byte rows."""
    return OperandLayouts(*layouts_of_type(ELEMENT, config)[:2])


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory: there are none."""


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """No copy: TMA fills the stages, wgmma reads them, and C goes out of registers."""
    return TiledCopies()


# %%
def wgmma_int8(columns: int) -> warpgroup.MmaI8Op:
    """wgmma m64nNk32: s8 times s8, both K-major in shared memory, added in s32."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    return warpgroup.MmaI8Op(ELEMENT, ELEMENT, cutlass.Int32, (64, columns, 32), smem, k_major, k_major)


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The wgmmas of the two warpgroups that share a work tile."""
    return cute.make_tiled_mma(wgmma_int8(config.tile_n), (config.warpgroups, 1, 1))


# %% [markdown]
# ## The producer
#
# It is imported with the tile scheduler, as on [the page before](fp8_gemm.ipynb): persistent clusters of two CTAs, and
# each tile of A multicast to both. Every second work tile is loaded from the end of K. There is no GPC-aware remapping
# (`gpc_aware` is False), so the producer always calls `launch_dependents`, and the next kernel may start early.

# %% [markdown]
# ## The consumers, and an epilogue of plain stores
#
# A thread holds, of every 8 columns, two neighbours in each of two rows (PTX ISA, fragment D). It stores such a pair as
# 8 bytes where N and the rows of `out` allow, else one by one.


# %%
class Epilogue(NamedTuple):
    """Where one thread stores its accumulators."""

    gC: cute.Tensor  # (MMA, 1, 1, m, n): this thread's elements of every tile of C
    cC: cute.Tensor  # likewise: their coordinates
    limit: tuple  # (M, N)


@cute.jit
def store_subtile(
    epi: Epilogue,
    i: cutlass.Constexpr,
    values: cute.Tensor,
    tile: tuple,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """Store subtile `i` of a thread's part of a work tile (m, n), where it lies in C. values: see `subtile_of`."""
    for j in cutlass.range_constexpr(config.epi_n // 8):
        for row in cutlass.range_constexpr(2):
            pair = ((None, row, i * (config.epi_n // 8) + j), 0, 0, tile[0], tile[1])
            gPair, cPair, rPair = epi.gC[pair], epi.cC[pair], values[(None, row, j), 0, 0]
            if cutlass.const_expr(vec == 2):
                if cute.elem_less(cPair[0], epi.limit):  # N is even: both lie in C, or none
                    cute.autovec_copy(rPair, gPair)
            else:
                for v in cutlass.range_constexpr(2):
                    if cute.elem_less(cPair[v], epi.limit):
                        gPair[v] = rPair[v]


# %% [markdown]
# `kept` is a copy of the last `overlapped` subtiles, so that the next work tile may overwrite the accumulators at once.
# One subtile goes out under each of its first k-tiles: a thread issues a store and does not wait for it, while `wgmma`
# runs on.


# %%
@cute.jit
def compute(main: Mainloop, epi: Epilogue, scheduler: Scheduler, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """Compute a warpgroup's half of all work tiles."""
    kept = cute.make_rmem_tensor(config.min_k_tiles * config.epi_n // 2, cutlass.Int32)  # of the work tile before
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(scheduler.count, unroll=1):
        read, release = state_at(i * main.k_tiles, config), state_at(i * main.k_tiles, config)
        read = first_k_tile(main, read)
        tile = work_tile(scheduler, i, config)  # computed while the first commit group runs
        for j in cutlass.range_constexpr(config.min_k_tiles):
            if cutlass.const_expr(config.overlapped):
                if i > 0:
                    store_subtile(epi, config.at_once + j, subtile_of(kept, j, config), before, config, vec)
            if cutlass.const_expr(j + 1 < config.min_k_tiles):
                read, release = next_k_tile(main, read, release)
        for _ in cutlass.range(config.min_k_tiles, main.k_tiles, unroll=1):
            read, release = next_k_tile(main, read, release)
        last_k_tile(main, release)
        for j in cutlass.range_constexpr(config.at_once):
            store_subtile(epi, j, subtile_of(main.acc, j, config), tile, config, vec)
        for j in cutlass.range_constexpr(config.overlapped):
            subtile_of(kept, j, config).store(subtile_of(main.acc, config.at_once + j, config).load())
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_subtile(epi, config.at_once + j, subtile_of(kept, j, config), before, config, vec)


# %% [markdown]
# `make_mainloop` makes float32 accumulators; here they are int32. Descriptors are those of the warpgroup's first
# thread, the same for all. What a thread stores depends on the thread.


# %%
@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    mC: cute.Tensor,
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """The part of consumer warpgroup `group` (0 or 1) of all work tiles. thread: in the warpgroup."""
    tile, consumer = (config.tile_m, config.tile_n), group * 128 + thread  # among both warpgroups' threads
    main = make_mainloop(cta, op, group * 128, k_tiles, config)
    main = main._replace(acc=cute.make_rmem_tensor(main.acc.shape, cutlass.Int32))
    thr = main.accumulate.get_slice(consumer)
    gC = thr.partition_C(cute.local_tile(mC, tile, (None, None)))
    cC = thr.partition_C(cute.local_tile(cute.make_identity_tensor(mC.shape), tile, (None, None)))
    cute.arch.griddepcontrol_wait()  # PDL: the previous kernel may still read or write what this warpgroup stores
    compute(main, Epilogue(gC, cC, mC.shape), scheduler, config, vec)


# %% [markdown]
# ## The kernel
#
# One warp produces, two warpgroups consume. C needs no TMA descriptor and no shared memory, and the epilogue no
# barrier.


# %%
@cute.jit
def set_up(layouts: OperandLayouts, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages, and set up the barriers."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    sA, sB = allocate_tiles(smem, layouts, (ELEMENT, ELEMENT))
    pipe = make_pipeline(barriers, config)
    meet_cluster()
    return Cta(pipe, sA, sB, None)


# %% [markdown]
# The roles are the page before's:


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    raster: Raster,
    layouts: OperandLayouts,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """Each cluster computes every `step`th cluster tile of C, `step` being the number of clusters.

    Who waits for whom, with the CONFIG of hopper/int8_gemm:

    warps  do         wait for  signal
    0-7    wgmma      full[4]   empty[4]: 1 a warp, in 2 CTAs
    8      TMA loads  empty[4]  full[4]: 1, expects 49152 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 16 arrivals a phase.
    """
    block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    first, step = block // config.cluster, blocks // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # warpgroups 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for atom in (a.atom, b.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, config)
    rank = rank_in_cluster(config)
    scheduler = Scheduler(raster, first, step, (raster.tiles + step - 1 - first) // raster.by_step, rank)

    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    k_tiles = cutlass.max(cute.size(gA, mode=[3]), config.min_k_tiles)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.producer_registers)
        if warp_idx == 8:
            everyone = cutlass.Int16((1 << config.cluster) - 1)
            load_a = partition_load(a.atom, gA, cta.sA, rank[1], config.cluster_n, everyone)
            load_b = partition_load(b.atom, gB, cta.sB, rank[0], config.cluster_m, everyone)
            tile = tuple(cute.arch.make_warp_uniform(x) for x in work_tile(scheduler, 0, config))
            produce(cta.pipe, (load_a, load_b), scheduler, tile, k_tiles, config)
    else:
        cute.arch.setmaxregister_increase(config.consumer_registers)
        consume(cta, op, mC, scheduler, k_tiles, group, tidx % 128, config, vec)


# %% [markdown]
# ## The launch
#
# The matrices are the page before's, but for the rows of C: they begin at multiples of `vec` elements.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed."""
    (m, n, _), ctas, layouts = sizes.mnk, config.cluster, smem_layouts(cutlass.Int32, config)
    mA, mB, mC = matrices(pA, pB, pC, sizes.mnk, sizes.strides, vec)
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    a = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    b = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    raster, op = rasterize(m, n, sizes.clusters, config), wgmma_int8(config.tile_n)
    launcher = kernel(a, b, mC, raster, layouts, op, config, vec)
    grid, block, cluster = ((x, 1, 1) for x in (sizes.clusters * ctas, config.threads, ctas))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 2, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. vec: elements of C per store."""
    pointers = (ELEMENT, 16), (ELEMENT, 16), (dtype, 4 * vec)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`
#
# `Gemm`, which all recipes share, checks a call once for each kind and keeps a *plan*: the compiled kernel with its
# launch arguments. It refuses a K for which [a sum might not fit](#every-sum-is-exact).


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    config, (m, n, _) = VARIANTS[call.variant], call.mnk
    vec = 2 if call.vec >= 4 else 1  # `call.vec` counts 2 bytes of an address, and elements of N and of a row
    return (config, vec), (Sizes(call.mnk, call.strides, clusters(config, m, n, call.sms)),)


EXACT_K = (2**31 - 1) // 2**14  # products of two int8, each at most 2**14, whose sum int32 holds


def exact(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """Check as `k_major` does, and that int32 holds every sum over K."""
    needed = f"at most {EXACT_K}: of more products int32 may not hold the sum"
    require(x.shape[k_mode] <= EXACT_K, name, f"K = {x.shape[k_mode]}", needed)
    return k_major(name, x, k_mode, whole)


TAKES = {torch.int8: torch.int32}
GEMM = Gemm(compile_for, prepare, ((9, 0),), "wgmma", VARIANTS, major_of=exact, takes=TAKES)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` of 8-bit integers on the tensor cores, exact in int32, on the current stream of `a`'s device.

    a: (M, K), int8, K-major (stride 1 along K).
    b: (K, N), int8, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), int32, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS.

    The addresses of a and b and their row strides are multiples of 16 bytes, as TMA needs them. Any M, N >= 1 and K
    from 1 to 131071 within that, on a GPU of compute capability 9.0. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Every sum is exact
#
# The products of two int8 lie between the two ends below. If K of the largest fit int32, then no partial sum leaves it,
# in whatever order the tensor cores add. So nothing is rounded, and the result is the same to the bit each time.

# %% tags=["lab"]
import numpy as np

every = np.arange(-128, 128)
products = np.multiply.outer(every, every)
low, high, limits = int(products.min()), int(products.max()), np.iinfo(np.int32)
assert EXACT_K * low >= limits.min and EXACT_K * high <= limits.max < (EXACT_K + 1) * high
f"products: {low} to {high}; sums at K = {EXACT_K}: {EXACT_K * low} to {EXACT_K * high}; int32: to {limits.max}"

# %% [markdown] tags=["lab"]
# Beyond that K, `.satfinite` would decide: CuTe DSL asks for it (PTX: a sum that int32 cannot hold becomes its nearest
# limit; without it, it wraps; `torch._int_mm` saturates, too). What saturated depends on the order of the sums, so
# `matmul` refuses such a K instead.
#
# Float32 would not do: it holds every integer up to 2**24 only, and 1024 products can reach that.
#
# ## How W8A8 calls it
#
# A model with 8-bit weights and activations (W8A8) has a scale factor for each row of `x`, found at run time, and for
# each output of the weight. Both come out of the sum over K, so they meet the finished int32:


# %% tags=["lab", "open"]
def w8a8_linear(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """`x @ (weight * weight_scale).T` with x quantized to int8 by rows. x: (M, K) bfloat16; weight: (N, K) int8;
    weight_scale: (N,) float32. K is a multiple of 16."""
    scale = x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / 127
    quantized = (x / scale).round().clamp(-127, 127).to(torch.int8)
    return (matmul(quantized, weight.T) * (scale * weight_scale)).to(x.dtype)


# %% [markdown] tags=["lab"]
# The last line reads C and writes half as many bytes; under `torch.compile` it is one kernel. [The FP8
# GEMM](fp8_gemm.ipynb#scale-factors) does that in its epilogue, and saves the pass; then C is no longer exact.
#
# ## Check

# %% tags=["lab"]
lab.check_cells("hopper/int8_gemm", shapes=[(200, 333, 64)])

# %% [markdown] tags=["lab"]
# ## Time
#
# Both variants, all in one run. A multiply-add counts as two operations, as in TFLOP/s.

# %% tags=["lab", "open"]
lab.compare("hopper/int8_gemm", matmul, (8192, 8192, 8192), dtype="int32")

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table

Markdown(results_table("hopper/int8_gemm"))

# %% [markdown] tags=["lab"]
# "Ours" and `overlapped` are one kernel, timed twice: their difference is the spread. `at once` is slower only at the
# shortest K; at the longer ones it differs from `overlapped` by less than the spread. In both variants a store is only
# *issued*, and memory writes C while the next work tile is multiplied. What overlapping can save is the time in which
# both warpgroups issue stores and no `wgmma` runs. That is the same for each tile, so it counts for less where K is
# long.
#
# Ping-pong hides this time too. In an experiment that is not recorded, work tiles of 128 x 128 and 128 x 192 were no
# faster at any of these sizes. Smaller tiles load more operand bytes.
#
# ## Conclusion
#
# Exact sums cost nothing in the tensor cores. They cost bytes: int32 cannot be rounded, so it takes twice the registers
# to keep a tile and twice the traffic to store it. Plain stores of whole sectors overlap that traffic with the
# multiplication. At the shortest K the rate is still lower.
#
# Next: [an epilogue that you write yourself](fused_epilogue_gemm.ipynb).
