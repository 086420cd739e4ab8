"""Exercises that are one row each: a definition of the kernel with a planted fault, or with lines left out.

The rows stand in a cell of the lab tagged `tasks`, as the dict `TASKS`: by the name of the function to write, the
fields of a `Task`. A notebook has in place of that cell what a reader works in: task, function, tips, solution.
"""

from __future__ import annotations

import ast
import textwrap
from functools import lru_cache
from typing import NamedTuple

from cookbook.recipe import cells

__all__ = ["TASKS", "Task", "Written", "begun", "solved", "tasks", "written_out"]

TASKS = "tasks"  # the tag of the cell
OPEN = "raise NotImplementedError"
_TAGS = ("lab", "open", "exercise")
_TITLES = {True: "Finish it", False: "Find the bug"}  # by whether lines are left out


class Task(NamedTuple):
    """A row: what a reader finds in a definition, and what is said of it."""

    of: str  # the definition
    at: str  # lines that stand in it once
    shown: str  # what the exercise has in their place: a fault, or OPEN
    task: str  # what is asked, or what one might say for the fault
    tips: tuple[str, ...]
    why: str  # above the solution
    right: str = ""  # what the solution has in place of `at`, where that is no solution
    asked: tuple[tuple, ...] = ()  # arguments of a definition of the host: the solution's results judge, not the levels

    @property
    def title(self) -> str:
        return _TITLES[OPEN in self.shown]


class Written(NamedTuple):
    """A cell of a notebook."""

    kind: str  # "code" or "markdown"
    text: str
    tags: tuple[str, ...]


def tasks(source: str) -> dict[str, Task]:
    """The rows of a recipe's text, by the name of the function to write.

    Raises:
        ValueError: the cell is not a dict of literals, or a row has other fields.
    """
    lines = source.splitlines()
    found: dict[str, Task] = {}
    for cell in cells.cells(source):
        if TASKS in cell.tags:
            text = "\n".join(lines[cell.start + 1 : cell.stop])
            try:
                (node,) = ast.parse(text).body
                if not isinstance(node, ast.Assign):
                    raise TypeError(type(node).__name__)
                given = ast.literal_eval(node.value)
                found |= {name: Task(*fields) for name, fields in given.items()}
            except (ValueError, TypeError, AttributeError):
                raise ValueError(f"TASKS: got {text[:60]!r}; needed a dict of rows, all literals") from None
    return found


def begun(source: str, module: str) -> dict[str, str]:
    """The code of each function as the reader finds it.

    Args:
        source: the recipe's text.
        module: the recipe as one file, which has the definitions.

    Raises:
        ValueError: a row is wrong, names no definition, or `at` does not stand in it once.
    """
    found = tasks(source)
    return {name: _function(name, task, number, module, task.shown) for number, name, task in _numbered(source, found)}


def solved(source: str, module: str) -> dict[str, str]:
    """The code of each function as its solution has it: as `begun`."""
    found = tasks(source)
    return {
        name: _function(name, task, number, module, task.right or task.at)
        for number, name, task in _numbered(source, found)
    }


def written_out(source: str, module: str) -> list[Written]:
    """The cells that a notebook has in place of the rows: as `begun`."""
    made, code = [], begun(source, module)
    for name, task in tasks(source).items():
        tips = [_unfolds(f"Tip {place}", tip) for place, tip in enumerate(task.tips, start=1)]
        solution = _unfolds("Solution", f"{task.why}\n\n```python\n{task.right or task.at}\n```")
        made += [
            Written("markdown", f"**{task.title}.** {task.task}", ("lab",)),
            Written("code", code[name], _TAGS),
            Written("markdown", "\n\n".join([*tips, solution]), ("lab",)),
        ]
    return made


def _numbered(source: str, found: dict[str, Task]) -> list[tuple[int, str, Task]]:
    before = cells.exercise_code(source).count('"""Exercise ')
    return [(number, name, task) for number, (name, task) in enumerate(found.items(), start=before + 1)]


def _function(name: str, task: Task, number: int, module: str, text: str) -> str:
    found = [n for n in _parsed(module).body if isinstance(n, ast.FunctionDef) and n.name == task.of]
    if not found:
        raise ValueError(f"TASKS: got {task.of!r} in the row {name}; needed a function of the recipe")
    node, lines = found[-1], module.splitlines()
    first = min(each.lineno for each in (node, *node.decorator_list))
    body = node.body[1:] if ast.get_docstring(node) else node.body
    head = "\n".join(lines[first - 1 : node.body[0].lineno - 1]).replace(f"def {task.of}(", f"def {name}(", 1)
    rest = "\n".join(lines[body[0].lineno - 1 : node.end_lineno])
    if rest.count(task.at) != 1:
        raise ValueError(f"TASKS: got {rest.count(task.at)} places in {task.of} for the row {name}; needed one")
    said = _docstring(f"Exercise {number}, {task.title.lower()}: as `{task.of}`.", task.task)
    return "\n".join([head, said, rest.replace(task.at, text)])


def _docstring(line: str, task: str) -> str:
    """Return the docstring of a function to write: a file of exercises has no other place for the task."""
    rest = textwrap.wrap(task.replace("\\", "\\\\"), 116)
    return textwrap.indent("\n".join([f'"""{line}', "", *rest, '"""']), "    ", lambda each: bool(each.strip()))


@lru_cache(maxsize=8)
def _parsed(module: str) -> ast.Module:
    """A recipe as one file; each of its rows asks for it."""
    return ast.parse(module)


def _unfolds(title: str, text: str) -> str:
    return f'<details markdown="1"><summary>{title}</summary>\n\n{text}\n\n</details>'
