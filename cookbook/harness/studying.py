"""What a study measures on a GPU, if it measures anything: see docs/architecture.md for what it then defines.

A study with `KERNELS` has the wavefronts of each of them counted (level "counted") and held against what
`cookbook.banks` says of its layout and its moves. One with an `EXPERIMENT` has another recipe's kernel measured:
`cookbook.harness.experiments`. What hopper/tma_copy gives is in `cookbook.harness.copying`, what the studies of
ceilings give in `cookbook.harness.ceilings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from cookbook import banks
from cookbook.harness import (
    benching,
    catalog,
    ceilings,
    compiling,
    copying,
    counting,
    experiments,
    records,
    transposing,
)
from cookbook.harness.catalog import Recipe
from cookbook.harness.running import Shape
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.swizzle import Swizzle

BENCHED = (*ceilings.STUDIES, copying.NAME)  # the studies that `cookbook bench` takes


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
    if recipe.name == copying.NAME:
        return [Measurement(take, recipe) for take in _of_copies(level)]
    module = catalog.load(recipe.name)
    if hasattr(module, "EXPERIMENT"):
        look = {"timed": experiments.timed, "counted": experiments.counted}.get(level)
        return [Measurement(partial(look, recipe.name), catalog.find(module.EXPERIMENT.recipe))] if look else []
    if hasattr(module, "KERNELS") and level == "counted":
        return [Measurement(partial(counted, recipe.name), recipe)]
    return []


def _of_copies(level: str) -> list[Callable[[], tuple[records.Record, list[str]]]]:
    """hopper/tma_copy in every dtype, or timed at the first shape: `cookbook bench` times the others, too."""
    if level == "ran":
        return [partial(copying.ran, dtype) for dtype in copying.DTYPES]
    if level == "timed":
        return [lambda: (copying.timed_record(copying.BENCHED_SHAPES[0]), [])]
    return []


def bench_shapes(name: str) -> tuple[Shape | None, ...]:
    """What `cookbook bench` times of one of BENCHED, a record each; a study of ceilings chooses for itself: None."""
    return copying.BENCHED_SHAPES if name == copying.NAME else (None,)


def bench(
    name: str,
    shapes: Iterable[Shape | None] | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
    rounds: int = benching.ROUNDS,
) -> list[records.Record]:
    """Time one of BENCHED on this GPU, with all that it is compared with; one record a shape.

    Args:
        name: one of BENCHED.
        shapes: of `bench_shapes(name)`; all of them if left out.
        on_progress: told what is being timed.
        rounds: at least 7.

    Raises:
        ValueError: another recipe, or too few rounds.
        RuntimeError: no CUDA device, or a kernel that is wrong.
    """
    if name not in BENCHED:
        raise ValueError(f"name: got {name!r}, needed one of {', '.join(BENCHED)}")
    if name in ceilings.STUDIES:
        return [ceilings.measure(name, on_progress, rounds=rounds)]
    made = []
    for shape in shapes or bench_shapes(name):
        on_progress(f"timed {name} {copying.BENCHED_DTYPE} {'x'.join(map(str, shape))}")
        made.append(copying.timed_record(shape, rounds=rounds))
    return made


def launch(module: ModuleType) -> None:
    """Launch each kernel that is to be looked at once, and make sure that what it gave was right."""
    import torch

    if hasattr(module, "EXPERIMENT"):
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
    every = transposing.accesses(layout, move, module.CONFIG.threads)
    taken = {banks.wavefronts(a.addresses, a.width, load=name.startswith("s2")).actual for a in every}
    if len(taken) != 1:
        raise ValueError(f"MOVES: the steps of {name} take {sorted(taken)} wavefronts, needed the same number each")
    return taken.pop()


def compare(module: ModuleType, kernels: list[list[counting.Line]]) -> tuple[dict[str, Any], list[str]]:
    """Measured against predicted wavefronts: figures by kernel and opcode, and the mismatches in words.

    Args:
        kernels: the SASS lines that ncu saw, one list for each of the study's KERNELS, in their order.
    """
    wanted, figures, problems = predicted(module), {}, []
    if len(kernels) != len(wanted):
        problems.append(f"{len(kernels)} kernels were counted; needed one for each of {', '.join(wanted)}")
    for (name, moves), lines in zip(wanted.items(), kernels, strict=False):
        found, bad = counting.compare([line for line in lines if line.wavefronts], moves)
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
        config=compiling.config_for(module, compiling.arch_here()),
        device=torch.cuda.get_device_name(),
    )
    return made, problems
