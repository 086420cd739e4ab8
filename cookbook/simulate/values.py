"""Values of a warp: numbers, nested tuples, layouts, pointers and views. One of each, for all that is simulated.

A number is a Python integer, or an array of 32 where lanes differ. A pointer has an address in every space, in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from cookbook.swizzle import Swizzle

Tree: TypeAlias = Any  # a leaf (an int, 32 of them, DYNAMIC, None for `_`, a Basis), or a tuple of Trees
DYNAMIC = "?"
LANES = 32
PLAIN = Swizzle(0, 4, 3)
COMPUTED = "computed"  # the name of a pointer that is made of a number
ALL = (0, None)  # the room of a tile that is laid over another one: all shared memory that is allocated
APART = 40  # bits of an address: matrices in global memory are 2**40 bytes apart


class CannotFollow(NotImplementedError):
    """The kernel does something that is not simulated; the message names the operation."""


class UnknownCode(CannotFollow):
    """The kernel holds PTX of its own that is not known: no fault, and no level can follow it."""


class Fault(Exception):
    """The kernel does what it must not; the message says what, in words."""


class Unknown:
    """A value that is not followed: data, or what follows from data."""

    __array_ufunc__ = None  # an array and this are this class's business, not numpy's

    def __repr__(self) -> str:
        return "unknown"

    def _unknown(self, other: Any) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _unknown


class Undefined(Unknown):
    """Leave any number for a division by 0, as PTX says. That is right as long as nothing uses it."""

    def __int__(self) -> int:
        raise Fault("got a division by 0; needed another divisor")

    __bool__ = __index__ = __int__  # type: ignore[assignment]


UNKNOWN, UNDEFINED = Unknown(), Undefined()


def base_of(number: int) -> int:
    """The address of the `number`th matrix in global memory; there is room before it."""
    return (number + 1 << APART) + (1 << APART - 1)


@dataclass(frozen=True)
class Atom:
    """A copy or MMA atom: its type as the IR spells it, and what was set on it."""

    type: str
    values: dict[str, Any] = field(default_factory=dict)


def is_number(value: Any) -> bool:
    """Return whether it is one number, or one for each lane."""
    return isinstance(value, (int, np.integer, np.ndarray))


# --- nested tuples -----------------------------------------------------------------------------------------------


def leaves(value: Tree) -> Iterator[Any]:
    """The leaves of a nested tuple, left to right."""
    if not isinstance(value, tuple):
        yield value
        return
    for part in value:
        if isinstance(part, tuple):
            yield from leaves(part)
        else:
            yield part


def nested(pattern: Tree, values: Iterator[Any]) -> Tree:
    """The values, nested as the pattern."""
    if isinstance(pattern, tuple):
        return tuple(nested(part, values) for part in pattern)
    return next(values)


def split(shape: Tree, index: Any) -> Tree:
    """The coordinate of an index, the first mode fastest, nested as the shape; what is left counts in the last mode.

    As CuTe has it: the remainder of an index below 0 is below 0. UNKNOWN from an extent on that is not known.
    """
    extents = list(leaves(shape))
    found = []
    for extent in extents[:-1]:
        if index is UNKNOWN or not isinstance(extent, (int, np.integer)):
            index = UNKNOWN
            found.append(UNKNOWN)
        else:
            found.append(_remainder(index, extent))
            index = (index - found[-1]) // extent
    return nested(shape, iter([*found, index]))


def _remainder(index: Any, extent: Any) -> Any:
    """Return what a division toward zero leaves."""
    if isinstance(index, np.ndarray):
        return np.fmod(index, extent)
    return -(-index % extent) if index < 0 else index % extent


# --- coordinates -------------------------------------------------------------------------------------------------


class Arith:
    """A sum of multiples of basis vectors: a coordinate, by the path of its mode."""

    __array_ufunc__ = None  # an array times this is this class's business, not numpy's

    def __init__(self, parts: dict[tuple[int, ...], Any]) -> None:
        self.parts = parts

    def __add__(self, other: Any) -> Arith:
        if not isinstance(other, Arith):
            if isinstance(other, (int, np.ndarray)) and not np.any(other):
                return self
            raise CannotFollow(f"a coordinate plus {other}")
        keys = {**self.parts, **other.parts}
        return Arith({key: self.parts.get(key, 0) + other.parts.get(key, 0) for key in keys})

    __radd__ = __add__

    def __mul__(self, by: Any) -> Arith:
        return Arith({key: value * by for key, value in self.parts.items()})

    __rmul__ = __mul__

    def at(self, *path: int) -> Any:
        return self.parts.get(path, 0)


@dataclass(frozen=True)
class Basis:
    """A stride in the space of coordinates."""

    value: Any  # an int, or a Fraction
    path: tuple[int, ...]
    __array_ufunc__ = None  # as of Arith

    def __rmul__(self, by: Any) -> Any:
        return Arith({self.path: by * self.value})

    __mul__ = __rmul__


# --- layouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lay:
    """A layout: equally nested shape and stride, of numbers, or of multiples of basis vectors."""

    shape: Tree
    stride: Tree

    def __str__(self) -> str:
        return f"{self.shape}:{self.stride}".replace(" ", "").replace(",)", ")").replace("'", "")

    @cached_property
    def modes(self) -> tuple[Lay, ...]:
        if not isinstance(self.shape, tuple):
            return (self,)
        return tuple(Lay(s, d) for s, d in zip(self.shape, self.stride, strict=True))

    @property
    def size(self) -> Any:
        found = list(leaves(self.shape))
        return UNKNOWN if any(x is UNKNOWN for x in found) else prod(found)

    def offset(self, coordinate: Tree) -> Any:
        """Elements from the origin; a coordinate may be an index into a nested mode, and `_` counts as 0."""
        return offset(self.shape, self.stride, coordinate)

    def coordinate(self, index: Any) -> Tree:
        """The coordinate of an index, the first mode fastest, nested as the shape."""
        return split(self.shape, index)

    def offsets(self) -> np.ndarray:
        """int64: the offset of each element, the first mode fastest, in elements."""
        return _offsets(self)


@dataclass(frozen=True)
class Absorbed(Lay):
    """The layout of a view whose swizzle is in its strides, which differ from lane to lane: here they are without it.

    It serves a pointer that was swizzled, and lies in a period of the swizzle where the view's does.
    """

    pointer: Any = field(compare=False, default=None)  # of that view

    def under(self, pointer: Pointer) -> Pointer:
        """Return the pointer before it was swizzled."""
        inner, before = self.pointer.inner, pointer
        if pointer.inner is None:
            before = replace(pointer, address=inner(np.asarray(pointer.address, np.int64)), inner=inner)
        if np.any((before.address - self.pointer.address) % inner.period):
            raise CannotFollow("a layout with a swizzle in its strides, of a pointer that lies otherwise")
        return before


def offset(shape: Any, stride: Any, coordinate: Any) -> Any:
    """The offset of a coordinate, which may be an index into a nested mode; `_` counts as 0. Numbers, arrays, Arith."""
    if coordinate is None:
        return 0
    if isinstance(shape, tuple):
        if isinstance(coordinate, int):
            return _at(shape, stride, coordinate)
        if not isinstance(coordinate, tuple):
            coordinate = split(shape, coordinate)
        total: Any = 0
        for s, d, c in zip(shape, stride, coordinate, strict=True):
            if c is not None and not (isinstance(c, int) and c == 0):
                total = offset(s, d, c) + total
        return total
    while isinstance(coordinate, tuple):
        (coordinate,) = coordinate
    if coordinate is None or (isinstance(coordinate, int) and coordinate == 0):
        return 0
    if coordinate is UNKNOWN or stride is UNKNOWN:
        return UNKNOWN
    if coordinate is UNDEFINED:
        int(coordinate)
    if not isinstance(coordinate, (int, np.integer, np.ndarray)):
        raise CannotFollow(f"an offset at a coordinate that is not known: {coordinate}")
    if not isinstance(stride, (int, np.integer, Basis)):
        raise CannotFollow(f"a stride that is not known: {stride}")
    return coordinate * stride


@lru_cache(maxsize=65536)
def _at(shape: Any, stride: Any, index: int) -> Any:
    return offset(shape, stride, split(shape, index))


@lru_cache(maxsize=8192)
def _offsets(layout: Lay) -> np.ndarray:
    total = np.zeros(1, np.int64)
    for extent, stride in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
        if not isinstance(extent, (int, np.integer)) or not isinstance(stride, (int, np.integer)):
            raise CannotFollow(f"a layout whose offsets are not numbers: {layout}")
        total = (np.arange(extent, dtype=np.int64)[:, None] * stride + total[None, :]).ravel()
    total.flags.writeable = False
    return total


# --- pointers and views ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Pointer:
    """An address in bytes of its space, one for all lanes or one for each.

    `array`: of registers, what they hold, (32, elements). `name`: of registers, which array; of a table, which. `cta`:
    of shared memory, a rank in the cluster; None: one's own. `tile`: of matrix descriptors, the view that they
    describe. `narrow`: of global memory, the address from which offsets are counted in 32 bits, too few for all; None:
    they fit. `base`: of shared memory, where what lies there got its swizzle. `numbers`: of a table, what is in it.
    `room`: of shared memory, where what was allocated begins and ends; ALL: all that is allocated; None: not known.
    `inner`: of shared memory, the swizzle of a composed layout, in bytes; None: pointers have it, or there is none.
    """

    space: str
    address: Any
    array: Any = None
    name: str = ""
    cta: Any = None
    tile: Any = None
    narrow: Any = None
    base: Any = None
    numbers: tuple[int, ...] = ()
    room: tuple[int, int | None] | None = None
    inner: Swizzle | None = None

    def moved(self, by: Any) -> Pointer:
        """Further by `by` bytes, or coordinates."""
        same = self.array, self.name, self.cta, self.tile, self.narrow, self.base, self.numbers, self.room, self.inner
        return Pointer(self.space, self.address + by, *same)  # `replace`, which takes ten times as long


@dataclass(eq=False)
class View:
    """A tensor: where it begins, and how its elements lie."""

    pointer: Pointer
    layout: Lay
    bits: int
    swizzle: Swizzle = PLAIN
    tile: Any = None  # of matrix descriptors: the View of one matrix that they describe
    kind: str = ""  # the type of its elements, as the IR spells it

    def moved(self, offset: Any) -> Pointer:
        """The pointer, further by an offset of the layout."""
        if self.pointer.space == "coord":
            return self.pointer.moved(offset)
        return self.pointer.moved(offset * self.bits // 8)

    def offsets(self) -> np.ndarray:
        """int64: the offset of each element, the first mode fastest, in elements."""
        return self.layout.offsets()

    def addresses(self) -> np.ndarray:
        """(32, elements) or (1, elements): byte addresses before any swizzle."""
        begins = np.asarray(self.pointer.address, np.int64).reshape(-1, 1)
        return begins + _byte_offsets(self.layout, self.bits)


@lru_cache(maxsize=8192)
def _byte_offsets(layout: Lay, bits: int) -> np.ndarray:
    return layout.offsets() * bits // 8


Boxes = list[
    tuple[tuple[int, ...], int]
]  # for each instruction of a copy: origin by dimension, and byte in shared memory


@dataclass(frozen=True)
class Box:
    """A tensor map, and what one instruction copies: PTX ISA, "Tensors". Dimension 0 is the contiguous one."""

    tensor: View  # in global memory
    modes: tuple[int, ...]  # of the tensor, by dimension
    extents: tuple[int, ...]  # of the box, in elements, by dimension
    swizzle: Swizzle
    parts: int  # CTAs of a multicast that each copy a part of the box
    number: int = 0  # of a map in memory, from 1 on; 0 of one that is an argument

    @property
    def part(self) -> tuple[int, ...]:
        """The box of one CTA's copy: the last dimensions are divided."""
        found, left = list(self.extents), self.parts
        for number in reversed(range(len(found))):
            take = min(left, found[number])
            found[number], left = -(-found[number] // take), -(-left // take)
        return tuple(found)


def spread(found: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """`np.broadcast_to`, which costs more than many a read, where there is anything to do."""
    return found if found.shape == shape else np.broadcast_to(found, shape)
