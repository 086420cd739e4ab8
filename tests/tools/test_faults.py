"""The list of planted faults: it is the tests' own, nothing in it was missed, and the page shows all of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass")
TOOLS = Path(__file__).parents[2] / "tools"
if not TOOLS.is_dir():
    pytest.skip("tools/ is not here: this is not a checkout", allow_module_level=True)
sys.path.insert(0, str(TOOLS))

import faults  # noqa: E402

FIELDS = ("recipe", "variant", "what", "edit")
# The mistakes that are most easily made on Blackwell, each planted in a recipe: (recipe, in words).
EASILY_MADE = {
    "LBO and SBO swapped": ("majors_gemm", "LBO and SBO of A change places"),
    "wrong swizzle mode": ("tma_tcgen05_gemm", "tcgen05.mma reads A in the mode of the 64-byte swizzle"),
    "bytes for elements": ("tma_tcgen05_gemm", "the byte swizzle is given in elements"),
    "missing arrive": ("pipelined_gemm", "sums are never said to be there"),
    "one stage too few": ("pipelined_gemm", "the producer goes round one stage too few"),
    "wrong lane of tensor memory": ("pipelined_gemm", "a warp asks for another's lanes"),
}


def test_the_record_is_of_the_faults_that_the_tests_plant():
    """What each changes, too: a fault that has changed has to be run again."""
    recorded = [tuple(row[field] for field in FIELDS) for row in faults.recorded() if "/" in row["recipe"]]
    assert recorded == [tuple(row[field] for field in FIELDS) for row in faults.planted()]
    keys = [(row["recipe"], row["variant"], row["what"]) for row in faults.recorded()]
    assert len(set(keys)) == len(keys)


def test_no_fault_was_missed():
    rows = faults.recorded()
    assert [row for row in rows if not (row["level"] and row["by"])] == []
    assert {row["level"] for row in rows} == {"layout", "model", "product", "pipeline", "compiled", "host"}


def test_every_kernel_with_tcgen05_has_faults():
    names = {row["recipe"] for row in faults.recorded()}
    blackwell = [row for row in faults.recorded() if row["recipe"].startswith("blackwell/")]
    assert len(blackwell) >= 20
    assert {r.name for r in faults.catalog.recipes() if r.track == "blackwell" and r.product.is_gemm} <= names


@pytest.mark.parametrize("kind", EASILY_MADE)
def test_a_mistake_that_is_easily_made_is_planted_in_a_recipe(kind):
    recipe, what = EASILY_MADE[kind]
    (row,) = (r for r in faults.recorded() if (r["recipe"], r["what"]) == (f"blackwell/{recipe}", what))
    assert row["level"] and row["edit"]


def test_the_page_shows_every_fault():
    shown = faults.markdown()
    for row in faults.recorded():
        assert f"| {row['what']} |" in shown
    lines = [line for line in shown.splitlines() if line.startswith("| ")]
    tables = shown.count("## ") + 1
    tracks = {row["recipe"].partition("/")[0] for row in faults.recorded()}
    assert len(lines) == 2 * tables + len(tracks) + len(faults.recorded())  # each table has a head and a rule
    for part in shown.split("\n\n"):  # a bar in what a level said, as in |C|, begins no cell
        bars = {line.count("|") - line.count("\\|") for line in part.splitlines() if line.startswith("| ")}
        assert len(bars) <= 1, part


def test_the_command_prints_the_record(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["faults.py", "--json"])
    assert faults.main() == 0
    assert json.loads(capsys.readouterr().out) == faults.recorded()
    monkeypatch.setattr(sys, "argv", ["faults.py"])
    assert faults.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == len(faults.recorded())
