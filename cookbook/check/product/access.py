"""Reads and writes of a warp's lanes, in whatever space: which elements are at the addresses of a view."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.algebra import Data
from cookbook.check.product.memory import Memory, Operand, Scratch
from cookbook.simulate.types import LARGEST
from cookbook.simulate.values import APART, LANES, CannotFollow, Fault, Lay, View, spread


def memory_of(f: Any, view: View) -> Memory:
    """The shared memory that a view is of."""
    cta = view.pointer.cta
    if cta is None:
        return f.cta.memory
    return f.cta.cluster.ctas[f.integer(cta, "the CTA that is accessed")].memory


def smem_addresses(view: View) -> np.ndarray:
    """(32, elements): byte addresses, the swizzle applied."""
    found = view.addresses()
    if found.min() < 0:
        raise Fault(f"an access to shared memory at byte {int(found.min())}")
    found = view.swizzle(found) if view.swizzle.bits else found
    return spread(found, (LANES, found.shape[1]))


def slots(view: View) -> np.ndarray:
    """(elements,): the registers of a view, in the array that it is of."""
    found, least, most = _slots(view.layout, int(view.pointer.address * 8 // view.bits))
    held = view.pointer.array.shape[1]
    if least < 0 or most >= held:
        raise Fault(f"an access to register {most} of an array of {held}")
    return found


@lru_cache(maxsize=8192)
def _slots(layout: Lay, first: int) -> tuple[np.ndarray, int, int]:
    """The places of a layout's elements behind the first, the least and the largest of them."""
    found = first + layout.offsets()
    found.flags.writeable = False
    return found, int(found.min()), int(found.max())


def takes_part(f: Any, count: int, mask: np.ndarray | None = None) -> np.ndarray:
    """(32, elements): which are accessed, by the active lanes."""
    active = spread(f.active[:, None], (LANES, count))
    return active if mask is None else active & mask


def read(f: Any, view: View, mask: np.ndarray | None = None) -> np.ndarray:
    """(32, elements): what the lanes find in a view; UNWRITTEN in those that do not look."""
    space = view.pointer.space
    if space == "rmem":
        return view.pointer.array[:, slots(view)]
    if space == "smem" and mask is None and f.active.all():
        return memory_of(f, view).read(smem_addresses(view), max(view.bits // 8, 1))
    found = np.full((LANES, len(view.offsets())), origins.UNWRITTEN, np.int64)
    on = takes_part(f, found.shape[1], mask)
    if space == "smem":
        found[on] = memory_of(f, view).read(smem_addresses(view)[on], max(view.bits // 8, 1))
    elif space == "gmem":
        found[on] = _from_global(f, view, on)
    elif space == "table":
        places = np.broadcast_to(view.addresses() * 8 // view.bits, found.shape)[on]
        found[on] = np.array(view.pointer.numbers, np.int64)[places]
    else:
        raise CannotFollow(f"a read of {space}")
    return found


def _in_global(view: View, on: np.ndarray) -> np.ndarray:
    """The addresses in global memory of a view's elements, of those that are accessed.

    Raises:
        Fault: one of them is further on than offsets of 32 bits come.
    """
    addresses = spread(view.addresses(), on.shape)[on]
    if view.pointer.narrow is not None and addresses.size:
        most = int((addresses - np.max(view.pointer.narrow)).max()) * 8 // view.bits
        if most > LARGEST:
            raise Fault(f"an offset in 32 bits: got {most} elements; needed 64 bits, so strides of 64 bits")
    return addresses


def _from_global(f: Any, view: View, on: np.ndarray) -> np.ndarray:
    addresses = _in_global(view, on)
    if (scratch := scratch_of(f, view)) is not None:
        return scratch.read(addresses)
    operand = operand_of(f, view)
    found = operand.ids(addresses)
    outside = found == origins.OUTSIDE
    if outside.any():
        row, column, _ = operand.places(addresses[outside][:1])
        raise Fault(
            f"{operand.name}: got a read of row {row[0]}, column {column[0]}; needed one inside: "
            f"{operand.name} is {operand.shape[0]} x {operand.shape[1]}"
        )
    return found


def operand_of(f: Any, view: View) -> Operand:
    """The matrix in global memory that a view is of."""
    number = int(np.max(view.pointer.address)) >> APART
    found = [one for one in f.launch.operands.values() if one.base >> APART == number]
    if not found:
        raise Fault("an access to global memory that is none of the operands'")
    return found[0]


def scratch_of(f: Any, view: View) -> Scratch | None:
    """The memory of CTAs of the launch that a view is of; None of another."""
    number = int(np.max(view.pointer.address)) >> APART
    return next((one for one in f.launch.scratch if one.base >> APART == number), None)


def write(f: Any, view: View, ids: np.ndarray, mask: np.ndarray | None = None) -> None:
    """(32, elements) into a view, by the active lanes."""
    space = view.pointer.space
    if space == "rmem" and mask is None and f.active.all():
        view.pointer.array[:, slots(view)] = ids
        return
    ids = spread(ids, (LANES, len(view.offsets())))
    if space == "smem" and mask is None and f.active.all():
        memory_of(f, view).write(smem_addresses(view), ids, max(view.bits // 8, 1))
        return
    on = takes_part(f, ids.shape[1], mask)
    if space == "rmem":
        places = slots(view)
        if on.all():
            view.pointer.array[:, places] = ids
        else:
            view.pointer.array[:, places] = np.where(on, ids, view.pointer.array[:, places])
    elif space == "smem":
        memory_of(f, view).write(smem_addresses(view)[on], ids[on], max(view.bits // 8, 1))
    elif space == "gmem":
        addresses = _in_global(view, on)
        if (scratch := scratch_of(f, view)) is not None:
            scratch.write(addresses, ids[on])
        elif (operand := operand_of(f, view)).name != "C":
            raise Fault(f"got a store to {operand.name}; needed C alone")
        else:
            f.launch.stored.store(addresses, ids[on], f.line)
    else:
        raise CannotFollow(f"a write to {space}")


def aligned(f: Any, view: View, width: int, mask: np.ndarray | None = None) -> None:
    """That each lane's elements lie together in pieces of `width` bits, at multiples of that.

    Raises:
        Fault: they do not.
    """
    each, step = max(width // view.bits, 1), max(width // 8, 1)
    if view.pointer.space not in ("smem", "gmem"):
        return
    if not _adjacent(view.layout, each):
        raise Fault(f"a copy of {width} bits whose elements are not adjacent: {view.layout}")
    first = view.addresses()[:, ::each]
    wrong = first % step != 0
    if not wrong.any():
        return
    wrong = wrong & takes_part(f, first.shape[1], None if mask is None else mask[:, ::each])
    if wrong.any():
        at = int(spread(first, wrong.shape)[wrong][0])
        raise Fault(f"an access of {width} bits at byte {at}; needed a multiple of {step}")


@lru_cache(maxsize=8192)
def _adjacent(layout: Lay, each: int) -> bool:
    """Return whether elements lie together, `each` at a time."""
    offsets = layout.offsets()
    if len(offsets) % each:
        raise CannotFollow(f"a copy of {len(offsets)} elements, {each} at a time")
    groups = offsets.reshape(-1, each)
    return bool((groups == groups[:, :1] + np.arange(each)).all())


def loaded(view: View, ids: np.ndarray) -> Any:
    """Return what was read: Data, or numbers."""
    if view.kind and view.kind[0] in "fb":
        return Data(ids)
    return ids[:, 0] if ids.shape[1] == 1 else ids
