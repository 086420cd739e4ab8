# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: A GEMM with cp.async, ldmatrix and mma.sync
#     claim: >-
#       A hand-made swizzle keeps every access to shared memory at its ideal, and ldmatrix loads the next fragments
#       while mma.sync multiplies.
#     track: ampere
#     order: 20
#     builds_on: ampere/smem_gemm
#     pays: {at: [4096, 4096, 4096], over: ampere/smem_gemm}
#     targets: [sm_80, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async -> swizzled shared memory -> ldmatrix -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
#     sources:
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "PTX ISA, fragments of mma.m16n8k16", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"}
#       - {title: "CuTe, a GEMM tutorial", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0x_gemm_tutorial.html"}
#       - {title: "CuTe, predication", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0y_predication.html"}
# ---

# %% [markdown]
# # A GEMM with cp.async, ldmatrix and mma.sync
#
# **Claim.** While the tensor cores multiply one k-block, `ldmatrix` can load the fragments of the next: then shared
# memory and tensor cores work at the same time.

# %% tags=["lab"]
from cookbook import draw, lab
from cookbook.layouts import evaluate

lab.gain("ampere/ldmatrix_gemm", (4096, 4096, 4096), over=["ampere/smem_gemm"])

# %% [markdown]
# `cp.async` brings tiles from global to shared memory, 16 bytes a thread. `ldmatrix` takes four 8x8 matrices a warp
# into registers. `mma.sync` multiplies. The threads compute all addresses, so both copies can take more wavefronts than
# they need. One swizzle keeps both at their ideal ([the page before](smem_gemm.ipynb)).
#
# Every GPU since Ampere that has no `wgmma` or `tcgen05` works like this: A100, Ada, GeForce Blackwell. Names and order
# are those of [Hopper's GEMM](../hopper/tma_wgmma_gemm.ipynb), so that you can read the two next to each other.

# %%
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import Config as FirstConfig
from cookbook.recipes.ampere.first_gemm import Operand, tiled_mma
from cookbook.recipes.ampere.smem_gemm import Load, load_first_stages, load_tile, make_load, tile_of_cta
from cookbook.recipes.ampere.staged_epilogue_gemm import SmemLayouts, gemm, rounded, smem_tensors, store, tiled_copies
from cookbook.recipes.ampere.swizzled_gemm import make_operands

# %% [markdown]
# ## The sizes
#
# Eight warps in a 2 x 4 grid compute a 128 x 256 tile of C, 64 x 64 each: 128 accumulators a thread. A k-tile is 64
# along K: four k-blocks of 16. The rest of shared memory is *stages*. Each stage has room for one k-tile of A and of B.


# %%
@dataclass(frozen=True)
class Config(FirstConfig):
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per CTA
    tile_n: int = 256  # columns of C per CTA
    tile_k: int = 64  # 128 bytes: one row of the SW128 atom, four mma steps of 16
    stages: int = 4  # pairs of A and B tiles: one being read, the others arriving
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles

    @property
    def k_blocks(self) -> int:
        """Steps of an `mma.sync` along K in a k-tile."""
        return self.tile_k // 16

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


CONFIG = Config()  # 192 KiB of shared memory: data-centre Hopper and Blackwell
CONFIG_163K = Config(stages=3)  # A100
CONFIG_99K = Config(tile_n=128, stages=3)  # Ada, GeForce


def config_for(arch: str) -> Config:
    """The configuration that fits the shared memory of an architecture such as "sm_89"; "" means CONFIG."""
    chip = arch.rstrip("af")
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):
        return CONFIG_99K
    return CONFIG_163K if chip in ("sm_80", "sm_87") else CONFIG


# %% [markdown]
# ## The layouts and the copies
#
# A row of a tile is 64 elements, 128 bytes: all 32 banks. One phase of `ldmatrix` reads 16 bytes of each of eight rows.
# Without a swizzle they lie in the same four banks: 8 wavefronts instead of 1. `make_swizzle(3, 4, 3)` moves chunk *c*
# of row *r* to slot *c XOR r*, so the eight chunks of a column lie in eight slots. It is the atom of TMA and `wgmma`,
# chosen by the same rule: the widest row that divides the tile's contiguous extent.
#
# **Mind the units.** The swizzle counts *bytes* and is attached to the pointer. The layout under it, `(8, 64):(64, 1)`,
# counts *elements*.
#
# The MMA and the copies are those of [the page before](smem_gemm.ipynb). The A operand of `mma.sync.m16n8k16` is four
# 8x8 matrices: one `ldmatrix.x4`. Its B operand is two, so one `ldmatrix.x4` feeds two `mma`. CuTe derives from the MMA
# which address each lane gives to `ldmatrix`.


# %%
def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """Rows of 128, 64, 32 or 16 bytes, the widest that divides `contiguous` elements, and the swizzle for it."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.tile_n), (c.tile_m, c.tile_n), order=(0, 1)),
    )


# %% [markdown] tags=["lab"]
# Each row of the picture is one 128-byte line of shared memory, each column one of its eight 16-byte slots; the number
# is the chunk of the tile that lies there. Chunks of one colour are one *column* of the tile:

# %% tags=["lab"]
layouts = evaluate(smem_layouts, cutlass.Float16, CONFIG)
draw.swizzle_view(layouts.a)

# %% [markdown]
# ## Loading and the main loop
#
# Loading is that of [the page before](smem_gemm.ipynb). Rows beyond M or N are not read: they only reach parts of C
# that are never stored. The k-tiles *end* where K ends. Only the first can begin before the matrix, and it is loaded
# before the loop, with zeros for what is outside.
#
# The loop has two pipelines. Through shared memory `cp.async` runs `stages - 1` k-tiles ahead. Through registers
# `ldmatrix` runs one k-block ahead of `mma`. Before the last k-block of a tile the next fragments lie in the next
# stage. Only there the loop waits and synchronises.
#
# The loop asks for A and B in *different* k-blocks: together they would fill the memory pipe that `ldmatrix` needs,
# too. The code has the loop twice, with loads and without, because the compiler moves no instruction across a branch.
# ([The next page](pipelined_gemm.ipynb) measures each of these.)


# %%
@cute.jit
def fetch_block(x: Operand, stage: cutlass.Int32, k: cutlass.Constexpr):
    """The fragments of k-block `k`."""
    cute.copy(x.copy, x.smem[None, None, k, stage], x.into[None, None, k])


@cute.jit
def mainloop(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: Operand,
    b: Operand,
    load_a: Load,
    load_b: Load,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Multiply all k-tiles into `acc`; the first `stages - 1` have been asked for."""
    stages, k_blocks = config.stages, config.k_blocks
    read, write = cutlass.Int32(0), cutlass.Int32(stages - 1)
    cute.arch.cp_async_wait_group(stages - 2)
    cute.arch.sync_threads()
    fetch_block(a, read, 0)
    fetch_block(b, read, 0)
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    for first, last, loading in ((0, still_loading, True), (still_loading, k_tiles, False)):
        for k_tile in cutlass.range(first, last, unroll=1):
            for k in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(k == k_blocks - 1):
                    read = read + 1 if read + 1 < stages else cutlass.Int32(0)
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                fetch_block(a, read, (k + 1) % k_blocks)
                fetch_block(b, read, (k + 1) % k_blocks)
                if cutlass.const_expr(loading and k == 0):
                    load_tile(load_a, k_tile + stages - 1, write)
                if cutlass.const_expr(loading and k == min(1, k_blocks - 2)):
                    load_tile(load_b, k_tile + stages - 1, write)
                    write = write + 1 if write + 1 < stages else cutlass.Int32(0)
                if cutlass.const_expr(k == min(1, k_blocks - 2)):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one
                cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)


# %% [markdown]
# ## The kernel and `matmul`
#
# **Epilogue.** Each thread holds scattered pairs of C. They go to a swizzled tile where A and B were, and come back as
# rows. A store takes 16 bytes where N, the row stride and the address permit, down to one element for an odd N: it is
# all inside the matrix or all outside. `store` is that of [an epilogue through shared
# memory](staged_epilogue_gemm.ipynb#the-epilogue).
#
# **Rasterization.** CTAs that run together form a block of C, `swizzle_size` tiles high, and share rows of A and
# columns of B in L2 ([thread-block swizzle](../foundations/thread_block_swizzle.ipynb)).
#
# **`matmul`.** One compiled kernel serves all shapes. `Gemm`, which all recipes share, checks the operands, and for
# each kind of call keeps the compiled kernel with its launch arguments: a *plan*. The recipe says which GPUs it needs,
# what is compiled, and what the launch takes.


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

    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile[0], tidx, 8)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile[1], tidx, 8)
    k_tiles = cute.size(load_a.src, mode=[3])
    load_first_stages(load_a, load_b, k_tiles, config)

    shape = (config.tile_m, config.tile_n)
    gC, cC = (cute.local_tile(x, shape, tile) for x in (mC, cute.make_identity_tensor(mC.shape)))  # (M, N)
    acc = cute.make_rmem_tensor(mma.partition_shape_C(shape), cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    a, b = make_operands(mma, copies, sA, sB, tidx)
    mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config)
    store(rounded(acc, dtype), sC, gC, cC, mC.shape, copies, tidx)


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch), vec), options=options)


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch), call.vec), (call.mnk, call.strides)


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
# ## The prediction
#
# One CTA has an SM to itself. For one k-block we count how many clocks its shared memory is busy (a wavefront of
# `ldmatrix` or `cp.async` each), and its tensor cores, at the rate that
# [a loop of `mma.sync` alone](../foundations/tensor_core_ceiling.ipynb) reached. That rate is the *ceiling*. At worst
# the two add up; at best the larger counts.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import copy_wavefronts, records, results_table, table

LOOP, copies = "mma.sync m16n8k16, bf16", evaluate(tiled_copies, cutlass.Float16, CONFIG)
studied = [r for r in records.read() if r["recipe"] == "foundations/tensor_core_ceiling" and "H200" in r["device"]]
measured = [r["figures"].get("instructions", {}).get(LOOP) for r in studied]
RATE = max((found["flops_per_clock"] / 2 for found in measured if found), default=2048)  # multiply-adds a clock

tensor, shared = CONFIG.tile_m * CONFIG.tile_n * 16 / RATE, 0.0
for name in ("s2r_a", "s2r_b", "g2s_a", "g2s_b"):
    counted = copy_wavefronts(name, getattr(copies, name), getattr(layouts, name[-1]))
    shared += sum(each * n for (each, _), n in counted.items()) / (CONFIG.tile_k // 16)
worst, best = tensor / (shared + tensor), tensor / max(shared, tensor)
print(f"A k-block: smem {shared:.0f} clocks, tensor cores {tensor:.0f}: {worst:.0%} to {best:.0%} of a ceiling")

# %% [markdown] tags=["lab"]
# Both are busy for nearly the same time. So the overlap can gain almost a factor of two, and leaves little slack.
#
# ## Check

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/ldmatrix_gemm", shapes=[(200, 333, 64)], dtypes=["float16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("ampere/ldmatrix_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# On a Hopper GPU `torch.matmul` uses `wgmma`. The second table has the share of the ceiling, for products with tiles
# for all SMs.

# %% tags=["lab"]
Markdown(results_table("ampere/ldmatrix_gemm"))

# %% tags=["lab"]
rows = []
for r in records.of_one_gpu("ampere/ldmatrix_gemm", "timed"):
    if "ceiling" in r["peers"] and min(r["shape"]) >= 2048:  # tiles for all SMs
        share = r["peers"]["ceiling"]["median_ms"] / r["figures"]["median_ms"]
        of = [r["device"], " x ".join(map(str, r["shape"])), r["dtype"]]
        rows.append([*of, f"{worst:.0%} to {best:.0%}", f"{share:.0%}"])
Markdown(table(["device", "M x N x K", "dtype", "of the ceiling, predicted", "measured"], rows, right=3))

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "mainloop_at_once": (
        "mainloop",
        """\
                if cutlass.const_expr(loading and k == 0):
                    load_tile(load_a, k_tile + stages - 1, write)
                if cutlass.const_expr(loading and k == min(1, k_blocks - 2)):
                    load_tile(load_b, k_tile + stages - 1, write)
                    write = write + 1 if write + 1 < stages else cutlass.Int32(0)
                if cutlass.const_expr(k == min(1, k_blocks - 2)):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one""",
        "                raise NotImplementedError",
        "`mainloop` asks for A in one k-block and for B in the next one. Ask for both in the first k-block.",
        (
            ("The group is closed once for each k-tile, after its last load, also where nothing is loaded any more."),
            "`write` moves on by a stage when both operands have been asked for.",
        ),
        "Loads, `write` and the group, all in k-block 0.",
        """\
                if cutlass.const_expr(loading and k == 0):
                    load_tile(load_a, k_tile + stages - 1, write)
                    load_tile(load_b, k_tile + stages - 1, write)
                    write = write + 1 if write + 1 < stages else cutlass.Int32(0)
                if cutlass.const_expr(k == 0):
                    cute.arch.cp_async_commit_group()""",
    ),
    "mainloop_at_risk": (
        "mainloop",
        """\
                    read = read + 1 if read + 1 < stages else cutlass.Int32(0)
                    cute.arch.cp_async_wait_group(stages - 2)""",
        """\
                    read = read + 1 if read + 1 < stages else cutlass.Int32(0)
                    cute.arch.cp_async_wait_group(stages - 1)""",
        '"`stages - 1` k-tiles are on the way, so as many groups may be left."',
        (
            "Before the loop: how many groups are closed, and which of them must have arrived?",
            "In the last k-block of an iteration the fragments of the *next* k-tile are fetched.",
        ),
        (
            "Of the `stages - 1` groups on the way the oldest is the k-tile that is read next: it must have "
            "arrived. So `stages - 2` may be left."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("ampere/ldmatrix_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# On an H200 the multiplications hide a good part of the loads, but not all. What remains is not conflicts but traffic:
# each warp reads its own fragments of A and B from shared memory. Hopper's `wgmma` reads them once for four warps: [a
# GEMM with TMA and WGMMA](../hopper/tma_wgmma_gemm.ipynb) has the same tile and the same layout. Next: [the pipeline,
# step by step](pipelined_gemm.ipynb), with a parameter for each thing that overlaps.
