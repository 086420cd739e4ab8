"""A page that teaches a fact and no kernel: `kind: study`. Level "layout" is its `facts`; `measures` says what else.

"wavefronts"   its KERNELS are counted and held against what `cookbook.banks` says: `cookbook.measure.studies`
"experiment"   another recipe's kernel is timed and counted: `cookbook.measure.experiments`
"copies"       TMA copies are run and timed: `cookbook.measure.tma_copies`
"ceiling"      what the hardware gives at most: `cookbook.measure.ceilings`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from cookbook.check import reports
from cookbook.check.findings import Finding
from cookbook.check.reports import Level
from cookbook.measure import bench, ceilings, experiments, records, studies, tma_copies
from cookbook.measure.kernels import SHAPES, Kernel
from cookbook.products.base import Product, Shape
from cookbook.recipe import catalog, contract
from cookbook.recipe.catalog import Recipe

Taken = tuple[records.Record, list[str]]  # a record, and what is wrong, in words


FRONT_MATTER = {"name": "a study", "keys": "measures ceiling_of", "needs_kernel": False}


class Study(Product):
    """A foundation, or a page of the primer."""

    times_itself = True
    levels = ("layout", "compiled", "ran", "timed", "counted")

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        measures = {
            "wavefronts": (contract.Wavefronts,),
            "experiment": (contract.ExperimentStudy,),
            "ceiling": (contract.Ceilings,),
            "copies": (contract.Copies,),
        }
        asked = (contract.Study, *measures.get(recipe.measures, ()))
        return (*asked, contract.InstructionCeilings) if recipe.ceiling_of else asked

    def variants(self, module: Any, target: str, dtype: str | None, majors: str) -> dict[str, Any]:
        return {"": None}  # all kernels in one

    def layouts(self, module: Any, dtype: str | None, config: Any) -> list[Finding]:
        """Each fact computed anew."""
        return [Finding(*fact) for fact in module.facts()]

    def layout_figures(self, found: list[Finding]) -> dict[str, Any]:
        return {"facts": super().layout_figures(found)}

    # --- what it measures ---

    def measures(self, recipe: Recipe, level: str) -> bool:
        return bool(measurements(recipe, level))

    def runs(self, recipe: Recipe, level: str) -> Recipe:
        if recipe.measures != "experiment":
            return recipe
        return catalog.find(recipe.module.EXPERIMENT.recipe)

    def measured(
        self, recipe: Recipe, level: str, dtype: str | None, shapes: tuple[Shape, ...], majors: str
    ) -> list[Level]:
        taken = [take() for take in measurements(recipe, level)]
        return [reports.of_gpu(made, "; ".join(problems), made["dtype"], made) for made, problems in taken]

    def is_benched(self, recipe: Recipe) -> bool:
        return recipe.measures in ("ceiling", "copies")

    def bench_shapes(self, recipe: Recipe) -> tuple[Shape | None, ...]:
        return tma_copies.BENCHED_SHAPES if recipe.measures == "copies" else (None,)

    def bench(self, recipe: Recipe, options: bench.Options) -> Iterator[records.Record]:
        """Raises ValueError of one that has nothing to time."""
        if not self.is_benched(recipe):
            known = (other for other in catalog.recipes() if other.measures in ("ceiling", "copies"))
            needed = ", ".join(other.name for other in known)
            raise ValueError(f"name: got {recipe.name!r}; needed one of {needed}")
        if recipe.measures == "ceiling":
            yield ceilings.measure(recipe.name, options.on_progress, rounds=options.rounds)
            return
        for shape in filter(None, options.shapes or self.bench_shapes(recipe)):
            options.on_progress(f"timed {recipe.name} {tma_copies.BENCHED_DTYPE} {'x'.join(map(str, shape))}")
            yield tma_copies.timed_record(recipe, shape, rounds=options.rounds)

    def launch(self, recipe: Recipe, dtype: str, majors: str, shapes: Iterable[Shape]) -> None:
        module = recipe.module
        if recipe.measures == "experiment":
            return experiments.launch(module.EXPERIMENT)
        return studies.launch(module)

    # --- records ---

    def kernels(self, recipe: Recipe, module: Any, record: records.Record, target: str) -> list[Kernel]:
        if recipe.measures == "copies":
            found = tma_copies.launches(module, record["level"] in SHAPES)
            return [Kernel(recipe.name, target, record["dtype"], changes=changes) for changes in found]
        return [Kernel(recipe.name, target)] if recipe.targets else []

    def compile(self, module: Any, kernel: Kernel) -> Any:
        if kernel.dtype:  # of copies
            return tma_copies.compile_launch(module, kernel.dtype, dict(kernel.changes))
        return module.compile_for(kernel.target)


def measurements(recipe: Recipe, level: str) -> list[Callable[[], Taken]]:
    """Return what there is to measure for `cookbook check` at a level, each with what takes it; nothing of most
    studies."""
    wanted = recipe.measures, level
    if wanted == ("copies", "ran"):
        return [partial(tma_copies.ran, recipe, dtype) for dtype in tma_copies.DTYPES]
    known: dict[tuple[str, str], Callable[[], Taken]] = {
        # at the first shape: `cookbook bench` times the others, too
        ("copies", "timed"): lambda: (tma_copies.timed_record(recipe, tma_copies.BENCHED_SHAPES[0]), []),
        ("wavefronts", "counted"): partial(studies.counted, recipe),
        ("experiment", "timed"): partial(experiments.timed, recipe),
        ("experiment", "counted"): partial(experiments.counted, recipe),
    }
    return [known[wanted]] if wanted in known else []


PRODUCT = Study()
