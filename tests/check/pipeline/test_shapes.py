"""Coordinates and parts of layouts, as CuTe has them."""

from __future__ import annotations

import numpy as np
import pytest

from cookbook.check.pipeline.programs import _part
from cookbook.check.pipeline.shapes import UNKNOWN, Lay, Pointer, View, region, split
from cookbook.swizzle import Swizzle

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


def test_of_each_box_a_cta_brings_its_part():
    """Two boxes of 64 elements, shared by two CTAs: the first half of each, not the first box."""
    layout = Lay(((64, 2), 1), ((1, 64), 0))
    whole = View(Pointer("smem", 0, base=0), layout, 16, Swizzle(0, 4, 3))
    part = _part(whole, 2)
    assert sorted(part.layout.offsets().tolist()) == [*range(32), *range(64, 96)] and part.bytes == 128
    assert region(part) == (1 << 16) - 1 | ((1 << 16) - 1) << 32
    assert _part(whole, 1) is whole
