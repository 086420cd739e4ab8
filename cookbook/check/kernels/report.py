"""Report what a check of a kernel found: as text, as JSON and as SARIF."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cookbook.check.pipeline.order import Order
from cookbook.simulate.lines import Line

__all__ = ["FAULT", "NOT_ASKED", "NOT_FOLLOWED", "Found", "Launched", "Place", "Report", "Step", "sarif", "status"]

FAULT, NOT_ASKED, NOT_FOLLOWED = 1, 2, 3  # exit statuses
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Place:
    """A line of a file."""

    file: str = ""  # "" where no line is known
    line: int = 0
    function: str = ""
    source: str = ""

    @classmethod
    def of(cls, line: Line | int) -> Place:
        """Return where an operation stands."""
        if not isinstance(line, Line) or not line:
            return cls()
        return cls(line.file, int(line), line.function, line.source)

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line}" if self.file else "?"


@dataclass(frozen=True)
class Found:
    """One thing that is wrong, or that a comment allows."""

    rule: str  # "race", "deadlock", "bank conflict", ...
    text: str
    at: Place
    other: Place = Place()  # the step that `at` is not ordered after
    order: tuple[str, ...] = ()  # steps that lead there, the last one `at`
    waits: tuple[str, ...] = ()  # of a deadlock: who waits for whom
    instead: str = ""  # of a bank conflict: a layout that has none
    allowed: str = ""  # the reason that a comment gives


@dataclass(frozen=True)
class Step:
    """A single step that makes every rule hold in a launch, in words."""

    text: str
    at: Place  # the line that it names; of no file where it is the end of the kernel
    code: str = ""  # what to put before that line, or after it; "" of a step that is changed
    after: bool = False
    indent: int = 0  # spaces before `code`
    tries: int = 0


@dataclass(frozen=True)
class Launched:
    """A launch that was followed."""

    kernel: str
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    warps: int
    barriers: int
    steps: int

    def __str__(self) -> str:
        grid, cluster, block = ("x".join(map(str, each)) for each in (self.grid, self.cluster, self.block))
        counts = f"{self.warps} warps, {self.barriers} mbarriers, {self.steps} steps"
        return f"{self.kernel}: grid {grid}, cluster {cluster}, block {block}: {counts}"


@dataclass
class Report:
    """Findings of one function with its arguments."""

    name: str
    arch: str
    given: str = ""  # the arguments in words, sizes that were chosen among them
    launches: list[Launched] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    allowed: list[Found] = field(default_factory=list)
    not_followed: list[Found] = field(default_factory=list)
    repairs: list[Step] = field(default_factory=list)  # of each launch at most one
    orders: list[Order] = field(default_factory=list)  # that lead to what was found: for pictures
    judged: list[str] = field(default_factory=list)  # what was looked at
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """All of it was followed, and nothing is wrong."""
        return not self.found and not self.not_followed

    @property
    def status(self) -> int:
        """0, FAULT or NOT_FOLLOWED."""
        return FAULT if self.found else NOT_FOLLOWED if self.not_followed else 0

    def to_json(self) -> dict[str, Any]:
        told = asdict(self) | {"ok": self.ok, "status": self.status}
        return {name: value for name, value in told.items() if name != "orders"}

    def __str__(self) -> str:
        """Several lines: the verdict, what is wrong, each with an order of steps that leads there."""
        verdict = {0: "no fault", FAULT: _count(len(self.found), "fault"), NOT_FOLLOWED: "not all followed"}
        lines = [f"{self.name} ({self.arch}): {verdict[self.status]}, {self.seconds:.1f} s"]
        lines += [f"  {line}" for line in [self.given, *map(str, self.launches)] if line]
        if self.judged:
            lines.append("  looked at: " + ", ".join(self.judged))
        for one in self.found:
            lines += _told(one)
        lines += [f"{one.at}: repair: {one.text}; every rule holds then" for one in self.repairs]
        lines += [f"{one.at}: allowed {one.rule}: {one.allowed}" for one in self.allowed]
        for one in self.not_followed:
            lines += [f"{one.at}: not followed, because {one.text}", *_source(one.at)]
        return "\n".join(lines)


def _told(one: Found) -> list[str]:
    lines = [f"{one.at}: {one.rule}: {one.text}", *_source(one.at)]
    if one.other.file:
        lines += [f"  against {one.other}", *_source(one.other)]
    if one.waits:
        lines += ["  who waits for whom:", *(f"    {line}" for line in one.waits)]
    if one.instead:
        lines.append(f"  instead: {one.instead}")
    if one.order:
        lines += ["  an order that leads there:", *(f"    {step}" for step in one.order)]
    return lines


def _source(place: Place) -> list[str]:
    return [f"    {place.source}"] if place.source else []


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _short(file: str) -> str:
    """Relative to where one is, if it lies below."""
    path = Path(file)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def status(reports: Iterable[Report]) -> int:
    """The exit status of a command: a fault counts more than what was not followed."""
    each = {report.status for report in reports}
    return FAULT if FAULT in each else NOT_FOLLOWED if NOT_FOLLOWED in each else 0


def sarif(reports: Iterable[Report]) -> dict[str, Any]:
    """SARIF 2.1.0, so that a pull request shows each finding at its line."""
    results: list[dict[str, Any]] = []
    for report in reports:
        for one in report.found:
            results.append(_result(report, one, "error", one.rule, f"{one.rule}: {one.text}"))
        for step in report.repairs:
            found = Found("repair", f"{step.text}; every rule holds then", step.at)
            results.append(_result(report, found, "note", "repair", f"repair: {found.text}"))
        for one in report.allowed:
            result = _result(report, one, "error", one.rule, f"{one.rule}: {one.text}")
            results.append(result | {"suppressions": [{"kind": "inSource", "justification": one.allowed}]})
        for one in report.not_followed:
            text = f"not followed, because {one.text}"
            results.append(_result(report, one, "warning", "not followed", text))
    rules = [{"id": name} for name in sorted({result["ruleId"] for result in results})]
    driver = {"name": "cookbook check", "rules": rules}
    return {"$schema": SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(report: Report, one: Found, level: str, rule: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"ruleId": rule.replace(" ", "-"), "level": level}
    order = "".join(f"\n{step}" for step in one.order)
    found["message"] = {"text": f"{report.name}: {text}{order}"}
    if one.at.file:
        found["locations"] = [_location(one.at)]
    if one.other.file:
        found["relatedLocations"] = [_location(one.other) | {"message": {"text": "the other step"}}]
    return found


def _location(place: Place) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": _short(place.file)},
            "region": {"startLine": place.line},
        }
    }
