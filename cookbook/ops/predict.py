"""Predict a GEMM's time from its Config, so that kernels of different recipes can be compared.

Four things go on at the same time: multiplying, waiting for the loads of a queue of stages, loads of all SMs from L2,
and reading and writing memory. The root of the sum of their powers is a little more than the longest. Before them a CTA
starts, after them it sends its part of C. Clusters start the later, the more of the SMs they ask for: each needs a
place in one GPC. Where clusters fill more than half of their places and not nearly all, these four took longer by a
part of their time; why is not known (`uneven`).

**Waiting.** From asking for a stage to asking for it again the time is a latency, and in persistent kernels it grows
with the bytes of the queue: they come into an SM one after another (`queue`). So a queue half as deep again does not
wait a third less.

**The launch before.** Where all clusters of a launch fit beside those of the launch before it, in half of the places,
they start while that one still runs (PDL), and a part of their start passes unseen (`early`). With more clusters than
that only some find a place, and the others come late.

**Rows at once.** CTAs read the weight's rows side by side. Memory delivers the less, the more rows are read at once:
with 16,000 rows 4.5% less than with 4,000 (`rows`).

**Power.** Multiplying takes energy in proportion to the products and to the square of the clock. Where it would take
more than the GPU may, the clock is lower: multiplying then takes longer, and nothing else does. A kernel that waits for
memory, or leaves SMs idle, leaves power to the others.

Two kinds of kernels differ in figures, not in terms: persistent ones that go through C in an order which keeps L2 in
use, and CTAs of one tile each. No figure belongs to a shape, and none to a recipe. They are those that came nearest to
times of random Configs at random products, and of the kernels at a hundred products of models, on an H100, in the mean
of the squared logarithms; a time counts for less the further it is from the fastest one's. `tools.ops.unseen` judges
the choice that follows at products drawn anew.

All figures are an H200's: an H100 has the same SMs and slower memory, and `memory` and `write` go by the peak bandwidth
of the GPU at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = ["H200", "Chip", "Figures", "Work", "bias_us", "chip_with", "copy_us", "microseconds", "narrow_us", "terms"]


class Figures(NamedTuple):
    """Figures of a kind of kernels on one GPU; times in nanoseconds, rates in bytes a nanosecond."""

    power: float  # the clock falls where a full GPU would multiply for more than this part of the time
    start: float  # CTAs begin, and their first loads come
    latency: float  # from asking for a stage to asking for the same stage again, while all others ask too
    l2: float  # of A and B, from L2 into all SMs
    outside: float  # of zeros, where a tile lies outside of A or B
    memory: float  # of A and B
    write: float  # of C
    send: float  # out of the registers of a CTA: accumulators and C
    steep: float  # the power whose root is taken: the larger, the better the four hide behind the longest
    steep_memory: float  # the same of L2 and memory
    pair: float = 0.0  # more at the start, where CTAs wait for another one of their cluster
    clusters: float = 0.0  # and for each further one, where they ask for all SMs
    uneven: float = 0.0  # the part of the time that is added where a part of the places for clusters stays empty
    again: float = 0.0  # a further round of CTAs on the same SMs
    alike: float = 1.0  # of the loads of B: where CTAs ask for the same lines at once, L2 is asked less often
    reread: float = 0.0  # of a weight, that comes from memory once more for each further tile of rows
    round: float = 0.0  # clocks between two tiles, where all warpgroups round
    store: float = 0.0  # clocks for 64 columns of C that are not overlapped
    subtile: float = 0.0  # each epilogue subtile of the last tile
    early: float = 0.0  # of the start, that passes while the launch before still runs
    rows: float = 0.0  # power of the weight's rows that are read at once: the more, the slower is memory
    queue: float = 0.0  # more latency for each KiB of the stages: their bytes come into an SM one after another


@dataclass(frozen=True)
class Chip:
    """Figures of one GPU."""

    name: str = "NVIDIA H200"
    ghz: float = 1.95  # of the SMs, where power allows it
    persistent: Figures = field(default_factory=lambda: PERSISTENT)
    single: Figures = field(default_factory=lambda: SINGLE)
    memory: float = 4_080  # of a kernel that copies
    meet: float = 3_637  # CTAs that add up a tile through global memory wait for one another
    launch: float = 2_000  # of one more kernel on a stream
    adds: float = 340  # elements of C a nanosecond, of torch's kernel that adds a bias: 290 to 440 by size
    narrow: float = 366  # and of its kernel that copies C into rows that are no whole pieces of 16 bytes


PERSISTENT = Figures(
    power=0.6843,
    start=1_902,
    latency=737.8,
    l2=11_990,
    outside=4_444,
    memory=4_448,
    write=3_770,
    send=33.26,
    steep=3.518,
    steep_memory=3.926,
    pair=127.4,
    clusters=51.88,
    round=1_751,
    store=736.6,
    subtile=58.13,
    early=617,
    rows=0.0419,
    queue=3.162,
)
SINGLE = Figures(
    power=1.4,
    start=1_745,
    latency=797.3,
    l2=6_438,
    outside=4_800,
    memory=4_822,
    write=1_081,
    send=26.77,
    steep=2.178,
    steep_memory=17.3,
    pair=318.1,
    clusters=197.6,
    uneven=0.04677,
    again=855.2,
    alike=0.4822,
    reread=0.3113,
    early=575.4,
    rows=0.03652,
)
H200 = Chip()
PARTLY = 0.5, 0.9  # of the places for clusters in all rounds: between these `uneven` comes in addition
SHARERS = 16  # CTAs that share a tile of stream-K, at most
GPCS = (
    8,
    *5 * (16,),
    *2 * (18,),
    *4 * (2,),
)  # SMs of a Hopper GPU that belong together: a cluster finds its place in one
ROWS = 4_096  # of the weight, read at once: from here on memory delivers at its full rate
REREADS = 4  # tiles of rows that read a weight one after another, at most: L2 holds it for the others
STEPS = 4  # in which clock and time are made to agree


@lru_cache(maxsize=32)
def chip_with(memory: float) -> Chip:
    """An H200's figures, of a chip whose memory's peak bandwidth is `memory` times an H200's."""
    kinds = {
        name: figures._replace(memory=figures.memory * memory, write=figures.write * memory)
        for name, figures in (("persistent", H200.persistent), ("single", H200.single))
    }
    return replace(H200, memory=H200.memory * memory, **kinds)


class Work(NamedTuple):
    """A product and what it runs on."""

    m: int
    n: int
    k: int
    sms: int
    rate: int  # multiply-adds that an SM does in a clock


def _over(x: int, y: int) -> int:
    return -(-x // y)


class _Facts(NamedTuple):
    """What a prediction asks of a Config, whatever the product."""

    persistent: bool
    streams: bool  # stream-K
    pingpong: bool
    tile_m: int
    tile_n: int
    tile_k: int
    tile: int  # elements of C
    narrow: float  # times as long as its products a wgmma takes
    stages: int
    stage_kib: float
    split: int  # CTAs that divide K
    per_sm: int
    halves: int  # SMs that share a tile of C
    high: int  # CTAs of a cluster: those that share B
    wide: int  # and those that share A
    together: int  # SMs of a cluster
    overlapped: int  # epilogue subtiles
    subtiles: int
    epi_n: int
    sent: float  # bytes out of the registers of a CTA, for a tile


@lru_cache(maxsize=8192)
def _facts(config: Any) -> _Facts:
    persistent, pairs = hasattr(config, "epi_n"), hasattr(config, "pairs_m")
    halves, split, tile = 2 if pairs else 1, _first(config, "split_k"), config.tile_m * config.tile_n
    high = 1 if pairs else _first(config, "cluster_m")
    wide = 1 if pairs or not persistent else _first(config, "cluster_n", "cluster")
    return _Facts(
        persistent=persistent,
        streams=hasattr(config, "even"),
        pingpong=getattr(config, "pingpong", False),
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        tile_k=config.tile_k,
        tile=tile,
        # A wgmma reads 64 rows of A and all columns of B at 128 bytes a clock: less than 64 columns leave it waiting.
        narrow=max(1.0, 0.5 + 32 / config.tile_n),
        stages=_first(config, "stages"),
        stage_kib=2 * (config.tile_m + config.tile_n) * config.tile_k / 1024,
        split=split,
        per_sm=_first(config, "per_sm"),
        halves=halves,
        high=high,
        wide=wide,
        together=high * wide * split * halves,
        overlapped=getattr(config, "overlapped", 0),
        subtiles=getattr(config, "subtiles", 0),
        epi_n=getattr(config, "epi_n", 0),
        sent=(4 * tile if split > 1 else 0) + 2 * tile / split,
    )


def _first(config: Any, *names: str) -> int:
    """The first of these fields that a Config has; 1 if it has none."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), 1)


@lru_cache(maxsize=64)
def _clusters(size: int, sms: int) -> int:
    """Clusters of `size` CTAs that find a place at once."""
    if size <= 2:
        return sms // size
    return max(1, sum(each // size for each in GPCS) * sms // sum(GPCS))


def _streamed(config: Any, tiles: int, at_once: int, k_tiles: int) -> tuple[float, float]:
    """Stream-K. Of the busiest cluster: how many tiles its k-tiles make, and how many tiles of sums it moves.

    The tiles that fill no wave are shared by all clusters (`Config.even`), or each by the same number of them.
    """
    waves, rest = divmod(tiles, at_once)
    sharers = min(at_once / max(rest, 1), SHARERS, k_tiles)  # of each tile
    sharers = sharers if config.even else int(sharers)
    if not rest or sharers < (1 if config.even else 2):
        return _over(tiles, at_once), 0
    return waves + 1 / sharers, (1 - 1 / sharers) * (2 if config.even else 1)


def terms(config: Any, work: Work, swapped: bool = False, chip: Chip = H200) -> dict[str, float]:
    """Nanoseconds of each part, but clocks of "multiply", and a part of all others that "uneven" adds. swapped: the
    kernel's A is b."""
    c = _facts(config)
    figures = chip.persistent if c.persistent else chip.single
    m, n, k, sms, rate = work
    rows, columns = (n, m) if swapped else (m, n)
    down, across = _over(rows, c.tile_m * c.high) * c.high, _over(columns, c.tile_n * c.wide) * c.wide
    k_tiles = max(_over(k, c.tile_k * c.split), c.overlapped)
    tiles, at_once = down * across // (c.high * c.wide), _clusters(c.together, sms)
    busiest, shared = float(_over(tiles, at_once)), 0.0  # of the busiest cluster
    if c.streams:
        busiest, shared = _streamed(config, tiles, at_once, k_tiles)
    rounds = busiest if c.persistent else _over(int(busiest), c.per_sm)
    places = at_once * c.per_sm
    filled = tiles / (places * max(rounds, 1))  # of the places for clusters, in all rounds
    each = k_tiles * c.tile_k * c.tile / rate * c.narrow / c.halves
    if c.persistent and busiest > 1:
        between = figures.round + figures.store * (c.subtiles - c.overlapped) * c.epi_n / 64
        # In ping-pong one warpgroup rounds while the other multiplies.
        each = max(each, (each + between) / 2) if c.pingpong else each + between
    a_bytes, b_bytes = 2 * k * across * rows, 2 * k * down * columns  # into SMs
    loaded = 2 * k_tiles * c.split * c.tile_k * down * across
    a_zeros, b_zeros = max(loaded * c.tile_m - a_bytes, 0), max(loaded * c.tile_n - b_bytes, 0)
    again = min((across if swapped else down) - 1, REREADS) * figures.reread
    width = c.tile_m * c.high if swapped else c.tile_n * c.wide  # rows of the weight that a cluster reads
    side_by_side = min(_over(n, width), places) * width
    read = (2 * k * (m + n) + again * 2 * n * k) * max(side_by_side / ROWS, 1) ** figures.rows
    start = figures.start + max(rounds - 1, 0) * figures.again
    start -= figures.early if 2 * tiles <= places else 0
    asked = min(1.0, tiles * c.together / sms)  # of the SMs
    start += (c.together > 1) * (figures.pair + figures.clusters * asked * (c.together - 2))
    send = (1 if c.persistent else rounds) * c.sent / figures.send + c.subtiles * figures.subtile
    return {
        "multiply": busiest * each,
        "wait": rounds * k_tiles / c.stages * (figures.latency + figures.queue * c.stages * c.stage_kib),
        "L2": (a_bytes / c.wide + figures.alike * b_bytes / c.high) / figures.l2
        + (a_zeros + b_zeros) / figures.outside,
        "memory": read / figures.memory + 2 * m * n / figures.write,
        "start": start,
        "uneven": figures.uneven if PARTLY[0] < filled < PARTLY[1] else 0.0,
        "send": send + 8 * shared * c.tile / figures.send + chip.meet * (shared > 0),
    }


def microseconds(config: Any, work: Work, swapped: bool = False, chip: Chip = H200) -> float:
    """All of it, at the clock that power allows."""
    figures = chip.persistent if hasattr(config, "epi_n") else chip.single
    part = terms(config, work, swapped, chip)
    steep, full = figures.steep, work.m * work.n * work.k / work.rate / work.sms  # clocks, were no SM ever idle
    moved = _beside(figures.steep_memory, part["L2"], part["memory"])
    clocks, wait, longer, alone = part["multiply"], part["wait"], 1 + part["uneven"], part["start"] + part["send"]
    ghz, ns = chip.ghz, alone + longer * _beside(steep, clocks / chip.ghz, wait, moved)
    for _ in range(STEPS):
        before, ghz = ghz, (ghz + chip.ghz * min(1.0, (figures.power * ns / max(full, 1e-6)) ** 0.5)) / 2
        if ghz == before:
            break
        ns = alone + longer * _beside(steep, clocks / ghz, wait, moved)
    return ns / 1000


def _beside(steep: float, a: float, b: float, c: float = 0.0) -> float:
    """Return how long all of these take that go on at the same time: a little more than the longest."""
    longest = max(a, b, c)
    return longest * ((a / longest) ** steep + (b / longest) ** steep + (c / longest) ** steep) ** (1 / steep)


def bias_us(elements: int, chip: Chip = H200) -> float:
    """Adding a bias to `elements` elements of C, by a kernel of its own."""
    return (chip.launch + elements / chip.adds) / 1000


def narrow_us(elements: int, chip: Chip = H200) -> float:
    """Copying `elements` elements of C into rows that are no whole pieces of 16 bytes."""
    return (chip.launch + elements / chip.narrow) / 1000


def copy_us(elements: int, chip: Chip = H200) -> float:
    """Copying `elements` elements of 2 bytes into lines that a kernel can read."""
    return (chip.launch + 4 * elements / chip.memory) / 1000
