"""Facts 1 to 14: banks and padding, XOR, Swizzle<B,M,S>. The recipes' own functions against the package and CuTe.

Each test states a fact's numbers, then asks the recipe that teaches it, `cookbook`, and CuTe where it has an answer.
"""

from __future__ import annotations

import numpy as np
import pytest

from cookbook import access, banks
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.recipe import catalog
from cookbook.solve import design
from cookbook.swizzle import Swizzle

A = catalog.load("foundations/bank_conflicts")
B = catalog.load("foundations/xor_swizzle")
C = catalog.load("foundations/swizzle_parameters")
LANES = np.arange(32)


def actual(addresses, width: int = 4) -> int:
    """Wavefronts by the package; fewer than 32 addresses leave the other lanes inactive."""
    lanes = np.full(32, -1)
    lanes[: len(addresses)] = addresses
    return banks.wavefronts(lanes, width).actual


def by_cute(shape, strides, spec=None) -> np.ndarray:
    """Offsets in elements as CuTe computes them, coordinate by coordinate, of shape `shape`."""
    import cutlass.cute as cute

    def table():
        layout = cute.make_layout(shape, stride=strides)
        if spec:
            layout = cute.make_composed_layout(cute.make_swizzle(*spec), 0, layout)
        return [layout((row, col)) for row in range(shape[0]) for col in range(shape[1])]

    return np.array(evaluate(table)).reshape(shape)


@pytest.mark.parametrize("module", [A, B, C], ids=lambda module: module.__name__)
def test_every_fact_of_the_studies_holds_and_says_so(module):
    found = module.facts()
    assert [name for name, holds, _ in found if not holds] == []
    assert all(detail for _, _, detail in found)


def test_the_studies_cover_facts_1_to_14_in_order():
    names = [name for module in (A, B, C) for name, _, _ in module.facts()]
    assert [int(name.split("_")[1]) for name in names] == list(range(1, 15))


# --- A: banks, the crossbar, padding --------------------------------------------------------------------------


def test_fact_1_one_word_a_bank_a_turn_for_any_number_of_lanes():
    assert [A.bank_of(byte) for byte in (0, 4, 124, 128)] == [0, 1, 31, 0]
    assert A.wavefronts([0] * 32) == actual([0] * 32) == 1
    assert A.wavefronts([0, 128]) == actual([0, 128]) == 2
    assert A.wavefronts([0, 128, 128, 128]) == actual([0, 128, 128, 128]) == 2
    assert A.crosspoints(32, 32) == 1024
    assert A.crossings(2, 32) == 2 * 1024 and A.crossings(8, 64) == 4 * A.crossings(8, 32)


def test_fact_1_wavefronts_agree_with_the_model_on_random_accesses():
    generator = np.random.default_rng(0)
    for lanes in 4 * generator.integers(0, 200, (300, 32)):
        assert A.wavefronts(lanes.tolist()) == actual(lanes)


def test_fact_2_column_reads_are_32_way_2_way_and_8_way_on_the_toy():
    assert A.wavefronts((128 * LANES).tolist()) == actual(128 * LANES) == 32
    small = 32 * np.arange(8)
    assert A.wavefronts(small.tolist()) == actual(small) == 2
    assert A.wavefronts(small.tolist(), banks=8) == 8


def test_fact_3_the_bits_of_an_8_x_8_fp32_tile():
    table = 4 * by_cute((8, 8), (8, 1))
    assert table[:, 0].tolist() == [0x00, 0x20, 0x40, 0x60, 0x80, 0xA0, 0xC0, 0xE0]
    for row in range(8):
        for col in range(8):
            byte = A.tile_byte(row, col)
            assert byte == table[row, col]
            assert (byte & 3, byte >> 2 & 7, byte >> 5) == (0, col, row)


def test_fact_4_xor_and_add_are_bijections_and_free_and_and_or_are_not():
    assert {name: A.is_bijection(mix) for name, mix in A.MIX.items()} == {
        "xor": True,
        "add": True,
        "and": False,
        "or": False,
    }
    for name in ("xor", "add"):
        assert A.column_wavefronts(A.MIX[name]) == [1] * 8
        assert all(A.UNMIX[name](A.MIX[name](c, r), r) == c for c in range(8) for r in range(8))
    assert A.MIX["and"](0b10, 0b01) == A.MIX["and"](0b00, 0b01)
    assert A.MIX["or"](0b10, 0b01) == A.MIX["or"](0b11, 0b01)


def test_fact_5_swizzle_3_2_3_on_byte_addresses_gives_the_eight_rows():
    rows = ["01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"]
    assert A.bank_rows(A.swizzled) == rows
    table = SmemLayout(Layout((8, 8), (8, 1)), Swizzle(3, 2, 3), 32).byte_offsets()
    assert ["".join(map(str, row)) for row in (table // 4 % 8).tolist()] == rows
    assert (by_cute((8, 8), (8, 1), (3, 0, 3)) * 4 == table).all()  # the same, said in elements


def test_fact_6_pitch_33_gives_every_bank_once():
    words = by_cute((32, 32), (33, 1))[:, 0]
    assert words[:4].tolist() == [0, 33, 66, 99] and words[-1] == 1023
    assert (words % 32).tolist() == list(range(32))
    assert [4 * word for word in words] == A.padded and A.wavefronts(A.padded) == actual(A.padded) == 1


def test_fact_6_trap_bf16_wants_pitch_34_and_not_33():
    def worst(pitch):
        ours = [A.wavefronts(A.pitched_column(col, pitch, 2)) for col in range(32)]
        assert ours == [actual(A.pitched_column(col, pitch, 2), 2) for col in range(32)]
        return max(ours)

    assert [worst(pitch) for pitch in (32, 33, 34)] == [16, 2, 1]
    with pytest.raises(ValueError, match="multiples of 4 bytes"):
        access.ldst(np.array(A.pitched_column(0, 33, 2)), 4)  # odd rows start inside a word


def test_fact_6_trap_ldmatrix_wants_an_odd_multiple_of_16_bytes():
    for multiple in range(1, 20):
        rows = 16 * multiple * np.arange(8)
        expected = banks.wavefronts(access.ldmatrix(rows, 1).addresses, 16).actual
        assert A.matrix_wavefronts(16 * multiple) == expected
        assert (expected == 1) == (multiple % 2 == 1)
    assert A.matrix_wavefronts(2 * 66) is None
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        access.ldmatrix(2 * 66 * np.arange(8), 1)


def test_fact_6_what_padding_costs():
    assert A.padding_cost(32, 32, 33, 4) == (128, 1 / 32)
    assert A.padding_cost(64, 64, 72, 2) == (1024, 1 / 8)


# --- B: XOR from the ground up --------------------------------------------------------------------------------


def test_fact_7_small_tiles():
    assert B.swizzled_rows(2, 2) == [[0, 1], [1, 0]]
    assert B.swizzled_rows(2, 3)[1][2] == 3
    assert B.swizzled_rows(4, 6)[2:] == [[2, 3, 0, 1, 6, 7], [3, 2, 1, 0, 7, 6]]
    assert B.places_inside(2, 3) == 5 and B.places_inside(4, 6) < 24 and B.places_inside(4, 8) == 32


def test_fact_8_trap_divisible_by_four_is_not_enough():
    assert {cols: B.stays_inside(8, cols) for cols in (8, 12, 16, 20, 24)} == {
        8: True,
        12: False,
        16: True,
        20: False,
        24: True,
    }


def test_fact_8_the_law_is_the_next_power_of_two_of_the_rows():
    for rows in range(1, 40):
        for cols in range(1, 100):
            block = 2 ** int(np.ceil(np.log2(rows)))
            inside = bool(((np.arange(cols) ^ np.arange(rows)[:, None]) < cols).all())
            assert inside == (cols % block == 0) == B.law(rows, cols), (rows, cols)


def test_fact_9_conflicts_fall_by_one_with_each_swizzled_row():
    for col in range(8):
        assert [B.column_wavefronts(row, col) for row in range(8)] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_fact_9_the_toy_transpose_stores_for_nothing_extra():
    plain, before = B.transpose(B.GIVEN, B.plain_store, B.plain_load)
    mended, after = B.transpose(B.GIVEN, B.store, B.load)
    assert plain == mended == np.array(B.GIVEN).T.tolist()
    assert before == [1] * 8 + [8] * 8 and after == [1] * 16


def test_fact_10_trap_the_wrong_load_gives_back_the_input():
    wrong, turns = B.transpose(B.GIVEN, B.store, B.wrong_load)
    assert wrong == B.GIVEN != np.array(B.GIVEN).T.tolist()
    assert turns == [1] * 16  # no counter would tell
    assert [B.load(i, t) for i in range(2) for t in range(2)] == [(0, 0), (1, 1), (0, 1), (1, 0)]


def test_fact_10_trap_without_a_barrier_elements_are_read_too_early():
    output = B.transpose_without_barrier(B.GIVEN)
    early = {(i, t) for i in range(8) for t in range(8) if output[i][t] is None}
    assert early == {(i, t) for i in range(8) for t in range(8) if i > t}  # who wants what a later thread stores


def test_fact_10_16_x_16_in_tiles_with_pitch_16_and_tile_offset_8():
    matrix = np.random.default_rng(0).integers(0, 1000, (16, 16))
    out, spent = B.transpose_tiled(matrix.ravel().tolist(), 16)
    assert (np.array(out).reshape(16, 16) == matrix.T).all()
    assert spent == 4 * 16


@pytest.mark.parametrize(("bits", "column"), [(0, 32), (5, 1)])
def test_fact_9_and_10_the_kernels_layout_on_the_real_banks(bits, column):
    layout = evaluate(B.smem_layout, bits, element_bits=32)
    assert layout.is_bijective() and layout.size_bytes == B.CONFIG.smem_bytes
    places = layout.byte_offsets()
    assert {actual(places[:, col]) for col in range(32)} == {column}
    assert {actual(places[row]) for row in range(32)} == {1}
    if bits:
        assert (places == 4 * (32 * LANES[:, None] + (LANES ^ LANES[:, None]))).all()


# --- C: Swizzle<B,M,S> ----------------------------------------------------------------------------------------

LEGAL = [(b, m, s) for b in range(4) for m in range(4) for s in range(-4, 5) if abs(s) >= b]


@pytest.mark.parametrize("spec", LEGAL, ids=str)
def test_fact_11_the_recipes_swizzle_is_the_packages_and_knows_its_masks_and_period(spec):
    bits, base, shift = spec
    theirs = Swizzle(*spec)
    assert C.masks(*spec) == (theirs.yyy, theirs.zzz)
    assert [C.swizzle(o, *spec) for o in range(2048)] == [theirs(o) for o in range(2048)]
    assert theirs.period == 1 << (bits + base + abs(shift))
    if bits:
        assert C.together(*spec) == 1 << base
        assert C.period(*spec) == theirs.period
        assert theirs.yyy == theirs.zzz << shift if shift >= 0 else theirs.zzz == theirs.yyy << -shift


def test_fact_11_cute_agrees_also_with_a_negative_shift():
    for spec in ((3, 2, 3), (2, 1, 2), (2, 3, -3), (1, 0, -4)):
        ours = [[C.swizzle(64 * row + col, *spec) for col in range(64)] for row in range(8)]
        assert by_cute((8, 64), (64, 1), spec).tolist() == ours


@pytest.mark.parametrize("spec", [(3, 0, 2), (2, 4, 1), (1, 3, 0), (3, 3, -2)])
def test_fact_11_illegal_when_the_shift_is_less_than_the_bits(spec):
    with pytest.raises(ValueError, match="S"):
        C.swizzle(0, *spec)
    with pytest.raises(ValueError, match="silently becomes the identity"):
        Swizzle(*spec)
    assert (by_cute((8, 4), (4, 1), spec) == np.arange(32).reshape(8, 4)).all()


def test_fact_11_legal_swizzles_undo_themselves():
    assert all(C.undoes_itself(b, m, s) for b, m, s in LEGAL if s >= 0)
    assert not C.undoes_itself(3, 0, 2)


def test_fact_12_3_2_3_on_8_rows_of_32():
    expected = [0, 36, 72, 108, 144, 180, 216, 252]
    assert C.column(8, 32, 0, 3, 2, 3) == by_cute((8, 32), (32, 1), (3, 2, 3))[:, 0].tolist() == expected
    fp32 = [4 * o for o in expected]
    assert C.wavefronts(fp32, 16) == actual(fp32, 16) == 1  # eight lanes, one phase
    half = by_cute((8, 32), (32, 1), (3, 2, 3))
    assert half[1, :8].tolist() == [36, 37, 38, 39, 32, 33, 34, 35]  # a 16-byte vector, torn


def test_fact_12_trap_the_period_of_3_3_3_on_rows_of_32_is_16_rows_and_not_8():
    table = by_cute((32, 32), (32, 1), (3, 3, 3))
    still = [r for r in range(32) if (table[r] == 32 * r + LANES).all()]
    assert still == C.unchanged_rows(32, 32, 3, 3, 3) == [0, 1, 16, 17]
    assert Swizzle(3, 3, 3).period // 32 == C.period(3, 3, 3) // 32 == 16


def test_fact_12_half_8_x_32_by_16_byte_rows_wants_2_3_3_or_3_3_3():
    for spec, expected in (((0, 3, 3), 4), ((2, 3, 3), 1), ((3, 3, 3), 1), ((2, 3, 2), 2)):
        for col in range(0, 32, 8):
            places = 2 * by_cute((8, 32), (32, 1), spec)[:, col]
            assert C.wavefronts(places.tolist(), 16) == actual(places, 16) == expected


def test_fact_13_32_rows_of_16():
    rows = np.arange(32)[:, None]
    cols = np.arange(16)
    plain = 16 * rows + cols

    def still(spec):
        moved = by_cute((32, 16), (16, 1), spec)
        assert [r for r in range(32) if (moved[r] == plain[r]).all()] == C.unchanged_rows(32, 16, *spec)
        return C.unchanged_rows(32, 16, *spec)

    assert still((4, 0, 4)) == [0, 16]
    assert still((3, 0, 4)) == [0, 8, 16, 24]
    assert (by_cute((32, 16), (16, 1), (3, 0, 3)) == 16 * rows + (cols ^ (2 * (rows % 4) + cols // 8))).all()
    assert C.pairs_up(32, 16, 4, 0, 5) and not C.pairs_up(32, 16, 4, 0, 4)


def test_fact_13_trap_4_0_5_is_not_worse():
    def column(spec, rows):
        return 4 * by_cute((32, 16), (16, 1), spec)[:rows, 0]

    assert [actual(column(spec, 32)) for spec in ((4, 0, 4), (4, 0, 5))] == [2, 1]
    on_16 = [C.wavefronts(column(spec, 16).tolist(), banks=16) for spec in ((4, 0, 4), (4, 0, 5))]
    assert on_16 == [1, 2]
    assert (list(C.ON_32.values()), list(C.ON_16.values())) == ([2, 1], [1, 2])


def test_fact_14_half_8_x_64_by_128_bits():
    assert C.rule(64, 2, 8) == C.common_rule(64, 2, 8) == (3, 3, 3)
    layout = evaluate(C.smem_layout, 3, element_bits=16)
    assert layout.swizzle.in_elements(16) == Swizzle(3, 3, 3)
    places = layout.byte_offsets()[:, ::8]
    assert {actual(places[:, piece], 16) for piece in range(8)} == {4}
    assert {actual(places[row : row + 4].ravel(), 16) for row in range(0, 32, 4)} == {4}


def test_fact_14_trap_the_common_rule_is_illegal_for_short_rows_and_cutting_b_is_2_way():
    assert C.common_rule(32, 2, 8) == (3, 3, 2) and C.cut((3, 3, 2)) == (2, 3, 2)
    with pytest.raises(ValueError, match="needed"):
        Swizzle(3, 3, 2)
    places = 2 * by_cute((8, 32), (32, 1), (2, 3, 2))[:, 0]
    assert actual(places, 16) == 2
    assert C.rule(32, 2, 8) == (2, 3, 3)


def test_fact_14_trap_the_common_rule_conflicts_for_vectors_under_4_bytes():
    bits, base, shift = C.common_rule(64, 2, 1)
    assert (bits, base, shift) == (6, 0, 6)
    assert actual([2 * C.swizzle(64 * row, bits, base, shift) for row in range(32)], 2) == 2
    assert actual([2 * C.swizzle(64 * row, *C.rule(64, 2, 1)) for row in range(32)], 2) == 1


CASES = [
    (1 << x, 1 << s, 1 << n)
    for s in range(5)
    for n in range(5 - s)
    for x in range(11)
    if 1 << x >= max(1 << n, 4 >> s if s < 2 else 1)
]


def test_fact_14_the_rule_serves_every_power_of_two_case():
    """All elements of 1 to 16 bytes, vectors of up to 16 bytes, rows of up to 1024: column read and row store."""
    assert len(CASES) > 100
    for columns, size, vector in CASES:
        swizzle, width = Swizzle(*C.rule(columns, size, vector)), size * vector
        ideal = max(1, width // 4)
        places = swizzle(np.arange(64 * columns)) * size
        starts = places[::vector]
        pieces = places.reshape(-1, vector)
        assert (pieces - pieces[:, :1] == size * np.arange(vector)).all()
        for col in {0, vector, columns // 2, columns - vector} & set(range(0, columns, vector)):
            assert actual(places.reshape(64, columns)[:32, col], width) == ideal, (columns, size, vector, col)
        for first in range(0, min(len(starts), 256), 32):
            assert actual(starts[first : first + 32], width) == ideal, (columns, size, vector, first)


def test_fact_14_the_package_has_the_same_closed_form():
    for columns, size, vector in CASES:
        assert design.column_swizzle(columns, 8 * size, vector) == Swizzle(*C.rule(columns, size, vector))


# --- the kernels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [A, B, C], ids=lambda module: module.__name__)
def test_the_kernels_entry_points_refuse_what_they_cannot_take(module):
    import torch

    entry = {A: "transpose", B: "transpose_tile", C: "columns"}[module]
    with pytest.raises(ValueError, match=r"x: got \(3, 3\) torch.float32 on cpu; needed"):
        getattr(module, entry)(torch.zeros(3, 3))
