"""The process under NVIDIA's tools: what it gives to a recipe's `matmul`, and that a wrong product ends it."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import cutlass
import pytest
import torch

from cookbook.check import ran
from cookbook.measure import launch
from cookbook.recipe import catalog

SHAPES = [(24, 40, 64)]


@pytest.fixture
def seen(monkeypatch):
    """The `out` of each call of a recipe's matmul, which is made of torch's on the CPU; `factor` makes it wrong."""
    found = SimpleNamespace(poisoned=[], factor=1.0)

    def into(product, out):
        found.poisoned.append((out.dtype, bool(out.isnan().all())))
        return out.copy_(product * found.factor)

    def plain(a, b, out=None):
        return into(a.float() @ b.float(), out)

    def rows(a, b, scale_a, scale_b, out=None):
        assert a.dtype == b.dtype == torch.float8_e4m3fn and scale_a.shape == (24, 1) and scale_b.shape == (1, 40)
        return into(a.float() @ b.float() * scale_a * scale_b, out)

    modules = {
        "hopper/tma_wgmma_gemm": SimpleNamespace(matmul=plain),
        "hopper/fp8_gemm": SimpleNamespace(matmul=rows, ELEMENT=cutlass.Float8E4M3FN, SCALE=cutlass.Float32),
    }
    monkeypatch.setattr(catalog.Recipe, "module", property(lambda recipe: modules[recipe.name]))
    monkeypatch.setattr(ran, "inputs", partial(ran.inputs, device="cpu"))
    return found


@pytest.mark.parametrize("name", ["hopper/tma_wgmma_gemm", "hopper/fp8_gemm"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_out_is_poisoned_and_of_the_dtype_that_is_looked_at(seen, name, dtype):
    launch.launch(name, dtype, shapes=SHAPES)
    assert seen.poisoned == [(getattr(torch, dtype), True)]


@pytest.mark.parametrize("name", ["hopper/tma_wgmma_gemm", "hopper/fp8_gemm"])
def test_a_wrong_product_ends_the_process(seen, name):
    seen.factor = 1.01
    with pytest.raises(SystemExit) as told:
        launch.launch(name, "bfloat16", shapes=SHAPES)
    error = re.search(rf"{name}  bfloat16 tn \(24, 40, 64\): relative error ([\d.e-]+)", str(told.value))
    assert float(error[1]) == pytest.approx(0.01, rel=0.1)  # and what rounding adds
