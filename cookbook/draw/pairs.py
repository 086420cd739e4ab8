"""Pictures of CTA pairs: the part of their tiles that each CTA fetches."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from cookbook.arguments import checked, pair
from cookbook.draw import svg

__all__ = ["pair_view"]

_PER_ELEMENT = 0.34  # units
_DEEP = 40.0  # how far a tile of A or B reaches along K, in units: chosen, not to scale
_TOP = 108.0
PAIR = 2


@checked
def pair_view(
    clusters: Mapping[str, tuple[int, int]], half: tuple[int, int] = (128, 128), title: str | None = None
) -> svg.Picture:
    """Clusters of pairs side by side: C of each CTA, A on the left and B above, coloured by who fetches them.

    The CTAs of a pair share one MMA: each has its half of the rows of C, all columns of them, and brings its half of
    the rows of A and of the columns of B. Pairs of a row of the cluster divide each half of A among them, pairs of a
    column each half of B. Ranks count halves first, then pairs down, then across.

    Args:
        clusters: by name, pairs (down, across); 4 at most in each.
        half: rows of A and columns of B that one CTA of a pair brings, in elements.
        title: the picture's title.

    Raises:
        ValueError: a cluster with no pair, or with too many; or none at all.
    """
    pair("half", half, of="rows of A, columns of B", at_least=1, at_most=1 << 12)
    most = len(svg.GROUPS) // PAIR
    for name, (down, across) in clusters.items():
        if min(down, across) < 1 or down * across > most:
            raise ValueError(f"clusters: got {down} x {across} for {name}; needed 1 to {most} pairs")
    if not clusters:
        raise ValueError("clusters: got none; needed at least one")
    parts: list[str] = []
    left, lowest = 16.0, 0.0
    for name, shape in clusters.items():
        drawn, right, bottom = _cluster(name, shape, half, left)
        parts += drawn
        left, lowest = right + 36, max(lowest, bottom)
    said = "; ".join(f"{name}: {' '.join(_asked(shape, half))}" for name, shape in clusters.items())
    notes = {44: "one colour a CTA: its rows of C, and what it fetches of A (left) and B (top)"}
    return svg.picture(left, lowest + 16, title or "Who fetches what for a pair", said, parts, notes)


def _asked(shape: tuple[int, int], half: tuple[int, int]) -> list[str]:
    """Return what one CTA asks L2 for."""
    return [f"a CTA: {half[0] // shape[1]} rows of A,", f"{half[1] // shape[0]} columns of B"]


def _cluster(name: str, shape: tuple[int, int], half: tuple[int, int], left: float) -> tuple[list[str], float, float]:
    """One cluster's elements, and its right and lower edge."""
    (down, across), (high, wide) = shape, (half[0] * _PER_ELEMENT, half[1] * _PER_ELEMENT)
    x0, y0 = left + _DEEP + 8, _TOP + _DEEP + 8
    parts = [
        svg.text(left, 70, name, 12, "ink", "start", bold=True),
        *(svg.text(left, 84 + 13 * i, line, 10, "soft", "start") for i, line in enumerate(_asked(shape, half))),
    ]
    for rank in range(PAIR * down * across):
        which, m, n = rank % PAIR, rank // PAIR % down, rank // PAIR // down
        fill, data = svg.GROUPS[rank], {"cluster": name, "rank": rank}
        x, y = x0 + PAIR * n * wide, y0 + (PAIR * m + which) * high
        parts.append(svg.cell(x, y, PAIR * wide, high, f"CTA {rank}", fill, what="C", **data))
        part = high / across
        parts.append(svg.cell(left, y + n * part, _DEEP, part, rank, fill, size=11, what="A", **data))
        part = wide / down
        parts.append(svg.cell(x + which * wide + m * part, _TOP, part, _DEEP, rank, fill, size=11, what="B", **data))
    for m, n in product(range(down), range(across)):
        x, y = x0 + PAIR * n * wide, y0 + PAIR * m * high
        parts.append(svg.frame(x, y, PAIR * wide, PAIR * high, "ink", what="pair", cluster=name))
    return parts, x0 + PAIR * across * wide, y0 + PAIR * down * high
