"""Chained GEMMs: C = (A B) B2, the product in the middle rounded. `b` is (K, N1), `b2` is (N1, N), C is (M, N).

A shape stays (M, N, K); N1 is what the functions here say of it. Imports nothing heavy.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TIMED", "columns", "middle"]

TIMED = 128  # columns of the first product, of what is timed


def middle(config: Any) -> int:
    """N1 of the problems that a kernel is followed for: a few columns short of the tile."""
    return config.middle - 8


def columns(shape: tuple[int, ...]) -> int:
    """N1 of a product that is run: from 1 to 256, another for most shapes."""
    m, n, k = shape
    return 1 + (37 * m + 11 * n + k // 8) % 256
