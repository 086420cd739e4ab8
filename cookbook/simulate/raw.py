"""Pointers without layouts: LLVM's loads and stores, and tensor maps that the host or a kernel makes of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cookbook.simulate import types
from cookbook.simulate.integers import compact
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import COMPUTED, PLAIN, UNKNOWN, Atom, Box, CannotFollow, Lay, Pointer, View
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
    box = _box(descriptor[0])
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


def _box(descriptor: Any) -> Box:
    if not isinstance(descriptor, Atom):
        raise CannotFollow(f"a copy by TMA whose tensor map is {descriptor}")
    return descriptor.values["box"]
