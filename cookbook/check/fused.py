"""Fused epilogues: what their functions compute, and whether each operand comes to the element of C that it is for.

A function is evaluated by CuTe on the host, for numbers, and compared with what the recipe says that it is. Where its
operands come from is looked at in the kernel: the function is what a reader replaces, so the checks put probes in its
place, of which the level product knows what they must give.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cookbook.check import ran
from cookbook.check.findings import Finding

__all__ = [
    "PROBES",
    "drawn",
    "function_findings",
    "of_config",
    "operands_of",
    "probed",
    "referred",
    "run_case",
    "run_epilogues",
]

# What stands in a function's place: every operand that comes from memory, once.
# Of two products one after the other, to be C: what a gate makes of both could not be followed.
SECOND = "the second product"
PROBES: dict[str, Callable[..., Any]] = {
    "a bias": lambda x, bias: x + bias,
    "a bias and a residual": lambda x, bias, residual: x + bias + residual,
    "all of them": lambda x, bias, residual, row_scale, column_scale, alpha, beta: (
        alpha * (x * row_scale * column_scale) + bias + beta * residual
    ),
    "the first product": lambda x, up: x,
    SECOND: lambda x, up: up,
}
SCALES = ("row_scale", "column_scale", "alpha", "beta")  # float32; the others are of the dtype of C
AFTER = ("bias", "residual", *SCALES)  # what a finished product is combined with
OPERANDS = (*AFTER, "up")
ELEMENTS = 256
LIMIT = 1e-5  # of the relative error: float32 all through, and a tanh that may be an approximation


def probes(module: Any) -> tuple[str, ...]:
    """Return those of PROBES that a recipe's kernels have the operands for."""
    there = {name for epilogue in module.EPILOGUES for name in operands_of(module, epilogue)}
    return tuple(name for name, probe in PROBES.items() if there.issuperset(_parameters(probe)[1:]))


def of_second_product(config: Any) -> bool:
    """Return whether C is to be the product with a second weight alone."""
    return getattr(config, "epilogue", "") == SECOND


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def operands_of(module: Any, epilogue: str) -> tuple[str, ...]:
    """The operands of an epilogue, by the names that `contract.Fused` has for them."""
    return _parameters(module.EPILOGUES[epilogue])[1:]


def of_config(module: Any, config: Any) -> tuple[str, ...]:
    """The operands of a kernel's epilogue; none of a recipe that has no such functions."""
    named, epilogue = getattr(module, "EPILOGUES", {}), getattr(config, "epilogue", "")
    return operands_of(module, epilogue) if epilogue in named else ()


def told(module: Any, config: Any) -> tuple[str, ...]:
    """The operands whose addresses a launch takes, in order: a bias and a residual always, 0 of one that it has not."""
    return ("bias", "residual", *(name for name in SCALES if name in of_config(module, config)))


@contextmanager
def probed(module: Any, name: str) -> Iterator[Any]:
    """The `Config` of a kernel that has a probe for its function, as long as this lasts."""
    probe = {name: PROBES[name]}
    with patch.dict(module.EPILOGUES, probe), patch.dict(module.REFERENCES, probe):
        yield module.fused(name)


def drawn(names: tuple[str, ...], mnk: tuple[int, int, int], dtype: Any, device: str = "cuda") -> dict[str, Any]:
    """Random operands by name; rows of the residual begin at multiples of 16 bytes, a second weight lies by columns."""
    import torch

    m, n, k = mnk
    shapes = {"residual": (m, -(-n // 8) * 8), "up": (n, k), "row_scale": (m, 1), "alpha": (1,), "beta": (1,)}
    made = {name: torch.randn(shapes.get(name, (n,)), device=device) for name in names}
    made = {name: x if name in SCALES else x.to(dtype) for name, x in made.items()}
    return {name: x.T if name == "up" else x[..., :n] for name, x in made.items()}


def function_findings(module: Any) -> list[Finding]:
    """Each epilogue's function, evaluated by CuTe on random numbers on the host, against the recipe's reference."""
    return [_of_function(module, name) for name in module.EPILOGUES]


def _of_function(module: Any, name: str) -> Finding:
    import torch

    names = operands_of(module, name)
    if unknown := set(names) - set(OPERANDS):
        needed = f"some of {', '.join(OPERANDS)}"
        return Finding(name, False, f"operands: got {', '.join(sorted(unknown))}; needed {needed}")
    told = _parameters(module.REFERENCES[name])[1:]
    if told != names:
        return Finding(name, False, f"operands: got {', '.join(names)}; needed {', '.join(told)}, as its reference has")
    x, *vectors = 2 * torch.randn(1 + len(names), ELEMENTS)
    given = dict(zip(names, vectors, strict=True))
    got = _evaluated(module.EPILOGUES[name], x, given)
    exact = module.REFERENCES[name](x.double(), **{key: value.double() for key, value in given.items()})
    error = ((got.double() - exact).norm() / exact.norm()).item()
    return Finding(name, error <= LIMIT, f"relative error {error:.1e}; at most {LIMIT:.0e}")


def _evaluated(function: Callable[..., Any], x: Any, given: dict[str, Any]) -> Any:
    """`function` of x and of vectors as long, as CuTe compiles it for the host."""
    import cutlass.cute as cute
    import torch
    from cutlass.cute.runtime import from_dlpack

    out = torch.full_like(x, float("nan"))
    rows = torch.stack([x, out, *given.values()])

    @cute.jit
    def host(t):
        operands = {key: t[2 + i, None].load() for i, key in enumerate(given)}
        t[1, None].store(function(t[0, None].load(), **operands))

    host(from_dlpack(rows))
    return rows[1]


# --- on a GPU -----------------------------------------------------------------------------------------------------


def run_epilogues(module: Any, shapes: Iterable[tuple[int, ...]], dtype: str) -> list[ran.Case]:
    """Every epilogue but the product alone, of each of the shapes, into a poisoned `out`."""
    cases = []
    for name in module.EPILOGUES:
        if operands_of(module, name):
            found = [run_case(module, name, shape, dtype) for shape in shapes]
            cases += [replace(case, problem=f"{name}: {case.problem}") if case.problem else case for case in found]
    return cases


def referred(module: Any, name: str, a: Any, product: Any, given: dict[str, Any]) -> Any:
    """Return what an epilogue makes of the product of a (M, K) with b, in that product's precision, by the recipe's
    reference.

    A second weight stands for its own product with a.
    """
    given = {key: x.to(product.dtype) for key, x in given.items()}
    if "up" in given:
        given["up"] = a.to(product.dtype) @ given["up"]
    return module.REFERENCES[name](product, **given)


def run_case(module: Any, name: str, shape: tuple[int, ...], dtype: str, device: str = "cuda") -> ran.Case:
    """One epilogue, once, against its reference in float64.

    Torch's error is that of the reference computed in float32 of a product in float32, and rounded once.
    """
    import torch

    m, n, k = shape
    a, b = (x * k**-0.25 for x in ran.inputs(shape, dtype, device))  # products near 1, where functions bend
    given = drawn(operands_of(module, name), (m, n, k), getattr(torch, dtype), device)
    if "up" in given:
        given["up"] = given["up"] * k**-0.25
    out, intact = ran.guarded(m, n, dtype, device, -(-n // 8) * 8 + 8)
    module.matmul(a, b, epilogue=name, out=out, **given)
    product = a.double() @ b.double()
    exact = referred(module, name, a, product, given)
    error = ran.relative_error(out, exact)
    if out.numel() < ran.RATIO_ELEMENTS:  # they may all lie where a function is near 0, and tanh is approximate
        terms, sizes = product.abs(), {key: x.abs() for key, x in given.items()}
        terms = terms if "up" in given else referred(module, name, a, terms, sizes)  # the same without cancellation
        error *= min(1.0, (exact.norm() / terms.norm()).item())
    rounded = ran.relative_error(exact.to(out.dtype), exact)
    problem = ran.verdict(error, rounded, out.numel(), dtype)
    return ran.Case(shape, dtype, error, rounded, problem or ("" if intact() else "wrote outside out"))
