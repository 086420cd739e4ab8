"""A recipe's card, the page of all records, and links to a repository whose address may not be known."""

from __future__ import annotations

import executed
import pytest

from cookbook.measure import records
from cookbook.recipe import catalog
from tools.publish import address, cards, results

NAME = "hopper/tma_wgmma_gemm"
ROOT = catalog.recipes_root().parent


def rows(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]


# --- the card ---------------------------------------------------------------------------------------------------


def test_every_level_has_its_status(tmp_path):
    NAME = executed.HOPPER
    executed.notebook(NAME)
    checked = cards.checked_here(NAME)
    assert set(checked) >= {"layout", "model", "product", "pipeline", "compiled"} and set(checked.values()) == {
        "passed"
    }
    here, *recorded = rows(cards.levels_table(NAME, tmp_path))
    assert here == [", ".join(checked), "passed", "any machine, no GPU", "with this page"]
    assert [row[:2] for row in recorded] == [[level, "not measured"] for level in records.LEVELS]
    recorded = {(row[0], row[2]): row for row in rows(cards.levels_table(NAME))[1:]}
    for level in records.LEVELS:
        for gpu, found in records.by_gpu(r for r in records.select(NAME, level) if not records.is_stale(r)).items():
            _, status, _, days = recorded[level, gpu]
            assert status == f"passed ({len(found)} record{'s' * (len(found) > 1)})"
            assert {r["date"].split()[0] for r in found} == set(days.split(", "))


def test_a_failed_level_is_named(monkeypatch):
    from types import SimpleNamespace

    text = "Checked: x.\nmodel   8x8x8  passed   a\nmodel   9x9x9  failed   b\nlayout  sm_80  passed  c\n"
    cell = SimpleNamespace(get=lambda key, default: [Output(text)])
    monkeypatch.setattr(cards.notebooks, "read", lambda name: SimpleNamespace(cells=[cell]))
    assert cards.checked_here(NAME) == {"model": "1 of 2 FAILED", "layout": "passed"}


class Output(dict):
    output_type = "stream"

    def __init__(self, text):
        super().__init__(text=text)


def test_all_levels_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "checked_here", lambda name: {} if name == "primer/layouts" else {"layout": "passed"})
    monkeypatch.setattr(cards.notebooks, "was_executed", lambda notebook: True)
    assert cards.verdict(NAME, tmp_path) == "Checked with no GPU; no GPU has run it"
    (passed,) = records.select(NAME, "ran", "bfloat16")[:1]
    records.write([passed | {"device": "NVIDIA H200"}], tmp_path)
    assert cards.verdict(NAME, tmp_path) == "Checked with no GPU; ran on H200"
    timed = records.select(NAME, "timed", "bfloat16")[0]
    records.write([passed, timed], tmp_path)
    gpu = timed["device"].removeprefix("NVIDIA ").split()[0]
    assert cards.verdict(NAME, tmp_path) == f"Checked with no GPU; ran and timed on {gpu}"
    counted = records.select(NAME, "counted", "bfloat16")[0]
    records.write([passed, timed, counted], tmp_path)
    assert cards.verdict(NAME, tmp_path) == f"Checked with no GPU; ran and timed on {gpu}"
    assert cards.verdict("foundations/bank_conflicts").startswith("Checked with no GPU; counted on ")
    records.write([passed | {"status": "failed"}], tmp_path)
    assert "ran: FAILED" in cards.verdict(NAME, tmp_path)
    assert cards.verdict("primer/layouts") == "Needs no GPU"


def test_a_study_shows_the_levels_that_it_has():
    executed.notebook(executed.FOUNDATION)
    levels = {row[0] for row in rows(cards.levels_table(executed.FOUNDATION))}
    assert levels == {"layout, compiled", "counted"}


def test_the_buttons_lead_to_what_is_there(tmp_path, monkeypatch):
    recipe = catalog.find(NAME)
    without = cards.card(recipe, tmp_path)
    for text, link in (("Download", "tma_wgmma_gemm.py"), ("Notebook", "tma_wgmma_gemm.ipynb")):
        assert f"[{text}]({link}){{ .md-button }}" in without
    assert f"[Changes from {recipe.builds_on.split('/')[1]}](#{cards.DIFFERENCE})" in without
    assert "Playground" not in without and "[Source]" not in without and "[Edit]" not in without
    (tmp_path / "playground").mkdir()
    (tmp_path / cards.PLAYGROUND).write_text("")
    committed = cards.notebooks.read(NAME)  # with an address its first cell would be another
    monkeypatch.setattr(cards.notebooks, "read", lambda name: committed)
    monkeypatch.setattr(address, "repository", lambda settings=None: "https://example.org/a/b")
    shown = cards.card(recipe, tmp_path)
    assert f"[Playground](../../{cards.PLAYGROUND}?recipe={NAME})" in shown
    assert f"[Source](https://example.org/a/b/blob/main/recipes/{NAME}.py)" in shown
    assert f"[Edit](https://example.org/a/b/edit/main/recipes/{NAME}.py)" in shown


# --- the repository's address -----------------------------------------------------------------------------------


def test_the_address_is_read_in_one_place(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "x"\n\n[tool.cookbook]\n# where\nrepository = ""\n')
    assert address.repository(file) == "" and address.source_of("a.py", settings=file) == ""
    file.write_text('[tool.cookbook]\nrepository = "https://github.com/a/b/"\n')
    assert address.repository(file) == "https://github.com/a/b"
    assert address.source_of("a.py", settings=file) == "https://github.com/a/b/blob/main/a.py"
    assert address.source_of("a.py", edit=True, settings=file) == "https://github.com/a/b/edit/main/a.py"
    address.repository()  # this tree has the setting


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[project]\nrepository = "https://a.b/c"\n', "needed .tool.cookbook. with repository"),
        ('[tool.cookbook]\nother = 1\n[x]\nrepository = "https://a.b/c"\n', "needed .tool.cookbook."),
        ('[tool.cookbook]\nrepository = "javascript:x"\n', "repository: got 'javascript:x'; needed an address"),
    ],
)
def test_a_wrong_address_is_refused(tmp_path, text, says):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ValueError, match=says):
        address.repository(tmp_path / "pyproject.toml")


# --- all records ------------------------------------------------------------------------------------------------


def test_every_record_stands_in_one_of_the_two_tables():
    times, others = rows(results.times()), rows(results.others())
    everything = records.read()
    timed = [r for r in everything if r["level"] == "timed" and r["shape"]]
    assert len(times) == len(timed) and len(times) + len(others) == len(everything)
    assert {len(row) for row in times} == {11} and {len(row) for row in others} == {8}


def test_a_row_is_what_its_record_says(tmp_path):
    found = records.of_one_gpu("hopper/tuned_gemm", "timed", "bfloat16", device="NVIDIA H200")
    (record,) = [r for r in found if r["shape"] == [8192] * 3]
    records.write([record], tmp_path)
    (row,) = rows(results.times(tmp_path))
    peers, figures = record["peers"], record["figures"]
    link = "[`hopper/tuned_gemm`](recipes/hopper/tuned_gemm.md)"
    assert row[:6] == ["H200", "sm_90", link, "bf16", "", "8192 x 8192 x 8192"]
    assert row[6:10] == [
        f"{1000 * figures['median_ms']:.2f}",
        f"{peers['torch.matmul']['ratio']:.3f}",
        f"{peers['quack']['ratio']:.3f}",
        f"{peers['ceiling']['ratio']:.1%}",
    ]
    assert row[10] == record["date"].split()[0]
    records.write([record | {"code": "0" * 64, "device": "NVIDIA B200"}], tmp_path)
    assert [(row[0], row[10].endswith("stale")) for row in rows(results.times(tmp_path))] == [
        ("B200", True),
        ("H200", False),
    ]


def test_the_filters_name_columns_of_their_tables():
    for shown in (results.times(), results.others()):
        box, header = shown.split("\n\n")[0], shown.split("\n\n")[1].splitlines()[0]
        wanted = box.split('data-filters="')[1].split('"')[0].split(",")
        assert set(wanted) <= {cell.strip() for cell in header.strip("|").split("|")}


@pytest.fixture
def hook():
    import importlib.util

    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("mkdocs_hook", ROOT / "scripts" / "mkdocs_hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_main_lines_and_groups(hook, monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(hook.publishing, "write_pages", lambda docs: catalog.recipes())
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"), nav=[{"Recipes": []}], extra={}, site_url="")
    (entry,) = hook.on_config(config).nav
    sections = {name: pages for each in entry["Recipes"] for name, pages in each.items()}
    tracks = list(dict.fromkeys(r.track.capitalize() for r in catalog.recipes()))
    after = dict.fromkeys(r.aside for r in catalog.recipes() if r.aside and r.track == "foundations")
    assert list(sections) == [*tracks, *after]
    first, *others = sections["Hopper"]
    own = [r for r in catalog.recipes() if r.track == "hopper"]
    assert first == "recipes/hopper/index.md"
    groups = dict.fromkeys(r.aside for r in own if r.aside)
    assert [name for each in others for name in each if name in groups] == list(groups)
    inside = {name: pages for each in others for name, pages in each.items() if name in groups}
    assert {name: [path for page in pages for path in page.values()] for name, pages in inside.items()} == {
        name: [f"recipes/{r.name}.md" for r in own if r.aside == name] for name in groups
    }


@pytest.mark.parametrize("known", ["", "https://example.org/a/b"])
def test_site_links_to_the_repository_where_it_has_an_address(hook, monkeypatch, known):
    from types import SimpleNamespace

    monkeypatch.setattr(hook.publishing, "write_pages", lambda docs: [])
    monkeypatch.setattr(address, "repository", lambda settings=None: known)
    config = hook.on_config(SimpleNamespace(docs_dir=str(ROOT / "docs"), nav=[], extra={}, site_url=""))
    assert [link["link"] for link in config.extra.get("social", ())] == ([known] if known else [])
    page = SimpleNamespace(file=SimpleNamespace(src_uri="open/a.md", src_path="open/a.md"), edit_url="x", meta={})
    hook.on_page_markdown("text", page, config)
    assert page.edit_url == (f"{known}/edit/main/docs/open/a.md" if known else None)
    assert page.meta == {"search": {"exclude": True}}  # an issue is for contributors
