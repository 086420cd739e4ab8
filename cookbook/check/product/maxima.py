"""Follows the largest |C[m, n]|: whose magnitudes a thread, a warp and a word in global memory have the largest of.

Floats that are not negative compare as their bits do, read as integers. So a kernel clears the bit of the sign, takes
the maximum of integers, and one atomic maximum adds it to the word `amax`, which is 0 before the launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.algebra import Data, algebra
from cookbook.check.product.memory import Scratch, Stored
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import CannotFollow, Fault

__all__ = ["Maximum"]

MAGNITUDE = 0x7FFFFFFF  # all bits of a float32 but its sign


@dataclass
class FloatBits(Data):
    """The bits of floats as integers; of one integer several columns, whose largest it is. ZERO: nothing."""

    signed: bool

    def merge(self, takes: np.ndarray, a: Any, b: Any) -> FloatBits:
        """`a` in the lanes that take it, `b` in the others."""
        x, y = (_of(value) for value in (a, b))
        wide = max(x.ids.shape[1], y.ids.shape[1])
        one, other = (np.pad(value.full, ((0, 0), (0, wide - value.ids.shape[1]))) for value in (x, y))
        return FloatBits(np.where(takes[:, None], one, other), x.signed or y.signed)


class Maximum(Scratch):
    """The word that a launch raises to the largest |C[m, n]|."""

    def __init__(self, base: int) -> None:
        super().__init__(base, origins.ZERO)
        self.reported = [np.empty(0, np.int64)]

    def faults(self, stored: Stored) -> list[str]:
        """Return what is wrong with it, in words: each element that was stored, and no other number, takes part."""
        found, wanted = np.concatenate(self.reported), stored.ids[stored.lines >= 0]
        stray = found[~np.isin(found, wanted) & (found != origins.ZERO)]
        left_out = np.argwhere((stored.lines >= 0) & ~np.isin(stored.ids, found))
        said = []
        if len(stray):
            what = origins.describe(int(stray[0]))
            said.append(f"amax: got {what} that is no element of C ({len(stray)} in all); needed elements of C alone")
        if len(left_out):
            m, n = left_out[0]
            said.append(f"amax: got no |C[{m}, {n}]|; needed all elements of C ({len(left_out)} are left out)")
        return said


def _of(value: Any) -> FloatBits:
    """Bits of floats; an integer 0 is the least of all magnitudes."""
    if isinstance(value, FloatBits):
        return value
    if isinstance(value, Data) or np.any(np.asarray(value) != 0):
        raise CannotFollow("a maximum of the bits of a float and another number, but for 0")
    return FloatBits(np.full((1, 1), origins.ZERO, np.int64), False)


def _magnitudes(value: FloatBits) -> FloatBits:
    if value.signed:
        raise Fault("amax: got a maximum of numbers with their signs; needed magnitudes")
    return value


@algebra(Data, "vector.bitcast")
def _bits(f: Any, op: Operation, args: list[Any]) -> Any:
    """float32 as int32."""
    (value,) = args
    if type(value) is Data and op.result_types[0].endswith("xi32>"):
        return FloatBits(value.ids, True)
    raise CannotFollow(f"{op.name} to {op.result_types[0]}, which is not known to the checker")


@algebra(FloatBits, "arith.andi")
def _and(f: Any, op: Operation, args: list[Any]) -> Any:
    """The bit of the sign, cleared."""
    for value, mask in (args, args[::-1]):
        if isinstance(value, FloatBits):
            if isinstance(mask, Data) or np.any(np.asarray(mask) != MAGNITUDE):
                raise CannotFollow("logic of the bits of a float, but for its sign cleared")
            return FloatBits(value.ids, False)
    raise CannotFollow("logic of the bits of a float")


@algebra(FloatBits, "arith.maxsi", "arith.maxui")
def _larger(f: Any, op: Operation, args: list[Any]) -> Any:
    """The larger of two integers."""
    a, b = (_magnitudes(_of(value)) for value in args)
    parts = [value.full for value in (a, b) if (value.ids != origins.ZERO).any()] or [a.full]
    return FloatBits(np.concatenate(parts, axis=1), False)


@algebra(FloatBits, "nvvm.redux.sync")
def _of_warp(f: Any, op: Operation, args: list[Any]) -> Any:
    """The maximum of all lanes: every lane gets it."""
    value, mask = args
    if op.attributes["kind"] not in ("max", "umax"):
        raise CannotFollow(f"a reduction of a warp: {op.attributes['kind']}")
    if mask not in (-1, 0xFFFFFFFF) or not f.active.all():
        raise CannotFollow("a reduction by some lanes of a warp")
    return FloatBits(np.unique(_magnitudes(_of(value)).full)[None, :], False)


@algebra(FloatBits, "nvvm.atomicrmw")
def _report(f: Any, op: Operation, args: list[Any]) -> Any:
    """An atomic maximum of the word, by each active lane; nothing may be made of what was there before."""
    pointer, value, *_ = args
    if op.attributes["op"] not in ("max", "umax"):
        raise CannotFollow(f"an atomic operation: {op.attributes['op']}")
    address = np.unique(pointer.address)
    word = next((one for one in f.launch.scratch if isinstance(one, Maximum) and (address == one.base).all()), None)
    if word is None:
        raise Fault("got an atomic maximum of what is not `amax`; needed it there")
    word.reported.append(np.unique(_magnitudes(_of(value)).full[f.active]))
    return None
