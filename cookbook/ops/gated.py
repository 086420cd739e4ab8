"""SwiGLU as an operator of PyTorch: silu(x Wg^T) * (x Wu^T), in one kernel where a recipe has one and it pays.

The kernel writes neither product to memory, so its backward computes both again. Where that is not wanted,
`cookbook.ops.swiglu` does not come here: see there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from cookbook.ops import choice, launching, predict
from cookbook.recipe import catalog, operator
from cookbook.recipe.entry import Gemm, require

__all__ = ["check", "chosen", "gated", "register"]

GATE = "swiglu"  # what the front matter of a recipe with such a kernel says that it fuses
ELEMENT_BYTES = 6  # that a kernel of the gate alone moves for each element: two products are read, C is written


def register(name: str, product: Any) -> Any:
    """Define the operator `name` and return it: x (M, K), w_gate and w_up (N, K), float16 or bfloat16.

    product: the operator of a plain product, by which gradients are computed.
    """
    operands, gradients = ("x", "w_gate", "w_up"), lambda _: (_keep, _backward_by(product))
    return operator.define(name, operands, _operator, _fake, gradients, _flops)


def check(x: Any, w_gate: Any, w_up: Any) -> None:
    """Check what a fake tensor can say: x (..., K), w_gate and w_up (N, K), of one dtype and device."""
    for name, each in (("x", x), ("w_gate", w_gate), ("w_up", w_up)):
        operator.check_dense(name, each)
        known = torch.is_autocast_enabled("cuda") or each.dtype in (torch.float16, torch.bfloat16)
        require(known, name, each.dtype, "torch.float16 or torch.bfloat16, or torch.autocast", TypeError)
    require(x.ndim > 0, "x", "0 dimension(s)", "1 or more: (..., K)")
    for name, weight in (("w_gate", w_gate), ("w_up", w_up)):
        require(weight.ndim == 2, name, f"{weight.ndim} dimension(s)", "2: (N, K)")
        same = weight.dtype == x.dtype or torch.is_autocast_enabled("cuda")
        require(same, name, weight.dtype, f"{x.dtype}, the dtype of x", TypeError)
        require(weight.device == x.device, name, f"device {weight.device}", f"{x.device}, where x is")
        if weight.shape[1] != x.shape[-1]:  # said only then: a compiler would take the sizes in a text for fixed
            raise ValueError(
                f"{name}: got shape {tuple(weight.shape)}; needed (N, {x.shape[-1]}), for x is {tuple(x.shape)}"
            )
    if w_up.shape[0] != w_gate.shape[0]:
        raise ValueError(f"w_up: got shape {tuple(w_up.shape)}; needed {tuple(w_gate.shape)}, as w_gate has")


class Chosen(NamedTuple):
    """The kernel and variant that compute a gated product."""

    recipe: str  # "": two products, and the gate by torch
    fused_us: float  # predicted microseconds of the recipe's kernel; of none, infinity
    apart_us: float  # of two products and a kernel for the gate


@lru_cache(maxsize=4096)
def chosen(m: int, n: int, k: int, dtype: str, gpu: choice.Gpu) -> Chosen:
    """Return how `swiglu` computes C (m, n) over k: in one kernel, unless that is predicted to be slower. dtype:
    torch's name.

    Predictions err by a tenth, and one kernel takes no memory for two products: apart they have to promise more.
    """
    chip = predict.chip_with(gpu.memory)
    gate_us = (chip.launch + ELEMENT_BYTES * m * n / chip.memory) / 1000
    apart_us = gate_us + 2 * choice.options(choice.laid((m, k)), choice.Laid((k, n), (1, k)), dtype, gpu)[0].us
    found = Chosen("", float("inf"), apart_us)
    for recipe, rate in choice.candidates(gpu.capability, GATE):
        if recipe.fuses != GATE or dtype not in recipe.dtypes:
            continue
        module, columns = catalog.load(recipe.name), 2 * n  # of accumulators: both products lie in one tile
        variant = choice.variant_of(module, m, columns, k, gpu.sms)
        config = choice.config_of(module, "sm_{}{}".format(*gpu.capability), variant)
        fused_us = choice.predicted(module, config, predict.Work(m, columns, k, gpu.sms, rate), gpu.memory)
        if fused_us < found.fused_us:
            found = Chosen(recipe.name if fused_us < apart_us * choice.DOUBT else "", fused_us, apart_us)
    return found


@lru_cache
def _host_side(recipe: str) -> tuple[Gemm, str]:
    """Return what launches a recipe's kernels with the gate, and the variant that it takes if it is not told."""
    module = catalog.load(recipe)
    return module.host_side(GATE), choice.default_of(module)


def gated(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    """silu(x w_gate^T) * (x w_up^T), x (M, K), of what `check` has seen. Autograd and the like have been seen to."""
    if x.is_meta:
        return _fake(x, w_gate, w_up)
    gpu = launching.gpu_of(x, "x")
    x, w_gate, w_up = x.detach(), w_gate.detach(), w_up.detach()
    (m, k), n = x.shape, w_gate.shape[0]
    if 0 in (m, n, k):
        return x.new_zeros(m, n)
    if recipe := chosen(m, n, k, str(x.dtype).removeprefix("torch."), gpu).recipe:
        kernel, variant = _host_side(recipe)
        a, b = operator.fitted(kernel, x, w_gate.T)
        _, up = operator.fitted(kernel, a, w_up.T)
        return kernel.matmul(a, b, up, variant=variant)
    gate = launching.product(x, w_gate, None, True)
    return torch.nn.functional.silu(gate).mul_(launching.product(x, w_up, None, True))


def _operator(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    _check_rows(x, w_gate, w_up)
    return gated(x, w_gate, w_up)


def _check_rows(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> None:
    check(x, w_gate, w_up)
    require(x.ndim == 2, "x", f"{x.ndim} dimension(s)", "2: (M, K)")


def _fake(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    """Return what it looks like: rows of adjacent elements."""
    _check_rows(x, w_gate, w_up)
    return x.new_empty(x.shape[0], w_gate.shape[0])


def _flops(x: tuple[int, int], w_gate: tuple[int, int], w_up: tuple[int, int], out_shape: Any = None) -> int:
    """Count the operations of the two products; torch's counter leaves the gate out."""
    return 2 * operator.flops_of_product(x, (w_gate[1], w_gate[0]))


def _keep(ctx: Any, operands: tuple) -> None:
    ctx.save_for_backward(*operands)


def _backward_by(product: Callable[..., torch.Tensor]) -> Callable[..., tuple]:
    """The backward: both products again, then what they owe to the gate, then two products for each weight."""

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w_gate, w_up = ctx.saved_tensors
        of_gate, of_up = gate_gradients(grad, product(x, w_gate.T), product(x, w_up.T))
        of_x = product(of_gate, w_gate) + product(of_up, w_up) if ctx.needs_input_grad[0] else None
        weights = zip(ctx.needs_input_grad[1:], (of_gate, of_up), strict=True)
        return of_x, *(product(each.T, x) if needed else None for needed, each in weights)

    return backward


def gate_gradients(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of both products, (M, N) each.

    With s = sigmoid(gate): silu(gate) = gate s, and its derivative is s (1 + gate (1 - s)).
    """
    return torch.ops.aten.silu_backward(grad * up, gate), grad * torch.nn.functional.silu(gate)
