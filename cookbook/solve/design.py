"""Find a layout for accesses: a closed form for columns, a solver for anything else, a proof if there is none.

`column_swizzle` answers the usual question: rows are stored, columns are read. `solve` takes any accesses.
Offsets and vectors count elements; `Solution.byte_offsets` and what `cute_code` builds are in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cookbook import gf2
from cookbook.access import LANES
from cookbook.arguments import checked, instance, integer, integers, renamed, wrong_type
from cookbook.banks import wavefronts
from cookbook.layouts import Layout, SmemLayout
from cookbook.solve import irregular, patterns
from cookbook.solve.avoiding import Undecided
from cookbook.solve.instructions import Instruction, Pattern, as_pattern, check_banks, phase_of
from cookbook.solve.patterns import (
    MAX_BANK_BYTES,
    MAX_BANKS,
    Banks,
    Block,
    Span,
    checked_tile,
    is_power_of_two,
    log2,
)
from cookbook.solve.proofs import CountingProof, TreeProof, Unsolvable
from cookbook.solve.search import LinearMap, linear_problem, solve_linear
from cookbook.swizzle import Swizzle, element_width

__all__ = [
    "Banks",
    "Block",
    "CountingProof",
    "Instruction",
    "Solution",
    "Span",
    "TreeProof",
    "Undecided",
    "Unsolvable",
    "column_code",
    "column_counts",
    "column_swizzle",
    "kernel_code",
    "phases_in",
    "solve",
    "wavefronts_of",
]

MAX_ACCESSES = 64  # of a request
MAX_TABLE = 1 << 18  # elements of a layout that accesses are counted on, at all places
MAX_OFFSET = 1 << 32
MAX_ROW = 1 << 20  # elements: more than any shared memory holds
DTYPES = {8: "Float8E4M3FN", 16: "BFloat16", 32: "Float32", 64: "Float64"}  # cutlass' names, for a kernel
MOST_ALIGNED = 1024  # bytes: CuTe's allocator asserts it
LINE = 128  # bytes that 32 banks of 4 give in one wavefront
WORD = 4


def column_swizzle(row_elements: int, element_bits: int, vector_elements: int) -> Swizzle:
    """The swizzle, of *element* offsets, that frees the column read and the row store of a row-major tile.

    With M = log2 of a vector, or of a word if that is longer; t = log2 of the vectors in 128 bytes; x = log2 of the
    vectors in a row: B = min(t, x) bits at M are XORed with those S = max(t, x) higher. The rule often given
    instead, S = x and B = t, is illegal for rows shorter than 128 bytes.

    Args:
        row_elements: elements of a row, a power of two.
        element_bits: 8, 16, 32, 64 or 128.
        vector_elements: neighbouring elements of a row that one lane moves: a power of two, 16 bytes at most.

    Raises:
        ValueError: an argument is no power of two, a vector is longer than 16 bytes or than a row, or a row is
            shorter than a 4-byte word.

    >>> column_swizzle(64, 16, 8)
    S<3,3,3>
    >>> column_swizzle(32, 16, 8)  # rows of 64 bytes
    S<2,3,3>
    """
    element_bits = element_width(element_bits)
    row_elements = integer("row_elements", row_elements, at_least=1, at_most=MAX_ROW, power_of_two=True)
    vector_elements = integer("vector_elements", vector_elements, at_least=1, at_most=16, power_of_two=True)
    if vector_elements * element_bits > 8 * patterns.MAX_VECTOR:
        most = 8 * patterns.MAX_VECTOR // element_bits
        raise ValueError(f"vector_elements: got {vector_elements}; needed {most} at most: 16 bytes")
    base = log2(max(vector_elements, WORD * 8 // element_bits))
    across, along = log2(LINE * 8 // element_bits) - base, log2(row_elements) - base
    if along < 0:
        raise ValueError(f"row_elements: got {row_elements}; needed {1 << base} at least: one vector, one 4-byte word")
    return Swizzle(min(across, along), base, max(across, along))


def column_counts(
    swizzle: Swizzle, row_elements: int, element_bits: int, vector_elements: int
) -> dict[str, tuple[int, int, int]]:
    """Wavefronts of 32 lanes with a vector each, in a row-major tile: {access: (unswizzled, swizzled, ideal)}.

    The accesses are the "row store", of whole rows or one row's beginning, and the "column read", of 32 rows. Counted
    by `cookbook.banks` at the tile's corner; elsewhere in the tile the counts are the same.

    Args:
        swizzle: of element offsets, such as `column_swizzle` gives for the same numbers.
    """
    _check_column(swizzle, row_elements, element_bits, vector_elements)
    lanes, size = np.arange(LANES), element_bits // 8
    places = {"row store": lanes * vector_elements, "column read": lanes * row_elements}
    found = {}
    for name, offsets in places.items():
        plain, moved = (wavefronts(table * size, vector_elements * size) for table in (offsets, swizzle(offsets)))
        found[name] = plain.actual, moved.actual, moved.ideal
    return found


def column_code(swizzle: Swizzle, row_elements: int, element_bits: int) -> str:
    """CuTe-DSL source of `smem_layout(rows)`, the row-major layout of a swizzle of element offsets.

    The function is to be called inside a jit function. Its swizzle acts on bytes, its strides count elements.
    """
    _check_column(swizzle, row_elements, element_bits, 1)
    return _layout_source("rows", f"(rows, {row_elements})", f"({row_elements}, 1)", swizzle, element_bits)


def kernel_code(layout: SmemLayout) -> str:
    """CuTe-DSL source of a file: a `smem_layout()`, and a kernel that allocates its tile, aligned as it needs.

    Raises:
        ValueError: elements of other than 8, 16, 32 or 64 bits, or a swizzle that would split them.
    """
    bits, alignment = instance("layout", layout, SmemLayout).element_bits, layout.alignment
    dtype = DTYPES[integer("element_bits", bits, one_of=DTYPES)]
    shape, stride = _source(layout.outer.shape), _source(layout.outer.stride)
    source = _layout_source("", shape, stride, layout.swizzle.in_elements(bits), bits)
    allocated = (
        "    tile = smem.allocate_tensor(dtype, layout.outer, byte_alignment=alignment, swizzle=layout.inner)\n"
        if alignment <= MOST_ALIGNED
        else "    size = cute.cosize(layout.outer) * dtype.width // 8\n"
        f"    room = smem.allocate(size + alignment, {MOST_ALIGNED})  # CuTe aligns to no more\n"
        "    start = cute.recast_ptr(room.align(alignment), layout.inner, dtype=dtype)\n"
        "    tile = cute.make_tensor(start, layout.outer)\n"
    )
    return (
        f"import cutlass\n{source}\n\n"
        "@cute.kernel\ndef kernel():\n    layout = smem_layout()\n"
        "    smem = cutlass.memory.SmemAllocator()  # before 4.8: cutlass.utils\n"
        f"    dtype, alignment = cutlass.{dtype}, {alignment}  # bytes: the swizzle reads address bits\n"
        f"{allocated}"
        '    cute.printf("%d elements", cute.size(tile))\n\n\n'
        "@cute.jit\ndef launch():\n    kernel().launch(grid=[1, 1, 1], block=[1, 1, 1])\n"
    )


def _check_column(swizzle: Swizzle, row_elements: int, element_bits: int, vector_elements: int) -> None:
    instance("swizzle", swizzle, Swizzle)
    element_width(element_bits)
    row = integer("row_elements", row_elements, at_least=1, at_most=MAX_ROW)
    vector = integer("vector_elements", vector_elements, at_least=1, at_most=128 // element_bits, power_of_two=True)
    if row % vector:
        raise ValueError(f"row_elements: got {row}; needed a multiple of {vector}, a vector")
    if swizzle.period > MAX_OFFSET or (swizzle.bits and swizzle.base < log2(vector)):
        needed = f"one that keeps {vector} elements together and repeats after {MAX_OFFSET} at most"
        raise ValueError(f"swizzle: got {swizzle!r}; needed {needed}")


def _layout_source(parameters: str, shape: str, stride: str, swizzle: Swizzle, element_bits: int) -> str:
    s = _in_bytes(swizzle, element_bits)
    return (
        f"import cutlass.cute as cute\n\n\ndef smem_layout({parameters}):\n"
        f"    outer = cute.make_layout({shape}, stride={stride})  # elements of {element_bits} bits\n"
        f"    swizzle = cute.make_swizzle({s.bits}, {s.base}, {s.shift})  # bytes; {swizzle!r} in elements\n"
        "    return cute.make_composed_layout(swizzle, 0, outer)\n"
    )


def _in_bytes(swizzle: Swizzle, element_bits: int) -> Swizzle:
    """CuTe says every swizzle of no bits as S<0,4,3>."""
    return swizzle.in_bytes(element_bits) if swizzle.bits else Swizzle(0, 4, 3)


@checked
@dataclass(frozen=True)
class Solution:
    """An address map that serves every access with as few wavefronts as its bytes need.

    `kind` says what it is: "plain" is `swizzle` of the row-major layout, "permuted" is `swizzle` of `layout`, whose
    rows or columns lie in another order, "neither" is `layout` followed by XORs that no one swizzle says.
    `swizzle`, `layout` and `offsets` count elements.
    """

    tile: tuple[int, int]
    element_bits: int
    accesses: tuple[Pattern, ...]
    banks: Banks
    kind: str
    swizzle: Swizzle | None
    layout: Layout
    terms: tuple[tuple[int, int], ...]  # (mask, shift): bits in mask are XORed with those `shift` higher
    wavefronts: tuple[int, ...]  # of each access, all its phases
    ideal: tuple[int, ...]
    before: tuple[int, ...]  # of each access on the unswizzled layout
    nodes: int  # steps of the search
    offsets: np.ndarray = field(repr=False, compare=False)  # (rows, columns) int64, read-only
    matrix: np.ndarray | None = field(repr=False, compare=False)  # (n, n) over GF(2), or None: not linear

    @property
    def smem_layout(self) -> SmemLayout | None:
        """The layout as a kernel uses it, the swizzle on bytes; None when no one swizzle says it."""
        if self.swizzle is None:
            return None
        return SmemLayout(self.layout, _in_bytes(self.swizzle, self.element_bits), self.element_bits)

    def byte_offsets(self) -> np.ndarray:
        """(rows, columns) byte address of each element."""
        return self.offsets * (self.element_bits // 8)

    def __str__(self) -> str:
        swizzle = "no swizzle,"
        if self.swizzle and self.swizzle.bits:
            swizzle = f"{_in_bytes(self.swizzle, self.element_bits).both(self.element_bits)}, of"
        over = {
            "plain": f"{swizzle} the plain layout {self.layout!r}",
            "permuted": f"{swizzle} the permuted layout {self.layout!r}",
            "neither": f"{len(self.terms)} XORs over the layout {self.layout!r}; no Swizzle<B,M,S> was found to say it",
        }
        return over[self.kind]

    def cute_code(self) -> str:
        """CuTe-DSL source of a function to be called inside a jit function.

        `smem_layout()` returns the composed layout, its swizzle on bytes and its strides in elements, as
        `allocate_tensor(dtype, layout.outer, swizzle=layout.inner)` wants them. Where no one swizzle says the map,
        `smem_offset(row, column)` returns the element offset instead.
        """
        shape, stride = (_source(value) for value in (self.layout.shape, self.layout.stride))
        if self.swizzle is not None:
            return _layout_source("", shape, stride, self.swizzle, self.element_bits)
        moved = "".join(f" ^ ((offset >> {shift}) & {mask})" for mask, shift in self.terms)
        body = f"    offset = cute.make_layout({shape}, stride={stride})((row, column))\n    return offset{moved}\n"
        return f"import cutlass.cute as cute\n\n\ndef smem_offset(row, column):\n{body}"


def solve(
    tile: tuple[int, int],
    element_bits: int,
    accesses: Sequence[Pattern | str | Sequence[int]],
    *,
    vector_elements: int | None = None,
    banks: int = 32,
    bank_bytes: int = 4,
) -> Solution:
    """The address map that serves all accesses, each with as few wavefronts as its bytes need.

    An access is what one instruction of a warp asks for. Say it as one where you know it: "ldmatrix.x4@16x16",
    "ld128@32x8" (see `Instruction`); then its lanes and phases are those of the hardware, and the vector of each lane
    stays together. Or say which elements: a `Block`, also written (rows, columns) or (rows, columns, row step, column
    step), whose lanes run along the rows, or a `Span`. Of these alone, elements that all take as neighbours stay
    neighbours.

    Tiles whose sides are powers of two: words stay in one piece, and the answer is exact for linear maps, whose
    address bits are XORs of offset bits. A map is found if there is a linear one. Other tiles: see
    `cookbook.solve.irregular`.

    Args:
        tile: (rows, columns) of a row-major tile, in elements, 65536 of them at most. Of a tile of more modes, flatten
            the leading ones.
        element_bits: 8, 16, 32, 64 or 128.
        accesses: 1 to 64 of them.
        vector_elements: how many neighbours of a row stay together, where that is to be more than the accesses
            say, for TMA: a power of two that divides the columns, 16 bytes at most.
        banks: of the memory; a power of two, 256 at most. Toy GPUs of 8 banks are good for worked examples;
            instructions are for 32.
        bank_bytes: of a word of a bank; a power of two, 16 at most.

    Raises:
        Unsolvable: (a ValueError) no map of that kind does it; `.proof` says why and `.proof.check()` verifies that.
        Undecided: (a ValueError) the search takes too long; it says what to reduce.
        ValueError, TypeError: an argument, named, with what it got and needs.

    >>> solve((8, 8), 32, [(1, 8), (8, 1)], banks=8).swizzle
    S<3,0,3>
    >>> solve((128, 64), 16, ["ldmatrix.x4@16x16", "cp.async16@4x64"]).swizzle
    S<3,3,3>
    """
    bits = element_width(element_bits)
    shape, memory = checked_tile(tile), _checked_banks(banks, bank_bytes, bits)
    wanted = _checked_accesses(accesses)
    found = _solved(shape, bits, wanted, memory, vector_elements)
    if isinstance(found, irregular.ExhaustionProof):
        names = ", ".join(map(str, wanted))
        message = f"accesses: no swizzle of a {shape[0]}x{shape[1]} tile serves {names}"
        raise Unsolvable(message, found, _advice(found, vector_elements))
    return found


def _solved(
    shape: tuple[int, int], bits: int, wanted: tuple[Pattern, ...], memory: Banks, vector_elements: int | None
) -> Solution | irregular.ExhaustionProof:
    if all(map(is_power_of_two, shape)):
        problem = linear_problem(shape, bits, wanted, vector_elements, memory)
        return _linear_solution(shape, bits, wanted, memory, solve_linear(problem, wanted))
    found = irregular.solve_irregular(shape, bits, wanted, memory, vector_elements)
    if isinstance(found, irregular.ExhaustionProof):
        return found
    return _irregular_solution(shape, bits, wanted, memory, *found)


def _advice(proof: irregular.ExhaustionProof, vector_elements: int | None) -> str:
    """Padded rows and larger tiles, each tried on the same accesses."""
    pitch, tried = irregular.padded(proof), irregular.pitches(proof)
    found = [f"Tried besides: rows that lie {tried[0]} to {tried[-1]} elements apart, without a swizzle: none helps"]
    if pitch is not None:
        found = [f"Tried besides: rows that lie {pitch} elements apart serve all of them without a swizzle"]
    rows, columns = (1 << (side - 1).bit_length() for side in proof.tile)
    for larger in dict.fromkeys(((proof.tile[0], columns), (rows, columns))):
        if larger == proof.tile:
            continue
        try:
            other = _solved(larger, proof.element_bits, proof.accesses, proof.banks, vector_elements)
        except ValueError:  # no answer for that tile
            continue
        if isinstance(other, Solution):
            found.append(f"a tile of {larger[0]}x{larger[1]} is served by {other}")
            break
        found.append(f"a tile of {larger[0]}x{larger[1]} is not served either")
    return "; ".join(found) + "."


def wavefronts_of(
    offsets: np.ndarray, element_bits: int, access: Pattern | str | Sequence[int], banks: Banks | None = None
) -> int:
    """The wavefronts of one instruction with this access on a layout, at the worst place in the tile, by brute force.

    Args:
        offsets: (rows, columns) element offsets, integers of 0 or more.
        access: as `solve` takes them.

    Raises:
        ValueError, TypeError: an argument, named, with what it got and needs.
    """
    element_width(element_bits)
    memory = Banks() if banks is None else instance("banks", banks, Banks)
    table = integers("offsets", offsets, ndim=2, at_least=0, at_most=MAX_OFFSET)
    if not 0 < table.size <= MAX_TABLE:
        raise ValueError(f"offsets: got {table.size} elements; needed 1 to {MAX_TABLE}")
    with renamed(accesses="access", tile="offsets"):
        phases, count = _phases(table.shape, element_bits, as_pattern(access), memory)
    return irregular.worst(table.reshape(-1), phases, element_bits, memory, count)


def phases_in(
    tile: tuple[int, int], element_bits: int, access: Pattern | str | Sequence[int], banks: Banks
) -> tuple[np.ndarray, int]:
    """All that is ever asked for together, and how many phases one access has.

    Returns:
        (places * phases of an access, elements) int64 row-major offsets, the phases of one place one after the other;
        and the number of phases of an access.

    Raises:
        ValueError, TypeError: an argument, named, with what it got and needs.
    """
    shape, bits = checked_tile(tile, MAX_TABLE), element_width(element_bits)
    with renamed(accesses="access"):
        return _phases(shape, bits, as_pattern(access), instance("banks", banks, Banks))


def _phases(tile: tuple[int, int], element_bits: int, access: Pattern, banks: Banks) -> tuple[np.ndarray, int]:
    if banks.line * 8 < element_bits:
        needed = f"more, to give one element of {element_bits // 8} bytes"
        raise ValueError(f"banks: got {banks.count} of {banks.bytes} bytes; needed {needed}")
    if isinstance(access, Instruction):
        check_banks(access, banks)
    if not isinstance(access, Span) and not (all(map(is_power_of_two, tile)) and access.regular):
        return irregular.phases_of(tile, element_bits, access, banks)
    basis, count = phase_of(access, tile, element_bits, banks)
    free = [1 << i for i in range(log2(tile[0] * tile[1])) if 1 << i not in _leading(basis)]
    return (gf2.span(free)[:, None] ^ gf2.span(basis)).reshape(-1, (1 << len(basis)) // count), count


def _leading(basis: Sequence[int]) -> set[int]:
    """The top bits of a basis in echelon form: the other unit vectors reach one element of each coset."""
    return {1 << log2(vector) for vector in gf2.echelon(basis)}


def _linear_solution(
    tile: tuple[int, int], element_bits: int, accesses: tuple[Pattern, ...], banks: Banks, found: LinearMap
) -> Solution:
    plain = np.arange(tile[0] * tile[1]).reshape(tile)
    natural = found.order == tuple(range(len(found.order)))
    kind = "neither" if found.swizzle is None else "plain" if natural else "permuted"
    units = [1 << i for i in range(len(found.order))]
    images = found(np.array(units, np.int64))
    matrix = np.array([[image >> i & 1 for image in images.tolist()] for i in range(len(units))], np.uint8)
    layout = _bit_layout(tile, found.order)
    shape = (len(units), len(units))
    made = (kind, found.swizzle, layout, found.terms)
    return _solution(tile, element_bits, accesses, banks, made, found.nodes, found(plain), matrix.reshape(shape))


def _irregular_solution(
    tile: tuple[int, int],
    element_bits: int,
    accesses: tuple[Pattern, ...],
    banks: Banks,
    found: irregular.Candidate,
    tried: int,
) -> Solution:
    kind = "plain" if found.layout.shape == tile else "permuted"
    made = (kind, found.swizzle, found.layout, ())
    return _solution(tile, element_bits, accesses, banks, made, tried, found.offsets(), None)


def _solution(tile, element_bits, accesses, banks, made, nodes, offsets, matrix) -> Solution:
    kind, swizzle, layout, terms = made
    plain = np.arange(tile[0] * tile[1]).reshape(tile)
    offsets.flags.writeable = False
    phases = [_phases(tile, element_bits, access, banks) for access in accesses]
    ideal = tuple(count for _, count in phases)
    counts, before = (
        tuple(irregular.worst(table.reshape(-1), p, element_bits, banks, n) for p, n in phases)
        for table in (offsets, plain)
    )
    known = (kind, swizzle, layout, terms, counts, ideal, before, nodes, offsets, matrix)
    return Solution(tile, element_bits, accesses, banks, *known)


def _bit_layout(tile: tuple[int, int], order: Sequence[int]) -> Layout:
    """The layout that sends bit order[i] of the row-major offset to bit i, neighbouring bits as one mode."""
    place = {bit: i for i, bit in enumerate(order)}
    columns = log2(tile[1])
    modes = [_mode([place[b] for b in range(columns, len(order))]), _mode([place[b] for b in range(columns)])]
    return Layout(tuple(m[0] for m in modes), tuple(m[1] for m in modes))


def _mode(places: Sequence[int]) -> tuple:
    """(shape, stride) of one side whose bits go to these places."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] + 1 == place:
            runs[-1].append(place)
        else:
            runs.append([place])
    shape, stride = tuple(1 << len(run) for run in runs), tuple(1 << run[0] for run in runs)
    return (shape[0], stride[0]) if len(runs) == 1 else (shape, stride) if runs else (1, 0)


def _source(value) -> str:
    return f"({', '.join(map(_source, value))})" if isinstance(value, tuple) else str(value)


def _checked_banks(banks: int, bank_bytes: int, element_bits: int) -> Banks:
    count = integer("banks", banks, at_least=1, at_most=MAX_BANKS, power_of_two=True)
    each = integer("bank_bytes", bank_bytes, at_least=1, at_most=MAX_BANK_BYTES, power_of_two=True)
    if count * each * 8 < element_bits:
        raise ValueError(
            f"banks: got {count} of {each} bytes; needed {element_bits // 8 // each} at least, to give one element"
        )
    return Banks(count, each)


def _checked_accesses(accesses: Sequence[Pattern | str | Sequence[int]]) -> tuple[Pattern, ...]:
    if isinstance(accesses, (Block, Span, Instruction)) or not isinstance(accesses, (tuple, list)):
        wrong_type("accesses", accesses, "a list of them, such as [(1, 32), 'ldmatrix.x4@16x16']")
    if not 0 < len(accesses) <= MAX_ACCESSES:
        got = len(accesses) or "none"
        raise ValueError(f"accesses: got {got}; needed 1 to {MAX_ACCESSES} of them, such as (8, 1)")
    return tuple(as_pattern(access) for access in accesses)
