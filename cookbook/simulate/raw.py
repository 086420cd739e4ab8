"""Pointers without layouts: LLVM's loads and stores, and tensor maps that the host or a kernel makes of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cookbook.simulate import types
from cookbook.simulate.integers import compact
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import COMPUTED, PLAIN, UNKNOWN, Atom, Box, CannotFollow, Fault, Lay, Pointer, View
from cookbook.simulate.warp import Warp, handles
from cookbook.swizzle import Swizzle

GIVEN = -(1 << 31)  # in the place of an index that is an operand
FORMATS = (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4)  # bits by CUtensorMapDataType; those behind are padded

# --- memory ------------------------------------------------------------------------------------------------------


@handles("cute_nvgpu.arch.get_dyn_smem")
def _dynamic(f: Judge, op: Operation, args: list[Any]) -> Pointer:
    """Dynamic shared memory begins behind what is allocated; how much there is, the launch says to the driver alone."""
    align = types.kind(op.result_types[0]).align
    begin = f.memo("dynamic", lambda: -(-f.allocated // align) * align)
    return Pointer("smem", begin, base=begin)


@handles("llvm.alloca")
def _alloca(f: Warp, op: Operation, args: list[Any]) -> Pointer:
    return Pointer("local", 0, array={})


@handles("llvm.getelementptr")
def _element(f: Warp, op: Operation, args: list[Any]) -> Pointer:
    pointer, *given = args
    (index,) = op.attributes["rawConstantIndices"]
    by = given[0] if index == GIVEN else index
    bits = types.element_bits(op.attributes["elem_type"])
    return replace(pointer, address=pointer.address + by * bits // 8, name=pointer.name or _computed(pointer))


def _computed(pointer: Pointer) -> str:
    return COMPUTED if pointer.space == "smem" else ""


def _elements(pointer: Any, text: str) -> View:
    """Return what a load or store of a type touches."""
    if not isinstance(pointer, Pointer):
        raise CannotFollow(f"an access through {pointer}")
    kind = text.removeprefix("vector<").rpartition("x")[2].rstrip(">") if text.startswith("vector<") else text
    return View(pointer, Lay(types.count_of(text), 1), types.element_bits(kind), PLAIN, None, kind)


@handles("llvm.load")
def _load(f: Judge, op: Operation, args: list[Any]) -> Any:
    (pointer,) = args
    if getattr(pointer, "space", "") == "local":
        return pointer.array.get(pointer.address, UNKNOWN)
    return f.load(op, _elements(pointer, op.result_types[0]))


@handles("llvm.store")
def _store(f: Judge, op: Operation, args: list[Any]) -> None:
    value, pointer = args
    if getattr(pointer, "space", "") == "local":
        pointer.array[pointer.address] = value
    else:
        f.store(op, _elements(pointer, op.operand_types[0]), value)


@handles("nvvm.cp.async.shared.global")
def _async_copy(f: Judge, op: Operation, args: list[Any]) -> None:
    target, source = (View(pointer, Lay(op.attributes["size"], 1), 8) for pointer in args[:2])
    if len(args) > 2:
        raise CannotFollow("a cp.async that is told how many bytes to read")
    f.copy(op, source, target, 8 * op.attributes["size"], None, True)


@handles("llvm.extractvalue", "llvm.insertvalue", "llvm.bitcast")
def _data(f: Warp, op: Operation, args: list[Any]) -> Any:
    return f.data(op, args)


# --- tensor maps -------------------------------------------------------------------------------------------------


@handles("cuda.tensor_map_encode_tiled")
def _encode(f: Judge, op: Operation, args: list[Any]) -> Any:
    """CUDA driver API, cuTensorMapEncodeTiled; dimension 0 is contiguous, and strides of the others count bytes."""
    kind, rank, address, *lists, interleave, swizzle, _, _ = args
    if interleave or swizzle > 3 or kind >= len(FORMATS):
        raise CannotFollow(f"a tensor map of format {kind}, interleave {interleave} and swizzle {swizzle}")
    bits = FORMATS[kind]
    extents, strides = _list(lists[0], rank, 8), _list(lists[1], rank - 1, 8)
    box, steps = _list(lists[2], rank, 4), _list(lists[3], rank, 4)
    if any(step != 1 for step in steps):
        raise CannotFollow("a tensor map that leaves elements out")
    layout = Lay(tuple(extents), (1, *(8 * stride // bits for stride in strides)))
    pointer = address if isinstance(address, Pointer) else Pointer("gmem", address)
    found = Swizzle(swizzle, 4, 3) if swizzle else PLAIN
    return UNKNOWN, Atom("tensor map", {"box": Box(View(pointer, layout, bits), (*range(rank),), (*box,), found, 1)})


def _list(pointer: Pointer, count: int, size: int) -> list[int]:
    return [pointer.array[size * number] for number in range(count)]


@handles("cuda.result.assert_success", "cf.assert")
def _nothing(f: Warp, op: Operation, args: list[Any]) -> None:
    """Do nothing: the driver judges a tensor map before the launch, and an assertion is taken to hold."""


@handles("nvvm.cp.async.bulk.tensor.shared.cluster.global")
def _tensor_load(f: Judge, op: Operation, args: list[Any]) -> None:
    sizes = op.attributes["operandSegmentSizes"]
    target, descriptor, origin, (barrier,), offsets, mask, _, predicate = _parts(args, sizes)
    if offsets or op.get("mode") != "tile":
        raise CannotFollow(f"a copy by TMA of mode {op.get('mode')}")
    if predicate and not f.same(predicate[0]):
        return
    box = _box(f, descriptor[0])
    address = f.integer(target[0].address, "the address of a copy")
    place = View(replace(target[0], address=address), Lay(box.extents, tuple(compact(box.extents))), box.tensor.bits)
    place = replace(place, swizzle=box.swizzle)
    begins = tuple(f.integer(f.same(x), "a coordinate of TMA") for x in origin)
    cta, at = f.barrier(barrier)
    ranks = f.multicast(mask[0] if mask else None, f.place.rank)
    pair = 2 if op.get("group") == "cta_2" else 1
    barriers = [(rank // pair * pair if pair > 1 else rank, at) for rank in ranks]
    if cta != f.place.rank and pair == 1:
        raise CannotFollow("a TMA copy that reports to another CTA's barrier")
    f.tma_load(op, box, [(begins, address)], place, ranks, barriers, False)


def _parts(args: list[Any], sizes: tuple[int, ...]) -> list[list[Any]]:
    """Operands by segment."""
    found, begin = [], 0
    for size in sizes:
        found.append(args[begin : begin + size])
        begin += size
    return found


def _box(f: Judge, descriptor: Any) -> Box:
    """The tensor map of a copy: an argument's, or one in memory."""
    if isinstance(descriptor, Atom):
        return descriptor.values["box"]
    return map_at(f, descriptor)


# --- tensor maps in memory ---------------------------------------------------------------------------------------

MAP_BYTES = 128


def map_at(f: Judge, pointer: Any) -> Box:
    """The tensor map that was last left at an address.

    Raises:
        CannotFollow: no kernel left one there.
    """
    found = f.shared.maps.get(_place(f, pointer))
    if found is None:
        raise CannotFollow("a tensor map in memory that no kernel was seen to make")
    return found


def _place(f: Judge, pointer: Any) -> tuple[str, int, int]:
    """Space, CTA and address of a tensor map, which begins at a multiple of its size."""
    if not isinstance(pointer, Pointer) or pointer.space not in ("gmem", "smem"):
        raise CannotFollow(f"a tensor map at {pointer}")
    address = f.integer(pointer.address, "the address of a tensor map")
    if address % MAP_BYTES:
        raise Fault(f"a tensor map at address {address}: needed a multiple of {MAP_BYTES}")
    return pointer.space, f.place.rank if pointer.space == "smem" else 0, address


def _leave(f: Judge, op: Operation, pointer: Pointer, box: Box) -> None:
    """One lane writes a tensor map."""
    maps, place = f.shared.maps, _place(f, pointer)
    number = maps[place].number if place in maps else len(maps) + 1
    maps[place] = replace(box, number=number)
    f.tensor_map(op, "write", pointer, number)


@handles("cute_nvgpu.copy_tma_desc")
def _copy_map(f: Judge, op: Operation, args: list[Any]) -> None:
    atom, pointer = args
    _leave(f, op, pointer, _box(f, atom))


@handles("cute_nvgpu.update_tma_desc")
def _update_map(f: Judge, op: Operation, args: list[Any]) -> None:
    """Replace address, extents and strides, as PTX's tensormap.replace does; box and swizzle stay."""
    _, tensor, pointer = args
    _leave(f, op, pointer, replace(map_at(f, pointer), tensor=tensor))


def copy_map(f: Judge, op: Operation, target: Pointer, source: Pointer) -> None:
    """tensormap.cp_fenceproxy: from shared to global memory, and released there."""
    box = map_at(f, source)
    f.tensor_map(op, "read", source, box.number)
    _leave(f, op, target, box)
    f.tensor_map(op, "release", target, 0)


def acquire_map(f: Judge, op: Operation, pointer: Pointer) -> None:
    """fence.proxy.tensormap::generic.acquire; one that no kernel was seen to make is none of these."""
    if box := f.shared.maps.get(_place(f, pointer)):
        f.tensor_map(op, "acquire", pointer, box.number)
