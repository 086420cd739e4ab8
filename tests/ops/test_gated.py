"""cookbook.ops.swiglu: what it computes of operands that lie anyhow, its gradients, and what compilers make of it."""

from __future__ import annotations

import pytest
import torch
from without_gpu import close, compiles, normal, pretend, seen

from cookbook import ops
from cookbook.ops import choice, gated
from cookbook.recipe import catalog

OP = torch.ops.cute_cookbook.swiglu.default
RECIPE = "hopper/swiglu_gemm"


def layer(x, w_gate, w_up):
    linear = torch.nn.functional.linear
    return torch.nn.functional.silu(linear(x, w_gate)) * linear(x, w_up)


@pytest.fixture
def compiled(monkeypatch):
    """The list into which the name of a recipe goes when a kernel of it is compiled; the gate's is torch's own."""
    names = pretend(monkeypatch)
    side = catalog.load(RECIPE).host_side(gated.GATE)

    def compile_for(arch, dtype, call, options):
        names.append(RECIPE)
        (m, n, k), (lda, ldb, ldc), (ldu,) = call.mnk, call.strides, call.known

        def launch(pa, pb, pc, pu, stream):
            a = seen(pa, (m, k), (lda, 1), call.dtype).float()
            x, up = (a @ seen(p, (k, n), (1, ld), call.dtype).float() for p, ld in ((pb, ldb), (pu, ldu)))
            seen(pc, (m, n), (ldc, 1), call.dtype).copy_(torch.nn.functional.silu(x) * up)

        return launch

    for name, value in {
        "prepare": lambda call: ((call._replace(known=call.known["up"]),), ()),  # found by its hash
        "compile_for": compile_for,
        "plans": {},
        "kernels": {},
    }.items():
        monkeypatch.setattr(side, name, value)
    return names


MANY = 72


def operands(m=MANY, n=24, k=32, gradients=False):
    made = normal(m, k), normal(n, k), normal(n, k + 1)[:, :k].contiguous()
    return tuple(x.requires_grad_(gradients) for x in made)


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.T.contiguous().T,
    "every second row": lambda x: x.repeat_interleave(2, 0)[::2],
    "not aligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "negated": lambda x: torch._neg_view(-x),
}


@pytest.mark.parametrize("lies", LAYOUTS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_operands_that_lie_anyhow(compiled, which, lies):
    for m, n, k in ((MANY, 24, 32), (MANY + 3, 5, 9)):
        given = list(operands(m, n, k))
        given[which] = LAYOUTS[lies](given[which])
        close(ops.swiglu(*given), layer(*given))
    assert set(compiled) == {RECIPE}


def test_leading_dimensions_and_none(compiled):
    x, w_gate, w_up = operands(72)
    close(ops.swiglu(x.view(2, 3, 12, 32), w_gate, w_up), layer(x, w_gate, w_up).view(2, 3, 12, 24))
    close(ops.swiglu(x[0], w_gate, w_up), layer(x[0], w_gate, w_up))
    assert ops.swiglu(x[:0], w_gate, w_up).shape == (0, 24)
    assert not ops.swiglu(x[:, :0], w_gate[:, :0], w_up[:, :0]).any()


def test_few_rows_of_large_weights_take_two_products(compiled):
    given = operands(1, 4096, 4096)
    close(ops.swiglu(*given), layer(*given))
    assert compiled and RECIPE not in compiled


def test_another_gpu_takes_two_products(monkeypatch):
    names = pretend(monkeypatch, choice.Gpu((8, 0), 108))
    given = operands()
    close(ops.swiglu(*given), layer(*given))
    assert names and RECIPE not in names


# --- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, False)])
@pytest.mark.parametrize("by", ["ops.swiglu", "the operator"])
def test_gradients_are_torchs(compiled, by, wanted):
    function = ops.swiglu if by == "ops.swiglu" else OP
    given = [x.requires_grad_(needed) for x, needed in zip(operands(), wanted, strict=True)]
    exact = [x.detach().float().requires_grad_(needed) for x, needed in zip(given, wanted, strict=True)]
    grad = normal(MANY, 24)
    function(*given).backward(grad)
    layer(*exact).backward(grad.float())
    for mine, right in zip(given, exact, strict=True):
        assert (mine.grad is None) == (right.grad is None)
        if mine.grad is not None and right.grad is not None:
            assert ((mine.grad - right.grad).norm() / right.grad.norm()).item() < 1e-2
    assert (RECIPE in compiled) == (by != "ops.swiglu")  # which keeps both products instead


def test_the_gradients_of_the_gate_are_the_derivatives():
    gate, up, grad = (torch.randn(64, dtype=torch.float64) for _ in range(3))
    exact = gate.clone().requires_grad_(), up.clone().requires_grad_()
    (torch.nn.functional.silu(exact[0]) * exact[1]).backward(grad)
    of_gate, of_up = gated.gate_gradients(grad, gate, up)
    torch.testing.assert_close(of_gate, exact[0].grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(of_up, exact[1].grad, rtol=1e-5, atol=1e-6)


# --- what PyTorch does with it -------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients", [False, True])
def test_opcheck(compiled, gradients):
    torch.library.opcheck(OP, operands(gradients=gradients))


def test_a_compiled_layer_holds_one_operator(compiled):
    held = []

    def keep(graph, inputs):
        held.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    fast = torch.compile(ops.swiglu, fullgraph=True, backend=keep)
    given = operands()
    close(fast(*given), layer(*given))
    assert held.count(OP) == 1


def test_a_compiled_step_has_torchs_gradients(compiled):
    fast = torch.compile(ops.swiglu, fullgraph=True, backend="aot_eager")
    given, expected = operands(gradients=True), operands(gradients=True)
    fast(*given).sum().backward()
    ops.swiglu(*expected).sum().backward()
    for mine, right in zip(given, expected, strict=True):
        torch.testing.assert_close(mine.grad, right.grad)


def test_vmap_takes_a_batch_of_x(compiled):
    x, w_gate, w_up = operands(72)
    found = torch.vmap(ops.swiglu, in_dims=(0, None, None))(x.view(12, 6, 32), w_gate, w_up)
    close(found.flatten(0, 1), layer(x, w_gate, w_up))
    with pytest.raises(ValueError, match="w_up: got a batch under vmap; needed one w_up for all"):
        torch.vmap(ops.swiglu, in_dims=(0, None, 0))(x.view(12, 6, 32), w_gate, torch.stack([w_up] * 12))


def test_the_operator_takes_rows_alone(compiled):
    x, w_gate, w_up = operands()
    with pytest.raises(ValueError, match=r"x: got 3 dimension\(s\); needed 2: \(M, K\)"):
        OP(x[None], w_gate, w_up)


X, W = normal(16, 32), normal(24, 32)
WRONG = [
    ((1.0, W, W), TypeError, "x: got float; needed a torch.Tensor"),
    ((X, W.float(), W), TypeError, "w_gate: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ((X, W, W.half()), TypeError, "w_up: got torch.float16; needed torch.bfloat16, the dtype of x"),
    ((X, W[0], W), ValueError, r"w_gate: got 1 dimension\(s\); needed 2: \(N, K\)"),
    ((X[0, 0], W, W), ValueError, r"x: got 0 dimension\(s\); needed 1 or more"),
    ((X, W[:, :8], W), ValueError, r"w_gate: got shape \(24, 8\); needed \(N, 32\), for x is \(16, 32\)"),
    ((X, W, W[:8]), ValueError, r"w_up: got shape \(8, 32\); needed \(24, 32\), as w_gate has"),
    ((X, W, W.to_sparse()), TypeError, "w_up: got layout torch.sparse_coo; needed torch.strided"),
    ((X, W, W), ValueError, "x: got device cpu; needed a CUDA device"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=[message[:30] for _, _, message in WRONG])
def test_what_it_cannot_take_is_named(given, error, message):
    with pytest.raises(error, match=message):
        ops.swiglu(*given)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_no_check_takes_a_size_for_fixed(compiled, batch, gradients):
    assert compiles(lambda m, n, k: (ops.swiglu, normal(*batch, m, k), normal(n, k), normal(n, k)), gradients) == 1
