"""The tensor cores' shared-memory atoms, and which of them a tile wants.

Hopper and Blackwell read an operand from shared memory as 8 lines of 16-byte chunks, lines of 16, 32, 64 or 128
bytes along the contiguous ("major") mode: eight atoms, and one more on Blackwell for 32-bit elements along
MN. No atom changes which mode is contiguous. The swizzle acts on bytes, strides count elements. Ampere, Ada and GeForce
Blackwell multiply from registers; their ldmatrix reads rows of 16 bytes, and the same atoms free it of conflicts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cookbook import descriptors
from cookbook.arguments import checked, choice, integer, pair, shown, wrong_value
from cookbook.descriptors import BlackwellDescriptor
from cookbook.layouts import Layout, SmemLayout
from cookbook.model.wgmma import MatrixDescriptor
from cookbook.swizzle import Swizzle

__all__ = ["ATOMS", "Atom", "atom", "cute_code", "descriptor", "reader", "select", "tile", "tma_mode"]

LINES = 8
WIDTHS = {"SW128": 128, "SW64": 64, "SW32": 32, "INTER": 16}  # bytes of a line, the widest first
SWIZZLES = {"SW128": Swizzle(3, 4, 3), "SW64": Swizzle(2, 4, 3), "SW32": Swizzle(1, 4, 3), "INTER": Swizzle(0, 4, 3)}
WIDE_ATOMS = "MN_SW128_32B"
READERS = {  # what reads an operand from shared memory, by the number of an architecture
    **dict.fromkeys((80, 86, 87, 89, 120, 121), "ldmatrix"),
    90: "wgmma",
    **dict.fromkeys((100, 103, 110), "tcgen05.mma"),
}
TRANSPOSES_BYTES = (120, 121)  # of those that read with ldmatrix: it has .m16n16.trans.b8
SMEM_BYTES = 227 * 1024  # the most that a CTA of any of them has
MOST = 1 << 24  # elements of a tile
ATOMS = (*(f"{major}_{kind}" for major in ("K", "MN") for kind in WIDTHS), WIDE_ATOMS)
TMA_MODES = {  # CU_TENSOR_MAP_SWIZZLE_*, by the swizzle of byte addresses
    Swizzle(0, 4, 3): "NONE",
    Swizzle(1, 4, 3): "32B",
    Swizzle(2, 4, 3): "64B",
    Swizzle(3, 4, 3): "128B",
    Swizzle(2, 5, 2): "128B_ATOM_32B",
}


@checked
@dataclass(frozen=True)
class Atom:
    """A shared-memory atom: `layout` is (8, w) of a K-major one, (w, 8) of an MN-major one, byte-true.

    Elements of 4 bits lie two in a byte: `layout` then counts bytes.
    """

    name: str
    major: str  # "K" or "MN"
    layout: SmemLayout
    reason: str  # why it was selected, in words

    def __post_init__(self) -> None:
        choice("name", self.name, ATOMS)
        choice("major", self.major, ("K", "MN"))


@checked
def atom(name: str, element_bits: int) -> Atom:
    """The atom called `name`, such as "K_SW128", of elements of 8, 16 or 32 bits.

    Raises:
        ValueError: no such atom, or none of such elements.

    >>> atom("K_SW128", 16).layout.outer
    (8,64):(64,1)
    """
    choice("name", name, ATOMS)
    _check_bits(element_bits)
    if name == WIDE_ATOMS and element_bits != 32:
        raise ValueError(f"element_bits: got {element_bits}; needed 32 for {name}, or the atom MN_SW128")
    major, kind = name.split("_")[:2]
    swizzle = Swizzle(2, 5, 2) if name == WIDE_ATOMS else SWIZZLES[kind]
    width = WIDTHS[kind] * 8 // element_bits
    outer = Layout((LINES, width), (width, 1)) if major == "K" else Layout((width, LINES), (1, width))
    return Atom(name, major, SmemLayout(outer, swizzle, element_bits), "asked for by name")


@checked
def select(major: str, element_bits: int, tile: tuple[int, int], arch: str = "sm_100") -> Atom:
    """The atom for a (tile_mn, tile_k) tile: the widest whose lines divide the tile's contiguous extent.

    Wider is better because one 128-byte line of shared memory then takes fewer, longer pieces of global memory.
    The exception: MN-major 32-bit elements (tf32) under tcgen05 must use the 128-byte mode with 32-byte atoms.

    Args:
        major: "K" or "MN": which mode is contiguous.
        element_bits: 8, 16 or 32; on Blackwell also 4, K-major, two in a byte: the layout then counts bytes.
        tile: (tile_mn, tile_k) in elements, of whole MMAs: 32 bytes of K for wgmma and tcgen05.mma, 16 for mma.sync.
        arch: "sm_80", "sm_86", "sm_87", "sm_89", "sm_120", "sm_121" (ldmatrix), "sm_90" (wgmma), "sm_100", "sm_103",
            "sm_110" (tcgen05); a letter behind it (sm_90a, sm_100f) changes nothing.

    Raises:
        ValueError: no MMA takes this, or no atom divides the tile; the message names the nearest that works.

    >>> select("K", 16, (128, 64)).name
    'K_SW128'
    """
    number, instruction = _read_by(arch)
    choice("major", major, ("K", "MN"))
    _check_elements(major, element_bits, number)
    tf32 = major == "MN" and element_bits == 32
    _check_tile(tile, major, element_bits, 128 if tf32 else 16, number)
    contiguous = tile[0] if major == "MN" else tile[1]
    extent = contiguous * element_bits // 8
    kind = "SW128" if tf32 else next(kind for kind, width in WIDTHS.items() if extent % width == 0)
    name = WIDE_ATOMS if tf32 else f"{major}_{kind}"
    found = atom(name, max(8, element_bits))
    return Atom(name, major, found.layout, _reason(name, kind, major, contiguous, element_bits, instruction))


@checked
def reader(arch: str, major: str = "K", element_bits: int = 16) -> str:
    """The instruction that reads an operand of this major from shared memory, such as "wgmma".

    Raises:
        ValueError: none reads such elements of this major.

    >>> reader("sm_80", "MN")
    'ldmatrix.trans'
    >>> reader("sm_120a", "MN", 8)
    'ldmatrix.m16n16.trans.b8'
    """
    choice("major", major, ("K", "MN"))
    number, instruction = _read_by(arch)
    _check_elements(major, element_bits, number)
    if instruction != "ldmatrix" or major == "K":
        return instruction
    return "ldmatrix.m16n16.trans.b8" if element_bits == 8 else "ldmatrix.trans"


@checked
def cute_code(atom: Atom, shape: tuple[int, int], order: str = "column") -> str:
    """CuTe-DSL source of `smem_layout(stages)`, the layout of `tile(atom, shape, order)` and its stages.

    The swizzle counts bytes and the strides count elements, as `allocate_tensor(dtype, layout.outer,
    byte_alignment=..., swizzle=layout.inner)` wants them. To be called inside a jit function.

    Raises:
        ValueError: as `tile`.
    """
    tile(atom, shape, order)
    outer, s, bits = atom.layout.outer, atom.layout.swizzle, atom.layout.element_bits
    steps = (0, 1, 2) if order == "column" else (1, 0, 2)
    return (
        "import cutlass.cute as cute\n\n\ndef smem_layout(stages):\n"
        f"    lines = cute.make_layout({outer.shape}, stride={outer.stride})  # elements of {bits} bits\n"
        f"    swizzle = cute.make_swizzle({s.bits}, {s.base}, {s.shift})  # of byte addresses\n"
        "    atom = cute.make_composed_layout(swizzle, 0, lines)\n"
        f"    return cute.tile_to_shape(atom, ({shape[0]}, {shape[1]}, stages), order={steps})\n"
    )


@checked
def tile(atom: Atom, shape: tuple[int, int], order: str = "column") -> SmemLayout:
    """Atoms side by side until they fill a (mn, k) tile, as `cute.tile_to_shape` puts them.

    Args:
        order: "column": the next atom lies further along MN (`order=(0, 1)`), as one TMA box writes K-major ones;
            "row": further along K (`order=(1, 0)`). The MMA takes either.

    Raises:
        ValueError: the atom does not divide the tile, or there is no such order.
    """
    choice("order", order, ("column", "row"))
    sizes, strides = atom.layout.outer.shape, atom.layout.outer.stride
    if any(extent < 1 or extent % size for extent, size in zip(shape, sizes, strict=True)):
        nearest = tuple(max(1, -(-extent // size)) * size for extent, size in zip(shape, sizes, strict=True))
        raise ValueError(f"shape: got {shown(shape)}; needed multiples of {sizes} for {atom.name}, such as {nearest}")
    if shape[0] * shape[1] > MOST:
        wrong_value("shape", shape, f"{MOST} elements at most")
    counts = [extent // size for extent, size in zip(shape, sizes, strict=True)]
    whole = sizes[0] * sizes[1]
    steps = (whole, whole * counts[0]) if order == "column" else (whole * counts[1], whole)
    modes = [
        ((size, count), (stride, step)) for size, count, stride, step in zip(sizes, counts, strides, steps, strict=True)
    ]
    outer = Layout(tuple(m[0] for m in modes), tuple(m[1] for m in modes))
    return SmemLayout(outer, atom.layout.swizzle, atom.layout.element_bits)


@checked
def descriptor(
    layout: SmemLayout | Atom,
    major: str | None = None,
    arch: str = "sm_100",
    rows: int | None = None,
    origin: tuple[int, int] = (0, 0),
    base: int = 0,
) -> MatrixDescriptor | BlackwellDescriptor:
    """The matrix descriptor with which wgmma (Hopper) or tcgen05.mma (Blackwell) reads an operand of a tile.

    See `cookbook.descriptors.describe` for the fields, `cookbook.descriptors.field_table` to show them.

    Args:
        layout: (MN, K[, STAGE]); an Atom brings its own major.
        major: "K" or "MN".
        rows: MN extent of one instruction; all of the tile's if left out.
        origin: (mn, k) of the operand's first element; one instruction takes 32 bytes of K.
        base: byte address of the tile, a multiple of `layout.alignment`.

    Raises:
        ValueError: no descriptor of this architecture says the layout.
    """
    number, instruction = _read_by(arch)
    if instruction == "ldmatrix":
        raise ValueError(
            f"arch: got {arch!r}; needed sm_90, sm_100, sm_103 or sm_110: ldmatrix takes addresses instead"
        )
    if isinstance(layout, Atom):
        if major not in (None, layout.major):
            raise ValueError(f"major: got {major!r}; needed {layout.major!r}, that of {layout.name}")
        layout, major = layout.layout, layout.major
    if major not in ("K", "MN"):
        raise ValueError(f"major: got {major!r}; needed 'K' or 'MN'")
    rows = layout.outer.sizes[0] - origin[0] if rows is None else rows
    return descriptors.describe(layout, major, number == 90, rows, origin, base)


@checked
def tma_mode(swizzle: Swizzle) -> str:
    """The swizzle mode of a TMA tensor map that writes this swizzle of *byte* addresses: "NONE", "32B", ...

    Raises:
        ValueError: TMA has no such mode; then software must store the tile. (A tensor map also has the modes
            128B_ATOM_32B_FLIP_8B and 128B_ATOM_64B, which no MMA reads and which are not modelled.)
    """
    if not swizzle.bits:
        return "NONE"
    if swizzle not in TMA_MODES:
        nearest = min(
            (s for s in TMA_MODES if s.bits), key=lambda s: (abs(s.bits - swizzle.bits), abs(s.base - swizzle.base))
        )
        raise ValueError(
            f"swizzle: got {swizzle!r} on bytes; needed one that TMA writes, {', '.join(map(repr, TMA_MODES))}: "
            f"the nearest is {nearest!r}. Any other takes stores by software"
        )
    return TMA_MODES[swizzle]


def _reason(name: str, kind: str, major: str, contiguous: int, element_bits: int, instruction: str) -> str:
    extent, width = contiguous * element_bits // 8, WIDTHS[kind]
    if name == WIDE_ATOMS:
        return (
            f"MN-major elements of 32 bits: tcgen05 takes the 128-byte mode with 32-byte atoms alone, and its lines of "
            f"128 bytes divide the {extent} bytes along MN"
        )
    wider = [w for w in WIDTHS.values() if w > width]
    because = f", which {' and '.join(map(str, wider))} do not" if wider else ", and is the widest there is"
    counted = ". Two elements lie in a byte, and the layout counts bytes" if element_bits == 4 else ""
    free = ". ldmatrix reads 8 chunks of 16 bytes without a conflict" if instruction == "ldmatrix" else ""
    return (
        f"{contiguous} elements of {element_bits} bits are {extent} bytes along {major}{counted}. "
        f"{width} divides them{because}. A 128-byte line of shared memory then takes {width} contiguous bytes "
        f"of global memory at a time{free}"
    )


def _read_by(arch: str) -> tuple[int, str]:
    """(number, instruction) of an architecture."""
    said = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if not said or int(said[1]) not in READERS:
        known = {name: [f"sm_{n}" for n, reads in READERS.items() if reads == name] for name in READERS.values()}
        wrong_value("arch", arch, "; ".join(f"{', '.join(names)} ({reads})" for reads, names in known.items()))
    return int(said[1]), READERS[int(said[1])]


def _check_bits(element_bits: int) -> None:
    integer("element_bits", element_bits, one_of=(8, 16, 32))


def _check_elements(major: str, element_bits: int, number: int) -> None:
    """Ask whether the architecture's tensor core, and what feeds it, takes such elements of this major."""
    blackwell, instruction = number >= 100, READERS[number]
    if element_bits == 6:
        raise ValueError(
            "element_bits: got 6; needed 4, 8, 16 or 32; take 8: an MMA reads each e2m3 or e3m2 from a byte"
        )
    integer("element_bits", element_bits, one_of=(4, 8, 16, 32))
    if element_bits == 4 and not blackwell:
        raise ValueError(f"element_bits: got 4; needed 8, 16 or 32 on sm_{number}: e2m1 came with Blackwell")
    if major == "K":
        return
    if element_bits == 4:
        raise ValueError("major: got 'MN' with 4-bit elements; needed 'K': no MMA takes packed e2m1 along MN")
    if number in TRANSPOSES_BYTES and element_bits == 8:
        return
    if instruction != "tcgen05.mma" and element_bits != 16:
        why = "wgmma takes MN-major operands of 16 bits alone"
        if instruction == "ldmatrix":
            widths = "8 and 16 bits" if number in TRANSPOSES_BYTES else "16 bits"
            why = f"its ldmatrix transposes elements of {widths} alone"
        raise ValueError(f"major: got 'MN' with {element_bits}-bit elements; needed 'K' on sm_{number}: {why}")


def _k_of_mma(element_bits: int, number: int) -> tuple[int, ...]:
    """Elements of K that one MMA takes, the fewest first: of mma.sync the smallest shape that there is."""
    if READERS[number] == "ldmatrix" and element_bits > 4:
        return (128 // element_bits,)
    return (256 // element_bits, 96) if number == 103 and element_bits == 4 else (256 // element_bits,)


def _check_tile(tile: tuple[int, int], major: str, element_bits: int, least: int, number: int) -> None:
    """least: bytes along the contiguous mode that the narrowest atom takes."""
    mn, k = pair("tile", tile, of="tile_mn, tile_k", at_least=1)
    whole = _k_of_mma(element_bits, number)
    size = mn * k * element_bits // 8
    if size > SMEM_BYTES:
        wrong_value("tile", tile, f"{SMEM_BYTES} bytes of shared memory at most, not {size}")
    if mn % 8 or k % 8 or all(k % each for each in whole):
        steps = least * 8 // element_bits if major == "MN" else 8, max(8, whole[0])
        nearest = tuple(-(-extent // step) * step for extent, step in zip((mn, k), steps, strict=True))
        mma = "mma.sync" if READERS[number] == "ldmatrix" else READERS[number]
        taken = f"one {mma} takes {' or '.join(map(str, whole))} elements of K"
        wrong_value("tile", tile, f"(tile_mn, tile_k), multiples of {steps}, such as {nearest}: {taken}")
    contiguous = mn if major == "MN" else k
    if contiguous * element_bits // 8 % least:
        nearest = -(-contiguous * element_bits // (8 * least)) * least * 8 // element_bits
        why = "the one atom of MN-major 32-bit elements" if least == 128 else "the narrowest atom"
        raise ValueError(
            f"tile: got {contiguous} elements along {major}; "
            f"needed a multiple of {least} bytes for {why}, such as {nearest}"
        )
