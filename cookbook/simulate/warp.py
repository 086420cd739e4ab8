"""One warp on its way through a traced kernel: loops, branches, and what it knows of itself.

Every operation has one handler, in TABLE. A handler works out which bytes, barriers and lanes the operation is about.
What comes of it is the business of who follows: a handler calls a method of the warp, and each judge has a kind of
`Warp` of its own. The level *pipeline* notes an event. The level *product* moves the origins of elements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cookbook.simulate.trace import Operation, Region, walk
from cookbook.simulate.values import LANES, UNKNOWN, CannotFollow, Fault

Barrier = tuple[int, int]  # rank of the CTA, and byte of its shared memory
# What a handler raises of operands that it does not know.
NOT_ITS_OPERANDS = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
STEPS = 2_000_000  # operations of one warp: more than any problem worth exploring
Waits = Generator[Callable[[], bool], None, Any]  # gives out what it waits for: whether it may go on
Handler = Callable[[Any, Operation, list[Any]], Any]  # of a Warp; it returns the result, or a tuple of several
Prepared = tuple[Operation, Handler | None, bool]  # whether it is a generator


LOOKS = re.compile(r"mbarrier\.(try_|test\.)?wait")
VALUES = ("arith.", "scf.", "cute.", "builtin.", "llvm.getelementptr", "nvvm.nanosleep")  # beside it, in such a loop


@dataclass(frozen=True)
class Entry:
    """An operation's handler, and whether the warp may have to wait there, or the operation holds others."""

    handler: Handler
    waits: bool


TABLE: dict[str, Entry] = {}
ENDS = ("scf.yield", "func.return", "cuda.return", "scf.condition", "gpu.return")
SAME = ("cute.make_", "cute.static", "arith.constant")  # without operands: their results are those of all warps
SYNCHRONIZES = re.compile(
    r"mbarrier|nvvm\.barrier|cluster|wgmma|bulk|tcgen05(?!\.(ld|st)$)|fence|mapa|cute\.gemm|elect|cp\.async|setmaxregister"
)


def handles(*names: str, waits: bool = False) -> Callable[[Handler], Handler]:
    """The decorator of the one handler of each of these operations. waits: it is a generator, see `Waits`."""

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in TABLE:
                raise ValueError(f"names: got {name}, which has a handler; needed operations without one")
            TABLE[name] = Entry(handler, waits)
        return handler

    return register


@dataclass
class Shared:
    """Values that the warps of a launch look up once for all."""

    memo: dict[Any, Any] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    maps: dict[Any, Any] = field(default_factory=dict)  # tensor maps in memory, by where they are: see `raw`


@dataclass(frozen=True)
class Place:
    """The warp that is followed, and its launch."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    cta: tuple[int, int, int]  # index in the grid
    warp: int

    @property
    def rank(self) -> int:
        """The rank of the CTA in its cluster."""
        inside = [c % k for c, k in zip(self.cta, self.cluster, strict=True)]
        return inside[0] + self.cluster[0] * (inside[1] + self.cluster[1] * inside[2])

    def thread(self, axis: int) -> np.ndarray:
        """The index of each lane's thread in the block along an axis."""
        linear = self.warp * LANES + np.arange(LANES)
        for extent in self.block[:axis]:
            linear = linear // extent
        return linear % self.block[axis] if axis < 2 else linear


class Warp:
    """The values of one warp while it goes through a region."""

    raises = (CannotFollow, Fault, *NOT_ITS_OPERANDS)  # what gets the operation's line

    def __init__(self, place: Place, shared: Any = None) -> None:
        self.place = place
        self.shared: Any = Shared() if shared is None else shared
        self.config: dict[str, Any] = {}  # of a launch that is being made
        self.launches: list[dict[str, Any]] = []  # those that were made
        self.values: dict[int, Any] = {}
        self.active = np.ones(LANES, bool)
        self.guesses: tuple[tuple[int, int], ...] = ()  # those branches: the number of the `if`, and which side
        self.ifs = 0  # whose side was guessed, so far
        self.allocated = 0  # bytes of shared memory so far
        self.kept: dict[str, Any] = {}  # registers of PTX of the kernel's own, which later PTX finds
        self.steps = 0
        self.spins = False  # in a loop that only looks at a barrier until its phase is over: it waits
        self.operation: Operation | None = None  # the one at hand

    def go(self, region: Region, arguments: Sequence[Any]) -> Waits:
        """Through a region, giving way at each wait; what it yields."""
        values = self.values
        values.update(zip(region.arguments, arguments, strict=True))
        for op, handler, waits in self.prepared(region):
            self.operation = op
            given = list(map(values.__getitem__, op.operands))
            if handler is None:
                return given
            try:
                found = (yield from handler(self, op, given)) if waits else handler(self, op, given)
                if len(op.results) == 1:
                    values[op.results[0]] = found
                elif op.results:
                    values.update(zip(op.results, found, strict=True))
            except self.raises as error:
                told: Any = self.told(op, error)
                told.line = getattr(told, "line", op.line)
                raise told from error
        return []

    def prepared(self, region: Region) -> Sequence[Prepared]:
        """The operations of a region, each with what follows it; the last one, which ends it, with neither.

        They are looked up once for all warps, and counted.
        """
        if not hasattr(region, "looked_up"):
            region.looked_up = [_looked_up(op) for op in region.operations]  # type: ignore[attr-defined]
        found: list[Prepared] = region.looked_up  # type: ignore[attr-defined]
        self.steps += len(found)
        if self.steps > STEPS:
            raise CannotFollow(f"line {found[-1][0].line}: more than {STEPS} operations in one warp")
        return found

    def run(self, region: Region, arguments: Sequence[Any]) -> list[Any]:
        """Through a region in which nothing waits; what it yields."""
        try:
            next(self.go(region, arguments))
        except StopIteration as end:
            return end.value
        raise CannotFollow("a wait where there is nothing to wait for")

    @property
    def line(self) -> int:
        """The line in the recipe's file of the operation at hand."""
        return self.operation.line if self.operation else 0

    def memo(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, made once in a launch for this operation and key."""
        key = (id(self.operation), key)
        if key not in self.shared.memo:
            self.shared.memo[key] = make()
        return self.shared.memo[key]

    def told(self, op: Operation, error: Exception) -> Exception:
        """Return what went wrong at an operation, with its line."""
        if isinstance(error, ZeroDivisionError):
            error = Fault("got a division by 0; needed another divisor")
        if str(error).startswith("line "):
            return error
        if isinstance(error, Fault):
            return Fault(f"line {op.line}: {error}")
        if isinstance(error, CannotFollow):
            return type(error)(f"line {op.line}: {op.name}: {error}")
        return CannotFollow(f"line {op.line}: {op.name}, with operands that the checker does not know ({error})")

    def data(self, op: Operation, args: list[Any]) -> Any:
        """The result of an operation on data."""
        return UNKNOWN if len(op.results) == 1 else (UNKNOWN,) * len(op.results)

    def broken_promise(self, number: int, by: int) -> None:
        """A number that the kernel promises the compiler is a multiple of `by`, and is none."""

    def undecided(self, op: Operation) -> None:
        """Both branches of an `if` that data decide, each as one that may be taken."""
        inside = [o for region in op.regions for o in walk(region)]
        inside = [o for o in inside if o.name != "nvvm.tcgen05.wait" or self.has_asked(o.attributes["kind"] == "load")]
        held = [o.name for o in inside if SYNCHRONIZES.search(o.name) or any("tma_" in t for t in o.operand_types)]
        if held:
            raise CannotFollow(f"a branch that depends on data holds {held[0]}")
        outside, self.ifs = self.guesses, self.ifs + 1
        number = self.ifs
        for side, region in enumerate(op.regions):
            self.guesses = (*outside, (number, side))
            self.run(region, ())
        self.guesses = outside

    def has_asked(self, loads: bool) -> bool:
        """Return whether loads, or stores, of tensor memory may be under way, for which the warp has not waited yet."""
        return True

    def merged(self, takes: np.ndarray, a: Any, b: Any) -> Any:
        """`a` in the lanes that take it, `b` in the others."""
        if a is b:
            return a
        known = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (a, b))
        return np.where(takes, a, b) if known else UNKNOWN

    def same(self, value: Any) -> Any:
        """One value for all active lanes; UNKNOWN if they differ or it is not known."""
        if not isinstance(value, np.ndarray):
            return value
        mine = value[self.active]
        return mine[0].item() if len(mine) and (mine == mine[0]).all() else UNKNOWN

    def one(self, value: Any) -> Any:
        """The number that all active lanes have; the value itself if they differ."""
        found = self.same(value)
        return value if found is UNKNOWN else found

    def integer(self, value: Any, what: str) -> int:
        """A known integer, the same in all active lanes.

        Raises:
            CannotFollow: it is not.
        """
        value = self.same(value)
        if value is UNKNOWN:
            raise CannotFollow(f"{what} depends on data, or differs from lane to lane")
        return int(value)

    @property
    def lanes(self) -> int:
        """Number of active lanes."""
        return int(self.active.sum())

    def barrier(self, pointer: Any) -> Barrier:
        """The barrier at an address.

        Raises:
            CannotFollow: the address is not known.
        """
        if getattr(pointer, "space", "") != "smem":
            raise CannotFollow("a barrier that is not in shared memory that is followed")
        cta = self.place.rank if pointer.cta is None else self.integer(pointer.cta, "the CTA of a barrier")
        return cta, self.integer(pointer.address, "the address of a barrier")

    def arrivals(self, op: Operation, args: list[Any]) -> tuple[str, list[tuple[Barrier, int]], int, int]:
        """Return what lanes do ("arrive", or "expect" alone), how many at which barrier, arrivals and bytes of each."""
        if op.name == "nvvm.cp.async.mbarrier.arrive" and not op.get("noinc", 0):
            raise CannotFollow("without .noinc, which raises the barrier's pending count first; needed .noinc")
        pointer, expects = args[0], "expect" in op.name or "txn" in op.name
        amount = self.integer(args[1], "the bytes expected") if expects else 0
        count = 1 if expects or len(args) < 2 else self.integer(args[1], "the number of arrivals")
        ctas = [cta for _, cta in self.by_lane(self.place.rank if pointer.cta is None else pointer.cta)]
        _, address = self.barrier(replace(pointer, cta=None))
        what = "expect" if op.name.endswith(".expect_tx") and "arrive" not in op.name else "arrive"
        return what, [((cta, address), lanes) for cta, lanes in sorted(Counter(ctas).items())], count, amount

    def named_barrier(self, op: Operation, args: list[Any]) -> tuple[int, int]:
        """Its number, and for how many threads it is."""
        if self.lanes != LANES:
            raise CannotFollow("a barrier that only some lanes of a warp come to")
        given, (names, sizes, *_) = iter(args), op.get("operandSegmentSizes", (1, int(len(args) > 1)))
        number = self.integer(next(given), "the number of a barrier") if names else 0
        everyone = int(np.prod(self.place.block))
        return number, self.integer(next(given), "the threads of a barrier") if sizes else everyone

    def multicast(self, mask: Any, own: int) -> list[int]:
        """The ranks of the CTAs that a mask names; without one, `own`."""
        if mask is None:
            return [own]
        bits = self.integer(mask, "the mask of a multicast")
        return [rank for rank in range(16) if bits >> rank & 1]

    def alike(self, value: Any) -> Iterator[None]:
        """Go through the numbers of the active lanes; meanwhile those lanes alone are active that have the one."""
        before = self.active
        numbers = np.unique(value[before]) if isinstance(value, np.ndarray) else [value]
        try:
            for one in numbers:
                self.active = before & (value == one) if len(numbers) > 1 else before
                yield
        finally:
            self.active = before

    def by_lane(self, value: Any) -> Iterator[tuple[int, Any]]:
        """(lane, value) of the active lanes."""
        for lane in np.flatnonzero(self.active):
            yield int(lane), value[lane].item() if isinstance(value, np.ndarray) else value


def _looked_up(op: Operation) -> Prepared:
    if op.name in ENDS:
        return op, None, False
    entry = TABLE.get(op.name, UNKNOWN_OPERATION)
    if not op.operands and op.name.startswith(SAME):
        return op, _same_always, False
    return op, entry.handler, entry.waits


def _same_always(f: Warp, op: Operation, args: list[Any]) -> Any:
    """The result of an operation without operands, found once."""
    known = f.shared.constants
    if id(op) not in known:
        known[id(op)] = TABLE.get(op.name, UNKNOWN_OPERATION).handler(f, op, [])
    return known[id(op)]


# --- control -----------------------------------------------------------------------------------------------------


def _unknown(f: Warp, op: Operation, args: list[Any]) -> Any:
    raise CannotFollow("an operation that is not known to the checker")


UNKNOWN_OPERATION = Entry(_unknown, False)


@handles("scf.if", waits=True)
def _if(f: Warp, op: Operation, args: list[Any]) -> Waits:
    """One branch, or both: each by the lanes that take it."""
    condition = f.same(args[0])
    if condition is not UNKNOWN:
        taken = condition or len(op.regions) > 1
        return _results(op, (yield from f.go(op.regions[0 if condition else 1], ())) if taken else [])
    if not isinstance(args[0], np.ndarray):
        f.undecided(op)
        return _results(op, [UNKNOWN] * len(op.results))
    takes = args[0].astype(bool)
    before, both = f.active, []
    for region, mask in zip(op.regions, (takes, ~takes), strict=False):
        f.active = before & mask
        if f.active.any() or op.results:
            both.append((yield from f.go(region, ())))
    f.active = before
    return _results(op, [f.merged(takes, a, b) for a, b in zip(*both, strict=True)] if op.results else [])


def _results(op: Operation, found: list[Any]) -> Any:
    return found[0] if len(op.results) == 1 else tuple(found)


@handles("scf.for", waits=True)
def _for(f: Warp, op: Operation, args: list[Any]) -> Waits:
    first, last, step = (f.integer(x, "the bound of a loop") for x in args[:3])
    carried = args[3:]
    for i in range(first, last, step):
        carried = yield from f.go(op.regions[0], [i, *carried])
    return _results(op, carried)


@handles("scf.while", waits=True)
def _while(f: Warp, op: Operation, args: list[Any]) -> Waits:
    carried, before, f.spins = args, f.spins, _spins(op)
    try:
        for _ in range(100_000):
            condition, *carried = yield from f.go(op.regions[0], carried)
            if not f.integer(condition, "the condition of a loop"):
                return _results(op, carried)
            carried = yield from f.go(op.regions[1], carried)
    finally:
        f.spins = before
    raise CannotFollow("a loop that does not end")


def _spins(op: Operation) -> bool:
    """Return whether a loop does nothing but look at a barrier."""
    inside = {o.name for region in op.regions for o in walk(region)}
    return any(map(LOOKS.search, inside)) and all(LOOKS.search(name) or name.startswith(VALUES) for name in inside)


@handles("scf.execute_region", waits=True)
def _execute(f: Warp, op: Operation, args: list[Any]) -> Waits:
    return _results(op, (yield from f.go(op.regions[0], ())))
