"""Tables of a study's measurements, as markdown: wavefronts against their prediction, and experiments.

Everything is read from results/, so that a page shows what is there now: predictions stand in the records.
`root` is the folder of the records; results/ if left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cookbook.measure import records
from cookbook.measure.records import Record
from cookbook.publish.markdown import NOT_MEASURED_ON_A_GPU, Laid, by_gpu, circumstances, table, times_in_us
from cookbook.recipe import catalog

GB = 1e9


def counted_table(name: str, root: Path | None = None, laid: Laid = by_gpu) -> str:
    """Wavefronts of every instruction of a study's kernels, predicted and counted, or that nothing was."""
    return _shown(records.select(catalog.find(name).name, "counted", None, root), _wavefronts, root, laid)


def _shown(found: list[Record], shown: Callable[[list[Record]], str], root: Path | None, laid: Laid) -> str:
    """`shown` of the current records of each device, and where they come from; stale ones are only named."""
    current = [r for r in found if not records.is_stale(r)]
    if current:
        each = records.by_gpu(current, root)
        return laid({gpu: f"{shown(those)}\n\n{circumstances(those)}" for gpu, those in each.items()})
    if found:
        last = max(found, key=lambda r: r["date"])
        return f"*Not measured on the code as it is now; last on {last['date'].split()[0]}, on an earlier version.*"
    return NOT_MEASURED_ON_A_GPU


def _wavefronts(found: list[Record]) -> str:
    rows = []
    for key, f in found[0]["figures"].items():
        kernel, opcode = key.rsplit(" ", 1)
        each = [f["wavefronts"] / f["executed"], (f["wavefronts"] - f["excess"]) / f["executed"]]
        predicted = "none" if f["predicted_each"] is None else str(f["predicted_each"])
        rows.append([kernel, f"`{opcode}`", str(f["executed"]), predicted, *(f"{n:g}" for n in each)])
    header = ["kernel", "instruction", "executions", "wavefronts each, predicted", "counted", "ideal"]
    verdict = "Every count is the predicted one." if found[0]["status"] == "passed" else "**A count differs.**"
    return f"{table(header, rows, right=2)}\n\n{verdict}"


# --- experiments ------------------------------------------------------------------------------------------------------


def experiment_table(name: str, root: Path | None = None, laid: Laid = by_gpu) -> str:
    """The configurations of a study's experiment: what each reads, by the model and as counted, and its time."""
    name = catalog.find(name).name
    found = [r for level in ("counted", "timed") for r in records.select(name, level, None, root)]
    return _shown(found, lambda found: f"{_orders(found)}\n\n{_conclusion(found)}", root, laid)


def _counts(found: list[Record]) -> dict[str, dict[str, Any]]:
    return next((r["figures"] for r in found if r["level"] == "counted"), {})


def timings_of(found: list[Record]) -> dict[str, dict[str, Any]]:
    """Figures by configuration, as they were measured; {} where none was timed."""
    timed = next((r for r in found if r["level"] == "timed"), None)
    return {timed["figures"]["name"]: timed["figures"], **timed["peers"]} if timed else {}


def _orders(found: list[Record]) -> str:
    counts, timings = _counts(found), timings_of(found)
    rows = []
    for name in counts or timings:
        row = [name, *["not counted"] * 3, *["not timed"] * 2]
        if name in counts:
            c = counts[name]
            row[1:4] = f"{c['predicted_bytes'] / GB:.2f}", f"{c['read_bytes'] / GB:.2f}", f"{c['l2_hit_rate']:.1%}"
        if name in timings:
            t = timings[name]
            row[4:] = times_in_us(t), f"{t['tflops']:.0f}"
        rows.append(row)
    read = ["from memory by the model, GB", "counted, GB", "hits of L2"]
    return table(["order", *read, "µs (min to max)", "TFLOP/s"], rows)


def _conclusion(found: list[Record]) -> str:
    """Return what the figures say, in words; nothing but the figures decides which."""
    counts, timings = _counts(found), timings_of(found)
    said = []
    if counts:
        by_read = sorted(counts, key=lambda name: counts[name]["read_bytes"])
        least, most = (counts[name]["read_bytes"] for name in (by_read[0], by_read[-1]))
        predicted = min(counts, key=lambda name: counts[name]["predicted_bytes"])
        agrees = "as the model says" if predicted == by_read[0] else f"where the model says {predicted}"
        said.append(f"**{_capital(by_read[0])}** reads least, {agrees}: {least / most:.0%} of {by_read[-1]}.")
    if timings:
        by_time = sorted(timings, key=lambda name: timings[name]["median_ms"])
        fast, slow = timings[by_time[0]], timings[by_time[-1]]
        ratio = slow["median_ms"] / fast["median_ms"]
        said.append(f"**{_capital(by_time[0])}** is fastest, {ratio:.3f} times as fast as {by_time[-1]}, the slowest.")
        near = [name for name in by_time[1:] if timings[name]["min_ms"] <= fast["max_ms"]]
        said.append(f"Within its spread: {', '.join(near)}." if near else "No other comes within its spread.")
    return " ".join(said)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
