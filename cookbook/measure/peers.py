"""What each recipe is timed against, as a `Contest`.

A GEMM's peers are torch.matmul, QuACK, the GEMM that its front matter names under `compared_with`, and the ceiling: a
kernel that does as many multiplications by the same instruction and nothing else (`cookbook.measure.ceilings`). One
that fuses epilogues is timed with each for which torch has a fused call, next to that call; one that finds the largest
|C|, next to torch's kernels that do. Those of a GEMM of scaled 8-bit operands are torch's own: of rows, with fast and
with slow accumulation; so is that of 8-bit integers. A grouped GEMM's are torch's grouped one, QuACK's, and
torch.matmul group by group; a chained one's are two calls.

A transpose's are torch's own, its other variants, and a copy of as many bytes, which is the ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

from cookbook.check import chains, compiled, fused, packed, ran, scaled, transpose
from cookbook.check.ran import Shape
from cookbook.measure import ceilings
from cookbook.measure.contest import OURS, Call, Contest, how_many_sets, us_per_call
from cookbook.recipe import catalog, chained, formats, grouped
from cookbook.recipe.contract import Fused, Linked, Reduces
from cookbook.recipe.majors import DEFAULT, configured

TORCH, QUACK = "torch.matmul", "quack"
FAST, SLOW = "torch._scaled_mm", "torch._scaled_mm, slow accumulation"  # of row-scaled 8-bit operands
BLOCKWISE = "torch.nn.functional.scaled_mm"  # of those with scale factors of blocks
INTEGER = "torch._int_mm"  # of 8-bit integers
INT4 = "torch._weight_int4pack_mm"  # of a packed weight of 4 bits
TWICE = "torch.matmul, twice"
GROUPED, LOOP = "torch._grouped_mm", "torch.matmul, group by group"
SCALED_GROUPED, SCALED_LOOP = "torch._scaled_grouped_mm", "torch._scaled_mm, group by group"
LINKS = 8  # products of a chain
CHAIN, TORCH_CHAIN = f"chain of {LINKS}", f"torch.matmul, chain of {LINKS}"
COPY, TORCH_TRANSPOSE = "device copy", "torch"  # of a transpose
HOST_SHAPE: Shape = (64, 64, 64)  # so small that the GPU keeps up with the host


def contest_of(
    recipe: catalog.Recipe, shape: Shape, dtype: str, majors: str, quack: bool = True, own: bool = True
) -> Contest:
    """A GEMM or a transpose and all that it is timed against at one shape.

    Args:
        recipe: of kind "gemm" or "transpose".
        shape: (M, N, K), or (M, N) of a transpose.
        dtype: torch's name.
        majors: of the operands of a GEMM.
        quack: whether QuACK is a peer.
        own: whether each variant of a GEMM is in it too, next to what `matmul` takes by default.

    Raises:
        RuntimeError: a kernel of ours is wrong: nothing is timed.
    """
    module = catalog.load(recipe.name)
    if recipe.kind == "transpose":
        return transpose_contest(module, shape, dtype)
    if recipe.grouped:
        return grouped_contest(module, shape, dtype, quack, own)
    if recipe.operands:
        if formats.FORMATS[recipe.operands].packed:
            return packed_contest(module, shape, dtype, own)
        if formats.FORMATS[recipe.operands].scale:
            return scaled_contest(recipe, module, shape, dtype, own)
        return integer_contest(module, shape, dtype, own)
    if recipe.chained:
        return chained_contest(module, shape, dtype, quack, own)
    contest = gemm_contest(module, shape, dtype, majors, quack, recipe.compared_with, own)
    contest = replace(contest, majors=recipe.told_apart(majors))
    return ceilings.with_ceiling(recipe, contest, dtype)


def standard(recipe: catalog.Recipe) -> str:
    """Torch's own GEMM that one is first of all compared with."""
    if recipe.operands and recipe.grouped:
        return SCALED_GROUPED
    if recipe.operands:
        form = formats.FORMATS[recipe.operands]
        if form.by_mma or form.packed:
            return TORCH
        return BLOCKWISE if form.block else FAST if form.scale else INTEGER
    return GROUPED if recipe.grouped else TWICE if recipe.chained else TORCH


def against_torch(recipe: catalog.Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
    """A `matmul` that a reader may have changed, against torch's alone: no record is made of it.

    Args:
        recipe: the GEMM whose contract `matmul` keeps: its operands and the first of its majors.
        matmul: of (a, b, out=), or of (a, b, scales of a, scales of b, out=).
        shape: (M, N, K).
        dtype: torch's name of the type of C.

    Raises:
        RuntimeError: `matmul` is wrong; of block-scaled operands `ran.run_case` says it, before.
    """
    import torch

    work = 2.0 * shape[0] * shape[1] * shape[2]
    if recipe.grouped:
        is_scaled, peer = bool(recipe.operands), standard(recipe)
        calls = grouped_calls(matmul, shape, False, recipe.grouped, is_scaled)
        sets = grouped_sets(shape, dtype, recipe.grouped, is_scaled)
        return Contest({who: calls[who] for who in (OURS, peer)}, sets, peer, work)
    if recipe.chained:
        return _chain_of({OURS: _into_chain(matmul), TWICE: _chained_calls(False)[TWICE]}, shape, dtype, (OURS,))
    if not recipe.operands:
        sets = input_sets(shape, dtype, recipe.majors[0])
        ran.verify(OURS, _into(matmul), sets[0], dtype)
        return Contest({OURS: _into(matmul), TORCH: peers(quack=False)[TORCH]}, sets, TORCH, work)
    form = formats.FORMATS[recipe.operands]
    if form.packed:
        calls, sets = packed_calls(catalog.load(recipe.name), shape, dtype, {OURS: matmul}), packed_sets(shape, dtype)
        return Contest({who: calls[who] for who in (OURS, TORCH)}, sets, TORCH, work)
    if not form.scale:
        both = {OURS: _into(matmul), INTEGER: _int_mm}
        return Contest(both, _verified(both, integer_sets(shape)), INTEGER, work)
    if form.by_mma:  # torch multiplies the same numbers before they are quantized
        a, b = ran.inputs(shape, dtype)
        plain = (a, b, torch.empty(shape[0], shape[1], device=a.device, dtype=a.dtype))
        variants: dict[str, Call] = {
            OURS: lambda q, plain: matmul(*q, out=plain[2]),
            TORCH: lambda q, plain: torch.matmul(*plain[:2], out=plain[2]),
        }
        return Contest(variants, [(scaled.block_operands(a, b, form), plain)], TORCH, work)
    sets, peer = scaled_sets(shape, dtype, form), standard(recipe)
    _verify_scaled(OURS, _into_scaled(matmul), sets[0], form)
    return Contest({OURS: _into_scaled(matmul), peer: _scaled_peers(form)[peer]}, sets, peer, work)


# --- GEMMs ----------------------------------------------------------------------------------------------------------


def gemm_contest(
    module: Any,
    shape: Shape,
    dtype: str,
    majors: str = DEFAULT,
    quack: bool = True,
    compared_with: str | None = None,
    own: bool = True,
) -> Contest:
    """A recipe's matmul, with all its variants if `own`, against torch.matmul, QuACK and the recipe `compared_with`.

    A wrong or failing peer is left out; of ours it is an error.
    """
    sets, variants_of_ours = input_sets(shape, dtype, majors), own_variants(module) if own else {}
    others = peers(quack=quack) | ({other: _into(catalog.load(other).matmul)} if (other := compared_with) else {})
    variants: dict[str, Call] = {OURS: _into(module.matmul), **others, **variants_of_ours}
    variants |= module.PEERS if isinstance(module, Reduces) else {}
    ours = (OURS, *variants_of_ours)
    usable = {name: call for name, call in variants.items() if _agrees(name, call, sets[0], dtype, ours)}
    if isinstance(module, Reduces):
        check_amax(module, usable, sets[0])
    gates: set[str] = set()
    if own and isinstance(module, Fused):
        usable |= fused_calls(module, sets)
        gates = {who for name in module.PEERS if "up" in fused.operands_of(module, name) for who in _of(module, name)}
    config = configured(compiled.config_for(module, compiled.arch_here()), majors)
    of = (compared_with,) if compared_with in usable else ()
    work, scale = 2.0 * shape[0] * shape[1] * shape[2], dict.fromkeys(gates, 0.5)  # a gate's work is two products
    if own and isinstance(module, Linked) and shape[1] == shape[2]:
        chains = chained_calls(module, sets)
        usable, scale = usable | chains, scale | dict.fromkeys(chains, 1 / LINKS)
    return Contest(usable, sets, TORCH, work, config=config, of=of, scale=scale)


def check_amax(module: Any, usable: Iterable[str], operands: tuple[Any, Any, Any]) -> None:
    """Make sure that a recipe's `matmul_amax` and those of its peers that are `usable` give the largest |C| too.

    Raises:
        RuntimeError: one of them gives another number.
    """
    a, b, out = operands
    ours = {OURS: lambda a, b, out: module.matmul_amax(a, b, out=out)}
    for who, call in (ours | {who: call for who, call in module.PEERS.items() if who in usable}).items():
        out.fill_(float("nan"))
        c, amax = call(a, b, out)
        needed = c.abs().amax().item()
        if not amax.item() == needed:
            raise RuntimeError(f"{who} is wrong: the largest |C| is {amax.item()}; needed {needed}")


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
        calls = {who: _fused_call(call, given) for who, call in zip(_of(module, name), (ours, theirs), strict=True)}
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
    """Who is timed with an epilogue: ours, and torch's own call, "torch.addmm (add)"."""
    return epilogue, f"{module.PEERS[epilogue][0]} ({epilogue})"


def _fused_call(matmul: Callable[..., Any], given: dict[int, dict[str, Any]]) -> Call:
    return lambda a, b, out: matmul(a, b, out=out, **given[out.data_ptr()])


def chained_calls(module: Any, sets: list[tuple[Any, Any, Any]]) -> dict[str, Call]:
    """A chain of LINKS products, and torch's of as many: a chain begins with the a of a set, and ends in its out.

    The weights are the b of further sets, scaled so that a product of normal numbers is as large as they are.

    Raises:
        RuntimeError: the chain's error is more than twice torch's.
    """
    scaled_b = [b.mul(b.shape[0] ** -0.5) for _, b, _ in sets]
    links = {
        out.data_ptr(): [scaled_b[(LINKS * i + j) % len(sets)] for j in range(LINKS)]
        for i, (*_, out) in enumerate(sets)
    }
    calls: dict[str, Call] = {
        CHAIN: lambda a, b, out: module.chain(a, links[out.data_ptr()], out=out),
        TORCH_CHAIN: lambda a, b, out: _torch_chain(a, links[out.data_ptr()], out),
    }
    a, b, out = sets[0]
    exact = a.double()
    for weight in links[out.data_ptr()]:
        exact = exact @ weight.double()
    errors = []
    for call in calls.values():
        out.fill_(float("nan"))
        call(a, b, out)
        errors.append(ran.relative_error(out, exact))
    if not errors[0] <= 2 * errors[1]:
        raise RuntimeError(f"{CHAIN} is wrong: relative error {errors[0]:.2e}; torch's is {errors[1]:.2e}")
    return calls


def _torch_chain(x: Any, weights: list[Any], out: Any) -> Any:
    import torch

    for weight in weights[:-1]:
        x = torch.matmul(x, weight)
    return torch.matmul(x, weights[-1], out=out)


def own_variants(module: Any) -> dict[str, Call]:
    """The kernels of a recipe that has several, by name."""
    return {name: _into(matmul) for name, matmul in ran.matmuls(module).items() if name}


def _into(matmul: Callable[..., Any]) -> Call:
    """A recipe's matmul as a call of (a, b, out)."""
    return lambda a, b, out: matmul(a, b, out=out)


def peers(tuned: bool = True, quack: bool = True) -> dict[str, Call]:
    """What ours is timed against: torch.matmul, and QuACK's GEMM where it is installed, autotuned if `tuned`."""
    import torch

    found: dict[str, Call] = {TORCH: lambda a, b, out: torch.matmul(a, b, out=out)}
    if not quack:
        return found
    try:
        from quack.gemm_interface import gemm  # pyright: ignore[reportMissingImports]  # a peer that few have
    except Exception:  # not installed, or not for this machine: it is then no peer here
        return found
    return found | {QUACK: lambda a, b, out: gemm(a, b, out=out, tuned=tuned)}


def _agrees(name: str, call: Call, operands: tuple[Any, Any, Any], dtype: str, ours: tuple[str, ...] = (OURS,)) -> bool:
    """Whether a variant computes the product; one of `ours` that does not is an error."""
    try:
        ran.verify(name, call, operands, dtype)
    except Exception:
        if name in ours:
            raise
        return False
    return True


def input_sets(shape: Shape, dtype: str, majors: str = DEFAULT) -> list[tuple[Any, Any, Any]]:
    """Enough sets of (a, b, out) that together they are L2_MULTIPLE times as large as L2; at least 2."""
    import torch

    m, n, k = shape
    kind = {"device": "cuda", "dtype": getattr(torch, dtype)}
    count = how_many_sets(2 * (m * k + k * n + m * n))
    return [(*ran.inputs(shape, dtype, majors=majors), torch.empty(m, n, **kind)) for _ in range(count)]


# --- GEMMs of scaled 8-bit operands -----------------------------------------------------------------------------------


def scaled_contest(recipe: catalog.Recipe, module: Any, shape: Shape, dtype: str, own: bool = True) -> Contest:
    """A recipe's matmul of (a, b, scale_a, scale_b, out), with all its variants if `own`, and torch's.

    Raises:
        RuntimeError: one of them does not compute the product.
    """
    form, kinds = formats.FORMATS[recipe.operands], getattr(module, "VARIANTS", {}) if own else {}
    sets = scaled_sets(shape, dtype, form)
    variants: dict[str, Call] = {OURS: _into_scaled(module.matmul)} | _scaled_peers(form)
    variants |= {name: _into_scaled(partial(module.matmul, variant=name)) for name in kinds}
    for name, call in variants.items():
        _verify_scaled(name, call, sets[0], form)
    return Contest(variants, sets, standard(recipe), 2.0 * shape[0] * shape[1] * shape[2], config=module.CONFIG)


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


def _into_scaled(matmul: Callable[..., Any]) -> Call:
    return lambda a, b, scale_a, scale_b, out: matmul(a, b, scale_a, scale_b, out=out)


def _scaled_peers(form: formats.Format) -> dict[str, Call]:
    """torch's own, by name."""
    return (
        {BLOCKWISE: _blockwise_mm}
        if form.block
        else {FAST: partial(_scaled_mm, True), SLOW: partial(_scaled_mm, False)}
    )


def _scaled_mm(fast: bool, a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Any:
    import torch

    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=fast, out=out)


def _blockwise_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Any:
    """Into memory of its own: the function has no `out`."""
    from torch.nn.functional import ScalingType, scaled_mm

    of_a, of_b = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    return scaled_mm(a, b, scale_a, of_a, scale_b, of_b, output_dtype=out.dtype)


def _verify_scaled(name: str, call: Call, operands: tuple[Any, ...], form: formats.Format) -> None:
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


# --- GEMMs of a packed weight -----------------------------------------------------------------------------------------


def packed_contest(module: Any, shape: Shape, dtype: str, own: bool = True) -> Contest:
    """A recipe's matmul of a packed weight, torch.matmul in the dtype of A, and torch's own of elements of
    4 bits, where it takes them. If `own` also the variants whose tiles are as high as those that `choose` names.

    Raises:
        RuntimeError: one of ours does not compute the product.
    """
    import torch

    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    high = module.VARIANTS[module.choose(*shape, sms)].tile_n
    named = [name for name, config in module.VARIANTS.items() if own and config.tile_n == high]
    ours = {OURS: module.matmul} | {name: partial(module.matmul, variant=name) for name in named}
    sets, calls = packed_sets(shape, dtype), packed_calls(module, shape, dtype, ours)
    return Contest(calls, sets, TORCH, 2.0 * shape[0] * shape[1] * shape[2], config=module.CONFIG)


def packed_sets(shape: Shape, dtype: str) -> list[tuple[Any, ...]]:
    """Sets of (a, number of a weight, out), as many as L2 does not hold the narrowest weights of."""
    import torch

    m, n, k = shape
    where = {"device": "cuda", "dtype": getattr(torch, dtype)}
    count = how_many_sets(n * k // 2)
    return [(torch.randn(m, k, **where), number, torch.empty(m, n, **where)) for number in range(count)]


def packed_calls(module: Any, shape: Shape, dtype: str, ours: dict[str, Callable[..., Any]]) -> dict[str, Call]:
    """Calls of (a, number, out), by name: `ours`, torch.matmul, and torch's own of elements of 4 bits.

    Each weight is drawn and packed once for each kind that a Config of `ours` is of.
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
    """What torch's own takes of a weight (N, K): elements of 4 bits in its order, scales and zero points."""
    import torch

    integers, scales = packed.quantized(weight)
    pairs = integers[:, ::2] << 4 | integers[:, 1::2]
    factors = torch.stack([scales, torch.zeros_like(scales)], dim=-1).transpose(0, 1).contiguous()
    return torch.ops.aten._convert_weight_to_int4pack(pairs, 8), factors


def _right(name: str, call: Call, shape: Shape, dtype: str, weight: Any, ours: bool) -> bool:
    """Whether a call of the first weight gives the product; of ours it must."""
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


# --- GEMMs of 8-bit integers ------------------------------------------------------------------------------------------


def integer_contest(module: Any, shape: Shape, dtype: str, own: bool = True) -> Contest:
    """A recipe's matmul of (a, b, out), with all its variants if `own`, and torch's.

    Raises:
        RuntimeError: one of them does not compute the product, to the bit.
    """
    variants: dict[str, Call] = {OURS: _into(module.matmul), INTEGER: _int_mm}
    variants |= {name: _into(partial(module.matmul, variant=name)) for name in (module.VARIANTS if own else ())}
    sets = _verified(variants, integer_sets(shape))
    return Contest(variants, sets, INTEGER, 2.0 * shape[0] * shape[1] * shape[2], config=module.CONFIG)


def integer_sets(shape: Shape) -> list[tuple[Any, ...]]:
    """Sets of (a, b, out): int8 of the full range, K contiguous, and int32."""
    import torch

    m, n, k = shape
    count = how_many_sets(m * k + k * n + 4 * m * n)
    return [(*ran.inputs(shape, "int8"), torch.empty(m, n, device="cuda", dtype=torch.int32)) for _ in range(count)]


def _int_mm(a: Any, b: Any, out: Any) -> Any:
    import torch

    return torch._int_mm(a, b, out=out)


def _verified(calls: dict[str, Call], sets: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The sets, after each call has computed the product of the first one to the bit."""
    a, b, out = sets[0]
    exact = ran.reference(a, b)
    for name, call in calls.items():
        call(a, b, out.fill_(ran.poison("int32")))
        if wrong := int((out != exact).sum()):
            raise RuntimeError(f"{name} is wrong: {wrong} elements differ")
    return sets


# --- chained GEMMs --------------------------------------------------------------------------------------------------


def chained_contest(module: Any, shape: Shape, dtype: str, quack: bool = True, own: bool = True) -> Contest:
    """A chained matmul, with all its variants if `own`, against two calls of torch.matmul, and two of QuACK's GEMM.

    The product in the middle has `chained.TIMED` columns; peers have memory for it, and allocate none.
    """
    named = module.VARIANTS if own else ()
    ours = {OURS: _into_chain(module.matmul)} | {x: _into_chain(partial(module.matmul, variant=x)) for x in named}
    return replace(_chain_of(ours | _chained_calls(quack), shape, dtype, (*ours,)), config=module.CONFIG)


def _into_chain(matmul: Callable[..., Any]) -> Call:
    return lambda a, b, b2, middle, out: matmul(a, b, b2, out=out)


def _chained_calls(quack: bool) -> dict[str, Call]:
    """The peers, each a call of (a, b, b2, middle, out)."""
    import torch

    calls: dict[str, Call] = {
        TWICE: lambda a, b, b2, middle, out: torch.matmul(torch.matmul(a, b, out=middle), b2, out=out)
    }
    if quack:
        try:
            from quack.gemm_interface import gemm  # pyright: ignore[reportMissingImports]  # a peer that few have
        except Exception:  # not installed, or not for this machine: it is then no peer here
            return calls
        calls[QUACK] = lambda a, b, b2, middle, out: (gemm(a, b, out=middle), gemm(middle, b2, out=out))
    return calls


def _chain_of(calls: dict[str, Call], shape: Shape, dtype: str, ours: tuple[str, ...]) -> Contest:
    """A contest of these calls; a wrong or failing one of a peer is left out, one of `ours` is an error."""
    import torch

    (m, n, k), n1 = shape, chained.TIMED
    each = [chains.drawn(shape, dtype, n1) for _ in range(how_many_sets(2 * (m * (k + n1 + n) + n1 * (k + n))))]
    sets = [(*x, x[0].new_empty(m, n1), x[0].new_empty(m, n)) for x in each]
    a, b, b2, middle, out = sets[0]
    exact, usable = torch.matmul(torch.matmul(a, b), b2).float(), {}
    for name, call in calls.items():
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


# --- grouped GEMMs --------------------------------------------------------------------------------------------------


def grouped_contest(module: Any, shape: Shape, dtype: str, quack: bool = True, own: bool = True) -> Contest:
    """A grouped matmul of (a, b, ends, out), with all its variants if `own`, and its peers, of `grouped.sizes`; of
    groups along K too. Scaled operands have their scale factors before `ends`.

    A wrong or failing peer is left out; of ours it is an error.
    """
    along, is_scaled = grouped.takes_groups(module), formats.of_module(module) is not None
    sets, calls = (
        grouped_sets(shape, dtype, along, is_scaled),
        grouped_calls(module.matmul, shape, quack, along, is_scaled),
    )
    variants = getattr(module, "VARIANTS", {})
    for name in variants if own else ():
        calls[name] = grouped_calls(partial(module.matmul, variant=name), shape, False, along, is_scaled)[OURS]
    *given, out = sets[0]
    exact = grouped_reference(shape, *given) if is_scaled else calls[LOOP](*given, out).float()
    usable = {}
    for name, call in calls.items():
        try:
            error = ran.relative_error(call(*given, out.fill_(float("nan"))), exact)
            limit = 2 * ran.tolerance("bfloat16" if is_scaled else dtype)  # two roundings, or what accumulating loses
            if not error <= limit:
                raise RuntimeError(f"{name} is wrong: relative error {error:.2e}")
            usable[name] = call
        except Exception:
            if name == OURS or name in variants:
                raise
    known = (SCALED_GROUPED, SCALED_LOOP, GROUPED, LOOP)
    standard = next(who for who in known if who in usable)  # torch's own may not take every dtype
    return Contest(usable, sets, standard, 2.0 * shape[0] * shape[1] * shape[2], config=module.CONFIG)


def grouped_sets(shape: Shape, dtype: str, along: str = "m", is_scaled: bool = False) -> list[tuple[Any, ...]]:
    """Sets of a (M, K), b (GROUPS, K, N), ends (GROUPS + 1,) int32 with a zero before them, out (M, N). Of groups along
    "k" b is (K, N), out (GROUPS, M, N), and the operands are contiguous along M and N. If `is_scaled`, a and b are
    normal numbers as e4m3, and scale factors (M,) and (GROUPS, N) of 0.5 to 1.5 follow them."""
    import torch

    (m, n, k), sizes = shape, grouped.sizes(shape["mnk".index(along)])
    kind = {"device": "cuda", "dtype": getattr(torch, dtype)}
    ends = torch.tensor([0, *sizes], device="cuda").cumsum(0).to(torch.int32)
    made = []
    if along == "k":
        for _ in range(how_many_sets(2 * (m * k + k * n + len(sizes) * m * n))):
            a, b = torch.randn(k, m, **kind).T, torch.randn(k, n, **kind)
            made.append((a, b, ends, torch.empty(len(sizes), m, n, **kind)))
        return made
    each = torch.float8_e4m3fn if is_scaled else kind["dtype"]
    for _ in range(how_many_sets(each.itemsize * (m * k + len(sizes) * k * n) + 2 * m * n)):
        a, b = torch.randn(m, k, **kind).to(each), torch.randn(len(sizes), n, k, **kind).to(each).transpose(1, 2)
        of_a_and_b = (m,), (len(sizes), n)
        factors = [torch.rand(of, device="cuda") + 0.5 for of in of_a_and_b] if is_scaled else ()
        made.append((a, b, *factors, ends, torch.empty(m, n, **kind)))
    return made


def grouped_calls(
    matmul: Callable[..., Any], shape: Shape, quack: bool, along: str = "m", is_scaled: bool = False
) -> dict[str, Call]:
    """Ours and its peers, each a call of (a, b, ends, out), or of scaled operands, that returns the product."""
    import torch

    if is_scaled:
        return {
            OURS: lambda a, b, sa, sb, ends, out: matmul(a, b, sa, sb, ends[1:], out=out),
            SCALED_GROUPED: lambda a, b, sa, sb, ends, out: torch._scaled_grouped_mm(  # it makes bfloat16 alone
                a, b, sa, sb, offs=ends[1:], out_dtype=torch.bfloat16, use_fast_accum=True
            ),
            SCALED_LOOP: partial(scaled_by_group, shape[0]),
        }
    calls: dict[str, Call] = {
        OURS: lambda a, b, ends, out: matmul(a, b, ends[1:], out=out),
        GROUPED: lambda a, b, ends, out: torch._grouped_mm(a, b, offs=ends[1:]),
        LOOP: partial(torch_by_group if along == "m" else torch_by_part, shape["mnk".index(along)]),
    }
    if quack:
        try:
            from quack.gemm_interface import gemm  # pyright: ignore[reportMissingImports]  # a peer that few have
        except Exception:  # not installed, or not for this machine: it is then no peer here
            return calls
        calls[QUACK] = lambda a, b, ends, out: gemm(a, b, out=out, **{f"cu_seqlens_{along}": ends})
    return calls


def torch_by_group(rows: int, a: Any, b: Any, ends: Any, out: Any) -> Any:
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


def scaled_by_group(rows: int, a: Any, b: Any, scale_a: Any, scale_b: Any, ends: Any, out: Any) -> Any:
    """torch._scaled_mm of each group, with fast accumulation."""
    for number, of in rows_of_groups(rows):
        _scaled_mm(True, a[of], b[number], scale_a[of, None], scale_b[number, None], out[of])
    return out


def grouped_reference(shape: Shape, a: Any, b: Any, scale_a: Any, scale_b: Any, ends: Any) -> Any:
    """The product of scaled operands in float32."""
    made = a.new_empty(shape[0], shape[1], dtype=scale_a.dtype)
    for number, of in rows_of_groups(shape[0]):
        made[of] = (a[of].float() * scale_a[of, None]) @ (b[number].float() * scale_b[number])
    return made


def torch_by_part(k: int, a: Any, b: Any, ends: Any, out: Any) -> Any:
    """torch.matmul of each group of `grouped.sizes(k)` along K."""
    import torch

    start = 0
    for number, size in enumerate(grouped.sizes(k)):
        torch.matmul(a[:, start : start + size], b[start : start + size], out=out[number])
        start += size
    return out


# --- the host -------------------------------------------------------------------------------------------------------


@cache
def host_costs(name: str, dtype: str, majors: str = DEFAULT, quack: bool = True) -> dict[str, dict[str, float]]:
    """Microseconds of the host that a call of a GEMM recipe, and of each peer, takes: once a process.

    Returns:
        By variant: "host_us", into an `out` that is given, and "host_new_us", into one that the call makes.
    """
    import torch

    matmul = catalog.load(name).matmul
    calls: dict[str, Call] = {OURS: lambda a, b, out: matmul(a, b, out=out), **peers(False, quack)}
    a, b, out = input_sets(HOST_SHAPE, dtype, majors)[0]
    calls = {who: call for who, call in calls.items() if _agrees(who, call, (a, b, out), dtype)}
    costs: dict[str, dict[str, float]] = {who: {} for who in calls}
    for figure, given in (("host_us", out), ("host_new_us", None)):
        each = {who: partial(call, a, b, given) for who, call in calls.items()}
        for who, us in us_per_call(each, torch.cuda.synchronize).items():
            costs[who][figure] = us
    return costs


# --- transposes -----------------------------------------------------------------------------------------------------


def transpose_contest(module: Any, shape: Shape, dtype: str) -> Contest:
    """The fastest variant against a copy of the same bytes, torch's transpose, the other variants and `beside`'s.

    Raises:
        RuntimeError: a variant is wrong: nothing is timed.
    """
    import torch

    (m, n), kind = shape, getattr(torch, dtype)
    set_bytes = 2 * m * n * kind.itemsize
    count = how_many_sets(set_bytes)
    empty = partial(torch.empty, n, m, device="cuda", dtype=kind)
    sets = [(transpose.padded_input(shape, dtype, 0), empty()) for _ in range(count)]
    (x, out), capability = sets[0], torch.cuda.get_device_capability()
    able = [name for name, reason in module.usable(x, out, capability).items() if not reason]
    variants: dict[str, Callable[..., Any]] = {
        OURS: lambda x, out: module.transpose(x, out=out),
        COPY: lambda x, out: out.view(m, n).copy_(x),
        TORCH_TRANSPOSE: lambda x, out: out.copy_(x.t()),
    }
    variants |= {name: lambda x, out, name=name: module.transpose(x, out=out, variant=name) for name in able}
    arch, known = "sm_{}{}".format(*capability), compiled.cutlass_dtype(dtype)
    others = {name: config for name, config in module.beside(arch, known).items() if config.variant in able}
    variants |= {name: lambda x, out, c=config: module.run(x, out, c) for name, config in others.items()}
    for name in variants.keys() - {COPY, TORCH_TRANSPOSE}:
        out.fill_(float("nan"))
        variants[name](x, out)
        if not torch.equal(out, x.t()):
            raise RuntimeError(f"{name} is wrong: not timed")
    config = module.configs_for(arch, known)[able[0]]
    return Contest(variants, sets, COPY, float(set_bytes), "gbps", config, graphs=False)
