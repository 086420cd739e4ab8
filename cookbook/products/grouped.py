"""Groups of rows of A, each with a B of its own: `kind: grouped`. `offs` says behind which row each group ends.

A group's rows begin where the largest end before it is, so ends out of order make empty groups. Rows behind the last
end are of no group, and of C they are not written. `cookbook/check/groups.py` makes a plain product of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cookbook.check import calls, groups, ran
from cookbook.check.pipeline.programs import Problem
from cookbook.check.product import problems
from cookbook.check.product.problems import Judged
from cookbook.measure import peers
from cookbook.measure.contest import OURS, Call, Contest, how_many_sets
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import Gemm, shape_of
from cookbook.recipe import contract, grouped
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

GROUPED, LOOP = "torch._grouped_mm", "torch.matmul, group by group"


class Grouped(Gemm):
    """`matmul(a, b, offs)`: a (M, K), b (GROUPS, K, N), offs (GROUPS,)."""

    of_one_product = of_two_matrices = False
    along = "m"  # what groups divide
    peers = (GROUPED, LOOP)  # torch's own may not take every dtype, and never fails group by group

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.Grouped)

    def usage(self, recipe: Recipe) -> Usage:
        where = "a: (M, K), b: (GROUPS, K, N), K contiguous; offs: int32, where each group's rows end"
        return Usage("matmul", "c = matmul(a, b, offs)", where)

    def as_matmul(self, recipe: Recipe, module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
        return groups.as_matmul(matmul)

    # --- the kernel, followed ---

    def judged(self, config: Any, problem: Problem, beyond: bool) -> Judged:
        ends = self.ends(problem, beyond)
        return Judged(tables={"offs": ends}, owners=grouped.owners(problem.m, ends))

    def ends(self, problem: Problem, beyond: bool = False) -> tuple[int, ...]:
        """Return where the groups of a problem end. beyond: the first is below 0, the last above all rows, and those
        between are out of order."""
        m = problem.m
        return (-1 - m // 5, m // 2, m // 3, m + problems.RAGGED) if beyond else grouped.ends(m)

    # --- host ---

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        import torch

        dtype = getattr(torch, drawn["dtype"])
        return grouped_call(self.align(recipe, shape_of(drawn), DEFAULT), dtype, drawn, dtype)

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        return calls.ILLEGAL | ILLEGAL

    # --- peers ---

    def standard(self, recipe: Recipe) -> str:
        return self.peers[0]

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        """A grouped matmul of a set, with all its variants if `own`, and its peers, of `grouped.sizes`.

        A wrong or failing peer is left out; of ours it is an error.
        """
        module = recipe.module
        sets, each = self.sets(shape, dtype), self.calls(module.matmul, shape, quack)
        variants = getattr(module, "VARIANTS", {})
        for name in variants if own else ():
            each[name] = self.calls(partial(module.matmul, variant=name), shape, False)[OURS]
        *given, out = sets[0]
        exact, usable = self.reference(shape, given, out), {}
        limit = 2 * ran.tolerance(self.rounded_to(dtype))  # two roundings, or what accumulating loses
        for name, call in each.items():
            try:
                error = ran.relative_error(call(*given, out.fill_(float("nan"))), exact)
                if not error <= limit:
                    raise RuntimeError(f"{name} is wrong: relative error {error:.2e}")
                usable[name] = call
            except Exception:
                if name == OURS or name in variants:
                    raise
        standard = next(who for who in self.peers if who in usable)
        return Contest(usable, sets, standard, peers.work_of(shape), config=module.CONFIG)

    def against_torch(self, recipe: Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
        each, peer = self.calls(matmul, shape, False), self.standard(recipe)
        both = {who: each[who] for who in (OURS, peer)}
        return Contest(both, self.sets(shape, dtype), peer, peers.work_of(shape))

    def rounded_to(self, dtype: str) -> str:
        """The dtype whose rounding an error is held against."""
        return dtype

    def reference(self, shape: Shape, given: list[Any], out: Any) -> Any:
        """The product of a set in float32."""
        a, b, ends = given
        return by_group(shape[0], a, b, ends, out).float()

    def sets(self, shape: Shape, dtype: str) -> list[tuple[Any, ...]]:
        """Sets of a (M, K), b (GROUPS, K, N), ends (GROUPS + 1,) int32 with a zero before them, out (M, N)."""
        import torch

        (m, n, k), count = shape, len(grouped.sizes(shape[0]))
        kind, ends = {"device": "cuda", "dtype": getattr(torch, dtype)}, ends_of(shape[0])
        made = []
        for _ in range(how_many_sets(2 * (m * k + count * k * n + m * n))):
            a, b = torch.randn(m, k, **kind), torch.randn(count, n, k, **kind).transpose(1, 2)
            made.append((a, b, ends, torch.empty(m, n, **kind)))
        return made

    def calls(self, matmul: Callable[..., Any], shape: Shape, quack: bool) -> dict[str, Call]:
        """Ours and its peers, each a call of a set that returns the product."""
        import torch

        found: dict[str, Call] = {
            OURS: lambda a, b, ends, out: matmul(a, b, ends[1:], out=out),
            GROUPED: lambda a, b, ends, out: torch._grouped_mm(a, b, offs=ends[1:]),
            LOOP: self.loop(shape),
        }
        gemm = peers.quack_gemm() if quack else None
        if gemm is not None:
            found[peers.QUACK] = lambda a, b, ends, out: gemm(a, b, out=out, **{f"cu_seqlens_{self.along}": ends})
        return found

    def loop(self, shape: Shape) -> Call:
        """torch.matmul of each group."""
        return partial(by_group, shape[0])


def grouped_call(shape: Shape, dtype: Any, drawn: dict[str, Any], of_c: Any, scaled: bool = False) -> calls.Call:
    """Groups of rows, each with its own B, a gap between any two of them; rows of `out` that TMA can write.

    scaled: with scale factors, a gap between those of two groups too.
    """
    import torch

    (m, n, k), gap = shape, drawn["gap_b"] * of_c.itemsize // dtype.itemsize
    n = -(-n // 8) * 8
    a, (weights, offs, _) = calls.matrix(m, k, dtype, False, drawn["gap_a"]), groups.operands(m, torch.zeros(k, n))
    count = len(weights)
    b = calls.matrix(count * (n + gap), k + gap, dtype, False, 0)[:, :k].unflatten(0, (count, n + gap))[:, :n]
    b, aligned = b.transpose(1, 2), drawn | {name: 8 * drawn[name] for name in ("out_gap", "out_start")}
    factors = (torch.ones(m), calls.matrix(count, n, torch.float32, False, gap)) if scaled else ()
    numbers = {"offs": (offs.data_ptr(),), "groups": (count,), "group_stride": (b.stride(0),)}
    numbers |= {"group_stride_sb": tuple(of_b.stride(0) for of_b in factors[1:])}
    pointers: dict[str, Any] = dict(zip(("SA", "SB"), factors, strict=False))
    further = (*factors, offs)
    return calls.Call(a, b, calls.out_of(m, n, of_c, aligned), further, (m, n, k), DEFAULT, pointers, numbers)


def _over_offs(call: calls.Call) -> None:
    """An `out` and `offs` in one piece of memory, offs at a row's end."""
    m, n, _ = call.mnk
    *factors, offs = call.scales
    memory = calls.matrix(m + 1, n, calls.of_c(call), False, 0)
    call.out, within = memory[:m], memory[m - 1, n - 8 :].view(offs.dtype)
    call.scales = (*factors, within.copy_(offs))


# Of a legal call: what makes it one that cannot be served.
ODD = {"out": True, "out_gap": 4, "out_start": 0}
ILLEGAL: dict[str, Callable[[calls.Call], None]] = {
    "offs of fewer groups": calls.other(-1, lambda offs: offs[1:]),
    "rows of out that are not 16 bytes apart": lambda call: setattr(
        call, "out", calls.out_of(*call.mnk[:2], calls.of_c(call), ODD)
    ),
    "offs of 64 bits": calls.other(-1, lambda offs: offs.long()),
    "an out that overlaps offs": _over_offs,
    "one b for all groups": lambda call: setattr(call, "b", call.b[0]),
}


def ends_of(extent: int) -> Any:
    """Ends of `grouped.sizes`, a zero before them: what QuACK takes."""
    import torch

    return torch.tensor([0, *grouped.sizes(extent)], device="cuda").cumsum(0).to(torch.int32)


def by_group(rows: int, a: Any, b: Any, ends: Any, out: Any) -> Any:
    """torch.matmul of each group: the host must know their sizes, here `grouped.sizes(rows)`."""
    import torch

    for number, of in rows_of_groups(rows):
        torch.matmul(a[of], b[number], out=out[of])
    return out


def rows_of_groups(rows: int) -> Iterator[tuple[int, slice]]:
    """The number of each group of `grouped.sizes(rows)` that is not empty, and its rows."""
    start = 0
    for number, size in enumerate(grouped.sizes(rows)):
        if size:
            yield number, slice(start, start + size)
        start += size


PRODUCT = Grouped()
