"""Check a tcgen05 kernel with no Blackwell GPU: descriptors, tensor memory, and the compiler's own words.

The layouts say one thing, CuTe builds another, and the hardware reads bits. Here all three must be the same: every
field of the matrix descriptors and of the instruction descriptor, and every place in tensor memory.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cookbook.check.compiled import Compiled
from cookbook.check.evaluated import Evaluated
from cookbook.check.findings import Finding
from cookbook.check.model.scaled import atom_descriptor
from cookbook.check.model.tcgen05 import (
    describe_blackwell,
    descriptors_of,
    instruction_of,
    loads_of,
    sums_of_a_cta,
    tmem_columns,
)
from cookbook.check.scale_factors import column_finding
from cookbook.model import BlackwellDescriptor
from cookbook.model.smem_descriptor import ROW_BYTES

__all__ = ["compiled_findings", "descriptor_finding", "tensor_memory_findings"]

MMA = re.compile(r"tcgen05\.mma\.\S+\s+\[%r\d+\], %rd\d+, %rd\d+, (%r\d+),")
ALLOC = re.compile(r"tcgen05\.alloc\.\S+\s+\[%r\d+\], (%r\d+);")
MOVE = re.compile(r"mov\.(?:b|u|s)32\s+(%r\d+), (-?\d+);")
OR = re.compile(r"or\.b64\s+%rd\d+, %rd\d+, (-?\d+);")
IDS = re.compile(r"or\.b32\s+(%r\d+), %r\d+, (\d+);")  # the bytes of scale factors, joined to an instruction descriptor
PACK = re.compile(r"mov\.b64\s+%rd\d+, \{%r\d+, (%r\d+)\};")
WORD = (1 << 32) - 1
VERSION = 0b001 << 46  # what tells a matrix descriptor's constant bits from other constants: PTX ISA, bits 46-48


def descriptor_finding(found: Evaluated, name: str) -> Finding:
    """Return whether CuTe's descriptor of every block and stage of operand "a" or "b" is the one that the layout
    needs."""
    layout, index = found.smem[name], "ab".index(name)
    rows, major = found.mma.shape_mnk[index] // found.ctas, found.majors[index]
    depth = ROW_BYTES // layout.element_bytes
    try:
        stages = descriptors_of(found, name)
        needed = [
            [describe_blackwell(layout, major, rows, (m * rows, k * depth)) for k in range(len(stages[0][0]))]
            for m in range(len(stages[0]))
        ]
    except ValueError as error:
        return Finding(f"{name}.descriptor", False, str(error))
    shifts = layout.outer.table()[0, 0] * layout.element_bytes
    pairs = [
        (ours.start + int(shift), ours, by_cute)
        for shift, blocks in zip(shifts, stages, strict=True)
        for ours_of_rows, cutes in zip(needed, blocks, strict=True)
        for ours, by_cute in zip(ours_of_rows, cutes, strict=True)
    ]
    ok = all(start == by_cute.start and _strides(ours) == _strides(by_cute) for start, ours, by_cute in pairs)
    first = stages[0][0][0]
    fields = f"{first.mode}-byte mode, lbo {first.lbo}, sbo {first.sbo}"
    differs = "" if ok else "; CuTe's steps from block to block are not the layout's"
    return Finding(f"{name}.descriptor", ok, f"{len(pairs)} blocks of {rows} x {depth}: {fields}{differs}")


def _strides(descriptor: BlackwellDescriptor) -> tuple[int, int, int]:
    """Return what says how a block lies, wherever it begins. A block that ends before the second step of a stride has
    none."""
    return descriptor.lbo, descriptor.sbo, descriptor.mode


def tensor_memory_findings(found: Evaluated, config: Any) -> list[Finding]:
    """Return whether accumulators fit the allocation, none over another, and each is loaded once, by a warp that
    can."""
    needed, taken, sums = tmem_columns(found), config.tmem_columns, found.fragments["c"]
    columns = f"{taken} columns; needed {needed}: a power of two in 32 to 512 that holds every stage"
    apart = f"{sums!r}: {sums.size} sums at {len(np.unique(sums.table()))} places"
    fits = [
        Finding("tmem.columns", needed == taken <= 512, columns),
        Finding("tmem.injective", len(np.unique(sums.table())) == sums.size, apart),
    ]
    tile = sums_of_a_cta(found)
    try:
        loads = loads_of(found.copies["t2r_c"], sums, tile)
    except ValueError as error:
        return [*fits, Finding("t2r_c.loads", False, str(error))]
    places = loads.coords.reshape(-1, 2) @ np.array([tile[1], 1])
    once = np.array_equal(np.sort(places), np.arange(tile[0] * tile[1]))
    stages, pieces, warps = loads.starts.shape
    lanes = (loads.starts >> 16 == np.arange(warps) * 32).all()
    detail = f"{pieces} of {loads.shape}.x{loads.num} by each of {warps} warps, {stages} stage(s)"
    return [*fits, Finding("t2r_c.loads", bool(once and lanes), detail)]


def compiled_findings(found: Evaluated, compiled: Compiled, dtype: str) -> list[Finding]:
    """Return whether the compiler's descriptors are those of the layouts, bit by bit, and its instructions are there.

    The PTX holds an instruction descriptor as a constant, and of a matrix descriptor all that is not its address, ORed
    to it; or, where the leading byte offset is 0, the upper 32 bits, put beside it. (The steps between addresses are
    CuTe's layouts: `descriptor_finding`.) Of a block-scaled MMA the bytes where scale factors begin are put into its
    instruction descriptor at run time; the constant has zeros there. Their atoms have a descriptor too.

    Args:
        dtype: "float16" or "bfloat16".
    """
    constants: dict[str, set[int | None]] = {}
    for register, value in MOVE.findall(compiled.ptx):
        constants.setdefault(register, set()).add(int(value) & WORD)
    for register, value in IDS.findall(compiled.ptx) if found.scaled else ():
        constants.setdefault(register, set()).add(int(value) & WORD)
    said = {
        name: _of_registers(pattern, constants, compiled.ptx) for name, pattern in (("idesc", MMA), ("tmem", ALLOC))
    }
    words = {int(word) & (1 << 64) - 1 for word in OR.findall(compiled.ptx)}
    words |= {word << 32 for word in _of_registers(PACK, constants, compiled.ptx) if word is not None}
    said["descriptors"] = {word for word in words if word & 7 << 46 == VERSION}
    firsts = [descriptors_of(found, name)[0][0][0] for name in "ab"] + [atom_descriptor()] * bool(found.scaled)
    needed = {
        "idesc": {instruction_of(found, dtype).encode()},
        "tmem": {tmem_columns(found)},
        "descriptors": {first.encode() for first in firsts},
    }
    columns = [column_finding(found, compiled.ptx)] if found.scaled else []
    return [*(_same(name, said[name], needed[name]) for name in needed), *columns, *_counts(found, compiled)]


def _of_registers(pattern: re.Pattern[str], constants: dict[str, set[int | None]], ptx: str) -> set[int | None]:
    """Return what the register that each instruction names holds; None of one that is not a constant."""
    return {value for register in pattern.findall(ptx) for value in constants.get(register, {None})}


def _same(name: str, said: set[int | None], needed: set[int]) -> Finding:
    known = [f"{word:#x}" for word in sorted(word for word in said if word is not None)]
    got = ", ".join(known + ["a value computed at run time"] * (None in said))
    wanted = ", ".join(f"{word:#x}" for word in sorted(needed))
    return Finding(f"{name}.bits", said == needed, f"{got or 'none'} in the PTX; needed {wanted}")


def _counts(found: Evaluated, compiled: Compiled) -> list[Finding]:
    """That the compiler left its loads, MMAs and fetches. How many there are a loop may unroll, or not: that all of
    them are done is shown by the level *product*."""
    names = (found.scaled.sass, "UTCCP") if found.scaled else ("UTCHMMA",)
    counted = {name: compiled.count(name) for name in (*names, "LDTM", "UTMALDG")}
    return [Finding(f"{name}.count", n > 0, f"{n} in the SASS; at least 1") for name, n in counted.items()]
