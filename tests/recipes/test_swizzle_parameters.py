"""Swizzle<B,M,S>: the page's own functions against the package and CuTe."""

from __future__ import annotations

import numpy as np
import pytest
from references import actual, by_cute

from cookbook.layouts import evaluate
from cookbook.recipe import catalog
from cookbook.solve import design
from cookbook.swizzle import Swizzle

PAGE = catalog.load("foundations/swizzle_parameters")
LANES = np.arange(32)

LEGAL = [(b, m, s) for b in range(4) for m in range(4) for s in range(-4, 5) if abs(s) >= b]


@pytest.mark.parametrize("spec", LEGAL, ids=str)
def test_the_recipes_swizzle_is_the_packages(spec):
    bits, base, shift = spec
    theirs = Swizzle(*spec)
    assert PAGE.masks(*spec) == (theirs.yyy, theirs.zzz)
    assert [PAGE.swizzle(o, *spec) for o in range(2048)] == [theirs(o) for o in range(2048)]
    assert theirs.period == 1 << (bits + base + abs(shift))
    if bits:
        assert PAGE.together(*spec) == 1 << base
        assert PAGE.period(*spec) == theirs.period
        assert theirs.yyy == theirs.zzz << shift if shift >= 0 else theirs.zzz == theirs.yyy << -shift


def test_cute_agrees_also_with_a_negative_shift():
    for spec in ((3, 2, 3), (2, 1, 2), (2, 3, -3), (1, 0, -4)):
        ours = [[PAGE.swizzle(64 * row + col, *spec) for col in range(64)] for row in range(8)]
        assert by_cute((8, 64), (64, 1), spec).tolist() == ours


@pytest.mark.parametrize("spec", [(3, 0, 2), (2, 4, 1), (1, 3, 0), (3, 3, -2)])
def test_illegal_when_the_shift_is_less_than_the_bits(spec):
    with pytest.raises(ValueError, match="S"):
        PAGE.swizzle(0, *spec)
    with pytest.raises(ValueError, match="silently becomes the identity"):
        Swizzle(*spec)
    assert (by_cute((8, 4), (4, 1), spec) == np.arange(32).reshape(8, 4)).all()


def test_legal_swizzles_undo_themselves():
    assert all(PAGE.undoes_itself(b, m, s) for b, m, s in LEGAL if s >= 0)
    assert not PAGE.undoes_itself(3, 0, 2)


def test_3_2_3_on_8_rows_of_32():
    expected = [0, 36, 72, 108, 144, 180, 216, 252]
    assert PAGE.column(8, 32, 0, 3, 2, 3) == by_cute((8, 32), (32, 1), (3, 2, 3))[:, 0].tolist() == expected
    fp32 = [4 * o for o in expected]
    assert PAGE.wavefronts(fp32, 16) == actual(fp32, 16) == 1  # eight lanes, one phase
    half = by_cute((8, 32), (32, 1), (3, 2, 3))
    assert half[1, :8].tolist() == [36, 37, 38, 39, 32, 33, 34, 35]  # a 16-byte vector, torn


def test_the_period_of_3_3_3_on_rows_of_32_is_16_rows_and_not_8():
    table = by_cute((32, 32), (32, 1), (3, 3, 3))
    still = [r for r in range(32) if (table[r] == 32 * r + LANES).all()]
    assert still == PAGE.unchanged_rows(32, 32, 3, 3, 3) == [0, 1, 16, 17]
    assert Swizzle(3, 3, 3).period // 32 == PAGE.period(3, 3, 3) // 32 == 16


def test_half_8_x_32_by_16_byte_rows_wants_2_3_3_or_3_3_3():
    for spec, expected in (((0, 3, 3), 4), ((2, 3, 3), 1), ((3, 3, 3), 1), ((2, 3, 2), 2)):
        for col in range(0, 32, 8):
            places = 2 * by_cute((8, 32), (32, 1), spec)[:, col]
            assert PAGE.wavefronts(places.tolist(), 16) == actual(places, 16) == expected


def test_32_rows_of_16():
    rows = np.arange(32)[:, None]
    cols = np.arange(16)
    plain = 16 * rows + cols

    def still(spec):
        moved = by_cute((32, 16), (16, 1), spec)
        assert [r for r in range(32) if (moved[r] == plain[r]).all()] == PAGE.unchanged_rows(32, 16, *spec)
        return PAGE.unchanged_rows(32, 16, *spec)

    assert still((4, 0, 4)) == [0, 16]
    assert still((3, 0, 4)) == [0, 8, 16, 24]
    assert (by_cute((32, 16), (16, 1), (3, 0, 3)) == 16 * rows + (cols ^ (2 * (rows % 4) + cols // 8))).all()
    assert PAGE.pairs_up(32, 16, 4, 0, 5) and not PAGE.pairs_up(32, 16, 4, 0, 4)


def test_4_0_5_is_not_worse():
    def column(spec, rows):
        return 4 * by_cute((32, 16), (16, 1), spec)[:rows, 0]

    assert [actual(column(spec, 32)) for spec in ((4, 0, 4), (4, 0, 5))] == [2, 1]
    on_16 = [PAGE.wavefronts(column(spec, 16).tolist(), banks=16) for spec in ((4, 0, 4), (4, 0, 5))]
    assert on_16 == [1, 2]
    assert (list(PAGE.ON_32.values()), list(PAGE.ON_16.values())) == ([2, 1], [1, 2])


def test_half_8_x_64_by_128_bits():
    assert PAGE.rule(64, 2, 8) == PAGE.common_rule(64, 2, 8) == (3, 3, 3)
    layout = evaluate(PAGE.smem_layout, 3, element_bits=16)
    assert layout.swizzle.in_elements(16) == Swizzle(3, 3, 3)
    places = layout.byte_offsets()[:, ::8]
    assert {actual(places[:, piece], 16) for piece in range(8)} == {4}
    assert {actual(places[row : row + 4].ravel(), 16) for row in range(0, 32, 4)} == {4}


def test_the_common_rule_is_illegal_for_short_rows():
    assert PAGE.common_rule(32, 2, 8) == (3, 3, 2) and PAGE.cut((3, 3, 2)) == (2, 3, 2)
    with pytest.raises(ValueError, match="needed"):
        Swizzle(3, 3, 2)
    places = 2 * by_cute((8, 32), (32, 1), (2, 3, 2))[:, 0]
    assert actual(places, 16) == 2
    assert PAGE.rule(32, 2, 8) == (2, 3, 3)


def test_the_common_rule_conflicts_for_vectors_under_4_bytes():
    bits, base, shift = PAGE.common_rule(64, 2, 1)
    assert (bits, base, shift) == (6, 0, 6)
    assert actual([2 * PAGE.swizzle(64 * row, bits, base, shift) for row in range(32)], 2) == 2
    assert actual([2 * PAGE.swizzle(64 * row, *PAGE.rule(64, 2, 1)) for row in range(32)], 2) == 1


CASES = [
    (1 << x, 1 << s, 1 << n)
    for s in range(5)
    for n in range(5 - s)
    for x in range(11)
    if 1 << x >= max(1 << n, 4 >> s if s < 2 else 1)
]


def test_the_rule_serves_every_power_of_two_case():
    """All elements of 1 to 16 bytes, vectors of up to 16 bytes, rows of up to 1024: column read and row store."""
    assert len(CASES) > 100
    for columns, size, vector in CASES:
        swizzle, width = Swizzle(*PAGE.rule(columns, size, vector)), size * vector
        ideal = max(1, width // 4)
        places = swizzle(np.arange(64 * columns)) * size
        starts = places[::vector]
        pieces = places.reshape(-1, vector)
        assert (pieces - pieces[:, :1] == size * np.arange(vector)).all()
        for col in {0, vector, columns // 2, columns - vector} & set(range(0, columns, vector)):
            assert actual(places.reshape(64, columns)[:32, col], width) == ideal, (columns, size, vector, col)
        for first in range(0, min(len(starts), 256), 32):
            assert actual(starts[first : first + 32], width) == ideal, (columns, size, vector, first)


def test_the_package_has_the_same_closed_form():
    for columns, size, vector in CASES:
        assert design.column_swizzle(columns, 8 * size, vector) == Swizzle(*PAGE.rule(columns, size, vector))


def test_the_kernels_entry_point_refuses_what_it_cannot_take():
    import torch

    with pytest.raises(ValueError, match=r"x: got \(3, 3\) torch.float32 on cpu; needed"):
        PAGE.columns(torch.zeros(3, 3))


def test_the_right_half_under_3_0_3_is_the_left_half_xor_1():
    assert PAGE.right_is_left_xor_1()
    moved = Swizzle(3, 0, 3)(np.arange(512).reshape(32, 16)) % 16
    assert ((moved[:, 8:] - 8) == (moved[:, :8] ^ 1)).all()
