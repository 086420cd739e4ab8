"""Wavefronts of a study's own kernels: counted under ncu, and compared with `cookbook.banks`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from cookbook import banks
from cookbook.check import compiled, moves
from cookbook.check import counted as counting
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.measure import records
from cookbook.recipe.catalog import Recipe
from cookbook.swizzle import Swizzle


def launch(module: ModuleType) -> None:
    """Launch each of a study's KERNELS once, and make sure that what it gave was right."""
    import torch

    for name, which in module.KERNELS.items():
        got, wanted = module.try_out(which)
        if not torch.equal(got, wanted):
            raise SystemExit(f"{name}: {int((got != wanted).sum())} of {wanted.numel()} elements differ")


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


def counted(recipe: Recipe) -> tuple[records.Record, list[str]]:
    """Run a study's kernels under ncu; the record of it, and the mismatches in words. Needs a GPU.

    Raises:
        ToolMissing: no ncu, or not with its counters.
    """
    import torch

    module = recipe.module
    page = counting.profile(counting.study_launcher(recipe.name), ["--section", "SourceCounters"], "source")
    figures, problems = compare(module, counting.parse_kernels(page))
    made = records.make(
        "counted",
        recipe.name,
        module.DTYPE.__name__.lower(),
        None,
        passed=not problems,
        figures=figures,
        config=compiled.config_for(module, compiled.arch_here()),
        device=torch.cuda.get_device_name(),
    )
    return made, problems
