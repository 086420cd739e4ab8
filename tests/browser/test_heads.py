"""The first screen of every page: its title and its first paragraph; of a recipe the claim, and on a wide screen the
first figure too.

A page of the reference, of an issue or of a guide has no claim: its first paragraph stands for one.
"""

from __future__ import annotations

import pytest

from cookbook.recipe import catalog

from .test_pages import PHONE, WIDE, pages_of

SHOWN = 2 / 3  # of the height of a figure
LESSONS = {f"recipes/{recipe.name}/" for recipe in catalog.recipes()}
# Top and bottom of the title, of the first paragraph behind it and of the first figure; null where there is none.
HEAD = """() => {
  const title = document.querySelector("article h1");
  const behind = (each) => each.checkVisibility() && title.compareDocumentPosition(each) & 4;
  const first = (what) => [...document.querySelectorAll(what)].find(behind);
  const box = (each) => each.getBoundingClientRect();
  const place = (each) => each && [box(each).top + scrollY, box(each).bottom + scrollY];
  const text = first("article p:not(:has(> .language:only-child))");
  const figure = first("article :is(.picture, canvas, swizzle-view, bank-view, barrier-timeline)");
  return {
    title: place(title), said: text.innerText, text: place(text), figure: place(figure) ?? null,
    over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
}"""


@pytest.mark.parametrize(
    ("page", "bottom"),
    [({"viewport": {"width": WIDE, "height": 900}}, 900), (PHONE, PHONE["viewport"]["height"])],
    indirect=["page"],
    ids=["wide", "phone"],
)
def test_the_first_screen_says_what_a_page_claims_and_shows_it(page, bottom, site, built):
    missed, seen = {}, set()
    for address in pages_of(built):
        page.goto(site + address, wait_until="load")
        head = page.evaluate(HEAD)
        seen.add(address)
        wrong = [each for each in ("title", "text") if head[each][1] > bottom]
        if address in LESSONS:
            wrong += [] if head["said"].startswith("Claim.") else ["no claim"]
            top, end = head["figure"] or (bottom, bottom)
            wrong += ["figure"] if bottom == 900 and top + SHOWN * (end - top) > bottom else []
        wrong += ["width"] if head["over"] > 0 else []
        if wrong:
            missed[address] = (wrong, head)
    assert missed == {} and seen >= LESSONS
