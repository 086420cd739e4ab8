"""What agents read is true: commands run, JSON has the keys that the skill names, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from subprocess import CompletedProcess

import processes
import pytest
import yaml

from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
DOCS = ROOT / "docs"
SKILL = (DOCS / "skill.md").read_text(encoding="utf-8")
MAP = (DOCS / "llms.txt").read_text(encoding="utf-8")
PAGE = (DOCS / "check-your-kernel.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', PAGE, re.S))
SHOWN = re.findall(r"```console\n\$ ([^\n]*)\n```\n\n<!-- prints: (\d) -->\n\n```text\n(.*?)\n```", SKILL, re.S)
TABLES = dict(re.findall(r"\| key of (?:one of )?(`?\w+`?|a report) \| .*?\n\|[-|]+\|\n((?:\|.*\n)+)", SKILL))


def keys(table: str) -> set[str]:
    """The names in the first column of a table."""
    cells = (line.split("|")[1] for line in TABLES[table].splitlines())
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def run(folder: Path, *arguments: str) -> CompletedProcess:
    known = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COOKBOOK_CACHE": "off"}
    return processes.run("-m", "cookbook", *arguments, cwd=folder, env=known)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("skill")
    for name, text in FILES.items():
        (where / name).write_text(text)
    return where


def test_the_skill_has_a_name_and_says_when_to_use_it():
    _, front, _ = SKILL.split("---\n", 2)
    told = yaml.safe_load(front)
    assert set(told) == {"name", "description"} and re.fullmatch(r"[a-z-]{1,64}", told["name"])
    assert 20 < len(told["description"]) < 1024


@pytest.mark.parametrize("command, status, shown", SHOWN, ids=[command for command, *_ in SHOWN])
def test_a_command_of_the_skill_does_what_it_shows(folder, command, status, shown):
    ended = run(folder, *command.split()[1:])
    assert ended.returncode == int(status) and shown in ended.stdout, ended.stderr


def test_json_has_the_keys_that_the_skill_names_and_no_others(folder):
    ended = run(folder, "check", "races.py", "hangs.py", "--json")
    told = json.loads(ended.stdout)
    assert set(told) == {"status", "kernels"} and told["status"] == ended.returncode == 1
    (launch,) = re.findall(r"`launches` \| (.*) \|", SKILL)
    for report in told["kernels"]:
        assert keys("a report") == set(report)
        assert set(re.findall(r"`(\w+)`", launch)) == set(report["launches"][0])
        assert all(keys("`found`") == set(one) for one in report["found"]) and report["found"]
        assert all(keys("`repairs`") == set(one) for one in report["repairs"]) and report["repairs"]
        (place,) = re.findall(r"`at`, `other` \| the two steps: (.*?);", SKILL)
        assert set(re.findall(r"`(\w+)`", place)) == set(report["found"][0]["at"])


def test_a_script_is_asked_for_as_the_skill_says(folder):
    assert "`cookbook check --json --run script.py`" in SKILL
    ended = run(folder, "check", "--target", "sm_90a", "--json", "--run", "script.py")
    assert ended.returncode == 1 and json.loads(ended.stdout)["kernels"][0]["repairs"][0]["code"]


def test_links_and_commands_of_the_map_are_there():
    links = re.findall(r"\]\(([\w/.-]+)\)", MAP)
    assert len(links) > 8 and all((DOCS / f"{link.strip('/')}.md").is_file() for link in links)
    for command in re.findall(r"`cookbook (\w+)", MAP + SKILL):
        assert f"def {command}(" in (ROOT / "cookbook" / "cli" / "app.py").read_text() or command == "list"
    for option in set(re.findall(r"(--[a-z]+)", SKILL)):
        assert option in (ROOT / "cookbook" / "cli" / "app.py").read_text(encoding="utf-8"), option
