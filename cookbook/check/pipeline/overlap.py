"""Waits that are right and leave nothing in flight: the pipeline around them is none.

Such a wait for groups (of cp.async, wgmmas or stores by TMA) may let one more stay in flight. Which ones do is tried:
with one more the same programs break no rule.
"""

from __future__ import annotations

from dataclasses import replace

from cookbook.check.pipeline.machine import Fault, Machine
from cookbook.check.pipeline.programs import Event, Programs

__all__ = ["serial_waits"]

GROUPS = {"mma wait": "wgmma", "store wait": "stores by TMA", "async wait": "cp.async"}


def serial_waits(machine: Machine) -> list[Fault]:
    """The waits of a run without faults that drain a pipeline again and again, and need not."""
    found = []
    for (what, line), drains in machine.drains.items():
        if what not in GROUPS or max(drains.values()) < 2:
            continue  # tcgen05.ld and .st have no groups; and one that drains once is the end of a loop
        relaxed = _relaxed(machine.programs, what, line)
        if not Machine(relaxed, most=1).run():
            text = f"right, but nothing overlaps: the wait in line {line} leaves no group of {GROUPS[what]} in flight"
            found.append(Fault("slow", f"{text}; wait_group(1) is as right there"))
    return found


def _relaxed(programs: Programs, what: str, line: int) -> Programs:
    """The programs with one group more in flight after a wait."""

    def changed(event: Event) -> Event:
        return replace(event, count=event.count + 1) if (event.what, event.line) == (what, line) else event

    return replace(programs, warps={warp: tuple(map(changed, events)) for warp, events in programs.warps.items()})
