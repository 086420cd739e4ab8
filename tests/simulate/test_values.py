"""Coordinates and layouts, as CuTe has them; and what a box of TMA covers."""

from __future__ import annotations

import numpy as np
import pytest

from cookbook.check.pipeline.regions import of_boxes
from cookbook.simulate import partitions
from cookbook.simulate.integers import _elements
from cookbook.simulate.lines import Line
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import PLAIN, UNKNOWN, Arith, Box, CannotFollow, Lay, Pointer, View, split
from cookbook.simulate.warp import Place, Warp

COMPACT = Lay((4, (2, 3)), (1, (4, 8)))


@pytest.mark.parametrize("index", range(-30, 60))
def test_an_index_of_a_compact_layout_is_its_offset(index):
    """Below 0 and behind the end too: the remainder of a division toward zero, and the last mode takes what is left."""
    assert COMPACT.offset(index) == index
    assert COMPACT.offset(split(COMPACT.shape, index)) == index


def test_what_is_not_known_stays_so():
    assert split((4, (2, 3)), UNKNOWN) == (UNKNOWN, (UNKNOWN, UNKNOWN))
    assert split((4, ("?", 3)), 9) == (1, (UNKNOWN, UNKNOWN))
    lanes = split((4, 8), np.arange(-3, 9))
    assert lanes[0].tolist() == [-3, -2, -1, 0, 1, 2, 3, 0, 1, 2, 3, 0] and lanes[1].tolist() == [0] * 7 + [1] * 4 + [2]
    assert COMPACT.offset((1, UNKNOWN)) is UNKNOWN and Pointer("smem", 16).moved(UNKNOWN).address is UNKNOWN


def test_of_each_box_a_cta_brings_its_part():
    """Two boxes of 64 elements, shared by two CTAs: the first half of each, not the first box."""
    tensor = View(Pointer("gmem", 0), Lay((128, 1), (1, 128)), 16)
    whole, half = (Box(tensor, (0, 1), (64, 1), PLAIN, parts) for parts in (1, 2))
    assert (whole.part, half.part) == ((64, 1), (32, 1))
    boxes = [((0, 0), 0), ((64, 0), 128)]
    assert of_boxes(half, boxes) == ((1 << 16) - 1 | ((1 << 16) - 1) << 32, 128)
    assert of_boxes(whole, boxes) == ((1 << 64) - 1, 256)


def test_a_coordinate_plus_nothing_is_itself():
    coordinate = Arith({(0,): 3})
    assert coordinate + np.zeros(32, np.int64) is coordinate and 0 + coordinate is coordinate
    with pytest.raises(CannotFollow):
        coordinate + np.arange(32)


def test_a_lane_has_two_neighbours_of_each_eight_columns_twice():
    """PTX ISA, "Matrix fragments" of 16x256b, twice in a row: (row, column) of a warp's tile of 16 x 16."""
    found = partitions.TENSOR.search("atom.tmem_load<f32, 16 DP, 256 bit, x2>")
    cells = partitions._cells(Lay((32, 4), (0, 1000)), np.arange(256), 1, found) - 1000
    rows, columns = cells // 16, cells % 16
    lane = np.arange(32)[:, None]
    assert (rows == lane // 4 + np.array([0, 0, 8, 8] * 2)).all()
    assert (columns == lane % 4 * 2 + np.array([0, 1, 0, 1, 8, 9, 8, 9])).all()


@pytest.mark.parametrize("vector", [np.arange(64).reshape(32, 2), UNKNOWN])
def test_a_vector_s_elements_are_results(vector):
    op = Operation("vector.to_elements", (0,), (1, 2), ("vector<2xi32>",), ("i32", "i32"), {}, Line())
    found = _elements(Warp(Place(*[(1, 1, 1)] * 3, (0, 0, 0), 0)), op, [vector])
    assert len(found) == 2
    for number, one in enumerate(found):
        assert one is UNKNOWN if vector is UNKNOWN else one.tolist() == list(range(number, 64, 2))
