"""Follows the integers of a traced kernel through one warp: loops, branches, arithmetic, coordinates.

Values are Python integers, arrays of 32 (one for each lane) where lanes differ, nested tuples of these, pointers and
views (see `views`). Data are UNKNOWN and stay so. What waits, signals or touches memory is left to subclasses:
`programs.Recorder` notes it, and the level *product*'s `Follower`, which has tables of its own, does it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.shapes import UNKNOWN, CannotFollow, Lay, Pointer
from cookbook.simulate.trace import Operation, Region, walk

LANES = 32
Barrier = tuple[int, int]  # rank of the CTA, and byte of its shared memory
NOT_ITS_OPERANDS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what a handler then raises
STEPS = 2_000_000  # operations of one warp: more than any problem worth exploring
Handler = Callable[[Any, Operation, list[Any]], Any]  # the first: the Interpreter, or a kind of it that adds handlers
Waits = Generator[Callable[[], bool], None, Any]  # gives out what it waits for: whether it may go on
Control = Callable[[Any, Operation, list[Any]], Waits]
Followed = TypeVar("Followed", bound=Handler)
Prepared = tuple[Operation, Handler | None, Control | None]
TABLE: dict[str, Handler] = {}
CONTROL: dict[str, Control] = {}  # of operations that hold others, or at which a warp may have to wait


def registering(table: dict[str, Followed]) -> Callable[..., Callable[[Followed], Followed]]:
    """The decorator that puts what follows one or several operations, named by its arguments, into a table."""

    def named(*names: str) -> Callable[[Followed], Followed]:
        def register(handler: Followed) -> Followed:
            table.update(dict.fromkeys(names, handler))
            return handler

        return register

    return named


handles = registering(TABLE)  # what returns the result, or a tuple of several
controls = registering(CONTROL)  # a generator


@dataclass(frozen=True)
class Atom:
    """A copy or MMA atom: its type as the IR spells it, and what was set on it."""

    type: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Which warp is followed, in which launch."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    cta: tuple[int, int, int]  # index in the grid
    warp: int

    @property
    def rank(self) -> int:
        """Of the CTA in its cluster."""
        inside = [c % k for c, k in zip(self.cta, self.cluster, strict=True)]
        return inside[0] + self.cluster[0] * (inside[1] + self.cluster[1] * inside[2])

    def thread(self, axis: int) -> np.ndarray:
        """The index of each lane's thread in the block along an axis."""
        linear = self.warp * LANES + np.arange(LANES)
        for extent in self.block[:axis]:
            linear = linear // extent
        return linear % self.block[axis] if axis < 2 else linear


class Interpreter:
    """The values of one warp while it goes through a region."""

    raises: tuple[type[Exception], ...] = (CannotFollow, *NOT_ITS_OPERANDS)  # what gets the operation's line

    def __init__(self, place: Place) -> None:
        self.place = place
        self.values: dict[int, Any] = {}
        self.active = np.ones(LANES, bool)
        self.guesses: tuple[tuple[int, int], ...] = ()  # those branches: the number of the `if`, and which side
        self.ifs = 0  # whose side was guessed, so far
        self.allocated = 0  # bytes of shared memory so far
        self.steps = 0
        self.operation: Operation | None = None  # the one at hand

    def go(self, region: Region, arguments: Sequence[Any]) -> Waits:
        """Through a region, giving way at each wait; what it yields."""
        values = self.values
        values.update(zip(region.arguments, arguments, strict=True))
        for op, handler, control in self.prepared(region):
            self.operation = op
            given = list(map(values.__getitem__, op.operands))
            if handler is None and control is None:
                return given
            try:
                found = (yield from control(self, op, given)) if control else handler(self, op, given)  # type: ignore[misc]
                if len(op.results) == 1:
                    values[op.results[0]] = found
                elif op.results:
                    values.update(zip(op.results, found, strict=True))
            except self.raises as error:
                raise self.told(op, error) from error
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

    def told(self, op: Operation, error: Exception) -> Exception:
        """What went wrong at an operation, with its line."""
        if isinstance(error, CannotFollow):
            return error if str(error).startswith("line ") else type(error)(f"line {op.line}: {op.name}: {error}")
        if isinstance(error, ZeroDivisionError):
            return CannotFollow(f"line {op.line}: got a division by 0; needed another divisor")
        return CannotFollow(f"line {op.line}: {op.name}, with operands that the checker does not know ({error})")

    def undecided(self, op: Operation) -> None:
        """Both branches of an `if` that data decide, each as one that may be taken."""
        inside = [o for region in op.regions for o in walk(region)]
        held = [o.name for o in inside if SYNCHRONIZES.search(o.name) or any("tma_" in t for t in o.operand_types)]
        if held:
            raise CannotFollow(f"a branch that depends on data holds {held[0]}")
        outside, self.ifs = self.guesses, self.ifs + 1
        number = self.ifs
        for side, region in enumerate(op.regions):
            self.guesses = (*outside, (number, side))
            self.run(region, ())
        self.guesses = outside

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
        """How many are active."""
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
        """What lanes do ("arrive", or "expect" alone), how many at which barrier, arrivals and bytes of each."""
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
        given, (names, sizes, *_) = iter(args), op.get("operandSegmentSizes", (1, 1))
        number = self.integer(next(given), "the number of a barrier") if names else 0
        everyone = int(np.prod(self.place.block))
        return number, self.integer(next(given), "the threads of a barrier") if sizes else everyone

    def multicast(self, mask: Any, own: int) -> list[int]:
        """The ranks of the CTAs that a mask names; without one, `own`."""
        if mask is None:
            return [own]
        bits = self.integer(mask, "the mask of a multicast")
        return [rank for rank in range(16) if bits >> rank & 1]

    def by_lane(self, value: Any) -> Iterator[tuple[int, Any]]:
        """(lane, value) of the active lanes."""
        for lane in np.flatnonzero(self.active):
            yield int(lane), value[lane].item() if isinstance(value, np.ndarray) else value


ENDS = ("scf.yield", "func.return", "cuda.return", "scf.condition", "gpu.return")
SYNCHRONIZES = re.compile(
    r"mbarrier|nvvm\.barrier|cluster|wgmma|bulk|tcgen05|fence|mapa|cute\.gemm|elect|cp\.async|setmaxregister"
)


def _looked_up(op: Operation) -> Prepared:
    if op.name in ENDS:
        return op, None, None
    return op, TABLE.get(op.name, unknown), CONTROL.get(op.name)


# --- control -----------------------------------------------------------------------------------------------------


def unknown(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    raise CannotFollow("an operation that is not known to the checker")


@controls("scf.if")
def _if(f: Interpreter, op: Operation, args: list[Any]) -> Waits:
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


@controls("scf.for")
def _for(f: Interpreter, op: Operation, args: list[Any]) -> Waits:
    first, last, step = (f.integer(x, "the bound of a loop") for x in args[:3])
    carried = args[3:]
    for i in range(first, last, step):
        carried = yield from f.go(op.regions[0], [i, *carried])
    return _results(op, carried)


@controls("scf.while")
def _while(f: Interpreter, op: Operation, args: list[Any]) -> Waits:
    carried = args
    for _ in range(100_000):
        condition, *carried = yield from f.go(op.regions[0], carried)
        if not f.integer(condition, "the condition of a loop"):
            return _results(op, carried)
        carried = yield from f.go(op.regions[1], carried)
    raise CannotFollow("a loop that does not end")


@controls("scf.execute_region")
def _execute(f: Interpreter, op: Operation, args: list[Any]) -> Waits:
    return _results(op, (yield from f.go(op.regions[0], ())))


# --- integers ----------------------------------------------------------------------------------------------------


@handles("arith.constant")
def _constant(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    value = op.attributes["value"]
    return value if isinstance(value, int) and op.result_types[0][0] in "i" else UNKNOWN  # a vector, or no integer


def _elementwise(function: Callable[..., Any]) -> Handler:
    def handler(f: Interpreter, op: Operation, args: list[Any]) -> Any:
        if any(not isinstance(x, (int, np.integer, np.ndarray)) for x in args):
            return UNKNOWN
        return function(*args)

    return handler


def _quotient(a: Any, b: Any) -> Any:
    """As C divides: towards zero."""
    down = abs(a) // abs(b)
    return np.where((a < 0) != (b < 0), -down, down) if isinstance(down, np.ndarray) else _signed(a, b, down)


def _signed(a: int, b: int, magnitude: int) -> int:
    return -magnitude if (a < 0) != (b < 0) else magnitude


BINARY: dict[str, Callable[..., Any]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "divsi": _quotient,
    "divui": lambda a, b: a // b,
    "floordivsi": lambda a, b: a // b,
    "ceildivsi": lambda a, b: -(-a // b),
    "remsi": lambda a, b: a - b * _quotient(a, b),
    "remui": lambda a, b: a % b,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "shli": lambda a, b: a << b,
    "shrui": lambda a, b: a >> b,
    "shrsi": lambda a, b: a >> b,
    "minsi": lambda a, b: np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b),
    "maxsi": lambda a, b: np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b),
}
BINARY["minui"], BINARY["maxui"] = BINARY["minsi"], BINARY["maxsi"]
for _name, _function in BINARY.items():
    TABLE[f"arith.{_name}"] = _elementwise(_function)

COMPARISONS: tuple[Callable[..., Any], ...] = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
)


@handles("arith.cmpi")
def _compare(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    which = op.attributes["predicate"]
    compare = COMPARISONS[which if which < 6 else which - 4]  # unsigned ones: of numbers that are not negative
    found = _elementwise(compare)(f, op, args)
    return int(found) if isinstance(found, bool) else found


@handles("arith.select")
def _select(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    condition, a, b = args
    if isinstance(condition, np.ndarray):
        return f.merged(condition.astype(bool), a, b)
    return UNKNOWN if condition is UNKNOWN else a if condition else b


@handles("arith.extui", "arith.extsi", "arith.index_cast", "arith.index_castui", "cuda.cast", "cute.assume")
@handles("cute.to_int_tuple", "cute.fast_divmod.create_divisor", "cute.fast_divmod.get_divisor")
def _same_value(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return args[0].astype(np.int64) if isinstance(args[0], np.ndarray) and args[0].dtype == bool else args[0]


@handles("cute.fast_divmod.compute")
def _divmod(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    """By its `create_divisor`, which is followed as the number itself."""
    return TABLE["arith.divui"](f, op, args), TABLE["arith.remui"](f, op, args)


@handles("arith.trunci")
def _truncate(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    bits = int(op.result_types[0][1:])
    return _elementwise(lambda a: a & ((1 << bits) - 1))(f, op, args)


@handles("arith.truncf", "arith.extf", "arith.mulf", "arith.addf", "arith.subf", "arith.divf", "arith.negf")
@handles("arith.maximumf", "arith.maxnumf", "arith.minimumf", "arith.sitofp", "arith.cmpf", "arith.bitcast")
@handles("arith.fptosi", "arith.fptoui", "arith.uitofp", "arith.minnumf", "arith.remf", "math.fma", "math.absf")
@handles("math.exp2", "math.rsqrt", "math.tanh", "vector.bitcast", "vector.extract", "vector.splat", "vector.broadcast")
@handles("vector.insert", "vector.extract_strided_slice", "vector.from_elements", "vector.shuffle", "llvm.mlir.undef")
@handles("vector.reduction")
def _data(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return UNKNOWN if len(op.results) == 1 else (UNKNOWN,) * len(op.results)


for _axis, _letter in enumerate("xyz"):
    _register = "nvvm.read.ptx.sreg."
    TABLE[f"{_register}tid.{_letter}"] = lambda f, op, args, a=_axis: f.place.thread(a)
    TABLE[f"{_register}ntid.{_letter}"] = lambda f, op, args, a=_axis: f.place.block[a]
    TABLE[f"{_register}ctaid.{_letter}"] = lambda f, op, args, a=_axis: f.place.cta[a]
    TABLE[f"{_register}nctaid.{_letter}"] = lambda f, op, args, a=_axis: f.place.grid[a]
    TABLE[f"{_register}cluster.ctaid.{_letter}"] = lambda f, op, args, a=_axis: f.place.cta[a] % f.place.cluster[a]
    TABLE[f"{_register}cluster.nctaid.{_letter}"] = lambda f, op, args, a=_axis: f.place.cluster[a]
    TABLE[f"{_register}clusterid.{_letter}"] = lambda f, op, args, a=_axis: f.place.cta[a] // f.place.cluster[a]
    TABLE[f"{_register}nclusterid.{_letter}"] = lambda f, op, args, a=_axis: f.place.grid[a] // f.place.cluster[a]
TABLE["nvvm.read.ptx.sreg.cluster.ctarank"] = lambda f, op, args: f.place.rank
TABLE["nvvm.read.ptx.sreg.laneid"] = lambda f, op, args: np.arange(LANES)


@handles("cute_nvgpu.arch.make_warp_uniform")
def _uniform(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    value = args[0]
    return value[np.flatnonzero(f.active)[0]].item() if isinstance(value, np.ndarray) else value


@handles("nvvm.elect.sync")
def _elect(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return np.arange(LANES) == np.flatnonzero(f.active)[0]


# --- CuTe's tuples -----------------------------------------------------------------------------------------------


def dynamic(value: Any, text: str) -> list[Any]:
    """The leaves of an operand that its type does not know."""
    if not text.startswith("!cute.") or '"' not in text:
        return [value]
    places, count = shapes.dynamic_places(text)
    found = list(shapes.leaves(value)) if places else []
    if places and len(found) != count:
        raise ValueError(f"{text}: got {len(found)} leaves; needed {count}")
    return [found[place] for place in places]


def _filled(op: Operation, args: list[Any]) -> Any:
    """The result as its type says, its unknown leaves those of the operands."""
    pattern = shapes.tree(shapes.quoted(op.result_types[0]))
    if not shapes.dynamic_places(op.result_types[0])[0]:
        return pattern
    values = [leaf for value, text in zip(args, op.operand_types, strict=True) for leaf in dynamic(value, text)]
    return shapes.filled(pattern, iter(values))


@handles("cute.make_int_tuple", "cute.make_shape", "cute.make_stride", "cute.make_coord")
def _make_tuple(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return _filled(op, args)


@handles("cute.make_tile")
def _make_tile(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    text = shapes.quoted(op.result_types[0])
    if re.fullmatch(r"\[?(\?(\{[^}]*\})?:1;?)+\]?", text):
        return tuple(args)
    return UNKNOWN if args else shapes.tile_sizes(text)  # of layouts: only TMA's descriptors use that


@handles("cute.get_leaves")
def _get_leaves(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    found = list(shapes.leaves(args[0]))
    if len(found) != len(op.results):  # of a tuple that is not known as a whole
        found = [_constant_of(text) for text in op.result_types]
    return found[0] if len(op.results) == 1 else tuple(found)


def _constant_of(text: str) -> Any:
    """The number that a type spells, if it does."""
    pattern = shapes.tree(shapes.quoted(text))
    return UNKNOWN if shapes.is_dynamic(pattern) else pattern


@handles("cute.get_scalars")
def _get_scalars(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    if not isinstance(args[0], tuple):
        return args[0]
    wanted = dynamic(args[0], op.operand_types[0])
    return wanted[0] if len(op.results) == 1 else tuple(wanted)


def _by_leaf(function: Callable[..., Any]) -> Handler:
    """An operation on two tuples, leaf by leaf; one of them may be a single number."""

    def both(a: Any, b: Any) -> Any:
        if isinstance(a, tuple) or isinstance(b, tuple):
            if not isinstance(a, tuple):
                a = (a,) * len(b)
            if not isinstance(b, tuple):
                b = (b,) * len(a)
            return tuple(both(x, y) for x, y in zip(a, b, strict=True))
        known = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (a, b))
        return function(a, b) if known else UNKNOWN

    def handler(f: Interpreter, op: Operation, args: list[Any]) -> Any:
        return both(*args)

    return handler


TABLE["cute.tuple_add"] = _by_leaf(BINARY["addi"])
TABLE["cute.tuple_sub"] = _by_leaf(BINARY["subi"])
TABLE["cute.tuple_mul"] = _by_leaf(BINARY["muli"])
TABLE["cute.tuple_div"] = _by_leaf(_quotient)
TABLE["cute.tuple_mod"] = _by_leaf(BINARY["remsi"])


@handles("cute.ceil_div")
def _ceil_div(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    a, b = args
    b = b[0] if isinstance(b, tuple) and not isinstance(a, tuple) else b  # a tile of one mode
    return _by_leaf(BINARY["ceildivsi"])(f, op, [a, b])


@handles("cute.tuple_product")
def _product(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    total: Any = 1
    for leaf in shapes.leaves(args[0]):
        total = UNKNOWN if leaf is UNKNOWN or total is UNKNOWN else total * leaf
    return total


@handles("cute.elem_less")
def _less(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    pairs = list(zip(shapes.leaves(args[0]), shapes.leaves(args[1]), strict=True))
    if any(x is UNKNOWN or isinstance(x, str) for pair in pairs for x in pair):
        return UNKNOWN
    found: Any = True
    for a, b in pairs:
        found = found & (a < b)
    return found


@handles("cute.get_hier_coord", "cute.get_flat_coord", "cute.idx2crd")
def _coordinate(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    """Of a layout, the coordinate whose offset is the index; of a shape, that of the index, the first mode fastest."""
    index, of = args
    if not isinstance(of, Lay):
        return Lay(of, of).coordinate(index)
    found = _inverse(of.shape, of.stride, index)
    return tuple(shapes.leaves(found)) if op.name.endswith("flat_coord") else found


def _inverse(shape: Any, stride: Any, offset: Any) -> Any:
    if isinstance(shape, tuple):
        return tuple(_inverse(s, d, offset) for s, d in zip(shape, stride, strict=True))
    if shape == 1 or stride == 0:
        return 0
    known = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (shape, stride, offset))
    return offset // stride % shape if known else UNKNOWN


@handles("cute.crd2idx")
def _index(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    coordinate, layout = args
    return layout.offset(coordinate) if isinstance(layout, Lay) else UNKNOWN


@handles("cute.deref_arith_tuple_iter", "cute.make_arith_tuple_iter")
def _coordinates_iterator(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    if op.name.endswith("make_arith_tuple_iter"):
        return Pointer("coord", UNKNOWN)
    pattern = shapes.tree(shapes.quoted(op.result_types[0]))
    return shapes.filled(pattern, iter(()))
