"""The cells of a recipe's text: jupytext's percent format, with tags."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Cell", "cells", "code_of", "exercise_code", "module_code", "without_lab"]

_TAGS = re.compile(r"tags=\[(?P<tags>[^\]]*)\]")


class Cell(NamedTuple):
    """A percent cell: `start` and `stop` are 0-based line numbers, `start` being the `# %%` line."""

    start: int
    stop: int
    kind: str  # "code" or "markdown"
    tags: tuple[str, ...]


def cells(source: str) -> list[Cell]:
    """The percent cells of a recipe, front matter excluded."""
    lines = source.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("# %%")]
    stops = [*starts[1:], len(lines)]
    return [_cell(lines, start, stop) for start, stop in zip(starts, stops, strict=False)]


def _cell(lines: list[str], start: int, stop: int) -> Cell:
    rest = lines[start][len("# %%") :]
    tags = _TAGS.search(rest)
    words = tuple(re.findall(r"[\w-]+", tags["tags"])) if tags else ()
    return Cell(start, stop, "markdown" if "[markdown]" in rest else "code", words)


def code_of(source: str) -> list[Cell]:
    """The code cells that are not the lab's."""
    return [cell for cell in cells(source) if cell.kind == "code" and "lab" not in cell.tags]


def module_code(source: str) -> list[str]:
    """The text of each code cell that is not the lab's, without its `# %%` line."""
    lines = source.splitlines()
    return ["\n".join(lines[cell.start + 1 : cell.stop]) for cell in code_of(source)]


def exercise_code(source: str) -> str:
    """The code of the cells tagged `exercise`: cells of the lab that a reader works in."""
    lines = source.splitlines()
    found = [cell for cell in cells(source) if cell.kind == "code" and "exercise" in cell.tags]
    return "\n\n\n".join("\n".join(lines[cell.start + 1 : cell.stop]).strip("\n") for cell in found)


def without_lab(source: str) -> str:
    """`source` with its lab cells' lines blanked: every other line keeps its number."""
    lines = source.splitlines()
    for cell in cells(source):
        if "lab" in cell.tags:
            lines[cell.start : cell.stop] = [""] * (cell.stop - cell.start)
    return "\n".join(lines) + "\n"
