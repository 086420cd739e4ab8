"""The ladder of a track: its GEMMs as steps, each with its idea, what it changes in the code, and what that gains.

The first page of a track, docs/recipes/<track>/index.md: its main line, then its groups of side pages. All figures are
computed: lines that differ from the recipes' text, gains that were predicted from their notebooks, times from results/.
Where there is none, the cell is empty.
"""

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from typing import Any

from cookbook.measure.peers import TORCH
from cookbook.measure.records import Record
from cookbook.publish import gains
from cookbook.publish.markdown import in_us, table, tabs
from cookbook.recipe import catalog, imports
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.cells import cells
from tools.publish import benchmarks, cards, notebooks
from tools.publish.benchmarks import LADDER_SHAPES, Best
from tools.publish.unchanged import base_of

# A code cell with this tag says what a step gains: a dict, by recipe, of how many times as fast as the step before.
GAINS = "gains"
_HEADER = ["step, and its idea", "lines changed", "its idea, measured", "gain, predicted", "gain, measured"]


def tracks() -> tuple[str, ...]:
    """The tracks that have a ladder: those with GEMMs, in reading order."""
    return tuple(dict.fromkeys(r.track for r in catalog.recipes() if r.product.is_gemm))


def page(track: str, root: Path | None = None) -> str:
    """The first page of a track as markdown: its ladder, and its other pages.

    Args:
        track: one of `tracks()`.
        root: the folder of the records; results/ if left out.
    """
    pages = [r for r in catalog.recipes() if r.track == track]
    studies = [f"[{r.title}]({_file(r)})" for r in pages if r.kind == "study"]
    also = [f"Also on this track: {', '.join(studies)}."] if studies else []
    groups = dict.fromkeys(r.aside for r in pages if r.aside)
    beside = [f"## {group}\n\n{_group(group, pages, root)}" for group in groups]
    title = f"# {track.capitalize()}: the ladder"
    return "\n\n".join([title, _INTRODUCTION, ladder(track, root), *also, *(beside and [_BESIDE]), *beside]) + "\n"


def _group(group: str, pages: list[Recipe], root: Path | None) -> str:
    """The table of a group of side pages, each at the shape that it is made for."""
    rows = []
    for recipe in pages:
        if recipe.aside == group:
            shape = (*recipe.bench_shapes, LADDER_SHAPES[-1])[0]
            rows.append([_idea(recipe), _changed(recipe), benchmarks.in_short(shape), _best_of(recipe, shape, root)])
    return table(["page, and its idea", "lines changed", "at", "µs"], rows, right=2)


def _best_of(recipe: Recipe, shape: tuple[int, ...], root: Path | None) -> str:
    """The time at a shape on the first GPU that has a current record there."""
    found = benchmarks.timed(recipe.name, root)
    devices = dict.fromkeys(r["device"] for r in benchmarks.current_of(found))
    steps = (benchmarks.step(found, device, shape) for device in devices)
    return _time(next((one for one in steps if one), None))


_BESIDE = """\
Side pages leave the main line for one kind of product, operand or epilogue. Each is shown at the shape that it is made
for; brackets are as above."""
_INTRODUCTION = f"""\
Each step is a GEMM on a page of its own, and adds one idea to the step that it builds on. *Lines changed* counts the
lines of code that its own definitions add (+) and take away (-); the link shows them. *Its idea, measured*: how many
times as fast the kernel is with it as without it, at the shape where its page measures it. A *gain* is how many
times as fast as the step before: predicted where a page does so before it measures, measured at
{benchmarks.in_short(LADDER_SHAPES[-1])}. Times are microseconds; in brackets stands how many times as fast as {TORCH},
cuBLAS, in the same run: above 1 ours is faster. A gain is of one GPU that timed both; where that is another one than
the table's, its name stands there. An empty cell was not predicted, not measured, or not since its code changed."""


def ladder(track: str, root: Path | None = None) -> str:
    """The table of a track's steps for each device that has timed some, with where its figures come from.

    Args:
        track: one of `tracks()`.
        root: the folder of the records; results/ if left out.
    """
    steps, shown, predicted = benchmarks.main_line(track), {}, predicted_gains()
    found = [r for recipe in steps for r in benchmarks.timed(recipe.name, root)]
    header = [*_HEADER, *(f"{benchmarks.in_short(shape)}, µs" for shape in LADDER_SHAPES)]
    gpus = benchmarks.of_gpus(found, benchmarks.climbed(found, root), root)
    bests = {gpu: _best(steps, known, gpu) for gpu, (known, _) in gpus.items()}
    for gpu, (known, here) in gpus.items():
        timed = {r["recipe"] for r in known}
        first = {gpu: bests[gpu]} | bests  # this table's GPU is asked before the others
        rows = [_row(recipe, steps, first, predicted, root) for recipe in steps if not shown or recipe.name in timed]
        made = f'<div class="ladder" markdown="1">\n\n{table(header, rows, right=2)}\n\n</div>'
        shown[gpu] = "\n\n".join(filter(None, [made, benchmarks.origin(here)]))
    return tabs(shown)


def _best(steps: list[Recipe], known: list[Record], gpu: str) -> Best:
    of = {recipe.name: [r for r in known if r["recipe"] == recipe.name] for recipe in steps}
    return {(name, shape): benchmarks.step(of[name], gpu, shape) for name in of for shape in LADDER_SHAPES}


def _row(
    recipe: Recipe, steps: list[Recipe], bests: dict[str, Best], predicted: dict[str, float], root: Path | None
) -> list[str]:
    """A step's row; `bests`: of the table's own GPU first. What another GPU measured stands with its name."""
    gpu, best = next(iter(bests.items()))
    gain, expected = benchmarks.gained(recipe, LADDER_SHAPES[-1], steps, bests), predicted.get(recipe.name)
    measured = f"{gain.times:.2f}x{elsewhere(gain.device, gpu)}" if gain else ""
    said = [f"{expected:.2f}x" if expected is not None else "", measured]
    return [_idea(recipe), _changed(recipe), _paid(recipe, gpu, root), *said, *_times(recipe, best)]


def elsewhere(device: str, gpu: str) -> str:
    """Name the GPU that measured a gain, in brackets; "" where it is `gpu`, that of what stands around."""
    return f" ({device})" * (device != gpu)


def _paid(recipe: Recipe, gpu: str, root: Path | None) -> str:
    """Return what the idea of a step is worth at the shape where it pays."""
    if (found := gains.idea(recipe, root=root, device=gpu)) is None:
        return ""
    over = recipe.pays["over"]
    known = over.split("/")[1] if over.startswith(f"{recipe.track}/") else over
    at = f"{benchmarks.in_short(tuple(recipe.pays['at']))}{elsewhere(found.device, gpu)}"
    return f"{found.times:.2f}x of `{known}` at {at}"


def _idea(recipe: Recipe) -> str:
    return f"[{recipe.title}]({_file(recipe)})<br>{' '.join(recipe.claim.split())}"


def _times(recipe: Recipe, best: Best) -> list[str]:
    """Microseconds at each of LADDER_SHAPES, and in brackets how many times as fast as cuBLAS."""
    return [_time(best[recipe.name, shape]) for shape in LADDER_SHAPES]


def _time(one: benchmarks.Step | None) -> str:
    ratio = f" ({one.to_torch:.3f})" if one and one.to_torch is not None else ""
    return f"{in_us(one.figures['median_ms'])}{ratio}" if one else ""


def _file(recipe: Recipe) -> str:
    return recipe.name.split("/")[1] + ".md"


# --- what a step changes ------------------------------------------------------------------------------------------


def changes(recipe: Recipe, base: Recipe) -> list[str]:
    """Return what a recipe's own definitions change of its base's, as a unified diff: each next to the one of the same
    names.

    What it imports is not its own; what it no longer uses is not told. No prose, no imports, and no lab cells.
    """
    own = imports.definitions(recipe.file.read_text(encoding="utf-8"))
    bases = imports.definitions(imports.written_in(base.file.read_text(encoding="utf-8")))
    lines: list[str] = []
    for names in dict.fromkeys(each.names for each in own):
        old, new = ("\n\n".join(each.text for each in some if each.names == names) for some in (bases, own))
        lines += list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))[2:]
    return [f"--- {base.name}", f"+++ {recipe.name}", *lines] if lines else []


def counts(diff: list[str]) -> tuple[int, int]:
    """Return how many lines a unified diff adds, and how many it takes away; empty lines do not count."""
    body = [line for line in diff[2:] if line[1:].strip()]
    return sum(line[0] == "+" for line in body), sum(line[0] == "-" for line in body)


def _changed(recipe: Recipe) -> str:
    """The lines that differ from the recipe that it changes, linked to them; "" of one that changes none."""
    if not (base := base_of(recipe)):
        return ""
    more, less = counts(changes(recipe, base))
    where = base.name if base.track != recipe.track else base.name.split("/")[1]
    return f"[+{more} -{less}]({_file(recipe)}#{cards.DIFFERENCE}) from `{where}`"


# --- what was predicted -------------------------------------------------------------------------------------------


def predicted_gains() -> dict[str, float]:
    """By recipe, what the executed notebooks predict: how many times as fast as the step before it.

    Raises:
        ValueError: a cell that is tagged so gives something else, or a recipe that there is not.
    """
    found: dict[str, float] = {}
    for recipe in catalog.recipes():
        if any(GAINS in cell.tags for cell in cells(recipe.file.read_text(encoding="utf-8"))):
            for cell in notebooks.read(recipe.name).cells:
                if GAINS in cell.metadata.get("tags", ()) and cell.execution_count:
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
