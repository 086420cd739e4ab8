# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "A swizzle: TMA writes whole rows"
#     claim: >-
#       With three bits of swizzle a tile for wgmma keeps 128 bytes of a row together. TMA writes it in an eighth of the
#       lines, and no longer holds up the first GEMM.
#     track: hopper
#     order: 20
#     builds_on: hopper/first_gemm
#     pays: {at: [4096, 4096, 4096], over: hopper/first_gemm}
#     compared_with: hopper/first_gemm
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory, one stage -> wgmma -> stores of single elements
#     instructions: [UTMALDG.2D, HGMMA, SYNCS, WARPGROUP.DEPBAR, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
# ---

# %% [markdown]
# # A swizzle: TMA writes whole rows
#
# **Claim.** One thing changes from [the first GEMM](first_gemm.ipynb): its tiles are
# [swizzled](../../docs/glossary.md#swizzle). 128 bytes of a row stay together, so TMA writes a tile in an eighth of the
# lines. Tile, stage, loop and stores stay as they are.
#
# TMA fetches a tile in *boxes*. A box writes one contiguous run of each row, so it is as wide as the layout keeps a row
# together. Left of each picture stands the matrix with one box framed, right the lines of shared memory, 128 bytes
# each. In the first GEMM's layout a box is 16 bytes wide, and a tile is eight of them. With three bits it is 128 bytes
# wide, and a tile is one.

# %% tags=["lab"]
from IPython.display import Markdown, display

from cookbook import draw, lab

display(draw.tma_box(shape=(12, 96), origin=(0, 0), box=(8, 8), bits=0, title="No swizzle: boxes of 16-byte lines"))
display(draw.tma_box(shape=(12, 96), origin=(0, 0), box=(8, 64), bits=3, title="3 bits: a box of 128-byte lines"))

# %% [markdown]
# ## The layout
#
# The atom grows from `(8, 8):(8, 1)` to `(8, 64):(64, 1)`: eight rows of 128 bytes. Unswizzled, the eight chunks of one
# column would lie in the same four [banks](../foundations/bank_conflicts.ipynb). `make_swizzle(3, 4, 3)` moves chunk
# *c* of row *r* to slot *c XOR r*, so they lie in all 32. The same object tells TMA its swizzle mode, and the
# descriptors of `wgmma` theirs.
#
# Everything else is imported from the first GEMM: the loop, the loads, the MMA.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.hopper.first_gemm import Config as FirstConfig
from cookbook.recipes.hopper.first_gemm import (
    SmemLayouts,
    mainloop,
    partition_load,
    tiled_copies,
    tiled_mma,
)

# %% [markdown]
# ## The sizes
#
# They are [the first GEMM's](first_gemm.ipynb). Only the alignment of the tiles differs: see [the kernel](#the-kernel).


# %%
@dataclass(frozen=True)
class Config(FirstConfig):
    """Sizes of the kernel, in elements or counts: those of the first GEMM."""

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes  # the barriers, padded to the tiles' alignment


CONFIG = Config()


# %%
def smem_atom(dtype) -> cute.ComposedLayout:
    """Eight rows of 128 bytes; chunk c of row r lies in slot c XOR r."""
    width = 1024 // dtype.width
    return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, width), stride=(width, 1)))


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B: atoms down the rows, then along K, then over the stages."""
    atom, c = smem_atom(dtype), config
    return SmemLayouts(
        a=cute.tile_to_shape(atom, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(atom, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
    )


# %% [markdown]
# ## The kernel
#
# A swizzle acts on addresses. `make_swizzle(3, 4, 3)` XORs address bits 7 to 9 into bits 4 to 6. So a tile must begin
# at a multiple of 1024 bytes, else address and layout disagree, and the product is wrong without a word. That is the
# one line of the kernel that changes. The functions below are the first GEMM's lines under names, because [the next
# page](multistage_gemm.ipynb) imports them.


# %%
class Cta(NamedTuple):
    """Values that the threads of a CTA share."""

    full: cute.Pointer  # a barrier for each stage: its bytes have arrived
    sA: cute.Tensor  # (M, K, STAGE)
    sB: cute.Tensor  # (N, K, STAGE)


@cute.jit
def set_up(layouts: SmemLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr) -> Cta:
    """Allocate the stages and a barrier for each; one arrival, and its bytes, complete a phase."""
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, config.stages)
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    if tidx == 0:
        for stage in cutlass.range_constexpr(config.stages):
            cute.arch.mbarrier_init(full + stage, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    return Cta(full, sA, sB)


@cute.jit
def tile_of_cta(shape_mn: tuple, config: cutlass.Constexpr):
    """This CTA's tile of C, counted down the columns."""
    cta, _, _ = cute.arch.block_idx()
    tiles_m = cute.ceil_div(shape_mn[0], config.tile_m)
    return cta % tiles_m, cta // tiles_m


def accumulators(mma: cute.TiledMma, config) -> cute.Tensor:
    """This thread's accumulators, (MMA, MMA_M, MMA_N), all zero; `wgmma` adds to them."""
    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    acc.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    return acc


def descriptors(mma: cute.TiledMma, cta) -> tuple[cute.Tensor, cute.Tensor]:
    """The descriptors of A's and B's blocks: (MMA, MMA_M or MMA_N, MMA_K, STAGE)."""
    tidx, _, _ = cute.arch.thread_idx()
    thr = mma.get_slice(tidx)
    return mma.make_fragment_A(thr.partition_A(cta.sA)), mma.make_fragment_B(thr.partition_B(cta.sB))


@cute.jit
def store(mma: cute.TiledMma, acc: cute.Tensor, mC: cute.Tensor, where: tuple, config: cutlass.Constexpr):
    """Round the accumulators of tile `where`, and store those that lie inside mC (M, N)."""
    tidx, _, _ = cute.arch.thread_idx()
    tile, thr = (config.tile_m, config.tile_n), mma.get_slice(tidx)
    gC, cC = (cute.local_tile(x, tile, where) for x in (mC, cute.make_identity_tensor(mC.shape)))  # (M, N)
    tCgC, tCcC = thr.partition_C(gC), thr.partition_C(cC)  # (MMA, MMA_M, MMA_N)
    for i in cutlass.range(cute.size(acc), unroll_full=True):
        if cute.elem_less(tCcC[i], mC.shape):
            tCgC[i] = acc[i].to(mC.element_type)


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
    loads = load_a, load_b
    mainloop(mma, acc, tCrA[None, None, None, 0], tCrB[None, None, None, 0], loads, cta.full, config.stage_bytes)
    store(mma, acc, mC, (tile_m, tile_n), config)


# %% [markdown]
# ## The launch and `matmul`
#
# `gemm` makes the layouts once, and takes the kernel as an argument: the next page hands over its own.


# %%
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), (lda, ldb, ldc), layouts = mnk, strides, smem_layouts(pA.dtype, config)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    load = cpasync.CopyBulkTensorTileG2SOp()
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in layouts)
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mB, b_stage, (config.tile_n, config.tile_k))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    launcher = kernel(tma_a, mA, tma_b, mB, mC, layouts, config)
    launcher.launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


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
# The check is of the cells above: give `allocate_tensor` 128 in place of 1024, or swizzle two bits, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/swizzled_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# For one k-tile, the clocks of an SM by [the rules of the first GEMM](first_gemm.ipynb#the-prediction): the lines of
# TMA's boxes (one a clock, assumed), their sectors from L2 (64 bytes a clock), multiply-adds (2048 a clock), and 800
# clocks until a load arrives (assumed). With one stage they add up; CTAs that share an SM divide the sum, down to the
# busiest unit.

# %% tags=["lab"]
from cookbook.lab import by_tma, results_table, step_table, table

BEFORE, HERE = "hopper/first_gemm", "hopper/swizzled_gemm"
steps = {name: by_tma(name) for name in (BEFORE, HERE)}
rows = [[unit, *(f"{found[unit]:.0f}" for found in steps.values())] for unit in steps[HERE]]
Markdown(table(["clocks for a k-tile", *(f"`{name}`" for name in steps)], rows))

# %% [markdown] tags=["lab"]
# TMA no longer sets the pace. The sum of one CTA's waits does, and several CTAs on an SM share it. The predicted gain:

# %% tags=["lab", "gains"]
predicted = {HERE: round(steps[BEFORE]["a k-tile takes"] / steps[HERE]["a k-tile takes"], 2)}
predicted

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, the first GEMM among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("hopper/swizzled_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/swizzled_gemm"))

# %% tags=["lab"]
counted = {name: found["a k-tile takes"] for name, found in steps.items()}
Markdown(step_table(HERE, predicted[HERE], counted))

# %% [markdown] tags=["lab"]
# The gain is as predicted; the clocks are not. (They are those of the run: its median clock, all SMs taken to be busy.)
# Both kernels take more of them than counted, by nearly the same factor. The factor cancels in the ratio, partly by
# luck. One clock for a line of TMA is assumed, and 64 bytes a clock from L2 are what an SM gets alone. [The next
# page](multistage_gemm.ipynb#what-the-prediction-left-out) says what L2 gives all of them together.

# %% [markdown] tags=["lab"]
# ## Exercises
#
# The last cell of this section puts your definitions into the kernel and follows it: to each element of C, and in any
# order of its warps. Or paste the cells into a copy (`cookbook copy hopper/swizzled_gemm my.py`), then `cookbook
# exercise my.py`.
#
# **Finish it.** CTAs that run together should share rows of A *and* columns of B ([thread-block
# swizzle](../foundations/thread_block_swizzle.ipynb) says why). Count the tiles in groups.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def tile_in_groups(shape_mn: tuple, config: cutlass.Constexpr):
    """Exercise 1, finish it: as `tile_of_cta`, but in groups of 8 rows of tiles: down the 8, then to the next column,
    and at the right edge to the next group. The last group may be lower."""
    raise NotImplementedError


# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# How many tiles does a full group have? The CTA's number divided by it is the group; the rest is its number
# inside.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The last group has `tiles_m - first` rows, if that is less than 8. `cutlass.min` takes the smaller of two numbers
# that the kernel computes.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# @cute.jit
# def tile_in_groups(shape_mn: tuple, config: cutlass.Constexpr):
#     cta, _, _ = cute.arch.block_idx()
#     tiles_m = cute.ceil_div(shape_mn[0], config.tile_m)
#     tiles_n = cute.ceil_div(shape_mn[1], config.tile_n)
#     first = cta // (8 * tiles_n) * 8
#     height = cutlass.min(tiles_m - first, 8)
#     inside = cta - first * tiles_n
#     return first + inside % height, inside // height
# ```
#
# </details>
#
# **Find the bug.** With these accumulators C is zero if K is at most 48, and wrong for every larger K.


# %% tags=["lab", "open", "exercise"]
def accumulators_at_risk(mma: cute.TiledMma, config) -> cute.Tensor:
    """Exercise 2, find the bug: as `accumulators`."""
    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    acc.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, False)
    return acc


EXERCISES = {"tile_in_groups": "tile_of_cta", "accumulators_at_risk": "accumulators"}  # by name: what it replaces

# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# A k-tile is four k-blocks of 16. What does the second `wgmma` do with what the first one has left in the accumulators?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# `wgmma` is D = A * B or D = A * B + D; a field of the instruction says which. Who makes the first D zero?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Each `wgmma` begins at zero, so only the last k-block is left. It has to add, to accumulators that are zero at first.
#
# ```python
# def accumulators_at_risk(mma: cute.TiledMma, config) -> cute.Tensor:
#     acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
#     acc.fill(0.0)
#     mma.set(warpgroup.Field.ACCUMULATE, True)
#     return acc
# ```
#
# </details>

# %% tags=["lab"]
lab.check_exercises("hopper/swizzled_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# The swizzle gains for another reason than [on Ampere](../ampere/swizzled_gemm.ipynb): `wgmma` had no conflicts before.
# TMA writes longer lines now. [Swizzle modes](swizzle_modes_gemm.ipynb) compares all four.
#
# A CTA still loads, waits, multiplies and waits. Next: [several stages](multistage_gemm.ipynb).
