"""Whatever a script or a test gives to CuTe, checked in passing: traced functions are followed and judged.

Without a GPU nothing is lowered: what `cute.compile` returns does nothing when it is called. With one, CuTe goes on as
it would. A kernel whose trace was found right before is not followed a second time: the hash of its trace, of its sizes
and of the checker is kept in the folder of `cookbook.recipe.cache`.
"""

from __future__ import annotations

import hashlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import cookbook
from cookbook.check.kernels.judging import judge
from cookbook.check.kernels.pretending import SMS, pretended_gpu
from cookbook.check.kernels.report import Report
from cookbook.recipe.cache import folder, put
from cookbook.settings import cute_settings
from cookbook.simulate import adapter
from cookbook.simulate.trace import Trace, read

__all__ = ["Watch", "run", "watching"]

CHECKER = ("simulate", "check/pipeline", "check/kernels", "check/banks.py", "banks.py", "access.py")
KEPT = "checked.txt"  # a hash a line


class Watch:
    """The reports of what was traced, and how many functions were known already."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.known = 0
        self._seen: set[str] = set()

    def saw(self, asked: adapter.Asked) -> None:
        """Check a function, unless an equal one was found right."""
        trace = read(asked)
        key = _hash(trace, asked.arch)
        if key in self._seen or key in _kept():
            self.known += key not in self._seen
            self._seen.add(key)
            return
        self._seen.add(key)
        self.reports.append(judge(trace, asked.name, asked.arch))
        if self.reports[-1].ok and not self.reports[-1].allowed:
            _keep(key)


@contextmanager
def watching(arch: str = "", dry: bool | None = None) -> Iterator[Watch]:
    """Check whatever CuTe traces meanwhile.

    Args:
        arch: the compile target of what names none; CuTe's own if left out.
        dry: nothing is lowered; if left out, so it is without a GPU.
    """
    if dry is None:
        import torch

        dry = not torch.cuda.is_available()
    found = Watch()
    settings: dict[str, Any] = {"arch": arch} if arch else {}
    lowers = adapter.dry() if dry else nullcontext()
    with cute_settings(lineinfo=True, **settings), lowers, adapter.watched(found.saw, copied=not dry):
        yield found


def run(script: Path, arguments: Sequence[str], arch: str = "", said: Callable[[str], None] = print) -> Watch:
    """Run a script as `python script.py arguments` does, and check what it gives to CuTe.

    Without a GPU one is pretended (`pretending`), for many a script refuses to begin without.

    Args:
        said: gets a line on how the script ended, if it did so by an error.
    """
    import torch

    dry = not torch.cuda.is_available()
    if dry:
        said(f"no GPU: a pretended one of {SMS} SMs, whose tensors are the CPU's; no kernel runs")
    before, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with watching(arch, dry) as found, pretended_gpu(arch) if dry else nullcontext():
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                if end.code not in (None, 0):
                    said(f"{script.name} ended with status {end.code}")
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                own = [frame for frame in frames if frame.filename == str(script)]
                last = [*frames[-1:], *own][-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                why = " ".join(str(error).split())[:200]
                what = " after its kernels were compiled" if found.reports or found.known else ""
                said(f"{script.name} ended at {where}{what} with {type(error).__name__}: {why}")
    finally:
        sys.argv, sys.path[:] = before, path
    return found


# --- what was found right before ---------------------------------------------------------------------------------


def _hash(trace: Trace, arch: str) -> str:
    numbered: dict[int, int] = {}  # symbols by the order in which they come

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, tuple):
            return tuple(map(plain, leaf))
        identity = getattr(leaf, "identity", None)
        return leaf if identity is None else (numbered.setdefault(identity, len(numbered)), leaf.divisor, leaf.name)

    given = [(one.name, plain(one.value), plain(one.shape), plain(one.stride)) for one in trace.arguments]
    text = f"{_checker()}\n{arch}\n{given}\n{trace}"
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _checker() -> str:
    """The hash of what follows and judges."""
    root = Path(cookbook.__file__).parent
    found = hashlib.sha256()
    for name in CHECKER:
        for file in sorted((root / name).rglob("*.py")) if (root / name).is_dir() else [root / name]:
            found.update(file.read_bytes())
    return found.hexdigest()


def _kept() -> set[str]:
    where = folder()
    with suppress(OSError):
        return set((where / KEPT).read_text().split()) if where else set()
    return set()


def _keep(key: str) -> None:
    if (where := folder()) is not None:
        put(where / KEPT, ("\n".join(sorted({*_kept(), key})) + "\n").encode())
