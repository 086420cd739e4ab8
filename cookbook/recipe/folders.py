"""Where recipes and records lie: in the source tree, or in the copy inside an installed wheel; and what only the tree
has."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=8)
def published(name: str) -> Path:
    """The folder `name` ("recipes", "results") of the source tree, else the wheel's copy of it."""
    source = _PACKAGE.parent / name
    return source if source.is_dir() else _PACKAGE / f"_{name}"


def tool(name: str) -> Any:
    """Return a module of tools/, which serves those who maintain records; None in an installed wheel, without it.

    Args:
        name: below `tools`: "records.freshness".
    """
    tree = _PACKAGE.parent
    if not tree.joinpath("tools", *name.split(".")).with_suffix(".py").is_file():
        return None
    if str(tree) not in sys.path:
        sys.path.append(str(tree))
    return import_module(f"tools.{name}")
