"""A drop-in for torch.matmul and nn.Linear: one operator over all recipes.

    from cookbook import ops
    c = ops.matmul(a, b)                 # a (..., M, K), b (K, N)
    y = ops.linear(x, weight, bias)      # x (..., K), weight (N, K)
    h = ops.swiglu(x, w_gate, w_up)      # silu(x @ w_gate.T) * (x @ w_up.T), in one kernel
    print(ops.explain(a, b))             # which recipe, why, and what is copied
    with ops.tuning(): model(x)          # the first call of a shape times the kernels that are predicted to be fast

The operators are `torch.ops.cute_cookbook.matmul`, `matmul_bias`, which adds a bias, and `swiglu`. Autograd,
torch.compile, torch.export, autocast, vmap of the first operand and CUDA graphs take them. Outside of these `matmul`
goes to the launch directly, for PyTorch's dispatcher costs more than that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack  # what vmap and its like are at
from torch.autograd import forward_ad

from cookbook.ops import choice, gated, launching, sharding
from cookbook.ops.explaining import Explanation, explain
from cookbook.ops.launching import tuning
from cookbook.recipe import operator
from cookbook.recipe.entry import require

__all__ = [
    "NAME",
    "OPERATOR",
    "Explanation",
    "Linear",
    "explain",
    "linear",
    "matmul",
    "replace_linears",
    "swiglu",
    "tune",
    "tuning",
]

NAME = "cute_cookbook::matmul"
OPERATOR = operator.register(NAME, launching.product)
WITH_BIAS = operator.register(f"{NAME}_bias", launching.product, OPERATOR)
GATED = gated.register("cute_cookbook::swiglu", OPERATOR)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HALVES = (torch.bfloat16, torch.float16)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`torch.matmul(a, b)` by the recipe that is predicted to be fastest, accumulated in float32.

    a: (..., M, K), float16 or bfloat16, on a CUDA device; leading dimensions are rows of one matrix.
    b: (K, N), the same dtype and device.

    Any strides, alignment and sizes, and views that PyTorch negates when it reads them. What no recipe can read where
    it lies is copied first; `explain` says what and why. Gradients are computed by the same operator.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the argument,
    what it got and what it needs, and nothing has been launched.
    """
    return _multiplied(a, b, None)


def tune(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> choice.Option:
    """Time the kernels with the lowest predicted times at `matmul(a, b)`, plus a bias if given, and keep the fastest.

    Further calls of this kind use it, in this process and in others (`cookbook.ops.tuner`). Returns the kernel. Where
    the kind was tuned before nothing is timed.

    Raises what `matmul` raises, and ValueError while a graph is captured.
    """
    return launching.tuned(a, b, bias)


def _multiplied(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """a (..., M, K) times b (K, N), plus a bias (N)."""
    if (
        not torch.compiler.is_compiling()
    ):  # a compiled call guards at each call what it has seen here: the less the better
        if _is_plain(a, b) and (bias is None or _is_plain_bias(bias)):
            return _tracked(a, b, bias) if _needs_gradients(a, b, bias) else launching.product(a, b, bias)
        operator.check_dense("a", a)
        operator.check_dense("b", b)
    sharding.register()
    rows = a if a.ndim == 2 else launching.rows_of(a)
    made = OPERATOR(rows, b) if bias is None else WITH_BIAS(rows, b, bias)
    return made if a.ndim == 2 else made.view(*a.shape[:-1], made.shape[1])


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear`: `matmul(x, weight.T)`, plus the bias, which the kernel adds where it can.

    x: (..., K), float16 or bfloat16, on a CUDA device. weight: (N, K). bias: (N,).

    Where a kernel without a fused bias is predicted to be faster, or rows are read as they lie by none that has one,
    the product is rounded before the bias is added, and once more after: results may differ by one rounding from
    torch's. Raises what `matmul` raises.
    """
    if bias is not None and isinstance(bias, torch.Tensor) and isinstance(x, torch.Tensor) and bias.dtype != x.dtype:
        bias = bias.to(x.dtype)  # under autocast parameters are float32, and the operator casts all once more
    if _is_plain(x, weight) and weight.ndim == 2 and (bias is None or _is_plain_bias(bias)):
        try:
            if _needs_gradients(x, weight, bias):
                return _tracked(x, weight.T, bias)
            return launching.product(x, weight, bias, True)  # without the transpose, which is a tensor to be made
        except (TypeError, ValueError):
            _check_linear(x, weight, bias)  # which says the same by the names of these arguments
            raise
    _check_linear(x, weight, bias)
    return _multiplied(x, weight.T, bias) if x.ndim > 1 else _multiplied(x[None], weight.T, bias)[0]


def swiglu(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    """`silu(linear(x, w_gate)) * linear(x, w_up)`, (..., N): in one kernel that keeps both products in registers.

    x: (..., K), float16 or bfloat16, on a CUDA device. w_gate, w_up: (N, K), the same dtype and device.

    The kernel rounds once, torch three times. Where it is predicted to be slower, for few rows, and on a GPU without
    it, there are two products and torch's gate.

    **Where gradients are wanted** the backward needs both products. Keeping them moves two matrices (M, N) to memory
    and back. Computing them again takes more than ten times as long where K is some thousands. So they are kept, by two
    products and a gate. Where memory matters more, `torch.ops.cute_cookbook.swiglu`, of x (M, K), is the one kernel
    with gradients too: it keeps its operands alone, and its backward computes both products again.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the argument,
    what it got and what it needs, and nothing has been launched.
    """
    gated.check(x, w_gate, w_up)
    if torch.is_grad_enabled() and (x.requires_grad or w_gate.requires_grad or w_up.requires_grad):
        return torch.nn.functional.silu(linear(x, w_gate)) * linear(x, w_up)
    sharding.register()
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    plain = _is_plain(rows, w_gate) and _is_plain_bias(w_up)
    made = gated.gated(rows, w_gate, w_up) if plain else GATED(rows, w_gate, w_up)
    return made if x.ndim == 2 else made.view(*x.shape[:-1], made.shape[1])


def _check_linear(x: Any, weight: Any, bias: Any) -> None:
    operator.check_dense("x", x)
    operator.check_dense("weight", weight)
    require(x.ndim > 0, "x", "0 dimension(s)", "1 or more: (..., K)")
    require(weight.ndim == 2, "weight", f"{weight.ndim} dimension(s)", "2: (N, K)")
    if x.shape[-1] != weight.shape[1]:  # said only then: a compiler would take the sizes in a text for fixed
        raise ValueError(
            f"weight: got shape {tuple(weight.shape)}; needed (N, {x.shape[-1]}), for x is {tuple(x.shape)}"
        )
    known = torch.is_autocast_enabled("cuda") or x.dtype in (torch.float16, torch.bfloat16)
    require(known, "x", x.dtype, "torch.float16 or torch.bfloat16, or torch.autocast", TypeError)
    fits = bias is None or isinstance(bias, torch.Tensor)
    require(fits, "bias", type(bias).__name__, "a torch.Tensor or None", TypeError)
    if bias is not None and bias.shape != weight.shape[:1]:  # likewise
        raise ValueError(f"bias: got shape {tuple(bias.shape)}; needed ({weight.shape[0]},)")


def _is_plain(a: Any, b: Any) -> bool:
    """Return whether nobody but autograd has to do with a product: no compiler, mode, transform, or kind of tensor."""
    return (
        not torch.compiler.is_compiling()
        and type(a) in _PLAIN
        and type(b) in _PLAIN
        and a.ndim > 1
        and a.layout is b.layout is torch.strided
        and not (a.is_neg() or b.is_neg())
        and not torch.is_autocast_enabled("cuda")
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and peek_interpreter_stack() is None
    )


def _is_plain_bias(bias: Any) -> bool:
    """The same of a bias."""
    return type(bias) in _PLAIN and bias.layout is torch.strided and not bias.is_neg()


def _needs_gradients(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> bool:
    given = a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    return given and torch.is_grad_enabled()


def _multiplied_backward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`matmul` in a backward. Of `is_grads_batched` a gradient is a batch without memory: the operator goes over it."""
    return OPERATOR(a, b) if is_legacy_batchedtensor(a) or is_legacy_batchedtensor(b) else matmul(a, b)


# What the operator does where gradients are wanted, at less cost than by the dispatcher.
_TRACKED = operator.tracking(launching.product, operator.keep, operator.backward_by(_multiplied_backward))


def _tracked(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if a.ndim == 2:
        return _TRACKED.apply(a, b, bias)  # pyright: ignore[reportReturnType]
    return _TRACKED.apply(launching.rows_of(a), b, bias).view(*a.shape[:-1], b.shape[-1])  # pyright: ignore[reportOptionalMemberAccess]


class Linear(torch.nn.Linear):
    """`nn.Linear` by `cookbook.ops.linear`: the same parameters, hooks and state_dict.

    A weight of another dtype than float16 and bfloat16 is multiplied by `nn.Linear`, unless autocast casts it.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype in _HALVES or torch.is_autocast_enabled("cuda"):
            return linear(input, self.weight, self.bias)
        return super().forward(input)


def replace_linears(model: torch.nn.Module) -> list[str]:
    """Make every nn.Linear of a model a `Linear`, in place, and return their names.

    What a layer takes stays the same: while its weight is float32 it multiplies as nn.Linear does.

    The modules, their parameters and hooks stay the same objects. Subclasses of nn.Linear are left alone: their code
    may look at the weight in another way.
    """
    require(isinstance(model, torch.nn.Module), "model", type(model).__name__, "a torch.nn.Module", TypeError)
    found = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    for module in found.values():
        module.__class__ = Linear
    return list(found)
