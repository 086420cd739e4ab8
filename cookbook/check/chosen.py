"""Choose what to check of a recipe: shapes, dtypes, targets and majors that were asked for, or those that it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from cookbook.check.ran import Shape
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe

__all__ = ["Chosen", "chosen", "refusal"]


class Chosen(NamedTuple):
    """The shapes, dtypes, targets and majors to check of a recipe."""

    shapes: tuple[Shape, ...]  # none: each level's own
    dtypes: tuple[str, ...]
    targets: tuple[str, ...]
    majors: tuple[str, ...]


def chosen(
    recipe: Recipe,
    shapes: Iterable[Shape],
    dtypes: Iterable[str],
    targets: Iterable[str],
    majors: Iterable[str] = (),
) -> Chosen:
    """The arguments of `check`, validated, with the recipe's own dtypes, targets and majors where none were given."""
    shapes, dtypes, targets, majors = tuple(shapes), tuple(dtypes), tuple(targets), tuple(majors)
    for what, given in (("dtype", dtypes), ("target", targets), ("major", majors), ("shape", shapes)):
        for value in given:
            if reason := refusal(recipe, what, value):
                raise ValueError(reason)
    taken = recipe.product.majors_for(recipe, shapes, majors)
    return Chosen(shapes, dtypes or recipe.dtypes, targets or recipe.targets, taken)


def refusal(recipe: Recipe, what: str, value: Any) -> str:
    """Why a "dtype", "target", "major" or "shape" is not one of the recipe's; empty if it is."""
    if what == "shape":
        fits, needed = recipe.product.fits(recipe, value)
    else:
        taken = recipe.majors if "majors" in catalog.front_matter_of(recipe.kind).keys else ()
        known = {"dtype": recipe.dtypes, "target": recipe.targets}.get(what, taken)
        fits, needed = value in known, f"one of {', '.join(known)}" if known else "none"
    return "" if fits else f"{what}: got {value!r}; needed {needed} for {recipe.name}"
