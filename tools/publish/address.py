"""Where the repository is: `[tool.cookbook] repository` of pyproject.toml, the one setting, and links made of it."""

from __future__ import annotations

import re
from pathlib import Path

from cookbook.recipe import catalog

BRANCH = "main"
_SETTING = re.compile(r'^\[tool\.cookbook\]\n(?:[^\[\n]*\n)*?repository = "(?P<address>[^"\n]*)"', re.M)


def repository(settings: Path | None = None) -> str:
    """The repository's address without a slash at the end; "" while it is not decided.

    Args:
        settings: a pyproject.toml; this tree's if left out. Read as text: tomllib came with Python 3.11.

    Raises:
        ValueError: the file has no such setting, or an address that is not of https.
    """
    settings = settings or catalog.recipes_root().parent / "pyproject.toml"
    found = _SETTING.search(settings.read_text(encoding="utf-8"))
    if not found:
        raise ValueError(f"settings: got {settings} without the setting; needed [tool.cookbook] with repository = ...")
    address = found["address"].rstrip("/")
    if address and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address):
        raise ValueError(f"repository: got {address!r}; needed an address such as https://github.com/OWNER/NAME")
    return address


def source_of(path: str, edit: bool = False, settings: Path | None = None) -> str:
    """The address of a file of the repository, to read or to edit it; "" while the repository has none.

    Args:
        path: from the root: "recipes/hopper/tma_copy.py".
    """
    address = repository(settings)
    return f"{address}/{'edit' if edit else 'blob'}/{BRANCH}/{path}" if address else ""
