# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Shared-memory layouts: unswizzled, padded, swizzled"
#     claim: >-
#       Counted wavefronts predict what each of three shared-memory layouts gains: padding frees ldmatrix of conflicts
#       and costs cp.async wavefronts, a swizzle spares both.
#     track: ampere
#     order: 10
#     builds_on: ampere/staged_epilogue_gemm
#     pays: {at: [8192, 8192, 8192], over: ampere/staged_epilogue_gemm}
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async -> shared memory, unswizzled, padded or swizzled -> ldmatrix -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
#     sources:
#       - {title: "PTX ISA, cp.async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async"}
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "Lei Mao, CuTe Swizzle", url: "https://leimao.github.io/blog/CuTe-Swizzle/"}
#       - {title: "CUTLASS issue 2634, swizzles of bytes and of elements", url: "https://github.com/NVIDIA/cutlass/issues/2634"}
# ---

# %% [markdown]
# # Shared-memory layouts: unswizzled, padded, swizzled
#
# **Claim.** One swizzle makes this GEMM several times as fast, and counted *wavefronts* predict by how much before
# anything runs.
#
# * `cp.async` brings tiles of A and B into shared memory.
# * `ldmatrix` takes fragments of them into registers.
# * `mma.sync` multiplies the fragments.
#
# One parameter says how the rows of a tile lie:
#
# * `plain`: one row after the other, 128 bytes each;
# * `padded`: 16 unused bytes after each row, so that the next row begins four banks further on;
# * `swizzled`: chunk *c* (16 bytes) of row *r* goes to slot *c XOR (r mod 8)*.
#
# Everything else is the same in all three. Three things are new since [the page before](staged_epilogue_gemm.ipynb), in
# all of them. A thread asks once for each of its rows whether the matrix has it, not in each k-tile. The k-tiles end
# where K ends, so that only the first can stick out. And CTAs that run together take tiles that lie together.

# %% tags=["lab"]
from cookbook import lab

lab.gain("ampere/smem_gemm", (4096, 4096, 4096), over=["plain", "padded"])

# %% [markdown] tags=["lab"]
# The next two pictures show why. They have eight rows of A, and each cell is a chunk of 16 bytes. The number is the
# bank in which the chunk begins; each bank has a colour. `ldmatrix` reads the eight chunks of one *column* at once. A
# *wavefront* is one access of all 32 banks. Unswizzled, the eight chunks begin in the same bank: eight wavefronts.
# Swizzled, they begin in eight different banks: one wavefront ([bank conflicts](../foundations/bank_conflicts.ipynb),
# [fragments](../foundations/fragments_and_ldmatrix.ipynb)).

# %% tags=["lab"]
import cutlass
from IPython.display import Markdown, display

import cookbook
from cookbook import draw
from cookbook.layouts import evaluate

packaged = cookbook.load("ampere/smem_gemm")
for name in ("plain", "swizzled"):
    tile = evaluate(packaged.smem_layouts, cutlass.Float16, packaged.VARIANTS[name]).a
    display(draw.bank_grid(tile, label="bank", title=f"{name}: the bank of each chunk"))

# %% [markdown] tags=["lab"]
# The rest of the page has the layouts, the kernel, the check of both, and the times.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import Config as FirstConfig
from cookbook.recipes.ampere.first_gemm import Operand, tiled_mma
from cookbook.recipes.ampere.staged_epilogue_gemm import (
    SmemLayouts,
    TiledCopies,
    gemm,
    rounded,
    smem_tensors,
    store,
    tiled_copies,
)
from cookbook.recipes.ampere.swizzled_gemm import make_operands

# %% [markdown]
# ## The sizes
#
# [The first GEMM](first_gemm.ipynb) is the base: its `mma.sync` and its `ldmatrix` come from there. The tile of C is
# [the wider one](wide_tile_gemm.ipynb), and there are [three stages](multistage_gemm.ipynb). The copies and the
# epilogue are those of [the page before](staged_epilogue_gemm.ipynb), in all three layouts. GPUs with less shared
# memory have the smaller tile of that page, and two stages: three padded ones would not fit.


# %%
@dataclass(frozen=True)
class Config(FirstConfig):
    """Sizes of the kernel, in elements or counts, and how the rows of A and B lie in shared memory."""

    tile_n: int = 256  # columns of C per CTA
    stages: int = 3  # pairs of A and B tiles: one being read, the others arriving
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles
    layout: str = "swizzled"  # plain, padded or swizzled

    @property
    def padding(self) -> int:
        """Unused elements after each row: 16 bytes: rows must start where cp.async and ldmatrix can."""
        return 8 if self.layout == "padded" else 0

    @property
    def smem_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * (self.tile_k + self.padding)
        return 2 * max(ab, self.tile_m * self.tile_n)  # C is staged where A and B were


VARIANTS = {"plain": Config(layout="plain"), "padded": Config(layout="padded"), "swizzled": Config()}
CONFIG = VARIANTS["swizzled"]


def config_for(arch: str, variant: str = "swizzled") -> Config:
    """A variant in the sizes that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    small = arch.rstrip("af") in ("sm_86", "sm_89", "sm_120", "sm_121")
    return replace(VARIANTS[variant], tile_n=128, warps_n=2, stages=2) if small else VARIANTS[variant]


# %% [markdown]
# ## The three layouts
#
# They differ in the distance of two rows and in the bits of the swizzle. `ldmatrix` reads 16 bytes of each of eight
# rows. Unswizzled rows put these in the same four banks, padded and swizzled rows in all 32.
#
# `cp.async` writes whole rows. It copies one 128-byte *line* of shared memory in a wavefront. A swizzled row is one
# line; a padded row lies in two. **Mind the units**: the swizzle counts *bytes* and is attached to the pointer, the
# layout under it counts *elements*.


# %%
def rows_of_k(rows: int, config: Config) -> cute.ComposedLayout:
    """All stages of a tile of `rows` x tile_k, as `config.layout` says."""
    bits = 3 if config.layout == "swizzled" else 0  # a swizzle of no bits changes nothing
    apart = config.tile_k + config.padding
    outer = cute.make_layout((rows, config.tile_k, config.stages), stride=(apart, 1, rows * apart))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, outer)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B in the layout that is looked at; C, once per tile, swizzled in all three."""
    row = cute.make_layout((8, 64), stride=(64, 1))  # 128 bytes, whatever tile_n
    c = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, row)
    return SmemLayouts(
        a=rows_of_k(config.tile_m, config),
        b=rows_of_k(config.tile_n, config),
        c=cute.tile_to_shape(c, (config.tile_m, config.tile_n), order=(0, 1)),
    )


def expected_excess(config: Config) -> dict[str, tuple[int, str]]:
    """Wavefronts above the ideal that each instruction of a copy takes, and why."""
    if config.layout != "plain":
        return {}
    why = "4 matrices, and the 8 rows of each begin in the same bank: 8 wavefronts instead of 1"
    return {"s2r_a": (28, why), "s2r_b": (28, why)}


# %% [markdown] tags=["lab"]
# The third layout, as the cells above define it. A padded row begins four banks further on than the row above it, so a
# column has eight colours here, too.

# %% tags=["lab"]
smem = {name: evaluate(smem_layouts, cutlass.Float16, config) for name, config in VARIANTS.items()}
draw.bank_grid(smem["padded"].a, label="bank", title="padded: the bank of each chunk")

# %% [markdown]
# ## Loading
#
# The threads themselves guard the edges of a ragged matrix. They do not read rows beyond M or N: such rows only reach
# parts of C that are never stored. So a thread asks once for each of its rows whether the matrix has it, and keeps the
# answers.
#
# Past K lies garbage, which would be summed. The pages before compare k in every iteration. Here `domain_offset` (on
# global memory, so no swizzle is involved) shifts all k-tiles towards k = 0, until the last one ends at K. Only the
# *first* one can stick out, at k < 0. It is loaded before the loop, with zeros there.
#
# The shift is a multiple of 8 elements, so `align(16)` restores the alignment that CuTe lost. `inside` has stride 0
# along k: one answer serves all of a row.


# %%
class Load(NamedTuple):
    """One thread's part in loading an operand."""

    copy: cute.TiledCopy
    src: cute.Tensor  # (CPY, CPY_M, CPY_K, k) global memory
    dst: cute.Tensor  # (CPY, CPY_M, CPY_K, STAGE) shared memory
    coords: cute.Tensor  # (CPY, CPY_M, CPY_K, k) coordinates (row, k) in the matrix
    inside: cute.Tensor  # (1, CPY_M, CPY_K) is the row one of the matrix?


@cute.jit
def partition_k_tiles(
    copy: cute.TiledCopy,
    mX: cute.Tensor,
    sX: cute.Tensor,
    tile: cutlass.Constexpr,
    index: cutlass.Int32,
    tidx: cutlass.Int32,
    k_multiple: cutlass.Constexpr,
):
    """This thread's part of `tile` number `index` of the rows of mX (rows, K), for all k-tiles, which end where K does:
    source, destination, coordinates. K is a multiple of `k_multiple`."""
    before = mX.shape[1] - cute.round_up(mX.shape[1], tile[1])  # <= 0: where the first k-tile begins
    shift = (0, cute.assume(before, divby=k_multiple), 0)
    gX = cute.domain_offset(shift, cute.local_tile(mX, tile, (index, None)))  # (rows, K, k)
    gX = cute.make_tensor(gX.iterator.align(16), gX.layout)
    cX = cute.domain_offset(shift, cute.local_tile(cute.make_identity_tensor(mX.shape), tile, (index, None)))
    thr = copy.get_slice(tidx)
    return thr.partition_S(gX), thr.partition_D(sX), thr.partition_S(cX)


@cute.jit
def make_load(
    copy: cute.TiledCopy,
    mX: cute.Tensor,
    sX: cute.Tensor,
    tile: cutlass.Constexpr,
    index: cutlass.Int32,
    tidx: cutlass.Int32,
    k_multiple: cutlass.Constexpr,
):
    """This thread's part of an operand, and which of its rows the matrix has. Arguments: of `partition_k_tiles`."""
    src, dst, coords = partition_k_tiles(copy, mX, sX, tile, index, tidx, k_multiple)
    same_for_all_k = cute.make_layout((1, *coords.shape[1:3]), stride=(0, 1, 0))
    inside = cute.make_rmem_tensor(same_for_all_k, cutlass.Boolean)
    for m in cutlass.range_constexpr(coords.shape[1]):
        inside[0, m, 0] = coords[0, m, 0, 0][0] < mX.shape[0]
    return Load(copy, src, dst, coords, inside)


# %%
@cute.jit
def load_first_tile(load: Load):
    """k-tile 0 into stage 0: what lies before the matrix becomes zero."""
    src, dst = load.src[None, None, None, 0], load.dst[None, None, None, 0]
    for k in cutlass.range_constexpr(dst.shape[2]):
        if load.coords[0, 0, k, 0][1] >= 0:
            cute.copy(load.copy, src[None, None, k], dst[None, None, k], pred=load.inside[None, None, k])
        else:
            dst[None, None, k].fill(0)


@cute.jit
def load_tile(load: Load, k_tile: cutlass.Int32, stage: cutlass.Int32):
    """k-tile `k_tile`, wholly inside K, into `stage`."""
    src, dst = load.src[None, None, None, k_tile], load.dst[None, None, None, stage]
    cute.copy(load.copy, src, dst, pred=load.inside)


@cute.jit
def load_first_stages(load_a: Load, load_b: Load, k_tiles: cutlass.Int32, config: cutlass.Constexpr):
    """Ask for the first `stages - 1` k-tiles, a group each; an empty group too counts as one."""
    load_first_tile(load_a)
    load_first_tile(load_b)
    cute.arch.cp_async_commit_group()
    for stage in cutlass.range_constexpr(1, config.stages - 1):
        if stage < k_tiles:
            load_tile(load_a, stage, stage)
            load_tile(load_b, stage, stage)
        cute.arch.cp_async_commit_group()


# %% [markdown]
# ## The main loop
#
# It is the loop of [several stages](multistage_gemm.ipynb): it waits for the oldest k-tile, asks for a new one, and
# multiplies. Two counters stand for the remainders. A warp first loads the fragments of a k-block and then multiplies
# them, so the cost of `ldmatrix` is easy to see.


# %%
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
    stages, read, write = config.stages, cutlass.Int32(0), cutlass.Int32(config.stages - 1)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        cute.arch.cp_async_wait_group(stages - 2)  # the oldest tile has arrived,
        cute.arch.sync_threads()  # everybody's part of it, and everybody is done with the one before
        if k_tile + stages - 1 < k_tiles:
            load_tile(load_a, k_tile + stages - 1, write)
            load_tile(load_b, k_tile + stages - 1, write)
        cute.arch.cp_async_commit_group()  # an empty group too counts as one
        for k in cutlass.range_constexpr(config.tile_k // 16):
            cute.copy(a.copy, a.smem[None, None, k, read], a.into[None, None, k])
            cute.copy(b.copy, b.smem[None, None, k, read], b.into[None, None, k])
            cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)
        read = read + 1 if read + 1 < stages else cutlass.Int32(0)
        write = write + 1 if write + 1 < stages else cutlass.Int32(0)


# %% [markdown]
# ## The kernel
#
# **Rasterization.** CTAs that run together form a block of C, `swizzle_size` tiles high, and share rows of A and
# columns of B in L2 ([thread-block swizzle](../foundations/thread_block_swizzle.ipynb)). This swizzle is an order of
# CTAs; it has nothing to do with the XOR.
#
# The kernel is what the cells above define, in their order. C lies where A and B lay.


# %%
@cute.jit
def rasterize(number: cutlass.Int32, tiles: tuple[cutlass.Int32, cutlass.Int32], rows: cutlass.Constexpr):
    """Row and column of tile `number` of `tiles`: column by column inside groups of `rows` rows of tiles."""
    group, inside = number // (rows * tiles[1]), number % (rows * tiles[1])
    first = group * rows
    height = cutlass.min(tiles[0] - first, rows)  # the last group may be lower
    return first + inside % height, inside // height


@cute.jit
def tile_of_cta(shape_mn: cute.Shape, config: cutlass.Constexpr):
    """Rasterization: this CTA's tile of C."""
    tiles = cute.ceil_div(shape_mn[0], config.tile_m), cute.ceil_div(shape_mn[1], config.tile_n)
    cta, _, _ = cute.arch.block_idx()
    return rasterize(cta, tiles, config.swizzle_size)


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


# %% [markdown]
# ## The launch and `matmul`
#
# One compiled kernel serves all shapes. `Gemm`, which all recipes share, checks the operands, and for each kind of call
# keeps the compiled kernel with its launch arguments: a *plan*. The recipe says which GPUs it needs, what is compiled,
# and what the launch takes.


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch), vec), options=options)


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch, call.variant), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", variants=VARIANTS, whole=True)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = "swizzled"
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: how A and B lie in shared memory on their way. The product is the same, bit for bit.

    cp.async moves 16 bytes at a time: K is a multiple of 8, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Any M, N, K >= 1 within that. Needs compute capability 8.0 or later. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# One CTA has an SM to itself. The table counts the CTA's clocks for one k-block. Shared memory serves one wavefront of
# `ldmatrix` or `cp.async` a clock. The tensor cores do 2048 multiply-adds a clock (Hopper, NVIDIA's figure). This loop
# loads no fragments ahead, so the clocks add up.

# %% tags=["lab"]
from cookbook.lab import copy_wavefronts, records, results_table, table

copies = evaluate(tiled_copies, cutlass.Float16, CONFIG)
OVER = [("padded", "plain"), ("swizzled", "plain"), ("swizzled", "padded")]


def clocks(variant: str) -> list[float]:
    """Clocks of an SM for one k-block: ldmatrix, cp.async, mma.sync."""
    wavefronts = {"s2r": 0.0, "g2s": 0.0}
    for name in ("s2r_a", "s2r_b", "g2s_a", "g2s_b"):
        counted = copy_wavefronts(name, getattr(copies, name), getattr(smem[variant], name[-1]))
        wavefronts[name[:3]] += sum(each * n for (each, _), n in counted.items()) / (CONFIG.tile_k // 16)
    return [*wavefronts.values(), CONFIG.tile_m * CONFIG.tile_n * 16 / 2048]


def gains(times: dict[str, float]) -> list[str]:
    """Return how many times as fast one layout is as another."""
    return [f"{times[base] / times[layout]:.2f}x" for layout, base in OVER]


added_up = {variant: sum(clocks(variant)) for variant in VARIANTS}
rows = [[variant, *(f"{c:.0f}" for c in (*clocks(variant), added_up[variant]))] for variant in VARIANTS]
Markdown(table(["layout", "ldmatrix", "cp.async", "mma.sync", "added up"], rows))

# %% [markdown] tags=["lab"]
# With padded and swizzled rows `ldmatrix` takes an eighth of the wavefronts. `cp.async` into padded rows takes more
# than twice as many.
#
# ## Check
#
# The check is of the cells above, in all three layouts: edit one, run it, and check again.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/smem_gemm", shapes=[(200, 333, 64)], dtypes=["float16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("ampere/smem_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# All three and their peers, interleaved in one run; "ours" is the swizzled one. Then the gains, predicted and measured.

# %% tags=["lab"]
Markdown(results_table("ampere/smem_gemm"))

# %% tags=["lab"]
rows = [["predicted", *gains(added_up)]]
for r in records.of_one_gpu("ampere/smem_gemm", "timed"):
    of = f"{r['device']}, {r['dtype']}, {' x '.join(map(str, r['shape']))}"
    rows.append([of, *gains({variant: r["peers"][variant]["median_ms"] for variant in VARIANTS})])
Markdown(table(["M x N x K", *(f"{layout} over {base}" for layout, base in OVER)], rows))

# %% [markdown] tags=["lab"]
# ## Exercises
#
# Each is a definition of this kernel in another form. The last cell of this section puts it into the kernel and follows
# the kernel: to each element of C, and in any order of its warps. Or paste the cells into a copy (`cookbook copy
# ampere/smem_gemm my.py`), then `cookbook exercise my.py`.
#
# **Finish it.** `rasterize` jumps back to the top of a group where a column of tiles ends. Let it turn round instead.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def serpentine(number: cutlass.Int32, tiles: tuple[cutlass.Int32, cutlass.Int32], rows: cutlass.Constexpr):
    """Exercise 1, finish it: row and column of tile `number`, as `rasterize`, but every second column of a group runs
    upwards: where a column ends, the next one begins with the same rows of A."""
    raise NotImplementedError


# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# Begin with the lines of `rasterize`. Only the row changes, and only in columns 1, 3, 5 and so on.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The last group may be lower: count upwards from its own height, not from `rows`. A choice between two run-time values
# is `x if condition else y`.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# @cute.jit
# def serpentine(number: cutlass.Int32, tiles: tuple[cutlass.Int32, cutlass.Int32], rows: cutlass.Constexpr):
#     group, inside = number // (rows * tiles[1]), number % (rows * tiles[1])
#     first = group * rows
#     height = cutlass.min(tiles[0] - first, rows)
#     down, column = inside % height, inside // height
#     down = down if column % 2 == 0 else height - 1 - down
#     return first + down, column
# ```
#
# </details>
#
# **Find the bug.** With this main loop the last k-tiles may be read before they have arrived.


# %% tags=["lab", "open", "exercise"]
@cute.jit
def mainloop_of_groups(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: Operand,
    b: Operand,
    load_a: Load,
    load_b: Load,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Exercise 2, find the bug: as `mainloop`."""
    stages, read, write = config.stages, cutlass.Int32(0), cutlass.Int32(config.stages - 1)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()
        if k_tile + stages - 1 < k_tiles:
            load_tile(load_a, k_tile + stages - 1, write)
            load_tile(load_b, k_tile + stages - 1, write)
            cute.arch.cp_async_commit_group()
        for k in cutlass.range_constexpr(config.tile_k // 16):
            cute.copy(a.copy, a.smem[None, None, k, read], a.into[None, None, k])
            cute.copy(b.copy, b.smem[None, None, k, read], b.into[None, None, k])
            cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)
        read = read + 1 if read + 1 < stages else cutlass.Int32(0)
        write = write + 1 if write + 1 < stages else cutlass.Int32(0)


EXERCISES = {"serpentine": "rasterize", "mainloop_of_groups": "mainloop"}  # by name: the definition that it replaces

# %% [markdown] tags=["lab"]
# <details markdown="1"><summary>Tip 1</summary>
#
# `wait_group(1)` waits for all but the latest *group*. Count the groups at the last two k-tiles, when nothing is left
# to load.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The same number of groups has to be closed in every iteration. May a group be empty?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# It closes a group only where it has loaded something. At the end the latest group is the k-tile that is read next.
#
# ```python
# @cute.jit
# def mainloop_of_groups(
#     mma: cute.TiledMma,
#     acc: cute.Tensor,
#     a: Operand,
#     b: Operand,
#     load_a: Load,
#     load_b: Load,
#     k_tiles: cutlass.Int32,
#     config: cutlass.Constexpr,
# ):
#     stages, read, write = config.stages, cutlass.Int32(0), cutlass.Int32(config.stages - 1)
#     for k_tile in cutlass.range(k_tiles, unroll=1):
#         cute.arch.cp_async_wait_group(stages - 2)
#         cute.arch.sync_threads()
#         if k_tile + stages - 1 < k_tiles:
#             load_tile(load_a, k_tile + stages - 1, write)
#             load_tile(load_b, k_tile + stages - 1, write)
#         cute.arch.cp_async_commit_group()
#         for k in cutlass.range_constexpr(config.tile_k // 16):
#             cute.copy(a.copy, a.smem[None, None, k, read], a.into[None, None, k])
#             cute.copy(b.copy, b.smem[None, None, k, read], b.into[None, None, k])
#             cute.gemm(mma, acc, a.regs[None, None, k], b.regs[None, None, k], acc)
#         read = read + 1 if read + 1 < stages else cutlass.Int32(0)
#         write = write + 1 if write + 1 < stages else cutlass.Int32(0)
# ```
#
# </details>

# %% tags=["lab"]
lab.check_exercises("ampere/smem_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# On an H200 the sum of the clocks comes close to all three gains: count the wavefronts before you write the kernel.
# Padding frees `ldmatrix` of conflicts, but it takes memory and slows `cp.async`. The swizzle does neither: it costs
# address arithmetic, often folded into constants. TMA writes the same one.
#
# What remains is waiting. Next: [a GEMM that loads the next fragments while it multiplies](ldmatrix_gemm.ipynb). Or go
# on to Hopper, where no thread loads fragments: [its first GEMM](../hopper/first_gemm.ipynb).
