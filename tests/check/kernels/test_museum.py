"""The mistakes of docs/museum.md: each is flagged by its rule, and its mended kernel is not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cutlass.cute as cute
import pytest

from cookbook.check.kernels import tensors
from cookbook.check.pipeline.repair import MOST
from cookbook.check.subjects import load_file
from cookbook.recipe import catalog
from cookbook.testing import check
from tools.publish import museum as publishing

sys.path.insert(0, str(Path(__file__).parent))
import museum

PAGE = (catalog.recipes_root().parent / "docs" / "museum.md").read_text(encoding="utf-8")
SOURCE = Path(museum.__file__).read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"<!-- kernel: (\w+) -->.*?```python\n(.*?)```", PAGE, re.S))
ROWS = re.findall(r"^\| \[([^\]]*)\]\(#[^)]*\) \| .* \| ([^|]*) \| ([^|]*) \|$", PAGE, re.M)
TITLES = re.findall(r"^## (.*)\n\n<!-- kernel: (\w+) -->", PAGE, re.M)


def asked(name, fixed):
    return check(*museum.asked(name, fixed), arch=museum.arch(name))


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
        ("given_back", {"race"}),
        ("just_asked", {"race", "exit"}),  # nor is the store over when the CTA ends
        ("two_way", {"bank conflict"}),
    ],
)
def test_the_mistake_is_flagged_and_the_mended_kernel_is_not(name, rules):
    wrong, mended = asked(name, False), asked(name, True)
    assert {one.rule for one in wrong.found} == rules and not wrong.not_followed
    assert all(Path(one.at.file).name == "museum.py" for one in wrong.found)
    assert mended.ok, str(mended)
    rows = {title: rule for title, rule, _ in ROWS}
    (title,) = (title for title, shown in TITLES if shown == name)
    assert rows[title] in rules


MENDED = {  # what is suggested, in a few of its words, and whether it is a line to put in
    "aliased": ("cute.arch.sync_threads()", True),
    "never_waited": ("a wait for mbarrier", False),
    "one_arrives": ("cute.arch.sync_warp()", True),
    "stored": ("cute.arch.fence_proxy", True),
    "pingpong": ("arrive at the other warps' barrier", False),
    "empty_tile": ("leave out the arrival", False),
    "given_back": ("cute.arch.fence_view_async_tmem_load()", True),
    "just_asked": ("cute.arch.fence_view_async_tmem_store()", True),
    "left_early": ("cluster_arrive(); cute.arch.cluster_wait()` at the end", True),
    "idle_warp": ("let all warps of the warpgroup execute the `setmaxregister_decrease`", False),
}


@pytest.mark.parametrize("name", [name for _, name in TITLES])
def test_a_repair_is_suggested_where_one_step_mends(name, tmp_path, monkeypatch):
    report = asked(name, False)
    if name not in MENDED:
        assert not report.repairs
        return
    (repair,) = report.repairs
    words, is_line = MENDED[name]
    assert words in repair.text and bool(repair.code) == is_line and repair.text in str(report)
    assert report.seconds < 5 and 1 <= repair.tries <= MOST
    if not is_line:
        return
    lines = SOURCE.splitlines()  # the line that is suggested, put in as it stands
    first = next(n for n, line in enumerate(lines) if line.startswith(f"def {name}("))
    last = next(n for n in range(first, len(lines)) if not lines[n].strip())
    at_end = repair.text.endswith("at the end of the kernel")
    place = last if at_end else repair.at.line - (not repair.after)
    lines.insert(place, " " * (4 if at_end else repair.indent) + repair.code)
    (tmp_path / "museum.py").write_text("\n".join(lines) + "\n")
    mended = load_file(tmp_path / "museum.py")
    monkeypatch.setattr(sys.modules[__name__], "museum", mended)
    assert asked(name, False).ok


def test_the_site_shows_what_the_check_says():
    shown = publishing.shown(PAGE)
    assert shown.count('<figure class="picture"') == len(SHOWN) - 1  # a bank conflict needs no order
    for name, code in SHOWN.items():
        assert f'```python linenums="{SOURCE[: SOURCE.index(code)].count(chr(10)) + 1}"\n{code}' in shown, name
    assert shown.count("repair: ") == len(MENDED)
    assert publishing.shown("# Another page") == "# Another page"
    with pytest.raises(ValueError, match="got aliased"):
        publishing.shown(PAGE.replace("total = sA[tidx]", "total = sA[0]"))


def test_the_page_shows_the_kernels_as_they_are():
    assert len(SHOWN) == len(ROWS) == len(TITLES) and len(SHOWN) >= 6
    for name, code in SHOWN.items():
        assert f"def {name}(" in code and code in SOURCE, name


@pytest.mark.parametrize("title, name", TITLES)
def test_what_nvidia_s_checker_says_is_what_the_page_says(title, name, capfd):
    said = []
    for fixed in (False, True):
        function, *given = museum.asked(name, fixed)
        known: tensors.Symbols = {}
        arguments = [tensors.argument(value, known) for value in given]
        cute.compile(function, *arguments, options=f"--gpu-arch {museum.arch(name)} warnings{{nvvm}}")
        said.append("verify" in capfd.readouterr().err)
    told = {(False, False): "silent", (True, True): "asks to verify, also when mended"}
    assert {row[0]: row[2] for row in ROWS}[title] == told[tuple(said)]
