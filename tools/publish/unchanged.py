"""Code that the page before has shown: a page folds it, and it takes a reader no time."""

from __future__ import annotations

from collections.abc import Mapping

from cookbook.check import subjects
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe


def base_of(recipe: Recipe) -> Recipe | None:
    """The page whose code a page changes: of those that it builds on the nearest that has a GEMM, as it has one.

    A study on the way to a GEMM is no step of its own: the GEMM imports it, and changes the GEMM before.
    """
    is_gemm, base = recipe.product.is_gemm, _before(recipe)
    while base and is_gemm and not base.product.is_gemm:
        base = _before(base)
    return base if base and base.product.is_gemm == is_gemm else None


def _before(recipe: Recipe) -> Recipe | None:
    return catalog.find(recipe.builds_on) if recipe.builds_on else None


def definitions_before(recipe: Recipe) -> dict[str, str]:
    """The code of each name of the recipe that a page changes."""
    if not (base := base_of(recipe)):
        return {}
    text = catalog.without_lab(base.file.read_text(encoding="utf-8"))
    return {name: catalog.normal_form(code) for name, code in subjects.definitions(text).items()}


def unchanged(source: str, before: Mapping[str, str]) -> list[str]:
    """The names that a cell defines, if the recipe before defines every one of them by the same code; else none."""
    found = subjects.definitions(source)
    same = all(name in before and catalog.normal_form(text) == before[name] for name, text in found.items())
    return list(found) if same else []
