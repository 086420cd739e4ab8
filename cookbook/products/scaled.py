"""Operands of 8 bits with float32 scale factors that the kernel multiplies by: `kind: scaled`.

With `operands: fp8` each row of A and each column of B has one; with `fp8_blockwise` each 1 x 128 elements of A, and
each 128 x 128 of B. Torch has a GEMM of either, whose error and time are what a recipe's are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cookbook.check import calls, compiled, ran, scaled
from cookbook.check.model.fp8 import simulate_fp8
from cookbook.check.product import problems
from cookbook.check.product.memory import Operand
from cookbook.check.product.problems import Place
from cookbook.measure import peers
from cookbook.measure.contest import OURS, Call, Contest, how_many_sets
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import normals, shape_of
from cookbook.products.narrow import Narrow, form_of
from cookbook.recipe import contract, formats
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

FAST, SLOW = "torch._scaled_mm", "torch._scaled_mm, slow accumulation"  # of factors of rows
BLOCKWISE = "torch.nn.functional.scaled_mm"  # of factors of blocks


FRONT_MATTER = {"like": "narrow", "formats": "fp8 fp8_blockwise"}


class Scaled(Narrow):
    """`matmul(a, b, scale_a, scale_b)`."""

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.FloatScaled)

    def usage(self, recipe: Recipe) -> Usage:
        form, scales = form_of(recipe), "(M, 1), (1, N)"
        if form.block:
            scales = f"(M, K / {form.block}), (K / {form.block}, N / {form.b_rows})"
        where = f"a: (M, K), b: (K, N), K contiguous; scales: {scales}"
        return Usage("matmul", "c = matmul(a, b, scale_a, scale_b)", where)

    # --- operands ---

    def multiplied(self, recipe: Recipe, shape: Shape, dtype: str, majors: str) -> tuple[Any, Any]:
        (a, b), form = ran.inputs(shape, dtype, majors=majors), form_of(recipe)
        return scaled.rounded(a, form), scaled.rounded(b.T, form, form.b_rows).T

    def as_matmul(self, recipe: Recipe, module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
        return scaled.as_matmul(matmul, form_of(recipe))

    def torch_error(self, recipe: Recipe, a: Any, b: Any, exact: Any, out: Any) -> float:
        """Measure the error of torch's own GEMM of such operands, which accumulates as ours does."""
        return scaled.peer_error(a, b, exact, out.dtype, form_of(recipe))

    def lost(self, recipe: Recipe, a: Any, b: Any, exact: Any) -> float:
        return scaled.lost(a, b, exact, form_of(recipe))

    # --- the model ---

    simulate: Callable[..., Any] = staticmethod(simulate_fp8)

    def simulated(self, recipe: Recipe, module: Any, dtype: str, shape: Shape, config: Any, integers: bool) -> float:
        """Against the product, in float64, of what the operands stand for."""
        import torch

        (m, n, k), form = shape, form_of(recipe)
        if integers:
            a, b = scaled.integers(m, k, form.name, 0), scaled.integers(n, k, form.name, 1, form.b_rows)
        else:
            left, right = normals(shape)
            a = scaled.quantized(left.numpy(), form.name)
            b = scaled.quantized(right.T.numpy(), form.name, form.b_rows)
        got = torch.as_tensor(self.simulate(module, a, b, compiled.cutlass_dtype(dtype), config))
        exact = torch.from_numpy(a.values()).double() @ torch.from_numpy(b.values()).double().T
        if integers:
            return float((got != exact.to(getattr(torch, dtype)).float()).sum())
        return ran.relative_error(got, exact)

    # --- the kernel, followed ---

    def placed(self, place: Place) -> Operand | None:
        return factors(place) if place.name in problems.FACTORS else None

    # --- host ---

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        """Scale factors of blocks in either order; of rows, or one for all."""
        import torch

        (m, n, k), form = self.align(recipe, shape_of(drawn), DEFAULT), form_of(recipe)
        sides = ((m, 1), (n, form.b_rows))
        (a, sa), (b, sb) = (scaled.tensors(scaled.integers(rows, k, form.name, rows, each)) for rows, each in sides)
        sb = sb.T
        if form.block and drawn["one_scale"]:  # as torch wants them: those of a block of K lie together
            sa = sa.T.contiguous().T
        elif drawn["one_scale"]:
            sa, sb = torch.tensor(1.0), torch.tensor(1.0)
        numbers = {f"stride_{name}": (_apart(x, along),) for along, (name, x) in enumerate((("sa", sa), ("sb", sb)))}
        numbers |= {f"strides_{name}": _strides(x) for name, x in (("sa", sa), ("sb", sb))}
        out, pointers = calls.out_of(m, n, torch.bfloat16, drawn), {"SA": sa, "SB": sb}
        return calls.Call(a, b.T, out, (sa, sb), (m, n, k), DEFAULT, pointers, numbers)

    # --- peers ---

    def standard(self, recipe: Recipe) -> str:
        return BLOCKWISE if form_of(recipe).block else FAST

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        """Torch's own, and all variants if `own`. Raises RuntimeError where one does not compute the product."""
        module, form = recipe.module, form_of(recipe)
        named = getattr(module, "VARIANTS", {}) if own else {}
        each: dict[str, Call] = {OURS: into(module.matmul)} | own_peers(form)
        each |= {name: into(partial(module.matmul, variant=name)) for name in named}
        sets = scaled_sets(shape, dtype, form)
        for name, call in each.items():
            verify(name, call, sets[0], form)
        return Contest(each, sets, self.standard(recipe), peers.work_of(shape), config=module.CONFIG)

    def against_torch(self, recipe: Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
        form, peer = form_of(recipe), self.standard(recipe)
        sets = scaled_sets(shape, dtype, form)
        verify(OURS, into(matmul), sets[0], form)
        return Contest({OURS: into(matmul), peer: own_peers(form)[peer]}, sets, peer, peers.work_of(shape))


def factors(place: Place) -> Operand:
    """Scale factors that the kernel multiplies by itself: of rows, or of blocks."""
    name, form, said = place.name, place.form, (place.bits, place.dtype, place.base)
    assert form is not None
    if form.block:
        rows, each = (place.m, 1) if name == "SA" else (place.n, form.b_rows)
        down, along = -(-rows // each), -(-place.k // form.block)
        apart = (1, down + 3) if name == "SA" else (along + 3, 1)
        return Operand(name, (down, along), apart, *said, (each, form.block))
    rows, more = (place.m, 3) if name == "SA" else (place.n, 2)
    rows = 1 if place.one_scale else rows
    apart, shared = ((1 << 31) // (rows - 1) + more, 1) if rows > 1 else (0, 0)  # the last one needs 64 bits
    return Operand(name, (rows, 1), (apart, 1), *said, (shared, 0))


def _apart(scale: Any, along: int) -> int | None:
    """Elements from one scale factor to the next; 0 of one for all."""
    return scale.stride(along) if scale.ndim == 2 and scale.shape[along] > 1 else 0 if scale.numel() == 1 else None


def _strides(scale: Any) -> tuple[int | None, ...]:
    """Elements between scale factors along each mode."""
    return tuple(x if extent > 1 else None for x, extent in zip(scale.stride(), scale.shape, strict=True))


def scaled_sets(shape: Shape, dtype: str, form: formats.Format) -> list[tuple[Any, ...]]:
    """Sets of (a, b, scale_a, scale_b, out): normal numbers as e4m3, scale factors of 0.5 to 1.5, K contiguous.

    Scale factors of blocks lie as torch takes them: those of a block of K one after the other, columns of those of B a
    multiple of 4 apart.
    """
    import torch

    (m, n, k), made = shape, []
    down, across = (-(-k // form.block), -(-n // form.b_rows)) if form.block else (1, n)
    lines = -(-down // 4) * 4 if form.block else 1
    for _ in range(how_many_sets(m * k + k * n + 2 * m * n)):
        a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
        scale_a, scale_b = torch.rand(down, m, device="cuda") + 0.5, torch.rand(across, lines, device="cuda") + 0.5
        made.append((a, b.T, scale_a.T, scale_b.T, torch.empty(m, n, device="cuda", dtype=getattr(torch, dtype))))
    return made


def into(matmul: Callable[..., Any]) -> Call:
    """A recipe's matmul as a call of a set."""
    return lambda a, b, scale_a, scale_b, out: matmul(a, b, scale_a, scale_b, out=out)


def own_peers(form: formats.Format) -> dict[str, Call]:
    """torch's own, by name."""
    if form.block:
        return {BLOCKWISE: _blockwise_mm}
    return {FAST: partial(scaled_mm, True), SLOW: partial(scaled_mm, False)}


def scaled_mm(fast: bool, a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Any:
    """torch._scaled_mm, with fast accumulation or without."""
    import torch

    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=fast, out=out)


def _blockwise_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Any:
    """Into memory of its own: the function has no `out`."""
    from torch.nn.functional import ScalingType, scaled_mm

    of_a, of_b = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    return scaled_mm(a, b, scale_a, of_a, scale_b, of_b, output_dtype=out.dtype)


def verify(name: str, call: Call, operands: tuple[Any, ...], form: formats.Format) -> None:
    """Before it is timed: the product, to the rounding of bfloat16 and what fast accumulation loses."""
    a, b, scale_a, scale_b, out = operands
    out.fill_(float("nan"))
    found = call(*operands)
    if form.block:
        scale_a = scale_a.repeat_interleave(form.block, dim=1)[:, : a.shape[1]]
        scale_b = scale_b.repeat_interleave(form.block, dim=0)[: b.shape[0]]
        scale_b = scale_b.repeat_interleave(form.b_rows, dim=1)[:, : b.shape[1]]
    exact = (a.float() * scale_a) @ (b.float() * scale_b)
    error, limit = ran.relative_error(found, exact), 2 * ran.tolerance("bfloat16")
    if not error <= limit:
        raise RuntimeError(f"{name} is wrong: relative error {error:.2e}; at most {limit:.2e}")


PRODUCT = Scaled()
