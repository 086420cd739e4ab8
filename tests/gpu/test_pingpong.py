"""Ping-pong kernels, and kernels whose launches overlap: none reads what is not yet there.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import ran
from cookbook.recipe import catalog

pytestmark = ON_HOPPER
RECIPES = ["hopper/pingpong_gemm", "hopper/overlapped_epilogue_gemm", "hopper/majors_gemm"]
CASES = [(name, variant) for name in RECIPES for variant in catalog.load(name).VARIANTS]


@pytest.mark.parametrize("k", [8, 256, 320, 448, 1024])  # fewer k-tiles than stages, as many, more
@pytest.mark.parametrize("work_tiles", [1, 2, 3, 4])
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_any_number_of_work_tiles_gives_the_same_bits(name, variant, work_tiles, k):
    module = catalog.load(name)
    config = module.VARIANTS[variant]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    m = config.tile_m * config.cluster_m * (sms // config.cluster) * work_tiles - 72  # the last wave is ragged
    a, b = ran.inputs((m, config.tile_n, k), "bfloat16")
    first = module.matmul(a, b, variant=variant)
    assert ran.relative_error(first, a.float() @ b.float()) <= ran.tolerance("bfloat16")
    out = torch.empty_like(first)
    for _ in range(20):
        module.matmul(a, b, out=out.fill_(float("nan")), variant=variant)
        assert torch.equal(out, first)


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_product_waits_for_the_one_it_reads(name, variant):
    """A chain, each product an operand of the next, without a pause and with one after each."""
    module = catalog.load(name)
    x, weight = ran.inputs((2048, 2048, 2048), "bfloat16")
    weight /= 2048**0.5  # the products stay of one size

    def chain(pause: bool) -> torch.Tensor:
        one, other = x.clone(), torch.empty_like(x)
        for _ in range(30):
            module.matmul(one, weight, out=other, variant=variant)
            one, other = other, one  # what was read is what the next product writes over
            if pause:
                torch.cuda.synchronize()
        return one

    expected = chain(pause=True)
    assert expected.isfinite().all() and expected.float().std() > 0.1
    for _ in range(5):
        assert torch.equal(chain(pause=False), expected)


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_product_keeps_its_place_among_other_kernels(name, variant):
    """What is written just before is what is multiplied, and what is written just after is not."""
    module = catalog.load(name)
    x, b = ran.inputs((4096, 1024, 512), "bfloat16")
    expected, a = module.matmul(x, b, variant=variant), torch.empty_like(x)
    out = torch.empty_like(expected)
    for _ in range(20):
        a.zero_()
        out.fill_(float("nan"))
        a.copy_(x)
        module.matmul(a, b, out=out, variant=variant)
        a.fill_(float("nan"))
        assert torch.equal(out, expected)
