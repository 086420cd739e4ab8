# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "A swizzle: ldmatrix without bank conflicts"
#     claim: >-
#       Three bits of swizzle put the eight rows that ldmatrix reads at once into different banks: one wavefront instead
#       of eight, and shared memory is no longer what the kernel waits for most.
#     track: ampere
#     order: 7
#     builds_on: ampere/wide_tile_gemm
#     pays: {at: [4096, 4096, 4096], over: ampere/wide_tile_gemm}
#     compared_with: ampere/wide_tile_gemm
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async -> swizzled shared memory, one stage -> ldmatrix -> mma.sync -> stores of single elements
#     instructions: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-load-instruction-ldmatrix"}
#       - {title: "Lei Mao, CuTe Swizzle", url: "https://leimao.github.io/blog/CuTe-Swizzle/"}
# ---

# %% [markdown]
# # A swizzle: ldmatrix without bank conflicts
#
# **Claim.** Three bits change from [the page before](wide_tile_gemm.ipynb): `make_swizzle(0, 4, 3)` becomes
# `make_swizzle(3, 4, 3)`. The eight rows that `ldmatrix` reads at once lie in different
# [banks](../foundations/bank_conflicts.ipynb) now. It takes one [wavefront](../../docs/glossary.md#wavefront) where it
# took eight.
#
# Eight rows of A, 16 bytes a cell; the number is the bank in which the cell begins. A matrix of `ldmatrix` is one
# column. Before, a column was in the same four banks; here it is in all 32.

# %% tags=["lab"]
import cutlass
from IPython.display import display

from cookbook import draw, lab, load
from cookbook.layouts import evaluate

BEFORE, HERE = "ampere/wide_tile_gemm", "ampere/swizzled_gemm"
for name in (BEFORE, HERE):
    page = load(name)
    tile = evaluate(page.smem_layouts, cutlass.Float16, page.CONFIG).a
    display(draw.bank_grid(tile, label="bank", title=f"{name}: the bank of each chunk"))

# %% [markdown]
# The rest of the kernel is what it was: its copies, its loads, its main loop and its MMA are imported from [the first
# GEMM](first_gemm.ipynb), its sizes from the page before.

# %%
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import (
    Operand,
    SmemLayouts,
    mainloop,
    make_load,
    make_operand,
    row_by_row,
    row_major,
    tiled_copies,
    tiled_mma,
)
from cookbook.recipes.ampere.wide_tile_gemm import CONFIG, Config

# %% [markdown]
# ## The layout
#
# `make_swizzle(3, 4, 3)` takes three bits of an address, above the lowest 4 (16 bytes), and XORs those 3 higher into
# them. A row is 128 bytes. So bits 4 to 6 are the number of a chunk in its row, and bits 7 to 9 the number of the row:
# chunk *c* of row *r* goes to slot *c XOR (r mod 8)*. ([The XOR swizzle](../foundations/xor_swizzle.ipynb) explains why
# that frees a column.) The rows themselves stay where they are.


# %%
def swizzled_rows(rows: int, config) -> cute.ComposedLayout:
    """Rows of 128 bytes, one behind the other; chunk c of row r lies in slot c XOR (r mod 8)."""
    return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, row_by_row(rows, config).outer)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B; C goes from registers to global memory."""
    return SmemLayouts(swizzled_rows(config.tile_m, config), swizzled_rows(config.tile_n, config))


# %% [markdown]
# ## The kernel
#
# A swizzle acts on addresses. So each tile begins at a multiple of 1024 bytes: there address bits 7 to 9 are the number
# of a row, and the tile lies as drawn. (Without a swizzle 128 was enough.) The alignment of A and of B is all that
# changes in the kernel. Three parts of the first GEMM's kernel have names here, because [the next
# page](multistage_gemm.ipynb) imports them. `store` has its last lines, so the accumulators take their shape from
# `partition_shape_C`.


# %%
@cute.jit
def tile_of_cta(shape_mn: cute.Shape, config: cutlass.Constexpr):
    """This CTA's tile of C, counted down the columns."""
    cta, _, _ = cute.arch.block_idx()
    tiles_m = cute.ceil_div(shape_mn[0], config.tile_m)
    return cta % tiles_m, cta // tiles_m


def make_operands(mma: cute.TiledMma, copies, sA, sB, tidx) -> tuple[Operand, Operand]:
    """This thread's part of A and B, with registers for the fragments of a whole k-tile."""
    thr = mma.get_slice(tidx)
    tCrA = mma.make_fragment_A(thr.partition_A(sA)[None, None, None, 0])  # (MMA, MMA_M, MMA_K)
    tCrB = mma.make_fragment_B(thr.partition_B(sB)[None, None, None, 0])  # (MMA, MMA_N, MMA_K)
    return make_operand(copies.s2r_a, sA, tCrA, tidx), make_operand(copies.s2r_b, sB, tCrB, tidx)


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
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)  # (M, K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)  # (N, K, STAGE)
    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile_m, tidx)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile_n, tidx)

    acc = cute.make_rmem_tensor(mma.partition_shape_C((config.tile_m, config.tile_n)), cutlass.Float32)
    acc.fill(0.0)
    a, b = make_operands(mma, copies, sA, sB, tidx)
    mainloop(mma, acc, a, b, load_a, load_b)
    store(mma, acc, mC, (tile_m, tile_n), config)


# %% [markdown]
# ## The launch and `matmul`
#
# `gemm` is the first GEMM's, but for the kernel, which it takes as an argument: the next page hands over its own.


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
    (m, n, k), (lda, ldb, ldc), dtype = mnk, strides, pA.dtype
    mA, mB, mC = row_major(pA, m, k, lda, 8), row_major(pB, n, k, ldb, 8), row_major(pC, m, n, ldc, 1)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(mA, mB, mC, dtype, config).launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (kernel, config or CONFIG), options=options)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG,), (call.mnk, call.strides)


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
# The check is of the cells above: swizzle two bits, not three, and check again.

# %% tags=["lab"]
lab.check_cells("ampere/swizzled_gemm", shapes=[(200, 333, 64)], dtypes=["float16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# For one k-tile, the clocks of an SM by [the rules of the first GEMM](first_gemm.ipynb#the-prediction): wavefronts of
# `ldmatrix` and `cp.async`, bytes from L2 (64 a clock), multiply-adds (2048 a clock), and 800 clocks until a load
# arrives (assumed). With one stage, and one CTA on an SM, they add up.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import by_cp_async, results_table, step_table, table

steps = {name: by_cp_async(name) for name in (BEFORE, HERE)}
rows = [[unit, *(f"{found[unit]:.0f}" for found in steps.values())] for unit in steps[HERE]]
Markdown(table(["clocks for a k-tile", *(f"`{name}`" for name in steps)], rows))

# %% [markdown] tags=["lab"]
# The conflicts were most of the time. Now the waits, for L2 and for its latency, are the largest part. The predicted
# gain:

# %% tags=["lab", "gains"]
predicted = {HERE: round(steps[BEFORE]["a k-tile takes"] / steps[HERE]["a k-tile takes"], 2)}
predicted

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, the page before among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("ampere/swizzled_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("ampere/swizzled_gemm"))

# %% tags=["lab"]
counted = {name: found["a k-tile takes"] for name, found in steps.items()}
Markdown(step_table(HERE, predicted[HERE], counted))

# %% [markdown] tags=["lab"]
# Where one cost is most of the time, counting it is enough.

# %% [markdown] tags=["lab"]
# ## Exercises
#
# Each is this kernel's `store` in another form. The last cell of this section puts it into the kernel and follows the
# kernel: to each element of C, and in any order of its warps. Or paste the cells into a copy (`cookbook copy
# ampere/swizzled_gemm my.py`), then `cookbook exercise my.py`.
#
# **Finish it.** `store` asks of each element whether its row *and* its column are inside. But a thread's elements lie
# in few rows, and it asks about each of them again and again.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def store_by_rows(mma: cute.TiledMma, acc: cute.Tensor, mC: cute.Tensor, where: tuple, config: cutlass.Constexpr):
    """Exercise 1, finish it: as `store`, but ask once for each row of the thread, then for the columns alone."""
    raise NotImplementedError


# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# The accumulators are `(MMA, MMA_M, MMA_N)`, and `MMA` is `(2, 2)`: two columns side by side, then two rows, 8
# apart. `MMA_M` counts blocks of 16 rows, `MMA_N` blocks of 8 columns.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# So `tCcC[(0, half), m, 0][0]` is a row of this thread. All elements `[(j, half), m, n]` have it. Unroll the loops
# with `cutlass.range_constexpr`: registers have no addresses.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# One question for each `half` and `m`.
#
# ```python
# @cute.jit
# def store_by_rows(mma: cute.TiledMma, acc: cute.Tensor, mC: cute.Tensor, where: tuple, config: cutlass.Constexpr):
#     tidx, _, _ = cute.arch.thread_idx()
#     tile, thr = (config.tile_m, config.tile_n), mma.get_slice(tidx)
#     gC, cC = (cute.local_tile(x, tile, where) for x in (mC, cute.make_identity_tensor(mC.shape)))
#     tCgC, tCcC = thr.partition_C(gC), thr.partition_C(cC)
#     for m in cutlass.range_constexpr(cute.size(acc, mode=[1])):
#         for half in cutlass.range_constexpr(2):
#             if tCcC[(0, half), m, 0][0] < mC.shape[0]:
#                 for n in cutlass.range_constexpr(cute.size(acc, mode=[2])):
#                     for j in cutlass.range_constexpr(2):
#                         if tCcC[(j, half), m, n][1] < mC.shape[1]:
#                             tCgC[(j, half), m, n] = acc[(j, half), m, n].to(mC.element_type)
# ```
#
# </details>
#
# **Find the bug.** With this `store` the product is right if M is a multiple of 128 and N is a multiple of 256.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def store_at_risk(mma: cute.TiledMma, acc: cute.Tensor, mC: cute.Tensor, where: tuple, config: cutlass.Constexpr):
    """Exercise 2, find the bug: as `store`: nothing is stored outside of the matrix."""
    tidx, _, _ = cute.arch.thread_idx()
    tile, thr = (config.tile_m, config.tile_n), mma.get_slice(tidx)
    gC, cC = cute.local_tile(mC, tile, where), cute.make_identity_tensor(tile)
    tCgC, tCcC = thr.partition_C(gC), thr.partition_C(cC)
    for i in cutlass.range(cute.size(acc), unroll_full=True):
        if cute.elem_less(tCcC[i], mC.shape):
            tCgC[i] = acc[i].to(mC.element_type)


EXERCISES = {"store_by_rows": "store", "store_at_risk": "store"}  # by name: what it replaces

# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# Take M = 200, and the second tile down. Which coordinates has its first row in `cC`, and which in the matrix?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A guard compares coordinates of the *matrix* with its shape.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# `cC` counts from the corner of the tile. Its coordinates must be those of the matrix: cut the tile out of a
# tensor of coordinates as large as the matrix.
#
# ```python
# @cute.jit
# def store_at_risk(mma: cute.TiledMma, acc: cute.Tensor, mC: cute.Tensor, where: tuple, config: cutlass.Constexpr):
#     tidx, _, _ = cute.arch.thread_idx()
#     tile, thr = (config.tile_m, config.tile_n), mma.get_slice(tidx)
#     gC, cC = cute.local_tile(mC, tile, where), cute.local_tile(cute.make_identity_tensor(mC.shape), tile, where)
#     tCgC, tCcC = thr.partition_C(gC), thr.partition_C(cC)
#     for i in cutlass.range(cute.size(acc), unroll_full=True):
#         if cute.elem_less(tCcC[i], mC.shape):
#             tCgC[i] = acc[i].to(mC.element_type)
# ```
#
# </details>

# %% tags=["lab"]
lab.check_exercises("ampere/swizzled_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# The swizzle costs no byte of memory, and address arithmetic that is often folded into constants. What remains is one
# stage: load, wait, multiply, wait. Next: [several stages](multistage_gemm.ipynb).
