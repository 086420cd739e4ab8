"""FP8 operands and few rows on a GPU: against float64, against torch's own, and against the model of its sums.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import math
import random
from functools import cache

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran, scaled
from cookbook.model.fp8_sums import predicted_error
from cookbook.recipe import catalog
from cookbook.recipe.formats import FORMATS

pytestmark = ON_HOPPER

NAME = "hopper/fp8_decode_gemm"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
VARIANTS = catalog.load(NAME).VARIANTS
RAGGED = [(1, 1, 16), (1, 4096, 4096), (64, 64, 16), (127, 129, 144), (200, 333, 64), (513, 1031, 272), (8, 3000, 48)]
SHAPES = 100


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
    form = FORMATS[catalog.find(NAME).operands]
    return scaled.lost(a.double() * scale_a.double(), b.double() * scale_b.double(), exact, form)


def torchs(a, b, scale_a, scale_b):
    """torch's own with fast accumulation, which takes N in multiples of 16."""
    more = -b.shape[1] % 16
    bt = torch.nn.functional.pad(b.T.view(torch.uint8), (0, 0, 0, more)).view(b.dtype)
    scale_b = torch.nn.functional.pad(scale_b, (0, more), value=1.0)
    found = torch._scaled_mm(a, bt.T, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)
    return found[:, : b.shape[1]]


def drawn(count, seed=None):
    """Shapes of 1 to 300 rows that nobody chose, mostly ragged; K a multiple of 16."""
    rng = random.Random(seed)
    return [
        (int(2 ** rng.uniform(0, 8.2)), int(2 ** rng.uniform(0, 13)), 16 * int(2 ** rng.uniform(0, 10)))
        for _ in range(count)
    ]


@cache
def predicted(k, after):
    """What sums of `k` products lose by the model; many variants have the same."""
    return predicted_error(k, after, sums=2000)


def run_poisoned(module, shape, given, dtype="bfloat16", variant="auto", row_stride=None):
    out, intact = ran.guarded(*shape[:2], dtype, row_stride=row_stride)
    poisoning.shared_memory()
    assert module.matmul(*given, out=out, variant=variant) is out
    torch.cuda.synchronize()
    assert intact(), "wrote outside out"
    return out


def test_any_shape_is_as_exact_as_torchs_with_the_same_bits():
    """The variant that the heuristic takes, and one drawn for each shape."""
    module, rng = catalog.load(NAME), random.Random()
    for number, shape in enumerate([*RAGGED, *drawn(SHAPES)]):
        given, gap = operands(shape, seed=number), (shape[1], shape[1] + 24)[number % 2]
        exact = exactly(*given)
        for variant in ("auto", rng.choice(list(VARIANTS))):
            out = run_poisoned(module, shape, given, variant=variant, row_stride=gap)
            error, theirs = ran.relative_error(out, exact), ran.relative_error(torchs(*given), exact)
            assert not ran.verdict(error, theirs, out.numel(), "bfloat16", lost(*given, exact)), (shape, variant)
            again = run_poisoned(module, shape, given, variant=variant, row_stride=gap)
            assert torch.equal(out, again), (shape, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_in_float16_of_mixed_types(variant):
    module, shape = catalog.load(NAME), (150, 520, 1040)
    for types in ((E4M3, E5M2), (E5M2, E4M3)):
        a, b, scale_a, scale_b = operands(shape, *types)
        scale_a, scale_b = scale_a.sign() * 0.125, scale_b.sign() * 0.25  # what float16 can hold
        out = run_poisoned(module, shape, (a, b, scale_a, scale_b), "float16", variant)
        assert ran.relative_error(out, exactly(a, b, scale_a, scale_b)) <= 1e-3


def test_one_scale_for_all_and_scales_of_any_stride():
    module, shape = catalog.load(NAME), (57, 264, 256)
    a, b, scale_a, scale_b = operands(shape)
    one_a, one_b = torch.tensor(0.5, device="cuda"), torch.tensor([[3.0]], device="cuda")
    spread_a, spread_b = one_a.expand(57, 1).contiguous(), one_b.expand(1, 264).contiguous()
    assert torch.equal(module.matmul(a, b, one_a, one_b), module.matmul(a, b, spread_a, spread_b))
    column = torch.zeros(57, 7, device="cuda")
    column[:, 3:4] = scale_a
    row = torch.stack([scale_b[0], scale_b[0]], dim=1).T[:1]
    assert torch.equal(module.matmul(a, b, column[:, 3:4], row), module.matmul(a, b, scale_a, scale_b))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_error_is_the_one_predicted(variant):
    """Of float16 results, whose own rounding is small beside it; its square comes off."""
    module, config, k = catalog.load(NAME), VARIANTS[variant], 8192
    a, b, _, _ = operands((config.tile_n, 4096, k))
    one = torch.ones((), device="cuda")
    exact = exactly(a, b, one, one)
    error = ran.relative_error(module.matmul(a, b, one, one, out_dtype=torch.float16, variant=variant), exact)
    rounding = ran.relative_error(exact.half(), exact)
    lost = math.sqrt(max(0.0, error**2 - rounding**2))
    after = config.tile_k if config.promoted else k // config.split_k  # products, after which a sum begins at zero
    assert lost == pytest.approx(predicted(k, after), rel=0.1)


def test_a_chain_in_a_graph_reads_what_the_kernel_before_wrote():
    """Scale factors and rows are made by the kernel before each product, which may begin before that one has ended."""
    module, (m, n, k) = catalog.load(NAME), (16, 4096, 4096)
    weights = [operands((m, n, k), seed=i)[1] for i in range(8)]
    x, one = torch.randn(m, k, device="cuda"), torch.ones((), device="cuda")

    def chain(matmul):
        rows = x
        for weight in weights:
            scale = rows.float().abs().amax(dim=1, keepdim=True) / 448
            rows = matmul((rows / scale).to(E4M3), weight, scale, one)
        return rows

    def careful(*given):
        torch.cuda.synchronize()
        out = module.matmul(*given)
        torch.cuda.synchronize()
        return out

    expected = chain(careful)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(module.matmul)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, expected)
