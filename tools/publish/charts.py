"""The bars of recipes' pages, from the current records: timings, experiments, ceilings."""

from __future__ import annotations

from pathlib import Path

from cookbook import draw
from cookbook.measure import records
from cookbook.measure.ceilings import LEVEL, RATES
from cookbook.measure.records import Record
from cookbook.publish.ceiling_tables import BY_SIZE
from cookbook.publish.pages import peer_names, rate_of, shape_of
from cookbook.publish.study_tables import of_experiment, timings_of
from cookbook.recipe import catalog


def results_chart(name: str, root: Path | None = None) -> draw.Picture | None:
    """The current timed records of a recipe as bars, or None if there is none."""
    recipe = catalog.find(name)
    timed = [r for r in records.select(recipe.name, "timed", None, root) if r["shape"] and not records.is_stale(r)]
    if not timed:
        return None
    timed = [r for r in timed if r["dtype"] == timed[0]["dtype"]]
    bars = [bar for record in timed for bar in _bars(record)]
    title = f"{recipe.name}, {timed[0]['dtype']}, {timed[0]['device']}"
    return draw.bar_chart(bars, unit=rate_of(timed[0])[1], title=title)


def _bars(record: Record) -> list[draw.Bar]:
    key = rate_of(record)[0]
    _, own = peer_names([record])
    everyone = {"ours": record["figures"], **{name: f for name, f in record["peers"].items() if name not in own}}
    return [
        draw.Bar(
            " ".join(word for word in (shape_of(record), record.get("majors")) if word),
            name,
            f[key],
            *(round(f[key] * f["median_ms"] / f[e], 2) for e in ("max_ms", "min_ms")),
        )
        for name, f in everyone.items()
    ]


def experiment_chart(name: str, root: Path | None = None) -> draw.Picture | None:
    """The current timings of a study's experiment as bars, or None if there is none."""
    timed = [r for r in of_experiment(name, root) if r["level"] == "timed" and not records.is_stale(r)]
    if not timed:
        return None
    record, shape = timed[0], " x ".join(map(str, timed[0]["shape"]))
    bars = [
        draw.Bar(
            shape, variant, f["tflops"], *(round(f["tflops"] * f["median_ms"] / f[e], 2) for e in ("max_ms", "min_ms"))
        )
        for variant, f in timings_of([record]).items()
    ]
    own = record["figures"]["name"]
    title = f"{', '.join(record['of'])}, {record['dtype']}, {record['device']}"
    return draw.bar_chart(bars, title=title, highlight=own)


def ceiling_chart(name: str, root: Path | None = None) -> draw.Picture | None:
    """The first device's current rates as bars: instructions and data, or reads and copies by size; None if nothing is
    recorded of the code as it is now."""
    found = [r for r in records.select(catalog.find(name).name, LEVEL, None, root) if not records.is_stale(r)]
    if not found:
        return None
    figures = found[0]["figures"]
    by_size = {section: some for section, some in figures.items() if all(map(BY_SIZE.fullmatch, some))}
    sizes = dict.fromkeys(size for some in by_size.values() for size in some)
    bars = [_rated(size, section, some[size]) for size in sizes for section, some in by_size.items() if size in some]
    bars = bars or [_rated(s, entry, f) for s in ("instructions", "data") for entry, f in figures[s].items()]
    unit, title = ("GB/s" if by_size else "TFLOP/s"), f"{name}, {found[0]['device']}"
    return draw.bar_chart(bars, unit=unit, title=title, highlight="read", ratios=False)


def _rated(group: str, name: str, figures: dict[str, float]) -> draw.Bar:
    key = next(key for key in RATES if key in figures)
    return draw.Bar(group, name, figures[key], figures.get(f"{key}_min"), figures.get(f"{key}_max"))
