"""A reader's answers to the exercises of a recipe: the recipe says what is asked and needed, the reader's file answers.

The checks are those of the packaged recipe: an edit of the reader's file changes the answers alone. Where an exercise
is a definition of a kernel, the answer takes its place in the packaged recipe, and the levels judge.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from cookbook.check import levels, subjects
from cookbook.recipe import catalog, cells
from cookbook.recipe import tasks as rows
from cookbook.recipe.contract import Exercises

RIGHT, WRONG, OPEN = "right", "wrong", "not answered yet"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours in what a compiler says
_LONGEST = 300  # characters of what an answer gave or raised
_JUDGES = (levels.PIPELINE, levels.PRODUCT)  # levels that follow a kernel with no GPU, the quicker one first
_HAS = re.compile(r"^(?:EXERCISES|TASKS) = ", re.MULTILINE)
_Check = Callable[[Any], Iterable[tuple[str, Any, Any]]]


@dataclass(frozen=True)
class Outcome:
    """One exercise: `status` is RIGHT, WRONG or OPEN; `detail` says what was got and needed."""

    name: str
    status: str
    detail: str = ""

    @property
    def line(self) -> str:
        """The outcome in one line, as `cookbook exercise` prints it."""
        return f"{self.name}: {self.status}" + (f": {self.detail}" if self.detail else "")


def tasks(recipe: str) -> dict[str, str]:
    """The exercises of a recipe: the name of each function to write, and its docstring.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: the recipe has no exercises.
    """
    return {name: task for name, (task, _) in _asked(recipe).items()}


def tried(recipe: str, answers: ModuleType) -> list[Outcome]:
    """The exercises of a recipe, tried on the functions of a module.

    Args:
        recipe: the recipe's name.
        answers: the module that has the reader's functions; one that it lacks counts as not answered.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: the recipe has no exercises.
    """
    return [_tried(name, check, getattr(answers, name, None), recipe) for name, (_, check) in _asked(recipe).items()]


@contextmanager
def opened(path: Path) -> Iterator[tuple[str, ModuleType]]:
    """A reader's file, a copy (.py) or a notebook (.ipynb) of a recipe: the recipe's name, and the code as a module.

    CuTe reads the text of a function again when it traces it: the module serves inside the `with` alone.

    Raises:
        ValueError: no such file, or nothing in it says which recipe it is made from.
        NotLoaded: Python does not load it.
    """
    if path.suffix != ".ipynb" or not path.is_file():
        subject = subjects.of_file(path)
        yield subject.name, subject.module
        return
    recipe, code = _of_notebook(path)
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        file = Path(folder) / f"{path.stem}.py"
        file.write_text(code, encoding="utf-8")
        yield recipe, subjects.load_file(file, path.parent)


def _asked(recipe: str) -> dict[str, tuple[str, _Check]]:
    """By name of the function that answers an exercise: its task and its check."""
    found = catalog.find(recipe)
    module = catalog.load(recipe)
    if isinstance(module, Exercises):
        return {name: (inspect.getdoc(getattr(module, name)) or "", check) for name, check in module.EXERCISES.items()}
    text = found.file.read_text(encoding="utf-8")
    tree = ast.parse(as_begun(found.name))
    if not tree.body:
        raise ValueError(f"recipe: got {recipe}, which has no exercises; needed one with some, such as {_near(found)}")
    functions = {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}
    written = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    told = rows.tasks(text)
    places = next(written, {}) | {name: task.of for name, task in told.items()}
    kernels = {name: partial(_in_kernel, found.name, place) for name, place in places.items()}
    hosts = {name: partial(_as_solved, found.name, name, task) for name, task in told.items() if task.asked}
    return {name: (functions[name], check) for name, check in (kernels | hosts).items()}


def _near(recipe: catalog.Recipe) -> str:
    """The last page before a recipe that has exercises, or else the first one."""
    order = [each.name for each in catalog.recipes()]
    having = [r.name for r in catalog.recipes() if _HAS.search(r.file.read_text(encoding="utf-8"))]
    return ([name for name in having if order.index(name) < order.index(recipe.name)] or having)[-1]


def as_begun(recipe: str) -> str:
    """The code of a GEMM's exercises as a reader finds it; "" for a page that has none, or has them in its module.

    Raises:
        UnknownRecipe: there is no such recipe.
    """
    text = catalog.find(recipe).file.read_text(encoding="utf-8")
    module = catalog.standalone_source(recipe) if rows.tasks(text) else ""
    return "\n\n\n".join(filter(None, [cells.exercise_code(text), *rows.begun(text, module).values()]))


def _tried(name: str, check: _Check, answer: Any, recipe: str) -> Outcome:
    if answer is None:
        fix = f"cookbook copy {recipe} NEW.py --exercises writes it"
        return Outcome(name, OPEN, f"got no function of this name; needed one; {fix}")
    try:
        for question, got, needed in check(answer):
            if got != needed:
                return Outcome(name, WRONG, f"{question}: got {_said(got)}; needed {_said(needed)}")
    except NotImplementedError:
        return Outcome(name, OPEN)
    except _Refused as refused:
        return Outcome(name, WRONG, str(refused))
    except (Exception, SystemExit) as error:  # the reader's own, or what CuTe says of it
        said = " ".join(_ANSI.sub("", str(error)).split())[:_LONGEST]
        return Outcome(name, WRONG, f"it raised {type(error).__name__}: {said}")
    return Outcome(name, RIGHT)


class _Refused(Exception):
    """A level does not hold; the message is its name and its reason."""


def _in_kernel(recipe: str, place: str, answer: Any) -> Iterable[tuple[str, Any, Any]]:
    """Check the packaged recipe with an answer in the place of its definition `place`, by the levels of _JUDGES.

    Raises:
        _Refused: a level does not hold.
        NotImplementedError: the answer is not written yet.
    """
    text = textwrap.dedent(inspect.getsource(answer))
    if "raise NotImplementedError" in text:
        raise NotImplementedError
    packaged = f"{catalog.standalone_source(recipe)}\n\n"
    own_line = re.compile(rf"(?<=line )\d+(?= of {answer.__name__}\b)")

    def counted_from_its_first(line: re.Match[str]) -> str:
        return str(int(line[0]) - packaged.count("\n"))

    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        file = Path(folder) / "answer.py"
        file.write_text(f"{packaged}{text}\n\n{place} = {answer.__name__}\n", encoding="utf-8")
        subject = subjects.of_file(file)
        chosen = levels.chosen(subject, (), subject.dtypes[:1], subject.targets[:1])
        steps = [step for step in levels.plan(subject, *chosen) if step.level in _JUDGES]
        for step in sorted(steps, key=lambda step: _JUDGES.index(step.level)):
            for level in levels.run_step(step):
                if level.status != levels.PASSED:
                    first, *_ = level.reason.splitlines()
                    raise _Refused(f"{level.level}: {own_line.sub(counted_from_its_first, first)}")
    return ()


def _as_solved(recipe: str, name: str, task: rows.Task, answer: Any) -> Iterable[tuple[str, Any, Any]]:
    """Compare an answer with the row's solution, which calls what the answer calls. A text names a variant."""
    text = catalog.find(recipe).file.read_text(encoding="utf-8")
    known = dict(answer.__globals__)
    exec(rows.solved(text, catalog.standalone_source(recipe))[name], known)
    for asked in task.asked:
        given = [known["VARIANTS"][each] if isinstance(each, str) else each for each in asked]
        yield f"{task.of}{asked}", answer(*given), known[name](*given)


def _said(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _of_notebook(path: Path) -> tuple[str, str]:
    """The recipe that a notebook was made from, and its code: of the lab only the cells that a reader works in."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        described = notebook["metadata"]["cookbook"]
        said = described["track"], described["title"]
        code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"NAME: got {path}; needed a notebook of this cookbook, with its metadata") from None
    names = [recipe.name for recipe in catalog.recipes() if (recipe.track, recipe.title) == said]
    if not names:
        raise ValueError(f"NAME: got {path}, a notebook of {'/'.join(said)}; needed one of a recipe that there is")
    tagged = [(cell, cell.get("metadata", {}).get("tags", [])) for cell in code_cells]
    kept = [cell for cell, tags in tagged if "lab" not in tags or "exercise" in tags]
    code = ("".join(cell["source"]) for cell in kept)
    return names[0], "\n\n\n".join(text for text in code if _parses(text))


def _parses(code: str) -> bool:
    try:
        ast.parse(code)  # what begins with % or ! is for the notebook alone
    except SyntaxError:
        return False
    return True
