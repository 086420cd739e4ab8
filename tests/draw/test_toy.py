"""The toy transpose and the progress of a swizzle, frame by frame."""

from __future__ import annotations

import pytest
from pictures import (
    NS,
    found,
    labels,
    swizzled_transpose,
)

from cookbook import draw
from cookbook.draw.toy import transpose_steps


def test_transpose_steps_plain_and_swizzled():
    plain = transpose_steps(lambda r, t: (r, t), lambda i, t: (t, i))
    mended = transpose_steps(lambda r, t: (r, r ^ t), lambda i, t: (t, t ^ i))
    assert [s.wavefronts for s in plain] == [1] * 8 + [8] * 8
    assert [s.wavefronts for s in mended] == [1] * 16
    expected = tuple(tuple(c * 8 + r for c in range(8)) for r in range(8))
    assert plain[-1].output == mended[-1].output == expected


def test_toy_transpose_frame_shows_memory_and_turns():
    picture = swizzled_transpose(step=3)
    slots = sorted(found(picture, memory="s", row=3), key=lambda g: int(g.get("data-col")))
    assert labels(slots) == ["27", "26", "25", "24", "31", "30", "29", "28"]
    assert not found(picture, memory="s", row=4)
    assert labels(found(picture, memory="shared memory", row=4)) == [None] * 8
    assert "step 4 of 16: store row 3, 1 wavefront; 4 so far" in picture.svg


def test_toy_transpose_says_when_the_output_is_wrong():
    wrong = draw.toy_transpose(lambda r, t: (r, r ^ t), lambda i, t: (i, i ^ t), step=-1)
    assert "the output is wrong" in wrong.svg and "the output is the transpose" in swizzled_transpose().svg
    assert labels(found(wrong, memory="o", row=2)) == [str(16 + c) for c in range(8)]


def test_swizzle_progress_falls_by_one_a_row():
    picture = draw.swizzle_progress(lambda r, c: (r, r ^ c))
    assert [g.get("data-wavefronts") for g in found(picture) if g.get("data-panel")] == list("87654321")
    (last,) = found(picture, panel=7)
    slots = [g.get("data-slot") for g in last.iter(f"{NS}g") if g.get("data-col") == "0"]
    assert slots == list("01234567")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: swizzled_transpose(n=9), ValueError, "n: got 9"),
        (lambda: swizzled_transpose(step=16), ValueError, "step: got 16"),
        (lambda: draw.toy_transpose(lambda r, t: (r, 8), lambda i, t: (t, i)), ValueError, r"store: got \(0, 8\)"),
        (lambda: draw.swizzle_progress(lambda r, c: (r, c), column=8), ValueError, "n, column: got 8, 8"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
