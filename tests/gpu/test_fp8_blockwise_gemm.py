"""The FP8 GEMM with block-wise scales on a GPU: against float64, and against torch's own.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran, scaled
from cookbook.recipe import catalog, formats

pytestmark = ON_HOPPER

NAME = "hopper/fp8_blockwise_gemm"
VARIANTS = ("256 x 128", "128 x 192", "128 x 160", "128 x 64 in 4", "128 x 64", "128 x 32")
RAGGED = [(1, 1, 16), (1, 4096, 4096), (64, 64, 16), (127, 129, 144), (200, 333, 64), (513, 1031, 272), (3000, 8, 48)]


def operands(shape, seed=0, as_torchs=True):
    """(a, b, scale_a, scale_b): normal numbers, factors over six powers of two of both signs. Rows of `scale_b` that
    fill it up to a multiple of 4 are NaN."""
    (m, n, k), generator = shape, torch.Generator("cuda").manual_seed(seed)
    kind = {"device": "cuda", "generator": generator}
    down, across = -(-k // 128), -(-n // 128)
    high = -(-down // 4) * 4 if as_torchs else down

    def factors(*size):
        return torch.exp2(6 * torch.rand(*size, **kind) - 3) * torch.randn(*size, **kind)

    a, b = (torch.randn(rows, k, **kind).to(torch.float8_e4m3fn) for rows in (m, n))
    scale_a, scale_b = (
        (factors(down, m).T, factors(across, high).T) if as_torchs else (factors(m, down), factors(high, across))
    )
    scale_b[down:] = float("nan")
    return a, b.T, scale_a, scale_b


def stood_for(a, b, scale_a, scale_b):
    """What the operands stand for, (M, K) and (K, N), in float64."""
    (k, n), down = b.shape, scale_a.shape[1]
    along = scale_a.double().repeat_interleave(128, dim=1)[:, :k]
    blocks = scale_b[:down].double().repeat_interleave(128, dim=0)[:k].repeat_interleave(128, dim=1)[:, :n]
    return a.double() * along, b.double() * blocks


def exactly(*given):
    a, b = stood_for(*given)
    return a @ b


def drawn(count, seed=None):
    """Shapes that nobody chose, mostly ragged; K a multiple of 16."""
    rng = random.Random(seed)
    return [
        (int(2 ** rng.uniform(0, 11)), int(2 ** rng.uniform(0, 11)), 16 * int(2 ** rng.uniform(0, 9)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_shape_is_right_and_the_same_each_time(variant):
    module = catalog.load(NAME)
    for number, shape in enumerate([*RAGGED, *drawn(40)]):
        given = operands(shape, number, number % 2 == 0)
        gap = (shape[1], shape[1] + 24, -(-shape[1] // 8) * 8 + 8)[number % 3]
        found = []
        for _ in range(2):
            out, intact = ran.guarded(*shape[:2], "bfloat16", row_stride=gap)
            poisoning.shared_memory()
            assert module.matmul(*given, out=out, variant=variant) is out
            torch.cuda.synchronize()
            assert intact(), "wrote outside out"
            found.append(out)
        exact, form = exactly(*given), formats.FORMATS["fp8_blockwise"]
        error, lost = ran.relative_error(found[0], exact), scaled.lost(*stood_for(*given), exact, form)
        assert ran.verdict(error, error, exact.numel(), "bfloat16", lost) == "", shape
        assert torch.equal(*found), shape


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_as_exact_as_torchs(variant):
    module, shape = catalog.load(NAME), (1024, 1024, 8192)
    a, b, scale_a, scale_b = operands(shape)
    exact = exactly(a, b, scale_a, scale_b)
    error = ran.relative_error(module.matmul(a, b, scale_a, scale_b, variant=variant), exact)
    theirs = ran.relative_error(scaled.torch_blockwise(a, b, scale_a, scale_b, torch.bfloat16), exact)
    assert error <= 1.002 * theirs


def test_into_float16_with_small_factors():
    module, shape = catalog.load(NAME), (300, 520, 512)
    a, b, scale_a, scale_b = operands(shape)
    given = a, b, scale_a.sign() * 0.125, scale_b.sign() * 0.25
    assert ran.relative_error(module.matmul(*given, out_dtype=torch.float16), exactly(*given)) <= 1e-3


def test_a_large_product_in_a_graph():
    module, shape = catalog.load(NAME), (4096, 7168, 2048)
    given = operands(shape)
    first = module.matmul(*given)
    graph, out = torch.cuda.CUDAGraph(), torch.full_like(first, float("nan"))
    with torch.cuda.graph(graph):
        module.matmul(*given, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first)
