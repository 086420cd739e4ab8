# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "A producer warp: one warp only loads"
#     claim: >-
#       One warp asks TMA for all k-tiles, and two warpgroups only multiply. A second barrier for each stage takes the
#       place of the meeting of all warps in every k-tile.
#     track: hopper
#     order: 28
#     builds_on: hopper/wide_tile_gemm
#     pays: {at: [4096, 4096, 4096], over: hopper/wide_tile_gemm}
#     compared_with: hopper/wide_tile_gemm
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192], [8192, 8192, 512]]
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma by a warp of its own, 4 stages -> swizzled shared memory -> wgmma -> stores of single elements
#     instructions: [UTMALDG.2D, HGMMA, SYNCS, WARPGROUP.DEPBAR, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
#       - {title: "CUTLASS, efficient GEMM: warp specialization", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/efficient_gemm.html"}
# ---

# %% [markdown]
# # A producer warp: one warp only loads
#
# **Claim.** One thing changes from [the page before](wide_tile_gemm.ipynb): which warp loads. There warp 0 asks TMA for
# a k-tile, and it multiplies, too. It may ask only when all eight warps have read the stage that it fills, so all of
# them meet in each k-tile. Here a ninth warp asks TMA, and does nothing else. It waits for the stage alone, and the
# others wait for nothing but their k-tile.
#
# This is *warp specialization*: a *producer*, and *consumers*. By the count it gains nothing yet, because the tensor
# cores have work while the warps meet. All later kernels rest on it: a producer can run ahead into the next tile, while
# consumers store this one.
#
# A stage has two barriers: *full*, and new here, *empty*. (Times are illustrative.)

# %% tags=["lab"]
from cookbook import draw, lab

draw.barriers(stages=4, k_tiles=10, load_time=3)

# %% [markdown]
# The layouts, the MMA and the epilogue are imported, and so is the launch.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.hopper.first_gemm import Load, SmemLayouts, tiled_copies, tiled_mma
from cookbook.recipes.hopper.multistage_gemm import partition_load
from cookbook.recipes.hopper.swizzled_gemm import accumulators, descriptors, gemm, smem_layouts, store, tile_of_cta
from cookbook.recipes.hopper.wide_tile_gemm import Config as WideConfig

# %% [markdown]
# ## The sizes
#
# One warp more. It is no warpgroup, so the MMA is made for two of them, as before.


# %%
@dataclass(frozen=True)
class Config(WideConfig):
    """Sizes of the kernel, in elements or counts."""

    @property
    def consumer_warps(self) -> int:
        return 8  # two warpgroups, 64 rows of C each

    @property
    def threads(self) -> int:
        return 32 * self.consumer_warps + 32  # and one producer warp


CONFIG = Config()


# %% [markdown]
# ## Two barriers for each stage
#
# | barrier | says | completed by |
# |---|---|---|
# | full | the k-tile is there | the producer's one arrival, and the bytes that it announced |
# | empty | the k-tile has been read | an arrival of each consumer warp |


# %%
class Cta(NamedTuple):
    """Values that the warps of a CTA share."""

    full: cute.Pointer  # a barrier for each stage: its bytes have arrived
    empty: cute.Pointer  # and one more: every consumer warp has read it
    sA: cute.Tensor  # (M, K, STAGE)
    sB: cute.Tensor  # (N, K, STAGE)


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages and both barriers of each."""
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, config.stages)
    empty = smem.allocate_array(cutlass.Int64, config.stages)
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    if tidx == 0:
        for stage in cutlass.range_constexpr(config.stages):
            cute.arch.mbarrier_init(full + stage, 1)
            cute.arch.mbarrier_init(empty + stage, config.consumer_warps)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    return Cta(full, empty, sA, sB)


# %% [markdown]
# ## The producer
#
# k-tile *k* goes to stage *k mod 4*, and waits until the k-tile that lay there has been read. That is phase
# *k // 4 - 1* of the empty barrier. Its parity is `(k // 4 - 1) % 2`, the same as `(k // 4 + 1) % 2` in the code. For
# the first four k-tiles that is 1: no phase has ended yet, and a wait for parity 1 returns at once.
#
# The loop ends with the last k-tile asked for. It waits for no load: the consumers do.


# %%
@cute.jit
def produce(loads: tuple[Load, ...], cta: Cta, config: cutlass.Constexpr):
    """Load all k-tiles, each as soon as its stage has been read: the producer warp."""
    for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
        stage = k_tile % config.stages
        cute.arch.mbarrier_wait(cta.empty + stage, (k_tile // config.stages + 1) % 2)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(cta.full + stage, config.stage_bytes)
        for load in loads:
            cute.copy(load.atom, load.gX[None, k_tile], load.sX[None, stage], tma_bar_ptr=cta.full + stage)


# %% [markdown]
# ## The consumers
#
# They do what the page before does, with one line in place of the meeting and the load. When the `wgmma`s of the k-tile
# before are done, one thread of each warp arrives at the empty barrier of that k-tile's stage. The last k-tile needs no
# arrival: no load follows it.


# %%
@cute.jit
def consume(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    k_tiles: cutlass.Int32,
    cta: Cta,
    config: cutlass.Constexpr,
):
    """Multiply all k-tiles into `acc`. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    for k_tile in cutlass.range(k_tiles, unroll=1):
        stage = k_tile % config.stages
        cute.arch.mbarrier_wait(cta.full + stage, k_tile // config.stages % 2)  # the k-tile is there
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.gemm(mma, acc, tCrA[None, None, k, stage], tCrB[None, None, k, stage], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)  # all but this k-tile's: this warp has read the one before
        if k_tile > 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(cta.empty + (k_tile - 1) % config.stages)
    warpgroup.wait_group(0)


# %% [markdown]
# ## The kernel and `matmul`
#
# After `set_up` the two roles go their own ways, and never meet again. So no `sync_threads` may stand in a consumer's
# part: the producer would not come.


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
    """One CTA computes one tile of C.

    Who waits for whom, with the CONFIG of hopper/producer_warp_gemm:

    warps  do         wait for  signal
    0-7    wgmma      full[4]   empty[4]: 1 a warp
    8      TMA loads  empty[4]  full[4]: 1, expects 49152 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 8 arrivals a phase.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tile_m, tile_n = tile_of_cta(mC.shape, config)
    cta = set_up(layouts, mC.element_type, config)
    load_a = partition_load(tma_a, mA, cta.sA, (config.tile_m, config.tile_k), tile_m)
    load_b = partition_load(tma_b, mB, cta.sB, (config.tile_n, config.tile_k), tile_n)
    if warp_idx == config.consumer_warps:
        produce((load_a, load_b), cta, config)
    else:
        mma = tiled_mma(mC.element_type, config)
        acc, (tCrA, tCrB) = accumulators(mma, config), descriptors(mma, cta)
        consume(mma, acc, tCrA, tCrB, cute.size(load_a.gX, mode=[1]), cta, config)
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
# The check is of the cells above: let the consumers arrive before `wait_group`, or the producer wait for the other
# parity, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/producer_warp_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# Tile, stages and bytes are those of [the page before](wide_tile_gemm.ipynb#the-prediction), so by its count a k-tile
# takes as long. While the warps of that kernel meet, the `wgmma`s of a whole k-tile are queued, and the tensor cores do
# not stop. The count knows nothing of a warp that comes late to the meeting. The table below measures that: on an H200
# nothing is gained.
#
# ## Time
#
# This kernel and its peers, the page before among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("hopper/producer_warp_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table

Markdown(results_table("hopper/producer_warp_gemm"))

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "consume_at_once": (
        "consume",
        """\
        warpgroup.wait_group(1)  # all but this k-tile's: this warp has read the one before
        if k_tile > 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(cta.empty + (k_tile - 1) % config.stages)""",
        "        raise NotImplementedError",
        (
            "Let each iteration give its *own* stage back. That is shorter, and slower: between two k-tiles the "
            "tensor cores have nothing to do."
        ),
        (
            "When may a warp say that it has read the stage of this very iteration?",
            "`wait_group(0)` leaves no commit group. The arrival then needs no exception for the first k-tile.",
        ),
        (
            "The warp waits for its own commit group, and arrives at the empty barrier of the stage that it has "
            "just read."
        ),
        """\
        warpgroup.wait_group(0)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(cta.empty + stage)""",
    ),
    "produce_at_risk": (
        "produce",
        "(k_tile // config.stages + 1) % 2",
        "k_tile // config.stages % 2",
        '"Lap by lap: producer and consumers wait for the same parity."',
        (
            (
                "The empty barriers have completed no phase when the kernel begins. For which parity does a wait "
                "return then?"
            ),
            (
                "A wait for parity p returns if the phase with parity p is complete. Before phase 0, the phase of "
                "parity 1 counts as complete."
            ),
        ),
        (
            "In the first lap the producer waits for phase 0 of the empty barriers: for consumers who wait for "
            "the first k-tile. Nobody goes on."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("hopper/producer_warp_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Who loads and who multiplies are two roles now, with two barriers a stage between them. `cutlass.pipeline` packs these
# barriers, their stages and their parities into an object; [the next page](tma_wgmma_gemm.ipynb) uses it. New there are
# an epilogue through shared memory and an order of tiles for L2.
