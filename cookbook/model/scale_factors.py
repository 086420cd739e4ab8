"""Scale factors of the block-scaled kinds: their order in global and shared memory, and their place in tensor memory.

A row of A (or of B, one row for each column of the product) has one byte for every 16 or 32 elements of K. In memory
the bytes come in atoms of 512: 128 rows by 4 factors. Row r has its 4 bytes, along K, at 16 * (r % 32) + 4 * (r // 32).
tcgen05.cp.32x128b.warpx4 takes an atom to 4 columns of tensor memory: row r to lane r % 32 of all four warps, column
r // 32, and the k-th factor to byte k of that cell. The ids in the instruction descriptor say which byte is the first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cookbook.arguments import checked, integer, integers
from cookbook.model.tmem import TensorMemory, TmemAddress

__all__ = ["ATOM_BYTES", "atom_offsets", "read_scales", "to_atoms"]

MOST = 1 << 12  # rows, or factors, that a table is made of
ATOM_ROWS, ATOM_FACTORS, ATOM_BYTES = 128, 4, 512
WARP_LANES = 32


@checked
def atom_offsets(rows: int, factors: int) -> np.ndarray:
    """(rows, factors) int64: the byte of each row's each scale factor, atoms along K first.

    PTX ISA, tcgen05 "Scale Factor" layouts of scale_vec::1X, 2X and 4X, as one atom of 128 x 4 bytes has them.
    """
    for name, extent in (("rows", rows), ("factors", factors)):
        integer(name, extent, at_least=0, at_most=MOST)
    row, k = np.indices((rows, factors))
    along = -(-factors // ATOM_FACTORS)
    atom = row // ATOM_ROWS * along + k // ATOM_FACTORS
    return atom * ATOM_BYTES + row % 32 * 16 + row % ATOM_ROWS // 32 * 4 + k % ATOM_FACTORS


@checked
def to_atoms(scales: np.ndarray) -> np.ndarray:
    """1-D uint8: the scale factors (rows, factors) in the order of `atom_offsets`, whole atoms, zero where none is."""
    scales = integers("scales", scales, shape=(None, None), at_least=0, at_most=255).astype(np.uint8)
    rows, factors = scales.shape
    out = np.zeros(-(-rows // ATOM_ROWS) * -(-factors // ATOM_FACTORS) * ATOM_BYTES, np.uint8)
    out[atom_offsets(rows, factors)] = scales
    return out


@checked
def read_scales(
    tmems: Sequence[TensorMemory],
    m: int,
    n: int,
    count: int,
    scale_a: TmemAddress | int,
    scale_b: TmemAddress | int,
    a_id: int,
    b_id: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(m, count) and (n, count) uint8: the scale factors that one instruction reads from tensor memory.

    Each CTA has those of its own rows of A, and of all rows of B: for D's columns are all computed in each. Bits 30-31
    of a 32-bit address may name the first byte, as CuTe writes them; they must then agree with the id.

    Raises:
        ValueError: the bytes are not all in one cell, or the copies for the four warps differ.
    """
    integer("count", count, at_least=1, at_most=ATOM_FACTORS)
    for name, first in (("a_id", a_id), ("b_id", b_id)):
        integer(name, first, at_least=0, at_most=ATOM_FACTORS - count)
    for name, extent in (("m", m), ("n", n)):
        integer(name, extent, at_least=1, at_most=256)
    if not tmems or m % len(tmems):
        raise ValueError(f"tmems: got {len(tmems)}; needed one for each CTA, 1 or 2 that divide {m}")
    scale_a, scale_b = _cell(scale_a, a_id, "scale_a"), _cell(scale_b, b_id, "scale_b")
    own = m // len(tmems)
    split = own == 64  # lanes 64 to 127 compute the second half of the columns: PTX ISA, layout B
    a = np.concatenate([_rows(t, scale_a, own, "scale_a", (0, 32, 64, 96)) for t in tmems])
    b = [_columns(t, scale_b, n, split) for t in tmems]
    if any((x != b[0]).any() for x in b[1:]):
        raise ValueError("scale_b: got other scale factors of B in the two CTAs; needed the same")
    return a[:, a_id : a_id + count], b[0][:, b_id : b_id + count]


def _cell(address: TmemAddress | int, first: int, name: str) -> TmemAddress:
    """The cell of an address that may also name a byte of it."""
    if isinstance(address, TmemAddress):
        return address
    if address >> 30 not in (0, first):
        raise ValueError(f"{name}: got byte {address >> 30} in {address:#x}; needed {first}, the descriptor's id, or 0")
    return TmemAddress.of(address & (1 << 30) - 1)


def _columns(tmem: TensorMemory, address: TmemAddress, n: int, split: bool) -> np.ndarray:
    if not split:
        return _rows(tmem, address, n, "scale_b", (0, 32, 64, 96))
    return np.concatenate([_rows(tmem, address, n // 2, "scale_b", half) for half in ((0, 32), (64, 96))])


def _rows(tmem: TensorMemory, address: TmemAddress, rows: int, name: str, copies: tuple[int, ...]) -> np.ndarray:
    """(rows, 4) uint8, the same from every copy."""
    if address.lane:
        raise ValueError(f"{name}: got lane {address.lane}; needed 0")
    row = np.arange(rows)
    found = [tmem.read(first + row % WARP_LANES, address.column + row // WARP_LANES) for first in copies]
    for first, cells in zip(copies, found, strict=True):
        if (cells != found[0]).any():
            raise ValueError(
                f"{name}: got other scale factors in lanes {first} to {first + 31} than in lanes "
                f"{copies[0]} to {copies[0] + 31}; needed a copy for each warp"
            )
    return np.ascontiguousarray(found[0])[:, None].view(np.uint8)
