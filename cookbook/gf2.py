"""Linear algebra over GF(2), the field in which addition is XOR.

Matrices are numpy arrays of 0 and 1; row and column i stand for bit i, least significant first.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

__all__ = ["inverse", "rank", "rank_of_ints"]


def rank(matrix: np.ndarray) -> int:
    """The rank over GF(2) of a 2-D array of 0 and 1.

    >>> rank(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]]))  # the rows XOR to zero
    2
    """
    bits = _checked(matrix)
    return rank_of_ints(int("".join(map(str, row)), 2) if len(row) else 0 for row in bits)


def rank_of_ints(vectors: Iterable[int]) -> int:
    """The dimension of the span of bit vectors given as non-negative integers.

    >>> rank_of_ints([0b011, 0b110, 0b101])
    2
    """
    basis: list[int] = []
    for vector in vectors:
        value = int(vector)
        if value < 0:
            raise ValueError(f"vectors: got {value}; needed integers >= 0")
        for element in basis:
            value = min(value, value ^ element)
        if value:
            basis.append(value)
    return len(basis)


def inverse(matrix: np.ndarray) -> np.ndarray:
    """The inverse over GF(2) of a square (n, n) array of 0 and 1, as uint8.

    Raises:
        ValueError: the matrix is not square, or is singular.
    """
    bits = _checked(matrix)
    n = len(bits)
    if bits.shape != (n, n):
        raise ValueError(f"matrix: got shape {bits.shape}; needed a square one")
    work = np.concatenate([bits, np.eye(n, dtype=np.uint8)], axis=1)
    for column in range(n):
        pivots = np.flatnonzero(work[column:, column])
        if not len(pivots):
            raise ValueError(f"matrix: got one of rank {rank(bits)}; needed rank {n} to invert it")
        pivot = column + pivots[0]
        work[[column, pivot]] = work[[pivot, column]]
        others = np.flatnonzero(work[:, column])
        others = others[others != column]
        work[others] ^= work[column]
    return work[:, n:]


def _checked(matrix: np.ndarray) -> np.ndarray:
    array = np.asarray(matrix)
    if array.ndim != 2 or not np.isin(array, (0, 1)).all():
        raise ValueError(f"matrix: got an array of shape {array.shape}; needed a 2-D array of 0 and 1")
    return array.astype(np.uint8)
