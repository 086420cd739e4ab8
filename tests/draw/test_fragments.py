"""Who holds which element: thread-value layouts and ldmatrix."""

from __future__ import annotations

import pytest
from pictures import (
    fills_of,
    found,
    labels_of,
)

from cookbook import draw
from cookbook.draw.fragments import lane_holds
from cookbook.layouts import Layout


def test_tv_view_says_thread_and_value_of_each_element():
    picture = draw.tv_view(Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), (16, 8))
    assert labels_of(picture, row=5, col=4) == ["T22 V0"]
    assert labels_of(picture, row=13, col=5) == ["T22 V3"]
    assert len(found(picture, thread=22)) == 4


def test_tv_view_refuses_a_layout_that_leaves_elements_out():
    with pytest.raises(ValueError, match="each element of"):
        draw.tv_view(Layout((32, 2), (1, 32)), (16, 8))


def test_ldmatrix_view_along_k_and_m_with_and_without_trans():
    assert labels_of(draw.ldmatrix_view(), side="lane", lane=22) == ["T22: M5K4 M5K5"]
    assert labels_of(draw.ldmatrix_view(mn_major=True), side="lane", lane=22) == ["T22: M4K5 M5K5"]
    assert labels_of(draw.ldmatrix_view(mn_major=True, trans=True), side="lane", lane=22) == ["T22: M5K4 M5K5"]
    assert labels_of(draw.ldmatrix_view(mn_major=True), side="memory", row=5, col=4) == ["M4K5"]


def test_ldmatrix_view_colours_an_element_as_its_lanes():
    picture = draw.ldmatrix_view(mn_major=True, trans=True)
    assert fills_of(picture, side="memory", row=7, col=5) == fills_of(picture, side="lane", lane=20)


def test_lane_holds_every_element_once():
    for mn_major in (False, True):
        for trans in (False, True):
            assert len({tuple(mk) for mk in lane_holds(mn_major, trans).reshape(-1, 2).tolist()}) == 64
