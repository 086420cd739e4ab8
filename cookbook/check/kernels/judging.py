"""One trace, followed and judged: barriers in every order, bounds, banks, and the product where it is said."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cookbook.check.banks import Count, counted
from cookbook.check.kernels import conflicts
from cookbook.check.kernels.allowed import divided
from cookbook.check.kernels.in_turn import InTurn, warps_in_turn
from cookbook.check.kernels.report import Found, Launched, Place, Report, Step
from cookbook.check.pipeline.counterexample import steps_to, who_waits
from cookbook.check.pipeline.machine import Fault, Machine, writes_global
from cookbook.check.pipeline.order import order_to
from cookbook.check.pipeline.programs import all_launched, programs
from cookbook.check.pipeline.recorder import DATA
from cookbook.check.pipeline.repair import repaired
from cookbook.simulate import flags, types, values
from cookbook.simulate.arguments import Argument, chosen, symbols, value_of
from cookbook.simulate.trace import Trace, walk
from cookbook.simulate.values import APART, CannotFollow, base_of, leaves

__all__ = ["BANKS", "conflict", "judge"]

BANKS = "bank conflict"
ORDER = "barriers and memory in every order"
MOST = 8  # faults of a cluster: a kernel that ships with some may get another one


class OnBlackwell(InTurn):
    """Here TMA and the tensor core take a swizzle from address bits alone: NVIDIA's own GEMMs begin tiles at 256."""

    begins = 128


def judge(trace: Trace, name: str, arch: str, sizes: Mapping[str, int] | None = None, computes: str = "") -> Report:
    """Follow all launches of a traced function, the first and the last cluster of each.

    Args:
        trace: what was traced.
        name: what the report calls it.
        arch: the compile target.
        sizes: numbers for symbols, by name; the others are chosen, see `simulate.arguments.chosen`.
        computes: what it computes, as `"c[m,n] = a[m,k] * b[n,k]"`; "" if that is not said.

    Raises:
        ValueError: `sizes` or `computes` does not fit the arguments.
    """
    began = time.process_time()
    known = chosen(trace.arguments, sizes)
    numbers = {symbol: known[named] for symbol, named in symbols(trace.arguments).items()}
    report = Report(name, arch, _given(trace.arguments, numbers, known))
    found: list[Found] = []
    given = [value_of(one, numbers) for one in trace.arguments]
    kind = OnBlackwell if re.match(r"sm_1[01]", arch) else InTurn
    try:
        launches, shared = all_launched(trace, given)
        shared.names = _named(shared.names, trace.arguments)
        shared.numbers = dict(_numbers(trace, given))
        if flags.used(trace):
            raise CannotFollow("CTAs that wait for flags of one another, in a kernel whose flags are not named")
        before: tuple[set[str], set[str]] = set(), set()  # tensors that launches read, and write
        for launch in launches:
            followed = [
                (programs(launch, warps.items()), list(warps.values()), stopped)
                for number in sorted({0, int(np.prod(launch.grid)) // launch.ctas - 1})
                for warps, stopped in [warps_in_turn(trace, launch, shared, number, kind)]
            ]
            machines = [Machine(of_cluster, MOST, documented=False, before=before) for of_cluster, *_ in followed]
            faulty, begins = [machine for machine in machines if machine.run()], len(found)
            for machine, (_, warps, stopped) in zip(machines, followed, strict=True):
                faults = list(_of_cluster(trace, machine, warps, report))
                found += faults
                if stopped is not None and all(fault.rule == BANKS for fault in faults):
                    raise stopped
            whole = all(stopped is None for *_, stopped in followed)
            if faulty and whole and (repair := repaired(machines)) is not None:
                at = Place.of(repair.line) if repair.line else found[begins].at  # the end of a kernel has no line
                told = Step(repair.text, at, repair.code, repair.after, repair.indent, repair.tries)
                report.repairs.append(told)
            for event in (e for of_cluster, *_ in followed for events in of_cluster.warps.values() for e in events):
                if event.what in ("store", "load", "global", "async copy") and event.name:
                    before[writes_global(event)].add(event.name)
    except values.Fault as fault:
        found.append(_of_text("fault", fault))
    except CannotFollow as error:
        report.not_followed.append(_of_text("not followed", error))
    if report.launches:
        report.judged += [ORDER, "bounds of shared memory", "banks"]
    if computes:
        from cookbook.check.kernels import product

        try:
            found += [_of_product(trace, text) for text in product.faults(trace, given, computes)]
            report.judged.append(f"product: {computes}")
        except CannotFollow as error:
            report.not_followed.append(_of_text("not followed", error))
    report.found, report.allowed = divided(_once(found))
    report.seconds = time.process_time() - began
    return report


def _once(found: Iterable[Found]) -> list[Found]:
    """Keep the first of a rule's findings at the same lines, by other warps or clusters."""
    kept: dict[Any, Found] = {}
    for one in found:
        kept.setdefault((one.rule, one.at, one.other) if one.at.file else one, one)
    return list(kept.values())


def _of_cluster(trace: Trace, machine: Machine, warps: list[InTurn], report: Report) -> Iterator[Found]:
    launch = machine.programs.launch
    yield from (_of_fault(machine, fault) for fault in machine.faults)
    report.orders += [order_to(machine, fault) for fault in machine.faults]
    yield from (_of_count(count, warps) for count in counted(warps) if count.worst > 0)
    told = Launched(
        _kernel(trace, launch.kernel),
        launch.grid,
        launch.cluster,
        launch.block,
        len(machine.warps),
        len(machine.barriers),
        len(machine.trace),
    )
    if told not in report.launches:
        report.launches.append(told)


def _kernel(trace: Trace, name: str) -> str:
    """The Python name of a kernel: of the functions of its lines, the one that its mangled name begins with."""
    functions = dict.fromkeys(op.line.function for op in walk(trace.kernel(name)) if op.line)
    own = [each for each in functions if each and name.removeprefix("kernel_cutlass_").startswith(each)]
    return max(own, key=len, default=name[:40])


def _of_fault(machine: Machine, fault: Fault) -> Found:
    at, other = (Place() if s is None else Place.of(machine.event(s).line) for s in (fault.at, fault.other))
    if not at.file:  # the end of a warp has no line
        at, other = other, at
    waits = tuple(who_waits(machine)) if fault.rule == "deadlock" else ()
    return Found(fault.rule, fault.text, at, other, tuple(steps_to(machine, fault)), waits)


def conflict(count: Count) -> Found:
    """Return what to say of a line whose instructions take more than their ideal."""
    meeting = f": {conflicts.meeting(count.lanes, count.width)}" if count.what in conflicts.OWN else ""
    return Found(BANKS, f"{count}{meeting}", Place.of(count.line))


def _of_count(count: Count, warps: list[InTurn]) -> Found:
    instead = conflicts.instead(count.lanes, count.width, warps) if count.what in conflicts.OWN else ""
    return replace(conflict(count), instead=instead)


def _of_text(rule: str, error: Exception | str) -> Found:
    """Make a finding of the simulator's words; the line is the operation's, if it noted it."""
    line = getattr(error, "line", None)
    text = re.sub(r"^line \d+[^:]*: ", "", str(error)) if line else str(error)
    return Found(rule, text, Place.of(line) if line else Place())


def _of_product(trace: Trace, text: str) -> Found:
    """Return what is wrong with C, in words that may name a line."""
    named = re.search(r"line (\d+ of \w+)", text)
    lines = (op.line for op in trace if named and op.line and str(op.line) == named[1])
    return Found("product", text, Place.of(next(lines, 0)))


def _named(names: Mapping[int, str], arguments: tuple[Argument, ...]) -> dict[int, str]:
    """Places in global memory by the parameters' own names."""
    own = {f"argument {number}": one.name for number, one in enumerate(arguments)}
    return {place: own.get(name, name) for place, name in names.items()}


def _numbers(trace: Trace, given: list[Any]) -> Iterator[tuple[int, tuple[int, np.ndarray]]]:
    """By the place of its tensor: bits, and the integers that a case says, by their offsets."""
    for number, (one, value) in enumerate(zip(trace.arguments, given, strict=True)):
        if one.numbers:
            shape, strides = value
            offsets = np.ravel(sum(index * stride for index, stride in zip(np.indices(shape), strides, strict=True)))
            table = np.full(int(offsets.max()) + 1, DATA, np.int64)
            table[offsets] = one.numbers
            yield base_of(number) >> APART, (types.kind(trace.host.argument_types[number]).bits, table)


def _given(arguments: tuple[Argument, ...], numbers: Mapping[Any, int], sizes: Mapping[str, int]) -> str:
    said = []
    for one in arguments:
        if one.shape is not None:
            extents, strides = value_of(one, numbers)
            said.append(f"{one.name} {'x'.join(map(str, extents))}:({','.join(map(str, leaves(tuple(strides))))})")
        elif isinstance(value := value_of(one, numbers), int):
            said.append(f"{one.name} {value}")
    text = "with " + ", ".join(said) if said else ""
    return text + ("; chosen: " + ", ".join(f"{n}={s}" for n, s in sizes.items()) if sizes else "")
