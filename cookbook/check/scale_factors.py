"""Check the scale factors of a block-scaled GEMM without data: their order, their way, their columns.

A scale factor is right if the byte that `tcgen05.mma` reads for a row and a block is the one that `tcgen05.cp` brought,
out of the place where TMA put what the PTX ISA's order of atoms has there. Each step is looked at apart.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cookbook.check.evaluated import Evaluated
from cookbook.check.findings import Finding
from cookbook.check.model.scaled import CELL, ScalePath, scale_path
from cookbook.check.model.tcgen05 import COLUMN
from cookbook.model.scale_factors import ATOM_BYTES, ATOM_FACTORS, ATOM_ROWS, atom_offsets
from cookbook.model.tcgen05 import KINDS
from cookbook.recipe.formats import Format

__all__ = ["column_finding", "scale_findings"]

ADD = re.compile(r"add\.s32\s+%r\d+, %r\d+, (\d+);")
WARP = 32


def scale_findings(found: Evaluated, config: Any) -> list[Finding]:
    """The scale factors of A and of B: the order of their bytes, TMA's boxes, atoms, and what `tcgen05.mma` is told."""
    findings: list[Finding] = []
    if (form := found.scaled) is None:
        return findings
    for name, rows in zip("ab", (config.tile_m, config.tile_n), strict=True):
        try:
            path = scale_path(found, found, name)
        except ValueError as error:
            findings.append(Finding(f"sf{name}.path", False, str(error)))
            continue
        findings += [_order(found, name), _boxes(found, name, path), _atoms(found, name, path)]
        findings.append(_steps(name, form, path, rows, config.tile_k))
    return [*findings, _apart(found)]


def _order(found: Evaluated, name: str) -> Finding:
    """Every stage holds its rows and factors as the PTX ISA has them in atoms."""
    layout = found.smem[f"sf{name}"]
    offsets = layout.byte_offsets()  # (rows, factors, stages)
    rows, factors, stages = offsets.shape
    needed = atom_offsets(rows, factors)[..., None] + np.arange(stages) * rows * factors
    detail = f"{rows} rows of {factors}, {stages} stages, in {layout.size_bytes // ATOM_BYTES} atoms"
    return Finding(f"sf{name}.order", np.array_equal(offsets, needed), detail)


def _boxes(found: Evaluated, name: str, path: ScalePath) -> Finding:
    """A box of TMA is a stage: what it leaves out or overwrites no other load brings."""
    layout, (high, words) = found.smem[f"sf{name}"], path.box
    starts = layout.byte_offsets()[0, 0]
    ok = np.array_equal(path.boxes, starts) and high * words * 8 * len(starts) == layout.size_bytes
    return Finding(f"sf{name}.boxes", bool(ok), f"{high} x {words} words of 8 bytes a stage, whole atoms")


def _atoms(found: Evaluated, name: str, path: ScalePath) -> Finding:
    """tcgen05.cp takes each atom of each stage once, to four columns that no other atom is taken to."""
    high, wide, stages = path.atoms.shape
    needed = found.smem[f"sf{name}"].byte_offsets()[::ATOM_ROWS, ::ATOM_FACTORS]
    columns = np.unique((path.copied & COLUMN)[..., None] + np.arange(4))
    alone = len(columns) == 4 * path.copied.size and not (path.copied >> 16).any()
    ok = needed.shape == path.atoms.shape and np.array_equal(path.atoms, needed) and alone
    detail = f"{high * wide} of 32 x 16 bytes a stage, {stages} stages, to {len(columns)} columns"
    return Finding(f"sf{name}.atoms", bool(ok), detail)


def _steps(name: str, form: Format, path: ScalePath, rows: int, depth: int) -> Finding:
    """Return what each tcgen05.mma is told is where the first of its factors of row 0 is, and row r is r / 32 columns
    on."""
    each = KINDS[form.kind].k // form.block  # factors that one tcgen05.mma reads of a row
    steps, stages = path.steps.shape
    row, k = np.arange(0, rows, WARP)[:, None, None], np.arange(steps)[:, None]
    brought = path.copied[row // ATOM_ROWS, k * each // ATOM_FACTORS, np.arange(stages)] + row % ATOM_ROWS // WARP
    told = path.steps // CELL + row // WARP
    bytes_ok = np.array_equal(path.steps % CELL, np.broadcast_to(k * each % ATOM_FACTORS, path.steps.shape))
    ok = np.array_equal(brought, told) and bytes_ok and steps * each * form.block == depth
    detail = (
        f"{steps} steps a stage, {each} factor(s) of each row in each, from bytes {(k * each % CELL)[:, 0].tolist()}"
    )
    return Finding(f"sf{name}.steps", bool(ok), detail)


def _apart(found: Evaluated) -> Finding:
    """Sums and scale factors have columns of their own."""
    sets = [np.unique(found.fragments["c"].table() & COLUMN)]
    for name, first in zip("ab", found.scale_columns, strict=True):
        cells = found.fragments[f"sf{name}.copied"].table() // CELL & COLUMN
        sets.append(np.unique(cells + first))
    together = len(np.unique(np.concatenate(sets)))
    detail = f"{', '.join(str(len(x)) for x in sets)} columns of accumulators, factors of A, of B; {together} in all"
    return Finding("tmem.apart", together == sum(map(len, sets)), detail)


def column_finding(found: Evaluated, ptx: str) -> Finding:
    """Return whether the compiler adds the columns where scale factors begin, those of A and those of B, to an address.

    Those of B may be added to the address of A's, as far as they are apart.
    """
    added, (a, b) = {int(constant) for constant in ADD.findall(ptx)}, found.scale_columns
    ok = a in added and not added.isdisjoint({b, b - a})
    return Finding("scales.columns", ok, f"from {a} and {b}, added to the address of tensor memory")
