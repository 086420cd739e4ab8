"""Edits of the kernels of others, made by the syntax tree, and the table of who finds them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools import foreign, foreign_faults
from tools.foreign_faults import OUT, Planted, edited, kernel_of, linked, more_than, outcome, outcomes, section

KERNEL = """\
def kernel(state, other):
    state.pipe.wait(count)
    state.fence(
        "async",
        space="cta",
    )
    while not other.wait(count, phase):
        pass
    state.make(size=left +
               right)
"""


@pytest.mark.parametrize(
    "call, number, change, argument, lines",
    [
        ("pipe.wait", 0, OUT, 0, {2: "    pass"}),
        ("wait", 1, OUT, 0, {7: "    while not True:"}),
        ("wait", 1, "{} ^ 1", 1, {7: "    while not other.wait(count, (phase) ^ 1):"}),
        ("state.fence", 0, OUT, 0, {3: "    pass", 4: "", 5: "", 6: ""}),
        ("make", 0, "{} - 8", "size", {9: "    state.make(size=((left + right) - 8", 10: "))"}),
    ],
)
def test_an_edit_is_of_one_call_and_no_line_moves(call, number, change, argument, lines):
    found = edited(KERNEL, Planted("x.py", "m", call, number, change, argument))
    ast.parse(found)
    before, after = KERNEL.splitlines(), found.splitlines()
    assert len(after) == len(before)
    assert {n + 1: b for n, (a, b) in enumerate(zip(before, after, strict=True)) if a != b} == lines


def test_a_call_that_there_is_not_is_an_error():
    with pytest.raises(LookupError):
        edited(KERNEL, Planted("x.py", "m", "pipe.wait", 1))


def test_a_copy_is_made_of_links_but_for_the_edited_file(tmp_path):
    package = tmp_path / "sources" / "package"
    package.mkdir(parents=True)
    for name in ("a.py", "b.py"):
        (package / name).write_text(name)
    linked(tmp_path / "sources", "package/a.py", "edited", tmp_path / "copy")
    copy = tmp_path / "copy" / "package"
    assert (copy / "a.py").read_text() == "edited" and (package / "a.py").read_text() == "a.py"
    assert (copy / "b.py").is_symlink() and (copy / "b.py").read_text() == "b.py"


def test_what_becomes_of_a_fault(tmp_path, monkeypatch):
    fault = Planted(foreign_faults.PLAIN, "m", "pipe.wait")
    file = tmp_path / foreign.EXAMPLES / fault.path
    file.parent.mkdir(parents=True)
    file.write_text(KERNEL)
    known = {"rule": "race", "at": {"line": 7}}
    for after, what in (
        ({"found": [known]}, "missed"),
        ({"found": [known, {"rule": "race", "at": {"line": 9}}]}, "race"),
        ({"found": [], "not_followed": [{}]}, "not followed"),
        ({"error": "SyntaxError: x"}, "not traced: SyntaxError: x"),
    ):
        monkeypatch.setattr(foreign_faults, "report", lambda sources, number, after=after: after)
        assert outcome(tmp_path, fault, {"found": [known]}) == what


def test_faults_are_planted_in_kernels_of_the_table():
    kernels = Counter(kernel_of(one) for one in foreign_faults.FAULTS)
    assert len(kernels) >= 8 and sum(kernels.values()) >= 60
    assert len(set(foreign_faults.FAULTS)) == len(foreign_faults.FAULTS)


def test_the_page_holds_each_fault_and_none_of_their_text():
    text = foreign.PAGE.read_text(encoding="utf-8").partition("## Faults planted")[2].partition("## Wavefronts")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(foreign_faults.FAULTS)
    for fault, row in zip(foreign_faults.FAULTS, rows, strict=True):
        assert row.startswith(f"| `{Path(fault.file or fault.path).name}` | {fault.mistake} | `{fault.call}`, ")
    judged = [row for row in rows if "| no fault: " not in row]
    caught = sum(not row.endswith("| missed |") and "| not traced" not in row for row in judged)
    assert f"{caught} of {len(judged)} are found" in text and caught >= 0.9 * len(rows)


def test_a_section_counts_what_is_found():
    one, two = (Planted("a/b.py", "m", call) for call in ("x", "y"))
    assert section([(one, "race"), (two, "missed")]).count("1 of 2 are found") == 1


def test_what_both_reports_say_is_no_finding_of_either():
    def report(*rules, **more):
        return {"found": [{"rule": rule, "at": {"line": line}} for line, rule in enumerate(rules)]} | more

    before, after = report("barrier", "race", "race"), report("barrier", "race")
    assert (more_than(before, after), more_than(after, before)) == ("race", "none")
    assert more_than(report("race", "late wait"), report("race"), report("race", "late wait")) == "none"  # shipped with
    assert more_than(report(not_followed=[{}]), after) == "not followed" and more_than({"error": "x"}, after) == "x"


def test_the_page_says_of_each_real_fault_what_became_of_it(monkeypatch):
    text = foreign.PAGE.read_text(encoding="utf-8").partition("## Real faults")[2].partition("## Wavefronts")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row[0].removeprefix("| ") for row in rows] == [one.fix for one in foreign_faults.REAL]
    flagged = [row for row in rows if row[2] not in ("none", "not flagged") and row[3] == "none"]
    assert f"{len(flagged)} of {len(rows)} are flagged" in text and len(flagged) >= 14
    assert all(one.why for one in foreign_faults.REAL if one.stands or one.museum)
    monkeypatch.setattr(
        foreign_faults, "planted", lambda sources, edit: {"found": [{"rule": "race", "at": {"line": 1}}]}
    )
    real = next(one for one in foreign_faults.REAL if one.wrong and not one.stands)
    assert outcomes(Path(), real, {kernel_of(real.kernel): {"found": []}}) == ("race", "none")
