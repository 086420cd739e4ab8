"""tcgen05.mma: the instruction descriptor, where D lies in tensor memory, and the product.

A is (M, K) and B is (N, K), one row for each column of the product; D is (M, N) float32 in tensor memory. One
instruction takes 32 bytes of K: 16 elements of 16 bits, 8 of tf32, 32 of 8 bits, 64 of 4 bits.

The models of tcgen05 (this file, `smem_descriptor`, `tmem`, `scale_factors`) agree with the layouts and descriptors
that CuTe makes for sm_100a. They have not been compared with a Blackwell GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cookbook.arguments import checked, integer, renamed
from cookbook.model.formats import to_float32
from cookbook.model.scale_factors import read_scales
from cookbook.model.small_floats import FORMATS, decode, unpack
from cookbook.model.smem import SharedMemory
from cookbook.model.smem_descriptor import CHUNK, ROW_BYTES, BlackwellDescriptor, operand_bytes
from cookbook.model.tmem import TensorMemory, TmemAddress

__all__ = ["KINDS", "InstructionDescriptor", "d_places", "mma"]

EIGHT_BITS = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
D_TYPES = {"float16": 0, "float32": 1}
SCALE_TYPES = {"ue4m3": 0, "ue8m0": 1}


class Kind(NamedTuple):
    """A .kind of tcgen05.mma: bits that an element fills in shared memory, the types' codes, and how it is scaled."""

    bits: int
    types: dict[str, int]
    d_types: tuple[str, ...] = ("float32",)
    blocks: tuple[int, ...] = ()  # elements of K to a scale factor, the default first; none: not scaled
    scale_types: tuple[str, ...] = ()

    @property
    def k(self) -> int:
        return ROW_BYTES * 8 // self.bits


KINDS = {
    "f16": Kind(16, {"float16": 0, "bfloat16": 1}, ("float32", "float16")),
    "tf32": Kind(32, {"tfloat32": 2}),
    "f8f6f4": Kind(8, EIGHT_BITS, ("float32", "float16")),
    "mxf8f6f4": Kind(8, EIGHT_BITS, blocks=(32,), scale_types=("ue8m0",)),
    "mxf4": Kind(4, {"e2m1": 1}, blocks=(32,), scale_types=("ue8m0",)),
    "mxf4nvf4": Kind(4, {"e2m1": 1}, blocks=(16, 32), scale_types=("ue4m3", "ue8m0")),
}
MN_MAJOR_TYPES = ("float16", "bfloat16", "tfloat32", "e4m3", "e5m2")


@checked
@dataclass(frozen=True)
class InstructionDescriptor:
    """The 32 bits that tell tcgen05.mma shapes, types and majors, and the .kind that they are read under.

    PTX ISA, "Instruction Descriptor", one table for kinds f16, tf32 and f8f6f4, one for mxf8f6f4, one for mxf4 and
    mxf4nvf4. Dense and not weight-stationary only.

    `m` is of the whole instruction: of both CTAs under .cta_group::2. The scale factor ids say which byte of the 32-bit
    cells of scale factors the first one is: see `cookbook.model.scale_factors`.
    """

    kind: str
    m: int
    n: int
    a_type: str
    b_type: str = ""  # as A
    d_type: str = "float32"
    a_major: str = "K"
    b_major: str = "K"
    a_negate: bool = False
    b_negate: bool = False
    scale_type: str = ""  # the kind's first, if it is scaled
    a_sf_id: int = 0
    b_sf_id: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: got {self.kind!r}; needed one of {list(KINDS)}")
        kind = KINDS[self.kind]
        object.__setattr__(self, "b_type", self.b_type or self.a_type)
        if kind.blocks and not self.scale_type:
            object.__setattr__(self, "scale_type", kind.scale_types[0])
        self._check_types(kind)
        if self.m not in (64, 128, 256) or (kind.blocks and self.m == 64):
            raise ValueError(f"m: got {self.m}; needed {'128 or 256' if kind.blocks else '64, 128 or 256'}")
        if self.n % 8 or not 8 <= self.n <= 256:
            raise ValueError(f"n: got {self.n}; needed a multiple of 8 in 8 to 256")
        for name in ("a_sf_id", "b_sf_id"):
            value = getattr(self, name)
            if value not in _sf_ids(kind):
                raise ValueError(f"{name}: got {value}; needed one of {_sf_ids(kind)} for {self.kind}")

    def _check_types(self, kind: Kind) -> None:
        for name in ("a", "b"):
            dtype, major = getattr(self, f"{name}_type"), getattr(self, f"{name}_major")
            if dtype not in kind.types:
                raise ValueError(f"{name}_type: got {dtype!r}; needed one of {list(kind.types)} for {self.kind}")
            if major not in (("K", "MN") if dtype in MN_MAJOR_TYPES and kind.bits > 4 else ("K",)):
                raise ValueError(f"{name}_major: got {major!r}; needed K, or MN of one of {MN_MAJOR_TYPES}")
        if self.kind == "f16" and self.a_type != self.b_type:
            raise ValueError(f"b_type: got {self.b_type!r} with {self.a_type!r}; needed the same: not modelled")
        if self.d_type not in kind.d_types or (self.d_type == "float16" and self.a_type == "bfloat16"):
            raise ValueError(f"d_type: got {self.d_type!r}; needed one of {kind.d_types}, float32 of bfloat16")
        if self.scale_type not in (kind.scale_types or ("",)):
            raise ValueError(f"scale_type: got {self.scale_type!r}; needed one of {kind.scale_types} for {self.kind}")

    @property
    def k(self) -> int:
        """Elements of K that one instruction takes."""
        return KINDS[self.kind].k

    @checked
    def check(self, cta_group: int, a_in_tmem: bool = False) -> None:
        """PTX ISA, tcgen05 "Matrix Shape": whether these M and N exist under .cta_group::1 or ::2.

        Raises:
            ValueError: they do not.
        """
        if cta_group not in (1, 2):
            raise ValueError(f"cta_group: got {cta_group}; needed 1 or 2")
        sizes = (64 * cta_group, 128 * cta_group)
        if self.kind in ("mxf8f6f4", "mxf4", "mxf4nvf4") and cta_group == 1:
            sizes = (128,)
        if self.m not in sizes:
            raise ValueError(f"m: got {self.m}; needed one of {sizes} under cta_group::{cta_group}")
        eight_bits = KINDS[self.kind].bits == 8 and self.b_major == "MN"
        step = 8 * cta_group * (2 if eight_bits or (a_in_tmem and self.m > 64) else 1)
        if self.n % step:
            raise ValueError(f"n: got {self.n}; needed a multiple of {step} under cta_group::{cta_group}")

    def encode(self) -> int:
        """The 32 bits."""
        kind = KINDS[self.kind]
        word = kind.types[self.a_type] << 7 | kind.types[self.b_type] << 10
        word |= self.a_negate << 13 | self.b_negate << 14
        word |= (self.a_major == "MN") << 15 | (self.b_major == "MN") << 16
        word |= self.n // 8 << 17 | self.m // 16 << 24
        if kind.blocks:  # M is said in units of 128 from bit 27, which is the same
            return word | self.b_sf_id << 4 | SCALE_TYPES[self.scale_type] << 23 | self.a_sf_id << 29
        return word | D_TYPES[self.d_type] << 4

    @classmethod
    @checked
    def decode(cls, word: int, kind: str) -> InstructionDescriptor:
        """Return what these 32 bits say to an instruction of this .kind.

        Raises:
            ValueError: no such kind, a bit set that is reserved or for what is not modelled, or an illegal value.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: got {kind!r}; needed one of {list(KINDS)}")
        scaled, types = KINDS[kind].blocks, {code: name for name, code in KINDS[kind].types.items()}
        shared = 0x3F << 7 | 0xF << 13 | 0x3F << 17 | 0x1F << 24 | 3 << 4
        known = shared | 1 << 23 | 3 << 29 if scaled else shared
        codes = [word >> at & 7 for at in (7, 10)]
        if not 0 <= word < 1 << 32 or word & ~known or not set(codes) <= set(types):
            raise ValueError(
                f"word: got {word:#010x}; needed 32 bits with zeros outside {known:#010x}, types of {types} for {kind}"
            )
        fields: dict[str, Any] = {"m": (word >> 24 & 31) * 16, "n": (word >> 17 & 63) * 8}
        fields |= {"a_type": types[codes[0]], "b_type": types[codes[1]]}
        fields |= {"a_negate": bool(word >> 13 & 1), "b_negate": bool(word >> 14 & 1)}
        fields |= {"a_major": "MN" if word >> 15 & 1 else "K", "b_major": "MN" if word >> 16 & 1 else "K"}
        if scaled:
            scales = {code: name for name, code in SCALE_TYPES.items()}
            fields |= {"scale_type": scales[word >> 23 & 1], "a_sf_id": word >> 29 & 3, "b_sf_id": word >> 4 & 3}
        else:
            d_types = {code: name for name, code in D_TYPES.items()}
            fields["d_type"] = d_types.get(word >> 4 & 3, "int32")
        try:
            return cls(kind, **fields)
        except ValueError as error:
            raise ValueError(f"word: got {word:#010x}, in which {error}") from None


def _sf_ids(kind: Kind) -> tuple[int, ...]:
    """First bytes of a cell that scale factors may start at: as many as one instruction takes must follow."""
    if not kind.blocks:
        return (0,)
    return tuple(range(0, 4, max(1, kind.k // max(kind.blocks))))


@checked
@lru_cache(maxsize=64)
def d_places(m: int, n: int, cta_group: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(CTA, lane, column) of every element of D, three read-only (m, n) arrays; columns count from D's address.

    PTX ISA, "Data Path Layout Organization". One CTA: M = 128 has row i in lane i (layout D); M = 64 uses 16 lanes of
    each warp's 32 (layout F). Two CTAs: M = 256 has 128 rows in each (layout A); M = 128 has 64 rows in each, in lanes
    0-63 the first half of the columns and in lanes 64-127 the second (layout B).

    Raises:
        ValueError: no such M under this cta_group.
    """
    integer("n", n, at_least=1, at_most=512)
    if m not in (64 * cta_group, 128 * cta_group) or cta_group not in (1, 2):
        raise ValueError(f"m, cta_group: got {m, cta_group}; needed 64 or 128 with 1, 128 or 256 with 2")
    row, column = np.indices((m, n))
    cta, lane = row // (m // cta_group), row % (m // cta_group)
    if (m, cta_group) == (64, 1):
        lane = row // 16 * 32 + row % 16
    if (m, cta_group) == (128, 2):
        lane, column = lane + 64 * (column // (n // 2)), column % (n // 2)
    places = cta, lane, column
    for array in places:
        array.flags.writeable = False
    return places


@checked
def mma(
    smem: SharedMemory | Sequence[SharedMemory],
    tmem: TensorMemory | Sequence[TensorMemory],
    d: TmemAddress | int,
    a: BlackwellDescriptor | TmemAddress | int,
    b: BlackwellDescriptor | int,
    idesc: InstructionDescriptor,
    *,
    accumulate: bool = True,
    scale_a: TmemAddress | int | None = None,
    scale_b: TmemAddress | int | None = None,
    block: int = 0,
) -> None:
    """tcgen05.mma.cta_group.kind: D = A @ B.T, plus D if `accumulate` (enable-input-d).

    PTX ISA, "tcgen05.mma". .cta_group::2 if `smem` and `tmem` are pairs, of the even and the odd CTA: each holds the
    half of A's rows that it computes and half of B's rows, at the same addresses.

    Args:
        d: lane 0, or 0 or 16 of M = 64; the first of N columns.
        a: a descriptor or its 64 bits; or a `TmemAddress`: row i in the lane of row i of D, 8 columns of packed K.
        b: a descriptor or its 64 bits.
        scale_a: of the kinds that have them, where the scale factors of A begin.
        scale_b: those of B.
        block: elements to a scale factor (.block16, .block32); the kind's first if left out.

    Products are exact and added in float32 in numpy's order; the hardware's order and intermediate rounding are its
    own. A float16 D is not modelled.

    Raises:
        ValueError: a shape, type or address that the instruction does not take.
    """
    smems = [smem] if isinstance(smem, SharedMemory) else list(smem)
    tmems = [tmem] if isinstance(tmem, TensorMemory) else list(tmem)
    if len(smems) != len(tmems):
        raise ValueError(f"tmem: got {len(tmems)} with {len(smems)} shared memories; needed one of each CTA")
    idesc.check(len(tmems), isinstance(a, TmemAddress))
    if idesc.d_type != "float32":
        raise ValueError(f"idesc: got a D of {idesc.d_type}; needed float32: others are not modelled")
    if (scale_a is None, scale_b is None) != (not KINDS[idesc.kind].blocks,) * 2:
        raise ValueError(f"scale_a, scale_b: got {scale_a, scale_b}; needed both for the scaled kinds, else none")
    with renamed(address="d"):
        d = TmemAddress.of(d)
    with renamed(word="a", descriptor="a"):
        left = _left(smems, tmems, a, idesc, d)
    with renamed(word="b", descriptor="b"):
        right = _matrix([_bytes_of(s, b, idesc, "b", len(smems)) for s in smems], idesc, "b")
    if scale_a is None or scale_b is None:
        product = left @ right.T
    else:
        product = _scaled(tmems, left, right, scale_a, scale_b, idesc, block)
    _add(tmems, d, product, idesc, accumulate)


def _left(
    smems: list[SharedMemory],
    tmems: list[TensorMemory],
    a: BlackwellDescriptor | TmemAddress | int,
    idesc: InstructionDescriptor,
    d: TmemAddress,
) -> np.ndarray:
    """(M, K) float32."""
    if not isinstance(a, TmemAddress):
        return _matrix([_bytes_of(s, a, idesc, "a", len(smems)) for s in smems], idesc, "a")
    if idesc.a_major != "K" or KINDS[idesc.kind].blocks or (idesc.m, len(tmems)) == (128, 2):
        raise ValueError("a: got an address in tensor memory; needed K-major, not scaled, one row a lane")
    if a.lane != d.lane:
        raise ValueError(f"a: got lane {a.lane}; needed {d.lane}, D's: a row of A is in the lane of its row of D")
    _, lanes, _ = d_places(idesc.m, 1, len(tmems))
    lanes = lanes[: idesc.m // len(tmems)]
    cells = [t.read(lanes + a.lane, a.column + np.arange(ROW_BYTES // 4)[None, :]) for t in tmems]
    return _matrix([np.ascontiguousarray(c).view(np.uint8) for c in cells], idesc, "a")


def _bytes_of(
    smem: SharedMemory, operand: BlackwellDescriptor | int, idesc: InstructionDescriptor, name: str, ctas: int
) -> np.ndarray:
    rows, major = (idesc.m if name == "a" else idesc.n) // ctas, getattr(idesc, f"{name}_major")
    return operand_bytes(smem, operand, rows, major, KINDS[idesc.kind].bits)


def _matrix(parts: list[np.ndarray], idesc: InstructionDescriptor, name: str) -> np.ndarray:
    """(rows, K) float32 from each CTA's (rows, 32) bytes."""
    dtype, bits = getattr(idesc, f"{name}_type"), KINDS[idesc.kind].bits
    raw = np.concatenate(parts)
    if bits == 32:  # tf32 is a float32 whose 13 lowest bits are not looked at
        values = (raw.view(np.uint32) & 0xFFFFE000).view(np.float32)
    elif bits == 16:
        values = to_float32(raw.view(np.uint16), dtype)
    else:
        values = decode(_patterns(raw, bits, FORMATS[dtype].bits), dtype)
    return -values if getattr(idesc, f"{name}_negate") else values


def _patterns(raw: np.ndarray, bits: int, used: int) -> np.ndarray:
    """One pattern a byte, of elements of `used` bits.

    PTX ISA, "Packing formats": where an element fills 8 bits (kinds f8f6f4 and mxf8f6f4), 16 narrower ones are packed
    at the start of each 16-byte chunk, and padding follows.
    """
    if bits == 4:
        return unpack(raw, 4)
    if used == 8:
        return raw
    chunks = raw.reshape(*raw.shape[:-1], -1, CHUNK)[..., : 2 * used]
    return unpack(chunks, used).reshape(raw.shape)


def _scaled(
    tmems: list[TensorMemory],
    left: np.ndarray,
    right: np.ndarray,
    scale_a: TmemAddress | int,
    scale_b: TmemAddress | int,
    idesc: InstructionDescriptor,
    block: int,
) -> np.ndarray:
    """(M, N): every block of K multiplied by the scale factors of its row of A and its row of B."""
    kind = KINDS[idesc.kind]
    block = block or kind.blocks[0]
    if block not in kind.blocks:
        raise ValueError(f"block: got {block}; needed one of {kind.blocks} for {idesc.kind}")
    if idesc.scale_type == "ue4m3" and block != 16:
        raise ValueError(f"block: got {block}; needed 16 for scale factors of ue4m3")
    count = kind.k // block
    a_scales, b_scales = read_scales(tmems, idesc.m, idesc.n, count, scale_a, scale_b, idesc.a_sf_id, idesc.b_sf_id)
    total = np.zeros((idesc.m, idesc.n), np.float32)
    for i in range(count):
        inside = slice(i * block, (i + 1) * block)
        # float64 here alone: two scale factors may overflow a float32 that their product with the sum does not
        scales = [decode(s[:, i], idesc.scale_type).astype(np.float64) for s in (a_scales, b_scales)]
        total += (left[:, inside] @ right[:, inside].T * np.outer(*scales)).astype(np.float32)
    return total


def _add(
    tmems: list[TensorMemory], d: TmemAddress, product: np.ndarray, idesc: InstructionDescriptor, accumulate: bool
) -> None:
    cta, lane, column = d_places(idesc.m, idesc.n, len(tmems))
    if d.lane not in ((0, 16) if (idesc.m, len(tmems)) == (64, 1) else (0,)):
        raise ValueError(f"d: got lane {d.lane}; needed 0, or 16 for the second D of M = 64")
    for i, tmem in enumerate(tmems):
        mine = cta == i
        at = lane[mine] + d.lane, column[mine] + d.column
        before = tmem.read(*at).view(np.float32) if accumulate else np.float32(0)
        tmem.write(*at, before + product[mine])
