"""Matrix descriptors: the 64 bits that tell a tensor core where an operand lies in shared memory.

They are read off the layout itself: nothing here assumes how the layout was made. What the bits mean is in the models:
Hopper's are `cookbook.model.MatrixDescriptor`; Blackwell's, `BlackwellDescriptor`, have a version, and one more swizzle
mode.
"""

from __future__ import annotations

import numpy as np

from cookbook.arguments import checked, choice, wrong_value
from cookbook.layouts import Layout, SmemLayout
from cookbook.model.smem_descriptor import (
    BLACKWELL_CODES,
    CORE,
    MODES,
    VERSION,
    BlackwellDescriptor,
    canonical_offsets,
    lines_of,
    swizzle_of,
)
from cookbook.model.wgmma import CHUNK, FIELD, MODE_CODES, MatrixDescriptor
from cookbook.swizzle import Swizzle

__all__ = ["BlackwellDescriptor", "canonical_offsets", "describe", "field_table", "swizzle_of"]

MOST_ROWS = 1 << 16
HOPPER_CODES = {(mode, 16): code for mode, code in MODE_CODES.items()}


@checked
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
    choice("major", major, ("K", "MN"))
    mode, together = _mode(layout.swizzle, hopper)
    if base < 0 or base % layout.alignment:
        raise ValueError(f"base: got {base}; needed a multiple of {layout.alignment} for {layout.swizzle!r}")
    block = _block(layout, rows, origin)
    start = int(block[0, 0])
    if base + start > FIELD * CHUNK:
        wrong_value("base", base, f"{FIELD * CHUNK - start} at most, which a descriptor can say")
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


@checked
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
    leading = ("leading dimension mode", "52", "absolute" if descriptor.lbo_absolute else "relative")
    fixed = [("fixed", "46-48", "0b001", VERSION), offset, (*leading, int(descriptor.lbo_absolute))]
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
    sizes, modes = layout.outer.sizes, layout.outer.modes
    if len(sizes) not in (2, 3):
        raise ValueError(f"layout: got {layout.outer!r}; needed modes (MN, K) or (MN, K, STAGE)")
    depth = min(2 * CHUNK // layout.element_bytes, sizes[1] - origin[1])
    if min(origin) < 0 or depth <= 0 or origin[0] >= sizes[0]:
        raise ValueError(f"origin: got {origin}; needed a place inside {sizes[:2]}")
    if rows % CORE or not 0 < rows <= min(MOST_ROWS, sizes[0] - origin[0]):
        most = min(MOST_ROWS, sizes[0] - origin[0])
        raise ValueError(f"rows: got {rows}; needed a multiple of 8, {most} at most")
    # Each mode by itself: a table of the whole tile may be large.
    mn, k = (Layout((mode.shape,), (mode.stride,)).table() for mode in modes[:2])
    block = mn[origin[0] : origin[0] + rows, None] + k[origin[1] : origin[1] + depth]
    return block * layout.element_bytes


def _strides(block: np.ndarray, major: str, mode: int, together: int, size: int) -> tuple[int, int]:
    """(lbo, sbo) in bytes of a block of byte offsets from its start."""
    per_chunk, lines = CHUNK // size, lines_of(together)
    if major == "K":
        return CHUNK if mode else _at(block, 0, per_chunk), _at(block, CORE, 0)
    along, across = _at(block, (mode or CHUNK) // size, 0), _at(block, 0, lines)
    return (along, across) if mode else (across, along)


def _at(block: np.ndarray, mn: int, k: int) -> int:
    return int(block[mn, k]) if mn < block.shape[0] and k < block.shape[1] else 0
