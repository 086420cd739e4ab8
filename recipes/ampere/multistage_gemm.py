# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Several stages: cp.async runs ahead of mma.sync"
#     claim: >-
#       With three stages cp.async loads two k-tiles ahead while the warps multiply a third. So loads and
#       multiplications overlap; counted clocks promise more of it than the GPU gives.
#     track: ampere
#     order: 8
#     builds_on: ampere/swizzled_gemm
#     pays: {at: [4096, 4096, 4096], over: ampere/swizzled_gemm}
#     compared_with: ampere/swizzled_gemm
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async, 3 stages -> swizzled shared memory -> ldmatrix -> mma.sync -> stores of single elements
#     instructions: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, LDGDEPBAR, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, cp.async.wait_group", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-group-cp-async-wait-all"}
#       - {title: "CUTLASS, efficient GEMM: pipelining", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/efficient_gemm.html"}
# ---

# %% [markdown]
# # Several stages: cp.async runs ahead of mma.sync
#
# **Claim.** One thing changes from [the page before](swizzled_gemm.ipynb): shared memory has room for three k-tiles,
# each a *[stage](../../docs/glossary.md#stage)*. While the warps multiply one k-tile, `cp.async` brings the next two.
# The kernel before has one CTA on an SM, and this CTA did nothing while a load was on its way.
#
# The same k-tiles with one stage and with three. (Times are illustrative.)

# %% tags=["lab"]
from IPython.display import Markdown, display

from cookbook import draw, lab

display(draw.pipeline(stages=1, k_tiles=4, load_time=2, title="One stage"))
display(draw.pipeline(stages=3, k_tiles=4, load_time=2, title="Three stages"))

# %% [markdown]
# Layouts, copies, fragments and stores are imported, and so is the launch. The layouts count the stages already.

# %%
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import Load, Operand, make_load, tiled_copies, tiled_mma
from cookbook.recipes.ampere.swizzled_gemm import gemm, make_operands, smem_layouts, store, tile_of_cta
from cookbook.recipes.ampere.wide_tile_gemm import Config as WideConfig

# %% [markdown]
# ## The sizes
#
# A stage of A and B is 48 KiB: three of them need 144 KiB, which an SM of a data-center GPU has. Other GPUs have 99 KiB
# for a CTA. There the tile is half as wide, and a stage 32 KiB.


# %%
@dataclass(frozen=True)
class Config(WideConfig):
    """Sizes of the kernel, in elements or counts."""

    stages: int = 3  # pairs of A and B tiles: one is multiplied, two are on their way


CONFIG = Config()


def config_for(arch: str) -> Config:
    """The sizes that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    small = arch.rstrip("af") in ("sm_86", "sm_89", "sm_120", "sm_121")
    return replace(CONFIG, tile_n=128, warps_n=2) if small else CONFIG


# %% [markdown]
# ## Loading a k-tile
#
# `load_tile` is the first GEMM's, with a stage to load to. k-tile number *k* goes to stage *k mod 3*. Near the end
# there is no k-tile left to ask for.
#
# How does a thread know which of its copies have arrived? It closes what it has issued into a *group*. Groups arrive in
# order, and a thread can wait until all but its latest *n* have. So each k-tile is one group, and an empty group stands
# for a k-tile that there is not: then the count is the same in every iteration.


# %%
@cute.jit
def load_tile(load: Load, k_tile: cutlass.Int32, stage: cutlass.Int32):
    """Issue this thread's copies of a k-tile into `stage`; zeros for what lies outside of the matrix."""
    coords = load.coords[0, None, None, k_tile]  # (CPY_M, CPY_K): of the first element of each copy
    inside = cute.make_rmem_tensor((1, *coords.shape), cutlass.Boolean)
    for i in cutlass.range_constexpr(cute.size(coords)):
        inside[i] = cute.elem_less(coords[i], load.shape)  # row < rows and k < K
    cute.copy(load.copy, load.src[None, None, None, k_tile], load.dst[None, None, None, stage], pred=inside)


@cute.jit
def load_k_tile(loads: tuple[Load, ...], k_tile: cutlass.Int32, config: cutlass.Constexpr):
    """Ask for a k-tile, if there is one, into stage `k_tile % stages`; close a group, empty or not."""
    if k_tile < cute.size(loads[0].src, mode=[3]):
        for load in loads:
            load_tile(load, k_tile, k_tile % config.stages)
    cute.arch.cp_async_commit_group()


# %% [markdown]
# ## The main loop
#
# Before the loop two k-tiles are asked for. Then each iteration does four things:
#
# 1. wait for this thread's copies of its k-tile. Two groups are on their way, and all but the latest have to be there:
#    `wait_group(1)`;
# 2. meet the other threads. That says two things: *their* copies of this k-tile are there, and everybody has read the
#    k-tile before;
# 3. ask for the k-tile two ahead. It goes to the stage of the k-tile before, which is free now;
# 4. fetch fragments and multiply, as before.
#
# One barrier does for both, where the kernel with one stage needs two.


# %%
@cute.jit
def mainloop(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: Operand,
    b: Operand,
    loads: tuple[Load, ...],
    config: cutlass.Constexpr,
):
    """Multiply all k-tiles into `acc`."""
    ahead = config.stages - 1
    for k_tile in cutlass.range_constexpr(ahead):
        load_k_tile(loads, k_tile, config)
    for k_tile in cutlass.range(cute.size(loads[0].src, mode=[3]), unroll=1):
        stage = k_tile % config.stages
        cute.arch.cp_async_wait_group(ahead - 1)  # this thread's part of the k-tile is there,
        cute.arch.sync_threads()  # and everybody's; everybody has read the one before
        load_k_tile(loads, k_tile + ahead, config)
        for k in cutlass.range_constexpr(cute.size(a.regs, mode=[2])):
            cute.copy(a.copy, a.smem[None, None, k, stage], a.into[None, None, k])
            cute.copy(b.copy, b.smem[None, None, k, stage], b.into[None, None, k])
            cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)


# %% [markdown]
# ## The kernel and `matmul`
#
# The kernel differs from the page before in its call of `mainloop`.


# %%
@cute.kernel
def kernel(
    mA: cute.Tensor,  # (M, K)
    mB: cute.Tensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One CTA computes one tile of C."""
    tidx, _, _ = cute.arch.thread_idx()
    tile_m, tile_n = tile_of_cta(mC.shape, config)
    layouts, copies, mma = smem_layouts(dtype, config), tiled_copies(dtype, config), tiled_mma(dtype, config)

    smem = SmemAllocator()
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (M, K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (N, K, STAGE)
    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile_m, tidx)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile_n, tidx)

    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    acc.fill(0.0)
    a, b = make_operands(mma, copies, sA, sB, tidx)
    mainloop(mma, acc, a, b, (load_a, load_b), config)
    store(mma, acc, mC, (tile_m, tile_n), config)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch),), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", whole=True)


# %%
def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    cp.async moves 16 bytes at a time: K is a multiple of 8, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Any M, N, K >= 1 within that. Needs compute capability 8.0 or later. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out)


# %% [markdown] tags=["lab"]
# ## Check
#
# The check is of the cells above: ask for the next k-tile before `sync_threads`, or wait for all but the latest two
# groups, and check again.

# %% tags=["lab"]
lab.check_cells("ampere/multistage_gemm", shapes=[(200, 333, 136)], dtypes=["float16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# For one k-tile, the clocks of an SM by [the rules of the first GEMM](first_gemm.ipynb#the-prediction). With three
# stages nothing waits for the latency or for L2. What the warps do themselves still adds up, because a warp fetches
# fragments and then multiplies them.

# %% tags=["lab"]
from cookbook.lab import by_cp_async, results_table, step_table, table

BEFORE, HERE = "ampere/swizzled_gemm", "ampere/multistage_gemm"
steps = {name: by_cp_async(name) for name in (BEFORE, HERE)}
rows = [[unit, *(f"{found[unit]:.0f}" for found in steps.values())] for unit in steps[HERE]]
Markdown(table(["clocks for a k-tile", *(f"`{name}`" for name in steps)], rows))

# %% [markdown] tags=["lab"]
# The tile is of the same size, so clocks compare. The predicted gain:

# %% tags=["lab", "gains"]
predicted = {HERE: round(steps[BEFORE]["a k-tile takes"] / steps[HERE]["a k-tile takes"], 2)}
predicted

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, the page before among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("ampere/multistage_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("ampere/multistage_gemm"))

# %% tags=["lab"]
counted = {name: found["a k-tile takes"] for name, found in steps.items()}
Markdown(step_table(HERE, predicted[HERE], counted))

# %% [markdown] tags=["lab"]
# It gains less than predicted, and the clocks say where: this kernel takes more of them than counted. A part of that is
# known. The count leaves out the epilogue, which [the next page](staged_epilogue_gemm.ipynb#time) makes shorter. What
# else it waits for has not been measured by itself.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "mainloop_loading_last": (
        "mainloop",
        """\
        load_k_tile(loads, k_tile + ahead, config)
        for k in cutlass.range_constexpr(cute.size(a.regs, mode=[2])):
            cute.copy(a.copy, a.smem[None, None, k, stage], a.into[None, None, k])
            cute.copy(b.copy, b.smem[None, None, k, stage], b.into[None, None, k])
            cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)""",
        "        raise NotImplementedError",
        "Ask for the next k-tile *behind* the multiplication. Does the loop need another barrier?",
        (
            (
                "To which stage does k-tile `k_tile + ahead` go? Who read it last, and what has each thread "
                "passed since then?"
            ),
            "Count the groups that are closed when iteration k waits: are they as many as before?",
        ),
        (
            "No other barrier: the stage is that of the k-tile before, and the barrier of this iteration says "
            "that everybody has read it. The copies begin later, so they hide less."
        ),
        """\
        for k in cutlass.range_constexpr(cute.size(a.regs, mode=[2])):
            cute.copy(a.copy, a.smem[None, None, k, stage], a.into[None, None, k])
            cute.copy(b.copy, b.smem[None, None, k, stage], b.into[None, None, k])
            cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)
        load_k_tile(loads, k_tile + ahead, config)""",
    ),
    "mainloop_at_risk": (
        "mainloop",
        "cute.arch.cp_async_wait_group(ahead - 1)",
        "cute.arch.cp_async_wait_group(ahead)",
        '"`ahead` k-tiles are on their way, so `ahead` groups may be left."',
        (
            "When iteration 0 waits, how many groups are closed? Which of them is its k-tile?",
            "`wait_group(n)` waits until all but the latest n groups have arrived.",
        ),
        (
            "Two groups are closed, and `wait_group(2)` waits for none of them: the k-tile of this very iteration "
            "may still be on its way."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("ampere/multistage_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Loads and multiplications of a CTA overlap now, with one barrier a k-tile. `ldmatrix` and `mma.sync` still alternate
# in each warp; [a later page](ldmatrix_gemm.ipynb) lets them overlap, too. After the last k-tile single elements of C
# go out, which is what a product of few k-tiles waits for. Next: [an epilogue through shared
# memory](staged_epilogue_gemm.ipynb).
