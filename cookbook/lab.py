"""API of the notebooks' cells: a kernel's gain, the check of the cells above, their `matmul` on a GPU, the check of
a reader's exercises; and by name (ELSEWHERE) tables, records and checks of the rooms below, so that these may change
without their pages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

from cookbook.check import chosen, exercises, levels, subjects
from cookbook.check.levels import Level, Report, Shape
from cookbook.measure import contest
from cookbook.publish import gains, words
from cookbook.recipe import catalog, entry, imports

__all__ = ["CheckFailed", "bring_in", "check_cells", "check_exercises", "compare", "gain"]

# By the name that a cell imports: the module that defines it, or that is it. Loaded when a cell asks.
_PAGES, _STUDIES, _K_TILE = "cookbook.publish.pages", "cookbook.publish.study_tables", "cookbook.check.k_tile"
ELSEWHERE = {
    **dict.fromkeys(("beside_tn", "checked_table", "limits_table", "results_table", "table"), _PAGES),
    **dict.fromkeys(("counted_table", "experiment_table"), _STUDIES),
    **dict.fromkeys(("choices_table", "fit_table"), "cookbook.publish.choices"),
    "ceiling_table": "cookbook.publish.ceiling_tables",
    "step_table": "cookbook.publish.gains",
    **dict.fromkeys(("LATENCY", "L2_PORT", "by_cp_async", "by_tma", "ctas_of"), _K_TILE),
    "copy_wavefronts": "cookbook.check.layout",
    "evaluated": "cookbook.check.evaluated",
    "function_findings": "cookbook.check.fused",
    "simulate_evaluated": "cookbook.check.model.product",
    **dict.fromkeys(("SplitK", "SplitKWgmma"), "cookbook.check.model.split_k"),
    **dict.fromkeys(("descriptors_of", "instruction_of"), "cookbook.check.model.tcgen05"),
    "boxes_of": "cookbook.check.model.wgmma",
    **dict.fromkeys(("host_arguments", "of_cluster"), "cookbook.check.pipeline.programs"),
    "find": "cookbook.recipe.catalog",
    **{name: f"cookbook.check.{name}" for name in ("compiled", "moves", "pipeline", "scaled")},
    **{name: f"cookbook.measure.{name}" for name in ("ceilings", "records", "tma_copies")},
    **{name: f"cookbook.recipe.{name}" for name in ("chained", "majors")},
    "predict": "cookbook.ops.predict",
}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours in what a compiler says


def __getattr__(name: str) -> Any:
    if name not in ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(ELSEWHERE[name])
    return module if module.__name__.endswith(f".{name}") and not hasattr(module, name) else getattr(module, name)


class CheckFailed(Exception):
    """A level does not hold for the code of the cells above; the message names the level and what it found."""


def check_cells(
    recipe: str,
    shapes: Iterable[Shape] = (),
    dtypes: Iterable[str] = (),
    targets: Iterable[str] = (),
    majors: Iterable[str] = (),
) -> None:
    """Check what this notebook's cells define, print a line for each level, and raise if one of them does not hold.

    Args:
        recipe: the name of the recipe that the notebook is; the notebook's own name does not matter.
        shapes: (M, N, K), or (M, N) of a transpose, for model, ran and timed; each level's own if left out.
        dtypes: of the recipe's; all of them if left out.
        targets: to compile for; all of the recipe's if left out.
        majors: of the operands, out of the recipe's; all that can have the shapes if left out.

    Raises:
        CheckFailed: a level does not hold.
        UnknownRecipe: there is no such recipe.
        ValueError: a dtype, a target or majors that are not of the recipe's, or a shape is none.
    """
    cells = sys.modules["__main__"]
    _forget_kernels(cells)
    report = levels.check(cells, shapes, dtypes, targets, majors=majors, recipe=recipe)
    print(_lines(report))
    if not report.ok:
        raise CheckFailed(_failures(report))


def bring_in(name: str) -> None:
    """Print the code to paste into a cell below the imports, so that a change of an imported definition takes effect:
    the definition, and every imported one that uses it.

    Raises:
        ValueError: no cell imports it of a recipe.
    """
    cells = [cell for cell in vars(sys.modules["__main__"]).get("In", []) if subjects.is_code(cell)]
    print(imports.needed_to_change("".join(f"# %%\n{cell}\n" for cell in cells), name))


def gain(recipe: str, shape: Shape, over: Iterable[str] = (), dtype: str = "bfloat16", majors: str = "") -> None:
    """Show how many times as fast a GEMM is as others, as results/ has it: a sentence, and bars.

    Args:
        recipe: its name.
        shape: (M, N, K) of the record.
        over: variants and peers of the record, or other recipes, next to torch's GEMM, which is always there.
        dtype: of the record.
        majors: of the record; the first that the recipe takes if left out.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: `over` names what was not timed.
    """
    from IPython.display import Markdown, display

    said, picture = gains.gain(recipe, shape, over, dtype, majors or None)
    display(Markdown(said))
    if picture:
        display(picture)


def compare(recipe: str, matmul: Callable[..., Any], shape: Shape, dtype: str = "bfloat16") -> None:
    """Run a notebook's own `matmul` next to torch's on this GPU: errors, then times. With no GPU that can run it, say
    what is recorded of the recipe.

    Args:
        recipe: the name of the recipe that the notebook is.
        matmul: what its cells define, as they are now.
        shape: (M, N, K).
        dtype: torch's name of the type of C.

    Raises:
        CheckFailed: the product is wrong.
        UnknownRecipe: there is no such recipe.
        ValueError: a shape or a dtype that the recipe does not take.
    """
    found = catalog.find(recipe)
    for what, value in (("shape", shape), ("dtype", dtype)):
        if refused := chosen.refusal(found, what, value):
            raise ValueError(refused)
    device, reason = levels.gpu_for(found)
    if device is None:
        print(f"Nothing was run: {reason}. Recorded of the recipe, not of the cells above:")
        print(gains.recorded(found.name, shape, dtype))
        return
    _forget_kernels(sys.modules["__main__"])
    cells, product = sys.modules["__main__"], found.product
    case = product.run_cells(found, cells, matmul, shape, dtype)
    if not case.ok:
        raise CheckFailed(f"matmul: {case.problem}")
    drawn = product.inputs_in_words(found)
    print(f"{device}, {' x '.join(map(str, shape))}, {dtype}, {drawn}. Relative error, ours and torch's:")
    print(f"  {case.error:.2e} and {case.torch_error:.2e}")
    timed = contest.time_contest(product.against_torch(found, matmul, shape, dtype), contest.MIN_ROUNDS)
    ours, torchs = (timed[who] for who in (contest.OURS, product.standard(found)))
    print(f"  {gains.spread(ours)}: {torchs['median_ms'] / ours['median_ms']:.3f} times as fast as torch's")


def check_exercises(recipe: str) -> None:
    """Try this notebook's answers to a recipe's exercises, and print a line for each: right, wrong or not answered yet.

    Args:
        recipe: the name of the recipe that the notebook is.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: the recipe has no exercises.
    """
    for outcome in exercises.tried(recipe, sys.modules["__main__"]):
        print(outcome.line)


def _forget_kernels(cells: ModuleType) -> None:
    """Have the next call of `matmul` compile what the cells say now.

    An earlier call may have kept its kernel; and where a cell that ran again defines a class, functions of other cells
    are annotated with the class of that name from before, which CuTe takes for another one.
    """
    held = vars(cells)
    for value in list(held.values()):
        if isinstance(value, entry.Gemm):
            value.plans.clear()
            value.kernels.clear()
        annotations = getattr(value, "__annotations__", {})
        for name, kind in annotations.items():
            if isinstance(kind, type) and kind.__module__ == cells.__name__:
                annotations[name] = held.get(kind.__name__, kind)


def _lines(report: Report) -> str:
    """Return which code was checked, then one line a level."""
    wide = max(len(_of(level)) for level in report.levels)
    said = ([*words.describe(level).splitlines(), ""][0] for level in report.levels)  # a compiler's error is long
    lines = [f"{x.level:10} {_of(x):{wide}} {x.status:12} {text}" for x, text in zip(report.levels, said, strict=True)]
    return _ANSI.sub("", "\n".join([f"Checked: {report.checked}.", *lines]))


def _of(level: Level) -> str:
    shape = "x".join(map(str, level.shape)) if level.shape else None
    return " ".join(filter(None, (level.majors, level.target, level.variant, shape)))


def _failures(report: Report) -> str:
    failed = [f"  {' '.join(filter(None, (one.level, _of(one), one.dtype)))}: {one.reason}" for one in report.failed]
    return _ANSI.sub("", "\n".join([f"{report.checked}: {len(failed)} of {len(report.levels)} levels fail", *failed]))
