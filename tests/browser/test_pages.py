"""Every page of the built site in a real browser: errors, copying, themes, a phone, a keyboard, accessibility."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import watched

PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True}
WIDE = 1440
SMALLEST = 9  # CSS pixels of a picture's text
SCHEMES = {"default": "light", "slate": "dark"}
LOOKED_AT = (  # for axe: one of each sort of page
    "", "start/", "playground/", "benchmarks/", "glossary/", "architectures/",
    "recipes/foundations/bank_conflicts/", "recipes/hopper/tma_wgmma_gemm/",
)  # fmt: skip

# The smallest text of each picture, as it is on the screen: an SVG is scaled by its view box.
TEXTS = """() => [...document.querySelectorAll("svg text, svg tspan")]
  .filter((e) => e.checkVisibility() && e.textContent.trim())
  .map((e) => [parseFloat(getComputedStyle(e).fontSize) * (e.getScreenCTM()?.a ?? 1), e.textContent.trim()])
  .filter(([size]) => size < SMALLEST)""".replace("SMALLEST", str(SMALLEST - 0.05))
# Texts of a picture that lie on one another, or reach beyond its card.
MET = """() => [...document.querySelectorAll("article svg.ckd")].filter((e) => e.checkVisibility())
 .flatMap((picture) => {
  const card = picture.getBoundingClientRect();
  const placed = [...picture.querySelectorAll("text")]
    .filter((e) => e.textContent.trim() && e.checkVisibility({opacityProperty: true}))
    .map((e) => [e.textContent.trim(), e.getBoundingClientRect()]);
  const beyond = ([, r]) => r.left < card.left - 1 || r.right > card.right + 1 || r.bottom > card.bottom + 1;
  const meet = ([, a], [, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3.5;  // of a line of some 14, the letters
  const found = placed.filter((one, i) => beyond(one) || placed.slice(i + 1).some((other) => meet(one, other)));
  return found.map(([text]) => text);
})"""
# Code blocks that are wider than their box: one must scroll sideways to read them.
CUT = """() => [...document.querySelectorAll("article pre > code")].filter((e) => e.checkVisibility())
  .filter((e) => e.scrollWidth > e.clientWidth + 1)
  .map((e) => [e.scrollWidth - e.clientWidth, e.textContent.split("\\n").sort((a, b) => b.length - a.length)[0]])"""

# Tables that are wider than the box which the theme puts around them, in which they scroll.
SCROLLS = """() => [...document.querySelectorAll("article table")].filter((e) => e.checkVisibility())
  .filter((e) => [e, e.parentElement, e.closest(".md-typeset__scrollwrap")]
    .some((each) => each && each.scrollWidth > each.clientWidth + 1))
  .map((e) => e.innerText.split("\\n")[0])"""


def pages_of(built: Path) -> list[str]:
    """The addresses of all pages below that of the site."""
    found = (path.parent.relative_to(built).as_posix() + "/" for path in sorted(built.rglob("index.html")))
    return ["" if each == "./" else each for each in found]


@pytest.fixture(scope="module")
def open_page(browser):
    """A page that tests of this module share: no state is kept in it that one of them would see."""
    context = browser.new_context(viewport={"width": WIDE, "height": 900})
    page = context.new_page()
    page.faults = watched(page)
    yield page
    context.close()


def test_every_page_has_no_error_and_asks_no_one_else(open_page, site, built):
    open_page.faults.clear()
    for address in pages_of(built):
        open_page.goto(site + address, wait_until="load")
        open_page.wait_for_timeout(50)
    assert open_page.faults == []


def test_the_page_of_a_wrong_address_is_ours(page, site, built):
    assert (built / "404.html").exists()
    page.goto(site + "404.html")
    assert page.locator("h1").inner_text().startswith("404")
    assert page.faults == []


def test_one_gets_from_home_to_a_recipe_and_on(page, site):
    page.goto(site)
    page.locator("article a[href^='recipes/']:visible").first.click()
    page.wait_for_url("**/recipes/**")
    page.locator("nav.md-nav--primary").get_by_role("link", name="Glossary").first.click()
    page.wait_for_url("**/glossary/")
    page.get_by_role("link", name="Ping-pong").first.click()
    page.wait_for_url("**/recipes/hopper/pingpong_gemm/")
    page.locator(".md-footer__link--next").click()
    page.wait_for_function("!location.pathname.includes('pingpong')")
    assert page.faults == []


def test_code_is_copied_without_prompts_and_outputs(browser, site):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(site + "start/", wait_until="networkidle")
    buttons = page.locator(".md-clipboard, .md-code__button[data-md-type=copy]")
    assert buttons.count() >= 5
    copied = []
    for i in range(buttons.count()):
        page.evaluate("navigator.clipboard.writeText('')")
        buttons.nth(i).click()
        page.wait_for_function("navigator.clipboard.readText().then((text) => text !== '')")
        copied.append(page.evaluate("navigator.clipboard.readText()"))
    assert any("make demo" in text for text in copied)
    assert [text for text in copied if any(line.startswith("$") for line in text.splitlines())] == []
    context.close()


def test_the_theme_changes_and_is_kept(page, site):
    page.goto(site + "start/", wait_until="networkidle")
    first = page.evaluate("document.body.dataset.mdColorScheme")
    page.locator("label.md-header__button[for^=__palette]:visible").click()
    page.wait_for_function("(first) => document.body.dataset.mdColorScheme !== first", arg=first)
    second = page.evaluate("document.body.dataset.mdColorScheme")
    page.goto(site + "glossary/", wait_until="networkidle")
    assert {first, second} == set(SCHEMES) and page.evaluate("document.body.dataset.mdColorScheme") == second
    assert page.faults == []


@pytest.mark.parametrize("page", [PHONE], indirect=True, ids=["phone"])
def test_no_page_is_wider_than_a_phone_no_text_too_small(page, site, built):
    wide, small = {}, {}
    for address in pages_of(built):
        page.goto(site + address, wait_until="load")
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            wide[address] = over
        if texts := page.evaluate(TEXTS):
            small[address] = (len(texts), min(texts))
    assert (wide, small) == ({}, {})


def test_code_fits_a_wide_screen(open_page, site, built):
    cut = {}
    for address in pages_of(built):
        open_page.goto(site + address, wait_until="load")
        if blocks := open_page.evaluate(CUT):
            cut[address] = (len(blocks), max(blocks))
    assert cut == {}


def test_a_term_says_what_it_is_when_pointed_at(page, site):
    page.goto(site + "recipes/hopper/split_k_gemm/", wait_until="networkidle")
    page.locator("article a[href*='glossary/#cluster']").first.hover()
    page.wait_for_selector(".md-tooltip2--active")
    assert "CTAs that the GPU places in one GPC" in page.locator(".md-tooltip2--active").inner_text()
    assert page.faults == []


def test_tables_fit_and_texts_of_pictures_are_apart(open_page, site, built):
    """Those behind a line or a tab too."""
    wide, met = {}, {}
    for address in pages_of(built):
        open_page.goto(site + address, wait_until="load")
        open_page.add_style_tag(content=".tabbed-block { display: block !important; }")
        open_page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        if tables := open_page.evaluate(SCROLLS):
            wide[address] = tables
        if texts := open_page.evaluate(MET):
            met[address] = texts
    assert (wide, met) == ({}, {})


def test_the_keyboard_goes_past_the_navigation(page, site):
    page.goto(site + "recipes/hopper/tma_wgmma_gemm/", wait_until="networkidle")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('article') !== null")
    page.keyboard.press("/")  # the theme's key for its search
    page.wait_for_function("document.activeElement.matches('[data-md-component=search-query]')")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("address", LOOKED_AT, ids=lambda address: address or "home")
def test_axe_finds_nothing_serious(browser, site, address, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    context = browser.new_context(viewport={"width": WIDE, "height": 900}, color_scheme=SCHEMES[scheme])
    page = context.new_page()
    page.goto(site + address, wait_until="networkidle")
    assert page.evaluate("document.body.dataset.mdColorScheme") == scheme
    found = axe.Axe().run(page).response["violations"]
    serious = {
        each["id"]: [
            len(each["nodes"]),
            each["nodes"][0]["html"][:160],
            each["nodes"][0].get("failureSummary", "")[:300],
        ]
        for each in found
        if each["impact"] in ("serious", "critical")
    }
    context.close()
    assert serious == {}, json.dumps(serious, indent=1)
