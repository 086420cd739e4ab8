"""The table of kernels that others wrote; the kernels themselves only where a folder holds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import foreign

SOURCES = os.environ.get("COOKBOOK_FOREIGN", "")  # what `--sources` is given
REPORT = {
    "launches": [{"warps": 4, "steps": 30}, {"warps": 8, "steps": 70}],
    "found": [{"rule": "race", "at": {"line": 7}}],
    "not_followed": [],
    "seconds": 0.25,
}


def rows_of(until: str) -> str:
    """The page up to a section."""
    return foreign.PAGE.read_text(encoding="utf-8").partition(until)[0]


def test_a_row_says_how_far_a_kernel_was_followed():
    kernel = foreign.KERNELS[0]
    assert foreign.row(kernel, REPORT).endswith("| sm_80 | yes: 12 warps, 100 steps | race, line 7 | 0.2 |")
    stopped = REPORT | {"found": [], "not_followed": [{"at": {"line": 3}, "text": "an x<y> |\n\tz"}]}
    assert "| no: line 3: an x&lt;y&gt; / z | none so far |" in foreign.row(kernel, stopped)
    assert "| not traced: OSError: `x` |".replace("`", "'") in foreign.row(kernel, {"error": "OSError: `x`"})


def test_the_page_is_of_the_table_s_kernels():
    text = rows_of("## Faults")
    for kernel in foreign.KERNELS:
        assert f"| `{kernel.path}`" in text and kernel.note in text
    assert text.count("\n| `") == len(foreign.KERNELS)


def test_kernels_are_looked_for_among_examples_and_packages(tmp_path):
    example, package = foreign.KERNELS[0].path, "quack/gemm_default_epi.py"
    for file in (tmp_path / foreign.EXAMPLES / example, tmp_path / package):
        file.parent.mkdir(parents=True)
        file.touch()
    found = {kernel.path for _, kernel in foreign.chosen(tmp_path, "")}
    assert {path for path in found if not path.startswith("torch/")} == {example, package}  # torch is installed
    assert not list(foreign.chosen(tmp_path, "nothing"))


def test_a_run_that_was_cut_goes_on_where_it_was(tmp_path, monkeypatch):
    file, made = tmp_path / "log.jsonl", []
    for _ in range(2):
        log = foreign.Log(file)
        assert [log.of(key, lambda key=key: made.append(key) or {"of": key}) for key in "ab"] == [
            {"of": k} for k in "ab"
        ]
    assert made == ["a", "b"]
    assert foreign.Log(None).of("a", lambda: 1) == 1
    monkeypatch.setattr(foreign, "_code", lambda: "other code")
    with pytest.raises(SystemExit, match="answers of other code; needed a new file"):
        foreign.Log(file)


@pytest.mark.slow
@pytest.mark.skipif(not SOURCES, reason="COOKBOOK_FOREIGN names no folder with the kernels of others")
@pytest.mark.parametrize("number", range(len(foreign.KERNELS)), ids=[kernel.path for kernel in foreign.KERNELS])
def test_a_kernel_that_was_followed_still_is(number):
    kernel = foreign.KERNELS[number]
    if not foreign.file_of(Path(SOURCES), kernel.path).is_file():
        pytest.skip(f"no {kernel.path}")
    row = foreign.row(kernel, foreign.apart(Path(SOURCES), number))
    kept = [line for line in rows_of("## Faults").splitlines() if line.startswith("| `")][number]
    assert row.rpartition("|")[0].rpartition("|")[0] == kept.rpartition("|")[0].rpartition("|")[0]
