"""README's first table is made of current records alone; its second one has every recipe."""

from __future__ import annotations

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
        found = [r for r in records.select(line.recipe, "timed", "bfloat16") if tuple(r["shape"]) == line.shape]
        (current,) = [r for r in found if line.peer in r["peers"] and not records.is_stale(r)]
        row = next(row for row in shown.splitlines() if line.recipe in row and f"| {line.called} |" in row)
        assert row.endswith(f"| {current['peers'][line.peer]['ratio']:.2f} |")


def test_tracks_have_every_recipe_once():
    shown = glance.tracks()
    assert all(shown.count(f"(recipes/{recipe.name}.py)") == 1 for recipe in catalog.recipes())


def test_the_picture_in_readme_is_drawn_by_the_package(tmp_path):
    tile = SmemLayout(Layout((8, 64), (64, 1)), Swizzle(3, 4, 3), element_bits=16)
    draw.swizzle_view(tile).save(tmp_path / "swizzle.svg")
    committed = catalog.recipes_root().parent / "docs" / "assets" / "swizzle.svg"
    assert committed.read_text(encoding="utf-8") == (tmp_path / "swizzle.svg").read_text(encoding="utf-8")
