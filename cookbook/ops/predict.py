"""How long a GEMM takes, predicted from its Config: what lets kernels of different recipes be compared.

Five things go on at the same time: multiplying, loading into an SM, waiting for the first loads of a queue of stages,
loads of all SMs from L2, and reading and writing memory. The fourth root of the sum of their fourth powers is a little
more than the longest. Before them a CTA starts, after them it sends its part of C. Where CTAs fill more than half of
their places on the GPU and not nearly all, all kernels took longer; why is not known (`uneven`). A long product takes
the GPU to its power limit, where idle SMs leave clock to the others, and every element that is loaded costs clock.

Each recipe chooses its variant by heuristics of its own, fitted to that kernel. These figures are one set for all
recipes, so that their times can be compared: those that came nearest to the records of timed GEMMs and to the times of
`cookbook bench --regret`, in the mean of the squared logarithms. tests/ops/test_predict.py holds them against both.

All figures are an H200's. An H100 has the same SMs and slower memory, and one figure follows from that: `memory` goes
by the peak bandwidth of the GPU at hand. The same test holds this against times of an H100.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = ["H200", "Chip", "Work", "bias_us", "chip_with", "copy_us", "microseconds", "terms"]


@dataclass(frozen=True)
class Chip:
    """Figures of one GPU; times in nanoseconds, rates in bytes a nanosecond."""

    name: str = "NVIDIA H200"
    ghz: float = 1.755  # of the SMs
    short: float = 18_500  # clocks of multiplying on each SM, below which a product is over before power matters
    load_cost: float = 21.0  # multiply-adds that loading one operand element into an SM costs at the power limit
    start: float = 1_500  # CTAs begin, and their first loads come
    uneven: float = 1_330  # more, where a part of the places for CTAs stays empty
    latency: float = 1_040  # from asking for a stage to asking for the same stage again, while all others ask too
    l2: float = 14_730  # of A and B, from L2 into all SMs
    outside: float = 3_620  # of zeros, where a tile lies outside of A or B
    memory: float = 4_080
    holds: float = 27e6  # bytes that are still in L2 when they are read again
    meet: float = 1_520  # CTAs that add up a tile through global memory wait for one another
    send: float = 27.5  # out of the registers of a CTA: accumulators and C
    launch: float = 2_000  # of one more kernel on a stream
    adds: float = 340  # elements of C a nanosecond, of torch's kernel that adds a bias: 290 to 440 by size


H200 = Chip()
PARTLY = 0.55, 0.9  # of the places for CTAs in all rounds: between these `uneven` comes in addition
SHARERS = 16  # CTAs that share a tile of stream-K, at most


@lru_cache(maxsize=32)
def chip_with(memory: float) -> Chip:
    """An H200's figures, of a chip whose memory's peak bandwidth is `memory` times an H200's."""
    return replace(H200, memory=H200.memory * memory)


class Work(NamedTuple):
    """A product and what it runs on."""

    m: int
    n: int
    k: int
    sms: int
    rate: int  # multiply-adds that an SM does in a clock


def _over(x: int, y: int) -> int:
    return -(-x // y)


def _first(config: Any, *names: str) -> int:
    """The first of these fields that a Config has; 1 if it has none."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), 1)


def _streamed(config: Any, tiles: int, at_once: int, k_tiles: int) -> tuple[float, float]:
    """Stream-K. Of the busiest SM: how many tiles its k-tiles make, and how many tiles of sums it writes and reads.

    The tiles that fill no wave are shared by all SMs (`Config.even`), or each by the same number of SMs.
    """
    waves, rest = divmod(tiles, at_once)
    sharers = min(at_once / max(rest, 1), SHARERS, k_tiles)  # of each tile
    sharers = sharers if config.even else int(sharers)
    if not rest or sharers < (1 if config.even else 2):
        return _over(tiles, at_once), 0
    return waves + 1 / sharers, (1 - 1 / sharers) * (2 if config.even else 1)


def terms(config: Any, work: Work, swapped: bool = False, chip: Chip = H200) -> dict[str, float]:
    """Nanoseconds of each part. swapped: the kernel's A is b."""
    rows, columns = (work.n, work.m) if swapped else (work.m, work.n)
    split, per_sm = _first(config, "split_k"), _first(config, "per_sm")
    sharers = split * (2 if hasattr(config, "pairs_m") else 1)  # SMs that compute a tile together
    down, across = _over(rows, config.tile_m), _over(columns, config.tile_n)
    k_tiles = _over(work.k, config.tile_k * split)
    at_once = (work.sms if sharers <= 2 else work.sms * 10 // 11) // sharers  # SMs of a cluster lie together
    busiest, shared, streams = _over(down * across, at_once), 0, hasattr(config, "even")  # tiles of the busiest SM
    if streams:
        busiest, shared = _streamed(config, down * across, at_once, k_tiles)
    rounds = busiest if streams else -(-busiest // per_sm)
    filled = down * across * split / (work.sms * per_sm * max(rounds, 1))  # of the places for CTAs, in all rounds
    uneven = chip.uneven if not streams and split <= 2 and PARTLY[0] < filled < PARTLY[1] else 0
    tile = config.tile_m * config.tile_n
    each = k_tiles * config.tile_k * tile * split / sharers / work.rate  # clocks of an SM for a tile
    clocks, full = busiest * each, down * across * each * sharers / work.sms  # of the busiest SM, and of them all
    if full > chip.short:
        loads = 1 / config.tile_m + 1 / config.tile_n  # elements for each multiply-add
        clocks = (clocks * full) ** 0.5 * (1 + chip.load_cost * loads)
    inside = 2 * work.k * (across * rows + down * columns)
    loaded = 2 * down * across * k_tiles * split * config.tile_k * (config.tile_m + config.tile_n)
    weight = 2 * work.n * work.k
    again = min(across if swapped else down, rounds) if weight > chip.holds and per_sm > 1 else 1
    sent = (4 * tile if split > 1 else 0) + 2 * tile / sharers
    return {
        "multiply": clocks / chip.ghz,
        "wait": rounds * k_tiles / _first(config, "stages") * chip.latency,
        "L2": inside / chip.l2 + (loaded - inside) / chip.outside,
        "memory": (weight * again + 2 * work.m * (work.k + work.n)) / chip.memory,
        "start": chip.start + uneven,
        "send": ((rounds if split > 1 or streams else 1) * sent + 8 * shared * tile) / chip.send
        + chip.meet * (shared > 0),
    }


def microseconds(config: Any, work: Work, swapped: bool = False, chip: Chip = H200) -> float:
    """All of it."""
    *together, start, send = terms(config, work, swapped, chip).values()
    return (start + sum(x**4 for x in together) ** 0.25 + send) / 1000


def bias_us(elements: int, chip: Chip = H200) -> float:
    """Adding a bias to `elements` elements of C, by a kernel of its own."""
    return (chip.launch + elements / chip.adds) / 1000


def copy_us(elements: int, chip: Chip = H200) -> float:
    """Copying `elements` elements of 2 bytes into lines that a kernel can read."""
    return (chip.launch + 4 * elements / chip.memory) / 1000
