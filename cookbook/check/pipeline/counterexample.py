"""Word a fault: who does what, and an order of steps that leads there."""

from __future__ import annotations

from collections.abc import Iterable

from cookbook.check.pipeline.machine import Fault, Machine, Step, Warp, said
from cookbook.check.pipeline.programs import Event

ROLES = (("tensor mma", "mma"), ("load", "producer"), ("mma", "consumer"), ("tensor read", "epilogue"))
# A warp of none of these loads and multiplies, or does what is in between.
VERBS = {
    "init": "initialises",
    "arrive": "arrives at",
    "expect": "expects bytes at",
    "wait": "has waited for",
    "look": "looks at",
    "load": "asks TMA to fill",
    "mma": "issues wgmmas that read",
    "mma commit": "commits a group of wgmmas",
    "mma wait": "has waited for wgmmas",
    "async copy": "asks cp.async to fill",
    "async commit": "commits a group of cp.async",
    "async arrive": "will arrive, when its cp.async are there, at",
    "async wait": "has waited for cp.async",
    "store": "asks TMA to send",
    "store commit": "commits a group of stores",
    "store wait": "has waited for stores",
    "read": "reads",
    "write": "writes",
    "tensor mma": "issues tcgen05.mma that read",
    "tensor commit": "commits tcgen05.mma",
    "tensor read": "asks for a piece of tensor memory",
    "tensor wait": "has waited for tensor memory",
    "tensor alloc": "allocates tensor memory",
    "tensor free": "frees tensor memory",
    "meet": "has met the others at",
    "come": "comes to",
    "exit": "ends",
    "warp sync": "has waited for its lanes (sync_warp)",
    "fence of barriers": "makes its barriers visible to all",
    "fence of proxies": "makes its writes visible to TMA and the tensor core (fence.proxy.async)",
    "map write": "leaves a tensor map in memory",
    "map release": "releases tensor maps (fence.proxy.tensormap)",
    "map acquire": "acquires a tensor map (fence.proxy.tensormap)",
    "mma fence": "orders its registers before wgmma (wgmma.fence)",
    "registers given": "gives registers back (setmaxnreg)",
    "registers taken": "takes registers (setmaxnreg)",
    "wrong": "does what is wrong in itself",
    "registers read": "reads registers",
    "registers write": "writes registers",
    "global": "reads or writes global memory",
    "grid wait": "has waited for the kernel before (griddepcontrol.wait)",
    "tensor fence": "orders tcgen05 with other warps' (tcgen05.fence)",
    "cluster arrive": "arrives at the cluster's barrier",
    "cluster wait": "has waited for the cluster",
}


def role(machine: Machine, warp: Warp) -> str:
    """Return what a warp does, from what it asks for: producer, consumer, mma, epilogue, or nothing of these."""
    kinds = {event.what for event in machine.programs.warps[warp]}
    return next((name for what, name in ROLES if what in kinds), "other")


def describe(event: Event) -> str:
    """One event in words."""
    verb = VERBS.get(event.what, event.what)
    if event.what == "wait":
        return f"has waited for {said(event.barrier)}, parity {event.count}"
    if event.what in ("arrive", "async arrive"):
        more = f", expecting {event.bytes} bytes" if event.bytes else ""
        times = f" {event.count} times" if event.count > 1 else ""
        return f"{verb} {said(event.barrier)}{times}{more}"
    if event.what in ("meet", "come"):
        return f"{verb} named barrier {event.number} of {event.count} threads"
    if event.what in ("mma wait", "store wait", "async wait"):
        return f"{verb} until {event.count} groups are left"
    where = ", ".join(_places(event))
    at = f" {said(event.barrier)}" if event.barrier else ""
    return " ".join(part for part in (verb + at, where) if part)


def _places(event: Event) -> Iterable[str]:
    for n, (cta, bits) in enumerate(event.targets):
        first = (bits & -bits).bit_length() - 1
        signal = f" and tell {said(event.barriers[n])}" if event.barriers else ""
        yield f"{4 * bits.bit_count()} bytes from byte {4 * first} of CTA {cta} on{signal}"


def explain(machine: Machine, fault: Fault, last: int = 12) -> str:
    """The fault, the source of the lines that it names, and the last steps of an order that leads there, one a line."""
    lines = [*_sources(machine, fault), *steps_to(machine, fault, last)]
    return "\n".join([str(fault), *(f"  {line}" for line in lines)])


def steps_to(machine: Machine, fault: Fault, last: int = 12) -> list[str]:
    """The last steps, one a line, of an order that leads to a fault: those of the warps that it names."""
    wanted = {step[0] for step in (fault.at, fault.other) if step is not None}
    steps = [step for step in fault.order if not wanted or step[0] in wanted]
    lines = [_line(machine, step) for step in steps[-last:]]
    if fault.other is not None and fault.other not in fault.order:
        lines.append(f"and not yet: {_line(machine, fault.other)}")
    return lines


def who_waits(machine: Machine, most: int = 8) -> list[str]:
    """Explain a deadlock: each warp that cannot go on, what it waits for, and what those do who could end the wait.

    Warps whose lines say the same are told together.
    """
    told: dict[str, list[Warp]] = {}
    for warp in machine.warps:
        if not _is_over(machine, warp):
            event = machine.programs.warps[warp][machine.at[warp]]
            told.setdefault(f"in line {event.line}, {_awaited(machine, warp, event)}", []).append(warp)
    lines = []
    for text, warps in list(told.items())[:most]:
        lines.append(f"{_called(warps)} wait{'s' * (len(warps) == 1)} {text}")
    return lines


def _is_over(machine: Machine, warp: Warp) -> bool:
    return machine.at[warp] >= len(machine.programs.warps[warp])


def _awaited(machine: Machine, warp: Warp, event: Event) -> str:
    """Return what a warp waits for, and the warps that could end the wait: where they are, and whether they still
    come."""
    comes: dict[str, list[Warp]] = {}
    for other, events in machine.programs.warps.items():
        own = [n for n, each in enumerate(events) if _ends(each, other, event, warp)]
        if not own or (other == warp and event.barrier is None):
            continue
        left = [n for n in own if n >= machine.at[other]]
        if _is_over(machine, other):
            state = "which has ended"
        elif left:
            state = f"which is to come in line {events[left[0]].line}, and waits itself"
        else:
            state = "which does not come again, and waits itself"
        comes.setdefault(state, []).append(other)
    whom = "; for ".join(f"{_called(warps)}, {state}" for state, warps in comes.items())
    return f"for {whom}" if whom else "for what no warp does"


def _ends(each: Event, by: Warp, event: Event, warp: Warp) -> bool:
    """Return whether an event of one warp is a part of what another one waits for."""
    if event.barrier is not None:
        return (each.barrier == event.barrier and "arrive" in each.what) or event.barrier in each.barriers
    if event.what in ("meet", "come"):
        return by[0] == warp[0] and each.what in ("meet", "come") and each.number == event.number
    if event.what == "registers taken":
        return by[0] == warp[0] and each.what == "registers given"
    pairs = {"cluster wait": "cluster arrive", "mma wait": "mma commit", "acquire": "release"}
    return each.what == pairs.get(event.what, event.what) and (by[0] == warp[0] or event.what != "mma wait")


def _called(warps: list[Warp]) -> str:
    """`CTA 0 warp 3`, `CTA 0 warps 4, 5, 6, 7`: of one CTA, and how many there are besides."""
    cta = warps[0][0]
    own = [warp for rank, warp in warps if rank == cta]
    rest = f" and {len(warps) - len(own)} of other CTAs" if len(warps) > len(own) else ""
    return f"CTA {cta} warp{'s' * (len(own) > 1)} {', '.join(map(str, own))}{rest}"


def _sources(machine: Machine, fault: Fault) -> Iterable[str]:
    """The source of the lines of a fault's steps, each once."""
    named = [machine.event(step).line for step in (fault.other, fault.at) if step is not None]
    return dict.fromkeys(f"line {line}: {line.source}" for line in named if line.source)


def _line(machine: Machine, step: Step) -> str:
    warp, event = step[0], machine.event(step)
    where = f", line {event.line}" if event.line else ""
    return f"CTA {warp[0]} warp {warp[1]:2} ({role(machine, warp)}){where}: {describe(event)}"
