# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "GEMV: one or two rows, without tensor cores"
#     claim: >-
#       A product of one row is one reading of its weight. Threads that load 16 bytes at a time and multiply in float32
#       are done when the memory is.
#     track: hopper
#     order: 78
#     aside: Few rows, or few tiles
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     tensor_cores: false
#     serves: {sm_90: 64}
#     compared_with: hopper/split_k_gemm
#     baselines: [4 rows, 8 rows]
#     path: 16-byte loads -> registers -> FMA in float32 -> warp shuffles -> 2-byte stores
#     instructions:
#       sm_90a: [LDG.E.NA.128, LDG.E.128, FFMA, SHFL.BFLY, STG.E.U16, ACQBULK, PREEXIT]
#     bench_shapes: [[1, 4096, 4096], [1, 8192, 8192], [1, 16384, 8192], [1, 4096, 14336], [1, 6144, 4096],
#       [1, 28672, 8192], [2, 8192, 8192], [4, 8192, 8192], [8, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, ld", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld"}
#       - {title: "PTX ISA, shfl.sync", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync"}
#       - {title: "CUDA C++ Best Practices Guide, bandwidth", url: "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#bandwidth"}
# ---

# %% [markdown]
# # GEMV: one or two rows, without tensor cores
#
# **Claim.** A product of one row is one reading of its weight. Threads that load 16 bytes at a time and multiply in
# float32 are done when the memory is. No tensor core is needed, and no tile in shared memory.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/gemv", (1, 8192, 8192), over=["hopper/split_k_gemm"])

# %% [markdown]
# LLM decode for one user multiplies one row at a time: y = W x, called *GEMV* in BLAS. Each element of the weight is
# used once. So the rate at which memory is read is the limit. [The kernel that only
# reads](../foundations/memory_ceiling.ipynb) says what that rate can be.
#
# You need CUDA, and the [primer](../primer/hello_kernel.ipynb). As in the GEMMs, `matmul(a, b)` takes `a` (M, K) and
# `b` (K, N), usually `weight.T`: A holds the rows, and B is the weight, N rows of K elements that follow one another.
# A CTA computes `tile_m` x `tile_n` elements of C. So it reads `tile_m` rows of A and `tile_n` rows of the weight, all
# of K, and its threads divide K among them.
#
# ## How many bytes are in flight
#
# A load takes a while, whether one is in flight or a thousand. Memory of rate *r* and latency *t* is busy when *r t*
# bytes are in flight (Little's law). The microbenchmark has measured what a reading kernel gets of it:

# %% tags=["lab"]
import re

from cookbook.lab import catalog, records

known = records.of_one_gpu("foundations/memory_ceiling", "ceiling")
best: dict[int, dict] = {}  # by KiB in flight, of those that the record has
for name, found in (known[0]["figures"]["in flight"] if known else {}).items():
    kib = int(re.match(r"\d+", name)[0])
    best[kib] = max(best.get(kib, found), found, key=lambda f: f["gbps"])
points = [draw.Point(kib, f["gbps"], f["gbps_min"], f["gbps_max"]) for kib, f in sorted(best.items())]
draw.line_chart({"read": points}, "GB/s", known[0]["device"], "KiB in flight in an SM") if known else "not measured"

# %% [markdown]
# The rate rises until each SM has some 64 KiB in flight, and then stays. That is 64 bytes for each of 1024 threads. A
# thread asks for **several vectors of 16 bytes before it uses the first**: `vectors` of each of the `tile_n` rows of
# the weight. Each takes four registers. A vector of `a` serves `tile_n` vectors of the weight.
#
# `per_sm` tells the compiler how many CTAs the registers of an SM must hold. Without it the compiler may give each
# thread more registers: fewer CTAs fit, and fewer loads are in flight.


# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator


@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 1  # rows of the product that a CTA computes
    tile_n: int = 2  # rows of the weight per CTA
    vectors: int = 2  # 16-byte vectors of each of these rows that a thread loads before it uses the first
    threads: int = 256  # of a CTA; they divide K among them
    per_sm: int = 4  # CTAs that an SM has registers for
    stages = 1  # sets of registers that vectors are loaded into

    @property
    def tile_k(self) -> int:
        return 8 * self.vectors * self.threads  # elements of each row that a CTA multiplies in one step

    @property
    def warps(self) -> int:
        return self.threads // 32

    @property
    def smem_bytes(self) -> int:
        return 4 * self.tile_m * self.tile_n * self.warps  # float32: one partial sum per warp and element

    @property
    def in_flight(self) -> int:
        """Bytes of the weight that an SM full of CTAs asks for at once."""
        return self.per_sm * self.threads * self.tile_n * self.vectors * 16


VARIANTS = {
    "1 row": Config(),
    "2 rows": Config(tile_m=2, tile_n=4, threads=128),
    "4 rows": Config(tile_m=4, tile_n=4, vectors=1, threads=128, per_sm=5),
    "8 rows": Config(tile_m=8, tile_n=4, vectors=1, threads=128, per_sm=3),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["1 row"]


def config_for(arch: str, variant: str = "1 row") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The time, predicted
#
# Three things go on at the same time. `nanoseconds` returns the time of each:
#
# * **memory**: the weight, once for each tile of rows of the product.
# * **wait**: a step of a CTA takes a latency, and an SM has no more than `per_sm` CTAs. This is Little's law.
# * **multiply**: each of an SM's four schedulers issues at most one instruction a clock. A vector of the weight takes
#   eight FMAs for each row of the product, and about 12 instructions to load it and convert it to float32. Its share of
#   the same 12 for `a` is added, and about 8 instructions of the loop. [Below](#what-the-compiler-makes-of-it) these
#   estimates stand next to the compiler's counts.
#
# Two terms that take equally long delay each other. So the prediction is the fourth root of the sum of their fourth
# powers, a little more than the longest, as for [split-K](split_k_gemm.ipynb). Four figures are fitted to times on an
# H200, by least squares of logarithms.
#
# More rows of the product cost no bytes. They cost FMAs, and registers, so that fewer vectors are in flight. A tensor
# core multiplies eight rows as fast as one: at some number of rows it must win.


# %%
class Figures(NamedTuple):
    """The prediction's figures of a GPU: nanoseconds, and bytes a nanosecond. Fitted to times on an H200."""

    start: float = 1100  # CTAs begin, and the last ones end
    latency: float = 1250  # of a step, while all others ask too
    memory: float = 4800
    clocks: float = 1.67  # in which an SM starts four instructions


H200 = Figures()
GHZ = 1.755  # of the SMs' clock: about what an H200 runs at, not fitted


def instructions(config: Config) -> float:
    """Instructions of a warp for each 16-byte vector of the weight: FMAs, conversions, loads and the rest."""
    return 8 * config.tile_m + 12 * (1 + config.tile_m / config.tile_n) + 8


def nanoseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> dict[str, float]:
    """Return what a product of m x n over k takes on `sms` SMs, by the rules above."""
    tiles = -(-m // config.tile_m)
    ctas, steps = -(-n // config.tile_n) * tiles, -(-k // config.tile_k)
    vectors = ctas * steps * config.tile_n * config.vectors * config.warps
    return {
        "memory": 2 * n * k * tiles / gpu.memory,
        "wait": ctas / min(config.per_sm * sms, ctas) * steps * gpu.latency,
        "multiply": vectors * instructions(config) / 4 * gpu.clocks / GHZ / sms,
        "start": gpu.start,
    }


def microseconds(config: Config, m: int, n: int, k: int, sms: int, gpu: Figures = H200) -> float:
    """Return the predicted time: the start, and the terms that overlap."""
    *together, start = nanoseconds(config, m, n, k, sms, gpu).values()
    return (start + sum(x**4 for x in together) ** 0.25) / 1000


# %% [markdown] tags=["lab"]
# Predicted for a weight of 8192 x 8192, next to what is predicted of [split-K](split_k_gemm.ipynb) on tensor cores:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table, table

SMS = 132  # of an H200
split_k = catalog.load("hopper/split_k_gemm")


def predicted(variant: str) -> list[str]:
    """A line of the table: bytes in flight, the three terms and all of it, and split-K's time."""
    config = VARIANTS[variant]
    shape = (config.tile_m, 8192, 8192, SMS)
    *terms, _ = (f"{x / 1000:.1f}" for x in nanoseconds(config, *shape).values())
    split_k_us = split_k.cost(split_k.VARIANTS[split_k.choose(*shape)], *shape) / 1000
    return [variant, str(config.in_flight // 1024), *terms, f"{microseconds(config, *shape):.1f}", f"{split_k_us:.1f}"]


header = ["rows", "KiB in flight in an SM", "memory, us", "wait, us", "multiply, us", "all, us", "split-K, us"]
Markdown(table(header, [predicted(variant) for variant in VARIANTS], right=1))

# %% [markdown] tags=["lab"]
# With one or two rows memory takes the longest. With four rows memory, waits and instructions take about equally long:
# fewer vectors are in flight, and each takes more FMAs. With eight rows memory takes by far the least.

# %% [markdown]
# ## Who loads what
#
# **All threads of a CTA divide K.** So a CTA reads few rows, in long runs of bytes: 256 threads with 16 bytes each are
# 4 KiB. Here are four threads instead of 256. Each has `vectors` = 2 of each of `tile_n` = 2 rows: V0 and V1 of the
# first row, V2 and V3 of the second. A cell is one vector of 8 elements. This is one step of the loop; the next one
# follows on the right.

# %% tags=["lab"]
from cookbook.layouts import Layout

tv = Layout((4, (2, 2)), (2, (8, 1)))
draw.tv_view(tv, (2, 8), axes=("row", "K"), title="Four threads, two vectors of two rows")

# %% [markdown]
# The alternative gives each warp different rows. Then no warp needs another's sums. But a CTA reads more rows at once,
# in shorter runs, and a small weight has too few rows for all warps.
#
# Two guards make any shape right. *Rows*: the last CTA loads the last row of the weight again, instead of rows that do
# not exist, and does not store their sums. *K*: what is left after the whole steps takes one more step, in which
# vectors past the end are zeros. So the loop over whole steps needs no guard.
#
# A matrix is seen as (8, K / 8, rows), so `mX[None, vector, row]` is one vector. `cute.copy` with a 128-bit atom makes
# one `ld.global` of it. Loops over `range_constexpr` are unrolled: they become a list of loads, and no instruction
# between them waits.


# %%
@cute.jit
def load(
    atom: cute.CopyAtom,
    mX: cute.Tensor,
    rX: cute.Tensor,
    rows: cutlass.Int32,
    first: cutlass.Int32,
    config: cutlass.Constexpr,
    guarded: cutlass.Constexpr,
):
    """Load a thread's vectors of one step: rX (8, VECTOR, ROW) from mX (8, K / 8, rows).

    rows: the first row; instead of rows past the end, the last one. first: the first vector. guarded: zeros past K.
    """
    for u in cutlass.range_constexpr(cute.size(rX, mode=[1])):
        for r in cutlass.range_constexpr(cute.size(rX, mode=[2])):
            row, vector = cutlass.min(rows + r, mX.shape[2] - 1), first + u * config.threads
            if cutlass.const_expr(guarded):
                rX[None, u, r].fill(0.0)
                if vector < mX.shape[1]:
                    cute.copy(atom, mX[None, vector, row], rX[None, u, r])
            else:
                cute.copy(atom, mX[None, vector, row], rX[None, u, r])


# %% [markdown]
# ## Multiply, and add up
#
# `load()` on a tensor in registers gives its value as a vector, which plain arithmetic takes. Eight elements become
# float32, are multiplied, and `reduce` adds them to the sum one after the other. The compiler makes eight FMAs of it.
#
# A thread has the sums over *its* vectors. `warp_reduction_sum` adds up the 32 lanes of a warp: in five steps a lane
# adds the values of lanes 16, 8, 4, 2 and 1 away (`shfl.bfly`). Then all lanes have the sum, and lane i keeps the i-th
# one. What the warps have is added up in the kernel, through a few words of shared memory.


# %%
@cute.jit
def multiply(rA: cute.Tensor, rB: cute.Tensor, acc: cute.Tensor):
    """acc (M, ROW) += products of row m of rA (8, VECTOR, M) and row r of rB (8, VECTOR, ROW)."""
    for u in cutlass.range_constexpr(cute.size(rB, mode=[1])):
        for r in cutlass.range_constexpr(cute.size(rB, mode=[2])):
            for m in cutlass.range_constexpr(cute.size(rA, mode=[2])):
                products = rA[None, u, m].load().to(cutlass.Float32) * rB[None, u, r].load().to(cutlass.Float32)
                acc[m, r] = products.reduce(cute.ReductionOp.ADD, acc[m, r], 0)


@cute.jit
def over_lanes(acc: cute.Tensor, lane: cutlass.Int32):
    """Add up the lanes of a warp: lane m * ROW + r gets the sum of acc[m, r]. acc: (M, ROW)."""
    own = cutlass.Float32(0.0)
    for m in cutlass.range_constexpr(acc.shape[0]):
        for r in cutlass.range_constexpr(acc.shape[1]):
            total = cute.arch.warp_reduction_sum(acc[m, r])
            if lane == m * acc.shape[1] + r:
                own = total
    return own


# %% [markdown]
# ## The kernel
#
# The weight is read once, so its loads say `NO_ALLOCATE`: they leave L1 to `a`, which every CTA of the SM reads. L1 and
# shared memory are one memory, and `preferred_smem_carveout` is the percentage that the launch wants as shared memory.
# Here 5 percent of 228 KiB are enough: for the sums of an SM's CTAs, and the 1 KiB that the hardware takes for each
# CTA. L1 gets the rest.
#
# The launch uses *programmatic dependent launch* ([PDL](../../docs/glossary.md#pdl)). Once every CTA has called
# `launch_dependents` or has ended, CTAs of the next kernel may take the room that this one leaves.
# `griddepcontrol.wait` waits until the previous kernel has ended and its writes can be seen: it may have written what
# is read here.


# %%
@cute.kernel
def kernel(
    mA: cute.Tensor,  # (8, K / 8, M)
    mB: cute.Tensor,  # (8, K / 8, N): the weight
    mC: cute.Tensor,  # (M, N)
    config: cutlass.Constexpr,
):
    """A CTA computes tile_m x tile_n elements of C; its threads divide K among them."""
    (tidx, _, _), (cta, _, _) = cute.arch.thread_idx(), cute.arch.block_idx()
    lane, warp_idx = cute.arch.lane_idx(), cute.arch.warp_idx()
    tiles_n = cute.ceil_div(mC.shape[1], config.tile_n)
    m0, n0 = cta // tiles_n * config.tile_m, cta % tiles_n * config.tile_n
    dtype, op, no_l1 = mC.element_type, cute.nvgpu.CopyG2ROp(), cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE
    often = cute.make_copy_atom(op, dtype, num_bits_per_copy=128)
    once = cute.make_copy_atom(op, dtype, num_bits_per_copy=128, l1c_evict_priority=no_l1)
    rA = cute.make_rmem_tensor((8, config.vectors, config.tile_m), dtype)
    rB = cute.make_rmem_tensor((8, config.vectors, config.tile_n), dtype)
    acc = cute.make_rmem_tensor((config.tile_m, config.tile_n), cutlass.Float32)
    acc.fill(0.0)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()

    step = config.vectors * config.threads  # vectors of a row that a CTA multiplies in one step
    steps = mB.shape[1] // step
    for i in cutlass.range(steps, unroll=1):
        load(once, mB, rB, n0, i * step + tidx, config, False)
        load(often, mA, rA, m0, i * step + tidx, config, False)
        multiply(rA, rB, acc)
    if steps * step < mB.shape[1]:
        load(once, mB, rB, n0, steps * step + tidx, config, True)
        load(often, mA, rA, m0, steps * step + tidx, config, True)
        multiply(rA, rB, acc)

    elements = config.tile_m * config.tile_n
    sSums = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout((elements, config.warps)), 16)
    own = over_lanes(acc, lane)
    if lane < elements:
        sSums[lane, warp_idx] = own
    cute.arch.sync_threads()  # the sums of all warps are in shared memory
    m, n = m0 + tidx // config.tile_n, n0 + tidx % config.tile_n
    if tidx < elements and cute.elem_less((m, n), mC.shape):
        total = sSums[tidx, 0]
        for warp in cutlass.range_constexpr(1, config.warps):
            total = total + sSums[tidx, warp]
        mC[m, n] = total.to(dtype)


# %% [markdown]
# ## The launch
#
# A matrix is seen as (8, K / 8, rows): its first mode is one 16-byte vector.


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
    (m, n, k), (lda, ldb, ldc) = mnk, strides
    lda, ldb = (cute.assume(stride, divby=8) for stride in (lda, ldb))
    mA = cute.make_tensor(pA, cute.make_layout((8, k // 8, m), stride=(1, 8, lda)))
    mB = cute.make_tensor(pB, cute.make_layout((8, k // 8, n), stride=(1, 8, ldb)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    grid, block = (tiles, 1, 1), (config.threads, 1, 1)
    room = {"min_blocks_per_mp": config.per_sm, "preferred_smem_carveout": 5}  # registers; percent
    kernel(mA, mB, mC, config).launch(grid=grid, block=block, stream=stream, use_pdl=True, **room)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `whole` asks for a K that is a multiple of 8: vectors are loaded whole.


# %%
def choose(m: int, n: int, k: int, sms: int) -> str:
    """Choose the smallest variant that holds all rows, else the largest."""
    return next((name for name, config in VARIANTS.items() if config.tile_m >= m), [*VARIANTS][-1])


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    variant = choose(*call.mnk, call.sms) if call.variant == DEFAULT else call.variant
    return (VARIANTS[variant],), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="PDL", variants=(DEFAULT, *VARIANTS), whole=True)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` for few rows, multiplied and accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K). M may be anything; up to 2 it is fast.
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M.

    Vectors of 16 bytes are loaded: K is a multiple of 8, addresses and row strides of a and b are multiples of 16
    bytes. Needs a GPU of compute capability 9.0. One call on one GPU gives the same bits each time. There is no
    backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## What the compiler makes of it
#
# The loop of each variant in the machine code: its instructions for each vector of the weight, counted and predicted.

# %% tags=["lab"]
from cookbook.lab import ceilings, compiled


def counted(variant: str) -> list[str]:
    """A line of the table."""
    config = VARIANTS[variant]
    made = compiled.compile_recipe("hopper/gemv", "sm_90a", "bfloat16", config=config)
    loop = next(each for each in ceilings.loops(made.sass) if each["LDG.E.128"])
    each = sum(loop.values()) / (config.tile_n * config.vectors)
    return [variant, str(made.registers), f"{each:.0f}", f"{instructions(config):.0f}"]


try:
    rows = [counted(variant) for variant in VARIANTS]
    shown = Markdown(table(["rows", "registers", "instructions", "predicted"], rows, right=1))
except compiled.NoDisassembler as missing:
    shown = str(missing)
shown

# %% [markdown] tags=["lab"]
# ## Check
#
# The level *product* follows the kernel. Each element of C must be the sum of its products, each once, and nothing
# outside of A and B may be read. *Pipeline* looks at the sums of the warps, which go through shared memory. There are
# no tiles, so no layout is checked.

# %% tags=["lab"]
lab.check_cells("hopper/gemv", dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/gemv", matmul, (1, 8192, 8192))

# %% [markdown] tags=["lab"]
# "Ours" is `matmul` without an argument. The *ceiling* is the kernel that only reads, over the same weight and in the
# same run, but launched without PDL. Ours can come out faster: with PDL it gets ready while the previous kernel ends.

# %% tags=["lab"]
Markdown(results_table("hopper/gemv"))

# %% [markdown] tags=["lab"]
# Other kernels were timed in experiments that are not recorded. All were slower or no faster:
#
# * **Different rows for each warp**: slower for small weights. With few large CTAs PDL made it slower, perhaps because
#   the next kernel's CTAs take room before this one's are done.
# * **TMA into shared memory**, by persistent CTAs (why is not known). **Loads a step ahead of the multiplication.**
# * **Hints.** `NO_ALLOCATE` is worth next to nothing. A prefetch of 256 bytes into L2 was slower.
#
# ## Conclusion
#
# With plain loads and plain FMAs a product of one row is as fast as the memory. That takes enough bytes in flight, and
# CTAs that read neighbouring ones. From four rows on tensor cores are faster, as predicted: see the column of
# [split-K](split_k_gemm.ipynb) in the table above. [The decode GEMM](decode_gemm.ipynb) is another kernel for few rows.
# `cookbook.ops` takes the recipe with the lowest prediction.
#
# Next: products with many tiles again. [An overlapped epilogue](overlapped_epilogue_gemm.ipynb) stores one tile while
# the next one is multiplied.
# To use it: `cookbook copy hopper/gemv my_gemv.py`, then `from my_gemv import matmul`.
