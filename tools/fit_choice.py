"""Fit the figures of `cookbook.ops.predict` to times of many Configs at many products: `python -m tools.fit_choice`.

results/<device>/random_configs.json has the times: {"device", "date", "kernels": [names], "products": [{"shape",
"torch", "us": {number of the kernel: microseconds}}]}; a name may end with the stages, if they are not the family's:
"..., stages 8". operator.json has those of the hundred products of `bench
--regret`. Seeds of `--unseen` that were looked at move from unseen.json into the first file: what judges is not fitted.
The figures are those with which the squared logarithms of
prediction over time are least in the mean; a time counts for less the further it is from the fastest of its product,
and each product counts as much. The command prints the figures of an H200 and changes nothing. `--kind persistent` fits
those of one kind of kernels, and leaves the others as they are.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cookbook.measure import records
from cookbook.ops import choice, predict
from cookbook.recipe import catalog
from cookbook.recipe.contract import Family
from cookbook.recipe.majors import swaps
from tools.ops import measuring

FILE, DEVICE = "random_configs.json", "NVIDIA H100 80GB HBM3"
SMS, MEMORY, DTYPE = 132, 0.7, "bfloat16"  # of an H100
POWER = 4.0  # of the fastest time over a time: its weight
STEPS, NUDGE = 12, 1e-3
SCALED = ("memory", "write")  # figures that go by the bandwidth of memory


class Timed(NamedTuple):
    """One kernel at one product."""

    product: int
    config: Any
    work: predict.Work
    swapped: bool
    us: float
    fastest: float


def timed(root: Path | None = None) -> list[Timed]:
    """The recorded times of kernels that there still are, and that write C themselves."""
    found = []
    for number, (shape, times) in enumerate(products(root)):
        m, n, k = shape
        for name, us in times.items():
            recipe, _, variant = name.partition(" ")
            variant, _, stages = variant.partition(", stages ")
            config = configs(recipe).get(variant)
            config = replace(config, stages=int(stages)) if config and stages else config
            if config is None or (catalog.load(recipe).GEMM.padded and n % 8):
                continue
            work = predict.Work(m, n, k, SMS, catalog.find(recipe).serves["sm_90"])
            swapped = swaps(catalog.load(recipe), config)
            found.append(Timed(number, config, work, swapped, us, min(times.values())))
    return found


def products(root: Path | None = None) -> list[tuple[tuple[int, int, int], dict[str, float]]]:
    """Shape, and microseconds by kernel, of what is fitted: random products, and those of `bench --regret`."""
    found = []
    for file in records.files(FILE, root):
        content = json.loads(file.read_text(encoding="utf-8"))
        for product in content["products"]:
            found.append((product["shape"], {content["kernels"][int(x)]: us for x, us in product["us"].items()}))
    for record in measuring.read(root).get(DEVICE, {"shapes": {}})["shapes"].values():
        copied = record["shape"][2] % 8  # then times are of copies too
        if (record["majors"], record["dtype"]) == ("tn", DTYPE) and not copied:
            found.append((record["shape"], {x: us for x, us in record["us"].items() if x not in measuring.PEERS}))
    return found


def configs(recipe: str) -> dict[str, Any]:
    """By name: a family, or the variants of a recipe whose times are predicted here."""
    module = catalog.load(recipe)
    if isinstance(module, Family):
        return {name: config for name, _, config in choice.family(recipe)}
    return {} if hasattr(module, "microseconds") else dict(getattr(module, "VARIANTS", {}))


def residuals(chip: predict.Chip, found: list[Timed]) -> np.ndarray:
    """Weighted logarithms of prediction over time."""
    counts = np.bincount([each.product for each in found])
    weights = [(each.fastest / each.us) ** (POWER / 2) / counts[each.product] ** 0.5 for each in found]
    logs = [np.log(predict.microseconds(each.config, each.work, each.swapped, chip) / each.us) for each in found]
    return np.array(weights) * np.array(logs)


def figures_of(chip: predict.Chip) -> dict[tuple[str, str], float]:
    """Return what is fitted: figures of both kinds of kernels that are not 0 or 1, and `meet`."""
    kinds = {(kind, name): x for kind in ("persistent", "single") for name, x in getattr(chip, kind)._asdict().items()}
    return {key: x for key, x in kinds.items() if x not in (0.0, 1.0)} | {("", "meet"): chip.meet}


def with_figures(chip: predict.Chip, figures: dict[tuple[str, str], float]) -> predict.Chip:
    """The chip with these."""
    for (kind, name), x in figures.items():
        changed = {kind: getattr(chip, kind)._replace(**{name: x})} if kind else {name: x}
        chip = replace(chip, **changed)
    return chip


def fit(found: list[Timed], steps: int = STEPS, kind: str = "") -> dict[tuple[str, str], float]:
    """Gauss-Newton on the logarithms of the figures, each step as long as it helps. kind: of these alone."""
    base = predict.chip_with(MEMORY)
    start = {key: x for key, x in figures_of(base).items() if kind in ("", key[0])}
    keys, logs = list(start), np.log(np.array(list(start.values())))

    def at(x: np.ndarray) -> np.ndarray:
        return residuals(with_figures(base, dict(zip(keys, np.exp(x), strict=True))), found)

    here, damping = at(logs), 1e-2
    for _ in range(steps):
        slopes = np.stack([(at(logs + NUDGE * unit) - here) / NUDGE for unit in np.eye(len(logs))], axis=1)
        square = slopes.T @ slopes
        step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -slopes.T @ here)
        there = at(logs + np.clip(step, -0.4, 0.4))
        if there @ there < here @ here:
            logs, here, damping = logs + np.clip(step, -0.4, 0.4), there, damping / 3
        else:
            damping *= 8
    return dict(zip(keys, np.exp(logs), strict=True))


def main() -> None:
    """Fit, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=("persistent", "single"), default="", help="fit figures of these alone")
    kind = parser.parse_args().kind
    found = timed()
    before = residuals(predict.chip_with(MEMORY), found)
    figures = fit(found, kind=kind)
    after = residuals(with_figures(predict.chip_with(MEMORY), figures), found)
    products = len({each.product for each in found})
    print(f"{len(found)} times at {products} products; squares {before @ before:.4f} before, {after @ after:.4f} after")
    for (of, name), x in figures.items():
        print(f"{of:11}{name:14}{x / (MEMORY if name in SCALED else 1):.4g}")


if __name__ == "__main__":
    main()
