# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Choosing a tile: waves, clocks and loads"
#     claim: >-
#       A cost of two terms, the clocks of the busiest SM and the elements loaded for a multiply-add, names a tile
#       within 1% of the best of eleven, for each recorded product of more than 64 rows.
#     track: hopper
#     order: 89
#     kind: study
#     path: M, N, K and a tile -> waves -> clocks -> cost
#     builds_on: hopper/swap_ab_gemm
#     sources:
#       - {title: "NVIDIA, Matrix Multiplication Background: tile and wave quantization", url: "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html"}
#       - {title: "NVIDIA Management Library: clocks, and the power limit that lowers them", url: "https://docs.nvidia.com/deploy/nvml-api/index.html"}
# ---

# %% [markdown]
# # Choosing a tile: waves, clocks and loads
#
# **Claim.** No tile is best for all sizes, but which one is can be computed. A cost of two terms, the clocks of the
# busiest SM and the elements loaded for a multiply-add, names a tile within 1% of the best of eleven, for each recorded
# product of more than 64 rows.
#
# A large tile loads less for each multiply-add. But tiles are whole. Five large tiles on four SMs take two waves, and
# three SMs wait in the second. Ten tiles of half the size take three waves of half the time:

# %% tags=["lab"]
import cookbook
from cookbook import draw


def on_four_sms(tiles: int, clocks: int, name: str) -> dict[str, list[draw.Span]]:
    """Which tiles each of four SMs computes, and when."""
    tiles_of = {sm: range(sm, tiles, 4) for sm in range(4)}
    return {
        f"{name}: SM {sm}": [
            draw.Span(clocks * i, clocks * (i + 1), f"tile {tile}", f"wave {i}") for i, tile in enumerate(mine)
        ]
        for sm, mine in tiles_of.items()
    }


rows = on_four_sms(5, 2000, "5 tiles") | {"": []} | on_four_sms(10, 1000, "10 of half the size")
draw.lanes(rows, "The same product on 4 SMs")

# %% [markdown]
# [The tuned GEMM](tuned_gemm.ipynb) has eleven tiles, and this page's rule to choose by. GEMMs for other kinds of
# products import parts of it too. It needs no GPU, no kernel and no search: a few divisions for each tile.

# %%
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from cookbook.recipe.entry import require

# %% [markdown]
# ## What a tile is to the rule
#
# Its rows and columns, the cluster that it comes in, and what its warpgroups do between two tiles. In *ping-pong* one
# warpgroup rounds and stores its tile while the other multiplies. *Cooperative* ones share a tile, and both stop to
# round it. A GEMM's `Config` has these names; here is one with nothing else, and three tiles.


# %%
class Tiling(NamedTuple):
    """What the rule asks of a GEMM's Config."""

    tile_m: int = 128
    tile_n: int = 256
    pingpong: bool = False  # False: cooperative

    tile_k, cluster_m, cluster_n, epi_n = 64, 1, 2, 64
    swap_ab, overlapped = False, 0

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def subtiles(self) -> int:
        return self.tile_m // 64 * (self.tile_n // self.epi_n) // (1 if self.pingpong else 2)

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k * 2


TILES = {"128x256": Tiling(), "128x128": Tiling(128, 128, True), "128x64": Tiling(128, 64, True)}

# %% [markdown]
# ## The figures of a chip
#
# The rule has six figures, of **one chip**: an H200 at its power limit, multiplying normal numbers. Another card,
# another limit or a warmer room has others. `cookbook calibrate hopper/tuned_gemm` measures two of them on the GPU that
# is here, `clock_exponent` and `load_cost`, and the order of its GPCs; the others stay those of an H200. A checkout
# uses its record of them. In a copied file, `calibrate(load_cost=..., gpcs=...)` takes them.
#
# They have to be measured at a clock that has settled: a single product is over before the GPU lowers its clock. `gpcs`
# is for another page, [GPC-aware remapping](../foundations/gpc_remapping.ipynb).


# %%
@dataclass(frozen=True)
class Calibration:
    """Figures of one chip, for the heuristics and the remapping: the defaults are of an H200."""

    short: float = 15_000  # clocks of multiplying on each SM, below which a product is over before power matters
    clock_exponent: float = 0.5  # at the power limit, time is proportional to this power of the clocks
    load_cost: float = 16  # multiply-adds that loading one operand element into an SM costs there
    round_clocks: float = 800  # from the last wgmma of a tile to the first of the next, where both warpgroups round it
    store_clocks: float = 350  # for 64 x 64 of C that is not overlapped
    load_rate: float = 80  # bytes of A and B that come into an SM in a clock, what a neighbour multicasts included
    # The GPC of each cluster of two, in the order in which an idle GPU starts them. Any letters; () is "not known".
    gpcs: tuple[object, ...] = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")


def calibrated(chip: Calibration, **figures) -> Calibration:
    """A chip with other figures."""
    for name, value in figures.items():
        require(name == "gpcs" or 0 < value < float("inf"), name, value, "a finite number above 0")
    return replace(chip, **figures)


# %% [markdown]
# ## Waves
#
# A product takes as long as its busiest CTA. Tiles are whole, so count **waves**: 132 SMs hold 66 clusters of two,
# which compute 66 cluster tiles at a time. 1056 of these are 16 waves, one more is 17.
#
# The host launches as few clusters as keep the number of waves. 1024 cluster tiles are 15.5 times 66: 16 waves, the
# last one half full. 64 clusters take 16 waves as well, and all CTAs end together.


# %%
def cluster_tiles(config, m: int, n: int) -> tuple[int, int]:
    """Tiles of whole clusters that cover C (m, n): down, across."""
    m, n = (n, m) if config.swap_ab else (m, n)
    return -(-m // (config.tile_m * config.cluster_m)), -(-n // (config.tile_n * config.cluster_n))


def at_once(config, sms: int) -> int:
    """Clusters that find a place at once: those of four leave an eleventh of the SMs over."""
    return max(1, (sms if config.cluster <= 2 else sms * 10 // 11) // config.cluster)


def waves(config, m: int, n: int, sms: int) -> int:
    """Cluster tiles that the busiest cluster computes, if `sms` SMs are full of clusters."""
    return -(-prod(cluster_tiles(config, m, n)) // at_once(config, sms))


def clusters(config, m: int, n: int, sms: int) -> int:
    """The number of clusters to launch: no more than that number of waves needs."""
    return -(-prod(cluster_tiles(config, m, n)) // waves(config, m, n, sms))


# %%
{tiles: waves(TILES["128x256"], 128 * tiles, 512, 132) for tiles in (1056, 1057)}

# %% [markdown]
# ## Clocks
#
# An SM does 2048 multiply-adds a clock, so a wave takes `tile_m * tile_n * K / 2048` clocks. To these come three small
# parts:
#
# * what cooperative warpgroups round and store between two tiles. A warpgroup has `subtiles` pieces of C, 64 rows high;
#   `overlapped` of them are stored under the next main loop;
# * the last store of all, taken to be 16 elements of C a clock;
# * for the smallest tiles, the rate at which operands arrive in shared memory.
#
# ## Loads, at the power limit
#
# For a product of some ten microseconds, clocks are all. A longer one, again and again, takes the GPU to its **power
# limit**: the GPU lowers its clock, and energy becomes time. Two things change.
#
# * *Clocks count for less.* An SM without work in the last wave takes little power, and the others run faster. So time
#   grows with a power of the clocks below 1. [Warp specialization](warp_specialized_gemm.ipynb) suspected it.
# * *Loads count.* Bringing an operand element to an SM costs as much as several multiply-adds.
#
# So the cost of a short product is its clocks. That of a long one is a power of its clocks, times what a multiply-add
# costs with its loads: `clocks**clock_exponent * (1 + load_cost * (1 / tile_m + 1 / tile_n))`.


# %%
def clocks(config, m: int, n: int, k: int, sms: int, chip: Calibration) -> float:
    """Clocks that the busiest of `sms` SMs needs for C (m, n) over k."""
    tile = config.tile_m * config.tile_n
    stage = max(tile * config.tile_k / 2048, config.stage_bytes / chip.load_rate)
    at_once = (config.subtiles - config.overlapped) * config.epi_n / 64
    stop = 0 if config.pingpong else chip.round_clocks + chip.store_clocks * at_once
    return waves(config, m, n, sms) * (-(-k // config.tile_k) * stage + stop) + tile / 16


def is_short(m: int, n: int, k: int, sms: int, chip: Calibration) -> bool:
    """Return whether the product ends before power matters."""
    return m * n * k / 2048 / sms < chip.short


def cost_on(chip: Calibration, config, m: int, n: int, k: int, sms: int) -> float:
    """The cost of C (m, n) over k on `sms` SMs of a chip, relative to that of another configuration."""
    needed = clocks(config, m, n, k, sms, chip)
    loads = 1 / config.tile_m + 1 / config.tile_n  # operand elements loaded into an SM per multiply-add
    return needed if is_short(m, n, k, sms, chip) else needed**chip.clock_exponent * (1 + chip.load_cost * loads)


# %% [markdown]
# The rule is to take the least. Of the three tiles, for cubes from 1024 to 8192:


# %%
def cheapest(tiles: dict, m: int, n: int, k: int, sms: int, chip: Calibration) -> str:
    """The name of the tile that costs least."""
    return min(tiles, key=lambda name: cost_on(chip, tiles[name], m, n, k, sms))


{size: cheapest(TILES, size, size, size, 132, Calibration()) for size in (1024, 1536, 2048, 4096, 8192)}

# %% [markdown] tags=["lab"]
# ## What the rule says
#
# From here on the cells use the `cookbook` package and [the tuned GEMM](tuned_gemm.ipynb)'s eleven tiles. What part of
# the time do the SMs multiply? By the rule, for cubes on an H200: with one tile the last wave is now full and now
# nearly empty. Of all variants one mostly fills it, where there are tiles enough for all SMs.

# %% tags=["lab"]
tuned, chip = cookbook.load("hopper/tuned_gemm"), Calibration()
CUBES = range(512, 2561, 256)


def filled(*names: str) -> list[draw.Point]:
    """Percent of the clocks that are multiplied in, by the best of these variants, for each size."""
    needed = {n: min(clocks(tuned.VARIANTS[name], n, n, n, 132, chip) for name in names) for n in CUBES}
    return [draw.Point(n, 100 * n**3 / 2048 / 132 / most) for n, most in needed.items()]


lines = {"all": filled(*tuned.VARIANTS)} | {name: filled(name) for name in ("128x128 pingpong", "128x256")}
draw.line_chart(lines, "% of the clocks of 132 SMs", "M = N = K: computed, not measured", "M = N = K")

# %% [markdown] tags=["lab"]
# ## Predicted and measured
#
# For each record the table has the three variants with the lowest cost. Each has its time relative to the fastest of
# all, predicted (the first one is 1) and measured. *Lost* is what the choice cost. The spread is the difference of two
# times of the chosen kernel, as "ours" and by name.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import choices_table, fit_table, records, table

Markdown(choices_table("hopper/tuned_gemm", sms=132))

# %% [markdown] tags=["lab"]
# Are both terms needed? Here each rule chooses alone, for the same records of more than 64 rows:

# %% tags=["lab"]
RULES = {
    "clocks alone": lambda tile, *shape: clocks(tile, *shape, 132, chip),
    "loads alone": lambda tile, *shape: 1 / tile.tile_m + 1 / tile.tile_n,
    "clocks and loads": lambda tile, *shape: cost_on(chip, tile, *shape, 132),
}


def lost(rule, record) -> float:
    """How much longer the tile that costs least by `rule` takes than the fastest one, as a part of its time."""
    times = {name: record["peers"][name]["median_ms"] for name in tuned.VARIANTS}
    chosen = min(times, key=lambda name: rule(tuned.VARIANTS[name], *record["shape"]))
    return times[chosen] / min(times.values()) - 1


timed = [r for r in records.of_one_gpu("hopper/tuned_gemm", "timed") if tuned.VARIANTS.keys() <= r["peers"].keys()]
losses = {name: [lost(rule, r) for r in timed if r["shape"][0] > 64] for name, rule in RULES.items()}
rows = [[name, f"{sum(each) / len(each):.1%}", f"{max(each):.1%}"] for name, each in losses.items() if each]
Markdown(table(["rule", "lost, mean", "lost, most"], rows) if rows else "*Not measured yet.*")

# %% [markdown] tags=["lab"]
# Where there are as many tiles as SMs, or a few times as many, the waves decide, and the rule is seldom far off. With a
# few rows it can be: no variant is made for them, and [split-K](split_k_gemm.ipynb) is faster.
#
# Two figures of the calibration, fitted: the logarithms of cost and time differ least with them. A variant counts for
# less the further it is from the fastest: what the smallest tiles ask of L2 at large sizes is not in the cost.

# %% tags=["lab"]
Markdown(fit_table("hopper/tuned_gemm", sms=132))

# %% [markdown]
# The second row was fitted to these very records. So the table says how well two terms describe a GPU, and not how well
# they foresee another. [The operator](../../docs/pytorch.md) chooses among all GEMMs, and is judged at products that no
# figure was fitted to.
#
# ## Check
#
# `cookbook check hopper/tile_heuristics` computes what this page says of waves, clocks and cost, by these lines. A test
# of the repository holds the claim against the records:


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    chip, large, small = Calibration(), TILES["128x256"], TILES["128x64"]
    steps = [waves(large, 128 * tiles, 512, 132) for tiles in (1056, 1057)]
    sizes = [(m, n) for m in (1, 200, 2048, 4100, 16384) for n in (1, 336, 4096, 11008)]
    shapes = [(tile, m, n) for tile in TILES.values() for m, n in sizes]
    rounds = [-(-prod(cluster_tiles(*each)) // clusters(*each, 132)) == waves(*each, 132) for each in shapes]
    room = [clusters(*each, 132) <= at_once(each[0], 132) for each in shapes]
    short, long = ([cost_on(chip, tile, n, n, n, 132) for tile in (small, large)] for n in (512, 8192))
    slower = clocks(large, 8192, 8192, 8192, 132, chip) / clocks(TILES["128x128"], 8192, 8192, 8192, 132, chip)
    limit = cost_on(chip, large, *3 * (8192,), 132) / cost_on(chip, TILES["128x128"], *3 * (8192,), 132)
    return [
        ("one_tile_more_is_a_wave_more", steps == [16, 17], f"waves of 1056 and 1057 cluster tiles: {steps}"),
        ("fewest_clusters", all(rounds) and all(room), f"{len(shapes)} grids need no wave more, and fit at once"),
        ("small_is_for_short", short[0] < short[1] and long[1] < long[0], "128x64 at 512 cubed, 128x256 at 8192"),
        ("loads_count", limit < slower, f"128x256 over 128x128: {slower:.3f} by clocks, {limit:.3f} by cost"),
    ]


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy hopper/tile_heuristics my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** The host knows how many waves it needs. Which is the smallest grid that needs no more?


# %%
def clusters_to_launch(config, m, n, sms):
    """Exercise 1, finish it: how many clusters the host launches: as few as compute C in the waves that it takes
    anyway. `cluster_tiles` and `waves` say how many cluster tiles and waves there are; leave `clusters` aside."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Put 64 cluster tiles and room for 60 clusters: two waves. Which is the smallest grid that needs no third?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A cluster computes one cluster tile in each wave, so the grid is the tiles over the waves, rounded up.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# A grid that fills the GPU has idle clusters in its last wave. This one ends at the same time, and all its CTAs end
# together.
#
# ```python
# def clusters_to_launch(config, m, n, sms):
#     return -(-prod(cluster_tiles(config, m, n)) // waves(config, m, n, sms))
# ```
#
# </details>
#
# **Find the bug.** How many places of the last wave stay empty? The answer is right for 8192 x 8192, and not for a
# product whose edges are ragged.


# %%
def idle_clusters(config, m, n, sms):
    """Exercise 2, find the bug: how many clusters have no tile in the last wave, if the GPU is full of clusters."""
    area = config.tile_m * config.cluster_m * config.tile_n * config.cluster_n
    tiles = -(-m * n // area)
    return -tiles % at_once(config, sms)


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# How many tiles of 128 x 512 cover 129 x 513?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A tile that hangs over an edge of C is whole all the same. Round up down C and across C, each by itself.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Elements of C divided by elements of a tile count pieces that do not lie in rows and columns.
#
# ```python
# def idle_clusters(config, m, n, sms):
#     return -prod(cluster_tiles(config, m, n)) % at_once(config, sms)
# ```
#
# </details>


# %% tags=["folded"]
PRODUCTS = (
    (8192, 8192, 132),
    (4096, 4096, 132),
    (2048, 2048, 132),
    (129, 513, 132),
    (200, 336, 132),
    (3000, 2000, 114),
)


def compared(answer, right):
    """A question, what an answer gives, and what is right, for each tile and product."""
    for name, config in TILES.items():
        for m, n, sms in PRODUCTS:
            yield f"{name}, C of {m} x {n}, {sms} SMs", answer(config, m, n, sms), right(config, m, n, sms)


EXERCISES = {
    "clusters_to_launch": lambda f: compared(f, clusters),
    "idle_clusters": lambda f: compared(
        f, lambda c, m, n, sms: waves(c, m, n, sms) * at_once(c, sms) - prod(cluster_tiles(c, m, n))
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("hopper/tile_heuristics")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Clocks alone do not choose well, for the chip lowers its clock as it works. Clocks and loads together come nearer.
# Both follow from M, N, K and the tile. The host computes them at the first call of a shape, and keeps the choice.
#
# Next: [the tuned GEMM](tuned_gemm.ipynb), which has the tiles.
