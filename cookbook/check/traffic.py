"""Levels "banks" and "cost": wavefronts by line, and what a cluster moves.

A line is right if its instructions take their ideal, or what the recipe says that they take (`expected_excess`), or if
a comment in the kernel allows it, as in any other kernel: `# cookbook: allow bank-conflict, WHY`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cookbook.access import LANES
from cookbook.check.banks import Count, Counter
from cookbook.check.cost import Cost, Tally
from cookbook.check.findings import Finding
from cookbook.check.kernels.allowed import divided
from cookbook.check.kernels.judging import conflict
from cookbook.check.layout import expected_excess
from cookbook.check.pipeline.programs import Problem

__all__ = ["Both", "Line", "figures", "judged"]

# Which instructions carry out a copy of `TiledCopies`, by the first letters of its name.
COPIES = {"g2s": ("cp.async",), "s2r": ("ldmatrix", "ld"), "r2s": ("stmatrix", "st"), "s2g": ("ld",)}
PADDED = "padded rows begin in the middle of lines"


class Both(Counter, Tally):
    """Counts wavefronts and what is moved, where *pipeline* follows a warp."""


def figures(problem: Problem, cost: Cost) -> dict[str, Any]:
    """Figures of level "cost"."""
    moved = {" to ".join(way): amount for way, amount in sorted(cost.bytes.items())}
    return {
        "problem": str(problem),
        **vars(cost),
        "bytes": moved,
        "instructions": dict(sorted(cost.instructions.items())),
    }


@dataclass(frozen=True)
class Line:
    """A line's instructions of one kind, judged."""

    count: Count
    ok: bool
    why: str  # of one that takes more than its ideal: why it may, or what is wrong with a comment that says so

    def finding(self) -> Finding:
        """Return what level "banks" says if it fails."""
        return Finding(f"line {self.count.line}", self.ok, f"{self.why} ({self.count.line.source})")

    def figures(self) -> dict[str, Any]:
        """Figures of level "banks"."""
        numbers = ("what", "width", "instructions", "wavefronts", "at_most", "ideal")
        return {"line": str(self.count.line), **{key: getattr(self.count, key) for key in numbers}, "why": self.why}


def judged(module: Any, config: Any, counts: Iterable[Count]) -> list[Line]:
    """Each line; right as above."""
    return [_judged(one, *_expected(module, config, one.what)) for one in counts]


def _judged(one: Count, excess: int, why: str) -> Line:
    if one.avoidable <= excess:
        return Line(one, True, why if one.avoidable > 0 else "")
    wrong, allowed = divided([conflict(one)])
    return Line(one, not wrong, wrong[0].text if wrong else allowed[0].allowed)


def _expected(module: Any, config: Any, what: str) -> tuple[int, str]:
    """Wavefronts above the ideal that the recipe says of the copies by such instructions, the most, and why."""
    if what == "cp.async" and getattr(config, "padding", 0):
        return LANES, PADDED
    each = [one for field, one in expected_excess(module, config).items() if what in COPIES.get(field[:3], ())]
    return max(each, default=(0, ""))
