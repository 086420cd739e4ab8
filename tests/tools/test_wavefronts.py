"""The wavefronts that a traced kernel takes are those that Nsight Compute counted, launch by launch."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass")

from cookbook.check.banks import Count
from cookbook.measure import records
from cookbook.recipe import catalog
from cookbook.simulate.lines import Line
from tools import wavefronts

# All CTAs of these do the same work at the size that was counted: one cluster is followed for all.
ALIKE = [
    "ampere/first_gemm",
    "ampere/smem_gemm",
    "ampere/ldmatrix_gemm",
    "hopper/tma_wgmma_gemm",
    "hopper/swizzle_modes_gemm",
    "hopper/warp_specialized_gemm",
    "hopper/multicast_gemm",
    "hopper/split_k_gemm",
    "hopper/pdl_chain",
    "hopper/gemv",
]


def rows(name: str, whole: bool) -> list[wavefronts.Row]:
    record = next(each for each in records.select(name, "counted") if each["status"] == "passed")
    return list(wavefronts.rows_of(name, record, whole))


@pytest.mark.parametrize("name", ALIKE)
def test_the_trace_has_as_many_as_ncu_counted(name: str) -> None:
    found = rows(name, whole=False)
    assert found and [row for row in found if not row.same] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", wavefronts.compared())
def test_every_kernel_that_was_counted_has(name: str) -> None:
    found = rows(name, whole=True)
    assert [row for row in found if not row.same] == []


def test_a_count_that_differs_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["wavefronts", "ampere/first_gemm"])
    one = Count(Line(1), "ldmatrix", 16, instructions=1, wavefronts=1, at_most=1, ideal=1, worst=0, avoidable=0)
    monkeypatch.setattr(wavefronts, "traced", lambda *_: ((one,), 0))
    assert wavefronts.main() == 1
    assert "DIFFER  ampere/first_gemm" in capsys.readouterr().out
    assert "ampere/first_gemm" in wavefronts.compared() and "hopper/grouped_gemm" not in wavefronts.compared()
    assert catalog.find("ampere/first_gemm").product.is_gemm
