"""Bit fields and matrices over GF(2)."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import (
    fills_of,
    found,
    labels_of,
    texts,
)

from cookbook import draw
from cookbook.draw import svg
from cookbook.swizzle import Swizzle


def test_bit_fields_put_each_bit_in_its_place():
    picture = draw.bit_fields([draw.Field("low", 0, 14, 64), draw.Field("mode", 62, 2, 1)])
    assert [label for bit in (0, 6, 62, 63) for label in labels_of(picture, bit=bit)] == ["0", "1", "1", "0"]
    assert len(found(picture, field="low")) == 14 and len(found(picture, field="")) == 48
    assert "the word is 0x4000000000000040" in texts(picture)
    assert labels_of(picture, says="mode") == ["mode = 1 (0b01), bits 62 to 63"]


@pytest.mark.parametrize("fields", [[("a", 0, 4, 16)], [("a", 0, 4, 1), ("b", 3, 2, 1)], [("a", 60, 5, 1)]])
def test_bit_fields_refuse_what_does_not_fit(fields):
    with pytest.raises(ValueError, match="fields: got"):
        draw.bit_fields([draw.Field(*f) for f in fields])


def test_gf2_matrix_marks_the_bank_rows():
    picture = draw.gf2_matrix(Swizzle(3, 0, 3).matrix(6), {0: "bank 0", 1: "bank 1", 2: "bank 2"}, asked=(3, 4, 5))
    assert [labels_of(picture, row=i) for i in (0, 3)] == [list("100100"), list("000100")]
    assert fills_of(picture, marked="bank 1") == [svg.GROUPS[0]] * 3 + [svg.GROUPS[1]] * 3
    assert {"bank 0", "bank 1", "bank 2"} <= set(texts(picture))


def test_gf2_matrix_refuses_what_is_no_bit_matrix():
    with pytest.raises(ValueError, match="matrix: got"):
        draw.gf2_matrix(np.full((2, 2), 2))
    with pytest.raises(ValueError, match="needed a row or column"):
        draw.gf2_matrix(np.eye(2, dtype=int), {2: "bank"})
