"""A random table of (layout, access) pairs, drawn from a seed, that has no pair in common with `pairs`.

The rules of `cookbook.banks` were found on the standing table, so that table alone cannot vouch for them. Here layouts
(random legal swizzles, padding, permuted bits) and accesses (blocks with steps at any place, lanes in any order of
their bits, lanes that share addresses, lanes that take no part) are drawn blindly.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from cookbook.layouts import Layout, SmemLayout
from cookbook.swizzle import Swizzle
from tools.probes.instructions import BY_NAME, INSTRUCTIONS, SMEM_BYTES, SOURCE_BYTES, Instruction
from tools.probes.pairs import LANE, SOURCE_REGION, Pair, access_of, pairs_of

__all__ = ["fresh_pairs"]

WIDE_LOADS = (BY_NAME["LDS.64"], BY_NAME["LDS.128"])
DRAWN = 16  # pairs of an instruction that follows the rule of phases
DRAWN_COPIES = 24  # of each cp.async, which has banks at both ends
DRAWN_WIDE = 64  # of each load of 8 or 16 bytes, whose phases may merge
PITCHES = (128, 160, 192, 256, 384, 512, 2048)  # bytes between the rows that a copy reads


class _Tile(NamedTuple):
    name: str
    offsets: np.ndarray  # (rows, columns) byte offset of each vector


@cache
def fresh_pairs(seed: int) -> tuple[Pair, ...]:
    """The table of a seed, instruction by instruction; the same every time.

    Raises:
        ValueError: a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed: got {seed}; needed an integer >= 0")
    return tuple(
        pair for number, i in enumerate(INSTRUCTIONS) for pair in _drawn(i, np.random.default_rng([seed, number]))
    )


def _drawn(instruction: Instruction, rng: np.random.Generator) -> list[Pair]:
    wanted = DRAWN_WIDE if instruction in WIDE_LOADS else DRAWN_COPIES if instruction.kind == "cp_async" else DRAWN
    known = {_identity(pair) for pair in pairs_of(instruction)}
    found: list[Pair] = []
    while len(found) < wanted:
        pair = _pair(instruction, rng, len(found))
        if _identity(pair) not in known:
            known.add(_identity(pair))
            found.append(pair)
    return found


def _identity(pair: Pair) -> tuple:
    """Return what makes a pair the same as another: its addresses, in global memory but for where they begin."""
    first = min(pair.sources, default=0) // SOURCE_REGION * SOURCE_REGION
    return pair.addresses, tuple(source - first for source in pair.sources)


def _pair(instruction: Instruction, rng: np.random.Generator, number: int) -> Pair:
    tile = _tile(rng, instruction.width)
    name, addresses = _addresses(rng, tile, instruction in WIDE_LOADS)
    if instruction.may_skip_lanes and rng.random() < 0.3:
        told, active = _mask(rng)
        name, addresses = f"{name}, {told}", np.where(active, addresses, -1)
    shared = tuple(access_of(instruction, addresses).addresses.tolist())
    if instruction.kind != "cp_async":
        return Pair(instruction, tile.name, name, shared)
    told, sources = _sources(rng, instruction.width)
    sources = sources + number * SOURCE_REGION % SOURCE_BYTES
    return Pair(instruction, tile.name, f"{name}, from {told}", shared, tuple(sources.tolist()))


# --- layouts ------------------------------------------------------------------------------------------------


def _tile(rng: np.random.Generator, width: int) -> _Tile:
    """A tile of vectors of `width` bytes, within the memory that is probed."""
    rows, columns = int(rng.choice((32, 64))), 1 << int(rng.integers(0, 6))
    size = f"{rows}x{columns} vectors"
    kind = rng.choice(("plain", "permuted", "padded"))
    if kind == "padded":
        pitch = columns + int(rng.integers(1, 5))
        layout, swizzle, told = Layout((rows, columns), (pitch, 1)), Swizzle(0, 4, 3), f"rows padded to {pitch}"
        if rows * pitch * width > SMEM_BYTES:
            return _tile(rng, width)
    else:
        swizzle = _swizzle(rng, width)
        layout, told = Layout((rows, columns), (columns, 1)), f"{swizzle!r}"
        if kind == "permuted":
            layout, told = _permuted(rng, rows, columns), f"offset bits permuted, {swizzle!r}"
    return _Tile(f"{size}, {told}", SmemLayout(layout, swizzle, 8 * width).byte_offsets())


def _swizzle(rng: np.random.Generator, width: int) -> Swizzle:
    """A legal swizzle of byte addresses that keeps vectors whole and stays within the memory that is probed."""
    while True:
        bits, shift = int(rng.integers(1, 6)), int(rng.integers(0, 8)) * int(rng.choice((1, 1, 1, -1)))
        base = int(rng.integers(width.bit_length() - 1, 10))
        if abs(shift) >= bits and 1 << bits + base + abs(shift) <= SMEM_BYTES:
            return Swizzle(bits, base, shift)


def _permuted(rng: np.random.Generator, rows: int, columns: int) -> Layout:
    """The bits of row and column go to the bits of the offset in a random order."""
    down, across = rows.bit_length() - 1, columns.bit_length() - 1
    strides = [1 << int(place) for place in rng.permutation(down + across)]
    sides = [(strides[:down], down), (strides[down:], across)]
    return Layout(tuple((2,) * n if n else 1 for _, n in sides), tuple(tuple(side) if n else 0 for side, n in sides))


# --- accesses -----------------------------------------------------------------------------------------------


def _addresses(rng: np.random.Generator, tile: _Tile, sharing: bool) -> tuple[str, np.ndarray]:
    """A name and 32 byte addresses: a block of the tile, or places anywhere.

    Args:
        sharing: lanes that are neighbours shall often have one address.
    """
    if rng.random() < 0.2:
        return "random vectors", rng.choice(tile.offsets.reshape(-1), 32)
    order = _bits_of_the_lane(rng, sharing)
    rows, columns = tile.offsets.shape
    down, across = _sides(rng, len(order), rows, columns)
    (row_step, top), (column_step, left) = _run(rng, rows, down), _run(rng, columns, across)
    place = sum(((LANE >> bit & 1) << i for i, bit in enumerate(order)), LANE * 0)
    addresses = tile.offsets[place // across * row_step + top, place % across * column_step + left]
    bits = " ".join(map(str, order))
    name = f"{down}x{across} block at {(top, left)}, steps {(row_step, column_step)}, by bits {bits} of the lane"
    if rng.random() < 0.2:  # a few lanes go elsewhere
        strays = rng.permutation(32)[: int(rng.integers(1, 4))]
        addresses[strays] = rng.choice(tile.offsets.reshape(-1), len(strays))
        name += f", lanes {' '.join(map(str, sorted(strays.tolist())))} anywhere"
    return name, addresses


def _bits_of_the_lane(rng: np.random.Generator, sharing: bool) -> list[int]:
    """Return those bits of the lane's number that say which vector is its own, in the order in which they do."""
    dropped = set(rng.permutation(5)[: int(rng.choice((0, 0, 0, 1, 1, 2, 3)))].tolist())
    if sharing and rng.random() < 0.6:
        dropped.add(int(rng.integers(0, 2)))
    order = [int(bit) for bit in rng.permutation(5)] if rng.random() < 0.5 else list(range(5))
    return [bit for bit in order if bit not in dropped]


def _run(rng: np.random.Generator, size: int, count: int) -> tuple[int, int]:
    """The step and the first of `count` rows or columns of `size`."""
    step = 1 << int(rng.integers(0, (size // count).bit_length())) if rng.random() < 0.5 else 1
    return step, int(rng.integers(0, size - (count - 1) * step))


def _sides(rng: np.random.Generator, bits: int, rows: int, columns: int) -> tuple[int, int]:
    """(down, across) of a block of 2**bits vectors that fits the tile."""
    most, least = min(bits, columns.bit_length() - 1), max(0, bits - (rows.bit_length() - 1))
    across = int(rng.integers(least, most + 1))
    return 1 << bits - across, 1 << across


def _mask(rng: np.random.Generator) -> tuple[str, np.ndarray]:
    """A name, and which lanes take part: at least one."""
    if rng.random() < 0.4:
        bit, value = int(rng.integers(0, 5)), int(rng.integers(0, 2))
        return f"lanes whose bit {bit} is {value}", LANE >> bit & 1 == value
    active = rng.random(32) < rng.choice((0.25, 0.5, 0.9))
    active[int(rng.integers(0, 32))] = True
    return f"{int(active.sum())} lanes", active


def _sources(rng: np.random.Generator, width: int) -> tuple[str, np.ndarray]:
    """A name, and 32 byte offsets in global memory: rows of adjacent vectors, the lanes in some order."""
    lanes, pitch = 1 << int(rng.integers(0, 6)), int(rng.choice(PITCHES))
    start = int(rng.integers(0, 128 // width)) * width
    name = f"rows of {lanes} lanes, {pitch} bytes apart, at byte {start} of a line"
    order = LANE
    if (kind := rng.random()) < 0.25:
        order, name = rng.permutation(32), f"{name}, permuted"
    elif kind < 0.4:
        bit = int(rng.integers(0, 5))
        order, name = LANE & ~(1 << bit), f"{name}, lanes t, t^{1 << bit} share"
    return name, order // lanes * pitch + order % lanes * width + start
