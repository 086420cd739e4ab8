"""CuTe's types as the IR spells them: nested tuples, layouts, views; and the bytes that a view covers.

`!cute.memref<bf16, smem, align<1024>, S<3,4,3>, "((8,16),(64,1)):((64,512),(1,0))">` says everything about a view but
where it begins. A leaf that is only known when the kernel runs is spelled `?`, and `_` is CuTe's "all of this mode".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from cookbook.swizzle import Swizzle

Tree: TypeAlias = Any  # a leaf (an int, 32 of them, DYNAMIC, None for `_`, a string for a basis), or a tuple of Trees
DYNAMIC = "?"
GRANULE = 4  # bytes that one bit of a region stands for

_LEAF = re.compile(r"(?P<value>\?(?:\{[^}]*\})?|_|-?\d+)(?P<basis>(?:@\d+)*)")
_QUOTED = re.compile(r'"([^"]*)"')
_SWIZZLE = re.compile(r"\bS<(\d+),(\d+),(\d+)>")
_MMA = re.compile(r"sm(\d+)\.mma(?:_bs)?<(\d+)x(\d+)x(\d+)")
_BITS = re.compile(r"^(?:i|ui|si|f|bf|tf)(\d+)|^f(\d)E")


class CannotFollow(NotImplementedError):
    """The kernel does something that the checker of pipelines does not know; the message names the operation."""


class UnknownCode(CannotFollow):
    """The kernel holds PTX of its own that the checker does not know: no fault, and no level can follow it."""


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


def filled(pattern: Tree, values: Iterator[Any]) -> Tree:
    """The pattern with its DYNAMIC leaves replaced by `values`, left to right; UNKNOWN when these run out."""
    if isinstance(pattern, tuple):
        return tuple(filled(part, values) for part in pattern)
    return next(values, UNKNOWN) if is_dynamic(pattern) else pattern


def is_dynamic(leaf: Any) -> bool:
    return isinstance(leaf, str) and leaf == DYNAMIC


@lru_cache(maxsize=4096)
def dynamic_places(text: str) -> tuple[tuple[int, ...], int]:
    """Of a tuple that a type spells: which of its leaves the type does not know, and how many leaves there are."""
    found = list(leaves(tree(quoted(text))))
    return tuple(i for i, leaf in enumerate(found) if is_dynamic(leaf)), len(found)


class Unknown:
    """A value that is not followed: data, or what follows from data."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


# --- layouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lay:
    """A layout: equally nested shape and stride. Only offsets into memory that is followed need known strides."""

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
        return _offset(self.shape, self.stride, coordinate)

    def coordinate(self, index: Any) -> Tree:
        """The coordinate of an index, the first mode fastest, nested as the shape."""
        return split(self.shape, index)

    def offsets(self) -> np.ndarray:
        """int64: the offset of each element, the first mode fastest, in elements."""
        return _offsets(self)


@lru_cache(maxsize=4096)
def lay(text: str) -> Lay:
    """`"(8,64):(64,1)"` or `"S<3,4,3> o 0 o (8,64):(64,1)"`, of which the layout under the swizzle."""
    shape, _, stride = text.rpartition(" o ")[2].partition(":")
    return Lay(tree(shape), tree(stride) if stride else ())


def _offset(shape: Tree, stride: Tree, coordinate: Tree) -> Any:
    if coordinate is None:
        return 0
    if isinstance(shape, tuple):
        if not isinstance(coordinate, tuple):
            coordinate = split(shape, coordinate)
        parts = [_offset(s, d, c) for s, d, c in zip(shape, stride, coordinate, strict=True)]
        return UNKNOWN if any(part is UNKNOWN for part in parts) else sum(parts, 0)
    while isinstance(coordinate, tuple):
        (coordinate,) = coordinate
    if coordinate is None or (isinstance(coordinate, int) and coordinate == 0):
        return 0
    if coordinate is UNKNOWN or not isinstance(stride, int):
        return UNKNOWN
    return coordinate * stride


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
    """What a division toward zero leaves."""
    if isinstance(index, np.ndarray):
        return np.fmod(index, extent)
    return -(-index % extent) if index < 0 else index % extent


def nested(pattern: Tree, values: Iterator[Any]) -> Tree:
    """The values, nested as the pattern."""
    if isinstance(pattern, tuple):
        return tuple(nested(part, values) for part in pattern)
    return next(values)


@lru_cache(maxsize=8192)
def _offsets(layout: Lay) -> np.ndarray:
    total = np.zeros(1, np.int64)
    for extent, stride in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
        if not isinstance(extent, (int, np.integer)) or not isinstance(stride, (int, np.integer)):
            raise CannotFollow(f"a layout whose offsets are not numbers: {layout}")
        total = (np.arange(extent, dtype=np.int64)[:, None] * stride + total[None, :]).ravel()
    total.flags.writeable = False
    return total


# --- what a type says --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What the IR says of a pointer or view by its type."""

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
    if name.startswith("f8"):
        return 8
    found = _BITS.match(name)
    if found is None:
        raise CannotFollow(f"elements of type {name}")
    return int(found[1] or found[2])


@lru_cache(maxsize=4096)
@lru_cache(maxsize=8192)
def quoted(text: str) -> str:
    """What stands in the (last) quotes of a type."""
    return _QUOTED.findall(text)[-1]


# --- where things are --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pointer:
    """An address, in bytes of its space. `cta`: a rank in the cluster; None: one's own.

    A thread's share of a partitioned view begins somewhere else in each thread. `warp` then says, in bytes from
    `address`, what the whole warp covers with mode 0 of the view; `closed`: with all of its modes.
    """

    space: str
    address: Any
    cta: Any = None
    name: str = ""  # of registers: which array; COMPUTED: made of a number
    numbers: tuple[int, ...] = ()  # of a table: what is in it
    warp: tuple[int, ...] | None = None
    closed: bool = False
    base: Any = None  # where what it points into began, when it got its swizzle
    lanes: Any = None  # bytes from `address` to where each lane's own share begins

    def moved(self, by: Any) -> Pointer:
        """Further by this many bytes."""
        if self.space not in FOLLOWED or self.closed:
            return self
        return replace(self, address=UNKNOWN if by is UNKNOWN or self.address is UNKNOWN else self.address + by)


COMPUTED = "computed"
# Addresses among registers are not, nor in global memory but for known tables and words that CTAs tell one another.
FOLLOWED = ("smem", "tmem", "table", "words")


@dataclass(frozen=True)
class View:
    """A tensor: where it begins, and how its elements lie."""

    pointer: Pointer
    layout: Lay
    bits: int
    swizzle: Swizzle

    @property
    def bytes(self) -> int:
        """Of all its elements."""
        return self.layout.size * self.bits // 8

    def moved(self, elements: Any) -> Pointer:
        """The pointer, further by this many elements."""
        return self.pointer.moved(UNKNOWN if elements is UNKNOWN else elements * self.bits // 8)

    def closed(self) -> Pointer:
        """The pointer with all that a partitioned view's modes cover: what is made of it covers no more."""
        warp = self.pointer.warp
        if warp is None or self.pointer.closed:
            return self.pointer
        return replace(self.pointer, warp=_with_rest(warp, self.layout, self.bits), closed=True)


def region(view: View, begins: tuple[int, ...] = ()) -> int:
    """The granules of shared memory that a view covers, as bits of an integer.

    Args:
        view: where it begins and how its elements lie.
        begins: bytes, where it begins for each of several lanes; its own address if left out.

    Raises:
        CannotFollow: the view begins at an address that is not known.
    """
    pointer = view.pointer
    if not begins:
        if not isinstance(pointer.address, (int, np.integer)):
            raise CannotFollow(f"a view of shared memory that begins at {pointer.address}")
        begins = (int(pointer.address),)
    warp = pointer.warp
    if warp is not None and not pointer.closed:
        warp = _with_rest(warp, view.layout, view.bits)
    layout = None if warp is not None else view.layout
    return _region(begins, layout, view.bits, view.swizzle, warp)


class Offsets(tuple[int, ...]):
    """Bytes that a warp covers of a view: thousands, which the caches look up again and again, so hashed once."""

    def __hash__(self) -> int:
        if not hasattr(self, "known"):
            self.known = super().__hash__()
        return self.known


@lru_cache(maxsize=4096)
def bytes_of(mode: Lay, bits: int) -> Offsets:
    """Where the elements of a mode begin, in bytes."""
    return Offsets(np.unique(mode.offsets() * bits // 8).tolist())


@lru_cache(maxsize=4096)
def _with_rest(warp: tuple[int, ...], layout: Lay, bits: int) -> tuple[int, ...]:
    """Bytes: what mode 0 covers, at every coordinate of the other modes."""
    rest = layout.modes[1:]
    others = Lay(tuple(m.shape for m in rest), tuple(m.stride for m in rest)).offsets() * bits // 8
    return Offsets(np.unique((np.array(warp, np.int64)[:, None] + others[None, :]).ravel()).tolist())


@lru_cache(maxsize=65536)
def _region(
    begins: tuple[int, ...], layout: Lay | None, bits: int, swizzle: Swizzle, warp: tuple[int, ...] | None
) -> int:
    offsets = np.array(warp, np.int64) if layout is None else layout.offsets() * bits // 8
    places = (np.array(begins, np.int64)[:, None] + offsets[None, :]).ravel()
    granules = np.unique(swizzle(places) // GRANULE)
    return _bits(granules, bits if layout is not None else 8 * GRANULE)


COLUMNS = 512  # of tensor memory, of 32 bits each, in each of 128 lanes


def tensor_region(view: View) -> int:
    """What a view covers of tensor memory: a bit for each 32 bits, 512 columns to a lane.

    An address there is that of a lane times 2**16 and a column, PTX ISA "Tensor Memory Addressing"; views count bytes.

    Raises:
        CannotFollow: the view begins at an address that is not known.
    """
    pointer = view.pointer
    if not isinstance(pointer.address, (int, np.integer)):
        raise CannotFollow(f"a view of tensor memory that begins at {pointer.address}")
    warp = pointer.warp if pointer.warp is None or pointer.closed else _with_rest(pointer.warp, view.layout, view.bits)
    return _tensor_region(int(pointer.address), None if warp else view.layout, view.bits, warp)


@lru_cache(maxsize=4096)
def _tensor_region(address: int, layout: Lay | None, bits: int, warp: tuple[int, ...] | None) -> int:
    offsets = np.array(warp, np.int64) if layout is None else layout.offsets() * bits // 8
    words = (address + offsets) // 4
    lanes, columns = words >> 16, words & 0xFFFF
    if columns.max() >= COLUMNS or lanes.max() >= 128:
        raise CannotFollow(f"tensor memory up to lane {lanes.max()}, column {columns.max()}")
    return _bits(np.unique(lanes * COLUMNS + columns), 32)


def _bits(granules: np.ndarray, bits: int) -> int:
    if bits > 8 * GRANULE:
        granules = (granules[:, None] + np.arange(bits // (8 * GRANULE))[None, :]).ravel()
    flags = np.zeros(int(granules.max()) + 1, np.uint8)
    flags[granules] = 1
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


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


@lru_cache(maxsize=1024)
def covered(tv: Lay, tile: tuple[Lay, ...], layout: Lay, bits: int, threads: tuple[int, ...]) -> tuple[int, ...]:
    """Offsets, in bytes, of what `threads` cover of the first tile of a view with `layout`.

    Args:
        tv: (thread, value) to a place in the tile, the first extent fastest.
        tile: which elements of the first modes of `layout` are the tile's.
        layout: of the view that is partitioned, in elements.
        bits: of an element.
        threads: numbers of threads.
    """
    thread, value = tv.modes
    begins = np.array([thread.offset(t) for t in threads], np.int64)
    places = np.unique((begins[:, None] + value.offsets()[None, :]).ravel())
    total = np.zeros(len(places), np.int64)
    for mode, taken in zip(layout.modes, tile, strict=False):
        table = np.array([mode.offset(int(i)) for i in taken.offsets()], np.int64)
        total += table[places % taken.size]
        places = places // taken.size
    return Offsets(np.unique(total * bits // 8).tolist())


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

    Raises:
        CannotFollow: its type is not spelled so.
    """
    found = _MMA.search(text)
    atoms = re.search(r'atom_layout_MNK = <"([^"]*)">', text)
    if found is None:
        raise CannotFollow(f"an MMA of type {text}")
    m, n, k = (int(found[i]) for i in (2, 3, 4))
    return int(found[1]), (m, n, k), lay(atoms[1]) if atoms else lay("(1,1,1):(0,0,0)")


def place_in(atoms: Lay, number: int) -> tuple[int, ...]:
    """The coordinate whose offset is `number`, in a compact layout."""
    sizes = [mode.size for mode in atoms.modes]
    for index in range(prod(sizes)):
        at = atoms.coordinate(index)
        if atoms.offset(at) == number % prod(sizes):
            return at
    raise CannotFollow(f"warpgroup {number} of an MMA with {atoms} atoms")
