"""A grouped GEMM as one of two matrices, so that the checks of those can look at it.

Groups of rows: each group's B is the same matrix times a power of two of its own, which changes no rounding. So C has
the error of a plain product, once its rows are divided again; rows that met another group's B are wrong by a factor.

Groups along K: the product is that of one group, and all of K outside of it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cookbook.check import scaled
from cookbook.recipe import grouped
from cookbook.recipe.formats import Format

__all__ = ["as_matmul", "operands", "quantized"]

FACTORS = (1.0, -2.0, 2.0, -1.0)  # one for each of the groups that the checks make


def as_matmul(matmul: Callable[..., Any], along: str = "m", form: Format | None = None) -> Callable[..., Any]:
    """A recipe's `matmul(a, b, offs, out=)` as one of (a, b, out): b (K, N), any `out`. along: what groups divide.

    form: of scaled operands, to which those of `call` are quantized; `matmul` takes scale factors before `offs`.
    """
    if along == "k":
        return _along_k(matmul)

    def call(a: Any, b: Any, out: Any = None) -> Any:
        m, n = a.shape[0], b.shape[1]
        weights, offs, factors = operands(m, b)
        direct = out is not None and n % 8 == 0 and out.stride(0) % 8 == 0 and out.data_ptr() % 16 == 0
        given = quantized(a, weights, form) if form else (a, weights)
        made = a.new_empty(m, weights.shape[2]) if form else None
        made = matmul(*given, offs, out=out if direct else made)[:, :n]
        made /= factors
        return made if out is None or direct else out.copy_(made)

    return call


def quantized(a: Any, weights: Any, form: Format) -> tuple[Any, Any, Any, Any]:
    """(M, K) and (GROUPS, K, N) as elements, then scale factors (M,) and (GROUPS, N)."""
    groups, _, n = weights.shape
    (elements, of_a), (bt, of_b) = (scaled.on_device(x, form) for x in (a, weights.mT.flatten(0, 1)))
    return elements, bt.unflatten(0, (groups, n)).mT, of_a[:, 0], of_b.view(groups, n)


BEFORE, AFTER = 37, 70  # k of other groups around the one that is looked at


def _along_k(matmul: Callable[..., Any]) -> Callable[..., Any]:
    def call(a: Any, b: Any, out: Any = None) -> Any:
        if (
            out is not None and out.stride(0) % 8 == 0 and out.data_ptr() % 16 == 0
        ):  # one group, so that it is written where out lies
            a, b, offs = surrounded(a, b, 0)
            matmul(a, b, offs[2:3], out=out[None])
            return out
        made = matmul(*surrounded(a, b, BEFORE))
        made = made[2] + made[1]  # an empty group, whose product is zeros
        return made if out is None else out.copy_(made)

    return call


def surrounded(a: Any, b: Any, before: int = BEFORE) -> tuple[Any, Any, Any]:
    """(M, K) and (K, N), contiguous along M and N, between k that are NaN, and the `offs` of four groups: the second is
    empty, the third one has a and b."""
    import torch

    k = a.shape[1]
    ends = torch.tensor((before, before, before + k, before + k + AFTER // 2), dtype=torch.int32, device=a.device)
    padded = [torch.nn.functional.pad(x, (0, 0, before, AFTER), value=float("nan")) for x in (a.T, b)]
    return padded[0].T, padded[1], ends


def operands(m: int, b: Any) -> tuple[Any, Any, Any]:
    """(GROUPS, K, N) weights, `offs`, and (M, 1) factors for torch's b (K, N): every row is of a group. N is rounded up
    to a multiple of 8."""
    import torch

    ends = (*grouped.ends(m)[:-1], m)
    bt = torch.nn.functional.pad(b.T, (0, 0, 0, -b.shape[1] % 8))
    weights = torch.stack([bt * factor for factor in FACTORS]).transpose(1, 2)
    factors = torch.tensor([[FACTORS[group]] for group in grouped.owners(m, ends)], device=b.device, dtype=b.dtype)
    return weights, torch.tensor(ends, device=b.device, dtype=torch.int32), factors
