"""Follows one warp of a kernel with its data: an interpreter that gives way where the warp waits.

Numbers are followed as the level *pipeline* does. What is more here: each pointer and view has an address, in global
memory and among registers too, and each element says where it came from (`origins`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.check.pipeline import interpreter
from cookbook.check.pipeline.interpreter import ENDS, LANES, Control, Handler, Interpreter, Place, Prepared, registering
from cookbook.check.pipeline.shapes import UNKNOWN, CannotFollow
from cookbook.check.product import origins
from cookbook.check.product.places import spread
from cookbook.check.product.products import PRODUCT
from cookbook.simulate.trace import Operation, Region

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
        *(f"cute.{x}" for x in ("get_layout", "get_shape", "get_stride", "get_iter", "size", "cosize")),
        *(f"cute.{x}" for x in ("get_hier_coord", "get_flat_coord", "idx2crd")),
        *(f"cute_nvgpu.atom.{x}" for x in ("set_value", "make_exec_tma", "make_tmem_copy", "make_s2t_copy")),
        "cute_nvgpu.arch.make_warp_uniform",
        "cute_nvgpu.arch.sm100.relinquish_tmem_alloc_permit",
        "nvvm.elect.sync",
        "nvvm.mapa",
        "nvvm.shfl.sync",
    )
}
CONTROL: dict[str, Control] = dict(interpreter.CONTROL)
SAME = ("cute.make_", "cute.static", "arith.constant")  # without operands: their results are those of all warps


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
        return spread(self.ids, (LANES, self.ids.shape[1]))


follows = registering(HANDLERS)  # what returns the result, or a tuple of several
waits = registering(CONTROL)  # operations at which a warp may have to wait, or that hold others: a generator


class Follower(Interpreter):
    """One warp. `cta` and `launch` hold what it shares with others."""

    raises = (*Interpreter.raises, Fault)

    def __init__(self, place: Place, cta: Any = None, launch: Any = None) -> None:
        super().__init__(place)
        self.cta = cta
        self.launch = launch
        self.config: dict[str, Any] = {}  # of a launch that is being made
        self.generation = 0  # of the cluster's barrier, at the last arrival
        self.answers = 0

    def prepared(self, region: Region) -> Sequence[Prepared]:
        """As the Interpreter's, from this level's tables; looked up once for all warps."""
        if not hasattr(region, "prepared"):
            region.prepared = [_prepared(op) for op in region.operations]  # type: ignore[attr-defined]
        return region.prepared  # type: ignore[attr-defined]

    def told(self, op: Operation, error: Exception) -> Exception:
        if isinstance(error, ZeroDivisionError):
            error = Fault("got a division by 0; needed another divisor")
        if isinstance(error, Fault):
            return error if str(error).startswith("line ") else Fault(f"line {op.line}: {error}")
        return super().told(op, error)

    def undecided(self, op: Operation) -> None:
        raise CannotFollow("a branch that depends on data")

    def merged(self, takes: np.ndarray, a: Any, b: Any) -> Any:
        if merge := getattr(a, "merge", None) or getattr(b, "merge", None):
            return merge(takes, a, b)
        if isinstance(a, Data) and isinstance(b, Data):
            return Data(np.where(takes[:, None], a.full, b.full))
        found = super().merged(takes, a, b)
        if found is UNKNOWN:
            raise CannotFollow(f"a branch whose results differ from lane to lane: {type(a).__name__}")
        return found

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


def _prepared(op: Operation) -> Prepared:
    if op.name in ENDS:
        return op, None, None
    if not op.operands and op.name.startswith(SAME):
        return op, _same_always, None
    return op, HANDLERS.get(op.name, interpreter.unknown), CONTROL.get(op.name)


def _same_always(f: Follower, op: Operation, args: list[Any]) -> Any:
    return f.launch.constant(op, f)


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
        zero = op.attributes["value"] == 0
        return Data(np.full((1, count_of(kind)), origins.ZERO if zero else origins.CONSTANT, np.int64))
    if kind.startswith("vector<"):
        return np.full((LANES, count_of(kind)), int(op.attributes["value"]), np.int64)
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


@follows("vector.extract")
def _extract(f: Follower, op: Operation, args: list[Any]) -> Any:
    """One element of a vector, at a place that is known when the kernel is compiled."""
    (source,) = args
    place = op.attributes["static_position"][0]
    if isinstance(source, Data):
        return Data(source.ids[:, place : place + 1])
    return source[:, place] if source.ndim == 2 else source


@follows("vector.reduction")
def _reduce(f: Follower, op: Operation, args: list[Any]) -> Any:
    """The elements of a vector, added up one after the other."""
    if op.attributes["kind"] != "add" or not isinstance(args[0], Data):
        raise CannotFollow(f"a reduction of a vector: {op.attributes['kind']}")
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
    kind = op.attributes["kind"]
    others = np.arange(LANES) ^ lane if kind == "bfly" else np.broadcast_to(lane, LANES)
    if (mask, clamp) != (-1, LANES - 1) or kind not in ("bfly", "idx"):
        raise CannotFollow(f"a shuffle of kind {kind}, mask {mask}, clamp {clamp}")
    if not f.active.all():
        raise CannotFollow("a shuffle by some lanes of a warp")
    return Data(value.full[others])


@follows("vector.splat", "vector.broadcast", "vector.insert", "vector.from_elements")
@follows("vector.extract_strided_slice", "vector.shuffle", "vector.bitcast")
def _vectors(f: Follower, op: Operation, args: list[Any]) -> Any:
    raise CannotFollow(f"{op.name}, which is not known to the checker")
