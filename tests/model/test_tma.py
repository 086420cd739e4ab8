import numpy as np
import pytest

from cookbook.model import SharedMemory, tma_load, tma_store
from cookbook.model.tma import swizzle_mode
from cookbook.swizzle import Swizzle

MATRIX = np.arange(40 * 72, dtype=np.uint16).reshape(40, 72)
LINES = {
    32: ["0 1 2 3 4 5 6 7", "9 8 11 10 13 12 15 14"],
    64: ["0 1 2 3 4 5 6 7", "9 8 11 10 13 12 15 14", "18 19 16 17 22 23 20 21", "27 26 25 24 31 30 29 28"],
    128: [" ".join(str(8 * r + (p ^ r)) for p in range(8)) for r in range(8)],
}


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_chunk_order(mode):
    """Each 128-byte line of an 8-row box holds the chunks of the published tables."""
    smem = SharedMemory(1024)
    chunks = np.repeat(np.arange(mode // 2, dtype=np.uint16), 8).reshape(8, mode // 2)
    tma_load(smem, 0, chunks, (0, 0), chunks.shape, mode)
    lines = smem.view(np.uint16)[::8].reshape(8, 8)[: len(LINES[mode])]
    assert [" ".join(map(str, line)) for line in lines] == LINES[mode]


@pytest.mark.parametrize("mode", [0, 32, 64, 128])
@pytest.mark.parametrize("origin", [(0, 0), (-3, -8), (37, 64), (8, -64), (40, 0), (3, 72)])
def test_every_element_and_the_fill(mode, origin):
    columns, base = (mode or 64) // 2, 1024
    smem = SharedMemory(base + 16 * columns * 2)
    tma_load(smem, base, MATRIX, origin, (16, columns), mode)
    for r in range(16):
        for c in range(columns):
            byte = base + (r * columns + c) * 2
            byte ^= (byte >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[mode]) << 4
            row, column = origin[0] + r, origin[1] + c
            inside = 0 <= row < 40 and 0 <= column < 72
            assert smem.view(np.uint16)[byte // 2] == (MATRIX[row, column] if inside else 0)
    assert (smem.view(np.uint8)[:base] == 0xFF).all()


def test_swizzle_follows_the_absolute_address():
    """A box at 128 is laid out as row 1 of the pattern: its chunks start at slot 1."""
    smem = SharedMemory(256)
    tma_load(smem, 128, MATRIX, (0, 0), (1, 64), 128)
    assert smem.view(np.uint16)[64::8].tolist() == MATRIX[0, [8, 0, 24, 16, 40, 32, 56, 48]].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"box": (8, 128), "mode": 128}, "at most 128"),
        ({"box": (8, 12), "mode": 0}, "multiple of 16"),
        ({"box": (8, 32), "mode": 128}, "not modelled"),
        ({"box": (257, 8)}, "1 to 256"),
        ({"base": 64}, "multiple of 128"),
        ({"mode": 16}, "mode: got 16"),
        ({"tensor": MATRIX[:, :71].copy()}, "rows 142 bytes apart"),
        ({"tensor": MATRIX.T}, "columns 144 bytes apart"),
        ({"tensor": MATRIX[0]}, "two dimensions"),
        ({"tensor": MATRIX.astype(np.complex128)}, "tensor: got an array of complex128 .* real numbers"),
        ({"base": 2**20}, "the bytes there are"),
    ],
)
def test_refuses(change, message):
    smem = SharedMemory(4096)
    arguments = {"base": 0, "tensor": MATRIX, "origin": (0, 0), "box": (8, 64), "mode": 128} | change
    with pytest.raises((TypeError, ValueError), match=message):
        tma_load(smem, **arguments)
    assert (smem.view(np.uint8) == 0xFF).all()


@pytest.mark.parametrize("mode", [0, 32, 64, 128])
@pytest.mark.parametrize("base", [0, 128, 1024])
@pytest.mark.parametrize("origin", [(0, 0), (37, 64), (40, 0), (3, 72)])
def test_a_store_inverts_a_load_and_writes_nothing_outside(mode, base, origin):
    columns = (mode or 64) // 2
    smem, copy = SharedMemory(base + 16 * columns * 2), np.full_like(MATRIX, 0xFFFF)
    tma_load(smem, base, MATRIX, origin, (16, columns), mode)
    tma_store(smem, base, copy, origin, (16, columns), mode)
    row, column = np.indices(MATRIX.shape)
    moved = (row - origin[0] >= 0) & (row - origin[0] < 16) & (column - origin[1] >= 0) & (column - origin[1] < columns)
    assert np.array_equal(copy, np.where(moved, MATRIX, 0xFFFF))


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_trap_a_store_with_another_swizzle_than_the_writer_used(mode):
    smem, copy = SharedMemory(8 * mode), np.zeros_like(MATRIX)
    tma_load(smem, 0, MATRIX, (0, 0), (8, mode // 2), mode)
    tma_store(smem, 0, copy, (0, 0), (8, mode // 2), 0)  # linear rows: chunks land in other columns
    rows = 128 // mode  # under the swizzle the first 128 bytes stay as they are
    assert np.array_equal(copy[:rows, : mode // 2], MATRIX[:rows, : mode // 2])
    assert not np.array_equal(copy[rows : 2 * rows, : mode // 2], MATRIX[rows : 2 * rows, : mode // 2])


def test_a_store_refuses_as_a_load_does():
    smem, copy = SharedMemory(4096), np.zeros_like(MATRIX)
    for change, message in (
        ({"base": 64}, "multiple of 128"),
        ({"mode": 16}, "mode: got 16"),
        ({"box": (8, 12)}, "16"),
    ):
        with pytest.raises(ValueError, match=message):
            tma_store(smem, **{"base": 0, "tensor": copy, "origin": (0, 0), "box": (8, 64), "mode": 0} | change)
    assert not copy.any()


def test_what_each_mode_writes_into_the_first_line():
    """Chunks of the tile by number, 4 to a row: none writes one column of chunks, the widest whole rows."""
    chunks = np.repeat(np.arange(32, dtype=np.uint16), 8).reshape(8, 32)
    first = {}
    for mode in (0, 32, 64):
        smem, width = SharedMemory(512), (mode or 16) // 2
        for i, column in enumerate(range(0, 32, width)):
            tma_load(smem, i * 8 * (mode or 16), chunks, (0, column), (8, width), mode)
        first[mode] = sorted(smem.view(np.uint16)[:64:8].tolist())
    assert first == {0: list(range(0, 32, 4)), 32: [0, 1, 4, 5, 8, 9, 12, 13], 64: list(range(8))}


def test_modes():
    assert [swizzle_mode(Swizzle(b, 4, 3)) for b in range(4)] == [0, 32, 64, 128]
    assert swizzle_mode(Swizzle(0, 0, 0)) == 0
    with pytest.raises(ValueError, match="which TMA writes"):
        swizzle_mode(Swizzle(3, 3, 3))


@pytest.mark.parametrize("move", [tma_load, tma_store])
@pytest.mark.parametrize("column", [1, 4, -5])
def test_a_box_begins_a_multiple_of_16_bytes_into_the_row(move, column):
    with pytest.raises(ValueError, match=f"origin: got column {column}, byte {2 * column}; needed a multiple of 16"):
        move(SharedMemory(4096), 0, MATRIX.copy(), (0, column), (8, 64), 128)


@pytest.mark.parametrize("origin", [(-1, 0), (0, -8)])
def test_a_store_begins_inside_the_tensor(origin):
    with pytest.raises(ValueError, match="needed no negative coordinate in a store"):
        tma_store(SharedMemory(4096), 0, MATRIX.copy(), origin, (8, 64), 128)
