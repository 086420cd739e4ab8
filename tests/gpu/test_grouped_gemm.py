"""The grouped GEMM on a GPU: against float64 and torch's own, with any ends, in a graph, behind the kernel that makes
the ends.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran
from cookbook.recipe import catalog, remapping

pytestmark = ON_HOPPER

NAME, VARIANTS = "hopper/grouped_gemm", ("128x256", "64x128", "32x128")
HOSTILE = ([20, 10, 50, 40, 60, 1000, 72, -5], [-1, -100, 0, -2, 0, 0, 0, 0], [72] * 8, [2**31 - 1, -(2**31)] * 4)


def operands(sizes, n, k, dtype=torch.bfloat16, gap=0):
    """(a, b, offs): b's groups lie `gap` rows apart."""
    a = torch.randn(max(1, sum(sizes)), k, device="cuda", dtype=dtype)
    b = torch.randn(len(sizes), n + gap, k, device="cuda", dtype=dtype)[:, :n].mT
    return a, b, torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)


def exactly(a, b, offs):
    """The product in float64; NaN in rows that are of no group."""
    out = torch.full((a.shape[0], b.shape[2]), float("nan"), device="cuda", dtype=torch.float64)
    start = 0
    for group, end in enumerate(offs.tolist()):
        end = max(start, min(end, len(a)))
        out[start:end] = a[start:end].double() @ b[group].double()
        start = end
    return out


def error_of(got, exact):
    owned = ~exact.isnan()
    return ran.relative_error(got[owned], exact[owned])


def run_poisoned(given, variant, row_stride=None):
    """Into NaN between guards, and with shared memory poisoned."""
    a, b, _ = given
    dtype = str(a.dtype).removeprefix("torch.")
    out, intact = ran.guarded(a.shape[0], b.shape[2], dtype, row_stride=row_stride)
    poisoning.shared_memory()
    assert catalog.load(NAME).matmul(*given, out=out, variant=variant) is out
    torch.cuda.synchronize()
    assert intact(), "wrote outside out"
    return out


def test_nothing_need_lie_before_out():
    """The tensor map of C begins before C, and here nothing of ours lies there: an allocation of its own. A process of
    its own, for an illegal address would end this one's CUDA context."""
    program = f"""
import torch
from cookbook.recipe import catalog
out = torch.empty(4096, 8192, device="cuda", dtype=torch.bfloat16)
assert out.data_ptr() % 2**21 == 0, "no allocation of its own"
a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((4096, 256), (2, 8192, 256)))
offs = torch.tensor([1, 4096], device="cuda", dtype=torch.int32)
for variant in {VARIANTS}:
    out.fill_(float("nan"))
    catalog.load("{NAME}").matmul(a, b.mT, offs, out=out, variant=variant)
    exact = torch.cat([a[:1].double() @ b[0].double().T, a[1:].double() @ b[1].double().T])
    assert (out.double() - exact).norm() <= 0.004 * exact.norm()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("variant", VARIANTS)
def test_groups_that_nobody_chose_are_as_exact_as_torchs(variant):
    draw = random.Random()
    for number in range(30):
        sizes = [
            int(2 ** draw.uniform(0, 9)) if draw.random() < 0.8 else 0 for _ in range(draw.choice([1, 2, 3, 8, 64]))
        ]
        n, k = 8 * int(2 ** draw.uniform(0, 7.5)), 8 * int(2 ** draw.uniform(0, 8))
        given = operands(sizes, n, k, (torch.bfloat16, torch.float16)[number % 2], gap=number % 3)
        exact, case = exactly(*given), (variant, sizes, n, k)
        out = run_poisoned(given, variant, n + 8 * (number % 4))
        assert torch.equal(out.isnan(), exact.isnan()), case
        if not sum(sizes):
            continue
        error, own = error_of(out, exact), exact.to(given[0].dtype)
        assert error <= ran.RATIO_LIMIT * error_of(own, exact) + 1e-5, case  # one rounding of the exact product
        again = run_poisoned(given, variant, n + 8 * (number % 4))
        assert torch.equal(out.view(torch.int16), again.view(torch.int16)), case


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ends", HOSTILE, ids=str)
def test_bad_ends_do_no_harm(ends, variant):
    a, b, _ = operands((9,) * 8, 136, 72)
    given = a, b, torch.tensor(ends, device="cuda", dtype=torch.int32)
    out, exact = run_poisoned(given, variant), exactly(*given)
    assert torch.equal(out.isnan(), exact.isnan())
    if not exact.isnan().all():
        assert error_of(out, exact) <= ran.tolerance("bfloat16")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_takes_other_ends_at_each_replay(variant):
    module, (a, b, offs) = catalog.load(NAME), operands((60, 40, 100, 56), 256, 512)
    out = module.matmul(a, b, offs, variant=variant)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(a, b, offs, out=out, variant=variant)
    for ends in ([1, 2, 3, 256], [64, 128, 192, 256], [0, 256, 256, 256]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert error_of(out, exactly(a, b, offs)) <= ran.tolerance("bfloat16"), ends


@pytest.mark.parametrize("variant", VARIANTS)
def test_ends_that_the_kernel_before_writes_are_waited_for(variant):
    module, (a, b, _) = catalog.load(NAME), operands((60, 40, 100, 56), 256, 512)
    last, made = torch.tensor([256], device="cuda"), []
    for _ in range(50):
        offs = torch.cat([torch.randint(0, 256, (3,), device="cuda").sort().values, last]).to(torch.int32)
        made.append((offs, module.matmul(a, b, offs, variant=variant)))
    for offs, out in made:
        assert error_of(out, exactly(a, b, offs)) <= ran.tolerance("bfloat16")


def test_a_large_product_is_right_with_and_without_remapping(monkeypatch):
    module = catalog.load(NAME)
    monkeypatch.setattr(remapping, "REMAPS", {})
    monkeypatch.setattr(module, "CALIBRATION", module.CALIBRATION)  # restored afterwards
    monkeypatch.setattr(module.GEMM, "plans", {})
    given = operands((5407, 3301, 0, 2467, 1699, 1301, 997, 701, 511), 2048, 2048)
    first = module.matmul(*given)
    assert remapping.REMAPS, "so large a product is remapped"
    module.calibrate(gpcs=())
    assert torch.equal(module.matmul(*given), first)
    assert error_of(first, exactly(*given)) <= ran.tolerance("bfloat16")


def test_torchs_grouped_product_agrees():
    given = operands((8,) * 8, 512, 1024)
    ours, theirs = catalog.load(NAME).matmul(*given), torch._grouped_mm(*given[:2], offs=given[2])
    exact = exactly(*given)
    assert error_of(ours, exact) <= ran.RATIO_LIMIT * error_of(theirs, exact)
