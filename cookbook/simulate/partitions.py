"""Partitions: which elements of a tile are a thread's, of a tiled copy and of a tiled MMA; fragments and descriptors.

A partition's type says how a thread's elements lie, seen from the first; where the first one is, each lane computes.
Of a copy it is held for every element against the place that the copy's (thread, value) layout names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.model.tmem import ld_coords
from cookbook.model.wgmma import d_coords
from cookbook.simulate import types
from cookbook.simulate.integers import compact
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.types import fitted, measured, mma_of, place_in, spelled, thread_of, tv_of
from cookbook.simulate.values import (
    LANES,
    UNKNOWN,
    CannotFollow,
    Fault,
    Lay,
    Pointer,
    View,
    leaves,
    nested,
    offset,
)
from cookbook.simulate.views import divided, made, registers
from cookbook.simulate.warp import Warp, handles

NARROW = re.compile(r"atom\.ldsm<val_type = [a-z]+(8)\D")  # of elements that are not of 16 bits
MATRIX = re.compile(r"atom\.(ldsm|stsm)<.*?num_matrices = (\d), ([nt])>")
SCALES_COPY = "s2t_copy"  # tcgen05.cp
TENSOR = re.compile(r"atom\.tmem_(load|store)<\w+, (\d+) DP, (\d+) bit, x(\d+)")
ELEMENTS = re.compile(r"atom\.tmem_(?:load|store)<(\w+),")


# --- tiled copies ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def share(text: str, memory: bool, threads: tuple[int, ...]) -> np.ndarray:
    """(32, values): the places in the tile of a copy that are each lane's, the first extent of the tile fastest.

    Args:
        text: the type of the tiled copy.
        memory: the side of an ldmatrix, stmatrix or tcgen05.ld that is no registers.
        threads: of the copy, one for each lane.
    """
    thread, value = tv_of(text)[0].modes
    lanes = np.array(threads, np.int64)
    values = value.offsets()
    warp = threads[0] // LANES
    together = (MATRIX.search(text) and memory) or (TENSOR.search(text) and not memory)
    if together and threads != tuple(range(LANES * warp, LANES * (warp + 1))):
        raise CannotFollow("a share of matrices, or of tensor memory, by something else than the lane")
    if memory and (found := MATRIX.search(text)):
        bits = int(width[1]) if (width := NARROW.search(text)) else 16
        return _rows(thread, values, warp, int(found[2]), found[3] == "t", bits)
    if not memory and (found := TENSOR.search(text)):
        return _cells(thread, values, warp, found, held_by_register(text))
    begins = np.array(offset(thread.shape, thread.stride, lanes), np.int64) + np.zeros(LANES, np.int64)
    return begins[:, None] + values[None, :]


def _rows(thread: Lay, values: np.ndarray, warp: int, matrices: int, transposed: bool, bits: int) -> np.ndarray:
    """Addresses of ldmatrix and stmatrix, PTX ISA: lane l has that of row l % 8 of matrix l / 8, of 16 bytes."""
    held = 32 // bits  # elements of a register
    lane, inside = np.arange(LANES)[:, None], np.arange(4 * held)[None, :]
    matrix, row = lane // 8 % matrices, lane % 8
    holder = inside * 4 + row // 2 if transposed else row * 4 + inside // held  # the lane that has it in a register
    which = (row % 2 if transposed else inside % held) + held * matrix
    begins = np.asarray(offset(thread.shape, thread.stride, LANES * warp + holder), np.int64)
    each = held * matrices
    blocks = [begins + values[which + each * rest] for rest in range(len(values) // each)]
    return np.concatenate(blocks, axis=1)


# By lanes of tensor memory and bits of a copy's type, as PTX calls the shape.
TENSOR_SHAPES = {(32, 32): "32x32b", (16, 32): "16x32bx2", (16, 128): "16x128b", (16, 256): "16x256b"}


def held_by_register(text: str) -> int:
    """Elements of 32 bits of a copy of tensor memory."""
    return 32 // types.element_bits(ELEMENTS.search(text)[1])  # type: ignore[index]


def _cells(thread: Lay, values: np.ndarray, warp: int, found: re.Match[str], held: int = 1) -> np.ndarray:
    """Elements of tcgen05.ld and .st, which a lane's registers hold: PTX ISA, "Data Movement Shape"."""
    tall, bits, times = int(found[2]), int(found[3]), int(found[4])
    if (tall, bits) not in TENSOR_SHAPES:
        raise CannotFollow(f"a copy of tensor memory of {tall} lanes and {bits} bits")
    shape = TENSOR_SHAPES[tall, bits]
    row, column = np.moveaxis(ld_coords(shape, times, times if shape == "16x32bx2" else 0), 2, 0)
    begin = int(np.asarray(offset(thread.shape, thread.stride, LANES * warp)))
    cells = begin + values.reshape(-1, tall, (column.max() + 1) * held)  # (rest, row, element)
    inside = held * column[..., None] + np.arange(held)
    return cells[:, row[..., None], inside].transpose(1, 0, 2, 3).reshape(LANES, -1)


@handles("cute.tiled.copy.partition_S", "cute.tiled.copy.partition_D")
def _copy_partition(f: Warp, op: Operation, args: list[Any]) -> Any:
    _, source, thread = args
    text = op.operand_types[0]
    if SCALES_COPY in text:  # one thread copies all of it: its share begins where the view does
        layout, known = spelled(op.result_types[0])
        if not known:
            raise CannotFollow("a share of scale factors that is known only at run time")
        return made(op, source.pointer, layout)
    _, tile = tv_of(text)
    thread = thread_of(thread)
    numbers = np.broadcast_to(np.asarray(thread, np.int64), (LANES,))
    size = tv_of(text)[0].modes[0].size
    if (numbers[f.active] >= size).any() or (numbers[f.active] < 0).any():
        raise Fault(f"a copy of {size} threads: got the share of thread {int(numbers[f.active].max())}")
    memory = _is_memory_side(text, op.name.endswith("_S"))
    places = share(text, memory, tuple(np.where(f.active, numbers, 0).tolist()))
    modes = source.layout.modes
    position = _positions(places, tile)
    begins = sum_of(modes[k].shape and offset(modes[k].shape, modes[k].stride, p[:, 0]) for k, p in enumerate(position))
    extents = _extents(op.result_types[0], source, tile)
    layout = measured(op.result_types[0], extents, _place(source, tile, places, position, op.result_types[0]))
    view = made(op, source.moved(begins), layout)
    if source.pointer.space != "coord":
        f.memo(("agrees", int(numbers[0])), lambda: _agrees(view, source, position, begins))
    return view


def _is_memory_side(text: str, source_side: bool) -> bool:
    """Return whether a side of a copy is that of shared or tensor memory: as a view of such, whatever it is applied
    to."""
    if found := MATRIX.search(text):
        return source_side == (found[1] == "ldsm")
    if found := TENSOR.search(text):
        return source_side == (found[1] == "load")
    return False


def sum_of(parts: Any) -> Any:
    total: Any = 0
    for part in parts:
        total = part + total
    return total


def _positions(places: np.ndarray, tile: tuple[Lay, ...]) -> list[np.ndarray]:
    """For each mode of the tile: (32, values), the index in that mode of the view that is partitioned."""
    found = []
    for mode in tile:
        index = places % mode.size
        places = places // mode.size
        found.append(mode.offsets()[index])
    return found


def _extents(text: str, source: View, tile: tuple[Lay, ...]) -> list[Any] | None:
    """All extents of a partition: of the values as spelled, of the tiles, of the modes that are left whole."""
    pattern, known = spelled(text)
    if known:
        return None
    parts = pattern.shape
    found = list(leaves(parts[0]))
    for number, part in enumerate(parts[1:]):
        mode = source.layout.modes[number]
        spelt = list(leaves(part))
        if number >= len(tile):
            found += spelt if _divides(part, mode) else list(leaves(mode.shape))
        elif any(isinstance(leaf, str) for leaf in spelt):
            found.append(-(-mode.size // tile[number].size))
        else:
            found += spelt
    return found


def _divides(part: Any, mode: Lay) -> bool:
    """Return whether a mode that is left whole has more extents in the partition: a swizzle divides them."""
    spelt = list(leaves(part))
    return len(spelt) != len(list(leaves(mode.shape))) and not any(isinstance(leaf, str) for leaf in spelt)


def _place(
    source: View, tile: tuple[Lay, ...], places: np.ndarray, position: list[np.ndarray], text: str
) -> Callable[[Any], Any]:
    """A coordinate of the partition, which has the type `text` -> its offset from the first element, in lane 0."""
    modes, shape = source.layout.modes, spelled(text)[0].shape
    first = [int(p[0, 0]) for p in position]

    def at(coordinate: Any) -> Any:
        value = int(_number(shape[0], coordinate[0]))
        total: Any = 0
        for k, mode in enumerate(modes):
            here = coordinate[1 + k] if 1 + k < len(coordinate) else 0
            if k < len(tile):
                index = int(position[k][0, value]) + _further(tile[k], int(_number(shape[1 + k], here)))
                if index != first[k]:
                    total = _difference(mode, index, first[k]) + total
            else:
                here = int(_number(shape[1 + k], here)) if _divides(shape[1 + k], mode) else here
                total = offset(mode.shape, mode.stride, here) + total
        return total

    return at


def _further(tile: Lay, number: int) -> int:
    """Where the `number`th tile of a mode begins: in the gaps of a tile that leaves any, then behind it."""
    begin, step = 0, 1
    for stride, extent in sorted(zip(leaves(tile.stride), leaves(tile.shape), strict=True)):
        if extent > 1:
            begin, number, step = begin + number % (stride // step) * step, number // (stride // step), stride * extent
    return begin + number * step


def _difference(mode: Lay, index: int, first: int) -> Any:
    a = offset(mode.shape, mode.stride, index)
    b = offset(mode.shape, mode.stride, first)
    return a + b * -1 if not isinstance(b, int) else a - b


def _number(shape: Any, coordinate: Any) -> Any:
    """Return which tile or instruction of a mode; a swizzle that does not leave strides alone divides its extent."""
    whole = isinstance(shape, tuple) and not any(isinstance(leaf, str) for leaf in leaves(shape))
    if not whole:
        return offset_of_index(coordinate)
    return offset(shape, nested(shape, iter(compact(leaves(shape)))), coordinate)


def offset_of_index(coordinate: Any) -> Any:
    """A rest coordinate: one number, or a nested tuple of which one leaf at most is not 0 and the first."""
    found = list(leaves(coordinate))
    if any(found[1:]):
        raise CannotFollow("a partition whose rest has several extents")
    return found[0]


def _agrees(view: View, source: View, position: list[np.ndarray], begins: Any) -> bool:
    """Return whether the type's layout of a thread's values is that of the copy.

    Raises:
        CannotFollow: it is not.
    """
    modes = source.layout.modes
    wanted = sum_of(offset(modes[k].shape, modes[k].stride, p) for k, p in enumerate(position))
    values = view.layout.modes[0]
    got = np.asarray(begins)[..., None] + values.offsets()[None, :]
    if got.shape[1] != np.shape(wanted)[1] or (got != wanted).any():
        values = f"{got.shape[1]} elements by {view.layout}"
        raise CannotFollow(
            f"a thread's share of a copy: got {values}; needed the elements of its (thread, value) layout"
        )
    return True


# --- tiled MMAs --------------------------------------------------------------------------------------------------


@handles("cute.tiled.mma.partition")
def _mma_partition(f: Warp, op: Operation, args: list[Any]) -> Any:
    _, source, thread = args
    operand = op.attributes["operand_id"]
    arch, shape, atoms = mma_of(op.operand_types[0])
    thread = thread_of(thread)
    if arch == 100:
        return _of_tensor_cores(f, op, source, thread, operand, shape)
    if not arch:
        return _of_threads(op, source, thread, operand, atoms)
    if operand == 2:
        return _accumulators(f, op, source, thread, arch, shape, atoms)
    if arch in (80, 89, 120):
        return _registers(f, op, source, thread, operand, shape, atoms)
    if arch != 90 or source.pointer.space not in ("smem", "coord"):
        raise CannotFollow(f"a partition of an operand in {source.pointer.space} by {op.operand_types[0]}")
    warpgroup = f.integer(thread // 128, "which warpgroup's share it is")
    place = place_in(atoms, warpgroup)
    at = (place[operand] * shape[operand], *(None,) * (len(source.layout.modes) - 1))
    by = offset(source.layout.shape, source.layout.stride, at)
    layout, known = spelled(op.result_types[0])
    if not known:
        raise CannotFollow("a share of an MMA that is known only at run time")
    return made(op, source.moved(by), layout)


def _of_threads(op: Operation, source: View, thread: Any, operand: int, atoms: Lay) -> View:
    """A thread's elements for multiply-adds: the first is where its atom is, in the order of the permutation."""
    tiles = re.search(r'permutation_MNK = <"([^"]*)">', op.operand_types[0])
    permuted = types.tiler(tiles[1]) if tiles else (None,) * 3
    threads = np.broadcast_to(np.asarray(thread, np.int64), (LANES,))
    places = np.array([place_in(atoms, int(number)) for number in threads])
    modes = ((0, 2), (1, 2), (0, 1))[operand]
    at = [places[:, k] if (tile := permuted[k]) is None else tile.offsets()[places[:, k]] for k in modes]
    layout, known = spelled(op.result_types[0])
    if not known:
        raise CannotFollow("a share of an MMA that is known only at run time")
    return made(op, source.moved(offset(source.layout.shape, source.layout.stride, _first_two(source, *at))), layout)


def _registers(
    f: Warp, op: Operation, source: View, thread: Any, operand: int, shape: tuple[int, int, int], atoms: Lay
) -> View:
    """A thread's elements of A or B for mma.sync: the first is at row lane / 4, k 2 (lane % 4), or 4 of 8 bits."""
    threads = np.broadcast_to(np.asarray(thread, np.int64), (LANES,))
    place = place_in(atoms, f.integer(threads // LANES, "which warp's share it is"))
    lane = threads % LANES
    rows = lane // 4 + place[operand] * shape[operand]
    k = shape[2] // 8 * (lane % 4)
    layout, known = spelled(op.result_types[0])
    at = offset(source.layout.shape, source.layout.stride, _first_two(source, rows, k))
    if known:
        return made(op, source.moved(at), layout)
    if any(isinstance(leaf, str) for leaf in leaves(layout.shape)):
        raise CannotFollow("a share of an MMA that is known only at run time")
    strides = [UNKNOWN if isinstance(leaf, str) else leaf for leaf in leaves(layout.stride)]
    return made(op, source.moved(UNKNOWN), Lay(layout.shape, nested(layout.stride, iter(strides))))  # a shape alone


def _first_two(source: View, row: Any, column: Any) -> tuple[Any, ...]:
    return (row, column, *(None,) * (len(source.layout.modes) - 2))


def fragment(arch: int, n: int) -> np.ndarray:
    """(threads, values, 2): the (row, column) in D of each of a thread's accumulators, of one instruction."""
    if arch == 90:
        return d_coords(n)
    lane, value = np.arange(LANES)[:, None], np.arange(4)[None, :]
    return np.stack(np.broadcast_arrays(lane // 4 + 8 * (value // 2), 2 * (lane % 4) + value % 2), axis=-1)


def _accumulators(
    f: Warp, op: Operation, source: View, thread: Any, arch: int, shape: tuple[int, int, int], atoms: Lay
) -> View:
    """The accumulators of a thread: where in a tile of C, or of coordinates, each of them belongs."""
    m, n, _ = shape
    coords = fragment(arch, n)
    threads = np.broadcast_to(np.asarray(thread, np.int64), (LANES,))
    group = f.integer(threads // len(coords), "which warp's or warpgroup's share it is")
    down, across, _ = place_in(atoms, group)
    mine = coords[threads % len(coords)]  # (32, values, 2)
    rows, columns = mine[..., 0] + down * m, mine[..., 1] + across * n
    modes = source.layout.modes
    if len(modes) < 2:
        raise CannotFollow("a partition of a tile of one mode")

    def place(row: Any, column: Any) -> Any:
        (a, b) = modes[:2]
        return offset(a.shape, a.stride, row) + offset(b.shape, b.stride, column)

    step_m, step_n = m * atoms.modes[0].size, n * atoms.modes[1].size
    first_row, first_column = rows[0, 0], columns[0, 0]

    def at(coordinate: Any) -> Any:
        value = sum(c << i for i, c in enumerate(leaves(coordinate[0]))) if arch == 90 else _pair(coordinate[0])
        row = rows[0, value] - first_row + step_m * _number(pattern.shape[1], coordinate[1])
        column = columns[0, value] - first_column + step_n * _number(pattern.shape[2], coordinate[2])
        total = place(int(row), int(column))
        for mode, c in zip(modes[2:], coordinate[3:], strict=True):
            total = offset(mode.shape, mode.stride, c) + total
        return total

    pattern, known = spelled(op.result_types[0])
    extents = None
    if not known and any(isinstance(leaf, str) for leaf in leaves(pattern.shape)):
        extents = [*leaves(pattern.shape[0]), -(-modes[0].size // step_m), -(-modes[1].size // step_n)]
        extents += [leaf for mode in modes[2:] for leaf in leaves(mode.shape)]
    layout = measured(op.result_types[0], extents, at)
    begins = place(rows[:, 0], columns[:, 0])
    return made(op, source.moved(begins), layout)


def _pair(coordinate: Any) -> int:
    a, b = leaves(coordinate)
    return int(a + 2 * b)


def _of_tensor_cores(
    f: Warp, op: Operation, source: View, thread: Any, operand: int, shape: tuple[int, int, int]
) -> View:
    """tcgen05: one CTA has all of a tile; each of a pair has its half of the rows, of C's too."""
    layout, known = spelled(op.result_types[0])
    pair = "num_cta = 2" in op.operand_types[0]
    by: Any = 0
    modes = source.layout.modes
    if pair:
        rank = f.integer(thread, "which CTA of a pair it is")
        extent = shape[0] if operand != 1 else shape[1]
        by = offset(modes[0].shape, modes[0].stride, rank * (extent // 2))
    if not known:
        layout = _tensor_layout(op.result_types[0], modes, operand, shape, pair)
    pointer = source.moved(by) if not (isinstance(by, int) and by == 0) else source.pointer
    return made(op, pointer, layout)


def _tensor_layout(text: str, modes: tuple[Lay, ...], operand: int, shape: tuple[int, int, int], pair: bool) -> Lay:
    """((rows, columns), rest of rows, rest of columns, whole modes...) of a view known only at run time."""
    sizes = {0: (shape[0], shape[2]), 1: (shape[1], shape[2]), 2: (shape[0], shape[1])}[operand]
    tiles, rests = zip(*(divided(mode, size) for mode, size in zip(modes, sizes, strict=False)), strict=True)
    if pair:
        tiles = (divided(modes[0], sizes[0] // 2)[0], tiles[1])
    others = [(e, s) for mode in modes[2:] for e, s in zip(leaves(mode.shape), leaves(mode.stride), strict=True)]
    parts = [leaf for part in (*tiles, *rests, others) for leaf in part]
    return fitted(text, [extent for extent, _ in parts], [stride for _, stride in parts])


@handles("cute.mma.make_fragment")
def _make_fragment(f: Judge, op: Operation, args: list[Any]) -> Any:
    """Descriptors of a tile in shared memory; or the place of accumulators."""
    source = args[1]
    layout, _ = spelled(op.result_types[0])
    found = types.kind(op.result_types[0])
    if found.space == "tmem":
        return View(Pointer("tmem", 0), layout, found.bits, kind="f32")
    if found.space == "rmem":
        return registers(f, op)
    if not isinstance(source, View) or source.pointer.space != "smem":
        raise CannotFollow(f"a fragment of type {op.result_types[0]}")
    pointer = replace(source.pointer, tile=source)  # so that a view made of the pointer alone knows what it describes
    return View(pointer, layout, 128, source.swizzle, tile=source, kind=source.kind)


@handles("cute_nvgpu.atom.get_copy_s2t_smem_desc_view")
def _descriptors(f: Warp, op: Operation, args: list[Any]) -> Any:
    layout, _ = spelled(op.result_types[0])
    return View(args[1].pointer, layout, 128, args[1].swizzle, tile=args[1])
