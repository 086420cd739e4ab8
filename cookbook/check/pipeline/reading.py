"""Reads MLIR in its generic form: operations with operands, results, regions, and the line of Python they came from.

The grammar is regular, one operation a line: `%r = "dialect.name"(%a, %b) <{properties}> ({regions}) {attributes} :
(types) -> types loc(...)`. Nothing here knows what an operation means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cookbook.check.pipeline.lines import Line

_OPERATION = re.compile(r'^(?:(?P<results>%[\w]+)(?::(?P<count>\d+))? = )?"(?P<name>[\w.]+)"\((?P<operands>[^)]*)\)')
_ALIAS = re.compile(r"^(![\w.]+) = (.*)$")
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FILE = re.compile(r'^"(?P<file>[^"]*)":(?P<line>\d+):\d+$')
_INDIRECT = re.compile(r'^"(?:[^"\\]|\\.)*"\((?P<inner>.*)\)$')


@dataclass
class Operation:
    """One operation. Values are named as in the text: `%12`, or `%12#1` for one of several results."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    operand_types: tuple[str, ...] = ()
    result_types: tuple[str, ...] = ()
    properties: str = ""  # the text between <{ and }>, and of attributes between { and }
    regions: list[Region] = field(default_factory=list)
    line: Line = field(default_factory=Line)  # of the recipe's file; 0 where there is none

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer property: `group = 1 : i32`.

        Raises:
            KeyError: the operation has no such property, and there is no default.
        """
        found = re.search(rf"\b{key} = (-?\d+|true|false)", self.properties)
        if found is None and default is None:
            raise KeyError(f"{self.name} has no property {key}: {self.properties}")
        if found is None:
            return int(default or 0)
        return int(found[1] == "true") if found[1] in ("true", "false") else int(found[1])

    def has(self, words: str) -> bool:
        """Whether the properties hold these words."""
        return re.search(rf"\b{re.escape(words)}", self.properties) is not None


@dataclass
class Region:
    """The block of a loop, of a branch or of a function: structured control flow has one block a region."""

    arguments: tuple[str, ...] = ()
    argument_types: tuple[str, ...] = ()
    operations: list[Operation] = field(default_factory=list)


class Module:
    """What was traced: the kernel, and the host function that launches it."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.types: dict[str, str] = {}
        self.locations: dict[str, str] = {}
        for line in self.lines:
            if alias := _ALIAS.match(line):
                self.types[alias[1]] = alias[2]
            elif location := _LOCATION.match(line):
                self.locations[location[1]] = location[2]
        self.top = self._parse()

    def find(self, name: str) -> list[Operation]:
        """All operations of one name, in order."""
        return [operation for operation in walk(self.top) if operation.name == name]

    def _parse(self) -> Region:
        top = Region()
        regions: list[Region] = [top]  # open ones, innermost last
        owners: list[Operation] = []  # whose regions they are
        for text in self.lines:
            line = text.strip()
            if not line or line[0] in "!#" or line.startswith("{-#") or line.startswith("#-}"):
                continue
            if line.startswith("^"):
                self._block(regions[-1], line)
            elif line.startswith("}, {"):
                regions[-1] = Region()
                owners[-1].regions.append(regions[-1])
            elif line.startswith("})"):
                regions.pop()
                self._finish(owners.pop(), line[2:])
            else:
                self._operation(line, regions, owners)
        return top

    def _operation(self, line: str, regions: list[Region], owners: list[Operation]) -> None:
        head = _OPERATION.match(line)
        if head is None:
            raise ValueError(f"not an operation in MLIR's generic form: {line[:200]}")
        operands = tuple(head["operands"].split(", ")) if head["operands"] else ()
        operation = Operation(head["name"], operands, _names(head["results"], head["count"]))
        regions[-1].operations.append(operation)
        rest = line[head.end() :]
        if rest.endswith("({"):
            operation.properties = rest[:-2].strip()
            regions.append(Region())
            owners.append(operation)
            operation.regions.append(regions[-1])
        else:
            self._finish(operation, rest)

    def _finish(self, operation: Operation, rest: str) -> None:
        """Properties, types and location: what follows the operands, or the last region."""
        properties, _, signature = _cut(rest, " : ")
        operation.properties = f"{operation.properties} {properties}".strip()
        signature, _, location = _cut(signature, " loc(")
        operation.line = self._line(location.rstrip()[:-1])
        inputs, _, outputs = _cut(signature, " -> ")
        operation.operand_types = self._types(inputs)
        operation.result_types = self._types(outputs)

    def _block(self, region: Region, line: str) -> None:
        inside = line[line.index("(") + 1 : line.rindex(")")]
        parts = [part.partition(": ") for part in _split(inside)]
        region.arguments = tuple(name for name, _, _ in parts)
        region.argument_types = tuple(self._type(_cut(kind, " loc(")[0]) for _, _, kind in parts)

    def _types(self, text: str) -> tuple[str, ...]:
        text = text.strip()
        if text.startswith("("):
            text = text[1:-1]
        return tuple(self._type(part) for part in _split(text))

    def _type(self, text: str) -> str:
        return self.types.get(text.strip(), text.strip())

    def _line(self, location: str) -> Line:
        """The line of Python: the innermost place of a call that is in a file."""
        for _ in range(64):
            location = self.locations.get(location, location)
            if place := _FILE.match(location):
                return Line(0) if place["file"] == "-" else Line(int(place["line"]), place["file"])
            if inner := _INDIRECT.match(location):
                location = inner["inner"]
            elif location.startswith("callsite("):
                location = _cut(location[len("callsite(") :], " at ")[0]
            else:
                return Line(0)
        return Line(0)


def walk(region: Region) -> Iterator[Operation]:
    """All operations of a region and of the regions within, each before what it holds."""
    for operation in region.operations:
        yield operation
        for inner in operation.regions:
            yield from walk(inner)


def _names(name: str | None, count: str | None) -> tuple[str, ...]:
    if name is None:
        return ()
    return (name,) if count is None else tuple(f"{name}#{i}" for i in range(int(count)))


def _cut(text: str, mark: str) -> tuple[str, str, str]:
    """Like `text.partition(mark)`, at the first `mark` outside of brackets and quotes."""
    for position in _outside(text):
        if text.startswith(mark, position):
            return text[:position], mark, text[position + len(mark) :]
    return text, "", ""


def _split(text: str) -> list[str]:
    """The parts between the commas outside of brackets and quotes."""
    parts, start = [], 0
    for position in _outside(text):
        if text[position] == ",":
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _outside(text: str) -> Iterator[int]:
    """Positions outside of brackets and quotes; the arrow's `>` is no bracket."""
    depth, quoted, skip = 0, False, False
    for position, sign in enumerate(text):
        if skip:
            skip = False
            continue
        if quoted:
            skip = sign == "\\"
            quoted = sign != '"'
            continue
        if depth == 0:
            yield position
        if sign == '"':
            quoted = True
        elif sign in "(<[{":
            depth += 1
        elif sign in ")]}" or (sign == ">" and text[position - 1] != "-"):
            depth -= 1
