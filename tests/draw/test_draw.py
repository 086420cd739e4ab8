"""The pictures say what they should: every test parses the SVG and reads labels, counts and colours back."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest

from cookbook import draw
from cookbook.access import Access
from cookbook.draw import charts, svg
from cookbook.draw.accesses import lanes_by_bank
from cookbook.draw.layouts import chunk_by_slot
from cookbook.draw.timeline import schedule

NS = "{http://www.w3.org/2000/svg}"


class Tile:
    """A row-major (rows, cols) tile in the smallest form the pictures read: byte XOR written out here by hand."""

    def __init__(self, rows, cols, bits, element_bits=16, mn_major=False, stages=None):
        index = np.arange(rows * cols).reshape(rows, cols)
        if mn_major:
            index = np.arange(rows * cols).reshape(cols, rows).T
        if stages:
            index = index[..., None] + rows * cols * np.arange(stages)
        self.element_bits, self._index, self._bits = element_bits, index, bits
        self.outer = SimpleNamespace(table=lambda: index)
        self.swizzle = SimpleNamespace(bits=bits, base=4, shift=3)

    def byte_offsets(self):
        plain = self._index * (self.element_bits // 8)
        return plain ^ ((plain >> 3) & (((1 << self._bits) - 1) << 4))


def parse(picture):
    return ET.fromstring(picture.svg)


def cells(picture, **wanted):
    found = []
    for g in parse(picture).iter(f"{NS}g"):
        if all(g.get(f"data-{k.replace('_', '-')}") == str(v) for k, v in wanted.items()):
            found.append(g)
    return found


def label(g):
    return g.find(f"{NS}text").text


def fill(g):
    return g.find(f"{NS}rect").get("fill")


SW128 = Tile(8, 64, 3)


def test_element_1_0_of_k_sw128_bf16_is_at_byte_144():
    picture = draw.bank_grid(SW128)
    (cell,) = cells(picture, row=1, col=0)
    assert (label(cell) or "", cell.get("data-byte")) == ("144", "144")
    assert fill(cell) == svg.GROUPS[1]


def test_bank_grid_has_one_cell_a_chunk_and_a_column_of_eight_colours():
    picture = draw.bank_grid(SW128)
    assert len([g for g in cells(picture) if g.get("data-row")]) == 64
    column = [fill(g) for g in cells(picture, col=0)]
    assert sorted(column) == sorted(svg.GROUPS)


def test_bank_grid_without_swizzle_shows_the_conflict():
    column = cells(draw.bank_grid(Tile(8, 64, 0)), col=8)
    assert [label(g) for g in column] == [str(16 + 128 * r) for r in range(8)]
    assert {fill(g) for g in column} == {svg.GROUPS[1]}


@pytest.mark.parametrize(("what", "expected"), [("byte", "144"), ("chunk", "9"), ("bank", "4")])
def test_bank_grid_labels(what, expected):
    (cell,) = cells(draw.bank_grid(SW128, label=what), row=1, col=0)
    assert label(cell) == expected


def test_bank_grid_by_element_and_cropped():
    picture = draw.bank_grid(SW128, rows=2, cols=9, unit="element")
    got = [label(g) for g in cells(picture, row=1)]
    assert got == [str(144 + 2 * i) for i in range(8)] + ["128"]
    assert len([g for g in cells(picture) if g.get("data-row")]) == 18


def test_bank_grid_draws_an_mn_major_tile_along_its_contiguous_mode():
    picture = draw.bank_grid(Tile(64, 8, 3, mn_major=True), axes=("M", "K"))
    assert [label(g) for g in cells(picture, row=1)][:2] == ["144", "128"]
    assert "K \\ M" in [t.text for t in parse(picture).iter(f"{NS}text")]


def test_bank_grid_draws_the_first_stage():
    assert draw.bank_grid(Tile(8, 64, 3, stages=3)).svg == draw.bank_grid(SW128).svg


@pytest.mark.parametrize("line", range(8))
def test_swizzle_view_of_sw128_slot_p_of_line_r_holds_chunk_8r_plus_p_xor_r(line):
    picture = draw.swizzle_view(SW128)
    assert [label(g) for g in cells(picture, side="swizzled", line=line)] == [
        str(8 * line + (p ^ line)) for p in range(8)
    ]
    assert [label(g) for g in cells(picture, side="plain", line=line)] == [str(8 * line + p) for p in range(8)]


@pytest.mark.parametrize(
    ("cols", "bits", "expected"),
    [
        (16, 1, "0 1 2 3 4 5 6 7 | 9 8 11 10 13 12 15 14"),
        (
            32,
            2,
            "0 1 2 3 4 5 6 7 | 9 8 11 10 13 12 15 14 | 18 19 16 17 22 23 20 21 | 27 26 25 24 31 30 29 28",
        ),
    ],
)
def test_swizzle_view_of_the_narrower_modes(cols, bits, expected):
    picture = draw.swizzle_view(Tile(8, cols, bits))
    count = expected.count("|") + 1
    lines = [" ".join(label(g) for g in cells(picture, side="swizzled", line=r)) for r in range(count)]
    assert " | ".join(lines) == expected


def test_swizzle_view_keeps_a_chunks_colour():
    picture = draw.swizzle_view(SW128)
    for chunk in (0, 9, 63):
        plain, moved = cells(picture, chunk=chunk)
        assert fill(plain) == fill(moved) == svg.GROUPS[chunk % 8]


def test_chunk_by_slot_marks_gaps():
    assert chunk_by_slot(np.array([0, 48, 128])).tolist() == [[0, -1, -1, 1, -1, -1, -1, -1], [2] + [-1] * 7]


def ask(addresses, width, kind="test"):
    return Access(np.asarray(addresses, dtype=np.int64), width, kind)


def test_access_view_of_a_row_is_free():
    picture = draw.access_view(ask(4 * np.arange(32), 4))
    assert not cells(picture, state="conflict")
    assert [label(g) for g in cells(picture, state="free")] == [str(i) for i in range(32)]


def test_access_view_of_a_column_is_32_way_in_one_bank():
    picture = draw.access_view(ask(128 * np.arange(32), 4))
    red = cells(picture, state="conflict")
    assert len(red) == 32
    assert {g.get("data-bank") for g in red} == {"0"}
    assert {fill(g) for g in red} == {svg.CONFLICT}
    assert parse(picture).find(f"{NS}desc").text == "wavefronts: 32, ideal 1, excess 31."


def test_access_view_of_a_broadcast_is_free():
    picture = draw.access_view(ask(np.zeros(32), 4))
    (served,) = cells(picture, state="free")
    assert (label(served), served.get("data-lanes")) == ("0+", " ".join(map(str, range(32))))


@pytest.mark.parametrize(("bits", "red", "actual"), [(3, 0, 4), (0, 4 * 32, 32)])
def test_access_view_of_ldmatrix_rows(bits, red, actual):
    """Lane l gives row l mod 8 of matrix l // 8: the four matrices lie side by side in an 8 x 64 bf16 tile."""
    lane = np.arange(32)
    rows = Tile(8, 64, bits).byte_offsets()[lane % 8, lane // 8 * 8]
    picture = draw.access_view(ask(rows, 16, "ldmatrix"))
    assert len(cells(picture, state="conflict")) == red
    assert f"wavefronts: {actual}, ideal 4" in parse(picture).find(f"{NS}desc").text
    assert {g.get("data-phase") for g in cells(picture) if g.get("data-phase")} == {"0", "1", "2", "3"}


def test_lanes_by_bank_leaves_out_inactive_lanes_and_splits_wide_ones():
    (phase,) = lanes_by_bank(np.array([-1, 4] + [-1] * 30), 4)
    assert phase == {1: {1: [1]}}
    halves = lanes_by_bank(8 * np.arange(32), 8)
    assert [len(p) for p in halves] == [32, 32] and halves[1][0] == {32: [16]}


def test_schedule_with_one_stage_never_overlaps_and_with_enough_never_waits():
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
    assert [label(g) for g in cells(picture, what="load")] == [f"load {i}" for i in range(5)]
    assert [g.get("data-stage") for g in cells(picture, what="stage")] == ["0", "1", "2", "0", "1"]
    assert [label(g) for g in cells(picture, what="math")] == ["0", "1", "2", "3", "4"]


BARS = [draw.Bar("4096^3 bf16", "ours", 400.0, 390, 410), draw.Bar("4096^3 bf16", "torch.matmul", 500.0)]


def test_bar_chart_lengths_and_labels():
    ours, theirs = (cells(draw.bar_chart(BARS), name=name)[0] for name in ("ours", "torch.matmul"))
    width = [float(g.find(f"{NS}rect").get("width")) for g in (ours, theirs)]
    assert width[0] / width[1] == pytest.approx(0.8, abs=1e-3)
    assert [t.text for t in ours.iter(f"{NS}text")] == ["ours", "400"]
    assert [t.text for t in theirs.iter(f"{NS}text")] == ["torch.matmul", "500 (0.80)"]  # above 1 ours is faster
    assert "in brackets: ours / it" in draw.bar_chart(BARS).svg
    assert "brackets" not in draw.bar_chart(BARS, ratios=False).svg and "(0.80)" not in draw.bar_chart(BARS[1:]).svg
    assert not list(theirs.iter(f"{NS}line"))
    spread = [tuple(float(part.get(end)) for end in ("x1", "x2")) for part in ours.iter(f"{NS}line")]
    left, per_unit = float(ours.find(f"{NS}rect").get("x")), width[0] / 400
    ends = [(x - left) / per_unit for part in spread for x in part]
    assert ends == pytest.approx([390, 400, 400, 410], abs=0.1)
    assert [part.get("class") for part in ours.iter(f"{NS}line")] == [None, "s-ink"]  # dark on the bar, ink beyond it


def test_a_bar_may_say_something_of_its_own():
    (bar,) = cells(draw.bar_chart([draw.Bar("g", "n", 2.0, note="twice")], meaning="shorter is better"), name="n")
    assert [t.text for t in bar.iter(f"{NS}text")] == ["n", "twice"]
    assert "GB, shorter is better" in draw.bar_chart(BARS, "GB", meaning="shorter is better").svg


POINTS = {
    "ours": [draw.Point(1024, 300, 250, 330), draw.Point(512, 100), draw.Point(4096, 400)],
    "ceiling": [draw.Point(512, 450), draw.Point(1024, 450), draw.Point(4096, 450)],
}


def test_line_chart_is_logarithmic_across_and_linear_from_zero_up():
    picture = draw.line_chart(POINTS)
    (ours,) = cells(picture, line="ours")
    place = {float(g.get("data-x")): g.find(f"{NS}rect") for g in ours if g.get("data-x")}
    x, y = ({size: float(rect.get(key)) for size, rect in place.items()} for key in "xy")
    assert x[1024] - x[512] == pytest.approx((x[4096] - x[1024]) / 2, abs=0.01)
    assert (y[512] - y[1024]) / 200 == pytest.approx((y[1024] - y[4096]) / 100, abs=0.01)
    labels = {t.text: t for t in parse(picture).iter(f"{NS}text")}
    assert {"512", "1024", "4096", "0", "100"} <= set(labels) and "2048" not in labels
    zero = float(labels["0"].get("y"))
    assert (zero - y[512] - 3) / 100 == pytest.approx((zero - y[4096] - 3) / 400, abs=0.01)


def test_line_chart_shows_spreads_and_greys_the_limit():
    ours, ceiling = (cells(draw.line_chart(POINTS), line=name)[0] for name in POINTS)
    assert len(list(ours.iter(f"{NS}line"))) == 1 and not list(ceiling.iter(f"{NS}line"))
    assert ours.find(f"{NS}polyline").get("stroke") == charts.LINES[0]
    assert ceiling.find(f"{NS}polyline").get("class") == "s-soft"
    alone = draw.line_chart({"a": [draw.Point(64, 1)]})
    assert (
        not list(parse(alone).iter(f"{NS}polyline")) and len(cells(alone, line="a")) == 1 and "strokes" not in alone.svg
    )


def test_a_line_joins_measured_points_only():
    lines = POINTS | {"peer": [draw.Point(512, 90), draw.Point(1024, 280), draw.Point(8192, 390)]}
    picture = draw.line_chart(lines | {"late": [draw.Point(1024, 3), draw.Point(8192, 4)]})
    ends = {
        name: [len(path.get("points").split()) for path in cells(picture, line=name)[0].iter(f"{NS}polyline")]
        for name in ("ours", "peer", "late")
    }
    assert ends == {"ours": [3], "peer": [2], "late": []}  # nothing between 1024 and 8192, where ours has 4096
    assert len([g for g in cells(picture, line="peer")[0] if g.get("data-x")]) == 3
    assert "gap: not timed there" in picture.svg and "gap" not in draw.line_chart(POINTS).svg


@pytest.mark.parametrize("sizes", [(512, 768, 1024, 1280, 1536, 1600, 1792, 2048, 2304, 3072, 4096, 16384), (7, 8, 9)])
def test_labels_of_sizes_do_not_touch(sizes):
    picture = draw.line_chart({"ours": [draw.Point(size, 1) for size in sizes]})
    labels = [t for t in parse(picture).iter(f"{NS}text") if t.text in {str(size) for size in sizes}]
    spans = sorted((float(t.get("x")), len(t.text) * 0.6 * 12) for t in labels)
    assert all(x1 - w1 / 2 - (x0 + w0 / 2) > 2 for (x0, w0), (x1, w1) in itertools.pairwise(spans))
    kept = {int(t.text) for t in labels}
    assert {sizes[0], sizes[-1]} <= kept and {size for size in sizes if size & (size - 1) == 0} <= kept


def test_names_at_the_ends_of_lines_do_not_touch():
    same = {name: [draw.Point(8, 5)] for name in "abcdef"}
    heights = sorted(float(t.get("y")) for t in parse(draw.line_chart(same)).iter(f"{NS}text") if t.text in same)
    assert len(heights) == 6 and min(b - a for a, b in itertools.pairwise(heights)) >= 15.99


@pytest.mark.parametrize("card", ["#ffffff", "#1e2127"])
def test_lines_stand_out_from_both_cards(card):
    """WCAG's contrast ratio of at least 3 for graphics."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for colour in charts.LINES:
        dark, light = sorted((luminance(colour), luminance(card)))
        assert (light + 0.05) / (dark + 0.05) >= 3, colour


@pytest.mark.parametrize("top", [0.004, 0.93, 1.0, 1.05, 7.9, 787, 1000, 31000])
def test_ticks_are_round_few_and_reach_the_top(top):
    ticks = charts._ticks(top)
    assert ticks[0] == 0 and ticks[-2] < top <= ticks[-1] * (1 + 1e-9) and 5 <= len(ticks) <= 10
    assert all(len(f"{t:g}".replace(".", "").strip("0")) <= 3 for t in ticks)


PICTURES = {
    "bank_grid": lambda: draw.bank_grid(SW128),
    "swizzle_view": lambda: draw.swizzle_view(SW128),
    "access_view": lambda: draw.access_view(ask(4 * np.arange(32), 4)),
    "pipeline": lambda: draw.pipeline(3, 5),
    "bar_chart": lambda: draw.bar_chart(BARS, title="A < B & C"),
    "line_chart": lambda: draw.line_chart(POINTS, title="A < B & C"),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES)
def test_every_picture_is_named_described_inside_its_box_and_repeatable(make):
    root = parse(make())
    ids = [root.find(f"{NS}title").get("id"), root.find(f"{NS}desc").get("id")]
    assert root.get("role") == "img" and root.get("aria-labelledby").split() == ids
    assert root.find(f"{NS}title").text and root.find(f"{NS}desc").text
    assert make().svg == make().svg == make()._repr_svg_() == str(make())
    _, _, width, height = map(float, root.get("viewBox").split())
    for r in root.iter(f"{NS}rect"):
        assert float(r.get("x", 0)) + float(r.get("width")) <= width
        assert float(r.get("y", 0)) + float(r.get("height")) <= height
    for t in root.iter(f"{NS}text"):
        reach = svg.text_width(t.text or "", float(t.get("font-size")))
        left = float(t.get("x")) - {"start": 0, "middle": reach / 2, "end": reach}[t.get("text-anchor")]
        assert left >= 0 and left + reach <= width, t.text


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES)
def test_every_picture_recolours_its_card_and_ink_for_dark_pages(make):
    style = parse(make()).find(f"{NS}style").text
    assert "prefers-color-scheme:dark" in style and "[data-md-color-scheme=slate] .ckd .f-card{fill:#1e2127}" in style
    card = parse(make()).find(f"{NS}rect")
    assert (card.get("class"), card.get("fill")) == ("f-card", "#ffffff")


def test_save_writes_the_document(tmp_path):
    path = draw.bank_grid(SW128).save(tmp_path / "x.svg")
    assert ET.parse(path).getroot().tag == f"{NS}svg"
    with pytest.raises(ValueError, match=r"path: got .*x\.png.*\.svg"):
        draw.bank_grid(SW128).save(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.bank_grid(3), TypeError, "smem_layout: got int"),
        (lambda: draw.bank_grid(SW128, rows=0), ValueError, "rows: got 0"),
        (lambda: draw.bank_grid(SW128, cols=1.5), TypeError, "cols: got 1.5"),
        (lambda: draw.bank_grid(SW128, unit="page"), ValueError, "unit: got 'page'"),
        (lambda: draw.bank_grid(SW128, label="x"), ValueError, "label: got 'x'"),
        (lambda: draw.bank_grid(SW128, axes=("M",)), ValueError, "axes: got"),
        (lambda: draw.bank_grid(Tile(8, 64, 3, element_bits=4)), ValueError, "elements of 4 bits"),
        (lambda: draw.bank_grid(Tile(256, 64, 3), rows=None, unit="element"), ValueError, "16384 cells"),
        (lambda: draw.bank_grid(Tile(8, 6, 0)), ValueError, "keeps no 16 bytes"),
        (lambda: draw.swizzle_view(Tile(8, 6, 0)), ValueError, "keeps no 16 bytes"),
        (lambda: draw.swizzle_view(SW128, lines=-1), ValueError, "lines: got -1"),
        (lambda: draw.access_view([0] * 32), TypeError, "access: got list of 32 items"),
        (lambda: draw.access_view(ask(np.zeros(8, int), 4)), ValueError, r"access.addresses: got shape \(8,\)"),
        (lambda: draw.access_view(ask(np.zeros(32, int), 3)), ValueError, "access.width: got 3"),
        (lambda: draw.pipeline(0, 4), ValueError, "stages: got 0"),
        (lambda: draw.pipeline(2, "4"), TypeError, "k_tiles: got '4'"),
        (lambda: draw.pipeline(2, 100), ValueError, "at most 32 and 64"),
        (lambda: draw.bar_chart([]), ValueError, "bars: got none"),
        (lambda: draw.bar_chart([("a", 1)]), TypeError, r"bars: got \[\('a', 1\)\]"),
        (lambda: draw.bar_chart([draw.Bar("g", "n", float("nan"))]), ValueError, "finite"),
        (lambda: draw.line_chart({}), ValueError, "lines: got 0"),
        (lambda: draw.line_chart({"a": []}), ValueError, "lines: got 1 of .0. points"),
        (lambda: draw.line_chart({"a": [draw.Point(0, 1)]}), ValueError, "lines: got .* in a; .* x positive"),
        (lambda: draw.line_chart({"a": [draw.Point(1, float("inf"))]}), ValueError, "finite"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
