"""The programs of a launch: for each warp, the sequence of what it waits for, signals, reads and writes.

They are recorded from what CuTe traced of the recipe. Waits give no data, so a warp's sequence does not depend on
timing: for one problem it is fixed, and the interleavings of the warps are all that can vary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from cookbook.check import fused
from cookbook.check.pipeline.recorder import NO_CTA, WORDS, Event, Names, Recorder
from cookbook.recipe import chained, grouped
from cookbook.simulate import launch, types
from cookbook.simulate.launch import HOST, Launch
from cookbook.simulate.lines import Line
from cookbook.simulate.trace import Trace
from cookbook.simulate.values import APART, LANES, UNKNOWN, Atom, CannotFollow, Pointer, View, base_of
from cookbook.simulate.warp import Place

__all__ = ["Event", "Launch", "Problem", "Programs", "at_rest", "host_arguments", "launched", "named_arguments"]
__all__ += ["all_launched", "of_cluster", "of_grid", "placed", "programs", "warps_of"]

Followed = TypeVar("Followed", bound=Recorder)


@dataclass(frozen=True)
class Problem:
    """The sizes for which a kernel is followed: M, N, K, and SMs, in elements and counts."""

    m: int
    n: int
    k: int
    sms: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} on {self.sms} SM{'s' if self.sms > 1 else ''}"


@dataclass(frozen=True)
class Programs:
    """The programs of one cluster."""

    launch: Launch
    warps: dict[tuple[int, int], tuple[Event, ...]]  # by (rank of the CTA, warp)
    clusters: int = 1  # those of a launch whose clusters wait for one another: ranks go on from one to the next

    def warps_of(self, cta: int) -> list[tuple[int, int]]:
        return [key for key in self.warps if key[0] == cta]


def launched(trace: Trace, arguments: list[Any]) -> tuple[Launch, Names]:
    """Return what the host function launches, and what its warps look up once for all.

    Args:
        trace: what was traced.
        arguments: of the host function, as `host_arguments` makes them.
    """
    made, shared = all_launched(trace, arguments)
    return made[-1], shared


class Written(tuple[int, ...]):
    """Numbers in global memory that a kernel before may write, unlike those of another table."""


def host_arguments(
    module: Any, config: Any, problem: Problem, strides: tuple[int, int, int] | None = None
) -> list[Any]:
    """Return what a recipe's `gemm` is called with for a problem, without what is known when it compiles.

    The numbers are found by the names of parameters, and of the fields of a parameter that is a NamedTuple. A name that
    a function of the recipe has too is what that function returns; it may take `config`, `m`, `n`, `k`, `groups` and
    `sms`.
    `remap` is a table in global memory that no kernel writes: here, the identity. `offs` are the ends of the groups of
    a grouped GEMM, whose B, and scale factors of B, follow one another, or `offs_k`, where its C do; `middle` is N1 of
    a chained one. `sums` and `flags` are words in global memory by which CTAs of the launch tell one another something.
    Any other value is unknown.

    Args:
        strides: elements between the lines of A, B and C; if left out, those of K-major operands without padding.
    """
    return [value for _, value in named_arguments(module, config, problem, strides)]


def named_arguments(
    module: Any, config: Any, problem: Problem, strides: tuple[int, int, int] | None = None
) -> list[tuple[str, Any]]:
    """Name each value that `host_arguments` returns by the parameter or field that it is a part of."""
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "sms": problem.sms, "groups": grouped.ENDS}
    row = 8 * -(-problem.k // 8)
    known: dict[str, tuple[Any, ...]] = {
        "mnk": (problem.m, problem.n, problem.k),
        "strides": strides or (row, row, 8 * -(-problem.n // 8)),
        "sms": (problem.sms,),
        "remap": (tuple(range(problem.sms)),),
        "offs": (Written(grouped.ends(problem.m)),),
        "offs_k": (Written(grouped.ends(problem.k)),),
        "groups": (grouped.ENDS,),
        "sums": ("sums",),
        "flags": ("flags",),
    }
    if hasattr(config, "middle"):
        known["middle"] = (chained.middle(config),)
    along_k = grouped.takes_groups(module) == "k"
    known["group_stride_sb"] = (problem.n,)
    known["group_stride"] = (problem.m * known["strides"][2] if along_k else problem.n * known["strides"][1],)

    def values(name: str, of: Any) -> Iterator[tuple[str, Any]]:
        """One for each number or pointer that an argument is made of."""
        if name in known:
            yield from ((name, value) for value in known[name])
        elif inspect.isfunction(function := getattr(module, name, None)):
            given = sizes | {"config": config}
            yield name, function(**{key: given[key] for key in inspect.signature(function).parameters})
        elif fields := getattr(of, "_fields", ()):
            for field in fields:
                yield from values(field, of.__annotations__[field])
        elif {getattr(each, "__name__", "") for each in get_args(of)} == {"Pointer"}:
            yield from ((each, UNKNOWN) for each in fused.told(module, config))
        else:
            yield from ((name, UNKNOWN) for _ in get_args(of) or (of,))

    parameters = inspect.signature(module.gemm).parameters
    return [x for name, each in parameters.items() if not _is_constant(each) for x in values(name, each.annotation)]


def _is_constant(parameter: inspect.Parameter) -> bool:
    """Return whether it is known when the kernel is compiled."""
    return getattr(parameter.annotation, "__name__", "") == "Constexpr"


def placed(trace: Trace, arguments: Sequence[Any]) -> list[Any]:
    """The host function's arguments, with a place in global memory for each tensor and pointer."""
    return _arguments(trace, list(arguments), Names())


def _arguments(trace: Trace, arguments: list[Any], shared: Names) -> list[Any]:
    """The host function's arguments, with a place in global memory for each pointer, which `shared` gets to know."""
    given = enumerate(zip(arguments, trace.host.argument_types, strict=False))
    return [_argument(n, x, text, shared) for n, (x, text) in given]


def _argument(number: int, value: Any, text: str, shared: Names) -> Any:
    if not text.startswith(("!cute.ptr", "!cute.memref")):
        return value
    is_tensor = text.startswith("!cute.memref")
    if isinstance(value, tuple) and not is_tensor:
        name = f"argument {number}" if isinstance(value, Written) else ""
        return Pointer("table", 0, name=name, numbers=value)
    base = base_of(number)
    shared.names[base >> APART] = value if value in WORDS else f"argument {number}"
    if is_tensor:  # given by extents and strides, unless its type spells them
        found, (extents, strides) = types.kind(text), value or ((), ())
        layout = types.fitted(text, extents, strides)
        return View(Pointer(found.space, base), layout, found.bits, found.swizzle, kind=types.element(text))
    return Pointer(types.kind(text).space, base)


def at_rest(module: Any, config: Any) -> tuple[int, ...]:
    """Return which of a kernel's arguments read what no kernel before it may write.

    A recipe that is promised so for a `config` names those parameters: `at_rest(config)`, `("tma_a",)`.
    """
    named = getattr(module, "at_rest", lambda _: ())(config)
    return tuple(number for number, name in enumerate(inspect.signature(module.kernel).parameters) if name in named)


def of_cluster(trace: Trace, arguments: list[Any], number: int = 0) -> Programs:
    """The programs of the warps of one cluster; arguments of the host function, and errors as of `warps_of`."""
    made, shared = launched(trace, arguments)
    return programs(made, warps_of(trace, made, shared, number))


def programs(made: Launch, followed: Iterable[tuple[tuple[int, int], Recorder]]) -> Programs:
    """The programs of warps that were followed to their ends."""
    found, known = {}, dict[int, int]()
    for key, recorder in followed:
        events = (_with_known(event, known) for event in _that_matter(recorder.events))
        found[key] = (*events, Event("exit", Line()))
    return Programs(made, found)


def warps_of(
    trace: Trace,
    made: Launch,
    shared: Names,
    number: int = 0,
    resting: tuple[int, ...] = (),
    kind: type[Followed] = Recorder,  # type: ignore[assignment]
) -> Iterator[tuple[tuple[int, int], Followed]]:
    """Rank of the CTA and number of each warp of one cluster, and what followed it to its end.

    Args:
        trace: what was traced.
        made: the launch.
        shared: what its warps look up once for all.
        number: the cluster's in the grid, along x.
        resting: what `at_rest` returned.
        kind: of a `Recorder`.

    Raises:
        CannotFollow: the kernel does something that is not followed; the message names it and its line.
    """
    body, warps = trace.kernel(made.kernel), -(-made.threads // LANES)
    given = [_resting(one) if place in resting else one for place, one in enumerate(made.arguments)]
    for rank in range(made.ctas):
        at = made.place(number, rank)
        for warp in range(warps):
            recorder = kind(Place(made.grid, made.cluster, made.block, at, warp), shared)
            recorder.run(body, given)
            yield (rank, warp), recorder


def all_launched(trace: Trace, arguments: Sequence[Any]) -> tuple[list[Launch], Names]:
    """All that a host function launches, and what the warps of these launches look up."""
    shared = Names()
    return launch.all_launched(Recorder(HOST), trace, _arguments(trace, list(arguments), shared)), shared


def of_grid(clusters: list[Programs]) -> Programs:
    """The programs of all clusters of a launch, as if they were one of many CTAs."""
    made, warps = clusters[0].launch, {}
    for number, one in enumerate(clusters):
        first = number * made.ctas
        for (rank, warp), events in one.warps.items():
            warps[first + rank, warp] = tuple(_of_rank(event, first) for event in events)
    return Programs(made, warps, len(clusters))


def _of_rank(event: Event, first: int) -> Event:
    """The event with its CTAs' ranks counted from another one on."""

    def moved(of: tuple) -> tuple:
        return tuple((cta if cta == NO_CTA else first + cta, what) for cta, what in of)

    if not first or not (event.barrier or event.barriers or event.targets or event.tensor):
        return event
    barrier = event.barrier and (first + event.barrier[0], event.barrier[1])
    rest = {name: moved(getattr(event, name)) for name in ("targets", "tensor", "barriers")}
    return replace(event, barrier=barrier, **rest)


def _that_matter(events: list[Event]) -> list[Event]:
    """The events without those of registers that nothing fills later: they concern nobody else."""
    filled = {event.name for event in events if event.what in ("mma", "tensor read")}
    mere = ("registers read", "registers write")
    return [event for event in events if event.what not in mere or event.name in filled]


def _with_known(event: Event, known: dict[int, int]) -> Event:
    """The event with equal regions as one object: whether two overlap is then asked once (`Machine._near`)."""
    if not event.targets:
        return event
    return replace(event, targets=tuple((cta, known.setdefault(bits, bits)) for cta, bits in event.targets))


def _resting(argument: Any) -> Any:
    if not isinstance(argument, Atom):
        raise CannotFollow("an argument at rest that is no copy by TMA")
    return replace(argument, values=argument.values | {"at rest": True})
