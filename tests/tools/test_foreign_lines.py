"""Wavefronts of kernels of others, by line: the trace, the listing and ncu's page are read together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cutlass")
pytest.importorskip("torch")

from cookbook.access import LANES
from cookbook.check import counted
from tools import foreign_lines
from tools.foreign import Foreign
from tools.foreign_lines import Row, joined, launch, name_of, rows_of, section
from tools.wavefronts import KINDS

SOURCE = """\
import cutlass
import cutlass.cute as cute
from cookbook.recipe.moved import SmemAllocator


@cute.kernel
def kernel(mX: cute.Tensor, mY: cute.Tensor, factor: cutlass.Constexpr):
    lane = cute.arch.lane_idx()
    sX = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout((32, 32), stride=(32, 1)), 16)
    for i in cutlass.range_constexpr(4):
        sX[lane, i] = mX[lane, i] * factor
    cute.arch.sync_threads()
    mY[lane, 0] = sX[
        0, lane
    ]


@cute.jit
def host(mX: cute.Tensor, mY: cute.Tensor, factor: cutlass.Constexpr):
    kernel(mX, mY, factor).launch(grid=(2, 1, 1), block=(32, 1, 1))
"""
OWN = Foreign("own.py", "sm_90a", lambda m: m.host, lambda: ["f32[32,8]", "f32[32,n]", 3.0], {"n": 8})
STORED, LOADED = 2 * LANES, 2  # two CTAs: STS.128 of rows of 128 bytes, all lanes at four banks; a row of a tile


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A folder with the kernel, and its listing."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "own.py").write_text(SOURCE)
    launch(folder, OWN, folder, "cpu")
    return folder


def rows(sources: Path, **counts: int) -> list[Row]:
    """The rows for a page on which ncu counted so many wavefronts at the first instruction of each kind."""
    page = [",".join(counted.COLUMNS)]
    for line in (sources / f"{name_of(OWN)}.lines").read_text().splitlines():
        opcode = line.split()[0]
        page.append(f"{opcode},2,{counts.pop(KINDS.get(opcode.split('.')[0], ''), 0)},0")
    (sources / f"{name_of(OWN)}.csv").write_text("\n".join(page) + "\n")
    return list(rows_of(sources, OWN, sources))


def test_lines_of_a_statement_and_joined_stores_are_counted(sources):
    found = {row.what: row for row in rows(sources, st=STORED, ld=LOADED)}
    assert {what: (row.line, row.traced) for what, row in found.items()} == {"st": (11, STORED), "ld": (13, LOADED)}
    assert all(row.same for row in found.values())


def test_a_wavefront_less_differs(sources):
    assert [row.what for row in rows(sources, st=STORED, ld=LOADED - 1) if not row.same] == ["ld"]


def test_another_listing_is_refused(sources):
    rows(sources, st=STORED, ld=LOADED)
    page = sources / f"{name_of(OWN)}.csv"
    page.write_text(page.read_text().replace("STS.128", "STS.64"))
    with pytest.raises(ValueError, match="page of own: got STS"):
        list(rows_of(sources, OWN, sources))


def test_as_many_neighbours_are_joined_as_an_instruction_takes():
    stores = [(4, np.arange(LANES) * 128 + 4 * number) for number in range(4)]
    assert joined(stores, 4, load=False) == 4 * LANES
    assert joined(stores, 16, load=False) == LANES
    assert joined(stores[:3], 16, load=False) == 3 * LANES  # one is missing
    assert joined([*stores[:2], *stores[:2]], 16, load=False) == 4 * LANES  # no neighbours


def test_the_section_has_both_numbers_where_they_differ():
    text = section(
        [Row("a/k.py", "", "a/k.py", 7, "st", 1024, 1024), Row("a/k.py", "", "b/c.py", 9, "ld", 8, 6)], "a GPU"
    )
    assert "1 of 2 lines of 1 launches, of 1 files" in text and text.startswith(foreign_lines.MARK)
    assert "| `a/k.py` | 7: st 1,024; 9 of `b/c.py`: ld 6 (traced 8) | 1 of 2 |" in text


def test_the_page_has_the_kernels_that_are_compared():
    counted_ones = foreign_lines.PAGE.read_text(encoding="utf-8").partition(foreign_lines.MARK)[2]
    for kernel in foreign_lines.compared():
        assert f"| `{kernel.path}`" in counted_ones and kernel.note in counted_ones
