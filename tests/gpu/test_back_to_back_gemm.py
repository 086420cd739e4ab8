"""The back-to-back GEMM on a GPU: ragged products of every width against float64, equal to the bit, and in a graph.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from marks import ON_HOPPER

from cookbook.products import chained as chains
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME, VARIANTS = "hopper/back_to_back_gemm", ("64 rows", "128 rows")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_products_are_right_and_equal_to_the_bit(variant, dtype):
    draw, matmul = random.Random(variant), partial(catalog.load(NAME).matmul, variant=variant)
    for _ in range(12):
        shape = draw.randint(1, 3000), draw.randint(1, 700), 8 * draw.randint(1, 200)
        case = chains.run_case(matmul, shape, dtype, row_stride=-(-shape[1] // 8) * 8 + 8)
        assert case.ok, case
        operands = chains.drawn(shape, dtype, draw.randint(1, 256))
        assert torch.equal(matmul(*operands), matmul(*operands)), shape


def test_a_graph_replays_it():
    matmul, (a, b, b2) = catalog.load(NAME).matmul, chains.drawn((8192, 128, 512), "bfloat16", 128)
    out = matmul(a, b, b2)
    graph, again = torch.cuda.CUDAGraph(), torch.empty_like(out)
    with torch.cuda.graph(graph):
        matmul(a, b, b2, out=again)
    for _ in range(3):
        again.fill_(float("nan"))
        graph.replay()
        assert torch.equal(again, out)
