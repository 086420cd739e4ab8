"""Operands of 8-bit integers on Hopper: A and B go as 16-bit ones do, and every sum is exact in int32."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from cookbook.check.evaluated import Evaluated, evaluated
from cookbook.check.model.product import global_bytes, simulate_tiles
from cookbook.check.model.wgmma import TmaWgmma

__all__ = ["simulate_int8", "simulate_int8_evaluated"]


def simulate_int8(module: ModuleType, a: np.ndarray, b: np.ndarray, dtype: Any, config: Any) -> np.ndarray:
    """`a @ b.T` as the recipe computes it.

    Args:
        module: a recipe whose front matter names `operands: int8`.
        a: (M, K) int8.
        b: (N, K) int8.
        dtype: the cutlass numeric type of the output: Int32.
        config: the recipe's Config.

    Returns:
        (M, N) int32, exact where no partial sum leaves int32; a sum that would leave it stays at its limit.

    Raises:
        ValueError: operands of other types or depths, or a layout that the recipe's instructions cannot take.
    """
    found = evaluated(module, dtype, config)
    return simulate_int8_evaluated(found, found, a, b, config)


def simulate_int8_evaluated(
    writer: Evaluated, reader: Evaluated, a: np.ndarray, b: np.ndarray, config: Any
) -> np.ndarray:
    """`simulate_int8` with the layouts of those who write memory and of those who read it told apart."""
    for name, x in (("a", a), ("b", b)):
        if x.ndim != 2 or x.dtype != np.int8:
            raise ValueError(f"{name}: got {x.dtype} of shape {x.shape}; needed int8 of 2 dimensions")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"b: got K = {b.shape[1]}; needed {a.shape[1]}, that of a")
    left, right = (global_bytes(np.ascontiguousarray(x).view(np.uint8)) for x in (a, b))
    return simulate_tiles(TmaWgmma(writer, reader, "int8"), writer, reader, left, right, "int32", config)
