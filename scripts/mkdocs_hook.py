"""mkdocs calls this: the recipe pages are written before the files are collected, and join the navigation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this source tree, installed or not

from cookbook.harness import notebooks, publishing
from cookbook.harness.probes import shown

# What a page asks for, and what makes it.
_MARKS = {
    "<!-- recipes -->": lambda: publishing.recipes_table(lambda recipe: f"recipes/{recipe.name}.md"),
    "<!-- probes -->": shown.markdown,
}


def on_config(config: Any) -> Any:
    """Writes docs/recipes/ and fills the entry "Recipes" of the navigation, one section a track."""
    try:
        found = publishing.write_pages(Path(config.docs_dir))
    except notebooks.OutOfStep as error:
        raise PluginError(str(error)) from None
    tracks: dict[str, list[dict[str, str]]] = {}
    for recipe in found:
        tracks.setdefault(recipe.track.capitalize(), []).append({recipe.title: f"recipes/{recipe.name}.md"})
    for entry in config.nav:
        if "Recipes" in entry:
            entry["Recipes"] = [{track: pages} for track, pages in tracks.items()]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts the tables of recipes and of probes where a page asks for them."""
    for mark, made in _MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    return markdown
