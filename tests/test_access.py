import numpy as np
import pytest

from cookbook import access, banks
from cookbook.layouts import Layout, SmemLayout, TiledCopyTV
from cookbook.swizzle import Swizzle


def tile(bits, rows=64, cols=64):
    return SmemLayout(Layout((rows, cols), (cols, 1)), Swizzle(bits, 4, 3), 16)


# 64 threads, 8 along a row of 64 elements and 8 rows: 16 bytes each, as cp.async wants them
ROWWISE = Layout(((8, 8), (8, 1)), ((64, 1), (8, 0)))
G2S = TiledCopyTV(ROWWISE, ROWWISE, (8, 64))
# ldmatrix.x4 of a 16x16 block, twice along m
LDSM = TiledCopyTV(
    Layout(((16, 2, 2), (8, 1)), ((1, 256, 16), (32, 0))),
    Layout(((4, 8, 2), ((2, 2, 2), 1)), ((64, 1, 16), ((32, 8, 256), 0))),
    (32, 16),
)


def test_of_copy_cp_async():
    found = access.of_copy(tile(3), G2S, "dst", "cp_async", warp=1)
    assert len(found) == 8 and {a.width for a in found} == {16}
    row, slot = 4 + 8 * 2 + np.arange(32) // 8, np.arange(32) % 8
    assert found[2].addresses.tolist() == (row * 128 + 16 * (slot ^ row % 8)).tolist()
    assert all(banks.wavefronts(a.addresses, a.width).excess == 0 for a in found)


@pytest.mark.parametrize(("bits", "excess"), [(3, 0), (2, 4), (1, 12), (0, 28)])
def test_of_copy_ldmatrix(bits, excess):
    """Rows of 128 bytes: each swizzle bit that is missing doubles the wavefronts of a column of rows."""
    for warp in (0, 1):
        found = access.of_copy(tile(bits), LDSM, "src", "ldmatrix", warp)
        assert len(found) == 2 * 4
        assert {banks.wavefronts(a.addresses, a.width).excess for a in found} == {excess}


def test_of_copy_uses_the_stage():
    staged = SmemLayout(Layout((64, 64, 2), (64, 1, 4096)), Swizzle(3, 4, 3), 16)
    zero, one = (access.of_copy(staged, G2S, "dst", "cp_async", stage=s)[0].addresses for s in (0, 1))
    assert (one - zero == 8192).all()


def test_byte_swizzle_used_as_elements_splits_vectors():
    wrong = SmemLayout(Layout((64, 64), (64, 1)), Swizzle(3, 3, 3), 16)
    with pytest.raises(ValueError, match="needed 8 adjacent elements"):
        access.of_copy(wrong, G2S, "dst", "cp_async")


def test_of_copy_refuses():
    with pytest.raises(ValueError, match="divides"):
        access.of_copy(tile(3, rows=60), G2S, "dst", "cp_async")
    with pytest.raises(ValueError, match="side"):
        access.of_copy(tile(3), G2S, "both", "cp_async")
    with pytest.raises(ValueError, match="kind"):
        access.of_copy(tile(3), G2S, "dst", "tma")
    with pytest.raises(ValueError, match="warp < 2"):
        access.of_copy(tile(3), G2S, "dst", "cp_async", warp=2)


@pytest.mark.parametrize("make", [access.ldmatrix, access.stmatrix])
def test_matrix_rows(make):
    rows = np.arange(32) * 16
    assert make(rows, 2).addresses.tolist() == [*range(0, 256, 16), *[-1] * 16]
    assert make(rows[:8], 1).width == 16
    with pytest.raises(ValueError, match="multiples of 16"):
        make(rows + 8, 4)
    with pytest.raises(ValueError, match="1, 2 or 4"):
        make(rows, 3)
    with pytest.raises(ValueError, match="16 to 32"):
        make(rows[:8], 2)
    with pytest.raises(ValueError, match="inactive lane"):
        make(np.full(32, -1), 1)


@pytest.mark.parametrize("width", [0, 3, 12, 32])
def test_widths(width):
    with pytest.raises(ValueError, match="width"):
        access.ldst(np.zeros(32, int), width)
    with pytest.raises(ValueError, match="width"):
        access.cp_async(np.zeros(32, int), width)


def test_addresses():
    with pytest.raises(ValueError, match="multiples of 8"):
        access.ldst(np.arange(32) * 4, 8)
    with pytest.raises(ValueError, match="32 integers"):
        access.ldst(np.arange(31) * 4, 4)
    with pytest.raises(TypeError, match="32 integers"):
        access.ldst(np.arange(32) * 4.0, 4)
    with pytest.raises(ValueError, match=">= 0"):
        access.ldst(np.full(32, -4), 4)
