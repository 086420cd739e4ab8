"""Orders of steps: warps down, time across, arrows from whoever is waited for."""

from __future__ import annotations

import pytest
from pictures import NS, found, label, parse

from cookbook import draw
from cookbook.draw import Moment, svg

MOMENTS = [
    Moment("warp 0", "write", "line 3", "memory", marked=True),
    Moment("warp 0", "arrive", "line 4", "barrier"),
    Moment("warp 1", "wait", "line 6", "barrier"),
    Moment("warp 1", "read", "line 7", "memory", marked=True, done=False),
]


def place(group):
    box = group.find(f"{NS}rect")
    return float(box.get("x")), float(box.get("y"))


def test_rows_are_warps_and_columns_are_time():
    picture = draw.interleaving(MOMENTS, "t", [(1, 2)], note="red: two")
    boxes = [found(picture, moment=n)[0] for n in range(4)]
    assert [label(box) for box in boxes] == ["write", "arrive", "wait", "read"]
    across, down = zip(*map(place, boxes), strict=True)
    assert list(across) == sorted(set(across)) and down[0] == down[1] < down[2] == down[3]
    frames = [[r.get("stroke") for r in box.iter(f"{NS}rect")][-1] == svg.CONFLICT for box in boxes]
    assert frames == [True, False, False, True]
    assert "f-empty" in boxes[3].find(f"{NS}rect").get("class", "") and len(found(picture, arrow="1 2")) == 1
    (head,) = found(picture, arrow="1 2")
    ends = head.find(f"{NS}polyline").get("points").split()
    assert float(ends[0].split(",")[0]) < float(ends[1].split(",")[0])
    assert "warp 1: read line 7" in parse(picture).find(f"{NS}desc").text


@pytest.mark.parametrize(
    "moments, arrows, needed",
    [
        ([], (), "needed 1 to 64"),
        ([Moment("w", "a", kind="none")], (), "got kind 'none'"),
        ([Moment("w", "a")], [(0, 1)], "arrows: got 1"),
    ],
)
def test_what_cannot_be_drawn_is_said(moments, arrows, needed):
    with pytest.raises(ValueError, match=needed):
        draw.interleaving(moments, "t", arrows)
