"""Model of the bits that an 8-bit wgmma loses in its sums. No document says it; a GPU confirms it.

In each step of 32 products, the sum so far and the products are cut off (not rounded) below bit 13 of a fraction whose
first bit is that of the largest among them, and then added exactly. `tests/gpu/test_fp8_gemm.py` compares the error
that follows with the one that a GPU makes.
"""

from __future__ import annotations

import math

import numpy as np

from cookbook.arguments import checked, integer, numbers
from cookbook.model.small_floats import decode, encode

__all__ = ["predicted_error", "share_lost", "summed"]

FRACTION = 13  # bits that an addition keeps
STEP = 32  # products of one wgmma along K
MOST = 1 << 24  # products of an estimate


@checked
def summed(products: np.ndarray, promoted_after: int | None = None) -> np.ndarray:
    """The sum of each row of products.

    Args:
        products: (sums, K), exact products of two 8-bit floats; K is a multiple of 32.
        promoted_after: after this number of products, a multiple of 32, the sum is added to a total in full precision
            and begins again at zero. If left out, it never is.

    Returns:
        (sums,) float64.

    Raises:
        ValueError: other than two modes, or no whole steps.
    """
    products = numbers("products", products, ndim=2)
    if products.shape[1] % STEP:
        raise ValueError(f"products: got shape {products.shape}; needed (sums, K), K a multiple of {STEP}")
    if promoted_after is not None:
        integer("promoted_after", promoted_after, at_least=STEP, at_most=MOST, multiple_of=STEP)
    total, partial = np.zeros(len(products)), np.zeros(len(products))
    for k in range(0, products.shape[1], STEP):
        step = products[:, k : k + STEP]
        largest = np.maximum(np.abs(partial), np.abs(step).max(axis=1))
        partial = _cut(partial, largest) + _cut(step, largest[:, None]).sum(axis=1)
        if promoted_after and (k + STEP) % promoted_after == 0:
            total, partial = total + partial, np.zeros(len(products))
    return total + partial


@checked
def predicted_error(k: int, promoted_after: int | None = None, sums: int = 1000) -> float:
    """The relative error (Frobenius norm) of `sums` sums over `k` products of normal numbers rounded to e4m3.

    Args:
        k: products of a sum, a multiple of 32.
        promoted_after: as of `summed`.
        sums: more of them make the estimate sharper; it is the same each time.
    """
    integer("k", k, at_least=STEP, at_most=MOST, multiple_of=STEP)
    integer("sums", sums, at_least=1, at_most=MOST // k)
    random = np.random.default_rng(k)
    a, b = (decode(encode(random.standard_normal((sums, k)), "e4m3"), "e4m3").astype(np.float64) for _ in range(2))
    exact = (a * b).sum(axis=1)
    return float(np.linalg.norm(summed(a * b, promoted_after) - exact) / np.linalg.norm(exact))


@checked
def share_lost(k: int) -> float:
    """Return how much a sum of `k` products may lose, as a share of the root of the sum of their squares.

    In each step 33 numbers lose less than 2^-13 of the largest one each: evenly spread, of either sign. So the mean of
    a loss squared is a third of that squared at most, and the squares of all losses add up. Put for the largest number
    is that root, which is the size of a sum of products of random signs; the largest product is smaller as a rule. So
    a loss is a seventh of this as a rule, and hardly ever more than it. A sum that begins at zero again after each `k`
    products loses the same share.
    """
    integer("k", k, at_least=1, at_most=MOST)
    return math.sqrt(-(-k // STEP) * (STEP + 1) / 3) * 2.0**-FRACTION


def _cut(values: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """`values` without what lies below bit FRACTION of a fraction whose first bit is that of `largest`."""
    unit = np.exp2(np.floor(np.log2(np.maximum(largest, 2.0**-60))) - FRACTION)
    return np.trunc(values / unit) * unit
