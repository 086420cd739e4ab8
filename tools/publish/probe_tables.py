"""Tables of the probes' records, as markdown for the site: suites, counts by instruction, forms of cp.async."""

from __future__ import annotations

from pathlib import Path

from cookbook.measure import records
from cookbook.measure.records import Record
from cookbook.publish.markdown import NOT_MEASURED, table
from tools.records.suites import SUITES

__all__ = ["markdown"]

ASKED = {
    "probes/shared_memory": "wavefronts, the standing table",
    "probes/fresh": "wavefronts, a random table",
    "probes/past_l1": "cp.async past L1, issued in several ways",
    "probes/tma": "TMA, every byte of shared memory",
}


def markdown(root: Path | None = None) -> str:
    """The tables of all that was probed, the longer ones of the first GPU; `root` is the folder of the records."""
    found = {suite: records.select(suite, records.PROBED, root=root) for suite in SUITES}
    if not any(found.values()):
        return NOT_MEASURED
    gpu = next(iter(records.by_gpu((r for held in found.values() for r in held), root)))
    here = {suite: [r for r in held if r["device"] == gpu] for suite, held in found.items()}
    parts = [_suites(found), _by_instruction(here), *map(_forms, here["probes/past_l1"])]
    return "\n\n".join(part for part in parts if part)


def _suites(found: dict[str, list[Record]]) -> str:
    rows = [_row(suite, record) for suite, held in found.items() for record in held]
    rows += [[ASKED[suite], "", "", "not measured yet", "", ""] for suite, held in found.items() if not held]
    return table(["what is asked", "probes", "differ", "", "on", "date"], rows)


def _row(suite: str, record: Record) -> list[str]:
    figures = record["figures"]
    seed = (record["config"] or {}).get("seed")
    asked = ASKED[suite] + (f", seed {seed}" if seed is not None else "")
    asked += f", {record['dtype']}" if suite == "probes/tma" else ""
    unseen = f"{figures['not_counted']} more not counted" if figures.get("not_counted") else ""
    ranges = f"{figures['ranges']} only within a range" if figures.get("ranges") else ""
    stale = "stale: the code has changed since" if records.is_stale(record) else ""
    told = "; ".join(filter(None, (ranges, unseen, stale)))
    return [
        asked,
        str(figures["probes"]),
        str(figures["mismatches"]),
        told,
        record["device"],
        record["date"].split()[0],
    ]


def _by_instruction(found: dict[str, list[Record]]) -> str:
    """Pairs of each instruction in both tables, of how many the model gives a range only, and how many differ."""
    suites = [suite for suite in ("probes/shared_memory", "probes/fresh") if found[suite]]
    held = [found[suite][0]["figures"]["by_instruction"] for suite in suites]
    names = list(dict.fromkeys(name for figures in held for name in figures))
    header = [
        "instruction",
        *(f"{ASKED[suite].split(', ')[1]}: {what}" for suite in suites for what in ("pairs", "as a range", "differ")),
    ]
    rows = [[f"`{name}`", *(cell for figures in held for cell in _cells(figures.get(name)))] for name in names]
    return table(header, rows) if suites else ""


def _cells(figures: dict | None) -> list[str]:
    if figures is None:
        return ["", "", ""]
    seen = figures["wavefronts"] > 0  # no access takes none: this instruction was not counted
    differ = str(figures["mismatches"]) if seen else "not counted"
    return [str(figures["pairs"]), str(figures.get("ranges", "")), differ]


def _forms(record: Record) -> str:
    figures = record["figures"]
    header = ["cp.async", "CTAs x warps", *figures["pairs"]]
    rows = [
        [f"{row['form']} (`{row['instruction']}`)", f"{row['ctas']} x {row['warps']}", *_counts(row)]
        for row in figures["forms"]
    ]
    return table(header, rows, right=2)


def _counts(row: dict) -> list[str]:
    """Wavefronts of the first copy and of the second, and what the model says."""
    each = zip(row["wavefronts"][::2], row["wavefronts"][1::2], row["predicted"][::2], strict=True)
    return [f"{first:.4g}, again {again:.4g}; model {said}" for first, again, said in each]
