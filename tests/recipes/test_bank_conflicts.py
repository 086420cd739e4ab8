"""Banks, the crossbar and padding: the page's own functions against the package and CuTe."""

from __future__ import annotations

import numpy as np
import pytest
from references import actual, by_cute

from cookbook import access, banks
from cookbook.layouts import Layout, SmemLayout
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

PAGE = catalog.load("foundations/bank_conflicts")
LANES = np.arange(32)


def test_one_word_a_bank_and_wavefront_for_any_number_of_lanes():
    assert [PAGE.bank_of(byte) for byte in (0, 4, 124, 128)] == [0, 1, 31, 0]
    assert PAGE.wavefronts([0] * 32) == actual([0] * 32) == 1
    assert PAGE.wavefronts([0, 128]) == actual([0, 128]) == 2
    assert PAGE.wavefronts([0, 128, 128, 128]) == actual([0, 128, 128, 128]) == 2
    assert PAGE.crosspoints(32, 32) == 1024
    assert PAGE.crossings(2, 32) == 2 * 1024 and PAGE.crossings(8, 64) == 4 * PAGE.crossings(8, 32)


def test_wavefronts_agree_with_the_model_on_random_accesses():
    generator = np.random.default_rng(0)
    for lanes in 4 * generator.integers(0, 200, (300, 32)):
        assert PAGE.wavefronts(lanes.tolist()) == actual(lanes)


def test_column_reads_are_32_way_2_way_and_8_way_on_the_toy():
    assert PAGE.wavefronts((128 * LANES).tolist()) == actual(128 * LANES) == 32
    small = 32 * np.arange(8)
    assert PAGE.wavefronts(small.tolist()) == actual(small) == 2
    assert PAGE.wavefronts(small.tolist(), banks=8) == 8


def test_the_bits_of_an_8_x_8_fp32_tile():
    table = 4 * by_cute((8, 8), (8, 1))
    assert table[:, 0].tolist() == [0x00, 0x20, 0x40, 0x60, 0x80, 0xA0, 0xC0, 0xE0]
    for row in range(8):
        for col in range(8):
            byte = PAGE.tile_byte(row, col)
            assert byte == table[row, col]
            assert (byte & 3, byte >> 2 & 7, byte >> 5) == (0, col, row)


def test_xor_and_add_are_bijections_and_free_and_and_or_are_not():
    assert {name: PAGE.is_bijection(mix) for name, mix in PAGE.MIX.items()} == {
        "xor": True,
        "add": True,
        "and": False,
        "or": False,
    }
    for name in ("xor", "add"):
        assert PAGE.column_wavefronts(PAGE.MIX[name]) == [1] * 8
        assert all(PAGE.UNMIX[name](PAGE.MIX[name](c, r), r) == c for c in range(8) for r in range(8))
    assert PAGE.MIX["and"](0b10, 0b01) == PAGE.MIX["and"](0b00, 0b01)
    assert PAGE.MIX["or"](0b10, 0b01) == PAGE.MIX["or"](0b11, 0b01)


def test_swizzle_3_2_3_on_byte_addresses_gives_the_eight_rows():
    rows = ["01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"]
    assert PAGE.bank_rows(PAGE.swizzled) == rows
    table = SmemLayout(Layout((8, 8), (8, 1)), Swizzle(3, 2, 3), 32).byte_offsets()
    assert ["".join(map(str, row)) for row in (table // 4 % 8).tolist()] == rows
    assert (by_cute((8, 8), (8, 1), (3, 0, 3)) * 4 == table).all()  # the same, said in elements


def test_pitch_33_gives_every_bank_once():
    words = by_cute((32, 32), (33, 1))[:, 0]
    assert words[:4].tolist() == [0, 33, 66, 99] and words[-1] == 1023
    assert (words % 32).tolist() == list(range(32))
    assert [4 * word for word in words] == PAGE.padded and PAGE.wavefronts(PAGE.padded) == actual(PAGE.padded) == 1


def test_bf16_wants_pitch_34_and_not_33():
    def worst(pitch):
        ours = [PAGE.wavefronts(PAGE.pitched_column(col, pitch, 2)) for col in range(32)]
        assert ours == [actual(PAGE.pitched_column(col, pitch, 2), 2) for col in range(32)]
        return max(ours)

    assert [worst(pitch) for pitch in (32, 33, 34)] == [16, 2, 1]
    with pytest.raises(ValueError, match="multiples of 4 bytes"):
        access.ldst(np.array(PAGE.pitched_column(0, 33, 2)), 4)  # odd rows start inside a word


def test_ldmatrix_wants_an_odd_multiple_of_16_bytes():
    for multiple in range(1, 20):
        rows = 16 * multiple * np.arange(8)
        expected = banks.wavefronts(access.ldmatrix(rows, 1).addresses, 16).actual
        assert PAGE.matrix_wavefronts(16 * multiple) == expected
        assert (expected == 1) == (multiple % 2 == 1)
    assert PAGE.matrix_wavefronts(2 * 66) is None
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        access.ldmatrix(2 * 66 * np.arange(8), 1)


def test_what_padding_costs():
    assert PAGE.padding_cost(32, 32, 33, 4) == (128, 1 / 32)
    assert PAGE.padding_cost(64, 64, 72, 2) == (1024, 1 / 8)


def test_the_kernels_entry_point_refuses_what_it_cannot_take():
    import torch

    with pytest.raises(ValueError, match=r"x: got \(3, 3\) torch.float32 on cpu; needed"):
        PAGE.transpose(torch.zeros(3, 3))
