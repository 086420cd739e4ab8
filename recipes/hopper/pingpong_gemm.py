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
#     pays: {at: [8192, 8192, 512], over: cooperative}
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
# launch. Layouts, multicast, the persistent loop and the stores are imported from [the page
# before](persistent_gemm.ipynb).

# %%
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.hopper.multicast_gemm import Load, multicast_masks, partition_load
from cookbook.recipes.hopper.persistent_gemm import Config as PersistentConfig
from cookbook.recipes.hopper.persistent_gemm import (
    Cta,
    Mainloop,
    Scheduler,
    first_k_tile,
    gemm,
    last_k_tile,
    load_tile,
    make_mainloop,
    make_scheduler,
    next_k_tile,
    set_up,
    smem_layouts,
    state_at,
    store,
    tiled_copies,
    work_tile,
)
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, TmaTensor, tiled_mma

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
class Config(PersistentConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_n: int = 192  # columns of C of one tile
    pingpong: bool = True  # a warpgroup has a tile of its own; False: both share one
    pdl: bool = True  # this kernel's launch may overlap the end of the one before, and the next one's the end of this

    @property
    def warpgroups(self) -> int:
        return 1 if self.pingpong else 2  # that share a work tile


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
    subtiles = config.tile_m // 64 * (config.tile_n // config.epi_n) // config.warpgroups  # of a warpgroup
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
# As before: K-major tiles in 128-byte rows, and C in epilogue subtiles of 64 x 64, two buffers for each warpgroup. What
# changes is `config.warpgroups`, how many of them share a tile. It is the number of times that the MMA is repeated down
# M; if it is one, a warpgroup goes down all the rows of its tile itself, 64 at a time.

# %% [markdown]
# ## The tile scheduler: whose tile is it?
#
# The tiles of a CTA come one after the other, as in any persistent kernel, and their place in this sequence is the
# **tile iteration**. Iteration 0 is warpgroup 0's, iteration 1 is warpgroup 1's, iteration 2 is 0's again. The producer
# does not care: it loads tile after tile.
#
# The queue of stages needs no more than that either: iteration `t` begins at **k-tile index** `t * k_tiles`, and
# `state_at` says the stage and the phase to wait for. So a warpgroup that skips every other tile iteration carries no
# state over; it computes where it is.
#
# ## The producer
#
# One warp and one queue, as before. Its last line but one is new, and comes up again below.


# %%
@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, loads: tuple[Load, Load], scheduler: Scheduler, config: cutlass.Constexpr):
    """Load all work tiles of this CTA: the stages are kept full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    k_tiles = cute.size(loads[0].gX, mode=[2])
    for iteration in cutlass.range(scheduler.count, unroll=1):
        tile = work_tile(scheduler, iteration, config)
        state = load_tile(pipe, loads, state, tile, k_tiles, iteration, config)
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
ORDER_BARRIER = 3  # the first of two named barriers, 3 and 4; 1 and 2 are those of the epilogues


@cute.jit
def multiply_tile(
    main: Mainloop, iteration: cutlass.Int32, count: cutlass.Int32, group: cutlass.Int32, config: cutlass.Constexpr
):
    """Multiply the k-tiles of this tile iteration, one of `count`, into `main.acc`."""
    read, release = state_at(iteration * main.k_tiles, config), state_at(iteration * main.k_tiles, config)
    if cutlass.const_expr(config.pingpong):
        if iteration > 0:
            pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + group, num_threads=256).arrive_and_wait()
    read = first_k_tile(main, read)
    for _ in cutlass.range(main.k_tiles - 1, unroll=1):
        read, release = next_k_tile(main, read, release)
    if cutlass.const_expr(config.pingpong):
        if iteration + 1 < count:  # all is issued: the other one is next
            pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + 1 - group, num_threads=256).arrive()
    last_k_tile(main, release)


# %% [markdown]
# ## The consumers
#
# `store` is imported: epilogue subtile after epilogue subtile through two buffers, as before. A warpgroup that has all
# rows of a tile sends the subtiles of its first 64 rows, then those of the next. Nothing in them concerns the other
# warpgroup, which multiplies all the while: the barrier is of these 128 threads.


# %%
@cute.jit
def consume(
    cta: Cta,
    op: cutlass.Constexpr,
    c: TmaTensor,
    scheduler: Scheduler,
    k_tiles: cutlass.Int32,
    r2s_c: cute.TiledCopy,
    config: cutlass.Constexpr,
):
    """Multiply and store, every tile, or every other one. c: the subtiles of the whole of C, (64, EPI_N, m, n)."""
    tidx, _, _ = cute.arch.thread_idx()
    group = cute.arch.make_warp_uniform(tidx // 128)
    main = make_mainloop(cta, op, tidx % config.consumer_threads, k_tiles, config)
    down, across = config.tile_m // 64, config.tile_n // config.epi_n  # subtiles of a tile
    own, step = (group, 2) if config.pingpong else (0, 1)
    for iteration in cutlass.range(own, scheduler.count, step, unroll=1):
        m, n = work_tile(scheduler, iteration, config)
        multiply_tile(main, iteration, scheduler.count, group, config)
        store(main.acc, cta.sC, c, (m * down, n * across), r2s_c, group, config)
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
# shares it: `make_pipeline` counts `config.consumer_threads`, those that share a tile.


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
    """A CTA computes its share of the tiles of C, one after the other.

    Who waits for whom, with the CONFIG of hopper/pingpong_gemm:

    warps  do          wait for  signal
    0-7    wgmma       full[4]   empty[4]: 1 a warp, in 2 CTAs
           TMA stores
    8      TMA loads   empty[4]  full[4]: 1, expects 40960 bytes; bytes, in 2 CTAs

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 8 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    bar 2, 128 threads: warps 4-7 meet.
    bar 3, 256 threads: warps 0-3 meet; warps 4-7 only arrive.
    bar 4, 256 threads: warps 4-7 meet; warps 0-3 only arrive.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    producer = config.threads // 32 - 4  # the first warp of the last warpgroup
    scheduler = make_scheduler(c.coords.shape, config)
    if warp_idx == producer:
        for atom in (a.atom, b.atom, c.atom):
            cpasync.prefetch_descriptor(atom)
    cta = set_up(layouts, dtype, config)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (None, None))  # (TILE_M, TILE_K, m, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (None, None))  # (TILE_N, TILE_K, n, k)
    gC = cute.local_tile(c.coords, (64, config.epi_n), (None, None))  # (64, EPI_N, m, n)

    if cutlass.const_expr(config.pdl):
        cute.arch.griddepcontrol_wait()  # the kernel before has ended: from here on global memory may be touched
    if warp_idx >= producer:
        cute.arch.setmaxregister_decrease(REGISTERS[0])
        if warp_idx == producer:
            masks = multicast_masks(scheduler.rank, config)
            load_a = partition_load(a.atom, gA, cta.sA, scheduler.rank[1], config.cluster_n, masks[0])
            load_b = partition_load(b.atom, gB, cta.sB, scheduler.rank[0], config.cluster_m, masks[1])
            produce(cta.pipe, (load_a, load_b), scheduler, config)
    else:
        cute.arch.setmaxregister_increase(REGISTERS[1])
        consume(cta, op, TmaTensor(c.atom, gC), scheduler, cute.size(gA, mode=[3]), r2s_c, config)


# %% [markdown]
# ## The launch
#
# `gemm` is [the page before](persistent_gemm.ipynb)'s: as many clusters as there is room for, or work. With
# `config.pdl` it asks for the overlap with the kernel *before*.


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
    variant: one of VARIANTS: the tile, who shares it, and how the launch overlaps the one before.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


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

from cookbook.lab import records, results_table, table

KS = (512, 1024, 2048, 8192)


def gains(times: dict[str, float]) -> dict[str, float]:
    """Return how many times as fast as `cooperative` each variant is."""
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

# %% tags=["lab"]
lab.check_cells("hopper/pingpong_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

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
# [A later page](tile_heuristics.ipynb) counts before it chooses.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "multiply_tile_by_name": (
        "multiply_tile",
        """\
        if iteration > 0:
            pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + group, num_threads=256).arrive_and_wait()
    read = first_k_tile(main, read)
    for _ in cutlass.range(main.k_tiles - 1, unroll=1):
        read, release = next_k_tile(main, read, release)
    if cutlass.const_expr(config.pingpong):
        if iteration + 1 < count:  # all is issued: the other one is next
            pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + 1 - group, num_threads=256).arrive()""",
        """\
        raise NotImplementedError
    read = first_k_tile(main, read)
    for _ in cutlass.range(main.k_tiles - 1, unroll=1):
        read, release = next_k_tile(main, read, release)""",
        (
            "A barrier has the number of the warpgroup that waits at it. Let it have the number of the warpgroup "
            "that arrives without waiting. Write the lines before and after the multiplication."
        ),
        (
            "What one warpgroup waits at, the other one arrives at: both lines change.",
            "The very first tile waits for nobody. After the very last tile nobody waits.",
        ),
        "Warpgroup g arrives at `ORDER_BARRIER + g`, and waits at the other number.",
        """\
        if iteration > 0:
            pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + 1 - group, num_threads=256).arrive_and_wait()
    read = first_k_tile(main, read)
    for _ in cutlass.range(main.k_tiles - 1, unroll=1):
        read, release = next_k_tile(main, read, release)
    if cutlass.const_expr(config.pingpong):
        if iteration + 1 < count:
            pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + group, num_threads=256).arrive()""",
    ),
    "multiply_tile_at_risk": (
        "multiply_tile",
        "if iteration + 1 < count:",
        "if iteration < count:",
        '"Hand over after each tile: a rule without an exception is easier to read."',
        (
            "Which iteration is the last one? Who waits after it?",
            (
                "An arrival at which nobody waits stays in the barrier. What does a barrier with half of its "
                "arrivals mean at the end of the kernel?"
            ),
        ),
        (
            "After the last tile 128 threads arrive at a barrier that expects 256, and nobody comes: the kernel "
            "ends within a phase of a named barrier."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("hopper/pingpong_gemm")

# %% [markdown] tags=["lab"]
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
