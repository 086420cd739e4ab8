import xml.etree.ElementTree as ET

import numpy as np
import pytest

from cookbook import draw

GROUP = "{http://www.w3.org/2000/svg}g"


def sums(stages=1, rows=128, columns=256):
    stage, m, n = np.indices((stages, rows, columns))
    return (m << 16) + n + columns * stage


def boxes(picture):
    return [g.attrib for g in ET.fromstring(picture.svg).iter(GROUP)]


def test_a_box_for_each_warp_and_piece():
    found = boxes(draw.tensor_memory(sums()[0], 32))
    assert len(found) == 4 * 8
    assert found[0]["data-rows"] == "0-31" and found[0]["data-columns"] == "0-31" and found[0]["data-lane"] == "0"
    last = found[-1]
    assert (last["data-rows"], last["data-columns"], last["data-lane"], last["data-cell"]) == (
        "96-127",
        "224-255",
        "96",
        "224",
    )


def test_stages_lie_side_by_side():
    picture = draw.tensor_memory(sums(2), 64)
    assert {(g["data-stage"], g["data-cell"]) for g in boxes(picture)} == {
        (str(stage), str(256 * stage + 64 * piece)) for stage in (0, 1) for piece in range(4)
    }
    assert "512 of 512 columns" in picture.svg and "2 tiles" in picture.svg


@pytest.mark.parametrize(
    ("addresses", "piece", "says"),
    [
        (sums(), 48, "of the piece, 48"),
        (sums(rows=100), 32, "M a multiple of 32"),
        (sums(3), 32, "needed 128 lanes, 512 columns"),
        (sums() & ~1, 32, "got one twice"),
        (sums()[:, np.arange(128) * 3 % 128], 32, "needed them in one rectangle"),
    ],
)
def test_what_does_not_lie_so_is_refused(addresses, piece, says):
    with pytest.raises(ValueError, match=says):
        draw.tensor_memory(addresses, piece)
