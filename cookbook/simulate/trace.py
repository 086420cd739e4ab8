"""Trace a `@cute.jit` function with CuTe: operations, before anything is lowered.

Every barrier, copy and MMA that the Python asked for is one operation, with loops and branches still in place and the
line of Python it came from. `trace` takes any function with its arguments; what it returns holds nothing of CuTe's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cookbook.simulate import adapter
from cookbook.simulate.arguments import Argument
from cookbook.simulate.lines import Line

__all__ = ["Operation", "Region", "Trace", "read", "trace", "traced_by", "walk"]


@dataclass(eq=False)
class Operation:
    """One operation. Values are numbers; an attribute is an int, a float, a tuple, or a word."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    operand_types: tuple[str, ...]
    result_types: tuple[str, ...]
    attributes: dict[str, Any]
    line: Line  # 0 where there is none
    regions: list[Region] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute; `default` if the operation has none of that name."""
        return self.attributes.get(name, default)


@dataclass(eq=False)
class Region:
    """The block of a loop, of a branch or of a function: structured control flow has one block a region."""

    arguments: tuple[int, ...] = ()
    argument_types: tuple[str, ...] = ()
    operations: list[Operation] = field(default_factory=list)


@dataclass(eq=False)
class Trace:
    """The kernels, and the host function that launches them."""

    top: Region
    arguments: tuple[Argument, ...] = ()  # of the host function
    name: str = ""  # of the host function

    def __str__(self) -> str:
        """One line an operation, without the line of Python: equal for traces that do the same."""
        told = ((op.results, op.name, op.operands, op.attributes, op.operand_types, op.result_types) for op in self)
        return "\n".join(map(str, told))

    def __iter__(self) -> Iterator[Operation]:
        return walk(self.top)

    def find(self, name: str) -> list[Operation]:
        """All operations of one name, in order."""
        return [operation for operation in self if operation.name == name]

    @property
    def host(self) -> Region:
        """The host function."""
        return self.find("func.func")[0].regions[0]

    def kernel(self, name: str) -> Region:
        """The body of a kernel."""
        kernels = self.find("cuda.kernel")
        return next((k for k in kernels if k.get("sym_name") == name), kernels[0]).regions[0]


def walk(region: Region) -> Iterator[Operation]:
    """All operations of a region and of the regions within, each before what it holds."""
    for operation in region.operations:
        yield operation
        for inner in operation.regions:
            yield from walk(inner)


def trace(function: Callable[..., Any], *args: Any, arch: str, **kwargs: Any) -> Trace:
    """Trace a `@cute.jit` function with its arguments, of which fake tensors and pointers are enough.

    Args:
        arch: the compile target, `"sm_90a"`.
        **kwargs: keyword arguments of the function.
    """
    import cutlass.cute as cute

    return traced_by(lambda: cute.compile(function, *args, options=f"--gpu-arch {arch}", **kwargs))


def traced_by(compiles: Callable[[], object]) -> Trace:
    """The trace of what a function compiles; nothing is lowered.

    Raises:
        RuntimeError: it compiles nothing, or more than one thing.
    """
    found = adapter.modules(compiles)
    if len(found) != 1:
        none = ": functions of cute.experimental have a tracer of their own, and are not followed" * (not found)
        raise RuntimeError(f"got {len(found)} traces of one compile; needed 1, of a @cute.jit function{none}")
    return read(found[0])


def read(asked: adapter.Asked) -> Trace:
    """The trace of a function that CuTe traced."""
    with adapter.bare_values(asked.module):
        top = _region(asked.module.operation.regions[0], adapter.Reader())
    return Trace(top, asked.arguments, asked.name)


def _region(of: Any, reader: adapter.Reader) -> Region:
    """The one block of a region."""
    block = reader.block(of)
    if block is None:
        return Region()
    operations: list[Operation] = []
    made: dict[int, Operation] = {}  # in this block, by result
    for op in reader.operations(block):
        one = Operation(
            name=op.name,
            **reader.values(op),
            attributes=reader.attributes(op),
            line=Line(*reader.line(op.location)),
            regions=[_region(inner, reader) for inner in op.regions],
        )
        if one.name.startswith("scf.") and one.regions:
            one.line = _line_of(one, made)
        if one.name == "llvm.inline_asm" and one.line.source.startswith("@"):  # the host function's first line
            one.line = next((each.line for each in reversed(operations) if _is_of_step(each)), one.line)
        made.update(dict.fromkeys(one.results, one))
        operations.append(one)
    return Region(*reader.arguments(block), operations)


def _is_of_step(op: Operation) -> bool:
    """Return whether an operation's line is one of its own."""
    return bool(op.line) and op.name != "arith.constant" and not op.line.source.startswith("@")


def _line_of(op: Operation, made: dict[int, Operation]) -> Line:
    """Return where a branch or loop stands, which CuTe says of none: where its condition or bound does, or its first
    step."""
    computed = (made[value] for value in op.operands if value in made and made[value].name != "arith.constant")
    inside = (each for region in op.regions for each in region.operations if not each.name.startswith("scf.yield"))
    lines = (each.line for each in (*computed, *inside) if each.line and each.name != "arith.constant")
    return next(lines, op.line)
