"""MMAs: which elements each of them multiplies, and what it adds them to."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.access import read, slots
from cookbook.check.product.algebra import refused
from cookbook.check.product.memory import Memory
from cookbook.model.tma import swizzle_mode
from cookbook.model.wgmma import CHUNK, block_descriptor, operand_addresses
from cookbook.simulate.judge import Judge
from cookbook.simulate.partitions import fragment
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import LANES, CannotFollow, Fault, Lay, View
from cookbook.swizzle import Swizzle


class Mmas(Judge):
    """A warp that multiplies in registers, or from shared memory to registers."""

    cta: Any
    launch: Any

    def mma_sync(self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View]) -> None:
        _mma_sync(self, text, shape, target, operands)

    def multiply_add(self, op: Operation, target: View) -> None:
        raise CannotFollow("multiply-adds of single threads")

    def wgmma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool
    ) -> None:
        _wgmma(self, text, shape, target, operands, adds)


@lru_cache(maxsize=256)
def types_of(text: str) -> tuple[str, str]:
    """The element types of A and B that an MMA takes, as the IR spells them."""
    found = re.search(r"elem_type = \(([\w.]+), ([\w.]+)", text)
    if found is None:
        raise CannotFollow(f"an MMA of type {text}")
    return found[1], found[2]


@lru_cache(maxsize=256)
def majors_of(text: str) -> tuple[str, str]:
    """ "K" or "MN" of A and B."""
    found = re.search(r"ab_major = \((\w+), (\w+)\)", text)
    if found is None:
        raise CannotFollow(f"an MMA of type {text}")
    return tuple("K" if one == "k" else "MN" for one in found.groups())  # type: ignore[return-value]


def check_types(f: Any, text: str, ids: np.ndarray, which: int) -> None:
    """That an MMA takes operands of the type that they have in global memory.

    Raises:
        Fault: it does not.
    """
    wanted = types_of(text)[which]
    for operand in (one for one in f.launch.operands.values() if one.name in ("A", "B", "B2") and one.dtype != wanted):
        if (origins.kind_of(ids) == origins.OPERANDS[operand.name]).any():
            raise Fault(f"an MMA on {wanted}: got elements of {operand.name}, which are {operand.dtype}")


ROWS_OF_PATTERN = 8  # the pattern of a swizzle, which begins at a multiple of its size


# --- operands in shared memory -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def block_addresses(tile: Lay, bits: int, swizzle: Swizzle, start: int, rows: int, major: str) -> np.ndarray:
    """(rows, k): the byte addresses of the elements of one matrix, by the descriptor that its layout asks for.

    Args:
        tile: (rows, K) of one instruction.
        bits: of an element.
        swizzle: of byte addresses.
        start: byte address of the matrix, before the swizzle.
        rows: of the matrix.
        major: "K" or "MN".

    Raises:
        Fault: no descriptor describes such a layout.
    """
    size = max(bits // 8, 1)
    offsets = (tile.offsets().reshape(-1, rows).T * bits // 8)[:, :: max(8 // bits, 1)]  # the rows first; whole bytes
    try:
        mode = swizzle_mode(swizzle)
        if mode and start // mode % ROWS_OF_PATTERN:
            raise ValueError(
                f"start: got byte {start}; needed one of the first {mode} after a multiple of {ROWS_OF_PATTERN * mode}"
            )
        # A descriptor has no address below the matrix's own: only where the pattern of the swizzle begins matters.
        descriptor = block_descriptor(offsets, start, mode, major)
        chunks = operand_addresses(descriptor, rows, major)
    except ValueError as error:
        raise refused("a matrix descriptor", error) from None
    inside = np.arange(CHUNK // size) * size
    found = (chunks[..., None] + inside).reshape(chunks.shape[0], -1)
    return found if major == "K" else found.T


def block(memory: Memory, view: View, start: int, rows: int, major: str, some: slice = slice(None)) -> np.ndarray:
    """(rows, k): the elements that a descriptor names, of `some` of the rows."""
    tile = view.tile
    layout = tile.layout.modes[0]
    key = (layout, tile.bits, tile.swizzle, start, rows, major, some.start)
    found = memory.matrices.get(key)
    if found is None:
        found = memory.read(block_addresses(*key[:-1])[some], max(tile.bits // 8, 1))
        found.flags.writeable = False
        memory.matrices[key] = found
    return found


def k_blocks(view: View) -> int:
    """Return how many blocks along K an operand has: its third mode."""
    modes = view.layout.modes
    return prod(mode.size for mode in modes[2:])


def starts(view: View) -> list[list[int]]:
    """Byte addresses of the matrices that a view of descriptors has: for each block along K, along M or N."""
    return view.addresses()[0].reshape(k_blocks(view), -1).tolist()


# --- wgmma -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _places(warp: int, n: int) -> np.ndarray:
    """(32, values): the place in the warp's 16 rows of a tile, of each accumulator of each lane."""
    mine = fragment(90, n)[LANES * warp : LANES * (warp + 1)]
    return (mine[..., 0] - 16 * warp) * origins.WIDTH + mine[..., 1]


def _wgmma(f: Any, text: str, shape: Any, target: View, operands: Any, adds: bool) -> None:
    """A warp has 16 of a warpgroup's 64 rows."""
    if not f.active.all():
        raise CannotFollow("wgmma by some lanes of a warp")
    _, n, _ = shape
    a, b = operands
    if b.pointer.space != "smem":
        raise CannotFollow("wgmma with B in registers")
    major_a, major_b = majors_of(text)
    quarter = f.place.warp % 4
    memory = f.cta.memory
    places, mine_of_a = _places(quarter, n), slice(16 * quarter, 16 * (quarter + 1))
    registers = slots(target)
    count = places.shape[1]
    of_a = _in_registers(f, text, a) if a.pointer.space == "rmem" else starts(a)
    for k, (down, across) in enumerate(zip(of_a, starts(b), strict=True)):
        if len(registers) != count * len(down) * len(across):
            raise CannotFollow(f"an MMA of {len(down)} x {len(across)} matrices to {len(registers)} accumulators")
        for j, start_b in enumerate(across):
            ids_b = block(memory, b, start_b, n, major_b)
            check_types(f, text, ids_b[:1], 1)
            for i, start_a in enumerate(down):
                if isinstance(start_a, int):
                    ids_a = block(memory, a, start_a, 64, major_a, mine_of_a)
                    check_types(f, text, ids_a[:1], 0)
                else:
                    ids_a = start_a
                mine = registers[(j * len(down) + i) * count :][:count]
                held = target.pointer.array[:, mine]
                target.pointer.array[:, mine] = accumulate(f, held, places, ids_a, ids_b, adds or k > 0)


def _in_registers(f: Any, text: str, a: View) -> list[list[np.ndarray]]:
    """For each block along K and each along M: a warp's 16 rows of A, which its registers hold as mma.sync has them."""
    found = _matrices(f, a, _fragments(16)[0], (16, 16))
    if f.launch.words is None:
        found = f.launch.sums.in_the_middle(found, types_of(text)[0])
    return [list(block) for block in found.reshape(k_blocks(a), -1, 16, 16)]


def accumulate(f: Any, before: np.ndarray, places: np.ndarray, a: np.ndarray, b: np.ndarray, adds: bool) -> np.ndarray:
    """Return what accumulators hold after an MMA.

    Args:
        before: what they held, (32, values).
        places: of each in its tile.
        a, b: (rows, k) and (columns, k): what is multiplied.
        adds: whether to what was there.

    Raises:
        Fault: it adds to what is no tile of accumulators, or to what nothing has written.
    """
    parent = -1
    if adds and not origins.is_zero(before).all():
        parent = parent_of(before, places)
    return origins.numbered(origins.TILE, f.launch.sums.tile(parent, a, b, f.line), places)


def parent_of(before: np.ndarray, places: np.ndarray) -> int:
    """The number of the tile that accumulators are."""
    first = int(before.flat[0])
    if (before == origins.UNWRITTEN).any():
        raise Fault("an MMA adds to accumulators: got what nothing has written; needed zeros, or accumulators")
    number = int(origins.number_of(np.int64(first)))
    if not (before == origins.numbered(origins.TILE, number, places)).all():
        kind = int(origins.kind_of(np.int64(first)))
        if kind == origins.NODE:
            raise CannotFollow("an MMA that adds to a sum of accumulators")
        raise Fault(f"an MMA adds to accumulators: got {origins.describe(first)} among them; needed those of one tile")
    return number


# --- mma.sync ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _fragments(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The places of a lane's elements in A (16, k), B (8, k) and D (16, 8) of mma.m16n8k16 or k32: PTX ISA.

    Returns:
        (32, 8 or 16, 2) of A: (row, k); (32, 4 or 8, 2) of B; (32, 4) of D: places.
    """
    lane = np.arange(LANES)[:, None]
    each = k // 8  # elements in a register: 2 of 16 bits, 4 of 8
    i = np.arange(4 * each)[None, :]
    a = (lane // 4 + 8 * (i // each % 2), each * (lane % 4) + i % each + k // 2 * (i // (2 * each)))
    i = np.arange(2 * each)[None, :]
    b = (lane // 4 + 0 * i, each * (lane % 4) + i % each + k // 2 * (i // each))
    d = fragment(80, 8)
    stacked = [np.stack(np.broadcast_arrays(*x), axis=-1) for x in (a, b)]
    return stacked[0], stacked[1], d[..., 0] * origins.WIDTH + d[..., 1]


def _mma_sync(f: Any, text: str, shape: tuple[int, int, int], target: View, operands: tuple[View, View]) -> None:
    if not f.active.all():
        raise CannotFollow("mma.sync by some lanes of a warp")
    m, n, k = shape
    if (m, n) != (16, 8) or k not in (16, 32):
        raise CannotFollow(f"mma.sync of {m} x {n} x {k}")
    at_a, at_b, _ = _fragments(k)
    a, b = _matrices(f, operands[0], at_a, (m, k)), _matrices(f, operands[1], at_b, (n, k))
    for which, ids in enumerate((a, b)):
        check_types(f, text, ids[0, :1], which)
    # All of the instructions' accumulators are one tile: the values first, then along M, then along N.
    blocks = k_blocks(operands[0])
    a, b = (x.reshape(blocks, -1, *x.shape[1:]) for x in (a, b))
    mine, whole = slots(target), _whole(a.shape[1], b.shape[1], k)
    if len(mine) != whole.shape[1]:
        raise CannotFollow(f"an MMA of {a.shape[1]} x {b.shape[1]} matrices to {len(mine)} accumulators")
    array = target.pointer.array
    for one, other in zip(a, b, strict=True):
        array[:, mine] = accumulate(f, array[:, mine], whole, one.reshape(-1, k), other.reshape(-1, k), True)


@lru_cache(maxsize=64)
def _whole(down: int, across: int, k: int) -> np.ndarray:
    """(32, values): the places of a lane's accumulators in a tile of `down` x `across` instructions."""
    places = _fragments(k)[2][:, None, None, :]
    step = (16 * origins.WIDTH * np.arange(down))[None, :] + (8 * np.arange(across))[:, None]
    return (places + step[None, :, :, None]).reshape(LANES, -1)


def _matrices(f: Any, view: View, at: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """(matrices, rows, k) of this shape: the operands that a warp's registers hold. at: `_fragments`' places."""
    ids = read(f, view).reshape(LANES, -1, at.shape[1])
    found = np.empty((ids.shape[1], *shape), np.int64)
    found[:, at[..., 0], at[..., 1]] = ids.transpose(1, 0, 2)
    return found


__all__ = ["accumulate", "block", "block_addresses", "check_types", "majors_of", "parent_of", "starts"]
