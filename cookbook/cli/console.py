"""Where the command line writes: results to stdout, as rich shows them or as JSON, and messages to stderr.

A reader that stops reading, as `head`, changes no exit status: what is written after that is dropped.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress
from typing import Any

__all__ = ["NotWritten", "open_streams", "say", "show", "show_json"]


class NotWritten(OSError):
    """Results could not be written, and not because their reader stopped."""


class _Stream(io.FileIO):
    """Standard output, or standard error, whose losses are no error."""

    lost = False  # once something was not written, nothing is

    def write(self, data: Any) -> int:
        """Write, or drop what nobody reads."""
        if not self.lost:
            try:
                return super().write(data) or 0
            except BrokenPipeError:
                self.lost = True
            except OSError as error:
                self.lost = True
                if self.fileno() == 1:
                    raise NotWritten(*error.args) from None
        return len(memoryview(data))


def open_streams() -> None:
    """Put `_Stream`s in place of this process's standard output and error."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        if old is None:  # closed by the shell: >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 as long as the process
            continue
        with suppress(OSError):
            old.flush()
        raw = io.BufferedWriter(_Stream(number, "w", closefd=False))
        lines = number == 2 or old.isatty()
        setattr(sys, name, io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=lines))


def show(renderable: Any) -> None:
    """A string as it is, a table or another rich renderable, on stdout."""
    from rich.console import Console
    from rich.text import Text

    console = Console(emoji=False)
    if not console.is_terminal:  # a file or a pipe: do not fold lines at 80 columns
        console = Console(width=160, emoji=False)
    wraps = isinstance(renderable, (str, Text))  # the terminal does, so that a line can be copied
    console.print(renderable, soft_wrap=wraps, markup=not isinstance(renderable, str))


def show_json(value: Any) -> None:
    """JSON on stdout; what JSON does not know becomes its string."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def say(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(text + "\n")
