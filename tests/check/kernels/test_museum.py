"""The mistakes of docs/museum.md: each is flagged by its rule, and its mended kernel is not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cutlass.cute as cute
import pytest

from cookbook.check.kernels import tensors
from cookbook.recipe import catalog
from cookbook.testing import check

sys.path.insert(0, str(Path(__file__).parent))
import museum

PAGE = (catalog.recipes_root().parent / "docs" / "museum.md").read_text(encoding="utf-8")
SOURCE = Path(museum.__file__).read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"<!-- kernel: (\w+) -->.*?```python\n(.*?)```", PAGE, re.S))
ROWS = re.findall(r"^\| \[([^\]]*)\]\(#[^)]*\) \| .* \| ([^|]*) \| ([^|]*) \|$", PAGE, re.M)
TITLES = re.findall(r"^## (.*)\n\n<!-- kernel: (\w+) -->", PAGE, re.M)


def asked(name, fixed):
    if name == "stored":
        return museum.launch_stored, "f32[1,64]", fixed
    return museum.launch, name, "f32[256]", fixed


@pytest.mark.parametrize(
    "name, rules",
    [
        ("aliased", {"race"}),
        ("never_waited", {"race"}),
        ("one_arrives", {"race"}),
        ("stored", {"proxy fence"}),
        ("pingpong", {"deadlock"}),
        ("empty_tile", {"deadlock"}),
        ("left_early", {"exit"}),
        ("idle_warp", {"setmaxnreg"}),
        ("block_index", {"bounds"}),
        ("two_way", {"bank conflict"}),
    ],
)
def test_the_mistake_is_flagged_and_the_mended_kernel_is_not(name, rules):
    wrong, mended = check(*asked(name, False)), check(*asked(name, True))
    assert {one.rule for one in wrong.found} == rules and not wrong.not_followed
    assert all(Path(one.at.file).name == "museum.py" for one in wrong.found)
    assert mended.ok, str(mended)
    rows = {title: rule for title, rule, _ in ROWS}
    (title,) = (title for title, shown in TITLES if shown == name)
    assert rows[title] in rules


def test_the_page_shows_the_kernels_as_they_are():
    assert len(SHOWN) == len(ROWS) == len(TITLES) and len(SHOWN) >= 6
    for name, code in SHOWN.items():
        assert f"def {name}(" in code and code in SOURCE, name


@pytest.mark.parametrize("title, name", TITLES)
def test_what_nvidia_s_checker_says_is_what_the_page_says(title, name, capfd):
    said = []
    for fixed in (False, True):
        function, *given = asked(name, fixed)
        known: tensors.Symbols = {}
        arguments = [tensors.argument(value, known) for value in given]
        cute.compile(function, *arguments, options="--gpu-arch sm_90a warnings{nvvm}")
        said.append("verify" in capfd.readouterr().err)
    told = {(False, False): "silent", (True, True): "asks to verify, also when mended"}
    assert {row[0]: row[2] for row in ROWS}[title] == told[tuple(said)]
