"""The page of three architectures shows what the recipes say, under the names it asks for, and nothing else."""

from __future__ import annotations

import re

import pytest

from cookbook import descriptors
from cookbook.check import compiled
from cookbook.layouts import evaluate
from cookbook.recipe import catalog
from tools.publish import side_by_side

PAGE = catalog.recipes_root().parent / "docs" / "architectures.md"
RECIPES = side_by_side.recipes_of(PAGE.read_text())
AMPERE, HOPPER, BLACKWELL = RECIPES
SOURCES = {name: "\n".join(catalog.code(catalog.find(name))) for name in RECIPES}


def test_code_is_the_recipes_own_to_the_letter():
    source = SOURCES[AMPERE]
    for name in ("Config", "smem_layouts", "tile_of_cta", "kernel", "CONFIG"):
        code = side_by_side.source_of(AMPERE, [name])
        assert code in source and re.search(rf"^(class |def |){name}\b", code, re.M)
    assert side_by_side.source_of(AMPERE, ["kernel"]).startswith("@cute.kernel\ndef kernel(\n")
    both = side_by_side.source_of(HOPPER, ["issue_wgmmas", "consume"])
    assert both.index("def issue_wgmmas") < both.index("def consume")


def test_those_that_differ_stand_beside_each_other_in_order():
    made = side_by_side.row("mainloop | issue_wgmmas consume | consume", RECIPES)
    assert made.startswith('<div class="beside" markdown>') and made.count("```python") == 3
    places = [made.index(said) for said in (AMPERE, "def mainloop", HOPPER, "wait_group(1)", BLACKWELL, "elects")]
    assert places == sorted(places)


def test_all_that_are_the_same_but_for_comments_stand_once():
    made = side_by_side.row("smem_atom", RECIPES)
    assert made.count("def smem_atom") == 1 and "beside" not in made
    assert made.startswith(f"*The same code in `{AMPERE}`, `{HOPPER}` and `{BLACKWELL}`:*")


def test_two_of_three_that_are_the_same_share_a_column():
    made = side_by_side.row("make_load", RECIPES)
    assert (
        made.count("def make_load") == 2 and f"**`{HOPPER}` and `{BLACKWELL}`**" in made and f"**`{AMPERE}`**" in made
    )


def test_a_recipe_that_has_nothing_of_the_kind_has_no_column():
    made = side_by_side.row("- | - | accumulators_in", RECIPES)
    assert made.count("```python") == 1 and BLACKWELL in made and AMPERE not in made and HOPPER not in made
    same = side_by_side.row("- | produce | produce", RECIPES)  # not of all three: a column that names the two
    assert same.count("def produce") == 1 and f"**`{HOPPER}` and `{BLACKWELL}`**" in same


def test_every_name_is_said_once_for_each_recipe_that_has_it():
    rows = [line.split(" | ") for line in side_by_side.shared(RECIPES).splitlines()[2:]]
    said = [
        (recipe, name)
        for recipes, names in rows
        for recipe in re.findall(r"`(\w+/\w+)`", recipes)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(said) == len(set(said))
    assert all(re.search(rf"^(def|class) {name}\b", SOURCES[recipe], re.M) for recipe, name in said)
    everywhere, alone = rows[0], rows[-1]
    assert all(recipe in everywhere[0] for recipe in RECIPES) and "`matmul`" in everywhere[1]
    assert alone[0] == f"| `{BLACKWELL}`" and "`accumulators_in`" in alone[1] and "`produce`" not in alone[1]
    assert "CONFIG" not in side_by_side.shared(RECIPES)


def test_what_never_ran_says_so():
    speeds = side_by_side.facts(RECIPES).splitlines()[-1].split(" | ")
    assert speeds[-1] == "not run on hardware |" and "not run" not in "".join(speeds[:-1])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("mainloop", f"got mainloop; needed what {HOPPER} defines"),
        ("kernel | kernel", "3 lists"),
        ("kernel | kernel | kernel | kernel", "3 lists"),
        ("kernel | kernel | ", "3 lists"),
        ("- | - | -", "3 lists"),
        ("kernel - | kernel | kernel", f"got -; needed what {AMPERE} defines"),
    ],
)
def test_a_row_that_cannot_be_is_an_error(names, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        side_by_side.with_code(f"<!-- beside of: {' | '.join(RECIPES)} -->\n<!-- beside: {names} -->")


def test_a_page_names_its_recipes_or_has_no_marks():
    assert side_by_side.with_code("no marks") == "no marks"
    with pytest.raises(ValueError, match="got no mark that names the recipes"):
        side_by_side.with_code("<!-- beside: kernel -->")
    with pytest.raises(catalog.UnknownRecipe):
        side_by_side.with_code("<!-- beside of: hopper/none -->\n<!-- beside: kernel -->")


@pytest.mark.parametrize("operand", ["a", "b"])
def test_the_pages_descriptors_differ_in_the_version_alone(operand):

    words = []
    for name, arch in ((HOPPER, "sm_90a"), (BLACKWELL, "sm_100a")):
        module = catalog.load(name)
        dtype = compiled.cutlass_dtype(catalog.find(name).dtypes[0])
        layouts = evaluate(module.smem_layouts, dtype, module.CONFIG, arch=arch)
        rows = 64 if name == HOPPER else 128
        found = descriptors.describe(getattr(layouts, operand), "K", name == HOPPER, rows)
        words.append(found.encode())
    assert words[0] >> 46 & 7 == 0 and words[1] == words[0] | 0b001 << 46


def test_what_the_lab_defines_is_not_the_recipes_code():
    with pytest.raises(ValueError, match="got report"):
        side_by_side.source_of(HOPPER, ["report"])


def test_the_page_goes_from_sizes_to_launch_with_every_mark():
    made = side_by_side.with_code(PAGE.read_text())
    assert "<!-- beside" not in made
    for heading in (
        "Sizes",
        "Layout",
        "The MMA",
        "Tensor memory",
        "Loading",
        "Main loop",
        "Epilogue",
        "Kernel",
        "Launch",
    ):
        (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", made, re.M | re.S)
        prose, code = section.split("```python", 1)
        assert len(prose.split()) > 20 and ("def " in code or "class " in code)
    for recipe in RECIPES:
        assert f"(recipes/{recipe}.md)" in made and catalog.find(recipe).path in made
    assert "not run on hardware" in made.split("## Sizes")[0]


def test_the_page_holds_no_code_of_its_own():
    assert "```" not in PAGE.read_text()


def test_the_paths_are_those_of_the_tracks():
    drawn = side_by_side.paths(RECIPES)
    assert drawn.count("<svg") == len(RECIPES)
    for name in RECIPES:
        assert f"The way of the data: {name.split('/')[0].capitalize()}" in drawn
