"""Follows views: what they are made of, what slices and tiles of them are, where each begins in every lane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.interpreter import Atom
from cookbook.check.pipeline.shapes import UNKNOWN, CannotFollow, Lay
from cookbook.check.product import origins
from cookbook.check.product.follower import LANES, Follower, follows, is_float
from cookbook.check.product.places import (
    LARGEST,
    Arith,
    Basis,
    Ptr,
    View,
    element,
    fitted,
    in_32_bits,
    nested,
    offset,
    spelled,
)
from cookbook.simulate.trace import Operation


def leaves_of(source: Any) -> tuple[list[Any], list[Any]]:
    """(extents, strides) of a layout or view, leaf by leaf."""
    layout = source.layout if isinstance(source, View) else source
    return list(shapes.leaves(layout.shape)), list(shapes.leaves(layout.stride))


def made(op: Operation, pointer: Ptr, layout: Lay, number: int = 0, tile: Any = None) -> View:
    """A view with what a result's type says of its elements."""
    text = op.result_types[number]
    found = shapes.kind(text)
    return View(pointer, layout, 8 if found.bits == 1 else found.bits, found.swizzle, tile, element(text))


def rearranged(op: Operation, source: Any, layout: Lay) -> Any:
    """The same elements, otherwise grouped."""
    return made(op, source.pointer, layout, tile=source.tile) if isinstance(source, View) else layout


# --- layouts -----------------------------------------------------------------------------------------------------


@follows("cute.make_layout", "cute.make_identity_layout", "cute.make_ordered_layout")
def _make_layout(f: Follower, op: Operation, args: list[Any]) -> Any:
    extents = list(shapes.leaves(args[0]))
    pattern, _ = spelled(op.result_types[0])
    if len(args) > 1 and op.name == "cute.make_layout":
        strides = list(shapes.leaves(args[1]))
    else:
        strides = _compact(extents, list(shapes.leaves(pattern.stride)))
    return fitted(op.result_types[0], extents, strides)


def _compact(extents: list[Any], spelt: list[Any]) -> list[Any]:
    """Strides as spelled; those that are not, one after the other."""
    found, step = [], 1
    for extent, stride in zip(extents, spelt, strict=True):
        found.append(step if isinstance(stride, str) else stride)
        step = step * extent
    return found


@follows("cute.make_identity_tensor")
def _identity_tensor(f: Follower, op: Operation, args: list[Any]) -> Any:
    pattern, _ = spelled(op.result_types[0])
    layout = fitted(op.result_types[0], list(shapes.leaves(args[0])), list(shapes.leaves(pattern.stride)))
    return View(Ptr("coord", Arith({})), layout, 32)


@follows("cute.make_composed_layout", "cute.composed_get_outer", "cute.tile_to_shape", "cute.right_inverse")
@follows("cute.left_inverse", "cute.recast_layout", "cute.logical_product", "cute.get", "cute.select")
@follows("cute.filter_zeros", "cute.filter", "cute.blocked_product", "cute.raked_product", "cute.complement")
def _spelled_layout(f: Follower, op: Operation, args: list[Any]) -> Any:
    """A layout that its type must spell as a whole."""
    layout, known = spelled(op.result_types[0])
    source = next((x for x in args if isinstance(x, (Lay, View))), None)
    if not known and isinstance(source, Lay):
        layout = fitted(op.result_types[0], *leaves_of(source))
    elif not known:
        raise CannotFollow(f"{op.name}, whose result is known only at run time")
    return rearranged(op, source, layout) if isinstance(source, View) else layout


@follows("cute.static", "cute.get_swizzle", "cute.print", "cute_nvgpu.prefetch_tma_desc", "nvvm.setmaxregister")
@follows("cute.make_tiled_copy", "llvm.mlir.poison", "cute.prefetch")
def _by_type(f: Follower, op: Operation, args: list[Any]) -> Any:
    if op.name == "cute.make_tiled_copy" and isinstance(args[0], Atom):
        return Atom(op.result_types[0], args[0].values)
    return Atom(op.result_types[0]) if op.results else None


@follows("cute.make_atom")
def _make_atom(f: Follower, op: Operation, args: list[Any]) -> Any:
    """An MMA is told first whether it adds to its accumulators."""
    return Atom(op.result_types[0], {"accum_c": args[0]} if args else {})


@follows("cute.make_tiled_mma")
def _make_tiled_mma(f: Follower, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0], args[0].values)


@follows("cute_nvgpu.atom.get_value")
def _get_value(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0].values[op.attributes["field"]]


@follows("cute.crd2idx")
def _index(f: Follower, op: Operation, args: list[Any]) -> Any:
    coordinate, layout = args
    if not isinstance(layout, Lay):
        layout = Lay(layout, _strides_of(layout))
    found = offset(layout.shape, layout.stride, coordinate)
    return coordinates_of(op.result_types[0], found) if shapes.quoted(op.result_types[0])[0] == "(" else found


def coordinates_of(text: str, at: Any) -> Any:
    """A coordinate as nested tuple, as a type spells it."""
    pattern = shapes.tree(shapes.quoted(text))
    return nested(pattern, iter([at.at(*path) if isinstance(at, Arith) else 0 for path in _walk(pattern)]))


def _strides_of(shape: Any) -> Any:
    strides, step = [], 1
    for extent in shapes.leaves(shape):
        strides.append(step)
        step *= extent
    return nested(shape, iter(strides))


# --- pointers ----------------------------------------------------------------------------------------------------


@follows("cute.recast_iter", "builtin.unrealized_conversion_cast", "llvm.addrspacecast", "cute.address_space_cast")
@follows("cute.derefine")
def _cast(f: Follower, op: Operation, args: list[Any]) -> Any:
    return args[0]


@follows("cute.ptrtoint", "llvm.ptrtoint")
def _to_integer(f: Follower, op: Operation, args: list[Any]) -> Any:
    """The address; of another CTA's shared memory, the pointer still."""
    pointer = args[0]
    if pointer.space not in ("smem", "gmem"):
        raise CannotFollow(f"the address of a pointer to {pointer.space} as a number")
    return pointer.address if pointer.cta is None else pointer


@follows("cute.inttoptr", "llvm.inttoptr")
def _to_pointer(f: Follower, op: Operation, args: list[Any]) -> Any:
    text = op.result_types[0]
    if isinstance(args[0], Ptr):
        return args[0]
    space = "smem" if text == "!llvm.ptr<3>" else shapes.kind(text).space
    if space == "tmem":  # bits 30 and 31 say which byte of a cell
        return Ptr(space, 4 * (args[0] & (1 << 30) - 1) + (args[0] >> 30))
    if space not in ("smem", "gmem"):
        raise CannotFollow(f"a pointer to {space} out of a number")
    return Ptr(space, args[0])


@follows("cute.add_offset")
def _add_offset(f: Follower, op: Operation, args: list[Any]) -> Any:
    pointer, by = args
    if isinstance(pointer, (int, np.integer, np.ndarray)):
        return pointer + by
    if pointer.space == "coord":
        parts = list(shapes.leaves(by))
        paths = _paths(op.operand_types[0])
        return pointer.moved(Arith(dict(zip(paths, parts, strict=True))))
    while isinstance(by, tuple):
        (by,) = by
    return pointer.moved(by * shapes.kind(op.operand_types[0]).bits // 8)


def _paths(text: str) -> list[tuple[int, ...]]:
    """The paths of the leaves of a coordinate that a type spells."""
    return list(_walk(shapes.tree(shapes._QUOTED.findall(text)[0])))


def _walk(pattern: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if isinstance(pattern, tuple):
        for number, part in enumerate(pattern):
            yield from _walk(part, (*path, number))
    else:
        yield path


@follows("cute.deref_arith_tuple_iter")
def _coordinates(f: Follower, op: Operation, args: list[Any]) -> Any:
    return coordinates_of(op.result_types[0], args[0].address)


@follows("cute.make_arith_tuple_iter")
def _coordinates_iterator(f: Follower, op: Operation, args: list[Any]) -> Any:
    return Ptr("coord", Arith(dict(zip(_walk(args[0]), shapes.leaves(args[0]), strict=True))))


# --- views -------------------------------------------------------------------------------------------------------


@follows("cute.make_view")
def _make_view(f: Follower, op: Operation, args: list[Any]) -> Any:
    pointer = args[0] if isinstance(args[0], Ptr) else Ptr("coord", Arith({}))
    layout = args[1] if len(args) > 1 else fitted(op.result_types[0], [], [])
    if pointer.space == "gmem" and _is_narrow(op.result_types[0], layout):
        pointer = replace(pointer, narrow=pointer.address)
    return made(op, pointer, layout, tile=pointer.tile)


def _is_narrow(text: str, layout: Lay) -> bool:
    """Whether a stride of 32 bits, times a coordinate, comes to more than they hold."""
    leaves = zip(in_32_bits(text), shapes.leaves(layout.shape), shapes.leaves(layout.stride), strict=True)
    return any((extent - 1) * stride > LARGEST for narrow, extent, stride in leaves if narrow)


@follows("cute.group_modes", "cute.tiled.copy.retile", "cute.coalesce", "cute.recast_view", "cute.group")
def _regrouped(f: Follower, op: Operation, args: list[Any]) -> Any:
    source = next(x for x in args if isinstance(x, (Lay, View)))
    layout, known = spelled(op.result_types[0])
    return rearranged(op, source, layout if known else fitted(op.result_types[0], *leaves_of(source)))


@follows("cute.append_to_rank", "cute.prepend_to_rank", "cute.append")
def _appended(f: Follower, op: Operation, args: list[Any]) -> Any:
    source = args[0]
    layout, known = spelled(op.result_types[0])
    if not known:
        extents, strides = leaves_of(source)
        more = len(list(shapes.leaves(layout.shape))) - len(extents)
        added: tuple[list[Any], list[Any]] = ([1] * more, [0] * more)
        front = op.name == "cute.prepend_to_rank"
        extents, strides = (b + a if front else a + b for a, b in zip((extents, strides), added, strict=True))
        layout = fitted(op.result_types[0], extents, strides)
    return rearranged(op, source, layout)


@follows("cute.slice", "cute.dice")
def _slice(f: Follower, op: Operation, args: list[Any]) -> Any:
    source, coordinate = args
    if op.name == "cute.dice":
        raise CannotFollow("cute.dice, which is not known to the checker")
    layout = source.layout if isinstance(source, View) else source
    if not isinstance(layout, Lay):
        return _slice_tuple(source, coordinate)
    left, known = spelled(op.result_types[0])
    if not known:
        kept = list(_kept(layout.shape, layout.stride, coordinate))
        left = fitted(op.result_types[0], [e for e, _ in kept], [s for _, s in kept])
    if isinstance(source, Lay):
        return left
    by = offset(layout.shape, layout.stride, coordinate)
    pointer = source.pointer if isinstance(by, int) and by == 0 else source.moved(by)
    return made(op, pointer, left, tile=source.tile)


def _slice_tuple(source: Any, coordinate: Any) -> Any:
    found = tuple(x for x, c in zip(source, coordinate, strict=True) if c is None)
    return found[0] if len(found) == 1 else found


def _kept(shape: Any, stride: Any, coordinate: Any) -> Iterator[tuple[Any, Any]]:
    """The (extent, stride) of the leaves that a slice leaves: where the coordinate says `_`."""
    if coordinate is None:
        yield from zip(shapes.leaves(shape), shapes.leaves(stride), strict=True)
    elif isinstance(coordinate, tuple) and isinstance(shape, tuple):
        for s, d, c in zip(shape, stride, coordinate, strict=True):
            yield from _kept(s, d, c)


DIVIDES = ("cute.logical_divide", "cute.zipped_divide", "cute.flat_divide", "cute.tiled_divide")


@follows("cute.composition", *DIVIDES)
def _divided(f: Follower, op: Operation, args: list[Any]) -> Any:
    source, by = args
    layout, known = spelled(op.result_types[0])
    if not known:
        if not isinstance(by, tuple):
            raise CannotFollow(f"{op.name} of a view whose layout is known only at run time")
        modes = (source.layout if isinstance(source, View) else source).modes
        tiles, rests = zip(*(divided(m, t) for m, t in zip(modes, by, strict=False)), strict=True)
        untiled = [leaf for m in modes[len(by) :] for leaf in _pairs(m)]
        parts = [*_flat(tiles), *_flat(rests), *untiled]
        if op.name == "cute.logical_divide":
            parts = [leaf for t, r in zip(tiles, rests, strict=True) for leaf in (*t, *r)] + untiled
        if op.name == "cute.composition":
            parts = _flat(tiles)
        layout = fitted(op.result_types[0], [e for e, _ in parts], [s for _, s in parts])
    return rearranged(op, source, layout)


def _flat(parts: Any) -> list[Any]:
    return [leaf for part in parts for leaf in part]


def _pairs(mode: Lay) -> list[tuple[Any, Any]]:
    return list(zip(shapes.leaves(mode.shape), shapes.leaves(mode.stride), strict=True))


def divided(mode: Lay, tile: Any) -> tuple[list[Any], list[Any]]:
    """((extent, stride) of the leaves of a tile of that many elements, those of the rest)."""
    pairs = _pairs(mode)
    if tile is None:
        return pairs, []
    inside: list[Any] = []
    left = tile
    while pairs and left > 1:
        extent, stride = pairs.pop(0)
        last = not pairs
        if not last and left % extent == 0:
            inside.append((extent, stride))
            left //= extent
        else:
            inside.append((left, stride))
            step = _times(stride, left) if isinstance(stride, Basis) else stride * left
            pairs.insert(0, (-(-extent // left), step))
            left = 1
    return inside or [(1, 0)], pairs or [(1, 0)]


def _times(stride: Basis, by: int) -> Basis:
    return Basis(stride.value * by, stride.path)


@follows("cute.local_tile")
def _local_tile(f: Follower, op: Operation, args: list[Any]) -> Any:
    source, tile, coordinate = args[:3]
    if tile is UNKNOWN:
        raise CannotFollow("a tile made of layouts")
    at = coordinate if isinstance(coordinate, tuple) else (coordinate,)
    modes = source.layout.modes
    inside, rests, by = [], [], 0
    for mode, extent, c in zip(modes, tile, at, strict=False):
        if extent is None:  # a mode that is left out
            by = offset(mode.shape, mode.stride, c) + by if c is not None else by
            continue
        of_tile, of_rest = divided(mode, extent)
        inside += of_tile
        if c is None:
            rests += of_rest
        else:
            by = offset(mode.shape, mode.stride, c * extent) + by
    untiled: list[Any] = []
    for mode, c in zip(modes[len(tile) :], (*at[len(tile) :], *(None,) * len(modes)), strict=False):
        if c is None:
            untiled += _pairs(mode)
        else:
            by = offset(mode.shape, mode.stride, c) + by
    parts = [*inside, *rests, *untiled]
    layout, known = spelled(op.result_types[0])
    if not known:
        layout = fitted(op.result_types[0], [e for e, _ in parts], [s for _, s in parts])
    return made(op, source.moved(by) if not (isinstance(by, int) and by == 0) else source.pointer, layout)


@follows("cute.memref.alloca")
def _alloca(f: Follower, op: Operation, args: list[Any]) -> Any:
    text = op.result_types[0]
    found = shapes.kind(text)
    layout, _ = spelled(text)
    bits = 8 if found.bits == 1 else found.bits
    if found.space == "rmem":
        return registers(text)
    if found.space != "smem":
        raise CannotFollow(f"an allocation in {found.space}")
    begin = -(-f.allocated // found.align) * found.align
    f.allocated = begin + layout.size * bits // 8
    return View(Ptr("smem", begin), layout, bits, found.swizzle, kind=element(text))


def registers(text: str) -> View:
    """An array of registers of this type, which nothing has written."""
    layout, _ = spelled(text)
    bits = shapes.kind(text).bits
    empty = origins.UNWRITTEN if is_float(element(text)) else 0
    array = np.full((LANES, int(places_size(layout))), empty, np.int64)
    return View(Ptr("rmem", 0, array=array), layout, 8 if bits == 1 else bits, kind=element(text))


def places_size(layout: Lay) -> int:
    """Elements of the memory that a layout needs."""
    pairs = zip(shapes.leaves(layout.shape), shapes.leaves(layout.stride), strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in pairs)
