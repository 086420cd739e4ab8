"""Follows packed weights: words whose bits are of several elements, until arithmetic makes floats of these.

A word in registers is followed bit by bit: each is 0, 1, or a bit of an element of the weight, or of a zero point.
Shifts and logic move them. Where one float is subtracted from another, or multiplied by it, all values of their
elements are tried: the result has to be the element less its zero point, exactly. From there on it is that element, as
of any GEMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.algebra import Data, algebra, combined
from cookbook.check.product.bits import AND, OR, Bits, logic
from cookbook.check.product.memory import Operand
from cookbook.model import small_floats
from cookbook.simulate.assembly import LOGIC
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import CannotFollow, Fault

__all__ = ["Words", "laid"]

WORDS, ZEROS = origins.OPERANDS["W"], origins.OPERANDS["ZB"]
WEIGHT = origins.OPERANDS["B"]


@dataclass(frozen=True)
class Words:
    """A packed weight: the bits of each word, (rows, words, 32), and what they are bits of."""

    table: np.ndarray
    width: int  # of an element
    zeros: bool  # whether groups have zero points of their own
    floats: bool  # whether elements are e4m3
    group: int  # elements along K that share one

    def of(self, ids: np.ndarray, width: int) -> Bits:
        """Words, or zero points, that were read: (32, numbers) of origins."""
        kinds, place = origins.kind_of(ids), np.arange(width)
        found = np.zeros((*ids.shape, width), np.int64)
        words = kinds == WORDS
        if words.any():
            found[words] = self.table[origins.row_of(ids[words]), origins.column_of(ids[words])]
        zeros = kinds == ZEROS
        found[zeros] = np.where(place < 4, ids[zeros][:, None] + place, 0)  # `pack` refuses more than 15
        if not (words | zeros | (ids == origins.FILL)).all():
            odd = int(ids[~(words | zeros | (ids == origins.FILL))][0])
            raise Fault(f"a load of packed elements: got {origins.describe(odd)}; needed words or zero points")
        return Bits(np.full(ids.shape, origins.MIXED), found)


@dataclass(frozen=True)
class Laid(Operand):
    """An operand in the order in which `pack` lays it out."""

    order: Any = None  # of each element in memory, its origin

    def ids(self, byte_addresses: np.ndarray) -> np.ndarray:
        at = (byte_addresses - self.base) * 8 // self.bits
        inside = (at >= 0) & (at < len(self.order))
        return np.where(inside, self.order[np.where(inside, at, 0)], origins.OUTSIDE)


def laid(module: Any, config: Any, n: int, k: int, operands: dict[str, Operand]) -> tuple[Words, dict[str, Operand]]:
    """Return where `pack` puts each bit of a weight (N, K), each scale and each zero point; found by packing numbers'
    bits."""
    import torch

    groups, width = k // module.BLOCK, config.bits
    kind = torch.uint8 if width == 4 else torch.int8
    numbers = torch.arange(n * k).view(n, k)
    some = torch.ones(n, groups, dtype=torch.bfloat16)

    def bits(values: torch.Tensor) -> np.ndarray:
        words = module.pack(values, some).weight.contiguous().view(torch.uint8).numpy()
        return np.unpackbits(words.ravel(), bitorder="little").reshape(-1, 32)

    full = 15 if width == 4 else -1
    element = sum(
        bits(torch.where(numbers >> p & 1 > 0, full, 0).to(kind)).astype(np.int32) << p
        for p in range((n * k - 1).bit_length())
    )
    patterns = [1 << b if (width, b) != (8, 7) else -128 for b in range(width)]
    which = np.stack([bits(torch.full((n, k), pattern, dtype=kind)) for pattern in patterns])
    if (which.sum(axis=0, dtype=np.uint8) != 1).any():
        raise Fault("pack: got bits of no element, or of several; needed each bit of a word to be one of an element's")
    if config.floats:
        rng = torch.Generator().manual_seed(0)
        some_bytes = torch.randint(0, 127, (n, k), generator=rng, dtype=torch.uint8)  # 127 is NaN
        if (bits(some_bytes.view(torch.float8_e4m3fn)) != bits(some_bytes.view(torch.int8))).any():
            raise Fault("pack: got e4m3 in another order than integers of 8 bits; needed the same")
    bit = sum(number * plane for number, plane in enumerate(which))
    origin = origins.operand(WEIGHT, np.asarray(element // k), np.asarray(element % k)) + bit
    times = np.bincount(np.asarray(element * width + bit).ravel(), minlength=n * k * width)
    if len(times) != n * k * width or (times != 1).any():
        raise Fault("pack: got bits that are there twice; needed each bit of each element once")
    each = len(origin) // (n // 64 * groups)
    rows = np.arange(len(origin))
    order = origins.operand(WORDS, rows // each, rows % each)
    found: dict[str, Operand] = {"B": _of(operands["B"], order)}
    ones = torch.zeros(n, k, dtype=torch.uint8)
    place = torch.arange(n * groups).view(n, groups)
    count = (n * groups - 1).bit_length()
    planes = [place >> p & 1 for p in range(count)]
    scales = sum(
        module.pack(ones, plane.bfloat16()).scales.long().numpy().ravel() << p for p, plane in enumerate(planes)
    )
    zeros = sum(
        module.pack(ones, some, plane.to(torch.uint8)).zeros.long().numpy().ravel() << p
        for p, plane in enumerate(planes)
    )
    for name, at in (("SB", scales), ("ZB", zeros)):
        shared = (1, module.BLOCK)
        found[name] = _of(operands[name], origins.operand(origins.OPERANDS[name], at // groups, at % groups), shared)
    return Words(origin.reshape(-1, each, 32), width, config.zeros, config.floats, module.BLOCK), found


def _of(operand: Operand, order: np.ndarray, shared: tuple[int, int] = (1, 0)) -> Laid:
    lies = operand.name, operand.shape, operand.strides, operand.bits, operand.dtype, operand.base
    return Laid(*lies, shared, order=order)


# --- shifts and logic --------------------------------------------------------------------------------------------


_LOGIC = {"arith.ori": OR, "arith.andi": AND}


@algebra(Bits, *_LOGIC)
def _logic(f: Any, op: Operation, args: list[Any]) -> Any:
    return logic(_LOGIC[op.name], [*sorted(args, key=lambda x: not isinstance(x, Bits)), 0])


@algebra(Bits, "llvm.inline_asm")
def _lop3(f: Any, op: Operation, args: list[Any]) -> Any:
    return logic(int(op.attributes["asm_string"].removeprefix(LOGIC).rstrip(";")), args)


@algebra(Bits, "arith.shrui", "arith.shli", "arith.extui")
def _moved(f: Any, op: Operation, args: list[Any]) -> Any:
    bits = args[0].bits
    if op.name == "arith.extui":
        wider = np.zeros((*bits.shape[:2], 32), np.int64)
        wider[..., : bits.shape[2]] = bits
    else:
        by = f.integer(args[1], "how far a word is shifted") * (1 if op.name == "arith.shli" else -1)
        wider = np.roll(bits, by, axis=2)
        wider[..., : max(by, 0)] = 0
        wider[..., bits.shape[2] + min(by, 0) :] = 0
    return Bits(args[0].ids, wider)


# --- floats ------------------------------------------------------------------------------------------------------


@algebra(Bits, "arith.subf", "arith.mulf")
def _converted(f: Any, op: Operation, args: list[Any]) -> Any:
    """Subtract two floats that are made of bits: an element of the weight, less its zero point."""
    times = op.name == "arith.mulf"
    if not all(isinstance(x, Bits) for x in args):
        if times:
            return combined(f, "mul", *args)
        raise CannotFollow("a difference of floats")
    both = np.concatenate([x.bits for x in args], axis=2)
    known, words = (both == 0) | (both == 1), f.launch.words
    of = np.where(known, 0, both & ~np.int64(7))
    weights, zeros = (_single(np.where(origins.kind_of(of) == kind, of, 0)) for kind in (WEIGHT, ZEROS))
    filled = weights == 0  # by TMA, behind N or K: times zeros of the other operand, and scales that are zeros
    place = np.where(known, both, np.where(origins.kind_of(of) == WEIGHT, 2, 16) + (both & 7))
    dtype, seen = "bf16" if "bf16" in op.operand_types[0] else "f16", f.launch.memo
    some = place[~filled]
    if (op.name, some.tobytes()) not in seen:  # of most words the bits lie alike
        for pattern in np.unique(some.reshape(-1, both.shape[2]), axis=0):
            _check(pattern, words, dtype, times)
        seen[op.name, some.tobytes()] = True
    if words.zeros:
        wanted = origins.operand(ZEROS, origins.row_of(weights), origins.column_of(weights) // words.group)
        wrong = ~filled & (zeros != wanted)
        if wrong.any():
            got = origins.describe(int(zeros[wrong][0]))
            raise Fault(f"an element less a zero point: got {got}; needed {origins.describe(int(wanted[wrong][0]))}")
    return Data(np.where(filled, origins.FILL, weights))


def _single(of: np.ndarray) -> np.ndarray:
    """(32, numbers): the one element that bits are of; 0: of none."""
    found = of.max(axis=2)
    if ((of != 0) & (of != found[..., None])).any():
        raise Fault("a float: got bits of two elements of the weight; needed those of one")
    return found


def _check(pattern: np.ndarray, words: Words, dtype: str, times: bool) -> None:
    """That the difference of two floats of such bits, or their product, is the element, less its zero point, whatever
    they are. NaN is none: `pack` refuses it."""
    values, zeros = np.arange(1 << words.width)[:, None, None], np.arange(16)[None, :, None]
    weight, zero = values >> np.clip(pattern - 2, 0, 7) & 1, zeros >> np.clip(pattern - 16, 0, 7) & 1
    bits = np.where(pattern < 2, pattern, np.where(pattern < 16, weight, zero)).astype(np.uint32)
    floats = []
    for half in (bits[..., :16], bits[..., 16:]):
        number = (half << np.arange(16, dtype=np.uint32)).sum(axis=2, dtype=np.uint32)
        as_bf16 = (number << 16).view(np.float32)
        floats.append((as_bf16 if dtype == "bf16" else number.astype(np.uint16).view(np.float16)).astype(np.float64))
    signed = values[..., 0] - (256 * (values[..., 0] >> 7) if words.width == 8 else 0)
    if words.floats:
        signed = small_floats.decode(values[..., 0].astype(np.uint8), "e4m3").astype(np.float64)
    wanted = signed - (zeros[..., 0] if words.zeros else 8 if words.width == 4 else 0)
    got = floats[0] * floats[1] if times else floats[0] - floats[1]
    got = np.broadcast_to(got, (1 << words.width, 16))
    wrong = np.argwhere((got != np.broadcast_to(wanted, got.shape)) & ~np.isnan(np.broadcast_to(wanted, got.shape)))
    if len(wrong):
        value, zero = (int(x) for x in wrong[0])
        said = f" less {zero}" if words.zeros else ""
        needed = f"{np.broadcast_to(wanted, got.shape)[value, zero]:g}, of the element with bits {value}{said}"
        raise Fault(f"a converted element: got {got[value, zero]:g}; needed {needed}")
