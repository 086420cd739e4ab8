"""What is published, all of it from recipes/, notebooks/ and results/: tables, recipe pages, README's blocks.

    python -m tools.publish.pages notebooks [NAME ...] [--check]   notebooks/ from recipes/
    python -m tools.publish.pages readme [--check]      the generated blocks of README.md
    python -m tools.publish.pages pages                 docs/recipes/ (the site's hook calls this too)

No figure is typed by hand anywhere: a figure on a page is in a table that one of these functions wrote.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cookbook import draw
from cookbook.publish import ceiling_tables, study_tables
from cookbook.publish.markdown import fence, figure, table
from cookbook.publish.pages import beside_tn, checked_table, limits_table, results_table
from cookbook.recipe import catalog, copy
from cookbook.recipe.catalog import Recipe
from tools.publish import charts, glance, notebooks

_GENERATED = "<!-- {name}:{edge} -->"


# --- tables ---------------------------------------------------------------------------------------------------


def recipes_table(link: Callable[[Recipe], str]) -> str:
    """The recipes in reading order; `link` gives the address behind a recipe's name."""
    rows = [
        [f"[`{r.name}`]({link(r)})", r.claim, ", ".join(r.dtypes), " ".join(r.targets), _runs_on(r)]
        for r in catalog.recipes()
    ]
    return table(["recipe", "claim", "dtypes", "compiles for", "runs on"], rows, right=5)


def _runs_on(recipe: Recipe) -> str:
    return recipe.runs_on.replace("+", " and later")


# --- README ---------------------------------------------------------------------------------------------------


def readme_blocks() -> dict[str, str]:
    """The generated blocks of README.md by name."""
    return {"recipes": glance.tracks(), "results": glance.at_a_glance()}


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    """`text` with what stands between `<!-- name:begin -->` and `<!-- name:end -->` replaced.

    Raises:
        ValueError: a block's marks are not there, once each and in order.
    """
    for name, content in blocks.items():
        begin, end = (_GENERATED.format(name=name, edge=edge) for edge in ("begin", "end"))
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise ValueError(f"text: got no single pair of {begin} and {end}; needed one for the block {name!r}")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


def update_readme(check: bool, path: Path | None = None) -> bool:
    """Writes README's generated blocks, or with `check` only compares; whether it was in step before."""
    path = path or catalog.recipes_root().parent / "README.md"
    old = path.read_text(encoding="utf-8")
    new = with_blocks(old, readme_blocks())
    if not check and new != old:
        path.write_text(new, encoding="utf-8")
    return new == old


# --- recipe pages -----------------------------------------------------------------------------------------------


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return fence(output.text, "text")
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return figure("".join(data["image/svg+xml"]))
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    if "text/html" in data:
        return '<div class="output">' + re.sub(r"\s*\n\s*", " ", "".join(data["text/html"])) + "</div>"
    return fence("".join(data.get("text/plain", "")), "text")


def _live(name: str) -> dict[str, Callable[[], str]]:
    """What cells that call these functions show: results/ as it is now, not as it was when the notebook ran."""
    made: dict[str, Callable[[str], str]] = {
        "results_table(": lambda name: _charted(results_table(name), charts.results_chart(name)),
        "limits_table(": limits_table,
        "beside_tn(": beside_tn,
    }
    if catalog.find(name).kind == "study":
        made |= {
            "counted_table(": study_tables.counted_table,
            "experiment_table(": lambda name: _charted(
                study_tables.experiment_table(name), charts.experiment_chart(name)
            ),
            "ceiling_table(": lambda name: _charted(ceiling_tables.ceiling_table(name), charts.ceiling_chart(name)),
        }
    return {call: partial(shown, name) for call, shown in made.items()}


def _cell(cell: Any, live: dict[str, Callable[[], str]]) -> list[str]:
    if cell.cell_type == "markdown":
        source = re.sub(r"\]\(([\w/.]+)\.ipynb\)", r"](\1.md)", cell.source)  # another recipe: its page
        return [source.replace("](../../docs/", "](../../")]  # the site's pages lie in docs/recipes/<track>/
    if not cell.source.strip():
        return []
    code = fence(cell.source, "python")
    tags = cell.metadata.get("tags", [])
    if "folded" in tags or ("lab" in tags and "open" not in tags):
        code = unsearched(folded("The code of this step", code))
    now = [shown() for call, shown in live.items() if call in cell.source]
    return [code, *(now or map(_output, cell.outputs))]


def _with_host_side(cells: list[Any], live: dict[str, Callable[[], str]]) -> list[str]:
    """What each cell shows, and under the one that first uses it the code that all recipes share, folded."""
    code = [each for each in cells if each.cell_type == "code" and "lab" not in each.metadata.get("tags", [])]
    shared, place = copy.host_side(each.source for each in code)
    parts = []
    for cell in cells:
        parts += _cell(cell, live)
        if shared and cell is code[place]:
            title = "The host side, which all recipes share: cookbook/recipe/entry.py"
            parts.append(unsearched(folded(title, fence(shared, "python"))))
    return parts


def _charted(shown: str, chart: draw.Picture | None) -> str:
    """A table with its bars below, where there are any."""
    return shown + (f"\n\n{figure(chart.svg)}" if chart else "")


def folded(title: str, content: str) -> str:
    """`content` behind a line that opens it."""
    return f'??? abstract "{title}"\n\n' + "\n".join(f"    {line}" if line else "" for line in content.split("\n"))


def unsearched(content: str) -> str:
    """`content` that the site's search does not look at: code shown for a second time, differences."""
    return f'<div data-search-exclude markdown="1">\n\n{content}\n\n</div>'


def _facts(recipe: Recipe) -> str:
    stem = recipe.name.split("/")[1]
    rows = [
        ["data path", recipe.path or "see below"],
        ["dtypes", ", ".join(recipe.dtypes) or "none of its own"],
        *([["majors", ", ".join(recipe.majors)]] if len(recipe.majors) > 1 else []),
        ["compiles for", " ".join(recipe.targets) or "nothing: it has no kernel"],
        ["runs on", _runs_on(recipe)],
        ["code", f"[{stem}.py]({stem}.py): one file that stands alone, as `cookbook copy {recipe.name} .` writes it"],
        ["notebook", f"[{stem}.ipynb]({stem}.ipynb): this page, with its checks; they need this package"],
    ]
    return table(["recipe", f"`{recipe.name}`"], rows, right=2)


def _diff(recipe: Recipe, base: Recipe) -> str:
    old, new = (catalog.without_lab(r.file.read_text(encoding="utf-8")).splitlines() for r in (base, recipe))
    lines = difflib.unified_diff(old, new, base.name, recipe.name, lineterm="", n=2)
    return unsearched(folded(f"All changes from {base.name}", fence("\n".join(lines), "diff")))


def page(name: str) -> str:
    """A recipe's page as markdown, from its executed notebook and the records.

    Raises:
        notebooks.OutOfStep: the notebook is not the recipe's.
    """
    recipe = catalog.find(name)
    live = _live(recipe.name)
    measured = live["results_table("]()
    body = _with_host_side(notebooks.read(recipe.name).cells, live)
    if body and body[0].startswith("# "):
        body[0] = body[0].partition("\n")[2].strip()
    parts = [f"# {recipe.title}", f"*{recipe.claim}*", _facts(recipe), *body]
    if recipe.kind != "study" and measured not in body:
        parts += ["## Measured", measured]
    if recipe.kind != "study":
        parts += ["## Recorded checks", checked_table(recipe.name)]
    if recipe.builds_on:
        parts += [f"## What changed from {recipe.builds_on}", _diff(recipe, catalog.find(recipe.builds_on))]
    return "\n\n".join(parts) + "\n"


def write_pages(docs: Path | None = None) -> list[Recipe]:
    """Writes docs/recipes/<track>/<name>.md with what it offers beside it: the code as one file that stands alone, and
    the notebook. Files that would not change are left alone, so that a server that watches them does not build for
    ever."""
    docs = docs or catalog.recipes_root().parent / "docs"
    found = catalog.recipes()
    for recipe in found:
        path = docs / "recipes" / f"{recipe.name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, page(recipe.name))
        _write(path.with_suffix(".py"), catalog.standalone_source(recipe.name))
        _write(path.with_suffix(".ipynb"), notebooks.notebook_path(recipe.name).read_text(encoding="utf-8"))
    for stray in (docs / "recipes").rglob("*.md"):
        if stray.relative_to(docs / "recipes").with_suffix("").as_posix() not in {r.name for r in found}:
            stray.unlink()
    return found


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- command line -----------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """The command line in the module's text; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.publish.pages")
    parser.add_argument("what", choices=("notebooks", "readme", "pages"))
    parser.add_argument("name", nargs="*", help="with notebooks: only these recipes")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if something is out of step")
    given = parser.parse_args(argv)
    if given.what == "notebooks":
        return 1 if notebooks.main(given.check, given.name) else 0
    if given.what == "pages":
        sys.stdout.write(f"{len(write_pages())} pages written\n")
        return 0
    in_step = update_readme(given.check)
    sys.stdout.write("README.md: " + ("in step\n" if in_step else "out of step\n" if given.check else "rewritten\n"))
    return 1 if given.check and not in_step else 0


if __name__ == "__main__":
    sys.exit(main())
