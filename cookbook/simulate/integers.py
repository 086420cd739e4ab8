"""Integers, coordinates and tuples; and what is data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from cookbook.simulate import types
from cookbook.simulate.trace import Operation
from cookbook.simulate.types import is_float
from cookbook.simulate.values import LANES, UNDEFINED, UNKNOWN, Arith, Lay, Pointer, is_number, leaves, nested
from cookbook.simulate.warp import Handler, Warp, handles


@handles("arith.constant")
def _constant(f: Warp, op: Operation, args: list[Any]) -> Any:
    value, kind = op.attributes["value"], op.result_types[0]
    if is_float(kind) or not isinstance(value, int):
        return f.data(op, args)
    return np.full((LANES, types.count_of(kind)), value, np.int64) if kind.startswith("vector<") else value


def _elementwise(function: Callable[..., Any]) -> Handler:
    def handler(f: Warp, op: Operation, args: list[Any]) -> Any:
        if all(map(is_number, args)):
            return function(*args)
        return UNDEFINED if any(arg is UNDEFINED for arg in args) else f.data(op, args)

    return handler


def _defined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A division; by 0 it leaves UNDEFINED."""

    def divided(a: Any, b: Any) -> Any:
        return UNDEFINED if not isinstance(b, np.ndarray) and b == 0 else function(a, b)

    return divided


@_defined
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
    "divui": _defined(lambda a, b: a // b),
    "floordivsi": _defined(lambda a, b: a // b),
    "ceildivsi": _defined(lambda a, b: -(-a // b)),
    "remsi": _defined(lambda a, b: a - b * _quotient(a, b)),
    "remui": _defined(lambda a, b: a % b),
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
    handles(f"arith.{_name}")(_elementwise(_function))

COMPARISONS: tuple[Callable[..., Any], ...] = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
)


@handles("arith.cmpi")
def _compare(f: Warp, op: Operation, args: list[Any]) -> Any:
    which = op.attributes["predicate"]
    compare = COMPARISONS[which if which < 6 else which - 4]  # unsigned ones: of numbers that are not negative
    found = _elementwise(compare)(f, op, args)
    return int(found) if isinstance(found, bool) else found


@handles("arith.select")
def _select(f: Warp, op: Operation, args: list[Any]) -> Any:
    condition, a, b = args
    if isinstance(condition, np.ndarray):
        return f.merged(condition.astype(bool), a, b)
    return UNKNOWN if condition is UNKNOWN else a if condition else b


@handles("arith.extui", "arith.extsi", "arith.index_cast", "arith.index_castui")
def _extended(f: Warp, op: Operation, args: list[Any]) -> Any:
    if not is_number(args[0]):
        return f.data(op, args)
    return args[0].astype(np.int64) if isinstance(args[0], np.ndarray) and args[0].dtype == bool else args[0]


@handles("cuda.cast", "cute.to_int_tuple", "cute.fast_divmod.create_divisor", "cute.fast_divmod.get_divisor")
def _same_value(f: Warp, op: Operation, args: list[Any]) -> Any:
    return args[0]


@handles("cute.assume")
def _assume(f: Warp, op: Operation, args: list[Any]) -> Any:
    """Return what the kernel promises the compiler of a number."""
    by, number = re.search(r"<divby (\d+)>", op.result_types[0]), f.same(args[0])
    if by and isinstance(number, int) and number % int(by[1]):
        f.broken_promise(number, int(by[1]))
    return args[0]


@handles("cute.fast_divmod.compute")
def _divmod(f: Warp, op: Operation, args: list[Any]) -> Any:
    """By its `create_divisor`, which is followed as the number itself."""
    return tuple(_elementwise(BINARY[name])(f, op, args) for name in ("divui", "remui"))


@handles("arith.trunci")
def _truncate(f: Warp, op: Operation, args: list[Any]) -> Any:
    bits = int(op.result_types[0][1:])
    return _elementwise(lambda a: a & ((1 << bits) - 1))(f, op, args)


@handles("arith.truncf", "arith.extf", "arith.mulf", "arith.addf", "arith.subf", "arith.divf", "arith.negf")
@handles("arith.maximumf", "arith.maxnumf", "arith.minimumf", "arith.sitofp", "arith.cmpf", "arith.bitcast")
@handles("arith.fptosi", "arith.fptoui", "arith.uitofp", "arith.minnumf", "arith.remf", "math.fma", "math.absf")
@handles("math.exp2", "math.rsqrt", "math.tanh", "vector.bitcast", "vector.splat", "vector.broadcast")
@handles("vector.insert", "vector.extract_strided_slice", "vector.from_elements", "vector.shuffle", "llvm.mlir.undef")
@handles("vector.reduction", "nvvm.redux.sync", "nvvm.atomicrmw", "nvvm.fmax", "nvvm.fmin", "nvvm.rcp.approx.ftz.f")
@handles(*(f"nvvm.{what}.packed.f32x2" for what in ("add", "sub", "mul", "fma")))
@handles("math.log", "math.log2", "math.exp", "math.sqrt", "math.sin", "math.cos", "math.erf")
def _data(f: Warp, op: Operation, args: list[Any]) -> Any:
    return f.data(op, args)


@handles("llvm.intr.ctlz")
def _leading_zeros(f: Warp, op: Operation, args: list[Any]) -> Any:
    bits = int(op.result_types[0][1:])
    return bits - args[0].bit_length() if isinstance(args[0], int) else f.data(op, args)


@handles("iket.range_push", "iket.range_pop")
def _range(f: Warp, op: Operation, args: list[Any]) -> None:
    """A mark for a profiler."""


@handles("vector.extract")
def _extract(f: Warp, op: Operation, args: list[Any]) -> Any:
    """One element of a vector, at a place that is known when the kernel is compiled."""
    (source,) = args
    if not isinstance(source, np.ndarray):
        return f.data(op, args)
    return source[:, op.attributes["static_position"][0]] if source.ndim == 2 else source


@handles("vector.to_elements")
def _elements(f: Warp, op: Operation, args: list[Any]) -> Any:
    """All elements of a vector, each a result."""
    (source,) = args
    if not isinstance(source, np.ndarray) or source.ndim == 1:
        return f.data(op, args)
    found = tuple(source[:, number] for number in range(len(op.results)))
    return found[0] if len(found) == 1 else found


VOTES: dict[str, Callable[[np.ndarray], int]] = {
    "ballot": lambda votes: sum(1 << int(lane) for lane in np.flatnonzero(votes)),
    "any": lambda votes: int(votes.any()),
    "all": lambda votes: int(votes.all()),
}


@handles("nvvm.vote.sync")
def _vote(f: Warp, op: Operation, args: list[Any]) -> Any:
    """One answer for all lanes."""
    vote = args[1]
    if not is_number(vote) or op.attributes["kind"] not in VOTES:
        return f.data(op, args)
    votes = np.broadcast_to(np.asarray(vote, bool), (LANES,))
    of_active = votes & f.active if op.attributes["kind"] == "ballot" else votes[f.active]
    return VOTES[op.attributes["kind"]](of_active)


@handles("nvvm.shfl.sync")
def _shuffle(f: Warp, op: Operation, args: list[Any]) -> Any:
    """PTX ISA, "shfl.sync"; its third operand has the last lane in its lowest five bits, the segments above."""
    _, value, by, clamp = args
    if not is_number(value) or not is_number(by) or not isinstance(clamp, int) or len(op.results) > 1:
        return f.data(op, args)
    if not isinstance(value, np.ndarray):
        return value
    lane, segments, last = np.arange(LANES), clamp >> 8 & 31, clamp & 31
    low = lane & segments
    high = low | last & ~segments
    kind = op.attributes["kind"]
    source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": low | by & ~segments & 31}[kind]
    inside = source >= high if kind == "up" else source <= high
    return value[np.where(inside, source, lane)]


@handles("math.ctpop")
def _ones(f: Warp, op: Operation, args: list[Any]) -> Any:
    bits = int(op.result_types[0][1:])
    return (args[0] & (1 << bits) - 1).bit_count() if isinstance(args[0], int) else f.data(op, args)


for _axis, _letter in enumerate("xyz"):
    _register = "nvvm.read.ptx.sreg."
    handles(f"{_register}tid.{_letter}")(lambda f, op, args, a=_axis: f.place.thread(a))
    handles(f"{_register}ntid.{_letter}")(lambda f, op, args, a=_axis: f.place.block[a])
    handles(f"{_register}ctaid.{_letter}")(lambda f, op, args, a=_axis: f.place.cta[a])
    handles(f"{_register}nctaid.{_letter}")(lambda f, op, args, a=_axis: f.place.grid[a])
    handles(f"{_register}cluster.ctaid.{_letter}")(lambda f, op, args, a=_axis: f.place.cta[a] % f.place.cluster[a])
    handles(f"{_register}cluster.nctaid.{_letter}")(lambda f, op, args, a=_axis: f.place.cluster[a])
    handles(f"{_register}clusterid.{_letter}")(lambda f, op, args, a=_axis: f.place.cta[a] // f.place.cluster[a])
    handles(f"{_register}nclusterid.{_letter}")(lambda f, op, args, a=_axis: f.place.grid[a] // f.place.cluster[a])
handles("nvvm.read.ptx.sreg.cluster.ctarank")(lambda f, op, args: f.place.rank)
handles("nvvm.read.ptx.sreg.laneid")(lambda f, op, args: np.arange(LANES))


@handles("cute_nvgpu.arch.make_warp_uniform")
def _uniform(f: Warp, op: Operation, args: list[Any]) -> Any:
    value = args[0]
    return value[np.flatnonzero(f.active)[0]].item() if isinstance(value, np.ndarray) else value


@handles("nvvm.elect.sync")
def _elect(f: Warp, op: Operation, args: list[Any]) -> Any:
    return np.arange(LANES) == np.flatnonzero(f.active)[0]


# --- CuTe's tuples -----------------------------------------------------------------------------------------------


def dynamic(value: Any, text: str) -> list[Any]:
    """The leaves of an operand that its type does not know."""
    if not text.startswith("!cute.") or '"' not in text:
        return [value]
    places, count = types.dynamic_places(text)
    found = list(leaves(value)) if places else []
    if places and len(found) != count:
        raise ValueError(f"{text}: got {len(found)} leaves; needed {count}")
    return [found[place] for place in places]


def _filled(op: Operation, args: list[Any]) -> Any:
    """The result as its type says, its unknown leaves those of the operands."""
    pattern = types.tree(types.quoted(op.result_types[0]))
    if not types.dynamic_places(op.result_types[0])[0]:
        return pattern
    values = [leaf for value, text in zip(args, op.operand_types, strict=True) for leaf in dynamic(value, text)]
    return types.filled(pattern, iter(values))


@handles("cute.make_int_tuple", "cute.make_shape", "cute.make_stride", "cute.make_coord")
def _make_tuple(f: Warp, op: Operation, args: list[Any]) -> Any:
    return _filled(op, args)


@handles("cute.make_tile")
def _make_tile(f: Warp, op: Operation, args: list[Any]) -> Any:
    text = types.quoted(op.result_types[0])
    if re.fullmatch(r"\[?(\?(\{[^}]*\})?:1;?)+\]?", text):
        return tuple(args)
    return (
        UNKNOWN if args or text.startswith("[[") else types.tile_sizes(text)
    )  # of layouts: TMA's descriptors use that


@handles("cute.get_leaves")
def _get_leaves(f: Warp, op: Operation, args: list[Any]) -> Any:
    found = list(leaves(args[0]))
    if len(found) != len(op.results):  # of a tuple that is not known as a whole
        found = [_constant_of(text) for text in op.result_types]
    return found[0] if len(op.results) == 1 else tuple(found)


def _constant_of(text: str) -> Any:
    """The number that a type spells, if it does."""
    pattern = types.tree(types.quoted(text))
    return UNKNOWN if types.is_dynamic(pattern) else pattern


@handles("cute.get_scalars")
def _get_scalars(f: Warp, op: Operation, args: list[Any]) -> Any:
    if not isinstance(args[0], tuple):
        return args[0]
    wanted = dynamic(args[0], op.operand_types[0])
    return wanted[0] if len(op.results) == 1 else tuple(wanted)


def _by_leaf(function: Callable[..., Any], pads: bool = False) -> Handler:
    """An operation on two tuples, leaf by leaf; one of them may be a single number.

    pads: the shorter of two coordinates goes on with zeros.
    """

    def both(a: Any, b: Any) -> Any:
        if isinstance(a, tuple) or isinstance(b, tuple):
            if not isinstance(a, tuple):
                a = (a,) * len(b)
            if not isinstance(b, tuple):
                b = (b,) * len(a)
            pairs = zip_longest(a, b, fillvalue=0) if pads else zip(a, b, strict=True)
            return tuple(both(x, y) for x, y in pairs)
        known = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (a, b))
        return function(a, b) if known else UNDEFINED if a is UNDEFINED or b is UNDEFINED else UNKNOWN

    def handler(f: Warp, op: Operation, args: list[Any]) -> Any:
        return both(*args)

    return handler


handles("cute.tuple_add")(_by_leaf(BINARY["addi"], pads=True))
handles("cute.tuple_sub")(_by_leaf(BINARY["subi"]))
handles("cute.tuple_mul")(_by_leaf(BINARY["muli"]))
handles("cute.tuple_div")(_by_leaf(_quotient))
handles("cute.tuple_mod")(_by_leaf(BINARY["remsi"]))


@handles("cute.ceil_div")
def _ceil_div(f: Warp, op: Operation, args: list[Any]) -> Any:
    a, b = args
    b = b[0] if isinstance(b, tuple) and not isinstance(a, tuple) else b  # a tile of one mode
    if isinstance(a, tuple) and isinstance(b, tuple):  # of fewer modes: the others are left whole
        b = (*(1 if each is None else each for each in b), *(1,) * (len(a) - len(b)))
    return _by_leaf(BINARY["ceildivsi"])(f, op, [a, b])


@handles("cute.tuple_product")
def _product(f: Warp, op: Operation, args: list[Any]) -> Any:
    total: Any = 1
    for leaf in leaves(args[0]):
        total = UNKNOWN if leaf is UNKNOWN or total is UNKNOWN else total * leaf
    return total


@handles("cute.elem_less")
def _less(f: Warp, op: Operation, args: list[Any]) -> Any:
    pairs = list(zip(leaves(args[0]), leaves(args[1]), strict=True))
    if any(x is UNKNOWN or isinstance(x, str) for pair in pairs for x in pair):
        return UNKNOWN
    found: Any = True
    for a, b in pairs:
        found = found & (a < b)
    return found


@handles("cute.get_hier_coord", "cute.get_flat_coord", "cute.idx2crd")
def _coordinate(f: Warp, op: Operation, args: list[Any]) -> Any:
    """Find a layout's coordinate whose offset is the index; of a shape, that of the index, the first mode fastest."""
    index, of = args
    if not isinstance(of, Lay):
        return Lay(of, of).coordinate(index)
    found = _inverse(of.shape, of.stride, index)
    return tuple(leaves(found)) if op.name.endswith("flat_coord") else found


def _inverse(shape: Any, stride: Any, offset: Any) -> Any:
    if isinstance(shape, tuple):
        return tuple(_inverse(s, d, offset) for s, d in zip(shape, stride, strict=True))
    if shape == 1 or stride == 0:
        return 0
    known = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (shape, stride, offset))
    if known and not (isinstance(shape, np.ndarray) or isinstance(stride, np.ndarray)) and 0 in (shape, stride):
        return UNDEFINED
    return offset // stride % shape if known else UNDEFINED if offset is UNDEFINED else UNKNOWN


@handles("cute.crd2idx")
def _index(f: Warp, op: Operation, args: list[Any]) -> Any:
    coordinate, layout = args
    if not isinstance(layout, Lay):
        layout = Lay(layout, nested(layout, iter(compact(leaves(layout)))))
    found = layout.offset(coordinate)
    return coordinates_of(op.result_types[0], found) if types.quoted(op.result_types[0])[0] == "(" else found


def compact(extents: Any) -> list[Any]:
    """Strides of elements one after the other."""
    strides, step = [], 1
    for extent in extents:
        strides.append(step)
        step = step * extent
    return strides


def coordinates_of(text: str, at: Any) -> Any:
    """A coordinate as nested tuple, as a type spells it."""
    pattern = types.tree(types.quoted(text))
    return nested(pattern, iter([at.at(*path) if isinstance(at, Arith) else 0 for path in paths(pattern)]))


def paths(pattern: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The path of each leaf of a nested tuple."""
    if isinstance(pattern, tuple):
        for number, part in enumerate(pattern):
            yield from paths(part, (*path, number))
    else:
        yield path


@handles("cute.deref_arith_tuple_iter")
def _coordinates(f: Warp, op: Operation, args: list[Any]) -> Any:
    return coordinates_of(op.result_types[0], args[0].address)


@handles("cute.make_arith_tuple_iter")
def _coordinates_iterator(f: Warp, op: Operation, args: list[Any]) -> Any:
    return Pointer("coord", Arith(dict(zip(paths(args[0]), leaves(args[0]), strict=True))))
