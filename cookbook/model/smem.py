"""A CTA's shared memory: bytes with bounds and alignment rules (PTX ISA, "Shared State Space")."""

from __future__ import annotations

import numpy as np

from cookbook.arguments import Integers, checked, integer

__all__ = ["SharedMemory"]

MOST = 1 << 24  # bytes: far above any shared memory
POISON = 0xFF  # two of them are a NaN both as float16 and as bfloat16


class SharedMemory:
    """`size_bytes` bytes at addresses 0 to size_bytes - 1, poisoned so that an unwritten value reads as NaN."""

    @checked
    def __init__(self, size_bytes: int) -> None:
        if not 0 < size_bytes <= MOST or size_bytes % 16:
            raise ValueError(f"size_bytes: got {size_bytes}; needed a positive multiple of 16, {MOST} at most")
        self._bytes = np.full(size_bytes, POISON, np.uint8)

    @property
    def size_bytes(self) -> int:
        return len(self._bytes)

    def poison(self) -> None:
        """Make every byte unwritten again."""
        self._bytes[:] = POISON

    @checked
    def view(self, dtype: np.dtype | type) -> np.ndarray:
        """All of it as a 1-D array of `dtype`, sharing the memory."""
        return self._bytes.view(dtype)

    @checked
    def read(self, addresses: Integers | int, count: int, dtype: np.dtype | type = np.uint16) -> np.ndarray:
        """`count` consecutive values of `dtype` at each byte address: shape (*addresses.shape, count).

        Raises:
            ValueError: an address outside the memory, or no multiple of the bytes read there.
        """
        return self.view(dtype)[self._places(addresses, count, np.dtype(dtype))]

    @checked
    def write(self, addresses: Integers | int, values: np.ndarray) -> None:
        """Write values (*addresses.shape, count) of any dtype, `count` in a row at each byte address.

        Raises:
            ValueError: as `read`, or the shapes do not match.
        """
        if values.shape[:-1] != np.shape(addresses):
            raise ValueError(f"values: got shape {values.shape}; needed {np.shape(addresses)} + (count,)")
        self.view(values.dtype)[self._places(addresses, values.shape[-1], values.dtype)] = values

    def _places(self, addresses: Integers | int, count: int, dtype: np.dtype) -> np.ndarray:
        integer("count", count, at_least=1, at_most=self.size_bytes)
        where = np.asarray(addresses, np.int64)
        width = count * dtype.itemsize
        if where.size and (where.min() < 0 or where.max() + width > self.size_bytes):
            raise ValueError(
                f"addresses: got {where.min()} to {where.max() + width - 1}; "
                f"needed 0 to {self.size_bytes - 1}, the bytes there are"
            )
        if (where % width).any():
            bad = where[where % width != 0].reshape(-1)[0]
            raise ValueError(f"addresses: got {bad}; needed multiples of {width}, the bytes moved at once")
        return where[..., None] // dtype.itemsize + np.arange(count)
