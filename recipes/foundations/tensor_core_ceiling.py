# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Tensor-core throughput ceilings
#     claim: >-
#       A loop of matrix instructions on normal numbers measures the tensor cores' real rate, which a GEMM should be
#       compared with instead of the data sheet's.
#     kind: study
#     measures: ceiling
#     ceiling_of: {wgmma: Wgmma, mma.sync: MmaSync}
#     track: foundations
#     order: 100
#     aside: What a GPU can do
#     targets: [sm_80, sm_90a]
#     runs_on: sm_80+
#     path: registers or swizzled shared memory -> mma.sync or wgmma -> registers
#     instructions:
#       all: [HMMA.16816.F32, HMMA.16816.F32.BF16, HMMA.16816.F16, HMMA.1688.F32]
#       sm_90a: [HGMMA.64x64x16.F32.BF16, HGMMA.64x128x16.F32.BF16, HGMMA.64x256x16.F32.BF16, HGMMA.64x256x16.F32,
#         QGMMA.64x256x32.F32.E4M3.E4M3]
#     sources:
#       - title: "PTX ISA, warp level matrix multiply-accumulate: mma"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma"
#       - title: "PTX ISA, wgmma.mma_async"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"
#       - title: "CUTLASS, guidelines for measuring GEMM performance"
#         url: https://github.com/NVIDIA/cutlass/blob/main/media/docs/cpp/gemm_performance_measurement_methodology_guidelines.md
# ---

# %% [markdown]
# # Tensor-core throughput ceilings
#
# **Claim.** A loop of *nothing but matrix instructions*, fed with normal numbers, says how fast a GPU's tensor cores
# really go. That figure, not the data sheet's, is what a GEMM can be measured against.
#
# What such loops reach, measured, by instruction and by what is multiplied:

# %% tags=["lab"]
from cookbook import draw
from cookbook.lab import records

SHOWN = {
    "instructions": ("mma.sync m16n8k16, bf16", "wgmma m64n64k16, bf16", "wgmma m64n256k16, bf16"),
    "data": tuple(f"wgmma m64n256k16, bf16: {data}" for data in ("normal", "integers", "zeros")),
}


def recorded(record):
    """The bars of one GPU's record: the rate of each loop, with its spread."""
    for group, names in SHOWN.items():
        for name, at in ((name, record["figures"][group][name]) for name in names):
            yield draw.Bar(group, name, at["tflops"], at["tflops_min"], at["tflops_max"])


known = records.of_one_gpu("foundations/tensor_core_ceiling", "ceiling")
draw.bar_chart(recorded(known[0]), title=known[0]["device"], highlight=None) if known else "not measured"

# %% [markdown]
# Same chip, same operands, and the rate depends on the instruction and on the numbers. A GEMM that reaches two thirds
# of the data sheet may be a poor kernel or a perfect one. Three limits keep it below that number, and the kernel causes
# none of them:
#
# * **the instruction**: a Hopper GPU issues `mma.sync` more slowly than `wgmma`, whatever is around it;
# * **the operands' way in**: `wgmma` reads shared memory, which gives 128 bytes a clock and no more;
# * **the power**: tensor cores that switch real data draw more than the card may, and the clock goes down until they do
#   not.
#
# So we write kernels that do a GEMM's multiplications and nothing else: operands are loaded once, before the loop, and
# results leave once, after it. `cookbook bench` runs such a kernel with every GEMM, in the same rounds, on the same
# GPU, and says which part of that ceiling the GEMM reaches.

# %%
import re
import statistics
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import OperandMajorMode, warp, warpgroup

from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## What one instruction does
#
# `mma.sync.m16n8k16` belongs to a warp: 32 threads hold a 16 x 16 piece of A, a 16 x 8 piece of B and a 16 x 8 piece of
# C in their registers. `wgmma.m64nNk16` belongs to four warps: C is in registers, B in shared memory, A in either. A
# multiplication and an addition are two operations.

# %%
DTYPES = {
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float8_e4m3fn": cutlass.Float8E4M3FN,
    "float32": cutlass.Float32,
}
ROW_BYTES = 256  # of a row of A or B in shared memory: two 128-byte swizzle atoms, eight wgmma steps along K


@dataclass(frozen=True)
class MmaSync:
    """A kernel of mma.sync: each warp multiplies `m` A fragments by `n` B fragments, and repeats."""

    dtype: str = "bfloat16"  # of A and B; torch's name
    acc: str = "float32"
    k: int = 16  # of the instruction m16n8k16: or 8
    m: int = 4  # fragments of A a warp holds
    n: int = 8  # and of B: m x n independent accumulators
    warps: int = 8  # of a CTA, and there is one CTA on each SM

    @property
    def instruction(self) -> tuple[int, int, int]:
        return 16, 8, self.k

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def tile(self) -> tuple[int, int, int]:
        """M, N, K of what a CTA multiplies in one iteration of its loop: two steps along K."""
        return 16 * self.m * self.warps, 8 * self.n, 2 * self.k

    @property
    def smem_bytes(self) -> int:
        return 0


@dataclass(frozen=True)
class Wgmma:
    """A kernel of wgmma: each warpgroup multiplies its own 64 rows of A by the B that all share, and repeats."""

    dtype: str = "bfloat16"
    acc: str = "float32"
    n: int = 256  # of the instruction m64nNk16
    a_from: str = "smem"  # or "registers"
    warpgroups: int = 2  # of a CTA, and there is one CTA on each SM

    @property
    def instruction(self) -> tuple[int, int, int]:
        return 64, self.n, 256 // DTYPES[self.dtype].width  # 32 bytes along K

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups

    @property
    def tile(self) -> tuple[int, int, int]:
        """M, N, K of what a CTA multiplies in one iteration of its loop: eight steps along K."""
        return 64 * self.warpgroups, self.n, 8 * ROW_BYTES // DTYPES[self.dtype].width

    @property
    def smem_bytes(self) -> int:
        return (self.tile[0] + self.n) * ROW_BYTES


def flops(shape: tuple[int, int, int]) -> int:
    """Floating-point operations of an M x N x K product."""
    return 2 * shape[0] * shape[1] * shape[2]


{
    "mma.sync m16n8k16": f"{flops(MmaSync().instruction)} operations",
    **{f"wgmma m64n{n}k16": f"{flops(Wgmma(n=n).instruction)} operations" for n in (64, 128, 256)},
}

# %% [markdown]
# ## Why the N of wgmma matters
#
# Each `wgmma` reads its B from shared memory, and its A too unless that is in registers: (64 + N) rows of 32 bytes.
# The products grow with 64 x N. An SM of a Hopper GPU has tensor cores for 2048 multiply-adds of 16-bit numbers a clock
# (twice that for 8-bit ones; NVIDIA's H100 white paper). Its shared memory gives 128 bytes a clock. If an
# instruction takes the clocks that its products need, then it asks for this many bytes in each of them:

# %%
MULTIPLY_ADDS = {16: 2048, 8: 4096}  # per clock of a Hopper SM, by the bits of an operand's element
SMEM_BYTES = 128  # per clock of an SM


def instruction_bytes(config: Wgmma) -> int:
    """Bytes of shared memory that one wgmma reads: 32 for each row of B, and of A if that lies there."""
    return 32 * (config.n + (64 if config.a_from == "smem" else 0))


def bytes_per_clock(config: Wgmma) -> float:
    """Return what it reads in each clock if the tensor cores never wait."""
    clocks = flops(config.instruction) / 2 / MULTIPLY_ADDS[DTYPES[config.dtype].width]
    return instruction_bytes(config) / clocks


{f"N = {n}": f"{bytes_per_clock(Wgmma(n=n)):g} bytes a clock of {SMEM_BYTES}" for n in (32, 64, 128, 256)} | {
    f"N = {n}, A in registers": f"{bytes_per_clock(Wgmma(n=n, a_from='registers')):g}" for n in (32, 64)
}

# %% [markdown]
# Drawn; an SM's shared memory has 128 bytes in each clock (computed, not measured).

# %% tags=["lab"]
from cookbook.layouts import evaluate

WHERE = {"A in shared memory": "smem", "A in registers": "registers"}
asked = [
    draw.Bar(f"N = {n}", where, bytes_per_clock(Wgmma(n=n, a_from=a_from)))
    for n in (32, 64, 128, 256)
    for where, a_from in WHERE.items()
]
draw.bar_chart(asked, unit="bytes a clock", title="What wgmma asks for", highlight="A in shared memory", ratios=False)

# %% [markdown]
# With N = 32 shared memory cannot keep up. N = 64 asks for everything it has, to the byte, and leaves nothing for the
# TMA that would have to write the next tiles there. N = 256 leaves a good third. That is one reason why fast Hopper
# GEMMs hold 64 x 256 accumulators in each warpgroup, although these are half of its registers.
#
# ## The loop of mma.sync
#
# A warp that issues an `mma.sync` into an accumulator that the one before has not finished has to wait for it. So a
# warp needs several accumulators, or an SM several warps: what counts is how many instructions are *in flight* in each
# of the four parts of an SM. `m * n` accumulators in a warp are independent of each other; the two steps along K of
# one accumulator are not, and stand `m * n` instructions apart.


# %%
def mma_sync_of(config: MmaSync) -> cute.TiledMma:
    """One warp's instruction."""
    op = warp.MmaF16BF16Op(DTYPES[config.dtype], DTYPES[config.acc], config.instruction)
    return cute.make_tiled_mma(op, (1, 1, 1))


@cute.jit
def stamp(mStamps: cute.Tensor, cta: cutlass.Int32, tidx: cutlass.Int32, which: cutlass.Constexpr):
    """Thread 0 notes the SM's clock and the time in nanoseconds: before the loop (0) or after it (1)."""
    cute.arch.sync_threads()  # of all warps: a scheduler may favour one, which would be through too early
    if tidx == 0:
        mStamps[cta, which, 0] = cute.arch.clock64()
        mStamps[cta, which, 1] = cute.arch.globaltimer()


@cute.jit
def keep(mSums: cute.Tensor, acc: cute.Tensor, cta: cutlass.Int32, tidx: cutlass.Int32):
    """Use every accumulator, so that no product may be left out: a thread stores the sum of its own."""
    mSums[cta, tidx] = acc.load().to(cutlass.Float32).reduce(cute.ReductionOp.ADD, cutlass.Float32(0), 0)


@cute.kernel
def mma_sync_kernel(
    mA: cute.Tensor,  # (M, K) of all warps
    mB: cute.Tensor,  # (N, K)
    mSums: cute.Tensor,  # (CTA, THREAD) Float32
    mStamps: cute.Tensor,  # (CTA, 2, 2) Int64
    repeats: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Every warp: accumulators += A times B transposed, `repeats` times."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    mma = mma_sync_of(config)
    thr = mma.get_slice(tidx % 32)
    gA = cute.local_tile(mA, (16 * config.m, 2 * config.k), (tidx // 32, 0))
    tCgA, tCgB = thr.partition_A(gA), thr.partition_B(mB)
    rA, rB = mma.make_fragment_A(tCgA), mma.make_fragment_B(tCgB)  # (MMA, MMA_M, MMA_K), (MMA, MMA_N, MMA_K)
    cute.autovec_copy(tCgA, rA)
    cute.autovec_copy(tCgB, rB)
    acc = cute.make_rmem_tensor(thr.partition_shape_C((16 * config.m, 8 * config.n)), DTYPES[config.acc])
    acc.fill(0.0)  # (MMA, MMA_M, MMA_N)
    stamp(mStamps, cta, tidx, 0)
    for _ in cutlass.range(repeats, unroll=1):
        for step in cutlass.range_constexpr(2):
            cute.gemm(mma, acc, rA[None, None, step], rB[None, None, step], acc)  # m x n instructions
    stamp(mStamps, cta, tidx, 1)
    keep(mSums, acc, cta, tidx)


# %% [markdown]
# ## The loop of wgmma
#
# A and B go to shared memory once, in the 128-byte swizzle, as in [the GEMM](../hopper/tma_wgmma_gemm.ipynb): rows of
# 256 bytes are two atoms side by side, eight steps along K. One commit group of eight is always in flight while the
# next is issued. All of them add to the same accumulators, which costs nothing here: `wgmma`s of one shape follow each
# other through the tensor core in order.


# %%
def wgmma_of(config: Wgmma) -> cute.TiledMma:
    """All warpgroups' instruction, one above the other."""
    source = warpgroup.OperandSource.SMEM if config.a_from == "smem" else warpgroup.OperandSource.RMEM
    dtype, k_major = DTYPES[config.dtype], OperandMajorMode.K
    how = (DTYPES[config.acc], config.instruction, source, k_major, k_major)
    if dtype.width == 8:
        op = warpgroup.MmaF8Op(dtype, dtype, *how)
    else:
        op = warpgroup.MmaF16BF16Op(dtype, *how)
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1))


def smem_layout(dtype, rows: int) -> cute.ComposedLayout:
    """`rows` rows of 256 bytes, K-major, in the 128-byte swizzle: first down the rows, then along K."""
    width = 1024 // dtype.width  # elements in 128 bytes
    atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, width), stride=(width, 1)))
    return cute.tile_to_shape(atom, (rows, 2 * width), order=(0, 1))


@cute.jit
def load(gX: cute.Tensor, sX: cute.Tensor, tidx: cutlass.Int32, threads: cutlass.Constexpr):
    """Global -> shared memory by all threads, 16 bytes each: 16 threads share a row of 256 bytes."""
    vec = 128 // gX.element_type.width
    copy = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), gX.element_type, num_bits_per_copy=128)
    by_rows = cute.make_layout((threads // 16, 16), stride=(16, 1))
    tiled = cute.make_tiled_copy_tv(copy, by_rows, cute.make_layout((1, vec)))
    thr = tiled.get_slice(tidx)
    cute.copy(tiled, thr.partition_S(gX), thr.partition_D(sX))


@cute.kernel
def wgmma_kernel(
    mA: cute.Tensor,  # (M, K) of all warpgroups
    mB: cute.Tensor,  # (N, K)
    mSums: cute.Tensor,  # (CTA, THREAD) Float32
    mStamps: cute.Tensor,  # (CTA, 2, 2) Int64
    repeats: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Every warpgroup: accumulators += A times B transposed, `repeats` times."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    smem, dtype, mma = SmemAllocator(), DTYPES[config.dtype], wgmma_of(config)
    a, b = smem_layout(dtype, config.tile[0]), smem_layout(dtype, config.n)
    sA = smem.allocate_tensor(dtype, a.outer, 1024, swizzle=a.inner)
    sB = smem.allocate_tensor(dtype, b.outer, 1024, swizzle=b.inner)
    load(mA, sA, tidx, config.threads)
    load(mB, sB, tidx, config.threads)
    cute.arch.fence_view_async_shared()  # wgmma reads through the asynchronous proxy
    cute.arch.sync_threads()

    # A descriptor is the same for all threads of a warpgroup; told so, the compiler keeps it in uniform registers.
    group = cute.arch.make_warp_uniform(tidx // 128)
    thr = mma.get_slice(128 * group if cutlass.const_expr(config.a_from == "smem") else tidx)
    tCsA = thr.partition_A(sA)
    tCrA = mma.make_fragment_A(tCsA)  # (MMA, MMA_M, MMA_K): descriptors, or registers
    if cutlass.const_expr(config.a_from == "registers"):
        cute.autovec_copy(tCsA, tCrA)
    tCrB = mma.make_fragment_B(thr.partition_B(sB))  # (MMA, MMA_N, MMA_K): descriptors
    acc = cute.make_rmem_tensor(thr.partition_shape_C(config.tile[:2]), DTYPES[config.acc])
    acc.fill(0.0)  # (MMA, MMA_M, MMA_N)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    stamp(mStamps, cta, tidx, 0)
    for _ in cutlass.range(repeats, unroll=1):
        warpgroup.fence()
        for step in cutlass.range_constexpr(8):
            cute.gemm(mma, acc, tCrA[None, None, step], tCrB[None, None, step], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
    warpgroup.wait_group(0)
    stamp(mStamps, cta, tidx, 1)
    keep(mSums, acc, cta, tidx)


# %% [markdown]
# The operands lie in shared memory as in a GEMM, in the 128-byte swizzle. The picture is of the 64 rows of A of one
# warpgroup.

# %% tags=["lab"]
draw.swizzle_view(evaluate(smem_layout, cutlass.BFloat16, 64))

# %% [markdown]
# ## The launch
#
# One CTA for each SM, all with the same operands.


# %%
@cute.jit
def ceiling(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pSums: cute.Pointer,
    pStamps: cute.Pointer,
    repeats: cutlass.Int32,
    ctas: cutlass.Int32,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """`ctas` times: A (M, K) times B (N, K) transposed, `repeats` times over; `config.tile` is (M, N, K)."""
    m, n, k = config.tile
    mA, mB = (cute.make_tensor(p, cute.make_layout((rows, k), stride=(k, 1))) for p, rows in ((pA, m), (pB, n)))
    mSums = cute.make_tensor(pSums, cute.make_layout((ctas, config.threads), stride=(config.threads, 1)))
    mStamps = cute.make_tensor(pStamps, cute.make_layout((ctas, 2, 2), stride=(4, 2, 1)))
    kernel = wgmma_kernel if cutlass.const_expr(isinstance(config, Wgmma)) else mma_sync_kernel
    kernel(mA, mB, mSums, mStamps, repeats, config).launch(
        grid=(ctas, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


def arguments(config: MmaSync | Wgmma, addresses, repeats: int, ctas: int, stream: int) -> tuple:
    """Plain addresses and integers as the typed values that `ceiling` takes."""
    types = (DTYPES[config.dtype], DTYPES[config.dtype], cutlass.Float32, cutlass.Int64)
    pointers = (
        cute.runtime.make_ptr(each, address, cute.AddressSpace.gmem, assumed_align=16)
        for each, address in zip(types, addresses, strict=True)
    )
    return (*pointers, cutlass.Int32(repeats), cutlass.Int32(ctas), cuda.CUstream(stream))


def compile_one(config: MmaSync | Wgmma, arch: str = "", options: str = ""):
    """Compile one kernel for `arch` ("sm_90a") with dummy pointers: no GPU is needed. "": the GPU that is here."""
    target = f"--gpu-arch {arch} " if arch else ""
    dummy = arguments(config, (16, 16, 16, 16), 1, 1, 0)
    return cute.compile(ceiling, *dummy, config, options=(target + options).strip() or None)


@cute.jit
def launch_each(
    a: tuple,
    b: tuple,
    pSums: cute.Pointer,
    pStamps: cute.Pointer,
    stream: cuda.CUstream,
    configs: cutlass.Constexpr,
):
    """Every kernel once: what `compile_for` compiles."""
    for i in cutlass.range_constexpr(len(configs)):
        ceiling(a[i], b[i], pSums, pStamps, cutlass.Int32(1), cutlass.Int32(1), stream, configs[i])


# %% [markdown]
# ## What is measured
#
# First every instruction in its best setting; then how the rate depends on what is in flight; and last on the numbers
# that are multiplied.

# %%
INSTRUCTIONS = {
    "mma.sync m16n8k8, bf16": MmaSync(k=8),
    "mma.sync m16n8k16, bf16": MmaSync(),
    "mma.sync m16n8k16, f16": MmaSync("float16"),
    "mma.sync m16n8k16, f16 with f16 sums": MmaSync("float16", "float16"),
    "wgmma m64n32k16, bf16": Wgmma(n=32),
    "wgmma m64n64k16, bf16": Wgmma(n=64),
    "wgmma m64n128k16, bf16": Wgmma(n=128),
    "wgmma m64n256k16, bf16": Wgmma(),
    "wgmma m64n32k16, bf16, A in registers": Wgmma(n=32, a_from="registers"),
    "wgmma m64n64k16, bf16, A in registers": Wgmma(n=64, a_from="registers"),
    "wgmma m64n256k16, bf16, A in registers": Wgmma(a_from="registers"),
    "wgmma m64n256k16, f16": Wgmma("float16"),
    "wgmma m64n256k32, e4m3": Wgmma("float8_e4m3fn"),
}
IN_FLIGHT = {
    f"mma.sync, {warps} warps, {m * n} accumulators each": MmaSync(m=m, n=n, warps=warps)
    for warps, m, n in (
        *((4, 1, 1), (4, 1, 2), (4, 2, 2), (4, 2, 4), (4, 4, 4), (4, 4, 8)),
        *((8, 1, 1), (8, 2, 2), (8, 4, 8), (16, 1, 1), (16, 2, 2), (16, 2, 4)),
    )
} | {
    f"wgmma m64n{n}k16, {groups} warpgroups": Wgmma(n=n, warpgroups=groups)
    for n, groups in ((64, 1), (64, 2), (64, 4), (128, 1), (128, 2), (128, 4), (256, 1), (256, 2))
}
DATA = ("normal", "integers", "zeros")
BEST = {"mma.sync m16n8k16, bf16": MmaSync(), "wgmma m64n256k16, bf16": Wgmma()}


def runs_on(config: MmaSync | Wgmma, arch: str) -> bool:
    """Return whether an architecture ("sm_90a", "sm_90") has the instruction: wgmma is Hopper's alone."""
    return isinstance(config, MmaSync) or arch.startswith("sm_90")


def compile_for(arch: str, options: str = ""):
    """Compile the kernels of `INSTRUCTIONS` that `arch` has, all in one; no GPU is needed."""
    configs = [config for config in INSTRUCTIONS.values() if runs_on(config, arch)]
    dummy = [arguments(config, (16, 16, 16, 16), 1, 1, 0) for config in configs]
    a, b = (tuple(each[i] for each in dummy) for i in (0, 1))
    _, _, sums, stamps, _, _, stream = dummy[0]
    return cute.compile(
        launch_each, a, b, sums, stamps, stream, configs, options=f"--gpu-arch {arch} {options}".strip()
    )


CONFIG = Wgmma()  # the one with the most shared memory

# %% [markdown]
# ### The trap: what is multiplied
#
# A multiplier whose inputs do not change draws little. With zeros, or with the small whole numbers that are so handy in
# tests, a card has to lower its clock less, or not at all, and shows a rate that no real matrix will see. So operands
# are normal numbers, everywhere in this book; zeros and small whole numbers are measured here, once, to show by how
# much they flatter.


# %%
def operands(config: MmaSync | Wgmma, data: str = "normal") -> tuple[torch.Tensor, torch.Tensor]:
    """A (M, K) and B (N, K) of one iteration of the loop on the GPU: "normal", "integers" from -3 to 3, or "zeros"."""
    if data not in DATA:
        raise ValueError(f"data: got {data!r}; needed one of {', '.join(DATA)}")
    m, n, k = config.tile
    draw = {
        "normal": torch.randn,
        "integers": lambda *shape, device: torch.randint(-3, 4, shape, device=device).float(),
        "zeros": torch.zeros,
    }[data]
    a, b = draw(m, k, device="cuda"), draw(n, k, device="cuda")
    if config.acc == "float16":  # 16-bit accumulators would overflow: half of an iteration undoes the other half
        a[:, k // 2 :], b[:, k // 2 :] = -a[:, : k // 2], b[:, : k // 2]
    kind = getattr(torch, config.dtype)
    return a.to(kind), b.to(kind)


@cache
def compiled(config: MmaSync | Wgmma, capability: tuple[int, int]):
    """The kernel for the present GPU: compiled at the first call that needs it, then kept."""
    return compile_one(config)


class Ceiling:
    """A kernel with its operands on the current GPU; a call is one launch on the current stream.

    a: (M, K), b: (N, K), contiguous, of `config.tile` and `config.dtype`; normal ones are made if left out.
    `sums` (CTA, THREAD) float32 holds what the threads added up in the last launch.

    Raises ValueError if a or b does not fit, or this GPU has no such instruction.
    """

    def __init__(self, config: MmaSync | Wgmma, a: torch.Tensor | None = None, b: torch.Tensor | None = None):
        capability = torch.cuda.get_device_capability()
        if not runs_on(config, "sm_{}{}".format(*capability)):
            raise ValueError(f"config: got {config}; needed an instruction of compute capability {capability}")
        made = operands(config) if a is None or b is None else (a, b)
        m, n, k = config.tile
        for name, x, shape in zip("ab", made, ((m, k), (n, k)), strict=True):
            if x.shape != shape or x.dtype != getattr(torch, config.dtype) or not (x.is_cuda and x.is_contiguous()):
                got = f"{tuple(x.shape)} {x.dtype} on {x.device}"
                raise ValueError(f"{name}: got {got}; needed a contiguous {shape} {config.dtype} on a CUDA device")
        self.config, (self.a, self.b) = config, made
        self.ctas = torch.cuda.get_device_properties(self.a.device).multi_processor_count
        self.sums = torch.full((self.ctas, config.threads), torch.nan, device="cuda")
        self.stamps = torch.zeros((self.ctas, 2, 2), device="cuda", dtype=torch.int64)
        self.kernel = compiled(config, capability)

    @property
    def turn_flops(self) -> int:
        """Operations of one iteration of the loop on all SMs: the least that a launch can do."""
        return flops(self.config.tile) * self.ctas

    def __call__(self, repeats: int) -> None:
        addresses = [x.data_ptr() for x in (self.a, self.b, self.sums, self.stamps)]
        stream = torch.cuda.current_stream().cuda_stream
        self.kernel(*arguments(self.config, addresses, repeats, self.ctas, stream))

    def clocks(self) -> tuple[float, float]:
        """Read the clocks that an SM spent in the last launch's loop, and their number in a nanosecond, GHz."""
        spent = (self.stamps[:, 1] - self.stamps[:, 0]).double().median(0).values.tolist()
        return spent[0], spent[0] / spent[1]


# %% [markdown]
# ## Measuring
#
# The kernels alternate, for seven rounds, so that what the GPU's temperature does to one it does to all. Each time
# there are two launches: an untimed one, in which the clock settles, and a timed one. Thread 0 of each CTA also reads
# the SM's own clock and the time before and after its loop. So we see two things apart: the *rate per clock*, which
# belongs to the instruction, and the *clock*, which belongs to the power.


# %%
def elapsed_ms(call, *args) -> float:
    """GPU time of a call between two CUDA events."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call(*args)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def rates(kernels: dict[str, Ceiling], rounds: int, milliseconds: float) -> dict[str, dict[str, float]]:
    """Each kernel's TFLOP/s (median, min, max over the rounds), operations a clock of an SM, and clock in GHz."""
    repeats = {}
    for name, kernel in kernels.items():
        kernel(5000)  # keeps the GPU busy while the timed launch is on its way to it
        repeats[name] = max(1, round(5000 * milliseconds / elapsed_ms(kernel, 5000)))
    taken = {name: [] for name in kernels}
    for number in range(rounds):
        for name in list(kernels)[:: 1 if number % 2 else -1]:  # each follows one neighbour as often as the other
            kernel = kernels[name]
            kernel(repeats[name])
            taken[name].append((elapsed_ms(kernel, repeats[name]), *kernel.clocks()))
    found = {}
    for name, kernel in kernels.items():
        work = kernel.turn_flops * repeats[name]
        median, fastest, slowest = (f(ms for ms, *_ in taken[name]) for f in (statistics.median, min, max))
        clocks, ghz = (statistics.median(each[i] for each in taken[name]) for i in (1, 2))
        found[name] = {
            "tflops": round(work / median / 1e9, 2),
            "tflops_min": round(work / slowest / 1e9, 2),
            "tflops_max": round(work / fastest / 1e9, 2),
            "flops_per_clock": round(work / kernel.ctas / clocks, 1),
            "clock_ghz": round(ghz, 4),
        }
    return found


def measure(rounds: int = 7, milliseconds: float = 40.0) -> dict[str, dict[str, dict[str, float]]]:
    """Every measurement, on the current GPU: {"instructions", "in flight", "data"}, each {name: rates}.

    Raises:
        ValueError: too few rounds for a median with a spread.
        RuntimeError: no CUDA device.
    """
    if rounds < 3:
        raise ValueError(f"rounds: got {rounds}; needed at least 3")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be measured here")
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    usable = [{n: c for n, c in some.items() if runs_on(c, arch)} for some in (INSTRUCTIONS, IN_FLIGHT, BEST)]
    instructions, in_flight = ({n: Ceiling(c) for n, c in some.items()} for some in usable[:2])
    data = {f"{n}: {d}": Ceiling(c, *operands(c, d)) for n, c in usable[2].items() for d in DATA}
    rates(instructions, 1, 2 * milliseconds)  # from idle clocks to those of a busy GPU; not looked at
    return {
        "instructions": rates(instructions, rounds, milliseconds),
        "in flight": rates(in_flight, rounds, milliseconds / 4),  # told by the rate a clock, whatever the clock is
        "data": rates(data, rounds, 2 * milliseconds),  # told by the clock, which takes its time
    }


# %% [markdown] tags=["lab"]
# ## The loops
#
# The PTX is not the last word; this is what an iteration of each loop holds in the machine code. Beside its eight
# `HGMMA` a `wgmma` loop needs a few instructions on uniform registers, which make the descriptors; they run while the
# tensor cores are at work.

# %% tags=["lab"]
from cookbook.lab import ceilings
from cookbook.lab import compiled as compiling

try:
    sass = compiling.compile_recipe("foundations/tensor_core_ceiling", "sm_90a").sass
    for loop in ceilings.loops(sass):
        if any("MMA." in opcode for opcode in loop):
            print(", ".join(f"{count} {opcode}" for opcode, count in loop.most_common()))
except compiling.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## Measured
#
# Three tables. *Instructions*: compare the operations a clock, which belong to the instruction, with 4096, what the
# white paper promises an SM for 16-bit operands; and see in the clock what the power leaves. *In flight*: how the rate
# a clock grows with accumulators, warps and warpgroups, up to what the instruction can do. *Data*: the same kernel on
# other numbers; look at the clock.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import ceiling_table

Markdown(ceiling_table("foundations/tensor_core_ceiling"))

# %% [markdown]
# ## Check
#
# What can be known without a GPU, the most important of it last: the loops are what we think they are. A compiler that
# saw through us could leave products out, or fill the loop with other work. So these lines compile the kernels, look
# for the loop in the PTX, and count. `cookbook check foundations/tensor_core_ceiling` runs them.


# %% tags=["folded"]
def ptx_loop(config: MmaSync | Wgmma, arch: str) -> Counter:
    """Opcodes of the loop of a kernel's PTX, from its label to the branch back."""
    with tempfile.TemporaryDirectory() as folder:
        compile_one(config, arch, f"--keep-ptx --dump-dir {folder}")
        (file,) = Path(folder).glob("*.ptx")
        text = re.sub(r"//.*", "", file.read_text())
    # The loop is the one label with a branch to it further down.
    loops = re.findall(r"^(\$\w+):\n(.*?\bbra\b\s+\1;)", text, re.MULTILINE | re.DOTALL)
    ((_, body),) = loops
    opcodes = re.findall(r"(?:^|;)[\s{}]*(?:@!?%p\d+\s+)?([a-z][\w.]*)", body)
    kinds = ("mma.sync", "wgmma.mma_async", "ld", "st")
    return Counter(next((kind for kind in kinds if each.startswith(kind)), each) for each in opcodes)


def accumulator_registers(config: MmaSync | Wgmma) -> int:
    """32-bit registers of a thread that hold accumulators."""
    m, n, _ = config.tile
    return m * n * DTYPES[config.acc].width // 32 // config.threads


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    work = [flops(config.instruction) for config in (MmaSync(k=8), MmaSync(), Wgmma(n=64), Wgmma())]
    reads = [bytes_per_clock(Wgmma(n=n)) for n in (32, 64, 128, 256)]
    spared = [bytes_per_clock(Wgmma(n=n, a_from="registers")) for n in (32, 64)]
    fp8 = bytes_per_clock(Wgmma("float8_e4m3fn")) == bytes_per_clock(Wgmma())
    held = [accumulator_registers(config) for config in (MmaSync(), MmaSync("float16", "float16"), Wgmma())]
    issued = MmaSync().warps * 2 * MmaSync().m * MmaSync().n * flops(MmaSync().instruction)
    warps, groups = (ptx_loop(config, arch) for config, arch in ((MmaSync(), "sm_80"), (Wgmma(), "sm_90a")))
    counted = [warps["mma.sync"], groups["wgmma.mma_async"]]
    memory = [each[opcode] for each in (warps, groups) for opcode in ("ld", "st")]
    rest = set(warps) - {"mma.sync", "bra"}
    return [
        ("operations", work == [2048, 4096, 131072, 524288], f"m16n8k8, m16n8k16, m64n64k16, m64n256k16: {work}"),
        ("bytes_a_clock", reads == [192, 128, 96, 80] and fp8, f"N = 32, 64, 128, 256: {reads}; the same for e4m3"),
        ("bytes_a_clock_a_in_registers", spared == [64, 64], f"N = 32, 64: {spared}"),
        ("accumulators", held == [128, 64, 128], f"registers of a thread: {held}"),
        ("turn", issued == flops(MmaSync().tile), f"{issued} operations a CTA and turn of mma.sync"),
        ("loop_holds_the_products", counted == [64, 8], f"mma.sync, wgmma in the loop's PTX: {counted}; needed 64, 8"),
        ("loop_holds_nothing_else", memory == [0] * 4 and rest <= {"add.s32", "setp.ne.s32", "setp.ne.b32"}, f"{rest}"),
    ]


# %% [markdown]
# The last cell checks the cells above: edit one, run it, and check again.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("foundations/tensor_core_ceiling")

# %% [markdown]
# ## Exercises
#
# The last cell of this section judges both; `cookbook exercise my.py` those of a file (`cookbook copy
# foundations/tensor_core_ceiling my.py`).
#
# **Finish it.** The clocks of one `wgmma`, by the slower of its two limits.


# %%
def clocks_of(config):
    """Exercise 1, finish it: the fewest clocks of an SM for one wgmma of a `Wgmma`: its products need the tensor cores,
    its operands need shared memory, and both work at once."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# `MULTIPLY_ADDS` and `SMEM_BYTES` are what an SM does in a clock. `flops` counts two operations for a multiply-add.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Both work at once, so the longer time is the time of the instruction, and not the sum.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# The clocks of the products, or of the bytes where these take longer.
#
# ```python
# def clocks_of(config):
#     products = flops(config.instruction) / 2 / MULTIPLY_ADDS[DTYPES[config.dtype].width]
#     return max(products, instruction_bytes(config) / SMEM_BYTES)
# ```
#
# </details>
#
# **Find the bug.** How many `mma.sync` or `wgmma` has a thread in one iteration of its loop? For `mma.sync` this
# function says 64, and the PTX has 64. For `wgmma` it says 2, and the PTX has 8.


# %%
def instructions_of_a_thread(config):
    """Exercise 2, find the bug: instructions in a thread's loop. The CTA computes a `tile`, in pieces of the size of an
    `instruction`."""
    instructions = flops(config.tile) // flops(config.instruction)  # of the CTA
    return instructions // (config.threads // 32)


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Who issues a `wgmma`, and how many of them are in a CTA?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# An instruction stands in the loop of every thread that takes part in it: of 32 threads, or of 128.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# A `wgmma` belongs to four warps together, so a CTA has as many parts as it has warpgroups.
#
# ```python
# def instructions_of_a_thread(config):
#     instructions = flops(config.tile) // flops(config.instruction)
#     together = 128 if config.instruction[0] == 64 else 32  # rows of a wgmma, or of an mma.sync
#     return instructions // (config.threads // together)
# ```
#
# </details>


# %% tags=["folded"]
EXERCISES = {
    "clocks_of": lambda f: (
        (f"{config.dtype}, N = {config.n}, A from {config.a_from}", f(config), needed)
        for config, needed in (
            (Wgmma(), 128),
            (Wgmma(n=128), 64),
            (Wgmma(n=64), 32),
            (Wgmma(n=32), 24),
            (Wgmma(n=32, a_from="registers"), 16),
            (Wgmma("float8_e4m3fn"), 128),
            (Wgmma("float8_e4m3fn", n=8), 18),
        )
    ),
    "instructions_of_a_thread": lambda f: (
        (f"{config}", f(config), needed)
        for config, needed in (
            (MmaSync(), 64),
            (MmaSync(warps=4), 64),
            (MmaSync(m=2, n=4), 16),
            (Wgmma(), 8),
            (Wgmma(warpgroups=1), 8),
            (Wgmma(n=64), 8),
        )
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/tensor_core_ceiling")

# %% [markdown] tags=["lab"]
# ## What it is for
#
# `cookbook bench` times one more kernel with a GEMM and its peers, in the same rounds: `Ceiling(MmaSync(...))` for
# recipes that use `mma.sync`, `Ceiling(Wgmma(...))` for those that use `wgmma`, with as many operations as the GEMM
# has. The ratio is the part of the ceiling that the GEMM reaches, and it holds on a warm day too: the card's power and
# temperature were the same for both.
#
# ## Conclusion
#
# The ceiling is not one number. It depends on the instruction, on where its operands come from, on how much is in
# flight, and on the data. A loop of a dozen lines measures each of these; the data sheet gives one rate for a type.
#
# Next: [how fast memory can go](memory_ceiling.ipynb).
