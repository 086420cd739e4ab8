"""The home page: its figure, numbers, minutes, gallery and atoms come from the model, the records and the catalog."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import executed
import numpy as np
import pytest

from cookbook import atoms
from cookbook.check import exercises
from cookbook.measure import records
from cookbook.recipe import catalog
from tools.publish import glance, home, moving, notebooks, thumbnails

SVG = "{http://www.w3.org/2000/svg}"


def rows(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# --- the moving figure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", range(8))
def test_the_figure_shows_what_the_banks_do(column):
    plain, swizzled = (moving.served(layout, column) for layout in moving.layouts().values())
    assert plain == [(column, row) for row in range(8)]  # one slot, a wavefront for each row
    assert swizzled == [(column ^ row, 0) for row in range(8)]  # eight slots, one wavefront


def test_each_chunk_is_drawn_where_the_layout_has_it():
    layout = moving.layouts()["Swizzle<3,4,3>"]
    root = ET.fromstring(moving.panel("x", layout).svg)
    slides = [g for g in root.iter(f"{SVG}g") if g.get("class") == "mv-slide"]
    moved = {(g.find(f"{SVG}text").text, re.search(r"--x:(-?[\d.]+)px", g.get("style"))[1]) for g in slides}
    slots = layout.byte_offsets()[:, ::8] // 16 % 8
    wanted = {(str(c), f"{(c - slots[r, c]) * 40:g}") for r in range(8) for c in range(8) if slots[r, c] != c}
    assert moved == wanted and len(slides) == np.count_nonzero(slots != np.arange(8))
    fallen = [g for g in root.iter(f"{SVG}g") if g.get("data-wavefront")]
    assert [g.get("data-wavefront") for g in fallen] == ["0"] * 8


def test_nothing_moves_with_reduced_motion_and_a_box_stops_it():
    shown = moving.figure()
    for animation in re.findall(r"animation:[^;}]*", shown):
        before = shown[: shown.index(animation)]
        assert before.rfind("prefers-reduced-motion:no-preference") > before.rfind("</style>")
    assert 'type="checkbox"' in shown and ".motion:has(input:checked)" in css()
    assert shown.count("<svg") == 2 and "\n" not in shown


def css():
    return (catalog.recipes_root().parent / "docs/assets/cookbook.css").read_text(encoding="utf-8")


# --- numbers and minutes ----------------------------------------------------------------------------------------


def test_without_records_no_number_is_claimed(tmp_path):
    shown = home.numbers(tmp_path)
    assert shown.count(glance.NOT_MEASURED) == 3 and "×" not in shown


def test_the_numbers_are_those_of_the_records():
    figures = re.findall(r"<strong>(.*?)</strong>", home.numbers())
    for figure, line in zip(figures[:2], glance.LINES, strict=False):
        assert figure == f"{glance.record_of(line)['peers'][line.peer]['ratio']:.2f}×"
    right, of = home.predicted()
    assert figures[2] == f"{right} of {of}" and 100 < right <= of


def test_a_count_that_differs_is_not_counted_as_predicted(tmp_path):
    name = "foundations/bank_conflicts"
    (record,) = records.select(name, "counted")
    right = len(record["figures"])
    next(iter(record["figures"].values()))["wavefronts"] += 1
    records.write([record], tmp_path)
    assert home.predicted(tmp_path) == (right - 1, right)
    records.write([record | {"code": "0" * 64}], tmp_path)
    assert home.predicted(tmp_path) == (0, 0)  # stale


def test_minutes_are_of_the_text_and_of_code_that_is_not_folded(monkeypatch):
    import nbformat

    def cell(lines, *tags):
        code = "\n".join(["import x", "# why", "", *["x = 1"] * lines])
        return nbformat.v4.new_code_cell(code, metadata={"tags": list(tags)})

    unfolds = "<details><summary>Tip</summary>" + "word " * 3000 + "</details>"
    text = nbformat.v4.new_markdown_cell("word " * 799 + "[word](a-long/address.md) " + unfolds)
    cells = [text, cell(10), cell(3000, "lab"), cell(3000, "folded")]
    monkeypatch.setattr(notebooks, "from_recipe", lambda name: nbformat.v4.new_notebook(cells=cells))
    home.minutes.cache_clear()
    name = "hopper/gemv"  # it builds on no page
    assert home.minutes(name) == 10 and home.spent([name, name]) == "20&nbsp;min"  # 4 + 2, rounded up to five
    home.minutes.cache_clear()


def test_the_paths_time_is_the_sum_of_its_rows():
    text = (catalog.recipes_root().parent / "docs/index.md").read_text(encoding="utf-8")
    (path,) = re.findall(r"## The main path\n(.*?)\n## ", text, re.S)
    shown = home.timed(path)
    minutes = [int(row[-1].removesuffix("&nbsp;min")) for row in rows(shown) if row[-1].endswith("&nbsp;min")]
    hours, quarter = map(int, re.search(r"\*\*(\d+) h(?: (\d+) min)?\*\*", shown).groups(default="0"))
    assert len(minutes) == 7 and abs(60 * hours + quarter - sum(minutes)) <= 7
    assert "<!--" not in shown and "evening" not in path, "no second figure beside it"
    count, asked = int(re.search(r"The (\d+) exercises", shown)[1]), set(re.findall(r"recipes/(\w+/\w+)\.md", path))
    pages = asked & {recipe.name for recipe in catalog.recipes()}
    assert count == sum(len(exercises.tasks(name)) for name in pages) >= len(pages)


# --- the gallery ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [executed.QUICK, pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_gallery_has_each_recipe_once_in_order_with_its_picture(names):
    """A recipe that was not executed has none."""
    for name in names or [recipe.name for recipe in catalog.recipes()]:
        executed.notebook(name)
    shown = home.gallery()
    assert re.findall(r'href="recipes/([\w/]+)/"', shown) == [recipe.name for recipe in catalog.recipes()]
    pictures = re.findall(r"<svg.*?</svg>", shown)
    least = len(names or catalog.recipes())
    assert least <= len(pictures) <= len(catalog.recipes()) and len(set(pictures)) > 0.8 * len(pictures)
    assert all(len(picture) < 5000 and "<text" not in picture and ET.fromstring(picture) for picture in pictures)
    assert shown.count("<ul") == shown.count("</ul>") == len({recipe.track for recipe in catalog.recipes()})


def test_a_thumbnail_keeps_colours_and_leaves_out_the_rest():
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 90">'
    boxes = '<rect x="0" y="60" width="20" height="10" fill="#123456"/><rect x="20" y="60" width="20" height="10" '
    svg = f'{head}<rect width="100" height="90" fill="#fff" class="f-card"/><text>t</text>{boxes}fill="#123456"/></svg>'
    root = ET.fromstring(thumbnails.thumbnail(svg))
    (path,) = list(root)
    assert path.get("fill") == "#123456" and path.get("d").count("M") == 2
    assert root.get("aria-hidden") == "true"


# --- which atom -------------------------------------------------------------------------------------------------


def test_each_cell_of_the_atoms_is_what_the_library_selects():
    header, _, *found = rows(home.which_atom())
    extents = [int(name.split()[0]) for name in header[3 : 3 + len(home.EXTENTS)]]
    bits_of = {dtype: bits for bits, dtype in home.DTYPES.items()}
    checked = 0
    for gpu, dtype, major, *cells, reader, _ in found:
        arch = home.GPUS[gpu]
        assert reader == f"`{atoms.reader(arch, major, bits_of[dtype])}`"
        for extent, cell in zip(extents, cells, strict=True):
            tile = (128, extent) if major == "K" else (extent, 128)
            try:
                wanted = f"`{atoms.select(major, bits_of[dtype], tile, arch).name}`"
            except ValueError:
                wanted = "none"
            assert cell == wanted
            checked += 1
    assert checked > 60 and {row[0] for row in found} == set(home.GPUS)


@pytest.mark.parametrize(
    ("gpu", "dtype", "major", "recipe"),
    [
        ("Hopper", "bf16, fp16", "K", "hopper/tuned_gemm"),
        ("Hopper", "bf16, fp16", "MN", "hopper/majors_gemm"),
        ("Ampere, Ada", "bf16, fp16", "K", "ampere/tuned_gemm"),
        ("Blackwell, tcgen05", "nvfp4", "K", "blackwell/nvfp4_gemm"),
        ("Blackwell, GeForce", "bf16, fp16", "K", "blackwell/geforce_gemm"),
        ("Hopper", "tf32", "K", ""),
    ],
)
def test_recipe_beside_an_atom_multiplies_such_operands_there(gpu, dtype, major, recipe):
    (row,) = [row for row in rows(home.which_atom()) if row[:3] == [gpu, dtype, major]]
    assert row[-1] == (f"[`{recipe}`](recipes/{recipe}.md)" if recipe else "")
