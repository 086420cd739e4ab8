"""The ladders as one story: every step is told, no figure is typed, and what the prose says is what came out."""

from __future__ import annotations

import re

import executed
import nbformat
import pytest
from dummy_records import record
from not_timed import NOT_YET

from cookbook.measure import records
from cookbook.publish import gains
from cookbook.recipe import catalog
from tools.publish import benchmarks, ladders, story

PAGE = catalog.recipes_root().parent / "docs" / "story.md"
TEXT = PAGE.read_text(encoding="utf-8")
FIRST, NEXT, MULTICAST = "hopper/first_gemm", "hopper/swizzled_gemm", "hopper/multicast_gemm"


def test_every_step_of_both_ladders_is_told_in_order():
    assert [mark["name"] for mark in story._STEP.finditer(TEXT)] == [recipe.name for recipe in story._steps()]


def test_no_figure_is_typed():
    prose = re.sub(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)", "", TEXT, flags=re.S)
    assert re.findall(r"\S*\d\S*", prose.replace("L2", "")) == []


@pytest.mark.slow
def test_prose_says_of_each_step_how_its_prediction_came_out():
    """The bold words behind a step are those that the records and the step's page give."""
    for recipe in story._steps():
        executed.notebook(recipe.name)
    bests = story._bests(None)
    said = dict(re.findall(r"<!-- step: ([\w/]+).*?-->\n\n\*\*([^*]+)\*\*", TEXT))
    predicted = ladders.predicted_gains()
    came = {
        mark["name"]: story.verdict(
            story.compared(catalog.find(mark["name"]), bests, predicted, mark["row"], mark["column"])
        )
        for mark in story._STEP.finditer(TEXT)
    }
    assert said == came


def test_cublas_is_faster_than_the_last_ampere_steps_ceiling():
    """As the page says of it: no order of instructions reaches cuBLAS there."""
    one = story._best(story._bests(None))[benchmarks.main_line("ampere")[-1].name, story.SHAPE]
    assert one and one.record["peers"]["torch.matmul"]["median_ms"] < story.bounds(one)[0]


def test_the_ladder_ends_above_cublas_with_the_fewest_bytes():
    """As the page says of the last step."""
    recipe, best = benchmarks.main_line("hopper")[-1], story._best(story._bests(None))
    one = best[recipe.name, story.SHAPE]
    assert one and one.to_torch and one.to_torch > 1
    own = [each for each in one.record["peers"] if each in catalog.load(recipe.name).VARIANTS]
    loads = [story._loaded(one._replace(kernel=each)) for each in own]
    assert story._loaded(one) == min(loads) and len(loads) > 5


def test_no_kernel_is_faster_than_its_two_divisions():
    for (name, _), one in story._best(story._bests(None)).items():
        if one is None:
            assert name in NOT_YET
            continue
        assert one.figures["median_ms"] > max(ms or 0.0 for ms in story.bounds(one)), name


def test_a_step_shows_its_time_and_its_gain(tmp_path):
    records.write([record(FIRST, ms=4.0), record(NEXT, ms=2.0)], tmp_path)
    shown = story.told(f"<!-- step: {NEXT} --> <!-- share: {NEXT} -->", tmp_path)
    assert (
        "| **this kernel**; before: if both overlap perfectly |  | **2,000 µs, 1.050 of cuBLAS** |" in shown
        and shown.endswith(" 105%")
    )
    assert re.search(r"`hopper/first_gemm`, 8192³ \| \d\.\d\dx \| 2\.00x \|", shown)
    assert "over the tensor cores' rate | 1,500 µs |" in shown, "the ceiling of the same run"
    assert "over L2's rate | not measured |" in shown, "no bandwidth of this GPU is recorded"


def test_a_step_that_nothing_timed_shows_no_figure(tmp_path):
    shown = story.told(
        f"<!-- step: {FIRST} --> <!-- share: {FIRST} --> <!-- step scores --> <!-- step chart -->", tmp_path
    )
    assert "µs" not in shown and "x |" not in shown and shown.count("Not measured") == 2


def test_a_tile_that_a_cluster_shares_is_loaded_once():
    module = catalog.load(MULTICAST)
    rows = {name: record(MULTICAST, peers={}, figures={"median_ms": 1.0}) for name in ("alone", "2x1", "2x2")}
    asked = {name: story._loaded(benchmarks.Step(row, name, row["figures"], None)) for name, row in rows.items()}
    high, wide = module.CONFIG.tile_m, module.CONFIG.tile_n
    assert asked["alone"] == pytest.approx(2 * 8192**3 * (1 / high + 1 / wide))
    assert asked["2x1"] == pytest.approx(2 * 8192**3 * (1 / (2 * high) + 1 / wide))
    assert asked["2x2"] == pytest.approx(asked["alone"] / 2)


def test_a_gain_is_read_off_the_table_that_has_it(monkeypatch):
    text = "| K | a, predicted |\n| --- | ---: |\n| x, 512 | 1.23x / 1.10x |\n| 1024 | 1234 (1.05x) |"
    cell = nbformat.v4.new_code_cell(execution_count=1)
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/markdown": text})]
    monkeypatch.setattr(story.notebooks, "read", lambda name: nbformat.v4.new_notebook(cells=[cell]))
    assert story.read(FIRST, "512", "a, predicted") == 1.23 and story.read(FIRST, "1024", "a, predicted") == 1.05
    for row, column in (("256", "a, predicted"), ("512", "b")):
        with pytest.raises(ValueError, match="needed a table of its notebook that has it"):
            story.read(FIRST, row, column)
    cell.execution_count = None
    assert story.read(FIRST, "512", "a, predicted") is None, "the notebook was not executed"


def test_a_page_that_asks_for_no_such_step_is_refused():
    with pytest.raises(ValueError, match="step: got 'hopper/no_such'; needed a step of a main line"):
        story.told("<!-- step: hopper/no_such -->")


def test_an_idea_is_that_of_the_fastest_kernel_that_has_it(tmp_path):
    recipe = catalog.find("hopper/warp_specialized_gemm")
    others = {recipe.pays["over"]: 3.0, "setmaxnreg, 256x192": 1.5, "ceiling": 1.0, "torch.matmul": 1.0}
    records.write([record(recipe.name, ms=2.0, others=others, shape=tuple(recipe.pays["at"]))], tmp_path)
    assert gains.idea(recipe, root=tmp_path) == (pytest.approx(2.0), "Test GPU")


def test_a_gain_is_of_a_gpu_that_timed_both_steps(tmp_path):
    """The first GPU timed one of two steps, the other GPU both: the gain is the other's."""
    first = [record(name, torch_ms=5.0) for name in (NEXT, MULTICAST, "hopper/tuned_gemm")]
    both = [record(FIRST, ms=6.0, device="Z GPU"), record(NEXT, ms=2.0, device="Z GPU")]
    records.write([*first, *both], tmp_path)
    gains_of = story.compared(catalog.find(NEXT), story._bests(tmp_path), {}, root=tmp_path)
    assert gains_of[0].measured == pytest.approx(3.0) and gains_of[0].device == "Z GPU"
    shown = story.told(f"<!-- step: {NEXT} --> <!-- step scores -->", tmp_path)
    assert "3.00x (Z GPU)" in shown and re.search(r"\| Z GPU \| +\d\.\d\dx \| 3\.00x", shown)
    rows = ladders.ladder("hopper", tmp_path).split('=== "Z GPU"')
    assert "3.00x (Z GPU)" in rows[0] and "3.00x |" in rows[1] and "(Z GPU)" not in rows[1]


def test_an_idea_is_of_a_gpu_that_timed_both(tmp_path):
    recipe = catalog.find(NEXT)
    shape = tuple(recipe.pays["at"])
    first = [record(name, shape=shape, others={}) for name in (NEXT, MULTICAST, "hopper/tuned_gemm")]
    both = record(NEXT, shape=shape, others={FIRST: 6.0}, device="Z GPU")
    records.write([*first, both], tmp_path)
    assert gains.idea(recipe, root=tmp_path) == (pytest.approx(3.0), "Z GPU")
    assert "3.00x of `first_gemm` at 4096³ (Z GPU)" in ladders.ladder("hopper", tmp_path)
