"""The process that ncu and compute-sanitizer look at: it launches a recipe's kernels and makes sure they were right.

python -m cookbook.harness.launch NAME DTYPE MAJORS M,N,K [M,N,K ...]   matmul, or each variant, once per shape
python -m cookbook.harness.launch NAME                                  of a study, each kernel that it measures
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cookbook.harness import catalog, running, studying, transposing
from cookbook.harness.majors import DEFAULT
from cookbook.harness.running import Shape


def launch(name: str, dtype: str = "", majors: str = DEFAULT, shapes: Iterable[Shape] = ()) -> None:
    """Call the recipe's matmul, or each of its variants, once per shape, and make sure that it was right."""
    recipe, module = catalog.find(name), catalog.load(name)
    if recipe.kind == "transpose":
        return transposing.launch(module, dtype, shapes)
    if recipe.kind == "study":
        return studying.launch(recipe)
    calls = running.matmuls(module)
    for shape in shapes:
        a, b = running.inputs(shape, dtype, majors=majors)
        for variant, matmul in calls.items():
            error = running.relative_error(matmul(a, b), running.reference(a, b))
            if not error <= running.tolerance(dtype):
                raise SystemExit(f"{name} {variant} {dtype} {majors} {shape}: relative error {error:.2e}")


if __name__ == "__main__":
    launch(*sys.argv[1:4], shapes=[tuple(map(int, text.split(","))) for text in sys.argv[4:]])
