import numpy as np
import pytest

from cookbook.layouts import Layout, tile_coords
from cookbook.model import SharedMemory, from_float32, ldmatrix, mma_m16n8k16, mma_m16n8k32, to_float32
from cookbook.model.mma_sync import A8_COORDS, A_COORDS, B8_COORDS, B_COORDS, C_COORDS
from cookbook.model.small_floats import encode

# CuTe's own (thread, value) layouts of the instruction, as its atom prints them.
A_TV = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
B_TV = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
C_TV = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
A8_TV = Layout(((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256)))  # of 8-bit elements
B8_TV = Layout(((4, 8), (4, 2)), ((32, 1), (8, 128)))


def right_inverse(layout, size):
    """offset -> coordinate of a bijective layout, as a table."""
    inverse = np.empty(size, np.int64)
    inverse[layout.table().reshape(-1, order="F")] = np.arange(size)
    return inverse


def test_m16n8k8_a_both_ways():
    """bf16 A of m16n8k8: thread and value to coordinate by the layout, and back by its right inverse."""
    tv = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
    coords = tile_coords(tv, (16, 8))
    for thread in range(32):
        for value in range(4):
            m, k = thread // 4 + 8 * (value // 2), 2 * (thread % 4) + value % 2
            assert coords[thread, value].tolist() == [m, k] and tv(thread, value) == m + 16 * k
    inverse = Layout(((8, 2), (2, 4)), ((4, 64), (32, 1)))
    assert np.array_equal(inverse.table().reshape(-1, order="F"), right_inverse(tv, 128))
    # m16n8k16 is two of them, one after the other along k.
    assert np.array_equal(A_COORDS[:, :4], coords) and np.array_equal(A_COORDS[:, 4:], coords + np.array([0, 8]))


def test_m16n8k8_b_both_ways():
    tv = Layout(((4, 8), 2), ((16, 1), 8))
    coords = tile_coords(tv, (8, 8))  # (n, k)
    for thread in range(32):
        for value in range(2):
            assert coords[thread, value].tolist() == [thread // 4, 2 * (thread % 4) + value]
    assert np.array_equal(tv.table().reshape(-1, order="F")[right_inverse(tv, 64)], np.arange(64))
    assert np.array_equal(B_COORDS[:, :2, ::-1], coords)


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_gives_the_fragments(trans):
    """ldmatrix.x4 gives a thread its A of m16n8k16 from a K-major tile, and with .trans from an MN-major one."""
    tile = np.arange(256, dtype=np.uint16).reshape(16, 16)  # [m, k]
    smem = SharedMemory(512)
    smem.view(np.uint16)[:] = (tile.T if trans else tile).reshape(-1)
    lane = np.arange(32)
    matrix, row = lane // 8, lane % 8
    m, k = 8 * (matrix % 2), 8 * (matrix // 2)  # the matrices go down m first
    rows = ((k + row) * 16 + m if trans else (m + row) * 16 + k) * 2
    fragment = ldmatrix(smem, rows, 4, trans).reshape(32, 8)
    assert np.array_equal(fragment, tile[A_COORDS[..., 0], A_COORDS[..., 1]])


def test_fragments_agree_with_cute():
    assert np.array_equal(A_COORDS, tile_coords(A_TV, (16, 16)))
    assert np.array_equal(B_COORDS[..., ::-1], tile_coords(B_TV, (8, 16)))
    assert np.array_equal(C_COORDS, tile_coords(C_TV, (16, 8)))
    assert np.array_equal(A8_COORDS, tile_coords(A8_TV, (16, 32)))
    assert np.array_equal(B8_COORDS[..., ::-1], tile_coords(B8_TV, (8, 32)))


def test_ldmatrix_gives_the_fragments_of_8_bit_elements_too():
    """It moves words of 32 bits: two elements of 16 bits, or four of 8."""
    tile = np.arange(512).astype(np.uint8).reshape(16, 32)  # [m, k]
    smem = SharedMemory(512)
    smem.view(np.uint8)[:] = tile.reshape(-1)
    matrix, row = np.arange(32) // 8, np.arange(32) % 8
    rows = (8 * (matrix % 2) + row) * 32 + 16 * (matrix // 2)
    fragment = ldmatrix(smem, rows, 4).reshape(32, 8).view(np.uint8)
    assert np.array_equal(fragment, tile[A8_COORDS[..., 0], A8_COORDS[..., 1]])


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_product_of_8_bit_floats_is_exact_on_integers(dtype):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (5, 16, 32)), rng.integers(-4, 5, (32, 8))
    c = rng.integers(-99, 99, (5, 16, 8)).astype(np.float32)
    pick = lambda x, at: x[..., at[..., 0], at[..., 1]]  # noqa: E731
    d = mma_m16n8k32(encode(pick(a, A8_COORDS), dtype), encode(pick(b, B8_COORDS), dtype), pick(c, C_COORDS), dtype)
    assert np.array_equal(d, pick(a @ b + c, C_COORDS))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_product_is_exact_on_integers(dtype):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 9, (5, 16, 16)), rng.integers(-8, 9, (16, 8))
    c = rng.integers(-99, 99, (5, 16, 8)).astype(np.float32)
    pick = lambda x, at: x[..., at[..., 0], at[..., 1]]  # noqa: E731
    d = mma_m16n8k16(
        from_float32(pick(a, A_COORDS), dtype), from_float32(pick(b, B_COORDS), dtype), pick(c, C_COORDS), dtype
    )
    assert np.array_equal(d, pick(a @ b + c, C_COORDS))


def test_refuses():
    a, b, c = np.zeros((32, 8), np.uint16), np.zeros((32, 4), np.uint16), np.zeros((32, 4), np.float32)
    with pytest.raises(ValueError, match="b: got uint16"):
        mma_m16n8k16(a, a, c, "float16")
    with pytest.raises(ValueError, match="c: got float64"):
        mma_m16n8k16(a, b, c.astype(float), "float16")
    with pytest.raises(ValueError, match="dtype"):
        mma_m16n8k16(a, b, c, "float32")
    assert to_float32(a, "float16").sum() == 0
    narrow = np.zeros((32, 16), np.uint8)
    with pytest.raises(ValueError, match=r"b: got uint8 of shape .*; needed uint8"):
        mma_m16n8k32(narrow, narrow, c, "e4m3")
    with pytest.raises(ValueError, match="dtype: got 'float16'; needed e4m3 or e5m2"):
        mma_m16n8k32(narrow, narrow[:, :8], c, "float16")
