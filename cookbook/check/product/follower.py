"""Follows one warp of a kernel with its data: an interpreter that gives way where the warp waits.

Numbers are followed as the level *pipeline* does. What is more here: each pointer and view has an address, in global
memory and among registers too, and each element says where it came from (`origins`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.check.pipeline import interpreter
from cookbook.check.pipeline.interpreter import ENDS, LANES, Handler, Interpreter, Place
from cookbook.check.pipeline.reading import Operation, Region
from cookbook.check.pipeline.shapes import UNKNOWN, CannotFollow
from cookbook.check.product import origins
from cookbook.check.product.products import PRODUCT

Waits = Generator[Callable[[], bool], None, Any]  # gives out what it waits for: whether it may go on
Control = Callable[[Any, Operation, list[Any]], Waits]
HANDLERS: dict[str, Handler] = {
    name: handler for name, handler in interpreter.TABLE.items() if name.split(".")[0] in ("arith", "cuda")
}
HANDLERS |= {
    name: interpreter.TABLE[name]
    for name in (
        *(name for name in interpreter.TABLE if name.startswith("nvvm.read.ptx.sreg.")),
        *(f"cute.tuple_{x}" for x in ("add", "sub", "mul", "div", "mod", "product")),
        *(f"cute.make_{x}" for x in ("int_tuple", "shape", "stride", "coord", "tile")),
        *(f"cute.fast_divmod.{x}" for x in ("compute", "create_divisor", "get_divisor")),
        *(f"cute.{x}" for x in ("ceil_div", "elem_less", "assume", "to_int_tuple", "get_leaves", "get_scalars")),
        "cute_nvgpu.arch.make_warp_uniform",
        "nvvm.elect.sync",
        "nvvm.shfl.sync",
    )
}
CONTROL: dict[str, Control] = {}


class Fault(Exception):
    """The kernel does what it must not; the message says what, in words."""


def refused(what: str, error: ValueError) -> Exception:
    """What a modelled instruction did not take: a Fault, but for what the hardware takes and the model does not."""
    text = f"{what}: {error}"
    return CannotFollow(text) if "not modelled" in text else Fault(text)


@dataclass
class Data:
    """Elements of a floating-point type: (32, elements) of `origins`, or (1, elements) if all lanes have the same."""

    ids: np.ndarray

    @property
    def full(self) -> np.ndarray:
        """(32, elements)."""
        return np.broadcast_to(self.ids, (LANES, self.ids.shape[1]))


def follows(*names: str) -> Callable[[Handler], Handler]:
    """Registers what follows one or several operations: it returns the result, or a tuple of several."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def waits(*names: str) -> Callable[[Control], Control]:
    """Registers what follows operations at which a warp may have to wait, or that hold others: a generator."""

    def register(handler: Control) -> Control:
        CONTROL.update(dict.fromkeys(names, handler))
        return handler

    return register


class Follower(Interpreter):
    """One warp. `cta` and `launch` hold what it shares with others."""

    def __init__(self, place: Place, cta: Any = None, launch: Any = None) -> None:
        super().__init__(place)
        self.cta = cta
        self.launch = launch
        self.config: dict[str, Any] = {}  # of a launch that is being made
        self.generation = 0  # of the cluster's barrier, at the last arrival
        self.answers = 0
        self.operation: Operation | None = None  # the one at hand

    def go(self, region: Region, arguments: Sequence[Any]) -> Waits:
        """Through a region, giving way at each wait; what it yields."""
        values = self.values
        values.update(zip(region.arguments, arguments, strict=True))
        for op, handler, control in prepared(region):
            if handler is None and control is None:
                return [values[name] for name in op.operands]
            self.operation = op
            try:
                if control is not None:
                    found = yield from control(self, op, [values[name] for name in op.operands])
                elif handler is None or handler is same_always:
                    found = self.launch.constant(op, self)
                else:
                    found = handler(self, op, [values[name] for name in op.operands])
            except CannotFollow as error:
                raise CannotFollow(_told(op, str(error))) from error
            except Fault as error:
                raise Fault(_told(op, str(error))) from error
            except ZeroDivisionError:
                raise Fault(_told(op, "got a division by 0; needed another divisor")) from None
            except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
                raise CannotFollow(_told(op, f"{op.name}: {type(error).__name__}: {error}")) from error
            if len(op.results) == 1:
                values[op.results[0]] = found
            elif op.results:
                values.update(zip(op.results, found, strict=True))
        return []

    def run(self, region: Region, arguments: Sequence[Any]) -> list[Any]:
        """Through a region in which nothing waits."""
        going = self.go(region, arguments)
        try:
            next(going)
        except StopIteration as end:
            return end.value
        raise CannotFollow("a wait where there is nothing to wait for")

    @property
    def line(self) -> int:
        """Of the recipe's file, of the operation at hand."""
        return self.operation.line if self.operation else 0

    def memo(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once in a launch for this operation and key."""
        key = (id(self.operation), key)
        known = self.launch.memo
        if key not in known:
            known[key] = make()
        return known[key]


def same_always(f: Follower, op: Operation, args: list[Any]) -> Any:
    """Stands for the handler of an operation without operands, whose result is the same in all warps."""
    raise AssertionError("never called")


def _unknown(f: Follower, op: Operation, args: list[Any]) -> Any:
    raise CannotFollow(f"{op.name}, which is not known to the checker")


Prepared = list[tuple[Operation, Handler | None, Control | None]]
SAME = ("cute.make_", "cute.static", "arith.constant")


def prepared(region: Region) -> Prepared:
    """The operations of a region, each with what follows it; the last one, which ends it, with neither."""
    found: Prepared | None = getattr(region, "prepared", None)
    if found is None:
        found = []
        for op in region.operations:
            ends = op.name in ENDS or op.name == "cuda.return"
            handler = None if ends else HANDLERS.get(op.name, _unknown)
            control = None if ends else CONTROL.get(op.name)
            if not ends and not op.operands and op.name.startswith(SAME):
                handler = same_always
            found.append((op, handler, control))
            if ends:
                break
        region.prepared = found  # type: ignore[attr-defined]
    return found


def _told(op: Operation, text: str) -> str:
    return text if text.startswith("line ") else f"line {op.line}: {text}"


# --- control -----------------------------------------------------------------------------------------------------


@waits("scf.if")
def _if(f: Follower, op: Operation, args: list[Any]) -> Waits:
    condition = f.same(args[0])
    if condition is UNKNOWN and not isinstance(args[0], np.ndarray):
        raise CannotFollow("a branch that depends on data")
    if condition is not UNKNOWN:
        found: list[Any] = []
        if condition or len(op.regions) > 1:
            found = yield from f.go(op.regions[0 if condition else 1], ())
        return _results(op, found)
    takes = args[0].astype(bool)
    before, both = f.active, []
    for region, mask in zip(op.regions, (takes, ~takes), strict=False):
        f.active = before & mask
        if f.active.any() or op.results:
            both.append((yield from f.go(region, ())))
    f.active = before
    return _results(op, [merged(takes, a, b) for a, b in zip(*both, strict=True)] if op.results else [])


def merged(takes: np.ndarray, a: Any, b: Any) -> Any:
    """`a` in the lanes that take it, `b` in the others.

    Raises:
        CannotFollow: things of a kind that cannot differ from lane to lane.
    """
    if a is b:
        return a
    if isinstance(a, Data) and isinstance(b, Data):
        return Data(np.where(takes[:, None], a.full, b.full))
    numbers = (int, np.integer, np.ndarray)
    if isinstance(a, numbers) and isinstance(b, numbers):
        return np.where(takes, a, b)
    raise CannotFollow(f"a branch whose results differ from lane to lane: {type(a).__name__}")


def _results(op: Operation, found: list[Any]) -> Any:
    return found[0] if len(op.results) == 1 else tuple(found)


@waits("scf.for")
def _for(f: Follower, op: Operation, args: list[Any]) -> Waits:
    first, last, step = (f.integer(x, "the bound of a loop") for x in args[:3])
    carried = args[3:]
    for i in range(first, last, step):
        carried = yield from f.go(op.regions[0], [i, *carried])
    return _results(op, carried)


@waits("scf.while")
def _while(f: Follower, op: Operation, args: list[Any]) -> Waits:
    carried = args
    for _ in range(100_000):
        condition, *carried = yield from f.go(op.regions[0], carried)
        if not f.integer(condition, "the condition of a loop"):
            return _results(op, carried)
        carried = yield from f.go(op.regions[1], carried)
    raise CannotFollow("a loop that does not end")


@waits("scf.execute_region")
def _execute(f: Follower, op: Operation, args: list[Any]) -> Waits:
    return _results(op, (yield from f.go(op.regions[0], ())))


# --- data --------------------------------------------------------------------------------------------------------


def is_float(text: str) -> bool:
    """Whether a type is one of floating-point numbers, or a vector of such."""
    inner = text.removeprefix("vector<").rpartition("x")[2].rstrip(">") if text.startswith("vector<") else text
    return inner in origins.ROUNDINGS or inner[:1] == "f"


def count_of(text: str) -> int:
    """How many elements a type has: 128 of `vector<128xf32>`."""
    if not text.startswith("vector<"):
        return 1
    sizes = text.removeprefix("vector<").split("x")[:-1]
    return int(np.prod([int(size) for size in sizes]))


_number = interpreter.TABLE["arith.constant"]


@follows("arith.constant")
def _constant(f: Follower, op: Operation, args: list[Any]) -> Any:
    kind = op.result_types[0]
    if is_float(kind):
        text = op.properties.replace("dense<", "").split("value = ")[1]
        zero = (
            float(text.split(">")[0].split(" ")[0].rstrip(",")) == 0 if text[:2] != "0x" else int(text[2:10], 16) == 0
        )
        return Data(np.full((1, count_of(kind)), origins.ZERO if zero else origins.CONSTANT, np.int64))
    if kind.startswith("vector<"):
        text = op.properties.split("dense<")[1].split(">")[0]
        value = {"true": 1, "false": 0}.get(text)
        return np.full((LANES, count_of(kind)), int(text) if value is None else value, np.int64)
    return _number(f, op, args)


@follows("cute.assume")
def _assume(f: Follower, op: Operation, args: list[Any]) -> Any:
    """What the kernel promises the compiler of a number."""
    by = re.search(r"<divby (\d+)>", op.result_types[0])
    number = f.same(args[0])
    if by and isinstance(number, int) and number % int(by[1]):
        raise Fault(f"cute.assume: got {number}; needed a multiple of {by[1]}, as the kernel promises")
    return args[0]


@follows("arith.truncf")
def _round(f: Follower, op: Operation, args: list[Any]) -> Any:
    """A rounding to a narrower type: of accumulators, the first and only one."""
    (data,) = args
    target = op.result_types[0].removeprefix("vector<").rpartition("x")[2].rstrip(">")
    sums = origins.is_sum(data.ids)
    if (sums & (origins.rounding_of(data.ids) != 0)).any():
        raise Fault(f"an accumulator is rounded a second time, to {target}")
    if not (sums | origins.is_zero(data.ids) | (data.ids < 0)).all():
        raise CannotFollow(f"a rounding to {target} of what is no accumulator")
    rounded = data.ids | (np.int64(origins.ROUNDINGS[target]) << origins.ROUNDING)
    return Data(np.where(sums, rounded, data.ids))


@follows("arith.extf")
def _widen(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0]


@follows("arith.select")
def _select(f: Follower, op: Operation, args: list[Any]) -> Any:
    condition, a, b = args
    if isinstance(condition, np.ndarray):
        return merged(condition.astype(bool), a, b)
    if condition is UNKNOWN:
        raise CannotFollow("a choice that depends on data")
    return a if condition else b


@follows("arith.addf")
def _add(f: Follower, op: Operation, args: list[Any]) -> Any:
    return _combined(f, "add", *args)


@follows("arith.mulf")
def _multiply(f: Follower, op: Operation, args: list[Any]) -> Any:
    return _combined(f, "mul", *args)


def _combined(f: Follower, what: str, a: Data, b: Data) -> Data:
    """a + b or a * b, one by one; all columns of `a` are added to the one of `b` where it has one."""
    if what == "add":
        for one, other in ((a, b), (b, a)):
            if origins.is_zero(one.ids).all() and other.ids.shape[1] == b.ids.shape[1]:
                return other
    x, y = (part.full for part in (a, b))
    for ids in (x, y):
        if (origins.is_sum(ids) & (origins.rounding_of(ids) != 0)).any():
            raise Fault("got arithmetic on an accumulator that is rounded already; needed one rounding, at the end")
    if what == "mul" and not (origins.is_sum(x).any() or origins.is_sum(y).any()):
        what = PRODUCT
    return Data(f.launch.sums.node(what, x, y, f.line))


@follows("vector.extract")
def _extract(f: Follower, op: Operation, args: list[Any]) -> Any:
    """One element of a vector, at a place that is known when the kernel is compiled."""
    (source,) = args
    place = int(op.properties.split("static_position = array<i64: ")[1].split(">")[0])
    if isinstance(source, Data):
        return Data(source.ids[:, place : place + 1])
    return source[:, place] if source.ndim == 2 else source


@follows("vector.reduction")
def _reduce(f: Follower, op: Operation, args: list[Any]) -> Any:
    """The elements of a vector, added up one after the other."""
    if "vector.kind<add>" not in op.properties or not isinstance(args[0], Data):
        raise CannotFollow(f"a reduction of a vector: {op.properties}")
    data, *before = args
    total = before[0] if before else Data(np.full((1, 1), origins.ZERO, np.int64))
    return _combined(f, "add", data, total)


_shuffled = interpreter.TABLE["nvvm.shfl.sync"]


@follows("nvvm.shfl.sync")
def _shuffle(f: Follower, op: Operation, args: list[Any]) -> Any:
    """What each lane gets of another lane's element."""
    mask, value, lane, clamp = args
    if not isinstance(value, Data):
        return _shuffled(f, op, args)
    others = np.arange(LANES) ^ lane if "shfl_kind bfly" in op.properties else np.broadcast_to(lane, LANES)
    if (mask, clamp) != (-1, LANES - 1) or not re.search("shfl_kind (bfly|idx)", op.properties):
        raise CannotFollow(f"a shuffle of {op.properties}, mask {mask}, clamp {clamp}")
    if not f.active.all():
        raise CannotFollow("a shuffle by some lanes of a warp")
    return Data(value.full[others])


@follows("vector.splat", "vector.broadcast", "vector.insert", "vector.from_elements")
@follows("vector.extract_strided_slice", "vector.shuffle", "vector.bitcast")
def _vectors(f: Follower, op: Operation, args: list[Any]) -> Any:
    raise CannotFollow(f"{op.name}, which is not known to the checker")
