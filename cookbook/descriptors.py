"""Matrix descriptors: the 64 bits that tell a tensor core where an operand lies in shared memory.

They are read off the layout itself: nothing here assumes how the layout was made. Hopper's are
`cookbook.model.MatrixDescriptor`; Blackwell's have a version, and one more swizzle mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cookbook.layouts import SmemLayout
from cookbook.model.tma import SWIZZLES
from cookbook.model.wgmma import CHUNK, FIELD, MODE_CODES, MatrixDescriptor
from cookbook.swizzle import Swizzle

__all__ = ["BlackwellDescriptor", "canonical_offsets", "describe", "field_table", "swizzle_of"]

CORE = 8  # rows of a core matrix, each of 16 bytes
VERSION = 0b001
# (bytes of a swizzled row, bytes that stay together) -> the swizzle of byte addresses
MODES = {(mode, 16): swizzle for mode, swizzle in SWIZZLES.items()} | {(128, 32): Swizzle(2, 5, 2)}
BLACKWELL_CODES = {(0, 16): 0, (128, 32): 1, (128, 16): 2, (64, 16): 4, (32, 16): 6}
HOPPER_CODES = {(mode, 16): code for mode, code in MODE_CODES.items()}


@dataclass(frozen=True)
class BlackwellDescriptor:
    """The 64-bit shared memory descriptor of tcgen05.mma.

    PTX ISA, "TensorCore 5th Generation Family Instructions": "Shared Memory Descriptor".

    All in bytes, multiples of 16 below 2**18: where the matrix starts, `lbo` (leading dimension byte offset) and
    `sbo` (stride dimension byte offset). `mode` is the swizzle, 0, 32, 64 or 128 bytes, `together` the bytes that it
    keeps together: 16, or 32 under the 128-byte mode. The leading dimension is relative (bit 52 is 0).
    """

    start: int
    lbo: int
    sbo: int
    mode: int
    together: int = 16
    base_offset: int = 0

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
        """The 64 bits: start 0-13, lbo 16-29, sbo 32-45, 0b001 in 46-48, base_offset 49-51, mode 61-63."""
        word = self.start // CHUNK | self.lbo // CHUNK << 16 | self.sbo // CHUNK << 32
        return word | VERSION << 46 | self.base_offset << 49 | BLACKWELL_CODES[self.mode, self.together] << 61

    @classmethod
    def decode(cls, word: int) -> BlackwellDescriptor:
        """The descriptor that these 64 bits say.

        Raises:
            ValueError: not an unsigned 64-bit integer, a fixed field with another value, or no such mode.
        """
        known = FIELD | FIELD << 16 | FIELD << 32 | 7 << 46 | 7 << 49 | 7 << 61
        codes = {code: mode for mode, code in BLACKWELL_CODES.items()}
        if not 0 <= word < 1 << 64 or word & ~known or word >> 46 & 7 != VERSION or word >> 61 not in codes:
            raise ValueError(
                f"word: got {word:#x}; needed 0b001 in bits 46-48, a mode of {sorted(codes)}, zeros elsewhere"
            )
        start, lbo, sbo = ((word >> at & FIELD) * CHUNK for at in (0, 16, 32))
        return cls(start, lbo, sbo, *codes[word >> 61], word >> 49 & 7)


def swizzle_of(descriptor: MatrixDescriptor | BlackwellDescriptor) -> Swizzle:
    """The swizzle of byte addresses that the hardware applies."""
    return MODES[descriptor.mode, getattr(descriptor, "together", 16)]


def describe(
    layout: SmemLayout, major: str, hopper: bool, rows: int, origin: tuple[int, int] = (0, 0), base: int = 0
) -> MatrixDescriptor | BlackwellDescriptor:
    """The descriptor of the rows x 32-byte operand of one instruction, read off a layout.

    PTX ISA, "Strides" and "Canonical Layouts" of wgmma and of tcgen05. K-major: `sbo` is from 8 rows to the next 8;
    `lbo`, without a swizzle, from one 16-byte chunk of K to the next, else unused and 16. MN-major without a swizzle:
    `sbo` from a 16-byte chunk to the next, `lbo` from 8 k to the next 8. MN-major with one: `lbo` from one swizzled row
    to the next along MN, `sbo` from 8 k (4 in the mode of 32-byte atoms, as CUTLASS has it) to the next. What an
    operand is too small to have is 0.

    Args:
        layout: (MN, K) or (MN, K, STAGE).
        rows: MN extent of the instruction, a multiple of 8.
        origin: (mn, k) of the block's first element.
        base: byte address of the tile.

    Raises:
        ValueError: the base is misaligned, the block is not in the tile, or no descriptor says this layout.
    """
    mode, together = _mode(layout.swizzle, hopper)
    if base % layout.alignment:
        raise ValueError(f"base: got {base}; needed a multiple of {layout.alignment} for {layout.swizzle!r}")
    block = _block(layout, rows, origin)
    start = int(block[0, 0])
    lbo, sbo = _strides(block - start, major, mode, together, layout.element_bytes)
    if min(lbo, sbo) < 0:
        raise ValueError(f"layout: got lbo {lbo} and sbo {sbo}; needed offsets that grow: not a canonical layout")
    if hopper:
        found = MatrixDescriptor(base + start, lbo, sbo, mode)
    else:
        found = BlackwellDescriptor(base + start, lbo, sbo, mode, together)
    if not np.array_equal(base + block, canonical_offsets(found, major, block.shape, layout.element_bits)):
        width = mode or CHUNK
        raise ValueError(
            f"layout: got {layout.outer!r} under {layout.swizzle!r}, which no {major}-major descriptor "
            f"of the {mode}-byte mode says; needed 8 lines, {width} bytes apart, "
            f"of {width} contiguous bytes along {major}"
        )
    return found


def canonical_offsets(
    descriptor: MatrixDescriptor | BlackwellDescriptor, major: str, shape: tuple[int, int], element_bits: int
) -> np.ndarray:
    """(mn, k) byte addresses that a descriptor names, before the swizzle.

    PTX ISA, "Canonical Layouts"; the swizzle, `swizzle_of`, then acts on these addresses.
    """
    size = element_bits // 8
    mn, k = np.indices(shape)
    width, lines = descriptor.mode or CHUNK, _lines(getattr(descriptor, "together", 16))
    if major == "K":
        inside = k * size % CHUNK + k * size // CHUNK * (CHUNK if descriptor.mode else descriptor.lbo)
        return descriptor.start + inside + mn % CORE * width + mn // CORE * descriptor.sbo
    along, across = mn * size // width, k // lines
    inside = descriptor.start + mn * size % width + k % lines * width
    if descriptor.mode:
        return inside + along * descriptor.lbo + across * descriptor.sbo
    return inside + along * descriptor.sbo + across * descriptor.lbo


def field_table(descriptor: MatrixDescriptor | BlackwellDescriptor) -> list[tuple[str, str, str, int]]:
    """(field, bits, value, encoded) of every field, lowest bits first."""
    byte_fields = [("start address", "0-13", descriptor.start), ("leading byte offset", "16-29", descriptor.lbo)]
    byte_fields.append(("stride byte offset", "32-45", descriptor.sbo))
    rows = [(name, bits, f"{value} bytes", value // CHUNK) for name, bits, value in byte_fields]
    mode = (descriptor.mode, getattr(descriptor, "together", 16))
    said = f"{mode[0]} bytes" + (", 32-byte atoms" if mode[1] == 32 else "") if mode[0] else "none"
    offset = ("base offset", "49-51", str(descriptor.base_offset), descriptor.base_offset)
    if isinstance(descriptor, MatrixDescriptor):
        return [*rows, offset, ("swizzle mode", "62-63", said, HOPPER_CODES[mode])]
    fixed = [("fixed", "46-48", "0b001", VERSION), offset, ("leading dimension mode", "52", "relative", 0)]
    return [*rows, *fixed, ("fixed", "53-60", "0", 0), ("swizzle mode", "61-63", said, BLACKWELL_CODES[mode])]


def _mode(swizzle: Swizzle, hopper: bool) -> tuple[int, int]:
    known = HOPPER_CODES if hopper else BLACKWELL_CODES
    for mode in known:
        if MODES[mode] == swizzle or not (swizzle.bits or mode[0]):
            return mode
    chip = "wgmma" if hopper else "tcgen05"
    raise ValueError(f"layout: got the byte swizzle {swizzle!r}; needed one of {[MODES[m] for m in known]} for {chip}")


def _block(layout: SmemLayout, rows: int, origin: tuple[int, int]) -> np.ndarray:
    """(rows, k) byte offsets before the swizzle, of the first stage."""
    offsets = layout.outer.table() * layout.element_bytes
    if offsets.ndim not in (2, 3):
        raise ValueError(f"layout: got {layout.outer!r}; needed modes (MN, K) or (MN, K, STAGE)")
    offsets = offsets[..., 0] if offsets.ndim == 3 else offsets
    if rows % CORE or not 0 < rows <= offsets.shape[0] - origin[0]:
        raise ValueError(f"rows: got {rows}; needed a multiple of 8, {offsets.shape[0] - origin[0]} at most")
    depth = min(2 * CHUNK // layout.element_bytes, offsets.shape[1] - origin[1])
    if min(origin) < 0 or depth <= 0:
        raise ValueError(f"origin: got {origin}; needed a place inside {offsets.shape}")
    return offsets[origin[0] : origin[0] + rows, origin[1] : origin[1] + depth]


def _strides(block: np.ndarray, major: str, mode: int, together: int, size: int) -> tuple[int, int]:
    """(lbo, sbo) in bytes of a block of byte offsets from its start."""
    per_chunk, lines = CHUNK // size, _lines(together)
    if major == "K":
        return CHUNK if mode else _at(block, 0, per_chunk), _at(block, CORE, 0)
    along, across = _at(block, (mode or CHUNK) // size, 0), _at(block, 0, lines)
    return (along, across) if mode else (across, along)


def _lines(together: int) -> int:
    """Lines of one swizzle atom along K: 8, or 4 in the mode of 32-byte atoms."""
    return CORE * CHUNK // together


def _at(block: np.ndarray, mn: int, k: int) -> int:
    return int(block[mn, k]) if mn < block.shape[0] and k < block.shape[1] else 0
