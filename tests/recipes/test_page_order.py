"""What a reader meets first on a page: the claim once, one line of what was checked, a picture; and no sentence that
stands on many pages.

Measured on the page's markdown as the site gets it, in lines of its text; code that the page folds counts as one line,
and so does a tab behind the first one.
"""

from __future__ import annotations

import re

import executed
import pytest

from cookbook.recipe import catalog, cells
from tools.publish import cards, notebooks, pages

PAGES = [recipe.name for recipe in catalog.recipes() if recipe.track in ("ampere", "hopper", "blackwell")]
GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.product.is_gemm]
FIRST_FIGURE = 0.15  # of the page's lines, at most
LINE = 22.0  # pixels: a figure counts as many lines as it is high
MANY = 12  # pages: a sentence that stands on more of them belongs to Start, the glossary or the architecture, once
FIGURE, FOLD, TAB = '<figure class="picture"', "??? ", '=== "'
_HEIGHT = re.compile(r'<svg[^>]* height="(?P<pixels>[\d.]+)"')


def lines_of(page: str) -> tuple[float, float]:
    """How many lines stand before the first figure of a page, and how many it has."""
    first, count, hidden, tabs = None, 0.0, 99, False  # hidden: what is indented deeper; tabs: the last block was one
    for line in page.split("\n"):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if (not text and hidden < 99) or indent > hidden:
            continue
        is_tab = text.startswith(TAB)
        hidden = indent if text.startswith(FOLD) or (is_tab and tabs) else 99
        tabs = is_tab or (tabs and (indent > 0 or not text))
        if FIGURE in line:
            first = count if first is None else first
            count += float(_HEIGHT.search(line)["pixels"]) / LINE
        else:
            count += 1.0
    assert first is not None, "no figure"
    return first, count


def test_lines_are_counted_by_what_a_page_shows():
    svg = '<figure class="picture" style=""><svg class="x" height="44"></svg></figure>'
    assert lines_of(f'# t\n\n??? abstract "code"\n\n    a = 1\n\n    b = 2\n\n{svg}\n\nend') == (3.0, 7.0)
    assert lines_of(f'=== "A"\n\n    {svg}\n\n=== "B"\n\n    hidden\n\nend\n\n=== "C"\n\n    shown') == (2.0, 11.0)
    assert lines_of(f'{svg}\n=== "A"\n\n    ??? note "x"\n\n        {svg}\n    shown') == (0.0, 6.0)


@pytest.mark.parametrize("name", executed.params(PAGES))
def test_the_first_figure_stands_after_the_claim(name):
    executed.notebook(name)
    before, lines = lines_of(pages.page(name))
    assert before <= FIRST_FIGURE * lines, f"{before:.0f} of {lines:.0f} lines stand before the first figure"


@pytest.mark.parametrize("name", GEMMS)
def test_each_notebook_runs_its_own_matmul_next_to_torchs(name):
    code = [cell.source for cell in notebooks.from_recipe(name).cells if cell.cell_type == "code"]
    calls = [source for source in code if f'lab.compare("{name}", matmul, (' in source]
    assert len(calls) == 1, "needed one cell that calls lab.compare with the matmul of the cells above"


def prose(name: str) -> list[str]:
    """The paragraphs of a page's markdown cells, each on one line; recipes that it names as R."""
    source = catalog.find(name).file.read_text(encoding="utf-8")
    lines = source.splitlines()
    text = "\n\n".join(
        "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[cell.start + 1 : cell.stop])
        for cell in cells.cells(source)
        if cell.kind == "markdown"
    )
    return [re.sub(r"\b(?:[a-z]+/)\w+", "R", " ".join(each.split())) for each in re.split(r"\n\s*\n", text)]


def test_no_sentence_stands_on_many_pages():
    on: dict[str, set[str]] = {}
    for recipe in catalog.recipes():
        for paragraph in prose(recipe.name):
            if not paragraph.startswith(("#", "|", "<")):
                for sentence in re.split(r"(?<=[.:!?])\s+", paragraph):
                    on.setdefault(sentence, set()).add(recipe.name)
    often = {sentence: len(names) for sentence, names in on.items() if len(names) > MANY and len(sentence) > 25}
    assert not often


def test_a_page_begins_with_its_claim_once_and_one_line():
    for name in ("hopper/first_gemm", "foundations/xor_swizzle", "primer/layouts"):
        shown = pages.page(name)
        title, claim, card = shown.split("\n\n")[:3]
        assert title == f"# {catalog.find(name).title}" and claim.startswith("**Claim.** ")
        assert card == '<div class="card" markdown="1">' and shown.count("**Claim.**") == 1
        assert f"*{catalog.find(name).claim}*" not in shown
        head = shown.split(card)[1].split("</div>")[0].strip().splitlines()
        assert [line for line in head if line and not line.startswith("    ")] == [
            f'??? info "{cards.verdict(name)}: details, code, notebook"',
            cards.SWITCH,
        ]


def test_one_switch_shows_the_code_of_figures():
    shown = pages.page("hopper/first_gemm")
    code = [c for c in notebooks.read("hopper/first_gemm").cells if c.cell_type == "code" and c.source.strip()]
    tags = [set(c.metadata.get("tags", ())) for c in code]
    hidden = sum("lab" in each and not each & {"open", "folded", notebooks.SETUP} for each in tags)
    assert shown.count(f'<div class="{pages.FIGURE_CODE}"') == hidden > 3 and shown.count(cards.SWITCH) == 1
    css = (catalog.recipes_root().parent / "docs/assets/cookbook.css").read_text(encoding="utf-8")
    assert f".{pages.FIGURE_CODE} {{ display: none; }}" in css
    assert f":has(.code-switch input:checked) .{pages.FIGURE_CODE} {{ display: block; }}" in css
