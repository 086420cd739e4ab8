"""Where the elements of a view are: pointers with addresses, in every space, and layouts with all strides known.

The types of the IR spell every layout but for what is known only when the kernel runs. Here one problem is followed, so
nothing is left unknown: `fitted` puts the numbers where a type has `?`, and holds every number that it does spell
against what was computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.shapes import CannotFollow, Lay, nested
from cookbook.swizzle import Swizzle

PLAIN = Swizzle(0, 4, 3)
LANES = 32


class Arith:
    """A sum of multiples of basis vectors: a coordinate, by the path of its mode."""

    __array_ufunc__ = None  # an array times this is this class's business, not numpy's

    def __init__(self, parts: dict[tuple[int, ...], Any]) -> None:
        self.parts = parts

    def __add__(self, other: Any) -> Arith:
        if not isinstance(other, Arith):
            if isinstance(other, int) and other == 0:
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


@lru_cache(maxsize=1024)
def stride_of(leaf: Any) -> Any:
    """A stride as a number, or as a multiple of a basis vector, which a type spells `64@0`."""
    if not isinstance(leaf, str) or leaf == shapes.DYNAMIC:
        return leaf
    value, *path = leaf.split("@")
    if value.startswith("?"):
        return leaf
    return Basis(int(value), tuple(int(part) for part in reversed(path)))


@dataclass(frozen=True)
class Basis:
    """A stride in the space of coordinates."""

    value: int
    path: tuple[int, ...]
    __array_ufunc__ = None  # as of Arith

    def __rmul__(self, by: Any) -> Any:
        return Arith({self.path: by * self.value})

    __mul__ = __rmul__


@dataclass(eq=False)
class Ptr:
    """An address in bytes of its space, one for all lanes or one for each.

    `array`: of registers, what they hold, (32, elements). `name`: of global memory, which operand. `cta`: of shared
    memory, a rank in the cluster; None: one's own. `tile`: of matrix descriptors, the view that they describe.
    `narrow`: of global memory, the address from which offsets are counted in 32 bits, too few for all; None: they fit.
    """

    space: str
    address: Any
    array: Any = None
    name: str = ""
    cta: Any = None
    tile: Any = None
    narrow: Any = None

    def moved(self, by: Any) -> Ptr:
        """Further by `by` bytes, or coordinates."""
        return Ptr(self.space, self.address + by, self.array, self.name, self.cta, self.tile, self.narrow)


@dataclass(eq=False)
class View:
    """A tensor: where it begins, and how its elements lie."""

    pointer: Ptr
    layout: Lay
    bits: int
    swizzle: Swizzle = PLAIN
    tile: Any = None  # of matrix descriptors: the View of one matrix that they describe
    kind: str = ""  # the type of its elements, as the IR spells it

    def moved(self, offset: Any) -> Ptr:
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


def spread(found: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """`np.broadcast_to`, which costs more than many a read, where there is anything to do."""
    return found if found.shape == shape else np.broadcast_to(found, shape)


def offset(shape: Any, stride: Any, coordinate: Any) -> Any:
    """The offset of a coordinate, which may be an index into a nested mode; `_` counts as 0. Numbers, arrays, Arith."""
    if coordinate is None:
        return 0
    if isinstance(shape, tuple):
        if not isinstance(coordinate, tuple):
            coordinate = shapes.split(shape, coordinate)
        total: Any = 0
        for s, d, c in zip(shape, stride, coordinate, strict=True):
            if c is not None and not (isinstance(c, int) and c == 0):
                total = offset(s, d, c) + total
        return total
    while isinstance(coordinate, tuple):
        (coordinate,) = coordinate
    if coordinate is None or (isinstance(coordinate, int) and coordinate == 0):
        return 0
    if not isinstance(coordinate, (int, np.integer, np.ndarray)):
        raise CannotFollow(f"an offset at a coordinate that is not known: {coordinate}")
    if not isinstance(stride, (int, np.integer, Basis)):
        raise CannotFollow(f"a stride that is not known: {stride}")
    return coordinate * stride


@lru_cache(maxsize=8192)
def spelled(text: str) -> tuple[Lay, bool]:
    """The layout that a type spells, and whether all of it is known."""
    layout = shapes.lay(shapes.quoted(text))
    strides = nested(layout.stride, iter([_stride(leaf) for leaf in shapes.leaves(layout.stride)]))
    known = not any(isinstance(leaf, str) for part in (layout.shape, strides) for leaf in shapes.leaves(part))
    return Lay(layout.shape, strides), known


@lru_cache(maxsize=8192)
def in_32_bits(text: str) -> tuple[bool, ...]:
    """Of the layout that a type spells: which of its strides are known only at run time, and have 32 bits."""
    strides = shapes.quoted(text).rpartition(":")[2]
    return tuple(leaf[:1] == "?" and "i64" not in leaf for leaf in _STRIDE.findall(strides))


_STRIDE = re.compile(r"\?(?:\{[^}]*\})?|_|-?\d+(?:@\d+)*")
LARGEST = (1 << 31) - 1  # of what 32 bits count


def _stride(leaf: Any) -> Any:
    return stride_of(leaf) if isinstance(leaf, str) and "@" in leaf else leaf


def fitted(text: str, extents: Sequence[Any], strides: Sequence[Any]) -> Lay:
    """The layout of a type, with these leaves, which must agree with those that it spells.

    Raises:
        CannotFollow: they do not: the kernel does not do what the checker takes it to do.
    """
    layout, known = spelled(text)
    if known:
        return layout
    return Lay(_with(layout.shape, extents, text), _with(layout.stride, strides, text))


def _with(pattern: Any, values: Sequence[Any], text: str) -> Any:
    spelt = list(shapes.leaves(pattern))
    if len(spelt) != len(values):
        raise CannotFollow(f"a layout of {len(values)} extents for the type {text}")
    found = []
    for one, value in zip(spelt, values, strict=True):
        if isinstance(one, str):
            found.append(int(value) if isinstance(value, np.integer) else value)
        elif one != value and not (isinstance(value, str)):
            raise CannotFollow(f"a layout with {value} where its type {text} has {one}")
        else:
            found.append(one)
    return nested(pattern, iter(found))


def measured(text: str, extents: Sequence[Any] | None, at: Callable[[Any], Any]) -> Lay:
    """The layout of a type, each stride that it does not spell found as the offset of the coordinate 1 there.

    Args:
        text: the type.
        extents: all extents of the shape; None if the type spells them.
        at: a coordinate of the result -> its offset from the first element.
    """
    layout, known = spelled(text)
    if known:
        return layout
    shape = layout.shape if extents is None else _with(layout.shape, extents, text)
    count = len(list(shapes.leaves(shape)))
    strides = []
    for number, leaf in enumerate(shapes.leaves(layout.stride)):
        if isinstance(leaf, str):
            unit = nested(shape, iter([int(i == number) for i in range(count)]))
            leaf = at(unit)
            if isinstance(leaf, np.ndarray):
                leaf = leaf.ravel()[0].item()
        strides.append(leaf)
    return Lay(shape, nested(layout.stride, iter(strides)))


@lru_cache(maxsize=8192)
def element(text: str) -> str:
    """The element type of a view or pointer: `bf16`."""
    found = re.search(r"!cute\.(?:memref|ptr)<([\w.!]+)", text)
    return found[1] if found else ""


__all__ = [
    "LARGEST",
    "Arith",
    "Basis",
    "Ptr",
    "View",
    "element",
    "fitted",
    "in_32_bits",
    "measured",
    "offset",
    "spelled",
]
__all__ += ["spread"]
