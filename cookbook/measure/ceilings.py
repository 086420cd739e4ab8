"""Ceilings: how fast this GPU could be at most, measured, recorded, and timed with every GEMM.

The studies that measure them say `measures: ceiling` in their front matter and define `measure()`, which returns
`{section: {name: figures}}`; a record of level "ceiling" holds that, one for each study and device. One that names
instructions under `ceiling_of` also defines `Ceiling`, a kernel that does a GEMM's multiplications by one of them and
nothing else: `with_ceiling` puts it into a GEMM's contest. The ceiling of a GEMM without tensor cores is a kernel that
only reads its weight (`contract.Reads`).

Nothing here imports torch or CuTe until something is measured.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cookbook.measure import records
from cookbook.measure.contest import Contest
from cookbook.measure.records import Record
from cookbook.recipe import catalog
from cookbook.recipe.contract import Reads

LEVEL, PEER = records.CEILING, "ceiling"
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
RATES = ("tflops", "gbps", "bytes_per_clock")
_LABEL = re.compile(r"^\s*(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA\b[^`]*`\((\.L_x_\d+)\)")
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def studies() -> tuple[str, ...]:
    """The names of the studies that measure ceilings, in reading order."""
    return tuple(recipe.name for recipe in catalog.recipes() if recipe.measures == LEVEL)


# --- on a GPU -----------------------------------------------------------------------------------------------------


def measure(name: str, on_progress: Callable[[str], None] = lambda text: None, **how: Any) -> Record:
    """Measure one of `studies()` on this GPU.

    Args:
        name: one of `studies()`.
        on_progress: told what is being measured.
        how: passed on to the study's `measure`, e.g. `rounds=7`.

    Raises:
        ValueError: another recipe, or too few rounds.
        RuntimeError: no CUDA device, or rates that cannot be: a kernel that left its work out.
    """
    import torch

    if name not in studies():
        raise ValueError(f"name: got {name!r}; needed one of {', '.join(studies())}")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be measured here")
    on_progress(f"{LEVEL} {name}")
    found = catalog.load(name).measure(**how)
    if bad := implausible(found):
        raise RuntimeError(f"{name}: {'; '.join(bad)}")
    device = torch.cuda.get_device_name()
    return records.make(LEVEL, name, "", None, passed=True, figures=found, device=device, distribution=DISTRIBUTION)


def implausible(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Return what no GPU can have measured, in words: rates that are not positive, a spread that leaves its median out,
    an SM
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


def unit_of(recipe: catalog.Recipe) -> tuple[str, catalog.Recipe] | None:
    """Return which instruction a GEMM multiplies with, by the data path that its front matter names, and the study that
    measures that instruction's ceiling; None: no study does."""
    measured = ((unit, study) for study in catalog.recipes() for unit in study.ceiling_of)
    return next(((unit, study) for unit, study in measured if unit in recipe.path), None)


def with_ceiling(recipe: catalog.Recipe, contest: Contest, dtype: str) -> Contest:
    """A GEMM's contest with the ceiling of its instruction as one more variant.

    It does as many operations as fit whole rounds of its loop, and `Contest.scale` corrects its times for the rest. A
    GEMM that multiplies by another instruction, or one that this GPU lacks, has no ceiling.
    """
    import torch

    if not recipe.tensor_cores:
        return _with_reading(contest)
    if (measured := unit_of(recipe)) is None:
        return contest
    unit, study = measured
    module: Any = catalog.load(study.name)
    config = getattr(module, study.ceiling_of[unit])(dtype=dtype)
    if not module.runs_on(config, "sm_{}{}".format(*torch.cuda.get_device_capability())):
        return contest
    kernel = module.Ceiling(config)
    rounds = max(1, round(contest.work / kernel.turn_flops))
    variants = {**contest.variants, PEER: lambda *operands: kernel(rounds)}
    more = contest.work / (rounds * kernel.turn_flops)
    return replace(contest, variants=variants, scale=contest.scale | {PEER: more})


def _with_reading(contest: Contest) -> Contest:
    """With a kernel that reads b, K-major and contiguous, and does nothing else."""
    modules = (catalog.load(name) for name in studies())
    module: Any = next(each for each in modules if isinstance(each, Reads))
    b = contest.sets[0][1]
    variants = {**contest.variants, PEER: lambda a, b, out: module.read(b.T)}
    return replace(contest, variants=variants, scale={PEER: b.nbytes / module.read(b.T)})


def in_words(figures: dict[str, dict[str, dict[str, float]]]) -> str:
    """The highest rate of each section, in a line."""
    said = []
    for section, some in figures.items():
        key = next(key for key in RATES if any(key in f for f in some.values()))
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
