"""One warp instruction's access to shared memory: a byte address for each lane.

An `Access` says where, never how fast: `cookbook.banks` answers that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cookbook.arguments import checked, choice, integer, integers, string, wrong_value
from cookbook.layouts import SmemLayout, TiledCopyTV

__all__ = ["Access", "checked_lanes", "copy_addresses", "cp_async", "ldmatrix", "ldst", "of_copy", "stmatrix"]

LANES = 32
WIDTHS = (1, 2, 4, 8, 16)  # bytes
LARGEST = 1 << 62  # an address and what lies behind it fit a signed word
KINDS = ("ldst", "ldmatrix", "stmatrix", "cp_async")


class Access(NamedTuple):
    addresses: np.ndarray  # (32,) int64 byte addresses, -1 for a lane that supplies none
    width: int  # bytes at each address
    kind: str  # one of KINDS


def checked_lanes(addresses: np.ndarray, width: int, name: str = "addresses") -> np.ndarray:
    """One byte address for each lane, as (32,) int64.

    Args:
        width: bytes at each address: 1, 2, 4, 8 or 16.
        name: of the argument, for messages.

    Raises:
        ValueError: another width, not 32 of them, one below -1, or one that is no multiple of `width`.
        TypeError: what is not integers.
    """
    string("name", name)
    width = integer("width", width, one_of=WIDTHS, needed="1, 2, 4, 8 or 16 bytes")
    array = integers(name, addresses, needed="32 integers (-1: none)", shape=(LANES,))
    if array.min() < -1 or array.max() >= LARGEST:
        bad = array.min() if array.min() < -1 else array.max()
        wrong_value(name, int(bad), "byte addresses >= 0 and below 2**62, or -1 for an inactive lane")
    bad = (array >= 0) & (array % width != 0)
    if bad.any():
        lane = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{name}: got {array[lane]} from lane {lane}; needed multiples of {width} bytes")
    return array


def ldst(addresses: np.ndarray, width: int) -> Access:
    """ld.shared or st.shared of `width` bytes a lane (1, 2, 4, 8 or 16; PTX ISA, "ld" and "st").

    Raises:
        ValueError: as `checked_lanes`.
    """
    return Access(checked_lanes(addresses, width), width, "ldst")


def cp_async(addresses: np.ndarray, width: int = 16) -> Access:
    """The shared-memory side of cp.async: `width` bytes a lane, 4, 8 or 16 (PTX ISA, "cp.async")."""
    width = integer("width", width, one_of=(4, 8, 16), needed="4, 8 or 16 bytes")
    return Access(checked_lanes(addresses, width), width, "cp_async")


def ldmatrix(row_addresses: np.ndarray, num: int) -> Access:
    """ldmatrix.m8n8.x`num`.b16: lanes 8i to 8i+7 supply the 16-byte rows of matrix i (PTX ISA, "ldmatrix").

    Args:
        row_addresses: (32,) byte addresses, or only the 8 * num that count; others are ignored.

    Raises:
        ValueError: `num` is not 1, 2 or 4, too few addresses, or a row that is not 16-byte aligned.
    """
    return Access(_rows(row_addresses, num), 16, "ldmatrix")


def stmatrix(row_addresses: np.ndarray, num: int) -> Access:
    """stmatrix.m8n8.x`num`.b16: addresses as for `ldmatrix` (PTX ISA, "stmatrix")."""
    return Access(_rows(row_addresses, num), 16, "stmatrix")


@checked
def copy_addresses(layout: SmemLayout, copy: TiledCopyTV, side: str, stage: int = 0) -> np.ndarray:
    """(instructions, threads) byte addresses that a tiled copy supplies on `side` to move the whole tile.

    Instructions run over the value groups of the tiled copy, then its repeats along mode 0, then along
    mode 1.

    Raises:
        ValueError: the copy's tile does not divide the layout's, or a thread's vector is not contiguous
            in shared memory (then no instruction moves it at once).
    """
    offsets = layout.byte_offsets()
    integer("stage", stage, at_least=0, at_most=offsets.shape[2] - 1 if offsets.ndim == 3 else 0)
    offsets = offsets[..., stage] if offsets.ndim == 3 else offsets
    coords, vector = _side(copy, side)
    m, n = repeated(coords, copy.tiler_mn, offsets.shape)
    places = offsets[m, n].reshape(len(coords), -1, vector)  # (threads, instructions, vector)
    steps = places - places[..., :1]
    if (steps != np.arange(vector) * layout.element_bytes).any():
        thread, group = np.argwhere((steps != np.arange(vector) * layout.element_bytes).any(-1))[0]
        raise ValueError(
            f"layout: thread {thread}'s vector of {vector} elements lies at bytes "
            f"{places[thread, group].tolist()} under {layout.swizzle!r}; needed {vector} adjacent elements"
        )
    return places[..., 0].T


@checked
def of_copy(layout: SmemLayout, copy: TiledCopyTV, side: str, kind: str, warp: int = 0, stage: int = 0) -> list[Access]:
    """The accesses of one warp of a tiled copy that moves the whole of `layout`'s tile: one per instruction.

    Args:
        side: "src" or "dst": which side of the copy is in shared memory.
        kind: "ldst", "cp_async", "ldmatrix" or "stmatrix".
        stage: which entry of mode 2 of a staged layout.

    Raises:
        ValueError: as `copy_addresses`, or there is no such kind or warp.
    """
    choice("kind", kind, KINDS)
    if not 0 <= warp < copy.threads // LANES:
        raise ValueError(f"warp: got {warp}; needed 0 <= warp < {copy.threads // LANES}")
    rows = copy_addresses(layout, copy, side, stage)[:, LANES * warp : LANES * (warp + 1)]
    if kind in ("ldmatrix", "stmatrix"):
        make, fragment = (ldmatrix, copy.dst_vector) if kind == "ldmatrix" else (stmatrix, copy.src_vector)
        return [make(row, fragment * layout.element_bits // 32) for row in rows]  # a matrix gives each lane 32 bits
    width = _side(copy, side)[1] * layout.element_bytes
    return [(ldst if kind == "ldst" else cp_async)(row, width) for row in rows]


def repeated(coords: np.ndarray, tiler: tuple[int, int], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The (m, n) of a tile's values in each of its repeats over `shape`.

    Args:
        coords: (threads, values, 2) coordinates inside one tile.

    Returns:
        Two (threads, values * repeats) int64 arrays, repeats along mode 0 before those along mode 1.
    """
    if len(shape) != 2 or shape[0] % tiler[0] or shape[1] % tiler[1]:
        raise ValueError(f"copy: got a tile of {tiler}; needed one that divides {shape}")
    grid = np.indices((shape[1] // tiler[1], shape[0] // tiler[0])).reshape(2, -1)[::-1]  # m fastest
    places = [
        (start[:, None] * tiler[i] + coords[:, None, :, i]).reshape(len(coords), -1) for i, start in enumerate(grid)
    ]
    return places[0], places[1]


def _side(copy: TiledCopyTV, side: str) -> tuple[np.ndarray, int]:
    if side == "src":
        return copy.src_coords(), copy.src_vector
    if side == "dst":
        return copy.dst_coords(), copy.dst_vector
    raise ValueError(f"side: got {side!r}; needed 'src' or 'dst'")


def _rows(row_addresses: np.ndarray, num: int) -> np.ndarray:
    num = integer("num", num, one_of=(1, 2, 4), needed="1, 2 or 4 matrices")
    needed = f"{8 * num} to {LANES} addresses"
    given = integers("row_addresses", row_addresses, ndim=1, needed=needed)
    if not 8 * num <= len(given) <= LANES:
        raise ValueError(f"row_addresses: got shape {given.shape}; needed {needed}")
    rows = np.full(LANES, -1, np.int64)
    rows[: 8 * num] = given[: 8 * num]
    if (rows[: 8 * num] < 0).any():
        raise ValueError(f"row_addresses: got an inactive lane among the first {8 * num}; needed a row each")
    return checked_lanes(rows, 16, "row_addresses")
