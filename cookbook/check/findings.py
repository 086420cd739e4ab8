"""One line of a check: what was looked at, whether it holds, and the figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """`name` was looked at, `ok`: does it hold, `detail`: what it is and what was needed."""

    name: str
    ok: bool
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict."""
        return asdict(self)
