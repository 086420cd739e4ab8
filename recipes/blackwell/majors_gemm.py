# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Operand majors with tcgen05
#     claim: >-
#       tcgen05 reads a tile along K or along M and N, so an operand needs no transpose: its layout is mirrored and the
#       instruction descriptor gets one bit.
#     track: blackwell
#     order: 70
#     builds_on: blackwell/pipelined_gemm
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     serves: {sm_100: 4096}
#     dtypes: [bfloat16, float16]
#     majors: [tn, nt, nn, tt]
#     path: tma -> swizzled shared memory -> tcgen05.mma of either major -> tensor memory -> tcgen05.ld -> boxes -> tma
#     instructions:
#       all: [UTMALDG.2D, UTCHMMA, UTCBAR, LDTM, UTCATOMSWS, STS.128, UTMASTG.2D, SYNCS]
#     sources:
#       - {title: "PTX ISA, the shared-memory descriptor of tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-shared-memory-descriptor"}
#       - {title: "PTX ISA, tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"}
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
# ---

# %% [markdown]
# # Operand majors with tcgen05
#
# **Claim.** `tcgen05.mma` reads a tile along K or along M and N, so an operand needs no transpose: its atom is
# mirrored, its boxes lie the other way, and the instruction descriptor gets one bit.

# %% [markdown] tags=["lab"]
# The picture has this page's A for `nt`, as CuTe evaluates it. A row of the picture is one 128-byte line of shared
# memory: 64 elements along M, of one k. The chunks are numbered along M. The swizzle is the one that a K-major tile
# has.

# %% tags=["lab"]
import cutlass

import cookbook
from cookbook import draw
from cookbook.layouts import evaluate

packaged = cookbook.load("blackwell/majors_gemm")
from cookbook.recipe import majors

mirrored = majors.configured(packaged.CONFIG, "nt")
draw.swizzle_view(evaluate(packaged.smem_layouts, cutlass.BFloat16, mirrored, arch="sm_100a").a)

# %% [markdown]
# [The kernel before](pipelined_gemm.ipynb) takes A and B *K-major*: the elements that are multiplied and summed lie
# next to each other, as in `x @ weight.T`. Most products of a training step are not like that:
#
# | letters | A (M, K) lies along | B (K, N) lies along | for example       |
# |---------|---------------------|---------------------|-------------------|
# | `tn`    | K: row-major        | K: column-major     | `x @ weight.T`    |
# | `tt`    | K: row-major        | N: row-major        | `dy @ weight`     |
# | `nn`    | M: column-major     | K: column-major     | `x.T @ weight.T`  |
# | `nt`    | M: column-major     | N: row-major        | `dy.T @ x`        |
#
# The letters are BLAS's and CuTe's, the first for A, the second for B: is the matrix, stored by columns, to be
# *transposed* or *not*?
#
# [Hopper's page](../hopper/majors_gemm.ipynb) has the same layouts for `wgmma`. Two things are Blackwell's own. The bit
# stands in a word that is a run-time operand of the instruction. And a tile of B is 256 columns wide: four boxes, and a
# descriptor with a second stride that counts.
#
# *This kernel has not run on hardware.* It is compiled for Blackwell, and its layouts, descriptors and data path are
# checked against the PTX ISA document in numpy. No speed is claimed.

# %%
from dataclasses import dataclass, replace
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from cookbook.recipe.entry import Call, Gemm, check_epilogue, compile_host, either_major, require
from cookbook.recipe.moved import SmemAllocator, TmemAllocator

# %% [markdown]
# ## The sizes, and the majors
#
# The majors are two more fields: the compiler makes one kernel for each pair that is used. Everything else is as it
# was, without the variant of one accumulator stage.


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per tile: one row in each lane of tensor memory
    tile_n: int = 256  # columns of C per tile: the widest tcgen05.mma
    tile_k: int = 64  # 128 bytes of a K-major operand, eight atoms of an MN-major one; four tcgen05.mma steps of 16
    stages: int = 4  # pairs of A and B tiles in flight or being read
    acc_stages: int = 2  # accumulator tiles in tensor memory
    epi_n: int = 64  # columns of an epilogue subtile of C: 128 bytes, and as many registers a thread
    epi_buffers: int = 2  # epilogue subtiles of C on their way out
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles
    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    def __post_init__(self):
        check_epilogue("epi_buffers", self.epi_buffers, self.tile_n // self.epi_n)
        if self.a_major not in ("k", "m"):
            raise ValueError(f"a_major: got {self.a_major!r}; needed 'k' or 'm'")
        if self.b_major not in ("k", "n"):
            raise ValueError(f"b_major: got {self.b_major!r}; needed 'k' or 'n'")

    @property
    def threads(self) -> int:
        return 32 * WARPS

    @property
    def tmem_columns(self) -> int:
        return self.acc_stages * self.tile_n  # 32 bits each; allocated in powers of two, at least 32

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A and B; and C beside them
        return 1024 + self.stages * self.stage_bytes + self.epi_buffers * self.tile_m * self.epi_n * 2


EPILOGUE_WARPS, MMA_WARP, TMA_WARP, WARPS = 4, 4, 5, 6  # warps 0 to 3: warp w reaches lanes 32 w to 32 w + 31
CONFIG = Config()


def config_for(arch: str) -> Config:
    """The configuration for an architecture: the two chips with tcgen05 have the same sizes."""
    return CONFIG


# %% [markdown]
# ## The layout
#
# TMA copies boxes, and the rows of a box are what is contiguous in global memory. It does not transpose them. So an
# M-major operand arrives in lines along M, and its atom is the K-major one mirrored: not 8 rows of 64 elements along K,
# but **64 x 8, eight lines of 64 elements along M**, one line for each k.
#
# The swizzle is the same `S<3,4,3>`, for it sees addresses: 16-byte chunk *c* of line *l* goes to slot *c XOR l*,
# whichever way the lines run.
#
# **In which order do the atoms fill the tile?** A descriptor has two strides. For an MN-major operand one of them, the
# *stride byte offset*, leads from eight k to the next eight, the other, the *leading byte offset*, from 64 rows to the
# next 64; the tensor core would take either order.
#
# TMA decides: a box in the 128-byte mode is one swizzle wide, 64 elements, and its lines lie *one below the other*. So
# all atoms along K come first, and after them the next 64 rows: a box is 64 x 64. The other way round a box would be
# one atom, 64 x 8, and the producer would issue eight times as many copies.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)
    c: cute.ComposedLayout  # (M, EPI_N, BUFFER)


def smem_atom(dtype, contiguous: int, along: int = 1) -> cute.ComposedLayout:
    """Eight lines along mode `along` and the swizzle for them: SW128, SW64, SW32 or INTER (none), the widest whose
    line divides `contiguous` elements."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    lines = cute.make_layout((8, width), stride=(width, 1))
    lines = lines if along == 1 else cute.select(lines, mode=[1, 0])  # (width, 8):(1, width)
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first across the lines, then along them, then over the stages."""

    def staged(rows: int, major: str) -> cute.ComposedLayout:
        along, order = (1, (0, 1, 2)) if major == "k" else (0, (1, 0, 2))
        tile = (rows, config.tile_k, config.stages)
        return cute.tile_to_shape(smem_atom(dtype, tile[along], along), tile, order=order)

    buffers = (config.tile_m, config.epi_n, config.epi_buffers)
    return SmemLayouts(
        a=staged(config.tile_m, config.a_major),
        b=staged(config.tile_n, config.b_major),
        c=cute.tile_to_shape(smem_atom(dtype, config.epi_n), buffers, order=(0, 1, 2)),
    )


# %% [markdown]
# ## One bit
#
# The instruction descriptor has a bit for each operand: the lines that the matrix descriptor describes run along K, or
# along M or N. With the bit the tensor core transposes each core matrix while it reads it. For 16-bit elements it takes
# any mode; 32-bit ones need, along M and N, a mode of their own that keeps 32 bytes together.
#
# The bit is in the instruction descriptor, the strides are in the matrix descriptor, the swizzle is in that and in the
# tensor map. All of them must describe the same tile. `Config` says it once, and CuTe derives the descriptors from the
# layout and the bit.


# %%
def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """tcgen05.mma of 128 x N x 16 by one CTA, A and B from shared memory, of these majors."""
    shape, smem = (config.tile_m, config.tile_n, 16), tcgen05.OperandSource.SMEM
    index = (config.a_major, config.b_major)
    majors = (OperandMajorMode.K if major == "k" else OperandMajorMode.MN for major in index)
    op = tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.ONE, smem, *majors)
    return cute.make_tiled_mma(op)


class TiledCopies(NamedTuple):
    """The copies by software on the way of C, over one subtile of it."""

    t2r_c: cute.TiledCopy  # tcgen05.ld: from tensor memory to registers, `epi_n` columns of a row a thread
    r2s_c: cute.TiledCopy  # st.shared of 16 bytes


def pieces(sums: cute.Tensor, config: Config = CONFIG) -> cute.Tensor:
    """The accumulators of one stage (MMA, MMA_M, MMA_N) as (M, EPI_N, 1, N / EPI_N)."""
    return cute.flat_divide(sums[(None, None), 0, 0], (config.tile_m, config.epi_n))


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """The two copies of the epilogue."""
    mma = tiled_mma(dtype, config)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(config.epi_n)), cutlass.Float32)
    piece = pieces(mma.make_fragment_C(mma.partition_shape_C((config.tile_m, config.tile_n))), config)
    t2r_c = tcgen05.make_tmem_copy(load, piece[None, None, 0, 0])
    write = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=128)
    return TiledCopies(t2r_c=t2r_c, r2s_c=cute.make_tiled_copy_D(write, t2r_c))


# %% tags=["lab"]
BF16, ARCH = cutlass.BFloat16, "sm_100a"
configs = {letters: majors.configured(CONFIG, letters) for letters in majors.MAJORS}
layouts = {letters: evaluate(smem_layouts, BF16, config, arch=ARCH) for letters, config in configs.items()}

# %% [markdown] tags=["lab"]
# A smaller M-major tile, 128 x 16, to see the order of the atoms: two along K, two along M. A row is one k, a column 16
# bytes along M; the number is the byte offset, the colour the atom, in the order of memory. The lines of one column of
# atoms follow one another, 128 bytes apart, down to the last k: that is one box.

# %% tags=["lab"]


def one_tile(rows: int, k: int, along: int) -> cute.ComposedLayout:
    """A tile of one stage, contiguous along mode `along`, in our order of atoms."""
    order = (1, 0, 2) if along == 0 else (0, 1, 2)
    return cute.tile_to_shape(smem_atom(BF16, (rows, k)[along], along), (rows, k, 1), order=order)


small = evaluate(one_tile, 128, 16, 0, element_bits=16)
draw.atom_tiling({"first along K": small}, (64, 8), "An M-major tile, its atoms first along K")

# %% [markdown] tags=["lab"]
# CuTe has a selector of its own for Blackwell. It agrees with ours for all four majors, byte by byte. (Its layouts have
# a mode for what one instruction reads.)

# %% tags=["lab"]
import cutlass.utils.blackwell_helpers as cute_helpers


def layouts_by_cute(config: Config):
    mma, tile = tiled_mma(BF16, config), (config.tile_m, config.tile_n, config.tile_k)
    return (
        cute_helpers.make_smem_layout_a(mma, tile, BF16, config.stages),
        cute_helpers.make_smem_layout_b(mma, tile, BF16, config.stages),
    )


for letters, config in configs.items():
    cutes = evaluate(layouts_by_cute, config, element_bits=16, arch=ARCH)
    for ours, by_cute in zip((layouts[letters].a, layouts[letters].b), cutes, strict=True):
        rows, columns, stages = ours.outer.sizes
        cut_up = by_cute.byte_offsets().reshape(16, rows, -1, stages)  # (K, M, MMA_K, STAGE)
        assert (cut_up.transpose(1, 2, 0, 3).reshape(rows, columns, stages) == ours.byte_offsets()).all()
    print(letters, "a:", layouts[letters].a.outer, " b:", layouts[letters].b.outer)

# %% [markdown] tags=["lab"]
# ## Boxes and descriptors
#
# The boxes of a k-tile, lines x elements; the strides of the descriptor of the first 16 k, in bytes; and how far its
# start moves from one k-block to the next. K-major, a k-block is 32 bytes further *in the same lines*; MN-major it is
# 16 lines further, and the leading byte offset, which a swizzled K-major operand does not use, leads to the next 64
# along M or N. The last column is the instruction descriptor.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.check.model.wgmma import boxes_of
from cookbook.descriptors import describe
from cookbook.model import InstructionDescriptor
from cookbook.publish.pages import table


def told(layout, rows: int, major: str) -> list[str]:
    """The boxes of a tile, and its descriptor."""
    boxes = boxes_of(layout, along=1 if major == "k" else 0)
    first, second = (describe(layout, "K" if major == "k" else "MN", False, rows, (0, k)) for k in (0, 16))
    said = f"lbo {first.lbo}, sbo {first.sbo}, + {second.start - first.start}"
    return [f"{len(boxes.origins)} of {boxes.shape[0]} x {boxes.shape[1]}", said]


rows = []
for letters, (a_major, b_major) in majors.MAJORS.items():
    bits = {"a_major": "K" if a_major == "k" else "MN", "b_major": "K" if b_major == "k" else "MN"}
    word = InstructionDescriptor("f16", CONFIG.tile_m, CONFIG.tile_n, "bfloat16", **bits).encode()
    a, b = told(layouts[letters].a, CONFIG.tile_m, a_major), told(layouts[letters].b, CONFIG.tile_n, b_major)
    rows.append([letters, *a, *b, f"{word:#x}"])
heads = ["majors", "boxes of A", "descriptor of A", "boxes of B", "descriptor of B", "instruction descriptor"]
Markdown(table(heads, rows, right=6))

# %% [markdown] tags=["lab"]
# The bits of the last one, `nt`: both operands along M and N.

# %% tags=["lab"]
places = {"D: float32": (4, 2), "A: bfloat16": (7, 3), "B: bfloat16": (10, 3), "A along M": (15, 1)}
places |= {"B along N": (16, 1), "N / 8": (17, 6), "M / 16": (24, 5)}
word = int(rows[-1][-1], 16)
fields = [draw.Field(name, low, width, word >> low & (1 << width) - 1) for name, (low, width) in places.items()]
draw.bit_fields(fields, 32, title="The instruction descriptor for nt")

# %% [markdown] tags=["lab"]
# **The trap: a wrong bit raises nothing.** The model's TMA puts an M-major tile of 128 x 128 into shared memory. The
# model's `tcgen05.mma` multiplies it by a K-major B by the same descriptor, once with the right bit and once with the
# other. The second product is that of the *transposed* tile, row for row: it takes lines for rows.

# %% tags=["lab"]
import numpy as np

from cookbook.model import SharedMemory, TensorMemory, from_float32, tma_load
from cookbook.model.tcgen05 import mma as modelled_mma

rng = np.random.default_rng(0)
a, b = rng.integers(-8, 9, (128, 128)).astype(np.float32), rng.integers(-8, 9, (128, 32)).astype(np.float32)
m_major, k_major = (evaluate(one_tile, *tile, element_bits=16) for tile in ((128, 128, 0), (32, 128, 1)))
smem, base = SharedMemory(m_major.size_bytes + k_major.size_bytes), m_major.size_bytes
bits_of_a, bits_of_b = (from_float32(np.ascontiguousarray(x.T), "bfloat16") for x in (a, b))
for column in (0, 64):
    tma_load(smem, 256 * column, bits_of_a, (0, column), (128, 64), 128)  # lines along M
    tma_load(smem, base + 64 * column, bits_of_b, (0, column), (32, 64), 128)  # lines along K
left, right = describe(m_major, "MN", False, 128), describe(k_major, "K", False, 32, base=base)

for bit in ("MN", "K"):
    tmem = TensorMemory()
    address = tmem.alloc(32)
    word = InstructionDescriptor("f16", 128, 32, "bfloat16", a_major=bit)
    modelled_mma(smem, tmem, address, left, right, word, accumulate=False)
    found = tmem.read(np.arange(128)[:, None], np.arange(32)[None]).view(np.float32)
    products = {"a @ b": a[:, :16] @ b[:16], "a.T @ b": a.T[:, :16] @ b[:16]}
    agree = {name: f"{int((found == product).all(axis=1).sum())} rows" for name, product in products.items()}
    print(f"a_major = {bit:3}", agree)

# %% [markdown]
# ## Unchanged: tiles, and the three roles
#
# None of the following depends on the majors. Partitioned tensors have the same modes either way: (TMA, k) for the warp
# that loads, descriptors (MMA, MMA_M, MMA_K, STAGE) for the one that multiplies. [The kernel
# before](pipelined_gemm.ipynb) explains each line.


# %%
class Work(NamedTuple):
    """The tiles that a CTA is to do: `first`, `first + step`, ..., `count` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
    grid: tuple[cutlass.Int32, cutlass.Int32]  # of tiles, down and across C


@cute.jit
def work_of_cta(shape_mn, config: cutlass.Constexpr):
    """What this CTA has to do."""
    down, across = cute.ceil_div(shape_mn[0], config.tile_m), cute.ceil_div(shape_mn[1], config.tile_n)
    first, _, _ = cute.arch.block_idx()
    step, _, _ = cute.arch.grid_dim()
    return Work(first, step, (down * across - first + step - 1) // step, (down, across))


@cute.jit
def tile_of(work: Work, iteration, config: cutlass.Constexpr):
    """The tile (m, n) of C that this CTA computes in an iteration: column by column inside groups of rows of tiles."""
    down, across = work.grid
    number = work.first + iteration * work.step
    group, inside = number // (config.swizzle_size * across), number % (config.swizzle_size * across)
    first = group * config.swizzle_size
    height = cutlass.min(down - first, config.swizzle_size)  # the last group may be lower
    return first + inside % height, inside // height


# %%
class Loads(NamedTuple):
    """What the loading warp copies: for A and for B, a TMA atom, its source and its destination."""

    tma_a: cute.CopyAtom
    tAgA: cute.Tensor  # (TMA, m, k), TMA coordinates
    tAsA: cute.Tensor  # (TMA, STAGE)
    tma_b: cute.CopyAtom
    tBgB: cute.Tensor  # (TMA, n, k), TMA coordinates
    tBsB: cute.Tensor  # (TMA, STAGE)


@cute.jit
def make_loads(tma_a, gA, sA, tma_b, gB, sB) -> Loads:
    """gA (M, K, m, k), gB (N, K, n, k) in global memory; sA (M, K, STAGE), sB (N, K, STAGE) in shared memory."""
    alone = cute.make_layout(1)  # no multicast: a cluster of one
    sA, sB = cute.group_modes(sA, 0, 2), cute.group_modes(sB, 0, 2)
    tAsA, tAgA = cpasync.tma_partition(tma_a, 0, alone, sA, cute.group_modes(gA, 0, 2))
    tBsB, tBgB = cpasync.tma_partition(tma_b, 0, alone, sB, cute.group_modes(gB, 0, 2))
    return Loads(tma_a, tAgA, tAsA, tma_b, tBgB, tBsB)


@cute.jit
def load_tile(pipe, loads: Loads, state, tile):
    """Load the k-tiles of the tile (m, n) of C, a stage each. Returns the pipeline state."""
    tAgA, tBgB = loads.tAgA[None, tile[0], None], loads.tBgB[None, tile[1], None]  # (TMA, k)
    tAsA, tBsB = loads.tAsA, loads.tBsB  # (TMA, STAGE)
    for k_tile in cutlass.range(cute.size(tAgA, mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        cute.copy(loads.tma_a, tAgA[None, k_tile], tAsA[None, state.index], tma_bar_ptr=barrier)
        cute.copy(loads.tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier)
        state.advance()
    return state


@cute.jit
def produce(pipe, loads: Loads, work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(work.count, unroll=1):
        state = load_tile(pipe, loads, state, tile_of(work, iteration, config))
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %%
class Mainloop(NamedTuple):
    """What the multiplying warp works with: the operands and the accumulators."""

    k_tiles: cutlass.Int32  # of each tile of C
    tCrA: cute.Tensor  # descriptors of A, (MMA, MMA_M, MMA_K, STAGE)
    tCrB: cute.Tensor  # descriptors of B, (MMA, MMA_N, MMA_K, STAGE)
    tCtC: cute.Tensor  # float32 in tensor memory, (MMA, MMA_M, MMA_N, ACC_STAGE)


@cute.jit
def multiply_tile(pipe, read, main: Mainloop, acc, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Multiply all k-tiles of a tile into acc (MMA, MMA_M, MMA_N); returns where the next tile's begin.

    CuTe elects the one thread that issues.
    """
    mma = tiled_mma(dtype, config)  # made for each tile: a field that changes is this tile's alone
    mma.set(tcgen05.Field.ACCUMULATE, False)
    tCrA, tCrB = main.tCrA, main.tCrB
    for _ in cutlass.range(main.k_tiles, unroll=1):
        pipe.consumer_wait(read)
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):  # each step is 16 elements along K
            cute.gemm(mma, acc, tCrA[None, None, k, read.index], tCrB[None, None, k, read.index], acc)
            mma.set(tcgen05.Field.ACCUMULATE, True)
        pipe.consumer_release(read)  # once these are done, the stage may be overwritten
        read.advance()
    return read


@cute.jit
def make_mainloop(tCtC, sA, sB, k_tiles, config: cutlass.Constexpr) -> Mainloop:
    """The operands as the tensor core reads them, and where it adds up their products."""
    mma = tiled_mma(sA.element_type, config)
    thr = mma.get_slice(0)
    tCrA = mma.make_fragment_A(thr.partition_A(sA))
    tCrB = mma.make_fragment_B(thr.partition_B(sB))
    return Mainloop(k_tiles, tCrA, tCrB, tCtC)


@cute.jit
def multiply(pipe, acc_pipe, main: Mainloop, work: Work, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Tile after tile into the accumulator stages, alternating."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.acc_stages)
    for _ in cutlass.range(work.count, unroll=1):
        acc_pipe.producer_acquire(fill)
        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
        acc = main.tCtC[None, None, None, fill.index]
        read = multiply_tile(pipe, read, main, acc, dtype, config)
        acc_pipe.producer_commit(fill)  # full, once all these are done
        fill.advance()


# %%
class Epilogue(NamedTuple):
    """Where the storing warps put C, and by which copies."""

    copies: TiledCopies
    thread: cutlass.Int32  # of the four warps
    storing: cutlass.Boolean  # is this one's warp the one that talks to TMA?
    sC: cute.Tensor  # the buffers, (M, EPI_N, BUFFER)
    tDsC: cute.Tensor  # this thread's part of them, (VEC, REST_M, REST_N, BUFFER)
    tma_c: cute.CopyAtom
    bSsC: cute.Tensor  # the buffers as TMA reads them, (TMA, BUFFER)
    bSgC: cute.Tensor  # the subtiles of C, (TMA, m, n), TMA coordinates
    barrier: pipeline.NamedBarrier  # of the four warps


@cute.jit
def make_epilogue(copies, sC, tma_c, gC) -> Epilogue:
    """sC (M, EPI_N, BUFFER): the buffers; gC (M, EPI_N, m, n): all subtiles of C."""
    tidx, _, _ = cute.arch.thread_idx()
    storing = cute.arch.make_warp_uniform(tidx // 32) == 0
    tDsC = copies.r2s_c.get_slice(tidx).partition_D(sC)
    whole = cute.make_layout(1)  # a subtile is one box: nothing is divided among CTAs
    bSsC, bSgC = cpasync.tma_partition(tma_c, 0, whole, cute.group_modes(sC, 0, 2), cute.group_modes(gC, 0, 2))
    barrier = pipeline.NamedBarrier(barrier_id=2, num_threads=32 * EPILOGUE_WARPS)
    return Epilogue(copies, tidx, storing, sC, tDsC, tma_c, bSsC, bSgC, barrier)


@cute.jit
def store_subtile(epi: Epilogue, rC, buffer: cutlass.Constexpr, target, config: cutlass.Constexpr):
    """Store a subtile of C: from registers rC through a buffer, and by TMA to `target` (TMA,)."""
    rC = epi.copies.r2s_c.get_slice(epi.thread).retile(rC)
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)
    epi.barrier.arrive_and_wait()  # all know that the buffer is free
    cute.copy(epi.copies.r2s_c, rC, epi.tDsC[None, None, None, buffer])
    cute.arch.fence_proxy("async.shared", space="cta")
    epi.barrier.arrive_and_wait()  # all have written, and said so to TMA
    if epi.storing:
        with cute.arch.elect_one():
            cute.copy(epi.tma_c, epi.bSsC[None, buffer], target)
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def store(acc_pipe, tCtC, epi: Epilogue, work: Work, config: cutlass.Constexpr):
    """Fetch and store tile after tile. tCtC: (MMA, MMA_M, MMA_N, ACC_STAGE)."""
    t2r = epi.copies.t2r_c.get_slice(epi.thread)
    rAcc = cute.make_rmem_tensor(t2r.partition_D(epi.sC)[None, None, None, 0].shape, cutlass.Float32)
    across = config.tile_n // config.epi_n
    fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)
    for iteration in cutlass.range(work.count, unroll=1):
        m, n = tile_of(work, iteration, config)
        acc_pipe.consumer_wait(fetch)
        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
        tDtC = t2r.partition_S(pieces(tCtC[None, None, None, fetch.index], config))  # (LD, LD_M, LD_N, 1, PIECE)
        for piece in cutlass.range_constexpr(across):
            cute.copy(epi.copies.t2r_c, tDtC[None, None, None, 0, piece], rAcc)
            cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld
            if cutlass.const_expr(piece == across - 1):
                cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")
                with cute.arch.elect_one():
                    acc_pipe.consumer_release(fetch)  # this half of tensor memory may be overwritten
            rC = cute.make_rmem_tensor(rAcc.shape, epi.sC.element_type)
            rC.store(rAcc.load().to(rC.element_type))
            target = epi.bSgC[None, m, n * across + piece]
            store_subtile(epi, rC, piece % config.epi_buffers, target, config)
        fetch.advance()
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %%
@cute.jit
def make_pipelines(barriers, config: cutlass.Constexpr):
    """The barriers of the stages of A and B, and those of the accumulator stages."""
    one, warps = (pipeline.CooperativeGroup(pipeline.Agent.Thread, n) for n in (1, EPILOGUE_WARPS))
    pipe = pipeline.PipelineTmaUmma.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=one,
        consumer_group=one,
        tx_count=config.stage_bytes,
        defer_sync=True,
    )
    acc_pipe = pipeline.PipelineUmmaAsync.create(
        barrier_storage=barriers + 2 * config.stages,
        num_stages=config.acc_stages,
        producer_group=one,
        consumer_group=warps,  # one thread of each signals
    )
    return pipe, acc_pipe


def sums_in(tmem, dtype, config: Config):
    """The address of tensor memory, once it is allocated, and the accumulators (MMA, MMA_M, MMA_N, STAGE) in it."""
    mma = tiled_mma(dtype, config)
    tmem.wait_for_alloc()
    address = tmem.retrieve_ptr(cutlass.Float32)
    shape = cute.append(mma.partition_shape_C((config.tile_m, config.tile_n)), config.acc_stages)
    return address, cute.make_tensor(address, mma.make_fragment_C(shape).layout)


@cute.kernel
def kernel(
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,  # (M, K), as TMA coordinates
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,  # (N, K), as TMA coordinates
    tma_c: cute.CopyAtom,
    mC: cute.Tensor,  # (M, N), as TMA coordinates
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its share of the tiles of C, one after the other."""
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work, layouts = work_of_cta(mC.shape, config), smem_layouts(dtype, config)

    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.acc_stages))
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(dtype, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    pipe, acc_pipe = make_pipelines(barriers, config)
    gA = cute.local_tile(mA, (config.tile_m, config.tile_k), (None, None))  # (M, K, m, k)
    gB = cute.local_tile(mB, (config.tile_n, config.tile_k), (None, None))  # (N, K, n, k)
    gC = cute.local_tile(mC, (config.tile_m, config.epi_n), (None, None))  # (M, EPI_N, m, n)
    told = pipeline.NamedBarrier(barrier_id=1, num_threads=32 * (EPILOGUE_WARPS + 1))  # where tensor memory is
    tmem = TmemAllocator(tmem_address, barrier_for_retrieve=told)

    if warp_idx == TMA_WARP:
        produce(pipe, make_loads(tma_a, gA, sA, tma_b, gB, sB), work, config)
    elif warp_idx == MMA_WARP:
        _, tCtC = sums_in(tmem, dtype, config)
        main = make_mainloop(tCtC, sA, sB, cute.size(gA, mode=[3]), config)
        multiply(pipe, acc_pipe, main, work, dtype, config)
    else:
        tmem.allocate(config.tmem_columns)  # by warp 0
        tmem.relinquish_alloc_permit()  # another kernel's CTA on this SM may allocate what is free
        address, tCtC = sums_in(tmem, dtype, config)
        epi = make_epilogue(tiled_copies(dtype, config), sC, tma_c, gC)
        store(acc_pipe, tCtC, epi, work, config)
        epi.barrier.arrive_and_wait()  # all four have fetched their last accumulators
        tmem.free(address)


# %% [markdown]
# ## The launch
#
# An operand has one stride that is 1 and one that is not; the majors say which is which. The kernel
# sees (rows, K) either way, and `make_tiled_tma_atom` finds out from the tensor's strides and the tile's layout what a
# box is.


# %%
def operand_layout(rows, k, stride, major: str) -> cute.Layout:
    """(rows, K) of an operand whose lines, along K or along the rows, are `stride` elements apart."""
    return cute.make_layout((rows, k), stride=(stride, 1) if major == "k" else (1, stride))


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    sms: cutlass.Int32,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are elements between the lines of A, B, C."""
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in strides)
    mA = cute.make_tensor(pA, operand_layout(m, k, lda, config.a_major))
    mB = cute.make_tensor(pB, operand_layout(n, k, ldb, config.b_major))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    load, write = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    a_stage, b_stage, buffer = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_k))
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mB, b_stage, (config.tile_n, config.tile_k))
    tma_c, mC = cpasync.make_tiled_tma_atom(write, mC, buffer, (config.tile_m, config.epi_n))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(tma_a, mA, tma_b, mB, tma_c, mC, dtype, config).launch(
        grid=(cutlass.min(tiles, sms), 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `Gemm`, which all recipes share, checks a call, compiles the kernel, and keeps a *plan* for each kind of call. This is
# the part that is this kernel's own.
#
# There is no argument for the majors: the strides of a and b say them.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    a_major, b_major = call.majors
    config = replace(CONFIG, a_major=a_major, b_major=b_major)
    return (config,), (call.mnk, call.strides, call.sms)


GEMM = Gemm(compile_for, prepare, gpus=((10, 0), (10, 3)), needs="tcgen05", major_of=either_major, padded=True)


# %%
def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    The strides say the majors; an operand that can be read both ways counts as K-major. TMA reads lines that start at
    multiples of 16 bytes: the addresses of a and b and their other strides are such multiples. Any M, N, K >= 1 within
    that: ragged tiles are handled. TMA also writes such rows: for another `out`, or an N that is no multiple of 8, the
    product is made in padded rows and copied. Needs a GPU of compute capability 10.0 or 10.3. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out)


# %% [markdown] tags=["lab"]
# ## Check
#
# All levels for each of the majors. *Model* sends tiles through TMA boxes, swizzled shared memory, descriptors,
# `tcgen05.mma` of either major, both halves of tensor memory and `tcgen05.ld`. *Compiled* compares the compiler's
# descriptors with those of the layouts, bit by bit. What needs a Blackwell GPU says *not checked*: **this kernel has
# not run on hardware**.
#
# The check is of the cells above: edit one, run it, and check again. *Model* checks the layouts; *product* follows the
# kernel from A and B to each element of C.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("blackwell/majors_gemm", shapes=[(200, 328, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded.

# %% tags=["lab", "open"]
lab.compare("blackwell/majors_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed: that takes a Blackwell GPU. The table is here once one has run
# `cookbook bench blackwell/majors_gemm --record`.

# %% tags=["lab"]
from cookbook.publish.pages import results_table

Markdown(results_table("blackwell/majors_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Nothing is transposed, neither in memory nor by a thread: TMA brings lines as they are, and one bit says which way
# they run. The code around it is that of Hopper's pages, line for line: a major is a layout, a box and a bit.
#
# Next: [products of few rows](low_latency_gemm.ipynb).
#
# To use it: `cookbook copy blackwell/majors_gemm my_gemm.py`, then `from my_gemm import matmul`.
