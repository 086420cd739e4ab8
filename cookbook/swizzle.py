"""Swizzle<B,M,S>: the bijection on offsets that spreads a tile over the banks.

2**M neighbouring offsets stay together; the B bits at M (the zzz bits) are XORed with the B bits at M + S
(the yyy bits). A negative S takes its bits from below: yyy is then at M and zzz at M - S. Whether an
offset counts bytes or elements is the caller's to know, and `in_elements` / `in_bytes` go from one to the
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from cookbook.arguments import integer, is_integer, shown, wrong_type, wrong_value

__all__ = ["Swizzle"]

OFFSET_BITS = 62  # of the largest offset there is: it and its size fit a signed word
WIDTHS = (8, 16, 32, 64, 128)  # bits of an element that a lane can address
WIDEST = 1024  # bits of an element, far above the 128 of any instruction


@dataclass(frozen=True)
class Swizzle:
    """CuTe's S<bits, base, shift>.

    >>> Swizzle(3, 4, 3)(128)  # row 1 of 128-byte rows: its first 16-byte chunk is at slot 1
    144
    >>> Swizzle(3, 4, 3).in_elements(16)
    S<3,3,3>
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        for name in ("bits", "base", "shift"):
            needed = f"an integer of magnitude {OFFSET_BITS} at most: the bits of an offset"
            whole = integer(name, getattr(self, name), at_least=-OFFSET_BITS, at_most=OFFSET_BITS, needed=needed)
            object.__setattr__(self, name, whole)
        if self.bits < 0 or self.base < 0:
            nearest = f"S<{max(0, self.bits)},{max(0, self.base)},{self.shift}>"
            raise ValueError(f"bits, base: got {self.bits}, {self.base}; needed both >= 0, nearest {nearest}")
        if abs(self.shift) < self.bits:
            legal = self.bits if self.shift >= 0 else -self.bits
            raise ValueError(
                f"shift: got {self.shift} in {self!r}; needed |shift| >= bits, or the yyy and zzz bits overlap. "
                "cute.make_swizzle raises nothing here and silently becomes the identity S<0,4,3>. "
                f"The nearest legal swizzle is S<{self.bits},{self.base},{legal}>"
            )
        if (top := self.bits + self.base + abs(self.shift)) > OFFSET_BITS:
            raise ValueError(
                f"bits, base, shift: got {self!r}, which reads or moves bit {top - 1}; "
                f"needed bits + base + |shift| of {OFFSET_BITS} at most"
            )

    def __repr__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"

    @property
    def yyy(self) -> int:
        """The mask of the bits that are read."""
        return ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))

    @property
    def zzz(self) -> int:
        """The mask of the bits that change."""
        return ((1 << self.bits) - 1) << (self.base - min(self.shift, 0))

    @property
    def period(self) -> int:
        """2**(bits + base + |shift|): the pattern of offsets repeats after this many."""
        return 1 << (self.bits + self.base + abs(self.shift))

    def __call__(self, offset):
        """The swizzled offset of an int >= 0, or of each entry of an integer array (a new array).

        Raises:
            TypeError: no integers. ValueError: one that is negative, or an array too narrow for the masks.
        """
        needed = "an integer >= 0, or an array of them"
        if isinstance(offset, np.ndarray):
            if not np.issubdtype(offset.dtype, np.integer):
                wrong_type("offset", offset, needed)
            return self._array(offset)
        integer("offset", offset, at_least=0, at_most=(1 << OFFSET_BITS + 1) - 1, needed=f"{needed}, below 2**63")
        source = int(offset) & self.yyy
        return type(offset)(int(offset) ^ (source >> self.shift if self.shift >= 0 else source << -self.shift))

    def _array(self, offset: np.ndarray) -> np.ndarray:
        if (self.yyy | self.zzz) > np.iinfo(offset.dtype).max:
            raise ValueError(f"offset: got {shown(offset)}, too narrow; needed room for the masks of {self!r}")
        if offset.size and offset.dtype.kind == "i" and (least := offset.min()) < 0:
            wrong_value("offset", int(least), "offsets >= 0")
        source = offset & offset.dtype.type(self.yyy)
        moved = source >> abs(self.shift) if self.shift >= 0 else source << abs(self.shift)
        return offset ^ moved.astype(offset.dtype)

    def in_elements(self, element_bits: int) -> Swizzle:
        """This swizzle of *byte* offsets, said in offsets of elements of `element_bits` bits, 1, 2 and 4 included.

        Raises:
            ValueError: it moves bytes inside an element, so no swizzle of elements says the same.

        >>> Swizzle(3, 4, 3).in_elements(4)
        S<3,5,3>
        """
        base = self.base - _byte_bits(element_bits)
        if base < 0 and self.bits:
            whole = Swizzle(self.bits, self.base - base, self.shift)
            raise ValueError(
                f"element_bits: got {element_bits}; needed at most {8 << self.base}, for {self!r} on bytes "
                f"keeps {1 << self.base} bytes together and would split such an element. "
                f"The nearest swizzle of bytes that keeps it whole is {whole!r}"
            )
        return Swizzle(self.bits, max(base, 0), self.shift)

    def in_bytes(self, element_bits: int) -> Swizzle:
        """This swizzle of offsets of elements of `element_bits` bits, said in byte offsets.

        Raises:
            ValueError: it moves elements inside a byte.
        """
        base = self.base + _byte_bits(element_bits)
        if base < 0 and self.bits:
            least = f"M of {self.base - base} at least, which keeps a byte together"
            raise ValueError(f"element_bits: got {element_bits} for {self!r} on elements; needed {least}")
        return Swizzle(self.bits, max(base, 0), self.shift)

    def both(self, element_bits: int) -> str:
        """This swizzle of byte offsets, said in bytes and in elements.

        >>> Swizzle(3, 4, 3).both(16)
        'S<3,4,3> over bytes = S<3,3,3> over 16-bit elements'
        """
        if not self.bits:
            return "no swizzle"
        if self.base < _byte_bits(element_bits):
            return f"{self!r} over bytes, which would split {element_bits}-bit elements"
        return f"{self!r} over bytes = {self.in_elements(element_bits)!r} over {element_bits}-bit elements"

    def matrix(self, n: int) -> np.ndarray:
        """(n, n) uint8 over GF(2), bit 0 first: column j holds the bits of the image of offset 2**j.

        Raises:
            ValueError: n bits do not hold the yyy and zzz bits.
        """
        n = integer("n", n, at_most=OFFSET_BITS)
        if n < 0 or (self.yyy | self.zzz) >> n:
            needed = self.bits + self.base + abs(self.shift)
            raise ValueError(f"n: got {n}; needed at least {needed} bits for {self!r}")
        images = [self(1 << j) for j in range(n)]
        return np.array([[image >> i & 1 for image in images] for i in range(n)], np.uint8).reshape(n, n)

    def to_cute(self) -> Any:
        """`cute.make_swizzle` of this; inside a jit function only.

        Whether it acts on bytes or on elements is decided by where it is put: on a pointer
        (`allocate_tensor(..., swizzle=...)`) it acts on byte addresses.
        """
        import cutlass.cute as cute

        return cute.make_swizzle(self.bits, self.base, self.shift)

    @classmethod
    def from_cute(cls, swizzle: Any) -> Swizzle:
        """The Swizzle of a `cute.Swizzle`; inside a jit function only.

        CuTe gives every swizzle of no bits, and every illegal one, as S<0,4,3>.

        Raises:
            TypeError: what is given has no num_bits, num_base and num_shift.
        """
        try:
            return cls(swizzle.num_bits, swizzle.num_base, swizzle.num_shift)
        except AttributeError:
            name = type(swizzle).__name__
            raise TypeError(f"swizzle: got {name}; needed a cute.Swizzle, such as layout.inner") from None


def element_width(element_bits: int, widths: tuple[int, ...] = WIDTHS, name: str = "element_bits") -> int:
    """The bits of an element, one of `widths`.

    Args:
        name: of the argument, for the message.

    Raises:
        TypeError, ValueError: another; of one that fills no whole bytes it says what to ask for instead.
    """
    if not is_integer(element_bits) or element_bits in widths or not 0 < element_bits < 128:
        return integer(name, element_bits, one_of=widths)
    *others, last = map(str, widths)
    return wrong_value(name, int(element_bits), f"{', '.join(others)} or {last}{_instead(int(element_bits))}")


def _instead(element_bits: int) -> str:
    """Return how to ask for elements that share bytes."""
    share = Fraction(element_bits, 8)
    if share.denominator == 1 and element_bits & (element_bits - 1) == 0:
        return ""
    text = f"; packed, {share.denominator} lie in {share.numerator} byte{'s' if share.numerator > 1 else ''}: count "
    text += f"bytes, so 8 bits and {share} of the columns"
    if element_bits & (element_bits - 1):
        return f"{text}, for no swizzle counts such elements"
    return f"{text} (S<3,4,3> over bytes is {Swizzle(3, 4, 3).in_elements(element_bits)!r} over these elements)"


def _byte_bits(element_bits: int) -> int:
    """log2 of the bytes of an element; below 0 of elements that share one."""
    needed = f"a power of two (4, 8, 16, 32, ...), {WIDEST} at most"
    bits = integer("element_bits", element_bits, at_least=1, at_most=WIDEST, needed=needed)
    if bits & (bits - 1):
        wrong_value("element_bits", bits, needed + _instead(bits))
    return bits.bit_length() - 4
