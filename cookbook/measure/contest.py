"""Variants that do the same work, timed against each other in one process on one GPU.

One round times a batch of launches of every variant, each batch between two CUDA events, in an order that
is drawn anew each round. Before each comes an untimed batch of the same variant: a GPU at its power limit
takes a while to settle on a clock, and would else bring it along from the variant before. So a variant's batch has as
many launches as take that while, however fast the others are. The figures are the median, minimum and maximum over the
rounds. Inputs are normal, and several sets of them rotate so that L2 does not hold them. Batches are CUDA graphs where
all variants can be captured, so that the cost of a launch from Python does not count against any variant.

That cost is measured apart: `us_per_call`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

from cookbook.measure import records

OURS = "ours"
ROUNDS = 12
MIN_ROUNDS = 7
BATCH_MS = 100.0  # long against a launch, and against the time the GPU takes to settle on a clock
WARM_UP_MS = 1000.0  # to reach the clocks the GPU sustains
L2_MULTIPLE = 4  # the sets together are this many times as large as L2
MAX_SETS = 64
GRAPH = 1000  # launches in one CUDA graph; a longer batch replays it
HOST_BATCHES, HOST_CALLS = 15, 100  # fewer calls than a stream has room for: none of them waits

Call = Callable[..., Any]  # of one set of operands: (a, b, out) for a GEMM
Batch = Callable[[], None]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one launch, one entry a round."""

    rounds_ms: tuple[float, ...]

    def figures(self, work: float, rate: str = "tflops") -> dict[str, float]:
        """Median, minimum and maximum in ms, and the rate at the median.

        Args:
            work: floating-point operations, or bytes, of one launch.
            rate: "tflops" or "gbps".
        """
        median = statistics.median(self.rounds_ms)
        return {
            "median_ms": round(median, 6),
            "min_ms": round(min(self.rounds_ms), 6),
            "max_ms": round(max(self.rounds_ms), 6),
            rate: round(work / median / {"tflops": 1e9, "gbps": 1e6}[rate], 2),
        }


@dataclass(frozen=True)
class Contest:
    """The variants timed at one shape, ours among them. All do the same work."""

    variants: dict[str, Call]
    sets: list[tuple[Any, ...]]  # of operands, one after another
    standard: str  # the peer that ours is first of all compared with
    work: float  # floating-point operations, or bytes read and written, of one launch
    rate: str = "tflops"  # the unit of work a second: "tflops" or "gbps"
    config: Any = None  # ours
    majors: str | None = None  # of the operands, where the recipe takes several
    scale: dict[str, float] = field(default_factory=dict)  # how much more work than a variant's launch `work` is
    of: tuple[str, ...] = ()  # other recipes among the variants: the record is stale when their code changes, too
    graphs: bool = True  # launch batches as CUDA graphs; a copy inside one is a slower engine's, not a kernel


def time_contest(contest: Contest, rounds: int, batch_ms: float | None = None) -> dict[str, Any]:
    """Interleaved figures of every variant; see the module's text.

    Args:
        batch_ms: the GPU's time for a batch, about; BATCH_MS if left out.
    """
    batches, counts, launches = make_batches(contest.variants, contest.sets, contest.graphs, batch_ms)
    warm_up(batches, WARM_UP_MS)
    taken: dict[str, list[float]] = {name: [] for name in batches}
    for number in range(rounds):
        for name in shuffled(list(batches), number):
            batches[name]()  # untimed: the clock settles on this variant, whatever ran before it
            taken[name].append(elapsed_ms(batches[name]) / counts[name] * contest.scale.get(name, 1.0))
    timings = {name: Timing(tuple(ms)) for name, ms in taken.items()}
    figures: dict[str, Any] = {name: timing.figures(contest.work, contest.rate) for name, timing in timings.items()}
    batch = next(iter(counts.values()))
    return figures | {"rounds": rounds, "batch": batch, "launches": launches, "sets": len(contest.sets)}


def record_of(name: str, contest: Contest, shape: tuple[int, ...], dtype: str, timed: dict[str, Any]) -> records.Record:
    """The record of a contest at one shape, from what `time_contest` found."""
    import torch

    others = {peer: timed[peer] for peer in contest.variants if peer != OURS}
    ours = timed[OURS] | {key: timed[key] for key in ("rounds", "batch", "launches", "sets")}
    for figures in others.values():  # ratio: how many times as fast as this peer ours is
        figures["ratio"] = round(figures["median_ms"] / timed[OURS]["median_ms"], 4)
    ours["ratio"] = others[contest.standard]["ratio"]
    return records.make(
        "timed",
        name,
        dtype,
        shape,
        passed=True,
        figures=ours,
        peers=others,
        config=contest.config,
        of=contest.of,
        majors=contest.majors,
        device=torch.cuda.get_device_name(),
    )


def how_many_sets(set_bytes: int) -> int:
    """Return how many sets of `set_bytes` each are L2_MULTIPLE times as large as L2; at least 2, at most MAX_SETS."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return max(2, min(-(-L2_MULTIPLE * properties.L2_cache_size // set_bytes), MAX_SETS))


# --- batches --------------------------------------------------------------------------------------------------------


class Batches(NamedTuple):
    """Batches to time of each variant, by name."""

    run: dict[str, Batch]
    counts: dict[str, int]  # launches of each batch
    launches: str  # how they are launched: all "graph", or all "stream"


def make_batches(
    variants: dict[str, Call], sets: list[tuple[Any, ...]], graphs: bool = True, batch_ms: float | None = None
) -> Batches:
    """A batch of each variant that takes the GPU about `batch_ms`, or BATCH_MS, in whole rounds through the sets.

    Args:
        graphs: whether the variants can be captured. A graph takes the GPU as long as its kernels do; what the host
            issues takes as long as the host needs, if that is longer.
    """
    batch_ms = batch_ms or BATCH_MS
    calls = {name: [partial(call, *operands) for operands in sets] for name, call in variants.items()}
    for each in calls.values():
        loop(each, max(4, len(sets)))()  # what is made at the first call must not be made in a graph
    counts = {name: batch_size(loop(each, 4), 4, len(sets), batch_ms) for name, each in calls.items()}
    if graphs:
        try:
            return _of_graphs(calls, counts, batch_ms)
        except Exception:  # a variant that allocates or synchronizes cannot be captured
            pass
    return Batches({name: loop(each, counts[name]) for name, each in calls.items()}, counts, "stream")


def batch_size(batch: Batch, launches: int, turn: int, batch_ms: float) -> int:
    """Return how many launches take about `batch_ms`, in whole rounds of `turn`, measured with one batch of
    `launches`."""
    one = max(elapsed_ms(batch) / launches, 1e-3)
    return max(1, round(batch_ms / one / turn)) * turn


def graph_size(count: int, sets: int) -> int:
    """Launches in each graph of a batch of `count`: whole rounds through the sets, GRAPH of them or hardly more."""
    return -(-min(count, GRAPH) // sets) * sets


def _of_graphs(calls: dict[str, list[Callable[[], Any]]], by_host: dict[str, int], batch_ms: float) -> Batches:
    """Batches of graphs that are replayed: one of as many launches as a batch may have would take long to make.

    Args:
        by_host: launches that fill a batch of each variant where the host issues them; a graph's may be more.
    """
    run, counts = {}, {}
    for name, each in calls.items():
        size = graph_size(by_host[name], len(each))
        graph = _captured(each, size)
        graph()  # the first time it is made ready
        counts[name] = batch_size(graph, size, size, batch_ms)
        run[name] = loop([graph], counts[name] // size)
    return Batches(run, counts, "graph")


def _captured(calls: list[Callable[[], Any]], size: int) -> Batch:
    """`loop` as a graph."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may allocate meanwhile
        loop(calls, size)()
    return graph.replay


def loop(calls: list[Callable[[], Any]], count: int) -> Batch:
    """A batch of `count` calls: all of `calls` in their order, again and again."""

    def run() -> None:
        for call in islice(cycle(calls), count):
            call()

    return run


def warm_up(batches: dict[str, Batch], milliseconds: float) -> None:
    """Run the batches one after another until the GPU has worked for `milliseconds`."""
    spent = 0.0
    while spent < milliseconds:
        spent += sum(elapsed_ms(batch) for batch in batches.values())


def elapsed_ms(batch: Batch) -> float:
    """GPU time of one batch between two CUDA events."""
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    batch()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def shuffled(names: list[str], number: int) -> list[str]:
    """The order of round `number`: drawn anew, so that no variant always runs behind the same hot neighbour."""
    return random.Random(number).sample(names, len(names))


# --- the host -------------------------------------------------------------------------------------------------------


def us_per_call(calls: dict[str, Callable[[], Any]], synchronize: Callable[[], Any]) -> dict[str, float]:
    """Median over batches of the microseconds until each call returns; batches of them interleaved.

    `synchronize`, before each batch and outside its time, empties the stream.
    """
    taken: dict[str, list[float]] = {who: [] for who in calls}
    for number in range(HOST_BATCHES + 1):  # the first one warms up
        for who in shuffled(list(calls), number):
            call = calls[who]
            synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            taken[who].append((time.perf_counter() - start) / HOST_CALLS * 1e6)
    return {who: round(statistics.median(us[1:]), 2) for who, us in taken.items()}
