"""The charts of the site, from the current records: timings, experiments, ceilings.

A peer has one colour on all pages, and bars of one group are sorted: the fastest stands first.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cookbook import draw
from cookbook.measure import records
from cookbook.measure.ceilings import LEVEL, RATES
from cookbook.measure.contest import OURS
from cookbook.measure.records import Record
from cookbook.publish.ceiling_tables import BY_SIZE
from cookbook.publish.colours import CEILING_COLOUR, VARIANT, colour_of, coloured
from cookbook.publish.pages import is_of_few_rows, peer_names, peers_shown, rate_of, shape_of
from cookbook.publish.study_tables import timings_of
from cookbook.recipe import catalog

_PALER = "; brown: its other variants"

# Each chart is of one GPU: of `gpu`, or of the first that has current records.


def results_charts(name: str, root: Path | None = None, gpu: str = "") -> list[draw.Picture]:
    """The current timed records of a recipe as bars: the rate of each, and of products of few rows the time."""
    timed = [r for r in _of_one_gpu(name, "timed", root, gpu) if r["shape"]]
    timed = [r for r in timed if r["dtype"] == timed[0]["dtype"]]
    timed.sort(key=lambda r: (math.prod(r["shape"]), r["shape"], r.get("majors", "")))
    few = [r for r in timed if is_of_few_rows(r["shape"])]
    return [_bars_of(some) for some in ([r for r in timed if r not in few], few) if some]


def _of_one_gpu(name: str, level: str, root: Path | None, gpu: str) -> list[Record]:
    return records.of_one_gpu(catalog.find(name).name, level, None, root, device=gpu or None)


def _bars_of(timed: list[Record]) -> draw.Picture:
    few = is_of_few_rows(timed[0]["shape"])
    bars = [bar for record in timed for bar in (_times(record) if few else _rates(record))]
    names = dict.fromkeys(bar.name for bar in bars)
    unit = "microseconds" if few else rate_of(timed[0])[1]
    meaning = f"{'shorter' if few else 'longer'} is faster; line: min to max; in brackets: its time / ours"
    meaning += _PALER if VARIANT in map(colour_of, names) else ""
    title = f"{timed[0]['recipe']}, {timed[0]['dtype']}, {timed[0]['device']}"
    return draw.bar_chart(bars, unit, title, meaning=meaning, colours=coloured(names))


def _everyone(record: Record) -> list[tuple[str, dict[str, Any]]]:
    """Ours and its peers, the fastest first; variants that a page has a table of are left out."""
    _, own = peer_names([record])
    found = {OURS: record["figures"], **{name: f for name, f in peers_shown(record).items() if name not in own}}
    return sorted(found.items(), key=lambda each: each[1]["median_ms"])


def _group(record: Record) -> str:
    return " ".join(word for word in (shape_of(record), record.get("majors")) if word)


def _against_ours(record: Record, name: str, figure: str) -> str:
    return figure if name == OURS else f"{figure} ({record['peers'][name]['ratio']:.2f})"


def _rates(record: Record) -> list[draw.Bar]:
    key, bars = rate_of(record)[0], []
    for name, f in _everyone(record):
        low, high = (round(f[key] * f["median_ms"] / f[end], 2) for end in ("max_ms", "min_ms"))
        note = _against_ours(record, name, f"{f[key]:.4g}")
        bars.append(draw.Bar(_group(record), name, f[key], low, high, note))
    return bars


def _times(record: Record) -> list[draw.Bar]:
    bars = []
    for name, f in _everyone(record):
        median, low, high = (1000 * f[key] for key in ("median_ms", "min_ms", "max_ms"))
        bars.append(draw.Bar(_group(record), name, median, low, high, _against_ours(record, name, f"{median:.2f}")))
    return bars


def experiment_chart(name: str, root: Path | None = None, gpu: str = "") -> draw.Picture | None:
    """The current timings of a study's experiment as bars, or None if there is none."""
    timed = _of_one_gpu(name, "timed", root, gpu)
    if not timed:
        return None
    record, shape = timed[0], " x ".join(map(str, timed[0]["shape"]))
    found = sorted(timings_of([record]).items(), key=lambda each: each[1]["median_ms"])
    bars = [
        draw.Bar(
            shape, variant, f["tflops"], *(round(f["tflops"] * f["median_ms"] / f[e], 2) for e in ("max_ms", "min_ms"))
        )
        for variant, f in found
    ]
    own = record["figures"]["name"]
    title = f"{', '.join(record['of'])}, {record['dtype']}, {record['device']}"
    return draw.bar_chart(bars, title=title, highlight=own, colours=coloured((bar.name for bar in bars), own))


def ceiling_chart(name: str, root: Path | None = None, gpu: str = "") -> draw.Picture | None:
    """Current rates as bars: instructions and data, or reads and copies by size; None if nothing is recorded of the
    code as it is now."""
    found = _of_one_gpu(name, LEVEL, root, gpu)
    if not found:
        return None
    figures = found[0]["figures"]
    by_size = {section: some for section, some in figures.items() if all(map(BY_SIZE.fullmatch, some))}
    sizes = dict.fromkeys(size for some in by_size.values() for size in some)
    bars = [_rated(size, section, some[size]) for size in sizes for section, some in by_size.items() if size in some]
    for section in () if bars else ("instructions", "data"):
        bars += sorted((_rated(section, entry, f) for entry, f in figures[section].items()), key=lambda b: -b.value)
    unit, title = ("GB/s" if by_size else "TFLOP/s"), f"{name}, {found[0]['device']}"
    colours = None if by_size else dict.fromkeys((bar.name for bar in bars), CEILING_COLOUR)
    return draw.bar_chart(bars, unit=unit, title=title, highlight="read", ratios=False, colours=colours)


def _rated(group: str, name: str, figures: dict[str, float]) -> draw.Bar:
    key = next(key for key in RATES if key in figures)
    return draw.Bar(group, name, figures[key], figures.get(f"{key}_min"), figures.get(f"{key}_max"))
