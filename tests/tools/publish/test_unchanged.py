"""Which page's code a page changes."""

from __future__ import annotations

from cookbook.recipe import catalog
from tools.publish import cards, ladders, pages
from tools.publish.unchanged import base_of

FIRST, STUDY, LAST = "hopper/swap_ab_gemm", "hopper/tile_heuristics", "hopper/tuned_gemm"


def test_a_gemm_changes_the_gemm_before_a_study():
    assert (catalog.find(LAST).builds_on, catalog.find(STUDY).builds_on) == (STUDY, FIRST)
    assert base_of(catalog.find(LAST)).name == FIRST and base_of(catalog.find(STUDY)) is None
    for recipe in catalog.recipes():
        base = base_of(recipe)
        assert base is None or base.product.is_gemm == recipe.product.is_gemm
        assert base is not None or not (recipe.builds_on and recipe.product.is_gemm)


def test_the_study_shows_no_difference_to_a_gemm(tmp_path):
    assert "from `swap_ab_gemm`" in ladders._changed(catalog.find(LAST))
    assert cards.DIFFERENCE not in cards.card(catalog.find(STUDY), tmp_path)
    assert "## What changed from" not in pages.page(STUDY)
    assert f"## What changed from {FIRST}" in pages.page(LAST)
