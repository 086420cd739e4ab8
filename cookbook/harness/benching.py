"""Level "timed": ours and its peers, interleaved in one process on one GPU.

A GEMM's peers are torch.matmul, QuACK, the GEMM that its front matter names under `beside`, and the ceiling: a kernel
that does as many multiplications by the same instruction and nothing else (`cookbook.harness.ceilings`). A transpose's
are torch's own, its other variants, and a copy of as many bytes, which is the ceiling.

One round times a batch of launches of every variant, each batch between two CUDA events, in an order that
is drawn anew each round. Before each comes a batch of the same variant that nobody times: a GPU at its power limit
takes a while to settle on a clock, and would else bring it along from the variant before. So a variant's batch has as
many launches as take that while, however fast the others are. The figures are the median, minimum and maximum over the
rounds. Inputs are normal, and several sets of them rotate so that L2 does not hold them. Batches are CUDA graphs where
all variants can be captured, so that the cost of a launch from Python does not count against anybody.

That cost is measured by itself, of a GEMM and its peers, on a shape so small that the GPU keeps up: `host_costs`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle, islice, product
from typing import Any, NamedTuple

from cookbook.harness import catalog, compiling, records, running
from cookbook.harness.formats import FORMATS
from cookbook.harness.majors import DEFAULT, configured, misfit
from cookbook.harness.running import Shape

DEFAULT_SHAPES: tuple[Shape, ...] = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 4096, 4096),
    (4096, 14336, 4096),
)
# `cookbook bench --all-sizes`, and what the page of benchmarks asks of every GEMM that is tuned.
ALL_SIZES: tuple[Shape, ...] = (
    *((n, n, n) for n in (512, 1024, 2048, 4096, 8192, 16384)),  # from fewer tiles than SMs to hundreds on each
    (16384, 4096, 4096),  # tall: the rows of a long batch
    (4096, 14336, 4096),  # wide: the layer of a network that widens
    (8191, 8191, 8192),  # ragged: every edge tile is cut, and rows of C begin in the middle of 16 bytes
    (64, 8192, 8192),  # skinny: a few rows, so that reading B is all the work
)
# `cookbook bench --each-dimension`: from a cube, one of M, N and K grows or shrinks at a time.
GROWN_FROM: Shape = (4096, 4096, 4096)
GROWN_TO = (1024, 2048, 8192, 16384)
OURS, TORCH, QUACK = "ours", "torch.matmul", "quack"
ROUNDS = 12
MIN_ROUNDS = 7
BATCH_MS = 100.0  # long against a launch, and against the time the GPU takes to settle on a clock
WARM_UP_MS = 1000.0  # to reach the clocks the GPU sustains
L2_MULTIPLE = 4  # the sets together are this many times as large as L2
MAX_SETS = 64
GRAPH = 1000  # launches in one CUDA graph; a longer batch replays it
HOST_SHAPE: Shape = (64, 64, 64)
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
    """What is timed at one shape: variants, ours among them, that all do the same work."""

    variants: dict[str, Call]
    sets: list[tuple[Any, ...]]  # of operands, in turn
    standard: str  # the peer that ours is first of all compared with
    work: float  # floating-point operations, or bytes read and written, of one launch
    rate: str = "tflops"  # the unit of work a second: "tflops" or "gbps"
    config: Any = None  # ours
    majors: str | None = None  # of the operands, where the recipe takes several
    scale: dict[str, float] = field(default_factory=dict)  # how much more work than a variant's launch `work` is
    of: tuple[str, ...] = ()  # other recipes among the variants: the record is stale when their code changes, too
    graphs: bool = True  # launch batches as CUDA graphs; a copy inside one is a slower engine's, not a kernel


def bench(
    name: str,
    shapes: Iterable[Shape] | None = None,
    dtypes: Iterable[str] | None = None,
    *,
    majors: Iterable[str] | None = None,
    rounds: int = ROUNDS,
    quack: bool = True,
    own: bool = True,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[records.Record]:
    """Time a recipe and its peers on this GPU; one record per majors, dtype and shape. Of a study: `studying.bench`.

    Args:
        name: a recipe's name.
        shapes: (M, N, K) each, or (M, N) of a transpose; `default_shapes` if left out.
        dtypes: torch's names; the recipe's own if left out.
        majors: of the operands; all that the recipe takes if left out.
        rounds: at least 7.
        quack: whether QuACK is a peer, which tunes itself for some 15 seconds at every shape.
        own: whether each variant of a GEMM is timed under its name too, beside what `matmul` takes by itself.
        on_progress: told what is being timed.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: too few rounds, block-scaled operands, or a study that is none of `studying.BENCHED`.
        RuntimeError: no CUDA device.
    """
    import torch

    from cookbook.harness import studying

    if rounds < MIN_ROUNDS:
        raise ValueError(f"rounds: got {rounds}, needed at least {MIN_ROUNDS}")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be timed here")
    recipe, module = catalog.find(name), catalog.load(name)
    if recipe.operands and FORMATS[recipe.operands].block:
        raise ValueError(
            f"name: got {recipe.name}, needed operands of one of {recipe.dtypes}: {recipe.operands} not yet"
        )
    if recipe.kind == "study":
        return studying.bench(recipe.name, shapes, on_progress, rounds)
    made = []
    for dtype, which in product(dtypes or recipe.dtypes, majors or recipe.majors):
        for shape in shapes or default_shapes(recipe):
            words = (recipe.name, recipe.told_apart(which), dtype, "x".join(map(str, shape)))
            on_progress("timed " + " ".join(word for word in words if word))
            contest = _contest(recipe, module, shape, dtype, which, quack, own)
            timed = time_contest(contest, rounds)
            plain = recipe.kind == "gemm" and not recipe.operands
            costs = host_costs(recipe.name, dtype, which, quack) if plain else {}
            for who, cost in costs.items():
                timed[who] = timed.get(who, {}) | cost
            made.append(record_of(recipe.name, contest, shape, dtype, timed))
    return made


def default_shapes(recipe: catalog.Recipe) -> tuple[Shape, ...]:
    """What is timed of a recipe when nothing is said: the shapes of its front matter, or those of its kind."""
    from cookbook.harness import transposing

    if recipe.bench_shapes:
        return recipe.bench_shapes
    return transposing.BENCHED_SHAPES if recipe.kind == "transpose" else DEFAULT_SHAPES


def all_sizes(recipe: catalog.Recipe, majors: str = DEFAULT) -> tuple[Shape, ...]:
    """ALL_SIZES, but for those that a GEMM cannot take with operands that lie like this; else `default_shapes`."""
    if recipe.kind != "gemm":
        return default_shapes(recipe)
    return tuple(shape for shape in ALL_SIZES if not misfit(shape, majors))


def grown(dimension: int) -> tuple[Shape, ...]:
    """GROWN_FROM with M, N or K (`dimension` 0, 1 or 2) of each of GROWN_TO and its own, from small to large."""
    sizes = sorted({*GROWN_TO, GROWN_FROM[dimension]})
    return tuple((*GROWN_FROM[:dimension], size, *GROWN_FROM[dimension + 1 :]) for size in sizes)


def all_grown() -> tuple[Shape, ...]:
    """The shapes of `grown` of all three dimensions, each once."""
    return tuple(dict.fromkeys(shape for dimension in range(3) for shape in grown(dimension)))


def each_dimension(recipe: catalog.Recipe, majors: str = DEFAULT) -> tuple[Shape, ...]:
    """Those of `all_grown` that a GEMM can take; else `default_shapes`."""
    if recipe.kind != "gemm":
        return default_shapes(recipe)
    return tuple(shape for shape in all_grown() if not misfit(shape, majors))


def _contest(
    recipe: catalog.Recipe, module: Any, shape: Shape, dtype: str, majors: str, quack: bool = True, own: bool = True
) -> Contest:
    from cookbook.harness import benching_fp8, ceilings, transposing

    if recipe.kind == "transpose":
        return transposing.contest(module, shape, dtype)
    if recipe.operands:
        return benching_fp8.contest(module, shape, dtype, own)
    contest = gemm_contest(module, shape, dtype, majors, quack, recipe.beside, own)
    contest = replace(contest, majors=recipe.told_apart(majors))
    return ceilings.beside(recipe, contest, dtype)


def gemm_contest(
    module: Any,
    shape: Shape,
    dtype: str,
    majors: str = DEFAULT,
    quack: bool = True,
    beside: str | None = None,
    own: bool = True,
) -> Contest:
    """A recipe's matmul, with all its variants if `own`, beside torch.matmul, QuACK, and the recipe called `beside`.

    A wrong or failing peer is left out; of ours it is an error.
    """
    sets, variants_of_ours = input_sets(shape, dtype, majors), own_variants(module) if own else {}
    others = peers(quack=quack) | ({beside: _into(catalog.load(beside).matmul)} if beside else {})
    variants: dict[str, Call] = {OURS: _into(module.matmul), **others, **variants_of_ours}
    ours = (OURS, *variants_of_ours)
    usable = {name: call for name, call in variants.items() if _agrees(name, call, sets[0], dtype, ours)}
    config = configured(compiling.config_for(module, compiling.arch_here()), majors)
    of = (beside,) if beside in usable else ()
    return Contest(usable, sets, TORCH, 2.0 * shape[0] * shape[1] * shape[2], config=config, of=of)


def own_variants(module: Any) -> dict[str, Call]:
    """The kernels of a recipe that has several, by name."""
    return {name: _into(matmul) for name, matmul in running.matmuls(module).items() if name}


def _into(matmul: Callable[..., Any]) -> Call:
    """A recipe's matmul as a call of (a, b, out)."""
    return lambda a, b, out: matmul(a, b, out=out)


def peers(tuned: bool = True, quack: bool = True) -> dict[str, Call]:
    """What ours is timed beside: torch.matmul, and QuACK's GEMM where it is installed, autotuned if `tuned`."""
    import torch

    found: dict[str, Call] = {TORCH: lambda a, b, out: torch.matmul(a, b, out=out)}
    if not quack:
        return found
    try:
        from quack.gemm_interface import gemm
    except Exception:  # not installed, or not for this machine: it is then no peer here
        return found
    return found | {QUACK: lambda a, b, out: gemm(a, b, out=out, tuned=tuned)}


@cache
def host_costs(name: str, dtype: str, majors: str = DEFAULT, quack: bool = True) -> dict[str, dict[str, float]]:
    """Microseconds of the host that a call of a GEMM recipe, and of each peer, takes: once a process.

    Returns:
        By variant: "host_us", into an `out` that is given, and "host_new_us", into one that the call makes.
    """
    import torch

    matmul = catalog.load(name).matmul
    calls: dict[str, Call] = {OURS: lambda a, b, out: matmul(a, b, out=out), **peers(False, quack)}
    a, b, out = input_sets(HOST_SHAPE, dtype, majors)[0]
    calls = {who: call for who, call in calls.items() if _agrees(who, call, (a, b, out), dtype)}
    costs: dict[str, dict[str, float]] = {who: {} for who in calls}
    for figure, given in (("host_us", out), ("host_new_us", None)):
        each = {who: partial(call, a, b, given) for who, call in calls.items()}
        for who, us in us_per_call(each, torch.cuda.synchronize).items():
            costs[who][figure] = us
    return costs


def us_per_call(calls: dict[str, Callable[[], Any]], synchronize: Callable[[], Any]) -> dict[str, float]:
    """Median over batches of the microseconds until each call returns; batches of them in turn.

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


def time_contest(contest: Contest, rounds: int) -> dict[str, Any]:
    """Interleaved figures of every variant; see the module's text."""
    batches, counts, launches = make_batches(contest.variants, contest.sets, contest.graphs)
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


def _agrees(name: str, call: Call, operands: tuple[Any, Any, Any], dtype: str, ours: tuple[str, ...] = (OURS,)) -> bool:
    """Whether a variant computes the product; one of `ours` that does not is an error."""
    try:
        running.verify(name, call, operands, dtype)
    except Exception:
        if name in ours:
            raise
        return False
    return True


def input_sets(shape: Shape, dtype: str, majors: str = DEFAULT) -> list[tuple[Any, Any, Any]]:
    """Enough sets of (a, b, out) that together they are L2_MULTIPLE times as large as L2; at least 2."""
    import torch

    m, n, k = shape
    kind = {"device": "cuda", "dtype": getattr(torch, dtype)}
    count = how_many_sets(2 * (m * k + k * n + m * n))
    return [(*running.inputs(shape, dtype, majors=majors), torch.empty(m, n, **kind)) for _ in range(count)]


def how_many_sets(set_bytes: int) -> int:
    """So many sets of `set_bytes` each are L2_MULTIPLE times as large as L2; at least 2, at most MAX_SETS."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return max(2, min(-(-L2_MULTIPLE * properties.L2_cache_size // set_bytes), MAX_SETS))


class Batches(NamedTuple):
    """What is timed of each variant, by name."""

    run: dict[str, Batch]
    counts: dict[str, int]  # launches of each batch
    launches: str  # how they are launched: all "graph", or all "stream"


def make_batches(variants: dict[str, Call], sets: list[tuple[Any, ...]], graphs: bool = True) -> Batches:
    """A batch of each variant that takes the GPU about BATCH_MS, in whole turns through the sets.

    Args:
        graphs: whether the variants can be captured. A graph takes the GPU as long as its kernels do; what the host
            issues takes as long as the host needs, if that is longer.
    """
    calls = {name: [partial(call, *operands) for operands in sets] for name, call in variants.items()}
    for each in calls.values():
        _loop(each, max(4, len(sets)))()  # what is made at the first call must not be made in a graph
    counts = {name: batch_size(_loop(each, 4), 4, len(sets)) for name, each in calls.items()}
    if graphs:
        try:
            return _of_graphs(calls, counts)
        except Exception:  # a variant that allocates or synchronizes cannot be captured
            pass
    return Batches({name: _loop(each, counts[name]) for name, each in calls.items()}, counts, "stream")


def batch_size(batch: Batch, launches: int, turn: int) -> int:
    """How many launches take about BATCH_MS, in whole turns of `turn`, by one batch of so many `launches`."""
    one = max(elapsed_ms(batch) / launches, 1e-3)
    return max(1, round(BATCH_MS / one / turn)) * turn


def graph_size(count: int, sets: int) -> int:
    """Launches in each graph of a batch of `count`: whole turns through so many sets, GRAPH of them or hardly more."""
    return -(-min(count, GRAPH) // sets) * sets


def _of_graphs(calls: dict[str, list[Callable[[], Any]]], by_host: dict[str, int]) -> Batches:
    """Batches of graphs that are replayed: one of as many launches as a batch may have would take long to make.

    Args:
        by_host: launches that fill a batch of each variant where the host issues them; a graph's may be more.
    """
    run, counts = {}, {}
    for name, each in calls.items():
        size = graph_size(by_host[name], len(each))
        graph = _captured(each, size)
        graph()  # the first time it is made ready
        counts[name] = batch_size(graph, size, size)
        run[name] = _loop([graph], counts[name] // size)
    return Batches(run, counts, "graph")


def _captured(calls: list[Callable[[], Any]], size: int) -> Batch:
    """`_loop` as a graph."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _loop(calls, size)()
    return graph.replay


def _loop(calls: list[Callable[[], Any]], count: int) -> Batch:
    def run() -> None:
        for call in islice(cycle(calls), count):
            call()

    return run


def warm_up(batches: dict[str, Batch], milliseconds: float) -> None:
    """Run the batches in turn until the GPU has worked for `milliseconds`."""
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


def record_of(name: str, contest: Contest, shape: Shape, dtype: str, timed: dict[str, Any]) -> records.Record:
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
