"""Recipes with several kernels: the variants add the same products in the same order, so their bits are equal.

`pytest -m gpu`; skipped where there is no CUDA device.
"""

from __future__ import annotations

import pytest
import torch

from cookbook.check import ran
from cookbook.recipe import catalog

pytestmark = pytest.mark.gpu

RECIPES = [
    "ampere/smem_gemm",
    "ampere/pipelined_gemm",
    "ampere/tuned_gemm",
    "hopper/swizzle_modes_gemm",
    "hopper/warp_specialized_gemm",
]
SHAPES = [(1, 8, 8), (200, 333, 64), (129, 257, 72), (300, 520, 512), (128, 256, 4096), (1000, 777, 2048)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("name", RECIPES)
def test_every_variant_gives_the_same_bits(name, shape, dtype):
    module, recipe = catalog.load(name), catalog.find(name)
    if not recipe.runs_on_capability(*torch.cuda.get_device_capability()):
        pytest.skip(f"{name} runs on {recipe.runs_on}")
    a, b = ran.inputs(shape, dtype)
    first = module.matmul(a, b)
    assert ran.relative_error(first, ran.reference(a, b)) <= ran.tolerance(dtype)
    for variant in module.VARIANTS:
        out, intact = ran.guarded(*shape[:2], dtype)
        assert torch.equal(module.matmul(a, b, out=out, variant=variant), first), variant
        assert intact(), variant
