import numpy as np
import pytest

from cookbook.model import SharedMemory, cp_async

MEMORY = np.arange(1, 33, dtype=np.uint16)


def test_copies_pads_and_skips():
    smem = SharedMemory(64)
    cp_async(
        smem,
        np.array([0, 16, 32, 48]),
        MEMORY,
        np.array([16, 0, 48, 0]),
        src_size=np.array([16, 6, 0, 16]),
        predicate=np.array([True, True, True, False]),
    )
    got = smem.view(np.uint16).reshape(4, 8).tolist()
    assert got[0] == list(range(9, 17))
    assert got[1] == [1, 2, 3, 0, 0, 0, 0, 0]
    assert got[2] == [0] * 8
    assert got[3] == [0xFFFF] * 8


@pytest.mark.parametrize(
    ("dst", "src", "size", "message"),
    [
        (8, 0, 16, "dst: got 8"),
        (64, 0, 16, "0 to 63"),
        (0, 8, 16, "src: got 8"),
        (0, 64, 16, "inside the 64"),
        (0, -16, 16, "inside the 64"),
        (0, 0, 17, "src_size: got 17"),
    ],
)
def test_refuses(dst, src, size, message):
    with pytest.raises(ValueError, match=message):
        cp_async(SharedMemory(64), np.array([dst]), MEMORY, np.array([src]), src_size=size)


def test_nothing_is_read_where_nothing_is_asked():
    smem = SharedMemory(16)
    cp_async(smem, np.array([0]), MEMORY, np.array([1 << 20]), src_size=0)
    assert (smem.view(np.uint8) == 0).all()
    with pytest.raises(ValueError, match="C-contiguous"):
        cp_async(smem, np.array([0]), MEMORY[::2], np.array([0]))
