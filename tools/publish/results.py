"""Every record of every device as two tables that the site's script can filter: times, and all the rest."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from cookbook.measure import ceilings, records
from cookbook.measure.peers import QUACK, TORCH
from cookbook.measure.records import Record
from cookbook.publish.markdown import table
from cookbook.publish.pages import peers_shown, shape_of
from cookbook.publish.words import WORDS
from cookbook.recipe import catalog
from tools.publish.home import filtered

STALE = "stale"
_MOST_WORDS = 160  # letters of a record's figures in the second table


def times(root: Path | None = None) -> str:
    """A row for each timed record: GPU, dtype, shape, ours in microseconds, and the time of each peer over ours."""
    places = _places()
    found = [r for r in records.read(root) if r["level"] == "timed" and r["shape"]]
    rows = [_time(r, places) for r in _ordered(found, places, root)]
    header = ["GPU", "arch", "recipe", "dtype", "majors", "M x N x K", "ours, µs", "over torch", "over QuACK"]
    header += ["of the ceiling", "measured"]
    return filtered(table(header, rows, right=6), "GPU", "arch", "dtype", "M x N x K", "recipe")


def others(root: Path | None = None) -> str:
    """A row for each record of another level, in words."""
    places = _places()
    found = [r for r in records.read(root) if r["level"] != "timed" or not r["shape"]]
    rows = [[*_about(r, places), r["level"], _in_words(r), _measured(r)] for r in _ordered(found, places, root)]
    header = ["GPU", "arch", "recipe", "dtype", "majors", "level", "figures", "measured"]
    return filtered(table(header, rows, right=99), "GPU", "arch", "dtype", "level", "recipe")


def _places() -> dict[str, int]:
    """Return where each recipe stands in reading order."""
    return {recipe.name: number for number, recipe in enumerate(catalog.recipes())}


def _ordered(found: list[Record], places: dict[str, int], root: Path | None) -> list[Record]:
    """The first GPU's records, then the next one's, each in reading order."""
    in_order = partial(_order, places=places)
    return [record for here in records.by_gpu(found, root).values() for record in sorted(here, key=in_order)]


def _order(record: Record, places: dict[str, int]) -> tuple:
    place = places.get(record["recipe"], len(places))
    shape = record["shape"] or ()
    of = (record["dtype"] or "", math.prod(shape), *shape)
    return place, record["recipe"], record["level"], str(of[0]), of[1:], record.get("majors") or ""


def _about(record: Record, places: dict[str, int]) -> list[str]:
    recipe = (
        f"[`{record['recipe']}`](recipes/{record['recipe']}.md)"
        if record["recipe"] in places
        else f"`{record['recipe']}`"
    )
    dtype = (record["dtype"] or "").replace("bfloat16", "bf16").replace("float", "fp")
    device, arch = record["device"].removeprefix("NVIDIA "), (record.get("target") or "").rstrip("af")
    return [device, arch, recipe, dtype, record.get("majors") or ""]


def _time(record: Record, places: dict[str, int]) -> list[str]:
    peers = peers_shown(record)
    torch = peers.get(TORCH) or record["figures"]
    row = [*_about(record, places), shape_of(record), f"{1000 * record['figures']['median_ms']:.2f}"]
    row.append(f"{torch['ratio']:.3f}" if "ratio" in torch else "")
    row.append(f"{peers[QUACK]['ratio']:.3f}" if QUACK in peers else "")
    row.append(f"{peers[ceilings.PEER]['ratio']:.1%}" if ceilings.PEER in peers else "")
    return [*row, _measured(record)]


def _measured(record: Record) -> str:
    """The day, and whether the code has changed since."""
    status = "" if record["status"] == "passed" else f", {record['status']}"
    return record["date"].split()[0] + (f", {STALE}" if records.is_stale(record) else "") + status


def _in_words(record: Record) -> str:
    words = WORDS[record["level"]](records.figures_of(record))
    return words if len(words) <= _MOST_WORDS else words[:_MOST_WORDS].rsplit(" ", 1)[0] + " ..."
