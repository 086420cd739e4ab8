# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Warp specialization and setmaxnreg
#     claim: >-
#       A producer warpgroup needs two dozen registers a thread; setmaxnreg gives the rest to the consumers, so that a
#       tile with more accumulators fits.
#     track: hopper
#     order: 40
#     builds_on: hopper/tma_wgmma_gemm
#     pays: {at: [3072, 2112, 4096], over: equal shares}
#     targets: [sm_90a]
#     runs_on: sm_90
#     dtypes: [bfloat16, float16]
#     baselines: [equal shares]
#     bench_shapes: [[4096, 4096, 4096], [8192, 8192, 8192], [3072, 2112, 4096]]
#     path: tma -> swizzled shared memory -> wgmma -> stmatrix -> 16-byte stores
#     instructions:
#       sm_90a: [UTMALDG.2D, HGMMA, STSM.16, SYNCS, WARPGROUP.DEPBAR]
#     sources:
#       - {title: "PTX ISA, setmaxnreg", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg"}
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
# ---

# %% [markdown]
# # Warp specialization and setmaxnreg
#
# **Claim.** `setmaxnreg` moves registers from warps that only load to warps that multiply, while the kernel runs. So a
# larger tile fits. The instruction itself gains nothing. The larger tile gains where it fills its waves and loses
# where it does not; counting waves predicts large differences, not small ones.

# %% tags=["lab"]
from cookbook import access, draw, lab
from cookbook.layouts import evaluate

lab.gain("hopper/warp_specialized_gemm", (3072, 2112, 4096), over=["equal shares", "setmaxnreg, 256x192"])

# %% [markdown]
# Ours is the default; the larger tile, made for this shape, is the faster one.
#
# An SM has 65,536 registers, and the threads of a block share them equally. Launched with 384 threads each thread gets
# 168: as many for a thread that only waits for barriers as for one that holds 192 accumulators. With `setmaxnreg` a
# warpgroup gives registers back, or takes some that others gave back. Here a producer *warpgroup* keeps 24 a thread,
# two consumer warpgroups have 240.
#
# The larger tile reads less. But the SMs compute tiles in *waves*, one tile each at a time: larger tiles are fewer, and
# the last wave may be emptier. A later page needs the registers for something else: a thread there holds more than
# accumulators.
#
# Two things differ from [the previous page](tma_wgmma_gemm.ipynb). The producer is a warpgroup, of which one warp
# works. And each role says how many registers it wants. All else is imported from there.

# %%
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.entry import Call, Gemm, compile_host
from cookbook.recipes.hopper.tma_wgmma_gemm import Config as TmaWgmmaConfig
from cookbook.recipes.hopper.tma_wgmma_gemm import (
    SmemLayouts,
    TiledCopies,
    TmaTensor,
    gemm,
    multiply,
    partition_load,
    produce,
    set_up,
    smem_layouts,
    store,
    tile_of_cta,
    tiled_copies,
    tiled_mma,
)

# %% [markdown]
# ## The sizes
#
# The accumulators of a tile of C are spread over the 256 threads of two warpgroups: 128 x 256 elements are 128
# registers a thread, 256 x 192 are 192. On top come addresses, descriptors and loop counters; and the compiler must
# fit all of it into what the launch gives a thread, or it *spills*: it keeps values in memory, in the loop too.
#
# What a launch gives is the register file divided by the threads, in steps of 8 and at most 255. In detail, each of an
# SM's four schedulers has a quarter of the file for its warps. With `setmaxnreg` each warpgroup says its own number;
# what all of them say must not be more than the launch gave them together.


# %%
@dataclass(frozen=True)
class Config(TmaWgmmaConfig):
    """Sizes of the kernel, in elements or counts, and the registers of its threads."""

    registers: tuple[int, int] | None = (24, 240)  # of a producer's and a consumer's thread; None: the launch's for all
    producer_threads: int = 128  # a warpgroup; 32: a single warp, and then no `registers`

    def __post_init__(self) -> None:
        """Refuse what would hang: `setmaxnreg` waits until there are as many registers as it asks for."""
        if self.registers is not None:
            producer, consumer = self.registers
            legal = self.producer_threads == 128 and all(24 <= each <= 256 and each % 8 == 0 for each in self.registers)
            if not legal or producer > self.at_launch or consumer < self.at_launch:
                needed = f"a producer warpgroup, and multiples of 8 from 24 up around the launch's {self.at_launch}"
                raise ValueError(f"registers: got {self.registers}; needed {needed}")
            if 128 * producer + self.consumer_threads * consumer > self.at_launch * self.threads:
                pool = self.at_launch * self.threads // 128
                raise ValueError(f"registers: got {producer} + 2 x {consumer}; needed at most {pool} together")

    @property
    def consumer_threads(self) -> int:
        return 256  # two warpgroups

    @property
    def threads(self) -> int:
        return self.consumer_threads + self.producer_threads

    @property
    def at_launch(self) -> int:
        """Registers that a thread may have when the kernel starts; all get as many as the neediest."""
        warps = -(-self.threads // 128)  # of the scheduler that has the most of them
        return min(255, 16384 // (32 * warps) // 8 * 8)


VARIANTS = {
    "equal shares": Config(registers=None),
    "setmaxnreg": Config(),
    "setmaxnreg, 256x192": Config(tile_m=256, tile_n=192, swizzle_size=8),  # as many rows of C in a group
}
DEFAULT = "setmaxnreg"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% [markdown]
# ## Layouts, MMA, roles
#
# `smem_layouts` takes the widest atom whose row divides the tile's contiguous extent, as before: 192 columns of C are
# three rows of 128 bytes side by side. One `wgmma` has 64 rows, so in a tile of 256 each of the two warpgroups has two
# blocks of them, and a thread holds the accumulators of both. `acc` is (MMA, MMA_M, MMA_N) with two blocks along M, and
# `cute.gemm` issues a `wgmma` for each. No code changes.
#
# ## The kernel
#
# Look at the two branches. Each role first says how many registers it wants.
#
# * `setmaxregister_decrease(24)` gives back at once. The whole *warpgroup* must execute it, all four warps with the
#   same number. So a job for one warp needs a warpgroup; its other three warps end.
# * `setmaxregister_increase(240)` *waits* until there are enough registers to take. So the order does not matter, but
#   the sum does: a kernel that asks for more than was given back waits for ever.
#
# The compiler sees these instructions, and allots registers to the code behind each of them by its number.


# %%
@cute.kernel
def kernel(
    a: TmaTensor,  # (M, K)
    b: TmaTensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    layouts: SmemLayouts,
    copies: TiledCopies,
    op: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One CTA computes one tile of C.

    Who waits for whom, with the CONFIG of hopper/warp_specialized_gemm:

    warps  do         wait for  signal
    0-7    wgmma      full[4]   empty[4]: 1 a warp
    8      TMA loads  empty[4]  full[4]: 1, expects 49152 bytes

    full[4]: 1 arrival and its bytes a phase.
    empty[4]: 8 arrivals a phase.
    bar 1, 256 threads: warps 0-7 meet.
    """
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    producer = config.consumer_threads // 32  # the first warp of the last warpgroup
    tile = tile_of_cta(mC.shape, config)
    cta = set_up(layouts, mC.element_type, config)
    gA = cute.local_tile(a.coords, (config.tile_m, config.tile_k), (tile[0], None))  # (TILE_M, TILE_K, k)
    gB = cute.local_tile(b.coords, (config.tile_n, config.tile_k), (tile[1], None))  # (TILE_N, TILE_K, k)
    if warp_idx >= producer:
        if cutlass.const_expr(config.registers is not None):
            cute.arch.setmaxregister_decrease(config.registers[0])
        if warp_idx == producer:
            produce(cta.pipe, (partition_load(a.atom, gA, cta.sA), partition_load(b.atom, gB, cta.sB)), config)
    else:
        if cutlass.const_expr(config.registers is not None):
            cute.arch.setmaxregister_increase(config.registers[1])
        gC = cute.local_tile(mC, (config.tile_m, config.tile_n), tile)  # (TILE_M, TILE_N)
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), (config.tile_m, config.tile_n), tile)
        acc = multiply(cta, op, cute.size(gA, mode=[2]), config)
        store(acc, cta.sC, gC, cC, mC.shape, copies, config)


# %% [markdown]
# ## The launch
#
# Nothing new but the number of threads: it is from there that the compiler knows what a thread gets at launch.


# %%
def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 8, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here."""
    pointers = (dtype, 16), (dtype, 16), (dtype, vec * dtype.width // 8)
    return compile_host(gemm, arch, pointers, (kernel, config or config_for(arch), vec), options=options)


# %% [markdown]
# ## `matmul`: what a user calls


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """Return what is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    return (config_for(call.arch, call.variant), call.vec), (call.mnk, call.strides)


GEMM = Gemm(compile_for, prepare, gpus=((9, 0),), needs="wgmma", variants=VARIANTS)


# %%
def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` on the tensor cores, accumulated in float32, on the current stream of `a`'s device.

    a: (M, K), float16 or bfloat16, K-major (stride 1 along K).
    b: (K, N), the same dtype, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), the same dtype, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS: the registers of a thread, and the tile. All of them add along K in the same order.

    TMA reads rows that start at multiples of 16 bytes: the addresses of a and b and their row strides are such
    multiples (K is a multiple of 8, or the rows are padded). Needs a GPU of compute capability 9.0.
    Any M, N, K >= 1 within that: ragged tiles are handled. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    return GEMM.matmul(a, b, out=out, variant=variant)


# %% [markdown] tags=["lab"]
# ## The register file by warpgroups
#
# The register file of an SM, shared out three ways. A warpgroup's share is 128 threads wide; what the accumulators of
# the tile take of it is known from the tile, and the compiler needs some two dozen more a thread for the rest. In
# equal shares the producer's is all but empty, and 192 accumulators find no room.

# %% tags=["lab"]
from dataclasses import replace

from IPython.display import Markdown

from cookbook.draw import Span
from cookbook.lab import compiled, table

LARGE = VARIANTS["setmaxnreg, 256x192"]


def accumulators(config: Config) -> int:
    """Registers that a consumer's thread needs for its part of the tile."""
    return config.tile_m * config.tile_n // config.consumer_threads


def shares(config: Config) -> list[Span]:
    """The register file: the producer's share, then for each consumer the accumulators and what is left."""
    producer, consumer = config.registers or (config.at_launch,) * 2
    spans, at = [Span(0, 128 * producer, f"{producer}", "producer")], 128 * producer
    for _ in range(2):
        middle, end = at + 128 * min(accumulators(config), consumer), at + 128 * consumer
        spans.append(Span(at, middle, f"{min(accumulators(config), consumer)}", "accumulators"))
        spans += [Span(middle, end, f"{(end - middle) // 128}", "the rest")] if middle < end else []
        at = end
    return spans


rows = {
    "128x256, equal shares": shares(VARIANTS["equal shares"]),
    "128x256, setmaxnreg": shares(CONFIG),
    "256x192, equal shares": shares(replace(LARGE, registers=None)),
    "256x192, setmaxnreg": shares(LARGE),
}
draw.lanes(
    rows,
    "The register file of an SM, by warpgroups",
    unit="registers",
    note="a number: registers of one thread; 256x192 in equal shares: it needs 192 for the accumulators alone",
)

# %% [markdown] tags=["lab"]
# Is that what the compiler says, too? Each line below is a compile of this recipe's kernel. *Spilled* are the bytes
# that a thread keeps in memory instead, *loads* the instructions that fetch them back.
#
# Look at the first two lines first. The previous page had a single producer *warp*, 288 threads, and one would think
# that they got 224 registers each. They do not. The register file is in four quarters, a scheduler and its warps each;
# of nine warps one quarter gets three, and shares its 16,384 registers among these. A lone warp costs the others as
# much as a warpgroup does.


# %% tags=["lab"]
def compiled_row(name: str, config: Config) -> list[str]:
    """Registers of one compile: the tile's accumulators, a thread's count at launch and later, and spills."""
    made = compiled.compile_recipe("hopper/warp_specialized_gemm", "sm_90a", "bfloat16", config=config)
    later = config.registers[1] if config.registers else config.at_launch
    loads = sum(n for name, n in made.sass_counts.items() if name.startswith("LDL"))
    figures = (accumulators(config), config.threads, config.at_launch, later, made.registers, made.spills, loads)
    return [name, *(str(figure) for figure in figures), str(made.count("HGMMA"))]


alike = replace(CONFIG, registers=None)
tried = {
    "128x256, one producer warp": replace(alike, producer_threads=32),
    "128x256, equal shares": alike,
    "128x256, setmaxnreg": CONFIG,
    "256x144, equal shares": replace(alike, tile_m=256, tile_n=144),
    "256x192, one producer warp": replace(LARGE, registers=None, producer_threads=32),
    "256x192, equal shares": replace(LARGE, registers=None),
    "256x192, setmaxnreg": LARGE,
}
header = [
    "kernel",
    "accumulators",
    "threads",
    "launch, at most",
    "a consumer's",
    "ptxas reports",
    "spilled",
    "loads",
    "HGMMA",
]
Markdown(table(header, [compiled_row(name, config) for name, config in tried.items()]))

# %% [markdown] tags=["lab"]
# That is **the first trap**: the larger tile in equal shares compiles without a word, and computes the right product.
# But its accumulators travel to memory and back in every k-tile, because the two blocks of rows do not fit at once.
# Only the compiler's report says so, to those who ask for it. Sixteen accumulators more than 128 are enough. (What
# ptxas reports for a kernel with `setmaxnreg` is what the launch must give, not what its consumers use.)
#
# In the machine code the two instructions look unlike each other. Giving back is one instruction; taking is a `TRY`,
# and a branch back for when it has failed.


# %% tags=["lab"]
def around(mnemonic: str, before: int, after: int) -> str:
    """Lines of the kernel's code around the first `mnemonic`, without addresses and encodings."""
    sass = compiled.compile_recipe("hopper/warp_specialized_gemm", "sm_90a", "bfloat16").sass.splitlines()
    code = [line.partition("*/")[2].strip() or line for line in sass]  # a label has no address
    at = next(number for number, line in enumerate(code) if mnemonic in line)
    return "\n".join(code[at - before : at + after + 1])


print(around("USETMAXREG.DEALLOC", 0, 0), around("USETMAXREG.TRY_ALLOC", 2, 2), sep="\n...\n")

# %% [markdown] tags=["lab"]
# Hence **the second trap**. Ask for more than there is, and the loop has no end: no error, no message, a kernel that
# hangs. What was there is what the *launch* gave, 168 for each of three warpgroups, not the whole register file. So
# `Config` adds up, and refuses:

# %% tags=["lab"]
for wanted in ((24, 240), (32, 240), (24, 248), (24, 236)):
    try:
        print(wanted, "fits:", replace(CONFIG, registers=wanted).registers)
    except ValueError as error:
        print(wanted, "refused:", error)

# %% [markdown] tags=["lab"]
# ## The epilogue of the wider tile
#
# 192 columns of C are three atoms of 64 side by side, and 24 threads that share a row would not divide 256. Eight do,
# with 128 bytes each time. Both of its copies should still be at their ideal:

# %% tags=["lab"]
from cookbook.lab import copy_wavefronts

layouts, copies = (evaluate(of, cutlass.BFloat16, LARGE) for of in (smem_layouts, tiled_copies))
for field in copies._fields:
    counted = copy_wavefronts(field, getattr(copies, field), layouts.c)
    print(field, {f"{actual} wavefronts, ideal {ideal}": n for (actual, ideal), n in counted.items()})
draw.access_view(access.of_copy(layouts.c, copies.r2s_c, "dst", "stmatrix", warp=0)[0], title="One stmatrix, 256x192")

# %% [markdown] tags=["lab"]
# ## The prediction
#
# **`setmaxnreg` on the same tile: nothing.** The loop multiplies by the same instructions, and nothing is spilled
# either way. The price is two instructions a CTA.
#
# **The larger tile: less traffic.** A k-tile brings tile_m + tile_n rows and is worth tile_m x tile_n products. Per
# multiplication that is less from L2 for the larger tile. Per clock an SM takes at most 64 bytes from L2, and neither
# tile needs that many. If L2 is not what the loop waits for, less traffic gains no time. (All SMs together get fewer
# bytes: [a wider tile](wide_tile_gemm.ipynb#time). But [the next page](multicast_gemm.ipynb#time) asks L2 for a third
# less, and gains no time.) It saves energy, and a GPU at its power limit clocks higher for it; we do not predict by how
# much.
#
# **The larger tile: other waves.** All 132 SMs take a tile, then the next. The last wave may be nearly empty and takes
# as long as a full one; and tiles that hang over the edge are multiplied in full. So a product takes
#
#     ceil(tiles / 132)  waves  x  ceil(K / 64)  k-tiles  x  tile_m x tile_n x 64 / 2048  clocks,
#
# with NVIDIA's 4 x 512 multiply-adds a clock of an SM. What a tile costs besides, for its first load and for its
# epilogue, is left out. The larger tile has half as much again to store, and two thirds as many tiles to do it for.
# So is the clock, which a GPU at its power limit lowers: these are clocks, and what is measured is time.

# %% tags=["lab"]
SMS, TENSOR_RATE = 132, 4 * 512  # of an H200; multiply-adds a clock of an SM
SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192), (3072, 2112, 4096)]


def up(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def tiles(config: Config, mnk: tuple[int, int, int]) -> int:
    return up(mnk[0], config.tile_m) * up(mnk[1], config.tile_n)


def clocks(config: Config, mnk: tuple[int, int, int]) -> float:
    """Predict the clocks of a product, by waves."""
    k_tile = config.tile_m * config.tile_n * config.tile_k / TENSOR_RATE
    return up(tiles(config, mnk), SMS) * up(mnk[2], config.tile_k) * k_tile


def predicted(mnk: tuple[int, int, int]) -> dict[str, float]:
    """Return how many times as fast as with equal shares each variant is."""
    return {name: clocks(VARIANTS["equal shares"], mnk) / clocks(config, mnk) for name, config in VARIANTS.items()}


rows = []
for config in (CONFIG, LARGE):
    k_tile = config.tile_m * config.tile_n * config.tile_k / TENSOR_RATE
    per_clock = config.stage_bytes / k_tile
    each = config.stage_bytes / (config.tile_m * config.tile_n * config.tile_k / 1000)
    rows.append([f"{config.tile_m}x{config.tile_n}", f"{k_tile:.0f}", f"{each:.1f}", f"{per_clock:.1f}"])
Markdown(
    table(["tile", "clocks of a k-tile", "bytes for 1000 multiply-adds", "bytes a clock and SM; at most 64"], rows)
)

# %% tags=["lab"]
rows = []
for mnk in SHAPES:
    for config in (CONFIG, LARGE):
        waves = tiles(config, mnk) / SMS
        ideal = mnk[0] * mnk[1] * mnk[2] / TENSOR_RATE / SMS
        figures = (f"{tiles(config, mnk)}", f"{waves:.2f}", f"{up(tiles(config, mnk), SMS)}")
        useful = f"{ideal / clocks(config, mnk):.0%}"
        gain = f"{clocks(CONFIG, mnk) / clocks(config, mnk):.2f}x"
        rows.append(["x".join(map(str, mnk)), f"{config.tile_m}x{config.tile_n}", *figures, useful, gain])
header = [
    "M x N x K",
    "tile",
    "tiles",
    "waves",
    "rounded up",
    "useful time of the SMs",
    "predicted speed, of 128x256's",
]
Markdown(table(header, rows, right=2))

# %% [markdown] tags=["lab"]
# So for the two square products we predict a *loss*, and the smaller one more of it. For the third shape, made for the
# purpose, 256x192 tiles fill exactly one wave where 128x256 needs most of two: a gain, and it owes nothing to
# registers or traffic. The waves of the first and the last, drawn:


# %% tags=["lab"]
def waves(config: Config, mnk: tuple[int, int, int]) -> list[Span]:
    """One span a wave: how many tiles it has."""
    count = tiles(config, mnk)
    each = clocks(config, mnk) / up(count, SMS)
    spans = []
    for number in range(up(count, SMS)):
        here = min(SMS, count - number * SMS)
        spans.append(Span(number * each, (number + 1) * each, f"{here}", "full wave" if here == SMS else "last wave"))
    return spans


both = {"128x256": CONFIG, "256x192": LARGE}
rows = {f"{'x'.join(map(str, mnk))}, {name}": waves(c, mnk) for mnk in SHAPES[::2] for name, c in both.items()}
draw.lanes(rows, "Waves of tiles on 132 SMs, predicted", note="a number: tiles of the wave")

# %% [markdown] tags=["lab"]
# ## Check
#
# *Compiled* demands that no kernel spills.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/warp_specialized_gemm", shapes=[(200, 333, 64)], dtypes=["bfloat16"])

# %% [markdown] tags=["lab"]
# ## Time

# %% tags=["lab", "open"]
lab.compare("hopper/warp_specialized_gemm", matmul, (4096, 4096, 4096))

# %% [markdown] tags=["lab"]
# The three and their peers, interleaved in one run on one GPU; "ours" is `setmaxnreg` with the smaller tile, called
# without an argument.

# %% tags=["lab"]
from cookbook.lab import results_table

Markdown(results_table("hopper/warp_specialized_gemm"))

# %% [markdown] tags=["lab"]
# Predicted and measured: how many times as fast as with equal shares.
#
# Before you read a gain off this table, look at two figures of the one above: "ours" and `setmaxnreg` are *the same
# kernel*, timed twice in the same rounds. What lies between them says how far this measurement can tell two kernels
# apart (the last column). A gain that is not larger is none, above all where nothing was predicted.

# %% tags=["lab"]
from cookbook.lab import records


def predicted_and_measured() -> str:
    """A line for every current record and variant, or that there is none."""
    rows = []
    for r in records.of_one_gpu("hopper/warp_specialized_gemm", "timed"):
        ms = {name: r["peers"][name]["median_ms"] for name in VARIANTS}
        twice = abs(r["figures"]["median_ms"] / ms[DEFAULT] - 1)
        for name, gain in predicted(tuple(r["shape"])).items():
            where = [r["device"], "x".join(map(str, r["shape"])), r["dtype"], name]
            rows.append([*where, f"{gain:.2f}x", f"{ms['equal shares'] / ms[name]:.3f}x", f"{twice:.1%}"])
    header = ["device", "M x N x K", "dtype", "variant", "predicted", "measured", "one kernel twice, apart"]
    return table(header, rows, right=4) if rows else "*Not measured yet.*"


Markdown(predicted_and_measured())

# %% [markdown] tags=["lab"]
# On an H200 `setmaxnreg` alone is worth next to nothing, as predicted: hardly more than the spread. The larger tile
# does better at both squares than its waves say. At the smaller it loses less. At the larger, where we predicted a
# loss, no loss stands out, and there is a small gain in bfloat16.
#
# At the third shape it fills its one wave, and the smaller tile not two thirds of its second. It gains most of what the
# waves say and not all. There it is ahead of `torch.matmul`, which the smaller tile is well behind.
#
# The clocks leave out what was left out above. A product that lasts runs at the power limit. There a tile of fewer
# bytes saves energy, and an idle SM leaves its share to the others: both raise the clock. The first speaks for the
# larger tile everywhere. The second speaks for the tile whose waves are less full. At the squares that is the larger
# one, at the third shape the smaller.
#
# That agrees with all three shapes, but no clock was recorded here. How much clocks count, and how much bytes do,
# becomes a rule on [a later page](tile_heuristics.ipynb).

# %% [markdown] tags=["lab"]
# ## Exercises

# %% tags=["lab", "tasks"]
TASKS = {
    "loads_by_the_last_warp": (
        "kernel",
        """\
        if warp_idx == producer:
""",
        """\
        raise NotImplementedError
        if warp_idx == producer:
""",
        (
            "The first warp of the producer's warpgroup loads. Let its last warp do that: change one line, and take "
            "the other one out. It holds for any `config.producer_threads`."
        ),
        (
            "`config.producer_threads` says how many threads the producer has.",
            "The warps of the producer are `producer` to `producer + config.producer_threads // 32 - 1`.",
        ),
        "One warp loads, whichever: the full barriers expect one arrival.",
        """\
        if warp_idx == producer + config.producer_threads // 32 - 1:
""",
    ),
    "kernel_of_helpers": (
        "kernel",
        "if warp_idx == producer:",
        "if warp_idx <= producer + 1:",
        '"Three of the producer\'s four warps are idle. One of them can help."',
        (
            "How many warps call `produce` now? How many k-tiles does each load?",
            "A full barrier expects one arrival, and the bytes of one k-tile.",
        ),
        (
            "Each of two warps loads every k-tile. A full barrier gets two arrivals and twice its bytes, and each "
            "stage is filled a second time while it is read."
        ),
    ),
}

# %% tags=["lab"]
lab.check_exercises("hopper/warp_specialized_gemm")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# `setmaxnreg` gives room, not speed: it moves registers from a role that does not need them to one that does. A larger
# tile is one use, with less traffic and coarser waves. Do the arithmetic for your shapes, and measure where the two
# sides are close. And read the compiler's report before you read a clock.
#
# What a tile costs besides its multiplications can be hidden: persistent CTAs take tile after tile, and load the next
# one while they store, [two pages further on](persistent_gemm.ipynb). In [the tuned GEMM](tuned_gemm.ipynb)
# the registers that the producer gave hold a finished tile while the next is multiplied.
#
# The traffic can be made less without a larger tile, too: neighbours need the same rows and columns.
#
# Next: [TMA multicast in a cluster](multicast_gemm.ipynb), in which neighbours load for each other.
