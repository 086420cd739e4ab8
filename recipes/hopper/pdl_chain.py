# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   cookbook:
#     title: "A chain of small GEMMs: programmatic dependent launch"
#     claim: >-
#       In a chain of products only the activations depend on the previous kernel. The host can check that nothing in
#       the chain writes a weight, so a kernel may load its weight before the previous one has ended. That pays where
#       the GPU has room for two kernels.
#     track: hopper
#     order: 77
#     aside: Few rows, or few tiles
#     builds_on: hopper/decode_gemm
#     kind: linked
#     targets: [sm_90a]
#     runs_on: sm_90
#     compared_with: hopper/tuned_gemm
#     dtypes: [bfloat16, float16]
#     path: tma -> swizzled shared memory -> wgmma -> registers -> stmatrix -> shared memory -> 16-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, ACQBULK, PREEXIT, STSM, SYNCS]
#     baselines: ["no PDL"]
#     bench_shapes: [[512, 512, 512], [1024, 1024, 1024]]
#     sources:
#       - {title: "PTX ISA, griddepcontrol", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol"}
#       - {title: "CUDA programming guide, programmatic dependent launch", url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization"}
# ---

# %% [markdown]
# # A chain of small GEMMs: programmatic dependent launch
#
# **Claim.** A product of 512 x 512 x 512 is short. Much of its time passes before its first multiplication: a kernel
# begins, makes its barriers, asks for its operands and waits. In a chain `x @ w0 @ w1 @ ...` one operand of each
# product, the weight, is there from the start. So each kernel begins while the previous one runs. Where there is room
# for both it loads its weight into shared memory: when the activations are there, the weight is there too.

# %% tags=["lab"]
from cookbook import draw, lab

lab.gain("hopper/pdl_chain", (512, 512, 512), over=["no PDL", "early weight"])

# %% [markdown]
# Ours loads its weight after the wait; at this size loading it early is the faster way.
#
# *Programmatic dependent launch* (PDL) has two instructions. The next kernel may begin when each CTA of a kernel has
# called `griddepcontrol.launch_dependents` or has ended. `griddepcontrol.wait` returns when *all* CTAs of the previous
# kernel have ended and what they wrote can be read. What a kernel does before that wait overlaps the previous kernel.
# In the sketch each kernel with PDL begins under the one before it. An early weight leaves only `x` to load after the
# wait:

# %% tags=["lab"]
BEGIN, WEIGHT, ROWS, REST = 1.0, 0.6, 0.8, 0.8  # chosen: launch and barriers; loads; multiply and store


def kernels(early: bool, overlap: bool, count: int = 3) -> dict[str, list[draw.Span]]:
    """List what each kernel of a chain does, and when."""
    found, begun, ended = {}, 0.0, 0.0
    for i in range(count):
        start = begun if overlap else ended
        begun = start + BEGIN
        spans = [draw.Span(start, begun, "begins", "begins")]
        if early:
            spans.append(draw.Span(begun, begun + WEIGHT, "weight", "loads the weight"))
        wait = max(spans[-1].end, ended)
        loaded = wait + ROWS + (0 if early else WEIGHT)
        ended = loaded + REST
        spans.append(draw.Span(wait, loaded, "x" if early else "weight, x", "loads after the wait"))
        found[f"kernel {i}"] = [*spans, draw.Span(loaded, ended, "C", "multiplies, stores")]
    return found


cases = {"no PDL": (False, False), "PDL, late weight": (False, True), "PDL, early weight": (True, True)}
lanes = {f"{name}: {kernel}": spans for name, case in cases.items() for kernel, spans in kernels(*case).items()}
draw.lanes(lanes, "Three products of a chain (a sketch)", unit="µs", note="Times are chosen, not measured.")

# %% [markdown]
# ## What may be asked for early
#
# [The decode GEMM](decode_gemm.ipynb) prefetches its weight into L2 before the wait, which needs no promise. A load
# into shared memory needs one: no kernel that may still run writes the weight. `matmul` cannot know that. `chain` sees
# all products, and its host side makes sure of it:
#
# * The first kernel is launched **without** PDL. It begins when all earlier work of the stream has ended.
# * So of this stream only kernels of the chain can run at the same time. They write two new buffers and `out`. Other
#   streams are for the caller to order, as with any kernel.
# * `out` must not overlap any weight: that is checked, before anything is launched.
#
# The activations of a product are what the previous kernel writes. They are read after the wait. C is stored after the
# wait too. Two buffers serve the whole chain, so kernel 2 writes the buffer that kernel 1 may still read.
#
# **Why two buffers are enough.** A kernel begins as soon as all CTAs of the previous one have *begun*. So three or more
# kernels can run at once. But each CTA waits, so no kernel ends before the previous one has ended. When the wait of
# kernel 5 returns, kernel 4 has ended, so kernel 3 has, and so on. All that comes after the wait in one kernel is
# ordered with all that comes after it in every other.
#
# The next cell says this in code. An event comes before another if a path of rules leads from the one to the other. Two
# accesses to the same memory must be ordered if one of them writes. That holds inside a kernel too: its CTAs do not
# wait for each other.

# %% tags=["lab"]
from itertools import combinations

from IPython.display import Markdown

from cookbook.lab import results_table, table

COUNT = 6  # kernels of the chain


def conflicts(early: str = "weight", buffers: int = 2, written: dict[int, int] | None = None) -> list[str]:
    """Pairs of accesses of a chain that nothing orders. early: what is accessed before the wait. written: by kernel,
    of which kernel's weight its C is a part."""
    accesses, later = [], {}
    for i in range(COUNT):
        target = ("weight", written[i]) if i in (written or {}) else ("buffer", i % buffers)
        source = next((access[3] for access in accesses if access[:3] == (i - 1, "stores", "C")), ("x", 0))
        accesses += [
            (i, "reads", "weight", ("weight", i)),
            (i, "reads", "activations", source),
            (i, "stores", "C", target),
        ]
        later[i, "begins"] = [(i + 1, "begins"), (i, "waits"), *(a for a in accesses if a[0] == i)]
        later[i, "waits"] = [*(a for a in accesses if a[0] == i and a[2] not in early), (i, "ends")]
        later[i, "ends"] = [(i + 1, "waits")]
    later |= {access: [(access[0], "ends")] for access in accesses}

    def after(event: tuple) -> set:
        found, ahead = set(), [event]
        while ahead:
            new = [each for each in later.get(ahead.pop(), ()) if each not in found]
            found.update(new)
            ahead += new
        return found

    reached = {access: after(access) for access in accesses}
    said = []
    for x, y in combinations(accesses, 2):
        if x[3] == y[3] and "stores" in (x[1], y[1]) and x not in reached[y] and y not in reached[x]:
            said.append(f"kernel {x[0]} {x[1]} {x[2]}, kernel {y[0]} {y[1]} {y[2]}")
    return said


asked = {
    "the weight early, two buffers": {},
    "the same, and one buffer": {"buffers": 1},
    "the activations early too": {"early": "weight, activations"},
    "C early too": {"early": "weight, C"},
    "C early too, three buffers": {"early": "weight, C", "buffers": 3},
    "kernel 1 writes the weight of kernel 3": {"written": {1: 3}},
    "the same, all after the wait": {"written": {1: 3}, "early": ""},
}
found = {what: conflicts(**case) for what, case in asked.items()}
assert not found["the weight early, two buffers"] and all(found[what] for what in list(asked)[1:-1])
rows = [[what, str(len(pairs)), (pairs or ["none"])[0]] for what, pairs in found.items()]
Markdown(table(["a chain with", "pairs not ordered", "the first of them"], rows, right=9))

# %% [markdown]
# That the kernel keeps to these rules is checked too: level *pipeline* reports each access to global memory before the
# wait, except the loads that `at_rest` names. [Below](#check) faults are planted, and found.
#
# `matmul(a, b)` is one product of the chain, in three variants:
#
# | variant | the weight | needs |
# |---|---|---|
# | `no PDL` | is loaded at once; the kernel begins when the previous one has ended | nothing |
# | `late weight` | is loaded after the wait | nothing |
# | `early weight` | is loaded before the wait | that no kernel which may still run writes it |
#
# `chain` takes `no PDL` first. After it `in_chain` chooses one of the others, by [size](#the-sizes).

# %%
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import (
    DTYPES,
    LARGEST,
    Call,
    Gemm,
    check_apart,
    check_gpu,
    check_tensor,
    compile_host,
    k_major,
    require,
)
from cookbook.recipes.hopper.decode_gemm import mirrored_atom
from cookbook.recipes.hopper.split_k_gemm import consume, make_multiplier
from cookbook.recipes.hopper.tma_wgmma_gemm import Config as TmaWgmmaConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    Load,
    SmemLayouts,
    TiledCopies,
    TmaTensor,
    make_load,
    partition_load,
    set_up,
    smem_atom,
    store,
    tiled_mma,
    wgmma,
)

# %% [markdown]
# ## The sizes
#
# Multiplying takes less than half of such a product's time: compare the clocks of `wgmma` in the table below with the
# [measured times](#time). The rest is latency and loads. So each CTA computes one tile, and up to 1024 x 1024 no SM of
# an H200 gets a second one. As in [split-K](split_k_gemm.ipynb) the tensor core's A is the weight (swap A/B):
# **`tile_m` counts columns of the product, `tile_n` its rows**.
#
# * **64x64** where its tiles are at most as many as SMs. A product of 512 x 512 has 64 of them. That leaves more than
#   half of an H200's SMs to the next kernel, which loads its weight there.
# * **128x64** for larger ones. At 1024 x 1024 there are 128 tiles, and their shared memory leaves no room for a second
#   CTA on an SM. So most CTAs of the next kernel begin when this one's have ended, and load an early weight just before
#   the activations. That was slower than a late weight on the H200, and faster on the H100: see [the table](#time). The
#   cause is not known, and `in_chain` loads late.
#
# So `in_chain` loads early only where two kernels fit on the SMs at once.
#
# In an experiment on an H200, which is not recorded, four things were slower:
#
# * a prefetch of the weight into L2 before the wait;
# * multicast in clusters of two and four;
# * four stages, which leave room for two CTAs of 128x64 on an SM;
# * tiles whose CTAs load fewer activations, 128x16 and 64x16.
#
# CTAs of 64x32, two on an SM, came within a twentieth of 64x64.


# %%
@dataclass(frozen=True)
class Config(TmaWgmmaConfig):
    """Sizes of the kernel, in elements or counts, and what it may ask for early. No rasterization: all tiles run at
    once, so `swizzle_size` is not used."""

    tile_m: int = 64  # rows of the weight per CTA, 64 for each warpgroup
    tile_n: int = 64  # rows of the product per CTA
    tile_k: int = 128  # two rows of the SW128 atom, eight wgmma steps of 16
    early: bool = False  # loads the weight before `griddepcontrol.wait`
    pdl: bool = True  # may begin before the previous kernel has ended

    @property
    def warpgroups(self) -> int:
        return self.tile_m // 64  # that multiply


# %%
TILES = Config(), Config(tile_m=128, tile_n=64, tile_k=64, stages=9)
VARIANTS = {
    "no PDL": Config(early=True, pdl=False),
    "late weight": Config(),
    "early weight": Config(early=True),
}
DEFAULT = "late weight"
TRANSPOSED = True
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


def tiled(config: Config, tile: Config) -> Config:
    """A variant with the sizes of a tile."""
    return replace(tile, early=config.early, pdl=config.pdl)


def ctas(tile: Config, m: int, n: int) -> int:
    """CTAs of a product of m x n: one for each tile."""
    return -(-n // tile.tile_m) * -(-m // tile.tile_n)


def config_of(variant: str, m: int, n: int, sms: int) -> Config:
    """The variant for a product of m x n on `sms` SMs: the first tile whose CTAs all run at once, or the last."""
    at_once = (tile for tile in TILES if ctas(tile, m, n) <= sms)
    return tiled(VARIANTS[variant], next(at_once, TILES[-1]))


def in_chain(m: int, n: int, sms: int) -> str:
    """The variant for a product behind another: it loads early if there is an SM for each CTA of two such kernels."""
    return "early weight" if 2 * ctas(config_of(DEFAULT, m, n, sms), m, n) <= sms else "late weight"


# %% [markdown] tags=["lab"]
# Two cubes in a chain: the bytes that a CTA loads early, and those that it loads after the wait. *Clocks* is what the
# latter take at 64 bytes a clock, the most that an SM can take from L2. The clocks of `wgmma` are counted as on the
# page of [the decode GEMM](decode_gemm.ipynb), and overlap with the loads.

# %% tags=["lab"]
lines = []
for size in (512, 1024):
    c = config_of(in_chain(size, size, 132), size, size, 132)
    k_tiles = -(-size // c.tile_k)
    early = c.early * min(k_tiles, c.stages) * c.tile_m * c.tile_k * 2
    rest = k_tiles * c.stage_bytes - early
    multiplying = c.warpgroups * size // 16 * max(c.tile_n / 2, 16 + c.tile_n / 4)
    sizes = [f"{c.tile_m}x{c.tile_n}", f"{size // c.tile_m * (size // c.tile_n)}", f"{c.smem_bytes // 1024}"]
    lines.append([f"{size}", *sizes, f"{early // 1024}", f"{rest // 1024}", f"{rest // 64}", f"{multiplying:.0f}"])
heads = [
    "M, N, K",
    "tile",
    "CTAs",
    "shared memory, KiB",
    "early, KiB",
    "after the wait, KiB",
    "clocks",
    "clocks of wgmma",
]
Markdown(table(heads, lines))

# %% [markdown]
# ## Layouts, MMA and copies
#
# A and B lie as on all pages of this track. C goes through shared memory, where the stages were. The tensor cores
# compute C transposed (swap A/B), so it lies by columns there: `stmatrix` transposes each 8 x 8 block, and a thread
# stores 16 bytes of a row of the product.


# %%
def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B as before, first down the rows, then along K, then over the stages; C with its lines along M."""
    c = config
    ab = smem_atom(dtype, c.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(mirrored_atom(dtype, c.tile_m), (c.tile_m, c.tile_n), order=(0, 1)),
    )


def tiled_copies(dtype, config: Config, vec: int = 8) -> TiledCopies:
    """stmatrix with a transpose, then `vec` elements (8, 4, 2 or 1) of a column of the tile a thread."""
    stmatrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=True, num_matrices=4), dtype)
    vectors = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    down = config.tile_m // vec  # threads that share a column
    threads = cute.make_layout((down, config.consumer_threads // down))
    return TiledCopies(
        r2s_c=cute.make_tiled_copy_C(stmatrix, tiled_mma(dtype, config)),
        s2g_c=cute.make_tiled_copy_tv(vectors, threads, cute.make_layout((vec, 1))),
    )


# %% [markdown]
# ## The warp that loads
#
# The order of its steps:
#
# 1. `griddepcontrol.launch_dependents`: the next kernel may begin. It needs nothing of this one before its wait.
# 2. With `early`: load the weight's tiles of the first k-tiles, as many as there are stages. A stage is *full* when the
#    bytes of both operands have come, so its barrier expects them all now.
# 3. `griddepcontrol.wait`.
# 4. Load the activations of these k-tiles, into the same stages.
# 5. Load both operands of the k-tiles that are left, as stages become empty.


# %%
def at_rest(config: Config) -> tuple[str, ...]:
    """Name the kernel's operands that no overlapping kernel writes."""
    return ("a",) if config.early else ()


@cute.jit
def load_k_tile(pipe: pipeline.PipelineTmaAsync, load: Load, k_tile: cutlass.Int32, state: pipeline.PipelineState):
    """Load one operand's part of a k-tile into the stage of `state`."""
    gX, sX = load.gX[None, k_tile], load.sX[None, state.index]
    cute.copy(load.atom, gX, sX, tma_bar_ptr=pipe.producer_get_barrier(state))


@cute.jit
def produce(pipe: pipeline.PipelineTmaAsync, a: Load, b: Load, config: cutlass.Constexpr):
    """Load all k-tiles of A and B."""
    k_tiles = cute.size(a.gX, mode=[1])
    ahead = cutlass.min(k_tiles, config.stages) if config.early else 0
    filling, state = (pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages) for _ in range(2))
    cute.arch.griddepcontrol_launch_dependents()
    for k_tile in cutlass.range(ahead, unroll=1):
        pipe.producer_acquire(filling)  # an empty stage, which now expects the bytes of both operands
        load_k_tile(pipe, a, k_tile, filling)
        filling.advance()
    cute.arch.griddepcontrol_wait()  # before B is read: the previous kernel writes it
    for k_tile in cutlass.range(ahead, unroll=1):
        load_k_tile(pipe, b, k_tile, state)
        state.advance()
    for k_tile in cutlass.range(ahead, k_tiles, unroll=1):
        pipe.producer_acquire(state)
        load_k_tile(pipe, a, k_tile, state)
        load_k_tile(pipe, b, k_tile, state)
        state.advance()
    pipe.producer_tail(state)  # until all stages have been read


# %% [markdown]
# ## The kernel
#
# The warpgroups multiply by `consume` of [split-K](split_k_gemm.ipynb), and store by `store` of [the GEMM with TMA and
# WGMMA](tma_wgmma_gemm.ipynb). They wait for the previous kernel at the start, before they have anything to multiply.
# So the wait costs nothing before the stores.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes one tile of C.

    Who waits for whom, with the CONFIG of hopper/pdl_chain:

    warps  do         wait for  signal
    0-3    wgmma      full[4]   empty[4]: 1 a warp
    4      TMA loads  empty[4]  full[4]: 1, expects 32768 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 4 arrivals a phase.
    bar 1, 128 threads: warps 0-3 meet.
    """
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp_idx == 4 * config.warpgroups:
        cpasync.prefetch_descriptor(a.atom)
        cpasync.prefetch_descriptor(b.atom)
    cta = set_up(layouts, mC.element_type, config)
    number, _, _ = cute.arch.block_idx()
    across = cute.ceil_div(mC.shape[1], config.tile_n)
    tile = (number // across, number % across)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (tile[0], None))  # (TILE_M, TILE_K, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (tile[1], None))  # (TILE_N, TILE_K, k)

    if warp_idx == 4 * config.warpgroups:
        produce(cta.pipe, partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB), config)
    else:
        cute.arch.griddepcontrol_wait()  # before C is written: the previous kernel may read it
        gC = cute.local_tile(mC, (config.tile_m, config.tile_n), tile)  # (TILE_M, TILE_N)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), tile)
        group = cute.arch.make_warp_uniform(tidx // 128)
        multiplier = make_multiplier(cta.sA, cta.sB, group, op, config)
        consume(cta.pipe, multiplier, cute.size(gA, mode=[2]))
        store(multiplier.acc, cta.sC, gC, cC, mC.shape, copies, config)


# %% [markdown]
# ## The launch


# %% tags=["folded"]
@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are the row strides of A, B, C in elements."""
    (n, m, k), (ldb, lda, ldc), dtype = mnk, strides, pA.dtype
    lda, ldb = (cute.assume(stride, divby=8) for stride in (lda, ldb))
    mA = cute.make_tensor(pB, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pA, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(1, cute.assume(ldc, divby=vec))))
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config, vec)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(a, b, mC, layouts, copies, wgmma(dtype, config.tile_n), config).launch(
        grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1, use_pdl=config.pdl
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul` and `chain`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    m, n, _ = call.mnk
    return (config_of(call.variant, m, n, call.sms), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=VARIANTS)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS. "early weight" is for a `b` that no kernel writes which may still run when this one
        begins: it is read before the previous kernel has ended. The others need no promise.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %%
def between(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of all kernels of a chain but the last: two buffers that alternate, with rows of whole 16
    bytes."""
    m, widths = x.shape[0], [-(-weight.shape[1] // 8) * 8 for weight in weights[:-1]]
    buffers = x.new_empty(2, m * max(widths, default=0))
    lines = (buffers[i % 2, : m * width].view(m, width) for i, width in enumerate(widths))
    return [each[:, : weight.shape[1]] for each, weight in zip(lines, weights, strict=False)]


def chain(x: torch.Tensor, weights: Sequence[torch.Tensor], *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ weights[0] @ weights[1] @ ...`, each product rounded to the dtype, on the current stream of `x`'s device.

    x: (M, K), float16 or bfloat16, K-major.
    weights: at least one; each (K, N), the same dtype, K-major too, its K the N of the one before.
    out: (M, N) of the last one, stride 1 along N, no memory of x or of any weight. Made if not given.

    The first kernel begins when all that was queued before has ended. Each one after it begins earlier, and may load
    its weight at once. No kernel of the chain writes a weight: what they write is new memory, or `out`.
    Alignment and GPU as of `matmul`. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    check_chain(x, weights, out)
    out = x.new_empty(x.shape[0], weights[-1].shape[1]) if out is None else out
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    for i, (weight, to) in enumerate(zip(weights, (*between(x, weights), out), strict=True)):
        x = GEMM.matmul(x, weight, out=to, variant=in_chain(*to.shape, sms) if i else "no PDL")
    return x


def check_chain(x: torch.Tensor, weights: Sequence[torch.Tensor], out: torch.Tensor | None) -> None:
    """Raise what `chain` raises."""
    require(isinstance(weights, list | tuple), "weights", type(weights).__name__, "a list or tuple", TypeError)
    require(len(weights) > 0, "weights", "none of them", "at least one")
    named = {f"weights[{i}]": weight for i, weight in enumerate(weights)}
    check_tensor("x", x, DTYPES)
    check_gpu("x", x, GEMM.gpus, GEMM.needs)
    k_major("x", x, 1, False)
    k = x.shape[1]
    for name, weight in named.items():
        check_tensor(name, weight, (x.dtype,))
        require(weight.shape[0] == k, name, f"shape {tuple(weight.shape)}", f"({k}, N): what it multiplies has K = {k}")
        require(weight.device == x.device, name, f"device {weight.device}", f"{x.device}, where x is")
        k_major(name, weight, 0, False)
        k = weight.shape[1]
    longest = max(max(each.shape) for each in (x, *weights))
    require(longest <= LARGEST, "weights", f"M, N or K = {longest}", f"at most {LARGEST}: kernels count in 32 bits")
    if out is not None:
        check_tensor("out", out, (x.dtype,))
        check_apart(out, x=x, **named)  # all weights: each may be read while earlier kernels run
        GEMM.result(x, {"M": x.shape[0], "N": weights[-1].shape[1]}, out)


# %% [markdown] tags=["lab"]
# ## Check
#
# The check is of the cells above. Level *pipeline* follows every variant in every order of its warps.

# %% tags=["lab"]
lab.check_cells("hopper/pdl_chain", shapes=[(13, 333, 640)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# Only the loads that `at_rest` names may come before the wait. If it names nothing, the load of the weight is reported.
# The recipe's tests plant the other faults too, activations loaded or C stored before the wait, and find all of them.

# %% tags=["lab"]
from cookbook.lab import catalog
from cookbook.lab import pipeline as interleavings

module = catalog.load("hopper/pdl_chain")
promised, config = module.at_rest, VARIANTS["early weight"]
kernel_run = interleavings.Run(module, "sm_90a", cutlass.BFloat16, config)
for said, promise in {"the weight is at rest": promised, "nothing is": lambda config: ()}.items():
    module.at_rest = promise
    explored = interleavings.explore(kernel_run, kernel_run.problems[0])
    faults = [fault.splitlines()[0] for run in explored for fault in run.faults]
    print(f"{said}: {faults[0] if faults else 'nothing to accuse'}")
module.at_rest = promised

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/pdl_chain", matmul, (512, 512, 512))

# %% tags=["lab"]
Markdown(results_table("hopper/pdl_chain"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Before its wait a kernel may do what no other kernel can change: make its barriers, and load what is at rest. The
# caller need not promise that a weight is at rest if one function launches the whole chain: it checks what the chain
# writes.
#
# What is left between two products is the wait, the first load after it, and the stores. A load before the wait needs a
# place to go: an SM, or a part of its shared memory, that the previous kernel leaves free.
#
# Next: [GEMV](gemv.ipynb), one or two rows, which need no tensor cores.
#
# To use it: `cookbook copy hopper/pdl_chain my_chain.py`, then `from my_chain import chain`.
