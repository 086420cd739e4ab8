"""Code that the page before has shown: a page folds it, and it takes a reader no time."""

from __future__ import annotations

from collections.abc import Mapping

from cookbook.check import subjects
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe


def definitions_before(recipe: Recipe) -> dict[str, str]:
    """The code of each name of the recipe that a page builds on."""
    if not recipe.builds_on:
        return {}
    text = catalog.without_lab(catalog.find(recipe.builds_on).file.read_text(encoding="utf-8"))
    return {name: catalog.normal_form(code) for name, code in subjects.definitions(text).items()}


def unchanged(source: str, before: Mapping[str, str]) -> list[str]:
    """The names that a cell defines, if the recipe before defines every one of them by the same code; else none."""
    found = subjects.definitions(source)
    same = all(name in before and catalog.normal_form(text) == before[name] for name, text in found.items())
    return list(found) if same else []
