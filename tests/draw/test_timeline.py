"""A pipeline over time: no stage overwritten, each tile once a row."""

from __future__ import annotations

import pytest
from pictures import (
    found,
    label,
)

from cookbook import draw
from cookbook.draw.timeline import schedule


def test_schedule_of_one_stage_never_overlaps():
    one = schedule(1, 4, load_time=3, math_time=2)
    assert [(s.load_start, s.math_start) for s in one] == [(0, 3), (5, 8), (10, 13), (15, 18)]
    many = schedule(4, 8, load_time=3, math_time=1)
    assert [s.math_start for s in many] == list(range(3, 11))


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_schedule_never_overwrites_a_stage_in_use(stages):
    steps = schedule(stages, 20, load_time=5, math_time=2)
    for step in steps:
        assert step.math_start >= step.load_end
        if step.tile >= stages:
            assert step.load_start >= steps[step.tile - stages].math_end


def test_pipeline_shows_each_tile_once_a_row():
    picture = draw.pipeline(3, 5)
    assert [label(g) for g in found(picture, what="load")] == [f"load {i}" for i in range(5)]
    assert [g.get("data-stage") for g in found(picture, what="stage")] == ["0", "1", "2", "0", "1"]
    assert [label(g) for g in found(picture, what="math")] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.pipeline(0, 4), ValueError, "stages: got 0"),
        (lambda: draw.pipeline(2, "4"), TypeError, "k_tiles: got '4'"),
        (lambda: draw.pipeline(2, 100), ValueError, "at most 32 and 64"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_barriers_show_the_schedule():
    steps = schedule(3, 8, 3, 2)
    picture = draw.barriers(3, 8, 3, 2)
    issued = [float(g.get("data-start")) for g in found(picture, lane="producer", kind="issues a load")]
    assert issued == [s.load_start for s in steps]
    read = found(picture, lane="consumer", kind="multiplies")
    spans = [(float(g.get("data-start")), float(g.get("data-end"))) for g in read]
    assert spans == [(s.math_start, s.math_end) for s in steps]
    for stage in range(3):
        read = [float(g.get("data-start")) for g in found(picture, lane=f"stage {stage}", kind="multiplies")]
        assert read == [s.math_start for s in steps if s.stage == stage]


def test_more_stages_take_less_time_until_the_math_never_waits():
    bars = [g for g in found(draw.stages_chart(32, 6, 2, 6)) if g.get("data-name")]
    times = {g.get("data-name"): float(g.get("data-value")) for g in bars}
    assert times["1 stage"] == 32 * 8 and times["math alone"] == 64
    shown = [times[f"{n} stages"] for n in (2, 3, 4, 5, 6)]
    assert shown == sorted(shown, reverse=True) and shown[2] == shown[3] == shown[4] == 64 + 6
