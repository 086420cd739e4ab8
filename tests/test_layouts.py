from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.layouts import Layout, SmemLayout, TiledCopyTV, evaluate, tile_coords
from cookbook.swizzle import Swizzle

K_SW128 = SmemLayout(Layout((8, 64), (64, 1)), Swizzle(3, 4, 3), 16)


@st.composite
def nested(draw, depth=2):
    if depth == 0 or draw(st.booleans()):
        return draw(st.integers(1, 4)), draw(st.integers(0, 9))
    parts = [draw(nested(depth=depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    return tuple(p[0] for p in parts), tuple(p[1] for p in parts)


def brute(shape, stride, index):
    """The offset of a flat colexicographic index, by recursion on the nesting."""
    if isinstance(shape, int):
        return index % shape * stride
    total = 0
    for s, d in zip(shape, stride, strict=True):
        size = Layout(s, d).size
        total += brute(s, d, index % size)
        index //= size
    return total


@given(nested())
def test_table_is_the_function(layout):
    layout = Layout(*layout)
    table = layout.table()
    assert table.shape == layout.sizes
    for coord in np.ndindex(table.shape):
        flat = [brute(m.shape, m.stride, i) for m, i in zip(layout.modes, coord, strict=True)]
        assert layout(*map(int, coord)) == table[coord] == sum(flat)


def test_nested_coordinates_and_errors():
    layout = Layout(((2, 2), 3), ((1, 6), 2))
    assert layout((0, 1), 2) == 10 == layout(2, 2)
    assert repr(layout) == "((2,2),3):((1,6),2)"
    with pytest.raises(ValueError, match="coord: got 1 coordinates"):
        layout(0)
    with pytest.raises(ValueError, match="0 <= coord < 3"):
        layout(0, 3)
    with pytest.raises(ValueError, match="nesting"):
        layout((0, 1, 1), 0)
    with pytest.raises(ValueError, match="nested as in"):
        Layout((2, 2), 1)


def test_bytes_not_elements():
    """Element (1, 0) of a bf16 K_SW128 atom is at element 72; calling the printed layout says 64."""
    table = K_SW128.byte_offsets()
    assert table[1, 0] // 2 == 72 != Swizzle(3, 4, 3)(K_SW128.outer(1, 0)) == 64
    assert K_SW128.is_bijective() and K_SW128.size_bytes == 1024 and K_SW128.alignment == 1024


@pytest.mark.parametrize(
    ("bits", "lines"),
    [
        (1, ["0 1 2 3 4 5 6 7", "9 8 11 10 13 12 15 14"]),
        (2, ["0 1 2 3 4 5 6 7", "9 8 11 10 13 12 15 14", "18 19 16 17 22 23 20 21", "27 26 25 24 31 30 29 28"]),
        (3, [" ".join(str(8 * r + (p ^ r)) for p in range(8)) for r in range(8)]),
    ],
)
def test_chunk_tables(bits, lines):
    """Which 16-byte chunk each slot of each 128-byte line holds, for the three swizzled atoms."""
    width = 8 << bits  # bf16 elements in a row
    atom = SmemLayout(Layout((8, width), (width, 1)), Swizzle(bits, 4, 3), 16)
    starts = atom.byte_offsets()[:, ::8].reshape(-1) // 16
    slots = np.argsort(starts).reshape(-1, 8)
    assert [" ".join(map(str, row)) for row in slots] == lines
    assert atom.alignment == 128 << bits
    assert {1: 256, 2: 512, 3: 1024}[bits] == atom.alignment


def test_not_bijective():
    overlapping = SmemLayout(Layout((4, 8), (8, 0)), Swizzle(0, 4, 3), 16)
    padded = SmemLayout(Layout((32, 32), (33, 1)), Swizzle(0, 4, 3), 32)
    assert not overlapping.is_bijective() and not padded.is_bijective()
    with pytest.raises(ValueError, match="element_bits: got 12"):
        SmemLayout(Layout(8, 1), Swizzle(0, 4, 3), 12)


def test_mma_operand_coordinates():
    """mma.m16n8k8 A: ((4,8),(2,2)):((32,1),(16,8)), taken both ways through its right inverse."""
    tv = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
    inverse = Layout(((8, 2), (2, 4)), ((4, 64), (32, 1)))  # (m, k) -> thread + 32 * value
    coords = tile_coords(tv, (16, 8))
    for (t, v), (m, k) in ((tv, coords[tv]) for tv in np.ndindex(32, 4)):
        assert inverse(int(m), int(k)) == t + 32 * v
    assert coords[22, 0].tolist() == [5, 4] and coords[22, 1].tolist() == [5, 5]
    with pytest.raises(ValueError, match="inside a tile"):
        tile_coords(tv, (8, 8))


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Box:
    inside: Any
    count: int


def test_evaluate_against_cute_itself():
    cutlass = pytest.importorskip("cutlass")
    import cutlass.cute as cute

    def layouts(dtype):
        atom = cute.make_composed_layout(cute.make_swizzle(2, 4, 3), 0, cute.make_layout((8, 32), stride=(32, 1)))
        staged = cute.tile_to_shape(atom, (16, 64, 2), order=(0, 1, 2))
        plain = cute.make_layout(((2, 3), 4), stride=((1, 8), 2))
        samples = {(m, k, s): staged.outer((m, k, s)) for m in (0, 9) for k in (0, 31, 63) for s in (0, 1)}
        return Pair(staged, {"boxes": [Box(plain, 3)], "samples": samples, "none": None})

    got = evaluate(layouts, cutlass.BFloat16)
    assert isinstance(got, Pair) and got.a.element_bits == 16 and got.a.swizzle == Swizzle(2, 4, 3)
    assert got.b["boxes"] == [Box(Layout(((2, 3), 4), ((1, 8), 2)), 3)] and got.b["none"] is None
    for (m, k, s), offset in got.b["samples"].items():
        assert got.a.outer(m, k, s) == offset == got.a.outer.table()[m, k, s]
    assert evaluate(layouts, cutlass.Float32).a.element_bits == 32


def test_evaluate_copies_and_mma():
    cutlass = pytest.importorskip("cutlass")
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import warp

    def objects(dtype):
        mma = cute.make_tiled_mma(warp.MmaF16BF16Op(dtype, cutlass.Float32, (16, 8, 16)), (2, 1, 1))
        ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), dtype)
        return mma, cute.make_tiled_copy_A(ldmatrix, mma)

    mma, copy = evaluate(objects, cutlass.Float16)
    assert mma.shape_mnk == (16, 8, 16) and mma.tiler_mnk == (32, 8, 16) and mma.threads == 64
    assert copy.tiler_mn == (32, 16) and copy.threads == 64 and (copy.src_vector, copy.dst_vector) == (8, 8)
    rows = copy.src_coords()
    assert rows.shape == (64, 8, 2) and (rows[:, :, 1] - rows[:, :1, 1] == np.arange(8)).all()
    assert rows[17, 0].tolist() == [1, 8] and rows[40, 0].tolist() == [24, 0]
    assert copy.dst_coords()[5, :2].tolist() == [[1, 2], [1, 3]]


def test_evaluate_refuses():
    pytest.importorskip("cutlass")
    import cutlass.cute as cute

    def composed(offset):
        return cute.make_composed_layout(cute.make_swizzle(1, 4, 3), offset, cute.make_layout(64))

    with pytest.raises(ValueError, match="element_bits: got None"):
        evaluate(composed, 0)
    with pytest.raises(ValueError, match=r"S<B,M,S> o 0 o layout"):
        evaluate(composed, 16, element_bits=16)
    with pytest.raises(TypeError, match="fn: got a object from it"):
        evaluate(object)


def test_tiled_copy_fields():
    tv = Layout((32, (8, 1)), (1, (32, 0)))
    copy = TiledCopyTV(tv, tv, (32, 8))
    assert copy.src_coords()[3].tolist() == [[3, n] for n in range(8)]
    assert (copy.threads, copy.src_vector) == (32, 8)


def test_evaluate_undoes_a_tiler_that_renames_rows():
    """Tensor memory's copies take every 32nd row, then the next: the coordinates are those CuTe partitions by."""
    cutlass = pytest.importorskip("cutlass")
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

    def copy_and_coordinates(dtype):
        k = OperandMajorMode.K
        source = tcgen05.OperandSource.SMEM
        op = tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, (128, 64, 16), tcgen05.CtaGroup.ONE, source, k, k)
        mma = cute.make_tiled_mma(op)
        sums = mma.make_fragment_C(mma.partition_shape_C((128, 64)))
        piece = cute.flat_divide(sums[(None, None), 0, 0], (128, 16))[None, None, 0, 0]
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x16), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(load, piece)
        tile = cute.make_identity_tensor((128, 16))
        parts = {t: copy.get_slice(t).partition_D(tile) for t in (0, 1, 37, 127)}
        return copy, {t: [part[i] for i in range(cute.size(part))] for t, part in parts.items()}

    copy, held = evaluate(copy_and_coordinates, cutlass.BFloat16, arch="sm_100a")
    assert copy.tiler_mn == (128, 16) and copy.threads == 128
    for thread, coordinates in held.items():
        assert copy.dst_coords()[thread].tolist() == [list(c) for c in coordinates]
