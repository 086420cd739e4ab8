"""Pictures of atoms, fragments, bit fields, maps over GF(2) and tile orders: read back from the SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from cookbook import draw
from cookbook.draw import svg
from cookbook.draw.fragments import lane_holds
from cookbook.layouts import Layout, SmemLayout
from cookbook.swizzle import Swizzle

NS = "{http://www.w3.org/2000/svg}"


def groups(picture, **wanted):
    found = ET.fromstring(picture.svg).iter(f"{NS}g")
    return [g for g in found if all(g.get(f"data-{k.replace('_', '-')}") == str(v) for k, v in wanted.items())]


def labels(picture, **wanted):
    return [g.find(f"{NS}text").text for g in groups(picture, **wanted)]


def fills(picture, **wanted):
    return [g.find(f"{NS}rect").get("fill") for g in groups(picture, **wanted)]


def texts(picture):
    return [t.text for t in ET.fromstring(picture.svg).iter(f"{NS}text")]


def atom(bits, mn_major=False, element_bits=16):
    width = (128 << bits) // element_bits
    outer = Layout((width, 8), (1, width)) if mn_major else Layout((8, width), (width, 1))
    return SmemLayout(outer, Swizzle(bits, 4, 3), element_bits)


def tiling(bits, shape, stride):
    return SmemLayout(Layout(shape, stride), Swizzle(bits, 4, 3), 16)


# --- atoms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mn_major", [False, True])
def test_atom_orders_show_the_chunks_of_each_line(mn_major):
    picture = draw.atom_orders({"SW32": atom(1, mn_major), "SW128": atom(3, mn_major)})
    assert labels(picture, atom="SW32", line=1) == ["9", "8", "11", "10", "13", "12", "15", "14"]
    for line in range(8):
        assert labels(picture, atom="SW128", line=line) == [str(8 * line + (p ^ line)) for p in range(8)]


def test_atom_orders_name_each_chunks_first_element_by_major():
    picture = draw.atom_orders({"K": atom(1), "MN": atom(1, mn_major=True)})
    assert [g.get("data-first") for g in groups(picture, atom="K", line=1)][:2] == ["4,8", "4,0"]
    assert [g.get("data-first") for g in groups(picture, atom="MN", line=1)][:2] == ["8,4", "0,4"]


def test_atom_orders_colour_a_column_of_chunks_alike_and_in_eight_slots():
    picture = draw.atom_orders({"SW128": atom(3)})
    slots = [g.get("data-slot") for g in groups(picture) if g.find(f"{NS}rect").get("fill") == svg.GROUPS[2]]
    assert sorted(slots) == list("01234567")


def test_atom_tiling_labels_bytes_and_numbers_the_atoms_in_memory():
    row = tiling(1, ((8, 2), (16, 2)), ((16, 256), (1, 128)))
    column = tiling(1, ((8, 2), (16, 2)), ((16, 128), (1, 256)))
    picture = draw.atom_tiling({"row": row, "column": column}, (8, 16))
    assert labels(picture, tiling="row", row=4) == ["144", "128", "400", "384"]
    assert labels(picture, tiling="column", row=4) == ["144", "128", "656", "640"]
    assert [g.get("data-atom") for g in groups(picture, tiling="row", col=2)] == ["1"] * 8 + ["3"] * 8
    assert [g.get("data-atom") for g in groups(picture, tiling="column", col=2)] == ["2"] * 8 + ["3"] * 8


@pytest.mark.parametrize("shape", [(5, 16), (8, 24), (16, 8)])
def test_atom_tiling_refuses_a_shape_that_is_no_atom_of_the_tile(shape):
    with pytest.raises(ValueError, match="atom: got"):
        draw.atom_tiling({"row": tiling(1, ((8, 2), (16, 2)), ((16, 256), (1, 128)))}, shape)


def test_atom_pictures_refuse_what_keeps_no_chunk_together():
    with pytest.raises(ValueError, match="keeps no 16 bytes together"):
        draw.atom_orders({"x": SmemLayout(Layout((8, 8), (8, 1)), Swizzle(3, 0, 3), 32)})
    with pytest.raises(ValueError, match="layouts: got none"):
        draw.atom_orders({})


# --- fragments ------------------------------------------------------------------------------------------------


def test_tv_view_says_thread_and_value_of_each_element():
    picture = draw.tv_view(Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), (16, 8))
    assert labels(picture, row=5, col=4) == ["T22 V0"]
    assert labels(picture, row=13, col=5) == ["T22 V3"]
    assert len(groups(picture, thread=22)) == 4


def test_tv_view_refuses_a_layout_that_leaves_elements_out():
    with pytest.raises(ValueError, match="each element of"):
        draw.tv_view(Layout((32, 2), (1, 32)), (16, 8))


def test_ldmatrix_view_along_k_and_along_m_with_and_without_trans():
    assert labels(draw.ldmatrix_view(), side="lane", lane=22) == ["T22: M5K4 M5K5"]
    assert labels(draw.ldmatrix_view(mn_major=True), side="lane", lane=22) == ["T22: M4K5 M5K5"]
    assert labels(draw.ldmatrix_view(mn_major=True, trans=True), side="lane", lane=22) == ["T22: M5K4 M5K5"]
    assert labels(draw.ldmatrix_view(mn_major=True), side="memory", row=5, col=4) == ["M4K5"]


def test_ldmatrix_view_colours_an_element_as_the_lanes_that_get_it():
    picture = draw.ldmatrix_view(mn_major=True, trans=True)
    assert fills(picture, side="memory", row=7, col=5) == fills(picture, side="lane", lane=20)


def test_lane_holds_every_element_once():
    for mn_major in (False, True):
        for trans in (False, True):
            assert len({tuple(mk) for mk in lane_holds(mn_major, trans).reshape(-1, 2).tolist()}) == 64


# --- bits -----------------------------------------------------------------------------------------------------


def test_bit_fields_put_each_bit_in_its_place():
    picture = draw.bit_fields([draw.Field("low", 0, 14, 64), draw.Field("mode", 62, 2, 1)])
    assert [label for bit in (0, 6, 62, 63) for label in labels(picture, bit=bit)] == ["0", "1", "1", "0"]
    assert len(groups(picture, field="low")) == 14 and len(groups(picture, field="")) == 48
    assert "the word is 0x4000000000000040" in texts(picture)
    assert labels(picture, says="mode") == ["mode = 1 (0b01), bits 62 to 63"]


@pytest.mark.parametrize("fields", [[("a", 0, 4, 16)], [("a", 0, 4, 1), ("b", 3, 2, 1)], [("a", 60, 5, 1)]])
def test_bit_fields_refuse_what_does_not_fit(fields):
    with pytest.raises(ValueError, match="fields: got"):
        draw.bit_fields([draw.Field(*f) for f in fields])


def test_gf2_matrix_marks_the_bank_rows():
    picture = draw.gf2_matrix(Swizzle(3, 0, 3).matrix(6), {0: "bank 0", 1: "bank 1", 2: "bank 2"}, asked=(3, 4, 5))
    assert [labels(picture, row=i) for i in (0, 3)] == [list("100100"), list("000100")]
    assert fills(picture, marked="bank 1") == [svg.GROUPS[0]] * 3 + [svg.GROUPS[1]] * 3
    assert {"bank 0", "bank 1", "bank 2"} <= set(texts(picture))


def test_gf2_matrix_refuses_what_is_no_bit_matrix():
    with pytest.raises(ValueError, match="matrix: got"):
        draw.gf2_matrix(np.full((2, 2), 2))
    with pytest.raises(ValueError, match="needed a row or column"):
        draw.gf2_matrix(np.eye(2, dtype=int), {2: "bank"})


# --- tile orders ------------------------------------------------------------------------------------------------


def test_tile_order_colours_a_wave_and_what_it_reads():
    order = [(m, n) for m in range(4) for n in range(6)]
    picture = draw.tile_order({"row-major": order}, wave=8, tile=(128, 256), show=1)
    assert [(g.get("data-m"), g.get("data-n")) for g in groups(picture) if g.get("data-at")][:5] == [
        ("1", "2"),
        ("1", "3"),
        ("1", "4"),
        ("1", "5"),
        ("2", "0"),
    ]
    assert [g.get("data-read") for g in groups(picture, panel="A")] == ["False", "True", "True", "False"]
    assert "256 + 1536 = 1792" in texts(picture)


def test_tile_order_refuses_an_order_that_misses_or_repeats_a_tile():
    for order in ([(0, 0), (1, 1)], [(0, 0), (0, 0)], []):
        with pytest.raises(ValueError, match=r"orders: got .* tiles in x"):
            draw.tile_order({"x": order})
    with pytest.raises(ValueError, match="wave, show"):
        draw.tile_order({"x": [(0, 0)]}, wave=1, show=1)


def test_pictures_are_the_same_every_time():
    assert draw.atom_orders({"a": atom(2)}).svg == draw.atom_orders({"a": atom(2)}).svg
