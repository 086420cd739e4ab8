"""Follows the largest |C[m, n]|: whose magnitudes a thread, a warp and a word in global memory have the largest of.

Floats that are not negative compare as their bits do, read as integers. So a kernel clears the bit of the sign, takes
the maximum of integers, and one atomic maximum adds it to the word `amax`, which is 0 before the launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.check.pipeline.shapes import CannotFollow
from cookbook.check.product import origins, words  # noqa: F401, whose operations are followed here too
from cookbook.check.product.follower import HANDLERS, Data, Fault, Follower, follows
from cookbook.check.product.memory import Scratch, Stored
from cookbook.simulate.trace import Operation

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
        """What is wrong with it, in words: each element that was stored, and no other number, takes part."""
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


_before = dict(HANDLERS)  # what other numbers are followed by


@follows("vector.bitcast")
def _bits(f: Follower, op: Operation, args: list[Any]) -> Any:
    """float32 as int32."""
    (value,) = args
    if type(value) is Data and op.result_types[0].endswith("xi32>"):
        return FloatBits(value.ids, True)
    return _before[op.name](f, op, args)


@follows("arith.andi")
def _and(f: Follower, op: Operation, args: list[Any]) -> Any:
    """The bit of the sign, cleared."""
    for value, mask in (args, args[::-1]):
        if isinstance(value, FloatBits):
            if isinstance(mask, Data) or np.any(np.asarray(mask) != MAGNITUDE):
                raise CannotFollow("logic of the bits of a float, but for its sign cleared")
            return FloatBits(value.ids, False)
    return _before[op.name](f, op, args)


@follows("vector.extract")
def _extract(f: Follower, op: Operation, args: list[Any]) -> Any:
    found = _before[op.name](f, op, args)
    return FloatBits(found.ids, args[0].signed) if isinstance(args[0], FloatBits) else found


@follows("arith.maxsi", "arith.maxui")
def _larger(f: Follower, op: Operation, args: list[Any]) -> Any:
    """Of two integers."""
    if not any(isinstance(value, FloatBits) for value in args):
        return _before[op.name](f, op, args)
    a, b = (_magnitudes(_of(value)) for value in args)
    parts = [value.full for value in (a, b) if (value.ids != origins.ZERO).any()] or [a.full]
    return FloatBits(np.concatenate(parts, axis=1), False)


@follows("nvvm.redux.sync")
def _of_warp(f: Follower, op: Operation, args: list[Any]) -> Any:
    """Of all lanes: every lane gets it."""
    value, mask = args
    if op.attributes["kind"] not in ("max", "umax"):
        raise CannotFollow(f"a reduction of a warp: {op.attributes['kind']}")
    if mask not in (-1, 0xFFFFFFFF) or not f.active.all():
        raise CannotFollow("a reduction by some lanes of a warp")
    return FloatBits(np.unique(_magnitudes(_of(value)).full)[None, :], False)


@follows("nvvm.atomicrmw")
def _report(f: Follower, op: Operation, args: list[Any]) -> Any:
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


@follows("cute.memref.store")
def _store(f: Follower, op: Operation, args: list[Any]) -> Any:
    """Other warps report to the word too: a store would lose what they reported."""
    if any(isinstance(value, FloatBits) for value in args):
        raise Fault("amax: got a store; needed an atomic maximum")
    return _before[op.name](f, op, args)
