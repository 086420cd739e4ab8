# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "The largest magnitude of C (amax) in the epilogue"
#     claim: >-
#       FP8 training needs the largest magnitude of each product: a kernel that looks for it reads C again, and an
#       epilogue that has C in registers finds it with a few instructions for an element.
#     track: hopper
#     order: 112
#     aside: Epilogues
#     builds_on: hopper/tma_wgmma_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     kind: reducing
#     compared_with: hopper/tma_wgmma_gemm
#     path: tma -> swizzled shared memory -> wgmma -> stmatrix -> 16-byte stores, and one atomic maximum for a warp
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, SYNCS, WARPGROUP.DEPBAR, REDUX]
#     sources:
#       - {title: "PTX ISA, redux.sync", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync"}
#       - {title: "PTX ISA, atom", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom"}
#       - {title: "Micikevicius et al., FP8 formats for deep learning", url: "https://arxiv.org/abs/2209.05433"}
# ---

# %% [markdown]
# # The largest magnitude of C (amax) in the epilogue
#
# **Claim.** A training step in FP8 scales each tensor so that its largest magnitude, its *amax*, just fits the format.
# With *delayed scaling* the amax of this step chooses the scale factor of the next. A kernel of its own reads all of C
# again to find one number. An epilogue has each element of C in a register anyway. There it costs about three
# instructions for an element, and C is not read again.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.lab import predict, records, results_table, table

memory, shared, registers = "global memory", "shared memory", "registers"
stops = [
    draw.Stop("sC", "the tile, rounded", shared),
    draw.Stop("vector", "8 elements of a row, on their way to C", registers),
    draw.Stop("a lane's", "the bits of its largest |x|", registers),
    draw.Stop("a warp's", "the largest of 32 lanes", registers),
    draw.Stop("amax", "all warps: one word", memory),
]
arrows = ["16-byte loads", "clear the sign, maximum of integers", "redux.sync", "atomic maximum"]
draw.flow(stops, arrows, "From the elements of C to one number")

# %%
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch

from cookbook.recipe.entry import MATRICES, Call, compile_host, require
from cookbook.recipe.operands import Argument, FurtherGemm, adjacent
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    CONFIG,
    Config,
    SmemLayouts,
    TiledCopies,
    TmaTensor,
    make_load,
    multiply,
    partition_load,
    produce,
    set_up,
    smem_layouts,
    tile_of_cta,
    tiled_copies,
    tiled_mma,
    wgmma,
)

# %% [markdown]
# ## The GEMM around it
#
# The GEMM is [that of TMA and WGMMA](tma_wgmma_gemm.ipynb): its sizes, layouts, copies, producer and consumers are
# imported. Any other kernel here would do: the largest |C| asks nothing of the main loop.

# %% [markdown] tags=["lab"]
# ## What it saves, predicted
#
# `out.abs().amax()` of torch is two kernels: one reads C and writes |C|, the other reads |C|. That is three times the
# bytes of C. `torch.linalg.vector_norm(out, inf)` reads C once. The table divides these bytes by the bandwidth of an
# H200. Where C fits L2, a second read may be faster than that.
#
# In the epilogue an element takes three instructions: to float32, the sign cleared, a maximum. We assume that an SM
# does 64 lanes of them a clock, and that nothing hides them. To set `amax` to 0 is one more launch, as each of torch's
# kernels is.

# %% tags=["lab"]
CHIP, SMS, LANES, PER_ELEMENT = predict.H200, 132, 64, 3  # the last two are assumed


def predicted(m: int, n: int) -> list[str]:
    """Microseconds for the amax of C (m, n): torch's two kernels, one kernel that reads C, the epilogue."""
    once = 2 * m * n / CHIP.memory  # nanoseconds
    waves = -(-(-(-m // CONFIG.tile_m) * -(-n // CONFIG.tile_n)) // SMS)
    clocks = waves * CONFIG.tile_m * CONFIG.tile_n * PER_ELEMENT / LANES
    takes = 3 * once + 2 * CHIP.launch, once + CHIP.launch, clocks / CHIP.ghz + CHIP.launch
    return [f"{m} x {n}", *(f"{each / 1000:.1f} us" for each in takes)]


header = ["M x N", "abs().amax()", "vector_norm", "in the epilogue"]
Markdown(table(header, [predicted(*shape) for shape in ((4096, 4096), (8192, 8192), (16384, 14336))], right=1))

# %% [markdown]
# ## A lane
#
# **Magnitudes compare as integers do.** In a float32 the exponent stands above the mantissa, and the sign above both.
# So of two floats that are not negative the larger one has the larger bits. The kernel clears the sign and takes the
# maximum of integers.
#
# * **NaN**: its bits, without the sign, are larger than those of infinity. One NaN in C makes amax NaN, as in torch.
# * **-0** becomes 0.
# * **Order**: a maximum does not depend on it. The same call gives the same bits.
#
# **Of the rounded output.** The vectors that a thread stores are already of C's type. So amax is `out.abs().amax()`, to
# the bit, which a test can demand. Rounding is monotone: the largest |accumulator|, once rounded, is the same number.
# It is what a cast of C to FP8 needs.
#
# **Rows and columns outside of C stay out.** TMA fills them with zeros, but zero times an infinity is NaN. The
# comparison that guards the store guards the maximum too. It looks at the first element of a vector. That is enough:
# the length of a vector divides N, so a vector is all inside or all outside. With N = 333 its length is one.


# %% tags=["open"]
@cute.jit
def magnitude(values: cute.TensorSSA):
    """The bits of |x| of each x, as float32: as integers they compare as the numbers do, NaN above all."""
    return values.to(cutlass.Float32).bitcast(cutlass.Int32) & 0x7FFFFFFF


@cute.jit
def store(
    acc: cute.Tensor,
    sC: cute.Tensor,
    gC: cute.Tensor,
    cC: cute.Tensor,
    limit: tuple[cutlass.Int32, cutlass.Int32],
    copies: TiledCopies,
    config: cutlass.Constexpr,
):
    """Registers -> shared memory -> global memory. Return the thread's largest |C|, as bits. gC, cC: (M, N)."""
    tidx, _, _ = cute.arch.thread_idx()
    barrier = pipeline.NamedBarrier(barrier_id=1, num_threads=config.consumer_threads)
    rC = cute.make_fragment_like(acc, gC.element_type)
    rC.store(acc.load().to(gC.element_type))
    thr = copies.r2s_c.get_slice(tidx)
    barrier.arrive_and_wait()  # both warpgroups have read their last stage
    cute.copy(copies.r2s_c, thr.retile(rC), thr.partition_D(sC))
    barrier.arrive_and_wait()
    thr = copies.s2g_c.get_slice(tidx)
    tCsC, tCgC, tCcC = thr.partition_S(sC), thr.partition_D(gC), thr.partition_D(cC)  # (VEC, REST_M, REST_N)
    largest = cutlass.Int32(0)
    for m in cutlass.range(cute.size(tCsC, mode=[1]), unroll=8):
        for n in cutlass.range_constexpr(cute.size(tCsC, mode=[2])):
            if cute.elem_less(tCcC[0, m, n], limit):  # what lies outside of C may be 0 * inf: it does not take part
                vector = cute.make_fragment_like(tCsC[None, m, n])
                cute.autovec_copy(tCsC[None, m, n], vector)
                bits = magnitude(vector.load())
                for v in cutlass.range_constexpr(cute.size(vector)):
                    largest = cutlass.max(largest, bits[v])
                cute.autovec_copy(vector, tCgC[None, m, n])
    return largest


# %% [markdown]
# ## A warp, and memory
#
# `redux.sync` takes the maximum of 32 integers in one instruction, and all lanes get it. One lane then asks for an
# atomic maximum. The thread does not wait for it: no instruction uses what comes back. A tile has eight warps, so it
# makes eight atomics, which L2 serves.
#
# The word has to be 0 before: the bits of 0.0, the least of all. The host sets it before the kernel,
# on the same stream.


# %% tags=["open"]
@cute.jit
def report(largest: cutlass.Int32, mAmax: cute.Tensor):
    """The largest of a warp's 32 lanes, then of all warps that report: one atomic maximum for each warp."""
    largest = cute.arch.warp_redux_sync(largest, "max")
    if cute.arch.lane_idx() == 0:
        cute.arch.atomic_max(mAmax.iterator, largest, sem="relaxed", scope="gpu")


# %% [markdown]
# ## The kernel
#
# It differs from that of the GEMM around it in what becomes of C: `store` returns the largest |C|, and `report` is new.
# C and `amax` come together, as `written`.


# %% tags=["open"]
class Written(NamedTuple):
    """The outputs of the kernel."""

    c: cute.Tensor  # (M, N)
    amax: cute.Tensor  # (1): the bits of a float32


@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    written: Written,
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One CTA computes one tile of C, and its warps raise `amax` to their largest |C|.

    Who waits for whom, with the CONFIG of hopper/amax_epilogue_gemm:

    warps  do         wait for  signal
    0-7    wgmma      full[4]   empty[4]: 1 a warp
    8      TMA loads  empty[4]  full[4]: 1, expects 49152 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 8 arrivals a phase.
    bar 1, 256 threads: warps 0-7 meet.
    """
    mC = written.c
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tile = tile_of_cta(mC.shape, config)
    cta = set_up(layouts, mC.element_type, config)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (tile[0], None))  # (TILE_M, TILE_K, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (tile[1], None))  # (TILE_N, TILE_K, k)
    if warp_idx == config.consumer_threads // 32:
        produce(cta.pipe, (partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB)), config)
    else:
        gC = cute.local_tile(mC, (config.tile_m, config.tile_n), tile)  # (TILE_M, TILE_N)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), tile)
        acc = multiply(cta, op, cute.size(gA, mode=[2]), config)
        largest = store(acc, cta.sC, gC, cC, mC.shape, copies, config)
        report(largest, written.amax)


# %% [markdown]
# ## The launch
#
# To the kernel `amax` is one int32: the bits of the float32 that the caller sees.


# %%
class Sizes(NamedTuple):
    """Extents, and the row strides of A, B and C in elements."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    amax: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; amax: the largest |C|, if it was 0 before."""
    (m, n, k), (lda, ldb, ldc), dtype = *sizes, pA.dtype
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    mAmax = cute.make_tensor(amax, cute.make_layout(1))
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config, vec)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(a, b, Written(mC, mAmax), layouts, copies, wgmma(dtype, config.tile_n), config).launch(
        grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8), (cutlass.Int32, 4)
    return compile_host(gemm, arch, pointers, (config or CONFIG, vec), options=options)


# %% [markdown]
# ## `matmul_amax`: what a user calls
#
# `AMAX` is an operand that is written: `zeroed`. The shared host side looks at everything first, and sets the word to 0
# last. That is a launch of a small kernel in the same stream, so a CUDA graph captures it too, and each replay
# begins with 0. It costs a launch for each call, some microseconds on the host.
#
# With delayed scaling, 448 being the largest e4m3:
#
# ```python
# c, amax = matmul_amax(a, b)  # step t
# scale = amax / 448  # of step t + 1: c / scale fits e4m3, if c has not grown since
# ```


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (CONFIG, call.vec), (Sizes(call.mnk, call.strides),)


AMAX = Argument("amax", "1", (torch.float32,), adjacent, zeroed=True)
GEMM = FurtherGemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", operands=(*MATRICES, AMAX))


def matmul_amax(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, amax: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`a @ b` on the tensor cores, accumulated in float32, and the largest |x| of it, on the current stream.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a, b or amax. Made if not given.
    amax: (1,), float32, no memory of a or b: what it held is lost. Made if not given.

    The second result is that of `out.abs().amax()`, to the bit, as float32: NaN if an element of C is NaN.
    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    require(isinstance(a, torch.Tensor), "a", type(a).__name__, "a torch.Tensor", TypeError)
    amax = torch.empty(1, dtype=torch.float32, device=a.device) if amax is None else amax
    return GEMM.matmul(a, b, amax, out=out), amax


def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product alone, of `matmul_amax`: what all GEMMs are called by."""
    return matmul_amax(a, b, out=out)[0]


# %% [markdown]
# `PEERS` is what the times are compared with: torch's product, then one more kernel, which reads C again. Torch
# finds the largest |x| with no fewer.


# %% tags=["folded"]
def by_torch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """C and its largest |x| by torch."""
    return torch.matmul(a, b, out=out), torch.linalg.vector_norm(out, float("inf"))


PEERS = {"torch.matmul, then vector_norm": by_torch}


# %% [markdown] tags=["lab"]
# ## Check
#
# First the trick alone, in torch: the bits without the sign, their largest, and these bits as a float again.

# %% tags=["lab"]
INF, NAN = float("inf"), float("nan")


def by_bits(numbers: list[float]) -> float:
    """The largest magnitude, as the kernel finds it."""
    return (torch.tensor(numbers).view(torch.int32) & 0x7FFFFFFF).amax().view(torch.float32).item()


examples = [[-3.0, 2.0], [-0.0, 0.0], [1.0, -INF], [NAN, INF]]
of_torch = [torch.tensor(numbers).abs().amax().item() for numbers in examples]
Markdown(
    table(
        ["numbers", "by bits", "torch"],
        [[str(x), str(by_bits(x)), str(y)] for x, y in zip(examples, of_torch, strict=True)],
    )
)

# %% [markdown] tags=["lab"]
# Then the kernel. Level *product* follows each element of C from the operands to its store, and on to `amax`. Each
# C[m, n] has to take part, as it is stored, and nothing else. An element outside of C, a sign that is kept or a warp
# that does not report fails there.

# %% tags=["lab"]
lab.check_cells("hopper/amax_epilogue_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# The `matmul` of the cells above next to `torch.matmul`, run here where there is a GPU for it. The table below has two
# more peers: torch's product with the kernel that reads C, and the GEMM that this one is built on, without a maximum.

# %% tags=["lab", "open"]
lab.compare("hopper/amax_epilogue_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/amax_epilogue_gemm"))

# %% [markdown] tags=["lab"]
# What the amax takes, predicted above and measured: of torch the two kernels less its product, of ours this kernel and
# the setting of `amax` less the GEMM without a maximum. Behind each difference stands half the distance between the
# fastest and the slowest round: where that is larger, the difference says nothing. So it is with the longest products,
# during which the GPU is at its power limit.

# %% tags=["lab"]
ALONE, (KERNEL,) = "hopper/tma_wgmma_gemm", PEERS
PAIRS = (KERNEL, "torch.matmul"), ("ours", ALONE)
timed = records.of_one_gpu("hopper/amax_epilogue_gemm", "timed")


def measured(record) -> list[str]:
    """The microseconds of the amax of C in one run: a kernel that reads C, the epilogue; each as predicted, too."""
    timed, said = record["peers"] | {"ours": record["figures"]}, []
    for first, (more, less) in zip(predicted(*record["shape"][:2])[2:], PAIRS, strict=True):
        us = 1000 * (timed[more]["median_ms"] - timed[less]["median_ms"])
        range_us = 500 * max(timed[name]["max_ms"] - timed[name]["min_ms"] for name in (more, less))
        said.append(f"{first} / {us:.1f} us ± {range_us:.1f}")
    return [record["device"], f"{' x '.join(map(str, record['shape']))}, {record['dtype']}", *said]


rows = [measured(r) for r in timed if {ALONE, KERNEL} <= r["peers"].keys()]
header = ["device", "M x N x K", "vector_norm: predicted / measured", "in the epilogue: predicted / measured"]
Markdown(table(header, rows, right=2) if rows else "*Not timed next to these two yet.*")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A reduction over C belongs where C is in registers: a maximum in the lane, one instruction for the warp, one atomic
# for memory. What the reduction must not see, the guard of the store already knows.
#
# What it saves depends on K. A kernel that reads C takes the same time for each K, and the product more with a larger
# one. So it pays where K is small next to M and N. ([What each fusion
# saves](../../docs/benchmarks.md#what-a-fusion-saves) has two values of K.)
#
# The amax becomes a scale factor of [FP8 operands](fp8_gemm.ipynb).
#
# Next: [two products and a gate in one kernel](swiglu_gemm.ipynb).
# To use it: `cookbook copy hopper/amax_epilogue_gemm my_gemm.py`, then `from my_gemm import matmul_amax`.
