"""The built index, asked in a real browser: the field's words find the page that explains them."""

from __future__ import annotations

import gzip
import json
from urllib.parse import quote

import pytest

from cookbook.recipe import catalog

LARGEST = 5_000  # bytes of the index for each page of the recipes, gzipped: one loads it when one searches
# For each word, pages that explain it: one of them must be among the first three results.
EXPLAINED = {
    "bank conflict": ["recipes/foundations/bank_conflicts/"],
    "swizzle": ["recipes/foundations/swizzle_parameters/", "recipes/foundations/xor_swizzle/"],
    "split-K": ["recipes/hopper/split_k_gemm/"],
    "stream-K": ["glossary/", "recipes/hopper/split_k_gemm/"],
    "Swizzle<3,4,3>": ["recipes/primer/composed_layouts/", "recipes/foundations/swizzle_parameters/"],
    "make_composed_layout": ["recipes/primer/composed_layouts/"],
    "local_tile": ["recipes/primer/layouts/"],
    "TMA": ["recipes/hopper/tma_copy/"],
    "tcgen05": ["recipes/blackwell/tma_tcgen05_gemm/"],
    "SW128": ["recipes/foundations/mma_smem_atoms/"],
    "ldmatrix": ["recipes/foundations/fragments_and_ldmatrix/"],
    "epilogue": ["recipes/hopper/overlapped_epilogue_gemm/"],
    "rasterization": ["recipes/foundations/thread_block_swizzle/"],
    "ping-pong": ["recipes/hopper/pingpong_gemm/"],
    "pingpong": ["recipes/hopper/pingpong_gemm/"],
    "streamk": ["recipes/hopper/stream_k_gemm/"],
    "mbarrier": ["recipes/hopper/tma_copy/", "recipes/hopper/tma_wgmma_gemm/"],
    "gmem": ["recipes/hopper/tma_copy/"],
    "occupancy": ["recipes/hopper/multistage_gemm/"],
    "atomicity": ["recipes/foundations/mma_smem_atoms/"],
    "illegal memory access": ["when-it-goes-wrong/"],
    "misaligned address": ["when-it-goes-wrong/"],
    "fp8 blockwise": ["recipes/hopper/fp8_blockwise_gemm/"],
    "sm100_smem_selector": ["recipes/foundations/mma_smem_atoms/"],
    "cute_viz": ["recipes/foundations/swizzle_parameters/", "sources/"],
}


def found(page, site: str, words: str) -> list[str]:
    """The addresses of the results' pages, the best first; an address with a question asks once."""
    page.goto(f"{site}start/?q={quote(words, safe='')}")
    page.wait_for_selector(".md-search-result__item")
    page.wait_for_timeout(200)
    links = page.locator(".md-search-result__item").evaluate_all(
        "items => items.map((item) => item.querySelector('a').href.split(/[?#]/)[0])"
    )
    return [link.removeprefix(site) for link in links]


def test_the_index_is_small_and_has_no_bodies_of_code(built):
    settings = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert settings["docs"] == []
    packed = (built / "search" / "documents.json").read_bytes()
    assert len(gzip.compress(packed, 9)) < LARGEST * len(catalog.recipes())
    documents = json.loads(packed)
    assert not any("<pre" in each["text"] for each in documents)
    assert any("make_composed_layout" in each["text"] for each in documents)  # names of code are kept


def test_the_index_is_loaded_when_one_searches_and_not_before(page, site):
    asked = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(site)))
    page.goto(site + "start/", wait_until="networkidle")
    page.locator("[data-md-component=search-query]").click()
    page.wait_for_timeout(300)
    assert not any("documents.json" in each for each in asked)
    page.locator("[data-md-component=search-query]").press_sequentially("split-K")
    page.wait_for_selector(".md-search-result__item a[href*=split_k_gemm]")
    assert asked.count("search/documents.json") == 1
    assert page.faults == []


def test_words_of_the_field_find_their_page_at_once(page, site):
    first = {words: found(page, site, words)[:3] for words in EXPLAINED}
    missed = {words: pages for words, pages in first.items() if not set(pages) & set(EXPLAINED[words])}
    assert missed == {}
    assert page.faults == []


@pytest.mark.parametrize("words", ["swizzle", "wavefronts", "epilogue"])
def test_the_reference_is_ranked_behind_the_pages_that_explain(page, site, words):
    assert not any(each.startswith("api/") for each in found(page, site, words)[:3])
