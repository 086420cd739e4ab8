"""Matrix descriptors that a kernel makes as numbers, and what tcgen05 does with them: PTX ISA, "tcgen05".

A number is 64 bits for an operand in shared memory, 32 for the shapes of an instruction. Of these the fields count that
say which bytes and cells are touched; types and signs say nothing of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cookbook.model.smem_descriptor import CHUNK, CORE, ROW_BYTES, BlackwellDescriptor, lines_of, swizzle_of
from cookbook.model.tcgen05 import KINDS
from cookbook.model.tmem import COPIES
from cookbook.simulate import types
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import LANES, CannotFollow, Lay, Pointer, View, is_number
from cookbook.simulate.warp import handles

LANE = 1 << 16  # from a lane of tensor memory to the next, in cells of 32 bits
ALL_LANES = 128
WORD, LONG = (1 << 32) - 1, (1 << 64) - 1
CELL_BYTES = 4


class Shape(NamedTuple):
    """The fields of an instruction descriptor that say what is touched: PTX ISA, "Instruction Descriptor"."""

    m: int
    n: int
    majors: tuple[str, str]
    bits: int  # of an element in shared memory
    scaled: bool

    @classmethod
    def of(cls, word: int, kind: str) -> Shape:
        """Return what 32 bits say to an instruction of this .kind.

        Raises:
            CannotFollow: a kind that is not known, sparsity, or accumulators whose places are not certain.
        """
        if kind not in KINDS:
            raise CannotFollow(f"an MMA of kind {kind}")
        scaled = bool(KINDS[kind].blocks)
        if word >> 2 & 1 or (not scaled and word >> 4 & 3 == 0):
            raise CannotFollow("an MMA that is sparse, or has accumulators of 16 bits")
        majors = tuple("MN" if word >> at & 1 else "K" for at in (15, 16))
        return cls((word >> 24 & 31) * 16, (word >> 17 & 63) * 8, majors, KINDS[kind].bits, scaled)  # type: ignore


def operand(word: int, rows: int, major: str = "K", bits: int = 8, width: int = ROW_BYTES) -> View:
    """What a descriptor names in shared memory, in chunks of 16 bytes: PTX ISA, "Canonical Layouts".

    Args:
        word: the 64 bits.
        rows: of A, or of B taken as (N, K), that lie in one CTA's memory.
        major: of an MMA's operand, "K" or "MN".
        bits: of an element.
        width: bytes of a K-major row.
    """
    one = BlackwellDescriptor.decode(word & LONG)
    if one.base_offset or one.lbo_absolute:
        raise CannotFollow("a matrix descriptor with a base offset, or whose leading offset is an address")
    line, lbo, sbo = (one.mode or CHUNK) // CHUNK, one.lbo // CHUNK, one.sbo // CHUNK
    if major == "K":
        shape = (min(rows, CORE), -(-rows // CORE), width // CHUNK)
        layout = Lay(shape, (line, sbo, 1 if one.mode else lbo))
    else:
        lines, k = lines_of(one.together), ROW_BYTES * 8 // bits
        chunks = -(-rows * bits // 8 // CHUNK)
        steps = (lbo, sbo) if one.mode else (sbo, lbo)
        layout = Lay(
            (min(line, chunks), -(-chunks // line), min(lines, k), -(-k // lines)), (1, steps[0], line, steps[1])
        )
    return View(Pointer("smem", one.start), layout, 8 * CHUNK, swizzle_of(one))


def cells(pointer: Pointer, columns: int, lanes: int = ALL_LANES) -> View:
    """Columns of tensor memory from an address on, in this many lanes."""
    at = replace(pointer, address=pointer.address // CELL_BYTES * CELL_BYTES)  # a scale factor may begin in a cell
    return View(at, Lay((lanes, columns), (LANE, 1)), 8 * CELL_BYTES)


def accumulators(pointer: Pointer, shape: Shape, ctas: int) -> View:
    """Where D lies in each CTA: PTX ISA, "Data Path Layout Organization"."""
    if (shape.m, ctas) == (64, 1):  # 16 lanes of each warp's 32
        return View(pointer, Lay((16, 4, shape.n), (LANE, LANES * LANE, 1)), 8 * CELL_BYTES)
    if shape.m not in (64 * ctas, 128 * ctas):
        raise CannotFollow(f"an MMA with M = {shape.m} of {ctas} CTAs")
    return cells(pointer, shape.n // 2 if (shape.m, ctas) == (128, 2) else shape.n)


def multiply(
    f: Judge, op: Operation, kind: str, ctas: int, d: Any, a: Any, b: Any, idesc: Any, scales: Sequence[Any] = ()
) -> None:
    """One tcgen05.mma.

    Args:
        f: who follows.
        op: the operation at hand.
        kind: of the instruction, `f16`.
        ctas: 2 under .cta_group::2.
        d: the pointer to D.
        a: a descriptor; or a pointer to tensor memory.
        b: a descriptor.
        idesc: the instruction descriptor.
        scales: pointers to the scale factors of A and of B.
    """
    shape = Shape.of(f.integer(idesc, "an instruction descriptor") & WORD, kind)
    if shape.scaled != bool(scales):
        raise CannotFollow(f"an MMA of kind {kind} with {len(scales)} tensors of scale factors")
    sums = accumulators(_of_all(f, d), shape, ctas)
    rows, columns = shape.m // ctas, shape.n // ctas
    reads = [operand(f.integer(b, "a matrix descriptor"), columns, shape.majors[1], shape.bits)]
    taken = []
    if not isinstance(a, Pointer):
        reads.insert(0, operand(f.integer(a, "a matrix descriptor"), rows, shape.majors[0], shape.bits))
    elif rows == ALL_LANES:
        taken.append(cells(_of_all(f, a), ROW_BYTES // CELL_BYTES))
    else:
        raise CannotFollow(f"an MMA whose A lies in tensor memory, with {rows} rows in a CTA")
    if scales:
        halves = 2 if rows < ALL_LANES else 1  # lanes 64 to 127 have the second half of the columns of D
        for one, extent in zip(scales, (rows, shape.n // halves), strict=True):
            taken.append(cells(_of_all(f, one), -(-extent // LANES)))
    f.tensor_core(op, reads, taken, sums, ctas == 2)


def _of_all(f: Judge, pointer: Any) -> Pointer:
    """A pointer to tensor memory, one for all lanes."""
    if getattr(pointer, "space", "") != "tmem":
        raise CannotFollow(f"an address of tensor memory that is {pointer}")
    return replace(pointer, address=f.integer(pointer.address, "an address of tensor memory"))


# --- operations --------------------------------------------------------------------------------------------------


@handles("nvvm.tcgen05_mma_smem_desc_v2")
def _descriptor(f: Judge, op: Operation, args: list[Any]) -> Any:
    """The fields one after the other; addresses and offsets count 16 bytes."""
    word: Any = 0
    for value, at in zip(args, (0, 16, 32, 46, 49, 52, 53, 61), strict=True):
        if not is_number(value):
            return f.data(op, args)
        word = word | value << at
    return word


CTAS = {"cta_1": 1, "cta_2": 2}


@handles("nvvm.tcgen05.mma", "nvvm.tcgen05.mma.block_scale")
def _mma(f: Judge, op: Operation, args: list[Any]) -> None:
    d, a, b, idesc, _, *more = args
    scaled = op.name.endswith("block_scale")
    if (more and not scaled) or op.get("aShift") is not None:
        raise CannotFollow("an MMA that scales D, leaves lanes out or shifts A")
    multiply(f, op, op.attributes["kind"], CTAS[op.attributes["ctaGroup"]], d, a, b, idesc, more)


COPIED = {shape: copy[:2] for (shape, _), copy in COPIES.items() if shape != "4x256b"}  # rows, bytes of each


@handles("nvvm.tcgen05.cp")
def _copy(f: Judge, op: Operation, args: list[Any]) -> None:
    """Rows of shared memory to lanes; fewer than 128 rows go to several warps' lanes, so that all get some."""
    shape = op.attributes["shape"].removeprefix("shape_")
    if shape not in COPIED or op.get("srcFormat") is not None:
        raise CannotFollow(f"a tcgen05.cp of shape {shape} and format {op.get('srcFormat')}")
    rows, width = COPIED[shape]
    source = operand(f.integer(args[1], "a matrix descriptor"), rows, width=width)
    f.tensor_core(op, [source], [], cells(_of_all(f, args[0]), width // CELL_BYTES), op.get("group") == "cta_2")


@handles("nvvm.tcgen05.ld")
def _load(f: Judge, op: Operation, args: list[Any]) -> Any:
    """Each lane has the columns of one of the warp's 32 lanes."""
    source, registers = _shared_out(f, op, args[0], op.result_types[0], str(op.results[0]))
    f.tensor_copy(op, source, registers, None)
    return f.data(op, args)


@handles("nvvm.tcgen05.st")
def _store(f: Judge, op: Operation, args: list[Any]) -> None:
    target, registers = _shared_out(f, op, args[0], op.operand_types[1], "")
    f.tensor_copy(op, registers, target, None)


def _shared_out(f: Judge, op: Operation, pointer: Any, text: str, name: str) -> tuple[View, View]:
    """(cells, registers) of a warp's load or store of values of a type."""
    if op.attributes["shape"] != "shape_32x32b" or op.get("pack") is not None or op.get("unpack") is not None:
        raise CannotFollow(f"{op.name} of {op.attributes['shape']}, or that packs")
    count = types.count_of(text)
    registers = View(Pointer("rmem", 0, name=name), Lay(count, 1), 8 * CELL_BYTES)
    return cells(_of_all(f, pointer), count, LANES), registers


@handles("nvvm.tcgen05.alloc")
def _alloc(f: Judge, op: Operation, args: list[Any]) -> None:
    f.tensor_alloc(op, f.integer(args[1], "the columns of tensor memory"), args[0], op.get("group") == "cta_2")


@handles("nvvm.tcgen05.dealloc")
def _free(f: Judge, op: Operation, args: list[Any]) -> None:
    f.tensor_free(op, f.integer(args[1], "the columns of tensor memory"), op.get("group") == "cta_2")
