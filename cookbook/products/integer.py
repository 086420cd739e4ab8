"""Operands of 8-bit integers, whose sums are exact: `kind: integer`. C is int32, and compared to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cookbook.check import calls, compiled, ran
from cookbook.check.model.int8 import simulate_int8
from cookbook.measure import peers
from cookbook.measure.contest import OURS, Call, Contest, how_many_sets
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import shape_of
from cookbook.products.narrow import Narrow, form_of
from cookbook.recipe import contract
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

INTEGER = "torch._int_mm"


FRONT_MATTER = {"like": "narrow", "formats": "int8"}


class Integer(Narrow):
    """`matmul(a, b)` of int8."""

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.Integer)

    def usage(self, recipe: Recipe) -> Usage:
        return Usage("matmul", "c = matmul(a, b)", "a: (M, K), b: (K, N), int8, K contiguous; c: int32")

    def multiplied(self, recipe: Recipe, shape: Shape, dtype: str, majors: str) -> tuple[Any, Any]:
        return ran.inputs(shape, form_of(recipe).torch_element)

    def torch_error(self, recipe: Recipe, a: Any, b: Any, exact: Any, out: Any) -> float:
        return 0.0  # torch's own, which takes fewer shapes, is exact as well

    def simulated(self, recipe: Recipe, module: Any, dtype: str, shape: Shape, config: Any, integers: bool) -> float:
        """8-bit integers of the full range; without `integers` of the two ends of the range alone."""
        import numpy as np

        (m, n, k), rng = shape, np.random.default_rng(0)
        values = np.arange(-128, 128, dtype=np.int8) if integers else np.array([-128, 127], np.int8)
        a, b = (rng.choice(values, (rows, k)) for rows in (m, n))
        got = simulate_int8(module, a, b, compiled.cutlass_dtype(dtype), config)
        wrong = got != a.astype(np.int64) @ b.astype(np.int64).T
        return float(wrong.sum() if integers else wrong.mean())

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        """Rows are whole 16-byte pieces apart."""
        import torch

        m, n, k = self.align(recipe, shape_of(drawn), DEFAULT)
        a = calls.matrix(m, k, torch.int8, False, 2 * drawn["gap_a"])
        b = calls.matrix(k, n, torch.int8, True, 2 * drawn["gap_b"])
        return calls.Call(a, b, calls.out_of(m, n, getattr(torch, drawn["dtype"]), drawn), (), (m, n, k), DEFAULT)

    def distribution(self, recipe: Recipe) -> str:
        return f"{recipe.operands} of the full range"

    def inputs_in_words(self, recipe: Recipe) -> str:
        return f"{recipe.operands} inputs of the full range"

    def standard(self, recipe: Recipe) -> str:
        return INTEGER

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        """Torch's own, and all variants if `own`. Raises RuntimeError where one does not compute the product."""
        module = recipe.module
        each: dict[str, Call] = {OURS: peers.into(module.matmul), INTEGER: _int_mm}
        named = module.VARIANTS if own else ()
        each |= {name: peers.into(partial(module.matmul, variant=name)) for name in named}
        return Contest(each, verified(each, sets_of(shape)), INTEGER, peers.work_of(shape), config=module.CONFIG)

    def against_torch(self, recipe: Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
        both: dict[str, Call] = {OURS: peers.into(matmul), INTEGER: _int_mm}
        return Contest(both, verified(both, sets_of(shape)), INTEGER, peers.work_of(shape))


def sets_of(shape: Shape) -> list[tuple[Any, ...]]:
    """Sets of (a, b, out): int8 of the full range, K contiguous, and int32."""
    import torch

    m, n, k = shape
    count = how_many_sets(m * k + k * n + 4 * m * n)
    return [(*ran.inputs(shape, "int8"), torch.empty(m, n, device="cuda", dtype=torch.int32)) for _ in range(count)]


def _int_mm(a: Any, b: Any, out: Any) -> Any:
    import torch

    return torch._int_mm(a, b, out=out)


def verified(each: dict[str, Call], sets: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The sets, after each call has computed the product of the first one to the bit."""
    a, b, out = sets[0]
    exact = ran.reference(a, b)
    for name, call in each.items():
        call(a, b, out.fill_(ran.poison("int32")))
        if wrong := int((out != exact).sum()):
            raise RuntimeError(f"{name} is wrong: {wrong} elements differ")
    return sets


PRODUCT = Integer()
