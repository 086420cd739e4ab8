"""Find who waits for whom: the roles of a kernel's warps, and the barriers between them, read off their programs.

A role is what warps have in common that wait for the same barriers and signal the same ones. Barriers that the same
warps wait for and signal are one array, as the stages of a pipeline are. The names are the field's: a copy or the
tensor core fills `full`, and who reads it gives it back by `empty`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from cookbook.check.pipeline.programs import Event, Programs
from cookbook.check.pipeline.recorder import ANSWER
from cookbook.simulate.warp import Barrier

__all__ = ["Array", "Role", "arrays", "roles", "said"]

Warp = tuple[int, int]  # rank of the CTA, number of the warp
CTA = 0  # of the cluster: the one that is told about
DOES = {
    "load": "TMA loads",
    "async copy": "cp.async",
    "mma": "wgmma",
    "tensor mma": "tcgen05.mma",
    "tensor read": "tcgen05.ld",
    "store": "TMA stores",
}
WHEN = {"tensor commit": " when its MMAs are over", "async arrive": " when its copies are there"}
SENDS, ASKS = "st.async", "asks for work"


class Signal(NamedTuple):
    """A warp's signal to a barrier, each time that it gives one."""

    how: str  # "arrive", "load", "tensor commit", "async arrive"
    arrivals: int
    bytes: int  # that an arrival expects
    ctas: int  # whose barriers of one place are signalled


class Array(NamedTuple):
    """Barriers in shared memory, one a stage, that the same warps use in the same way."""

    name: str
    places: tuple[int, ...]  # bytes from the beginning of shared memory
    arrivals: int  # that end a phase
    waiting: frozenset[int]  # warps of the CTA
    signals: dict[Warp, frozenset[Signal]]  # of any CTA

    def __str__(self) -> str:
        return f"{self.name}[{len(self.places)}]"


class Role(NamedTuple):
    """Warps of a CTA with one task."""

    warps: tuple[int, ...]
    does: tuple[str, ...]
    waits: tuple[Array, ...]
    signals: tuple[Array, ...]


def arrays(followed: Sequence[Programs]) -> list[Array]:
    """The barriers in shared memory of the cluster's first CTA, those of one use together.

    Args:
        followed: the programs of a launch of one kernel, or of several.
    """
    events = list(_events(followed))
    counts: dict[int, int] = {}
    waiting: dict[int, set[int]] = defaultdict(set)
    signals: dict[int, dict[Warp, set[Signal]]] = defaultdict(lambda: defaultdict(set))
    reached: dict[object, set[int]] = defaultdict(set)  # CTAs where a warp arrives at a place, by line
    for warp, event in events:
        if event.barrier and event.what == "arrive":
            reached[warp, event.line, event.barrier[1]].add(event.barrier[0])
    for warp, event in events:
        if event.barrier and event.barrier[0] == CTA and event.what == "init":
            counts[event.barrier[1]] = event.count
        elif event.barrier and warp[0] == CTA and event.what == "wait":
            waiting[event.barrier[1]].add(warp[1])
        _, at = event.barrier or (CTA, 0)
        for (cta, place), signal in _signals(event, len(reached.get((warp, event.line, at), ()))):
            if cta == CTA:
                signals[place][warp].add(signal)
    same: dict[object, list[int]] = defaultdict(list)
    for place in sorted(counts):
        told = frozenset((warp, frozenset(each)) for warp, each in signals[place].items())
        same[counts[place], frozenset(waiting[place]), told].append(place)
    found = []
    for places in same.values():
        first, told = places[0], {warp: frozenset(each) for warp, each in signals[places[0]].items()}
        found.append(Array("", tuple(places), counts[first], frozenset(waiting[first]), told))
    return _named(sorted((each for each in found if each.waiting), key=lambda each: each.places))


def _events(followed: Sequence[Programs]) -> Iterable[tuple[Warp, Event]]:
    return ((warp, event) for each in followed for warp, program in each.warps.items() for event in program)


def _signals(event: Event, reached: int) -> Iterable[tuple[Barrier, Signal]]:
    """The barriers that an event signals, and how; `reached`: in how many CTAs an arrival does so."""
    if event.barrier and event.what == "arrive":
        yield event.barrier, Signal("arrive", event.count, event.bytes, reached)
    elif event.barrier and event.what == "async arrive":
        yield event.barrier, Signal(event.what, event.count, 0, 1)
    elif event.what in ("load", "tensor commit"):
        how = ANSWER if event.name == ANSWER else event.what
        for barrier in event.barriers:
            yield barrier, Signal(how, event.count, 0, len({cta for cta, _ in event.barriers}))


def _named(found: list[Array]) -> list[Array]:
    """With names: `full` what is filled, `empty` what those wait for who fill it, and of tensor memory likewise."""
    fills = {how: [] for how in ("load", "tensor commit", "async arrive", ANSWER)}
    for each in found:
        for how in {signal.how for told in each.signals.values() for signal in told} & set(fills):
            fills[how].append(each)
    names: dict[tuple[int, ...], str] = {}

    def pair(filled: list[Array], name: str) -> None:
        for each in filled:
            names.setdefault(each.places, f"{name}full")
            filling = {warp for (cta, warp) in each.signals if cta == CTA}
            for other in found:
                giving = {warp for (cta, warp) in other.signals if cta == CTA}
                if other != each and filling <= other.waiting and giving & each.waiting:
                    names.setdefault(other.places, f"{name}empty")

    pair(fills[ANSWER], "answer ")
    pair(fills["load"] + fills["async arrive"], "")
    pair([each for each in fills["tensor commit"] if each.places not in names], "accumulator ")
    used: dict[str, int] = defaultdict(int)
    out = []
    for each in found:
        name = names.get(each.places, "mbarrier")
        used[name] += 1
        out.append(each._replace(name=f"{name} {used[name]}" if used[name] > 1 else name))
    return out


def roles(followed: Sequence[Programs], known: Sequence[Array]) -> list[Role]:
    """The roles of the first CTA's warps, those with the lowest numbers first; warps that use no barrier have none.

    Args:
        known: the `arrays` of these programs.
    """
    together: dict[object, list[int]] = defaultdict(list)
    for cta, warp in followed[0].warps:
        if cta == CTA:
            waits = tuple(each.places for each in known if warp in each.waiting)
            signals = tuple(each.places for each in known if (cta, warp) in each.signals)
            if waits or signals:
                together[waits, signals].append(warp)
    found = []
    for (waits, signals), warps in together.items():  # type: ignore[misc]
        events = [event for each in followed for warp in warps for event in each.warps[CTA, warp]]
        does = list(dict.fromkeys(filter(None, map(_done, events))))
        of = tuple(tuple(each for each in known if each.places in places) for places in (waits, signals))
        found.append(Role(tuple(warps), tuple(does), *of))
    return found


def _done(event: Event) -> str:
    """Return what an event is a part of, in a word; "" of one that many roles have."""
    if event.what == "load" and event.name in (ANSWER, ""):
        return ASKS if event.name else SENDS
    return DOES.get(event.what, "")


def _are_specialized(found: Iterable[Role]) -> bool:
    """Return whether two of the roles have nothing in common that they do."""
    return any(not set(one.does) & set(other.does) for one, other in combinations(found, 2))


def said(followed: Sequence[Programs]) -> list[str]:
    """The roles as lines of text: a table, the arrivals of a phase, and who meets at which named barrier.

    Empty of a kernel that is not warp-specialized.
    """
    known = arrays(followed)
    found = roles(followed, known)
    if not _are_specialized(found):
        return []
    rows: list[tuple[str, ...]] = [("warps", "do", "wait for", "signal")]
    for role in found:
        signals = [_signalled(each, role) for each in role.signals]
        for n in range(max(len(role.does), len(role.waits), len(signals), 1)):
            first = _numbers(role.warps) if n == 0 else ""
            cells = (list(map(str, each))[n : n + 1] or [""] for each in (role.does, role.waits, signals))
            rows.append((first, *(cell[0] for cell in cells)))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    ends = [f"{each}: {_ends(each)} a phase." for each in known]
    return [*lines, "", *ends, *_met(followed)]


def _signalled(array: Array, role: Role) -> str:
    by_warp = {warp: array.signals.get((CTA, warp), frozenset()) for warp in role.warps}
    ways = []
    for signal in sorted({signal for told in by_warp.values() for signal in told}):
        if signal.how not in ("load", ANSWER):
            who = [warp for warp, told in by_warp.items() if signal in told]
            by = " a warp" if len(who) == len(role.warps) else f" of warp {_numbers(who)}"
            text = f"{signal.arrivals}" + (by if len(role.warps) > 1 else "") + WHEN.get(signal.how, "")
            text += f", expects {signal.bytes} bytes" if signal.bytes else ""
            ways.append(text + (f", in {signal.ctas} CTAs" if signal.ctas > 1 else ""))
    copies = max((s.ctas for told in by_warp.values() for s in told if s.how in ("load", ANSWER)), default=0)
    ways += [f"bytes, in {copies} CTAs"] if copies > 1 else []
    return f"{array}: {'; '.join(ways)}" if ways else str(array)


def _ends(array: Array) -> str:
    arrivals = f"{array.arrivals} arrival" + ("s" if array.arrivals > 1 else "")
    is_copied = any(signal.how in ("load", ANSWER) for told in array.signals.values() for signal in told)
    return f"{arrivals} and its bytes" if is_copied else arrivals


def _met(followed: Sequence[Programs]) -> list[str]:
    """The named barriers of fewer than all threads: who waits there, who only arrives."""
    waits, comes, threads = defaultdict(set), defaultdict(set), {}
    for (cta, warp), event in _events(followed):
        if cta == CTA and event.what in ("meet", "come") and event.count < followed[0].launch.threads:
            (waits if event.what == "meet" else comes)[event.number].add(warp)
            threads[event.number] = event.count
    return [
        f"bar {number}, {threads[number]} threads: warps {_numbers(waits[number])} meet"
        + (f"; warps {_numbers(comes[number])} only arrive." if comes[number] - waits[number] else ".")
        for number in sorted(threads)
    ]


def _numbers(warps: Iterable[int]) -> str:
    """`0-3, 5` for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for warp in sorted(warps):
        if runs and warp == runs[-1][1] + 1:
            runs[-1][1] = warp
        else:
            runs.append([warp, warp])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
