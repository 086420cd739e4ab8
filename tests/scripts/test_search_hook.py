"""What the site's search is given of a page, and which page explains a term."""

from __future__ import annotations

import importlib.util
import json
import types

import pytest

from cookbook.recipe import catalog

pytest.importorskip("mkdocs")
ROOT = catalog.recipes_root().parent


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("search_hook", ROOT / "scripts" / "search_hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CODE = "<pre><code>x = cute.make_layout(TiledCopy, a_b, tile_m)\nreturn 1</code></pre>"


def test_of_code_the_names_stay_that_prose_has_not(hook):
    text = f"<p>Call <code>make_layout</code>.</p>{CODE}<p>End</p>"
    kept = {"make_layout", "TiledCopy", "a_b"}
    assert hook.without_code(text, kept) == "<p>Call <code>make_layout</code>.</p> <p>End</p> TiledCopy a_b"


def test_the_pages_of_a_name_in_code_are_counted_once(hook):
    found = hook.pages_of_names(["x/", "x/#a", "y/#b"], [CODE, CODE, "<pre>tile_m</pre> a_b"])
    assert found["tile_m"] == {"x/", "y/"} and found["a_b"] == {"x/"}


def test_of_the_reference_the_first_paragraph_is_searched(hook):
    text = f"<p> Bases: <code>ValueError</code></p> <p>What\n it is.</p>{CODE}<p>Its arguments.</p>"
    assert hook.summary(text) == "<p>What it is.</p>"
    assert hook.summary("") == ""


def test_pictures_and_figures_are_left_out(hook):
    page = (
        '<svg xmlns="x" class="ckd"></svg><svg class="icon"></svg><td style="text-align: right;">3.8</td><td>word</td>'
    )
    made = hook.on_page_content(page)
    assert made.count("data-search-exclude") == 2
    assert '<svg class="icon">' in made and "<td>word" in made


def test_the_glossary_says_which_page_explains_a_term(hook):
    terms = hook.terms((ROOT / "docs" / "glossary.md").read_text())
    assert "Split-K" in terms["recipes/hopper/split_k_gemm/"]
    assert "make_composed_layout" in terms["recipes/primer/composed_layouts/"]  # a name in a definition
    assert "SW128" in terms["recipes/foundations/mma_smem_atoms/"]
    for page, spelled in {
        "pingpong": "pingpong",
        "stream_k": "streamk",
        "split_k": "splitk",
        "swap_ab": "swapAB",
    }.items():
        assert spelled in terms[f"recipes/hopper/{page}_gemm/"]  # as people type them
    assert "GPC" not in terms["glossary/"] and terms["glossary/"]  # those that no page explains


def test_a_page_of_another_theme_is_refused(hook):
    with pytest.raises(Exception, match="got 0 search workers; needed one"):
        hook.on_post_template("<html></html>", template_name="404.html")
    page = '{"search": "../assets/javascripts/workers/search.0a1b.min.js"}'
    made = hook.on_post_template(page, template_name="404.html")
    assert made == '{"search": "../assets/search.js?search.0a1b.min.js"}'


def test_documents_are_ranked_divided_and_tagged(hook, tmp_path):
    (tmp_path / "search").mkdir()
    (tmp_path / "glossary.md").write_text('<dt id="swizzle">Swizzle</dt>\n<dd>It spreads. [Why](recipes/x.md)</dd>')
    pages = ("api/layouts/", "recipes/x/", "recipes/x/#time")
    everywhere = [f"p{number}/" for number in range(12)]
    docs = [{"location": each, "title": "t", "text": "<pre>tile_m</pre>"} for each in (*pages, *everywhere)]
    docs[1]["text"] += "<pre>own_name</pre>"
    index = {"config": {"lang": ["en"]}, "docs": docs}
    settings = tmp_path / "search" / "search_index.json"
    settings.write_text(json.dumps(index))
    hook.on_post_build(types.SimpleNamespace(site_dir=tmp_path, docs_dir=tmp_path))
    assert json.loads(settings.read_text()) == {"config": {"lang": ["en"]}, "docs": []}
    documents = json.loads((tmp_path / "search" / "documents.json").read_text())
    assert [each.get("boost", 1) for each in documents[:3]] == [1e-4, 1, 1]
    assert [each.get("tags") for each in documents[:3]] == [None, ["Swizzle"], None]
    assert [each["text"] for each in documents[:3]] == ["", "own_name", ""]  # 13 pages and more have `tile_m`
