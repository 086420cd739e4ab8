"""docs/questions.md: every answer is short and linked, and every command in it runs."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from cookbook.cli.app import app
from cookbook.recipe import catalog

DOCS = catalog.recipes_root().parent / "docs"
PAGE = (DOCS / "questions.md").read_text(encoding="utf-8")
ANSWERS = dict(re.findall(r"^### (.+?)\n\n(.*?)(?=\n##|\Z)", PAGE, re.S | re.M))
COMMANDS = [" ".join(found.split()) for found in re.findall(r"`cookbook ((?:banks|atom|swizzle) [^`]+)`", PAGE)]


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_is_short_and_links_to_a_page_of_ours(question):
    prose = re.sub(r"\]\([^)]*\)|^\|.*$", "", ANSWERS[question], flags=re.M)
    assert len(prose.split()) <= 100, question
    assert re.search(r"\]\((?!http)[\w/-]+\.md", ANSWERS[question]), question


def test_the_five_best_known_questions_are_there():
    for words in (
        "Why 3, 4, 3",
        "ncu still shows",
        "Which swizzle serves both",
        "Which Blackwell",
        "tma_partition expect",
    ):
        assert any(words in question for question in ANSWERS), words


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command):
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output


def test_local_links_lead_to_pages():
    for target in re.findall(r"\]\((?!http)([\w/-]+)\.md", PAGE):
        source = catalog.recipes_root() / f"{target.removeprefix('recipes/')}.py"
        assert (DOCS / f"{target}.md").is_file() or source.is_file(), target
