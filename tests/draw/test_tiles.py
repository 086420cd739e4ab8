"""The tiles of a GEMM: as many parts in each panel as the sizes have, and sizes that do not divide are refused."""

from __future__ import annotations

import pytest
from pictures import described, found, texts

from cookbook import draw


def test_panels_have_as_many_parts_as_the_sizes():
    picture = draw.gemm_tiles((512, 512, 256), (128, 128, 64), (2, 2), (16, 8, 16))
    assert len(found(picture, "rect", part="warp")) == 4
    assert len(found(picture, "rect", part="instruction")) == 4 * 8
    assert len([r for r in found(picture, "rect") if r.get("data-k-tile")]) == 2 * 4
    assert "4 x 4 CTA tiles, 4 k-tiles each" in described(picture)
    assert any("one warp: 64 x 64" in str(t) for t in texts(picture))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (((512, 512, 256), (96, 128, 64), (2, 2), (16, 8, 16)), "cta: got"),
        (((512, 512, 256), (128, 128, 64), (3, 2), (16, 8, 16)), "warps: got"),
        (((512, 512, 256), (128, 128, 64), (2, 2), (48, 8, 16)), "instruction: got"),
        (((512, 512, 256), (128, 128, 64), (0, 2), (16, 8, 16)), "warps: got 0"),
        (((65536, 512, 256), (128, 128, 64), (2, 2), (16, 8, 16)), "at most 64 of them"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        draw.gemm_tiles(*given)
