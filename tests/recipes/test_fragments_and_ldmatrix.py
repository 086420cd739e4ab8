"""What each thread holds, ldmatrix and its phases: the page's own functions against the package, its model and CuTe."""

from __future__ import annotations

import numpy as np
import pytest

from cookbook import access, banks
from cookbook.layouts import evaluate, tile_coords
from cookbook.model import SharedMemory, ldmatrix
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

PAGE = catalog.load("foundations/fragments_and_ldmatrix")


def test_tv_layouts_of_m16n8k8_and_the_inverse() -> None:
    from cutlass import BFloat16, Float32, cute
    from cutlass.cute.nvgpu import warp

    def layouts():
        mma = cute.make_mma_atom(warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 8)))
        back = cute.composition(cute.right_inverse(mma.tv_layout_A), cute.make_layout((16, 8)))
        return mma.tv_layout_A, back, mma.tv_layout_B

    a, back, b = evaluate(layouts)
    assert (repr(a), repr(b)) == ("((4,8),(2,2)):((32,1),(16,8))", "((4,8),2):((16,1),8)")
    assert repr(back) == "((8,2),(2,4)):((4,64),(32,1))"
    for t, v in np.ndindex(32, 4):  # both ways
        m, k = tile_coords(a, (16, 8))[t, v]
        assert back.table()[m, k] == t + 32 * v
    by_hand = [[PAGE.held_by(t, v) for v in range(4)] for t in range(32)]
    assert (np.array(by_hand) == tile_coords(a, (16, 8))).all()


@pytest.mark.parametrize(
    ("mn_major", "trans", "t0", "t22"),
    [
        (False, False, ["M0K0", "M0K1"], ["M5K4", "M5K5"]),
        (True, False, ["M0K0", "M1K0"], ["M4K5", "M5K5"]),
        (True, True, ["M0K0", "M0K1"], ["M5K4", "M5K5"]),
    ],
)
def test_what_threads_0_and_22_hold_after_ldmatrix(mn_major, trans, t0, t22) -> None:
    smem = SharedMemory(128)
    names = np.arange(64, dtype=np.uint16).reshape(8, 8)  # 8 m + k
    smem.write(16 * np.arange(8), names.T.copy() if mn_major else names)
    pairs = ldmatrix(smem, 16 * (np.arange(32) % 8), 1, trans)[:, 0]
    assert pairs.shape == (32, 2)  # two 16-bit elements a thread
    for lane, wanted in ((0, t0), (22, t22)):
        assert [f"M{x // 8}K{x % 8}" for x in pairs[lane].tolist()] == wanted


@pytest.mark.parametrize("num", [1, 2, 4])
def test_matrix_q_takes_its_rows_from_lanes_8q_on(num: int) -> None:
    smem = SharedMemory(512)
    smem.write(16 * np.arange(32), np.arange(256, dtype=np.uint16).reshape(32, 8))
    rows = np.roll(16 * np.arange(32), 8)  # lanes 8q.. point to the matrix before
    found = ldmatrix(smem, rows, num)
    for q in range(num):
        assert found[0, q].tolist() == [(64 * (q - 1)) % 256, (64 * (q - 1)) % 256 + 1]


def test_two_block_shapes_free_at_once() -> None:
    four, sixteen = Swizzle(5, 2, 5), Swizzle(2, 4, 3)
    row, column = 4 * np.arange(32), 128 * np.arange(32)
    assert [banks.wavefronts(x, 4).actual for x in (four(row), four(column), column)] == [1, 1, 32]
    two_rows, eight_rows = 16 * np.arange(8), 64 * np.arange(8)
    eights = [np.r_[x, np.full(24, -1)] for x in (sixteen(two_rows), sixteen(eight_rows), eight_rows)]
    assert [banks.wavefronts(x, 16).actual for x in eights] == [1, 1, 4]


@pytest.mark.parametrize(("width", "phases"), [(4, 1), (8, 2), (16, 4)])
def test_phases_by_width(width: int, phases: int) -> None:
    counted = banks.wavefronts(width * np.arange(32), width)
    assert (len(counted.phases), counted.actual) == (phases, phases)
    assert len(PAGE.wavefronts_of_phases([width * i for i in range(32)], width)) == phases


def test_phases_are_not_recombined() -> None:
    addresses = PAGE.two_slots_each
    assert [phase.wavefronts for phase in banks.wavefronts(np.array(addresses), 16).phases] == [4, 4, 4, 4]
    slots = np.array(addresses) // 16 % 8
    assert np.bincount(slots).tolist() == [4] * 8  # recombined freely it would be 4 in all


def test_stmatrix_as_ldmatrix() -> None:
    rows = 128 * np.arange(32)
    for read, write in ((access.ldmatrix(rows, n), access.stmatrix(rows, n)) for n in (1, 2, 4)):
        assert banks.wavefronts(read.addresses, 16) == banks.wavefronts(write.addresses, 16)
