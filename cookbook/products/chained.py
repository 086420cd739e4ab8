"""Chained products: C = (A B) B2, the product in the middle rounded as torch rounds it. `kind: chained`.

`b` is (K, N1), `b2` is (N1, N), C is (M, N). A shape stays (M, N, K); `cookbook/recipe/chained.py` says N1. An error is
compared with that of two calls of torch.matmul, a time with theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from cookbook.check import calls, poisoning, ran
from cookbook.check.pipeline.programs import Problem
from cookbook.check.product import problems
from cookbook.check.product.memory import Operand
from cookbook.check.product.problems import Judged, Place
from cookbook.measure import peers
from cookbook.measure.contest import OURS, Call, Contest, how_many_sets
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import Gemm, shape_of
from cookbook.recipe import chained, contract
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

TWICE = "torch.matmul, twice"


class Chained(Gemm):
    """`matmul(a, b, b2)`."""

    of_one_product = of_two_matrices = False
    modelled_in_registers = False  # A of the second MMA is in registers

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.Chained)

    def usage(self, recipe: Recipe) -> Usage:
        where = "a: (M, K), b: (K, N1), K contiguous; b2: (N1, N), N1 contiguous"
        return Usage("matmul", "c = matmul(a, b, b2)", where)

    def judged(self, config: Any, problem: Problem, beyond: bool) -> Judged:
        return Judged(middle=chained.middle(config))

    def placed(self, place: Place) -> Operand | None:
        """B2 has as many columns as the product in the middle, and no line of it ends where the next begins."""
        if place.name != "B2":
            return None
        middle = chained.middle(place.config)
        line = middle + problems.FURTHER + place.far
        return Operand("B2", (place.n, middle), (line, 1), place.bits, place.dtype, place.base)

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        import torch

        shape, dtype = shape_of(drawn), getattr(torch, drawn["dtype"])
        (m, n, k), middle = self.align(recipe, shape, DEFAULT), chained.columns(shape)
        a = calls.matrix(m, k, dtype, False, drawn["gap_a"])
        b = calls.matrix(k, middle, dtype, True, drawn["gap_b"])
        b2 = calls.matrix(middle, n, dtype, True, drawn["gap_b"] + -middle % 8)  # columns whole 16-byte pieces apart
        out, numbers = calls.out_of(m, n, dtype, drawn), {"middle": (middle,), "stride_b2": (calls.line(b2),)}
        return calls.Call(a, b, out, (b2,), (m, n, k), DEFAULT, {"B2": b2}, numbers)

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        return calls.ILLEGAL | ILLEGAL

    def run_case(
        self,
        recipe: Recipe,
        matmul: Callable[..., Any],
        shape: Shape,
        dtype: str,
        majors: str = DEFAULT,
        row_stride: int | None = None,
    ) -> ran.Case:
        return run_case(matmul, shape, dtype, row_stride)

    def launch(self, recipe: Recipe, dtype: str, majors: str, shapes: Iterable[Shape]) -> None:
        module = recipe.module
        for shape in shapes:
            a, b, b2 = drawn(shape, dtype)
            exact = reference(a, b, b2)
            for name in module.VARIANTS:
                error = ran.relative_error(module.matmul(a, b, b2, variant=name), exact)
                if not error <= 2 * ran.tolerance(dtype):  # two roundings
                    raise SystemExit(f"{name} {dtype} {shape}: relative error {error:.2e}")

    def standard(self, recipe: Recipe) -> str:
        return TWICE

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        """With all variants if `own`, against two calls of torch.matmul, and two of QuACK's GEMM.

        The product in the middle has `chained.TIMED` columns; peers have memory for it, and allocate none.
        """
        module = recipe.module
        ours = {OURS: into(module.matmul)}
        ours |= {name: into(partial(module.matmul, variant=name)) for name in (module.VARIANTS if own else ())}
        return replace(contest_of(ours | own_peers(quack), shape, dtype, (*ours,)), config=module.CONFIG)

    def against_torch(self, recipe: Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
        return contest_of({OURS: into(matmul)} | own_peers(quack=False), shape, dtype, (OURS,))


def _wide_middle(call: calls.Call) -> None:
    _, n, k = call.mnk
    call.b, call.scales = calls.matrix(k, 264, call.a.dtype, True, 0), (calls.matrix(264, n, call.a.dtype, True, 0),)


def _over_b2(call: calls.Call) -> None:
    m, n, _ = call.mnk
    b2 = calls.matrix(call.b.shape[1], m * n, call.a.dtype, True, 0)[:, :n]
    call.scales, call.out = (b2,), b2.T.as_strided((m, n), (n, 1))


# Of a legal call: what makes it one that cannot be served.
ILLEGAL: dict[str, Callable[[calls.Call], None]] = {
    "b2 of another N1": lambda call: setattr(call, "scales", (call.scales[0][:1],)),
    "b2 with rows of adjacent elements": lambda call: setattr(call, "scales", (call.scales[0].contiguous(),)),
    "b2 of another dtype": lambda call: setattr(call, "scales", (call.scales[0].float(),)),
    "a product in the middle of more than 256 columns": _wide_middle,
    "an out that overlaps b2": _over_b2,
}


# --- on a GPU -----------------------------------------------------------------------------------------------------


def drawn(shape: Shape, dtype: str, columns: int = 0, device: str = "cuda") -> tuple[Any, Any, Any]:
    """Normal a (M, K), b (K, N1), b2 (N1, N), the weights K-major, in lines of whole 16-byte pieces.

    columns: N1; 0: what `chained.columns` says.
    """
    import torch

    m, n, k = shape
    middle = columns or chained.columns(shape)
    a, b = ran.inputs((m, middle, k), dtype, device)
    b2 = torch.randn(n, -(-middle // 8) * 8, device=device).to(a.dtype)[:, :middle].T
    return a, b, b2


def reference(a: Any, b: Any, b2: Any) -> Any:
    """`(a @ b) @ b2` in the precision of `ran.reference`, nothing rounded in the middle."""
    first = ran.reference(a, b)
    return first @ b2.to(first.dtype)


def run_case(matmul: Callable[..., Any], shape: Shape, dtype: str, row_stride: int | None = None) -> ran.Case:
    """Run `matmul(a, b, b2, out=)` once into a poisoned, guarded `out`, and with shared memory poisoned; compare.

    The product in the middle is rounded, in torch too. So an error may be that of two roundings.
    """
    import torch

    a, b, b2 = drawn(shape, dtype)
    out, intact = ran.guarded(shape[0], shape[1], dtype, row_stride=row_stride)
    poisoning.shared_memory()
    returned = matmul(a, b, b2, out=out)
    torch.cuda.synchronize()
    exact = reference(a, b, b2)
    error, torch_error = (ran.relative_error(x, exact) for x in (out, torch.matmul(torch.matmul(a, b), b2)))
    if out.numel() < ran.RATIO_ELEMENTS:  # they may all be near 0, and what was rounded in the middle is not
        error *= min(1.0, (exact.norm() / (ran.reference(a, b).abs() @ b2.abs().to(exact.dtype)).norm()).item())
    problem = ran.verdict(error, torch_error, out.numel(), dtype, lost=ran.tolerance(dtype))
    if returned.data_ptr() != out.data_ptr():
        problem = problem or "matmul did not return out"
    return ran.Case(shape, dtype, error, torch_error, problem or ("" if intact() else "wrote outside out"))


# --- peers --------------------------------------------------------------------------------------------------------


def into(matmul: Callable[..., Any]) -> Call:
    """A recipe's matmul as a call of a set."""
    return lambda a, b, b2, middle, out: matmul(a, b, b2, out=out)


def own_peers(quack: bool) -> dict[str, Call]:
    """The peers, each a call of (a, b, b2, middle, out)."""
    import torch

    found: dict[str, Call] = {
        TWICE: lambda a, b, b2, middle, out: torch.matmul(torch.matmul(a, b, out=middle), b2, out=out)
    }
    gemm = peers.quack_gemm() if quack else None
    if gemm is not None:
        found[peers.QUACK] = lambda a, b, b2, middle, out: (gemm(a, b, out=middle), gemm(middle, b2, out=out))
    return found


def contest_of(each: dict[str, Call], shape: Shape, dtype: str, ours: tuple[str, ...]) -> Contest:
    """A contest of these calls; a wrong or failing one of a peer is left out, one of `ours` is an error."""
    import torch

    (m, n, k), n1 = shape, chained.TIMED
    drawn_sets = [drawn(shape, dtype, n1) for _ in range(how_many_sets(2 * (m * (k + n1 + n) + n1 * (k + n))))]
    sets = [(*x, x[0].new_empty(m, n1), x[0].new_empty(m, n)) for x in drawn_sets]
    a, b, b2, middle, out = sets[0]
    exact, usable = torch.matmul(torch.matmul(a, b), b2).float(), {}
    for name, call in each.items():
        try:
            call(a, b, b2, middle, out.fill_(float("nan")))
            torch.cuda.synchronize()
            error = ran.relative_error(out, exact)
            if not error <= 4 * ran.tolerance(dtype):  # four roundings: two of its own and two of torch's
                raise RuntimeError(f"{name} is wrong: relative error {error:.2e}")
            usable[name] = call
        except Exception:
            if name in ours:
                raise
    return Contest(usable, sets, TWICE, 2.0 * m * n1 * (k + n))


PRODUCT = Chained()
