"""A chain on a GPU: the same bits as its products one by one, in a graph, with ragged sizes, as exact as torch's.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME = "hopper/pdl_chain"
SIZES = {
    "small tiles": (512, (512,) * 9),
    "large tiles": (1024, (1024,) * 9),
    "ragged": (130, (200, 333, 64, 1000, 8, 100, 72)),
    "one row": (1, (64, 512, 8)),
}


def operands(rows: int, widths: tuple[int, ...], dtype) -> tuple:
    """x and the weights, which lie in rows of whole 16 bytes; values stay as large as they are."""
    x = torch.randn(rows, widths[0], device="cuda", dtype=dtype)
    padded = [torch.randn(n, -(-k // 8) * 8, device="cuda", dtype=dtype) / k**0.5 for k, n in pairwise(widths)]
    return x, [each[:, :k].T for each, k in zip(padded, widths, strict=False)]


def one_by_one(x, weights):
    """Each product alone on the GPU, into rows of whole 16 bytes."""
    for weight in weights:
        n = weight.shape[1]
        out = torch.full((x.shape[0], -(-n // 8) * 8), float("nan"), device="cuda", dtype=x.dtype)[:, :n]
        x = catalog.load(NAME).matmul(x, weight, out=out, variant="no PDL")
        torch.cuda.synchronize()
    return x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("what", SIZES)
def test_a_chain_has_the_bits_of_its_products_one_by_one(what, dtype):
    """In a graph that is replayed with other activations; what lies between, and shared memory, is poisoned first."""
    rows, widths = SIZES[what]
    x, weights = operands(rows, widths, dtype)
    module, out = catalog.load(NAME), torch.empty(rows, widths[-1], device="cuda", dtype=dtype)
    module.chain(x, weights, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        poison = [torch.full((rows, max(widths) + 8), float("nan"), device="cuda", dtype=dtype) for _ in range(2)]
        del poison  # the graph's allocator gives this memory to the chain
        module.chain(x, weights, out=out)
    for _ in range(20):
        x.copy_(torch.randn(x.shape, device="cuda"))
        out.fill_(float("nan"))
        poisoning.shared_memory()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, one_by_one(x, weights))


@pytest.mark.parametrize("what", [what for what in SIZES if what != "one row"])  # eight elements are no statistics
def test_a_chain_is_as_exact_as_torchs(what):
    rows, widths = SIZES[what]
    x, weights = operands(rows, widths, torch.bfloat16)
    exact, theirs = x.double(), x
    for weight in weights:
        exact, theirs = exact @ weight.double(), theirs @ weight
    ours, intact = ran.guarded(rows, widths[-1], "bfloat16")
    catalog.load(NAME).chain(x, weights, out=ours)
    torch.cuda.synchronize()
    assert intact(), "wrote outside out"
    assert ran.relative_error(ours, exact) <= 1.2 * ran.relative_error(theirs, exact)


def test_a_weight_that_was_just_written_is_read_as_it_is():
    """By a kernel before the chain, launched with PDL: the chain's first kernel is launched without."""
    x, (weight,) = operands(512, (512, 512), torch.bfloat16)
    module, unit = catalog.load(NAME), torch.eye(512, device="cuda", dtype=torch.bfloat16)
    written = torch.full((512, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
    expected = one_by_one(x, [weight])
    for _ in range(20):
        written.fill_(float("nan"))
        module.matmul(weight.T, unit.T, out=written, variant="late weight")
        assert torch.equal(module.chain(x, [written.T]), expected)
