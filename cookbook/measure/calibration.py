"""Run `cookbook calibrate`: measure the figures of this GPU that a recipe's heuristics are made of.

A recipe's front matter says how: `measured_by` names a study that measures some of them by kernels of its own, and
`fitted` lists those that are fitted to the times of its variants. The rest keep their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cookbook.measure import bench, records
from cookbook.recipe import catalog, figures

DTYPE = "bfloat16"
STEPS, NUDGE = 40, 1e-4


class Timed(NamedTuple):
    """One product: its sizes, and the milliseconds of each variant."""

    shape: tuple[int, int, int]
    variants: Mapping[str, float]


def calibratable() -> list[catalog.Recipe]:
    """The recipes that have figures of one chip, in reading order."""
    return [recipe for recipe in catalog.recipes() if recipe.fitted or recipe.measured_by]


def refusal(recipe: catalog.Recipe) -> str:
    """Why a recipe cannot be calibrated, as a part of a message; "" if it can."""
    names = " or ".join(each.name for each in calibratable())
    return "" if recipe in calibratable() else f"which has no figures of a chip; needed {names}"


def steps(recipe: catalog.Recipe) -> int:
    """Return how often `measure` says what comes next."""
    return bool(recipe.measured_by) + bool(recipe.fitted) * len(bench.default_shapes(recipe))


def measure(
    name: str,
    time: Callable[..., Iterable[records.Record]] = bench.bench,
    on_progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """A recipe's figures on the GPU that is here, as `figures.write` keeps them.

    Next to "figures": "changes", of each what was in use, what was measured, and what it means; "device", "date" and
    "driver"; and if some were fitted, "misfit" with them, "misfit_before", and how many "sizes" were timed.

    Args:
        name: one of `calibratable`.
        time: called as `bench.bench`: gives records of level "timed".
        on_progress: told what is being measured, `steps` times.

    Raises:
        ValueError: the recipe has no such figures.
        RuntimeError: no CUDA device.
    """
    import torch

    recipe = catalog.find(name)
    if reason := refusal(recipe):
        raise ValueError(f"name: got {recipe.name}, {reason}")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be measured here")
    module, found, about = catalog.load(recipe.name), {}, {}
    if recipe.measured_by:
        on_progress(f"figures of {recipe.measured_by}")
        found |= catalog.load(recipe.measured_by).measure_figures()
    if recipe.fitted:
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        with figures.using(module, found):
            made = time(recipe.name, dtypes=[DTYPE], majors=recipe.majors[:1], quack=False, on_progress=on_progress)
            timed = of_records(module, made)
            about = {"misfit_before": misfit(module, timed, sms), "sizes": len(timed)}
            found |= fit(module, recipe.fitted, timed, sms)
            with figures.using(module, found):
                about["misfit"] = misfit(module, timed, sms)
    means = figures.meanings(module)
    changes = {
        key: {"in_use": getattr(module.CALIBRATION, key), "measured": value, "meaning": means[key]}
        for key, value in found.items()
    }
    about |= {"device": torch.cuda.get_device_name(), "date": records.now(), "driver": records.driver_version()}
    return {"figures": found, "changes": changes} | about


def of_records(module: Any, found: Iterable[records.Record]) -> list[Timed]:
    """Return those records of level "timed" in which every variant of a recipe was timed."""
    whole = [r for r in found if module.VARIANTS.keys() <= r["peers"].keys()]
    return [
        Timed(tuple(r["shape"]), {variant: r["peers"][variant]["median_ms"] for variant in module.VARIANTS})
        for r in whole
    ]


def differences(module: Any, timed: Sequence[Timed], sms: int) -> np.ndarray:
    """log(cost / time) of each variant and size, by the figures that the module uses now.

    A cost is compared with the others of its size alone, so each size's mean is taken out. A variant counts for less
    the further it is from the fastest, for the heuristics must know the good ones apart.
    """
    left = []
    for shape, times in timed:
        costs = [module.cost(module.VARIANTS[name], *shape, sms) for name in times]
        ms = np.array(list(times.values()))
        logs, weights = np.log(np.array(costs) / ms), (ms.min() / ms) ** 4
        left.append(np.sqrt(weights) * (logs - np.average(logs, weights=weights)))
    return np.concatenate(left)


def misfit(module: Any, timed: Sequence[Timed], sms: int) -> float:
    """Root mean square of `differences`, as a part of 1."""
    return float(np.sqrt(np.mean(differences(module, timed, sms) ** 2)))


def fit(module: Any, names: Sequence[str], timed: Sequence[Timed], sms: int) -> dict[str, float]:
    """The figures called `names` with which `misfit` is least: Gauss-Newton on their logarithms, half a step each.

    Raises:
        ValueError: there is no size to fit them to.
    """
    if not timed:
        raise ValueError("timed: got no size; needed records in which every variant was timed")

    def at(logs: np.ndarray) -> np.ndarray:
        with figures.using(module, dict(zip(names, map(float, np.exp(logs)), strict=True))):
            return differences(module, timed, sms)

    logs = np.log([getattr(module.CALIBRATION, name) for name in names])
    for _ in range(STEPS):
        here = at(logs)
        slopes = np.stack([(at(logs + NUDGE * unit) - here) / NUDGE for unit in np.eye(len(logs))], axis=1)
        logs = logs - 0.5 * np.linalg.lstsq(slopes, here, rcond=None)[0]
    return {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(logs), strict=True)}
