"""Numbers in registers, bit by bit: each bit is 0, 1, or one of an element that is packed with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.check.pipeline.shapes import CannotFollow
from cookbook.check.product import origins
from cookbook.check.product.follower import LANES, Data

__all__ = ["Bits", "bits_of", "logic"]


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


def logic(table: int, args: list[Any]) -> Any:
    """lop3: of the bits of three words, bit by bit."""
    a, b, c = (bits_of(x, 32) for x in args)
    known = [(x == 0) | (x == 1) for x in (a, b, c)]
    if (sum(~x for x in known) > 1).any():
        raise CannotFollow("logic of two unknown bits")

    def value(unknown: int) -> np.ndarray:
        x, y, z = (np.where(k, bit, unknown) for k, bit in zip(known, (a, b, c), strict=True))
        return table >> (4 * x + 2 * y + z) & 1

    low, high, unknown = value(0), value(1), np.where(~known[0], a, np.where(~known[1], b, c))
    if (low > high).any():
        raise CannotFollow("a bit that is negated")
    found = np.where(low == high, low, unknown)
    return Bits(np.full((LANES, 1), origins.MIXED), found[:, None])
