"""Wavefronts of every pair as Nsight Compute counts them, beside what `cookbook.banks` and other rules say."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from cookbook.harness import counting
from cookbook.harness.probes.launch import sample
from cookbook.harness.probes.pairs import Pair, pairs
from cookbook.harness.probes.rules import agreements

__all__ = ["LAUNCH_METRIC", "Measured", "by_launch", "by_line", "figures", "from_lines", "from_rows"]

LAUNCH_METRIC = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"


class Measured(NamedTuple):
    pair: Pair
    wavefronts: float

    @property
    def ok(self) -> bool:
        return self.wavefronts == self.pair.predicted


class Wrong(RuntimeError):
    """The report of the profiler is not of the probes that were launched, or their values were wrong."""


def by_line() -> list[Measured]:
    """Every pair, by the counters of its own SASS line. Needs a GPU and ncu.

    Raises:
        ToolMissing: no ncu, or not with its counters.
        Wrong: what was loaded or stored is not what the model says, or the report does not fit the launches.
    """
    return from_lines(_profiled("lines", ["--section", "SourceCounters"], "source"))


def by_launch() -> list[Measured]:
    """The pairs of `sample`, each a launch that has no other access to shared memory, by a counter of the whole SM.

    Raises:
        ToolMissing, Wrong: as `by_line`.
    """
    return from_rows(_profiled("launches", ["--metrics", LAUNCH_METRIC], "raw"))


def _profiled(mode: str, collect: list[str], page: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "wrong.json"
        command = [sys.executable, "-m", "cookbook.harness.probes.launch", mode, str(file)]
        report = counting.profile(command, collect, page)
        if not file.exists():
            raise Wrong(f"the probes did not run to their end: try {' '.join(command[1:])} without ncu")
        wrong = json.loads(file.read_text(encoding="utf-8"))
    if wrong:
        raise Wrong(f"{len(wrong)} pairs gave wrong values: {'; '.join(wrong[:5])}")
    return report


def from_lines(page: str) -> list[Measured]:
    """Reads the CSV of ncu's source page of `launch lines`.

    Raises:
        Wrong: not one kernel for each instruction, with one line executed once for each of its pairs.
    """
    kernels = counting.parse_kernels(page)
    tables = [list(group) for _, group in groupby(pairs(), key=lambda pair: pair.instruction)]
    if len(kernels) != len(tables):
        raise Wrong(f"the report has {len(kernels)} kernels; {len(tables)} were launched")
    measured = []
    for table, kernel in zip(tables, kernels, strict=True):
        instruction = table[0].instruction
        lines = [line for line in kernel if line.opcode.split(".")[0] == instruction.opcode and line.executed]
        if len(lines) != len(table) or any(line.executed != 1 for line in lines):
            raise Wrong(f"{instruction.name}: {len(lines)} lines in the report for {len(table)} probes")
        measured += [Measured(pair, line.wavefronts) for pair, line in zip(table, lines, strict=True)]
    return measured


def from_rows(page: str) -> list[Measured]:
    """Reads the CSV of ncu's raw page of `launch launches`: one row a launch, in their order.

    Raises:
        Wrong: another number of rows than launches, or the metric is not there.
    """
    values = counting.parse_metric(page, LAUNCH_METRIC)
    table = sample()
    if len(values) != len(table):
        raise Wrong(f"the report has {len(values)} launches; {len(table)} were made")
    return [Measured(pair, value) for pair, value in zip(table, values, strict=True)]


def figures(measured: Sequence[Measured], counter: str) -> dict[str, Any]:
    """What a record keeps: counts by instruction, how far each rule holds, and the pairs that differ."""
    by_instruction = {}
    for instruction, group in groupby(measured, key=lambda m: m.pair.instruction):
        rows = list(group)
        by_instruction[instruction.name] = {
            "pairs": len(rows),
            "mismatches": sum(not m.ok for m in rows),
            "wavefronts": sum(m.wavefronts for m in rows),
            "rules": agreements([m.pair for m in rows], [m.wavefronts for m in rows]),
        }
    return {
        "counter": counter,
        "unit": "(layout, access) pairs",
        "probes": len(measured),
        "mismatches": sum(not m.ok for m in measured),
        "by_instruction": by_instruction,
        "differ": [described(m) for m in measured if not m.ok][:40],
    }


def described(measured: Measured) -> dict[str, Any]:
    """One pair and its count, for JSON."""
    pair = measured.pair
    return {
        "instruction": pair.instruction.name,
        "layout": pair.layout,
        "access": pair.access,
        "predicted": pair.predicted,
        "measured": measured.wavefronts,
    }
