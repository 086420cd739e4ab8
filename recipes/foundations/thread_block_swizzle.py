# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Thread-block swizzle: rasterization and L2"
#     claim: >-
#       Rasterization, the order in which tiles are computed, decides how much of A and B the GPU reads, and five lines
#       of integer arithmetic halve it.
#     track: foundations
#     order: 80
#     kind: study
#     measures: experiment
#     path: global memory -> L2 -> the CTAs of one wave
#     sources:
#       - title: "CUTLASS issue 1017, how to understand block swizzling"
#         url: https://github.com/NVIDIA/cutlass/issues/1017
#       - title: "NVIDIA, Optimizing Compute Shaders for L2 Locality using Thread-Group ID Swizzling"
#         url: https://developer.nvidia.com/blog/optimizing-compute-shaders-for-l2-locality-using-thread-group-id-swizzling/
#       - title: "Triton's matmul tutorial: L2 cache optimizations"
#         url: "https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html#l2-cache-optimizations"
# ---

# %% [markdown]
# # Thread-block swizzle: rasterization and L2
#
# **Claim.** A GPU computes the tiles of a matrix product in *waves*: as many as fit on it at once. What one wave reads,
# it shares through L2. Which tiles run together is your choice, made by the few lines that turn a CTA's number into a
# tile, and it decides how much of A and B a wave needs. The [other swizzle](../../docs/glossary.md#swizzle) moves bytes
# of shared memory; this one permutes *CTAs*.
#
# C in tiles, twice, with the 132 tiles of the first wave in colour, joined in the order they start. On the left of a
# grid the row panels of A that the wave needs, above it the column panels of B.

# %% tags=["lab"]
from cookbook import draw

ROW_BY_ROW = [divmod(cta, 32) for cta in range(64 * 32)]
IN_16 = [(16 * (cta // 512) + cta % 16, cta % 512 // 16) for cta in range(64 * 32)]
draw.tile_order({"row by row": ROW_BY_ROW, "groups of 16": IN_16}, wave=132, tile=(128, 256))

# %% [markdown]
# The same 132 tiles of work need half as many rows and columns on the right. What that is worth on a GPU, in bytes and
# in time, is [below](#measured): much in bytes, little in time for a product of this size.
#
# Nothing here needs a GPU, or the earlier pages.

# %%
from typing import NamedTuple

import cutlass.cute as cute

# %% [markdown]
# ## One wave, by hand
#
# Take M = N = K = 8192 and tiles of C of 128 x 256. That makes 64 x 32 = 2048 tiles. An H200 has 132 SMs and runs one
# such CTA on each: a wave is 132 tiles, and there are 16 of them, the last one short.
#
# Number the tiles **row by row**. The first wave is tiles 0 to 131: four full rows of 32 tiles and 4 tiles of the
# fifth. It touches 5 row panels of A, 5 x 128 = 640 rows, and *every* column of B: 32 x 256 = 8192. In all 8832 rows
# and columns, each K = 8192 elements long.
#
# Now number them **in groups**: go down 16 rows of tiles, then to the next column, and so on; at the right edge start
# the next 16 rows. The first wave is 8 full columns of 16 tiles and 4 tiles of the ninth. It touches 16 row panels,
# 2048 rows, and 9 column panels, 2304 columns. In all 4352: half as much for the same 132 tiles.

# %%
TILE = (128, 256)  # rows and columns of C that a CTA computes
GRID = (8192 // TILE[0], 8192 // TILE[1])  # tiles down and across
WAVE = 132  # CTAs at once: one on each SM of an H200


def row_by_row(cta: int, grid: tuple[int, int] = GRID) -> tuple[int, int]:
    """The tile (m, n) of a CTA."""
    return cta // grid[1], cta % grid[1]


def in_groups(cta: int, group: int, grid: tuple[int, int] = GRID) -> tuple[int, int]:
    """The tile (m, n) of a CTA: column by column inside groups of `group` rows of tiles."""
    band, inside = divmod(cta, group * grid[1])
    first = band * group
    height = min(grid[0] - first, group)  # the last group may be lower
    return first + inside % height, inside // height


def order(tile_of, grid: tuple[int, int] = GRID) -> list[tuple[int, int]]:
    """The tiles in the order in which the CTAs start."""
    return [tile_of(cta) for cta in range(grid[0] * grid[1])]


def panels(tiles: list[tuple[int, int]]) -> int:
    """Rows of A plus columns of B that these tiles need, in elements."""
    return len({m for m, _ in tiles}) * TILE[0] + len({n for _, n in tiles}) * TILE[1]


def waves(tiles: list[tuple[int, int]]) -> list[int]:
    """Return what each wave needs: rows of A plus columns of B."""
    return [panels(tiles[start : start + WAVE]) for start in range(0, len(tiles), WAVE)]


waves(order(row_by_row))[0], waves(order(lambda cta: in_groups(cta, 16)))[0]

# %% [markdown]
# `in_groups` is what the GEMM kernels of this book do. `tile_of_cta` in
# [the Hopper GEMM](../hopper/tma_wgmma_gemm.ipynb) and `rasterize` in [the Ampere one](../ampere/smem_gemm.ipynb) are
# these lines on the CTA's index, and `Config.swizzle_size` is `group`.
#
# ## All waves, and how high a group?
#
# Waves do not line up with groups: 132 is not a multiple of anything here. So take the mean over all 16 waves:


# %%
def mean_of_waves(tiles: list[tuple[int, int]]) -> float:
    """Rows of A plus columns of B that a wave needs, on average."""
    needed = waves(tiles)
    return sum(needed) / len(needed)


GROUPS = (8, 16, 32)
means = {"row by row": mean_of_waves(order(row_by_row))}
means |= {f"groups of {g}": mean_of_waves(order(lambda cta, g=g: in_groups(cta, g))) for g in GROUPS}
means

# %% [markdown]
# The best group makes the block of tiles *square in elements*. 132 tiles cover 132 x 128 x 256 elements. A square of
# that area has a side of about 2080, and no shape of that area has a smaller sum of sides than 2 x 2080 = 4160. With
# groups of 16 a wave is 2048 rows high, and its 4352 are near the bound.
#
# **The trap: higher is not better.** Groups of 32 are 4096 rows high, and the wave becomes tall and thin: almost as bad
# as groups of 8, which make it flat. And a wave that ends one group and begins the next needs two sets of panels, which
# is why the means of groups lie above the figures of their first waves.
#
# ## A curve that is better at everything else
#
# A Hilbert curve visits a square so that whatever piece you cut out of it is compact, at *every* scale. Surely that
# beats crude groups?


# %%
def hilbert(step: int, size: int) -> tuple[int, int]:
    """The point of a Hilbert curve through a square of `size` x `size` (a power of two) after `step` steps."""
    m = n = 0
    side = 1
    while side < size:
        down = step >> 1 & 1
        right = (step ^ down) & 1
        if not right:  # turn the quadrant
            if down:
                m, n = side - 1 - m, side - 1 - n
            m, n = n, m
        m, n, step, side = m + side * down, n + side * right, step >> 2, side * 2
    return m, n


def hilbert_order(grid: tuple[int, int] = GRID) -> list[tuple[int, int]]:
    """The tiles in the order of a curve through the smallest square that holds them."""
    size = 1 << (max(grid) - 1).bit_length()
    curve = (hilbert(step, size) for step in range(size * size))
    return [(m, n) for m, n in curve if m < grid[0] and n < grid[1]]


means["Hilbert"] = mean_of_waves(hilbert_order())
means

# %% [markdown]
# Better than groups of 8 or 32, worse than 16. The curve's blocks are 4, 16, 64, 256 tiles, and a wave has 132; and its
# blocks are square in *tiles*, while ours are 128 x 256. The crude rule has a parameter, to be set for the machine.
#
# ## What that means for memory
#
# A CTA reads its own rows and columns, shared or not: 128 + 256 of them, so a wave asks L2 for 132 x 384 = 50688. What
# the wave *needs* is what has to come from memory at least once; the rest, L2 can serve. That bounds the hit rate, if
# L2 keeps nothing of the wave before and everything of this one:


# %%
def hit_rate(tiles: list[tuple[int, int]]) -> float:
    """The share of all reads that L2 can serve, if each wave fetches what it needs once."""
    return 1 - sum(waves(tiles)) / (len(tiles) * sum(TILE))


orders = {"row by row": order(row_by_row)}
orders |= {f"groups of {g}": order(lambda cta, g=g: in_groups(cta, g)) for g in GROUPS}
orders["Hilbert"] = hilbert_order()
{name: round(hit_rate(tiles), 3) for name, tiles in orders.items()}

# %% [markdown]
# The first wave of each order:

# %% tags=["lab"]
draw.tile_order(orders, wave=WAVE, tile=TILE)

# %% [markdown] tags=["lab"]
# A later wave, the fourth, in which the groups of 16 pass from the first group to the second:

# %% tags=["lab"]
draw.tile_order({name: orders[name] for name in ("groups of 16", "Hilbert")}, wave=WAVE, tile=TILE, show=3)

# %% [markdown]
# The model is simple: it knows no cache size, no lines that are evicted, no CTA that runs ahead. All the CTAs of a wave
# go along K together, so what L2 must hold at any moment is a slice of these panels, which fits. It says which order is
# better and why; by how much, only a measurement can say.
#
# ## An experiment
#
# `swizzle_size` changes the rasterization of a GEMM of this book. It is CUTLASS's word; Triton says `GROUP_SIZE_M`. It
# has nothing to do with the swizzle of shared memory. Groups of a single row *are* the order row by row. One group as
# high as C goes column by column: its waves are 64 tiles high and hardly more than two wide.
#
# So one kernel can be run in five orders that differ in nothing else: how much does each read from memory, and how long
# does it take? Next to the counts stands what the model allows each wave, in bytes.


# %%
class Experiment(NamedTuple):
    """A GEMM recipe's kernel, to be measured in several configurations."""

    recipe: str
    shape: tuple[int, int, int]  # M, N, K
    dtype: str
    configs: dict[str, dict[str, int]]  # by name: the fields of the recipe's Config that change
    read_bytes: dict[str, int]  # by name: what the model has it read from memory


RASTERS = {"row by row": 1, "groups of 8": 8, "groups of 16": 16, "groups of 32": 32, "column by column": GRID[0]}
DEPTH = 8192  # K, in elements of 2 bytes


def read_bytes(group: int) -> int:
    """Return what all waves need of A and B together, if each fetches it once."""
    return sum(waves(order(lambda cta: in_groups(cta, group)))) * DEPTH * 2


EXPERIMENT = Experiment(
    recipe="hopper/tma_wgmma_gemm",
    shape=(GRID[0] * TILE[0], GRID[1] * TILE[1], DEPTH),
    dtype="bfloat16",
    configs={name: {"swizzle_size": group} for name, group in RASTERS.items()},
    read_bytes={name: read_bytes(group) for name, group in RASTERS.items()},
)
{name: f"{read / 1e9:.2f} GB" for name, read in EXPERIMENT.read_bytes.items()}

# %% [markdown] tags=["lab"]
# ## Measured
#
# The experiment, in `bfloat16`. `cookbook check foundations/thread_block_swizzle --tools --record` runs it on an H200.
# The five orders are timed alternately in one process. Nsight Compute counts what each reads from memory, and how many
# of its reads L2 can answer, beginning with an empty L2.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import experiment_table

Markdown(experiment_table("foundations/thread_block_swizzle"))

# %% [markdown] tags=["lab"]
# The groups come out in the model's order and near its figures. Row by row reads clearly more than it allows, as it
# would if L2 lost part of what the waves need; column by column hardly more. In time all this is worth much less than
# in bytes: even row by row asks memory for a fraction of [its rate](memory_ceiling.ipynb). The groups lie so close to
# each other that their own ranges overlap.
#
# Two things to mind in the table. The model's bytes are no bound from below: what a wave leaves in L2, the next may
# still find there. And a hit counted by L2 is not quite the model's hit: L2 is in two halves, and what a half fetches
# from the other is looked up twice. The bytes from memory are the figure to compare.
#
# And one thing that the model leaves out: where on the chip a CTA runs. Simultaneous requests for one line by the SMs
# of a GPC reach L2 once, so that the same order of tiles can cost L2 more reads or fewer. That is
# [GPC-aware cluster remapping](gpc_remapping.ipynb).

# %% [markdown]
# ## The same as a CuTe layout
#
# With 64 rows of tiles and groups of 16, the order is a layout: from the CTA's number to m + 64 n. Sixteen tiles down
# (stride 1), 32 across (stride 64), four groups (stride 16):
#
#     (16,32,4):(1,64,16)
#
# and its inverse says which CTA computes a tile.


# %%
def ask_cute(question, *args):
    """Return what question(*args) returns inside CuTe, where layouts can be made. No kernel is built, no GPU is
    used."""
    answers = []

    @cute.jit
    def host():
        answers.append(question(*args))

    cute.compile(host, options="--gpu-arch sm_90a")
    return answers[0]


def raster(group: int, grid: tuple[int, int] = GRID) -> cute.Layout:
    """CTA -> m + rows * n, for a number of rows of tiles that `group` divides."""
    if grid[0] % group:
        raise ValueError(f"group: got {group}; needed a divisor of the {grid[0]} rows of tiles")
    return cute.make_layout((group, grid[1], grid[0] // group), stride=(1, grid[0], group))


def tiles_of(group: int) -> list[tuple[int, int]]:
    """The tiles that CuTe's layout gives the first 600 CTAs: more than one group."""
    layout = raster(group)
    return [(layout(cta) % GRID[0], layout(cta) // GRID[0]) for cta in range(600)]


def raster_and_inverse(group: int) -> tuple[str, str]:
    """The layout and its inverse, printed."""
    return str(raster(group)), str(cute.right_inverse(raster(group)))


ask_cute(raster_and_inverse, 16)

# %% [markdown]
# **The trap: sizes that the group does not divide.** Ten rows of tiles, groups of 8: the second group has only two.
# Without the `min` in `in_groups` its columns would still be 8 high. Tiles below the matrix are computed, and tiles of
# the matrix are not:


# %%
def without_min(cta: int, group: int, grid: tuple[int, int]) -> tuple[int, int]:
    """The wrong version: every group is taken to be `group` high."""
    band, inside = divmod(cta, group * grid[1])
    return band * group + inside % group, inside // group


def missed(tile_of, grid: tuple[int, int]) -> int:
    """Return how many tiles of the grid no CTA computes."""
    return grid[0] * grid[1] - len({(m, n) for m, n in order(tile_of, grid) if m < grid[0] and n < grid[1]})


RAGGED = (10, 6)
{
    "in_groups": missed(lambda cta: in_groups(cta, 8, RAGGED), RAGGED),
    "without min": missed(lambda cta: without_min(cta, 8, RAGGED), RAGGED),
}

# %% [markdown]
# No layout can express that order, because its parts are unequal: `raster` refuses it, and the kernels compute it.
#
# **The trap: trusting the order.** CUDA promises nothing about which CTA starts when. In practice the hardware starts
# them by increasing number, as SMs become free, and a permutation such as this one is *correct in any case*: it can
# cost time, never the result. (A persistent kernel, which starts as many CTAs as there are SMs and gives them tiles
# itself, decides on its own.)
#
# The GEMM recipes' own configurations:

# %% tags=["lab"]
import cookbook

for name in ("ampere/ldmatrix_gemm", "hopper/tma_wgmma_gemm"):
    config = cookbook.load(name).CONFIG
    print(f"{name}: tiles of {config.tile_m} x {config.tile_n}, swizzle_size {config.swizzle_size}")

# %% [markdown]
# ## Check
#
# `cookbook check foundations/thread_block_swizzle` computes each claim of this page, by these lines:


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    wanted = {"row by row": 8816, "groups of 8": 5696, "groups of 16": 4672, "groups of 32": 5600, "Hilbert": 5248}
    found = {name: mean_of_waves(tiles) for name, tiles in orders.items()}
    first = [waves(orders[name])[0] for name in ("row by row", "groups of 16")]
    covered = all(len(set(tiles)) == GRID[0] * GRID[1] for tiles in orders.values())
    ones = order(lambda cta: in_groups(cta, 1)) == orders["row by row"]
    ragged = [missed(lambda cta, f=f: f(cta, 8, RAGGED), RAGGED) for f in (in_groups, without_min)]
    same = ask_cute(tiles_of, 16) == orders["groups of 16"][:600]
    layout = ask_cute(raster_and_inverse, 16)[0]
    return [
        ("means_of_waves", found == wanted, f"rows + columns a wave: {found}"),
        ("first_waves", first == [8832, 4352], f"row by row, groups of 16: {first}"),
        ("every_tile_once", covered, f"{len(orders)} orders of {GRID[0] * GRID[1]} tiles"),
        ("groups_of_one_are_rows", ones, "the order row by row; needed for the experiment"),
        ("as_a_layout", same and layout == "(16,32,4):(1,64,16)", layout),
        ("a_ragged_grid", ragged[0] == 0 < ragged[1], f"tiles missed of 10 x 6, with and without min: {ragged}"),
    ]


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/thread_block_swizzle my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** Ask the reverse question: which CTA computes a tile?


# %%
def cta_of(m, n, group, grid):
    """Exercise 1, finish it: the CTA that computes tile (m, n) of a grid (tiles down, tiles across), where the tiles
    are numbered by `in_groups`. The last group may be lower."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# How many tiles do the groups above this one have? They are all of full height.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Inside the group the tiles are numbered column by column. How high is a column of the last group?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# def cta_of(m, n, group, grid):
#     first = m // group * group
#     height = min(grid[0] - first, group)
#     return first * grid[1] + n * height + m - first
# ```
#
# </details>
#
# **Find the bug.** Groups of *columns* of tiles, numbered row by row inside each group: right for a grid that the group
# divides. Of 10 x 6 tiles in groups of 4 it misses some.


# %%
def in_groups_of_columns(cta, group, grid):
    """Exercise 2, find the bug: the tile (m, n) of a CTA, row by row inside groups of `group` columns of tiles."""
    band, inside = divmod(cta, group * grid[0])
    first = band * group
    width = min(grid[1] - first, group)
    return inside // group, first + inside % width


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# The last group of 10 x 6 tiles has two columns. Print the tiles of CTAs 40 to 47.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# After how many tiles does a row of that group end? Which of the two results knows?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# A row of the last group ends after `width` tiles, not after `group`.
#
# ```python
# def in_groups_of_columns(cta, group, grid):
#     band, inside = divmod(cta, group * grid[0])
#     first = band * group
#     width = min(grid[1] - first, group)
#     return inside // width, first + inside % width
# ```
#
# </details>


# %% tags=["folded"]
def check_columns(answer):
    """Tiles that are missed; then the tile of every CTA, which is `in_groups` of the grid on its side."""
    for grid, group in (((8, 8), 4), ((10, 6), 4), ((5, 7), 3), ((3, 2), 4)):
        said = f"{grid[0]} x {grid[1]} tiles, groups of {group}"
        yield f"{said}: tiles that no CTA computes", missed(lambda cta, d=(group, grid): answer(cta, *d), grid), 0
        for cta in range(grid[0] * grid[1]):
            yield f"{said}: CTA {cta}", tuple(answer(cta, group, grid)), in_groups(cta, group, grid[::-1])[::-1]


EXERCISES = {
    "cta_of": lambda f: (
        (f"{grid[0]} x {grid[1]} tiles, groups of {group}: tile ({m}, {n})", f(m, n, group, grid), cta)
        for grid, group in (((8, 6), 4), ((10, 6), 8), ((7, 5), 3), ((5, 9), 8))
        for cta in range(grid[0] * grid[1])
        for m, n in [in_groups(cta, group, grid)]
    ),
    "in_groups_of_columns": check_columns,
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/thread_block_swizzle")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# The order of the tiles is a permutation of CTA numbers. It changes no result, costs five integer operations, and
# halves what a wave needs of A and B; the right height makes a wave's block square in elements. A cluster that loads
# by multicast does the same one level lower: its CTAs share a row or column panel in shared memory.
#
# Next: [the transpose](matrix_transpose.ipynb), which puts the swizzles of shared memory to work; or the kernel whose
# tiles these are, [the Hopper GEMM](../hopper/tma_wgmma_gemm.ipynb).
