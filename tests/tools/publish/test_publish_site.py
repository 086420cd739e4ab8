"""`mkdocs build --strict` on this tree: no warning, every page there, nothing fetched from another site."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import executed
import pytest

from cookbook.recipe import catalog
from tools.publish import notebooks, operator_tables, side_by_side

pytest.importorskip("mkdocs")
pytest.importorskip("material")
ROOT = catalog.recipes_root().parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in executed.QUICK:
        executed.notebook(name)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", [r.name for r in catalog.recipes()])
def test_recipe_page_its_pictures_and_its_downloads(site, name):
    """Pages that were not executed say so: `make site` executes all."""
    html, notebook = (site / "recipes" / name / "index.html").read_text(), notebooks.read(name)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    drawn = sum("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert html.count('<svg xmlns="http://www.w3.org/2000/svg" class="ckd"') >= drawn
    assert drawn >= 1 or name not in executed.QUICK
    assert ("The cells of this page have not been executed" in html) != notebooks.was_executed(notebook)
    assert 'id="measured"' in html or 'id="time"' in html or catalog.find(name).kind == "study"
    offered = (site / f"recipes/{name}.py").read_text()  # the code that a page offers is one file that stands alone
    assert offered == catalog.standalone_source(name)
    assert not re.search(r"^\s*(import|from) cookbook\b", offered, re.M)
    assert (site / f"recipes/{name}.ipynb").read_text() == notebooks.written(notebook)


def test_home_lists_every_recipe(site):
    html = (site / "index.html").read_text()
    assert all(f'href="recipes/{recipe.name}/"' in html and recipe.claim in html for recipe in catalog.recipes())


def test_benchmarks_show_every_gemm_measured_or_not(site):
    html = (site / "benchmarks" / "index.html").read_text()
    assert "<!-- bench" not in html
    gemms = [recipe.name for recipe in catalog.recipes() if recipe.product.is_gemm]
    assert [name for name in gemms if f'href="../recipes/{name}/"' not in html] == []


def test_pages_on_calls_show_tables_where_they_ask_for_them(site):
    for page, tables in (("pytorch", 3), ("host_time", 4), ("shapes", 7), ("frameworks", 2), ("story", 15)):
        html = (site / page / "index.html").read_text()
        assert html.count("<table>") >= tables, page
        assert not re.search(r"<!-- (?:host|shapes|operator|step|share)", html), page
        drawn = page != "pytorch" or "*Not measured" not in operator_tables.training()  # what is drawn there
        assert ('class="picture"' in html) == (page != "frameworks" and drawn), page


def test_architectures_have_code_in_columns_and_code_shared(site):
    html = (site / "architectures" / "index.html").read_text()
    assert "<!-- beside" not in html and 'class="beside"' in html and "The same code in" in html
    page = (catalog.recipes_root().parent / "docs" / "architectures.md").read_text()
    assert all(f'href="../recipes/{name}/"' in html for name in side_by_side.recipes_of(page))


def test_the_contract_is_shown_as_the_code_has_it(site):
    html = (site / "contract" / "index.html").read_text()
    assert "<!-- contract" not in html and "True if an architecture has the instruction." in html


def test_what_hardware_has_confirmed_of_blackwell_is_found(site):
    anchor = "checking/#blackwell-what-hardware-has-confirmed"
    assert 'id="blackwell-what-hardware-has-confirmed"' in (site / "checking" / "index.html").read_text()
    pages = {"index.html": "", "start/index.html": "../", "recipes/blackwell/tma_tcgen05_gemm/index.html": "../../../"}
    assert [page for page, up in pages.items() if f'href="{up}{anchor}"' not in (site / page).read_text()] == []


@pytest.mark.parametrize("page", ["benchmarks", "architectures", "pipelines", "checking"])
def test_pages_are_linked_from_home_and_navigation(site, page):
    home = (site / "index.html").read_text()
    assert home.count(f'href="{page}/"') >= 2  # of the navigation, and of the text


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("layouts", ["cookbook.swizzle.Swizzle", "cookbook.layouts.evaluate", "cookbook.banks.wavefronts"]),
        ("model", ["cookbook.model.tma.tma_load", "cookbook.model.ldmatrix.ldmatrix"]),
        ("draw", ["cookbook.draw.layouts.bank_grid", "cookbook.draw.charts.Bar"]),
        ("harness", ["cookbook.recipe.catalog.Recipe", "cookbook.measure.bench.bench"]),
    ],
)
def test_reference_documents(site, page, names):
    html = (site / "api" / page / "index.html").read_text()
    assert [name for name in names if f'id="{name}"' not in html] == []


def test_reference_keeps_angle_brackets_and_examples(site):
    html = (site / "api" / "layouts" / "index.html").read_text()
    assert "Swizzle&lt;B,M,S" in html
    assert '<span class="gp">&gt;&gt;&gt; </span>' in html and "<blockquote>" not in html


def test_what_is_copied_from_a_console_block_is_a_command(site):
    """The button's script takes the text that is shown while `data-md-copying` is set: prompts and outputs are not."""
    html = (site / "start" / "index.html").read_text()
    prompt = '<span class="gp">$ </span>'
    blocks = [block for block in re.findall(r"<pre><span></span><code>(.*?)\n</code>", html, re.S) if prompt in block]
    assert len(blocks) >= 5 and all(line.startswith(prompt) for block in blocks for line in block.splitlines())
    hidden = r"\.highlight code\[data-md-copying\] :is\(\.gp, \.go\) \{ display: none; \}"
    assert re.search(hidden, (site / "assets" / "cookbook.css").read_text())
    (script,) = (site / "assets" / "javascripts").glob("bundle.*.min.js")
    assert re.search(r'setAttribute\("data-md-copying".{0,120}\.innerText', script.read_text())


def test_a_shape_in_a_table_stays_on_one_line(site):
    html = (site / "results" / "index.html").read_text()
    assert html.count('<td class="shape">') > 100 and not re.search(
        r"<td>\d+( x \d+)+(?!\d|: )", html
    )  # ": " ends a name
    assert "td.shape { white-space: nowrap; }" in (site / "assets" / "cookbook.css").read_text()


def test_home_is_small(site):
    """What the theme loads with it: the search and its index come when somebody searches."""
    home = site / "index.html"
    loaded = re.findall(
        r'<(?:script|link)\b[^>]*(?:src|href)="((?:assets|stylesheets)/[^"]+\.(?:css|m?js))"', home.read_text()
    )
    assert len(loaded) >= 3 and sum(f.stat().st_size for f in (home, *(site / name for name in loaded))) < 500_000


def test_nothing_is_fetched_from_another_site(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="(?:https?:)?//[^"]+"', page.read_text())
        assert fetched == [], page
