"""A recipe as one file of code that stands alone: what it uses of SHARED modules is written into it.

A copied file is code: its docstrings and comments say why. The text between a recipe's cells speaks of figures, of
measurements and of other recipes, which are not in the file, so none of it is copied.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from cookbook.recipe.imports import names_used, statements

_T = TypeVar("_T")

# What recipes import: the host side, and what only some of them need. A later one uses what is before it.
SHARED = tuple(
    f"cookbook.recipe.{name}" for name in ("entry", "operands", "remapping", "shared_sums", "operator", "alone")
)
MINIMAL = "cookbook.recipe.minimal"  # its definitions take the place of SHARED's
_CUTE = ("cutlass", "cuda")  # whose types a host side may name in annotations alone
_INTEGERS = re.compile(r"\bcutlass\.U?Int\d+\b")
MOVED = "cookbook.recipe.moved"  # imports of it, each in a `try`, stand below the other imports
_WIDTH = 120  # columns of a line of code


def alone(cells: Iterable[str], minimal: bool = False) -> str:
    """The code of a recipe's cells, without what it imports of cookbook: with that code instead.

    Args:
        cells: the text of each code cell, in order, without the `# %%` lines.
        minimal: with the host side of MINIMAL.

    Raises:
        ValueError: a cell imports another module of cookbook.
    """
    return _alone(tuple(cell.strip("\n") for cell in cells), minimal)


@lru_cache(maxsize=256)
def _alone(cells: tuple[str, ...], minimal: bool) -> str:
    """`alone`, once for each text."""
    imports = [node for cell in cells for node in ast.parse(cell).body if isinstance(node, _IMPORTS)]
    code = [text for text in map(_without_imports, cells) if text]
    sources = _sources((*SHARED, MINIMAL) if minimal else SHARED)
    shared = _shared(code, imports, sources)
    for place, text in reversed(shared):
        code.insert(place, text)
    if shared:
        imports += [node for node in ast.parse(sources).body if isinstance(node, _IMPORTS)]
    body = "\n\n\n".join(code)
    head = [_imports(imports, _used(ast.parse(body))), *_moved(imports)]
    return "\n\n".join(head) + f"\n\n\n{body}\n"


_IMPORTS = (ast.Import, ast.ImportFrom)


def host_side(cells: Iterable[str]) -> tuple[str, int]:
    """The code of SHARED modules that cells use, and the number of the cell that it is for; "" if they use none.

    Args:
        cells: as of `alone`.
    """
    cells = list(cells)
    found = _shared(cells, [node for cell in cells for node in ast.parse(cell).body if isinstance(node, _IMPORTS)])
    return ("\n\n\n".join(text for _, text in found), found[-1][0]) if found else ("", 0)


def host_alone(cells: Iterable[str], name: str, instead: str) -> str:
    """Return what defines `name` in a recipe, without CuTe: of its cells, of SHARED modules, and of the text `instead`.

    instead: definitions that take the place of those of the same names.

    Raises:
        ValueError: `name` uses CuTe.
    """
    texts = [instead, _sources(), *(cell.strip("\n") for cell in cells)]
    nodes = [node for text in texts for node in ast.parse(text).body if isinstance(node, _IMPORTS)]
    of_cute = [node for node in nodes if _module_root(node) in _CUTE]
    pieces = [(node, _INTEGERS.sub("int", text), names) for each in texts for node, text, names in _statements(each)]
    body = "\n\n\n".join(_joined(_needed([name], pieces[::-1])[::-1]))
    used = _used(ast.parse(body))
    heavy = sorted({(each.asname or each.name).split(".")[0] for node in of_cute for each in node.names} & used)
    if heavy:
        raise ValueError(f"name: got a host side that uses {', '.join(heavy)}; needed one without CuTe")
    return f"{_imports([node for node in nodes if node not in of_cute], used)}\n\n\n{body}\n"


def _shared(
    code: list[str], imports: Iterable[ast.Import | ast.ImportFrom], sources: str = ""
) -> list[tuple[int, str]]:
    """The code of SHARED modules, or of the text `sources`, that texts and their imports use: in parts, each with the
    number of the text before which it goes. What a class checks when it is made goes before that class; the rest where
    it is first needed."""
    wanted = {alias.name for node in imports if _module_of(node) in SHARED for alias in node.names}
    cells = [ast.parse(text) for text in code]
    used = {each.name: _used(each) for cell in cells for each in cell.body if isinstance(each, ast.FunctionDef)}
    checks = [(n, names) for n, cell in enumerate(cells) if (names := _reached(_in_checks(cell), used) & wanted)]
    shared = _statements(sources or _sources())
    early = _needed(set().union(*(names for _, names in checks)), shared)
    rest = [piece for piece in _needed(wanted, shared) if piece not in early]
    parts = [(checks[0][0], early)] if checks else []
    parts += [(_place(cells, wanted), rest)] if rest else []
    return [(place, "\n\n\n".join(_joined(pieces))) for place, pieces in parts]


def _sources(modules: Iterable[str] = SHARED) -> str:
    files = (Path(__file__).with_name(name.rpartition(".")[2] + ".py") for name in modules)
    return "\n\n\n".join(file.read_text(encoding="utf-8") for file in files)


def _module_root(node: ast.Import | ast.ImportFrom) -> str:
    return (_module_of(node) or node.names[0].name).split(".")[0]


def _moved(imports: Iterable[ast.Import | ast.ImportFrom]) -> list[str]:
    """The statements of MOVED that bind what is imported of it."""
    wanted = {alias.name for node in imports if _module_of(node) == MOVED for alias in node.names}
    tries = ((set(_defined(node)), text) for node, text in statements(_sources([MOVED])) if isinstance(node, ast.Try))
    return [text for names, text in tries if names & wanted]


def _module_of(node: ast.AST) -> str:
    return (node.module or "") if isinstance(node, ast.ImportFrom) else ""


def _end(node: ast.stmt) -> int:
    """The number of the last line of what `ast.parse` made."""
    return node.end_lineno or node.lineno


def _without_imports(cell: str) -> str:
    """A cell's text without its imports; blank lines elsewhere stay as they are."""
    lines = cell.splitlines()
    for node in ast.parse(cell).body:
        if isinstance(node, _IMPORTS):
            lines[node.lineno - 1 : _end(node)] = [""] * (_end(node) - node.lineno + 1)
    return "\n".join(lines).strip("\n")


@lru_cache(maxsize=64)
def _statements(source: str) -> list[tuple[ast.stmt, str, set[str]]]:
    """The statements of a module but for imports, each with its text and the names that it uses: read once."""
    pieces = [(node, text) for node, text in statements(source) if not isinstance(node, (*_IMPORTS, ast.Expr))]
    return [(node, text, {*names_used(node)}) for node, text in pieces]


def _needed(names: Iterable[str], pieces: list[tuple[ast.stmt, str, set[str]]]) -> list[tuple[ast.stmt, str]]:
    """The statements among `pieces` that define `names`, and what these use; the last one that defines a name."""
    where = {name: number for number, (node, *_) in enumerate(pieces) for name in _defined(node)}
    used = {number: {where[name] for name in piece[2] if name in where} for number, piece in enumerate(pieces)}
    return [pieces[number][:2] for number in sorted(_reached((where[name] for name in names), used))]


def _reached(first: Iterable[_T], further: Mapping[_T, Iterable[_T]]) -> set[_T]:
    """Return `first`, and all that one comes to from there."""
    found: set[_T] = set()
    more = set(first)
    while more:
        found |= more
        more = {each for one in more for each in further.get(one, ())} - found
    return found


def _joined(pieces: Iterable[tuple[ast.stmt, str]]) -> Iterator[str]:
    """Texts to be set apart by two blank lines: assignments that follow each other are one."""
    assignments: list[str] = []
    for node, text in pieces:
        if isinstance(node, ast.Assign):
            assignments.append(text)
            continue
        if assignments:
            yield "\n".join(assignments)
            assignments = []
        yield text
    if assignments:
        yield "\n".join(assignments)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Try):
        return [alias.name for each in node.body if isinstance(each, _IMPORTS) for alias in each.names]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return [each.id for each in targets if isinstance(each, ast.Name)] or [getattr(node, "name", "")]


def _used(node: ast.AST) -> set[str]:
    """Every name that is read somewhere in it."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _in_checks(node: ast.AST) -> set[str]:
    """The names that classes use when one is made: in `__post_init__`."""
    inits = [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef) and each.name == "__post_init__"]
    return set().union(*map(_used, inits))


def _place(cells: list[ast.Module], names: Iterable[str]) -> int:
    """Before which cell the shared code goes: the first one that needs it when it is imported, or else uses it."""
    at_import = [number for number, cell in enumerate(cells) if _used_at_import(cell) & set(names)]
    anywhere = [number for number, cell in enumerate(cells) if _used(cell) & set(names)]
    return (at_import or anywhere)[0]


def _used_at_import(node: ast.AST) -> set[str]:
    """`_used`, without the bodies of functions."""
    found = {node.id} if isinstance(node, ast.Name) else set()
    body = node.body if isinstance(node, (ast.FunctionDef, ast.Lambda)) else []
    inside = body if isinstance(body, list) else [body]
    for child in ast.iter_child_nodes(node):
        if child not in inside:
            found |= _used_at_import(child)
    return found


def _imports(nodes: Iterable[ast.Import | ast.ImportFrom], used: set[str]) -> str:
    """The imports of `used` names, each once: the standard library's, then the others."""
    written = ", ".join((*SHARED, MOVED))
    whole: set[tuple[str, str | None]] = set()
    parts: dict[str, set[tuple[str, str | None]]] = {}
    for node in nodes:
        for alias in node.names:
            own = _module_of(node) in (*SHARED, MOVED)
            if own or (alias.asname or alias.name).split(".")[0] not in used:
                continue
            module = _module_of(node) or alias.name
            if module.split(".")[0] == "cookbook":
                raise ValueError(f"cells: got an import of {module}; needed none of cookbook but {written}")
            into = parts.setdefault(module, set()) if isinstance(node, ast.ImportFrom) else whole
            into.add((alias.name, alias.asname))
    lines = [(name, f"import {_alias(name, asname)}") for name, asname in sorted(whole, key=str)]
    lines += [(module, _from(module, names)) for module, names in sorted(parts.items())]
    known = sys.stdlib_module_names
    sections = [[text for name, text in lines if (name.split(".")[0] in known) == own] for own in (True, False)]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _alias(name: str, asname: str | None) -> str:
    return f"{name} as {asname}" if asname else name


def _from(module: str, names: set[tuple[str, str | None]]) -> str:
    said = [_alias(*each) for each in sorted(names, key=lambda each: (not each[0][0].isupper(), each[0]))]
    line = f"from {module} import {', '.join(said)}"
    return line if len(line) <= _WIDTH else f"from {module} import (\n    " + ",\n    ".join(said) + ",\n)"
