"""The parts of CuTe that are not its public interface: what a trace is made of. Tried on CuTe DSL 4.8.1.

Everything else in this package works on what `trace` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from cookbook.settings import cute_settings
from cookbook.simulate import positions

__all__ = ["Reader", "bare_values", "modules"]

PASSES = "builtin.module(canonicalize,cse)"  # constants folded, equal expressions merged: nothing is lowered


def modules(compiles: Callable[[], object]) -> list[Any]:
    """What CuTe traces while a function compiles: an `ir.Module` each, cleaned up."""
    from cutlass._mlir import passmanager
    from cutlass.cutlass_dsl import CuTeDSL

    tracer: Any = CuTeDSL._get_dsl()
    found: list[Any] = []
    build = tracer.build_module

    def kept(module: Any, name: str) -> Any:
        found.append(build(module, name))
        return found[-1]

    with cute_settings(dryrun=True, lineinfo=True), positions.read_once():
        tracer.build_module = kept
        try:
            compiles()
        finally:
            del tracer.build_module
    passes: Any = passmanager
    for module in found:
        with module.context:
            passes.PassManager.parse(PASSES).run(module.operation)
    return found


class Reader:
    """Reads operations off an `ir.Module`, once.

    CuTe makes a tensor of its own of a value that is asked for, and emits operations to do so: here values stay as they
    are. They are told apart by where they lie, for CuTe's `==` emits a comparison.
    """

    def __init__(self) -> None:
        from cutlass._mlir import ir

        self.ir: Any = ir
        self.types: dict[Any, str] = {}
        self.numbers: dict[int, int] = {}

    def block(self, of: Any) -> Any:
        """The block of a region; None of one without."""
        return next(iter(of.blocks), None)

    def arguments(self, block: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Numbers and types of a block's arguments."""
        return self._values(block.arguments)

    def operations(self, block: Any) -> Iterator[Any]:
        """The operations of a block."""
        return (each.operation for each in block.operations)

    def values(self, op: Any) -> dict[str, Any]:
        """Numbers and types of operands and results, as `trace.Operation` has them."""
        (operands, given), (results, found) = self._values(op.operands), self._values(op.results)
        return {"operands": operands, "results": results, "operand_types": given, "result_types": found}

    def _values(self, values: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
        bare = [value if isinstance(value, self.ir.Value) else value.value for value in values]
        numbers = [self.numbers.setdefault(self.ir.Value.__hash__(one), len(self.numbers)) for one in bare]
        return tuple(numbers), tuple(self._type(self.ir.Value.type.__get__(one)) for one in bare)

    def _type(self, one: Any) -> str:
        if one not in self.types:
            self.types[one] = str(one)
        return self.types[one]

    def attributes(self, op: Any) -> dict[str, Any]:
        """Attributes by name: numbers, words, tuples; one of an enumeration as its word."""
        named = ((one if isinstance(one, str) else one.name) for one in op.attributes)
        return {name: self._attribute(op.attributes[name]) for name in named}

    def _attribute(self, one: Any) -> Any:
        ir = self.ir
        if isinstance(one, (ir.IntegerAttr, ir.BoolAttr)):
            return int(one.value)
        if isinstance(one, (ir.FloatAttr, ir.StringAttr)):
            return one.value
        if isinstance(one, (ir.DenseI32ArrayAttr, ir.DenseI64ArrayAttr, ir.SymbolRefAttr)):
            return tuple(one.value) if isinstance(one, ir.SymbolRefAttr) else tuple(one)
        if isinstance(one, ir.DenseElementsAttr) and one.is_splat:
            return self._attribute(one.get_splat_value())
        text = str(one)
        return text.rpartition("<")[2].rstrip(">").rpartition(" ")[2] if text.startswith("#") else text

    def line(self, location: Any) -> tuple[int, str]:
        """Number and file of the line of Python, innermost of a call; (0, "") where there is none."""
        while not location.is_a_file():
            if location.is_a_callsite():
                location = location.callee
            elif location.is_a_name():
                location = location.child_loc
            else:
                return 0, ""
        return (0, "") if location.filename == "-" else (location.start_line, location.filename)


@contextmanager
def bare_values(module: Any) -> Iterator[None]:
    """CuTe's tensors are read as plain values, and no operation is emitted to make one."""
    from cutlass._mlir import ir
    from cutlass.cute.tensor import _Tensor

    cute: Any = import_module("cutlass._mlir.dialects.cute")  # typed by no stub
    cute_nvgpu: Any = import_module("cutlass._mlir.dialects.cute_nvgpu")
    kinds = (cute.MemRefType, cute.CoordTensorType, cute_nvgpu.SmemDescViewType)
    register: Any = ir.register_value_caster
    for kind in kinds:
        register(kind.get_static_typeid(), replace=True)(lambda value: value)
    mlir: Any = ir
    try:
        with module.context, mlir.Location.unknown():
            yield
    finally:
        for kind in kinds:
            register(kind.get_static_typeid(), replace=True)(_Tensor)
