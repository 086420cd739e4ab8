"""ampere/fp8_gemm: what is its own. What every recipe must hold, tests/recipes/test_recipes.py and others ask of all of them."""

from __future__ import annotations

from cookbook.check import levels

NAME = "ampere/fp8_gemm"


def test_its_layouts_its_model_and_its_code_hold():
    report = levels.check(NAME, shapes=[(200, 136, 72)], dtypes=["float16"], targets=["sm_80"])
    assert report.failed == ()
