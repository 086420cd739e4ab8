"""README's blocks are in step with the catalog and the records; pages and notebooks show what was executed."""

from __future__ import annotations

import re
import shutil
import types
import xml.etree.ElementTree as ET

import executed
import nbformat
import pytest
from dummy_records import TUNED, record

from cookbook.measure import records
from cookbook.publish import choices
from cookbook.publish.markdown import NOT_MEASURED
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


@pytest.mark.parametrize("name", executed.params())
def test_a_notebook_draws_and_has_no_errors_and_no_paths(name):
    notebook = executed.notebook(name)
    text = notebooks.written(notebook)
    assert notebooks.was_executed(notebook) and notebooks.is_current(name)
    assert str(ROOT) not in text and "Traceback" not in text
    assert any("image/svg+xml" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
    streams = [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "stream"]
    assert not [o.text for o in streams if o.name == "stderr"]
    assert not [line for o in streams for line in o.text.splitlines() if re.search(r"\bfailed\b", line)]
    nbformat.validate(notebook)


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


def ran():
    notebook = small_notebook()
    for number, cell in enumerate(notebook.cells[1:], start=1):
        cell.execution_count = number
    return notebook


def test_difference_sees_every_way_of_being_out_of_step():
    assert notebooks.difference(ran(), small_notebook()) == ""
    assert "not every code cell" in notebooks.difference(small_notebook(), small_notebook())
    changed, shorter, retagged, failed = (ran() for _ in range(4))
    changed.cells[1].source = "1 + 2"
    assert notebooks.difference(changed, small_notebook()) == "code cell 0 differs from the recipe"
    retagged.cells[2].metadata = {"tags": ["lab"]}
    assert notebooks.difference(retagged, small_notebook()) == "code cell 1 differs from the recipe"
    shorter.cells.pop()
    assert notebooks.difference(shorter, small_notebook()) == "1 code cells, the recipe has 2"
    failed.cells[2].outputs = [nbformat.v4.new_output("error", ename="KeyError", evalue="", traceback=[])]
    assert notebooks.difference(failed, small_notebook()) == "shows an error: KeyError"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder of notebooks that has NAME's, and a recipe's text that a test may change; what was executed is noted."""
    fresh, ran = notebooks.from_recipe(executed.HOPPER), []
    executed.notebook(executed.HOPPER)
    shutil.copytree(ROOT / "notebooks" / "hopper", tmp_path / "hopper")
    monkeypatch.setattr(notebooks, "from_recipe", lambda name, settings=None: fresh)
    monkeypatch.setattr(notebooks, "execute", lambda notebook, folder: ran.append(notebook) or notebook)
    return types.SimpleNamespace(fresh=fresh, ran=ran, root=tmp_path)


def test_a_change_of_text_executes_nothing_and_is_written(kept):
    kept.fresh.cells[1].source += "\n\nOne more word."
    found = notebooks.make_if_changed(executed.HOPPER, kept.root)
    assert found.cells[1].source.endswith("One more word.") and any(cell.get("outputs") for cell in found.cells)
    path = notebooks.notebook_path(executed.HOPPER, kept.root)
    assert "One more word." in path.read_text() and notebooks.is_current(executed.HOPPER, kept.root) and not kept.ran


def test_a_change_of_code_is_executed_and_shown_without_outputs(kept):
    next(cell for cell in kept.fresh.cells[1:] if cell.cell_type == "code").source += "\n1 + 1"
    found = notebooks.read(executed.HOPPER, kept.root)
    assert not notebooks.was_executed(found) and not any(cell.get("outputs") for cell in found.cells)
    notebooks.make_if_changed(executed.HOPPER, kept.root)
    assert len(kept.ran) == 1


def test_imports_and_records_of_cells_are_digested(kept, tmp_path, monkeypatch):
    """Files are compared by what they hold: a copy of the tree with one file changed has another digest."""
    tree = tmp_path / "tree"
    for folder in ("cookbook", "results", "recipes"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(catalog, "recipes_root", lambda: tree / "recipes")

    def digest():
        notebooks._hash.cache_clear()
        return notebooks.digest(kept.fresh, executed.HOPPER)

    known = digest()
    for changes, file in (
        (True, "cookbook/draw/svg.py"),
        (True, "cookbook/lab.py"),
        (True, f"results/nvidia-h100-80gb-hbm3/{executed.HOPPER}.json"),
        (False, "cookbook/cli/app.py"),
        (False, "results/nvidia-h200/hopper/majors_gemm.json"),
    ):
        (tree / file).write_text((tree / file).read_text() + "\n")
        assert (digest() != known) == changes, file
        known = digest()


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


def test_a_notebook_that_was_not_executed_has_no_outputs(tmp_path):
    found = notebooks.read(NAME, tmp_path)
    assert not notebooks.was_executed(found) and not any(cell.get("outputs") for cell in found.cells)
    assert not notebooks.is_current(NAME, tmp_path)


def test_a_page_that_was_not_executed_says_so(monkeypatch):
    fresh = notebooks.from_recipe(executed.FOUNDATION)
    assert pages.NOT_EXECUTED not in pages.page(executed.FOUNDATION)
    monkeypatch.setattr(notebooks, "read", lambda name: fresh)
    assert pages.page(executed.FOUNDATION).count(pages.NOT_EXECUTED) == 1
    assert pages.cards.verdict("primer/layouts") == "Not checked yet"


def test_a_cell_that_raises_is_named_and_fails_the_command(tmp_path, monkeypatch, capsys):
    def fail(name):
        raise ValueError("no such cell")

    monkeypatch.setattr(notebooks, "make", fail)
    assert notebooks._made(NAME, 1, 1) == f"{NAME}: no such cell"
    assert capsys.readouterr().err == f"executing {NAME} (1 of 1)\n"
    monkeypatch.setattr(notebooks, "main", lambda names, changed: len(names))
    assert pages.main(["notebooks", NAME]) == 1 and pages.main(["notebooks"]) == 0


# --- pages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [r.name for r in catalog.recipes()])
def test_page_has_text_code_results_and_downloads(name):
    page, stem = pages.page(name), name.split("/")[1]
    assert (
        page.startswith(f"# {catalog.find(name).title}\n") and len(re.findall(r"^# ", _outside_fences(page), re.M)) == 1
    )
    code = [cell for cell in notebooks.from_recipe(name).cells if cell.cell_type == "code"]
    asked = sum("results_table(" in cell.source for cell in code)  # a study may time itself
    kinds = {"transpose": ("transpose", 1), "study": ("facts", asked)}
    entry, timed = kinds.get(catalog.find(name).kind, ("matmul", 1))
    assert f"def {entry}(" in page
    shown = pages._live(name)["results_table("]()
    others = 0 if shown != NOT_MEASURED else page.count("choices_table(")  # another table says the same with no record
    assert timed <= page.count(shown) <= timed + others
    assert f"[Download]({stem}.py)" in page and f"[Notebook]({stem}.ipynb)" in page
    assert f'data-copy-file="../{stem}.py"' in page
    assert f"`cookbook copy {name} .`" in page
    for svg in re.findall(r"<figure[^>]*>(.*?)</figure>", page):
        ET.fromstring(svg)


@pytest.mark.parametrize("name", executed.params())
def test_a_page_has_every_picture_of_its_notebook(name):
    drawn = sum("image/svg+xml" in output.get("data", {}) for output in executed.outputs(name))
    page = pages.page(name)
    assert page.count('<figure class="picture"') >= drawn >= 1 and pages.NOT_EXECUTED not in page
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
