"""wgmma.mma_async.m64nNkK with both operands in shared memory, read through matrix descriptors.

A is 64 x K and B is N x K (one row for each column of the product). K is 32 bytes: 16 elements of 16-bit floats, 32 of
8-bit ones. K-major: the K values of a row are adjacent. MN-major, which 16-bit types alone may be: the values of one k
are adjacent along the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cookbook.arguments import checked, choice, integer, renamed
from cookbook.layouts import SmemLayout
from cookbook.model.formats import to_float32
from cookbook.model.small_floats import decode
from cookbook.model.smem import SharedMemory
from cookbook.model.tma import SWIZZLES, swizzle_mode

__all__ = ["MatrixDescriptor", "d_coords", "operand_addresses", "operand_descriptors", "wgmma"]

CHUNK = 16  # bytes of a row that stay together
CORE_ROWS = 8
K = 16  # elements of 16 bits
K_BYTES = 32  # of a row: K elements of 16 bits, twice as many of 8
SMALL = ("e4m3", "e5m2")
INTEGER = "int8"  # its sums are int32
MAJORS = ("K", "MN")
MODE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}
FIELD = (1 << 14) - 1  # addresses and offsets are 14 bits, in units of 16 bytes


@checked
@dataclass(frozen=True)
class MatrixDescriptor:
    """The 64-bit matrix descriptor.

    PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Matrix Descriptor Format".

    All in bytes, multiples of 16 below 2**18: where the matrix starts, and two strides ("Strides"). K-major: `lbo` from
    a chunk of 8 K values to the next (read in the unswizzled mode alone), `sbo` from a group of 8 rows to the next.
    MN-major: `lbo` from `mode` bytes along MN to the next, `sbo` from 8 k to the next 8; in the unswizzled mode the two
    change places. `mode` is the swizzle: 0, 32, 64 or 128 bytes. `base_offset` (0 to 7) is for matrices whose swizzle
    pattern does not start at a multiple of its size.
    """

    start: int
    lbo: int
    sbo: int
    mode: int
    base_offset: int = 0

    def __post_init__(self) -> None:
        for name in ("start", "lbo", "sbo"):
            value = getattr(self, name)
            if value % CHUNK or not 0 <= value <= FIELD * CHUNK:
                raise ValueError(f"{name}: got {value}; needed a multiple of 16 in 0 to {FIELD * CHUNK}")
        if self.mode not in MODE_CODES:
            raise ValueError(f"mode: got {self.mode}; needed one of {list(SWIZZLES)}")
        if not 0 <= self.base_offset <= 7:
            raise ValueError(f"base_offset: got {self.base_offset}; needed 0 to 7")

    def encode(self) -> int:
        """The 64 bits: start in 0-13, lbo in 16-29, sbo in 32-45, base_offset in 49-51, mode in 62-63."""
        fields = ((self.start // CHUNK, 0), (self.lbo // CHUNK, 16), (self.sbo // CHUNK, 32))
        word = sum(value << at for value, at in fields)
        return word | self.base_offset << 49 | MODE_CODES[self.mode] << 62

    @classmethod
    @checked
    def decode(cls, word: int) -> MatrixDescriptor:
        """The descriptor that these 64 bits say.

        Raises:
            ValueError: not an unsigned 64-bit integer, or a bit that is set in none of the fields.
        """
        known = FIELD | FIELD << 16 | FIELD << 32 | 7 << 49 | 3 << 62
        if not 0 <= word < 1 << 64 or word & ~known:
            raise ValueError(f"word: got {word:#x}; needed 64 bits with zeros outside the fields, {known:#x}")
        start, lbo, sbo = ((word >> at & FIELD) * CHUNK for at in (0, 16, 32))
        mode = {code: mode for mode, code in MODE_CODES.items()}[word >> 62]
        return cls(start, lbo, sbo, mode, word >> 49 & 7)


@checked
@lru_cache(maxsize=1024)
def operand_addresses(descriptor: MatrixDescriptor, rows: int, major: str = "K") -> np.ndarray:
    """Read-only byte addresses of the 16-byte chunks of an operand of rows x 32 bytes.

    PTX ISA, "Strides" and "Asynchronous Warpgroup Level Canonical Layouts": lines of one chunk under no swizzle, else
    of `mode` bytes, along K or along MN; then the swizzle of the absolute address.

    Returns:
        K-major: (rows, 2), the two chunks of each row. MN-major: (16, rows / 8), the chunks of each k.

    Raises:
        ValueError: rows is not a multiple of 8, no such major, or base_offset is not 0 (not modelled).
    """
    integer("rows", rows, at_least=CORE_ROWS, at_most=1 << 12, multiple_of=CORE_ROWS)
    if major not in MAJORS:
        raise ValueError(f"major: got {major!r}; needed one of {MAJORS}")
    if descriptor.base_offset:
        raise ValueError(
            f"descriptor: got base_offset {descriptor.base_offset}; needed 0: a pattern that starts at a "
            "multiple of its size, the only kind modelled"
        )
    linear = (_k_major_chunks if major == "K" else _mn_major_chunks)(descriptor, rows)
    addresses = SWIZZLES[descriptor.mode](linear)
    addresses.flags.writeable = False  # it is kept and given out again
    return addresses


def _k_major_chunks(descriptor: MatrixDescriptor, rows: int) -> np.ndarray:
    row, chunk = np.arange(rows)[:, None], np.arange(K_BYTES // CHUNK)
    linear = descriptor.start + row % CORE_ROWS * (descriptor.mode or CHUNK) + row // CORE_ROWS * descriptor.sbo
    return linear + chunk * (CHUNK if descriptor.mode else descriptor.lbo)


def _mn_major_chunks(descriptor: MatrixDescriptor, rows: int) -> np.ndarray:
    k, along = np.arange(K)[:, None], np.arange(rows // CORE_ROWS) * CHUNK
    width = descriptor.mode or CHUNK
    next_mn, next_k = (descriptor.lbo, descriptor.sbo) if descriptor.mode else (descriptor.sbo, descriptor.lbo)
    line = k % CORE_ROWS * width + k // CORE_ROWS * next_k
    return descriptor.start + line + along % width + along // width * next_mn


@checked
def operand_descriptors(layout: SmemLayout, rows: int, base: int = 0, major: str = "K") -> list[MatrixDescriptor]:
    """The descriptors of every block of `rows` x 32 bytes of a tile: k blocks fastest, then row blocks, then stages.

    From one k block to the next only the start address advances. K-major: by 32 bytes inside a swizzled row of 64 or
    128 bytes, else to the next atom along K. MN-major: to the next 16 lines. The layout says how many bytes that is.

    Args:
        layout: (rows of the operand, K[, stage]) of 16-bit elements, or of 8-bit ones, which are K-major.
        rows: rows of one instruction: 64 for A, N for B.
        base: byte address of the tile, a multiple of `layout.alignment`.
        major: "K" or "MN", the instruction's imm-trans-a or imm-trans-b.

    Raises:
        ValueError: the layout is not one of the canonical ones of this major, the base is misaligned, or the blocks
            do not divide the tile.
    """
    integer("rows", rows, at_least=CORE_ROWS, at_most=1 << 12, multiple_of=CORE_ROWS)
    choice("major", major, MAJORS)
    integer("base", base, at_least=0, at_most=FIELD * CHUNK)
    offsets = layout.outer.table() * layout.element_bytes
    offsets = offsets[..., None] if offsets.ndim == 2 else offsets
    if layout.element_bits not in (8, 16) or offsets.ndim != 3:
        raise ValueError(f"layout: got {layout!r}; needed 8- or 16-bit elements in modes (MN, K) or (MN, K, STAGE)")
    if layout.element_bits == 8 and major != "K":
        raise ValueError(f"major: got {major!r}; needed 'K', as wgmma takes 8-bit operands")
    k = K_BYTES // layout.element_bytes
    if offsets.shape[0] % rows or offsets.shape[1] % k:
        raise ValueError(f"rows: got {rows}; needed blocks of {rows} x {k} that divide {offsets.shape[:2]}")
    if base % layout.alignment:
        raise ValueError(f"base: got {base}; needed a multiple of {layout.alignment} for {layout.swizzle!r}")
    mode = swizzle_mode(layout.swizzle)
    blocks = offsets.reshape(-1, rows, offsets.shape[1] // k, k, offsets.shape[2])
    blocks = blocks.transpose(4, 0, 2, 1, 3).reshape(-1, rows, k)
    return [block_descriptor(block, base, mode, major) for block in blocks]


def block_descriptor(block: np.ndarray, base: int, mode: int, major: str) -> MatrixDescriptor:
    """The descriptor of one block, given its (rows, K) byte offsets before the swizzle."""
    start, rows, chunk = int(block[0, 0]), len(block), CHUNK * block.shape[1] // K_BYTES
    lbo, sbo = (_k_major_strides if major == "K" else _mn_major_strides)(block - start, mode)
    if min(lbo, sbo) < 0:
        raise ValueError(f"layout: got lbo {lbo} and sbo {sbo}; needed offsets that grow: not a canonical layout")
    descriptor = MatrixDescriptor(base + start, lbo, sbo, mode)
    lines = block if major == "K" else block.T  # adjacent values in a row, either way
    chunks = SWIZZLES[mode](base + lines[:, ::chunk])
    inside = lines - np.repeat(lines[:, ::chunk], chunk, axis=1)
    adjacent = (inside == np.arange(lines.shape[1]) % chunk * (CHUNK // chunk)).all()
    if not adjacent or not np.array_equal(chunks, operand_addresses(descriptor, rows, major)):
        raise ValueError(
            f"layout: got a block at byte {start} that no {major}-major descriptor of the {mode}-byte mode reads; "
            f"needed {'rows' if major == 'K' else 'lines of one k'} {mode or CHUNK} bytes apart in groups of 8, "
            f"and {chunk} {major} values adjacent"
        )
    return descriptor


def _k_major_strides(block: np.ndarray, mode: int) -> tuple[int, int]:
    """(lbo, sbo) of a (rows, K) block of byte offsets from its start."""
    sbo = int(block[CORE_ROWS, 0]) if len(block) > CORE_ROWS else 0
    # The swizzled modes do not use lbo; the PTX ISA says to take it as 1, in units of 16 bytes.
    return CHUNK if mode else int(block[0, block.shape[1] // 2]), sbo


def _mn_major_strides(block: np.ndarray, mode: int) -> tuple[int, int]:
    width = (mode or CHUNK) // 2  # elements
    next_mn = int(block[width, 0]) if len(block) > width else 0
    next_k = int(block[0, CORE_ROWS])
    return (next_mn, next_k) if mode else (next_k, next_mn)


@checked
@lru_cache(maxsize=32)
def d_coords(n: int) -> np.ndarray:
    """(128, n // 2, 2), read-only: the (m, n) of each of a thread's accumulators.

    PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma: the accumulator fragment D.
    """
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"n: got {n}; needed a multiple of 8 in 8 to 256")
    thread, i = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
    column = 8 * (i // 4) + 2 * (thread % 4) + i % 2
    coords = np.stack(np.broadcast_arrays(row, column), axis=-1)
    coords.flags.writeable = False
    return coords


@checked
def wgmma(
    smem: SharedMemory,
    a: MatrixDescriptor | int,
    b: MatrixDescriptor | int,
    d: np.ndarray,
    dtype: str,
    *,
    major_a: str = "K",
    major_b: str = "K",
) -> np.ndarray:
    """wgmma.mma_async.sync.aligned.m64nNkK.f32.T.T, or .satfinite.s32.s8.s8, with A and B in shared memory.

    PTX ISA, "Asynchronous Multiply-and-Accumulate Instruction: wgmma.mma_async".

    Args:
        a: descriptor of an operand of 64 rows, or its 64 bits.
        b: descriptor of an operand of N rows, or its 64 bits.
        d: (128, N // 2) float32 accumulators, or int32 ones of "int8", by thread and register; N follows from it.
        dtype: T: "float16", "bfloat16", "e4m3", "e5m2" or "int8". (A and B may be of different 8-bit types; here they
            are not.)
        major_a: "K", or "MN" (imm-trans-a = 1, which 16-bit types alone may have).
        major_b: likewise (imm-trans-b).

    Returns:
        (128, N // 2) of the dtype of d: d plus the product. Products are exact and added in float32 in numpy's order;
        the hardware's order and intermediate rounding are its own: of 8-bit floats it keeps fewer bits than float32
        has. Sums of int8 are exact; one that would leave int32 becomes its nearest limit (.satfinite).
    """
    wanted = np.int32 if dtype == INTEGER else np.float32
    if d.ndim != 2 or d.shape[0] != 128 or d.dtype != wanted:
        raise ValueError(f"d: got {d.dtype} of shape {d.shape}; needed {wanted.__name__} (128, N / 2)")
    n = 2 * d.shape[1]
    coords = d_coords(n)
    with renamed(word="a", major="major_a", descriptor="a"):
        left = _values(smem, _decoded(a), 64, major_a, dtype)
    with renamed(word="b", major="major_b", descriptor="b"):
        right = _values(smem, _decoded(b), n, major_b, dtype)
    product = (left @ right.T)[coords[..., 0], coords[..., 1]]  # of 32 integers: exact in float32
    if dtype != INTEGER:
        return d + product
    limits = np.iinfo(np.int32)
    return np.clip(d + product.astype(np.int64), limits.min, limits.max).astype(np.int32)


def _values(smem: SharedMemory, descriptor: MatrixDescriptor, rows: int, major: str, dtype: str) -> np.ndarray:
    """(rows, K) float32."""
    addresses = operand_addresses(descriptor, rows, major)
    if dtype in (*SMALL, INTEGER):
        if major != "K":
            raise ValueError(f"major: got {major!r}; needed 'K', as wgmma takes 8-bit operands")
        codes = smem.read(addresses, CHUNK, np.uint8).reshape(rows, K_BYTES)
        return codes.view(np.int8).astype(np.float32) if dtype == INTEGER else decode(codes, dtype)
    chunks = smem.read(addresses, CHUNK // 2)
    return to_float32(chunks.reshape(rows, K) if major == "K" else chunks.reshape(K, rows).T, dtype)


def _decoded(descriptor: MatrixDescriptor | int) -> MatrixDescriptor:
    if isinstance(descriptor, MatrixDescriptor):
        return descriptor
    return MatrixDescriptor.decode(descriptor)
