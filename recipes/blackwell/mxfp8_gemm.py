# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "MXFP8: block-scaled 8-bit GEMM"
#     claim: >-
#       MXFP8 gives every 32 elements of a row a scale factor, and the tensor core multiplies by it when the factors lie
#       in tensor memory in its layout.
#     track: blackwell
#     order: 50
#     aside: 8 bits and less
#     builds_on: blackwell/pipelined_gemm
#     kind: block_scaled
#     operands: mxfp8
#     targets: [sm_100a, sm_103a]
#     runs_on: sm_100, sm_103
#     dtypes: [bfloat16]
#     path: tma -> shared memory -> tcgen05.cp of scale factors, tcgen05.mma -> tensor memory -> tcgen05.ld -> tma
#     instructions: [UTMALDG.2D, UTCCP, UTCQMMA, UTCBAR, LDTM, UTCATOMSWS, STS.128, UTMASTG.2D, SYNCS]
#     sources:
#       - {title: "PTX ISA, block scaling of tcgen05.mma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-block-scaling"}
#       - {title: "PTX ISA, tcgen05", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"}
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
# ---

# %% [markdown]
# # MXFP8: block-scaled 8-bit GEMM
#
# **Claim.** In the MX formats (of the Open Compute Project) 32 neighbours along K share a **scale factor**, a power of
# two. Blackwell's `tcgen05.mma` multiplies by the factors on the way: `.block_scale`. In return it asks for one thing:
# **the scale factors lie in tensor memory**, in an order of its own, with a copy for each of the four warps' lanes.

# %% [markdown] tags=["lab"]
# The picture has one *atom* of scale factors, in shared memory and in tensor memory, by this page's layouts as CuTe
# evaluates them. A line of 16 bytes becomes four cells of one lane; each warp gets a copy of the same line.

# %% tags=["lab"]
import cutlass

import cookbook
from cookbook import draw, lab
from cookbook.layouts import evaluate

packaged = cookbook.load("blackwell/mxfp8_gemm")
layouts = evaluate(packaged.smem_layouts, cutlass.BFloat16, packaged.CONFIG, element_bits=8, arch="sm_100a")
views = evaluate(packaged.scale_views, packaged.ATOM_ROWS, packaged.CONFIG, arch="sm_100a")
stored = layouts.sfa.byte_offsets()[: packaged.ATOM_ROWS, : packaged.ATOM_FACTORS, 0]
source, target = (view.table()[:, 0, 0, 0] for view in (views.atoms, views.copied))
per_step = packaged.ATOM_FACTORS // (packaged.CONFIG.tile_k // 32)
draw.scale_atom(stored, source, target, packaged.BLOCK, per_step)

# %% [markdown]
# Why scale factors? An `e4m3` float has eight bits: a sign, four of exponent, three of fraction. It reaches from
# 2<sup>-9</sup> to 448, too little for a matrix of weights or activations. What an element stands for is its value
# times its block's factor, one more byte for 32 elements. Without help from the tensor core the kernel would multiply
# every partial sum by two factors, every 32 elements.
#
# This page explains the way of the scale factors. The rest is [the kernel with a warp for each
# role](pipelined_gemm.ipynb). `matmul(a, b, a_scale, b_scale)`: `a` is (M, K), `b` is (K, N), both K-major, of
# `float8_e4m3fn`; the scale factors are `float8_e8m0fnu`.
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
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from cookbook.recipe.entry import LARGEST, MATRICES, Call, compile_host, line_stride, require
from cookbook.recipe.moved import SmemAllocator, TmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm
from cookbook.recipes.ampere.first_gemm import row_major
from cookbook.recipes.blackwell.pipelined_gemm import (
    MMA_WARP,
    TMA_WARP,
    Cta,
    TiledCopies,
    Work,
    accumulator_stages,
    allocate_tiles,
    load_tile,
    make_pipelines,
    make_store,
    store,
    subtile_copies,
    tmem_barrier,
    work_of_cta,
    work_tile,
)
from cookbook.recipes.blackwell.pipelined_gemm import Config as PipelinedConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import Load, TmaTensor, partition_load, smem_atom

# %% [markdown]
# ## The sizes
#
# A k-tile is 128 elements now, as many bytes as before, and an instruction takes 32 of them: again 32 bytes. Each stage
# of A and B has its scale factors with it, one byte for every 32.
#
# Tensor memory is the narrow place. The accumulators of two tiles of 128 x 256 fill all of its 512 columns, and then
# there would be none left for scale factors. So a choice must be made, and both are here:
#
# | variant | |
# |---|---|
# | `one wide tile` | tiles of 128 x 256, one accumulator stage: the tensor core waits while a tile is fetched |
# | `two narrow tiles` | tiles of 128 x 128, two accumulator stages: it need not wait, but reads more for each product |
#
# Every stage of A and B has columns of its own for its scale factors. NVIDIA's kernels do with one set for all. But
# then a copy overwrites what an MMA issued before it reads. The PTX ISA lists the pairs of instructions that keep their
# order: the copy before the MMA is among them, the MMA before the copy is not. With columns of their own no warp has to
# wait for more: the stage's *empty* barrier waits for the MMA, which has then read the factors, too.


# %%
ATOM_ROWS, ATOM_FACTORS = 128, 4  # scale factors come in atoms of 512 bytes: 128 rows, 4 factors of each
ATOM_BYTES = ATOM_ROWS * ATOM_FACTORS


@dataclass(frozen=True)
class Config(PipelinedConfig):
    """Sizes of the kernel, in elements or counts."""

    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four tcgen05.mma steps of 32, four scale factors
    acc_stages: int = 1  # accumulator tiles in tensor memory
    epi_n: int = 32  # columns of an epilogue subtile of C: 64 bytes, and as many registers a thread

    @property
    def element(self) -> type[cutlass.Numeric]:
        return cutlass.Float8E4M3FN  # of A and B

    @property
    def stored(self) -> type[cutlass.Numeric]:
        return self.element  # what TMA and shared memory take an element for

    @property
    def scale(self) -> type[cutlass.Numeric]:
        return cutlass.Float8E8M0FNU  # of a scale factor

    @property
    def block(self) -> int:
        return 32  # elements along K that share a scale factor

    @property
    def factors(self) -> int:
        return 1  # that one tcgen05.mma reads of each row: it takes one block along K

    @property
    def tile_bytes(self) -> int:
        return self.tile_k  # along K, of A and B

    @property
    def atoms_k(self) -> int:
        return self.tile_k // (ATOM_FACTORS * self.block)  # atoms of scale factors along K

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
        return (self.tile_m + self.tile_n) * (self.tile_bytes + self.tile_k // self.block)


# %%
VARIANTS = {"one wide tile": Config(), "two narrow tiles": Config(tile_n=128, stages=6, acc_stages=2)}
DEFAULT = "one wide tile"
CONFIG = VARIANTS[DEFAULT]
ELEMENT, SCALE, BLOCK = CONFIG.element, CONFIG.scale, CONFIG.block


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown] tags=["lab"]
# The columns of both variants: accumulators first, then for every stage of A and B the scale factors of A, then those
# of B. What is allocated is a power of two.

# %% tags=["lab"]
import cutlass.utils.blockscaled_layout as cute_blockscaled
import numpy as np
from IPython.display import Markdown

from cookbook.lab import results_table, scaled, table
from cookbook.model.small_floats import decode, encode

rows_of_table = []
for name, c in VARIANTS.items():
    each = [c.sfa_column, c.sfb_column - c.sfa_column, c.stages * c.atoms_k * c.tile_n // 32]
    rows_of_table.append([name, *map(str, each), str(sum(each)), str(c.tmem_columns)])
Markdown(table(["variant", "accumulators", "factors of A", "factors of B", "together", "allocated"], rows_of_table))

# %% [markdown]
# ## Layouts, MMA and copies
#
# A and B lie as before: rows of 128 bytes under the 128-byte swizzle, whatever the bytes mean.
#
# Scale factors come in **atoms of 512 bytes**: 128 rows, 4 factors of each, those of 128 elements along K. An atom is
# not a little matrix of 128 rows of 4 bytes. The factors of rows *r*, *r* + 32, *r* + 64 and *r* + 96 are neighbours:
# row *r* has its four at byte 16 (*r* mod 32) + 4 (*r* div 32). The reason comes below: 16 bytes are what one lane of
# tensor memory gets.


# %%
class ScaledLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE), in bytes along K
    b: cute.ComposedLayout  # (N, K, STAGE), likewise
    sfa: cute.ComposedLayout  # (M, SF, STAGE): the scale factors of A
    sfb: cute.ComposedLayout  # (N, SF, STAGE): those of B
    c: cute.ComposedLayout  # (M, EPI_N, EPI_STAGE)


def scale_layout(rows: int, config: Config) -> cute.ComposedLayout:
    """Bytes by (row, factor, stage): in an atom the four of row r are at 16 (r % 32) + 4 (r // 32)."""
    high, wide = rows // ATOM_ROWS, config.atoms_k
    shape = ((32, 4, high), (ATOM_FACTORS, wide), config.stages)
    stride = ((16, 4, wide * ATOM_BYTES), (1, ATOM_BYTES), high * wide * ATOM_BYTES)
    return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, cute.make_layout(shape, stride=stride))


def smem_layouts(dtype, config: Config) -> ScaledLayouts:
    """A and B in bytes, with their scale factors; of C the epilogue subtiles."""
    c = config
    ab = smem_atom(cutlass.Uint8, c.tile_bytes)
    return ScaledLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_bytes, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_bytes, c.stages), order=(0, 1, 2)),
        sfa=scale_layout(c.tile_m, c),
        sfb=scale_layout(c.tile_n, c),
        c=cute.tile_to_shape(smem_atom(dtype, c.epi_n), (c.tile_m, c.epi_n, c.epi_stages), order=(0, 1, 2)),
    )


def block_scaled_mma(config: Config) -> tcgen05.MmaMXF8F6F4Op:
    """tcgen05.mma of 128 x N x 32 by one CTA, A and B from shared memory, scale factors from tensor memory."""
    shape, smem, k_major = (config.tile_m, config.tile_n, 32), tcgen05.OperandSource.SMEM, OperandMajorMode.K
    return tcgen05.MmaMXF8F6F4Op(config.element, config.element, shape, tcgen05.CtaGroup.ONE, smem, k_major, k_major)


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The block-scaled tcgen05.mma. `dtype`, of C, does not matter to it."""
    return cute.make_tiled_mma(block_scaled_mma(config))


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """The two copies of the epilogue."""
    return subtile_copies(tiled_mma(dtype, config), dtype, config)


# %% [markdown]
# ## The way of the scale factors
#
# The same bytes are seen four ways, one after the other. Each is a layout, and the kernel takes all four from here.
#
# 1. **TMA** carries whole atoms. In global memory atoms follow one another along K, so a matrix of them has a row for
#    every 128 rows of A, and TMA needs no swizzle, only boxes. It counts in words of 8 bytes, since a box is at most
#    256 elements wide and an atom has 512 bytes.
#
# 2. **`tcgen05.cp`**, in its form `32x128b.warpx4`, takes an atom out of shared memory: 32 lines of 16 bytes.
#
# 3. It puts line *i* into lane *i* of *each* of the four warps, 16 bytes into four columns. Row *r* of the atom is then
#    in lane *r* mod 32, column *r* div 32: every warp has the factors of all 128 rows.
#
# 4. **`tcgen05.mma`** reads one byte of each of these cells, or two, or four: as many factors as there are blocks in
#    what it takes along K. Here that is one block of 32, so its four steps over a k-tile read bytes 0, 1, 2, 3. Two
#    bits of the instruction descriptor name the byte. CuTe keeps them in the top bits of the address, and the compiled
#    code takes them from there at run time. The layouts here count bytes, four to a column.


# %%
class ScaleViews(NamedTuple):
    """The scale factors of a tile of A or B on their way."""

    boxes: cute.Layout  # (BOX_M, BOX_K, STAGE) of 8-byte words in shared memory, as TMA writes them
    atoms: cute.Layout  # (ATOM, HIGH, WIDE, STAGE) of bytes there, as tcgen05.cp reads them; ATOM is ((32, 4), 16)
    copied: cute.Layout  # the same in tensor memory, as tcgen05.cp writes them, bytes counted four to a column
    steps: cute.Layout  # (MMA_K, STAGE) of bytes there: the first factor of the first row, for each tcgen05.mma


def scale_views(rows: int, config: Config) -> ScaleViews:
    """The scale factors of a tile of `rows` rows: HIGH atoms down, WIDE along K, in each stage."""
    high, wide, stages = rows // ATOM_ROWS, config.atoms_k, config.stages
    column, lane = 4, 4 << 16  # bytes to the next one: an address is lane << 16 | column
    shape = (((32, 4), 16), high, wide, stages)
    in_smem = (((16, 0), 1), wide * ATOM_BYTES, ATOM_BYTES, high * wide * ATOM_BYTES)  # 0: for four warps, read once
    in_tmem = (((lane, 32 * lane), 1), 4 * column, 4 * high * column, 4 * high * wide * column)
    words, steps = ATOM_BYTES // 8, ATOM_FACTORS // config.factors  # of an atom
    return ScaleViews(
        boxes=cute.make_layout((high, wide * words, stages), stride=(wide * words, 1, high * wide * words)),
        atoms=cute.make_layout(shape, stride=in_smem),
        copied=cute.make_layout(shape, stride=in_tmem),
        steps=cute.make_layout(((steps, wide), stages), stride=((config.factors, in_tmem[2]), in_tmem[3])),
    )


def as_boxes(sS: cute.Tensor, rows: int, config: Config) -> cute.Tensor:
    """Scale factors in shared memory as the words that TMA writes: (BOX_M, BOX_K, STAGE)."""
    return cute.make_tensor(cute.recast_ptr(sS.iterator, dtype=cutlass.Int64), scale_views(rows, config).boxes)


# %% [markdown]
# What `tcgen05.cp` and `tcgen05.mma` are told of an operand: descriptors of its elements; descriptors of the atoms of
# its scale factors and their places in tensor memory; and for each step over K where its factors begin.


# %%
def scale_copy(config: Config) -> cute.CopyAtom:
    """tcgen05.cp of an atom: 32 lines of 16 bytes into 4 columns of tensor memory, once for each warp's 32 lanes."""
    return cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), config.scale)


class Operand(NamedTuple):
    """An operand as the tensor core takes it: where it lies, and from where to where its scale factors go."""

    elements: cute.Tensor  # descriptors (MMA, MMA_M or MMA_N, MMA_K, STAGE)
    atoms: cute.Tensor  # descriptors of atoms in shared memory (CPY, CPY_ATOM, HIGH, WIDE, STAGE)
    copied: cute.Tensor  # their places in tensor memory, likewise
    steps: cute.Tensor  # (MMA_K, STAGE) in tensor memory, what each tcgen05.mma is told


def operand(elements: cute.Tensor, sS: cute.Tensor, column: cute.Pointer, rows: int, config: Config) -> Operand:
    """elements: descriptors; sS: scale factors in shared memory; column: their first one in tensor memory."""
    views, column = scale_views(rows, config), cute.recast_ptr(column, dtype=config.scale)
    copied = cute.make_tensor(column, views.copied)
    copy = tcgen05.make_s2t_copy(scale_copy(config), copied[None, None, None, 0])
    thr = copy.get_slice(0)
    atoms = thr.partition_S(cute.make_tensor(sS.iterator, views.atoms))
    steps = cute.make_tensor(column, views.steps)
    return Operand(elements, tcgen05.get_s2t_smem_desc_tensor(copy, atoms), thr.partition_D(copied), steps)


def operands(mma: cute.TiledMma, tiles: tuple, address: cute.Pointer, config: Config) -> tuple[Operand, Operand]:
    """A and B. tiles: both and their scale factors in shared memory; address: of tensor memory, as 32-bit columns."""
    thr, (sA, sB, sSFA, sSFB) = mma.get_slice(0), tiles
    a, b = mma.make_fragment_A(thr.partition_A(sA)), mma.make_fragment_B(thr.partition_B(sB))
    return (
        operand(a, sSFA, address + config.sfa_column, config.tile_m, config),
        operand(b, sSFB, address + config.sfb_column, config.tile_n, config),
    )


# %% [markdown]
# ## What the warps share
#
# Barriers, tensor memory and the tiles are [as before](pipelined_gemm.ipynb). Scale factors have places of their own in
# shared memory, each stage's a multiple of 512 bytes.


# %%
@cute.jit
def set_up(layouts: ScaledLayouts, dtype: cutlass.Constexpr, config: cutlass.Constexpr):
    """Allocate shared memory, and set up the barriers. Return also the scale factors of A and B, (rows, SF, STAGE)."""
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * (config.stages + config.acc_stages))
    tmem_address = smem.allocate_array(cutlass.Int32, 1)
    sA, sB, sC = allocate_tiles(smem, layouts, config.stored, dtype)
    sSFA = smem.allocate_tensor(config.scale, layouts.sfa.outer, ATOM_BYTES)
    sSFB = smem.allocate_tensor(config.scale, layouts.sfb.outer, ATOM_BYTES)
    pipe, acc_pipe = make_pipelines(barriers, config)
    tmem = TmemAllocator(tmem_address, barrier_for_retrieve=tmem_barrier())
    return Cta(pipe, acc_pipe, tmem, sA, sB, sC), (sSFA, sSFB)


# %% [markdown]
# ## The warp that loads
#
# Four boxes for each k-tile instead of two, and one barrier that waits for the bytes of all. What lies outside the
# matrices TMA fills with zeros, scale factors too: the byte 0 is 2<sup>-127</sup> as a factor, and its elements are 0.


# %%
@cute.jit
def partition_tiles(atom: cute.CopyAtom, source: cute.Tensor, sX: cute.Tensor) -> Load:
    """Partition all tiles of a matrix for their TMA loads; sX (rows, columns, STAGE) says how large they are."""
    extents = cute.size(sX, mode=[0]), cute.size(sX, mode=[1])
    return partition_load(atom, cute.local_tile(source, extents, (None, None)), sX)


@cute.jit
def produce(pipe: pipeline.PipelineTmaUmma, loads: tuple[Load, ...], work: Work, config: cutlass.Constexpr):
    """Keep the stages full, tile after tile. loads: of A, of B, and of the scale factors of A and of B."""
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    for iteration in cutlass.range(work.count, unroll=1):
        m, n = work_tile(work.first + iteration * work.step, work.grid, config.swizzle_size)
        state = load_tile(pipe, state, loads, (m, n, m, n))
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %% [markdown]
# ## The warp that multiplies
#
# When a stage is full, one thread issues a `tcgen05.cp` for each atom, then the stage's `tcgen05.mma`. No thread
# waits in between: a multiplication comes after a copy that the same thread issued before it. Each `tcgen05.mma` is
# told where its scale factors begin, for A and for B, and two bits of its instruction descriptor name either byte.


# %%
@cute.jit
def consume(
    pipe: pipeline.PipelineTmaUmma,
    read: pipeline.PipelineState,
    mma: cute.TiledMma,
    tCtC: cute.Tensor,
    a: Operand,
    b: Operand,
    k_tiles: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Multiply all k-tiles of a tile into tCtC (MMA, MMA_M, MMA_N). Return the pipeline state.

    CuTe elects the one thread that issues.
    """
    mma.set(tcgen05.Field.ACCUMULATE, False)
    for _ in cutlass.range(k_tiles, unroll=1):
        pipe.consumer_wait(read)
        stage = read.index
        for x in (a, b):
            atoms, copied = x.atoms[None, None, None, None, stage], x.copied[None, None, None, None, stage]
            cute.copy(scale_copy(config), atoms, copied)
        for k in cutlass.range_constexpr(cute.size(a.elements, mode=[2])):  # each step is 32 bytes along K
            mma.set(tcgen05.Field.SFA, a.steps.iterator + a.steps.layout((k, stage)))
            mma.set(tcgen05.Field.SFB, b.steps.iterator + b.steps.layout((k, stage)))
            cute.gemm(mma, tCtC, a.elements[None, None, k, stage], b.elements[None, None, k, stage], tCtC)
            mma.set(tcgen05.Field.ACCUMULATE, True)
        pipe.consumer_release(read)  # once these are done, the stage may be overwritten, and its scale factors
        read.advance()
    return read


# %% [markdown]
# Tile after tile as [before](pipelined_gemm.ipynb), into the accumulator stages.


# %%
class Mainloop(NamedTuple):
    """The multiplying warp's values: the instruction, the operands and the accumulators."""

    op: tcgen05.BlockScaledMmaOp
    k_tiles: cutlass.Int32  # of each tile of C
    a: Operand
    b: Operand
    tCtC: cute.Tensor  # float32 in tensor memory, (MMA, MMA_M, MMA_N, ACC_STAGE)


@cute.jit
def multiply_tile(
    cta: Cta,
    main: Mainloop,
    read: pipeline.PipelineState,
    fill: pipeline.PipelineState,
    config: cutlass.Constexpr,
):
    """Multiply all k-tiles of a tile into the accumulator stage `fill`. Return the pipeline state of A and B."""
    cta.acc_pipe.producer_acquire(fill)
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")
    acc = main.tCtC[None, None, None, fill.index]
    mma = cute.make_tiled_mma(main.op)  # made for each tile: a field that changes is this tile's alone
    read = consume(cta.pipe, read, mma, acc, main.a, main.b, main.k_tiles, config)
    cta.acc_pipe.producer_commit(fill)  # full, once all these are done
    return read


@cute.jit
def multiply(cta: Cta, main: Mainloop, count: cutlass.Int32, config: cutlass.Constexpr):
    """Multiply `count` tiles into the accumulator stages, alternating."""
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.acc_stages)
    for _ in cutlass.range(count, unroll=1):
        read = multiply_tile(cta, main, read, fill, config)
        fill.advance()


# %% [markdown]
# ## The kernel
#
# The three roles, each in its own branch. The warps that store are those of [the page before](pipelined_gemm.ipynb):
# the accumulators are float32 and know nothing of scale factors any more. C is bfloat16.


# %%
@cute.kernel
def kernel(
    atoms: tuple,  # TMA's copy atoms for A (M, K), B (N, K) and their scale factors
    sources: tuple,  # these four matrices, as TMA coordinates
    c: TmaTensor,  # (M, N)
    dtype: cutlass.Constexpr,
    layouts: ScaledLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    operands: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """A CTA computes its share of the tiles of C, one after the other.

    Who waits for whom, with the CONFIG of blackwell/mxfp8_gemm:

    warps  do           wait for              signal
    0-3    tcgen05.ld   accumulator full[1]   accumulator empty[1]: 1 a warp
           TMA stores
    4      tcgen05.mma  full[4]               empty[4]: 1 when its MMAs are over
                        accumulator empty[1]  accumulator full[1]: 1 when its MMAs are over
    5      TMA loads    empty[4]              full[4]: 1, expects 50688 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 1 arrival a phase.
    accumulator full[1]: 1 arrival a phase.
    accumulator empty[1]: 4 arrivals a phase.
    bar 1, 160 threads: warps 0-4 meet.
    bar 2, 128 threads: warps 0-3 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    work = work_of_cta(c.coords.shape, config)
    cta, scales = set_up(layouts, dtype, config)
    if warp_idx == TMA_WARP:
        boxes = [as_boxes(sS, rows, config) for sS, rows in zip(scales, (config.tile_m, config.tile_n), strict=True)]
        tiles = (cta.sA, cta.sB, *boxes)
        loads = [partition_tiles(*each) for each in zip(atoms, sources, tiles, strict=True)]
        produce(cta.pipe, loads, work, config)
    elif warp_idx == MMA_WARP:
        address, tCtC = accumulator_stages(cta.tmem, op, config)
        k_tiles = cute.ceil_div(sources[0].shape[1], config.tile_bytes)
        a, b = operands(cute.make_tiled_mma(op), (cta.sA, cta.sB, *scales), address, config)
        multiply(cta, Mainloop(op, k_tiles, a, b, tCtC), work.count, config)
    else:
        store(cta, c, copies, op, work, config)


# %% [markdown]
# ## The launch
#
# As many CTAs as there are SMs, since one fills an SM, and never more than there are tiles. The atoms of scale factors
# become a matrix for TMA: how many there are follows from M, N and K.


# %%
def scale_matrix(pointer: cute.Pointer, rows, k, config: Config) -> cute.Tensor:
    """The atoms of the scale factors of a matrix (rows, K) as TMA sees them: 8-byte words, a row for 128 rows."""
    high, wide = cute.ceil_div(rows, ATOM_ROWS), cute.ceil_div(k, ATOM_FACTORS * config.block) * (ATOM_BYTES // 8)
    return row_major(cute.recast_ptr(pointer, dtype=cutlass.Int64), high, wide, wide, 64)


class Sizes(NamedTuple):
    """The numbers of a launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # of the rows of A, B, C, in elements as stored
    sms: cutlass.Int32  # of the GPU


@cute.jit
def launch(
    matrices: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
    pSFA: cute.Pointer,
    pSFB: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    op: cutlass.Constexpr,
    operands: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C = A times B transposed, block by block times the scale factors. matrices: A and B as stored, and C."""
    (m, n, k), (mA, mB, mC), load = sizes.mnk, matrices, cpasync.CopyBulkTensorTileG2SOp()
    dtype = mC.element_type
    layouts, copies = smem_layouts(dtype, config), subtile_copies(cute.make_tiled_mma(op), dtype, config)
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in (layouts.a, layouts.b))
    a = cpasync.make_tiled_tma_atom(load, mA, a_stage, (config.tile_m, config.tile_bytes))
    b = cpasync.make_tiled_tma_atom(load, mB, b_stage, (config.tile_n, config.tile_bytes))
    c = make_store(mC, layouts.c, config)
    a_box, b_box = (cute.slice_(scale_views(x, config).boxes, (None, None, 0)) for x in (config.tile_m, config.tile_n))
    sfa = cpasync.make_tiled_tma_atom(load, scale_matrix(pSFA, m, k, config), a_box, a_box.shape)
    sfb = cpasync.make_tiled_tma_atom(load, scale_matrix(pSFB, n, k, config), b_box, b_box.shape)
    atoms, sources = zip(a, b, sfa, sfb, strict=True)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(atoms, sources, c, dtype, layouts, copies, op, operands, config).launch(
        grid=(cutlass.min(tiles, sizes.sms), 1, 1), block=(config.threads, 1, 1), stream=stream, min_blocks_per_mp=1
    )


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
    (m, n, k), (lda, ldb, ldc) = sizes.mnk, sizes.strides
    matrices = row_major(pA, m, k, lda, 16), row_major(pB, n, k, ldb, 16), row_major(pC, m, n, ldc, 8)
    launch(matrices, pSFA, pSFB, sizes, stream, block_scaled_mma(config), operands, config)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (ELEMENT, 16), (ELEMENT, 16), (SCALE, 16), (SCALE, 16), (dtype, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## Scale factors into atoms
#
# Quantizers return the scale factors as a matrix, too: one row for each row, one byte for every 32 elements. The kernel
# wants atoms. The function cuts the rows into groups of 128 = 4 x 32 and the factors into groups of 4, and puts the 32
# before the 4. It is one pass over K / 32 bytes a row. A weight's factors need it once, and `matmul` takes what it
# returns as well.


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


# %% [markdown] tags=["lab"]
# This is CuTe's own layout too: the one that its helper gives for such a matrix of scale factors, evaluated for a
# matrix of several atoms. And `to_atoms`, which is torch alone, puts each byte where that layout says.

# %% tags=["lab"]
rows, k = 384, 1024
by_cute = evaluate(lambda: cute_blockscaled.tile_atom_to_shape_SF((rows, k, 1), BLOCK), arch="sm_100a").table()
places = by_cute[:, ::BLOCK, 0]  # (rows, factors): every element of a block has the same one
numbers = torch.arange(rows * k // BLOCK, dtype=torch.int64).remainder(251).to(torch.uint8).view(rows, -1)
assert (to_atoms(numbers)[torch.from_numpy(places)] == numbers).all()
print(f"{places.size} scale factors in {places.size // ATOM_BYTES} atoms, each where CuTe has it")

# %% [markdown]
# ## `matmul`: what a user calls
#
# `FurtherGemm`, which recipes share, is the host side: checks, a plan for each kind of call, compilation, the launch.
# It is a `Gemm` that may hand the kernel something else than it was given. What it is to check stands in a table: name,
# shape, dtypes, and what must hold of where elements lie. A call has four operands. Scale factors come as a matrix,
# or as atoms, 1-D: the kernel is given atoms.


# %%
def k_in_blocks(name: str, x: torch.Tensor, k_mode: int, whole: bool, per_byte: int = 1) -> tuple[str, int]:
    """The major of an operand and the bytes from one of its lines to the next: K-major, and K is whole blocks."""
    k = x.shape[k_mode] * per_byte
    require(k % 32 == 0, name, f"K = {k}", "a multiple of 32: whole blocks")
    require(k <= LARGEST, name, f"K = {k}", f"at most {LARGEST}: kernels count in 32 bits")
    return "k", line_stride(name, x, k_mode, "K" if per_byte == 1 else "bytes of K")


# %%
def atoms_of(shape: tuple[int, int]) -> tuple[int]:
    """The bytes of the atoms of scale factors (rows, factors)."""
    rows, factors = shape
    return (-(-rows // ATOM_ROWS) * -(-factors // ATOM_FACTORS) * ATOM_BYTES,)


def in_atoms(name: str, scale: torch.Tensor, known: dict[str, int]) -> tuple[int, ...]:
    """Atoms, if they are 1-D, are adjacent, and begin where TMA can read."""
    if scale.ndim == 1:
        require(scale.stride(0) == 1, name, f"stride {scale.stride(0)}", "1: adjacent bytes")
        require(scale.data_ptr() % 16 == 0, name, f"address {scale.data_ptr():#x}", "a multiple of 16 bytes")
    return ()


def as_atoms(scale: torch.Tensor) -> torch.Tensor:
    """Return what the kernel reads of scale factors."""
    return scale if scale.ndim == 1 else to_atoms(scale)


def scaled_operands(dtypes: tuple[torch.dtype, ...], block: int, per_byte: int = 1) -> dict:
    """The operands: `block` elements share a scale factor of one of `dtypes`; along K, `per_byte` of them are a byte.

    The launch takes the address of C behind them all: `c_at`.
    """
    of = {"dtypes": dtypes, "lies": in_atoms, "also": atoms_of, "read_as": as_atoms}
    scales = (
        Argument("a_scale", f"M K/{block // per_byte}", **of),
        Argument("b_scale", f"N K/{block // per_byte}", **of),
    )
    return {"operands": (*MATRICES, *scales), "c_at": 4}


# %%
E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)  # older versions of torch lack it


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (VARIANTS[call.variant],), (Sizes(call.mnk, call.strides, call.sms),)


GEMM = FurtherGemm(
    compile_for,
    prepare,
    gpus=((10, 0), (10, 3)),
    needs="tcgen05",
    variants=VARIANTS,
    major_of=k_in_blocks,
    padded=True,
    takes={torch.float8_e4m3fn: torch.bfloat16},
    **scaled_operands((E8M0, torch.uint8), 32),
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

    a: (M, K), float8_e4m3fn, K-major (stride 1 along K). Element (m, k) stands for a[m, k] * a_scale[m, k // 32].
    b: (K, N), float8_e4m3fn, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    a_scale: (M, K / 32), float8_e8m0fnu, powers of two; or their bytes as uint8; or 1-D, what `to_atoms` made of them.
    b_scale: (N, K / 32), a row for each column of b; otherwise as a_scale.
    out: (M, N), bfloat16, stride 1 along N, any row stride >= N, no memory of the others. Made if not given.
    variant: one of VARIANTS: how wide a tile is, and how many of them tensor memory holds.

    K is a multiple of 32. TMA reads rows that start at multiples of 16 bytes: the addresses of a and b (and of scale
    factors in atoms) and the row strides of a and b are such multiples. Needs a GPU of compute capability 10.0 or 10.3.
    Any M, N >= 1: ragged tiles are handled. TMA writes such rows too: for another `out`, or if N is no multiple of 8,
    the product is made in padded rows and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, a_scale, b_scale, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## What the factors are good for
#
# A matrix whose rows differ by factors of up to a million, in 8-bit floats: with one scale for all of it, and with one
# for every 32 elements of a row. The error is that of the operand, before anything is multiplied.

# %% tags=["lab"]
values = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
values *= np.logspace(0, -6, 64, dtype=np.float32)[:, None]
one_scale = np.abs(values).max() / 448
kept = {"one scale": decode(encode(values / one_scale, "e4m3"), "e4m3") * one_scale}
kept["MXFP8"] = scaled.quantized(values, "mxfp8").values()
for name, found in kept.items():
    norms = np.linalg.norm(found - values, axis=1) / np.linalg.norm(values, axis=1)
    print(f"{name:10} error of the largest row {norms[0]:.1%}, of the smallest {norms[-1]:.1%}")

# %% [markdown] tags=["lab"]
# ## Check
#
# *Layout* follows each scale factor's way too: the order of bytes in atoms, the boxes, the atoms that `tcgen05.cp`
# takes, and that every `tcgen05.mma` is told the byte where its factors then are. *Model*: the product equals what the
# operands stand for, exactly. *Pipeline*: nothing overwrites scale factors, in shared or in tensor memory, before they
# were read. What needs a Blackwell GPU says *not checked*: **this kernel has not run on hardware**.

# %% tags=["lab"]
lab.check_cells("blackwell/mxfp8_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# Nothing has been timed so far: that takes a Blackwell GPU.

# %% tags=["lab", "open"]
lab.compare("blackwell/mxfp8_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("blackwell/mxfp8_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# To the kernel a scale factor is one more operand: boxes of whole atoms, a copy that one thread issues, cells in tensor
# memory, and two addresses more for each product. Only TMA and the tensor core ever read it. It costs columns of tensor
# memory, and with them the second wide tile.
#
# Next: [four-bit floats, with a factor for every sixteen](nvfp4_gemm.ipynb).
