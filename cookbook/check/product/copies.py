"""Follows copies: by TMA, by ldmatrix and stmatrix, by cp.async, by loads and stores; and what registers hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.interpreter import Atom
from cookbook.check.pipeline.shapes import CannotFollow, Lay
from cookbook.check.product import origins
from cookbook.check.product.access import aligned, loaded, memory_of, operand_of, read, smem_addresses, write
from cookbook.check.product.barriers import barrier_at
from cookbook.check.product.follower import LANES, Data, Fault, Follower, follows, refused
from cookbook.check.product.partitions import MATRIX, TENSOR
from cookbook.check.product.places import PLAIN, Arith, Ptr, View, fitted, offset, spelled
from cookbook.check.product.views import coordinates_of
from cookbook.model import tma
from cookbook.simulate.trace import Operation
from cookbook.swizzle import Swizzle

COPIES: dict[str, Callable[[Follower, Any, View, View], None]] = {}  # of other modules, by what their types hold


@follows("cute.copy", "cute.copy_atom_call")
def _copy(f: Follower, op: Operation, args: list[Any]) -> None:
    atom, source, target = args[:3]
    text = atom.type if isinstance(atom, Atom) else op.operand_types[0]
    if other := next((copy for name, copy in COPIES.items() if name in text), None):
        other(f, atom, source, target)
    elif "tma_load" in text:
        _tma_load(f, atom, source, target)
    elif "tma_store" in text:
        _tma_store(f, atom, source, target)
    elif "dsmem_store" in text:
        _store_to_cluster(f, atom, source, target)
    elif found := MATRIX.search(text):
        (_ldmatrix if found[1] == "ldsm" else _stmatrix)(f, source, target, int(found[2]), found[3] == "t")
    elif found := TENSOR.search(text):
        _tensor_load(f, source, target, found)
    elif re.search(r"universal_copy|simt_async_copy|simt_sync_copy|atom\.g2r<", text):
        _software_copy(f, text, source, target, args[3] if len(args) > 3 else None)
    else:
        raise CannotFollow(f"a copy of type {text[:120]}")


# --- TMA ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A tensor map, and what one instruction copies: PTX ISA, "Tensors". Dimension 0 is the contiguous one."""

    tensor: View  # in global memory
    modes: tuple[int, ...]  # of the tensor, by dimension
    extents: tuple[int, ...]  # of the box, in elements, by dimension
    swizzle: Swizzle
    parts: int  # CTAs of a multicast that each copy a part of the box

    @property
    def part(self) -> tuple[int, ...]:
        """The box of one CTA's copy: the last dimensions are divided."""
        found, left = list(self.extents), self.parts
        for number in reversed(range(len(found))):
            take = min(left, found[number])
            found[number], left = -(-found[number] // take), -(-left // take)
        return tuple(found)


@follows("cute_nvgpu.atom.make_non_exec_tiled_tma_load", "cute_nvgpu.atom.make_non_exec_tiled_tma_store")
@follows("cute_nvgpu.atom.make_non_exec_tiled_tma_reduce")
def _make_tma(f: Follower, op: Operation, args: list[Any]) -> Any:
    tensor = args[0]
    basis = re.search(r'tma_gbasis = <"([^"]*)">', op.result_types[0])
    if basis is None or "reduce" in op.name:
        raise CannotFollow(f"a tensor map of type {op.result_types[0]}")
    box = shapes.lay(basis[1])
    extents = tuple(shapes.leaves(box.shape))
    modes = tuple(int(str(leaf).split("@")[1]) for leaf in shapes.leaves(box.stride))
    swizzle = re.search(r"S<(\d+),(\d+),(\d+)>", op.operand_types[1])
    known = Swizzle(*map(int, swizzle.groups())) if swizzle else PLAIN
    pattern, _ = spelled(op.result_types[1])
    coordinates = Lay(tensor.layout.shape, pattern.stride)
    made = Box(tensor, modes, extents, known, op.get("num_multicast", 1))
    return Atom(op.result_types[0], {"box": made}), View(Ptr("coord", Arith({})), coordinates, 32)


@follows("cute_nvgpu.atom.tma_partition")
def _tma_partition(f: Follower, op: Operation, args: list[Any]) -> Any:
    """Of a tile that several CTAs share each copies a part of every box: the views begin there."""
    _, coordinate, ctas, tile, *others = args
    number = f.integer(offset(ctas.shape, ctas.stride, coordinate), "which part of a tile a CTA copies")
    found = []
    for place, source in enumerate((tile, *others)):
        layout, known = spelled(op.result_types[place])
        if not known:
            layout = _partitioned(op.result_types[place], source)
        whole = layout.modes[0]
        size = whole.modes[0].size // ctas.size
        by = offset(whole.shape, whole.stride, number * size) if number else 0
        pointer = source.moved(by) if number else source.pointer
        found.append(View(pointer, layout, source.bits, source.swizzle, kind=source.kind))
    return tuple(found)


def _partitioned(text: str, source: View) -> Lay:
    """((TMA, rest of the tile), other modes): the extents of the other modes are those of the source."""
    layout, _ = spelled(text)
    rest = [leaf for mode in source.layout.modes[1:] for leaf in shapes.leaves(mode.shape)]
    strides = [leaf for mode in source.layout.modes[1:] for leaf in shapes.leaves(mode.stride)]
    extents = [*shapes.leaves(layout.shape[0]), *rest]
    return fitted(text, extents, [*shapes.leaves(layout.stride[0]), *strides])


def _boxes(box: Box, coordinates: View, memory: View) -> list[tuple[tuple[int, ...], int]]:
    """For each instruction of a copy: (origin by dimension, byte address in shared memory)."""
    one = int(np.prod(box.extents))
    if memory.layout.size % one:
        raise CannotFollow(f"a copy of {memory.layout.size} elements by boxes of {box.extents}")
    found = []
    for number in range(memory.layout.size // one):
        at = offset(coordinates.layout.shape, coordinates.layout.stride, _from(coordinates.layout, number * one))
        place = coordinates.pointer.address + at if number else coordinates.pointer.address
        origin = tuple(place.at(d) for d in range(len(box.modes)))
        by = offset(memory.layout.shape, memory.layout.stride, _from(memory.layout, number * one)) if number else 0
        found.append((origin, memory.pointer.address + by * memory.bits // 8))
    return found


def _from(layout: Lay, index: int) -> Any:
    return layout.coordinate(index) if isinstance(layout.shape, tuple) else index


def _elements(box: Box, origin: tuple[int, ...], unit: int) -> np.ndarray:
    """(units,), dimension 0 fastest: byte addresses in global memory of what a box holds; -1 outside of the tensor.

    Args:
        box: what is copied.
        origin: its first element, by dimension.
        unit: bytes that are told apart: those of an element of the operand.
    """
    bits = box.tensor.bits
    total, inside = np.zeros(1, np.int64), np.ones(1, bool)
    shape, stride = list(shapes.leaves(box.tensor.layout.shape)), list(shapes.leaves(box.tensor.layout.stride))
    for d, mode in enumerate(box.modes):
        if d == 0:
            at = origin[0] * bits // 8 + np.arange(0, box.part[0] * bits // 8, unit, dtype=np.int64)
            fits, by = (at >= 0) & (at < shape[mode] * bits // 8), at
        else:
            at = origin[d] + np.arange(box.part[d], dtype=np.int64)
            fits, by = (at >= 0) & (at < shape[mode]), at * stride[mode] * bits // 8
        total = (by[:, None] + total[None, :]).ravel()
        inside = (fits[:, None] & inside[None, :]).ravel()
    return np.where(inside, box.tensor.pointer.address + total, -1)


@lru_cache(maxsize=4096)
def box_addresses(base: int, count: int, size: int, swizzle: Swizzle) -> np.ndarray:
    """Where the elements of a box lie in shared memory: one after the other, moved by the swizzle of the address."""
    return swizzle(base + size * np.arange(count, dtype=np.int64))


def _checked_box(f: Follower, box: Box, origin: tuple[int, ...], base: int, store: bool) -> None:
    """The rules of `cookbook.model.tma`."""
    size = max(box.tensor.bits // 8, 1)
    key = ("box", box.part, box.swizzle, base % 1024, origin[0] * size % 16, min(origin) < 0, store)

    def look() -> bool:
        try:
            (width, height, *_), (column, row, *_) = (*box.part, 1), (*origin, 0)
            tma.check_box(base, (height, width), _mode(box.swizzle), size)
            tma.check_origin((row, column), size, store=store)
        except ValueError as error:
            raise refused("TMA", error) from None
        return True

    f.memo(key, look)


def _mode(swizzle: Swizzle) -> int:
    try:
        return tma.swizzle_mode(swizzle)
    except ValueError as error:
        raise refused("TMA", error) from None


def _integers(f: Follower, origin: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(f.integer(x, "a coordinate of TMA") for x in origin)


def _tma_load(f: Follower, atom: Atom, source: View, target: View) -> None:
    box: Box = atom.values["box"]
    barrier = atom.values["tma_bar"]
    ranks = f.multicast(atom.values.get("mcast_mask"), f.place.rank)
    if f.barrier(barrier)[0] != f.place.rank:
        raise CannotFollow("a TMA copy that reports to another CTA's barrier")
    if max(ranks, default=0) >= len(f.cta.cluster.ctas):
        raise Fault(f"a multicast to CTA {max(ranks)} of a cluster of {len(f.cta.cluster.ctas)}")
    pair = 2 if "num_cta = 2" in atom.type else 1
    operand = operand_of(f, box.tensor)
    size = operand.bits // 8
    for origin, base in _boxes(box, source, target):
        origin, base = _integers(f, origin), f.integer(base, "the address of a copy")
        _checked_box(f, box, origin, base, store=False)
        ids = f.launch.known(
            (operand.name, box.tensor.bits, box.modes, box.part, origin), lambda o=origin: _loaded(f, box, operand, o)
        )
        addresses = box_addresses(base, len(ids), size, box.swizzle)
        for rank in ranks:
            f.cta.cluster.ctas[rank].memory.write(addresses, ids, size)
            barrier_at(f, barrier, rank // pair * pair).arrive(0, -len(ids) * size)


def _loaded(f: Follower, box: Box, operand: Any, origin: tuple[int, ...]) -> np.ndarray:
    if (early := operand.base - int(np.min(box.tensor.pointer.address))) > 0:
        # A kernel that did so failed on an H100 with illegal accesses, though no coordinate meant what lies there.
        raise Fault(f"{operand.name}: got a TMA load of a tensor that begins {early} bytes before it; needed none")
    addresses = _elements(box, origin, operand.bits // 8)
    ids = operand.ids(addresses)
    filled = addresses < 0
    if (ids[~filled] == origins.OUTSIDE).any():
        at = addresses[~filled][ids[~filled] == origins.OUTSIDE][:1]
        row, column, _ = operand.places(at)
        shape = f"{operand.name} is {operand.shape[0]} x {operand.shape[1]}"
        raise Fault(f"{operand.name}: got a TMA read of row {row[0]}, column {column[0]}; needed one inside: {shape}")
    return np.where(filled, origins.FILL, ids)


def _tma_store(f: Follower, atom: Atom, source: View, target: View) -> None:
    box: Box = atom.values["box"]
    if (operand := operand_of(f, box.tensor)).name != "C":
        raise Fault(f"got a store to {operand.name}; needed C alone")
    size = max(box.tensor.bits // 8, 1)
    for _ in range(int(f.active.sum())):  # each thread that gets here stores
        for origin, base in _boxes(box, target, source):
            origin, base = _integers(f, origin), f.integer(base, "the address of a copy")
            _checked_box(f, box, origin, base, store=True)
            there = _elements(box, origin, size)
            found = f.cta.memory.read(box_addresses(base, len(there), size, box.swizzle), size)
            inside = there >= 0
            if inside.any():
                f.launch.stored.store(there[inside], found[inside], f.line)


# --- in the cluster ----------------------------------------------------------------------------------------------


def _store_to_cluster(f: Follower, atom: Atom, source: View, target: View) -> None:
    """st.async: each lane's registers go to a CTA of the cluster, and its bytes are told to a barrier there."""
    write(f, target, read(f, source))
    cta = f.integer(target.pointer.cta, "the CTA that is written to")
    barrier = atom.values["mbar_ptr"]
    there = f.integer(barrier.cta, "the CTA of a barrier")
    if there != cta:
        raise Fault(f"st.async to CTA {cta} that reports to a barrier of CTA {there}")
    amount = target.layout.size * target.bits // 8 * int(f.active.sum())
    barrier_at(f, barrier).arrive(0, -amount)


# --- matrices ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def held(transposed: bool, bits: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """(32, 2) rows and columns of an 8 x 8 matrix: which two elements a lane holds, PTX ISA "ldmatrix".

    Of elements of 8 bits a row has 16, and a lane holds four: the same 32 bits.
    """
    each = 32 // bits
    lane, which = np.arange(LANES)[:, None], np.arange(each)[None, :]
    along, across = np.broadcast_arrays(lane // 4, each * (lane % 4) + which)
    return (across, along) if transposed else (along, across)


def _row_addresses(f: Follower, view: View, matrices: int) -> np.ndarray:
    """(instructions, matrices, 8): where the rows of the matrices begin."""
    if not f.active.all():
        raise CannotFollow("ldmatrix or stmatrix by some lanes of a warp")
    if view.bits not in (8, 16):
        raise CannotFollow(f"ldmatrix or stmatrix of elements of {view.bits} bits")
    row = 128 // view.bits  # elements of a matrix's row
    offsets = view.offsets().reshape(-1, row)
    if (offsets != offsets[:, :1] + np.arange(row)).any():
        raise Fault(f"ldmatrix or stmatrix of rows whose elements are not adjacent: {view.layout}")
    rows = smem_addresses(view)[:, ::row]  # (32, instructions)
    if (rows % 16).any():
        raise Fault(f"ldmatrix or stmatrix of a row at byte {int(rows[rows % 16 != 0][0])}; needed a multiple of 16")
    return rows.T[:, : 8 * matrices].reshape(-1, matrices, 8)


def _ldmatrix(f: Follower, source: View, target: View, matrices: int, transposed: bool) -> None:
    if transposed and source.bits != 16:
        raise CannotFollow(f"ldmatrix.trans of elements of {source.bits} bits")
    rows, size = _row_addresses(f, source, matrices), source.bits // 8
    columns = np.arange(0, 16, size)  # of a matrix, in bytes
    found = memory_of(f, source).read(rows[..., None] + columns, size)  # (instructions, matrices, row, column)
    row, column = held(transposed, source.bits)
    registers = found[:, :, row, column]  # (instructions, matrices, 32, elements of a register)
    write(f, target, registers.transpose(2, 0, 1, 3).reshape(LANES, -1))


def _stmatrix(f: Follower, source: View, target: View, matrices: int, transposed: bool) -> None:
    if target.bits != 16:
        raise CannotFollow(f"stmatrix of elements of {target.bits} bits")
    rows = _row_addresses(f, target, matrices)
    registers = read(f, source).reshape(LANES, -1, matrices, 2).transpose(1, 2, 0, 3)
    found = np.empty((*rows.shape, 8), np.int64)
    row, column = held(transposed)
    found[:, :, row, column] = registers
    memory_of(f, target).write(rows[..., None] + 2 * np.arange(8), found, 2)


def _tensor_load(f: Follower, source: View, target: View, found: re.Match[str]) -> None:
    """tcgen05.ld 32x32b: lane l of warp w has the columns of lane 32 (w mod 4) + l of tensor memory."""
    if found[1] != "load" or (found[2], found[3]) != ("32", "32"):
        raise CannotFollow(f"a copy of tensor memory: {found[0]}")
    if not f.active.all():
        raise CannotFollow("tcgen05.ld by some lanes of a warp")
    words = f.integer(source.pointer.address, "an address in tensor memory") // 4 + source.offsets()
    lane, column = f.cta.tensor.places(words)
    first = 32 * (f.place.warp % 4)
    if (lane < first).any() or (lane >= first + 32).any():
        raise Fault(
            f"warp {f.place.warp} reads lane {int(lane.min())} of tensor memory; needed {first} to {first + 31}"
        )
    cells = f.cta.tensor.cells[lane, column].reshape(-1, LANES, int(found[4]))
    write(f, target, cells.transpose(1, 0, 2).reshape(LANES, -1))


# --- loads and stores --------------------------------------------------------------------------------------------


def _software_copy(f: Follower, text: str, source: View, target: View, predicate: Any) -> None:
    width = re.search(r"(\d+) b>|copy_bits = (\d+)", text)
    bits = int(width[1] or width[2]) if width else source.bits
    mask = None
    if predicate is not None:
        mask = _mask(predicate, source)
    for view in (source, target):
        aligned(f, view, bits, mask)
    ids = read(f, source, mask)
    if mask is not None and "simt_async" in text:  # cp.async is told to read 0 bytes, and fills with zeros
        ids, mask = np.where(mask, ids, origins.FILL), None
    if len(target.offsets()) != ids.shape[1]:
        raise CannotFollow(f"a copy of {ids.shape[1]} elements to {len(target.offsets())}")
    write(f, target, ids, mask)


def _mask(predicate: View, source: View) -> np.ndarray:
    """(32, elements): a predicate for each piece of a copy, or for each element."""
    flags = predicate.pointer.array[:, predicate.pointer.address + predicate.offsets()].astype(bool)
    count = len(source.offsets())
    if count % flags.shape[1]:
        raise CannotFollow(f"a copy of {count} elements by {flags.shape[1]} predicates")
    return np.repeat(flags, count // flags.shape[1], axis=1)


@follows("cute.memref.load_vec")
def _load_all(f: Follower, op: Operation, args: list[Any]) -> Any:
    return loaded(args[0], read(f, args[0]))


@follows("cute.memref.store_vec")
def _store_all(f: Follower, op: Operation, args: list[Any]) -> None:
    value, view = args
    write(f, view, value.ids if isinstance(value, Data) else value)


@follows("cute.memref.load", "cute.ptr.load")
def _load(f: Follower, op: Operation, args: list[Any]) -> Any:
    view = _one(op, args)
    if view.pointer.space == "coord":
        return coordinates_of(op.result_types[0], view.pointer.address)
    return loaded(view, read(f, view))


@follows("cute.memref.store", "cute.ptr.store")
def _store(f: Follower, op: Operation, args: list[Any]) -> None:
    view, value = _one(op, args), args[-1]
    ids = value.ids if isinstance(value, Data) else np.broadcast_to(np.asarray(value, np.int64), (LANES,))[:, None]
    write(f, view, ids)


def _one(op: Operation, args: list[Any]) -> View:
    """The one element of a view at a coordinate."""
    view = args[0]
    if not isinstance(view, View):
        raise CannotFollow("an access by a bare pointer")
    at = view.moved(offset(view.layout.shape, view.layout.stride, args[1])) if len(args) > 1 else view.pointer
    return replace(view, pointer=at, layout=Lay(1, 0))
