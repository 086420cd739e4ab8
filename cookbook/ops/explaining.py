"""Explain in words which recipe would compute a product, and why. No GPU is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cookbook.ops import choice, evidence, launching, predict
from cookbook.recipe import operator
from cookbook.recipe.entry import require

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """The plan of `matmul(a, b)`. Times are predictions by figures of one chip, microseconds on the GPU."""

    mnk: tuple[int, int, int]
    dtype: str
    gpu: choice.Gpu
    options: tuple[choice.Option, ...]  # every recipe that could, the chosen one first

    @property
    def recipe(self) -> str:
        return self.options[0].recipe

    @property
    def variant(self) -> str:
        return self.options[0].variant

    @property
    def copies(self) -> dict[str, str]:
        """Why an operand is copied first, by its name."""
        return self.options[0].copies

    @property
    def untried(self) -> str:
        """That no such GPU is known to have run the recipe, in a sentence; "": one has."""
        return evidence.untried(self.recipe, self.gpu.capability[0])

    @property
    def reason(self) -> str:
        """Why this recipe."""
        best, *rest = self.options
        if not rest:
            return "the only recipe that serves this GPU"
        copied = " with a copy" if rest[0].copies else ""
        return f"predicted {best.us:.1f} us; the next, {rest[0].recipe}, {rest[0].us:.1f} us{copied}"

    def __str__(self) -> str:
        best, (m, n, k) = self.options[0], self.mnk
        at = "sm_{}{}, {} SMs".format(*self.gpu.capability, self.gpu.sms)
        memory = self.gpu.memory
        figures = f"an {predict.H200.name}" + (f", with {memory} of its bandwidth of memory" if memory != 1 else "")
        lines = [
            f"{m} x {n} x {k}, {self.dtype}, on {at}: {best.recipe}" + (f", {best.variant}" if best.variant else "")
        ]
        lines.append(f"  why: {self.reason} (by figures of {figures})")
        lines.append(f"  majors: {best.majors}")
        lines += [f"  {name} is copied first: {why}" for name, why in best.copies.items()] or ["  nothing is copied"]
        return "\n".join(lines + [f"  not confirmed: {self.untried}"] * (self.untried != ""))


def explain(
    a: torch.Tensor | tuple[int, ...],
    b: torch.Tensor | tuple[int, ...],
    *,
    dtype: torch.dtype = torch.bfloat16,
    gpu: choice.Gpu = choice.H200,
) -> Explanation:
    """Return what `matmul(a, b)` would do: the recipe, its variant, the reason, the predicted time, and what is copied.

    a, b: tensors, real, fake or meta; or shapes (..., M, K) and (K, N), of adjacent elements in rows.
    dtype: of shapes. gpu: its capability, SMs and memory, where no tensor is on a GPU; an H200 if left out.

    Raises what `matmul` raises.
    """
    a, b = (torch.empty(x, dtype=dtype, device="meta") if isinstance(x, tuple) else x for x in (a, b))
    rows = launching.rows_of(a)
    operator.check_matrices(rows, b)
    require(min(*rows.shape, *b.shape) > 0, "a", f"shape {tuple(a.shape)}", "something to multiply")
    if a.is_cuda and torch.cuda.is_available():
        gpu = launching.gpu_of(a)
    name = str(a.dtype).removeprefix("torch.")
    found = choice.options(choice.laid(rows), choice.laid(b), name, gpu)
    (m, k), n = map(int, rows.shape), int(b.shape[1])
    return Explanation((m, n, k), name, gpu, tuple(found))
