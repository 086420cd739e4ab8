"""Tensor memory: who reads which cell, against CuTe's tcgen05 copies and by hand."""

import cutlass
import cutlass.cute as cute
import dsl_tcgen05 as dsl
import numpy as np
import pytest
from cutlass.cute.nvgpu import tcgen05
from dsl_tcgen05 import Case
from hypothesis import given
from hypothesis import strategies as st

from cookbook.layouts import Layout, evaluate
from cookbook.model import BlackwellDescriptor, SharedMemory, TensorMemory, TmemAddress
from cookbook.model.tmem import COPIES, SHAPES, cp, ld, ld_coords
from cookbook.model.tmem import st as store

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
OPS = {
    "32x32b": (tcgen05.Ld32x32bOp, tcgen05.St32x32bOp),
    "16x64b": (tcgen05.Ld16x64bOp, tcgen05.St16x64bOp),
    "16x128b": (tcgen05.Ld16x128bOp, tcgen05.St16x128bOp),
    "16x256b": (tcgen05.Ld16x256bOp, tcgen05.St16x256bOp),
    "16x32bx2": (tcgen05.Ld16x32bx2Op, tcgen05.St16x32bx2Op),
}


def numbered():
    """Tensor memory, all of it allocated, whose cells hold lane << 16 | column."""
    tmem = TensorMemory()
    tmem.alloc(512)
    lanes, columns = np.indices((128, 512))
    tmem.write(lanes, columns, (lanes << 16 | columns).astype(np.uint32))
    return tmem


def columns_of(shape, num):
    return {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 2}[shape] * num


def cute_addresses(op, shape, num, m=128):
    """(128 threads, registers) addresses of CuTe's copy of m lanes by 32-bit cells."""

    def made():
        mma = dsl.make_mma(Case("f16", m, 64, 64, ("bfloat16",) * 2))
        whole = mma.make_fragment_C(mma.partition_shape_C((m, 64)))
        tile = cute.make_tensor(whole.iterator, cute.make_layout((m, columns), stride=(65536, 1)))
        atom = cute.make_copy_atom(op(getattr(tcgen05.Repetition, f"x{num}")), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(atom, tile)
        tv = copy.layout_dst_tv_tiled if "Ld" in op.__name__ else copy.layout_src_tv_tiled
        tiler = [mode if isinstance(mode, cute.Layout) else cute.make_layout(mode) for mode in copy.tiler_mn]
        return tv, tiler, tile.layout

    columns = columns_of(shape, num)
    tv, tiler, tile = evaluate(made, arch=dsl.ARCH)
    index = tv.table()
    rows, cols = (flat_table(mode) for mode in tiler)
    at = rows[index % len(rows)], cols[index // len(rows)]
    return tile.table()[at]


def flat_table(layout):
    return Layout((layout.shape,), (layout.stride,)).table()


@pytest.mark.parametrize("which", [0, 1], ids=["ld", "st"])
@pytest.mark.parametrize("num", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_who_holds_which_cell_is_as_in_cute(shape, num, which):
    theirs = cute_addresses(OPS[shape][which], shape, num)
    tmem = numbered()
    for warp in range(4):
        ours = ld(tmem, TmemAddress(32 * warp, 0), warp, shape, num, split=num)
        assert np.array_equal(ours, theirs[32 * warp : 32 * warp + 32])


@pytest.mark.parametrize("shape", SHAPES)
def test_registers_cover_the_shape_once(shape):
    lanes, each = SHAPES[shape]
    assert each == REGISTERS[shape]
    for num in (1, 2, 8, 128 // each):
        coords = ld_coords(shape, num, num if shape == "16x32bx2" else 0)
        assert coords.shape == (32, num * each, 2)
        cells = coords[..., 0] * columns_of(shape, num) + coords[..., 1]
        assert np.array_equal(np.sort(cells, axis=None), np.arange(lanes * columns_of(shape, num)))


@pytest.mark.parametrize("shape", SHAPES)
def test_st_is_the_way_back_of_ld(shape):
    full, empty = numbered(), TensorMemory()
    empty.alloc(512)
    for warp in range(8):  # a second warpgroup reaches the same lanes
        address = TmemAddress(32 * (warp % 4), 64)
        values = ld(full, address, warp, shape, 4, 4)
        store(empty, address, warp, values, shape, 4, 4)
        assert np.array_equal(ld(empty, address, warp, shape, 4, 4), values)
    written = empty.read(np.arange(128)[:, None], np.arange(512)) != 0xFFFFFFFF
    assert written.sum() == 4 * values.size


@pytest.mark.parametrize("shape", SHAPES)
def test_a_warp_reaches_its_32_lanes_alone(shape):
    tmem = numbered()
    for warp in range(4):
        for lane in range(0, 128, 8):
            right = lane // 32 == warp and (lane % 32 == 0 or (lane % 32 == 16 and shape != "32x32b"))
            if right:
                assert (ld(tmem, TmemAddress(lane, 0).encode(), warp, shape) >> 16 >= lane).all()
            else:
                with pytest.raises(ValueError, match=f"address: got lane {lane} for warp {warp}"):
                    ld(tmem, TmemAddress(lane, 0), warp, shape)


def test_ld_refuses():
    tmem = TensorMemory()
    with pytest.raises(ValueError, match="needed allocated ones, of none"):
        ld(tmem, 0, 0)
    tmem.alloc(32)
    with pytest.raises(ValueError, match="columns: got 0 to 63"):
        ld(tmem, 0, 0, "32x32b", 64)
    for shape, num, message in (("32x64b", 1, "shape"), ("32x32b", 3, "num: got 3"), ("16x256b", 64, "32 at most")):
        with pytest.raises(ValueError, match=message):
            ld(tmem, 0, 0, shape, num)
    with pytest.raises(ValueError, match="values: got shape"):
        store(tmem, 0, 0, np.zeros((32, 2), np.uint32))
    with pytest.raises(ValueError, match="values: got int64"):
        store(tmem, 0, 0, np.zeros((32, 1), np.int64))


# --- allocation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [0, 16, 31, 48, 96, 384, 1024, -32])
def test_illegal_allocations(columns):
    with pytest.raises(ValueError, match=f"columns: got {columns}; needed a power of two"):
        TensorMemory().alloc(columns)


@given(st.lists(st.sampled_from([32, 64, 128, 256]), min_size=1, max_size=12), st.randoms())
def test_allocations_never_overlap(sizes, random):
    tmem, held = TensorMemory(), {}
    for size in sizes:
        try:
            first = tmem.alloc(size).column
        except ValueError:
            assert sum(held.values()) > 0
            gone = random.choice(list(held))
            tmem.dealloc(gone, held.pop(gone))
            continue
        assert first % 32 == 0 and first + size <= 512
        assert all(first + size <= at or at + n <= first for at, n in held.items())
        held[first] = size
    free = 512 - sum(held.values())
    taken = np.zeros(512, bool)
    for at, n in held.items():
        taken[at : at + n] = True
    assert (~taken).sum() == free
    for column in range(0, 512, 32):
        if taken[column]:
            tmem.read(0, column)
        else:
            with pytest.raises(ValueError, match="needed allocated ones"):
                tmem.read(0, column)


def test_full_and_freed():
    tmem = TensorMemory()
    first, second = tmem.alloc(256), tmem.alloc(256)
    assert (first, second) == (TmemAddress(0, 0), TmemAddress(0, 256))
    with pytest.raises(ValueError, match="it would block"):
        tmem.alloc(32)
    tmem.write(3, 300, np.float32(1))
    with pytest.raises(ValueError, match="needed one of"):
        tmem.dealloc(second, 128)
    with pytest.raises(ValueError, match="needed one of"):
        tmem.dealloc(TmemAddress(1, 256), 256)
    tmem.dealloc(second.encode(), 256)
    assert tmem.alloc(64) == second
    assert np.isnan(tmem.read(3, 300).view(np.float32)), "what was there before is gone"


def test_bounds_and_addresses():
    tmem = numbered()
    for lane, column, message in (
        (128, 0, "lanes: got 128"),
        (-1, 0, "lanes"),
        (0, 512, "columns"),
        (0, -1, "columns"),
    ):
        with pytest.raises(ValueError, match=message):
            tmem.read(lane, column)
    assert TmemAddress.of(TmemAddress(96, 17).encode()) == TmemAddress(96, 17)
    assert TmemAddress(96, 17).encode() == 96 << 16 | 17
    for bad in (-1, 128 << 16, 1 << 31):
        with pytest.raises(ValueError, match="address"):
            TmemAddress.of(bad)


# --- tcgen05.cp ---------------------------------------------------------------------------------------------

# Where tcgen05.cp reads row r, bytes 16 c to 16 c + 15: atoms of 8 rows, 128 bytes; then the next rows, `SBO` on.
SBO, LBO = 128, 4096
CUTE_COPIES = {
    ("128x256b", ""): (tcgen05.Cp128x256bOp, (128, 1 << 18)),
    ("128x128b", ""): (tcgen05.Cp128x128bOp, (128, 1 << 18)),
    ("32x128b", "warpx4"): (tcgen05.Cp4x32x128bOp, ((32, 4), (1 << 18, 1 << 23))),
    ("64x128b", "warpx2::02_13"): (tcgen05.Cp2x64x128b0213Op, ((64, 2), (1 << 18, 1 << 24))),
    ("64x128b", "warpx2::01_23"): (tcgen05.Cp2x64x128b0123Op, ((32, 2, 2), (1 << 18, 1 << 24, 1 << 23))),
}


def copied(shape, multicast, lane=0):
    """(written, bytes): which (lane, byte of a row) tcgen05.cp wrote, and the row and byte that each came from."""
    rows, width, _ = COPIES[shape, multicast]
    smem, tmem = SharedMemory(8192), TensorMemory()
    base = tmem.alloc(32)
    row, byte = np.indices((rows, width))
    # the row in one pass, the byte in another: a byte of memory cannot hold both
    seen = []
    for value in (row, byte):
        smem.write(row // 8 * SBO + row % 8 * 16 + byte // 16 * LBO + byte % 16, value[..., None].astype(np.uint8))
        cp(smem, tmem, base._replace(lane=lane), BlackwellDescriptor(0, LBO, SBO, 0).encode(), shape, multicast)
        cells = tmem.read(np.arange(128)[:, None], np.arange(32))
        seen.append(cells.view(np.uint8).reshape(128, 128))
    written = (tmem.read(np.arange(128)[:, None], np.arange(32)) != 0xFFFFFFFF).repeat(4, axis=1)
    return written, *seen


@pytest.mark.parametrize(("shape", "multicast"), CUTE_COPIES)
def test_cp_goes_where_cutes_copy_says(shape, multicast):
    op, (extent, stride) = CUTE_COPIES[shape, multicast]
    width = COPIES[shape, multicast][1]

    def made():
        pointer = cute.make_ptr(cutlass.Int8, 0, cute.AddressSpace.tmem, assumed_align=16)
        layout = cute.make_layout((extent, width), stride=(stride, 1))
        atom = cute.make_copy_atom(op(tcgen05.CtaGroup.ONE), cutlass.Int8)
        copy = tcgen05.make_s2t_copy(atom, cute.make_tensor(pointer, layout))
        return copy.layout_src_tv_tiled, copy.layout_dst_tv_tiled, layout

    source, target, layout = evaluate(made, arch=dsl.ARCH)
    source, target = (x.table()[0] for x in (source, target))
    address = layout.table()[target % 128, target // 128]
    written, row, byte = copied(shape, multicast)
    lane, at = address >> 18, address & 0x3FFFF
    assert written.sum() == len(np.unique(address)) == 128 * width
    if multicast == "warpx2::01_23":  # CuTe counts the rows of the tile: 32, the other half, then the copies
        assert (source % 128 < 64).all()
    assert np.array_equal(row[lane, at], source % 128) and np.array_equal(byte[lane, at], source // 128)


def test_4x256b_goes_to_one_lane_of_each_warp():
    for lane in (0, 31):
        written, row, byte = copied("4x256b", "", lane)
        assert np.array_equal(np.flatnonzero(written.any(axis=1)), lane + 32 * np.arange(4))
        for i in range(4):
            assert (row[lane + 32 * i, :32] == i).all()
            assert np.array_equal(byte[lane + 32 * i, :32], np.arange(32))


def test_the_warps_of_each_multicast():
    """Rows 0 to 31 and 32 to 63 by warp, as the names say."""
    for shape, multicast, halves in (
        ("64x128b", "warpx2::02_13", [0, 32, 0, 32]),
        ("64x128b", "warpx2::01_23", [0, 0, 32, 32]),
        ("32x128b", "warpx4", [0, 0, 0, 0]),
    ):
        _, row, _ = copied(shape, multicast)
        assert np.array_equal(row[:, 0], np.repeat(halves, 32) + np.tile(np.arange(32), 4))


def test_cp_refuses():
    smem, tmem = SharedMemory(1024), TensorMemory()
    tmem.alloc(32)
    word = BlackwellDescriptor(0, 128, 128, 0)
    for shape, multicast, lane, message in (
        ("64x128b", "", 0, "shape, multicast"),
        ("32x128b", "warpx2::02_13", 0, "shape, multicast"),
        ("32x128b", "warpx4", 32, "lane 32; needed 0"),
        ("4x256b", "", 32, "needed 0 to 31"),
        ("128x128b", "", 0, "the bytes there are"),
    ):
        with pytest.raises(ValueError, match=message):
            cp(smem, tmem, TmemAddress(lane, 0), word, shape, multicast)
    with pytest.raises(ValueError, match="columns"):
        cp(smem, tmem, TmemAddress(0, 32), word, "32x128b", "warpx4")
