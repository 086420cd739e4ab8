"""Bind a record of a suite of probes to its kernels, and to the model's predictions for their tables.

A launch is named by the changes that tell it from others of its suite: `mode` and `number` in `launch.launched`, with
the `seed` of a table that is drawn, or the `number` of a kernel of boxes.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from tools.probes import boxes, launch
from tools.records import device_code

__all__ = ["compile_launch", "launches", "model_hash"]

MODES = {
    "probes/shared_memory": ("lines", "launches", "busy"),
    "probes/fresh": ("fresh",),
    "probes/past_l1": ("forms",),
}
BOXES = "probes/tma"


def launches(record: dict[str, Any]) -> list[tuple[tuple[str, Any], ...]]:
    """The changes that name each different kernel of a record."""
    suite = record["recipe"]
    if suite == BOXES:
        return [(("number", number),) for number in range(len(_shapes(record["dtype"])))]
    seed = _seed(record)
    found: dict[Any, tuple[tuple[str, Any], ...]] = {}
    for mode in MODES[suite]:
        tables = zip(launch.launched(mode, seed), launch.grids(mode, seed), strict=True)
        for number, (table, grid) in enumerate(tables):
            changes = {"mode": mode, "number": number} | ({"seed": seed} if seed else {})
            kernel = table[0].instruction, len(table), mode in launch.VERIFIED, grid
            found.setdefault(kernel, tuple(sorted(changes.items())))
    return list(found.values())


def compile_launch(suite: str, dtype: str, changes: dict[str, Any]) -> Any:
    """Compile one of `launches`, for the target that CuTe is set to."""
    from tools.probes import kernels, tma_kernel

    if suite == BOXES:
        return inspect.unwrap(tma_kernel.compiled)(_shapes(dtype)[changes["number"]])
    mode, number, seed = changes["mode"], changes["number"], changes.get("seed", 0)
    table, grid = launch.launched(mode, seed)[number], launch.grids(mode, seed)[number]
    verify = mode in launch.VERIFIED
    return inspect.unwrap(kernels.compiled)(table[0].instruction, len(table), verify, grid)


def model_hash(record: dict[str, Any]) -> str:
    """Hash of the tables that the hardware was asked about, and of what the model says of each."""
    if record["recipe"] == BOXES:
        return device_code.digest(*(f"{box} {_bytes(boxes.expected(box))}" for box in boxes.boxes(record["dtype"])))
    said = []
    for mode in MODES[record["recipe"]]:
        for table in launch.launched(mode, _seed(record)):
            for number, pair in enumerate(table):
                values = launch.expected(pair, number) if mode in launch.VERIFIED else ()
                asked = pair.instruction.text(), list(map(int, pair.lanes)), pair.sources and [*map(int, pair.sources)]
                said.append(f"{asked} {pair.predicted} {pair.at_most} {' '.join(map(_bytes, values))}")
    return device_code.digest(*said)


def _bytes(array: np.ndarray) -> str:
    return np.ascontiguousarray(array).tobytes().hex()


def _seed(record: dict[str, Any]) -> int:
    return (record["config"] or {}).get("seed", 0)


def _shapes(dtype: str) -> list[Any]:
    return list(dict.fromkeys(boxes._shape(box) for box in boxes.boxes(dtype)))
