"""Lines of Python in messages: with the function that they are in, and in a notebook the cell."""

from __future__ import annotations

import ast
import linecache
import sys
from functools import lru_cache

__all__ = ["Line"]


class Line(int):
    """The number of a line of a file; as text, `118 of produce`, or `4 of produce in cell In[7]`. 0: of no line."""

    file: str

    def __new__(cls, number: int = 0, file: str = "") -> Line:
        made = super().__new__(cls, number)
        made.file = file
        return made

    def __str__(self) -> str:
        function, cell = self.function, _cell(self.file)
        return f"{int(self)}" + (f" of {function}" if function else "") + (f" in cell {cell}" if cell else "")

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def function(self) -> str:
        """The name of the innermost function around it; "" where there is none, or no source."""
        functions = _functions("".join(_source(self.file)))
        around = [(last - first, name) for first, last, name in functions if first <= self <= last]
        return min(around)[1] if around else ""

    @property
    def source(self) -> str:
        """The line itself, without its indentation; "" where there is no source."""
        lines = _source(self.file)
        return lines[self - 1].strip() if 0 < self <= len(lines) else ""


def _source(file: str) -> list[str]:
    linecache.checkcache(file)
    return linecache.getlines(file) if file else []


@lru_cache(maxsize=64)
def _functions(text: str) -> tuple[tuple[int, int, str], ...]:
    """(first line, last line, name) of each function in a text; none of one that is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return ()
    return tuple((n.lineno, n.end_lineno or n.lineno, n.name) for n in nodes if isinstance(n, ast.FunctionDef))


def _cell(file: str) -> str:
    """The cell of a notebook that a compiled file stands for, `In[7]`; "" of any other file."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    named = shell.compile.format_code_name(file) if shell else None
    return named[1] if named else ""
