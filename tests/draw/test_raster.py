"""The order of tiles: waves, and what they read."""

from __future__ import annotations

import pytest
from pictures import (
    found,
    texts,
)

from cookbook import draw


def test_tile_order_colours_a_wave_and_what_it_reads():
    order = [(m, n) for m in range(4) for n in range(6)]
    picture = draw.tile_order({"row-major": order}, wave=8, tile=(128, 256), show=1)
    assert [(g.get("data-m"), g.get("data-n")) for g in found(picture) if g.get("data-at")][:5] == [
        ("1", "2"),
        ("1", "3"),
        ("1", "4"),
        ("1", "5"),
        ("2", "0"),
    ]
    assert [g.get("data-read") for g in found(picture, panel="A")] == ["False", "True", "True", "False"]
    assert "256 + 1536 = 1792" in texts(picture)


def test_tile_order_refuses_one_that_misses_or_repeats_a_tile():
    for order in ([(0, 0), (1, 1)], [(0, 0), (0, 0)], []):
        with pytest.raises(ValueError, match=r"orders: got .* tiles in x"):
            draw.tile_order({"x": order})
    with pytest.raises(ValueError, match="wave, show"):
        draw.tile_order({"x": [(0, 0)]}, wave=1, show=1)
