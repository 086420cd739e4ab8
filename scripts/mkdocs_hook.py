"""mkdocs calls this: the recipe pages are written before the files are collected, and join the navigation."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this source tree, installed or not

from cookbook.publish.markdown import fence
from cookbook.recipe import contract
from tools import faults, versions
from tools.publish import (
    address,
    benchmarks,
    chinese,
    first_product_table,
    fusion_table,
    glossary,
    home,
    host_tables,
    ladders,
    moving,
    museum,
    operator_tables,
    playground,
    probe_tables,
    results,
    shape_tables,
    side_by_side,
    story,
)
from tools.publish import pages as publishing

# What a page asks for, and what makes it.
_MARKS = {
    "<!-- home figure -->": moving.figure,
    "<!-- home numbers -->": home.numbers,
    "<!-- home gallery -->": home.gallery,
    "<!-- home atoms -->": home.which_atom,
    "<!-- results times -->": results.times,
    "<!-- results others -->": results.others,
    "<!-- probes -->": probe_tables.markdown,
    "<!-- faults -->": faults.markdown,
    "<!-- mutants -->": faults.mutation_score,
    "<!-- versions -->": versions.markdown,
    "<!-- bench sizes -->": benchmarks.sizes,
    "<!-- bench growth -->": benchmarks.growth,
    "<!-- bench apart -->": benchmarks.apart,
    "<!-- bench threefold -->": benchmarks.threefold_table,
    "<!-- bench deep_gemm -->": benchmarks.deep_gemm_table,
    "<!-- bench ladder -->": benchmarks.ladder,
    "<!-- bench fusions -->": fusion_table.markdown,
    "<!-- bench rasters -->": benchmarks.rasters,
    "<!-- bench roofline -->": benchmarks.rooflines,
    "<!-- operator source -->": operator_tables.source,
    "<!-- operator recipes -->": operator_tables.serving,
    "<!-- operator calls -->": operator_tables.calls,
    "<!-- operator regret -->": operator_tables.regret,
    "<!-- operator unseen -->": operator_tables.unseen,
    "<!-- first product -->": first_product_table.shown,
    "<!-- operator training -->": operator_tables.training,
    **host_tables.MARKS,
    **shape_tables.MARKS,
}
# Pages whose terms are not linked to the glossary.
_OWN_WORDS = ("glossary.md", "api/", "architecture.md", "contract.md", "open/", "playground/", "zh/")
_SHAPE = re.compile(r"<td>(\d+(?: x \d+)+)</td>")
_CONTRACT = re.compile(r"<!-- contract: (?P<names>[\w ]+) -->")


def on_config(config: Any) -> Any:
    """Writes docs/recipes/ and fills the entry "Recipes" of the navigation, one section a track."""
    found = publishing.write_pages(Path(config.docs_dir))
    _write_playground(Path(config.docs_dir) / "playground" / "recipes.json")
    # A section begins with the track's ladder, where it has one: Material shows that page for the section's title.
    first: dict[str, list[Any]] = {track: [f"recipes/{track}/index.md"] for track in ladders.tracks()}
    tracks: dict[str, list[Any]] = {}
    later: dict[str, list[Any]] = {}  # side pages of a track without a ladder: behind the kernels
    for recipe in found:  # in reading order: by track, then as its front matter says
        pages = tracks.setdefault(recipe.track.capitalize(), first.get(recipe.track, []))
        if recipe.aside and recipe.track not in first:
            pages = later.setdefault(recipe.aside, [])
        elif recipe.aside:
            pages = _within(pages, recipe.aside)
        pages.append({recipe.title: f"recipes/{recipe.name}.md"})
    tracks |= later
    config.site_url = address.site() or config.site_url  # the sitemap and the canonical links are made of it
    if source := address.repository():  # no `repo_url`: for that the theme asks the host how many stars there are
        config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": source, "name": "Repository"}]
    for entry in config.nav:
        if "Recipes" in entry:
            entry["Recipes"] = [{track: pages} for track, pages in tracks.items()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the Chinese pages, which are made of the English ones."""
    for path, text in chinese.files(Path(config.docs_dir)):
        files.append(File.generated(config, path, content=text))
    return files


def _within(pages: list[Any], group: str) -> list[Any]:
    """The pages of a group in a section of the navigation; a new group stands at its end."""
    for each in pages:
        if isinstance(each, dict) and group in each:
            return each[group]
    pages.append({group: []})
    return pages[-1][group]


def _write_playground(path: Path) -> None:
    if playground.is_current(path):
        return
    command = [sys.executable, "-m", "tools.publish.playground", str(path)]
    done = subprocess.run(command, cwd=playground.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise PluginError(f"{path}: not written\n{done.stderr}")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Puts tables, plots and the code of recipes where a page asks for them, and links terms to the glossary."""
    for mark, made in _MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    markdown = home.timed(markdown)
    markdown = _CONTRACT.sub(lambda mark: _protocols(mark["names"].split()), markdown)
    try:
        markdown = museum.shown(story.told(side_by_side.with_code(markdown)))
    except ValueError as error:
        raise PluginError(f"{page.file.src_path}: {error}") from None
    source = page.file.src_uri
    page.edit_url = None if source.startswith("recipes/") else address.source_of(f"docs/{source}", edit=True) or None
    if source.startswith("open/"):
        page.meta["search"] = {"exclude": True}  # for contributors
    if source.startswith("zh/"):
        page.meta["search"] = {"exclude": True}  # the index splits words at blanks
    if source.startswith(_OWN_WORDS):
        return chinese.localized(markdown, source)
    markdown = glossary.linked(
        markdown, glossary.text(Path(config.docs_dir)), "../" * source.count("/") + "glossary.md"
    )
    return chinese.localized(markdown, source)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Marks the cells of tables that hold a shape, "64 x 8192 x 8192" stays on one line; and what is in Chinese."""
    html = _SHAPE.sub(r'<td class="shape">\1</td>', html)
    return f'<div lang="zh-Hans">\n{html}\n</div>' if page.file.src_uri.startswith("zh/") else html


def _protocols(names: list[str]) -> str:
    """The text of these classes of `cookbook.recipe.contract`."""
    return fence("\n\n".join(inspect.getsource(getattr(contract, name)) for name in names), "python")
