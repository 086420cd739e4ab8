"""Copies: by TMA, by ldmatrix and stmatrix, by cp.async, by loads and stores, into a cluster and to tensor memory."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.simulate import types
from cookbook.simulate.integers import coordinates_of
from cookbook.simulate.judge import Judge
from cookbook.simulate.partitions import MATRIX, SCALES_COPY, TENSOR
from cookbook.simulate.raw import map_at
from cookbook.simulate.trace import Operation
from cookbook.simulate.types import fitted, spelled, swizzle_of
from cookbook.simulate.values import UNKNOWN, Arith, Atom, Box, Boxes, CannotFollow, Lay, Pointer, View, leaves, offset
from cookbook.simulate.warp import handles
from cookbook.swizzle import Swizzle

ONE = Lay(1, 0)


@handles("cute.copy", "cute.copy_atom_call")
def _copy(f: Judge, op: Operation, args: list[Any]) -> None:
    atom, source, target = args[:3]
    text = atom.type if isinstance(atom, Atom) else op.operand_types[0]
    if not isinstance(source, View) or not isinstance(target, View):
        raise CannotFollow(f"a copy of {op.operand_types[1]}")
    if SCALES_COPY in text:
        f.copy_scales(op, text, source, target)
    elif "tma_load" in text:
        _tma_load(f, op, atom, source, target)
    elif "tma_store" in text or "tma_reduce" in text:
        box = _map_of(f, atom)
        f.tma_store(op, box, _boxes(f, box, target, source), source)
    elif "dsmem_store" in text:
        cta = f.integer(target.pointer.cta, "the CTA that is written to")
        f.store_to_cluster(op, source, target, cta, f.barrier(atom.values["mbar_ptr"]))
    elif found := MATRIX.search(text):
        f.matrices(op, source, target, found[1] == "stsm", int(found[2]), found[3] == "t")
    elif found := TENSOR.search(text):
        f.tensor_copy(op, source, target, found)
    elif re.search(r"universal_copy|simt_async_copy|simt_sync_copy|atom\.(?:g2r|r2g)<", text):
        width = re.search(r"(\d+) b>|copy_bits = (\d+)", text)
        bits = int(width[1] or width[2]) if width else source.bits
        mask = _mask(f, args[3], source) if len(args) > 3 else None
        f.copy(op, source, target, bits, mask, "simt_async" in text)
    else:
        raise CannotFollow(f"a copy of type {text[:120]}")


def _mask(f: Judge, predicate: View, source: View) -> Any:
    """(32, elements): a predicate for each piece of a copy, or for each element; UNKNOWN if data decide."""
    flags = f.predicates(predicate)
    if flags is UNKNOWN:
        return UNKNOWN
    count = len(source.offsets())
    if count % flags.shape[1]:
        raise CannotFollow(f"a copy of {count} elements by {flags.shape[1]} predicates")
    return np.repeat(flags, count // flags.shape[1], axis=1)


# --- TMA ---------------------------------------------------------------------------------------------------------


@handles("cute_nvgpu.atom.make_non_exec_tiled_tma_load", "cute_nvgpu.atom.make_non_exec_tiled_tma_store")
@handles("cute_nvgpu.atom.make_non_exec_tiled_tma_reduce", "cute_nvgpu.atom.make_non_exec_2d_gather4_tma_load")
def _make_tma(f: Judge, op: Operation, args: list[Any]) -> Any:
    tensor = args[0]
    basis = re.search(r'tma_gbasis = <"([^"]*)">', op.result_types[0])
    if basis is None:
        raise CannotFollow(f"a tensor map of type {op.result_types[0]}")
    box = types.lay(basis[1])
    extents = tuple(leaves(box.shape))
    modes = tuple(int(str(leaf).split("@")[1]) for leaf in leaves(box.stride))
    pattern, _ = spelled(op.result_types[1])
    coordinates = Lay(tensor.layout.shape, pattern.stride)
    swizzle = swizzle_of(" ".join(op.operand_types[1:]))  # of the one layout of shared memory among them
    made = Box(tensor, modes, extents, swizzle, op.get("num_multicast", 1))
    return Atom(op.result_types[0], {"box": made}), View(Pointer("coord", Arith({})), coordinates, 32)


@handles("cute_nvgpu.get_tma_desc_addr")
def _place_of_map(f: Judge, op: Operation, args: list[Any]) -> Pointer:
    """Where the tensor map of a copy lies, for PTX that takes it."""
    return Pointer("tensor map", 0, array=args[0].values["box"])


@handles("cute_nvgpu.atom.tma_partition")
def _tma_partition(f: Judge, op: Operation, args: list[Any]) -> Any:
    """Begin the views at this CTA's part of every box, where several CTAs share a tile."""
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
    rest = [leaf for mode in source.layout.modes[1:] for leaf in leaves(mode.shape)]
    strides = [leaf for mode in source.layout.modes[1:] for leaf in leaves(mode.stride)]
    extents = [*leaves(layout.shape[0]), *rest]
    return fitted(text, extents, [*leaves(layout.stride[0]), *strides])


def _boxes(f: Judge, box: Box, coordinates: View, memory: View) -> Boxes:
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
        origin = tuple(f.integer(x, "a coordinate of TMA") for x in origin)
        found.append((origin, f.integer(memory.pointer.address + by * memory.bits // 8, "the address of a copy")))
    return found


def _from(layout: Lay, index: int) -> Any:
    return layout.coordinate(index) if isinstance(layout.shape, tuple) else index


@lru_cache(maxsize=4096)
def box_addresses(base: int, count: int, size: int, swizzle: Swizzle) -> np.ndarray:
    """Return where the elements of a box lie in shared memory: one after the other, moved by the swizzle of the
    address."""
    return swizzle(base + size * np.arange(count, dtype=np.int64))


def _map_of(f: Judge, atom: Atom) -> Box:
    """The tensor map of a copy: the one that its atom was made with, or one in memory that it was told."""
    own: Box = atom.values["box"]
    pointer = atom.values.get("tma_descriptor_ptr")
    if pointer is None:
        return own
    there = map_at(f, pointer)
    if (own.modes, own.extents, own.swizzle) != (there.modes, there.extents, there.swizzle):
        raise CannotFollow(f"a copy of boxes of {own.extents} by a tensor map of {there.extents}")
    return replace(own, tensor=there.tensor, number=there.number)


def _tma_load(f: Judge, op: Operation, atom: Atom, source: View, target: View) -> None:
    box = _map_of(f, atom)
    cta, address = f.barrier(atom.values.get("tma_bar"))
    ranks = f.multicast(atom.values.get("mcast_mask"), f.place.rank)
    boxes = _boxes(f, box, source, target)
    if op.get("from_block_api"):
        box, boxes, ranks = _shared(f, op, box, boxes)
    if cta != f.place.rank:
        raise CannotFollow("a TMA copy that reports to another CTA's barrier")
    pair = 2 if "num_cta = 2" in atom.type else 1  # what a pair of CTAs gets is told to the first one's barrier
    barriers = [(rank // pair * pair, address) for rank in ranks]
    f.tma_load(op, box, boxes, target, ranks, barriers, atom.values.get("at rest", False))


def _shared(f: Judge, op: Operation, box: Box, boxes: Boxes) -> tuple[Box, Boxes, list[int]]:
    """The multicast that CuTe decides when it lowers a copy: (box, this CTA's part of each, ranks that get it).

    CTAs at one offset of `multicast_layout` get the same tile, and each copies a part of it to all of them. PTX shows
    it so, for one instruction a tile.
    """
    layout = types.lay(op.attributes["multicast_layout"].strip('"'))
    where = [layout.offset(layout.coordinate(rank)) for rank in range(layout.size)]
    ranks = [rank for rank, at in enumerate(where) if at == where[f.place.rank]]
    whole = replace(box, parts=len(ranks))
    if len(ranks) == 1:
        return box, boxes, ranks
    if op.get("use_2cta") or len(boxes) > 1 or box.extents[-1] % len(ranks):
        raise CannotFollow("a multicast, decided when it is lowered, of a pair, of several boxes or in unequal parts")
    ((origin, address),) = boxes
    number = ranks.index(f.place.rank)
    begins = (*origin[:-1], origin[-1] + number * whole.part[-1])
    return whole, [(begins, address + number * int(np.prod(whole.part)) * box.tensor.bits // 8)], ranks


# --- loads and stores --------------------------------------------------------------------------------------------


@handles("cute.memref.load_vec", "cute.memref.load", "cute.ptr.load")
def _load(f: Judge, op: Operation, args: list[Any]) -> Any:
    view = args[0] if op.name.endswith("_vec") else _one(op, args)
    if view.pointer.space == "coord":
        return coordinates_of(op.result_types[0], view.pointer.address)
    return f.load(op, view)


@handles("cute.memref.store_vec", "cute.memref.store", "cute.ptr.store")
def _store(f: Judge, op: Operation, args: list[Any]) -> None:
    if op.name.endswith("_vec"):
        f.store(op, args[1], args[0])
    else:
        f.store(op, _one(op, args), args[-1])


def _one(op: Operation, args: list[Any]) -> View:
    """The one element of a view at a coordinate, or that a bare pointer points to."""
    view = args[0]
    if isinstance(view, Pointer):
        kind = types.kind(op.operand_types[0])
        return View(view, ONE, kind.bits, kind.swizzle, kind=types.element(op.operand_types[0]))
    at = view.moved(offset(view.layout.shape, view.layout.stride, args[1])) if len(args) > 1 else view.pointer
    return View(at, ONE, view.bits, view.swizzle, view.tile, view.kind)
