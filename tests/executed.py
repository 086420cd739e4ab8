"""Pages that quick tests execute: a foundation, a GEMM of Ampere and one of Hopper, each with a prediction or a check.

`make test-slow` executes all. What was executed lies in notebooks/, which git ignores, until something of it changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from cookbook.recipe import catalog
from tools.publish import notebooks

FOUNDATION, AMPERE, HOPPER = QUICK = ("foundations/xor_swizzle", "ampere/swizzled_gemm", "hopper/swizzled_gemm")


def params(names: Iterable[str] = ()) -> list[Any]:
    """All recipes, or these, as parameters; those that are not QUICK are slow."""
    every = list(names) or [recipe.name for recipe in catalog.recipes()]
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in every]


def notebook(name: str) -> Any:
    """A recipe's executed notebook."""
    return notebooks.make_if_changed(name)


def outputs(name: str) -> list[Any]:
    return [output for cell in notebook(name).cells for output in cell.get("outputs", ())]
