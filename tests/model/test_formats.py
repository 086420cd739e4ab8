import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.model import from_float32, to_float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_returns(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = to_float32(bits, dtype)
    numbers = ~np.isnan(values)
    assert np.array_equal(from_float32(values, dtype)[numbers], bits[numbers])
    assert np.isnan(to_float32(from_float32(values[~numbers], dtype), dtype)).all()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8), st.sampled_from(["float16", "bfloat16"]))
def test_rounds_as_torch(values, dtype):
    torch = pytest.importorskip("torch")
    array = np.array(values, np.float32)
    theirs = torch.from_numpy(array).to(getattr(torch, dtype)).float().numpy()
    assert np.array_equal(to_float32(from_float32(array, dtype), dtype), theirs)


def test_refuses():
    with pytest.raises(ValueError, match="dtype: got 'float8'"):
        to_float32(np.zeros(1, np.uint16), "float8")
    with pytest.raises(TypeError, match="bits"):
        to_float32(np.zeros(1, np.int16), "float16")
