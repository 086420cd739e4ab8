"""Chained GEMMs on a GPU: C = (A B) B2 against float64, and against two calls of torch.matmul."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from cookbook.check import poisoning, ran
from cookbook.recipe import chained

__all__ = ["drawn", "launch", "reference", "run_case", "run_variants"]


def drawn(shape: ran.Shape, dtype: str, columns: int = 0, device: str = "cuda") -> tuple[Any, Any, Any]:
    """Normal a (M, K), b (K, N1), b2 (N1, N), the weights K-major, in lines of whole 16-byte pieces.

    columns: N1; 0: what `chained.columns` says.
    """
    import torch

    m, n, k = shape
    middle = columns or chained.columns(shape)
    a, b = ran.inputs((m, middle, k), dtype, device)
    b2 = torch.randn(n, -(-middle // 8) * 8, device=device).to(a.dtype)[:, :middle].T
    return a, b, b2


def reference(a: Any, b: Any, b2: Any) -> Any:
    """`(a @ b) @ b2` in the precision of `ran.reference`, nothing rounded in the middle."""
    first = ran.reference(a, b)
    return first @ b2.to(first.dtype)


def run_case(matmul: Callable[..., Any], shape: ran.Shape, dtype: str, row_stride: int | None = None) -> ran.Case:
    """Run `matmul(a, b, b2, out=)` once into a poisoned, guarded `out`, and with shared memory poisoned; compare.

    The product in the middle is rounded, in torch too. So an error may be that of two roundings.
    """
    import torch

    a, b, b2 = drawn(shape, dtype)
    out, intact = ran.guarded(shape[0], shape[1], dtype, row_stride=row_stride)
    poisoning.shared_memory()
    returned = matmul(a, b, b2, out=out)
    torch.cuda.synchronize()
    exact = reference(a, b, b2)
    error, torch_error = (ran.relative_error(x, exact) for x in (out, torch.matmul(torch.matmul(a, b), b2)))
    if out.numel() < ran.RATIO_ELEMENTS:  # they may all be near 0, and what was rounded in the middle is not
        error *= min(1.0, (exact.norm() / (ran.reference(a, b).abs() @ b2.abs().to(exact.dtype)).norm()).item())
    problem = ran.verdict(error, torch_error, out.numel(), dtype, lost=ran.tolerance(dtype))
    if returned.data_ptr() != out.data_ptr():
        problem = problem or "matmul did not return out"
    return ran.Case(shape, dtype, error, torch_error, problem or ("" if intact() else "wrote outside out"))


def run_variants(module: Any, shapes: Iterable[ran.Shape], dtype: str) -> list[ran.Case]:
    """Every shape by every variant, the rows of `out` as `ran.run_checks` has them; a problem says whose it is."""
    cases = []
    for name in module.VARIANTS:
        for number, shape in enumerate(shapes):
            row = (shape[1], shape[1] + 24, -(-shape[1] // 8) * 8 + 8)[number % 3]
            case = run_case(partial(module.matmul, variant=name), shape, dtype, row)
            cases.append(replace(case, problem=f"{name}: {case.problem}" if case.problem else ""))
    return cases


def launch(module: Any, dtype: str, shapes: Iterable[ran.Shape]) -> None:
    """Each variant once per shape, and make sure that it was right."""
    for shape in shapes:
        a, b, b2 = drawn(shape, dtype)
        exact = reference(a, b, b2)
        for name in module.VARIANTS:
            error = ran.relative_error(module.matmul(a, b, b2, variant=name), exact)
            if not error <= 2 * ran.tolerance(dtype):  # two roundings
                raise SystemExit(f"{name} {dtype} {shape}: relative error {error:.2e}")
