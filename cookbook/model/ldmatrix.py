"""ldmatrix and stmatrix: matrices between shared memory and a warp's registers.

All take arrays with any leading dimensions, so that many warps or instructions go in one call. Of 8x8 matrices of
16-bit values the registers are (..., 32, num, 2) uint16: by lane, matrix, and low then high half of the 32-bit
register. Of 16x16 matrices of bytes they are (..., 32, num, 2, 4) uint8: by lane, matrix, register, and byte.
"""

from __future__ import annotations

import numpy as np

from cookbook.arguments import Integers, checked, integer, renamed
from cookbook.model.smem import SharedMemory

__all__ = ["ldmatrix", "ldmatrix_m16n16", "stmatrix"]


@checked
def ldmatrix(smem: SharedMemory, row_addresses: Integers, num: int, trans: bool = False) -> np.ndarray:
    """ldmatrix.sync.aligned.m8n8.x`num`[.trans].shared.b16 (PTX ISA, "Warp-level Matrix Load Instruction: ldmatrix").

    Lanes 8i to 8i+7 supply the addresses of rows 0 to 7 of matrix i. Lane l receives elements 2(l mod 4) and
    2(l mod 4) + 1 of row l // 4 of each; with `trans`, of the transposed matrix.

    Args:
        row_addresses: (..., 32) byte addresses, multiples of 16; those of lanes 8 * num and up are ignored.

    Returns:
        (..., 32, num, 2) uint16.
    """
    with renamed(addresses="row_addresses"):
        matrices = smem.read(_rows(row_addresses, num), 8)  # (..., num, row, column)
    if trans:
        matrices = np.swapaxes(matrices, -1, -2)
    pairs = matrices.reshape(*matrices.shape[:-2], 32, 2)  # pair l is elements 2(l mod 4), +1 of row l // 4
    return np.swapaxes(pairs, -2, -3)


@checked
def ldmatrix_m16n16(smem: SharedMemory, row_addresses: Integers, num: int) -> np.ndarray:
    """ldmatrix.sync.aligned.m16n16.x`num`.trans.shared.b8 (PTX ISA, "Warp-level Matrix Load Instruction: ldmatrix").

    The one ldmatrix that transposes bytes; sm_100a, sm_120a and their families have it, none before. Lanes 16i to
    16i + 15 supply the addresses of rows 0 to 15 of matrix i. Register r of lane l receives the bytes of column
    l // 4 + 8r in rows 4(l mod 4) to 4(l mod 4) + 3, the first in its lowest byte.

    Args:
        row_addresses: (..., 32) byte addresses, multiples of 16; those of lanes 16 * num and up are ignored.
        num: 1 or 2.

    Returns:
        (..., 32, num, 2, 4) uint8.
    """
    integer("num", num, one_of=(1, 2), needed="1 or 2 matrices")
    with renamed(addresses="row_addresses"):
        rows = _by_matrix(row_addresses, num, 16)
        matrices = smem.read(rows, 16, np.uint8)  # (..., num, row, column)
    leading = matrices.shape[:-3]
    quads = matrices.reshape(*leading, num, 4, 4, 2, 8)  # (..., num, l mod 4, byte, register, l // 4)
    order = (len(leading) + 4, len(leading) + 1, len(leading), len(leading) + 3, len(leading) + 2)
    return quads.transpose(*range(len(leading)), *order).reshape(*leading, 32, num, 2, 4)


@checked
def stmatrix(smem: SharedMemory, row_addresses: Integers, registers: np.ndarray, trans: bool = False) -> None:
    """stmatrix.sync.aligned.m8n8.x`num`[.trans].shared.b16 (PTX ISA, "Warp-level Matrix Store Instruction: stmatrix").

    Args:
        row_addresses: (..., 32) as for `ldmatrix`.
        registers: (..., 32, num, 2) uint16, laid out as `ldmatrix` returns them.
    """
    if registers.dtype != np.uint16 or registers.ndim < 3 or registers.shape[-1] != 2 or registers.shape[-3] != 32:
        raise ValueError(
            f"registers: got {registers.dtype} of shape {registers.shape}; needed uint16 (..., 32, num, 2)"
        )
    rows = _rows(row_addresses, registers.shape[-2])
    pairs = np.swapaxes(registers, -2, -3)
    matrices = pairs.reshape(*pairs.shape[:-2], 8, 8)
    with renamed(addresses="row_addresses", values="registers"):
        smem.write(rows, np.swapaxes(matrices, -1, -2) if trans else matrices)


def _rows(row_addresses: Integers, num: int) -> np.ndarray:
    """(..., num, 8): the row addresses that count."""
    if num not in (1, 2, 4):
        raise ValueError(f"num: got {num}; needed 1, 2 or 4 matrices")
    return _by_matrix(row_addresses, num, 8)


def _by_matrix(row_addresses: Integers, num: int, each: int) -> np.ndarray:
    """(..., num, each): the row addresses that count, `each` of a matrix."""
    rows = np.asarray(row_addresses, np.int64)
    if rows.ndim < 1 or rows.shape[-1] != 32:
        raise ValueError(f"row_addresses: got shape {rows.shape}; needed (..., 32), one for each lane")
    return rows[..., : each * num].reshape(*rows.shape[:-1], num, each)
