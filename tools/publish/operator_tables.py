"""Code and tables of docs/pytorch.md: the operator's source, and its records in results/<device>/operator.json."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cookbook import draw
from cookbook.measure import records
from cookbook.publish.markdown import fence, figure, table, tabs
from cookbook.recipe import catalog, operator
from tools import training as runs
from tools.ops import measuring
from tools.ops import unseen as drawing
from tools.publish.benchmarks import MISSING, OLD
from tools.publish.pages import folded

WORST = 5  # products that a page shows
STEPS = 20  # of a training run in a row of its table
KINDS = {  # of a step's kernels, by a part of their names
    "a recipe's GEMM": ("kernel_cutlass",),
    "cuBLAS": ("nvjet", "gemm", "cublas"),
    "attention": ("sdpa", "flash", "cudnn"),
    "optimizer": ("multi_tensor",),
}
REST = "the rest: sums, norms, elementwise"
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
    """Return how the operator is defined, and its backward."""
    parts: tuple[Callable[..., Any], ...] = (operator.define, operator.tracking, operator.keep, operator.backward_by)
    return fence("\n\n".join(inspect.getsource(part) for part in parts), "python")


def serving() -> str:
    """The recipes that can be chosen."""
    rows = []
    for recipe in (each for each in catalog.recipes() if each.serves):
        link = f"[{recipe.name}](recipes/{recipe.name}.md)"
        rates = ", ".join(f"{arch}: {rate}" for arch, rate in recipe.serves.items())
        rows.append([link, recipe.needs_gpu, ", ".join(recipe.majors), rates])
    shown = table(["recipe", "runs on", "majors", "multiply-adds of an SM in a clock"], rows)
    return folded("The recipes that can be chosen", shown)


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
    """Return what the choice loses, by device, and the products for which it loses most."""
    shown = {}
    for device, found in measuring.read(root).items():
        current = [each for each in found["shapes"].values() if not measuring.is_stale(each)]
        if not current:
            continue
        regrets = sorted(measuring.regrets(current), key=lambda each: -each.part)
        rows = [
            ["x".join(map(str, r.case.shape)), f"{r.case.majors}, {r.case.dtype}", r.chosen, r.best, f"{r.part:.1%}"]
            for r in regrets
        ]
        worst = table(["M x N x K", "operands", "chosen", "fastest", "regret"], rows[:WORST])
        shown[device] = f"{device}, {measuring.summary(regrets)}. {_misfit(current)}\n\n{worst}"
    known = any(found["shapes"] for found in measuring.read(root).values())
    return tabs(shown) or f"Of {len(measuring.CASES)} products: *{OLD if known else MISSING}*."


def unseen(root: Path | None = None) -> str:
    """Return what the choice loses at products that nobody fitted, as predicted and tuned: a row for each seed, by
    device."""
    shown = {}
    for device, seeds in drawing.read(root).items():
        rows, everything = [], []
        for seed, shapes in seeds.items():
            current = [each for each in shapes if not measuring.is_stale(each)]
            everything += current
            rows += [_unseen_row(str(seed), current)] if current else []
        if rows:
            rows += [_unseen_row("all", everything)] if len(rows) > 1 else []
            worst = sorted(measuring.regrets(everything), key=lambda each: -each.part)[:WORST]
            products = [
                ["x".join(map(str, r.case.shape)), r.chosen, r.best, f"{r.part:.1%}", f"{r.against_torch:.3f}"]
                for r in worst
            ]
            listed = table(["M x N x K", "chosen", "fastest", "regret", "of torch.matmul"], products)
            shown[device] = f"{device}:\n\n{table(UNSEEN, rows)}\n\n{listed}"
    return tabs(shown) or f"*{(OLD if drawing.read(root) else MISSING).capitalize()}*."


UNSEEN = [
    "seed", "products", "regret, mean", "worst", "of torch.matmul", "least", "tuned: regret, mean", "worst",
    "of torch.matmul", "least", "most over the prediction",
]  # fmt: skip


def _unseen_row(name: str, shapes: list[dict[str, Any]]) -> list[str]:
    cells = []
    chosen, tuned = (measuring.regrets(shapes, tuned=each) for each in (False, True))
    for found in (chosen, tuned):
        parts, speeds = [each.part for each in found], [each.against_torch for each in found]
        cells += [f"{statistics.mean(parts):.1%}", f"{max(parts):.1%}"]
        cells += [f"{statistics.geometric_mean(speeds):.3f}", f"{min(speeds):.3f}"]
    return [name, str(len(chosen)), *cells, f"{max(each.slower for each in chosen):.2f}"]


def _misfit(shapes: list[dict[str, Any]]) -> str:
    """Return how far predictions are from the times, with the memory of the GPU and with an H200's."""
    parts = {part for each in shapes for part in each["gpu"][2:]} - {1.0}
    said = f"Predicted times are off by {measuring.misfit(shapes):.1%}, in the root mean square"
    if len(parts) != 1:
        return f"{said}."
    (part,) = parts
    other = measuring.misfit(shapes, memory=1.0)
    return f"{said}, with this GPU's bandwidth of memory ({part} of an H200's); with an H200's, by {other:.1%}."


def training(root: Path | None = None) -> str:
    """List the mean loss and the median time of a step of each recorded run, a row for each STEPS of them."""
    known = runs.read(root)
    current = [run for run in known if all(records.code_of(name) == code for name, code in run["code"].items())]
    shown = {gpu: "\n\n".join(map(_run, runs_here)) for gpu, runs_here in records.by_gpu(current, root).items()}
    return tabs(shown) or f"*{(OLD if known else MISSING).capitalize()}*."


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
    sizes = runs.sizes_of(run)
    how = f"{sizes.layers} layers {sizes.width} wide, {'under torch.compile' if run['compiled'] else 'not compiled'}"
    of = f"{sizes.batch} sequences of {sizes.length} tokens"
    said = (
        f"{run['device']}, {run['date']}, {how}, {of}: the last losses differ by {found['loss']:+.2%}; a step takes "
        f"{found['step']:.3f} of the time with `nn.Linear`."
    )
    shown = f"{said}\n\n{folded(f'Loss and time, {STEPS} steps a row', table(header, rows, right=1))}"
    return f"{shown}\n\n{_kernels(run, how)}" if "kernels" in torchs else shown


def _kernels(run: dict[str, Any], how: str) -> str:
    """The kernels of one step, one after the other: those of a kind that follow each other are one span."""
    rows: dict[str, list[draw.Span]] = {}
    totals: dict[str, dict[str, float]] = {}
    for who, name in (("torch", "nn.Linear"), ("ours", "ops.Linear")):
        rows[name], totals[name], now = [], {}, 0.0
        for kernel, start, end in run[who]["kernels"]:
            kind = kind_of(kernel)
            totals[name][kind] = totals[name].get(kind, 0.0) + end - start
            begun = rows[name].pop().start if rows[name] and rows[name][-1].kind == kind else now
            now += end - start
            rows[name].append(draw.Span(begun, now, "", kind))
    kinds = [kind for kind in (*KINDS, REST) if any(kind in each for each in totals.values())]
    parts = [[name, *(f"{each.get(kind, 0.0):.0f}" for kind in kinds)] for name, each in totals.items()]
    title = f"The kernels of one training step, {how}: {run['device']}"
    picture = draw.lanes(rows, title, "us", "time between kernels is left out: the profiler makes the host slower")
    return f"{figure(picture.svg)}\n\n{table(['us in one step', *kinds], parts, right=1)}"


def kind_of(kernel: str) -> str:
    """Return what a kernel is for, by its name."""
    return next((kind for kind, known in KINDS.items() if any(part in kernel for part in known)), REST)
