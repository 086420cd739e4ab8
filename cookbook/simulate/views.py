"""Layouts, pointers and views: what they are made of, what slices and tiles of them are, where each lane's begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cookbook.simulate import types
from cookbook.simulate.integers import paths
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.types import LARGEST, element, fitted, in_32_bits, spelled
from cookbook.simulate.values import (
    ALL,
    COMPUTED,
    UNKNOWN,
    Absorbed,
    Arith,
    Atom,
    Basis,
    CannotFollow,
    Lay,
    Pointer,
    View,
    is_number,
    leaves,
    offset,
)
from cookbook.simulate.warp import Warp, handles
from cookbook.swizzle import Swizzle


def leaves_of(source: Any) -> tuple[list[Any], list[Any]]:
    """(extents, strides) of a layout or view, leaf by leaf."""
    layout = source.layout if isinstance(source, View) else source
    return list(leaves(layout.shape)), list(leaves(layout.stride))


def made(op: Operation, pointer: Pointer, layout: Lay, number: int = 0, tile: Any = None) -> View:
    """A view with what a result's type says of its elements."""
    text = op.result_types[number]
    found = types.kind(text)
    swizzle = found.swizzle if pointer.inner is None else pointer.inner
    return View(pointer, layout, 8 if found.bits == 1 else found.bits, swizzle, tile, element(text))


def rearranged(op: Operation, source: Any, layout: Lay) -> Any:
    """The same elements, otherwise grouped."""
    if isinstance(source, Absorbed):
        return Absorbed(layout.shape, layout.stride, source.pointer)
    return made(op, source.pointer, layout, tile=source.tile) if isinstance(source, View) else layout


# --- layouts -----------------------------------------------------------------------------------------------------


@handles("cute.make_layout", "cute.make_identity_layout", "cute.make_ordered_layout")
def _make_layout(f: Warp, op: Operation, args: list[Any]) -> Any:
    extents = list(map(f.one, leaves(args[0])))
    pattern, _ = spelled(op.result_types[0])
    if len(args) > 1 and op.name == "cute.make_layout":
        strides = list(map(f.one, leaves(args[1])))
    else:
        strides = _compact(extents, list(leaves(pattern.stride)))
    return fitted(op.result_types[0], extents, strides)


def _compact(extents: list[Any], spelt: list[Any]) -> list[Any]:
    """Strides as spelled; those that are not, one after the other."""
    found, step = [], 1
    for extent, stride in zip(extents, spelt, strict=True):
        found.append(step if isinstance(stride, str) else stride)
        step = step * extent
    return found


@handles("cute.make_identity_tensor")
def _identity_tensor(f: Warp, op: Operation, args: list[Any]) -> Any:
    pattern, _ = spelled(op.result_types[0])
    layout = fitted(op.result_types[0], list(leaves(args[0])), list(leaves(pattern.stride)))
    return View(Pointer("coord", Arith({})), layout, 32)


@handles("cute.tile_to_shape")
def _tile_to_shape(f: Warp, op: Operation, args: list[Any]) -> Any:
    """Copies of a tile, one after the other, the modes in an order: CuTe, "tile_to_shape"."""
    tile, shape, order = args
    layout, known = spelled(op.result_types[0])
    if known:
        return layout
    modes = [*tile.modes, *(Lay(1, 0) for _ in shape[len(tile.modes) :])]
    counts = [-(-_size_of(extent) // mode.size) for extent, mode in zip(shape, modes, strict=True)]
    steps, step = [0] * len(modes), places_size(tile)
    for number in sorted(range(len(modes)), key=lambda mode: order[mode]):
        steps[number], step = step, step * counts[number]
    parts = [pair for m, c, s in zip(modes, counts, steps, strict=True) for pair in (*_pairs(m), (c, s))]
    return fitted(op.result_types[0], [e for e, _ in parts], [s for _, s in parts])


def _size_of(shape: Any) -> Any:
    return Lay(shape, shape).size


@handles("cute.composed_get_inner")
def _swizzle_of(f: Warp, op: Operation, args: list[Any]) -> Swizzle:
    return types.swizzle_of(op.result_types[0])


@handles("cute.make_composed_layout", "cute.composed_get_outer", "cute.right_inverse")
@handles("cute.left_inverse", "cute.recast_layout", "cute.logical_product")
@handles(
    "cute.dice", "cute.filter", "cute.blocked_product", "cute.raked_product", "cute.flat_product", "cute.complement"
)
def _spelled_layout(f: Warp, op: Operation, args: list[Any]) -> Any:
    """A layout that its type must spell as a whole."""
    layout, known = spelled(op.result_types[0])
    source = next((x for x in args if isinstance(x, (Lay, View))), None)
    if not known and isinstance(source, Lay):
        layout = fitted(op.result_types[0], *leaves_of(source))
    elif not known:
        raise CannotFollow(f"{op.name}, whose result is known only at run time")
    return rearranged(op, source, layout) if isinstance(source, View) else layout


@handles("cute.filter_zeros")
def _filter_zeros(f: Warp, op: Operation, args: list[Any]) -> Any:
    """Modes of stride 0 get one element."""
    source = args[0]
    extents, strides = leaves_of(source)
    kept = [1 if isinstance(stride, int) and stride == 0 else e for e, stride in zip(extents, strides, strict=True)]
    return rearranged(op, source, fitted(op.result_types[0], kept, strides))


@handles("cute.get")
def _get_mode(f: Warp, op: Operation, args: list[Any]) -> Any:
    """One mode of a layout, or of one of its modes."""
    (source,) = args
    layout, known = spelled(op.result_types[0])
    if not known:
        mode = source.layout if isinstance(source, View) else source
        for number in op.attributes["mode"]:
            mode = mode.modes[number]
        layout = fitted(op.result_types[0], *leaves_of(mode))
    return rearranged(op, source, layout) if isinstance(source, View) else layout


@handles("cute.select")
def _select_modes(f: Warp, op: Operation, args: list[Any]) -> Any:
    """The modes of these numbers, of a layout or of a tuple."""
    (source,), wanted = args, op.attributes["mode"]
    if isinstance(source, tuple):
        return tuple(source[number] for number in wanted)
    layout, known = spelled(op.result_types[0])
    if not known:
        modes = (source.layout if isinstance(source, View) else source).modes
        parts = [leaf for number in wanted for leaf in _pairs(modes[number])]
        layout = fitted(op.result_types[0], [e for e, _ in parts], [s for _, s in parts])
    return rearranged(op, source, layout)


@handles("cute.static", "cute.get_swizzle", "cute.print", "cute_nvgpu.prefetch_tma_desc")
@handles("cute.make_tiled_copy", "llvm.mlir.poison", "cute.prefetch", "cute_nvgpu.atom.make_tmem_copy")
@handles("cute_nvgpu.atom.make_s2t_copy")
def _by_type(f: Warp, op: Operation, args: list[Any]) -> Any:
    if op.result_types[:1] and op.result_types[0].startswith(("!cute.layout", "!cute.composed_layout")):
        return spelled(op.result_types[0])[0]
    if op.name == "cute.make_tiled_copy" and isinstance(args[0], Atom):
        return Atom(op.result_types[0], args[0].values)
    return Atom(op.result_types[0]) if op.results else None


@handles("cute.make_atom")
def _make_atom(f: Warp, op: Operation, args: list[Any]) -> Any:
    """An MMA is told first whether it adds to its accumulators."""
    return Atom(op.result_types[0], {"accum_c": args[0]} if args else {})


@handles("cute.make_tiled_mma")
def _make_tiled_mma(f: Warp, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0], args[0].values)


@handles("cute_nvgpu.atom.set_value")
def _set_value(f: Warp, op: Operation, args: list[Any]) -> Any:
    atom = args[0] if isinstance(args[0], Atom) else Atom(op.operand_types[0])
    return Atom(op.result_types[0], atom.values | {op.attributes["field"]: args[1]})


@handles("cute_nvgpu.atom.make_exec_tma")
def _exec_tma(f: Warp, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0], args[0].values)


@handles("cute_nvgpu.atom.get_value")
def _get_value(f: Warp, op: Operation, args: list[Any]) -> Any:
    return args[0].values[op.attributes["field"]]


@handles("cute.get_layout")
def _get_layout(f: Warp, op: Operation, args: list[Any]) -> Any:
    layout, pointer = args[0].layout, args[0].pointer
    if pointer.inner is None or spelled(op.result_types[0])[1]:
        return layout
    return Absorbed(layout.shape, layout.stride, pointer)


@handles("cute.get_shape")
def _get_shape(f: Warp, op: Operation, args: list[Any]) -> Any:
    return getattr(args[0], "layout", args[0]).shape


@handles("cute.get_stride")
def _get_stride(f: Warp, op: Operation, args: list[Any]) -> Any:
    return getattr(args[0], "layout", args[0]).stride


@handles("cute.size", "cute.cosize")
def _size(f: Warp, op: Operation, args: list[Any]) -> Any:
    pattern = types.tree(types.quoted(op.result_types[0]))
    if not types.is_dynamic(pattern):
        return pattern
    of = getattr(args[0], "layout", args[0])
    shape = getattr(of, "shape", of)
    for index in op.get("mode", ()):
        shape = shape[index] if isinstance(shape, tuple) else shape
    return Lay(shape, shape).size


@handles("cute.get_iter")
def _get_iter(f: Warp, op: Operation, args: list[Any]) -> Any:
    return args[0].pointer


# --- pointers ----------------------------------------------------------------------------------------------------


@handles("cute.recast_iter")
def _recast(f: Warp, op: Operation, args: list[Any]) -> Any:
    """The same place; where a pointer gets a swizzle, what lies there begins: `Pointer.base`.

    A tile that is laid over another one may be larger than it: its room is all of shared memory.
    """
    (pointer,) = args
    if not isinstance(pointer, Pointer) or pointer.space != "smem":
        return pointer
    before, after = (types.kind(text) for text in (op.operand_types[0], op.result_types[0]))
    of_bytes = op.operand_types[0].startswith("!cute.ptr<i8,") and not before.swizzle.bits  # no tile lies there yet
    if before.swizzle != after.swizzle or of_bytes:
        pointer = replace(pointer, base=pointer.address)
    return pointer if of_bytes or pointer.room is None else replace(pointer, room=ALL)


@handles("builtin.unrealized_conversion_cast", "llvm.addrspacecast", "cute.address_space_cast", "cute.derefine")
def _cast(f: Warp, op: Operation, args: list[Any]) -> Any:
    return args[0]


@handles("cute.ptrtoint", "llvm.ptrtoint")
def _to_integer(f: Warp, op: Operation, args: list[Any]) -> Any:
    """The address; of another CTA's shared memory, the pointer still."""
    pointer = args[0]
    if pointer.space == "tmem":  # the way back of `in_tensor_memory`
        return pointer.address // 4 | pointer.address % 4 << 30
    if pointer.space == "tensor map":
        return pointer
    if pointer.space not in ("smem", "gmem"):
        raise CannotFollow(f"the address of a pointer to {pointer.space} as a number")
    return pointer.address if pointer.cta is None else pointer


def in_tensor_memory(address: Any) -> Pointer:
    """The pointer of an address of 32 bits: bits 30 and 31 say which byte of a cell."""
    if not is_number(address):
        raise CannotFollow(f"an address of tensor memory that is {address}")
    return Pointer("tmem", 4 * (address & (1 << 30) - 1) + (address >> 30 & 3))


BARE = {"!llvm.ptr<3>": "smem", "!llvm.ptr<6>": "tmem"}  # pointers without a type of elements


@handles("cute.inttoptr", "llvm.inttoptr")
def _to_pointer(f: Warp, op: Operation, args: list[Any]) -> Any:
    text = op.result_types[0]
    if isinstance(args[0], Pointer):
        return args[0]
    space = BARE.get(text) or types.kind(text).space
    if space == "tmem" and args[0] is not UNKNOWN:
        return in_tensor_memory(args[0])
    if space not in ("smem", "gmem", "generic"):
        raise CannotFollow(f"a pointer to {space} out of a number")
    if space == "generic":  # of a number: of shared memory it stays a pointer
        space = "gmem"
    return Pointer(space, args[0], name=COMPUTED)


@handles("cute.add_offset")
def _add_offset(f: Warp, op: Operation, args: list[Any]) -> Any:
    pointer, by = args
    if isinstance(pointer, (int, np.integer, np.ndarray)):
        return pointer + by
    if pointer.space == "coord":
        parts = list(leaves(by))
        paths = _paths(op.operand_types[0])
        return pointer.moved(Arith(dict(zip(paths, parts, strict=True))))
    while isinstance(by, tuple):
        (by,) = by
    return pointer.moved(by * types.kind(op.operand_types[0]).bits // 8)


def _paths(text: str) -> list[tuple[int, ...]]:
    """The paths of the leaves of a coordinate that a type spells."""
    return list(paths(types.tree(types.first_quoted(text))))


# --- views -------------------------------------------------------------------------------------------------------


@handles("cute.make_view")
def _make_view(f: Warp, op: Operation, args: list[Any]) -> Any:
    pointer = args[0] if isinstance(args[0], Pointer) else Pointer("coord", Arith({}))
    layout = args[1] if len(args) > 1 else fitted(op.result_types[0], [], [])
    if isinstance(layout, Absorbed):
        pointer, layout = layout.under(pointer), Lay(layout.shape, layout.stride)
    if pointer.space == "gmem" and _is_narrow(op.result_types[0], layout):
        pointer = replace(pointer, narrow=pointer.address)
    if pointer.space == "smem" and types.quoted(op.result_types[0]).startswith("S<"):
        pointer = replace(pointer, inner=_inner(op.result_types[0], pointer))
    return made(op, pointer, layout, tile=pointer.tile)


def _inner(text: str, pointer: Pointer) -> Swizzle:
    """The swizzle of a composed layout, over bytes; it counts from where the view begins, and the bytes from 0."""
    found = types.swizzle_of(types.quoted(text)).in_bytes(types.kind(text).bits)
    at = pointer.address
    if types.swizzle_of(text.partition('"')[0]).bits or not isinstance(at, (int, np.integer)) or at % found.period:
        raise CannotFollow(f"a composed layout that begins at {at}, where its swizzle does not")
    return found


def _is_narrow(text: str, layout: Lay) -> bool:
    """Return whether a stride of 32 bits, times a coordinate, comes to more than they hold."""
    modes = zip(in_32_bits(text), leaves(layout.shape), leaves(layout.stride), strict=True)
    known = ((extent, stride) for narrow, extent, stride in modes if narrow and stride is not UNKNOWN)
    return any((extent - 1) * stride > LARGEST for extent, stride in known)


@handles("cute.group_modes", "cute.tiled.copy.retile", "cute.coalesce", "cute.recast_view", "cute.group")
def _regrouped(f: Warp, op: Operation, args: list[Any]) -> Any:
    source = next(x for x in args if isinstance(x, (Lay, View)))
    layout, known = spelled(op.result_types[0])
    return rearranged(op, source, layout if known else fitted(op.result_types[0], *leaves_of(source)))


@handles("cute.append_to_rank", "cute.prepend_to_rank", "cute.append")
def _appended(f: Warp, op: Operation, args: list[Any]) -> Any:
    source = args[0]
    layout, known = spelled(op.result_types[0])
    if not known:
        extents, strides = leaves_of(source)
        more = len(list(leaves(layout.shape))) - len(extents)
        added: tuple[list[Any], list[Any]] = ([1] * more, [0] * more)
        front = op.name == "cute.prepend_to_rank"
        extents, strides = (b + a if front else a + b for a, b in zip((extents, strides), added, strict=True))
        layout = fitted(op.result_types[0], extents, strides)
    return rearranged(op, source, layout)


@handles("cute.slice")
def _slice(f: Warp, op: Operation, args: list[Any]) -> Any:
    source, coordinate = args
    layout = source.layout if isinstance(source, View) else source
    if not isinstance(layout, Lay):
        return _slice_tuple(source, coordinate)
    if isinstance(source, Absorbed):
        raise CannotFollow("a slice of a layout with a swizzle in its strides")
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
        yield from zip(leaves(shape), leaves(stride), strict=True)
    elif isinstance(coordinate, tuple) and isinstance(shape, tuple):
        for s, d, c in zip(shape, stride, coordinate, strict=True):
            yield from _kept(s, d, c)


DIVIDES = ("cute.logical_divide", "cute.zipped_divide", "cute.flat_divide", "cute.tiled_divide")


@handles("cute.composition", *DIVIDES)
def _divided(f: Warp, op: Operation, args: list[Any]) -> Any:
    source, by = args
    layout, known = spelled(op.result_types[0])
    if not known and isinstance(by, Lay):  # that leaves extents and strides as they are; `fitted` says if it does not
        layout = fitted(op.result_types[0], *leaves_of(source))
    elif not known:
        if not isinstance(by, tuple):
            raise CannotFollow(f"{op.name} of a view whose layout is known only at run time")
        modes = (source.layout if isinstance(source, View) else source).modes
        tiles, rests = zip(*(divided(m, t) for m, t in zip(modes, by, strict=False)), strict=True)
        untiled = [leaf for m in modes[len(by) :] for leaf in _pairs(m)]
        if len(_flat(tiles)) + len(_flat(rests)) + len(untiled) > len(list(leaves(layout.shape))):
            rests = tuple([pair for pair in rest if pair[0] != 1] or rest[:1] for rest in rests)  # as CuTe coalesces
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
    return list(zip(leaves(mode.shape), leaves(mode.stride), strict=True))


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


@handles("cute.local_tile")
def _local_tile(f: Warp, op: Operation, args: list[Any]) -> Any:
    source, tile, coordinate = args[:3]
    if tile is UNKNOWN:
        raise CannotFollow("a tile made of layouts")
    at = coordinate if isinstance(coordinate, tuple) else (coordinate,)
    if projection := op.get("proj"):  # of a tile of M, N and K, which of them this tensor has
        pattern = types.tree(projection.strip('"'))
        kept = [number for number, leaf in enumerate(pattern) if leaf is not None]
        tile = tuple(tile[number] for number in kept)
        at = (*(at[number] for number in kept), *at[len(pattern) :])
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


@handles("cute.memref.alloca")
def _alloca(f: Judge, op: Operation, args: list[Any]) -> Any:
    text = op.result_types[0]
    found = types.kind(text)
    layout, _ = spelled(text)
    bits = 8 if found.bits == 1 else found.bits
    if found.space == "rmem":
        return registers(f, op)
    if found.space != "smem":
        raise CannotFollow(f"an allocation in {found.space}")
    begin = -(-f.allocated // found.align) * found.align
    f.allocated = begin + layout.size * bits // 8
    return View(
        Pointer("smem", begin, base=begin, room=(begin, f.allocated)), layout, bits, found.swizzle, kind=element(text)
    )


def registers(f: Judge, op: Operation) -> View:
    """An array of registers, which nothing has written."""
    text = op.result_types[0]
    layout, _ = spelled(text)
    bits = types.kind(text).bits
    array = f.registers(int(places_size(layout)), element(text))
    return View(
        Pointer("rmem", 0, array=array, name=str(op.results[0])), layout, 8 if bits == 1 else bits, kind=element(text)
    )


def places_size(layout: Lay) -> int:
    """Elements of the memory that a layout needs."""
    pairs = zip(leaves(layout.shape), leaves(layout.stride), strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in pairs)
