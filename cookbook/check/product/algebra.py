"""Data in registers, and what arithmetic makes of it: elements that say where they came from.

An operation on data is looked up by its name and by the kind of its operands: elements, or a kind that other modules
add, such as words bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.products import PRODUCT
from cookbook.simulate.trace import Operation
from cookbook.simulate.types import count_of
from cookbook.simulate.values import LANES, UNKNOWN, CannotFollow, Fault, spread

Function = Callable[[Any, Operation, list[Any]], Any]  # of a Follower
ALGEBRA: dict[str, dict[type, Function]] = {}


def refused(what: str, error: ValueError) -> Exception:
    """Return what a modelled instruction did not take: a Fault, but for what the hardware takes and the model does
    not."""
    text = f"{what}: {error}"
    return CannotFollow(text) if "not modelled" in text else Fault(text)


@dataclass
class Data:
    """Elements of a floating-point type: (32, elements) of `origins`, or (1, elements) if all lanes have the same."""

    ids: np.ndarray

    @property
    def full(self) -> np.ndarray:
        """(32, elements)."""
        return spread(self.ids, (LANES, self.ids.shape[1]))


def algebra(kind: type, *names: str) -> Callable[[Function], Function]:
    """The decorator of what operations of these names do with operands of a kind."""

    def register(function: Function) -> Function:
        for name in names:
            if ALGEBRA.setdefault(name, {}).setdefault(kind, function) is not function:
                raise ValueError(f"names: got {name} of {kind.__name__} twice; needed it once")
        return function

    return register


def computed(f: Any, op: Operation, args: list[Any]) -> Any:
    """The result of an operation on data."""
    function = _function(op.name, tuple(map(type, args)))
    return UNKNOWN if function is None else function(f, op, args)


@lru_cache(maxsize=4096)
def _function(name: str, types: tuple[type, ...]) -> Function | None:
    """By the kind of an operand, the narrowest first; None where one is not known.

    Raises:
        CannotFollow: nothing is known of the operation.
    """
    known = ALGEBRA.get(name, {})
    kinds = sorted(known, key=lambda kind: -len(kind.__mro__))
    found = next((kind for kind in kinds if any(issubclass(x, kind) for x in types)), None)
    if found is None and type(UNKNOWN) in types:
        return None
    if not known:
        raise CannotFollow("an operation that is not known to the checker")
    return known[found or kinds[-1]]


@algebra(Data, "arith.constant")
def _constant(f: Any, op: Operation, args: list[Any]) -> Any:
    one = origins.ZERO if op.attributes["value"] == 0 else origins.CONSTANT
    return Data(np.full((1, count_of(op.result_types[0])), one, np.int64))


@algebra(Data, "arith.truncf")
def _round(f: Any, op: Operation, args: list[Any]) -> Any:
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


@algebra(Data, "arith.extf")
def _widen(f: Any, op: Operation, args: list[Any]) -> Any:
    return args[0]


@algebra(Data, "arith.addf")
def _add(f: Any, op: Operation, args: list[Any]) -> Any:
    return combined(f, "add", *args)


@algebra(Data, "arith.mulf")
def _multiply(f: Any, op: Operation, args: list[Any]) -> Any:
    return combined(f, "mul", *args)


def combined(f: Any, what: str, a: Data, b: Data) -> Data:
    """a + b or a * b, one by one; all columns of `a` are added to the one of `b` where it has one."""
    if what == "add":
        for one, other in ((a, b), (b, a)):
            if origins.is_zero(one.ids).all() and other.ids.shape[1] == b.ids.shape[1]:
                return other
    x, y = (part.full for part in (a, b))
    for ids in (x, y):
        if (origins.is_sum(ids) & (origins.rounding_of(ids) != 0)).any():
            raise Fault("got arithmetic on an accumulator that is rounded already; needed one rounding, at the end")
    factors = any(_are_factors(ids) for ids in (x, y))  # of whatever is to be scaled
    if what == "mul" and not (factors or origins.is_sum(x).any() or origins.is_sum(y).any()):
        what = PRODUCT
    found = f.launch.sums.node(what, x, y, f.line)
    if what == "mul":  # what TMA filled, times anything
        found = np.where((x == origins.FILL) | (y == origins.FILL), origins.ZERO, found)
    return Data(found)


def _are_factors(ids: np.ndarray) -> bool:
    """The first of them says it of most."""
    return int(origins.kind_of(ids.flat[0])) in origins.FACTORS and bool(
        np.isin(origins.kind_of(ids), origins.FACTORS).all()
    )


@algebra(Data, "vector.extract")
def _extract(f: Any, op: Operation, args: list[Any]) -> Any:
    """One element of a vector, at a place that is known when the kernel is compiled."""
    (source,) = args
    place = op.attributes["static_position"][0]
    return replace(source, ids=source.ids[:, place : place + 1])


@algebra(Data, "vector.reduction")
def _reduce(f: Any, op: Operation, args: list[Any]) -> Any:
    """The elements of a vector, added up one after the other."""
    if op.attributes["kind"] != "add" or not isinstance(args[0], Data):
        raise CannotFollow(f"a reduction of a vector: {op.attributes['kind']}")
    data, *before = args
    total = before[0] if before else Data(np.full((1, 1), origins.ZERO, np.int64))
    return combined(f, "add", data, total)


@algebra(Data, "nvvm.shfl.sync")
def _shuffle(f: Any, op: Operation, args: list[Any]) -> Any:
    """Return what each lane gets of another lane's element."""
    mask, value, lane, clamp = args
    kind = op.attributes["kind"]
    others = np.arange(LANES) ^ lane if kind == "bfly" else np.broadcast_to(lane, LANES)
    if (mask, clamp) != (-1, LANES - 1) or kind not in ("bfly", "idx"):
        raise CannotFollow(f"a shuffle of kind {kind}, mask {mask}, clamp {clamp}")
    if not f.active.all():
        raise CannotFollow("a shuffle by some lanes of a warp")
    return Data(value.full[others])
