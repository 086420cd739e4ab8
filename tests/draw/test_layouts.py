"""Bank grids and swizzle views, read back cell by cell."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import (
    NS,
    SW128,
    Tile,
    fill,
    found,
    label,
    parse,
)

from cookbook import draw
from cookbook.draw import svg
from cookbook.draw.layouts import chunk_by_slot


def test_element_1_0_of_k_sw128_bf16_is_at_byte_144():
    picture = draw.bank_grid(SW128)
    (cell,) = found(picture, row=1, col=0)
    assert (label(cell) or "", cell.get("data-byte")) == ("144", "144")
    assert fill(cell) == svg.GROUPS[1]


def test_bank_grid_has_a_cell_a_chunk_in_eight_colours():
    picture = draw.bank_grid(SW128)
    assert len([g for g in found(picture) if g.get("data-row")]) == 64
    column = [fill(g) for g in found(picture, col=0)]
    assert sorted(column) == sorted(svg.GROUPS)


def test_bank_grid_without_swizzle_shows_the_conflict():
    column = found(draw.bank_grid(Tile(8, 64, 0)), col=8)
    assert [label(g) for g in column] == [str(16 + 128 * r) for r in range(8)]
    assert {fill(g) for g in column} == {svg.GROUPS[1]}


@pytest.mark.parametrize(("what", "expected"), [("byte", "144"), ("chunk", "9"), ("bank", "4")])
def test_bank_grid_labels(what, expected):
    (cell,) = found(draw.bank_grid(SW128, label=what), row=1, col=0)
    assert label(cell) == expected


def test_bank_grid_by_element_and_cropped():
    picture = draw.bank_grid(SW128, rows=2, cols=9, unit="element")
    got = [label(g) for g in found(picture, row=1)]
    assert got == [str(144 + 2 * i) for i in range(8)] + ["128"]
    assert len([g for g in found(picture) if g.get("data-row")]) == 18


def test_bank_grid_draws_an_mn_major_tile_along_its_lines():
    picture = draw.bank_grid(Tile(64, 8, 3, mn_major=True), axes=("M", "K"))
    assert [label(g) for g in found(picture, row=1)][:2] == ["144", "128"]
    assert "K \\ M" in [t.text for t in parse(picture).iter(f"{NS}text")]


def test_bank_grid_draws_the_first_stage():
    assert draw.bank_grid(Tile(8, 64, 3, stages=3)).svg == draw.bank_grid(SW128).svg


@pytest.mark.parametrize("line", range(8))
def test_swizzle_view_of_sw128_has_chunk_8r_plus_p_xor_r(line):
    picture = draw.swizzle_view(SW128)
    assert [label(g) for g in found(picture, side="swizzled", line=line)] == [
        str(8 * line + (p ^ line)) for p in range(8)
    ]
    assert [label(g) for g in found(picture, side="plain", line=line)] == [str(8 * line + p) for p in range(8)]


@pytest.mark.parametrize(
    ("cols", "bits", "expected"),
    [
        (16, 1, "0 1 2 3 4 5 6 7 | 9 8 11 10 13 12 15 14"),
        (
            32,
            2,
            "0 1 2 3 4 5 6 7 | 9 8 11 10 13 12 15 14 | 18 19 16 17 22 23 20 21 | 27 26 25 24 31 30 29 28",
        ),
    ],
)
def test_swizzle_view_of_the_narrower_modes(cols, bits, expected):
    picture = draw.swizzle_view(Tile(8, cols, bits))
    count = expected.count("|") + 1
    lines = [" ".join(label(g) for g in found(picture, side="swizzled", line=r)) for r in range(count)]
    assert " | ".join(lines) == expected


def test_swizzle_view_keeps_a_chunks_colour():
    picture = draw.swizzle_view(SW128)
    for chunk in (0, 9, 63):
        plain, moved = found(picture, chunk=chunk)
        assert fill(plain) == fill(moved) == svg.GROUPS[chunk % 8]


def test_chunk_by_slot_marks_gaps():
    assert chunk_by_slot(np.array([0, 48, 128])).tolist() == [[0, -1, -1, 1, -1, -1, -1, -1], [2] + [-1] * 7]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.bank_grid(3), TypeError, "smem_layout: got int"),
        (lambda: draw.bank_grid(SW128, rows=0), ValueError, "rows: got 0"),
        (lambda: draw.bank_grid(SW128, cols=1.5), TypeError, "cols: got 1.5"),
        (lambda: draw.bank_grid(SW128, unit="page"), ValueError, "unit: got 'page'"),
        (lambda: draw.bank_grid(SW128, label="x"), ValueError, "label: got 'x'"),
        (lambda: draw.bank_grid(SW128, axes=("M",)), ValueError, "axes: got"),
        (lambda: draw.bank_grid(Tile(8, 64, 3, element_bits=4)), ValueError, "elements of 4 bits"),
        (lambda: draw.bank_grid(Tile(256, 64, 3), rows=None, unit="element"), ValueError, "16384 cells"),
        (lambda: draw.bank_grid(Tile(8, 6, 0)), ValueError, "keeps no 16 bytes"),
        (lambda: draw.swizzle_view(Tile(8, 6, 0)), ValueError, "keeps no 16 bytes"),
        (lambda: draw.swizzle_view(SW128, lines=-1), ValueError, "lines: got -1"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
