"""The versions of CuTe DSL that compile each recipe, from results/versions.json. `python -m tools.versions` writes it.

Nothing here imports CuTe.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from cookbook.recipe.folders import published

DSL = "nvidia-cutlass-dsl"
OLDEST = "4.6.2"  # of CuTe DSL: pyproject.toml's range begins here
RECORD = published("results") / "versions.json"


class Tried(NamedTuple):
    """One environment's results for the recipes."""

    dsl: str  # the version of CuTe DSL
    python: str
    torch: str
    date: str
    compiled: list[str]  # names of recipes
    failed: dict[str, str]  # name of a recipe -> the error
    targets: str = "each"  # or "first": of a recipe's targets, those that its kernels were compiled for


def tried(file: Path | None = None) -> list[Tried]:
    """Every environment of the record (RECORD, if left out), the oldest CuTe DSL first; [] if there is none."""
    file = file or RECORD
    if not file.is_file():
        return []
    rows = [Tried(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    return sorted(rows, key=lambda row: key(row.dsl, row.python))


@cache
def installed() -> str | None:
    """The version of CuTe DSL that is installed here, or None."""
    try:
        return metadata.version(DSL)
    except metadata.PackageNotFoundError:
        return None


def key(*versions: str) -> tuple[tuple[int, ...], ...]:
    """Versions as what compares as they do: the numbers of each, up to three."""
    return tuple(tuple(map(int, re.findall(r"\d+", version)[:3])) for version in versions)


def is_old(version: str) -> bool:
    """Return whether a version of CuTe DSL is older than the ones that compile every recipe."""
    return key(version) < key(OLDEST)


def failing(version: str, file: Path | None = None) -> dict[str, str]:
    """The recipes that a version older than OLDEST does not compile, and why: as the nearest one that was tried says.

    The nearest is the newest that is no newer; of a version older than all, the oldest.
    """
    if not is_old(version) or not (rows := tried(file)):
        return {}
    older = [row for row in rows if key(row.dsl) <= key(version)]
    nearest = (older or rows)[-1 if older else 0].dsl
    return {name: why for row in rows if row.dsl == nearest for name, why in row.failed.items()}


def check(name: str) -> None:
    """Nothing, where the installed CuTe DSL compiles a recipe or none is installed.

    Raises:
        ImportError: it is too old for this recipe.
    """
    version = installed()
    if version is not None and name in failing(version):
        raise ImportError(f"CuTe DSL: got {version}; needed {OLDEST} or later for {name}")
