"""Compute the home page: three numbers from records, minutes of reading, a gallery, the atom that a tile wants."""

from __future__ import annotations

import ast
import html
import math
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cookbook import atoms
from cookbook.check import exercises
from cookbook.measure import records
from cookbook.publish.markdown import table
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.formats import FORMATS
from tools.publish import glance, notebooks, thumbnails
from tools.publish.unchanged import definitions_before, unchanged

WORDS_A_MINUTE, LINES_A_MINUTE = 200, 5  # of prose, and of code that a reader follows line by line
EXERCISE = 10  # minutes, as docs/start.md says
_MINUTES = re.compile(r"<!-- minutes: (?P<names>[\w/ ]+) -->")
_PATH = "<!-- whole path -->"
_NOT_READ = re.compile(r"(?<=\])\([^)]*\)|<details.*?</details>", re.DOTALL)  # addresses, and what unfolds
EXTENTS = (16, 32, 64, 128)  # contiguous elements of a tile
ROWS_OF_TILE = 128  # elements of the other mode; no atom depends on it
GPUS = {  # what the table of atoms calls each kind, and the architecture that it asks about
    "Ampere, Ada": "sm_80",
    "Hopper": "sm_90",
    "Blackwell, tcgen05": "sm_100",
    "Blackwell, GeForce": "sm_120",
}
DTYPES = {16: "bf16, fp16", 8: "fp8, int8, mxfp8", 4: "nvfp4", 32: "tf32"}


# --- three numbers ----------------------------------------------------------------------------------------------


class Number(NamedTuple):
    figure: str
    says: str  # in words
    link: str


def numbers(root: Path | None = None) -> str:
    """The three numbers of the first screen as a list; one that no current record holds is said to be not measured."""
    found = [
        _of_a_line(glance.LINES[0], "as fast with a swizzle, and nothing else changed", root),
        _of_a_line(glance.LINES[1], "as fast as cuBLAS: the tuned kernel", root),
    ]
    items = [
        f'<li><a href="{n.link}"><strong>{n.figure}</strong><span>{html.escape(n.says)}</span></a></li>'
        for n in (*found, _counted(root))
    ]
    return f'<ul class="numbers">{"".join(items)}</ul>'


def _of_a_line(line: glance.Line, says: str, root: Path | None) -> Number:
    found = glance.record_of(line, root)
    figure = f"{found['peers'][line.peer]['ratio']:.2f}×" if found else glance.NOT_MEASURED
    on = f", {found['device'].removeprefix('NVIDIA ')}" if found else ""
    shape = f"{line.shape[0]}³" if len(set(line.shape)) == 1 else " x ".join(map(str, line.shape))
    return Number(figure, f"{says} (bf16 GEMM, {shape}{on})", f"recipes/{line.recipe}/")


def predicted(root: Path | None = None) -> tuple[int, int]:
    """(how many, of how many) instructions that ncu counted took the predicted wavefronts, in current records.

    Of a cp.async the lanes that fill with zeros, and those that ncu does not see, are told apart in its record.
    """
    held = []
    for record in records.read(root):
        if record["level"] != "counted" or records.is_stale(record):
            continue
        for f in record["figures"].values():
            if (each := f.get("predicted_each")) is not None:
                apart = f.get("of_zero_filled", 0) - each * f.get("not_counted", 0)
                wanted = {each * f["executed"], f.get("predicted", 0) + apart}
                held.append(f["wavefronts"] in wanted)
    return sum(held), len(held)


def _counted(root: Path | None) -> Number:
    right, of = predicted(root)
    figure = f"{right} of {of}" if of else glance.NOT_MEASURED
    return Number(
        figure,
        "shared-memory instructions take the wavefronts that the model predicts, as counted by ncu",
        "checking/#on-a-gpu",
    )


# --- minutes ----------------------------------------------------------------------------------------------------


@cache
def minutes(name: str) -> int:
    """Return how long a page takes to read, in minutes, rounded up to five: its prose, and its statements that are not
    folded.

    Exercises are not counted: neither their code, nor tips and solutions.
    """
    words = lines = 0
    before = definitions_before(catalog.find(name))
    for cell in notebooks.from_recipe(name).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown" and notebooks.IMPORTED not in tags:
            words += len(_NOT_READ.sub("", cell.source).split())
        elif cell.cell_type == "code" and not {"lab", "folded"} & set(tags) and not unchanged(cell.source, before):
            lines += _statements(cell.source)
    return 5 * math.ceil((words / WORDS_A_MINUTE + lines / LINES_A_MINUTE) / 5)


def _statements(source: str) -> int:
    """Lines of code without imports, docstrings and comments, as Python writes them."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            node.body = node.body[1:]
    return len(ast.unparse(tree).splitlines())


def spent(names: list[str]) -> str:
    """The minutes of these pages together, in one line: "25 min" with a space that does not break."""
    return f"{sum(map(minutes, names))}&nbsp;min"


def timed(markdown: str) -> str:
    """Put the minutes of pages, and of the path that a page's table lists, where the page asks for them."""
    asked = [name for mark in _MINUTES.finditer(markdown) for name in mark["names"].split()]
    markdown = _MINUTES.sub(lambda mark: spent(mark["names"].split()), markdown)
    return markdown.replace(_PATH, _whole_path(markdown, asked)) if _PATH in markdown else markdown


def _whole_path(markdown: str, names: list[str]) -> str:
    """The sum of the table's last column, and how long the exercises of these pages take besides."""
    reading = sum(map(int, re.findall(r"\| (\d+)&nbsp;min \|$", markdown, re.MULTILINE)))
    tasks = sum(len(exercises.tasks(name)) for name in dict.fromkeys(names))
    return (
        f"**{_hours(reading)}** of reading, at {WORDS_A_MINUTE} words and {LINES_A_MINUTE} statements a minute. "
        f"The {tasks} exercises take {_hours(tasks * EXERCISE)} more, at {EXERCISE} minutes each."
    )


def _hours(count: int) -> str:
    """Minutes as a reader says them, in quarters of an hour: "7 h 15 min"."""
    hours, left = divmod(15 * round(count / 15), 60)
    return f"{hours} h {left} min" if left else f"{hours} h"


# --- the gallery --------------------------------------------------------------------------------------------------


def gallery() -> str:
    """A card for each recipe in reading order, under the name of its track: a thumbnail, the title, the claim."""
    parts: list[str] = []
    for number, recipe in enumerate(catalog.recipes(), start=1):
        heading = f"### {recipe.track.capitalize()}\n\n"
        if heading not in parts:
            parts += ["\n</ul>\n\n" if parts else "", heading, '<ul class="gallery">\n']
        parts.append(_card(number, recipe))
    return "".join([*parts, "\n</ul>"])


def _card(number: int, recipe: Recipe) -> str:
    picture = thumbnails.thumbnail(svg) if (svg := thumbnails.chosen(recipe.name)) else ""
    said, claim = (html.escape(text, quote=False) for text in (recipe.title, recipe.claim))
    title = f"<strong>{number}. {said}</strong>"
    about = f'<span class="minutes">{minutes(recipe.name)} min</span>'
    return f'<li><a href="recipes/{recipe.name}/">{picture}{title}</a>{about}<p>{claim}</p></li>'


# --- which atom ---------------------------------------------------------------------------------------------------


def which_atom() -> str:
    """For each GPU, dtype and major: the atom by how many elements of the tile are contiguous, and a recipe."""
    rows = []
    for gpu, arch in GPUS.items():
        for bits, dtype in DTYPES.items():
            for major in ("K", "MN"):
                found = [_atom(arch, major, bits, extent) for extent in EXTENTS]
                if any(found):
                    shown = [f"`{name}`" if name else "none" for name in found]
                    rows.append(
                        [gpu, dtype, major, *shown, f"`{atoms.reader(arch, major, bits)}`", _to_take(arch, bits, major)]
                    )
    header = ["GPU", "dtype", "major", *(f"{extent} elements" for extent in EXTENTS), "read by", "recipe"]
    return filtered(table(header, rows, right=99), "GPU", "dtype", "major")


def filtered(shown: str, *columns: str) -> str:
    """A table under which the site's script puts a choice for each of these columns; without it the table is whole."""
    return f'<div class="filtered" data-filters="{",".join(columns)}" markdown="1">\n\n{shown}\n\n</div>'


def _atom(arch: str, major: str, bits: int, extent: int) -> str:
    """The name of the atom for `extent` contiguous elements; "" if no MMA takes this, or no atom divides it."""
    tile = (ROWS_OF_TILE, extent) if major == "K" else (extent, ROWS_OF_TILE)
    try:
        return atoms.select(major, bits, tile, arch).name
    except ValueError:
        return ""


def _to_take(arch: str, bits: int, major: str) -> str:
    """A link to the recipe that multiplies such operands there: of those for the newest GPU that it is, the tuned one,
    else the first; "" if there is none."""
    fitting = [r for r in catalog.recipes() if r.product.is_gemm and _takes(r, arch, bits, major)]
    if not fitting:
        return ""
    newest = max(map(_made_for, fitting))
    fitting = [r for r in fitting if _made_for(r) == newest]
    # One that is compared with another recipe is for other shapes, such as few rows.
    for_all = [r for r in fitting if not r.compared_with] or fitting
    recipe = next((r for r in fitting if r.tuned), for_all[0])
    return f"[`{recipe.name}`](recipes/{recipe.name}.md)"


def _made_for(recipe: Recipe) -> tuple[int, int]:
    """The compute capability of the first architecture that runs a recipe."""
    return catalog.capabilities(recipe.runs_on)[0]


def _takes(recipe: Recipe, arch: str, bits: int, major: str) -> bool:
    """Return whether a GEMM runs on `arch` and multiplies elements of `bits` bits, both operands of this major."""
    own = FORMATS[recipe.operands].bits if recipe.operands else 16
    return (
        own == bits
        and {"K": "tn", "MN": "nt"}[major] in recipe.majors
        and recipe.runs_on_capability(*catalog.capabilities(arch)[0])
    )
