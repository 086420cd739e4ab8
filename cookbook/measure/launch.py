"""The process that ncu and compute-sanitizer look at: it launches a recipe's kernels and makes sure they were right.

python -m cookbook.measure.launch NAME DTYPE MAJORS M,N,K [M,N,K ...]   matmul, or each variant, once per shape
python -m cookbook.measure.launch NAME                                  of a study, each kernel that it measures
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cookbook.check import chains, ran, transpose
from cookbook.check.ran import Shape
from cookbook.measure import studies
from cookbook.recipe import catalog, formats
from cookbook.recipe.majors import DEFAULT


def launch(name: str, dtype: str = "", majors: str = DEFAULT, shapes: Iterable[Shape] = ()) -> None:
    """Call the recipe's matmul, or each of its variants, once per shape, and make sure that it was right."""
    import torch

    recipe, module = catalog.find(name), catalog.load(name)
    if recipe.kind == "transpose":
        return transpose.launch(module, dtype, shapes)
    if recipe.kind == "study":
        return studies.launch(recipe)
    if recipe.chained:
        return chains.launch(module, dtype, shapes)
    calls, form = ran.matmuls(module), formats.of_module(module)
    for shape in shapes:
        a, b = ran.multiplied(shape, dtype, majors, form)
        exact = ran.reference(a, b)
        allowed = ran.tolerance(dtype) + ran.may_be_lost(a, b, exact, form)
        for variant, matmul in calls.items():
            out = torch.full_like(exact, ran.poison(dtype), dtype=getattr(torch, dtype))
            error = ran.relative_error(matmul(a, b, out=out), exact)
            if not error <= allowed:
                raise SystemExit(f"{name} {variant} {dtype} {majors} {shape}: relative error {error:.2e}")


if __name__ == "__main__":
    launch(*sys.argv[1:4], shapes=[tuple(map(int, text.split(","))) for text in sys.argv[4:]])
