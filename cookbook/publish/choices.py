"""Compare a recipe's heuristics with the times in results/, variant by variant."""

from __future__ import annotations

from typing import Any

from cookbook.measure import calibration, records
from cookbook.publish.markdown import NOT_MEASURED, table
from cookbook.recipe import catalog, figures

FIRST = 3  # variants that a row shows, the cheapest first


def choices_table(name: str, sms: int) -> str:
    """A row for each current record of all variants on one GPU: predicted and measured, relative to the best of each.

    Args:
        name: a recipe with `VARIANTS`, `cost` and `choose`.
        sms: of the GPU of the records.
    """
    module, rows = catalog.load(name), []
    current = _current(name, module)
    for record in current:
        (timed,) = calibration.of_records(module, [record])
        found, best = timed.variants, min(timed.variants.values())
        costs = {each: module.cost(config, *timed.shape, sms) for each, config in module.VARIANTS.items()}
        least, chosen = min(costs.values()), module.choose(*timed.shape, sms)
        cheap = sorted(costs, key=costs.__getitem__)[:FIRST]
        each = [f"`{one}` {costs[one] / least:.3f} / {found[one] / best:.3f}" for one in cheap]
        about = [" x ".join(map(str, timed.shape)), record.get("majors") or "", record["dtype"]]
        fastest, lost = min(found, key=found.__getitem__), found[chosen] / best - 1
        spread = abs(record["figures"]["median_ms"] / found[chosen] - 1)
        rows.append([", ".join(filter(None, about)), *each, f"`{fastest}`", f"{lost:.1%}", f"{spread:.1%}"])
    header = ["chosen: predicted / measured", "second", "third", "fastest", "lost", "spread"]
    return table([f"M x N x K, {_gpu(current)}", *header], rows) if rows else NOT_MEASURED


def fit_table(name: str, sms: int) -> str:
    """The fitted figures of a recipe's CALIBRATION, those that fit the records best, and the misfit of both."""
    recipe, module = catalog.find(name), catalog.load(name)
    current = [r for r in _current(name, module) if r["dtype"] == calibration.DTYPE]
    timed = calibration.of_records(module, current)
    if not timed:
        return NOT_MEASURED
    rows = []
    ours = {each: getattr(module.CALIBRATION, each) for each in recipe.fitted}
    for who, values in {"in use": ours, "fitted": calibration.fit(module, recipe.fitted, timed, sms)}.items():
        with figures.using(module, values):
            misfit = calibration.misfit(module, timed, sms)
        rows.append([who, *(f"{value:.4g}" for value in values.values()), f"{misfit:.2%}"])
    return table([_gpu(current), *recipe.fitted, f"misfit over {len(timed)} sizes"], rows)


def _current(name: str, module: Any) -> list[records.Record]:
    """Figures of one GPU: costs are those of a chip."""
    timed = [r for r in records.select(name, "timed") if not records.is_stale(r)]
    whole = [r for r in timed if module.VARIANTS.keys() <= r["peers"].keys()]
    return next(iter(records.by_gpu(whole).values()), [])


def _gpu(current: list[records.Record]) -> str:
    return current[0]["device"] if current else ""
