"""ldmatrix and stmatrix: 8x8 matrices of 16-bit values between shared memory and a warp's registers.

Both take arrays with any leading dimensions, so that many warps or instructions go in one call. Registers are
(..., 32, num, 2) uint16: by lane, matrix, and low then high half of the 32-bit register.
"""

from __future__ import annotations

import numpy as np

from cookbook.arguments import Integers, checked, renamed
from cookbook.model.smem import SharedMemory

__all__ = ["ldmatrix", "stmatrix"]


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
    rows = np.asarray(row_addresses, np.int64)
    if num not in (1, 2, 4):
        raise ValueError(f"num: got {num}; needed 1, 2 or 4 matrices")
    if rows.ndim < 1 or rows.shape[-1] != 32:
        raise ValueError(f"row_addresses: got shape {rows.shape}; needed (..., 32), one for each lane")
    return rows[..., : 8 * num].reshape(*rows.shape[:-1], num, 8)
