"""How a lesson is built: the picture follows the claim, checks are folded, paragraphs are short, sources are named."""

from __future__ import annotations

import re

import pytest

from cookbook.recipe import catalog
from cookbook.recipe.cells import cells

LESSONS = [r for r in catalog.recipes() if r.track in ("primer", "foundations")]


def cells_of(recipe):
    """(kind, tags, text) of each cell, in order."""
    source = recipe.file.read_text(encoding="utf-8")
    lines = source.splitlines()
    return [(c.kind, c.tags, "\n".join(lines[c.start + 1 : c.stop])) for c in cells(source)]


@pytest.mark.parametrize("recipe", LESSONS, ids=lambda r: r.name)
def test_the_claim_is_followed_by_a_picture(recipe):
    cells = cells_of(recipe)
    assert "**Claim.**" in cells[0][2]
    drawn = next(i for i, (kind, _, text) in enumerate(cells) if kind == "code" and "draw." in text)
    code_before = sum(len(text.splitlines()) for kind, _, text in cells[:drawn] if kind == "code")
    assert drawn <= 2 and code_before <= 8


@pytest.mark.parametrize("recipe", LESSONS, ids=lambda r: r.name)
def test_no_test_code_stands_in_the_lesson(recipe):
    for kind, tags, text in cells_of(recipe):
        if kind == "code" and "def facts(" in text:
            assert "folded" in tags


@pytest.mark.parametrize("recipe", LESSONS, ids=lambda r: r.name)
def test_paragraphs_are_short(recipe):
    for kind, _, text in cells_of(recipe):
        for paragraph in re.split(r"\n#\n", text) if kind == "markdown" else []:
            prose = [line for line in paragraph.splitlines() if not line.startswith("# |")]
            items = re.split(r"\n# \* ", "\n".join(prose))
            assert all(len(re.sub(r"^# ", "", item, flags=re.M).split()) <= 90 for item in items), paragraph


@pytest.mark.parametrize("recipe", LESSONS, ids=lambda r: r.name)
def test_sources_are_named(recipe):
    assert len(recipe.sources) >= 2
    assert len({source.url for source in recipe.sources}) == len(recipe.sources)
