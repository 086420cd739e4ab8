"""Numbers in registers, bit by bit: each bit is 0, 1, or one of an element that is packed with others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.access import slots
from cookbook.check.product.algebra import Data
from cookbook.simulate.values import LANES, CannotFollow, View

__all__ = ["AND", "OR", "Bits", "Held", "bits_of", "keep", "kept", "logic"]

OR, AND = 0xFC, 0xC0  # of lop3: a or b or c; a and b


@dataclass
class Bits(Data):
    """Numbers, bit by bit: (32, numbers, width) of 0, 1, or an element's origin plus the bit's number in it."""

    bits: np.ndarray


def bits_of(value: Any, width: int) -> np.ndarray:
    """(32, width): of one number, the lowest bit first."""
    if isinstance(value, Bits):
        return value.bits[:, 0]
    number = np.broadcast_to(np.asarray(value, np.int64), (LANES,))
    return number[:, None] >> np.arange(width) & 1


@lru_cache(maxsize=256)
def _outcomes(table: int, b: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """(32,) each: what becomes of a bit that is 0, and of one that is 1."""
    y, z = (x >> np.arange(32) & 1 for x in (b, c))
    return table >> (2 * y + z) & 1, table >> (4 + 2 * y + z) & 1


def logic(table: int, args: list[Any]) -> Any:
    """lop3 of a word and two numbers, bit by bit; or of two words whose bits are not known at different places."""
    a, b, c = args
    if isinstance(a, Bits) and isinstance(b, Bits):
        mine, other = a.bits[:, 0], b.bits[:, 0]
        if table != OR or c or (mine.astype(bool) & other.astype(bool)).any():
            raise CannotFollow("logic of two words, but for `or` of bits of which one is 0")
        return Bits(a.ids, (mine | other)[:, None])
    numbers = [_same(x) for x in (b, c)]
    if not isinstance(a, Bits) or None in numbers:
        raise CannotFollow("logic of a word and numbers that differ from lane to lane")
    low, high = _outcomes(table, *numbers)
    if (low > high).any():
        raise CannotFollow("a bit that is negated")
    return Bits(a.ids, np.where(low == high, low, a.bits))


def _same(value: Any) -> int | None:
    """A number that all lanes have."""
    if isinstance(value, Bits):
        return None
    found = np.unique(np.asarray(value, np.int64))
    return int(found[0]) if len(found) == 1 else None


# --- registers ---------------------------------------------------------------------------------------------------


class Held(np.ndarray):
    """Registers, of which some hold bits: `bits` by register, `width` of one."""

    bits: dict[int, np.ndarray]
    width: int


def kept(view: View) -> Bits | None:
    """The bits that registers of a view hold; None of others."""
    array = view.pointer.array
    if not isinstance(array, Held):
        return None
    per = max(array.width // view.bits, 1)
    places = [int(x) for x in int(view.pointer.address * 8 // view.bits) + view.layout.offsets()]
    if per == 1 and not all(place in array.bits for place in places):
        return None
    each = []
    for place in places:  # a part of a register, which may hold a number
        whole = array.bits.get(place // per)
        whole = bits_of(np.asarray(array[:, place // per]), array.width) if whole is None else whole
        each.append(whole[:, view.bits * (place % per) :][:, : view.bits])
    return Bits(np.full((LANES, len(each)), origins.MIXED), np.stack(each, axis=1))


def keep(view: View, value: Bits) -> None:
    for number, place in enumerate(slots(view)):
        view.pointer.array.bits[int(place)] = value.bits[:, number]
