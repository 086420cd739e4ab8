# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Operand majors with WGMMA
#     claim: >-
#       wgmma reads a tile along K or along M and N at the same rate, so an operand needs no transpose: its layout is
#       mirrored and one bit changes.
#     track: hopper
#     order: 95
#     aside: Layouts and majors
#     builds_on: hopper/tuned_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     serves: {sm_90: 2048}
#     dtypes: [bfloat16, float16]
#     majors: [tn, nt, nn, tt]
#     fitted: [clock_exponent, load_cost]
#     measured_by: foundations/gpc_remapping
#     path: >-
#       tma, multicast -> swizzled shared memory -> wgmma of either major -> stmatrix, overlapped with the next main
#       loop -> tma
#     instructions: {sm_90a: [UTMALDG.2D, HGMMA, STSM.16, UTMASTG.2D, USETMAXREG, SYNCS]}
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
# ---

# %% [markdown]
# # Operand majors with WGMMA
#
# **Claim.** `wgmma` reads a tile along K or along M and N at the same rate, so an operand needs no transpose: its atom
# is mirrored, its boxes lie the other way, and the instruction gets one bit.

# %% tags=["lab"]
from cookbook import draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/majors_gemm", (8192, 8192, 8192), majors="nn")

# %% [markdown]
# [The page before](tuned_gemm.ipynb) takes A and B *K-major*: the elements that are multiplied and summed lie next to
# each other, as in `x @ weight.T`. Most products of a training step are not like that:
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
# On Ampere `ldmatrix.trans` transposes an operand on its way to the registers ([there](../ampere/majors_gemm.ipynb)).
# Here the tensor cores read shared memory directly, and the kernel tells them how a tile lies. The letter of an operand
# changes its **layout** and **one bit**. The rest is imported from the page before.

# %%
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from cookbook.recipe.entry import Call, Gemm, compile_host, either_major, require
from cookbook.recipes.hopper.persistent_gemm import smem_layouts as k_major_layouts
from cookbook.recipes.hopper.swap_ab_gemm import mirrored_atom, tiled_copies
from cookbook.recipes.hopper.tile_heuristics import Calibration, calibrated, clusters, cost_on
from cookbook.recipes.hopper.tma_wgmma_gemm import SmemLayouts, smem_atom
from cookbook.recipes.hopper.tuned_gemm import Config as TunedConfig
from cookbook.recipes.hopper.tuned_gemm import Sizes, kernel, launch, remap_of

# %% [markdown]
# ## The sizes, and the majors
#
# The majors are two more fields: the compiler makes one kernel for each pair that is used. Of the variants of the page
# before, those are here that do not swap A and B. The others would need nothing new. But an M-major A of 208 rows has
# lines of 208 elements, and the widest swizzle that divides them is that of 32 bytes: many small boxes.


# %%
def check_majors(a_major: str, b_major: str) -> None:
    """Refuse other letters than those of the two majors."""
    require(a_major in ("k", "m"), "a_major", repr(a_major), "'k' or 'm'")
    require(b_major in ("k", "n"), "b_major", repr(b_major), "'k' or 'n'")


@dataclass(frozen=True)
class Config(TunedConfig):
    """Sizes of the kernel, in elements or counts, how it is scheduled, and how its operands lie."""

    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    def __post_init__(self):
        super().__post_init__()
        require(not self.swap_ab, "swap_ab", True, "False")
        check_majors(self.a_major, self.b_major)


VARIANTS = {
    "128x256": Config(),
    "256x160": Config(tile_m=256, tile_n=160, epi_n=32, overlapped=9),
    "128x192 pingpong": Config(tile_n=192, cluster_m=2, cluster_n=1, pingpong=True, overlapped=0),
    "128x128 pingpong": Config(tile_n=128, cluster_m=2, cluster_n=1, stages=6, pingpong=True, overlapped=0),
    "128x64 pingpong": Config(tile_n=64, stages=8, pingpong=True, overlapped=0),
}
DEFAULT = "auto"  # the one that `choose` names
CONFIG = VARIANTS["128x256"]


def config_for(arch: str, variant: str = "128x256") -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## Unchanged: the heuristics
#
# The majors are not in them. They change neither the multiplications nor the loads. The variants are fewer.


# %%
CALIBRATION = Calibration()


def calibrate(**figures) -> Calibration:
    """Use figures of this machine's GPU, before the first `matmul`: `calibrate(load_cost=12)`, say."""
    global CALIBRATION
    CALIBRATION = calibrated(CALIBRATION, **figures)
    GEMM.plans.clear()  # they hold choices by the old figures
    return CALIBRATION


def cost(config: Config, m: int, n: int, k: int, sms: int) -> float:
    """The cost of C (m, n) over k on `sms` SMs of this chip, relative to that of another configuration."""
    return cost_on(CALIBRATION, config, m, n, k, sms)


def choose(m: int, n: int, k: int, sms: int) -> str:
    """The variant that costs least."""
    return min(VARIANTS, key=lambda name: cost(VARIANTS[name], m, n, k, sms))


# %% [markdown]
# ## The layout
#
# TMA copies boxes. The rows of a box are what is contiguous in global memory, and TMA does not transpose them. So an
# M-major operand arrives in lines along M, and its atom is the K-major one mirrored. Instead of 8 rows of 64 elements
# along K it has **eight lines of 64 elements along M, 64 x 8**, one line for each k. The swizzle is the same
# `S<3,4,3>`, since it acts on addresses: chunk *c* (16 bytes) of line *l* goes to slot *c XOR l*.
#
# **In which order do the atoms fill the tile?** The tensor core takes either, since a matrix descriptor has two
# strides. One leads from eight k to the next eight, the other from 64 rows to the next 64. TMA decides. A box in the
# 128-byte mode is one swizzle wide, 64 elements, and any number of lines high, *one below the other*.
#
# So all atoms along K come first: a box is 64 x 64, and a tile of 128 rows has two. In the other order a box would be
# one atom, 64 x 8, and the producer would issue eight times as many copies.
#
# **160 columns are not whole lines of 64.** For a K-major B that does not matter: its lines run along K. But lines of
# an N-major B run along its 160 columns. The widest atom whose line divides 160 elements is SW64, lines of 32 elements,
# 64 bytes, with `S<2,4,3>`. So the major alone decides the mode of B in `256x160`, and no line of the kernel says so.
# In the 64-byte mode B has twice as many lines. [They cost a little](swizzle_modes_gemm.ipynb), though the
# multiplications take longer.


# %%
def staged(dtype, rows: int, k: int, stages: int, major: str) -> cute.ComposedLayout:
    """Tiles of an operand, (rows, K, STAGE): atoms first across their lines, then along them, then over the stages."""
    if major == "k":
        return cute.tile_to_shape(smem_atom(dtype, k), (rows, k, stages), order=(0, 1, 2))
    return cute.tile_to_shape(mirrored_atom(dtype, rows), (rows, k, stages), order=(1, 0, 2))


def smem_layouts(dtype, config) -> SmemLayouts:
    """A and B by their majors, and C as on the page before."""
    c = config
    a = staged(dtype, c.tile_m, c.tile_k, c.stages, c.a_major)
    b = staged(dtype, c.tile_n, c.tile_k, c.stages, c.b_major)
    return k_major_layouts(dtype, config)._replace(a=a, b=b)


# %% [markdown] tags=["lab"]
# ## The M-major tile
#
# Our own A for `nt`, as CuTe evaluates it. A row of the picture is one 128-byte line of shared memory: 64 elements
# along M, of one k. The chunks are numbered along M; the swizzle is the one that a K-major tile has.

# %% tags=["lab"]
from cookbook.lab import majors

BF16 = cutlass.BFloat16


def layouts_of(variant: str, letters: str):
    """The recipe's own layouts for operands of these majors."""
    return evaluate(smem_layouts, BF16, majors.configured(VARIANTS[variant], letters))


draw.swizzle_view(layouts_of("128x256", "nt").a)

# %% [markdown] tags=["lab"]
# ## The order of the atoms
#
# A smaller M-major tile, 128 x 16: two atoms along K, two along M. A row of the picture is one k, a column 16 bytes
# along M; the number is the byte offset, the colour the atom, in the order of memory. In our order the lines of one
# column of atoms follow one another, 128 bytes apart, down to the last k: one box of TMA. In the other order they stop
# after eight.

# %% tags=["lab"]


def tile_in_order(order: tuple[int, int, int], rows: int, k: int) -> cute.ComposedLayout:
    """An M-major tile of one stage with its atoms in this order."""
    return cute.tile_to_shape(mirrored_atom(BF16, rows), (rows, k, 1), order=order)


orders = {"first along K (ours)": (1, 0, 2), "first along M": (0, 1, 2)}
tilings = {name: evaluate(tile_in_order, order, 128, 16, element_bits=16) for name, order in orders.items()}
draw.atom_tiling(tilings, (64, 8), "An M-major tile, its atoms in two orders")

# %% [markdown]
# ## One bit
#
# `wgmma` has a bit for each operand, in PTX `imm-trans-a` and `imm-trans-b`: the lines that the descriptor describes
# run along K, or along M or N. With the bit the tensor core transposes each core matrix while it reads it. **For 16-bit
# elements only**: with 8-bit or 32-bit ones both operands must be K-major.
#
# The bit is in the instruction, the strides are in the descriptor, the swizzle is in both the descriptor and the tensor
# map, and all of them must describe the same tile. We say it once, in `Config`, and CuTe derives the descriptor from
# the layout and the bit.


# %%
def wgmma_of_majors(dtype, columns: int, a_major: str, b_major: str) -> warpgroup.MmaF16BF16Op:
    """64 rows of A times 16 x `columns` of B, both from shared memory, of these majors; float32 accumulators."""
    smem = warpgroup.OperandSource.SMEM
    majors = (OperandMajorMode.K if major == "k" else OperandMajorMode.MN for major in (a_major, b_major))
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, (64, columns, 16), smem, *majors)


def tiled_mma(dtype, config) -> cute.TiledMma:
    """The wgmmas of the warpgroups that share a tile: of one, which then goes down all its rows itself, or of two."""
    op = wgmma_of_majors(dtype, config.tile_n, config.a_major, config.b_major)
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1))


# %% [markdown]
# ## Unchanged: the kernel
#
# Tile scheduler, producer, consumers and epilogue are imported with the kernel. Partitioned tensors have the same modes
# whichever way a tile lies: (TMA, k) for the producer, descriptors (MMA, MMA_M, MMA_K, STAGE) for the consumers. Only
# what is behind an index differs. TMA fills what a box holds past the end of K with zeros: the ends of its lines if
# they run along K, whole lines if they do not.

# %% [markdown]
# ## The launch
#
# Of the two strides of an operand one is 1; the majors say which. The kernel sees (rows, K) either way, and
# `make_tiled_tma_atom` finds out from the tensor's strides and the tile's layout what a box is.


# %%
def operand_layout(rows, k, stride, major: str) -> cute.Layout:
    """(rows, K) of an operand whose lines, along K or along the rows, are `stride` elements apart."""
    return cute.make_layout((rows, k), stride=(stride, 1) if major == "k" else (1, stride))


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    remap: cute.Pointer,
    sizes: Sizes,
    stream: cuda.CUstream,
    kernel: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed; a stride leads from line to line."""
    (m, n, k), dtype = sizes.mnk, pA.dtype
    lda, ldb, ldc = (cute.assume(stride, divby=8) for stride in sizes.strides)
    mA = cute.make_tensor(pA, operand_layout(m, k, lda, config.a_major))
    mB = cute.make_tensor(pB, operand_layout(n, k, ldb, config.b_major))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    layouts, r2s_c = smem_layouts(dtype, config), tiled_copies(dtype, config).r2s_c
    op = wgmma_of_majors(dtype, config.tile_n, config.a_major, config.b_major)
    launch(mA, mB, mC, remap, sizes.clusters, layouts, r2s_c, op, stream, kernel, config)


def compile_for(arch: str, dtype, config: Config | None = None, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = *((dtype, 16),) * 3, (cutlass.Int32, 16)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch)), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# As on the page before. There is no argument for the majors: the strides of a and b say them.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (m, n, k), (a_major, b_major) = call.mnk, call.majors
    config = VARIANTS[choose(m, n, k, call.sms) if call.variant == DEFAULT else call.variant]
    count = clusters(config, m, n, call.sms)
    remap = remap_of(call, config, count, CALIBRATION)
    config = replace(config, gpc_aware=remap != 0, a_major=a_major, b_major=b_major)
    return (config,), (remap, Sizes(call.mnk, call.strides, count))


GEMM = Gemm(compile_for, prepare, ((9, 0),), "wgmma", (DEFAULT, *VARIANTS), major_of=either_major, padded=True)


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS, or "auto": the one that `choose` names for M, N and K.

    The strides say the majors; an operand that can be read both ways counts as K-major. The addresses of a and b and
    their other strides are multiples of 16 bytes, as TMA needs them. Any M, N, K >= 1 within that, on a GPU of compute
    capability 9.0. If rows of `out` are no such multiples, or N is no multiple of 8, the product is made in padded rows
    and copied. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The descriptors
#
# The descriptor of the first 16 k of each operand: the bytes that its mode keeps together, its strides in bytes, and
# how far its start moves from one k-block to the next. K-major, a k-block is 32 bytes further *in the same lines*;
# MN-major it is 16 lines further.

# %% tags=["lab"]
import numpy as np
from IPython.display import Markdown

from cookbook.lab import beside_tn, choices_table, results_table, table
from cookbook.model import SharedMemory, from_float32, operand_descriptors, tma_load
from cookbook.model import wgmma as modelled_wgmma
from cookbook.model.wgmma import d_coords

rows = []
for variant, letters in [("128x256", letters) for letters in majors.MAJORS] + [("256x160", "nt")]:
    config, of = majors.configured(VARIANTS[variant], letters), layouts_of(variant, letters)
    row = [f"{variant}, {letters}"]
    for layout, lines, major in ((of.a, 64, config.a_major), (of.b, config.tile_n, config.b_major)):
        first, second = operand_descriptors(layout, lines, major="K" if major == "k" else "MN")[:2]
        row.append(f"mode {first.mode}, lbo {first.lbo}, sbo {first.sbo}, + {second.start - first.start}")
    rows.append(row)
Markdown(table(["kernel", "descriptor of A", "descriptor of B"], rows, right=3))

# %% [markdown] tags=["lab"]
# **The trap: a wrong bit raises nothing.** The model multiplies an M-major tile of 64 x 64 by a K-major B, with the
# right bit and with the other. The second product is that of the *transposed* tile: lines taken for rows.

# %% tags=["lab"]
rng = np.random.default_rng(0)
a, b = rng.integers(-8, 9, (64, 64)).astype(np.float32), rng.integers(-8, 9, (64, 16)).astype(np.float32)
smem = SharedMemory(16384)
tma_load(smem, 0, from_float32(np.ascontiguousarray(a.T), "bfloat16"), (0, 0), (64, 64), 128)  # lines along M
tma_load(smem, 8192, from_float32(np.ascontiguousarray(b.T), "bfloat16"), (0, 0), (16, 64), 128)  # lines along K
m_major = evaluate(tile_in_order, (1, 0, 2), 64, 64, element_bits=16)
k_major = evaluate(lambda: cute.tile_to_shape(smem_atom(BF16, 64), (16, 64, 1), order=(0, 1, 2)), element_bits=16)
left, right = operand_descriptors(m_major, 64, 0, "MN")[0], operand_descriptors(k_major, 16, 8192, "K")[0]
coords = d_coords(16)
for bit in ("MN", "K"):
    found = np.zeros((64, 16), np.float32)
    zeros = np.zeros((128, 8), np.float32)
    found[coords[..., 0], coords[..., 1]] = modelled_wgmma(smem, left, right, zeros, "bfloat16", major_a=bit)
    products = {"a @ b": a[:, :16] @ b[:16], "a.T @ b": a.T[:, :16] @ b[:16]}
    print(f"major_a = {bit:3}", {name: bool((found == product).all()) for name, product in products.items()})

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level for each of the majors and every variant. The check is of the cells above: edit one, and check again.

# %% tags=["lab"]
lab.check_cells("hopper/majors_gemm", shapes=[(200, 328, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/majors_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Ours and its peers, interleaved in one run on one GPU, all of them on operands of the same majors. "Ours" is `matmul`
# without an argument: whatever the heuristics chose.

# %% tags=["lab"]
Markdown(results_table("hopper/majors_gemm"))

# %% [markdown] tags=["lab"]
# The four majors have the same multiplications, the same bytes and the same epilogue; the producer issues a few more
# copies. So each should be as fast as its own `tn`; here against that, and against `torch.matmul` on such operands:

# %% tags=["lab"]
Markdown(beside_tn("hopper/majors_gemm"))

# %% [markdown] tags=["lab"]
# At 4096 they are. At 8192, where the heuristics choose `256x160`, an N-major B (`tt`, `nt`) is a little slower. No
# other variant is slower with such a B in every record, and in no other does it lie in the 64-byte mode. No counter
# says whether its lines are the reason.
#
# The heuristics know nothing of majors. The three cheapest variants, relative to the best, predicted and measured:

# %% tags=["lab"]
Markdown(choices_table("hopper/majors_gemm", sms=132))

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Nothing is transposed: TMA brings lines as they are, and one bit says which way they run. To the code around it the
# major is no more than a layout. Choose a layout for its writer as much as for its reader: the tensor core takes the
# atoms in any order, TMA wants the order that makes its boxes tall.
#
# Next: [8-bit operands](fp8_gemm.ipynb), or tiles that SMs share: [Stream-K](stream_k_schedule.ipynb). What all of
# these kernels are held against: [how fast the tensor cores can go](../foundations/tensor_core_ceiling.ipynb).
