"""The process that ncu and compute-sanitizer look at: it launches a recipe's kernels and makes sure they were right.

python -m cookbook.measure.launch NAME DTYPE MAJORS M,N,K [M,N,K ...]   matmul, or each variant, once per shape
python -m cookbook.measure.launch NAME                                  of a study, each kernel that it measures
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cookbook.check.ran import Shape
from cookbook.recipe import catalog
from cookbook.recipe.majors import DEFAULT


def launch(name: str, dtype: str = "", majors: str = DEFAULT, shapes: Iterable[Shape] = ()) -> None:
    """Call the recipe's matmul, or each of its variants, once per shape, and make sure that it was right."""
    recipe = catalog.find(name)
    recipe.product.launch(recipe, dtype, majors, shapes)


if __name__ == "__main__":
    launch(*sys.argv[1:4], shapes=[tuple(map(int, text.split(","))) for text in sys.argv[4:]])
