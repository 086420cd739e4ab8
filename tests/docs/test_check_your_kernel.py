"""Each command of the page on one's own kernel, word by word, in a folder that holds the page's files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import processes
import pytest

from cookbook.check.pipeline.repair import MOST
from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
PAGE = (ROOT / "docs" / "check-your-kernel.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', PAGE, re.S))
SHOWN = re.findall(r"```console\n\$ ([^\n]*)\n```\n\n<!-- prints: (\d) -->\n\n```text\n(.*?)\n```", PAGE, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("page")
    for name, text in FILES.items():
        (where / name).write_text(text)
    (where / "untold.py").write_text(FILES["races.py"].partition("CHECKS")[0])
    return where


@pytest.mark.parametrize("command, status, shown", SHOWN, ids=[command for command, *_ in SHOWN])
def test_a_command_does_what_the_page_shows(folder, command, status, shown):
    program, *rest = command.split()
    how = {"cookbook": ("-m", "cookbook"), "python": ()}[program]
    known = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COOKBOOK_CACHE": str(folder / "cache")}
    ended = processes.run(*how, *rest, cwd=folder, env=known)
    assert ended.returncode == int(status), ended.stdout + ended.stderr
    assert shown in ended.stdout + ended.stderr


def test_every_command_of_the_page_is_run():
    assert len(SHOWN) == PAGE.count("```console") and len(SHOWN) > 5
    assert {status for _, status, _ in SHOWN} == {"1", "2"}


@pytest.mark.parametrize(
    "name, broken, mended",
    [
        (
            "races.py",
            "sX[THREADS - 1 - tidx]\n",
            "sX[THREADS - 1 - tidx]\n        cute.arch.sync_threads()\n",
        ),
        (
            "hangs.py",
            "mbarrier_init(full, 32)",
            "mbarrier_init(full, 1)",
        ),
    ],
)
def test_the_page_s_repair_repairs(folder, tmp_path, name, broken, mended):
    text = FILES[name]
    assert broken in text
    text = text.replace(broken, mended)
    if name == "hangs.py":
        text = text.replace("= mX[lane]\n", "= mX[lane]\n        cute.arch.sync_warp()\n")
    (tmp_path / name).write_text(text)
    for file in FILES.keys() - {name}:
        (tmp_path / file).write_text(FILES[file])
    known = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = processes.run("-m", "cookbook", "check", name, cwd=tmp_path, env=known)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_page_says_how_many_steps_are_tried():
    assert f"At most {MOST} are tried" in PAGE


def test_the_page_s_picture_is_one(folder):
    assert "--timeline order.svg" in PAGE
    command = ("-m", "cookbook", "check", "races.py", "--timeline", "order.svg")
    processes.run(*command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (folder / "order.svg").read_text(encoding="utf-8").startswith("<svg")


def test_the_action_is_yaml_with_one_job():
    import yaml

    (action,) = re.findall(r'```yaml title="[^"]*"\n(.*?)```', PAGE, re.S)
    (job,) = yaml.safe_load(action)["jobs"].values()
    assert any("cookbook check" in step.get("run", "") for step in job["steps"])


def test_a_kernel_has_twenty_lines():
    for name in ("races.py", "hangs.py"):
        code = [line for line in FILES[name].splitlines() if line.strip() and "import" not in line]
        assert len(code) <= 24, name
