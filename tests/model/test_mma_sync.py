import numpy as np
import pytest

from cookbook.layouts import Layout, tile_coords
from cookbook.model import from_float32, mma_m16n8k16, to_float32
from cookbook.model.mma_sync import A_COORDS, B_COORDS, C_COORDS

# CuTe's own (thread, value) layouts of the instruction, as its atom prints them.
A_TV = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
B_TV = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
C_TV = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))


def test_fragments_agree_with_cute():
    assert np.array_equal(A_COORDS, tile_coords(A_TV, (16, 16)))
    assert np.array_equal(B_COORDS[..., ::-1], tile_coords(B_TV, (8, 16)))
    assert np.array_equal(C_COORDS, tile_coords(C_TV, (16, 8)))


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
