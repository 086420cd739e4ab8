"""The pictures of banks, swizzles and the toy GPU: parsed, and read back cell by cell."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from cookbook import draw
from cookbook.draw import frames, svg
from cookbook.draw.crossbar import wavefronts
from cookbook.draw.toy import transpose_steps
from cookbook.layouts import Layout, SmemLayout
from cookbook.swizzle import Swizzle

NS = "{http://www.w3.org/2000/svg}"
INDEX = np.arange(64).reshape(8, 8)
SWIZZLED = Swizzle(3, 0, 3)(INDEX)
COLUMN = [(r, 0) for r in range(8)]


def parse(picture):
    return ET.fromstring(picture.svg)


def found(picture, tag="g", **wanted):
    return [
        g
        for g in parse(picture).iter(f"{NS}{tag}")
        if all(g.get(f"data-{k.replace('_', '-')}") == str(v) for k, v in wanted.items())
    ]


def labels(groups):
    return [g.find(f"{NS}text").text for g in groups]


def described(picture):
    return parse(picture).find(f"{NS}desc").text


def swizzled_transpose(**given):
    return draw.toy_transpose(lambda r, t: (r, r ^ t), lambda i, t: (t, t ^ i), **given)


# --- crossbar -------------------------------------------------------------------------------------------------


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


def test_crossbar_has_a_crosspoint_for_every_pair_and_closes_one_a_lane():
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


def test_animated_crossbar_has_a_frame_a_turn_with_the_lanes_it_serves():
    picture = draw.crossbar([0, 8, 3, 11, 16], animated=True)
    served = [
        [c.get("data-lane") for c in frame.iter(f"{NS}g") if c.get("data-lane")]
        for frame in parse(picture).iter(f"{NS}g")
        if frame.get("data-frame")
    ]
    assert served == [["0", "2"], ["1", "3"], ["4"]]


# --- frames ---------------------------------------------------------------------------------------------------


def test_frames_obey_reduced_motion_and_show_one_frame_without_style():
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


# --- grids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("label", "expected"), [("offset", "9"), ("byte", "36"), ("hex", "24"), ("bank", "1")])
def test_layout_grid_labels(label, expected):
    (cell,) = found(draw.layout_grid(SWIZZLED, banks=8, label=label), row=1, col=0)
    assert labels([cell]) == [expected]
    assert cell.find(f"{NS}rect").get("fill") == svg.GROUPS[1]


def test_layout_grid_takes_layouts_arrays_and_shared_memory_alike():
    smem = SmemLayout(Layout((8, 8), (8, 1)), Swizzle(3, 2, 3), 32)
    assert draw.layout_grid(smem, banks=8).svg == draw.layout_grid(SWIZZLED, banks=8).svg
    assert draw.layout_grid(Layout((8, 8), (8, 1))).svg == draw.layout_grid(INDEX).svg


def test_layout_grid_marks_an_access_and_its_conflicts():
    picture = draw.layout_grid(INDEX, banks=32, mark=COLUMN)
    assert "8 marked: 2 wavefronts" in described(picture)
    assert len(found(picture, "rect", state="conflict")) == 8
    rows = draw.layout_grid(INDEX, banks=32, mark=[(0, c) for c in range(8)])
    assert len(found(rows, "rect", state="free")) == 8


def test_before_after_says_what_the_column_costs_in_each():
    picture = draw.before_after(INDEX, SWIZZLED, banks=8, mark=COLUMN)
    assert described(picture) == "before: 8 marked: 8 wavefronts; after: 8 marked: 1 wavefront."
    after = [labels(found(picture, side="after", row=r)) for r in range(8)]
    assert ["".join(row) for row in after][:4] == ["01234567", "10325476", "23016745", "32107654"]
    assert {state.get("data-state") for state in found(picture, "rect", side="before") if state.get("data-state")} == {
        "conflict"
    }


# --- masks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("swizzle", "wires", "masks"),
    [
        (Swizzle(3, 2, 3), ["5->2", "6->3", "7->4"], "yyy mask 0xe0, zzz mask 0x1c, period 256"),
        (Swizzle(2, 1, -3), ["1->4", "2->5"], "yyy mask 0x6, zzz mask 0x30, period 64"),
        (Swizzle(0, 4, 3), [], "yyy mask 0x0, zzz mask 0x0, period 128"),
    ],
)
def test_swizzle_bits_wires_every_changed_bit(swizzle, wires, masks):
    picture = draw.swizzle_bits(swizzle)
    assert [g.get("data-xor") for g in found(picture) if g.get("data-xor")] == wires
    assert masks in described(picture)
    for wire in wires:
        source, bit = wire.split("->")
        assert labels(found(picture, side="out", bit=bit)) == [f"b{bit}^b{source}"]


def test_swizzle_bits_says_what_its_wiring_does():
    """Reading the picture back as a function of the bits gives the swizzle."""
    swizzle = Swizzle(3, 2, 4)
    said = {int(g.get("data-bit")): labels([g])[0] for g in found(draw.swizzle_bits(swizzle, n=10), side="out")}
    for offset in range(1024):
        out = 0
        for bit, text in said.items():
            for source in re.findall(r"b(\d+)", text):
                out ^= (offset >> int(source) & 1) << bit
        assert out == swizzle(offset)


def test_swizzle_bits_names_fields_from_the_lowest_bit():
    picture = draw.swizzle_bits(Swizzle(3, 2, 3), fields={"byte": 2, "column": 3, "row": 3})
    assert [g.get("data-field") for g in found(picture) if g.get("data-field")] == ["byte", "column", "row"]


# --- the toy GPU ----------------------------------------------------------------------------------------------


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


# --- all of them ----------------------------------------------------------------------------------------------

PICTURES = {
    "crossbar": lambda: draw.crossbar([0, 8, 3, 3]),
    "crossbar of 32": lambda: draw.crossbar(range(0, 1024, 32), banks=32),
    "crossbar animated": lambda: draw.crossbar([0, 8, 3, 3], animated=True),
    "layout_grid": lambda: draw.layout_grid(np.arange(32 * 33).reshape(32, 33)),
    "before_after": lambda: draw.before_after(INDEX, SWIZZLED, banks=8, mark=COLUMN),
    "swizzle_bits": lambda: draw.swizzle_bits(Swizzle(3, 4, 3), fields={"byte": 1, "column": 6, "row": 3}),
    "toy_transpose": swizzled_transpose,
    "toy_transpose step": lambda: swizzled_transpose(step=0, n=4),
    "swizzle_progress": lambda: draw.swizzle_progress(lambda r, c: (r, r ^ c)),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES)
def test_every_picture_is_described_inside_its_box_and_repeatable(make):
    root = parse(make())
    assert root.find(f"{NS}title").text and root.find(f"{NS}desc").text and make().svg == make().svg
    _, _, width, height = map(float, root.get("viewBox").split())
    for r in root.iter(f"{NS}rect"):
        assert float(r.get("x", 0)) >= 0 and float(r.get("x", 0)) + float(r.get("width")) <= width
        assert float(r.get("y", 0)) >= 0 and float(r.get("y", 0)) + float(r.get("height")) <= height
    for t in root.iter(f"{NS}text"):
        reach = svg.text_width(t.text or "", float(t.get("font-size")))
        left = float(t.get("x")) - {"start": 0, "middle": reach / 2, "end": reach}[t.get("text-anchor")]
        assert left >= 0 and left + reach <= width, t.text
        assert float(t.get("y")) < height


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.crossbar([]), ValueError, "words: got 0 lanes"),
        (lambda: draw.crossbar([-1]), ValueError, "words: got -1"),
        (lambda: draw.crossbar([1], banks=64), ValueError, "banks: got 64"),
        (lambda: wavefronts([1], 0), ValueError, "banks: got 0"),
        (lambda: draw.layout_grid(INDEX, label="x"), ValueError, "label: got 'x'"),
        (lambda: draw.layout_grid(INDEX, mark=[(8, 0)]), ValueError, r"mark: got \(8, 0\)"),
        (lambda: draw.layout_grid(INDEX[0]), ValueError, r"shape \(8,\)"),
        (lambda: draw.layout_grid(-INDEX), ValueError, "offsets >= 0"),
        (lambda: draw.layout_grid(INDEX, element_bits=4), ValueError, "element_bits: got 4"),
        (lambda: draw.layout_grid(np.zeros((100, 100), int)), ValueError, "10000 cells"),
        (lambda: draw.swizzle_bits("S<3,4,3>"), TypeError, "swizzle: got 'S<3,4,3>'"),
        (lambda: draw.swizzle_bits(Swizzle(3, 4, 3), n=9), ValueError, "n: got 9; needed 10"),
        (lambda: swizzled_transpose(n=9), ValueError, "n: got 9"),
        (lambda: swizzled_transpose(step=16), ValueError, "step: got 16"),
        (lambda: draw.toy_transpose(lambda r, t: (r, 8), lambda i, t: (t, i)), ValueError, r"store: got \(0, 8\)"),
        (lambda: draw.swizzle_progress(lambda r, c: (r, c), column=8), ValueError, "n, column: got 8, 8"),
        (lambda: frames.animate([]), ValueError, "frames: got none"),
        (lambda: frames.animate(["<g/>"], seconds=0.1), ValueError, "seconds: got 0.1"),
        (lambda: frames.animate(["<g/>"], still=1), ValueError, "still: got 1"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
