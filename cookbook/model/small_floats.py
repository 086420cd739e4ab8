"""Floats of 4 to 8 bits and the scale factors that go with them, to float32 and back.

PTX ISA, "Fundamental Types": "Alternate Floating-Point Data Formats". A value is decoded through a table of all its
patterns, made from the definition, so nothing is rounded on the way.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cookbook.arguments import checked, integer, integers

__all__ = ["FORMATS", "decode", "encode", "encode_ue8m0", "pack", "unpack"]


class Format(NamedTuple):
    """Bits of the exponent and of the fraction, the exponent's bias, and what the highest patterns mean."""

    exponent: int
    fraction: int
    bias: int
    special: str = ""  # "nan": all ones is NaN; "ieee": the highest exponent is for infinity and NaN
    signed: bool = True

    @property
    def bits(self) -> int:
        return self.exponent + self.fraction + self.signed


FORMATS = {
    "e4m3": Format(4, 3, 7, "nan"),
    "e5m2": Format(5, 2, 15, "ieee"),
    "e3m2": Format(3, 2, 3),
    "e2m3": Format(2, 3, 1),
    "e2m1": Format(2, 1, 1),
    "ue4m3": Format(4, 3, 7, "nan", signed=False),
    "ue8m0": Format(8, 0, 127, "nan", signed=False),
}


@checked
def decode(bits: np.ndarray, name: str) -> np.ndarray:
    """The float32 values, exact, of patterns of a format of `FORMATS`, one in the low bits of each uint8; same shape.

    Raises:
        ValueError: no such format, or a pattern with a bit above its width.
    """
    array = np.asarray(bits)
    table = _table(name)
    if array.dtype != np.uint8 or (array.size and array.max() >= len(table)):
        raise ValueError(f"bits: got {array.dtype} up to {array.max(initial=0)}; needed uint8 below {len(table)}")
    return table[array]


@checked
def encode(values: np.ndarray, name: str) -> np.ndarray:
    """The patterns (uint8) nearest to float32 values, ties to even, too large ones the largest; same shape.

    As cvt.rn.satfinite does. A NaN becomes the format's NaN, or where it has none (e2m1, e2m3, e3m2) the largest value.
    Unsigned formats take negative values for 0. For ue8m0, see `encode_ue8m0`.
    """
    if name == "ue8m0":
        raise ValueError("name: got 'ue8m0'; needed encode_ue8m0, which says how it rounds")
    form, array = _format(name), np.asarray(values, np.float32)
    table = _table(name)[: 1 << form.exponent + form.fraction]  # the patterns that are not negative, in order
    finite = table[np.isfinite(table)].astype(np.float64)
    size = np.abs(array).astype(np.float64) if form.signed else np.maximum(array, 0).astype(np.float64)
    above = np.clip(np.searchsorted(finite, size), 1, len(finite) - 1)
    low, high = size - finite[above - 1], finite[above] - size
    code = np.where((low > high) | ((low == high) & (above % 2 == 0)), above, above - 1)
    nans = np.flatnonzero(np.isnan(table))
    code = np.where(np.isnan(array), nans[-1] if len(nans) else len(finite) - 1, code)
    sign = np.signbit(array) & ~np.isnan(array) if form.signed else np.zeros(array.shape, bool)
    return (code | sign.astype(np.int64) << form.bits - 1).astype(np.uint8)


@checked
def encode_ue8m0(values: np.ndarray, up: bool = True) -> np.ndarray:
    """The power of two next to float32 values, at least as large (cvt.rp) or, if not `up`, as small (cvt.rz); uint8.

    Too large ones, too small ones and 0 become the nearest power there is, 2**127 or 2**-127; negative ones and NaN,
    NaN.
    """
    array = np.asarray(values, np.float32)
    bad = np.isnan(array) | (array < 0)
    mantissa, exponent = np.frexp(np.where(bad | (array == 0), 1, np.minimum(array, 2.0**127)).astype(np.float64))
    power = exponent - 1 + (up & (mantissa > 0.5))  # array = mantissa * 2**exponent, mantissa in [0.5, 1)
    code = np.where(array == 0, 0, np.clip(power + 127, 0, 254))
    return np.where(bad, 255, code).astype(np.uint8)


@checked
def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Patterns of `bits` each along the last axis, uint8, into bytes, the first in the lowest bits.

    Raises:
        ValueError: they do not fill whole bytes.
    """
    integer("bits", bits, at_least=1, at_most=8)
    codes = integers("codes", codes, at_least=0, at_most=(1 << bits) - 1).astype(np.uint8)
    if codes.ndim < 1:
        raise ValueError("codes: got a single one; needed an axis of them")
    if codes.shape[-1] * bits % 8:
        raise ValueError(f"codes: got {codes.shape[-1]} of {bits} bits; needed whole bytes")
    stream = codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(stream.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


@checked
def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """The way back of `pack`: uint8 patterns, one a byte."""
    integer("bits", bits, at_least=1, at_most=8)
    array = integers("packed", packed, at_least=0, at_most=255).astype(np.uint8)
    if array.ndim < 1 or array.shape[-1] * 8 % bits:
        raise ValueError(f"packed: got shape {array.shape}; needed bytes that {bits}-bit patterns fill")
    stream = np.unpackbits(array, axis=-1, bitorder="little")
    stream = stream.reshape(*stream.shape[:-1], -1, bits)
    return (stream << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"name: got {name!r}; needed one of {list(FORMATS)}")
    return FORMATS[name]


@lru_cache(maxsize=len(FORMATS))
def _table(name: str) -> np.ndarray:
    """(2 ** bits,) float32: the value of every pattern."""
    form = _format(name)
    code = np.arange(1 << form.bits)
    fraction, exponent = code % (1 << form.fraction), code >> form.fraction & (1 << form.exponent) - 1
    # A format with no fraction has no subnormals: exponent 0 of ue8m0 is 2**-127.
    normal = (exponent > 0) | (form.fraction == 0)
    scale = np.where(normal, exponent, 1) - form.bias - form.fraction
    value = np.ldexp((fraction + (normal << form.fraction)).astype(np.float64), scale)
    magnitude = code % (1 << form.exponent + form.fraction)
    if form.special == "nan":
        value[magnitude == (1 << form.exponent + form.fraction) - 1] = np.nan
    if form.special == "ieee":
        top = exponent == (1 << form.exponent) - 1
        value[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    table = np.where(magnitude != code, -value, value).astype(np.float32)
    table.flags.writeable = False
    return table
