"""Level "timed", as `cookbook bench` takes it: which shapes of which recipe, and a record of each.

What a recipe is timed against is in `cookbook.measure.peers`, how it is done in `cookbook.measure.contest`. The cost of
a call on the host is measured apart, of a GEMM and its peers, on a shape so small that the GPU keeps up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from cookbook.check import transpose
from cookbook.check.ran import Shape
from cookbook.measure import peers, power, records, studies
from cookbook.measure.contest import MIN_ROUNDS, ROUNDS, record_of, time_contest
from cookbook.recipe import catalog
from cookbook.recipe.formats import FORMATS
from cookbook.recipe.majors import DEFAULT, misfit

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
    if recipe.operands and FORMATS[recipe.operands].by_mma:
        raise ValueError(
            f"name: got {recipe.name}; needed operands of one of {recipe.dtypes}: {recipe.operands} not yet"
        )
    if recipe.kind == "study":
        return studies.bench(recipe, shapes, on_progress, rounds)
    made = []
    for dtype, which in product(dtypes or recipe.dtypes, majors or recipe.majors):
        for shape in shapes or default_shapes(recipe):
            words = (recipe.name, recipe.told_apart(which), dtype, "x".join(map(str, shape)))
            on_progress("timed " + " ".join(word for word in words if word))
            contest = peers.contest_of(recipe, shape, dtype, which, quack, own)
            with power.watched() as gpu:
                timed = time_contest(contest, rounds)
            alone = recipe.of_two_matrices
            costs = peers.host_costs(recipe.name, dtype, which, quack) if alone else {}
            for who, cost in costs.items():
                timed[who] = timed.get(who, {}) | cost
            made.append(record_of(recipe.name, contest, shape, dtype, timed) | {"gpu": gpu})
    return made


def default_shapes(recipe: catalog.Recipe) -> tuple[Shape, ...]:
    """What is timed of a recipe when nothing is said: the shapes of its front matter, or those of its kind."""
    if recipe.bench_shapes:
        return recipe.bench_shapes
    return transpose.BENCHED_SHAPES if recipe.kind == "transpose" else DEFAULT_SHAPES


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
