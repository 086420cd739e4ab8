"""Say in a line what ended a level: an error of ours as it is, others with what could not be done for them."""

from __future__ import annotations

import re

from cookbook.check.pipeline import CannotFollow

__all__ = ["stopped"]


def stopped(level: str, error: BaseException) -> str:
    """Return what ended a level, on one line: our own errors as they are, others with what could not be done for
    them."""
    text = _COLOURS.sub("", str(error)).strip()
    if isinstance(error, CannotFollow):
        return f"the kernel cannot be followed: {text}"
    if isinstance(error, (TypeError, ValueError)) and ": got " in text and "; needed " in text:
        return text
    if found := _DIAGNOSTIC.search(text):
        return f"{_COULD_NOT.get(level, level)}: {found['said']} ({found['file']}:{found['line']})"
    place = _PLACE.search(text)
    where = f" ({place[1]})" if place else ""
    if found := _VERIFIED.search(text):
        return f"{_COULD_NOT.get(level, level)}: {' '.join(found[1].split())}{where}"
    first = next(iter(text.splitlines()), "").removeprefix("error: ")
    return f"{_COULD_NOT.get(level, level)}: {type(error).__name__}: {first}{where}"


_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_PLACE = re.compile(r"--> \S*?([^/\s]+\.py:\d+)")  # in what CuTe says of the user's code
# Of an operation that MLIR refuses: error: "code"("file.py":372:16): 'cute.gemm' op expects ...
_DIAGNOSTIC = re.compile(r'^error: .*\("[^"]*?(?P<file>[^/"]+\.py)":(?P<line>\d+):\d+\): (?P<said>.+)$', re.MULTILINE)
_VERIFIED = re.compile(r"^ *error: IR verification failed: (.+?)(?=\n *suggestion:|\Z)", re.MULTILINE | re.DOTALL)
_COULD_NOT = {
    "layout": "the layouts cannot be evaluated",
    "model": "the layouts cannot be simulated",
    "product": "the kernel cannot be traced",
    "host": "matmul cannot be looked at",
    "pipeline": "the kernel cannot be traced",
    "banks": "the kernel cannot be traced",
    "compiled": "the kernel does not compile",
}
