"""The FP8 GEMM on a GPU: against float64, against torch's own, and against the model of its sums.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import math
import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran, scaled
from cookbook.model.fp8_sums import predicted_error
from cookbook.recipe import catalog, remapping
from cookbook.recipe.formats import FORMATS

pytestmark = ON_HOPPER

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FAST = ("128x256", "128x224", "128x192", "128x128")
VARIANTS = (*FAST, "promoted", "promoted, every 2")
PROMOTED_AFTER = dict.fromkeys(FAST) | {"promoted": 128, "promoted, every 2": 256}  # elements along K
RAGGED = [(1, 1, 16), (1, 4096, 4096), (64, 64, 16), (127, 129, 144), (200, 333, 64), (513, 1031, 272), (3000, 8, 48)]


def operands(shape, a_type=E4M3, b_type=E4M3, seed=0):
    """(a, b, scale_a, scale_b): normal numbers, scale factors over six powers of two, both signs among them."""
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    kind = {"device": "cuda", "generator": generator}
    a, b = torch.randn(m, k, **kind).to(a_type), torch.randn(n, k, **kind).to(b_type).T
    scale_a, scale_b = (torch.exp2(6 * torch.rand(*s, **kind) - 3) * torch.randn(*s, **kind) for s in ((m, 1), (1, n)))
    return a, b, scale_a, scale_b


def exactly(a, b, scale_a, scale_b):
    return (a.double() * scale_a.double()) @ (b.double() * scale_b.double())


def lost(a, b, scale_a, scale_b, exact):
    """What sums of this K may lose in the tensor cores, relative to `exact`."""
    form = FORMATS[catalog.find("hopper/fp8_gemm").operands]
    return scaled.lost(a.double() * scale_a.double(), b.double() * scale_b.double(), exact, form)


def torchs(a, b, scale_a, scale_b, dtype, fast):
    """torch's own, which takes N in multiples of 16."""
    more = -b.shape[1] % 16
    bt = torch.nn.functional.pad(b.T.view(torch.uint8), (0, 0, 0, more)).view(b.dtype)
    scale_b = torch.nn.functional.pad(scale_b, (0, more), value=1.0)
    found = torch._scaled_mm(a, bt.T, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)
    return found[:, : b.shape[1]].to(dtype)


def drawn(count, seed=None):
    """Shapes that nobody chose, mostly ragged; K a multiple of 16."""
    rng = random.Random(seed)
    return [
        (int(2 ** rng.uniform(0, 11)), int(2 ** rng.uniform(0, 11)), 16 * int(2 ** rng.uniform(0, 9)))
        for _ in range(count)
    ]


def run_poisoned(module, shape, given, dtype, variant, row_stride=None):
    out, intact = ran.guarded(*shape[:2], dtype, row_stride=row_stride)
    poisoning.shared_memory()
    assert module.matmul(*given, out=out, variant=variant) is out
    torch.cuda.synchronize()
    assert intact(), "wrote outside out"
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_shape_is_as_exact_as_torchs(variant):
    module = catalog.load("hopper/fp8_gemm")
    for number, shape in enumerate([*RAGGED, *drawn(30)]):
        given = operands(shape, seed=number)
        gap = (shape[1], shape[1] + 24, -(-shape[1] // 8) * 8 + 8)[number % 3]
        out = run_poisoned(module, shape, given, "bfloat16", variant, gap)
        exact = exactly(*given)
        error = ran.relative_error(out, exact)
        theirs = ran.relative_error(torchs(*given, out.dtype, variant in FAST), exact)
        assert not ran.verdict(error, theirs, out.numel(), "bfloat16", lost(*given, exact)), shape
        again = run_poisoned(module, shape, given, "bfloat16", variant, gap)
        assert torch.equal(out, again), shape


@pytest.mark.parametrize(
    ("types", "variant"),
    [((E4M3, E5M2), "128x256"), ((E4M3, E5M2), "128x224"), ((E5M2, E4M3), "promoted")],
    ids=str,
)
def test_mixed_types_into_float16(types, variant):
    module, shape = catalog.load("hopper/fp8_gemm"), (300, 520, 512)
    a, b, scale_a, scale_b = operands(shape, *types)
    scale_a, scale_b = scale_a.sign() * 0.125, scale_b.sign() * 0.25  # what float16 can hold
    out = run_poisoned(module, shape, (a, b, scale_a, scale_b), "float16", variant)
    assert ran.relative_error(out, exactly(a, b, scale_a, scale_b)) <= 1e-3


def test_one_scale_for_all_and_scales_of_any_stride():
    module, shape = catalog.load("hopper/fp8_gemm"), (257, 264, 256)
    a, b, scale_a, scale_b = operands(shape)
    one_a, one_b = torch.tensor(0.5, device="cuda"), torch.tensor([[3.0]], device="cuda")
    spread_a, spread_b = one_a.expand(257, 1).contiguous(), one_b.expand(1, 264).contiguous()
    assert torch.equal(module.matmul(a, b, one_a, one_b), module.matmul(a, b, spread_a, spread_b))
    column = torch.zeros(257, 7, device="cuda")
    column[:, 3:4] = scale_a
    row = torch.stack([scale_b[0], scale_b[0]], dim=1).T[:1]
    assert torch.equal(module.matmul(a, b, column[:, 3:4], row), module.matmul(a, b, scale_a, scale_b))


@pytest.mark.parametrize("k", [2048, 8192])
@pytest.mark.parametrize(("variant", "after"), PROMOTED_AFTER.items())
def test_the_error_is_the_one_predicted(variant, after, k):
    """Of float16 results, whose own rounding is small beside it; its square comes off."""
    module = catalog.load("hopper/fp8_gemm")
    a, b, _, _ = operands((1024, 1024, k))
    one = torch.ones((), device="cuda")
    exact = exactly(a, b, one, one)
    error = ran.relative_error(module.matmul(a, b, one, one, out_dtype=torch.float16, variant=variant), exact)
    rounding = ran.relative_error(exact.half(), exact)
    lost = math.sqrt(max(0.0, error**2 - rounding**2))
    assert lost == pytest.approx(predicted_error(k, after, sums=2000), rel=0.1)


def test_promoted_is_as_exact_as_a_sum_in_float32():
    module, shape = catalog.load("hopper/fp8_gemm"), (1024, 1024, 8192)
    given = operands(shape)
    exact = exactly(*given)
    in_float32 = ((given[0].float() * given[2]) @ (given[1].float() * given[3])).bfloat16()
    error = ran.relative_error(module.matmul(*given, variant="promoted"), exact)
    assert error <= 1.05 * ran.relative_error(in_float32, exact)


def test_a_large_product_is_right_with_and_without_remapping(monkeypatch):
    module, shape = catalog.load("hopper/fp8_gemm"), (4096, 7168, 2048)
    monkeypatch.setattr(remapping, "REMAPS", {})
    monkeypatch.setattr(module, "CALIBRATION", module.CALIBRATION)  # restored afterwards
    monkeypatch.setattr(module.GEMM, "plans", {})
    given = operands(shape)
    first = module.matmul(*given)
    assert remapping.REMAPS, "so large a product is remapped"
    graph = torch.cuda.CUDAGraph()
    out = torch.full_like(first, float("nan"))
    with torch.cuda.graph(graph):
        module.matmul(*given, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first)
    module.calibrate(gpcs=())
    out.fill_(float("nan"))
    module.matmul(*given, out=out)
    ((_, _, arguments),) = module.GEMM.plans.values()
    assert arguments[0].remap == 0 and torch.equal(out, first)
