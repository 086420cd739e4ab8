"""The playground's views inside the lessons: what they compute is what the package computes, and lessons ask it right.

They run in Chromium alone, with no driver: the page writes what it found into itself, and Chromium prints the page.
"""

from __future__ import annotations

import html
import json
import random
import re
import shlex
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from cookbook import atoms, banks
from cookbook.cli.app import app
from cookbook.draw import timeline
from cookbook.layouts import Layout, SmemLayout
from cookbook.recipe import catalog
from cookbook.solve.instructions import parse
from cookbook.swizzle import Swizzle

from .conftest import NAMES, ROOT, served

VIEW = re.compile(r"<(swizzle-view|bank-view|barrier-timeline)( [^>]*)>(.*?)</\1>", re.DOTALL)
LESSONS = {
    "foundations/bank_conflicts": ["bank-view"],
    "foundations/xor_swizzle": ["bank-view"],
    "foundations/swizzle_parameters": ["swizzle-view"],
    "foundations/mma_smem_atoms": ["bank-view"],
    "hopper/tma_wgmma_gemm": ["swizzle-view", "bank-view"],
    "ampere/pipelined_gemm": ["barrier-timeline"],
    "hopper/multistage_gemm": ["barrier-timeline"],
}
PAGE = """<!doctype html><meta charset="utf-8"><body>{views}<pre id="found"></pre>
<script type="module">
import "./elements.js";
const of = ({{ lanes, counted, addresses, said, steps }}) => ({{
  lanes: lanes && [...lanes], counted, addresses: addresses && [...addresses], said: said.textContent, steps }});
document.querySelector("#found").textContent = JSON.stringify([...document.querySelectorAll("{names}")].map(of));
</script>"""
NAMES_OF_VIEWS = "swizzle-view, bank-view, barrier-timeline"


def views_of(name: str) -> list[tuple[str, dict[str, str], str]]:
    """(element, attributes, what stands inside) of each view in a recipe's markdown cells."""
    text = re.sub(r"(?m)^# ?", "", catalog.find(name).file.read_text(encoding="utf-8"))
    found = VIEW.findall(text)
    return [(tag, dict(re.findall(r'([\w-]+)="([^"]*)"', given)), inside.strip()) for tag, given, inside in found]


def shown(views: list[tuple[str, dict[str, str]]], folder) -> list[dict]:
    """What Chromium makes of these elements."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is on PATH")
    shutil.copytree(ROOT / "docs" / "playground", folder, dirs_exist_ok=True)
    written = ("".join(f' {key}="{html.escape(value)}"' for key, value in given.items()) for _, given in views)
    made = "".join(f"<{tag}{given}></{tag}>" for (tag, _), given in zip(views, written, strict=True))
    (folder / "views.html").write_text(PAGE.format(views=made, names=NAMES_OF_VIEWS), encoding="utf-8")
    with served(folder) as address:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
        ran = subprocess.run(
            [*command, f"--user-data-dir={folder / 'profile'}", "--dump-dom", address + "views.html"],
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', ran.stdout, re.S)[1]))


def layout_of(given: dict[str, str]) -> SmemLayout:
    """The tile that a view's attributes say, by the package."""
    rows, columns, bits = (int(given[key]) for key in ("rows", "columns", "bits"))
    swizzle = Swizzle(*map(int, given.get("swizzle", "0,4,3").split(",")))
    if given.get("layout", "row") != "row":
        return SmemLayout(atoms.tile(atoms.atom(given["layout"], bits), (rows, columns)).outer, swizzle, bits)
    return SmemLayout(Layout((rows, columns), (columns + int(given.get("padding", 0)), 1)), swizzle, bits)


def test_lessons_have_their_views():
    assert {name: [tag for tag, _, _ in views_of(name)] for name in LESSONS} == LESSONS


@pytest.mark.parametrize("name", [name for name, tags in LESSONS.items() if "bank-view" in tags])
def test_the_command_inside_a_view_counts_the_same(name):
    """For who has no script: the command takes what the element shows."""
    for tag, given, inside in views_of(name):
        if tag != "bank-view":
            continue
        access = parse(given["access"])
        at = map(int, given.get("at", "0,0").split(","))
        asked = access.access(layout_of(given).byte_offsets(), int(given["bits"]), *at)
        counted = banks.wavefronts(asked.addresses, asked.width, load=access.name.startswith("ld"))
        command = shlex.split(inside.strip("`"))
        (said,) = json.loads(CliRunner().invoke(app, [*command[1:], "--json"]).stdout)
        assert (said["wavefronts"], said["ideal"]) == (counted.actual, counted.ideal)


def test_views_compute_what_the_package_computes(tmp_path):
    draw, views = random.Random(48), []
    for _ in range(120):
        bits = draw.choice((8, 16, 32))
        width = draw.choice((2, 3, 4))  # of a vector: 2**width bytes
        vector = (8 << width) // bits
        rows, columns = draw.choice((8, 16, 32)), 8 * vector * draw.choice((1, 2))
        shift = draw.choice((3, 4, 5))
        swizzle = f"{draw.randint(0, 3)},{draw.choice((width, width, width + 1))},{shift}"
        tall = min(rows, 32)
        access = f"{draw.choice(('ld', 'st'))}{vector * bits}@{tall}x{vector * (32 // tall)}"
        given = {"rows": rows, "columns": columns, "bits": bits, "swizzle": swizzle, "access": access}
        given["padding"] = draw.choice((0, 0, vector, 4 * vector))
        views.append(("bank-view", {key: str(value) for key, value in given.items()}))
    views += [(tag, given) for name in LESSONS for tag, given, _ in views_of(name)]
    found = shown(views, tmp_path / "site")
    conflicts = 0
    for (tag, given), got in zip(views, found, strict=True):
        if tag == "barrier-timeline":
            stages, tiles, load, mma = (int(given[key]) for key in ("stages", "tiles", "load", "mma"))
            steps = timeline.schedule(stages, tiles, load, mma)
            all_units = steps[-1].math_end - steps[0].math_start
            assert f"wait {all_units - tiles * mma:g} of {all_units:g} units" in got["said"]
            continue
        table = layout_of(given).byte_offsets()
        if tag == "swizzle-view":
            assert got["addresses"] == table.reshape(-1).tolist()
            continue
        asked = parse(given["access"]).access(table, int(given["bits"]), *map(int, given.get("at", "0,0").split(",")))
        counted = banks.wavefronts(asked.addresses, asked.width, load=given["access"].startswith("ld"))
        assert got["lanes"] == asked.addresses.tolist(), given
        assert (got["counted"]["actual"], got["counted"]["ideal"]) == (counted.actual, counted.ideal), given
        assert ("no bank conflict" in got["said"]) == (counted.excess == 0)
        conflicts += counted.excess > 0
    assert 20 < conflicts < 110


def test_a_number_that_makes_no_sense_is_said(tmp_path):
    views = [
        ("bank-view", {"rows": "8", "columns": "64", "swizzle": "3,4,2", "access": "ld128@8x8"}),
        ("bank-view", {"rows": "8", "columns": "64", "access": "ld128@9x9"}),
        ("swizzle-view", {"rows": "8", "columns": "64", "bits": "16", "swizzle": "3,0,3"}),
    ]
    said = [each["said"] for each in shown(views, tmp_path / "site")]
    assert (
        said[0].startswith("S: got 2 in S<3,4,2>; needed") and "needed columns" in said[1] and said[2].startswith("M:")
    )
