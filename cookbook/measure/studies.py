"""What a study measures on a GPU: the key `measures` of its front matter says it, and with it what the study defines.

"wavefronts"   its KERNELS are counted (level "counted") and held against what `cookbook.banks` says of its layout and
               its moves: here
"experiment"   another recipe's kernel is timed and counted: `cookbook.measure.experiments`
"copies"       TMA copies are run and timed: `cookbook.measure.tma_copies`
"ceiling"      what the hardware gives at most: `cookbook.measure.ceilings`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from cookbook import banks
from cookbook.check import compiled, moves
from cookbook.check import counted as counting
from cookbook.check.ran import Shape
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.measure import ceilings, experiments, records, tma_copies
from cookbook.measure.contest import ROUNDS
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.swizzle import Swizzle


class Measurement(NamedTuple):
    """One record of a study that can be taken on a GPU."""

    take: Callable[[], tuple[records.Record, list[str]]]  # the record, and what is wrong, in words
    runs: Recipe  # whose kernels that runs


def measurements(recipe: Recipe, level: str) -> list[Measurement]:
    """What there is to measure of a study for `cookbook check` at a level; nothing of most studies.

    Args:
        recipe: one of kind "study".
        level: "ran", "timed" or "counted".
    """
    name, wanted = recipe.name, (recipe.measures, level)
    if wanted == ("copies", "ran"):
        return [Measurement(partial(tma_copies.ran, name, dtype), recipe) for dtype in tma_copies.DTYPES]
    if wanted == ("copies", "timed"):  # at the first shape: `cookbook bench` times the others, too
        return [Measurement(lambda: (tma_copies.timed_record(name, tma_copies.BENCHED_SHAPES[0]), []), recipe)]
    if wanted == ("wavefronts", "counted"):
        return [Measurement(partial(counted, name), recipe)]
    look = {("experiment", "timed"): experiments.timed, ("experiment", "counted"): experiments.counted}.get(wanted)
    if look is None:
        return []
    return [Measurement(partial(look, name), catalog.find(catalog.load(name).EXPERIMENT.recipe))]


def is_benched(recipe: Recipe) -> bool:
    """Whether `cookbook bench` takes a study."""
    return recipe.measures in ("ceiling", "copies")


def bench_shapes(recipe: Recipe) -> tuple[Shape | None, ...]:
    """What `cookbook bench` times of a study, a record each; one of ceilings chooses for itself: None."""
    return tma_copies.BENCHED_SHAPES if recipe.measures == "copies" else (None,)


def bench(
    recipe: Recipe,
    shapes: Iterable[Shape | None] | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
    rounds: int = ROUNDS,
) -> list[records.Record]:
    """Time a study on this GPU, with all that it is compared with; one record a shape.

    Args:
        recipe: a study that `is_benched`.
        shapes: of `bench_shapes(recipe)`; all of them if left out.
        on_progress: told what is being timed.
        rounds: at least 7.

    Raises:
        ValueError: another recipe, or too few rounds.
        RuntimeError: no CUDA device, or a kernel that is wrong.
    """
    if not is_benched(recipe):
        known = ", ".join(other.name for other in catalog.recipes() if is_benched(other))
        raise ValueError(f"name: got {recipe.name!r}; needed one of {known}")
    if recipe.measures == "ceiling":
        return [ceilings.measure(recipe.name, on_progress, rounds=rounds)]
    made = []
    for shape in filter(None, shapes or bench_shapes(recipe)):
        on_progress(f"timed {recipe.name} {tma_copies.BENCHED_DTYPE} {'x'.join(map(str, shape))}")
        made.append(tma_copies.timed_record(recipe.name, shape, rounds=rounds))
    return made


def launch(recipe: Recipe) -> None:
    """Launch each kernel that is to be looked at once, and make sure that what it gave was right."""
    import torch

    module = catalog.load(recipe.name)
    if recipe.measures == "experiment":
        return experiments.launch(module.EXPERIMENT)
    for name, which in module.KERNELS.items():
        got, wanted = module.try_out(which)
        if not torch.equal(got, wanted):
            raise SystemExit(f"{name}: {int((got != wanted).sum())} of {wanted.numel()} elements differ")


# --- wavefronts of its own kernels --------------------------------------------------------------------------------


def tile(module: ModuleType, which: Any) -> SmemLayout:
    """The tile in shared memory of one of the study's kernels, as CuTe evaluates it."""
    found = evaluate(module.smem_layout, which, element_bits=module.DTYPE.width)
    return SmemLayout(found, Swizzle(0, 4, 3), module.DTYPE.width) if isinstance(found, Layout) else found


def predicted(module: ModuleType) -> dict[str, dict[str, int]]:
    """Wavefronts of one instruction by kernel and move: `{"pitch 32": {"r2s": 1, "s2g": 32}, ...}`.

    Raises:
        ValueError: the steps of a move do not all take as many.
    """
    found: dict[str, dict[str, int]] = {}
    for name, which in module.KERNELS.items():
        layout = tile(module, which)
        found[name] = {move: _each(layout, move, how, module) for move, how in module.MOVES.items()}
    return found


def _each(layout: SmemLayout, name: str, move: Any, module: ModuleType) -> int:
    every = moves.accesses(layout, move, module.CONFIG.threads)
    taken = {banks.wavefronts(a.addresses, a.width, load=name.startswith("s2")).actual for a in every}
    if len(taken) != 1:
        raise ValueError(f"MOVES: got steps of {name} of {sorted(taken)} wavefronts; needed the same number each")
    return taken.pop()


def compare(module: ModuleType, kernels: list[list[counting.Line]]) -> tuple[dict[str, Any], list[str]]:
    """Measured against predicted wavefronts: figures by kernel and opcode, and the mismatches in words.

    Args:
        kernels: the SASS lines that ncu saw, one list for each of the study's KERNELS, in their order.
    """
    wanted, figures, problems = predicted(module), {}, []
    if len(kernels) != len(wanted):
        problems.append(f"{len(kernels)} kernels were counted; needed one for each of {', '.join(wanted)}")
    for (name, each), lines in zip(wanted.items(), kernels, strict=False):
        found, bad = counting.compare([line for line in lines if line.wavefronts], each)
        figures |= {f"{name} {opcode}": entry for opcode, entry in found.items()}
        problems += [f"{name}: {problem}" for problem in bad]
    return figures, problems


def counted(name: str) -> tuple[records.Record, list[str]]:
    """Run a study's kernels under ncu; the record of it, and the mismatches in words. Needs a GPU.

    Raises:
        ToolMissing: no ncu, or not with its counters.
    """
    import torch

    module = catalog.load(name)
    page = counting.profile(counting.study_launcher(name), ["--section", "SourceCounters"], "source")
    figures, problems = compare(module, counting.parse_kernels(page))
    made = records.make(
        "counted",
        name,
        module.DTYPE.__name__.lower(),
        None,
        passed=not problems,
        figures=figures,
        config=compiled.config_for(module, compiled.arch_here()),
        device=torch.cuda.get_device_name(),
    )
    return made, problems
