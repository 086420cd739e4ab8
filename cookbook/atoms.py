"""The tensor cores' shared-memory atoms, and which of them a tile wants.

Hopper and Blackwell read an operand from shared memory as 8 lines of 16-byte chunks, lines of 16, 32, 64 or 128
bytes along the contiguous ("major") mode: eight atoms, and one more on Blackwell for 32-bit elements along
MN. No atom changes which mode is contiguous. The swizzle acts on bytes, strides count elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from cookbook import descriptors
from cookbook.descriptors import BlackwellDescriptor
from cookbook.layouts import Layout, SmemLayout
from cookbook.model.wgmma import MatrixDescriptor
from cookbook.swizzle import Swizzle

__all__ = ["ATOMS", "Atom", "atom", "descriptor", "select", "tile", "tma_mode"]

LINES = 8
WIDTHS = {"SW128": 128, "SW64": 64, "SW32": 32, "INTER": 16}  # bytes of a line, the widest first
SWIZZLES = {"SW128": Swizzle(3, 4, 3), "SW64": Swizzle(2, 4, 3), "SW32": Swizzle(1, 4, 3), "INTER": Swizzle(0, 4, 3)}
WIDE_ATOMS = "MN_SW128_32B"
ATOMS = (*(f"{major}_{kind}" for major in ("K", "MN") for kind in WIDTHS), WIDE_ATOMS)
TMA_MODES = {  # CU_TENSOR_MAP_SWIZZLE_*, by the swizzle of byte addresses
    Swizzle(0, 4, 3): "NONE",
    Swizzle(1, 4, 3): "32B",
    Swizzle(2, 4, 3): "64B",
    Swizzle(3, 4, 3): "128B",
    Swizzle(2, 5, 2): "128B_ATOM_32B",
}


@dataclass(frozen=True)
class Atom:
    """A shared-memory atom: `layout` is (8, w) of a K-major one, (w, 8) of an MN-major one, byte-true."""

    name: str
    major: str  # "K" or "MN"
    layout: SmemLayout
    reason: str  # why it was selected, in words


def atom(name: str, element_bits: int) -> Atom:
    """The atom called `name`, such as "K_SW128", of elements of 8, 16 or 32 bits.

    Raises:
        ValueError: no such atom, or none of such elements.

    >>> atom("K_SW128", 16).layout.outer
    (8,64):(64,1)
    """
    if name not in ATOMS:
        raise ValueError(f"name: got {name!r}; needed one of {', '.join(ATOMS)}")
    _check_bits(element_bits)
    if name == WIDE_ATOMS and element_bits != 32:
        raise ValueError(f"element_bits: got {element_bits}; needed 32 for {name}, or the atom MN_SW128")
    major, kind = name.split("_")[:2]
    swizzle = Swizzle(2, 5, 2) if name == WIDE_ATOMS else SWIZZLES[kind]
    width = WIDTHS[kind] * 8 // element_bits
    outer = Layout((LINES, width), (width, 1)) if major == "K" else Layout((width, LINES), (1, width))
    return Atom(name, major, SmemLayout(outer, swizzle, element_bits), "asked for by name")


def select(major: str, element_bits: int, tile: tuple[int, int], arch: str = "sm_100") -> Atom:
    """The atom for a (tile_mn, tile_k) tile: the widest whose lines divide the tile's contiguous extent.

    Wider is better because one 128-byte line of shared memory then takes fewer, longer pieces of global memory.
    The exception: MN-major 32-bit elements on Blackwell must use the 128-byte mode with 32-byte atoms.

    Args:
        major: "K" or "MN": which mode is contiguous.
        element_bits: 8, 16 or 32.
        tile: (tile_mn, tile_k) in elements.
        arch: "sm_90" or "sm_90a" (wgmma), or "sm_100...", "sm_103...", "sm_110..." (tcgen05).

    Raises:
        ValueError: no MMA takes this, or no atom divides the tile; the message names the nearest that works.

    >>> select("K", 16, (128, 64)).name
    'K_SW128'
    """
    hopper = _is_hopper(arch)
    _check_bits(element_bits)
    if major not in ("K", "MN"):
        raise ValueError(f"major: got {major!r}; needed 'K' or 'MN'")
    if hopper and major == "MN" and element_bits != 16:
        raise ValueError(
            f"major: got 'MN' with {element_bits}-bit elements; needed 'K', "
            "for wgmma takes MN-major operands of 16 bits alone"
        )
    _check_tile(tile, major, element_bits, hopper)
    contiguous = tile[0] if major == "MN" else tile[1]
    extent = contiguous * element_bits // 8
    if major == "MN" and element_bits == 32:
        name, kind = WIDE_ATOMS, "SW128"
    else:
        kind = next(kind for kind, width in WIDTHS.items() if extent % width == 0)
        name = f"{major}_{kind}"
    found = atom(name, element_bits)
    return Atom(name, major, found.layout, _reason(name, kind, major, contiguous, element_bits))


def tile(atom: Atom, shape: tuple[int, int], order: str = "column") -> SmemLayout:
    """Atoms side by side until they fill a (mn, k) tile, as `cute.tile_to_shape` puts them.

    Args:
        order: "column": the next atom lies further along MN (`order=(0, 1)`), as one TMA box writes K-major ones;
            "row": further along K (`order=(1, 0)`). The MMA takes either.

    Raises:
        ValueError: the atom does not divide the tile, or there is no such order.
    """
    if order not in ("column", "row"):
        raise ValueError(f"order: got {order!r}; needed 'column' or 'row'")
    sizes, strides = atom.layout.outer.shape, atom.layout.outer.stride
    if any(extent < 1 or extent % size for extent, size in zip(shape, sizes, strict=True)):
        nearest = tuple(max(1, -(-extent // size)) * size for extent, size in zip(shape, sizes, strict=True))
        raise ValueError(f"shape: got {shape}; needed multiples of {sizes} for {atom.name}, such as {nearest}")
    counts = [extent // size for extent, size in zip(shape, sizes, strict=True)]
    whole = sizes[0] * sizes[1]
    steps = (whole, whole * counts[0]) if order == "column" else (whole * counts[1], whole)
    modes = [
        ((size, count), (stride, step)) for size, count, stride, step in zip(sizes, counts, strides, steps, strict=True)
    ]
    outer = Layout(tuple(m[0] for m in modes), tuple(m[1] for m in modes))
    return SmemLayout(outer, atom.layout.swizzle, atom.layout.element_bits)


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
    hopper = _is_hopper(arch)
    if isinstance(layout, Atom):
        if major not in (None, layout.major):
            raise ValueError(f"major: got {major!r}; needed {layout.major!r}, that of {layout.name}")
        layout, major = layout.layout, layout.major
    if major not in ("K", "MN"):
        raise ValueError(f"major: got {major!r}; needed 'K' or 'MN'")
    rows = layout.outer.sizes[0] - origin[0] if rows is None else rows
    return descriptors.describe(layout, major, hopper, rows, origin, base)


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


def _reason(name: str, kind: str, major: str, contiguous: int, element_bits: int) -> str:
    extent, width = contiguous * element_bits // 8, WIDTHS[kind]
    if name == WIDE_ATOMS:
        return (
            f"MN-major elements of 32 bits: tcgen05 takes the 128-byte mode with 32-byte atoms alone, and its lines of "
            f"128 bytes divide the {extent} bytes along MN"
        )
    wider = [w for w in WIDTHS.values() if w > width]
    because = f", which {' and '.join(map(str, wider))} do not" if wider else ", and is the widest there is"
    return (
        f"{contiguous} elements of {element_bits} bits are {extent} bytes along {major}. "
        f"{width} divides them{because}. A 128-byte line of shared memory then takes {width} contiguous bytes "
        "of global memory at a time"
    )


def _is_hopper(arch: str) -> bool:
    number = str(arch).removeprefix("sm_").rstrip("af")
    if number not in ("90", "100", "103", "110"):
        raise ValueError(
            f"arch: got {arch!r}; needed sm_90 (wgmma) or sm_100, sm_103, sm_110 (tcgen05): "
            "others multiply from registers, which ldmatrix fills from any layout of 16-byte rows"
        )
    return number == "90"


def _check_bits(element_bits: int) -> None:
    if element_bits not in (8, 16, 32):
        raise ValueError(f"element_bits: got {element_bits!r}; needed 8, 16 or 32, which the tensor cores read")


def _check_tile(tile: tuple[int, int], major: str, element_bits: int, hopper: bool) -> None:
    if len(tile) != 2 or any(not isinstance(x, int) or x < 8 or x % 8 for x in tile):
        nearest = tuple(max(8, -(-int(x) // 8) * 8) for x in tile)
        raise ValueError(f"tile: got {tile}; needed (tile_mn, tile_k), multiples of 8, such as {nearest}")
    contiguous = tile[0] if major == "MN" else tile[1]
    least = 128 if major == "MN" and element_bits == 32 and not hopper else 16
    extent = contiguous * element_bits // 8
    if extent % least:
        nearest = -(-extent // least) * least * 8 // element_bits
        why = "the one atom of MN-major 32-bit elements" if least == 128 else "the narrowest atom"
        raise ValueError(
            f"tile: got {contiguous} elements along {major}; "
            f"needed a multiple of {least} bytes for {why}, such as {nearest}"
        )
