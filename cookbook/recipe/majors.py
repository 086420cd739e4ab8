"""Operand majors: along which index A and B are contiguous in global memory, and what follows from it.

The majors of a GEMM are two letters, as BLAS and CuTe use them, the first for A, the second for B: whether the matrix,
stored by columns, is to be *transposed* on the way, or *not*. A is (M, K), B is (K, N):

| majors | A contiguous along | B contiguous along | as torch tensors             |
|--------|--------------------|--------------------|------------------------------|
| tn     | k: rows            | k: columns         | a, weight.T                  |
| tt     | k: rows            | n: rows            | a, b                         |
| nn     | m: columns         | k: columns         | x.T, weight.T                |
| nt     | m: columns         | n: rows            | x.T, b                       |

"tn" is what tensor cores take by themselves, both operands K-major, and all that a recipe takes whose front matter
says nothing of majors. A recipe's `Config` says it in two fields, `a_major` ("k" or "m") and `b_major` ("k" or "n").
"""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["DEFAULT", "MAJORS", "align", "configured", "letters", "misfit", "of_config", "of_kernel", "swaps"]

DEFAULT = "tn"
MAJORS = {"tn": ("k", "k"), "tt": ("k", "n"), "nn": ("m", "k"), "nt": ("m", "n")}  # (a_major, b_major)
VECTOR = 8  # elements of 16 bits in the 16-byte pieces that global memory is read by


def letters(a_major: str, b_major: str) -> str:
    """The two letters: `letters("m", "k")` is "nn".

    Raises:
        ValueError: an `a_major` that is neither "k" nor "m", or a `b_major` that is neither "k" nor "n".
    """
    for name, said in MAJORS.items():
        if said == (a_major, b_major):
            return name
    raise ValueError(f"a_major, b_major: got {a_major!r}, {b_major!r}; needed k or m, and k or n")


def of_config(config: Any) -> tuple[str, str]:
    """(a_major, b_major) of a recipe's configuration; "k" of one that does not say."""
    said = getattr(config, "a_major", "k"), getattr(config, "b_major", "k")
    letters(*said)
    return said


def of_kernel(module: Any, config: Any) -> tuple[str, str]:
    """`of_config` of the operands as the kernel takes them: where it swaps A/B its A is b, (K, N), transposed."""
    a_major, b_major = of_config(config)
    if not swaps(module, config):
        return a_major, b_major
    return "k" if b_major == "k" else "m", "k" if a_major == "k" else "n"


def swaps(module: Any, config: Any) -> bool:
    """Return whether a recipe's kernel swaps A/B."""
    return getattr(config, "swap_ab", getattr(module, "TRANSPOSED", False))


def configured(config: Any, majors: str = DEFAULT) -> Any:
    """A recipe's configuration for these majors.

    Raises:
        ValueError: no such majors, or a configuration that cannot say them.
    """
    if majors not in MAJORS:
        raise ValueError(f"majors: got {majors!r}; needed one of {', '.join(MAJORS)}")
    if of_config(config) == MAJORS[majors]:
        return config
    if not {"a_major", "b_major"} <= {f.name for f in dataclasses.fields(config)}:
        raise ValueError(f"majors: got {majors}; needed {DEFAULT}: {type(config).__name__} has no a_major and b_major")
    return dataclasses.replace(config, a_major=MAJORS[majors][0], b_major=MAJORS[majors][1])


def contiguous(majors: str) -> tuple[int, ...]:
    """Return which extents of a shape (M, N, K) some operand is contiguous along: 0, 1, 2 stand for M, N, K."""
    return tuple(sorted({"mnk".index(major) for major in MAJORS[majors]}))


def misfit(shape: tuple[int, ...], majors: str = DEFAULT) -> str:
    """Return which extent of (M, N, K) is not one of whole 16-byte pieces though an operand is contiguous along it; or
    "".

    A matrix without padding has its rows (or columns) that far apart, and every one must begin at such a piece.
    """
    return next((f"{'MNK'[i]} = {shape[i]}" for i in contiguous(majors) if shape[i] % VECTOR), "")


def align(shape: tuple[int, ...], majors: str = DEFAULT) -> tuple[int, ...]:
    """The shape with the extents that operands are contiguous along rounded up to whole 16-byte pieces."""
    along = contiguous(majors)
    return tuple(-(-x // VECTOR) * VECTOR if i in along else x for i, x in enumerate(shape))
