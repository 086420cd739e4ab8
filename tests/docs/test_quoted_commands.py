"""Every command that a page or a recipe quotes is one that the program takes, with recipes that there are."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest
import typer

from cookbook import cli
from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
DOCS = [path for folder in ("docs", "docs/open") for path in sorted((ROOT / folder).glob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *(recipe.file for recipe in catalog.recipes())]
PLACEHOLDERS = {  # for whatever a reader has in mind
    "NAME": "hopper/tuned_gemm", "hopper/my_gemm": "hopper/tuned_gemm", "N": "1", "SEED": "1"
}  # fmt: skip
PROGRAM = typer.main.get_command(cli.app)


def quoted(text: str) -> list[str]:
    """Lines after a prompt, and what stands between backquotes and begins like a command."""
    text = re.sub(r"^# ?", "", text, flags=re.M)  # a recipe's text is in comments
    prompts = re.findall(r"^\$ (.+)$", text, re.M)
    inline = re.findall(r"(?<!`)`((?:cookbook|python|make) [^`]+)`(?!`)", text)
    return [" ".join(command.split()) for command in (*prompts, *inline)]


QUOTED = sorted(
    {(path.relative_to(ROOT).as_posix(), command) for path in PAGES for command in quoted(path.read_text())}
)


def refused(command: str) -> str:
    """Why a command is not taken as it is written; "" if it is."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command, comments=True)]
    program = words[0].removeprefix(".venv/bin/")
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        asked = {word for word in words[1:] if "=" not in word}  # the rest are variables
        return "" if asked <= set(targets) else f"no target {words[1:]}"
    if program == "python":
        return refused_script(words[1:])
    return refused_by_program(words[1:]) if program == "cookbook" else ""


def refused_script(words: list[str]) -> str:
    if words[0] == "-m":
        return "" if importlib.util.find_spec(words[1]) else f"no module {words[1]}"
    return "" if (ROOT / words[0]).is_file() else f"no file {words[0]}"


def refused_by_program(words: list[str]) -> str:
    """Parsed by the program itself, down to the last subcommand; nothing is run."""
    group = PROGRAM
    while hasattr(group, "commands") and words:
        name, *words = words
        if name not in group.commands:
            return f"no command {name}"
        group = group.commands[name]
    if not words:  # `cookbook swizzle solve`: named, not called
        return ""
    try:
        given = group.make_context(group.name, list(words)).params
    except Exception as error:  # of click, or of the one that newer versions of typer bring along
        return str(error) or type(error).__name__
    names = given.get("names") or ([given["name"]] if "/" in str(given.get("name")) else [])
    known = {recipe.name for recipe in catalog.recipes()}
    wrong = [name for name in names if name not in known and not name.endswith(".py")]
    return f"no recipe {wrong}" if wrong else ""


@pytest.mark.parametrize(("page", "command"), QUOTED)
def test_a_quoted_command_is_taken(page, command):
    assert refused(command) == ""


@pytest.mark.parametrize("path", [*PAGES[:2], *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_no_command_of_a_page_breaks_at_a_lines_end(path):
    """A reader copies it whole."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    assert re.findall(r"`(?:cookbook|python|make) [^`]*\n[^`]*`", prose) == []


def test_quoted_commands_are_found():
    assert len(QUOTED) > 60 and {page.split("/")[0] for page, _ in QUOTED} == {
        "README.md",
        "CONTRIBUTING.md",
        "docs",
        "recipes",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        "cookbook chek NAME",
        "cookbook check --fast NAME",
        "cookbook bench hopper/none",
        "make everything",
        "python x.py",
    ],
)
def test_a_wrong_command_is_refused(wrong):
    assert refused(wrong) != ""
