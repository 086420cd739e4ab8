"""The table of docs/ship.md: of nothing measured, of a current record, and of a stale one."""

from __future__ import annotations

import json

from tools import first_product
from tools.publish import first_product_table


def run(way, first):
    return {"way": way, "ms": {"operands": 300.0, "import": 10.0, "first": first, "second": 0.5}}


def test_shown(tmp_path):
    assert first_product_table.shown(tmp_path) == "*Not measured.*"
    runs = [run(way, first) for way in first_product.WAYS for first in (30.0, 20.0, 40.0)]
    ms = first_product.summaries(runs)
    assert ms["built"]["import + first"] == [40.0, 30.0, 50.0]
    about = {"device": "NVIDIA H200", "date": "2026-11-23 12:00", "shape": [256, 512, 64], "dtype": "bfloat16"}
    about |= {"recipe": first_product.NAME, "code": first_product.code(first_product.NAME), "ms": ms, "runs": runs}
    file = tmp_path / "nvidia-h200" / first_product.FILE
    file.parent.mkdir()
    file.write_text(json.dumps(about))
    shown = first_product_table.shown(tmp_path)
    assert (
        "| a loader, from its library | 3 | 10.0 (10.0 to 10.0) | 30.0 (20.0 to 40.0) | 40.0 (30.0 to 50.0) |" in shown
    )
    assert "256 x 512 x 64" in shown and "take 300 ms before that" in shown
    file.write_text(json.dumps(about | {"code": "another"}))
    assert first_product_table.shown(tmp_path) == "*Not measured since the code changed.*"
