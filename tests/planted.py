"""Who catches a planted fault: a level is asked about a recipe with the fault in it, and the answer is on record.

A test module that plants faults keeps them in `SUITES`. Its tests run each one and compare what caught it with the
record, `faults.json`, which `python tools/faults.py --write` makes by running them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from mutations import Mutation, mutant
from walked import integers, rounded

from cookbook.check import compiled, fused, host, pipeline, scaled, tensor_memory
from cookbook.check import product as followed
from cookbook.check.evaluated import evaluated
from cookbook.check.model import product as model
from cookbook.check.model.fp8 import simulate_fp8
from cookbook.check.model.int8 import simulate_int8
from cookbook.check.model.scaled import simulate_scaled
from cookbook.recipe import catalog, formats, majors
from cookbook.recipe.catalog import Recipe

RECORD = Path(__file__).with_name("faults.json")
_LINE = re.compile(r"^line \d+(?: of \w+)?: ")
_PLACES = re.compile(r"\([^()]*\)|\[[^\]]*\]|\b[ABC]2?\b|\d[\d.]*")  # which matrix, where and how much: no rule's words
DTYPE = "bfloat16"  # of operands, or of C where the operands are narrow; of a recipe that has not it, its first
WORDS = "tcgen05.mma"  # what stands for a recipe where a fault is in the words of one instruction


class Suite(NamedTuple):
    """Faults, and the levels to ask about each: in this order, up to the first that catches it."""

    levels: tuple[str, ...]
    faults: Sequence[Mutation]


class Caught(NamedTuple):
    """The level that caught a fault, and by what: its findings, its rule, or what came of it. Empty: none did."""

    level: str = ""
    by: str = ""


def caught(mutation: Mutation, levels: Iterable[str], root: Path) -> Caught:
    """The first of `levels` that catches a fault; the mutant's source is written under `root`."""
    module, recipe = mutant(mutation, root), catalog.find(mutation.recipe)
    target = recipe.targets[0]
    config = configured(module, mutation.variant, target)
    for level in levels:
        try:
            by = _ASKED[level](module, recipe, target, config)
        except Exception as error:
            # An instruction or a layout that cannot be. CuTe refuses operands with errors of several kinds.
            if level == "pipeline" or not (recipe.operands or isinstance(error, ValueError)):
                raise
            by = f"refused: {type(error).__name__}"
        if by:
            return Caught(level, by)
    return Caught()


def configured(module: ModuleType, variant: str, target: str) -> Any:
    """The configuration in which a fault is planted: a variant's, that of a probe, or of operands' majors ("nt")."""
    if variant in fused.PROBES:
        module.EPILOGUES[variant] = module.REFERENCES[variant] = fused.PROBES[variant]
        return module.fused(variant)
    if variant in getattr(module, "VARIANTS", {}):
        return module.VARIANTS[variant]
    own = compiled.config_for(module, target)
    return majors.configured(own, variant) if variant else own


def dtype_of(recipe: Recipe) -> str:
    """The dtype in which a fault is planted."""
    return DTYPE if DTYPE in recipe.dtypes else recipe.dtypes[0]


def _layout(module: ModuleType, recipe: Recipe, target: str, config: Any) -> str:
    return _failed(recipe.product.layouts(module, dtype_of(recipe), config))


def _model(module: ModuleType, recipe: Recipe, target: str, config: Any) -> str:
    dtype = compiled.cutlass_dtype(dtype_of(recipe))
    if recipe.operands == "int8":
        a, b = (
            np.random.default_rng(seed).integers(-128, 128, (rows, 320), np.int8) for seed, rows in ((0, 200), (1, 300))
        )
        got, right = simulate_int8(module, a, b, dtype, config), a.astype(np.int32) @ b.astype(np.int32).T
    elif recipe.operands:
        a, b = operands(recipe.name, 200, 300, 320)
        simulated = simulate_scaled if formats.FORMATS[recipe.operands].by_mma else simulate_fp8
        got, right = simulated(module, a, b, dtype, config), exact(a, b)
    else:
        a, b = integers(200, 333, 64)
        got, right = model.simulate(module, a, b, dtype, config), a @ b  # at most 9 * 64: bfloat16 has to round some
        right = rounded(right)
    return "" if np.array_equal(got, right) else "another product"


def run_of(module: ModuleType, recipe: Recipe, target: str, config: Any) -> pipeline.Run:
    """The kernel of a configuration."""
    return pipeline.Run(module, target, compiled.cutlass_dtype(dtype_of(recipe)), config, recipe.product)


def _pipeline(module: ModuleType, recipe: Recipe, target: str, config: Any) -> str:
    found = pipeline.explored(run_of(module, recipe, target, config))
    assert found, "a kernel with barriers has pipelines to explore"
    return next((fault.partition(":")[0] for one in found for fault in one.faults), "")


def _product(module: ModuleType, recipe: Recipe, target: str, config: Any) -> str:
    found = followed.computed(run_of(module, recipe, target, config))
    return got(found[-1].faults[0]) if found[-1].faults else ""


def got(fault: str) -> str:
    """What a fault of the level product says was got: without the line, the element, and what was needed."""
    return fault.partition("got ")[2].partition("; needed")[0] or _LINE.sub("", fault)


def _compiled(module: ModuleType, recipe: Recipe, target: str, config: Any) -> str:
    built = compiled.compile_module(module, recipe.name, target, dtype_of(recipe), config)
    bad = compiled.type_findings(built, formats.FORMATS[recipe.operands].element if recipe.operands else "")
    found = evaluated(module, compiled.cutlass_dtype(dtype_of(recipe)), config)
    if found.sums_in_tensor_memory:
        bad += tensor_memory.compiled_findings(found, built, dtype_of(recipe))
    return _failed(bad)


def _host(module: ModuleType, recipe: Recipe, target: str, config: Any) -> str:
    return _failed(host.findings(module, recipe))


_ASKED = {
    "layout": _layout,
    "model": _model,
    "product": _product,
    "host": _host,
    "pipeline": _pipeline,
    "compiled": _compiled,
}


def _failed(findings: Iterable[Any]) -> str:
    return ", ".join(sorted(finding.name for finding in findings if not finding.ok))


def operands(name: str, m: int, n: int, k: int) -> tuple[scaled.Scaled, scaled.Scaled]:
    """A (m, k) and B (n, k) of a recipe of scaled operands, of numbers whose products are exact."""
    form = formats.FORMATS[catalog.find(name).operands]
    return scaled.integers(m, k, form.name, 1), scaled.integers(n, k, form.name, 2, form.b_rows)


def exact(a: scaled.Scaled, b: scaled.Scaled) -> np.ndarray:
    """The product of what two operands stand for, rounded once."""
    import torch

    product = torch.from_numpy(a.values()).double() @ torch.from_numpy(b.values()).double().T
    return product.to(torch.bfloat16).float().numpy()


@lru_cache(maxsize=1)
def record() -> dict[tuple[str, str, str], Caught]:
    """What caught each fault, by recipe, variant and the fault in words, when the record was made."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    return {(row["recipe"], row["variant"], row["what"]): Caught(row["level"], row["by"]) for row in rows}


@lru_cache(maxsize=1)
def first_ones() -> set[tuple[str, str, str]]:
    """Keys of `record`: the first fault of each recipe, of each track at each level, and that each rule catches."""
    first, seen = set(), set()
    for key, (level, by) in record().items():
        rules = (" ".join(_PLACES.sub("", each).split()) for each in by.split(", "))
        kinds = {key[0], (key[0].partition("/")[0], level), *((level, rule) for rule in rules)}
        if not kinds <= seen:
            first.add(key)
        seen |= kinds
    return first


def first_of_its_kind(mutation: Mutation) -> bool:
    """Whether `make test` plants a fault. One that is not on record has to be looked at, so it is planted."""
    key = (mutation.recipe, mutation.variant, mutation.what)
    return key not in record() or key in first_ones()


def check(found: Caught, recipe: str, what: str, variant: str = "") -> None:
    """A fault was caught, and by what the record says.

    Raises:
        AssertionError: nothing caught it; or the record says something else, or nothing.
    """
    assert found.level and found.by, f"nothing caught it: {recipe}: {what}"
    said = record().get((recipe, variant, what))
    assert found == said, f"on record is {said}: run `python tools/faults.py --write`, and look at the difference"


def check_caught(mutation: Mutation, suite: Suite, root: Path) -> None:
    """Run a fault of a suite and `check` what caught it."""
    check(caught(mutation, suite.levels, root), mutation.recipe, mutation.what, mutation.variant)
