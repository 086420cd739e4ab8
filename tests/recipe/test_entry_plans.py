"""A GEMM recipe's plans: what a call of one kind has found is kept for the next, and nothing else is taken on trust.

No GPU: CPU tensors pass for CUDA's, and the kernel is a function that notes what it is launched with.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from pretend import NoDevice, pretended

from cookbook.recipe import catalog, entry

GEMMS = [r.name for r in catalog.recipes() if r.product.of_two_matrices]


@pytest.fixture(params=GEMMS)
def module(request, monkeypatch):
    return pretended(request.param, monkeypatch)


def a_(m=16, k=32):
    return torch.zeros(m, k, dtype=torch.bfloat16)


def b_(k=32, n=24):
    return torch.zeros(n, k, dtype=torch.bfloat16).T


def sizes(arguments):
    """(M, N, K) and the strides, alone or in a struct; before them, perhaps, an epilogue's operands and the table of
    the remapping."""
    found = [x for x in arguments if isinstance(x, tuple)]
    return [x for x in next((x for x in found if hasattr(x, "_fields")), found) if isinstance(x, tuple)]


def test_a_second_call_of_a_kind_is_launched_without_the_checks(module):
    a, b, other_a, other_b = a_(), b_(), a_(), b_()
    first = module.matmul(a, b)
    second = module.matmul(other_a, other_b)
    assert len(module.planned) == 1 and len(module.GEMM.plans) == 1
    expected = [(a, b, first), (other_a, other_b, second)]
    for (_, arguments), operands in zip(module.launched, expected, strict=True):
        assert arguments[:3] == tuple(x.data_ptr() for x in operands)
        assert sizes(arguments) == [(16, 24, 32), (32, 32, 24)]
        assert arguments[-1] == 7  # the stream; a persistent kernel takes the number of SMs or of clusters before it
    assert second.shape == (16, 24) and second.dtype == torch.bfloat16 and second is not first


def test_any_other_kind_is_checked_again(module):
    matmul, a, b = module.matmul, a_(), b_()
    out, shifted = torch.zeros(16, 24, dtype=torch.bfloat16), torch.zeros(16 * 24 + 1, dtype=torch.bfloat16)
    kinds = [
        {"a": a, "b": b},
        {"a": a_(17), "b": b},  # a shape
        {"a": torch.zeros(16, 40, dtype=torch.bfloat16)[:, :32], "b": b},  # a stride
        {"a": a.half(), "b": b.half()},  # a dtype
        {"a": a, "b": b, "out": out},
        {"a": a, "b": b, "out": torch.zeros(16, 32, dtype=torch.bfloat16)[:, :24]},  # a stride of out
        {"a": a, "b": b, "out": shifted[1:].view(16, 24)},  # an alignment of out
    ]
    for count, kind in enumerate(kinds, 1):
        for _ in range(2):
            made = matmul(**kind)
            assert made is kind.get("out", made)
        assert len(module.planned) == count
    with torch.no_grad():
        matmul(a.detach().requires_grad_(), b)
    assert len(module.planned) == len(kinds) + 1
    strides = [sizes(arguments)[1] for _, arguments in module.launched]
    assert strides[4] == (40, 32, 24) and strides[10] == (32, 32, 32)  # what the third and the sixth kind ask for


def test_a_plan_knows_how_out_is_aligned(module):
    """Of two outputs alike but for that, wide stores are for the aligned one only; where all stores are, its memory."""
    memory = torch.zeros(16 * 24 + 8, dtype=torch.bfloat16)
    start = -memory.data_ptr() % 16 // 2
    outs = [memory[start + offset :][: 16 * 24].view(16, 24) for offset in (0, 1, 0, 1)]
    for out in outs:
        assert module.matmul(a_(), b_(), out=out) is out
    assert len(module.planned) == 2
    if "vec" in inspect.signature(module.compile_for).parameters:
        assert [which[-1] for which, _ in module.launched] == [8, 1, 8, 1]
    else:
        written = [arguments[2] for _, arguments in module.launched]
        direct = [pointer == out.data_ptr() for pointer, out in zip(written, outs, strict=True)]
        if module.GEMM.padded:
            assert direct == [True, False, True, False] and all(pointer % 16 == 0 for pointer in written)
        else:
            assert all(direct)  # stored element by element


def test_bad_input_is_refused_each_time(module):
    a, b = a_(), b_()
    module.matmul(a, b)
    wrong = [
        (TypeError, "a: got list", {"a": [[1.0]], "b": b}),
        (TypeError, "b: got NoneType", {"a": a, "b": None}),
        (TypeError, "out: got bool", {"a": a, "b": b, "out": False}),
        (TypeError, "a: got torch.float32", {"a": a.float(), "b": b}),
        (TypeError, "a: got layout torch.sparse_coo", {"a": a.to_sparse(), "b": b}),
        (ValueError, "a: got requires_grad=True", {"a": a_().requires_grad_(), "b": b}),
        (ValueError, "b: got requires_grad=True", {"a": a, "b": b_().requires_grad_()}),
        (ValueError, "a: got address", {"a": torch.zeros(513, dtype=torch.bfloat16)[1:].view(16, 32), "b": b}),
        (ValueError, "b: got shape", {"a": a, "b": b_(40)}),
    ]
    for error, message, kind in wrong * 2:
        with pytest.raises(error, match=message):
            module.matmul(**kind)
    assert len(module.launched) == 1 and len(module.GEMM.plans) == 1
    with torch.no_grad():
        module.matmul(a_().requires_grad_(), b)
    with pytest.raises(ValueError, match="a: got requires_grad=True"):  # the plan of no_grad is not this call's
        module.matmul(a_().requires_grad_(), b)


def test_where_out_lies_is_looked_at_each_time(module):
    """The same kind of call is legal or not by addresses alone, and columns of one wider matrix are legal."""
    wide = torch.zeros(32, 96, dtype=torch.bfloat16)
    a, b = wide[:, :32], b_(32, 32)
    for _ in range(2):
        module.matmul(a, b, out=wide[:, 64:])
        module.matmul(a, b, out=torch.zeros_like(wide)[:, 64:])
        for start in (0, 8, 16, 24):
            with pytest.raises(ValueError, match="out: got memory that overlaps a; needed memory of its own"):
                module.matmul(a, b, out=wide[:, start : start + 32])
    assert len(module.launched) == 4 and len(module.GEMM.plans) == 1
    square = b_(32, 32)
    module.matmul(a_(32), square, out=torch.zeros(32, 32, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="out: got memory that overlaps b"):
        module.matmul(a_(32), square, out=square.T)


def test_the_plans_do_not_grow_without_end(module, monkeypatch):
    monkeypatch.setattr(entry, "MAX_PLANS", 3)
    for m in (8, 16, 24, 32, 40):
        module.matmul(a_(m), b_())
    assert [call.mnk[0] for call, _, _ in module.GEMM.plans.values()] == [32, 40]


def test_the_device_of_the_operands_is_current_at_the_launch(module, monkeypatch):
    a, b = a_(), b_()
    module.matmul(a, b)
    current = [3, -1]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current.pop(0))
    NoDevice.made_current.clear()
    module.matmul(a, b)
    assert NoDevice.made_current == [-1] and not current and len(module.launched) == 2


def test_majors_are_of_the_kind(module):
    """Where a recipe takes several: the transpose of an operand has another plan, with its own overlap and strides."""
    if module.GEMM.major_of is entry.k_major:
        pytest.skip("K-major operands only")
    a, b, wide = a_(32), b_(32, 32), torch.zeros(32, 64, dtype=torch.bfloat16)
    for left in (a, a.T, a, a.T):
        module.matmul(left, b)
    of_a = [which[2].a_major for which, _ in module.launched]  # of the configuration that is compiled
    assert of_a == ["k", "m", "k", "m"] and len(module.GEMM.plans) == 2
    for _ in range(2):
        module.matmul(wide[:, :32].T, b, out=wide[:, 32:])
        with pytest.raises(ValueError, match="out: got memory that overlaps a"):
            module.matmul(wide[:, :32].T, b, out=wide[:, 16:48])
