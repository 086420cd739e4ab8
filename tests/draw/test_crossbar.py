"""The toy GPU's crossbar: a crosspoint for each pair of lane and bank, a frame a wavefront."""

from __future__ import annotations

import pytest
from pictures import (
    NS,
    described,
    found,
    labels,
    parse,
)

from cookbook import draw
from cookbook.draw.crossbar import wavefronts


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([0, 1, 2, 3], [0, 0, 0, 0]),
        ([0, 8, 16, 24], [0, 1, 2, 3]),
        ([5, 5, 5, 13, 5], [0, 0, 0, 1, 0]),
        ([], []),
    ],
)
def test_turns(words, expected):
    assert wavefronts(words, 8) == expected


def test_crossbar_has_all_crosspoints_and_closes_one_a_lane():
    picture = draw.crossbar([9 * lane for lane in range(8)])
    assert len([r for r in parse(picture).iter(f"{NS}rect") if r.get("data-crosspoint")]) == 64
    assert [(g.get("data-lane"), g.get("data-bank")) for g in found(picture, state="free")] == [
        (str(lane), str(lane)) for lane in range(8)
    ]
    assert parse(picture).find(f"{NS}title").text == "8 lanes x 8 banks: 64 crosspoints, 1 wavefront"


def test_crossbar_of_32_lanes_in_one_bank_takes_32_turns():
    picture = draw.crossbar([32 * lane for lane in range(32)], banks=32)
    red = found(picture, state="conflict", bank=0)
    assert labels(red) == [str(wavefront) for wavefront in range(1, 33)]
    assert "1024 crosspoints" in described(picture)


def test_crossbar_shows_one_word_for_many_lanes_as_free():
    picture = draw.crossbar([3] * 8)
    assert len(found(picture, state="free", bank=3, wavefront=0)) == 8 and not found(picture, state="conflict")


def test_animated_crossbar_has_a_frame_a_wavefront():
    picture = draw.crossbar([0, 8, 3, 11, 16], animated=True)
    served = [
        [c.get("data-lane") for c in frame.iter(f"{NS}g") if c.get("data-lane")]
        for frame in parse(picture).iter(f"{NS}g")
        if frame.get("data-frame")
    ]
    assert served == [["0", "2"], ["1", "3"], ["4"]]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.crossbar([]), ValueError, "words: got 0 lanes"),
        (lambda: draw.crossbar([-1]), ValueError, "words: got -1"),
        (lambda: draw.crossbar([1], banks=64), ValueError, "banks: got 64"),
        (lambda: wavefronts([1], 0), ValueError, "banks: got 0"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
