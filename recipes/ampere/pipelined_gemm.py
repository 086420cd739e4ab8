# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "A pipelined GEMM: stages and register double buffering"
#     claim: >-
#       Each step of a GEMM's pipeline is one parameter, so its gain can be measured alone. Summed clocks name the
#       waits, and promise more than the GPU gives.
#     track: ampere
#     order: 30
#     builds_on: ampere/ldmatrix_gemm
#     pays: {at: [4096, 4096, 4096], over: 2 stages}
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     dtypes: [float16, bfloat16]
#     path: cp.async, 2 to 5 stages -> swizzled shared memory -> ldmatrix, 1 or 2 buffers -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, HMMA.16816.F32, STG.E.128, LDS.128]
#     sources:
#       - {title: "PTX ISA, cp.async.wait_group", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-group"}
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "CuTe, a GEMM tutorial", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0x_gemm_tutorial.html"}
#       - {title: "CUDA-Learn-Notes, a staged GEMM in CuTe C++", url: "https://github.com/DefTruth/CUDA-Learn-Notes/blob/main/kernels/hgemm/cutlass/hgemm_mma_stage_tn_cute.cu"}
# ---

# %% [markdown]
# # A pipelined GEMM: stages and register double buffering
#
# **Claim.** [The GEMM of the page before](ldmatrix_gemm.ipynb) does several things at the same time. Here each of them
# is a parameter. You can take them away one by one and see what each brings:
#
# | step | parameter | what it hides |
# |---|---|---|
# | 2, 3, 4 stages | `stages` | the time a tile takes from global memory |
# | fragments ahead | `register_buffers` | the time a fragment takes from shared memory, above all after a barrier |
# | loads apart | `loads` | the wait of `ldmatrix` behind a burst of `cp.async` in the same memory pipe |
# | no branch | `branch_free` | nothing: it spares every k-tile the question whether anything is left to load |

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("ampere/pipelined_gemm", (4096, 4096, 4096), over=["2 stages", "3 stages", "4 stages", "fragments ahead"])

# %% [markdown]
# One more variant, `loads spread`, cuts the burst of loads smaller still. `3 stages` is much like the simple loop of
# [the three layouts](smem_gemm.ipynb); `no branch` does what the page before does. Layouts, copies and epilogue are
# unchanged. Every variant gives the same bits. The cells below predict each step before they show what was measured.

# %%
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import Operand, make_operand, tiled_mma
from cookbook.recipes.ampere.ldmatrix_gemm import Config as LdmatrixConfig
from cookbook.recipes.ampere.ldmatrix_gemm import smem_layouts
from cookbook.recipes.ampere.smem_gemm import Load, load_first_stages, make_load, tile_of_cta
from cookbook.recipes.ampere.staged_epilogue_gemm import (
    TiledCopies,
    matrices,
    rounded,
    smem_tensors,
    store,
    tiled_copies,
)

# %% [markdown]
# ## The parameters
#
# The sizes are those of [the page before](ldmatrix_gemm.ipynb): a tile of 128 x 256, eight warps of 64 x 64; the
# configuration adds three fields to that page's. Four stages are 192 KiB. Chips with less shared memory get a narrower
# tile, so that every variant fits on every one of them.


# %%
@dataclass(frozen=True)
class Config(LdmatrixConfig):
    """Sizes of the kernel, in elements or counts, and the order of what it does."""

    stages: int = 4  # pairs of A and B tiles, 2 to 5: one being read, the others arriving
    register_buffers: int = 2  # k-blocks of fragments, 1 or 2: with 2, one is multiplied while the next arrives
    loads: str = "apart"  # cp.async of a tile: "together" in one k-block, A and B "apart" in two, or "spread" over all
    branch_free: bool = False  # the k-tiles with nothing left to load have a loop of their own


SIMPLE = Config(stages=2, register_buffers=1, loads="together")
VARIANTS = {
    "2 stages": SIMPLE,
    "3 stages": replace(SIMPLE, stages=3),
    "4 stages": replace(SIMPLE, stages=4),
    "fragments ahead": replace(SIMPLE, stages=4, register_buffers=2),
    "loads apart": Config(),
    "no branch": Config(branch_free=True),
    "loads spread": Config(loads="spread", branch_free=True),
}
DEFAULT = "loads apart"  # the fastest of them; the two after it are steps that were tried
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant in the sizes that fit the shared memory of an architecture such as "sm_89"; "" means the largest."""
    chip, config = arch.rstrip("af"), VARIANTS[variant]
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):
        return replace(config, tile_n=64, warps_m=4, warps_n=2)  # 24 KiB a stage
    return replace(config, tile_n=128, warps_n=2) if chip in ("sm_80", "sm_87") else config  # 32 KiB a stage


# %% [markdown] tags=["lab"]
# **The stages.** In these pictures a tile takes as long to arrive as two tiles take to multiply. A load begins the
# moment its stage is free. Two stages keep the tensor cores waiting; four do not. (Our threads load and multiply
# alternately, so they ask for a tile only after they have waited for the one before. With two stages they wait even
# longer.) The times are chosen to show the mechanism, not measured.

# %% tags=["lab"]
draw.pipeline(stages=2, k_tiles=8, load_time=2, title="2 stages: the tensor cores wait (chosen time units)")

# %% tags=["lab"]
draw.pipeline(stages=4, k_tiles=8, load_time=2, title="4 stages: they wait for the first tile only (chosen time units)")

# %% [markdown] tags=["lab"]
# More stages than hide the load bring nothing, and each costs shared memory. The same times, for one stage to six:

# %% tags=["lab"]
draw.stages_chart(k_tiles=8, load_time=2, math_time=1)

# %% [markdown] tags=["lab"]
# With times of your own:
#
# <barrier-timeline stages="4" tiles="8" load="2" mma="1">
# The site has a timeline here.
# </barrier-timeline>

# %% [markdown]
# ## Loading
#
# Layouts, copies, and the prologue that fills the first stages are imported unchanged: no bank conflicts, no thread
# reads rows outside the matrix, and only the first k-tile can begin outside of K.
#
# New is the *order*. A thread's part of a tile is a few chunks of 16 bytes, one `cp.async` each. `order_of_loads` says
# which of them the thread issues in which k-block. None belongs to the last k-block: with fragments ahead the loop
# waits there for the next k-tile. It counts groups, so the group of this k-tile must be closed before.


# %%
@cute.jit
def load_chunks(load: Load, chunks: cutlass.Constexpr, k_tile: cutlass.Int32, stage: cutlass.Int32):
    """Chunks (first, end) of k-tile `k_tile`, wholly inside K, into `stage`."""
    src, dst = load.src[None, None, None, k_tile], load.dst[None, None, None, stage]
    for m in cutlass.range_constexpr(chunks[0], chunks[1]):
        cute.copy(load.copy, src[None, m, None], dst[None, m, None], pred=load.inside[None, m, None])


def order_of_loads(chunks_a: int, chunks_b: int, config: Config) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """For each k-block but the last, the chunks of A and of B, (first, end), that a thread asks for in it."""
    blocks, both = config.k_blocks - 1, chunks_a + chunks_b
    ends = {  # after each k-block, counted through A and then through B
        "together": [both] * blocks,
        "apart": [chunks_a if k == 0 and blocks > 1 else both for k in range(blocks)],
        "spread": [both * (k + 1) // blocks for k in range(blocks)],
    }[config.loads]
    order = []
    for first, end in zip([0, *ends], ends, strict=False):
        of_a = (min(first, chunks_a), min(end, chunks_a))
        order.append((of_a, (max(first, chunks_a) - chunks_a, max(end, chunks_a) - chunks_a)))
    return order


# %% [markdown] tags=["lab"]
# A thread has four `cp.async` of A and eight of B for each k-tile. Which of them it issues in which k-block:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table
from cookbook.layouts import evaluate


def chunks(config: Config) -> tuple[int, int]:
    """Return how many cp.async of A and of B a thread has for a k-tile."""
    copies = evaluate(tiled_copies, cutlass.Float16, config)
    return config.tile_m // copies.g2s_a.tiler_mn[0], config.tile_n // copies.g2s_b.tiler_mn[0]


rows = []
for loads in ("together", "apart", "spread"):
    order = order_of_loads(*chunks(CONFIG), replace(CONFIG, loads=loads))
    counts = [(a[1] - a[0], b[1] - b[0]) for a, b in order] + [(0, 0)]
    rows.append([loads, *(" + ".join(f"{n} of {x}" for n, x in zip(c, "AB", strict=True) if n) or "-" for c in counts)])
Markdown(table(["loads", *(f"k-block {k}" for k in range(CONFIG.k_blocks))], rows, right=9))

# %% [markdown]
# ## The main loop
#
# All variants are this one function. `register_buffers` says how far `ldmatrix` runs ahead of `mma`. With two buffers
# it runs one k-block ahead. A warp that leaves the barrier between two k-tiles then still has a k-block to multiply,
# while the first fragments of the next k-tile arrive. With one buffer the tensor cores wait for these fragments.
#
# *Inside* a tile the compiler sees all four k-blocks, and moves loads ahead even if we do not ask for it. Past a
# barrier it may not.
#
# `switch` is the k-block in which the loop goes on to the next tile, before the fetch that first needs it.


# %%
@cute.jit
def fetch_block(x: Operand, stage: cutlass.Int32, k: cutlass.Constexpr, buffer: cutlass.Constexpr):
    """The fragments of k-block `k`."""
    cute.copy(x.copy, x.smem[None, None, k, stage], x.into[None, None, buffer])


@cute.jit
def wait_for_k_tile(config: cutlass.Constexpr):
    """Wait until the next k-tile has arrived, everybody's part of it, and the oldest stage is free."""
    cute.arch.cp_async_wait_group(config.stages - 2)
    cute.arch.sync_threads()


@cute.jit
def following(stage: cutlass.Int32, config: cutlass.Constexpr):
    """The stage after `stage`, round and round."""
    return stage + 1 if stage + 1 < config.stages else cutlass.Int32(0)


def loops_over(k_tiles: cutlass.Int32, still_loading: cutlass.Int32, config) -> tuple:
    """The loops over k-tiles, (first, end, whether anything may be left to load): one, or one for each answer."""
    if config.branch_free:
        return (0, still_loading, True), (still_loading, k_tiles, False)
    return ((0, k_tiles, True),)


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
    stages, buffers, k_blocks = config.stages, config.register_buffers, config.k_blocks
    order = order_of_loads(cute.size(load_a.dst, mode=[1]), cute.size(load_b.dst, mode=[1]), config)
    ahead = buffers - 1
    switch = (k_blocks - ahead) % k_blocks
    read, write = cutlass.Int32(0 if ahead else stages - 1), cutlass.Int32(stages - 1)
    if cutlass.const_expr(ahead):  # the first k-block of all
        wait_for_k_tile(config)
        fetch_block(a, read, 0, 0)
        fetch_block(b, read, 0, 0)
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    for first, last, loading in loops_over(k_tiles, still_loading, config):
        for k_tile in cutlass.range(first, last, unroll=1):
            for k in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(k == switch):
                    read = following(read, config)
                    wait_for_k_tile(config)
                fetch_block(a, read, (k + ahead) % k_blocks, (k + ahead) % buffers)
                fetch_block(b, read, (k + ahead) % k_blocks, (k + ahead) % buffers)
                if cutlass.const_expr(loading and k < len(order)):
                    if cutlass.const_expr(config.branch_free) or k_tile < still_loading:
                        load_chunks(load_a, order[k][0], k_tile + stages - 1, write)
                        load_chunks(load_b, order[k][1], k_tile + stages - 1, write)
                if cutlass.const_expr(k == len(order) - 1):
                    cute.arch.cp_async_commit_group()  # an empty group too counts as one
                    write = following(write, config)
                cute.gemm(mma, acc, a.regs[None, None, k % buffers], b.regs[None, None, k % buffers], acc)


# %% [markdown] tags=["lab"]
# **Fragments ahead.** Inside a stage there is a second, small pipeline. A warp fetches the fragments of a k-block with
# `ldmatrix`, and multiplies them. With one set of registers it can fetch the next fragments only after it has
# multiplied these. With two sets it fetches while it multiplies. Times are chosen here, too.

# %% tags=["lab"]


def warp_lanes(ahead: bool, k_blocks: int = 4, fetch: int = 2, multiply: int = 3) -> dict[str, list[draw.Span]]:
    """The lanes of one warp: its fetches, and its multiplications."""
    fetched, multiplied = [], []
    fetch_done = busy_until = 0
    for block in range(k_blocks):
        start = fetch_done if ahead else busy_until  # the registers of two k-blocks, or of one
        if ahead and block >= 2:
            start = max(start, multiplied[block - 2].end)
        fetch_done = start + fetch
        fetched.append(draw.Span(start, fetch_done, f"{block}", "ldmatrix"))
        begin = max(fetch_done, busy_until)
        busy_until = begin + multiply
        multiplied.append(draw.Span(begin, busy_until, f"{block}", "mma"))
    return {"ldmatrix": fetched, "mma": multiplied}


lanes = {f"one set: {lane}": spans for lane, spans in warp_lanes(ahead=False).items()} | {"": []}
lanes |= {f"two sets: {lane}": spans for lane, spans in warp_lanes(ahead=True).items()}
draw.lanes(
    lanes, "Four k-blocks of one warp (chosen time units)", unit="units", note="gaps: the lane has nothing to do"
)

# %% [markdown]
# ## The kernel
#
# Prologue, epilogue and rasterization are [those of the page before](ldmatrix_gemm.ipynb). New is that a thread has
# registers for `register_buffers` k-blocks of fragments, not for a whole k-tile.


# %%
def make_buffers(
    mma: cute.TiledMma, copies: TiledCopies, sA: cute.Tensor, sB: cute.Tensor, k: int, tidx: cutlass.Int32
) -> tuple[Operand, Operand]:
    """This thread's part of A and B, with registers for fragments `k` deep along K."""
    m, n = cute.size(sA, mode=[0]), cute.size(sB, mode=[0])
    rA = cute.make_rmem_tensor(mma.partition_shape_A((m, k)), sA.element_type)  # (MMA, MMA_M, buffers)
    rB = cute.make_rmem_tensor(mma.partition_shape_B((n, k)), sB.element_type)  # (MMA, MMA_N, buffers)
    return make_operand(copies.s2r_a, sA, rA, tidx), make_operand(copies.s2r_b, sB, rB, tidx)


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
    a, b = make_buffers(mma, copies, sA, sB, 16 * config.register_buffers, tidx)
    mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config)
    store(rounded(acc, dtype), sC, gC, cC, mC.shape, copies, tidx)


# %% [markdown]
# ## The launch
#
# Sizes and strides are run-time values: one compiled kernel serves all shapes.


# %%
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
    # Mostly no more than one CTA has room on an SM: the compiler need not save registers for others.
    kernel(mA, mB, mC, pA.dtype, config, vec).launch(
        grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch, call.variant), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", variants=VARIANTS, whole=True)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: which steps of the pipeline are there. The product is the same, bit for bit.

    cp.async moves 16 bytes at a time: K is a multiple of 8, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Needs a GPU of compute capability 8.0 or later.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## What the compiler makes of it
#
# This is the main loop in the machine code for Hopper, from one barrier to the next. A line is one k-block: each dot is
# one of its 32 `mma`, L is an `ldmatrix`, C a `cp.async`.
#
# Look at the start. In `4 stages` many L follow the barrier before the first `mma`, and all eight warps wait there at
# once. In `fragments ahead` dots follow the barrier: the last k-block of a tile. Further on the two are alike, because
# the compiler moves loads ahead wherever no barrier forbids it. The C come in the groups that we asked for, a little
# later than we wrote them.

# %% tags=["lab"]
import re

from cookbook.lab import compiled

SIGNS = {"HMMA": ".", "LDSM": "L", "LDGSTS": "C", "BAR": "|"}
OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]+)")


def loops(sass: str) -> list[str]:
    """The signs of the instructions between each label and the branch back to it, turned to begin at the barrier."""
    lines, at, found = sass.splitlines(), {}, []
    for number, line in enumerate(lines):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            at[label[1]] = number
        back = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if back and back[1] in at:
            opcodes = (OPCODE.match(inside) for inside in lines[at[back[1]] : number])
            signs = "".join(SIGNS.get(opcode[1], "") for opcode in opcodes if opcode)
            found.append(signs[signs.find("|") :] + signs[: max(signs.find("|"), 0)])
    return found


def by_k_block(signs: str) -> str:
    """A line for every 32 mma."""
    return "\n".join(line.group() for line in re.finditer(r"(?:[^.]*\.){1,32}[^.]*$|(?:[^.]*\.){32}", signs))


try:
    for variant in ("4 stages", "fragments ahead", "loads apart", "loads spread"):
        sass = compiled.compile_recipe("ampere/pipelined_gemm", "sm_90a", "float16", config=VARIANTS[variant]).sass
        (loop,) = (signs for signs in loops(sass) if "C" in signs and "." in signs)
        print(f"{variant}\n{by_k_block(loop)}\n")
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## The prediction
#
# One CTA has an SM to itself. For one k-tile we count clocks of the SM. All but two figures come from this recipe's own
# layouts, copies and orders:
#
# * *Shared memory* serves a wavefront a clock: in k-block *k* those of `ldmatrix` and those of the `cp.async` that are
#   issued in it, s(k) together.
# * *The tensor cores* are busy for t clocks with a k-block. Their rate for `mma.sync` is what [the tensor-core
#   ceilings](../foundations/tensor_core_ceiling.ipynb) has recorded on a Hopper GPU; where it has recorded nothing,
#   NVIDIA's figure for the chip, which `mma.sync` does not reach.
# * Within a k-block the two overlap, and the longer one counts: **T = sum over k of max(s(k), t)**.
# * Without fragments ahead, nothing is multiplied after the barrier until the first k-block's `ldmatrix` are served:
#   **T + l**, with l their wavefronts.
# * The loop asks for a tile `stages - 1` tiles before it needs it. If a tile takes L clocks to arrive, then the tiles
#   cannot follow each other faster than **L / (stages - 1)**. The larger of this and T counts.
#
# L is the figure that we know least. Global memory answers after *some hundreds* of clocks (CUDA C++ Programming
# Guide); 800 are assumed. The bytes of a tile then come at the rate of L2: 5120 bytes a clock for the whole chip
# (NVIDIA A100 white paper; Hopper's has no figure). An SM gets its share of that.

# %% tags=["lab"]
from collections.abc import Iterator

from cookbook.lab import copy_wavefronts, records

SMS, NVIDIA_RATE = 132, 2048  # of an H200; multiply-adds of an SM in a clock (NVIDIA H100 white paper)
LATENCY, L2_RATE = 800, 5120  # clocks; bytes a clock of the chip
CEILING = ("foundations/tensor_core_ceiling", "mma.sync m16n8k16, bf16")


def rates(figures: object, name: str) -> Iterator[float]:
    """The operations a clock of every entry called `name`, however deep it lies."""
    if isinstance(figures, dict):
        if "flops_per_clock" in figures.get(name, {}):
            yield figures[name]["flops_per_clock"]
        for each in figures.values():
            yield from rates(each, name)


def mma_rate() -> tuple[float, str]:
    """Multiply-adds of a Hopper SM in a clock by mma.sync, and who says so."""
    measured = [r for r in records.read() if r["recipe"] == CEILING[0] and "H200" in r["device"]]
    found = [rate / 2 for r in measured for rate in rates(r["figures"], CEILING[1])]
    return (max(found), CEILING[0]) if found else (NVIDIA_RATE, "NVIDIA's figure for the chip")


def wavefronts(config: Config, field: str) -> float:
    """Count the wavefronts of all warps' instructions of a copy, for one tile."""
    layouts, copies = (evaluate(fn, cutlass.Float16, config) for fn in (smem_layouts, tiled_copies))
    counted = copy_wavefronts(field, getattr(copies, field), getattr(layouts, field[-1]))
    return sum(each * n for (each, _), n in counted.items())


def clocks(config: Config, rate: float, latency: int = LATENCY) -> float:
    """Clocks of an SM for one k-tile, by the rules above."""
    fragments = (wavefronts(config, "s2r_a") + wavefronts(config, "s2r_b")) / config.k_blocks
    of_chunk = [wavefronts(config, f"g2s_{x}") / n for x, n in zip("ab", chunks(config), strict=True)]
    order = [*order_of_loads(*chunks(config), config), ((0, 0), (0, 0))]
    shared = [fragments + sum(w * (end - first) for w, (first, end) in zip(of_chunk, o, strict=True)) for o in order]
    tensor = config.tile_m * config.tile_n * 16 / rate
    busy = sum(max(each, tensor) for each in shared) + (fragments if config.register_buffers == 1 else 0)
    arrival = latency + 2 * (config.tile_m + config.tile_n) * config.tile_k / (L2_RATE / SMS)
    return max(busy, arrival / (config.stages - 1))


def steps(times: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return how many times as fast each variant is as the one before it, and as the first."""
    names = list(times)
    return {
        name: (times[before] / times[name], times[names[0]] / times[name])
        for before, name in zip([names[0], *names], names, strict=False)
    }


rate, source = mma_rate()
predicted = {variant: clocks(config, rate) for variant, config in VARIANTS.items()}
rows = [[v, f"{predicted[v]:.0f}", *(f"{x:.2f}x" for x in gains)] for v, gains in steps(predicted).items()]
Markdown(
    f"Predicted for an H200, `mma.sync` at {rate:.0f} multiply-adds a clock and SM ({source}):\n\n"
    + table(["variant", "clocks of a k-tile", "this step", "all so far"], rows)
)

# %% [markdown] tags=["lab"]
# The order of the loads helps only where a burst of `cp.async`, and the `ldmatrix` behind it, would take longer than
# the tensor cores. A branch costs no clocks in this arithmetic, so it predicts nothing for that step.
#
# How much depends on L? The clocks of a k-tile for other latencies:

# %% tags=["lab"]
rows = [
    [str(latency), *(f"{clocks(VARIANTS[f'{stages} stages'], rate, latency):.0f}" for stages in (2, 3, 4))]
    for latency in (400, 800, 1600, 3200)
]
Markdown(table(["latency", "2 stages", "3 stages", "4 stages"], rows))

# %% [markdown] tags=["lab"]
# ## Check
#
# *Pipeline* tries the waits of the kernel in every order.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/pipelined_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("ampere/pipelined_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# All variants and their peers, interleaved in one run on one GPU; "ours" is `loads apart`, called without an argument.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("ampere/pipelined_gemm"))

# %% [markdown] tags=["lab"]
# What each step brought, predicted and measured. "Ours" and `loads apart` are *the same kernel*, timed twice in the
# same rounds. The line above each table has the difference of the two: a step that is not larger says nothing.

# %% tags=["lab"]


def measured_steps() -> str:
    """The steps of every current record and the prediction, or that there is none."""
    parts = []
    for r in records.of_one_gpu("ampere/pipelined_gemm", "timed"):
        of_record = steps({v: r["peers"][v]["median_ms"] for v in VARIANTS})
        rows = [
            [v, *(f"{p:.2f}x / {m:.2f}x" for p, m in zip(steps(predicted)[v], of_record[v], strict=True))]
            for v in VARIANTS
        ]
        twice = abs(r["figures"]["median_ms"] / r["peers"][DEFAULT]["median_ms"] - 1)
        title = f"{r['device']}, {r['dtype']}, {'x'.join(map(str, r['shape']))}; one kernel twice: {twice:.1%} apart:"
        parts.append(
            title + "\n\n" + table(["variant", *(f"{x}: predicted / measured" for x in ("step", "all"))], rows)
        )
    return "\n\n".join(parts) or "*Not measured yet.*"


Markdown(measured_steps())

# %% [markdown] tags=["lab"]
# On an H200 more stages bring next to nothing, as predicted: two are enough here. Fragments ahead gain at both sizes.
# Loads apart gain at the smaller size in bfloat16; elsewhere they gain no more than the spread. Both gains are smaller
# than the clocks say.
#
# Without the branch the kernel is a little *slower* at the smaller size, which the clocks do not explain. At the larger
# size it is as fast. `loads spread` gains nothing on `no branch` at either size, though the clocks predict as much for
# it as for `loads apart`. So `loads apart` is the default of `matmul`.
#
# Two things may reduce the gains. Shared memory does not serve a k-block as evenly as a sum of maxima assumes. And a
# GPU at its power limit lowers its clock when fewer clocks are lost.

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "following_by_lap": (
        "following",
        "    return stage + 1 if stage + 1 < config.stages else cutlass.Int32(0)",
        "    raise NotImplementedError",
        "The stage after a stage, round and round: with neither a comparison nor a choice.",
        (
            "Which operation brings `config.stages` back to 0?",
            "`%`. Where `config.stages` is a power of two the compiler makes an AND of it.",
        ),
        "A modulo does it. The recipe compares, because three stages would take a multiplication.",
        "    return (stage + 1) % config.stages",
    ),
    "wait_at_risk": (
        "wait_for_k_tile",
        """\
    cute.arch.cp_async_wait_group(config.stages - 2)
    cute.arch.sync_threads()""",
        """\
    cute.arch.sync_threads()
    cute.arch.cp_async_wait_group(config.stages - 2)""",
        "Both waits are there, and both are needed.",
        (
            "For whose copies does `cp_async_wait_group` wait?",
            "When a thread leaves `sync_threads`, what does it know of the copies of the others?",
        ),
        (
            "A thread waits for its *own* copies alone. The barrier must come after that: it says that all "
            "threads have waited."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("ampere/pipelined_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Each part of the pipeline hides one wait. The clocks say which waits there are before you write the part. Stages hide
# the way from global to shared memory; once a tile is in time, one more stage hides nothing. Fragments ahead hide the
# way from shared memory to the registers, across a barrier that the compiler cannot move loads over.
#
# Then the two pipes themselves remain. With `mma.sync` every fragment goes through shared memory once for each warp
# that needs it, and shared memory is busy nearly as long as the tensor cores. No order of instructions changes that. A
# larger tile for each warp does: [the tuned GEMM](tuned_gemm.ipynb). So does `wgmma`, which reads shared
# memory itself: [a GEMM with TMA and WGMMA](../hopper/tma_wgmma_gemm.ipynb).
#
# Next: [a GEMM for operands of either major](majors_gemm.ipynb), which need not lie along K. It takes the kernel of
# [ldmatrix_gemm](ldmatrix_gemm.ipynb), `no branch` here, and changes nothing in its loop.
