"""Which versions compile which recipes: what the record says, and what a reader with an old one is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cookbook.recipe import catalog, versions

ROOT = Path(__file__).resolve().parents[2]
ROW = {"python": "3.11.7", "torch": "2.6.0", "date": "2026-01-02"}
OLD, OLDER = (
    ROW | {"dsl": "4.5.2", "compiled": ["ampere/tuned_gemm"], "failed": {"hopper/tuned_gemm": "no such divisor"}},
    ROW | {"dsl": "4.4.0", "compiled": [], "failed": {"ampere/tuned_gemm": "no such copy", "hopper/tuned_gemm": "no"}},
)


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A record of two versions that are too old for some recipes; `monkeypatch` to pretend that one is installed."""
    file = tmp_path / "versions.json"
    file.write_text(json.dumps([OLD, OLDER]), encoding="utf-8")
    monkeypatch.setattr(versions, "RECORD", file)
    return monkeypatch


def test_versions_compare_by_their_numbers():
    assert sorted(["4.10.0", "4.8.1", "4.8.1rc2", "4.9"], key=versions.key) == ["4.8.1", "4.8.1rc2", "4.9", "4.10.0"]
    assert versions.is_old("4.6.1") and not versions.is_old("4.6.2") and not versions.is_old("4.10.0")


def test_an_old_version_fails_as_the_nearest_that_was_tried(record):
    assert versions.failing("4.5.2") == versions.failing("4.5.3") == OLD["failed"]
    assert versions.failing("4.4.2") == versions.failing("4.1.0") == OLDER["failed"]
    assert versions.failing("4.6.2") == versions.failing("4.8.1") == {}


def test_a_recipe_too_new_for_the_version_is_refused_on_load(record):
    record.setattr(versions, "installed", lambda: "4.5.2")
    with pytest.raises(ImportError, match=r"^CuTe DSL: got 4\.5\.2; needed 4\.6\.2 or later for hopper/tuned_gemm$"):
        catalog.load("hopper/tuned_gemm")
    assert catalog.load("ampere/tuned_gemm").matmul


def test_without_a_record_or_cute_nothing_is_refused(record, tmp_path):
    record.setattr(versions, "installed", lambda: None)
    versions.check("hopper/tuned_gemm")
    record.setattr(versions, "installed", lambda: "4.5.2")
    record.setattr(versions, "RECORD", tmp_path / "none.json")
    versions.check("hopper/tuned_gemm")


def test_range_of_the_package_begins_with_the_oldest_version():
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("pyproject.toml is not here: this is not a checkout")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{versions.DSL}>={versions.OLDEST},' in text and '"torch>=2.6",' in text
