"""The INT8 GEMM on a GPU: every element, to the bit.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME = "hopper/int8_gemm"
RAGGED = [(1, 1, 16), (1, 4096, 4096), (64, 64, 16), (127, 129, 144), (200, 333, 64), (513, 1031, 272), (3000, 8, 48)]


def same(out, a, b) -> bool:
    return torch.equal(out.double(), a.double() @ b.double())


@pytest.mark.parametrize("variant", ["overlapped", "at once"])
def test_any_shape_is_exact(variant):
    module = catalog.load(NAME)
    drawn = [(m, n, -(-k // 16) * 16) for m, n, k in ran.drawn(len(variant), count=40)]
    for number, shape in enumerate([*RAGGED, *drawn]):
        a, b = ran.inputs(shape, "int8")
        gap = (shape[1], shape[1] + 24, -(-shape[1] // 8) * 8 + 8)[number % 3]
        out, intact = ran.guarded(*shape[:2], "int32", row_stride=gap)
        poisoning.shared_memory()
        assert module.matmul(a, b, out=out, variant=variant) is out
        assert same(out, a, b) and intact(), shape


@pytest.mark.parametrize("value", [-128, 127])
def test_the_longest_sum_is_exact(value):
    """At the end of what int32 holds."""
    module = catalog.load(NAME)
    k = module.EXACT_K // 16 * 16
    a, b = torch.full((130, k), value, dtype=torch.int8, device="cuda"), torch.full((260, k), -128, dtype=torch.int8)
    b = b.cuda().T
    assert (module.matmul(a, b) == -128 * value * k).all()


def test_torchs_own_saturates_beyond_that():
    a = torch.full((32, 131072), -128, dtype=torch.int8, device="cuda")
    assert (torch._int_mm(a, a.T) == 2**31 - 1).all()


def test_it_is_torchs_product_in_a_graph():
    module, shape = catalog.load(NAME), (512, 768, 640)
    a, b = ran.inputs(shape, "int8")
    first, out = module.matmul(a, b), torch.empty(shape[:2], dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(a, b, out=out)
    graph.replay()
    assert torch.equal(out, first) and torch.equal(out, torch._int_mm(a, b))
