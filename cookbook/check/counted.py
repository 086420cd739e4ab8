"""Levels "counted" and "sanitized": NVIDIA's own tools look at the kernel while it runs on a GPU.

`count_kernels` runs Nsight Compute (ncu) and reads, for every SASS instruction that touches shared memory, how many
wavefronts it took; `compare` holds them against what `cookbook.banks` says of the recipe's own layouts and copies.
`sanitize` runs compute-sanitizer's memcheck and racecheck.

Each starts a Python of its own that launches what is looked at: `cookbook.measure.launch`.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cookbook.access import LANES
from cookbook.check.ran import Shape
from cookbook.recipe.majors import DEFAULT

# Whole tiles of 128, 192 and 256: every lane of every instruction is active.
COUNTED_SHAPE = (1536, 1536, 1024)
SANITIZED_SHAPES: tuple[Shape, ...] = ((200, 333, 200), (129, 255, 8), (300, 512, 512))  # edges in M, N and K
TOOLS = ("memcheck", "racecheck")
COLUMNS = (
    "Source",
    "Instructions Executed",
    "L1 Wavefronts Shared",
    "L1 Wavefronts Shared Ideal",
)  # of ncu's source page
# Which copies of a recipe (fields of its TiledCopies) each SASS instruction carries out.
COPIES_BY_OPCODE = {"LDGSTS": "g2s", "LDSM": "s2r", "STSM": "r2s", "STS": "r2s", "LDS": "s2g"}
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?")
_HAZARDS = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
_RACE = re.compile(r"^=+ ((?:Error|Warning): (?:Race|Potential) .*(?:\n=+  +\S.*)*)", re.MULTILINE)
KERNELS = "kernel_cutlass_.*kernel"  # what the DSL calls functions with "kernel" in their names; recipes launch others
_KERNEL = re.compile(r"\bkernel_cutlass_\w+")  # hundreds of letters: the types of all arguments


class ToolMissing(RuntimeError):
    """A tool of NVIDIA's that this needs is not on PATH, or does not work here."""


@dataclass(frozen=True)
class Line:
    """One SASS instruction: executions by warps, and wavefronts in shared memory over all of them."""

    opcode: str
    executed: int
    wavefronts: int
    ideal: int
    samples: int = 0  # times that ncu looked at a warp and found it here
    predicated: bool = False  # ncu counts a warp that all of its lanes sit out as one that executes

    @property
    def per_instruction(self) -> float:
        """Wavefronts of one execution by one warp."""
        return self.wavefronts / self.executed


def count_kernels(name: str, dtype: str, shape: Shape, majors: str = DEFAULT) -> list[list[Line]]:
    """Run a recipe's kernels under ncu: every SASS line with wavefronts in shared memory, a list for each kernel.

    A transpose launches every variant, in the order of its VARIANTS.

    Raises:
        ToolMissing: ncu is not there, or could not read the counters.
    """
    page = profile(launcher(name, dtype, [shape], majors), ["--section", "SourceCounters"], "source")
    return [[line for line in kernel if line.wavefronts] for kernel in parse_kernels(page)]


def profile(command: list[str], collect: list[str], page: str) -> str:
    """Run a command under ncu and return a page of its report ("source" or "raw") as CSV, kernel by kernel.

    Args:
        collect: ncu's options that say what to collect, e.g. `["--section", "SourceCounters"]`. Only KERNELS are
            profiled, at the clocks the GPU happens to have.

    Raises:
        ToolMissing: ncu is not there, or could not read the counters.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.ncu-rep"
        options = ["--clock-control", "none", "--kernel-name", f"regex:{KERNELS}", *collect]
        ran = run([path_of("ncu"), *options, "-o", str(report), *command])
        if not report.exists():
            raise ToolMissing(f"ncu wrote no report: {_tail(ran)}")
        units = ["--print-units", "base"] if page == "raw" else []  # else bytes may come as Mbyte, or as Gbyte
        return run([path_of("ncu"), "-i", str(report), "--page", page, "--csv", *units]).stdout


def parse_kernels(page: str) -> list[list[Line]]:
    """Every SASS line of the CSV of ncu's source page, one list for each kernel that was profiled, in their order.

    Raises:
        ToolMissing: the page lacks the columns, as with another version of ncu.
    """
    kernels: list[list[Line]] = []
    at: list[int] = []
    for row in csv.reader(io.StringIO(page)):
        if set(COLUMNS) <= set(row):  # every kernel begins with a header of its own
            at = [row.index(column) for column in (*COLUMNS, "# Samples") if column in row]
            kernels.append([])
        elif kernels and len(row) > max(at):
            source, *numbers = (row[i] for i in at)
            words = [word for word in source.split() if not word.startswith("@")]
            if words:
                counts = (int(float(number or 0)) for number in numbers)
                kernels[-1].append(Line(words[0], *counts, predicated=source.lstrip().startswith("@")))
    if not kernels:
        raise ToolMissing(f"ncu's source page has no columns {', '.join(COLUMNS)}")
    return kernels


def parse_metric(page: str, metric: str) -> list[float]:
    """The values of a metric in the CSV of ncu's raw page, one for each launch that was profiled.

    Raises:
        ToolMissing: the page has no such column.
    """
    rows = list(csv.reader(io.StringIO(page)))
    header = next((i for i, row in enumerate(rows) if metric in row), None)
    if header is None:
        raise ToolMissing(f"ncu's raw page has no column {metric}")
    ident, at = rows[header].index("ID"), rows[header].index(metric)
    # The row under the header holds units and no ID.
    return [float(row[at].replace(",", "")) for row in rows[header + 1 :] if len(row) > at and row[ident].isdigit()]


def compare(
    lines: Iterable[Line], predicted: Mapping[str, int], copied: tuple[int, int] = (0, 0)
) -> tuple[dict[str, Any], list[str]]:
    """Measured against predicted wavefronts: figures by opcode, and the mismatches in words.

    Args:
        lines: of one kernel, as `count_kernels` finds them.
        predicted: wavefronts of one instruction by kind of copy: `{"g2s": 4, "s2r": 4, ...}`.
        copied: executions of cp.async that move data, and their wavefronts. A kernel may issue more, past the end of K,
            which read nothing and fill with zeros; they are told apart by their number alone, so cp.async is compared
            as a whole: exactly if there are none of them.

    Not all that touches shared memory copies a tile. Where C is stored by stmatrix an STS stores something else, and an
    LDS narrower than the widest, which brings C to its stores, loads something else: scale factors, say. Nothing is
    predicted for these; such a load must have no excess.
    """
    figures: dict[str, Any] = {}
    problems, lines = [], list(lines)
    by_stmatrix = any(line.opcode.startswith("STSM") for line in lines)
    widest = max((_bits(line.opcode) for line in lines), default=0)
    for line in lines:
        name = line.opcode.split(".")[0]
        narrower = name == "LDS" and _bits(line.opcode) < widest
        kind = None if narrower or (name == "STS" and by_stmatrix) else COPIES_BY_OPCODE.get(name)
        wanted = predicted.get(kind) if kind else None
        entry = figures.setdefault(
            line.opcode, {"lines": 0, "executed": 0, "wavefronts": 0, "excess": 0, "predicted_each": wanted}
        )
        entry["lines"] += 1
        entry["executed"] += line.executed
        entry["wavefronts"] += line.wavefronts
        entry["excess"] += line.wavefronts - line.ideal
        if kind != "g2s" and wanted is not None and not _as_predicted(line, wanted):
            problems.append(f"{line.opcode}: {line.per_instruction:.2f} wavefronts each, predicted {wanted}")
        if narrower and line.wavefronts > line.ideal:
            problems.append(f"{line.opcode}: {line.wavefronts} wavefronts, {line.ideal} without bank conflicts")
    problems += _copies(figures, *copied)
    seen = {COPIES_BY_OPCODE.get(opcode.split(".")[0]) for opcode in figures}
    problems += [f"no instruction was counted for {kind}" for kind in sorted(set(predicted) - seen)]
    return figures, problems


def _bits(opcode: str) -> int:
    """The bits that a lane loads from shared memory with such an instruction; 0 of one that is no LDS."""
    name, *rest = opcode.split(".")
    widths = [int(word.lstrip("US")) for word in rest if word.lstrip("US").isdigit()]
    return (widths[0] if widths else 32) if name == "LDS" else 0


def _as_predicted(line: Line, wanted: int) -> bool:
    """Return whether each execution took `wanted` wavefronts; a predicated one that no lane took part in takes none."""
    whole = line.wavefronts % wanted == 0 and line.wavefronts <= wanted * line.executed
    return whole if line.predicated else line.wavefronts == wanted * line.executed


def _copies(figures: dict[str, Any], moving: int, wavefronts: int) -> list[str]:
    """Return what is wrong with cp.async in `figures`, to which this adds how many fill with zeros, and what those
    take.

    Nothing where no tile is copied so: then they carry something else.
    """
    entries = {name: entry for name, entry in figures.items() if COPIES_BY_OPCODE.get(name.split(".")[0]) == "g2s"}
    if not moving:
        return []
    executed, seen = (sum(entry[key] for entry in entries.values()) for key in ("executed", "wavefronts"))
    if executed < moving:  # the profiler did not count some lines: of the others each takes its share
        told, ok = {"not_counted": moving - executed}, executed > 0 and seen * moving == wavefronts * executed
    else:
        told = {"zero_filled": executed - moving, "of_zero_filled": seen - wavefronts}
        ok = wavefronts <= seen <= wavefronts + LANES * (executed - moving)
    for entry in entries.values():
        entry |= {"predicted": wavefronts, **told}
    return [] if ok else [f"cp.async: {seen} wavefronts of {executed}; predicted {wavefronts} of {moving}"]


def sanitize(
    name: str, dtype: str, shapes: Iterable[Shape] = SANITIZED_SHAPES, majors: str = DEFAULT
) -> dict[str, Any]:
    """Errors that memcheck and hazards that racecheck find: `{"memcheck": 0, "racecheck": 0, "shapes": [...]}`.

    Where racecheck finds any, "hazards" holds `{"errors", "warnings", "reports"}`, its words for each among the last.
    A warning counts like an error. racecheck warns of accesses of one warp's threads that nothing orders: harmless
    only where a warp's threads proceed together, and since compute capability 7.0 nothing but a `__syncwarp` or a
    barrier makes them. Whether something racecheck does not know of orders them, its report does not say.

    Raises:
        ToolMissing: compute-sanitizer is not there, or gave no summary.
    """
    shapes = list(shapes)
    found: dict[str, Any] = {"shapes": [list(shape) for shape in shapes]}
    for tool in TOOLS:
        # The runtime asks the driver for functions it may not have; that is no error of the kernel's.
        options = ["--tool", tool, "--report-api-errors", "no"]
        ran = run([path_of("compute-sanitizer"), *options, *launcher(name, dtype, shapes, majors)])
        figures = parse_sanitizer(tool, ran.stdout)
        if figures is None or ran.returncode != 0:
            raise ToolMissing(f"compute-sanitizer --tool {tool} gave no summary: {_tail(ran)}")
        found |= figures
    return found


def parse_sanitizer(tool: str, text: str) -> dict[str, Any] | None:
    """The figures of `sanitize` for one tool in what compute-sanitizer wrote; None if that holds no summary."""
    if tool != "racecheck":
        summary = _ERRORS.search(text)
        return {tool: int(summary[1])} if summary else None
    if not (summary := _HAZARDS.search(text)):
        return None
    total, errors, warnings = map(int, summary.groups())
    if not total:
        return {tool: 0}
    reports = [re.sub(r"\s*\n=+\s+", " ", _KERNEL.sub("kernel", report)) for report in _RACE.findall(text)]
    return {tool: total, "hazards": {"errors": errors, "warnings": warnings, "reports": reports}}


def sanitized(name: str, dtype: str, shapes: Iterable[Shape], majors: str = DEFAULT) -> tuple[dict[str, Any], str]:
    """Return what `sanitize` finds, and what is wrong, in words."""
    figures = sanitize(name, dtype, shapes, majors)
    problems = [f"{tool}: {figures[tool]}; needed 0" for tool in TOOLS if figures[tool]]
    if "hazards" in figures:
        reports = figures["hazards"]["reports"]
        problems[-1] = f"racecheck: {hazards(figures)}; needed 0: {' | '.join(reports)}"
    return figures, "; ".join(problems)


def hazards(figures: dict[str, Any]) -> str:
    """Return what racecheck found, by severity: "1 hazard (0 errors, 1 warning)"; empty if nothing."""
    if "hazards" not in figures:
        return ""
    counts = (figures["racecheck"], figures["hazards"]["errors"], figures["hazards"]["warnings"])
    words = [
        f"{n} {kind}{'' if n == 1 else 's'}" for n, kind in zip(counts, ("hazard", "error", "warning"), strict=True)
    ]
    return f"{words[0]} ({words[1]}, {words[2]})"


def path_of(name: str) -> str:
    """Return where one of NVIDIA's tools lies.

    Raises:
        ToolMissing: it is not on PATH.
    """
    path = shutil.which(name)
    if path is None:
        raise ToolMissing(f"{name} is not on PATH: it comes with the CUDA toolkit")
    return path


def launcher(name: str, dtype: str, shapes: Iterable[Shape], majors: str) -> list[str]:
    """The command that launches a GEMM, or each variant of it or of a transpose, once per shape."""
    return [*study_launcher(name), dtype, majors, *(",".join(map(str, shape)) for shape in shapes)]


def study_launcher(name: str) -> list[str]:
    """The command that launches a study's kernels, each once."""
    return [sys.executable, "-m", "cookbook.measure.launch", name]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it printed is text."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _tail(ran: subprocess.CompletedProcess[str]) -> str:
    return " | ".join((ran.stdout + ran.stderr).strip().splitlines()[-3:])
