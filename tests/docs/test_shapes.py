"""docs/shapes.md: its code runs and says what stands there, and its tables are what the host side does."""

from __future__ import annotations

import re

import pytest
import torch
from cutlass.cute.runtime import from_dlpack
from pretend import pretended

from cookbook.ops import choice
from cookbook.recipe import catalog
from tools.publish import shape_tables

PAGE = (catalog.recipes_root().parent / "docs" / "shapes.md").read_text(encoding="utf-8")
RECIPE = "hopper/tma_wgmma_gemm"
BF16 = torch.bfloat16
H200, A100 = choice.H200, choice.Gpu((8, 0), 108)


def rows_of(header: str) -> list[list[str]]:
    """The rows of the page's table whose header begins so."""
    lines = PAGE[PAGE.index(f"| {header}") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[2:]]


def weight(n: int, k: int, pitch: int = 0, dtype=BF16) -> torch.Tensor:
    """b (K, N), K-major, with columns `pitch` elements apart."""
    return torch.zeros(n, pitch or k, dtype=dtype)[:, :k].T


def test_the_layouts_of_the_page():
    (block,) = re.findall(r"```python\n(x = torch.*?)```", PAGE, re.S)
    known = {"torch": torch, "from_dlpack": from_dlpack}
    first, *lines = block.splitlines()
    exec(first, known)
    assert len(lines) == 4
    for line in lines:
        code, said = line.split("  # ")
        assert str(eval(code, known)).endswith(f" o {said}>"), line


def test_an_address_is_no_promise_about_the_rows():
    """`assumed_align` and mark_layout_dynamic: the page's second line of promises."""
    made = from_dlpack(torch.empty(30, 24, dtype=BF16), assumed_align=16).mark_layout_dynamic()
    assert str(made).endswith("(?,?):(?{i64},1)>")
    widths = {promise: 16 // len(shape_tables.loads(*promise)) for promise in shape_tables.PROMISES}
    assert widths == {(2, 1): 2, (16, 1): 2, (8, 4): 8, (16, 8): 16}
    assert "| 16 bytes | 1 elements | 8 x `ld.global.b16` | 2 |" in shape_tables.alignment()


def test_a_hundred_products_need_few_kernels():
    *each, together = [line.split(" | ") for line in shape_tables.kernels().splitlines()[2:]]
    assert [name for name, *_ in each] and int(together[1]) == 100
    assert (
        int(together[2].strip(" |")) == sum(int(row[2].strip(" |")) for row in each) < 60
    )  # a family has a tile for nearly each


def test_run_time_sizes_cost_the_main_loop_nothing_to_speak_of():
    dynamic, fixed = shape_tables.compiled_for(None), shape_tables.compiled_for(shape_tables.EVEN)
    assert abs(dynamic.registers - fixed.registers) <= 8
    assert abs(dynamic.loop - fixed.loop) <= 0.1 * fixed.loop
    assert dynamic.instructions > fixed.instructions


CALLS = {  # what is new, by the words of the page, against a (16, 32) times b (32, 24)
    "the addresses": lambda: (torch.zeros(16, 32, dtype=BF16), weight(24, 32), None),
    "M, K or the row stride of A": lambda: (torch.zeros(17, 48, dtype=BF16)[:, :40], weight(24, 40), None),
    "N, odd now": lambda: (torch.zeros(16, 32, dtype=BF16), weight(23, 32), None),
    "dtype": lambda: (torch.zeros(16, 32, dtype=torch.float16), weight(24, 32, dtype=torch.float16), None),
    "an `out` that is not aligned": lambda: (
        torch.zeros(16, 32, dtype=BF16),
        weight(24, 32),
        torch.zeros(16 * 24 + 1, dtype=BF16)[1:].view(16, 24),
    ),
}


@pytest.mark.parametrize(("new", "plan", "kernel"), rows_of("what is new"))
def test_what_a_new_kind_of_call_needs(monkeypatch, new, plan, kernel):
    module = pretended(RECIPE, monkeypatch)
    module.matmul(torch.zeros(16, 32, dtype=BF16), weight(24, 32))
    a, b, out = CALLS[new]()
    module.matmul(a, b, out=out)
    assert len(module.planned) == (1 if plan == "kept" else 2)
    assert len(module.GEMM.kernels) == (1 if kernel == "kept" else 2)


def test_every_row_of_that_table_is_tried():
    assert {new for new, *_ in rows_of("what is new")} == set(CALLS)


OPERANDS = {  # by the words of the page: K, row stride, bytes that it begins behind a multiple of 16
    "K = 4096, rows 4096 apart": (4096, 4096, 0),
    "K = 4095, rows 4096 apart (`x[:, :4095]`)": (4095, 4096, 0),
    "K = 4095, rows 4095 apart": (4095, 4095, 0),
    "begins at an odd element (`x.view(-1)[1:]`)": (4096, 4096, 2),
}


@pytest.mark.parametrize(("name", "alone", "by_ops"), rows_of("operands, bf16"))
def test_which_operands_are_read_where_they_lie(name, alone, by_ops):
    k, pitch, misaligned = OPERANDS[name]
    a, b = choice.Laid((64, k), (pitch, 1), misaligned), choice.Laid((k, 64), (1, pitch), misaligned)
    errors = {}
    for recipe in (RECIPE, "ampere/tuned_gemm"):
        gemm = catalog.load(recipe).GEMM
        try:
            gemm.major_of("a", a, 1, gemm.whole)
        except ValueError as error:
            errors[recipe] = str(error)
    copies = {gpu: choice.options(a, b, "bfloat16", gpu)[0].copies for gpu in (H200, A100)}
    assert bool(errors.get(RECIPE)) == alone.startswith("error") == bool(copies[H200])
    assert bool(errors.get("ampere/tuned_gemm")) == ("error" in alone) == bool(copies[A100])
    if "stride" in alone:
        assert "4095" in errors[RECIPE] and "16 bytes" in errors[RECIPE]
    if "address" in alone:
        assert "address" in errors[RECIPE]
    assert ("copies" in by_ops) == ("error" in alone)


def test_the_ragged_times_are_of_the_records():
    assert (" times |" in shape_tables.ragged()) == ("H200" in shape_tables.ragged_where())


def test_ragged_times_of_other_records(monkeypatch):
    def record(shape, ours, theirs):
        about = {"shape": list(shape), "device": "A GPU", "date": "2026-11-22 10:00"}
        return about | {"figures": {"median_ms": ours}, "peers": {"torch.matmul": {"median_ms": theirs}}}

    known = [record(shape_tables.EVEN, 2.0, 1.0), record(shape_tables.ODD, 3.0, 4.0)]
    monkeypatch.setattr(shape_tables.records, "select", lambda name, *_: known if name == RECIPE else [])
    monkeypatch.setattr(shape_tables.records, "is_stale", lambda r: r["figures"]["median_ms"] > 9)
    monkeypatch.setattr(shape_tables, "_ragged", shape_tables._ragged.__wrapped__)
    assert shape_tables.ragged().endswith(f"| [{RECIPE}](recipes/{RECIPE}.md) | A GPU | 1.50 times | 4.00 times |")
    assert shape_tables.ragged_where() == "A GPU, 2026-11-22"
    known[1] = record(shape_tables.ODD, 10.0, 4.0)
    assert "not measured since the code changed" in shape_tables.ragged()
    known.clear()
    assert "| any |  | not measured | not measured |" in shape_tables.ragged()
