"""What is timed of a GEMM of row-scaled 8-bit operands: ours, and torch's own with fast and with slow accumulation."""

from __future__ import annotations

from functools import partial
from typing import Any

from cookbook.harness import running
from cookbook.harness.benching import MAX_SETS, OURS, Call, Contest, how_many_sets

__all__ = ["FAST", "SLOW", "contest", "input_sets"]

FAST, SLOW = "torch._scaled_mm", "torch._scaled_mm, slow accumulation"


def contest(module: Any, shape: tuple[int, ...], dtype: str, own: bool = True) -> Contest:
    """A recipe's matmul of (a, b, scale_a, scale_b, out), with all its variants if `own`, and torch's two.

    Raises:
        RuntimeError: one of them does not compute the product.
    """
    sets = input_sets(shape, dtype)
    variants: dict[str, Call] = {OURS: _into(module.matmul), FAST: partial(_torch, True), SLOW: partial(_torch, False)}
    for name in getattr(module, "VARIANTS", {}) if own else ():
        variants[name] = _into(partial(module.matmul, variant=name))
    for name, call in variants.items():
        _verify(name, call, sets[0], dtype)
    return Contest(variants, sets, FAST, 2.0 * shape[0] * shape[1] * shape[2], config=module.CONFIG)


def input_sets(shape: tuple[int, ...], dtype: str) -> list[tuple[Any, ...]]:
    """Sets of (a, b, scale_a, scale_b, out): normal numbers as e4m3, scale factors of 0.5 to 1.5, K contiguous."""
    import torch

    m, n, k = shape
    count = min(how_many_sets(m * k + k * n + 2 * m * n), MAX_SETS)
    made = []
    for _ in range(count):
        a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
        scale_a, scale_b = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
        out = torch.empty(m, n, device="cuda", dtype=getattr(torch, dtype))
        made.append((a, b.T, scale_a, scale_b, out))
    return made


def _into(matmul: Any) -> Call:
    return lambda a, b, scale_a, scale_b, out: matmul(a, b, scale_a, scale_b, out=out)


def _torch(fast: bool, a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Any:
    import torch

    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=fast, out=out)


def _verify(name: str, call: Call, operands: tuple[Any, ...], dtype: str) -> None:
    """Before it is timed: the product, to the rounding of bfloat16 and what fast accumulation loses."""
    import torch

    a, b, scale_a, scale_b, out = operands
    out.fill_(float("nan"))
    call(*operands)
    exact = (a.float() @ b.float()) * scale_a * scale_b
    torch.cuda.synchronize()
    error, limit = running.relative_error(out, exact), 2 * running.tolerance("bfloat16")
    if not error <= limit:
        raise RuntimeError(f"{name} is wrong: relative error {error:.2e}; at most {limit:.2e}")
