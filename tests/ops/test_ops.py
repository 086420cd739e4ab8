"""cookbook.ops on operands that lie anyhow, and its gradients: against torch's, by kernels that are torch's own."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from pretend import NoDevice
from without_gpu import close, leaves, normal, pretend

from cookbook import ops
from cookbook.ops import choice, evidence, launching

BF16 = torch.bfloat16


@pytest.fixture
def compiled(monkeypatch):
    return pretend(monkeypatch)


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.T.contiguous().T,
    "padded rows": lambda x: torch.cat([x, torch.full_like(x, torch.nan)], 1)[:, : x.shape[1]],
    "every second row": lambda x: x.repeat_interleave(2, 0)[::2],
    "every second column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "not aligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "negated": lambda x: torch._neg_view(-x),
    "expanded": lambda x: x[:1].expand(x.shape),
    "one element": lambda x: x[:1, :1].expand(x.shape),
    "conjugated": lambda x: x.conj(),
}


@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_operands_that_lie_anyhow(compiled, of_a, of_b):
    for m, n, k in ((16, 24, 32), (7, 5, 9)):
        a, b = LAYOUTS[of_a](normal(m, k)), LAYOUTS[of_b](normal(k, n))
        close(ops.matmul(a, b), torch.matmul(a, b))
        close(ops.matmul(a, b), torch.matmul(a, b))  # by the plan of the first
    assert compiled


@pytest.mark.parametrize("k", [1, 2, 7, 8, 63, 65, 4095, 4097])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_any_k(compiled, k, dtype):
    a, b = normal(5, k, dtype=dtype), normal(k, 6, dtype=dtype)
    torch.testing.assert_close(ops.matmul(a, b).float(), (a.float() @ b.float()).to(dtype).float())
    torch.testing.assert_close(ops.matmul(a, b.T.contiguous().T), ops.matmul(a, b))


@pytest.mark.parametrize("gpu", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_any_k_on_other_architectures(monkeypatch, gpu):
    """Ampere's recipes read whole 16-byte pieces along K: both operands are filled up with zeros."""
    pretend(monkeypatch, choice.Gpu(gpu, 64))
    for k in (1, 9, 32, 65):
        for of_b in ("rows", "columns"):
            a, b = normal(20, k), LAYOUTS[of_b](normal(k, 40))
            close(ops.matmul(a, b), torch.matmul(a, b))
            close(ops.matmul(a.T.contiguous().T, b), torch.matmul(a, b))


def test_leading_dimensions(compiled):
    b = normal(32, 24)
    for shape in ((2, 3, 32), (2, 1, 5, 32), (1, 1, 32), (3, 0, 32)):
        a = normal(*shape)
        close(ops.matmul(a, b), torch.matmul(a, b))
    turned = normal(3, 2, 32).transpose(0, 1)  # whose rows are not one matrix
    close(ops.matmul(turned, b), torch.matmul(turned, b))
    wide = normal(2, 3, 40)[..., :32]
    close(ops.matmul(wide, b), torch.matmul(wide, b))


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
def test_empty_matrices(compiled, shape):
    m, n, k = shape
    got = ops.matmul(normal(m, k), normal(k, n))
    assert got.shape == (m, n) and (got == 0).all() and not compiled


def test_a_second_call_of_a_kind_neither_checks_nor_chooses(compiled, monkeypatch):
    a, b = normal(16, 32), normal(24, 32).T
    first = ops.matmul(a, b)
    monkeypatch.setattr(launching, "plan", None)
    second = ops.matmul(a.clone(), b)
    assert torch.equal(first, second) and first is not second and len(compiled) == 1
    with pytest.raises(TypeError, match=r"NoneType"):  # of another kind
        ops.matmul(a.half(), b.half())


def test_plans_are_limited_and_a_capture_keeps_none(compiled, monkeypatch):
    monkeypatch.setattr(launching, "MAX_PLANS", 3)
    for m in range(8, 13):
        ops.matmul(normal(m, 32), normal(32, 24))
    assert len(launching.PLANS) == 2
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    ops.matmul(normal(20, 32), normal(32, 24))
    assert len(launching.PLANS) == 2


def test_the_device_of_the_operands_is_current_at_the_launch(compiled, monkeypatch):
    a, b = normal(16, 32), normal(32, 24)
    first, current = ops.matmul(a, b), [3, -1]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current.pop(0))
    NoDevice.made_current.clear()
    assert torch.equal(ops.matmul(a, b), first) and NoDevice.made_current == [-1] and not current


def test_few_rows_go_to_decode_and_many_to_the_tuned_gemm(compiled):
    weight = torch.zeros(4096, 4096, dtype=BF16)
    for m, recipe in ((4, "hopper/decode_gemm"), (2048, "hopper/tuned_gemm")):
        assert ops.explain(torch.empty(m, 4096, dtype=BF16), weight.T).recipe == recipe
    ops.matmul(normal(4, 4096), weight.T)
    assert compiled == ["hopper/decode_gemm"]


def test_errors_have_one_form(compiled):
    a, b = normal(16, 32), normal(32, 24)
    wrong = [
        (TypeError, "a: got list; needed a torch.Tensor", [[1.0]], b),
        (TypeError, "b: got NoneType; needed a torch.Tensor", a, None),
        (TypeError, "a: got torch.float32; needed torch.float16 or torch.bfloat16", a.float(), b),
        (TypeError, "b: got torch.float16; needed torch.bfloat16, the dtype of a", a, b.half()),
        (ValueError, "a: got 1 dimension.s.; needed 2 or more", a[0], b),
        (ValueError, "b: got 3 dimension.s.; needed 2", a, b[None]),
        (ValueError, "b: got shape .24, 32.; needed .32, N., for a is .16, 32.", a, b.T.contiguous()),
        (TypeError, "a: got layout torch.sparse_coo", a.to_sparse(), b),
    ]
    for error, message, *given in wrong:
        with pytest.raises(error, match=message):
            ops.matmul(*given)
    assert not compiled


def test_without_a_gpu_the_error_names_the_device():
    with pytest.raises(ValueError, match=r"a: got device cpu; needed a CUDA device"):
        ops.matmul(normal(16, 32), normal(32, 24))
    with pytest.raises(ValueError, match=r"a: got device cpu; needed a CUDA device"):
        torch.ops.cute_cookbook.matmul(normal(16, 32), normal(32, 24))
    with pytest.raises(ValueError, match=r"a: got a GPU of compute capability .7, 5.; needed sm_100, "):
        ops.explain((8, 8), (8, 8), gpu=choice.Gpu((7, 5), 40))


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_b", ["rows", "columns", "not aligned"])
@pytest.mark.parametrize("of_a", ["rows", "columns", "expanded"])
def test_gradients(compiled, of_a, of_b):
    a, b = leaves(normal(20, 40), normal(40, 24))
    expected_a, expected_b = leaves(a, b)
    weights = normal(20, 24)
    for matmul, x, y in ((ops.matmul, a, b), (torch.matmul, expected_a, expected_b)):
        (matmul(LAYOUTS[of_a](x), LAYOUTS[of_b](y)) * weights).sum().backward()
    close(a.grad, expected_a.grad)
    close(b.grad, expected_b.grad)


def test_a_gradient_that_autograd_expands(compiled):
    a, b = leaves(normal(20, 40), normal(40, 24))
    ops.matmul(a, b).sum().backward()
    close(a.grad, b.detach().sum(1).expand(20, 40))


def test_a_gradient_lies_like_its_operand(compiled):
    """A weight (N, K) is read as its transpose: its gradient comes out as (N, K) in rows, and is not copied."""
    x, weight = leaves(normal(16, 32), normal(24, 32))
    hooked = []
    weight.register_hook(lambda grad: hooked.append(grad.is_contiguous()))
    ops.linear(x, weight).sum().backward()
    assert hooked == [True] and weight.grad.shape == weight.shape


def test_only_what_the_backward_needs_is_kept(compiled):
    a, b = leaves(normal(16, 32), normal(32, 24))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        ops.matmul(a.detach(), b)
        ops.matmul(a, b.detach())
    assert kept == [(16, 32), (32, 24)]


def test_the_gradient_of_a_gradient(compiled):
    a, b = leaves(normal(16, 32), normal(32, 24))
    found = []
    for matmul in (ops.matmul, torch.matmul):
        (first,) = torch.autograd.grad(matmul(a, b).float().pow(2).sum(), a, create_graph=True)
        found.append(torch.autograd.grad(first.float().pow(2).sum(), b)[0])
    scale = found[1].float().abs().max()
    torch.testing.assert_close(found[0].float() / scale, found[1].float() / scale, rtol=0, atol=2e-2)


def test_no_grad_and_inference_mode(compiled):
    a, b = leaves(normal(16, 32), normal(32, 24))
    with torch.no_grad():
        assert not ops.matmul(a, b).requires_grad
    with torch.inference_mode():
        assert ops.matmul(a, b).is_inference()


def test_forward_mode_is_refused_and_not_ignored(compiled):
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(normal(16, 32), normal(16, 32))
        with pytest.raises(ValueError, match=r"a: got a dual tensor; needed gradients backward"):
            ops.matmul(dual, normal(32, 24))
        close(ops.matmul(normal(16, 32), normal(32, 24)), torch.matmul(normal(16, 32), normal(32, 24)))


def test_the_operator_refuses_forward_mode_too(compiled):
    """Also where nobody asks for a gradient: the tangent would be lost."""
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(normal(16, 32), normal(16, 32))
        with pytest.raises(ValueError, match=r"a: got a dual tensor; needed gradients backward"):
            torch.ops.cute_cookbook.matmul(dual, normal(32, 24))
        with pytest.raises(ValueError, match=r"bias: got a dual tensor"):
            ops.linear(normal(5, 32), normal(16, 32), forward_ad.make_dual(normal(16), normal(16)))


BATCHED = {
    "matmul": (ops.matmul, torch.matmul),
    "operator": (torch.ops.cute_cookbook.matmul, torch.matmul),
    "linear": (
        lambda a, b: ops.linear(a, b.T, normal(24)),
        lambda a, b: torch.nn.functional.linear(a, b.T, normal(24)),
    ),
}


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_gradients_at_once(compiled, name):
    (a, b), grads = leaves(normal(16, 32), normal(32, 24)), normal(5, 16, 24)
    ours, theirs = (torch.autograd.grad(matmul(a, b), (a, b), grads, is_grads_batched=True) for matmul in BATCHED[name])
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got.float(), expected.float(), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("name", BATCHED)
def test_jacobian_and_hessian_in_one_go(compiled, name):
    functional, given = torch.autograd.functional, (normal(3, 8), normal(8, 24))
    for of, scale in ((functional.jacobian, lambda made: made[:2, :3]), (functional.hessian, lambda made: made.sum())):
        ours, theirs = (
            of(lambda a, b, by=by, scale=scale: scale(by(a, b)), given, vectorize=True) for by in BATCHED[name]
        )
        flat = [torch.utils._pytree.tree_leaves(each) for each in (ours, theirs)]
        for got, expected in zip(*flat, strict=True):
            torch.testing.assert_close(got.float(), expected.float(), rtol=2e-2, atol=5e-2)


# --- meta tensors, and counted operations -----------------------------------------------------------------------------


def meta(*shape):
    return torch.empty(shape, dtype=BF16, device="meta")


def test_meta_tensors_give_a_meta_product():
    """With no GPU, and no stand-in for one: as the operator does."""
    given = {
        (2, 3, 24): lambda: ops.matmul(meta(2, 3, 32), meta(32, 24)),
        (3, 24): lambda: ops.linear(meta(3, 32), meta(24, 32), meta(24)),
        (2, 3, 25): lambda: ops.swiglu(meta(2, 3, 32), meta(25, 32), meta(25, 32)),
        (3, 0): lambda: ops.matmul(meta(3, 0), meta(0, 0)),
        (3, 25): lambda: torch.ops.cute_cookbook.matmul(meta(3, 32), meta(32, 25)),
    }
    for shape, call in given.items():
        made = call()
        assert (made.shape, made.dtype, made.is_meta, made.is_contiguous()) == (shape, BF16, True, True)
    weight = meta(24, 32).requires_grad_()
    ops.linear(meta(3, 32), weight, meta(24)).sum().backward()
    assert weight.grad.is_meta and weight.grad.shape == weight.shape
    with pytest.raises(ValueError, match=r"b: got shape \(31, 24\); needed \(32, N\)"):
        ops.matmul(meta(3, 32), meta(31, 24))
    with pytest.raises(ValueError, match=r"b: got device cpu; needed meta, where a is"):
        ops.matmul(meta(3, 32), normal(32, 24))


def test_flops_are_counted_as_torchs_are(compiled):
    from torch.utils.flop_counter import FlopCounterMode

    def counted(function, *given):
        with FlopCounterMode(display=False) as counter:
            function(*given).float().sum().backward()
        return counter.get_total_flops()

    (x, weight), up, bias = leaves(normal(2, 16, 32), normal(24, 32)), normal(24, 32).requires_grad_(), normal(24)
    expected = counted(torch.nn.functional.linear, x, weight, bias)
    assert counted(ops.linear, x, weight, bias) == counted(ops.linear, x, weight) == expected == 3 * 2 * 32 * 24 * 32
    assert counted(lambda *given: ops.matmul(given[0], given[1].T), x, weight) == expected
    assert counted(ops.swiglu, x, weight, up) == 2 * expected
    with FlopCounterMode(display=False) as counter:
        ops.swiglu(meta(16, 32), meta(24, 32), meta(24, 32))
        torch.ops.cute_cookbook.swiglu(meta(16, 32), meta(24, 32), meta(24, 32))
    assert counter.get_total_flops() == 2 * 2 * 2 * 16 * 24 * 32


# --- linear -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(32,), (5, 32), (2, 3, 32), (0, 32)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear(compiled, shape, with_bias):
    x, weight, bias = normal(*shape), normal(24, 32), normal(24) if with_bias else None
    close(ops.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
    x, weight = leaves(x, weight)
    close(ops.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))


FUSED = "hopper/fused_epilogue_gemm"


def rounded_once(x, weight, bias):
    return (x.float() @ weight.float().T + bias.float()).to(x.dtype)


def test_a_bias_is_added_by_the_kernel_and_belongs_to_the_call(compiled):
    x, weight = normal(2, 128, 64), normal(256, 64)
    for bias in (normal(256), 3 * normal(256), normal(257)[1:]):  # the last one at an odd multiple of 2 bytes
        assert torch.equal(ops.linear(x, weight, bias), rounded_once(x, weight, bias))
    assert compiled == [FUSED] and len(launching.PLANS) == 1
    ops.linear(x, weight)
    assert len(compiled) == 2 and compiled[1] != FUSED


@pytest.mark.parametrize(
    ("shape", "fused"), [((8192, 1024, 4096), True), ((8192, 3072, 1024), True), ((64, 4096, 4096), False)]
)
def test_a_fused_bias_is_chosen_where_it_saves_most(shape, fused):
    m, n, k = shape
    laid = choice.laid((m, k)), choice.Laid((k, n), (1, k))
    best = choice.options(*laid, "bfloat16", choice.H200, bias=True)[0]
    assert (best.recipe == FUSED) is fused and (best.bias_us == 0) is fused
    assert FUSED not in {option.recipe for option in choice.options(*laid, "bfloat16", choice.H200)}


@pytest.mark.parametrize("gpu", [choice.H200, choice.Gpu((8, 0), 108)])
def test_a_bias_that_no_kernel_adds_is_added_behind_it(monkeypatch, gpu):
    compiled = pretend(monkeypatch, gpu)
    x, weight = normal(128, 64), normal(256, 64)
    bias = normal(512)[::2] if gpu == choice.H200 else normal(256)
    got = ops.linear(x, weight, bias)
    assert torch.equal(got, (x.float() @ weight.float().T).to(x.dtype) + bias)
    assert FUSED not in compiled and len(compiled) == 1


def test_a_bias_where_an_operand_is_copied_or_rows_are_padded(compiled):
    x, weight, bias = normal(128, 61), normal(255, 61), normal(255)
    close(ops.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
    x, weight, bias = normal(512, 512), normal(1023, 512), normal(1023)  # so large that the copy of padded rows pays
    assert torch.equal(ops.linear(x, weight, bias), rounded_once(x, weight, bias))


@pytest.mark.parametrize("which", ["x weight bias", "bias", "x", "weight bias"])
def test_gradients_of_a_layer_with_a_bias_are_torchs(compiled, which):
    given = {"x": normal(2, 64, 64), "weight": normal(128, 64), "bias": normal(128)}
    ours, theirs = ({k: v.clone().requires_grad_(k in which.split()) for k, v in given.items()} for _ in range(2))
    grad = normal(2, 64, 128)
    ops.linear(**ours).backward(grad)
    torch.nn.functional.linear(*theirs.values()).backward(grad)
    for name in given:
        assert (ours[name].grad is None) == (theirs[name].grad is None)
        if ours[name].grad is not None:
            close(ours[name].grad, theirs[name].grad)


def test_a_layer_under_vmap_has_one_bias(compiled):
    x, weight, bias = normal(3, 32, 64), normal(48, 64), normal(48)
    got = torch.vmap(ops.linear, in_dims=(0, None, None))(x, weight, bias)
    close(got, torch.nn.functional.linear(x, weight, bias))
    with pytest.raises(ValueError, match="bias: got a batch under vmap; needed one bias for all"):
        torch.vmap(ops.linear, in_dims=(0, None, 0))(x, weight, normal(3, 48))


def test_linear_errors(compiled):
    x, weight = normal(5, 32), normal(24, 32)
    wrong = [
        (TypeError, "x: got int; needed a torch.Tensor", 3, weight, None),
        (ValueError, "x: got 0 dimension.s.", x[0, 0], weight, None),
        (ValueError, r"weight: got shape \(24, 31\); needed \(N, 32\), for x is \(5, 32\)", x, normal(24, 31), None),
        (TypeError, r"x: got torch.float32; needed torch.float16 or torch.bfloat16, or", x.float(), weight, None),
        (ValueError, "weight: got 1 dimension.s.; needed 2: .N, K.", x, weight[0], None),
        (ValueError, r"bias: got shape \(32,\); needed \(24,\)", x, weight, normal(32)),
        (TypeError, "bias: got float", x, weight, 1.0),
    ]
    for error, message, *given in wrong:
        with pytest.raises(error, match=message):
            ops.linear(*given)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(32, 48)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(48, 48, bias=False) for _ in range(2))
        self.special = torch.nn.modules.linear.NonDynamicallyQuantizableLinear(48, 8)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.special(x)


def test_replace_linears(compiled):
    torch.manual_seed(0)
    net = Net().to(BF16)
    ours, calls = copy.deepcopy(net), []
    weight = ours.embed.weight
    ours.embed.register_forward_hook(lambda *args: calls.append(1))
    assert ops.replace_linears(ours) == ["embed", "layers.0", "layers.1"]
    assert ours.embed.weight is weight and type(ours.special) is not ops.Linear
    assert ours.state_dict().keys() == net.state_dict().keys()
    x = normal(16, 32)
    for model in (net, ours):
        model(x).float().pow(2).mean().backward()
    close(ours(x), net(x))
    for mine, theirs in zip(ours.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.float(), theirs.grad.float(), rtol=5e-2, atol=5e-3)
    assert len(calls) == 2 and ops.replace_linears(ours) == []
    with pytest.raises(TypeError, match=r"model: got int; needed a torch.nn.Module"):
        ops.replace_linears(3)


def test_a_float32_layer_multiplies_as_it_did(compiled):
    """A model of mixed dtypes, as those with a head in float32; under autocast such layers are ours."""
    head = torch.nn.Linear(32, 24)
    expected = head(torch.ones(3, 32))
    assert ops.replace_linears(head) == [""] and type(head) is ops.Linear
    made = head(torch.ones(3, 32))
    assert torch.equal(made, expected) and not compiled
    made.sum().backward()
    assert head.weight.grad.dtype == torch.float32
    with pytest.raises(RuntimeError, match="dtype"):  # torch's own message
        head(normal(3, 32))
    head.to(BF16)
    close(head(normal(3, 32)), torch.nn.functional.linear(normal(3, 32), head.weight, head.bias))
    assert len(compiled) == 1


# --- GPUs that nothing has run on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [(10, 0), (12, 0), (9, 0)])
def test_what_no_such_gpu_has_run_is_said_once(monkeypatch, gpu):
    """By the records: where one of such a GPU comes, the warning goes."""
    pretend(monkeypatch, choice.Gpu(gpu, 132))
    monkeypatch.setattr(evidence, "_WARNED", set())
    monkeypatch.setattr(evidence, "untried", evidence.untried.__wrapped__)  # kept for the process: by other tests
    a, b = normal(64, 64), normal(64, 64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for rows in (64, 32, 64):
            ops.matmul(a[:rows], b)
    found = ops.explain((64, 64), (64, 64), gpu=choice.Gpu(gpu, 132))
    texts = [str(each.message) for each in said if "confirmed" in str(each.message)]
    if gpu == (9, 0):
        assert not texts and found.untried == "" and "not confirmed" not in str(found)
        return
    assert len(texts) == 1 and f"on compute capability {gpu[0]}.x nothing of it is confirmed" in texts[0]
    assert f"  not confirmed: {found.recipe} has run on " in str(found)
