"""Ceilings: how fast this GPU could be at most, measured, recorded, and timed beside every GEMM.

The two studies of foundations/ that measure them define `measure()`, which returns `{section: {name: figures}}`; a
record of level "ceiling" holds that, one for each study and device. The tensor cores' study also defines `Ceiling`,
a kernel that does a GEMM's multiplications and nothing else: `beside` puts it into a GEMM's contest.

Nothing here imports torch or CuTe until something is measured.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cookbook import draw
from cookbook.harness import catalog, records
from cookbook.harness.records import Record

if TYPE_CHECKING:
    from cookbook.harness.benching import Contest

TENSOR_CORES, MEMORY = "foundations/tensor_core_ceiling", "foundations/memory_ceiling"
STUDIES = (TENSOR_CORES, MEMORY)
LEVEL, PEER = records.CEILING, "ceiling"
NOT_MEASURED = "*Not measured on a GPU yet.*"
DISTRIBUTION = "normal(0, 1) unless named otherwise"

# A figure's key in a record -> the heading of its column, and how it is written.
COLUMNS = {
    "tflops": ("TFLOP/s", "{:.0f}"),
    "gbps": ("GB/s", "{:.0f}"),
    "flops_per_clock": ("operations a clock and SM", "{:.0f}"),
    "clock_ghz": ("SM clock, GHz", "{:.2f}"),
    "bytes_per_clock": ("bytes a clock and SM", "{:.1f}"),
    "predicted": ("by counting banks", "{:.0f}"),
}
_RATES = ("tflops", "gbps", "bytes_per_clock")
_BY_SIZE = re.compile(r"\d+ MiB")
_LABEL = re.compile(r"^\s*(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA\b[^`]*`\((\.L_x_\d+)\)")
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


# --- on a GPU -----------------------------------------------------------------------------------------------------


def measure(name: str, on_progress: Callable[[str], None] = lambda text: None, **how: Any) -> Record:
    """Measure one of STUDIES on this GPU.

    Args:
        name: one of STUDIES.
        on_progress: told what is being measured.
        how: passed on to the study's `measure`, e.g. `rounds=7`.

    Raises:
        ValueError: another recipe, or too few rounds.
        RuntimeError: no CUDA device, or rates that cannot be: a kernel that left its work out.
    """
    import torch

    if name not in STUDIES:
        raise ValueError(f"name: got {name!r}, needed one of {', '.join(STUDIES)}")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be measured here")
    on_progress(f"{LEVEL} {name}")
    found = catalog.load(name).measure(**how)
    if bad := implausible(found):
        raise RuntimeError(f"{name}: {'; '.join(bad)}")
    device = torch.cuda.get_device_name()
    return records.make(LEVEL, name, "", None, passed=True, figures=found, device=device, distribution=DISTRIBUTION)


def implausible(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """What no GPU can have measured, in words: rates that are not positive, a spread that leaves its median out, an SM
    that does more than its tensor cores (8192 operations a clock, of 8 bits on Hopper) or banks (128 bytes) can."""
    bad = []
    for section, entries in found.items():
        for name, f in entries.items():
            for key in ("tflops", "gbps"):
                if key in f and not 0 < f[f"{key}_min"] <= f[key] <= f[f"{key}_max"]:
                    bad.append(f"{section}, {name}: {key} {f[key]} outside its spread")
            if not 0 < f.get("flops_per_clock", 1) <= 8192 * 1.01:
                bad.append(f"{section}, {name}: {f['flops_per_clock']} operations a clock")
            if not 0 < f.get("bytes_per_clock", 1) <= 128 * 1.01:
                bad.append(f"{section}, {name}: {f['bytes_per_clock']} bytes a clock")
    return bad


def unit_of(recipe: catalog.Recipe) -> str | None:
    """Which instruction a GEMM multiplies with, by the data path that its front matter names; None: neither of two."""
    return next((unit for unit in ("wgmma", "mma.sync") if unit in recipe.path), None)


def beside(recipe: catalog.Recipe, contest: Contest, dtype: str) -> Contest:
    """A GEMM's contest with the ceiling of its instruction as one more variant.

    It does as many operations as fit whole turns of its loop, and `Contest.scale` corrects its times for the rest. A
    GEMM that multiplies by another instruction, or one that this GPU lacks, has no ceiling.
    """
    import torch

    module, unit = catalog.load(TENSOR_CORES), unit_of(recipe)
    kind = {"wgmma": module.Wgmma, "mma.sync": module.MmaSync}.get(unit)
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if kind is None or not module.runs_on(kind(dtype=dtype), arch):
        return contest
    kernel = module.Ceiling(kind(dtype=dtype))
    turns = max(1, round(contest.work / kernel.turn_flops))
    variants = {**contest.variants, PEER: lambda *operands: kernel(turns)}
    return replace(contest, variants=variants, scale={PEER: contest.work / (turns * kernel.turn_flops)})


# --- what is shown ------------------------------------------------------------------------------------------------


def ceiling_table(name: str, root: Path | None = None) -> str:
    """What a study measured, as markdown: a table for each section, by device; or that nothing is measured.

    Args:
        name: one of STUDIES.
        root: the folder of the records; results/ if left out.
    """
    from cookbook.harness.publishing import circumstances, table

    found = records.select(catalog.find(name).name, LEVEL, None, root)
    current = [record for record in found if not records.is_stale(record)]
    parts = []
    for record in current:
        for title, (header, rows) in tables(record["figures"]).items():
            parts += [f"**{title[0].upper()}{title[1:]}**", table(header, rows)]
        parts.append(circumstances([record]))
    if found and not current:
        last = max(found, key=lambda record: record["date"])["date"].split()[0]
        return f"*Not measured on the code as it is now; last on {last}, on an earlier version.*"
    return "\n\n".join(parts) or NOT_MEASURED


def ceiling_chart(name: str, root: Path | None = None) -> draw.Picture | None:
    """The first device's current rates as bars: instructions and data, or reads and copies by size; None if nothing is
    recorded of the code as it is now."""
    found = [r for r in records.select(catalog.find(name).name, LEVEL, None, root) if not records.is_stale(r)]
    if not found:
        return None
    figures = found[0]["figures"]
    by_size = {section: some for section, some in figures.items() if all(map(_BY_SIZE.fullmatch, some))}
    sizes = dict.fromkeys(size for some in by_size.values() for size in some)
    bars = [_bar(size, section, some[size]) for size in sizes for section, some in by_size.items() if size in some]
    bars = bars or [_bar(s, entry, f) for s in ("instructions", "data") for entry, f in figures[s].items()]
    unit, title = ("GB/s" if by_size else "TFLOP/s"), f"{name}, {found[0]['device']}"
    return draw.bar_chart(bars, unit=unit, title=title, highlight="read", ratios=False)


def ceiling_report(name: str) -> str:
    """`ceiling_table` with its chart below, for a page."""
    from cookbook.harness.publishing import figure

    chart = ceiling_chart(name)
    return ceiling_table(name) + (f"\n\n{figure(chart.svg)}" if chart else "")


def tables(figures: dict[str, dict[str, dict[str, float]]]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Header and rows by title. Sections whose entries are sizes become one table, a column for each section."""
    by_size = {section: some for section, some in figures.items() if all(map(_BY_SIZE.fullmatch, some))}
    made = {}
    if by_size:
        sizes = list(dict.fromkeys(size for some in by_size.values() for size in some))
        rows = [[s, *(f"{some[s]['gbps']:.0f}" if s in some else "" for some in by_size.values())] for s in sizes]
        made["global memory, GB/s"] = (["buffer", *by_size], rows)
    for section, some in figures.items():
        if section in by_size:
            continue
        keys = [key for key in COLUMNS if any(key in f for f in some.values())]
        rows = [[name, *(_written(f, key) for key in keys)] for name, f in some.items()]
        made[section] = ([section, *(COLUMNS[key][0] for key in keys)], rows)
    return made


def _written(figures: dict[str, float], key: str) -> str:
    if key not in figures:
        return ""
    text = COLUMNS[key][1].format(figures[key])
    if f"{key}_min" in figures:
        text += " ({0} to {0})".replace("{0}", COLUMNS[key][1]).format(figures[f"{key}_min"], figures[f"{key}_max"])
    return text


def _bar(group: str, name: str, figures: dict[str, float]) -> draw.Bar:
    key = next(key for key in _RATES if key in figures)
    return draw.Bar(group, name, figures[key], figures.get(f"{key}_min"), figures.get(f"{key}_max"))


def in_words(figures: dict[str, dict[str, dict[str, float]]]) -> str:
    """The highest rate of each section, in a line."""
    said = []
    for section, some in figures.items():
        key = next(key for key in _RATES if any(key in f for f in some.values()))
        name, best = max(some.items(), key=lambda item: item[1].get(key, 0))
        said.append(f"{section}: at most {COLUMNS[key][1].format(best[key])} {COLUMNS[key][0]} ({name})")
    return "; ".join(said)


# --- machine code -------------------------------------------------------------------------------------------------


def loops(sass: str) -> list[Counter[str]]:
    """The innermost loops of a disassembly: how often each opcode stands between a label and a branch back to it."""
    lines = sass.splitlines()
    spans, labels = [], {}
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = number  # a later kernel numbers its labels anew
        elif (branch := _BRANCH.search(line)) and branch[1] in labels:
            spans.append((labels[branch[1]], number))
    inner = [s for s in spans if not any(s[0] <= t[0] and t[1] <= s[1] and s != t for t in spans)]
    return [Counter(_OPCODE.findall("\n".join(lines[first:last]) + "\n" + lines[last])) for first, last in inner]
