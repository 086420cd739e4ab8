"""Makes the docstrings' plain text safe for markdown: swizzles are not HTML tags, and examples are code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*)*", re.MULTILINE)
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def markdown(text: str) -> str:
    """`text` with `>>>` examples fenced and every `<` outside code that would open a tag escaped."""
    fenced = _EXAMPLE.sub(lambda m: f"{m['indent']}```pycon\n{m[0]}\n{m['indent']}```", text)
    parts = _CODE.split(fenced)
    return "".join(part if number % 2 else re.sub(r"<(?=[\w/!])", "&lt;", part) for number, part in enumerate(parts))


class Docstrings(griffe.Extension):
    """Applies `markdown` to every docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
