"""Packed weights: B alone is narrow, in groups along K, and the recipe's `pack` lays it out for its threads.

A weight is drawn so that the dtype of A holds exactly what it stands for: torch.matmul multiplies the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cookbook import banks
from cookbook.check.findings import Finding
from cookbook.layouts import evaluate
from cookbook.recipe.formats import FORMATS

__all__ = ["Kind", "as_matmul", "kind_of", "layout_findings", "operands", "quantized", "rounded"]

VECTOR = 16  # bytes of a thread's load
GROUP = FORMATS["int4"].block


class Kind(NamedTuple):
    """The parts of a packed weight."""

    bits: int = 4  # of an element
    zeros: bool = False  # whether each group has a zero point
    floats: bool = False  # whether elements are e4m3, of 8 bits; else they are integers


def kind_of(config: Any) -> Kind:
    """Return what weight a Config's kernel is of."""
    return Kind(config.bits, config.zeros, config.floats)


INT4 = Kind()


def quantized(weight: Any, kind: Kind = INT4) -> tuple[Any, ...]:
    """The torch tensor (N, K) as integers or e4m3, scales and zero points: what `pack` takes.

    The scale of a group is the power of two by which the largest element just fits. Of what is `rounded` already
    nothing is lost, by any kind.
    """
    import torch

    n, k = weight.shape
    groups = weight.float().view(n, k // GROUP, GROUP)
    most = 448 if kind.floats else 7 if kind.bits == 4 else 127
    scales = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(dim=2).clamp(min=1e-20) / most)))
    values = groups / scales[..., None]
    if kind.floats:
        return values.view(n, k).to(torch.float8_e4m3fn), scales.to(weight.dtype)
    values = values.round()
    if kind.bits == 8:
        return values.view(n, k).to(torch.int8), scales.to(weight.dtype)
    middle = -values.amin(dim=2).clamp(max=0) if kind.zeros else torch.full_like(scales, 8)
    integers = (values + middle[..., None]).view(n, k).to(torch.uint8)
    return (integers, scales.to(weight.dtype), *((middle.to(torch.uint8),) if kind.zeros else ()))


def rounded(weight: Any) -> Any:
    """Return what `quantized` with 4 bits stands for, in the same dtype, which holds it exactly."""
    integers, scales = quantized(weight)
    return ((integers.float() - 8) * scales.float().repeat_interleave(GROUP, dim=1)).to(weight.dtype)


def operands(module: Any, b: Any, config: Any) -> tuple[Any, ...]:
    """Return what the recipe's `matmul` takes behind `a`, for torch's `b` (K, N) and a Config's kind of weight."""
    return tuple(module.pack(*quantized(b.T, kind_of(config))))


def as_matmul(module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
    """A recipe's `matmul` of a packed weight as one of (a, b, out): torch tensors, b packed on the way."""

    def call(a: Any, b: Any, out: Any = None) -> Any:
        return matmul(a, *operands(module, b, config), out=out)

    return call


def layout_findings(module: Any, config: Any) -> list[Finding]:
    """Each word of a stage is loaded by one thread, once; and each load of a warp takes the wavefronts that it must."""
    found = evaluate(lambda: module.words_of_threads(config))
    words = found.table()  # ((WORD, THREAD), CHUNK, GROUP, WARPGROUP, STAGE)
    offsets = np.sort(words.reshape(-1))
    once = np.array_equal(offsets, np.arange(offsets.size))
    findings = [Finding("words", once, f"{offsets.size} words; needed each of them once")]
    per = VECTOR // 4
    loads = 4 * words.reshape(per, 128, -1, order="F") if words.ndim else words
    together = (loads - loads[:1] == 4 * np.arange(per)[:, None, None]).all() and (loads[0] % VECTOR == 0).all()
    findings.append(Finding("words.loads", bool(together), "needed 16 bytes in a row, at a multiple of 16"))
    worst = max(
        banks.wavefronts(loads[0, warp : warp + 32, each], VECTOR).excess
        for warp in range(0, 128, 32)
        for each in range(loads.shape[2])
    )
    return [*findings, Finding("words.wavefronts", worst == 0, f"{worst} above the ideal; needed 0")]
