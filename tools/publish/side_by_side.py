"""The GEMM of each architecture side by side: for docs/architectures.md, cut from the recipes when the site is built.

The page names its recipes once, and asks for a row by a mark that names functions, classes or constants of them:

    <!-- beside of: TRACK/NAME | TRACK/NAME -->          the recipes
    <!-- beside: smem_layouts -->                        the same names in every recipe
    <!-- beside: mainloop | consume | consume -->        other names in each, in the order of the recipes
    <!-- beside: - | - | accumulators -->                `-`: a recipe has nothing of the kind
    <!-- beside facts -->                                what their front matter and results/ say
    <!-- beside shared -->                               which names mean the same code in which of them
    <!-- beside paths -->                                the way of the data through each, drawn

Nothing is pasted: what a recipe says today stands there, and a name that it has no more is an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cookbook import draw
from cookbook.check.subjects import definitions
from cookbook.measure import records
from cookbook.publish.markdown import fence, figure, table
from cookbook.recipe import catalog, imports
from tools.publish import benchmarks

FACTS, SHARED, PATHS, NOTHING = "<!-- beside facts -->", "<!-- beside shared -->", "<!-- beside paths -->", "-"
_OF = re.compile(r"<!-- beside of: (?P<names>[\w/ |]+?) -->\n?")
_ROW = re.compile(r"<!-- beside: (?P<names>[\w |-]+?) -->")


def with_code(markdown: str) -> str:
    """`markdown` with the code of the recipes in place of its marks.

    Raises:
        ValueError: a mark names what a recipe does not define, or not one list of names for each recipe; or no mark
            names the recipes.
        UnknownRecipe: there is no recipe of a name.
    """
    if "<!-- beside" not in markdown:
        return markdown
    recipes = recipes_of(markdown)
    markdown = _ROW.sub(lambda mark: row(mark["names"], recipes), _OF.sub("", markdown))
    for mark, made in ((FACTS, facts), (SHARED, shared), (PATHS, paths)):
        markdown = markdown.replace(mark, made(recipes)) if mark in markdown else markdown
    return markdown


def recipes_of(markdown: str) -> tuple[str, ...]:
    """The names of the recipes that a page sets side by side."""
    named = _OF.search(markdown)
    if named is None:
        raise ValueError("markdown: got no mark that names the recipes; needed <!-- beside of: TRACK/NAME | ... -->")
    return tuple(name.strip() for name in named["names"].split("|"))


def row(names: str, recipes: Sequence[str]) -> str:
    """One row of code: columns beside each other, and one column for all of `recipes` that say the same."""
    each = [part.split() for part in names.split("|")]
    each = each * len(recipes) if len(each) == 1 else each
    if len(each) != len(recipes) or not all(each) or all(of == [NOTHING] for of in each):
        raise ValueError(f"beside: got {names!r}; needed names, or {len(recipes)} lists of them with | between")
    codes = {recipe: source_of(recipe, of) for recipe, of in zip(recipes, each, strict=True) if of != [NOTHING]}
    alike = _alike(codes)
    if len(alike) == 1 and len(codes) == len(recipes):
        return f"*The same code in {_listed(recipes)}:*\n\n{fence(codes[recipes[0]], 'python')}"
    cells = "\n".join(_column(some, codes[some[0]]) for some in alike)
    return f'<div class="beside" markdown>\n{cells}\n</div>'


def _alike(codes: dict[str, str]) -> list[list[str]]:
    """The recipes, those together whose code is the same up to comments, docstrings, annotations and line breaks."""
    groups: dict[str, list[str]] = {}
    for recipe, code in codes.items():
        groups.setdefault(catalog.normal_form(_without_annotations(code)), []).append(recipe)
    return list(groups.values())


def _without_annotations(code: str) -> str:
    """Code whose functions do not say what they take: a class that a recipe imports may have another name there."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.unparse(tree)


def _listed(names: Sequence[str]) -> str:
    """`a`, `b` and `c`."""
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last


def _column(recipes: Sequence[str], code: str) -> str:
    return f"<div markdown>\n\n**{_listed(recipes)}**\n\n{fence(code, 'python')}\n\n</div>"


def source_of(recipe: str, names: list[str]) -> str:
    """Return what a recipe's code says at the top level under these names, decorators included, in the order asked for.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: it does not define one of the names.
    """
    defined = _names_of(recipe)
    if missing := [name for name in names if name not in defined]:
        raise ValueError(f"names: got {', '.join(missing)}; needed what {recipe} defines: {', '.join(defined)}")
    return "\n\n\n".join(defined[name] for name in names)


def _names_of(recipe: str) -> dict[str, str]:
    file = catalog.find(recipe).file
    return _defined(file, file.read_text(encoding="utf-8"))


@cache
def _defined(file: Path, source: str) -> dict[str, str]:
    """The text of each function, class and assignment of a recipe's cells but the lab's, by name."""
    return definitions(catalog.without_lab(imports.written_in(source)))


def paths(names: Sequence[str]) -> str:
    """The way of the data through the architecture of each recipe, by its track: pictures side by side."""
    drawn = [figure(draw.data_path(catalog.find(name).track).svg) for name in names]
    cells = "\n".join(f"<div markdown>\n\n{picture}\n\n</div>" for picture in drawn)
    return f'<div class="beside" markdown>\n{cells}\n</div>'


def facts(names: Sequence[str]) -> str:
    """A column for each recipe: data path, instructions, targets, and its speed as a multiple of torch.matmul's."""
    recipes = [catalog.find(name) for name in names]
    shape = benchmarks.LADDER_SHAPES[-1]
    rows = [
        ["runs on", *(r.runs_on.replace("+", " and later") for r in recipes)],
        ["data path", *(r.path for r in recipes)],
        ["machine code", *(", ".join(f"`{name}`" for name in r.instructions_for(r.targets[0])) for r in recipes)],
        [f"times torch.matmul, {' x '.join(map(str, shape))}", *(_speed(r.name, shape) for r in recipes)],
    ]
    links = (f"[{r.title}](recipes/{r.name}.md)" for r in recipes)
    return table(["", *links], rows, right=1 + len(recipes))


def shared(recipes: Sequence[str]) -> str:
    """A line for each set of recipes: the functions and classes whose code is the same in these, and in no other."""
    defined = {recipe: _names_of(recipe) for recipe in recipes}
    names = dict.fromkeys(name for recipe in reversed(recipes) for name in defined[recipe] if not name.isupper())
    held: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        for some in _alike({recipe: defined[recipe][name] for recipe in recipes if name in defined[recipe]}):
            held.setdefault(tuple(some), []).append(f"`{name}`")
    # Most recipes first, then in their order.
    order = sorted(held, key=lambda some: (-len(some), *map(recipes.index, some)))
    rows = [[_listed(some), ", ".join(held[some])] for some in order]
    return table(["the code is of", "names"], rows, right=2)


def _speed(name: str, shape: tuple[int, ...]) -> str:
    """List the speed, device and day of each device's current record."""
    found = benchmarks.timed(name)
    if not found and not records.select(name, "ran"):
        return "not run on hardware"
    said = []
    for device in records.by_gpu(found):
        one = benchmarks.step(found, device, shape)
        if one is not None and one.to_torch is not None:
            said.append(f"{one.to_torch:.3f} on {device}, {one.record['date'].split()[0]}")
    return "; ".join(said) or benchmarks.absent(found, shape)
