"""Publish from recipes/, notebooks/ and results/: tables, recipe pages, README's blocks.

    python -m tools.publish.pages notebooks [NAME ...] [--changed]   notebooks/ from recipes/, executed
    python -m tools.publish.pages readme [--check]      the generated blocks of README.md
    python -m tools.publish.pages pages                 docs/recipes/ (the site's hook calls this too)
    python -m tools.publish.pages address ADDRESS       where the repository is, and every committed link to it

No figure is typed by hand anywhere: a figure on a page is in a table that one of these functions wrote.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cookbook import draw
from cookbook.check import subjects
from cookbook.measure import records
from cookbook.publish import ceiling_tables, gains, study_tables
from cookbook.publish.markdown import Laid, fence, figure, indented, tabs
from cookbook.publish.pages import beside_tn, limits_table, results_table, sources_list
from cookbook.recipe import catalog, copy
from cookbook.recipe.catalog import Recipe
from tools.publish import address, cards, charts, glance, ladders, notebooks, oddities
from tools.publish.unchanged import base_of, definitions_before, unchanged

_TALL = 800.0  # pixels: bars that are higher are folded; the table above them has every figure
_LONG = 24  # lines: what limits a kernel is folded beyond that
_VARIANTS = re.compile(r"^(?P<title>Each variant by name, [^\n]*):\n\n(?P<rows>(?:\|[^\n]*\n*)+)", re.MULTILINE)
FIGURE_CODE = "figure-code"  # the class of what the page's switch shows
_GENERATED = "<!-- {name}:{edge} -->"
NOT_EXECUTED = "*The cells of this page have not been executed: figures and checks are missing. `make site` runs them.*"


# --- README ---------------------------------------------------------------------------------------------------


def readme_blocks(settings: Path | None = None) -> dict[str, str]:
    """The generated blocks of README.md by name; `settings`: see `address`."""
    return {"recipes": glance.tracks(), "results": glance.at_a_glance(), "badges": address.badges(settings)}


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


def update_readme(check: bool, path: Path | None = None, settings: Path | None = None) -> bool:
    """Writes README's generated blocks, or with `check` only compares; whether it was in step before."""
    path = path or catalog.recipes_root().parent / "README.md"
    old = path.read_text(encoding="utf-8")
    new = with_blocks(old, readme_blocks(settings))
    if not check and new != old:
        path.write_text(new, encoding="utf-8")
    return new == old


# --- recipe pages -----------------------------------------------------------------------------------------------


def _output(output: Any) -> str:
    if output.output_type == "stream":
        said = fence(output.text, "text")
        return folded(cards.title_of_check(output.text), said) if output.text.startswith(cards.CHECKED) else said
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return figure("".join(data["image/svg+xml"]))
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    if "text/html" in data:
        return '<div class="output">' + re.sub(r"\s*\n\s*", " ", "".join(data["text/html"])) + "</div>"
    return fence("".join(data.get("text/plain", "")), "text")


def _live(name: str) -> dict[str, Callable[[], str]]:
    """Return what cells that call these functions show: results/ as it is now, not as it was when the notebook ran."""
    made: dict[str, Callable[[str], str]] = {
        "results_table(": _results,
        "limits_table(": lambda name: _if_long("What limits it, in figures", limits_table(name, laid=tabs)),
        "beside_tn(": lambda name: beside_tn(name, laid=tabs),
    }
    if catalog.find(name).kind == "study":
        made |= {
            "counted_table(": lambda name: study_tables.counted_table(name, laid=tabs),
            "experiment_table(": lambda name: study_tables.experiment_table(
                name, laid=_in_tabs(lambda gpu: [charts.experiment_chart(name, gpu=gpu)])
            ),
            "ceiling_table(": lambda name: ceiling_tables.ceiling_table(
                name, laid=_in_tabs(lambda gpu: [charts.ceiling_chart(name, gpu=gpu)])
            ),
        }
    return {call: partial(shown, name) for call, shown in made.items()}


def linked(markdown: str) -> str:
    """Links as the site has them: to another recipe's page, not its notebook."""
    markdown = re.sub(r"\]\(([\w/.]+)\.ipynb\)", r"](\1.md)", markdown)
    return markdown.replace("](../../docs/", "](../../")  # the site's pages lie in docs/recipes/<track>/


_SUMMARY = re.compile(
    r'<summary>(?P<said>.*) <a href="\.\./(?P<recipe>[\w/]+)\.ipynb">(?P<title>.*)</a>: (?P<names>.*)</summary>'
)


def _imported(source: str) -> str:
    """Definitions that a page takes from another: folded, with a link to where they are explained."""
    said = _SUMMARY.search(source)
    assert said is not None  # `notebooks.imported_cell` wrote it
    code = source[said.end() :].removesuffix("</details>").strip()
    where = f"Explained in [{said['title']}](../{said['recipe']}.md)."
    return unsearched(folded(f"{said['said']} {said['recipe']}: {said['names']}", f"{where}\n\n{code}"))


def _at_a_glance(*arguments: Any, **named: Any) -> str:
    said, picture = gains.gain(*arguments, **named)
    return linked(said) + (f"\n\n{figure(picture.svg)}" if picture else "")


def _by_arguments(source: str) -> list[str]:
    """Return what the cell's calls of `lab.gain` and `lab.compare` show, of results/ as it is now."""
    shown = []
    for call in [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]:
        called = ast.unparse(call.func)
        if called not in ("lab.gain", "lab.compare"):
            continue
        named = {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
        if called == "lab.gain":
            shown.append(_at_a_glance(*map(ast.literal_eval, call.args), **named))
        else:
            name, shape = (ast.literal_eval(call.args[place]) for place in (0, 2))
            shown.append(fence(gains.recorded(name, shape, **named), "text"))
    return shown


def _code(cell: Any, base: Mapping[str, str], builds_on: str | None) -> str:
    """A cell's code: folded where the tags say so, or where the page before has shown it. The code of figures and
    checks is hidden: the page has one switch that shows all of it."""
    code, tags = fence(cell.source, "python"), cell.metadata.get("tags", [])
    if "folded" in tags:
        return unsearched(folded(": ".join(filter(None, ["Code", ", ".join(subjects.definitions(cell.source))])), code))
    if "lab" in tags and "open" not in tags:
        return unsearched(code, FIGURE_CODE)
    if "open" not in tags and (same := unchanged(cell.source, base)):
        return unsearched(folded(f"As in {builds_on}: {', '.join(same)}", code))
    return code


def _cell(
    cell: Any, live: dict[str, Callable[[], str]], base: Mapping[str, str] = MappingProxyType({}), name: str = ""
) -> list[str]:
    if notebooks.IMPORTED in cell.metadata.get("tags", []):
        return [_imported(cell.source)]
    if cell.cell_type == "markdown":
        return [linked(cell.source)]
    if not cell.source.strip() or notebooks.SETUP in cell.metadata.get("tags", []):
        return []
    code = _code(cell, base, name)
    now = [shown() for call, shown in live.items() if call in cell.source]
    if "lab.gain(" in cell.source or "lab.compare(" in cell.source:
        now += _by_arguments(cell.source)
    return [code, *(now or map(_output, cell.outputs))]


def _with_host_side(cells: list[Any], shown: Callable[[Any], list[str]]) -> list[str]:
    """Return what each cell shows, and under the one that first uses it the code that all recipes share, folded."""
    code = [each for each in cells if each.cell_type == "code" and "lab" not in each.metadata.get("tags", [])]
    shared, place = copy.host_side(each.source for each in code)
    parts = []
    for cell in cells:
        parts += shown(cell)
        if shared and cell is code[place]:
            title = "The host side, which all recipes share: cookbook/recipe/entry.py"
            parts.append(unsearched(folded(title, fence(shared, "python"))))
    return parts


def _in_tabs(drawn: Callable[[str], Iterable[draw.Picture | None]]) -> Laid:
    """Tabs in which the part of each GPU has its charts below, which `drawn` gives by the GPU's name."""
    return lambda shown: tabs({gpu: _charted(content, drawn(gpu)) for gpu, content in shown.items()})


def _charted(shown: str, drawn: Iterable[draw.Picture | None]) -> str:
    """A table with its bars below, where there are any."""
    charts_of_it = [chart.svg for chart in drawn if chart]
    bars = "\n\n".join(map(figure, charts_of_it))
    high = sum(float(height) for svg in charts_of_it for height in re.findall(r'<svg[^>]*? height="([\d.]+)"', svg))
    return "\n\n".join(filter(None, [shown, folded("The same as bars", bars) if high > _TALL else bars]))


def _results(name: str) -> str:
    """Return what was timed of a recipe, by GPU: the table, its bars, and why a bar is odd."""
    timed = [r for r in records.select(name, "timed") if not records.is_stale(r)]

    def part(gpu: str, content: str) -> str:
        table = _VARIANTS.sub(lambda found: folded(found["title"], found["rows"]), content)
        odd = oddities.explained(r for r in timed if r["device"] == gpu)
        return "\n\n".join(filter(None, [_charted(table, charts.results_charts(name, gpu=gpu)), odd]))

    return results_table(name, laid=lambda shown: tabs({gpu: part(gpu, each) for gpu, each in shown.items()}))


def _if_long(title: str, content: str) -> str:
    """`content`, behind a line that opens it where it is longer than a screen's half."""
    return folded(title, content) if content.count("\n") > _LONG else content


def folded(title: str, content: str) -> str:
    """`content` behind a line that opens it."""
    return f'??? abstract "{title}"\n\n{indented(content)}'


def unsearched(content: str, kind: str = "") -> str:
    """`content` that the site's search does not look at: code shown for a second time, differences."""
    named = f' class="{kind}"' if kind else ""
    return f'<div{named} data-search-exclude markdown="1">\n\n{content}\n\n</div>'


def _diff(recipe: Recipe, base: Recipe) -> str:
    lines = ladders.changes(recipe, base)
    more, less = ladders.counts(lines)
    title = f"All changes of code from {base.name}: {more} lines more, {less} less"
    return unsearched(folded(title, fence("\n".join(lines), "diff")))


def page(name: str, docs: Path | None = None) -> str:
    """A recipe's page as markdown, from its notebook and the records. Where that was not executed, the page says so.

    Args:
        docs: the folder of the site's pages; this tree's if left out.
    """
    recipe = catalog.find(name)
    live = _live(recipe.name)
    measured = live["results_table("]()
    changed, base = base_of(recipe), definitions_before(recipe)
    shown = partial(_cell, live=live, base=base, name=changed.name if changed else "")
    notebook = notebooks.read(recipe.name)
    body = _with_host_side(notebook.cells, shown)
    claim, _, rest = body[0].partition("\n")[2].strip().partition("\n\n")
    head = [rest, "" if notebooks.was_executed(notebook) else NOT_EXECUTED]
    parts = [f"# {recipe.title}", claim, cards.card(recipe, docs or _docs()), *filter(None, head), *body[1:]]
    if recipe.kind != "study" and measured not in body:
        parts += ["## Measured", measured]
    if changed:
        heading = f"## What changed from {changed.name} {{ #{cards.DIFFERENCE} }}"
        parts += [heading, _diff(recipe, changed)]
    if recipe.sources:
        parts += ["## Sources", sources_list(recipe.name)]
    return "\n\n".join(parts) + "\n"


def write_pages(docs: Path | None = None) -> list[Recipe]:
    """Writes docs/recipes/<track>/<name>.md with what it offers beside it: the code as one file that stands alone, and
    the notebook; and docs/recipes/<track>/index.md, the ladder of a track. Files that would not change are left alone,
    so that a server that watches them does not build for ever."""
    docs = docs or _docs()
    found = catalog.recipes()
    for recipe in found:
        path = docs / "recipes" / f"{recipe.name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, page(recipe.name, docs))
        _write(path.with_suffix(".py"), catalog.standalone_source(recipe.name))
        _write(path.with_suffix(".ipynb"), notebooks.written(notebooks.read(recipe.name)))
    for track in ladders.tracks():
        _write(docs / "recipes" / track / "index.md", ladders.page(track))
    known = {r.name for r in found} | {f"{track}/index" for track in ladders.tracks()}
    for stray in (docs / "recipes").rglob("*.md"):
        if stray.relative_to(docs / "recipes").with_suffix("").as_posix() not in known:
            stray.unlink()
    return found


def _docs() -> Path:
    return catalog.recipes_root().parent / "docs"


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- command line -----------------------------------------------------------------------------------------------


def move_to(repository: str, root: Path | None = None) -> None:
    """Set the repository's address, and write all that is made of it and committed; "" takes it out again.

    Args:
        root: of the source tree; this one if left out.

    Raises:
        ValueError: it is no address; nothing has been written.
    """
    root = root or catalog.recipes_root().parent
    settings, citation = root / "pyproject.toml", root / "CITATION.cff"
    address.decide(repository, settings)
    citation.write_text(address.cited(citation.read_text(encoding="utf-8"), settings), encoding="utf-8")
    update_readme(check=False, path=root / "README.md", settings=settings)


def main(argv: list[str] | None = None) -> int:
    """The command line in the module's text; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.publish.pages")
    parser.add_argument("what", choices=("notebooks", "readme", "pages", "address"))
    parser.add_argument("name", nargs="*", help="with notebooks: only these recipes; with address: the repository's")
    parser.add_argument("--check", action="store_true", help="readme: compare only; exit 1 if it is out of step")
    parser.add_argument("--changed", action="store_true", help="notebooks: execute those of which something changed")
    given = parser.parse_intermixed_args(argv)
    if given.what == "address":
        if len(given.name) != 1:
            parser.error(f"address: got {len(given.name)}; needed one, or ''")
        move_to(given.name[0])
        return 0
    if given.what == "notebooks":
        return 1 if notebooks.main(given.name, given.changed) else 0
    if given.what == "pages":
        sys.stdout.write(f"{len(write_pages())} pages written\n")
        return 0
    in_step = update_readme(given.check)
    sys.stdout.write("README.md: " + ("in step\n" if in_step else "out of step\n" if given.check else "rewritten\n"))
    return 1 if given.check and not in_step else 0


if __name__ == "__main__":
    sys.exit(main())
