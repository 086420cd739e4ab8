"""Edits of a recipe that change no kernel: other names of locals and parameters, other words, another order.

The standard library's `symtable` says which names are local. Edited text has no comments and no lab: it is what
`ast.unparse` writes.
"""

from __future__ import annotations

import ast
import random
import symtable
from collections.abc import Callable, Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
HOST = (  # what recipes define for the host
    *("matmul", "make_plan", "check_operand", "check_out", "check_matrix", "overlap", "kind", "require"),
    *("usable", "copy", "dump", "restore", "measure", "facts", "try_out", "k_major_stride", "major_of", "line_stride"),
    *("store_width", "choose", "cost"),
)


Names = dict[str, dict[str, str]]  # of a function, or of "Class.method": each name, and what it is called instead


def renamed(source: str, seed: int = 0) -> str:
    """`source` with every local name and parameter of its functions called otherwise.

    Methods stay as they are, and `compile_for`: it is called from elsewhere, by keyword. So do parameters that
    `partial` gives by keyword.
    """
    names = new_names(source, seed)
    return with_names(source, {of: own for of, own in names.items() if "." not in of and of != "compile_for"})


def new_names(source: str, seed: int = 0) -> Names:
    """Other names for all locals and parameters. They are drawn: their order says nothing of the old ones'."""
    tree, drawn = ast.parse(source), random.Random(seed)
    tables = _by_name(symtable.symtable(source, "recipe.py", "exec"))
    partials = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "partial")
    handed = {keyword.arg for call in partials for keyword in call.keywords} | {"self", "cls"}
    names = {}
    for of, _ in _functions(tree):
        outer, _, inner = of.rpartition(".")
        table = _by_name(tables[outer])[inner] if outer else tables[inner]
        names[of] = {old: new for old, new in _names_of(table, drawn).items() if old not in handed}
    return names


def _by_name(table: symtable.SymbolTable) -> dict[str, symtable.SymbolTable]:
    return {each.get_name(): each for each in table.get_children()}


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """A module's functions and methods, by name."""
    for node in tree.body:
        if isinstance(node, FUNCTIONS):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, FUNCTIONS))


def with_names(source: str, names: Names) -> str:
    """`source` with other names in its functions, and in calls of them by keyword."""
    tree = ast.parse(source)
    own = {id(node): names[of] for of, node in _functions(tree) if of in names}
    for node in tree.body:
        local = own.get(id(node), {})
        for each in ast.walk(node):  # while functions still have their names
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
                of = local if each.func.id in local else names.get(each.func.id, {})
                for keyword in each.keywords:
                    keyword.arg = of.get(keyword.arg, keyword.arg)
    for _, node in _functions(tree):
        if id(node) in own:
            _rename(node, own[id(node)])
    return ast.unparse(tree)


def _names_of(table: symtable.SymbolTable, drawn: random.Random) -> dict[str, str]:
    """A new name for each that is local everywhere in a function and in the functions within it."""
    symbols = [symbol for each in _tables(table) for symbol in each.get_symbols()]
    local = {s.get_name() for s in symbols if s.is_local() or s.is_parameter()}
    local -= {s.get_name() for s in symbols if s.is_global()}
    local = {name for name in local if not name.startswith(".")}  # a comprehension's own
    return {
        name: f"{drawn.choice('abcxyz')}{number}_{drawn.randrange(999)}" for number, name in enumerate(sorted(local))
    }


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _rename(function: ast.FunctionDef, names: dict[str, str]) -> None:
    for node in (function.args, *function.body):
        for each in _nodes(node):
            if isinstance(each, ast.Name):
                each.id = names.get(each.id, each.id)
            elif isinstance(each, ast.arg):
                each.arg = names.get(each.arg, each.arg)
            elif isinstance(each, FUNCTIONS):
                each.name = names.get(each.name, each.name)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk` without types and without what is the scope's outside: a function's defaults stay."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") or (isinstance(node, ast.arguments) and "defaults" in field):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


def with_other_words(source: str) -> str:
    """Other docstrings, and one where there was none."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            node.body.insert(0, ast.Expr(ast.Constant("Other words.")))
    return ast.unparse(ast.fix_missing_locations(tree))


def with_another_host(source: str) -> str:
    """Every function of HOST does something else first, and they stand in the other order."""
    tree = ast.parse(source)
    host = [node for node in tree.body if isinstance(node, FUNCTIONS) and node.name in HOST and not node.decorator_list]
    for node in host:
        node.body.insert(1, ast.parse("edited = 1").body[0])
    rest = [node for node in tree.body if node not in host]
    return ast.unparse(ast.Module(rest + host[::-1], []))


def changed_in(source: str, name: str, change: Callable[[ast.FunctionDef], bool]) -> str | None:
    """`source` after `change` of the function `name`; None where it changed nothing."""
    tree = ast.parse(source)
    function = next((node for node in tree.body if isinstance(node, FUNCTIONS) and node.name == name), None)
    return ast.unparse(tree) if function is not None and change(function) else None


def another_constant(function: ast.FunctionDef) -> bool:
    """The last integer of a function becomes one more."""
    found = [n for s in function.body for n in ast.walk(s) if isinstance(n, ast.Constant) and type(n.value) is int]
    if found:
        found[-1].value += 1
    return bool(found)


def without_a_barrier(function: ast.FunctionDef) -> bool:
    """The first statement that synchronizes threads is gone."""
    for node in ast.walk(function):
        for body in (getattr(node, field, None) for field in ("body", "orelse")):
            for number, statement in enumerate(body if isinstance(body, list) else ()):
                call = getattr(statement, "value", None)
                words = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
                if any(word in words for word in ("sync", "barrier", "wait", "commit", "arrive")):
                    body[number] = ast.Pass()
                    return True
    return False
