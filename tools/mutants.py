"""Every mutant of a recipe's device code: one small edit of its text, each a mistake that one could make.

| operator | what it edits |
|---|---|
| drop | a statement goes: a call (a wait, a fence, a clear, a barrier, a commit, a release), or an assignment to a name that is bound elsewhere too |
| guard | an `if` is always taken, a `with` is entered by all, one side of `and`/`or` goes, `pred=` goes |
| swap | two neighbours change places: arguments of a call, modes of an index |
| off by one | an integer is one more, or one less |
| comparison | `<` for `<=`, `==` for `!=`, and so on |
| index | a computed index is 0 |
| sibling | `tile_m` for `tile_n`, `sA` for `sB`: a name in use that differs in one letter of a, b, m, n, k |
| constant | True for False, 0.0 for 1.0 |
"""  # noqa: E501, a table

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from cookbook.recipe.catalog import without_lab
from tools.records.device_code import kernel_names

Edit = tuple[str, ast.AST, str]  # operator, what goes, what comes instead
_FLIPPED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
_LETTERS = ("ab", "AB", "mn", "km", "kn", "MN", "KM", "KN")


class Mutant(NamedTuple):
    """Replace the characters from `start` to `end` by `text`."""

    operator: str
    function: str
    line: int
    old: str  # the line as it is
    new: str  # and as it becomes
    start: int
    end: int
    text: str

    def of(self, source: str) -> str:
        """The mutant's own text, with as many lines."""
        return source[: self.start] + self.text + source[self.end :]


def mutants(source: str) -> list[Mutant]:
    """All mutants of a recipe's text without its lab cells, in the order of the text, no two alike."""
    source = without_lab(source)
    offsets = _Offsets(source)
    found = {}
    for function in _functions(ast.parse(source), kernel_names(source)):
        for operator, node, text in _edits(function, source):
            one = offsets.mutant(operator, function.name, node, text)
            if one.of(source) != source:
                found.setdefault((one.start, one.end, one.text), one)
    return [found[key] for key in sorted(found)]


def _functions(tree: ast.Module, names: set[str]) -> list[ast.FunctionDef]:
    """Functions of these names, and the methods that they call or read."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    read = {node.attr for one in functions for node in ast.walk(one) if isinstance(node, ast.Attribute)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = [m for one in classes for m in one.body if isinstance(m, ast.FunctionDef) and m.name in read]
    return sorted(functions + methods, key=lambda one: one.lineno)


class _Offsets:
    """Places in a text, as characters from its start."""

    def __init__(self, source: str) -> None:
        self.source, self.lines = source, source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """`column` is in bytes of UTF-8, as `ast` counts."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def mutant(self, operator: str, function: str, node: ast.AST, text: str) -> Mutant:
        start = self.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        end = self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        text += "\n" * (self.source.count("\n", start, end) - text.count("\n"))  # CuTe reads kernels by line number
        one = Mutant(operator, function, node.lineno, "", "", start, end, text)  # type: ignore[attr-defined]
        row = one.line - 1
        return one._replace(old=self.lines[row].strip(), new=one.of(self.source).splitlines()[row].strip())


def _edits(function: ast.FunctionDef, source: str) -> Iterator[Edit]:
    """The edits of a function's body; annotations, defaults and what is said to the reader stay."""
    siblings = _Siblings(function)
    bound = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    again = {name for name in bound if bound.count(name) > 1} | {one.arg for one in function.args.args}
    for node in _walk(function.body):
        yield from _dropped(node, again)
        yield from _unguarded(node)
        if isinstance(node, ast.Call):
            yield from _swapped([one for one in node.args if not isinstance(one, ast.Starred)], source)
        if isinstance(node, ast.Subscript):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            yield from _swapped(indices, source)
            yield from (("index", one, "0") for one in indices if not isinstance(one, (ast.Constant, ast.Slice)))
        if isinstance(node, ast.Constant):
            yield from _other_constants(node)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _FLIPPED:
            left, right = (ast.get_source_segment(source, one) for one in (node.left, node.comparators[0]))
            yield "comparison", node, f"{left} {_FLIPPED[type(node.ops[0])]} {right}"
        yield from siblings.of(node)


def _walk(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes that a kernel is made of: no text, no annotation, no refusal."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)) or _refuses(node):
            continue
        yield node
        skipped = getattr(node, "annotation", None)
        waiting += [child for child in ast.iter_child_nodes(node) if child is not skipped]


def _refuses(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"


def _dropped(node: ast.AST, again: set[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _refuses(node.value):
        yield "drop", node, "pass"
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        if names <= again or isinstance(targets[0], ast.Subscript):
            yield "drop", node, "pass"


def _unguarded(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.If):
        yield "guard", node.test, "True"
    if isinstance(node, ast.BoolOp):
        yield from (("guard", one, str(isinstance(node.op, ast.And))) for one in node.values)
    if isinstance(node, ast.With):
        yield "guard", _span(node, node.items[-1].context_expr), "if True"
    if isinstance(node, ast.Call):
        for word in node.keywords:
            if word.arg == "pred":
                yield "guard", word, ""


def _span(first: Any, last: Any) -> ast.AST:
    """A node that stands for the text from the start of one to the end of another."""
    node = ast.Pass(lineno=first.lineno, col_offset=first.col_offset)
    node.end_lineno, node.end_col_offset = last.end_lineno, last.end_col_offset
    return node


def _swapped(nodes: list[ast.expr], source: str) -> Iterator[Edit]:
    for left, right in pairwise(nodes):
        one, other = (ast.get_source_segment(source, node) or "" for node in (left, right))
        if one != other:
            yield "swap", _span(left, right), f"{other}, {one}"


def _other_constants(node: ast.Constant) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield "constant", node, str(not node.value)
    elif isinstance(node.value, float):
        yield "constant", node, "0.0" if node.value else "1.0"
    elif isinstance(node.value, int):
        yield "off by one", node, str(node.value + 1)
        yield "off by one", node, str(node.value - 1)


class _Siblings:
    """Names in use in a function that differ from another in one letter: of tensors, and of fields of one object."""

    def __init__(self, function: ast.FunctionDef) -> None:
        nodes = list(ast.walk(function))
        self.names = {node.id for node in nodes if isinstance(node, ast.Name)}
        self.names |= {one.arg for one in function.args.args}
        self.fields = {(ast.unparse(n.value), n.attr) for n in nodes if isinstance(n, ast.Attribute)}

    def of(self, node: ast.AST) -> Iterator[Edit]:
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return
        if isinstance(node, ast.Name):
            yield from (("sibling", node, name) for name in sorted(self.names) if _one_letter(node.id, name))
        elif isinstance(node, ast.Attribute):
            base = ast.unparse(node.value)
            others = sorted(attr for of, attr in self.fields if of == base and _one_letter(node.attr, attr))
            yield from (("sibling", node, f"{base}.{attr}") for attr in others)


def _one_letter(one: str, other: str) -> bool:
    if len(one) != len(other):
        return False
    differing = ["".join(sorted(pair)) for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    return len(differing) == 1 and differing[0] in _LETTERS
