"""Benchmarks from made-up records: what is current is shown with its figures, and what is not is said to be missing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from dummy_records import record

from cookbook.measure import records
from cookbook.measure.bench import ALL_SIZES
from cookbook.recipe import catalog
from tools.publish import benchmarks

TUNED, RASTERS = "hopper/tuned_gemm", "foundations/thread_block_swizzle"
CUBE = (8192, 8192, 8192)


APART = "hopper/split_k_gemm"
OTHERS = (  # not at the ladder's shapes
    APART,
    "hopper/decode_gemm",
    "hopper/mixed_input_gemm",
    "hopper/pdl_chain",
    "hopper/gemv",
    "hopper/stream_k_gemm",
    "hopper/fp8_decode_gemm",
    "hopper/fused_epilogue_gemm",
    "hopper/swiglu_gemm",
)


def rows(markdown):
    """The cells of the tables' rows by their first cell, a link's text without its address."""
    lines = (line.strip().strip("|").split("|") for line in markdown.splitlines() if line.lstrip().startswith("|"))
    return {re.sub(r"\[`(.*)`\]\(.*\)", r"\1", line[0].strip()): [c.strip() for c in line[1:]] for line in lines}


def pictures(markdown):
    return [ET.fromstring(svg) for svg in re.findall(r"<figure[^>]*>(.*?)</figure>", markdown)]


def groups(picture, **data):
    found = (g for g in picture.iter("{http://www.w3.org/2000/svg}g"))
    return [g for g in found if all(g.get(f"data-{key}") == value for key, value in data.items())]


def texts(element):
    return [t.text for t in element.iter("{http://www.w3.org/2000/svg}text")]


# --- by size ----------------------------------------------------------------------------------------------------


def test_without_records_every_size_is_named_as_not_measured(tmp_path):
    shown = benchmarks.sizes(tmp_path)
    for name in benchmarks.tuned():
        assert f"(recipes/{name}.md)" in shown
    assert shown.count("| not measured |") == len(ALL_SIZES) * len(benchmarks.tuned())
    assert not pictures(shown) and "TFLOP/s" in shown


def test_size_shows_ours_its_peers_and_its_share_of_the_ceiling(tmp_path):
    records.write([record()], tmp_path)
    shown = rows(benchmarks.sizes(tmp_path).split("###")[1])
    assert shown["8192³"] == ["2,000 (1,800 to 2,500)", "550", "524 (1.050)", "500 (1.100)", "75.0%"]
    assert shown["512³"] == ["not measured", "", "", "", ""]
    assert "Test GPU, 2031-05-06, inputs normal(0, 1); torch 9.8, driver 1.2." in benchmarks.sizes(tmp_path)


def test_a_peer_that_was_left_out_is_named_as_not_timed(tmp_path):
    records.write([record(others={})], tmp_path)
    (speed,) = pictures(benchmarks.sizes(tmp_path))  # and no picture of shares
    assert rows(benchmarks.sizes(tmp_path).split("###")[1])["8192³"][-2:] == ["not timed", "not timed"]
    assert not groups(speed, line="quack") and groups(speed, line="torch.matmul")


def test_lines_are_of_cubes_and_say_what_the_table_says(tmp_path):
    shapes = [(512, 512, 512), CUBE, (4096, 4096, 4096), (64, 8192, 8192)]
    records.write([record(shape=shape) for shape in shapes], tmp_path)
    speed, share = pictures(benchmarks.sizes(tmp_path))
    for who, ms in ((TUNED, 2.0), ("torch.matmul", 2.1), ("quack", 2.2), ("ceiling", 1.5)):
        (line,) = groups(speed, line=who)
        points = {float(g.get("data-x")): float(g.get("data-y")) for g in line if g.get("data-x")}
        assert sorted(points) == [512, 4096, 8192]
        assert points[8192] == pytest.approx(2e-9 * 8192**3 / ms, rel=1e-3)
    (line,) = groups(share, line=TUNED)
    assert {float(g.get("data-y")) for g in line if g.get("data-y")} == {0.75}
    assert not groups(share, line="ceiling")


def test_growth_has_a_line_and_a_column_for_each_dimension(tmp_path):
    records.write(
        [record(shape=shape, ms=0.5) for shape in ((4096,) * 3, (8192, 4096, 4096), (4096, 4096, 1024))], tmp_path
    )
    shown = benchmarks.growth(tmp_path)
    of_tuned = rows(shown.split("###")[1])
    assert of_tuned["8192"] == ["500 (4.200)", "not measured", "not measured"]
    assert of_tuned["4096"] == ["500 (4.200)"] * 3 and of_tuned["1024"] == ["not measured"] * 2 + ["500 (4.200)"]
    (chart,) = pictures(shown)
    for letter, sizes in (("M", [4096, 8192]), ("N", [4096]), ("K", [1024, 4096])):
        (line,) = groups(chart, line=f"{letter} grows")
        assert sorted(float(g.get("data-x")) for g in line if g.get("data-x")) == sizes
    assert "8192 x 4096 x 4096" not in benchmarks.sizes(tmp_path)  # shown once


def test_growth_without_records_says_so(tmp_path):
    shown = benchmarks.growth(tmp_path)
    assert not pictures(shown) and shown.count("| not measured | not measured | not measured |") == 2 * 5


def test_other_shapes_and_own_variants(tmp_path):
    records.write([record(shape=(300, 200, 64), others={"a variant": 1.0})], tmp_path)
    shown = benchmarks.sizes(tmp_path)
    assert list(rows(shown.split("###")[1]))[-1] == "300 x 200 x 64" and "a variant" not in shown


def test_a_recipe_that_was_timed_beside_is_no_variant_of_ours():
    others = {"ampere/tuned_gemm": 1.0, "a variant": 1.5}
    timed = record(others=others, of={"ampere/tuned_gemm": records.code_of("ampere/tuned_gemm")})
    assert benchmarks.step([timed], timed["device"], CUBE).kernel == "a variant"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"code": "0" * 64}, "not measured since the code changed"),
        ({"status": "failed"}, "not measured since the code changed"),
        ({"dtype": "float16"}, "not measured"),
        ({"majors": "nt"}, "not measured"),
    ],
)
def test_what_is_not_current_is_never_shown(tmp_path, changed, said):
    records.write([record(**changed)], tmp_path)
    for shown in (benchmarks.sizes(tmp_path), benchmarks.ladder(tmp_path)):
        assert not pictures(shown) and not re.search(r"\b550\b|1\.050|2031", shown)
    assert rows(benchmarks.sizes(tmp_path).split("###")[1])["8192³"][0] == said
    assert rows(benchmarks.ladder(tmp_path))[TUNED][3] == said


def test_each_device_has_tables_of_its_own(tmp_path):
    records.write([record(), record(device="Other GPU", ms=1.0)], tmp_path)
    shown = benchmarks.sizes(tmp_path)
    assert shown.index("Other GPU, 2031") < shown.index("Test GPU, 2031")
    assert [p.find("{http://www.w3.org/2000/svg}title").text.split(", ")[-1] for p in pictures(shown)] == [
        *["Other GPU"] * 2,
        *["Test GPU"] * 2,
    ]
    assert "1100 |" in shown and "550 |" in shown


def test_a_gpu_after_the_first_has_rows_of_its_own_sizes_alone(tmp_path):
    small = (512, 512, 512)
    old = record(shape=small, device="A far GPU", code="0" * 64)
    records.write([record(), record("hopper/gemv"), record(device="A far GPU", ms=4.0), old], tmp_path)
    here, far = benchmarks.sizes(tmp_path).split("###")[1].split('=== "A far GPU"')
    assert here.count("| not measured |") == len(ALL_SIZES) - 1 and "| not measured since" not in here
    assert rows(here)["8192³"][1] == "550" and rows(far)["8192³"][1] == "275"
    assert [each for each in rows(far) if each[0].isdigit()] == ["512³", "8192³"]
    assert rows(far)["512³"][0] == benchmarks.OLD


def test_dimensions_grow_on_gpus_with_sizes_of_their_own(tmp_path):
    both = next(shape for shape in ALL_SIZES if shape in benchmarks.all_grown())
    grown = next(shape for shape in benchmarks.all_grown() if shape not in ALL_SIZES)
    records.write([record(shape=grown), record(shape=both, device="A far GPU")], tmp_path)
    assert "A far GPU" not in benchmarks.growth(tmp_path) and "Test GPU" in benchmarks.growth(tmp_path)


def test_first_gpu_is_said_to_be_stale_where_another_one_is_not(tmp_path):
    mine = [record(code="0" * 64), record("hopper/gemv")]  # records of two recipes: the first GPU
    records.write([*mine, record(device="A far GPU")], tmp_path)
    first, second = benchmarks.sizes(tmp_path).split('=== "A far GPU"')
    assert '=== "Test GPU"' in first and benchmarks.OLD in first and benchmarks.OLD not in second


def test_a_roof_and_its_points_are_of_one_gpu(tmp_path):
    figures = {"read": {"1024 MiB": {"gbps": 4000.0}}}
    read = record(benchmarks.MEMORY, level="ceiling", figures=figures) | {"shape": None}
    records.write([read, record(), record(device="Z GPU", others={"ceiling": 0.5})], tmp_path)
    svg = benchmarks.roofline(TUNED, tmp_path).svg
    assert "Test GPU" in svg and "4000 GB/s" in svg and "733.01 TFLOP/s" in svg  # at most 1.5 ms; Z GPU's is 0.5


def test_origin_spans_days_and_keeps_versions_apart():
    found = [record(), record(date="2031-05-04 00:00"), record(versions={"torch": "9.9"})]
    said = benchmarks.origin(found)
    assert "Test GPU, 2031-05-04 to 2031-05-06, inputs normal(0, 1); torch 9.8" in said
    assert "Test GPU, 2031-05-06, inputs normal(0, 1); torch 9.9" in said


# --- the ladder -------------------------------------------------------------------------------------------------


def test_step_is_its_best_kernel_against_torch_in_the_same_run(tmp_path):
    slow, fast = {"quack": 2.0, "ceiling": 1.0}, {"quack": 2.0, "ceiling": 1.0, "wide": 1.6, "narrow": 4.0}
    steps = [
        record("hopper/persistent_gemm", ms=2.0, torch_ms=2.0, others=slow),
        record("hopper/pingpong_gemm", ms=2.0, torch_ms=2.4, others=fast),  # another run, another clock
    ]
    records.write(steps, tmp_path)
    shown = benchmarks.ladder(tmp_path)
    table = rows(shown.split("### Ampere")[0])
    assert table["hopper/persistent_gemm"] == ["`multicast_gemm`", "not measured", "", "550 (1.000)", ""]
    assert table["hopper/pingpong_gemm"] == ["`persistent_gemm`", "not measured", "", "687 (1.500) `wide`", "1.50"]
    (picture,) = pictures(shown)
    (bar,) = groups(picture, name="pingpong_gemm")
    assert float(bar.get("data-value")) == 1.5 and texts(bar)[-1] == "1.500 (1.50x)"
    assert texts(groups(picture, name="persistent_gemm")[0])[-1] == "1.000"


def test_a_baseline_of_a_recipe_is_no_step_of_the_ladder(tmp_path):
    """`alone` shares nothing, so its time is none of a page about sharing, however fast it is."""
    name, of_page = "hopper/multicast_gemm", {"alone": 1.0, "2x2": 1.5}
    assert "alone" in catalog.find(name).baselines
    records.write([record(name, ms=2.0, torch_ms=2.0, others=of_page)], tmp_path)
    device, shape = records.read(tmp_path)[0]["device"], tuple(records.read(tmp_path)[0]["shape"])
    assert benchmarks.step(benchmarks.timed(name, tmp_path), device, shape).kernel == "2x2"


def test_the_step_before_is_what_a_recipe_builds_on():
    steps = benchmarks._steps("hopper")
    before = {r.name: getattr(benchmarks.before(r, steps), "name", None) for r in steps}
    assert before["hopper/tuned_gemm"] == "hopper/swap_ab_gemm"  # past the study that it imports
    assert before["hopper/tma_wgmma_gemm"] == "hopper/producer_warp_gemm" and before[steps[0].name] is None


def test_the_ladder_has_every_gemm_in_order(tmp_path):
    shown = benchmarks.ladder(tmp_path)
    named = re.findall(r"\[`(\w+/\w+)`\]\(recipes/\1\.md\)", shown)
    gemms = [
        r.name
        for track in ("hopper", "ampere")
        for r in catalog.recipes()
        if (r.track, r.product.of_one_product) == (track, True) and benchmarks.DTYPE in r.dtypes
    ]
    assert {shape for name in OTHERS for shape in catalog.find(name).bench_shapes}.isdisjoint(benchmarks.LADDER_SHAPES)
    assert named == [name for name in gemms if name not in OTHERS] and set(benchmarks.tuned()) <= set(named)


# --- made for other shapes --------------------------------------------------------------------------------------


def test_a_gemm_for_other_shapes_is_compared_with_torch(tmp_path):
    shape, *missing = catalog.find(APART).bench_shapes
    old = record(APART, missing[0], code="0" * 64)
    records.write([old, record(APART, shape, ms=0.01, torch_ms=0.015, others={TUNED: 0.03, "64x64": 0.02})], tmp_path)
    shown = benchmarks.apart(tmp_path)
    here = rows(shown[: shown.index(OTHERS[1])])
    assert here.pop(benchmarks.in_short(shape)) == ["10.00 (9.00 to 12.50)", "15.00 (1.500)", "30.00 (3.000)"]
    assert here.pop(benchmarks.in_short(missing[0])) == ["not measured since the code changed", "", ""]
    assert [cells for name, cells in here.items() if "x" in name or "³" in name][-1] == ["not measured", "", ""]
    (chart,) = pictures(shown)
    for name, times in ((APART, 1.5), (TUNED, 0.5)):
        (bar,) = groups(chart, name=name)
        assert float(bar.get("data-value")) == pytest.approx(times)
    assert not groups(chart, name="64x64")


def test_a_gemm_for_other_shapes_without_its_peers_or_records(tmp_path):
    empty = benchmarks.apart(tmp_path)
    shapes = catalog.find(APART).bench_shapes
    every = sum(len(catalog.find(name).bench_shapes) for name in OTHERS)
    assert not pictures(empty) and empty.count("| not measured |") == every
    records.write([record(APART, shapes[0], others={})], tmp_path)
    shown = benchmarks.apart(tmp_path)
    assert rows(shown[: shown.index(OTHERS[1])])[benchmarks.in_short(shapes[0])][-1] == "not timed"


def test_every_gemm_of_a_ladder_is_a_step_or_apart():
    apart = [r.name for r in benchmarks._made_for_others()]
    steps = [r.name for track in benchmarks.LADDERS for r in benchmarks._steps(track)]
    ours = [r for r in catalog.recipes() if r.track in benchmarks.LADDERS and r.product.is_gemm]
    gemms = [r.name for r in ours if benchmarks.DTYPE in r.dtypes and r.product.of_one_product]
    assert sorted(steps + apart) == sorted(gemms) and apart == list(OTHERS)


# --- rasters ----------------------------------------------------------------------------------------------------


def test_rasters_show_the_model_beside_the_counts(tmp_path):
    counts = {
        "row by row": {"read_bytes": 4e9, "predicted_bytes": 3e9, "l2_hit_rate": 0.5},
        "in groups": {"read_bytes": 2e9, "predicted_bytes": 1e9, "l2_hit_rate": 0.75},
    }
    name = RASTERS
    counted = record(name, level="counted", figures=counts, peers={})
    times = record(name, ms=2.0, torch_ms=2.1, others={})
    times["figures"]["name"] = "in groups"
    times["peers"] = {"row by row": times["peers"]["torch.matmul"]}
    records.write(
        [counted, times | {"of": {"hopper/tma_wgmma_gemm": records.code_of("hopper/tma_wgmma_gemm")}}], tmp_path
    )
    shown = benchmarks.rasters(tmp_path)
    assert rows(shown)["in groups"] == ["1.00", "2.00", "75.0%", "2,000 (1,800 to 2,500)", "550"]
    read, time = pictures(shown)
    assert [texts(g)[-1] for g in groups(read, group="in groups")] == ["1", "2, L2 hits 75%"]
    assert texts(groups(time, name="row by row")[0])[-1] == "523.6 (1.05)"  # the highlighted one over it


def test_rasters_of_another_code_are_not_shown(tmp_path):
    old = record(RASTERS, level="counted", code="0" * 64, figures={}, peers={})
    records.write([old], tmp_path)
    assert not pictures(benchmarks.rasters(tmp_path)) and "Not measured on the code as it is now" in benchmarks.rasters(
        tmp_path
    )
