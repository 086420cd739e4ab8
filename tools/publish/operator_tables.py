"""What docs/pytorch.md shows of cookbook.ops: code of the operator, and tables from results/<device>/operator.json."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cookbook.measure import records
from cookbook.ops import measuring
from cookbook.publish.markdown import fence, table
from cookbook.recipe import catalog, operator
from tools import training as runs
from tools.publish.benchmarks import MISSING, OLD

STEPS = 20  # of a training run in a row of its table
WAYS = (  # of a call, in the order to read them; the first ones are what the later ones are made of
    "the launch alone",
    "the recipe's matmul",
    "ops.matmul",
    "define and impl",
    "torch.library.custom_op",
    "ops.matmul, a gradient wanted",
    "ops.matmul, compiled",
    "ops.matmul, replayed in a graph",
    "torch.matmul",
    "torch.matmul, a gradient wanted",
    "torch.matmul, compiled",
    "torch.matmul, replayed in a graph",
)


def source() -> str:
    """How the operator is defined, and its backward."""
    parts: tuple[Callable[..., Any], ...] = (operator.register, operator.keep, operator.backward_by)
    return fence("\n\n".join(inspect.getsource(part) for part in parts), "python")


def serving() -> str:
    """The recipes that can be chosen."""
    rows = []
    for recipe in (each for each in catalog.recipes() if each.serves):
        link = f"[{recipe.name}](recipes/{recipe.name}.md)"
        rates = ", ".join(f"{arch}: {rate}" for arch, rate in recipe.serves.items())
        rows.append([link, recipe.needs_gpu, ", ".join(recipe.majors), rates])
    return table(["recipe", "runs on", "majors", "multiply-adds of an SM in a clock"], rows)


def calls(root: Path | None = None) -> str:
    """Microseconds of the host for each way of a call, by device."""
    known = {device: found["calls"] for device, found in measuring.read(root).items() if found["calls"]}
    current = {device: found for device, found in known.items() if found["host"] == measuring.host_code()}
    if not current:
        return table(["a call, no `out` given", "us of the host"], [[way, OLD if known else MISSING] for way in WAYS])
    rows = [[way, *(f"{f['us'][way]:.2f}" if way in f["us"] else "" for f in current.values())] for way in WAYS]
    shown = table(["a call, no `out` given", *(f"us of the host, {device}" for device in current)], rows)
    dates = ", ".join(f"{device}: {found['date']}" for device, found in current.items())
    return f"{shown}\n\nMeasured on {dates}."


def regret(root: Path | None = None) -> str:
    """What the choice loses, by device, and the products for which it loses most."""
    parts = []
    for device, found in measuring.read(root).items():
        current = [each for each in found["shapes"].values() if not measuring.is_stale(each)]
        if not current:
            continue
        regrets = sorted(measuring.regrets(current), key=lambda each: -each.part)
        rows = [
            ["x".join(map(str, r.case.shape)), f"{r.case.majors}, {r.case.dtype}", r.chosen, r.best, f"{r.part:.1%}"]
            for r in regrets
        ]
        parts.append(f"{device}, {measuring.summary(regrets)}.\n")
        parts.append(table(["M x N x K", "operands", "chosen", "fastest", "regret"], rows[:10]))
    known = any(found["shapes"] for found in measuring.read(root).values())
    return "\n".join(parts) or f"Of {len(measuring.CASES)} products: *{OLD if known else MISSING}*."


def training(root: Path | None = None) -> str:
    """Of each recorded run: the mean loss and the median time of a step, a row for each STEPS of them."""
    known = runs.read(root)
    current = [run for run in known if all(records.code_of(name) == code for name, code in run["code"].items())]
    return "\n\n".join(map(_run, current)) or f"*{(OLD if known else MISSING).capitalize()}*."


def _run(run: dict[str, Any]) -> str:
    torchs, ours = run["torch"], run["ours"]
    found = runs.compared(torchs, ours)
    rows = []
    for start in range(0, len(torchs["loss"]), STEPS):
        part = slice(start, start + STEPS)
        losses = [f"{statistics.mean(each['loss'][part]):.4f}" for each in (torchs, ours)]
        times = [f"{statistics.median(each['ms'][part]):.2f}" for each in (torchs, ours)]
        rows.append([f"{start + 1} to {start + len(torchs['loss'][part])}", *losses, *times])
    header = ["steps", "loss, nn.Linear", "loss, ops.Linear", "ms a step, nn.Linear", "ms a step, ops.Linear"]
    how = "under torch.compile" if run["compiled"] else "not compiled"
    said = (
        f"{run['device']}, {run['date']}, {how}: the last losses differ by {found['loss']:+.2%}; a step takes "
        f"{found['step']:.3f} of the time with `nn.Linear`."
    )
    return f"{said}\n\n{table(header, rows, right=1)}"
