"""Wavefronts by line of Python: ncu's page is read by the lines that the compiler says of its instructions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from cookbook.check import counted
from cookbook.recipe import catalog
from tools import sass_lines
from tools.wavefronts import KINDS, traced

CONFLICTING = "ampere/first_gemm"


def page_of(name: str, more: int = 0) -> str:
    """A page of ncu's with the trace's wavefronts at the first instruction of each line and kind, one with more."""
    module = catalog.load(name)
    left = Counter[sass_lines.Key]()
    for one in traced(module, module.CONFIG, sass_lines.TARGET, sass_lines.DTYPE, counted.COUNTED_SHAPE, False)[0]:
        left[one.line, one.what] += one.wavefronts
    left[min(left)] += more
    rows = [",".join(f'"{column}"' for column in ("#", *counted.COLUMNS))]
    for number, (opcode, line) in enumerate(sass_lines.lines_of(module, module.CONFIG)):
        rows.append(f'"{number}","{opcode} R0","1","{left.pop((line, KINDS.get(opcode.split(".")[0], "")), 0)}","0"')
    assert not left
    return "\n".join(rows)


def rows_of(more: int = 0) -> list[sass_lines.Row]:
    return list(sass_lines.rows_of(CONFLICTING, sass_lines.needed(page_of(CONFLICTING, more)), whole=False))


def test_each_line_of_the_trace_has_an_instruction_of_its_kind() -> None:
    found = rows_of()
    assert all(row.same and row.counted == row.traced > 0 and row.source for row in found)
    assert Counter(row.what for row in found) == {"ldmatrix": 2, "cp.async": 1}


def test_a_wavefront_less_is_told_with_its_line(tmp_path: Path, monkeypatch, capsys) -> None:
    wrong = rows_of(more=-1)
    (tmp_path / "ampere__first_gemm.csv").touch()
    monkeypatch.setattr("sys.argv", ["sass_lines", str(tmp_path)])
    monkeypatch.setattr(sass_lines, "rows_of", lambda *_: wrong)
    assert sass_lines.main() == 1
    *said, last = capsys.readouterr().out.splitlines()
    (told,) = [line for line in said if line.startswith("DIFFER")]
    assert "cute.copy" in told and last == "2 of 3 counts of 1 kernels, line by line, are the same"


def test_other_machine_code_is_refused() -> None:
    page = page_of(CONFLICTING).replace("LDSM", "LDS", 1)
    with pytest.raises(ValueError, match="page of ampere/first_gemm : got LDS"):
        list(sass_lines.rows_of(CONFLICTING, page, whole=False))
