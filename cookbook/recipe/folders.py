"""Where recipes and records lie: in the source tree, or in the copy inside an installed wheel."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=8)
def published(name: str) -> Path:
    """The folder `name` ("recipes", "results") of the source tree, else the wheel's copy of it."""
    source = _PACKAGE.parent / name
    return source if source.is_dir() else _PACKAGE / f"_{name}"
