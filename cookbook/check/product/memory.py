"""Memory that holds origins: a CTA's shared memory, its tensor memory, and the operands and C in global memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.model.scale_factors import ATOM_BYTES, atom_offsets
from cookbook.simulate.values import Fault

SMEM_BYTES = 256 << 10  # more than any CTA has: what a kernel asks for is the business of the level *compiled*
TMEM_LANES, TMEM_COLUMNS = 128, 512


class Memory:
    """Bytes: that of an element of several bytes holds its origin, the next one that plus 1, and so on."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, origins.UNWRITTEN, np.int64)
        self.matrices: dict[Any, np.ndarray] = {}  # what MMAs read since the last write: warps read the same ones

    def read(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """The elements of `size` bytes at these addresses; MIXED where the bytes are not those of one element."""
        self._check(addresses, size)
        found = self.bytes.take(addresses)
        if size > 1:
            whole = (self.bytes.take(addresses + (size - 1)) - found == size - 1) & (found & 7 == 0)
            if not whole.all():
                found = np.where(whole | (found == origins.UNWRITTEN), found, origins.MIXED)
        return found

    def write(self, addresses: np.ndarray, ids: np.ndarray, size: int) -> None:
        """Elements of `size` bytes, one at each address."""
        self._check(addresses, size)
        self.matrices.clear()
        for byte in range(size):
            self.bytes[addresses + byte] = ids + byte

    def _check(self, addresses: np.ndarray, size: int) -> None:
        if addresses.size and (addresses.min() < 0 or addresses.max() + size > len(self.bytes)):
            raise Fault(f"an access to shared memory at bytes {addresses.min()} to {addresses.max() + size - 1}")


@dataclass(frozen=True)
class Operand:
    """A matrix in global memory: element (row, column) is `row * strides[0] + column * strides[1]` elements on."""

    name: str  # A, B, C, SFA...
    shape: tuple[int, int]  # A: (M, K); B: (N, K); C: (M, N)
    strides: tuple[int, int]
    bits: int
    dtype: str  # as the IR spells it
    base: int = 0  # the address of its first element
    shared: tuple[int, int] = (1, 0)  # of scale factors: rows, and elements along K, that have the same one; 0: all
    groups: tuple[int, int] = (0, 0)  # rows of each group, and elements from one group to the next; 0: there are none

    def places(self, byte_addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, column, whether it is in the matrix) of the elements at these addresses."""
        elements, (rows, apart) = (byte_addresses - self.base) * 8 // self.bits, self.groups
        group, elements = np.divmod(elements, apart) if apart else (0, elements)
        big, small = (0, 1) if self.strides[0] >= self.strides[1] else (1, 0)
        at = [elements, elements]
        at[big] = elements // self.strides[big]
        at[small] = elements % self.strides[big] // max(self.strides[small], 1)
        row, column = at
        inside = (elements >= 0) & (row < (rows or self.shape[0])) & (column < self.shape[1]) & (row >= 0)
        inside &= column >= 0
        if apart:
            row = row + group * rows
            inside &= (group >= 0) & (row < self.shape[0])
        return row, column, inside

    def ids(self, byte_addresses: np.ndarray) -> np.ndarray:
        """Return which elements lie there; OUTSIDE where there is none."""
        row, column, inside = self.places(byte_addresses)
        found = origins.operand(origins.OPERANDS[self.name], np.where(inside, row, 0), np.where(inside, column, 0))
        return np.where(inside, found, origins.OUTSIDE)


class Scales(Operand):
    """The scale factors of blocks of a row: bytes in atoms, as `cookbook.model.scale_factors` has them."""

    @cached_property
    def _inverse(self) -> np.ndarray:
        """For each byte: the number of its factor, row times factors plus factor; -1 of one that is there to fill."""
        rows, factors = self.shape
        at = atom_offsets(rows, factors)
        found = np.full(-(-rows // 128) * -(-factors // 4) * ATOM_BYTES, -1, np.int64)
        found[at] = np.arange(rows * factors).reshape(rows, factors)
        return found

    def places(self, byte_addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, factor, whether there is one) of bytes; one that fills an atom counts as there, at row -1."""
        at = byte_addresses - self.base
        inside = (at >= 0) & (at < len(self._inverse))
        number = self._inverse[np.where(inside, at, 0)]
        return np.where(number < 0, -1, number // self.shape[1]), number % self.shape[1], inside

    def ids(self, byte_addresses: np.ndarray) -> np.ndarray:
        """Return which factors lie there; zeros where an atom is filled, OUTSIDE where there is none."""
        row, column, inside = self.places(byte_addresses)
        there = origins.operand(origins.OPERANDS[self.name], np.maximum(row, 0), column)
        return np.where(inside, np.where(row < 0, origins.FILL, there), origins.OUTSIDE)


class Stored:
    """The stores of a launch to C."""

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self.ids = np.full(operand.shape, origins.UNWRITTEN, np.int64)
        self.lines = np.full(operand.shape, -1, np.int32)  # of the store; -1: none, whatever was stored
        self.places: dict[int, int] = {}  # by these numbers, the lines with their functions
        self._which = np.empty(operand.shape, np.int64)  # scratch: which of the elements of a store went there last

    @property
    def count(self) -> int:
        """Elements that were stored."""
        return int((self.lines >= 0).sum())

    def store(self, byte_addresses: np.ndarray, ids: np.ndarray, line: int) -> None:
        """Elements to these bytes.

        Raises:
            Fault: one of them lies outside of C, or was stored before.
        """
        row, column, inside = self.operand.places(byte_addresses)
        shape = f"C is {self.operand.shape[0]} x {self.operand.shape[1]}"
        if not inside.all():
            at = np.flatnonzero(~inside)[0]
            raise Fault(f"C: got a store to row {row[at]}, column {column[at]}; needed one inside: {shape}")
        again = self.lines[row, column] >= 0
        if again.any():
            at = np.flatnonzero(again)[0]
            before = self.places[int(self.lines[row[at], column[at]])]
            raise Fault(f"C[{row[at]}, {column[at]}]: got a second store; needed one (the first is of line {before})")
        each = np.arange(len(row))
        self._which[row, column] = each
        if (self._which[row, column] != each).any():
            keys, counts = np.unique(row * np.int64(1 << 32) + column, return_counts=True)
            twice = int(keys[counts > 1][0])
            raise Fault(f"C[{twice >> 32}, {twice & 0xFFFFFFFF}]: got two stores at once; needed one")
        self.ids[row, column] = ids
        self.lines[row, column] = line
        self.places[int(line)] = line


class Scratch:
    """Words of global memory that the CTAs of a launch write and read: origins, or numbers."""

    def __init__(self, base: int, first: int) -> None:
        self.base, self.first = base, first  # its address; what is in it before
        self.name = ""  # the parameter of the launch
        self.words = np.empty(0, np.int64)

    def faults(self, stored: Stored) -> list[str]:
        """Return what is wrong with what a launch left there, next to the C that it stored: nothing asks for these
        words."""
        return []

    def _places(self, addresses: np.ndarray) -> np.ndarray:
        places = (addresses - self.base) // 4
        if places.size and places.min() < 0:
            raise Fault(f"an access to global memory {-4 * int(places.min())} bytes before what the launch was given")
        if places.size and places.max() >= len(self.words):
            more = np.full(int(places.max()) + 1, self.first, np.int64)
            more[: len(self.words)] = self.words
            self.words = more
        return places

    def read(self, addresses: np.ndarray) -> np.ndarray:
        """The words at these addresses."""
        places = self._places(addresses)
        return self.words[places]

    def write(self, addresses: np.ndarray, values: np.ndarray) -> None:
        """One word to each address."""
        places = self._places(addresses)
        self.words[places] = values


class TensorMemory:
    """128 lanes of 512 columns of 32 bits: accumulators, or scale factors of a byte each."""

    def __init__(self) -> None:
        self.cells = np.full((TMEM_LANES, TMEM_COLUMNS), origins.UNWRITTEN, np.int64)
        self.scales = np.full((TMEM_LANES, 4 * TMEM_COLUMNS), origins.UNWRITTEN, np.int64)  # the same, by bytes
        self.allocated = 0

    def places(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lane, column) of addresses of 32-bit words.

        Raises:
            Fault: outside of what is allocated.
        """
        lane, column = words >> 16, words & 0xFFFF
        if words.size and (lane.max() >= TMEM_LANES or column.max() >= self.allocated or words.min() < 0):
            raise Fault(f"tensor memory: got column {column.max()}; needed one of the {self.allocated} allocated")
        return lane, column
