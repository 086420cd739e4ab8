"""The shared-memory descriptor of tcgen05: 64 bits that say where an operand lies, and the bytes it names.

Everything here follows from the descriptor alone, address by address. To make a descriptor from a layout, see
`cookbook.descriptors.describe`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cookbook.arguments import checked, choice, integer, pair, renamed
from cookbook.model.smem import SharedMemory
from cookbook.model.tma import SWIZZLES
from cookbook.model.wgmma import CHUNK, FIELD, MAJORS, MatrixDescriptor
from cookbook.swizzle import Swizzle

__all__ = ["BlackwellDescriptor", "canonical_offsets", "operand_bytes", "swizzle_of"]

MOST = 1 << 12  # rows, or columns, of an operand: above any
CORE = 8  # rows of a core matrix, each of 16 bytes
ROW_BYTES = 2 * CHUNK  # bytes of K that one instruction reads of each row, whatever the type
VERSION = 0b001
# (bytes of a swizzled row, bytes that stay together) -> the swizzle of byte addresses
MODES = {(mode, 16): swizzle for mode, swizzle in SWIZZLES.items()} | {(128, 32): Swizzle(2, 5, 2)}
BLACKWELL_CODES = {(0, 16): 0, (128, 32): 1, (128, 16): 2, (64, 16): 4, (32, 16): 6}


@checked
@dataclass(frozen=True)
class BlackwellDescriptor:
    """The 64-bit shared memory descriptor of tcgen05.mma and tcgen05.cp.

    PTX ISA, "TensorCore 5th Generation Family Instructions": "Shared Memory Descriptor".

    All in bytes, multiples of 16 below 2**18: where the matrix starts, `lbo` (leading dimension byte offset) and
    `sbo` (stride dimension byte offset). `mode` is the swizzle, 0, 32, 64 or 128 bytes, `together` the bytes that it
    keeps together: 16, or 32 under the 128-byte mode. `lbo_absolute` (sm_103a only) says that `lbo` is an address.
    """

    start: int
    lbo: int
    sbo: int
    mode: int
    together: int = 16
    base_offset: int = 0
    lbo_absolute: bool = False

    def __post_init__(self) -> None:
        for name in ("start", "lbo", "sbo"):
            value = getattr(self, name)
            if value % CHUNK or not 0 <= value <= FIELD * CHUNK:
                raise ValueError(f"{name}: got {value}; needed a multiple of 16 in 0 to {FIELD * CHUNK}")
        if (self.mode, self.together) not in BLACKWELL_CODES:
            raise ValueError(f"mode, together: got {self.mode, self.together}; needed one of {list(BLACKWELL_CODES)}")
        if not 0 <= self.base_offset <= 7:
            raise ValueError(f"base_offset: got {self.base_offset}; needed 0 to 7")

    def encode(self) -> int:
        """The 64 bits.

        start in 0-13, lbo in 16-29, sbo in 32-45, 0b001 in 46-48, base_offset in 49-51, lbo_absolute in 52, mode in
        61-63.
        """
        word = self.start // CHUNK | self.lbo // CHUNK << 16 | self.sbo // CHUNK << 32
        word |= VERSION << 46 | self.base_offset << 49 | int(self.lbo_absolute) << 52
        return word | BLACKWELL_CODES[self.mode, self.together] << 61

    @classmethod
    @checked
    def decode(cls, word: int) -> BlackwellDescriptor:
        """The descriptor that these 64 bits say.

        Raises:
            ValueError: not an unsigned 64-bit integer, a fixed field with another value, or no such mode.
        """
        known = FIELD | FIELD << 16 | FIELD << 32 | 7 << 46 | 15 << 49 | 7 << 61
        codes = {code: mode for mode, code in BLACKWELL_CODES.items()}
        if not 0 <= word < 1 << 64 or word & ~known or word >> 46 & 7 != VERSION or word >> 61 not in codes:
            raise ValueError(
                f"word: got {word:#x}; needed 0b001 in bits 46-48, a mode of {sorted(codes)}, zeros elsewhere"
            )
        start, lbo, sbo = ((word >> at & FIELD) * CHUNK for at in (0, 16, 32))
        return cls(start, lbo, sbo, *codes[word >> 61], word >> 49 & 7, bool(word >> 52 & 1))


@checked
def swizzle_of(descriptor: MatrixDescriptor | BlackwellDescriptor) -> Swizzle:
    """The swizzle of byte addresses that the hardware applies."""
    return MODES[descriptor.mode, getattr(descriptor, "together", 16)]


@checked
def canonical_offsets(
    descriptor: MatrixDescriptor | BlackwellDescriptor, major: str, shape: tuple[int, int], element_bits: int
) -> np.ndarray:
    """(mn, k) byte addresses that a descriptor names, before the swizzle.

    PTX ISA, "Canonical Layouts"; the swizzle, `swizzle_of`, then acts on these addresses.
    """
    choice("major", major, MAJORS)
    size = integer("element_bits", element_bits, one_of=(8, 16, 32, 64, 128)) // 8
    pair("shape", shape, of="mn, k", at_least=1, at_most=MOST)
    mn, k = np.indices(shape)
    width, lines = descriptor.mode or CHUNK, lines_of(getattr(descriptor, "together", 16))
    if major == "K":
        inside = k * size % CHUNK + k * size // CHUNK * (CHUNK if descriptor.mode else descriptor.lbo)
        return descriptor.start + inside + mn % CORE * width + mn // CORE * descriptor.sbo
    along, across = mn * size // width, k // lines
    inside = descriptor.start + mn * size % width + k % lines * width
    if descriptor.mode:
        return inside + along * descriptor.lbo + across * descriptor.sbo
    return inside + along * descriptor.sbo + across * descriptor.lbo


def lines_of(together: int) -> int:
    """Lines of one swizzle atom along K: 8, or 4 in the mode of 32-byte atoms."""
    return CORE * CHUNK // together


@checked
def operand_bytes(
    smem: SharedMemory,
    descriptor: BlackwellDescriptor | int,
    rows: int,
    major: str = "K",
    element_bits: int = 16,
    width: int = ROW_BYTES,
) -> np.ndarray:
    """(rows, width) uint8: the bytes that one instruction reads of each row, 32 along K of an operand.

    PTX ISA, tcgen05 "Canonical Layouts": the addresses follow from the descriptor, the swizzle acts on them.

    Args:
        descriptor: where the operand lies, or its 64 bits.
        rows: rows of A, or of B taken as (N, K), that this CTA's shared memory holds.
        major: "K", or "MN": the values of one k are adjacent along the rows.
        element_bits: 8, 16 or 32, the step along MN; K-major bytes do not depend on it.
        width: bytes of a K-major row, 16 or 32.

    Raises:
        ValueError: a field that is not modelled, a major that the mode does not have, or an address outside.
    """
    if not isinstance(descriptor, BlackwellDescriptor):
        with renamed(word="descriptor"):
            descriptor = BlackwellDescriptor.decode(descriptor)
    integer("width", width, one_of=(CHUNK, ROW_BYTES))
    integer("element_bits", element_bits, one_of=(4, 8, 16, 32))
    if major == "K":
        chunks = operand_addresses(descriptor, rows, "K", 8)[:, : width // CHUNK]
        return smem.read(chunks, CHUNK, np.uint8).reshape(rows, width)
    size = element_bits // 8
    addresses = operand_addresses(descriptor, rows, major, element_bits)
    return smem.read(addresses, size, np.uint8).reshape(rows, ROW_BYTES)


@lru_cache(maxsize=1024)
def operand_addresses(descriptor: BlackwellDescriptor, rows: int, major: str, element_bits: int) -> np.ndarray:
    """Read-only byte addresses, the swizzle applied: (rows, 2) of 16-byte chunks, or MN-major (rows, K) of elements."""
    if major not in MAJORS:
        raise ValueError(f"major: got {major!r}; needed one of {MAJORS}")
    integer("rows", rows, at_least=1, at_most=MOST)
    if descriptor.base_offset or descriptor.lbo_absolute:
        raise ValueError(f"descriptor: got {descriptor}; needed base_offset 0 and a relative lbo: others not modelled")
    if major == "K" and descriptor.together != CHUNK:
        raise ValueError("descriptor: got 32-byte atoms; needed a K-major mode, which keeps 16 bytes together")
    if major == "MN" and element_bits not in (8, 16, 32):
        raise ValueError(f"element_bits: got {element_bits}; needed 8, 16 or 32 for an MN-major operand")
    if major == "MN" and (element_bits == 32) != (descriptor.together == 32):
        raise ValueError(
            f"descriptor: got {descriptor.together}-byte atoms; needed 32-byte ones for MN-major elements of 32 bits, "
            "and those alone"
        )
    shape = (rows, ROW_BYTES * 8 // element_bits)
    addresses = swizzle_of(descriptor)(canonical_offsets(descriptor, major, shape, element_bits))
    addresses = addresses[:, ::CHUNK] if major == "K" else addresses
    addresses.flags.writeable = False  # it is kept and given out again
    return addresses
