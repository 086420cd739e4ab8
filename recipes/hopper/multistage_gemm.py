# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Several stages: TMA runs ahead of wgmma"
#     claim: >-
#       With three stages TMA loads two k-tiles ahead while wgmma multiplies a third. On an H100 that is faster at
#       4096³ and slower at 8192³: what it hides is no longer what the kernel waits for.
#     track: hopper
#     order: 25
#     builds_on: hopper/swizzled_gemm
#     pays: {at: [4096, 4096, 4096], over: hopper/swizzled_gemm}
#     compared_with: hopper/swizzled_gemm
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, 3 stages -> swizzled shared memory -> wgmma -> stores of single elements
#     instructions: [UTMALDG.2D, HGMMA, SYNCS, WARPGROUP.DEPBAR, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
#       - {title: "PTX ISA, wgmma.wait_group", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-wait-group"}
# ---

# %% [markdown]
# # Several stages: TMA runs ahead of wgmma
#
# **Claim.** One thing changes from [the page before](swizzled_gemm.ipynb): shared memory has room for three k-tiles,
# each a *[stage](../../docs/glossary.md#stage)* with a barrier of its own. While `wgmma` multiplies one k-tile, TMA
# loads the next two.
#
# For a CTA alone that is a large gain. But the page before has three CTAs on an SM, which hide most of each other's
# waits, and three stages leave room for two. On an H100 the step gains at 4096³ and loses at 8192³; [near the
# end](#what-the-prediction-left-out) the page says what is known of the reason. Every later kernel has stages: with one
# CTA on an SM they are all that hides a load.
#
# The same k-tiles with one stage and with three, for a CTA alone. (Times are illustrative.)

# %% tags=["lab"]
from IPython.display import Markdown, display

from cookbook import draw, lab

display(draw.pipeline(stages=1, k_tiles=4, load_time=2, title="One stage"))
display(draw.pipeline(stages=3, k_tiles=4, load_time=2, title="Three stages"))

# %% [markdown] tags=["lab"]
# With stages and times of your own. Set the stages to 1: the tensor cores wait for each load. With three they wait for
# none after the first. Then give a load more time: how many stages hide it?
#
# <barrier-timeline stages="3" tiles="8" load="4" mma="2">
# The site has a timeline here.
# </barrier-timeline>

# %% [markdown]
# The layouts, the set-up and the epilogue are imported from the page before, and so is the launch. Each of these counts
# the stages already.

# %%
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.hopper.first_gemm import Load, SmemLayouts, tiled_copies, tiled_mma
from cookbook.recipes.hopper.swizzled_gemm import Config as SwizzledConfig
from cookbook.recipes.hopper.swizzled_gemm import (
    accumulators,
    descriptors,
    gemm,
    set_up,
    smem_layouts,
    store,
    tile_of_cta,
)

# %% [markdown]
# ## The sizes
#
# A stage is 32 KiB. With one stage, registers limit an SM to three CTAs; with three stages, shared memory limits it to
# two. One stores its tile while the other multiplies.


# %%
@dataclass(frozen=True)
class Config(SwizzledConfig):
    """Sizes of the kernel, in elements or counts."""

    stages: int = 3  # pairs of A and B tiles: one is multiplied, two are on their way


CONFIG = Config()


# %% [markdown]
# ## Loading a k-tile
#
# k-tile number *k* goes to stage *k mod 3* and completes the barrier of that stage. `partition_load` keeps the mode
# `STAGE`, of which the first GEMM took stage 0. `load_k_tile` is what the first GEMM's loop did in its first lines. One
# condition is new: near the end there is no k-tile left to ask for.


# %%
def partition_load(atom: cute.CopyAtom, mX: cute.Tensor, sX: cute.Tensor, tile: cute.Tile, index) -> Load:
    """Tile `index` of the rows of mX (rows, K), for all k-tiles and all stages; sX (rows, K, STAGE)."""
    gX = cute.local_tile(mX, tile, (index, None))  # (rows, K, k)
    no_multicast = cute.make_layout(1)  # a cluster of one CTA
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(atom, 0, no_multicast, sX, gX)
    return Load(atom, tXgX, tXsX)  # (TMA, k), (TMA, STAGE)


@cute.jit
def load_k_tile(loads: tuple[Load, ...], k_tile: cutlass.Int32, full: cute.Pointer, config: cutlass.Constexpr):
    """Ask TMA for a k-tile, if there is one: it goes to stage `k_tile % stages`, and completes the barrier there."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp_idx == 0 and k_tile < cute.size(loads[0].gX, mode=[1]):
        stage = k_tile % config.stages
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, config.stage_bytes)
        for load in loads:
            cute.copy(load.atom, load.gX[None, k_tile], load.sX[None, stage], tma_bar_ptr=full + stage)


# %% [markdown]
# ## The main loop
#
# Before the loop warp 0 asks TMA for two k-tiles. Then each iteration does four things:
#
# 1. wait until its k-tile is there. A stage is filled every third iteration, so the parity of its barrier's phase is
#    `k_tile // stages % 2`;
# 2. issue the `wgmma`s, and commit them as a group;
# 3. wait for all groups but this one. Then the k-tile *before* is done. This k-tile's group still runs, so the tensor
#    cores have work while the threads go on;
# 4. meet, so that all four warps know it, and ask TMA for the k-tile two ahead, into the stage just freed.
#
# `wait_group(1)` is the line that matters: of the groups committed, the latest may still run. With 0 the tensor cores
# would be idle from each k-tile to the next.
#
# `range_constexpr` unrolls the two loads before the loop when the kernel is compiled. All later ones are inside it.


# %%
@cute.jit
def mainloop(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    loads: tuple[Load, ...],
    full: cute.Pointer,
    config: cutlass.Constexpr,
):
    """Multiply all k-tiles into `acc`. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    ahead = config.stages - 1
    for k_tile in cutlass.range_constexpr(ahead):
        load_k_tile(loads, k_tile, full, config)
    for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
        stage = k_tile % config.stages
        cute.arch.mbarrier_wait(full + stage, k_tile // config.stages % 2)  # the k-tile is there
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)  # all but this k-tile's: the one before has been read,
        cute.arch.sync_threads()  # by all four warps, so its stage is free
        load_k_tile(loads, k_tile + ahead, full, config)
    warpgroup.wait_group(0)


# %% [markdown]
# ## The kernel and `matmul`
#
# Two lines differ from the page before: the descriptors keep their mode `STAGE`, and the main loop is this page's.


# %%
@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    config: cutlass.Constexpr,
):
    """One CTA computes one tile of C."""
    tile_m, tile_n = tile_of_cta(mC.shape, config)
    cta, mma = set_up(layouts, mC.element_type, config), tiled_mma(mC.element_type, config)
    load_a = partition_load(tma_a, mA, cta.sA, (config.tile_m, config.tile_k), tile_m)
    load_b = partition_load(tma_b, mB, cta.sB, (config.tile_n, config.tile_k), tile_n)

    acc, (tCrA, tCrB) = accumulators(mma, config), descriptors(mma, cta)
    mainloop(mma, acc, tCrA, tCrB, (load_a, load_b), cta.full, config)
    store(mma, acc, mC, (tile_m, tile_n), config)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (kernel, config or CONFIG), options=options)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG,), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma")


# %%
def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out)


# %% [markdown] tags=["lab"]
# ## Check
#
# The check is of the cells above: ask for the next k-tile before the `sync_threads`, or wait for phase `k_tile % 2`,
# and check again.

# %% tags=["lab"]
lab.check_cells("hopper/multistage_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# For one k-tile, the clocks of an SM by [the rules of the first GEMM](first_gemm.ipynb#the-prediction). With one stage
# the waits of a CTA add up, and the CTAs of an SM share the sum. With several stages only the busiest unit counts. The
# last column is [the next page](wide_tile_gemm.ipynb), whose tile is twice as wide.

# %% tags=["lab"]
from cookbook import load
from cookbook.lab import L2_PORT, LATENCY, by_tma, records, results_table, step_table, table

BEFORE, HERE, NEXT = "hopper/swizzled_gemm", "hopper/multistage_gemm", "hopper/wide_tile_gemm"
steps = {name: by_tma(name) for name in (BEFORE, HERE, NEXT)}
share = {name: found["wgmma"] / found["a k-tile takes"] for name, found in steps.items()}
rows = [[unit, *(f"{found[unit]:.0f}" for found in steps.values())] for unit in steps[HERE]]
rows.append(["of the tensor cores' rate", *(f"{part:.0%}" for part in share.values())])
Markdown(table(["clocks for a k-tile", *(f"`{name}`" for name in steps)], rows))

# %% [markdown] tags=["lab"]
# By this count three CTAs on an SM hid most of each other's waits, and the stages hide the rest. The predicted gain:

# %% tags=["lab", "gains"]
predicted = {HERE: round(share[HERE] / share[BEFORE], 2)}
predicted

# %% [markdown] tags=["lab"]
# For the next page it predicts none: neither kernel waits for a unit other than the tensor cores.
#
# ## Time
#
# This kernel and its peers, the page before among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("hopper/multistage_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/multistage_gemm"))

# %% tags=["lab"]
counted = {name: found["a k-tile takes"] for name, found in steps.items()}
Markdown(step_table(HERE, predicted[HERE], counted))

# %% [markdown] tags=["lab"]
# ## What the prediction left out
#
# The count gives each SM a port of 64 bytes a clock into L2. All ports together ask for more than L2 gives: its rate
# for all SMs was [measured](../foundations/memory_ceiling.ipynb) on an H200, whose L2 is as large. With that rate a
# k-tile takes as long with one stage as with three:

# %% tags=["lab"]
SMS, DEVICE, MEMORY = 132, "NVIDIA H100 80GB HBM3", "foundations/memory_ceiling"
reads = [r["figures"]["read"] for r in records.select(MEMORY, records.CEILING, None) if not records.is_stale(r)]
l2_rate = max(size["gbps"] for size in reads[0].values())  # GB/s, of the buffer that is read fastest
runs = [r for r in records.of_one_gpu(HERE, "timed", "bfloat16", device=DEVICE) if BEFORE in r["peers"]]
for r in runs:
    bytes_a_clock = l2_rate * 1e3 / r["gpu"]["clock_mhz"] / SMS  # of an SM, all of them loading
    loading = steps[HERE]["L2"] * L2_PORT / bytes_a_clock
    one = max(loading, (LATENCY + loading + steps[BEFORE]["wgmma"]) / steps[BEFORE]["CTAs an SM"])
    port = f"{r['shape'][0]}: L2 gives an SM {bytes_a_clock:.0f} bytes a clock"
    print(f"{port}; a k-tile takes {one:.0f} clocks with one stage, {loading:.0f} with three")

# %% [markdown] tags=["lab"]
# By this count both kernels wait for L2, and a latency that is hidden anyway gains nothing. What else
# differs is how many CTAs run at once. *From memory* counts as in [thread-block
# swizzle](../foundations/thread_block_swizzle.ipynb): each wave fetches what it needs of A and B once.

# %% tags=["lab"]


def at_once(name: str, r: dict, milliseconds: float) -> list[str]:
    """A row: CTAs at once, waves, and bytes and rates of A and B, from memory and from L2."""
    config, (m, n, k), ctas = load(name).CONFIG, r["shape"], SMS * steps[name]["CTAs an SM"]
    down, tiles = m // config.tile_m, (m // config.tile_m) * (n // config.tile_n)
    waves = [range(first, min(first + ctas, tiles)) for first in range(0, tiles, ctas)]
    rows = sum(len({cta % down for cta in wave}) * config.tile_m for wave in waves)
    columns = sum(len({cta // down for cta in wave}) * config.tile_n for wave in waves)
    read = [(rows + columns) * k * 2e-9, tiles * (config.tile_m + config.tile_n) * k * 2e-9]  # GB
    shown = (f"{gb:.2f} GB, {gb / milliseconds:.1f} TB/s" for gb in read)
    return [f"{m}³; A is {m * k >> 19} MiB", f"`{name}`", f"{ctas}", f"{tiles / ctas:.1f}", *shown]


rows = []
for r in runs:
    rows += [at_once(BEFORE, r, r["peers"][BEFORE]["median_ms"]), at_once(HERE, r, r["figures"]["median_ms"])]
header = ["M = N = K", "kernel", "CTAs at once", "waves", "from memory (counted)", "from L2 (counted)"]
Markdown(table(header, rows, right=2) if rows else "*Not measured on a GPU yet.*")

# %% [markdown] tags=["lab"]
# What is known:
#
# * **L2.** Both load at much the same rate, not far below the one measured. A k-tile of this size asks for too much.
# * **Waves.** At 4096 the last wave of the kernel with one stage is little more than half full. By the rules of the
#   prediction it takes as long as a full one. That of this kernel is nearly full: a part of the gain comes from there.
# * **Memory.** CTAs are counted down the columns of C. So each wave needs all of A, and a smaller wave has fewer
#   columns for it. A of 4096 can stay in L2, which has 50 MB. A of 8192 cannot: there this kernel reads much more.

# %% tags=["lab"]
for r in runs:
    gpu = r["gpu"]
    print(
        f"{r['shape'][0]}: {gpu['clock_mhz']:.0f} of {gpu['max_clock_mhz']:.0f} MHz, {gpu['power_w']:.0f} of "
        f"{gpu['power_limit_w']:.0f} W, clock lowered for power {gpu['capped']:.0%} of the time"
    )

# %% [markdown] tags=["lab"]
# * **Power.** The run was at its limit, and its clock lower at 8192. Both kernels ran alternately, so that this does
#   not say which of them pays for it.
#
# What is a guess: that the bytes from memory decide it at 8192. It is not memory's rate: that is several times what the
# table says. Loads that take longer than two k-tiles, CTAs that do not go along K together, power for the bytes: each
# would fit. A profiler that counts the bytes would tell. So would a run with two stages, because three CTAs fit on an
# SM then.
#
# The [next page](wide_tile_gemm.ipynb) asks less of L2, with a wider tile; [a later one](tma_wgmma_gemm.ipynb) less of
# memory, with a better order of tiles.

# %% [markdown] tags=["lab"]
# ## Exercises
#
# The last cell of this section puts your definitions into the kernel and follows it: to each element of C, and in any
# order of its warps. Or paste the cells into a copy (`cookbook copy hopper/multistage_gemm my.py`), then `cookbook
# exercise my.py`.
#
# **Finish it.** A sum does not mind its order. Load the last k-tile first, and the first one last.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def load_k_tile_backwards(
    loads: tuple[Load, ...], k_tile: cutlass.Int32, full: cute.Pointer, config: cutlass.Constexpr
):
    """Exercise 1, finish it: as `load_k_tile`, but the n-th call from the first brings the n-th k-tile from the last.
    The main loop stays as it is."""
    raise NotImplementedError


# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# Begin with the lines of `load_k_tile`. One of the three places where `k_tile` stands says which part of the matrix is
# read.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The main loop waits at the barrier of stage 0, then at that of stage 1: it counts iterations, whatever k-tile comes.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Stage and barrier go by the iteration; only the source goes by the k-tile.
#
# ```python
# @cute.jit
# def load_k_tile_backwards(
#     loads: tuple[Load, ...], k_tile: cutlass.Int32, full: cute.Pointer, config: cutlass.Constexpr
# ):
#     warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
#     k_tiles = cute.size(loads[0].gX, mode=[1])
#     if warp_idx == 0 and k_tile < k_tiles:
#         stage = k_tile % config.stages
#         with cute.arch.elect_one():
#             cute.arch.mbarrier_arrive_and_expect_tx(full + stage, config.stage_bytes)
#         for load in loads:
#             cute.copy(load.atom, load.gX[None, k_tiles - 1 - k_tile], load.sX[None, stage], tma_bar_ptr=full + stage)
# ```
#
# </details>
#
# **Find the bug.** "Why leave a stage empty?" This loop asks for three k-tiles at once, and can be right in every run
# that one tries.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def mainloop_at_risk(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    loads: tuple[Load, ...],
    full: cute.Pointer,
    config: cutlass.Constexpr,
):
    """Exercise 2, find the bug: as `mainloop`."""
    for k_tile in cutlass.range_constexpr(config.stages):
        load_k_tile(loads, k_tile, full, config)
    for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
        stage = k_tile % config.stages
        cute.arch.mbarrier_wait(full + stage, k_tile // config.stages % 2)
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        cute.arch.sync_threads()
        load_k_tile(loads, k_tile + config.stages, full, config)
    warpgroup.wait_group(0)


EXERCISES = {"load_k_tile_backwards": "load_k_tile", "mainloop_at_risk": "mainloop"}  # by name: what it replaces

# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# To which stage does k-tile `k_tile + stages` go? Who reads that stage at this moment?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# `wait_group(1)` leaves one group running: that of this iteration. Which stage is free, then?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# k-tile `k_tile + stages` goes to the stage of `k_tile`, which `wgmma` still reads. Free is the stage of the k-tile
# before. So loads run `stages - 1` k-tiles ahead. (With `wait_group(0)` the loop would be right too, and the tensor
# cores idle from k-tile to k-tile.)
#
# ```python
# @cute.jit
# def mainloop_at_risk(
#     mma: cute.TiledMma,
#     acc: cute.Tensor,
#     tCrA: cute.Tensor,
#     tCrB: cute.Tensor,
#     loads: tuple[Load, ...],
#     full: cute.Pointer,
#     config: cutlass.Constexpr,
# ):
#     for k_tile in cutlass.range_constexpr(config.stages - 1):
#         load_k_tile(loads, k_tile, full, config)
#     for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
#         stage = k_tile % config.stages
#         cute.arch.mbarrier_wait(full + stage, k_tile // config.stages % 2)
#         warpgroup.fence()
#         for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
#             cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
#         warpgroup.commit_group()
#         warpgroup.wait_group(1)
#         cute.arch.sync_threads()
#         load_k_tile(loads, k_tile + config.stages - 1, full, config)
#     warpgroup.wait_group(0)
# ```
#
# </details>

# %% tags=["lab"]
lab.check_exercises("hopper/multistage_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Loads and multiplications of a CTA overlap, with one barrier a stage and no second role. It pays at 4096³, and not at
# 8192³. What is left: the tile is as small as on the first page, so L2 is asked for too much; warp 0 multiplies *and*
# loads, so all warps meet in each k-tile; and single elements go out.
#
# Next: [a wider tile](wide_tile_gemm.ipynb), for two warpgroups.
