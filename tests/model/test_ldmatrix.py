import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook import access, banks
from cookbook.layouts import evaluate
from cookbook.model import SharedMemory, ldmatrix, ldmatrix_m16n16, stmatrix
from cookbook.swizzle import Swizzle

LANE = np.arange(32)


def numbered(rows):
    """8x8 matrices one after another, each value saying matrix, row and column as 64 i + 8 r + c."""
    smem = SharedMemory(rows * 16)
    smem.view(np.uint16)[:] = np.arange(rows * 8)
    return smem


@pytest.mark.parametrize(
    ("trans", "t0", "t22"),
    [(False, [(0, 0), (0, 1)], [(5, 4), (5, 5)]), (True, [(0, 0), (1, 0)], [(4, 5), (5, 5)])],
)
def test_x1_gives_two_values(trans, t0, t22):
    """T0 holds M0K0, M0K1 and T22 M5K4, M5K5; read with .trans the row and column of the stored matrix swap."""
    registers = ldmatrix(numbered(8), LANE * 16, 1, trans)
    assert registers.shape == (32, 1, 2)
    assert [divmod(int(x), 8) for x in registers[0, 0]] == t0
    assert [divmod(int(x), 8) for x in registers[22, 0]] == t22


def test_mn_major_needs_trans():
    """The tile stored MN-major: (k, m) rows. Plain T0 = M0K0, M1K0 and T22 = M4K5, M5K5; .trans as K-major."""
    smem = numbered(8)  # value 8 k + m
    plain, trans = (ldmatrix(smem, LANE * 16, 1, t) for t in (False, True))
    as_mk = lambda x: (int(x) % 8, int(x) // 8)  # noqa: E731
    assert [as_mk(x) for x in plain[0, 0]] == [(0, 0), (1, 0)]
    assert [as_mk(x) for x in plain[22, 0]] == [(4, 5), (5, 5)]
    assert [as_mk(x) for x in trans[0, 0]] == [(0, 0), (0, 1)]
    assert [as_mk(x) for x in trans[22, 0]] == [(5, 4), (5, 5)]


@given(st.sampled_from((1, 2, 4)), st.booleans(), st.permutations(range(32)))
def test_each_lane_by_the_definition(num, trans, order):
    smem = numbered(32)
    registers = ldmatrix(smem, np.array(order) * 16, num, trans)
    for lane in range(32):
        for i in range(num):
            for half in (0, 1):
                row, column = lane // 4, 2 * (lane % 4) + half
                row, column = (column, row) if trans else (row, column)
                assert registers[lane, i, half] == 8 * order[8 * i + row] + column


@given(st.sampled_from((1, 2, 4)), st.booleans())
def test_stmatrix_is_the_inverse(num, trans):
    smem = SharedMemory(512)
    values = np.arange(3 * 32 * num * 2, dtype=np.uint16).reshape(3, 32, num, 2)[1]
    stmatrix(smem, LANE[::-1] * 16, values, trans)
    assert np.array_equal(ldmatrix(smem, LANE[::-1] * 16, num, trans), values)
    assert (smem.view(np.uint16) != 0xFFFF).sum() == 64 * num


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix_by_the_definition(num, trans):
    """Lane l's pair of matrix i goes to row l // 4, elements 2(l mod 4) and next; with trans, to that column."""
    smem = SharedMemory(512)
    values = np.arange(32 * num * 2, dtype=np.uint16).reshape(32, num, 2)
    stmatrix(smem, LANE * 16, values, trans)
    stored = smem.view(np.uint16).reshape(4, 8, 8)
    for lane in range(32):
        for i in range(num):
            for half in (0, 1):
                row, column = lane // 4, 2 * (lane % 4) + half
                assert stored[(i, column, row) if trans else (i, row, column)] == values[lane, i, half]
    assert (stored[num:] == 0xFFFF).all()


def test_the_transpose_is_ldmatrix_not_the_swizzle():
    """The same swizzled MN-major tile gives the K-major fragment with .trans, and never without."""
    tile = np.arange(64, dtype=np.uint16).reshape(8, 8)  # [k, m]
    wanted = ldmatrix(numbered_like(tile.T), LANE * 16, 1)
    for swizzle in (Swizzle(b, 4, 3) for b in range(4)):
        smem, rows = SharedMemory(1024), swizzle(128 * np.arange(8))
        smem.write(rows, tile)
        addresses = np.resize(rows, 32)
        assert np.array_equal(ldmatrix(smem, addresses, 1, trans=True), wanted)
        assert not np.array_equal(ldmatrix(smem, addresses, 1), wanted)


def numbered_like(matrix):
    smem = SharedMemory(128)
    smem.view(np.uint16)[:] = matrix.reshape(-1)
    return smem


def test_eight_rows_a_phase():
    """Each matrix is a phase of its own, by the rows of lanes 8q to 8q + 7: stmatrix as ldmatrix."""
    spread = np.concatenate([np.arange(8) * 16, np.arange(8) * 128, np.arange(8) * 144, np.zeros(8, int)])
    for make in (access.ldmatrix, access.stmatrix):
        for num, each in ((1, [1]), (2, [1, 8]), (4, [1, 8, 1, 1])):
            phases = banks.wavefronts(make(spread, num).addresses, 16).phases
            assert [p.wavefronts for p in phases[:num]] == each and not any(p.wavefronts for p in phases[num:])


@pytest.mark.parametrize(("width", "phases"), [(4, 1), (8, 2), (16, 4)])
def test_phases_by_width(width, phases):
    """32 bits 1, 64 bits 2 (half-warps), 128 bits 4 (lanes 8q to 8q + 7), each for itself."""
    counted = banks.wavefronts(LANE * width, width)
    assert (len(counted.phases), counted.actual, counted.ideal) == (phases,) * 3
    lanes = 32 // phases
    one_phase_in_one_bank = np.where(LANE // lanes == 0, LANE * 128, LANE * width)
    assert [p.wavefronts for p in banks.wavefronts(one_phase_in_one_bank, width).phases] == [lanes] + [1] * (phases - 1)


@given(st.sampled_from((1, 2)), st.permutations(range(32)))
def test_each_byte_of_m16n16_by_the_definition(num, order):
    """Register r of lane l: rows 4(l mod 4) to +3 of column l // 4 + 8r, the first in the lowest byte."""
    smem = SharedMemory(512)
    stored = np.random.default_rng(0).integers(0, 256, (32, 16)).astype(np.uint8)
    smem.view(np.uint8)[:] = stored.reshape(-1)
    registers = ldmatrix_m16n16(smem, np.array(order) * 16, num)
    assert registers.shape == (32, num, 2, 4)
    for lane in range(32):
        for i in range(num):
            for r in (0, 1):
                rows = [order[16 * i + 4 * (lane % 4) + byte] for byte in range(4)]
                assert registers[lane, i, r].tolist() == stored[rows, lane // 4 + 8 * r].tolist()
    both = ldmatrix_m16n16(smem, np.stack([LANE, np.array(order)]) * 16, num)
    assert np.array_equal(both[1], registers) and both.shape == (2, 32, num, 2, 4)


def test_m16n16_is_what_cute_takes_it_for():
    """Who supplies which row, and who gets which byte, by the layouts of CuTe's copy atom."""
    pytest.importorskip("cutlass")
    import dsl_ldmatrix

    for num in (1, 2):
        rows, bytes_ = (layout.table() for layout in evaluate(dsl_ldmatrix.threads_and_values, num, arch="sm_120a"))
        assert rows[: 16 * num, 0].tolist() == [16 * lane for lane in range(16 * num)]
        number = np.arange(512)
        found = np.zeros((32, 8 * num), int)
        for shift in (0, 8):  # of the byte's number, of 9 bits
            smem = SharedMemory(512)
            smem.view(np.uint8)[:] = number >> shift & 255
            found += ldmatrix_m16n16(smem, LANE * 16, num).reshape(32, -1).astype(int) << shift
        assert np.array_equal(bytes_.reshape(32, -1), found)


@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a", "sm_121a"])
def test_m16n16_compiles(arch, tmp_path):
    cute = pytest.importorskip("cutlass.cute")
    import dsl_ldmatrix

    cute.compile(dsl_ldmatrix.launch, options=f"--gpu-arch {arch} --keep-ptx --dump-dir {tmp_path}")
    (ptx,) = tmp_path.glob("*.ptx")
    assert "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {" in ptx.read_text()


def test_batches():
    smem = numbered(64)
    rows = np.stack([LANE, 63 - LANE]) * 16
    both = ldmatrix(smem, rows, 4)
    assert np.array_equal(both[1], ldmatrix(smem, rows[1], 4)) and both.shape == (2, 32, 4, 2)


def test_refuses():
    smem = numbered(32)
    with pytest.raises(ValueError, match="multiples of 16"):
        ldmatrix(smem, LANE * 8, 4)
    with pytest.raises(ValueError, match="num: got 3"):
        ldmatrix(smem, LANE * 16, 3)
    with pytest.raises(ValueError, match="row_addresses"):
        ldmatrix(smem, LANE[:8] * 16, 1)
    with pytest.raises(ValueError, match="registers"):
        stmatrix(smem, LANE * 16, np.zeros((32, 4), np.uint16))
