"""The tips and solutions that unfold below the exercises of a page."""

from __future__ import annotations

import re

from cookbook.check import exercises
from cookbook.recipe import catalog, cells, tasks

_UNFOLDS = re.compile(r'# <details markdown="1"><summary>([^<]*)</summary>\n#\n(.*?)\n#\n# </details>\n', re.DOTALL)
_WRITTEN = re.compile(r'<details markdown="1"><summary>([^<]*)</summary>\n\n(.*?)\n\n</details>', re.DOTALL)
_CODE = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


# Some ten seconds or more for an answer: a level follows a large kernel, or each of several variants.
LONG = (
    *(f"ampere/{name}_gemm" for name in ("smem", "wide_tile", "ldmatrix", "pipelined", "persistent")),
    *(f"hopper/{name}_gemm" for name in ("warp_specialized", "multicast", "pingpong", "overlapped_epilogue")),
    *(f"blackwell/{name}_gemm" for name in ("tma_tcgen05", "pipelined", "two_cta", "persistent_clc")),
)


def unfolding(name: str) -> list[tuple[str, str]]:
    """What unfolds on a page, in order: its title and its text."""
    source = catalog.find(name).file.read_text(encoding="utf-8")
    found = _UNFOLDS.findall(source)
    assert len(found) == source.count("<details") == source.count("</details>")
    own = [(title, re.sub(r"^# ?", "", text, flags=re.MULTILINE)) for title, text in found]
    of_rows = tasks.written_out(source, catalog.standalone_source(name)) if tasks.tasks(source) else []
    return own + [each for written in of_rows for each in _WRITTEN.findall(written.text)]


def solutions(name: str) -> list[str]:
    """The code of each solution of a page; a solution has one block of it, of a row the lines that are changed."""
    source = catalog.find(name).file.read_text(encoding="utf-8")
    if tasks.tasks(source):
        assert not cells.exercise_code(source)
        return list(tasks.solved(source, catalog.standalone_source(name)).values())
    found = [_CODE.findall(text) for title, text in unfolding(name) if title == "Solution"]
    assert [len(code) for code in found] == [1] * len(found)
    return [code for (code,) in found]


def has_some(name: str) -> bool:
    """Whether a page has exercises of its own: `as_begun` is not empty. Nothing is made for it."""
    source = catalog.find(name).file.read_text(encoding="utf-8")
    return bool(tasks.tasks(source) or cells.exercise_code(source))


def as_begun(name: str) -> str:
    """The code of a GEMM's exercises as its page has it; "" for a page whose module has its exercises."""
    return exercises.as_begun(name)


def copy_with(name: str, *code: str) -> str:
    """A copied file of a recipe with code at its end."""
    return "\n\n\n".join([catalog.standalone_source(name), *code])
