"""On which GPUs a chosen recipe has run: its records say it, and where there is none this is said once."""

from __future__ import annotations

import warnings
from functools import cache

from cookbook.measure import records
from cookbook.recipe import catalog

__all__ = ["untried", "warn_once"]


_WARNED: set[int] = set()


@cache
def untried(recipe: str, major: int) -> str:
    """A sentence, if no GPU of this major compute capability is known to have run a recipe's kernels; else ""."""
    found = {
        record["device"]: catalog.capabilities(record["target"])[0][0]
        for record in records.read(name=recipe)
        if record["level"] == "ran" and record["status"] == "passed" and record["target"]
    }
    if major in found.values():
        return ""
    elsewhere = f"on {' and '.join(sorted(found))} alone" if found else "on no GPU"
    return f"{recipe} has run {elsewhere}: on compute capability {major}.x nothing of it is confirmed, nor its time"


def warn_once(recipe: str, major: int) -> None:
    """Warn at the first product by a recipe that no GPU of this major compute capability is known to have run."""
    if major not in _WARNED and (text := untried(recipe, major)):
        _WARNED.add(major)
        warnings.warn(f"{text}. Compare it with torch.matmul before you rely on it.", stacklevel=2)
