"""The grouped GEMM along K on a GPU: against float64 and torch's own, with any ends, between NaN and infinities, in a
graph, behind the kernel that makes the ends.

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
from cookbook.recipe import catalog, grouped

pytestmark = ON_HOPPER

NAME = "hopper/grouped_wgrad_gemm"
HOSTILE = ([20, 10, 50, 40, 60, 1000, 72, -5], [-1, -100, 0, -2, 0, 0, 0, 0], [72] * 8, [2**31 - 1, -(2**31)] * 4)
EDGES = (0, 1, 2, 7, 63, 64, 65, 127, 128, 129, 0, 255, 256, 257, 0)  # a k-tile has 64 tokens


def operands(sizes, m, n, dtype=torch.bfloat16, gap=0):
    """(a, b, offs): tokens lie `gap` elements apart."""
    k = max(1, sum(sizes))
    a, b = (torch.randn(k, rows + gap, device="cuda", dtype=dtype)[:, :rows] for rows in (m, n))
    return a.T, b, torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)


def exactly(a, b, offs):
    """The products in float64."""
    parts = grouped.parts(a.shape[1], tuple(offs.tolist()))
    return torch.stack([a[:, p.start : p.stop].double() @ b[p.start : p.stop].double() for p in parts])


def run_poisoned(given, row_stride=None):
    """Into NaN between guards, and with shared memory poisoned."""
    a, b, offs = given
    (m, _), n, dtype = a.shape, b.shape[1], str(a.dtype).removeprefix("torch.")
    out, intact = ran.guarded(len(offs) * m, n, dtype, row_stride=row_stride)
    out = out.unflatten(0, (len(offs), m))
    poisoning.shared_memory()
    assert catalog.load(NAME).matmul(*given, out=out) is out
    torch.cuda.synchronize()
    assert intact(), "wrote outside out"
    return out


def check(given, out):
    exact = exactly(*given)
    for group, each in enumerate(exact):
        if not each.any():
            assert not out[group].any(), "an empty group's product is zeros"
        else:
            own = ran.relative_error(each.to(out.dtype), each)  # one rounding of the exact product
            assert ran.relative_error(out[group], each) <= ran.RATIO_LIMIT * own + 1e-5, group


def test_groups_that_nobody_chose_are_as_exact_as_torchs():
    draw = random.Random()
    for number in range(60):
        sizes = [
            int(2 ** draw.uniform(0, 9)) if draw.random() < 0.8 else 0 for _ in range(draw.choice([1, 2, 3, 8, 40]))
        ]
        m, n = (8 * int(2 ** draw.uniform(0, 6.5)) for _ in range(2))
        given = operands(sizes, m, n, (torch.bfloat16, torch.float16)[number % 2], gap=8 * (number % 3))
        row = n + 8 * (number % 4)
        out = run_poisoned(given, row)
        check(given, out)
        assert torch.equal(out.view(torch.int16), run_poisoned(given, row).view(torch.int16)), "not repeatable"


@pytest.mark.parametrize("shape", [(128, 512), (136, 520), (384, 264)], ids=str)
def test_groups_as_long_as_a_k_tile_and_one_more_or_less(shape):
    for sizes in (EDGES, EDGES[::-1], (1,) * 70):
        given = operands(sizes, *shape)
        check(given, run_poisoned(given))


def test_nothing_is_read_before_an_operand():
    """The kernel's tensors begin 64 tokens before their operands, and here nothing of ours lies there: a first
    allocation of its own. A process of its own, for an illegal address would end this one's CUDA context."""
    program = f"""
import torch
from cookbook.recipe import catalog
a, b = (torch.randn(4096, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
assert a.data_ptr() % 2**21 == b.data_ptr() % 2**21 == 0, "not allocations of their own"
offs = torch.tensor([1, 1, 64, 4096], device="cuda", dtype=torch.int32)
out = catalog.load("{NAME}").matmul(a.T, b, offs)
torch.cuda.synchronize()
assert torch.equal(out[0], (a[:1].double().T @ b[:1].double()).to(out.dtype)) and not out[1].any()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["a", "b", "both"])
def test_what_other_groups_hold_does_not_leak(where, bad):
    sizes = (65, 1, 63, 0, 64, 127, 200)
    a, b, offs = given = operands(sizes, 136, 520)
    clean = catalog.load(NAME).matmul(*given)
    ends = [0, *offs.tolist()]
    for group in range(len(sizes)):
        a2, b2 = a.T.clone(), b.clone()
        for x in (a2,) * (where != "b") + (b2,) * (where != "a"):
            kept = x[ends[group] : ends[group + 1]].clone()
            x.fill_(bad)
            x[ends[group] : ends[group + 1]] = kept
        out = catalog.load(NAME).matmul(a2.T, b2, offs)
        assert torch.equal(out[group], clean[group]), group


@pytest.mark.parametrize("ends", HOSTILE, ids=str)
def test_bad_ends_do_no_harm(ends):
    a, b, _ = operands((9,) * 8, 136, 264)
    given = a, b, torch.tensor(ends, device="cuda", dtype=torch.int32)
    check(given, run_poisoned(given))


def test_a_graph_takes_other_ends_at_each_replay():
    module, (a, b, offs) = catalog.load(NAME), operands((60, 40, 100, 56), 256, 512)
    out = module.matmul(a, b, offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(a, b, offs, out=out)
    for ends in ([1, 2, 3, 256], [64, 128, 192, 256], [0, 256, 256, 256]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check((a, b, offs), out)


def test_ends_that_the_kernel_before_writes_are_waited_for():
    module, (a, b, _) = catalog.load(NAME), operands((60, 40, 100, 56), 256, 512)
    last, made = torch.tensor([256], device="cuda"), []
    for _ in range(50):
        offs = torch.cat([torch.randint(0, 256, (3,), device="cuda").sort().values, last]).to(torch.int32)
        made.append((offs, module.matmul(a, b, offs)))
    for offs, out in made:
        check((a, b, offs), out)


def test_a_large_product_is_right_and_torchs_agrees():
    given = operands((5408, 3304, 0, 2464, 1696, 1304, 1000, 704, 512), 1024, 2048)
    out = catalog.load(NAME).matmul(*given)
    check(given, out)
    theirs = torch._grouped_mm(*given[:2], offs=given[2])
    assert ran.relative_error(out.float(), theirs.float()) <= 2 * ran.tolerance("bfloat16")


def test_two_layers_gradients_are_those_of_autograd():
    """x W^T by group, as autograd sees it: the gradient of each expert's weight."""
    sizes, x = (30, 0, 70, 28), torch.randn(128, 264, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(4, 136, 264, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad, start = torch.randn(128, 136, device="cuda", dtype=torch.bfloat16), 0
    for group, size in enumerate(sizes):
        (x[start : start + size] @ weights[group].T).backward(grad[start : start + size])
        start += size
    offs = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
    ours = catalog.load(NAME).matmul(grad.T, x, offs)
    assert ran.relative_error(ours.float(), weights.grad.float()) <= 2 * ran.tolerance("bfloat16")
