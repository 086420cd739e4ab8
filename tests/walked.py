"""What the tests that simulate a GEMM share: operands, what the output is rounded to, what does not hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from cookbook.check.findings import Finding
from cookbook.recipe import catalog


def integers(m: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Operands (m, k) and (k, n) whose products are exact in float32."""
    generator = np.random.default_rng(seed)
    return generator.integers(-3, 4, (m, k)).astype(np.float32), generator.integers(-3, 4, (k, n)).astype(np.float32)


def rounded(product: np.ndarray, dtype: str = "bfloat16") -> np.ndarray:
    """float32 values rounded to `dtype`."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(product)).to(getattr(torch, dtype)).float().numpy()


def with_changes(name: str, **changes: Any) -> tuple[ModuleType, Any]:
    """A recipe, and its configuration with some fields changed."""
    module = catalog.load(name)
    return module, dataclasses.replace(module.CONFIG, **changes)


def failures(findings: Iterable[Finding]) -> dict[str, str]:
    """What does not hold, and why, by name."""
    return {f.name: f.detail for f in findings if not f.ok}
