"""The page of two architectures shows what the recipes say, under the names it asks for, and nothing else."""

from __future__ import annotations

import re

import pytest

from cookbook.harness import catalog, side_by_side

PAGE = catalog.recipes_root().parent / "docs" / "architectures.md"
AMPERE, HOPPER = side_by_side.RECIPES


def test_code_is_the_recipes_own_to_the_letter():
    source = catalog.find(AMPERE).file.read_text()
    for name in ("Config", "smem_layouts", "tile_of_cta", "kernel", "CONFIG"):
        code = side_by_side.source_of(AMPERE, [name])
        assert code in source and re.search(rf"^(class |def |){name}\b", code, re.M)
    assert side_by_side.source_of(AMPERE, ["kernel"]).startswith("@cute.kernel\ndef kernel(\n")
    both = side_by_side.source_of(HOPPER, ["multiply_stage", "consume"])
    assert both.index("def multiply_stage") < both.index("def consume")


def test_two_that_differ_stand_beside_each_other_in_order():
    made = side_by_side.row("mainloop | produce consume")
    assert made.startswith('<div class="beside" markdown>') and made.count("```python") == 2
    assert made.index(AMPERE) < made.index("def mainloop") < made.index(HOPPER) < made.index("def produce")


def test_two_that_are_the_same_but_for_comments_stand_once():
    made = side_by_side.row("smem_atom")
    assert made.count("def smem_atom") == 1 and "beside" not in made and AMPERE in made and HOPPER in made


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("mainloop", f"got mainloop, needed what {HOPPER} defines"),
        ("kernel | kernel | kernel", "2 lists"),
        ("kernel | ", "2 lists"),
    ],
)
def test_a_row_that_cannot_be_is_an_error(names, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        side_by_side.with_code(f"<!-- beside: {names} -->")


def test_what_the_lab_defines_is_not_the_recipes_code():
    with pytest.raises(ValueError, match="got report"):
        side_by_side.source_of(HOPPER, ["report"])


def test_the_page_goes_from_sizes_to_launch_and_every_mark_is_filled():
    made = side_by_side.with_code(PAGE.read_text())
    assert "<!-- beside" not in made
    for heading in ("Sizes", "Layout", "The MMA", "Loading", "Main loop", "Epilogue", "Kernel", "Launch"):
        (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", made, re.M | re.S)
        prose, code = section.split("```python", 1)
        assert len(prose.split()) > 20 and ("def " in code or "class " in code)
    for recipe in side_by_side.RECIPES:
        assert f"(recipes/{recipe}.md)" in made and catalog.find(recipe).path in made
    assert "Blackwell" in made


def test_the_page_holds_no_code_of_its_own():
    assert "```" not in PAGE.read_text()
