"""Definitions that a recipe imports from the recipes it builds on, and the recipe's text with them written in.

A page holds what it changes. What it takes over it imports:

    from cookbook.recipes.hopper.persistent_gemm import make_load, store_subtile

`written_in` puts each imported definition, and whatever it refers to, above the first cell that uses it. Copies, hashes
of device code, planted faults and checks of files read that text, so none of them knows of imports.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cookbook.recipe.cells import code_of, module_code
from cookbook.recipe.folders import published

__all__ = [
    "PACKAGE",
    "Definition",
    "Group",
    "definitions",
    "groups",
    "imported",
    "names_used",
    "needed_to_change",
    "recipes_of",
    "statements",
    "written_in",
]

PACKAGE = "cookbook.recipes"
_IMPORTS = (ast.Import, ast.ImportFrom)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Key = tuple[str, str]  # a recipe's name, and a name that it defines


class Definition(NamedTuple):
    """A statement at the top level of a recipe: a function, a class or an assignment."""

    recipe: str
    names: tuple[str, ...]
    text: str  # with the comments right above it, and its decorators
    node: ast.stmt
    place: int  # among the statements of its recipe


class Group(NamedTuple):
    """Definitions of one recipe that one cell is the first to use."""

    cell: int  # number of the cell, among those of code that are not the lab's
    recipe: str
    definitions: tuple[Definition, ...]

    @property
    def text(self) -> str:
        """Their code, as their recipe has it."""
        return "\n\n\n".join(each.text for each in self.definitions)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that they define."""
        return tuple(name for each in self.definitions for name in each.names)


class _Page(NamedTuple):
    """The definitions and imports of a recipe's code cells."""

    defined: dict[str, list[Definition]]  # by name: usually one, or all that bind it
    imported: dict[str, _Key]  # of recipes, by the name that they have here
    others: dict[str, str]  # other imports, by the name that they bind: the statement
    order: tuple[str, ...]  # the recipes that it imports from, each after those that it imports from itself


def recipes_of(source: str) -> list[str]:
    """The names of the recipes that a text imports from, each once."""
    return list(dict.fromkeys(recipe for recipe, _ in imported(source).values()))


def imported(source: str) -> dict[str, _Key]:
    """Return what a recipe's text, or plain Python, imports of recipes: the name here, (recipe, the name there)."""
    return dict(_imported(source)) if PACKAGE in source else {}


@lru_cache(maxsize=256)
def _imported(source: str) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    for code in module_code(source) or [source]:
        for node in _parsed(code):
            found |= _of_recipes(node)
    return found


def written_in(source: str, root: Path | None = None) -> str:
    """A recipe's text with every definition that it imports of recipes in place of the import.

    Args:
        source: a recipe in the percent format.
        root: the folder of the recipes that are imported from.

    Raises:
        ValueError: a name has two meanings: the recipe defines it, and an imported definition uses another of that
            name; or an import names what its recipe does not define.
    """
    return _written(source, _shelf(source, root)) if imported(source) else source


@lru_cache(maxsize=256)
def _written(source: str, shelf: _Shelf) -> str:
    lines = source.splitlines()
    added: dict[int, list[Group]] = {}
    for group in _groups(source, shelf):
        added.setdefault(group.cell, []).append(group)
    names, missing = _final_names(source, shelf), _missing_imports(source, shelf)
    out: list[str] = []
    last = 0
    for number, cell in enumerate(code_of(source)):
        out += lines[last : cell.start]
        for group in added.get(number, ()):
            head = "\n".join(missing.pop(group.recipe, ()))
            texts = [_renamed(each, _of_page(names, group.recipe, shelf)) for each in group.definitions]
            out += ["# %%", *filter(None, [head]), *"\n\n\n".join(texts).split("\n"), ""]
        out += _without_imports(lines[cell.start : cell.stop])
        last = cell.stop
    return "\n".join([*out, *lines[last:]]) + "\n"


def groups(source: str, root: Path | None = None) -> list[Group]:
    """The imported definitions, with whatever they refer to, by the cell that is the first to use them.

    Raises:
        ValueError: as of `written_in`.
    """
    return list(_groups(source, _shelf(source, root)))


@lru_cache(maxsize=256)
def _groups(source: str, shelf: _Shelf) -> tuple[Group, ...]:
    page = _page_of(source)
    _final_names(source, shelf)  # which raises
    order = {name: place for place, name in enumerate(_order(page, shelf))}
    found: list[Group] = []
    done: set[_Key] = set()
    wanted = _wanted(page, [_used_in(code) for code in module_code(source)])
    for number, used in enumerate(wanted):
        keys = _closure((page.imported[name] for name in used), shelf) - done
        done |= keys
        pieces = {(each.recipe, each.place): each for key in keys for each in _definitions(key, shelf)}
        for recipe in sorted({recipe for recipe, _ in pieces}, key=order.__getitem__):
            of_it = sorted((piece for key, piece in pieces.items() if key[0] == recipe), key=lambda each: each.place)
            found.append(Group(number, recipe, tuple(of_it)))
    return tuple(found)


def definitions(source: str) -> list[Definition]:
    """Return what a recipe's text defines itself, in its order."""
    found = {each.place: each for some in _page_of(source).defined.values() for each in some}
    return [found[place] for place in sorted(found)]


def _wanted(page: _Page, cells: list[set[str]]) -> list[set[str]]:
    """The imported names that each cell brings in. One that no cell uses, such as what only checks ask for, comes where
    another one of its recipe is used, or else last."""
    found = [used & set(page.imported) for used in cells]
    for name in [name for name in page.imported if not any(name in used for used in found)]:
        recipe = page.imported[name][0]
        at = (i for i, used in enumerate(found) if any(page.imported[each][0] == recipe for each in used))
        found[next(at, len(found) - 1)].add(name)
    return found


def needed_to_change(source: str, name: str, root: Path | None = None) -> str:
    """The code to bring in so that a change of an imported definition takes effect: it, and all imported definitions
    that use it, as the page names them; above them imports of what they use and no cell has.

    Raises:
        ValueError: `name` is not imported.
    """
    shelf = _shelf(source, root)
    known = [each for group in _groups(source, shelf) for each in group.definitions]
    if not any(name in each.names for each in known):
        said = ", ".join(sorted({name for each in known for name in each.names})) or "none"
        raise ValueError(f"name: got {name!r}; needed an imported definition: {said}")
    wanted = {name}
    more = True
    while more:
        uses = [each for each in known if wanted & names_used(each.node) and not wanted & set(each.names)]
        more = bool(uses)
        wanted |= {name for each in uses for name in each.names}
    brought = [each for each in known if wanted & set(each.names)]
    names, page = _final_names(source, shelf), _page_of(source)
    have = {*page.defined, *page.imported, *page.others}
    have |= {names[each.recipe, name] for each in brought for name in each.names}
    heads: list[str] = []
    for each in brought:
        for here, statement in _sources_of(each, names, shelf):
            if here not in have:
                heads.append(statement)
                have.add(here)
    head = "\n".join(sorted(heads, key=lambda statement: PACKAGE in statement))
    texts = [_renamed(each, _of_page(names, each.recipe, shelf)) for each in brought]
    return "\n\n\n".join([*filter(None, [head]), *texts])


def _sources_of(each: Definition, names: Mapping[_Key, str], shelf: _Shelf) -> Iterator[tuple[str, str]]:
    """The names that a definition uses of its module: as they are where it is written in, and their imports."""
    page = shelf.pages[each.recipe]
    for name in sorted(names_used(each.node)):
        if name in page.others:
            yield name, page.others[name]
        elif name in page.defined or name in page.imported:
            key = _resolved(page.imported.get(name, (each.recipe, name)), shelf)
            if key:
                said = key[1] if names[key] == key[1] else f"{key[1]} as {names[key]}"
                yield names[key], f"from {PACKAGE}.{key[0].replace('/', '.')} import {said}"


# --- pages ------------------------------------------------------------------------------------------------------------


class _Shelf:
    """The pages that a text imports from, directly or not.

    Two of the same texts are one object, so that what is made of a text and its shelf is made once.
    """

    def __init__(self, texts: tuple[tuple[str, str], ...]) -> None:
        self.pages = {recipe: _page_of(source, recipe) for recipe, source in texts}


def _shelf(source: str, root: Path | None) -> _Shelf:
    texts: dict[str, str] = {}
    waiting = list(_page_of(source).order)
    while waiting:
        if (recipe := waiting.pop()) not in texts:
            texts[recipe] = _source(recipe, root)
            waiting += _page_of(texts[recipe], recipe).order
    return _shelf_of(tuple(sorted(texts.items())))


@lru_cache(maxsize=256)
def _shelf_of(texts: tuple[tuple[str, str], ...]) -> _Shelf:
    return _Shelf(texts)


def _source(recipe: str, root: Path | None) -> str:
    file = (root or published("recipes")) / f"{recipe}.py"
    if not file.is_file():
        raise ValueError(f"import: got {recipe}; needed the name of a recipe")
    return file.read_text(encoding="utf-8")


@lru_cache(maxsize=128)
def _page_of(source: str, recipe: str = "") -> _Page:
    defined: dict[str, list[Definition]] = {}
    found: dict[str, _Key] = {}
    others: dict[str, str] = {}
    place = 0
    for code in module_code(source):
        for node, text in statements(code):
            if own := _of_recipes(node):
                found |= own
            elif isinstance(node, _IMPORTS):
                for alias in node.names:
                    others[(alias.asname or alias.name).split(".")[0]] = _one_import(node, alias)
            else:
                names = tuple(dict.fromkeys(_bound(node)))
                for name in names:
                    defined.setdefault(name, []).append(Definition(recipe, names, text, node, place))
                place += 1
    found = {name: key for name, key in found.items() if name not in defined}  # a reader's own takes the import's place
    return _Page(defined, found, others, tuple(dict.fromkeys(name for name, _ in found.values())))


def _order(page: _Page, shelf: _Shelf, done: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The recipes that a page imports from, directly or not: each after those that it imports from."""
    for recipe in page.order:
        if recipe not in done:
            done = (*(before := _order(shelf.pages[recipe], shelf, done)), *(() if recipe in before else (recipe,)))
    return done


def _resolved(key: _Key, shelf: _Shelf) -> _Key | None:
    """Return where a name that is imported is defined; None: it is an import of something else."""
    recipe, name = key
    page = shelf.pages[recipe]
    if name in page.imported:
        return _resolved(page.imported[name], shelf)
    if name in page.defined:
        return key
    if name in page.others:
        return None
    raise ValueError(f"import: got {name} of {recipe}; needed a name that it defines")


def _definitions(key: _Key, shelf: _Shelf) -> list[Definition]:
    return shelf.pages[key[0]].defined[key[1]]


def _closure(keys: Iterable[_Key], shelf: _Shelf) -> set[_Key]:
    """The definitions of some names, and of all that these refer to."""
    found: set[_Key] = set()
    waiting = [resolved for key in keys if (resolved := _resolved(key, shelf))]
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found.add(key)
        page = shelf.pages[key[0]]
        for each in _definitions(key, shelf):
            used = names_used(each.node) | set(each.names)
            waiting += [(key[0], name) for name in used if name in page.defined]
            reached = (_resolved(page.imported[name], shelf) for name in used if name in page.imported)
            waiting += [one for one in reached if one]
    return found


def _final_names(source: str, shelf: _Shelf) -> dict[_Key, str]:
    """Return what each definition that is written in is called there: as the nearest page that renames it says."""
    page = _page_of(source)
    keys = _closure(page.imported.values(), shelf)
    names = {key: key[1] for key in keys}
    for recipe in _order(page, shelf):
        names |= _named(shelf.pages[recipe], shelf, names)
    own = {name: _resolved(key, shelf) for name, key in page.imported.items()}
    names |= {key: name for name, key in own.items() if key in names}  # its own word is the last, also for the old name
    taken: dict[str, str] = dict.fromkeys(page.defined, "this recipe")
    for (recipe, _), name in sorted(names.items()):
        if name in taken:
            needed = "one; import it under another name, or hand it over as an argument"
            raise ValueError(f"{name}: got a definition of {taken[name]} and one of {recipe}; needed {needed}")
        taken[name] = recipe
    return names


def _named(page: _Page, shelf: _Shelf, names: Mapping[_Key, str]) -> dict[_Key, str]:
    resolved = {name: _resolved(key, shelf) for name, key in page.imported.items()}
    return {key: name for name, key in resolved.items() if key and key in names and name != page.imported[name][1]}


def _of_page(names: Mapping[_Key, str], recipe: str, shelf: _Shelf) -> dict[str, str]:
    """New names in the text of a recipe, for those that change."""
    page = shelf.pages[recipe]
    here = {name: (recipe, name) for name in page.defined} | {
        name: resolved for name, key in page.imported.items() if (resolved := _resolved(key, shelf))
    }
    return {name: names[key] for name, key in here.items() if key in names and names[key] != name}


def _missing_imports(source: str, shelf: _Shelf) -> dict[str, list[str]]:
    """By recipe, the imports that its definitions need and that no cell of the importing recipe has."""
    page = _page_of(source)
    have, missing = set(page.others), dict[str, list[str]]()
    for group in _groups(source, shelf):
        others = shelf.pages[group.recipe].others
        used = set().union(*(names_used(each.node) for each in group.definitions)) & set(others)
        missing.setdefault(group.recipe, []).extend(others[name] for name in sorted(used - have))
        have |= used
    return missing


# --- statements -------------------------------------------------------------------------------------------------------


def _of_recipes(node: ast.stmt) -> dict[str, _Key]:
    """Return what an import binds of recipes; another statement binds nothing of them."""
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    if not isinstance(node, ast.ImportFrom) or not module.startswith(PACKAGE + "."):
        return {}
    recipe = module.removeprefix(PACKAGE + ".").replace(".", "/")
    return {alias.asname or alias.name: (recipe, alias.name) for alias in node.names}


def _one_import(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    said = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
    return f"from {node.module} import {said}" if isinstance(node, ast.ImportFrom) else f"import {said}"


@lru_cache(maxsize=4096)
def _parsed(code: str) -> tuple[ast.stmt, ...]:
    """The statements of a cell, which nobody changes: pages, and copies of them, have most cells in common."""
    return tuple(ast.parse(code).body)


def statements(code: str) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement at the top level with its text: with the comments right above it, and its decorators."""
    lines, end = code.splitlines(), 0
    for node in _parsed(code):
        start = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) - 1
        while start > end and lines[start - 1].startswith("#"):
            start -= 1
        end = node.end_lineno or node.lineno
        yield node, "\n".join(lines[start:end])


def _without_imports(lines: list[str]) -> list[str]:
    """A cell's lines, its `# %%` line first, with those blank that import of recipes."""
    lines = list(lines)
    for node in _parsed("\n".join(lines)):
        if _of_recipes(node):
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
    return lines


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top level binds, or changes by a call of their methods."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            yield from (each.id for each in ast.walk(node.value.func) if isinstance(each, ast.Name))
    else:
        table = symtable.symtable(ast.unparse(node), "recipe", "exec")  # a comprehension's own names are not in it
        yield from (each.get_name() for each in table.get_symbols() if each.is_assigned())
        changed = (each for each in ast.walk(node) if isinstance(each, (ast.Attribute, ast.Subscript)))
        for each in changed:
            if isinstance(each.ctx, ast.Store):
                yield from (name.id for name in ast.walk(each.value) if isinstance(name, ast.Name))


@lru_cache(maxsize=4096)
def names_used(node: ast.AST) -> frozenset[str]:
    """The names of the module that a statement refers to: those that none of its functions binds."""
    return frozenset(_globals(symtable.symtable(ast.unparse(node), "recipe", "exec")))


def _used_in(code: str) -> set[str]:
    """The names that a cell's statements refer to, its imports left out."""
    return {name for node in _parsed(code) if not isinstance(node, _IMPORTS) for name in names_used(node)}


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    top = table.get_type() == "module"
    yield from (each.get_name() for each in table.get_symbols() if top or each.is_global())
    for child in table.get_children():
        yield from _globals(child)


def _renamed(definition: Definition, names: Mapping[str, str]) -> str:
    """A definition's text with other names.

    Raises:
        ValueError: one of them is also a local name there.
    """
    names = {old: new for old, new in names.items() if old in names_used(definition.node)}
    if not names:
        return definition.text
    lines = definition.text.splitlines()
    tree = ast.parse(definition.text)
    places = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in names:
            where = f"{definition.names[0]} of {definition.recipe}"
            raise ValueError(f"{node.arg}: got a parameter in {where}; needed another: it has a new name here")
        if isinstance(node, ast.Name) and node.id in names:
            if isinstance(node.ctx, ast.Store) and not isinstance(definition.node, (ast.Assign, ast.AnnAssign)):
                where = f"{definition.names[0]} of {definition.recipe}"
                raise ValueError(f"{node.id}: got a local name in {where}; needed another: it has a new name here")
            places.append((node.lineno - 1, node.col_offset, node.id))
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node.name in names:
            line = lines[node.lineno - 1]
            at = re.search(rf"\b(?:def|class)\s+({node.name})\b", line)
            assert at is not None  # Python found it there
            places.append((node.lineno - 1, at.start(1), node.name))
    for line, column, name in sorted(places, reverse=True):
        data = lines[line].encode()
        lines[line] = (data[:column] + names[name].encode() + data[column + len(name.encode()) :]).decode()
    return "\n".join(lines)
