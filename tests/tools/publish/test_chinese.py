"""The Chinese pages keep up with the English ones: text, terms, verdicts and links; no figure is typed."""

from __future__ import annotations

import re

import pytest

from cookbook.recipe import catalog
from tools.publish import chinese, story

PAGES = [name for name in chinese.names() if name != chinese.TERMS]
CODE = re.compile(r"```.*?```|`[^`]*`|<[^>\n]*>|\]\([^)]*\)", re.DOTALL)
VERDICTS = {
    "As predicted.": "与预测相符。",
    "Less than predicted.": "低于预测。",
    "More than predicted.": "高于预测。",
    "Not predicted.": "未预测。",
}


def pairs(name):
    """(English block, its translation) of a page, those that are current."""
    known = dict(chinese.chinese(name))
    return [(block, known[chinese.digest(block)]) for block in chinese.english(name) if chinese.digest(block) in known]


def prose(text):
    return CODE.sub(" ", text)


def test_home_primer_swizzles_and_story_are_translated():
    assert set(PAGES) == {
        "index",
        "story",
        "recipes/primer/hello_kernel",
        "recipes/primer/layouts",
        "recipes/primer/who_holds_what",
        "recipes/primer/composed_layouts",
        "recipes/primer/copies_and_mmas",
        "recipes/foundations/xor_swizzle",
        "recipes/foundations/swizzle_parameters",
    }


@pytest.mark.parametrize("name", PAGES)
def test_no_english_block_has_moved_on(name):
    """Read the translation again, mend it, then `python -m tools.publish.chinese --accept NAME`."""
    assert chinese.changed(name) == []
    assert len(chinese.chinese(name)) == len(chinese.english(name))


def test_a_changed_block_is_shown_in_english_and_named(monkeypatch, tmp_path):
    blocks = chinese.english("index")
    changed = ["## Another heading\n\nAnother text." if "## Which atom?" in block else block for block in blocks]
    monkeypatch.setattr(chinese, "english", lambda name: changed)
    assert chinese.changed("index") == ["## Another heading"]
    (tmp_path / "index.md").write_text("\n\n".join(changed), encoding="utf-8")
    shown = chinese.page("index", tmp_path)
    assert "## Another heading\n\nAnother text." in shown and "学习路线" in shown


@pytest.mark.parametrize("name", PAGES)
def test_code_marks_and_headings_are_those_of_the_english_page(name):
    """A translation has the same code, asks for the same tables, and has as many headings, details and links."""
    for block, text in pairs(name):
        code = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
        assert code.findall(block) == code.findall(text)
        assert len(re.findall(r"<!-- .+? -->", block)) == len(re.findall("<!-- = -->", text)) or "gallery" in block
        assert [h[1] for h in chinese._HEADING.finditer(chinese._bare(block))] == [
            h[1] for h in chinese._HEADING.finditer(chinese._bare(text))
        ]
        assert block.count("<details") == text.count("<details")


FIGURE = re.compile(r"\d+\.\d+|\d+%|\d{3,}|[4-9]\d")  # what may have been measured; not "two", which is 2 in Chinese


@pytest.mark.parametrize("name", PAGES)
def test_a_translation_types_no_figure_of_its_own(name):
    for block, text in pairs(name):
        assert set(FIGURE.findall(text)) <= set(FIGURE.findall(block)), text


def test_terms_are_those_of_the_glossary():
    glossary = (catalog.recipes_root().parent / "docs/glossary.md").read_text(encoding="utf-8")
    found = chinese.terms()
    assert len(found) >= 20 and len(found) == chinese.page(chinese.TERMS).count("](glossary.md#")
    assert [term for term in found if f'id="{term.anchor}"' not in glossary] == []


@pytest.mark.parametrize("term", chinese.terms(), ids=lambda term: term.anchor)
def test_a_term_is_written_one_way(term):
    """Where the English block uses the term, the Chinese one does too, mostly; another word for it stands nowhere."""
    with_it = lacking = 0
    words = re.compile(rf"\b{re.escape(term.english)}s?\b", re.IGNORECASE)
    for name in PAGES:
        for block, text in pairs(name):
            assert [word for word in term.wrong if word in prose(text)] == [], (name, term.chinese)
            if words.search(prose(block)):
                with_it += 1
                lacking += term.chinese not in text
    assert lacking <= with_it // 3, f"{term.english}: {lacking} of {with_it} blocks lack {term.chinese}"


def test_the_storys_verdicts_are_the_same_in_both_languages():
    bold = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE)
    judged = 0
    for block, text in pairs("story"):
        if story._STEP.search(block):
            assert [VERDICTS[bold.findall(block)[-1]]] == bold.findall(text)[-1:], block.splitlines()[0]
            judged += 1
    assert judged > 15


def test_links_lead_to_chinese_pages_where_there_are_some():
    shown = chinese.localized(
        "# Title\n\n[a](../foundations/bank_conflicts.md) [l](layouts.md) "
        "[b](../foundations/xor_swizzle.md#the-kernel) [c](../../glossary.md#cta)",
        "zh/recipes/primer/hello_kernel.md",
    )
    assert "[a](../../../recipes/foundations/bank_conflicts.md)" in shown
    assert "[l](layouts.md)" in shown
    assert "[b](../foundations/xor_swizzle.md#the-kernel)" in shown
    assert "[c](../../../glossary.md#cta)" in shown
    home = chinese.localized('<a href="recipes/hopper/tuned_gemm/">', "zh/index.md")
    assert '<a href="../recipes/hopper/tuned_gemm/">' in home
    card = '[d](x.py) [p](../../playground/index.md?recipe=a/b) <button data-copy-file="../x.py">'
    shown_card = chinese.localized(card, "zh/recipes/foundations/x.md")
    assert "[d](../../../recipes/foundations/x.py)" in shown_card
    assert "[p](../../../playground/index.md?recipe=a/b)" in shown_card
    assert 'data-copy-file="../../../../recipes/foundations/x.py"' in shown_card
    assert "[English](../../../recipes/primer/hello_kernel.md){ .language lang=en" in shown
    other = chinese.localized("# Title\n\nText.", "recipes/primer/hello_kernel.md")
    assert "[中文](../../zh/recipes/primer/hello_kernel.md)" in other
    assert chinese.localized("# Title", "recipes/foundations/bank_conflicts.md") == "# Title"


def test_ids_of_headings_are_the_english_ones():
    for name in PAGES:
        for block, text in pairs(name):
            whole = chinese._whole(block, text)
            count = len(chinese._HEADING.findall(chinese._bare(text)))
            assert len(re.findall(r"^#+ .+ \{ #[\w-]+ \}$", whole, re.MULTILINE)) == count
