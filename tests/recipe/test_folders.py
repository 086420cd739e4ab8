"""What only those who maintain records run lies in tools/, which a wheel leaves out; the wheel runs without it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from cookbook.recipe import catalog, folders

ROOT = catalog.recipes_root().parent
NO_CHECKOUT = "got an installed package; needed a checkout of the repository"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A folder as an installed wheel's: the package, with the recipes and the records inside."""
    folder = tmp_path_factory.mktemp("wheel")
    for name, inside in (("cookbook", "cookbook"), ("recipes", "cookbook/_recipes"), ("results", "cookbook/_results")):
        shutil.copytree(ROOT / name, folder / inside, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(wheel, *command):
    env = {**os.environ, "PYTHONPATH": str(wheel), "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "cookbook", *command], cwd=wheel, env=env, capture_output=True, text=True
    )
    return done.returncode, done.stdout, " ".join(done.stderr.split())


def test_a_checkout_has_tools():
    assert folders.tool("records.freshness").__name__ == "tools.records.freshness"
    assert folders.tool("records.no_such") is None


def test_no_module_of_the_package_imports_tools():
    """Only `folders.tool` asks for them, and lives without."""
    found = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "cookbook").rglob("*.py")
        if re.search(r"^\s*(from|import) tools\b", file.read_text(encoding="utf-8"), re.M)
    ]
    assert found == []


def test_records_of_a_wheel_are_current(wheel):
    assert run(wheel, "results", "--stale") == (0, "no stale record\n", "")
    status, said, _ = run(wheel, "show", "hopper/tuned_gemm")
    assert status == 0 and "stale" not in said and "timed" in said


@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--record", ["bench", "hopper/tuned_gemm", "--record"]),
        ("--restamp", ["results", "--restamp"]),
        ("--regret", ["bench", "--regret"]),
    ],
)
def test_a_wheel_refuses_what_needs_a_checkout(wheel, option, command):
    status, _, said = run(wheel, *command)
    assert status == 2 and f"{option}: {NO_CHECKOUT}" in said


def test_a_wheel_begins_no_recipe(wheel):
    status, _, said = run(wheel, "new", "hopper/mine")
    assert status == 2 and "new" in said
