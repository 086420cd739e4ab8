"""Operands of 8 or 4 bits with scale factors that the tensor core multiplies by: `kind: block_scaled`.

Scale factors come as a matrix, a row for each row of A and each column of B, or as `to_atoms` returns them. Nothing of
torch's takes such operands on the GPUs that ran the rest: torch.matmul multiplies what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cookbook.check import calls, ran, scaled
from cookbook.check.model.scaled import simulate_scaled
from cookbook.check.product.memory import Operand, Scales
from cookbook.check.product.problems import Place
from cookbook.measure import peers
from cookbook.measure.contest import OURS, Call, Contest
from cookbook.measure.peers import TORCH
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import Gemm, shape_of
from cookbook.products.narrow import form_of
from cookbook.products.scaled import Scaled
from cookbook.recipe import contract
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

UNTIMED = "not done yet for block-scaled operands"  # timing, and NVIDIA's tools


FRONT_MATTER = {"like": "narrow", "formats": "mxfp8 nvfp4"}


class BlockScaled(Scaled):
    """`matmul(a, b, a_scale, b_scale)`."""

    simulate: Callable[..., Any] = staticmethod(simulate_scaled)

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*Gemm.asked(self, recipe), contract.BlockScaled)

    def usage(self, recipe: Recipe) -> Usage:
        block = form_of(recipe).block
        where = f"a: (M, K), b: (K, N), K contiguous; scales: (M, K / {block}), (N, K / {block})"
        return Usage("matmul", "c = matmul(a, b, a_scale, b_scale)", where)

    def multiplied(self, recipe: Recipe, shape: Shape, dtype: str, majors: str) -> tuple[Any, Any]:
        (a, b), form = ran.inputs(shape, dtype, majors=majors), form_of(recipe)
        return scaled.rounded_in_blocks(a, form), scaled.rounded_in_blocks(b.T, form).T

    def as_matmul(self, recipe: Recipe, module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
        return scaled.in_blocks(matmul, form_of(recipe))

    def torch_error(self, recipe: Recipe, a: Any, b: Any, exact: Any, out: Any) -> float:
        return Gemm.torch_error(self, recipe, a, b, exact, out)

    def lost(self, recipe: Recipe, a: Any, b: Any, exact: Any) -> float:
        return 0.0  # sums are kept in float32

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        """Scale factors as matrices, a row for each row of A and each column of B."""
        import torch

        (m, n, k), form = self.align(recipe, shape_of(drawn), DEFAULT), form_of(recipe)
        (a, sa), (b, sb) = (scaled.tensors(scaled.integers(rows, k, form.name, rows)) for rows in (m, n))
        return calls.Call(a, b.T, calls.out_of(m, n, torch.bfloat16, drawn), (sa, sb), (m, n, k), DEFAULT)

    def per_byte(self, form: Any) -> int:
        return 8 // form.bits

    def block(self, form: Any, per_byte: int) -> int:
        return form.block // per_byte

    def placed(self, place: Place) -> Operand | None:
        if place.name not in ("SFA", "SFB"):
            return None
        rows = place.m if place.name == "SFA" else place.n
        return Scales(place.name, (rows, place.elements // place.form.block), (1, 1), 8, place.dtype, place.base)

    def unmeasured(self, recipe: Recipe) -> str:
        return UNTIMED

    def standard(self, recipe: Recipe) -> str:
        return TORCH

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        raise ValueError(f"name: got {recipe.name}; needed another recipe: timing is {UNTIMED}")

    def against_torch(self, recipe: Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
        """Torch multiplies the same numbers before they are quantized. Whether `matmul` is right is known before."""
        import torch

        a, b = ran.inputs(shape, dtype)
        plain = (a, b, torch.empty(shape[0], shape[1], device=a.device, dtype=a.dtype))
        both: dict[str, Call] = {
            OURS: lambda q, plain: matmul(*q, out=plain[2]),
            TORCH: lambda q, plain: torch.matmul(*plain[:2], out=plain[2]),
        }
        sets = [(scaled.block_operands(a, b, form_of(recipe)), plain)]
        return Contest(both, sets, TORCH, peers.work_of(shape))


PRODUCT = BlockScaled()
