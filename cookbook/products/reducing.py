"""A product whose kernel also finds the largest |C|: `kind: reducing`. `matmul_amax` gives both.

All levels hold for its `matmul` as for any GEMM's; the peers that find both are the recipe's `PEERS`.
"""

from __future__ import annotations

from typing import Any

from cookbook.measure.contest import OURS, Call
from cookbook.products.base import Usage
from cookbook.products.gemm import Gemm
from cookbook.recipe import contract
from cookbook.recipe.catalog import Recipe


class Reducing(Gemm):
    """`matmul_amax(a, b)`."""

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.Reduces)

    def usage(self, recipe: Recipe) -> Usage:
        where = "a: (M, K), b: (K, N), both with K contiguous; amax: (1,), the largest |c|"
        return Usage("matmul_amax", "c, amax = matmul_amax(a, b)", where)

    def more_peers(self, module: Any) -> dict[str, Call]:
        return dict(module.PEERS)

    def verify(self, module: Any, usable: dict[str, Call], operands: tuple[Any, Any, Any]) -> None:
        """`matmul_amax` and those of its peers that are `usable` give the largest |C| too."""
        a, b, out = operands
        ours = {OURS: lambda a, b, out: module.matmul_amax(a, b, out=out)}
        for who, call in (ours | {who: call for who, call in module.PEERS.items() if who in usable}).items():
            out.fill_(float("nan"))
            c, amax = call(a, b, out)
            needed = c.abs().amax().item()
            if not amax.item() == needed:
                raise RuntimeError(f"{who} is wrong: the largest |C| is {amax.item()}; needed {needed}")


PRODUCT = Reducing()
