# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Swap A/B
#     claim: >-
#       C transposed is the product of the swapped operands; with A and B swapped, a tile of C may have any multiple of
#       8 rows instead of 64.
#     track: hopper
#     order: 85
#     aside: Layouts and majors
#     builds_on: hopper/overlapped_epilogue_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, multicast -> swizzled shared memory -> wgmma of swapped operands -> stmatrix.trans -> tma
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]
#     baselines: [256x208, 128x128]
#     bench_shapes: [[1536, 1536, 1536], [1536, 1536, 8192], [4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, stmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
# ---

# %% [markdown]
# # Swap A/B
#
# **Claim.** C transposed is the product of the operands in each other's places: C^T = B^T A^T. With A and B swapped, a
# tile of C may have any multiple of 8 rows, and not only of 64.

# %% tags=["lab"]
from cookbook import access, banks, draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/swap_ab_gemm", (8192, 8192, 8192), over=["256x208", "128x128"])

# %% [markdown]
# Both operands are K-major in either role, so the kernel may take `b` as its A and `a` as its B. That exchanges the
# steps in which a tile of C can grow:
#
# | a tile of C | step of its rows | why | step of its columns | why |
# |---|---|---|---|---|
# | not swapped | 64 | rows of one `wgmma` | 16 | columns of one `stmatrix.x4` |
# | swapped | 8 | columns of one `wgmma` | 64 | rows of one `wgmma` |
#
# (`wgmma` takes 8 to 256 columns in steps of 8. `stmatrix.x4` writes four 8 x 8 matrices, two of them side by side: 16
# columns. Where a subtile's width is no multiple of 16, `stmatrix.x2` writes two, one above the other: 8 columns. Not
# swapped, such a width would leave 16 bytes for a line of C.) The *rows* of C now have the finer step. That gains in
# two ways:
#
# * **Tiles that fill a wave.** C of 1536 x 1536 is 144 tiles of 128 x 128. An H200 has 132 SMs, so the second *wave*
#   has 12 tiles. It is also 132 tiles of 144 x 128: one full wave.
# * **The largest tile.** 208 x 256 loads fewer elements per multiply-add than 256 x 160. Not swapped, it is 256 x 208,
#   and 208 columns of C are no whole lines of 128 bytes: 64 does not divide 208. Swapped, 208 is a number of rows,
#   which nothing has to divide.
#
# The swap changes the layout of the epilogue subtiles, one option of `stmatrix`, and the order of arguments. Scheduler,
# producer, main loop and epilogue are imported from [the page before](overlapped_epilogue_gemm.ipynb).

# %%
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import warp

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.hopper.overlapped_epilogue_gemm import Config as OverlappedConfig
from cookbook.recipes.hopper.overlapped_epilogue_gemm import kernel
from cookbook.recipes.hopper.persistent_gemm import TiledCopies, launch
from cookbook.recipes.hopper.persistent_gemm import smem_layouts as unswapped_layouts
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, smem_atom, tiled_mma, wgmma

# %% [markdown]
# ## The variants
#
# `swap_ab` is a field of the configuration. With it, `tile_m` counts *columns* of the product and `tile_n` its rows; a
# variant's name has rows of the product first.
#
# | variant | lines of C in shared memory | overlapped subtiles | it shows |
# |---|---|---|---|
# | `208x256 swapped` | 128 bytes | none: 208 accumulators fill the registers | the largest tile |
# | `256x208` | 32 bytes: 16 divides 208, 32 and 64 do not | none, likewise | the same tile without the swap |
# | `144x128 swapped` | 128 bytes | 1, its only one | C of 1536 x 1536 in one wave |
# | `128x128` | 128 bytes | 2, all | the next tile without the swap, in two waves |
#
# C of 1536 x 1536 has 11 rows and 12 columns of tiles of 144 x 128. 11 is odd, so a cluster of `144x128 swapped` takes
# two neighbours in a row. TMA clips the last row of tiles.


# %%
@dataclass(frozen=True)
class Config(OverlappedConfig):
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    swap_ab: bool = False  # A is b, B is a, C lies by columns: `tile_m` are columns of the product, `tile_n` rows


SWAPPED = {"swap_ab": True, "epi_stages": 1}  # a subtile has all rows that the tile has of C
VARIANTS = {
    "208x256 swapped": Config(tile_m=256, tile_n=208, stages=3, overlapped=0, epi_n=208, **SWAPPED),
    "256x208": Config(tile_m=256, tile_n=208, stages=3, overlapped=0, epi_n=16),
    "144x128 swapped": Config(
        tile_n=144, stages=5, cluster_m=2, cluster_n=1, swizzle_size=16, overlapped=1, epi_n=144, **SWAPPED
    ),
    "128x128": Config(tile_n=128, stages=6, overlapped=2),
}
DEFAULT = "208x256 swapped"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The layouts
#
# A and B change places as they are: both are K-major. A subtile of C lies by *columns*. What the tensor cores see as 64
# rows of one column follows one another in memory: 128 bytes of one row of the product. The atom is the same with its
# modes exchanged.
#
# `stmatrix` has a form for it, `.trans`, which transposes each 8 x 8 matrix on its way. A thread holds two neighbours
# along what is N here; they go to two lines.


# %%
def mirrored_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The atom whose lines run along the first mode: (64, 8):(1, 64) for (8, 64):(64, 1), and the same swizzle."""
    width = smem_atom(dtype, contiguous).outer.shape[1]
    bits = (width * dtype.width // 128).bit_length() - 1  # of 1, 2, 4 or 8 chunks in a line
    lines = cute.make_layout((width, 8), stride=(1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def smem_layouts(dtype, config) -> SmemLayouts:
    """Return those of the page before; with `swap_ab` a subtile of C lies by columns."""
    layouts = unswapped_layouts(dtype, config)
    if not config.swap_ab:
        return layouts
    subtile, shape = mirrored_atom(dtype, 64), (64, config.epi_n, 2 * config.epi_stages)
    return layouts._replace(c=cute.tile_to_shape(subtile, shape, order=(0, 1, 2)))


def tiled_copies(dtype, config) -> TiledCopies:
    """The copy of the epilogue: a subtile has its accumulators where a wgmma of EPI_N columns would have them."""
    matrices = 4 if config.epi_n % 16 == 0 else 2  # a warp's 16 rows of 16 columns, or of 8
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=config.swap_ab, num_matrices=matrices), dtype)
    subtile = cute.make_tiled_mma(wgmma(dtype, config.epi_n), (1, 1, 1))
    return TiledCopies(r2s_c=cute.make_tiled_copy_C(stmatrix, subtile))


# %% [markdown] tags=["lab"]
# The first eight lines of both kinds of subtile. The small pair in each cell is its first element: (row, column) of
# what the tensor cores compute. The other seven follow along the row in the one, down the column in the other. Either
# way a line is 128 bytes of a row of the product.

# %% tags=["lab"]


def stmatrix_of(variant: str) -> list[access.Access]:
    """Every stmatrix of a warp, into one subtile."""
    layouts = evaluate(smem_layouts, cutlass.BFloat16, VARIANTS[variant])
    copies = evaluate(tiled_copies, cutlass.BFloat16, VARIANTS[variant])
    found = access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)
    counted = {banks.wavefronts(each.addresses, each.width).actual for each in found}
    print(f"{variant}: {len(found)} stmatrix a warp and subtile; wavefronts each: {sorted(counted)}; 4 is ideal")
    return found


def first_lines(dtype) -> dict[str, cute.ComposedLayout]:
    """Eight lines of a subtile of C, by variant."""
    return {"128x128": smem_atom(dtype, 64), DEFAULT: mirrored_atom(dtype, 64)}


draw.atom_orders(evaluate(first_lines, cutlass.BFloat16), title="Eight lines of an epilogue subtile, bfloat16")

# %% [markdown] tags=["lab"]
# A `stmatrix.trans` writes 16 bytes of eight of these columns for each of its matrices:

# %% tags=["lab"]
draw.access_view(stmatrix_of(DEFAULT)[0])

# %% [markdown] tags=["lab"]
# A and B lie as before: K-major, in the 128-byte mode.

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, VARIANTS[DEFAULT]).a)

# %% [markdown]
# ## The launch
#
# None of the kernel depends on the swap; what it calls C is (N, M) of the product. The launch swaps A and B, M and N,
# and the two strides of C. Then it goes on as on [the page on persistent CTAs](persistent_gemm.ipynb).


# %%
@cute.jit
def matrices(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    config: cutlass.Constexpr,
):
    """A (M, K), B (N, K) and C (M, N) as the kernel sees them: with `swap_ab` its C is (N, M), and A and B are swapped.

    `strides` are the row strides of A, B, C in elements.
    """
    m, n, k = mnk
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    stride_c = (ldc, 1)
    if cutlass.const_expr(config.swap_ab):
        m, n, pA, pB, lda, ldb, stride_c = n, m, pB, pA, ldb, lda, (1, ldc)
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=stride_c))
    return mA, mB, mC


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    mA, mB, mC = matrices(pA, pB, pC, mnk, strides, config)
    layouts, r2s_c = smem_layouts(pA.dtype, config), tiled_copies(pA.dtype, config).r2s_c
    launch(mA, mB, mC, layouts, r2s_c, sms, stream, kernel, config)


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
    variant: one of VARIANTS: the tile, and whether A and B are swapped.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that
    is no multiple of 8, the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# Waves of each variant on an H200, the part of the clocks in which the SMs multiply, and the operand elements loaded
# per 1000 multiply-adds:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table, table

SMS = 132  # of an H200
SIZES = (1536, 4096, 8192)


def filled(config: Config, n: int) -> str:
    """Waves of C (n, n), and how full they are."""
    tiles = -(-n // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n))
    waves = -(-tiles // (SMS // config.cluster))
    return f"{waves} ({n * n / (waves * SMS * config.tile_m * config.tile_n):.0%})"


rows = [
    [name, f"{1000 * (c.tile_m + c.tile_n) / (c.tile_m * c.tile_n):.1f}", *(filled(c, n) for n in SIZES)]
    for name, c in VARIANTS.items()
]
Markdown(table(["variant", "loads", *(f"waves of {n} x {n} (useful)" for n in SIZES)], rows))

# %% [markdown] tags=["lab"]
# So at 1536 x 1536 `144x128 swapped` should be the fastest: one wave. At the largest size `208x256 swapped` should be,
# by its loads, and `256x208` behind it: its stores write 32 bytes at a time, a quarter of a line of L2.
#
# ## Check

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/swap_ab_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/swap_ab_gemm", matmul, (8192, 8192, 8192))

# %% [markdown] tags=["lab"]
# All variants and their peers, interleaved in one run on one GPU; "ours" is the default, called without an argument.

# %% tags=["lab"]
Markdown(results_table("hopper/swap_ab_gemm"))

# %% [markdown] tags=["lab"]
# Both predictions hold. At 1536 x 1536 `144x128 swapped` is the fastest. At the largest size `208x256 swapped` is ahead
# of `256x208`; no counter says that the stores are the reason.
#
# ## Conclusion
#
# Which operand is A is a choice of the kernel, not of the product. Swapped, the rows of a tile come in steps of 8, and
# nothing else in the kernel changes but the lines of its epilogue. So there can be a tile for almost every size, and
# something has to choose.
#
# Next: [how to choose a tile](tile_heuristics.ipynb), before there is a kernel with all of them.
