# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Serpentine K: begin where L2 still holds the panels"
#     claim: >-
#       Every other tile goes along K backwards, and begins with what L2 still holds. A model of L2 in two dozen lines
#       predicts within 5% what ten of eleven kernels read from memory.
#     track: foundations
#     order: 82
#     kind: study
#     aside: What a GPU can do
#     builds_on: foundations/thread_block_swizzle
#     path: global memory -> L2 -> the CTAs of one wave, and of the next
#     sources:
#       - title: "Mattson et al., Evaluation techniques for storage hierarchies: caches that drop the oldest line"
#         url: "https://doi.org/10.1147/sj.92.0078"
#       - title: "Nsight Compute, the memory chart and its units"
#         url: "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#memory-chart"
# ---

# %% [markdown]
# # Serpentine K: begin where L2 still holds the panels
#
# **Claim.** The CTAs of a wave go along K together, so at its end L2 holds the last k-tiles of their panels. The next
# wave often needs the same panels. If it goes along K *backwards*, it begins with what L2 holds. A model of L2 in two
# dozen lines predicts within 5% what ten of eleven kernels read from memory.
#
# One panel of 8 k-tiles, three times, and a cache with room for 4 of them. A number is a k-tile:

# %% tags=["lab"]
import cookbook
from cookbook import draw

page = cookbook.load("foundations/serpentine")  # this page's own code, which follows below
rows = {}
for name, serpentine in (("forwards", False), ("serpentine", True)):
    lines = [("A", 0, k, 1) for tile in range(3) for k in page.k_order(tile, 8, serpentine)]
    found = ("from L2" if hit else "from memory" for hit in page.hits(lines, 4))
    rows[name] = [
        draw.Span(i, i + 1, str(line[2]), kind) for i, (line, kind) in enumerate(zip(lines, found, strict=True))
    ]
draw.lanes(rows, "A panel of 8 k-tiles, a cache of 4", unit="k-tiles")

# %% [markdown]
# Forwards, the cache finds nothing again: it drops each k-tile just before it is needed. The serpentine order finds
# half of the second tile's k-tiles, and half of the third's.
#
# A *panel* is what a tile reads of A, all of K for its rows, or of B, for its columns. A *k-tile* is a step along K: 64
# elements. [Thread-block swizzle](thread_block_swizzle.ipynb) chose which tiles run together, and counted each wave by
# itself. This page asks what a wave finds of the wave *before* it. A [persistent
# kernel](../hopper/persistent_gemm.ipynb) can choose the order of K: its CTAs know whether their next tile is an odd
# one. Nothing here needs a GPU.

# %%
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from cookbook.recipes.foundations.thread_block_swizzle import TILE, WAVE, in_groups

# %% [markdown]
# ## The question, by hand
#
# Take tiles of 128 x 256 and waves of 132 tiles, in groups of 16 rows of tiles. A wave of a large product needs 16
# panels of A and 9 of B: 2048 rows and 2304 columns. A k-tile of all of them is 4352 x 64 elements, 557 kB. With K =
# 8192 a wave has 128 k-tiles: 71 MB. The L2 of an H100 or an H200 has 50 MB.
#
# The next wave needs the same 16 panels of A, and nine panels of B of which eight are others. Forwards, it begins with
# k-tile 0 of A. Since that was read, 71 MB went through L2. It is gone.
#
# Backwards, it begins with k-tile 127. Since that was read, hardly anything went through L2: it is found. So is k-tile
# 127 - d, as long as the reads in between fit: d k-tiles of the old wave, and d of the new panels of B. In 50 MB that
# is d = 58 of 128 k-tiles, less what C takes.
#
# ## The model
#
# L2 is a cache that drops the line that was used longest ago. The CTAs of a wave go along K in step. Each k-tile of a
# panel is read once for all of them. After the last k-tile C passes through the cache as well.


# %%
TILE_K = 64  # elements of a k-tile along K, of 2 bytes
Line = tuple[str, int, int, int]  # operand, panel, k-tile, bytes; of C: row and column of the tile


def k_order(iteration: int, k_tiles: int, serpentine: bool) -> range:
    """The k-tiles of a tile iteration, in the order in which they are read."""
    return range(k_tiles)[::-1] if serpentine and iteration % 2 else range(k_tiles)


def lines_of(waves: list[list[tuple[int, int]]], tile: tuple, k_tiles: int, serpentine: bool) -> Iterator[Line]:
    """What the waves touch, in order: the k-tiles of their panels, and after each wave its tiles of C."""
    for iteration, tiles in enumerate(waves):
        rows, columns = ({place[mode] for place in tiles} for mode in (0, 1))
        panels = [*(("A", m, tile[0]) for m in rows), *(("B", n, tile[1]) for n in columns)]
        for k in k_order(iteration, k_tiles, serpentine):
            yield from ((name, i, k, rows * TILE_K * 2) for name, i, rows in panels)
        yield from (("C", m, n, tile[0] * tile[1] * 2) for m, n in tiles)


def hits(lines: Iterable[Line], cache_bytes: float) -> list[bool]:
    """Whether the cache holds each line when it is used. It drops what was used longest ago."""
    held, room, found = OrderedDict(), cache_bytes, []
    for line in lines:
        found.append(line in held)
        room += held.pop(line, 0) - line[-1]
        held[line] = line[-1]  # behind all others: used last
        while room < 0:
            room += held.popitem(last=False)[1]
    return found


def bytes_read(waves: list, tile: tuple, k_tiles: int, cache_bytes: float, serpentine: bool) -> int:
    """Bytes of A and B that come from memory."""
    lines = list(lines_of(waves, tile, k_tiles, serpentine))
    return sum(
        line[-1] for line, hit in zip(lines, hits(lines, cache_bytes), strict=True) if not hit and line[0] != "C"
    )


# %% [markdown]
# Which tiles form a wave is `in_groups`, [the page before](thread_block_swizzle.ipynb)'s. With clusters it numbers
# cluster tiles.


# %%
def waves_of(grid: tuple, group: int, ctas: int = WAVE, cluster: tuple = (1, 1)) -> list[list[tuple[int, int]]]:
    """The tiles of each wave of `ctas` CTAs, numbered in groups of `group` rows of tiles."""
    down, across = (-(-tiles // each) for tiles, each in zip(grid, cluster, strict=True))
    count, order = ctas // (cluster[0] * cluster[1]), []
    for number in range(down * across):
        m, n = in_groups(number, group // cluster[0], (down, across))
        inside = [(i, j) for i in range(cluster[0]) for j in range(cluster[1])]
        order.append([(m * cluster[0] + i, n * cluster[1] + j) for i, j in inside])
    waves = (order[i : i + count] for i in range(0, len(order), count))
    return [[tile for tiles in wave for tile in tiles] for wave in waves]


def read_of(size: int, cache_bytes: float, serpentine: bool) -> int:
    """Bytes of A and B that a product of `size` cubed reads from memory, with tiles of TILE in groups of 16."""
    waves = waves_of((-(-size // TILE[0]), -(-size // TILE[1])), 16)
    return bytes_read(waves, TILE, -(-size // TILE_K), cache_bytes, serpentine)


{f"serpentine: {serpentine}": f"{read_of(8192, 37e6, serpentine) / 1e9:.2f} GB" for serpentine in (False, True)}

# %% [markdown]
# Backwards, the same product reads less. How much less depends on the cache: L2 is in two halves, and both may hold a
# line. If both hold every line, there is room for 25 MB; if none is there twice, for 50 MB. The next cells also take 37
# MB, between these bounds. Of what the waves need, this part is still there from the wave before:

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import records, table

CACHES = (25e6, 37e6, 50e6)
orders = {"forwards": False, "serpentine": True}
needed = read_of(8192, 1e6, False)  # each wave for itself: nothing is left of the one before


def found_of(order: bool) -> list[draw.Point]:
    """Percent of what the waves need, by the size of the cache."""
    return [draw.Point(mb, 100 - 100 * read_of(8192, mb * 1e6, order) / needed) for mb in (12, 25, 37, 50, 75, 100)]


lines = {name: found_of(order) for name, order in orders.items()}
draw.line_chart(lines, "% found in L2", "A and B of 8192 x 8192 x 8192: predicted", "MB of cache", limit=None)

# %% [markdown]
# Forwards, a cache that holds less than a whole wave, with its tiles of C, finds next to nothing of the wave before,
# and one that holds all of it finds every shared panel. Serpentine there is no such step: each byte of cache counts.
# Beyond the step forwards is the better order: it begins with what was used longest ago, just before that is dropped.
#
# Where nearly all of A and B fits into the cache, there is little left to gain, or even something to lose:

# %% tags=["lab"]
rows = []
for size in (2048, 4096, 8192):
    for name, order in orders.items():
        read = [f"{read_of(size, cache, order) / 1e6:.0f} MB" for cache in CACHES]
        rows.append([f"{size} x {size} x {size}, {name}", *read])
Markdown(table(["read from memory, predicted", *(f"cache of {size / 1e6:.0f} MB" for size in CACHES)], rows))

# %% [markdown]
# ## Measured
#
# **Forwards.** ncu has counted what a GEMM of this book reads from memory in five orders of tiles, for [thread-block
# swizzle](thread_block_swizzle.ipynb). **Serpentine.** It has counted each variant of [the tuned
# GEMM](../hopper/tuned_gemm.ipynb), and all of them are serpentine. The model gets each kernel's own tiles, clusters
# and groups, and 37 MB: no figure was fitted to these counts. The last column has both bounds of the cache.

# %% tags=["lab"]
CACHE = CACHES[1]


def waves_of_variant(module, config, m: int, n: int) -> list[list[tuple[int, int]]]:
    """The waves of a variant of the tuned GEMM: groups of cluster tiles that need the same unshared operand."""
    m, n, ctas = *((n, m) if config.swap_ab else (m, n)), module.clusters(config, m, n, WAVE) * config.cluster
    cluster, grid = (config.cluster_m, config.cluster_n), (-(-m // config.tile_m), -(-n // config.tile_n))
    if config.cluster_m == 1:
        return waves_of(grid, config.swizzle_size, ctas, cluster)
    waves = waves_of(grid[::-1], config.swizzle_size, ctas, cluster[::-1])  # groups of columns of tiles
    return [[(m, n) for n, m in tiles] for tiles in waves]


def counted_row(said: list[str], counted: int, waves, tile: tuple, k: int, serpentine: bool) -> list[str]:
    """What was counted, and next to it what the model has this kernel read in both orders."""
    read = [bytes_read(waves, tile, -(-k // TILE_K), CACHE, order) for order in orders.values()]
    bounds = (
        bytes_read(waves, tile, -(-k // TILE_K), cache, serpentine) / counted for cache in (CACHES[0], CACHES[-1])
    )
    figures = [f"{each / 1e9:.3f}" for each in (counted, *read)]
    return [*said, *figures, f"{read[serpentine] / counted:.2f}", ", ".join(f"{each:.2f}" for each in bounds)]


def bytes_table() -> str:
    """Bytes from memory by the current records: counted, and predicted in both orders."""
    rows, tuned = [], cookbook.load("hopper/tuned_gemm")
    for r in records.of_one_gpu("foundations/thread_block_swizzle", "counted"):
        for name, config in cookbook.load("foundations/thread_block_swizzle").EXPERIMENT.configs.items():
            grid, counted = (r["shape"][0] // TILE[0], r["shape"][1] // TILE[1]), r["figures"][name]["read_bytes"]
            waves = waves_of(grid, config["swizzle_size"])
            rows.append(counted_row([f"{r['device']}, {name}", "forwards"], counted, waves, TILE, r["shape"][2], False))
    for r in records.of_one_gpu("hopper/tuned_gemm", records.LIMITS):
        for name, config in tuned.VARIANTS.items():
            waves = waves_of_variant(tuned, config, *r["shape"][:2])
            said, counted = (
                [f"{r['device']}, `{name}`", "serpentine"],
                r["figures"]["variants"][name]["dram_read_bytes"],
            )
            rows.append(counted_row(said, counted, waves, (config.tile_m, config.tile_n), r["shape"][2], True))
    heads = [
        "8192 x 8192 x 8192, GB from memory",
        "order of K",
        "counted",
        "predicted forwards",
        "predicted serpentine",
        "predicted for its order, over counted",
        "the same with 25, 50 MB",
    ]
    return table(heads, rows, right=2) if rows else "*Not counted yet.*"


Markdown(bytes_table())

# %% [markdown]
# Forwards, no wave finds anything of the one before; serpentine, each finds a part. Counted bytes follow the one or the
# other, by the order that the kernel has; no kernel was counted in both. Two rows are off: tiles row by row, and
# `128x64`, which asks L2 for more bytes than any other variant. The model keeps the CTAs of a wave in step, whatever
# they ask for. Whether the CTAs of these two kernels fall out of step has not been measured.
#
# **Time.** [Persistent CTAs](../hopper/persistent_gemm.ipynb) have both orders of K in one run. The spread is the
# difference of two times of one kernel.

# %% tags=["lab"]
rows = []
for r in records.of_one_gpu("hopper/persistent_gemm", "timed"):
    forwards, serpentine = (r["peers"][name]["median_ms"] for name in ("persistent", "+ serpentine K"))
    read = [read_of(r["shape"][0], CACHE, order) for order in orders.values()]
    said = f"{r['device']}, {r['dtype']}, {'x'.join(map(str, r['shape']))}"
    spread = abs(r["figures"]["median_ms"] / forwards - 1)
    rows.append([said, f"{1 - read[1] / read[0]:.0%}", f"{forwards / serpentine:.3f}x", f"{spread:.1%}"])
heads = ["both orders in one run", "bytes saved, predicted", "serpentine, measured", "spread"]
Markdown(table(heads, rows) if rows else "*Not timed yet.*")

# %% [markdown]
# A saved byte is not a saved clock. A product of this size does not wait for memory: its tensor cores are busy, and the
# bytes arrive meanwhile. At the power limit a byte from memory costs energy, and energy is time. So the larger product
# gains a little more than the spread, and the smaller one does not.
#
# **What it changes.** Sums along K are added in another order, so the last bits of C change. A tile in an even place of
# its CTA's work and one in an odd place are added in different orders.
#
# ## Check
#
# `cookbook check foundations/serpentine` computes what this page says of the model, by these lines. A test of the
# repository holds the claim against the counts:


# %% tags=["folded"]
def by_hand(cache_bytes: float) -> int:
    """Count the k-tiles of a panel of A that the second wave of 8192 cubed finds: the reads in between fit."""
    first, second = waves_of((64, 32), 16)[:2]
    lines = list(lines_of([first, second], TILE, 128, True))
    found = [line[2] for line, hit in zip(lines, hits(lines, cache_bytes), strict=True) if hit and line[:2] == ("A", 0)]
    return len(found)


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    waves = waves_of((64, 32), 16)
    needed = [(len({m for m, _ in tiles}), len({n for _, n in tiles})) for tiles in waves]
    tiles = sorted(tile for wave in waves_of((10, 6), 4, 12, (2, 1)) for tile in wave)
    toy = {order: hits((("A", 0, k, 1) for i in range(3) for k in k_order(i, 8, order)), 4) for order in (False, True)}
    counts = {order: sum(found) for order, found in toy.items()}
    read = {size: [read_of(size, 37e6, order) for order in (False, True)] for size in (2048, 4096, 8192)}
    once = 2 * 2048 * 2048 * 2
    return [
        ("first_wave", needed[0] == (16, 9), f"panels of A and of B: {needed[0]}"),
        ("every_tile_once", tiles == [(m, n) for m in range(10) for n in range(6)], f"{len(tiles)} of 10 x 6"),
        ("toy", counts == {False: 0, True: 8}, f"found of 24, forwards and serpentine: {list(counts.values())}"),
        ("by_hand", 58 >= by_hand(50e6) >= 48, f"k-tiles of A that the second wave finds in 50 MB: {by_hand(50e6)}"),
        ("never_more", all(back <= on for on, back in read.values()), f"bytes, forwards and serpentine: {read}"),
        ("fits", read[2048] == [once, once], f"A and B of 2048 cubed, read once: {read[2048]}"),
    ]


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/serpentine my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** A kernel has no list of k-tiles. It counts `i` from 0, and computes the k-tile of each step.


# %%
def k_tile_at(i, iteration, k_tiles):
    """Exercise 1, finish it: the k-tile of step `i` of a tile iteration, by arithmetic on these three and no branch:
    forwards in even tile iterations, backwards in odd ones."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Backwards, step 0 is k-tile `k_tiles` - 1. How far is step `i` from where it would be forwards?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# `iteration & 1` is 0 or 1. Multiply the difference by it.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# [The kernel](../hopper/persistent_gemm.ipynb) has this line in its producer's loop.
#
# ```python
# def k_tile_at(i, iteration, k_tiles):
#     return i + (iteration & 1) * (k_tiles - 1 - 2 * i)
# ```
#
# </details>
#
# **Find the bug.** A shorter model of the cache. It gives the toy's answer, and for a product it finds too little.


# %%
def found_again(lines, cache_bytes):
    """Exercise 2, find the bug: whether the cache holds each line when it is used, as `hits`."""
    held, room, found = OrderedDict(), cache_bytes, []
    for line in lines:
        found.append(line in held)
        if line not in held:
            room -= line[-1]
            held[line] = line[-1]
        while room < 0:
            room += held.popitem(last=False)[1]
    return found


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Put room for two lines, and read A, B, A, C, A. Which line should C push out?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# `OrderedDict` keeps the order in which keys came. What should happen to a line that is found?
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# This cache drops the line that *came* first. A line that is used again has to move to the end.
#
# ```python
# def found_again(lines, cache_bytes):
#     held, room, found = OrderedDict(), cache_bytes, []
#     for line in lines:
#         found.append(line in held)
#         room += held.pop(line, 0) - line[-1]
#         held[line] = line[-1]
#         while room < 0:
#             room += held.popitem(last=False)[1]
#     return found
# ```
#
# </details>


# %% tags=["folded"]
def check_found(answer):
    """Letters are lines of one byte; then a product of eight waves."""
    for said, room in (("ABAB", 2), ("ABCABC", 2), ("ABACA", 2), ("ABCBADB", 3), ("ABCDDCBA", 2)):
        lines = [(letter, 1) for letter in said]
        yield f"lines {said}, room for {room}", list(answer(lines, room)), hits(lines, room)
    lines = list(lines_of(waves_of((16, 8), 4, 16), TILE, 16, True))
    for megabytes in (1, 2, 4):
        given = f"16 x 8 tiles, 16 k-tiles, {megabytes} MB: lines found"
        yield given, sum(answer(lines, megabytes * 1e6)), sum(hits(lines, megabytes * 1e6))


EXERCISES = {
    "k_tile_at": lambda f: (
        (f"step {i} of {k_tiles}, tile iteration {iteration}", f(i, iteration, k_tiles), k_tile)
        for k_tiles in (1, 2, 5, 8)
        for iteration in range(4)
        for i, k_tile in enumerate(k_order(iteration, k_tiles, True))
    ),
    "found_again": check_found,
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/serpentine")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# An order that turns round keeps what was used last, and a cache that drops what was used longest ago has just that.
# The model has two dozen lines, no fitted figure, and comes near what ncu counts. It also says where there is nothing
# to gain: where a wave fits into L2, or nearly all of A and B does.
#
# Next: [which GPC a cluster runs in](gpc_remapping.ipynb), for L2 merges requests of one GPC; or the kernel that goes
# along K both ways, [the persistent GEMM](../hopper/persistent_gemm.ipynb).
