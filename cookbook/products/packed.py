"""A packed weight: B alone is narrow, in groups along K, as the recipe's `pack` lays it out. `kind: packed`.

A weight is drawn so that the dtype of A holds exactly what it stands for: torch.matmul multiplies the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cookbook.check import calls, packed, ran
from cookbook.check.findings import Finding
from cookbook.check.product import problems
from cookbook.check.product.memory import Operand
from cookbook.check.product.problems import Place
from cookbook.check.product.words import laid
from cookbook.measure import peers
from cookbook.measure.contest import OURS, Call, Contest, how_many_sets
from cookbook.measure.peers import TORCH
from cookbook.products.base import Shape, Usage
from cookbook.products.gemm import shape_of
from cookbook.products.narrow import Narrow, form_of
from cookbook.recipe import contract
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

INT4 = "torch._weight_int4pack_mm"  # torch's own of elements of 4 bits


FRONT_MATTER = {"like": "narrow", "formats": "int4"}


class Packed(Narrow):
    """`matmul(a, *pack(weight, scales, zeros))`."""

    modelled_in_registers = False  # A of the MMA is in registers

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.Packed)

    def usage(self, recipe: Recipe) -> Usage:
        where = "a: (M, K), K contiguous; weight: (N, K), int4, int8 or e4m3, scales: (N, K / 128); c: (M, N)"
        return Usage("matmul, pack", "c = matmul(a, *pack(weight, scales))", where)

    def element(self, recipe: Recipe) -> str:
        return ""  # the MMA multiplies floats

    def read_bytes(self, recipe: Recipe, shape: Shape) -> float:
        m, n, k = shape
        return k * (2 * m + n * form_of(recipe).bits / 8)

    def multiplied(self, recipe: Recipe, shape: Shape, dtype: str, majors: str) -> tuple[Any, Any]:
        a, b = ran.inputs(shape, dtype, majors=majors)
        return a, packed.rounded(b.T).T

    def as_matmul(self, recipe: Recipe, module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
        return packed.as_matmul(module, matmul, config)

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        """Elements of 4 bits, with zero points or without, integers of 8 bits, or e4m3."""
        import torch

        (m, n, k), dtype = self.align(recipe, shape_of(drawn), DEFAULT), getattr(torch, drawn["dtype"])
        k *= 2  # more groups than one
        weight = torch.arange(n * k).remainder(7).sub(3).view(n, k).to(dtype)
        wide = packed.Kind(8, floats=bool(drawn["gap_a"]))
        of = packed.Kind(zeros=True) if drawn["one_scale"] else wide if drawn["gap_b"] else packed.Kind()
        b, *factors = packed.operands(recipe.module, weight.T, of)
        a = calls.matrix(m, k, dtype, False, drawn["gap_a"])
        numbers = {name: (0 if x is None else x.data_ptr(),) for name, x in zip(("pSB", "pZB"), factors, strict=True)}
        numbers |= {"strides": (calls.line(a), None, None)}
        out = calls.out_of(m, n, dtype, drawn)
        return calls.Call(a, b, out, tuple(factors), (m, n, k), DEFAULT, numbers=numbers)

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        return ILLEGAL

    def layouts(self, module: Any, dtype: str | None, config: Any) -> list[Finding]:
        return super().layouts(module, dtype, config) + packed.layout_findings(module, config)

    # --- the kernel, followed ---

    def problems(self, module: Any, config: Any) -> tuple[problems.Case, ...]:
        """Shapes with a weight of more rows than a tile has, and columns of C."""
        case, few = partial(problems.case_of, module, config), few_stages(config)
        m, n, k = config.tile_n, config.tile_m, config.tile_k * config.split_k
        large = case((m + 5, n + 64, (few.stages + 1) * k + problems.RAGGED), 3, (few, ()))
        return large, case((3, 64, problems.RAGGED), 1, far=True), case((m, n, k), 1)

    def multiplied_as(self, name: str, dtypes: dict[str, str], form: Any) -> str:
        return dtypes["A"] if name == "B" else dtypes[name]  # of what its threads make of it

    def placed(self, place: Place) -> Operand | None:
        """Scales and zero points; where they lie `words.laid` says."""
        if place.name not in ("SB", "ZB"):
            return None
        shape = place.n, place.k // place.form.block
        return Operand(place.name, shape, (1, 1), place.bits, place.dtype, place.base)

    def words(self, module: Any, config: Any, n: int, k: int, operands: dict[str, Operand]) -> tuple[Any, dict]:
        return laid(module, config, n, k, operands)

    # --- peers ---

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        """torch.matmul in the dtype of A, and torch's own of elements of 4 bits, where it takes them. If `own` also the
        variants whose tiles are as high as those that `choose` names.

        Raises:
            RuntimeError: one of ours does not compute the product.
        """
        import torch

        module = recipe.module
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        high = module.VARIANTS[module.choose(*shape, sms)].tile_n
        named = [name for name, config in module.VARIANTS.items() if own and config.tile_n == high]
        ours = {OURS: module.matmul} | {name: partial(module.matmul, variant=name) for name in named}
        sets, each = sets_of(shape, dtype), calls_of(module, shape, dtype, ours)
        return Contest(each, sets, TORCH, peers.work_of(shape), config=module.CONFIG)

    def against_torch(self, recipe: Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
        each = calls_of(recipe.module, shape, dtype, {OURS: matmul})
        both = {who: each[who] for who in (OURS, TORCH)}
        return Contest(both, sets_of(shape, dtype), TORCH, peers.work_of(shape))


# Of a legal call: what makes it one that cannot be served.
ILLEGAL: dict[str, Callable[[calls.Call], None]] = {
    "a at an odd address": calls.shifted,
    "rows of a that are not 16 bytes apart": calls.odd_rows,
    "a weight of another K": lambda call: setattr(call, "b", call.b[:, :1].contiguous()),
    "a weight that is not contiguous": lambda call: setattr(call, "b", call.b.mT.contiguous().mT),
    "scales of fewer blocks": lambda call: setattr(call, "scales", (call.scales[0][:-1], call.scales[1])),
    "scales of another dtype": lambda call: setattr(call, "scales", (call.scales[0].float(), call.scales[1])),
    "zero points of 8-bit elements": lambda call: setattr(call, "scales", (call.scales[0], call.scales[0])),
    "an out of another shape": calls.wide,
    "an out that overlaps scales": lambda call: setattr(
        call, "out", call.scales[0].view(-1)[: call.mnk[1]].expand(call.mnk[0], -1)
    ),
}


def few_stages(config: Any) -> Any:
    """The configuration with as few stages, but two at least, as it has where several CTAs share an SM."""
    each = (replace(config, per_sm=count) for count in range(config.per_sm, 9))
    return min((one for one in each if one.stages > 1), key=lambda one: one.stages)


def sets_of(shape: Shape, dtype: str) -> list[tuple[Any, ...]]:
    """Sets of (a, number of a weight, out), as many as L2 does not hold the narrowest weights of."""
    import torch

    m, n, k = shape
    where = {"device": "cuda", "dtype": getattr(torch, dtype)}
    count = how_many_sets(n * k // 2)
    return [(torch.randn(m, k, **where), number, torch.empty(m, n, **where)) for number in range(count)]


def calls_of(module: Any, shape: Shape, dtype: str, ours: dict[str, Callable[..., Any]]) -> dict[str, Call]:
    """Calls of (a, number, out), by name: `ours`, torch.matmul, and torch's own of elements of 4 bits.

    Each weight is drawn and packed once for each kind of weight that a Config of `ours` is of.
    """
    import torch

    _, n, k = shape
    kinds = {name: module.VARIANTS.get(name, module.CONFIG) for name in ours}
    wide, packs, own = [], {packed.kind_of(c): [] for c in kinds.values()}, []
    for _ in range(how_many_sets(n * k // 2)):
        weight = packed.rounded(torch.randn(n, k, device="cuda", dtype=getattr(torch, dtype)))
        wide.append(weight.T)
        for kind, made in packs.items():
            made.append(module.pack(*packed.quantized(weight, kind)))
        own.append(_int4pack(weight))

    def call(matmul: Callable[..., Any], made: list[Any]) -> Call:
        return lambda a, number, out: matmul(a, *made[number], out=out)

    found: dict[str, Call] = {name: call(matmul, packs[packed.kind_of(kinds[name])]) for name, matmul in ours.items()}
    found[TORCH] = lambda a, number, out: torch.matmul(a, wide[number], out=out)
    found[INT4] = lambda a, number, out: torch.ops.aten._weight_int4pack_mm(
        a, own[number][0], packed.GROUP, own[number][1]
    )
    return {name: each for name, each in found.items() if _right(name, each, shape, dtype, wide[0], name in ours)}


def _int4pack(weight: Any) -> tuple[Any, Any]:
    """Return what torch's own takes of a weight (N, K): elements of 4 bits in its order, scales and zero points."""
    import torch

    integers, scales = packed.quantized(weight)
    pairs = integers[:, ::2] << 4 | integers[:, 1::2]
    factors = torch.stack([scales, torch.zeros_like(scales)], dim=-1).transpose(0, 1).contiguous()
    return torch.ops.aten._convert_weight_to_int4pack(pairs, 8), factors


def _right(name: str, call: Call, shape: Shape, dtype: str, weight: Any, ours: bool) -> bool:
    """Return whether a call of the first weight gives the product; of ours it must."""
    import torch

    m, n, k = shape
    a = torch.randn(m, k, device="cuda", dtype=getattr(torch, dtype))
    out = torch.full((m, n), float("nan"), device="cuda", dtype=a.dtype)
    try:
        error = ran.relative_error(call(a, 0, out), torch.matmul(a, weight).float())
    except RuntimeError:
        if ours:
            raise
        return False
    if ours and not error <= 2 * ran.tolerance(dtype):
        raise RuntimeError(f"{name} is wrong: relative error {error:.2e}; at most {2 * ran.tolerance(dtype):.2e}")
    return error <= 0.05  # torch's own keeps less in its sums; it is no reference


PRODUCT = Packed()
