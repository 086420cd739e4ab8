"""The parts of CuTe that are not its public interface: what a trace is made of. Tried on CuTe DSL 4.8.1.

Everything else in this package works on what `trace` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from typing import Any

from cookbook.settings import cute_settings
from cookbook.simulate import positions
from cookbook.simulate.arguments import Argument, Symbol

__all__ = ["Asked", "NotRun", "Reader", "bare_values", "dry", "modules", "watched"]

PASSES = "builtin.module(canonicalize,cse)"  # constants folded, equal expressions merged: nothing is lowered


@dataclass
class Asked:
    """One function that CuTe traced: its module, cleaned up, and what it was given."""

    module: Any
    name: str  # of the function
    arguments: tuple[Argument, ...]
    arch: str = ""  # the compile target


def modules(compiles: Callable[[], object]) -> list[Asked]:
    """Return what CuTe traces while a function compiles; nothing is lowered."""
    found: list[Asked] = []
    with cute_settings(dryrun=True, lineinfo=True), watched(found.append):
        compiles()
    return found


class NotRun:
    """In place of a compiled function where nothing was lowered: a call does nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


@contextmanager
def dry() -> Iterator[None]:
    """Meanwhile nothing is lowered or launched: functions are traced, and `cute.compile` returns a `NotRun`."""
    from cutlass.base_dsl.compiler import CompileCallable

    compiling: Any = CompileCallable
    compile_it = compiling._compile

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = compile_it(self, *args, **kwargs)
        return NotRun() if found is None else found

    with cute_settings(dryrun=True, lineinfo=True):
        compiling._compile = traced
        try:
            yield
        finally:
            compiling._compile = compile_it


@contextmanager
def watched(seen: Callable[[Asked], None], copied: bool = False) -> Iterator[None]:
    """Each function that CuTe traces meanwhile is shown to `seen`; CuTe's settings are left as they are.

    Args:
        seen: is called before anything is lowered, where the traced module's context is current.
        copied: what is seen is a copy, for CuTe goes on with the module.
    """
    from cutlass._mlir import passmanager
    from cutlass.cutlass_dsl import CuTeDSL

    tracer: Any = CuTeDSL._get_dsl()
    build, convert = tracer.build_module, tracer._generate_jit_func_args_for_known_types
    given: list[Argument] = []
    called: list[str] = [""]
    passes: Any = passmanager

    def kept(function: Any, value: Any, name: str, kind: Any, number: int, *, is_host: bool = True) -> Any:
        if is_host:
            called[0] = function.__qualname__
            converted = convert(function, value, name, kind, number, is_host=is_host)
            given.extend(_arguments(name, value, converted[1]))
            return converted
        return convert(function, value, name, kind, number, is_host=is_host)

    def built(module: Any, name: str) -> Any:
        made = build(module, name)
        shown: Any = _copy_of(made) if copied else made
        with shown.context:
            passes.PassManager.parse(PASSES).run(shown.operation)
            seen(Asked(shown, called[0] or name, tuple(given), tracer.get_arch_enum().to_string()))
        given.clear()
        return made

    with positions.read_once():
        tracer.build_module, tracer._generate_jit_func_args_for_known_types = built, kept
        try:
            yield
        finally:
            del tracer.build_module, tracer._generate_jit_func_args_for_known_types


def _copy_of(module: Any) -> Any:
    from cutlass._mlir import ir

    of: Any = ir
    return of.Module.parse(module.operation.get_asm(enable_debug_info=True), module.context)


def _arguments(name: str, value: Any, types: Any) -> Iterator[Argument]:
    """The parameters of the traced function that one of Python's becomes: none of a constant.

    Args:
        name: of the parameter.
        value: what it was given.
        types: of the parameters, if CuTe knows the kind of value; empty if the value says them; None of a constant.
    """
    from cutlass.base_dsl.runtime.jit_arg_adapters import JitArgAdapterRegistry

    if types is None:
        return
    if types:
        yield from [_argument(name, value)] * len(types)
        return
    adapter: Any = JitArgAdapterRegistry.get_registered_adapter(value)
    yield from _parts(name, adapter(value) if adapter else value)


def _parts(name: str, value: Any) -> Iterator[Argument]:
    """A value of several, part by part."""
    from cutlass.base_dsl.typing import get_mlir_types

    count = len(get_mlir_types(value))
    if not count:
        return
    if isinstance(value, (tuple, list)):
        named = getattr(value, "_fields", None) or [f"[{n}]" for n in range(len(value))]
        parts: Any = zip(named, value, strict=True)
    elif hasattr(value, "element_type") or (count == 1 and not is_dataclass(value) and not hasattr(value, "_arg")):
        yield from [_argument(name, value)] * count
        return
    else:
        parts = vars(value).items()
    found = [each for part, inner in parts for each in _parts(_within(name, part), inner)]
    yield from found if len(found) == count else [Argument(name)] * count


def _within(name: str, part: str) -> str:
    return name if part == "_arg" else name + (part if part.startswith("[") else f".{part}")


def _argument(name: str, value: Any) -> Argument:
    if hasattr(value, "element_type") and hasattr(value, "shape"):
        return Argument(name, None, _tree(value.shape), _tree(value.stride), getattr(value, "numbers", ()))
    value = getattr(value, "value", value)
    return Argument(name, _leaf(value) if isinstance(value, (int, float)) or hasattr(value, "divisibility") else None)


def _tree(value: Any) -> Any:
    return tuple(map(_tree, value)) if isinstance(value, (tuple, list)) else _leaf(value)


def _leaf(value: Any) -> Any:
    if hasattr(value, "divisibility"):
        return Symbol(id(value), int(value.divisibility), str(getattr(value, "symbol", None) or ""))
    return float(value) if isinstance(value, float) else int(value)


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
