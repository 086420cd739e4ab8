"""Files results/<device>/NAME that are no records of recipes: read of all devices, and written for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cookbook.measure import records

_T = TypeVar("_T")


def read(name: str, kept: Callable[[dict[str, Any]], _T], what: str, root: Path | None = None) -> dict[str, _T]:
    """Return what is `kept` of each file, by device.

    Raises ValueError if a file is no record of `what`: if it is no JSON, or `kept` does not find its parts.
    """
    found = {}
    for file in records.files(name, root):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            found[content["device"]] = kept(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file}: not a record of {what} ({error!r})") from None
    return found


def write(name: str, content: dict[str, Any], root: Path | None = None) -> Path:
    """Write the file of `content["device"]`."""
    file = (root or records.results_root()) / records.slug(content["device"]) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return file
