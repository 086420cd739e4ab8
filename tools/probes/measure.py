"""Wavefronts of every pair as Nsight Compute counts them, against what `cookbook.banks` and other rules say."""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from cookbook.check import counted as counting
from tools.probes import forms
from tools.probes.launch import grids, launched, sample
from tools.probes.pairs import Pair
from tools.probes.rules import agreements

__all__ = ["LAUNCH_METRIC", "Measured", "Report", "figures", "from_lines", "from_rows", "of_forms", "profiled", "read"]

LAUNCH_METRIC = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
SOURCE_SECTION = ["--section", "SourceCounters"]


class Measured(NamedTuple):
    pair: Pair
    wavefronts: float

    @property
    def counted(self) -> bool:
        """True if the counter sees it: of a cp.async past L1 it can say 0, whatever the addresses."""
        return self.wavefronts > 0 or not self.pair.instruction.past_l1

    @property
    def ok(self) -> bool:
        return self.pair.predicted <= self.wavefronts <= self.pair.at_most or not self.counted


class Wrong(RuntimeError):
    """The report of the profiler is not of the probes that were launched, or their values were wrong."""


class Report(NamedTuple):
    """The report of a profiled run."""

    page: str  # CSV of ncu's source page, or of its raw page for mode "launches"
    wrong: list[str]  # values that are not the model's

    def write(self, folder: Path, mode: str) -> None:
        """Keep it, to be read again by `read` anywhere."""
        folder.mkdir(parents=True, exist_ok=True)
        with gzip.open(folder / f"{mode}.json.gz", "wt", encoding="utf-8") as file:
            json.dump(self._asdict(), file)

    @classmethod
    def read(cls, folder: Path, mode: str) -> Report:
        with gzip.open(folder / f"{mode}.json.gz", "rt", encoding="utf-8") as file:
            return cls(**json.load(file))


def profiled(mode: str, seed: int = 0) -> Report:
    """Run a mode of `launch` under ncu. Needs a GPU.

    Args:
        seed: of the table of mode "fresh".

    Raises:
        ToolMissing: no ncu, or not with its counters.
        Wrong: the probes did not run to their end.
    """
    collect, page = (["--metrics", LAUNCH_METRIC], "raw") if mode == "launches" else (SOURCE_SECTION, "source")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "wrong.json"
        command = [sys.executable, "-m", "tools.probes.launch", mode, str(file), str(seed)]
        text = counting.profile(command, collect, page)
        if not file.exists():
            raise Wrong(f"the probes did not run to their end: try {' '.join(command[1:])} without ncu")
        return Report(text, json.loads(file.read_text(encoding="utf-8")))


def read(report: Report, mode: str, seed: int = 0) -> list[Measured]:
    """The counts in a report.

    Raises:
        Wrong: it is not of the launches of this mode.
    """
    return from_rows(report.page) if mode == "launches" else from_lines(report.page, mode, seed)


def from_lines(page: str, mode: str = "lines", seed: int = 0) -> list[Measured]:
    """Reads the CSV of ncu's source page of `launch`, any mode but "launches": wavefronts of one execution by one warp.

    Raises:
        Wrong: not one kernel for each instruction, with one line for each of its pairs, executed as often as there
            are warps.
    """
    tables = launched(mode, seed)
    return [
        Measured(pair, line.per_instruction)
        for table, lines in zip(tables, _lines(page, mode, seed), strict=True)
        for pair, line in zip(table, lines, strict=True)
    ]


def of_forms(report: Report) -> dict[str, Any]:
    """The figures of mode "forms".

    Raises:
        Wrong: as `from_lines`.
    """
    return forms.figures(_lines(report.page, "forms", 0))


def _lines(page: str, mode: str, seed: int) -> list[list[counting.Line]]:
    """Find the SASS line of each probe, for each launch of a mode."""
    kernels, tables = counting.parse_kernels(page), launched(mode, seed)
    if len(kernels) != len(tables):
        raise Wrong(f"the report has {len(kernels)} kernels; {len(tables)} were launched")
    found = []
    for table, (ctas, warps), kernel in zip(tables, grids(mode, seed), kernels, strict=True):
        instruction = table[0].instruction
        lines = [line for line in kernel if line.opcode.split(".")[0] == instruction.opcode and line.executed]
        if len(lines) != len(table) or any(line.executed != ctas * warps for line in lines):
            raise Wrong(f"{instruction.name}: {len(lines)} lines in the report for {len(table)} probes")
        found.append(lines)
    return found


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
    """Return what a record keeps: counts by instruction, how far each rule holds, and the pairs that differ."""
    by_instruction = {}
    for instruction, group in groupby(measured, key=lambda m: m.pair.instruction):
        rows = list(group)
        by_instruction[instruction.name] = {
            "pairs": len(rows),
            "mismatches": sum(not m.ok for m in rows),
            "ranges": _ranges(rows),
            "wavefronts": sum(m.wavefronts for m in rows),
            "rules": agreements([m.pair for m in rows], [m.wavefronts for m in rows]),
        }
    return {
        "counter": counter,
        "unit": "(layout, access) pairs",
        "probes": sum(m.counted for m in measured),
        "not_counted": sum(not m.counted for m in measured),
        "mismatches": sum(not m.ok for m in measured),
        "ranges": _ranges(measured),
        "by_instruction": by_instruction,
        "differ": [described(m) for m in measured if not m.ok][:40],
    }


def _ranges(measured: Sequence[Measured]) -> int:
    """Counted pairs of which the model gives a range only."""
    return sum(m.counted and m.pair.at_most > m.pair.predicted for m in measured)


def described(measured: Measured) -> dict[str, Any]:
    """One pair and its count, for JSON."""
    pair = measured.pair
    return {
        "instruction": pair.instruction.name,
        "layout": pair.layout,
        "access": pair.access,
        "predicted": pair.predicted,
        "at_most": pair.at_most,
        "measured": measured.wavefronts,
    }
