"""The playground as a reader uses it: mouse, keyboard, address bar, phone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cookbook.layouts import Layout, SmemLayout
from cookbook.recipe import catalog
from cookbook.solve.instructions import parse
from cookbook.swizzle import Swizzle
from tools.publish import playground as playground_of

MOST_MS = 50  # from a change of the form until everything on the page follows it
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True}

# A change as a reader makes it: the handler runs, and draws, before dispatchEvent returns; then a frame is painted.
CHANGED = """([name, value]) => {
  const field = document.getElementById("pg-form").elements[name];
  field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  return new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}"""
CHANGES = [
    ["bits", "16"], ["rows", "128"], ["columns", "64"], ["B", "3"], ["B", "0"], ["kind", "column"], ["kind", "row"],
    ["kind", "ldmatrix"], ["row", "16"], ["padding", "8"], ["padding", "0"], ["kind-of-layout", "K_SW128"],
    ["kind-of-layout", "row"], ["rows", "256"], ["bits", "32"], ["columns", "128"],
]  # fmt: skip


@pytest.fixture
def playground(page, site):
    page.goto(site + "playground/", wait_until="networkidle")
    page.wait_for_selector("#pg-result strong")
    yield page
    assert page.faults == []


def result(page) -> str:
    return page.locator("#pg-result").inner_text()


def test_a_conflict_is_counted_and_the_found_swizzle_frees_it(playground):
    assert result(playground).startswith("32 wavefronts for ldmatrix.x4@16x16, where 4 would do")
    playground.get_by_role("button", name="Find me a swizzle").click()
    assert result(playground).startswith("4 wavefronts for ldmatrix.x4@16x16: no bank conflict. Unswizzled: 32.")
    assert [playground.locator(f"[name={each}]").input_value() for each in "BMS"] == ["3", "4", "3"]
    assert "rank 3" in playground.locator("#pg-find").inner_text()
    assert "cute.make_swizzle(3, 4, 3)" in playground.locator("#pg-code").inner_text()


def test_what_no_swizzle_serves_is_proved(playground):
    playground.get_by_role("button", name="no swizzle can").click()
    said = playground.locator("#pg-find").inner_text()
    assert "No Swizzle<B,M,S> of this layout serves all of these" in said and "counting proves it" in said


def test_the_address_bar_keeps_the_state(playground, site):
    playground.get_by_role("button", name="ldmatrix under SW128").click()
    playground.locator("[name=rows]").fill("128")
    playground.locator("[name=row]").fill("16")
    playground.get_by_label("in memory").check()
    playground.wait_for_function("location.search.includes('view=memory')")
    before, code = result(playground), playground.locator("#pg-code").inner_text()
    playground.goto(playground.url)
    playground.wait_for_selector("#pg-result strong")
    assert (result(playground), playground.locator("#pg-code").inner_text()) == (before, code)
    assert playground.locator("[name=row]").input_value() == "16" and playground.get_by_label("in memory").is_checked()


@pytest.mark.parametrize(
    "query", ["rows=x", "swizzle=9,9,1", "access=<b>", "bits=7", "layout=((:1", "at=-1,0", "rows=1e9"]
)
def test_an_address_that_makes_no_sense_is_answered_in_words(page, site, query):
    page.goto(f"{site}playground/?{query}")
    page.wait_for_selector("#pg-error:visible")
    assert "needed" in page.locator("#pg-error").inner_text()
    page.get_by_role("button", name="a column of bf16").click()  # and the page works
    assert result(page).startswith("32 wavefronts for ld128@32x8") and page.faults == []


def test_every_recipe_opens_with_the_layout_that_cute_gives_it(page, site, built):
    opened = json.loads((built / "playground" / "recipes.json").read_text(encoding="utf-8"))
    assert {r.name for r in catalog.recipes() if playground_of.address(r)} == opened.keys()
    assert all(entry["tiles"] for entry in opened.values())
    wrong = []
    for name, entry in opened.items():
        page.goto(f"{site}playground/?recipe={name}")
        page.wait_for_selector("#pg-result strong")
        for operand, tile in entry["tiles"].items():
            page.locator("[name=operand]").select_option(operand)
            shape, stride = (eval(part, {}) for part in tile["layout"].split(":"))
            layout = SmemLayout(Layout(shape, stride), Swizzle(*tile["swizzle"]), tile["bits"])
            plain, table = layout.outer.table(), layout.byte_offsets()
            table = table.T if plain[0, 1:2].sum() != 1 and plain[1:2, 0].sum() == 1 else table
            counted = _wavefronts(tile, table)
            if tile.get("read_by", "") not in result(page):
                wrong.append((name, operand, result(page)))
            if not result(page).startswith(f"{counted} wavefront") or page.locator("#pg-error").is_visible():
                wrong.append((name, operand, result(page)))
    assert wrong == [] and page.faults == []


def _wavefronts(tile: dict, table: np.ndarray) -> int:
    from cookbook import banks

    if "lanes" in tile:
        places = [tuple(map(int, place.split(","))) for place in tile["lanes"].split()]
        return banks.wavefronts(np.array([table[place] for place in places]), 16).actual
    access = parse(tile["access"])
    asked = access.access(table.copy(), tile["bits"])
    load = access.name.startswith("ld") and not access.matrices
    return banks.wavefronts(asked.addresses, asked.width, load=load).actual


def test_a_recipe_is_shown_under_what_reads_its_tile(page, site):
    page.goto(f"{site}playground/?recipe=hopper/tma_wgmma_gemm")
    page.wait_for_selector("#pg-result strong")
    assert "for 8 rows of 16 bytes, which wgmma reads (counted as ld128@8x8)" in result(page)
    page.locator("[name=access]").fill("ldmatrix.x4@16x16")  # what one asks for oneself is counted as that
    assert "for ldmatrix.x4@16x16:" in result(page) and "wgmma" not in result(page)
    page.locator("[name=operand]").select_option("c")
    assert "for stmatrix.x4@16x16" in result(page) and page.faults == []


@pytest.mark.parametrize("columns", ["4", "8", "12", "24", "40", "48", "63", "72", "100"])
@pytest.mark.parametrize("bits", ["8", "16", "32", "64"])
def test_a_tile_is_not_refused_for_an_access_that_nobody_chose(playground, columns, bits):
    playground.evaluate(CHANGED, ["bits", bits])
    playground.evaluate(CHANGED, ["columns", columns])
    assert playground.locator("#pg-error").is_hidden()
    assert f"Tile: 64 x {columns}," in result(playground)


def test_40_columns_open_from_an_address(page, site):
    page.goto(f"{site}playground/?columns=40")
    page.wait_for_selector("#pg-result strong")
    assert page.locator("#pg-error").is_hidden() and "Tile: 64 x 40," in result(page) and page.faults == []
    assert page.locator("[name=also]").input_value() == "st128@6x40"
    page.locator("[name=also]").fill("")
    page.wait_for_function("location.search.includes('also=none')")


@pytest.mark.parametrize(
    ("field", "wrong", "said"),
    [("S", "1", "S: got 1"), ("padding", "9999", "padding: got 9999"), ("access", "ld128@", "access: got"),
     ("also", "st128@3x3", "access: got st128@3x3"), ("row", "63", "first row"), ("rows", "", "tile: got NaN")],
)  # fmt: skip
def test_a_wrong_field_freezes_no_other(playground, field, wrong, said):
    if field == "S":
        playground.locator("[name=B]").fill("3")
    playground.locator(f"[name={field}]").fill(wrong)
    assert said in playground.locator("#pg-error").inner_text()
    before = result(playground)
    playground.locator("[name=columns]").fill("128")
    assert " x 128," in result(playground) != before and said in playground.locator("#pg-error").inner_text()
    playground.get_by_label("in memory").check()
    assert playground.locator(f"[name={field}]").input_value() == wrong
    playground.get_by_role("button", name="a column of bf16").click()
    assert playground.locator("#pg-error").is_hidden()


def test_a_swizzle_is_said_in_both_units(playground):
    playground.get_by_role("button", name="Find me a swizzle").click()
    both = "S<3,4,3> over bytes = S<3,3,3> over 16-bit elements"
    assert both in result(playground) and f"{both} serves" in playground.locator("#pg-find").inner_text()


def test_ldmatrix_of_bytes(playground):
    playground.locator("[name=bits]").select_option("8")
    playground.locator("[name=kind]").select_option("ldmatrix.m16n16")
    assert "for ldmatrix.m16n16.x2.trans.b8@32x16" in result(playground)
    playground.locator("[name=matrices]").select_option("1")
    assert "for ldmatrix.m16n16.x1.trans.b8@16x16" in result(playground)


def test_the_code_compiles_as_it_is_copied(playground, tmp_path):
    from snippets import compiles

    for number, example in enumerate(("ldmatrix under SW128", "padded rows", "32 x 32 fp32, transposed")):
        playground.get_by_role("button", name=example).click()
        playground.get_by_role("button", name="Find me a swizzle").click()
        assert compiles(playground.locator("#pg-code").inner_text(), tmp_path / f"copied_{number}.py")


def test_it_reacts_at_once(playground):
    """By the processor time of the page's main thread: the time of day depends on what else runs."""
    session = playground.context.new_cdp_session(playground)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1e3 * next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    took = {}
    for _ in range(2):  # the second time without what is compiled on first use
        for change in CHANGES:
            before = spent()
            playground.evaluate(CHANGED, change)
            took[tuple(change)] = spent() - before
    print(f"{len(took)} changes: {sum(took.values()) / len(took):.1f} ms each, {max(took.values()):.1f} ms at most")
    assert {change: ms for change, ms in took.items() if ms >= MOST_MS} == {}


def test_wavefronts_go_lane_by_lane(playground):
    said = playground.locator("#pg-crossbar .pg-said")
    assert said.inner_text() == "Phase 1 of 4, wavefront 1 of 8: lane 0, byte 0, banks 0 to 3."
    playground.get_by_role("button", name="Step on").click()
    assert said.inner_text().startswith("Phase 1 of 4, wavefront 2 of 8: lane 1, byte 128")
    playground.get_by_role("button", name="Play").click()
    playground.wait_for_function("document.querySelector('.pg-said').textContent.includes('lane 3')")
    playground.get_by_role("button", name="Pause").click()
    playground.get_by_role("button", name="First step").click()
    assert "lane 0" in said.inner_text()


def test_own_lanes(playground):
    playground.locator("[name=kind]").select_option("lanes")
    playground.locator("[name=lanes]").fill("0,0 1,0 2,0 - 3,0")
    assert result(playground).startswith("4 wavefronts for ld128@lanes, where 1 would do")
    playground.locator("[name=lanes]").fill("0,0 nonsense")
    assert "needed row,column" in playground.locator("#pg-error").inner_text()
    assert playground.locator("[name=lanes]").input_value() == "0,0 nonsense"  # what one types stays


def test_the_code_is_copied(browser, site):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(site + "playground/", wait_until="networkidle")
    page.get_by_role("button", name="Find me a swizzle").click()
    page.locator("#pg-copy").click()
    page.wait_for_function("document.getElementById('pg-copied').textContent === 'Copied.'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#pg-code").inner_text() and copied.startswith(
        "import cutlass\nimport cutlass.cute as cute\n"
    )
    context.close()


def test_the_pipeline_follows_the_stages(playground):
    playground.locator("#pg-pipeline [name=load]").fill("3")
    assert "wait 0 of" in playground.locator("#pg-idle").inner_text()
    playground.locator("#pg-pipeline [name=stages]").fill("1")
    assert "wait 33 of 45 units. 4 stages would" in playground.locator("#pg-idle").inner_text()


def test_the_keyboard_reaches_everything(playground):
    every = "#pg-form :is(input, select, textarea, button), #pg-pipeline input, .pg button, .pg-scroll"
    wanted = playground.locator(every).evaluate_all(
        "all => all.filter((e) => !e.disabled && e.checkVisibility()).map((e, i) => (e.dataset.reach = i))"
    )
    reached = set()
    playground.locator("h1").click()
    for _ in range(200):
        playground.keyboard.press("Tab")
        reached.add(playground.evaluate("document.activeElement.dataset.reach"))
    radios = playground.locator("[name=pg-view]").evaluate_all("all => all.map((e) => e.dataset.reach)")
    missed = {str(each) for each in wanted} - reached - set(radios[1:])  # arrows go from one radio button to the next
    assert missed == set()


def test_the_tile_has_a_cursor_for_the_keyboard(playground):
    playground.locator("#pg-tile").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        playground.keyboard.press(key)
    assert playground.locator("#pg-cell").inner_text() == "Element (1, 8): byte 144, line 1, bank 4."
    playground.keyboard.press("Enter")
    assert [playground.locator(f"[name={each}]").input_value() for each in ("row", "column")] == ["1", "8"]


@pytest.mark.parametrize("page", [PHONE], indirect=True, ids=["phone"])
def test_it_fits_a_phone(playground):
    wide = playground.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    cut = playground.locator(".pg :is(input, select, button, label)").evaluate_all(
        """all => all.filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1)
                    .map((e) => e.name)"""
    )
    assert cut == []


@pytest.mark.parametrize("page", [{"reduced_motion": "reduce"}], indirect=True, ids=["still"])
def test_nothing_moves_where_one_wants_it_so(playground):
    playground.get_by_role("button", name="Step on").click()
    assert playground.locator("#pg-crossbar .dot").get_attribute("cx") == "-20"
