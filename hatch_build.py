"""The package's links, from the one setting `[tool.cookbook] repository` of pyproject.toml: none while it is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

try:
    import tomllib
except ImportError:  # Python 3.10, where hatchling brings it
    import tomli as tomllib


class Links(MetadataHookInterface):
    """`urls` of the metadata: PyPI shows them beside the text."""

    def update(self, metadata: dict[str, Any]) -> None:
        settings = tomllib.loads((Path(self.root) / "pyproject.toml").read_text(encoding="utf-8"))
        repository = settings["tool"]["cookbook"]["repository"].rstrip("/")
        pages = {"Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
        metadata["urls"] = {name: repository + path for name, path in pages.items()} if repository else {}
