"""Atoms and their tilings: chunks in order, in eight colours."""

from __future__ import annotations

import pytest
from pictures import (
    NS,
    atom,
    found,
    label,
    labels_of,
    tiling,
)

from cookbook import draw
from cookbook.draw import svg
from cookbook.layouts import Layout, SmemLayout
from cookbook.swizzle import Swizzle


@pytest.mark.parametrize("mn_major", [False, True])
def test_atom_orders_show_the_chunks_of_each_line(mn_major):
    picture = draw.atom_orders({"SW32": atom(1, mn_major), "SW128": atom(3, mn_major)})
    assert labels_of(picture, atom="SW32", line=1) == ["9", "8", "11", "10", "13", "12", "15", "14"]
    for line in range(8):
        assert labels_of(picture, atom="SW128", line=line) == [str(8 * line + (p ^ line)) for p in range(8)]


def test_atom_orders_name_each_chunks_first_element_by_major():
    picture = draw.atom_orders({"K": atom(1), "MN": atom(1, mn_major=True)})
    assert [g.get("data-first") for g in found(picture, atom="K", line=1)][:2] == ["4,8", "4,0"]
    assert [g.get("data-first") for g in found(picture, atom="MN", line=1)][:2] == ["8,4", "0,4"]


def test_atom_orders_colour_a_column_of_chunks_in_eight_slots():
    picture = draw.atom_orders({"SW128": atom(3)})
    slots = [g.get("data-slot") for g in found(picture) if g.find(f"{NS}rect").get("fill") == svg.GROUPS[2]]
    assert sorted(slots) == list("01234567")


def test_atom_tiling_labels_bytes_and_numbers_the_atoms():
    row = tiling(1, ((8, 2), (16, 2)), ((16, 256), (1, 128)))
    column = tiling(1, ((8, 2), (16, 2)), ((16, 128), (1, 256)))
    picture = draw.atom_tiling({"row": row, "column": column}, (8, 16))
    assert labels_of(picture, tiling="row", row=4) == ["144", "128", "400", "384"]
    assert labels_of(picture, tiling="column", row=4) == ["144", "128", "656", "640"]
    assert [g.get("data-atom") for g in found(picture, tiling="row", col=2)] == ["1"] * 8 + ["3"] * 8
    assert [g.get("data-atom") for g in found(picture, tiling="column", col=2)] == ["2"] * 8 + ["3"] * 8


@pytest.mark.parametrize("shape", [(5, 16), (8, 24), (16, 8)])
def test_atom_tiling_refuses_a_shape_that_is_no_atom(shape):
    with pytest.raises(ValueError, match="atom: got"):
        draw.atom_tiling({"row": tiling(1, ((8, 2), (16, 2)), ((16, 256), (1, 128)))}, shape)


def test_atom_pictures_refuse_what_keeps_no_chunk_together():
    with pytest.raises(ValueError, match="keeps no 16 bytes together"):
        draw.atom_orders({"x": SmemLayout(Layout((8, 8), (8, 1)), Swizzle(3, 0, 3), 32)})
    with pytest.raises(ValueError, match="layouts: got none"):
        draw.atom_orders({})


def test_tiles_stand_beside_their_lines():
    picture = draw.atom_orders({"K": atom(3)}, tiles=True)
    cells = [g for g in found(picture) if g.get("data-tile-row")]
    tile = {(int(g.get("data-tile-row")), int(g.get("data-tile-col"))): label(g) for g in cells}
    assert tile == {(r, c): str(8 * r + c) for r in range(8) for c in range(8)}
    colour_of = {label(g): g[0].get("fill") for g in cells}
    for g in found(picture, atom="K"):
        assert g[0].get("fill") == colour_of[g.get("data-chunk")]
