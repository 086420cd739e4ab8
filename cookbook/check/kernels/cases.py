"""Find the cases of a file: its table CHECKS, or one beside it; without one, the lines to write.

    CHECKS = {
        "gemm": {
            "function": gemm,                                   # a @cute.jit function, or an object that is called so
            "arguments": ["bf16[256,128]", "bf16[256,128]", "f32[256,256]", "stream"],
            "arch": "sm_90a",
            "computes": "c[m,n] = a[m,k] * b[n,k]",             # optional, by names of parameters
        },
    }

Words stand for tensors and streams (`tensors`); any other argument is handed on as it is. In place of `function`,
`build` is a callable without arguments that returns it. Optional are `keywords`, and `sizes`, numbers for extents that
words name. A file NAME_checks.py beside NAME.py may hold the table instead.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from cookbook.check.kernels.judging import judge
from cookbook.check.kernels.report import Report
from cookbook.check.kernels.tensors import Symbols, argument
from cookbook.check.subjects import load_file
from cookbook.simulate.trace import Trace, trace

__all__ = ["TABLE", "Case", "NoTable", "cases_of", "check", "traced"]

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TABLE, BESIDE = "CHECKS", "_checks"
FIELDS = ("function", "build", "arguments", "keywords", "arch", "sizes", "computes")


class NoTable(ValueError):
    """A file says nothing of what to check; the message is the lines to write."""


@dataclass(frozen=True)
class Case:
    """A function, what it is traced with, and what for."""

    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any] = ()
    arch: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    computes: str = ""


def traced(case: Case) -> Trace:
    """Return what CuTe traces of a case; errors are CuTe's, or a ValueError of words that say no tensor."""
    known: Symbols = {}
    given = [argument(value, known) for value in case.arguments]
    keywords = {name: argument(value, known) for name, value in case.keywords.items()}
    return trace(case.function, *given, arch=case.arch, **keywords)


def check(case: Case) -> Report:
    """Trace a case, follow it and judge it.

    Raises:
        ValueError: the case cannot be asked for: the message says which field, or what CuTe says.
    """
    if not case.arch:
        raise ValueError(f"{case.name}: arch: got none; needed a compile target such as sm_90a")
    try:
        found = traced(case)
    except ValueError:
        raise
    except Exception as error:
        first = " ".join(_COLOUR.sub("", str(error)).split())[:400] or type(error).__name__
        raise ValueError(f"{case.name}: got an error of CuTe's while it traced, {first}; needed a trace") from error
    return judge(found, case.name, case.arch, case.sizes, case.computes)


def cases_of(path: Path) -> list[Case]:
    """The cases of a file, of its table or the one beside it.

    Raises:
        NoTable: there is none.
        ValueError: a table is wrong; the message says where.
        NotLoaded: Python does not load a file.
    """
    beside = path.with_name(f"{path.stem}{BESIDE}.py")
    module = load_file(path)
    for file, holder in ((path, module), (beside, load_file(beside) if beside.is_file() else None)):
        table = getattr(holder, TABLE, None)
        if table is not None:
            return list(_cases(file.name, table))
    raise NoTable(_to_write(path, module))


def _cases(file: str, table: Any) -> Iterator[Case]:
    if not isinstance(table, Mapping) or not table:
        raise ValueError(f"{TABLE} of {file}: got {type(table).__name__}; needed a dict, a case by name")
    for name, row in table.items():
        where = f"{TABLE}[{name!r}] of {file}"
        if not isinstance(row, Mapping) or (unknown := [key for key in row if key not in FIELDS]):
            got = unknown[0] if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(f"{where}: got {got}; needed a dict of {', '.join(FIELDS)}")
        if ("function" in row) == ("build" in row):
            raise ValueError(f"{where}: got {'both' if 'build' in row else 'neither'}; needed function, or build")
        function = row["function"] if "function" in row else row["build"]()
        if not callable(function):
            raise ValueError(f"{where}: got a function of type {type(function).__name__}; needed a callable")
        rest = {key: value for key, value in row.items() if key not in ("function", "build")}
        yield Case(str(name), function, **rest)


# --- without a table ---------------------------------------------------------------------------------------------


def _to_write(path: Path, module: ModuleType) -> str:
    """The lines of a table, filled in as far as annotations tell."""
    found = list(_functions(module, path))
    if not found:
        return f"NAME: got {path.name}, in which no @cute.jit function is defined; needed one"
    lines = [f"NAME: got {path.name}, which has no {TABLE}; needed a table in it, or in {path.stem}{BESIDE}.py:", ""]
    lines.append(f"{TABLE} = {{")
    for name, function, how in found:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        lines.append(f'    "{name}": {{')
        lines.append(f"        {how},")
        lines.append(f'        "arguments": [{", ".join(map(_stands_for, parameters))}],')
        lines.append('        "arch": "sm_90a",')
        lines.append("    },")
    return "\n".join([*lines, "}"])


def _functions(module: ModuleType, path: Path) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """(name, function, the field of a table) of each @cute.jit function of a module that launches kernels."""
    for name, value in vars(module).items():
        if _is_jit(value) and _is_of(value, module):
            yield name, value, f'"function": {name}'
        elif inspect.isclass(value) and value.__module__ == module.__name__ and _is_jit(vars(value).get("__call__")):
            yield name, vars(value)["__call__"], f'"build": lambda: {name}(...)'


def _is_jit(value: Any) -> bool:
    """Return whether CuTe's decorator of host functions made it."""
    while hasattr(value, "__wrapped__") and not hasattr(value, "_decorator_kind"):
        value = value.__wrapped__
    return inspect.isfunction(value) and getattr(value, "_decorator_kind", "") == "jit"


def _is_of(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def _stands_for(parameter: inspect.Parameter) -> str:
    """Return what a parameter may be given, by its annotation."""
    text = str(getattr(parameter.annotation, "__name__", parameter.annotation))
    if parameter.default is not parameter.empty and "Tensor" not in text:
        return repr(parameter.default)
    if "Tensor" in text:
        return '"bf16[256,256]"'
    if "stream" in text.lower() or "stream" in parameter.name:
        return '"stream"'
    if any(kind in text for kind in ("Int", "int", "Uint")):
        return "1"
    if "Float" in text or text == "float":
        return "1.0"
    return "..."
