"""The atoms, their selection and their descriptors, against CuTe, the instruction models and the worked tables."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cookbook import atoms, descriptors
from cookbook import banks as hardware
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.model import MatrixDescriptor, operand_descriptors
from cookbook.model.wgmma import operand_addresses
from cookbook.solve.instructions import parse
from cookbook.swizzle import Swizzle

EXTENTS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256)
KINDS = ("INTER", "SW32", "SW64", "SW128")


def slots(layout):
    """(lines, 8): which 16-byte chunk of a 16-bit K-major tile, numbered row by row, lies in each slot of each line."""
    starts = layout.byte_offsets()[:, ::8].reshape(-1) // 16
    return np.argsort(starts).reshape(-1, 8)


# --- against CuTe -----------------------------------------------------------------------------------------------


def cutes_choices(arch):
    """{(major, bits, contiguous extent): (name, atom)} of CuTe's own selector, over every extent it takes."""
    import cutlass
    from cutlass.cute.nvgpu import OperandMajorMode, tcgen05, warpgroup
    from cutlass.tensor_utils import LayoutEnum
    from cutlass.utils import blackwell_helpers, hopper_helpers

    dtypes = {8: cutlass.Float8E4M3FN, 16: cutlass.BFloat16, 32: cutlass.Float32}

    def hopper(major, dtype, extent):
        layout = LayoutEnum.ROW_MAJOR if major == "K" else LayoutEnum.COL_MAJOR  # of an (M, K) operand A
        kind = hopper_helpers.get_smem_layout_atom(layout, dtype, extent)
        return kind.name, warpgroup.make_smem_layout_atom(kind, dtype)

    def blackwell(major, dtype, extent):
        mode = OperandMajorMode.K if major == "K" else OperandMajorMode.MN
        shape = (128, extent) if major == "K" else (extent, 64)
        kind = blackwell_helpers.get_smem_layout_atom_ab(mode, dtype, shape)
        return kind.name, tcgen05.make_smem_layout_atom(kind, dtype)

    def all_of_them(bits):
        choose = hopper if arch == "sm_90a" else blackwell
        cases = [(major, extent) for major in ("K", "MN") for extent in EXTENTS if extent * bits % 128 == 0]
        return {(major, extent): choose(major, dtypes[bits], extent) for major, extent in cases}

    per_width = {bits: evaluate(all_of_them, bits, element_bits=bits, arch=arch) for bits in dtypes}
    return {(major, bits, extent): v for bits, found in per_width.items() for (major, extent), v in found.items()}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_selects_what_cute_selects(arch):
    pytest.importorskip("cutlass")
    chosen = 0
    for (major, bits, extent), (name, layout) in cutes_choices(arch).items():
        tile = (128, extent) if major == "K" else (extent, 64)
        alone = major == "MN" and (bits != 16 if arch == "sm_90a" else bits == 32 and extent % 32)
        if alone or (major == "K" and extent * bits % 256):  # an MMA takes 32 bytes of K
            with pytest.raises(ValueError, match="needed"):  # CuTe's helper answers; no MMA takes it
                atoms.select(major, bits, tile, arch)
            continue
        found = atoms.select(major, bits, tile, arch)
        assert (found.name, found.layout) == (name, layout)
        assert np.array_equal(found.layout.byte_offsets(), layout.byte_offsets())
        chosen += 1
    assert chosen > 40


def test_the_exception():
    found = atoms.select("MN", 32, (64, 32))
    assert found.name == "MN_SW128_32B" and found.layout.swizzle == Swizzle(2, 5, 2)
    assert "32-byte atoms alone" in found.reason
    with pytest.raises(ValueError, match=r"multiple of 128 bytes .* such as 64"):
        atoms.select("MN", 32, (40, 32))


def test_eight_atoms_that_keep_their_major():
    assert len([name for name in atoms.ATOMS if name != atoms.WIDE_ATOMS]) == 8
    for name in atoms.ATOMS:
        together = 32 if name == atoms.WIDE_ATOMS else 16
        for bits in (32,) if name == atoms.WIDE_ATOMS else (8, 16, 32):
            atom = atoms.atom(name, bits)
            table = atom.layout.byte_offsets()
            table = table if atom.major == "K" else table.T
            assert table.shape[0] == 8 and atom.layout.is_bijective()
            chunks = table.reshape(8, -1, together * 8 // bits)
            assert (chunks - chunks[..., :1] == np.arange(together * 8 // bits) * bits // 8).all()


def test_inter_is_not_the_linear_layout():
    """An 8 x 64 byte tile: INTER puts each 8 x 16 byte block into 128 contiguous bytes; linear spreads it over 512."""
    inter = atoms.tile(atoms.atom("K_INTER", 16), (8, 32))
    assert inter.byte_offsets()[:, :8].max() == 126 and not inter.swizzle.bits
    linear = SmemLayout(Layout((8, 32), (32, 1)), Swizzle(0, 4, 3), 16)
    assert linear.byte_offsets()[:, :8].max() == 7 * 64 + 14


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("K_SW32", ["0 1 2 3 4 5 6 7", "9 8 11 10 13 12 15 14"]),
        ("K_SW64", ["0 1 2 3 4 5 6 7", "9 8 11 10 13 12 15 14", "18 19 16 17 22 23 20 21", "27 26 25 24 31 30 29 28"]),
        ("K_SW128", [" ".join(str(8 * r + (p ^ r)) for p in range(8)) for r in range(8)]),
    ],
)
def test_chunk_orders(name, lines):
    layout = atoms.atom(name, 16).layout
    assert [" ".join(map(str, line)) for line in slots(layout)] == lines
    rows = layout.byte_offsets()[:, 0]
    eight = np.where(np.arange(32) < 8, rows[np.arange(32) % 8], -1)
    assert hardware.wavefronts(eight, 16).actual == 1
    width = layout.outer.sizes[1] * 2
    linear = np.where(np.arange(32) < 8, np.arange(32) % 8 * width, -1)
    assert hardware.wavefronts(linear, 16).actual == {32: 2, 64: 4, 128: 8}[width]


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("K_INTER", [0, 4, 8, 12, 16, 20, 24, 28]),
        ("K_SW32", [0, 1, 4, 5, 8, 9, 12, 13]),
        ("K_SW64", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_what_one_line_takes_of_an_8_by_64_byte_tile(name, chunks):
    layout = atoms.tile(atoms.atom(name, 16), (8, 32))
    assert sorted(slots(layout)[0]) == chunks
    assert atoms.select("K", 16, (8, 32)).name == "K_SW64"


def test_bytes_against_elements():
    layout = atoms.atom("K_SW128", 16).layout
    assert layout.byte_offsets()[1, 0] // 2 == 72 == layout.swizzle.in_elements(16)(64)
    assert layout.swizzle(64) == 64  # the trap: the byte swizzle on an element offset does nothing here


def test_tiling_16_by_64_bytes():
    """bf16: 2x4 INTER atoms or 2x2 SW32 atoms, by rows or by columns of atoms."""
    m, k = np.indices((16, 32))
    for name, width, size in (("K_INTER", 8, 64), ("K_SW32", 16, 128)):
        across = 32 // width
        for order, number in (("row", m // 8 * across + k // width), ("column", k // width * 2 + m // 8)):
            layout = atoms.tile(atoms.atom(name, 16), (16, 32), order)
            assert np.array_equal(layout.outer.table() // size, number)
            assert np.array_equal(layout.outer.table() % size, m % 8 * width + k % width)
            assert layout.is_bijective()


def test_as_cute_tiles():
    pytest.importorskip("cutlass")
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import warpgroup

    def tiled():
        kinds = warpgroup.SmemLayoutAtomKind
        made = {name: warpgroup.make_smem_layout_atom(getattr(kinds, name), cutlass.BFloat16) for name in NAMES}
        orders = {"column": (0, 1), "row": (1, 0)}
        return {(n, o): cute.tile_to_shape(a, (128, 128), order=orders[o]) for n, a in made.items() for o in orders}

    NAMES = [name for name in atoms.ATOMS if name != atoms.WIDE_ATOMS]
    for (name, order), theirs in evaluate(tiled, element_bits=16).items():
        ours = atoms.tile(atoms.atom(name, 16), (128, 128), order)
        assert np.array_equal(ours.byte_offsets(), theirs.byte_offsets()), (name, order)


# --- descriptors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["column", "row"])
def test_hopper_descriptors_are_those_of_the_model(major, kind, order):
    layout = atoms.tile(atoms.atom(f"{major}_{kind}", 16), (128, 64), order)
    base = 3 * 1024
    theirs = operand_descriptors(layout, 64, base, major)
    ours = [
        atoms.descriptor(layout, major, "sm_90a", rows=64, origin=(mn, k), base=base)
        for mn in (0, 64)
        for k in (0, 16, 32, 48)
    ]
    assert ours == theirs and isinstance(ours[0], MatrixDescriptor)
    bytes_ = base + layout.byte_offsets()[:64, :16]
    chunks = bytes_[:, ::8] if major == "K" else bytes_[::8].T
    assert np.array_equal(operand_addresses(ours[0], 64, major), chunks)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", atoms.ATOMS)
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("order", ["column", "row"])
def test_a_descriptor_names_every_byte_of_its_operand(arch, name, bits, order):
    """Descriptor fields -> canonical layout -> swizzle of absolute addresses = the layout's own bytes."""
    if name == atoms.WIDE_ATOMS and bits != 32:
        with pytest.raises(ValueError, match="needed 32 for MN_SW128_32B"):
            atoms.atom(name, bits)
        return
    if name == atoms.WIDE_ATOMS and arch == "sm_90a":
        with pytest.raises(ValueError, match="for wgmma"):
            atoms.descriptor(atoms.atom(name, bits), arch=arch)
        return
    atom = atoms.atom(name, bits)
    layout = atoms.tile(atom, (256, 128), order)
    depth = 32 * 8 // bits
    for mn, k in ((0, 0), (0, depth), (128, 128 - depth)):
        found = atoms.descriptor(layout, atom.major, arch, rows=128, origin=(mn, k), base=4096)
        linear = descriptors.canonical_offsets(found, atom.major, (128, depth), bits)
        expected = 4096 + layout.byte_offsets()[mn : mn + 128, k : k + depth]
        assert np.array_equal(descriptors.swizzle_of(found)(linear), expected)
        assert type(found).decode(found.encode()) == found


def test_fields_by_hand():
    """bf16 128 x 64, K-major SW128: 1024 bytes from 8 rows to the next 8; K steps advance the start by 32 bytes."""
    layout = atoms.tile(atoms.select("K", 16, (128, 64)), (128, 64))
    hopper, second = (atoms.descriptor(layout, "K", "sm_90a", origin=(0, k)) for k in (0, 16))
    assert (hopper.start, hopper.lbo, hopper.sbo, hopper.mode) == (0, 16, 1024, 128)
    assert hopper.encode() == 1 << 62 | 64 << 32 | 1 << 16
    assert second.start == 32
    blackwell = atoms.descriptor(layout, "K", "sm_100a")
    assert blackwell.encode() == 2 << 61 | 1 << 46 | 64 << 32 | 1 << 16
    rows = {name: (bits, code) for name, bits, _, code in descriptors.field_table(blackwell) if name != "fixed"}
    assert rows["stride byte offset"] == ("32-45", 64) and rows["swizzle mode"] == ("61-63", 2)
    assert ("fixed", "46-48", "0b001", 1) in descriptors.field_table(blackwell)
    mn_major = atoms.tile(atoms.select("MN", 16, (128, 64)), (128, 64))
    found = atoms.descriptor(mn_major, "MN", "sm_90a", rows=128)
    assert (found.lbo, found.sbo) == (1024, 2048)  # to the next 64 rows, to the next 8 k
    inter = atoms.tile(atoms.atom("MN_INTER", 16), (128, 64))
    found = atoms.descriptor(inter, "MN", "sm_90a", rows=128)
    assert (found.sbo, found.lbo) == (128, 16 * 128)  # without a swizzle the two change places
    table = descriptors.field_table(found)
    assert table[-1] == ("swizzle mode", "62-63", "none", 0)


@pytest.mark.parametrize(
    ("mode", "hopper", "blackwell"),
    [((0, 16), 0, 0), ((32, 16), 3, 6), ((64, 16), 2, 4), ((128, 16), 1, 2), ((128, 32), None, 1)],
)
def test_swizzle_modes_are_numbered_differently(mode, hopper, blackwell):
    assert descriptors.BlackwellDescriptor(0, 0, 0, *mode).encode() >> 61 == blackwell
    if hopper is not None:
        assert MatrixDescriptor(0, 0, 0, mode[0]).encode() >> 62 == hopper == descriptors.HOPPER_CODES[mode]


def test_a_wrong_layout_has_no_descriptor():
    shifted = SmemLayout(Layout((64, 64), (64, 1)), Swizzle(2, 4, 3), 16)  # 128-byte rows under the 64-byte mode
    with pytest.raises(ValueError, match="needed 8 lines, 64 bytes apart"):
        atoms.descriptor(shifted, "K", "sm_90a")
    with pytest.raises(ValueError, match="no MN-major descriptor"):
        atoms.descriptor(atoms.tile(atoms.atom("K_SW128", 16), (64, 64)), "MN", "sm_100a")
    with pytest.raises(ValueError, match="needed one of"):
        atoms.descriptor(SmemLayout(Layout((8, 64), (64, 1)), Swizzle(3, 3, 3), 16), "K")
    with pytest.raises(ValueError, match="base: got 512; needed a multiple of 1024"):
        atoms.descriptor(atoms.atom("K_SW128", 16), base=512)
    with pytest.raises(ValueError, match="rows: got 12"):
        atoms.descriptor(atoms.atom("K_SW128", 16), rows=12)
    with pytest.raises(ValueError, match="origin: got"):
        atoms.descriptor(atoms.atom("K_SW128", 16), rows=8, origin=(0, 64))


def test_tma_writes_these_swizzles_alone():
    assert [atoms.tma_mode(Swizzle(b, 4, 3)) for b in range(4)] == ["NONE", "32B", "64B", "128B"]
    assert atoms.tma_mode(Swizzle(2, 5, 2)) == "128B_ATOM_32B" and atoms.tma_mode(Swizzle(0, 2, 5)) == "NONE"
    for other in (Swizzle(3, 3, 3), Swizzle(3, 4, 4), Swizzle(5, 2, 5), Swizzle(3, 4, -3)):
        with pytest.raises(ValueError, match=r"Any other takes stores by software"):
            atoms.tma_mode(other)
    with pytest.raises(ValueError, match="the nearest is S<3,4,3>"):
        atoms.tma_mode(Swizzle(3, 3, 3))


# --- the architectures that multiply from registers, narrow elements, the code ---------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_120a", "sm_121"])
@pytest.mark.parametrize("extent", [8, 16, 32, 64, 96, 128])
def test_ldmatrix_reads_the_atom_that_the_recipes_choose(arch, extent):
    """The recipes of sm_80 and sm_120 take the widest of 128, 64, 32, 16 bytes that divides the extent."""
    for major, tile in (("K", (128, extent)), ("MN", (extent, 32))):
        found = atoms.select(major, 16, tile, arch)
        bits = next(bits for bits in (3, 2, 1, 0) if extent * 16 % (128 << bits) == 0)
        assert found.layout.swizzle == Swizzle(bits, 4, 3) and found.layout.outer.size == 8 * (128 << bits) // 16
        assert atoms.reader(arch, major) == ("ldmatrix" if major == "K" else "ldmatrix.trans")
        rows = atoms.tile(found, tile).byte_offsets()
        rows = rows[:8, 0] if major == "K" else rows[0, :8]
        assert hardware.wavefronts(np.resize(rows, 32), 16, load=False).actual == 4
    with pytest.raises(ValueError, match="ldmatrix takes addresses instead"):
        atoms.descriptor(atoms.atom("K_SW128", 16), arch=arch)
    assert atoms.reader("sm_90a") == "wgmma" and atoms.reader("sm_100f", "MN") == "tcgen05.mma"


def test_sm_120_reads_bytes_along_mn_with_ldmatrix_m16n16():
    """As cute.nvgpu.warp.LdMatrix16x16x8bOp compiles for sm_120a and sm_121a; the atom frees it of conflicts."""
    for extent, name in ((128, "MN_SW128"), (64, "MN_SW64"), (96, "MN_SW32"), (48, "MN_INTER")):
        found = atoms.select("MN", 8, (extent, 64), "sm_120a")
        assert found.name == name and atoms.reader("sm_121a", "MN", 8) == "ldmatrix.m16n16.trans.b8"
        table = atoms.tile(found, (extent, 64)).byte_offsets().T  # rows along MN
        read = parse("ldmatrix.m16n16.x2.trans.b8@32x16").access(np.ascontiguousarray(table), 8)
        assert hardware.wavefronts(read.addresses, read.width).actual == 4
    assert atoms.reader("sm_120a", "MN") == "ldmatrix.trans" and atoms.reader("sm_100a", "MN", 8) == "tcgen05.mma"
    with pytest.raises(ValueError, match="on sm_120: its ldmatrix transposes elements of 8 and 16 bits alone"):
        atoms.reader("sm_120a", "MN", 32)


@pytest.mark.parametrize(
    ("arch", "major", "bits", "whole", "others"),
    [
        ("sm_90", "K", 16, (16, 32, 48), (8, 24, 40)),
        ("sm_90", "MN", 16, (16, 48), (8, 24)),
        ("sm_90", "K", 8, (32, 96), (16, 48)),
        ("sm_90", "K", 32, (8, 24), (4, 12)),
        ("sm_100", "K", 16, (16,), (8, 24)),
        ("sm_100", "MN", 8, (32,), (16, 24)),
        ("sm_100", "K", 4, (64, 128), (32, 96)),
        ("sm_103", "K", 4, (64, 96, 192), (32, 80)),
        ("sm_80", "K", 16, (8, 24), (4, 12)),
        ("sm_89", "K", 8, (16, 48), (8, 24)),
        ("sm_120", "MN", 8, (16, 48), (8, 24)),
        ("sm_120", "K", 4, (64,), (32, 96)),
    ],
)
def test_a_tile_is_of_whole_mmas(arch, major, bits, whole, others):
    """wgmma and tcgen05.mma take 32 bytes of K, mma.sync 16 at least: CuTe says nothing, and reads past the tile."""
    for k in whole:
        assert atoms.select(major, bits, (64, k), arch).major == major
    for k in others:
        with pytest.raises(ValueError, match=r"one .* takes .* elements of K") as refusal:
            atoms.select(major, bits, (64, k), arch)
        fitting = re.search(r"such as \((\d+), (\d+)\)", str(refusal.value))
        assert atoms.select(major, bits, (int(fitting[1]), int(fitting[2])), arch)


@pytest.mark.parametrize(("major", "bits", "tile"), [("MN", 8, (17, 20)), ("MN", 32, (40, 30)), ("K", 16, (9, 20))])
def test_the_nearest_tile_is_one(major, bits, tile):
    with pytest.raises(ValueError, match="such as") as refusal:
        atoms.select(major, bits, tile)
    fitting = re.search(r"such as \((\d+), (\d+)\)", str(refusal.value))
    assert atoms.select(major, bits, (int(fitting[1]), int(fitting[2])))


@pytest.mark.parametrize(("extent", "name"), [(256, "K_SW128"), (128, "K_SW64"), (64, "K_SW32"), (192, "K_SW32")])
def test_elements_of_4_bits_lie_in_bytes(extent, name):
    """As nvfp4_gemm lays them out: the atom of the bytes that they fill."""
    found = atoms.select("K", 4, (128, extent))
    same = atoms.select("K", 8, (128, extent // 2))
    assert found.name == same.name == name and found.layout == same.layout
    assert "Two elements lie in a byte" in found.reason


def test_numpy_integers_are_integers():
    made = atoms.select("K", np.int32(16), (np.int64(128), np.uint8(64)))
    assert made == atoms.select("K", 16, (128, 64)) == atoms.select("K", 16, np.array([128, 64]))


@pytest.mark.parametrize("order", ["column", "row"])
def test_the_code_makes_the_layout(order):
    """What `cute_code` writes, run by CuTe, is `tile`, stage after stage."""
    pytest.importorskip("cutlass")
    cases = [("K", 16, (128, 64)), ("MN", 16, (96, 64)), ("K", 8, (64, 32)), ("MN", 32, (64, 32)), ("K", 32, (32, 8))]
    for major, bits, shape in cases:
        chosen = atoms.select(major, bits, shape)
        names: dict = {}
        exec(atoms.cute_code(chosen, shape, order), names)
        theirs = evaluate(names["smem_layout"], 3, element_bits=bits)
        ours = atoms.tile(chosen, shape, order)
        assert theirs.outer.sizes == (*shape, 3)
        for stage in range(3):
            start = stage * ours.size_bytes
            assert np.array_equal(theirs.byte_offsets()[..., stage], start + ours.byte_offsets()), (major, bits, shape)


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("M", 16, (128, 64)), "major: got 'M'"),
        (("K", 4, (128, 64), "sm_90"), "element_bits: got 4; needed 8, 16 or 32 on sm_90: e2m1 came with Blackwell"),
        (("MN", 4, (128, 64)), "major: got 'MN' with 4-bit elements; needed 'K'"),
        (("K", 64, (128, 64)), "needed 4, 8, 16 or 32"),
        (("K", 16, (1 << 16, 1 << 16)), "tile: got .*needed 232448 bytes of shared memory at most"),
        (("K", 16, (128, 20)), r"multiples of \(8, 16\), such as \(128, 32\): one tcgen05.mma takes 16 elements of K"),
        (("MN", 8, (24, 64)), "multiple of 16 bytes for the narrowest atom, such as 32"),
        (("K", 16, (128, 64), "sm_75"), r"arch: got 'sm_75'; needed sm_80, .* \(ldmatrix\); sm_90 \(wgmma\); sm_100,"),
        (("MN", 8, (128, 64), "sm_80"), "on sm_80: its ldmatrix transposes elements of 16 bits alone"),
        (("MN", 8, (128, 64), "sm_90a"), "on sm_90: wgmma takes MN-major operands of 16 bits alone"),
    ],
)
def test_select_refuses(arguments, says):
    with pytest.raises(ValueError, match=says):
        atoms.select(*arguments)


def test_other_refusals():
    with pytest.raises(ValueError, match="name: got 'K_SW256'"):
        atoms.atom("K_SW256", 16)
    with pytest.raises(ValueError, match=r"such as \(16, 64\)"):
        atoms.tile(atoms.atom("K_SW128", 16), (12, 64))
    with pytest.raises(ValueError, match="order: got"):
        atoms.tile(atoms.atom("K_SW128", 16), (16, 64), "diagonal")
    with pytest.raises(ValueError, match="that of K_SW128"):
        atoms.descriptor(atoms.atom("K_SW128", 16), "MN")
    with pytest.raises(ValueError, match="major: got None"):
        atoms.descriptor(atoms.atom("K_SW128", 16).layout)
    with pytest.raises(ValueError, match="mode, together"):
        descriptors.BlackwellDescriptor(0, 0, 0, 64, 32)
    with pytest.raises(ValueError, match="start: got 8"):
        descriptors.BlackwellDescriptor(8, 0, 0, 64)
    with pytest.raises(ValueError, match="needed 0b001 in bits 46-48"):
        descriptors.BlackwellDescriptor.decode(0)
