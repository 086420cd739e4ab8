"""`cookbook check` of files whose kernels are no recipes'."""

from __future__ import annotations

import json
from pathlib import Path

import processes
import pytest

from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
OWN = ROOT / "tests" / "check" / "kernels" / "own.py"


def cookbook(*arguments, cwd=ROOT):
    return processes.run("-m", "cookbook", "check", *arguments, cwd=cwd)


def test_a_pattern_chooses_cases_and_json_is_all_of_stdout(tmp_path):
    sarif = tmp_path / "found.sarif"
    ended = cookbook(OWN, "-k", "race", "--json", "--sarif", sarif, "--target", "sm_100a")
    assert ended.returncode == 1, ended.stderr
    told = json.loads(ended.stdout)
    assert [(each["name"], each["arch"]) for each in told["kernels"]] == [("races", "sm_100a")]
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    (kernel,) = told["kernels"]
    assert len(results) == len(kernel["found"]) + len(kernel["repairs"]) and kernel["found"] and kernel["repairs"]
    assert [each["level"] for each in results if each["ruleId"] == "repair"] == ["note"]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "tests/check/kernels/own.py"


def test_the_order_that_leads_to_a_fault_is_drawn(tmp_path):
    picture, folder = tmp_path / "one.svg", tmp_path / "all"
    assert cookbook(OWN, "-k", "races", "--timeline", picture).returncode == 1
    ended = cookbook(OWN, "-k", "races", "--timeline", folder, "--json")
    found = json.loads(ended.stdout)["kernels"][0]["found"]
    assert [file.name for file in sorted(folder.iterdir())] == [f"races-{n}.svg" for n in range(1, len(found) + 1)]
    first = picture.read_text(encoding="utf-8")
    assert first == (folder / "races-1.svg").read_text(encoding="utf-8")
    assert all(f">line {found[0][step]['line']}<" in first for step in ("at", "other"))
    right = cookbook(OWN, "-k", "waits", "--timeline", tmp_path / "none.svg")
    assert right.returncode == 0 and "nothing to draw" in right.stderr and not (tmp_path / "none.svg").exists()


def test_a_right_case_ends_with_0():
    ended = cookbook(OWN, "-k", "waits")
    assert ended.returncode == 0 and "waits (sm_90a): no fault" in ended.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([OWN, "-k", "nothing"], "-k: got 'nothing'; needed a part of one of waits, races"),
        ([OWN, "--shape", "1,2,3"], "--shape: got a file with kernels beside it; needed none of that"),
        (["hopper/tma_wgmma_gemm", "-k", "a"], "-k: got recipes beside it; needed none of that"),
        ([OWN, "--sarif", "/nowhere/a"], "--sarif: got /nowhere/a; needed a file that can be written"),
        ([OWN, "-k", "races", "--timeline", "/nowhere/a.svg"], "--timeline: got /nowhere/a.svg; needed a file"),
        (["hopper/tma_wgmma_gemm", "--timeline", "a.svg"], "--timeline: got recipes beside it; needed none of that"),
        (["nothing.py"], "NAME: got nothing.py; needed a recipe's name, or a file that exists"),
        (["--run", "nothing.py"], "--run: got nothing.py; needed a script that exists"),
        (["--run"], "--run: got none; needed a script that exists"),
        (["--run", OWN, "--json"], "which gave nothing to cute.compile; needed a kernel"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_status_2(arguments, said):
    ended = cookbook(*arguments)
    assert ended.returncode == 2 and said in ended.stderr.strip().splitlines()[-1], ended.stderr
    assert not ended.stdout


def test_a_script_gets_what_follows_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    ended = cookbook("--json", "--run", script, "--json", "-k", "x", cwd=Path(tmp_path))
    assert ended.returncode == 2 and "['--json', '-k', 'x']" in ended.stderr
