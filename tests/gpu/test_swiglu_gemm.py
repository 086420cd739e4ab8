"""SwiGLU on a GPU: every variant and gate against float64, with shared memory poisoned, in a graph; its gradients.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook import ops
from cookbook.check import poisoning, ran
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME, VARIANTS = "hopper/swiglu_gemm", ("256x160", "128x192 pingpong", "128x128 pingpong")
RIGHT = 1.1  # times the error of rounding the exact result


def operands(m, n, k, dtype=torch.bfloat16):
    """(a, b, up), products near 1, where gates bend; the weights' rows lie differently far apart."""
    a, b, up = (torch.randn(rows, k + gap, device="cuda") * k**-0.25 for rows, gap in ((m, 0), (n, 8), (n, 24)))
    return a.to(dtype), b.to(dtype)[:, :k].T, up.to(dtype)[:, :k].T


def exactly(gate, a, b, up):
    reference = catalog.load(NAME).REFERENCES[gate]
    return reference(a.double() @ b.double(), a.double() @ up.double())


@pytest.mark.parametrize("gate", ["swiglu", "geglu"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_products_are_right_and_equal_to_the_bit(variant, gate):
    draw, matmul = random.Random(variant), catalog.load(NAME).matmul
    for _ in range(12):
        m, n, k = draw.randint(1, 700), draw.randint(1, 700), 8 * draw.randint(1, 80)
        a, b, up = operands(m, n, k)
        out, intact = ran.guarded(m, n, "bfloat16", row_stride=-(-n // 8) * 8 + 8)
        poisoning.shared_memory()
        matmul(a, b, up=up, epilogue=gate, out=out, variant=variant)
        again = matmul(a, b, up=up, epilogue=gate, variant=variant)
        torch.cuda.synchronize()
        assert intact() and torch.equal(out, again), (m, n, k)
        exact = exactly(gate, a, b, up)
        assert ran.relative_error(out, exact) <= RIGHT * ran.relative_error(exact.to(out.dtype), exact), (m, n, k)


def test_it_is_nearer_to_the_exact_result_than_torch():
    a, b, up = operands(1000, 1496, 1024)
    exact = exactly("swiglu", a, b, up)
    ours = ran.relative_error(ops.swiglu(a, b.T, up.T), exact)
    assert ours < ran.relative_error(torch.nn.functional.silu(a @ b) * (a @ up), exact)


def test_a_graph_replays_it():
    a, b, up = operands(512, 1024, 512)
    wanted = ops.swiglu(a, b.T, up.T)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.swiglu(a, b.T, up.T)
    made.fill_(float("nan"))
    graph.replay()
    assert torch.equal(made, wanted)


@pytest.mark.parametrize("function", [ops.swiglu, torch.ops.cute_cookbook.swiglu.default], ids=["kept", "again"])
def test_gradients_are_as_exact_as_torchs(function):
    given = [x.detach().requires_grad_() for x in (lambda a, b, up: (a, b.T, up.T))(*operands(257, 160, 72))]
    exact = [x.detach().double().requires_grad_() for x in given]
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu

    def layer(x, w_gate, w_up):
        return silu(linear(x, w_gate)) * linear(x, w_up)

    grad = torch.randn(257, 160, device="cuda", dtype=torch.bfloat16)
    right = torch.autograd.grad(layer(*exact), exact, grad.double())
    ours = torch.autograd.grad(function(*given), given, grad)
    theirs = torch.autograd.grad(layer(*given), given, grad)
    for mine, torchs, wanted in zip(ours, theirs, right, strict=True):
        assert ran.relative_error(mine, wanted) <= 1.1 * ran.relative_error(torchs, wanted)
