# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "Stream-K: the schedule"
#     claim: >-
#       The k-tiles of tiles that fill no wave form one line; SMs divide it, and a few divisions say who multiplies and
#       who adds up what.
#     track: hopper
#     order: 96
#     kind: study
#     path: tiles and SMs -> one line of k-tiles -> segments, sharers, adders
#     builds_on: hopper/majors_gemm
#     sources:
#       - {title: "Osama et al., Stream-K: work-centric parallel decomposition", url: "https://arxiv.org/abs/2301.03598"}
# ---

# %% [markdown]
# # Stream-K: the schedule
#
# **Claim.** A GEMM computes whole tiles, and tiles do not divide evenly among SMs. Stream-K divides *k-tiles*: those of
# the tiles that fill no wave form one line, and SMs get parts of it. A few integer divisions say who multiplies what,
# who shares a tile and who adds it up. Host and kernel compute them by the same functions.
#
# Of nine tiles on four SMs two waves leave one: all four share it. Of seven tiles one wave leaves three. Divided evenly
# (`even`), the parts of two SMs go on from one tile to the next. SMs that share a tile add it up, or pass their sums on
# to those that do.


# %% tags=["lab"]
import cookbook
from cookbook import draw

packaged = cookbook.load("hopper/stream_k_schedule")


def drawn(tiles: int, even: bool) -> dict[str, list[draw.Span]]:
    """The segments of four SMs that compute a row of tiles of 8 k-tiles each: a lane for each SM, time in k-tiles."""
    config, found = packaged.Tiling(even=even), {}
    schedule = packaged.schedule_on(config, 128, 128 * tiles, 8 * 64, 4)
    for cluster in range(4):
        at, spans = 0, []
        for segment in packaged.segments(cluster, schedule):
            kind = "whole tile" if segment.sharers == 1 else "adds up" if segment.rank < segment.adders else "passes on"
            spans.append(draw.Span(at, at + segment.k_tiles, f"tile {segment.tile}", kind))
            at += segment.k_tiles
        found[f"{tiles} tiles{', even' if even else ''}: SM {cluster}"] = spans
    return found


draw.lanes(drawn(9, False) | {"": []} | drawn(7, True), "Tiles of 8 k-tiles on 4 SMs", unit="k-tiles")

# %% [markdown]
# [Split-K](split_k_gemm.ipynb) cuts K of every tile into equal parts: 2 or 4 times as many CTAs. Stream-K, an idea of
# Osama et al. (see the sources), takes any number. A cluster is one CTA or two; the two compute neighbouring tiles over
# the same k-tiles, a *cluster tile*. **Each cluster gets one part of the line**; "tile" below means cluster tile.
#
# [The next page](stream_k_gemm.ipynb) has the kernel, its partial sums in global memory, and what was measured. Here is
# only who has which k-tiles. Nothing needs a GPU.

# %%
from collections import Counter
from math import prod
from typing import NamedTuple

import cutlass

from cookbook.recipes.hopper.tile_heuristics import cluster_tiles

# %% [markdown]
# ## The sizes
#
# The schedule looks at the tile, the cluster, and one choice: `even`. Either every shared tile gets the same number of
# clusters (*alike*), and some clusters may have no part. Or all clusters have a part (`even`, as in the paper), but at
# most 16 for each tile. Then most parts begin and end in the middle of a tile.


# %%
class Tiling(NamedTuple):
    """What the schedule asks of a GEMM's Config."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    cluster_m: int = 1
    cluster_n: int = 1
    even: bool = False

    swap_ab = False  # A is a, B is b

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n


# %% [markdown]
# ## How many clusters have a part
#
# Tiles 0 to `streamed` - 1, fewer than clusters, are in the line, the k-tiles of tile 0 first; `parts` clusters divide
# it. All other tiles are computed whole. A cluster computes its `waves` whole tiles first, as any persistent kernel
# does, and its part of the line last.


# %%
MOST = 16  # clusters that share a tile: more would each have little to multiply, and all of them wait for one another


def parts(config, m: int, n: int, k: int, sms: int) -> int:
    """The clusters that have a part of the line: for the tiles that are left when all full waves are computed."""
    most, k_tiles = sms // config.cluster, -(-k // config.tile_k)
    rest = prod(cluster_tiles(config, m, n)) % most
    alike = min(most // max(rest, 1), MOST, k_tiles) * rest
    return max(min(most, MOST * rest, k_tiles * rest) if config.even else alike, 1)


def clusters(config, m: int, n: int, k: int, sms: int) -> int:
    """The number of clusters to launch."""
    most = sms // config.cluster
    return most if prod(cluster_tiles(config, m, n)) >= most else parts(config, m, n, k, sms)


# %% [markdown]
# ## The line
#
# A part has `each` k-tiles, and each of the first `longer` parts has one more. The host counts clusters and parts; the
# kernel works out the rest from a few numbers.


# %%
class Schedule(NamedTuple):
    """The line of k-tiles, and how it is divided among the clusters."""

    down: cutlass.Int32  # cluster tiles from the top of C to the bottom
    across: cutlass.Int32  # and from left to right
    k_tiles: cutlass.Int32  # of each cluster tile
    clusters: cutlass.Int32
    waves: cutlass.Int32  # cluster tiles that each cluster computes whole, before its part of the line
    streamed: cutlass.Int32  # cluster tiles whose k-tiles are in the line: the first ones
    each: cutlass.Int32  # k-tiles of a cluster's part of the line; those from number `parts` on have none
    longer: cutlass.Int32  # clusters, the first ones, that have one more
    parts: cutlass.Int32


def schedule_of(m, n, k, clusters, parts, config) -> Schedule:
    """The schedule of C (m, n) over k: full waves are computed whole, what is left is streamed."""
    down = (m + config.tile_m * config.cluster_m - 1) // (config.tile_m * config.cluster_m)
    across = (n + config.tile_n * config.cluster_n - 1) // (config.tile_n * config.cluster_n)
    k_tiles, tiles = (k + config.tile_k - 1) // config.tile_k, down * across
    waves, streamed = tiles // clusters, tiles % clusters
    line = streamed * k_tiles
    return Schedule(down, across, k_tiles, clusters, waves, streamed, line // parts, line % parts, parts)


# %% [markdown]
# What a cluster has of one tile is a **segment**. Three functions say where a cluster's part of the line begins, which
# cluster has a given k-tile of the line, and how many segments a cluster has.


# %%
def begin_of(cluster, s: Schedule):
    """Return where a cluster's part of the line begins."""
    return cutlass.min(cluster, s.parts) * s.each + cutlass.min(cluster, s.longer)


def owner_of(place, s: Schedule):
    """The cluster whose part of the line holds a place."""
    return cutlass.max(place // (s.each + 1), (place - s.longer) // cutlass.max(s.each, 1))


def segments_of(cluster, s: Schedule):
    """Return how many segments a cluster has: whole tiles, and those of its part of the line."""
    begin, end = begin_of(cluster, s), begin_of(cluster + 1, s)
    return s.waves + (end + s.k_tiles - 1) // s.k_tiles - begin // s.k_tiles


# %% [markdown]
# ## Who adds up a shared tile?
#
# A cluster that waits in the middle of its work wastes time, so it adds up only in its **last** segment. The sharers
# whose parts end in a tile are its *adders*, and each adds up some of its [epilogue subtiles](persistent_gemm.ipynb).
# The last sharer may go on to another tile. Then it only writes its sums, and early: this segment is the first of its
# part.


# %%
class Segment(NamedTuple):
    """Consecutive k-tiles of one tile that one cluster multiplies, and who adds up the tile."""

    tile: cutlass.Int32  # number of the cluster tile
    first_k: cutlass.Int32  # its first k-tile
    k_tiles: cutlass.Int32
    first: cutlass.Int32  # the first of the clusters that share the tile
    sharers: cutlass.Int32  # how many share it
    adders: cutlass.Int32  # how many of these, the first ones, add it up: each its part
    rank: cutlass.Int32  # of this cluster among the sharers


def segment_of(cluster, i, s: Schedule) -> Segment:
    """Segment `i` of a cluster. A cluster whose part of the line goes on behind the tile does not add it up."""
    begin, end = begin_of(cluster, s), begin_of(cluster + 1, s)
    whole = cutlass.max(cutlass.min(s.waves - i, 1), 0)  # 1: a whole tile, 0: of the line
    number = begin // s.k_tiles + i - s.waves  # of the tile in the line
    at = cutlass.max(begin, number * s.k_tiles)
    behind = cutlass.min(end, (number + 1) * s.k_tiles)
    first, last = owner_of(number * s.k_tiles, s), owner_of((number + 1) * s.k_tiles - 1, s)
    goes_on = cutlass.min(cutlass.max(begin_of(last + 1, s) - (number + 1) * s.k_tiles, 0), 1)
    adders = cutlass.max(last + 1 - first - goes_on, 1)
    line = 1 - whole
    return Segment(
        tile=line * number + whole * (s.streamed + cluster + i * s.clusters),
        first_k=line * (at - number * s.k_tiles),
        k_tiles=line * (behind - at) + whole * s.k_tiles,
        first=line * first + whole * cluster,
        sharers=line * (last + 1 - first) + whole,
        adders=line * adders + whole,
        rank=line * (cluster - first),
    )


# %% [markdown]
# On the host the same functions give a list. Nine tiles on four SMs, the first cluster's segments:


# %%
def schedule_on(config, m: int, n: int, k: int, sms: int) -> Schedule:
    """The schedule of C (m, n) over k on a GPU of `sms` SMs."""
    return schedule_of(m, n, k, clusters(config, m, n, k, sms), parts(config, m, n, k, sms), config)


def segments(cluster: int, s: Schedule) -> list[Segment]:
    """All segments of a cluster, in its order."""
    return [segment_of(cluster, i, s) for i in range(segments_of(cluster, s))]


segments(0, schedule_on(Tiling(), 128, 128 * 9, 8 * 64, 4))

# %% [markdown]
# ## What it gains, counted
#
# The k-tiles of the busiest SM, as a multiple of an equal share for all 132 SMs. Whole tiles are worst where they are
# few, and just behind a full wave. If all SMs have a part, the busiest SM of an `even` schedule has at most one k-tile
# more than the least busy. At 140 tiles some have none: eight tiles are in the line, and 16 clusters for each are 128
# of the 132 SMs.


# %%
def busiest(config, tiles: int, k_tiles: int, sms: int) -> float:
    """The k-tiles of the busiest cluster of one CTA, as a multiple of an equal share."""
    s = schedule_on(config, config.tile_m, config.tile_n * tiles, config.tile_k * k_tiles, sms)
    most = max(sum(segment.k_tiles for segment in segments(cluster, s)) for cluster in range(s.clusters))
    return most * sms / (tiles * k_tiles)


# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table

SMS, K_TILES = 132, 64  # of an H200; a K of 4096
rows = []
for tiles in (16, 80, 132, 140, 162, 200, 264, 272):
    whole = -(-tiles // SMS) * SMS / tiles
    shared = (busiest(Tiling(even=even), tiles, K_TILES, SMS) for even in (False, True))
    rows.append([str(tiles), *(f"{each:.2f}" for each in (whole, *shared))])
Markdown(table(["tiles", "whole tiles", "alike", "even"], rows, right=4))

# %% [markdown]
# Where more than half a wave is left over, *alike* gives each tile one cluster: nothing is shared, and nothing gained.
# The table says nothing of what sharing costs: sums through L2, and a wait for the slowest. [The next
# page](stream_k_gemm.ipynb) has measured it.
#
# ## All of it, as facts
#
# The claims of this page as code, for `cookbook check`: over shapes with few tiles, with a tail and with ragged edges.


# %% tags=["folded"]
SHAPES = ((512, 512, 16384), (256, 4096, 4096), (2304, 2304, 2304), (128, 128, 1 << 14), (1, 1, 1), (1000, 3000, 520))


def problems(config, m: int, n: int, k: int, sms: int) -> list[str]:
    """Return what is wrong with a schedule: nothing, if the page is right."""
    s, wrong = schedule_on(config, m, n, k, sms), []
    of = {cluster: segments(cluster, s) for cluster in range(s.clusters)}
    every = [each for some in of.values() for each in some]
    places = Counter((each.tile, each.first_k + i) for each in every for i in range(each.k_tiles))
    if len(places) != s.down * s.across * s.k_tiles or set(places.values()) != {1}:
        wrong.append("a k-tile is not multiplied once")
    for some in of.values():
        shared = [each for each in some if each.sharers > 1]
        if any((each is some[-1]) != (each.rank < each.adders) for each in shared):
            wrong.append("a cluster adds up before its last segment")
        if len([each for each in shared if each.rank >= each.adders]) > 1:
            wrong.append("a cluster passes on more than the sums of one tile")
    if any(not 1 <= each.adders <= each.sharers <= 2 * MOST for each in every):
        wrong.append("a tile has no adder, or more sharers than a warp has lanes")
    loads = {sum(each.k_tiles for each in some) for some in of.values()}
    if config.even and s.parts == s.clusters and max(loads) - min(loads) > 1:
        wrong.append("an even schedule is not even")
    return wrong


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    kinds = [Tiling(even=even, cluster_m=ctas) for even in (False, True) for ctas in (1, 2)]
    cases = [(kind, *shape, sms) for kind in kinds for shape in SHAPES for sms in (7, 132)]
    wrong = sorted({text for case in cases for text in problems(*case)})
    even = max(busiest(Tiling(even=True), tiles, 64, 132) for tiles in range(140, 272, 33))
    return [
        ("schedules", not wrong, f"{len(cases)} schedules; wrong: {wrong}"),
        ("even_is_even", even < 1.01, f"the busiest of 132 SMs, as a multiple of an equal share: {even:.3f} at most"),
    ]


# %% [markdown] tags=["lab"]
# ## Check

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/stream_k_schedule")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A schedule is arithmetic: it can be looked at, counted and checked whole, before there is a kernel. Next:
# [the kernel](stream_k_gemm.ipynb) that follows it, and what partial sums cost.
