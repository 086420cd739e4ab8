"""docs/open/: an issue a file, each with the same parts, and an index that lists all of them."""

from __future__ import annotations

import re

import pytest

from cookbook.recipe import catalog

FOLDER = catalog.recipes_root().parent / "docs" / "open"
ISSUES = sorted((path for path in FOLDER.glob("*.md") if path.name != "index.md"), key=lambda path: path.stem)
PARTS = ["What", "Why", "Command", "Size"]


def parts_of(path) -> dict[str, str]:
    """Title and parts of an issue."""
    title, *paragraphs = path.read_text(encoding="utf-8").strip().split("\n\n")
    found = [re.fullmatch(r"\*\*(\w+)\.\*\* (.+)", paragraph, re.S) for paragraph in paragraphs]
    assert title.startswith("# ") and all(found), f"{path.name}: got another paragraph; needed {PARTS}"
    return {"title": title[2:]} | {each[1]: " ".join(each[2].split()) for each in found}


@pytest.mark.parametrize("path", ISSUES, ids=lambda path: path.stem)
def test_an_issue_says_what_why_by_which_command_and_its_size(path):
    parts = parts_of(path)
    assert [name for name in parts if name not in ("title", "Tried")] == PARTS
    assert "`" in parts["Command"] and re.match(r"(small|medium|large)(; .+)?$", parts["Size"])
    assert len(path.read_text(encoding="utf-8").split()) <= 200


def test_the_index_lists_every_issue_with_its_size():
    rows = [f"| [{(parts := parts_of(path))['title']}]({path.name}) | {parts['Size']} |" for path in ISSUES]
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    table = "\n".join(["| issue | size |", "|---|---|", *rows])
    assert table in index, f"docs/open/index.md: got another table; needed\n{table}"
