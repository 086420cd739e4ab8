# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "A wider tile: fewer fragments for each product"
#     claim: >-
#       A tile of C twice as wide takes a third fewer fragments from shared memory for each product. The first GEMM
#       waits for its fragments, so it gains by it, though the wider tile leaves an SM room for one CTA only.
#     track: ampere
#     order: 6
#     builds_on: ampere/first_gemm
#     pays: {at: [4096, 4096, 4096], over: ampere/first_gemm}
#     compared_with: ampere/first_gemm
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async -> shared memory, row by row -> ldmatrix -> mma.sync, 64 x 64 a warp -> stores of single elements
#     instructions: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-load-instruction-ldmatrix"}
#       - {title: "CUTLASS, efficient GEMM: threadblock and warp tiles", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/efficient_gemm.html"}
# ---

# %% [markdown]
# # A wider tile: fewer fragments for each product
#
# **Claim.** One number changes from [the first GEMM](first_gemm.ipynb): a CTA computes 128 x 256 elements of C, not
# 128 x 128. A warp's part of it is 64 x 64. For each product it takes a third fewer
# [fragments](../../docs/glossary.md#fragment) out of shared memory, and for these the first GEMM waits.
#
# The product in tiles of 128 x 256; a CTA's tile in the parts of its eight warps; a warp's part in instructions. Drawn
# contiguous: the counts are right, but a warp's instructions alternate with those of the other warps.

# %% tags=["lab"]
from cookbook import draw, lab

draw.gemm_tiles((512, 512, 256), (128, 256, 64), (2, 4), (16, 8, 16))

# %% [markdown]
# ## Why wider is less
#
# A warp that computes m x n elements of C reads m rows of A and n rows of B for each step along K. So it pays `m + n`
# rows for `m * n` products:
#
# | a warp's part | rows of A and B | products for each row |
# |---|---:|---:|
# | 64 x 32, the first GEMM | 96 | 21.3 |
# | 64 x 64, here | 128 | 32 |
#
# By the same count for the CTA's tile, its loads from L2 fall by a quarter. The price: 128 accumulators a thread
# instead of 64. The registers of an SM hold one such CTA, not two, so nothing works while this one waits for its load.
#
# ## The kernel
#
# It is the first GEMM's. That kernel reads every size from its configuration, so this page imports it whole. An
# `import` of `cookbook.recipes` is of another page: what is imported is explained there.

# %%
from dataclasses import dataclass

import cutlass
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.ampere.first_gemm import EXPECTED_EXCESS, gemm, kernel, smem_layouts, tiled_copies, tiled_mma
from cookbook.recipes.ampere.first_gemm import Config as FirstConfig

# %% [markdown]
# ## The sizes
#
# One field of [the first GEMM's](first_gemm.ipynb) configuration has another value. Eight warps still stand in a 2 x 4
# grid over the tile of C, so each has 64 x 64 of it.


# %%
@dataclass(frozen=True)
class Config(FirstConfig):
    """Sizes of the kernel, in elements or counts."""

    tile_n: int = 256  # columns of C per CTA: 64 for each of four warps side by side


CONFIG = Config()


# %% [markdown]
# The host side is the first GEMM's, too. Three definitions are written again, because they name this page's `CONFIG`.


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, 2)
    return compile_host(gemm, arch, pointers, (config or CONFIG,), options=options)


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
# What is imported is checked too.

# %% tags=["lab"]
lab.check_cells("ampere/wide_tile_gemm", shapes=[(200, 333, 64)], dtypes=["float16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# The rules are those of [the first GEMM](first_gemm.ipynb#the-prediction). For one k-tile we count the clocks of an SM:
# wavefronts of `ldmatrix` and `cp.async`, bytes from L2 (64 a clock), multiply-adds (2048 a clock), and 800 clocks
# until a load arrives (assumed). With one stage they add up; CTAs that share an SM divide the sum, down to the busiest
# unit.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import by_cp_async, results_table, step_table, table

BEFORE, HERE = "ampere/first_gemm", "ampere/wide_tile_gemm"
steps = {name: by_cp_async(name) for name in (BEFORE, HERE)}
share = {name: found["mma.sync"] / found["a k-tile takes"] for name, found in steps.items()}
rows = [[unit, *(f"{found[unit]:.0f}" for found in steps.values())] for unit in steps[HERE]]
rows.append(["of the tensor cores' rate", *(f"{part:.1%}" for part in share.values())])
Markdown(table(["clocks for a k-tile", *(f"`{name}`" for name in steps)], rows))

# %% [markdown] tags=["lab"]
# A k-tile takes longer, and is worth twice the products. The predicted gain:

# %% tags=["lab", "gains"]
predicted = {HERE: round(share[HERE] / share[BEFORE], 2)}
predicted

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, the first GEMM among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("ampere/wide_tile_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("ampere/wide_tile_gemm"))

# %% tags=["lab"]
counted = {name: found["a k-tile takes"] for name, found in steps.items()}
Markdown(step_table(HERE, predicted[HERE], counted))

# %% [markdown] tags=["lab"]
# It gains more than predicted, and the clocks say where. (They are those of the run: its median clock, all SMs taken to
# be busy.) The first GEMM takes more of them than counted: two CTAs do not hide all of each other's waits. This kernel
# takes fewer: its eight warps are not in step, so one multiplies while another one fetches. The count knows no such
# overlap inside a CTA. That is what fits both figures; it has not been measured by itself.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab"]
import cutlass.cute as cute

# %% tags=["lab", "tasks"]
TASKS = {
    "kernel_across": (
        "kernel",
        """\
    tiles_m = cute.ceil_div(mC.shape[0], config.tile_m)
    tile_m, tile_n = cta % tiles_m, cta // tiles_m""",
        "    raise NotImplementedError",
        ("The kernel of this page, imported: CTAs go down the columns of tiles. Let them go along the rows of tiles."),
        (
            "How many tiles does a row have? Not as many as a column of this C.",
            "Tiles across: N over `config.tile_n`, rounded up.",
        ),
        "The quotient is the row now, and the rest the column.",
        """\
    tiles_n = cute.ceil_div(mC.shape[1], config.tile_n)
    tile_m, tile_n = cta // tiles_n, cta % tiles_n""",
    ),
    "kernel_at_risk": (
        "kernel",
        "cute.ceil_div(mC.shape[0], config.tile_m)",
        "cute.ceil_div(mC.shape[0], config.tile_n)",
        "One line counts the tiles. It was right on the page before, where a tile is as wide as it is high.",
        (
            "How many CTAs does `gemm` launch, and which tile does each of them take?",
            "`tiles_m` is how many tiles lie below each other: each is `tile_m` rows high.",
        ),
        (
            "With `tile_n` a column has half of its tiles: CTAs go to the next column too early, and the lower "
            "half of C is not computed."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("ampere/wide_tile_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A larger tile asks less of shared memory for each product. What it asks still takes eight times the wavefronts that it
# should, because the rows of a tile begin in the same bank. Next: [a swizzle](swizzled_gemm.ipynb), which is three
# bits.
