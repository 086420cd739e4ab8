"""The line below a page's claim: what was checked, and where. It unfolds to all levels, what the recipe is, links."""

from __future__ import annotations

import html
import re
from pathlib import Path

from cookbook.measure import records
from cookbook.publish.markdown import indented
from cookbook.publish.pages import checked_table
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from tools.publish import address, home, notebooks, playground
from tools.publish.unchanged import base_of

PLAYGROUND = "playground/index.md"  # in docs/
DIFFERENCE = "diff"  # the anchor of the last section
CHECKED, PASSED = "Checked: ", "passed"  # how what a check printed begins; a status
SWITCH = '<label class="code-switch"><input type="checkbox"> Show the code of figures</label>'
_STATUS = re.compile(r"^(\w+) .*? (passed|failed) ", re.M)


def card(recipe: Recipe, docs: Path) -> str:
    """The line as markdown, with the page's switch for the code of its figures.

    Args:
        docs: the folder of the site's pages: whether there is a playground is seen there.
    """
    parts = "\n\n".join(filter(None, [_buttons(recipe, docs), _facts(recipe), levels_table(recipe.name)]))
    line = f'??? info "{verdict(recipe.name)}: details, code, notebook"\n\n{indented(parts)}'
    return f'<div class="card" markdown="1">\n\n{line}\n\n{SWITCH}\n\n</div>'


def verdict(name: str, root: Path | None = None) -> str:
    """A recipe's levels in one line: "Checked with no GPU; ran and timed on H200".

    Levels that profile or sanitize are named where the kernel neither ran nor was timed, or where they failed.
    """
    here = checked_here(name)
    failed = [level for level, status in here.items() if status != PASSED]
    said = [f"FAILED with no GPU: {', '.join(failed)}" if failed else "Checked with no GPU"] if here else []
    on: dict[str, list[str]] = {}  # levels by where they passed
    for level in records.LEVELS:
        found = [r for r in records.select(name, level, None, root) if not records.is_stale(r)]
        if any(r["status"] != PASSED for r in found):
            said.append(f"{level}: FAILED")
        elif found:
            gpus = dict.fromkeys(gpu.removeprefix("NVIDIA ").split()[0] for gpu in records.by_gpu(found, root))
            on.setdefault(", ".join(gpus), []).append(level)
    mostly = {gpus: kept for gpus, levels in on.items() if (kept := [x for x in levels if x in ("ran", "timed")])}
    for gpus, levels in (mostly or on).items():
        said.append(f"{' and '.join(filter(None, [', '.join(levels[:-1]), levels[-1]]))} on {gpus}")
    if not on and catalog.find(name).kind != "study":
        said.append("no GPU has run it")
    if not here and not notebooks.was_executed(notebooks.read(name)):
        said.insert(0, "Not checked yet")
    return "; ".join(said) or "Needs no GPU"


def title_of_check(printed: str) -> str:
    """The verdict of what a notebook's check printed: each level that needs no GPU, and whether it holds."""
    by_status: dict[str, list[str]] = {}
    for level, status in _statuses(printed).items():
        by_status.setdefault(status, []).append(level)
    return "Checked: " + "; ".join(f"{', '.join(levels)}: {status}" for status, levels in by_status.items())


def runs_on(recipe: Recipe) -> str:
    """Return where a recipe runs, in words."""
    return recipe.runs_on.replace("+", " and later")


# --- buttons ------------------------------------------------------------------------------------------------------


def _buttons(recipe: Recipe, docs: Path) -> str:
    """Copy, download, notebook, playground, ladder, difference; and the repository, where its address is known."""
    stem = recipe.name.split("/")[1]
    copy = f'<button type="button" class="md-button" data-copy-file="../{stem}.py" hidden>Copy the code</button>'
    links = {"Download": f"{stem}.py", "Notebook": f"{stem}.ipynb"}
    if (docs / PLAYGROUND).exists() and (query := playground.address(recipe)):
        links["Playground"] = f"../../{PLAYGROUND}{query}"
    if recipe.product.is_gemm:
        links["The ladder"] = "index.md"
    if base := base_of(recipe):
        links[f"Changes from {base.name.removeprefix(f'{recipe.track}/')}"] = f"#{DIFFERENCE}"
    links["Open in Colab"] = address.colab(f"notebooks/{recipe.name}.ipynb")
    source = f"recipes/{recipe.name}.py"
    links |= {"Source": address.source_of(source), "Edit": address.source_of(source, edit=True)}
    made = [f"[{html.escape(text)}]({link}){{ .md-button }}" for text, link in links.items() if link]
    return " ".join([copy, *made]) + "\n{ .buttons }"


def _facts(recipe: Recipe) -> str:
    """Return what the recipe is, in two lines."""
    made = f"compiles for {' '.join(recipe.targets)}" if recipe.targets else "has no kernel"
    majors = f"majors {', '.join(recipe.majors)}" if len(recipe.majors) > 1 else ""
    where = runs_on(recipe)
    said = [", ".join(recipe.dtypes), majors, made, f"runs {where if where == 'anywhere' else f'on {where}'}"]
    said.append(f"{home.minutes(recipe.name)} minutes to read")
    path = f"**Data path:** {recipe.path}. " if recipe.path else ""
    in_short = "; ".join(filter(None, said))
    return f"{path}**In short:** {in_short}. **In a terminal:** `cookbook copy {recipe.name} .`"


# --- levels -------------------------------------------------------------------------------------------------------


def levels_table(name: str, root: Path | None = None) -> str:
    """Every level of a recipe: those that need no GPU as its executed notebook shows them, the others as recorded."""
    recipe = catalog.find(name)
    here = checked_here(recipe.name)
    header, rule, *recorded = checked_table(recipe.name, root).splitlines()
    if recipe.kind == "study":  # it has only some of the levels
        recorded = [row for row in recorded if "not measured" not in row]
    rows = []
    for status in dict.fromkeys(here.values()):
        alike = ", ".join(level for level, found in here.items() if found == status)
        rows.append(f"| {alike} | {status} | any machine, no GPU | with this page |")
    return "\n".join([header.replace("recorded", "status"), rule, *rows, *recorded]) if rows or recorded else ""


def checked_here(name: str) -> dict[str, str]:
    """Level -> "passed", or how many FAILED, of the levels that need no GPU: what the notebook's check said.

    A notebook is executed with no GPU, so that whatever it checked needs none.
    """
    outputs = [output for cell in notebooks.read(name).cells for output in cell.get("outputs", ())]
    printed = [output.get("text", "") for output in outputs if output.output_type == "stream"]
    return _statuses("\n".join(text for text in printed if text.startswith(CHECKED)))


def _statuses(printed: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for level, status in _STATUS.findall(printed):
        found.setdefault(level, []).append(status)
    return {level: _summed(statuses) for level, statuses in found.items()}


def _summed(statuses: list[str]) -> str:
    failed = statuses.count("failed")
    return f"{failed} of {len(statuses)} FAILED" if failed else PASSED
