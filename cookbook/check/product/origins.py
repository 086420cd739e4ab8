"""Encode where an element came from, as one integer.

Every element in shared memory, tensor memory and registers is an `int64`. Of an element of an operand it says which
one: operand, row and k. Of an accumulator it says which one of which tile of `sums`. No element has a value.

| kind (bits 56-62) | bits 28-55 | bits 3-27 |
|---|---|---|
| special | | which: zero, TMA's zero, a constant |
| operand | row | column, k of A and B |
| tile | rounding (52-55), number of the tile (20-51) | row * 512 + column (3-19) |
| node | rounding, number of the node | place in the node |

The three lowest bits are 0: memory keeps an element of several bytes as an integer a byte, each one more than the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FILL", "MIXED", "OUTSIDE", "UNWRITTEN", "ZERO", "column_of", "describe", "kind_of", "operand", "row_of"]

ZERO, FILL, CONSTANT = 0, 1 << 3, 2 << 3
UNWRITTEN, MIXED, OUTSIDE = -8, -16, -24
KIND, ROW, COLUMN = 56, 28, 3
TILE, NODE = 64, 65  # kinds; below 32: operands
NUMBER, ROUNDING = 20, 52
ROUNDINGS = {"f32": 0, "bf16": 1, "f16": 2, "f8E4M3FN": 3, "f8E5M2": 4, "tf32": 5}
SCALES = {"row_scale": 11, "column_scale": 12, "alpha": 13, "beta": 14}  # an epilogue's: odd of rows, even of columns
BETA = SCALES["beta"]  # which the residual is multiplied by, the others multiply the product
FACTORS = 3, 4, *SCALES.values()  # 3, 4: scale factors of A and of B
BIAS, RESIDUAL = ADDED = 5, 6  # what an epilogue adds to the product
OPERANDS = {"A": 1, "B": 2, "SFA": 3, "SFB": 4, "SA": 3, "SB": 4, "bias": BIAS, "residual": RESIDUAL, "up": 7, "B2": 9}
OPERANDS |= {"W": 10, "ZB": 11}  # of a packed weight: its words, and zero points of its groups
NAMES = {1: "A", 2: "B", 3: "scale factors of A", 4: "scale factors of B", BIAS: "bias", RESIDUAL: "residual"}
NAMES[7] = "the other weight"
PRODUCT_IN_THE_MIDDLE = 8  # of a chained GEMM: A B, rounded, which B2 is multiplied by
NAMES |= {OPERANDS["W"]: "words", OPERANDS["ZB"]: "zero points of B"}
NAMES |= {PRODUCT_IN_THE_MIDDLE: "(A B)", OPERANDS["B2"]: "B2"}
OPERANDS |= SCALES
NAMES |= {kind: name for name, kind in SCALES.items()}
WIDTH = 512  # columns of a tile of accumulators at most


def operand(kind: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The elements (row, column) of an operand."""
    return (np.int64(kind) << KIND) | (rows.astype(np.int64) << ROW) | (columns.astype(np.int64) << COLUMN)


def kind_of(ids: Any) -> Any:
    """0: special, or not there; 1, 2: A and B; 3, 4: their scale factors; ADDED; 8, 9: what a chained GEMM multiplies
    last; TILE, NODE."""
    return np.maximum(ids >> KIND, 0)


def row_of(ids: Any) -> Any:
    return (ids >> ROW) & ((1 << (KIND - ROW)) - 1)


def column_of(ids: Any) -> Any:
    return (ids >> COLUMN) & ((1 << (ROW - COLUMN)) - 1)


def is_zero(ids: Any) -> Any:
    return (ids == ZERO) | (ids == FILL)


def numbered(kind: int, number: int, places: np.ndarray) -> np.ndarray:
    """The elements at these places of a tile or node."""
    return (np.int64(kind) << KIND) | (np.int64(number) << NUMBER) | (places.astype(np.int64) << COLUMN)


def number_of(ids: Any) -> Any:
    """Return which tile or node."""
    return (ids >> NUMBER) & ((1 << (ROUNDING - NUMBER)) - 1)


def place_of(ids: Any) -> Any:
    """The place in a tile or node."""
    return (ids >> COLUMN) & ((1 << (NUMBER - COLUMN)) - 1)


def rounding_of(ids: Any) -> Any:
    return (ids >> ROUNDING) & 15


def is_sum(ids: Any) -> Any:
    """Return whether they are accumulators, or made of such."""
    return ids >= np.int64(TILE) << KIND


def describe(one: int) -> str:
    """An element that is no accumulator, in words."""
    named = {
        ZERO: "0",
        FILL: "a filled-in zero",
        UNWRITTEN: "what nothing has written",
        MIXED: "bytes of several elements",
        OUTSIDE: "what lies outside of the operands",
    }
    if one in named:
        return named[one]
    kind = int(kind_of(np.int64(one)))
    if kind in NAMES:
        return f"{NAMES[kind]}[{int(row_of(np.int64(one)))}, {int(column_of(np.int64(one)))}]"
    return {TILE: "an accumulator", NODE: "a sum of accumulators"}.get(kind, "a constant")
