"""README's blocks, notebooks and recipe pages are in step with the catalog, the recipes and the records."""

from __future__ import annotations

import re
import types
import xml.etree.ElementTree as ET

import nbformat
import pytest
from dummy_records import TUNED, record

from cookbook.measure import records
from cookbook.publish import choices
from cookbook.publish.markdown import NOT_MEASURED
from cookbook.publish.pages import results_table
from cookbook.recipe import catalog
from tools.publish import ladders, notebooks, pages

NAME = "ampere/ldmatrix_gemm"
ROOT = catalog.recipes_root().parent


def test_with_blocks_replaces_between_marks_and_only_there():
    text = "a <!-- x:begin -->\nold\n<!-- x:end --> b"
    assert pages.with_blocks(text, {"x": "new"}) == "a <!-- x:begin -->\nnew\n<!-- x:end --> b"
    assert pages.with_blocks(pages.with_blocks(text, {"x": "n"}), {"x": "n"}).count("n\n") == 1


@pytest.mark.parametrize(
    "text", ["", "<!-- x:end --><!-- x:begin -->", "<!-- x:begin --><!-- x:begin --><!-- x:end -->"]
)
def test_with_blocks_needs_its_marks(text):
    with pytest.raises(ValueError, match="pair of <!-- x:begin -->"):
        pages.with_blocks(text, {"x": "new"})


def test_update_readme_writes_once_and_check_writes_never(tmp_path):
    readme = tmp_path / "README.md"
    empty = "<!-- recipes:begin --><!-- recipes:end --><!-- results:begin --><!-- results:end -->"
    empty += "<!-- badges:begin --><!-- badges:end -->"
    readme.write_text(empty)
    assert not pages.update_readme(True, readme) and readme.read_text() == empty
    assert not pages.update_readme(False, readme) and pages.update_readme(True, readme)
    assert all(f"recipes/{recipe.name}.py" in readme.read_text() for recipe in catalog.recipes())


def test_readme_is_in_step_with_catalog_and_results():
    assert pages.update_readme(check=True), "run: python -m tools.publish.pages readme"


def test_readme_and_docs_have_no_typed_performance_figures():
    """Outside the generated blocks no text claims a speed."""
    texts = {
        "README.md": re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", (ROOT / "README.md").read_text(), flags=re.S)
    }
    texts |= {str(p): p.read_text() for folder in ("docs", "docs/open") for p in (ROOT / folder).glob("*.md")}
    claims = {name: re.findall(r"\d[\d.]*\s*(?:TFLOP|GB/s|% of|x faster|\bms\b)", text) for name, text in texts.items()}
    assert not {name: found for name, found in claims.items() if found}


PAGES = ("docs/start.md", "docs/api/layouts.md", "docs/api/draw.md")  # README's example is of a matmul: a GPU's


@pytest.mark.parametrize("page", PAGES)
def test_examples_that_need_no_gpu_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.S | re.M)
    plain = [block for block in blocks if "matmul" not in block]
    assert plain
    for block in plain:
        exec(compile(block, page, "exec"), {})
    if "save(" in "".join(plain):
        assert ET.parse(tmp_path / "tile.svg").getroot().tag.endswith("svg")
    if "wavefronts" in "".join(plain):
        assert capsys.readouterr().out == "4\n"


# --- notebooks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [r.name for r in catalog.recipes()])
def test_notebook_is_in_step_executed_and_without_errors(name):
    notebook = notebooks.read(name)
    text = notebooks.notebook_path(name).read_text()
    assert text == notebooks.written(notebook), f"run: python -m tools.publish.pages notebooks {name} --texts"
    assert str(ROOT) not in text and "Traceback" not in text
    assert any("image/svg+xml" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
    streams = [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "stream"]
    assert not [o.text for o in streams if o.name == "stderr"]
    assert not [line for o in streams for line in o.text.splitlines() if re.search(r"\bfailed\b", line)]
    nbformat.validate(notebook)


@pytest.mark.parametrize("name", [r.name for r in catalog.recipes() if r.kind != "study"])
def test_notebook_shows_the_results_as_they_are(name):
    cells = [c for c in notebooks.read(name).cells if c.cell_type == "code" and "results_table(" in c.source]
    shown = ["".join(o["data"]["text/markdown"]) for c in cells for o in c.outputs]
    assert shown == [results_table(name)], "run: make notebooks"


def small_notebook():
    cells = [
        nbformat.v4.new_markdown_cell("# T"),
        nbformat.v4.new_code_cell("1 + 1"),
        nbformat.v4.new_code_cell("x = 2"),
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"c{number}"
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "P"}})


def test_execute_is_repeatable_to_the_byte(tmp_path):
    first, second = (nbformat.writes(notebooks.execute(small_notebook(), tmp_path)) for _ in range(2))
    assert first == second and '"2"' in first and "iopub" not in first


def test_execute_hides_the_gpu(tmp_path):
    notebook = small_notebook()
    notebook.cells[1].source = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    assert notebooks.execute(notebook, tmp_path).cells[1].outputs[0].text == "''\n"


def executed():
    notebook = small_notebook()
    for number, cell in enumerate(notebook.cells[1:], start=1):
        cell.execution_count = number
    return notebook


def test_difference_sees_every_way_of_being_out_of_step():
    assert notebooks.difference(executed(), small_notebook()) == ""
    assert "not every code cell" in notebooks.difference(small_notebook(), small_notebook())
    changed, shorter, retagged, failed = (executed() for _ in range(4))
    changed.cells[1].source = "1 + 2"
    assert notebooks.difference(changed, small_notebook()) == "code cell 0 differs from the recipe"
    retagged.cells[2].metadata = {"tags": ["lab"]}
    assert notebooks.difference(retagged, small_notebook()) == "code cell 1 differs from the recipe"
    shorter.cells.pop()
    assert notebooks.difference(shorter, small_notebook()) == "1 code cells, the recipe has 2"
    failed.cells[2].outputs = [nbformat.v4.new_output("error", ename="KeyError", evalue="", traceback=[])]
    assert notebooks.difference(failed, small_notebook()) == "shows an error: KeyError"


def test_a_change_of_text_needs_no_run(tmp_path, monkeypatch):
    """Pages show the new text with the committed outputs; a change of code is refused."""
    path = notebooks.notebook_path(NAME)
    fresh = notebooks.from_recipe(NAME)
    fresh.cells[1].source += "\n\nOne more word."
    monkeypatch.setattr(notebooks, "from_recipe", lambda name, settings=None: fresh)
    found = notebooks.read(NAME)
    assert found.cells[1].source.endswith("One more word.") and any(cell.get("outputs") for cell in found.cells)
    assert notebooks.written(found) != path.read_text() and notebooks.main(check=True, names=[NAME]) == 1
    next(cell for cell in fresh.cells[1:] if cell.cell_type == "code").source += "\n1 + 1"
    with pytest.raises(notebooks.OutOfStep, match="code cell 1 differs from the recipe"):
        notebooks.read(NAME)


def test_every_notebook_begins_with_how_to_get_the_package(tmp_path):
    settings = tmp_path / "pyproject.toml"
    text = '[project]\nname = "some-package"\n\n[tool.cookbook]\nrepository = "{}"\n'
    settings.write_text(text.format(""))
    assert notebooks.setup(settings).endswith('    %pip install --quiet --editable "{clone}"')  # never by the name
    settings.write_text(text.format("https://example.org/some/where"))
    assert notebooks.setup(settings).endswith(' "some-package @ git+https://example.org/some/where"')
    first, second = notebooks.from_recipe(NAME).cells[:2]
    assert first.source == notebooks.setup() and first.metadata["tags"] == ["lab", notebooks.SETUP]
    assert second.source.startswith("# ")
    assert first.source not in pages.page(NAME)


def test_read_of_a_missing_notebook_says_what_to_run(tmp_path):
    with pytest.raises(notebooks.OutOfStep, match=r"missing; run `make notebooks`"):
        notebooks.read(NAME, tmp_path)


# --- pages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [r.name for r in catalog.recipes()])
def test_page_has_text_code_pictures_results_and_downloads(name):
    page, stem = pages.page(name), name.split("/")[1]
    assert (
        page.startswith(f"# {catalog.find(name).title}\n") and len(re.findall(r"^# ", _outside_fences(page), re.M)) == 1
    )
    cells = notebooks.read(name).cells
    asked = sum(
        "results_table(" in cell.source for cell in cells if cell.cell_type == "code"
    )  # a study may time itself
    kinds = {"transpose": ("transpose", 1), "study": ("facts", asked)}
    entry, timed = kinds.get(catalog.find(name).kind, ("matmul", 1))
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    drawn = sum("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert f"def {entry}(" in page and page.count('<figure class="picture"') >= drawn >= 1
    shown = pages._live(name)["results_table("]()
    others = 0 if shown != NOT_MEASURED else page.count("choices_table(")  # another table says the same with no record
    assert timed <= page.count(shown) <= timed + others
    assert f"[Download]({stem}.py)" in page and f"[Notebook]({stem}.ipynb)" in page
    assert f'data-copy-file="../{stem}.py"' in page
    assert f"`cookbook copy {name} .`" in page
    for svg in re.findall(r"<figure[^>]*>(.*?)</figure>", page):
        ET.fromstring(svg)


def test_code_of_the_page_before_is_folded_unless_tagged_open():
    base = {"store": catalog.normal_form("def store(c):\n    return c"), "SIZE": catalog.normal_form("SIZE = 2")}
    same = nbformat.v4.new_code_cell('SIZE = 2\n\n\ndef store(c):\n    """Said otherwise."""\n    return c')
    assert '??? abstract "As in a/b: SIZE, store"' in pages._code(same, base, "a/b")
    same.metadata["tags"] = ["open"]
    changed = nbformat.v4.new_code_cell("def store(c):\n    return -c")
    new = nbformat.v4.new_code_cell("def load(c):\n    return c")
    for shown in (same, changed, new):
        assert pages._code(shown, base, "a/b").startswith("```python\n")


def test_a_check_is_folded_to_its_verdict():
    lines = [
        "layout  sm_80  passed  a",
        "layout  sm_90  passed  a",
        "model  8x8x8  failed  b",
        "model  9x9x9  passed  b",
    ]
    check = nbformat.v4.new_output("stream", text="\n".join(["Checked: this.", *lines, "ran    recorded   c"]))
    title, *shown = pages._output(check).splitlines()
    assert title == '??? abstract "Checked: layout: passed; model: 1 of 2 FAILED"'
    assert [line for line in lines if f"    {line}" not in shown] == []
    named = '??? abstract "Each variant by name, '
    assert named in pages._results("hopper/tuned_gemm") and named not in pages._results("ampere/smem_gemm")


def _outside_fences(markdown):
    return re.sub(r"^(\s*`{3,}).*?^\1$", "", markdown, flags=re.S | re.M)


def test_write_pages_leaves_what_is_right_and_removes_strays(tmp_path, monkeypatch):
    """Of a recipe of each track: the build of the site writes all."""
    found = catalog.recipes()
    few = [next(recipe for recipe in found if recipe.track == track) for track in catalog.TRACKS]
    monkeypatch.setattr(pages, "catalog", types.SimpleNamespace(**vars(catalog) | {"recipes": lambda: few}))
    pages.write_pages(tmp_path)
    written = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert len(written) == 3 * len(few) + len(ladders.tracks())
    before = [p.stat().st_mtime_ns for p in written]
    (tmp_path / "recipes/ampere/gone.md").write_text("x")
    pages.write_pages(tmp_path)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == written
    assert [p.stat().st_mtime_ns for p in written] == before


def test_a_page_computes_only_what_its_cells_show(monkeypatch):
    """The counts of a study's kernels are no counts of an experiment, which it need not have."""
    from cookbook.publish import study_tables

    asked = []
    monkeypatch.setattr(study_tables, "counted_table", lambda name, laid: f"counts of {name}")
    monkeypatch.setattr(study_tables, "experiment_table", lambda name, laid: asked.append(name))
    live = pages._live("foundations/bank_conflicts")
    cell = nbformat.v4.new_code_cell("Markdown(counted_table(NAME))")
    assert pages._cell(cell, live)[-1] == "counts of foundations/bank_conflicts" and not asked


def test_the_host_side_stands_once_folded_under_its_cell():
    page = pages.page(NAME)
    title = '??? abstract "The host side, which all recipes share: cookbook/recipe/entry.py"'
    assert page.count(title) == 1
    before, after = page.split(title)
    assert "Gemm(" in before.rsplit("```python", 1)[1]  # the cell right above it
    assert "class Gemm:" in after.split("\n\n```", 1)[0]
    assert "cookbook/recipe/entry.py" not in pages.page("foundations/bank_conflicts")


def test_each_gpu_is_a_tab_with_its_table_and_its_bars(tmp_path, monkeypatch):
    records.write([record(), record(device="A far GPU", ms=1.0), record("hopper/gemv")], tmp_path)
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    here, far = pages._results(TUNED).split('=== "A far GPU"')
    assert here.startswith('=== "Test GPU"') and "far" not in here and "Test GPU" not in far
    assert all(part.count("<svg") == 1 for part in (here, far)) and "| 550 |" in here and "| 1100 |" in far
    assert all(line.startswith("    ") for line in far.splitlines() if line), "in the tab"


def test_costs_are_held_against_the_times_of_one_gpu(tmp_path, monkeypatch):
    variants = dict.fromkeys(catalog.load(TUNED).VARIANTS, 2.0)
    two = [record(others=variants), record(others=variants, device="A far GPU"), record("hopper/gemv")]
    records.write(two, tmp_path)
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    head, _, *rows = choices.choices_table(TUNED, sms=132).splitlines()
    assert head.startswith("| M x N x K, Test GPU |") and len(rows) == 1
