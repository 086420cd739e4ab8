"""Follows the integers of a traced kernel through one warp: loops, branches, coordinates, addresses of shared memory.

Values are Python integers, arrays of 32 (one for each lane) where lanes differ, nested tuples of these, pointers and
views. Data are UNKNOWN and stay so. What waits, signals or touches memory is left to a subclass (`programs.Recorder`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.harness.interleavings import shapes
from cookbook.harness.interleavings.reading import Operation, Region, walk
from cookbook.harness.interleavings.shapes import UNKNOWN, CannotFollow, Lay, Pointer, View
from cookbook.swizzle import Swizzle

LANES = 32
STEPS = 2_000_000  # operations of one warp: more than any problem worth exploring
Handler = Callable[["Follower", Operation, list[Any]], Any]
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


class Follower:
    """The values of one warp while it goes through a region."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.values: dict[str, Any] = {}
        self.active = np.ones(LANES, bool)
        self.guessed = False  # inside a branch that may or may not be taken
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
SYNCHRONIZES = re.compile(r"mbarrier|nvvm\.barrier|cluster|wgmma|bulk|tcgen05|fence|mapa|cute\.gemm|elect")


# --- control -----------------------------------------------------------------------------------------------------


@handles("scf.if")
def _if(f: Follower, op: Operation, args: list[Any]) -> Any:
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
    before, f.guessed = f.guessed, True
    for region in op.regions:
        f.run(region, ())
    f.guessed = before
    return _results(op, [UNKNOWN] * len(op.results))


def _both(f: Follower, op: Operation, condition: np.ndarray) -> list[Any]:
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
def _for(f: Follower, op: Operation, args: list[Any]) -> Any:
    first, last, step = (f.integer(x, "the bound of a loop") for x in args[:3])
    carried = args[3:]
    for i in range(first, last, step):
        carried = f.run(op.regions[0], [i, *carried])
    return _results(op, carried)


@handles("scf.while")
def _while(f: Follower, op: Operation, args: list[Any]) -> Any:
    carried = args
    while True:
        condition, *carried = f.run(op.regions[0], carried)
        if not f.integer(condition, "the condition of a loop"):
            return _results(op, carried)
        carried = f.run(op.regions[1], carried)


@handles("scf.execute_region")
def _execute(f: Follower, op: Operation, args: list[Any]) -> Any:
    return _results(op, f.run(op.regions[0], ()))


# --- integers ----------------------------------------------------------------------------------------------------


@handles("arith.constant")
def _constant(f: Follower, op: Operation, args: list[Any]) -> Any:
    try:
        return op.integer("value")
    except KeyError:
        return UNKNOWN  # a vector, or a number that is no integer


def _elementwise(function: Callable[..., Any]) -> Handler:
    def handler(f: Follower, op: Operation, args: list[Any]) -> Any:
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
def _compare(f: Follower, op: Operation, args: list[Any]) -> Any:
    which = op.integer("predicate")
    compare = COMPARISONS[which if which < 6 else which - 4]  # unsigned ones: of numbers that are not negative
    found = _elementwise(compare)(f, op, args)
    return int(found) if isinstance(found, bool) else found


@handles("arith.select")
def _select(f: Follower, op: Operation, args: list[Any]) -> Any:
    condition, a, b = args
    if isinstance(condition, np.ndarray):
        return _merged(condition.astype(bool), a, b)
    return UNKNOWN if condition is UNKNOWN else a if condition else b


@handles("arith.extui", "arith.extsi", "arith.index_cast", "arith.index_castui", "cuda.cast", "cute.assume")
@handles("cute.to_int_tuple", "cute.fast_divmod.get_divisor")
def _same_value(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0].astype(np.int64) if isinstance(args[0], np.ndarray) and args[0].dtype == bool else args[0]


@handles("arith.trunci")
def _truncate(f: Follower, op: Operation, args: list[Any]) -> Any:
    bits = int(op.result_types[0][1:])
    return _elementwise(lambda a: a & ((1 << bits) - 1))(f, op, args)


@handles("arith.truncf", "arith.extf", "arith.mulf", "arith.addf", "arith.subf", "arith.divf", "arith.negf")
@handles("arith.maximumf", "arith.maxnumf", "arith.minimumf", "arith.sitofp", "arith.cmpf", "arith.bitcast")
@handles("arith.fptosi", "arith.fptoui", "arith.uitofp", "arith.minnumf", "arith.remf", "math.fma", "math.absf")
@handles("math.exp2", "math.rsqrt", "vector.bitcast", "vector.extract", "vector.splat", "vector.broadcast")
@handles("vector.insert", "vector.extract_strided_slice", "vector.from_elements", "vector.shuffle", "llvm.mlir.undef")
def _data(f: Follower, op: Operation, args: list[Any]) -> Any:
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
def _uniform(f: Follower, op: Operation, args: list[Any]) -> Any:
    value = args[0]
    return value[np.flatnonzero(f.active)[0]].item() if isinstance(value, np.ndarray) else value


@handles("nvvm.elect.sync")
def _elect(f: Follower, op: Operation, args: list[Any]) -> Any:
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
def _make_tuple(f: Follower, op: Operation, args: list[Any]) -> Any:
    return _filled(op, args)


@handles("cute.make_tile")
def _make_tile(f: Follower, op: Operation, args: list[Any]) -> Any:
    text = shapes.quoted(op.result_types[0])
    if re.fullmatch(r"\[?(\?(\{[^}]*\})?:1;?)+\]?", text):
        return tuple(args)
    return UNKNOWN if args else shapes.tile_sizes(text)  # of layouts: only TMA's descriptors use that


@handles("cute.get_leaves")
def _get_leaves(f: Follower, op: Operation, args: list[Any]) -> Any:
    found = list(shapes.leaves(args[0]))
    if len(found) != len(op.results):  # of a tuple that is not known as a whole
        found = [_constant_of(text) for text in op.result_types]
    return found[0] if len(op.results) == 1 else tuple(found)


def _constant_of(text: str) -> Any:
    """The number that a type spells, if it does."""
    pattern = shapes.tree(shapes.quoted(text))
    return UNKNOWN if shapes.is_dynamic(pattern) else pattern


@handles("cute.get_scalars")
def _get_scalars(f: Follower, op: Operation, args: list[Any]) -> Any:
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

    def handler(f: Follower, op: Operation, args: list[Any]) -> Any:
        return both(*args)

    return handler


TABLE["cute.tuple_add"] = _by_leaf(BINARY["addi"])
TABLE["cute.tuple_sub"] = _by_leaf(BINARY["subi"])
TABLE["cute.tuple_mul"] = _by_leaf(BINARY["muli"])
TABLE["cute.tuple_div"] = _by_leaf(_quotient)
TABLE["cute.tuple_mod"] = _by_leaf(BINARY["remsi"])


@handles("cute.ceil_div")
def _ceil_div(f: Follower, op: Operation, args: list[Any]) -> Any:
    a, b = args
    b = b[0] if isinstance(b, tuple) and not isinstance(a, tuple) else b  # a tile of one mode
    return _by_leaf(BINARY["ceildivsi"])(f, op, [a, b])


@handles("cute.tuple_product")
def _product(f: Follower, op: Operation, args: list[Any]) -> Any:
    total: Any = 1
    for leaf in shapes.leaves(args[0]):
        total = UNKNOWN if leaf is UNKNOWN or total is UNKNOWN else total * leaf
    return total


@handles("cute.elem_less")
def _less(f: Follower, op: Operation, args: list[Any]) -> Any:
    pairs = list(zip(shapes.leaves(args[0]), shapes.leaves(args[1]), strict=True))
    if any(x is UNKNOWN or isinstance(x, str) for pair in pairs for x in pair):
        return UNKNOWN
    found: Any = True
    for a, b in pairs:
        found = found & (a < b)
    return found


@handles("cute.get_hier_coord", "cute.get_flat_coord", "cute.idx2crd")
def _coordinate(f: Follower, op: Operation, args: list[Any]) -> Any:
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
def _index(f: Follower, op: Operation, args: list[Any]) -> Any:
    coordinate, layout = args
    return layout.offset(coordinate) if isinstance(layout, Lay) else UNKNOWN


@handles("cute.deref_arith_tuple_iter", "cute.make_arith_tuple_iter")
def _coordinates_iterator(f: Follower, op: Operation, args: list[Any]) -> Any:
    if op.name.endswith("make_arith_tuple_iter"):
        return Pointer("coord", UNKNOWN)
    pattern = shapes.tree(shapes.quoted(op.result_types[0]))
    return shapes.filled(pattern, iter(()))


# --- layouts and views -------------------------------------------------------------------------------------------


def layout_of(op: Operation, sources: Sequence[Any], number: int = 0) -> Lay:
    """The layout that a result's type spells, the unknown extents of its shape those of the sources, in their order."""
    layout, wanted = _spelled(op.result_types[number])
    if not wanted:
        return layout
    found = [leaf for source in sources for leaf in _run_time_extents(source)]
    values = iter(found if len(found) == wanted else [UNKNOWN] * wanted)
    return Lay(shapes.filled(layout.shape, values), layout.stride)


@lru_cache(maxsize=4096)
def _spelled(text: str) -> tuple[Lay, int]:
    """The layout that a type spells, and how many extents of its shape are known only when the kernel runs."""
    layout = shapes.lay(shapes.quoted(text))
    wanted = sum(map(shapes.is_dynamic, shapes.leaves(layout.shape)))
    return Lay(layout.shape, _strides(layout.stride)), wanted


def _strides(stride: Any) -> Any:
    if isinstance(stride, tuple):
        return tuple(_strides(part) for part in stride)
    return UNKNOWN if shapes.is_dynamic(stride) else stride


class Extent(int):
    """An extent that a type spells `?`: known here, because one problem is followed."""


def _run_time_extents(source: Any) -> Iterator[Any]:
    shape = source.layout.shape if isinstance(source, View) else source.shape if isinstance(source, Lay) else source
    for leaf in shapes.leaves(shape):
        if isinstance(leaf, Extent) or leaf is UNKNOWN:
            yield leaf


def extents(shape: Any, pattern: Any) -> Any:
    """A shape whose leaves that the pattern does not know are marked as run-time ones."""
    if isinstance(pattern, tuple):
        return tuple(extents(s, p) for s, p in zip(shape, pattern, strict=True))
    known = isinstance(shape, (int, np.integer))
    return Extent(shape) if shapes.is_dynamic(pattern) and known else shape


def marked(value: Any, text: str) -> Any:
    """A shape that is made of operands, with its run-time extents marked."""
    return extents(value, shapes.tree(shapes.quoted(text)))


@handles("cute.make_layout", "cute.make_identity_layout")
def _make_layout(f: Follower, op: Operation, args: list[Any]) -> Any:
    shape = marked(args[0], op.operand_types[0])
    return Lay(shape, _strides(shapes.lay(shapes.quoted(op.result_types[0])).stride))


@handles("cute.make_identity_tensor")
def _identity_tensor(f: Follower, op: Operation, args: list[Any]) -> Any:
    shape = marked(args[0], op.operand_types[0])
    stride = _strides(shapes.lay(shapes.quoted(op.result_types[0])).stride)
    return View(Pointer("coord", UNKNOWN), Lay(shape, stride), 32, Swizzle(0, 4, 3))


@handles("cute.make_composed_layout", "cute.composed_get_outer", "cute.tile_to_shape", "cute.right_inverse")
@handles("cute.left_inverse", "cute.make_ordered_layout", "cute.recast_layout", "cute.logical_product")
def _new_layout(f: Follower, op: Operation, args: list[Any]) -> Any:
    return layout_of(op, [x for x in args if isinstance(x, (Lay, View))])


@handles("cute.static", "cute.get_swizzle", "cute.print", "cute_nvgpu.prefetch_tma_desc", "nvvm.setmaxregister")
@handles("cute.make_atom", "cute.make_tiled_copy", "cute.make_tiled_mma", "cute.kernel_smem_size", "llvm.mlir.poison")
@handles("cute_nvgpu.atom.get_value")
def _by_type(f: Follower, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0]) if op.results else None


@handles("cute_nvgpu.atom.set_value")
def _set_value(f: Follower, op: Operation, args: list[Any]) -> Any:
    name = re.search(r"field = #[\w.]+<(\w+)>", op.properties)
    atom = args[0] if isinstance(args[0], Atom) else Atom(op.operand_types[0])
    return Atom(op.result_types[0], atom.values | {name[1] if name else "?": args[1]})


@handles("cute.get_layout")
def _get_layout(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0].layout


@handles("cute.get_shape")
def _get_shape(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0].layout.shape if isinstance(args[0], View) else args[0].shape


@handles("cute.get_stride")
def _get_stride(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0].layout.stride if isinstance(args[0], View) else args[0].stride


@handles("cute.size", "cute.cosize")
def _size(f: Follower, op: Operation, args: list[Any]) -> Any:
    pattern = shapes.tree(shapes.quoted(op.result_types[0]))
    if not shapes.is_dynamic(pattern):
        return pattern
    shape = args[0].layout.shape if isinstance(args[0], View) else getattr(args[0], "shape", args[0])
    mode = re.search(r"mode = array<i32: ([\d, ]+)>", op.properties)
    for index in map(int, mode[1].split(",")) if mode else ():
        shape = shape[index] if isinstance(shape, tuple) else shape
    return Lay(shape, shape).size


@handles("cute.get_iter")
def _get_iter(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0].pointer


@handles("cute.recast_iter", "builtin.unrealized_conversion_cast", "cute.ptrtoint", "cute.inttoptr")
@handles("llvm.addrspacecast", "cute.address_space_cast")
def _cast(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0]


@handles("cute.add_offset")
def _add_offset(f: Follower, op: Operation, args: list[Any]) -> Any:
    pointer, by = args
    if not isinstance(pointer, Pointer) or pointer.space not in shapes.FOLLOWED:
        return pointer
    bits = shapes.kind(op.operand_types[0]).bits
    while isinstance(by, tuple):
        (by,) = by
    return pointer.moved(UNKNOWN if by is UNKNOWN else by * bits // 8)


def viewed(op: Operation, pointer: Pointer, layout: Lay, number: int = 0, swizzle: Swizzle | None = None) -> View:
    """A view with what a result's type says of its elements."""
    found = shapes.kind(op.result_types[number])
    return View(pointer, layout, found.bits, swizzle or found.swizzle)


@handles("cute.make_view")
def _make_view(f: Follower, op: Operation, args: list[Any]) -> Any:
    pointer = args[0] if isinstance(args[0], Pointer) else Pointer("coord", UNKNOWN)
    layout = args[1] if len(args) > 1 else layout_of(op, [])
    return viewed(op, pointer, layout)


@handles("cute.group_modes", "cute.append_to_rank", "cute.tiled.copy.retile", "cute.prepend_to_rank", "cute.select")
@handles("cute.coalesce", "cute.composition", "cute.logical_divide", "cute.zipped_divide", "cute.flat_divide")
@handles("cute.tiled_divide", "cute.filter_zeros", "cute.filter", "cute.recast_view", "cute.group", "cute.append")
def _rearranged(f: Follower, op: Operation, args: list[Any]) -> Any:
    source = next(x for x in args if isinstance(x, (Lay, View)))
    if isinstance(source, Lay):
        return layout_of(op, [source])
    keeps = op.name == "cute.append_to_rank" or (op.name == "cute.group_modes" and op.integer("begin") > 0)
    pointer = source.pointer if keeps else source.closed()
    return viewed(op, pointer, layout_of(op, [source]), swizzle=_kept_swizzle(op, source))


def _kept_swizzle(op: Operation, source: View) -> Swizzle | None:
    """Of a view of matrix descriptors: the swizzle of the tile that they describe."""
    return source.swizzle if "smem_desc" in op.result_types[0] else None


@handles("cute.slice", "cute.dice")
def _slice(f: Follower, op: Operation, args: list[Any]) -> Any:
    source, coordinate = args
    dice = op.name == "cute.dice"
    if isinstance(source, (Lay, View)):
        shape = source.layout.shape if isinstance(source, View) else source.shape
        left = [x for x in _left(shape, coordinate, dice) if isinstance(x, Extent) or x is UNKNOWN]
    if isinstance(source, Lay):
        return layout_of(op, [tuple(left)])
    if not isinstance(source, View):
        raise CannotFollow(f"a slice of {op.operand_types[0]}")
    layout = layout_of(op, [tuple(left)])
    if source.pointer.space not in shapes.FOLLOWED:
        return viewed(op, source.pointer, layout)
    pointer, used = source.pointer, coordinate
    if pointer.warp is not None:
        first = coordinate[0] if isinstance(coordinate, tuple) else coordinate
        if all(leaf is not None for leaf in shapes.leaves(first)):
            pointer = source.closed()
        used = (None, *coordinate[1:]) if isinstance(coordinate, tuple) else None
    elements = source.layout.offset(used)
    if isinstance(elements, np.ndarray):
        elements = f.same(elements)
    moved = replace(source, pointer=pointer).moved(0 if dice else elements)
    return viewed(op, moved, layout, swizzle=_kept_swizzle(op, source))


def _left(shape: Any, coordinate: Any, dice: bool) -> Iterator[Any]:
    """The leaves of a shape that a slice leaves: where the coordinate says `_`."""
    if coordinate is None:
        yield from () if dice else shapes.leaves(shape)
    elif isinstance(coordinate, tuple) and isinstance(shape, tuple):
        for part, at in zip(shape, coordinate, strict=True):
            yield from _left(part, at, dice)
    elif dice:
        yield from shapes.leaves(shape)


@handles("cute.local_tile")
def _local_tile(f: Follower, op: Operation, args: list[Any]) -> Any:
    source, tile, coordinate = args[:3]
    if tile is UNKNOWN:
        raise CannotFollow("a tile made of layouts")
    at = coordinate if isinstance(coordinate, tuple) else (coordinate,)
    modes = source.layout.modes
    rests = []
    for mode, extent, c in zip(modes, tile, at, strict=False):
        if c is None and extent is not None:
            run_time = any(isinstance(leaf, Extent) for leaf in shapes.leaves(mode.shape))
            tiles = UNKNOWN if mode.size is UNKNOWN else -(-mode.size // extent)
            rests.append(Extent(tiles) if run_time and tiles is not UNKNOWN else tiles)
    untiled = [mode.shape for mode in modes[len(tile) :]]
    layout = layout_of(op, [tuple(rests), tuple(untiled)])
    if source.pointer.space not in shapes.FOLLOWED:
        return viewed(op, source.pointer, layout)
    places = [None if c is None or t is None else _scaled(c, t) for c, t in zip(at, tile, strict=False)]
    places += [None] * (len(modes) - len(places))
    return viewed(op, source.moved(source.layout.offset(tuple(places))), layout)


def _scaled(coordinate: Any, extent: int) -> Any:
    return UNKNOWN if coordinate is UNKNOWN else coordinate * extent


# --- what is allocated, partitioned, described -------------------------------------------------------------------


@handles("cute.memref.alloca")
def _alloca(f: Follower, op: Operation, args: list[Any]) -> Any:
    found = shapes.kind(op.result_types[0])
    layout = layout_of(op, [])
    if found.space == "rmem":
        f.arrays += 1
        return View(Pointer("rmem", 0, name=f"{op.results[0]}"), layout, found.bits, found.swizzle)
    if found.space != "smem":
        raise CannotFollow(f"an allocation in {found.space}")
    begin = -(-f.allocated // found.align) * found.align
    f.allocated = begin + layout.size * found.bits // 8
    return View(Pointer("smem", begin), layout, found.bits, found.swizzle)


@handles("cute_nvgpu.atom.make_non_exec_tiled_tma_load", "cute_nvgpu.atom.make_non_exec_tiled_tma_store")
@handles("cute_nvgpu.atom.make_non_exec_tiled_tma_reduce")
def _make_tma(f: Follower, op: Operation, args: list[Any]) -> Any:
    layout = layout_of(op, [args[0]], 1)
    parts = {"parts": op.integer("num_multicast", 1)}
    return Atom(op.result_types[0], parts), View(Pointer("coord", UNKNOWN), layout, 32, Swizzle(0, 4, 3))


@handles("cute_nvgpu.atom.make_exec_tma")
def _exec_tma(f: Follower, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0], args[0].values)


@handles("cute_nvgpu.atom.tma_partition")
def _tma_partition(f: Follower, op: Operation, args: list[Any]) -> Any:
    """Of a tile that several CTAs share each loads a part: the view begins there, its type shows the whole still."""
    _, coordinate, ctas, tile, *targets = args
    layout = layout_of(op, [tile])
    number = f.integer(ctas.offset(coordinate), "which part of a tile a CTA loads")
    elements = layout.modes[0].offset(number * (layout.modes[0].size // ctas.size))
    mine = viewed(op, tile.moved(elements), layout)
    others = [viewed(op, t.pointer, layout_of(op, [t], n + 1), n + 1) for n, t in enumerate(targets)]
    return mine, *others


@handles("cute.tiled.copy.partition_S", "cute.tiled.copy.partition_D")
def _copy_partition(f: Follower, op: Operation, args: list[Any]) -> Any:
    _, source, thread = args
    layout = layout_of(op, [source])
    if source.pointer.space not in shapes.FOLLOWED:
        return viewed(op, source.pointer, layout)
    text = op.operand_types[0]
    tv = re.search(r'layout_copy_tv = <"([^"]*)">', text)
    tile = re.search(r'tiler_mn = <"([^"]*)">', text)
    if tv is None or tile is None:
        raise CannotFollow(f"a copy of type {text}")
    while isinstance(thread, tuple):
        (thread,) = thread
    if thread is UNKNOWN:
        raise CannotFollow("which thread's share of a copy it is depends on data")
    threads = tuple(sorted({int(t) for _, t in f.by_lane(thread)}))
    taken = tuple(mode for mode in shapes.tiler(tile[1]) if mode is not None)
    warp = shapes.covered(shapes.lay(tv[1]), taken, source.layout, source.bits, threads)
    return viewed(op, replace(source.pointer, warp=warp), layout)


@handles("cute.tiled.mma.partition")
def _mma_partition(f: Follower, op: Operation, args: list[Any]) -> Any:
    _, source, thread = args
    layout = layout_of(op, [source])
    if source.pointer.space != "smem":
        return viewed(op, source.pointer, layout)
    return viewed(op, source.moved(source.layout.offset(_first_row(f, op, thread, source))), layout)


def _first_row(f: Follower, op: Operation, thread: Any, source: View) -> Any:
    """The coordinate in a tile of A or B where the share of this warpgroup (or CTA of a pair) begins."""
    text, operand = op.operand_types[0], op.integer("operand_id")
    shape = re.search(r"mma<(\d+)x(\d+)x(\d+)", text)
    atoms = re.search(r'atom_layout_MNK = <"([^"]*)">', text)
    if shape is None or atoms is None or "[_;_;_]" not in text or operand > 1:
        raise CannotFollow(f"an MMA of type {text}")
    layout = shapes.lay(atoms[1])
    while isinstance(thread, tuple):
        (thread,) = thread
    if "sm100" in text and "num_cta = 1," in text:
        return (None,) * len(source.layout.modes)  # one CTA has it all
    if "sm90" not in text:
        raise CannotFollow(f"an MMA of type {text}")
    warpgroup = f.integer(thread // 128 if thread is not UNKNOWN else UNKNOWN, "which warpgroup's share it is")
    place = _place_in(layout, warpgroup)
    rest = (None,) * (len(source.layout.modes) - 1)
    return (place[operand] * int(shape[1 + operand]), *rest)


def _place_in(atoms: Lay, number: int) -> tuple[int, ...]:
    """The coordinate whose offset is `number`, in a compact layout."""
    sizes = [mode.size for mode in atoms.modes]
    for index in range(int(np.prod(sizes))):
        at = atoms.coordinate(index)
        if atoms.offset(at) == number:
            return at
    raise CannotFollow(f"warpgroup {number} of an MMA with {atoms} atoms")


@handles("cute.mma.make_fragment")
def _make_fragment(f: Follower, op: Operation, args: list[Any]) -> Any:
    """Descriptors of a tile in shared memory; or the place of accumulators."""
    source, layout = args[1], layout_of(op, [])
    found = shapes.kind(op.result_types[0])
    if found.space == "tmem":
        return View(Pointer("tmem", UNKNOWN), layout, found.bits, found.swizzle)
    if found.space == "rmem":
        return View(Pointer("rmem", 0, name=op.results[0]), layout, found.bits, found.swizzle)
    if not isinstance(source, View) or source.pointer.space != "smem":
        raise CannotFollow(f"a fragment of type {op.result_types[0]}")
    box = tuple(np.unique(source.layout.modes[0].offsets() * source.bits // 8).tolist())
    return View(replace(source.pointer, warp=box), layout, 128, source.swizzle)


@handles("cute_nvgpu.atom.make_tmem_copy")
def _tmem_copy(f: Follower, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0])


@handles("nvvm.shfl.sync")
def _shuffle(f: Follower, op: Operation, args: list[Any]) -> Any:
    _, value, lane, _ = args
    if "shfl_kind idx" not in op.properties:
        raise CannotFollow(f"a shuffle of kind {op.properties}")
    if isinstance(value, np.ndarray):
        return UNKNOWN if lane is UNKNOWN else value[lane]
    return value
