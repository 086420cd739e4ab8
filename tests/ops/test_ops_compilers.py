"""The operator under torch.compile, torch.export, make_fx, AOTAutograd, autocast and vmap.

On CPU tensors, whose kernels are torch's products (tests/without_gpu.py), with values; and on fake CUDA tensors.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from without_gpu import close, compiles, leaves, normal, pretend

from cookbook import ops

BF16 = torch.bfloat16
OP = torch.ops.cute_cookbook.matmul.default
WITH_BIAS = torch.ops.cute_cookbook.matmul_bias.default
BENEATH = torch.ops.cute_cookbook._matmul.default  # what is left of the operator once autograd has been traced
WITH_BIAS_BENEATH = torch.ops.cute_cookbook._matmul_bias.default


def counting(backend: str):
    """A backend that counts what it is given. Dynamo takes a second to import, which collecting tests need not."""
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend(backend)


@pytest.fixture
def compiled(monkeypatch):
    torch._dynamo.reset()
    return pretend(monkeypatch)


@pytest.fixture
def cuda():
    """Tensors are fake, on a CUDA device: torch traces without one."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    torch._dynamo.reset()
    with FakeTensorMode(shape_env=ShapeEnv()):
        yield lambda *shape, dtype=BF16: torch.empty(shape, dtype=dtype, device="cuda")


def layer(x, weight, bias):
    return torch.relu(ops.linear(x, weight, bias)).float().pow(2).sum()


def called(graph) -> list:
    """The operators of a traced graph."""
    return [node.target for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("b", ["rows", "columns"])
@pytest.mark.parametrize("gradients", [False, True])
def test_opcheck(compiled, b, gradients):
    x, y = normal(16, 32), normal(32, 24) if b == "rows" else normal(24, 32).T
    torch.library.opcheck(OP, (x.requires_grad_(gradients), y.detach().requires_grad_(gradients)))
    torch.library.opcheck(OP, (normal(7, 9), normal(9, 5)))  # copied
    bias = normal(y.shape[1]).requires_grad_(gradients)
    torch.library.opcheck(WITH_BIAS, (x, y.detach().requires_grad_(gradients), bias))


def test_a_compiled_layer_forward_and_backward(compiled):
    (x, weight), bias = leaves(normal(16, 32), normal(24, 32)), normal(24).requires_grad_()
    expected_x, expected_weight = leaves(x, weight)
    expected_bias = bias.detach().clone().requires_grad_()
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    fast(x, weight, bias).backward()
    layer(expected_x, expected_weight, expected_bias).backward()
    for got, expected in ((x, expected_x), (weight, expected_weight), (bias, expected_bias)):
        torch.testing.assert_close(got.grad, expected.grad)


def test_the_graphs_of_a_compiled_layer_hold_the_operator(compiled):
    from functorch.compile import aot_function

    graphs = []

    def keep(graph, inputs):
        graphs.append(called(graph.graph))
        return graph.forward

    (x, weight), bias = leaves(normal(16, 32), normal(24, 32)), normal(24)
    aot_function(layer, fw_compiler=keep, bw_compiler=keep)(x, weight, bias).backward()
    forward, backward = graphs
    assert forward.count(WITH_BIAS_BENEATH) == 1 and backward.count(BENEATH) == 2
    assert not {torch.ops.aten.mm.default, torch.ops.aten.add.Tensor} & {*forward}
    assert torch.ops.aten.mm.default not in backward


def test_another_m_does_not_recompile(compiled):
    counter = counting("aot_eager")
    fast = torch.compile(ops.linear, fullgraph=True, backend=counter)
    weight = normal(24, 32)
    for number, m in enumerate((16, 17, 40, 64, 3, 128)):
        x = normal(m, 32)
        close(fast(x, weight), torch.nn.functional.linear(x, weight))
        assert counter.frame_count == min(2, 1 + number)  # once for 16, once for any
    torch._dynamo.reset()
    counter.frame_count = 0
    for m in (16, 17, 40):
        x = normal(m, 32)
        torch._dynamo.mark_dynamic(x, 0)
        fast(x, weight)
    assert counter.frame_count == 1


CALLS = {
    "matmul": lambda m, n, k: (ops.matmul, normal(m, k), normal(k, n)),
    "matmul of batches": lambda m, n, k: (ops.matmul, normal(2, m, k), normal(k, n)),
    "linear": lambda m, n, k: (ops.linear, normal(m, k), normal(n, k)),
    "linear with a bias": lambda m, n, k: (ops.linear, normal(m, k), normal(n, k), normal(n)),
    "linear of a vector": lambda m, n, k: (ops.linear, normal(k), normal(n, k), normal(n)),
    "linear of batches": lambda m, n, k: (ops.linear, normal(2, m, k), normal(n, k), normal(n)),
}


@pytest.mark.parametrize("gradients", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", CALLS)
def test_no_check_of_a_traced_call_takes_a_size_for_fixed(compiled, name, gradients):
    """A text that is made before anybody looks is enough: each N then compiles anew, until PyTorch gives up."""
    assert compiles(CALLS[name], gradients) == 1


@pytest.mark.slow  # a C++ compiler has to build what Inductor writes
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_layer_by_inductor(compiled):
    """The code that Inductor writes around the operator relies on the fake: its strides must be the product's."""
    fast, weight, bias = torch.compile(layer, fullgraph=True), normal(24, 32).requires_grad_(), normal(24)
    for m in (16, 17, 40):
        x = normal(m, 32).requires_grad_()
        got, expected = fast(x, weight, bias), layer(x, weight, bias)
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=0.1)
        for mine, theirs in zip(*(torch.autograd.grad(each, (x, weight)) for each in (got, expected)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=0.5)


def test_an_exported_model_takes_any_number_of_rows(compiled):
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.ReLU(), torch.nn.Linear(48, 8)).to(BF16)
    ops.replace_linears(model)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(model, (normal(16, 32),), dynamic_shapes=({0: rows},))
    assert called(program.graph).count(WITH_BIAS) == 2
    close(program.module()(normal(5, 32)), model(normal(5, 32)))


def test_leading_dimensions_are_compiled(compiled):
    fast = torch.compile(ops.matmul, fullgraph=True, backend="aot_eager", dynamic=True)
    b = normal(32, 24)
    for shape in ((2, 3, 32), (4, 5, 32), (1, 2, 3, 32)):
        close(fast(normal(*shape), b), torch.matmul(normal(*shape), b))


def test_a_wrong_call_says_why_when_it_is_compiled(compiled):
    fast = torch.compile(ops.matmul, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"needed \(32, N\), for a is \(16, 32\)"):
        fast(normal(16, 32), normal(31, 24))
    with pytest.raises(Exception, match=r"needed torch.float16 or torch.bfloat16"):
        fast(normal(16, 32).float(), normal(32, 24).float())
    fast = torch.compile(ops.linear, fullgraph=True, backend="aot_eager", dynamic=True)
    with pytest.raises(Exception, match=r"bias: got shape .*; needed \(24,\)"):
        fast(normal(16, 32), normal(24, 32), normal(25))


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_autocast(compiled, dtype):
    """Its key is CUDA's: on CPU tensors the rule is called by hand."""
    from cookbook.recipe import operator

    cast, (x, weight) = operator.autocasting(OP), leaves(normal(16, 32).float(), normal(24, 32).float())
    with torch.autocast("cuda", dtype=dtype, enabled=True):
        made = cast(x, weight.T)
    assert made.dtype == dtype
    made.sum().backward()
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand(16, 32), rtol=2e-2, atol=2e-2)


def test_vmap(compiled):
    a, b = normal(3, 16, 32), normal(32, 24)
    for in_dims, batch in (((0, None), a), ((1, None), a.movedim(0, 1)), ((2, None), a.movedim(0, 2))):
        close(torch.vmap(ops.matmul, in_dims)(batch, b), torch.matmul(a, b))
    nested = torch.vmap(torch.vmap(ops.matmul, (0, None)), (0, None))
    close(nested(a[None].expand(2, 3, 16, 32), b), torch.matmul(a, b)[None].expand(2, 3, 16, 24))
    with pytest.raises(ValueError, match=r"b: got a batch under vmap; needed one b for all: torch.bmm"):
        torch.vmap(ops.matmul)(a, normal(3, 32, 24))


def test_a_gradient_by_torch_func_is_refused(compiled):
    """docs/pytorch.md quotes PyTorch's message."""
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda b: ops.matmul(normal(16, 32), b).float().sum())(normal(32, 24))


# --- fake CUDA tensors ------------------------------------------------------------------------------------------------


def test_fake_cuda_tensors_give_a_fake_product(cuda):
    made = ops.matmul(cuda(2, 16, 32), cuda(24, 32).T)
    assert (made.shape, made.dtype, made.device.type, made.is_contiguous()) == ((2, 16, 24), BF16, "cuda", True)
    with pytest.raises(ValueError, match=r"b: got shape .24, 31.; needed .32, N."):
        ops.matmul(cuda(16, 32), cuda(24, 31))
    with pytest.raises(TypeError, match=r"b: got torch.float16; needed torch.bfloat16, the dtype of a"):
        ops.matmul(cuda(16, 32), cuda(32, 24, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"b: got device cpu; needed cuda"):
        ops.matmul(cuda(16, 32), torch.empty(32, 24, dtype=BF16))


def test_fake_cuda_tensors_are_explained(cuda):
    from cookbook.ops.choice import Gpu

    found = ops.explain(cuda(4, 4096), cuda(4096, 4096).T, gpu=Gpu((9, 0), 132))
    assert found.recipe == "hopper/decode_gemm" and not found.copies
    assert ops.explain(cuda(4, 4104).narrow(1, 4, 4096), cuda(4096, 4096).T).copies == {"a": "address 0x8"}


def test_fullgraph_on_fake_cuda_tensors(cuda):
    counter = counting("aot_eager")
    fast = torch.compile(ops.linear, fullgraph=True, backend=counter)
    for m in (16, 17, 40, 64):
        assert fast(cuda(m, 32), cuda(24, 32), cuda(24)).shape == (m, 24)
    assert counter.frame_count == 2
    assert WITH_BIAS in called(counter.graphs[-1].graph)


def test_make_fx_on_fake_cuda_tensors(cuda):
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(ops.matmul, tracing_mode="symbolic")(cuda(16, 32), cuda(32, 24))
    assert called(traced.graph).count(BENEATH) == 1


def test_autocast_on_fake_cuda_tensors(cuda):
    x, weight, bias = cuda(16, 32, dtype=torch.float32), cuda(24, 32, dtype=torch.float32), cuda(24)
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.float16)  # torch.autocast does nothing where there is no CUDA
    torch.set_autocast_enabled("cuda", True)
    try:
        made = ops.linear(x, weight, bias)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
    assert made.dtype == torch.float16


def test_export_on_fake_cuda_tensors(cuda):
    model = ops.Linear(32, 24, device="meta")
    model.weight, model.bias = (torch.nn.Parameter(x, requires_grad=False) for x in (cuda(24, 32), cuda(24)))
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(model, (cuda(16, 32),), dynamic_shapes=({0: rows},), strict=False)
    assert called(program.graph).count(WITH_BIAS) == 1
    assert "rows" in str(program.range_constraints) or len(program.range_constraints) == 1
