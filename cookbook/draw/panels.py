"""Finished pictures on one card, to be compared."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cookbook.arguments import checked, integer
from cookbook.draw import svg

__all__ = ["beside"]

_GAP, _TOP, _MOST = 12.0, 42.0, 16
_PARTS = re.compile(r'<svg [^>]*viewBox="0 0 (?P<w>[\d.]+) (?P<h>[\d.]+)".*?</style>(?P<body>.*)</svg>', re.DOTALL)


@checked
def beside(pictures: Sequence[svg.Picture], title: str, columns: int = 2) -> svg.Picture:
    """Pictures side by side, `columns` to a row, each under its own title.

    Args:
        pictures: 1 to 16 pictures made by this package.
        title: the title over all of them.
        columns: how many stand in a row.

    Raises:
        ValueError: no picture, more than 16, no column, or text that is none of this package's pictures.
    """
    integer("columns", columns, at_least=1, at_most=_MOST)
    if not 1 <= len(pictures) <= _MOST:
        raise ValueError(f"pictures: got {len(pictures)}; needed 1 to {_MOST}")
    found = [_PARTS.fullmatch(picture.svg) for picture in pictures]
    parts, y, widest = [], _TOP, 0.0
    for first in range(0, len(found), columns):
        x, tallest = 8.0, 0.0
        for part in found[first : first + columns]:
            if part is None:
                raise ValueError("pictures: got other text; needed pictures made by cookbook.draw")
            parts.append(f'<g transform="translate({svg.num(x)} {svg.num(y)})">{part["body"]}</g>')
            x, tallest = x + float(part["w"]) + _GAP, max(tallest, float(part["h"]))
        y, widest = y + tallest + _GAP, max(widest, x)
    said = " ".join(re.findall(r"<desc [^>]*>(.*?)</desc>", "".join(picture.svg for picture in pictures)))
    return svg.picture(
        widest, y, title, said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"), parts, {}
    )
