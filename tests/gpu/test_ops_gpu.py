"""cookbook.ops on a GPU: values of every layout, gradients, compiled graphs, CUDA graphs, streams, threads, devices.

`pytest -m gpu tests/gpu/test_ops_gpu.py`; skipped where there is no CUDA device.
"""

from __future__ import annotations

import copy
import threading

import pytest
import torch

from cookbook import ops
from cookbook.check import ran
from cookbook.measure import contest
from cookbook.ops import choice, launching
from cookbook.recipe import catalog
from tools.ops import steps

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16


def normal(*shape, dtype=BF16):
    return torch.randn(shape, device="cuda", dtype=dtype)


def right(got, a, b):
    """A product is as near to the exact one as a kernel's has to be."""
    rows = a.reshape(-1, a.shape[-1])
    error = ran.relative_error(got.reshape(rows.shape[0], -1), ran.reference(rows, b))
    assert got.dtype == a.dtype and error <= 1.01 * ran.tolerance(str(a.dtype).removeprefix("torch."))


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.T.contiguous().T,
    "padded rows": lambda x: torch.cat([x, torch.full_like(x, torch.nan)], 1)[:, : x.shape[1]],
    "every second column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "not aligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "negated": lambda x: torch._neg_view(-x),
    "expanded": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_operands_that_lie_anyhow(of_a, of_b, dtype):
    for m, n, k in ((200, 328, 64), (7, 5, 9), (130, 257, 4097)):
        a, b = LAYOUTS[of_a](normal(m, k, dtype=dtype)), LAYOUTS[of_b](normal(k, n, dtype=dtype))
        right(ops.matmul(a, b), a, b)
        right(torch.ops.cute_cookbook.matmul(a, b), a, b)


@pytest.mark.parametrize("m", [1, 16, 64, 128, 512, 4096])
def test_each_recipe_that_is_chosen(m):
    a, weight = normal(m, 4096), normal(4096, 4096)
    right(ops.matmul(a, weight.T), a, weight.T)
    wide = normal(2, m, 64)
    right(ops.matmul(wide, weight[:64, :72]), wide, weight[:64, :72])


def test_gradients_are_torchs():
    torch.manual_seed(0)
    x, weight = normal(300, 512).requires_grad_(), normal(264, 512).requires_grad_()
    found = []
    for linear in (ops.linear, torch.nn.functional.linear):
        found.append(torch.autograd.grad(linear(x, weight).float().pow(2).sum(), (x, weight)))
    for mine, theirs in zip(*found, strict=True):
        assert mine.stride() == theirs.stride()
        assert ran.relative_error(mine, theirs.double()) <= 2e-2


def test_opcheck():
    a, weight = normal(64, 128).requires_grad_(), normal(72, 128).requires_grad_()
    torch.library.opcheck(ops.OPERATOR, (a, weight.detach().T.requires_grad_()))
    torch.library.opcheck(ops.OPERATOR, (normal(7, 9), normal(9, 5)))


def layer(x, weight, bias):
    return torch.relu(ops.linear(x, weight, bias))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_layer_compiled_by_inductor(mode):
    weight, bias = normal(264, 512).requires_grad_(), normal(264).requires_grad_()
    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(3):  # in reduce-overhead: warmed up, captured, replayed
        x = normal(300, 512)
        weight.grad = bias.grad = None  # as in each step of a training loop: a graph's next run overwrites them
        expected = torch.relu(torch.nn.functional.linear(x, weight, bias))
        got = fast(x, weight, bias)
        assert ran.relative_error(got, expected.double()) <= 1e-2
        got.float().sum().backward()
        assert weight.grad is not None and bias.grad is not None


def test_another_m_does_not_recompile():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    fast, weight = torch.compile(ops.linear, fullgraph=True, backend=counter), normal(256, 512)
    for m in (16, 17, 40, 64, 300):
        x = normal(m, 512)
        right(fast(x, weight), x, weight.T)
    assert counter.frame_count == 2


def test_export_and_run():
    model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).to("cuda", BF16)
    ours = copy.deepcopy(model)
    ops.replace_linears(ours)
    program = torch.export.export(ours, (normal(16, 512),), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    x = normal(200, 512)
    assert ran.relative_error(program.module()(x), model(x).double()) <= 2e-2


@pytest.mark.parametrize("known", [True, False])
def test_captured_in_a_graph(known):
    """The first call of its kind may be within the capture; so may one that copies its operands."""
    for m, k in ((256, 512), (250, 513)):
        a, b = normal(m, k), normal(k, 384)
        launching.PLANS.clear()
        for recipe, _ in choice.candidates(torch.cuda.get_device_capability()):
            catalog.load(recipe.name).GEMM.plans.clear()
        if known:
            ops.matmul(a, b)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = ops.matmul(a, b)
        assert bool(launching.PLANS) == known
        a.normal_()
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        right(out, a, b)


def test_two_streams():
    pairs = [(normal(513, 1024), normal(700, 1024).T) for _ in range(8)]
    expected = [ops.matmul(a, b) for a, b in pairs]
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    got = []
    for index, (a, b) in enumerate(pairs * 5):
        with torch.cuda.stream(streams[index % 2]):
            got.append(ops.matmul(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(c, expected[index % len(pairs)]) for index, c in enumerate(got))


def test_eight_threads_whose_first_calls_are_at_once():
    launching.PLANS.clear()
    pairs = [(normal(64 + 8 * i, 512), normal(512, 256 + 8 * i)) for i in range(8)]
    failed: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(a, b):
        try:
            barrier.wait()
            for _ in range(20):
                right(ops.matmul(a, b), a, b)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices():
    """The operands' device is used, whichever is current; two devices in one product are an error."""
    a, b = normal(256, 512), normal(512, 384)
    there = [x.to("cuda:1") for x in (a, b)]
    for _ in range(2):
        right(ops.matmul(*there), *there)
        right(ops.matmul(a, b), a, b)
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="b: got device cuda:1; needed cuda:0, where a is"):
        ops.matmul(a, there[1])


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_autocast(dtype):
    model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).cuda()
    ours = copy.deepcopy(model)
    ops.replace_linears(ours)
    x, found = torch.randn(128, 512, device="cuda"), []
    for each in (model, ours):
        with torch.autocast("cuda", dtype=dtype):
            made = each(x)
        assert made.dtype == dtype
        made.float().pow(2).sum().backward()
        found.append((made, each[0].weight.grad))
    assert found[1][1].dtype == torch.float32
    assert ran.relative_error(found[1][0], found[0][0].double()) <= 2e-2
    assert ran.relative_error(found[1][1], found[0][1].double()) <= 2e-2


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs a GPU with TMA"
)
def test_the_steps_of_a_call_are_measured_and_add_up():
    a, b = normal(64, 64), normal(64, 64).T
    ops.matmul(a, b)
    ways = steps.ways(a, b, steps.compile_all(), torch.cuda.synchronize)
    us = contest.us_per_call(ways, torch.cuda.synchronize)
    assert all(taken > 0 for taken in us.values())
    assert sum(steps.costs(us).values()) == pytest.approx(us["ops.matmul"])
    assert us["an empty kernel"] < us["an empty kernel, until the host sees its end"]
    right(ops.matmul(a, b), a, b)  # the plan that launches nothing is gone
