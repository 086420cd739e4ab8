"""The language of planted faults: what it matches, what it changes, and that no fault depends on names or on layout."""

from __future__ import annotations

import importlib.util
import io
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

pytest.importorskip("cutlass")

from edits import EditError, In
from mutations import Mutation
from renaming import new_names, with_names

from cookbook.recipe import catalog, imports
from cookbook.recipe.catalog import normal_form
from cookbook.recipe.cells import without_lab

TESTS = Path(__file__).parent
NAMES = {recipe.name for recipe in catalog.recipes()}
TEXT = """\
STAGES = 3


class Config:
    def smem_bytes(self):
        return 1024 + self.stages * self.stage_bytes


def consume(pipe, config, acc):
    read = state(config.stages - 1, "k",  # two lines
                 depth=2)
    pipe.consumer_wait(read)  # until it is full
    if read + 1 < acc.size:  # a guard: of the last one
        acc.fill(0.0)
        pipe.consumer_release(read)
    else:
        pipe.consumer_release(read)
    return mma(acc, acc, read)


def produce(pipe, config, slot):
    with elect_one():
        pipe.producer_acquire(slot)
"""


def differing(edit: In, text: str = TEXT) -> list[tuple[str, str]]:
    """Lines that an edit changes, and what they become: it keeps the number of lines."""
    before, after = text.splitlines(), edit.of(text).splitlines()
    return [(old.strip(), new.strip()) for old, new in zip(before, after, strict=True) if old != new]


@pytest.mark.parametrize(
    ("edit", "lines"),
    [
        (In("consume").drop("_p.consumer_wait(_)"), [("pipe.consumer_wait(read)  #", "pass  #")]),
        (In("consume").replace("_.stages - 1", "_.stages"), [("state(config.stages - 1, ", "state(config.stages, ")]),
        (In("consume").replace("state(..., depth=2)", "state(..., depth=3)"), [("depth=2)", "depth=3)")]),
        (In("consume").replace("if _i + 1 < _: ...", "if _i < 1: ..."), [("read + 1 < acc.size:", "read < 1:")]),
        (In("consume").replace("_ + 1 < _", "True"), [("read + 1 < acc.size:", "True:")]),
        (In("produce").replace("with elect_one(): ...", "if True: ..."), [("with elect_one():", "if True:")]),
        (In("consume").replace("mma(_a, _a, _b)", "mma(_a, _b, _b)"), [("(acc, acc, read)", "(acc, read, read)")]),
        (In("Config.smem_bytes").replace("self.stages", "1"), [("self.stages *", "1 *")]),
        (In().replace("STAGES = 3", "STAGES = 2"), [("STAGES = 3", "STAGES = 2")]),
        (
            In("consume").drop("_.consumer_release(_)", after="_.fill(0.0)"),
            [("pipe.consumer_release(read)", "pass")],
        ),
        (
            In("consume").drop("_.consumer_release(_)", times=2),
            [("pipe.consumer_release(read)", "pass")] * 2,
        ),
        (
            In("consume").replace("_.consumer_release(_)", "pass", times=2, nth=1),
            [("pipe.consumer_release(read)", "pass")],
        ),
        (
            In("consume").where("_acc.fill(0.0)").replace("_.consumer_wait(_slot)", "_acc.wait(_slot)"),
            [("pipe.consumer_wait(read)  #", "acc.wait(read)  #")],
        ),
    ],
    ids=str,
)
def test_an_edit_changes_what_differs_and_nothing_else(edit: In, lines: list[tuple[str, str]]) -> None:
    found = differing(edit)
    assert len(found) == len(lines)
    for (before, after), (old, new) in zip(found, lines, strict=True):
        assert old in before and after == before.replace(old, new)


def test_what_spans_lines_keeps_the_lines_behind_it_in_place() -> None:
    edited = In("consume").replace("state(...)", "other(...)").of(TEXT)
    assert "other(" in edited and edited.splitlines()[11:] == TEXT.splitlines()[11:]
    assert In("consume").replace("_ = state(_, 'k', ...)", "pass").of(TEXT).splitlines()[11:] == TEXT.splitlines()[11:]


def test_arguments_that_dots_stand_for_stay() -> None:
    assert "state(config.stages - 1, 'k', depth=2, late=True)" in (
        In("consume").replace("state(...)", "state(..., late=True)").of(TEXT)
    )
    assert "state('k', depth=2)" in In("consume").replace("state(_, ...)", "state(...)").of(TEXT)
    assert "depth" not in In("consume").replace("state(..., depth=_)", "state(...)").of(TEXT)


def test_statements_are_inserted_at_either_side_and_swapped() -> None:
    call = "_pipe.consumer_wait(_slot)"
    after, before = In("consume").insert_after(call, "_pipe.x()"), In("consume").insert_before(call, "_pipe.x()")
    assert "    pipe.consumer_wait(read)\n    pipe.x()  # until it is full\n" in after.of(TEXT)
    assert "    pipe.x()\n    pipe.consumer_wait(read)  # until it is full\n" in before.of(TEXT)
    swapped = In("consume").replace("_a.fill(_x)\n_b.consumer_release(_y)", "_b.consumer_release(_y)\n_a.fill(_x)")
    assert "        pipe.consumer_release(read)\n        acc.fill(0.0)\n" in swapped.of(TEXT)
    assert In("consume").drop("if _ < _: ...").of(TEXT).count("consumer_release") == 0
    both = In("consume").drop("_.consumer_wait(_)") + In("produce").drop("_.producer_acquire(_)")
    assert both.of(TEXT).count("pass") == 2 and In().of(TEXT) == TEXT


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            In("consume").drop("_.consumer_release(_)"),
            r"edit: got 2 matches of `_\.consumer_release\(_\)` in consume; needed 1",
        ),
        (
            In("consume").drop("_.producer_acquire(_)"),
            r"got 0 matches .* in consume \(it matches in produce\); needed 1",
        ),
        (In("consume").drop("mma(_a, _b, _a)"), "got 0 matches"),
        (In("consume").where("_.consumer_release(_x)").where("f(_x)").drop("f()"), "where: got 0 meanings"),
        (In("consume").where("mma(_, _x, _)").where("mma(_, _, _x)").drop("f()"), "where: got 0 meanings"),
        (In("consume").replace("mma(...)", "mma(_missing)"), "edit: got _missing, which the pattern does not have"),
        (In("consume").drop("acc.size"), "needed Python"),
        (In("consume").replace("_ - 1", "_ - 1"), "edit: got 0 changes"),
        (In("nowhere").drop("f()"), "In: got 'nowhere', of which there are 0 definitions; needed one"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_an_edit_that_does_not_fit_says_why(edit: In, said: str) -> None:
    with pytest.raises(EditError, match=said):
        edit.of(TEXT)


def test_lab_cells_are_not_looked_at() -> None:
    lab = '\n# %% tags=["lab"]\ndef consume(pipe):\n    pipe.consumer_wait(1)\n'
    page = "# %%\n" + TEXT + lab
    assert In("consume").drop("_.consumer_wait(_)").of(page) == page.replace("pipe.consumer_wait(read)", "pass")


# --- every fault that the tests plant ---------------------------------------------------------------------------------


class Fault(NamedTuple):
    """An edit of a recipe's text, or of its copy's."""

    recipe: str
    edit: In

    def __str__(self) -> str:
        return f"{self.recipe}: {self.edit}"


def planted_in(module: ModuleType) -> Iterator[Fault]:
    """The edits in a test module's lists, and in what its tests are given. A recipe's name stands beside its edit, or
    is the module's NAME."""
    own = [module.NAME] if hasattr(module, "NAME") else []
    for value in vars(module).values():
        marks = getattr(value, "pytestmark", None)
        if isinstance(marks, list):
            given = [mark.args for mark in marks]
            yield from _within(given, list(_recipes(given)) or own)
        elif isinstance(value, (list, tuple, dict, In)):
            yield from _within(value, own)


def _recipes(value: Any) -> Iterator[str]:
    """The names of recipes within what tests are given."""
    if isinstance(value, str) and value in NAMES:
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _recipes(one)


def _within(value: Any, recipes: list[str]) -> Iterator[Fault]:
    if isinstance(value, In) and value.steps:
        yield from (Fault(recipe, value) for recipe in recipes)
    elif isinstance(value, Mutation):
        yield from _within(value.edit, [value.recipe])
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _within(one, list(_recipes(key)) or recipes)
    elif isinstance(value, (list, tuple)):
        beside = [one for one in value if isinstance(one, str) and one in NAMES] if isinstance(value, tuple) else []
        for one in value:
            yield from _within(one, beside or recipes)


FILES = [
    file
    for file in sorted(TESTS.rglob("*.py"))
    if file != Path(__file__) and "\nfrom edits import In" in file.read_text(encoding="utf-8")
]


@cache
def planted(file: Path) -> list[Fault]:
    """The faults of a test module; it is loaded by its path: two folders have a file of one name."""
    name = f"edits_of_{file.parent.name}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return list(dict.fromkeys(planted_in(module)))


class Text(NamedTuple):
    """A text; the same with other names and comments, and what gives it the old names."""

    source: str
    other: str
    back: dict[str, dict[str, str]]


@cache
def text_of(recipe: str, copied: bool) -> Text:
    source = imports.written_in(catalog.find(recipe).file.read_text(encoding="utf-8"))
    source = catalog.standalone_source(recipe) if copied else without_lab(source)
    names = new_names(source)
    back = {of: {new: old for old, new in own.items()} for of, own in names.items()}
    return Text(source, with_comments(with_names(source, names)), back)


def with_comments(source: str) -> str:
    """A comment behind each statement."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            lines[token.start[0] - 1] += "  # another comment: pass"
    return "\n".join(lines) + "\n"


def edited(fault: Fault) -> tuple[Text, str]:
    """The text that a fault is planted in, and the text with it. What recipes share is in copies alone."""
    text = text_of(fault.recipe, False)
    try:
        return text, fault.edit.of(text.source)
    except EditError:
        text = text_of(fault.recipe, True)
        return text, fault.edit.of(text.source)


QUICK = ("tests", "check", "pipeline", "product")  # folders that have faults of each kind


@pytest.mark.parametrize(
    "file", [pytest.param(f, marks=() if f.parent.name in QUICK else pytest.mark.slow, id=f.stem) for f in FILES]
)
def test_no_fault_depends_on_names_layout_or_comments(file: Path) -> None:
    """With other names of all locals and parameters, laid out anew, a fault is the same tree but for these names."""
    faults = planted(file)
    assert faults
    for fault in faults:
        text, one = edited(fault)
        other = with_names(fault.edit.of(text.other), text.back)
        assert normal_form(other) == normal_form(one), fault


def test_all_of_them_were_looked_at() -> None:
    every = {fault for file in FILES for fault in planted(file)}
    assert len(every) > 400 and len({fault.recipe for fault in every}) > 35
