# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: TMA swizzle modes in a GEMM
#     claim: >-
#       The tensor cores read all four swizzle modes without bank conflicts; the number of lines that TMA writes
#       predicts which modes are slow, and about how slow.
#     track: hopper
#     order: 35
#     aside: Layouts and majors
#     builds_on: hopper/tma_wgmma_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192]]
#     path: tma -> shared memory in one of four modes -> wgmma -> stmatrix -> 16-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, SYNCS, WARPGROUP.DEPBAR]
#     sources:
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
#       - {title: "Yifan Yang, Tensor Core MMA Swizzle Layout", url: "https://yang-yifan.github.io/blogs/mma_swizzle/mma_swizzle.html"}
#       - {title: "gau-nernst, tcgen05 for dummies", url: "https://gau-nernst.github.io/tcgen05"}
# ---

# %% [markdown]
# # TMA swizzle modes in a GEMM
#
# **Claim.** A tile for `wgmma` may lie in shared memory in four modes, named by the bytes of a row that stay together:
# 16 (no swizzle), 32, 64, 128. The widest is the fastest, and *not* because of bank conflicts: in all four modes the
# tensor cores read without one. The reason is TMA. It fills a tile line by line, and a line is as long as the mode is
# wide.

# %% tags=["lab"]
from cookbook import access, banks, draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/swizzle_modes_gemm", (8192, 8192, 8192), over=["interleave", "sw32", "sw64"])

# %% [markdown]
# A tile of 64 columns is one box of 128-byte lines, or eight boxes of 16-byte lines: the same bytes in eight times as
# many parts. This page is a whole GEMM with one parameter, the mode. Tiles, stages and multiplications are the same in
# all four; the kernel contains no `if` about the mode. The page counts what each mode asks of every unit, predicts, and
# then shows the times.
#
# The kernel is that of [the GEMM with TMA and WGMMA](tma_wgmma_gemm.ipynb), which explains it part by part. It is
# imported: it takes the layouts as an argument. How the modes place their chunks is in [the
# atoms](../foundations/mma_smem_atoms.ipynb).

# %%
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.hopper.tma_wgmma_gemm import Config as TmaWgmmaConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    SmemLayouts,
    kernel,
    make_load,
    smem_atom,
    tiled_copies,
    tiled_mma,
    wgmma,
)

# %% [markdown]
# ## The sizes
#
# A tile of C is 128 x 256, 64 rows for each of two warpgroups that multiply. K goes by 64 elements, 128 bytes, in
# *every* mode: with a narrower one the tile becomes several atoms side by side. That keeps the comparison fair, for
# what is loaded, multiplied and waited for at a time stays the same.


# %%
MODES = {"interleave": 0, "sw32": 1, "sw64": 2, "sw128": 3}  # bits that the swizzle moves; 16 << bits bytes together


@dataclass(frozen=True)
class Config(TmaWgmmaConfig):
    """Sizes of the kernel, in elements or counts."""

    mode: str = "sw128"  # one of MODES: how A and B lie in shared memory


VARIANTS = {
    "interleave": Config(mode="interleave"),
    "sw32": Config(mode="sw32"),
    "sw64": Config(mode="sw64"),
    "sw128": Config(mode="sw128"),
}
CONFIG = VARIANTS["sw128"]


def config_for(arch: str, variant: str = "sw128") -> Config:
    """A variant for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## The layout is the mode
#
# The tensor core reads a K-major operand as *core matrices* of 8 rows x 16 bytes, two of them side by side for each
# step of 16 along K. A mode says how core matrices lie:
#
# * `interleave`: the eight rows of one core matrix follow one another, 128 contiguous bytes. (The name is CUTLASS's;
#   [TMA copies](tma_copy.ipynb) call it `none`. It is *not* the row-major tile. There the rows would be 128 bytes
#   apart, and all in the same banks.)
# * `sw32`, `sw64`, `sw128`: 2, 4 or 8 core matrices lie next to each other in rows of 32, 64 or 128 bytes. The swizzle
#   XORs the row's number into the 16-byte slot, so one core matrix has a different slot in every line.
#
# In CuTe: `make_swizzle(B, 4, 3)`, B = 0, 1, 2, 3, over eight rows of 16 << B bytes. Atoms are stacked down the rows
# first (`order=(0, 1, 2)`), so that one TMA box, an atom wide, holds all rows of the tile.
#
# C has a tile too, and keeps its own mode, the widest, whatever A and B do.


# %%
def mode_atom(dtype, mode: str) -> cute.ComposedLayout:
    """Eight rows of 16, 32, 64 or 128 bytes: the mode's."""
    return smem_atom(dtype, (128 << MODES[mode]) // dtype.width)


def smem_layouts(dtype, config: Config) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c = config
    ab = mode_atom(dtype, c.mode)
    return SmemLayouts(
        a=cute.tile_to_shape(ab, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(ab, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
        c=cute.tile_to_shape(mode_atom(dtype, "sw128"), (c.tile_m, c.tile_n), order=(0, 1)),
    )


# %% [markdown] tags=["lab"]
# ## The four modes, drawn
#
# Sixteen rows of A in each mode, by the recipe's own layout. A row of a panel is a 128-byte line of shared memory, a
# column one of its eight 16-byte slots. The number is the chunk of the tile, counted along its rows; the small pair is
# the (row, column) of its first element. A colour is a *column of chunks*; eight rows of it make a core matrix.
#
# Look at what a line of shared memory holds. In `interleave` it is eight rows' chunks of one colour, from eight places
# in global memory; in `sw128` it is one row, from one place.

# %% tags=["lab"]
import re

import numpy as np
from IPython.display import Markdown

from cookbook.lab import boxes_of, compiled, table
from cookbook.model import MatrixDescriptor, operand_descriptors
from cookbook.model.wgmma import operand_addresses


def first_rows(dtype):
    """(16, 64) of A in each mode."""
    return {mode: cute.tile_to_shape(mode_atom(dtype, mode), (16, 64), order=(0, 1)) for mode in MODES}


draw.atom_orders(evaluate(first_rows, cutlass.BFloat16), title="16 rows of A, 128 bytes each, in four modes")

# %% [markdown]
# ## What the mode changes in the kernel
#
# No line of it, and three things that CuTe makes of the layouts:
#
# * **The matrix descriptors.** A `wgmma` multiplies a 64 x 16 part of A by a 16 x 256 part of B, both in shared memory.
#   A descriptor says where each lies: an address, two distances and the mode.
# * **Their steps.** From one k-step to the next a descriptor's start advances: by 32 bytes inside a row that is wide
#   enough, else to the next atom. The layout knows; in `issue_wgmmas` it is just `k`.
# * **The TMA instructions.** What the producer copies has a mode of boxes, and `cute.copy` issues one instruction for
#   each of them: one in `sw128`, eight in `interleave`. The bytes that the barrier waits for are the same.
#
# The epilogue is the same in every mode: C goes through shared memory so that it leaves in whole rows, in vectors as
# wide as the output allows.
#
# ## The launch
#
# It makes this page's layouts and hands them to the kernel.


# %%
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
    (m, n, k), dtype = mnk, pA.dtype
    lda, ldb, ldc = strides
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(cute.assume(ldc, divby=vec), 1)))
    layouts, copies = smem_layouts(dtype, config), tiled_copies(dtype, config, vec)
    a, b = make_load(mA, layouts.a, config.tile_m, config), make_load(mB, layouts.b, config.tile_n, config)
    tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
    kernel(a, b, mC, layouts, copies, wgmma(dtype, config.tile_n), config).launch(
        grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


# %% tags=["folded"]
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch, call.variant), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=VARIANTS)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = "sw128"
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: how A and B lie in shared memory. All of them add along K in the same order.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## What `wgmma` reads
#
# A matrix descriptor says where an operand is: `lbo` from one chunk along K to the next, `sbo` from eight rows to the
# next. In a swizzled mode two chunks of a k-step share a row, and `lbo` has nothing to say. In `interleave` each column
# of chunks is a strip of its own, as long as the tile has rows.

# %% tags=["lab"]
layouts = {mode: evaluate(smem_layouts, cutlass.BFloat16, config) for mode, config in VARIANTS.items()}
described = {
    mode: {"a": operand_descriptors(of.a, 64), "b": operand_descriptors(of.b, CONFIG.tile_n)}
    for mode, of in layouts.items()
}


def descriptor_row(mode: str, operand: str) -> list[str]:
    """lbo, sbo, and by how many bytes the start advances from k-step to k-step, of stage 0's first block of rows."""
    steps = described[mode][operand][: CONFIG.tile_k // 16]
    starts = [str(later.start - steps[0].start) for later in steps]
    return [mode, operand.upper(), str(steps[0].lbo), str(steps[0].sbo), ", ".join(starts)]


rows = [descriptor_row(mode, operand) for mode in MODES for operand in "ab"]
Markdown(table(["mode", "operand", "lbo, bytes", "sbo, bytes", "the four k-steps start at"], rows, right=2))

# %% [markdown] tags=["lab"]
# That is what the layouts demand. What did the compiler put into the kernel? The constant halves of the descriptors
# stand in its PTX; decoded:


# %% tags=["lab"]
def descriptors_in_ptx(mode: str) -> list[tuple[int, int, int]]:
    """The distinct (swizzle, lbo, sbo) among the 64-bit constants that go into descriptors."""
    ptx = compiled.compile_recipe("hopper/swizzle_modes_gemm", "sm_90a", "bfloat16", config=VARIANTS[mode]).ptx
    words = [int(number) % 2**64 for number in re.findall(r"or\.b64\s+%rd\d+, %rd\d+, (-?\d{9,});", ptx)]
    found = [MatrixDescriptor.decode(word) for word in words]
    return sorted({(each.mode, each.lbo, each.sbo) for each in found})


for mode in MODES:
    wanted = {(each.mode, each.lbo, each.sbo) for of in described[mode].values() for each in of}
    in_ptx = descriptors_in_ptx(mode)
    print(f"{mode:11} (swizzle, lbo, sbo) in the PTX: {in_ptx}; as the layouts demand: {set(in_ptx) == wanted}")

# %% [markdown] tags=["lab"]
# Now the banks. The tensor core reads core matrices: eight chunks of 16 bytes, 128 bytes together, as much as
# thirty-two banks of four bytes give at once. First the case that everyone wants to avoid, and that no mode has: rows
# of 128 bytes, one after the other, without a swizzle. The chunks of one column are all in the same four banks; a core
# matrix takes eight wavefronts.

# %% tags=["lab"]
draw.access_view(access.ldmatrix(np.arange(32) * 128, 4), title="Four core matrices, plain rows of 128 bytes: no mode")

# %% [markdown] tags=["lab"]
# In `interleave`, the first four core matrices of A; the numbers are rows:


# %% tags=["lab"]
def core_matrices(descriptor: MatrixDescriptor, rows: int) -> list[access.Access]:
    """Return what an operand's core matrices ask of the banks, four of them (32 chunks) at a time."""
    chunks = operand_addresses(descriptor, rows).T.reshape(-1, 32)  # each column of chunks, down its rows
    return [access.ldmatrix(of_four, 4) for of_four in chunks]


draw.access_view(core_matrices(described["interleave"]["a"][0], 64)[0], title="Four core matrices, interleave")

# %% [markdown] tags=["lab"]
# And in `sw128`, from the second column of chunks: as far apart as the unswizzled rows, and XORed into different banks.

# %% tags=["lab"]
draw.access_view(core_matrices(described["sw128"]["a"][0], 64)[2], title="Four core matrices, sw128")

# %% [markdown] tags=["lab"]
# Neither has a conflict. Against unswizzled rows each of the four modes is a cure, and by conflicts they are equal.
#
# ## The prediction
#
# One CTA has an SM to itself. What does *one k-tile*, the tiles of A and B for 64 of K, ask of each unit of the SM, in
# clocks? (A *wavefront* is one access of shared memory: as much as its banks can give or take in one clock.)
#
# * **Tensor cores**: tile_m x tile_n x tile_k multiply-adds; NVIDIA's figure for Hopper is 4 x 512 a clock.
# * **wgmma's reads**: wavefronts of all core matrices by the bank model, one a clock. A is read by its own warpgroup, B
#   by both.
# * **TMA's lines**: the boxes, and the lines of all boxes. We take TMA to work through a box line by line, each line a
#   request to L2 and a write to shared memory, and put *one clock a line*, up to 128 bytes. NVIDIA documents no such
#   figure; that is our assumption, and the measurement will say.
# * **L2**: the bytes of the 32-byte sectors that the lines touch. A line of 16 bytes has half of one, and the other
#   half is asked for by the next box: the tile is fetched twice. An SM takes 64 bytes a clock.
#
# How do they add up? *Best case*: all units work at once, and the busiest one decides. *Worst case*: shared
# memory does one thing a clock, so that lines written and wavefronts read alternate. A loop with no
# other limit lies between; the whole product may come out below, because it has an epilogue too.
#
# What is counted is the loop over K, and in clocks. What is timed is a whole product, and in milliseconds. It also has
# to start its CTAs, fill their first stages and store C, which costs every mode alike. And the GPU chooses its clock by
# the power that the mode draws. Both bring the *ratios* of times nearer to 1 than those of the clocks counted here.


# %% tags=["lab"]
TENSOR_RATE, L2_PORT, SECTOR = 4 * 512, 64, 32  # multiply-adds a clock and SM; bytes a clock; bytes


def demands(mode: str) -> dict[str, float]:
    """Return what one k-tile asks for: counts, and clocks of each unit."""
    config, of, where = VARIANTS[mode], layouts[mode], described[mode]
    boxes = [boxes_of(of.a), boxes_of(of.b)]
    line = boxes[0].mode or 16  # bytes
    lines = sum(len(each.origins) * each.shape[0] for each in boxes)
    k_steps, groups = config.tile_k // 16, config.tile_m // 64
    reads = [(each, 64) for each in where["a"][: groups * k_steps]] + [
        (each, config.tile_n) for each in where["b"][:k_steps] * groups
    ]
    counted = [banks.wavefronts(each.addresses, each.width) for read in reads for each in core_matrices(*read)]
    assert all(each.excess == 0 for each in counted)
    return {
        "boxes": sum(len(each.origins) for each in boxes),
        "line": line,
        "lines": lines,
        "wavefronts": sum(each.actual for each in counted),
        "tensor": config.tile_m * config.tile_n * config.tile_k / TENSOR_RATE,
        "L2": lines * max(line, SECTOR) / L2_PORT,
    }


def bounds(of: dict[str, float]) -> tuple[float, float]:
    """Clocks of a k-tile: all units overlapped; lines and wavefronts one after the other."""
    at_once = max(of["tensor"], of["L2"], of["lines"], of["wavefronts"])
    return at_once, max(at_once, of["lines"] + of["wavefronts"])


asked = {mode: demands(mode) for mode in MODES}
predicted = {mode: bounds(of) for mode, of in asked.items()}
slowdown = {mode: tuple(c / w for c, w in zip(predicted[mode], predicted["sw128"], strict=True)) for mode in MODES}
rows = [
    [
        mode,
        *(f"{asked[mode][key]:.0f}" for key in ("boxes", "line", "lines", "wavefronts", "L2", "tensor")),
        "{:.0f} to {:.0f}".format(*predicted[mode]),
        "{:.2f}x to {:.2f}x".format(*slowdown[mode]),
    ]
    for mode in MODES
]
header = ["mode", "TMA boxes", "bytes a line", "lines", "wgmma wavefronts", "L2 clocks", "tensor clocks"]
Markdown("One SM, one k-tile:\n\n" + table([*header, "predicted clocks", "of sw128's"], rows))

# %% [markdown] tags=["lab"]
# The same as a picture: how many k-tiles each unit could do while the tensor cores multiply one. The shortest bar of a
# group decides.

# %% tags=["lab"]
units = {"tensor cores": "tensor", "wgmma's reads": "wavefronts", "TMA's lines": "lines", "L2": "L2"}
bars = [draw.Bar(mode, unit, of["tensor"] / of[key]) for mode, of in asked.items() for unit, key in units.items()]
draw.bar_chart(bars, unit="k-tiles in the time of one", title="Predicted: which unit holds up the others")

# %% [markdown] tags=["lab"]
# In `sw128` the tensor cores are the busiest, and shared memory has just enough clocks for its lines and wavefronts
# even if they alternate. `sw64` doubles the lines, and they still take less time than the multiplications. If all units
# overlap, `sw64` costs *nothing*; if lines and `wgmma`'s reads alternate at shared memory, it already costs something.
# So this one mode tells the two cases apart. In `sw32` and `interleave` the lines dominate in both.
#
# Two things the arithmetic takes for granted. The machine code must issue as many TMA instructions as there are boxes,
# and the number of `wgmma`s must not depend on the mode:

# %% tags=["lab"]
for mode, config in VARIANTS.items():
    made = compiled.compile_recipe("hopper/swizzle_modes_gemm", "sm_90a", "bfloat16", config=config)
    found = f"{made.count('UTMALDG.2D'):2} UTMALDG (boxes: {asked[mode]['boxes']:2}), {made.count('HGMMA')} HGMMA"
    print(f"{mode:11} {found}, {made.registers} registers, {made.spills} bytes spilled")

# %% [markdown] tags=["lab"]
# Others have seen the same effect. A public series of GEMMs for Blackwell ([the
# write-up](https://gau-nernst.github.io/tcgen05), [its
# table](https://github.com/gau-nernst/learn-cuda/tree/main/02e_matmul_sm100)) begins with lines of 16 bytes, and goes
# to 128 bytes in its next step. Tile, chip and pipeline differ, so compare only the size of the effect with the
# prediction for `interleave`:

# %% tags=["lab"]
PUBLISHED = {16: 255.73, 128: 699.39}  # TFLOP/s by bytes of a line: B200, bf16, 4096 x 4096 x 4096, versions v1a, v2a
low, high = sorted(slowdown["interleave"])
print(f"published, B200: {PUBLISHED[128] / PUBLISHED[16]:.2f}x; predicted here: {low:.2f}x to {high:.2f}x")

# %% [markdown] tags=["lab"]
# ## The trap: two modes at once
#
# You state the mode twice, in the tensor map and in the matrix descriptor, and nothing compares the two. In this
# simulation TMA writes in one mode and `wgmma` reads in another. The table has the relative error of the product;
# random numbers in its place would have about 1.4. Off the diagonal everything is wrong, and nothing reports it.

# %% tags=["lab"]
import cookbook
from cookbook.lab import evaluated, simulate_evaluated

rng = np.random.default_rng(0)
a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((64, 64), (64, 64)))
module = cookbook.load("hopper/swizzle_modes_gemm")
found = {mode: evaluated(module, cutlass.BFloat16, config) for mode, config in module.VARIANTS.items()}


def error(written: str, read: str) -> float:
    product = simulate_evaluated(found[written], found[read], a, b, "bfloat16", CONFIG)
    return float(np.linalg.norm(product - a @ b) / np.linalg.norm(a @ b))


rows = [[written, *(f"{error(written, read):.2f}" for read in MODES)] for written in MODES]
Markdown(table(["written \\ read", *MODES], rows))

# %% [markdown] tags=["lab"]
# ## Check
#
# Every level looks at every mode.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/swizzle_modes_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/swizzle_modes_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# The four modes and their peers, interleaved in one run on one GPU; "ours" is `sw128`, called without an argument.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("hopper/swizzle_modes_gemm"))

# %% [markdown] tags=["lab"]
# Predicted and measured: how many times as long as in `sw128` the product takes. The last column is the cost of a line,
# from the measurement, if the product waits for lines: the prediction assumes one clock. A mode that waits for
# something else shows more than its lines cost.
#
# How well can one tell two times apart? "Ours" and `sw128` are *the same kernel*, timed twice in the same rounds. The
# line above each table has the difference of these two. A difference between two modes must be larger to mean anything.

# %% tags=["lab"]
from cookbook.lab import records


def predicted_and_measured() -> str:
    """A table for every current record, or that there is none."""
    parts = []
    for r in records.of_one_gpu("hopper/swizzle_modes_gemm", "timed"):
        ms = {mode: r["peers"][mode]["median_ms"] for mode in MODES}
        rows = []
        for mode in MODES:
            (low, high), times = sorted(slowdown[mode]), ms[mode] / ms["sw128"]
            verdict = "between" if low <= times <= high else "below" if times < low else "above"
            a_line = times * predicted["sw128"][0] / asked[mode]["lines"]
            rows.append([mode, f"{low:.2f}x to {high:.2f}x", f"{times:.2f}x", verdict, f"{a_line:.2f}"])
        twice = abs(r["figures"]["median_ms"] / ms["sw128"] - 1)
        title = f"{r['device']}, {r['dtype']}, {'x'.join(map(str, r['shape']))}; one kernel twice: {twice:.1%} apart:"
        header = ["mode", "predicted", "measured", "it lies", "clocks a line"]
        parts.append(title + "\n\n" + table(header, rows))
    return "\n\n".join(parts) or "*Not measured yet.*"


Markdown(predicted_and_measured())

# %% [markdown] tags=["lab"]
# On an H200 the order is the predicted one, and the modes lie in the *lower* half of their ranges, or below. The lower
# end says that the units overlap. `sw64` costs a little: at the larger size more than the spread, at the smaller
# hardly. That is a small part of what it would cost if every line alternated with `wgmma`'s reads. So mostly they do
# not alternate. An alternation now and then would explain the rest. So would a lower clock.
#
# Why is `interleave` as fast as the lower end says, or faster? There are three possible reasons, and these times do not
# decide among them. The two named before the prediction make every ratio smaller; a mode whose tensor cores wait most
# of the time draws less power, so its clock may be higher. And TMA may need a little less than the one clock a line
# that we assumed.
#
# The column *clocks a line* puts all of the difference on the lines, so it is a rough figure. Counted clocks instead of
# time would say more.
#
# Does `wgmma` read as the bank model says? The table has the wavefronts of one `wgmma` of a warpgroup, and how many of
# them are conflicts. (ncu counts by warp; four warps are a warpgroup.)


# %% tags=["lab"]
def predicted_and_counted() -> str:
    """A table for every current record of ncu's counts, or that there is none."""
    parts = []
    for r in records.of_one_gpu("hopper/swizzle_modes_gemm", "counted"):
        rows = []
        for name, of in r["figures"].items():
            mode, _, opcode = name.partition(" ")
            if opcode.startswith("HGMMA"):
                config = VARIANTS[mode]
                wanted = asked[mode]["wavefronts"] / (config.tile_m // 64 * config.tile_k // 16)
                each = 4 * of["wavefronts"] / of["executed"]
                rows.append([mode, opcode, f"{wanted:.0f}", f"{each:.0f}", str(of["excess"])])
        title = f"{r['device']}, {r['dtype']}:"
        parts.append(
            title + "\n\n" + table(["mode", "instruction", "predicted", "counted", "conflicts"], rows, right=2)
        )
    return "\n\n".join(parts) or "*Not counted yet.*"


Markdown(predicted_and_counted())

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Bank conflicts do not choose among the four modes: in each of them the tensor cores read every core matrix in one
# wavefront. TMA chooses. A mode's width is the length of the lines in which TMA works, and a wider mode moves the same
# tile in fewer lines. As soon as the lines take longer than the multiplications, the product waits for them.
#
# Hence the rule of one line: *the widest mode whose row divides the tile's contiguous extent*. And a second one for
# tile sizes: make that extent 128 bytes. A narrower tile along K is not only smaller; it is another mode.
#
# Next: [warp specialization and setmaxnreg](warp_specialized_gemm.ipynb), in the widest mode.
