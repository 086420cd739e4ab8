"""The ladders as one story, for docs/story.md: of each step what two divisions and its page predict, and its time.

The page asks for a step by a comment: `<!-- step: hopper/pingpong_gemm -->`. Where the step's own page predicts what
its idea gains, in a table of its notebook, the comment names the row and the column of it too:

    <!-- step: hopper/pingpong_gemm | 128x192 + PDL | K = 512 -->

The row is the first with a cell that is so, or ends so; "a & b" asks for two cells. No figure is typed: all are read
from results/, from notebooks, and from the configuration of the kernel that was timed.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from cookbook import draw
from cookbook.measure import records
from cookbook.ops import predict
from cookbook.publish import gains
from cookbook.publish.colours import OURS_COLOUR
from cookbook.publish.markdown import figure, in_us, table
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from tools.publish import benchmarks, ladders, notebooks
from tools.publish.benchmarks import CEILING, LADDER_SHAPES, LADDERS, MEMORY, Best, Step

SHAPE = LADDER_SHAPES[-1]
TRACKS = LADDERS[::-1]  # in reading order
BYTES = 2  # of an element of A or B
NEAR = 0.1  # a gain within this part of the predicted one came as predicted
_STEP = re.compile(r"<!-- step: (?P<name>[\w/]+)(?: \| (?P<row>[^|]+?) \| (?P<column>[^|]+?))? -->")
_SHARE = re.compile(r"<!-- share: (?P<name>[\w/]+) -->")
_SCORE, _CHART = "<!-- step scores -->", "<!-- step chart -->"
_GAIN = re.compile(r"(\d+\.\d+)x")
_UNKNOWN = "not measured"


class Compared(NamedTuple):
    """Speed-up of a step over another kernel: predicted, and measured; None: there is none."""

    over: str  # the other kernel's name
    shape: tuple[int, ...]
    predicted: float | None
    measured: float | None
    device: str = ""  # the GPU that measured it


def told(markdown: str, root: Path | None = None) -> str:
    """The page's text with its figures.

    Raises:
        ValueError: a comment names a step, a row or a column that there is not.
    """
    if not (_STEP.search(markdown) or _SHARE.search(markdown)):
        return markdown
    bests, steps, predicted = _bests(root), _steps(), ladders.predicted_gains()
    best = _best(bests)
    asked = {mark["name"]: (mark["row"], mark["column"]) for mark in _STEP.finditer(markdown)}
    if unknown := sorted(set(asked) - {r.name for r in steps}):
        raise ValueError(f"step: got {unknown[0]!r}; needed a step of a main line")
    found = {r.name: compared(r, bests, predicted, *asked[r.name], root) for r in steps if r.name in asked}
    markdown = _STEP.sub(lambda mark: _step(catalog.find(mark["name"]), best, found[mark["name"]], root), markdown)
    markdown = _SHARE.sub(lambda mark: share(mark["name"], best), markdown)
    markdown = markdown.replace(_SCORE, score(found))
    return markdown.replace(_CHART, _chart(steps, best))


def share(name: str, best: Best) -> str:
    """The speed of a step in percent of cuBLAS's."""
    one = best.get((name, SHAPE))
    return f"{one.to_torch:.0%}" if one and one.to_torch is not None else "a first kernel"


def compared(
    recipe: Recipe,
    bests: dict[str, Best],
    predicted: dict[str, float],
    row: str | None = None,
    column: str | None = None,
    root: Path | None = None,
) -> list[Compared]:
    """A step next to the one before it, and its idea next to the kernel without it where the two differ.

    Args:
        bests: the best kernels by GPU: each gain is of the first that timed both.
        predicted: as of `ladders.predicted_gains`.
        row, column: where the step's own page predicts what its idea gains.
    """
    steps = _steps()
    before, gain = benchmarks.before(recipe, steps), benchmarks.gained(recipe, SHAPE, steps, bests)
    times, device = (gain.times, gain.device) if gain else (None, "")
    found = [Compared(before.name, SHAPE, predicted.get(recipe.name), times, device)] if before else []
    if recipe.pays:
        over, shape = recipe.pays["over"], tuple(recipe.pays["at"])
        known = (
            predicted.get(recipe.name) if before and over == before.name else None
        )  # of any shape, if no row is named
        own = read(recipe.name, row, column) if row and column else known
        paid = gains.idea(recipe, root=root, device=next(iter(bests), ""))
        idea = Compared(over, shape, own, paid.times, paid.device) if paid else Compared(over, shape, own, None)
        if not found or (over, shape) != found[0][:2]:
            found.append(idea)
    return found


def read(name: str, row: str, column: str) -> float | None:
    """The gain ("1.23x") that a table of a notebook has in a row and a column, the first table that has both; None if
    the notebook was not executed.

    Raises:
        ValueError: there is none.
    """
    wanted, notebook = tuple(row.split(" & ")), notebooks.read(name)
    if not notebooks.was_executed(notebook):
        return None
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            header, *rows = [_cells(line) for line in output.get("data", {}).get("text/markdown", "").splitlines()
                             if line.startswith("|")] or [[]]  # fmt: skip
            if column not in header:
                continue
            here = (
                each[header.index(column)]
                for each in rows
                if all(any(cell.endswith(part) for cell in each) for part in wanted)
            )
            if gain := next(filter(None, map(_GAIN.search, here)), None):
                return float(gain[1])
    raise ValueError(
        f"{name}: got no gain in row {row!r}, column {column!r}; needed a table of its notebook that has it"
    )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


# --- two divisions ------------------------------------------------------------------------------------------------


def bounds(one: Step, root: Path | None = None) -> tuple[float | None, float | None]:
    """(milliseconds to multiply, milliseconds to load) of a timed kernel; None where a rate was not measured.

    To multiply: operations over the rate of a loop of nothing but tensor-core instructions, timed in the same run. To
    load: the bytes of the operand tiles that its CTAs ask of L2, over the rate of reads that L2 serves.
    """
    ceiling, rate = one.record["peers"].get(CEILING), _l2(one.record["device"], root)
    loaded = _loaded(one)
    return ceiling and ceiling["median_ms"], loaded / rate * 1e-6 if loaded and rate else None


def _l2(device: str, root: Path | None) -> float | None:
    """GB/s of reads of the smallest buffer that the study of memory read on a GPU."""
    for record in records.select(MEMORY, records.CEILING, None, root):
        if record["device"] == device and not records.is_stale(record):
            reads = record["figures"]["read"]
            return reads[min(reads, key=lambda mib: int(mib.split()[0]))]["gbps"]
    return None


def _loaded(one: Step) -> float | None:
    """Bytes of A and B that all CTAs load: a tile of A that a cluster's row shares by multicast counts once."""
    config, (m, n, k) = _config(one), one.record["shape"]
    wide, high = (getattr(config, f"cluster_{each}", 1) * getattr(config, f"tile_{each}", 0) for each in "nm")
    return BYTES * m * n * k * (1 / wide + 1 / high) if wide and high else None


def _config(one: Step) -> Any:
    """The configuration of the kernel that was timed."""
    module: Any = catalog.load(one.record["recipe"])
    variants, name = getattr(module, "VARIANTS", {}), one.kernel
    if name not in variants:
        name = getattr(module, "DEFAULT", name)
    if name not in variants and hasattr(module, "choose"):
        name = module.choose(*one.record["shape"], sms=sum(predict.GPCS))
    return variants.get(name, module.CONFIG)


# --- what the page shows ------------------------------------------------------------------------------------------


def _steps() -> list[Recipe]:
    return [recipe for track in TRACKS for recipe in benchmarks.main_line(track)]


def _bests(root: Path | None) -> dict[str, Best]:
    """The best kernel of each step at SHAPE by GPU, the first GPU's first."""
    timed = {r.name: benchmarks.timed(r.name, root) for r in _steps()}
    everything = [record for found in timed.values() for record in found]
    gpus = benchmarks.of_gpus(everything, benchmarks.climbed(everything, root), root)
    return {gpu: {(name, SHAPE): benchmarks.step(timed[name], gpu, SHAPE) for name in timed} for gpu in gpus}


def _best(bests: dict[str, Best]) -> Best:
    """The best kernel of each step on the first GPU that timed it."""
    return {key: next(filter(None, (best[key] for best in bests.values())), None) for key in next(iter(bests.values()))}


def _gpu(best: Best) -> str:
    """The GPU that timed most steps; any other one is named beside its figures."""
    devices = Counter(one.record["device"] for one in best.values() if one)
    return devices.most_common(1)[0][0] if devices else ""


def _step(recipe: Recipe, best: Best, found: list[Compared], root: Path | None) -> str:
    one, rows = best[recipe.name, SHAPE], []
    if one is not None:
        divided = bounds(one, root)
        multiply, load = (f"{in_us(ms)} µs" if ms else _UNKNOWN for ms in divided)
        longer = f"{in_us(max(ms or 0.0 for ms in divided))} µs" if all(divided) else ""
        kernel = "this kernel" if one.kernel == benchmarks.OURS else f"this kernel (`{one.kernel}`)"
        cublas = f", {one.to_torch:.3f} of cuBLAS" if one.to_torch is not None else ""
        rows = [
            ["multiply: operations over the tensor cores' rate", multiply, ""],
            ["load: operand bytes over L2's rate", load, ""],
            [
                f"**{kernel}**; before: if both overlap perfectly",
                longer,
                f"**{in_us(one.figures['median_ms'])} µs{cublas}**",
            ],
        ]
    here = one.record["device"] if one else _gpu(best)
    for each in found:
        what = f"times as fast as `{each.over}`, {benchmarks.in_short(each.shape)}"
        measured = f"{each.measured:.2f}x{ladders.elsewhere(each.device, here)}" if each.measured else _UNKNOWN
        rows.append([what, f"{each.predicted:.2f}x" if each.predicted else "not predicted", measured])
    page = f"[{recipe.title}](recipes/{recipe.name}.md), {benchmarks.in_short(SHAPE)}"
    measured = f"measured, {here}" if here != _gpu(best) else "measured"
    return table([page, "computed before", measured], rows, right=1)


def verdict(found: list[Compared]) -> str:
    """Return how the last gain that was predicted came out, in words: the part of it that was measured."""
    known = [(each.predicted, each.measured) for each in found if each.predicted and each.measured]
    if not known:
        return "Not measured yet." if any(each.predicted for each in found) else "Not predicted."
    predicted, measured = known[-1]
    part = (measured - 1) / (predicted - 1)
    return "Less than predicted." if part < 1 - NEAR else "More than predicted." if part > 1 + NEAR else "As predicted."


def score(found: dict[str, list[Compared]]) -> str:
    """Every prediction that was measured, and how far off it was."""
    rows = [
        [f"[{catalog.find(name).title}](recipes/{name}.md)", f"`{each.over}`", benchmarks.in_short(each.shape),
         each.device, f"{each.predicted:.2f}x", f"{each.measured:.2f}x", f"{each.measured / each.predicted:.2f}"]
        for name, both in found.items()
        for each in both
        if each.predicted and each.measured
    ]  # fmt: skip
    header = ["step", "times as fast as", "M x N x K", "GPU", "predicted", "measured", "measured over predicted"]
    return table(header, rows, right=3) if rows else f"*{_UNKNOWN.capitalize()}*."


def _chart(steps: list[Recipe], best: Best) -> str:
    """Bars: the speed of each step as a multiple of cuBLAS's."""
    bars, device = [], _gpu(best)
    for recipe in steps:
        one = best[recipe.name, SHAPE]
        if one is not None and one.to_torch is not None:
            low, high = one.spread
            name, here = recipe.name.split("/")[1], one.record["device"]
            note = f"{one.to_torch:.2f}" + f" ({here})" * (here != device)
            bars.append(draw.Bar(recipe.track, f"{recipe.track}: {name}", one.to_torch, low, high, note))
    if not bars:
        return f"*{_UNKNOWN.capitalize()}*."
    title = f"{benchmarks.in_short(SHAPE)}, {benchmarks.DTYPE}, {device}"
    colours = dict.fromkeys((bar.name for bar in bars), OURS_COLOUR)
    unit, meaning = "times cuBLAS in the same run", "line: min to max"
    return figure(draw.bar_chart(bars, unit, title, ratios=False, meaning=meaning, colours=colours).svg)
