"""Where the command line writes: results to stdout, as rich shows them or as JSON, and messages to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["say", "show", "show_json"]


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
