"""The (layout, access) pairs that are probed: for each instruction, a table of lane addresses and what they stand for.

Tiles are `SmemLayout`s of 32 rows whose element is one lane's vector; an access is a block of such vectors, the lanes
going along its rows or down its columns. Beside them come addresses that no layout makes: broadcasts, lanes that share
an address, strides, random ones, and warps of which only some lanes take part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from cookbook import access, banks
from cookbook.layouts import Layout, SmemLayout
from cookbook.swizzle import Swizzle
from tools.probes.instructions import INSTRUCTIONS, SOURCE_BYTES, Instruction

__all__ = ["LANE", "SOURCE_REGION", "Pair", "access_of", "pairs", "pairs_of"]

LANE = np.arange(32)
ROWS = 32
SEED = 20  # of the random addresses: the same table every time
SOURCE_ROW = 4096  # bytes between rows in global memory, where a warp copies from several
SOURCE_REGION = 32 * SOURCE_ROW  # bytes: every first copy reads memory that none has read before
BLOCKS = ((1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1))
SWIZZLES = (Swizzle(0, 4, 3), *(Swizzle(b, 4, 3) for b in (1, 2, 3)), Swizzle(4, 3, 4), Swizzle(5, 2, 5))


@dataclass(frozen=True)
class Pair:
    """One warp-wide execution of one instruction."""

    instruction: Instruction
    layout: str
    access: str
    addresses: tuple[int, ...]  # 32 byte offsets in shared memory, -1 for a lane that takes no part
    sources: tuple[int, ...] = ()  # cp.async: 32 byte offsets in global memory

    @property
    def predicted(self) -> int:
        """Wavefronts by `cookbook.banks`, the least where it gives a range."""
        return _counted(self).actual

    @property
    def at_most(self) -> int:
        """As many as `predicted`, or the end of the range."""
        return _counted(self).at_most

    @property
    def lanes(self) -> np.ndarray:
        return np.array(self.addresses, np.int64)

    def __str__(self) -> str:
        return f"{self.instruction.name}: {self.access} of {self.layout}"


@cache
def _counted(pair: Pair) -> banks.Wavefronts:
    sources = np.array(pair.sources, np.int64) if pair.sources else None
    load = pair.instruction.opcode == "LDS"
    past_l1 = pair.instruction.past_l1
    return banks.wavefronts(pair.lanes, pair.instruction.width, load=load, sources=sources, past_l1=past_l1)


@cache
def pairs() -> tuple[Pair, ...]:
    """Every pair, instruction by instruction; no two of an instruction have the same addresses."""
    return tuple(pair for instruction in INSTRUCTIONS for pair in pairs_of(instruction))


def pairs_of(instruction: Instruction) -> list[Pair]:
    """The pairs of one instruction."""
    if instruction.kind == "cp_async":
        return list(_copies(instruction))
    sources = _matrix_rows if instruction.collective else _vectors
    found: dict[tuple[int, ...], Pair] = {}
    for layout, name, addresses in sources(instruction):
        made = access_of(instruction, addresses)
        key = tuple(made.addresses.tolist())
        found.setdefault(key, Pair(instruction, layout, name, key))
    return list(found.values())


def access_of(instruction: Instruction, addresses: np.ndarray) -> access.Access:
    """The access, checked by `cookbook.access`: alignment, and which lanes count."""
    if instruction.kind == "ldst":
        return access.ldst(addresses, instruction.width)
    if instruction.kind == "cp_async":
        return access.cp_async(addresses, instruction.width)
    make = access.ldmatrix if instruction.kind == "ldmatrix" else access.stmatrix
    return make(addresses, instruction.num)


# --- vectors by lane: ld.shared, st.shared ------------------------------------------------------------------

Named = tuple[str, str, np.ndarray]  # layout, access, 32 byte addresses


def _vectors(instruction: Instruction) -> Iterator[Named]:
    width = instruction.width
    yield from _blocks(width)
    for name, units in _patterns():
        yield "adjacent vectors", name, np.where(units < 0, -1, units * width)
    for name, units in _patterns():
        if not name.startswith("stride"):
            yield "vectors 128 bytes apart", name, np.where(units < 0, -1, units * 128)
    yield from _random(width)


def _blocks(width: int) -> Iterator[Named]:
    for name, offsets in _tiles(width).items():
        for rows, columns in BLOCKS:
            if columns > offsets.shape[1]:
                continue
            block = offsets[:rows, :columns]
            yield name, f"{rows}x{columns} block", block.reshape(-1)
            if width > 4:  # with one phase the order of the lanes makes no difference
                yield name, f"{rows}x{columns} block, lanes down the columns", block.T.reshape(-1)


def _tiles(width: int) -> dict[str, np.ndarray]:
    """(32, columns) byte offsets of vectors of `width` bytes, by the layout's description."""
    found = {}
    lengths = {128} if width < 4 else {64, 128, 32 * width}
    for row_bytes in sorted(lengths):
        columns = row_bytes // width
        for swizzle in SWIZZLES:
            if swizzle.base <= 4 and 1 << swizzle.base >= width:
                layout = SmemLayout(Layout((ROWS, columns), (columns, 1)), swizzle, 8 * width)
                found[f"{row_bytes}-byte rows, {swizzle!r}"] = layout.byte_offsets()
        padded = SmemLayout(Layout((ROWS, columns), (columns + 1, 1)), SWIZZLES[0], 8 * width)
        found[f"{row_bytes}-byte rows padded by {width}"] = padded.byte_offsets()
        turned = SmemLayout(Layout((ROWS, columns), (1, ROWS)), SWIZZLES[0], 8 * width)
        found[f"{columns} columns of 32 vectors"] = turned.byte_offsets()
    return found


def _patterns() -> Iterator[tuple[str, np.ndarray]]:
    """Addresses in units of the vector, -1 for a lane that takes no part."""
    yield "all lanes the same", LANE * 0
    for bit in range(5):
        yield f"lanes t, t^{1 << bit} share", _without_bit(LANE, bit)
    yield "lanes t, t^1, t^2 share", LANE >> 2
    yield "eight lanes share", LANE >> 3
    yield "sixteen lanes share", LANE >> 4
    yield "lanes t, t^1 share in the lower half", np.where(LANE < 16, LANE >> 1, LANE)
    yield "lanes t, t^1 share in the first eight", np.where(LANE < 8, LANE >> 1, LANE)
    yield "lower half t^1, upper half t^2", np.where(LANE < 16, LANE >> 1, _without_bit(LANE, 1))
    yield "reversed", LANE[::-1]
    for stride in (2, 3, 4, 5, 8, 16, 32):
        yield f"stride {stride}", LANE * stride
    for name, active in _masks():
        yield name, np.where(active, LANE, -1)
    yield "even lanes, packed", np.where(LANE % 2 == 0, LANE // 2, -1)
    yield "t & 2 clear, packed", np.where(LANE & 2 == 0, _without_bit(LANE, 1), -1)


def _masks() -> Iterator[tuple[str, np.ndarray]]:
    yield "even lanes", LANE % 2 == 0
    yield "odd lanes", LANE % 2 == 1
    yield "t & 2 clear", LANE & 2 == 0
    yield "every fourth lane", LANE % 4 == 0
    yield "lanes 0 to 7", LANE < 8
    yield "lanes 8 to 15", LANE // 8 == 1
    yield "lower half", LANE < 16
    yield "upper half", LANE >= 16
    yield "lanes 0 to 7 and 16 to 23", LANE // 8 % 2 == 0
    yield "lane 0", LANE == 0
    yield "lane 31", LANE == 31


def _without_bit(lane: np.ndarray, bit: int) -> np.ndarray:
    """The lane number with one of its bits taken out."""
    return lane >> bit + 1 << bit | lane & (1 << bit) - 1


def _random(width: int) -> Iterator[Named]:
    rng = np.random.default_rng(SEED + width)
    spread = "random vectors of 8 KiB"
    for i in range(4):
        yield spread, f"draw {i}", rng.integers(0, 8192 // width, 32) * width
    for i in range(2):
        yield spread, f"lanes t, t^1 share, draw {i}", rng.integers(0, 8192 // width, 16)[LANE >> 1] * width
        yield spread, f"lanes t, t^2 share, draw {i}", rng.integers(0, 8192 // width, 16)[_without_bit(LANE, 1)] * width
        yield spread, f"half the lanes, draw {i}", _half(rng, rng.integers(0, 8192 // width, 32) * width)
        yield "adjacent vectors", f"a permutation, draw {i}", rng.permutation(32) * width
        yield "adjacent vectors", f"half the lanes, draw {i}", _half(rng, LANE * width)


def _half(rng: np.random.Generator, addresses: np.ndarray) -> np.ndarray:
    return np.where(rng.permutation(32) < 16, addresses, -1)


# --- rows of 8x8 matrices: ldmatrix, stmatrix ---------------------------------------------------------------


def _matrix_rows(instruction: Instruction) -> Iterator[Named]:
    """Lanes 8i to 8i + 7 give the rows of matrix i; the matrices stand side by side, in a square, or in a column."""
    num = instruction.num
    for name, offsets in _tiles(16).items():
        if name.endswith("vectors"):
            continue
        for down in (d for d in (1, 2, 4) if d <= num):
            if num // down <= offsets.shape[1]:
                yield name, f"{8 * down}x{num // down} pieces", _matrices(offsets, down, num // down)
    for name, units in _patterns():
        if (units >= 0).all():
            yield "adjacent rows", name, units * 16
    for name in ("all lanes the same", "lanes t, t^1 share", "lanes t, t^8 share", "reversed"):
        yield "rows 128 bytes apart", name, dict(_patterns())[name] * 128
    rng = np.random.default_rng(SEED)
    for i in range(4):
        yield "random rows of 8 KiB", f"draw {i}", rng.integers(0, 512, 32) * 16


def _matrices(offsets: np.ndarray, down: int, across: int) -> np.ndarray:
    """32 row addresses: matrices down the tile first, then across; those beyond are copies that do not count."""
    rows = [offsets[8 * m : 8 * m + 8, k] for k in range(across) for m in range(down)]
    return np.resize(np.concatenate(rows), 32)


# --- copies from global memory: cp.async --------------------------------------------------------------------

USUAL_COPIES = (("adjacent vectors", "in order"), ("128-byte rows, S<3,4,3>", "rows"))


def _copies(instruction: Instruction) -> Iterator[Pair]:
    """Where a warp writes, against how it reads global memory: memory nobody has read yet, then the same again."""
    width, used = instruction.width, 0
    for layout, name, addresses in _copy_targets(width):
        if addresses.min() < 0 and not instruction.may_skip_lanes:
            continue
        usual = (layout, name) in USUAL_COPIES
        for source, offsets in _copy_sources(width):
            if not usual and source != "adjacent":
                continue
            shared = tuple(access_of(instruction, addresses).addresses.tolist())
            for again in (False, True):
                told = f"{name} from {source} global memory{', read before' if again else ''}"
                yield Pair(instruction, layout, told, shared, tuple((offsets + used * SOURCE_REGION).tolist()))
            used += 1
    if used * SOURCE_REGION > SOURCE_BYTES:
        raise AssertionError(f"copies need {used * SOURCE_REGION} bytes of global memory, more than {SOURCE_BYTES}")


def _copy_targets(width: int) -> Iterator[Named]:
    patterns = dict(_patterns())
    yield "adjacent vectors", "in order", LANE * width
    for swizzle in (SWIZZLES[0], SWIZZLES[3]):
        yield f"128-byte rows, {swizzle!r}", "rows", swizzle(LANE * width)
        yield f"128-byte rows, {swizzle!r}", "a column", swizzle(LANE * 128)
    for name in ("reversed", "stride 2", "stride 4", "stride 8", "even lanes", "lower half", "t & 2 clear"):
        yield "vectors", name, np.where(patterns[name] < 0, -1, patterns[name] * width)
    yield "vectors 144 bytes apart", "in order", LANE * 144
    rng = np.random.default_rng(SEED + width)
    yield "adjacent vectors", "a permutation", rng.permutation(32) * width


def _copy_sources(width: int) -> Iterator[tuple[str, np.ndarray]]:
    yield "adjacent", LANE * width
    for lanes in (16, 8, 4, 2, 1):
        yield f"rows of {lanes} lanes in", LANE // lanes * SOURCE_ROW + LANE % lanes * width
    yield "rows of 8 lanes, half a line in, in", LANE // 8 * SOURCE_ROW + LANE % 8 * width + 64
    yield "reversed", LANE[::-1] * width
    yield "one address of", LANE * 0
