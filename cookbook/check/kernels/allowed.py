"""Comments that allow what a rule forbids, with a reason: `# cookbook: allow bank-conflict, written once`.

The comment stands at the end of the line that the finding names, or alone in the line above. A rule is spelled as a
report spells it, with `-` for spaces. Without a reason nothing is allowed.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import replace

from cookbook.check.kernels.report import Found, Place

__all__ = ["divided"]

_COMMENT = re.compile(r"#\s*cookbook:\s*allow\s+(?P<rule>[\w-]+)\s*(?:,\s*(?P<reason>.*\S))?\s*$")


def divided(found: Iterable[Found]) -> tuple[list[Found], list[Found]]:
    """(what is wrong, what a comment allows): with the reason that it gives."""
    wrong, allowed = [], []
    for one in found:
        reason = next((r for place in (one.at, one.other) if (r := _reason(place, one.rule)) is not None), None)
        if reason:
            allowed.append(replace(one, allowed=reason))
        elif reason == "":
            needed = f"# cookbook: allow {one.rule.replace(' ', '-')}, and why"
            wrong.append(replace(one, text=f"{one.text} (the comment that allows it has no reason; needed {needed})"))
        else:
            wrong.append(one)
    return wrong, allowed


def _reason(place: Place, rule: str) -> str | None:
    """Return what the comment at a line says of a rule; "" if it gives no reason; None without such a comment."""
    if not place.file:
        return None
    above = linecache.getline(place.file, place.line - 1)
    for text in (linecache.getline(place.file, place.line), above if above.strip().startswith("#") else ""):
        found = _COMMENT.search(text)
        if found and found["rule"] == rule.replace(" ", "-"):
            return found["reason"] or ""
    return None
