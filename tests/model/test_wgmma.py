import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook import atoms
from cookbook.layouts import Layout, SmemLayout, tile_coords
from cookbook.model import MatrixDescriptor, SharedMemory, from_float32, operand_descriptors, tma_load, wgmma
from cookbook.model.small_floats import encode
from cookbook.model.wgmma import d_coords
from cookbook.swizzle import Swizzle

MODES = (0, 32, 64, 128)


def k_major(rows, k, mode, across_first=False):
    """Atoms of 8 rows x `mode` bytes of a 16-bit type, stacked along the rows first, or along K first."""
    width = (mode or 16) // 2
    atom, down, across = 8 * width, rows // 8, k // width
    strides = (atom * across, atom) if across_first else (atom, atom * down)
    outer = Layout(((8, down), (width, across)), ((width, strides[0]), (1, strides[1])))
    return SmemLayout(outer, Swizzle({0: 0, 32: 1, 64: 2, 128: 3}[mode], 4, 3), 16)


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def load(smem, base, layout, mode, bits):
    """Fill a tile by TMA: one box for each column of atoms."""
    width = (mode or 16) // 2
    for k in range(0, bits.shape[1], width):
        start = base + layout.outer(0, k) * 2
        tma_load(smem, start, bits, (0, k), (len(bits), width), mode)


def product(mode_written, layout_a, layout_b, dtype="bfloat16", n=24, k=64):
    """A @ B.T with TMA boxes of `mode_written` and wgmma by the layouts' descriptors, and the true product."""
    a, b = integers((64, k), 1), integers((n, k), 2)
    base_b = 64 * k * 2
    smem = SharedMemory(base_b + 32 * k * 2)
    load(smem, 0, layout_a, mode_written, from_float32(a, dtype))
    load(smem, base_b, layout_b, mode_written, from_float32(b, dtype))
    d = np.zeros((128, n // 2), np.float32)
    steps = zip(operand_descriptors(layout_a, 64), operand_descriptors(layout_b, n, base_b), strict=True)
    for left, right in steps:
        d = wgmma(smem, left.encode(), right.encode(), d, dtype)
    full = np.empty((64, n), np.float32)
    full[d_coords(n)[..., 0], d_coords(n)[..., 1]] = d
    return full, a @ b.T


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_tma_writes_what_wgmma_reads(mode, dtype):
    got, true = product(mode, k_major(64, 64, mode), k_major(24, 64, mode), dtype)
    assert np.array_equal(got, true)


# --- MN-major -----------------------------------------------------------------------------------------------

ATOM_NAMES = {0: "MN_INTER", 32: "MN_SW32", 64: "MN_SW64", 128: "MN_SW128"}


def mn_major(rows, k, mode, order):
    return atoms.tile(atoms.atom(ATOM_NAMES[mode], 16), (rows, k), order)


def load_mn(smem, base, layout, mode, bits):
    """Fill a tile from (K, MN) global memory, MN contiguous, by TMA: one box of 8 k for each atom."""
    width = (mode or 16) // 2
    for mn in range(0, bits.shape[1], width):
        for k in range(0, bits.shape[0], 8):
            tma_load(smem, base + layout.outer(mn, k) * 2, bits, (k, mn), (8, width), mode)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("majors", [("MN", "MN"), ("MN", "K"), ("K", "MN")], ids="-".join)
@pytest.mark.parametrize("order", ["column", "row"])
@pytest.mark.parametrize("mode", MODES)
def test_mn_major_operands_by_tma(mode, order, majors, dtype):
    """TMA boxes of (K, MN) tensors -> shared memory -> wgmma by MN-major descriptors: the exact product."""
    n, k, base_b = 128, 64, 64 * 64 * 2
    a, b = integers((64, k), 1), integers((n, k), 2)
    smem, d = SharedMemory(base_b + n * k * 2), np.zeros((128, n // 2), np.float32)
    descriptors = []
    for x, rows, base, major in ((a, 64, 0, majors[0]), (b, n, base_b, majors[1])):
        layout = mn_major(rows, k, mode, order) if major == "MN" else k_major(rows, k, mode)
        bits = from_float32(x.T if major == "MN" else x, dtype).copy()
        (load_mn if major == "MN" else load)(smem, base, layout, mode, bits)
        descriptors.append(operand_descriptors(layout, rows, base, major))
    for left, right in zip(*descriptors, strict=True):
        d = wgmma(smem, left.encode(), right.encode(), d, dtype, major_a=majors[0], major_b=majors[1])
    assert np.array_equal(d, (a @ b.T)[d_coords(n)[..., 0], d_coords(n)[..., 1]])


@pytest.mark.parametrize("order", ["column", "row"])
@pytest.mark.parametrize("mode", MODES)
def test_mn_major_descriptors_are_those_read_off_the_layout(mode, order):
    layout = mn_major(128, 64, mode, order)
    ours = operand_descriptors(layout, 64, 2048, "MN")
    theirs = [
        atoms.descriptor(layout, "MN", "sm_90a", rows=64, origin=(mn, k), base=2048)
        for mn in (0, 64)
        for k in (0, 16, 32, 48)
    ]
    assert ours == theirs


def test_the_strides_of_mn_major_are_exchanged_unswizzled():
    """64 x 16 from a 64 x 64 tile, atoms along MN first: 8 chunks of 8 rows without a swizzle, else `mode` bytes."""
    inter, swizzled = (operand_descriptors(mn_major(64, 64, mode, "column"), 64, major="MN")[0] for mode in (0, 32))
    assert (inter.sbo, inter.lbo) == (128, 1024)  # to the next 8 rows, to the next 8 k
    assert (swizzled.lbo, swizzled.sbo) == (256, 1024)  # to the next 16 rows, to the next 8 k
    whole = operand_descriptors(mn_major(64, 64, 128, "column"), 64, major="MN")
    assert [(d.start, d.lbo, d.sbo) for d in whole] == [(2048 * i, 0, 1024) for i in range(4)]


def test_trap_an_mn_major_tile_read_as_k_major():
    """The same bytes with imm-trans left 0: no error, another matrix."""
    x = integers((64, 64), 3)
    smem, layout = SharedMemory(64 * 64 * 2), mn_major(64, 64, 128, "column")
    load_mn(smem, 0, layout, 128, from_float32(x.T, "bfloat16").copy())
    (first, *_) = operand_descriptors(layout, 64, major="MN")
    zeros = np.zeros((128, 32), np.float32)
    right = wgmma(smem, first, first, zeros, "bfloat16", major_a="MN", major_b="MN")
    wrong = wgmma(smem, first, first, zeros, "bfloat16")
    true = (x[:, :16] @ x[:, :16].T)[d_coords(64)[..., 0], d_coords(64)[..., 1]]
    assert np.array_equal(right, true) and not np.array_equal(wrong, true)
    with pytest.raises(ValueError, match="no K-major descriptor"):
        operand_descriptors(layout, 64)
    with pytest.raises(ValueError, match="no MN-major descriptor"):
        operand_descriptors(k_major(64, 64, 128), 64, major="MN")
    with pytest.raises(ValueError, match="major_a: got 'M'"):
        wgmma(smem, first, first, zeros, "bfloat16", major_a="M")


@pytest.mark.parametrize("written", MODES)
@pytest.mark.parametrize("read", (32, 64, 128))
def test_a_swizzle_on_one_side_only_is_wrong(written, read):
    """The same strides with the swizzle mode of the reader changed: every pair but the equal ones fails."""
    width = read // 2
    a, b = integers((64, width), 1), integers((24, width), 2)
    smem = SharedMemory(64 * read + 32 * read)
    for base, x in ((0, a), (64 * read, b)):
        bits = from_float32(x, "bfloat16")
        if written == read:
            tma_load(smem, base, bits, (0, 0), x.shape, read)
        else:  # rows of `read` bytes, the swizzle another one
            swizzle = Swizzle({0: 0, 32: 1, 64: 2, 128: 3}[written], 4, 3)
            chunks = bits.reshape(-1, 8)
            smem.write(swizzle(base + 16 * np.arange(len(chunks))), chunks)
    d = np.zeros((128, 12), np.float32)
    left, right = (operand_descriptors(k_major(r, width, read), r, at) for r, at in ((64, 0), (24, 64 * read)))
    for pair in zip(left, right, strict=True):
        d = wgmma(smem, *pair, d, "bfloat16")
    true = (a @ b.T)[d_coords(24)[..., 0], d_coords(24)[..., 1]]
    assert np.array_equal(d, true) == (written == read)


@pytest.mark.parametrize(
    ("mode", "starts", "lbo", "sbo"),
    [
        (128, [0, 32, 64, 96], 16, 1024),
        (64, [0, 32, 4096, 4128], 16, 512),
        (32, [0, 2048, 4096, 6144], 16, 256),
        (0, [0, 2048, 4096, 6144], 1024, 128),
    ],
)
def test_fields_and_the_advance_along_k(mode, starts, lbo, sbo):
    found = operand_descriptors(k_major(64, 64, mode), 64)
    assert found == [MatrixDescriptor(start, lbo, sbo, mode) for start in starts]
    across = operand_descriptors(k_major(64, 64, mode, across_first=True), 64)
    assert [d.start for d in across] == {
        128: starts,
        64: [0, 32, 512, 544],
        32: [0, 256, 512, 768],
        0: [0, 256, 512, 768],
    }[mode]


def test_encoding_bit_by_bit():
    word = MatrixDescriptor(start=0x1230, lbo=16, sbo=1024, mode=128, base_offset=5).encode()
    assert word == 0x123 | 1 << 16 | 64 << 32 | 5 << 49 | 1 << 62
    assert [MatrixDescriptor(0, 0, 0, m).encode() >> 62 for m in MODES] == [0, 3, 2, 1]


fields = st.integers(0, 2**14 - 1).map(lambda x: 16 * x)


@given(fields, fields, fields, st.sampled_from(MODES), st.integers(0, 7))
def test_decode_inverts_encode(start, lbo, sbo, mode, base_offset):
    descriptor = MatrixDescriptor(start, lbo, sbo, mode, base_offset)
    assert MatrixDescriptor.decode(descriptor.encode()) == descriptor


@pytest.mark.parametrize(
    ("change", "message"),
    [({"start": 8}, "start: got 8"), ({"lbo": 2**18}, "lbo"), ({"sbo": -16}, "sbo"), ({"mode": 96}, "mode"),
     ({"base_offset": 8}, "base_offset")],
)  # fmt: skip
def test_bad_fields(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MatrixDescriptor(0, 16, 1024, 128), **change)


def test_bad_words():
    for word in (-1, 1 << 64, 1 << 14, 1 << 52):
        with pytest.raises(ValueError, match="word"):
            MatrixDescriptor.decode(word)


def test_layouts_that_no_descriptor_reads():
    row_major = SmemLayout(Layout((64, 128), (128, 1)), Swizzle(3, 4, 3), 16)  # rows 256 bytes apart
    mn_major = SmemLayout(Layout((64, 64), (1, 64)), Swizzle(3, 4, 3), 16)
    as_elements = dataclasses.replace(k_major(64, 64, 128), swizzle=Swizzle(3, 3, 3))
    for layout in (row_major, mn_major, as_elements):
        with pytest.raises(ValueError, match="needed"):
            operand_descriptors(layout, 64)
    with pytest.raises(ValueError, match="base: got 512"):
        operand_descriptors(k_major(64, 64, 128), 64, base=512)
    with pytest.raises(ValueError, match="rows: got 48"):
        operand_descriptors(k_major(64, 64, 128), 48)
    with pytest.raises(ValueError, match="16-bit"):
        operand_descriptors(dataclasses.replace(k_major(64, 64, 128), element_bits=32), 64)


def test_stages_and_row_blocks_in_order():
    atom = k_major(128, 64, 128).outer
    staged = SmemLayout(Layout((*atom.shape, 2), (*atom.stride, 128 * 64)), Swizzle(3, 4, 3), 16)
    starts = [d.start for d in operand_descriptors(staged, 64, base=2048)]
    assert starts == [2048 + 16384 * s + 8192 * m + 32 * k for s in (0, 1) for m in (0, 1) for k in range(4)]


def test_d_fragment_agrees_with_cute():
    tv = Layout(((4, 8, 4), (2, 2, 32)), ((128, 1, 16), (64, 8, 512)))  # as CuTe's m64n256k16 atom prints it
    assert np.array_equal(d_coords(256), tile_coords(tv, (64, 256)))


def test_wgmma_refuses():
    smem, good = SharedMemory(16384), MatrixDescriptor(0, 16, 1024, 128)
    with pytest.raises(ValueError, match="d: got float64"):
        wgmma(smem, good, good, np.zeros((128, 4)), "float16")
    with pytest.raises(ValueError, match="base_offset 1"):
        wgmma(smem, dataclasses.replace(good, base_offset=1), good, np.zeros((128, 4), np.float32), "float16")
    with pytest.raises(ValueError, match="n: got 264"):
        wgmma(smem, good, good, np.zeros((128, 132), np.float32), "float16")
    with pytest.raises(ValueError, match="the bytes there are"):
        wgmma(smem, MatrixDescriptor(16384, 16, 1024, 128), good, np.zeros((128, 4), np.float32), "float16")


# --- 8-bit operands ------------------------------------------------------------------------------------------


def k_major_bytes(rows, k, mode):
    """`k_major` of an 8-bit type."""
    width = mode or 16
    outer = Layout(((8, rows // 8), (width, k // width)), ((width, 8 * width), (1, rows * width)))
    return SmemLayout(outer, Swizzle({0: 0, 32: 1, 64: 2, 128: 3}[mode], 4, 3), 8)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("mode", MODES)
def test_eight_bit_operands_by_the_same_descriptors(mode, dtype):
    rows, columns, k = 64, 24, 128
    a, b, smem = integers((rows, k), 1), integers((columns, k), 2), SharedMemory(rows * k + 32 * k)
    layouts = [k_major_bytes(rows, k, mode), k_major_bytes(columns, k, mode)]
    for layout, base, values in zip(layouts, (0, rows * k), (a, b), strict=True):
        width, codes = mode or 16, encode(values, dtype)
        for at in range(0, k, width):
            tma_load(smem, base + layout.outer(0, at), codes, (0, at), (len(codes), width), mode)
    d = np.zeros((128, columns // 2), np.float32)
    left, right = operand_descriptors(layouts[0], rows), operand_descriptors(layouts[1], columns, rows * k)
    assert len(left) == k // 32
    for pair in zip(left, right, strict=True):
        d = wgmma(smem, *pair, d, dtype)
    coords = d_coords(columns)
    assert np.array_equal(d, (a @ b.T)[coords[..., 0], coords[..., 1]])


def test_eight_bit_operands_are_k_major():
    layout = k_major_bytes(64, 128, 128)
    with pytest.raises(ValueError, match="major: got 'MN'; needed 'K'"):
        operand_descriptors(layout, 64, major="MN")
    descriptor = operand_descriptors(layout, 64)[0]
    with pytest.raises(ValueError, match="major_b: got 'MN'; needed 'K'"):
        wgmma(SharedMemory(1 << 15), descriptor, descriptor, np.zeros((128, 32), np.float32), "e4m3", major_b="MN")
