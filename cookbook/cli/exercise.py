"""The command that checks a reader's exercises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cookbook.cli.console import say, show, show_json
from cookbook.cli.usage import Json, of_library


def exercise(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="A recipe, or your copy of one: a .py file or a notebook.")
    ],
    as_json: Json = False,
) -> None:
    """Check your answers to a recipe's exercises, with no GPU. Of a recipe's name: say what they are."""
    from cookbook.check import exercises

    file = Path(name)
    with of_library({"recipe": "NAME"}):
        if file.suffix not in (".py", ".ipynb"):
            _show_tasks(name, exercises.tasks(name), as_json)
            return
        with exercises.opened(file) as (recipe, answers):
            found = exercises.tried(recipe, answers)
    if as_json:
        show_json({"recipe": recipe, "exercises": [vars(outcome) for outcome in found]})
    else:
        for outcome in found:
            show(outcome.line)
    raise typer.Exit(0 if all(outcome.status == exercises.RIGHT for outcome in found) else 1)


def _show_tasks(name: str, tasks: dict[str, str], as_json: bool) -> None:
    from cookbook.recipe import catalog

    recipe = catalog.find(name)
    if as_json:
        show_json({"recipe": recipe.name, "exercises": tasks})
        return
    for function, task in tasks.items():
        show(f"{function}: {task}")
    say(
        f"next: cookbook copy {recipe.name} {recipe.file.name} --exercises, write the answers, "
        f"cookbook exercise {recipe.file.name}"
    )


def attach(app: typer.Typer) -> None:
    """Puts the command under `app`."""
    app.command(epilog="Examples: cookbook exercise primer/layouts    cookbook exercise layouts.ipynb")(exercise)
