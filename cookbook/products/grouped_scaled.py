"""Groups of rows of A whose operands have scale factors, (M,) and (GROUPS, N): `kind: grouped_scaled`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cookbook.check import calls, groups
from cookbook.check.product import problems
from cookbook.check.product.memory import Operand
from cookbook.check.product.problems import Place
from cookbook.measure.contest import OURS, Call, how_many_sets
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import shape_of
from cookbook.products.grouped import Grouped, ends_of, grouped_call, rows_of_groups
from cookbook.products.narrow import form_of
from cookbook.products.scaled import Scaled, factors, scaled_mm
from cookbook.recipe import grouped
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

SCALED_GROUPED, SCALED_LOOP = "torch._scaled_grouped_mm", "torch._scaled_mm, group by group"


FRONT_MATTER = {"like": "narrow", "formats": "fp8"}


class GroupedScaled(Grouped, Scaled):
    """`matmul(a, b, scale_a, scale_b, offs)`."""

    peers = (SCALED_GROUPED, SCALED_LOOP)

    def usage(self, recipe: Recipe) -> Usage:
        where = "a: (M, K), b: (GROUPS, K, N), K contiguous; scales: (M,), (GROUPS, N); offs: int32, ends of the groups"
        return Usage("matmul", "c = matmul(a, b, scale_a, scale_b, offs)", where)

    def as_matmul(self, recipe: Recipe, module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
        return groups.as_matmul(matmul, form=form_of(recipe))

    def placed(self, place: Place) -> Operand | None:
        """The kernel takes the factors for adjacent, and each row has one."""
        if place.name not in problems.FACTORS:
            return None
        return replace(factors(place._replace(one_scale=False)), strides=(1, 1))

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        import torch

        shape, drawn = self.align(recipe, shape_of(drawn), DEFAULT), drawn | {"gap_a": 2 * drawn["gap_a"]}
        return grouped_call(shape, torch.float8_e4m3fn, drawn, torch.bfloat16, scaled=True)

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        return super().illegal() | ILLEGAL

    def rounded_to(self, dtype: str) -> str:
        return "bfloat16"

    def reference(self, shape: Shape, given: list[Any], out: Any) -> Any:
        return reference(shape, *given)

    def sets(self, shape: Shape, dtype: str) -> list[tuple[Any, ...]]:
        """Sets of a and b, normal numbers as e4m3, scale factors (M,) and (GROUPS, N) of 0.5 to 1.5, ends, out."""
        import torch

        (m, n, k), count, ends = shape, len(grouped.sizes(shape[0])), ends_of(shape[0])
        kind, e4m3 = {"device": "cuda", "dtype": getattr(torch, dtype)}, torch.float8_e4m3fn
        made = []
        for _ in range(how_many_sets(m * k + count * k * n + 2 * m * n)):
            a, b = torch.randn(m, k, **kind).to(e4m3), torch.randn(count, n, k, **kind).to(e4m3).transpose(1, 2)
            factors = [torch.rand(of, device="cuda") + 0.5 for of in ((m,), (count, n))]
            made.append((a, b, *factors, ends, torch.empty(m, n, **kind)))
        return made

    def calls(self, matmul: Callable[..., Any], shape: Shape, quack: bool) -> dict[str, Call]:
        import torch

        return {
            OURS: lambda a, b, sa, sb, ends, out: matmul(a, b, sa, sb, ends[1:], out=out),
            SCALED_GROUPED: lambda a, b, sa, sb, ends, out: torch._scaled_grouped_mm(  # it makes bfloat16 alone
                a, b, sa, sb, offs=ends[1:], out_dtype=torch.bfloat16, use_fast_accum=True
            ),
            SCALED_LOOP: partial(by_group, shape[0]),
        }


# Of a legal call: what makes it one that cannot be served.
ILLEGAL: dict[str, Callable[[calls.Call], None]] = {
    "a factor for all rows": calls.other(0, lambda factors: factors[:1]),
    "factors of rows that are not adjacent": calls.other(0, lambda factors: factors.repeat(2)[::2]),
    "factors of fewer groups": calls.other(1, lambda factors: factors[1:]),
    "factors of a group that are not adjacent": calls.other(1, lambda factors: factors.T.contiguous().T),
    "factors of 16 bits": calls.other(1, lambda factors: factors.bfloat16()),
    "an out that overlaps factors": lambda call: setattr(
        call, "out", call.scales[1].view(calls.of_c(call)).as_strided(call.mnk[:2], (call.mnk[1], 1))
    ),
}


def by_group(rows: int, a: Any, b: Any, scale_a: Any, scale_b: Any, ends: Any, out: Any) -> Any:
    """torch._scaled_mm of each group, with fast accumulation."""
    for number, of in rows_of_groups(rows):
        scaled_mm(True, a[of], b[number], scale_a[of, None], scale_b[number, None], out[of])
    return out


def reference(shape: Shape, a: Any, b: Any, scale_a: Any, scale_b: Any, ends: Any) -> Any:
    """The product of scaled operands in float32."""
    made = a.new_empty(shape[0], shape[1], dtype=scale_a.dtype)
    for number, of in rows_of_groups(shape[0]):
        made[of] = (a[of].float() * scale_a[of, None]) @ (b[number].float() * scale_b[number])
    return made


PRODUCT = GroupedScaled()
