# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: FP8 operands with mma.sync
#     claim: >-
#       mma.sync takes 8-bit floats in the tiles, copies and swizzle of 16-bit ones, counted in bytes. How fast it is
#       depends on the chip: some have an instruction for it, others convert to float16 first.
#     track: ampere
#     order: 60
#     aside: 8 bits and less
#     builds_on: ampere/ldmatrix_gemm
#     targets: [sm_89, sm_90a, sm_100a, sm_120a]
#     runs_on: sm_89+
#     kind: scaled
#     operands: fp8
#     dtypes: [bfloat16, float16]
#     bench_shapes: [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 2048]]
#     path: cp.async -> swizzled shared memory -> ldmatrix -> mma.sync e4m3 -> scale factors -> 16-byte stores
#     instructions:
#       all: [LDGSTS.E.BYPASS, LDSM.16.M88.4, STG.E.128, LDS.128]
#       sm_89: [QMMA.16832.F32.E4M3.E4M3]
#       sm_120a: [QMMA.16832.F32.E4M3.E4M3]
#       sm_90a: [HMMA.16816.F32, F2FP.F16.E4M3.UNPACK_B]
#       sm_100a: [HMMA.16816.F32, F2FP.F16.E4M3.UNPACK_B]
#     sources:
#       - {title: "PTX ISA, ldmatrix", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix"}
#       - {title: "PTX ISA, fragments of mma.m16n8k32", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16832"}
#       - {title: "PTX ISA, mma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#multiply-and-accumulate-instruction-mma"}
# ---

# %% [markdown]
# # FP8 operands with mma.sync
#
# **Claim.** In bytes, the FP8 GEMM of Ada and GeForce Blackwell is [the 16-bit one](ldmatrix_gemm.ipynb): the same
# tiles, copies and swizzle. Whether it is faster, the chip decides.

# %% tags=["lab"]
from cookbook import draw, lab
from cookbook.layouts import evaluate

lab.gain("ampere/fp8_gemm", (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# The instructions (SASS) that the assembler makes of one `mma.sync.m16n8k32` on 8-bit floats, averaged over the machine
# code of this page's kernel. One `F2FP` converts two elements, and a converted fragment serves several `mma`:

# %% tags=["lab"]
from IPython.display import display

from cookbook.lab import compiled

OPCODES = {"QMMA": "QMMA", "HMMA": "HMMA", "F2FP.F16.E4M3": "F2FP, to float16", "FADD": "FADD"}


def instructions(target: str) -> dict[str, float]:
    """The instructions of each kind for one mma.sync."""
    made = compiled.compile_recipe("ampere/fp8_gemm", target, "bfloat16")
    count = {
        name: sum(n for code, n in made.sass_counts.items() if code.startswith(op)) for op, name in OPCODES.items()
    }
    return {name: n / made.ptx.count("mma.sync.aligned.m16n8k32") for name, n in count.items()}


try:
    bars = [
        draw.Bar(f"{chips} ({target})", name, each)
        for chips, target in (
            ("Ada", "sm_89"),
            ("GeForce Blackwell", "sm_120a"),
            ("Hopper", "sm_90a"),
            ("B200", "sm_100a"),
        )
        for name, each in instructions(target).items()
        if each
    ]
    title = "Instructions for one mma.sync of FP8: counted, not measured"
    display(draw.bar_chart(bars, "instructions", title, "QMMA", False, "each is of a whole warp"))
except compiled.NoDisassembler as missing:
    print(missing)

# %% [markdown]
# Ada and GeForce Blackwell have a tensor-core instruction for it, `QMMA`. Hopper and B200 have none outside of `wgmma`
# and `tcgen05`. There the assembler converts each operand to float16, multiplies with two `HMMA`, and adds the result
# to the accumulators. The same source compiles for all of them. On Hopper it halves the bytes of A and B, but the
# tensor cores work as long as with float16.
#
# The calling form is that of [Hopper's FP8 GEMM](../hopper/fp8_gemm.ipynb): `C = (A * scale_a) @ (B * scale_b)`, A and
# B e4m3 or both e5m2, a float32 scale factor for each row of A and each column of B, or one for all.
#
# **What changes, and what does not**, from 16 bits to 8:
#
# | | 16 bits | 8 bits |
# |---|---|---|
# | a k-tile: a row of the swizzle atom, 128 bytes | 64 elements | 128 elements |
# | a `cp.async`, a row of an `ldmatrix` matrix: 16 bytes | 8 elements | 16 elements |
# | a 32-bit register of a fragment | 2 elements | 4 elements |
# | one `mma.sync` along K: 32 bytes | 16 elements | 32 elements |
# | the swizzle in bytes | `S<3,4,3>` | `S<3,4,3>` |
# | the swizzle in elements | `S<3,3,3>` | `S<3,4,3>` |
# | fragments fetched ahead | those of one k-block | [none](#loading-and-the-main-loop) |
#
# [`S<B,M,S>`](../../docs/glossary.md#swizzle) keeps 2^M addresses together, and XORs B bits above them with those that
# are S higher. B = 3, for eight chunks of a row, and S = 3, for the bits of the row above those of the chunk, are the
# same in both units. M counts the address bits *inside* a chunk of 16 bytes: 4 in bytes; in elements 3 if they have 16
# bits, 4 if they have 8.
#
# One thing is lost: `ldmatrix.trans` moves 16-bit elements, so A and B are K-major.
#
# **Two times first**, for 4096 x 4096 x 4096 on an H200: to read A and B and write C once, and to multiply. Hopper
# multiplies in float16 here, at best at the rate of a float16 `mma.sync`: about two thirds of
# [that of `wgmma`](../foundations/tensor_core_ceiling.ipynb).

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import predict, results_table, table

H200, SIDE, RATE = predict.H200, 4096, 2048 * 2 // 3  # bytes a nanosecond, GHz; multiply-adds of an SM in a clock
moved = f"{(2 * SIDE**2 + 2 * SIDE**2) / H200.memory / 1000:,.0f} us"  # A and B of a byte an element, C of two
multiplied = f"{SIDE**3 / RATE / 132 / H200.ghz / 1000:,.0f} us"
Markdown(table([f"memory, at {H200.memory / 1000} TB/s", f"multiply, at {H200.ghz} GHz"], [[moved, multiplied]]))

# %% [markdown]
# So by these two the tensor cores are the limit. [The times](#time) say how far that goes.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync, warp

from cookbook.recipe.entry import DTYPES, MATRICES, Call, compile_host, require
from cookbook.recipe.moved import SmemAllocator
from cookbook.recipe.operands import Argument, FurtherGemm, along, one_for_all
from cookbook.recipes.ampere.first_gemm import Operand, make_operand, row_major
from cookbook.recipes.ampere.ldmatrix_gemm import Config as LdmatrixConfig
from cookbook.recipes.ampere.ldmatrix_gemm import smem_atom
from cookbook.recipes.ampere.smem_gemm import Load, load_first_stages, load_tile, make_load, tile_of_cta
from cookbook.recipes.ampere.staged_epilogue_gemm import SmemLayouts, TiledCopies, rowwise_copy, smem_tensors, store

# %% [markdown]
# ## The sizes
#
# Those of [ldmatrix_gemm](ldmatrix_gemm.ipynb), in bytes: a k-tile has twice as many elements, and so has a k-block.
# Behind the tiles, shared memory has room for the scale factors of a tile of C.


# %%
@dataclass(frozen=True)
class Config(LdmatrixConfig):
    """Sizes of the kernel, in elements or counts."""

    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four mma steps of 32

    @property
    def k_blocks(self) -> int:
        """Steps of an `mma.sync` along K in a k-tile."""
        return self.tile_k // 32

    @property
    def tile_bytes(self) -> int:
        ab = self.stages * (self.tile_m + self.tile_n) * self.tile_k
        return max(ab, 2 * self.tile_m * self.tile_n)  # C is staged where A and B were

    @property
    def smem_bytes(self) -> int:
        return self.tile_bytes + 4 * (self.tile_m + self.tile_n)  # and the scale factors of the tile


CONFIG = Config()  # 193.5 KiB of shared memory: data-centre Hopper and Blackwell
CONFIG_99K = Config(tile_n=128, stages=3)  # Ada, GeForce


def config_for(arch: str) -> Config:
    """The configuration that fits the shared memory of an architecture such as "sm_89"; "" means CONFIG."""
    return CONFIG_99K if arch.rstrip("af") in ("sm_89", "sm_120", "sm_121") else CONFIG


# %% [markdown]
# ## The layouts and the copies
#
# One phase of `ldmatrix` reads 16 bytes of each of eight rows. Rows are 128 bytes, all 32 banks, so without a swizzle
# these eight chunks lie in the same four banks: 8 wavefronts instead of 1. The swizzle moves chunk *c* of row *r* to
# slot *c XOR r*. It never looks inside a chunk, so it does not ask how many elements are there.
#
# `ldmatrix` does not ask, either: it hands out 32-bit words. Lane *l* gets word *l mod 4* of row *l / 4*: two elements
# of 16 bits, or four of 8. `mma.m16n8k32` wants just that: its A fragment is four such words, rows 0 to 7 and 8 to 15
# of bytes 0 to 15 and 16 to 31, as that of `m16n8k16` is. So the copy atom stays the one called `8x8x16b`.


# %%
E4M3, E5M2 = cutlass.Float8E4M3FN, cutlass.Float8E5M2
# For the checks alone, the kernel does not read them: what they multiply, and how many elements share a factor (0: all)
ELEMENT, SCALE, BLOCK = E4M3, cutlass.Float32, 0


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over stages. dtype: of C."""
    c = config
    ab = smem_atom(E4M3, c.tile_k)  # e5m2 is as wide
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(smem_atom(dtype, c.tile_n), (c.tile_m, c.tile_n), order=(0, 1)),
    )


def tiled_mma(dtype, config: Config, element=E4M3) -> cute.TiledMma:
    """mma.sync m16n8k32, repeated over the warps; 16 columns a warp and step. element: of A and B."""
    op = warp.MmaFP8Op(element, cutlass.Float32, (16, 8, 32))
    warps = cute.make_layout((config.warps_m, config.warps_n, 1))
    return cute.make_tiled_mma(op, warps, permutation_mnk=(16 * config.warps_m, 16 * config.warps_n, 32))


def tiled_copies(dtype, config: Config, vec: int = 8, element=E4M3) -> TiledCopies:
    """All copies; `vec` elements (8, 4, 2 or 1) of C go to global memory at a time."""
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    cp_async = cute.make_copy_atom(past_l1, element, num_bits_per_copy=128)
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), element)
    pair = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=32)
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=vec * dtype.width)
    mma = tiled_mma(dtype, config, element)
    return TiledCopies(
        g2s_a=rowwise_copy(cp_async, config.threads, config.tile_k, 16),
        g2s_b=rowwise_copy(cp_async, config.threads, config.tile_k, 16),
        s2r_a=cute.make_tiled_copy_A(ldmatrix, mma),
        s2r_b=cute.make_tiled_copy_B(ldmatrix, mma),
        r2s_c=cute.make_tiled_copy_C(pair, mma),
        s2g_c=rowwise_copy(wide, config.threads, 64, vec),  # 64 columns: a 128-byte line of shared memory
    )


# %% [markdown] tags=["lab"]
# Eight rows of A, each a 128-byte line of shared memory. A cell is a 16-byte slot, and the number is the chunk of the
# row that lies there, here 16 elements. Chunks of one colour are one *column* of the tile:

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layouts, cutlass.BFloat16, CONFIG, element_bits=8).a)

# %% [markdown]
# ## Loading and the main loop
#
# Loading is imported: [as in 16 bits](smem_gemm.ipynb), no thread reads rows outside the matrix, and the k-tiles *end*
# where K ends. Only the first can begin before the matrix; it is filled up with zeros. A chunk of 16 bytes is 16
# elements, so K is a multiple of 16.
#
# **One thing is different: no fragment is fetched ahead, and the loop over k-blocks is not unrolled.** Hopper and B200
# are the reason. There one `mma` becomes two `HMMA` that begin at zero, and their results and the converted fragments
# need registers of their own. If the four k-blocks are unrolled, the assembler starts many of them early and spills.
# One k-block at a time fits. Each scheduler of an SM has two warps: one multiplies while the other waits for
# `ldmatrix`. Chips with `QMMA` do not need this. Whether fetching ahead is faster there is not measured.


# %%
@cute.jit
def fetch_block(x: Operand, stage: cutlass.Int32, k: cutlass.Int32):
    """The fragments of k-block `k`, into the only buffer."""
    cute.copy(x.copy, x.smem[None, None, k, stage], x.into[None, None, 0])


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
    """Multiply all k-tiles into `acc`; the loads of the first `stages - 1` are issued."""
    stages, k_blocks = config.stages, config.k_blocks
    read, write = cutlass.Int32(stages - 1), cutlass.Int32(stages - 1)  # `read` is advanced before it is first used
    still_loading = cutlass.max(k_tiles - (stages - 1), 0)
    for first, last, loading in ((0, still_loading, True), (still_loading, k_tiles, False)):
        for k_tile in cutlass.range(first, last, unroll=1):
            read = read + 1 if read + 1 < stages else cutlass.Int32(0)
            cute.arch.cp_async_wait_group(stages - 2)  # this k-tile has arrived,
            cute.arch.sync_threads()  # everybody's part of it, and the oldest stage is free
            if cutlass.const_expr(loading):
                load_tile(load_a, k_tile + stages - 1, write)
                load_tile(load_b, k_tile + stages - 1, write)
                write = write + 1 if write + 1 < stages else cutlass.Int32(0)
            cute.arch.cp_async_commit_group()  # an empty group too counts as one
            for k in cutlass.range(k_blocks, unroll=1):  # one k-block at a time: more would need too many registers
                fetch_block(a, read, k)
                fetch_block(b, read, k)
                cute.gemm(mma, acc, a.regs[None, None, 0], b.regs[None, None, 0], acc)


# %% [markdown]
# ## Scale factors and epilogue
#
# A scale factor does not depend on k, so it can be taken out of the sum: each accumulator is multiplied by two factors
# when it is complete. The factors of a tile are loaded after the loads of the first k-tiles are issued, and wait in
# shared memory.
#
# The warps are interleaved over the tile: a warp has 16 of every 16 x `warps_m` rows, and 8 of every 8 x `warps_n`
# columns. In each such block a thread has two rows, 8 apart, and two adjacent columns. It fetches their factors,
# multiplies, and rounds to 16 bits once.
#
# Then C goes through a swizzled tile where A and B were, and out in rows, [as in 16 bits](smem_gemm.ipynb): 16 bytes a
# store where N, the row stride and the address permit, down to one element for an odd N.


# %%
@cute.jit
def load_scales(scale: cute.Tensor, sS: cute.Tensor, first: cutlass.Int32, config: cutlass.Constexpr):
    """The scale factors of a tile's rows, or of its columns, from number `first` on. scale: (M) or (N); sS: (TILE)."""
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range_constexpr(-(-cute.size(sS) // config.threads)):
        at = i * config.threads + tidx
        if at < cute.size(sS):
            sS[at] = scale[cutlass.min(first + at, cute.size(scale) - 1)]  # beyond C nothing is stored


@cute.jit
def scaled(acc: cute.Tensor, sM: cute.Tensor, sN: cute.Tensor, config: cutlass.Constexpr):
    """A thread's accumulators, each times the factors of its row and of its column. sM: (TILE_M), sN: (TILE_N)."""
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx, lane = tidx // 32, tidx % 32
    _, rows, columns = acc.shape  # (MMA, MMA_M, MMA_N); MMA is two columns of two rows, 8 apart
    row = warp_idx % config.warps_m * 16 + lane // 4
    column = warp_idx // config.warps_m * 8 + lane % 4 * 2
    rM = cute.make_rmem_tensor((2, rows), cutlass.Float32)
    rN = cute.make_rmem_tensor((2, columns), cutlass.Float32)
    for i in cutlass.range_constexpr(2):
        for m in cutlass.range_constexpr(rows):
            rM[i, m] = sM[row + 8 * i + 16 * config.warps_m * m]
        for n in cutlass.range_constexpr(columns):
            rN[i, n] = sN[column + i + 8 * config.warps_n * n]
    # Stride 0 repeats a factor: one of a row for all its columns, one of a column for all its rows.
    of_rows = cute.make_tensor(rM.iterator, cute.make_layout(acc.shape, stride=((0, 1), 2, 0)))
    of_columns = cute.make_tensor(rN.iterator, cute.make_layout(acc.shape, stride=((1, 0), 0, 2)))
    return acc.load() * of_rows.load() * of_columns.load()


def scale_tensors(pointer: cute.Pointer, config: Config) -> tuple[cute.Tensor, cute.Tensor]:
    """Room in shared memory for the factors of a tile: (TILE_M) of the rows of A, (TILE_N) of the columns of B."""
    factors = cute.recast_ptr(pointer, dtype=cutlass.Float32)
    sM = cute.make_tensor(factors, cute.make_layout(config.tile_m))
    return sM, cute.make_tensor(factors + config.tile_m, cute.make_layout(config.tile_n))


# %% [markdown]
# ## The kernel
#
# As [in 16 bits](ldmatrix_gemm.ipynb), with scale factors and with registers for one k-block of fragments.


# %%
class Operands(NamedTuple):
    """The arguments of a kernel."""

    mA: cute.Tensor  # (M, K)
    mB: cute.Tensor  # (N, K)
    mC: cute.Tensor  # (M, N)
    scale_a: cute.Tensor  # (M): stride 0 for one factor of all
    scale_b: cute.Tensor  # (N)


@cute.kernel
def kernel(op: Operands, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """One CTA computes one tile of C."""
    mA, mB, mC, scale_a, scale_b = op
    element, dtype = mA.element_type, mC.element_type
    tidx, _, _ = cute.arch.thread_idx()
    tile = tile_of_cta(mC.shape, config)
    copies, mma = tiled_copies(dtype, config, vec, element), tiled_mma(dtype, config, element)
    smem = SmemAllocator().allocate(config.smem_bytes, 1024)
    sA, sB, sC = smem_tensors(smem, smem_layouts(dtype, config), element, dtype)
    sM, sN = scale_tensors(smem + config.tile_bytes, config)

    load_a = make_load(copies.g2s_a, mA, sA, (config.tile_m, config.tile_k), tile[0], tidx, 16)
    load_b = make_load(copies.g2s_b, mB, sB, (config.tile_n, config.tile_k), tile[1], tidx, 16)
    k_tiles = cute.size(load_a.src, mode=[3])
    load_first_stages(load_a, load_b, k_tiles, config)
    # They arrive while the first k-tiles do. The first barrier of the main loop shows them to all threads.
    load_scales(scale_a, sM, tile[0] * config.tile_m, config)
    load_scales(scale_b, sN, tile[1] * config.tile_n, config)

    shape = (config.tile_m, config.tile_n)
    gC, cC = (cute.local_tile(x, shape, tile) for x in (mC, cute.make_identity_tensor(mC.shape)))  # (M, N)
    acc = cute.make_rmem_tensor(mma.partition_shape_C(shape), cutlass.Float32)  # (MMA, MMA_M, MMA_N)
    acc.fill(0.0)
    tCrA = cute.make_rmem_tensor(mma.partition_shape_A((config.tile_m, 32)), element)  # (MMA, MMA_M, 1): one k-block
    tCrB = cute.make_rmem_tensor(mma.partition_shape_B((config.tile_n, 32)), element)  # (MMA, MMA_N, 1)
    a, b = make_operand(copies.s2r_a, sA, tCrA, tidx), make_operand(copies.s2r_b, sB, tCrB, tidx)
    mainloop(mma, acc, a, b, load_a, load_b, k_tiles, config)
    rC = cute.make_fragment_like(acc, dtype)
    rC.store(scaled(acc, sM, sN, config).to(dtype))
    store(rC, sC, gC, cC, mC.shape, copies, tidx)


# %% [markdown]
# ## The launch and `matmul`
#
# A launch has two addresses and two strides more than [in 16 bits](ldmatrix_gemm.ipynb): those of the scale factors.


# %%
class Launch(NamedTuple):
    """The numbers of a launch."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    stride_sa: cutlass.Int32  # from one scale factor to the next
    stride_sb: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    pSA: cute.Pointer,
    pSB: cute.Pointer,
    launch: Launch,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """C (M, N) = scale_a (M, 1) * A (M, K) times B (N, K) transposed * scale_b (1, N)."""
    (m, n, k), (lda, ldb, ldc), stride_sa, stride_sb = launch
    vec = 8 * pC.alignment // pC.dtype.width  # elements of C that one store takes
    mA, mB, mC = row_major(pA, m, k, lda, 16), row_major(pB, n, k, ldb, 16), row_major(pC, m, n, ldc, vec)
    sa = cute.make_tensor(pSA, cute.make_layout((m,), stride=(cutlass.Int64(stride_sa),)))
    sb = cute.make_tensor(pSB, cute.make_layout((n,), stride=(cutlass.Int64(stride_sb),)))
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    grid, block = (tiles, 1, 1), (config.threads, 1, 1)
    # Only one CTA has room on an SM: the compiler need not save registers for others.
    kernel(Operands(mA, mB, mC, sa, sb), config, vec).launch(grid=grid, block=block, stream=stream, min_blocks_per_mp=1)


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, element=E4M3, options: str = ""):
    """Compile for `arch` ("sm_89"), which needs no GPU; "": for the GPU that is here. element: of A and B."""
    scale = cutlass.Float32, 4
    pointers = (element, 16), (element, 16), (dtype, vec * dtype.width // 8), scale, scale
    return compile_host(gemm, arch, pointers, (config or config_for(arch),), options=options)


# %% [markdown]
# `FurtherGemm`, a `Gemm` of further operands, checks a call, compiles for it and keeps what it compiled. `SCALES` are
# the operands behind a and b: name, shape, dtype, and what must hold of where their elements lie. `takes` says which
# dtypes A and B may have, and which C gets. `whole`: rows of A and B are whole 16-byte chunks, because `cp.async` reads
# nothing less here.


# %%
ELEMENTS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}


def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    (a, b), (stride_sa,), (stride_sb,) = call.operands, call.known["scale_a"], call.known["scale_b"]
    require(a == b, "b", b, f"{a}, the dtype of a", TypeError)
    return (config_for(call.arch), call.vec, ELEMENTS[a]), (Launch(call.mnk, call.strides, stride_sa, stride_sb),)


SCALES = (  # one for each row of A, each column of B; or one for all of them
    Argument("scale_a", "M 1", (torch.float32,), along(0), one_for_all),
    Argument("scale_b", "1 N", (torch.float32,), along(1), one_for_all),
)


def gemm_into(dtype: torch.dtype) -> FurtherGemm:
    """The host side for C of one dtype."""
    takes = dict.fromkeys(ELEMENTS, dtype)
    table = {"takes": takes, "operands": MATRICES + SCALES}
    return FurtherGemm(compile_for, prepare, ((8, 9), ...), "mma.sync of FP8", whole=True, **table)


GEMMS = {dtype: gemm_into(dtype) for dtype in DTYPES}
GEMM = GEMMS[torch.bfloat16]


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """`(a * scale_a) @ (b * scale_b)` on the tensor cores, on the current stream of `a`'s device.

    a: (M, K), float8_e4m3fn or float8_e5m2, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    scale_a, scale_b: float32 on the same device: (M, 1) and (1, N) of any stride, or one element for all.
    out: (M, N), bfloat16 or float16, stride 1 along N, any row stride >= N, no memory of the others. Made of
        `out_dtype` if not given.

    cp.async moves 16 bytes at a time: K is a multiple of 16, and the addresses of a and b and their row strides are
    multiples of 16 bytes. Any M, N, K >= 1 within that. Needs compute capability 8.9 or later. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    name, dtype = ("out_dtype", out_dtype) if out is None else ("out", getattr(out, "dtype", type(out).__name__))
    require(dtype in tuple(GEMMS), name, dtype, " or ".join(map(str, GEMMS)), TypeError)
    return GEMMS[dtype].matmul(a, b, scale_a, scale_b, out=out)


# %% [markdown] tags=["lab"]
# ## How exact is the sum?
#
# float16 holds every e4m3 and e5m2 number exactly, so converting the operands loses nothing. A product of two has at
# most 8 significant bits, so float32 holds it exactly. On Hopper the two `HMMA` of one `mma.sync` begin at zero, and
# `FADD` adds their sum of 32 products to the accumulators in float32. [Hopper's own FP8 GEMM](../hopper/fp8_gemm.ipynb)
# calls that promotion.
#
# `torch._scaled_mm` with `use_fast_accum` leaves the sum to `wgmma`, which keeps 13 bits of a
# fraction. So the error should be smaller here. This is read from the machine code; what `QMMA` keeps is not known.
#
# ## Check

# %% tags=["lab"]
lab.check_cells("ampere/fp8_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"], targets=["sm_90a"])

# %% [markdown] tags=["lab"]
# ## Time
#
# All peers in one run.

# %% tags=["lab", "open"]
lab.compare("ampere/fp8_gemm", matmul, (4096, 4096, 4096))

# %% tags=["lab"]
Markdown(results_table("ampere/fp8_gemm"))

# %% [markdown] tags=["lab"]
# On an H200 the 4096 cube takes about twice the time that its multiplications need, so the tensor cores are not the
# limit there. The conversions and additions of the first figure stand among the `HMMA`, and no fragment is fetched
# ahead. Which of these costs what has not been measured.
#
# `torch._scaled_mm` uses `wgmma`, at twice the rate of 16-bit operands and with no conversion. On such a chip, use
# [Hopper's](../hopper/fp8_gemm.ipynb). This kernel is made for chips with `QMMA`, and has run on none of them.
#
# ## Conclusion
#
# In bytes, the layouts and copies do not change: rows of 128 bytes, chunks of 16, the swizzle, `cp.async`, `ldmatrix`.
# In elements, everything along K doubles. Read the machine code before you expect the rate of FP8: the same PTX is one
# instruction on one chip, and on another two multiplications, conversions and additions.
#
# This is the last page of the track. Next: [tiles by TMA](../hopper/tma_copy.ipynb), the first page of Hopper's, where
# no thread computes an address any more.
