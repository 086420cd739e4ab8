"""The contest with DeepGEMM: how its operands lie, what is kept, and the table of the page."""

from __future__ import annotations

import json

import pytest
import torch

from cookbook.measure import records
from cookbook.measure.contest import OURS
from cookbook.products import scaled
from tools import deep_gemm, threefold
from tools.publish import benchmarks


def product(code: str, **more) -> dict:
    one = threefold.Measured(100.0, 100.0, 1500.0, 0.1)._asdict()
    variants = {OURS: one, deep_gemm.PEER: one | {"alone_us": 80.0}, scaled.BLOCKWISE: one | {"alone_us": 90.0}}
    return {"shape": [4096, 2112, 7168], "variants": variants, "code": code, "date": "today"} | more


def test_operands_lie_as_it_takes_them():
    """Rows of both, factors of A by columns, and of B a row for each 128 columns without what fills up its lines."""
    a, b = torch.zeros(8, 256), torch.zeros(384, 256).T
    scale_a, scale_b = torch.zeros(2, 8).T, torch.zeros(3, 4).T
    given = []
    deep_gemm.of_peer(lambda *operands: given.extend(operands), a, b, scale_a, scale_b, None)
    (rows_a, of_a), (rows_b, of_b), _ = given
    assert rows_a.shape == (8, 256) and rows_b.shape == (384, 256) and rows_b.stride() == (256, 1)
    assert of_a.stride() == (1, 8) and of_b.shape == (3, 2)


def test_its_shapes_and_few_rows_are_timed():
    assert {m for m, _, _ in deep_gemm.SHAPES} == {4096, 128, 64, 16} and (4096, 7168, 16384) in deep_gemm.SHAPES


def test_a_record_is_read_as_it_was_written(tmp_path):
    deep_gemm.write("A GPU", "2.6.1", [product("now")], tmp_path)
    assert deep_gemm.read(tmp_path) == {"A GPU": {"version": "2.6.1", "products": [product("now")]}}
    (tmp_path / "a-gpu" / deep_gemm.FILE).write_text(json.dumps([]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"deep_gemm.json: not a record of a contest with DeepGEMM"):
        deep_gemm.read(tmp_path)


def test_the_table_of_the_page(tmp_path):
    assert benchmarks.deep_gemm_table(tmp_path) == "*Not measured*."
    now = records.code_of(deep_gemm.NAME)
    deep_gemm.write("A GPU", "2.6.1", [product(now)], tmp_path)
    assert "| 100.0 | not measured | 0.800 | 1.000 | 0.800 | 1.000 | 0.900 |" in benchmarks.deep_gemm_table(tmp_path)
    cold = {OURS: 120.0, deep_gemm.PEER: 90.0}
    deep_gemm.write("A GPU", "2.6.1", [product(now, cold=cold)], tmp_path)
    assert "| 100.0 | 0.750 | 0.800 |" in benchmarks.deep_gemm_table(tmp_path)
    deep_gemm.write("A GPU", "2.6.1", [product("older")], tmp_path)
    assert benchmarks.deep_gemm_table(tmp_path) == "*Not measured since the code changed*."
