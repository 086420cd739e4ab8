"""Tables of the measured ceilings, as markdown. Everything is read from results/."""

from __future__ import annotations

import re
from pathlib import Path

from cookbook.measure import records
from cookbook.measure.ceilings import COLUMNS, LEVEL
from cookbook.measure.records import Record
from cookbook.publish.markdown import NOT_MEASURED_ON_A_GPU, Laid, by_gpu, circumstances, table
from cookbook.recipe import catalog

BY_SIZE = re.compile(r"\d+ MiB")


def ceiling_table(name: str, root: Path | None = None, laid: Laid = by_gpu) -> str:
    """Return what a study measured, as markdown: a table for each section, by device; or that nothing is measured."""
    found = records.select(catalog.find(name).name, LEVEL, None, root)
    current = [record for record in found if not records.is_stale(record)]
    if found and not current:
        last = max(found, key=lambda record: record["date"])["date"].split()[0]
        return f"*Not measured on the code as it is now; last on {last}, on an earlier version.*"
    return laid({record["device"]: _of_one_gpu(record) for record in current}) or NOT_MEASURED_ON_A_GPU


def _of_one_gpu(record: Record) -> str:
    parts = []
    for title, (header, rows) in tables(record["figures"]).items():
        parts += [f"**{title[0].upper()}{title[1:]}**", table(header, rows)]
    return "\n\n".join([*parts, circumstances([record])])


def tables(figures: dict[str, dict[str, dict[str, float]]]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Header and rows by title. Sections whose entries are sizes become one table, a column for each section."""
    by_size = {section: some for section, some in figures.items() if all(map(BY_SIZE.fullmatch, some))}
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
