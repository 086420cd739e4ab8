"""A product to whose elements the kernel applies a function: `kind: fused`. `matmul(a, b, epilogue=NAME, **operands)`.

`Config.epilogue` names the function. In `CONFIG` and `VARIANTS` it is that of the product alone, so all levels hold for
them as for any GEMM; `cookbook/check/fused.py` looks at the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from cookbook.check import fused, ran
from cookbook.check.findings import Finding
from cookbook.check.product.memory import Operand
from cookbook.check.product.problems import Place
from cookbook.measure.contest import Call
from cookbook.products.base import Shape
from cookbook.products.gemm import Gemm
from cookbook.recipe import contract
from cookbook.recipe.catalog import Recipe


class Fused(Gemm):
    """A product, and what its epilogues make of it."""

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.Fused)

    def functions(self, module: Any) -> list[Finding]:
        return fused.function_findings(module)

    def probes(self, module: Any) -> tuple[str, ...]:
        return fused.probes(module)

    def probed(self, module: Any, name: str) -> AbstractContextManager[Any]:
        return fused.probed(module, name)

    def placed(self, place: Place) -> Operand | None:
        name, said = place.name, (place.bits, place.dtype, place.base)
        if name in fused.SCALES:
            rows = {"row_scale": place.m, "column_scale": place.n}.get(name, 1)
            return Operand(name, (rows, 1), (1, 1), *said, (1 if name.endswith("_scale") else 0, 0))
        return Operand(name, (1, place.n), (place.n, 1), *said) if name == "bias" else None

    def more_kernels(self, module: Any) -> dict[str, Any]:
        return {name: module.fused(name) for name in module.PEERS}  # those that are timed too

    def cases(self, recipe: Recipe, module: Any, shapes: Iterable[Shape], dtype: str, majors: str) -> list[ran.Case]:
        shapes = tuple(shapes)
        return super().cases(recipe, module, shapes, dtype, majors) + fused.run_epilogues(module, shapes, dtype)

    def more_calls(
        self, module: Any, shape: Shape, sets: list[tuple[Any, Any, Any]]
    ) -> tuple[dict[str, Call], dict[str, float]]:
        gates = {who for name in module.PEERS if "up" in fused.operands_of(module, name) for who in _of(module, name)}
        return fused_calls(module, sets), dict.fromkeys(gates, 0.5)  # a gate's work is two products


def fused_calls(module: Any, sets: list[tuple[Any, Any, Any]]) -> dict[str, Call]:
    """The epilogues of a recipe for which torch has a fused call, by name, and those calls: see `_of`.

    Raises:
        RuntimeError: one of them does not compute what the recipe says that it is.
    """
    found: dict[str, Call] = {}
    for name, (_, theirs) in module.PEERS.items():
        given = {}  # by the address of `out`: operands of its own for each set
        for a, _, out in sets:
            shape = *out.shape, a.shape[1]
            given[out.data_ptr()] = fused.drawn(fused.operands_of(module, name), shape, a.dtype)
        ours = partial(module.matmul, epilogue=name)
        calls = {who: _call(call, given) for who, call in zip(_of(module, name), (ours, theirs), strict=True)}
        a, b, out = sets[0]
        exact = fused.referred(module, name, a, ran.reference(a, b), given[out.data_ptr()])
        for who, call in calls.items():
            out.fill_(float("nan"))
            call(a, b, out)
            error, limit = ran.relative_error(out, exact), 2 * ran.tolerance(str(out.dtype).removeprefix("torch."))
            if not error <= limit:
                raise RuntimeError(f"{who} is wrong: relative error {error:.2e}; at most {limit:.2e}")
        found |= calls
    return found


def _of(module: Any, epilogue: str) -> tuple[str, str]:
    """Return who is timed with an epilogue: ours, and torch's own call, "torch.addmm (add)"."""
    return epilogue, f"{module.PEERS[epilogue][0]} ({epilogue})"


def _call(matmul: Callable[..., Any], given: dict[int, dict[str, Any]]) -> Call:
    return lambda a, b, out: matmul(a, b, out=out, **given[out.data_ptr()])


PRODUCT = Fused()
