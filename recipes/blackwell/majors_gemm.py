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
#     aside: Layouts and majors
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
from cookbook.lab import majors

both_mn = majors.configured(packaged.CONFIG, "nt")
draw.swizzle_view(evaluate(packaged.smem_layouts, cutlass.BFloat16, both_mn, arch="sm_100a").a)

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
# stands in a word that is a run-time operand of the instruction. And one instruction reads 128 rows of A, where `wgmma`
# reads 64. That is two boxes of an M-major tile, so the second stride in A's descriptor counts, too.
#
# *This kernel has not run on hardware.* It is compiled for Blackwell, and its layouts, descriptors and data path are
# checked against the PTX ISA document in numpy. No speed is claimed.

# %%
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

from cookbook.recipe.entry import Call, Gemm, compile_host, either_major, require
from cookbook.recipes.ampere.first_gemm import row_major
from cookbook.recipes.blackwell.pipelined_gemm import Config as PipelinedConfig
from cookbook.recipes.blackwell.pipelined_gemm import TiledCopies, kernel, launch, subtile_copies
from cookbook.recipes.blackwell.pipelined_gemm import smem_layouts as k_major_layouts
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, smem_atom

# %% [markdown]
# ## The sizes, and the majors
#
# The majors are two more fields: the compiler makes one kernel for each pair that is used. Everything else is as it
# was, without the variant of one accumulator stage.


# %%
@dataclass(frozen=True)
class Config(PipelinedConfig):
    """Sizes of the kernel, in elements or counts, and how its operands lie."""

    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.a_major in ("k", "m"), "a_major", repr(self.a_major), "'k' or 'm'")
        require(self.b_major in ("k", "n"), "b_major", repr(self.b_major), "'k' or 'n'")


CONFIG = Config()


def config_for(arch: str) -> Config:
    """The configuration for an architecture: the two chips with tcgen05 have the same sizes."""
    return CONFIG


# %% [markdown]
# ## The layout
#
# TMA copies boxes, and the rows of a box are what is contiguous in global memory. It does not transpose them. So an
# M-major operand arrives in lines along M, and its atom is the K-major one mirrored. Instead of 8 rows of 64 elements
# along K it has **eight lines of 64 elements along M, 64 x 8**, one line for each k.
#
# The swizzle is the same `S<3,4,3>`, since it sees addresses. 16-byte chunk *c* of line *l* goes to slot *c XOR l*,
# whichever way the lines run.
#
# **In which order do the atoms fill the tile?** A descriptor has two strides. For an MN-major operand the *stride byte
# offset* leads from eight k to the next eight, the *leading byte offset* from 64 rows to the next 64. The tensor core
# would take either order.
#
# TMA decides: a box in the 128-byte mode is one swizzle wide, 64 elements, and its lines lie *one below the other*. So
# all atoms along K come first, and after them the next 64 rows: a box is 64 x 64. The other way round a box would be
# one atom, 64 x 8, and the producer would issue eight times as many copies.


# %%
def mirrored_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The atom of lines along M or N: (64, 8):(1, 64) for (8, 64):(64, 1), and the same swizzle."""
    width = smem_atom(dtype, contiguous).outer.shape[1]
    bits = (width * dtype.width // 128).bit_length() - 1  # of 1, 2, 4 or 8 chunks in a line
    lines = cute.make_layout((width, 8), stride=(1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def staged(dtype, rows: int, k: int, stages: int, major: str) -> cute.ComposedLayout:
    """Tiles of an operand, (rows, K, STAGE): atoms first across their lines, then along them, then over the stages."""
    if major == "k":
        return cute.tile_to_shape(smem_atom(dtype, k), (rows, k, stages), order=(0, 1, 2))
    return cute.tile_to_shape(mirrored_atom(dtype, rows), (rows, k, stages), order=(1, 0, 2))


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """A and B by their majors, and C as on the page before."""
    c = config
    a = staged(dtype, c.tile_m, c.tile_k, c.stages, c.a_major)
    b = staged(dtype, c.tile_n, c.tile_k, c.stages, c.b_major)
    return k_major_layouts(dtype, config)._replace(a=a, b=b)


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
def mma_of_majors(dtype, config: Config) -> tcgen05.MmaF16BF16Op:
    """tcgen05.mma of 128 x N x 16 by one CTA, A and B from shared memory, of these majors."""
    shape, smem = (config.tile_m, config.tile_n, 16), tcgen05.OperandSource.SMEM
    majors = (OperandMajorMode.K if major == "k" else OperandMajorMode.MN for major in (config.a_major, config.b_major))
    return tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.ONE, smem, *majors)


def tiled_mma(dtype, config: Config) -> cute.TiledMma:
    """The tcgen05.mma of these majors."""
    return cute.make_tiled_mma(mma_of_majors(dtype, config))


def tiled_copies(dtype, config: Config) -> TiledCopies:
    """The two copies of the epilogue, which the majors do not change."""
    return subtile_copies(tiled_mma(dtype, config), dtype, config)


# %% tags=["lab"]
BF16, ARCH = cutlass.BFloat16, "sm_100a"
configs = {letters: majors.configured(CONFIG, letters) for letters in majors.MAJORS}
layouts = {letters: evaluate(smem_layouts, BF16, config, arch=ARCH) for letters, config in configs.items()}

# %% [markdown] tags=["lab"]
# A smaller M-major tile, 128 x 16, to see the order of the atoms: two along K, two along M. A row is one k, a column 16
# bytes along M; the number is the byte offset, the colour the atom, in the order of memory. The lines of one column of
# atoms follow one another, 128 bytes apart, down to the last k: that is one box.

# %% tags=["lab"]
small = evaluate(staged, BF16, 128, 16, 1, "m", element_bits=16)
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

from cookbook.descriptors import describe
from cookbook.lab import boxes_of, table
from cookbook.model import InstructionDescriptor


def described(layout, rows: int, major: str) -> list[str]:
    """The boxes of a tile, and its descriptor."""
    boxes = boxes_of(layout, along=1 if major == "k" else 0)
    first, second = (describe(layout, "K" if major == "k" else "MN", False, rows, (0, k)) for k in (0, 16))
    said = f"lbo {first.lbo}, sbo {first.sbo}, + {second.start - first.start}"
    return [f"{len(boxes.origins)} of {boxes.shape[0]} x {boxes.shape[1]}", said]


rows = []
for letters, (a_major, b_major) in majors.MAJORS.items():
    bits = {"a_major": "K" if a_major == "k" else "MN", "b_major": "K" if b_major == "k" else "MN"}
    word = InstructionDescriptor("f16", CONFIG.tile_m, CONFIG.tile_n, "bfloat16", **bits).encode()
    a, b = described(layouts[letters].a, CONFIG.tile_m, a_major), described(layouts[letters].b, CONFIG.tile_n, b_major)
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
m_major, k_major = (
    evaluate(staged, BF16, rows, 128, 1, major, element_bits=16) for rows, major in ((128, "m"), (32, "k"))
)
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
# ## Unchanged: the kernel
#
# Neither the tile scheduler nor any of the three roles depends on the majors. Partitioned tensors have the same modes
# either way: (TMA, k) for the warp that loads, descriptors (MMA, MMA_M, MMA_K, STAGE) for the one that multiplies. So
# `kernel` and its launch are imported from [the page before](pipelined_gemm.ipynb): they get the layouts and the
# instruction as arguments.
#
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
    (m, n, k), (lda, ldb, ldc), dtype = mnk, strides, pA.dtype
    mA = cute.make_tensor(pA, operand_layout(m, k, cute.assume(lda, divby=8), config.a_major))
    mB = cute.make_tensor(pB, operand_layout(n, k, cute.assume(ldb, divby=8), config.b_major))
    mC = row_major(pC, m, n, ldc, 8)
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config)
    launch(mA, mB, mC, layouts, copies, mma_of_majors(dtype, config), sms, stream, config)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_100a"), which needs no GPU; "": for the GPU that is here."""
    pointers = ((dtype, 16),) * 3
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# There is no argument for the majors: the strides of a and b say them.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
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
    return GEMM.matmul(a, b, out=out)


# %% [markdown] tags=["lab"]
# ## Check
#
# All levels for each of the majors. *Model* sends tiles through TMA boxes, swizzled shared memory, descriptors,
# `tcgen05.mma` of either major, both halves of tensor memory and `tcgen05.ld`. *Compiled* compares the compiler's
# descriptors with those of the layouts, bit by bit. What needs a Blackwell GPU says *not checked*: **this kernel has
# not run on hardware**.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("blackwell/majors_gemm", shapes=[(200, 328, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("blackwell/majors_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Nothing has been timed: that takes a Blackwell GPU. The table is here once one has run
# `cookbook bench blackwell/majors_gemm --record`.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("blackwell/majors_gemm"))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Nothing is transposed, neither in memory nor by a thread: TMA brings lines as they are, and one bit says which way
# they run. The functions that make the layouts are those of Hopper's page, line for line: a major is a layout, a box
# and a bit.
#
# Next: [products of few rows](low_latency_gemm.ipynb).
