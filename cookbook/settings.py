"""CuTe's own settings, for as long as something is traced or compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["cute_settings"]


@contextmanager
def cute_settings(**wanted: Any) -> Iterator[None]:
    """Change what the environment variables CUTE_DSL_* set, which CuTe reads once: `dryrun=True` and the like.

    They are of the whole process, so no other thread compiles meanwhile.
    """
    import cutlass
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    compiling = cutlass.__dict__.setdefault("_one_compile_at_a_time", threading.RLock())  # as every recipe's host side
    with compiling:
        before = dict(vars(settings))
        try:
            for name, value in wanted.items():
                setattr(settings, name, value)
            yield
        finally:
            vars(settings).clear()
            vars(settings).update(before)
