"""Bars and lines: lengths, labels that do not touch, round ticks."""

from __future__ import annotations

import itertools

import pytest
from pictures import (
    BARS,
    NS,
    POINTS,
    found,
    parse,
)

from cookbook import draw
from cookbook.draw import charts, svg


def test_bar_chart_lengths_and_labels():
    ours, theirs = (found(draw.bar_chart(BARS), name=name)[0] for name in ("ours", "torch.matmul"))
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
    (bar,) = found(draw.bar_chart([draw.Bar("g", "n", 2.0, note="twice")], meaning="shorter is better"), name="n")
    assert [t.text for t in bar.iter(f"{NS}text")] == ["n", "twice"]
    assert "GB, shorter is better" in draw.bar_chart(BARS, "GB", meaning="shorter is better").svg


def test_a_phone_shows_what_a_bar_says_before_the_bar():
    for bar in found(draw.bar_chart(BARS)):
        name, said = bar.iter(f"{NS}text")
        begins = float(bar.find(f"{NS}rect").get("x"))
        assert float(name.get("x")) < float(said.get("x")) < begins - svg.text_width(said.text)


def test_line_chart_is_logarithmic_across_linear_up():
    picture = draw.line_chart(POINTS)
    (ours,) = found(picture, line="ours")
    place = {float(g.get("data-x")): g.find(f"{NS}rect") for g in ours if g.get("data-x")}
    x, y = ({size: float(rect.get(key)) for size, rect in place.items()} for key in "xy")
    assert x[1024] - x[512] == pytest.approx((x[4096] - x[1024]) / 2, abs=0.01)
    assert (y[512] - y[1024]) / 200 == pytest.approx((y[1024] - y[4096]) / 100, abs=0.01)
    labels = {t.text: t for t in parse(picture).iter(f"{NS}text")}
    assert {"512", "1024", "4096", "0", "100"} <= set(labels) and "2048" not in labels
    zero = float(labels["0"].get("y"))
    assert (zero - y[512] - 3) / 100 == pytest.approx((zero - y[4096] - 3) / 400, abs=0.01)


def test_line_chart_shows_spreads_and_greys_the_limit():
    ours, ceiling = (found(draw.line_chart(POINTS), line=name)[0] for name in POINTS)
    assert len(list(ours.iter(f"{NS}line"))) == 1 and not list(ceiling.iter(f"{NS}line"))
    assert ours.find(f"{NS}polyline").get("stroke") == charts.LINES[0]
    assert ceiling.find(f"{NS}polyline").get("class") == "s-soft"
    alone = draw.line_chart({"a": [draw.Point(64, 1)]})
    assert (
        not list(parse(alone).iter(f"{NS}polyline")) and len(found(alone, line="a")) == 1 and "strokes" not in alone.svg
    )


def test_a_line_joins_measured_points_only():
    lines = POINTS | {"peer": [draw.Point(512, 90), draw.Point(1024, 280), draw.Point(8192, 390)]}
    picture = draw.line_chart(lines | {"late": [draw.Point(1024, 3), draw.Point(8192, 4)]})
    ends = {
        name: [len(path.get("points").split()) for path in found(picture, line=name)[0].iter(f"{NS}polyline")]
        for name in ("ours", "peer", "late")
    }
    assert ends == {"ours": [3], "peer": [2], "late": []}  # nothing between 1024 and 8192, where ours has 4096
    assert len([g for g in found(picture, line="peer")[0] if g.get("data-x")]) == 3
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


def test_a_name_keeps_the_colour_that_it_is_given():
    given = {"ours": "#123456", "torch.matmul": "#654321"}
    for picture in (draw.bar_chart(BARS, colours=given), draw.line_chart(POINTS, colours=given)):
        assert "#123456" in picture.svg
    (bar,) = {group.find(f"{NS}rect").get("fill") for group in found(draw.bar_chart(BARS, colours=given), name="ours")}
    assert bar == "#123456"
    lines = {str(i): [draw.Point(64, 1)] for i in range(4)}
    drawn = draw.line_chart(lines, limit=None, colours={"3": "#d9700c"}).svg
    assert drawn.count("#2f7fd1") == 2 and drawn.count("#d9700c") == 2  # a square and its label: no second line has it


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.bar_chart([]), ValueError, "bars: got none"),
        (lambda: draw.bar_chart([("a", 1)]), TypeError, r"bars: got \[\('a', 1\)\]"),
        (lambda: draw.bar_chart([draw.Bar("g", "n", float("nan"))]), ValueError, "finite"),
        (lambda: draw.line_chart({}), ValueError, "lines: got 0"),
        (lambda: draw.line_chart({"a": []}), ValueError, "lines: got 1 of .0. points"),
        (lambda: draw.line_chart({"a": [draw.Point(0, 1)]}), ValueError, "lines: got .* in a; .* x positive"),
        (lambda: draw.line_chart({"a": [draw.Point(1, float("inf"))]}), ValueError, "finite"),
        (
            lambda: draw.bar_chart(BARS, colours={"ours": 'red"'}),
            ValueError,
            "colours: got 'red\"' for 'ours'; needed #",
        ),
        (
            lambda: draw.line_chart(POINTS, colours={"ours": "red"}),
            ValueError,
            "colours: got 'red' for 'ours'; needed #",
        ),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
