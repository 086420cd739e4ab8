"""Common parts of GEMMs with narrow operands: `operands` in the front matter names a format."""

from __future__ import annotations

from typing import Any

from cookbook.check.product import problems
from cookbook.products.base import Shape
from cookbook.products.gemm import Gemm
from cookbook.recipe import formats
from cookbook.recipe.catalog import Recipe

__all__ = ["Narrow", "form_of"]


# torch.matmul takes no such operands
FRONT_MATTER = {"keys": "majors operands tensor_cores compared_with bench_shapes tuned baselines"}


def form_of(recipe: Recipe) -> formats.Format:
    """Return what a recipe's operands are made of."""
    return formats.FORMATS[recipe.operands]


class Narrow(Gemm):
    """A GEMM whose A and B, or B alone, are narrower than 16 bits."""

    of_two_matrices = False

    def align(self, recipe: Recipe, shape: Shape, majors: str) -> Shape:
        return formats.align(shape, form_of(recipe))

    def fits(self, recipe: Recipe, shape: Shape) -> tuple[bool, str]:
        form = form_of(recipe)
        whole = len(shape) == 3 and min(shape) >= 1
        return whole and not formats.misfit(shape, form), f"M,N,K of 1 or more, {formats.needed(form)}"

    def element(self, recipe: Recipe) -> str:
        return form_of(recipe).element

    def multiplied_as(self, name: str, dtypes: dict[str, str], form: Any) -> str:
        narrow = name in "AB" and dtypes[name] not in problems.ELEMENTS.values()  # the pointer is of bytes
        return problems.ELEMENTS[form.element] if narrow else dtypes[name]

    def read_bytes(self, recipe: Recipe, shape: Shape) -> float:
        m, n, k = shape
        return k * (m + n) * form_of(recipe).bits / 8 if self.of_one_product else 0
