"""Tables of a recipe's records, as markdown: timings, limits and checks.

`root` is the folder of the records; results/ if left out. `laid` lays out the parts of several GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from cookbook.check import reports
from cookbook.measure import ceilings, records
from cookbook.measure.peers import QUACK
from cookbook.measure.records import Record
from cookbook.products.transpose import COPY, TORCH_TRANSPOSE
from cookbook.publish import limits
from cookbook.publish.markdown import COLUMNS, NOT_MEASURED, Laid, by_gpu, circumstances, fitting, table, times_in_us
from cookbook.recipe import catalog

__all__ = ["beside_tn", "checked_table", "limits_table", "results_table", "sources_list", "table"]

PEERS = (QUACK, ceilings.PEER, COPY, TORCH_TRANSPOSE)  # with torch's `standard` of the recipe
MANY = 8  # more variants than this, other peers with them, have a table to themselves, and no bars
RATE = "; GB/s: the bytes of A and B, each once, over our time"
BY_NAME = "Each variant by name, µs (its time over ours); empty: not timed:"
SPEED_UP = "speed-up of ours"  # the time of a peer over ours: above 1 ours is faster
FEW_ROWS = 64  # of C, or columns: what takes time is reading the other operand, so that a rate of work says little


def results_table(name: str, root: Path | None = None, laid: Laid = by_gpu) -> str:
    """Return what was timed of a recipe, as markdown by GPU: current records, then stale ones under a line that says
    so."""
    timed = [r for r in records.select(catalog.find(name).name, "timed", None, root) if r["shape"]]
    shown = {gpu: _timed_of_one_gpu(found) for gpu, found in records.by_gpu(timed, root).items()}
    return laid(shown) or NOT_MEASURED


def _timed_of_one_gpu(timed: list[Record]) -> str:
    old = [r for r in timed if records.is_stale(r)]
    current = [r for r in timed if r not in old]
    parts = ["*The code as it is now has not been timed.*"]
    if current:
        parts = [_timed_tables(current), _host_line(current), circumstances(current)]
    if old:
        parts += ["**Stale: measured on an earlier version of the code.**", _timed_tables(old), circumstances(old)]
    return "\n\n".join(part for part in parts if part)


def beside_tn(name: str, root: Path | None = None, laid: Laid = by_gpu) -> str:
    """Return how each layout of a GEMM's operands stands to `tn` and to torch.matmul, as markdown: of the current
    records."""
    timed = [r for r in records.select(catalog.find(name).name, "timed", None, root) if not records.is_stale(r)]
    shown = {gpu: _beside_tn(gpu, found) for gpu, found in records.by_gpu(timed, root).items()}
    return laid(shown) or NOT_MEASURED


def _beside_tn(gpu: str, timed: list[Record]) -> str:
    timed = sorted(timed, key=lambda r: (r["dtype"], math.prod(r["shape"]), r["shape"]))
    tn = {(r["dtype"], *r["shape"]): r["figures"] for r in timed if r["majors"] == "tn"}
    rows = []
    for r in timed:
        own = tn.get((r["dtype"], *r["shape"]))
        ratio = f"{own['median_ms'] / r['figures']['median_ms']:.3f}" if own else "not timed"
        rows.append([gpu, shape_of(r), r["dtype"], r["majors"], ratio, f"{r['figures']['ratio']:.3f}"])
    return table(["device", "M x N x K", "dtype", "majors", "times its tn", "times torch.matmul"], rows, right=4)


def limits_table(name: str, root: Path | None = None, laid: Laid = by_gpu) -> str:
    """Return what limits a GEMM, as markdown by GPU: what each of its current records says; stale ones are only
    named."""
    found = records.select(catalog.find(name).name, records.LIMITS, None, root)
    current = [record for record in found if not records.is_stale(record)]
    if found and not current:
        return "*What limits the code as it is now has not been measured.*"
    shown = {gpu: "\n\n".join(map(_limits_of, some)) for gpu, some in records.by_gpu(current, root).items()}
    return laid(shown) or NOT_MEASURED


def _limits_of(record: Record) -> str:
    about = " ".join(filter(None, (shape_of(record), record.get("majors"), record["dtype"])))
    title = f"**{about}, on an {record['device']}**"
    return "\n\n".join(part for part in (title, *limits.tables(record), circumstances([record])) if part)


def checked_table(name: str, root: Path | None = None) -> str:
    """Return what the records say about a recipe at each level that needs a GPU, as markdown: a row for each GPU."""
    name = catalog.find(name).name
    rows = [row for level in records.LEVELS for row in _checked_rows(name, level, root)]
    return table(["level", "recorded", "on", "date"], rows, right=4)


def sources_list(name: str) -> str:
    """Return what a recipe's page names as its sources, as a markdown list of links; "" if it names none."""
    return "\n".join(f"* [{source.title}]({source.url})" for source in catalog.find(name).sources)


def _checked_rows(name: str, level: str, root: Path | None) -> list[list[str]]:
    found = records.select(name, level, None, root)
    shown = records.by_gpu((r for r in found if not records.is_stale(r)), root)
    missing = [level, "stale: the code has changed since" if found else "not measured", "", ""]
    return [_checked_row(level, gpu, current) for gpu, current in shown.items()] or [missing]


def _counted_records(found: list[Record]) -> str:
    return f"{len(found)} record{'s' * (len(found) > 1)}"


def _checked_row(level: str, gpu: str, current: list[Record]) -> list[str]:
    failed = sum(r["status"] != "passed" for r in current)
    status = f"{failed} of {len(current)} failed" if failed else f"passed ({_counted_records(current)})"
    added = dict.fromkeys(variant for r in current for variant in reports.added_since(catalog.find(r["recipe"]), r))
    status += "".join(f"; not of {variant}" for variant in added)
    return [level, status, gpu, ", ".join(sorted({r["date"].split()[0] for r in current}))]


# --- timings --------------------------------------------------------------------------------------------------------


def shape_of(record: Record) -> str:
    return " x ".join(map(str, record["shape"])) if record["shape"] else "many shapes"


def is_of_few_rows(shape: Sequence[int]) -> bool:
    """Return whether this is a product whose C has so few rows, or columns, that time says more than TFLOP/s."""
    return len(shape) == 3 and min(shape[:2]) <= FEW_ROWS


def peers_shown(record: Record) -> dict[str, dict]:
    """Its peers, but for a ceiling of multiplying where few rows wait for memory: it is a small part of their time."""
    waits = is_of_few_rows(record["shape"]) and catalog.find(record["recipe"]).tensor_cores
    return {name: f for name, f in record["peers"].items() if not (waits and name == ceilings.PEER)}


def read_bytes(record: Record) -> float:
    """Bytes of A and B, each read once, without scale factors; 0 where a product has more matrices."""
    recipe = catalog.find(record["recipe"])
    return recipe.product.read_bytes(recipe, record["shape"])


def peer_names(timed: list[Record]) -> tuple[list[str], list[str]]:
    """Return who was timed against ours: (who stands in its table, all others if they are many or not always timed)."""
    names = list(dict.fromkeys(name for record in timed for name in record["peers"]))
    known = {*PEERS, *(_standard(record) for record in timed)}
    others = [name for name in names if name not in known and "/" not in name]
    apart = len(others) > MANY or any(name not in record["peers"] for name in others for record in timed)
    return ([name for name in names if name not in others], others) if apart else (names, [])


def _standard(record: Record) -> str:
    recipe = catalog.find(record["recipe"])
    return recipe.product.standard(recipe)


def _ratio(peer: str) -> str:
    """Return what its time over ours is called: nothing is faster than the ceiling."""
    return "share that ours has" if peer == ceilings.PEER else SPEED_UP


def _timed_of(record: Record, majors: bool) -> list[str]:
    return [shape_of(record), *([record.get("majors", "")] if majors else []), record["dtype"]]


def _timed_row(record: Record, peers: list[str], majors: bool) -> list[str]:
    ours, key, row = record["figures"], rate_of(record)[0], _timed_of(record, majors)
    row += [times_in_us(ours), f"{ours[key]:.0f}"]
    return row + [_peer_cell(record, name, f"{{{key}:.0f}}") for name in peers]


def _peer_cell(record: Record, name: str, figure: str) -> str:
    """A peer's figure, and its time over ours in brackets."""
    peer = record["peers"].get(name)
    return f"{figure.format_map(peer)} ({peer['ratio']:.3f})" if peer else "not timed"


def _few_rows_row(record: Record, peers: list[str], majors: bool) -> list[str]:
    in_us = {who: {"us": 1000 * f["median_ms"], "ratio": f["ratio"]} for who, f in record["peers"].items()}
    ours = (1000 * record["figures"][key] for key in ("median_ms", "min_ms", "max_ms"))
    row = [*_timed_of(record, majors), "{:.2f} ({:.2f} to {:.2f})".format(*ours)]
    if moved := read_bytes(record):
        row.append(f"{moved / record['figures']['median_ms'] / 1e6:.0f}")
    return row + [_peer_cell({"peers": in_us}, name, "{us:.2f}") for name in peers]


def rate_of(record: Record) -> tuple[str, str]:
    """Under which key a timed record says its work a second, and the unit."""
    return ("tflops", "TFLOP/s") if "tflops" in record["figures"] else ("gbps", "GB/s")


def _timed_tables(timed: list[Record]) -> str:
    peers, own = peer_names(timed)
    unit, sizes = rate_of(timed[0])[1], "M x N x K"[: 4 * len(timed[0]["shape"]) - 3]
    majors = any(record.get("majors") for record in timed)  # else they go without saying
    about = [sizes, *(["majors"] if majors else []), "dtype"]
    timed = sorted(timed, key=lambda r: (r["dtype"], math.prod(r["shape"]), r["shape"], r.get("majors", "")))
    few = [record for record in timed if is_of_few_rows(record["shape"])]
    shown = []
    if rest := [record for record in timed if record not in few]:
        ours = ["ours, µs (min to max)", f"ours, {unit}"]
        shown += _compared(about, ours, peers, unit, [_timed_row(r, peers, majors) for r in rest])
    if few:
        peers = [name for name in peers if any(name in peers_shown(record) for record in few)]
        ours = ["ours, µs (min to max)", *(["A and B, GB/s"] if read_bytes(few[0]) else [])]
        shown.append(f"Products of {FEW_ROWS} rows or fewer{RATE if len(ours) > 1 else ''}:")
        shown += _compared(about, ours, peers, "µs", [_few_rows_row(r, peers, majors) for r in few])
    if several := [record for record in timed if record["peers"].keys() & set(own)]:
        shown += [BY_NAME, fitting([*about, "ours", *own], [_by_name(r, own, majors) for r in several], len(about))]
    return "\n\n".join(shown)


def _compared(about: list[str], ours: list[str], peers: list[str], unit: str, rows: list[list[str]]) -> list[str]:
    """A table of ours and its peers. Where it has too many columns, a line above it says what its cells are."""
    if len(header := [*about, *ours, *(f"{name}, {unit} ({_ratio(name)})" for name in peers)]) <= COLUMNS:
        return [table(header, rows, right=len(about))]
    ceiling = f" (of the {ceilings.PEER}: the {_ratio(ceilings.PEER)})" if ceilings.PEER in peers else ""
    return [
        f"Peers and variants in {unit}; in brackets the {SPEED_UP}{ceiling}:",
        fitting([*about, *ours, *peers], rows, len(about)),
    ]


def _by_name(record: Record, own: list[str], majors: bool) -> list[str]:
    """A problem, our time, and the time of each of `own` with that time over ours."""
    found = [record["peers"].get(name) for name in own]
    times = (f"{1000 * f['median_ms']:.2f} ({f['ratio']:.3f})" if f else "" for f in found)
    return [*_timed_of(record, majors), f"{1000 * record['figures']['median_ms']:.2f}", *times]


def _host_line(timed: list[Record]) -> str:
    """Host time per call against its peers, from the newest record that knows; "" if none does."""
    known = [r for r in timed if records.has_host_times(r["figures"]) and not records.host_is_stale(r)]
    if not known:
        return ""
    newest = max(known, key=lambda r: r["date"])
    costs = {"ours": newest["figures"], **newest["peers"]}
    said = [f"{who} {f['host_us']:.1f} ({f['host_new_us']:.1f})" for who, f in costs.items() if "host_us" in f]
    return f"Host time per call in microseconds, with a preallocated `out` (without): {', '.join(said)}."
