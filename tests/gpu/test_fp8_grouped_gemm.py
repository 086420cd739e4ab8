"""The grouped GEMM of FP8 operands on a GPU: against float64 and torch's own, with any ends and any scale factors, in a
graph, behind the kernel that makes the ends.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME, VARIANTS = "hopper/fp8_grouped_gemm", ("128x256", "64x128", "32x128")
E4M3, BOTH = torch.float8_e4m3fn, ("bfloat16", "float16")
HOSTILE = ([20, 10, 50, 40, 60, 1000, 72, -5], [-1, -100, 0, -2, 0, 0, 0, 0], [72] * 8, [2**31 - 1, -(2**31)] * 4)


def operands(sizes, n, k, gap=0):
    """(a, b, scale_a, scale_b, offs): normal numbers, factors of both signs over four powers of two. b's groups lie
    `gap` rows apart, and so do their factors."""
    rows, count, cuda = max(1, sum(sizes)), len(sizes), {"device": "cuda"}
    a, b = torch.randn(rows, k, **cuda), torch.randn(count, n + gap, k, **cuda)
    of_a, of_b = torch.exp2(4 * torch.rand(rows, **cuda) - 2), torch.exp2(4 * torch.rand(count, n + gap, **cuda) - 2)
    of_a *= torch.randn(rows, **cuda).sign()
    offs = torch.tensor(sizes, **cuda).cumsum(0).to(torch.int32)
    return a.to(E4M3), b.to(E4M3)[:, :n].mT, of_a, of_b[:, :n], offs


def exactly(a, b, scale_a, scale_b, offs):
    """The product in float64; NaN in rows that are of no group."""
    out = torch.full((a.shape[0], b.shape[2]), float("nan"), device="cuda", dtype=torch.float64)
    start = 0
    for group, end in enumerate(offs.tolist()):
        end = max(start, min(end, len(a)))
        rows = slice(start, end)
        out[rows] = (a[rows].double() * scale_a[rows, None]) @ (b[group].double() * scale_b[group].double())
        start = end
    return out


def by_group(a, b, scale_a, scale_b, offs):
    """torch's own product of each group that is not empty, with fast accumulation; N in multiples of 16."""
    out = torch.full((a.shape[0], b.shape[2]), float("nan"), device="cuda", dtype=torch.bfloat16)
    start = 0
    for group, end in enumerate(offs.tolist()):
        if end > start:
            factors = scale_a[start:end, None].clone(), scale_b[group][None].clone()  # cuBLAS wants them aligned
            out[start:end] = torch._scaled_mm(
                a[start:end], b[group], *factors, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        start = max(start, end)
    return out


def error_of(got, exact):
    owned = ~exact.isnan()
    return ran.relative_error(got[owned], exact[owned])


def run_poisoned(given, variant, dtype="bfloat16", row_stride=None):
    """Into NaN between guards, and with shared memory poisoned."""
    out, intact = ran.guarded(given[0].shape[0], given[1].shape[2], dtype, row_stride=row_stride)
    poisoning.shared_memory()
    assert catalog.load(NAME).matmul(*given, out=out, variant=variant) is out
    torch.cuda.synchronize()
    assert intact(), "wrote outside out"
    return out


def drawn(draw):
    """Groups that nobody chose, some of them empty."""
    return [int(2 ** draw.uniform(0, 9)) if draw.random() < 0.8 else 0 for _ in range(draw.choice([1, 2, 3, 8, 64]))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_groups_that_nobody_chose_are_as_exact_as_torchs(variant):
    draw = random.Random()
    for number in range(24):
        sizes, n, k = drawn(draw), 16 * int(2 ** draw.uniform(0, 6.5)), 16 * int(2 ** draw.uniform(0, 7))
        given, dtype, gap = operands(sizes, n, k, gap=16 * (number % 3)), BOTH[number % 2], n + 8 * (number % 4)
        exact, case = exactly(*given), (variant, sizes, n, k)
        out = run_poisoned(given, variant, dtype, gap)
        assert torch.equal(out.isnan(), exact.isnan()), case
        if not sum(sizes):
            continue
        error = error_of(out, exact)
        if sum(sizes) * n >= ran.RATIO_ELEMENTS:
            assert error <= ran.RATIO_LIMIT * error_of(by_group(*given), exact), case
        assert error <= 8e-3, case
        again = run_poisoned(given, variant, dtype, gap)
        assert torch.equal(out.view(torch.int16), again.view(torch.int16)), case


@pytest.mark.parametrize("variant", VARIANTS)
def test_n_of_any_8_columns(variant):
    """The last piece of a row of C, and factors behind the last column, which are of the next group."""
    for n in (8, 24, 136, 264, 1000):
        given = operands((3, 0, 130, 1), n, 272)
        assert error_of(run_poisoned(given, variant), exactly(*given)) <= ran.tolerance("bfloat16"), n


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ends", HOSTILE, ids=str)
def test_bad_ends_do_no_harm(ends, variant):
    *given, _ = operands((9,) * 8, 136, 80)
    given = *given, torch.tensor(ends, device="cuda", dtype=torch.int32)
    out, exact = run_poisoned(given, variant), exactly(*given)
    assert torch.equal(out.isnan(), exact.isnan())
    if not exact.isnan().all():
        assert error_of(out, exact) <= ran.tolerance("bfloat16")


@pytest.mark.parametrize("variant", VARIANTS)
def test_factors_that_are_not_numbers_stay_where_they_belong(variant):
    a, b, scale_a, scale_b, offs = operands((60, 40, 100, 56), 256, 512)
    scale_a[70], scale_b[2, 33] = float("nan"), float("inf")
    out = run_poisoned((a, b, scale_a, scale_b, offs), variant)
    expected = torch.zeros_like(out, dtype=torch.bool)
    expected[70], expected[100:200, 33] = True, True
    assert torch.equal(~out.isfinite(), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_takes_other_ends_at_each_replay(variant):
    module, given = catalog.load(NAME), operands((60, 40, 100, 56), 256, 512)
    out, offs = module.matmul(*given, variant=variant), given[-1]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(*given, out=out, variant=variant)
    for ends in ([1, 2, 3, 256], [64, 128, 192, 256], [0, 256, 256, 256]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert error_of(out, exactly(*given)) <= ran.tolerance("bfloat16"), ends


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_kernel_before_writes_is_waited_for(variant):
    """Ends, and scale factors."""
    module, (a, b, scale_a, scale_b, _) = catalog.load(NAME), operands((60, 40, 100, 56), 256, 512)
    last, made = torch.tensor([256], device="cuda"), []
    for i in range(50):
        offs = torch.cat([torch.randint(0, 256, (3,), device="cuda").sort().values, last]).to(torch.int32)
        given = a, b, scale_a * (i + 1), scale_b / (i + 1), offs
        made.append((given, module.matmul(*given, variant=variant)))
    for given, out in made:
        assert error_of(out, exactly(*given)) <= ran.tolerance("bfloat16")


def test_a_large_product_is_right_and_the_same_each_time():
    given = operands((5407, 3301, 0, 2467, 1699, 1301, 997, 701, 511), 2048, 4096)
    first = run_poisoned(given, "auto")
    assert error_of(first, exactly(*given)) <= ran.tolerance("bfloat16")
    for _ in range(3):
        assert torch.equal(run_poisoned(given, "auto"), first)


@pytest.mark.parametrize("sizes", [(8,) * 8, (300, 0, 1, 700, 23, 0, 0, 1024)], ids=str)
def test_torchs_grouped_product_agrees(sizes):
    given = operands(sizes, 512, 1024)
    a, b, scale_a, scale_b, offs = given
    theirs = torch._scaled_grouped_mm(
        a, b, scale_a, scale_b.contiguous(), offs=offs, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    exact = exactly(*given)
    assert error_of(catalog.load(NAME).matmul(*given), exact) <= ran.RATIO_LIMIT * error_of(theirs, exact)
