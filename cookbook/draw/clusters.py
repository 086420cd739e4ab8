"""Pictures of multicast: the part of the cluster's tiles that each CTA fetches."""

from __future__ import annotations

from collections.abc import Mapping

from cookbook.arguments import checked, pair
from cookbook.draw import svg

__all__ = ["cluster_view"]

_PER_ELEMENT = 0.5  # units
_DEEP = 40.0  # how far a tile of A or B reaches along K, in units: chosen, not to scale


@checked
def cluster_view(
    clusters: Mapping[str, tuple[int, int]], tile: tuple[int, int] = (128, 256), title: str | None = None
) -> svg.Picture:
    """Clusters side by side: the tiles of C of their CTAs, A on the left and B above, coloured by who fetches them.

    CTAs of a row share a tile of A and divide it among them, those of a column a tile of B. Ranks count down first.

    Args:
        clusters: by name, CTAs (down, across); 8 at most in each, as many as there are colours.
        tile: rows and columns of C that a CTA computes, in elements.
        title: the picture's title.

    Raises:
        ValueError: a cluster with no CTA, or with too many.
    """
    pair("tile", tile, of="rows, columns", at_least=1, at_most=1 << 12)
    for name, (down, across) in clusters.items():
        if min(down, across) < 1 or down * across > len(svg.GROUPS):
            raise ValueError(f"clusters: got {down} x {across} for {name}; needed 1 to {len(svg.GROUPS)} CTAs")
    if not clusters:
        raise ValueError("clusters: got none; needed at least one")
    parts: list[str] = []
    left, lowest = 16.0, 0.0
    for name, shape in clusters.items():
        drawn, right, bottom = _cluster(name, shape, tile, left)
        parts += drawn
        left, lowest = right + 36, max(lowest, bottom)
    said = "; ".join(f"{name}: {_asked(shape)}" for name, shape in clusters.items())
    notes = {44: "one colour a CTA: its tile of C, and what it fetches of A (left) and B (top), for all that share it"}
    return svg.picture(left, lowest + 16, title or "Who fetches what in a cluster", said, parts, notes)


def _asked(shape: tuple[int, int]) -> str:
    """Return what one CTA asks L2 for."""
    down, across = shape
    return f"{'A' if across == 1 else f'A/{across}'} + {'B' if down == 1 else f'B/{down}'} a CTA"


def _cluster(name: str, shape: tuple[int, int], tile: tuple[int, int], left: float) -> tuple[list[str], float, float]:
    """One cluster's elements, and its right and lower edge."""
    (down, across), (high, wide) = shape, (tile[0] * _PER_ELEMENT, tile[1] * _PER_ELEMENT)
    x0, y0 = left + _DEEP + 8, 92 + _DEEP + 8
    parts = [
        svg.text(left, 70, name, 12, "ink", "start", bold=True),
        svg.text(left, 85, _asked(shape), 11, "soft", "start"),
    ]
    for m in range(down):
        for n in range(across):
            rank = m + n * down
            fill, x, y = svg.GROUPS[rank], x0 + n * wide, y0 + m * high
            parts.append(svg.cell(x, y, wide, high, f"CTA {rank}", fill, cluster=name, rank=rank, what="C"))
            part, at = high / across, y + n * high / across
            parts.append(svg.cell(left, at, _DEEP, part, rank, fill, size=11, cluster=name, rank=rank, what="A"))
            part, at = wide / down, x + m * wide / down
            parts.append(svg.cell(at, 92, part, _DEEP, rank, fill, size=11, cluster=name, rank=rank, what="B"))
    return parts, x0 + across * wide, y0 + down * high
