import numpy as np
import pytest

from cookbook.model import SharedMemory, to_float32


def test_poison_is_nan_in_both_formats():
    smem = SharedMemory(64)
    assert all(np.isnan(to_float32(smem.view(np.uint16), dtype)).all() for dtype in ("float16", "bfloat16"))
    smem.view(np.uint8)[:] = 0
    smem.poison()
    assert (smem.view(np.uint8) == 0xFF).all()


def test_read_what_was_written():
    smem = SharedMemory(64)
    values = np.arange(8, dtype=np.uint16).reshape(2, 4)
    smem.write(np.array([8, 32]), values)
    assert np.array_equal(smem.read(np.array([32, 8]), 4), values[::-1])
    assert smem.view(np.uint16)[4:8].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("address", "message"), [(64, "0 to 63"), (-8, "0 to 63"), (4, "multiples of 8")])
def test_bounds_and_alignment(address, message):
    smem = SharedMemory(64)
    with pytest.raises(ValueError, match=message):
        smem.read(np.array([address]), 4)
    with pytest.raises(ValueError, match=message):
        smem.write(np.array([address]), np.zeros((1, 4), np.uint16))
    with pytest.raises(ValueError, match="values: got shape"):
        smem.write(np.array([0, 8]), np.zeros((1, 4), np.uint16))
    with pytest.raises(ValueError, match="size_bytes"):
        SharedMemory(20)
