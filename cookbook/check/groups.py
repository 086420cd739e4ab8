"""A grouped GEMM as one of two matrices, so that the checks of those can look at it.

Each group's B is the same matrix times a power of two of its own, which changes no rounding. So C has the error of a
plain product, once its rows are divided again; rows that met another group's B are wrong by a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cookbook.recipe import grouped

__all__ = ["as_matmul", "operands"]

FACTORS = (1.0, -2.0, 2.0, -1.0)  # one for each of the groups that the checks make


def as_matmul(matmul: Callable[..., Any]) -> Callable[..., Any]:
    """A recipe's `matmul(a, b, offs, out=)` as one of (a, b, out): b (K, N), any N and any `out`."""

    def call(a: Any, b: Any, out: Any = None) -> Any:
        m, n = a.shape[0], b.shape[1]
        weights, offs, factors = operands(m, b)
        direct = out is not None and n % 8 == 0 and out.stride(0) % 8 == 0 and out.data_ptr() % 16 == 0
        made = matmul(a, weights, offs, out=out if direct else None)[:, :n]
        made /= factors
        return made if out is None or direct else out.copy_(made)

    return call


def operands(m: int, b: Any) -> tuple[Any, Any, Any]:
    """(GROUPS, K, N) weights, `offs`, and (M, 1) factors for torch's b (K, N): every row is of a group. N is rounded up
    to a multiple of 8."""
    import torch

    ends = (*grouped.ends(m)[:-1], m)
    bt = torch.nn.functional.pad(b.T, (0, 0, 0, -b.shape[1] % 8))
    weights = torch.stack([bt * factor for factor in FACTORS]).transpose(1, 2)
    factors = torch.tensor([[FACTORS[group]] for group in grouped.owners(m, ends)], device=b.device, dtype=b.dtype)
    return weights, torch.tensor(ends, device=b.device, dtype=torch.int32), factors
