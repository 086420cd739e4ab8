"""Steps that are right and cost time for nothing. Each is tried: without it the same programs break no rule either.

* A wait for groups (of cp.async, wgmmas or stores by TMA) that may let one more stay in flight.
* A wait until stores by TMA are in global memory, where it is enough that shared memory has been read (`.read`).
* A barrier of the whole CTA or cluster next to another one.

Such a step is looked for in the first problem. It is a fault if it costs time in that one, and is needed in none. So is
a grid of persistent CTAs of which not all run at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from cookbook.check.pipeline.machine import Fault, Machine
from cookbook.check.pipeline.programs import Event, Launch, Programs

__all__ = ["large_grids", "slow_steps"]

SM_BYTES, CTA_BYTES, SM_THREADS = 228 << 10, 1 << 10, 2048  # of shared memory, and what a CTA takes besides; threads

GROUPS = {"mma wait": "wgmma", "store wait": "stores by TMA", "async wait": "cp.async"}
PROLOGUE = ("init", "fence of barriers")


class Suspect(NamedTuple):
    """A step that some problem does not need."""

    text: str
    needless: Callable[[Programs], bool]  # whether a problem's programs do without it


def slow_steps(machines: Sequence[Machine], others: Iterable[Programs]) -> list[Fault]:
    """The steps that cost time and that no problem needs.

    Args:
        machines: runs of the first problem's programs, without faults.
        others: the programs of all other problems; made only if there is something to ask of them.
    """
    first = machines[0]
    left = [*_shallow_waits(first), *_full_waits(first.programs), *_barriers_in_a_row(first.programs)]
    programs = chain((machine.programs for machine in machines), others)
    while left and (asked := next(programs, None)) is not None:
        left = [one for one in left if one.needless(asked)]
    return [Fault("slow", f"right, but {one.text}") for one in left]


# --- the grid ----------------------------------------------------------------------------------------------------


def large_grids(launches: Callable[[int], Launch], config: Any, sms: int) -> list[Fault]:
    """A grid that grows with the GPU, and has more CTAs than run on it at once: those that are left begin last.

    Args:
        launches: what is launched for many tiles, by the number of SMs.
        config: the recipe's `Config`.
        sms: number of SMs.
    """
    grids = [int(np.prod(launches(count).grid)) for count in (sms, 2 * sms)]
    threads, size = (getattr(config, name, 1) for name in ("threads", "smem_bytes"))
    fit = sms * max(1, min(SM_BYTES // (size + CTA_BYTES), SM_THREADS // threads))
    if grids[0] == grids[1] or grids[0] <= fit:
        return []
    text = f"right, but the grid has {grids[0]} CTAs, and {fit} run at once on {sms} SMs"
    return [
        Fault("slow", f"{text}: the others begin when these have ended; a persistent grid has no more than run at once")
    ]


def _right(programs: Programs) -> bool:
    return not Machine(programs, most=1).run()


# --- waits for groups --------------------------------------------------------------------------------------------


def _shallow_waits(machine: Machine) -> Iterator[Suspect]:
    """The waits that again and again wait for a group that may stay in flight."""
    for (what, line, count), times in machine.stalls.items():
        if what not in GROUPS or max(times.values()) < 2:
            continue  # tcgen05.ld and .st have no groups; and one that waits once is the end of a loop
        why = "fewer groups are in flight than the stages allow" if count else "nothing overlaps"
        leaves = f"leaves {count or 'no'} group{'s' * (count > 1)} of {GROUPS[what]} in flight"
        text = f"{why}: the wait in line {line} {leaves}; wait_group({count + 1}) is as right there"
        yield Suspect(text, partial(_right_deeper, what, line, count))


def _right_deeper(what: str, line: int, count: int, programs: Programs) -> bool:
    """Return whether one group more may be in flight after a wait."""

    def changed(event: Event) -> Event:
        same = (event.what, event.line, event.count) == (what, line, count)
        return replace(event, count=count + 1) if same else event

    return _right(replace(programs, warps={warp: tuple(map(changed, each)) for warp, each in programs.warps.items()}))


def _full_waits(programs: Programs) -> Iterator[Suspect]:
    """The waits of a warp's own stores until all of memory has them, not only until TMA has read them."""
    storing = [events for events in programs.warps.values() if any(event.what == "store" for event in events)]
    waits = {event.line for events in storing for event in events if event.what == "store wait" and not event.flag}
    for line in sorted(waits):
        text = f"the wait in line {line} lasts until the stores by TMA are in global memory, where no warp looks"
        yield Suspect(f"{text} at them; cp.async.bulk.wait_group.read is as right there", _only_stores)


def _only_stores(programs: Programs) -> bool:
    """Return whether nothing but TMA's stores has to do with what they store, and nothing tells another CTA of them."""
    events = list(chain.from_iterable(programs.warps.values()))
    stored = {event.name for event in events if event.what == "store"}
    others = [event for event in events if event.what == "global" or (event.what == "load" and not event.flag)]
    touched = {event.name for event in others}
    told = any(event.what == "global" and event.flag for event in others)
    return not told and "" not in stored | touched and not stored & touched


# --- barriers of all ---------------------------------------------------------------------------------------------


class _Barrier(NamedTuple):
    """A barrier of a whole CTA or cluster, in the program of a warp."""

    begin: int
    end: int
    wide: bool  # of all CTAs of the launch's clusters
    relaxed: bool  # it orders no memory
    lines: tuple[int, ...]


def _barriers_in_a_row(programs: Programs) -> Iterator[Suspect]:
    """The barriers that another one makes superfluous."""
    superfluous: dict[tuple[int, ...], bool] = {}
    for events in programs.warps.values():
        for lines, one in _superfluous(events, programs):
            superfluous[lines] = superfluous.get(lines, True) and one
    for lines in (lines for lines, one in superfluous.items() if one):
        text = f"the barrier in line {lines[0]} orders nothing that the one next to it does not"
        yield Suspect(text, partial(_right_without, lines))


def _superfluous(events: Sequence[Event], programs: Programs) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Each barrier's lines, and whether it does nothing that one next to it does not."""
    found = list(_barriers(events, programs))
    by: dict[int, bool] = defaultdict(bool)
    for n, (one, other) in enumerate(pairwise(found)):
        between, before = events[one.end : other.begin], events[: one.begin]
        quiet = all(event.what in PROLOGUE for event in (*before, *between))
        if (quiet or not between) and _does_more(other, one):
            by[n] = True
        elif not between and _does_more(one, other):
            by[n + 1] = True
    return ((one.lines, by[n]) for n, one in enumerate(found))


def _does_more(one: _Barrier, other: _Barrier) -> bool:
    """Return whether a barrier does at least what another does."""
    return one.wide >= other.wide and one.relaxed <= other.relaxed


def _barriers(events: Sequence[Event], programs: Programs) -> Iterator[_Barrier]:
    alone = programs.launch.ctas == 1
    for n, event in enumerate(events):
        if event.what == "meet" and event.count == programs.launch.threads:
            yield _Barrier(n, n + 1, alone, False, (event.line,))
        elif event.what == "cluster arrive" and events[n + 1].what == "cluster wait":
            yield _Barrier(n, n + 2, True, event.flag, (event.line, events[n + 1].line))


def _right_without(lines: tuple[int, ...], programs: Programs) -> bool:
    """Return whether the barriers in these lines are superfluous all, and no rule is broken without them."""
    warps = {}
    for warp, events in programs.warps.items():
        if not all(one for at, one in _superfluous(events, programs) if at == lines):
            return False
        gone = {n for one in _barriers(events, programs) if one.lines == lines for n in range(one.begin, one.end)}
        warps[warp] = tuple(event for n, event in enumerate(events) if n not in gone)
    return _right(replace(programs, warps=warps))
