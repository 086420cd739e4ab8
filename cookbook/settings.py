"""CuTe's own settings, for as long as something is traced or compiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["cute_settings"]


@contextmanager
def cute_settings(**wanted: Any) -> Iterator[None]:
    """Change what the environment variables CUTE_DSL_* set, which CuTe reads once: `dryrun=True` and the like.

    They are of the whole process, so no other thread compiles meanwhile.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    shared = sys.modules.setdefault("one_cute_compile_at_a_time", ModuleType("one_cute_compile_at_a_time"))
    with vars(shared).setdefault("lock", threading.RLock()):  # that of every recipe's host side
        before = dict(vars(settings))
        try:
            for name, value in wanted.items():
                setattr(settings, name, value)
            yield
        finally:
            vars(settings).clear()
            vars(settings).update(before)
