# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "A wider tile: two warpgroups share B"
#     claim: >-
#       A tile of C twice as wide loads a quarter fewer bytes for each product. Two warpgroups hold its accumulators.
#       L2's rate predicts a large gain; little of it comes.
#     track: hopper
#     order: 27
#     builds_on: hopper/multistage_gemm
#     pays: {at: [4096, 4096, 4096], over: hopper/multistage_gemm}
#     compared_with: hopper/multistage_gemm
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     path: tma, 4 stages -> swizzled shared memory -> wgmma, two warpgroups -> stores of single elements
#     instructions: [UTMALDG.2D, HGMMA, SYNCS, WARPGROUP.DEPBAR, STG.E.U16]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "CUTLASS, efficient GEMM: threadblock and warp tiles", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/efficient_gemm.html"}
# ---

# %% [markdown]
# # A wider tile: two warpgroups share B
#
# **Claim.** Three numbers change from [the page before](multistage_gemm.ipynb). A CTA computes 128 x 256 elements of C,
# not 128 x 128. Two warpgroups do it, not one: 64 rows each, with the same tile of B. And shared memory has four
# stages. For each product the CTA loads a quarter fewer bytes. L2's rate predicts a large gain; little of it comes, and
# the page says what is known of the rest.
#
# The product in tiles of 128 x 256; a CTA's tile in the parts of its two warpgroups; their parts in instructions.

# %% tags=["lab"]
from cookbook import draw, lab

draw.gemm_tiles((512, 512, 256), (128, 256, 64), (2, 1), (64, 256, 16))

# %% [markdown]
# ## Why wider is less
#
# For each step along K a CTA loads m rows of A and n rows of B, and does m * n products:
#
# | a CTA's tile | rows of A and B | products for each row |
# |---|---:|---:|
# | 128 x 128, the page before | 256 | 64 |
# | 128 x 256, here | 384 | 85.3 |
#
# Why two warpgroups? One thread has 255 registers at most. 128 x 256 accumulators are 256 a thread for one warpgroup,
# and 128 for each of two. Each multiplies its 64 rows of A by the whole of B, which is loaded once.
#
# ## The kernel
#
# It is the kernel of the page before, which reads every size from its configuration: `tiled_mma` puts one warpgroup
# below the other, as many as `threads` says. Warp 0 asks TMA for both of them, and `sync_threads` holds all eight warps
# together.

# %%
from dataclasses import dataclass

import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.hopper.first_gemm import tiled_copies, tiled_mma
from cookbook.recipes.hopper.multistage_gemm import Config as MultistageConfig
from cookbook.recipes.hopper.multistage_gemm import kernel
from cookbook.recipes.hopper.swizzled_gemm import gemm, smem_layouts

# %% [markdown]
# ## The sizes
#
# A stage is 48 KiB. Four of them fill the shared memory of an SM, so it holds one CTA. Nothing works while that one
# stores C, or waits for its first k-tile.


# %%
@dataclass(frozen=True)
class Config(MultistageConfig):
    """Sizes of the kernel, in elements or counts."""

    tile_n: int = 256  # columns of C per CTA: the widest wgmma
    stages: int = 4  # pairs of A and B tiles: one is multiplied, three are on their way

    @property
    def threads(self) -> int:
        return 256  # two warpgroups, 64 rows of C each


CONFIG = Config()


# %% [markdown]
# The host side is written again, because it names this page's `CONFIG`.


# %%
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
# What is imported is checked too.

# %% tags=["lab"]
lab.check_cells("hopper/wide_tile_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## The prediction
#
# [The page before](multistage_gemm.ipynb#what-the-prediction-left-out) found that all SMs together ask L2 for more than
# it gives. So here L2 gives an SM its share of the rate that was [measured](../foundations/memory_ceiling.ipynb) on an
# H200, whose L2 is as large, at that GPU's highest clock. A k-tile takes what its loads or its multiplications take,
# whichever is longer. One of a tile twice as wide is worth twice the products.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import L2_PORT, by_tma, records, results_table, step_table, table

BEFORE, HERE = "hopper/multistage_gemm", "hopper/wide_tile_gemm"
SMS, MEMORY, MHZ = 132, "foundations/memory_ceiling", 1980
reads = [r["figures"]["read"] for r in records.select(MEMORY, records.CEILING, None) if not records.is_stale(r)]
l2_rate = max(size["gbps"] for size in reads[0].values())  # GB/s, of the buffer that is read fastest
share = l2_rate * 1e3 / MHZ / SMS  # bytes a clock, of an SM, all of them loading
steps = {name: by_tma(name) for name in (BEFORE, HERE)}
loading = {name: found["L2"] * L2_PORT / share for name, found in steps.items()}
takes = {name: max(loading[name], steps[name]["wgmma"]) for name in steps}
rows = [
    ["loads, at L2's rate for all SMs", *(f"{clocks:.0f}" for clocks in loading.values())],
    ["wgmma", *(f"{found['wgmma']:.0f}" for found in steps.values())],
    ["a k-tile takes", *(f"{clocks:.0f}" for clocks in takes.values())],
    ["of the tensor cores' rate", *(f"{steps[name]['wgmma'] / takes[name]:.0%}" for name in steps)],
]
Markdown(table(["clocks for a k-tile", *(f"`{name}`" for name in steps)], rows))

# %% [markdown] tags=["lab"]
# By this count both wait for their loads, and the wide one for a quarter fewer bytes for each product. The predicted
# gain:

# %% tags=["lab", "gains"]
rate = {name: steps[name]["wgmma"] / takes[name] for name in steps}
predicted = {HERE: round(rate[HERE] / rate[BEFORE], 2)}
predicted

# %% [markdown] tags=["lab"]
# ## Time
#
# This kernel and its peers, the page before among them, timed interleaved in one run.

# %% tags=["lab"]
lab.compare("hopper/wide_tile_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("hopper/wide_tile_gemm"))

# %% tags=["lab"]
Markdown(step_table(HERE, predicted[HERE], takes))

# %% [markdown] tags=["lab"]
# The page before takes *fewer* clocks than counted. The count is for the GPU's highest clock. At the lower clock of the
# run L2 gives an SM more bytes a clock, and the loads take:

# %% tags=["lab"]
for r in records.of_one_gpu(HERE, "timed", "bfloat16"):
    mhz = r["gpu"]["clock_mhz"]
    at_run = ", ".join(f"{name} {clocks * mhz / MHZ:.0f}" for name, clocks in loading.items())
    print(f"{r['shape'][0]}, {mhz:.0f} of {MHZ} MHz, clocks of a k-tile's loads: {at_run}")

# %% [markdown] tags=["lab"]
# The page before takes little more than these. This kernel takes much more than its loads or its `wgmma`s need.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab"]
import cutlass
import cutlass.cute as cute

from cookbook.recipes.hopper.first_gemm import Load

# %% tags=["lab", "tasks"]
TASKS = {
    "load_by_the_last_warp": (
        "load_k_tile",
        "    if warp_idx == 0 and k_tile <",
        """\
    raise NotImplementedError
    if warp_idx == 0 and k_tile <""",
        (
            "`load_k_tile`, imported: warp 0 asks TMA, for both warpgroups. Let the last warp of the CTA do it: "
            "change the `if`, and delete the `raise`."
        ),
        (
            "`config.threads` says how many threads the CTA has; a warp has 32.",
            "Warps are numbered from 0.",
        ),
        "Which warp asks does not matter. It must be one: the barrier expects one arrival.",
        "    if warp_idx == config.threads // 32 - 1 and k_tile <",
    ),
    "mainloop_at_risk": (
        "mainloop",
        "        warpgroup.wait_group(1)",
        "        warpgroup.wait_group(1 + config.threads // 256)",
        '"Two warpgroups have twice as many commit groups on their way as one."',
        (
            "Whose commit groups does `wait_group` count?",
            "Behind the barrier the stage of the k-tile before is overwritten. Who may still read it?",
        ),
        (
            "A warpgroup counts its *own* commit groups alone, however many there are beside it. Only the newest "
            "one may be left: the one before reads the stage that is loaded next."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("hopper/wide_tile_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A wider tile asks less of L2. Most of the predicted gain did not come, at the smaller cube least of all. So this
# kernel waits for something else. A part of that is known: an SM holds only one CTA, and nothing works while that one
# stores C in single elements. A [later step](tma_wgmma_gemm.ipynb) shows what that costs. What else it waits for is not
# known.
#
# Eight warps meet in every k-tile, only because one of them loads. Next: [a warp that only
# loads](producer_warp_gemm.ipynb).
