"""README's first table is made of current records alone; its second one has every recipe."""

from __future__ import annotations

from dummy_records import record

from cookbook import draw
from cookbook.layouts import Layout, SmemLayout
from cookbook.measure import records
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle
from tools.publish import glance


def test_without_records_nothing_is_claimed(tmp_path):
    shown = glance.at_a_glance(tmp_path)
    assert shown.count(glance.NOT_MEASURED) == len(glance.LINES)
    assert not any(character == "." and shown[place - 1].isdigit() for place, character in enumerate(shown))


def test_each_line_is_the_ratio_of_its_own_record():
    shown = glance.at_a_glance()
    for line in glance.LINES:
        found = records.of_one_gpu(line.recipe, "timed", "bfloat16", device="NVIDIA H200")
        (current,) = [r for r in found if tuple(r["shape"]) == line.shape and line.peer in r["peers"]]
        row = next(row for row in shown.splitlines() if line.recipe in row and f"| {line.called} |" in row)
        assert row.endswith(f"| {current['peers'][line.peer]['ratio']:.2f} |")


def test_all_lines_are_of_one_gpu_the_first(tmp_path):
    (swizzle, _), tuned = glance.LINES[:2], glance.LINES[1]
    assert tuned.recipe != swizzle.recipe
    far = [record(tuned.recipe, tuned.shape, torch_ms=9.0, device="A far GPU")]
    far.append(record(swizzle.recipe, swizzle.shape, others={"plain": 7.0}, device="A far GPU"))
    near = [record(each, tuned.shape, device="Near GPU") for each in (tuned.recipe, "hopper/fp8_gemm", "hopper/gemv")]
    records.write([*far, *near], tmp_path)
    shown = glance.at_a_glance(tmp_path)
    assert "Near GPU; 2031-05-06" in shown and "far" not in shown  # of three recipes, and A far GPU of two
    assert "| no swizzle | not measured |" in shown and "| cuBLAS | 1.05 |" in shown
    assert glance.record_of(swizzle, tmp_path) is None


def test_tracks_have_every_recipe_once():
    shown = glance.tracks()
    assert all(shown.count(f"(recipes/{recipe.name}.py)") == 1 for recipe in catalog.recipes())


def test_the_picture_in_readme_is_drawn_by_the_package(tmp_path):
    tile = SmemLayout(Layout((8, 64), (64, 1)), Swizzle(3, 4, 3), element_bits=16)
    draw.swizzle_view(tile).save(tmp_path / "swizzle.svg")
    committed = catalog.recipes_root().parent / "docs" / "assets" / "swizzle.svg"
    assert committed.read_text(encoding="utf-8") == (tmp_path / "swizzle.svg").read_text(encoding="utf-8")
