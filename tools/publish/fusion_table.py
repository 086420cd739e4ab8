"""Table of docs/benchmarks.md: time that each fusion saves, predicted and as results/<device>/fusions.json has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cookbook.measure import records
from cookbook.publish.markdown import table, tabs
from tools import fusions
from tools.publish.benchmarks import MISSING, OLD

HEADER = ["fused with the product", "M x N x K", "apart, us", "fused, us", "saves, us: predicted", "measured"]


def markdown(root: Path | None = None) -> str:
    """A table for each device, with what its prediction knows; or that nothing was measured."""
    known = fusions.read(root)
    current = [run for run in known if all(records.code_of(name) == code for name, code in run["code"].items())]
    return tabs({run["device"]: _device(run) for run in current}) or f"*{(OLD if known else MISSING).capitalize()}*."


def _device(run: dict[str, Any]) -> str:
    taken = {(one["what"], tuple(one["shape"])): one for one in run["fusions"]}
    rows = [_row(f, taken[f.what, f.shape], run["gpu"]) for f in fusions.FUSIONS if (f.what, f.shape) in taken]
    said = (
        f"{run['device']}, {run['date']}. In the same run a copy moved {run['gpu']['bytes_per_us'] / 1000:.0f} GB/s, "
        f"and a kernel that does next to nothing took {run['gpu']['kernel_us']:.1f} us."
    )
    return f"{table(HEADER, rows, right=2)}\n\n{said}"


def _row(fusion: fusions.Fusion, one: dict[str, Any], gpu: dict[str, float]) -> list[str]:
    saved = fusions.predicted(fusion, gpu), one["apart"] - one["fused"]
    figures = [f"{x:.1f}" for x in (one["apart"], one["fused"], *saved)]
    return [f"[{fusion.what}](recipes/{fusion.recipe}.md)", _size(fusion), *figures]


def _size(fusion: fusions.Fusion) -> str:
    if fusion.what == fusions.CHAIN:
        m, n, middle, k = fusion.shape
        return f"{m} x ({k} -> {middle} -> {n})"
    if fusion.what == fusions.GROUPS:
        groups, *shape = fusion.shape
        return f"{' x '.join(map(str, shape))}, {groups} groups"
    return " x ".join(map(str, fusion.shape))
