"""Edits of a program's syntax tree: the language in which the tests plant faults.

    In("consume").drop("_pipe.consumer_wait(_)")
    In("Config.smem_bytes").replace("_.stages - 1", "_.stages")

`In` names a function, a method or a class; `In()` is the whole text. A pattern is Python, an expression or statements:

* A name that begins with `_` stands for any expression: for equal ones wherever it stands in an edit. `_` alone stands
  for any, each time; in what comes instead, the first one is the pattern's first, if both have as many.
* `...` among arguments or elements stands for any number of them. A block that is `...` stands for any block, with its
  `else`; it stays.
* All else stands for itself: functions, fields, keywords, numbers.

So no edit depends on how the text is laid out, on comments, or on names of locals and parameters. `where(pattern)`
gives the names that begin with `_` a meaning for the steps after it, and edits nothing. A pattern has to match once, or
as often as `times` says, of which `nth` picks one. What is not edited keeps its text, and its line wherever an edit
does not add lines. Steps are done one after the other; `+` joins edits in several functions.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from cookbook.recipe.cells import without_lab

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LOOSE = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp)  # stand in parentheses


class EditError(ValueError):
    """A pattern does not match as often as it should, or what comes out is not Python."""


class Step(NamedTuple):
    """Replace matches of a pattern. `new` is None of one that only looks: `where`."""

    scope: str
    old: str
    new: str | None
    times: int = 1
    nth: int | None = None

    def __str__(self) -> str:
        place = f"in {self.scope}: " if self.scope else ""
        count = f", match {self.nth} of {self.times}" if self.nth is not None else f", {self.times} times"
        change = f"where {_line(self.old)}" if self.new is None else f"{_line(self.old)} -> {_line(self.new)}"
        return place + change + (count if self.times > 1 else "")


@dataclass(frozen=True)
class In:
    """Edits of a definition: steps, the first one first. `In.of` does them."""

    scope: str = ""
    steps: tuple[Step, ...] = ()

    def replace(self, old: str, new: str, times: int = 1, nth: int | None = None) -> In:
        """Where `old` matches, `new` comes instead. Only what differs between the two is edited."""
        return replace(self, steps=(*self.steps, Step(self.scope, _dedent(old), _dedent(new), times, nth)))

    def drop(self, statement: str, times: int = 1, *, after: str = "", before: str = "") -> In:
        """`pass` instead of a statement: of the one `after` or `before` others, if these are given."""
        old, new = ("\n".join(filter(None, map(_dedent, (after, one, before)))) for one in (statement, "pass"))
        return self.replace(old, new, times)

    def insert_before(self, statement: str, new: str) -> In:
        return self.replace(statement, f"{_dedent(new)}\n{_dedent(statement)}")

    def insert_after(self, statement: str, new: str) -> In:
        return self.replace(statement, f"{_dedent(statement)}\n{_dedent(new)}")

    def where(self, pattern: str) -> In:
        """Names in `pattern` that begin with `_` mean in later steps what they match here: everywhere the same."""
        return replace(self, steps=(*self.steps, Step(self.scope, _dedent(pattern), None)))

    def __add__(self, other: In) -> In:
        return replace(self, steps=(*self.steps, *other.steps))

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))

    def of(self, source: str) -> str:
        """`source` after the edits. Its lab cells are not looked at.

        Raises:
            EditError: a pattern matches too often, or not often enough.
        """
        known: dict[str, Bound] = {}
        for before, step in zip((None, *self.steps), self.steps, strict=False):
            source, known = _done(step, source, known if before and before.scope == step.scope else {})
        return source


def _dedent(text: str) -> str:
    return textwrap.dedent(text).strip()


def _line(text: str) -> str:
    """Code as one line, in backticks."""
    return f"`{'; '.join(line.strip() for line in text.splitlines())}`"


# --- matching ---------------------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """What a name of a pattern stands for."""

    node: ast.expr
    text: str  # as `ast.unparse` writes it


class Match(NamedTuple):
    """Where a pattern matches: names to what they stand for, and ids of the pattern's nodes to the nodes there.

    Of `...` it is a list: the nodes that it stands for.
    """

    names: dict[str, Bound]
    nodes: dict[int, Any]

    def with_name(self, name: str, node: ast.expr) -> Match | None:
        """None where the name stands for something else already."""
        text = ast.unparse(node)
        if name in self.names:
            return self if self.names[name].text == text else None
        return Match({**self.names, name: Bound(node, text)}, self.nodes)

    def with_node(self, pattern: ast.AST, node: Any) -> Match:
        return Match(self.names, {**self.nodes, id(pattern): node})


def _is_name(pattern: Any) -> bool:
    return isinstance(pattern, ast.Name) and pattern.id.startswith("_")


def _is_dots(pattern: Any) -> bool:
    if isinstance(pattern, ast.Expr):
        pattern = pattern.value
    return isinstance(pattern, ast.Constant) and pattern.value is ...


def _matches(pattern: Any, node: Any, so_far: Match) -> Iterator[Match]:
    """Every way in which a pattern (a node, or nodes, or what is none) matches."""
    if isinstance(pattern, list):
        if isinstance(node, list):
            yield from _matches_all(pattern, node, so_far)
    elif _is_name(pattern) and isinstance(node, ast.expr):
        found = so_far if pattern.id == "_" else so_far.with_name(pattern.id, node)
        if found:
            yield found.with_node(pattern, node)
    elif not isinstance(pattern, ast.AST):
        if type(pattern) is type(node) and pattern == node:
            yield so_far
    elif type(pattern) is type(node):
        skipped = (
            "ctx",
            "kind",
            "type_comment",
            *["orelse"] * (_is_block(pattern) and not getattr(pattern, "orelse", 0)),
        )
        fields = [field for field in pattern._fields if field not in skipped]
        yield from _matches_fields(pattern, node, fields, so_far.with_node(pattern, node))


def _matches_fields(pattern: Any, node: Any, fields: list[str], so_far: Match) -> Iterator[Match]:
    if not fields:
        yield so_far
        return
    own, there = getattr(pattern, fields[0], None), getattr(node, fields[0], None)
    if fields[0] == "keywords" and isinstance(pattern, ast.Call):
        found = _matches_keywords(pattern, own, there, so_far)
    else:
        found = _matches(own, there, so_far)
    for one in found:
        yield from _matches_fields(pattern, node, fields[1:], one)


def _matches_all(patterns: list[Any], nodes: list[Any], so_far: Match) -> Iterator[Match]:
    if not patterns:
        if not nodes:
            yield so_far
    elif _is_dots(patterns[0]):
        for count in range(len(nodes) + 1):
            yield from _matches_all(patterns[1:], nodes[count:], so_far.with_node(patterns[0], nodes[:count]))
    elif nodes:
        for one in _matches(patterns[0], nodes[0], so_far):
            yield from _matches_all(patterns[1:], nodes[1:], one)


def _matches_keywords(call: ast.Call, patterns: list[Any], nodes: list[Any], so_far: Match) -> Iterator[Match]:
    """In any order; where the call's pattern has `...`, there may be others."""
    by_name = {one.arg: one for one in nodes}
    rest = [one for one in nodes if one.arg not in {each.arg for each in patterns}]
    dots = [one for one in call.args if _is_dots(one)]
    if not all(one.arg in by_name for one in patterns) or (rest and not dots):
        return
    if dots:
        so_far = so_far.with_node(dots[-1], [*so_far.nodes[id(dots[-1])], *rest])
    yield from _matches_all(patterns, [by_name[one.arg] for one in patterns], so_far)


class Pattern(NamedTuple):
    """An expression, or statements that follow one another."""

    nodes: list[Any]

    @classmethod
    def parsed(cls, text: str) -> Pattern:
        body = ast.parse(text).body
        return cls([body[0].value] if len(body) == 1 and isinstance(body[0], ast.Expr) else list(body))

    def found(self, tree: ast.AST, known: dict[str, Bound]) -> list[Match]:
        """Matches, in the order of the text; at one place the first way alone."""
        places = [[node] for node in ast.walk(tree)] if isinstance(self.nodes[0], ast.expr) else list(self._runs(tree))
        every = (next(_matches(self.nodes, place, Match(known, {})), None) for place in places)
        return sorted((one for one in every if one), key=lambda one: _start(one.nodes[id(self.nodes[0])]))

    def _runs(self, tree: ast.AST) -> Iterator[list[Any]]:
        for node in ast.walk(tree):
            for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
                if isinstance(body, list):
                    yield from (body[n : n + len(self.nodes)] for n in range(len(body) - len(self.nodes) + 1))


def _start(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _definition(tree: ast.Module, scope: str) -> ast.AST:
    """The one definition of a name, or of a name in another's body: "Config.smem_bytes"."""
    node: ast.AST = tree
    for name in scope.split(".") if scope else ():
        found = [n for n in getattr(node, "body", ()) if isinstance(n, DEFINITIONS) and n.name == name]
        if len(found) != 1:
            raise EditError(f"In: got {scope!r}, of which there are {len(found)} definitions; needed one")
        node = found[0]
    return node


# --- editing ----------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """Other text from one place to another: places in bytes."""

    start: int
    end: int
    text: str


def _done(step: Step, source: str, known: dict[str, Bound]) -> tuple[str, dict[str, Bound]]:
    """The text after a step, and what names stand for after it."""
    tree = ast.parse(without_lab(source))
    pattern = Pattern.parsed(step.old)
    found = pattern.found(_definition(tree, step.scope), known)
    if step.new is None:
        meanings = {tuple((name, bound.text) for name, bound in sorted(one.names.items())) for one in found}
        if len(meanings) != 1:
            raise EditError(f"where: got {len(meanings)} meanings{_said(step, tree, known)}; needed 1")
        return source, found[0].names
    if len(found) != step.times:
        raise EditError(f"edit: got {len(found)} matches{_said(step, tree, known)}; needed {step.times}")
    chosen = found if step.nth is None else [found[step.nth]]
    text, new = _Text(source), Pattern.parsed(step.new)
    changes = sorted({change for one in chosen for change in text.changes(pattern.nodes, new.nodes, one)})
    if not changes or any(one.end > other.start for one, other in pairwise(changes)):
        raise EditError(f"edit: got {len(changes)} changes, or some within others{_said(step)}; needed each apart")
    edited = text.with_changes(changes)
    try:
        ast.parse(without_lab(edited))
    except SyntaxError as error:
        raise EditError(f"edit: got {error}{_said(step)}; needed Python") from error
    return edited, known


def _said(step: Step, tree: ast.Module | None = None, known: dict[str, Bound] | None = None) -> str:
    """Which step it is, and where else its pattern matches."""
    pattern, here = Pattern.parsed(step.old), f" of {_line(step.old)}" + f" in {step.scope}" * bool(step.scope)
    if tree is None or not step.scope:
        return here
    own = step.scope.partition(".")[0]
    others = [node for node in tree.body if isinstance(node, DEFINITIONS) and node.name != own]
    found = [node.name for node in others if pattern.found(node, known or {})]
    return here + f" (it matches in {', '.join(found)})" * bool(found)


class _Text:
    """A program's text, and places in it."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def start(self, node: Any) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: Any) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def with_changes(self, changes: list[Change]) -> str:
        data = self.data
        for start, end, text in reversed(changes):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()

    def changes(self, old: list[Any], new: list[Any], match: Match) -> Iterator[Change]:
        """What to change so that a match of `old` becomes `new`."""
        if isinstance(old[0], ast.expr) and isinstance(new[0], ast.stmt):
            old = [ast.Expr(old[0])]
            match = match.with_node(old[0], match.nodes[id(old[0].value)])
        elif isinstance(old[0], ast.stmt) and isinstance(new[0], ast.expr):
            new = [ast.Expr(new[0])]
        filled = _Filled(old, new, match)
        if len(old) == len(new):
            for one, other in zip(old, new, strict=True):
                yield from self._differing(one, other, filled)
        else:
            yield self._statements(old, new, filled)

    def _statements(self, old: list[Any], new: list[Any], filled: _Filled) -> Change:
        """More statements, or fewer: those that stay at either end keep their text."""
        indent = "\n" + " " * filled.match.nodes[id(old[0])].col_offset
        before = next(
            (n for n, pair in enumerate(zip(old, new, strict=False)) if not _same(*pair)), min(len(old), len(new))
        )
        behind = next(
            (n for n, pair in enumerate(zip(old[::-1], new[::-1], strict=False)) if not _same(*pair)), len(old)
        )
        behind = min(behind, min(len(old), len(new)) - before)
        gone = [filled.match.nodes[id(one)] for one in old[before : len(old) - behind]]
        made = [filled.text(one).replace("\n", indent) for one in new[before : len(new) - behind]]
        if gone:
            return self._change(self.start(gone[0]), self.end(gone[-1]), indent.join(made))
        if behind:
            at = self.start(filled.match.nodes[id(old[before])])
            return Change(at, at, "".join(one + indent for one in made))
        at = self.end(filled.match.nodes[id(old[-1])])
        return Change(at, at, "".join(indent + one for one in made))

    def _change(self, start: int, end: int, text: str, loose: bool = False) -> Change:
        """What comes after it stays in its line, if `text` has no more lines than were there."""
        lost = "\n" * max(0, self.data.count(b"\n", start, end) - text.count("\n"))
        return Change(start, end, f"({text}{lost})" if loose else text + lost)

    def _differing(self, old: Any, new: Any, filled: _Filled) -> Iterator[Change]:
        """The changes of the smallest parts that differ."""
        if _same(old, new):
            return
        node = filled.match.nodes[id(old)]
        if _alike(old, new):
            for one, other in zip(ast.iter_child_nodes(old), ast.iter_child_nodes(new), strict=True):
                yield from self._differing(one, other, filled)
        elif _is_block(old) and _is_block(new) and _else(old) == _else(new):
            yield Change(self.start(node), self._colon(node), filled.text(new).partition(":\n")[0])
        elif isinstance(new, ast.stmt):
            text = filled.text(new).replace("\n", "\n" + " " * node.col_offset)
            yield self._change(self.start(node), self.end(node), text)
        else:
            many = isinstance(new, ast.expr) and node.end_lineno > node.lineno
            yield self._change(self.start(node), self.end(node), filled.text(new), many or isinstance(new, LOOSE))

    def _colon(self, block: Any) -> int:
        """Where the first line of a block ends."""
        inside = {node for one in [*block.body, *getattr(block, "orelse", ())] for node in ast.walk(one)} | {block}
        return self.data.index(
            b":", max(self.end(n) for n in ast.walk(block) if n not in inside and hasattr(n, "end_lineno"))
        )


def _is_block(node: Any) -> bool:
    """Of a pattern: a statement with a block that stays."""
    return isinstance(getattr(node, "body", None), list) and len(node.body) == 1 and _is_dots(node.body[0])


def _else(block: Any) -> list[str]:
    return [ast.dump(one) for one in getattr(block, "orelse", ())]


def _alike(old: Any, new: Any) -> bool:
    """Whether two nodes of one class differ only in nodes within them that have places, and have as many."""
    if type(old) is not type(new):
        return False
    for field in old._fields:
        one, other = getattr(old, field, None), getattr(new, field, None)
        pairs = [one, other] if isinstance(one, list) and isinstance(other, list) else [[one], [other]]
        if len(pairs[0]) != len(pairs[1]):
            return False
        for a, b in zip(*pairs, strict=True):
            if not isinstance(a, ast.AST) or not isinstance(b, ast.AST):
                if a != b:
                    return False
            elif _is_dots(a) != _is_dots(b) or not (hasattr(a, "lineno") or _same(a, b) or _alike(a, b)):
                return False
    return True


def _same(old: ast.AST, new: ast.AST) -> bool:
    return ast.dump(old) == ast.dump(new)


class _Filled:
    """Code of the new side, with what a match found in place of names and `...`."""

    def __init__(self, old: list[Any], new: list[Any], match: Match) -> None:
        self.match = match
        pairs = zip(_dots(new), _dots(old), strict=False)  # the first one for the first one
        self.dots = {id(one): match.nodes[id(other)] for one, other in pairs}
        blanks = _blanks(new), _blanks(old)
        pairs = zip(*blanks, strict=True) if len(blanks[0]) == len(blanks[1]) else ()
        self.blanks = {id(one): match.nodes[id(other)] for one, other in pairs}

    def text(self, new: ast.AST) -> str:
        return ast.unparse(ast.fix_missing_locations(self._node(new)))

    def _node(self, node: Any) -> Any:
        if id(node) in self.blanks:
            return self.blanks[id(node)]
        if _is_name(node):
            if node.id not in self.match.names:
                raise EditError(f"edit: got {node.id}, which the pattern does not have; needed a name that it has")
            return self.match.names[node.id].node
        if not isinstance(node, ast.AST):
            return node
        values = ((field, getattr(node, field, None)) for field in node._fields)
        made = {field: self._nodes(value) if isinstance(value, list) else self._node(value) for field, value in values}
        if isinstance(node, ast.Call):  # `...` among the arguments may stand for keywords
            words = [one for one in made["args"] if isinstance(one, ast.keyword)]
            made["args"] = [one for one in made["args"] if one not in words]
            made["keywords"] = [*words, *made["keywords"]]
        return type(node)(**made)

    def _nodes(self, nodes: list[Any]) -> list[Any]:
        filled = (self.dots.get(id(one), []) if _is_dots(one) else [self._node(one)] for one in nodes)
        return [one for each in filled for one in each]


def _blanks(nodes: list[Any]) -> list[Any]:
    """Every `_` of a pattern, in its order."""
    every = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == "_"]
    return sorted(every, key=_start)


def _dots(nodes: list[Any]) -> list[Any]:
    """Every `...` of a pattern, in its order."""
    every = [one for node in nodes for one in ast.walk(node) if _is_dots(one)]
    within = [one.value for one in every if isinstance(one, ast.Expr)]
    return sorted((one for one in every if one not in within), key=_start)
