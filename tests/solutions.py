"""The tips and solutions that unfold below the exercises of a page."""

from __future__ import annotations

import re

from cookbook.recipe import catalog, cells

_UNFOLDS = re.compile(r'# <details markdown="1"><summary>([^<]*)</summary>\n#\n(.*?)\n#\n# </details>\n', re.DOTALL)
_CODE = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def unfolding(name: str) -> list[tuple[str, str]]:
    """What unfolds on a page, in order: its title and its text."""
    source = catalog.find(name).file.read_text(encoding="utf-8")
    found = _UNFOLDS.findall(source)
    assert len(found) == source.count("<details") == source.count("</details>")
    return [(title, re.sub(r"^# ?", "", text, flags=re.MULTILINE)) for title, text in found]


def solutions(name: str) -> list[str]:
    """The code of each solution of a page; a solution has one block of it."""
    found = [_CODE.findall(text) for title, text in unfolding(name) if title == "Solution"]
    assert [len(code) for code in found] == [1] * len(found)
    return [code for (code,) in found]


def as_begun(name: str) -> str:
    """The code of a GEMM's exercises as its page has it; "" for a page whose module has its exercises."""
    return cells.exercise_code(catalog.find(name).file.read_text(encoding="utf-8"))


def copy_with(name: str, *code: str) -> str:
    """A copied file of a recipe with code at its end."""
    return "\n\n\n".join([catalog.standalone_source(name), *code])
