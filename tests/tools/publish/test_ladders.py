"""The ladder of a track: every GEMM is a step, and what stands beside it is computed or empty."""

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
from tools.publish import benchmarks, cards, ladders, pages

FIRST, NEXT, CUBE = "hopper/first_gemm", "hopper/swizzled_gemm", (8192, 8192, 8192)


def rows(markdown):
    """The cells behind each step's, by the file that the step is linked to."""
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in markdown.splitlines()
        if "<br>" in line
    ]
    return {re.search(r"\]\((\w+)\.md\)", cells[0])[1]: cells[1:] for cells in lines}


@pytest.mark.parametrize("track", ["ampere", "hopper", "blackwell"])
def test_every_gemm_of_a_track_is_a_step_with_its_idea(track, tmp_path):
    assert track in ladders.tracks()
    shown, own = ladders.page(track, tmp_path), [r for r in catalog.recipes() if r.track == track]
    gemms = [r for r in own if r.product.is_gemm]
    main, *asides = shown.split("\n## ")
    assert list(rows(main)) == [r.name.split("/")[1] for r in gemms if not r.aside]
    assert [aside.split("\n")[0] for aside in asides] == list(dict.fromkeys(r.aside for r in own if r.aside))
    for aside in asides:
        assert list(rows(aside)) == [r.name.split("/")[1] for r in gemms if r.aside == aside.split("\n")[0]]
    assert all(r.claim in shown and r.title in shown for r in gemms)
    others = [r for r in own if r not in gemms]
    assert all(f"[{r.title}]({r.name.split('/')[1]}.md)" in shown for r in others)


def test_without_records_predictions_stay(tmp_path):
    executed.notebook(NEXT)
    found = rows(ladders.ladder("hopper", tmp_path))
    assert {(cells[1], *cells[3:]) for cells in found.values()} == {("", "", "", "")}
    predicted = ladders.predicted_gains()
    assert {name for name in predicted if name.startswith("hopper/")} >= {NEXT}
    assert found["swizzled_gemm"][2] == f"{predicted[NEXT]:.2f}x" and found["first_gemm"][2] == ""


def test_a_time_its_ratio_and_its_gain_come_from_the_records(tmp_path):
    slow, fast = record(FIRST, ms=8.0, torch_ms=2.0, others={}), record(NEXT, ms=2.0, torch_ms=2.1, others={})
    records.write([slow, fast], tmp_path)
    shown = ladders.ladder("hopper", tmp_path)
    found = rows(shown)
    assert found["first_gemm"][3:] == ["", "", "8,000 (0.250)"]
    assert found["swizzled_gemm"][3:] == ["4.20x", "", "2,000 (1.050)"]  # 2.1 / 2 over 2 / 8
    assert "Test GPU, 2031-05-06, inputs normal(0, 1); torch 9.8, driver 1.2." in shown


def test_a_record_of_earlier_code_is_no_figure(tmp_path):
    records.write([record(FIRST, code="0" * 64)], tmp_path)
    assert set(rows(ladders.ladder("hopper", tmp_path))["first_gemm"][3:]) == {""}


def test_each_device_has_a_table_and_its_days(tmp_path):
    other = [record(name, ms=4.0, device="Other GPU", date="2031-06-01 00:00") for name in (FIRST, NEXT)]
    records.write([*(record(name) for name in (FIRST, NEXT, benchmarks.tuned()[0])), *other], tmp_path)
    test, other = ladders.ladder("hopper", tmp_path).split('=== "Other GPU"')
    assert test.startswith('=== "Test GPU"') and "Test GPU, 2031-05-06" in test and "Other" not in test
    assert "Other GPU, 2031-06-01" in other and "Test" not in other
    assert [rows(each)["first_gemm"][-1] for each in (test, other)] == ["2,000 (1.050)", "4,000 (0.525)"]
    assert set(rows(other)) == {"first_gemm", "swizzled_gemm"} < set(rows(test))  # all steps only of the first GPU


def test_one_step_of_another_gpu_is_no_ladder(tmp_path):
    records.write([record(FIRST), record(NEXT), record(NEXT, device="A far GPU")], tmp_path)
    assert "A far GPU" not in ladders.ladder("hopper", tmp_path) and "Test GPU" in ladders.ladder("hopper", tmp_path)


def test_the_lines_that_changed_are_those_of_the_diff():
    recipe = catalog.find(NEXT)
    diff = ladders.changes(recipe, catalog.find(recipe.builds_on))
    more, less = ladders.counts(diff)
    assert more == sum(line.startswith("+") and line.strip("+ ") != "" for line in diff[2:]) > 0 < less
    assert not [line for line in diff[2:] if line[1:].startswith("# ##")], "code alone: no prose"
    cells = rows(ladders.ladder("hopper"))["swizzled_gemm"]
    assert cells[0] == f"[+{more} -{less}](swizzled_gemm.md#{cards.DIFFERENCE}) from `first_gemm`"
    shown = pages._diff(recipe, catalog.find(recipe.builds_on))
    assert f"{more} lines more, {less} less" in shown and diff[-1] in shown


def test_what_a_page_imports_is_no_change_of_its_own():
    recipe = catalog.find("hopper/warp_specialized_gemm")
    diff = ladders.changes(recipe, catalog.find(recipe.builds_on))
    assert any(line.startswith("+def kernel") or "kernel" in line for line in diff)
    assert not [line for line in diff if line.startswith("-def produce(")], "it imports produce, as its text says"


def test_a_page_stands_at_the_shape_that_it_is_made_for(tmp_path):
    recipe = catalog.find("hopper/decode_gemm")
    records.write([record(recipe.name, ms=0.5, torch_ms=1.0, others={}, shape=recipe.bench_shapes[0])], tmp_path)
    shown = rows(ladders.page("hopper", tmp_path).split("## Few rows")[1])
    assert shown["decode_gemm"][1:3] == [benchmarks.in_short(recipe.bench_shapes[0]), "500 (2.000)"]


def test_the_time_of_a_peer_is_none_of_the_recipes_own(tmp_path):
    """Torch's own is named by its product, and what torch does with something more stands beside a kernel's name."""
    recipe = catalog.find("hopper/fp8_gemm")
    others = {
        "torch._scaled_mm": 0.1,
        "hopper/tuned_gemm": 0.1,
        "biased": 0.1,
        "torch.addmm (biased)": 0.2,
        "128x256": 0.5,
    }
    records.write([record(recipe.name, ms=1.0, others=others, shape=recipe.bench_shapes[0])], tmp_path)
    shown = rows(ladders.page("hopper", tmp_path).split("## 8 bits")[1])
    assert shown["fp8_gemm"][2].split(" ")[0] == "500"


def test_an_idea_is_measured_at_the_shape_where_it_pays(tmp_path):
    recipe = catalog.find("hopper/pingpong_gemm")
    others = {recipe.pays["over"]: 3.0}
    records.write([record(recipe.name, ms=2.0, torch_ms=2.0, others=others, shape=tuple(recipe.pays["at"]))], tmp_path)
    assert rows(ladders.ladder("hopper", tmp_path))["pingpong_gemm"][1] == "1.50x of `cooperative` at 8192 x 8192 x 512"


def test_every_step_says_where_its_idea_pays():
    """Its idea next to the kernel without it: a variant of its own, or an earlier page's."""
    for track in ("ampere", "hopper"):
        _, *steps = benchmarks.main_line(track)
        assert [r.name for r in steps if not r.pays] == []
        assert [r.name for r in steps if not gains.idea(r) and r.name not in NOT_YET] == [], "not timed at that shape"


def test_a_step_that_builds_on_nothing_changes_nothing():
    assert rows(ladders.ladder("ampere"))["first_gemm"][0] == ""
    recipe = catalog.find(FIRST)
    assert ladders.counts(ladders.changes(recipe, recipe)) == (0, 0)


@pytest.mark.parametrize("shown", ["4.0", "{'hopper/no_such': 2.0}", "{}", "{'hopper/first_gemm': 0}", "a, b", ""])
def test_a_cell_of_gains_that_gives_something_else_is_refused(shown):
    output = nbformat.v4.new_output("execute_result", {"text/plain": shown})
    cell = nbformat.v4.new_code_cell("x", outputs=[output])
    with pytest.raises(ValueError, match="needed a dict of gains by recipe"):
        ladders._gains_of(cell, FIRST)


def test_a_notebook_that_was_not_executed_predicts_nothing(monkeypatch):
    fresh = ladders.notebooks.from_recipe(NEXT)
    monkeypatch.setattr(ladders.notebooks, "read", lambda name: fresh)
    assert ladders.predicted_gains() == {}
