"""Follows layouts, views and their shares: which bytes a copy or an MMA of a warp has to do with.

Where a view begins is followed as an integer; how its elements lie is what its type spells, but for extents that are
known only when the kernel runs, which come from what the view was made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.interpreter import LANES, Atom, Interpreter, handles
from cookbook.check.pipeline.shapes import UNKNOWN, CannotFollow, Lay, Pointer, View
from cookbook.simulate.trace import Operation
from cookbook.swizzle import Swizzle


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
def _make_layout(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    shape = marked(args[0], op.operand_types[0])
    return Lay(shape, _strides(shapes.lay(shapes.quoted(op.result_types[0])).stride))


@handles("cute.make_identity_tensor")
def _identity_tensor(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    shape = marked(args[0], op.operand_types[0])
    stride = _strides(shapes.lay(shapes.quoted(op.result_types[0])).stride)
    return View(Pointer("coord", UNKNOWN), Lay(shape, stride), 32, Swizzle(0, 4, 3))


@handles("cute.make_composed_layout", "cute.composed_get_outer", "cute.tile_to_shape", "cute.right_inverse")
@handles("cute.left_inverse", "cute.make_ordered_layout", "cute.recast_layout", "cute.logical_product", "cute.get")
def _new_layout(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return layout_of(op, [x for x in args if isinstance(x, (Lay, View))])


@handles("cute.static", "cute.get_swizzle", "cute.print", "cute_nvgpu.prefetch_tma_desc", "cute.prefetch")
@handles("cute.make_atom", "cute.make_tiled_copy", "cute.make_tiled_mma", "cute.kernel_smem_size", "llvm.mlir.poison")
@handles("cute_nvgpu.atom.get_value")
def _by_type(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0]) if op.results else None


@handles("cute_nvgpu.atom.set_value")
def _set_value(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    atom = args[0] if isinstance(args[0], Atom) else Atom(op.operand_types[0])
    return Atom(op.result_types[0], atom.values | {op.attributes["field"]: args[1]})


@handles("cute.get_layout")
def _get_layout(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return args[0].layout


@handles("cute.get_shape")
def _get_shape(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return getattr(args[0], "layout", args[0]).shape


@handles("cute.get_stride")
def _get_stride(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return getattr(args[0], "layout", args[0]).stride


@handles("cute.size", "cute.cosize")
def _size(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    pattern = shapes.tree(shapes.quoted(op.result_types[0]))
    if not shapes.is_dynamic(pattern):
        return pattern
    of = getattr(args[0], "layout", args[0])
    shape = getattr(of, "shape", of)
    for index in op.get("mode", ()):
        shape = shape[index] if isinstance(shape, tuple) else shape
    return Lay(shape, shape).size


@handles("cute.get_iter")
def _get_iter(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return args[0].pointer


@handles("cute.ptrtoint")
def _address(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    """The bytes that a pointer counts, without its swizzle: each lane's own where a view was partitioned."""
    pointer = args[0]
    if not isinstance(pointer, Pointer) or pointer.space != "smem" or pointer.address is UNKNOWN:
        return pointer
    return pointer.address if pointer.lanes is None else pointer.address + pointer.lanes


@handles("cute.inttoptr")
def _of_address(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    space = shapes.kind(op.result_types[0]).space
    if isinstance(args[0], Pointer):
        return args[0]
    return Pointer(space, args[0] if space in shapes.FOLLOWED else UNKNOWN, name=shapes.COMPUTED)


@handles("cute.recast_iter")
def _recast(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    """The same place; where a pointer gets a swizzle, what lies there begins: `Pointer.base`."""
    pointer = args[0]
    if not isinstance(pointer, Pointer) or pointer.space != "smem":
        return pointer
    before, after = (shapes.kind(text) for text in (op.operand_types[0], op.result_types[0]))
    of_bytes = op.operand_types[0].startswith("!cute.ptr<i8,")  # memory that no tensor lies in yet
    return replace(pointer, base=pointer.address) if of_bytes or before.swizzle != after.swizzle else pointer


@handles("builtin.unrealized_conversion_cast")
@handles("llvm.addrspacecast", "cute.address_space_cast", "llvm.ptrtoint", "cute.derefine")
def _cast(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return args[0]


@handles("cute.add_offset")
def _add_offset(f: Interpreter, op: Operation, args: list[Any]) -> Any:
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
def _make_view(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    pointer = args[0] if isinstance(args[0], Pointer) else Pointer("coord", UNKNOWN)
    layout = args[1] if len(args) > 1 else layout_of(op, [])
    return viewed(op, pointer, layout)


@handles("cute.group_modes", "cute.append_to_rank", "cute.tiled.copy.retile", "cute.prepend_to_rank", "cute.select")
@handles("cute.coalesce", "cute.composition", "cute.logical_divide", "cute.zipped_divide", "cute.flat_divide")
@handles("cute.tiled_divide", "cute.filter_zeros", "cute.filter", "cute.recast_view", "cute.group", "cute.append")
def _rearranged(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    source = next(x for x in args if isinstance(x, (Lay, View)))
    if isinstance(source, Lay):
        return layout_of(op, [source])
    keeps = op.name == "cute.append_to_rank" or (op.name == "cute.group_modes" and op.attributes["begin"] > 0)
    pointer = source.pointer if keeps else source.closed()
    return viewed(op, pointer, layout_of(op, [source]), swizzle=_kept_swizzle(op, source))


def _kept_swizzle(op: Operation, source: View) -> Swizzle | None:
    """Of a view of matrix descriptors: the swizzle of the tile that they describe."""
    return source.swizzle if "smem_desc" in op.result_types[0] else None


@handles("cute.slice", "cute.dice")
def _slice(f: Interpreter, op: Operation, args: list[Any]) -> Any:
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
    if isinstance(elements, np.ndarray) and f.same(elements) is not UNKNOWN:
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
def _local_tile(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    source, tile, coordinate = args[:3]
    if tile is UNKNOWN:
        raise CannotFollow("a tile made of layouts")
    at = coordinate if isinstance(coordinate, tuple) else (coordinate,)
    modes = source.layout.modes
    rests = []
    for mode, extent, c in zip(modes, tile, at, strict=False):
        if c is None and extent is not None:
            run_time = any(isinstance(leaf, Extent) for leaf in shapes.leaves(mode.shape))
            tiles: Any = UNKNOWN if mode.size is UNKNOWN else -(-mode.size // extent)
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
def _alloca(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    found = shapes.kind(op.result_types[0])
    layout = layout_of(op, [])
    if found.space == "rmem":
        return View(Pointer("rmem", 0, name=str(op.results[0])), layout, found.bits, found.swizzle)
    if found.space != "smem":
        raise CannotFollow(f"an allocation in {found.space}")
    begin = -(-f.allocated // found.align) * found.align
    f.allocated = begin + layout.size * found.bits // 8
    return View(Pointer("smem", begin, base=begin), layout, found.bits, found.swizzle)


@handles("cute_nvgpu.atom.make_non_exec_tiled_tma_load", "cute_nvgpu.atom.make_non_exec_tiled_tma_store")
@handles("cute_nvgpu.atom.make_non_exec_tiled_tma_reduce")
def _make_tma(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    layout = layout_of(op, [args[0]], 1)
    swizzle, tensor = shapes.swizzle_of(op.operand_types[1]), args[0].pointer.name
    values = {"parts": op.get("num_multicast", 1), "swizzle": swizzle, "tensor": tensor}
    return Atom(op.result_types[0], values), View(Pointer("coord", UNKNOWN), layout, 32, Swizzle(0, 4, 3))


@handles("cute_nvgpu.atom.make_exec_tma")
def _exec_tma(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0], args[0].values)


@handles("cute_nvgpu.atom.tma_partition")
def _tma_partition(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    """Of each box that several CTAs share each loads a part: the view begins there, its type shows the whole still."""
    _, coordinate, ctas, tile, *targets = args
    layout = layout_of(op, [tile])
    number = f.integer(ctas.offset(coordinate), "which part of a tile a CTA loads")
    elements = layout.modes[0].offset(number * (box_size(layout) // ctas.size))
    mine = viewed(op, tile.moved(elements), layout)
    others = [viewed(op, t.pointer, layout_of(op, [t], n + 1), n + 1) for n, t in enumerate(targets)]
    return mine, *others


def box_size(layout: Lay) -> int:
    """Elements of one box of TMA, of a layout ((BOX, BOXES), other modes)."""
    return layout.modes[0].modes[0].size


@handles("cute.tiled.copy.partition_S", "cute.tiled.copy.partition_D")
def _copy_partition(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    _, source, thread = args
    layout = layout_of(op, [source])
    if source.pointer.space not in shapes.FOLLOWED:
        return viewed(op, source.pointer, layout)
    tv, tile = shapes.tv_of(op.operand_types[0])
    thread = shapes.thread_of(thread)
    if thread is UNKNOWN:
        raise CannotFollow("which thread's share of a copy it is depends on data")
    threads = tuple(sorted({int(t) for _, t in f.by_lane(thread)}))
    warp = shapes.covered(tv, tile, source.layout, source.bits, threads)
    lanes = _begins(tuple(f.by_lane(thread)), tv.modes[0], tuple(tile), source.layout, source.bits)
    return viewed(op, replace(source.pointer, warp=warp, lanes=lanes), layout)


@lru_cache(maxsize=4096)
def _begins(numbers: tuple[Any, ...], threads: Lay, tile: tuple[Lay, ...], layout: Lay, bits: int) -> np.ndarray:
    """Bytes from a view's beginning to each lane's first element of it; lanes that take no part begin with it."""
    begins = np.zeros(LANES, np.int64)
    for lane, number in numbers:
        place, at = threads.offset(int(number)), 0
        for mode, taken in zip(layout.modes, tile, strict=False):
            at += mode.offset(taken.offset(taken.coordinate(place % taken.size)))
            place //= taken.size
        begins[lane] = at * bits // 8
    begins.flags.writeable = False  # all who ask share it
    return begins


@handles("cute.tiled.mma.partition")
def _mma_partition(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    _, source, thread = args
    layout = layout_of(op, [source])
    if source.pointer.space != "smem":
        return viewed(op, source.pointer, layout)
    if any(
        mma in op.operand_types[0] for mma in ("sm80.mma", "sm89.mma")
    ):  # only its shape is of use: mma.sync takes registers
        return viewed(op, source.moved(UNKNOWN), layout)
    return viewed(op, source.moved(source.layout.offset(_first_row(f, op, thread, source))), layout)


def _first_row(f: Interpreter, op: Operation, thread: Any, source: View) -> Any:
    """The coordinate in a tile of A or B where the share of this warpgroup (or CTA of a pair) begins."""
    text, operand = op.operand_types[0], op.attributes["operand_id"]
    arch, shape, atoms = shapes.mma_of(text)
    if "[_;_;_]" not in text or operand > 1:
        raise CannotFollow(f"an MMA of type {text}")
    if arch == 100 and "num_cta = 1," in text:
        return (None,) * len(source.layout.modes)  # one CTA has it all
    if arch != 90:
        raise CannotFollow(f"an MMA of type {text}")
    thread = shapes.thread_of(thread)
    warpgroup = f.integer(thread // 128 if thread is not UNKNOWN else UNKNOWN, "which warpgroup's share it is")
    place = shapes.place_in(atoms, warpgroup)
    rest = (None,) * (len(source.layout.modes) - 1)
    return (place[operand] * shape[operand], *rest)


@handles("cute.mma.make_fragment")
def _make_fragment(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    """Descriptors of a tile in shared memory; or the place of accumulators."""
    source, layout = args[1], layout_of(op, [])
    found = shapes.kind(op.result_types[0])
    if found.space == "tmem":
        return View(Pointer("tmem", UNKNOWN), layout, found.bits, found.swizzle)
    if found.space == "rmem":
        return View(Pointer("rmem", 0, name=str(op.results[0])), layout, found.bits, found.swizzle)
    if not isinstance(source, View) or source.pointer.space != "smem":
        raise CannotFollow(f"a fragment of type {op.result_types[0]}")
    box = shapes.bytes_of(source.layout.modes[0], source.bits)
    return View(replace(source.pointer, warp=box), layout, 128, source.swizzle)


@handles("cute_nvgpu.atom.make_tmem_copy")
def _tmem_copy(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0])


@handles("nvvm.shfl.sync")
def _shuffle(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    _, value, lane, _ = args
    if value is UNKNOWN:  # data
        return UNKNOWN
    if op.attributes["kind"] != "idx":
        raise CannotFollow(f"a shuffle of kind {op.attributes['kind']}")
    if isinstance(value, np.ndarray):
        return UNKNOWN if lane is UNKNOWN else value[lane]
    return value


@handles("nvvm.redux.sync", "nvvm.atomicrmw")
def _reduction(f: Interpreter, op: Operation, args: list[Any]) -> Any:
    """Of data: of a warp's lanes, or into memory where no warp of the launch reads what comes of it."""
    return UNKNOWN
