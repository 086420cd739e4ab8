# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "An epilogue through shared memory"
#     claim: >-
#       Single elements of C touch a line of memory each row. Put into shared memory first, C leaves in whole rows, 16
#       bytes a thread: that pays where K is short.
#     track: ampere
#     order: 9
#     builds_on: ampere/multistage_gemm
#     pays: {at: [8192, 8192, 512], over: ampere/multistage_gemm}
#     compared_with: ampere/multistage_gemm
#     bench_shapes: [[8192, 8192, 512], [4096, 4096, 4096], [8192, 8192, 8192]]
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async, 3 stages -> swizzled shared memory -> ldmatrix -> mma.sync -> shared memory -> 16-byte stores
#     instructions: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, LDGDEPBAR, STG.E.128, LDS.128]
#     sources:
#       - {title: "PTX ISA, fragments of mma.m16n8k16", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"}
#       - {title: "CUDA programming guide, coalesced access", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#device-memory-accesses"}
# ---

# %% [markdown]
# # An epilogue through shared memory
#
# **Claim.** One thing changes from [the page before](multistage_gemm.ipynb): how C leaves. `mma.sync` gives a thread
# pairs of neighbours in rows that lie far apart. A warp that stores one element a thread touches eight rows: a line of
# memory each, for 8 bytes of it. Here all threads first put their part of C into shared memory. From there each takes
# 16 bytes of a row, and a warp stores whole rows.
#
# The epilogue runs once for each tile, after its last k-tile. So what it gains counts where K is short.
#
# Eight rows of C on their way, their first 64 columns. A cell is 16 bytes of a row in shared memory, and says in which
# bank it begins. A warp writes pairs to all eight rows at once, in one column of the picture; then each thread reads a
# cell.

# %% tags=["lab"]
import cutlass
from IPython.display import Markdown

from cookbook import draw, lab, load
from cookbook.layouts import evaluate

page = load("ampere/staged_epilogue_gemm")
smem = evaluate(page.smem_layouts, cutlass.Float16, page.CONFIG)
draw.bank_grid(smem.c, cols=8, label="bank", title="C in shared memory: the bank of each chunk")

# %% tags=["lab"]
lab.gain("ampere/staged_epilogue_gemm", (8192, 8192, 512), over=["ampere/multistage_gemm"])

# %% [markdown]
# Loads, stages and main loop are imported from the page before.

# %%
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import Config as FirstConfig
from cookbook.recipes.ampere.first_gemm import make_load, row_major, tiled_mma
from cookbook.recipes.ampere.multistage_gemm import Config as MultistageConfig
from cookbook.recipes.ampere.multistage_gemm import mainloop
from cookbook.recipes.ampere.swizzled_gemm import make_operands, swizzled_rows, tile_of_cta

# %% [markdown]
# ## The sizes
#
# The tile of C, 64 KiB, lies where A and B were: when it is written, every stage has been read. So it needs no memory
# beside theirs.


# %%
@dataclass(frozen=True)
class Config(MultistageConfig):
    """Sizes of the kernel, in elements or counts."""

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


CONFIG = Config()


def config_for(arch: str) -> Config:
    """The sizes that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    small = arch.rstrip("af") in ("sm_86", "sm_89", "sm_120", "sm_121")
    return replace(CONFIG, tile_n=128, warps_n=2) if small else CONFIG


# %% [markdown]
# ## The layout of C
#
# A warp writes eight rows at a time and reads along a row. Rows of a tile of C are 512 bytes: unswizzled, eight of them
# begin in the same bank. So C has the swizzle of A and B. Its *layout atom* is the smallest pattern that repeats (not a
# copy or MMA atom): 8 x 64 elements, eight rows of 128 bytes. `tile_to_shape` repeats it until the shape is full;
# `order=(0, 1)` goes down the rows first.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, N)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B as on the page before; C, once per tile, in the same swizzle."""
    row = cute.make_layout((8, 64), stride=(64, 1))  # 128 bytes, whatever tile_n
    c = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, row)
    return SmemLayouts(
        a=swizzled_rows(config.tile_m, config),
        b=swizzled_rows(config.tile_n, config),
        c=cute.tile_to_shape(c, (config.tile_m, config.tile_n), order=(0, 1)),
    )


# %% [markdown]
# ## The copies
#
# New are the two copies of C: into shared memory, two elements a thread, as `mma.sync` leaves them; and from there to
# global memory in rows. `vec` says how many elements a thread stores at a time. 8 are 16 bytes. Where N, the row stride
# or the address is no multiple of that, it is 4, 2 or 1.


# %%
class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory."""

    g2s_a: cute.TiledCopy  # cp.async, 16 bytes a thread
    g2s_b: cute.TiledCopy
    s2r_a: cute.TiledCopy  # ldmatrix.x4: four 8x8 matrices a warp
    s2r_b: cute.TiledCopy
    r2s_c: cute.TiledCopy  # st.shared, two elements a thread
    s2g_c: cute.TiledCopy  # ld.shared and st.global, `vec` elements a thread


def rowwise_copy(atom: cute.CopyAtom, threads: int, row: int, vec: int) -> cute.TiledCopy:
    """Consecutive threads along a row of `row` elements, `vec` elements each."""
    per_row = gcd(row // vec, threads)  # a row of 24 vectors: 8 threads go over it three times
    layout = cute.make_layout((threads // per_row, per_row), stride=(per_row, 1))
    return cute.make_tiled_copy_tv(atom, layout, cute.make_layout((1, vec)))


def tiled_copies(dtype, config: FirstConfig, vec: int = 8) -> TiledCopies:
    """All copies; `vec` elements (8, 4, 2 or 1) of C go to global memory at a time."""
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    cp_async = cute.make_copy_atom(past_l1, dtype, num_bits_per_copy=128)
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
    pair = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=32)
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    mma = tiled_mma(dtype, config)
    return TiledCopies(
        g2s_a=rowwise_copy(cp_async, config.threads, config.tile_k, 8),
        g2s_b=rowwise_copy(cp_async, config.threads, config.tile_k, 8),
        s2r_a=cute.make_tiled_copy_A(ldmatrix, mma),
        s2r_b=cute.make_tiled_copy_B(ldmatrix, mma),
        r2s_c=cute.make_tiled_copy_C(pair, mma),
        s2g_c=rowwise_copy(wide, config.threads, config.tile_n, vec),
    )


# %% [markdown]
# ## The epilogue
#
# The threads meet before they write, because a warp may still read what C takes the place of; and they meet before they
# read. (`cp_async_wait_group(0)` lets no copy arrive late.) A store lies inside the matrix or outside of it, never
# across the edge, so one comparison guards it.
#
# `autovec_copy` copies in the widest accesses that layout and alignment allow. Of the modes (VEC, REST_M, REST_N),
# `VEC` is one access, and the others count its repetitions down and across. In `rounded`, `load` takes a tensor in
# registers as one value, `to` converts it, and `store` writes it back.


# %%
@cute.jit
def store(
    values: cute.Tensor,
    sC: cute.Tensor,
    gC: cute.Tensor,
    cC: cute.Tensor,
    limit: cute.Shape,
    copies: TiledCopies,
    tidx: cutlass.Int32,
):
    """Registers -> swizzled shared memory -> global memory. gC, cC: (M, N) tile and its coordinates."""
    thr = copies.r2s_c.get_slice(tidx)
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()  # every warp has read its last stage
    cute.copy(copies.r2s_c, thr.retile(values), thr.partition_D(sC))
    cute.arch.sync_threads()
    thr = copies.s2g_c.get_slice(tidx)
    tCsC, tCgC, tCcC = thr.partition_S(sC), thr.partition_D(gC), thr.partition_D(cC)  # (VEC, REST_M, REST_N)
    for m in cutlass.range(cute.size(tCsC, mode=[1]), unroll=8):
        for n in cutlass.range_constexpr(cute.size(tCsC, mode=[2])):
            if cute.elem_less(tCcC[0, m, n], limit):
                cute.autovec_copy(tCsC[None, m, n], tCgC[None, m, n])


@cute.jit
def rounded(acc: cute.Tensor, dtype: cutlass.Constexpr):
    """The accumulators in `dtype`."""
    rC = cute.make_fragment_like(acc, dtype)
    rC.store(acc.load().to(dtype))
    return rC


# %% [markdown]
# ## The kernel
#
# Its shared memory is allocated by hand, because C lies where A and B lay.


# %%
def smem_tensor(pointer: cute.Pointer, layout: cute.ComposedLayout, dtype) -> cute.Tensor:
    """A tile in shared memory, swizzled as its layout says."""
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, dtype), layout.outer)


def smem_tensors(smem: cute.Pointer, layouts: SmemLayouts, element, dtype) -> tuple[cute.Tensor, ...]:
    """A and B of `element`, one behind the other, and C of `dtype` where they are.

    The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only if `smem` is a multiple of 1024 bytes.
    """
    smem_b = smem + cute.size_in_bytes(element, layouts.a)
    sA, sB = smem_tensor(smem, layouts.a, element), smem_tensor(smem_b, layouts.b, element)
    return sA, sB, smem_tensor(smem, layouts.c, dtype)


# %%
@cute.kernel
def kernel(
    mA: cute.Tensor,  # (M, K)
    mB: cute.Tensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """One CTA computes one tile of C."""
    tidx, _, _ = cute.arch.thread_idx()
    tile = tile_of_cta(mC.shape, config)
    layouts, copies, mma = smem_layouts(dtype, config), tiled_copies(dtype, config, vec), tiled_mma(dtype, config)
    sA, sB, sC = smem_tensors(SmemAllocator().allocate(config.smem_bytes, 1024), layouts, dtype, dtype)
    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile[0], tidx)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile[1], tidx)

    shape = (config.tile_m, config.tile_n)
    gC, cC = (cute.local_tile(x, shape, tile) for x in (mC, cute.make_identity_tensor(mC.shape)))  # (M, N)
    acc = cute.make_rmem_tensor(mma.partition_shape_C(shape), cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    a, b = make_operands(mma, copies, sA, sB, tidx)
    mainloop(mma, acc, a, b, (load_a, load_b), config)
    store(rounded(acc, dtype), sC, gC, cC, mC.shape, copies, tidx)


# %% [markdown]
# ## The launch and `matmul`
#
# `gemm` differs in `vec`: a kernel is compiled for each width of store that calls ask for.


# %%
def matrices(pA, pB, pC, mnk, strides, vec: int) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
    """A (M, K), B (N, K) and C (M, N); rows of C begin at multiples of `vec` elements."""
    (m, n, k), (lda, ldb, ldc) = mnk, strides
    return row_major(pA, m, k, lda, 8), row_major(pB, n, k, ldb, 8), row_major(pC, m, n, ldc, vec)


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
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    mA, mB, mC = matrices(pA, pB, pC, mnk, strides, vec)
    tiles = cute.ceil_div(mnk[0], config.tile_m) * cute.ceil_div(mnk[1], config.tile_n)
    kernel(mA, mB, mC, pA.dtype, config, vec).launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch), vec), options=options)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch), call.vec), (call.mnk, call.strides)


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
# The check is of the cells above: drop a `sync_threads` of `store`, or the swizzle of C, and check again.

# %% tags=["lab"]
lab.check_cells("ampere/staged_epilogue_gemm", shapes=[(200, 333, 64)], dtypes=["float16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# What does the epilogue of a tile take of an SM, in clocks? We count two things:
#
# * **lines**: each line of 128 bytes that a store instruction of a warp touches takes a clock (assumed);
# * **shared memory**: wavefronts of both copies, counted from the layouts.
#
# Without shared memory a warp's instruction stores 32 elements in eight rows, so it touches eight lines. With it, 16
# bytes a thread are 512 bytes: four lines.

# %% tags=["lab"]
from cookbook.lab import LATENCY, by_cp_async, copy_wavefronts, records, results_table, table

BEFORE, HERE = "ampere/multistage_gemm", "ampere/staged_epilogue_gemm"
copies = evaluate(page.tiled_copies, cutlass.Float16, page.CONFIG)
elements = page.CONFIG.tile_m * page.CONFIG.tile_n
lines = {BEFORE: elements / 32 * 8, HERE: 2 * elements / 128}
through = 0.0
for name in ("r2s_c", "s2g_c"):
    through += sum(each * n for (each, _), n in copy_wavefronts(name, getattr(copies, name), smem.c).items())
epilogue = {BEFORE: lines[BEFORE], HERE: lines[HERE] + through}
rows = [["lines", *(f"{n:.0f}" for n in lines.values())], ["shared memory", "0", f"{through:.0f}"]]
rows.append(["the epilogue takes", *(f"{clocks:.0f}" for clocks in epilogue.values())])
Markdown(table(["clocks for a tile of C", *(f"`{name}`" for name in lines)], rows))

# %% [markdown] tags=["lab"]
# A tile takes the latency of its first load, its k-tiles, and its epilogue. (The [first
# GEMM](first_gemm.ipynb#the-prediction) has the rules; one CTA has an SM to itself.) So the gain depends on K:

# %% tags=["lab"]
k_tile = {name: by_cp_async(name)["a k-tile takes"] for name in (BEFORE, HERE)}


def gain(k: int) -> float:
    """Return how many times as fast a tile with the new epilogue is done, by the count."""
    before, here = (LATENCY + k / page.CONFIG.tile_k * k_tile[name] + epilogue[name] for name in (BEFORE, HERE))
    return before / here


SHAPES = [(8192, 8192, 512), (4096, 4096, 4096), (8192, 8192, 8192)]
rows = [[" x ".join(map(str, shape)), f"{gain(shape[2]):.2f}x"] for shape in SHAPES]
Markdown(table(["M x N x K", "gain, predicted"], rows))

# %% tags=["lab", "gains"]
predicted = {HERE: round(gain(8192), 2)}
predicted

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, the page before among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("ampere/staged_epilogue_gemm", matmul, (8192, 8192, 512))

# %% tags=["lab"]
Markdown(results_table("ampere/staged_epilogue_gemm"))

# %% tags=["lab"]
rows = []
for r in records.select(HERE, "timed"):
    if BEFORE in r["peers"] and not records.is_stale(r):
        where = [r["device"], " x ".join(map(str, r["shape"])), r["dtype"]]
        rows.append([*where, f"{gain(r['shape'][2]):.2f}x", f"{r['peers'][BEFORE]['ratio']:.2f}x"])
header = ["device", "M x N x K", "dtype", f"gain over `{BEFORE}`, predicted", "measured"]
Markdown(table(header, rows, right=2) if rows else "*Not measured on a GPU yet.*")

# %% [markdown] tags=["lab"]
# It gains more than predicted, most of all where K is short. So the epilogue with single elements takes longer than
# counted: a clock for each line is too little. What a line costs has not been measured by itself.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "tensors_with_b_first": (
        "smem_tensors",
        """\
    smem_b = smem + cute.size_in_bytes(element, layouts.a)
    sA, sB = smem_tensor(smem, layouts.a, element), smem_tensor(smem_b, layouts.b, element)""",
        "    raise NotImplementedError",
        "Let B lie first, and A behind it. C stays where it is.",
        (
            "`cute.size_in_bytes(element, layout)` says how much room a tile takes.",
            "A begins behind all stages of B.",
        ),
        (
            "Both sizes are multiples of 1024 bytes, so that the swizzle of the second tile begins where its "
            "layout says."
        ),
        """\
    smem_a = smem + cute.size_in_bytes(element, layouts.b)
    sA, sB = smem_tensor(smem_a, layouts.a, element), smem_tensor(smem, layouts.b, element)""",
    ),
    "store_at_risk": (
        "store",
        """\
    cute.arch.sync_threads()  # every warp has read its last stage
""",
        "",
        '"The main loop is over, and no copy is on its way: shared memory is free."',
        (
            "Where does C lie?",
            "Is the main loop over for *every* warp?",
        ),
        (
            "C lies where A and B lie. A warp that is done writes its part of C over fragments that a slower warp "
            "has not fetched yet."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("ampere/staged_epilogue_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An epilogue is counted like a copy: in lines of memory, and in wavefronts of shared memory. Every later kernel of this
# track stores C through shared memory. Next: [three layouts of shared memory](smem_gemm.ipynb), and an order of tiles
# for L2.
