"""Read CuTe's types: layouts, elements, swizzles, atoms.

`!cute.memref<bf16, smem, align<1024>, S<3,4,3>, "((8,16),(64,1)):((64,512),(1,0))">` says everything about a view but
where it begins. A leaf that is only known when the kernel runs is spelled `?`, and `_` is CuTe's "all of this mode".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from cookbook.simulate.values import DYNAMIC, UNKNOWN, Basis, CannotFollow, Lay, Tree, leaves, nested
from cookbook.swizzle import Swizzle

_LEAF = re.compile(r"(?P<value>\?(?:\{[^}]*\})?|_|-?\d+(?:/\d+)?)(?P<basis>(?:@\d+)*)")
_QUOTED = re.compile(r'"([^"]*)"')
_SWIZZLE = re.compile(r"\bS<(\d+),(\d+),(\d+)>")
_MMA = re.compile(r"(?:sm(\d+)\.mma(?:_bs)?|universal_fma)<(\d+)x(\d+)x(\d+)")
_BITS = re.compile(r"^(?:i|ui|si|f|bf|tf)(\d+)|^f(\d)E")


# --- nested tuples -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def tree(text: str) -> Tree:
    """`"((8,?),_)"` -> `((8, DYNAMIC), None)`; a multiple of a basis vector, `"64@0"`, stays text."""
    found, rest = _tree(text.replace(" div", "_div").replace(" ", ""))
    if rest:
        raise CannotFollow(f"a tuple that is spelled {text!r}")
    return found


def _tree(text: str) -> tuple[Tree, str]:
    if text[:1] in ("(", "["):
        parts, rest = [], text[1:]
        while rest and rest[0] not in ")]":
            part, rest = _tree(rest)
            parts.append(part)
            rest = rest[1:] if rest[:1] in (",", ";") else rest
        return tuple(parts), rest[1:]
    leaf = _LEAF.match(text)
    if leaf is None:
        raise CannotFollow(f"a tuple that goes on with {text!r}")
    rest = text[leaf.end() :]
    if leaf["basis"]:
        return leaf[0], rest
    if leaf["value"][0] == "?":
        return DYNAMIC, rest
    return (None if leaf["value"] == "_" else int(leaf["value"])), rest


def filled(pattern: Tree, values: Iterator[Any]) -> Tree:
    """The pattern with its DYNAMIC leaves replaced by `values`, left to right; UNKNOWN when these run out."""
    if isinstance(pattern, tuple):
        return tuple(filled(part, values) for part in pattern)
    return next(values, UNKNOWN) if is_dynamic(pattern) else pattern


def is_dynamic(leaf: Any) -> bool:
    return isinstance(leaf, str) and leaf == DYNAMIC


@lru_cache(maxsize=4096)
def dynamic_places(text: str) -> tuple[tuple[int, ...], int]:
    """Find the leaves of a type's tuple that the type does not know, and count all leaves."""
    found = list(leaves(tree(quoted(text))))
    return tuple(i for i, leaf in enumerate(found) if is_dynamic(leaf)), len(found)


@lru_cache(maxsize=4096)
def lay(text: str) -> Lay:
    """`"(8,64):(64,1)"` or `"S<3,4,3> o 0 o (8,64):(64,1)"`, of which the layout under the swizzle."""
    shape, _, stride = text.rpartition(" o ")[2].partition(":")
    return Lay(tree(shape), tree(stride) if stride else ())


@lru_cache(maxsize=1024)
def stride_of(leaf: Any) -> Any:
    """A stride as a number, or as a multiple of a basis vector, which a type spells `64@0`."""
    if not isinstance(leaf, str) or leaf == DYNAMIC:
        return leaf
    value, *path = leaf.split("@")
    if value.startswith("?"):
        return leaf
    count = Fraction(value)  # of an element of TMA's that is wider than the tensor's, a part
    return Basis(int(count) if count.denominator == 1 else count, tuple(int(part) for part in reversed(path)))


@lru_cache(maxsize=8192)
def spelled(text: str) -> tuple[Lay, bool]:
    """The layout that a type spells, and whether all of it is known."""
    layout = lay(quoted(text))
    strides = nested(layout.stride, iter([_stride(leaf) for leaf in leaves(layout.stride)]))
    known = not any(isinstance(leaf, str) for part in (layout.shape, strides) for leaf in leaves(part))
    return Lay(layout.shape, strides), known


@lru_cache(maxsize=8192)
def in_32_bits(text: str) -> tuple[bool, ...]:
    """Find the strides of a type's layout that are known only at run time, and have 32 bits."""
    strides = quoted(text).rpartition(":")[2]
    return tuple(leaf[:1] == "?" and "i64" not in leaf for leaf in _STRIDE.findall(strides))


_STRIDE = re.compile(r"\?(?:\{[^}]*\})?|_|-?\d+(?:@\d+)*")
LARGEST = (1 << 31) - 1  # of what 32 bits count


def _stride(leaf: Any) -> Any:
    return stride_of(leaf) if isinstance(leaf, str) and "@" in leaf else leaf


def fitted(text: str, extents: Sequence[Any], strides: Sequence[Any]) -> Lay:
    """The layout of a type, with these leaves, which must agree with those that it spells.

    Of a single element the stride means nothing, and is the type's.

    Raises:
        CannotFollow: they do not: the kernel does not do what the checker takes it to do.
    """
    layout, known = spelled(text)
    if known:
        return layout
    shape = _with(layout.shape, extents, text)
    spelt = zip(leaves(shape), leaves(layout.stride), strides, strict=True)
    told = [one if extent == 1 and not isinstance(one, str) else stride for extent, one, stride in spelt]
    return Lay(shape, _with(layout.stride, told, text))


def _with(pattern: Any, values: Sequence[Any], text: str) -> Any:
    spelt = list(leaves(pattern))
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
    count = len(list(leaves(shape)))
    strides = []
    for number, leaf in enumerate(leaves(layout.stride)):
        if isinstance(leaf, str):
            unit = nested(shape, iter([int(i == number) for i in range(count)]))
            leaf = at(unit)
            if isinstance(leaf, np.ndarray):
                leaf = leaf.ravel()[0].item()
        strides.append(leaf)
    return Lay(shape, nested(layout.stride, iter(strides)))


def is_float(text: str) -> bool:
    """Return whether a type is one of floating-point numbers, or a vector of such."""
    inner = text.removeprefix("vector<").rpartition("x")[2].rstrip(">") if text.startswith("vector<") else text
    return inner[:1] == "f" or inner in ("bf16", "tf32")


def count_of(text: str) -> int:
    """Return how many elements a type has: 128 of `vector<128xf32>`."""
    return prod(map(int, text.removeprefix("vector<").split("x")[:-1])) if text.startswith("vector<") else 1


@lru_cache(maxsize=8192)
def element(text: str) -> str:
    """The element type of a view or pointer: `bf16`."""
    found = re.search(r"!cute\.(?:memref|ptr)<([\w.!]+)", text)
    return found[1] if found else ""


# --- what a type says --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of pointer or view, as its type in the IR spells it."""

    space: str  # smem, tmem, gmem, rmem; "coord" for coordinates
    bits: int  # of an element
    swizzle: Swizzle
    layout: Lay | None  # of a view
    align: int  # bytes


@lru_cache(maxsize=4096)
def kind(text: str) -> Kind:
    """The Kind of a `!cute.memref`, `!cute.ptr`, `!cute.coord_tensor` or descriptor view.

    Raises:
        CannotFollow: it is none of these.
    """
    head, _, inside = text.partition("<")
    quoted = _QUOTED.findall(text)
    if head == "!cute.coord_tensor":
        return Kind("coord", 32, Swizzle(0, 4, 3), lay(quoted[-1]), 1)
    if "smem_desc" in head:
        return Kind("smem", 128, Swizzle(0, 4, 3), lay(quoted[-1]), 16)
    if head not in ("!cute.memref", "!cute.ptr"):
        raise CannotFollow(f"a view or pointer of type {text}")
    fields = [part.strip() for part in inside.split(",")]
    align = re.search(r"align<(\d+)>", text)
    return Kind(
        fields[1].rstrip(">"),
        element_bits(fields[0]),
        swizzle_of(text),
        lay(quoted[-1]) if quoted else None,
        int(align[1]) if align else 1,
    )


def swizzle_of(text: str) -> Swizzle:
    """The swizzle of a type, over bytes; one that changes nothing if it has none."""
    found = _SWIZZLE.search(text)
    return Swizzle(*map(int, found.groups())) if found else Swizzle(0, 4, 3)


def element_bits(name: str) -> int:
    """16 for `bf16`.

    Raises:
        CannotFollow: not a type of numbers.
    """
    if name in ("f4E2M1FN", "!cute.f4"):
        return 4
    if name.startswith("!cute_nvgpu.tma_descriptor"):
        return 1024
    if name.startswith("f8"):
        return 8
    found = _BITS.match(name)
    if found is None:
        raise CannotFollow(f"elements of type {name}")
    return int(found[1] or found[2])


def first_quoted(text: str) -> str:
    """Return what stands in the first quotes of a type."""
    return _QUOTED.findall(text)[0]


@lru_cache(maxsize=8192)
def quoted(text: str) -> str:
    """Return what stands in the (last) quotes of a type."""
    return _QUOTED.findall(text)[-1]


@lru_cache(maxsize=4096)
def tiler(text: str) -> tuple[Lay | None, ...]:
    """`"[(4,32):(32,1);64:1]"` -> a layout for each mode of the tile; None for `_`, a mode that is left whole."""
    parts = text.removeprefix("[").removesuffix("]").split(";")
    return tuple(None if part == "_" else lay(part) for part in parts)


@lru_cache(maxsize=4096)
def tile_sizes(text: str) -> tuple[int | None, ...]:
    """`"[64:1;64:1]"` -> (64, 64).

    Raises:
        CannotFollow: a tile whose elements are not adjacent.
    """
    found = tiler(text)
    if any(mode is not None and mode.stride not in (0, 1) for mode in found):
        raise CannotFollow(f"a tile {text}, whose elements are not adjacent")
    return tuple(None if mode is None else mode.size for mode in found)


# --- tiled copies and MMAs ---------------------------------------------------------------------------------------


def thread_of(thread: Any) -> Any:
    """A thread's number, out of the coordinate that an operation names it by."""
    while isinstance(thread, tuple):
        (thread,) = thread
    return thread


@lru_cache(maxsize=512)
def tv_of(text: str) -> tuple[Lay, tuple[Lay, ...]]:
    """The (thread, value) layout of a tiled copy, and the modes of its tile.

    Raises:
        CannotFollow: its type names none.
    """
    tv = re.search(r'layout_copy_tv = <"([^"]*)">', text)
    tile = re.search(r'tiler_mn = <"([^"]*)">', text)
    if tv is None or tile is None:
        raise CannotFollow(f"a copy of type {text}")
    return lay(tv[1]), tuple(mode for mode in tiler(tile[1]) if mode is not None)


@lru_cache(maxsize=256)
def mma_of(text: str) -> tuple[int, tuple[int, int, int], Lay]:
    """(architecture, (M, N, K) of one instruction, layout of its atoms over warps or warpgroups) of a tiled MMA.

    The architecture of multiply-adds of single threads is 0; their atoms lie over threads.

    Raises:
        CannotFollow: its type is not spelled so.
    """
    found = _MMA.search(text)
    atoms = re.search(r'atom_layout_MNK = <"([^"]*)">', text)
    if found is None:
        raise CannotFollow(f"an MMA of type {text}")
    m, n, k = (int(found[i]) for i in (2, 3, 4))
    return int(found[1] or 0), (m, n, k), lay(atoms[1]) if atoms else lay("(1,1,1):(0,0,0)")


def place_in(atoms: Lay, number: int) -> tuple[int, ...]:
    """The coordinate whose offset is `number`, in a compact layout."""
    sizes = [mode.size for mode in atoms.modes]
    for index in range(prod(sizes)):
        at = atoms.coordinate(index)
        if atoms.offset(at) == number % prod(sizes):
            return at
    raise CannotFollow(f"warpgroup {number} of an MMA with {atoms} atoms")
