"""Find the subject of a check: a recipe as this package has it, the cells of a notebook, or a file that was copied.

A `Local` recipe has the front matter of a packaged one and code of its own. Records speak of the packaged code, so it
says which of that code's names mean something else here: of code that differs there is no record.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from cookbook.recipe import catalog, imports
from cookbook.recipe.catalog import Recipe

_HEADER = re.compile(r"^#.*\brecipe (?P<name>\w+/\w+)", re.MULTILINE)  # the head that `cookbook copy` writes
_HEAD_LINES = 12
_NAMED = 4  # names of differing code that are said; of more, how many


@dataclass(frozen=True)
class Local(Recipe):
    """A recipe whose code is a module of the reader's."""

    module: Any = None
    where: str = ""
    source: str = ""
    differing: tuple[str, ...] = ()  # top-level names of the packaged code that mean something else here, or nothing
    loaded_from: Path | None = None  # a file: another process can load it again

    @property
    def said(self) -> str:
        """This code's name, in words."""
        return self.changed or f"{self.where}: the code of {self.name}"

    @property
    def changed(self) -> str:
        """Differences from the packaged code, in words; "" if there are none."""
        if not self.differing:
            return ""
        more = f" and {len(self.differing) - _NAMED} more" if len(self.differing) > _NAMED else ""
        verb = "differs" if len(self.differing) == 1 else "differ"
        return f"{self.where}: {', '.join(self.differing[:_NAMED])}{more} {verb} from {self.name}"


def find(what: str | ModuleType, recipe: str = "") -> Recipe:
    """The recipe called `what`, or the one that a module defines.

    Args:
        what: a recipe's name, or a module: `sys.modules["__main__"]` in a notebook, or an imported copy.
        recipe: of a module, the name of the recipe that it is made from; a copied file's head says it.

    Raises:
        UnknownRecipe: no recipe has the name.
        TypeError: `what` is neither.
        ValueError: nothing says which recipe a module is made from.
    """
    if isinstance(what, str):
        return catalog.find(what)
    if not isinstance(what, ModuleType):
        raise TypeError(f"what: got {type(what).__name__}; needed a recipe's name or a module")
    if "In" in vars(what) and "get_ipython" in vars(what):  # a notebook's: its cells in the order in which they ran
        return _local(what, "the cells above", [cell for cell in what.In if is_code(cell)], recipe)
    file = getattr(what, "__file__", None)
    if not file or not Path(file).is_file():
        raise ValueError(f"what: got {what.__name__}, a module without a file; needed a notebook's or a file's")
    return _of_source(what, Path(file), recipe)


def of_file(path: Path, recipe: str = "") -> Recipe:
    """The recipe that a Python file defines: a copy that may have been changed; lab cells are left out.

    Raises:
        ValueError: no such file, or its head does not say which recipe it is made from, and neither does `recipe`.
        NotLoaded: Python does not load it.
    """
    if not path.is_file():
        raise ValueError(f"NAME: got {path}; needed a recipe's name, or a file that exists")
    if not recipe and not _made_from(_head(path)):
        needed = "a file whose head names its recipe, as `cookbook copy` writes it"
        raise ValueError(f"NAME: got {path}; needed {needed}; a file with other kernels is checked alone")
    return _of_source(load_file(path), path, recipe)


def is_copy(path: Path) -> bool:
    """Return whether the head of a file names the recipe that it is a copy of; False of a file that there is not."""
    return path.is_file() and bool(_made_from(_head(path)))


def _head(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")  # loading it says where it is not UTF-8
    except OSError as error:
        raise ValueError(f"NAME: got {path}; needed a file that can be read ({error.strerror})") from None


def load_file(path: Path, folder: Path | None = None) -> ModuleType:
    """A Python file as a module, its lab cells left out, if it has any.

    What it prints goes to stderr. As with a script, its folder is on `sys.path`, and stays there: a function may import
    when it is called.

    Args:
        folder: the one for `sys.path`; the file's own if left out.

    Raises:
        NotLoaded: Python does not load it; the message says which line raises what.
    """
    name = f"cookbook_file_{re.sub(r'[^0-9A-Za-z]', '_', str(path.resolve()))}"
    loader = catalog.RecipeLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # with a loader there is one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution: dataclasses look their module up by name
    if (beside := str((folder or path.parent).resolve())) not in sys.path:
        sys.path.insert(0, beside)
    try:
        with redirect_stdout(sys.stderr):
            catalog.execute(loader.exec_module, module, path)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def definitions(source: str) -> dict[str, str]:
    """The text of each function, class and assignment at the top level of `source`, by name: the last of each."""
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body:
        named = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = [target.id for target in targets if isinstance(target, ast.Name)]
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        found |= dict.fromkeys(named, "\n".join(lines[first - 1 : node.end_lineno]))
    return found


def _of_source(module: ModuleType, path: Path, name: str) -> Local:
    """The recipe of a file: a copy is held against what `cookbook copy` writes."""
    source = path.read_text(encoding="utf-8")
    copied, pieces = not catalog.front_matter(source), catalog.module_code(source) or [source]
    return _local(module, path.name, pieces, name, copied, path.resolve())


def _local(
    module: ModuleType, where: str, pieces: list[str], name: str, copied: bool = False, path: Path | None = None
) -> Local:
    pieces = catalog.module_code(imports.written_in("".join(f"# %%\n{piece}\n" for piece in pieces)))
    source = "\n\n".join(pieces)
    if not (name := name or _made_from(source)):
        raise ValueError(f"recipe: got none; needed the name of the recipe that {module.__name__} is made from")
    packaged = catalog.find(name)
    text = catalog.standalone_source(name) if copied else packaged.source
    differing = tuple(_differing(text, pieces))
    code = {"module": _snapshot(module), "where": where, "source": source, "differing": differing}
    return Local(**vars(packaged), **code, loaded_from=path)


def _snapshot(module: ModuleType) -> ModuleType:
    """The same names in a module of its own: what was evaluated of an earlier state of the cells is kept by module."""
    made = ModuleType(module.__name__)
    vars(made).update(vars(module))
    return made


def is_code(cell: str) -> bool:
    """Return whether a notebook's cell is Python: some are magic commands."""
    try:
        ast.parse(cell)
    except SyntaxError:
        return False
    return True


def _made_from(source: str) -> str:
    """The recipe that the head of a copied file names; "" if it names none."""
    found = _HEADER.search("\n".join(source.splitlines()[:_HEAD_LINES]))
    return found["name"] if found else ""


def _differing(packaged: str, pieces: Iterable[str]) -> list[str]:
    """Top-level names of the packaged code whose definition is another one in `pieces`, or is not there."""
    wanted = definitions(packaged)
    have: dict[str, str] = {}
    for piece in pieces:
        have |= definitions(piece)
    return [name for name, text in wanted.items() if name not in have or _normal(have[name]) != _normal(text)]


@cache
def _normal(text: str) -> str:
    return catalog.normal_form(text)
