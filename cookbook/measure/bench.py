"""Level "timed", as `cookbook bench` takes it: which shapes of which recipe, and a record of each.

What a recipe is timed against its product says, how it is done `cookbook.measure.contest`. The cost of
a call on the host is measured apart, of a GEMM and its peers, on a shape so small that the GPU keeps up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from cookbook.check.ran import Shape
from cookbook.measure import power, records
from cookbook.measure.contest import MIN_ROUNDS, ROUNDS, record_of, time_contest
from cookbook.recipe import catalog
from cookbook.recipe.majors import DEFAULT

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


@dataclass(frozen=True)
class Options:
    """Options of timing a recipe: the arguments of `bench`."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    majors: tuple[str, ...]
    rounds: int = ROUNDS
    quack: bool = True
    own: bool = True
    on_progress: Callable[[str], None] = lambda text: None


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
    """Time a recipe and its peers on this GPU; one record per majors, dtype and shape.

    Args:
        name: a recipe's name.
        shapes: (M, N, K) each, or (M, N) of a transpose; `default_shapes` if left out.
        dtypes: torch's names; the recipe's own if left out.
        majors: of the operands; all that the recipe takes if left out.
        rounds: at least 7.
        quack: whether QuACK is a peer, which tunes itself for some 15 seconds at every shape.
        own: whether each variant of a GEMM is timed under its name too, next to what `matmul` takes by default.
        on_progress: told what is being timed.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: too few rounds, block-scaled operands, or a study that has nothing to time.
        RuntimeError: no CUDA device.
    """
    import torch

    if rounds < MIN_ROUNDS:
        raise ValueError(f"rounds: got {rounds}; needed at least {MIN_ROUNDS}")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be timed here")
    recipe = catalog.find(name)
    if reason := recipe.product.unmeasured(recipe):
        raise ValueError(f"name: got {recipe.name}; needed a recipe that is timed: {reason}")
    given = tuple(shapes or ()), tuple(dtypes or ()), tuple(majors or ())
    return list(recipe.product.bench(recipe, Options(*given, rounds, quack, own, on_progress)))


def of_contests(recipe: catalog.Recipe, options: Options) -> Iterator[records.Record]:
    """The records of a recipe's contests, each timed when it is asked for."""
    kind = recipe.product
    for dtype, which in product(options.dtypes or recipe.dtypes, options.majors or recipe.majors):
        for shape in options.shapes or default_shapes(recipe):
            words = (recipe.name, recipe.told_apart(which), dtype, "x".join(map(str, shape)))
            options.on_progress("timed " + " ".join(word for word in words if word))
            contest = kind.contest(recipe, shape, dtype, which, options.quack, options.own)
            with power.watched() as gpu:
                timed = time_contest(contest, options.rounds)
            for who, cost in kind.host_costs(recipe, dtype, which, options.quack).items():
                timed[who] = timed.get(who, {}) | cost
            yield record_of(recipe.name, contest, shape, dtype, timed) | {"gpu": gpu}


def default_shapes(recipe: catalog.Recipe) -> tuple[Shape, ...]:
    """Return what is timed of a recipe when nothing is said: the shapes of its front matter, or those of its kind."""
    return recipe.product.bench_shapes(recipe)


def all_sizes(recipe: catalog.Recipe, majors: str = DEFAULT) -> tuple[Shape, ...]:
    """ALL_SIZES, but for those that a GEMM cannot take with operands that lie like this; else `default_shapes`."""
    return recipe.product.fitting(recipe, ALL_SIZES, majors)


def grown(dimension: int) -> tuple[Shape, ...]:
    """GROWN_FROM with M, N or K (`dimension` 0, 1 or 2) of each of GROWN_TO and its own, from small to large."""
    sizes = sorted({*GROWN_TO, GROWN_FROM[dimension]})
    return tuple((*GROWN_FROM[:dimension], size, *GROWN_FROM[dimension + 1 :]) for size in sizes)


def all_grown() -> tuple[Shape, ...]:
    """The shapes of `grown` of all three dimensions, each once."""
    return tuple(dict.fromkeys(shape for dimension in range(3) for shape in grown(dimension)))


def each_dimension(recipe: catalog.Recipe, majors: str = DEFAULT) -> tuple[Shape, ...]:
    """Return those of `all_grown` that a GEMM can take; else `default_shapes`."""
    return recipe.product.fitting(recipe, all_grown(), majors)
