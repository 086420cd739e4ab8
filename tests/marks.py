"""Marks that several modules of tests have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

ON_HOPPER = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


def first_of_each(cases: Iterable[Any], kind: Callable[[Any], object]) -> list[Any]:
    """The cases of a parametrized test: the first of each kind is quick, the others of that kind are slow."""
    seen, marked = set(), []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=pytest.mark.slow if kind(case) in seen else ()))
        seen.add(kind(case))
    return marked
