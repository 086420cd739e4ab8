"""TMA's box: the lines of shared memory are those that the model of TMA writes."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import found, label

from cookbook import draw
from cookbook.model import SharedMemory, tma_load


@pytest.mark.parametrize(("bits", "origin"), [(3, (8, 64)), (2, (0, 8)), (1, (10, 80)), (0, (3, 88))])
def test_memory_holds_what_the_model_of_tma_writes(bits, origin):
    box = (8, 8 << bits)
    picture = draw.tma_box((12, 96), origin, box, 16, bits)
    matrix = np.arange(1, 12 * 96 + 1, dtype=np.uint16).reshape(12, 96)
    smem = SharedMemory(1024)
    tma_load(smem, 0, matrix, origin=origin, box=box, mode=16 << bits if bits else 0)
    lines = smem.view(np.uint16)[: box[0] * box[1]].reshape(-1, 8, 8)[:, :, 0]  # (line, slot): first element
    for g in found(picture, where="memory"):
        held = int(lines[int(g.get("data-line")), int(g.get("data-slot"))])
        row, chunk = divmod(int(g.get("data-chunk")), 1 << bits)
        at = (origin[0] + row, origin[1] + 8 * chunk)
        inside = at[0] < 12 and at[1] < 96
        assert held == (matrix[at] if inside else 0)
        assert label(g) == (g.get("data-chunk") if inside else "0")
    assert len(found(picture, where="memory")) == 8 << bits


def test_the_box_is_framed_where_it_lies_and_zeros_are_outside():
    picture = draw.tma_box()
    assert len(found(picture, "rect", box="8,8")) == 1
    outside = [g for g in found(picture, where="matrix") if label(g) == "0" and int(g.get("data-row")) >= 12]
    assert len(outside) == 4 * 8


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"box": (8, 32)}, "box: got rows of 64 bytes; needed 128, the mode's width"),
        ({"box": (8, 24), "bits": 0}, "box: got rows of 48 bytes; needed 16, 32, 64 or 128"),
        ({"origin": (0, 4)}, "origin: got 4 columns; needed a multiple of 8"),
        ({"bits": 4}, "bits: got 4; needed"),
    ],
)
def test_boxes_that_tma_does_not_have_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        draw.tma_box(**given)
