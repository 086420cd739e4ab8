"""What the recipes' notebooks call: the check of the cells above, and of a reader's exercises."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from cookbook.check import exercises, levels
from cookbook.check.levels import Level, Report, Shape
from cookbook.publish import words

__all__ = ["CheckFailed", "check_cells", "check_exercises"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours in what a compiler says


class CheckFailed(Exception):
    """A level does not hold for the code of the cells above; the message names the level and what it found."""


def check_cells(
    recipe: str,
    shapes: Iterable[Shape] = (),
    dtypes: Iterable[str] = (),
    targets: Iterable[str] = (),
    majors: Iterable[str] = (),
) -> None:
    """Check what this notebook's cells define, print a line for each level, and raise if one of them does not hold.

    Args:
        recipe: the name of the recipe that the notebook is; the notebook's own name does not matter.
        shapes: (M, N, K), or (M, N) of a transpose, for model, ran and timed; each level's own if left out.
        dtypes: of the recipe's; all of them if left out.
        targets: to compile for; all of the recipe's if left out.
        majors: of the operands, out of the recipe's; all that can have the shapes if left out.

    Raises:
        CheckFailed: a level does not hold.
        UnknownRecipe: there is no such recipe.
        ValueError: a dtype, a target or majors that are not of the recipe's, or a shape is none.
    """
    cells = sys.modules["__main__"]
    report = levels.check(cells, shapes, dtypes, targets, majors=majors, recipe=recipe)
    print(_lines(report))
    if not report.ok:
        raise CheckFailed(_failures(report))


def check_exercises(recipe: str) -> None:
    """Try this notebook's answers to a recipe's exercises, and print a line for each: right, wrong or not answered yet.

    Args:
        recipe: the name of the recipe that the notebook is.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: the recipe has no exercises.
    """
    for outcome in exercises.tried(recipe, sys.modules["__main__"]):
        print(outcome.line)


def _lines(report: Report) -> str:
    """Which code was checked, then one line a level."""
    wide = max(len(_of(level)) for level in report.levels)
    said = ([*words.describe(level).splitlines(), ""][0] for level in report.levels)  # a compiler's error is long
    lines = [f"{x.level:10} {_of(x):{wide}} {x.status:12} {text}" for x, text in zip(report.levels, said, strict=True)]
    return _ANSI.sub("", "\n".join([f"Checked: {report.checked}.", *lines]))


def _of(level: Level) -> str:
    shape = "x".join(map(str, level.shape)) if level.shape else None
    return " ".join(filter(None, (level.majors, level.target, level.variant, shape)))


def _failures(report: Report) -> str:
    failed = [f"  {' '.join(filter(None, (one.level, _of(one), one.dtype)))}: {one.reason}" for one in report.failed]
    return _ANSI.sub("", "\n".join([f"{report.checked}: {len(failed)} of {len(report.levels)} levels fail", *failed]))
