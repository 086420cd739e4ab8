"""What a page's tables and bars say is what the records say, and what is stale or missing is marked."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from cookbook.measure import records
from cookbook.publish import colours, markdown, pages
from cookbook.recipe import catalog
from tools.publish import charts, oddities
from tools.records import device_code

NAME = "ampere/ldmatrix_gemm"


def record(shape=(4096, 4096, 4096), dtype="float16", ratio=0.5, **changed):
    """A timed record of 2 ms for ours; torch.matmul takes `ratio` times as long."""
    flops = 2e-9 * shape[0] * shape[1] * shape[2]

    def figures(ms):
        return {"median_ms": ms, "min_ms": 0.9 * ms, "max_ms": 1.25 * ms, "tflops": round(flops / ms, 2)}

    made = {
        "level": "timed",
        "recipe": NAME,
        "code": records.code_of(NAME),
        "dtype": dtype,
        "shape": list(shape),
        "status": "passed",
        "figures": figures(2.0) | {"ratio": ratio},
        "peers": {"torch.matmul": figures(2.0 * ratio) | {"ratio": ratio}},
        "distribution": "normal(0, 1)",
        "date": "2031-05-06 07:08",
        "device": "Test GPU",
        "driver": "1.2",
        "versions": {"torch": "9.8", "quack-kernels": None},
    }
    return made | changed


def rows(markdown):
    return [[c.strip() for c in line.strip("|").split("|")] for line in markdown.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(("ms", "us"), [(0.008712, "8.712"), (0.21237, "212.4"), (2.0, "2,000"), (12.346, "12,350")])
def test_times_are_microseconds_to_four_digits(ms, us):
    assert markdown.in_us(ms) == us


def test_no_record_says_not_measured(tmp_path):
    assert pages.results_table(NAME, root=tmp_path) == markdown.NOT_MEASURED
    assert charts.results_charts(NAME, tmp_path) == []
    assert {tuple(row[1:]) for row in rows(pages.checked_table(NAME, tmp_path))[2:]} == {("not measured", "", "")}


def test_current_record_shows_figures_peers_and_circumstances(tmp_path):
    records.write([record(), record((128, 128, 64), ratio=1.5)], tmp_path)
    shown = pages.results_table(NAME, root=tmp_path)
    small, large = rows(shown)[2:]
    assert small[0] == "128 x 128 x 64" and small[-1].endswith("(1.500)")
    assert large == ["4096 x 4096 x 4096", "float16", "2,000 (1,800 to 2,500)", "69", "137 (0.500)"]
    assert "Test GPU, 2031-05-06, inputs normal(0, 1); torch 9.8, driver 1.2" in shown
    assert "quack" not in shown and "tale" not in shown


def test_circumstances_are_said_once_with_all_their_days(tmp_path):
    other = record((256, 64, 64), date="2031-05-09 00:00", driver="1.3")
    records.write([record(), record((128, 64, 64), date="2031-05-04 00:00"), other], tmp_path)
    shown = pages.results_table(NAME, root=tmp_path)
    assert "Test GPU, 2031-05-04, 2031-05-06, inputs normal(0, 1); torch 9.8, driver 1.2." in shown
    assert "Test GPU, 2031-05-09, inputs normal(0, 1); torch 9.8, driver 1.3." in shown
    assert shown.count("inputs normal") == 2


def test_of_a_ceiling_ours_has_a_share(tmp_path):
    peers = record()["peers"]
    records.write([record(peers=peers | {"ceiling": peers["torch.matmul"]})], tmp_path)
    header, *_ = rows(pages.results_table(NAME, root=tmp_path))
    assert header[-2:] == ["torch.matmul, TFLOP/s (speed-up of ours)", "ceiling, TFLOP/s (share that ours has)"]


def test_variants_not_timed_at_every_size_have_their_table(tmp_path):
    peers = record()["peers"]
    with_variants = peers | {"128x256": peers["torch.matmul"]}
    records.write([record(peers=with_variants)], tmp_path)
    assert "128x256, TFLOP/s" in pages.results_table(NAME, root=tmp_path)
    records.write([record((128, 128, 64))], tmp_path)
    shown = pages.results_table(NAME, root=tmp_path)
    assert "128x256, TFLOP/s" not in shown and pages.BY_NAME in shown and "| 128x256 |" in shown


def test_the_hosts_cost_is_said_once_for_one_host(tmp_path):
    def costed(shape, date, ours, peer, host=None):
        made = record(shape, date=date, host=host or device_code.host_hash(NAME))
        made["figures"] |= {"host_us": ours, "host_new_us": ours + 2}
        made["peers"]["torch.matmul"] |= {"host_us": peer, "host_new_us": peer + 1}
        made["peers"]["ceiling"] = dict(record()["peers"]["torch.matmul"])
        return made

    dated = (((64, 64, 64), "2031-05-07 00:00", 4.04, 6.0), ((128, 64, 64), "2031-05-06 00:00", 9.0, 9.0))
    records.write([record(), *(costed(*each) for each in dated)], tmp_path)
    shown = pages.results_table(NAME, root=tmp_path)
    (line,) = (line for line in shown.splitlines() if "Host time" in line)
    assert line.endswith("preallocated `out` (without): ours 4.0 (6.0), torch.matmul 6.0 (7.0).")
    records.write([costed(*dated[0], host="0")], tmp_path)
    assert "ours 9.0 (11.0)" in pages.results_table(NAME, root=tmp_path)
    records.write([costed(*dated[1], host="0")], tmp_path)
    shown = pages.results_table(NAME, root=tmp_path)
    assert "Host time" not in shown and "Stale" not in shown  # the page on host times has the newest


def test_a_changed_hash_makes_a_record_stale_and_never_current(tmp_path):
    records.write([record(code="0123456789abcdef")], tmp_path)
    shown = pages.results_table(NAME, root=tmp_path)
    assert shown.index("has not been timed") < shown.index("Stale") < shown.index("4096 x 4096 x 4096")
    assert charts.results_charts(NAME, tmp_path) == []
    assert rows(pages.checked_table(NAME, tmp_path))[3][:2] == ["timed", "stale: the code has changed since"]


def test_current_and_stale_stand_apart(tmp_path):
    records.write([record(), record((256, 256, 256), code="0" * 64)], tmp_path)
    current, old = pages.results_table(NAME, root=tmp_path).split("**Stale")
    assert "4096 x 4096" in current and "256 x 256" not in current
    assert "256 x 256" in old and "4096 x 4096" not in old


def test_a_peer_that_was_not_timed_everywhere(tmp_path):
    alone = record((128, 128, 128), dtype="bfloat16", peers={})
    records.write([record(), alone], tmp_path)
    assert rows(pages.results_table(NAME, root=tmp_path))[2][-1] == "not timed"


def test_many_variants_have_a_table_to_themselves_and_no_bars(tmp_path):
    figures = record()["peers"]["torch.matmul"]
    names = [f"{i} of many" for i in range(pages.MANY)]
    several = record(peers={"torch.matmul": figures, "other/recipe": figures, **dict.fromkeys(names, figures)})
    records.write([several], tmp_path)
    shown = rows(pages.results_table(NAME, root=tmp_path))
    assert [row[0] for row in shown[4:]] == ["torch.matmul", "other/recipe", *names]

    several["peers"]["one more"] = figures
    records.write([several, record((80, 80, 80))], tmp_path)
    ours, variants = pages.results_table(NAME, root=tmp_path).split(pages.BY_NAME)
    peers = [cell.split(",")[0] for cell in rows(ours)[0][4:]]
    assert peers == ["torch.matmul", "other/recipe"] and len(rows(ours)) == 4
    header, _, first, *others = rows(variants)
    assert header == ["M x N x K, float16", "4096 x 4096 x 4096"] and first == ["ours", "2000.00"]
    assert [row[0] for row in others] == [*names, "one more"] and others[0][1] == "1000.00 (0.500)"


def test_a_table_of_too_many_columns_is_exchanged(tmp_path):
    figures = record()["peers"]["torch.matmul"]
    peers = {"torch.matmul": figures, "ceiling": figures, **{f"variant {i}": figures for i in range(7)}}
    records.write([record((n, n, n), peers=peers) for n in (128, 256, 512)], tmp_path)
    shown = pages.results_table(NAME, root=tmp_path)
    said = "Peers and variants in TFLOP/s; in brackets the speed-up of ours (of the ceiling: the share that ours has):"
    assert shown.startswith(f"{said}\n\n|")
    header, _, *body = rows(shown)
    assert header == ["M x N x K, float16", *(f"{n} x {n} x {n}" for n in (128, 256, 512))]
    assert [row[0] for row in body] == ["ours, µs (min to max)", "ours, TFLOP/s", *peers]
    assert body[2] == ["torch.matmul", *["137 (0.500)"] * 3]


def test_columns_beyond_the_screen_go_on_below():
    header = ["M", "dtype", *(f"peer {i}" for i in range(markdown.COLUMNS))]
    problems = [
        [f"{i}", "half" if i < 9 else "single", *(f"{i}.{j}" for j in range(markdown.COLUMNS))] for i in range(18)
    ]
    first, second = markdown.fitting(header, problems, about=2).split("\n\n")
    assert rows(first)[0] == ["M, half", *map(str, range(9))]
    assert rows(second)[0] == ["M, single", *map(str, range(9, 18))]
    assert rows(second)[2] == ["peer 0", *(f"{i}.0" for i in range(9, 18))]
    assert markdown.fitting(header[:-2], [each[:-2] for each in problems], 2).startswith("| M | dtype | peer 0 |")


def test_no_table_of_times_has_more_columns_than_fit():
    wide = {
        recipe.name: len(row)
        for recipe in catalog.recipes()
        for row in rows(pages.results_table(recipe.name))
        if len(row) > markdown.COLUMNS
    }
    assert wide == {}


def test_each_layout_stands_beside_its_tn(tmp_path):
    assert pages.beside_tn(NAME, tmp_path) == markdown.NOT_MEASURED
    small, large = (64, 64, 64), (128, 128, 128)
    timed = [record(large, majors=m, ratio=r) for m, r in (("tn", 1.25), ("nt", 0.75))] + [record(small, majors="nn")]
    timed[1]["figures"]["median_ms"] = 2.5
    records.write([*timed, record((256, 64, 64), majors="tn", code="0" * 64)], tmp_path)
    found = [row[1:] for row in rows(pages.beside_tn(NAME, tmp_path))[2:]]
    assert found[0] == ["64 x 64 x 64", "float16", "nn", "not timed", "0.500"]
    assert sorted(found[1:]) == [
        ["128 x 128 x 128", "float16", "nt", "0.800", "0.750"],
        ["128 x 128 x 128", "float16", "tn", "1.000", "1.250"],
    ]


def test_chart_draws_what_the_table_says(tmp_path):
    records.write([record()], tmp_path)
    (chart,) = charts.results_charts(NAME, tmp_path)
    root = ET.fromstring(chart.svg)
    bars = {g.get("data-name"): g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("data-name")}
    assert {name: float(g.get("data-value")) for name, g in bars.items()} == {"ours": 68.72, "torch.matmul": 137.44}
    labels = {name: [t.text for t in bar.iter("{http://www.w3.org/2000/svg}text")] for name, bar in bars.items()}
    assert labels == {"ours": ["ours", "68.72"], "torch.matmul": ["torch.matmul", "137.4 (0.50)"]}
    header, _, row = rows(pages.results_table(NAME, root=tmp_path))
    assert header[-1] == "torch.matmul, TFLOP/s (speed-up of ours)" and row[-1] == "137 (0.500)"


# --- several GPUs: "Other GPU" has records of two recipes, and is the first ------------------------------------------


def of_two_gpus(**changed):
    other = record(**changed, device="Other GPU", date="2031-06-01 00:00")
    other["figures"] |= {"median_ms": 4.0, "ratio": 2.0, "tflops": 34.0}
    return [record(**changed), other, record(recipe="ampere/smem_gemm", code="0", device="Other GPU")]


def each_gpu(table, root) -> dict[str, str]:
    """What a table function shows of each GPU."""
    parts: dict[str, str] = {}
    table(NAME, root, laid=lambda shown: parts.update(shown) or "")
    return parts


def test_each_gpu_has_a_table_with_its_own_columns_and_day(tmp_path):
    first, other, more = of_two_gpus()
    other["peers"]["wide"] = dict(other["peers"]["torch.matmul"])
    records.write([first, other, more], tmp_path)
    assert pages.results_table(NAME, tmp_path).startswith("Below, one after the other: Other GPU, Test GPU.")
    parts = each_gpu(pages.results_table, tmp_path)
    assert list(parts) == ["Other GPU", "Test GPU"]
    assert rows(parts["Other GPU"])[2][2].startswith("4,000 (") and "wide" in parts["Other GPU"]
    assert rows(parts["Test GPU"])[2][2].startswith("2,000 (") and "wide" not in parts["Test GPU"]
    assert "2031-06-01" in parts["Other GPU"] and "2031-05-06" not in parts["Other GPU"]
    assert "2031-05-06" in parts["Test GPU"] and "2031-06-01" not in parts["Test GPU"]


def test_a_stale_record_hides_no_current_one_of_another_gpu(tmp_path):
    first, other, more = of_two_gpus()
    records.write([first, other | {"code": "0" * 64}, more], tmp_path)
    parts = each_gpu(pages.results_table, tmp_path)
    assert "Stale" in parts["Other GPU"] and "Stale" not in parts["Test GPU"]


def test_bars_are_of_one_gpu(tmp_path):
    records.write(of_two_gpus(), tmp_path)
    slow, fast = 34.0, record()["figures"]["tflops"]
    for gpu, name, rate in (("", "Other GPU", slow), ("Other GPU", "Other GPU", slow), ("Test GPU", "Test GPU", fast)):
        (chart,) = charts.results_charts(NAME, tmp_path, gpu)
        (bar,) = re.findall(r'data-name="ours"[^>]*data-value="([\d.]+)"', chart.svg)
        assert name in chart.svg and float(bar) == pytest.approx(rate, abs=0.01)


def test_layouts_are_held_against_tn_on_the_same_gpu(tmp_path):
    found = [each | {"majors": "tn"} for each in of_two_gpus()[:2]]
    nt = record(majors="nt")
    nt["figures"]["median_ms"] = 1.0
    records.write([*found, nt], tmp_path)
    parts = each_gpu(pages.beside_tn, tmp_path)
    assert [row[3:5] for row in rows(parts["Test GPU"])[2:]] == [["nt", "2.000"], ["tn", "1.000"]]
    assert [row[0] for row in rows(parts["Other GPU"])[2:]] == ["Other GPU"]


def test_a_level_has_a_row_for_each_gpu_with_its_own_days(tmp_path):
    records.write(of_two_gpus(), tmp_path)
    timed = [row for row in rows(pages.checked_table(NAME, tmp_path)) if row[0] == "timed"]
    assert timed == [
        ["timed", "passed (1 record)", "Other GPU", "2031-06-01"],
        ["timed", "passed (1 record)", "Test GPU", "2031-05-06"],
    ]


def test_tabs_of_several_gpus_and_none_of_one():
    assert markdown.tabs({"A": "a\n\n* b", "B": "c"}) == '=== "A"\n\n    a\n\n    * b\n\n=== "B"\n\n    c'
    assert markdown.by_gpu({"A": "a"}) == markdown.tabs({"A": "a"}) == "a"
    assert markdown.by_gpu({}) == markdown.tabs({}) == ""


def test_checked_table_counts_failures(tmp_path):
    records.write([record(level="ran"), record((1, 1, 8), level="ran", status="failed")], tmp_path)
    assert rows(pages.checked_table(NAME, tmp_path))[2] == ["ran", "1 of 2 failed", "Test GPU", "2031-05-06"]


def test_fence_is_longer_than_what_it_holds():
    assert markdown.fence("a ```` b", "text") == "`````text\na ```` b\n`````"


def test_figure_holds_no_line_break():
    assert markdown.figure("<svg>\n\n<g/>\n</svg>") == '<figure class="picture"><svg> <g/> </svg></figure>'


def test_figure_says_how_wide_it_must_be_for_its_smallest_text():
    svg = '<svg xmlns="x" width="800" height="9"><text font-size="14">a</text><text font-size="10">b</text></svg>'
    assert f'style="--least:{800 * markdown.LEAST_TEXT / 10:.0f}px"' in markdown.figure(svg)


def test_bars_of_a_group_are_sorted_and_a_peer_has_one_colour(tmp_path):
    records.write([record(), record((128, 128, 128), ratio=1.5)], tmp_path)
    (chart,) = charts.results_charts(NAME, tmp_path)
    drawn = [g for g in ET.fromstring(chart.svg).iter("{http://www.w3.org/2000/svg}g") if g.get("data-name")]
    assert [(g.get("data-group"), g.get("data-name")) for g in drawn] == [
        ("128 x 128 x 128", "ours"),
        ("128 x 128 x 128", "torch.matmul"),
        ("4096 x 4096 x 4096", "torch.matmul"),  # the faster one there
        ("4096 x 4096 x 4096", "ours"),
    ]
    filled = {(g.get("data-name"), g.find("{http://www.w3.org/2000/svg}rect").get("fill")) for g in drawn}
    assert filled == {(name, colours.COLOURS[name]) for name in ("ours", "torch.matmul")}


def test_products_of_few_rows_are_shown_in_microseconds(tmp_path):
    records.write([record((16, 4096, 4096), ratio=1.5), record()], tmp_path)
    rates, times = charts.results_charts(NAME, tmp_path)
    assert "16 x 4096" not in rates.svg and "4096 x 4096 x 4096" not in times.svg
    assert "microseconds, shorter is faster" in times.svg and "3000.00 (1.50)" in times.svg
    large, small = pages.results_table(NAME, root=tmp_path).split("Products of 64 rows or fewer")
    assert "16 x 4096" not in large and "TFLOP/s" not in small
    ours = ["16 x 4096 x 4096", "float16", "2000.00 (1800.00 to 2500.00)"]
    assert rows(small)[2] == [*ours, "17", "3000.00 (1.500)"]  # 2 * 4096 * (16 + 4096) bytes in 2 ms


def test_what_few_rows_read_is_counted_in_each_operands_bits():
    for name, bits in ((NAME, (16, 16)), ("hopper/fp8_decode_gemm", (8, 8)), ("hopper/mixed_input_gemm", (16, 4))):
        assert pages.read_bytes(record((16, 4096, 512), recipe=name)) == 512 * (16 * bits[0] + 4096 * bits[1]) / 8
    for name in ("hopper/grouped_gemm", "hopper/back_to_back_gemm"):  # other matrices take part
        assert pages.read_bytes(record((16, 4096, 512), recipe=name)) == 0


def test_few_rows_have_a_ceiling_of_reading_alone():
    multiplied, read = (record((16, 4096, 4096), recipe=name) for name in (NAME, "hopper/gemv"))
    for each in (multiplied, read, large := record()):
        each["peers"] |= {"ceiling": each["peers"]["torch.matmul"]}
    assert "ceiling" not in pages.peers_shown(multiplied)
    assert "ceiling" in pages.peers_shown(read) and "ceiling" in pages.peers_shown(large)


def test_why_a_bar_is_odd_is_computed_from_the_shape(tmp_path):
    assert oddities.cut_rows((8191, 8191, 8192), "bfloat16") == {"C": 16382}
    assert oddities.cut_rows((8191, 8192, 8192), "bfloat16", "nt") == {"A": 16382}
    assert oddities.cut_rows((4096, 4096, 4096), "bfloat16") == {}
    said = oddities.explained([record((8191, 8191, 8192)), record((8191, 8191, 8192)), record()])
    assert said.count("8191 x 8191 x 8192") == 1 and "16382 bytes" in said and "4096" not in said
    assert oddities.explained([record((8191, 8191, 8192), peers={})]) == ""  # nothing there that is odd
    above = record(ratio=0.5)
    above["peers"]["ceiling"] = above["figures"] | {"ratio": 1.0}
    assert oddities.explained([above]) == oddities.ABOVE
    above["peers"]["ceiling"] = above["peers"]["torch.matmul"] | {"median_ms": 0.1}
    assert oddities.explained([above]) == ""


# --- sources ----------------------------------------------------------------------------------------------------


def test_sources_are_a_list_of_links(monkeypatch):
    from types import SimpleNamespace

    from cookbook.recipe.catalog import Source

    named = (Source("PTX ISA, ldmatrix", "https://a.b/c#d"), Source("An issue", "https://e.f/1"))
    monkeypatch.setattr(pages.catalog, "find", lambda name: SimpleNamespace(sources=named))
    assert pages.sources_list("x/y") == "* [PTX ISA, ldmatrix](https://a.b/c#d)\n* [An issue](https://e.f/1)"
    monkeypatch.setattr(pages.catalog, "find", lambda name: SimpleNamespace(sources=()))
    assert pages.sources_list("x/y") == ""


def test_a_bar_in_a_cell_does_not_end_it():
    """Whether or not it is escaped already."""
    assert markdown.table(["|x|", "of"], [["a | b", r"a \| b"]]).splitlines()[0::2] == [
        r"| \|x\| | of |",
        r"| a \| b | a \| b |",
    ]
