# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Dynamic tile scheduler with cluster launch control
#     claim: >-
#       Launch a cluster for every tile and let running clusters cancel waiting ones and take their work: the first free
#       cluster gets the next tile.
#     track: blackwell
#     order: 40
#     builds_on: blackwell/two_cta_gemm
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     compared_with: blackwell/two_cta_gemm
#     dtypes: [bfloat16, float16]
#     path: tma -> shared memory of two SMs -> tcgen05.mma of both -> tensor memory -> tcgen05.ld -> boxes -> tma
#     instructions:
#       all: [UTMALDG.2D.2CTA, UTCHMMA.2CTA, UTCBAR.2CTA.MULTICAST, LDTM, UCGABAR_WAIT, STS.128, UTMASTG.2D, SYNCS]
#     sources:
#       - {title: "PTX ISA, clusterlaunchcontrol.try_cancel", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-clusterlaunchcontrol-try-cancel"}
#       - {title: "CUDA C++ Programming Guide, thread block clusters", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-block-clusters"}
#       - {title: "Triton, Gluon tutorials", url: "https://triton-lang.org/main/getting-started/tutorials/gluon/index.html"}
# ---

# %% [markdown]
# # Dynamic tile scheduler with cluster launch control
#
# **Claim.** Persistent CTAs get their tiles *before* the kernel begins. If another kernel still holds some SMs, the
# last clusters to begin are the last to finish. Blackwell schedules while the kernel runs: **launch a cluster for every
# block of C, and let the running clusters take over those that have not begun.**

# %% [markdown] tags=["lab"]
# A sketch, with chosen times. *Places* are pairs of SMs: four of them share fourteen blocks, and another kernel holds
# the last place for a while. In the static schedule place *p* of *s* does the blocks p, p + s and so on, whenever it
# may begin. In the dynamic schedule a place takes the lowest number that is left.

# %% tags=["lab"]
import heapq
from collections import deque
from collections.abc import Callable

import cookbook
from cookbook import draw, lab

packaged = cookbook.load("blackwell/persistent_clc_gemm")


def schedule(blocks: int, begins: list[float], took: Callable[[int, int], float], answers: int) -> list[list[tuple]]:
    """For each place, (start, end, block) of what it does.

    begins: when each place is free; took(place, block): how long it works on a block; answers: as of Config.
    """
    done: list[list[tuple]] = [[] for _ in begins]
    if answers == 0:
        for place, now in enumerate(begins):
            for block in range(place, blocks, len(begins)):
                done[place].append((now, now + took(place, block), block))
                now = done[place][-1][1]
        return done
    left, mine = deque(range(blocks)), [deque() for _ in begins]
    free = [(now, place) for place, now in enumerate(begins)]
    heapq.heapify(free)
    while free:
        now, place = heapq.heappop(free)
        while left and len(mine[place]) <= answers:  # the block that it begins, and those it has asked for
            mine[place].append(left.popleft())
        if mine[place]:
            block = mine[place].popleft()
            done[place].append((now, now + took(place, block), block))
            heapq.heappush(free, (done[place][-1][1], place))
    return done


lanes = {}
for name, config in packaged.VARIANTS.items():
    if config.answers < 2:
        found = schedule(14, [0.0, 0.0, 0.0, 2.5], lambda place, block: 1.0, config.answers)
        lanes |= {"": []} if lanes else {}
        for place, spans in enumerate(found):
            row = [draw.Span(a, b, str(n), f"round {i}") for i, (a, b, n) in enumerate(spans)]
            lanes[f"{name}: place {place}"] = row
draw.lanes(lanes, "Fourteen blocks, four places, one of them late (a sketch)", unit="blocks", note="Chosen times.")

# %% [markdown]
# With `clusterlaunchcontrol.try_cancel` a running cluster asks the GPU to *cancel* one that still waits to start. The
# answer is the number of the cancelled cluster, whose work the asker now does, or "there is none left". [So
# far](two_cta_gemm.ipynb) every warp computed the next tile; now the next tile is a message in shared memory, with
# barriers of its own.
#
# *This kernel has not run on hardware.* It is compiled for Blackwell, and its layouts, descriptors and data path are
# checked against the PTX ISA document in numpy. No speed is claimed.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.blackwell.pipelined_gemm import (
    EPILOGUE_WARPS,
    MMA_WARP,
    TMA_WARP,
    Cta,
    Mainloop,
    TiledCopies,
    Work,
    accumulator_stages,
    allocate_tiles,
    begin_epilogue,
    end_epilogue,
    multiply_tile,
    smem_layouts,
    store_tile,
)
from cookbook.recipes.blackwell.two_cta_gemm import (
    PAIR,
    Load,
    Place,
    gemm,
    load_tile,
    make_mainloop,
    make_pipelines,
    multicast_masks,
    partition_load,
    shared_tmem,
    tiled_copies,
    tiled_mma,
    work_of_cta,
    work_tile,
)
from cookbook.recipes.blackwell.two_cta_gemm import Config as TwoCtaConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor

# %% [markdown]
# ## The sizes
#
# A tile is 256 x 256 and belongs to a pair of CTAs, and all that [the page before](two_cta_gemm.ipynb) says of pairs
# holds here. One warp more works in the first CTA of a cluster: it asks for blocks.
#
# | variant | a cluster's next block |
# |---|---|
# | `static` | is as many further as there are clusters: the schedule so far |
# | `dynamic` | is asked for while the present one is multiplied |
# | `two ahead` | is asked for one block earlier |


# %%
@dataclass(frozen=True)
class Config(TwoCtaConfig):
    """Sizes of the kernel, in elements or counts."""

    answers: int = 1  # blocks that are asked for before they are needed; 0: none is, the schedule is static

    @property
    def threads(self) -> int:
        return super().threads + (32 if self.answers else 0)  # and a warp that asks

    @property
    def persistent(self) -> bool:
        return not self.answers  # else a cluster is launched for each block, and most are cancelled


ANSWER_BYTES = 16  # of what the hardware says to a request for a block
ASKING_WARP = 6  # behind the warps that store, multiply and load
VARIANTS = {"static": Config(answers=0), "dynamic": Config(), "two ahead": Config(answers=2)}
DEFAULT = "dynamic"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown]
# ## The tile scheduler: which tile is next
#
# The rasterization of the blocks of C is as before, and a cluster begins with the one of its own number. What comes
# after that is in an **answer**: 16 bytes in shared memory, which the hardware writes into *every* CTA of the cluster
# (`.multicast::cluster::all`), reporting to a barrier in each. Every role reads it after each tile: is
# it a yes, and if so which CTA was the first of the cancelled cluster? Only then may the answer be overwritten.
#
# The bytes come by the *async proxy*, as TMA's do. So a fence stands between reading an answer and giving its place
# back: the next answer must not overtake the reading of this one.
#
# The static schedule fits into the same function: the number that comes `step` later, or none.


# %%
class Answers(NamedTuple):
    """The answers of the hardware's tile scheduler."""

    asked: pipeline.PipelineClcFetchAsync  # full: an answer is there; empty: all have read it
    answers: cute.Pointer  # to shared memory, 16 bytes each


def first_answer(config: Config) -> pipeline.PipelineState:
    """The pipeline state of the first answer; the static schedule, which has none, goes through the same motions."""
    return pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, max(config.answers, 1))


@cute.jit
def next_block(
    clc: Answers, read: pipeline.PipelineState, number: cutlass.Int32, work: Work, config: cutlass.Constexpr
):
    """The number of the block that comes after `number`, or -1 if that was the last; and where the next answer is."""
    asked, answers = clc
    if cutlass.const_expr(config.answers == 0):
        number += work.step
        if number >= work.tiles:
            number = cutlass.Int32(-1)
    else:
        asked.consumer_wait(read)
        cta, _, _, yes = cute.arch.clc_response(answers + read.index)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()  # all lanes have read it
        with cute.arch.elect_one():
            asked.consumer_release(read)
        read.advance()
        number = cutlass.Int32(-1)
        if yes != 0:
            number = cta // config.cluster
    return number, read


# %% [markdown]
# ## The warp that asks
#
# It works in the first CTA of a cluster alone. `producer_acquire` waits until everyone in the cluster has read the
# answer that was there, and tells each CTA's barrier to expect 16 bytes. It is a reader of its own answers too, since
# **after a no it must not ask again**: PTX leaves that undefined.
#
# It must be the last to end. The last answer is read by warps of other CTAs too, and each of them arrives at a
# barrier *here*: `producer_tail` waits for them.


# %%
@cute.jit
def ask(clc: Answers, work: Work, config: cutlass.Constexpr):
    """Ask for one block after the other, for the whole cluster, until the answer is no."""
    asked, answers = clc
    write = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.answers)
    read, number = first_answer(config), work.first
    while number >= 0:
        asked.producer_acquire(write)
        with cute.arch.elect_one():
            cute.arch.issue_clc_query(asked.producer_get_barrier(write), answers + write.index)
        write.advance()
        number, read = next_block(clc, read, number, work, config)
    asked.producer_tail(write)  # all have read the last answer


# %% [markdown]
# ## The warps that load, multiply and store
#
# There are no loops over tile iterations any more: each role goes on while there is a block. What it does in a block is
# as before: `load_tile`, `multiply_tile` and `store_tile` are imported.


# %%
@cute.jit
def produce(
    pipe: pipeline.PipelineTmaUmma,
    clc: Answers,
    loads: tuple[Load, ...],
    work: Work,
    place: Place,
    config: cutlass.Constexpr,
):
    """Keep the stages full, block after block."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    read, number = first_answer(config), work.first
    while number >= 0:
        state = load_tile(pipe, state, loads, work_tile(number, work, place, config), place.half)
        number, read = next_block(clc, read, number, work, config)
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# The warp that multiplies works in the leader of a pair alone, so it alone reads the answers: the counts of arrivals,
# below, must say so.


# %%
@cute.jit
def multiply_blocks(cta: Cta, clc: Answers, main: Mainloop, work: Work, config: cutlass.Constexpr):
    """Block after block into the accumulator stages, alternating, for both CTAs of the pair."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.acc_stages)
    read, number = first_answer(config), work.first
    while number >= 0:
        state = multiply_tile(cta, main, state, fill)
        fill.advance()
        number, read = next_block(clc, read, number, work, config)


@cute.jit
def multiply(
    cta: Cta,
    clc: Answers,
    op: cutlass.Constexpr,
    k_tiles: cutlass.Int32,
    work: Work,
    place: Place,
    config: cutlass.Constexpr,
):
    """One warp of each CTA waits for tensor memory; the leader's multiplies block after block for both CTAs."""
    _, tCtC = accumulator_stages(cta.tmem, op, config)
    if place.half == 0:
        main = make_mainloop(cta, tCtC, op, k_tiles, config)
        multiply_blocks(cta, clc, main, work, config)


# %% [markdown]
# The warps that store are the last to read an answer: when C of a block is on its way. That is when the next one is
# asked for, while the block after is being multiplied.


# %%
@cute.jit
def store(
    cta: Cta,
    clc: Answers,
    c: TmaTensor,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    work: Work,
    place: Place,
    config: cutlass.Constexpr,
):
    """Four warps of each CTA: fetch and store its rows of block after block."""
    epi = begin_epilogue(cta, c, copies, op, config)
    fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)
    read, number = first_answer(config), work.first
    while number >= 0:
        m, n = work_tile(number, work, place, config)
        store_tile(cta.acc_pipe, fetch, epi, (m * PAIR + place.half, n), config)
        fetch.advance()
        number, read = next_block(clc, read, number, work, config)
    end_epilogue(cta, epi)


# %% [markdown]
# ## The kernel
#
# A third count of arrivals joins those of [the page before](two_cta_gemm.ipynb). An answer is read when one thread of
# each warp that reads it has arrived at the *first* CTA's barrier: in every CTA the warp that loads and the four that
# store, in every leader the warp that multiplies, and once the warp that asks.


# %%
@cute.jit
def make_answers(barriers: cute.Pointer, answers: cute.Pointer, config: cutlass.Constexpr) -> Answers:
    """Set up the barriers of the answers, and wait for the cluster: all barriers are there."""
    every_cta, every_pair = EPILOGUE_WARPS + 1, 1  # warps that read an answer
    read_by = config.cluster * every_cta + config.cluster // PAIR * every_pair + 1
    asked = pipeline.PipelineClcFetchAsync.create(
        barrier_storage=barriers,
        num_stages=max(config.answers, 1),
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, read_by),
        tx_count=ANSWER_BYTES,
        cta_layout_vmnk=cute.make_layout((PAIR, config.pairs_m, config.pairs_n, 1)),
    )
    return Answers(asked, answers)


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory, the answers first, and set up the barriers: the cluster has all when it returns."""
    smem, stages = SmemAllocator(), 2 * (config.stages + config.acc_stages)
    answers = smem.allocate_array(cutlass.Int128, max(config.answers, 1), byte_alignment=16)
    barriers = smem.allocate_array(cutlass.Int64, stages + 2 * max(config.answers, 1))
    freed = smem.allocate_array(cutlass.Int64, 1)
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    sA, sB, sC = allocate_tiles(smem, layouts, dtype, dtype)
    tmem = shared_tmem(tmem_address, freed)
    pipe, acc_pipe = make_pipelines(barriers, True, config)
    return Cta(pipe, acc_pipe, tmem, sA, sB, sC), make_answers(barriers + stages, answers, config)


# %% [markdown]
# A fourth role joins the three of the page before.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    c: TmaTensor,  # (M, N)
    dtype: cutlass.Constexpr,
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A pair of CTAs computes its share of the tiles of C, one after the other.

    Who waits for whom, with the CONFIG of blackwell/persistent_clc_gemm:

    warps  do             wait for              signal
    0      tcgen05.ld     accumulator full[2]   accumulator empty[2]: 1
           TMA stores     answer full[1]        answer empty[1]: 1
                          mbarrier[1]
    1-3    tcgen05.ld     accumulator full[2]   accumulator empty[2]: 1 a warp
                          answer full[1]        answer empty[1]: 1 a warp
    4      tcgen05.mma    full[6]               empty[6]: 1 when its MMAs are over, in 2 CTAs
                          accumulator empty[2]  accumulator full[2]: 1 when its MMAs are over, in 2 CTAs
                          answer full[1]        answer empty[1]: 1
    5      TMA loads      empty[6]              full[6]: 1, expects 65536 bytes
                          answer full[1]        answer empty[1]: 1
    6      asks for work  answer full[1]        answer full[1]: 1, expects 16 bytes, in 2 CTAs; bytes, in 2 CTAs
                          answer empty[1]       answer empty[1]: 1

    full[6]: 1 arrival and its bytes a phase.
    empty[6]: 1 arrival a phase.
    accumulator full[2]: 1 arrival a phase.
    accumulator empty[2]: 8 arrivals a phase.
    answer full[1]: 1 arrival and its bytes a phase.
    answer empty[1]: 12 arrivals a phase.
    mbarrier[1]: 32 arrivals a phase.
    bar 1, 160 threads: warps 0-4 meet.
    bar 2, 128 threads: warps 0-3 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work, place = work_of_cta(c.coords.shape, config)
    cta, clc = set_up(layouts, dtype, config)
    gA = cute.local_tile(a.coords, (config.cta_m, config.tile_k), (None, None))  # (M / 2, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.cta_n, config.tile_k), (None, None))  # (N / 2, TILE_K, n, k)
    if warp_idx == TMA_WARP:
        masks = multicast_masks(place, config)
        load_a = partition_load(a.atom, gA, cta.sA, place.n, config.pairs_n, masks[0])
        load_b = partition_load(b.atom, gB, cta.sB, place.m, config.pairs_m, masks[1])
        produce(cta.pipe, clc, (load_a, load_b), work, place, config)
    elif warp_idx == MMA_WARP:
        multiply(cta, clc, op, cute.size(gA, mode=[3]), work, place, config)
    elif warp_idx == ASKING_WARP:  # is there if anything is asked for
        if cutlass.const_expr(config.answers > 0):
            if cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) == 0:
                ask(clc, work, config)
    else:
        store(cta, clc, c, copies, op, work, place, config)


# %% [markdown]
# ## The launch
#
# As many clusters as there are blocks, however many SMs there are: `Config.persistent` says so to the imported `gemm`.
# Those that find a place begin, and most of the others never will: they are cancelled, and their work is done by those
# that run. Only `static` counts SMs.


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (VARIANTS[call.variant],), (call.mnk, call.strides, call.sms)


GEMM = Gemm(compile_for, prepare, gpus=((10, 0), (10, 3)), needs="tcgen05", variants=VARIANTS, padded=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: how the next tile is found.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 10.0 or
    10.3. Any M, N, K >= 1 within that: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## Static against dynamic
#
# The first picture's rules for 1024 blocks, an 8192 x 8192 product, on 74 places, the pairs of a GPU with 148 SMs. How
# much longer does it take than the work divided by the places, from when they can begin?

# %% tags=["lab"]
import numpy as np
from IPython.display import Markdown

from cookbook.lab import pipeline as interleavings
from cookbook.lab import results_table, table

PLACES, BLOCKS = 74, (8192 // CONFIG.tile_m) * (8192 // CONFIG.tile_n)
rng = np.random.default_rng(0)
varied = 1 + 0.1 * rng.standard_normal(BLOCKS).clip(-2, 2)
slow = 1 + 0.1 * rng.random(PLACES)
together, late = [0.0] * PLACES, [0.0] * (PLACES - 18) + [4.0] * 18
CASES = {
    "all begin together, all blocks alike": (together, lambda place, block: 1.0),
    "blocks differ (10 % deviation)": (together, lambda place, block: varied[block]),
    "places differ (up to 10 % slower)": (together, lambda place, block: slow[place]),
    "18 places are free 4 blocks later": (late, lambda place, block: 1.0),
}
rows = []
for case, (begins, took) in CASES.items():
    ends = {}
    for name, config in VARIANTS.items():
        done = schedule(BLOCKS, begins, took, config.answers)
        work = sum(end - start for place in done for start, end, _ in place)
        ideal = (work + sum(begins)) / PLACES
        ends[name] = max(end for place in done for _, end, _ in place) / ideal
    rows.append([case, *(f"{end:.3f}" for end in ends.values())])
Markdown(table(["of the ideal, by these rules", *VARIANTS], rows))

# %% [markdown] tags=["lab"]
# Where all places are alike the dynamic schedule gains nothing: the last round is not full, and takes as long as a full
# one. Where they differ, the free places do the work of the late ones. `two ahead` keeps for a slow place what a fast
# one could have had. It is for short tiles: where the epilogue ends late in the next block, one answer comes too late.
#
# ## The messages
#
# The messages of one cluster that does three blocks, as level *pipeline* finds them in CuTe's trace of this kernel: for
# each warp how often it waits for an answer's barrier, and how often it tells the first CTA that it has read one.

# %% tags=["lab"]
kernel_run = interleavings.Run(packaged, "sm_100a", cutlass.BFloat16, CONFIG)
problem = interleavings.Problem(3 * CONFIG.tile_m, CONFIG.tile_n, CONFIG.tile_k, CONFIG.cluster)
programs = next(kernel_run.clusters(problem))[1].warps
asks = [e for e in programs[0, ASKING_WARP] if e.what == "load"]
full = {barrier for e in asks for barrier in e.barriers}  # one in each CTA
(empty,) = {e.barrier for e in programs[0, ASKING_WARP] if e.what == "wait" and e.barrier not in full}
names = {MMA_WARP: "multiplies", TMA_WARP: "loads", ASKING_WARP: "asks"}
rows = []
for (cta, warp), events in programs.items():
    waits = sum(e.what == "wait" and e.barrier in full for e in events)
    given_back = sum(e.what == "arrive" and e.barrier == empty for e in events)
    rows.append([f"CTA {cta}, warp {warp}", names.get(warp, "stores"), str(waits), str(given_back)])
readers = sum(given_back != "0" for *_, given_back in rows)
assert readers == CONFIG.cluster * (EPILOGUE_WARPS + 1) + CONFIG.cluster // PAIR + 1
heads = ["", "", "waits for answers", "gives back"]
Markdown(f"{len(asks)} requests, {readers} readers of each answer:\n\n" + table(heads, rows, right=2))

# %% [markdown] tags=["lab"]
# Three blocks take three requests: two are granted, the third says that there is no more. The warps of the second CTA
# that neither load nor store read nothing. If the count of readers included them, the second request would wait for
# ever. If it left out all of the second CTA, an answer could overwrite one that is still to be read.
#
# ## Check
#
# Every level looks at every variant; layouts, descriptors and data path are those of the page before. Level *pipeline*
# follows one outcome of the requests: the first cluster of the grid is granted all others, the last one none. What
# needs a Blackwell GPU says *not checked*: **this kernel has not run on hardware**.

# %% tags=["lab"]
lab.check_cells("blackwell/persistent_clc_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# Nothing has been timed so far: that takes a Blackwell GPU.

# %% tags=["lab", "open"]
lab.compare("blackwell/persistent_clc_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("blackwell/persistent_clc_gemm"))

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "next_block_from_words": (
        "next_block",
        """\
        cta, _, _, yes = cute.arch.clc_response(answers + read.index)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()  # all lanes have read it
        with cute.arch.elect_one():
            asked.consumer_release(read)""",
        "        raise NotImplementedError",
        (
            "The answer has come. Read it, and give its place back: one arrival of the warp, by a lane that was "
            "elected. The hardware writes the next answer there, by the async proxy."
        ),
        (
            "`cute.arch.clc_response(pointer)` returns the three indices of a CTA, and whether there is one.",
            ("Between the read and the arrival stand two things: a fence of the proxy, and a barrier of the warp."),
        ),
        (
            "The fence orders this lane's read before the hardware's next write. The barrier brings all lanes "
            "there before one of them gives the place back."
        ),
    ),
    "next_block_at_risk": (
        "next_block",
        """\
        cute.arch.sync_warp()  # all lanes have read it
""",
        "",
        '"The lanes of a warp run in step, so a warp needs no barrier of its own."',
        (
            "Which lane gives the answer back?",
            "Since Volta each lane has a program counter of its own: one may still be before the load.",
        ),
        (
            "One elected lane gives the answer back, while another may not have read it yet. `sync_warp` makes "
            "all lanes get there first."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("blackwell/persistent_clc_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A schedule that is made while the kernel runs costs one warp, 16 bytes of shared memory and two barriers. The kernel
# no longer needs to know how many SMs there are, nor that they are its own. It cannot fix a last round that is not
# full: for that the tiles must be smaller, or K must be split.
#
# Next: [operands in eight bits, with scale factors](mxfp8_gemm.ipynb).
