"""float16 and bfloat16 as raw uint16 bits, to float32 and back (PTX ISA, "Fundamental Types")."""

from __future__ import annotations

import numpy as np

from cookbook.arguments import checked

__all__ = ["from_float32", "to_float32"]

DTYPES = ("float16", "bfloat16")


@checked
def to_float32(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The float32 values, exact, of uint16 bit patterns of `dtype` ("float16" or "bfloat16"); same shape."""
    array = np.asarray(bits)
    if array.dtype != np.uint16:
        raise TypeError(f"bits: got an array of {array.dtype}; needed uint16")
    if _checked(dtype) == "float16":
        return array.view(np.float16).astype(np.float32)
    return (array.astype(np.uint32) << 16).view(np.float32)


@checked
def from_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """uint16 bit patterns of `dtype` nearest to float32 values, ties to even; a NaN stays a NaN; same shape."""
    array = np.asarray(values, np.float32)
    if _checked(dtype) == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)
    # Adding 0x7fff carries into the kept half above a tie; the last kept bit makes a tie go to even.
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(array), 0x7FFF, rounded).astype(np.uint16)


def _checked(dtype: str) -> str:
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}; needed one of {DTYPES}")
    return dtype
