"""README's first table: what the cookbook gains, one line each, from current records."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cookbook.measure import records
from cookbook.measure.peers import QUACK, TORCH
from cookbook.publish.markdown import table
from cookbook.recipe import catalog

NOT_MEASURED = "not measured"


class Line(NamedTuple):
    """One comparison: a recipe's default kernel, and who it is compared with in the same run."""

    what: str
    recipe: str
    shape: tuple[int, int, int]
    peer: str  # as the records call it
    called: str  # as a reader does


CUBE = (8192, 8192, 8192)
LINES = (
    Line("A swizzle, and nothing else changed", "ampere/smem_gemm", (4096, 4096, 4096), "plain", "no swizzle"),
    Line("bf16 GEMM on Hopper", "hopper/tuned_gemm", CUBE, TORCH, "cuBLAS"),
    Line("the same", "hopper/tuned_gemm", CUBE, QUACK, "QuACK"),
    Line("Few rows: split-K", "hopper/split_k_gemm", (16, 4096, 4096), TORCH, "cuBLAS"),
)


def record_of(line: Line, root: Path | None = None) -> records.Record | None:
    """The current record that a line quotes: all are of one GPU, the first that has any; None if it has not this."""
    gpu = next(iter(records.by_gpu((r for each in LINES for r in _current(each, root)), root)), None)
    return next((r for r in _current(line, root) if r["device"] == gpu), None)


def _current(line: Line, root: Path | None) -> list[records.Record]:
    timed = [r for r in records.select(line.recipe, "timed", "bfloat16", root) if tuple(r["shape"]) == line.shape]
    return [r for r in timed if line.peer in r["peers"] and not records.is_stale(r)]


def at_a_glance(root: Path | None = None) -> str:
    """A line for each of LINES, then on what it was measured; a record that is stale counts as none."""
    rows, used = [], []
    for line in LINES:
        found = record_of(line, root)
        used += [found] if found else []
        ratio = f"{found['peers'][line.peer]['ratio']:.2f}" if found else NOT_MEASURED
        shape = " x ".join(map(str, line.shape))
        rows.append([line.what, f"[`{line.recipe}`](recipes/{line.recipe}.py)", shape, line.called, ratio])
    header = ["", "recipe", "M x N x K", "compared with", "times as fast"]
    devices, days = {r["device"] for r in used}, {r["date"].split()[0] for r in used}
    on = f"\n\n{', '.join(sorted(devices))}; {', '.join(sorted(days))}; bfloat16 out, normal inputs." if used else ""
    return table(header, rows, right=4) + on


def tracks() -> str:
    """The recipes in reading order, a line for each track."""
    rows: dict[str, list[str]] = {}
    for recipe in catalog.recipes():
        rows.setdefault(recipe.track, []).append(f"[{recipe.title}](recipes/{recipe.name}.py)")
    return table(["track", "pages"], [[track, " · ".join(pages)] for track, pages in rows.items()], right=2)
