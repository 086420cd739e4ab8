# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "NVFP4: block-scaled 4-bit GEMM"
#     claim: >-
#       NVFP4 gives every 16 elements of a row a scale factor; an instruction takes twice as many of such elements
#       along K as of 8-bit ones.
#     track: blackwell
#     order: 60
#     aside: 8 bits and less
#     builds_on: blackwell/mxfp8_gemm
#     kind: block_scaled
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
from cookbook.model.scale_factors import ATOM_FACTORS, ATOM_ROWS

packaged = cookbook.load("blackwell/nvfp4_gemm")
layouts = evaluate(packaged.smem_layouts, cutlass.BFloat16, packaged.CONFIG, element_bits=8, arch="sm_100a")
views = evaluate(packaged.scale_views, packaged.CONFIG.tile_n, packaged.CONFIG, arch="sm_100a")
stored = layouts.sfb.byte_offsets()[:ATOM_ROWS, :ATOM_FACTORS, 0]
source, target = (view.table()[:, 0, 0, 0] for view in (views.atoms, views.copied))
draw.scale_atom(stored, source, target, packaged.BLOCK, ATOM_FACTORS)

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
from functools import partial

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import tcgen05

from cookbook.recipe.entry import Call, compile_host
from cookbook.recipe.operands import FurtherGemm
from cookbook.recipes.ampere.first_gemm import row_major
from cookbook.recipes.blackwell.mxfp8_gemm import Config as Mxfp8Config
from cookbook.recipes.blackwell.mxfp8_gemm import (
    Operand,
    Sizes,
    k_in_blocks,
    kernel,
    launch,
    scale_views,
    scaled_operands,
    smem_layouts,
    to_atoms,
)
from cookbook.recipes.blackwell.mxfp8_gemm import operands as operands_of_elements
from cookbook.recipes.blackwell.pipelined_gemm import TiledCopies, subtile_copies
from cookbook.recipes.hopper.tma_wgmma_gemm import smem_atom

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
PER_BYTE = 2  # elements


@dataclass(frozen=True)
class Config(Mxfp8Config):
    """Sizes of the kernel, in elements or counts."""

    tile_k: int = 256  # 128 bytes: one row of the SW128 atom, four tcgen05.mma steps of 64, 16 scale factors
    epi_stages: int = 1  # epilogue subtiles of C on their way out

    @property
    def element(self) -> type[cutlass.Numeric]:
        return cutlass.Float4E2M1FN  # of A and B

    @property
    def stored(self) -> type[cutlass.Numeric]:
        return cutlass.Uint8  # two elements

    @property
    def scale(self) -> type[cutlass.Numeric]:
        return cutlass.Float8E4M3FN  # of a scale factor

    @property
    def block(self) -> int:
        return 16  # elements along K that share a scale factor

    @property
    def factors(self) -> int:
        return 4  # that one tcgen05.mma reads of each row: it takes four blocks along K

    @property
    def tile_bytes(self) -> int:
        return self.tile_k // PER_BYTE  # along K, of A and B


VARIANTS = {"one wide tile": Config(), "two narrow tiles": Config(tile_n=128, stages=5, acc_stages=2)}
DEFAULT = "one wide tile"
CONFIG = VARIANTS[DEFAULT]
ELEMENT, SCALE, BLOCK = CONFIG.element, CONFIG.scale, CONFIG.block


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """The configuration of a variant: the two chips with tcgen05 have the same sizes."""
    return VARIANTS[variant]


# %% [markdown]
# ## Bytes in memory, elements in the tensor core
#
# The layouts of A and B count bytes: rows of 128 under the 128-byte swizzle, as they did. The tensor core sees the same
# tile through a tensor of 4-bit elements: the same swizzle on the same addresses, and a layout with twice as many
# places along K. So `operands` makes such tensors of the tiles, and then does what it did.


# %%
def as_elements(sX: cute.Tensor) -> cute.Tensor:
    """A tile of bytes as one of elements. A cast drops the swizzle from the pointer: it is attached again."""
    swizzle = smem_atom(cutlass.Uint8, cute.size(sX, mode=[1])).inner
    pointer = cute.recast_ptr(sX.iterator, swizzle, dtype=ELEMENT)
    return cute.make_tensor(pointer, cute.recast_layout(ELEMENT.width, 8, sX.layout))


def operands(mma: cute.TiledMma, tiles: tuple, address: cute.Pointer, config: Config) -> tuple[Operand, Operand]:
    """A and B. tiles: both in bytes and their scale factors, in shared memory; address: of tensor memory."""
    sA, sB, *scales = tiles
    return operands_of_elements(mma, (as_elements(sA), as_elements(sB), *scales), address, config)


def four_bit_mma(config: Config) -> tcgen05.MmaMXF4NVF4Op:
    """tcgen05.mma of 128 x N x 64 by one CTA, A and B from shared memory, scale factors from tensor memory."""
    shape, smem = (config.tile_m, config.tile_n, 64), tcgen05.OperandSource.SMEM
    return tcgen05.MmaMXF4NVF4Op(config.scale, shape, tcgen05.CtaGroup.ONE, smem)  # 4-bit elements are K-major always


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The block-scaled tcgen05.mma. `dtype`, of C, does not matter to it."""
    return cute.make_tiled_mma(four_bit_mma(config))


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """The two copies of the epilogue, which is that of all kernels with tensor memory."""
    return subtile_copies(tiled_mma(dtype, config), dtype, config)


# %% [markdown]
# ## The way of the scale factors
#
# It is that of [the page before](mxfp8_gemm.ipynb): boxes of whole atoms by TMA, `tcgen05.cp` into four columns for
# each atom, and an address for each `tcgen05.mma`. What is new:
#
# * A stage has four atoms along K for every 128 rows. In shared memory they follow one another along K, as in global
#   memory. In tensor memory those of *one instruction* are neighbours: the rows of B, 256 of them, must have their
#   factors in eight columns that follow one another. So the copy puts the atoms down the rows first and those along K
#   after them, by strides alone.
# * Each instruction reads all four bytes of its cells. Its address names a column, and byte 0.
#
# Both follow from two numbers of `Config`, elements that share a factor and factors that an instruction reads. So
# `scale_views` is imported, and with it the kernel: atoms of 128 rows with four factors of each, which now stand for 64
# elements.

# %% [markdown] tags=["lab"]
# A stage of B has two atoms down and four along K. In shared memory those along K are neighbours, as TMA brings them;
# in tensor memory those of one instruction are. (The first byte of each atom in shared memory, and the first of its
# four columns.)

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import results_table, table

layouts = evaluate(smem_layouts, cutlass.BFloat16, CONFIG, element_bits=8, arch="sm_100a")
views = evaluate(scale_views, CONFIG.tile_n, CONFIG, arch="sm_100a")
first_bytes, first_columns = views.atoms.table()[0, :, :, 0], views.copied.table()[0, :, :, 0] // 4
names = [f"tcgen05.mma {k}" for k in range(CONFIG.atoms_k)]
lines = [
    [f"rows {128 * high} to {128 * high + 127}", *(f"byte {a}, column {b}" for a, b in zip(at, to, strict=True))]
    for high, (at, to) in enumerate(zip(first_bytes.tolist(), first_columns.tolist(), strict=True))
]
Markdown(table(["B", *names], lines))

# %% [markdown]
# ## The launch
#
# To TMA, A and B are matrices of bytes, half as wide as K. All else is imported: four boxes for each k-tile and one
# barrier for the bytes of all; twelve copies of atoms for a stage of the wide tile, and four multiplications. One
# thread asks for all of these, and waits for none.


# %%
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
    mA, mB = row_major(pA, m, k // PER_BYTE, lda, 16), row_major(pB, n, k // PER_BYTE, ldb, 16)
    matrices = mA, mB, row_major(pC, m, n, ldc, 8)
    launch(matrices, pSFA, pSFB, sizes, stream, four_bit_mma(config), operands, config)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (cutlass.Uint8, 16), (cutlass.Uint8, 16), (SCALE, 16), (SCALE, 16), (dtype, 16)
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# `to_atoms` and the table of operands are those of [the page before](mxfp8_gemm.ipynb). The table is told that a byte
# holds two elements, and that 16 elements share a factor.


# %%
E2M1 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)  # older versions of torch lack it


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    m, n, bytes_of_k = call.mnk
    return (VARIANTS[call.variant],), (Sizes((m, n, PER_BYTE * bytes_of_k), call.strides, call.sms),)


GEMM = FurtherGemm(
    compile_for,
    prepare,
    gpus=((10, 0), (10, 3)),
    needs="tcgen05",
    variants=VARIANTS,
    major_of=partial(k_in_blocks, per_byte=PER_BYTE),
    padded=True,
    takes=dict.fromkeys((E2M1, torch.uint8), torch.bfloat16),
    **scaled_operands((torch.float8_e4m3fn, torch.uint8), BLOCK, PER_BYTE),
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
    return GEMM.matmul(a, b, a_scale, b_scale, out=out, variant=variant)


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

from cookbook.lab import scaled

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

# %% tags=["lab"]
lab.check_cells("blackwell/nvfp4_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time
#
# Nothing has been timed so far: that takes a Blackwell GPU.

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
