"""The smallest single step that makes every rule hold: tried on the events of all problems, and told with its line.

As `overlap` leaves steps out to find what is slow, a repair is found by putting one in: a barrier, a fence, a wait, an
arrival; or by changing one: a wait for one group more, another count. A step at a line is put in wherever a warp comes
to that line, in every problem. So it is tried as somebody would write it. Whether the kernel then computes what it
should is not looked at here.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice, pairwise, product
from typing import NamedTuple

from cookbook.check.pipeline.machine import NAMED_BARRIERS, Fault, Machine, Step, Warp, ordinal
from cookbook.check.pipeline.overlap import GROUPS
from cookbook.check.pipeline.programs import Event, Programs
from cookbook.simulate.lines import Line
from cookbook.simulate.values import LANES

__all__ = ["MOST", "Repair", "repaired", "said"]

MOST, LEAST, STEPS = 400, 40, 1 << 20  # tries; fewer of a long run: steps of all runs together
LOOSEST = 7  # groups that a wait may leave in flight
NEAR = 5  # lines before and after a fault's steps
WAITS = {
    "async copy": ("async wait", "cute.arch.cp_async_wait_group(0)", False),
    "mma": ("mma wait", "cute.nvgpu.warpgroup.wait_group(0)", False),
    "store": ("store wait", "cute.arch.cp_async_bulk_wait_group(0, read=True)", True),
    "tensor read": ("tensor wait", "cute.arch.fence_view_async_tmem_load()", True),
    "tensor write": ("tensor wait", "cute.arch.fence_view_async_tmem_store()", False),
}
FENCE = 'cute.arch.fence_proxy("async.shared", space="cta")'
ACQUIRE = "cute.nvgpu.cpasync.fence_tma_desc_acquire(tma_desc_ptr)"
DRAINED = "cute.arch.cp_async_bulk_commit_group(); cute.arch.cp_async_bulk_wait_group(0, read=True)"
CLUSTER = "cute.arch.cluster_arrive(); cute.arch.cluster_wait()"


@dataclass(frozen=True)
class Repair:
    """One step, in words; `code` is what to put before `line`, or after it: "" of a step that is changed."""

    text: str
    line: Line
    code: str = ""
    after: bool = False
    indent: int = 0  # spaces before `code`
    tries: int = 0  # steps that were tried, this one included


Make = Callable[["Here"], Sequence[Event]]


class Here(NamedTuple):
    """A warp that comes to a place for the `count`-th time, from 0 on: before the event of `number` in `events`."""

    warp: Warp
    events: tuple[Event, ...]
    number: int
    count: int
    times: int  # that it comes there in all

    @property
    def line(self) -> Line:
        return self.events[self.number].line


class Put(NamedTuple):
    """The step to put in."""

    words: str
    make: Make
    code: str = ""
    lanes: bool = True  # all lanes of a warp have to come to it
    looser: Callable[[], Put | None] = lambda: None  # one that demands less, if it is enough, too


class Point(NamedTuple):
    """A place in the programs: before the events of a line, or after them; `END`: before a warp ends."""

    line: Line
    after: bool = False

    def holds(self, event: Event) -> bool:
        if not self.line:
            return event.what == "exit"
        return event.line == self.line and event.line.file == self.line.file


class Try(NamedTuple):
    """A candidate: how it is told, and the programs with it."""

    repair: Repair
    changed: Callable[[Programs], Programs]
    looser: Callable[[], Try | None] = lambda: None


END = Point(Line())


def repaired(machines: Sequence[Machine], others: Iterable[Programs] = (), most: int = MOST) -> Repair | None:
    """The first step that makes every rule hold in all problems; None if no single one of those tried does.

    Args:
        machines: runs of programs, one of them with faults.
        others: the programs of problems that were not run; made only if there is a step to ask them about.
        most: steps to try.
    """
    bad = next(machine for machine in machines if machine.faults)
    rest = [machine.programs for machine in machines if machine is not bad]
    others = iter(others)
    most = min(most, max(LEAST, STEPS // len(bad.trace)))
    tries = 0

    def mends(one: Try) -> bool:
        nonlocal tries
        tries += 1
        if not _right(bad, one.changed(bad.programs)):
            return False
        rest.extend(others)  # those that are left
        return all(_right(bad, one.changed(programs)) for programs in rest)

    for one in islice(_candidates(bad), most):
        if mends(one):
            while (looser := one.looser()) is not None and mends(looser):
                one = looser
            return replace(one.repair, tries=tries)
    return None


def said(repair: Repair) -> str:
    """A repair as a line of a report."""
    tried = f"the {ordinal(repair.tries)} of the steps tried" if repair.tries > 1 else "the first step tried"
    return f"repair: {repair.text}; every rule holds then ({tried})"


def _right(like: Machine, programs: Programs) -> bool:
    return not Machine(programs, 1, like.documented, like.before).run()


def _candidates(machine: Machine) -> Iterator[Try]:
    """Steps to try, those that suit the first fault best before others; each once."""
    case, seen = Case(machine, machine.faults[0]), set()
    for one in case.candidates():
        if one.repair.text not in seen:
            seen.add(one.repair.text)
            yield one


# --- places ------------------------------------------------------------------------------------------------------


def _runs(point: Point, events: Sequence[Event]) -> list[tuple[int, int]]:
    """Return where a warp comes to a place, and leaves it: an operation that comes again begins another round."""
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    begins = None
    for number, event in enumerate(events):
        here = point.holds(event)
        if begins is not None and (not here or event.operation in seen):
            found.append((begins, number))
            begins = None
        if here and begins is None:
            begins, seen = number, set()
        seen.add(event.operation)
    return found if begins is None else [*found, (begins, len(events))]


def _inserted(point: Point, make: Make, programs: Programs) -> Programs:
    """The programs with a step wherever a warp comes to a place."""
    warps = {}
    for warp, events in programs.warps.items():
        places = [run[point.after] for run in _runs(point, events)]
        made: list[Event] = []
        for count, (first, number) in enumerate(pairwise([0, *places])):
            made += events[first:number]
            made += make(Here(warp, events, number, count, len(places)))
        warps[warp] = (*made, *events[places[-1] if places else 0 :])
    return replace(programs, warps=warps)


def _changed(change: Callable[[Warp, Event], Event | None], programs: Programs) -> Programs:
    """The programs with other events in place of some, or none."""
    warps = {}
    for warp, events in programs.warps.items():
        warps[warp] = tuple(new for event in events if (new := change(warp, event)) is not None)
    return replace(programs, warps=warps)


@lru_cache(maxsize=64)
def _parents(text: str) -> dict[ast.stmt, ast.stmt | None]:
    """The statement around each statement of a text; none of one that is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    found: dict[ast.stmt, ast.stmt | None] = {}
    todo: list[tuple[ast.AST, ast.stmt | None]] = [(tree, None)]
    while todo:
        around, statement = todo.pop()
        for node in ast.iter_child_nodes(around):
            if isinstance(node, ast.stmt):
                found[node] = statement
                todo.append((node, node))
            elif isinstance(node, ast.ExceptHandler):
                todo.append((node, statement))
    return found


class Told(NamedTuple):
    """A place in the source: before the first line of a statement, or after its last one."""

    line: Line
    indent: int = 0  # spaces before the statement
    words: str = ""  # in place of the line's: what ends there is a block, and the step comes after all of it


def _spoken(point: Point, lanes: bool, alone: bool, lines: set[tuple[str, int]], rounds: bool) -> Told | None:
    """The statement that a place is told by; None where it cannot be said.

    Args:
        lanes: all lanes have to come there.
        alone: one lane alone comes to the events of the line.
        lines: (file, line) of all events.
        rounds: the events of the line come again and again, with no other line between.
    """
    file = point.line.file
    parents = _parents("".join(linecache.getlines(file)))
    around = [node for node in parents if node.lineno <= point.line <= (node.end_lineno or node.lineno)]
    if not around:
        return None if lanes and alone else Told(point.line)
    node = min(around, key=lambda each: (each.end_lineno or each.lineno) - each.lineno)
    if point.after and isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.FunctionDef)):
        return None  # after the head of a block
    while (parent := parents.get(node)) is not None:
        elects = isinstance(parent, ast.With) and any("elect_one" in ast.unparse(x) for x in parent.items)
        if elects and lanes:
            alone = False
        elif not (isinstance(parent, (ast.For, ast.While)) and _only(parent, point, lines)):
            break
        elif rounds and _is_dynamic(parent):
            break  # else the programs do not tell the rounds of a loop that has no other step
        node = parent
    if lanes and alone:
        return None
    first, last = Line(node.lineno, file), Line(node.end_lineno or node.lineno, file)
    if not point.after:
        return Told(first, node.col_offset)
    return Told(last, node.col_offset, f"the block of line {first}" * hasattr(node, "body"))


def _only(loop: ast.stmt, point: Point, lines: set[tuple[str, int]]) -> bool:
    inside = {line for file, line in lines if file == point.line.file and loop.lineno <= line <= (loop.end_lineno or 0)}
    return inside == {int(point.line)}


def _is_dynamic(loop: ast.stmt) -> bool:
    """Return whether a loop is one of the trace, not unrolled while it was traced."""
    called = loop.iter.func if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else None
    return isinstance(loop, ast.While) or (
        called is not None and ast.unparse(called).endswith(("range", "range_dynamic"))
    )


# --- what to try -------------------------------------------------------------------------------------------------


class Case:
    """A fault of a run, and the steps that may end it."""

    def __init__(self, machine: Machine, fault: Fault) -> None:
        self.machine, self.fault, self.programs = machine, fault, machine.programs
        self.at, self.other = (None if s is None else machine.event(s) for s in (fault.at, fault.other))
        events = [event for events in self.programs.warps.values() for event in events]
        self.lines = {(event.line.file, int(event.line)) for event in events if event.line}
        self.numbers = {event.number for event in events if event.what in ("meet", "come")}

    def candidates(self) -> Iterator[Try]:
        """All of them."""
        rule = self.fault.rule
        if rule == "deadlock":
            yield from self._of_deadlock()
            return
        if rule in ("early arrival", "late wait", "arrivals", "bytes", "early wait", "named barrier"):
            yield from self._counts(self._at_barrier())
            yield from self._turns()
        if rule == "scope":
            yield from self._strict()
            return
        if rule == "setmaxnreg":
            yield from self._registers()
            return
        if rule == "dependent launch":
            step = self.fault.at or (self.machine.warps[0], 1)
            near = [self.machine.event(step).line, *self._near(step, -1)]
            points = [Point(line, after) for line in near for after in (False, True)]
            yield from self._at([Put("a wait", _one("grid wait"), "cute.arch.griddepcontrol_wait()")], points)
            return
        if rule == "tensor memory":
            yield from self._free()
            return
        yield from self._acquired()
        yield from self._longer()
        yield from self._at(put for put in (self._wait(), *self._fences()) if put is not None)
        if self.fault.text.startswith("some lanes"):
            yield from self._at([_SYNC_WARP])
        yield from self._at([self._sync_threads()])
        yield from self._named()
        yield from self._phases()
        if self.programs.launch.ctas > 1:
            yield from self._at([self._cluster(), Put("a wait for the cluster", _one("cluster wait"), _CLUSTER_WAIT)])
            yield from self._strict()

    # --- places --------------------------------------------------------------------------------------------------

    @cached_property
    def _points(self) -> list[Point]:
        """Where a step may be missing, those first that warps come to least often, and of these the nearest."""
        found: list[Point] = []
        steps = [step for step in (self.fault.at, self.fault.other) if step is not None]
        for after in (False, True):  # before the later step, after the earlier one; and the other way round
            found += [Point(self.machine.event(step).line, after != bool(n)) for n, step in enumerate(steps)]
        near = [(by, self._near(step, by)) for step in steps for by in (-1, 1)]
        for distance in range(NEAR):
            for by, lines in near:
                found += [Point(line, after) for line in lines[distance : distance + 1] for after in (by < 0, by > 0)]
        if self.fault.rule in ("proxy fence", "barrier") or self.fault.text.startswith("some lanes"):
            found[:4] = [found[n] for n in (1, 0, 3, 2)[: len(found[:4])]] if len(steps) > 1 else found[:4]
        found = list({(p.line.file, int(p.line), p.after): p for p in found if p.line}.values())
        return [*sorted(found, key=self._times), END]

    def _times(self, point: Point) -> int:
        """Return how often the warp that comes to a place most often does."""
        return max(len(_runs(point, events)) for events in self.programs.warps.values())

    def _near(self, step: Step, by: int) -> list[Line]:
        """The lines that a warp comes to before a step, or after it, the nearest first."""
        (warp, number), found = step, dict[tuple[str, int], Line]()
        events = self.programs.warps[warp]
        own = events[number - 1].line
        for event in events[number:] if by > 0 else reversed(events[: number - 1]):
            if event.line and (event.line != own or event.line.file != own.file):
                found.setdefault((event.line.file, int(event.line)), event.line)
            if len(found) == NEAR:
                break
        return list(found.values())

    def _at(self, puts: Iterable[Put], points: Sequence[Point] | None = None) -> Iterator[Try]:
        """Each step at each place."""
        places = self._points if points is None else points
        for put in puts:
            for point in places:
                if (one := self._put(put, point)) is not None:
                    yield one

    def _put(self, put: Put, point: Point) -> Try | None:
        def looser() -> Try | None:
            less = put.looser()
            return None if less is None else self._put(less, point)

        what = f"`{put.code}`" if put.code else put.words
        if not point.line:
            text = f"put {what} at the end of the kernel"
            return Try(Repair(text, Line(), put.code), _with(point, put.make), looser)
        alone, rounds = self._known(point)
        told = _spoken(point, put.lanes, alone, self.lines, rounds)
        if told is None:
            return None
        text = f"put {what} {'after' if point.after else 'before'} {told.words or f'line {told.line}'}"
        return Try(Repair(text, told.line, put.code, point.after, told.indent), _with(point, put.make), looser)

    def _known(self, point: Point) -> tuple[bool, bool]:
        """Return whether one lane alone comes to a place, and whether its events come again with no others between."""
        alone = rounds = False
        for events in self.programs.warps.values():
            runs = _runs(point, events)
            alone = alone or any(event.lanes < LANES for first, last in runs for event in events[first:last])
            rounds = rounds or any(one[1] == other[0] for one, other in pairwise(runs))
        return alone, rounds

    def _warps_at(self, point: Point) -> dict[int, list[int]]:
        """The warps that come to a place, by CTA."""
        found: dict[int, list[int]] = {}
        for (cta, warp), events in self.programs.warps.items():
            if any(point.holds(event) for event in events):
                found.setdefault(cta, []).append(warp)
        return found

    # --- waits and fences ----------------------------------------------------------------------------------------

    def _wait(self) -> Put | None:
        """A wait for what the earlier step asked for."""
        asked = self.other or self.at
        if self.fault.rule == "registers":
            filled = {e.what for e in self.programs.warps[self.fault.at[0]] if e.name == self.at.name}  # type: ignore[index,union-attr]
            kind = "tensor read" if "tensor read" in filled else "mma"
        else:
            kind = asked.what if asked is not None else ""
            if kind == "load" and asked is not None and asked.number:  # by a tensor map that changes
                return Put("a wait", _drained, DRAINED)
        return _wait_for(kind) if kind in WAITS else None

    def _fences(self) -> Iterator[Put]:
        rule = self.fault.rule
        if rule == "proxy fence" and self.at is not None and self.at.number:  # of a tensor map
            yield Put("a fence", _one("map release"), "cute.nvgpu.cpasync.fence_tma_desc_release()")
            yield Put("a fence", _one("map acquire", number=self.at.number), ACQUIRE)
        elif rule == "proxy fence":
            yield Put("a fence of proxies", _one("fence of proxies"), FENCE)
        if rule == "barrier":
            yield Put("a fence", _one("fence of barriers"), "cute.arch.mbarrier_init_fence()")
        if rule == "wgmma fence":
            yield Put("a fence", _one("mma fence"), "cute.nvgpu.warpgroup.fence()")
        if rule == "tensor fence":
            for flag, name in ((True, "after"), (False, "before")):
                code = f'cute.arch.inline_ptx("tcgen05.fence::{name}_thread_sync;")'
                yield Put("a fence", _one("tensor fence", flag=flag), code)

    def _longer(self) -> Iterator[Try]:
        """Waits that leave fewer groups in flight."""
        events = [event for events in self.programs.warps.values() for event in events]
        found = {(e.what, e.line.file, int(e.line), e.count): e.line for e in events if e.what in GROUPS and e.count}
        own = self.other.what if self.other is not None else ""
        for (what, file, _, count), line in found.items():
            if own in WAITS and WAITS[own][0] != what:
                continue
            for left in reversed(range(count)):

                def deeper(warp: Warp, event: Event, key=(what, file, line, count), left=left) -> Event:
                    same = (event.what, event.line.file, event.line, event.count) == key
                    return replace(event, count=left) if same else event

                text = f"leave {left} group{'s' * (left != 1)} of {GROUPS[what]} in flight in line {line}, not {count}"
                yield Try(Repair(text, line), _by(deeper))

    # --- barriers ------------------------------------------------------------------------------------------------

    def _sync_threads(self) -> Put:
        return Put("a barrier", _one("meet", number=0, count=self.programs.launch.threads), _SYNC_THREADS)

    def _cluster(self) -> Put:
        def make(here: Here) -> list[Event]:
            return [Event("cluster arrive", here.line), Event("cluster wait", here.line)]

        return Put("a barrier of the cluster", make, CLUSTER)

    def _named(self) -> Iterator[Try]:
        """A named barrier of the warps that come to a place; or of each warpgroup of them."""
        for point in self._points:
            by_cta = self._warps_at(point)
            if len({tuple(warps) for warps in by_cta.values()}) != 1:
                continue
            (warps, *_) = by_cta.values()
            groups = {first: [w for w in warps if w // 4 == first] for first in dict.fromkeys(w // 4 for w in warps)}
            for each in [{0: warps}, groups] if len(groups) > 1 else [{0: warps}]:
                if (put := self._of_groups(list(each.values()))) is not None:
                    one = self._put(put, point)
                    if one is not None:
                        yield one

    def _of_groups(self, groups: list[list[int]]) -> Put | None:
        free = iter(n for n in range(1, NAMED_BARRIERS) if n not in self.numbers)
        numbers = [self._met_by(group) or next(free, NAMED_BARRIERS) for group in groups]
        if max(numbers) == NAMED_BARRIERS:
            return None
        named = zip(numbers, groups, strict=True)
        of = {warp: (number, LANES * len(group)) for number, group in named for warp in group}

        def make(here: Here) -> list[Event]:
            number, threads = of[here.warp[1]]
            return [Event("meet", here.line, number=number, count=threads)]

        threads = LANES * len(groups[0])
        if len(groups) == 1:
            code = f"cute.arch.barrier(barrier_id={numbers[0]}, number_of_threads={threads})"
            return Put("a barrier", make, code)
        return Put(f"a named barrier of each warpgroup ({threads} threads)", make)

    def _met_by(self, group: list[int]) -> int | None:
        """The number of a named barrier that these warps use already, and no others."""
        used: dict[int, set[int]] = {}
        for (_, warp), events in self.programs.warps.items():
            for event in events:
                if event.what in ("meet", "come") and event.number:
                    used.setdefault(event.number, set()).add(warp)
        return next((number for number, warps in used.items() if warps == set(group)), None)

    def _strict(self) -> Iterator[Try]:
        """Arrivals at the cluster's barrier, or at one of another CTA, that order memory."""
        told = {
            "cluster arrive": "let `cluster_arrive` order memory in line {}, without `relaxed`",
            "arrive": "let the arrival in line {} have the scope `.cluster`",
        }
        arrivals = (e for events in self.programs.warps.values() for e in events if e.what in told and e.flag)
        for what, line in {(e.what, e.line.file, int(e.line)): (e.what, e.line) for e in arrivals}.values():

            def strict(warp: Warp, event: Event, what=what, line=line) -> Event:
                same = event.what == what and Point(line).holds(event)
                return replace(event, flag=False) if same else event

            yield Try(Repair(told[what].format(line), line), _by(strict))

    # --- phases of barriers in shared memory ---------------------------------------------------------------------

    def _phases(self) -> Iterator[Try]:
        """Waits, phase by phase, for the barriers that the earlier step is told by."""
        for places, said in self._arrays():
            for point in self._points:
                for start in (0, 1):
                    one = self._put(Put(f"a wait for {said}, first for parity {start},", _waits(places, start)), point)
                    if one is not None:
                        yield one

    def _acquired(self) -> Iterator[Try]:
        """Make the steps of `producer_acquire`: a wait until a stage is empty, an arrival that expects its bytes."""
        loads = next((event for event in (self.at, self.other) if event is not None and event.what == "load"), None)
        if loads is None or not loads.barriers:
            return
        every = [event for events in self.programs.warps.values() for event in events]
        expected = {e.barrier for e in every if e.what == "arrive" and e.bytes}
        told = [e for e in every if e.what == "load" and loads.barriers[0] in e.barriers]
        point, first = Point(loads.line), loads.barriers[0]
        rounds = [
            sum(any(first in e.barriers for e in events[begins:ends]) for begins, ends in _runs(point, events))
            for events in self.programs.warps.values()
        ]
        amount = sum(e.bytes for e in told) // max(1, *rounds)
        if first in expected:
            return
        waits_for = ((w, n) for w, es in self.programs.warps.items() for n, e in enumerate(es, 1) if e.what == "wait")
        readers = [s for s in waits_for if self.machine.event(s).barrier in loads.barriers][:1]
        for places, said in (each for step in readers for each in self._signalled_after(step)):

            def make(here: Here, places=places) -> Sequence[Event]:
                waits = _waits(places, 1)(here)
                load = next((e for e in here.events[here.number :] if e.what == "load" and e.barriers), None)
                mine = next((b for b in load.barriers if b[0] == here.warp[0]), None) if load else None
                return [*waits, Event("arrive", here.line, barrier=mine, count=1, bytes=amount)] if mine else waits

            words = f"`producer_acquire` (a wait for {said}, first for parity 1, and an arrival for {amount} bytes)"
            yield from self._at([Put(words, make, lanes=False)], [point])

    def _arrays(self) -> Iterator[tuple[list[int], str]]:
        """(places in shared memory, words) of the barriers that tell of a step, of the earlier one first."""
        for step in (self.fault.other, self.fault.at):
            if step is not None:
                yield from self._signalled_after(step)

    def _signalled_after(self, step: Step) -> Iterator[tuple[list[int], str]]:
        """The barriers that tell of a step: all of a line, or the next."""
        (warp, number), own = step, self.machine.event(step)
        events = self.programs.warps[warp]
        telling = [own] if own.barriers else [e for e in events[number:] if _signalled(e)][:64]
        for first in list({(e.line.file, int(e.line)): e for e in telling}.values())[:3]:
            every = _ordered(b for e in events if Point(first.line).holds(e) for b in _signalled(e))
            yield every, f"the mbarrier{'s' * (len(every) > 1)} told in line {first.line}"
            if len(every) > 1:
                one = _ordered(_signalled(first))[:1]
                yield one, f"mbarrier {one[0] // 8} told in line {first.line}"

    def _at_barrier(self) -> set[int]:
        """Places of the barriers that a fault may be about: those that its step uses."""
        event = self.at
        if event is None:
            return set()
        used = {event.barrier, *event.barriers} - {None}
        return {barrier[1] for barrier in used}  # type: ignore[index]

    def _counts(self, places: set[int]) -> Iterator[Try]:
        """Other arrivals, other counts of arrivals, other bytes: at the barriers of these places."""
        all_events = [(warp, e) for warp, events in self.programs.warps.items() for e in events]
        at = [(warp, e) for warp, e in all_events if any(b[1] in places for b in _signalled(e))]
        lines = {(e.line.file, int(e.line)): e.line for _, e in at if e.what == "arrive"}
        for line in lines.values():
            here = [e for _, e in at if e.what == "arrive" and Point(line).holds(e)]
            if all(not e.bytes for e in here):
                for count in {1: (LANES,), LANES: (1,)}.get(here[0].count, ()):
                    words = "all lanes" if count > 1 else "one lane"
                    yield self._with_count("arrive", line, places, f"let {words} arrive in line {line}", count=count)
            else:
                brought = sum(e.bytes for _, e in at if e.what == "load" for b in e.barriers if b[1] in places)
                phases = sum(1 for e in here if e.bytes)
                if phases and brought % phases == 0:
                    amount = brought // phases
                    text = f"expect {amount} bytes in line {line}, not {here[0].bytes}"
                    yield self._with_count("arrive", line, places, text, bytes=amount)
        inits = [e for _, e in all_events if e.what == "init" and e.barrier[1] in places]  # type: ignore[index]
        for init in {(e.line.file, int(e.line), e.count): e for e in inits}.values():
            for count in self._totals(init, all_events):
                text = f"initialise for {count} arrivals in line {init.line}, not {init.count}"
                yield self._with_count("init", init.line, None, text, of=init.count, count=count)
        for line in lines.values():
            yield self._without("arrive", line, places)

    def _totals(self, init: Event, events: list[tuple[Warp, Event]]) -> list[int]:
        """Return how many arrivals a phase could need, from how many there are."""
        came = sum(_arrivals(e, init.barrier) for _, e in events)
        waited: dict[Warp, int] = {}
        for warp, e in events:
            if e.what == "wait" and e.barrier == init.barrier:
                waited[warp] = waited.get(warp, 0) + 1
        most = max(waited.values(), default=1)
        found = [came // n for n in (most, most - 1, most + 1) if n > 0 and came and came % n == 0]
        return [count for count in dict.fromkeys(found) if count != init.count]

    def _with_count(self, what: str, line: Line, places: set[int] | None, text: str, of: int = -1, **new: int) -> Try:
        def other(warp: Warp, event: Event) -> Event:
            same = event.what == what and Point(line).holds(event) and (of < 0 or event.count == of)
            if same and places is not None:
                same = any(b[1] in places for b in _signalled(event)) and (not event.bytes or "bytes" in new)
            return replace(event, **new) if same else event

        return Try(Repair(text, line), _by(other))

    def _without(self, what: str, line: Line, places: set[int]) -> Try:
        def other(warp: Warp, event: Event) -> Event | None:
            gone = event.what == what and Point(line).holds(event) and any(b[1] in places for b in _signalled(event))
            return None if gone else event

        return Try(Repair(f"leave out the arrival in line {line}", line), _by(other))

    # --- deadlocks -----------------------------------------------------------------------------------------------

    def _of_deadlock(self) -> Iterator[Try]:
        at, warps = self.machine.at, self.programs.warps
        stuck = {warp: warps[warp][at[warp]] for warp in warps if at[warp] < len(warps[warp])}
        places = {event.barrier[1] for event in stuck.values() if event.what == "wait" and event.barrier}
        if any(event.what == "registers taken" for event in stuck.values()):
            yield from self._registers()
        yield from self._counts(places)
        yield from self._turns()
        yield from self._other_parities(stuck)
        if any(event.what in ("meet", "cluster wait") for event in stuck.values()):
            yield from self._missing(stuck)
        yield from self._arrivals(stuck)

    def _other_parities(self, stuck: dict[Warp, Event]) -> Iterator[Try]:
        """Waits of one line for the other parity, or phase by phase."""
        lines = {(e.line.file, int(e.line)): e.line for e in stuck.values() if e.what == "wait"}
        for line in lines.values():

            def other(warp: Warp, event: Event, line=line) -> Event:
                same = event.what in ("wait", "look") and Point(line).holds(event)
                return replace(event, count=1 - event.count) if same else event

            yield Try(Repair(f"wait for the other parity in line {line}", line), _by(other))

    def _missing(self, stuck: dict[Warp, Event]) -> Iterator[Try]:
        """A barrier for those that leave it out: before or after the last line of theirs."""
        for (cta, warp), events in self.programs.warps.items():
            own = [event.line for event in events if event.line]
            if cta or (cta, warp) in stuck or not own:
                continue
            for point in (Point(own[-1], True), Point(own[-1])):
                for put in (self._cluster(), self._sync_threads()):
                    if (one := self._put(put, point)) is not None:
                        yield one

    def _arrivals(self, stuck: dict[Warp, Event]) -> Iterator[Try]:
        """An arrival more, stage by stage, at the barriers that a warp waits for in vain."""
        for warp, event in stuck.items():
            if event.what != "wait" or event.barrier is None or event.barrier not in self.machine.barriers:
                continue
            waits = [e for e in self.programs.warps[warp] if e.what == "wait" and Point(event.line).holds(e)]
            places = _ordered(e.barrier for e in waits if e.barrier)
            needed = self.machine.barriers[event.barrier].count
            for point in self._after_waits(warp):
                comers = self._warps_at(point).get(event.barrier[0], [])
                each = needed // len(comers) if comers and needed % len(comers) == 0 else 1
                count = each if each in (1, LANES) else 1
                mmas = any(e.what == "tensor mma" for w in comers for e in self.programs.warps[event.barrier[0], w])
                for what, said in (("tensor commit", "a commit of its tcgen05.mma to"), ("arrive", "an arrival at")):
                    if what == "arrive" or mmas:
                        for skips in (0, 1):
                            words = f"{said} the mbarrier that line {event.line} waits for, stage by stage"
                            words += " of all lanes" * (count > 1) + ", but not the first time" * skips
                            put = Put(words, self._arrives(what, places, count, skips), lanes=count > 1)
                            if (one := self._put(put, point)) is not None:
                                yield one

    def _arrives(self, what: str, places: list[int], count: int, skips: int) -> Make:
        """Arrivals one barrier after the other, each warp going on where its own arrivals have come to."""

        def make(here: Here) -> list[Event]:
            if here.count < skips:
                return []
            before = [e for e in here.events if any(b[1] in places for b in _signalled(e)) and e.what == what]
            own = _ordered(b for e in before for b in _signalled(e))
            ring = sorted(places)  # stages follow one another in shared memory
            first = ring.index(own[0]) if own else 0
            order = ring[first:] + ring[:first]
            come = sum(1 for e in here.events[: here.number] if e in before) if before else 0
            barrier = (here.warp[0], order[(come + here.count - skips) % len(order)])
            if what == "arrive":
                return [Event("arrive", here.line, barrier=barrier, count=count)]
            return [Event(what, here.line, barriers=(barrier,), count=count)]

        return make

    def _after_waits(self, but: Warp) -> list[Point]:
        """After the lines of other warps of the CTA: those first that wait, and of these the last."""
        found: dict[tuple[str, int], tuple[bool, Line]] = {}
        for warp, events in self.programs.warps.items():
            if warp[0] == but[0] and warp != but:
                own = [event for event in events if event.line and event.what not in ("init", "meet")]
                lines = {(e.line.file, int(e.line)): e for e in reversed(own)}
                for key, event in list(lines.items())[: 3 * NEAR]:
                    found.setdefault(key, (not event.what.endswith("wait"), event.line))
        return [Point(line, True) for _, line in sorted(found.values(), key=lambda each: each[0])]

    def _turns(self) -> Iterator[Try]:
        """Named barriers by which groups of warps take turns: another number, or an arrival more, or a wait more."""
        by_warp = {
            warp: {what: [e for e in events if e.what == what and e.number] for what in ("come", "meet")}
            for warp, events in self.programs.warps.items()
        }
        numbers = sorted(self.numbers - {0})
        for line in {(e.line.file, int(e.line)): e.line for of in by_warp.values() for e in of["come"]}.values():
            for by in range(1, len(numbers)):

                def other(warp: Warp, event: Event, line=line, by=by) -> Event:
                    if event.what != "come" or not Point(line).holds(event):
                        return event
                    return replace(event, number=numbers[(numbers.index(event.number) + by) % len(numbers)])

                words = "the other warps' barrier" if len(numbers) == 2 else "another barrier"
                yield Try(Repair(f"arrive at {words} in line {line}, not at one's own", line), _by(other))
        yield from self._turn("come", "meet", by_warp)
        yield from self._turn("meet", "come", by_warp)

    def _turn(self, what: str, other: str, by_warp: dict[Warp, dict[str, list[Event]]]) -> Iterator[Try]:
        """Arrivals at (waits for) the named barriers of others, which have too few."""
        comers: dict[int, set[Warp]] = {}
        for warp, of in by_warp.items():
            for event in (*of["come"], *of["meet"]):
                comers.setdefault(event.number, set()).add((0, warp[1]))
        lacks = {e.number: e for of in by_warp.values() for e in of[other] if e.count > LANES * len(comers[e.number])}
        if not lacks:
            return

        def make(here: Here, last: bool) -> list[Event]:
            own = {e.number for e in by_warp[here.warp][other]}
            target = next((number for number in lacks if number not in own), None)
            if target is None or (here.count + 1 == here.times and not last):
                return []
            return [Event(what, here.line, number=target, count=lacks[target].count)]

        words = "an arrival at" if what == "come" else "a wait for"
        users = {warp for warp, of in by_warp.items() if of[other]}
        lines = {(e.line.file, int(e.line)): e.line for w in users for e in self.programs.warps[w] if e.line}
        for line in lines.values():
            for after, last in product((False, True), (True, False)):
                text = f"{words} the other warps' named barrier" + ", but not the last time," * (not last)
                one = self._put(Put(text, partial(make, last=last)), Point(line, after))
                if one is not None:
                    yield one

    def _free(self) -> Iterator[Try]:
        """Tensor memory is freed by the warp that allocates it."""
        made = {warp: e for warp, es in self.programs.warps.items() for e in es if e.what == "tensor alloc"}
        if not made or any(e.what == "tensor free" for es in self.programs.warps.values() for e in es):
            return

        def make(here: Here) -> list[Event]:
            event = made.get(here.warp)
            return [] if event is None else [replace(event, what="tensor free", line=here.line, targets=())]

        own = [e.line for e in self.programs.warps[next(iter(made))] if e.line]
        near = list({(line.file, int(line)): line for line in reversed(own)}.values())[: 2 * NEAR]
        columns = next(iter(made.values())).count
        put = Put(f"a free of its {columns} columns of tensor memory, by the warp that allocates them,", make)
        yield from self._at([put], [END, *(Point(line, True) for line in near), *(Point(line) for line in near)])

    # --- registers -----------------------------------------------------------------------------------------------

    def _registers(self) -> Iterator[Try]:
        """The decrease of a line, for warps that leave it out."""
        programs = self.programs.warps
        given = {(e.line.file, int(e.line)): e for es in programs.values() for e in es if e.what == "registers given"}
        without = {warp for warp, es in programs.items() if not any(e.what.startswith("registers ") for e in es)}
        names = ", ".join(str(warp) for cta, warp in sorted(without) if not cta)
        whole = f"put `cute.arch.setmaxregister_decrease(24)` into warps {names}"

        def first(of: Event | None) -> Callable[[Programs], Programs]:
            def changed(programs: Programs) -> Programs:
                warps = dict(programs.warps)
                for warp in without & set(warps):
                    new = of or Event("registers given", warps[warp][0].line, count=24)
                    warps[warp] = (new, *warps[warp])
                return replace(programs, warps=warps)

            return changed

        for event in given.values():
            text = f"let all warps of the warpgroup execute the `setmaxregister_decrease` of line {event.line}"
            yield Try(Repair(text, event.line), first(event))
        if without:
            yield Try(Repair(whole, self.at.line if self.at else Line()), first(None))


# --- parts of steps ----------------------------------------------------------------------------------------------

_SYNC_THREADS, _CLUSTER_WAIT = "cute.arch.sync_threads()", "cute.arch.cluster_wait()"


def _one(what: str, **fields: int | bool) -> Make:
    return lambda here: [Event(what, here.line, **fields)]  # type: ignore[arg-type]


def _drained(here: Here) -> list[Event]:
    """A bulk group that ends here, and a wait until it has read."""
    return [Event("store commit", here.line), Event("store wait", here.line, flag=True)]


def _wait_for(kind: str, left: int = 0) -> Put:
    """A wait for what a warp asked for that leaves some groups in flight; looser ones leave more."""
    what, code, flag = WAITS[kind]
    more = left < LOOSEST and what in GROUPS
    code = code.replace("(0", f"({left}")
    return Put(
        "a wait", _one(what, flag=flag, count=left), code, looser=lambda: _wait_for(kind, left + 1) if more else None
    )


_SYNC_WARP = Put("a barrier of the warp", _one("warp sync"), "cute.arch.sync_warp()")


def _with(point: Point, make: Make) -> Callable[[Programs], Programs]:
    return lambda programs: _inserted(point, make, programs)


def _by(change: Callable[[Warp, Event], Event | None]) -> Callable[[Programs], Programs]:
    return lambda programs: _changed(change, programs)


def _waits(places: list[int], start: int) -> Make:
    """Waits for one barrier after the other, round after round."""

    def make(here: Here) -> list[Event]:
        n, stages = here.count, len(places)
        return [Event("wait", here.line, barrier=(here.warp[0], places[n % stages]), count=(n // stages + start) % 2)]

    return make


def _signalled(event: Event) -> tuple[tuple[int, int], ...]:
    """The barriers that an event tells something."""
    if event.what in ("arrive", "async arrive") and event.barrier:
        return (event.barrier,)
    return event.barriers if event.what in ("load", "tensor commit") else ()


def _arrivals(event: Event, barrier: tuple[int, int] | None) -> int:
    if event.what == "load":
        return 0
    return event.count * sum(1 for each in _signalled(event) if each == barrier)


def _ordered(barriers: Iterable[tuple[int, int]]) -> list[int]:
    """Places of barriers, in the order in which they are first used."""
    return list(dict.fromkeys(place for _, place in barriers))
