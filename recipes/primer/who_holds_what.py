# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Who holds what
#     claim: A layout of (thread, value) says which elements of a tile each thread has; partitioning hands them out.
#     kind: study
#     track: primer
#     order: 30
#     targets: [sm_80, sm_90a, sm_100a]
#     runs_on: sm_80+
#     instructions: [LDG.E.128, STG.E.128]
#     sources:
#       - title: "CUTLASS, CuTe's MMA atoms"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0t_mma_atom.html
#       - title: "CUTLASS, predication"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0y_predication.html
#       - title: "PTX ISA, matrix fragments for mma.m16n8k16"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float"
# ---

# %% [markdown]
# # Who holds what
#
# **Claim.** Who has which element of a tile is a [layout](../../docs/glossary.md#layout) too. It takes (thread, value)
# and gives a place in the tile: a [TV layout](../../docs/glossary.md#tv-layout). T3 V1 is thread 3's second value.

# %% tags=["lab"]
from cookbook import draw
from cookbook.layouts import Layout, evaluate

tv = Layout(((2, 4), 4), ((16, 1), 4))
draw.tv_view(tv, (4, 8), axes=("M", "N"), title=f"{tv}: eight threads, four values each")

# %% [markdown]
# Places are numbered by columns: place 1 is (1, 0), place 4 is (0, 1). The first mode is the thread's: thread 1
# begins 16 places after thread 0, four columns on; thread 2 begins one place after thread 0, a row down. The second is
# the value's: the next one is 4 places on, a column.
#
# A [tiled copy](../../docs/glossary.md#tiled-copy) is an instruction and a TV layout. One gives it as two layouts, the
# other way round: from (row, column) to the number of a thread, and from (row, column) to the number of its value.
# `CopyUniversalOp` is an ordinary load or store, here of 128 bits.

# %%
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import warp
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor


def two_to_a_row():
    """Return where eight threads stand, and the four values of each."""
    return cute.make_layout((4, 2), stride=(2, 1)), cute.make_layout((1, 4))


def tiled_copy(layouts=two_to_a_row) -> cute.TiledCopy:
    """16 bytes a thread, of float32."""
    wide = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cutlass.Float32, num_bits_per_copy=128)
    return cute.make_tiled_copy_tv(wide, *layouts())


# %% [markdown]
# ## Partitioning
#
# `get_slice(t)` is thread t's view of a tiled copy. Its [`partition_S`](../../docs/glossary.md#partition) (source) and
# `partition_D` (destination) give that thread's elements of a tile, of any size, as a tensor of three modes, (CPY,
# CPY_M, CPY_N). `CPY` counts the elements of one instruction; `CPY_M` and `CPY_N` count its repetitions down and
# across. `parts` partitions an [identity tensor](../../docs/glossary.md#identity-tensor), whose element at (i, j) *is*
# (i, j), so it returns the coordinates of each thread's elements.


# %%
def parts(part, threads: int, shape: tuple[int, int]) -> list[list[tuple[int, int]]]:
    """For each thread, the coordinates of its values: of what `part(thread, tensor)` takes of a tile."""
    found = []

    @cute.jit
    def host():
        for thread in cutlass.range_constexpr(threads):
            tXcX = part(thread, cute.make_identity_tensor(shape))
            found.append([tXcX[i] for i in range(cute.size(tXcX))])

    host()
    return found


# %% tags=["lab"]
mine = parts(lambda t, cX: tiled_copy().get_slice(t).partition_S(cX), 8, (8, 16))
owner = {place: thread for thread, places in enumerate(mine) for place in places}
table = [[owner[row, col] for col in range(16)] for row in range(8)]
draw.number_grid(table, "The thread of each element of 8 x 16; framed: thread 3", mark=mine[3])

# %% [markdown]
# ## A ragged edge
#
# Our matrix is 10 x 20, a tile 8 x 16: three of the four tiles stick out. A
# [predicate](../../docs/glossary.md#predicate) says of each instruction whether it copies. We take it from the
# coordinates. One comparison serves four values: N is a multiple of 4, so the four are all inside or all outside.
# [`make_fragment_like`](../../docs/glossary.md#fragment) makes a tensor in registers, of the partition's shape.

# %%
TILE = (8, 16)


@cute.jit
def copy_part(mX: cute.Tensor, mY: cute.Tensor, tile: tuple, thread: cutlass.Int32):
    """Thread `thread` copies its part of a tile of mX to mY, both (M, N), by way of registers."""
    copy = tiled_copy()
    thr = copy.get_slice(thread)
    gX, gY = cute.local_tile(mX, TILE, tile), cute.local_tile(mY, TILE, tile)
    cX = cute.local_tile(cute.make_identity_tensor(mX.shape), TILE, tile)  # of the whole matrix
    # (CPY, CPY_M, CPY_N) each
    tXgX, tXgY, tXcX = thr.partition_S(gX), thr.partition_D(gY), thr.partition_S(cX)
    tXrX = cute.make_fragment_like(tXgX)
    inside = cute.make_rmem_tensor((1, *tXcX.shape[1:]), cutlass.Boolean)  # (1, CPY_M, CPY_N)
    for m in cutlass.range_constexpr(inside.shape[1]):
        for n in cutlass.range_constexpr(inside.shape[2]):
            inside[0, m, n] = cute.elem_less(tXcX[0, m, n], mX.shape)  # row and column are both less
    cute.copy(copy, tXgX, tXrX, pred=inside)
    cute.copy(copy, tXrX, tXgY, pred=inside)


@cute.kernel
def copy_kernel(mX: cute.Tensor, mY: cute.Tensor):
    """A CTA of eight threads for each tile."""
    (thread, _, _), (m, n, _) = cute.arch.thread_idx(), cute.arch.block_idx()
    copy_part(mX, mY, (m, n), thread)


@cute.jit
def launch(mX: cute.Tensor, mY: cute.Tensor):
    """mY = mX, on a GPU."""
    copy_kernel(mX, mY).launch(grid=(*cute.ceil_div(mX.shape, TILE), 1), block=(8, 1, 1))


@cute.jit
def each_part(body: cutlass.Constexpr, mX: cute.Tensor, mY: cute.Tensor):
    """body(mX, mY, tile, thread) for every tile and thread, on the CPU."""
    tiles = cute.ceil_div(mX.shape, TILE)
    for i in cutlass.range(cute.size(tiles) * 8):
        body(mX, mY, (i // 8 % tiles[0], i // 8 // tiles[0]), i % 8)


def compile_for(arch: str, options: str = ""):
    """The launch, compiled for `arch` ("sm_90a"); no GPU is needed."""
    shape = cute.sym_int32(), cute.sym_int32(divisibility=4)
    mX = make_fake_compact_tensor(cutlass.Float32, shape, stride_order=(1, 0), assumed_align=16)
    return cute.compile(launch, mX, mX, options=f"--gpu-arch {arch} {options}".strip())


# %% tags=["lab", "open"]
x, y = torch.randn(10, 20), torch.full((16, 20), -1.0)
each_part(copy_part, *(from_dlpack(z, assumed_align=16) for z in (x, y[:10])))
print("copied:", torch.equal(x, y[:10]), "untouched below:", bool((y[10:] == -1).all()))
if torch.cuda.is_available():
    x, y = torch.randn(2, 1001, 2004, device="cuda")
    launch(*(from_dlpack(z, assumed_align=16) for z in (x, y)))
    torch.cuda.synchronize()
    print("copied on the GPU:", torch.equal(x, y))

# %% [markdown]
# ## What a tensor core hands out
#
# An [MMA](../../docs/glossary.md#mma-atom) fixes which thread holds which element; there is no choice. A [tiled
# MMA](../../docs/glossary.md#tiled-mma) has `partition_A`, `partition_B` and `partition_C` for it. C of the 16 x 8 x 16
# instruction: a thread has two neighbours of a row, and two more eight rows below.


# %%
def tiled_mma() -> cute.TiledMma:
    """mma.sync.m16n8k16 of one warp."""
    return cute.make_tiled_mma(warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16)))


def of_c(thread, cC):
    return tiled_mma().get_slice(thread).partition_C(cC)


# %% tags=["lab"]
draw.tv_view(evaluate(tiled_mma).c, (16, 8), axes=("M", "N"), title="C of m16n8k16: 32 threads, four values each")

# %% [markdown]
# ## One set of registers, two shapes
#
# Registers that an MMA wants in one shape are often filled by a copy that sees them in another. A thread has eight
# elements of a 16 x 16 A. This MMA counts them as (neighbours along K, half of the rows, half of K):
# [`ldmatrix`](../../docs/glossary.md#ldmatrix) brings all eight at once. [`retile`](../../docs/glossary.md#retile)
# gives the same registers in the copy's modes:

# %% tags=["lab", "open"]
seen = []


@cute.jit
def both_shapes():
    """Note a thread's part of A as the MMA sees it, and as `ldmatrix` does."""
    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), cutlass.Float16)
    copy = cute.make_tiled_copy_A(ldmatrix, tiled_mma())
    rA = cute.make_rmem_tensor(tiled_mma().partition_shape_A((16, 16)), cutlass.Float16)
    seen.extend([("to the MMA", str(rA.layout)), ("to ldmatrix", str(copy.get_slice(0).retile(rA).layout))])


both_shapes()
for to, layout in seen:
    print(f"{to:12}{layout}")

# %% [markdown]
# Both layouts take the numbers 0 to 7 to the registers 0 to 7. Nothing is moved: the copy fills what the MMA reads. A
# copy into registers wants `retile(rA)` as its destination; `cute.gemm` wants `rA`.

# %% [markdown]
# ## Exercises
#
# Write, and run the last cell; or `cookbook copy primer/who_holds_what my.py` and `cookbook exercise my.py`.


# %%
def four_to_a_row():
    """Exercise 1: layouts for `tiled_copy`: 32 threads on 8 x 16, four to a row, 1 right of 0."""
    raise NotImplementedError


def holder(row, col):
    """Exercise 2: (thread, value) that has C[row, col] of the instruction above, as numbers."""
    raise NotImplementedError


@cute.jit
def add_one_part(mX: cute.Tensor, mY: cute.Tensor, tile: tuple, thread: cutlass.Int32):
    """Exercise 3: mY = mX + 1, like `copy_part`. N may be odd: compare for each element."""
    raise NotImplementedError


# %% tags=["folded"]
def added(body, rows: int, cols: int, run=each_part) -> list[list[float]]:
    """mY after `body` did every part of mX = 1, 2, 3, ...; below it, a tile's rows that began as -1."""
    x, y = torch.arange(1.0, rows * cols + 1).reshape(rows, cols), torch.full((rows + 8, cols), -1.0)
    run(body, from_dlpack(x), from_dlpack(y[:rows]))
    return y.tolist()


@cute.jit
def one_part(body: cutlass.Constexpr, mX: cute.Tensor, mY: cute.Tensor):
    """The part of thread 5 of the first tile."""
    body(mX, mY, (0, 0), 5)


def check_add_one(f):
    """All parts together, at ragged sizes; then how many elements of a whole tile are one thread's."""
    for m, n in ((3, 5), (9, 17)):
        yield f"{m} x {n}", added(f, m, n), [[2.0 + n * i + j for j in range(n)] for i in range(m)] + [[-1.0] * n] * 8
    yield "elements that one thread writes", sum(v > 0 for row in added(f, 16, 32, one_part) for v in row), 16


EXERCISES = {
    "four_to_a_row": lambda f: [
        (f"thread {t}", got, [(t // 4, 4 * (t % 4) + v) for v in range(4)])
        for t, got in enumerate(parts(lambda t, cX: tiled_copy(f).get_slice(t).partition_S(cX), 32, (8, 16)))
    ],
    "holder": lambda f: [
        (f"C[{m}, {n}]", f(m, n), (t, v))
        for t, of_t in enumerate(parts(of_c, 32, (16, 8)))
        for v, (m, n) in enumerate(of_t)
    ],
    "add_one_part": check_add_one,
}


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    fifth = parts(of_c, 32, (16, 8))[5]
    return [("thread_5_of_the_mma", fifth == [(1, 2), (1, 3), (9, 2), (9, 3)], f"T5 of C: {fifth}")]


# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("primer/who_holds_what")

# %% [markdown]
# Next: [composed layouts](composed_layouts.ipynb).
