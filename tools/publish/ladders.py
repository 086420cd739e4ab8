"""The ladder of a track: its GEMMs as steps, each with its idea, what it changes in the code, and what that gains.

The first page of a track, docs/recipes/<track>/index.md. All figures are computed: lines that differ from the recipes'
text, gains that were predicted from their notebooks, times from results/. Where there is none, the cell is empty.
"""

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from typing import Any

from cookbook.measure.peers import TORCH
from cookbook.publish.markdown import table, tabs
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.cells import cells
from tools.publish import benchmarks, cards, notebooks
from tools.publish.benchmarks import LADDER_SHAPES, Best

# A code cell with this tag says what a step gains: a dict, by recipe, of how many times as fast as the step before.
GAINS = "gains"
_HEADER = ["step, and its idea", "lines changed", "gain, predicted", "gain, measured"]


def tracks() -> tuple[str, ...]:
    """The tracks that have a ladder: those with GEMMs, in reading order."""
    return tuple(dict.fromkeys(r.track for r in catalog.recipes() if r.product.is_gemm))


def page(track: str, root: Path | None = None) -> str:
    """The first page of a track as markdown: its ladder, and its other pages.

    Args:
        track: one of `tracks()`.
        root: the folder of the records; results/ if left out.
    """
    steps = benchmarks.gemms(track)
    apart = (r for r in catalog.recipes() if r.track == track and r not in steps)
    others = [f"[{r.title}]({_file(r)})" for r in apart]
    also = [f"Also on this track: {', '.join(others)}."] if others else []
    return "\n\n".join([f"# {track.capitalize()}: the ladder", _INTRODUCTION, ladder(track, root), *also]) + "\n"


_INTRODUCTION = f"""\
Each step is a GEMM on a page of its own, and adds one idea to the step that it builds on. *Lines changed* counts lines
of code that come (+) and go (-); the link shows them. A *gain* is how many times as fast as the step before: predicted
where a page does so before it measures, measured at {benchmarks.in_short(LADDER_SHAPES[-1])}. Times are milliseconds;
in brackets stands how many times as fast as {TORCH}, cuBLAS, in the same run: above 1 ours is faster. An empty cell was
not predicted, not measured, or not since its code changed."""


def ladder(track: str, root: Path | None = None) -> str:
    """The table of a track's steps for each device that has timed some, with where its figures come from.

    Args:
        track: one of `tracks()`.
        root: the folder of the records; results/ if left out.
    """
    steps, shown, predicted = benchmarks.gemms(track), {}, predicted_gains()
    found = [r for recipe in steps for r in benchmarks.timed(recipe.name, root)]
    header = [*_HEADER, *(f"{benchmarks.in_short(shape)}, ms" for shape in LADDER_SHAPES)]
    for gpu, (known, here) in benchmarks.of_gpus(found, benchmarks.climbed(found, root), root).items():
        of = {recipe.name: [r for r in known if r["recipe"] == recipe.name] for recipe in steps}
        at = [(name, shape) for name in of for shape in LADDER_SHAPES]
        best: Best = {(name, shape): benchmarks.step(of[name], gpu, shape) for name, shape in at}
        rows = [_row(recipe, steps, best, predicted) for recipe in steps if not shown or of[recipe.name]]
        made = f'<div class="ladder" markdown="1">\n\n{table(header, rows, right=2)}\n\n</div>'
        shown[gpu] = "\n\n".join(filter(None, [made, benchmarks.origin(here)]))
    return tabs(shown)


def _row(recipe: Recipe, steps: list[Recipe], best: Best, predicted: dict[str, float]) -> list[str]:
    idea = f"[{recipe.title}]({_file(recipe)})<br>{' '.join(recipe.claim.split())}"
    gain = benchmarks.gain_of(recipe, LADDER_SHAPES[-1], steps, best)
    said = [f"{x:.2f}x" if x is not None else "" for x in (predicted.get(recipe.name), gain and gain[0])]
    return [idea, _changed(recipe), *said, *_times(recipe, best)]


def _times(recipe: Recipe, best: Best) -> list[str]:
    """Milliseconds at each of LADDER_SHAPES, and in brackets how many times as fast as cuBLAS."""
    cells = []
    for shape in LADDER_SHAPES:
        one = best[recipe.name, shape]
        ratio = f" ({one.to_torch:.3f})" if one and one.to_torch is not None else ""
        cells.append(f"{one.figures['median_ms']:.4g}{ratio}" if one else "")
    return cells


def _file(recipe: Recipe) -> str:
    return recipe.name.split("/")[1] + ".md"


# --- what a step changes ------------------------------------------------------------------------------------------


def changes(recipe: Recipe, base: Recipe) -> list[str]:
    """The lines of a unified diff between the code of two recipes: no prose, and no lab cells."""
    old, new = (_code(each) for each in (base, recipe))
    return list(difflib.unified_diff(old, new, base.name, recipe.name, lineterm="", n=2))


def counts(diff: list[str]) -> tuple[int, int]:
    """How many lines a unified diff adds, and how many it takes away; empty lines do not count."""
    body = [line for line in diff[2:] if line[1:].strip()]
    return sum(line[0] == "+" for line in body), sum(line[0] == "-" for line in body)


def _code(recipe: Recipe) -> list[str]:
    cells = catalog.code(recipe)
    return [line for cell in cells for line in cell.split("\n")]


def _changed(recipe: Recipe) -> str:
    """The lines that differ from the recipe it builds on, linked to them; "" of one that builds on none."""
    if not recipe.builds_on:
        return ""
    base = catalog.find(recipe.builds_on)
    more, less = counts(changes(recipe, base))
    where = base.name if base.track != recipe.track else base.name.split("/")[1]
    return f"[+{more} -{less}]({_file(recipe)}#{cards.DIFFERENCE}) from `{where}`"


# --- what was predicted -------------------------------------------------------------------------------------------


def predicted_gains() -> dict[str, float]:
    """By recipe, what the notebooks predict: how many times as fast as the step before it.

    Raises:
        ValueError: a cell that is tagged so gives something else, or a recipe that there is not.
    """
    found: dict[str, float] = {}
    for recipe in catalog.recipes():
        if any(GAINS in cell.tags for cell in cells(recipe.file.read_text(encoding="utf-8"))):
            for cell in notebooks.read(recipe.name).cells:
                if GAINS in cell.metadata.get("tags", ()):
                    found |= _gains_of(cell, recipe.name)
    return found


def _gains_of(cell: Any, name: str) -> dict[str, float]:
    known = {r.name for r in catalog.recipes()}
    shown = "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    try:
        found = ast.literal_eval(shown)
    except (SyntaxError, ValueError):
        found = None
    if not isinstance(found, dict) or not found or not all(x in known and found[x] > 0 for x in found):
        raise ValueError(f"{name}: got a cell of gains that shows {shown!r}; needed a dict of gains by recipe")
    return found
