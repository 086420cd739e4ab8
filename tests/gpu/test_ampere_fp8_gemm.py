"""The FP8 GEMM with mma.sync on a GPU: against float64 and against torch's own.

`pytest -m gpu`; skipped where there is no GPU of compute capability 8.9 or later.
"""

from __future__ import annotations

import random

import pytest
import torch

from cookbook.check import poisoning, ran, scaled
from cookbook.recipe import catalog

CAPABLE = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CAPABLE, reason="needs a GPU that has FP8")]

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(scope="module")
def module():
    return catalog.load("ampere/fp8_gemm")


def operands(shape, element=E4M3, one_scale=False, seed=0):
    """(a, b, scale_a, scale_b): normal numbers, scale factors of rows over two powers of two, or one for all."""
    m, n, k = shape
    kind = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(seed)}
    a, b = torch.randn(m, k, **kind).to(element), torch.randn(n, k, **kind).to(element).T
    shapes = ((), ()) if one_scale else ((m, 1), (1, n))
    scale_a, scale_b = (torch.exp2(2 * torch.rand(s, **kind) - 1) for s in shapes)
    return a, b, scale_a, scale_b


def exactly(a, b, scale_a, scale_b):
    return (a.double() * scale_a.double()) @ (b.double() * scale_b.double())


def drawn(count, seed):
    """Shapes that nobody chose, mostly ragged; K a multiple of 16."""
    rng = random.Random(seed)
    return [(*(int(2 ** rng.uniform(0, 11)) for _ in "mn"), 16 * int(2 ** rng.uniform(0, 8))) for _ in range(count)]


@pytest.mark.parametrize(
    ("element", "one_scale", "dtype"), [(E4M3, False, "bfloat16"), (E5M2, True, "float16")], ids=str
)
def test_any_shape_is_right_and_the_same_each_time(element, one_scale, dtype, module):
    for number, shape in enumerate(drawn(50, seed=int(one_scale))):
        given = operands(shape, element, one_scale, number)
        out, intact = ran.guarded(*shape[:2], dtype, row_stride=shape[1] + number % 3 * 12)
        poisoning.shared_memory()
        assert module.matmul(*given, out=out) is out
        first = out.clone()
        module.matmul(*given, out=out)
        assert torch.equal(out, first) and intact(), shape
        assert ran.relative_error(out, exactly(*given)) <= ran.tolerance(dtype), shape


@pytest.mark.parametrize("k", [512, 8192])
def test_it_is_as_exact_as_torchs(k, module):
    given = operands((1024, 1024, k))
    exact = exactly(*given)
    theirs = scaled.torch_rowwise(*given, torch.bfloat16)
    assert ran.relative_error(module.matmul(*given), exact) <= 1.001 * ran.relative_error(theirs, exact)
