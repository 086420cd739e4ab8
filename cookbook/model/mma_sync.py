"""mma.sync with float32 accumulators, m16n8k16 on 16-bit floats and m16n8k32 on 8-bit ones: who holds what, and the
product."""

from __future__ import annotations

import numpy as np

from cookbook.arguments import checked
from cookbook.model.formats import to_float32
from cookbook.model.small_floats import decode

__all__ = ["A8_COORDS", "A_COORDS", "B8_COORDS", "B_COORDS", "C_COORDS", "mma_m16n8k16", "mma_m16n8k32"]


def _coords(values: int, row, column) -> np.ndarray:
    """(32, values, 2) from functions of (group, thread in group, value index)."""
    lane, i = np.arange(32)[:, None], np.arange(values)[None, :]
    group, thread = lane // 4, lane % 4
    return np.stack(np.broadcast_arrays(row(group, thread, i), column(group, thread, i)), axis=-1)


# (lane, value) -> coordinates (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type").
A_COORDS = _coords(8, lambda g, t, i: g + 8 * (i // 2 % 2), lambda g, t, i: 2 * t + i % 2 + 8 * (i // 4))  # (m, k)
B_COORDS = _coords(4, lambda g, t, i: 2 * t + i % 2 + 8 * (i // 2), lambda g, t, i: g)  # (k, n)
# The same of 8-bit elements (PTX ISA, "Matrix Fragments for mma.m16n8k32"): four in a register instead of two.
A8_COORDS = _coords(16, lambda g, t, i: g + 8 * (i // 4 % 2), lambda g, t, i: 4 * t + i % 4 + 16 * (i // 8))  # (m, k)
B8_COORDS = _coords(8, lambda g, t, i: 4 * t + i % 4 + 16 * (i // 4), lambda g, t, i: g)  # (k, n)
C_COORDS = _coords(4, lambda g, t, i: g + 8 * (i // 2), lambda g, t, i: 2 * t + i % 2)  # (m, n)


@checked
def mma_m16n8k16(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str) -> np.ndarray:
    """mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32, T being `dtype`.

    PTX ISA, "Multiply-and-Accumulate Instruction: mma".

    Args:
        a: (..., 32, 8) uint16 by lane and value; leading dimensions broadcast, one instruction each.
        b: (..., 32, 4) uint16.
        c: (..., 32, 4) float32.
        dtype: "float16" or "bfloat16".

    Returns:
        (..., 32, 4) float32, c + a @ b. Products are exact; they are added in float32 in numpy's order, where
        the hardware's order and intermediate rounding are its own.
    """
    _check(("a", a, 8, np.uint16), ("b", b, 4, np.uint16), ("c", c, 4, np.float32))
    left = _matrix(to_float32(a, dtype), A_COORDS, (16, 16))
    right = _matrix(to_float32(b, dtype), B_COORDS, (16, 8))
    return c + (left @ right)[..., C_COORDS[..., 0], C_COORDS[..., 1]]


@checked
def mma_m16n8k32(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str) -> np.ndarray:
    """mma.sync.aligned.m16n8k32.row.col.f32.T.T.f32, T being `dtype`.

    Args:
        a: (..., 32, 16) uint8 by lane and value; leading dimensions broadcast, one instruction each.
        b: (..., 32, 8) uint8.
        c: (..., 32, 4) float32.
        dtype: "e4m3" or "e5m2".

    Returns:
        (..., 32, 4) float32, c + a @ b, as of `mma_m16n8k16`.
    """
    if dtype not in ("e4m3", "e5m2"):
        raise ValueError(f"dtype: got {dtype!r}; needed e4m3 or e5m2")
    _check(("a", a, 16, np.uint8), ("b", b, 8, np.uint8), ("c", c, 4, np.float32))
    left, right = _matrix(decode(a, dtype), A8_COORDS, (16, 32)), _matrix(decode(b, dtype), B8_COORDS, (32, 8))
    return c + (left @ right)[..., C_COORDS[..., 0], C_COORDS[..., 1]]


def _check(*fragments: tuple[str, np.ndarray, int, type]) -> None:
    """That each of (name, array, values of a lane, type) is what an instruction takes."""
    for name, x, values, kind in fragments:
        if x.shape[-2:] != (32, values) or x.dtype != kind:
            raise ValueError(f"{name}: got {x.dtype} of shape {x.shape}; needed {kind.__name__} (..., 32, {values})")


def _matrix(fragment: np.ndarray, coords: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    out = np.empty((*fragment.shape[:-2], *shape), np.float32)
    out[..., coords[..., 0], coords[..., 1]] = fragment
    return out
