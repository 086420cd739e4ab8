"""Peers of a GEMM of two matrices: torch.matmul, and QuACK's. `cookbook/products/` has other kinds' peers.

The ceiling, a kernel that does as many multiplications by the same instruction and nothing else, is
`cookbook.measure.ceilings`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from cookbook.check import ran
from cookbook.check.ran import Shape
from cookbook.measure.contest import OURS, Call, how_many_sets, us_per_call
from cookbook.recipe.majors import DEFAULT

TORCH, QUACK = "torch.matmul", "quack"
HOST_SHAPE: Shape = (64, 64, 64)  # so small that the GPU keeps up with the host


def work_of(shape: Shape) -> float:
    """Floating-point operations of a product (M, N, K)."""
    m, n, k = shape
    return 2.0 * m * n * k


def own_variants(module: Any) -> dict[str, Call]:
    """The kernels of a recipe that has several, by name."""
    named = getattr(module, "VARIANTS", ())
    return {name: into(partial(module.matmul, variant=name)) for name in named}


def into(matmul: Callable[..., Any]) -> Call:
    """A recipe's matmul as a call of (a, b, out)."""
    return lambda a, b, out: matmul(a, b, out=out)


def quack_gemm() -> Callable[..., Any] | None:
    """QuACK's GEMM; None where it is not installed, or is not for this machine: it is then no peer."""
    try:
        from quack.gemm_interface import gemm  # pyright: ignore[reportMissingImports]  # a peer that few have
    except Exception:
        return None
    return gemm


def peers(tuned: bool = True, quack: bool = True) -> dict[str, Call]:
    """torch.matmul, and QuACK's GEMM where it is installed, autotuned if `tuned`."""
    import torch

    found: dict[str, Call] = {TORCH: lambda a, b, out: torch.matmul(a, b, out=out)}
    gemm = quack_gemm() if quack else None
    return found | ({QUACK: lambda a, b, out: gemm(a, b, out=out, tuned=tuned)} if gemm is not None else {})


def agrees(name: str, call: Call, operands: tuple[Any, Any, Any], dtype: str, ours: tuple[str, ...] = (OURS,)) -> bool:
    """Return whether a variant computes the product; one of `ours` that does not is an error."""
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


# --- the host -------------------------------------------------------------------------------------------------------


@cache
def host_costs(
    matmul: Callable[..., Any], dtype: str, majors: str = DEFAULT, quack: bool = True
) -> dict[str, dict[str, float]]:
    """Microseconds of the host that a call of a GEMM recipe's `matmul`, and of each peer, takes: once a process.

    Returns:
        By variant: "host_us", into an `out` that is given, and "host_new_us", into one that the call makes.
    """
    import torch

    calls: dict[str, Call] = {OURS: into(matmul), **peers(False, quack)}
    a, b, out = input_sets(HOST_SHAPE, dtype, majors)[0]
    calls = {who: call for who, call in calls.items() if agrees(who, call, (a, b, out), dtype)}
    costs: dict[str, dict[str, float]] = {who: {} for who in calls}
    for figure, given in (("host_us", out), ("host_new_us", None)):
        each = {who: partial(call, a, b, given) for who, call in calls.items()}
        for who, us in us_per_call(each, torch.cuda.synchronize).items():
            costs[who][figure] = us
    return costs
