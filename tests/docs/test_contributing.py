"""Tests are found as CONTRIBUTING says: a file by the code that it is of, a test by a short name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("test_*.py"))
OTHERS = ("browser", "docs", "gpu", "recipes")  # folders whose tests are of pages, recipes or what a GPU runs
_FOLDERS = sorted({file.parent for file in FILES})
MIRRORED = [each for each in _FOLDERS if not {*OTHERS} & {*each.relative_to(TESTS).parts}]


def names_in(folder: Path) -> set[str]:
    """What the files of a folder of tests may be named for."""
    inside = folder.relative_to(TESTS)
    code = [ROOT / "cookbook" / inside, ROOT / inside]
    helpers = (each for each in folder.glob("*.py") if not each.name.startswith("test_"))
    found = {each.stem for each in (*(p for c in code for p in c.glob("*")), *helpers)}
    return found | {inside.name or "cookbook"}


def is_named_for(stem: str, known: set[str]) -> bool:
    return any(f"{stem}_".startswith(f"test_{name}_") for name in known)


@pytest.mark.parametrize("folder", MIRRORED, ids=lambda each: each.name)
def test_a_file_has_the_name_of_what_it_tests(folder):
    known = names_in(folder)
    assert [file.name for file in folder.glob("test_*.py") if not is_named_for(file.stem, known)] == []


def test_a_name_that_no_module_has_is_told():
    known = names_in(TESTS / "check")
    assert is_named_for("test_layout_faults", known) and is_named_for("test_check", known)
    assert not is_named_for("test_layouts", known) and not is_named_for("test_interleavings", known)


def test_the_name_of_a_test_is_short():
    trees = [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in FILES]
    found = [(file, node.name) for file, tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    tests = [(file.name, name) for file, name in found if name.startswith("test_")]
    assert len(tests) > 1000 and [each for each in tests if len(each[1]) >= 60] == []
