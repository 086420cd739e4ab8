"""Tables of docs/ship.md from results/<device>/first_product.json: the time to a fresh process's first product."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from cookbook.measure import records
from cookbook.publish.markdown import table, tabs
from tools import first_product
from tools.publish.benchmarks import MISSING, OLD

WAYS = {  # of `first_product.WAYS`, in the order to read them
    "compiled": "a recipe, compiled",
    "cached": "a recipe, from the disk cache",
    "built": "a loader, from its library",
    "torch": "`torch.matmul`",
}


def shown(root: Path | None = None) -> str:
    """A table for each device, of milliseconds."""
    files = records.files(first_product.FILE, root)
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    current = [each for each in found if each["code"] == first_product.code(each["recipe"])]
    shown_by = {each["device"]: _of_device(each) for each in current}
    return tabs(shown_by) or f"*{(OLD if found else MISSING).capitalize()}.*"


def _of_device(found: dict[str, Any]) -> str:
    steps = {"import": "import", "first": "first product", "import + first": "together", "second": "second product"}
    ways = {way: said for way, said in WAYS.items() if way in found["ms"]}
    counts = Counter(run["way"] for run in found["runs"])
    rows = [[said, str(counts[way]), *(_ms(found["ms"][way][step]) for step in steps)] for way, said in ways.items()]
    context = statistics.median(run["ms"]["operands"] for run in found["runs"])
    m, n, k = found["shape"]
    return (
        table(["ms after the operands are there", "processes", *steps.values()], rows)
        + f"\n\n{found['recipe']}, {m} x {n} x {k}, {found['dtype']}, on an {found['device']}, {found['date']}; the "
        f"median of the processes (least to most). The CUDA context and the operands take {context:.0f} ms before that."
    )


def _ms(times: list[float]) -> str:
    median, least, most = (f"{ms:.1f}" for ms in times)
    return f"{median} ({least} to {most})"
