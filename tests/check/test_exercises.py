"""A reader's answers: from a module, a copied file or a notebook; what is asked, and what the command says."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import nbformat
import pytest
import solutions
from typer.testing import CliRunner

from cookbook import lab
from cookbook.check import exercises
from cookbook.cli.app import app
from cookbook.recipe import catalog, contract
from tools.publish import notebooks

NAME = "primer/composed_layouts"
PRIMER = [recipe.name for recipe in catalog.recipes() if recipe.track == "primer"]
LESSONS = [r.name for r in catalog.recipes() if r.track == "foundations" or r.measures == "copies"]
LESSONS += ["hopper/tile_heuristics"]  # a study on the way to a GEMM
STEPS = [recipe.name for recipe in catalog.recipes() if solutions.has_some(recipe.name)]
STUB = "raise NotImplementedError"
ANSWER = "return 3, 4 - (element_bytes.bit_length() - 1), 3"


def answered(text: str, answer: str = ANSWER) -> str:
    """The page's text with its first exercise answered."""
    assert text.count(STUB) == 3
    return text.replace(STUB, answer, 1)


def run(*arguments: str):
    return CliRunner().invoke(app, ["exercise", *arguments])


@pytest.mark.parametrize("name", PRIMER)
def test_every_primer_page_ends_in_three_open_exercises(name, capfd):
    module = catalog.load(name)
    assert isinstance(module, contract.Exercises) and len(module.EXERCISES) == 3
    assert [text.startswith(f"Exercise {n}: ") for n, text in enumerate(exercises.tasks(name).values(), 1)] == [
        True
    ] * 3
    assert [outcome.status for outcome in exercises.tried(name, module)] == [exercises.OPEN] * 3
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", LESSONS)
def test_every_teaching_foundation_has_a_body_and_a_bug(name, capfd):
    module = catalog.load(name)
    assert isinstance(module, contract.Exercises)
    begins(exercises.tried(name, module))
    for task, said in zip(exercises.tasks(name).values(), ("1, finish it", "2, find the bug"), strict=True):
        assert task.startswith(f"Exercise {said}: ")
    assert capfd.readouterr().out == ""
    text = catalog.find(name).file.read_text(encoding="utf-8")
    assert text.index("# ## Exercises") < text.index(f'lab.check_exercises("{name}")') < text.index("# ## Conclusion")


def begins(outcomes: list[exercises.Outcome]) -> None:
    """A body to write, which is open, and a bug to find, of which the check tells."""
    assert [outcome.status for outcome in outcomes] == [exercises.OPEN, exercises.WRONG]
    assert re.search(
        r": got .*; needed |: race: .* need not (?:be over|come|have \w+) before |: deadlock: .* waits in line "
        r"|is left with \d+ threads|: early arrival: ",
        outcomes[1].detail,
    )


@pytest.mark.parametrize("name", STEPS)
def test_the_exercises_of_a_step_are_no_code_of_its_module(name, tmp_path):
    code = solutions.as_begun(name)
    tasks = exercises.tasks(name)
    assert [re.split(":", task)[0] for task in tasks.values()] == ["Exercise 1, finish it", "Exercise 2, find the bug"]
    assert not set(tasks) & set(vars(catalog.load(name))) and "EXERCISES" not in catalog.standalone_source(name)
    file = tmp_path / "mine.py"
    file.write_text(catalog.standalone_source(name))
    with exercises.opened(file) as (recipe, answers):
        found = exercises.tried(recipe, answers)
    lacking = f"got no function of this name; needed one; cookbook copy {name} NEW.py --exercises writes it"
    assert [one.line for one in found] == [f"{task}: not answered yet: {lacking}" for task in tasks]
    assert all(f"def {task}(" in code for task in tasks)


@pytest.mark.parametrize(
    "name", [pytest.param(s, marks=pytest.mark.slow if s in solutions.LONG else ()) for s in STEPS]
)
def test_the_exercises_of_a_step_begin_open_and_wrong(name, tmp_path, capfd):
    file = tmp_path / "mine.py"
    file.write_text(solutions.copy_with(name, solutions.as_begun(name)))
    with exercises.opened(file) as (recipe, answers):
        begins(exercises.tried(recipe, answers))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.slow if each in solutions.LONG else ()) for each in (*LESSONS, *STEPS)],
)
def test_tips_unfold_and_the_solution_of_a_page_is_right(name, tmp_path):
    titles = " ".join(title for title, _ in solutions.unfolding(name))
    assert re.fullmatch(r"(Tip 1 Tip 2 (Tip 3 )?Solution ?){2}", titles)
    file = tmp_path / "mine.py"
    file.write_text(solutions.copy_with(name, *solutions.solutions(name)))
    with exercises.opened(file) as (recipe, answers):
        assert recipe == name
        assert [one.status for one in exercises.tried(name, answers)] == [exercises.RIGHT] * 2


def test_the_cells_of_a_steps_exercises_are_read_of_a_notebook(tmp_path):
    name = "hopper/first_gemm"
    file = tmp_path / "mine.ipynb"
    nbformat.write(notebooks.from_recipe(name), file)
    with exercises.opened(file) as (recipe, answers):
        assert recipe == name and all(callable(getattr(answers, task)) for task in exercises.tasks(name))


def test_a_hosts_answer_is_compared_with_the_solution(tmp_path):
    """The reader's own variants are asked, and an error of the answer is told."""
    name = "ampere/tuned_gemm"
    waves, _ = solutions.solutions(name)
    for answer, said in (
        (waves, exercises.RIGHT),
        (waves.replace("// sms", "// 0"), exercises.WRONG),
        (
            f"{waves}\n\n\nVARIANTS = {{each: replace(one, tile_m=64) for each, one in VARIANTS.items()}}",
            exercises.RIGHT,
        ),
    ):
        file = tmp_path / "mine.py"
        file.write_text(solutions.copy_with(name, answer))
        with exercises.opened(file) as (recipe, answers):
            found = exercises.tried(recipe, answers)
        assert [one.status for one in found] == [said, exercises.OPEN]


def test_what_an_answer_does_not_give_is_said():
    def fails(element_bytes):
        raise KeyError("no\nsuch")

    for answer, said in (
        (lambda size: 7, "1 bytes: got 7; needed (3, 4, 3)"),
        (fails, "it raised KeyError: 'no\\nsuch'"),
    ):
        first, *_ = exercises.tried(NAME, SimpleNamespace(in_elements=answer))
        assert (first.status, first.detail) == (exercises.WRONG, said)
    first, second, _ = exercises.tried(NAME, SimpleNamespace(in_elements=lambda size: "x" * 1000))
    assert len(first.line) < 500
    assert second.line.startswith("for_short_rows: not answered yet: got no function of this name; needed one; ")


def test_a_copied_file_is_checked(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(answered(catalog.standalone_source(NAME)))
    done = run(str(file))
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "in_elements: right",
        "for_short_rows: not answered yet",
        "place: not answered yet",
    ]
    file.write_text(answered(catalog.standalone_source(NAME), "return 3, 4, 3"))
    (first, *_) = json.loads(run(str(file), "--json").stdout)["exercises"]
    assert first == {"name": "in_elements", "status": "wrong", "detail": "2 bytes: got (3, 4, 3); needed (3, 3, 3)"}


def test_a_notebook_is_checked_as_its_reader_left_it(tmp_path):
    notebook = notebooks.from_recipe(NAME)
    cell = next(cell for cell in notebook.cells if STUB in cell.source)
    cell.source = answered(cell.source)
    notebook.cells.append(nbformat.v4.new_code_cell("%timeit 1 + 1"))
    file = tmp_path / "mine.ipynb"
    nbformat.write(notebook, file)
    with exercises.opened(file) as (recipe, module):
        assert recipe == NAME and module.in_elements(2) == (3, 3, 3)
    assert run(str(file)).stdout.splitlines()[0] == "in_elements: right"


def test_the_cells_above_are_checked_in_a_notebook(monkeypatch, capsys):
    import __main__

    monkeypatch.setattr(__main__, "in_elements", lambda size: (3, 5 - size.bit_length(), 3), raising=False)
    lab.check_exercises(NAME)
    assert capsys.readouterr().out.splitlines()[0] == "in_elements: right"


def test_a_recipes_name_gives_its_tasks():
    done = run("composed_layouts")
    assert done.exit_code == 0 and done.stdout.startswith("in_elements: Exercise 1: ")
    assert set(json.loads(run(NAME, "--json").stdout)["exercises"]) == {"in_elements", "for_short_rows", "place"}


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("", "no.py", "needed a recipe's name, or a file that exists"),
        ("", "no.ipynb", "needed a recipe's name, or a file that exists"),
        ("x = 1", "mine.py", "a file whose head names its recipe"),
        ("{}", "mine.ipynb", "needed a notebook of this cookbook, with its metadata"),
        ("not json", "mine.ipynb", "needed a notebook of this cookbook, with its metadata"),
        (
            '{"cells": [], "metadata": {"cookbook": {"track": "a", "title": "b"}}}',
            "mine.ipynb",
            "a notebook of a/b; needed",
        ),
        (
            "# recipe hopper/gemv\n",
            "mine.py",
            "NAME: got hopper/gemv, which has no exercises; needed one with some, such as hopper/pingpong_gemm",
        ),
    ],
)
def test_what_is_no_exercise_is_refused_in_one_line(tmp_path, text, name, said):
    file = tmp_path / name
    if text:
        file.write_text(text)
    done = run(str(file))
    assert done.exit_code == 2 and said in " ".join(done.output.split())
