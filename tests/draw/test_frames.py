"""Frames of animated pictures: one after another, and still where motion is not wanted."""

from __future__ import annotations

import re

import pytest
from pictures import (
    NS,
    found,
    parse,
    swizzled_transpose,
)

from cookbook import draw
from cookbook.draw import frames


def test_frames_obey_reduced_motion_and_work_without_style():
    picture = swizzled_transpose()
    shown = [g.get("data-frame") for g in found(picture) if g.get("data-frame") and g.get("opacity") != "0"]
    assert shown == ["15"]
    styles = [s.text for s in parse(picture).iter(f"{NS}style") if "@keyframes" in s.text]
    for style, name in zip(styles, ("ckb-16-1000", "ckf-16-1000"), strict=True):
        assert f"@media (prefers-reduced-motion:reduce){{.{name}{{animation:none!important}}}}" in style
        assert f".ckd:hover .{name}{{animation-play-state:paused}}" in style


def test_frames_follow_one_another_without_gap_or_overlap():
    parts = frames.animate(["<g/>"] * 5, seconds=2.0)
    delays = [float(re.search(r"animation-delay:(-\d+)s", part)[1]) for part in parts[1:]]
    assert delays == [-10, -8, -6, -4, -2]
    assert "animation:ckf-5-2000 10s step-end infinite" in parts[0] and "20%{opacity:0}" in parts[0]


def test_build_up_shows_each_part_from_its_step_on():
    style, *parts = frames.build_up(["<g/>"] * 4, seconds=1.0)
    starts = re.findall(r"@keyframes ckb-4-1000-\d\{(.*?)100%\{opacity:1\}\}", style)
    assert starts == ["0%{opacity:1}", *(f"0%{{opacity:0}}{p}%{{opacity:1}}" for p in (25, 50, 75))]
    assert "animation:4s step-end infinite" in style and not any("opacity" in part for part in parts)


def test_static_pictures_do_not_move():
    assert "@keyframes" not in draw.crossbar([0, 8]).svg + swizzled_transpose(step=3).svg


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: frames.animate([]), ValueError, "frames: got none"),
        (lambda: frames.animate(["<g/>"], seconds=0.1), ValueError, "seconds: got 0.1"),
        (lambda: frames.animate(["<g/>"], still=1), ValueError, "still: got 1"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
