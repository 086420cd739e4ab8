"""The first use of a term on a page is a link to the glossary, and nothing else of the page changes."""

from __future__ import annotations

import re

import pytest

from cookbook.recipe import catalog
from tools.publish import glossary, pages

DOCS = catalog.recipes_root().parent / "docs"
TEXT = """
<dt id="bank">Bank</dt><dd></dd>
<dt id="conflict">Bank conflict</dt>
<dt id="major">K-major, M-major</dt>
<dt id="phase">Phase (of an access)</dt>
<dt id="sector" data-words="sector">Sector, line</dt>
<dt id="record" data-words="" data-also="log">Record</dt>
"""


def link(page: str) -> str:
    return glossary.linked(page, TEXT, "../glossary.md")


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("A bank, banks.", "A [bank](../glossary.md#bank), banks."),
        ("Bank conflicts: a bank.", "[Bank conflicts](../glossary.md#conflict): a [bank](../glossary.md#bank)."),
        (
            "Bank conflicts, bank conflicts, a bank.",
            "[Bank conflicts](../glossary.md#conflict), bank conflicts, a [bank](../glossary.md#bank).",
        ),
        ("M-major or K-major", "[M-major](../glossary.md#major) or K-major"),
        ("A phase.", "A [phase](../glossary.md#phase)."),
        ("A line is four sectors; a record.", "A line is four [sectors](../glossary.md#sector); a record."),
        ("*bank*", "*[bank](../glossary.md#bank)*"),
    ],
)
def test_the_first_use_is_linked(page, wanted):
    assert link(page) == wanted


@pytest.mark.parametrize(
    "page",
    [
        "# Banks",
        "| bank |",
        "`bank`",
        "[a bank](banks.md)",
        "See [a\nbank](banks.md).",
        "See [a bank\nof memory](banks.md).",
        "```python\nbank = 1\n```",
        "    ```python\n    bank = 1\n    ```",
        '<figure class="picture"><svg>bank</svg></figure>',
        "cookbook.bank or bank.py or data_bank or bank-like",
        "A [word](glossary.md#bank) of a bank.",
    ],
)
def test_code_headings_tables_links_and_pictures_are_left_alone(page):
    assert link(page) == page


def test_prose_after_a_fence_is_prose_again():
    assert link("````\n```\nbank\n````\nA bank") == "````\n```\nbank\n````\nA [bank](../glossary.md#bank)"


def test_a_link_says_what_the_glossary_says():
    line = 'A <code>4-byte</code> "word" of [it](x.md). [Banks &lt;3&gt;](a/b.md)'
    text = f'<dt id="bank">Bank</dt>\n<dd markdown>{line}</dd>'
    assert glossary.said(text) == {"bank": "A 4-byte 'word' of it."}
    assert glossary.linked("A bank.", text, "g.md") == "A [bank](g.md#bank \"A 4-byte 'word' of it.\")."
    told = glossary.said(glossary.text(DOCS))
    assert set(told) >= set(glossary.terms(glossary.text(DOCS))) and min(map(len, told.values())) > 10


def test_a_page_without_its_links_is_the_page_as_it_was():
    page = pages.page("hopper/tma_wgmma_gemm")
    found = glossary.linked(page, glossary.text(DOCS), "../../glossary.md")
    anchors = re.findall(r"\]\(\.\./\.\./glossary\.md#([\w-]+) \"", found)
    assert {"tma", "warpgroup", "swizzle", "k-tile", "rasterization"} <= set(anchors)
    assert re.sub(r"\[([^\]]*)\]\(\.\./\.\./glossary\.md#[\w-]+(?: \"[^\"]*\")?\)", r"\1", found) == page
