"""The lines of Python that CuTe's tracer notes: looked up fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any
from unittest.mock import patch

__all__ = ["read_once"]


@contextmanager
def read_once() -> Iterator[None]:
    """CuTe reads the table of a function's lines once, and not from its start for each operation.

    That takes a third of the time of a trace.
    """
    from cutlass._mlir_helpers import op

    tracer: Any = op
    read: Callable[[CodeType], Iterable[Any]] | None = getattr(tracer, "_CO_POSITIONS", None)
    if read is None:  # another version of CuTe or of Python, which reads no such table
        yield
        return
    known: dict[int, tuple[CodeType, list[Any]]] = {}  # by `id`, and with the code: no other gets its `id`

    def positions(code: CodeType) -> list[Any]:
        if id(code) not in known:
            known[id(code)] = code, list(read(code))
        return known[id(code)][1]

    own = cache(getattr(tracer, "_is_framework_module", bool))
    with patch.multiple(tracer, _CO_POSITIONS=positions, _is_framework_module=own):
        yield
