"""Fused epilogues on a GPU: each of them on ragged shapes against float64, and operands that change in a graph.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import fused, poisoning
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME = "hopper/fused_epilogue_gemm"
EPILOGUES = ("add_bias", "bias_gelu", "bias_silu", "bias_relu", "add_residual", "add_both", "scaled", "alpha_beta")


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


def test_all_epilogues_are_here(module):
    assert [name for name in module.EPILOGUES if fused.operands_of(module, name)] == list(EPILOGUES)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_ragged_products_are_right(module, name, dtype):
    """`run_case` has memory around `out` that must stay as it is, and begins with an `out` of NaN."""
    draw = random.Random(f"{name} {dtype}")
    for _ in range(12):
        shape = draw.randint(1, 700), draw.randint(1, 700), 8 * draw.randint(1, 80)
        poisoning.shared_memory()
        case = fused.run_case(module, name, shape, dtype)
        assert case.ok, (shape, case.problem)


def test_every_operand_at_once_is_right_in_every_variant(module):
    probe = fused.probes(module)[-1]
    with fused.probed(module, probe):
        assert set(fused.operands_of(module, probe)) == set(fused.AFTER)
        for variant in module.VARIANTS:
            a, b = torch.randn(300, 256, device="cuda").bfloat16(), torch.randn(500, 256, device="cuda").bfloat16().T
            given = fused.drawn(fused.operands_of(module, probe), (300, 500, 256), torch.bfloat16)
            ours = module.matmul(a, b, epilogue=probe, variant=variant, **given)
            exact = fused.referred(module, probe, a, a.double() @ b.double(), given)
            torch.testing.assert_close(ours, exact.bfloat16(), rtol=2**-7, atol=2**-7 * float(exact.abs().mean()))


def test_a_graph_replays_it_with_another_alpha_and_beta(module):
    """They are read on the device: neither a capture nor a compiled kernel holds their values."""
    a, b = torch.randn(512, 256, device="cuda").bfloat16(), torch.randn(768, 256, device="cuda").bfloat16().T
    given = fused.drawn(("residual", "alpha", "beta"), (512, 768, 256), torch.bfloat16)
    out = module.matmul(a, b, epilogue="alpha_beta", **given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(a, b, epilogue="alpha_beta", out=out, **given)
    for alpha, beta in ((0.0, 1.0), (1.0, 0.0)):
        given["alpha"].fill_(alpha)
        given["beta"].fill_(beta)
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, module.matmul(a, b) if alpha else given["residual"])
