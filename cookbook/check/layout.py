"""Level "layout": a recipe's own shared-memory layouts and what its copies cost on them, with no GPU."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np

from cookbook import access, banks
from cookbook.check import reduction_buffer, scale_factors, tensor_memory
from cookbook.check.evaluated import Evaluated, evaluated
from cookbook.check.findings import Finding
from cookbook.check.model.wgmma import boxes_of, lines_along
from cookbook.layouts import SmemLayout, TiledCopyTV
from cookbook.model import operand_descriptors
from cookbook.recipe import majors

__all__ = ["check_layouts", "copy_wavefronts", "expected_excess", "predicted_copies", "predicted_wavefronts"]

MATRIX_PITCH = 4096  # elements between the rows of a matrix that is copied from: whole lines, and longer than a tile
SIDES = {"g2s": "dst", "s2r": "src", "r2s": "dst", "s2g": "src"}  # which side of a copy is in shared memory


def check_layouts(module: ModuleType, dtype: Any, config: Any) -> list[Finding]:
    """Everything that can be said of the layouts without data.

    * every shared-memory layout: one-to-one, without holes but those of `config.padding`, its stages aligned to the
      swizzle's period; all of them together within `config.smem_bytes`
    * every copy: reaches every element of its tile, and takes the wavefronts expected of it: the ideal, unless the
      recipe's `EXPECTED_EXCESS`, or `expected_excess(config)` where it depends on that, says otherwise:
      `{"r2s_c": (4, "why")}`, in wavefronts per instruction
    * operands that the MMA reads by itself: the instruction has the major that the configuration says, and a matrix
      descriptor says where they are
    * accumulators in tensor memory: they fit what is allocated, and each is loaded once, by a warp that can reach it
    * scale factors, where operands have them: each reaches the byte of tensor memory where the MMA looks for it
    * C, where it goes out by TMA: boxes that TMA can read, of which a whole number makes a tile

    A finding that fails says what was wrong; nothing is raised for a wrong layout.
    """
    found = evaluated(module, dtype, config)
    if found.stores_boxes and len(found.smem["c"].outer.sizes) != 3:
        modes = f"{found.smem['c'].outer!r}; needed modes (64, EPI_N, BUFFER): there is no s2g_c, so C goes out by TMA"
        return [Finding("c.boxes", False, modes)]
    expected = expected_excess(module, config)
    padding = getattr(config, "padding", 0)
    findings = [_bijective(name, layout, padding if name in "ab" else 0) for name, layout in found.smem.items()]
    findings += [_aligned(name, layout) for name, layout in found.smem.items()]
    findings.append(_fits(found, config))
    for field, copy in in_shared_memory(found).items():
        padded = bool(padding and field.startswith("g2s"))
        findings += _copy_findings(field, copy, found.smem[field[-1]], *expected.get(field, (0, "")), padded=padded)
    if found.stores_boxes:
        findings.append(_boxes(found.smem["c"], (config.tile_m, config.tile_n)))
    if found.reads_by_descriptor:
        operands = zip("ab", found.mma.shape_mnk, majors.of_kernel(module, config), found.majors, strict=False)
        for name, rows, index, major in (one for one in operands if one[0] in found.smem):
            said = f"the instruction takes it {major}-major, by the config it lies along {index!r}"
            findings.append(Finding(f"{name}.major", major == ("K" if index == "k" else "MN"), said))
            if found.sums_in_tensor_memory:
                findings.append(tensor_memory.descriptor_finding(found, name))
            else:
                findings.append(_descriptors(name, found.smem[name], rows, major))
    if found.sums_in_tensor_memory:
        findings += tensor_memory.tensor_memory_findings(found, config)
    if "sfa" in found.smem:  # scale factors go through shared and tensor memory, as operands do
        findings += scale_factors.scale_findings(found, config)
    return findings + reduction_buffer.reduction_buffer_findings(found, config)


def expected_excess(module: Any, config: Any) -> dict[str, tuple[int, str]]:
    """Wavefronts above the ideal that a recipe says of its copies, by their names, and why."""
    return getattr(module, "expected_excess", lambda _: getattr(module, "EXPECTED_EXCESS", {}))(config)


def in_shared_memory(found: Evaluated) -> dict[str, TiledCopyTV]:
    """The copies with a side in shared memory: all but the one out of tensor memory."""
    return {field: copy for field, copy in found.copies.items() if field[:3] in SIDES}


def copy_wavefronts(field: str, copy: TiledCopyTV, layout: SmemLayout) -> Counter[tuple[int, int]]:
    """Return how many instructions of all warps take (actual, ideal) wavefronts to move the whole tile.

    Args:
        field: the copy's name in TiledCopies: its first three letters say which side is in shared memory.

    Raises:
        ValueError: a vector that is not contiguous, a misaligned address, or a tile that does not fit the copy's.
    """
    side, kind = SIDES[field[:3]], kind_of_copy(field, copy)
    if kind == "cp_async" and copy.dst_vector * layout.element_bytes == banks.CHUNK:
        return _past_l1(copy, layout)
    counts: Counter[tuple[int, int]] = Counter()
    for warp in range(copy.threads // access.LANES):
        for one in access.of_copy(layout, copy, side, kind, warp):
            counted = banks.wavefronts(one.addresses, one.width)
            counts[counted.actual, counted.ideal] += 1
    return counts


def _past_l1(copy: TiledCopyTV, layout: SmemLayout) -> Counter[tuple[int, int]]:
    """`copy_wavefronts` of a cp.async of 16 bytes, which goes past L1: it depends on where lanes read, too.

    Rows of the matrix begin at multiples of 128 bytes there, and so does the tile. A wavefront reads from one line, so
    that no layout of shared memory can do with fewer wavefronts than lines are read: that is the ideal here.
    """
    rows, columns = access.repeated(copy.src_coords(), copy.tiler_mn, layout.outer.sizes[:2])
    along_rows = bool(rows[0, 1] == rows[0, 0])  # else the matrix is M- or N-major, and a vector runs down a column
    inner, outer = (columns, rows) if along_rows else (rows, columns)
    first = ((outer * MATRIX_PITCH + inner) * layout.element_bytes)[:, :: copy.dst_vector]  # byte of each vector
    counts: Counter[tuple[int, int]] = Counter()
    for written, read in zip(access.copy_addresses(layout, copy, "dst"), first.T, strict=True):
        for warp in range(0, len(written), access.LANES):
            lanes = slice(warp, warp + access.LANES)
            counted = banks.wavefronts(written[lanes], banks.CHUNK, sources=read[lanes], past_l1=True)
            lines = len(np.unique(read[lanes] // banks.LINE))
            counts[counted.actual, max(lines, access.LANES * banks.CHUNK // banks.LINE)] += 1
    return counts


def predicted_wavefronts(module: ModuleType, dtype: Any, config: Any) -> dict[str, int]:
    """Wavefronts of one instruction by kind of copy (`{"g2s": 4, "s2r": 4, ...}`), where all of a kind agree.

    Of a product alone: a residual, which `s2r_c` would read, is left out.
    """
    found = evaluated(module, dtype, config)
    by_kind: dict[str, set[int]] = {}
    for field, copy in in_shared_memory(found).items():
        if field == "s2r_c":
            continue
        counts = copy_wavefronts(field, copy, found.smem[field[-1]])
        by_kind.setdefault(field[:3], set()).update(actual for actual, _ in counts)
    return {kind: actual.pop() for kind, actual in by_kind.items() if len(actual) == 1}


def predicted_copies(module: ModuleType, dtype: Any, config: Any, shape: tuple[int, int, int]) -> tuple[int, int]:
    """Count all warps' cp.async instructions that move data in a GEMM of whole tiles, and their wavefronts.

    (0, 0) of a recipe that has none.
    """
    found = evaluated(module, dtype, config)
    m, n, k = shape
    stages = (m // config.tile_m) * (n // config.tile_n) * (k // config.tile_k)
    each = [
        copy_wavefronts(name, copy, found.smem[name[-1]]) for name, copy in found.copies.items() if name[:3] == "g2s"
    ]
    count = sum(n for counts in each for n in counts.values())
    return stages * count, stages * sum(actual * n for counts in each for (actual, _), n in counts.items())


def kind_of_copy(field: str, copy: TiledCopyTV) -> str:
    """Return where both sides of a copy agree each thread moves its own values; else a matrix instruction exchanges
    them."""
    exchanges = not np.array_equal(copy.src_tv.table(), copy.dst_tv.table())
    plain = "cp_async" if field.startswith("g2s") else "ldst"
    return {"s2r": "ldmatrix", "r2s": "stmatrix"}.get(field[:3], plain) if exchanges else plain


def _bijective(name: str, layout: SmemLayout, padding: int = 0) -> Finding:
    """With `padding` elements after every row of K but the last, as many holes as that makes and no more."""
    elements, size = layout.outer.size, layout.size_bytes
    detail = f"{layout.swizzle!r} over {layout.outer!r}: {elements} elements in {size} bytes"
    if not padding:
        return Finding(f"{name}.bijective", layout.is_bijective(), detail)
    holes = (elements // layout.outer.sizes[1] - 1) * padding
    ok = layout.is_injective() and size == (elements + holes) * layout.element_bytes
    return Finding(f"{name}.injective", ok, f"{detail}; needed {holes} elements of padding in them")


def _aligned(name: str, layout: SmemLayout) -> Finding:
    """Each stage must start where the pattern does, or a descriptor and a box would see it shifted."""
    firsts = layout.outer.table().reshape(*layout.outer.sizes[:2], -1)[0, 0] * layout.element_bytes
    ok = not (firsts % layout.alignment).any()
    detail = f"stages start at bytes {firsts.tolist()}; needed multiples of {layout.alignment}"
    return Finding(f"{name}.aligned", ok, detail)


def _fits(found: Evaluated, config: Any) -> Finding:
    """C may lie where A and B were: the larger of the two counts. Buffers of C lie next to them: while a tile goes out
    the next ones come in."""
    size = 0
    for name in [x for x, layout in found.smem.items() if x != "c" or len(layout.outer.sizes) == 3]:
        layout = found.smem[name]
        size = -(-size // layout.alignment) * layout.alignment + layout.size_bytes
    size = max([size, *(layout.size_bytes for layout in found.smem.values())])
    detail = f"{size} bytes; the launch asks for {config.smem_bytes}"
    return Finding("smem.fits", size <= config.smem_bytes, detail)


def _boxes(layout: SmemLayout, tile: tuple[int, int]) -> Finding:
    """A buffer holds one piece of the tile of C, and TMA reads it as boxes."""
    rows, columns, buffers = layout.outer.sizes
    if tile[0] % rows or tile[1] % columns:
        return Finding("c.boxes", False, f"pieces of {rows} x {columns}; needed ones that divide the tile, {tile}")
    try:
        boxes = boxes_of(layout, lines_along(layout))
    except ValueError as error:
        return Finding("c.boxes", False, str(error))
    high, wide = boxes.shape
    detail = f"{buffers} buffers of {len(boxes.origins)} box(es) of {high} x {wide}, {boxes.mode}-byte mode"
    return Finding("c.boxes", True, detail)


def _copy_findings(
    field: str, copy: TiledCopyTV, layout: SmemLayout, excess: int, why: str, *, padded: bool
) -> list[Finding]:
    try:
        return [_covers(field, copy, layout), _wavefronts(field, copy, layout, excess, why, padded)]
    except ValueError as error:
        return [Finding(f"{field}.wavefronts", False, str(error))]


def _covers(field: str, copy: TiledCopyTV, layout: SmemLayout) -> Finding:
    """Return whether some thread moves every element; a writer must be the only one to."""
    coords = copy.dst_coords() if SIDES[field[:3]] == "dst" else copy.src_coords()
    if field.startswith("r2s") and copy.dst_vector > copy.src_vector:  # stmatrix: eight lanes name a matrix's rows
        coords = coords[np.arange(len(coords)) % 32 < copy.src_vector * layout.element_bits // 4]
    m, n = access.repeated(coords, copy.tiler_mn, layout.outer.sizes[:2])
    times = np.bincount((m * layout.outer.sizes[1] + n).reshape(-1), minlength=layout.outer.size)
    times = times[: layout.outer.sizes[0] * layout.outer.sizes[1]]
    ok = times.min() >= 1 and (times.max() == 1 or field.startswith("s2r"))
    detail = f"each element is moved {times.min()} to {times.max()} times"
    return Finding(f"{field}.covers", bool(ok), detail)


def _wavefronts(field: str, copy: TiledCopyTV, layout: SmemLayout, excess: int, why: str, padded: bool) -> Finding:
    """`padded`: it copies past L1 into rows that begin in the middle of lines. Never ideal: told, not judged."""
    counts = copy_wavefronts(field, copy, layout)
    ok = padded or all(actual - ideal == excess for actual, ideal in counts)
    each = ", ".join(
        f"{n} {kind_of_copy(field, copy)} take {a} wavefronts each (ideal {i})" for (a, i), n in sorted(counts.items())
    )
    wanted = f"; expected an excess of {excess} each: {why}" if excess else ""
    return Finding(f"{field}.wavefronts", ok, each + wanted)


def _descriptors(name: str, layout: SmemLayout, rows: int, major: str) -> Finding:
    try:
        found = operand_descriptors(layout, rows, major=major)
    except ValueError as error:
        return Finding(f"{name}.descriptor", False, str(error))
    first = found[0]
    fields = f"{first.mode}-byte mode, lbo {first.lbo}, sbo {first.sbo}"
    return Finding(
        f"{name}.descriptor", True, f"{len(found)} blocks of {rows} x {256 // layout.element_bits}: {fields}"
    )
