# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "The first GEMM: one stage, no swizzle"
#     claim: >-
#       A GEMM for tensor cores that is right for every shape is five steps: load, wait, fetch, multiply, store. It is
#       slow, and what it waits for can be counted before it runs.
#     track: ampere
#     order: 5
#     builds_on: null
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async -> shared memory, row by row -> ldmatrix -> mma.sync -> stores of single elements
#     instructions: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, cp.async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async"}
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-load-instruction-ldmatrix"}
#       - {title: "PTX ISA, mma.m16n8k16", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"}
# ---

# %% [markdown]
# # The first GEMM: one stage, no swizzle
#
# **Claim.** A GEMM for tensor cores that is right for every shape is five steps: load, wait, fetch, multiply, store. It
# is slow. The rows of a tile lie one after another in shared memory, with *no swizzle*: `ldmatrix` meets bank conflicts
# and takes eight times the wavefronts that it needs. It has *one [stage](../../docs/glossary.md#stage)*, too: a CTA
# loads, then multiplies. Two CTAs share an SM and hide each other's waits, as long as bank conflicts cost more. This
# page counts what both cost before anything runs.
#
# What one stage costs once the conflicts are gone: the tensor cores wait for each load; with three, loads run ahead.
# (Times are illustrative.)

# %% tags=["lab"]
from IPython.display import Markdown, display

from cookbook import draw, lab

display(draw.pipeline(stages=1, k_tiles=4, load_time=3, title="One stage"))
display(draw.pipeline(stages=3, k_tiles=4, load_time=3, title="Three stages"))

# %% [markdown]
# ## The plan
#
# You need CUDA, and what the [primer](../primer/hello_kernel.ipynb) teaches of CuTe. C (M, N) is A (M, K) times B
# (N, K) transposed; rows of A and of B are contiguous along K. Each CTA computes one tile of C, 128 x 128 elements. It
# goes along K in steps of 64, the *[k-tiles](../../docs/glossary.md#k-tile)*:
#
# 1. all threads copy 128 x 64 elements of A and of B from global to shared memory, 16 bytes at a time (`cp.async`);
# 2. all threads wait until everything has arrived;
# 3. each warp takes its part into registers (`ldmatrix`) and multiplies it (`mma.sync`), 16 of K at a time;
# 4. all threads wait until everything has been read: the next k-tile goes to the same place.
#
# At the end each thread rounds its accumulators and stores those that lie inside C.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator


@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 128  # columns of C per CTA
    tile_k: int = 64  # 128 bytes: a row of a tile in shared memory
    stages: int = 1  # pairs of A and B tiles in shared memory
    warps_m: int = 2  # the warps stand in a warps_m x warps_n grid over the tile of C
    warps_n: int = 4

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def smem_bytes(self) -> int:
        return 2 * self.stages * (self.tile_m + self.tile_n) * self.tile_k


CONFIG = Config()

# %% [markdown]
# ## The layout
#
# Element (row, k) of a tile lies at `row * tile_k + k`: the layout `(rows, tile_k):(tile_k, 1)`, which is what a
# `__shared__` array of rows has in CUDA. The third mode counts stages; there is one, so its index is always 0.
#
# `make_composed_layout` puts a [swizzle](../../docs/glossary.md#swizzle) on top of the layout. `make_swizzle(0, 4, 3)`
# moves 0 bits: it changes nothing, and stands here so that [a later page](swizzled_gemm.ipynb) has a number to change.
# One function makes the layouts; the kernel uses them, and so do the checks.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


def row_by_row(rows: int, config: Config) -> cute.ComposedLayout:
    """A tile of `rows` x tile_k, each row behind the one before, and no swizzle."""
    stride = (config.tile_k, 1, rows * config.tile_k)
    outer = cute.make_layout((rows, config.tile_k, config.stages), stride=stride)
    return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, outer)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B; C goes from registers to global memory."""
    return SmemLayouts(row_by_row(config.tile_m, config), row_by_row(config.tile_n, config))


# Wavefronts above the ideal that each instruction of a copy takes, and why: the checks compare.
CONFLICTS = 28, "4 matrices, and the 8 rows of each begin in the same bank: 8 wavefronts instead of 1"
EXPECTED_EXCESS = {"s2r_a": CONFLICTS, "s2r_b": CONFLICTS}

# %% [markdown] tags=["lab"]
# Eight rows of A, 16 bytes a cell. Each cell says in which bank it begins. A matrix of `ldmatrix` is eight rows of 16
# bytes: one *column* of this picture, and all eight are in the same four of the 32 banks.

# %% tags=["lab"]
from cookbook.layouts import evaluate

smem = evaluate(smem_layouts, cutlass.Float16, CONFIG)
draw.bank_grid(smem.a, label="bank", title="Row by row: the bank of each chunk")

# %% [markdown]
# So shared memory serves the eight rows one after the other: eight
# [wavefronts](../../docs/glossary.md#wavefront), where eight different banks would be served in one.
#
# ## Who multiplies, who copies
#
# Each function below makes one CuTe object; [copies and MMAs](../primer/copies_and_mmas.ipynb) explains the kinds.
#
# * `tiled_mma`: `mma.sync.m16n8k16` is an instruction of a warp. Eight warps stand in a grid of 2 x 4 over the tile of
#   C, so each has 64 x 32 of it. [`permutation_mnk`](../../docs/glossary.md#permutation-mnk) says how far all warps
#   reach in one go: 32 rows, 64 columns, 16 of K. An instruction has 8 columns, so a warp has two of them in each step,
#   32 columns apart: warps alternate every 8 columns. One `ldmatrix.x4` loads B for both.
# * `g2s`, global to shared: `cp.async` copies 16 bytes without a register. Eight threads share a row of 128 bytes.
# * `s2r`, shared to registers: one `ldmatrix.x4` brings four 8 x 8 matrices to a warp. `make_tiled_copy_A` derives from
#   the MMA which lane needs what.


# %%
def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """mma.sync m16n8k16, repeated over the warps; 16 columns a warp and step."""
    op = warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16))
    warps = cute.make_layout((config.warps_m, config.warps_n, 1))
    return cute.make_tiled_mma(op, warps, permutation_mnk=(16 * config.warps_m, 16 * config.warps_n, 16))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    g2s_a: cute.TiledCopy  # cp.async, 16 bytes a thread
    g2s_b: cute.TiledCopy
    s2r_a: cute.TiledCopy  # ldmatrix.x4: four 8x8 matrices a warp
    s2r_b: cute.TiledCopy


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """All copies; A and B are loaded in the same way."""
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)  # cp.async.cg: kept in L2 alone
    cp_async = cute.make_copy_atom(past_l1, dtype, num_bits_per_copy=128)
    per_row = config.tile_k // 8  # threads that share a row, 8 elements each
    threads = cute.make_layout((config.threads // per_row, per_row), stride=(per_row, 1))
    g2s = cute.make_tiled_copy_tv(cp_async, threads, cute.make_layout((1, 8)))
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    mma = tiled_mma(dtype, config)
    return TiledCopies(g2s, g2s, cute.make_tiled_copy_A(ldmatrix, mma), cute.make_tiled_copy_B(ldmatrix, mma))


# %% [markdown]
# ## Loading with a guard
#
# The sides of the matrix need not be multiples of the tile's. So each `cp.async` has a
# [predicate](../../docs/glossary.md#predicate): does the matrix have the first of its eight elements? (Then it has all
# eight: K is a multiple of 8.) If not, `cp.async` reads nothing and writes *zeros*. Zeros along K add nothing to a sum.
#
# In `Load`, below, `coords` has the shape of `src`, and its elements are coordinates (row, k) of the matrix. It takes
# no memory: CuTe computes each where it is used. The comments name the modes: `CPY` is what one instruction copies, 8
# elements; `CPY_M`, `CPY_K` say how often a thread repeats it down the rows and along K; `k` counts k-tiles. The names
# at the end are the primer's. (`make_load` has no decorator: it only makes tensors, so plain Python will do.)


# %%
class Load(NamedTuple):
    """One thread's part in loading an operand."""

    copy: cute.TiledCopy
    src: cute.Tensor  # (CPY, CPY_M, CPY_K, k) global memory, tAgA or tBgB
    dst: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE) shared memory, tAsA or tBsB
    coords: cute.Tensor  # (CPY, CPY_M, CPY_K, k) coordinates (row, k) in the matrix
    shape: cute.Shape  # of the matrix, (rows, K)


def make_load(
    copy: cute.TiledCopy, mX: cute.Tensor, sX: cute.Tensor, tile: cute.Tile, index: cutlass.Int32, tidx: cutlass.Int32
) -> Load:
    """This thread's part of tile `index` of the rows of mX (rows, K), for all k-tiles; sX (rows, K, STAGE)."""
    gX = cute.local_tile(mX, tile, (index, None))  # (rows, K, k): None takes all the k-tiles of these rows
    cX = cute.local_tile(cute.make_identity_tensor(mX.shape), tile, (index, None))
    thr = copy.get_slice(tidx)
    return Load(copy, thr.partition_S(gX), thr.partition_D(sX), thr.partition_S(cX), mX.shape)


@cute.jit
def load_tile(load: Load, k_tile: cutlass.Int32):
    """Issue this thread's copies of a k-tile into stage 0; zeros for what lies outside of the matrix."""
    coords = load.coords[0, None, None, k_tile]  # (CPY_M, CPY_K): of the first element of each copy
    inside = cute.make_rmem_tensor((1, *coords.shape), cutlass.Boolean)
    for i in cutlass.range_constexpr(cute.size(coords)):
        inside[i] = cute.elem_less(coords[i], load.shape)  # row < rows and k < K
    cute.copy(load.copy, load.src[None, None, None, k_tile], load.dst[None, None, None, 0], pred=inside)


# %% [markdown]
# ## The main loop
#
# Three lines wait. `cp_async_wait_group(0)` waits for this *thread's* own copies, `sync_threads` (`__syncthreads`) for
# all threads: together they say that the k-tile is there. The last `sync_threads` says that everybody has read it.
#
# `Operand` is a warp's way from shared memory to the tensor cores. `regs` are the registers as `mma.sync` names them,
# `into` the *same* registers as `ldmatrix` names them (`retile`). Each [k-block](../../docs/glossary.md#k-block) of 16
# takes two copies and one multiplication.


# %%
class Operand(NamedTuple):
    """A warp's way from shared memory to the tensor cores, for A or B."""

    copy: cute.TiledCopy  # ldmatrix
    smem: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE) shared memory, tXsA or tXsB
    into: cute.Tensor  # (CPY, CPY_M, k-blocks): registers as ldmatrix fills them, tXrA
    regs: cute.Tensor  # (MMA, MMA_M, k-blocks): the same registers as mma takes them, tCrA


def make_operand(copy: cute.TiledCopy, sX: cute.Tensor, regs: cute.Tensor, tidx: cutlass.Int32) -> Operand:
    """This thread's part of an operand. sX: (rows, K, STAGE); regs: as `mma` takes them."""
    thr = copy.get_slice(tidx)
    return Operand(copy, thr.partition_S(sX), thr.retile(regs), regs)


@cute.jit
def mainloop(mma: cute.TiledMma, acc: cute.Tensor, a: Operand, b: Operand, load_a: Load, load_b: Load):
    """Multiply all k-tiles into `acc`."""
    for k_tile in cutlass.range(cute.size(load_a.src, mode=[3]), unroll=1):
        load_tile(load_a, k_tile)
        load_tile(load_b, k_tile)
        cute.arch.cp_async_commit_group()  # this thread's copies so far are a group
        cute.arch.cp_async_wait_group(0)  # none of its groups is on the way any more
        cute.arch.sync_threads()  # and none of any other thread's: the k-tile is there
        for k in cutlass.range_constexpr(cute.size(a.regs, mode=[2])):
            cute.copy(a.copy, a.smem[None, None, k, 0], a.into[None, None, k])
            cute.copy(b.copy, b.smem[None, None, k, 0], b.into[None, None, k])
            cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)
        cute.arch.sync_threads()  # everybody has read it: the next one may overwrite it


# %% [markdown]
# ## The kernel
#
# | line | what it does |
# |---|---|
# | `cta % tiles_m`, `cta // tiles_m` | which tile of C is this CTA's, counted down the columns |
# | `allocate_tensor` | shared memory, 128 bytes aligned, as a tensor; `outer` is the layout, `inner` the swizzle |
# | `local_tile(mC, ...)` | this CTA's tile of C, and the same tile of a tensor of coordinates |
# | `partition_C` | this thread's elements of it: `tCgC` to store to, `tCcC` their coordinates |
# | `make_rmem_tensor`, `fill` | as many float32 accumulators in registers, all zero |
# | `make_fragment_A` | registers for this thread's part of a k-tile of A |
# | `elem_less(..., mC.shape)` | the guard: row < M and column < N |
#
# The grid has one dimension: CUDA's second one ends at 65,535. The last loop is unrolled, because registers have no
# addresses: each index must be known when the kernel is compiled.


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
    cta, _, _ = cute.arch.block_idx()
    tiles_m = cute.ceil_div(mC.shape[0], config.tile_m)
    tile_m, tile_n = cta % tiles_m, cta // tiles_m
    layouts, copies, mma = smem_layouts(dtype, config), tiled_copies(dtype, config), tiled_mma(dtype, config)

    smem = SmemAllocator()
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 128, swizzle=layouts.a.inner)  # (M, K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 128, swizzle=layouts.b.inner)  # (N, K, STAGE)
    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile_m, tidx)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile_n, tidx)

    tile, where = (config.tile_m, config.tile_n), (tile_m, tile_n)
    gC, cC = (cute.local_tile(x, tile, where) for x in (mC, cute.make_identity_tensor(mC.shape)))  # (M, N)
    thr = mma.get_slice(tidx)
    tCgC, tCcC = thr.partition_C(gC), thr.partition_C(cC)  # (MMA, MMA_M, MMA_N)
    acc = cute.make_rmem_tensor(tCgC.shape, cutlass.Float32)
    acc.fill(0.0)
    tCrA = mma.make_fragment_A(thr.partition_A(sA)[None, None, None, 0])  # (MMA, MMA_M, MMA_K)
    tCrB = mma.make_fragment_B(thr.partition_B(sB)[None, None, None, 0])  # (MMA, MMA_N, MMA_K)
    a, b = make_operand(copies.s2r_a, sA, tCrA, tidx), make_operand(copies.s2r_b, sB, tCrB, tidx)
    mainloop(mma, acc, a, b, load_a, load_b)

    for i in cutlass.range(cute.size(acc), unroll_full=True):
        if cute.elem_less(tCcC[i], mC.shape):
            tCgC[i] = acc[i].to(dtype)


# %% [markdown]
# ## The launch and `matmul`
#
# `gemm` is host code. It makes tensors of addresses, sizes and strides, all of them run-time values, so that one
# compiled kernel serves all shapes. `cute.assume(stride, divby=8)` promises rows that are multiples of 16 bytes apart;
# without it CuTe refuses a copy of 16 bytes.
#
# `Gemm`, which all recipes share, is the host side. It checks the operands (`whole`: K is whole chunks of 16 bytes) and
# compiles a kernel once. For each kind of call it keeps the compiled kernel with its launch arguments: a *plan*.


# %%
def row_major(pointer: cute.Pointer, rows, columns, stride, divby: int) -> cute.Tensor:
    """A matrix (rows, columns) whose rows begin `stride` elements apart, a multiple of `divby`."""
    return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(cute.assume(stride, divby=divby), 1)))


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
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (m, n, k), (lda, ldb, ldc), dtype = mnk, strides, pA.dtype
    mA, mB, mC = row_major(pA, m, k, lda, 8), row_major(pB, n, k, ldb, 8), row_major(pC, m, n, ldc, 1)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(mA, mB, mC, dtype, config).launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (config or CONFIG,), options=options)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG,), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", whole=True)


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
# This needs no GPU. *Layout*: what lies where, and what each copy costs. *Model*: a product computed in numpy along the
# layouts. *Product*: the kernel itself, followed to C on ragged shapes; each element is stored once, and is the right
# sum. *Pipeline*: its waits, in any order of its warps. *Compiled*: real machine code. The check is of the cells above:
# drop the second `sync_threads`, or `pred=inside`, and check again.

# %% tags=["lab"]
lab.check_cells("ampere/first_gemm", shapes=[(200, 333, 64)], dtypes=["float16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# What does one k-tile take of an SM, in clocks?
#
# * **ldmatrix, cp.async**: wavefronts, counted from the layouts; shared memory serves one a clock.
# * **L2**: the bytes of A and B; it gives an SM 64 a clock.
# * **mma.sync**: the tensor cores do 2048 multiply-adds a clock (Hopper, NVIDIA's figure).
# * **latency**: 800 clocks until a load arrives (assumed).
#
# With one stage a CTA does them one after the other, so they *add up*. But an SM holds several CTAs, as many as its
# registers and shared memory allow. While one waits another one works. So a k-tile takes the sum divided by their
# number, and never less than the busiest unit needs. With several stages nothing waits for the latency or for L2, and
# what the warps do themselves still adds up.

# %% tags=["lab"]
from cookbook import load
from cookbook.lab import copy_wavefronts, ctas_of, results_table, table

TENSOR_RATE, L2_PORT, LATENCY = 2048, 64, 800  # of an SM: multiply-adds and bytes a clock; clocks


def demands(smem, copies, config) -> dict[str, float]:
    """Clocks of an SM for one k-tile, by unit."""
    clocks = {"ldmatrix": 0.0, "cp.async": 0.0}
    for name in ("s2r_a", "s2r_b", "g2s_a", "g2s_b"):
        counted = copy_wavefronts(name, getattr(copies, name), getattr(smem, name[-1]))
        unit = "ldmatrix" if name.startswith("s2r") else "cp.async"
        clocks[unit] += sum(each * n for (each, _), n in counted.items())
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    return clocks | {"L2": 2 * (m + n) * k / L2_PORT, "mma.sync": m * n * k / TENSOR_RATE, "latency": LATENCY}


def a_k_tile(of: dict[str, float], stages: int, ctas: int) -> float:
    """Clocks of an SM for one k-tile, `ctas` CTAs sharing it."""
    busiest = max(of["ldmatrix"] + of["cp.async"], of["L2"], of["mma.sync"])  # both go through shared memory
    own = of["ldmatrix"] + of["cp.async"] + of["mma.sync"]
    return max(busiest, (own if stages > 1 else sum(of.values())) / ctas)


def swizzled(dtype):
    """The layouts of this page with 3 bits of swizzle in place of 0."""
    swizzle = cute.make_swizzle(3, 4, 3)
    return SmemLayouts(*(cute.make_composed_layout(swizzle, 0, x.outer) for x in smem_layouts(dtype, CONFIG)))


NEXT, dtype = "ampere/smem_gemm", cutlass.Float16
after, copies, ours = load(NEXT), evaluate(tiled_copies, dtype, CONFIG), ctas_of("ampere/first_gemm", "float16")
then = *(evaluate(made, dtype, after.CONFIG) for made in (after.smem_layouts, after.tiled_copies)), after.CONFIG
steps = {  # layouts, copies, sizes, and how many CTAs share an SM
    "this page, one CTA alone": (smem, copies, CONFIG, 1),
    "this page": (smem, copies, CONFIG, ours),
    "3 bits of swizzle": (evaluate(swizzled, dtype), copies, CONFIG, ours),
    "3 stages, 128 x 256": (*then, ctas_of(NEXT, "float16")),
}
rate, columns = {}, []
for name, (*layouts, config, ctas) in steps.items():
    asked = demands(*layouts, config)
    clocks = a_k_tile(asked, config.stages, ctas)
    rate[name] = asked["mma.sync"] / clocks
    columns.append([*(f"{x:.0f}" for x in (*asked.values(), ctas, clocks)), f"{rate[name]:.0%}"])
labels = [*asked, "CTAs an SM", "**a k-tile takes**", "of the tensor cores' rate"]
Markdown(table(["clocks", *steps], [list(row) for row in zip(labels, *columns, strict=True)]))

# %% [markdown] tags=["lab"]
# This kernel waits for `ldmatrix`, which takes eight times the wavefronts that it needs. The latency of its one stage
# hides behind the conflicts, because an SM holds two CTAs. Once the conflicts are gone, it shows.
#
# ## What each next step buys
#
# The next two pages change one thing each: [the tile](wide_tile_gemm.ipynb), then [the swizzle](swizzled_gemm.ipynb).
# [Shared-memory layouts](smem_gemm.ipynb) is the last column; it measures the swizzle alone, too. Its gain here:

# %% tags=["lab"]
{NEXT: round(rate["3 stages, 128 x 256"] / rate["this page"], 2)}

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, timed in one run on a GPU.

# %% tags=["lab"]
lab.compare("ampere/first_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("ampere/first_gemm"))

# %% [markdown] tags=["lab"]
# The ceiling here is that of `mma.sync`. On Hopper it is lower than the tensor cores' rate, of which the prediction
# is a part. [The ladder](../../docs/benchmarks.md#step-by-step) has the next step's gain, predicted and measured.

# %% [markdown] tags=["lab"]
# ## Exercises
#
# Each is a definition of this kernel in another form. The last cell of this section puts it into the kernel and follows
# the kernel: to each element of C, and in any order of its warps. Or paste the cells into a copy (`cookbook copy
# ampere/first_gemm my.py`), then `cookbook exercise my.py`.
#
# **Finish it.** `mainloop` waits for A and B together. Fragments of A could be fetched while B is still on the way.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def mainloop_in_two(mma: cute.TiledMma, acc: cute.Tensor, a: Operand, b: Operand, load_a: Load, load_b: Load):
    """Exercise 1, finish it: as `mainloop`, but A and B are a group of copies each. Fetch all fragments of A as soon as
    A is there, then wait for B, then fetch its fragments and multiply."""
    raise NotImplementedError


# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# `cp_async_commit_group` closes a group: call it after the copies of A, and again after those of B. In this order.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# `cp_async_wait_group(n)` waits until at most n of this thread's groups are on the way: first 1, later 0.
#
# </details>
#
# <details markdown="1"><summary>Tip 3</summary>
#
# A thread waits for its own copies alone. So a `sync_threads` follows each of the two waits, and one ends the loop.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# @cute.jit
# def mainloop_in_two(mma: cute.TiledMma, acc: cute.Tensor, a: Operand, b: Operand, load_a: Load, load_b: Load):
#     for k_tile in cutlass.range(cute.size(load_a.src, mode=[3]), unroll=1):
#         load_tile(load_a, k_tile)
#         cute.arch.cp_async_commit_group()
#         load_tile(load_b, k_tile)
#         cute.arch.cp_async_commit_group()
#         cute.arch.cp_async_wait_group(1)  # A is there
#         cute.arch.sync_threads()
#         for k in cutlass.range_constexpr(cute.size(a.regs, mode=[2])):
#             cute.copy(a.copy, a.smem[None, None, k, 0], a.into[None, None, k])
#         cute.arch.cp_async_wait_group(0)  # B too
#         cute.arch.sync_threads()
#         for k in cutlass.range_constexpr(cute.size(b.regs, mode=[2])):
#             cute.copy(b.copy, b.smem[None, None, k, 0], b.into[None, None, k])
#             cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)
#         cute.arch.sync_threads()
# ```
#
# </details>
#
# **Find the bug.** With this `load_tile` the product is right if K is a multiple of 64, for any M and N.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def load_rows(load: Load, k_tile: cutlass.Int32):
    """Exercise 2, find the bug: as `load_tile`: zeros for what lies outside of the matrix."""
    coords = load.coords[0, None, None, k_tile]  # (CPY_M, CPY_K): of the first element of each copy
    inside = cute.make_rmem_tensor((1, *coords.shape), cutlass.Boolean)
    for i in cutlass.range_constexpr(cute.size(coords)):
        inside[i] = coords[i][0] < load.shape[0]
    cute.copy(load.copy, load.src[None, None, None, k_tile], load.dst[None, None, None, 0], pred=inside)


EXERCISES = {"mainloop_in_two": "mainloop", "load_rows": "load_tile"}  # by name: the definition that it replaces

# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# Take K = 72. The second k-tile begins at column 64. Which of its columns does the matrix have, and which are copied?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# What lies past the end of a row in memory? It is added to the sum.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# It asks whether the matrix has the row. It has to ask for the column, too.
#
# ```python
# @cute.jit
# def load_rows(load: Load, k_tile: cutlass.Int32):
#     coords = load.coords[0, None, None, k_tile]
#     inside = cute.make_rmem_tensor((1, *coords.shape), cutlass.Boolean)
#     for i in cutlass.range_constexpr(cute.size(coords)):
#         inside[i] = cute.elem_less(coords[i], load.shape)
#     cute.copy(load.copy, load.src[None, None, None, k_tile], load.dst[None, None, None, 0], pred=inside)
# ```
#
# </details>

# %% tags=["lab"]
lab.check_exercises("ampere/first_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A GEMM is five steps, load, wait, fetch, multiply, store, with a guard where the matrix ends. What makes it slow can
# be counted from its layouts and its waits. Next: [a wider tile](wide_tile_gemm.ipynb), then [a
# swizzle](swizzled_gemm.ipynb).
