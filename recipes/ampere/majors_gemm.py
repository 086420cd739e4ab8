# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Operand majors with ldmatrix.trans
#     claim: >-
#       An operand that is stored along M or N instead of K needs no transpose: ldmatrix.trans makes the same fragments
#       from the mirrored tile.
#     track: ampere
#     order: 40
#     aside: Layouts and majors
#     builds_on: ampere/ldmatrix_gemm
#     targets: [sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_80+
#     serves: {sm_80: 1024, sm_86: 512, sm_90: 1180, sm_120: 475}
#     dtypes: [float16, bfloat16]
#     majors: [tn, nt, nn, tt]
#     path: cp.async -> swizzled shared memory -> ldmatrix or ldmatrix.trans -> mma.sync -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, HMMA.16816.F32, STG.E.128, LDS.128]
#       tn: [LDSM.16.M88.4]
#       nt: [LDSM.16.MT88.4]
#       nn: [LDSM.16.M88.4, LDSM.16.MT88.4]
#       tt: [LDSM.16.M88.4, LDSM.16.MT88.4]
#     sources:
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "PTX ISA, fragments of mma.m16n8k16", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"}
#       - {title: "CuTe, MMA atoms", url: "https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0t_mma_atom.html"}
# ---

# %% [markdown]
# # Operand majors with ldmatrix.trans
#
# **Claim.** An operand that lies along M or N instead of K needs no transpose of its own: `ldmatrix.trans` makes the
# same fragments out of a tile whose lines run the other way.

# %% tags=["lab"]
from cookbook import access, banks, draw, lab
from cookbook.layouts import evaluate

lab.gain("ampere/majors_gemm", (8192, 8192, 8192), majors="nn")

# %% [markdown] tags=["lab"]
# How it works, in two pictures. One 8x8 matrix is stored along M: a row of the left half is 16 bytes of shared memory.
# Without `.trans` each lane gets two neighbours along M; with it, two neighbours along K, which is what `mma.sync`
# wants. Compare lane 0.

# %% tags=["lab"]
draw.ldmatrix_view(mn_major=True)

# %% tags=["lab"]
draw.ldmatrix_view(mn_major=True, trans=True)

# %% [markdown]
# [ldmatrix_gemm](ldmatrix_gemm.ipynb) takes A and B *K-major*: the elements that are multiplied and summed lie next to
# each other, as in `x @ weight.T`. The other two products of a layer in a training step are not like that. The gradient
# of the weight is `dy.T @ x`: A lies along M and B along N. The gradient of the input is `dy @ weight`: B lies along N.
#
# BLAS and CuTe name the four cases by two letters, the first for A, the second for B. A letter asks whether a matrix,
# stored by columns, must be *transposed* or *not*:
#
# | letters | A (M, K) lies along | B (K, N) lies along | for example       |
# |---------|---------------------|---------------------|-------------------|
# | `tn`    | K: row-major        | K: column-major     | `x @ weight.T`    |
# | `tt`    | K: row-major        | N: row-major        | `dy @ weight`     |
# | `nn`    | M: column-major     | K: column-major     | `x.T @ weight.T`  |
# | `nt`    | M: column-major     | N: row-major        | `dy.T @ x`        |
#
# Three things change with the letter of an operand: which way its lines run in shared memory, which way `cp.async` goes
# through them, and one bit of `ldmatrix`. The main loop, the MMA and the epilogue stay as they were.

# %%
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import Call, Gemm, compile_host, either_major
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipes.ampere.first_gemm import row_major, tiled_mma
from cookbook.recipes.ampere.ldmatrix_gemm import Config as LdmatrixConfig
from cookbook.recipes.ampere.ldmatrix_gemm import mainloop, smem_atom
from cookbook.recipes.ampere.smem_gemm import load_first_stages, make_load, tile_of_cta
from cookbook.recipes.ampere.staged_epilogue_gemm import (
    SmemLayouts,
    TiledCopies,
    rounded,
    rowwise_copy,
    smem_tensors,
    store,
)
from cookbook.recipes.ampere.swizzled_gemm import make_operands

# %% [markdown]
# ## The majors
#
# The sizes are those of [ldmatrix_gemm](ldmatrix_gemm.ipynb). The majors are two more fields: the compiler makes one
# kernel for each pair that is used.


# %%
@dataclass(frozen=True)
class Config(LdmatrixConfig):
    """Sizes of the kernel, in elements or counts, and how its operands lie."""

    a_major: str = "k"  # "k" or "m": the index along which A is contiguous
    b_major: str = "k"  # "k" or "n": the index along which B is contiguous

    def __post_init__(self):
        if self.a_major not in ("k", "m"):
            raise ValueError(f"a_major: got {self.a_major!r}; needed 'k' or 'm'")
        if self.b_major not in ("k", "n"):
            raise ValueError(f"b_major: got {self.b_major!r}; needed 'k' or 'n'")


CONFIG = Config()  # 192 KiB of shared memory: data-centre Hopper and Blackwell
CONFIG_163K = Config(stages=3)  # A100
CONFIG_99K = Config(tile_n=128, stages=3)  # GeForce, Ada


def config_for(arch: str) -> Config:
    """The configuration that fits the shared memory of an architecture such as "sm_89"; "" means CONFIG."""
    chip = arch.rstrip("af")
    if chip in ("sm_86", "sm_89", "sm_120", "sm_121"):
        return CONFIG_99K
    return CONFIG_163K if chip in ("sm_80", "sm_87") else CONFIG


# %% [markdown]
# ## The layout
#
# The threads read global memory 16 bytes at a time: eight elements along the index that the operand is contiguous in.
# Nothing on the way can split such a chunk. `cp.async` drops it whole into shared memory, the swizzle moves it whole,
# `ldmatrix` picks it up whole.
#
# So an M-major tile *stays* M-major in shared memory. Its atom is the K-major one mirrored: not 8 rows of 64 elements
# along K, but **64 x 8, eight lines of 64 elements along M**, one line for each k.
#
# Why that shape? A line of 64 elements is 128 bytes, all 32 banks. Eight lines, because `ldmatrix` reads 16 bytes of
# each of eight lines in one phase, and the swizzle has eight slots to put them in. It is the same `S<3,4,3>`: chunk *c*
# of line *l* goes to slot *c XOR l*. It sees addresses, and never learns which way the matrix runs.
#
# The rule that chooses the width is the same as well: the widest line that divides the tile's *contiguous* extent.
# For a K-major operand that is `tile_k`, for an M-major one `tile_m`. So the atom is `smem_atom` of
# [ldmatrix_gemm](ldmatrix_gemm.ipynb), as it is or mirrored.


# %%
def mirrored_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The atom of lines along M or N: (64, 8):(1, 64) for (8, 64):(64, 1), and the same swizzle."""
    width = smem_atom(dtype, contiguous).outer.shape[1]
    bits = (width * dtype.width // 128).bit_length() - 1  # of 1, 2, 4 or 8 chunks in a line
    lines = cute.make_layout((width, 8), stride=(1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, lines)


def staged_operand(dtype, rows: int, major: str, config: Config) -> cute.ComposedLayout:
    """All stages of a tile of `rows` x tile_k, in lines along `major`."""
    atom = smem_atom(dtype, config.tile_k) if major == "k" else mirrored_atom(dtype, rows)
    return cute.tile_to_shape(atom, (rows, config.tile_k, config.stages), order=(0, 1, 2))


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first along M or N, then along K, then over the stages."""
    c = (config.tile_m, config.tile_n)
    return SmemLayouts(
        a=staged_operand(dtype, config.tile_m, config.a_major, config),
        b=staged_operand(dtype, config.tile_n, config.b_major, config),
        c=cute.tile_to_shape(smem_atom(dtype, config.tile_n), c, order=(0, 1)),
    )


# %% [markdown]
# ## What .trans does
#
# `mma.sync.m16n8k16` wants its operands in registers in one way only. In each 8x8 matrix of A, lane *l* holds two
# neighbours **along K**: elements 2(*l* mod 4) and 2(*l* mod 4) + 1 of row *l* / 4, as one 32-bit register.
#
# `ldmatrix` gives lane *l* two neighbours of *line* *l* / 4 of the matrix that it reads. Lines along K are what the MMA
# wants. Lines along M are not: lane 0 would get M0K0 and M1K0, and no later instruction could pair M0K0 with M0K1
# but by a shuffle for every register.
#
# With `.trans` the 8x8 matrix is transposed between shared memory and the registers: lane *l* gets elements 2(*l* mod
# 4) and 2(*l* mod 4) + 1 of *column* *l* / 4, one out of each of two lines.
#
# Column 0 of the lines along M is row M0, so lane 0 gets M0K0 and M0K1. **The same elements are in the same lanes**,
# and what follows need not know. The lanes supply the addresses of the lines, 16 bytes each, so the number of
# wavefronts does not change either.
#
# This form transposes matrices of 16-bit elements, and those alone: with 8-bit or 32-bit elements an MN-major operand
# has to be transposed in some other way. (Blackwell has one for 8 bits.)
#
# CuTe knows all this. `transpose=True` makes the atom, and `make_tiled_copy_A` finds out which line each lane must
# point at so that the fragments come out as the MMA wants them.


# %%
def columnwise_copy(atom: cute.CopyAtom, threads: int, column: int, vec: int) -> cute.TiledCopy:
    """Consecutive threads along a column of `column` elements, `vec` elements each: `rowwise_copy`, mirrored."""
    per_column = min(column // vec, threads)
    layout = cute.make_layout((per_column, threads // per_column), stride=(1, per_column))
    return cute.make_tiled_copy_tv(atom, layout, cute.make_layout((vec, 1)))


def tiled_copies(dtype, config: Config, vec: int = 8) -> TiledCopies:
    """All copies; `vec` elements (8, 4, 2 or 1) of C go to global memory at a time."""
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    cp_async = cute.make_copy_atom(past_l1, dtype, num_bits_per_copy=128)
    pair = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=32)
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    mma = tiled_mma(dtype, config)  # it does not depend on the majors

    def g2s(rows: int, major: str) -> cute.TiledCopy:
        if major == "k":
            return rowwise_copy(cp_async, config.threads, config.tile_k, 8)
        return columnwise_copy(cp_async, config.threads, rows, 8)

    def ldmatrix(major: str) -> cute.CopyAtom:
        return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=major != "k", num_matrices=4), dtype)

    return TiledCopies(
        g2s_a=g2s(config.tile_m, config.a_major),
        g2s_b=g2s(config.tile_n, config.b_major),
        s2r_a=cute.make_tiled_copy_A(ldmatrix(config.a_major), mma),
        s2r_b=cute.make_tiled_copy_B(ldmatrix(config.b_major), mma),
        r2s_c=cute.make_tiled_copy_C(pair, mma),
        s2g_c=rowwise_copy(wide, config.threads, config.tile_n, vec),
    )


# %% [markdown] tags=["lab"]
# Our own A for `nt`, as CuTe evaluates it. A row of the picture is one 128-byte line of shared memory: 64 elements
# along M, of one k. The chunks are numbered along M; the swizzle is the one that a K-major tile has.

# %% tags=["lab"]
NT = replace(CONFIG, a_major="m", b_major="n")
layouts, copies = evaluate(smem_layouts, cutlass.Float16, NT), evaluate(tiled_copies, cutlass.Float16, NT)
draw.swizzle_view(layouts.a)

# %% [markdown] tags=["lab"]
# One `ldmatrix.x4.trans` of warp 0: each lane gives the address of 16 bytes along M. The eight lines of a phase are
# eight k, and their chunks lie in eight different slots.

# %% tags=["lab"]
draw.access_view(access.of_copy(layouts.a, copies.s2r_a, "src", "ldmatrix")[0], title="ldmatrix.x4.trans, M-major A")

# %% [markdown]
# ## Loading, and the kernel
#
# The edges are those of [ldmatrix_gemm](ldmatrix_gemm.ipynb): no thread reads rows beyond M or N. The k-tiles *end*
# where K ends; the one that begins before the matrix gets zeros, chunk by chunk.
#
# The major decides **which extent must be a multiple of eight**: a chunk of 16 bytes must lie inside the matrix or
# outside of it. K-major, a chunk is eight k of one row: K must be a multiple of 8, and the rows may end anywhere.
# M-major, a chunk is eight rows of one k: M must be a multiple of 8, and K may be anything. Lines begin at multiples of
# 16 bytes either way. `k_multiple` is all that the kernel says of it.
#
# Everything else is imported. The row of a thread's chunk depends on its place in the mode `CPY_M` alone, and its k on
# `CPY_K` alone: the first decides whether it is inside M, the second whether it is inside K. The fragments have the
# same shapes, and a load is one `cute.copy` whatever its shape. So no line of the main loop asks for the majors, and C
# is written by rows whatever A and B were.


# %%
def k_multiple(major: str) -> int:
    """The number of elements that K is a multiple of."""
    return 8 if major == "k" else 1


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

    of_a, of_b = k_multiple(config.a_major), k_multiple(config.b_major)
    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile[0], tidx, of_a)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile[1], tidx, of_b)
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
# ## The launch
#
# Sizes and strides are run-time values: one compiled kernel serves all shapes of its majors. An operand has one stride
# that is 1 and one that is not; the majors say which is which, and the kernel sees (rows, K) either way.


# %%
def operand(pointer: cute.Pointer, rows, k, stride, major: str) -> cute.Tensor:
    """A matrix (rows, K) whose lines, along K or along the rows, are `stride` elements apart."""
    if major == "k":
        return row_major(pointer, rows, k, stride, 8)
    return cute.make_tensor(pointer, cute.make_layout((rows, k), stride=(1, cute.assume(stride, divby=8))))


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
    """C (M, N) = A (M, K) times B (N, K) transposed; `strides` are elements between the lines of A, B, C."""
    (m, n, k), (lda, ldb, ldc) = mnk, strides
    mA, mB = operand(pA, m, k, lda, config.a_major), operand(pB, n, k, ldb, config.b_major)
    mC = row_major(pC, m, n, ldc, vec)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(mA, mB, mC, pA.dtype, config, vec).launch(grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream)


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_80"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls
#
# There is no argument for the majors: the strides of a and b say them.


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    a_major, b_major = call.majors
    config = replace(config_for(call.arch), a_major=a_major, b_major=b_major)
    return (config, call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((8, 0), ...), needs="cp.async", major_of=either_major, whole=True)


# %%
def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K) or M-major (stride 1 along M, such as `x.T`).
    b: (K, N), the same dtype, K-major (stride 1 along K, such as `weight.T`) or N-major (stride 1 along N).
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.

    The strides say the majors; an operand that can be read both ways counts as K-major. cp.async moves 16 bytes at a
    time: of an operand the extent along which it is contiguous is a multiple of 8 (K, or M of a and N of b), and its
    address and its other stride are multiples of 16 bytes. Every other extent may be anything from 1 on.
    Needs a GPU of compute capability 8.0 or later. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out)


# %% [markdown] tags=["lab"]
# ## The prediction
#
# Wavefronts of every copy that touches shared memory, for all four majors: of one instruction, and the ideal.

# %% tags=["lab"]
SIDES = {"g2s": ("dst", "cp_async"), "s2r": ("src", "ldmatrix"), "r2s": ("dst", "ldst"), "s2g": ("src", "ldst")}


def wavefronts(config: Config) -> dict[str, set[tuple[int, int]]]:
    """(actual, ideal) of all instructions of each copy, over all warps."""
    layouts, copies = evaluate(smem_layouts, cutlass.Float16, config), evaluate(tiled_copies, cutlass.Float16, config)
    found = {}
    for name, copy in copies._asdict().items():
        layout, (side, kind) = getattr(layouts, name[-1]), SIDES[name[:3]]
        asked = [one for warp in range(copy.threads // 32) for one in access.of_copy(layout, copy, side, kind, warp)]
        answers = [banks.wavefronts(one.addresses, one.width) for one in asked]
        found[name] = {(answer.actual, answer.ideal) for answer in answers}
    return found


MAJORS = {"tn": ("k", "k"), "tt": ("k", "n"), "nn": ("m", "k"), "nt": ("m", "n")}
print("    " + "  ".join(f"{name:9}" for name in copies._fields))
for letters, (a_major, b_major) in MAJORS.items():
    found = wavefronts(replace(CONFIG, a_major=a_major, b_major=b_major))
    print(letters, "  ".join(f"{sorted(found[name])!s:9}" for name in copies._fields))

# %% [markdown] tags=["lab"]
# So we predict *no difference*: for all four majors there are as many instructions, of as many wavefronts, and as many
# bytes from global memory. One thing may differ that this does not count: a line of an MN-major tile is a part of
# another row of memory, and L2 and DRAM may prefer one order of them.
#
# ## Check
#
# All levels for each of the majors. *Model* sends numbers through modelled `cp.async`, swizzled shared memory,
# `ldmatrix` with and without `.trans`, and `mma.sync`. *Compiled* demands `LDSM` with `MT88` for an MN-major operand,
# and with `M88` for a K-major one.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("ampere/majors_gemm", shapes=[(200, 328, 64)], dtypes=["float16"], targets=["sm_80", "sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("ampere/majors_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# Ours and its peers, interleaved in one run on one GPU, all of them on operands of the same majors. The prediction is
# that the rows of one size are alike. The second table compares them: each layout against its own `tn`.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import beside_tn, results_table

Markdown(results_table("ampere/majors_gemm"))

# %% tags=["lab"]
Markdown(beside_tn("ampere/majors_gemm"))

# %% [markdown] tags=["lab"]
# Where one operand is MN-major the prediction holds to within the spread of two runs of one kernel. Where both are, the
# kernel is a little slower, and no wavefront says why: `ldmatrix` takes as many as for `tn`, and no copy takes more
# than predicted. The cause must be something that the prediction does not count, such as the order in which the kernel
# asks for rows of memory. It is not known.

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An operand keeps its major from global memory to shared memory. `ldmatrix`, which has to touch every 8x8 matrix
# anyway, transposes it at the last moment. There are as many copies and wavefronts as before, and the swizzle is the
# same. The major only decides *which extent* must come in whole 16-byte chunks.
#
# Hopper's `wgmma` reads shared memory itself, so there is no `ldmatrix` to transpose anything. There [one bit of the
# instruction](../hopper/majors_gemm.ipynb) for each operand says that its lines run along M or N.
#
# Next: [persistent CTAs](persistent_gemm.ipynb). It is K-major again, and hides what the pipeline could not: the
# beginning and the end of each tile.
