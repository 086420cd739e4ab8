"""A recipe to begin with: the text of an existing GEMM under a front matter of its own, and a test beside it.

What the old page draws, counts and measures stays there: the appendix of the new one is a check and a comparison.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from cookbook.recipe import catalog
from cookbook.recipe.cells import cells

_NAME = re.compile(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*")
# What a new recipe does not take over: what was said or asked of the old one alone.
_NOT_KEPT = ("bench_shapes", "compared_with", "tuned")
_LONGEST = 60  # characters of a name: a line that holds it has 120 columns at most
_TEST = '''\
"""{name}: what is its own.

What every recipe must hold, tests/recipes/test_recipes.py and others ask of all of them.
"""

from __future__ import annotations

from cookbook.check import levels

NAME = "{name}"


def test_its_layouts_its_model_and_its_code_hold():
    report = levels.check(NAME, shapes=[(200, 136, 72)], dtypes=["{dtype}"], targets=["{target}"])
    assert report.failed == ()
'''


_FIGURE = """\
# %% tags=["lab"]
from IPython.display import Markdown

from cookbook import draw, lab
from cookbook.lab import results_table

draw.flow(
    [
{stops}
    ],
    [""] * {arrows},
    "{title}",
)
"""
_APPENDIX = """\
# %% [markdown] tags=["lab"]
# ## Check
#
# The check is of the cells above: change one, and check again.

# %% tags=["lab"]
{check}

# %% [markdown] tags=["lab"]
# ## Time
#
# The `matmul` of the cells above, next to torch's: run and timed where there is a GPU for it, else as recorded. Then
# this kernel and its peers, timed in one run on a GPU.

# %% tags=["lab"]
{compare}

# %% tags=["lab"]
Markdown(results_table("{name}"))
"""


def skeleton(name: str, base: str = "", root: Path | None = None) -> dict[Path, str]:
    """The files of a new GEMM recipe with their text: the recipe, and its test.

    Args:
        name: `<track>/<file name>` of the new one.
        base: the GEMM whose text it begins with; the first of its track if left out.
        root: the folder of the recipes; the source tree's if left out.

    Raises:
        ValueError: a name that is none or is taken, a base that is no GEMM of the same track, or no source tree.
    """
    root = root or catalog.recipes_root()
    track, _, stem = name.partition("/")
    if len(name) > _LONGEST:
        raise ValueError(f"name: got {name[:_LONGEST]!r}...; needed {_LONGEST} characters at most")
    if not _NAME.fullmatch(name) or track not in catalog.TRACKS:
        raise ValueError(f"name: got {name!r}; needed <track>/<file_name>, a track of {', '.join(catalog.TRACKS)}")
    tests = root.parent / "tests" / "recipes"
    if not tests.is_dir():
        raise ValueError(f"name: got {name!r} where {root} has no tests beside it; needed a checkout of the repository")
    if (root / f"{name}.py").exists():
        raise ValueError(f"name: got {name!r}, which exists; needed a new name")
    known = [recipe for recipe in catalog.recipes(root) if recipe.track == track]
    gemms = [recipe for recipe in known if recipe.product.is_gemm]
    old = next((recipe for recipe in gemms if base in ("", recipe.name, recipe.name.partition("/")[2])), None)
    if old is None:
        names = ", ".join(recipe.name for recipe in gemms)
        raise ValueError(f"from: got {base!r}; needed {f'one of {names}' if names else 'a track with a GEMM'}")
    text = _retold(old, name, order=max(recipe.order for recipe in known) + 10)
    test = _TEST.format(name=name, dtype=old.dtypes[0], target=old.targets[0])
    beside = tests / f"test_{stem}.py"
    if beside.exists():  # of a recipe of another track
        beside = tests / f"test_{track}_{stem}.py"
    return {root / f"{name}.py": text, beside: test}


def _retold(old: catalog.Recipe, name: str, order: int) -> str:
    """The text of `old` as that of `name`: title, claim, order and base are new, and it names itself."""
    source = old.file.read_text(encoding="utf-8")
    title = name.partition("/")[2].replace("_", " ").capitalize()
    new = {"title": title, "claim": f"What {title} changes, and what that brings.", "order": str(order)}
    header, body = source.split("\n# ---\n", 1)
    kept, skipping = [], False
    for line in header.splitlines():
        key = re.match(r"#     (\w+):", line)
        if key:
            skipping = key[1] in (*_NOT_KEPT, "builds_on")
            if key[1] in new:
                kept.append(f"#     {key[1]}: {new[key[1]]}")
                skipping = True
        if not skipping:
            kept.append(line)
    kept.append(f"#     builds_on: {old.name}")
    stops = [f'        draw.Stop("{stop}", "", ""),' for stop in old.path.split(" -> ")]
    figure = _FIGURE.format(stops="\n".join(stops), arrows=len(stops) - 1, title=title)
    calls = {each: _call(f"lab.{each}", body) for each in ("check_cells", "compare")}
    appendix = _APPENDIX.format(name=name, check=calls["check_cells"], compare=calls["compare"])
    body = _above_the_appendix(body, figure) + appendix
    body = re.sub(r"^# # .*$", f"# # {title}", body, count=1, flags=re.MULTILINE)
    body = re.sub(rf"(?<=[\"']){re.escape(old.name)}(?=[\"'])", name, body)
    return "\n".join(kept) + "\n# ---\n\n" + body


def _above_the_appendix(source: str, figure: str) -> str:
    """The cells that are not the appendix's, with a figure behind the first one, the claim."""
    lines, text, before = source.splitlines(), "", 0
    for cell in cells(source):
        own = "\n".join(lines[cell.start : cell.stop]).rstrip()
        behind = cell.stop - cell.start - len(own.splitlines())  # blank lines: two of them around a function
        if "lab" not in cell.tags:
            text = _joined(text, own, before) if text else f"{own}\n\n{figure}"
            text = text.rstrip("\n") + "\n" * (1 + behind)
        before = behind
    return text


def _joined(text: str, cell: str, blank: int) -> str:
    """A cell behind a text that ends in blank lines: at least `blank` of them."""
    there = len(text) - len(text.rstrip("\n")) - 1
    return text + "\n" * max(0, blank - there) + cell


def _call(function: str, source: str) -> str:
    """The call of a function in a page, an argument a line: another name of any length keeps the format."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    call = next(node for node in nodes if ast.unparse(node.func) == function)
    arguments = [ast.get_source_segment(source, each) for each in call.args]
    arguments += [f"{each.arg}={ast.get_source_segment(source, each.value)}" for each in call.keywords]
    return "\n".join([f"{function}(", *(f"    {each}," for each in arguments), ")"])
