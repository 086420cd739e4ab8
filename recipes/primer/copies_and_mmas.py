# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Copies and MMAs
#     claim: The names of a kernel's tensors say whose part they are, where it lies, and of which matrix it is.
#     kind: study
#     track: primer
#     order: 50
#     sources:
#       - title: "CUTLASS, the CuTe GEMM tutorial"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0x_gemm_tutorial.html
#       - title: "PTX ISA, asynchronous warpgroup level matrix instructions (wgmma)"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions"
#       - title: "PTX ISA, tcgen05 instructions"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions"
# ---

# %% [markdown]
# # Copies and MMAs
#
# **Claim.** An element of A is in three places: global memory, shared memory, registers. Each has several
# tensors, one for each view, named by one rule: `tCrA` is *this thread's* part, for *C*'s MMA, in *registers*, of *A*.

# %% tags=["lab"]
import inspect

from cookbook import draw, load
from cookbook.lab import find
from cookbook.layouts import evaluate

draw.flow(
    [
        draw.Stop("mA", "the matrix (M, K)", "global memory"),
        draw.Stop("gA", "this CTA's tiles (BLK_M, BLK_K, k)", "global memory"),
        draw.Stop("sA", "the buffers of the pipeline (BLK_M, BLK_K, STAGE)", "shared memory"),
        draw.Stop("tCsA", "this thread's part (MMA, MMA_M, MMA_K, STAGE)", "shared memory"),
        draw.Stop("tCrA", "its operand of one stage (MMA, MMA_M, MMA_K)", "registers"),
        draw.Stop("tCrC", "its accumulators (MMA, MMA_M, MMA_N)", "registers"),
    ],
    [
        "local_tile(mA, tiler, (m, None)): nothing moves",
        "a tiled copy: cp.async, from tAgA to tAsA",
        "thr_mma.partition_A(sA): nothing moves",
        "a tiled copy: ldmatrix, from tXsA to tXrA, which is tCrA retiled",
        "gemm(mma, tCrC, tCrA, tCrB, tCrC): mma.sync",
    ],
    "The path of A on Ampere",
)

# %% [markdown]
# ## The rule
#
# | part of the name | letters |
# |---|---|
# | whose part | none: all (`mA`), or the CTA's (`gA`, `sA`). `tA`, `tB`: copy of A, B. `tC`: MMA. `tX`: other copy |
# | where it lies | `m`: the whole matrix; `g` global, `s` shared, `r` registers, `c` coordinates |
# | of which matrix | `A`, `B`, `C` |
#
# `tAsA` is where this thread's copy of A writes; `tCcC` has the coordinates of this thread's accumulators.
#
# The modes stand in a comment, `# (MMA, MMA_M, MMA_K, STAGE)`. The first is what *one instruction* takes. The next ones
# say how often it is repeated along M, N or K; `tCrA[None, None, k]` is [k-block](../../docs/glossary.md#k-block) k.
#
# ## Atoms
#
# A [copy atom](../../docs/glossary.md#copy-atom) is one copy instruction, an
# [MMA atom](../../docs/glossary.md#mma-atom) one tensor-core instruction: both know which lane holds what. A *tiled*
# copy or MMA repeats the atom over more threads. [`mma.sync`](../../docs/glossary.md#mma-sync) is an instruction of one
# warp, so its tiled MMA takes a grid of warps. Here are 2 x 2 of them on a tile of 32 x 32:

# %%
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warp


def tiled_mma(warps_m: int = 2, warps_n: int = 2) -> cute.TiledMma:
    """mma.sync.m16n8k16 by a grid of warps; warp 1 is below warp 0."""
    atom = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
    return cute.make_tiled_mma(atom, cute.make_layout((warps_m, warps_n, 1)))


def warps_of(make, rows: int, cols: int, *args) -> dict[tuple[int, int], int]:
    """The warp that accumulates each element of a tile of C, for the tiled MMA of `make(*args)`."""
    found = {}

    @cute.jit
    def host():
        mma, cC = make(*args), cute.make_identity_tensor((rows, cols))
        # (MMA, MMA_M, MMA_N) each
        parts = [mma.get_slice(thread).partition_C(cC) for thread in range(mma.size)]
        found.update({tCcC[i]: t // 32 for t, tCcC in enumerate(parts) for i in range(cute.size(tCcC))})

    host()
    return found


# %% tags=["lab"]
owners = warps_of(tiled_mma, 32, 32)
blocks = [[owners[row, col] for col in range(0, 32, 8)] for row in range(0, 32, 16)]
draw.number_grid(blocks, "32 x 32 of C: the warp that accumulates each block of 16 x 8")

# %% [markdown]
# The grid covers 32 x 16 and repeats along N, so MMA_N is 2: each warp issues two instructions for a k-block.
#
# A GEMM nests more levels. Here are those of [ampere/smem_gemm](../ampere/smem_gemm.ipynb), on a product of 512 x 512 x
# 256. First the tile of a CTA, with the rows of A and columns of B that it needs, cut into k-tiles (blue). Then the
# part of a warp, and the instructions of that part. Drawn contiguous: the counts are right, but a warp's instructions
# alternate with those of the other warps.

# %% tags=["lab"]
sizes = load("ampere/smem_gemm").CONFIG
draw.gemm_tiles(
    (512, 512, 256),
    (sizes.tile_m, sizes.tile_n, sizes.tile_k),
    (sizes.warps_m, sizes.warps_n),
    (16, 8, 16),
    title="Product, CTA, warp, instruction",
)

# %% [markdown]
# ## A real kernel
#
# A *k-tile* is a step along K; a *stage* is its buffer. `cp.async` runs on while the thread continues. `commit_group`
# closes the copies issued so far into a group; `wait_group(n)` waits until at most n groups are on the way.
#
# The main loop of [ampere/smem_gemm](../ampere/smem_gemm.ipynb), as it stands in the recipe, line by line:
#
# | line | what it does |
# |---|---|
# | `cp_async_wait_group`, `sync_threads` | the oldest stage of sA and sB is filled, by all threads |
# | `load_tile`, `cp_async_commit_group` | asks for a later k-tile: tAgA to tAsA, tBgB to tBsB; the group may be empty |
# | `cute.copy(..., [None, None, k, read], ...)` | k-block k by `ldmatrix`: tXsA to tXrA, tXsB to tXrB |
# | `cute.gemm(mma, acc, ...)` | adds tCrA times tCrB of k-block k to tCrC, which is called `acc` |
# | `read = ...`, `write = ...` | the next stage, and back to the first |

# %% tags=["lab", "open"]
print(inspect.getsource(inspect.unwrap(load("ampere/smem_gemm").mainloop)))

# %% [markdown]
# `a.smem` is tXsA, `a.into` tXrA, `a.regs` tCrA. The cell prints them for thread 0 and float16; `sA` has all
# [stages](../../docs/glossary.md#stage):


# %%
def shared(dtype, layout) -> cute.Tensor:
    """A tile in shared memory whose composed layout is `layout`: its swizzle goes to the pointer."""
    pointer = cute.make_ptr(dtype, 0, cute.AddressSpace.smem, assumed_align=1024)
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner), layout.outer)


def fragments(recipe, dtype=cutlass.Float16) -> dict[str, str]:
    """The tensors of one stage in the main loop of a GEMM with ldmatrix, and their layouts."""
    config = recipe.CONFIG
    sA, mma = shared(dtype, recipe.smem_layouts(dtype, config).a), recipe.tiled_mma(dtype, config)
    thr, copy = mma.get_slice(0), recipe.tiled_copies(dtype, config).s2r_a.get_slice(0)
    tCsA, tXsA = thr.partition_A(sA)[None, None, None, 0], copy.partition_S(sA)[None, None, None, 0]
    tCrA = mma.make_fragment_A(tCsA)
    found = {"sA": sA, "tCsA": tCsA, "tCrA": tCrA, "tXsA": tXsA, "tXrA": copy.retile(tCrA)}
    return {name: str(tensor) for name, tensor in found.items()}


# %% tags=["lab", "open"]
for name, tensor in evaluate(fragments, load("ampere/smem_gemm")).items():
    print(f"{name:5} {tensor}")

# %% [markdown]
# `sA` is swizzled at the pointer ([composed layouts](composed_layouts.ipynb)). `tCrA`: one instruction takes eight
# values, (2,2,2). Four instructions cover the warp's 64 rows, and a stage has four k-blocks. `tXrA` is the same
# registers as `ldmatrix` fills them, eight at a time. The copy fills them under one name, the MMA reads them under the
# other.
#
# ## Where each tensor core reads from
#
# The tensor core of Hopper ([`wgmma`](../../docs/glossary.md#wgmma)) and of data-center Blackwell
# ([`tcgen05`](../../docs/glossary.md#tcgen05)) reads shared memory without a thread's load. Then `make_fragment_A`
# gives no registers but [descriptors](../../docs/glossary.md#descriptor), 64 bits that say where an operand lies. We
# ask three GEMMs:


# %%
def where(recipe, dtype=cutlass.Float16) -> tuple[str, str]:
    """Return where the MMA of a GEMM takes A from, and where it accumulates, as CuTe makes them."""
    config = recipe.CONFIG
    mma, sA = recipe.tiled_mma(dtype, config), shared(dtype, recipe.smem_layouts(dtype, config).a)
    tCrA = mma.make_fragment_A(mma.get_slice(0).partition_A(sA))
    tCrC = mma.make_fragment_C(mma.partition_shape_C((mma.get_tile_size(0), mma.get_tile_size(1))))
    kinds = {"smem_desc": "descriptors of shared memory", "rmem": "registers", "tmem": "tensor memory"}
    return tuple(next(words for kind, words in kinds.items() if kind in str(x)) for x in (tCrA, tCrC))


# %% tags=["lab", "open"]
for name in ("ampere/smem_gemm", "hopper/tma_wgmma_gemm", "blackwell/tma_tcgen05_gemm"):
    a, c = evaluate(where, load(name), arch=find(name).targets[0])
    print(f"{name}: A from {a}, accumulators in {c}")

# %% [markdown]
# | GPU | instruction, issued by | A from | B from | accumulators |
# |---|---|---|---|---|
# | Ampere, Ada, GeForce Blackwell | `mma.sync`, a warp | registers | registers | registers |
# | Hopper | `wgmma`, a warpgroup | descriptor, or registers | descriptor | registers |
# | data-center Blackwell | `tcgen05.mma`, one thread | descriptor, or tensor memory | descriptor | tensor memory |
#
# Glossary: [warpgroup](../../docs/glossary.md#warpgroup), [tensor memory](../../docs/glossary.md#tmem). `ldmatrix`
# reads through any swizzle; a descriptor names one of a few modes.
#
# ## Exercises
#
# Write, and run the last cell; or `cookbook copy primer/copies_and_mmas my.py` and `cookbook exercise my.py`.


# %%
def name_of(part, memory, matrix):
    """Exercise 1: a tensor's name. part: "CTA", "copy of A" or "MMA"; memory: "global", "shared",
    "registers" or "coordinates"; matrix: "A", "B" or "C"."""
    raise NotImplementedError


def registers_of(tile_m, tile_n, warps_m, warps_n):
    """Exercise 2: a thread's (accumulators, registers of A for one k-block), for a tile and a grid of warps."""
    raise NotImplementedError


def right_of_each_other():
    """Exercise 3: a tiled MMA of 2 x 2 warps, warp 1 to the right of warp 0, warp 2 below it."""
    raise NotImplementedError


# %% tags=["folded"]
def needed_registers(tile_m: int, tile_n: int, *warps: int) -> list[int]:
    """Values of a thread's C, and half of those of its A, as CuTe partitions them."""
    found = []

    @cute.jit
    def host():
        mma = tiled_mma(*warps)
        shapes = mma.partition_shape_C((tile_m, tile_n)), mma.partition_shape_A((tile_m, 16))
        found.extend((cute.size(shapes[0]), cute.size(shapes[1]) // 2))

    host()
    return found


NAMES = {"CTA": ("", "ABC"), "copy of A": ("tA", "A"), "MMA": ("tC", "ABC")}
TILES = (128, 128, 2, 2), (64, 256, 1, 4), (128, 64, 4, 1), (32, 64, 2, 4)
EXERCISES = {
    "name_of": lambda f: [
        (f"{part} {memory} {matrix}", f(part, memory, matrix), f"{own}{memory[0]}{matrix}")
        for part, (own, matrices) in NAMES.items()
        for memory in ("global", "shared", "coordinates", "registers")[: 3 if part == "CTA" else 4]
        for matrix in matrices
    ],
    "registers_of": lambda f: [(f"{size}", list(f(*size)), needed_registers(*size)) for size in TILES],
    "right_of_each_other": lambda f: [
        (f"warp of C[{m}, {n}]", warp, m // 16 * 2 + n // 8) for (m, n), warp in sorted(warps_of(f, 32, 16).items())
    ],
}


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    owners = warps_of(tiled_mma, 32, 32)
    holds = all(warp == m // 16 + 2 * (n // 8 % 2) for (m, n), warp in owners.items())
    return [("the_grid_repeats_along_n", holds, f"warps of row 0: {[owners[0, n] for n in range(0, 32, 8)]}")]


# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("primer/copies_and_mmas")

# %% [markdown]
# Next: [bank conflicts](../foundations/bank_conflicts.ipynb), then a whole GEMM, [for
# Ampere](../ampere/first_gemm.ipynb) and [for Hopper](../hopper/first_gemm.ipynb).
