"""Grouped GEMMs: `offs` says where each group ends.

Groups of rows ("m"): a group's rows of A meet a B of its own. They begin where the largest end before it is, so ends
out of order make empty groups. Rows behind the last end are of no group, and of C they are not written.

Groups along K ("k"): each group has a product of its own. It goes from the end before it to its own, and is empty, with
a product of zeros, where its own is not behind that. Imports nothing heavy.
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["ENDS", "ends", "owners", "parts", "sizes", "takes_groups"]

ENDS = 4  # groups that the checks make of the rows of A, or of K


def takes_groups(module: Any) -> str:
    """Return what groups divide in a GEMM recipe: "m", if its `gemm` takes `offs`; "k", if `offs_k`; "" if there are
    none."""
    parameters = inspect.signature(module.gemm).parameters.items() if hasattr(module, "gemm") else ()
    names = [x for name, each in parameters for x in (name, *getattr(each.annotation, "_fields", ()))]
    return "m" if "offs" in names else "k" if "offs_k" in names else ""


def ends(rows: int) -> tuple[int, ...]:
    """Return where the groups end that the checks make of `rows` rows: the second is empty by an end out of order, and
    of many rows the last ones are of no group."""
    return rows // 3, rows // 5, rows - rows // 6, rows - rows // 8


def parts(k: int, offs: tuple[int, ...]) -> tuple[range, ...]:
    """The k of each group."""
    inside = [max(0, min(end, k)) for end in offs]
    return tuple(map(range, [0, *inside], inside))


def sizes(rows: int) -> tuple[int, ...]:
    """The 8 groups that are timed: equal ones where 8 divides `rows`, else skewed, each about 3/4 of the one before."""
    if rows % 8 == 0:
        return (rows // 8,) * 8
    parts = [0.75**number for number in range(8)]
    found = [int(rows * part / sum(parts)) for part in parts]
    return (found[0] + rows - sum(found), *found[1:])


def owners(rows: int, offs: tuple[int, ...]) -> tuple[int, ...]:
    """The group of each row; -1 of one that is of none."""
    found, start = [-1] * rows, 0
    for group, end in enumerate(offs):
        for row in range(start, min(end, rows)):
            found[row] = group
        start = max(start, min(end, rows))
    return tuple(found)
