"""The table of versions: every environment of its own compiles recipes, and the record is of today's recipes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass")
ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "tools").is_dir():
    pytest.skip("tools/ is not here: this is not a checkout", allow_module_level=True)

from cookbook.recipe import catalog  # noqa: E402
from cookbook.recipe import versions as record  # noqa: E402
from tools import versions  # noqa: E402

IN_RANGE = [dsl for dsl in versions.VERSIONS if not record.is_old(dsl)]
ELSEWHERE = [dsl for dsl in IN_RANGE if dsl != record.installed()]
NAMES = {recipe.name for recipe in catalog.recipes()}
ROW = {"dsl": "4.6.2", "python": "3.10.13", "torch": "2.6.0+cu124", "date": "2026-01-02"}


@pytest.mark.slow
@pytest.mark.parametrize("dsl", ELSEWHERE)
def test_every_recipe_compiles_under_another_cute_dsl(dsl, tmp_path):
    try:
        python = versions.lent(dsl, tmp_path / "environment")
    except versions.NoIndex as missing:
        pytest.skip(f"no package index can be reached: {missing}")
    row = versions.run(python, every_target=False)
    assert row["dsl"] == dsl and row["failed"] == {} and set(row["compiled"]) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_every_python_of_the_range_can_read_the_sources(minor):
    """Other Pythons have no torch here; what their grammar refuses is found all the same."""
    python = versions.interpreter(f"3.{minor}")
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} here")
    code = "import sys; [compile(open(name, encoding='utf-8').read(), name, 'exec') for name in sys.argv[1:]]"
    files = [str(file) for folder in ("cookbook", "recipes", "tools") for file in (ROOT / folder).rglob("*.py")]
    done = subprocess.run([python, "-c", code, *files], capture_output=True, text=True)
    assert len(files) > 100 and done.returncode == 0, done.stderr[-2000:]


def test_this_environment_compiles_as_the_others_do():
    row = versions.run(Path(sys.executable), ["primer/layouts", "hopper/first_gemm"], every_target=False)
    assert row["dsl"] == record.installed() and row["compiled"] == ["primer/layouts", "hopper/first_gemm"]
    assert row["failed"] == {}


def test_without_an_index_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the port that discards: nobody answers
    for option in ("EXTRA_INDEX_URL", "FIND_LINKS"):
        monkeypatch.setenv(f"PIP_{option}", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(versions.NoIndex, match=r"nvidia-cutlass-dsl==4\.6\.2 \(from versions: none\)"):
        versions.lent("4.6.2", tmp_path / "environment")


def test_the_record_has_every_recipe_under_every_version():
    """`python -m tools.versions NAME` tries a new recipe; without names it tries all."""
    rows = [row for row in record.tried() if not record.is_old(row.dsl)]
    assert [row.failed for row in rows] == [{}] * len(rows)
    for dsl in IN_RANGE:
        assert NAMES - {name for row in rows if row.dsl == dsl for name in row.compiled} == set(), dsl


def test_an_error_names_a_file_by_its_place_in_the_checkout():
    errors = {name: why for row in record.tried() for name, why in row.failed.items()}
    assert "hopper/tuned_gemm" in errors and [why for why in errors.values() if re.search(r"got /\w", why)] == []


def test_a_row_replaces_its_recipes_and_keeps_the_rest(tmp_path):
    file = tmp_path / "versions.json"
    first = ROW | {"compiled": ["ampere/tuned_gemm", "no/longer"], "failed": {"hopper/tuned_gemm": "old"}}
    versions.write(first, file)
    versions.write(ROW | {"python": "3.10.14", "compiled": ["hopper/tuned_gemm"], "failed": {}}, file)
    versions.write(ROW | {"dsl": "4.5.2", "compiled": [], "failed": {"hopper/tuned_gemm": "no"}}, file)
    old, row = record.tried(file)
    assert (old.dsl, row.dsl, row.python) == ("4.5.2", "4.6.2", "3.10.14")
    assert row.compiled == ["ampere/tuned_gemm", "hopper/tuned_gemm"] and row.failed == {}


def test_the_table_counts_by_track_and_says_what_is_lacking(tmp_path, monkeypatch):
    file = tmp_path / "versions.json"
    good = ["ampere/tuned_gemm", "hopper/tuned_gemm", "hopper/first_gemm"]
    rows = [
        ROW | {"compiled": good, "failed": {}},
        ROW | {"dsl": "4.5.2", "compiled": good[:1], "failed": {good[1]: "Error: no such divisor"}},
    ]
    file.write_text(json.dumps(rows), encoding="utf-8")
    monkeypatch.setattr(record, "RECORD", file)
    lines = versions.markdown().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| 4.5.2", "| 4.6.2"]
    assert "0 of 1" in lines[2] and "all 2" in lines[3] and "2.6.0" in lines[3] and "+cu" not in lines[3]
    assert lines[-3].strip() == "| 4.5.2 | hopper/tuned_gemm | `Error: no such divisor` |"


def test_an_error_names_files_as_the_repository_does():
    error = ValueError(f"NAME: got {versions.ROOT}/recipes/hopper/gemv.py; needed another\nmore")
    assert versions.said(error) == "ValueError: NAME: got recipes/hopper/gemv.py; needed another"
    assert str(versions.ROOT.parent) not in record.RECORD.read_text(encoding="utf-8")
