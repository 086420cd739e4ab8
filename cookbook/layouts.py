"""CuTe's layouts in plain integers, and the byte addresses they give once the swizzle is applied.

`evaluate` asks CuTe itself; everything else here is numpy. Strides count elements and swizzles act on
bytes, as the hardware does it: see "One convention for swizzles" in docs/contract.md.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cookbook.arguments import checked, choice, integer, is_integer, shown, string, wrong_type
from cookbook.settings import cute_settings
from cookbook.swizzle import Swizzle

__all__ = ["Layout", "SmemLayout", "TiledCopyTV", "TiledMmaTV", "evaluate"]

IntTuple: TypeAlias = Any  # an int, or a tuple of IntTuples
LARGEST = 1 << 62  # offsets and sizes are below it
MOST = 1 << 24  # coordinates of which a table is made
WIDTHS = (8, 16, 32, 64, 128)  # bits of an element


@checked
@dataclass(frozen=True)
class Layout:
    """A function from coordinates to offsets: `shape` and `stride` are ints or equally nested tuples of ints.

    >>> Layout(((2, 2), 3), ((1, 6), 2))((0, 1), 2)
    10
    """

    shape: IntTuple
    stride: IntTuple

    def __post_init__(self) -> None:
        for name, least in (("shape", 1), ("stride", None)):
            object.__setattr__(self, name, _int_tuple(name, getattr(self, name), least))
        if not _congruent(self.shape, self.stride):
            raise ValueError(f"stride: got {shown(self.stride)}; needed ints nested as in {shown(self.shape)}")
        reach = _reach(self.shape, self.stride)
        if max(reach, self.size) >= LARGEST:
            raise ValueError(
                f"shape, stride: got {shown(self.shape)}, {shown(self.stride)}; needed offsets below 2**62"
            )

    def __repr__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"

    @property
    def modes(self) -> tuple[Layout, ...]:
        """The top-level modes; a layout whose shape is an int is its own single mode."""
        if not isinstance(self.shape, tuple):
            return (self,)
        return tuple(Layout(s, d) for s, d in zip(self.shape, self.stride, strict=True))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of coordinates of each top-level mode."""
        return tuple(_size(mode.shape) for mode in self.modes)

    @property
    def size(self) -> int:
        return _size(self.shape)

    def __call__(self, *coord: IntTuple) -> int:
        """The offset of a coordinate: one int or nested tuple for each top-level mode.

        Raises:
            ValueError: another number of coordinates, or one outside the shape.
        """
        if len(coord) != len(self.modes):
            raise ValueError(f"coord: got {len(coord)} coordinates; needed {len(self.modes)} for {self!r}")
        for part in coord:
            _int_tuple("coord", part, None)
        return sum(_offset(m.shape, m.stride, c) for m, c in zip(self.modes, coord, strict=True))

    def table(self) -> np.ndarray:
        """int64 offsets of every coordinate, of shape `sizes`; a nested mode is flattened, first index fastest.

        Raises:
            ValueError: more than 2**24 coordinates.
        """
        if self.size > MOST:
            raise ValueError(f"shape: got {self.size} coordinates; needed {MOST} at most to list them")
        total = np.zeros((), np.int64)
        for mode in self.modes:
            total = total[..., None] + _mode_offsets(mode.shape, mode.stride)
        return total


@checked
@dataclass(frozen=True)
class SmemLayout:
    """A shared-memory layout as a kernel uses it: `outer` counts elements, `swizzle` acts on byte addresses.

    The base of the tile must be a multiple of `alignment` bytes; all offsets are relative to such a base.
    """

    outer: Layout
    swizzle: Swizzle
    element_bits: int

    def __post_init__(self) -> None:
        integer("element_bits", self.element_bits, one_of=WIDTHS)
        if _least(self.outer.shape, self.outer.stride) < 0:
            raise ValueError(f"outer: got {self.outer!r}, with offsets below 0; needed an address for each element")

    @property
    def element_bytes(self) -> int:
        return self.element_bits // 8

    def byte_offsets(self) -> np.ndarray:
        """int64 byte address of each coordinate's element, of shape `outer.sizes`, the swizzle applied to bytes.

        For bf16 under S<3,4,3> over (8,64):(64,1), element (1, 0) is at byte 144, which is element 72.
        """
        return self.swizzle(self.outer.table() * self.element_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes from the base to the end of the last element, swizzle applied."""
        return int(self.byte_offsets().max()) + self.element_bytes

    @property
    def alignment(self) -> int:
        """Bytes: the base must be a multiple, for the swizzle reads absolute address bits. At least 16."""
        return max(16, self.swizzle.period) if self.swizzle.bits else 16

    def is_injective(self) -> bool:
        """Return whether every element has a place of its own: a multiple of its size that no other element has."""
        offsets = np.sort(self.byte_offsets(), axis=None)
        return bool((offsets[1:] != offsets[:-1]).all()) and not (offsets % self.element_bytes).any()

    def is_bijective(self) -> bool:
        """Return whether every element has a place of its own and the places fill `size_bytes` without a hole."""
        return self.is_injective() and self.outer.size * self.element_bytes == self.size_bytes


@checked
@dataclass(frozen=True)
class TiledCopyTV:
    """A tiled copy: which coordinates of a tile of `tiler_mn` elements each thread reads and writes.

    `src_tv` and `dst_tv` map (thread, value) to m + tile_m * n. Values come in groups of `src_vector`
    (`dst_vector`): those that one thread contributes to one instruction. For ldmatrix, `src_tv` gives
    each thread the 8 elements of the row whose address it supplies, and `dst_tv` the fragment it ends
    with; stmatrix is the other way round.
    """

    src_tv: Layout
    dst_tv: Layout
    tiler_mn: tuple[int, int]

    def __post_init__(self) -> None:
        for extent in self.tiler_mn:
            integer("tiler_mn", extent, at_least=1, at_most=MOST)

    @property
    def threads(self) -> int:
        return self.src_tv.sizes[0]

    @property
    def src_vector(self) -> int:
        return _atom_values(self.src_tv)

    @property
    def dst_vector(self) -> int:
        return _atom_values(self.dst_tv)

    def src_coords(self) -> np.ndarray:
        """(threads, values, 2) int64: the (m, n) in the tile of each value on the source side."""
        return tile_coords(self.src_tv, self.tiler_mn)

    def dst_coords(self) -> np.ndarray:
        """(threads, values, 2) int64: the (m, n) in the tile of each value on the destination side."""
        return tile_coords(self.dst_tv, self.tiler_mn)


@checked
@dataclass(frozen=True)
class TiledMmaTV:
    """A tiled MMA: who holds what of one tile of `tiler_mnk` elements.

    `a`, `b` and `c` map (thread, value) to m + tile_m * k, n + tile_n * k and m + tile_m * n. The first
    mode of the values is one instruction's, the second its repeats in the tile. `shape_mnk` is the
    instruction's, and so are `majors`: how it takes A and B to lie in shared memory, "K" or "MN" each; None of an
    instruction that takes them from registers.
    """

    a: Layout
    b: Layout
    c: Layout
    tiler_mnk: tuple[int, int, int]
    shape_mnk: tuple[int, int, int]
    majors: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        for name in ("tiler_mnk", "shape_mnk"):
            for extent in getattr(self, name):
                integer(name, extent, at_least=1, at_most=MOST)
        for major in self.majors or ():
            choice("majors", major, ("K", "MN"))

    @property
    def threads(self) -> int:
        return self.c.sizes[0]


def tile_coords(tv: Layout, tiler: tuple[int, int]) -> np.ndarray:
    """(threads, values, 2) int64: the coordinates that a (thread, value) layout names in a column-major tile."""
    index = tv.table()
    if index.ndim != 2 or index.max() >= tiler[0] * tiler[1]:
        raise ValueError(f"tv: got {tv!r}; needed (thread, value) -> index inside a tile of {tiler}")
    return np.stack([index % tiler[0], index // tiler[0]], axis=-1)


def evaluate(
    fn: Callable[..., Any],
    *args: Any,
    element_bits: int | None = None,
    arch: str = "sm_90a",
    **kwargs: Any,
) -> Any:
    """Return what `fn(*args, **kwargs)` returns under CuTe, with CuTe's objects turned into plain integers.

    fn runs once inside a host-only jit function, with no driver or GPU. Layouts become `Layout`, composed
    layouts `SmemLayout`, tiled copies `TiledCopyTV`, tiled MMAs `TiledMmaTV`, also inside tuples, named
    tuples, lists, dicts and dataclasses; ints, strings and the like pass through.

    Args:
        element_bits: the element width of the composed layouts. If left out, that of the one cutlass
            numeric type among the arguments.
        arch: the target CuTe assumes; atoms of one architecture can be made for that one alone.

    Raises:
        ValueError: a composed layout whose element width is unknown, or an offset that is not 0.
        TypeError: an object with no plain counterpart, such as a layout of run-time sizes.
    """
    import cutlass.cute as cute

    if not callable(fn):
        wrong_type("fn", fn, "a function")
    if element_bits is not None:
        integer("element_bits", element_bits, one_of=WIDTHS)
    if not re.fullmatch(r"sm_\d+[af]?", string("arch", arch)):
        raise ValueError(f"arch: got {shown(arch)}; needed the name of a target, such as sm_90a")
    if element_bits is None:
        widths = {a.width for a in (*args, *kwargs.values()) if isinstance(a, type) and hasattr(a, "width")}
        element_bits = widths.pop() if len(widths) == 1 else None
    results: list[Any] = []

    @cute.jit
    def host():
        results.append(_plain(fn(*args, **kwargs), element_bits))

    with cute_settings(dryrun=True):  # when it is traced all is known: nothing is to be lowered
        cute.compile(host, options=f"--gpu-arch {arch}")
    return results[0]


def _plain(value: Any, element_bits: int | None) -> Any:
    import cutlass.cute as cute

    if isinstance(value, cute.ComposedLayout):
        return _plain_composed(value, element_bits)
    if isinstance(value, cute.Layout):
        return Layout(_ints(value.shape), _ints(value.stride))
    if isinstance(value, cute.TiledMma):
        return _plain_mma(value)
    if isinstance(value, cute.TiledCopy):
        return _plain_copy(value)
    return _plain_container(value, element_bits)


def _plain_container(value: Any, element_bits: int | None) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v, element_bits) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        items = [_plain(v, element_bits) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name), element_bits) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if value is None or isinstance(value, (bool, int, float, str, type)):
        return value
    raise TypeError(f"fn: got a {type(value).__name__} from it; needed what CuTe lays out, or plain values")


def _plain_composed(value: Any, element_bits: int | None) -> SmemLayout:
    if element_bits is None:  # without it the swizzle's bytes and the strides' elements do not meet
        raise ValueError("element_bits: got None; needed the width of a composed layout's elements")
    if value.offset != 0 or not hasattr(value.inner, "num_bits"):
        raise ValueError(f"fn: got {value} from it; needed a composed layout of the form S<B,M,S> o 0 o layout")
    outer = Layout(_ints(value.outer.shape), _ints(value.outer.stride))
    return SmemLayout(outer, Swizzle.from_cute(value.inner), element_bits)


def _plain_copy(value: Any) -> TiledCopyTV:
    tvs = (value.layout_src_tv_tiled, value.layout_dst_tv_tiled)
    modes = [_mode(mode) for mode in value.tiler_mn]
    if any(not isinstance(mode.shape, int) for mode in modes):
        tvs = _unpermuted(tvs, modes)
    (source, destination), (m, n) = (_plain(x, None) for x in tvs), (mode.size for mode in modes)
    return TiledCopyTV(source, destination, (m, n))


def _unpermuted(tvs: tuple[Any, ...], modes: list[Layout]) -> list[Any]:
    """(thread, value) layouts over a tiler whose modes rename coordinates, as layouts over the coordinates."""
    import cutlass.cute as cute

    scaled = [_scaled(mode.stride, 1 if i == 0 else modes[0].size) for i, mode in enumerate(modes)]
    names = cute.make_layout(tuple(mode.shape for mode in modes), stride=tuple(scaled))
    return [cute.composition(names, tv) for tv in tvs]


def _scaled(stride: IntTuple, by: int) -> IntTuple:
    return tuple(_scaled(s, by) for s in stride) if isinstance(stride, tuple) else stride * by


def _plain_mma(value: Any) -> TiledMmaTV:
    layouts = (value.tv_layout_A_tiled, value.tv_layout_B_tiled, value.tv_layout_C_tiled)
    a, b, c = (_plain(x, None) for x in layouts)
    m, n, k = (int(value.get_tile_size(mode)) for mode in range(3))
    op = value.op
    majors = (op.a_major_mode.name, op.b_major_mode.name) if hasattr(op, "a_major_mode") else None
    return TiledMmaTV(a, b, c, (m, n, k), _ints(value.shape_mnk), majors)


def _mode(mode: Any) -> Layout:
    """A mode of a tiler: which coordinate its i-th index is. A copy of tensor memory takes every 32nd lane."""
    found = Layout(mode, 1) if isinstance(mode, int) else _plain(mode, None)
    if not np.array_equal(np.sort(found.table(), axis=None), np.arange(found.size)):
        raise ValueError(f"fn: got a tiled copy with tiler mode {mode}; needed each coordinate once")
    return found if found.size > 1 else Layout(1, 1)


def _ints(value: Any) -> Any:  # an IntTuple, of the profile that `value` has

    if isinstance(value, tuple):
        return tuple(_ints(v) for v in value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"fn: got a layout with {value!r} in it; needed static integers")
    return value


def _atom_values(tv: Layout) -> int:
    values = tv.modes[1].shape
    return _size(values[0]) if isinstance(values, tuple) else values


def _size(shape: IntTuple) -> int:
    return math.prod(map(_size, shape)) if isinstance(shape, tuple) else shape


def _congruent(shape: IntTuple, stride: IntTuple) -> bool:
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        return len(shape) == len(stride) and all(map(_congruent, shape, stride))
    return isinstance(shape, int) and isinstance(stride, int) and shape >= 1


def _int_tuple(name: str, value: IntTuple, least: int | None) -> IntTuple:
    """The value with its integers as int. A bool or a float is none; `least` is the smallest that may stand there."""
    if isinstance(value, tuple):
        return tuple(_int_tuple(name, v, least) for v in value)
    needed = "an integer, or nested tuples of integers" + (f", {least} or more" if least is not None else "")
    return integer(name, value, at_least=least, needed=needed) if is_integer(value) else wrong_type(name, value, needed)


def _least(shape: IntTuple, stride: IntTuple) -> int:
    """The smallest offset."""
    if isinstance(shape, tuple):
        return sum(map(_least, shape, stride))
    return min(0, (shape - 1) * stride)


def _reach(shape: IntTuple, stride: IntTuple) -> int:
    """A bound of the magnitude of all offsets."""
    if isinstance(shape, tuple):
        return sum(map(_reach, shape, stride))
    return (shape - 1) * abs(stride)


def _text(value: IntTuple) -> str:
    return f"({','.join(map(_text, value))})" if isinstance(value, tuple) else str(value)


def _offset(shape: IntTuple, stride: IntTuple, coord: IntTuple) -> int:
    if isinstance(coord, tuple):
        if not isinstance(shape, tuple) or len(coord) != len(shape):
            raise ValueError(f"coord: got {shown(coord)}; needed the nesting of shape {_text(shape)}")
        return sum(map(_offset, shape, stride, coord))
    if not 0 <= coord < _size(shape):
        raise ValueError(f"coord: got {shown(coord)}; needed 0 <= coord < {_size(shape)}")
    if not isinstance(shape, tuple):
        return int(coord) * stride
    total = 0
    for s, d in zip(shape, stride, strict=True):
        coord, inside = divmod(coord, _size(s))
        total += _offset(s, d, inside)
    return total


def _mode_offsets(shape: IntTuple, stride: IntTuple) -> np.ndarray:
    """1-D offsets of a mode, first sub-mode fastest."""
    if not isinstance(shape, tuple):
        return np.arange(shape, dtype=np.int64) * stride
    total = np.zeros(1, np.int64)
    for s, d in zip(shape, stride, strict=True):
        total = (_mode_offsets(s, d)[:, None] + total).reshape(-1)
    return total
