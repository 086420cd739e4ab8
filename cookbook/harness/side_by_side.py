"""The GEMM of each architecture side by side: for docs/architectures.md, cut from the recipes when the site is built.

A page asks for a row by a mark that names functions, classes or constants of the recipes:

    <!-- beside: smem_layouts -->              the same names in every recipe of RECIPES
    <!-- beside: mainloop | consume -->        other names in each, in the order of RECIPES
    <!-- beside facts -->                      what their front matter and results/ say

Nothing is pasted: what a recipe says today stands there, and a name that it has no more is an error.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from cookbook.harness import bench_pages, catalog
from cookbook.harness.publishing import fence, table

RECIPES = ("ampere/ldmatrix_gemm", "hopper/tma_wgmma_gemm")
FACTS = "<!-- beside facts -->"
_ROW = re.compile(r"<!-- beside: (?P<names>[\w |]+?) -->")


def with_code(markdown: str) -> str:
    """`markdown` with the code of the recipes in place of its marks.

    Raises:
        ValueError: a mark names what a recipe does not define, or not one list of names for each recipe.
    """
    markdown = _ROW.sub(lambda mark: row(mark["names"]), markdown)
    return markdown.replace(FACTS, facts()) if FACTS in markdown else markdown


def row(names: str) -> str:
    """One row of code: columns beside each other, or a single one if the recipes say the same."""
    each = [part.split() for part in names.split("|")]
    each = each * len(RECIPES) if len(each) == 1 else each
    if len(each) != len(RECIPES) or not all(each):
        raise ValueError(f"beside: got {names!r}, needed names, or {len(RECIPES)} lists of them with | between")
    codes = [source_of(recipe, of) for recipe, of in zip(RECIPES, each, strict=True)]
    if len({catalog.normal_form(code) for code in codes}) == 1:
        return f"*The same code in {' and '.join(f'`{name}`' for name in RECIPES)}:*\n\n{fence(codes[0], 'python')}"
    cells = "\n".join(_column(recipe, code) for recipe, code in zip(RECIPES, codes, strict=True))
    return f'<div class="beside" markdown>\n{cells}\n</div>'


def _column(recipe: str, code: str) -> str:
    return f"<div markdown>\n\n**`{recipe}`**\n\n{fence(code, 'python')}\n\n</div>"


def source_of(recipe: str, names: list[str]) -> str:
    """What a recipe's code says at the top level under these names, decorators included, in the order asked for.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: it does not define one of the names.
    """
    file = catalog.find(recipe).file
    defined = _defined(file, file.read_text(encoding="utf-8"))
    if missing := [name for name in names if name not in defined]:
        raise ValueError(f"names: got {', '.join(missing)}, needed what {recipe} defines: {', '.join(defined)}")
    return "\n\n\n".join(defined[name] for name in names)


@cache
def _defined(file: Path, source: str) -> dict[str, str]:
    """The text of each function, class and assignment of a recipe's cells but the lab's, by name."""
    lines = source.splitlines()
    found = {}
    for node in ast.parse(catalog.without_lab(source)).body:
        named = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
        if isinstance(node, ast.Assign):
            named = [target.id for target in node.targets if isinstance(target, ast.Name)]
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        found |= dict.fromkeys(named, "\n".join(lines[first - 1 : node.end_lineno]))
    return found


def facts() -> str:
    """A column for each recipe: data path, instructions, targets, and its speed as a multiple of torch.matmul's."""
    recipes = [catalog.find(name) for name in RECIPES]
    shape = bench_pages.SHORT_SHAPE
    rows = [
        ["runs on", *(r.runs_on.replace("+", " and later") for r in recipes)],
        ["data path", *(r.path for r in recipes)],
        ["machine code", *(", ".join(f"`{name}`" for name in r.instructions_for(r.targets[0])) for r in recipes)],
        [f"times torch.matmul, {' x '.join(map(str, shape))}", *(_speed(r.name, shape) for r in recipes)],
    ]
    links = (f"[{r.title}](recipes/{r.name}.md)" for r in recipes)
    return table(["", *links], rows, right=1 + len(recipes))


def _speed(name: str, shape: tuple[int, ...]) -> str:
    """Of every device that has a current record: its speed, device and day."""
    found = bench_pages.timed(name)
    said = []
    for device in sorted({r["device"] for r in found}):
        one = bench_pages.step(found, device, shape)
        if one is not None and one.to_torch is not None:
            said.append(f"{one.to_torch:.3f} on {device}, {one.record['date'].split()[0]}")
    return "; ".join(said) or bench_pages.absent(found, shape)
