"""Where recipes and records lie: in the source tree, or in the copy inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def published(name: str) -> Path:
    """The folder `name` ("recipes", "results") of the source tree, else the wheel's copy of it."""
    source = _PACKAGE.parent / name
    return source if source.is_dir() else _PACKAGE / f"_{name}"
