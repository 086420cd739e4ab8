"""Groups along K, each with a product of its own: `kind: grouped_k`. C is (GROUPS, M, N).

A group goes from the end before it to its own, and is empty, with a product of zeros, where its own is not behind that.
What lies outside of it may be NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cookbook.check import calls, groups
from cookbook.check.pipeline.programs import Problem
from cookbook.check.product import problems
from cookbook.check.product.problems import Judged
from cookbook.measure.contest import Call, how_many_sets
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import shape_of
from cookbook.products.grouped import Grouped, ends_of
from cookbook.recipe import grouped
from cookbook.recipe.catalog import Recipe


class GroupedK(Grouped):
    """`matmul(a, b, offs)`: a (M, K), b (K, N), contiguous along M and N."""

    along = "k"

    def usage(self, recipe: Recipe) -> Usage:
        where = "a: (M, K), M contiguous, b: (K, N), N contiguous; offs: int32, where each group of K ends"
        return Usage("matmul", "c = matmul(a, b, offs)", where)

    def as_matmul(self, recipe: Recipe, module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
        return groups.as_matmul(matmul, "k")

    def problems(self, module: Any, config: Any) -> tuple[problems.Case, ...]:
        """The longest group has more k-tiles than a work tile has at least."""
        return problems.usual(module, config, getattr(config, "min_k_tiles", 0))

    def judged(self, config: Any, problem: Problem, beyond: bool) -> Judged:
        ends = self.ends(problem, beyond)
        return Judged(tables={"offs_k": ends}, parts=grouped.parts(problem.k, ends))

    def ends(self, problem: Problem, beyond: bool = False) -> tuple[int, ...]:
        """One of the groups has most of K."""
        k = problem.k
        if beyond:
            return -1 - k // 5, k // 2, k // 3, k + problems.RAGGED
        return k // 16, k // 18, k - k // 16, k - k // 32

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        """With a gap between the C of two groups; rows of `out` that TMA can write."""
        import torch

        (m, n, k), dtype = self.align(recipe, shape_of(drawn), "nt"), getattr(torch, drawn["dtype"])
        a = calls.matrix(m, k, dtype, True, drawn["gap_a"])
        b = calls.matrix(k, n, dtype, False, drawn["gap_b"])
        offs, out = torch.tensor(grouped.ends(k), dtype=torch.int32), None
        if drawn["out"]:
            apart = m + drawn["out_start"]  # rows from group to group
            where = drawn | {"out_gap": 8 * drawn["out_gap"], "out_start": 0}
            rows = calls.out_of(grouped.ENDS * apart, n, dtype, where)
            out = rows.unflatten(0, (grouped.ENDS, apart))[:, :m]
        numbers = {"offs_k": (offs.data_ptr(),), "groups": (len(offs),)}
        numbers |= {"group_stride": (None if out is None else out.stride(0),)}
        return calls.Call(a, b, out, (offs,), (m, n, k), "nt", numbers=numbers, batch=(grouped.ENDS,))

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        return ILLEGAL

    def reference(self, shape: Shape, given: list[Any], out: Any) -> Any:
        a, b, ends = given
        return by_part(shape[2], a, b, ends, out).float()

    def sets(self, shape: Shape, dtype: str) -> list[tuple[Any, ...]]:
        """Sets of a (M, K), b (K, N), ends (GROUPS + 1,) int32 with a zero before them, out (GROUPS, M, N)."""
        import torch

        (m, n, k), count, ends = shape, len(grouped.sizes(shape[2])), ends_of(shape[2])
        kind, made = {"device": "cuda", "dtype": getattr(torch, dtype)}, []
        for _ in range(how_many_sets(2 * (m * k + k * n + count * m * n))):
            a, b = torch.randn(k, m, **kind).T, torch.randn(k, n, **kind)
            made.append((a, b, ends, torch.empty(count, m, n, **kind)))
        return made

    def loop(self, shape: Shape) -> Call:
        return partial(by_part, shape[2])


def _shifted_along_m(call: calls.Call) -> None:
    m, k = call.a.shape
    call.a = calls.matrix(k, m + 8, call.a.dtype, False, 0)[:, 1 : m + 1].T


def _of_groups(call: calls.Call, count: int) -> Any:
    return call.a.new_zeros(count, *call.mnk[:2])


# Of a legal call: what makes it one that cannot be served.
ILLEGAL: dict[str, Callable[[calls.Call], None]] = {
    "a K-major": lambda call: setattr(call, "a", call.a.contiguous()),
    "b K-major": lambda call: setattr(call, "b", call.b.T.contiguous().T),
    "a at an odd address": _shifted_along_m,
    "b of another K": calls.shorter,
    "M that is no multiple of 8": lambda call: setattr(call, "a", call.a[:-1]),
    "an out of another shape": calls.wide,
    "an out of fewer groups": lambda call: setattr(call, "out", _of_groups(call, grouped.ENDS - 1)),
    "an out whose groups overlap": lambda call: setattr(call, "out", _of_groups(call, 1).expand(grouped.ENDS, -1, -1)),
    "an out that overlaps a": lambda call: setattr(call, "out", call.a.T.as_strided((grouped.ENDS, 8, 8), (64, 8, 1))),
    "offs of 64 bits": lambda call: setattr(call, "scales", (call.scales[0].long(),)),
    "offs that are not adjacent": lambda call: setattr(call, "scales", (call.scales[0].repeat(2)[::2],)),
}


def by_part(k: int, a: Any, b: Any, ends: Any, out: Any) -> Any:
    """torch.matmul of each group of `grouped.sizes(k)` along K."""
    import torch

    start = 0
    for number, size in enumerate(grouped.sizes(k)):
        torch.matmul(a[:, start : start + size], b[start : start + size], out=out[number])
        start += size
    return out


PRODUCT = GroupedK()
