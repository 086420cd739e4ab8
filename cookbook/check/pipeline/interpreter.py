"""Follows the integers of a traced kernel through one warp: loops, branches, arithmetic, coordinates.

Values are Python integers, arrays of 32 (one for each lane) where lanes differ, nested tuples of these, pointers and
views (see `views`). Data are UNKNOWN and stay so. What waits, signals or touches memory is left to a subclass,
`programs.Recorder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.reading import Operation, Region, walk
from cookbook.check.pipeline.shapes import UNKNOWN, CannotFollow, Lay, Pointer

LANES = 32
NOT_ITS_OPERANDS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what a handler then raises
STEPS = 2_000_000  # operations of one warp: more than any problem worth exploring
Handler = Callable[[Any, Operation, list[Any]], Any]  # the first: the Interpreter, or a kind of it that adds handlers
TABLE: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Registers what follows one or several operations: it returns the result, or a tuple of several."""

    def register(handler: Handler) -> Handler:
        TABLE.update(dict.fromkeys(names, handler))
        return handler

    return register


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

    def __init__(self, place: Place) -> None:
        self.place = place
        self.values: dict[str, Any] = {}
        self.active = np.ones(LANES, bool)
        self.guessed = False  # inside a branch that may or may not be taken
        self.guesses: tuple[tuple[int, int], ...] = ()  # those branches: the number of the `if`, and which side
        self.ifs = 0  # whose side was guessed, so far
        self.allocated = 0  # bytes of shared memory so far
        self.arrays = 0  # of registers, so far
        self.steps = 0

    def run(self, region: Region, arguments: Sequence[Any]) -> list[Any]:
        """Through a region; what it yields."""
        self.values.update(zip(region.arguments, arguments, strict=True))
        for operation in region.operations:
            if operation.name in ENDS:
                return [self.values[name] for name in operation.operands]
            self.step(operation)
        return []

    def step(self, operation: Operation) -> None:
        """Through one operation."""
        self.steps += 1
        if self.steps > STEPS:
            raise CannotFollow(f"line {operation.line}: more than {STEPS} operations in one warp")
        handler = TABLE.get(operation.name)
        if handler is None:
            raise CannotFollow(f"line {operation.line}: {operation.name}, which is not known to the checker")
        try:
            found = handler(self, operation, [self.values[name] for name in operation.operands])
        except CannotFollow as error:
            if str(error).startswith("line "):
                raise
            raise CannotFollow(f"line {operation.line}: {operation.name}: {error}") from None
        except ZeroDivisionError:
            raise CannotFollow(f"line {operation.line}: got a division by 0; needed another divisor") from None
        except NOT_ITS_OPERANDS as error:
            text = f"line {operation.line}: {operation.name}, with operands that the checker does not know ({error})"
            raise CannotFollow(text) from error
        if len(operation.results) == 1:
            self.values[operation.results[0]] = found
        elif operation.results:
            if not isinstance(found, tuple) or len(found) != len(operation.results):
                raise CannotFollow(f"line {operation.line}: {operation.name}, whose {len(operation.results)} results")
            self.values.update(zip(operation.results, found, strict=True))

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

    def by_lane(self, value: Any) -> Iterator[tuple[int, Any]]:
        """(lane, value) of the active lanes."""
        for lane in np.flatnonzero(self.active):
            yield int(lane), value[lane].item() if isinstance(value, np.ndarray) else value


ENDS = ("scf.yield", "func.return", "cuda.return", "scf.condition", "gpu.return")
SYNCHRONIZES = re.compile(
    r"mbarrier|nvvm\.barrier|cluster|wgmma|bulk|tcgen05|fence|mapa|cute\.gemm|elect|cp\.async|setmaxregister"
)


# --- control -----------------------------------------------------------------------------------------------------


@handles("scf.if")
def _if(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    condition = f.same(args[0])
    if condition is not UNKNOWN:
        found = f.run(op.regions[0 if condition else 1], ()) if condition or len(op.regions) > 1 else []
        return _results(op, found)
    if isinstance(args[0], np.ndarray):
        return _results(op, _both(f, op, args[0].astype(bool)))
    inside = [o for region in op.regions for o in walk(region)]
    held = [o.name for o in inside if SYNCHRONIZES.search(o.name) or any("tma_" in t for t in o.operand_types)]
    if held:
        raise CannotFollow(f"a branch that depends on data holds {held[0]}")
    before, outside = f.guessed, f.guesses
    f.guessed, f.ifs = True, f.ifs + 1
    for side, region in enumerate(op.regions):
        f.guesses = (*outside, (f.ifs, side))
        f.run(region, ())
    f.guessed, f.guesses = before, outside
    return _results(op, [UNKNOWN] * len(op.results))


def _both(f: Interpreter, op: Operation, condition: np.ndarray) -> list[Any]:
    """Both branches, each by the lanes that take it."""
    before, found = f.active, []
    for region, takes in zip(op.regions, (condition, ~condition), strict=False):
        f.active = before & takes
        found.append(f.run(region, ()))
    f.active = before
    if not op.results:
        return []
    return [_merged(condition, a, b) for a, b in zip(*found, strict=True)]


def _merged(condition: np.ndarray, a: Any, b: Any) -> Any:
    if a is b:
        return a
    known = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (a, b))
    return np.where(condition, a, b) if known else UNKNOWN


def _results(op: Operation, found: list[Any]) -> Any:
    return found[0] if len(op.results) == 1 else tuple(found)


@handles("scf.for")
def _for(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    first, last, step = (f.integer(x, "the bound of a loop") for x in args[:3])
    carried = args[3:]
    for i in range(first, last, step):
        carried = f.run(op.regions[0], [i, *carried])
    return _results(op, carried)


@handles("scf.while")
def _while(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    carried = args
    while True:
        condition, *carried = f.run(op.regions[0], carried)
        if not f.integer(condition, "the condition of a loop"):
            return _results(op, carried)
        carried = f.run(op.regions[1], carried)


@handles("scf.execute_region")
def _execute(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return _results(op, f.run(op.regions[0], ()))


# --- integers ----------------------------------------------------------------------------------------------------


@handles("arith.constant")
def _constant(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    try:
        return op.integer("value")
    except KeyError:
        return UNKNOWN  # a vector, or a number that is no integer


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
    which = op.integer("predicate")
    compare = COMPARISONS[which if which < 6 else which - 4]  # unsigned ones: of numbers that are not negative
    found = _elementwise(compare)(f, op, args)
    return int(found) if isinstance(found, bool) else found


@handles("arith.select")
def _select(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    condition, a, b = args
    if isinstance(condition, np.ndarray):
        return _merged(condition.astype(bool), a, b)
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


def dynamic(value: Any, text: str) -> Iterator[Any]:
    """The leaves of an operand that its type does not know."""
    if text.startswith("!cute.") and '"' in text:
        pattern = shapes.tree(shapes.quoted(text))
        for leaf, known in zip(shapes.leaves(value), shapes.leaves(pattern), strict=True):
            if shapes.is_dynamic(known):
                yield leaf
    else:
        yield value


def _filled(op: Operation, args: list[Any]) -> Any:
    """The result as its type says, its unknown leaves those of the operands."""
    values = (leaf for value, text in zip(args, op.operand_types, strict=True) for leaf in dynamic(value, text))
    return shapes.filled(shapes.tree(shapes.quoted(op.result_types[0])), values)


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
    wanted = list(dynamic(args[0], op.operand_types[0]))
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
