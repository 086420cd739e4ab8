"""The order that leads to a fault, as a picture: the last steps of the warps that it names, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from cookbook.check.pipeline.machine import Fault, Machine, Step, Warp
from cookbook.check.pipeline.programs import Event
from cookbook.draw import Moment, Picture, interleaving

__all__ = ["Order", "order_to", "picture"]

MEMORY = ("read", "write", "load", "store", "mma", "async copy", "tensor read", "tensor write", "tensor mma")
MEMORY += ("words read", "words write")
BARRIERS = ("init", "arrive", "expect", "look", "wait", "come", "meet", "cluster arrive", "cluster wait", "warp sync")
BARRIERS += ("async arrive", "tensor commit", "release", "acquire")
QUIET = ("global", "fence of barriers", "init", "look", "registers read", "registers write")  # steps that are left out
LAST = 14  # steps that are shown
STUCK = 4  # warps that wait for ever


class Order(NamedTuple):
    """Steps in an order, and (from, to): the second waits for the first."""

    title: str
    moments: tuple[Moment, ...]
    arrows: tuple[tuple[int, int], ...]
    note: str


def picture(order: Order) -> Picture:
    """Warps down, time across."""
    return interleaving(order.moments, order.title, order.arrows, order.note)


def order_to(machine: Machine, fault: Fault) -> Order:
    """The last steps of an order that leads to a fault."""
    named = [step for step in (fault.at, fault.other) if step is not None]
    stuck = _waiting(machine) if fault.rule == "deadlock" else []
    warps = {step[0] for step in named} if named and not stuck else _concerned(machine, stuck)
    marked = {*named, *stuck}
    steps = [step for step in fault.order if step[0] in warps]
    shown = [step for step in steps if step in marked or machine.event(step).what not in QUIET]
    done = [*[step for step in shown[:-LAST] if step in marked], *shown[-LAST:]]
    later = [step for step in dict.fromkeys([*stuck, *named]) if step not in steps and step[0] in warps]
    every = [*done, *later]
    moments = tuple(_moment(machine, step, step in marked, n < len(done)) for n, step in enumerate(every))
    red = "red: who waits for ever" if stuck else f"red: the {'two steps' if len(named) > 1 else 'step'}"
    note = red + "; hollow: not yet" * bool(later)
    return Order(f"{fault.rule}: an order that leads there", moments, tuple(_arrows(machine, every)), note)


def _concerned(machine: Machine, stuck: list[Step]) -> set[Warp]:
    """A few of the warps that wait for ever, and of those that do what they wait for, or else of any."""
    wanted = {machine.event(step).barrier for step in stuck} - {None}
    programs = machine.programs.warps
    telling = [warp for warp, events in programs.items() if any({*_signals(event)} & wanted for event in events)]
    order = dict.fromkeys([*[step[0] for step in stuck[:STUCK]], *telling, *machine.warps])
    return set(list(order)[: 2 * STUCK if telling else STUCK])


def _waiting(machine: Machine) -> list[Step]:
    """The steps that warps which cannot go on would do next."""
    programs = machine.programs.warps
    return [(warp, machine.at[warp] + 1) for warp in machine.warps if machine.at[warp] < len(programs[warp])]


def _moment(machine: Machine, step: Step, marked: bool, done: bool) -> Moment:
    event = machine.event(step)
    kind = "memory" if event.what in MEMORY else "barrier" if event.what in BARRIERS else "other"
    name = f"CTA {step[0][0]} warp {step[0][1]}"
    where = f"line {int(event.line)}" if event.line else ""
    return Moment(name, _label(event), where, kind, marked, done)


def _label(event: Event) -> str:
    barrier = event.barrier or next(iter(event.barriers), None)
    if event.what in ("meet", "come"):
        return f"{event.what} bar {event.number}"
    if event.what == "wait" and barrier:
        return f"wait mbar {barrier[1] // 8}, {event.count}"
    return event.what + (f" mbar {barrier[1] // 8}" if barrier else "")


def _signals(event: Event) -> tuple[tuple[int, int], ...]:
    return (event.barrier,) if event.what in ("arrive", "async arrive") and event.barrier else event.barriers


def _arrows(machine: Machine, steps: list[Step]) -> list[tuple[int, int]]:
    """From what signals a barrier to who waits for it; between warps that meet, from each to the last."""
    signals: dict[object, list[int]] = defaultdict(list)
    found = []
    for n, step in enumerate(steps):
        event = machine.event(step)
        for barrier in _signals(event):
            signals[barrier].append(n)
        if event.what == "wait":
            found += [(m, n) for m in signals.pop(event.barrier, ()) if steps[m][0] != step[0]]
        key = (step[0][0], event.number) if event.what in ("come", "meet") else "cluster"
        if event.what in ("come", "cluster arrive"):
            signals[key].append(n)
        elif event.what in ("meet", "cluster wait"):
            others = [m for m in signals[key] if steps[m][0] != step[0]]
            found += [(m, n) for m in others[-1:]]
            signals[key].append(n)
    return found
