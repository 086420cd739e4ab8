"""Count the suggested repairs, and where: `python -m tools.repairs [--recipes TEXT] [--json FILE]`; no GPU.

The mistakes of the museum, and the faults of the tests in which a step was left out, or a wait made one group shorter:
the ones that the level *pipeline* catches by a rule. Each has a known answer, the line that was changed. A suggestion
is at that line if no other step of the kernel stands between. One that is elsewhere makes every rule hold, too: that
was tried.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cookbook.check import compiled, pipeline
from cookbook.check.pipeline.repair import Repair
from cookbook.publish.pages import table
from cookbook.recipe import catalog, imports
from tools import faults

NO_STEP = ("slow", "tensor lanes", "swizzle", "alignment", "bounds", "bank conflict")  # rules that no step restores
MUSEUM = faults.ROOT / "tests" / "check" / "kernels"


class Outcome(NamedTuple):
    """A fault, and what was suggested."""

    where: str
    what: str
    rule: str
    answer: str  # what was left out, and in which line
    repair: str  # "" if none
    there: bool | None  # at the line that was changed; None: of a whole kernel that was mended
    tries: int
    seconds: float
    mends: bool | None = None  # put into the source as it is told, no rule is broken; None: it is no line to put in


def left_out(edit: Any) -> bool:
    """Return whether an edit leaves out one statement, or lets a wait leave a group more in flight."""
    steps = [step for step in edit.steps if step.new is not None]
    gone = [step for step in steps if "pass" in step.new.split() and "pass" not in step.old.split()]
    shorter = [step for step in steps if "wait_group(" in step.old and "wait_group(" in step.new]
    return len(steps) == 1 and steps[0].times == 1 and bool(gone or shorter)


def planted(pattern: str) -> Iterator[Any]:
    """The faults of the tests that are looked at here."""
    known = {(row["recipe"], row["variant"], row["what"]): row for row in faults.recorded()}
    for _, fault in faults._of_suites():
        row = known[fault.recipe, fault.variant, fault.what]
        if row["level"] == "pipeline" and row["by"] not in NO_STEP and left_out(fault.edit) and pattern in fault.recipe:
            yield fault


def of_fault(fault: Any) -> Outcome:
    """Plant a fault, and look for a repair."""
    import planted as asked
    from mutations import mutant

    recipe = catalog.find(fault.recipe)
    with tempfile.TemporaryDirectory() as root:
        module = mutant(fault, Path(root))
        target = recipe.targets[0]
        config = asked.configured(module, fault.variant, target)
        began = time.perf_counter()
        dtype = compiled.cutlass_dtype(asked.dtype_of(recipe))
        found = pipeline.explored(module, target, dtype, config, repairs=True)
        seconds = time.perf_counter() - began
        text = Path(root, f"{fault.recipe}.py").read_text(encoding="utf-8").splitlines()
        repair = next((one.repair for one in found if one.repair), None)
        mends = _mends(repair, text, fault, target, dtype)
    before = imports.written_in(recipe.file.read_text(encoding="utf-8")).splitlines()
    (changed,) = [
        (first, range(begins + 1, ends + 1))
        for kind, first, _, begins, ends in difflib.SequenceMatcher(None, before, text, False).get_opcodes()
        if kind != "equal" and "compared_with" not in before[first]
    ][:1]
    rule = next((text.partition(":")[0] for one in found for text in one.faults), "")
    answer = f"line {changed[1].start}: {before[changed[0]].strip()}"
    where = str(fault).partition(": ")[0]
    there = _there(repair, changed[1], text)
    if repair is None:
        return Outcome(where, fault.what, rule, answer, "", False, 0, seconds)
    return Outcome(where, fault.what, rule, answer, repair.text, there, repair.tries, seconds, mends)


def _mends(repair: Repair | None, text: list[str], fault: Any, target: str, dtype: Any) -> bool | None:
    """Put the line that is suggested into the source, and follow that."""
    import planted as asked

    if repair is None or not repair.code or not repair.line:
        return None
    lines = list(text)
    lines.insert(int(repair.line) - (not repair.after), " " * repair.indent + repair.code)
    with tempfile.TemporaryDirectory() as root:
        file = Path(root, f"{fault.recipe}.py")
        file.parent.mkdir(parents=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        module = catalog.load(fault.recipe, Path(root))
        config = asked.configured(module, fault.variant, target)
        faults_of = (text for one in pipeline.explored(module, target, dtype, config) for text in one.faults)
        return all(text.startswith("slow: ") for text in faults_of)  # right, and a barrier next to another one


def _there(repair: Repair | None, changed: range, text: list[str]) -> bool:
    """Return whether a repair is at the lines that were changed: next to them, but for comments and `pass`."""
    if repair is None or not repair.line:
        return False
    first, last = sorted((int(repair.line), changed.start))
    between = [line.strip() for line in text[first : last - 1]]
    return int(repair.line) in changed or all(not line or line.startswith(("#", "pass", "if ")) for line in between)


def museum() -> Iterator[Outcome]:
    """The mistakes of the museum that break a rule of pipelines."""
    sys.path.insert(0, str(MUSEUM))
    tests = importlib.import_module("test_museum")
    for title, name in tests.TITLES:
        report = tests.asked(name, False)
        rule = report.found[0].rule
        if rule not in NO_STEP:
            step = report.repairs[0] if report.repairs else None
            text, tries = (step.text, step.tries) if step else ("", 0)
            yield Outcome("the museum", title, rule, name, text, None, tries, report.seconds)


def told(outcomes: list[Outcome]) -> str:
    """A table, and how many were mended."""
    heads = ["in", "fault", "rule", "what was left out", "suggested", "there", "tries", "s"]
    rows = []
    for one in outcomes:
        figures = ["yes" if one.there else "", str(one.tries or ""), f"{one.seconds:.1f}"]
        rows.append([one.where, one.what, one.rule, f"`{one.answer}`", one.repair or "none", *figures])
    mended = [one for one in outcomes if one.repair]
    there, written = (sum(bool(getattr(one, name)) for one in mended) for name in ("there", "mends"))
    asked = sum(one.mends is not None for one in mended)
    text = f"{len(mended)} of {len(outcomes)} mended; {there} at the line of what was left out; "
    return f"{table(heads, rows)}\n\n{text}{written} of {asked} lines, put into the source as told, mend it"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipes", default="", metavar="TEXT", help="recipes with TEXT in their names alone")
    parser.add_argument("--json", type=Path, help="also write the rows")
    parser.add_argument("--museum", action="store_true", help="the museum alone")
    asked = parser.parse_args()
    outcomes = [] if asked.recipes else list(museum())
    for fault in () if asked.museum else planted(asked.recipes):
        outcomes.append(of_fault(fault))
        print(outcomes[-1], file=sys.stderr, flush=True)
        if asked.json:
            asked.json.write_text(json.dumps([one._asdict() for one in outcomes], indent=1) + "\n", encoding="utf-8")
    print(told(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
