"""Cells of the recipes are what their marks say: code is code, and text is marked as text."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest

from cookbook.check.subjects import definitions
from cookbook.recipe import catalog
from cookbook.recipe.cells import cells

NAMES = [recipe.name for recipe in catalog.recipes()]
SETTINGS = ("# fmt:", "# ruff:", "# type:", "# noqa")


def code_cells(source: str) -> list[tuple[int, str, tuple[str, ...]]]:
    """(line number, text, tags) of each code cell."""
    lines = source.splitlines()
    return [(c.start + 1, "\n".join(lines[c.start + 1 : c.stop]), c.tags) for c in cells(source) if c.kind == "code"]


def lost_text(code: str) -> list[str]:
    """Comment lines at the top level that no code follows, and headings in comments: text whose mark is missing."""
    tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    comments = [
        t for t in tokens if t.type == tokenize.COMMENT and not t.string.startswith(SETTINGS) and t.start[1] == 0
    ]
    ends = [node.end_lineno for node in ast.parse(code).body]
    last = max(ends, default=0)
    return [t.string for t in comments if t.start[0] > last or t.string.startswith(("# #", "# **"))]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_stands_in_a_code_cell(name):
    source = catalog.find(name).file.read_text(encoding="utf-8")
    found = {number: lost_text(code) for number, code, _ in code_cells(source)}
    assert {number: text for number, text in found.items() if text} == {}


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        ("# only text\n# in comments", 2),
        ("x = 1\n#\n# ## A heading\n#\n# and text", 4),
        ("# ## A heading before code\nx = 1", 1),
        ("# why\nx = 1  # what\n\n\ndef f():\n    # inside\n    return x\n", 0),
        ("x = [\n    1,  # one\n]  # fmt: skip", 0),
    ],
)
def test_what_counts_as_lost_text(code, lost):
    assert len(lost_text(code)) == lost


@pytest.mark.parametrize("name", NAMES)
def test_lab_cells_leave_the_names_of_the_kernel_alone(name):
    """A notebook's check looks at what its names mean at the end: an appendix that reuses one would be checked."""
    source = catalog.find(name).file.read_text(encoding="utf-8")
    kernel = set(definitions(catalog.without_lab(source)))
    used = {
        name: number
        for number, code, tags in code_cells(source)
        if "lab" in tags
        for name in [*definitions(code), *loop_names(code)]
    }
    assert {name: number for name, number in used.items() if name in kernel} == {}


def loop_names(code: str) -> set[str]:
    """The names that loops and `with` at the top level bind."""
    inside = [part for node in ast.parse(code).body if isinstance(node, (ast.For, ast.With)) for part in ast.walk(node)]
    return {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
