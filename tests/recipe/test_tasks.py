"""Exercises that are one row of a recipe: what a notebook has in place of it, and rows that are wrong."""

from __future__ import annotations

import ast

import pytest

from cookbook.recipe import catalog, tasks

MODULE = '@cute.jit\ndef wait(n: int):\n    """Wait."""\n    first(n)\n    second(n - 1)\n'
ROW = '"wait_at_risk": ("wait", "n - 1", "n", "\\"Why one less?\\"", ("Count them.", "Again."), "One is read.")'
FINISH = (
    '"wait_late": ("wait", "    second(n - 1)", "    raise NotImplementedError", "Do.", ("A.",), "So.", "    pass")'
)


def source(*rows: str, more: str = "") -> str:
    return f'{more}# %% tags=["lab", "tasks"]\nTASKS = {{{", ".join(rows)}}}\n'


def test_a_planted_fault_becomes_a_task_with_tips():
    said, code, below = tasks.written_out(source(ROW), MODULE)
    assert (said.kind, said.text) == ("markdown", '**Find the bug.** "Why one less?"')
    assert code == tasks.Written(
        "code",
        '@cute.jit\ndef wait_at_risk(n: int):\n    """Exercise 1, find the bug: as `wait`.\n\n'
        '    "Why one less?"\n    """\n    first(n)\n    second(n)',
        ("lab", "open", "exercise"),
    )
    titles = [part.split("</summary>")[0] for part in below.text.split("<summary>")[1:]]
    assert titles == ["Tip 1", "Tip 2", "Solution"] and "One is read.\n\n```python\nn - 1\n```" in below.text


def test_lines_left_out_are_to_be_written_in_another_form():
    text = source(FINISH, ROW)
    assert [said.text for said in tasks.written_out(text, MODULE)][::3] == [
        "**Finish it.** Do.",
        *['**Find the bug.** "Why one less?"'],
    ]
    begun, solved = tasks.begun(text, MODULE), tasks.solved(text, MODULE)
    assert begun["wait_late"].endswith("    first(n)\n    raise NotImplementedError")
    assert solved["wait_late"].endswith("    first(n)\n    pass") and solved["wait_at_risk"].endswith("second(n - 1)")
    assert "Exercise 2, find the bug" in begun["wait_at_risk"]
    before = '# %% tags=["lab", "exercise"]\ndef other():\n    """Exercise 1, finish it: other."""\n\n'
    assert "Exercise 2, find the bug" in tasks.begun(source(ROW, more=before), MODULE)["wait_at_risk"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (ROW.replace('("wait"', '("rest"'), "TASKS: got 'rest' in the row wait_at_risk; needed a function"),
        (ROW.replace('"n - 1"', '"(n"'), "TASKS: got 2 places in wait for the row wait_at_risk; needed one"),
        (ROW.replace('"n - 1"', '"m"'), "TASKS: got 0 places in wait for the row wait_at_risk; needed one"),
        ('"wait_at_risk": ("wait",)', "TASKS: got .*; needed a dict of rows, all literals"),
        ('"wait_at_risk": wait', "TASKS: got .*; needed a dict of rows, all literals"),
    ],
)
def test_a_wrong_row_is_named(row, says):
    with pytest.raises(ValueError, match=says):
        tasks.begun(source(row), MODULE)


def test_rows_of_recipes_fit_their_kernels():
    found = {r.name: r.file.read_text(encoding="utf-8") for r in catalog.recipes()}
    having = {name: text for name, text in found.items() if tasks.tasks(text)}
    assert having
    for name, text in having.items():
        module = catalog.standalone_source(name)
        begun, solved = tasks.begun(text, module), tasks.solved(text, module)
        assert not begun.keys() & {n.name for n in ast.parse(module).body if isinstance(n, ast.FunctionDef)}
        for function, code in solved.items():
            ast.parse(code)
            assert code != begun[function]
