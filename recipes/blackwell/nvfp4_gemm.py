# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "NVFP4: block-scaled 4-bit GEMM"
#     claim: >-
#       NVFP4 gives every 16 elements of a row a scale factor; the tensor core multiplies such elements twice as fast as
#       8-bit ones.
#     track: blackwell
#     order: 60
#     builds_on: blackwell/mxfp8_gemm
#     operands: nvfp4
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     dtypes: [bfloat16]
#     path: tma -> shared memory -> tcgen05.cp of scale factors, tcgen05.mma -> tensor memory -> tcgen05.ld -> tma
#     instructions:
#       all: [UTMALDG.2D, UTCCP, UTCOMMA, UTCBAR, LDTM, UTCATOMSWS, STS.128, UTMASTG.2D, SYNCS]
#     sources:
#       - {title: "PTX ISA, block scaling of tcgen05.mma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-block-scaling"}
#       - {title: "PTX ISA, tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"}
#       - {title: "PTX ISA, the shared-memory descriptor of tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-shared-memory-descriptor"}
# ---

# %% [markdown]
# # NVFP4: block-scaled 4-bit GEMM
#
# **Claim.** An `e2m1` float has four bits: 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives. NVFP4 gives every 16 of them
# along K a scale factor, an `e4m3` float without its sign: 4.5 bits an element in all. Against [the page
# before](mxfp8_gemm.ipynb) only the counting changes: `tcgen05.mma` takes 64 elements along K at a time, and reads
# *four* scale factors of each row.

# %% [markdown] tags=["lab"]
# The picture has one atom of scale factors, as on the page before. New: one `tcgen05.mma` reads all four bytes of a
# row's cell.

# %% tags=["lab"]
import cutlass

import cookbook
from cookbook import draw, lab
from cookbook.layouts import evaluate

packaged = cookbook.load("blackwell/nvfp4_gemm")
layouts = evaluate(packaged.smem_layouts, cutlass.BFloat16, element_bits=8, arch="sm_100a")
views = evaluate(packaged.scale_views, packaged.CONFIG.tile_n, arch="sm_100a")
stored = layouts.sfb.byte_offsets()[: packaged.ATOM_ROWS, : packaged.ATOM_FACTORS, 0]
source, target = (view.table()[:, 0, 0, 0] for view in (views.atoms, views.copied))
draw.scale_atom(stored, source, target, packaged.BLOCK, packaged.ATOM_FACTORS)

# %% [markdown]
# Nothing in shared memory is smaller than a byte. So TMA and the layouts count **bytes, two elements in each**; only
# the tensor core counts elements.
#
# `matmul(a, b, a_scale, b_scale)`: `a` is (M, K / 2), `b` is (K / 2, N), both K-major, of `float4_e2m1fn_x2`; the scale
# factors are `float8_e4m3fn`. Quantizers to NVFP4 often return one more factor, a float32 for the whole matrix. It is a
# factor of the product, and not this kernel's.
#
# *This kernel has not run on hardware.* It is compiled for Blackwell, and its layouts, descriptors and data path are
# checked against the PTX ISA document in numpy. No speed is claimed.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import cpasync, tcgen05

from cookbook.recipe.entry import (
    LARGEST,
    Call,
    Gemm,
    check_apart,
    check_epilogue,
    check_tensor,
    compile_host,
    kind,
    line_stride,
    require,
)
from cookbook.recipe.moved import SmemAllocator, TmemAllocator

# %% [markdown]
# ## The sizes
#
# A k-tile is 256 elements, again 128 bytes, and four instructions of 64. But it has 16 scale factors a row, four times
# as many: an atom for each instruction, 6 KiB in a stage of the wide tile. The rest of shared memory holds one epilogue
# subtile of C. In tensor memory a stage takes four times as many columns too, and there is still room.
#
# | variant | |
# |---|---|
# | `one wide tile` | tiles of 128 x 256, one accumulator stage: the tensor core waits while a tile is fetched |
# | `two narrow tiles` | tiles of 128 x 128, two accumulator stages: it need not wait, but reads more for each product |


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts."""

    tile_m: int = 128  # rows of C per tile: one row in each lane of tensor memory
    tile_n: int = 256  # columns of C per tile: the widest tcgen05.mma
    tile_k: int = 256  # 128 bytes: one row of the SW128 atom, four tcgen05.mma steps of 64, 16 scale factors
    stages: int = 4  # pairs of A and B tiles, with their scale factors, in flight or being read
    acc_stages: int = 1  # accumulator tiles in tensor memory
    epi_n: int = 32  # columns of an epilogue subtile of C: 64 bytes, and as many registers a thread
    epi_buffers: int = 1  # epilogue subtiles of C on their way out
    swizzle_size: int = 16  # rasterization: CTAs that run together cover this many rows of tiles

    def __post_init__(self):
        check_epilogue("epi_buffers", self.epi_buffers, self.tile_n // self.epi_n)

    @property
    def threads(self) -> int:
        return 32 * WARPS

    @property
    def tile_bytes(self) -> int:
        return self.tile_k // PER_BYTE  # along K, of A and B

    @property
    def atoms_k(self) -> int:
        return self.tile_k // (ATOM_FACTORS * BLOCK)  # atoms of scale factors along K

    @property
    def sfa_column(self) -> int:
        return self.acc_stages * self.tile_n  # of tensor memory: the scale factors of A follow the accumulators

    @property
    def sfb_column(self) -> int:
        return self.sfa_column + self.stages * self.atoms_k * self.tile_m // 32  # an atom takes four columns

    @property
    def tmem_columns(self) -> int:
        used = self.sfb_column + self.stages * self.atoms_k * self.tile_n // 32
        return max(32, 1 << (used - 1).bit_length())  # 32 bits each; allocated in powers of two, at least 32

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * (self.tile_bytes + self.tile_k // BLOCK)

    @property
    def smem_bytes(self) -> int:
        # the barriers, padded to the tiles' alignment; A, B and their scale factors; and C beside them
        return 1024 + self.stages * self.stage_bytes + self.epi_buffers * self.tile_m * self.epi_n * 2


ELEMENT, SCALE = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN  # of A and B, and of their scale factors
BLOCK = 16  # elements along K that share a scale factor
PER_BYTE = 2  # elements
ATOM_ROWS, ATOM_FACTORS = 128, 4  # scale factors come in atoms of 512 bytes: 128 rows, 4 factors of each
ATOM_BYTES = ATOM_ROWS * ATOM_FACTORS
EPILOGUE_WARPS, MMA_WARP, TMA_WARP, WARPS = 4, 4, 5, 6  # warps 0 to 3: warp w reaches lanes 32 w to 32 w + 31
VARIANTS = {"one wide tile": Config(), "two narrow tiles": Config(tile_n=128, stages=5, acc_stages=2)}
DEFAULT = "one wide tile"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown]
# ## Layouts, MMA and copies
#
# The layouts of A and B count bytes: rows of 128 under the 128-byte swizzle. The tensor core sees the same tile through
# a tensor of 4-bit elements: the same swizzle on the same addresses, and a layout with twice as many places along K.
#
# Atoms of scale factors are as before, 128 rows with four factors of each; a row's four now stand for 64 elements.


# %%
class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE), of bytes: K / 2 of them
    b: cute.ComposedLayout  # (N, K, STAGE), likewise
    sfa: cute.ComposedLayout  # (M, SF, STAGE): the scale factors of A
    sfb: cute.ComposedLayout  # (N, SF, STAGE): those of B
    c: cute.ComposedLayout  # (M, EPI_N, BUFFER)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def scale_layout(rows: int, config: Config = CONFIG) -> cute.ComposedLayout:
    """Bytes by (row, factor, stage): in an atom the four of row r are at 16 (r % 32) + 4 (r // 32)."""
    high, wide = rows // ATOM_ROWS, config.atoms_k
    shape = ((32, 4, high), (ATOM_FACTORS, wide), config.stages)
    stride = ((16, 4, wide * ATOM_BYTES), (1, ATOM_BYTES), high * wide * ATOM_BYTES)
    return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, cute.make_layout(shape, stride=stride))


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K or N, then over the stages."""
    c = config
    ab = smem_atom(cutlass.Uint8, c.tile_bytes)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_bytes, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_bytes, c.stages), order=(0, 1, 2)),
        sfa=scale_layout(c.tile_m, c),
        sfb=scale_layout(c.tile_n, c),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (c.tile_m, c.epi_n, c.epi_buffers), order=(0, 1, 2)),
    )


def tiled_mma(dtype=None, config: Config = CONFIG) -> cute.TiledMma:
    """tcgen05.mma of 128 x N x 64 by one CTA, A and B from shared memory, scale factors from tensor memory.

    `dtype`, of C, does not matter to it.
    """
    shape, smem = (config.tile_m, config.tile_n, 64), tcgen05.OperandSource.SMEM
    op = tcgen05.MmaMXF4NVF4Op(SCALE, shape, tcgen05.CtaGroup.ONE, smem)  # 4-bit elements are K-major always
    return cute.make_tiled_mma(op)


def as_elements(sX: cute.Tensor) -> cute.Tensor:
    """A tile of bytes as one of elements. A cast drops the swizzle from the pointer: it is attached again."""
    swizzle = smem_atom(cutlass.Uint8, cute.size(sX, mode=[1])).inner
    pointer = cute.recast_ptr(sX.iterator, swizzle, dtype=ELEMENT)
    return cute.make_tensor(pointer, cute.recast_layout(ELEMENT.width, 8, sX.layout))


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


# %% [markdown]
# ## The way of the scale factors
#
# It is that of [the page before](mxfp8_gemm.ipynb): boxes of whole atoms by TMA, `tcgen05.cp` into four columns for
# each atom, and an address for each `tcgen05.mma`. What is new:
#
# * A stage has four atoms along K for every 128 rows. In shared memory they follow one another along K, as in global
#   memory. In tensor memory those of *one instruction* are neighbours: the rows of B, 256 of them, must have their
#   factors in eight columns that follow one another. So the copy reverses the order, by strides alone.
# * Each instruction reads all four bytes of its cells. Its address names a column, and byte 0.


# %%
class ScaleViews(NamedTuple):
    """The scale factors of a tile of A or B on their way."""

    boxes: cute.Layout  # (BOX_M, BOX_K, STAGE) of 8-byte words in shared memory, as TMA writes them
    atoms: cute.Layout  # (ATOM, HIGH, WIDE, STAGE) of bytes there, as tcgen05.cp reads them; ATOM is ((32, 4), 16)
    copied: cute.Layout  # the same in tensor memory, as tcgen05.cp writes them, bytes counted four to a column
    steps: cute.Layout  # (MMA_K, STAGE) of bytes there: the first factor of the first row, for each tcgen05.mma


def scale_views(rows: int, config: Config = CONFIG) -> ScaleViews:
    """The scale factors of a tile of `rows` rows: HIGH atoms down, WIDE along K, in each stage."""
    high, wide, stages = rows // ATOM_ROWS, config.atoms_k, config.stages
    column, lane = 4, 4 << 16  # bytes to the next one: an address is lane << 16 | column
    shape = (((32, 4), 16), high, wide, stages)
    in_smem = (((16, 0), 1), wide * ATOM_BYTES, ATOM_BYTES, high * wide * ATOM_BYTES)  # 0: for four warps, read once
    in_tmem = (((lane, 32 * lane), 1), 4 * column, 4 * high * column, 4 * high * wide * column)
    words = ATOM_BYTES // 8
    return ScaleViews(
        boxes=cute.make_layout((high, wide * words, stages), stride=(wide * words, 1, high * wide * words)),
        atoms=cute.make_layout(shape, stride=in_smem),
        copied=cute.make_layout(shape, stride=in_tmem),
        steps=cute.make_layout((wide, stages), stride=(in_tmem[2], in_tmem[3])),
    )


def as_boxes(sS: cute.Tensor, rows: int, config: Config) -> cute.Tensor:
    """Scale factors in shared memory as the words that TMA writes: (BOX_M, BOX_K, STAGE)."""
    return cute.make_tensor(cute.recast_ptr(sS.iterator, dtype=cutlass.Int64), scale_views(rows, config).boxes)


def scale_copy() -> cute.CopyAtom:
    """tcgen05.cp of an atom: 32 lines of 16 bytes into 4 columns of tensor memory, once for each warp's 32 lanes."""
    return cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), SCALE)


class Operand(NamedTuple):
    """What the tensor core is told of A or B: where it lies, and of its scale factors, whence and whereto."""

    elements: cute.Tensor  # descriptors (MMA, MMA_M or MMA_N, MMA_K, STAGE)
    atoms: cute.Tensor  # descriptors of atoms in shared memory (CPY, CPY_ATOM, HIGH, WIDE, STAGE)
    copied: cute.Tensor  # their places in tensor memory, likewise
    steps: cute.Tensor  # (MMA_K, STAGE) in tensor memory, what each tcgen05.mma is told


def operand(elements, sS: cute.Tensor, column, rows: int, config: Config) -> Operand:
    """elements: descriptors; sS: scale factors in shared memory; column: their first one in tensor memory."""
    views, column = scale_views(rows, config), cute.recast_ptr(column, dtype=SCALE)
    copied = cute.make_tensor(column, views.copied)
    copy = tcgen05.make_s2t_copy(scale_copy(), copied[None, None, None, 0])
    thr = copy.get_slice(0)
    atoms = thr.partition_S(cute.make_tensor(sS.iterator, views.atoms))
    steps = cute.make_tensor(column, views.steps)
    return Operand(elements, tcgen05.get_s2t_smem_desc_tensor(copy, atoms), thr.partition_D(copied), steps)


def operands(mma: cute.TiledMma, tiles, address, config: Config = CONFIG) -> tuple[Operand, Operand]:
    """A and B. tiles: both and their scale factors in shared memory; address: of tensor memory, as 32-bit columns."""
    thr, (sA, sB, sSFA, sSFB) = mma.get_slice(0), tiles
    sA, sB = as_elements(sA), as_elements(sB)
    a, b = mma.make_fragment_A(thr.partition_A(sA)), mma.make_fragment_B(thr.partition_B(sB))
    return (
        operand(a, sSFA, address + config.sfa_column, config.tile_m, config),
        operand(b, sSFB, address + config.sfb_column, config.tile_n, config),
    )


# %% [markdown] tags=["lab"]
# A stage of B has two atoms down and four along K. In shared memory those along K are neighbours, as TMA brings them;
# in tensor memory those of one instruction are. (The first byte of each atom in shared memory, and the first of its
# four columns.)

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.publish.pages import results_table, table

layouts = evaluate(smem_layouts, cutlass.BFloat16, element_bits=8, arch="sm_100a")
views = evaluate(scale_views, CONFIG.tile_n, arch="sm_100a")
first_bytes, first_columns = views.atoms.table()[0, :, :, 0], views.copied.table()[0, :, :, 0] // 4
names = [f"tcgen05.mma {k}" for k in range(CONFIG.atoms_k)]
lines = [
    [f"rows {128 * high} to {128 * high + 127}", *(f"byte {a}, column {b}" for a, b in zip(at, to, strict=True))]
    for high, (at, to) in enumerate(zip(first_bytes.tolist(), first_columns.tolist(), strict=True))
]
Markdown(table(["B", *names], lines))

# %% [markdown]
# ## The tile scheduler: which tile is next
#
# As before, and each role works it out for itself.


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


# %% [markdown]
# ## The warp that loads
#
# As before: four boxes for each k-tile, one barrier for the bytes of all. To TMA, A and B are matrices of bytes.


# %%
@cute.jit
def load_tile(pipe, state, loads, sources, targets):
    """All k-tiles of one tile: sources (TMA, k) in global memory, targets (TMA, STAGE) in shared memory."""
    for k_tile in cutlass.range(cute.size(sources[0], mode=[1]), unroll=1):
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        for i in cutlass.range_constexpr(4):
            cute.copy(loads[i], sources[i][None, k_tile], targets[i][None, state.index], tma_bar_ptr=barrier)
        state.advance()
    return state


@cute.jit
def produce(pipe, loads, sources, tiles, work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile: of A, B, and the scale factors of A and of B.

    sources: matrices in global memory, as TMA coordinates; tiles: (M, K, STAGE) in shared memory.
    """
    alone = cute.make_layout(1)  # no multicast: a cluster of one
    parts = []
    for load, source, tile in zip(loads, sources, tiles, strict=True):
        extents = (cute.size(tile, mode=[0]), cute.size(tile, mode=[1]))
        cut = cute.local_tile(source, extents, (None, None))  # (M, K, m, k)
        parts.append(cpasync.tma_partition(load, 0, alone, cute.group_modes(tile, 0, 2), cute.group_modes(cut, 0, 2)))
    targets, parts = [part[0] for part in parts], [part[1] for part in parts]  # (TMA, STAGE); (TMA, m, k)
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(work.count, unroll=1):
        m, n = tile_of(work, iteration, config)
        of_tile = [parts[i][None, (m, n)[i % 2], None] for i in range(4)]
        state = load_tile(pipe, state, loads, of_tile, targets)
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The warp that multiplies
#
# Twelve copies of atoms for a stage of the wide tile, four multiplications. All of them are asked for by one thread,
# which waits for none.


# %%
@cute.jit
def multiply_tile(pipe, read, tCtC, a: Operand, b: Operand, k_tiles, config: cutlass.Constexpr):
    """Multiply all k-tiles of a tile into tCtC (MMA, MMA_M, MMA_N); returns where the next tile's begin.

    CuTe elects the one thread that issues.
    """
    mma = tiled_mma(config=config)  # made for each tile: a field that changes is this tile's alone
    mma.set(tcgen05.Field.ACCUMULATE, False)
    for _ in cutlass.range(k_tiles, unroll=1):
        pipe.consumer_wait(read)
        stage = read.index
        for x in (a, b):
            cute.copy(scale_copy(), x.atoms[None, None, None, None, stage], x.copied[None, None, None, None, stage])
        for k in cutlass.range_constexpr(cute.size(a.elements, mode=[2])):  # each step is 64 elements along K
            mma.set(tcgen05.Field.SFA, a.steps.iterator + a.steps.layout((k, stage)))
            mma.set(tcgen05.Field.SFB, b.steps.iterator + b.steps.layout((k, stage)))
            cute.gemm(mma, tCtC, a.elements[None, None, k, stage], b.elements[None, None, k, stage], tCtC)
            mma.set(tcgen05.Field.ACCUMULATE, True)
        pipe.consumer_release(read)  # once these are done, the stage may be overwritten, and its scale factors
        read.advance()
    return read


@cute.jit
def multiply(pipe, acc_pipe, address, tCtC, tiles, k_tiles, work: Work, config: cutlass.Constexpr):
    """Tile after tile into the stages of tCtC (MMA, MMA_M, MMA_N, STAGE), alternating. address: of tensor memory."""
    a, b = operands(tiled_mma(config=config), tiles, address, config)
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.acc_stages)
    for _ in cutlass.range(work.count, unroll=1):
        acc_pipe.producer_acquire(fill)
        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
        stage = tCtC[None, None, None, fill.index]
        read = multiply_tile(pipe, read, stage, a, b, k_tiles, config)
        acc_pipe.producer_commit(fill)  # full, once all these are done
        fill.advance()


# %% [markdown]
# ## The warps that store
#
# As [before](pipelined_gemm.ipynb). The accumulators are float32 and know nothing of scale factors any more. C is
# bfloat16.


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
                    acc_pipe.consumer_release(fetch)  # these accumulators may be overwritten
            rC = cute.make_rmem_tensor(rAcc.shape, epi.sC.element_type)
            rC.store(rAcc.load().to(rC.element_type))
            target = epi.bSgC[None, m, n * across + piece]
            store_subtile(epi, rC, piece % config.epi_buffers, target, config)
        fetch.advance()
    if epi.storing:
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory is TMA's until it has been read


# %% [markdown]
# ## The kernel
#
# The three roles, each in its own branch. Scale factors have places of their own in shared memory, each stage's a
# multiple of 512 bytes.


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
    loads: tuple,  # TMA's copy atoms for A (M, K), B (N, K), of bytes, and their scale factors
    sources: tuple,  # these four matrices, as TMA coordinates
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
    sA = smem.allocate_tensor(cutlass.Uint8, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(cutlass.Uint8, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)
    sSFA = smem.allocate_tensor(SCALE, layouts.sfa.outer, ATOM_BYTES)
    sSFB = smem.allocate_tensor(SCALE, layouts.sfb.outer, ATOM_BYTES)
    pipe, acc_pipe = make_pipelines(barriers, config)
    gC = cute.local_tile(mC, (config.tile_m, config.epi_n), (None, None))  # (M, EPI_N, m, n)
    told = pipeline.NamedBarrier(barrier_id=1, num_threads=32 * (EPILOGUE_WARPS + 1))  # where tensor memory is
    tmem = TmemAllocator(tmem_address, barrier_for_retrieve=told)

    if warp_idx == TMA_WARP:
        boxes = [as_boxes(x, rows, config) for x, rows in ((sSFA, config.tile_m), (sSFB, config.tile_n))]
        produce(pipe, loads, sources, (sA, sB, *boxes), work, config)
    elif warp_idx == MMA_WARP:
        address, tCtC = sums_in(tmem, dtype, config)
        k_tiles = cute.ceil_div(sources[0].shape[1], config.tile_bytes)
        multiply(pipe, acc_pipe, address, tCtC, (sA, sB, sSFA, sSFB), k_tiles, work, config)
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
# As many CTAs as there are SMs, for one fills an SM, and never more than there are tiles. The atoms of scale factors
# become a matrix for TMA: how many there are follows from M, N and K.


# %%
def scale_matrix(p, rows, k):
    """The atoms of the scale factors of a matrix (rows, K) as TMA sees them: 8-byte words, a row for 128 rows."""
    high, wide = cute.ceil_div(rows, ATOM_ROWS), cute.ceil_div(k, ATOM_FACTORS * BLOCK) * (ATOM_BYTES // 8)
    p = cute.recast_ptr(p, dtype=cutlass.Int64)
    return cute.make_tensor(p, cute.make_layout((high, wide), stride=(cute.assume(wide, divby=64), 1)))


class Sizes(NamedTuple):
    """The numbers of a launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of the rows of A, B, C, in bytes, bytes and elements
    sms: cutlass.Int32  # of the GPU


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pSFA: cute.Pointer,
    pSFB: cute.Pointer,
    pC: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed, block by block times the scale factors SFA and SFB."""
    (m, n, k), dtype = sizes.mnk, pC.dtype
    lda, ldb, ldc = (cute.assume(stride, divby=divby) for stride, divby in zip(sizes.strides, (16, 16, 8), strict=True))
    mA = cute.make_tensor(pA, cute.make_layout((m, k // PER_BYTE), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k // PER_BYTE), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    load, write = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    a_stage, b_stage, _, _, buffer = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(dtype, config))
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_bytes))
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mB, b_stage, (config.tile_n, config.tile_bytes))
    tma_c, mC = cpasync.make_tiled_tma_atom(write, mC, buffer, (config.tile_m, config.epi_n))
    sfa, sfb = (cute.slice_(scale_views(x, config).boxes, (None, None, 0)) for x in (config.tile_m, config.tile_n))
    tma_sfa, mSFA = cpasync.make_tiled_tma_atom(load, scale_matrix(pSFA, m, k), sfa, sfa.shape)
    tma_sfb, mSFB = cpasync.make_tiled_tma_atom(load, scale_matrix(pSFB, n, k), sfb, sfb.shape)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel((tma_a, tma_b, tma_sfa, tma_sfb), (mA, mB, mSFA, mSFB), tma_c, mC, dtype, config).launch(
        grid=(cutlass.min(tiles, sizes.sms), 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1
    )


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (cutlass.Uint8, 16), (cutlass.Uint8, 16), (SCALE, 16), (SCALE, 16), (dtype, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## Scale factors into atoms
#
# As on [the page before](mxfp8_gemm.ipynb), with one byte for every 16 elements: `to_atoms` cuts the rows into groups
# of 128 = 4 x 32 and the factors into groups of 4, and puts the 32 before the 4.


# %%
def to_atoms(scales: torch.Tensor) -> torch.Tensor:
    """Scale factors (rows, factors), a byte each, in the order of the atoms: 1-D uint8, atoms along K first.

    Row r of an atom has its four factors at byte 16 (r % 32) + 4 (r // 32): PTX ISA, the layouts of scale factors of
    `tcgen05.mma`. Where there are no rows or factors to fill the last atoms, bytes are 0. cuBLAS and `torch._scaled_mm`
    take scale factors in the same order.
    """
    rows, factors = scales.shape
    high, wide = -(-rows // ATOM_ROWS), -(-factors // ATOM_FACTORS)
    whole = torch.zeros(high * ATOM_ROWS, wide * ATOM_FACTORS, dtype=torch.uint8, device=scales.device)
    whole[:rows, :factors] = scales.view(torch.uint8)
    return whole.view(high, 4, 32, wide, ATOM_FACTORS).permute(0, 3, 2, 1, 4).reshape(-1)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `Gemm`, which all recipes share, is the host side: checks, a plan for each kind of call, compilation, the launch. It
# knows products of two matrices. Here are four, so this kernel adds what scale factors ask for: that K is whole blocks,
# that the scale factors are of these matrices, and that they come in atoms.

# %%
ELEMENTS = (getattr(torch, "float4_e2m1fn_x2", torch.uint8), torch.uint8)  # older versions of torch lack the first
SCALES = (torch.float8_e4m3fn, torch.uint8)


def k_in_blocks(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """The major of an operand and the bytes from one of its lines to the next: K-major, and K is whole blocks."""
    require(x.shape[k_mode] % 16 == 0, name, f"K = {PER_BYTE * x.shape[k_mode]}", "a multiple of 32: whole blocks")
    return "k", line_stride(name, x, k_mode, "bytes of K")


def check_scale(name: str, scale: torch.Tensor, x: torch.Tensor) -> int:
    """`scale` has the scale factors of x (rows, K / 2), a matrix or atoms; returns how many bytes its atoms take."""
    check_tensor(name, scale, dict.fromkeys(SCALES), (1, 2))
    rows, factors = x.shape[0], PER_BYTE * x.shape[1] // BLOCK
    size = -(-rows // ATOM_ROWS) * -(-factors // ATOM_FACTORS) * ATOM_BYTES
    needed = f"({rows}, {factors}), or ({size},) from to_atoms"
    require(scale.shape in ((rows, factors), (size,)), name, f"shape {tuple(scale.shape)}", needed)
    require(scale.device == x.device, name, f"device {scale.device}", f"{x.device}, where its matrix is")
    if scale.ndim == 1:
        require(scale.stride(0) == 1, name, f"stride {scale.stride(0)}", "1: adjacent bytes")
        require(scale.data_ptr() % 16 == 0, name, f"address {scale.data_ptr():#x}", "a multiple of 16 bytes")
    return size


# %%
class ScaledGemm(Gemm):
    """A `Gemm` of operands that have scale factors: they are operands too."""

    def matmul(self, given: tuple, out: torch.Tensor | None, variant: str) -> torch.Tensor:
        """The product of `given`: a, b, a_scale, b_scale."""
        key = (*map(kind, given), kind(out), torch.is_grad_enabled(), kind(variant))
        call, launch, arguments = self.plans.get(key) or self.plan(key, *given, out, variant)
        if torch.cuda.current_device() != call.device:
            with torch.cuda.device(call.device):
                return self.matmul(given, out, variant)
        (m, n, _), (a, b, *scales) = call.mnk, given
        fresh, out = out is None, a.new_empty(m, n, dtype=call.dtype) if out is None else out
        operands = (a, b, *(x if x.ndim == 1 else to_atoms(x) for x in scales))
        pointers = [x.data_ptr() for x in operands]
        start, (*spans, size) = out.data_ptr(), call.spans
        for name, pointer, span in zip(("a", "b", "a_scale", "b_scale"), pointers, spans, strict=True):
            if pointer < start + size and start < pointer + span:
                check_apart(out, a=a, b=b)  # from first to last byte they meet, but may be columns of one matrix
                require(name in "ab", "out", f"memory that overlaps {name}", "memory of its own")
        made = out if call.direct else out.new_empty(m, call.strides[2])  # TMA finishes the last 16 bytes of a row
        stream = torch._C._cuda_getCurrentRawStream(call.device)  # its number, for which torch makes no Stream object
        launch(*pointers, made.data_ptr(), *arguments, stream)
        if call.direct and not fresh:
            torch.autograd.graph.increment_version(out)  # tell autograd that it was overwritten
        return out if call.direct else out.copy_(made[:, :n])

    def check(self, a, b, a_scale, b_scale, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call."""
        call = super().check(a, b, out, variant)
        sizes = check_scale("a_scale", a_scale, a), check_scale("b_scale", b_scale, b.T)
        a_span, b_span, out_span = call.spans
        (m, n, width), spans = call.mnk, (a_span, b_span, *sizes, out_span)
        k = PER_BYTE * width
        require(k <= LARGEST, "a", f"K = {k}", f"at most {LARGEST}: kernels count in 32 bits")
        return call._replace(mnk=(m, n, k), spans=spans)


def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (VARIANTS[call.variant],), (Sizes(call.mnk, call.strides, call.sms),)


GEMM = ScaledGemm(
    compile_for,
    prepare,
    gpus=((10, 0), (10, 3)),
    needs="tcgen05",
    variants=VARIANTS,
    major_of=k_in_blocks,
    padded=True,
    takes=dict.fromkeys(ELEMENTS, torch.bfloat16),
)


# %%
def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    variant: str = DEFAULT,
) -> torch.Tensor:
    """The product of what `a` and `b` stand for, on the tensor cores, accumulated in float32, rounded to bfloat16.

    a: (M, K / 2), float4_e2m1fn_x2 (or its bytes as uint8), K-major (stride 1 along K). Byte (m, k // 2) has element
        (m, k), in its low bits if k is even, in its high bits if k is odd; it stands for its value times
        a_scale[m, k // 16].
    b: (K / 2, N), the same, K-major too: usually `weight.T` of a contiguous (N, K / 2) weight.
    a_scale: (M, K / 16), float8_e4m3fn, not negative; or the bytes as uint8; or 1-D, what `to_atoms` made of them.
    b_scale: (N, K / 16), a row for each column of b; otherwise as a_scale.
    out: (M, N), bfloat16, stride 1 along N, any row stride >= N, no memory of the others. Made if not given.
    variant: one of VARIANTS: how wide a tile is, and how many of them tensor memory holds.

    K is a multiple of 32. TMA reads rows that start at multiples of 16 bytes: the addresses of a and b (and of scale
    factors in atoms) and the row strides of a and b are such multiples. Needs a GPU of compute capability 10.0 or 10.3.
    Any M, N >= 1: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N is no multiple of 8,
    the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul((a, b, a_scale, b_scale), out, variant)


# %% [markdown] tags=["lab"]
# ## Bytes and elements
#
# The tensor core's descriptor of A says the same as it did for bytes: rows of 128, eight of them to an atom. One
# instruction is 32 bytes along K, whatever the bytes hold.

# %% tags=["lab"]
from cookbook.descriptors import describe, field_table

for name, bits, said, value in field_table(describe(layouts.a, "K", hopper=False, rows=CONFIG.tile_m)):
    print(f"{name:24}{bits:7}{said:12}{value}")

# %% [markdown] tags=["lab"]
# The price of four bits: the error of a matrix of normal numbers, quantized, and how many bits an element takes with
# its share of a scale factor.

# %% tags=["lab"]
import numpy as np

from cookbook.check import scaled

values = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
for name in ("mxfp8", "nvfp4"):
    form = scaled.FORMATS[name]
    error = np.linalg.norm(scaled.quantized(values, name).values() - values) / np.linalg.norm(values)
    print(f"{name}: {form.bits + 8 / form.block:g} bits an element, relative error {error:.1%}")

# %% [markdown] tags=["lab"]
# ## Check
#
# The levels are those of the page before. *Layout* follows each scale factor to the byte of tensor memory where the
# instruction reads it. *Model* compares the product with what the operands stand for. *Pipeline* tries every order of
# the warps' steps. *Compiled* compares descriptors with the compiler's. What needs a Blackwell GPU says *not checked*:
# **this kernel has not run on hardware**.
#
# The check is of the cells above: edit one, run it, and check again.

# %% tags=["lab"]
lab.check_cells("blackwell/nvfp4_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# First the `matmul` of the cells above, next to `torch.matmul`: run and timed where there is a GPU for it, else as
# recorded. Nothing has been timed so far: that takes a Blackwell GPU.

# %% tags=["lab", "open"]
lab.compare("blackwell/nvfp4_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("blackwell/nvfp4_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Four bits changed no layout. TMA and shared memory count bytes, the tensor core counts elements, and an atom of 512
# bytes of scale factors now stands for 64 elements instead of 128. There are four times as many factors for each byte
# of A and B. So the memories that hold them set the sizes, not the instructions.
#
# Next: [operands that lie the other way](majors_gemm.ipynb).
#
# To use it: `cookbook copy blackwell/nvfp4_gemm my_gemm.py`, then `from my_gemm import matmul`.
