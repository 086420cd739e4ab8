# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "The first GEMM: TMA, wgmma, one stage"
#     claim: >-
#       On Hopper the simplest GEMM moves no operand through registers: one thread asks for the tiles, one warpgroup
#       multiplies them. What its missing swizzle and its one stage cost can be counted before it runs.
#     track: hopper
#     order: 15
#     builds_on: ampere/first_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma -> shared memory, no swizzle -> wgmma -> stores of single elements
#     instructions: [UTMALDG.2D, HGMMA, SYNCS, WARPGROUP.DEPBAR, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
#       - {title: "PTX ISA, wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions"}
#       - {title: "Gluon's tutorials, with claim, kernel and benchmark on a page", url: "https://triton-lang.org/main/getting-started/tutorials/gluon/index.html"}
# ---

# %% [markdown]
# # The first GEMM: TMA, wgmma, one stage
#
# **Claim.** On Hopper the simplest GEMM moves no operand through registers, as [on
# Ampere](../ampere/first_gemm.ipynb) it does. *One thread* asks the
# [TMA](../../docs/glossary.md#tma) unit for a tile, and TMA writes it to shared memory, with zeros where the matrix
# ends. A *[warpgroup](../../docs/glossary.md#warpgroup)*, four warps, issues [`wgmma`](../../docs/glossary.md#wgmma),
# which reads A and B from there: no thread loads them into registers.
#
# It is right for every shape, and slow. It has one [stage](../../docs/glossary.md#stage), so that it loads, waits,
# multiplies, waits; and its tiles have no [swizzle](../../docs/glossary.md#swizzle). This page counts what both cost.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab

draw.flow(
    [
        draw.Stop("mA, mB", "the matrices (M, K), (N, K)", "global memory"),
        draw.Stop("sA, sB", "one stage: 128 x 64 of each, no swizzle", "shared memory"),
        draw.Stop("acc", "128 x 128 accumulators, 128 a thread", "registers"),
        draw.Stop("mC", "what lies inside", "global memory"),
    ],
    ["TMA; an mbarrier counts the bytes", "wgmma, by descriptors", "rounded, guarded, one by one"],
    "One k-tile after the other",
)

# %% [markdown]
# ## The plan
#
# You need CUDA, and what the [primer](../primer/hello_kernel.ipynb) teaches of CuTe. C (M, N) is A (M, K) times B
# (N, K) transposed; rows of A and of B are contiguous along K. Each CTA is one warpgroup, 128 threads, and computes one
# tile of C, 128 x 128 elements. It goes along K in steps of 64, the *[k-tiles](../../docs/glossary.md#k-tile)*:
#
# 1. one thread tells a barrier how many bytes will come, and asks TMA for 128 x 64 elements of A and of B;
# 2. all threads wait at the barrier until the bytes have arrived;
# 3. the warpgroup issues its `wgmma`s and waits until they are done;
# 4. all threads meet: the next k-tile goes to the same place.
#
# At the end each thread rounds its accumulators and stores those that lie inside C.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator


@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per CTA: two wgmmas, one above the other
    tile_n: int = 128  # columns of C per CTA: those of a wgmma
    tile_k: int = 64  # 128 bytes of a row; four wgmma steps of 16
    stages: int = 1  # pairs of A and B tiles in shared memory

    @property
    def threads(self) -> int:
        return 128  # one warpgroup

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        return 128 + self.stages * self.stage_bytes  # the barrier, padded to the tiles' alignment


CONFIG = Config()

# %% [markdown]
# ## The layout
#
# The tensor core reads an operand as *core matrices*: 8 rows of 16 bytes. Without a swizzle, each is 128 contiguous
# bytes. CUTLASS calls this layout INTER. In CuTe it is the *layout atom* `(8, 8):(8, 1)`, the smallest pattern that
# repeats (not a copy or MMA atom): 8 rows, 8 elements of 16 bits each. `tile_to_shape` repeats it, down the rows first:
# 16 core matrices are a strip, and eight strips are a tile.
#
# `make_swizzle(0, 4, 3)` moves 0 bits, so that [the next page](swizzled_gemm.ipynb) has a number to change. One
# function makes the layouts, for the kernel, for TMA and for the checks.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


def smem_atom(dtype) -> cute.ComposedLayout:
    """A core matrix: eight rows of 16 bytes, one behind the other, and no swizzle."""
    width = 128 // dtype.width
    return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, cute.make_layout((8, width), stride=(width, 1)))


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B: core matrices down the rows, then along K, then over the stages. C needs no shared memory."""
    atom, c = smem_atom(dtype), config
    return SmemLayouts(
        a=cute.tile_to_shape(atom, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(atom, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
    )


# %% [markdown] tags=["lab"]
# Sixteen rows of A as they lie in memory: 128 bytes a line, a core matrix. A cell says which 16 bytes these are: their
# number in the tile, row by row, and their first (row, k). One colour is a strip of core matrices, 8 elements wide.

# %% tags=["lab"]
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.model import operand_descriptors
from cookbook.swizzle import Swizzle

smem = evaluate(smem_layouts, cutlass.BFloat16, CONFIG)
corner = evaluate(lambda: cute.tile_to_shape(smem_atom(cutlass.BFloat16), (16, 64), order=(0, 1)), element_bits=16)
draw.atom_orders({"INTER": corner}, title="16 rows of A, 128 bytes each")

# %% [markdown] tags=["lab"]
# A *[descriptor](../../docs/glossary.md#descriptor)*, 64 bits, tells `wgmma` where an operand is. Besides the address
# it holds two distances: from a core matrix to the next one along K, and to the next one down the rows. Here they are,
# read off the layout. Then the same question for a `__shared__` array of rows, as in CUDA: no descriptor says where it
# lies, because its core matrices are not contiguous.

# %% tags=["lab"]
first = operand_descriptors(smem.a, 64)[0]
print(f"along K: {first.lbo} bytes, down the rows: {first.sbo} bytes")
try:
    operand_descriptors(SmemLayout(Layout((128, 64, 1), (64, 1, 8192)), Swizzle(0, 4, 3), 16), 64)
except ValueError as refused:
    print(f"array of rows: {refused}")

# %% [markdown]
# ## Who multiplies
#
# `wgmma` m64n128k16 is an instruction of a warpgroup: 64 x 16 of A times 16 x 128 of B. The tile has 128 rows, so each
# k-block takes two.


# %%
def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """wgmma m64nNk16, A and B from shared memory, both K-major; repeated down M by the warpgroups, here one."""
    shape, smem, k_major = (64, config.tile_n, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K
    op = warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, shape, smem, k_major, k_major)
    return cute.make_tiled_mma(op, (config.threads // 128, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory: there are none."""


def tiled_copies(dtype, config) -> TiledCopies:
    """No copy: TMA fills the stage, and C goes out of registers."""
    return TiledCopies()


# %% [markdown]
# ## The loop
#
# An [mbarrier](../../docs/glossary.md#mbarrier) in shared memory counts two things: arrivals of threads, and bytes that
# TMA brings. When both are complete its *phase* ends, and the next one begins.
#
# | line | what it does |
# |---|---|
# | `make_warp_uniform(warp_idx())` | the warp's number; the compiler may rely on it being the same in all lanes |
# | `mbarrier_arrive_and_expect_tx` | one thread of warp 0 arrives, and announces the bytes |
# | `cute.copy(load.atom, ...)` | asks TMA for the tile's *boxes*, by one thread: CuTe elects it |
# | `mbarrier_wait(arrived, k_tile % 2)` | returns when the phase of this parity has ended: 0, 1, 0, ... |
# | `warpgroup.fence()` | orders `wgmma` after what the threads did with the accumulators |
# | `cute.gemm` | issues the `wgmma`s of a [k-block](../../docs/glossary.md#k-block). They run on while threads go on |
# | `commit_group`, `wait_group(0)` | closes a group of them, and waits until no group is running |
# | `sync_threads` | `__syncthreads`: all four warps have seen theirs done |
#
# Where the matrix ends TMA writes zeros, and counts their bytes. So the loop needs no guard.
#
# `Load` holds what TMA needs of an operand. A *box* is a rectangle of which TMA writes each row as one contiguous run.
# This layout keeps 16 bytes of a row together, so a box is 16 bytes wide.
#
# `group_modes(x, 0, 2)` joins rows and K to one mode. `tma_partition` cuts it into boxes: the mode `TMA` has all boxes
# of a tile. Its arguments `0` and `no_multicast` say: CTA 0 of a [cluster](../../docs/glossary.md#cluster) of one. The
# source is a tensor of coordinates, because TMA takes no addresses; `k` counts k-tiles.


# %%
class Load(NamedTuple):
    """An operand as TMA loads it."""

    atom: cute.CopyAtom
    gX: cute.Tensor  # (TMA, k) coordinates in global memory
    sX: cute.Tensor  # (TMA,) shared memory


def partition_load(atom, mX, sX, tile, index) -> Load:
    """Tile `index` of the rows of mX (rows, K), for all k-tiles; sX (rows, K, STAGE)."""
    gX = cute.local_tile(mX, tile, (index, None))  # (rows, K, k): a row of tiles
    no_multicast = cute.make_layout(1)  # a cluster of one CTA
    sX, gX = cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    tXsX, tXgX = cpasync.tma_partition(atom, 0, no_multicast, sX, gX)
    return Load(atom, tXgX, tXsX[None, 0])


@cute.jit
def mainloop(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    loads: tuple[Load, ...],
    arrived: cute.Pointer,
    stage_bytes: cutlass.Constexpr,
):
    """Multiply all k-tiles into `acc`. tCrA, tCrB are descriptors: (MMA, MMA_M or MMA_N, MMA_K)."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, stage_bytes)
            for load in loads:
                cute.copy(load.atom, load.gX[None, k_tile], load.sX, tma_bar_ptr=arrived)
        cute.arch.mbarrier_wait(arrived, k_tile % 2)  # the k-tile is there
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.gemm(mma, acc, tCrA[None, None, k], tCrB[None, None, k], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        cute.arch.sync_threads()  # everybody has read it: the next one may overwrite it


# %% [markdown]
# ## The kernel
#
# | line | what it does |
# |---|---|
# | `cta % tiles_m`, `cta // tiles_m` | which tile of C is this CTA's, counted down the columns |
# | `allocate_array`, `allocate_tensor` | shared memory for the barrier and the tiles |
# | `mbarrier_init(arrived, 1)` | one arrival for each phase. The fence shows the barrier to TMA |
# | `local_tile(mC, ...)` | this CTA's tile of C, and the same tile of a tensor of coordinates |
# | `partition_C` | this thread's elements of it: `tCgC` to store to, `tCcC` their coordinates |
# | `make_rmem_tensor`, `fill`, `ACCUMULATE` | as many float32 accumulators in registers, all zero; `wgmma` adds |
# | `make_fragment_A` | no registers here: the descriptors of A's blocks |
# | `elem_less(..., mC.shape)` | the guard: row < M and column < N |
#
# The grid has one dimension: CUDA's second one ends at 65,535. The last loop is unrolled, because registers have no
# addresses: each index must be known when the kernel is compiled.


# %%
@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    mC: cute.Tensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One CTA computes one tile of C."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    tiles_m = cute.ceil_div(mC.shape[0], config.tile_m)
    tile_m, tile_n = cta % tiles_m, cta // tiles_m
    layouts, mma = smem_layouts(dtype, config), tiled_mma(dtype, config)

    smem = SmemAllocator()
    arrived = smem.allocate_array(cutlass.Int64, 1)
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 128, swizzle=layouts.a.inner)  # (M, K, STAGE)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 128, swizzle=layouts.b.inner)  # (N, K, STAGE)
    if tidx == 0:
        cute.arch.mbarrier_init(arrived, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    load_a = partition_load(tma_a, mA, sA, (config.tile_m, config.tile_k), tile_m)
    load_b = partition_load(tma_b, mB, sB, (config.tile_n, config.tile_k), tile_n)

    tile, where = (config.tile_m, config.tile_n), (tile_m, tile_n)
    gC, cC = (cute.local_tile(x, tile, where) for x in (mC, cute.make_identity_tensor(mC.shape)))  # (M, N)
    thr = mma.get_slice(tidx)
    tCgC, tCcC = thr.partition_C(gC), thr.partition_C(cC)  # (MMA, MMA_M, MMA_N)
    acc = cute.make_rmem_tensor(tCgC.shape, cutlass.Float32)
    acc.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    tCrA = mma.make_fragment_A(thr.partition_A(sA))[None, None, None, 0]  # (MMA, MMA_M, MMA_K)
    tCrB = mma.make_fragment_B(thr.partition_B(sB))[None, None, None, 0]  # (MMA, MMA_N, MMA_K)
    mainloop(mma, acc, tCrA, tCrB, (load_a, load_b), arrived, config.stage_bytes)

    for i in cutlass.range(cute.size(acc), unroll_full=True):
        if cute.elem_less(tCcC[i], mC.shape):
            tCgC[i] = acc[i].to(dtype)


# %% [markdown]
# ## The launch and `matmul`
#
# `gemm` is host code. It makes tensors of addresses, sizes and strides, all of them run-time values, so that one
# compiled kernel serves all shapes. `cute.assume(lda, divby=8)` promises rows that are multiples of 16 bytes apart, as
# TMA needs them. `make_tiled_tma_atom` describes a matrix to TMA (a *tensor map*): address, extents, strides, and from
# our layout the box to fetch. It also returns the matrix as a tensor of coordinates.
#
# `Gemm`, which all recipes share, is the host side. It checks the operands and compiles a kernel once. For each kind of
# call it keeps the compiled kernel with its launch arguments: a *plan*.


# %%
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
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    load = cpasync.CopyBulkTensorTileG2SOp()
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mB, b_stage, (config.tile_n, config.tile_k))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    launcher = kernel(tma_a, mA, tma_b, mB, mC, dtype, config)
    launcher.launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (config or CONFIG,), options=options)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG,), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma")


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
# The levels are [Ampere's](../ampere/first_gemm.ipynb); *layout* also finds the descriptors. The check is of the cells
# above: drop the `sync_threads` of the main loop, or wait for parity 0 each time, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/first_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## What the missing swizzle costs
#
# Not bank conflicts, though one might expect them. `wgmma` reads core matrices, and each is 128 contiguous bytes: all
# 32 banks once. By the bank model the core matrices of a tile of A take as many wavefronts as there are of them:

# %% tags=["lab"]
import numpy as np

from cookbook import access, banks, load
from cookbook.lab import boxes_of, ctas_of, results_table, table
from cookbook.model.wgmma import operand_addresses

rows_at = np.concatenate([operand_addresses(at, 64).T.reshape(-1, 32) for at in operand_descriptors(smem.a, 64)])
took = [banks.wavefronts(found.addresses, found.width).actual for found in (access.ldmatrix(x, 4) for x in rows_at)]
print(f"{4 * len(rows_at)} core matrices, {sum(took)} wavefronts")

# %% [markdown] tags=["lab"]
# The cost is on the way *in*. A TMA box writes one contiguous run of each row. This layout keeps 16 bytes of a row
# together, so a box is 16 bytes wide; TMA alone would allow more. So a tile of 128 rows of 128 bytes is eight boxes of
# 16-byte lines, where the widest swizzle has one box of 128-byte lines. TMA works line by line. And L2 gives whole
# [sectors](../../docs/glossary.md#sector) of 32 bytes, of which half is thrown away.
#
# ## The prediction
#
# What does one k-tile take of an SM, in clocks?
#
# * **TMA**: the lines of its boxes, one a clock (assumed). **L2**: their sectors; it gives an SM 64 bytes a clock.
# * **wgmma**: 2048 multiply-adds a clock (NVIDIA's figure). **Latency**: 800 clocks until a load arrives (assumed).
#
# TMA and L2 work at the same time. With one stage a CTA also waits for the latency and for its `wgmma`s: this *adds
# up*. But an SM holds several CTAs, and while one waits another one works. So a k-tile takes the sum divided by their
# number, and never less than the busiest unit needs. With several stages only the busiest unit counts.

# %% tags=["lab"]
TENSOR_RATE, L2_PORT, SECTOR, LATENCY = 2048, 64, 32, 800  # of an SM: multiply-adds, bytes a clock; bytes; clocks


def demands(layouts, config) -> dict[str, float]:
    """Clocks of an SM for one k-tile, by unit."""
    boxes, (m, n, k) = [boxes_of(layouts.a), boxes_of(layouts.b)], (config.tile_m, config.tile_n, config.tile_k)
    lines = sum(len(each.origins) * each.shape[0] for each in boxes)
    sectors = lines * max(boxes[0].mode or 16, SECTOR)
    return {"TMA": lines, "L2": sectors / L2_PORT, "wgmma": m * n * k / TENSOR_RATE, "latency": LATENCY}


def a_k_tile(of: dict[str, float], stages: int, ctas: int) -> float:
    """Clocks of an SM for one k-tile, `ctas` CTAs sharing it."""
    loading = max(of["TMA"], of["L2"])
    return max(loading, of["wgmma"], (of["latency"] + loading + of["wgmma"]) / ctas if stages == 1 else 0)


def widest(dtype):
    """The layouts of this page with 3 bits of swizzle: rows of 128 bytes stay together."""
    rows = after.smem_atom(dtype, CONFIG.tile_k)
    return SmemLayouts(*(cute.tile_to_shape(rows, x.shape, order=(0, 1, 2)) for x in smem_layouts(dtype, CONFIG)))


NEXT, dtype = "hopper/tma_wgmma_gemm", cutlass.BFloat16
after, ours = load(NEXT), ctas_of("hopper/first_gemm", "bfloat16")
steps = {  # layouts, sizes, and how many CTAs share an SM
    "this page, one CTA alone": (smem, CONFIG, 1),
    "this page": (smem, CONFIG, ours),
    "3 bits of swizzle": (evaluate(widest, dtype), CONFIG, ours),
    "4 stages, 128 x 256": (evaluate(after.smem_layouts, dtype, after.CONFIG), after.CONFIG, ctas_of(NEXT, "bfloat16")),
}
rate, columns = {}, []
for name, (layouts, config, ctas) in steps.items():
    asked = demands(layouts, config)
    clocks = a_k_tile(asked, config.stages, ctas)
    rate[name] = asked["wgmma"] / clocks
    columns.append([*(f"{x:.0f}" for x in (*asked.values(), ctas, clocks)), f"{rate[name]:.0%}"])
labels = [*asked, "CTAs an SM", "**a k-tile takes**", "of the tensor cores' rate"]
Markdown(table(["clocks", *steps], [list(row) for row in zip(labels, *columns, strict=True)]))

# %% [markdown] tags=["lab"]
# This kernel waits for TMA's short lines. A CTA alone would also wait for the latency and for its own `wgmma`s; several
# on an SM hide that. With wide lines, by this count, a little of the latency shows again, and more stages hide it.
#
# ## What each next step buys
#
# The next two pages change one thing each: [the swizzle](swizzled_gemm.ipynb), then [the
# stages](multistage_gemm.ipynb). [A GEMM with TMA and WGMMA](tma_wgmma_gemm.ipynb) is the last column, with a warp that
# does nothing but ask TMA. Its gain over this page:

# %% tags=["lab"]
{NEXT: round(rate["4 stages, 128 x 256"] / rate["this page"], 2)}

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, timed in one run on a GPU.

# %% tags=["lab"]
lab.compare("hopper/first_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/first_gemm"))

# %% [markdown] tags=["lab"]
# Its rate is less than predicted. At 4096 a k-tile takes more clocks than one CTA alone is counted with
# ([measured](swizzled_gemm.ipynb#time)), so waits that the CTAs do not hide cannot be the only cause. The clock for a
# line of TMA is an assumption too, and 64 bytes from L2 are what an SM gets alone. What the next steps gain together is
# near the prediction; [the ladder](../../docs/benchmarks.md#step-by-step) has both.

# %% [markdown] tags=["lab"]
# ## Exercises
#
# Each is this kernel's `mainloop` in another form. The last cell of this section puts it into the kernel and follows
# the kernel: to each element of C, and in any order of its warps. Or paste the cells into a copy (`cookbook copy
# hopper/first_gemm my.py`), then `cookbook exercise my.py`.
#
# **Finish it.** The order of the k-tiles does not matter to a sum: each CTA may begin at another one. Mind the barrier.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def mainloop_staggered(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    loads: tuple[Load, ...],
    arrived: cute.Pointer,
    stage_bytes: cutlass.Constexpr,
):
    """Exercise 1, finish it: as `mainloop`, but each CTA begins at k-tile number `cta % k_tiles`, goes on to the last
    one, and then takes those before its first. `cta` is `cute.arch.block_idx()[0]`."""
    raise NotImplementedError


# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# Write the body by the table in [the loop](#the-loop): one thread announces the bytes, TMA loads, all wait, the
# warpgroup multiplies and waits, all meet.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Which number does the k-tile's place in memory depend on? And which one the parity of the barrier's phase?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# The parity counts the *iterations*: the barrier knows of no k-tile.
#
# ```python
# @cute.jit
# def mainloop_staggered(
#     mma: cute.TiledMma,
#     acc: cute.Tensor,
#     tCrA: cute.Tensor,
#     tCrB: cute.Tensor,
#     loads: tuple[Load, ...],
#     arrived: cute.Pointer,
#     stage_bytes: cutlass.Constexpr,
# ):
#     warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
#     k_tiles = cute.size(loads[0].gX, mode=[1])
#     start = cute.arch.block_idx()[0] % k_tiles
#     for i in cutlass.range(k_tiles, unroll=1):
#         if warp_idx == 0:
#             with cute.arch.elect_one():
#                 cute.arch.mbarrier_arrive_and_expect_tx(arrived, stage_bytes)
#             for load in loads:
#                 cute.copy(load.atom, load.gX[None, (start + i) % k_tiles], load.sX, tma_bar_ptr=arrived)
#         cute.arch.mbarrier_wait(arrived, i % 2)
#         warpgroup.fence()
#         for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
#             cute.gemm(mma, acc, tCrA[None, None, k], tCrB[None, None, k], acc)
#         warpgroup.commit_group()
#         warpgroup.wait_group(0)
#         cute.arch.sync_threads()
# ```
#
# </details>
#
# **Find the bug.** This one can be right in every run that one tries. In some order of its warps, TMA overwrites a
# k-tile that the tensor cores still read.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def mainloop_at_risk(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    loads: tuple[Load, ...],
    arrived: cute.Pointer,
    stage_bytes: cutlass.Constexpr,
):
    """Exercise 2, find the bug: as `mainloop`."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
        if warp_idx == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, stage_bytes)
            for load in loads:
                cute.copy(load.atom, load.gX[None, k_tile], load.sX, tma_bar_ptr=arrived)
        cute.arch.mbarrier_wait(arrived, k_tile % 2)
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.gemm(mma, acc, tCrA[None, None, k], tCrB[None, None, k], acc)
        warpgroup.commit_group()
        cute.arch.sync_threads()
        warpgroup.wait_group(0)


EXERCISES = {"mainloop_staggered": "mainloop", "mainloop_at_risk": "mainloop"}  # by name: what it replaces

# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# The four warps of the warpgroup each read their rows of A, and all of B. Which warp asks for the next k-tile, and what
# does it know of the other three?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# `wait_group` speaks of a warp's own `wgmma`s, `sync_threads` of all warps. Which has to come last?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# All warps meet *before* their `wgmma`s are done. First each has to wait for its own, then all meet.
#
# ```python
# @cute.jit
# def mainloop_at_risk(
#     mma: cute.TiledMma,
#     acc: cute.Tensor,
#     tCrA: cute.Tensor,
#     tCrB: cute.Tensor,
#     loads: tuple[Load, ...],
#     arrived: cute.Pointer,
#     stage_bytes: cutlass.Constexpr,
# ):
#     warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
#     for k_tile in cutlass.range(cute.size(loads[0].gX, mode=[1]), unroll=1):
#         if warp_idx == 0:
#             with cute.arch.elect_one():
#                 cute.arch.mbarrier_arrive_and_expect_tx(arrived, stage_bytes)
#             for load in loads:
#                 cute.copy(load.atom, load.gX[None, k_tile], load.sX, tma_bar_ptr=arrived)
#         cute.arch.mbarrier_wait(arrived, k_tile % 2)
#         warpgroup.fence()
#         for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
#             cute.gemm(mma, acc, tCrA[None, None, k], tCrB[None, None, k], acc)
#         warpgroup.commit_group()
#         warpgroup.wait_group(0)
#         cute.arch.sync_threads()
# ```
#
# </details>

# %% tags=["lab"]
lab.check_exercises("hopper/first_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A GEMM for Hopper is two instructions and three waits. What makes it slow can be counted from its layout. Next: [a
# swizzle](swizzled_gemm.ipynb), then [several stages](multistage_gemm.ipynb); or all at once, [a GEMM with TMA and
# WGMMA](tma_wgmma_gemm.ipynb).
