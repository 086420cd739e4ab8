"""Coordinates and layouts, as CuTe has them; and what a box of TMA covers."""

from __future__ import annotations

import numpy as np
import pytest

from cookbook.check.pipeline.regions import of_boxes
from cookbook.simulate.values import PLAIN, UNKNOWN, Box, Lay, Pointer, View, split

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
