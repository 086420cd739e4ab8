"""Linear algebra over GF(2), the field in which addition is XOR.

Matrices are numpy arrays of 0 and 1; row and column i stand for bit i, least significant first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cookbook.arguments import integer, shown

__all__ = ["annihilator", "echelon", "kernel", "rank", "rank_of_ints", "span"]

LARGEST = 1024  # bits of a matrix: more than any address has
LARGEST_SPAN = 24  # vectors whose sums are all listed


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
    for value in _vectors("vectors", vectors):
        for element in basis:
            value = min(value, value ^ element)
        if value:
            basis.append(value)
    return len(basis)


def _checked(matrix: np.ndarray) -> np.ndarray:
    """As uint8; a bool is a bit here."""
    array = np.asarray(matrix)
    if array.dtype.kind not in "biu" and array.size:
        raise TypeError(f"matrix: got {shown(matrix)}; needed a 2-D array of 0 and 1")
    if array.ndim != 2 or not ((array == 0) | (array == 1)).all():
        raise ValueError(f"matrix: got an array of shape {array.shape}; needed a 2-D array of 0 and 1")
    if max(array.shape) > LARGEST:
        raise ValueError(f"matrix: got shape {array.shape}; needed {LARGEST} x {LARGEST} at most")
    return array.astype(np.uint8)


def _vectors(name: str, vectors: Iterable[int]) -> list[int]:
    """Bit vectors as ints: no bools, no floats, none negative."""
    if not isinstance(vectors, Iterable) or isinstance(vectors, (str, bytes, Mapping)):
        raise TypeError(f"{name}: got {shown(vectors)}; needed integers >= 0")
    given = list(vectors)
    whole = "integers >= 0"  # the solver asks often, so plain ints go first
    return [v if type(v) is int and v >= 0 else integer(name, v, at_least=0, needed=whole) for v in given]


def echelon(vectors: Iterable[int]) -> list[int]:
    """A basis of the span, highest bits all different and each in one basis vector alone; lowest vector first.

    >>> [bin(v) for v in echelon([0b011, 0b110, 0b101])]
    ['0b11', '0b101']
    """
    basis: list[int] = []
    for vector in _vectors("vectors", vectors):
        for element in basis:
            vector = min(vector, vector ^ element)
        if vector:
            top = 1 << vector.bit_length() - 1
            basis = [element ^ vector if element & top else element for element in basis]
            basis = sorted([*basis, vector], reverse=True)
    return basis[::-1]


def span(vectors: Sequence[int]) -> np.ndarray:
    """All sums of the vectors, as int64: entry i is the XOR of the vectors at the bits of i.

    >>> span([1, 4]).tolist()
    [0, 1, 4, 5]
    """
    found = np.zeros(1, np.int64)
    given = _vectors("vectors", vectors)
    if len(given) > LARGEST_SPAN or any(vector >> 63 for vector in given):
        needed = f"{LARGEST_SPAN} of them at most, each below 2**63"
        raise ValueError(f"vectors: got {shown(given)}; needed {needed}")
    for vector in given:
        found = np.concatenate([found, found ^ vector])
    return found


def kernel(images: Sequence[int]) -> list[int]:
    """A basis of the vectors that a linear map sends to zero; bit j of a vector goes to `images[j]`.

    >>> kernel([1, 2, 3])  # e0 + e1 + e2
    [7]
    """
    found: list[int] = []
    pivots: list[tuple[int, int]] = []  # (image, vector)
    for bit, image in enumerate(_vectors("images", images)):
        vector = 1 << bit
        for known, source in pivots:
            if image ^ known < image:
                image, vector = image ^ known, vector ^ source
        if image:
            pivots.append((image, vector))
        else:
            found.append(vector)
    return echelon(found)


def annihilator(vectors: Iterable[int], n: int) -> list[int]:
    """A basis of the bit masks of n bits whose AND with every vector has even parity.

    >>> annihilator([0b011], 3)
    [3, 4]
    """
    n, basis = integer("n", n, at_least=0, at_most=LARGEST), _vectors("vectors", vectors)
    return kernel([sum((v >> j & 1) << i for i, v in enumerate(basis)) for j in range(n)])
